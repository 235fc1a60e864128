"""What a moved pin changes, as the document of `imgbuild lock` has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imgbuild.cli import results_lock as results
from imgbuild.cli.results import ChangeBody

if TYPE_CHECKING:
    from imgbuild.steps.move import Move
    from imgbuild.steps.moved import Moved, MovedLibrary, MovedPackage
    from imgbuild.steps.moved_base import Differences, MovedBase
    from imgbuild.steps.moved_git import MovedGit, Paths
    from imgbuild.steps.moved_patch import Hunks, MovedPatch


def moved_pin_body(move: Move, found: Moved, patches: tuple[MovedPatch, ...]) -> results.MovedPinBody:
    """All parts."""
    return results.MovedPinBody(
        names=list(move.names),
        definition=move.definition,
        edits=[
            results.EditBody(path=edit.path, old=before, new=str(edit.value))
            for edit, before in move.edits
            if before != str(edit.value)
        ],
        files=[file.name for file in move.files if file.name != move.definition],
        base=None if found.base is None else _base(found.base),
        git=[_git(row, {patch.place for patch in patches}) for row in found.git],
        libraries=[_library(row) for row in found.libraries],
        packages=[_package(row) for row in found.packages],
        patches=[_patch(row) for row in patches],
        stale=list(move.stale),
    )


def _base(found: MovedBase) -> results.MovedBaseBody:
    return results.MovedBaseBody(
        old=found.old,
        new=found.new,
        labels=_differences(found.labels),
        distributions=_differences(found.distributions),
        problem=found.problem,
        preimages=[
            results.PreimageBody(path=row.path, step=row.step, old=row.old, new=row.new) for row in found.preimages
        ],
    )


def _differences(found: Differences | None) -> results.DifferencesBody | None:
    if found is None:
        return None
    rows = [ChangeBody(path=row.name, old=row.old, new=row.new) for row in found.first]
    return results.DifferencesBody(count=found.count, first=rows)


def _git(found: MovedGit, patches: set[str]) -> results.MovedGitBody:
    history = found.history
    return results.MovedGitBody(
        name=found.name,
        old=found.old,
        new=found.new,
        commits=None
        if history is None
        else results.CommitsBody(
            count=history.count,
            newest=[results.CommitBody(commit=row.commit, subject=row.subject) for row in history.commits],
            is_ancestor=history.is_ancestor,
            lost=history.lost,
        ),
        commits_problem=found.history_problem,
        added=_paths(found.added),
        removed=_paths(found.removed),
        changed=_paths(found.changed),
        files_problem=found.files_problem,
        evidence=[
            results.EvidenceBody(
                path=row.path,
                old=row.old,
                new=row.new,
                diff=list(row.diff),
                left_off=row.left_off,
                problem=row.problem,
            )
            for row in found.evidence
            if f"{found.name}/{row.path}" not in patches
        ],
    )


def _paths(found: Paths | None) -> results.PathsBody | None:
    return None if found is None else results.PathsBody(count=found.count, first=list(found.first))


def _library(found: MovedLibrary) -> results.MovedLibraryBody:
    from imgbuild.cli.nccl import compare, library_body  # noqa: PLC0415 - imported when used

    after = None if found.after is None else library_body(found.after)
    before = None if found.before is None else library_body(found.before)
    return results.MovedLibraryBody(
        name=found.name,
        old=found.old,
        new=found.new,
        library=after,
        against=None if after is None or before is None else compare(after, before),
        problem=found.problem,
    )


def _package(found: MovedPackage) -> results.MovedPackageBody:
    return results.MovedPackageBody(
        name=found.name,
        distribution=found.distribution,
        old=found.old,
        new=found.new,
        files=[
            results.WheelFileBody(
                host=row.host,
                old_filename=None if row.old is None else row.old[0],
                old_digest=None if row.old is None else row.old[1],
                new_filename=None if row.new is None else row.new[0],
                new_digest=None if row.new is None else row.new[1],
            )
            for row in found.files
        ],
    )


def _patch(found: MovedPatch) -> results.MovedPatchBody:
    return results.MovedPatchBody(
        name=found.name,
        place=found.place,
        steps=list(found.steps),
        old=found.old,
        new=found.new,
        files=None
        if found.files is None
        else [results.PatchedPathBody(path=row.path, old=_hunks(row.old), new=_hunks(row.new)) for row in found.files],
        same=found.same,
        problem=found.problem,
        states=[
            results.MovedStatesBody(path=row.path, step=row.step, old=list(row.old), new=list(row.new))
            for row in found.states
        ],
    )


def _hunks(found: Hunks | None) -> results.HunksBody | None:
    return None if found is None else results.HunksBody(count=found.count, added=found.added, removed=found.removed)
