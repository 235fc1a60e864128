"""A pushed image, read whole: every blob once, and all that can be said of it without the repository it was built from.

1. Every layer has the digest, size and DiffID that manifest and config state (`layer.digest`, `layer.diff_id`).
2. The lock that is embedded in the image parses, and its base is what the first layers are (`embedded.lock`,
   `base.layers`); every file in them has the digest that the lock's inventories pin (`base.inventory`), and
   their merged view is the one that it pins (`base.tree`).
3. The receipt names exactly the paths that the added layers hold, as they are (`receipt`); every file that a step
   changed is in the state that the lock pins (`file`).
4. RECORD rows and distributions (`packages.record`, `packages.single`), with the base as baseline.

An image without an embedded lock has the first of these and no more, and the report says so. What the image should be
is not known here: its own lock says it, and whoever made the image wrote that. Compare with a lock that you trust by
`imgbuild verify IMAGE`.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from imgbuild.content.inventory import LayerScan
from imgbuild.digest import Digest, digest_of
from imgbuild.errors import UNREADABLE, ImgbuildError, InputError
from imgbuild.model.identity import Finding, Report, compare, judge, not_checked
from imgbuild.model.lockfile import Lock, parse_lock
from imgbuild.model.paths import show
from imgbuild.model.receipt import FOLDER
from imgbuild.steps.base import Base, dump_base, merge
from imgbuild.steps.crew import Crew
from imgbuild.steps.readers import reading
from imgbuild.steps.scanned import failed, layer_findings
from imgbuild.steps.verify_files import documents, files, packages
from imgbuild.steps.view import View

if TYPE_CHECKING:
    from imgbuild.content.inventory import Inventory
    from imgbuild.model.oci import Descriptor
    from imgbuild.steps.images import RemoteImage

_LOCK_SUFFIX = b".lock.json"


def verify_deep(image: RemoteImage) -> Report:
    """Read every byte of an image and check it.

    Raises:
        RegistryError: nothing could be read at all; what could be read in part is in the report.
        StorageError: the cache cannot be written.
    """
    findings: list[Finding] = []
    scans = _scan_all(image, findings)
    if scans is None:
        findings.append(not_checked("embedded.lock", "image", "not all of its layers could be read"))
        return Report(findings=tuple(findings))
    inventories = [scan.inventory for scan in scans]
    lock = _lock(image, inventories, findings)
    if lock is not None and lock.facts is not None:
        findings.extend(_against_lock(image, lock, inventories))
    return Report(findings=tuple(findings))


def _scan_all(image: RemoteImage, findings: list[Finding]) -> list[LayerScan] | None:
    """One scan a layer, each distinct blob read once (case C11); None if not all could be read."""
    context, manifest = image.context, image.manifest
    pairs = list(zip(manifest.layers, image.config.diff_ids, strict=True))
    order = sorted(set(pairs), key=lambda pair: (-pair[0].size, pair[0].digest, pair[1]))

    def scan(pair: tuple[Descriptor, Digest]) -> LayerScan | ImgbuildError:
        try:
            return read(*pair, watched)
        except UNREADABLE as error:
            return error

    layers = [layer for layer, _ in order]
    with (
        context.progress.task("verifying layers", sum(layer.size for layer in layers)) as task,
        reading(context, layers) as (read, workers),
        Crew(context, workers) as crew,
    ):
        watched = crew.watched(task)
        found = dict(zip(order, crew.map(scan, order), strict=True))
    for layer, diff_id in pairs:
        findings.extend(layer_findings(layer, diff_id, found[layer, diff_id]))
    scans = [answer for pair in pairs if isinstance(answer := found[pair], LayerScan)]
    return scans if len(scans) == len(pairs) else None


def _lock(image: RemoteImage, inventories: list[Inventory], findings: list[Finding]) -> Lock | None:
    """The embedded lock, if there is exactly one that can be read."""
    try:
        view = _view(image, inventories, len(inventories))
        names = [name for name in view.listdir(FOLDER) if name.endswith(_LOCK_SUFFIX)]
        if not names:
            reason = f"there is none below {show(FOLDER)}: the image was not built by imgbuild"
            findings.append(not_checked("embedded.lock", "image", reason, required=False))
            return None
        path = FOLDER + b"/" + names[0]
        if len(names) > 1:
            text = ", ".join(show(name) for name in names)
            findings.append(judge("embedded.lock", show(FOLDER), ok=False, expected="one lock", actual=text))
            return None
        lock = parse_lock(view.read(path) or b"", subject=show(path))
    except UNREADABLE as error:
        findings.append(failed("embedded.lock", error))
        return None
    except InputError as error:
        findings.append(judge("embedded.lock", error.subject, ok=False, expected="a lock", actual=error.problem))
        return None
    complete = lock.facts is not None and path == FOLDER + b"/" + lock.image.encode() + _LOCK_SUFFIX
    expected = "a lock of that name, with its facts"
    findings.append(
        judge("embedded.lock", show(path), complete, expected=expected, actual=expected if complete else "none")
    )
    return lock if complete else None


def _against_lock(image: RemoteImage, lock: Lock, inventories: list[Inventory]) -> list[Finding]:
    assert lock.facts is not None  # noqa: S101 - looked at before
    count = len(lock.facts.base_layers)
    pairs = zip(image.manifest.layers[:count], image.config.diff_ids[:count], strict=True)
    pinned = ", ".join(f"{row.digest}={row.diff_id}" for row in lock.facts.base_layers)
    there = ", ".join(f"{layer.digest}={diff_id}" for layer, diff_id in pairs)
    findings = [compare("base.layers", f"the first {count} layers", pinned, there)]
    if count > len(inventories):
        return findings
    digests = tuple(Digest.of(inventory.dump()) for inventory in inventories[:count])
    findings += [
        compare("base.inventory", f"files of layer {row.digest}", row.inventory, digest)
        for row, digest in zip(lock.facts.base_layers, digests, strict=True)
    ]
    try:
        view = _view(image, inventories, count)
        actual, _ = digest_of(dump_base(image.context, image.manifest.layers[:count], view.base.merged, digests))
        findings.append(compare("base.tree", "merged view of the base", lock.facts.base_tree, actual))
        # The first of these compares the embedded lock with itself.
        return [*findings, *documents(view, lock, lock.image)[1:], *files(view, lock), *packages(view)]
    except UNREADABLE as error:
        return [*findings, failed("receipt", error)]


def _view(image: RemoteImage, inventories: list[Inventory], count: int) -> View:
    layers = image.manifest.layers
    base = Base(
        manifest=dataclasses.replace(image.manifest, layers=layers[:count]),
        descriptor=image.descriptor,
        config=image.config,
        merged=merge(inventories[:count]),
    )
    return View(image.context, base, layers[count:], tuple(inventories[count:]))
