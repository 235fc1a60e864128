"""A place for bytes that are looked at once by seeking, and then not needed any more."""

from __future__ import annotations

import os
from typing import IO, TYPE_CHECKING, BinaryIO, Self, cast

from imgbuild.adapters.durable import anonymous, storage_errors

if TYPE_CHECKING:
    from pathlib import Path

_MEMORY_BYTES = 32 * 1024 * 1024
"""bytes that stay in memory: all of most libraries, and of others the tables that are looked for."""


class Spool:
    """A seekable file for one content after the other: the first bytes in memory, what is more in an anonymous file.

    Both are used again by the next content, since making them new takes longer than to fill them. Not for two threads.
    """

    def __init__(self, folder: Path) -> None:
        """Nothing is made yet; the file will be below `folder`."""
        self._folder = folder
        self._memory = bytearray()
        self._file: IO[bytes] | None = None
        self._size = 0
        self._position = 0

    def fresh(self) -> BinaryIO:
        """The file, empty. To leave it as a context empties it, too."""
        self._empty()
        return cast("BinaryIO", self)

    def write(self, data: bytes, /) -> int:
        """Append bytes; a full disk is a `StorageError`."""
        end = min(self._size + len(data), _MEMORY_BYTES)
        kept = max(0, end - self._size)
        if kept:
            if len(self._memory) < end:
                self._memory.extend(bytes(max(end, min(2 * len(self._memory), _MEMORY_BYTES)) - len(self._memory)))
            self._memory[self._size : end] = data[:kept] if kept < len(data) else data
        if kept < len(data):
            if self._file is None:
                self._file = anonymous(self._folder)
            view = memoryview(data)[kept:]
            with storage_errors(self._folder):
                # Elsewhere after a read, or a write that failed.
                self._file.seek(max(0, self._size - _MEMORY_BYTES))
                while view:
                    view = view[self._file.write(view) :]
        self._size += len(data)
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
        data = bytes(memoryview(self._memory)[start : min(end, _MEMORY_BYTES)])
        if end > _MEMORY_BYTES and self._file is not None:
            with storage_errors(self._folder, "read"):
                self._file.seek(max(start, _MEMORY_BYTES) - _MEMORY_BYTES)
                data += self._file.read(end - max(start, _MEMORY_BYTES))
        self._position = start + len(data)
        return data

    def close(self) -> None:
        """Give memory and disk back."""
        self._empty()
        self._memory = bytearray()
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._empty()

    def _empty(self) -> None:
        if self._file is not None and self._size > _MEMORY_BYTES:
            with storage_errors(self._folder):
                self._file.seek(0)
                self._file.truncate()
        self._size = self._position = 0
