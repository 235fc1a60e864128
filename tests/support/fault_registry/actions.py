# ruff: noqa: ARG002  (all actions have one signature)
"""What faults do. Each class is one quirk or failure of a real registry, proxy or network.

An action has three moments: `before` the request is handled (it may answer in the handler's place), `after` it was
handled (it may change the answer), and `delivery`, how the answer is written.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from email.utils import formatdate
from typing import TYPE_CHECKING, Literal

from tests.support.fault_registry.delivery import Delivery
from tests.support.fault_registry.messages import RefusedError, Response, refusal
from tests.support.fault_registry.wire import PeerGoneError, ResetNowError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.fault_registry.exchange import Exchange


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """Nothing; the base of all."""

    def before(self, exchange: Exchange) -> Response | None:
        return None

    def after(self, exchange: Exchange, response: Response) -> Response:
        return response

    def delivery(self) -> Delivery:
        return Delivery()


# the connection


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset(Action):
    """No answer, a reset; `handled`: the registry did what was asked, and only the answer is lost."""

    handled: bool = False

    def before(self, exchange: Exchange) -> Response | None:
        if not self.handled:
            raise ResetNowError
        return None

    def delivery(self) -> Delivery:
        return Delivery(silent=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetInAnswer(Action):
    """A reset after so many bytes of the answer's body."""

    after_bytes: int

    def delivery(self) -> Delivery:
        return Delivery(reset_after=self.after_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseInAnswer(Action):
    """An orderly end of the connection after so many bytes of a body whose length was announced."""

    after_bytes: int

    def delivery(self) -> Delivery:
        return Delivery(close_after=self.after_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class CutRequest(Action):
    """The request's body is cut after so many bytes, which the registry has got: by a reset, by an orderly end, or by
    a proxy that answers with a status (413, 502) and closes (case C47)."""

    after_bytes: int
    how: Literal["reset", "close"] | int = "reset"

    def before(self, exchange: Exchange) -> Response | None:
        exchange.body.cut_after = self.after_bytes
        if self.how == "close":
            exchange.body.cut_error = PeerGoneError()
        elif isinstance(self.how, int):
            exchange.body.cut_error = RefusedError(self.how, "UNKNOWN", "cut by a proxy")
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlipBit(Action):
    """One bit of the answer's body is changed on the way; `at` counts bytes."""

    at: int

    def delivery(self) -> Delivery:
        return Delivery(flip_at=self.at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall(Action):
    """The body stops for some seconds after so many bytes, and then goes on."""

    after_bytes: int
    seconds: float

    def delivery(self) -> Delivery:
        return Delivery(stall_after=self.after_bytes, stall_seconds=self.seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang(Action):
    """Nothing at all is answered for some seconds, then the connection is reset."""

    seconds: float

    def before(self, exchange: Exchange) -> Response | None:
        exchange.body.pause(self.seconds)
        raise ResetNowError


@dataclass(frozen=True, slots=True, kw_only=True)
class Drip(Action):
    """The head comes one byte at a time, with so many seconds between two (slow loris)."""

    seconds: float

    def delivery(self) -> Delivery:
        return Delivery(drip_seconds=self.seconds)


# statuses


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(Action):
    """A status in the handler's place; `body` where it shall not be an error of the specification."""

    status: int
    code: str = "UNKNOWN"
    message: str = "a fault"
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    media_type: str = "text/html"

    def before(self, exchange: Exchange) -> Response | None:
        if self.body is None:
            return refusal(self.status, self.code, self.message, self.headers)
        headers = [("Content-Type", self.media_type), *self.headers]
        return Response(status=self.status, headers=headers, body=(self.body,), length=len(self.body))


NOT_JSON = b"<html><body><h1>502 Bad Gateway</h1></body></html>"
CONTROL = b'{"errors":[{"code":"DEN\\u001b[31mIED\\r\\n\\u202e","message":"\x07\x1b[2J\\u0000 ha"}]}'
"""Bodies for `Answer`: a proxy's page; terminal escapes in an error, raw and as JSON escapes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy(Action):
    """429 or 503 with Retry-After in seconds, as an HTTP date, or without it (case C51)."""

    retry_after: int | None
    form: Literal["seconds", "date"] = "seconds"
    status: int = 429

    def before(self, exchange: Exchange) -> Response | None:
        headers = []
        if self.retry_after is not None:
            text = str(self.retry_after)
            if self.form == "date":
                text = formatdate(time.time() + self.retry_after, usegmt=True)
            headers.append(("Retry-After", text))
        return refusal(self.status, "TOOMANYREQUESTS", "too many requests", headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireToken(Action):
    """The token that the request came with is no longer good: 401 with a challenge (case C46)."""

    def before(self, exchange: Exchange) -> Response | None:
        value = exchange.headers.get("authorization", "").partition(" ")[2]
        with exchange.backend.auth.lock:
            exchange.backend.auth.grants.pop(value, None)
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class HugeError(Action):
    """An error whose body has `size` bytes, announced; the bytes are made while they are sent."""

    size: int
    status: int = 500

    def before(self, exchange: Exchange) -> Response | None:
        headers = [("Content-Type", "application/json")]
        return Response(status=self.status, headers=headers, body=_spaces(self.size), length=self.size)


# bodies and their framing


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunked(Action):
    """No Content-Length: the body is sent in chunks."""

    def after(self, exchange: Exchange, response: Response) -> Response:
        response.length = None
        return response


@dataclass(frozen=True, slots=True, kw_only=True)
class Unframed(Action):
    """Neither length nor chunks: the body ends with the connection."""

    def delivery(self) -> Delivery:
        return Delivery(unframed=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endless(Action):
    """The body is followed by spaces without end (at most 4 GiB); the client must stop."""

    def after(self, exchange: Exchange, response: Response) -> Response:
        body = response.body

        def endless() -> Iterator[bytes]:
            yield from body
            yield from _spaces(1 << 32)

        response.body, response.length = endless(), None
        return response


@dataclass(frozen=True, slots=True, kw_only=True)
class HugeHeaders(Action):
    """So many more header lines of so many bytes each."""

    count: int = 1
    size: int = 1 << 20

    def after(self, exchange: Exchange, response: Response) -> Response:
        response.headers += [(f"X-Fill-{index}", "x" * self.size) for index in range(self.count)]
        return response


def _spaces(size: int) -> Iterator[bytes]:
    piece = b" " * 65536
    while size > 0:
        yield piece[:size]
        size -= len(piece)
