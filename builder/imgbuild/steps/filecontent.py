"""A large file of a source, that goes into a layer and is hashed by whoever reads it to its end."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from imgbuild.adapters.blobs import open_regular, unreadable
from imgbuild.digest import VerifiedReader
from imgbuild.errors import DigestMismatchError

if TYPE_CHECKING:
    import io
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from imgbuild.digest import Digest, Readable


@dataclass(frozen=True, slots=True, kw_only=True)
class FileContent:
    """A large file on disk. That it has its digest is found out when it is read to its end, not before."""

    path: Path
    size: int
    digest: Digest
    check: Callable[[], None]
    """Reads the file anew; a `DigestMismatchError` if it is damaged, which is then put out of the way."""

    @contextlib.contextmanager
    def open(self) -> Iterator[Readable]:
        """The bytes; at their end all are checked."""
        with self.file() as file:
            try:
                yield VerifiedReader(file, self.digest, self.size, subject=str(self.path))
            except DigestMismatchError:
                self.check()
                raise

    def file(self) -> io.FileIO:
        """The file, seekable and unchecked; a `LayoutError` where it is gone or cannot be read."""
        try:
            return open_regular(self.path)
        except OSError as error:
            raise unreadable(f"file {self.path}", error) from error
