"""Connections of urllib3 as the wire needs them: every byte counted, every wait limited, and all cut at once."""

from __future__ import annotations

import functools
import io
from typing import TYPE_CHECKING, Any, cast

from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from imgbuild.adapters.registry.meter import Meter
from imgbuild.config import CHUNK_BYTES, KIB

if TYPE_CHECKING:
    import socket

    from imgbuild.adapters.registry.wire import Wire

_BUFFER_BYTES = 16 * KIB
"""bytes that are read at once of heads and framing; the pieces of bodies go past the buffer."""


class _Counting:
    """What our connections do besides urllib3's: count, limit each wait, and end when all talk does."""

    wire: Wire
    sock: socket.socket | None

    def connect(self) -> None:
        """Connect, and be cut when all talk ends."""
        super().connect()  # type: ignore[misc]
        self.wire.ending.watch(cast("socket.socket", self.sock))

    def send(self, data: Any) -> None:
        """Count and send in pieces, since the system's time limit is for all that is sent at once."""
        wire = self.wire
        if self.sock is None:
            self.connect()
        view = memoryview(data)
        for start in range(0, len(view), CHUNK_BYTES):
            piece = view[start : start + CHUNK_BYTES]
            wire.ledger.written(wire.local.place, piece.nbytes)
            cast("socket.socket", self.sock).settimeout(wire.times.idle)
            super().send(piece)  # type: ignore[misc]


def _metered(wire: Wire, sock: socket.socket, *arguments: Any, **options: Any) -> Any:
    """An answer of http.client that reads through a meter."""
    response = HTTPConnection.response_class(sock, *arguments, **options)
    place = wire.local.place
    meter = Meter(
        response.fp.detach(),
        sock,
        times=wire.times,
        count=lambda count: wire.ledger.read(place, count),
        silent=lambda seconds: wire.silent(place, seconds),
    )
    response.fp = io.BufferedReader(meter, _BUFFER_BYTES)
    wire.local.meter = meter
    return response


def pool_classes(wire: Wire) -> dict[str, type[HTTPConnectionPool]]:
    """The pools of connections by scheme, for urllib3's managers."""
    ours = {"wire": wire, "response_class": staticmethod(functools.partial(_metered, wire))}
    plain = type("_Plain", (_Counting, HTTPConnection), ours)
    secure = type("_Secure", (_Counting, HTTPSConnection), ours)
    return {
        "http": type("_PlainPool", (HTTPConnectionPool,), {"ConnectionCls": plain}),
        "https": type("_SecurePool", (HTTPSConnectionPool,), {"ConnectionCls": secure}),
    }
