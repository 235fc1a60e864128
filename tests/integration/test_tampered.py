"""Images and locks that somebody forged with care: each breaks one rule, and its check alone says so.

All digests, DiffIDs and documents of such an image agree with each other and with the lock's result, so that no other
check finds the change in its place: a rule that is switched off lets its row pass.
"""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import shutil
import tarfile
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from imgbuild import jsontext
from imgbuild.adapters.store import StagedStore
from imgbuild.content.tree import Tree
from imgbuild.digest import Digest
from imgbuild.errors import DigestMismatchError, FactMismatchError, InputError, MissingError
from imgbuild.model.identity import Verdict
from imgbuild.model.oci import Descriptor
from imgbuild.steps.assemble import assemble
from imgbuild.steps.base import open_base
from imgbuild.steps.inventories import take_inventories
from imgbuild.steps.known import KnownLayers
from imgbuild.steps.layers import read_file
from imgbuild.steps.verify import verify

from tests.support.forgery import LOCK, RECEIPT, Forgery
from tests.support.refusals import blob, flip, forge, locked
from tests.support.tiny import SITE, Tiny, copied

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from imgbuild.content.node import Node
    from imgbuild.model.lockfile import LockedBase

ZEROS = "sha256:" + "0" * 64
SERVER = "srv/app/server.py"
HELPER = f"{SITE}/helper/__init__.py"
HELPER_RECORD = f"{SITE}/helper-1.0.dist-info/RECORD"
GZIP_TIME = 4
"""Where a gzip header has its time, which changes nothing of what is packed (RFC 1952, 2.3.1)."""
TAMPERED: dict[str, tuple[Callable[[Forgery], object], set[str]]] = {}


@pytest.fixture
def tiny(tiny_built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tiny:
    """A built one."""
    return copied(tiny_built, tmp_path, monkeypatch)


def answers(tiny: Tiny) -> dict[str, Verdict]:
    """The required checks that do not match, each with its answer."""
    context = tiny.context()
    context.store.repair = False
    report = verify(context, tiny.project().load("tiny"), tiny.lock(), context.store.resolve("tiny"))
    assert report.ok is (not report.failed)
    return {finding.check: finding.verdict for finding in report.failed}


def tampered(*checks: str) -> Callable[[Callable[[Forgery], object]], Callable[[Forgery], object]]:
    """A row: a change to the image, and all checks that answer `differs`."""

    def add(change: Callable[[Forgery], object]) -> Callable[[Forgery], object]:
        TAMPERED[change.__name__] = (change, set(checks))
        return change

    return add


# Step 1: the base


@tampered("base.layers", "manifest")
def a_layer_of_the_base_is_packed_again(forgery: Forgery) -> None:
    raw = gzip.decompress(forgery.raw(1))
    forgery.store(1, gzip.compress(raw, mtime=0), raw)


@tampered("base.layers", "config", "manifest")
def the_config_has_another_diff_id_for_a_layer_of_the_base(forgery: Forgery) -> None:
    forgery.config["rootfs"]["diff_ids"][2] = ZEROS


@tampered("layers.count", "config", "manifest", "receipt")
def a_layer_more_than_the_definition_has(forgery: Forgery) -> None:
    forgery.manifest["layers"].append({})
    forgery.manifest["layers"][-1].update(forgery.manifest["layers"][0])
    forgery.config["rootfs"]["diff_ids"].append("")
    raw = archive({"opt/extra": b"extra"})
    forgery.store(len(forgery.manifest["layers"]) - 1, gzip.compress(raw, mtime=0), raw)


# Step 2: what config and manifest say


@tampered("config", "manifest")
def the_config_has_a_variable_more(forgery: Forgery) -> None:
    forgery.config["config"]["Env"].append("MORE=1")


@tampered("config", "manifest")
def the_config_has_another_time(forgery: Forgery) -> None:
    forgery.config["created"] = "2026-01-01T00:00:00Z"


@tampered("config", "manifest")
def the_config_lacks_a_field_of_the_base(forgery: Forgery) -> None:
    del forgery.config["x-unknown"]


@tampered("config", "manifest")
def the_history_of_a_layer_says_something_else(forgery: Forgery) -> None:
    forgery.config["history"][-1]["created_by"] = "imgbuild: another"


@tampered("manifest")
def the_manifest_has_an_annotation_more(forgery: Forgery) -> None:
    forgery.manifest["annotations"]["more"] = "1"


@tampered("manifest")
def the_manifest_names_another_base(forgery: Forgery) -> None:
    forgery.manifest["annotations"]["org.opencontainers.image.base.digest"] = ZEROS


# Step 3: the bytes of the layers


@tampered("layer.diff_id")
def the_config_has_another_diff_id_for_a_layer_of_ours(forgery: Forgery) -> None:
    forgery.config["rootfs"]["diff_ids"][forgery.index("tiny-app")] = ZEROS
    result(forgery, "tiny-app")["diff_id"] = ZEROS


@tampered("layer.digest")
def a_layer_of_ours_has_another_digest(forgery: Forgery) -> None:
    flip(forgery.path(forgery.index("tiny-app")), GZIP_TIME)


# Step 5: lock and receipt in the image


@tampered("embedded.lock")
def the_embedded_lock_has_a_byte_more(forgery: Forgery) -> None:
    forgery.put("imgbuild", LOCK, forgery.entries("imgbuild")[LOCK][1] + b"\n")


@tampered("embedded.lock")
def the_embedded_lock_has_a_result(forgery: Forgery) -> None:
    forgery.put("imgbuild", LOCK, jsontext.dumps(forgery.lock))


@tampered("embedded.lock")
def the_embedded_lock_is_not_there(forgery: Forgery) -> None:
    forgery.drop("imgbuild", LOCK)
    forgery.state(LOCK, None)


@tampered("embedded.lock")
def the_lock_is_not_the_one_that_the_image_was_made_from(forgery: Forgery) -> None:
    forgery.lock["facts"]["touched"][0]["mode"] = "0600"


@tampered("receipt")
def the_receipt_is_not_there(forgery: Forgery) -> None:
    forgery.drop("imgbuild", RECEIPT)


@tampered("receipt")
def the_receipt_is_none(forgery: Forgery) -> None:
    forgery.put("imgbuild", RECEIPT, b"{}\n")


@tampered("receipt")
def the_receipt_lacks_a_path(forgery: Forgery) -> None:
    forgery.state(HELPER, None)


@tampered("receipt")
def the_receipt_lacks_a_path_that_was_removed(forgery: Forgery) -> None:
    assert forgery.row("opt/unused")["change"] == "removed"
    forgery.state("opt/unused", None)


@tampered("receipt")
def the_receipt_has_a_path_that_no_layer_has(forgery: Forgery) -> None:
    forgery.state("etc/motd", {"change": "removed", "type": "file"})


def receipt_header(name: str, change: Callable[[dict[str, Any]], object]) -> None:
    """A row for what the receipt says besides its paths."""

    def forge_receipt(forgery: Forgery) -> None:
        value = forgery.receipt()
        change(value)
        forgery.put("imgbuild", RECEIPT, jsontext.dumps(value))

    TAMPERED[name] = (forge_receipt, {"receipt"})


receipt_header("the_receipt_names_another_image", lambda value: value.update(image="other"))
receipt_header("the_receipt_names_another_base", lambda value: value.update(base=ZEROS))
receipt_header("the_receipt_has_a_path_twice", lambda value: value["entries"].append(value["entries"][0]))
receipt_header("the_receipt_has_another_order", lambda value: value["entries"].reverse())


def receipt_row(field: str, path: str, value: object) -> None:
    """A row for one field of the receipt."""

    def change(forgery: Forgery) -> None:
        row = forgery.row(path)
        assert row.get(field) != value
        forgery.state(path, {**row, field: value})

    TAMPERED[f"the_receipt_has_another_{field}"] = (change, {"receipt"})


receipt_row("change", SERVER, "added")
receipt_row("type", SERVER, "symlink")
receipt_row("mode", SERVER, "0755")
receipt_row("owner", SERVER, "0:1")
receipt_row("size", SERVER, 1)
receipt_row("digest", SERVER, ZEROS)
receipt_row("before", SERVER, ZEROS)
receipt_row("link", "opt/tiny/lib/link.py", "boot.py")


def directory_row(field: str, value: object) -> None:
    """A row for a directory of the base that a layer changes, and the receipt does not name."""

    def change(forgery: Forgery) -> None:
        entries = forgery.entries("tiny-app")
        info, _ = entries["srv/app"]
        assert info.isdir()
        assert getattr(info, field) != value
        setattr(info, field, value)
        forgery.write("tiny-app", entries)

    TAMPERED[f"a_directory_of_the_base_gets_another_{field}"] = (change, {"receipt"})


directory_row("mode", 0o777)
directory_row("uid", 1000)
directory_row("gid", 1000)
directory_row("mtime", 1)
directory_row("pax_headers", {"SCHILY.xattr.user.more": "1"})


# Step 6: files that steps changed


@tampered("file")
def a_changed_file_has_other_bytes(forgery: Forgery) -> None:
    forgery.put("tiny-app", SERVER, b"LIMIT = 9\n")


@tampered("file")
def a_changed_file_is_as_the_base_has_it(forgery: Forgery) -> None:
    before = forgery.row(SERVER)["before"]
    (data,) = (data for info, data in forgery.layer(2).values() if str(Digest.of(data)) == before and info.isfile())
    forgery.put("tiny-app", SERVER, data)


@tampered("file")
def a_changed_file_is_removed(forgery: Forgery) -> None:
    forgery.drop("tiny-app", SERVER)
    entries = forgery.entries("tiny-app")
    forgery.write("tiny-app", {**entries, "marker": (tarfile.TarInfo("srv/app/.wh.server.py"), b"")})
    forgery.state(SERVER, {"change": "removed", "type": "file", "before": forgery.row(SERVER)["before"]})


@tampered("file")
def a_changed_file_is_a_link(forgery: Forgery) -> None:
    entries = forgery.entries("tiny-app")
    link = tarfile.TarInfo(SERVER)
    link.type, link.linkname, link.mode = tarfile.SYMTYPE, "keys.py", 0o777
    forgery.write("tiny-app", {**entries, SERVER: (link, b"")})
    facts = {"change": "replaced", "type": "symlink", "mode": "0777", "owner": "0:0", "link": "keys.py"}
    forgery.state(SERVER, {**facts, "before": forgery.row(SERVER)["before"]})


@tampered("file", "embedded.lock")
def the_lock_pins_another_last_state_of_a_file(forgery: Forgery) -> None:
    row = next(row for row in forgery.lock["pins"]["files"] if row["path"] == f"/{SERVER}")
    row["states"][-1] = ZEROS


# Step 7: installed packages


@tampered("packages.record")
def a_file_that_the_base_installed_has_other_bytes(forgery: Forgery) -> None:
    path = f"{SITE}/nccl_like-2.29.7.dist-info/METADATA"
    before = forgery.layer(1)[path][1]
    data = before + b"Summary: other\n"
    entries = forgery.entries("tiny-nccl")
    assert f"{SITE}/nccl_like-2.29.7.dist-info" in entries
    forgery.put("tiny-nccl", path, data, change="replaced", before=str(Digest.of(before)))


@tampered("packages.record")
def an_installed_file_has_other_bytes(forgery: Forgery) -> None:
    forgery.put("tiny-packages", HELPER, b"VALUE = 2\n")


@tampered("packages.record")
def an_installed_file_is_not_there(forgery: Forgery) -> None:
    forgery.drop("tiny-packages", HELPER)
    forgery.state(HELPER, None)


@tampered("packages.record")
def a_record_has_another_hash(forgery: Forgery) -> None:
    at = record(forgery).index(b"sha256=") + len(b"sha256=")
    rows = bytearray(record(forgery))
    rows[at] = ord("A" if rows[at] != ord("A") else "B")
    forgery.put("tiny-packages", HELPER_RECORD, bytes(rows))


@tampered("packages.record")
def a_record_has_another_size(forgery: Forgery) -> None:
    rows = record(forgery)
    assert b",10\n" in rows
    forgery.put("tiny-packages", HELPER_RECORD, rows.replace(b",10\n", b",11\n"))


@tampered("packages.single")
def a_second_version_of_a_distribution_lies_beside_it(forgery: Forgery) -> None:
    folder = f"{SITE}/helper-2.0.dist-info"
    forgery.folder("tiny-packages", folder)
    forgery.put("tiny-packages", f"{folder}/METADATA", b"Metadata-Version: 2.1\nName: helper\nVersion: 2.0\n")
    forgery.put("tiny-packages", f"{folder}/RECORD", b"helper-2.0.dist-info/RECORD,,\n")


# Nothing


@tampered()
def nothing_but_how_a_layer_of_ours_is_packed(forgery: Forgery) -> None:
    forgery.write("tiny-app", forgery.entries("tiny-app"))


@tampered()
def a_new_file_that_the_receipt_names(forgery: Forgery) -> None:
    forgery.put("tiny-adapter", "opt/tiny/more", b"more")


@pytest.mark.parametrize("name", TAMPERED)
def test_the_check_of_the_rule_that_is_broken_says_so_and_no_other(name: str, tiny: Tiny) -> None:
    change, checks = TAMPERED[name]
    forgery = Forgery(tiny)
    change(forgery)
    forgery.finish()
    assert answers(tiny) == dict.fromkeys(checks, Verdict.DIFFERS)


@pytest.mark.parametrize("field", ["name", "diff_id", "digest", "size"])
@pytest.mark.parametrize("layer", ["tiny-packages", "imgbuild"])
def test_a_result_of_another_layer_is_found_by_any_field(tiny: Tiny, layer: str, field: str) -> None:
    forgery = Forgery(tiny)
    row = result(forgery, layer)
    row[field] = {"name": "another", "size": row["size"] + 1}.get(field, ZEROS)
    forge(tiny, forgery.lock)
    assert answers(tiny) == {"lock.result": Verdict.DIFFERS}


@pytest.mark.parametrize("field", ["config", "manifest"])
def test_a_result_of_another_config_or_manifest_is_found(tiny: Tiny, field: str) -> None:
    value = locked(tiny)
    value["result"][field] = ZEROS
    forge(tiny, value)
    assert answers(tiny) == {"lock.result": Verdict.DIFFERS}


def test_an_image_that_is_whole_but_not_the_lock_s_is_found(tiny: Tiny) -> None:
    forgery = Forgery(tiny)
    before = locked(tiny)["result"]
    nothing_but_how_a_layer_of_ours_is_packed(forgery)
    forgery.lock["result"] = before
    forgery.finish(follow=False)
    assert answers(tiny) == {"lock.result": Verdict.DIFFERS}


def test_a_lock_without_a_result_verifies_nothing_as_a_yes(tiny: Tiny) -> None:
    value = locked(tiny)
    del value["result"]
    forge(tiny, value)
    assert answers(tiny) == {"lock.result": Verdict.NOT_CHECKED}


def result(forgery: Forgery, layer: str) -> dict[str, Any]:
    row = next(row for row in forgery.lock["result"]["layers"] if row["name"] == layer)
    assert isinstance(row, dict)
    return row


def record(forgery: Forgery) -> bytes:
    return forgery.entries("tiny-packages")[HELPER_RECORD][1]


def archive(contents: dict[str, bytes], *more: tuple[str, bytes]) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as target:
        for name, data in (*contents.items(), *more):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            target.addfile(info, io.BytesIO(data))
    return raw.getvalue()


# The base when it is read


def pin(tiny: Tiny, **changes: object) -> LockedBase:
    return msgspec.structs.replace(tiny.lock().pins.base, **changes)


def forget(tiny: Tiny) -> None:
    """A cache that knows nothing."""
    shutil.rmtree(tiny.cache_path)


def base_with(tiny: Tiny, diff_ids: Callable[[list[str]], list[str]]) -> LockedBase:
    """The pin of a base whose config lists other DiffIDs."""
    store = tiny.context().store
    manifest = json.loads(blob(tiny, tiny.lock().pins.base.manifest).read_bytes())
    config = json.loads(blob(tiny, manifest["config"]["digest"]).read_bytes())
    config["rootfs"]["diff_ids"] = diff_ids(config["rootfs"]["diff_ids"])
    digest, size = store.put([jsontext.compact(config)])
    manifest["config"].update(digest=str(digest), size=size)
    whole, length = store.put([jsontext.compact(manifest)])
    assert isinstance(store, StagedStore)
    store.publish()
    return pin(tiny, manifest=whole, manifest_size=length, config=digest)


@pytest.mark.parametrize(
    "diff_ids",
    [lambda ids: [ids[0], ZEROS, ids[2]], lambda ids: [ids[1], ids[0], ids[2]]],
    ids=["of no layer", "of one another"],
)
def test_a_layer_of_the_base_must_have_the_diff_id_of_the_config(
    tiny: Tiny, diff_ids: Callable[[list[str]], list[str]]
) -> None:
    other = base_with(tiny, diff_ids)
    forget(tiny)
    with pytest.raises(DigestMismatchError, match="does not have the DiffID of the config"):
        open_base(tiny.context(), other, platform="linux/arm64", facts=None)


def test_C58_a_layer_of_the_base_must_have_its_digest_when_it_is_read(tiny: Tiny) -> None:
    layer = locked(tiny)["facts"]["base_layers"][1]["digest"]
    actual = flip(blob(tiny, layer), GZIP_TIME)
    forget(tiny)
    with pytest.raises(DigestMismatchError) as caught:
        open_base(tiny.context(), pin(tiny), platform="linux/arm64", facts=None)
    assert caught.value.problem == "does not have its digest and size"
    assert layer in str(caught.value.expected)
    assert actual in str(caught.value.actual)


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("index", [0, 2])
def test_an_inventory_must_be_the_one_of_the_lock(tiny: Tiny, index: int, cold: bool) -> None:
    facts = tiny.lock().facts
    assert facts is not None
    known = [layer.inventory for layer in facts.base_layers]
    found = open_base(tiny.context(), pin(tiny), platform="linux/arm64", facts=facts)
    assert list(found.inventory_digests) == known
    if cold:
        forget(tiny)
    other = msgspec.structs.replace(facts.base_layers[index], inventory=Digest.parse(ZEROS))
    layers = [other if number == index else layer for number, layer in enumerate(facts.base_layers)]
    with pytest.raises(FactMismatchError, match="differs from the lock's") as caught:
        open_base(
            tiny.context(),
            pin(tiny),
            platform="linux/arm64",
            facts=msgspec.structs.replace(facts, base_layers=layers),
        )
    assert caught.value.subject == f"inventory of base layer {index}"
    assert (caught.value.expected, caught.value.actual) == (ZEROS, str(known[index]))


# Single files of a layer


def stored(tiny: Tiny, raw: bytes) -> tuple[Descriptor, Tree]:
    """A layer in the store, and the tree that it alone gives."""
    packed = gzip.compress(raw, mtime=0)
    digest, size = tiny.context().store.put([packed])
    layer = Descriptor(media_type="application/vnd.oci.image.layer.v1.tar+gzip", digest=digest, size=size)
    (taken,) = take_inventories(tiny.context(), (layer,), (Digest.of(raw),), None)
    tree = Tree()
    tree.apply(taken.inventory, 0)
    shutil.rmtree(tiny.cache_path / "blobs")
    return layer, tree


def node_of(tree: Tree, path: bytes) -> Node:
    node = tree.get(path)
    assert node is not None
    return node


@pytest.mark.parametrize("last", [b"the last one", b"last"])
def test_C10_of_several_entries_for_a_path_the_last_is_read(tiny: Tiny, last: bytes) -> None:
    layer, tree = stored(tiny, archive({"a": b"the first 1!"}, ("a", b"the second 2"), ("b", b"b"), ("a", last)))
    node = node_of(tree, b"a")
    for _ in range(2):
        # The second time it comes from the cache.
        assert read_file(tiny.context(), (layer,), node, "/a") == last


def test_a_file_that_its_layer_does_not_have_is_missing(tiny: Tiny) -> None:
    layer, tree = stored(tiny, archive({"a": b"one", "b": b"two"}))
    with pytest.raises(MissingError, match="is not in the layer that its inventory names"):
        read_file(tiny.context(), (layer,), changed(node_of(tree, b"a"), source=b"c"), "/a")


def test_a_file_of_a_layer_must_have_the_digest_of_its_inventory(tiny: Tiny) -> None:
    layer, tree = stored(tiny, archive({"a": b"one", "b": b"two"}))
    wanted = Digest.of(b"six")
    node = changed(node_of(tree, b"a"), sha256=wanted.encoded)
    with pytest.raises(DigestMismatchError, match="differs from the inventory") as caught:
        read_file(tiny.context(), (layer,), node, "/a")
    assert (caught.value.expected, caught.value.actual) == (str(wanted), str(Digest.of(b"one")))
    assert tiny.context().cache.get(wanted) is None


def test_C58_a_damaged_file_in_the_cache_is_read_again(tiny: Tiny) -> None:
    layer, tree = stored(tiny, archive({"a": b"one"}))
    node = node_of(tree, b"a")
    assert read_file(tiny.context(), (layer,), node, "/a") == b"one"
    flip(tiny.context().cache.path(Digest.of(b"one")))
    assert read_file(tiny.context(), (layer,), node, "/a") == b"one"


def changed(node: Node, **changes: Any) -> Node:
    return msgspec.structs.replace(node, **changes)


# Budgets


def assembled_with(tiny: Tiny, **limits: int) -> None:
    image = tiny.project().load("tiny")
    definition = image.definition
    smaller = msgspec.structs.replace(definition, limits=msgspec.structs.replace(definition.limits, **limits))
    context = tiny.context()
    with KnownLayers(context, None, blobs=True) as known:
        assemble(context, dataclasses.replace(image, definition=smaller), tiny.lock(), known)


@pytest.mark.parametrize("budget", ["bytes", "layers"])
def test_a_budget_may_be_used_up_and_not_exceeded(tiny: Tiny, budget: str) -> None:
    rows = locked(tiny)["result"]["layers"]
    facts = locked(tiny)["facts"]["base_layers"]
    used = {"bytes": sum(row["size"] for row in rows), "layers": len(facts) + len(rows)}[budget]
    assembled_with(tiny, **{budget: used})
    with pytest.raises(InputError) as caught:
        assembled_with(tiny, **{budget: used - 1})
    unit = " bytes" if budget == "bytes" else ""
    assert (caught.value.expected, caught.value.actual) == (f"at most {used - 1}{unit}", f"{used}{unit}")
