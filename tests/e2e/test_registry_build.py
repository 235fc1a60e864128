"""A build whose base is in a registry: never pulled, pushed by digest, tagged last. On both kinds of registry."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from imgbuild import jsontext
from imgbuild.adapters.registry.repository import Repository
from imgbuild.digest import Digest
from imgbuild.errors import MissingError
from imgbuild.model.lockfile import Lock
from imgbuild.model.oci import INDEX_TYPES

from tests.support.fault_registry import Answer, Fault, FaultRegistry, FlipBit, VanishManifest
from tests.support.refusals import forge, locked
from tests.support.registries import any_registry
from tests.support.remote import BASE, Remote, base_to, moved, registries

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.registries import LocalRegistry
    from tests.support.tiny import Tiny


@pytest.fixture
def other(tmp_path: Path) -> Iterator[LocalRegistry]:
    with any_registry("fault", tmp_path / "other") as found:
        yield found


@pytest.fixture
def remote(
    tiny: Tiny, registry: LocalRegistry, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Remote:
    base_to(tiny, registry.host, monkeypatch)
    return Remote(tiny=tiny, host=registry.host, capture=capsys)


def added(lock: dict[str, Any]) -> int:
    return sum(layer["size"] for layer in lock["result"]["layers"])


def target(remote: Remote, repository: str) -> Repository:
    return Repository(registries().of(remote.host), repository)


def blobs_in(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("**/blobs/sha256/*")}


def test_a_base_in_a_registry_gives_the_digest_of_the_lock_and_is_mounted_not_sent(remote: Remote) -> None:
    code, result = remote.run("build", "tiny", "--push", f"{remote.host}/llm/tiny")
    assert code == 0, result
    lock = locked(remote.tiny)
    assert result["manifest"] == lock["result"]["manifest"]
    assert result["pushed"]["mounted"] == len(lock["facts"]["base_layers"])
    assert result["pushed"]["sent"] == len(lock["result"]["layers"]) + 1
    found = target(remote, "llm/tiny").manifest("tiny")
    assert str(found.descriptor.digest) == lock["result"]["manifest"]


def test_a_push_moves_the_change_and_little_else(remote: Remote) -> None:
    remote.run("build", "tiny", "--dry-run")
    _, result = remote.run("build", "tiny", "--push", f"{remote.host}/llm/tiny")
    read, written = moved(result, remote.host)
    assert read + written < added(locked(remote.tiny)) + 64 * 1024
    _, again = remote.run("build", "tiny", "--push", f"{remote.host}/llm/tiny")
    assert again["pushed"]["sent"] == 0
    assert sum(moved(again, remote.host)) < 32 * 1024


def test_the_layers_of_the_base_are_never_on_disk(remote: Remote) -> None:
    code, _ = remote.run("build", "tiny", "--push", f"{remote.host}/llm/tiny")
    assert code == 0
    layers = {row["digest"].partition(":")[2] for row in locked(remote.tiny)["facts"]["base_layers"]}
    assert not layers & (blobs_in(remote.tiny.store_path) | blobs_in(remote.tiny.cache_path))


def test_a_base_in_another_registry_is_streamed_there_and_never_on_disk(remote: Remote, other: LocalRegistry) -> None:
    code, result = remote.run("build", "tiny", "--push", f"{other.host}/llm/tiny", "--tag", "a", "--tag", "b")
    assert code == 0, result
    lock = locked(remote.tiny)
    layers = {row["digest"].partition(":")[2] for row in lock["facts"]["base_layers"]}
    assert result["pushed"]["sent"] == len(layers) + len(lock["result"]["layers"]) + 1
    assert not layers & (blobs_in(remote.tiny.store_path) | blobs_in(remote.tiny.cache_path))
    assert other.fault is not None
    assert set(other.fault.repository("llm/tiny").tags) == {"a", "b"}


def test_what_does_not_pass_is_not_pushed_at_all(remote: Remote) -> None:
    remote.tiny.image["config"] = {"env": {"LD_PRELOAD": "/evil.so"}}
    remote.tiny.write_definition()
    assert remote.run("lock", "tiny")[0] == 0
    code, result = remote.run("build", "tiny", "--push", f"{remote.host}/llm/tiny")
    assert (code, result["ok"], result["tags"]) == (1, False, [])
    assert "pushed" not in result
    with pytest.raises(MissingError):
        target(remote, "llm/tiny").manifest(Digest.parse(result["manifest"]))


def test_offline_the_registry_is_not_asked(remote: Remote) -> None:
    code, found = remote.run("build", "tiny", "--offline")
    assert (code, found["code"]) == (5, "OFFLINE_MISS")
    assert "localhost/test/base" in found["subject"]


def test_more_bytes_than_allowed_end_it_and_nothing_has_a_tag(remote: Remote) -> None:
    code, found = remote.run("build", "tiny", "--push", f"{remote.host}/llm/tiny", "--max-bytes", "20000")
    assert (code, found["code"]) == (5, "MAX_BYTES")
    with pytest.raises(MissingError):
        target(remote, "llm/tiny").manifest("tiny")


@pytest.mark.parametrize(
    "words",
    [
        ("--push", "127.0.0.1:1/x:tag"),
        ("--push", "127.0.0.1:1/x", "--tag", "no tag"),
        ("--push", "mini"),
        ("--push", "https://127.0.0.1:1/x"),
        ("--push", "127.0.0.1:1/LLM/x"),
        ("--push", "localhost/x"),
        ("--push", "127.0.0.1:1/x", "--offline"),
        ("--tag", "x"),
    ],
)
def test_a_push_to_what_is_no_repository_or_tag_is_refused_before_anything_is_done(
    remote: Remote, words: tuple[str, ...]
) -> None:
    code, found = remote.run("build", "tiny", *words)
    assert (code, found["code"]) == (2, "USAGE")
    assert not remote.tiny.store_path.exists()


def test_a_push_that_is_not_allowed_is_refused_before_anything_is_built(remote: Remote, tmp_path: Path) -> None:
    with any_registry("docker-registry", tmp_path / "closed", basic=True) as closed:
        code, found = remote.run("build", "tiny", "--push", f"{closed.host}/llm/tiny")
    assert (code, found["code"]) == (5, "UNAUTHORIZED")
    assert not remote.tiny.store_path.exists()


def test_a_registry_that_is_not_there_is_known_before_anything_is_built(remote: Remote) -> None:
    code, found = remote.run("build", "tiny", "--push", "127.0.0.1:1/llm/tiny")
    assert (code, found["code"]) == (5, "NETWORK")
    assert not remote.tiny.store_path.exists()


def test_a_base_that_is_in_the_store_too_is_mounted_all_the_same(remote: Remote) -> None:
    context = remote.tiny.context(offline=False)
    remote.tiny.write_base(context)
    code, result = remote.run("build", "tiny", "--push", f"{remote.host}/llm/tiny")
    assert code == 0, result
    assert result["pushed"]["mounted"] == len(locked(remote.tiny)["facts"]["base_layers"])


def test_what_a_failed_push_leaves_in_the_store_has_no_name_and_is_not_made_again(
    remote: Remote, other: LocalRegistry
) -> None:
    assert other.fault is not None
    other.fault.faults.add(Fault(action=Answer(status=403), kind="manifest", method="PUT", times=None))
    code, found = remote.run("build", "tiny", "--push", f"{other.host}/llm/tiny")
    assert (code, found["code"]) == (5, "FORBIDDEN")
    assert remote.tiny.context().store.tags() == {}
    layers = {row["digest"].partition(":")[2] for row in locked(remote.tiny)["result"]["layers"]}
    assert layers <= blobs_in(remote.tiny.store_path)
    other.fault.faults.clear()
    assert remote.run("build", "tiny", "--push", f"{other.host}/llm/tiny")[0] == 0


# Locking a base in a registry


def relock(remote: Remote, **base: Any) -> tuple[int, dict[str, Any]]:
    remote.tiny.image["base"] = {"reference": f"{remote.host}/{BASE}", **base}
    remote.tiny.write_definition()
    return remote.run("lock", "tiny")


def test_a_tag_in_a_registry_is_locked_to_what_it_names(remote: Remote) -> None:
    before = locked(remote.tiny)
    code, found = relock(remote, tag="v1")
    assert code == 0, found
    after = locked(remote.tiny)
    assert after["pins"]["base"]["manifest"] == before["pins"]["base"]["manifest"]
    assert after["pins"]["base"]["reference"] == f"{remote.host}/{BASE}"
    assert "index" not in after["pins"]["base"]
    assert remote.run("build", "tiny", "--push", f"{remote.host}/llm/tiny")[0] == 0


def make_index(remote: Remote, platforms: list[dict[str, str]]) -> Digest:
    """An index of the base's manifest for platforms, tagged `multi`, with BuildKit's attestation row beside it."""
    repository = target(remote, BASE)
    found = repository.manifest("v1").descriptor
    rows = [{**found.as_dict(), "platform": platform} for platform in platforms]
    note = {"vnd.docker.reference.type": "attestation-manifest", "vnd.docker.reference.digest": str(found.digest)}
    unknown = {"os": "unknown", "architecture": "unknown"}
    rows.append({**found.as_dict(), "platform": unknown, "annotations": note})
    raw = jsontext.compact({"schemaVersion": 2, "mediaType": INDEX_TYPES[0], "manifests": rows})
    repository.put_manifest(raw, INDEX_TYPES[0], tag="multi")
    return Digest.of(raw)


@pytest.mark.parametrize("by", ["tag", "manifest"])
def test_P29_an_index_is_locked_with_the_one_manifest_of_the_platform(remote: Remote, by: str) -> None:
    digest = make_index(remote, [{"os": "linux", "architecture": "amd64"}, {"os": "linux", "architecture": "arm64"}])
    code, found = relock(remote, **({"tag": "multi"} if by == "tag" else {"manifest": str(digest)}))
    assert code == 0, found
    base = locked(remote.tiny)["pins"]["base"]
    assert base["index"] == str(digest)
    assert base["manifest"] != str(digest)
    assert remote.run("lock", "tiny", "--check")[0] == 0
    assert remote.run("build", "tiny", "--dry-run")[0] == 0


def test_a_lock_that_names_an_index_which_does_not_have_its_manifest_is_refused(remote: Remote) -> None:
    """Whoever edits a lock could say so of any other base, where the definition demands the index."""
    repository = target(remote, BASE)
    plain = repository.manifest("v1").descriptor
    noted = jsontext.compact({**json.loads(repository.manifest("v1").raw), "annotations": {"another": "one"}})
    repository.put_manifest(noted, plain.media_type, tag="noted")
    row = {**repository.manifest("noted").descriptor.as_dict(), "platform": {"os": "linux", "architecture": "arm64"}}
    raw = jsontext.compact({"schemaVersion": 2, "mediaType": INDEX_TYPES[0], "manifests": [row]})
    repository.put_manifest(raw, INDEX_TYPES[0], tag="multi")
    assert relock(remote, manifest=str(Digest.of(raw)))[0] == 0
    for words in (["build", "tiny"], ["verify", "tiny"]):
        code, found = remote.run(*words)
        assert code == 0, [row for row in found["findings"] if row["verdict"] != "match"]
    value = locked(remote.tiny)
    assert value["pins"]["base"]["index"] == str(Digest.of(raw))
    value["pins"]["base"].update(manifest=str(plain.digest), manifest_size=plain.size)
    del value["facts"], value["result"]
    forge(remote.tiny, value)
    for words in (["build", "tiny"], ["lock", "tiny", "--complete"], ["verify", "tiny"]):
        code, error = remote.run(*words)
        assert (code, "has another manifest for linux/arm64 than the lock pins" in error["message"]) == (4, True), words
    value["pins"]["base"].update(index=str(plain.digest))
    forge(remote.tiny, value)
    assert remote.run("build", "tiny")[1]["code"] == "DOCUMENT_INVALID"


def test_P29_a_definition_that_names_an_index_moves_to_the_next_index(remote: Remote) -> None:
    platforms = [{"os": "linux", "architecture": "amd64"}, {"os": "linux", "architecture": "arm64"}]
    first = make_index(remote, platforms)
    assert relock(remote, tag="multi", manifest=str(first))[0] == 0
    second = make_index(remote, platforms[1:])
    code, found = remote.run("lock", "tiny", "--update", "base")
    assert code == 0, found
    assert found["moved_pin"]["edits"] == [{"path": "base.manifest", "old": str(first), "new": str(second)}]
    assert locked(remote.tiny)["pins"]["base"]["index"] == str(second)
    assert remote.run("lock", "tiny", "--check")[0] == 0
    code, found = remote.run("lock", "tiny", "--update", "base", "--to", "v1")
    assert [row["path"] for row in found["moved_pin"]["edits"]] == ["base.manifest", "base.tag"]
    assert "index" not in locked(remote.tiny)["pins"]["base"]
    assert remote.run("lock", "tiny", "--update", "base", "--to", str(first))[0] == 0
    assert locked(remote.tiny)["pins"]["base"]["index"] == str(first)


@pytest.mark.parametrize(
    "platforms",
    [
        [{"os": "linux", "architecture": "amd64"}],
        [{"os": "linux", "architecture": "arm64"}, {"os": "linux", "architecture": "arm64", "variant": "v8"}],
        [],
    ],
)
def test_C40_an_index_with_no_or_several_manifests_of_the_platform_is_refused(
    remote: Remote, platforms: list[dict[str, str]]
) -> None:
    make_index(remote, platforms)
    before = locked(remote.tiny)
    code, found = relock(remote, tag="multi")
    assert (code, found["code"]) == (4, "LAYOUT_INVALID")
    assert "linux/arm64" in found["expected"]
    assert locked(remote.tiny) == before


def test_a_tag_that_is_not_there_says_where_it_was_looked_for(remote: Remote) -> None:
    code, found = relock(remote, tag="v9")
    assert (code, found["code"]) == (5, "MISSING")
    assert f"{remote.host}/{BASE}:v9" in found["message"]


# Inventories that are shared


def test_with_what_is_published_another_machine_does_not_read_the_base(remote: Remote, tmp_path: Path) -> None:
    code, found = remote.run("inventory", remote.reference(BASE, "v1"), "--push", cache=tmp_path / "first")
    assert code == 0, found
    assert {row["taken"] for row in found["layers"]} == {"read"}
    assert found["published"]["sent_bytes"] > 0
    second = tmp_path / "second"
    wheels = {path.name for path in remote.tiny.cache_path.glob("blobs/sha256/*")}
    assert wheels
    base_tree = locked(remote.tiny)["facts"]["base_tree"].partition(":")[2]
    shutil.copytree(remote.tiny.cache_path, second, ignore=shutil.ignore_patterns("inventories", base_tree))
    code, built = remote.run("build", "tiny", "--push", f"{remote.host}/llm/tiny", cache=second)
    assert code == 0, built
    assert built["manifest"] == locked(remote.tiny)["result"]["manifest"]
    assert base_tree in {path.name for path in second.glob("blobs/sha256/*")}
    assert len(list(second.glob("inventories/*"))) == len(locked(remote.tiny)["result"]["layers"])
    assert (
        remote.run("inventory", remote.reference(BASE, "v1"), "--push", cache=tmp_path / "first")[1]["published"][
            "sent_bytes"
        ]
        == 0
    )


def test_a_published_inventory_that_the_lock_does_not_pin_is_not_used(remote: Remote, tmp_path: Path) -> None:
    remote.run("inventory", remote.reference(BASE, "v1"), "--push", cache=tmp_path / "first")
    lock = remote.tiny.lock()
    assert isinstance(lock, Lock)
    cache = tmp_path / "third"
    code, found = remote.run("inventory", remote.reference(BASE, "v1"), cache=cache)
    assert code == 0
    assert {row["taken"] for row in found["layers"]} == {"read"}


def test_an_image_of_the_store_cannot_be_published(remote: Remote) -> None:
    remote.run("build", "tiny")
    code, found = remote.run("inventory", "tiny", "--push")
    assert (code, found["code"]) == (2, "USAGE")


def test_a_tag_and_a_digest_that_disagree_are_refused(remote: Remote) -> None:
    make_index(remote, [])
    digest = target(remote, BASE).manifest("v1").descriptor.digest
    code, found = remote.run("inventory", f"{remote.host}/{BASE}:multi@{digest}")
    assert (code, found["code"]) == (4, "FACT_MISMATCH")
    assert remote.run("inventory", f"{remote.host}/{BASE}:v1@{digest}")[0] == 0
    assert remote.run("inventory", f"{remote.host}/{BASE}")[0] == 2


# What a push streams


def test_bytes_are_counted_for_the_host_that_they_came_from_or_went_to(remote: Remote, other: LocalRegistry) -> None:
    code, result = remote.run("build", "tiny", "--push", f"{other.host}/llm/tiny")
    assert code == 0, result
    lock = locked(remote.tiny)
    base = sum(layer["size"] for layer in lock["facts"]["base_layers"])
    read, written = moved(result, remote.host)
    assert base < read < base + 64 * 1024
    assert written < 16 * 1024
    assert other.fault is not None
    sent = sum(request.body_bytes_read for request in other.fault.log)
    assert sent <= moved(result, other.host)[1] < sent + 64 * 1024


def test_a_layer_that_is_damaged_at_its_source_is_not_pushed_on(
    tiny: Tiny, other: LocalRegistry, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with FaultRegistry() as source:
        base_to(tiny, source.host, monkeypatch)
        remote = Remote(tiny=tiny, host=source.host, capture=capsys)
        assert remote.run("build", "tiny", "--dry-run")[0] == 0
        layer = locked(tiny)["facts"]["base_layers"][0]["digest"]
        source.faults.add(Fault(action=FlipBit(at=5), method="GET", path=layer.partition(":")[2], times=None))
        code, found = remote.run("build", "tiny", "--push", f"{other.host}/llm/tiny")
    assert (code, found["code"]) == (4, "DIGEST_MISMATCH")
    assert layer in found["message"]
    assert other.fault is not None
    assert other.fault.repository("llm/tiny").tags == {}


def test_completing_a_lock_leaves_nothing_staged_and_a_build_goes_on_there(remote: Remote) -> None:
    code, found = remote.run("lock", "tiny", "--complete", "--dry-run")
    assert code == 0, found
    assert not list(remote.tiny.store_path.glob(".imgbuild-staging/blobs/*/*"))
    assert remote.run("build", "tiny")[0] == 0


def test_a_lock_that_is_made_again_does_not_write_layers_that_are_there(remote: Remote) -> None:
    assert remote.run("build", "tiny")[0] == 0
    path = remote.tiny.root / "layers/tiny-app/patches/2.patch"
    path.write_bytes(path.read_bytes().replace(b"+KEYS = ('a', 'b')", b"+KEYS = ('a', 'c')"))
    code, found = remote.run("lock", "tiny")
    assert code == 0, found
    changed = {row["path"] for row in found["changes"] if row["path"].startswith("result.layers")}
    assert any("tiny-app" in name or "[2]" in name for name in changed)
    written = next(row["written"] for row in found["moved"] if row["place"] == "store")
    sizes = [layer["size"] for layer in locked(remote.tiny)["result"]["layers"]]
    assert written < sum(sizes) - max(sizes[0], sizes[1], sizes[3])
    assert remote.run("build", "tiny")[0] == 0


def test_a_registry_that_takes_inventories_and_drops_them_is_found_out(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with FaultRegistry() as forgetful:
        base_to(tiny, forgetful.host, monkeypatch)
        remote = Remote(tiny=tiny, host=forgetful.host, capture=capsys)
        forgetful.faults.add(Fault(action=VanishManifest(), kind="manifest", method="PUT", times=None))
        code, found = remote.run("inventory", remote.reference(BASE, "v1"), "--push")
    assert (code, found["code"]) == (5, "PROTOCOL")
    assert "not listed" in found["message"]
