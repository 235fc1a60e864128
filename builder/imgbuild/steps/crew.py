"""Threads of one part of a command that end when the command does: a signal reaches the main thread alone."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, Self

from imgbuild.errors import ImgbuildError

if TYPE_CHECKING:
    from types import TracebackType

    from imgbuild.adapters.registry.repository import Repository
    from imgbuild.progress import Task
    from imgbuild.steps.context import Context

_PARALLEL: Final = 4
"""blobs at a time, unless the settings of the registry say otherwise."""


class StoppedError(Exception):
    """The user wants to end, or others failed, and this thread noticed; nobody looks at it."""


class Crew(ThreadPoolExecutor):
    """A pool of threads, used as a context.

    Where an exception leaves the context, what has not begun is taken back. If the exception is one that ends the
    command (Ctrl-C, a signal), what has begun is ended, too, within moments: requests to registries, and whoever
    advances a task that `watched` gave. Other work goes on to its end, and is waited for; with `together`, whoever
    advances such a task is ended by any exception, since what one cannot do makes the work of the others useless.
    """

    def __init__(self, context: Context, workers: int, *, together: bool = False) -> None:
        super().__init__(workers)
        self._context = context
        self._together = together
        self._stop = threading.Event()

    def watched(self, task: Task) -> Task:
        """The same task for those who work here: its `advance` raises a `StoppedError` when they are to end."""
        return _Watched(task, self._stop)

    def stop(self) -> None:
        """End whoever advances a watched task: nobody needs what it does any more."""
        self._stop.set()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        ends = kind is not None and not issubclass(kind, Exception)
        if ends or (kind is not None and self._together):
            self._stop.set()
        if ends:
            _end_talk(self._context)
        self.shutdown(cancel_futures=kind is not None)


class _Watched:
    def __init__(self, task: Task, stop: threading.Event) -> None:
        self._task = task
        self._stop = stop

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """The task itself is closed by whoever opened it."""

    def advance(self, count: int, /) -> None:
        """`count` more units are done."""
        if self._stop.is_set():
            raise StoppedError
        self._task.advance(count)


def parallel(repository: Repository) -> int:
    """How many blobs are read or sent at a time."""
    return repository.registry.settings.parallel or _PARALLEL


def _end_talk(context: Context) -> None:
    if context.connect is not None:
        # Those that cannot even be opened need no end, and why the command ends is the better thing to show.
        with contextlib.suppress(ImgbuildError):
            context.registries.abort()
