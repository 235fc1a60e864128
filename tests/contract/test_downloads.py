"""Files at addresses: hostile servers, redirects, breaks, limits; and no credentials, whatever is configured."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from imgbuild.adapters.registry.download import UrlStream, stated_length
from imgbuild.config import MIB
from imgbuild.digest import Digest, VerifiedReader, chunks
from imgbuild.errors import (
    BudgetError,
    DigestMismatchError,
    ForbiddenError,
    ImgbuildError,
    MissingError,
    NetworkError,
    OfflineMissError,
    ProtocolError,
    RegistryError,
    ServerError,
    UnauthorizedError,
)

from tests.support import fault_registry as fr
from tests.support.fault_registry import FaultRegistry
from tests.support.reading import DATA, DIGEST, NAME, SIZE, Client, Scripted, all_text
from tests.support.registries import PAIR, PASSWORD, make_authority

if TYPE_CHECKING:
    from pathlib import Path

SUBJECT = "source nccl"


@pytest.fixture
def served(seeded: FaultRegistry) -> str:
    """The address of `DATA`."""
    return f"{seeded.url}/cdn/{DIGEST}"


def download(client: Client, url: str, size: int = SIZE) -> bytes:
    with UrlStream(client.registries, url, size=size, subject=SUBJECT) as stream:
        return b"".join(chunks(VerifiedReader(stream, Digest.parse(DIGEST), size, subject=SUBJECT)))


def length(client: Client, url: str) -> int | None:
    return stated_length(client.registries, url, subject=SUBJECT)


def test_a_file_is_read_whole_and_its_length_is_known_before(client: Client, served: str) -> None:
    assert length(client, served) == SIZE
    assert download(client, served) == DATA


@pytest.mark.parametrize("framing", [fr.Action(), fr.Chunked(), fr.Unframed(), fr.IgnoreRange()])
def test_after_a_reset_it_goes_on_where_it_was(
    seeded: FaultRegistry, client: Client, served: str, framing: fr.Action
) -> None:
    seeded.faults.once(fr.ResetInAnswer(after_bytes=200_000), "cdn")
    seeded.faults.always(framing, "cdn")
    assert download(client, served) == DATA
    # A reset takes along what was on its way.
    assert re.fullmatch("bytes=[1-9][0-9]*-", seeded.requests("cdn")[1].headers["range"])


def test_breaks_without_end_are_left(seeded: FaultRegistry, client: Client, served: str) -> None:
    seeded.faults.always(fr.CloseInAnswer(after_bytes=1000), "cdn")
    with pytest.raises(NetworkError, match=rf"after 4 breaks; actual 4000 of {SIZE} bytes"):
        download(client, served)


@pytest.mark.parametrize("size", [SIZE - 1, SIZE + 1])
def test_another_length_is_refused_before_a_byte_is_read(client: Client, served: str, size: int) -> None:
    with pytest.raises(DigestMismatchError, match=rf"source nccl: has another length.*{size} bytes.*{SIZE} bytes"):
        download(client, served, size)


@pytest.mark.parametrize("framing", [fr.Chunked(), fr.Unframed(), fr.Endless()])
@pytest.mark.parametrize("size", [SIZE - 7, SIZE + 7])
def test_a_body_that_is_longer_or_shorter_and_does_not_say_so_is_refused(
    seeded: FaultRegistry, client: Client, served: str, framing: fr.Action, size: int
) -> None:
    seeded.faults.always(framing, "cdn")
    with pytest.raises((DigestMismatchError, NetworkError)):
        download(client, served, size)
    assert client.moved(seeded.host)[0] < 8 * SIZE


def test_other_bytes_are_refused(seeded: FaultRegistry, client: Client, served: str) -> None:
    seeded.faults.always(fr.FlipBit(at=5), "cdn")
    with pytest.raises(DigestMismatchError, match="does not have the recorded digest"):
        download(client, served)


def test_an_encoded_file_is_refused(seeded: FaultRegistry, client: Client, served: str) -> None:
    seeded.faults.always(fr.Gzip(force=True), "cdn")
    for ask in (download, length):
        with pytest.raises(ProtocolError, match="came encoded"):
            ask(client, served)


REFUSALS = [
    (401, UnauthorizedError, "--source"),
    (403, ForbiddenError, "--source"),
    (404, MissingError, "--source"),
    (410, MissingError, "--source"),
    (418, RegistryError, None),
    (204, ProtocolError, None),
    (304, ProtocolError, None),
    (500, ServerError, None),
    (503, ServerError, None),
]


@pytest.mark.parametrize(("status", "kind", "hint"), REFUSALS, ids=str)
def test_a_refusal_has_its_error_which_speaks_of_no_registry(
    seeded: FaultRegistry, client: Client, served: str, status: int, kind: type[ImgbuildError], hint: str | None
) -> None:
    seeded.faults.always(fr.Answer(status=status), "cdn")
    for ask in (download, length):
        with pytest.raises(kind) as caught:
            ask(client, served)
        assert type(caught.value) is kind
        assert "registry" not in f"{caught.value.subject} {caught.value.problem} {caught.value.hint or ''}"
        assert hint is None or hint in (caught.value.hint or "")


@pytest.mark.parametrize("status", [403, 405, 501])
def test_where_head_is_not_allowed_the_head_of_a_get_says_it(
    seeded: FaultRegistry, client: Client, served: str, status: int
) -> None:
    seeded.faults.always(fr.Answer(status=status), "cdn", method="HEAD")
    assert length(client, served) == SIZE
    assert client.moved(seeded.host)[0] < SIZE


def test_a_server_that_states_no_length_states_none(seeded: FaultRegistry, client: Client, served: str) -> None:
    seeded.faults.always(fr.Chunked(), "cdn")
    assert length(client, served) is None


# Who is asked, and what for


def test_nothing_that_is_configured_is_shown_and_nobody_is_asked_for_a_token(
    seeded: FaultRegistry, served: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_AUTH_CONFIG", json.dumps({"auths": {seeded.host: {"auth": PAIR}}}))
    for challenge in ('Basic realm="x"', f'Bearer realm="{seeded.url}/token",service="s",scope="a"'):
        seeded.faults.clear()
        seeded.clear_log()
        header = (("WWW-Authenticate", challenge),)
        seeded.faults.add(fr.Fault(action=fr.Answer(status=401, headers=header), kind="cdn", times=None))
        with Client() as client, pytest.raises(UnauthorizedError, match="asked anonymously") as caught:
            download(client, served)
        assert {request.kind for request in seeded.requests()} == {"cdn"}
        assert all("authorization" not in request.headers for request in seeded.requests())
        assert PASSWORD not in all_text(caught.value)


def test_settings_for_plain_http_do_not_hold_for_addresses(tmp_path: Path) -> None:
    file = tmp_path / "r.toml"
    file.write_text('schema = "imgbuild/registries/v1"\n[registry."files.example"]\nplain-http = true\n')
    with Client(settings=file) as client, pytest.raises(ProtocolError, match="without encryption"):
        download(client, "http://files.example/x")


@pytest.mark.parametrize("url", ["http://files.example/x", "ftp://files.example/x", "https:///x", "http://10.0.0.1/x"])
def test_what_is_no_https_is_not_asked(client: Client, url: str) -> None:
    for ask in (download, length):
        with pytest.raises(ProtocolError):
            ask(client, url)
    assert client.ledger.rows() == ()


def test_a_redirect_to_another_host_is_followed_there_and_back_to_nobody(seeded: FaultRegistry, client: Client) -> None:
    with FaultRegistry() as first:
        first.faults.always(fr.Redirect(to=f"{seeded.url}/cdn/{DIGEST}"))
        assert download(client, f"{first.url}/files/libnccl.so") == DATA
        assert length(client, f"{first.url}/files/libnccl.so") == SIZE


@pytest.mark.parametrize(
    ("to", "problem"),
    [
        ("http://files.example/x", "would be asked without encryption"),
        ("{base}{path}", "is redirected on and on"),
        ("ftp://files.example/x", "cannot be used"),
        ("http://[::1", "cannot be read"),
    ],
)
def test_a_redirect_that_leads_where_we_do_not_go(
    seeded: FaultRegistry, client: Client, served: str, to: str, problem: str
) -> None:
    seeded.faults.always(fr.Redirect(to=to), "cdn")
    for ask in (download, length):
        with pytest.raises(ProtocolError, match=problem):
            ask(client, served)
    assert {row.place for row in client.ledger.rows()} == {seeded.host}


def test_https_is_not_left(tmp_path: Path, seeded: FaultRegistry) -> None:
    authority = make_authority(tmp_path / "ca")
    with FaultRegistry(ssl_context=authority.server_context(), storage=seeded.storage) as secure:
        file = tmp_path / "r.toml"
        file.write_text(f'schema = "imgbuild/registries/v1"\n[registry."{secure.host}"]\nca = "ca/ca.pem"\n')
        with Client(settings=file) as client:
            assert download(client, f"{secure.url}/cdn/{DIGEST}") == DATA
            secure.faults.always(fr.Redirect(to=f"{seeded.url}/cdn/{DIGEST}"), "cdn")
            with pytest.raises(ProtocolError, match="leaves https"):
                download(client, f"{secure.url}/cdn/{DIGEST}")
        with Client() as client, pytest.raises(NetworkError, match="the server gives no answer: its certificate"):
            download(client, f"{secure.url}/cdn/{DIGEST}")
    assert not seeded.requests("cdn")


def test_offline_nobody_is_asked(seeded: FaultRegistry, served: str) -> None:
    with Client(offline=True) as client:
        for ask in (download, length):
            with pytest.raises(OfflineMissError):
                ask(client, served)
    assert not seeded.requests()


def test_bytes_are_counted_and_limited(seeded: FaultRegistry, served: str) -> None:
    with Client(max_bytes=100_000) as client, pytest.raises(BudgetError):
        download(client, served)
    with Client() as client:
        download(client, served)
        assert SIZE < client.moved(seeded.host)[0] < SIZE + 8_000


def test_a_head_without_end_and_an_answer_that_is_none_end(client: Client) -> None:
    for script in (b"HTTP/1.1 200 OK\r\n" + b"X: " + b"a" * (9 * MIB), b"\x00\xff" * 100, b""):
        with Scripted(script) as server, pytest.raises(NetworkError) as caught:
            length(client, f"http://{server.host}/x")
        assert re.search("the server gives no answer", caught.value.problem)


def test_a_name_that_is_not_there_is_said(client: Client) -> None:
    with pytest.raises(NetworkError, match="the server gives no answer"):
        download(client, "https://no-such-host.invalid/x")
    assert not [note for note in client.notes if "registry" in note]


def test_the_name_of_a_repository_means_nothing_here(seeded: FaultRegistry, client: Client) -> None:
    assert length(client, f"{seeded.url}/v2/{NAME}/blobs/{DIGEST}") == SIZE
