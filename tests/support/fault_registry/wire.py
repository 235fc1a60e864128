"""HTTP/1.1 on a socket, one byte at a time where a fault wants it so (RFC 9112). Not a general server."""

from __future__ import annotations

import re
import socket
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

HEAD_BYTES = 64 * 1024
"""bytes of a request's head that are read before it is refused"""
PIECE = 64 * 1024
DRAINED = 256 * 1024
"""bytes of an unread body that are read after the answer, as Go's server does; more of it closes the connection"""
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_ONCE = {"authorization", "content-length", "content-range", "content-type", "host", "range"}


class PeerGoneError(Exception):
    """The client closed or reset the connection before its request was whole."""


class ResetNowError(Exception):
    """A fault wants the connection reset now."""


class BadRequestError(Exception):
    """What the client sent is not HTTP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    method: str
    target: str
    headers: dict[str, str]


class Wire:
    """One connection. Errors of the socket come out as `PeerGoneError`."""

    def __init__(self, sock: socket.socket, stop: threading.Event) -> None:
        self._sock = sock
        self._stop = stop
        self._buffer = bytearray()

    def fill(self) -> bool:
        try:
            data = self._sock.recv(PIECE)
        except OSError as error:
            raise PeerGoneError from error
        self._buffer += data
        return bool(data)

    def line(self, limit: int) -> bytes | None:
        """A line without its end; None where the connection ended before its first byte."""
        while (end := self._buffer.find(b"\r\n")) < 0:
            if len(self._buffer) > limit:
                raise BadRequestError("a line without an end")
            if not self.fill():
                if self._buffer:
                    raise PeerGoneError
                return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line

    def some(self, size: int) -> bytes:
        """At least one byte and at most `size`."""
        if not self._buffer and not self.fill():
            raise PeerGoneError
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def head(self) -> Head | None:
        """The next request's head; None at the end of the connection."""
        if (self._buffer or self.fill()) and not self._buffer[:1].isupper():
            raise BadRequestError("no method, perhaps TLS")
        first = self.line(HEAD_BYTES)
        if first is None:
            return None
        words = first.decode("latin-1").split(" ")
        if len(words) != 3 or words[2] != "HTTP/1.1" or not words[1].startswith("/"):
            raise BadRequestError("request line")
        headers: dict[str, str] = {}
        total = len(first)
        while line := self.line(HEAD_BYTES):
            total += len(line)
            name, colon, value = line.decode("latin-1").partition(":")
            key = name.lower()
            if not colon or not _TOKEN.fullmatch(name) or total > HEAD_BYTES or (key in headers and key in _ONCE):
                raise BadRequestError(f"header {name[:40]!r}")
            headers[key] = f"{headers[key]}, {value.strip()}" if key in headers else value.strip()
        if "host" not in headers or ("content-length" in headers and "transfer-encoding" in headers):
            raise BadRequestError("host or length")
        return Head(method=words[0], target=words[1], headers=headers)

    def send(self, data: bytes) -> None:
        try:
            self._sock.sendall(data)
        except OSError as error:
            raise PeerGoneError from error

    def pause(self, seconds: float) -> None:
        """Wait, but not longer than the server lives."""
        if self._stop.wait(seconds):
            raise ResetNowError

    def abort(self) -> None:
        """Close with a reset (SO_LINGER of zero seconds)."""
        try:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        except OSError:
            return
        finally:
            self._sock.close()

    def finish(self) -> None:
        """Close so that the answer arrives even where the client still sends: half close, read a little, close."""
        try:
            self._sock.shutdown(socket.SHUT_WR)
            self._sock.settimeout(0.2)
            end = time.monotonic() + 0.5
            while time.monotonic() < end and self._sock.recv(PIECE):
                pass
        except OSError:
            return
        finally:
            self._sock.close()


class Body:
    """The body of a request: `read` gives pieces and b"" at its end.

    `cut_after` bytes into it `cut_error` is raised, and the bytes before it were given out.
    """

    def __init__(self, wire: Wire, head: Head) -> None:
        self._wire = wire
        self.chunked = head.headers.get("transfer-encoding", "").lower() == "chunked"
        text = head.headers.get("content-length", "0")
        if not text.isascii() or not text.isdigit():
            raise BadRequestError("content-length")
        self.length = None if self.chunked else int(text)
        self._left = 0 if self.chunked else int(text)
        self._continue = head.headers.get("expect", "").lower() == "100-continue"
        self.ended = not self.chunked and not self._left
        self.count = 0
        self.cut_after: int | None = None
        self.cut_error: Exception = ResetNowError()

    def read(self, size: int = PIECE) -> bytes:
        if self.cut_after is not None:
            if self.count >= self.cut_after:
                raise self.cut_error
            size = min(size, self.cut_after - self.count)
        if self._continue:
            self._continue = False
            self._wire.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        if self.chunked and not self.ended and not self._left:
            self._next_chunk()
        if self.ended:
            return b""
        data = self._wire.some(min(size, self._left))
        self.count += len(data)
        self._left -= len(data)
        if not self._left:
            self._end_of_piece()
        return data

    def pause(self, seconds: float) -> None:
        """Leave the client waiting."""
        self._wire.pause(seconds)

    def pieces(self) -> Iterator[bytes]:
        while data := self.read():
            yield data

    def drain(self, limit: int) -> bool:
        """Read on for at most `limit` bytes; whether the end was reached. A client that waits for 100 sends nothing."""
        if self._continue and not self.ended:
            return False
        start = self.count
        while not self.ended and self.count - start < limit:
            self.read(limit - (self.count - start))
        return self.ended

    def _next_chunk(self) -> None:
        line = self._wire.line(1024)
        if line is None:
            raise PeerGoneError
        try:
            self._left = int(line.split(b";")[0], 16)
        except ValueError as error:
            raise BadRequestError("chunk") from error
        if not self._left:
            while self._wire.line(1024):
                pass
            self.ended = True

    def _end_of_piece(self) -> None:
        if not self.chunked:
            self.ended = True
        elif self._wire.line(2) is None:
            raise PeerGoneError
