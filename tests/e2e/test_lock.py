"""`imgbuild lock` through the command line: what it keeps, what it resolves anew, and what it says."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from imgbuild.cli import run
from imgbuild.cli.schemas import shipped
from jsonschema import Draft202012Validator

from tests.support.refusals import forge, locked, source

if TYPE_CHECKING:
    from tests.support.tiny import Tiny


def lock(tiny: Tiny, *arguments: str) -> int:
    return run(["lock", "tiny", "--project", str(tiny.root), "--cache", str(tiny.cache_path), *arguments])


def result(tiny: Tiny, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = lock(tiny, "--json", *arguments)
    found: dict[str, Any] = json.loads(capsys.readouterr().out)["result"]
    return code, found


def test_a_current_lock_is_left_alone(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    before = tiny.project().lock_path("tiny").read_bytes()
    assert result(tiny, capsys)[1]["status"] == "current"
    assert tiny.project().lock_path("tiny").read_bytes() == before


def test_making_the_lock_anew_gives_the_same_bytes(tiny: Tiny) -> None:
    path = tiny.project().lock_path("tiny")
    before = path.read_bytes()
    path.unlink()
    assert lock(tiny) == 0
    assert path.read_bytes() == before


def test_check_says_that_there_is_no_lock(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    tiny.project().lock_path("tiny").unlink()
    code, found = result(tiny, capsys, "--check")
    assert (code, found["status"]) == (1, "absent")


def test_check_names_the_first_input_that_changed(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    path = tiny.root / "layers" / "tiny-app" / "patches" / "1.patch"
    path.write_bytes(path.read_bytes() + b"\n")
    code, found = result(tiny, capsys, "--check")
    assert (code, found["status"]) == (1, "stale")
    assert found["reason"].startswith("layers/tiny-app/patches/1.patch was sha256:")


def test_complete_writes_down_the_facts_and_the_result_and_nothing_else(
    tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tiny.project().lock_path("tiny")
    whole = path.read_bytes()
    value = locked(tiny)
    del value["facts"], value["result"]
    forge(tiny, value)
    assert result(tiny, capsys, "--check")[1]["status"] == "incomplete"
    assert lock(tiny, "--complete") == 0
    assert path.read_bytes() == whole


def test_a_lock_without_facts_builds_the_same_image(tiny: Tiny) -> None:
    manifest = locked(tiny)["result"]["manifest"]
    value = locked(tiny)
    del value["facts"], value["result"]
    forge(tiny, value)
    assert lock(tiny, "--complete") == 0
    assert locked(tiny)["result"]["manifest"] == manifest


def test_a_dry_run_writes_nothing(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    tiny.image["config"] = {"workdir": "/opt"}
    tiny.write()
    before = tiny.project().lock_path("tiny").read_bytes()
    assert result(tiny, capsys, "--dry-run")[1]["status"] == "would-write"
    assert tiny.project().lock_path("tiny").read_bytes() == before


def commit_more(tiny: Tiny) -> str:
    work = tiny.root / "adapter-work"
    (work / "lib" / "mod.py").write_text("X = 2\n")
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@t"]
    subprocess.run([*git, "commit", "-qam", "two"], cwd=work, check=True)
    subprocess.run([*git, "bundle", "create", "-q", "../adapter.bundle", "main"], cwd=work, check=True)
    return subprocess.run(
        [*git, "rev-parse", "main"], cwd=work, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_update_moves_one_pin_and_what_follows_from_it(tiny: Tiny) -> None:
    commit = commit_more(tiny)
    before = locked(tiny)
    assert lock(tiny, "--update", "adapter") == 0
    after = locked(tiny)
    assert source(after, "adapter")["commit"] == commit
    for name in ("helper", "nccl", "nccl-wheel"):
        assert source(after, name) == source(before, name)
    assert after["pins"]["base"] == before["pins"]["base"]
    assert after["result"] != before["result"]


def test_without_update_a_moved_ref_moves_no_pin(tiny: Tiny) -> None:
    commit_more(tiny)
    before = source(locked(tiny), "adapter")
    tiny.image["config"] = {"workdir": "/opt"}
    tiny.write()
    assert lock(tiny) == 0
    assert source(locked(tiny), "adapter") == before


def test_update_of_what_is_no_pin_is_a_usage_error(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    assert lock(tiny, "--update", "adaptr") == 2
    assert "expected base, adapter, helper, nccl, nccl-wheel" in capsys.readouterr().err


def test_update_without_a_lock_is_refused(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    tiny.project().lock_path("tiny").unlink()
    assert lock(tiny, "--update", "adapter") == 2
    assert "is not there" in capsys.readouterr().err


HELPER = {"kind": "wheel", "name": "helper", "version": "1.0", "python": "3.12"}
ZEROES = "sha256:" + "0" * 64


def test_all_that_cannot_be_had_is_named_with_what_to_do_also_what_only_follows(
    tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tiny.project().lock_path("tiny")
    path.unlink()
    (tiny.root / "adapter.bundle").unlink()
    shutil.rmtree(tiny.cache_path)
    for wheel in (tiny.root / "wheels").iterdir():
        wheel.unlink()
    capsys.readouterr()
    assert lock(tiny, "--complete", "--json") == 5
    out, err = capsys.readouterr()
    error = json.loads(out)["error"]
    Draft202012Validator(json.loads(shipped("error"))).validate(json.loads(out))
    assert (error["code"], error["actual"]) == ("UNRESOLVED", "adapter, helper, nccl-wheel, nccl")
    last = error["causes"][-1]
    assert (last["pin"], last["code"]) == ("nccl", "MISSING")
    assert "is in wheel nccl-wheel, which is not here" in last["message"]
    assert "  nccl: MISSING: source nccl: " in err
    assert f"\n      {last['hint']}\n" in err
    assert not path.exists()


@pytest.mark.parametrize(
    ("image", "code"),
    [
        pytest.param({"base": {"config": ZEROES}}, 3, id="another config is demanded"),
        pytest.param({"base": {"manifest": ZEROES}}, 5, id="another manifest is demanded"),
        pytest.param({"base": {"tag": "gone"}}, 5, id="the tag was changed to one that is not there"),
        pytest.param(
            {
                "sources": {
                    "helper": {
                        "kind": "wheel",
                        "name": "helper",
                        "version": "1.0",
                        "platforms": ["win_amd64"],
                        "python": "3.12",
                    }
                }
            },
            5,
            id="the wheel is asked for another platform, for which there is none",
        ),
    ],
)
def test_a_pin_that_was_made_for_something_else_is_not_kept(tiny: Tiny, image: dict[str, Any], code: int) -> None:
    before = tiny.project().lock_path("tiny").read_bytes()
    tiny.image = image
    tiny.write()
    if "helper" in image.get("sources", {}):
        (tiny.root / "wheels" / "helper-1.0-py3-none-any.whl").unlink()
    assert lock(tiny) == code
    assert tiny.project().lock_path("tiny").read_bytes() == before


@pytest.mark.parametrize("change", [b"\n", b" "], ids=["a line more at the end", "a blank more at the end"])
def test_a_lock_that_is_not_canonical_is_refused(tiny: Tiny, change: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    path = tiny.project().lock_path("tiny")
    path.write_bytes(path.read_bytes() + change)
    assert lock(tiny, "--check") == 3
    assert "is not in canonical form" in capsys.readouterr().err
