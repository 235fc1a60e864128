"""From a verified image to tags in a registry: order, loss, immutable tags, other writers (C11, C54, C55)."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from imgbuild.adapters.registry.repository import Repository
from imgbuild.digest import Digest
from imgbuild.errors import (
    DigestMismatchError,
    ForbiddenError,
    MissingBlobsError,
    MissingError,
    RegistryError,
)
from imgbuild.model.identity import Report
from imgbuild.steps.push import move_tags, push, read_back

from tests.support import fault_registry as fr
from tests.support.outside import run, tool
from tests.support.pushing import APP, CHUNK, DATA, LAYERS, Client, Shop, blob_of, client, config_of, ready, shop, tags

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.fault_registry import FaultRegistry
    from tests.support.fault_registry.exchange import Exchange
    from tests.support.registries import LocalRegistry


# The usual way


BLOBS = "blobs of their sizes, their bytes not read"


def test_an_image_is_pushed_by_digest_and_has_no_name_before_its_tags(registry: LocalRegistry, tmp_path: Path) -> None:
    found, image = ready(registry, tmp_path)
    pushed, findings = push(image.context, found.repository, image.manifest, image.manifest.raw)
    assert (pushed.sent, pushed.sent_bytes) == (4, len(DATA) + 5 + len(config_of()))
    assert Report(findings=tuple(findings)).ok
    assert found.repository.manifest(image.manifest.digest).raw == image.manifest.raw
    assert found.repository.manifest_digest("one") is None
    move_tags(found.repository, image.manifest, image.manifest.raw, ("one", "two"))
    assert found.repository.manifest_digest("two") == image.manifest.digest


def test_what_is_there_is_not_sent_again(registry: LocalRegistry, tmp_path: Path) -> None:
    found, image = ready(registry, tmp_path)
    image.push(found.repository, "one")
    written = sum(row.written for row in found.ledger.rows())
    pushed = image.push(found.repository, "one")
    assert (pushed.present, pushed.mounted, pushed.sent, pushed.sent_bytes) == (4, 0, 0, 0)
    assert sum(row.written for row in found.ledger.rows()) - written < 8000


def test_all_blobs_come_before_the_manifest_and_its_read_back_before_the_tag(
    faulty: FaultRegistry, tmp_path: Path
) -> None:
    found, image = ready(faulty, tmp_path)
    image.push(found.repository, "one")
    log = [(one.method, one.kind, one.reference) for one in faulty.requests()]
    by_digest = log.index(("PUT", "manifest", str(image.manifest.digest)))
    read = log.index(("GET", "manifest", str(image.manifest.digest)))
    tagged = log.index(("PUT", "manifest", "one"))
    last_blob = max(index for index, (_, kind, _) in enumerate(log) if kind == "upload-put")
    assert last_blob < by_digest < read < tagged
    for layer in image.manifest.layers:
        assert ("HEAD", "blob", str(layer.digest)) in log[by_digest:tagged]
    assert ("GET", "blob", str(image.manifest.config.digest)) in log[by_digest:tagged]


def test_C11_a_blob_that_is_in_the_image_twice_is_sent_once(registry: LocalRegistry, tmp_path: Path) -> None:
    found = client(registry, tmp_path, chunk=CHUNK)
    image = shop(found, tmp_path, (DATA, DATA, b"x", DATA))
    assert image.push(found.repository, "one").sent == 3


def test_layers_of_another_registry_are_streamed_and_nothing_grows_on_disk(
    registry: LocalRegistry, faulty: FaultRegistry, tmp_path: Path
) -> None:
    large = bytes(range(256)) * 8192
    faulty.put_blob("team/base", large)
    source = client(faulty, tmp_path / "source", name="team/base")
    found = client(registry, tmp_path, chunk=512 * 1024)
    image = shop(found, tmp_path / "app", (b"own",), base=[source.repository], elsewhere=[blob_of(large)])
    before = used(tmp_path / "app")
    assert image.push(found.repository, "one").sent == 3
    assert used(tmp_path / "app") == before
    assert faulty.bytes_sent == len(large)


def used(folder: Path) -> int:
    """Bytes of all files of a store and a cache."""
    return sum(path.stat().st_size for path in folder.glob("**/*") if path.is_file())


def test_a_layer_of_another_registry_that_breaks_is_read_on_where_it_was(faulty: FaultRegistry, tmp_path: Path) -> None:
    with fr.FaultRegistry() as base:
        base.put_blob("team/base", DATA)
        base.faults.once(fr.ResetInAnswer(after_bytes=1700), "blob")
        source = client(base, tmp_path / "source", name="team/base")
        found = client(faulty, tmp_path)
        image = shop(found, tmp_path / "app", (), base=[source.repository], elsewhere=[blob_of(DATA)])
        image.push(found.repository, "one")
        assert base.bytes_sent < 2 * len(DATA)


def test_a_layer_that_is_nowhere_is_an_error_and_nothing_has_a_name(faulty: FaultRegistry, tmp_path: Path) -> None:
    found = client(faulty, tmp_path)
    image = shop(found, tmp_path / "app", (b"own",), elsewhere=[blob_of(DATA)])
    with pytest.raises(MissingError):
        image.push(found.repository, "one")
    assert not tags(faulty)
    assert not faulty.repository(APP).manifests


def from_a_base(registry: FaultRegistry, folder: Path, *, profile: str | None = None) -> tuple[Client, Shop]:
    """An image whose base is in another repository of the same registry, and whose largest layer is its own."""
    registry.put_blob("team/base", b"of the base")
    found = client(registry, folder, profile=profile)
    base = Repository(found.repository.registry, "team/base")
    return found, shop(found, folder, (DATA,), base=[base], elsewhere=[blob_of(b"of the base")])


def test_C44_a_layer_of_the_base_is_mounted_and_not_even_looked_for_in_a_new_repository(
    faulty: FaultRegistry, tmp_path: Path
) -> None:
    found, image = from_a_base(faulty, tmp_path)
    pushed = image.push(found.repository, "one")
    assert (pushed.present, pushed.mounted, pushed.sent) == (0, 1, 2)
    first = next(one for one in faulty.requests() if str(blob_of(b"of the base").digest) in one.path + str(one.query))
    assert first.method == "POST"


def test_C44_a_layer_that_cannot_be_mounted_but_is_there_is_not_sent(faulty: FaultRegistry, tmp_path: Path) -> None:
    faulty.faults.always(fr.RefuseMount(status=404))
    found, image = from_a_base(faulty, tmp_path)
    faulty.put_blob(APP, b"of the base")
    pushed = image.push(found.repository, "one")
    assert (pushed.present, pushed.mounted, pushed.sent) == (1, 0, 2)


def test_a_kind_of_registry_that_does_not_mount_is_not_asked_to(faulty: FaultRegistry, tmp_path: Path) -> None:
    found, image = from_a_base(faulty, tmp_path, profile="jfrog")
    assert image.push(found.repository, "one").sent == 3
    assert not any("mount" in one.query for one in faulty.requests())


# Independent readers


@pytest.mark.tools
def test_skopeo_reads_what_was_pushed_whole(registry: LocalRegistry, tmp_path: Path) -> None:
    found, image = ready(registry, tmp_path)
    image.push(found.repository, "one")
    skopeo, reference = tool("skopeo"), f"docker://{registry.host}/{APP}"
    raw = run(skopeo, "inspect", "--tls-verify=false", "--raw", f"{reference}:one")
    assert raw.stdout.encode() == image.manifest.raw, raw.stderr
    target = tmp_path / "copy"
    done = run(skopeo, "copy", "--src-tls-verify=false", f"{reference}@{image.manifest.digest}", f"dir:{target}")
    assert done.returncode == 0, done.stderr
    assert (target / "manifest.json").read_bytes() == image.manifest.raw
    for blob in (*image.manifest.layers, image.manifest.config):
        assert Digest.of((target / blob.digest.encoded).read_bytes()) == blob.digest


# Loss


def test_C54_a_blob_that_is_collected_before_the_manifest_comes_is_sent_again(
    faulty: FaultRegistry, tmp_path: Path
) -> None:
    found, image = ready(faulty, tmp_path)
    faulty.faults.add(fr.Fault(action=fr.VanishBlob(digest=str(blob_of(DATA).digest)), kind="manifest", method="PUT"))
    pushed = image.push(found.repository, "one")
    assert (pushed.present, pushed.sent) == (0, 4)
    assert pushed.sent_bytes == 2 * len(DATA) + 5 + len(config_of())
    assert found.said("sending what is missing")


def test_C54_a_registry_that_collects_all_the_time_is_a_typed_error_and_nothing_has_a_name(
    faulty: FaultRegistry, tmp_path: Path
) -> None:
    found, image = ready(faulty, tmp_path)
    faulty.faults.always(fr.VanishBlob(), "manifest", method="PUT")
    with pytest.raises(MissingBlobsError):
        image.push(found.repository, "one")
    assert not tags(faulty)


@dataclass(frozen=True, slots=True, kw_only=True)
class VanishAfter(fr.Action):
    """A blob is gone right after the manifest that names it was taken."""

    digest: Digest

    def after(self, exchange: Exchange, response: fr.Response) -> fr.Response:
        exchange.backend.storage.repository(APP).blobs.pop(str(self.digest), None)
        return response


@pytest.mark.parametrize("data", [DATA, config_of()])
def test_a_blob_that_is_lost_silently_after_the_manifest_is_noticed_and_sent_again(
    faulty: FaultRegistry, tmp_path: Path, data: bytes
) -> None:
    found, image = ready(faulty, tmp_path)
    faulty.faults.add(fr.Fault(action=VanishAfter(digest=Digest.of(data)), kind="manifest", method="PUT"))
    image.push(found.repository, "one")
    assert str(Digest.of(data)) in faulty.repository(APP).blobs
    assert found.said("has lost some of what it took")


def test_a_registry_that_always_loses_a_blob_is_found_out_and_gets_no_tag(
    faulty: FaultRegistry, tmp_path: Path
) -> None:
    found, image = ready(faulty, tmp_path)
    faulty.faults.always(VanishAfter(digest=Digest.of(DATA)), "manifest", method="PUT")
    _, findings = push(image.context, found.repository, image.manifest, image.manifest.raw)
    (bad,) = [finding for finding in findings if not Report(findings=(finding,)).ok]
    assert (bad.check, bad.expected, bad.actual) == ("pushed.blobs", f"4 {BLOBS}", f"3 {BLOBS}")


def test_an_upload_that_is_said_to_be_done_and_forgotten_is_made_again(faulty: FaultRegistry, tmp_path: Path) -> None:
    found, image = ready(faulty, tmp_path)
    faulty.faults.once(fr.Answer(status=201), "upload-put")
    image.push(found.repository, "one")
    assert found.said("sending what is missing")


def test_a_manifest_that_vanishes_after_it_was_taken_is_written_again(faulty: FaultRegistry, tmp_path: Path) -> None:
    found, image = ready(faulty, tmp_path)
    faulty.faults.add(fr.Fault(action=fr.VanishManifest(), kind="manifest", method="PUT"))
    image.push(found.repository, "one")
    assert set(tags(faulty)) == {"one"}


@pytest.mark.parametrize(
    ("action", "kind"),
    [(fr.Reformat(), "manifest"), (fr.FlipBit(at=10), "manifest"), (fr.FlipBit(at=10), "blob")],
)
def test_what_is_read_back_otherwise_than_it_was_written_gets_no_tag(
    faulty: FaultRegistry, tmp_path: Path, action: fr.Action, kind: Any
) -> None:
    found, image = ready(faulty, tmp_path)
    faulty.faults.always(action, kind)
    with pytest.raises(DigestMismatchError):
        image.push(found.repository, "one")
    assert not tags(faulty)


def test_a_layer_that_is_there_in_another_size_gets_no_tag(faulty: FaultRegistry, tmp_path: Path) -> None:
    found, image = ready(faulty, tmp_path)
    faulty.add_synthetic(APP, str(blob_of(DATA).digest), 7)
    with pytest.raises(DigestMismatchError, match="another size"):
        image.push(found.repository, "one")
    assert not tags(faulty)


def test_reading_back_what_was_never_pushed_says_what_is_missing(faulty: FaultRegistry, tmp_path: Path) -> None:
    found, image = ready(faulty, tmp_path)
    with ThreadPoolExecutor(1) as askers, pytest.raises(MissingError):
        read_back(found.repository, image.manifest, askers)


# Ending early


class Slow(fr.Action):
    """Each request takes a moment longer."""

    def before(self, exchange: Exchange) -> None:
        exchange.body.pause(0.1)


def test_a_blob_that_fails_ends_the_others_soon(faulty: FaultRegistry, tmp_path: Path) -> None:
    layers = (bytes(60 * CHUNK), b"1" * 50 * CHUNK, b"refused")
    found = client(faulty, tmp_path, chunk=CHUNK)
    image = shop(found, tmp_path / "app", layers)
    faulty.put_blob(APP, layers[0])
    faulty.faults.always(Slow(), "upload-patch")
    # The small one is at its last request when the large one is still at its first.
    faulty.faults.add(fr.Fault(action=fr.Answer(status=403), kind="upload-put", times=None))
    start = time.monotonic()
    with pytest.raises(ForbiddenError):
        image.push(found.repository, "one")
    assert time.monotonic() - start < 2.5
    assert len(list((tmp_path / "app" / "cache" / "uploads").glob("*.json"))) == 1


def test_a_registry_that_is_not_there_is_named(tmp_path: Path) -> None:
    found = client("127.0.0.1:9", tmp_path)
    image = shop(found, tmp_path / "app", LAYERS)
    with pytest.raises(RegistryError, match=r"127\.0\.0\.1:9"):
        image.push(found.repository, "one")
