"""Tags of a push: they move last, and what they then name is looked at (cases C52, C55)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from imgbuild.digest import Digest
from imgbuild.errors import (
    DigestMismatchError,
    ForbiddenError,
    MissingError,
    ProtocolError,
    RegistryError,
    TagTakenError,
)
from imgbuild.steps.push import move_tags

from tests.support import fault_registry as fr
from tests.support.pushing import APP, Client, Shop, ready, tags

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.fault_registry import FaultRegistry


def rivals(registry: FaultRegistry, folder: Path) -> tuple[Client, Shop, Shop]:
    """An image that has the tag `one`, and another one."""
    found, image = ready(registry, folder)
    image.push(found.repository, "one")
    return found, image, ready(registry, folder, "another")[1]


def refuse(registry: FaultRegistry, answer: fr.Answer) -> None:
    """Whoever sets the tag `one` gets this answer."""
    registry.faults.add(fr.Fault(action=answer, kind="manifest", method="PUT", path="/one$", times=None))


@pytest.mark.parametrize("status", [400, 403, 409, 412])
@pytest.mark.parametrize("same", [False, True])
def test_C55_an_immutable_tag_takes_the_same_digest_and_no_other_one(tmp_path: Path, status: Any, same: bool) -> None:
    switches = fr.Switches(immutable=status, immutable_same=same)
    with fr.FaultRegistry(switches=switches) as strict:
        found, image = ready(strict, tmp_path)
        image.push(found.repository, "one")
        image.push(found.repository, "one")
        _, other = ready(strict, tmp_path, "another")
        with pytest.raises(TagTakenError) as caught:
            other.push(found.repository, "one")
        assert caught.value.expected == str(other.manifest.digest)
        assert caught.value.actual == str(image.manifest.digest)
        assert tags(strict)["one"] == str(image.manifest.digest)
        assert found.repository.manifest(other.manifest.digest).raw == other.manifest.raw


MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def test_what_a_tag_named_before_is_told(faulty: FaultRegistry, tmp_path: Path) -> None:
    found, image = ready(faulty, tmp_path)
    image.push(found.repository)
    other = faulty.put_manifest(APP, {"schemaVersion": 2, "layers": []}, tag="old", media_type=MANIFEST)
    manifest = image.manifest
    moved = move_tags(found.repository, manifest, manifest.raw, ("old", "new"))
    assert moved == (("old", Digest.parse(other)), ("new", None))
    assert move_tags(found.repository, manifest, manifest.raw, ("old", "new")) == ()


def test_C55_an_immutable_tag_that_another_writer_set_to_the_same_digest_meanwhile_is_success(tmp_path: Path) -> None:
    with fr.FaultRegistry(switches=fr.Switches(immutable=409, immutable_same=True)) as strict:
        found, image = ready(strict, tmp_path)
        image.push(found.repository, "one")
        strict.faults.add(fr.Fault(action=fr.Answer(status=404), kind="manifest", method="GET", path="/one$"))
        move_tags(found.repository, image.manifest, image.manifest.raw, ("one",))
        assert any(one.status == 409 for one in strict.requests("manifest", "PUT"))


def test_a_tag_that_may_not_be_written_for_another_reason_is_not_called_taken(
    faulty: FaultRegistry, tmp_path: Path
) -> None:
    found, image = ready(faulty, tmp_path)
    refuse(faulty, fr.Answer(status=403, code="DENIED"))
    with pytest.raises(ForbiddenError):
        image.push(found.repository, "one")


@pytest.mark.parametrize("status", [400, 403, 405])
@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("DENIED", "requested access to the resource is denied"),
        ("DENIED", "the repository is locked for you"),
        ("UNKNOWN", "conflicting policies"),
    ],
)
def test_who_may_not_write_is_told_so_also_where_the_tag_names_another_digest(
    faulty: FaultRegistry, tmp_path: Path, status: int, code: str, message: str
) -> None:
    found, image, other = rivals(faulty, tmp_path)
    refuse(faulty, fr.Answer(status=status, code=code, message=message))
    with pytest.raises(RegistryError) as caught:
        other.push(found.repository, "one")
    assert type(caught.value) is (ForbiddenError if status == 403 else RegistryError)
    assert tags(faulty)["one"] == str(image.manifest.digest)


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (400, "TAG_INVALID", "no"),
        (403, "DENIED", "Tag is Immutable"),
        (403, "FORBIDDEN", "the artifact already exists"),
        (403, "DENIED", "not allowed to overwrite it"),
        (405, "UNSUPPORTED", "it cannot be overwritten"),
        (409, "CONFLICT", ""),
        (412, "PRECONDITION", ""),
    ],
)
def test_C55_a_tag_that_may_not_move_is_known_by_the_words_codes_and_statuses_for_that(
    faulty: FaultRegistry, tmp_path: Path, status: int, code: str, message: str
) -> None:
    found, _, other = rivals(faulty, tmp_path)
    refuse(faulty, fr.Answer(status=status, code=code, message=message))
    with pytest.raises(TagTakenError):
        other.push(found.repository, "one")


@pytest.mark.parametrize("status", [400, 404, 405, 409, 410, 413])
def test_a_manifest_that_is_refused_is_a_typed_error(faulty: FaultRegistry, tmp_path: Path, status: int) -> None:
    found, image = ready(faulty, tmp_path)
    faulty.faults.always(fr.Answer(status=status), "manifest", method="PUT")
    with pytest.raises((RegistryError, MissingError)):
        image.push(found.repository, "one")


def test_a_tag_that_the_registry_forgets_is_noticed_and_stays_where_it_was(
    faulty: FaultRegistry, tmp_path: Path
) -> None:
    found, image, other = rivals(faulty, tmp_path)
    faulty.faults.always(fr.ForgetTag(), "manifest")
    with pytest.raises(ProtocolError, match="names something else") as caught:
        other.push(found.repository, "one")
    assert caught.value.actual == str(image.manifest.digest)
    with pytest.raises(ProtocolError, match="actual nothing"):
        other.push(found.repository, "new")


def test_a_tag_that_another_writer_overtakes_is_noticed(faulty: FaultRegistry, tmp_path: Path) -> None:
    found, image, other = rivals(faulty, tmp_path)
    first = str(image.manifest.digest)

    def overtake(repository: fr.Repository, tag: str) -> None:
        repository.tags[tag] = first

    faulty.switches.after_put_tag = overtake
    with pytest.raises(ProtocolError) as caught:
        other.push(found.repository, "one")
    assert (caught.value.expected, caught.value.actual) == (str(other.manifest.digest), first)


@pytest.mark.parametrize("value", ["sha256:" + "0" * 64, "nonsense"])
def test_a_manifest_that_was_stored_as_something_else_is_refused(
    faulty: FaultRegistry, tmp_path: Path, value: str
) -> None:
    found, image = ready(faulty, tmp_path)
    faulty.faults.add(
        fr.Fault(
            action=fr.SetHeader(name="Docker-Content-Digest", value=value), kind="manifest", method="PUT", times=None
        )
    )
    with pytest.raises((DigestMismatchError, ProtocolError)):
        image.push(found.repository, "one")
    assert not tags(faulty)


def test_what_a_tag_names_is_told_by_its_bytes_and_not_by_a_header(tmp_path: Path) -> None:
    with fr.FaultRegistry() as registry:
        found, image = ready(registry, tmp_path)
        image.push(found.repository, "one")
        wrong = "sha256:" + "0" * 64
        registry.faults.add(
            fr.Fault(
                action=fr.SetHeader(name="Docker-Content-Digest", value=wrong),
                kind="manifest",
                method="HEAD",
                path="/one$",
                times=None,
            )
        )
        move_tags(found.repository, image.manifest, image.manifest.raw, ("one",))
        assert found.repository.manifest("one").descriptor.digest == image.manifest.digest
