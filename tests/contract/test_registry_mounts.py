"""Mounts of blobs across repositories, what comes where there is none, and HEAD before it (cases C15, C44, C45)."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import pytest
from imgbuild.adapters.registry.blobs import blob_size, has_blob, mount, read_blob
from imgbuild.adapters.registry.repository import Repository
from imgbuild.digest import Digest
from imgbuild.errors import DigestMismatchError, ForbiddenError, ServerError, ThrottledError, UnauthorizedError
from imgbuild.model.oci import Descriptor, Family

from tests.support import fault_registry as fr
from tests.support.pushing import APP, CHUNK, DATA, Client, blob_of, client, log_in, shop, stored

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.fault_registry import Action, FaultRegistry
    from tests.support.registries import LocalRegistry

BASE = "team/base"
BLOB = blob_of(DATA)


@pytest.fixture
def stocked(faulty: FaultRegistry) -> FaultRegistry:
    """A registry with the blob in another repository than the one that is pushed to."""
    faulty.put_blob(BASE, DATA)
    return faulty


def beside(found: Client, name: str) -> Repository:
    """Another repository of the same registry."""
    return Repository(found.repository.registry, name)


# Looking whether a blob is there


def test_a_blob_is_there_in_its_repository_only(registry: LocalRegistry, tmp_path: Path) -> None:
    base = client(registry, tmp_path, name=BASE)
    base.upload(DATA)
    assert blob_size(base.repository, BLOB) == len(DATA)
    assert blob_size(beside(base, APP), BLOB) is None


@pytest.mark.parametrize("status", [405, 501])
@pytest.mark.parametrize("data", [DATA, b""])
def test_a_registry_that_knows_no_HEAD_of_blobs_is_asked_otherwise(
    stocked: FaultRegistry, tmp_path: Path, status: int, data: bytes
) -> None:
    stocked.put_blob(BASE, data)
    stocked.faults.always(fr.Answer(status=status), "blob", method="HEAD")
    found = client(stocked, tmp_path, name=BASE)
    assert blob_size(found.repository, blob_of(data)) == len(data)
    assert blob_size(beside(found, APP), blob_of(data)) is None


def test_a_blob_without_a_length_is_there_in_a_size_that_is_not_known(stocked: FaultRegistry, tmp_path: Path) -> None:
    stocked.faults.always(fr.Chunked(), "blob")
    found = client(stocked, tmp_path, name=BASE)
    assert blob_size(found.repository, BLOB) == -1
    assert has_blob(found.repository, BLOB)


@pytest.mark.parametrize("method", ["HEAD", "GET"])
@pytest.mark.parametrize("size", [0, len(DATA) - 1, len(DATA) + 1])
def test_a_blob_of_another_size_is_refused(faulty: FaultRegistry, tmp_path: Path, method: str, size: int) -> None:
    if method == "GET":
        faulty.faults.always(fr.Answer(status=405), "blob", method="HEAD")
    faulty.add_blob(APP, fr.Blob(digest=str(BLOB.digest), size=size, piece=lambda start, stop: bytes(stop - start)))
    with pytest.raises(DigestMismatchError, match="another size"):
        has_blob(client(faulty, tmp_path).repository, BLOB)


# Mounts


def test_C44_a_blob_of_another_repository_is_mounted_and_not_sent(registry: LocalRegistry, tmp_path: Path) -> None:
    base = client(registry, tmp_path, name=BASE)
    base.upload(DATA)
    written = sum(row.written for row in base.ledger.rows())
    assert mount(beside(base, APP), BLOB, BASE) is None
    assert read_blob(beside(base, APP), BLOB, 1 << 20) == DATA
    assert sum(row.written for row in base.ledger.rows()) - written < 1000


def test_C44_a_blob_that_cannot_be_mounted_goes_on_in_the_session_that_was_opened_instead(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    found = client(registry, tmp_path, chunk=CHUNK)
    location = mount(found.repository, BLOB, "team/nothing")
    assert location
    found.upload(DATA, session=location)
    assert stored(found, DATA) == DATA
    if registry.fault is not None:
        assert len(registry.fault.requests("upload-post")) == 1


@pytest.mark.parametrize("status", [202, 400, 401, 403, 404])
def test_C44_C45_a_mount_that_is_refused_is_no_failure(stocked: FaultRegistry, tmp_path: Path, status: Any) -> None:
    stocked.faults.always(fr.RefuseMount(status=status))
    found = client(stocked, tmp_path, chunk=CHUNK)
    location = mount(found.repository, BLOB, BASE)
    assert bool(location) is (status == 202)
    assert location is not None
    found.upload(DATA, session=location)
    assert stored(found, DATA) == DATA
    plain = [one for one in stocked.requests("upload-post") if "mount" not in one.query]
    assert len(plain) == (0 if status == 202 else 1)


@pytest.mark.parametrize("action", [fr.DropHeader(name="Location"), fr.Answer(status=405), fr.Answer(status=302)])
def test_a_mount_whose_answer_makes_no_sense_is_as_one_that_is_refused(
    stocked: FaultRegistry, tmp_path: Path, action: Action
) -> None:
    stocked.faults.always(fr.RefuseMount(status=202))
    stocked.faults.once(action, "upload-post")
    assert mount(client(stocked, tmp_path).repository, BLOB, BASE) == ""


@pytest.mark.parametrize("action", [fr.Reset(), fr.Reset(handled=True), fr.Busy(retry_after=0), fr.Answer(status=503)])
def test_C51_a_mount_that_breaks_is_tried_again(stocked: FaultRegistry, tmp_path: Path, action: Action) -> None:
    stocked.faults.once(action, "upload-post", times=2)
    assert mount(client(stocked, tmp_path).repository, BLOB, BASE) is None


@pytest.mark.parametrize(
    ("action", "kind"), [(fr.Busy(retry_after=0), ThrottledError), (fr.Answer(status=500), ServerError)]
)
def test_a_registry_that_fails_for_ever_is_not_taken_for_one_that_refuses_to_mount(
    stocked: FaultRegistry, tmp_path: Path, action: Action, kind: type[Exception]
) -> None:
    stocked.faults.always(action, "upload-post")
    with pytest.raises(kind):
        mount(client(stocked, tmp_path).repository, BLOB, BASE)


def test_C49_a_session_in_place_of_a_mount_learns_the_least_length_of_a_piece_by_being_refused(tmp_path: Path) -> None:
    with fr.FaultRegistry(switches=fr.Switches(chunk_min_bytes=1700)) as choosy:
        found = client(choosy, tmp_path, chunk=CHUNK)
        location = mount(found.repository, BLOB, BASE)
        found.upload(DATA, session=location)
        assert stored(found, DATA) == DATA
        assert found.said("it begins anew")


# Who may mount what


@pytest.fixture
def guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultRegistry]:
    auth = fr.Auth(mode="bearer", users={"me": "word"})
    with fr.FaultRegistry(auth=auth) as found:
        found.put_blob(BASE, DATA)
        log_in(monkeypatch, tmp_path / "docker", found.host, "me", "word")
        yield found


def test_C44_C45_a_mount_asks_for_one_token_with_both_scopes(guarded: FaultRegistry, tmp_path: Path) -> None:
    assert mount(client(guarded, tmp_path).repository, BLOB, BASE) is None
    (asked,) = guarded.requests("token")
    scopes = {value for key, value in asked.pairs if key == "scope"}
    assert scopes == {f"repository:{APP}:pull,push", f"repository:{BASE}:pull"}


@pytest.mark.parametrize("answer", [202, 401])
def test_C45_a_source_that_may_not_be_read_does_not_fail_the_push(
    guarded: FaultRegistry, tmp_path: Path, answer: Any
) -> None:
    guarded.auth.readable["me"] = frozenset({APP})
    guarded.switches.mount_unreadable = answer
    found = client(guarded, tmp_path, chunk=CHUNK)
    location = mount(found.repository, BLOB, BASE)
    assert location is not None
    found.upload(DATA, session=location)
    assert stored(found, DATA) == DATA


def test_a_target_that_may_not_be_written_fails_when_the_blob_is_sent(guarded: FaultRegistry, tmp_path: Path) -> None:
    guarded.auth.writable["me"] = frozenset()
    found = client(guarded, tmp_path, chunk=CHUNK)
    assert mount(found.repository, BLOB, BASE) == ""
    with pytest.raises((ForbiddenError, UnauthorizedError)):
        found.upload(DATA)


# Digests of another algorithm


def sha512(data: bytes) -> Descriptor:
    digest = Digest("sha512", hashlib.sha512(data).hexdigest())
    return Descriptor(media_type=Family.OCI.layer_gzip, digest=digest, size=len(data))


def test_C15_a_layer_with_a_sha512_digest_is_mounted_or_streamed(tmp_path: Path) -> None:
    layer = sha512(DATA)
    blob = fr.Blob(digest=str(layer.digest), size=len(DATA), piece=lambda start, stop: DATA[start:stop])
    with fr.FaultRegistry(sha512=True) as here, fr.FaultRegistry(sha512=True) as there:
        here.add_blob(BASE, blob)
        found = client(here, tmp_path / "a")
        made = shop(found, tmp_path / "a", [b"own"], base=[beside(found, BASE)], elsewhere=[layer])
        assert made.push(found.repository, "one").mounted == 1
        away = client(there, tmp_path / "b", chunk=CHUNK)
        made = shop(away, tmp_path / "b", [b"own"], base=[beside(found, BASE)], elsewhere=[layer])
        assert made.push(away.repository, "one").sent == 3
        assert read_blob(away.repository, layer, 1 << 20) == DATA
