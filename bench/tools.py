"""The programs that imgbuild is compared with, out of Debian's packages, unpacked beside the system and not installed.

Each suite has a folder of its own, so that two versions of one program do not meet. A newer suite's program is taken
only where it starts on an older one, which those named here do (containers need runc of bookworm, see `SUITES`).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

SUITES = {
    "bookworm": ("buildah", "runc", "busybox-static"),
    "trixie": ("docker.io", "docker-cli", "docker-buildx", "containerd"),
    "sid": ("docker.io", "docker-cli", "docker-buildx", "containerd", "crane"),
}
_SOURCES = Path("/etc/apt/sources.list.d/debian.sources")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """Where the programs are: one folder a suite, as its packages would be in `/`."""

    folder: Path

    def root(self, suite: str) -> Path:
        return self.folder / suite / "root"

    def path(self, suite: str) -> str:
        """A `PATH` with a suite's programs first, then runc of bookworm, then the machine's."""
        inside = ("usr/bin", "usr/sbin", "usr/libexec/docker", "bin", "sbin")
        folders = [self.root(name) / folder for name in (suite, "bookworm") for folder in inside]
        return ":".join([*map(str, folders), "/usr/sbin", "/usr/bin", "/sbin", "/bin"])

    def program(self, suite: str, name: str) -> str:
        found = shutil.which(name, path=self.path(suite))
        if found is None:
            raise SystemExit(f"{name} is not in {self.root(suite)}: was the download broken off? remove {self.folder}")
        return found

    def version(self, suite: str, name: str, *arguments: str) -> str:
        """The first thing in what a program prints that looks like a version."""
        answer = subprocess.run(
            [self.program(suite, name), *(arguments or ("--version",))], capture_output=True, text=True, check=False
        )
        found = re.search(r"\d+\.\d+\.\d+", answer.stdout + answer.stderr)
        return found.group() if found else "?"

    def package_version(self, suite: str, name: str) -> str:
        """The version of a package, for programs that do not say theirs."""
        lines = (self.folder / suite / "done").read_text().splitlines()[1:]
        return next((line.split("_")[1] for line in lines if line.startswith(f"{name}_")), "?")


def fetch(folder: Path) -> Tools:
    """Have all packages under `folder`; what is there already is not fetched again."""
    for suite, packages in SUITES.items():
        done = folder / suite / "done"
        wanted = " ".join(packages)
        if done.is_file() and done.read_text().splitlines()[0] == wanted:
            continue
        print(f"fetching {wanted} of {suite}", flush=True)
        done.write_text("\n".join([wanted, *_suite(folder / suite, suite, packages)]))
    return Tools(folder=folder)


def _suite(folder: Path, suite: str, packages: tuple[str, ...]) -> list[str]:
    """Fetch and unpack; the names of the files, which hold the versions."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("lists/partial", "cache/partial", "etc", "root"):
        (folder / name).mkdir(parents=True)
    if not _SOURCES.is_file():
        raise SystemExit(f"{_SOURCES} is not there: the tools come from Debian's packages")
    stanzas = [text for text in _SOURCES.read_text().split("\n\n") if text.strip() and "security" not in text]
    sources = "\n\n".join(re.sub(r"(?m)^Suites:.*$", f"Suites: {suite}", text) for text in stanzas)
    (folder / "etc" / f"{suite}.sources").write_text(sources)
    options = {
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": str(folder / "etc"),
        "Dir::State::Lists": str(folder / "lists"),
        "Dir::Cache::archives": str(folder / "cache"),
        "Dir::Cache::pkgcache": "",
        "Dir::Cache::srcpkgcache": "",
    }
    apt = ["apt-get", "-qq", *(word for name, value in options.items() for word in ("-o", f"{name}={value}"))]
    if os.geteuid() == 0:
        apt += ["-o", "APT::Sandbox::User=root"]
    subprocess.run([*apt, "update"], check=True)
    subprocess.run([*apt, "download", *packages], check=True, cwd=folder / "cache")
    files = sorted((folder / "cache").glob("*.deb"))
    for package in files:
        subprocess.run(["dpkg", "-x", str(package), str(folder / "root")], check=True)
        package.unlink()
    shutil.rmtree(folder / "lists")
    return [package.name for package in files]
