"""Pins: what the movable names of a definition mean now, and which pins of an old lock still stand for them.

A pin is kept only while everything that was asked for when it was made is asked for still. What was asked is in the
pin, so that a changed tag, ref, platform or Python is seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from imgbuild.digest import Digest
from imgbuild.errors import (
    AvailabilityError,
    BudgetError,
    CredentialError,
    FactMismatchError,
    InputError,
    MissingError,
    StepError,
    StorageError,
)
from imgbuild.model.image import (
    FileSource,
    GitSource,
    ImageMemberSource,
    MemberSource,
    SingleSource,
    ToolchainSource,
    UrlSource,
    WheelSource,
)
from imgbuild.model.lockfile import (
    HostWheel,
    LockedFile,
    LockedGit,
    LockedImageMember,
    LockedMember,
    LockedSingle,
    LockedToolchain,
    LockedUrl,
    LockedWheel,
)
from imgbuild.model.reference import Reference
from imgbuild.steps.basepin import resolve_base
from imgbuild.steps.singlefile import fetch_whole
from imgbuild.steps.sources import fetch_wheel, locate, repository, wheel_pin

if TYPE_CHECKING:
    from imgbuild.adapters.gitsource import GitTree
    from imgbuild.model.image import ImageDefinition, Source
    from imgbuild.model.lockfile import Lock, LockedBase, LockedSource
    from imgbuild.steps.context import Context

FINAL = (BudgetError, CredentialError, StorageError)
"""After these nothing else is tried."""
BASE = "base"
"""The name of the base among the pins."""
_SHOWN = 20
"""files of a source that one error names."""


def pin_base(context: Context, definition: ImageDefinition, old: LockedBase | None, *, update: bool) -> LockedBase:
    """The base's pin: the old one if it was made for the same reference and tag, else what the tag means now.

    Raises:
        InputError: the definition demands another manifest or config than there is.
        UnpinnedError: neither a digest nor a tag says which image is meant.
        MissingError: the base is neither in the store nor in its registry.
        LayoutError: the reference leads to an index that has not exactly one manifest of the platform.
        RegistryError: what the registry says.
    """
    wanted = definition.base
    reference = Reference.parse(wanted.reference, where="base.reference")
    kept = old is not None and (old.reference, old.tag_for_humans) == (reference.name, wanted.tag)
    demanded = {None} if old is None else {None, old.manifest, old.index}
    if old is None or update or not kept or wanted.manifest not in demanded:
        old = resolve_base(context.based_on(reference.name), definition, reference)
    if wanted.config is not None and wanted.config != old.config:
        raise InputError(
            f"base {reference}",
            "has another config than the definition demands",
            expected=wanted.config,
            actual=old.config,
            hint="correct base.config in the definition, or leave it out",
        )
    return old


def pin_sources(
    context: Context,
    wanted: dict[str, Source],
    old: list[LockedSource],
    *,
    update: frozenset[str],
    platform: str,
    lost: list[tuple[str, AvailabilityError]],
) -> list[LockedSource]:
    """The pins of all sources, sorted by name; those of `old` that still fit and are not in `update` are kept.

    What cannot be reached is added to `lost`, and has no pin. `platform` is meant where a source is in an image and
    names none.
    """
    wanted = {name: _for_platform(source, platform) for name, source in wanted.items()}
    kept = {source.name: source for source in old}
    resolved: dict[str, LockedSource] = {}
    for name, source in _in_order(wanted):
        known = kept.get(name)
        if known is not None and name not in update and _fits(source, known, resolved):
            resolved[name] = known
            continue
        if isinstance(source, MemberSource) and source.wheel not in resolved:
            hint = f"it follows from source {source.wheel}: see what is said of that"
            lost.append(
                (name, MissingError(f"source {name}", f"is in wheel {source.wheel}, which is not here", hint=hint))
            )
            continue
        try:
            resolved[name] = _resolve(context, name, source, resolved)
        except FINAL:
            raise
        except AvailabilityError as error:
            lost.append((name, error))
    return [resolved[name] for name in sorted(resolved)]


def contradictions(definition: ImageDefinition, lock: Lock) -> tuple[str, ...]:
    """Where a lock's pins were made for something else than the definition asks for; no network."""
    pins = lock.pins
    reference = Reference.parse(definition.base.reference, where="base.reference").name
    base = definition.base
    # A definition may name the digest of an index: which manifest of it is meant, the lock says.
    demanded = pins.base.manifest if base.manifest in {None, pins.base.index} else base.manifest
    pairs = (
        ("image", definition.name, lock.image),
        ("platform", definition.platform, lock.platform),
        ("pins.epoch", definition.epoch, pins.epoch),
        ("pins.format", definition.format, pins.format),
        ("pins.base.reference", reference, pins.base.reference),
        ("pins.base.tag_for_humans", base.tag, pins.base.tag_for_humans),
        ("pins.base.manifest", demanded, pins.base.manifest),
        ("pins.base.config", base.config or pins.base.config, pins.base.config),
        ("pins.sources", sorted(definition.sources), [source.name for source in pins.sources]),
    )
    problems = [
        f"{where}: the definition says {wanted}, the lock {found}" for where, wanted, found in pairs if wanted != found
    ]
    locked = {source.name: source for source in pins.sources}
    problems += [
        f"pins.sources[{name}]: was made for something else than the definition asks for"
        for name, source in definition.sources.items()
        if name in locked and not _fits(_for_platform(source, definition.platform), locked[name], locked)
    ]
    return tuple(problems)


def _in_order(sources: dict[str, Source]) -> list[tuple[str, Source]]:
    # A file inside a wheel needs the wheel's pin first.
    return sorted(sources.items(), key=lambda item: (isinstance(item[1], MemberSource), item[0]))


def _for_platform(source: Source, platform: str) -> Source:
    if isinstance(source, ImageMemberSource) and source.platform is None:
        return msgspec.structs.replace(source, platform=platform)
    return source


def _fits(source: Source, locked: LockedSource, resolved: dict[str, LockedSource]) -> bool:
    match source, locked:
        case GitSource(), LockedGit():
            same = (source.repository, source.ref) == (locked.repository, locked.ref)
            return same and source.commit in {None, locked.commit} and _known_files(source, locked)
        case WheelSource(), LockedWheel():
            asked = (source.name, source.version, source.platforms, source.python)
            same = asked == (locked.distribution, locked.version, locked.platforms, locked.python)
            return same and source.digest in {None, locked.digest}
        case MemberSource(), LockedMember():
            wheel = resolved.get(source.wheel)
            same = (source.wheel, source.member) == (locked.wheel, locked.member)
            return same and isinstance(wheel, LockedWheel) and wheel.digest == locked.wheel_digest
        case ToolchainSource(), LockedToolchain():
            same = (source.name, source.version) == (locked.distribution, locked.version)
            return same and source.hosts == {host: wheel.platforms for host, wheel in locked.hosts.items()}
    return isinstance(source, SingleSource) and isinstance(locked, LockedSingle) and _fits_file(source, locked)


def _fits_file(source: SingleSource, locked: LockedSingle) -> bool:
    if source.digest != locked.digest or source.size not in {None, locked.size}:
        return False
    match source, locked:
        case FileSource(), LockedFile():
            return True
        case UrlSource(), LockedUrl():
            return source.url == locked.url
        case ImageMemberSource(), LockedImageMember():
            return (source.image, source.path, source.platform) == (locked.image, locked.path, locked.platform)
    return False


def _resolve(context: Context, name: str, source: Source, resolved: dict[str, LockedSource]) -> LockedSource:
    match source:
        case GitSource():
            return resolve_git(context, name, source)
        case WheelSource():
            return resolve_one_wheel(context, name, source)
        case MemberSource():
            return _resolve_member(context, name, source, resolved)
        case FileSource() | UrlSource() | ImageMemberSource():
            return _resolve_file(context, name, source)
        case ToolchainSource():
            return _resolve_toolchain(context, name, source)


def _resolve_toolchain(context: Context, name: str, source: ToolchainSource) -> LockedToolchain:
    from imgbuild.adapters.fetch import resolve_wheel  # noqa: PLC0415 - imported when used

    hosts = {}
    for host, platforms in source.hosts.items():
        pin = resolve_wheel(
            source.name,
            source.version,
            platforms=tuple(platforms),
            offline=context.offline,
            progress=context.progress,
        )
        hosts[host] = HostWheel(platforms=platforms, filename=pin.filename, digest=pin.digest)
    return LockedToolchain(name=name, distribution=source.name, version=source.version, hosts=hosts)


def resolve_git(context: Context, name: str, source: GitSource) -> LockedGit:
    """The pin of a source's commit, or of what its ref means now.

    Raises:
        FactMismatchError: files that the definition knows by digest are others there.
        InputError, MissingError, IntegrityError, AvailabilityError: as fetching says.
    """
    from imgbuild.adapters.gitsource import content_digest  # noqa: PLC0415 - imported when used

    where = locate(context, source.repository)
    git = repository(context)
    commit = source.commit or git.resolve(where, source.ref)
    with git.fetch(where, commit) as tree:
        evidence = {path: _digest(tree, name, source, path) for path in _named(source)}
        others = [path for path, digest in sorted(source.digests.items()) if evidence[path] != digest]
        if others:
            raise _other_files(name, source, commit, evidence, others)
        return LockedGit(
            name=name,
            repository=source.repository,
            ref=source.ref,
            commit=commit,
            tree=tree.tree,
            content=content_digest(tree),
            evidence=evidence,
        )


def _digest(tree: GitTree, name: str, source: GitSource, path: str) -> Digest:
    """Of a file that the definition names."""
    try:
        return Digest.of(tree.file(path, subject=name).read())
    except StepError as error:
        table = "digests" if path in source.digests else "evidence"
        error.hint = f"the definition names it in sources.{name}.{table}: take it out there, or choose another commit"
        raise


def _other_files(
    name: str, source: GitSource, commit: str, found: dict[str, Digest], paths: list[str]
) -> FactMismatchError:
    """The first of some files in full, and the next ones in the hint: all of them have to be looked at."""
    rest = "; ".join(f"{path}: {source.digests[path]} -> {found[path]}" for path in paths[1:_SHOWN])
    more = f" (so have {len(paths) - 1} others: {rest})" if rest else ""
    return FactMismatchError(
        f"source {name}",
        "has another file than the definition knows",
        expected=source.digests[paths[0]],
        actual=found[paths[0]],
        where=f"{paths[0]}, commit {commit}",
        hint=f"read what changed; if that is wanted, correct sources.{name}.digests in the definition{more}; of a "
        "patch, `imgbuild lock IMAGE --update patch:NAME` does so",
    )


def _named(source: GitSource) -> list[str]:
    return sorted({*source.digests, *source.evidence})


def _known_files(source: GitSource, locked: LockedGit) -> bool:
    same = sorted(locked.evidence) == _named(source)
    return same and all(locked.evidence[path] == digest for path, digest in source.digests.items())


def resolve_one_wheel(context: Context, name: str, source: WheelSource) -> LockedWheel:
    """The pin of a wheel that the index has for a source now; raises what `pin_sources` does."""
    from imgbuild.adapters.fetch import resolve_wheel  # noqa: PLC0415 - imported when used

    pin = resolve_wheel(
        source.name,
        source.version,
        platforms=tuple(source.platforms),
        python_version=source.python,
        offline=context.offline,
        progress=context.progress,
    )
    if source.digest not in {None, pin.digest}:
        raise FactMismatchError(
            f"source {name}",
            "is another file than the definition knows",
            expected=source.digest,
            actual=pin.digest,
            where=pin.filename,
            hint="was it replaced where it comes from? see `digest` of the source",
        )
    path = fetch_wheel(context, pin)
    return LockedWheel(
        name=name,
        distribution=source.name,
        version=source.version,
        platforms=source.platforms,
        python=source.python,
        filename=pin.filename,
        digest=pin.digest,
        size=path.stat().st_size,
    )


def _resolve_member(
    context: Context, name: str, source: MemberSource, resolved: dict[str, LockedSource]
) -> LockedMember:
    from imgbuild.content.wheel import member_digest  # noqa: PLC0415 - imported when used

    wheel = resolved[source.wheel]
    if not isinstance(wheel, LockedWheel):
        raise InputError(f"source {name}", "is inside what is no wheel", actual=source.wheel)
    path = fetch_wheel(context, wheel_pin(wheel))
    with path.open("rb") as file:
        digest, size = member_digest(file, source.member, subject=wheel.filename)
    return LockedMember(
        name=name, wheel=source.wheel, wheel_digest=wheel.digest, member=source.member, digest=digest, size=size
    )


def _resolve_file(context: Context, name: str, source: SingleSource) -> LockedSingle:
    """The digest is the definition's; that there are such bytes is found out now, and how many."""
    size = fetch_whole(context, name, source)
    match source:
        case FileSource():
            return LockedFile(name=name, digest=source.digest, size=size)
        case UrlSource():
            return LockedUrl(name=name, url=source.url, digest=source.digest, size=size)
        case ImageMemberSource():
            return LockedImageMember(
                name=name,
                image=source.image,
                platform=source.platform or "",
                path=source.path,
                digest=source.digest,
                size=size,
            )
