"""A process that sends one large synthetic blob to a registry, to be killed while it does.

`python -m tests.support.upload_driver HOST FOLDER SIZE CHUNK DIGEST [STALL]`: what is noted is printed, and `done` at
the end. With STALL it prints `stalled` at that byte and waits there, inside of a request.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from imgbuild.adapters.registry.access import connect
from imgbuild.adapters.registry.blobs import has_blob
from imgbuild.adapters.registry.repository import Repository
from imgbuild.adapters.registry.uploads import Upload
from imgbuild.adapters.registry.uploadstate import UploadMemory
from imgbuild.digest import Digest
from imgbuild.ledger import Ledger
from imgbuild.model.oci import Descriptor, Family

from tests.support.pushing import APP
from tests.support.remote import QUICK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imgbuild.digest import Readable

_PERIOD = 999_983
"""bytes after which the content repeats; a prime, so that no mistake in an offset goes unnoticed"""
_PATTERN = random.Random(11).randbytes(_PERIOD)
_LONG = _PATTERN * 3


class Synthetic:
    """A source of an upload that has no bytes anywhere."""

    def __init__(self, size: int, stall: int | None = None) -> None:
        self.size = size
        self.stall = stall

    @contextlib.contextmanager
    def open(self, offset: int) -> Iterator[Readable]:
        yield _Stream(self, offset)


class _Stream:
    def __init__(self, source: Synthetic, offset: int) -> None:
        self._source = source
        self._place = offset

    def read(self, size: int, /) -> bytes:
        if self._source.stall is not None and self._place >= self._source.stall:
            say("stalled")
            time.sleep(600)
        start = self._place % _PERIOD
        data = _LONG[start : start + min(size, _PERIOD, self._source.size - self._place)]
        self._place += len(data)
        return data


def digest_of(size: int) -> Digest:
    """The digest of so many bytes of it."""
    hasher = hashlib.sha256()
    with Synthetic(size).open(0) as stream:
        while data := stream.read(1 << 20):
            hasher.update(data)
    return Digest("sha256", hasher.hexdigest())


def say(text: str) -> None:
    """One line for whoever started us."""
    print(text, flush=True)


def main(arguments: list[str]) -> None:
    """Send it."""
    host, folder, size, chunk, digest, *stall = arguments
    file = Path(folder) / "registries.toml"
    file.write_text(f'schema = "imgbuild/registries/v1"\n[registry."{host}"]\nchunk-bytes = {chunk}\n')
    registries = connect(file, ledger=Ledger(), offline=False, note=say, patience=QUICK)
    blob = Descriptor(media_type=Family.OCI.layer_gzip, digest=Digest.parse(digest), size=int(size))
    source = Synthetic(int(size), int(stall[0]) if stall else None)
    memory = UploadMemory(Path(folder) / "uploads")
    repository = Repository(registries.of(host), APP)
    if not has_blob(repository, blob):
        Upload(repository, blob, source, memory=memory, advance=lambda _: None).run()
    say("done")


if __name__ == "__main__":
    main(sys.argv[1:])
