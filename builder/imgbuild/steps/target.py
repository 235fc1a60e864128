"""Where one pin goes: its value in the definition, other files of the repository, and its pin in the lock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from imgbuild.adapters.giturl import is_commit
from imgbuild.adapters.tomledit import Edit
from imgbuild.steps.pins import resolve_git
from imgbuild.steps.sources import locate, repository

if TYPE_CHECKING:
    from imgbuild.model.image import GitSource
    from imgbuild.model.lockfile import LockedBase, LockedSource
    from imgbuild.steps.context import Context


@dataclass(frozen=True, slots=True, kw_only=True)
class EditedFile:
    """A file of the repository before and after; `name` is its path below the project's folder."""

    name: str
    before: bytes
    after: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where one pin goes.

    Attributes:
        edits: what the definition says then, as far as it says something else now.
        base: the base's new pin.
        source: the new pin of a source.
        file: what a file of a layer holds then.
        name: what the command line calls it, where that is not the name of the pin.
    """

    edits: tuple[Edit, ...] = ()
    base: LockedBase | None = None
    source: LockedSource | None = None
    file: EditedFile | None = None
    name: str | None = None


def git_target(context: Context, name: str, source: GitSource, to: str | None) -> Target:
    """Where a git source goes: to the commit that `to` names, or that its ref means now. Raises as resolving does."""
    ref = source.ref if to is None else to
    commit = repository(context).resolve(locate(context, source.repository), ref)
    found = resolve_git(context, name, msgspec.structs.replace(source, commit=commit))
    if source.commit is not None:
        return Target(edits=(Edit(keys=("sources", name, "commit"), value=commit),), source=found)
    if is_commit(ref):
        return Target(source=found)
    found = msgspec.structs.replace(found, ref=ref)
    return Target(edits=(Edit(keys=("sources", name, "ref"), value=ref),), source=found)
