"""What lies between two commits of one source, and how two of its files differ.

Commits are kept in a bare repository of their own, with all their ancestors; of a remote source without trees, where
its server can leave them out. Nothing here decides anything: it is for people to read.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from imgbuild.adapters.gitobjects import Objects
from imgbuild.adapters.giturl import is_commit, shown
from imgbuild.errors import MissingError, ToolError

if TYPE_CHECKING:
    from pathlib import Path

    from imgbuild.adapters.gitprocess import Runner
    from imgbuild.adapters.giturl import Source

COMMITS = 20
"""commits that are named; of more only the number is said."""
_COMMIT_BYTES = 1 << 20
"""bytes of one commit object."""
_SUBJECT = 200
"""characters of a subject line."""
_OPTIONS = ("--quiet", "--no-tags", "--no-recurse-submodules", "--no-auto-maintenance", "--no-write-fetch-head")


@dataclass(frozen=True, slots=True, kw_only=True)
class GitCommit:
    """One commit: its id and the first line of its message, as one safe line."""

    commit: str
    subject: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GitHistory:
    """From an old commit to a new one.

    Attributes:
        count: commits that the new one has and the old one has not.
        commits: the newest of them, at most `COMMITS`, newest first.
        lost: commits that only the old one has: none where it is an ancestor; None where its history is not there.
    """

    count: int
    commits: tuple[GitCommit, ...]
    lost: int | None

    @property
    def is_ancestor(self) -> bool:
        """Whether the old commit is an ancestor of the new one."""
        return self.lost == 0


def fetch_commits(runner: Runner, source: Source, commits: tuple[str, str]) -> None:
    """Have the history of commits: by their ids, or all refs where ids cannot be asked for or one is gone.

    Raises:
        ToolError: git failed, or took too long.
    """
    small = ("--filter=tree:0",) if source.remote else ()
    names = [f"{commit}:refs/imgbuild/{commit}" for commit in dict.fromkeys(commits)]
    try:
        runner.run("fetch", *_OPTIONS, *small, "--end-of-options", source.url, *names)
    except ToolError:
        everything = ("+refs/heads/*:refs/all/heads/*", "+refs/tags/*:refs/all/tags/*")
        runner.run("fetch", *_OPTIONS, *small, "--prune", "--end-of-options", source.url, *everything)


def read_history(bare: Path, runner: Runner, source: Source, old: str, new: str) -> GitHistory:
    """What lies between two commits whose history was fetched.

    Raises:
        MissingError: the new one is not there.
        ToolError, ArchiveError, DigestMismatchError: as reading objects says.
    """
    if not has_commit(runner, new):
        raise MissingError(f"commit {new}", "is on no branch and no tag", where=source.name)
    known = has_commit(runner, old)
    between = [new, f"^{old}"] if known else [new]
    listed = runner.run("rev-list", f"--max-count={COMMITS}", *between, "--").decode("ascii", "replace").split()
    with contextlib.closing(Objects(bare, source)) as objects:
        commits = tuple(GitCommit(commit=item, subject=_subject(objects, item)) for item in listed if is_commit(item))
    return GitHistory(
        count=_count(runner, source, between),
        commits=commits,
        lost=_count(runner, source, [old, f"^{new}"]) if known else None,
    )


def has_commit(runner: Runner, commit: str) -> bool:
    """Whether a commit is in the repository."""
    try:
        runner.run("rev-parse", "--quiet", "--verify", "--end-of-options", f"{commit}^{{commit}}")
    except ToolError:
        return False
    return True


def diff_blobs(runner: Runner, old: str, new: str) -> list[bytes]:
    """The hunks of a unified diff of two blobs, as lines; one line `Binary files differ` where they are no text.

    Raises `ToolError` where it is longer than 4 MiB.
    """
    options = ("--no-color", "--no-ext-diff", "--no-textconv", "--unified=3")
    lines = runner.run("diff", *options, "--end-of-options", old, new).splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith(b"@@ ")), None)
    return [b"Binary files differ"] if start is None else lines[start:]


def _count(runner: Runner, source: Source, words: list[str]) -> int:
    text = runner.run("rev-list", "--count", *words, "--").decode("ascii", "replace").strip()
    if not text.isdecimal():
        raise ToolError("git rev-list", "gave no number", actual=shown(text), where=source.name)
    return int(text)


def _subject(objects: Objects, commit: str) -> str:
    _, _, message = objects.load(commit, "commit", _COMMIT_BYTES).partition(b"\n\n")
    return shown(message.lstrip(b"\n").partition(b"\n")[0], _SUBJECT)
