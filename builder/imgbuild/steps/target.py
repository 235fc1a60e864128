"""Where one pin goes: its value in the definition, other files of the repository, and its pin in the lock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from imgbuild.adapters.giturl import is_commit, shown
from imgbuild.adapters.tomledit import Edit
from imgbuild.errors import InputError, UsageError
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
        patches: names of those whose bytes are others then, than in the lock or in the repository.
    """

    edits: tuple[Edit, ...] = ()
    base: LockedBase | None = None
    source: LockedSource | None = None
    file: EditedFile | None = None
    name: str | None = None
    patches: frozenset[str] = frozenset()


def commit_of(context: Context, name: str, source: GitSource, to: str | None) -> str:
    """The commit that `to` names, or that the ref of a source means now. Raises as resolving, and of `to` a usage."""
    where = locate(context, source.repository)
    try:
        return repository(context).resolve(where, source.ref if to is None else to)
    except InputError as error:
        # What is said of the repository is not to be blamed on the user's word.
        if to is None or not error.subject.startswith("ref "):
            raise
        hint = f"source {name} is a git repository: give a commit, branch or tag of it"
        raise UsageError(f"--to {shown(to, 300)}", error.problem, expected=error.expected, hint=hint) from error


def git_target(context: Context, name: str, source: GitSource, to: str | None) -> Target:
    """Where a git source goes: to the commit that `to` names, or that its ref means now. Raises as `commit_of`."""
    ref = source.ref if to is None else to
    commit = commit_of(context, name, source, to)
    found = resolve_git(context, name, msgspec.structs.replace(source, commit=commit))
    if source.commit is not None:
        return Target(edits=(Edit(keys=("sources", name, "commit"), value=commit),), source=found)
    if is_commit(source.ref):
        return Target(edits=(Edit(keys=("sources", name, "ref"), value=commit),), source=found)
    if is_commit(ref):
        if source.digests:
            raise UsageError(
                f"--to {ref}",
                f"would have the definition contradict itself: sources.{name} has digests, and follows {source.ref}",
                hint=f"write `commit = …` into sources.{name} (any commit: it is moved then), and run it again",
            )
        return Target(source=found)
    found = msgspec.structs.replace(found, ref=ref)
    return Target(edits=(Edit(keys=("sources", name, "ref"), value=ref),), source=found)
