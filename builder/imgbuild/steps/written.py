"""The layers of a workspace as blobs, and config and manifest for them. Nothing that is written here has a name."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from imgbuild.content.changeset import LayerResult, write_layer
from imgbuild.content.inventory import LayerScan
from imgbuild.digest import Digest
from imgbuild.errors import InputError, StepError
from imgbuild.model.oci import Descriptor
from imgbuild.steps.known import blob
from imgbuild.steps.layers import read_layer

if TYPE_CHECKING:
    from imgbuild.adapters.project import ImageInput
    from imgbuild.content.changeset import Change
    from imgbuild.model.lockfile import Lock
    from imgbuild.steps.base import Base
    from imgbuild.steps.context import Context
    from imgbuild.steps.known import KnownLayers
    from imgbuild.steps.workspace import Workspace

BASE_NAME = "org.opencontainers.image.base.name"
BASE_DIGEST = "org.opencontainers.image.base.digest"
Layers = tuple[tuple[str, LayerResult], ...]
"""The added layers by name, in order."""


def write_layers(
    context: Context,
    workspace: Workspace,
    changesets: list[tuple[str, tuple[Change, ...]]],
    known: KnownLayers,
    *,
    epoch: int,
) -> tuple[Layers, tuple[LayerScan, ...]]:
    """Write the layers of changesets, and read each back.

    Args:
        context: the surroundings.
        workspace: that the changesets are of.
        changesets: with the names of their layers.
        known: layers that need not be made again.
        epoch: seconds since 1970.

    Returns:
        The layers, and what they are: by the bytes that the store has now, or had when they were made.

    Raises:
        StepError: a layer changes nothing.
        DigestMismatchError: a file that was to be put into a layer is not what it was taken for.
        StorageError: the disk is full.
    """
    layers = tuple((name, _layer(context, workspace, name, changes, epoch, known)) for name, changes in changesets)
    scans = _scan_layers(context, layers, known)
    for (_, changes), scan in zip(changesets, scans, strict=True):
        workspace.check_libraries(changes, scan.inventory)
    return layers, scans


def created(epoch: int) -> str:
    """The lock's epoch as RFC 3339."""
    moment = dt.datetime.fromtimestamp(epoch, tz=dt.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def expected_documents(image: ImageInput, lock: Lock, base: Base, layers: Layers) -> tuple[bytes, bytes]:
    """The bytes of config and manifest for layers; both a pure function of their arguments.

    Of an image whose definition has no layers, those of the base.
    """
    if not image.layers:
        return base.config.raw, base.manifest.raw
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
    known: KnownLayers,
) -> LayerResult:
    """One canonical layer: written to the store, or known from an earlier run with the same changes."""
    if not changes:
        raise StepError(f"layer {name}", "changes nothing")
    key = workspace.layer_key(changes)
    found = known.find(name, key)
    if found is not None:
        return found
    total = sum(change.content.size for change in changes if change.content is not None)
    with context.progress.task(f"writing layer {name}", total) as task, context.store.pending() as pending:

        def sink(data: bytes) -> None:
            pending.write(data)
            task.advance(len(data))

        result = write_layer(changes, sink, epoch=epoch)
        context.store.commit(pending, result.digest, result.size)
    known.keep(key, result)
    return result


def _scan_layers(context: Context, layers: Layers, known: KnownLayers) -> tuple[LayerScan, ...]:
    """One scan a layer. One that the lock pins with its inventory, and that was scanned here before, is not read again.

    Where its blob is needed, that was hashed all the same, when it was written or found in the store.
    """
    scans = []
    total = sum(result.size for _, result in layers)
    with context.progress.task("verifying layers", total) as task:
        for name, result in layers:
            inventory = known.inventory(name, result)
            if inventory is not None:
                task.advance(result.size)
                scans.append(LayerScan(digest=result.digest, size=result.size, inventory=inventory))
                continue
            scan = read_layer(context, blob(result), result.diff_id, task, beside=True)
            known.keep_scan(result, scan)
            scans.append(scan)
    return tuple(scans)


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
