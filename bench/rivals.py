"""The same change by other tools: BuildKit three ways, buildah, and `crane append`. Each is at its best that we know.

Library and small files are two COPY steps (or two layers), so that a change of a small file sends that layer alone.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.machine import Cost, Meter, usage
from tests.support.dockerd import dockerd

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bench.tools import Tools
    from tests.support.dockerd import Dockerd

_COPY = "FROM {base}\nCOPY{flag} library/ /\nCOPY{flag} rest/ /\n"
_RUN = (
    "FROM {base}\n"
    "RUN --mount=type=bind,target=/tmp/change --mount=type=bind,from=tools,target=/tmp/tools "
    '["/tmp/tools/busybox", "cp", "-a", "/tmp/change/library/.", "/tmp/change/rest/.", "/"]\n'
)
"""The program is a static one of this machine, so that nothing is emulated."""
RECIPES = {
    "COPY": (_COPY.replace("{flag}", ""), ""),
    "RUN": (_RUN, ""),
    "COPY --link, store=false": (_COPY.replace("{flag}", " --link"), ",store=false"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is to be made, by whom, and where."""

    tools: Tools
    meter: Meter
    work: Path
    change: Path
    base: str
    target: str

    def touch(self) -> None:
        """Change one byte of a small file, and no size."""
        path = self.change / "rest/opt/bench/00.txt"
        text = path.read_text()
        path.write_text(f"{int(text[:8]) + 1:08}{text[8:]}")

    def environment(self, suite: str) -> dict[str, str]:
        """Nothing of the user's: a home of its own without credentials."""
        home = self.work / f"home-{suite}"
        (home / "tmp").mkdir(parents=True, exist_ok=True)
        (home / "config.json").write_text("{}")
        return {
            "PATH": self.tools.path(suite),
            "HOME": str(home),
            "DOCKER_CONFIG": str(home),
            "TMPDIR": str(home / "tmp"),
            "OTEL_TRACES_EXPORTER": "none",
        }


Pair = tuple[Cost, Cost]
"""Cold and warm."""


def buildkit(job: Job, suite: str, recipe: str, *, warm: bool = True) -> Pair:
    """BuildKit of dockerd, with the containerd store, in an empty data root."""
    text, option = RECIPES[recipe]
    name = "".join(letter for letter in recipe.lower() if letter.isalpha())
    context = job.change
    (context / "Dockerfile").write_text(text.format(base=job.base))
    env = job.environment(suite)
    plugins = job.work / f"home-{suite}" / "cli-plugins"
    if not plugins.exists():
        plugins.symlink_to(job.tools.root(suite) / "usr/libexec/docker/cli-plugins")
    binaries = job.work / "static"
    binaries.mkdir(exist_ok=True)
    shutil.copy2(job.tools.program("bookworm", "busybox"), binaries / "busybox")

    def command(daemon: Dockerd, tag: str) -> list[str]:
        image = f"{job.target}-{suite}-{name}:{tag}"
        return [
            job.tools.program(suite, "docker"), "--host", f"unix://{daemon.socket}", "buildx", "build", "--quiet",
            "--platform", "linux/arm64", "--network", "none", "--provenance=false", "--sbom=false",
            "--build-context", f"tools={binaries}", "--output", f"type=image,name={image},push=true{option}",
            str(context),
        ]  # fmt: skip

    with _daemon(job, suite) as daemon:

        def run(tag: str) -> Cost:
            return job.meter.run(command(daemon, tag), env=env, daemons=(daemon.pid,))

        cold = run("cold")
        disk = usage([daemon.data])
        job.touch()
        second = run("warm") if warm else cold
    return _with_disk(cold, disk), second


def buildah(job: Job) -> Pair:
    """`buildah build` with plain COPY, and `buildah push`."""
    env = job.environment("bookworm")
    data = job.work / "buildah"
    own = [job.tools.program("bookworm", "buildah"), "--root", str(data / "root"), "--runroot", str(data / "run")]
    policy = job.work / "policy.json"
    policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
    (job.change / "Dockerfile").write_text(RECIPES["COPY"][0].format(base=job.base))
    own += ["--storage-driver", "overlay"]
    build = [*own, "build", "--quiet", "--layers", "--signature-policy", str(policy), "--tls-verify=false"]

    def run(tag: str) -> Cost:
        image = f"{job.target}-buildah:{tag}"
        return job.meter.run(
            [*build, "--platform", "linux/arm64", "--network", "none", "-t", image, str(job.change)],
            [*own, "push", "--quiet", "--signature-policy", str(policy), "--tls-verify=false", image],
            env=env,
        )

    try:
        cold = run("cold")
        disk = usage([data])
        job.touch()
        return _with_disk(cold, disk), run("warm")
    finally:
        _unmount(data)
        shutil.rmtree(data, ignore_errors=True)


def crane_append(job: Job) -> Pair:
    """`tar`, and `crane append` of what it wrote. Nothing of the base is looked at."""
    env = job.environment("sid")
    archive = job.work / "change.tar"

    def run(tag: str) -> Cost:
        parts = [word for part in ("library", "rest") for word in ("-C", str(job.change / part), ".")]
        tar = ["tar", "-cf", str(archive), *parts]
        crane = [job.tools.program("sid", "crane"), "append", "-b", job.base, "-f", str(archive)]
        return job.meter.run(tar, [*crane, "-t", f"{job.target}-crane:{tag}"], env=env, disk=[job.work / "home-sid"])

    try:
        cold = run("cold")
        disk = usage_of(archive)
        job.touch()
        return _with_disk(cold, disk), run("warm")
    finally:
        archive.unlink(missing_ok=True)


def usage_of(path: Path) -> int:
    """Allocated bytes of a file."""
    return path.stat().st_blocks * 512


@contextlib.contextmanager
def _daemon(job: Job, suite: str) -> Iterator[Dockerd]:
    """A daemon of its own, with containerd's store, whose folders are removed at the end."""
    folder = job.work / f"dockerd-{suite}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        with dockerd(folder, job.environment(suite), job.tools.program(suite, "docker"), containerd=True) as found:
            yield found
    finally:
        _unmount(folder)
        shutil.rmtree(folder, ignore_errors=True)


def _unmount(folder: Path) -> None:
    """What an engine left mounted below its folder, the deepest first."""
    with open("/proc/self/mounts", encoding="utf-8") as file:
        points = [line.split()[1] for line in file]
    for point in sorted((point for point in points if point.startswith(f"{folder}/")), key=len, reverse=True):
        subprocess.run(["umount", "--lazy", point], check=False, capture_output=True)


def _with_disk(cost: Cost, disk: int) -> Cost:
    return Cost(
        seconds=cost.seconds, read=cost.read, written=cost.written, peak=cost.peak, disk=disk, output=cost.output
    )
