"""Layers read by processes of their own also where they are small, and what is left of such processes.

`python -m tests.support.apart WORD...` is the program that reads so.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from imgbuild.cli import main
from imgbuild.steps import readers

if TYPE_CHECKING:
    import pytest

MODULE = "imgbuild.steps.reader"
_SECONDS = 3.0


def always(monkeypatch: pytest.MonkeyPatch, count: int = 2) -> None:
    """From now on layers are read by so many processes."""
    monkeypatch.setattr(readers, "WORTH_BYTES", 0)
    monkeypatch.setattr(readers, "cores", lambda: count)


def children(parent: int) -> set[int]:
    """Process ids of those that read layers for a process."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            above = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            continue
        if MODULE.encode() in words and above == parent:
            found.add(int(folder.name))
    return found


def ended(pids: set[int]) -> bool:
    """Whether processes end within some seconds; those that nobody has collected yet have ended."""
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        if not any(map(_runs, pids)):
            return True
        time.sleep(0.05)
    return False


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


if __name__ == "__main__":
    readers.WORTH_BYTES = 0
    readers.cores = lambda: 2
    main()
