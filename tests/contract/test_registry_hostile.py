"""Servers that are no registries, or wish us ill: one typed error, soon, and nothing of theirs reaches the terminal."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from imgbuild.adapters.registry.patience import Patience
from imgbuild.adapters.registry.wire import Times
from imgbuild.digest import VerifiedReader
from imgbuild.errors import ImgbuildError, NetworkError

from tests.support import fault_registry as fr
from tests.support.reading import Client, Scripted, described, isolate

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator
    from pathlib import Path

SIZE = 640_000
NAMES = [
    *(b"Content-Length", b"Transfer-Encoding", b"Content-Encoding", b"Location", b"WWW-Authenticate", b"Retry-After"),
    *(b"Content-Type", b"Docker-Content-Digest", b"Content-Range", b"Connection", b"X"),
]
DIGEST = fr.digest_of(b"y" * SIZE)


@pytest.fixture(autouse=True)
def _isolated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    isolate(monkeypatch, tmp_path)


@pytest.fixture
def client() -> Iterator[Client]:
    with Client() as found:
        yield found


@pytest.mark.parametrize(
    "script",
    [
        b"",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"SSH-2.0-x\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 99999999999999999999 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n{}",
        b"HTTP/1.1 200 OK\r\nno colon \x1b[2J\r\n: empty\r\n\r\n{}",
        b'HTTP/1.1 401 No\r\nWWW-Authenticate: Bearer realm="http://[::1"\r\nContent-Length: 0\r\n\r\n',
        b"HTTP/1.1 401 No\r\nWWW-Authenticate: \xff\xfe=,,\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 307 Go\r\nLocation: http://[::1\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 429 Slow\r\nRetry-After: \xd9\xa1" + b"9" * 5000 + b"\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 10,
    ],
)
def test_what_is_no_answer_is_one_typed_error(client: Client, script: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with Scripted(script) as server, pytest.raises(ImgbuildError) as caught:
        client.at(server.host).manifest("t")
    assert "\x1b" not in f"{caught.value}{client.notes}{caplog.text}"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    status=st.sampled_from([b"200 OK", b"206 P", b"307 Go", b"401 No", b"404 No", b"416 R", b"503 Busy", b"204 N"]),
    names=st.lists(st.sampled_from(NAMES), max_size=4),
    values=st.lists(st.binary(max_size=40).map(lambda data: data.replace(b"\n", b"")), min_size=4, max_size=4),
    body=st.binary(max_size=60),
)
def test_any_answer_is_bytes_or_one_typed_error(
    status: bytes, names: list[bytes], values: list[bytes], body: bytes
) -> None:
    fields = [name + b": " + value for name, value in zip(names, values, strict=False)]
    script = b"\r\n".join([b"HTTP/1.1 " + status, *fields, b"", body])
    with Scripted(script) as server, Client(patience=Patience(attempts=2, first=0.001, asked_cap=0.01)) as client:
        for ask in (
            lambda: client.at(server.host).manifest("t"),
            lambda: client.at(server.host).manifest_digest("t"),
            lambda: client.read(server.host, DIGEST, 5),
        ):
            try:
                ask()
            except ImgbuildError as error:
                assert str(error).isprintable()  # noqa: PT017 - nearly all are refused
        assert all(note.isprintable() for note in client.notes)


def forever(start: bytes, piece: bytes, seconds: float) -> Callable[[socket.socket], None]:
    def script(sock: socket.socket) -> None:
        sock.sendall(start)
        while True:
            sock.sendall(piece)
            time.sleep(seconds)

    return script


LENGTH = f"HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n".encode()
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        (forever(b"HTTP/1.1 200 OK\r\nX: ", b"y", 0.02), "no whole head of an answer in 0.5 seconds"),
        (forever(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.0), "no whole head|framing without end"),
        (forever(LENGTH, b"y", 0.02), "it sends too slowly"),
        (forever(CHUNKED, b"1\r\ny\r\n", 0.02), "it sends too slowly"),
        (forever(CHUNKED, b"0", 0.02), "it sends too slowly"),
        (forever(CHUNKED + b"0\r\n", b"X: trailer\r\n" * 5000, 0.0), "framing without end"),
        (lambda sock: sock.recv(1), "no whole head of an answer in 0.5 seconds"),
        (forever(LENGTH, b"", 1.0), "nothing came for 0.4 seconds"),
    ],
)
def test_who_holds_us_by_a_byte_at_a_time_or_for_ever_is_left_soon(
    script: Callable[[socket.socket], None], problem: str
) -> None:
    times = Times(connect=1, idle=0.4, head=0.5, window=0.4, rate=1000)
    with Scripted(script) as server, Client(times=times, patience=Patience(attempts=2, first=0.01)) as client:
        began = time.monotonic()
        with pytest.raises(NetworkError, match=problem), client.stream(server.host, DIGEST, SIZE) as stream:
            VerifiedReader(stream, described(DIGEST, SIZE).digest, SIZE, subject="blob").drain()
        assert time.monotonic() - began < 6
