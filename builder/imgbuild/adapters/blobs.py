"""Blobs by digest in a folder `blobs/<algorithm>/<hex>`: the common part of the store and of the cache."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
from typing import TYPE_CHECKING

from imgbuild.adapters.durable import PendingFile, remove, storage_errors
from imgbuild.digest import Digest, VerifiedReader, digest_of
from imgbuild.errors import DigestMismatchError, LayoutError, MissingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from imgbuild.digest import Readable
    from imgbuild.ledger import Ledger


class BlobFolder:
    """Content-addressed files. Every read is checked against the digest, or says that it is not."""

    def __init__(self, root: Path, *, place: str, ledger: Ledger) -> None:
        self.root = root
        self.place = place
        self.ledger = ledger
        self.repair = True
        """Whether a damaged blob is taken out of the way, so that the next run makes it anew; not while verifying."""

    def path(self, digest: Digest) -> Path:
        """Where a blob is, or would be."""
        # Hundreds are asked for in a row: to join once takes a third of the time.
        return self.root / f"blobs/{digest.algorithm}/{digest.encoded}"

    def has(self, digest: Digest, size: int | None = None) -> bool:
        """Whether a blob is here with that size in bytes. Its content is not looked at."""
        found = self.length(digest)
        return found is not None and size in {None, found}

    def length(self, digest: Digest) -> int | None:
        """The bytes that a blob has here, None where it is not here. Its content is not looked at."""
        try:
            found = self.path(digest).lstat()
        except OSError:
            return None
        return found.st_size if stat.S_ISREG(found.st_mode) else None

    @contextlib.contextmanager
    def open(self, digest: Digest, *, subject: str, offset: int = 0) -> Iterator[Readable]:
        """Open a blob for reading from a byte on; a `MissingError` if it is not here. The bytes are not checked.

        What is no regular file, a link too, is a `LayoutError`: reading it might not end.
        """
        try:
            file = open_regular(self.path(digest))
        except FileNotFoundError as error:
            raise MissingError(subject, "is not in the store", expected=digest, where=str(self.root)) from error
        except OSError as error:
            raise unreadable(subject, error, where=str(self.path(digest))) from error
        with file:
            file.seek(offset)
            yield _Counting(file, self)

    def verify(self, digest: Digest, size: int, *, subject: str, advance: Callable[[int], object] = int) -> None:
        """Read a blob whole and check size and digest; a damaged one is put out of the way (case C58).

        `advance` is told the number of bytes of each read, and may end it by an exception of its own.
        """
        with self.open(digest, subject=subject) as stream:
            try:
                VerifiedReader(stream, digest, size, subject=subject).drain(advance)
            except DigestMismatchError as error:
                self.quarantine(digest)
                error.hint = self._hint()
                raise

    def read(self, digest: Digest, *, subject: str, max_bytes: int, size: int | None = None) -> bytes:
        """A whole small blob, checked; at most `max_bytes`. With `size`, one more byte is damage, as another one is."""
        if size is not None and size > max_bytes:
            raise LayoutError(subject, "is too long", expected=f"at most {max_bytes} bytes", actual=f"{size} bytes")
        with self.open(digest, subject=subject) as stream:
            data = b"".join(bounded(stream, max_bytes if size is None else size))
        if size is None and len(data) > max_bytes:
            raise LayoutError(subject, "is too long", expected=f"at most {max_bytes} bytes")
        hasher = digest.hasher()
        hasher.update(data)
        if hasher.hexdigest() != digest.encoded or (size is not None and size != len(data)):
            self.quarantine(digest)
            raise DigestMismatchError(
                subject,
                "does not have its digest",
                expected=digest if size is None else f"{digest} ({size} bytes)",
                actual=f"{digest.algorithm}:{hasher.hexdigest()} ({len(data)} bytes)",
                hint=self._hint(),
            )
        return data

    def put(
        self, pieces: Iterable[bytes], *, expected: Digest | None = None, subject: str = "blob"
    ) -> tuple[Digest, int]:
        """Write a blob under its digest; with `expected`, other bytes are refused and nothing is left."""
        with self.pending() as pending:
            algorithm = "sha256" if expected is None else expected.algorithm
            digest, size = digest_of(_through(pieces, pending), algorithm)
            if expected is not None and digest != expected:
                raise DigestMismatchError(
                    subject, "does not have the recorded digest", expected=expected, actual=digest
                )
            self.commit(pending, digest, size)
        return digest, size

    def pending(self) -> PendingFile:
        """A file for a blob whose digest is not known yet."""
        return PendingFile(self.root / "blobs" / "sha256")

    def commit(self, pending: PendingFile, digest: Digest, size: int) -> None:
        """Give a pending file its name. If the same blob came first, ours replaces it with the same bytes."""
        pending.commit(self.path(digest))
        self.ledger.written(self.place, size)

    def quarantine(self, digest: Digest) -> None:
        """Take a damaged blob out of the way, if this folder may be repaired."""
        if self.repair:
            remove(self.path(digest))

    def _hint(self) -> str:
        if self.repair:
            return "the damaged copy was removed; run it again to make or fetch it anew"
        return "the copy on disk is damaged; `imgbuild build` makes what it built anew, a base must be put there again"


class _Counting:
    def __init__(self, file: Readable, folder: BlobFolder) -> None:
        self._file = file
        self._folder = folder

    def read(self, size: int, /) -> bytes:
        with storage_errors(self._folder.root, "read"):
            data = self._file.read(size)
        self._folder.ledger.read(self._folder.place, len(data))
        return data


def open_regular(path: Path) -> io.FileIO:
    """Open a file for reading; an `OSError` for links and all that is no file, without waiting for anybody."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
    # Looked at first: of a folder no file can be made, and then nobody would close it.
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return io.FileIO(fd, "rb")
    os.close(fd)
    raise OSError(errno.EINVAL, "it is no regular file", str(path))


def unreadable(subject: str, error: OSError, *, where: str | None = None) -> LayoutError:
    """The error for what `open_regular` refuses."""
    why = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror
    return LayoutError(subject, f"cannot be read: {why}", where=where)


def bounded(stream: Readable, limit: int) -> Iterator[bytes]:
    """One byte more than the limit, if there are so many, so that it can be told."""
    left = limit + 1
    while left and (data := stream.read(min(left, 1 << 20))):
        left -= len(data)
        yield data


def _through(pieces: Iterable[bytes], pending: PendingFile) -> Iterator[bytes]:
    for piece in pieces:
        pending.write(piece)
        yield piece
