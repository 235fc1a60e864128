"""Servers that are no registries, or wish us ill: one typed error, soon, and nothing of theirs reaches the terminal."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from imgbuild.adapters.registry.blobs import read_blob
from imgbuild.adapters.registry.patience import Patience
from imgbuild.adapters.registry.referrers import referrers
from imgbuild.adapters.registry.wire import Times
from imgbuild.digest import VerifiedReader
from imgbuild.errors import ForbiddenError, ImgbuildError, NetworkError

from tests.support import fault_registry as fr
from tests.support.reading import Client, Scripted, described

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from imgbuild.adapters.registry.repository import Repository

SIZE = 640_000
NAMES = [
    *(b"Content-Length", b"Transfer-Encoding", b"Content-Encoding", b"Location", b"WWW-Authenticate", b"Retry-After"),
    *(b"Content-Type", b"Docker-Content-Digest", b"Content-Range", b"Connection", b"X"),
]
DIGEST = fr.digest_of(b"y" * SIZE)
SMALL = described(DIGEST, SIZE)


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


def crawling(head: bytes, piece: bytes) -> Callable[[socket.socket], None]:
    return forever(head + b"\r\n", piece, 0.02)


MANIFEST = b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.oci.image.manifest.v1+json\r\nContent-Length: 4000000\r\n"
LIST = b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.oci.image.index.v1+json\r\n"
CRAWL = Times(connect=1, idle=5, head=5, window=5, rate=1, document=0.3)


@pytest.mark.parametrize(
    ("script", "ask"),
    [
        (crawling(MANIFEST, b"y"), lambda at: at.manifest("t")),
        (crawling(LIST + b"Transfer-Encoding: chunked\r\n", b"1\r\ny\r\n"), lambda at: referrers(at, SMALL.digest)),
        (crawling(b"HTTP/1.1 404 No\r\n", b"y"), lambda at: at.manifest_digest("t")),
        (crawling(b"HTTP/1.1 403 No\r\n", b"y"), lambda at: at.manifest("t")),
        (crawling(b"HTTP/1.1 200 OK\r\nContent-Length: 640000\r\n", b"y"), lambda at: read_blob(at, SMALL, SIZE)),
    ],
)
def test_a_small_document_that_comes_fast_enough_for_a_blob_and_never_ends_is_left_after_its_time(
    script: Callable[[socket.socket], None], ask: Callable[[Repository], object]
) -> None:
    with Scripted(script) as server, Client(times=CRAWL, patience=Patience(attempts=6, first=0.01)) as client:
        began = time.monotonic()
        with contextlib.suppress(NetworkError, ForbiddenError):
            ask(client.at(server.host))
        assert time.monotonic() - began < 2.5
        assert len(server.asked) == 1


def test_what_broke_is_asked_for_again_only_while_there_is_time() -> None:
    broken = [MANIFEST + b"\r\n{"] * 2
    with Scripted(*broken, crawling(MANIFEST, b"y")) as server, Client(times=CRAWL) as client:
        with pytest.raises(NetworkError, match=r"no whole document in 0\.3 seconds"):
            client.at(server.host).manifest("t")
        assert len(server.asked) == 3
        assert len(client.notes) == 2


def test_a_token_that_crawls_is_left_after_its_time() -> None:
    def script(sock: socket.socket) -> None:
        if server.asked[-1].startswith(b"GET /token"):
            crawling(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n", b"y")(sock)
        head = f'HTTP/1.1 401 No\r\nWWW-Authenticate: Bearer realm="http://{server.host}/token"\r\n'
        sock.sendall(head.encode() + b"Content-Length: 0\r\n\r\n")

    with Scripted(script) as server, Client(times=CRAWL, patience=Patience(attempts=2, first=0.01)) as client:
        with pytest.raises(NetworkError, match=r"no whole document in 0\.3 seconds"):
            client.at(server.host).manifest("t")
        assert len([asked for asked in server.asked if asked.startswith(b"GET /token")]) == 1


def test_pages_of_a_list_have_one_time_together() -> None:
    def page(sock: socket.socket) -> None:
        time.sleep(0.1)
        body = b'{"schemaVersion": 2, "manifests": []}'
        sock.sendall(LIST + b'Link: </v2/next>; rel="next"\r\nContent-Length: %d\r\n\r\n' % len(body) + body)

    with Scripted(page) as server, Client(times=CRAWL) as client:
        with pytest.raises(NetworkError, match=r"did not come whole in 0\.3 seconds"):
            referrers(client.at(server.host), SMALL.digest)
        assert len(server.asked) < 6


def test_a_blob_may_take_longer_than_a_document_as_long_as_it_comes() -> None:
    def slow(sock: socket.socket) -> None:
        sock.sendall(LENGTH)
        for _ in range(10):
            time.sleep(0.06)
            sock.sendall(b"y" * (SIZE // 10))

    with Scripted(slow) as server, Client(times=CRAWL) as client, client.stream(server.host, DIGEST, SIZE) as stream:
        VerifiedReader(stream, described(DIGEST, SIZE).digest, SIZE, subject="blob").drain()
        assert len(server.asked) == 1
