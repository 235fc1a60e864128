"""Progress on stderr: bars on a terminal, a plain line now and then elsewhere, and notes that do not garble either."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any, Self

from imgbuild.cli.render import amount, clean, one_line

if TYPE_CHECKING:
    from types import TracebackType

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
        self._shown: list[_Bar] = []

    def task(self, label: str, total: int | None = None, *, unit: str = "bytes") -> Task:
        """Open a bar, or on no terminal what says every `_LINE_SECONDS` how far it is."""
        if self._output.quiet:
            from imgbuild.progress import SILENT  # noqa: PLC0415 - the other branches are the usual ones

            return SILENT.task(label, total, unit=unit)
        if not sys.stderr.isatty():
            return _Lines(self._output, label, total, unit)
        return _Bar(self, label, total, unit, plain=self._output.plain)

    def note(self, text: str) -> None:
        """A line on stderr, above the bar where there is one."""
        with self._lock:
            if self._shown and not self._output.quiet:
                self._shown[-1].say(one_line(text))
            else:
                self._output.note(text)

    def show(self, bar: _Bar) -> None:
        """Begin to draw a bar."""
        with self._lock:
            bar.draw()
            self._shown.append(bar)

    def hide(self, bar: _Bar) -> None:
        """Take a bar away, if it was drawn at all."""
        with self._lock:
            if bar in self._shown:
                self._shown.remove(bar)
                bar.erase()


class _Bar:
    def __init__(self, bars: Bars, label: str, total: int | None, unit: str, *, plain: bool) -> None:
        from rich.console import Console  # noqa: PLC0415 - 55 ms, only on a terminal
        from rich.progress import (  # noqa: PLC0415
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        # Whether NO_COLOR is set, the console looks for itself where it is told nothing.
        console = Console(stderr=True, no_color=plain or None)
        columns: list[Any] = [TextColumn("{task.description}"), BarColumn()]
        if unit == "bytes":
            columns += [DownloadColumn(), *([TransferSpeedColumn()] if console.width >= _WIDE else [])]
        if console.width >= _WIDE:
            columns.append(TimeRemainingColumn())
        self._progress = Progress(*columns, console=console, transient=True)
        self._task = self._progress.add_task(clean(label), total=total)
        self._bars = bars
        # What is done at once shows nothing: a bar that flashes is noise.
        self._timer = threading.Timer(_DELAY, bars.show, (self,))
        self._timer.daemon = True

    def __enter__(self) -> Self:
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
        self._progress.advance(self._task, count)

    def draw(self) -> None:
        """Begin."""
        self._progress.start()

    def erase(self) -> None:
        """End, and leave nothing."""
        self._progress.stop()

    def say(self, text: str) -> None:
        """A line above it, as it is: nothing in it is markup, a link or a number to be coloured."""
        self._progress.console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)


class _Lines:
    """A plain line every few seconds, also where nothing moves: that is what one wants to know."""

    def __init__(self, output: Output, label: str, total: int | None, unit: str) -> None:
        self._output = output
        self._label = label
        self._total = total
        self._unit = unit
        self._done = 0
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
        of = "" if self._total is None else f" of {self._total}"
        return f"{self._done}{of} {self._unit}"
