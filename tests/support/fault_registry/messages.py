"""What goes over the wire, as values: the log's requests, answers, and refusals in the form of the specification."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable

Kind = Literal[
    "ping",
    "manifest",
    "blob",
    "cdn",
    "upload-post",
    "upload-patch",
    "upload-put",
    "upload-status",
    "upload-delete",
    "token",
    "referrers",
    "tags",
    "other",
]
"""What a request is about. `upload-put` is the closing PUT; `cdn` is `/cdn/<digest>`, as a bucket serves blobs."""


@dataclass(slots=True, kw_only=True)
class Request:
    """One request as it arrived. Secrets are in it as they were sent, so that tests can say what went where.

    It enters the log when its head was read. `status` is set before the first byte of the answer leaves; it stays 0
    where no answer was given. `sent` is final only when the answer has ended.
    """

    method: str
    path: str
    query: dict[str, str]
    pairs: tuple[tuple[str, str], ...]
    """the query again, with parameters that are repeated (`scope`)"""
    headers: dict[str, str]
    """names in lower case; values of repeated headers are joined by commas"""
    kind: Kind
    repository: str
    reference: str
    """tag, digest or upload id; empty where there is none"""
    status: int = 0
    body_bytes_read: int = 0
    """bytes of the body without framing; of a body that nobody read, what was drained counts too"""
    sent: int = 0
    """bytes of the answer's body without framing"""
    fault: str = ""
    """name of the action that met this request"""


@dataclass(slots=True, kw_only=True)
class Response:
    """An answer. `length` None means a chunked body; `close` ends the connection after it."""

    status: int
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: Iterable[bytes] = ()
    length: int | None = 0
    close: bool = False

    def get(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    def drop(self, name: str) -> None:
        self.headers = [(key, value) for key, value in self.headers if key.lower() != name.lower()]

    def put(self, name: str, value: str) -> None:
        self.drop(name)
        self.headers.append((name, value))

    def whole(self) -> bytes:
        """The body in one piece, which stays the body."""
        data = b"".join(self.body)
        self.body = (data,)
        return data


class RefusedError(Exception):
    """A request is refused with a status and an error code of the specification (Error Codes)."""

    def __init__(self, status: int, code: str, message: str, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(status, code, message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = headers

    def response(self) -> Response:
        return refusal(self.status, self.code, self.message, self.headers)


def refusal(status: int, code: str, message: str, headers: Iterable[tuple[str, str]] = ()) -> Response:
    """An error in the form of the specification."""
    return json_response(
        {"errors": [{"code": code, "message": message, "detail": {}}]}, status=status, headers=list(headers)
    )


def json_response(
    value: Any,
    *,
    status: int = 200,
    media_type: str = "application/json",
    headers: Iterable[tuple[str, str]] = (),
) -> Response:
    data = json.dumps(value).encode()
    return Response(status=status, headers=[("Content-Type", media_type), *headers], body=(data,), length=len(data))
