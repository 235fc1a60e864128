"""What changed in patches between two locks, for people: the files that they touch, their hunks, the states after."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from imgbuild.content.patch import parse_patch
from imgbuild.digest import Digest
from imgbuild.errors import ImgbuildError, MissingError
from imgbuild.model.lockfile import LockedGit
from imgbuild.model.paths import show
from imgbuild.steps.moved_git import RAISED
from imgbuild.steps.patchpins import patch_pins
from imgbuild.steps.sources import locate, repository
from imgbuild.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imgbuild.adapters.project import ImageInput
    from imgbuild.content.patch import FilePatch, Hunk
    from imgbuild.model.lockfile import Lock
    from imgbuild.steps.context import Context
    from imgbuild.steps.patchpins import PatchPin

ROWS = 200
"""files that are named of one patch."""
_LINE = 300
"""characters of one path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hunks:
    """What a patch does to one file: the number of its hunks, and of the lines that it adds and removes."""

    count: int
    added: int
    removed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchedPath:
    """A file to which a patch does something else than before; None where it does not touch it."""

    path: str
    old: Hunks | None
    new: Hunks | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedStates:
    """The states of a file that a step patches, from its preimage on; none where the step did not list it."""

    step: str
    path: str
    old: tuple[str, ...]
    new: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedPatch:
    """A patch that is another one.

    Attributes:
        name: what `--update patch:NAME` calls it.
        place: where it is: `layers/LAYER/FILE`, or `SOURCE/FILE`.
        steps: that apply it.
        new: its digest now.
        old: its digest before; None where `problem` says why not.
        files: the first `ROWS` of those to which it does something else now; None where `problem` says why not.
        same: files to which it does the same as before.
        states: of the steps' files, where they are others now.
    """

    name: str
    place: str
    steps: tuple[str, ...]
    new: Digest
    old: Digest | None = None
    files: tuple[PatchedPath, ...] | None = None
    same: int = 0
    problem: str | None = None
    states: tuple[MovedStates, ...] = ()


def moved_patches(
    context: Context, before: ImageInput, after: ImageInput, old: Lock, new: Lock
) -> tuple[MovedPatch, ...]:
    """Compare the patches of two locks, those that both have; only `RAISED` is raised.

    Args:
        context: the surroundings in which the new lock was made.
        before: what the repository said before the pins moved; its patches need not be those of `old`.
        after: what it says then.
        old: the lock before.
        new: the lock now.
    """
    first = {pin.place: pin for pin in patch_pins(before).values()}
    return tuple(
        found
        for pin in patch_pins(after).values()
        if pin.place in first and (found := _moved(context, first[pin.place], pin, old, new)) is not None
    )


def _moved(context: Context, before: PatchPin, after: PatchPin, old: Lock, new: Lock) -> MovedPatch | None:
    if after.source is not None and _commit(old, after) == _commit(new, after):
        return None
    # What the new lock was made from has been read.
    data = _bytes(context, after, new)
    digest, states = Digest.of(data), tuple(_states(after, old, new))
    steps = tuple(use.step_id for use in after.uses)
    recorded = _recorded(before, old)
    if recorded == digest:
        return None
    try:
        earlier = _bytes(context, before, old)
        if recorded not in {None, Digest.of(earlier)}:
            raise MissingError(f"patch {before.place}", "is not here any more as it was locked")
        files, same = _compared(before, earlier, after, data)
    except RAISED:
        raise
    except ImgbuildError as error:
        return MovedPatch(
            name=after.name,
            place=after.place,
            steps=steps,
            new=digest,
            old=recorded,
            problem=printable(str(error), _LINE),
            states=states,
        )
    if earlier == data:
        return None
    return MovedPatch(
        name=after.name,
        place=after.place,
        steps=steps,
        new=digest,
        old=Digest.of(earlier),
        files=files,
        same=same,
        states=states,
    )


def _git(lock: Lock, pin: PatchPin) -> LockedGit | None:
    found = next((one for one in lock.pins.sources if one.name == pin.source), None)
    return found if isinstance(found, LockedGit) else None


def _commit(lock: Lock, pin: PatchPin) -> str | None:
    source = _git(lock, pin)
    return None if source is None else source.commit


def _recorded(pin: PatchPin, lock: Lock) -> Digest | None:
    """The digest that a lock has of a patch; None where it has none, as it need not of a file of a commit."""
    if pin.source is None:
        return next((item.digest for item in lock.inputs if item.name == pin.place), None)
    source = _git(lock, pin)
    return None if source is None else source.evidence.get(pin.stage)


def _bytes(context: Context, pin: PatchPin, lock: Lock) -> bytes:
    if pin.source is None:
        return pin.uses[0].layer.files[pin.stage]
    source = _git(lock, pin)
    if source is None:
        raise MissingError(f"source {pin.source}", "is no git source of the lock")
    where = locate(context, source.repository)
    with repository(context).fetch(where, source.commit, expected_tree=source.tree) as tree:
        return tree.file(pin.stage, subject=source.name).read()


def _compared(before: PatchPin, old: bytes, after: PatchPin, new: bytes) -> tuple[tuple[PatchedPath, ...], int]:
    first, second = _files(before, old), _files(after, new)
    paths = sorted(path for path in first.keys() | second.keys() if not _equal(first.get(path), second.get(path)))
    rows = tuple(
        PatchedPath(path=printable(path, _LINE), old=_hunks(first.get(path)), new=_hunks(second.get(path)))
        for path in paths[:ROWS]
    )
    return rows, len(first.keys() | second.keys()) - len(paths)


def _files(pin: PatchPin, data: bytes) -> dict[str, FilePatch]:
    parsed = parse_patch(data, subject=f"patch {pin.place}", strip=pin.uses[0].step.strip)
    return {show(file.path)[1:]: file for file in parsed}


def _equal(one: FilePatch | None, other: FilePatch | None) -> bool:
    if one is None or other is None:
        return one is other
    same = (one.is_new, one.is_delete, one.mode) == (other.is_new, other.is_delete, other.mode)
    return same and list(map(_key, one.hunks)) == list(map(_key, other.hunks))


def _key(hunk: Hunk) -> tuple[int, int, bytes, bytes]:
    # Not in which line of its patch it stands: a file before it may be another one.
    return hunk.old_start, hunk.new_start, hunk.old, hunk.new


def _hunks(file: FilePatch | None) -> Hunks | None:
    return None if file is None else Hunks(count=len(file.hunks), added=file.added, removed=file.removed)


def _states(pin: PatchPin, old: Lock, new: Lock) -> Iterator[MovedStates]:
    """Of the files of the patch's steps, those whose states differ, in the order of the lock."""
    steps = {use.step_id for use in pin.uses}
    before = {(row.step, row.path): tuple(row.states) for row in old.pins.files}
    for row in new.pins.files:
        states = before.get((row.step, row.path), ())
        if row.step in steps and states != tuple(row.states):
            yield MovedStates(step=row.step, path=printable(row.path, _LINE), old=states, new=tuple(row.states))
