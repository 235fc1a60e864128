"""README shows what the program prints, and the digests of its sample are those of the lock."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from imgbuild.cli import _VERBS, group, run
from imgbuild.digest import Digest

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"(?m)^```text\n((?:.*\n)*?)```$", README)
SAMPLE = next(block for block in BLOCKS if "\nmanifest " in block)
SHARED = ("--json", "--offline", "--quiet", "--verbose", "--no-color", "--project", "--store", "--cache")


def options(verb: str) -> set[str]:
    command = group.get_command(click.Context(group), verb)
    assert command is not None
    return {name for parameter in command.params for name in parameter.opts if name.startswith("--")}


def lock() -> Any:
    return json.loads((ROOT / "locks" / "mini.lock.json").read_bytes())


def test_the_help_in_README_is_the_help_of_the_program(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["--help"]) == 0
    assert capsys.readouterr().out in BLOCKS


def test_without_arguments_the_help_is_printed_as_it_is_but_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    text = capsys.readouterr().out
    assert run([]) == 2
    assert capsys.readouterr() == ("", text)


def test_the_sample_in_README_has_the_digests_of_the_lock() -> None:
    result = lock()["result"]
    rows = dict(re.findall(r"(?m)^(\S+) +(sha256:[0-9a-f]{64})$", SAMPLE))
    assert rows["manifest"] == result["manifest"]
    assert rows["config"] == result["config"]
    assert rows["base"] == lock()["pins"]["base"]["manifest"]
    layers = re.findall(r"(?m)^  (mini-\S+) +\S+ [kM]?B  (sha256:[0-9a-f]{64})$", SAMPLE)
    assert layers
    assert set(layers) <= {(layer["name"], layer["digest"]) for layer in result["layers"]}
    assert f"{len(result['layers'])} added" in SAMPLE


def test_every_digest_in_the_sample_is_one_of_the_lock() -> None:
    locked = (ROOT / "locks" / "mini.lock.json").read_text(encoding="utf-8")
    digests = re.findall(r"sha256:[0-9a-f]{64}", SAMPLE)
    assert [digest for digest in digests if str(Digest.parse(digest)) not in locked] == []


def test_the_verbs_have_the_options_that_README_says_they_have() -> None:
    text = README.split("\n## Commands\n", 1)[1].split("\n## ", 1)[0]
    for name in ("--json", "--project", "--no-color", "--offline", "--store", "--cache", "--dry-run"):
        assert f"`{name}`" in text
    assert not options("schema") & set(SHARED)
    assert set(SHARED) - options("plan") == {"--offline", "--store", "--cache"}
    for verb in set(_VERBS) - {"schema", "plan"}:
        assert options(verb) >= set(SHARED), verb
    assert {verb for verb in _VERBS if "--dry-run" in options(verb)} == {"build", "lock"}


def test_every_command_line_in_README_is_one_that_the_program_knows() -> None:
    lines = re.findall(r"(?m)^imgbuild (.+?)(?: +#.*)?$", README)
    assert len(lines) > 5
    for line in lines:
        verb, *words = line.split()
        command = group.get_command(click.Context(group), verb)
        assert command is not None
        command.make_context(verb, words, resilient_parsing=False)


def test_the_plan_in_README_is_what_plan_prints(capsys: pytest.CaptureFixture[str]) -> None:
    sample = README.partition("```text\ndsv41-nvfp4 ")[2].partition("```")[0]
    assert run(["plan", "dsv41-nvfp4", "--project", str(ROOT)]) == 0
    printed = capsys.readouterr().out.splitlines()
    shown = ["dsv41-nvfp4 " + sample.splitlines()[0], *sample.splitlines()[1:]]
    assert [line for line in shown if line.strip() not in {"", "…"} and line not in printed] == []
    variant = README.partition("```toml\n")[2].partition("```")[0]
    assert variant == (ROOT / "locks/dsv41-nvfp4.toml").read_text()
