"""HTTP as registries need it, on urllib3: nothing is followed, decoded or tried again here, and everything is counted.

One pool a host. Three time limits: to connect, between two pieces, and for an answer's head (or for a slow body, by its
rate), so that neither silence nor one byte a minute holds us (a "slow loris").
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from imgbuild import __version__
from imgbuild.adapters.registry.origin import origin_of, public
from imgbuild.config import CHUNK_BYTES, KIB
from imgbuild.errors import NetworkError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from imgbuild.ledger import Ledger

_POOL = 16
"""connections to one host; more than that wait for nobody, they are just not kept."""
_NETWORK = (urllib3.exceptions.HTTPError, OSError, ValueError)
"""What a broken connection may raise: ours, the system's, and http.client's for heads that make no sense."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Time limits in seconds."""

    connect: float = 15.0
    idle: float = 60.0
    """between two pieces of an answer."""
    head: float = 120.0
    """for the whole head of an answer, after the request was sent; registries hash a whole blob before they answer."""
    window: float = 60.0
    """over this time a body must come with at least `rate`."""
    rate: int = 1 * KIB
    """bytes a second."""


class Answer:
    """An answer whose body was not read yet. Close it, or read it to its end."""

    def __init__(self, response: urllib3.BaseHTTPResponse, url: str, wire: Wire) -> None:
        self.status = response.status
        self.url = url
        self._response = response
        self._wire = wire
        self._place = _place(url)
        self._window = time.monotonic()
        self._in_window = 0

    def header(self, name: str) -> str | None:
        """A header; of one that stands several times, the values with commas between them."""
        return self._response.headers.get(name)

    def headers(self, name: str) -> list[str]:
        """All values of a header."""
        return list(self._response.headers.getlist(name))

    @property
    def length(self) -> int | None:
        """The `Content-Length` in bytes, if there is one."""
        text = self.header("Content-Length")
        return int(text) if text is not None and text.isascii() and text.isdigit() else None

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes as they came; a `NetworkError` if the connection breaks, stalls or crawls."""
        try:
            data = self._response.read(size, decode_content=False)
        except _NETWORK as error:
            self.close()
            raise NetworkError(public(self.url), f"broke while it was read: {_why(error)}") from error
        self._wire.ledger.read(self._place, len(data))
        self._check_rate(len(data))
        return data

    def body(self, limit: int) -> bytes:
        """The whole body, or its first `limit` + 1 bytes; then the connection is given back."""
        pieces = []
        left = limit + 1
        try:
            while left and (data := self.read(min(left, CHUNK_BYTES))):
                pieces.append(data)
                left -= len(data)
        finally:
            if left:
                self._response.release_conn()
            else:
                self.close()
        return b"".join(pieces)

    def close(self) -> None:
        """Drop what was not read, and the connection with it."""
        with contextlib.suppress(*_NETWORK):
            self._response.close()

    def discard(self) -> None:
        """Read a short rest, so that the connection can be used again; drop a long one."""
        with contextlib.suppress(NetworkError):
            self.body(64 * KIB)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_rate(self, count: int) -> None:
        self._in_window += count
        now = time.monotonic()
        times = self._wire.times
        if now - self._window < times.window:
            return
        if count and self._in_window < times.rate * times.window:
            self.close()
            raise NetworkError(
                public(self.url),
                "sends too slowly",
                expected=f"{times.rate} bytes a second over {times.window:g} seconds",
                actual=f"{self._in_window} bytes in {now - self._window:.0f} seconds",
            )
        self._window, self._in_window = now, 0


class Wire:
    """Connections to all hosts of one command."""

    def __init__(
        self, *, ledger: Ledger, times: Times | None = None, authorities: Mapping[str, Path] | None = None
    ) -> None:
        """Nothing is opened yet.

        Args:
            ledger: counts bytes by `host:port`, heads included.
            times: time limits.
            authorities: for some hosts (`host:port`), a PEM file of certificate authorities instead of the machine's.
        """
        self.ledger = ledger
        self.times = times or Times()
        self._authorities = dict(authorities or {})
        self._contexts: dict[str, ssl.SSLContext] = {}
        self._managers: dict[str | None, urllib3.PoolManager] = {}
        self._lock = threading.Lock()
        self._proxies = urllib.request.getproxies()

    def send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes | Iterable[bytes] | None = None,
        length: int | None = None,
    ) -> Answer:
        """Send one request and return the answer's head.

        Args:
            method: as HTTP writes it.
            url: an absolute address.
            headers: besides those for the host, the length and ourselves.
            body: bytes, or pieces of bytes.
            length: of the pieces in bytes.

        Raises:
            NetworkError: there is no connection, or it broke or timed out.
            BudgetError: it would be more than `--max-bytes`.
            Whatever the pieces raise.
        """
        pool = self._pool(url)
        sent = {"User-Agent": f"imgbuild/{__version__}", "Accept-Encoding": "identity", **headers}
        if body is not None:
            sent["Content-Length"] = str(len(body) if isinstance(body, bytes) else length)
        elif method in {"POST", "PUT", "PATCH"}:
            sent["Content-Length"] = "0"
        try:
            response = pool.urlopen(
                method,
                # A proxy that forwards plain http is given the whole address (RFC 9112, 3.2.2).
                url if pool.proxy is not None and pool.scheme == "http" else _path(url),
                body=body,
                headers=sent,
                retries=False,
                redirect=False,
                assert_same_host=False,
                timeout=urllib3.Timeout(connect=self.times.connect, read=self.times.idle),
                preload_content=False,
                decode_content=False,
            )
        except _NETWORK as error:
            raise NetworkError(public(url), f"cannot be asked: {_why(error)}") from error
        answer = Answer(response, url, self)
        self.ledger.read(_place(url), _head_bytes(response))
        return answer

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            for manager in self._managers.values():
                manager.clear()

    def _pool(self, url: str) -> HTTPConnectionPool:
        origin = origin_of(url, subject=public(url))
        proxy = self._proxies.get(origin.scheme)
        if origin.is_loopback or urllib.request.proxy_bypass(f"{origin.host}:{origin.port}"):
            proxy = None
        with self._lock:
            manager = self._managers.get(proxy)
            if manager is None:
                manager = self._managers[proxy] = self._manager(proxy)
            options: dict[str, Any] = {}
            if origin.scheme == "https":
                options["ssl_context"] = self._context(f"{origin.host}:{origin.port}")
            return manager.connection_from_host(origin.host, origin.port, origin.scheme, pool_kwargs=options)

    def _manager(self, proxy: str | None) -> urllib3.PoolManager:
        if proxy is None:
            manager = urllib3.PoolManager(num_pools=64, maxsize=_POOL, block=False)
        else:
            manager = urllib3.ProxyManager(proxy, num_pools=64, maxsize=_POOL, block=False)
        manager.pool_classes_by_scheme = _pool_classes(self)
        return manager

    def _context(self, place: str) -> ssl.SSLContext:
        found = self._contexts.get(place)
        if found is None:
            authority = self._authorities.get(place)
            try:
                found = ssl.create_default_context(cafile=None if authority is None else str(authority))
            except (OSError, ssl.SSLError) as error:
                raise UsageError(f"authorities of {place}", f"cannot be read: {error}", where=str(authority)) from error
            found.set_alpn_protocols(["http/1.1"])
            self._contexts[place] = found
        return found


class _Counting:
    """What our connections do besides urllib3's: count what is sent, and end the wait for a head."""

    wire: Wire
    sock: socket.socket | None

    def send(self, data: Any) -> None:
        """Count, then send."""
        self.wire.ledger.written(f"{self.host}:{self.port}", memoryview(data).nbytes)  # type: ignore[attr-defined]
        super().send(data)  # type: ignore[misc]

    def getresponse(self) -> Any:
        """Wait for the head, not longer than it may take; the watcher is another thread, since reading blocks."""
        late = threading.Timer(self.wire.times.head, self._cut)
        late.daemon = True
        late.start()
        try:
            return super().getresponse()  # type: ignore[misc]
        except (OSError, ValueError, urllib3.exceptions.HTTPError) as error:
            if not late.is_alive():
                raise TimeoutError(f"no whole answer in {self.wire.times.head:g} seconds") from error
            raise
        finally:
            late.cancel()

    def _cut(self) -> None:
        if self.sock is not None:
            with contextlib.suppress(OSError):
                # The plain call: TLS would take its state away under the thread that reads.
                socket.socket.shutdown(self.sock, socket.SHUT_RDWR)


def _pool_classes(wire: Wire) -> dict[str, type[HTTPConnectionPool]]:
    plain = type("_Plain", (_Counting, HTTPConnection), {"wire": wire})
    secure = type("_Secure", (_Counting, HTTPSConnection), {"wire": wire})
    return {
        "http": type("_PlainPool", (HTTPConnectionPool,), {"ConnectionCls": plain}),
        "https": type("_SecurePool", (HTTPSConnectionPool,), {"ConnectionCls": secure}),
    }


def _place(url: str) -> str:
    origin = origin_of(url, subject=public(url))
    return f"{origin.host}:{origin.port}"


def _path(url: str) -> str:
    rest = url.partition("://")[2]
    return "/" + rest.partition("/")[2]


def _head_bytes(response: urllib3.BaseHTTPResponse) -> int:
    return 17 + sum(len(name) + len(value) + 4 for name, value in response.headers.items())


def _why(error: Exception) -> str:
    """The reason in a few words; urllib3 nests, and its texts contain the objects' addresses and queries."""
    deepest: BaseException = error
    for _ in range(8):
        inner = getattr(deepest, "reason", None) or deepest.__cause__ or deepest.__context__
        if not isinstance(inner, BaseException):
            break
        deepest = inner
    if isinstance(deepest, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {deepest.verify_message}"
    if isinstance(deepest, TimeoutError | urllib3.exceptions.TimeoutError):
        return "it took too long"
    if isinstance(deepest, OSError) and deepest.strerror:
        return deepest.strerror
    return type(deepest).__name__
