"""What the refusal tests need: a registry of rows, changes to a locked tiny project, and what a store looks like."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from imgbuild.config import KIB
from imgbuild.digest import Digest
from imgbuild.steps.lock import make_lock, write_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.tiny import Tiny

BUILD = ("build", "tiny", "--offline")
LOCK = ("lock", "tiny", "--offline")
_OURS = {".imgbuild-lock", ".imgbuild-build-lock"}
"""Lock files of the store: they say nothing, and stay because removing them would race."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """How a command must refuse: `says` stands in the one error line, and the values are those of the document.

    `again` sets up what the first of two runs took away (a damaged copy in the cache).
    """

    exit_code: int
    code: str
    says: tuple[str, ...]
    command: tuple[str, ...] = BUILD
    again: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """How a verification must say no (exit code 1): a finding of `check` about `subject`, with both values."""

    check: str
    subject: str
    expected: str
    actual: str


def snapshot(tiny: Tiny) -> dict[str, str]:
    """Digests of all files of the store and of the repository's documents; a link or device is named as one."""
    found = {}
    for root in (tiny.store_path, tiny.root / "locks", tiny.root / "layers"):
        for path in sorted(root.rglob("*")):
            if path.name in _OURS or (path.is_dir() and not path.is_symlink()):
                continue
            plain = path.is_file() and not path.is_symlink()
            found[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest() if plain else "not a plain file"
    return found


def blob(tiny: Tiny, digest: object) -> Path:
    """Where the store keeps a blob."""
    return tiny.store_path / "blobs" / "sha256" / Digest.parse(str(digest)).encoded


def cached(tiny: Tiny, digest: object) -> Path:
    """Where the cache keeps a blob."""
    return tiny.cache_path / "blobs" / "sha256" / Digest.parse(str(digest)).encoded


def flip(path: Path, at: int = -1) -> str:
    """Flip one bit of a file, by default in its middle; returns the digest that it has then."""
    data = bytearray(path.read_bytes())
    data[at if at >= 0 else len(data) // 2] ^= 1
    path.write_bytes(data)
    return str(Digest.of(bytes(data)))


def digest_of(path: Path) -> str:
    """The digest of a file."""
    return str(Digest.of(path.read_bytes()))


def locked(tiny: Tiny) -> dict[str, Any]:
    """The lock as JSON, to be changed and given to `forge`."""
    value = json.loads(tiny.project().lock_path("tiny").read_bytes())
    assert isinstance(value, dict)
    return value


def forge(tiny: Tiny, value: dict[str, Any]) -> None:
    """Write a lock that no `imgbuild lock` wrote."""
    tiny.project().lock_path("tiny").write_text(json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False) + "\n")


def source(value: dict[str, Any], name: str) -> dict[str, Any]:
    """The pin of a source in a lock as JSON."""
    row = next(item for item in value["pins"]["sources"] if item["name"] == name)
    assert isinstance(row, dict)
    return row


def states(value: dict[str, Any], path: str) -> list[str]:
    """The states of a file in a lock as JSON, to be changed in place."""
    row = next(item for item in value["pins"]["files"] if item["path"] == path)["states"]
    assert isinstance(row, list)
    return row


def relock(tiny: Tiny, *update: str, keep: bool = True) -> None:
    """Write the project and lock it; with `keep` its pins stay, so that pip is not asked."""
    tiny.write()
    project = tiny.project()
    old = project.lock("tiny") if keep else None
    outcome = make_lock(tiny.context(offline=False), project.load("tiny"), old, update=frozenset(update))
    write_lock(project.lock_path("tiny"), outcome.lock, old=project.lock("tiny"))


def pin_wheel(tiny: Tiny, name: str, filename: str, data: bytes) -> None:
    """Put a wheel into the cache and pin it, as `imgbuild lock --update` would."""
    digest, size = tiny.context().cache.put([data])
    value = locked(tiny)
    source(value, name).update(filename=filename, digest=str(digest), size=size)
    forge(tiny, value)


def swap_library(tiny: Tiny, data: bytes) -> str:
    """Let the definition's new library be other bytes, and lock that; returns their digest."""
    tiny.new_library = data
    filename, wheel = tiny.keep_wheels()["nccl-wheel"]
    pin_wheel(tiny, "nccl-wheel", filename, wheel)
    value = locked(tiny)
    digest = str(Digest.of(data))
    source(value, "nccl").update(digest=digest, size=len(data), wheel_digest=source(value, "nccl-wheel")["digest"])
    forge(tiny, value)
    relock(tiny)
    return digest


def commit_again(tiny: Tiny, change: Callable[[Path], object], *, amend: bool = False) -> str:
    """Change the adapter's sources and write its bundle anew; returns the commit. With `amend` the old one is gone."""
    work = tiny.root / "adapter-work"
    change(work)
    identity = {"NAME": "t", "EMAIL": "t@t", "DATE": "1700000001 +0000"}
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(work),
        "GIT_CONFIG_NOSYSTEM": "1",
        **{f"GIT_{who}_{key}": text for who in ("AUTHOR", "COMMITTER") for key, text in identity.items()},
    }

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=work, env=env, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("add", "-A", ":!out.bundle")
    git("commit", "-qm", "two", *(["--amend"] if amend else []))
    git("bundle", "create", "-q", str(tiny.root / "adapter.bundle"), "main")
    return git("rev-parse", "HEAD")


@contextlib.contextmanager
def nearly_full(folder: Path, free: int) -> Iterator[None]:
    """Put what is in a folder on a real disk of its own that has `free` KiB left; in CI this must be possible."""
    kept = folder.with_name(f"{folder.name}.kept")
    folder.rename(kept)
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], capture_output=True, check=False)
    if done.returncode != 0:
        reason = f"cannot mount a small disk: {done.stderr.decode().strip()}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    try:
        shutil.copytree(kept, folder, symlinks=True, dirs_exist_ok=True)
        room = os.statvfs(folder)
        (folder / "filler").write_bytes(bytes(room.f_bavail * room.f_frsize - free * KIB))
        yield
    finally:
        subprocess.run(["umount", folder], check=True)
