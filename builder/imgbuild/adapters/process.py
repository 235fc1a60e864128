"""Programs outside: a list of arguments, an environment made here, bounded output, a time limit, and nothing outlives.

Every program gets a session of its own, so that it cannot ask on the terminal and can be killed with its children.
Which variables a program may see, and what its output means, is the business of the module that runs it.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Literal

from imgbuild.config import CHUNK_BYTES, KIB
from imgbuild.errors import ToolError
from imgbuild.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

ERROR_BYTES = 64 * KIB
"""bytes of a program's stderr that are kept."""
POLL_SECONDS = 0.05
"""seconds between two looks at a running program."""
_DRAIN_SECONDS = 1.0
"""seconds to wait for the end of a pipe whose program has ended."""


class Drain(threading.Thread):
    """Reads a pipe to its end and keeps a part, so that a talkative program neither blocks nor fills the memory.

    Args:
        stream: the pipe; None is an empty one.
        limit: bytes to keep.
        keep: which end of the output is kept.
    """

    def __init__(self, stream: IO[bytes] | None, limit: int, *, keep: Literal["first", "last"] = "first") -> None:
        super().__init__(daemon=True)
        self.data = bytearray()
        self.overflow = False
        self._stream = stream
        self._limit = limit
        self._keep = keep
        self.start()

    def run(self) -> None:
        """Read to the end."""
        if self._stream is None:
            return
        with self._stream as stream:
            while piece := stream.read1(CHUNK_BYTES):  # type: ignore[attr-defined]
                self._add(piece)

    def _add(self, piece: bytes) -> None:
        self.overflow |= len(self.data) + len(piece) > self._limit
        if self._keep == "first":
            self.data += piece[: self._limit - len(self.data)]
        else:
            self.data += piece
            del self.data[: -self._limit]

    def text(self) -> str:
        """What was kept, as UTF-8; a line whose beginning was lost is left out, for it may be half a secret."""
        data = bytes(self.data)
        if self.overflow and self._keep == "last":
            data = data.partition(b"\n")[2]
        return data.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a program ended: its status (negative for a signal), why it was stopped if it was, and its stderr."""

    status: int
    problem: str | None
    errors: str


def run(
    program: str,
    arguments: Sequence[str],
    *,
    folder: Path,
    environment: Mapping[str, str],
    keep: Literal["first", "last"],
    seconds: float = math.inf,
    check: Callable[[], str | None] = lambda: None,
) -> Ended:
    """Run a program to its end without input; its standard output is thrown away.

    Args:
        program: its name for messages.
        arguments: path of the program and its arguments.
        folder: where it runs.
        environment: all variables that it sees.
        keep: which `ERROR_BYTES` of its stderr are kept.
        seconds: after which it is killed with its children.
        check: see `wait`.

    Raises:
        ToolError: it cannot be started. A program that fails or is stopped is a value.
    """
    try:
        child = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        raise ToolError(
            program, "cannot be started", actual=error.strerror, where=printable(str(arguments[0]))
        ) from error
    problem, errors = None, Drain(child.stderr, ERROR_BYTES, keep=keep)
    try:
        problem = wait(child, seconds=seconds, check=check)
    finally:
        end(child, errors)
    return Ended(status=child.returncode, problem=problem, errors=errors.text())


def wait(child: subprocess.Popen[bytes], *, seconds: float, check: Callable[[], str | None]) -> str | None:
    """Wait for the end of a program, or for a reason to stop it: the time, or what `check` says. None is a plain end.

    `check` is called every `POLL_SECONDS` and once after the end; it may raise as well. The program is not killed here.
    """
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(POLL_SECONDS)
            return check()
        if problem := check():
            return problem
        if time.monotonic() > deadline:
            return f"did not end within {seconds:g} seconds"


def end(child: subprocess.Popen[bytes], *drains: Drain) -> None:
    """Kill what still runs of a program and its children, collect it, and let its pipes run empty."""
    if child.poll() is None:
        kill(child)
        child.wait()
    for drain in drains:
        drain.join(_DRAIN_SECONDS)
        if drain.is_alive():  # a child outlived the program and holds the pipe
            kill(child)
            drain.join(_DRAIN_SECONDS)


def kill(child: subprocess.Popen[bytes]) -> None:
    """Kill a program and its children; nothing happens if none is left."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
