"""Progress: bars as wide as the terminal, plain lines elsewhere, and notes that garble neither."""

from __future__ import annotations

import io
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any

import imgbuild
import pytest
from imgbuild.cli import bars as module
from imgbuild.cli.bars import Bars
from imgbuild.cli.render import Output

PACKAGE = Path(imgbuild.__file__).parent
VERBS = {"fetching", "unpacking", "reading", "compiling", "pushing", "writing", "hashing", "verifying"}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal(monkeypatch: pytest.MonkeyPatch, columns: int = 100) -> Terminal:
    found = Terminal()
    monkeypatch.setattr(sys, "stderr", found)
    monkeypatch.setattr(module, "_DELAY", 0)
    for name, value in {"COLUMNS": str(columns), "LINES": "24", "TERM": "xterm-256color"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    return found


def no_terminal(monkeypatch: pytest.MonkeyPatch, seconds: float = 0.02) -> io.StringIO:
    found = io.StringIO()
    monkeypatch.setattr(sys, "stderr", found)
    monkeypatch.setattr(module, "_LINE_SECONDS", seconds)
    return found


def opened(*, quiet: bool = False, plain: bool = True) -> Bars:
    return Bars(Output(as_json=False, quiet=quiet, verbose=False, colour=True, plain=plain))


def drawn(monkeypatch: pytest.MonkeyPatch, columns: int, *, plain: bool, notes: tuple[str, ...] = ()) -> str:
    found = terminal(monkeypatch, columns)
    bars = opened(plain=plain)
    with bars.task("reading layers", 4_000_000) as task:
        task._timer.join()  # type: ignore[attr-defined]
        task.advance(1_000_000)
        assert bars._drawn is not None
        bars._drawn.refresh()
        for note in notes:
            bars.note(note)
    return found.getvalue()


def screen(text: str) -> list[str]:
    """The lines that a terminal shows after a text, as far as bars use one: colours, erasing a line, going up."""
    rows, row, column = [""], 0, 0
    for piece in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", text):
        if piece == "\n":
            row, column = row + 1, 0
            rows += [""] if row == len(rows) else []
        elif piece == "\r":
            column = 0
        elif piece.endswith("A"):
            row -= int(piece[2:-1] or 1)
        elif piece == "\x1b[2K":
            rows[row] = ""
        elif not piece.startswith("\x1b"):
            rows[row] = rows[row][:column].ljust(column) + piece + rows[row][column + len(piece) :]
            column += len(piece)
    return [line.rstrip() for line in rows if line.strip()]


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


def test_notes_stand_above_the_bar_as_they_are_and_the_bar_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    notes = ("host: broke; trying again in 0.5 seconds", "[red]https://x[/red] :smile: \x1b[2J" + "y" * 200)
    text = drawn(monkeypatch, 100, plain=True, notes=notes)
    assert screen(text) == [notes[0], notes[1].replace("\x1b", "\\x1b")]
    before, after = text.split(notes[0])
    assert "reading layers" in before
    assert screen(before) == []
    assert "reading layers" in after


def test_notes_of_many_threads_stay_whole_while_bars_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    found = terminal(monkeypatch)
    bars = opened()

    def work(name: str) -> None:
        for number in range(50):
            bars.note(f"note {number} of {name}")

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for _ in range(20):
        with bars.task("reading layers", 10) as task:
            task.advance(10)
    for thread in threads:
        thread.join(60)
    lines = screen(found.getvalue())
    assert sorted(lines) == sorted(f"note {number} of {name}" for number in range(50) for name in "abcd")


@pytest.mark.parametrize("make", [terminal, no_terminal])
def test_notes_are_shown_without_verbose_and_not_with_quiet(monkeypatch: pytest.MonkeyPatch, make: Any) -> None:
    found = make(monkeypatch)
    opened(quiet=True).note("trying again")
    with opened(quiet=True).task("reading layers", 10):
        opened(quiet=True).note("trying again")
    assert found.getvalue() == ""
    opened().note("trying \x1bagain")
    assert found.getvalue() == "trying \\x1bagain\n"


def lines_of(monkeypatch: pytest.MonkeyPatch, total: int | None, done: int, unit: str = "bytes") -> list[str]:
    found = no_terminal(monkeypatch)
    with opened().task("pushing to 127.0.0.1:5000/x", total, unit=unit) as task:
        task.advance(done)
        limit = time.monotonic() + 30
        while found.getvalue().count("\n") < 2 and time.monotonic() < limit:
            time.sleep(0.005)
    return found.getvalue().splitlines()


@pytest.mark.parametrize(
    ("total", "done", "unit", "expected"),
    [
        (254_500_000, 120_000_000, "bytes", "120.0 MB of 254.5 MB"),
        (None, 1_500, "bytes", "1.5 kB"),
        (8, 3, "pins", "3 of 8 pins"),
        (None, 3, "pins", "3 pins"),
    ],
)
def test_on_no_terminal_a_long_task_says_now_and_then_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, total: int | None, done: int, unit: str, expected: str
) -> None:
    lines = lines_of(monkeypatch, total, done, unit)
    assert len(lines) >= 2
    assert set(lines) == {f"pushing to 127.0.0.1:5000/x  {expected}"}


def test_on_no_terminal_what_has_nothing_to_count_tells_how_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert re.fullmatch(r"pushing to 127.0.0.1:5000/x  [0-9]+ seconds", lines_of(monkeypatch, None, 0, "steps")[0])


def test_on_no_terminal_a_short_task_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert module._LINE_SECONDS == 10
    found = no_terminal(monkeypatch, seconds=30)
    began = time.monotonic()
    with opened().task("reading layers", 10) as task:
        task.advance(10)
    assert time.monotonic() - began < 5
    assert found.getvalue() == ""


def test_on_no_terminal_lines_are_no_more_often_than_they_should_be(monkeypatch: pytest.MonkeyPatch) -> None:
    found = no_terminal(monkeypatch, seconds=0.1)
    began = time.monotonic()
    with opened().task("reading layers", 1000) as task:
        for _ in range(100):
            task.advance(1)
            time.sleep(0.003)
    assert 1 <= found.getvalue().count("\n") <= (time.monotonic() - began) / 0.1


def test_a_quiet_task_says_nothing_however_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    found = no_terminal(monkeypatch)
    with opened(quiet=True).task("reading layers", 10) as task:
        task.advance(10)
        time.sleep(0.1)
    assert found.getvalue() == ""


def test_every_bar_says_what_is_done_with_the_same_few_verbs() -> None:
    labels = []
    for path in PACKAGE.rglob("*.py"):
        labels += re.findall(r"""progress\.task\(f?"([a-z]+)""", path.read_text(encoding="utf-8"))
    assert len(labels) >= 7
    assert set(labels) <= VERBS


def test_several_layers_at_once_have_a_bar_each_below_that_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    found = terminal(monkeypatch, 100)
    bars = opened()
    with bars.task("reading layers", 3_000_000) as whole, bars.part("layer aaa", 1_000_000) as one:
        with bars.part("layer bbb", 2_000_000) as two:
            for bar in (whole, one, two):
                bar._timer.join()  # type: ignore[attr-defined]
                bar.advance(500_000)
            assert bars._drawn is not None
            bars._drawn.refresh()
            lines = [line for line in screen(found.getvalue()) if line.strip()]
            assert [line.split("━")[0].strip() for line in lines] == ["reading layers", "layer aaa", "layer bbb"]
            assert [re.search(r"[\d.]+/[\d.]+ [kM]B", line)[0] for line in lines] == [  # type: ignore[index]
                "0.5/3.0 MB",
                "0.5/1.0 MB",
                "0.5/2.0 MB",
            ]
        assert len(bars._drawn.tasks) == 2
    assert [line for line in screen(found.getvalue()) if line.strip()] == []


def test_bars_stand_in_the_order_in_which_they_were_opened_whichever_timer_ends_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal(monkeypatch, 100)
    monkeypatch.setattr(module, "_DELAY", 60.0)
    bars = opened()
    with bars.task("reading layers", 3) as whole, bars.part("gone"):
        pass
    with bars.task("reading layers", 3) as whole, bars.part("layer aaa") as one, bars.part("layer bbb") as two:
        bars.show(one)  # type: ignore[arg-type]
        assert bars._drawn is not None
        assert [task.description.strip() for task in bars._drawn.tasks] == ["reading layers", "layer aaa"]
        for bar in (whole, two, one):
            bars.show(bar)  # type: ignore[arg-type]
        assert [task.description.strip() for task in bars._drawn.tasks] == ["reading layers", "layer aaa", "layer bbb"]


def test_on_no_terminal_only_the_whole_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "_LINE_SECONDS", 0.01)
    bars = opened()
    with bars.part("layer aaa", 10) as one:
        one.advance(5)
        time.sleep(0.05)
    assert capsys.readouterr().err == ""
