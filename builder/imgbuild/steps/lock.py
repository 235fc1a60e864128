"""`imgbuild lock`: the only step that may ask what a movable name means now.

An entry of the lock that still fits the definition is kept; only what is new, or named in `update`, is resolved again.
Then the image is assembled once, in the staging area, to find out what steps find and leave, the facts, and the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from imgbuild.adapters.durable import write_file
from imgbuild.adapters.fetch import resolve_wheel
from imgbuild.adapters.gitsource import content_digest
from imgbuild.content.wheel import member_digest
from imgbuild.errors import InputError, LockStaleError, UnpinnedError, UsageError
from imgbuild.model.decode import builtins
from imgbuild.model.image import GitSource, MemberSource, ToolchainSource, WheelSource
from imgbuild.model.lockfile import (
    SCHEMA,
    HostWheel,
    Lock,
    LockedBase,
    LockedGit,
    LockedMember,
    LockedToolchain,
    LockedWheel,
    Pins,
)
from imgbuild.model.reference import Reference
from imgbuild.steps.assemble import assemble
from imgbuild.steps.sources import fetch_wheel, locate, repository, wheel_pin

if TYPE_CHECKING:
    from imgbuild.adapters.project import ImageInput
    from imgbuild.adapters.store import StagedStore
    from imgbuild.model.image import Base, Source
    from imgbuild.model.lockfile import LockedSource
    from imgbuild.steps.context import Context

BASE = "base"


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


def make_lock(context: Context, image: ImageInput, old: Lock | None, *, update: frozenset[str]) -> LockOutcome:
    """Resolve, assemble and write down. Nothing is written to the repository; `write_lock` does that.

    Raises:
        UsageError: `update` names what is not in the definition.
        ImgbuildError: whatever resolving or assembling raises; then the old lock stays as it is.
    """
    definition = image.definition
    unknown = sorted(update - {BASE, *definition.sources})
    if unknown:
        known = ", ".join([BASE, *sorted(definition.sources)])
        raise UsageError(f"--update {unknown[0]}", "names no pin of the image", expected=known)
    kept = {} if old is None else {source.name: source for source in old.pins.sources}
    base = _base(context, definition.base, None if old is None else old.pins.base, update=BASE in update)
    resolved: dict[str, LockedSource] = {}
    for name, source in _in_order(definition.sources):
        known_source = kept.get(name)
        if known_source is not None and name not in update and _fits(source, known_source, resolved):
            resolved[name] = known_source
        else:
            resolved[name] = _resolve(context, name, source, resolved)
    draft = Lock(
        schema=SCHEMA,
        image=definition.name,
        platform=definition.platform,
        inputs_digest=image.inputs_digest,
        inputs=list(image.inputs),
        pins=Pins(
            format=definition.format,
            epoch=definition.epoch,
            base=base,
            sources=[resolved[name] for name in sorted(resolved)],
            files=[],
        ),
    )
    lock = _assembled(context, image, draft)
    return LockOutcome(lock=lock, changes=differences(old, lock))


def complete_lock(context: Context, image: ImageInput, old: Lock) -> LockOutcome:
    """Derive the facts and the result of a lock from its pins, which stay as they are."""
    check_fresh(image, old)
    bare = msgspec.structs.replace(old, facts=None, result=None)
    lock = assemble(context, image, bare).lock
    return LockOutcome(lock=lock, changes=differences(old, lock))


def write_lock(path: Any, lock: Lock) -> None:
    """Write the lock file atomically."""
    write_file(path, lock.dump())


def is_current(image: ImageInput, lock: Lock) -> bool:
    """Whether the lock was made from the inputs as they are now, and is complete. No network, no store."""
    return lock.inputs_digest == image.inputs_digest and lock.facts is not None and lock.result is not None


def check_fresh(image: ImageInput, lock: Lock) -> None:
    """Refuse a lock that was made from other inputs; the error names the first that differs."""
    if lock.inputs_digest == image.inputs_digest:
        return
    recorded = {item.name: item.digest for item in lock.inputs}
    current = {item.name: item.digest for item in image.inputs}
    name = next(name for name in sorted(recorded.keys() | current.keys()) if recorded.get(name) != current.get(name))
    raise LockStaleError(
        f"locks/{lock.image}.lock.json",
        f"is stale: {name} differs",
        expected=recorded.get(name, "not an input"),
        actual=current.get(name, "not an input any more"),
        hint=f"run `imgbuild lock {lock.image}` and review the difference, or take the change back",
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


def _assembled(context: Context, image: ImageInput, draft: Lock) -> Lock:
    store: StagedStore = context.store  # type: ignore[assignment] # the CLI opens a staged store for writing verbs
    with store.session():
        return assemble(context, image, draft, derive=True).lock


def _base(context: Context, wanted: Base, old: LockedBase | None, *, update: bool) -> LockedBase:
    reference = Reference.parse(wanted.reference, where="base.reference")
    if old is not None and not update and old.reference == reference.name and wanted.manifest in {None, old.manifest}:
        return old
    if wanted.manifest is not None:
        if update:
            raise UsageError(
                "--update base",
                "has nothing to move: the definition pins the manifest",
                actual=str(wanted.manifest),
                hint="change base.manifest in the definition",
            )
        descriptor = context.store.descriptor_of(wanted.manifest)
    elif wanted.tag is not None:
        descriptor = context.store.resolve(wanted.tag)
    else:
        raise UnpinnedError(
            f"base {reference}",
            "has nothing that says which image is meant",
            expected="a manifest digest or a tag",
            actual="neither",
            hint="set base.tag or base.manifest",
        )
    manifest = context.store.manifest(descriptor)
    if wanted.config is not None and wanted.config != manifest.config.digest:
        raise InputError(
            f"base {reference}",
            "has another config than the definition",
            expected=wanted.config,
            actual=manifest.config.digest,
        )
    return LockedBase(
        reference=reference.name,
        tag_for_humans=wanted.tag,
        manifest=descriptor.digest,
        media_type=descriptor.media_type,
        manifest_size=descriptor.size,
        config=manifest.config.digest,
    )


def _in_order(sources: dict[str, Source]) -> list[tuple[str, Source]]:
    # A file inside a wheel needs the wheel's pin first.
    return sorted(sources.items(), key=lambda item: (isinstance(item[1], MemberSource), item[0]))


def _fits(source: Source, locked: LockedSource, resolved: dict[str, LockedSource]) -> bool:
    match source, locked:
        case GitSource(), LockedGit():
            return (source.repository, source.ref) == (locked.repository, locked.ref)
        case WheelSource(), LockedWheel():
            return (source.name, source.version) == (locked.distribution, locked.version)
        case MemberSource(), LockedMember():
            wheel = resolved[source.wheel]
            same = (source.wheel, source.member) == (locked.wheel, locked.member)
            return same and isinstance(wheel, LockedWheel) and wheel.digest == locked.wheel_digest
        case ToolchainSource(), LockedToolchain():
            same = (source.name, source.version) == (locked.distribution, locked.version)
            return same and set(source.hosts) == set(locked.hosts)
    return False


def _resolve(context: Context, name: str, source: Source, resolved: dict[str, LockedSource]) -> LockedSource:
    match source:
        case GitSource():
            return _resolve_git(context, name, source)
        case WheelSource():
            return _resolve_wheel(context, name, source)
        case MemberSource():
            return _resolve_member(context, name, source, resolved)
        case ToolchainSource():
            hosts = {}
            for host, platforms in source.hosts.items():
                pin = resolve_wheel(
                    source.name,
                    source.version,
                    platforms=tuple(platforms),
                    offline=context.offline,
                    progress=context.progress,
                )
                hosts[host] = HostWheel(filename=pin.filename, digest=pin.digest)
            return LockedToolchain(name=name, distribution=source.name, version=source.version, hosts=hosts)


def _resolve_git(context: Context, name: str, source: GitSource) -> LockedGit:
    where = locate(context, source.repository)
    git = repository(context)
    commit = git.resolve(where, source.ref)
    with git.fetch(where, commit) as tree:
        return LockedGit(
            name=name,
            repository=source.repository,
            ref=source.ref,
            commit=commit,
            tree=tree.tree,
            content=content_digest(tree),
        )


def _resolve_wheel(context: Context, name: str, source: WheelSource) -> LockedWheel:
    pin = resolve_wheel(
        source.name,
        source.version,
        platforms=tuple(source.platforms),
        python_version=source.python,
        offline=context.offline,
        progress=context.progress,
    )
    path = fetch_wheel(context, pin)
    return LockedWheel(
        name=name,
        distribution=source.name,
        version=source.version,
        filename=pin.filename,
        digest=pin.digest,
        size=path.stat().st_size,
    )


def _resolve_member(
    context: Context, name: str, source: MemberSource, resolved: dict[str, LockedSource]
) -> LockedMember:
    wheel = resolved[source.wheel]
    if not isinstance(wheel, LockedWheel):
        raise InputError(f"source {name}", "is inside what is no wheel", actual=source.wheel)
    path = fetch_wheel(context, wheel_pin(wheel))
    with path.open("rb") as file:
        digest, size = member_digest(file, source.member, subject=wheel.filename)
    return LockedMember(
        name=name, wheel=source.wheel, wheel_digest=wheel.digest, member=source.member, digest=digest, size=size
    )


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
