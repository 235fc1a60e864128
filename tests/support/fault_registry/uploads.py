"""Uploads of blobs (specification: Pushing blobs): sessions, chunks, the closing PUT, mounts, status."""

from __future__ import annotations

import hashlib
import re
import secrets
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote

from tests.support.fault_registry.messages import RefusedError, Response
from tests.support.fault_registry.storage import DIGEST, Blob
from tests.support.fault_registry.wire import ResetNowError

if TYPE_CHECKING:
    from tests.support.fault_registry.exchange import Exchange

_RANGE = re.compile(r"([0-9]{1,20})-([0-9]{1,20})")
_OCTETS = "application/octet-stream"
_BUSY_SECONDS = 0.5


@dataclass(slots=True, kw_only=True)
class Session:
    """One upload. `states` maps every `_state` that was given out to the offset it was given out at."""

    ident: str
    repository: str
    data: bytearray = field(default_factory=bytearray)
    size: int = 0
    chunks: list[int] = field(default_factory=list)
    """length of each PATCH, for the Range answers of registries that count wrongly"""
    states: dict[str, int] = field(default_factory=dict)
    current: str = ""
    used: str = ""
    """the newest state, and the newest one that a PATCH or status request came with"""
    short: bool = False
    writer: int = 0
    """number of the request that may append; one that was overtaken may not any more"""
    lock: threading.Lock = field(default_factory=threading.Lock)
    idle: threading.Event = field(default_factory=threading.Event)
    """set while nobody writes"""
    sha256: hashlib._Hash = field(default_factory=hashlib.sha256)
    sha512: hashlib._Hash | None = None

    def __post_init__(self) -> None:
        self.idle.set()

    def claim(self) -> int:
        """Become the one who may write; the number to append with."""
        with self.lock:
            self.writer += 1
            self.idle.clear()
            return self.writer

    def leave(self, writer: int, before: int) -> None:
        """Stop writing what began at an offset."""
        with self.lock:
            self.chunks.append(self.size - before)
            if self.writer == writer:
                self.idle.set()

    def overtake(self) -> None:
        """Let nobody write who does now."""
        with self.lock:
            self.writer += 1
            self.idle.set()

    def append(self, piece: bytes, writer: int, *, keep: bool) -> None:
        with self.lock:
            if writer != self.writer:
                raise ResetNowError
            self.sha256.update(piece)
            if self.sha512 is not None:
                self.sha512.update(piece)
            if keep:
                self.data += piece
            self.size += len(piece)

    def step(self) -> str:
        """A new state; older ones become stale."""
        self.current = secrets.token_urlsafe(12)
        self.states[self.current] = self.size
        return self.current

    def digest(self, algorithm: str) -> str:
        hasher = self.sha512 if algorithm == "sha512" and self.sha512 is not None else self.sha256
        return f"{algorithm}:{hasher.hexdigest()}"


class Uploads:
    """All sessions of a registry. `sha512=True` hashes uploads with both algorithms."""

    def __init__(self, *, sha512: bool = False) -> None:
        self.sessions: dict[str, Session] = {}
        self._sha512 = sha512

    def start(self, repository: str) -> Session:
        ident = secrets.token_hex(16)
        hasher = hashlib.sha512() if self._sha512 else None
        self.sessions[ident] = Session(ident=ident, repository=repository, sha512=hasher)
        return self.sessions[ident]

    def expire(self) -> None:
        """Forget all sessions, as a registry does after some days, or at a restart."""
        self.sessions.clear()


def post(exchange: Exchange) -> Response:
    """POST /v2/NAME/blobs/uploads/: mount, monolithic, or a new session."""
    backend, query = exchange.backend, exchange.query
    if exchange.record.method != "POST":
        raise RefusedError(405, "UNSUPPORTED", "an upload begins with POST")
    if "content-length" not in exchange.headers and not exchange.body.chunked:
        raise RefusedError(411, "SIZE_INVALID", "a POST needs a Content-Length")
    if "mount" in query and (blob := _mountable(exchange)):
        backend.storage.link(exchange.record.repository, blob)
        return _created(exchange, blob.digest)
    exchange.session = session = backend.uploads.start(exchange.record.repository)
    if "digest" in query and backend.switches.monolithic_post:
        _receive(exchange, session)
        return _close(exchange, session)
    return _progress(exchange, session, 202)


def _mountable(exchange: Exchange) -> Blob | None:
    backend, query, target = exchange.backend, exchange.query, exchange.record.repository
    if not DIGEST.fullmatch(query["mount"]):
        raise RefusedError(400, "DIGEST_INVALID", "mount")
    source = query.get("from")
    if source is None:
        return backend.storage.blobs.get(query["mount"]) if backend.switches.mount_without_from else None
    with backend.storage.lock:
        known = backend.storage.repositories.get(source)
        blob = known.blobs.get(query["mount"]) if known else None
    if not backend.auth.allows(exchange.grant, source, "pull"):
        if backend.switches.mount_unreadable == 401:
            raise backend.auth.challenge(exchange, ((source, "pull"), (target, "pull"), (target, "push")))
        return None
    return blob


def patch(exchange: Exchange) -> Response:
    """PATCH of a session: one chunk, which must begin at the session's offset."""
    session = _session(exchange, current=True)
    size = _expected(exchange, session, first_may_stream=True)
    length = _receive(exchange, session)
    if size is not None and size != length:
        raise RefusedError(400, "SIZE_INVALID", f"Content-Range names {size} bytes, the body has {length}")
    minimum = exchange.backend.switches.chunk_min_bytes
    session.short = minimum is not None and length < minimum
    return _progress(exchange, session, 202)


def put(exchange: Exchange) -> Response:
    """The closing PUT, with the last chunk, with the whole blob, or without a body."""
    session = _session(exchange, current=True)
    wanted = exchange.query.get("digest", "")
    if not DIGEST.fullmatch(wanted):
        raise RefusedError(400, "DIGEST_INVALID", "the closing PUT needs a digest")
    if "content-length" not in exchange.headers and not exchange.body.chunked:
        raise RefusedError(411, "SIZE_INVALID", "a PUT needs a Content-Length")
    if "content-range" in exchange.headers:
        _expected(exchange, session, first_may_stream=False)
    _receive(exchange, session)
    return _close(exchange, session)


def status(exchange: Exchange) -> Response:
    """GET of a session: where it is. Whoever still writes to it is given a moment, and then overtaken."""
    session = _session(exchange, current=False)
    session.overtake()
    return _progress(exchange, session, 204)


def delete(exchange: Exchange) -> Response:
    """DELETE of a session."""
    session = _session(exchange, current=False)
    exchange.backend.uploads.sessions.pop(session.ident, None)
    return Response(status=204)


def _session(exchange: Exchange, *, current: bool) -> Session:
    """The session that the request names, if its `_state` is not stale."""
    exchange.session = session = exchange.backend.uploads.sessions.get(exchange.record.reference)
    if session is None or session.repository != exchange.record.repository:
        raise RefusedError(404, "BLOB_UPLOAD_UNKNOWN", "blob upload unknown to registry")
    session.idle.wait(_BUSY_SECONDS)
    state = exchange.query.get("_state", "")
    if exchange.backend.switches.sessions == "distribution-2.8":
        if session.states.get(state) != session.size:
            raise RefusedError(404, "BLOB_UPLOAD_INVALID", "blob upload invalid")
    elif state != session.current and (current or state != session.used):
        raise RefusedError(404, "BLOB_UPLOAD_UNKNOWN", "stale or missing _state: use the newest Location")
    if state == session.current:
        session.used = state
    return session


def _expected(exchange: Exchange, session: Session, *, first_may_stream: bool) -> int | None:
    """The length that Content-Range names. Only a first PATCH may come without one (a stream)."""
    text = exchange.headers.get("content-range")
    if text is None and first_may_stream and not session.size:
        return None
    found = _RANGE.fullmatch(text or "")
    if found is None or int(found[2]) < int(found[1]):
        raise RefusedError(400, "BLOB_UPLOAD_INVALID", "Content-Range is start-end, both inclusive")
    if exchange.headers.get("content-type", "") != _OCTETS:
        raise RefusedError(400, "BLOB_UPLOAD_INVALID", f"a chunk is {_OCTETS}")
    if int(found[1]) != session.size:
        answer = _progress(exchange, session, 416)
        raise RefusedError(416, "BLOB_UPLOAD_INVALID", "not the next byte", tuple(answer.headers))
    size = int(found[2]) - int(found[1]) + 1
    if exchange.body.length is not None and exchange.body.length != size:
        raise RefusedError(400, "SIZE_INVALID", "Content-Range and Content-Length differ")
    return size


def _receive(exchange: Exchange, session: Session) -> int:
    """Append the body; what came before a break stays. The count of bytes appended."""
    if session.short and exchange.body.length != 0:
        raise RefusedError(400, "BLOB_UPLOAD_INVALID", "the chunk before was shorter than OCI-Chunk-Min-Length")
    before = session.size
    writer = session.claim()
    try:
        for piece in exchange.body.pieces():
            session.append(piece, writer, keep=exchange.backend.switches.keep_bytes)
            exchange.backend.auth.spend(exchange, len(piece))
    finally:
        session.leave(writer, before)
    return session.size - before


def _close(exchange: Exchange, session: Session) -> Response:
    backend, wanted = exchange.backend, exchange.query["digest"]
    actual = session.digest(wanted.partition(":")[0]) if DIGEST.fullmatch(wanted) else ""
    if actual != wanted:
        if not backend.switches.mismatch_keeps_upload:
            backend.uploads.sessions.pop(session.ident, None)
        raise RefusedError(400, "DIGEST_INVALID", f"provided digest did not match uploaded content: {actual}")
    backend.uploads.sessions.pop(session.ident, None)
    data = bytes(session.data)
    piece = (lambda start, stop: data[start:stop]) if backend.switches.keep_bytes else None
    backend.storage.link(session.repository, Blob(digest=actual, size=session.size, piece=piece))
    return _created(exchange, actual)


def _created(exchange: Exchange, digest: str) -> Response:
    path = f"/v2/{exchange.record.repository}/blobs/{digest}"
    headers = [("Location", exchange.backend.base + path)]
    if exchange.backend.switches.content_digest:
        headers.append(("Docker-Content-Digest", digest))
    return Response(status=201, headers=headers)


def _progress(exchange: Exchange, session: Session, code: int) -> Response:
    """Location, Range and the id of a session; a new state."""
    switches = exchange.backend.switches
    path = f"/v2/{session.repository}/blobs/uploads/{session.ident}?_state={quote(session.step())}"
    headers = [("Location", exchange.backend.base + path), ("Docker-Upload-UUID", session.ident)]
    held = f"0-{session.size - 1}" if session.size else switches.first_range
    if held is not None:
        headers.append(("Range", held))
    if code == 202 and switches.chunk_min_bytes is not None and exchange.kind == "upload-post":
        headers.append(("OCI-Chunk-Min-Length", str(switches.chunk_min_bytes)))
    return Response(status=code, headers=headers)
