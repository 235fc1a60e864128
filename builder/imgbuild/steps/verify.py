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
9. The environment holds nothing that would change the answer.

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
from imgbuild.model.identity import Finding, Report, compare, judge, not_checked, unlooked
from imgbuild.model.lockfile import Result, ResultLayer
from imgbuild.steps.assemble import RECEIPT_LAYER
from imgbuild.steps.base import Base, check_platform, open_base, read_config
from imgbuild.steps.crew import Crew
from imgbuild.steps.difference import first_difference
from imgbuild.steps.layers import read_layer
from imgbuild.steps.lock import check_fresh
from imgbuild.steps.scanned import failed, layer_findings, reason
from imgbuild.steps.verify_environment import environment
from imgbuild.steps.verify_files import documents, files, packages
from imgbuild.steps.verify_library import library
from imgbuild.steps.view import View
from imgbuild.steps.written import expected_documents

if TYPE_CHECKING:
    from collections.abc import Callable

    from imgbuild.adapters.project import ImageInput
    from imgbuild.model.lockfile import Lock
    from imgbuild.model.oci import Descriptor, ImageConfig, Manifest
    from imgbuild.progress import Task
    from imgbuild.steps.context import Context

_BASE_HINT = "copy the base into the store again (for `mini`, `make base`)"
_REQUESTS = 8
"""requests at a time."""
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
) -> Report:
    """Verify an image of the store. Nothing is written but to the cache.

    Args:
        context: the surroundings.
        image: definition and layers.
        lock: its lock.
        descriptor: the manifest to verify.
        base: the lock's base, where the caller has read it already.
        scans: what the added layers are by their bytes, where the caller has just read them; else they are read.

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
    findings: list[Finding] = []
    if base is None:
        base = open_base(context, lock.pins.base, platform=lock.platform, facts=lock.facts)
    libraries = tuple(image.definition.library)
    try:
        found = _read(context, lock, descriptor, len(base.manifest.layers))
    except UNREADABLE as error:
        findings.append(failed("image", error))
        steps = (*_FIRST_STEPS, *_TREE_STEPS, _LAST_STEP)
        findings.extend(unlooked(steps, libraries, "image", "the image could not be read"))
        return Report(findings=tuple(findings))
    findings.extend(_structure(context, image, base, found))
    findings.extend(_stated(image, lock, base, found))
    read = _scan_added(context, found, findings, scans)
    findings.append(_result(image, lock, found, read))
    view = _view(context, base, found, read, findings)
    if view is None:
        findings.extend(unlooked(_TREE_STEPS, libraries, "image", "its layers could not be read or merged"))
    else:
        findings.extend(_guarded(5, (), documents, view, lock))
        findings.extend(files(view, lock))
        findings.extend(_guarded(7, (), packages, view))
        for name in sorted(libraries):
            arguments = (view, name, image.definition.library[name], lock, found.config)
            findings.extend(_guarded(8, (name,), library, *arguments))
    findings.extend(environment(view, image.definition, found.config))
    return Report(findings=tuple(findings))


def _read(context: Context, lock: Lock, descriptor: Descriptor, count: int) -> _Image:
    """Manifest and config; the first `count` layers should be the base's."""
    manifest = context.store.manifest(descriptor)
    config = read_config(context, manifest)
    check_platform(config, lock.platform, subject=f"image {descriptor.digest}")
    added = tuple(zip(manifest.layers[count:], config.diff_ids[count:], strict=True))
    return _Image(manifest=manifest, config=config, added=added)


def _structure(context: Context, image: ImageInput, base: Base, found: _Image) -> list[Finding]:
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
        *_base_blobs(context, base),
    ]


def _stated(image: ImageInput, lock: Lock, base: Base, found: _Image) -> list[Finding]:
    """Config and manifest against what they should be for the layers that they list; step 3 looks at the layers."""
    config, manifest = expected_documents(image, lock, base, tuple(_stated_layers(image, found)))
    return [
        compare("config", "image config", Digest.of(config), found.config.digest),
        compare("manifest", "image manifest", Digest.of(manifest), found.manifest.digest),
    ]


def _base_blobs(context: Context, base: Base) -> list[Finding]:
    """The blobs of the base: those in the store are hashed; those elsewhere are asked after, and are not read."""
    places = context.places
    local = [layer for layer in base.manifest.layers if places.is_local(layer) or not places.repositories]
    remote = [layer for layer in base.manifest.layers if layer not in local]
    found = [*_base_hashed(context, local)] if local else []
    return [*found, *_base_present(context, remote)] if remote else found


def _base_hashed(context: Context, layers: list[Descriptor]) -> list[Finding]:
    def check(layer: Descriptor) -> Finding | None:
        subject = f"base layer {layer.digest}"
        try:
            context.store.verify(layer.digest, layer.size, subject=subject)
        except UNREADABLE as error:
            return failed("base.blob", error, hint=_BASE_HINT)
        return None

    with Crew(context, os.cpu_count() or 1) as pool:
        problems = [finding for finding in pool.map(check, layers) if finding is not None]
    if problems:
        return problems
    text = f"{len(layers)} blobs with their digests"
    return [judge("base.blob", "base layers", ok=True, expected=text, actual=text)]


def _base_present(context: Context, layers: list[Descriptor]) -> list[Finding]:
    """Whether somebody has the blobs that are not here. That says nothing of their bytes, and the report says so."""

    def check(layer: Descriptor) -> Finding | str:
        subject = f"base layer {layer.digest}"
        try:
            where = context.places.where(layer)
        except UNREADABLE as error:
            return failed("base.present", error)
        if where is None:
            return judge("base.present", subject, ok=False, expected=f"{layer.size} bytes", actual="nobody has it")
        return where

    with Crew(context, _REQUESTS) as pool:
        answers = list(pool.map(check, layers))
    problems = [answer for answer in answers if isinstance(answer, Finding)]
    unread = not_checked(
        "base.blob",
        f"{len(layers)} base layers",
        "they are not in the store; `imgbuild verify REFERENCE --deep` reads every byte of a pushed image",
        required=False,
    )
    if problems:
        return [*problems, unread]
    text = f"{len(layers)} blobs of their sizes"
    places = ", ".join(sorted({str(answer) for answer in answers}))
    present = judge("base.present", "base layers", ok=True, expected=text, actual=text, reason=f"said by {places}")
    return [present, unread]


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
        why = f"the lock has no result; run `imgbuild lock {lock.image} --complete`"
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
    return [*(layer.name for layer in image.layers), RECEIPT_LAYER]


def _digests(layers: tuple[Descriptor, ...], diff_ids: tuple[Digest, ...]) -> str:
    return ", ".join(f"{layer.digest}={diff_id}" for layer, diff_id in zip(layers, diff_ids, strict=True))
