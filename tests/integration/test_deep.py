"""`imgbuild verify REFERENCE --deep`: every byte of a pushed image is read once, and a lie anywhere in it is found."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from imgbuild import jsontext
from imgbuild.adapters.registry.repository import Repository
from imgbuild.digest import Digest
from imgbuild.model.oci import INDEX_TYPES, Manifest
from imgbuild.steps.push import move_tags, push

from tests.support import apart
from tests.support.fault_registry import Fault, FaultRegistry, FlipBit
from tests.support.forgery import LOCK, RECEIPT, Forgery
from tests.support.remote import Remote, registries

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.tiny import Tiny

REPOSITORY = "llm/tiny"


@pytest.fixture(autouse=True, params=["threads", "processes"])
def _read_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "processes":
        apart.always(monkeypatch)


@pytest.fixture
def remote(tiny: Tiny, faulty: FaultRegistry, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Remote:
    found = Remote(tiny=tiny, host=faulty.host, capture=capsys)
    assert found.run("build", "tiny")[0] == 0
    return found


def publish(remote: Remote, tag: str = "tiny", name: str = "tiny") -> Manifest:
    """Push what a tag of the store names, as it is: nothing is verified on the way."""
    context = remote.tiny.context(offline=False)
    manifest = context.store.manifest(context.store.resolve(name))
    target = Repository(registries().of(remote.host), REPOSITORY)
    push(context, target, manifest, manifest.raw)
    move_tags(target, manifest, manifest.raw, (tag,))
    return manifest


def deep(remote: Remote, tmp_path: Path, *words: str, tag: str = "tiny") -> tuple[int, dict[str, Any]]:
    """Verify it as another machine would, with neither store nor cache."""
    nothing = ["--store", str(tmp_path / "no store")]
    return remote.run(
        "verify", remote.reference(REPOSITORY, tag), "--deep", *nothing, *words, cache=tmp_path / "no cache"
    )


def verdicts(result: dict[str, Any]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for row in result["findings"]:
        found.setdefault(row["check"], set()).add(row["verdict"])
    return found


def wrong(result: dict[str, Any]) -> set[str]:
    return {row["check"] for row in result["findings"] if row["required"] and row["verdict"] != "match"}


@pytest.mark.parametrize("place", [3, 40, 700, -2], ids=["gzip", "tar", "content", "end"])
def test_a_damaged_layer_is_said_by_its_digest_whatever_in_it_breaks(
    remote: Remote, faulty: FaultRegistry, tmp_path: Path, place: int
) -> None:
    layer = publish(remote).layers[-2]
    blobs = faulty.repository(REPOSITORY).blobs
    raw = bytearray(b"".join(blobs[str(layer.digest)].read(0, layer.size)))
    raw[place] ^= 1
    blobs[str(layer.digest)] = dataclasses.replace(
        blobs[str(layer.digest)], piece=lambda start, stop: bytes(raw[start:stop])
    )
    code, result = deep(remote, tmp_path)
    assert code == 1
    (row,) = [row for row in result["findings"] if row["check"] == "layer.digest" and row["verdict"] != "match"]
    assert row["expected"] == f"{layer.digest}, {layer.size} bytes"
    assert row["actual"] == f"{Digest.of(bytes(raw))}, {layer.size} bytes"


def test_a_whole_image_matches_in_every_check_and_each_blob_is_read_once(
    remote: Remote, faulty: FaultRegistry, tmp_path: Path
) -> None:
    manifest = publish(remote)
    faulty.clear_log()
    code, result = deep(remote, tmp_path)
    assert code == 0, result
    assert {verdict for found in verdicts(result).values() for verdict in found} == {"match"}
    assert verdicts(result).keys() == {
        *("layer.digest", "layer.diff_id", "embedded.lock", "base.layers", "base.inventory"),
        "base.tree",
        *("receipt", "file", "packages.record", "packages.single"),
    }
    reads = Counter(request.path.rpartition("/")[2] for request in faulty.requests("blob", "GET"))
    assert reads == Counter({str(blob.digest) for blob in (*manifest.layers, manifest.config)})


@pytest.mark.parametrize("number", [0, 1, -1, -2])
def test_a_flipped_bit_in_any_layer_is_found(
    remote: Remote, faulty: FaultRegistry, tmp_path: Path, number: int
) -> None:
    layer = publish(remote).layers[number]
    faulty.faults.add(Fault(action=FlipBit(at=layer.size // 2), method="GET", path=layer.digest.encoded, times=None))
    code, result = deep(remote, tmp_path)
    assert code == 1
    (finding,) = [row for row in result["findings"] if row["verdict"] == "differs"]
    assert finding["check"] == "layer.digest"
    assert str(layer.digest) in finding["subject"]


def test_what_the_store_the_cache_or_a_mirror_has_says_nothing_of_the_registry(
    remote: Remote, faulty: FaultRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = publish(remote)
    layer = manifest.layers[-2]
    with FaultRegistry(storage=faulty.storage) as mirror:
        settings = tmp_path / "registries.toml"
        rows = f'[registry."{faulty.host}"]\nmirrors = ["{mirror.host}"]\n'
        settings.write_text(f'schema = "imgbuild/registries/v1"\n{rows}')
        monkeypatch.setenv("IMGBUILD_REGISTRIES", str(settings))
        faulty.faults.add(Fault(action=FlipBit(at=3), method="GET", path=layer.digest.encoded, times=None))
        code, result = remote.run("verify", remote.reference(REPOSITORY, "tiny"), "--deep")
        assert mirror.requests() == []
    assert code == 1
    assert wrong(result) >= {"layer.digest"}
    faulty.faults.clear()
    del faulty.repository(REPOSITORY).blobs[str(manifest.config.digest)]
    assert remote.run("verify", remote.reference(REPOSITORY, "tiny"), "--deep")[0] == 5


def test_a_layer_that_is_gone_is_not_checked_and_that_is_no_yes(
    remote: Remote, faulty: FaultRegistry, tmp_path: Path
) -> None:
    layer = publish(remote).layers[2]
    del faulty.repository(REPOSITORY).blobs[str(layer.digest)]
    code, result = deep(remote, tmp_path)
    assert code == 1
    assert verdicts(result)["layer.digest"] == {"match", "not-checked"}
    assert "embedded.lock" in wrong(result)


def other_library(forgery: Forgery) -> None:
    name = "opt/venv/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2"
    forgery.put("tiny-nccl", name, b"another library")


def silent_file(forgery: Forgery) -> None:
    before = forgery.entries("imgbuild")[RECEIPT][1]
    forgery.put("tiny-app", "srv/app/backdoor.py", b"x")
    forgery.put("imgbuild", RECEIPT, before)


def receipt_of_more(forgery: Forgery) -> None:
    forgery.state("srv/app/nothing.py", {"change": "added", "type": "file", "mode": "0644", "owner": "0:0"})


def other_base(forgery: Forgery) -> None:
    forgery.manifest["layers"][0], forgery.manifest["layers"][1] = forgery.manifest["layers"][1::-1]
    ids = forgery.config["rootfs"]["diff_ids"]
    ids[0], ids[1] = ids[1], ids[0]


def wrong_diff_id(forgery: Forgery) -> None:
    forgery.config["rootfs"]["diff_ids"][-1] = "sha256:" + "0" * 64


def lock_of_nothing(forgery: Forgery) -> None:
    forgery.put("imgbuild", LOCK, b"{}")


def two_locks(forgery: Forgery) -> None:
    forgery.put("imgbuild", "usr/share/imgbuild/other.lock.json", forgery.entries("imgbuild")[LOCK][1])


def inventory_of_another(forgery: Forgery) -> None:
    lock = json.loads(forgery.entries("imgbuild")[LOCK][1])
    lock["facts"]["base_layers"][0]["inventory"] = "sha256:" + "0" * 64
    forgery.put("imgbuild", LOCK, jsontext.dumps(lock))


def tree_of_another(forgery: Forgery) -> None:
    lock = json.loads(forgery.entries("imgbuild")[LOCK][1])
    lock["facts"]["base_tree"] = "sha256:" + "0" * 64
    forgery.put("imgbuild", LOCK, jsontext.dumps(lock))


@pytest.mark.parametrize(
    ("change", "check"),
    [
        (other_library, "file"),
        (other_library, "packages.record"),
        (silent_file, "receipt"),
        (receipt_of_more, "receipt"),
        (other_base, "base.layers"),
        (wrong_diff_id, "layer.diff_id"),
        (lock_of_nothing, "embedded.lock"),
        (two_locks, "embedded.lock"),
        (inventory_of_another, "base.inventory"),
        (tree_of_another, "base.tree"),
    ],
)
def test_an_image_that_was_forged_is_found_out(
    remote: Remote, tmp_path: Path, change: Callable[[Forgery], None], check: str
) -> None:
    forgery = Forgery(remote.tiny)
    change(forgery)
    forgery.finish()
    publish(remote)
    code, result = deep(remote, tmp_path)
    assert code == 1
    assert check in wrong(result)


def test_an_image_of_somebody_else_has_its_layers_checked_and_says_that_there_is_no_lock(
    remote: Remote, tmp_path: Path
) -> None:
    publish(remote, tag="base", name="base")
    code, result = deep(remote, tmp_path, tag="base")
    assert code == 0
    assert verdicts(result) == {"layer.digest": {"match"}, "layer.diff_id": {"match"}, "embedded.lock": {"not-checked"}}
    (row,) = [row for row in result["findings"] if row["check"] == "embedded.lock"]
    assert "not built by imgbuild" in row["reason"]


def test_of_an_index_the_platform_has_to_be_said(remote: Remote, tmp_path: Path) -> None:
    manifest = publish(remote)
    row = {"mediaType": manifest.family.manifest, "digest": str(manifest.digest), "size": len(manifest.raw)}
    platform = {"os": "linux", "architecture": "arm64"}
    index = {"schemaVersion": 2, "mediaType": INDEX_TYPES[0], "manifests": [{**row, "platform": platform}]}
    target = Repository(registries().of(remote.host), REPOSITORY)
    target.put_manifest(json.dumps(index).encode(), INDEX_TYPES[0], tag="multi")
    code, found = deep(remote, tmp_path, tag="multi")
    assert (code, found["code"]) == (2, "USAGE")
    assert deep(remote, tmp_path, "--platform", "linux/arm64", tag="multi")[0] == 0
    assert deep(remote, tmp_path, "--platform", "linux/amd64", tag="multi")[0] == 4
    assert deep(remote, tmp_path, "--platform", "linux/amd64")[0] == 4


@pytest.mark.parametrize(
    "words",
    [
        ("verify", "tiny", "--deep"),
        ("verify", "127.0.0.1:1/a/b:c"),
        ("verify", "127.0.0.1:1/a/b:c", "--deep", "--tag", "x"),
        ("verify", "tiny", "--platform", "linux/arm64"),
        ("verify", "127.0.0.1:1/a/b", "--deep"),
    ],
)
def test_a_name_and_a_reference_are_not_mixed_up(remote: Remote, words: tuple[str, ...]) -> None:
    code, found = remote.run(*words)
    assert (code, found["code"]) == (2, "USAGE")
