"""A place for bytes that are looked at once by seeking, and then not needed any more."""

from __future__ import annotations

import bisect
import os
from typing import IO, TYPE_CHECKING, BinaryIO, Self, cast

from imgbuild.adapters.durable import anonymous, storage_errors

if TYPE_CHECKING:
    from pathlib import Path

_MEMORY_BYTES = 8 * 1024 * 1024
"""bytes that stay in memory: all of most libraries, and of others the tables that are looked for."""
_PIECE_BYTES = 64 * 1024
"""bytes above which a piece is kept as it came; shorter ones are joined, so that a byte at a time takes no more."""
_REUSED_BYTES = 256 * 1024 * 1024
"""bytes of the anonymous file that are kept to be written over, which costs half as much as to write anew."""


class Spool:
    """A seekable file for one content after the other: the first bytes in memory, what is more in an anonymous file.

    The pieces that are written are kept and not copied. Not for two threads.
    """

    def __init__(self, folder: Path) -> None:
        """Nothing is made yet; the file will be below `folder`."""
        self._folder = folder
        self._pieces: list[bytes | bytearray] = []
        self._starts: list[int] = []
        self._kept = 0
        self._file: IO[bytes] | None = None
        self._file_size = 0
        self._size = 0
        self._position = 0

    def fresh(self) -> BinaryIO:
        """The file, empty. To leave it as a context empties it, too."""
        self._empty()
        return cast("BinaryIO", self)

    def write(self, data: bytes, /) -> int:
        """Append bytes; a full disk is a `StorageError`."""
        kept = min(len(data), _MEMORY_BYTES - self._kept)
        if kept:
            self._keep(data if kept == len(data) else data[:kept])
            self._size += kept
        if kept < len(data):
            if self._file is None:
                self._file = anonymous(self._folder)
            view = memoryview(data)[kept:]
            self._file_size = max(self._file_size, self._size - self._kept + len(view))
            with storage_errors(self._folder):
                # Elsewhere after a read, or a write that failed.
                self._file.seek(self._size - self._kept)
                while view:
                    view = view[self._file.write(view) :]
            self._size += len(data) - kept
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Move the place of the next read."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def read(self, size: int = -1, /) -> bytes:
        """At most `size` bytes from the place on; all that follow where it is negative."""
        end = self._size if size < 0 else min(self._position + size, self._size)
        start = min(self._position, end)
        data = self._from_memory(start, min(end, self._kept))
        if end > self._kept and self._file is not None:
            with storage_errors(self._folder, "read"):
                self._file.seek(max(start, self._kept) - self._kept)
                data += self._file.read(end - max(start, self._kept))
        self._position = start + len(data)
        return data

    def close(self) -> None:
        """Give memory and disk back."""
        self._empty()
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._empty()

    def _keep(self, data: bytes) -> None:
        last = self._pieces[-1] if self._pieces else b""
        if isinstance(last, bytearray) and len(last) + len(data) <= _PIECE_BYTES:
            last += data
        else:
            self._starts.append(self._kept)
            self._pieces.append(bytearray(data) if len(data) < _PIECE_BYTES else data)
        self._kept += len(data)

    def _from_memory(self, start: int, end: int) -> bytes:
        parts = []
        number = bisect.bisect_right(self._starts, start) - 1
        while start < end:
            offset = start - self._starts[number]
            part = memoryview(self._pieces[number])[offset : offset + end - start]
            parts.append(part)
            start += len(part)
            number += 1
        return b"".join(parts)

    def _empty(self) -> None:
        if self._file is not None and self._file_size > _REUSED_BYTES:
            with storage_errors(self._folder):
                self._file.truncate(0)
            self._file_size = 0
        self._pieces, self._starts = [], []
        self._kept = self._size = self._position = 0
