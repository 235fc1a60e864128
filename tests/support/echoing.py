"""What a child does in tests of `adapters.child`: each message says what."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from imgbuild.adapters.child import Parent


def main(parent: Parent) -> None:
    while True:
        word, _, rest = parent.receive().partition(b" ")
        print("this is printed, and no message")
        if word == b"echo":
            parent.send(rest)
        elif word == b"stream":
            stream, count = parent.stream(), 0
            while data := stream.read(1 << 20):
                count += len(data)
            parent.send(str(count).encode())
        elif word == b"flood":
            parent.send(bytes(int(rest)))
        elif word == b"raise":
            raise ValueError(rest.decode())
        elif word == b"where":
            parent.send(os.fsencode("\n".join(sys.path)))
        elif word == b"sleep":
            time.sleep(60)
