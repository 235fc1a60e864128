"""HTTP as registries need it, on urllib3: nothing is followed, decoded or tried again here, and everything is counted.

One pool a host, and `Times` for everything that could take for ever, but for the look-up of a name, which cannot be
limited. What urllib3 and http.client say never leaves this module: their texts quote queries, headers and bytes.
"""

from __future__ import annotations

import contextlib
import logging
import ssl
import threading
import time
import urllib.request
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import urllib3

from imgbuild import __version__
from imgbuild.adapters.registry.connections import pool_classes
from imgbuild.adapters.registry.ending import Ending
from imgbuild.adapters.registry.failure import WireError, failure_of
from imgbuild.adapters.registry.meter import Times
from imgbuild.adapters.registry.origin import Origin, origin_of, public
from imgbuild.adapters.registry.proxy import parse_proxy
from imgbuild.config import CHUNK_BYTES, KIB
from imgbuild.errors import NetworkError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from urllib3.connectionpool import HTTPConnectionPool

    from imgbuild.adapters.registry.meter import Meter
    from imgbuild.ledger import Ledger

__all__ = ["Answer", "Times", "Wire", "WireError"]

_POOL = 16
"""connections to one host; more than that wait for nobody, they are just not kept."""
_MAX_DIGITS = 18
_SAID_SECONDS = 20.0
_NETWORK = (urllib3.exceptions.HTTPError, OSError, ValueError)
"""What a broken connection may raise: ours, the system's, and http.client's for heads that make no sense."""

# It warns of broken headers by quoting them and the whole address, and tells every address when somebody debugs.
logging.getLogger("urllib3").setLevel(logging.CRITICAL + 1)


class Answer:
    """An answer whose body was not read yet. Close it, or read it to its end."""

    def __init__(self, response: urllib3.BaseHTTPResponse, url: str, meter: Meter, ending: Ending) -> None:
        self.status = response.status
        self.url = url
        self._response = response
        self._meter = meter
        self._ending = ending
        meter.head_ended()

    def header(self, name: str) -> str | None:
        """A header; of one that stands several times, the values with commas between them."""
        return self._response.headers.get(name)

    def headers(self, name: str) -> list[str]:
        """All values of a header."""
        return list(self._response.headers.getlist(name))

    @property
    def length(self) -> int | None:
        """The `Content-Length` in bytes, if there is one that can be read."""
        text = self.header("Content-Length") or ""
        return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else None

    @property
    def framed(self) -> bool:
        """Whether the answer says where its body ends; otherwise that is where the connection does."""
        return self.length is not None or self.header("Transfer-Encoding") is not None

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes, as soon as there are some; a `NetworkError` if it breaks, stalls or crawls."""
        self._meter.allow(size)
        try:
            data = self._response.read1(size, decode_content=False) or b""
            if not data:
                # A connection that was cut looks like one that came to its end.
                self._ending.check()
            return data  # noqa: TRY300 - one place for what breaks
        except _NETWORK as error:
            problem = failure_of(error).problem
        except BaseException:
            self.close()
            raise
        self.close()
        self._ending.check()
        raise NetworkError(public(self.url), f"broke while it was read: {problem}")

    def body(self, limit: int) -> bytes:
        """The whole body, or its first `limit` + 1 bytes; then the connection is given back or dropped.

        A `NetworkError` as with `read`, and where it does not come in `Times.document`.
        """
        self._meter.document_begins()
        pieces = []
        left = limit + 1
        while left and (data := self.read(min(left, CHUNK_BYTES))):
            pieces.append(data)
            left -= len(data)
        if not left:
            self.close()
        return b"".join(pieces)

    def close(self) -> None:
        """Drop what was not read, and the connection with it."""
        with contextlib.suppress(*_NETWORK):
            self._response.close()

    def discard(self) -> None:
        """Read a short rest, so that the connection can be used again; drop a long one, and one without an end."""
        if self.framed or self.status in {204, 304}:
            with contextlib.suppress(NetworkError):
                self.body(64 * KIB)
        else:
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Wire:
    """Connections to all hosts of one command; safe to use from several threads."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        times: Times | None = None,
        authorities: Mapping[str, Path] | None = None,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Nothing is opened yet. Proxies are those of the environment (`HTTPS_PROXY`, `NO_PROXY` and so on).

        Args:
            ledger: counts bytes by `host:port`, with heads and framing, without what TLS adds.
            times: time limits.
            authorities: for some hosts (`host:port`), a PEM file of certificate authorities instead of the machine's.
            note: is told whom one waits for; no secrets.
        """
        self.ledger = ledger
        self.times = times or Times()
        self.local = threading.local()
        self.ending = Ending()
        self._note = note
        self._quiet: dict[str, float] = {}
        self._authorities = dict(authorities or {})
        self._contexts: dict[Path | None, ssl.SSLContext] = {}
        self._managers: dict[str | None, urllib3.PoolManager] = {}
        self._lock = threading.Lock()
        self._proxies = urllib.request.getproxies_environment()

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
            WireError: there is no connection, or it broke or timed out.
            ProtocolError: the address is none that can be used.
            UsageError: the authorities or the proxy that are configured cannot be used.
            BudgetError: it would be more than `--max-bytes`.
            EndedError: after `abort`.
            Whatever the pieces raise.
        """
        self.ending.check()
        origin = origin_of(url, subject=public(url))
        pool = self._pool(origin)
        sent = {"User-Agent": f"imgbuild/{__version__}", "Accept-Encoding": "identity", **headers}
        if body is not None:
            sent["Content-Length"] = str(len(body) if isinstance(body, bytes) else length)
        elif method in {"POST", "PUT", "PATCH"}:
            sent["Content-Length"] = "0"
        # The pieces of a body may be another request's answer, which comes in between.
        before = getattr(self.local, "place", None)
        self.local.place = origin.place
        try:
            response = pool.urlopen(
                method,
                _target(url, origin, pool),
                body=body,
                headers=sent,
                retries=False,
                redirect=False,
                assert_same_host=False,
                timeout=urllib3.Timeout(connect=self.times.connect, read=self.times.head),
                preload_content=False,
                decode_content=False,
            )
        except _NETWORK as error:
            failure = failure_of(error)
        else:
            meter, self.local.meter = self.local.meter, None
            return Answer(response, url, meter, self.ending)
        finally:
            self.local.place = before
        self.ending.check()
        raise WireError(failure, address=public(url))

    def silent(self, place: str, seconds: float) -> None:
        """Say that `place` (`host:port`) sends nothing, and for how many seconds more it is waited.

        Once in a while, for all its connections.
        """
        now = time.monotonic()
        with self._lock:
            if now < self._quiet.get(place, now):
                return
            self._quiet[place] = now + _SAID_SECONDS
        self._note(f"waiting for {place}: nothing came for {self.times.quiet:g} seconds (up to {seconds:.0f} more)")

    def abort(self) -> None:
        """Cut all connections and wake all who wait, for good; see `Ending`."""
        self.ending.now()

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            for manager in self._managers.values():
                manager.clear()

    def _pool(self, origin: Origin) -> HTTPConnectionPool:
        proxy = self._proxies.get(origin.scheme) or self._proxies.get("all")
        if origin.is_loopback or self._bypasses(origin.place):
            proxy = None
        with self._lock:
            manager = self._managers.get(proxy)
            if manager is None:
                manager = self._managers[proxy] = self._manager(proxy)
            options: dict[str, Any] = {}
            if origin.scheme == "https":
                options["ssl_context"] = self._context(self._authorities.get(origin.place))
            return manager.connection_from_host(origin.host, origin.port, origin.scheme, pool_kwargs=options)

    def _bypasses(self, place: str) -> bool:
        # Not proxy_bypass, which looks into the settings of the desktop on some systems.
        return bool(urllib.request.proxy_bypass_environment(place, self._proxies))  # type: ignore[attr-defined]

    def _manager(self, proxy: str | None) -> urllib3.PoolManager:
        if proxy is None:
            manager = urllib3.PoolManager(num_pools=64, maxsize=_POOL, block=False)
        else:
            found = parse_proxy(proxy)
            manager = urllib3.ProxyManager(
                found.address, num_pools=64, maxsize=_POOL, block=False, proxy_headers=found.headers
            )
        manager.pool_classes_by_scheme = pool_classes(self)
        return manager

    def _context(self, authority: Path | None) -> ssl.SSLContext:
        found = self._contexts.get(authority)
        if found is None:
            try:
                found = ssl.create_default_context(cafile=None if authority is None else str(authority))
            except OSError as error:
                raise UsageError(
                    f"authorities {authority}", "cannot be read", actual=error.strerror or "no certificates"
                ) from error
            found.set_alpn_protocols(["http/1.1"])
            self._contexts[authority] = found
        return found


def _target(url: str, origin: Origin, pool: HTTPConnectionPool) -> str:
    """What stands in the first line of a request."""
    parts = urlsplit(url)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    # A proxy that forwards plain http is given the whole address (RFC 9112, 3.2.2).
    return f"{origin}{path}" if pool.proxy is not None and pool.scheme == "http" else path
