"""From pins to an image: base, steps, canonical layers, config, manifest. No network but for sources that are not here.

Nothing that this module writes has a name: blobs go to the store's staging area, from where a verified build publishes
them. The result is a pure function of definition, layer files and pins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from imgbuild.digest import Digest
from imgbuild.errors import FactMismatchError
from imgbuild.model.decode import builtins
from imgbuild.model.lockfile import Facts, Lock, LockedLayer, Result, ResultLayer
from imgbuild.model.oci import Descriptor
from imgbuild.model.receipt import RECEIPT_PATH, lock_path
from imgbuild.steps.apply import Work, apply_layer
from imgbuild.steps.base import Base, machine_of, open_base
from imgbuild.steps.basepin import check_index
from imgbuild.steps.check import check_image
from imgbuild.steps.difference import first_difference
from imgbuild.steps.layers import read_file
from imgbuild.steps.packages import Packages
from imgbuild.steps.preimages import preimages
from imgbuild.steps.receipt import library_facts, receipt, touched
from imgbuild.steps.sources import Sources
from imgbuild.steps.workspace import Attributes, Workspace
from imgbuild.steps.written import Layers, check_budget, expected_documents, write_layers

if TYPE_CHECKING:
    from imgbuild.adapters.project import ImageInput
    from imgbuild.content.changeset import Change
    from imgbuild.content.inventory import LayerScan
    from imgbuild.steps.context import Context
    from imgbuild.steps.known import KnownLayers

RECEIPT_LAYER = "imgbuild"
"""Name of the last layer, which holds lock and receipt. An image without layers is its base, and has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembled:
    """An image as blobs without a name, and the lock that its bytes say."""

    lock: Lock
    """The lock with the states and facts that were found, and with the result."""
    base: Base
    workspace: Workspace
    layers: Layers
    scans: tuple[LayerScan, ...]
    """What the added layers are: by the bytes that the store has now, or had when a known one was made."""
    manifest: Descriptor


def assemble(
    context: Context,
    image: ImageInput,
    lock: Lock,
    known: KnownLayers,
    *,
    derive: bool = False,
) -> Assembled:
    """Make the image that a lock pins.

    Args:
        context: the surroundings; blobs go to its store.
        image: definition, layer definitions and their files.
        lock: the pins; its facts, where there are some, must agree with the bytes.
        known: layers that need not be made anew; that they are whole is for the caller to ask in the end.
        derive: find out the states of files and the facts instead of comparing them, to make a lock; but those of the
            base, where the lock has some.

    Raises:
        StepError, PatchError: a step refuses what it finds.
        IntegrityError: bytes differ from a pin or fact.
        AvailabilityError: base or source cannot be had, or the disk is full.
    """
    check_image(image)
    context = context.based_on(lock.pins.base.reference)
    facts = lock.facts
    read = frozenset(preimages(image, lock).values())
    base = open_base(context, lock.pins.base, platform=lock.platform, facts=facts, preimages=read)
    check_index(context, image.definition, lock.pins.base)
    check_labels(image, base)
    expected = None if derive else {(row.step, row.path): tuple(row.states) for row in lock.pins.files}
    workspace = Workspace(
        base.tree(),
        lambda node, name: read_file(context, base.manifest.layers, node, name),
        epoch=lock.pins.epoch,
        first_layer=len(base.manifest.layers),
        expected=expected,
    )
    original = Packages(workspace, base.parsed)
    original.installed()
    changesets = _apply_layers(context, image, lock, workspace, original.twin())
    _refuse_unused(workspace, expected)
    found = _facts(image, base, workspace, original)
    if facts is not None and not derive and facts != found:
        # Damage is the likelier cause than a lock that was made so.
        workspace.check_contents()
        raise _other_facts(image, facts, found)
    lock = msgspec.structs.replace(
        lock, facts=found, pins=msgspec.structs.replace(lock.pins, files=list(workspace.states)), result=None
    )
    if changesets:
        changesets.append((RECEIPT_LAYER, _receipt_layer(workspace, lock, found, base.manifest.digest)))
    return _write(context, image, lock, base, workspace, changesets, known)


def _apply_layers(
    context: Context, image: ImageInput, lock: Lock, workspace: Workspace, packages: Packages
) -> list[tuple[str, tuple[Change, ...]]]:
    """Run all steps; the changes of each layer, by its name."""
    changesets: list[tuple[str, tuple[Change, ...]]] = []
    with Sources(context, tuple(lock.pins.sources)) as sources:
        work = Work(
            context=context,
            workspace=workspace,
            sources=sources,
            packages=packages,
            machine=machine_of(lock.platform),
        )
        for layer in image.layers:
            apply_layer(work, layer)
            changesets.append((layer.name, workspace.finish_layer()))
    return changesets


def check_labels(image: ImageInput, base: Base) -> None:
    """Refuse a base that lacks a required label or has another value (case P21)."""
    labels = dict(base.config.labels)
    for name, value in sorted(image.definition.base.labels.items()):
        if labels.get(name) != value:
            raise FactMismatchError(
                f"label {name} of the base",
                "differs from the definition",
                expected=value,
                actual=labels.get(name, "no such label"),
                hint="is it the base that is meant? only if it is, correct base.labels in the definition",
            )


def _receipt_layer(workspace: Workspace, lock: Lock, facts: Facts, base: Digest) -> tuple[Change, ...]:
    workspace.begin_layer()
    where = RECEIPT_LAYER
    attributes = Attributes(mode=0o644)
    workspace.write_bytes(lock_path(lock.image), lock.embedded(facts), attributes, where=where)
    body = receipt(lock.image, base, workspace.before, workspace.tree).dump()
    workspace.write_bytes(RECEIPT_PATH, body, attributes, where=where)
    return workspace.finish_layer()


def _write(
    context: Context,
    image: ImageInput,
    lock: Lock,
    base: Base,
    workspace: Workspace,
    changesets: list[tuple[str, tuple[Change, ...]]],
    known: KnownLayers,
) -> Assembled:
    layers, scans = write_layers(context, workspace, changesets, known, epoch=lock.pins.epoch)
    check_budget(image, base, layers)
    config, manifest = expected_documents(image, lock, base, layers)
    context.store.put([config])
    digest, size = context.store.put([manifest])
    result = Result(
        layers=[
            ResultLayer(
                name=name,
                diff_id=item.diff_id,
                digest=item.digest,
                size=item.size,
                inventory=Digest.of(scan.inventory.dump()),
            )
            for (name, item), scan in zip(layers, scans, strict=True)
        ],
        config=Digest.of(config),
        manifest=digest,
    )
    return Assembled(
        lock=msgspec.structs.replace(lock, result=result),
        base=base,
        workspace=workspace,
        layers=layers,
        scans=scans,
        manifest=Descriptor(media_type=base.manifest.family.manifest, digest=digest, size=size),
    )


def _facts(image: ImageInput, base: Base, workspace: Workspace, original: Packages) -> Facts:
    layers = [
        LockedLayer(
            digest=layer.digest, media_type=layer.media_type, size=layer.size, diff_id=diff_id, inventory=inventory
        )
        for layer, diff_id, inventory in zip(
            base.manifest.layers, base.config.diff_ids, base.inventory_digests, strict=True
        )
    ]
    assert base.tree_digest is not None  # noqa: S101 - `open_base` read it
    return Facts(
        base_layers=layers,
        base_tree=base.tree_digest,
        touched=touched(workspace.before, original),
        libraries=library_facts(image.definition, workspace.before, workspace.tree),
    )


def _other_facts(image: ImageInput, recorded: Facts, found: Facts) -> FactMismatchError:
    where, expected, actual = first_difference(builtins(recorded), builtins(found), "facts")
    return FactMismatchError(
        f"lock of {image.definition.name}",
        "has facts that differ from the bytes",
        expected=expected,
        actual=actual,
        where=where,
        hint=f"run `imgbuild lock {image.words} --complete` and review the difference",
    )


def _refuse_unused(workspace: Workspace, expected: dict[tuple[str, str], tuple[str, ...]] | None) -> None:
    if expected is None:
        return
    made = {(row.step, row.path) for row in workspace.states}
    for step, path in sorted(set(expected) - made):
        raise FactMismatchError(
            f"file {path}",
            "is in the lock but no step changes it",
            expected=" -> ".join(expected[step, path]),
            actual="no change",
            where=f"step {step}",
        )
