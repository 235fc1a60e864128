"""All writing to disk, in one place: temporary file, fsync, rename. What has its final name is whole (case C59).

No other module opens a file for writing; a test looks. So every write of the program can be made to fail in tests.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import tempfile
from typing import TYPE_CHECKING, BinaryIO, Self, cast

from imgbuild.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_MODE = 0o644
_SPOOL_BYTES = 16 * 1024 * 1024
"""bytes of a spooled file that stay in memory."""


class PendingFile:
    """A file that has no name yet. `commit` gives it one; without it nothing is left."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._fd, self._path = tempfile.mkstemp(prefix=".pending-", dir=folder)

    def write(self, data: bytes) -> None:
        """Append bytes; a full disk is a `StorageError`."""
        view = memoryview(data)
        with storage_errors(self._folder):
            while view:
                view = view[os.write(self._fd, view) :]

    def commit(self, target: Path) -> None:
        """Make it durable under its final name, over what may be there."""
        with storage_errors(target):
            os.fchmod(self._fd, _MODE)
            os.fsync(self._fd)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(self._path, target)
            self._path = ""
            _sync_folder(target.parent)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
        if self._path:
            with contextlib.suppress(OSError):
                os.unlink(self._path)


def write_file(target: Path, data: bytes) -> None:
    """Write a whole file atomically and durably."""
    with PendingFile(target.parent) as pending:
        pending.write(data)
        pending.commit(target)


def spool(folder: Path) -> BinaryIO:
    """An anonymous temporary file below `folder`, gone when it is closed."""
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        return cast("BinaryIO", tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES, dir=str(folder)))


def move(source: Path, target: Path) -> None:
    """Give a whole, synced file another name in the same file system."""
    with storage_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(source, target)
        _sync_folder(target.parent)


def remove(target: Path) -> None:
    """Remove a file; nothing happens if it is not there."""
    with storage_errors(target):
        target.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Remove what interrupted runs left; only while holding the folder's lock."""
    for path in folder.glob(".pending-*"):
        remove(path)


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold a lock between processes; waits. The lock file stays, since removing it would race."""
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, _MODE)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn an `OSError` of writing into a `StorageError` that says what to do."""
    try:
        yield
    except OSError as error:
        full = error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
        raise StorageError(
            str(path),
            "cannot be written: the disk is full" if full else f"cannot be written: {error.strerror}",
            hint="free some space, or choose another place with --store or IMGBUILD_CACHE, and run it again"
            if full
            else "check the permissions of that folder",
        ) from error


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
