"""Static verification: everything that can be said about an image from its bytes, against definition and lock.

The steps, numbered as in docs/verification.md:

1. The manifest has its digest, parses, and its layers and DiffIDs begin with those of the base.
2. Config and manifest are, byte for byte, what base, definition and lock give for these layers.
3. Every blob has its digest and size; every added layer has its DiffID; all is what the lock expects.
4. The merged tree is made from the bytes of the added layers and the base's merged view, which the lock pins.
5. The embedded lock is the lock; the receipt names exactly the paths that the added layers hold, as they are.
6. Every file that a step changed is in the state that the lock pins.
7. Packages: no new RECORD mismatch against the base, no second distribution of one name.
8. Each library is what its identity says, and nothing else can be loaded in its place (`steps.verify_library`).
9. The environment holds nothing that would change the answer; what runs at every start of Python is named.

All findings are reported: what cannot be read is `not-checked`, with all that would have needed it, and the rest is
looked at. An exception means that there is nothing to compare with. Nothing is executed here: what the image does at
run time is not checked. The names of all checks are in `model.identity`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from imgbuild.content.changeset import LayerResult
from imgbuild.content.inventory import LayerScan
from imgbuild.digest import Digest
from imgbuild.errors import UNREADABLE, ImgbuildError, IntegrityError
from imgbuild.model.decode import builtins
from imgbuild.model.identity import Finding, Report, compare, not_checked, unlooked
from imgbuild.model.lockfile import Result, ResultLayer
from imgbuild.steps.assemble import RECEIPT_LAYER
from imgbuild.steps.base import Base, check_platform, open_base, read_config
from imgbuild.steps.basepin import check_index
from imgbuild.steps.crew import Crew
from imgbuild.steps.difference import first_difference
from imgbuild.steps.layers import read_layer
from imgbuild.steps.lock import check_fresh
from imgbuild.steps.scanned import failed, layer_findings, reason
from imgbuild.steps.verify_base import BaseBlobs
from imgbuild.steps.verify_environment import environment
from imgbuild.steps.verify_files import documents, files, packages
from imgbuild.steps.verify_library import library
from imgbuild.steps.verify_startup import startup
from imgbuild.steps.view import View
from imgbuild.steps.written import expected_documents

if TYPE_CHECKING:
    from collections.abc import Callable

    from imgbuild.adapters.project import ImageInput
    from imgbuild.model.lockfile import Lock
    from imgbuild.model.oci import Descriptor, ImageConfig, Manifest
    from imgbuild.progress import Task
    from imgbuild.steps.context import Context

_FIRST_STEPS = (1, 2, 3)
_TREE_STEPS = (5, 6, 7, 8)
"""The steps that look at the merged tree; the last one does in part."""
_LAST_STEP = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class _Image:
    """An image as its manifest and config state it."""

    manifest: Manifest
    config: ImageConfig
    added: tuple[tuple[Descriptor, Digest], ...]
    """The layers after the base's, each with its DiffID."""


def verify(
    context: Context,
    image: ImageInput,
    lock: Lock,
    descriptor: Descriptor,
    *,
    base: Base | None = None,
    scans: tuple[LayerScan, ...] | None = None,
    ask: bool = True,
) -> Report:
    """Verify an image of the store. Nothing is written but to the cache.

    Args:
        context: the surroundings.
        image: definition and layers.
        lock: its lock.
        descriptor: the manifest to verify.
        base: the lock's base, where the caller has read it already.
        scans: what the added layers are, where the caller has read or written them, or will ask `KnownLayers` whether
            they are whole; else they are read.
        ask: whether registries are asked for the base's blobs; not where they are going to be mounted from there.

    Raises:
        OfflineMissError, MissingError: the base's manifest or config is not in the store; or a layer of the base is not
            there, and neither is its inventory in the cache.
        FactMismatchError, DigestMismatchError, LayoutError, ArchiveError: the base is not what the lock says, or is
            damaged so that there is no inventory of it.
        StorageError: the store cannot be read, or the cache not be written.
        LockStaleError, DocumentError: the lock was not made for this definition, so there is nothing to verify against.
    """
    check_fresh(image, lock)
    context = context.based_on(lock.pins.base.reference)
    if base is None:
        base = open_base(context, lock.pins.base, platform=lock.platform, facts=lock.facts)
        check_index(context, image.definition, lock.pins.base)
    libraries = tuple(image.definition.library)
    try:
        found = _read(context, lock, descriptor, len(base.manifest.layers))
    except UNREADABLE as error:
        steps = (*_FIRST_STEPS, *_TREE_STEPS, _LAST_STEP)
        unread = unlooked(steps, libraries, "image", "the image could not be read")
        return Report(findings=(failed("image", error), *unread))
    with BaseBlobs(context, base, ask=ask) as blobs:
        rest = _after_structure(context, image, lock, base, found, scans)
        return Report(findings=(*_structure(image, base, found), *blobs.findings(), *rest))


def _after_structure(
    context: Context, image: ImageInput, lock: Lock, base: Base, found: _Image, known: tuple[LayerScan, ...] | None
) -> list[Finding]:
    """Steps 2 to 9."""
    libraries = image.definition.library
    findings = _stated(image, lock, base, found)
    read = _scan_added(context, found, findings, known)
    findings.append(_result(image, lock, found, read))
    view = _view(context, base, found, read, findings)
    if view is None:
        findings.extend(unlooked(_TREE_STEPS, tuple(libraries), "image", "its layers could not be read or merged"))
    else:
        findings.extend(_guarded(5, (), documents, view, lock, image.words) if image.layers else [])
        findings.extend(files(view, lock))
        findings.extend(_guarded(7, (), packages, view))
        for name in sorted(libraries):
            findings.extend(_guarded(8, (name,), library, view, name, libraries[name], lock, found.config))
    return [*findings, *environment(view, image.definition, found.config), startup(view, found.config)]


def _read(context: Context, lock: Lock, descriptor: Descriptor, count: int) -> _Image:
    """Manifest and config; the first `count` layers should be the base's."""
    manifest = context.store.manifest(descriptor)
    config = read_config(context, manifest)
    check_platform(config, lock.platform, subject=f"image {descriptor.digest}")
    added = tuple(zip(manifest.layers[count:], config.diff_ids[count:], strict=True))
    return _Image(manifest=manifest, config=config, added=added)


def _structure(image: ImageInput, base: Base, found: _Image) -> list[Finding]:
    count = len(base.manifest.layers)
    first = compare(
        "base.layers",
        f"the first {count} layers",
        _digests(base.manifest.layers, base.config.diff_ids),
        _digests(found.manifest.layers[:count], found.config.diff_ids[:count]),
    )
    return [
        first,
        compare("layers.count", "layers added", len(_names(image)), len(found.added)),
    ]


def _stated(image: ImageInput, lock: Lock, base: Base, found: _Image) -> list[Finding]:
    """Config and manifest against what they should be for the layers that they list; step 3 looks at the layers."""
    config, manifest = expected_documents(image, lock, base, tuple(_stated_layers(image, found)))
    return [
        compare("config", "image config", Digest.of(config), found.config.digest),
        compare("manifest", "image manifest", Digest.of(manifest), found.manifest.digest),
    ]


def _scan_added(
    context: Context, found: _Image, findings: list[Finding], known: tuple[LayerScan, ...] | None
) -> list[LayerScan]:
    """Read the layers added; those that cannot be read are missing in the answer, and have a finding that says why."""
    scans: list[LayerScan | ImgbuildError] = list(known or ())
    if len(scans) != len(found.added):
        scans = _read_added(context, found)
    for (layer, diff_id), scan in zip(found.added, scans, strict=True):
        findings.extend(layer_findings(layer, diff_id, scan))
    return [scan for scan in scans if isinstance(scan, LayerScan)]


def _read_added(context: Context, found: _Image) -> list[LayerScan | ImgbuildError]:
    total = sum(layer.size for layer, _ in found.added)
    with context.progress.task("verifying layers", total) as task, Crew(context, os.cpu_count() or 1) as pool:
        return list(pool.map(lambda row: _scan(context, row[0], row[1], task), found.added))


def _scan(context: Context, layer: Descriptor, diff_id: Digest, task: Task) -> LayerScan | ImgbuildError:
    try:
        return read_layer(context, layer, diff_id, task)
    except UNREADABLE as error:
        return error


def _view(context: Context, base: Base, found: _Image, scans: list[LayerScan], findings: list[Finding]) -> View | None:
    if len(scans) != len(found.added):
        return None
    try:
        return View(context, base, tuple(layer for layer, _ in found.added), tuple(scan.inventory for scan in scans))
    except IntegrityError as error:
        findings.append(failed("image", error))
        return None


def _guarded(
    step: int, libraries: tuple[str, ...], look: Callable[..., list[Finding]], *arguments: object
) -> list[Finding]:
    """The findings of a step; where a file that it needs cannot be read, nothing that it checks is known."""
    try:
        return look(*arguments)
    except UNREADABLE as error:
        return unlooked((step,), libraries, error.subject, reason(error))


def _result(image: ImageInput, lock: Lock, found: _Image, scans: list[LayerScan]) -> Finding:
    if lock.result is None:
        why = f"the lock has no result; run `imgbuild lock {image.words} --complete`"
        return not_checked("lock.result", "expected result", why)
    inventories = {scan.inventory.diff_id: Digest.of(scan.inventory.dump()) for scan in scans}
    pinned = {row.diff_id: row.inventory for row in lock.result.layers}
    rows = [
        ResultLayer(
            name=name,
            diff_id=row.diff_id,
            digest=row.digest,
            size=row.size,
            # Of a layer that could not be read nothing is known: that it could not is a finding of its own.
            inventory=inventories.get(row.diff_id) or pinned.get(row.diff_id) or row.diff_id,
        )
        for name, row in _stated_layers(image, found)
    ]
    actual = Result(layers=rows, config=found.config.digest, manifest=found.manifest.digest)
    if lock.result == actual:
        return compare("lock.result", "manifest digest", lock.result.manifest, actual.manifest)
    where, expected, there = first_difference(builtins(lock.result), builtins(actual), "result")
    return compare("lock.result", where, expected, there, reason="the first field that differs")


def _stated_layers(image: ImageInput, found: _Image) -> list[tuple[str, LayerResult]]:
    """The added layers as manifest and config state them; how long they are unpacked stands in neither."""
    return [
        (name, LayerResult(diff_id=diff_id, digest=layer.digest, size=layer.size, uncompressed_size=0))
        for name, (layer, diff_id) in zip(_names(image), found.added, strict=False)
    ]


def _names(image: ImageInput) -> list[str]:
    return [*(layer.name for layer in image.layers), *([RECEIPT_LAYER] if image.layers else [])]


def _digests(layers: tuple[Descriptor, ...], diff_ids: tuple[Digest, ...]) -> str:
    return ", ".join(f"{layer.digest}={diff_id}" for layer, diff_id in zip(layers, diff_ids, strict=True))
