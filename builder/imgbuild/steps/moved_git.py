"""What changed in a git source between two pins of it, for people: commits, files, and what our layers have to follow.

All of it comes from outside: each text is one safe line, and of each list there are at most so many.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from imgbuild.errors import ImgbuildError, InternalError, StorageError
from imgbuild.steps.sources import locate, repository
from imgbuild.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from imgbuild.adapters.gitsource import GitHistory, GitRepository, GitTree
    from imgbuild.digest import Digest
    from imgbuild.model.lockfile import LockedGit
    from imgbuild.steps.context import Context

RAISED = (InternalError, StorageError)
"""What is raised though it was only to be described: a bug, and a disk that is full or fails."""
PATHS = 20
"""paths that are named of each kind."""
DIFF_LINES = 200
"""lines of one file's diff."""
_LINE = 300
"""characters of one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """How many there are, and the first `PATHS` of them by name."""

    count: int
    first: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceChange:
    """A file that the definition names as evidence and that is another one now.

    Attributes:
        path: of the file.
        old: its sha256 before; None where the old lock did not look at it.
        new: its sha256 now.
        diff: lines of a unified diff, at most `DIFF_LINES`.
        left_off: lines of the diff that are not in it.
        problem: why there is no diff.
    """

    path: str
    old: Digest
    new: Digest
    diff: tuple[str, ...] = ()
    left_off: int = 0
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedGit:
    """One source, from `old` to `new`, both commit ids.

    Attributes:
        name: of the source.
        old: the commit before.
        new: the commit now.
        history: the commits in between; None where `history_problem` says why not.
        added: files that only the new commit has; these three are None where `files_problem` says why not.
        removed: files that only the old one has.
        changed: files and links whose content or mode differ.
        evidence: those of its files that our layers have to follow.
    """

    name: str
    old: str
    new: str
    history: GitHistory | None = None
    history_problem: str | None = None
    added: Paths | None = None
    removed: Paths | None = None
    changed: Paths | None = None
    files_problem: str | None = None
    evidence: tuple[EvidenceChange, ...] = ()


def moved_git(context: Context, old: LockedGit, new: LockedGit) -> MovedGit:
    """Compare two pins of a source. What cannot be had is said in the result; only `RAISED` is raised."""
    git = repository(context)
    history, history_problem = None, None
    if old.repository != new.repository:
        history_problem = "it is another repository now"
    else:
        try:
            with context.progress.task(f"fetching the history of {new.name}", unit="commits"):
                history = git.history(locate(context, new.repository), old.commit, new.commit)
        except RAISED:
            raise
        except ImgbuildError as error:
            history_problem = printable(str(error), _LINE)
    found = MovedGit(name=new.name, old=old.commit, new=new.commit, history=history, history_problem=history_problem)
    return _with_files(context, git, found, old, new)


def _with_files(context: Context, git: GitRepository, found: MovedGit, old: LockedGit, new: LockedGit) -> MovedGit:
    try:
        with (
            git.fetch(locate(context, new.repository), new.commit) as after,
            git.fetch(locate(context, old.repository), old.commit, expected_tree=old.tree) as before,
        ):
            first = {item.path: (item.mode, item.blob) for item in before.files}
            second = {item.path: (item.mode, item.blob) for item in after.files}
            return dataclasses.replace(
                found,
                added=_paths(second.keys() - first.keys()),
                removed=_paths(first.keys() - second.keys()),
                changed=_paths(path for path in first.keys() & second.keys() if first[path] != second[path]),
                evidence=_evidence(context, git, (old, before), (new, after)),
            )
    except RAISED:
        raise
    except ImgbuildError as error:
        rows = tuple(
            EvidenceChange(path=path, old=digest, new=new.evidence[path], problem="the old commit cannot be had")
            for path, digest in _others(old, new)
        )
        return dataclasses.replace(found, files_problem=printable(str(error), _LINE), evidence=rows)


def _paths(found: Iterable[bytes]) -> Paths:
    paths = sorted(found)
    return Paths(count=len(paths), first=tuple(printable(path, _LINE) for path in paths[:PATHS]))


def _others(old: LockedGit, new: LockedGit) -> list[tuple[str, Digest]]:
    return [
        (path, old.evidence[path])
        for path in sorted(old.evidence.keys() & new.evidence.keys())
        if old.evidence[path] != new.evidence[path]
    ]


def _evidence(
    context: Context, git: GitRepository, before: tuple[LockedGit, GitTree], after: tuple[LockedGit, GitTree]
) -> tuple[EvidenceChange, ...]:
    (old, first), (new, second) = before, after
    rows = []
    for path, digest in _others(old, new):
        lines: list[bytes] = []
        problem = None
        try:
            files = first.file(path, subject=old.name), second.file(path, subject=new.name)
            lines = git.diff(locate(context, new.repository), *files)
        except RAISED:
            raise
        except ImgbuildError as error:
            problem = printable(str(error), _LINE)
        rows.append(
            EvidenceChange(
                path=path,
                old=digest,
                new=new.evidence[path],
                diff=tuple(printable(line, _LINE) for line in lines[:DIFF_LINES]),
                left_off=max(0, len(lines) - DIFF_LINES),
                problem=problem,
            )
        )
    return tuple(rows)
