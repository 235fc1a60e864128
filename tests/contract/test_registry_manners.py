"""How registries are asked: patience, one brake, typed errors, counted bytes, TLS, proxies, redirects."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest
from imgbuild.adapters.registry.patience import Patience
from imgbuild.adapters.registry.wire import Times
from imgbuild.errors import (
    BudgetError,
    ForbiddenError,
    ImgbuildError,
    MissingError,
    NetworkError,
    OfflineMissError,
    ProtocolError,
    RegistryError,
    ServerError,
    ThrottledError,
    UnauthorizedError,
    UsageError,
)

from tests.support import fault_registry as fr
from tests.support.fault_registry import FaultRegistry
from tests.support.reading import DATA, DIGEST, HASTY, NAME, SIZE, Client, Scripted, all_text, settings
from tests.support.registries import make_authority

if TYPE_CHECKING:
    from pathlib import Path

WAITING = Times(connect=5, quiet=0.2, idle=5, head=5, window=5)

# refusals


@pytest.mark.parametrize(
    ("status", "kind", "asked"),
    [
        (400, RegistryError, 1),
        (401, UnauthorizedError, 1),
        (403, ForbiddenError, 1),
        (404, MissingError, 1),
        (410, MissingError, 1),
        (418, RegistryError, 1),
        (408, ServerError, 4),
        (429, ThrottledError, 4),
        (500, ServerError, 4),
        (501, ServerError, 1),
        (502, ServerError, 4),
        (503, ServerError, 4),
        (504, ServerError, 4),
        (206, ProtocolError, 1),
        (304, ProtocolError, 1),
    ],
)
@pytest.mark.parametrize("body", [None, fr.NOT_JSON, fr.CONTROL, b"\xff\x1b]0;x\x07" * 50_000, b'{"errors": {}}'])
def test_P25_each_refusal_is_its_own_error_with_subject_place_and_what_was_said(
    seeded: FaultRegistry, client: Client, status: int, kind: type[ImgbuildError], asked: int, body: bytes | None
) -> None:
    seeded.faults.always(fr.Answer(status=status, code="SOME_CODE", message="words", body=body))
    with pytest.raises(kind) as caught:
        client.read(seeded.host, DIGEST, SIZE)
    error = caught.value
    assert type(error) is kind
    assert error.subject == f"blob {DIGEST} of {seeded.host}/{NAME}"
    assert error.where == f"{seeded.url}/v2/{NAME}/blobs/{DIGEST}"
    assert str(status) in (error.actual or "")
    if body is None and status not in {206, 304}:
        assert "SOME_CODE: words" in (error.actual or "")
    assert str(error).isprintable()
    assert len(str(error)) < 1500
    assert error.fields()["hint"]
    assert len(seeded.requests()) == asked
    assert all(note.isprintable() for note in client.notes)


def test_the_body_of_a_refusal_is_read_a_little_only(seeded: FaultRegistry, client: Client) -> None:
    seeded.faults.always(fr.HugeError(size=1 << 30, status=403))
    with pytest.raises(ForbiddenError):
        client.read(seeded.host, DIGEST, SIZE)
    assert client.moved(seeded.host)[0] < 1_000_000


@pytest.mark.parametrize("action", [fr.ResetInAnswer(after_bytes=5), fr.CloseInAnswer(after_bytes=5), fr.Unframed()])
def test_a_refusal_whose_body_breaks_is_still_that_refusal(
    seeded: FaultRegistry, client: Client, action: fr.Action
) -> None:
    seeded.faults.always(fr.Answer(status=403))
    seeded.faults.always(action)
    with pytest.raises(ForbiddenError, match="actual 403"):
        client.read(seeded.host, DIGEST, SIZE)


def test_no_query_is_in_an_error_or_a_note(seeded: FaultRegistry, client: Client) -> None:
    seeded.faults.always(fr.Redirect(to="{base}/other?X-Amz-Signature=s3cr3t#s3cr3t"), "blob")
    for action in (fr.Answer(status=500), fr.Reset(), fr.Redirect(to="http://[::1?s3cr3t"), fr.Answer(status=403)):
        seeded.faults.once(action, "other", times=9)
        with pytest.raises(ImgbuildError) as caught:
            client.read(seeded.host, DIGEST, SIZE)
        assert "s3cr3t" not in all_text(caught.value) + "".join(client.notes)
        seeded.faults._entries.pop()


def test_offline_nothing_is_asked() -> None:
    with Client(offline=True) as client, pytest.raises(OfflineMissError):
        client.at("registry.example.test")


# patience


@pytest.mark.parametrize(
    "action",
    [
        fr.Answer(status=500),
        fr.Answer(status=502, body=fr.NOT_JSON),
        fr.Busy(retry_after=0),
        fr.Reset(),
        fr.Busy(retry_after=None, status=503),
    ],
)
def test_what_goes_well_after_three_failures_is_told_and_no_error(
    seeded: FaultRegistry, client: Client, action: fr.Action
) -> None:
    seeded.faults.once(action, "blob", times=3)
    assert client.read(seeded.host, DIGEST, SIZE) == DATA
    assert len(client.notes) == 3
    assert all("trying again in" in note for note in client.notes)


def test_what_many_requests_wait_for_is_said_once_a_try(seeded: FaultRegistry, client: Client) -> None:
    seeded.faults.add(fr.Fault(action=fr.Answer(status=500), kind="blob", times=None))

    def ask() -> None:
        with pytest.raises(ServerError):
            client.read(seeded.host, DIGEST, SIZE)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seeded.requests()) == 8 * HASTY.attempts
    assert len(client.notes) == HASTY.attempts - 1


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("after_bytes", [0, 300_000])
def test_whom_one_waits_for_is_told_once_for_all_connections(tmp_path: Path, after_bytes: int, *, tls: bool) -> None:
    made = make_authority(tmp_path / "ca")
    with FaultRegistry(ssl_context=made.server_context() if tls else None) as registry:
        registry.put_blob(NAME, DATA)
        registry.faults.add(fr.Fault(action=fr.Stall(after_bytes=after_bytes, seconds=0.6), kind="blob", times=None))
        table = f'[registry."{registry.host}"]\nplain-http = {str(not tls).lower()}\nca = "ca/ca.pem"'
        with Client(times=WAITING, settings=settings(tmp_path, table)) as client:
            threads = [threading.Thread(target=client.read, args=(registry.host, DIGEST, SIZE)) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert client.notes == [f"waiting for {registry.host}: nothing came for 0.2 seconds (up to 5 more)"]


@pytest.mark.parametrize("tls", [False, True])
def test_whom_one_waits_for_is_told_before_any_answer(tmp_path: Path, *, tls: bool) -> None:
    """Servers of TLS 1.3 send tickets after the handshake: something can be read then, and nothing of an answer."""
    made = make_authority(tmp_path / "ca")
    with FaultRegistry(ssl_context=made.server_context() if tls else None) as registry:
        registry.put_blob(NAME, DATA)
        registry.faults.once(fr.Hang(seconds=0.6), "blob")
        table = f'[registry."{registry.host}"]\nplain-http = {str(not tls).lower()}\nca = "ca/ca.pem"'
        with Client(times=WAITING, settings=settings(tmp_path, table)) as client:
            assert client.read(registry.host, DIGEST, SIZE) == DATA
    assert client.notes[0] == f"waiting for {registry.host}: nothing came for 0.2 seconds (up to 5 more)"


@pytest.mark.parametrize(
    ("form", "seconds", "least", "status"), [("seconds", 1, 1.0, 429), ("date", 2, 0.9, 429), ("seconds", 1, 1.0, 503)]
)
def test_C51_retry_after_is_obeyed_in_both_forms(
    seeded: FaultRegistry, client: Client, form: str, seconds: int, least: float, status: int
) -> None:
    busy = fr.Busy(retry_after=seconds, form=form, status=status)  # type: ignore[arg-type]
    seeded.faults.once(busy, "blob")
    began = time.monotonic()
    assert client.read(seeded.host, DIGEST, SIZE) == DATA
    assert least <= time.monotonic() - began < seconds + 3


def test_C51_a_wait_that_is_too_long_is_not_waited_for(seeded: FaultRegistry, client: Client) -> None:
    seeded.faults.once(fr.Busy(retry_after=301))
    with pytest.raises(ThrottledError) as caught:
        client.read(seeded.host, DIGEST, SIZE)
    assert "asks to wait 301 seconds" in (caught.value.hint or "")


def test_C51_one_refusal_slows_all_parallel_layers(seeded: FaultRegistry, client: Client) -> None:
    seeded.faults.once(fr.Busy(retry_after=1), "blob")
    threads = [threading.Thread(target=client.read, args=(seeded.host, DIGEST, SIZE)) for _ in range(8)]
    threads[0].start()
    while not client.notes:
        time.sleep(0.01)
    for thread in threads[1:]:
        thread.start()
    time.sleep(0.4)
    assert len(seeded.requests()) == 1
    for thread in threads:
        thread.join()
    assert [one.status for one in seeded.requests()] == [429, *[200] * 8]


def test_C51_a_storm_of_429_over_parallel_layers_passes(seeded: FaultRegistry) -> None:
    busy = fr.Busy(retry_after=None)
    seeded.faults.add(fr.Fault(action=busy, kind="blob", probability=0.4, times=None))
    with Client(patience=Patience(attempts=12, first=0.001, cap=0.01)) as client:
        threads = [threading.Thread(target=client.read, args=(seeded.host, DIGEST, SIZE)) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [one.status for one in seeded.requests()].count(200) == 12


def test_a_host_that_nobody_serves_is_told_within_two_seconds_by_the_usual_patience() -> None:
    with socket.create_server(("127.0.0.1", 0)) as found:
        host = f"127.0.0.1:{found.getsockname()[1]}"
    began = time.monotonic()
    with Client(patience=Patience()) as client, pytest.raises(NetworkError, match="nobody listens there") as caught:
        client.at(host).manifest("t")
    assert time.monotonic() - began < 2
    assert "host and port" in caught.value.fields()["hint"]


def test_a_registry_that_answered_before_and_is_away_is_waited_for(client: Client) -> None:
    with FaultRegistry() as registry:
        registry.put_blob(NAME, DATA)
        client.read(registry.host, DIGEST, SIZE)
    with pytest.raises(NetworkError, match="nobody listens there"):
        client.read(registry.host, DIGEST, SIZE)
    assert len(client.notes) == HASTY.attempts - 1


@pytest.mark.parametrize(
    "host", ["a" * 64 + ".example.test", "a..example.test", "é.test", "127.1", "0x7f.1:80", "a:0", "[::1", ""]
)
def test_a_host_that_is_none_is_a_typed_error_at_once(client: Client, host: str) -> None:
    with pytest.raises(ImgbuildError):
        client.at(host).manifest("t")
    assert client.notes == []


# bytes


def test_the_ledger_has_exactly_what_went_over_the_connection(client: Client) -> None:
    body = b"1000\r\n" + b"x" * 4096 + b"\r\n0\r\n\r\n"
    answer = (
        b"HTTP/1.1 103 Early\r\n\r\n"[:0]
        + b"HTTP/1.1 404 No\r\nTransfer-Encoding: chunked\r\nA: b\r\nA: c\r\n\r\n"
        + body
    )
    with Scripted(answer) as server:
        with pytest.raises(MissingError):
            client.at(server.host).manifest("t")
        assert client.moved(server.host) == (len(answer), len(server.asked[0]))


def test_the_ledger_has_the_bodies_that_the_registry_sent_and_little_more(
    seeded: FaultRegistry, client: Client
) -> None:
    for _ in range(10):
        client.read(seeded.host, DIGEST, SIZE)
    read, written = client.moved(seeded.host)
    assert 0 < read - 10 * SIZE < 10 * 400
    assert 0 < written < 10 * 400


def test_one_connection_serves_requests_that_follow_each_other(seeded: FaultRegistry, client: Client) -> None:
    seeded.seed_image(NAME, "t")
    seeded.faults.once(fr.Chunked(), "manifest")
    seeded.faults.add(fr.Fault(action=fr.Answer(status=403), kind="blob", skip=3))
    for _ in range(3):
        client.at(seeded.host).manifest("t")
        client.at(seeded.host).manifest_digest("nothing")
        client.read(seeded.host, DIGEST, SIZE)
    with pytest.raises(ForbiddenError):
        client.read(seeded.host, DIGEST, SIZE)
    client.read(seeded.host, DIGEST, SIZE)
    assert len(seeded._open) == 1


def test_max_bytes_stops_a_blob_without_another_try(seeded: FaultRegistry) -> None:
    with Client(max_bytes=SIZE // 2) as client:
        with pytest.raises(BudgetError):
            client.read(seeded.host, DIGEST, SIZE)
        assert client.notes == []
        with pytest.raises(BudgetError):
            client.at(seeded.host).manifest("t")
    assert len(seeded.requests("blob")) == 1


# TLS


def test_an_own_authority_is_trusted_and_a_wrong_one_is_told_at_once(tmp_path: Path) -> None:
    right, wrong = make_authority(tmp_path / "right"), make_authority(tmp_path / "wrong")
    with FaultRegistry(ssl_context=right.server_context()) as registry:
        registry.put_blob(NAME, DATA)
        for authority in (right, wrong):
            table = f'[registry."{registry.host}"]\nplain-http = false\nca = "{authority.ca}"'
            with Client(settings=settings(tmp_path, table), patience=Patience()) as client:
                if authority is right:
                    assert client.read(registry.host, DIGEST, SIZE) == DATA
                    continue
                with pytest.raises(NetworkError, match="certificate is not trusted") as caught:
                    client.read(registry.host, DIGEST, SIZE)
                assert client.notes == []
                assert "`ca`" in caught.value.fields()["hint"]


def test_a_certificate_of_another_host_and_a_server_without_tls_are_told_at_once(
    tmp_path: Path, seeded: FaultRegistry
) -> None:
    made = make_authority(tmp_path / "ca")
    with FaultRegistry(ssl_context=made.server_context()) as secure:
        local = f"localhost:{secure.port}"
        table = "".join(f'[registry."{host}"]\nplain-http = false\nca = "ca/ca.pem"\n' for host in (local, seeded.host))
        with Client(settings=settings(tmp_path, table)) as client:
            with pytest.raises(NetworkError, match=r"not trusted \(Hostname mismatch"):
                client.at(local).manifest("t")
            with pytest.raises(NetworkError, match="does not speak TLS") as caught:
                client.at(seeded.host).manifest("t")
            assert "plain-http" in caught.value.fields()["hint"]
            assert client.notes == []


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_authorities_that_cannot_be_read_are_a_usage_error(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "ca.pem").write_text(content)
    table = '[registry."registry.example.test"]\nca = "ca.pem"'
    with Client(settings=settings(tmp_path, table)) as client, pytest.raises(UsageError, match="cannot be read"):
        client.at("registry.example.test").manifest("t")


@pytest.mark.parametrize("setting", ['profile = "nothing"', 'ca = "~nobody-of-this-name/ca.pem"'])
def test_settings_that_name_nothing_are_a_usage_error(tmp_path: Path, setting: str) -> None:
    file = settings(tmp_path, f'[registry."registry.example.test"]\n{setting}')
    with pytest.raises(UsageError), Client(settings=file) as client:
        client.at("registry.example.test").manifest("t")


# names


def test_capital_letters_in_a_host_do_not_matter(seeded: FaultRegistry, tmp_path: Path) -> None:
    host = f"LocalHost:{seeded.port}"
    with Client(settings=settings(tmp_path, f'[registry."LOCALHOST:{seeded.port}"]\nparallel = 3')) as client:
        assert client.read(host, DIGEST, SIZE) == DATA
        assert client.registries.of(host).settings.parallel == 3
        assert client.moved(f"localhost:{seeded.port}")[0] > SIZE


def test_the_loopback_of_ipv6_is_asked_by_plain_http(client: Client) -> None:
    with contextlib.ExitStack() as stack:
        try:
            listener = stack.enter_context(socket.create_server(("::1", 0), family=socket.AF_INET6))
        except OSError:
            pytest.skip("this machine has no IPv6")
        host = f"[::1]:{listener.getsockname()[1]}"
        asked: list[bytes] = []

        def serve() -> None:
            with listener.accept()[0] as sock:
                asked.append(sock.recv(65536))
                sock.sendall(b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(MissingError):
            client.at(host).manifest("t")
        thread.join()
    assert f"Host: {host}\r\n".encode() in asked[0]
    assert client.moved(host)[0] > 0
