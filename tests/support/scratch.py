"""A tiny project that can be put back to a state in milliseconds, for tests that build hundreds of times."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Self

from imgbuild.model.lockfile import LockedWheel

from tests.support.tiny import Tiny

if TYPE_CHECKING:
    from imgbuild.model.lockfile import Lock

_MEMORY = "/dev/shm"
_ROOM = 64 * 1024 * 1024
"""bytes that must be free in memory."""


class Scratch:
    """A copy of a project, always at the same path, since the cache keeps git repositories by the URL of their source.

    It lies in memory where that can be had: a build waits for fsync most of its time. Putting a state back links files
    instead of copying them, so a program that wrote into a file with its final name would spoil it: `content` tells.
    """

    def __init__(self, source: Path) -> None:
        fast = os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _ROOM
        self._folder = tempfile.TemporaryDirectory(prefix="imgbuild-", dir=_MEMORY if fast else None)
        self.folder = Path(self._folder.name)
        self.root = self.folder / "project"
        self._states = self.folder / "states"
        shutil.copytree(source, self.root, symlinks=True)
        self.tiny = Tiny(self.root)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    @property
    def store(self) -> Path:
        return self.tiny.store_path

    @property
    def cache(self) -> Path:
        return self.tiny.cache_path

    def keep(self, name: str) -> None:
        """Remember the state as it is now."""
        shutil.rmtree(self._states / name, ignore_errors=True)
        shutil.copytree(self.root, self._states / name, symlinks=True)

    def restore(self, name: str) -> None:
        """Go back to a state."""
        shutil.rmtree(self.root)
        shutil.copytree(self._states / name, self.root, symlinks=True, copy_function=os.link)

    def content(self, name: str) -> dict[str, bytes]:
        """What a state holds."""
        return content_of(self._states / name)


def content_of(root: Path) -> dict[str, bytes]:
    """All files below a folder, links as their targets."""
    return {
        str(path.relative_to(root)): os.readlink(path).encode() if path.is_symlink() else path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def forget_derived(cache: Path, lock: Lock) -> None:
    """Take out of a cache what can be derived: inventories, small files, unpacked members.

    The wheels stay, which only pip brings, and so does the git repository, which only git writes.
    """
    wheels = {source.digest.encoded for source in lock.pins.sources if isinstance(source, LockedWheel)}
    for path in (cache / "blobs" / "sha256").iterdir():
        if path.name not in wheels:
            path.unlink()
    for name in ("inventories", "results", "spool"):
        shutil.rmtree(cache / name, ignore_errors=True)
