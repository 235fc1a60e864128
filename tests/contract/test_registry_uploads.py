"""Uploads of blobs, on both kinds of registry where they agree: sizes, Locations, limits, tokens (cases C46, C49)."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from imgbuild.adapters.registry.blobs import has_blob
from imgbuild.digest import Digest
from imgbuild.errors import (
    DigestMismatchError,
    ImgbuildError,
    MissingError,
    NetworkError,
    ProtocolError,
    RegistryError,
)

from tests.support import fault_registry as fr
from tests.support.pushing import (
    APP,
    CHUNK,
    DATA,
    Bytes,
    blob_of,
    client,
    log_in,
    pieces,
    received,
    stored,
)
from tests.support.registries import make_authority

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.fault_registry import Action, FaultRegistry, Kind
    from tests.support.registries import LocalRegistry

MIB = 1024 * 1024
BIG = bytes(5 * MIB)


# Sizes


@pytest.mark.parametrize("size", [0, 1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK + 500])
def test_a_blob_of_any_size_arrives_whole(registry: LocalRegistry, tmp_path: Path, size: int) -> None:
    found = client(registry, tmp_path, chunk=CHUNK)
    found.upload(DATA[:size])
    assert has_blob(found.repository, blob_of(DATA[:size]))
    assert stored(found, DATA[:size]) == DATA[:size]
    assert found.known == size
    assert not list((tmp_path / "uploads").iterdir())


@pytest.mark.parametrize("chunk", [1, 2])
def test_pieces_of_one_byte_are_not_taken_for_an_empty_upload(
    registry: LocalRegistry, tmp_path: Path, chunk: int
) -> None:
    found = client(registry, tmp_path, chunk=chunk)
    found.upload(b"abcde")
    assert stored(found, b"abcde") == b"abcde"
    assert not found.notes


def test_a_blob_up_to_one_chunk_goes_in_one_request_and_a_larger_one_in_pieces(
    faulty: FaultRegistry, tmp_path: Path
) -> None:
    found = client(faulty, tmp_path, chunk=CHUNK)
    found.upload(DATA[:CHUNK])
    assert pieces(faulty) == []
    found.upload(DATA[: CHUNK + 1])
    assert pieces(faulty) == ["0-999", "1000-1000"]


# Where the registry sends us next


def test_C49_relative_locations_are_followed(faulty: FaultRegistry, tmp_path: Path) -> None:
    faulty.faults.always(fr.LocationForm(form="relative"))
    found = client(faulty, tmp_path, chunk=CHUNK)
    found.upload(DATA)
    assert stored(found, DATA) == DATA


def test_C49_a_location_at_another_host_is_followed_without_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    auth = fr.Auth(mode="basic")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    with fr.FaultRegistry(auth=auth) as front, fr.FaultRegistry(storage=front.storage) as back:
        log_in(monkeypatch, tmp_path / "docker", front.host, "tester", "open sesame")
        back._backend.uploads = front.uploads
        front.faults.always(fr.LocationForm(form="origin", origin=back.url))
        found = client(front, tmp_path, chunk=CHUNK)
        found.upload(DATA)
        assert stored(found, DATA) == DATA
        assert {one.kind for one in back.requests()} == {"upload-patch", "upload-put"}
        assert not any("authorization" in one.headers for one in back.requests())
        assert any("authorization" in one.headers for one in front.requests())


def test_C49_a_registry_behind_tls_that_names_itself_by_http_is_asked_by_https(tmp_path: Path) -> None:
    authority = make_authority(tmp_path / "tls")
    with fr.FaultRegistry(ssl_context=authority.server_context()) as secure:
        secure.faults.always(fr.LocationForm(form="origin", origin=f"http://{secure.host}"))
        found = client(secure, tmp_path, chunk=CHUNK, ca=authority.ca, plain=False)
        found.upload(DATA)
        assert stored(found, DATA) == DATA


@pytest.mark.parametrize(
    "action",
    [
        fr.DropHeader(name="Location"),
        fr.SetHeader(name="Location", value="file:///etc/passwd"),
        fr.SetHeader(name="Location", value="http://[broken"),
        fr.SetHeader(name="Location", value="http://user:word@127.0.0.1/x"),
    ],
)
@pytest.mark.parametrize("kind", ["upload-post", "upload-patch"])
def test_a_location_that_cannot_be_used_is_a_typed_error(
    faulty: FaultRegistry, tmp_path: Path, kind: Kind, action: Action
) -> None:
    faulty.faults.always(action, kind)
    with pytest.raises(ProtocolError):
        client(faulty, tmp_path, chunk=CHUNK).upload(DATA)


# Sizes of pieces (C49)


def test_C49_the_least_length_of_a_piece_is_obeyed(tmp_path: Path) -> None:
    with fr.FaultRegistry(switches=fr.Switches(chunk_min_bytes=1700)) as choosy:
        found = client(choosy, tmp_path, chunk=CHUNK)
        found.upload(DATA)
        assert pieces(choosy) == ["0-1699", "1700-3399", "3400-3499"]


@pytest.mark.parametrize("value", ["9" * 5000, "-1", "abc", "", "٣"])
def test_a_least_length_that_makes_no_sense_is_passed_over(faulty: FaultRegistry, tmp_path: Path, value: str) -> None:
    faulty.faults.always(
        fr.SetHeader(name="OCI-Chunk-Min-Length", value=value.encode().decode("latin-1")), "upload-post"
    )
    found = client(faulty, tmp_path, chunk=CHUNK)
    found.upload(DATA)
    assert len(pieces(faulty)) == 4


def test_C49_pieces_that_are_too_large_are_made_smaller(faulty: FaultRegistry, tmp_path: Path) -> None:
    faulty.faults.always(fr.RefuseOver(limit=MIB), "upload-patch")
    found = client(faulty, tmp_path, chunk=4 * MIB)
    found.upload(BIG)
    assert found.said(f"{MIB} bytes from now on")
    assert received(faulty) == len(BIG)


def test_C49_a_limit_below_the_least_piece_is_an_error_that_says_what_to_do(
    faulty: FaultRegistry, tmp_path: Path
) -> None:
    faulty.faults.always(fr.RefuseOver(limit=1000), "upload-patch")
    with pytest.raises(RegistryError) as caught:
        client(faulty, tmp_path, chunk=2 * MIB).upload(BIG)
    assert "proxy" in (caught.value.hint or "")


def test_C49_a_blob_that_is_too_large_for_one_request_goes_in_pieces(faulty: FaultRegistry, tmp_path: Path) -> None:
    faulty.faults.always(fr.RefuseOver(limit=2 * MIB), "upload-put")
    found = client(faulty, tmp_path, chunk=8 * MIB)
    found.upload(BIG)
    assert found.said("too large for one request, so it goes in pieces")
    assert len(pieces(faulty)) > 1


@pytest.mark.parametrize("status", [400, 405])
def test_a_registry_that_takes_no_pieces_gets_the_blob_in_one_request(
    faulty: FaultRegistry, tmp_path: Path, status: int
) -> None:
    faulty.faults.always(fr.Answer(status=status, code="UNSUPPORTED"), "upload-patch")
    found = client(faulty, tmp_path, chunk=CHUNK)
    found.upload(DATA)
    assert stored(found, DATA) == DATA
    assert found.said("takes no pieces, so it goes in one request")


def test_a_break_of_the_one_request_of_a_registry_without_pieces_begins_anew(
    faulty: FaultRegistry, tmp_path: Path
) -> None:
    faulty.faults.always(fr.Answer(status=405), "upload-patch")
    faulty.faults.once(fr.CutRequest(after_bytes=100), "upload-put")
    found = client(faulty, tmp_path, chunk=CHUNK)
    found.upload(DATA)
    assert stored(found, DATA) == DATA


def test_a_registry_that_takes_neither_pieces_nor_the_whole_is_a_typed_error(
    faulty: FaultRegistry, tmp_path: Path
) -> None:
    faulty.faults.always(fr.Answer(status=405), "upload-patch")
    faulty.faults.always(fr.RefuseOver(limit=MIB), "upload-put")
    with pytest.raises(NetworkError, match="begun anew"):
        client(faulty, tmp_path, chunk=2 * MIB).upload(BIG)


# Bytes that are not what they should be


def test_bytes_that_are_not_those_of_the_digest_are_refused_at_the_end(registry: LocalRegistry, tmp_path: Path) -> None:
    found = client(registry, tmp_path, chunk=CHUNK)
    with pytest.raises(DigestMismatchError, match=str(Digest.of(DATA))):
        found.upload(DATA, Bytes(DATA[:-1] + b"x"))
    with pytest.raises(MissingError):
        stored(found, DATA)


@pytest.mark.parametrize("length", [0, CHUNK, 2 * CHUNK + 1, len(DATA) - 1])
def test_a_source_that_is_too_short_is_refused(registry: LocalRegistry, tmp_path: Path, length: int) -> None:
    found = client(registry, tmp_path, chunk=CHUNK)
    with pytest.raises(DigestMismatchError, match="shorter"):
        found.upload(DATA, Bytes(DATA[:length]))


@pytest.mark.parametrize("status", [200, 202, 204])
def test_other_statuses_of_success_are_taken(faulty: FaultRegistry, tmp_path: Path, status: int) -> None:
    """What the registry then has is looked at by the push, when it reads the image back."""
    faulty.faults.once(fr.Answer(status=status), "upload-put")
    client(faulty, tmp_path, chunk=CHUNK).upload(DATA)


def test_a_blob_that_is_there_in_another_size_is_refused(faulty: FaultRegistry, tmp_path: Path) -> None:
    faulty.add_synthetic(APP, str(Digest.of(DATA)), 5)
    found = client(faulty, tmp_path)
    with pytest.raises(DigestMismatchError, match="another size"):
        has_blob(found.repository, blob_of(DATA))


# Tokens that end too early


@pytest.mark.parametrize("after", [700, 1500])
def test_C46_a_token_that_is_used_up_inside_a_layer_is_made_new_and_the_same_upload_goes_on(
    tmp_path: Path, after: int
) -> None:
    auth = fr.Auth(mode="bearer", anonymous=frozenset({APP}), expire_after_bytes=after)
    auth.users["me"] = "word"
    with fr.FaultRegistry(auth=auth) as guarded, pytest.MonkeyPatch.context() as changed:
        log_in(changed, tmp_path / "docker", guarded.host, "me", "word")
        found = client(guarded, tmp_path, chunk=CHUNK)
        found.upload(DATA)
        assert len(guarded.requests("upload-post")) <= 2
        assert received(guarded) <= len(DATA) + CHUNK
        auth.expire_after_bytes = None
        assert stored(found, DATA) == DATA


def test_C46_a_token_that_expires_between_two_pieces_costs_nothing_but_a_new_one(tmp_path: Path) -> None:
    auth = fr.Auth(mode="bearer", users={"me": "word"})
    with fr.FaultRegistry(auth=auth) as guarded, pytest.MonkeyPatch.context() as changed:
        log_in(changed, tmp_path / "docker", guarded.host, "me", "word")
        found = client(guarded, tmp_path, chunk=CHUNK)
        found.on_advance = lambda count: None if count else auth.expire_all()
        found.upload(DATA)
        assert len({one.reference for one in guarded.requests("upload-patch")}) == 1
        assert stored(found, DATA) == DATA


def test_no_fault_of_a_registry_is_a_foreign_exception(faulty: FaultRegistry, tmp_path: Path) -> None:
    for seed in range(60):
        faulty.faults.clear()
        faulty.storage.repository(APP).blobs.clear()
        faulty.faults.add(fr.random_fault(random.Random(seed)))
        found = client(faulty, tmp_path, chunk=CHUNK)
        try:
            found.upload(DATA)
        except ImgbuildError:
            faulty.faults.clear()
            client(faulty, tmp_path, chunk=CHUNK).upload(DATA)
        assert str(Digest.of(DATA)) in faulty.storage.repository(APP).blobs, seed
