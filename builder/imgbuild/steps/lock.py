"""`imgbuild lock`: the only step that may ask what a movable name means now.

An entry of the lock that still fits the definition is kept; only what is new, or named in `update`, is resolved again.
Then the image is assembled once, in the staging area, to find out what steps find and leave, the facts, and the result.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from imgbuild.adapters.durable import NEW_FILE_MODE, alone_in, storage_errors, write_file
from imgbuild.errors import (
    AvailabilityError,
    DocumentError,
    FactMismatchError,
    ImgbuildError,
    InputError,
    LockStaleError,
    PatchedFile,
    PatchError,
    StepError,
    UnresolvedError,
    UsageError,
)
from imgbuild.model.decode import builtins
from imgbuild.model.lockfile import SCHEMA, Lock, Pins, parse_lock
from imgbuild.steps.assemble import assemble
from imgbuild.steps.known import KnownLayers
from imgbuild.steps.patchpins import PREFIX, named_patches, patch_pins
from imgbuild.steps.pins import BASE, FINAL, contradictions, pin_base, pin_sources

if TYPE_CHECKING:
    from pathlib import Path

    from imgbuild.adapters.project import ImageInput
    from imgbuild.adapters.store import StagedStore
    from imgbuild.model.image import ImageDefinition
    from imgbuild.model.lockfile import LockedBase, LockedSource
    from imgbuild.steps.context import Context


@dataclass(frozen=True, slots=True, kw_only=True)
class LockChange:
    """One line of what changed: a path in the lock, and the values before and after (None: not there)."""

    path: str
    old: str | None
    new: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LockOutcome:
    """A new lock beside the old one."""

    lock: Lock
    changes: tuple[LockChange, ...]


def make_lock(
    context: Context, image: ImageInput, old: Lock | None, *, update: frozenset[str], start: Lock | None = None
) -> LockOutcome:
    """Resolve, assemble and write down. Nothing is written to the repository; `write_lock` does that.

    Args:
        context: the surroundings.
        image: what the repository says.
        old: the lock that there is.
        update: names of pins that are resolved anew.
        start: `old` with pins that were moved already (`steps.move`), which are kept if they fit.

    Raises:
        UsageError: `update` names what is not in the definition.
        ImgbuildError: whatever resolving or assembling raises; then the old lock stays as it is.
    """
    draft = draft_lock(context, image, start or old, update=update)
    lock = _assembled(context, image, draft, old, derive=True)
    return LockOutcome(lock=lock, changes=differences(old, lock))


def draft_lock(context: Context, image: ImageInput, old: Lock | None, *, update: frozenset[str] = frozenset()) -> Lock:
    """Resolve only: a lock without what assembling finds out, but for the facts of a base that stays what it was.

    It raises as `make_lock`.
    """
    definition = image.definition
    check_names(image, old, update)
    base, sources = _pins(context, definition, old, update)
    return Lock(
        schema=SCHEMA,
        image=definition.name,
        platform=definition.platform,
        inputs_digest=image.inputs_digest,
        inputs=list(image.inputs),
        pins=Pins(
            format=definition.format,
            epoch=definition.epoch,
            base=base,
            sources=sources,
            files=[],
        ),
        # What was found out about the same base must come out again: only `--complete` may say something else.
        facts=None if old is None or old.pins.base != base else old.facts,
    )


def check_names(image: ImageInput, old: Lock | None, update: frozenset[str]) -> None:
    """Refuse, with a `UsageError`, names that are no pins of an image, and any where there is no lock."""
    sources = image.definition.sources
    named_patches(image, update)
    unknown = sorted(name for name in update - {BASE, *sources} if not name.startswith(PREFIX))
    if unknown:
        known = ", ".join([BASE, *sorted(sources), *(f"{PREFIX}{name}" for name in patch_pins(image))])
        raise UsageError(f"--update {unknown[0]}", "names no pin of the image", expected=known)
    if update and old is None:
        raise UsageError(
            f"--update {min(update)}",
            f"has no lock to move a pin in: {image.lock_file} is not there",
            hint=f"run `imgbuild lock {image.words}` first, which resolves everything",
        )


def _pins(
    context: Context, definition: ImageDefinition, old: Lock | None, update: frozenset[str]
) -> tuple[LockedBase, list[LockedSource]]:
    """All pins. Who cannot reach one place is told of all such places at once."""
    lost: list[tuple[str, AvailabilityError]] = []
    base = None
    try:
        base = pin_base(context, definition, None if old is None else old.pins.base, update=BASE in update)
    except FINAL:
        raise
    except AvailabilityError as error:
        lost.append((BASE, error))
    before = [] if old is None else old.pins.sources
    sources = pin_sources(context, definition.sources, before, update=update, platform=definition.platform, lost=lost)
    if lost or base is None:
        raise lost[0][1] if len(lost) == 1 else UnresolvedError(f"image {definition.name}", tuple(lost))
    return base, sources


def complete_lock(context: Context, image: ImageInput, old: Lock) -> LockOutcome:
    """Derive the facts and the result of a lock from its pins, which stay as they are."""
    check_fresh(image, old)
    bare = msgspec.structs.replace(old, facts=None, result=None)
    lock = _assembled(context, image, bare, old, derive=False)
    return LockOutcome(lock=lock, changes=differences(old, lock))


def write_lock(path: Path, lock: Lock, *, old: Lock | None) -> None:
    """Write the lock file atomically, over `old`, from which the new one was made. Raises as `check_old`."""
    with alone_in(path.parent):
        check_old(path, old)
        put_lock(path, lock)


def check_old(path: Path, old: Lock | None) -> None:
    """Refuse, with an `InputError`, to go on where another command has written the lock file meanwhile."""
    try:
        with storage_errors(path, "read"):
            now = parse_lock(path.read_bytes(), subject=str(path)) if path.exists() else None
    except DocumentError:
        same = False
    else:
        same = now == old
    if not same:
        raise InputError(
            str(path), "was changed while a new one was made", hint="nothing was written over it; run it again"
        )


def put_lock(path: Path, lock: Lock) -> None:
    """Write the lock file atomically, whatever is there. A link to a file stays one, and its mode what it is."""
    path = path.resolve()
    with storage_errors(path, "read"):
        mode = path.stat().st_mode & 0o777 if path.exists() else NEW_FILE_MODE
    write_file(path, lock.dump(), mode=mode)


def stale_input(image: ImageInput, lock: Lock) -> tuple[str, str, str] | None:
    """The first input that differs from what the lock was made from: name, recorded and current digest; None if none.

    Looks at the inputs only: neither facts nor result are compared with bytes here. No network, no store.
    """
    if lock.inputs_digest == image.inputs_digest:
        return None
    recorded = {item.name: str(item.digest) for item in lock.inputs}
    current = {item.name: str(item.digest) for item in image.inputs}
    names = sorted(recorded.keys() | current.keys())
    name = next(name for name in names if recorded.get(name) != current.get(name))
    return name, recorded.get(name, "not an input"), current.get(name, "not an input any more")


def is_complete(lock: Lock) -> bool:
    """Whether the lock has its facts and its result."""
    return lock.facts is not None and lock.result is not None


def check_fresh(image: ImageInput, lock: Lock) -> None:
    """Refuse a lock that was made from other inputs, or whose pins say something else than the definition.

    Raises:
        LockStaleError: names the first input that differs.
        DocumentError: lists where lock and definition contradict each other, which only an edited lock does.
    """
    found = stale_input(image, lock)
    if found is None:
        problems = contradictions(image.definition, lock)
        if problems:
            hint = f"no lock is edited by hand: take it back, or remove it and run `imgbuild lock {image.words}`"
            raise DocumentError(image.lock_file, problems, hint=hint)
        return
    name, recorded, current = found
    raise LockStaleError(
        image.lock_file,
        f"is stale: {name} differs",
        expected=recorded,
        actual=current,
        hint=f"run `imgbuild lock {image.words}` and review the difference, or take the change back",
    )


def differences(old: Lock | None, new: Lock) -> tuple[LockChange, ...]:
    """What changed between two locks, field by field, sorted by path."""
    before = {} if old is None else _flat(builtins(old))
    after = _flat(builtins(new))
    return tuple(
        LockChange(path=path, old=before.get(path), new=after.get(path))
        for path in sorted(before.keys() | after.keys())
        if before.get(path) != after.get(path)
    )


def _assembled(context: Context, image: ImageInput, draft: Lock, old: Lock | None, *, derive: bool) -> Lock:
    before = None if old is None else old.result
    store: StagedStore = context.store  # type: ignore[assignment] # the CLI opens a staged store for writing verbs
    try:
        with store.session(), KnownLayers(context, before, blobs=False) as known:
            return assemble(context, image, draft, known, derive=derive).lock
    except (FactMismatchError, PatchError, StepError) as error:
        if error.file is not None and old is not None:
            error.file = _recorded(error.file, old)
        if derive and old is not None:
            error.changed = _moved_preimages(context, draft, old)
        raise


def _moved_preimages(context: Context, draft: Lock, old: Lock) -> tuple[PatchedFile, ...]:
    """All files that steps touch and a moved base has otherwise: whoever mends one patch sees what else awaits him."""
    from imgbuild.steps.moved_base import moved_preimages  # noqa: PLC0415 - imported when used

    try:
        return moved_preimages(context, draft, old)
    except ImgbuildError as error:
        context.progress.note(f"what else the base has otherwise is not known: {error}")
        return ()


def _recorded(file: PatchedFile, old: Lock) -> PatchedFile:
    """The same file, with what a lock has as that state of it."""
    rows = (row.states[file.number :] for row in old.pins.files if (row.step, row.path) == (file.step, file.path))
    return dataclasses.replace(file, recorded=next(iter(next(rows, ())), None))


def _flat(value: Any, path: str = "") -> dict[str, str]:
    if isinstance(value, dict):
        return {key: text for name, item in value.items() for key, text in _flat(item, f"{path}.{name}").items()}
    if isinstance(value, list):
        rows: dict[str, str] = {}
        for index, item in enumerate(value):
            label = _label(item, index)
            rows.update(_flat(item, f"{path}[{label}]"))
        return rows
    return {path.lstrip("."): str(value)}


def _label(item: Any, index: int) -> str:
    """What names a row, so that a row that moves is not a change: its name, or step and path."""
    if isinstance(item, dict):
        if "step" in item:
            return f"{item['step']} {item['path']}"
        for name in ("name", "path"):
            if name in item:
                return str(item[name])
    return str(index)
