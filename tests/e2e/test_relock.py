"""`imgbuild build --relock`: a stale lock is made anew on the way, and written only when the image has passed."""

from __future__ import annotations

import gzip
import json
import shutil
import time
from typing import TYPE_CHECKING, Any

import pytest
from imgbuild.cli import run
from imgbuild.cli.schemas import shipped
from imgbuild.steps.known import KnownLayers
from jsonschema import Draft202012Validator

from tests.support.made import files
from tests.support.refusals import blob, digest_of, flip, forge, locked
from tests.support.tiny import LIBRARY

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.tiny import Tiny

ENTRY = "tiny-adapter/files/entry.sh"


def execute(tiny: Tiny, *arguments: str) -> int:
    return run([*arguments, "--project", str(tiny.root), "--cache", str(tiny.cache_path)])


def build(tiny: Tiny, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = execute(tiny, "build", "tiny", "--relock", "--json", *arguments)
    document = json.loads(capsys.readouterr().out)
    if "result" in document:
        Draft202012Validator(json.loads(shipped("build-result"))).validate(document)
    return code, document.get("result") or document["error"]


def lock_path(tiny: Tiny) -> Path:
    return tiny.project().lock_path("tiny")


def edit(tiny: Tiny, text: str) -> None:
    (tiny.root / "layers" / ENTRY).write_text(text)


def test_a_changed_file_is_locked_built_and_tagged_as_by_lock_and_build(
    tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(tiny, "#!/bin/sh\nexec true\n")
    assert execute(tiny, "lock", "tiny") == execute(tiny, "build", "tiny") == 0
    wanted = lock_path(tiny).read_bytes()
    for text in ("#!/bin/sh\nexec false\n", "#!/bin/sh\nexec true\n"):
        edit(tiny, text)
        assert execute(tiny, "build", "tiny") == 3
        code, result = build(tiny, capsys)
        assert code == 0
        assert result["relocked"]["written"] is True
        assert f"inputs[layers/{ENTRY}].digest" in [row["path"] for row in result["relocked"]["changes"]]
        assert result["manifest"] == locked(tiny)["result"]["manifest"]
        assert execute(tiny, "verify", "tiny") == 0
    assert lock_path(tiny).read_bytes() == wanted


def test_a_current_lock_is_used_as_it_is(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    before = lock_path(tiny).read_bytes()
    code, result = build(tiny, capsys)
    assert (code, "relocked" in result) == (0, False)
    assert lock_path(tiny).read_bytes() == before


def test_an_image_without_a_lock_gets_one(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    before = lock_path(tiny).read_bytes()
    lock_path(tiny).unlink()
    assert build(tiny, capsys)[1]["relocked"]["written"] is True
    assert lock_path(tiny).read_bytes() == before


def test_a_dry_run_says_what_would_change_and_writes_nothing(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    before = lock_path(tiny).read_bytes()
    edit(tiny, "other\n")
    code, result = build(tiny, capsys, "--dry-run")
    assert (code, result["relocked"]["written"], result["tags"]) == (0, False, [])
    assert result["relocked"]["changes"]
    assert lock_path(tiny).read_bytes() == before


def test_the_lock_of_an_image_that_does_not_pass_is_not_written(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    tiny.image["config"] = {"env": {"LD_PRELOAD": "/x.so"}}
    tiny.write()
    before = lock_path(tiny).read_bytes()
    code, result = build(tiny, capsys)
    assert (code, result["relocked"]["written"], result["tags"]) == (1, False, [])
    assert lock_path(tiny).read_bytes() == before
    assert execute(tiny, "build", "tiny", "--relock") == 1
    assert "fields changed, not written" in capsys.readouterr().out


def test_a_pin_that_would_have_to_be_resolved_is_refused_offline(
    tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    lock_path(tiny).unlink()
    edit(tiny, "other\n")
    path = tiny.root / "adapter.bundle"
    path.unlink()
    code, error = build(tiny, capsys, "--offline")
    assert code != 0
    assert error["code"]
    assert not lock_path(tiny).exists()


def test_C58_a_damaged_layer_is_made_anew_also_where_another_one_changed(
    tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(tiny, "build", "tiny") == 0
    layer = next(row["digest"] for row in locked(tiny)["result"]["layers"] if row["name"] == "tiny-nccl")
    flip(blob(tiny, layer))
    edit(tiny, "other\n")
    assert build(tiny, capsys)[0] == 0
    assert digest_of(blob(tiny, layer)) == layer
    assert execute(tiny, "verify", "tiny") == 0


def test_C58_a_layer_that_another_build_has_staged_does_not_count_as_the_damaged_one_that_is_published(
    tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(tiny, "build", "tiny") == 0
    layer = next(row["digest"] for row in locked(tiny)["result"]["layers"] if row["name"] == "tiny-nccl")
    path = blob(tiny, layer)
    staged = tiny.store_path / ".imgbuild-staging" / path.relative_to(tiny.store_path)
    staged.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, staged)
    flip(path)
    assert build(tiny, capsys)[0] == 0
    assert digest_of(path) == layer


def second_writer(tiny: Tiny) -> None:
    """A file of one layer that a later one replaces."""
    tiny.files |= {"tiny-adapter/files/both": b"first", "tiny-app/files/both": b"second"}
    tiny.layers["tiny-adapter"].append({"kind": "file", "source": "files/both", "path": "/opt/both"})
    replacing = {"kind": "file", "source": "files/both", "path": "/opt/both", "replaces": True}
    tiny.layers["tiny-app"].append(replacing)
    tiny.write()


def test_an_edit_of_a_file_that_a_later_layer_replaces_makes_its_own_layer_anew(
    tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    second_writer(tiny)
    assert build(tiny, capsys)[0] == 0
    before = {row["name"]: row["digest"] for row in locked(tiny)["result"]["layers"]}
    (tiny.root / "layers/tiny-adapter/files/both").write_text("edited")
    assert build(tiny, capsys)[0] == 0
    after = {row["name"]: row["digest"] for row in locked(tiny)["result"]["layers"]}
    assert {name for name in after if after[name] != before[name]} == {"tiny-adapter", "imgbuild"}
    shutil.rmtree(tiny.cache_path / "results")
    shutil.rmtree(tiny.store_path / "blobs")
    tiny.write_base()
    assert execute(tiny, "build", "tiny") == 0


def test_a_file_that_one_layer_writes_may_be_removed_by_a_later_one(
    tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    second_writer(tiny)
    tiny.layers["tiny-app"][-1] = {"kind": "remove", "paths": ["/opt/both"]}
    tiny.write()
    assert build(tiny, capsys)[0] == 0


def test_a_library_that_is_swapped_and_then_replaced_by_a_later_layer_is_no_bug_of_ours(
    tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.files["tiny-last/files/lib"] = b"text"
    path = f"/{LIBRARY}"
    tiny.layers["tiny-last"] = [{"kind": "file", "source": "files/lib", "path": path, "replaces": True}]
    tiny.image["layers"] = [*tiny.layers]
    tiny.write()
    code, result = build(tiny, capsys)
    assert code in {1, 3}, result


def test_a_base_that_stays_must_give_the_facts_that_the_lock_has(
    tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(tiny, "build", "tiny") == 0
    value = locked(tiny)
    value["facts"]["base_tree"] = "sha256:" + "0" * 64
    forge(tiny, value)
    edit(tiny, "other\n")
    code, error = build(tiny, capsys)
    assert (code, error["code"]) == (4, "FACT_MISMATCH")
    assert "--complete" in error["hint"]


@pytest.mark.parametrize("damage", ["flipped", "cut", "another"])
def test_C58_a_damaged_layer_without_an_inventory_is_made_anew_however_slow_hashing_is(
    tiny: Tiny, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    assert execute(tiny, "build", "tiny") == 0
    layer = next(row for row in locked(tiny)["result"]["layers"] if row["name"] == "tiny-nccl")
    path = blob(tiny, layer["digest"])
    raw = path.read_bytes()
    if damage == "flipped":
        flip(path)
    else:
        path.write_bytes(raw[:-50] if damage == "cut" else gzip.compress(bytes(20), 0, mtime=0).ljust(len(raw), b"x"))
    for inventory in (tiny.cache_path / "inventories").glob(f"*.{layer['inventory'].removeprefix('sha256:')}"):
        inventory.unlink()
    honest = KnownLayers._is_whole

    def slow(self: KnownLayers, row: Any) -> bool:
        time.sleep(0.3)
        return honest(self, row)

    monkeypatch.setattr(KnownLayers, "_is_whole", slow)
    assert execute(tiny, "build", "tiny") == 0
    assert digest_of(path) == layer["digest"]


def test_a_file_and_then_its_folder_may_be_removed(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    tiny.base = [*tiny.base, files({"old/d/a": b"1", "old/d/b": b"2"})]
    tiny.layers["tiny-app"].append({"kind": "remove", "paths": ["/old/d/a", "/old/d"]})
    tiny.write()
    lock_path(tiny).unlink()
    code, result = build(tiny, capsys)
    assert code == 0, result
