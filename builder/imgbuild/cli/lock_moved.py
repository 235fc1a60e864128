"""What a moved pin changes, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from imgbuild.cli.render import Output
    from imgbuild.cli.results_lock import (
        DifferencesBody,
        EvidenceBody,
        HunksBody,
        MovedBaseBody,
        MovedGitBody,
        MovedLibraryBody,
        MovedPackageBody,
        MovedPatchBody,
        MovedPinBody,
        PathsBody,
    )

_ID = 12
"""digits of a commit in a list; whole ones stand above it."""


def show_moved_pin(output: Output, body: MovedPinBody) -> None:
    """All parts, the definition first."""
    for edit in body.edits:
        output.line(f"{body.definition}: {edit.path}", bold=True)
        output.line(f"      {edit.old}  ->  {edit.new}")
    if body.base is not None:
        _base(output, body.base)
    for git in body.git:
        _git(output, git)
    for package in body.packages:
        _package(output, package)
    for library in body.libraries:
        _library(output, library)
    for patch in body.patches:
        _patch(output, patch)
    if not (body.edits or body.base or body.git or body.packages or body.libraries or body.patches):
        output.line(f"{', '.join(body.names)}: stays what it was")
    if body.stale:
        output.line("changed since the lock was made, and locked as it is now:", colour="yellow")
        for name in body.stale:
            output.line(f"      {name}")


def _arrow(output: Output, old: object, new: object) -> None:
    output.line(f"      {old if old is not None else '(new)'}  ->  {new if new is not None else '(gone)'}")


def _base(output: Output, body: MovedBaseBody) -> None:
    output.line("base moves", bold=True)
    _arrow(output, body.old, body.new)
    if body.problem is not None:
        output.line(f"  not all can be compared: {body.problem}")
    _differences(output, "labels", body.labels)
    _differences(output, "Python packages", body.distributions)
    output.line(f"  files that steps touch and that changed: {len(body.preimages)}")
    for row in body.preimages:
        output.line(f"    {row.path}  ({row.step})")
        _arrow(output, row.old, row.new)


def _differences(output: Output, what: str, body: DifferencesBody | None) -> None:
    if body is None:
        output.line(f"  {what}: not known")
        return
    kinds = [
        (sum(row.old is None for row in body.first), "added"),
        (sum(row.new is None for row in body.first), "removed"),
        (sum(row.old is not None and row.new is not None for row in body.first), "changed"),
    ]
    words = ", ".join(f"{count} {kind}" for count, kind in kinds if count)
    more = f" (the first {len(body.first)} of {body.count})" if body.count > len(body.first) else ""
    output.line(f"  {what}: {words or 'the same'}{more}")
    for row in body.first:
        if row.old is None:
            output.line(f"    + {row.path}  {row.new}")
        elif row.new is None:
            output.line(f"    - {row.path}  {row.old}")
        else:
            output.line(f"    ~ {row.path}  {row.old}  ->  {row.new}")


def _git(output: Output, body: MovedGitBody) -> None:
    output.line(f"git source {body.name} moves", bold=True)
    _arrow(output, body.old, body.new)
    commits = body.commits
    if commits is None:
        output.line(f"  commits in between: not known: {body.commits_problem}")
    else:
        if not commits.is_ancestor:
            lost = "" if commits.lost is None else f"; {_count(commits.lost, 'commit')} of it are not in the new one"
            output.line(f"  the old commit is NOT an ancestor of the new one{lost}", colour="yellow")
        more = f", the newest {len(commits.newest)}" if commits.count > len(commits.newest) else ""
        output.line(f"  {_count(commits.count, 'commit')} newer{more}{':' if commits.newest else ''}")
        for row in commits.newest:
            output.line(f"    {row.commit[:_ID]}  {row.subject}")
    if body.files_problem is not None:
        output.line(f"  files: not known: {body.files_problem}")
    for sign, what, paths in (
        ("+", "added", body.added),
        ("-", "removed", body.removed),
        ("~", "changed", body.changed),
    ):
        _paths(output, sign, what, paths)
    for file in body.evidence:
        _evidence(output, file)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _paths(output: Output, sign: str, what: str, body: PathsBody | None) -> None:
    if body is None:
        return
    more = f", the first {len(body.first)}" if body.count > len(body.first) else ""
    output.line(f"  {_count(body.count, 'file')} {what}{more}{':' if body.first else ''}")
    for path in body.first:
        output.line(f"    {sign} {path}")


def _evidence(output: Output, body: EvidenceBody) -> None:
    output.line(f"  evidence {body.path} changed: our layer has to follow it", colour="yellow")
    _arrow(output, body.old, body.new)
    if body.problem is not None:
        output.line(f"      no diff: {body.problem}")
    for line in body.diff:
        output.line(f"      {line}")
    if body.left_off:
        output.line(f"      … {_count(body.left_off, 'line')} more")


def _package(output: Output, body: MovedPackageBody) -> None:
    output.line(f"package source {body.name} moves: {body.distribution} {body.old}  ->  {body.new}", bold=True)
    for row in body.files:
        output.line(f"  {row.host}:" if row.host is not None else "  wheel:")
        _arrow(output, row.old_filename, row.new_filename)
        _arrow(output, row.old_digest, row.new_digest)


def _library(output: Output, body: MovedLibraryBody) -> None:
    from imgbuild.cli.nccl import show_both  # noqa: PLC0415 - imported when used

    output.line(f"file source {body.name} moves", bold=True)
    _arrow(output, body.old, body.new)
    if body.problem is not None:
        output.line(f"  what identifies it cannot be compared: {body.problem}")
    if body.library is not None and body.against is not None:
        show_both(output, body.library, body.against)
        for library in (body.library, body.against.library):
            for problem in library.problems:
                output.line(f"{'problem':12} {library.asked}: {problem}", colour="yellow")


def _patch(output: Output, body: MovedPatchBody) -> None:
    output.line(f"patch {body.name} moves ({', '.join(body.steps)})", bold=True)
    output.line(f"      {body.place}")
    _arrow(output, body.old if body.old is not None else "(not known)", body.new)
    if body.problem is not None:
        output.line(f"  what it did before is not known: {body.problem}")
    for row in body.files or ():
        sign = "+" if row.old is None else "-" if row.new is None else "~"
        sides = [_hunks(side) for side in (row.old, row.new) if side is not None]
        output.line(f"    {sign} {row.path}  {'  ->  '.join(sides)}")
    if body.files is not None and body.same:
        output.line(f"  to {_count(body.same, 'file')} it does the same as before")
    output.line(f"  files with other states: {len(body.states)}")
    for states in body.states:
        output.line(f"    {states.path}  ({states.step})")
        output.line(f"      was  {' -> '.join(states.old) or '(not listed)'}")
        output.line(f"      is   {' -> '.join(states.new)}")


def _hunks(body: HunksBody) -> str:
    return f"{_count(body.count, 'hunk')}, +{body.added} -{body.removed}"
