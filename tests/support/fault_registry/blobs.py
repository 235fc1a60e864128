"""Blobs: GET with Range, HEAD, DELETE; and the same bytes as a bucket serves them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.support.fault_registry.messages import RefusedError, Response, refusal

if TYPE_CHECKING:
    from tests.support.fault_registry.exchange import Exchange
    from tests.support.fault_registry.storage import Blob

_RANGE = re.compile(r"bytes=([0-9]{0,20})-([0-9]{0,20})")


class NoBytesError(AssertionError):
    """A test asked for the bytes of a blob that has none: a mistake in the test, or in the client."""


def blob(exchange: Exchange) -> Response:
    """GET, HEAD or DELETE of a blob that is linked in the repository."""
    record, backend = exchange.record, exchange.backend
    with backend.storage.lock:
        linked = backend.storage.repository(record.repository).blobs
        found = linked.get(record.reference)
        if found is None:
            raise RefusedError(404, "BLOB_UNKNOWN", "blob unknown to registry")
        if record.method == "DELETE" and backend.switches.delete:
            del linked[record.reference]
            return Response(status=202)
    if record.method not in {"GET", "HEAD"}:
        raise RefusedError(405, "UNSUPPORTED", "the operation is unsupported")
    return content(exchange, found)


def cdn(exchange: Exchange) -> Response:
    """GET of `/cdn/<digest>`: any blob, and credentials are refused as a presigned address refuses them (case C50)."""
    if "authorization" in exchange.headers:
        raise RefusedError(400, "InvalidArgument", "Only one auth mechanism allowed")
    found = exchange.backend.storage.blobs.get(exchange.record.reference)
    if found is None or exchange.record.method not in {"GET", "HEAD"}:
        raise RefusedError(404, "NoSuchKey", "The specified key does not exist.")
    return content(exchange, found)


def content(exchange: Exchange, found: Blob) -> Response:
    """The bytes of a blob, whole or one range (RFC 9110, section 14)."""
    start, stop, code = 0, found.size, 200
    headers = [("Content-Type", "application/octet-stream"), ("Accept-Ranges", "bytes")]
    if exchange.backend.switches.content_digest and exchange.kind == "blob":
        headers.append(("Docker-Content-Digest", found.digest))
    wanted = _RANGE.fullmatch(exchange.headers.get("range", ""))
    if wanted and (wanted[1] or wanted[2]) and exchange.record.method == "GET":
        start, stop = _bounds(wanted[1], wanted[2], found.size)
        if start >= stop:
            return _unsatisfiable(exchange, found.size)
        code = 206
        headers.append(("Content-Range", f"bytes {start}-{stop - 1}/{found.size}"))
    if exchange.record.method == "HEAD":
        return Response(status=200, headers=headers, length=found.size)
    if found.piece is None:
        raise NoBytesError(f"GET of {found.digest}, whose bytes the registry does not have")
    return Response(status=code, headers=headers, body=found.read(start, stop), length=stop - start)


def _bounds(first: str, last: str, size: int) -> tuple[int, int]:
    if not first:
        return max(0, size - int(last)), size
    return int(first), min(size, int(last) + 1) if last else size


def _unsatisfiable(exchange: Exchange, size: int) -> Response:
    answer = refusal(416, "SIZE_INVALID", "range not satisfiable", [("Content-Range", f"bytes */{size}")])
    if exchange.backend.switches.long_416:
        answer.length, answer.close = size, True
    return answer
