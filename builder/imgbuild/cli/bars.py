"""Progress on stderr: bars on a terminal, a plain line now and then elsewhere, and notes that do not garble either."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Self

from imgbuild.cli.render import amount, clean, one_line

if TYPE_CHECKING:
    from types import TracebackType

    from rich.progress import Progress, TaskID

    from imgbuild.cli.render import Output
    from imgbuild.progress import Task

_DELAY = 0.5
"""seconds before a bar appears; what is faster shows nothing."""
_WIDE = 80
"""columns of a terminal from which on a bar says speed and time, too."""
_LINE_SECONDS = 10.0
"""seconds before the first plain line of a task, and between two."""


class Bars:
    """Where a command shows its progress; nothing with --quiet. Safe to use from several threads."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._lock = threading.Lock()
        self._rows = 0
        self._drawn: Progress | None = None
        self._waiting: list[_Bar] = []

    def task(self, label: str, total: int | None = None, *, unit: str = "bytes") -> Task:
        """Open a bar, or on no terminal what says every `_LINE_SECONDS` how far it is."""
        if not self._output.quiet and not sys.stderr.isatty():
            return _Lines(self._output, label, total, unit)
        return self._bar(label, total, unit)

    def part(self, label: str, total: int | None = None) -> Task:
        """Open a bar below the others; on no terminal nothing, since the whole is said there."""
        return self._bar(f"  {label}", total, "bytes")

    def _bar(self, label: str, total: int | None, unit: str) -> Task:
        if self._output.quiet or not sys.stderr.isatty():
            from imgbuild.progress import SILENT  # noqa: PLC0415 - the other branches are the usual ones

            return SILENT.task(label, total, unit=unit)
        return _Bar(self, label, total, unit)

    def note(self, text: str) -> None:
        """A line on stderr, above the bars where there are some."""
        with self._lock:
            if self._drawn is not None and not self._output.quiet:
                # As it is: nothing in it is markup, a link or a number to be coloured.
                self._drawn.console.print(one_line(text), markup=False, highlight=False, emoji=False, soft_wrap=True)
            else:
                self._output.note(text)

    def wait(self, bar: _Bar) -> None:
        """Have a bar drawn later: those that are drawn stand in the order in which they came here."""
        with self._lock:
            self._waiting.append(bar)

    def show(self, bar: _Bar) -> None:
        """Begin to draw a bar that waits, and those that wait longer; nothing where it waits no more."""
        with self._lock:
            # Two timers that end together end in any order: the bar that came first goes above.
            while bar in self._waiting:
                first = self._waiting.pop(0)
                if self._drawn is None:
                    self._drawn = _drawing(plain=self._output.plain)
                    self._drawn.start()
                self._rows += 1
                first.row = self._drawn.add_task(
                    clean(first.label), total=first.total, completed=first.done, unit=first.unit
                )

    def move(self, bar: _Bar) -> None:
        """Draw a bar as far as it is."""
        with self._lock:
            if self._drawn is not None and bar.row is not None:
                self._drawn.update(bar.row, completed=bar.done)

    def hide(self, bar: _Bar) -> None:
        """Take a bar away, if it was drawn at all."""
        with self._lock:
            if bar in self._waiting:
                self._waiting.remove(bar)
            if self._drawn is None or bar.row is None:
                return
            self._drawn.remove_task(bar.row)
            self._rows -= 1
            if not self._rows:
                self._drawn.stop()
                self._drawn = None


def _drawing(*, plain: bool) -> Progress:
    """Where bars are drawn; one for all, since two would draw over each other."""
    from rich.console import Console  # noqa: PLC0415 - 55 ms, only on a terminal
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        DownloadColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.text import Text  # noqa: PLC0415

    class OfBytes(ProgressColumn):
        """A column that makes sense for bytes only."""

        def __init__(self, inner: ProgressColumn) -> None:
            super().__init__()
            self._inner = inner

        def render(self, task: Any) -> Any:
            return self._inner.render(task) if task.fields["unit"] == "bytes" else Text("")

    # Whether NO_COLOR is set, the console looks for itself where it is told nothing.
    console = Console(stderr=True, no_color=plain or None)
    columns: list[Any] = [TextColumn("{task.description}"), BarColumn(), OfBytes(DownloadColumn())]
    if console.width >= _WIDE:
        columns += [OfBytes(TransferSpeedColumn()), TimeRemainingColumn()]
    return Progress(*columns, console=console, transient=True)


class _Bar:
    def __init__(self, bars: Bars, label: str, total: int | None, unit: str) -> None:
        self.label = label
        self.total = total
        self.unit = unit
        self.done = 0
        self.row: TaskID | None = None
        self._bars = bars
        self._lock = threading.Lock()
        # What is done at once shows nothing: a bar that flashes is noise.
        self._timer = threading.Timer(_DELAY, bars.show, (self,))
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._bars.wait(self)
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._timer.cancel()
        self._timer.join()
        self._bars.hide(self)

    def advance(self, count: int, /) -> None:
        """`count` more units are done."""
        with self._lock:
            self.done += count
        self._bars.move(self)


class _Lines:
    """A plain line every few seconds, also where nothing moves: that is what one wants to know."""

    def __init__(self, output: Output, label: str, total: int | None, unit: str) -> None:
        self._output = output
        self._label = label
        self._total = total
        self._unit = unit
        self._done = 0
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._end.set()
        self._thread.join()

    def advance(self, count: int, /) -> None:
        """`count` more units are done."""
        with self._lock:
            self._done += count

    def _run(self) -> None:
        while not self._end.wait(_LINE_SECONDS):
            self._output.note(f"{self._label}  {self._text()}")

    def _text(self) -> str:
        if self._unit == "bytes":
            of = "" if self._total is None else f" of {amount(self._total)}"
            return f"{amount(self._done)}{of}"
        if self._total is None and not self._done:
            return f"{time.monotonic() - self._began:.0f} seconds"
        of = "" if self._total is None else f" of {self._total}"
        return f"{self._done}{of} {self._unit}"
