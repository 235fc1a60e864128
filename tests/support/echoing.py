"""What a child does in tests of `adapters.child`: each message says what."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from imgbuild.adapters.child import Parent


def main(parent: Parent) -> None:
    while True:
        word, _, rest = parent.receive().partition(b" ")
        print("this is printed, and no message")
        if word == b"raise":
            raise ValueError(rest.decode())
        if word == b"sleep":
            time.sleep(60)
        elif word == b"leave":
            _leave(parent, int(rest))
        else:
            parent.send(_WORDS[word](parent, rest))


def _hashed(parent: Parent, size: bytes) -> bytes:
    stream, hasher = parent.stream(), hashlib.sha256()
    while data := stream.read(int(size)):
        hasher.update(data)
    return hasher.digest()


def _leave(parent: Parent, reads: int) -> None:
    stream = parent.stream()
    for _ in range(reads):
        stream.read(1_000)
    parent.send(b"enough")
    time.sleep(60)


_WORDS: dict[bytes, Callable[[Parent, bytes], bytes]] = {
    b"echo": lambda _, rest: rest,
    b"stream": _hashed,
    b"flood": lambda _, rest: bytes(int(rest)),
    b"variable": lambda _, rest: os.environb.get(rest, b""),
    b"where": lambda *_: os.fsencode("\n".join(sys.path)),
}
