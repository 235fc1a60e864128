"""Uploads that are killed at random moments, and what the registry's log says of them then."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support import upload_driver
from tests.support.pushing import APP

if TYPE_CHECKING:
    import random

    from imgbuild.digest import Digest

    from tests.support.fault_registry import FaultRegistry

ROOT = Path(__file__).parents[2]
_POLL = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """What is sent: a size and the size of its pieces in bytes."""

    size: int
    chunk: int
    digest: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Killed:
    """One run that was killed: bytes that had arrived of the whole blob when it was, and where the next run began."""

    arrived: int
    resumed_at: int


def blob(size: int, chunk: int) -> Blob:
    """Hash it once."""
    return Blob(size=size, chunk=chunk, digest=upload_driver.digest_of(size))


def start(host: str, folder: Path, what: Blob, *stall: int) -> subprocess.Popen[str]:
    """A process that sends it."""
    folder.mkdir(parents=True, exist_ok=True)
    words = (host, folder, what.size, what.chunk, what.digest, *stall)
    command = [sys.executable, "-m", "tests.support.upload_driver", *map(str, words)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)


def kill(process: subprocess.Popen[str]) -> None:
    """kill -9, and what is left of it."""
    process.kill()
    process.communicate(timeout=30)
    assert process.returncode in {0, -signal.SIGKILL}, process.returncode


def finish(process: subprocess.Popen[str]) -> list[str]:
    """What it said; it must have come to its end."""
    said = process.communicate(timeout=300)[0].splitlines()
    assert process.returncode == 0, said
    assert said[-1] == "done", said
    return said


def received(registry: FaultRegistry) -> int:
    """Bytes of pieces that arrived, those of requests that broke included."""
    return sum(one.body_bytes_read for one in registry.requests("upload-patch"))


def kill_at_random(registry: FaultRegistry, folder: Path, what: Blob, kills: int, rng: random.Random) -> list[Killed]:
    """Send a blob, killing whoever sends it at some random moments; the last run comes to its end.

    Returns:
        For each kill, what had arrived and where the next run went on.
    """
    moments = sorted(rng.randrange(what.size + 1) for _ in range(kills))
    arrived = []
    runs = []
    for moment in moments:
        runs.append(len(registry.requests("upload-patch")))
        process = start(registry.host, folder, what)
        while _arrived(registry, what) < moment and process.poll() is None:
            time.sleep(_POLL)
        time.sleep(rng.uniform(0, 0.02))
        kill(process)
        arrived.append(_settled(registry, what))
    runs.append(len(registry.requests("upload-patch")))
    finish(start(registry.host, folder, what))
    log = registry.requests("upload-patch")
    found = []
    for before, first in zip(arrived, runs[1:], strict=True):
        begins = int(log[first].headers["content-range"].partition("-")[0]) if first < len(log) else what.size
        found.append(Killed(arrived=before, resumed_at=begins))
    return found


def _arrived(registry: FaultRegistry, what: Blob) -> int:
    if str(what.digest) in registry.repository(APP).blobs:
        return what.size
    return max((one.size for one in list(registry.uploads.sessions.values())), default=0)


def _settled(registry: FaultRegistry, what: Blob) -> int:
    """What arrived when nothing more comes of a connection whose other end is gone."""
    while True:
        before = _arrived(registry, what)
        time.sleep(0.05)
        if _arrived(registry, what) == before:
            return before
