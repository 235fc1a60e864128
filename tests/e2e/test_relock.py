"""`imgbuild build --relock`: a stale lock is made anew on the way, and written only when the image has passed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from imgbuild.cli import run
from imgbuild.cli.schemas import shipped
from jsonschema import Draft202012Validator

from tests.support.refusals import blob, digest_of, flip, locked

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

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
