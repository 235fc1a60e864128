"""All writing to disk, in one place: temporary file, fsync, rename. What has its final name is whole (case C59).

But for small files of the cache, which are not synced: after a crash of the machine one of them may be damaged.

No other module opens a file for writing; a test looks. So every write of the program can be made to fail in tests.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self

from imgbuild.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

NEW_FILE_MODE = 0o644
"""of a file that was not there."""
_PENDING = ".imgbuild-pending-"
_SWEPT: set[Path] = set()
"""Folders in which this process has looked for what killed ones left."""
_NEARLY_FULL_BYTES = 1024 * 1024
"""bytes; a program that failed with less than that left on the disk has failed for want of space."""
_FULL = re.compile(r"(?i)no space left|out of disk ?space|disk quota exceeded|NoSpaceLeft|DiskQuota")
_FULL_HINT = "free some space, or choose another place with --store or IMGBUILD_CACHE, and run it again"
_HINTS = {
    errno.EROFS: "that file system is mounted read-only; choose another place with --store, --cache or IMGBUILD_CACHE",
    errno.EIO: "the disk or its connection is faulty; see the log of the kernel",
    errno.ELOOP: "that is a symbolic link, which is not followed; remove it",
    errno.ENOTDIR: "a part of that path is a file, not a folder; remove it, or choose another place",
}
"""What to do where it is not a matter of permissions."""
_POLL_SECONDS = 0.05
"""seconds between two tries to get a lock that has a time limit."""
_SAY_SECONDS = 1.0
"""seconds that one waits for a lock without saying so."""


class PendingFile:
    """A file that has no name yet. `commit` gives it one; without it nothing is left.

    Its writer holds a lock on it, so that `sweep` can tell it from what a killed process left. The first one that a
    process opens in a folder sweeps that folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            if folder not in _SWEPT:
                _SWEPT.add(folder)
                sweep(folder)
            self._fd, self._path = _locked_file(folder)

    def write(self, data: bytes) -> None:
        """Append bytes; a full disk is a `StorageError`."""
        view = memoryview(data)
        with storage_errors(self._folder):
            while view:
                view = view[os.write(self._fd, view) :]

    def commit(self, target: Path, *, mode: int = NEW_FILE_MODE, durable: bool = True) -> None:
        """Give it its final name, over what may be there.

        What is not `durable` may have other bytes after a crash of the machine, so only for what readers check.
        """
        with storage_errors(target):
            os.fchmod(self._fd, mode)
            if durable:
                os.fsync(self._fd)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(self._path, target)
            self._path = ""
            if durable:
                _sync_folder(target.parent)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # What close could still say, fsync has said: a file that was not synced has no name.
        with contextlib.suppress(OSError):
            os.close(self._fd)
        if self._path:
            with contextlib.suppress(OSError):
                os.unlink(self._path)


def write_file(target: Path, data: bytes, *, mode: int = NEW_FILE_MODE) -> None:
    """Write a whole file atomically and durably."""
    with PendingFile(target.parent) as pending:
        pending.write(data)
        pending.commit(target, mode=mode)


def anonymous(folder: Path) -> IO[bytes]:
    """A file without a name below `folder`, gone when it is closed; its writer minds `storage_errors`."""
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryFile(dir=folder, buffering=0)


def memory_file(size: int) -> IO[bytes]:
    """A file without a name, `size` zero bytes, to be mapped by several processes; in memory where the system has such.

    They are written, since memory over a hole in a file on a full disk would end whoever writes to it.
    """
    if hasattr(os, "memfd_create"):
        file: IO[bytes] = os.fdopen(os.memfd_create("imgbuild"), "r+b", 0)
    else:
        file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - the caller closes it
    file.write(bytes(size))
    return file


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
    """Remove the pending files of processes that were killed; those that somebody writes are locked, and stay.

    As much as can be: what another user left in a shared folder may have to stay too.
    """
    for path in folder.glob(f"{_PENDING}*"):
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(fd)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, where they are missing."""
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)


@contextlib.contextmanager
def work_folder(parent: Path | None, *, prefix: str = ".work-") -> Iterator[Path]:
    """A folder for a program outside, gone at the end with all that the program left in it.

    Args:
        parent: an existing folder; None takes the one that this machine has for temporary files.
        prefix: the beginning of its name. If this process is killed hard, the folder stays.

    Gives the path with links resolved. `StorageError` if it cannot be made.
    """
    with storage_errors(parent or Path(tempfile.gettempdir())):
        work = Path(tempfile.mkdtemp(prefix=prefix, dir=parent)).resolve()
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def extract_file(target: Path, pieces: Iterable[bytes], mode: int = NEW_FILE_MODE) -> None:
    """Write a new file inside of a work folder, with the folders above it; neither atomic nor durable.

    A file that is there already is a `StorageError`. What reading the pieces raises passes through.
    """
    with storage_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        file = target.open("xb", buffering=0)
    with file:
        for piece in pieces:
            view = memoryview(piece)
            with storage_errors(target):
                while view:
                    view = view[file.write(view) :]
        with storage_errors(target):
            os.fchmod(file.fileno(), mode)


def move_folder(source: Path, target: Path) -> None:
    """Give a finished folder its final name, unless one is there: then another process was first, and its is kept.

    The files inside are not synced here: after a power failure the folder can be incomplete.
    """
    with storage_errors(target):
        try:
            os.rename(source, target)
        except OSError:
            if not target.is_dir():
                raise


@contextlib.contextmanager
def exclusive(
    path: Path,
    *,
    seconds: float | None = None,
    remove: bool = False,
    waiting: Callable[[], object] = lambda: None,
    check: Callable[[], object] | None = None,
) -> Iterator[None]:
    """Hold a lock between processes, and between threads.

    Args:
        path: the lock file.
        seconds: how long to wait, then it is a `StorageError`; None waits as long as it takes.
        remove: whether its file is gone afterwards, for locks of which there are many. If this process is killed hard,
            the file stays, and is taken again.
        waiting: called once, in another thread, when somebody else has held the lock for `_SAY_SECONDS`.
        check: called again and again while one waits; what it raises ends that, for threads that no signal reaches.
    """
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    say = threading.Timer(_SAY_SECONDS, waiting)
    say.daemon = True
    say.start()
    try:
        fd = _lock(path, seconds, check)
    finally:
        say.cancel()
    try:
        yield
    finally:
        if remove:
            # While it is held: whoever waits for this file sees that it has no name any more, and opens the next one.
            with contextlib.suppress(OSError):
                path.unlink()
        os.close(fd)


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Have others who want to be alone in a folder wait, for moments: to look whether a file changed, and write it.

    Where a file system has no locks for folders (NFS), nobody waits: a file may change between the two.
    """
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _lock(path: Path, seconds: float | None, check: Callable[[], object] | None) -> int:
    """An open file that is locked and still has its name: another holder may have removed it while we waited."""
    deadline = None if seconds is None else time.monotonic() + seconds
    while True:
        with storage_errors(path):
            fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, NEW_FILE_MODE)
        try:
            _wait_for(fd, path, seconds, deadline, check)
            if os.fstat(fd).st_nlink:
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _wait_for(
    fd: int, path: Path, seconds: float | None, deadline: float | None, check: Callable[[], object] | None
) -> None:
    if deadline is None and check is None:
        with storage_errors(path):
            fcntl.flock(fd, fcntl.LOCK_EX)
        return
    while True:
        with storage_errors(path), contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        if deadline is not None and time.monotonic() > deadline:
            raise StorageError(
                str(path),
                f"was held by another process for {seconds:g} seconds",
                hint="wait for that process, or end it; a lock of a dead process frees itself",
            )
        if check is not None:
            check()
        time.sleep(_POLL_SECONDS)


@contextlib.contextmanager
def storage_errors(path: Path, done: str = "written") -> Iterator[None]:
    """Turn an `OSError` into a `StorageError` that says what cannot be `done` with the path, and what to do."""
    try:
        yield
    except OSError as error:
        full = error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
        hint = _FULL_HINT if full else _HINTS.get(error.errno or 0, "check the permissions of that folder")
        problem = f"cannot be {done}: {'the disk is full' if full else error.strerror}"
        raise StorageError(str(path), problem, hint=hint) from error


def refuse_full(folder: Path, said: str) -> None:
    """A `StorageError` if a program outside has probably failed because the disk of a folder that it writes to is full.

    Programs say so in many words or in none, and remove what they began: both its words and the free space are clues.
    The folder may be one that was made for the program and has a name by chance, so the error names the one above it.
    """
    free = _NEARLY_FULL_BYTES
    with contextlib.suppress(OSError):
        free = shutil.disk_usage(folder).free
    if free < _NEARLY_FULL_BYTES or _FULL.search(said):
        raise StorageError(
            str(folder.parent), "cannot be written: the disk is full", actual=f"{free} bytes free", hint=_FULL_HINT
        )


def _locked_file(folder: Path) -> tuple[int, str]:
    while True:
        fd, path = tempfile.mkstemp(prefix=_PENDING, dir=folder)
        fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_nlink:
            return fd, path
        # Somebody swept between the two calls.
        os.close(fd)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
