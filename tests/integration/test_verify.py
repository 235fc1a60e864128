"""Static verification of images that are broken, damaged, hostile or short of something: all findings, no exception."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from imgbuild import jsontext
from imgbuild.adapters.store import StagedStore
from imgbuild.cli import run
from imgbuild.digest import Digest
from imgbuild.errors import DocumentError, FactMismatchError, LayoutError, MissingError
from imgbuild.model.identity import CHECKS, LIBRARY_CHECKS, Finding, Verdict
from imgbuild.model.oci import Descriptor
from imgbuild.steps.verify import verify

from tests.support.elf_builder import shared_object
from tests.support.made import library
from tests.support.refusals import blob, flip, locked, relock, swap_library
from tests.support.tiny import LIBRARY, SITE, Tiny, base_layers, copied

if TYPE_CHECKING:
    from collections.abc import Callable

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "verification.md"


@pytest.fixture
def tiny(tiny_built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tiny:
    """A built one."""
    return copied(tiny_built, tmp_path, monkeypatch)


def build(tiny: Tiny) -> int:
    return run(["build", "tiny", "-q", "--project", str(tiny.root), "--cache", str(tiny.cache_path)])


def findings(tiny: Tiny, descriptor: Descriptor | None = None) -> tuple[Finding, ...]:
    context = tiny.context()
    context.store.repair = False
    descriptor = descriptor or context.store.resolve("tiny")
    return verify(context, tiny.project().load("tiny"), tiny.lock(), descriptor).findings


def built(tiny: Tiny) -> tuple[Finding, ...]:
    """The findings of a build that is not published, by the program's own report."""
    return tiny.build(dry_run=True).report.findings


def named(found: tuple[Finding, ...], check: str) -> list[Finding]:
    return [finding for finding in found if finding.check == check]


def one(found: tuple[Finding, ...], check: str) -> Finding:
    (finding,) = named(found, check)
    return finding


def verdicts(found: tuple[Finding, ...]) -> dict[str, Verdict]:
    """The worst answer of each check."""
    order = [Verdict.MATCH, Verdict.NOT_CHECKED, Verdict.DIFFERS]
    worst: dict[str, Verdict] = {}
    for finding in found:
        worst[finding.check] = max(worst.get(finding.check, Verdict.MATCH), finding.verdict, key=order.index)
    return worst


SOMETIMES = {"image", "base.present", "base.inventory", "base.tree", "pushed.manifest", "pushed.blobs"}
EVERY = {name for name in CHECKS if name not in SOMETIMES} | {
    f"library.nccl.{name}" for name in LIBRARY_CHECKS if name not in {"path", "elf", "accept", "process"}
}
"""The checks that every report on tiny has."""


def document(tiny: Tiny, digest: object) -> dict[str, Any]:
    value = json.loads(blob(tiny, digest).read_bytes())
    assert isinstance(value, dict)
    return value


def manifest_digest(tiny: Tiny) -> Digest:
    return tiny.context().store.resolve("tiny").digest


def put_image(tiny: Tiny, manifest: dict[str, Any], config: dict[str, Any] | None = None) -> Descriptor:
    """Write an image into the store as somebody else might have."""
    store = tiny.context().store
    if config is not None:
        digest, size = store.put([jsontext.compact(config)])
        manifest["config"].update(digest=str(digest), size=size)
    digest, size = store.put([jsontext.compact(manifest)])
    assert isinstance(store, StagedStore)
    store.publish()
    descriptor = Descriptor(media_type=manifest["mediaType"], digest=digest, size=size)
    store.tag("tiny", descriptor)
    return descriptor


def archive(entries: list[tuple[str, bytes | None]]) -> bytes:
    """A layer that Python's tarfile writes; an entry without bytes is a hard link to what is not there."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as target:
        for name, data in entries:
            info = tarfile.TarInfo(name)
            if data is None:
                info.type, info.linkname = tarfile.LNKTYPE, "nowhere"
            info.size = len(data or b"")
            target.addfile(info, io.BytesIO(data or b""))
    return raw.getvalue()


def swap_layer(tiny: Tiny, name: str, entries: list[tuple[str, bytes | None]]) -> None:
    """The image with other bytes in one of its layers, with which its documents agree."""
    manifest = document(tiny, manifest_digest(tiny))
    config = document(tiny, manifest["config"]["digest"])
    names = [row["name"] for row in locked(tiny)["result"]["layers"]]
    index = len(manifest["layers"]) - len(names) + names.index(name)
    raw = archive(entries)
    digest, size = tiny.context().store.put([gzip.compress(raw, mtime=0)])
    manifest["layers"][index].update(digest=str(digest), size=size)
    config["rootfs"]["diff_ids"][index] = str(Digest.of(raw))
    put_image(tiny, manifest, config)


# What every report has


def test_a_report_on_a_whole_image_has_every_check_and_matches(tiny: Tiny) -> None:
    found = findings(tiny)
    assert {finding.check for finding in found} == EVERY
    assert {finding.verdict for finding in found} == {Verdict.MATCH}


def test_the_documentation_names_every_check_and_no_other() -> None:
    text = DOCUMENTATION.read_text()
    names = set(CHECKS) | {f"library.NAME.{name}" for name in LIBRARY_CHECKS}
    assert names <= set(re.findall(r"`([a-zA-Z_.]+)`", text)), names - set(re.findall(r"`([a-zA-Z_.]+)`", text))
    assert set(re.findall(r"`(library\.NAME\.[a-z_]+)`", text)) <= names


# Images that are short of something


@pytest.mark.parametrize("change", [lambda ids: ids[:-1], lambda ids: [*ids, ids[0]], lambda _: []])
def test_another_number_of_diff_ids_than_layers_is_a_finding_and_an_error(
    tiny: Tiny, change: Callable[[list[str]], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = document(tiny, manifest_digest(tiny))
    config = document(tiny, manifest["config"]["digest"])
    config["rootfs"]["diff_ids"] = change(config["rootfs"]["diff_ids"])
    put_image(tiny, manifest, config)
    found = findings(tiny)
    image = one(found, "image")
    assert image.verdict is Verdict.DIFFERS
    assert (image.expected, image.actual) == (
        f"{len(manifest['layers'])} DiffIDs",
        str(len(config["rootfs"]["diff_ids"])),
    )
    assert {finding.check for finding in found} == EVERY | {"image"}
    assert {finding.verdict for finding in found if finding is not image} == {Verdict.NOT_CHECKED}
    options = ["--project", str(tiny.root), "--cache", str(tiny.cache_path)]
    assert run(["verify", "tiny", *options]) == 1
    capsys.readouterr()
    assert run(["inventory", "tiny", *options]) == 4
    assert "lists another number of DiffIDs" in capsys.readouterr().err


def test_a_base_with_another_number_of_diff_ids_is_refused(tiny: Tiny) -> None:
    pin = locked(tiny)["pins"]["base"]
    manifest = document(tiny, pin["manifest"])
    config = document(tiny, pin["config"])
    config["rootfs"]["diff_ids"].pop()
    descriptor = put_image(tiny, manifest, config)
    value = locked(tiny)
    value["pins"]["base"].update(
        manifest=str(descriptor.digest), manifest_size=descriptor.size, config=manifest["config"]["digest"]
    )
    tiny.project().lock_path("tiny").write_bytes(jsontext.dumps(value))
    with pytest.raises(LayoutError, match="lists another number of DiffIDs"):
        findings(tiny, descriptor)


def test_a_missing_added_layer_is_not_checked_and_the_rest_is_reported(tiny: Tiny) -> None:
    layer = locked(tiny)["result"]["layers"][1]["digest"]
    blob(tiny, layer).unlink()
    found = findings(tiny)
    assert {finding.check for finding in found} == EVERY
    row = next(finding for finding in named(found, "layer.digest") if finding.subject == f"layer {layer}")
    assert row.verdict is Verdict.NOT_CHECKED
    assert "is not in the store; " in (row.reason or "")
    answers = verdicts(found)
    stated = {"base.layers", "base.blob", "layers.count", "config", "manifest", "lock.result"}
    assert {answers[name] for name in stated} == {Verdict.MATCH}
    assert {answers[name] for name in EVERY - stated} == {Verdict.NOT_CHECKED}
    assert sum(finding.verdict is Verdict.MATCH for finding in named(found, "layer.diff_id")) == 4


def test_C58_a_damaged_layer_leaves_no_check_out_of_the_report(tiny: Tiny) -> None:
    layer = locked(tiny)["result"]["layers"][1]["digest"]
    path = blob(tiny, layer)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-20])
    found = findings(tiny)
    assert {finding.check for finding in found} == EVERY
    row = next(finding for finding in named(found, "layer.digest") if finding.verdict is not Verdict.MATCH)
    assert row.verdict is Verdict.DIFFERS
    assert row.actual == f"{size - 20} bytes"
    assert "`imgbuild build` makes what it built anew" in (row.reason or "")
    assert path.exists()
    answers = verdicts(found)
    assert answers["config"] is answers["manifest"] is answers["lock.result"] is Verdict.MATCH
    assert answers["receipt"] is answers["embedded.lock"] is answers["file"] is Verdict.NOT_CHECKED


@pytest.mark.parametrize("count", [1, 3, 4])
def test_an_image_with_fewer_layers_is_compared_with_the_files_of_the_base(tiny: Tiny, count: int) -> None:
    manifest = document(tiny, manifest_digest(tiny))
    config = document(tiny, manifest["config"]["digest"])
    manifest["layers"] = manifest["layers"][:count]
    config["rootfs"]["diff_ids"] = config["rootfs"]["diff_ids"][:count]
    put_image(tiny, manifest, config)
    shutil.rmtree(tiny.cache_path / "blobs")
    found = findings(tiny)
    answers = verdicts(found)
    assert set(answers) - {"library.nccl.accept"} == (EVERY if count > 3 else EVERY - {"layer.digest", "layer.diff_id"})
    assert answers["packages.record"] is Verdict.MATCH
    assert answers["layers.count"] is answers["lock.result"] is answers["embedded.lock"] is Verdict.DIFFERS
    assert one(found, "lock.result").subject == "result.layers"
    assert (answers["base.layers"] is Verdict.MATCH) == (count >= 3)


@pytest.mark.parametrize("change", [lambda _: [], lambda rows: rows[:-1], lambda rows: [*rows, rows[0]]])
def test_facts_of_another_number_of_base_layers_are_a_typed_error(
    tiny: Tiny, change: Callable[[list[Any]], list[Any]]
) -> None:
    value = locked(tiny)
    value["facts"]["base_layers"] = change(value["facts"]["base_layers"])
    tiny.project().lock_path("tiny").write_bytes(jsontext.dumps(value))
    with pytest.raises(FactMismatchError, match="facts of another number of base layers"):
        findings(tiny)


@pytest.mark.parametrize("target", [None, "/dev/zero"])
def test_an_added_layer_that_is_no_file_is_a_finding_and_not_waited_for(tiny: Tiny, target: str | None) -> None:
    layer = locked(tiny)["result"]["layers"][1]["digest"]
    path = blob(tiny, layer)
    path.unlink()
    if target is None:
        os.mkfifo(path)
    else:
        path.symlink_to(target)
    rows = [row for row in named(findings(tiny), "layer.digest") if row.verdict is not Verdict.MATCH]
    assert [row.subject for row in rows] == [f"layer {layer}"]
    assert "cannot be read: it is" in (rows[0].reason or "")


def test_C15_an_added_layer_with_sha512_digests_is_checked_by_them(tiny: Tiny) -> None:
    manifest = document(tiny, manifest_digest(tiny))
    config = document(tiny, manifest["config"]["digest"])
    old = blob(tiny, manifest["layers"][-1]["digest"])
    digest = f"sha512:{hashlib.sha512(old.read_bytes()).hexdigest()}"
    diff_id = f"sha512:{hashlib.sha512(gzip.decompress(old.read_bytes())).hexdigest()}"
    path = tiny.store_path / "blobs" / digest.replace(":", "/")
    path.parent.mkdir()
    old.rename(path)
    manifest["layers"][-1]["digest"] = digest
    config["rootfs"]["diff_ids"][-1] = diff_id
    put_image(tiny, manifest, config)
    answers = verdicts(findings(tiny))
    assert answers["layer.digest"] is answers["layer.diff_id"] is Verdict.MATCH
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()) + bytes(512)))
    answers = verdicts(findings(tiny))
    assert answers["layer.digest"] is Verdict.DIFFERS


def test_a_config_that_is_not_there_leaves_no_check_out_of_the_report(tiny: Tiny) -> None:
    blob(tiny, locked(tiny)["result"]["config"]).unlink()
    found = findings(tiny)
    assert {finding.check for finding in found} == EVERY | {"image"}
    assert {finding.verdict for finding in found} == {Verdict.NOT_CHECKED}


def test_layers_that_cannot_be_merged_are_a_finding(tiny: Tiny) -> None:
    swap_layer(tiny, "imgbuild", [("a", None)])
    found = findings(tiny)
    assert {finding.check for finding in found} == EVERY | {"image"}
    assert "hard link" in (one(found, "image").reason or "")
    assert one(found, "lock.result").subject == "result.layers[imgbuild].diff_id"
    assert verdicts(found)["environment"] is Verdict.NOT_CHECKED


def test_a_file_of_the_base_that_cannot_be_read_leaves_only_its_step_unchecked(tiny: Tiny) -> None:
    facts = locked(tiny)["facts"]
    blob(tiny, facts["base_layers"][1]["digest"]).unlink()
    merged = Digest.parse(facts["base_tree"]).encoded
    for path in (tiny.cache_path / "blobs" / "sha256").iterdir():
        if path.name != merged:
            path.unlink()
    found = findings(tiny)
    answers = verdicts(found)
    assert answers["packages.record"] is answers["packages.single"] is Verdict.NOT_CHECKED
    assert answers["receipt"] is answers["library.nccl.strings"] is Verdict.MATCH
    base = one(found, "base.blob")
    assert base.verdict is Verdict.NOT_CHECKED
    assert "copy the base into the store again" in (base.reason or "")


def test_a_base_whose_merged_view_can_no_longer_be_made_cannot_be_checked_at_all(tiny: Tiny) -> None:
    lost = locked(tiny)["facts"]["base_layers"][1]["digest"]
    blob(tiny, lost).unlink()
    shutil.rmtree(tiny.cache_path / "blobs")
    with pytest.raises(MissingError, match=f"layer {lost}: is not in the store"):
        findings(tiny)


def test_C58_a_damaged_base_layer_says_what_to_do(tiny: Tiny) -> None:
    layer = locked(tiny)["facts"]["base_layers"][0]["digest"]
    actual = flip(blob(tiny, layer))
    base = one(findings(tiny), "base.blob")
    assert (base.verdict, base.expected, base.actual) == (Verdict.DIFFERS, layer, actual)
    assert "copy the base into the store again" in (base.reason or "")


def test_a_base_that_is_not_in_the_store_is_an_error(tiny: Tiny) -> None:
    blob(tiny, locked(tiny)["pins"]["base"]["manifest"]).unlink()
    with pytest.raises(MissingError, match="is not in the store"):
        findings(tiny)


def test_another_result_is_named_by_its_first_difference(tiny: Tiny) -> None:
    value = locked(tiny)
    wanted = "sha256:" + "0" * 64
    actual = value["result"]["layers"][2]["diff_id"]
    value["result"]["layers"][2]["diff_id"] = wanted
    tiny.project().lock_path("tiny").write_bytes(jsontext.dumps(value))
    result = one(findings(tiny), "lock.result")
    assert (result.verdict, result.subject) == (
        Verdict.DIFFERS,
        f"result.layers[{value['result']['layers'][2]['name']}].diff_id",
    )
    assert (result.expected, result.actual) == (wanted, actual)


# Two entries for one path


def test_C10_the_bytes_of_a_path_listed_twice_are_those_that_the_tree_has(tiny: Tiny) -> None:
    swap_layer(tiny, "tiny-nccl", [(LIBRARY, library("2.30.6")), (LIBRARY, library("2.30.7"))])
    found = findings(tiny)
    assert one(found, "library.nccl.strings").actual == "holds 'NCCL version 2.30.7'"
    assert one(found, "library.nccl.digest").verdict is Verdict.MATCH


def test_C10_bytes_that_are_not_the_trees_do_not_count_for_a_string(tiny: Tiny) -> None:
    swap_layer(tiny, "tiny-nccl", [(LIBRARY, library("2.30.7")), (LIBRARY, library("2.30.6"))])
    found = findings(tiny)
    assert one(found, "library.nccl.strings").actual == "lacks 'NCCL version 2.30.7'"
    assert one(found, "library.nccl.digest").verdict is Verdict.DIFFERS


@pytest.mark.parametrize("last", ["the lock, as a stranger has it", None])
def test_C10_a_small_file_listed_twice_is_the_last_one(tiny: Tiny, last: str | None) -> None:
    path = "usr/share/imgbuild/tiny.lock.json"
    lock = tiny.lock()
    assert lock.facts is not None
    whole = lock.embedded(lock.facts)
    other = b"x" * len(whole)
    swap_layer(tiny, "imgbuild", [(path, other), (path, whole)] if last is None else [(path, whole), (path, other)])
    shutil.rmtree(tiny.cache_path / "blobs")
    assert (one(findings(tiny), "embedded.lock").verdict is Verdict.MATCH) is (last is None)


# Packages


def dist_info(name: str, record: bytes) -> dict[str, bytes]:
    folder = f"{SITE}/{name}-1.0.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode()
    return {f"{folder}/METADATA": metadata, f"{folder}/RECORD": record}


def with_base(tiny: Tiny, extra: dict[str, bytes]) -> tuple[Finding, ...]:
    tiny.base = base_layers(extra=extra)
    relock(tiny, "base")
    return built(tiny)


def test_rows_without_a_hash_are_counted_apart(tiny: Tiny) -> None:
    record = one(findings(tiny), "packages.record")
    # Two of nccl-like in the base, three of the wheel and one that its installer adds; each RECORD lists itself.
    assert record.subject == "6 RECORD rows of 2 distributions"
    assert record.reason == "2 rows have no hash, as a RECORD's own, and were not compared"


def test_rows_with_another_hash_are_not_checked_and_do_not_fail(tiny: Tiny) -> None:
    found = with_base(tiny, {**dist_info("old", b"old.py,md5=AAAA,4\n"), f"{SITE}/old.py": b"old\n"})
    row = next(finding for finding in named(found, "packages.record") if finding.verdict is Verdict.NOT_CHECKED)
    assert (row.subject, row.required) == ("1 RECORD rows with another hash", False)
    assert "hash by md5" in (row.reason or "")


def test_a_record_that_cannot_be_read_in_the_base_does_not_fail(tiny: Tiny) -> None:
    found = with_base(tiny, dist_info("broken", b"one,two\n"))
    row = next(finding for finding in named(found, "packages.record") if finding.verdict is Verdict.NOT_CHECKED)
    assert (row.required, row.reason) == (False, "they are so in the base")


def test_a_distribution_of_ours_whose_record_cannot_be_read_fails(tiny: Tiny) -> None:
    for path, data in dist_info("broken", b"a row,with,too,many,fields\n").items():
        name = f"files/{path.rpartition('/')[2]}"
        tiny.files[f"tiny-adapter/{name}"] = data
        tiny.layers["tiny-adapter"].append({"kind": "file", "source": name, "path": f"/{path}"})
    relock(tiny)
    unreadable_and_ours(built(tiny))


def test_a_distribution_of_the_base_that_a_layer_of_ours_broke_fails(tiny: Tiny) -> None:
    removal = {"kind": "remove", "paths": [f"/{SITE}/broken-1.0.dist-info/RECORD"]}
    tiny.layers["tiny-adapter"].append(removal)
    unreadable_and_ours(with_base(tiny, dist_info("broken", b"one,two\n")))


def unreadable_and_ours(found: tuple[Finding, ...]) -> None:
    row = next(finding for finding in named(found, "packages.record") if finding.verdict is Verdict.NOT_CHECKED)
    assert row.required
    assert row.subject.startswith(f"/{SITE}/broken-1.0.dist-info has ")


# The library


CONSUMER = f"{SITE}/torch/lib/libtorch_cuda.so"


def without_consumer(tiny: Tiny, **identity: Any) -> tuple[Finding, ...]:
    tiny.image = {"library": {"nccl": {**identity_of(tiny), **identity}}}
    changes = {CONSUMER: shared_object(soname="libtorch_cuda.so", needed=("libc.so.6",))}
    return with_base(tiny, changes)


def identity_of(tiny: Tiny) -> dict[str, Any]:
    value = msgspec.to_builtins(tiny.project().load("tiny").definition.library["nccl"])
    assert isinstance(value, dict)
    return value


@pytest.mark.parametrize("check", ["symbols", "consumer"])
def test_a_check_that_found_nothing_to_look_at_fails(tiny: Tiny, check: str) -> None:
    row = one(without_consumer(tiny), f"library.nccl.{check}")
    assert (row.verdict, row.required) == (Verdict.NOT_CHECKED, True)
    assert 'consumers = "none"' in (row.reason or "")


def test_a_definition_may_say_that_nothing_needs_the_library(tiny: Tiny) -> None:
    found = without_consumer(tiny, consumers="none")
    assert one(found, "library.nccl.consumer").verdict is Verdict.MATCH
    assert one(found, "library.nccl.symbols").verdict is Verdict.MATCH


def test_a_definition_that_says_wrongly_that_nothing_needs_the_library_is_found_out(tiny: Tiny) -> None:
    tiny.image = {"library": {"nccl": {**identity_of(tiny), "consumers": "none"}}}
    relock(tiny)
    rows = named(built(tiny), "library.nccl.consumer")
    assert [row.verdict for row in rows] == [Verdict.DIFFERS, Verdict.MATCH]
    assert rows[0].actual == f"1 do, the first /{CONSUMER}"


def test_a_library_that_needs_no_version_is_said_so(tiny: Tiny) -> None:
    swap_library(tiny, library("2.30.7", versions_needed={}))
    row = one(built(tiny), "library.nccl.versions")
    assert (row.verdict, row.actual, row.reason) == (Verdict.MATCH, "needs no version", None)


@pytest.mark.parametrize("strings", [[], [""], None])
def test_a_definition_must_name_a_string(tiny: Tiny, strings: list[str] | None) -> None:
    identity = {**identity_of(tiny), "strings": strings}
    if strings is None:
        del identity["strings"]
    tiny.image = {"library": {"nccl": identity}}
    tiny.write()
    with pytest.raises(DocumentError, match="strings"):
        tiny.project().load("tiny")


def test_another_provider_and_a_needless_acceptance_say_what_to_do(tiny: Tiny) -> None:
    identity = identity_of(tiny)
    identity["accept"] = [{"path": "/opt/none", "reason": "it was there once upon a time"}]
    tiny.image = {"library": {"nccl": identity}}
    relock(tiny)
    found = built(tiny)
    advice = "remove it, or accept it under [[library.nccl.accept]] with a reason"
    assert one(found, "library.nccl.provider").reason == advice
    assert one(found, "library.nccl.accept").reason == "take its [[library.nccl.accept]] out of the definition"


# Other readers of an image


def execute(tiny: Tiny, *arguments: str) -> int:
    return run([*arguments, "--project", str(tiny.root), "--cache", str(tiny.cache_path)])


@pytest.mark.parametrize(
    ("which", "says", "hint"),
    [
        ("layer", "is no manifest", "give the digest of a manifest"),
        ("config", "is a config, not a manifest", "give the digest of a manifest"),
    ],
)
@pytest.mark.parametrize("command", [("inventory",), ("verify", "tiny", "--digest")])
def test_a_digest_of_something_else_is_refused(
    tiny: Tiny, command: tuple[str, ...], which: str, says: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = locked(tiny)["result"]
    digest = result["config"] if which == "config" else result["layers"][0]["digest"]
    assert execute(tiny, *command, digest) == 4
    err = capsys.readouterr().err
    assert f"error[LAYOUT_INVALID]: blob {digest}: {says}" in err
    assert f"hint: {hint}" in err


def test_a_store_that_is_a_file_is_refused(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(tiny.store_path)
    tiny.store_path.write_bytes(b"")
    assert execute(tiny, "build", "tiny", "--offline") == 4
    assert "is not a folder" in capsys.readouterr().err
    assert tiny.store_path.read_bytes() == b""


def test_an_inventory_says_which_layers_it_read(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    kept = locked(tiny)["facts"]["base_layers"][0]["inventory"]
    for path in (tiny.cache_path / "inventories").iterdir():
        if path.suffix != f".{kept.removeprefix('sha256:')}":
            path.unlink()
    first = [("cached" if index == 0 else "read") for index in range(8)]
    for wanted in (first, ["cached"] * 8):
        capsys.readouterr()
        assert execute(tiny, "inventory", "tiny", "--json") == 0
        rows = json.loads(capsys.readouterr().out)["result"]["layers"]
        assert [row["taken"] for row in rows] == wanted
    assert execute(tiny, "inventory", "tiny") == 0
    assert capsys.readouterr().out.count("  cached  ") == 8
