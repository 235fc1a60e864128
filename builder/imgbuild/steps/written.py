"""The layers of a workspace as blobs, and config and manifest for them. Nothing that is written here has a name."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from imgbuild.content.changeset import LayerResult, write_layer
from imgbuild.content.inventory import LayerScan
from imgbuild.digest import Digest
from imgbuild.errors import InputError, IntegrityError, StepError
from imgbuild.model.oci import Descriptor
from imgbuild.steps.layers import read_layer
from imgbuild.steps.memo import LayerMemo, recall, remember

if TYPE_CHECKING:
    from imgbuild.adapters.project import ImageInput
    from imgbuild.content.changeset import Change
    from imgbuild.content.inventory import Inventory
    from imgbuild.model.lockfile import Lock, Result, ResultLayer
    from imgbuild.steps.base import Base
    from imgbuild.steps.context import Context
    from imgbuild.steps.workspace import Workspace

BASE_NAME = "org.opencontainers.image.base.name"
BASE_DIGEST = "org.opencontainers.image.base.digest"
Layers = tuple[tuple[str, LayerResult], ...]
"""The added layers by name, in order."""


def write_layers(
    context: Context,
    workspace: Workspace,
    changesets: list[tuple[str, tuple[Change, ...]]],
    *,
    epoch: int,
    stated: Result | None,
    blobs: bool,
) -> tuple[Layers, tuple[LayerScan, ...]]:
    """Write the layers of changesets, and read each back.

    Args:
        context: the surroundings.
        workspace: that the changesets are of.
        changesets: with the names of their layers.
        epoch: seconds since 1970.
        stated: the result that the lock expects; what it pins and what is here whole is not made again.
        blobs: whether all layers shall be in the store. Without, what is known of those that were made before will do.

    Returns:
        The layers, and what they are: by the bytes that the store has now, or had when they were made.

    Raises:
        StepError: a layer changes nothing.
        DigestMismatchError: a file that was to be put into a layer is not what it was taken for.
        StorageError: the disk is full.
    """
    expected = {} if stated is None else {item.name: item for item in stated.layers}
    layers = tuple(
        (name, _layer(context, workspace, name, changes, epoch, expected.get(name), blobs=blobs))
        for name, changes in changesets
    )
    scans = _scan_layers(context, layers, expected)
    for (_, changes), scan in zip(changesets, scans, strict=True):
        workspace.check_libraries(changes, scan.inventory)
    return layers, scans


def created(epoch: int) -> str:
    """The lock's epoch as RFC 3339."""
    moment = dt.datetime.fromtimestamp(epoch, tz=dt.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def expected_documents(image: ImageInput, lock: Lock, base: Base, layers: Layers) -> tuple[bytes, bytes]:
    """The bytes of config and manifest for layers; both a pure function of their arguments."""
    definition = image.definition
    config = base.config.extended(
        definition.changes(),
        tuple(result.diff_id for _, result in layers),
        created(lock.pins.epoch),
        tuple(f"imgbuild: {name}" for name, _ in layers),
    )
    descriptor = Descriptor(media_type=base.manifest.family.config, digest=Digest.of(config), size=len(config))
    added = tuple(
        Descriptor(media_type=base.manifest.family.layer_gzip, digest=result.digest, size=result.size)
        for _, result in layers
    )
    annotations = {BASE_NAME: lock.pins.base.reference, BASE_DIGEST: str(lock.pins.base.manifest)}
    return config, base.manifest.extended(descriptor, added, annotations)


def _layer(
    context: Context,
    workspace: Workspace,
    name: str,
    changes: tuple[Change, ...],
    epoch: int,
    expected: ResultLayer | None,
    *,
    blobs: bool,
) -> LayerResult:
    """One canonical layer: written to the store, or known from an earlier run with the same changes."""
    if not changes:
        raise StepError(f"layer {name}", "changes nothing")
    key = workspace.layer_key(changes)
    known = _known_layer(context, key, expected, blobs=blobs)
    if known is not None:
        return known
    total = sum(change.content.size for change in changes if change.content is not None)
    with context.progress.task(f"writing layer {name}", total) as task, context.store.pending() as pending:

        def sink(data: bytes) -> None:
            pending.write(data)
            task.advance(len(data))

        result = write_layer(changes, sink, epoch=epoch)
        context.store.commit(pending, result.digest, result.size)
    memo = LayerMemo(
        diff_id=result.diff_id, digest=result.digest, size=result.size, uncompressed_size=result.uncompressed_size
    )
    remember(context.cache, key, memo)
    return result


def _known_layer(context: Context, key: Digest, expected: ResultLayer | None, *, blobs: bool) -> LayerResult | None:
    """A layer that the lock expects, and that this machine wrote before for the same changes.

    With `blobs` it must be in the store whole, else its inventory must be known.
    """
    memo = recall(context.cache, key, LayerMemo)
    if memo is None or expected is None:
        return None
    if (memo.diff_id, memo.digest, memo.size) != (expected.diff_id, expected.digest, expected.size):
        return None
    result = LayerResult(
        diff_id=memo.diff_id, digest=memo.digest, size=memo.size, uncompressed_size=memo.uncompressed_size
    )
    if not blobs and _pinned_inventory(context, result, expected) is not None:
        return result
    if not context.store.has(memo.digest, memo.size):
        return None
    try:
        # In place of a damaged copy the layer is written anew, and publishing replaces it (case C58).
        context.store.verify(memo.digest, memo.size, subject=f"layer {memo.digest}")
    except IntegrityError:
        return None
    return result


def _scan_layers(context: Context, layers: Layers, expected: dict[str, ResultLayer]) -> tuple[LayerScan, ...]:
    """One scan a layer. One that the lock pins with its inventory, and that was scanned here before, is not read again.

    Where its blob is needed, that was hashed all the same, when it was written or found in the store.
    """
    scans = []
    total = sum(result.size for _, result in layers)
    with context.progress.task("verifying layers", total) as task:
        for name, result in layers:
            known = _pinned_inventory(context, result, expected.get(name))
            if known is not None:
                task.advance(result.size)
                scans.append(LayerScan(digest=result.digest, size=result.size, inventory=known))
                continue
            layer = _blob(result)
            scan = read_layer(context, layer, result.diff_id, task)
            if (scan.digest, scan.size, scan.inventory.diff_id) == (result.digest, result.size, result.diff_id):
                context.cache.keep_inventory(layer, scan.inventory)
            scans.append(scan)
    return tuple(scans)


def _pinned_inventory(context: Context, result: LayerResult, pin: ResultLayer | None) -> Inventory | None:
    """The inventory that the lock pins of a layer, if it is here."""
    if pin is None or (pin.digest, pin.diff_id) != (result.digest, result.diff_id):
        return None
    known = context.cache.inventory(_blob(result), result.diff_id, pin.inventory)
    return None if known is None else known[0]


def _blob(result: LayerResult) -> Descriptor:
    return Descriptor(media_type="", digest=result.digest, size=result.size)


def check_budget(image: ImageInput, base: Base, layers: Layers) -> None:
    """An `InputError` where the added layers are more, or larger, than the definition allows."""
    limits = image.definition.limits
    size = sum(result.size for _, result in layers)
    if size > limits.bytes:
        raise InputError(
            f"image {image.definition.name}",
            "adds more than its budget",
            expected=f"at most {limits.bytes} bytes",
            actual=f"{size} bytes",
            hint="raise limits.bytes in the definition if this is meant",
        )
    count = len(base.manifest.layers) + len(layers)
    if count > limits.layers:
        raise InputError(
            f"image {image.definition.name}", "has too many layers", expected=f"at most {limits.layers}", actual=count
        )
