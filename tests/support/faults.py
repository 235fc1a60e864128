"""Faults at the n-th write of a run, in a forked child: the process is killed there, or the call fails.

The program writes through `imgbuild.adapters.durable` only, and that module through the functions of `os` that are
wrapped here (`test_interruption` compares them with what the kernel saw). A call that changes nothing, such as making
a folder that is there, is not a write.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import signal
import stat
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WRITING_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CALLS = (
    "chmod",
    "fchmod",
    "fdatasync",
    "fsync",
    "ftruncate",
    "link",
    "mkdir",
    "open",
    "pwrite",
    "rename",
    "replace",
    "rmdir",
    "symlink",
    "truncate",
    "unlink",
    "utime",
    "write",
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What happens at the call number `at`, counted from 0.

    With `errno` it is an `OSError`; without, the process is killed before the call, or half-way through a `write`.
    """

    at: int
    errno: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a child ended. `status` is None if it was killed; `calls` are the writes that began, as (name, path)."""

    status: int | None
    calls: tuple[tuple[str, str], ...]
    output: str


class _Wrapper:
    def __init__(self, root: Path, fault: Fault | None, log: int) -> None:
        self._root = str(root)
        self._fault = fault
        self._log = log
        self._count = 0
        self._lock = threading.Lock()
        self._write = os.write
        self._kill = functools.partial(os.kill, os.getpid(), signal.SIGKILL)

    def install(self) -> None:
        for name in CALLS:
            setattr(os, name, functools.partial(self._call, name, getattr(os, name)))

    def _call(self, name: str, real: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
        with self._lock:
            path = self._target(name, arguments, named)
            if path is not None:
                self._go_wrong(name, real, path, arguments)
                return real(*arguments, **named)
        return real(*arguments, **named)

    def _go_wrong(self, name: str, real: Callable[..., Any], path: str, arguments: tuple[Any, ...]) -> None:
        number, self._count = self._count, self._count + 1
        self._write(self._log, json.dumps([name, path]).encode() + b"\n")
        if self._fault is None or number != self._fault.at:
            return
        if self._fault.errno is not None:
            raise OSError(self._fault.errno, os.strerror(self._fault.errno), path)
        if name == "write":
            real(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
        self._kill()
        signal.pause()

    def _target(self, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> str | None:
        """The path that a call would change; None if it changes nothing below the root."""
        if name == "open" and not arguments[1] & WRITING_FLAGS:
            return None
        first = arguments[0]
        if isinstance(first, int):
            if stat.S_ISFIFO(os.fstat(first).st_mode) or stat.S_ISSOCK(os.fstat(first).st_mode):
                return None
            path = os.readlink(f"/proc/self/fd/{first}")
        else:
            folder = named.get("dir_fd")
            path = os.path.join("" if folder is None else os.readlink(f"/proc/self/fd/{folder}"), os.fsdecode(first))
        if not path.startswith(self._root) or (name == "mkdir" and os.path.isdir(path)):
            return None
        if name == "unlink" and not os.path.lexists(path):
            return None
        return path


def run_child(
    work: Callable[[], int], root: Path, fault: Fault | None, *, log: Path, preamble: Callable[[], object] | None = None
) -> Outcome:
    """Run `work` in a forked child in which the writes below `root` are counted, and one of them goes wrong.

    Args:
        work: returns the exit status.
        root: what is not below it is not counted.
        fault: what goes wrong; None for nothing.
        log: a file outside of `root`, written anew.
        preamble: called in the child first.
    """
    output = log.with_suffix(".out")
    calls = os.open(log, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_APPEND, 0o600)
    texts = os.open(output, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_APPEND, 0o600)
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        _be_the_child(work, root, fault, calls, texts, preamble)
    os.close(calls)
    os.close(texts)
    _, raw = os.waitpid(child, 0)
    if os.WIFSIGNALED(raw):
        assert os.WTERMSIG(raw) == signal.SIGKILL
    lines = log.read_text().splitlines()
    return Outcome(
        status=None if os.WIFSIGNALED(raw) else os.waitstatus_to_exitcode(raw),
        calls=tuple((name, path) for name, path in map(json.loads, lines)),
        output=output.read_text(),
    )


def count_writes(root: Path, log: int) -> None:
    """Count the writes below `root` of this process from now on; each is a JSON line in the file `log` (descriptor)."""
    _Wrapper(root, None, log).install()


def _be_the_child(
    work: Callable[[], int],
    root: Path,
    fault: Fault | None,
    calls: int,
    texts: int,
    preamble: Callable[[], object] | None,
) -> None:
    status = 99
    try:
        # pytest's capture must not see two processes write.
        os.dup2(texts, 1)
        os.dup2(texts, 2)
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
        if preamble is not None:
            preamble()
        _Wrapper(root, fault, calls).install()
        status = work()
    except BaseException:  # noqa: BLE001 - a child must end here, whatever happens
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
