"""Layers read by processes of their own, where there is so much to read that threads would wait for each other.

Hashing and inflating let other threads run; what lies between (entries, ELF facts, texts) does not. With a process for
each core the pass over a base of 4 GB takes a seventh less on two cores; with more of them, more.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from imgbuild.adapters.child import Child, GoneError
from imgbuild.config import MIB
from imgbuild.content.inventory import Inventory, LayerScan
from imgbuild.digest import Digest
from imgbuild.errors import ToolError
from imgbuild.steps.layers import read_layer
from imgbuild.steps.reader import Answer, Done, Failed, Job, Note, Setup, Went

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from typing import Self

    from imgbuild.model.oci import Descriptor
    from imgbuild.progress import Task
    from imgbuild.steps.context import Context

Read: TypeAlias = "Callable[[Descriptor, Digest, Task], LayerScan]"
"""As `steps.layers.read_layer`."""
WORTH_BYTES = 512 * MIB
"""of layers as stored; to begin a process costs as much as to read 50 MB."""
_MOST = 8
"""processes; each takes about 65 MB."""
_LOOK_SECONDS = 0.2
"""after which somebody who waits looks whether to go on."""


def cores() -> int:
    """How many of the machine's cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def reading(context: Context, layers: Collection[Descriptor]) -> Iterator[tuple[Read, int]]:
    """How to read layers, and by how many threads.

    Processes are begun where `Context.apart` says how, there are `WORTH_BYTES` to read in several layers, and there is
    more than one core. They end with this context.
    """
    count = min(cores(), len(layers), _MOST)
    setup = _setup(context, layers) if count > 1 else None
    if setup is None:
        yield functools.partial(read_layer, context), max(1, min(cores(), len(layers)))
        return
    with _Readers(context, setup) as readers:
        yield readers.read, count


def _setup(context: Context, layers: Collection[Descriptor]) -> Setup | None:
    """What processes are told; None where threads are to read."""
    apart, places = context.apart, context.places
    if apart is None or not sys.executable or sum(layer.size for layer in layers) < WORTH_BYTES:
        return None
    asked = () if all(map(places.is_stored, layers)) else tuple(places.candidates())
    if not asked and not all(map(places.is_stored, layers)):
        # Here it is known why they are nowhere.
        return None
    return Setup(
        root=str(context.root),
        store=str(places.store.root),
        cache=str(context.cache.root),
        offline=places.offline,
        local=places.local,
        repositories=tuple((one.registry.host, one.name) for one in asked),
        registries=None if apart.registries is None else str(apart.registries),
    )


class _Readers:
    """The processes: one for each thread that reads, begun when it does."""

    def __init__(self, context: Context, setup: Setup) -> None:
        self._context = context
        self._setup = msgspec.msgpack.encode(setup)
        self._lock = threading.Lock()
        self._idle: list[Child] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._idle:
            child.end()

    def read(self, layer: Descriptor, diff_id: Digest, task: Task) -> LayerScan:
        """Read one layer whole, as `read_layer`; a `ToolError` where its process does not live as long.

        Where no process can be begun, it is read here.
        """
        try:
            child = self._take()
        except OSError:
            return read_layer(self._context, layer, diff_id, task)
        try:
            with self._context.progress.part(f"layer {layer.digest.encoded[:12]}", layer.size) as part:
                answer = self._ask(child, layer, diff_id, (task, part))
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
        if isinstance(answer, Failed):
            raise answer.error()
        inventory = Inventory.load(answer.inventory, subject=f"inventory of layer {layer.digest}")
        return LayerScan(digest=Digest.parse(answer.digest), size=answer.size, inventory=inventory)

    def _take(self) -> Child:
        """One that waits for work, or a new one."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
        child = Child("imgbuild.steps.reader")
        # One that has ended by now says so where its answer is awaited.
        with contextlib.suppress(GoneError):
            child.send(self._setup)
        return child

    def _ask(self, child: Child, layer: Descriptor, diff_id: Digest, tasks: tuple[Task, ...]) -> Done | Failed:
        job = Job(media_type=layer.media_type, digest=str(layer.digest), size=layer.size, diff_id=str(diff_id))
        child.send(msgspec.msgpack.encode(job))
        while True:
            message = child.receive(_LOOK_SECONDS)
            answer = Went(count=0) if message is None else msgspec.msgpack.decode(message, type=Answer)
            if isinstance(answer, Went):
                for place, read, written in answer.moved:
                    self._context.ledger.read(place, read)
                    self._context.ledger.written(place, written)
                for task in tasks:
                    task.advance(answer.count)
            elif isinstance(answer, Note):
                self._context.progress.note(answer.text)
            else:
                return answer
