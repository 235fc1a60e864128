"""`imgbuild lock --update NAME [--to VALUE]`: where a pin goes, in the lock and in the definition, or a layer's files.

The line that decides is the one that changes: `base.manifest`, the commit, the digest or the version of a source, where
the definition has it; else the tag or ref that it follows; else only the lock. Nothing is written here.
"""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from imgbuild.adapters.durable import alone_in, storage_errors, write_file
from imgbuild.adapters.giturl import shown
from imgbuild.adapters.tomledit import Edit, edit_toml, value_at
from imgbuild.digest import Digest
from imgbuild.errors import DocumentError, InputError, MissingError, StorageError, UsageError
from imgbuild.model.image import FileSource, GitSource, MemberSource, ToolchainSource, WheelSource
from imgbuild.model.reference import Reference, check_tag
from imgbuild.steps.basepin import resolve_base
from imgbuild.steps.given import take_any
from imgbuild.steps.lock import check_names, check_old, put_lock
from imgbuild.steps.movepatch import patch_targets, states_after
from imgbuild.steps.patchpins import PREFIX, named_patches
from imgbuild.steps.pins import BASE, resolve_one_wheel
from imgbuild.steps.target import EditedFile, Target, git_target
from imgbuild.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from imgbuild.adapters.project import Definition, ImageInput, Project
    from imgbuild.model.image import ImageDefinition, Source
    from imgbuild.model.lockfile import Lock, LockedBase
    from imgbuild.steps.context import Context


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """All that is to move.

    Attributes:
        names: of the pins.
        edits: the values that change in the definition, each with the one that it has now.
        files: of the repository that change: the definition first, if it does, then those of layers.
        image: what the repository says then.
        start: the lock with those pins that are known already, to make the new one from.
        update: names of pins that are still to be resolved.
        patches: names of those whose bytes are others then.
        stale: inputs that the repository had otherwise already than the lock, and that it has so from now on.
    """

    names: tuple[str, ...]
    edits: tuple[tuple[Edit, str], ...]
    files: tuple[EditedFile, ...]
    image: ImageInput
    start: Lock
    update: frozenset[str]
    patches: frozenset[str]
    stale: tuple[str, ...]

    @property
    def definition(self) -> str | None:
        """The definition, if it changes, by its path below the project's folder."""
        return next((file.name for file in self.files if file.name.startswith("locks/")), None)


def move_pins(
    context: Context, project: Project, image: ImageInput, old: Lock | None, *, names: frozenset[str], to: str | None
) -> Move:
    """Find out where pins go.

    Args:
        context: the surroundings. A file that `to` names is put into its cache.
        project: where the image is from.
        image: what the repository says.
        old: the lock that there is.
        names: of the pins; one, where `to` is given.
        to: where it goes, as the user says it; None is what its movable name means now.

    Raises:
        UsageError: a name or value makes no sense, or what is to change stands in a file of another image.
        ImgbuildError: what resolving says.
    """
    check_names(image, old, names)
    assert old is not None  # noqa: S101 - looked at there
    plain = {name for name in names if not name.startswith(PREFIX)}
    targets = {name: found for name in sorted(plain) if (found := _target(context, image.definition, old, name, to))}
    targets |= patch_targets(context, image, old, names=names, to=to)
    edits = tuple(edit for target in targets.values() for edit in target.edits)
    file, before = _edited(project, image.definition.name, targets)
    own = [target.file for target in targets.values() if target.file is not None]
    _refuse_shared(project, image, own)
    files = (*([file] if file is not None else []), *own)
    known = {name for name, target in targets.items() if target.base is not None or target.source is not None}
    edited = {name for name, target in targets.items() if target.edits}
    moved = _moved(project, files, image, to) if files else image
    return Move(
        names=tuple(sorted(names)),
        edits=tuple(zip(edits, before, strict=True)),
        files=files,
        image=moved,
        start=_start(old, targets),
        update=frozenset(plain - known - edited),
        patches=frozenset().union(*(target.patches for target in targets.values())),
        stale=_stale(image, old, names),
    )


def _stale(image: ImageInput, old: Lock, names: frozenset[str]) -> tuple[str, ...]:
    """The inputs that changed since the lock was made, but for the patches that are to be taken as they are."""
    recorded = {item.name: item.digest for item in old.inputs}
    current = {item.name: item.digest for item in image.inputs}
    own = {pin.place for pin in named_patches(image, names) if pin.source is None}
    changed = (name for name in recorded.keys() | current.keys() if recorded.get(name) != current.get(name))
    return tuple(sorted(set(changed) - own))


def _moved(project: Project, files: tuple[EditedFile, ...], image: ImageInput, to: str | None) -> ImageInput:
    try:
        return _with_files(project, files).load(image.definition.name)
    except DocumentError as error:
        if to is None:
            raise
        raise UsageError(f"--to {shown(to, 300)}", f"makes no sense there: {error.problem}") from error


def move_states(context: Context, project: Project, move: Move, old: Lock) -> Move:
    """The same, with the states that follow from patches that move; raises as `movepatch.states_after`."""
    project = _with_files(project, move.files)
    files = states_after(context, project, move.image, old, move.start, patches=move.patches, update=move.update)
    if not files:
        return move
    _refuse_shared(project, move.image, files)
    image = _with_files(project, files).load(move.image.definition.name)
    return dataclasses.replace(move, files=(*move.files, *files), image=image)


def _refuse_shared(project: Project, image: ImageInput, files: Iterable[EditedFile]) -> None:
    """Refuse a file that is another one of the image's layers, too, by a link: that one would move unseen."""
    places = [f"layers/{layer.name}/{name}" for layer in image.layers for name in layer.files]
    for file in files:
        real = (project.root / file.name).resolve()
        other = next((name for name in places if name != file.name and (project.root / name).resolve() == real), None)
        if other is not None:
            hint = "make one of them a file of its own, or change the file and run `imgbuild lock` without --update"
            raise UsageError(file.name, "is another file of the image as well, by a link", actual=other, hint=hint)


def _with_files(project: Project, files: tuple[EditedFile, ...]) -> Project:
    for file in files:
        project = project.with_file(file.name, file.after)
    return project


def _start(old: Lock, targets: dict[str, Target]) -> Lock:
    base = next((target.base for target in targets.values() if target.base is not None), old.pins.base)
    sources = {source.name: source for source in old.pins.sources}
    sources |= {name: target.source for name, target in targets.items() if target.source is not None}
    pins = msgspec.structs.replace(old.pins, base=base, sources=[sources[name] for name in sorted(sources)])
    # What was found out about another base does not follow from this one.
    return msgspec.structs.replace(old, pins=pins, facts=old.facts if base == old.pins.base else None)


def _target(context: Context, definition: ImageDefinition, old: Lock, name: str, to: str | None) -> Target | None:
    """Where one pin goes; None where it is to be resolved as if it were new."""
    if name == BASE:
        if to is None and definition.base.manifest is None:
            return None
        return _base(context, definition, old.pins.base, to)
    source = definition.sources[name]
    if isinstance(source, GitSource):
        return None if to is None and source.commit is None else git_target(context, name, source, to)
    return None if to is None else _other(context, name, source, to)


def _base(context: Context, definition: ImageDefinition, old: LockedBase, to: str | None) -> Target:
    wanted = definition.base
    if to is None and wanted.tag is None:
        hint = "say where to: --to DIGEST or --to TAG"
        raise UsageError("--update base", "has no tag to follow: the definition has a manifest only", hint=hint)
    digest = _digest(to) if to is not None and ":" in to else None
    tag = wanted.tag if to is None or digest is not None else _tag(to)
    reference = Reference.parse(wanted.reference, where="base.reference")
    asked = msgspec.structs.replace(wanted, manifest=digest, tag=tag, config=None)
    aimed = msgspec.structs.replace(definition, base=asked)
    found = resolve_base(context.based_on(reference.name), aimed, reference)
    edits = []
    if wanted.manifest is not None:
        # A definition that names an index goes on doing so.
        index = found.index if wanted.manifest == old.index else None
        edits.append(Edit(keys=("base", "manifest"), value=str(digest or index or found.manifest)))
    if wanted.config is not None:
        edits.append(Edit(keys=("base", "config"), value=str(found.config)))
    if wanted.tag is not None and tag is not None:
        edits.append(Edit(keys=("base", "tag"), value=tag))
    else:
        found = msgspec.structs.replace(found, tag_for_humans=wanted.tag)
    return Target(edits=tuple(edits), base=found)


def _other(context: Context, name: str, source: Source, to: str) -> Target:
    """A file or a version. Of most of them the lock's pin is found out later, as the definition is another one."""
    keys = ("sources", name)
    match source:
        case FileSource():
            return Target(edits=_file(context, name, source, to))
        case WheelSource():
            edits = [Edit(keys=(*keys, "version"), value=to)]
            found = None
            if source.digest is not None:
                aimed = msgspec.structs.replace(source, version=to, digest=None)
                found = resolve_one_wheel(context, name, aimed)
                edits.append(Edit(keys=(*keys, "digest"), value=str(found.digest)))
            return Target(edits=tuple(edits), source=found)
        case ToolchainSource():
            return Target(edits=(Edit(keys=(*keys, "version"), value=to),))
    kind = source.__struct_config__.tag
    wheel = f"move its wheel: --update {source.wheel} --to VERSION" if isinstance(source, MemberSource) else None
    hint = wheel or f"change sources.{name} in the definition, and run `imgbuild lock IMAGE`"
    raise UsageError(f"--update {name}", f"names a source of kind {kind}, which --to does not move", hint=hint)


def _file(context: Context, name: str, source: FileSource, to: str) -> tuple[Edit, ...]:
    if to.startswith("sha256:"):
        digest, size = _digest(to), None
        if source.size is not None:
            size = _size(context, name, digest)
    else:
        digest, size = take_any(context, name, Path(to))
    edits = [Edit(keys=("sources", name, "digest"), value=str(digest))]
    if source.size is not None and size is not None:
        edits.append(Edit(keys=("sources", name, "size"), value=size))
    return tuple(edits)


def _size(context: Context, name: str, digest: Digest) -> int:
    """The size of a file in the cache: a definition that has one cannot go on without."""
    if not context.cache.has(digest):
        raise MissingError(
            f"source {name}",
            "is not here, and its size has to be known: the definition has one",
            expected=digest,
            hint="give the file itself: --to FILE",
        )
    return context.cache.path(digest).stat().st_size


def _digest(text: str) -> Digest:
    try:
        return Digest.parse(text)
    except DocumentError as error:
        option = f"--to {printable(text, 140)}"
        expected = "sha256: and 64 hexadecimal digits"
        raise UsageError(option, f"is not a digest: {error.problem}", expected=expected) from error


def _tag(text: str) -> str:
    try:
        return check_tag(text, where="--to")
    except InputError as error:
        raise UsageError(error.subject, error.problem, hint="give a digest (sha256:…) or a tag") from error


def _edited(project: Project, image: str, targets: dict[str, Target]) -> tuple[EditedFile | None, tuple[str, ...]]:
    """The definition with its new values, if any differ, and of each edit the value that it has now.

    Raises:
        UsageError: a value stands in another file, which is not changed from here.
    """
    documents = project.documents(image) if any(target.edits for target in targets.values()) else ()
    own = next((document for document in documents if document.name == f"locks/{image}.toml"), None)
    before, changed = [], []
    for name, target in targets.items():
        for edit in target.edits:
            place = next(one for one in documents if value_at(one.value, edit.keys) is not None)
            now = value_at(place.value, edit.keys)
            before.append(str(now))
            if now == edit.value:
                continue
            if place is not own:
                raise _elsewhere(project, image, target.name or name, edit, place)
            changed.append(edit)
    if own is None or not changed:
        return None, tuple(before)
    after = edit_toml(own.raw, changed, subject=own.name)
    return EditedFile(name=own.name, before=own.raw, after=after), tuple(before)


def _elsewhere(project: Project, image: str, name: str, edit: Edit, place: Definition) -> UsageError:
    again = f"run `imgbuild lock {project.words(image)}`"
    hint = f"change it there to {edit.value!r}, and {again}"
    if not place.whole:
        parent = project.words(Path(place.name).stem)
        hint = f"move it there, with `imgbuild lock {parent} --update {name} --to …`; then {again}"
    why = "a document of stand-ins" if place.whole else f"which {image} extends"
    return UsageError(
        f"--update {name}",
        f"has to move {edit.path}, which stands in {place.name}, {why}",
        expected=f"a value in locks/{image}.toml",
        hint=hint,
    )


def write_move(root: Path, lock_path: Path, files: tuple[EditedFile, ...], lock: Lock, *, old: Lock | None) -> None:
    """Write the files that change, and then the lock, each atomically. A link to a file stays one.

    Raises:
        InputError: somebody has changed one of them meanwhile; nothing is written.
        StorageError: the disk refuses. What was written is said; the same command again writes the rest.
    """
    with alone_in(lock_path.parent):
        check_old(lock_path, old)
        _write(root, lock_path, files, lock)


def _write(root: Path, lock_path: Path, files: tuple[EditedFile, ...], lock: Lock) -> None:
    found = []
    for file in files:
        path = (root / file.name).resolve()
        with storage_errors(path, "read"):
            now, mode = path.read_bytes(), path.stat().st_mode & 0o777
        if now != file.before:
            raise InputError(file.name, "was changed while its pin was moved", hint="run it again")
        found.append((path, file.after, mode))
    for number, (path, after, mode) in enumerate(found):
        with _written(files[:number]):
            write_file(path, after, mode=mode)
    with _written(files):
        put_lock(lock_path, lock)


@contextlib.contextmanager
def _written(files: tuple[EditedFile, ...]) -> Iterator[None]:
    """Name the files that were written before one that cannot be."""
    try:
        yield
    except (StorageError, KeyboardInterrupt) as error:
        again = f"run the same command again: {', '.join(file.name for file in files)} is written already"
        if isinstance(error, KeyboardInterrupt) and files:
            error.add_note(again)
        elif isinstance(error, StorageError) and files:
            error.hint = f"{error.hint or error.advice}; then {again}"
        raise
