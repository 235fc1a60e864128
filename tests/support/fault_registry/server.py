"""The server: sockets, threads, and the way of one request through faults, rights and handlers."""

from __future__ import annotations

import socket
import ssl
import threading
from typing import TYPE_CHECKING, Self

from tests.support.fault_registry import blobs, listing, manifests, uploads
from tests.support.fault_registry.auth import Auth
from tests.support.fault_registry.delivery import Delivery, write
from tests.support.fault_registry.exchange import Backend, Exchange, check_names, record_of
from tests.support.fault_registry.faults import Faults
from tests.support.fault_registry.messages import RefusedError, Request, Response, json_response, refusal
from tests.support.fault_registry.seeding import Seeding
from tests.support.fault_registry.storage import Storage
from tests.support.fault_registry.switches import Switches
from tests.support.fault_registry.wire import (
    DRAINED,
    BadRequestError,
    Body,
    Head,
    PeerGoneError,
    ResetNowError,
    Wire,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.fault_registry.actions import Action
    from tests.support.fault_registry.auth import Scope

_HANDLERS: dict[str, Callable[[Exchange], Response]] = {
    "ping": lambda _: json_response({}, headers=[("Docker-Distribution-API-Version", "registry/2.0")]),
    "manifest": manifests.manifest,
    "blob": blobs.blob,
    "cdn": blobs.cdn,
    "upload-post": uploads.post,
    "upload-patch": uploads.patch,
    "upload-put": uploads.put,
    "upload-status": uploads.status,
    "upload-delete": uploads.delete,
    "referrers": listing.referrers,
    "tags": listing.tags,
    "token": lambda exchange: exchange.backend.auth.token(exchange),
    "other": lambda _: refusal(404, "NOT_FOUND", "404 page not found"),
}
_OPEN = {"token", "cdn", "other"}


class FaultRegistry(Seeding):
    """A strict registry in this process, as a context manager.

    `log` has every request; `faults` and `switches` may be changed while it runs. What breaks inside of it (a bug of
    the registry, or a GET of a blob that has no bytes) is answered with 500, kept in `errors`, and raised at the end.

    Args:
        auth: who may do what; everyone may do all where it is not given. May be shared with another registry.
        switches: how it behaves; see there.
        ssl_context: for HTTPS; the certificate must be for 127.0.0.1.
        storage: of another registry, to have two origins with the same content.
        sha512: hash uploads with sha512 as well.
    """

    def __init__(
        self,
        *,
        auth: Auth | None = None,
        switches: Switches | None = None,
        ssl_context: ssl.SSLContext | None = None,
        storage: Storage | None = None,
        sha512: bool = False,
    ) -> None:
        self.faults = Faults()
        self.auth = auth or Auth()
        self.switches = switches or Switches()
        self.storage = storage or Storage()
        self.uploads = uploads.Uploads(sha512=sha512)
        self.log: list[Request] = []
        self.errors: list[BaseException] = []
        self._ssl = ssl_context
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = int(self._listener.getsockname()[1])
        self.host = f"127.0.0.1:{self.port}"
        self.url = f"{'https' if ssl_context else 'http'}://{self.host}"
        self._backend = Backend(
            storage=self.storage, uploads=self.uploads, switches=self.switches, auth=self.auth, base=self.url
        )

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close()
        if self.errors and kind is None:
            raise self.errors[0]

    def close(self) -> None:
        """Stop: no connection outlives it."""
        self._stop.set()
        with self._lock:
            sockets = (self._listener, *self._open)
        for sock in sockets:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
        self._listener.close()
        for thread in self._threads:
            thread.join(timeout=5)

    def requests(self, kind: str | None = None, method: str | None = None) -> list[Request]:
        """Those of the log of a kind and a method."""
        with self._lock:
            return [one for one in self.log if (kind is None or one.kind == kind) and method in {None, one.method}]

    def clear_log(self) -> None:
        with self._lock:
            self.log.clear()

    @property
    def bytes_received(self) -> int:
        """Bytes of all bodies that were read."""
        return sum(one.body_bytes_read for one in self.requests())

    @property
    def bytes_sent(self) -> int:
        """Bytes of all bodies of answers."""
        return sum(one.sent for one in self.requests())

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads = [one for one in self._threads if one.is_alive()] + [thread]
        thread.start()

    def _accept(self) -> None:
        while not self._stop.is_set():
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self._open.add(sock)
            self._start(self._serve, sock)

    def _serve(self, plain: socket.socket) -> None:
        sock = plain
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._ssl is not None:
                sock = self._ssl.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
                with self._lock:
                    self._open = (self._open - {plain}) | {sock}
            if self._stop.is_set():
                return
            if isinstance(sock, ssl.SSLSocket):
                sock.do_handshake()
            self._talk(Wire(sock, self._stop))
        except OSError:
            return
        finally:
            with self._lock:
                self._open -= {plain, sock}
            sock.close()

    def _talk(self, wire: Wire) -> None:
        """One connection, request after request."""
        try:
            while (head := wire.head()) is not None and self._answer(wire, head):
                pass
        except ResetNowError:
            wire.abort()
        except PeerGoneError:
            pass
        except BadRequestError as error:
            _last_words(wire, refusal(400, "UNSUPPORTED", f"bad request: {error}"))
        except Exception as error:  # noqa: BLE001  raised at the end
            self.errors.append(error)
            wire.abort()
        wire.finish()

    def _answer(self, wire: Wire, head: Head) -> bool:
        """One request; whether the connection stays."""
        body = Body(wire, head)
        exchange = Exchange(backend=self._backend, record=record_of(head), body=body)
        record = exchange.record
        with self._lock:
            self.log.append(record)
        actions = self.faults.take(record)
        record.fault = "+".join(type(action).__name__ for action in actions)
        delivery = _delivery(actions)
        try:
            response = self._respond(exchange, actions)
            body.cut_after = None
            if not response.close and not body.drain(DRAINED):
                response.close = True
            if delivery.silent:
                raise ResetNowError
        finally:
            record.body_bytes_read = body.count
        record.status = response.status
        for count in write(wire, response, delivery, with_body=record.method != "HEAD"):
            record.sent += count
            if exchange.grant is not None:
                exchange.grant.bytes += count
        return not (response.close or delivery.unframed or "close" in head.headers.get("connection", "").lower())

    def _respond(self, exchange: Exchange, actions: list[Action]) -> Response:
        try:
            response = self._handled(exchange, actions)
        except RefusedError as error:
            response = error.response()
            response.close = exchange.body.count > 0 and not exchange.body.ended
        except (ResetNowError, PeerGoneError, BadRequestError):
            raise
        except Exception as error:  # noqa: BLE001  what it is decides the test, at the end
            self.errors.append(error)
            response = refusal(500, "UNKNOWN", f"{type(error).__name__}: {error}")
        for action in actions:
            response = action.after(exchange, response)
        return response

    def _handled(self, exchange: Exchange, actions: list[Action]) -> Response:
        for action in actions:
            if (answer := action.before(exchange)) is not None:
                return answer
        check_names(exchange.record)
        if exchange.kind not in _OPEN:
            self.auth.admit(exchange, *_scopes(exchange))
        return _HANDLERS[exchange.kind](exchange)


def _scopes(exchange: Exchange) -> tuple[list[Scope], list[Scope]]:
    """What a request needs, and what its challenge names besides (the source of a mount)."""
    name, method = exchange.record.repository, exchange.record.method
    source = exchange.query.get("from")
    besides = [(source, "pull")] if source and "mount" in exchange.query else []
    if not name:
        return [], []
    if method in {"GET", "HEAD"}:
        return [(name, "pull")], besides
    if method == "DELETE" and exchange.kind != "upload-delete":
        return [(name, "delete")], besides
    return [(name, "pull"), (name, "push")], besides


def _delivery(actions: list[Action]) -> Delivery:
    """The first delivery that is not the usual one."""
    return next((found for action in actions if (found := action.delivery()) != Delivery()), Delivery())


def _last_words(wire: Wire, response: Response) -> None:
    response.close = True
    try:
        for _ in write(wire, response, Delivery(), with_body=True):
            pass
    except PeerGoneError:
        return
