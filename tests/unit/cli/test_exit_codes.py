"""Exit codes and error codes are a contract: the classes, README and the program say the same."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import click
import imgbuild
import pytest
from imgbuild import cli, errors
from imgbuild.errors import ImgbuildError

README = Path(__file__).parents[3] / "README.md"
FAMILIES = {
    errors.UsageError: 2,
    errors.InputError: 3,
    errors.IntegrityError: 4,
    errors.AvailabilityError: 5,
    errors.InternalError: 70,
}
ENDED = {129: "hung up", 130: "interrupt", 141: "nobody reads", 143: "terminate"}
"""128 + the number of a signal, with a word of README's row; tests/e2e/test_endings.py makes them happen."""
_ROW = re.compile(r"^\| *([0-9]+) *\| *(\S(?:[^|]|\\\|)*?) *\|$", re.MULTILINE)


def every_class() -> list[type[ImgbuildError]]:
    """The root and all that is below it, wherever in the package it is defined."""
    for module in pkgutil.walk_packages(imgbuild.__path__, "imgbuild."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)

    def below(kind: type[ImgbuildError]) -> list[type[ImgbuildError]]:
        return [kind, *(found for child in kind.__subclasses__() for found in below(child))]

    return below(ImgbuildError)


def documented() -> dict[int, str]:
    section = README.read_text(encoding="utf-8").split("\n## Exit codes\n", 1)[1].split("\n## ", 1)[0]
    rows = _ROW.findall(section)
    assert len({code for code, _ in rows}) == len(rows)
    return {int(code): meaning for code, meaning in rows}


def test_every_error_class_has_a_code_of_its_own() -> None:
    codes = [kind.code for kind in every_class() if kind is not errors.InternalError]
    assert sorted(set(codes)) == sorted(codes)
    assert all(re.fullmatch(r"[A-Z]+(_[A-Z]+)*", code) for code in codes)
    # The root is never raised, so it may lend its code to the one class for bugs.
    assert errors.InternalError.code == ImgbuildError.code


def test_every_error_class_says_what_to_do_about_it_in_its_own_words() -> None:
    families = [kind for kind in every_class() if kind in FAMILIES]
    assert len({kind.advice for kind in families}) == len(families)
    assert all(kind.advice and "\n" not in kind.advice for kind in every_class())


def test_every_error_class_lives_in_the_errors_module_and_in_exactly_one_family() -> None:
    for kind in every_class():
        assert kind.__module__ == "imgbuild.errors"
        assert (kind.__doc__ or "").strip()
        if kind is not ImgbuildError:
            assert sum(issubclass(kind, family) for family in FAMILIES) == 1


def test_the_exit_code_of_a_class_is_the_one_of_its_family() -> None:
    for kind in every_class():
        if kind is not ImgbuildError:
            assert [kind.exit_code] == [code for family, code in FAMILIES.items() if issubclass(kind, family)]
    assert {kind.exit_code for kind in every_class()} == {2, 3, 4, 5, 70}


def test_the_tree_in_the_docstring_of_the_errors_module_is_the_tree() -> None:
    drawn = dict.fromkeys(re.findall(r"(?m)^[ │├└─]*([A-Z]\w+Error)\b", errors.__doc__ or ""))
    assert list(drawn) == [kind.__name__ for kind in sorted_by_source()]
    for kind in FAMILIES:
        assert re.search(rf"{kind.__name__} +exit {kind.exit_code}\b", errors.__doc__ or "")


def sorted_by_source() -> list[type[ImgbuildError]]:
    return sorted(every_class(), key=lambda kind: inspect.getsourcelines(kind)[1])


def test_README_prints_the_table_of_the_families() -> None:
    assert set(documented()) == {0, 1, *FAMILIES.values(), *ENDED}
    words = {1: "answer is no", 2: "command line", 3: "file of the repository", 4: "recorded", 5: "outside", 70: "bug"}
    words |= ENDED
    assert [code for code, text in words.items() if text not in documented()[code]] == []


def test_an_interruption_exits_with_130_as_README_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise click.exceptions.Abort

    monkeypatch.setattr(cli.group, "main", interrupted)
    said = {
        "build": "interrupted; what was not verified has no tag, the next run continues",
        "lock": "interrupted; no lock was written, the next run continues",
        "plan": "interrupted",
        "verify": "interrupted",
    }
    for verb, text in said.items():
        assert cli.run([verb, "mini"]) == 130
        assert capsys.readouterr() == ("", f"{text}\n")


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_an_exception_that_nobody_expected_exits_with_70_and_asks_for_a_report(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise KeyError("missing\x1b[2J")

    monkeypatch.setattr(cli.group, "main", broken)
    assert cli.run(["build", "mini", *arguments]) == 70
    out, err = capsys.readouterr()
    assert bool(out) == bool(arguments)
    assert "Traceback" in err
    assert "\x1b" not in err + out
    assert err.splitlines()[-2].startswith("error[INTERNAL]: KeyError: ")
    assert "please report it" in err.splitlines()[-1]


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["build", "--help"], ["schema"]])
def test_help_exits_with_0(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(arguments) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "arguments",
    [[], ["nope"], ["build"], ["build", "--nope"], ["lock", "x", "--check", "--complete"], ["schema", "nope"]],
)
def test_a_wrong_command_line_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(arguments) == 2
    assert capsys.readouterr().out == ""
