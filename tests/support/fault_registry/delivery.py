"""How an answer is written to a connection: whole and in time, or broken at a byte, or slowly."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING

from tests.support.fault_registry.wire import PeerGoneError, ResetNowError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.support.fault_registry.messages import Response
    from tests.support.fault_registry.wire import Wire


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """How an answer is written: whole, or broken at a byte of its body."""

    reset_after: int | None = None
    close_after: int | None = None
    flip_at: int | None = None
    stall_after: int | None = None
    stall_seconds: float = 0
    drip_seconds: float = 0
    """seconds between the bytes of the head"""
    unframed: bool = False
    """no length and no chunks: the body ends with the connection"""
    silent: bool = False
    """no answer at all: a reset"""


def write(wire: Wire, response: Response, delivery: Delivery, *, with_body: bool) -> Iterator[int]:
    """Write an answer; yields the count of each piece of its body, so that the caller can keep books."""
    bodiless = response.status in {HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED}
    chunked = response.length is None and not delivery.unframed and not bodiless
    _write_head(wire, response, delivery, chunked=chunked)
    if not with_body or bodiless:
        return
    done = 0
    for piece in _broken(response.body, delivery, wire):
        wire.send(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
        done += len(piece)
        yield len(piece)
    if chunked:
        wire.send(b"0\r\n\r\n")


def _write_head(wire: Wire, response: Response, delivery: Delivery, *, chunked: bool) -> None:
    reason = HTTPStatus(response.status).phrase if response.status in set(HTTPStatus) else "Unknown"
    lines = [f"HTTP/1.1 {response.status} {reason}", f"Date: {formatdate(usegmt=True)}"]
    lines += [f"{name}: {value}" for name, value in response.headers]
    if chunked:
        lines.append("Transfer-Encoding: chunked")
    elif not delivery.unframed and response.status != HTTPStatus.NO_CONTENT:
        lines.append(f"Content-Length: {response.length}")
    if response.close or delivery.unframed:
        lines.append("Connection: close")
    data = "\r\n".join([*lines, "", ""]).encode("latin-1")
    if not delivery.drip_seconds:
        wire.send(data)
        return
    for index in range(len(data)):
        wire.send(data[index : index + 1])
        wire.pause(delivery.drip_seconds)


def _broken(body: Iterable[bytes], delivery: Delivery, wire: Wire) -> Iterator[bytes]:
    """The pieces of a body with the damage that the delivery asks for."""
    done = 0
    marks = [mark for mark in (delivery.reset_after, delivery.close_after, delivery.stall_after) if mark is not None]
    for whole in body:
        data = whole
        if delivery.flip_at is not None and done <= delivery.flip_at < done + len(data):
            changed = bytearray(data)
            changed[delivery.flip_at - done] ^= 1
            data = bytes(changed)
        for part in _split(data, [mark - done for mark in marks]):
            _at_mark(done, delivery, wire)
            yield part
            done += len(part)
    _at_mark(done, delivery, wire)


def _split(data: bytes, marks: list[int]) -> Iterator[bytes]:
    edges = sorted({0, len(data), *(mark for mark in marks if 0 < mark < len(data))})
    for start, stop in itertools.pairwise(edges):
        yield data[start:stop]


def _at_mark(done: int, delivery: Delivery, wire: Wire) -> None:
    if delivery.stall_after == done:
        wire.pause(delivery.stall_seconds)
    if delivery.reset_after == done:
        raise ResetNowError
    if delivery.close_after == done:
        raise PeerGoneError
