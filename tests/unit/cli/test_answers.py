"""How the answer of `build` and `verify` is told: what is not a match stands last, and --quiet does not hide a no."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from imgbuild.cli import run
from imgbuild.cli.render import Output, show_answer, show_report, why_not
from imgbuild.model.identity import Report, compare, not_checked

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.tiny import Tiny

SAME = compare("file", "/a", 1, 1)
OTHER = compare("library.nccl.digest", "/b", "sha256:1", "sha256:2")
ALSO = compare("config", "/d", "x", "y")
UNSEEN = not_checked("library.nccl.needed", "/c", "the file is not there")
EXTRA = not_checked("extra", "/e", "nobody asked", required=False)


def shown(capsys: pytest.CaptureFixture[str], report: Report, *, quiet: bool) -> tuple[list[str], list[str]]:
    output = Output(as_json=False, quiet=quiet, verbose=False, colour=False)
    show_report(output, report)
    show_answer(output, report, "verified", "NOT VERIFIED")
    out, err = capsys.readouterr()
    return out.splitlines(), err.splitlines()


@pytest.mark.parametrize(
    ("findings", "text"),
    [
        ((OTHER,), "1 required check differs, 0 could not be made: library.nccl.digest /b"),
        ((SAME, UNSEEN), "0 required checks differ, 1 could not be made: library.nccl.needed /c"),
        ((UNSEEN, OTHER, ALSO), "2 required checks differ, 1 could not be made: first library.nccl.needed /c"),
        ((EXTRA,), "nothing was checked"),
    ],
)
def test_the_last_line_counts_what_differs_and_what_could_not_be_made_and_names_the_first(
    findings: tuple[object, ...], text: str
) -> None:
    assert why_not(Report(findings=findings)) == text  # type: ignore[arg-type]


def test_what_is_required_and_no_match_stands_right_before_the_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = shown(capsys, Report(findings=(OTHER, SAME, EXTRA, UNSEEN)), quiet=False)
    assert err == []
    rows = [line.split()[:2] for line in out if line.startswith("  ") and not line.startswith("      ")]
    assert rows == [
        ["match", "file"],
        ["not-checked", "extra"],
        ["differs", "library.nccl.digest"],
        ["not-checked", "library.nccl.needed"],
    ]
    assert out[-1].startswith("NOT VERIFIED 1 required check differs, 1 could not be made: first library.nccl.digest")


def test_quiet_sends_a_no_with_its_reasons_to_stderr_and_hides_a_yes(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = shown(capsys, Report(findings=(SAME, OTHER)), quiet=True)
    assert out == []
    assert [line.split()[0] for line in err] == ["differs", "expected", "actual", "NOT"]
    assert shown(capsys, Report(findings=(SAME,)), quiet=True) == ([], [])


def test_a_quiet_verify_and_a_quiet_build_that_fail_say_why(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    place = ["--project", str(tiny.root), "--cache", str(tiny.cache_path), "-q"]
    assert run(["build", "tiny", *place]) == 0
    assert run(["verify", "tiny", *place]) == 0
    assert capsys.readouterr() == ("", "")
    layer = tiny.lock().pins
    assert run(["verify", "tiny", "--tag", "base", *place]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1].startswith("NOT VERIFIED ")
    assert len(err.splitlines()) > 2
    assert layer.base.reference not in out


def test_the_result_is_a_path_as_one_would_type_it(
    tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = ["--project", str(tiny.root), "--cache", str(tiny.cache_path)]
    store = tiny.store_path.relative_to(tiny.root)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for folder, path in ((tiny.root, store), (elsewhere, tiny.store_path)):
        monkeypatch.chdir(folder)
        assert run(["build", "tiny", *place]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == f"result       oci:{path}:tiny"
