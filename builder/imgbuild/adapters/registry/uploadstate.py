"""What is kept on disk of uploads that have begun: the newest Location, by repository and digest."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from imgbuild import jsontext
from imgbuild.adapters.blobs import bounded, open_regular
from imgbuild.adapters.durable import exclusive, remove, write_file
from imgbuild.config import KIB
from imgbuild.digest import Digest
from imgbuild.errors import DocumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_BYTES = 64 * KIB
_PRIVATE = 0o600
"""A Location is a capability: whoever has it can write to the upload."""


class UploadMemory:
    """A folder of small files. What cannot be read is forgotten; nothing in it is trusted but to be asked about."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextlib.contextmanager
    def hold(
        self,
        repository: str,
        digest: Digest,
        *,
        waiting: Callable[[], object] = lambda: None,
        check: Callable[[], object] | None = None,
    ) -> Iterator[None]:
        """Keep other processes of this machine from sending the same blob to the same place meanwhile.

        Args:
            repository: `host/name`.
            digest: of the blob.
            waiting: called in another thread if somebody else has held it for a second.
            check: called again and again while one waits; what it raises ends that.
        """
        path = self._path(repository, digest).with_suffix(".lock")
        with exclusive(path, remove=True, waiting=waiting, check=check):
            yield

    def recall(self, repository: str, digest: Digest) -> str | None:
        """The Location of an upload that has begun, or None."""
        try:
            with open_regular(self._path(repository, digest)) as file:
                value = jsontext.loads(b"".join(bounded(file, _BYTES)), subject="upload", max_bytes=_BYTES)
        except (OSError, DocumentError):
            return None
        if not isinstance(value, dict) or (value.get("repository"), value.get("digest")) != (repository, str(digest)):
            return None
        location = value.get("location")
        return location if isinstance(location, str) and "://" in location else None

    def keep(self, repository: str, digest: Digest, location: str) -> None:
        """Write down the newest Location."""
        body = {"repository": repository, "digest": str(digest), "location": location}
        write_file(self._path(repository, digest), jsontext.dumps(body), mode=_PRIVATE)

    def forget(self, repository: str, digest: Digest) -> None:
        """Nothing is to be resumed any more."""
        remove(self._path(repository, digest))

    def _path(self, repository: str, digest: Digest) -> Path:
        return self._folder / f"{Digest.of(f'{repository} {digest}'.encode()).encoded}.json"
