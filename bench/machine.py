"""What a run costs: seconds, bytes through the registries' ports, memory of all its processes, disk.

The bench runs in a network namespace of its own. Nothing else is in it, so the packet filter's counters on a registry's
port are what its clients moved. The heads of IP and TCP are taken off, so that HTTP is what is counted.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    Command = Sequence[str] | Callable[[], object]

_INSIDE = "IMGBUILD_BENCH_INSIDE"
_SAMPLE_SECONDS = 0.1
_HEAD_BYTES = 52
"""bytes of one packet that are IP's and TCP's, with its time stamps."""
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One run. Bytes `read` came from registries and bytes `written` went there; `peak` and `disk` are bytes."""

    seconds: float
    read: int | None
    written: int | None
    peak: int
    disk: int = 0
    output: str = field(default="", repr=False)


def isolated() -> bool:
    """Whether this process is in a namespace of its own."""
    return os.environ.get(_INSIDE) == "1"


def isolate(module: str, arguments: Sequence[str]) -> None:
    """Run a module again in a network and mount namespace of its own, where that is allowed; returns where it is not.

    Mounts that an engine leaves behind end with the namespace.
    """
    if isolated() or os.geteuid() != 0 or shutil.which("iptables") is None or shutil.which("unshare") is None:
        return
    if subprocess.run(["unshare", "--net", "--mount", "true"], check=False, capture_output=True).returncode:
        return
    command = ["unshare", "--net", "--mount", "--", sys.executable, "-m", module, *arguments]
    os.execvpe(command[0], command, {**os.environ, _INSIDE: "1"})  # noqa: S606 - no shell is what is wanted


def loopback_up() -> None:
    """Give the namespace its loopback; nothing where we are not in one."""
    if isolated():
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


class Traffic:
    """Counts the bytes to and from one port."""

    def __init__(self, port: int) -> None:
        self._port = port
        if isolated():
            for way in ("--dport", "--sport"):
                subprocess.run(["iptables", "-A", "INPUT", "-p", "tcp", way, str(port)], check=True)

    def bytes(self) -> tuple[int, int] | None:
        """Bytes from the port and to it since it is counted; None where nothing counts."""
        if not isolated():
            return None
        listing = subprocess.run(["iptables", "-nvxL", "INPUT"], check=True, capture_output=True, text=True).stdout
        found = dict.fromkeys(("spt", "dpt"), 0)
        for line in listing.splitlines():
            match = re.search(rf"\b(spt|dpt):{self._port}\b", line)
            if match:
                packets, count = map(int, line.split()[:2])
                found[match.group(1)] += count - packets * _HEAD_BYTES
        return found["spt"], found["dpt"]


class Meter:
    """Measures runs of programs that talk to some registries."""

    def __init__(self, traffic: Iterable[Traffic] = ()) -> None:
        self._traffic = tuple(traffic)

    def run(
        self,
        *commands: Command,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        daemons: Iterable[int] = (),
        disk: Iterable[Path] = (),
        space: Path | None = None,
        expect: tuple[int, ...] = (0,),
    ) -> Cost:
        """Run programs one after the other (or call what is no program) and say what they cost together.

        Args:
            commands: each the arguments of a program, or a function.
            env: its whole environment.
            cwd: its folder.
            daemons: processes that work for it; their memory is counted, with that of their children.
            disk: folders whose growth counts; the most that they held at once is what is said.
            space: a folder whose file system is looked at instead, for files that have no name: what was free in the
                end and was not meanwhile. Whatever else writes there meanwhile is in it.
            expect: exit codes that are success.
        """
        os.sync()
        folders = tuple(disk)
        before = self._bytes()
        held = usage(folders)
        output = []
        with _Watch(tuple(daemons), folders, space) as watch:
            started = time.perf_counter()
            for command in commands:
                if callable(command):
                    command()
                else:
                    output.append(_run(command, env, cwd, expect))
            seconds = time.perf_counter() - started
        after = self._bytes()
        moved = (None, None) if before is None or after is None else (after[0] - before[0], after[1] - before[1])
        most = max(watch.disk, usage(folders))
        hidden = 0 if space is None else max(0, _free(space) - watch.free)
        return Cost(
            seconds=seconds,
            read=moved[0],
            written=moved[1],
            peak=watch.peak,
            disk=max(0, most - held, hidden),
            output="".join(output),
        )

    def _bytes(self) -> tuple[int, int] | None:
        rows = [traffic.bytes() for traffic in self._traffic]
        known = [row for row in rows if row is not None]
        return (sum(row[0] for row in known), sum(row[1] for row in known)) if known else None


def _run(command: Sequence[str], env: Mapping[str, str] | None, cwd: Path | None, expect: tuple[int, ...]) -> str:
    answer = subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, check=False)
    if answer.returncode not in expect:
        tail = (answer.stdout + answer.stderr)[-3000:]
        raise RuntimeError(f"{' '.join(command)[:300]} ended with {answer.returncode}:\n{tail}")
    return answer.stdout


class _Watch:
    """Samples the memory of processes and their children, and small folders' disk, while something runs."""

    def __init__(self, daemons: tuple[int, ...], folders: tuple[Path, ...], space: Path | None) -> None:
        self.peak = 0
        self.disk = 0
        self.free = 0 if space is None else _free(space)
        self._space = space
        self._daemons = set(daemons)
        self._folders = folders
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._before = _below({os.getpid()}, _parents()) - self._daemons

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._end.wait(_SAMPLE_SECONDS):
            # To look for processes takes some of what is measured: once for each sample.
            parents = _parents()
            roots = self._daemons | (_below({os.getpid()}, parents, 1) - self._before)
            self.peak = max(self.peak, sum(map(_resident, roots | _below(roots, parents))))
            self.disk = max(self.disk, usage(self._folders, few=200))
            if self._space is not None:
                self.free = min(self.free, _free(self._space))


def _free(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def _parents() -> dict[int, list[int]]:
    """The children of every process."""
    parents: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                fields = Path(f"/proc/{entry.name}/stat").read_text().rpartition(")")[2].split(None, 2)
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    return parents


def _below(roots: set[int], parents: dict[int, list[int]], depth: int = 64) -> set[int]:
    """Processes that others began, directly or not."""
    found: set[int] = set()
    level = roots
    for _ in range(depth):
        level = {child for parent in level for child in parents.get(parent, ())} - found
        if not level:
            break
        found |= level
    return found


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0


def usage(folders: Iterable[Path], *, few: int | None = None) -> int:
    """Allocated bytes of all files below folders; with `few`, 0 where there are more files than that."""
    total = 0
    count = 0
    for folder in folders:
        for root, _, names in os.walk(folder):
            for name in names:
                count += 1
                if few is not None and count > few:
                    return 0
                try:
                    total += os.lstat(os.path.join(root, name)).st_blocks * 512
                except OSError:
                    continue
    return total
