"""Where the bytes of an upload come from: a file of the store, bytes in memory, or a stream of another registry."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from imgbuild.digest import Readable


class BlobSource(Protocol):
    """Where the bytes of a blob come from."""

    def open(self, offset: int) -> AbstractContextManager[Readable]:
        """A stream of the bytes from an offset on."""
        ...


class OpenSource:
    """A source that stays open from piece to piece: each new opening may be a request to another registry."""

    def __init__(self, source: BlobSource) -> None:
        self._source = source
        self._open = contextlib.ExitStack()
        self._stream: Readable | None = None
        self._place = 0

    def read(self, offset: int, size: int) -> bytes:
        """At most `size` bytes from an offset on."""
        if self._stream is None or self._place != offset:
            self.close()
            self._stream, self._place = self._open.enter_context(self._source.open(offset)), offset
        try:
            data = self._stream.read(size)
        except BaseException:
            self.close()
            raise
        self._place += len(data)
        return data

    def close(self) -> None:
        """Close what is open; it can be read again."""
        self._stream = None
        self._open.close()
