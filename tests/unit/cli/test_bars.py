"""Bars on a terminal: as wide as it is, and without colours where those are not wanted."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import imgbuild
from imgbuild.cli import render
from imgbuild.cli.render import Bars, Output

if TYPE_CHECKING:
    import pytest

PACKAGE = Path(imgbuild.__file__).parent
VERBS = {"fetching", "unpacking", "reading", "compiling", "pushing", "writing", "verifying"}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def drawn(monkeypatch: pytest.MonkeyPatch, columns: int, *, plain: bool) -> str:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(render, "_DELAY", 0)
    for name, value in {"COLUMNS": str(columns), "LINES": "24", "TERM": "xterm-256color"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    bars = Bars(Output(as_json=False, quiet=False, verbose=False, colour=True, plain=plain))
    with bars.task("reading layers", 4_000_000) as task:
        task._timer.join()  # type: ignore[attr-defined]
        task.advance(1_000_000)
        task._progress.refresh()  # type: ignore[attr-defined]
    return terminal.getvalue()


def test_a_bar_has_colours_unless_they_are_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    colour = re.compile(r"\x1b\[[0-9;]*3[0-9][0-9;]*m")
    assert colour.search(drawn(monkeypatch, 100, plain=False))
    assert not colour.search(drawn(monkeypatch, 100, plain=True))


def test_a_narrow_terminal_gets_no_speed_and_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    wide, narrow = (drawn(monkeypatch, columns, plain=True) for columns in (80, 79))
    assert "-:--:--" in wide
    assert "?" in wide
    for text in ("reading layers", "1.0/4.0 MB"):
        assert text in wide
        assert text in narrow
    assert "-:--" not in narrow
    assert "?" not in re.sub(r"\x1b\[\?", "", narrow)


def test_every_bar_says_what_is_done_with_the_same_few_verbs() -> None:
    labels = []
    for path in PACKAGE.rglob("*.py"):
        labels += re.findall(r"""progress\.task\(f?"([a-z]+)""", path.read_text(encoding="utf-8"))
    assert len(labels) >= 7
    assert set(labels) <= VERBS
