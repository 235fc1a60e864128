"""Inventories of layers: from the cache, where those that others published may be, else from one pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from imgbuild.digest import Digest
from imgbuild.errors import DigestMismatchError, FactMismatchError
from imgbuild.model.oci import Descriptor
from imgbuild.steps.crew import Crew
from imgbuild.steps.layers import check_bytes
from imgbuild.steps.readers import reading

if TYPE_CHECKING:
    from collections.abc import Mapping

    from imgbuild.content.inventory import Inventory, LayerScan
    from imgbuild.progress import Task
    from imgbuild.steps.context import Context
    from imgbuild.steps.readers import Read

_Pair: TypeAlias = tuple[Descriptor, Digest]
"""A layer as stored, and the DiffID that a config claims for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A layer's inventory and its digest; `cached` if the layer itself was not read."""

    inventory: Inventory
    digest: Digest
    cached: bool


def take_inventories(
    context: Context,
    layers: tuple[Descriptor, ...],
    diff_ids: tuple[Digest, ...],
    expected: tuple[Digest, ...] | None,
) -> list[Taken]:
    """The inventories of layers in order: from the cache, or by reading.

    Args:
        context: the surroundings.
        layers: descriptors.
        diff_ids: as many DiffIDs (`read_config`).
        expected: the inventories' digests, where they are known.

    Every pair of a layer and its DiffID is read once: a layer that claims another one's DiffID is found out.

    Raises:
        FactMismatchError: `expected` is of another number of layers.
        IntegrityError: a layer is damaged, or is not what its descriptor, DiffID or `expected` say.
        AvailabilityError: a layer is nowhere, or the cache cannot be written.
    """
    if expected is not None and len(expected) != len(layers):
        raise FactMismatchError(
            "lock",
            "has facts of another number of base layers",
            expected=f"{len(layers)} layers",
            actual=len(expected),
            where="facts.base_layers",
            hint="`imgbuild lock IMAGE --complete` finds the facts anew; review the difference",
        )
    pairs = list(zip(layers, diff_ids, strict=True))
    wanted: dict[_Pair, Digest | None] = dict(zip(pairs, expected or [None] * len(pairs), strict=True))
    results = {pair: taken for pair, digest in wanted.items() if (taken := _cached(context, pair, digest)) is not None}
    results.update(_read(context, {pair: digest for pair, digest in wanted.items() if pair not in results}))
    rows = [results[pair] for pair in pairs]
    for index, row in enumerate(rows):
        if expected is not None and row.digest != expected[index]:
            raise FactMismatchError(
                f"inventory of base layer {index}",
                "differs from the lock's",
                expected=expected[index],
                actual=row.digest,
                hint="the layer is right; was the lock made by another version? `imgbuild lock IMAGE --complete`",
            )
    return rows


def _read(context: Context, missing: Mapping[_Pair, Digest | None]) -> dict[_Pair, Taken]:
    """Read layers, the largest first, so that no long one is left alone at the end; each with what is expected."""
    if not missing:
        return {}
    order = sorted(missing, key=lambda pair: (-pair[0].size, pair[0].digest, pair[1]))
    layers = [layer for layer, _ in order]
    with (
        context.progress.task("reading layers", sum(layer.size for layer in layers)) as task,
        reading(context, layers) as (read, workers),
        Crew(context, workers) as crew,
    ):
        watched = crew.watched(task)
        taken = crew.map(lambda pair: _take(context, pair, missing[pair], watched, read), order)
        return dict(zip(order, taken, strict=True))


def _cached(context: Context, pair: _Pair, expected: Digest | None) -> Taken | None:
    """What was taken here of a layer; else, with `expected`, what somebody else took and the lock pins."""
    found = context.cache.inventory(*pair, expected)
    if found is not None:
        return Taken(inventory=found[0], digest=found[1], cached=True)
    if expected is None:
        return None
    claimed = context.cache.claimed_inventory(pair[1], expected)
    return None if claimed is None else Taken(inventory=claimed, digest=expected, cached=True)


def _take(context: Context, pair: _Pair, expected: Digest | None, task: Task, read: Read) -> Taken:
    """Read one layer whole, check digest, size and DiffID, and keep its inventory.

    Where the lock pins its inventory, the DiffID is not hashed: it stands in that one, which was taken of bytes with
    the same digest. As nothing but the lock says so, it is kept for whoever has the same lock.
    """
    layer, diff_id = pair
    if expected is not None:
        scan = _whole(context, layer, read(layer, diff_id, task, assumed=True))
        raw = scan.inventory.dump()
        if Digest.of(raw) == expected:
            context.cache.put([raw], expected=expected)
            return Taken(inventory=scan.inventory, digest=expected, cached=False)
        # Which of the two is wrong, is found out by hashing all of it.
    found = _whole(context, layer, read(layer, diff_id, task))
    if found.inventory.diff_id != diff_id:
        raise DigestMismatchError(
            f"layer {layer.digest}",
            "does not have the DiffID of the config",
            expected=diff_id,
            actual=found.inventory.diff_id,
        )
    digest = context.cache.keep_inventory(layer, found.inventory)
    return Taken(inventory=found.inventory, digest=digest, cached=False)


def _whole(context: Context, layer: Descriptor, found: LayerScan) -> LayerScan:
    """The same, if the bytes that were read are those of the descriptor."""
    if (found.digest, found.size) != (layer.digest, layer.size) and context.places.is_local(layer):
        context.store.quarantine(layer.digest)
    check_bytes(layer, found.digest, found.size)
    return found
