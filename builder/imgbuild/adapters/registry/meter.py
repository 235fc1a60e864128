"""The receiving side of a connection: counts every byte, and ends every wait, of an answer's head and of its body.

A time limit between two reads is not enough: one byte a minute holds a reader for ever (a "slow loris"), and so do
trailers or chunk sizes without end, of which a reader of bodies sees nothing.
"""

from __future__ import annotations

import io
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from imgbuild.config import KIB, MIB

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import WriteableBuffer

_HEAD_BYTES = 8 * MIB
"""bytes of an answer's head; http.client itself takes 100 lines of 64 KiB, and any number of interim answers."""
_FRAMING_BYTES = 1 * MIB
"""bytes that one read of a body may take besides those it gives: sizes of chunks, trailers, what is buffered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Time limits in seconds."""

    connect: float = 15.0
    quiet: float = 10.0
    """after which somebody who waits is told whom for."""
    idle: float = 60.0
    """between two pieces of a body, and for one piece of a request."""
    head: float = 120.0
    """for the whole head of an answer, after the request was sent; registries hash a whole blob before they answer."""
    window: float = 60.0
    """over this time, spent waiting, a body must come with at least `rate`."""
    rate: int = 1 * KIB
    """bytes a second."""
    document: float = 120.0
    """for the whole body of what is read at once: manifests, lists, tokens, refusals, configs. Blobs have `rate`."""


class StuckError(OSError):
    """A peer that holds us; its text is fit to be shown."""


class Socket(Protocol):
    """What is needed of a socket."""

    def settimeout(self, value: float, /) -> None:
        """Limit each further operation, in seconds."""

    def recv_into(self, buffer: WriteableBuffer, /) -> int:
        """Read once; 0 at the end."""
        ...


class Meter(io.RawIOBase):
    """What is read from a socket, below the buffer of an answer."""

    def __init__(
        self,
        raw: io.RawIOBase,
        sock: Socket,
        *,
        times: Times,
        count: Callable[[int], None],
        silent: Callable[[float], None],
    ) -> None:
        """Begin with a head.

        Args:
            raw: reads the socket; closed with this.
            sock: the socket, for its time limit.
            times: limits.
            count: is told the bytes of each read; may raise.
            silent: is told, once a read, when nothing came for `Times.quiet`: how many seconds more it is waited.
        """
        super().__init__()
        self._raw = raw
        self._sock = sock
        self._times = times
        self._count = count
        self._silent = silent
        self._end: float | None = time.monotonic() + times.head
        self._in_head = True
        self._spare = _HEAD_BYTES
        self._waited = 0.0
        self._came = 0

    def head_ended(self) -> None:
        """The limits of bodies hold from now on."""
        self._end = None
        self._in_head = False
        self._sock.settimeout(self._times.idle)

    def document_begins(self) -> None:
        """All that is read from now on has to come in `Times.document`."""
        self._end = time.monotonic() + self._times.document

    def allow(self, size: int) -> None:
        """The body is read, and gives at most `size` bytes before this is called again."""
        self._spare = size + _FRAMING_BYTES

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int | None:
        """Read once; a `StuckError` where a limit is exceeded."""
        if self._spare <= 0:
            raise StuckError("it sends framing without end")
        began = time.monotonic()
        limit = self._times.idle
        if self._end is not None:
            left = max(0.001, self._end - began)
            limit = left if self._in_head else min(left, limit)
        count, late = self._receive(buffer, limit)
        if late:
            self._check_end()
            raise StuckError(f"nothing came for {self._times.idle:g} seconds")
        self._spare -= count
        self._count(count)
        self._check_end()
        if count and not self._in_head:
            self._check_rate(count, time.monotonic() - began)
        return count

    def close(self) -> None:
        """Close the reading side."""
        if not self.closed:
            self._raw.close()
        super().close()

    def _receive(self, buffer: WriteableBuffer, limit: float) -> tuple[int, bool]:
        """What came within `limit` seconds, and whether nothing did; after `Times.quiet` of nothing, that is told.

        Not told of TLS within the TLS of a proxy, whose socket cannot be read again after a time limit.
        """
        is_plain = isinstance(self._sock, socket.socket)
        quiet = min(self._times.quiet, limit) if is_plain else limit
        for seconds in (quiet, limit - quiet):
            if seconds <= 0:
                break
            self._sock.settimeout(max(0.001, seconds))
            try:
                # Not by the file around the socket, which cannot be read any more after one time limit. That something
                # can be read from a socket of TLS does not mean that there is any of the answer.
                return (self._sock.recv_into(buffer) if is_plain else self._raw.readinto(buffer) or 0), False
            except TimeoutError:
                if seconds == quiet < limit:
                    self._silent(limit - quiet)
        return 0, True

    def _check_end(self) -> None:
        # A time limit of the system may end some microseconds before ours.
        if self._end is None or time.monotonic() < self._end - 0.001:
            return
        if self._in_head:
            raise StuckError(f"no whole head of an answer in {self._times.head:g} seconds")
        raise StuckError(f"no whole document in {self._times.document:g} seconds")

    def _check_rate(self, count: int, seconds: float) -> None:
        self._came += count
        self._waited += seconds
        if self._waited < self._times.window:
            return
        if self._came < self._times.rate * self._times.window:
            raise StuckError(
                f"it sends too slowly: {self._came} bytes in {self._waited:.0f} seconds, "
                f"at least {self._times.rate} a second are expected"
            )
        self._waited, self._came = 0.0, 0
