"""How steps tell that they go on. Steps call these; only the command line draws them (tier 7)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from types import TracebackType


class Task(Protocol):
    """One bar: a thing that takes time."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

    def advance(self, count: int, /) -> None:
        """`count` more units are done (bytes, unless the task says otherwise)."""
        ...


class Progress(Protocol):
    """Where tasks are shown."""

    def task(self, label: str, total: int | None = None, *, unit: str = "bytes") -> Task:
        """Open a task; `total` in `unit`, None where it is not known."""
        ...

    def part(self, label: str, total: int | None = None) -> Task:
        """Open a task in bytes that is a part of another one, which counts it too; one of several at once."""
        ...

    def note(self, text: str) -> None:
        """Say one line that is worth knowing now."""
        ...


class _SilentTask:
    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        return None

    def advance(self, count: int, /) -> None:
        """Nothing is shown."""


class Silent:
    """Shows nothing; the default of every step."""

    def task(self, label: str, total: int | None = None, *, unit: str = "bytes") -> Task:  # noqa: ARG002
        """Open a task that is not shown."""
        return _SilentTask()

    def part(self, label: str, total: int | None = None) -> Task:  # noqa: ARG002
        """Open a task that is not shown."""
        return _SilentTask()

    def note(self, text: str) -> None:
        """Say nothing."""


SILENT = Silent()
