"""What a moved pin changes, in parts for people and for documents: the base, git sources, libraries and packages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from imgbuild.errors import ImgbuildError, MissingError
from imgbuild.model.lockfile import LockedGit, LockedLibrary, LockedToolchain, LockedWheel
from imgbuild.steps.moved_base import MovedBase, moved_base
from imgbuild.steps.moved_git import RAISED, MovedGit, moved_git
from imgbuild.steps.nccl import Asked, Library, read_file_library
from imgbuild.text import printable

if TYPE_CHECKING:
    from imgbuild.digest import Digest
    from imgbuild.model.lockfile import Lock, LockedSource
    from imgbuild.steps.context import Context


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedLibrary:
    """A single file that is another one.

    Attributes:
        name: of the source.
        old: its digest before.
        new: its digest now.
        before: what identifies the old one; None where `problem` says why not.
        after: the same of the new one.
    """

    name: str
    old: Digest
    new: Digest
    before: Library | None = None
    after: Library | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedWheel:
    """A wheel file, of a toolchain for a kind of host; one side is None where only the other one has that host."""

    host: str | None
    old: tuple[str, Digest] | None
    new: tuple[str, Digest] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedPackage:
    """A wheel or toolchain, from one version to another, and its files that differ."""

    name: str
    distribution: str
    old: str
    new: str
    files: tuple[MovedWheel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """All that is another one between two locks."""

    base: MovedBase | None
    git: tuple[MovedGit, ...]
    libraries: tuple[MovedLibrary, ...]
    packages: tuple[MovedPackage, ...]


def compare_pins(context: Context, old: Lock, new: Lock) -> Moved:
    """Say what differs between what two locks pin.

    What cannot be had of the old pins is said to be unknown; only `RAISED` is raised.

    Args:
        context: the surroundings in which the new lock was made; what that read is in its cache.
        old: the lock before.
        new: the lock now, with its facts.
    """
    pairs = _pairs(old, new)
    same_base = old.pins.base.manifest == new.pins.base.manifest
    return Moved(
        base=None if same_base else moved_base(context, old, new),
        git=tuple(
            moved_git(context, one, other)
            for one, other in pairs
            if isinstance(one, LockedGit) and isinstance(other, LockedGit) and one.commit != other.commit
        ),
        libraries=tuple(
            _library(context, one, other)
            for one, other in pairs
            if isinstance(one, LockedLibrary) and isinstance(other, LockedLibrary) and one.digest != other.digest
        ),
        packages=tuple(found for one, other in pairs if (found := _package(one, other)) is not None),
    )


def _pairs(old: Lock, new: Lock) -> list[tuple[LockedSource, LockedSource]]:
    before = {source.name: source for source in old.pins.sources}
    return [(before[source.name], source) for source in new.pins.sources if source.name in before]


def _library(context: Context, old: LockedLibrary, new: LockedLibrary) -> MovedLibrary:
    name = new.name
    try:
        after = _identify(context, name, new.digest, "now")
        before = _identify(context, name, old.digest, "before")
    except RAISED:
        raise
    except ImgbuildError as error:
        return MovedLibrary(name=name, old=old.digest, new=new.digest, problem=printable(str(error), 300))
    return MovedLibrary(name=name, old=old.digest, new=new.digest, before=before, after=after)


def _identify(context: Context, name: str, digest: Digest, when: str) -> Library:
    if not context.cache.has(digest):
        raise MissingError(f"source {name}, {when}", "is not in the cache, so it cannot be looked at")
    return read_file_library(context, Asked(text=f"source {name}, {when}", file=context.cache.path(digest)))


def _package(old: LockedSource, new: LockedSource) -> MovedPackage | None:
    first, second = _files(old), _files(new)
    if first == second or not (
        isinstance(old, LockedWheel | LockedToolchain) and isinstance(new, LockedWheel | LockedToolchain)
    ):
        return None
    hosts = sorted(first.keys() | second.keys())
    return MovedPackage(
        name=new.name,
        distribution=new.distribution,
        old=old.version,
        new=new.version,
        files=tuple(
            MovedWheel(host=host or None, old=first.get(host), new=second.get(host))
            for host in hosts
            if first.get(host) != second.get(host)
        ),
    )


def _files(source: LockedSource) -> dict[str, tuple[str, Digest]]:
    """File name and digest by kind of host; a wheel's host is empty."""
    match source:
        case LockedWheel():
            return {"": (source.filename, source.digest)}
        case LockedToolchain():
            return {host: (wheel.filename, wheel.digest) for host, wheel in source.hosts.items()}
    return {}
