"""What a process does that reads layers for another one (`steps.readers`), and what the two say to each other.

For each layer: a `Job`; its bytes as a stream, unless the job names a file; `Went` as often as the
file has gone on, each to be answered by any message; in the end one `Done` or `Failed`. Registries, credentials and the
ledger stay where they are: nothing here asks anybody for anything.
"""

from __future__ import annotations

import functools
import os
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from imgbuild.adapters.blobs import open_regular
from imgbuild.adapters.cache import Cache
from imgbuild.adapters.child import GoneError
from imgbuild.config import MIB
from imgbuild.digest import Digest
from imgbuild.errors import ImgbuildError
from imgbuild.ledger import Ledger
from imgbuild.model.oci import Descriptor
from imgbuild.steps.layers import Bounded, scan

if TYPE_CHECKING:
    from imgbuild.adapters.child import Parent
    from imgbuild.digest import Readable

_WENT_BYTES = 8 * MIB


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A layer as stored, and the DiffID that a config claims for it; paths as the file system has them."""

    media_type: str
    digest: str
    size: int
    diff_id: str
    assumed: bool
    """The DiffID is not hashed (`scan_layer`)."""
    cache: bytes
    file: bytes | None
    """Has the layer."""


class Went(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """So many more bytes of the file were read."""

    count: int


class Done(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The layer's digest and size in bytes as it was read, and its inventory as a document.

    `kept` is the number of bytes that were put into the cache.
    """

    digest: str
    size: int
    inventory: bytes
    kept: int


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What the reading ended with: the name of an error's class and its fields, or a traceback of what is no error."""

    kind: str
    fields: dict[str, bytes]
    trace: str = ""

    @classmethod
    def of(cls, error: ImgbuildError) -> Failed:
        """What is sent of an error. Of a class that takes other arguments, it is the nearest one that does not."""
        line = type(error).__mro__
        line = line[: line.index(ImgbuildError) + 1]
        own = [number for number, kind in enumerate(line[:-1]) if "__init__" in vars(kind)]
        found = {name: getattr(error, name) for name in _FIELDS}
        # A path in it may be no text.
        fields = {name: value.encode("utf-8", "surrogatepass") for name, value in found.items() if value is not None}
        return cls(kind=line[own[-1] + 1 if own else 0].__name__, fields=fields)

    def raise_it(self) -> None:
        """Raise the same, with the traceback of over there if it is no error of ours."""
        fields = {name: value.decode("utf-8", "surrogatepass") for name, value in self.fields.items()}
        if self.trace:
            raise RuntimeError(self.trace.rstrip().rpartition("\n")[2]) from _Traceback(self.trace)
        raise _kinds()[self.kind](fields.pop("subject"), fields.pop("problem"), **fields)


class _Traceback(Exception):  # noqa: N818 - is shown, and never caught
    def __str__(self) -> str:
        return f"\n\n{self.args[0]}"


Answer: TypeAlias = Went | Done | Failed
_FIELDS = ("subject", "problem", "expected", "actual", "where", "hint")


def main(parent: Parent) -> None:
    """Read layers until nobody wants any more."""
    while True:
        job = msgspec.msgpack.decode(parent.receive(), type=Job)
        try:
            answer = _read(parent, job)
        except GoneError:
            raise
        except ImgbuildError as error:
            answer = Failed.of(error)
        except Exception:  # noqa: BLE001 - it is raised again, over there
            answer = Failed(kind="", fields={}, trace=traceback.format_exc())
        parent.send(msgspec.msgpack.encode(answer))


def _read(parent: Parent, job: Job) -> Done | Failed:
    cache = Cache(Path(os.fsdecode(job.cache)), ledger=Ledger())
    layer = Descriptor(media_type=job.media_type, digest=Digest.parse(job.digest), size=job.size)
    diff_id = Digest.parse(job.diff_id)
    if job.file is None:
        found = scan(cache, parent.stream(), layer, diff_id, int, assumed=job.assumed)
    else:
        with open_regular(Path(os.fsdecode(job.file))) as file:
            stream: Readable = Bounded(file, layer.size)
            found = scan(cache, stream, layer, diff_id, _Telling(parent).advance, assumed=job.assumed)
    kept = sum(row.written for row in cache.ledger.rows())
    return Done(digest=str(found.digest), size=found.size, inventory=found.inventory.dump(), kept=kept)


class _Telling:
    """Says how far a file is, and goes on when that was heard: not while whoever wants it is stopped, or has ended."""

    def __init__(self, parent: Parent) -> None:
        self._parent = parent
        self._count = 0

    def advance(self, count: int) -> None:
        self._count += count
        if self._count >= _WENT_BYTES or (self._count and not count):
            self._parent.send(msgspec.msgpack.encode(Went(count=self._count)))
            self._parent.receive()
            self._count = 0


@functools.cache
def _kinds() -> dict[str, type[ImgbuildError]]:
    """All classes of errors, by name."""
    found = [ImgbuildError]
    for kind in found:
        found.extend(kind.__subclasses__())
    return {kind.__name__: kind for kind in found}
