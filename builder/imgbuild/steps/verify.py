"""Static verification: everything that can be said about an image from its bytes, against definition and lock.

The steps, numbered as in docs/verification.md:

1. The manifest has its digest, parses, and its layers and DiffIDs begin with those of the base.
2. Config and manifest are, byte for byte, what base, definition and lock give for these layers.
3. Every blob has its digest and size; every added layer has its DiffID; all is what the lock expects.
4. The merged tree is made from the bytes of the added layers and the base's inventories.
5. The embedded lock is the lock; the receipt names exactly the paths that the added layers hold, as they are.
6. Every file that a step changed is in the state that the lock pins.
7. Packages: no new RECORD mismatch against the base, no second distribution of one name.
8. Each library is what its identity says, and nothing else can be loaded in its place (`steps.verify_library`).
9. The environment holds nothing that would change the answer.

All findings are reported. An exception means that the verification itself could not be made. Nothing is executed here:
what the image does at run time is not checked.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from imgbuild.adapters.durable import spool
from imgbuild.content.changeset import LayerResult
from imgbuild.content.inventory import LayerScan, scan_layer
from imgbuild.digest import Digest
from imgbuild.errors import AvailabilityError, ImgbuildError, IntegrityError
from imgbuild.model.identity import Finding, Report, Verdict, compare, not_checked
from imgbuild.steps.assemble import expected_documents
from imgbuild.steps.base import Base, check_platform, open_base, open_layer
from imgbuild.steps.verify_environment import environment
from imgbuild.steps.verify_files import documents, files, packages
from imgbuild.steps.verify_library import libraries
from imgbuild.steps.view import View

if TYPE_CHECKING:
    from imgbuild.adapters.project import ImageInput
    from imgbuild.model.lockfile import Lock
    from imgbuild.model.oci import Descriptor, ImageConfig, Manifest
    from imgbuild.progress import Task
    from imgbuild.steps.context import Context

_LATER = ("files", "packages", "library", "environment")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """What could be read of an image."""

    base: Base
    manifest: Manifest
    config: ImageConfig
    layers: tuple[tuple[str, LayerResult], ...]
    scans: tuple[LayerScan, ...]


def verify(context: Context, image: ImageInput, lock: Lock, descriptor: Descriptor) -> Report:
    """Verify an image of the store. Nothing is written but to the cache.

    Raises:
        AvailabilityError: the base or the lock's facts cannot be had, so that nothing could be compared.
    """
    findings: list[Finding] = []
    known = tuple(layer.inventory for layer in lock.facts.base_layers) if lock.facts is not None else None
    base = open_base(context, lock.pins.base, platform=lock.platform, inventories=known)
    try:
        read = _read(context, image, lock, descriptor, base, findings)
    except IntegrityError as error:
        findings.append(_broken("image", error))
        findings.extend(not_checked(name, "image", "the image could not be read") for name in _LATER)
        return Report(findings=tuple(findings))
    view = View(context, base, read.manifest.layers, tuple(scan.inventory for scan in read.scans))
    findings.extend(documents(view, lock))
    findings.extend(files(view, lock))
    findings.extend(packages(view))
    findings.extend(libraries(view, image.definition, lock, read.config))
    findings.extend(environment(view, image.definition, read.config))
    return Report(findings=tuple(findings))


def _read(
    context: Context, image: ImageInput, lock: Lock, descriptor: Descriptor, base: Base, findings: list[Finding]
) -> _Read:
    manifest = context.store.manifest(descriptor)
    config = context.store.config(manifest.config)
    check_platform(config, lock.platform, subject=f"image {descriptor.digest}")
    count = len(base.manifest.layers)
    findings.append(
        compare(
            "base.layers",
            f"the first {count} layers",
            _digests(base.manifest.layers, base.config.diff_ids),
            _digests(manifest.layers[:count], config.diff_ids[:count]),
        )
    )
    names = [layer.name for layer in image.layers] + ["imgbuild"]
    added = manifest.layers[count:]
    findings.append(compare("layers.count", "layers added", len(names), len(added)))
    findings.extend(_base_blobs(context, base))
    scans = _scan_added(context, added, config.diff_ids[count:], findings)
    layers = tuple(
        (
            name,
            LayerResult(
                diff_id=scan.inventory.diff_id,
                digest=scan.digest,
                size=scan.size,
                uncompressed_size=scan.inventory.uncompressed_size,
            ),
        )
        for name, scan in zip(names, scans, strict=False)
    )
    expected_config, expected_manifest = expected_documents(image, lock, base, layers)
    findings.append(compare("config", "image config", Digest.of(expected_config), config.digest))
    findings.append(compare("manifest", "image manifest", Digest.of(expected_manifest), manifest.digest))
    findings.append(_result(lock, manifest, layers))
    return _Read(base=base, manifest=manifest, config=config, layers=layers, scans=scans)


def _base_blobs(context: Context, base: Base) -> list[Finding]:
    def check(layer: Descriptor) -> Finding | None:
        subject = f"base layer {layer.digest}"
        try:
            context.store.verify(layer.digest, layer.size, subject=subject)
        except IntegrityError as error:
            return _broken("base.blob", error)
        except AvailabilityError as error:
            return not_checked("base.blob", subject, error.problem)
        return None

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        problems = [finding for finding in pool.map(check, base.manifest.layers) if finding is not None]
    whole = len(base.manifest.layers) - len(problems)
    if problems:
        return problems
    text = f"{whole} blobs with their digests"
    return [Finding(check="base.blob", subject="base layers", verdict=Verdict.MATCH, expected=text, actual=text)]


def _scan_added(
    context: Context, layers: tuple[Descriptor, ...], diff_ids: tuple[Digest, ...], findings: list[Finding]
) -> tuple[LayerScan, ...]:
    total = sum(layer.size for layer in layers)
    with context.progress.task("verifying layers", total) as task, ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        scans = tuple(pool.map(lambda layer: _scan(context, layer, task), layers))
    for layer, scan, diff_id in zip(layers, scans, diff_ids, strict=True):
        subject = f"layer {layer.digest}"
        findings.append(
            compare("layer.digest", subject, f"{layer.digest}, {layer.size} bytes", f"{scan.digest}, {scan.size} bytes")
        )
        findings.append(compare("layer.diff_id", subject, diff_id, scan.inventory.diff_id))
    return scans


def _scan(context: Context, layer: Descriptor, task: Task) -> LayerScan:
    subject = f"layer {layer.digest}"
    with open_layer(context, layer) as stream:
        return scan_layer(
            stream,
            subject=subject,
            spool=lambda: spool(context.cache.folder("spool")),
            capture=lambda digest, data: context.cache.has(digest) or context.cache.put([data]),
            advance=task.advance,
        )


def _result(lock: Lock, manifest: Manifest, layers: tuple[tuple[str, LayerResult], ...]) -> Finding:
    if lock.result is None:
        return not_checked("lock.result", "expected result", "the lock has no result; run `imgbuild lock`")
    expected = {item.name: str(item.diff_id) for item in lock.result.layers}
    actual = {name: str(result.diff_id) for name, result in layers}
    if expected != actual:
        return compare("lock.result", "DiffIDs of the layers added", expected, actual)
    return compare("lock.result", "manifest digest", lock.result.manifest, manifest.digest)


def _digests(layers: tuple[Descriptor, ...], diff_ids: tuple[Digest, ...]) -> str:
    return ", ".join(f"{layer.digest}={diff_id}" for layer, diff_id in zip(layers, diff_ids, strict=False))


def _broken(check: str, error: ImgbuildError) -> Finding:
    return Finding(
        check=check,
        subject=error.subject,
        verdict=Verdict.DIFFERS,
        expected=error.expected,
        actual=error.actual or error.problem,
        reason=error.problem,
    )
