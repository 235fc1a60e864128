"""`imgbuild build`: assemble, verify, and only then publish and tag."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from imgbuild.adapters.store import StagedStore
from imgbuild.errors import FactMismatchError, MissingError
from imgbuild.model.decode import builtins
from imgbuild.model.identity import Report
from imgbuild.steps.assemble import assemble
from imgbuild.steps.difference import first_difference
from imgbuild.steps.lock import check_fresh, differences
from imgbuild.steps.verify import verify

if TYPE_CHECKING:
    from collections.abc import Callable

    from imgbuild.adapters.engine import Engine
    from imgbuild.adapters.project import ImageInput
    from imgbuild.model.lockfile import Lock
    from imgbuild.steps.assemble import Assembled
    from imgbuild.steps.context import Context
    from imgbuild.steps.export import Exported, Target
    from imgbuild.steps.known import KnownLayers
    from imgbuild.steps.load import Loaded
    from imgbuild.steps.lock import LockChange
    from imgbuild.steps.push import Destination, Pushed


@dataclass(frozen=True, slots=True, kw_only=True)
class Relocked:
    """What is new in a lock that was made on the way, and whether it was written."""

    changes: tuple[LockChange, ...]
    written: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOutcome:
    """What was built, what the verification found, and which tags now name it (none if it did not pass)."""

    assembled: Assembled
    report: Report
    tags: tuple[str, ...]
    pushed: Pushed | None = None
    exported: tuple[Exported, ...] = ()
    loaded: Loaded | None = None
    relocked: Relocked | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Relock:
    """That the lock is to be made on the way.

    Attributes:
        old: the lock until now.
        write: is given the new one when the image has passed, before anything is published.
    """

    old: Lock | None
    write: Callable[[Lock], None]


def build(
    context: Context,
    image: ImageInput,
    lock: Lock,
    known: KnownLayers,
    *,
    dry_run: bool = False,
    destination: Destination | None = None,
    outputs: tuple[Target, ...] = (),
    engine: Engine | None = None,
    relock: Relock | None = None,
) -> BuildOutcome:
    """Build and verify in the staging area; publish and tag only if every required identity matched.

    Args:
        context: the surroundings, with a staged store whose session the caller holds: `known` has to begin in it.
        image: definition and layers.
        lock: its lock; with `relock` a draft (`draft_lock`).
        known: the layers of the lock's result; with `relock`, of the one before.
        dry_run: publish nothing.
        destination: push there: by digest, read back, then the tags, and the tags of the store after those.
        outputs: write it there, before it is pushed: where the disk is full, nobody has seen a tag.
        engine: load it there, after the outputs.
        relock: find out what the draft lacks.

    If the process ends at any point before the last rename, no tag has moved and what is left is removed by the next
    run; what was pushed or kept in the store by then has no name.

    Raises:
        LockStaleError: the inputs changed after the lock was made.
        ImgbuildError: what assembling, `check_result` and pushing raise.
    """
    if relock is None:
        check_fresh(image, lock)
    store = context.store
    assert isinstance(store, StagedStore)  # noqa: S101 - its session is held
    based = context.based_on(lock.pins.base.reference)
    ask = dry_run or destination is None or not _finds_out(based, destination)
    assembled, report = _assemble(context, image, lock, known, relock, ask=ask)
    relocked = _relock(relock, assembled.lock, write=report.ok and not dry_run)
    if dry_run or not report.ok:
        return BuildOutcome(assembled=assembled, report=report, tags=(), relocked=relocked)
    # Blobs without a name: if what comes now fails, the next run does not make them again.
    store.publish()
    exported, loaded = _export(based, image, assembled, outputs, engine)
    pushed = None
    if destination is not None:
        pushed, report = _push(based, assembled, report, destination)
    tags = tuple(image.definition.tags) if report.ok else ()
    for tag in tags:
        store.tag(tag, assembled.manifest)
    return BuildOutcome(
        assembled=assembled,
        report=report,
        tags=tags,
        pushed=pushed,
        exported=exported,
        loaded=loaded,
        relocked=relocked,
    )


def _finds_out(based: Context, destination: Destination) -> bool:
    """Whether a push looks for the blobs of the base in their own registry, so that nobody needs ask before."""
    return any(place.registry is destination.repository.registry for place in based.places.repositories)


def _assemble(
    context: Context, image: ImageInput, lock: Lock, known: KnownLayers, relock: Relock | None, *, ask: bool
) -> tuple[Assembled, Report]:
    """Assemble and verify; again where a layer that was taken for whole was damaged, which is then made anew."""
    while True:
        assembled = assemble(context, image, lock, known, derive=relock is not None)
        if relock is None:
            check_result(lock, assembled, image.words)
        report = verify(
            context,
            image,
            assembled.lock,
            assembled.manifest,
            base=assembled.base,
            scans=assembled.scans,
            ask=ask,
        )
        if known.all_whole():
            return assembled, report


def _relock(relock: Relock | None, lock: Lock, *, write: bool) -> Relocked | None:
    if relock is None:
        return None
    if write:
        relock.write(lock)
    return Relocked(changes=differences(relock.old, lock), written=write)


def _export(
    context: Context, image: ImageInput, assembled: Assembled, outputs: tuple[Target, ...], engine: Engine | None
) -> tuple[tuple[Exported, ...], Loaded | None]:
    """Write what was verified to folders and files, and load it; nothing of it is imported where none is asked for."""
    if not outputs and engine is None:
        return (), None
    from imgbuild.steps.export import docker_names, export  # noqa: PLC0415
    from imgbuild.steps.export_archive import Image  # noqa: PLC0415

    definition = image.definition
    manifest = context.store.manifest(assembled.manifest)
    exportable = Image(
        descriptor=assembled.manifest,
        manifest=manifest,
        config=context.store.config(manifest.config),
        epoch=assembled.lock.pins.epoch,
        places=context.places,
    )
    exported = export(exportable, outputs, context.progress)
    if engine is None:
        return exported, None
    from imgbuild.steps.load import load  # noqa: PLC0415

    return exported, load(engine, exportable, docker_names(definition.name, definition.tags), context.progress)


def _push(context: Context, assembled: Assembled, report: Report, destination: Destination) -> tuple[Pushed, Report]:
    """Push what was verified. The digests that were verified are the digests that are pushed and read back."""
    from imgbuild.steps.push import move_tags, push  # noqa: PLC0415 - urllib3 takes 60 ms

    manifest = context.store.manifest(assembled.manifest)
    pushed, findings = push(
        context, destination.repository, manifest, manifest.raw, base=assembled.base.manifest.layers
    )
    report = Report(findings=(*report.findings, *findings))
    if report.ok:
        moved = move_tags(destination.repository, manifest, manifest.raw, destination.tags)
        pushed = dataclasses.replace(pushed, moved=moved)
    return pushed, report


def check_result(lock: Lock, assembled: Assembled, words: str) -> None:
    """Compare what came out with the result in the lock; an error names the first field that differs, layers first.

    `words` name the image on the command line.
    """
    expected, actual = lock.result, assembled.lock.result
    if expected is None or expected == actual:
        return
    if actual is None:
        raise MissingError(f"result of {lock.image}", "was not made")
    where, wanted, found = first_difference(builtins(expected), builtins(actual), "result")
    raise FactMismatchError(
        f"result of {lock.image}",
        f"differs from the lock in {where}",
        expected=wanted,
        actual=found,
        hint="was the lock edited, or made by another version of imgbuild? take that back, or run "
        f"`imgbuild lock {words} --complete`, which keeps all pins, and review the difference",
    )
