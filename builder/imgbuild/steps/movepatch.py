"""`imgbuild lock --update patch:NAME [--to VALUE]`: where a patch goes, and the states that follow from it.

A layer's own patch goes to another file (or is taken as it stands there now). One of a git source goes to another
commit of that source, and so does all else that steps take from it: that must be the same there, else more than the
patch would move. The patches of one source have one commit; one that shall have another needs a source of its own.

Two things that the definition knows of a patch follow it, and nothing else does: its digest among those of its source,
and the states that a file of states names after it. States before it still have to hold.
"""

from __future__ import annotations

import dataclasses
import json
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from imgbuild.adapters.tomledit import Edit, edit_lists
from imgbuild.config import DEFAULT_LIMITS
from imgbuild.content.patch import parse_patch
from imgbuild.digest import Digest
from imgbuild.errors import DocumentError, InputError, StepError, UsageError
from imgbuild.model.image import GitSource
from imgbuild.model.layer import Compile, GitTree, Patch, numbered
from imgbuild.model.lockfile import LockedGit
from imgbuild.model.paths import image_path, relative_path, show
from imgbuild.steps.apply import selected
from imgbuild.steps.check import check_image
from imgbuild.steps.given import open_given
from imgbuild.steps.lock import make_lock
from imgbuild.steps.patchpins import PREFIX, PatchPin, PatchUse, named_patches, patch_pins
from imgbuild.steps.sources import Sources, locate, repository
from imgbuild.steps.target import EditedFile, Target, commit_of, git_target
from imgbuild.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from imgbuild.adapters.gitsource import GitTree as Tree
    from imgbuild.adapters.project import ImageInput, LayerInput, Project
    from imgbuild.model.layer import Step
    from imgbuild.model.lockfile import Lock
    from imgbuild.steps.context import Context

_SHOWN = 10
"""files of a source that one error names."""


def patch_targets(
    context: Context, image: ImageInput, old: Lock, *, names: frozenset[str], to: str | None
) -> dict[str, Target]:
    """Where patches go, by the pins that move: `patch:NAME` of a layer's own, the name of the source of others.

    Args:
        context: the surroundings.
        image: what the repository says.
        old: the lock that there is.
        names: of pins of all kinds; those of no patch are passed over.
        to: where it goes: a file, or a commit, branch or tag; None is the file as it is, or what the ref means now.

    Raises:
        UsageError: there is no such patch, its source is named as well, or `to` is no file that can be had.
        InputError: another file that steps take from the source would move, too.
        ImgbuildError: what fetching and resolving say.
    """
    targets: dict[str, Target] = {}
    of_source: dict[str, list[PatchPin]] = {}
    for pin in named_patches(image, names):
        if pin.source is None:
            targets[f"{PREFIX}{pin.name}"] = _own(image, old, pin, to)
        else:
            of_source.setdefault(pin.source, []).append(pin)
    for source, pins in of_source.items():
        if source in names:
            words = f"--update {source} --update {PREFIX}{pins[0].name}"
            raise UsageError(words, "names a source and a patch of it", hint="leave one of them out")
        targets[source] = _of_source(context, image, old, source, pins, to)
    return targets


def _own(image: ImageInput, old: Lock, pin: PatchPin, to: str | None) -> Target:
    before = pin.uses[0].layer.files[pin.stage]
    data = before if to is None else _given(to, pin)
    if data != before and image.stand_in is not None:
        hint = "move it without --stand-in, or change the file"
        raise UsageError(f"--update {PREFIX}{pin.name}", f"is {pin.place}, a file of the real layer", hint=hint)
    recorded = next((item.digest for item in old.inputs if item.name == pin.place), None)
    moved = data != before or Digest.of(data) != recorded
    return Target(
        file=None if data == before else EditedFile(name=pin.place, before=before, after=data),
        patches=frozenset((pin.name,) if moved else ()),
    )


def _given(to: str, pin: PatchPin) -> bytes:
    """The bytes of a file that can be read as a patch: else it is that file that is wrong, and none of the layer."""
    option = f"--to {printable(to, 300)}"
    limit = DEFAULT_LIMITS.text_bytes
    with open_given(option, Path(to)) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise UsageError(option, "is too long for a patch", expected=f"at most {limit} bytes")
    for use in pin.uses:
        parse_patch(data, subject=option, strip=use.step.strip)
    return data


def _of_source(
    context: Context, image: ImageInput, old: Lock, name: str, pins: list[PatchPin], to: str | None
) -> Target:
    source = image.definition.sources[name]
    locked = next((one for one in old.pins.sources if one.name == name), None)
    assert isinstance(source, GitSource)  # noqa: S101 - looked at when the image was read
    if not isinstance(locked, LockedGit):
        raise UsageError(f"--update {PREFIX}{pins[0].name}", f"has no pin to move: the lock has no git source {name}")
    git = repository(context)
    commit = commit_of(context, name, source, to)
    if source.commit not in {None, locked.commit, commit}:
        raise UsageError(
            f"--update {PREFIX}{pins[0].name}",
            f"needs a lock of the commit that the definition has of source {name}",
            expected=source.commit,
            actual=locked.commit,
            hint=f"was a move interrupted? the same command with `--to {source.commit}` ends it, and then goes on; "
            f"else run `imgbuild lock {image.words}` first, or take the change back",
        )
    stages = {pin.stage for pin in pins}
    with (
        git.fetch(locate(context, source.repository), commit) as after,
        git.fetch(locate(context, locked.repository), locked.commit, expected_tree=locked.tree) as before,
    ):
        moved, contents = _differences(image, name, before, after)
        known = {pin.stage: _digest_in(after, pin, commit) for pin in pins}
    if not contents & stages:
        # Nothing of the patch is another one: there is no reason to move what else the source has.
        return Target(source=locked)
    others = sorted(moved - stages)
    if others:
        more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
        raise InputError(
            f"source {name}",
            f"has {len(others)} other files there that steps take and that change, too",
            expected=f"no other change than that of {', '.join(sorted(stages))}",
            actual=", ".join(others[:_SHOWN]) + more,
            where=f"commit {commit}, compared with {locked.commit}",
            hint=_together(image, name, others, pins)
            or f"move all of it with `--update {name}`, or give the patch a source of its own in the definition",
        )
    digests = {stage: digest for stage, digest in known.items() if stage in source.digests}
    target = git_target(context, name, msgspec.structs.replace(source, digests={**source.digests, **digests}), to)
    edits = [Edit(keys=("sources", name, "digests", stage), value=str(digest)) for stage, digest in digests.items()]
    return dataclasses.replace(
        target,
        edits=(*target.edits, *edits),
        name=f"{PREFIX}{pins[0].name}",
        patches=frozenset(pin.name for pin in pins if pin.stage in moved),
    )


def _together(image: ImageInput, source: str, others: list[str], pins: list[PatchPin]) -> str | None:
    """The words that move patches of one source together; None where something else than patches would move."""
    known = {pin.stage: pin for pin in patch_pins(image).values() if pin.source == source}
    if not all(stage in known for stage in others):
        return None
    names = sorted({pin.name for pin in pins} | {known[stage].name for stage in others})
    return f"move them together: `imgbuild lock {image.words} {' '.join(f'--update {PREFIX}{one}' for one in names)}`"


def _digest_in(tree: Tree, pin: PatchPin, commit: str) -> Digest:
    try:
        return Digest.of(tree.file(pin.stage, subject=f"source {pin.source}").read())
    except StepError as error:
        raise InputError(
            f"patch {pin.place}",
            "is no file in the commit that it is to move to",
            actual=error.problem,
            where=f"commit {commit}",
            hint="give another commit with --to; if the patch has another name there, or is a link, change `stages` of "
            "its step",
        ) from error


def _differences(image: ImageInput, name: str, before: Tree, after: Tree) -> tuple[set[str], set[str]]:
    """Files of a source that steps take and that differ between two trees; and those without another mode only."""
    first, second = (dict(_taken(image, name, tree)) for tree in (before, after))
    moved = {path for path in first.keys() | second.keys() if first.get(path) != second.get(path)}
    bare, other = ({path: (stat.S_IFMT(row[0]), row[1]) for path, row in rows.items()} for rows in (first, second))
    return moved, {path for path in moved if bare.get(path) != other.get(path)}


def _taken(image: ImageInput, name: str, tree: Tree) -> Iterator[tuple[str, tuple[int, str]]]:
    """Mode and blob of the files that steps take of a source."""
    steps = [step for layer in image.layers for _, step in numbered(layer.name, layer.definition)]
    chosen = [step for step in steps if not isinstance(step, GitTree) and _source(step) == name]
    paths = {path for step in chosen for path in _paths(step)}
    trees = [step for step in steps if isinstance(step, GitTree) and step.source == name]
    paths |= {step.licence for step in trees if step.licence is not None}
    for item in tree.files:
        path = item.path.decode("utf-8", "backslashreplace")
        if path in paths or any(selected(item.path, step) for step in trees):
            yield path, (item.mode, item.blob)


def _source(step: Step) -> str | None:
    return step.source if isinstance(step, Patch | Compile) else None


def _paths(step: Step) -> list[str]:
    match step:
        case Patch():
            return step.stages
        case Compile():
            return [*step.sources, *step.headers]
    return []


def states_after(
    context: Context,
    project: Project,
    image: ImageInput,
    old: Lock,
    start: Lock,
    *,
    patches: Iterable[str],
    update: frozenset[str],
) -> tuple[EditedFile, ...]:
    """The files of states that moved patches make other ones, as they have to be.

    The image is assembled without these files to find that out; what comes of it is for the caller to assemble again,
    with them, so that all states that do not follow from a moved patch are looked at as ever.

    Args:
        context: the surroundings.
        project: where the image is from, with what is to be written there.
        image: what the repository says then.
        old: the lock that there is.
        start: the lock with the pins that were moved.
        patches: names of those that moved. Where none did, what the repository says has to hold.
        update: names of pins that are still to be resolved.

    Raises:
        UsageError: the states stand in a document of stand-ins.
        DocumentError: the file cannot be edited without changing something else.
        ImgbuildError: a patch does not apply, and whatever else assembling says.
    """
    check_image(image)
    pins = named_patches(image, [f"{PREFIX}{name}" for name in patches])
    uses: dict[tuple[str, str], list[PatchUse]] = {}
    for use in (use for pin in pins for use in pin.uses if use.step.states is not None):
        uses.setdefault((use.layer.name, use.step.states or ""), []).append(use)
    if not uses:
        return ()
    lock = make_lock(context, _without_states(image, set(uses)), old, update=update, start=start).lock
    files = []
    with Sources(context, tuple(lock.pins.sources)) as sources:
        for (layer, states), rows in uses.items():
            known = rows[0].layer.states[states]
            changed: dict[str, list[str]] = {}
            for use in rows:
                changed |= _changed_states(sources, use, known, lock)
            if changed:
                name = project.states_file(layer, states)
                if project.stand_in is not None:
                    raise _of_stand_ins(pins[0].name, name, changed)
                raw = rows[0].layer.files[states]
                files.append(EditedFile(name=name, before=raw, after=_edited(raw, changed, name)))
    return tuple(files)


def _edited(raw: bytes, changed: dict[str, list[str]], name: str) -> bytes:
    try:
        return edit_lists(raw, changed, subject=name)
    except DocumentError as error:
        error.hint = f"write them there by hand, and run the same command again: {_rows(changed)}"
        raise


def _rows(changed: dict[str, list[str]]) -> str:
    """States as people may write them down."""
    rows = "; ".join(f"{path} = {json.dumps(states)}" for path, states in list(changed.items())[:_SHOWN])
    return rows + (f"; and {len(changed) - _SHOWN} more files" if len(changed) > _SHOWN else "")


def _of_stand_ins(patch: str, name: str, changed: dict[str, list[str]]) -> UsageError:
    return UsageError(
        f"--update {PREFIX}{patch}",
        f"has to move states, which stand in {name}, a document of stand-ins",
        hint=f"correct them there: {_rows(changed)}",
    )


def _without_states(image: ImageInput, files: set[tuple[str, str]]) -> ImageInput:
    """The same image, whose patches may leave any states where one of these files names them."""

    def without(layer: LayerInput, step: Step) -> Step:
        named = isinstance(step, Patch) and step.states is not None and (layer.name, step.states) in files
        return msgspec.structs.replace(step, states=None) if named else step

    layers = (
        dataclasses.replace(
            layer,
            definition=msgspec.structs.replace(
                layer.definition, step=[without(layer, step) for step in layer.definition.step]
            ),
        )
        for layer in image.layers
    )
    return dataclasses.replace(image, layers=tuple(layers))


def _changed_states(
    sources: Sources, use: PatchUse, known: dict[str, tuple[str, ...]], lock: Lock
) -> dict[str, list[str]]:
    """Of each file whose states after a patch are others now: all its states. Those before must be those known."""
    subject = f"step {use.step_id}"
    earlier: dict[str, int] = {}
    for stage in use.step.stages[: use.number]:
        for file in parse_patch(_bytes(sources, use, stage), subject=subject, strip=use.step.strip):
            path = show(file.path)[1:]
            earlier[path] = earlier.get(path, 0) + 1
    found = {}
    rows = {row.path: row.states for row in lock.pins.files if row.step == use.step_id}
    for text in use.step.files:
        path = show(relative_path(text, where=subject))[1:]
        before = earlier.get(path, 0) + 1
        real, then = show(image_path(f"{use.step.root}/{text}", where=subject)), known[text]
        now = rows.get(real)
        if now is None:
            raise InputError(
                subject,
                f"changes {real} under another path, so its states cannot be moved",
                hint="write the path without links in `root` and `files` of the step, or correct the states by hand",
            )
        if tuple(now) != then and tuple(now[:before]) == then[:before]:
            found[text] = list(now)
    return found


def _bytes(sources: Sources, use: PatchUse, stage: str) -> bytes:
    if use.step.source is None:
        return use.layer.files[stage]
    _, tree = sources.git(use.step.source)
    return tree.file(stage, subject=use.step.source).read()
