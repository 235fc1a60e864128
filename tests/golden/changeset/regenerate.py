"""Writes the golden bytes of layer format 1 beside this file.

    python tests/golden/changeset/regenerate.py

Format 1 never changes: a difference after running this is a bug, or a format 2.
"""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from imgbuild.content.changeset import BytesContent, Change, ChangeType, write_layer
from imgbuild.errors import DigestMismatchError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from imgbuild.digest import Readable

EPOCH = 1_700_000_000
HERE = Path(__file__).parent


@dataclass(frozen=True)
class HugeContent:
    """Says that it has 8 GiB, and is empty: enough to see the header."""

    size: int = 8 * 1024**3

    def open(self) -> AbstractContextManager[Readable]:
        return contextlib.nullcontext(io.BytesIO())


def _file(path: bytes, data: bytes, **fields: Any) -> Change:
    return Change(path=path, type=ChangeType.FILE, content=BytesContent(data=data), **fields)


def _directory(path: bytes, mode: int = 0o755, **fields: Any) -> Change:
    return Change(path=path, type=ChangeType.DIRECTORY, mode=mode, **fields)


def _symlink(path: bytes, link: bytes) -> Change:
    return Change(path=path, type=ChangeType.SYMLINK, mode=0o777, mtime=EPOCH, link=link)


def changes() -> list[Change]:
    """One layer with every kind of entry and every reason for a PAX header, but the size (see `huge_header`)."""
    capability = bytes.fromhex("0100000200040000000000000000000000000000")
    split = b"split/" + b"p" * 100
    unsplit = b"n" * 120
    return [
        _directory(b"etc", mtime=1_600_000_000),
        _file(b"etc/empty", b"", mtime=EPOCH),
        _file(b"etc/hosts", b"127.0.0.1 localhost\n", mtime=EPOCH, uid=1000, gid=100),
        _file(b"etc/block", b"b" * 512, mode=0o6755, mtime=EPOCH),
        _file(b"etc/.aaa", b"sorts after the markers\n"),
        Change(path=b"etc", type=ChangeType.OPAQUE),
        Change(path=b"etc/zzz", type=ChangeType.WHITEOUT),
        Change(path=b"etc/gone", type=ChangeType.WHITEOUT),
        _file(b"etc-default", b"sorts before what is below etc\n", mode=0o100644),
        _directory(b"lib", mode=0o1777),
        _symlink(b"lib/libnccl.so", b"libnccl.so.2"),
        _symlink(b"lib/long", b"t" * 101),
        _symlink(b"lib/bytes", b"\xff\xfe"),
        _symlink(b"lib/non-ascii", "Zürich".encode()),
        _file(b"lib/libnccl.so.2", b"\x7fELF", mode=0o755, mtime=EPOCH),
        Change(path=b"lib/same", type=ChangeType.HARDLINK, mode=0o755, mtime=EPOCH, link=b"lib/libnccl.so.2"),
        Change(path=b"lib/old", type=ChangeType.WHITEOUT),
        Change(
            path=b"lib/ping",
            type=ChangeType.FILE,
            mode=0o755,
            xattrs=(("user.note", b"a=b\nc\0"), ("security.capability", capability)),
            content=BytesContent(data=b"ping"),
        ),
        _directory(b"split"),
        _directory(split),
        _file(split + b"/" + b"s" * 60, b"prefix and name\n"),
        _file(unsplit, b"needs PAX\n"),
        Change(path=unsplit + b"-link", type=ChangeType.HARDLINK, link=unsplit),
        _directory("Übung".encode()),
        _file("Übung/ä.txt".encode(), b"UTF-8\n"),
        _file(b"\xe4.txt", b"Latin-1\n"),
        _file(b"owner-ustar", b"", uid=0o7777777, gid=0o7777777),
        _file(b"owner-pax", b"", uid=0o7777777 + 1, gid=4_294_967_294),
        _file(b"time-ustar", b"", mtime=0o77777777777),
        _file(b"time-pax", b"", mtime=0o77777777777 + 1),
        Change(path=b"removed", type=ChangeType.WHITEOUT),
    ]


def huge_header() -> bytes:
    """The header of a file of 8 GiB, the first size that ustar cannot say."""
    pieces: list[bytes] = []
    huge = Change(path=b"huge", type=ChangeType.FILE, content=HugeContent())
    with contextlib.suppress(DigestMismatchError):
        write_layer([huge], pieces.append, compression="none", epoch=EPOCH)
    return b"".join(pieces)


def layer(compression: Literal["gzip-stored", "none"]) -> bytes:
    """The layer of all `changes`."""
    pieces: list[bytes] = []
    write_layer(changes(), pieces.append, compression=compression, epoch=EPOCH)
    return b"".join(pieces)


def files() -> dict[str, bytes]:
    """What the golden files hold, by name."""
    return {"layer.tar": layer("none"), "layer.tar.gz": layer("gzip-stored"), "huge-header.tar": huge_header()}


if __name__ == "__main__":
    for name, data in files().items():
        (HERE / name).write_bytes(data)
