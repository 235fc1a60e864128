"""The base image: manifest and config by digest, inventories of its layers, and single files out of them.

Inventories come from the cache, else from one pass over each layer (largest first, in parallel). A file that a step
needs is read from its layer up to the file's end, checked by the sha256 of the inventory, and kept in the cache.
"""

from __future__ import annotations

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from imgbuild.adapters.durable import spool
from imgbuild.config import DEFAULT_LIMITS
from imgbuild.content.compression import decompress
from imgbuild.content.inventory import Inventory, LayerScan, scan_layer
from imgbuild.content.tarstream import EntryType, TarReader
from imgbuild.content.tree import Node, Tree
from imgbuild.digest import Digest
from imgbuild.errors import (
    ArchiveError,
    DigestMismatchError,
    FactMismatchError,
    LayoutError,
    MissingError,
)
from imgbuild.model.oci import Descriptor, ImageConfig, Manifest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from imgbuild.digest import Readable
    from imgbuild.model.lockfile import LockedBase
    from imgbuild.progress import Task
    from imgbuild.steps.context import Context

Machine = Literal["aarch64", "x86_64"]
_MACHINES: dict[str, Machine] = {"arm64": "aarch64", "amd64": "x86_64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A layer's inventory and its digest; `cached` if the layer itself was not read."""

    inventory: Inventory
    digest: Digest
    cached: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """A base image as far as it was read."""

    manifest: Manifest
    descriptor: Descriptor
    config: ImageConfig
    inventories: tuple[Inventory, ...]
    inventory_digests: tuple[Digest, ...]

    def tree(self) -> Tree:
        """A new merged view of all layers."""
        tree = Tree()
        for index, inventory in enumerate(self.inventories):
            tree.apply(inventory, index)
        return tree


def open_base(context: Context, pin: LockedBase, *, platform: str, inventories: tuple[Digest, ...] | None) -> Base:
    """Read the base that a lock pins.

    Args:
        context: the surroundings, `based_on` its reference.
        pin: the pinned digests.
        platform: `linux/arm64`; the config must agree (case C40).
        inventories: the locked inventory digests, by layer; None where they are not known yet.

    Raises:
        OfflineMissError, MissingError: the base is neither in the store nor in its registry.
        RegistryError: what its registry says.
        FactMismatchError: config digest, platform or an inventory differ from the lock.
    """
    descriptor = Descriptor(media_type=pin.media_type, digest=pin.manifest, size=pin.manifest_size)
    manifest = context.places.manifest(descriptor)
    if manifest.config.digest != pin.config:
        raise FactMismatchError(
            f"base {pin.reference}", "has another config", expected=pin.config, actual=manifest.config.digest
        )
    config = read_config(context, manifest)
    check_platform(config, platform, subject=f"base {pin.reference}")
    found = take_inventories(context, manifest.layers, config.diff_ids, inventories, pin.manifest)
    return Base(
        manifest=manifest,
        descriptor=descriptor,
        config=config,
        inventories=tuple(row.inventory for row in found),
        inventory_digests=tuple(row.digest for row in found),
    )


def read_config(context: Context, manifest: Manifest) -> ImageConfig:
    """The config of an image, which lists one DiffID for each layer of the manifest; a `LayoutError` if not."""
    config = context.places.config(manifest.config)
    if len(config.diff_ids) != len(manifest.layers):
        raise LayoutError(
            f"config {config.digest}",
            f"lists another number of DiffIDs than manifest {manifest.digest} lists layers",
            expected=f"{len(manifest.layers)} DiffIDs",
            actual=len(config.diff_ids),
            hint="whatever wrote this image is broken; make it again",
        )
    return config


def check_platform(config: ImageConfig, platform: str, *, subject: str) -> None:
    """Refuse an image of another operating system or architecture."""
    actual = f"{config.os}/{config.architecture}"
    if actual != platform:
        raise FactMismatchError(
            subject,
            "is for another platform",
            expected=platform,
            actual=actual,
            hint="choose the manifest of that platform, or correct `platform` in the definition",
        )


def machine_of(platform: str) -> Machine:
    """The ELF machine of a platform."""
    return _MACHINES[platform.partition("/")[2]]


def take_inventories(
    context: Context,
    layers: tuple[Descriptor, ...],
    diff_ids: tuple[Digest, ...],
    expected: tuple[Digest, ...] | None,
    image: Digest | None = None,
) -> list[Taken]:
    """The inventories of layers in order: from the cache, from those published for the image, or by reading.

    Args:
        context: the surroundings.
        layers: descriptors.
        diff_ids: as many DiffIDs (`read_config`).
        expected: the inventories' digests, where they are known.
        image: the manifest that the layers are of, where published inventories may be used; only with `expected`.

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
    places = context.places
    pairs = list(zip(layers, diff_ids, strict=True))
    results: dict[tuple[Descriptor, Digest], Taken] = {}
    missing: set[tuple[Descriptor, Digest]] = set()
    for index, pair in enumerate(pairs):
        taken = _cached(context, pair, expected[index] if expected else None)
        if taken is None:
            missing.add(pair)
        else:
            results[pair] = taken
    if missing and image is not None and expected is not None and any(not places.is_local(row[0]) for row in missing):
        wanted = {pair: digest for pair, digest in zip(pairs, expected, strict=True) if pair in missing}
        results.update(_published(context, image, wanted))
        missing -= results.keys()
    if missing:
        order = sorted(missing, key=lambda pair: (-pair[0].size, pair[0].digest, pair[1]))
        total = sum(layer.size for layer, _ in order)
        workers = max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
        with context.progress.task("reading layers", total) as task, ThreadPoolExecutor(workers) as pool:
            results.update(zip(order, pool.map(lambda pair: scan(context, pair[0], pair[1], task), order), strict=True))
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


def _cached(context: Context, pair: tuple[Descriptor, Digest], expected: Digest | None) -> Taken | None:
    """What was taken here of a layer; else, with `expected`, what somebody else took and the lock pins."""
    found = context.cache.inventory(*pair, expected)
    if found is not None:
        return Taken(inventory=found[0], digest=found[1], cached=True)
    if expected is None:
        return None
    claimed = context.cache.claimed_inventory(pair[1], expected)
    return None if claimed is None else Taken(inventory=claimed, digest=expected, cached=True)


def _published(
    context: Context, image: Digest, wanted: dict[tuple[Descriptor, Digest], Digest]
) -> dict[tuple[Descriptor, Digest], Taken]:
    from imgbuild.steps.published import fetch_published  # noqa: PLC0415 - urllib3 takes 60 ms

    fetch_published(context, image, frozenset(wanted.values()))
    found = {pair: _cached(context, pair, digest) for pair, digest in wanted.items()}
    return {pair: taken for pair, taken in found.items() if taken is not None}


def scan(context: Context, layer: Descriptor, diff_id: Digest, task: Task) -> Taken:
    """Read one layer whole, check digest, size and DiffID, and keep its inventory."""
    subject = f"layer {layer.digest}"
    found = read_layer(context, layer, diff_id, task)
    if (found.digest, found.size) != (layer.digest, layer.size):
        if context.places.is_local(layer):
            context.store.quarantine(layer.digest)
        raise DigestMismatchError(
            subject,
            "does not have its digest and size",
            expected=f"{layer.digest}, {layer.size} bytes",
            actual=f"{found.digest}, {found.size} bytes",
            hint="it is damaged where it comes from, or on the way; fetch it again, or have it repaired there",
        )
    if found.inventory.diff_id != diff_id:
        raise DigestMismatchError(
            subject, "does not have the DiffID of the config", expected=diff_id, actual=found.inventory.diff_id
        )
    digest = context.cache.keep_inventory(layer, found.inventory)
    return Taken(inventory=found.inventory, digest=digest, cached=False)


def read_layer(context: Context, layer: Descriptor, diff_id: Digest, task: Task) -> LayerScan:
    """Read one layer whole. Digests are taken by the algorithms of those given, and not compared."""
    with open_layer(context, layer) as stream:
        return scan_layer(
            stream,
            subject=f"layer {layer.digest}",
            spool=lambda: spool(context.cache.folder("spool")),
            capture=lambda digest, data: context.cache.has(digest) or context.cache.put([data]),
            advance=task.advance,
            algorithms=(layer.digest.algorithm, diff_id.algorithm),
        )


class _Bounded:
    """A layer's stream that ends one byte after the layer should, for a file that somebody writes to meanwhile."""

    def __init__(self, stream: Readable, size: int) -> None:
        self._stream = stream
        self._left = size + 1

    def read(self, size: int, /) -> bytes:
        data = self._stream.read(min(size, self._left))
        self._left -= len(data)
        return data


@contextlib.contextmanager
def open_layer(context: Context, layer: Descriptor) -> Iterator[Readable]:
    """A layer's bytes as stored, unchecked but for their number.

    Where there are more or fewer, or they break their format, the digest is looked at first.
    """
    subject = f"layer {layer.digest}"
    with context.places.open(layer, subject=subject) as stream:
        local = context.store.has(layer.digest)
        if local and not context.places.is_local(layer):
            context.store.verify(layer.digest, layer.size, subject=subject)
        try:
            yield _Bounded(stream, layer.size)
        except ArchiveError:
            if local:
                # Damage is the likelier cause than a layer that was made so, and says more.
                context.store.verify(layer.digest, layer.size, subject=subject)
            raise


def read_file(context: Context, layers: tuple[Descriptor, ...], node: Node, name: str) -> bytes:
    """The bytes of a small file of a layer, checked by the sha256 of its inventory."""
    if node.sha256 is None or node.source is None or not 0 <= node.layer < len(layers):
        raise MissingError(f"file {name}", "is in no layer of the image")
    digest = Digest("sha256", node.sha256)
    if node.size > DEFAULT_LIMITS.text_bytes:
        raise LayoutError(f"file {name}", "is too large to be read whole", actual=f"{node.size} bytes")
    data = context.cache.get(digest)
    if data is None:
        data = _extract(context, layers[node.layer], node, name)
        context.cache.put([data])
    return data


def contents(context: Context, layer: Descriptor, node: Node) -> Generator[Iterator[bytes], None, None]:
    """The bytes, in pieces, of every entry of a layer that may be a node's.

    Of several entries for one path the tree takes one (case C10), and the reader knows which by its bytes: take the
    one with the node's sha256, and stop there. Pieces that are not taken are passed over.
    """
    subject = f"layer {layer.digest}"
    with open_layer(context, layer) as stream:
        reader = TarReader(decompress(stream, subject=subject), subject=subject)
        for entry in reader:
            if entry.path == node.source and entry.type is EntryType.FILE and entry.size == node.size:
                yield reader.content()


def _extract(context: Context, layer: Descriptor, node: Node, name: str) -> bytes:
    actual = None
    with contextlib.closing(contents(context, layer, node)) as candidates:
        for pieces in candidates:
            data = b"".join(pieces)
            actual = Digest.of(data)
            if actual.encoded == node.sha256:
                return data
    if actual is None:
        raise MissingError(
            f"file {name}", "is not in the layer that its inventory names", where=f"layer {layer.digest}"
        )
    raise DigestMismatchError(
        f"file {name}", "differs from the inventory", expected=f"sha256:{node.sha256}", actual=actual
    )
