"""Standard output and error, whose failures are told from those of the work.

A reader that went away (`imgbuild plan mini | head -1`) and a full disk behind `> file` come as an `OSError` from
anywhere, when a buffer is written. On standard output it becomes a `StreamError`, which nothing else raises or catches.
On standard error it is nothing: what would be told about it could not be told there, and the exit code still says it.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class StreamError(Exception):
    """Standard output takes no more text."""

    def __init__(self, error: OSError) -> None:
        self.reason = error.strerror or str(error)
        super().__init__(f"standard output cannot be written: {self.reason}")
        self.is_closed = error.errno == errno.EPIPE
        """Whether its reader went away."""


class _Raw(io.FileIO):
    """Says at most once that it failed, and swallows what comes after, so that the interpreter can end in peace."""

    def __init__(self, number: int, *, raises: bool) -> None:
        super().__init__(number, "wb", closefd=False)
        self._raises = raises
        self._failed = False

    def write(self, data: ReadableBuffer, /) -> int:
        """Write, or raise a `StreamError`."""
        length = memoryview(data).nbytes
        if self._failed:
            return length
        try:
            return super().write(data)
        except OSError as error:
            self._failed = True
            if self._raises:
                raise StreamError(error) from error
            return length


def guard_streams() -> None:
    """Let `sys.stdout` raise `StreamError`, and `sys.stderr` nothing; also where one is not open at all."""
    sys.stdout = _guarded(sys.stdout, 1, raises=True)
    sys.stderr = _guarded(sys.stderr, 2, raises=False)


def flush_streams() -> None:
    """Write what is still in the buffers, so that it can fail while that can still be said."""
    sys.stdout.flush()
    sys.stderr.flush()


def _guarded(stream: TextIO | None, number: int, *, raises: bool) -> TextIO:
    if stream is None:
        # Closed by the shell (`>&-`): the number is reserved, or the next file that is opened would get the output.
        null = os.open(os.devnull, os.O_RDONLY)
        if null != number:
            os.dup2(null, number)
            os.close(null)
        encoding, errors, by_line = "utf-8", "backslashreplace", False
    else:
        encoding, errors, by_line = stream.encoding, stream.errors or "strict", stream.isatty() or not raises
    buffer = io.BufferedWriter(_Raw(number, raises=raises))
    return io.TextIOWrapper(buffer, encoding=encoding, errors=errors, line_buffering=by_line)
