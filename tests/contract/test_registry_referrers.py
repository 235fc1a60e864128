"""Documents about an image: the referrers API, the fallback tag where there is none, and other writers (case C52)."""

from __future__ import annotations

import json
import multiprocessing
import threading
from typing import TYPE_CHECKING, Any

import pytest
from imgbuild import jsontext
from imgbuild.adapters.registry import referrers as module
from imgbuild.adapters.registry.referrers import attach, fallback_tag, referrers
from imgbuild.config import DEFAULT_LIMITS
from imgbuild.digest import Digest
from imgbuild.errors import LayoutError, NetworkError, ProtocolError, RegistryError
from imgbuild.model.oci import INDEX_TYPES, Descriptor, Family

from tests.support import fault_registry as fr
from tests.support.pushing import APP, client, config_descriptor, config_of, image_of
from tests.support.registries import any_registry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from imgbuild.adapters.registry.repository import Repository

    from tests.support.fault_registry import FaultRegistry
    from tests.support.pushing import Client
    from tests.support.registries import LocalRegistry, RegistryKind

SBOM = "application/vnd.cyclonedx+json"
PROOF = "application/vnd.in-toto+json"
EMPTY = b"{}"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SETTLE", 0.02)


@pytest.fixture
def old() -> Iterator[FaultRegistry]:
    """A registry without the API."""
    with fr.FaultRegistry(switches=fr.Switches(referrers=False)) as found:
        yield found


def about(found: Client) -> Descriptor:
    """An image in the repository, as a subject."""
    found.upload(config_of())
    image = image_of([found.upload(b"layer")], config_descriptor(config_of()))
    found.repository.put_manifest(image.raw, image.family.manifest)
    return Descriptor(media_type=image.family.manifest, digest=image.digest, size=len(image.raw))


def document(subject: Descriptor, number: int = 0, kind: str = SBOM) -> bytes:
    """A manifest about it; another number gives another one."""
    empty = Descriptor(media_type="application/vnd.oci.empty.v1+json", digest=Digest.of(EMPTY), size=2)
    body = {
        "schemaVersion": 2,
        "mediaType": Family.OCI.manifest,
        "artifactType": kind,
        "config": empty.as_dict(),
        "layers": [empty.as_dict()],
        "subject": subject.as_dict(),
        "annotations": {"number": str(number)},
    }
    return jsontext.compact(body)


def attached(repository: Repository, subject: Descriptor, number: int = 0, kind: str = SBOM) -> Digest:
    return attach(repository, document(subject, number, kind), Family.OCI.manifest, subject)


def ready(found: Client) -> Descriptor:
    found.upload(EMPTY)
    return about(found)


def listed(repository: Repository, subject: Descriptor, kind: str | None = None) -> set[Digest]:
    return {row.descriptor.digest for row in referrers(repository, subject.digest, artifact_type=kind)}


def index_at(found: Client, subject: Descriptor) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(found.repository.manifest(fallback_tag(subject.digest)).raw)
    return value


# Both ways


def test_what_is_attached_is_listed_with_its_type_and_annotations(registry: LocalRegistry, tmp_path: Path) -> None:
    found = client(registry, tmp_path)
    subject = ready(found)
    sbom, proof = attached(found.repository, subject), attached(found.repository, subject, 1, PROOF)
    assert listed(found.repository, subject) == {sbom, proof}
    assert listed(found.repository, subject, PROOF) == {proof}
    (row,) = referrers(found.repository, subject.digest, artifact_type=SBOM)
    assert (row.artifact_type, row.annotations) == (SBOM, (("number", "0"),))
    assert row.descriptor.size == len(document(subject))


def test_nothing_is_listed_of_what_nobody_wrote_about(registry: LocalRegistry, tmp_path: Path) -> None:
    assert referrers(client(registry, tmp_path).repository, Digest.of(b"x")) == ()


def test_attaching_again_changes_nothing(registry: LocalRegistry, tmp_path: Path) -> None:
    found = client(registry, tmp_path)
    subject = ready(found)
    assert attached(found.repository, subject) == attached(found.repository, subject)
    assert len(referrers(found.repository, subject.digest)) == 1


# With the API


def test_with_the_API_no_tag_is_written(faulty: FaultRegistry, tmp_path: Path) -> None:
    found = client(faulty, tmp_path)
    subject = ready(found)
    attached(found.repository, subject)
    assert not faulty.repository(APP).tags
    assert not faulty.requests("referrers")


@pytest.mark.parametrize(
    "header", [fr.DropHeader(name="OCI-Subject"), fr.SetHeader(name="OCI-Subject", value="sha256:0")]
)
def test_a_registry_that_does_not_say_that_it_took_the_subject_is_asked_for_its_list(
    faulty: FaultRegistry, tmp_path: Path, header: fr.Action
) -> None:
    faulty.faults.always(header, "manifest", method="PUT")
    found = client(faulty, tmp_path)
    subject = ready(found)
    attached(found.repository, subject)
    assert faulty.requests("referrers")
    assert not faulty.repository(APP).tags


def test_a_long_list_is_read_to_its_end(tmp_path: Path) -> None:
    with fr.FaultRegistry(switches=fr.Switches(referrers_page=2)) as paged:
        found = client(paged, tmp_path)
        subject = ready(found)
        wanted = {attached(found.repository, subject, number) for number in range(5)}
        assert listed(found.repository, subject) == wanted
        assert listed(found.repository, subject, SBOM) == wanted
        assert len(paged.requests("referrers")) == 6


def test_a_list_without_an_end_is_given_up(faulty: FaultRegistry, tmp_path: Path) -> None:
    found = client(faulty, tmp_path)
    subject = ready(found)
    link = f'<{faulty.url}/v2/{APP}/referrers/{subject.digest}>; rel="next"'
    faulty.faults.always(fr.SetHeader(name="Link", value=link), "referrers")
    with pytest.raises(ProtocolError, match="has no end"):
        listed(found.repository, subject)


def test_a_list_that_goes_on_inside_somebody_elses_machine_is_not_followed(
    faulty: FaultRegistry, tmp_path: Path
) -> None:
    faulty.faults.always(fr.SetHeader(name="Link", value='<file:///etc/passwd>; rel="next"'), "referrers")
    with pytest.raises(ProtocolError):
        referrers(client(faulty, tmp_path).repository, Digest.of(b"x"))


def test_a_list_that_is_not_filtered_is_filtered_here(tmp_path: Path) -> None:
    with fr.FaultRegistry(switches=fr.Switches(referrers_filter=False)) as lazy:
        found = client(lazy, tmp_path)
        subject = ready(found)
        attached(found.repository, subject)
        proof = attached(found.repository, subject, 1, PROOF)
        assert listed(found.repository, subject, PROOF) == {proof}


@pytest.mark.parametrize("kind", ["application/json", "text/html", ""])
def test_an_answer_of_another_type_is_not_the_API_and_the_tag_decides(tmp_path: Path, kind: str) -> None:
    with fr.FaultRegistry(switches=fr.Switches(referrers_type=kind)) as odd:
        odd.faults.always(fr.DropHeader(name="OCI-Subject"), "manifest", method="PUT")
        found = client(odd, tmp_path)
        subject = ready(found)
        sbom = attached(found.repository, subject)
        assert listed(found.repository, subject) == {sbom}
        assert fallback_tag(subject.digest) in odd.repository(APP).tags


@pytest.mark.parametrize("status", [400, 404, 405, 501])
def test_a_registry_without_the_API_says_so_in_several_ways(faulty: FaultRegistry, tmp_path: Path, status: int) -> None:
    faulty.faults.always(fr.Answer(status=status), "referrers")
    faulty.faults.always(fr.DropHeader(name="OCI-Subject"), "manifest", method="PUT")
    found = client(faulty, tmp_path)
    subject = ready(found)
    assert listed(found.repository, subject) == set()
    sbom = attached(found.repository, subject)
    assert listed(found.repository, subject) == {sbom}


@pytest.mark.parametrize("body", [b"[]", b"{", b'{"schemaVersion":2,"manifests":[{}]}', b'{"manifests":{}}', b"\xff"])
def test_a_list_that_is_none_is_a_typed_error(faulty: FaultRegistry, tmp_path: Path, body: bytes) -> None:
    faulty.faults.always(fr.Answer(status=200, body=body, media_type=INDEX_TYPES[0]), "referrers")
    with pytest.raises(LayoutError):
        referrers(client(faulty, tmp_path).repository, Digest.of(b"x"))


@pytest.mark.parametrize("action", [fr.CloseInAnswer(after_bytes=20), fr.ResetInAnswer(after_bytes=20)])
def test_a_list_that_breaks_on_its_way_is_asked_for_again(
    faulty: FaultRegistry, tmp_path: Path, action: fr.Action
) -> None:
    found = client(faulty, tmp_path)
    subject = ready(found)
    sbom = attached(found.repository, subject)
    faulty.faults.once(action, "referrers")
    assert listed(found.repository, subject) == {sbom}
    assert len(faulty.requests("referrers")) == 2


def test_a_list_that_breaks_each_time_is_an_error_and_not_a_shorter_one(faulty: FaultRegistry, tmp_path: Path) -> None:
    found = client(faulty, tmp_path)
    subject = ready(found)
    attached(found.repository, subject)
    faulty.faults.always(fr.CloseInAnswer(after_bytes=20), "referrers")
    with pytest.raises(NetworkError, match="broke while it was read"):
        listed(found.repository, subject)


def test_the_body_of_an_answer_that_is_no_list_may_break(faulty: FaultRegistry, tmp_path: Path) -> None:
    faulty.faults.always(fr.Answer(status=404, body=b"x" * 1000), "referrers")
    faulty.faults.always(fr.CloseInAnswer(after_bytes=20), "referrers")
    assert referrers(client(faulty, tmp_path).repository, Digest.of(b"x")) == ()


def test_a_page_over_the_limit_is_refused_and_not_read_in_part(faulty: FaultRegistry, tmp_path: Path) -> None:
    # What is cut off are spaces: a list that is read in part would be a whole one.
    body = json.dumps({"schemaVersion": 2, "mediaType": INDEX_TYPES[0], "manifests": []}).encode()
    body += b" " * DEFAULT_LIMITS.manifest_bytes
    faulty.faults.always(fr.Answer(status=200, body=body, media_type=INDEX_TYPES[0]), "referrers")
    with pytest.raises(LayoutError, match="too long"):
        referrers(client(faulty, tmp_path).repository, Digest.of(b"x"))


@pytest.mark.parametrize("status", [401, 403])
def test_a_list_that_may_not_be_read_is_an_error_and_not_an_empty_one(
    faulty: FaultRegistry, tmp_path: Path, status: int
) -> None:
    faulty.faults.always(fr.Answer(status=status), "referrers")
    with pytest.raises(RegistryError):
        referrers(client(faulty, tmp_path).repository, Digest.of(b"x"))


# With the fallback tag


def test_the_index_under_the_tag_keeps_what_it_has_and_what_we_do_not_know(old: FaultRegistry, tmp_path: Path) -> None:
    found = client(old, tmp_path)
    subject = ready(found)
    first = document(subject, 1)
    found.repository.put_manifest(first, Family.OCI.manifest)
    row = {"mediaType": Family.OCI.manifest, "digest": str(Digest.of(first)), "size": len(first), "x-row": {"a": [1]}}
    index = {"schemaVersion": 2, "mediaType": INDEX_TYPES[0], "manifests": [row], "x-top": 3, "annotations": {"k": "v"}}
    found.repository.put_manifest(jsontext.compact(index), INDEX_TYPES[0], tag=fallback_tag(subject.digest))
    second = attached(found.repository, subject, 2)
    after = index_at(found, subject)
    assert after["manifests"][0] == row
    assert {key: value for key, value in after.items() if key != "manifests"} == {
        key: value for key, value in index.items() if key != "manifests"
    }
    assert after["manifests"][1]["digest"] == str(second)
    assert after["manifests"][1]["artifactType"] == SBOM
    assert after["manifests"][1]["annotations"] == {"number": "2"}


@pytest.mark.parametrize("raw", [config_of, lambda: b"{}"])
def test_a_fallback_tag_that_names_no_index_is_not_overwritten(old: FaultRegistry, tmp_path: Path, raw: Any) -> None:
    found = client(old, tmp_path)
    subject = ready(found)
    tag = fallback_tag(subject.digest)
    digest = old.put_manifest(APP, raw(), tag=tag, media_type=Family.OCI.manifest)
    with pytest.raises(LayoutError):
        attached(found.repository, subject)
    assert old.repository(APP).tags[tag] == digest


def test_C52_a_write_that_another_writer_overtakes_is_made_again_and_loses_neither(
    old: FaultRegistry, tmp_path: Path
) -> None:
    found = client(old, tmp_path)
    subject = ready(found)
    other = document(subject, 9)
    found.repository.put_manifest(other, Family.OCI.manifest)
    rows = [{"mediaType": Family.OCI.manifest, "digest": str(Digest.of(other)), "size": len(other)}]
    left = [2]

    def overtake(repository: fr.Repository, tag: str) -> None:
        if left[0]:
            left[0] -= 1
            raw = jsontext.compact({"schemaVersion": 2, "mediaType": INDEX_TYPES[0], "manifests": rows})
            repository.tags[tag] = old.put_manifest(APP, raw)

    old.switches.after_put_tag = overtake
    own = attached(found.repository, subject)
    assert listed(found.repository, subject) == {own, Digest.of(other)}


def test_C52_an_update_that_the_registry_forgets_is_noticed(old: FaultRegistry, tmp_path: Path) -> None:
    found = client(old, tmp_path)
    subject = ready(found)
    old.faults.once(fr.ForgetTag(), "manifest", skip=1, times=3)
    own = attached(found.repository, subject)
    assert listed(found.repository, subject) == {own}


def test_C52_a_registry_that_forgets_every_update_is_an_error(
    old: FaultRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_ROUNDS", 3)
    found = client(old, tmp_path)
    subject = ready(found)
    old.faults.always(fr.ForgetTag(), "manifest")
    with pytest.raises(NetworkError, match="does not keep"):
        attached(found.repository, subject)


def test_C52_rows_of_documents_that_somebody_deleted_do_not_come_back(old: FaultRegistry, tmp_path: Path) -> None:
    found = client(old, tmp_path)
    subject = ready(found)
    first = attached(found.repository, subject, 1)
    done: list[bool] = []

    def clean(repository: fr.Repository, tag: str) -> None:
        if not done:
            done.append(True)
            del repository.manifests[str(first)]
            index = {"schemaVersion": 2, "mediaType": INDEX_TYPES[0], "manifests": []}
            repository.tags[tag] = old.put_manifest(APP, jsontext.compact(index))

    old.switches.after_put_tag = clean
    second = attached(found.repository, subject, 2)
    assert listed(found.repository, subject) == {second}


# Many writers


def write_many(host: str, folder: Path, subject: Descriptor, numbers: range) -> None:
    """What each writer does; also as a process of its own."""
    found = client(host, folder)
    for number in numbers:
        attached(found.repository, subject, number)


WRITERS = 8
EACH = 3


@pytest.mark.parametrize(
    ("kind", "by"), [("fault", "threads"), ("docker-registry", "threads"), ("docker-registry", "processes")]
)
def test_C52_eight_writers_at_once_lose_nothing(
    tmp_path: Path, kind: RegistryKind, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SETTLE", 0.4)
    with any_registry(kind, tmp_path / "registry") as registry:
        if registry.fault is not None:
            registry.fault.switches.referrers = False
        found = client(registry, tmp_path)
        subject = ready(found)
        make: Any = threading.Thread if by == "threads" else multiprocessing.get_context("spawn").Process
        shares = [range(number * EACH, (number + 1) * EACH) for number in range(WRITERS)]
        folders = [tmp_path / str(number) for number in range(WRITERS)]
        writers = [
            make(target=write_many, args=(registry.host, folder, subject, share))
            for folder, share in zip(folders, shares, strict=True)
        ]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join(300)
        assert not any(writer.is_alive() for writer in writers)
        wanted = {Digest.of(document(subject, number)) for share in shares for number in share}
        assert listed(found.repository, subject) == wanted
