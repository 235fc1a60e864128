"""Real daemons of Docker, for tests and for the bench."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_READY_SECONDS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Dockerd:
    """A daemon that answers."""

    pid: int
    data: Path
    socket: Path


@contextlib.contextmanager
def dockerd(
    folder: Path, environment: Mapping[str, str], docker: str, *, containerd: bool | None = None
) -> Iterator[Dockerd]:
    """A daemon on a socket of its own, without any network; it is ended, and its files stay.

    Args:
        folder: for all of its files. A socket's path may have 107 bytes, so that it must not be long.
        environment: of the daemon; its PATH says which `dockerd` is meant.
        docker: the path of the program that asks whether it answers.
        containerd: whether it has containerd's store or its own one. The default has changed with the versions of
            dockerd, and 20.10 does not know the setting: it has to be None there.

    Raises:
        RuntimeError: it does not answer within a minute; with the end of what it logged.
    """
    config, socket, data = folder / "daemon.json", folder / "s", folder / "data"
    config.write_text(json.dumps({} if containerd is None else {"features": {"containerd-snapshotter": containerd}}))
    command = [
        "dockerd", "--config-file", str(config), "--data-root", str(data),
        "--exec-root", str(folder / "exec"), "--pidfile", str(folder / "pid"), "--host", f"unix://{socket}",
        "--iptables=false", "--ip6tables=false", "--bridge=none", "--ip-forward=false", "--ip-masq=false",
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    try:
        _wait([docker, "--host", f"unix://{socket}", "version"], environment, process, folder / "log")
        yield Dockerd(pid=process.pid, data=data, socket=socket)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait(asking: list[str], environment: Mapping[str, str], process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + _READY_SECONDS
    while time.monotonic() < end and process.poll() is None:
        if not subprocess.run(asking, env=environment, capture_output=True, check=False, timeout=60).returncode:
            return
        time.sleep(0.1)
    raise RuntimeError(f"dockerd did not start:\n{log.read_text()[-3000:]}")
