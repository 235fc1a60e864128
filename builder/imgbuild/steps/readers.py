"""Layers read by processes of their own, where there is so much to read that threads would wait for each other.

Hashing and inflating let other threads run; what lies between (entries, ELF facts, texts) does not. On two cores a base
of 4 GB is read in a seventh less of the time. A process is given the bytes, or the file in the store, and no more.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from typing import TYPE_CHECKING, Protocol, Self

import msgspec

from imgbuild.adapters.child import Child, GoneError
from imgbuild.adapters.durable import anonymous
from imgbuild.config import CHUNK_BYTES, MIB
from imgbuild.content.inventory import Inventory, LayerScan
from imgbuild.digest import Digest
from imgbuild.errors import ToolError
from imgbuild.steps.layers import open_layer, read_layer
from imgbuild.steps.reader import Answer, Done, Failed, Job, Went

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from imgbuild.digest import Readable
    from imgbuild.model.oci import Descriptor
    from imgbuild.progress import Task
    from imgbuild.steps.context import Context


class Read(Protocol):
    """As `steps.layers.read_layer`."""

    def __call__(self, layer: Descriptor, diff_id: Digest, task: Task, /, *, assumed: bool = False) -> LayerScan:
        """Read one layer whole."""
        ...


WORTH_BYTES = 512 * MIB
"""of layers as stored; to begin a process costs as much as to read 50 MB."""
_MOST = 8
"""processes; each takes 60 MB, and as much again where a layer has 100,000 entries."""
_HEARD = b"heard"


def cores() -> int:
    """How many of the machine's cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def reading(context: Context, layers: Collection[Descriptor]) -> Iterator[tuple[Read, int]]:
    """How to read layers, and by how many threads.

    With `WORTH_BYTES` to read in several layers and more than one core, each thread has a process that does the work.
    They end with this context.
    """
    count = min(cores(), len(layers), _MOST)
    if count < 2 or not sys.executable or sum(layer.size for layer in layers) < WORTH_BYTES:  # noqa: PLR2004
        yield functools.partial(read_layer, context), max(1, min(cores(), len(layers)))
        return
    with _Readers(context) as readers:
        yield readers.read, count


class _Readers:
    """The processes: one for each thread that reads, begun when it does."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._idle: list[Child] = []
        self._warned = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._idle:
            child.end()

    def read(self, layer: Descriptor, diff_id: Digest, task: Task, /, *, assumed: bool = False) -> LayerScan:
        """Read one layer whole, as `read_layer`; a `ToolError` where its process does not live as long.

        Where no process can be begun, it is read here, which is said.
        """
        context = self._context
        try:
            child = self._take()
        except (OSError, GoneError) as error:
            self._warn(str(error))
            return read_layer(context, layer, diff_id, task, assumed=assumed)
        with (
            self._lent(child, layer),
            open_layer(context, layer) as stream,
            context.progress.part(f"layer {layer.digest.encoded[:12]}", layer.size) as part,
        ):
            answer = _Talk(context, child, (task, part)).read(stream, layer, diff_id, assumed=assumed)
            if isinstance(answer, Failed):
                answer.raise_it()
        assert isinstance(answer, Done)  # noqa: S101 - else it was raised
        context.ledger.written(context.cache.place, answer.kept)
        inventory = Inventory.load(answer.inventory, subject=f"inventory of layer {layer.digest}")
        return LayerScan(digest=Digest.parse(answer.digest), size=answer.size, inventory=inventory)

    def _take(self) -> Child:
        """One that waits for work, or a new one."""
        with self._lock:
            while self._idle:
                child = self._idle.pop()
                if child.is_alive:
                    return child
                child.end()
        printed = anonymous(self._context.cache.folder("spool"))
        try:
            return Child("imgbuild.steps.reader", printed)
        except BaseException:
            printed.close()
            raise

    @contextlib.contextmanager
    def _lent(self, child: Child, layer: Descriptor) -> Iterator[None]:
        """Have it wait for work afterwards; after an error nobody knows what it is doing, so it is ended."""
        try:
            yield
        except GoneError as error:
            child.end()
            raise ToolError(
                f"layer {layer.digest}",
                "was not read to its end: the process that read it has ended",
                actual=str(error),
                hint="was memory short? run it again: layers that were read are kept",
            ) from error
        except BaseException:
            child.end()
            raise
        with self._lock:
            self._idle.append(child)

    def _warn(self, why: str) -> None:
        with self._lock:
            if self._warned:
                return
            self._warned = True
        self._context.progress.note(f"layers are read by this process alone, since none can be begun besides: {why}")


class _Talk:
    """One layer, read by a child."""

    def __init__(self, context: Context, child: Child, tasks: tuple[Task, ...]) -> None:
        self._context = context
        self._child = child
        self._tasks = tasks

    def read(self, stream: Readable, layer: Descriptor, diff_id: Digest, *, assumed: bool) -> Done | Failed:
        """What it says of a layer; `stream` is not read if the layer is in the store."""
        context = self._context
        file = os.fsencode(context.store.path(layer.digest)) if context.places.is_stored(layer) else None
        job = Job(
            media_type=layer.media_type,
            digest=str(layer.digest),
            size=layer.size,
            diff_id=str(diff_id),
            assumed=assumed,
            cache=os.fsencode(context.cache.root),
            file=file,
        )
        self._child.send(msgspec.msgpack.encode(job), self._go_on)
        if file is None:
            self._give(stream)
        while isinstance(answer := self._answer(), Went):
            context.ledger.read(context.store.place, answer.count)
            self._go_on(answer.count)
            self._child.send(_HEARD, self._go_on)
        return answer

    def _give(self, stream: Readable) -> None:
        while data := stream.read(CHUNK_BYTES):
            self._go_on(len(data))
            if not self._child.give(data, self._go_on):
                # It does not read on: it has failed, and says why.
                return
        self._child.give(b"", self._go_on)

    def _answer(self) -> Answer:
        found: Answer = msgspec.msgpack.decode(self._child.receive(self._go_on), type=Answer)
        return found

    def _go_on(self, count: int = 0) -> None:
        for task in self._tasks:
            task.advance(count)
