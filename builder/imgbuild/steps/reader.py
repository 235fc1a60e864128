"""`python -m imgbuild.steps.reader`, for `steps.readers` only: a process that reads layers for another one.

What it is told and says are the messages below, in this order: a `Setup` first; then for each `Job` as many `Went` and
`Note` as there are, and in the end one `Done` or `Failed`.
"""

from __future__ import annotations

import functools
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

import msgspec

from imgbuild.adapters.cache import Cache
from imgbuild.adapters.child import GoneError, Parent
from imgbuild.adapters.store import Store
from imgbuild.config import MIB
from imgbuild.digest import Digest
from imgbuild.errors import ImgbuildError, InternalError
from imgbuild.ledger import Ledger
from imgbuild.model.oci import Descriptor
from imgbuild.progress import Silent
from imgbuild.steps.context import Context
from imgbuild.steps.layers import read_layer
from imgbuild.steps.places import Places

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imgbuild.adapters.registry.repository import Repository
    from imgbuild.adapters.registry.session import Registries
    from imgbuild.progress import Task

_SAID_BYTES = 1 * MIB
_SAID_SECONDS = 0.2
"""Progress is said after so many bytes, or so long after it was said the last time."""


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """The surroundings: `steps.context.Context`, as far as reading a layer needs them."""

    root: str
    store: str
    cache: str
    offline: bool
    local: bool
    """Whether what is in the store is as good."""
    repositories: tuple[tuple[str, str], ...]
    """Host and name of each place to ask, best first."""
    registries: str | None
    """Path of the settings."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A layer as stored, and the DiffID that a config claims for it; digests as text."""

    media_type: str
    digest: str
    size: int
    diff_id: str


class Went(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """So many more bytes of the layer were read; and by the ledger at `place`, so many more were read and written."""

    count: int
    moved: tuple[tuple[str, int, int], ...] = ()


class Note(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A line for the user."""

    text: str


class Done(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The layer's digest and size in bytes as it was read, and its inventory as a document."""

    digest: str
    size: int
    inventory: bytes


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The error that the reading ended with: the name of its class and its fields."""

    kind: str
    fields: dict[str, str | None]

    @classmethod
    def of(cls, error: ImgbuildError) -> Failed:
        """What is sent of an error. Of a class that takes other arguments, it is the nearest one that does not."""
        line = type(error).__mro__
        line = line[: line.index(ImgbuildError) + 1]
        own = [number for number, kind in enumerate(line[:-1]) if "__init__" in vars(kind)]
        kind = line[own[-1] + 1 if own else 0]
        return cls(kind=kind.__name__, fields={name: getattr(error, name) for name in _FIELDS})

    def error(self) -> ImgbuildError:
        """The same error."""
        fields = dict(self.fields)
        subject, problem = str(fields.pop("subject")), str(fields.pop("problem"))
        where, hint = fields.pop("where"), fields.pop("hint")
        return _kinds()[self.kind](subject, problem, where=where, hint=hint, **fields)


Answer: TypeAlias = Went | Note | Done | Failed
_FIELDS = ("subject", "problem", "expected", "actual", "where", "hint")


@functools.cache
def _kinds() -> dict[str, type[ImgbuildError]]:
    """All classes of errors, by name."""
    found = [ImgbuildError]
    for kind in found:
        found.extend(kind.__subclasses__())
    return {kind.__name__: kind for kind in found}


class _Talk(Silent):
    """Progress that is sent on."""

    def __init__(self, parent: Parent, ledger: Ledger) -> None:
        self._parent = parent
        self._ledger = ledger
        self._said: dict[str, tuple[int, int]] = {}
        self._count = 0
        self._next = 0.0

    def advance(self, count: int) -> None:
        """`count` more bytes were read."""
        self._parent.check()
        self._count += count
        if self._count >= _SAID_BYTES or time.monotonic() >= self._next:
            self.flush()

    def note(self, text: str) -> None:
        """Say one line."""
        self._parent.send(msgspec.msgpack.encode(Note(text=text)))

    def flush(self) -> None:
        """Say what was not said yet."""
        moved = tuple(self._moved())
        if self._count or moved:
            self._parent.send(msgspec.msgpack.encode(Went(count=self._count, moved=moved)))
        self._count = 0
        self._next = time.monotonic() + _SAID_SECONDS

    def _moved(self) -> Iterator[tuple[str, int, int]]:
        for row in self._ledger.rows():
            before = self._said.get(row.place, (0, 0))
            now = row.read, row.written
            if now != before:
                self._said[row.place] = now
                yield row.place, now[0] - before[0], now[1] - before[1]


def _context(setup: Setup, talk: _Talk, ledger: Ledger) -> Context:
    store, cache = Store(Path(setup.store), ledger=ledger), Cache(Path(setup.cache), ledger=ledger)
    store.repair = False

    @functools.cache
    def connect() -> Registries:
        from imgbuild.adapters.registry.access import connect as open_registries  # noqa: PLC0415 - takes 60 ms

        file = None if setup.registries is None else Path(setup.registries)
        return open_registries(file, ledger=ledger, offline=setup.offline, note=talk.note)

    def repositories() -> tuple[Repository, ...]:
        from imgbuild.adapters.registry.repository import Repository  # noqa: PLC0415 - urllib3 takes 60 ms

        return tuple(Repository(connect().of(host), name) for host, name in setup.repositories)

    places = Places(store, cache, repositories=repositories, offline=setup.offline, local=setup.local)
    return Context(
        root=Path(setup.root),
        store=store,
        cache=cache,
        ledger=ledger,
        offline=setup.offline,
        connect=connect,
        base=places,
    )


def _answer(context: Context, job: Job, task: Task) -> Done | Failed:
    layer = Descriptor(media_type=job.media_type, digest=Digest.parse(job.digest), size=job.size)
    try:
        found = read_layer(context, layer, Digest.parse(job.diff_id), task)
    except ImgbuildError as error:
        return Failed.of(error)
    except GoneError:
        raise
    except Exception as error:  # noqa: BLE001 - it is raised again, over there
        return Failed.of(InternalError(f"layer {job.digest}", f"cannot be read: {type(error).__name__}: {error}"))
    return Done(digest=str(found.digest), size=found.size, inventory=found.inventory.dump())


def main() -> None:
    """Read layers until nobody wants any more."""
    parent, ledger = Parent(), Ledger()
    talk = _Talk(parent, ledger)
    messages = parent.messages()
    try:
        context = _context(msgspec.msgpack.decode(next(messages), type=Setup), talk, ledger)
        for message in messages:
            answer = _answer(context, msgspec.msgpack.decode(message, type=Job), cast("Task", talk))
            talk.flush()
            parent.send(msgspec.msgpack.encode(answer))
    except (GoneError, StopIteration):
        pass
    # Nothing is left to be done, and taking an interpreter down takes a while.
    os._exit(0)


if __name__ == "__main__":
    main()
