"""Whether a git repository still gives one commit, asked in a repository that is thrown away (case P61).

Of a server the commit object alone is wanted (depth 1, filter `tree:0`, by its id); where that does not work it is
fetched as a build does, with all its files, and so it is from bundles and local repositories, where filters do not
work. git's words decide what a failure means; unlike a build, a check must tell "gone" from "not shown".
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from imgbuild.adapters.durable import make_folder, work_folder
from imgbuild.adapters.gitprocess import Runner
from imgbuild.adapters.gitsource import GitRepository
from imgbuild.adapters.giturl import SHA1_HEX, parse_source
from imgbuild.errors import (
    ArchiveError,
    FactMismatchError,
    MissingError,
    NetworkError,
    OfflineMissError,
    ToolError,
    UnauthorizedError,
)

if TYPE_CHECKING:
    from pathlib import Path

    from imgbuild.adapters.giturl import Source

TIMEOUT_SECONDS: Final = 120.0
"""seconds for one git command."""
_REFUSES: Final = re.compile(
    r"Authentication failed|could not read (?:Username|Password)|Permission denied|returned error: 40[13]\b"
)
_ABSENT: Final = re.compile(
    r"(?i)repository (?:'[^']*' )?not found|not appear to be a git|returned error: 4(?:04|10)\b"
)


def ask_commit(repository: str, commit: str, tree: str, *, offline: bool, timeout: float = TIMEOUT_SECONDS) -> str:
    """Fetch one commit and throw it away; that it is on a ref is neither needed nor looked at.

    Args:
        repository: https://…, ssh://…, or the absolute path of a bundle or repository.
        commit: 40 or 64 lower-case hex digits.
        tree: the tree id that the commit must have, hex.
        offline: ask local sources only.
        timeout: seconds for one git command.

    Returns:
        How much of the commit was fetched, for people.

    Raises:
        InputError: the source is refused. UnpinnedError: `commit` is not a full id.
        OfflineMissError: the source is remote and `offline` is set.
        MissingError: there is no such repository, or no such commit in it.
        UnauthorizedError: it is not shown to whoever asks from here; forges say so of what was deleted, too.
        FactMismatchError: the commit has another tree. ArchiveError: a bundle or an object is damaged.
        NetworkError: git failed or timed out in another way. ToolError: git is absent.
        StepError: fetched whole, it has a submodule or an unusable link. StorageError: the disk refuses.

    Not checked: the files of the commit, where the server gives the commit alone.
    """
    source = parse_source(repository, allow_local=True)
    if offline and source.remote:
        raise OfflineMissError(source.name, "was not asked, as --offline forbids it")
    with work_folder(None, prefix="imgbuild-check-") as work:
        if source.remote:
            try:
                return _ask_server(source, commit, tree, work / "one", timeout)
            except ToolError as error:
                _raise_meant(error, source)
        return _ask_whole(source, commit, tree, work / "all", timeout)


def _ask_server(source: Source, commit: str, tree: str, bare: Path, timeout: float) -> str:
    """Fetch the commit object alone, by its id; its tree has to be the one that is wanted."""
    make_folder(bare)
    runner = Runner(bare, source, timeout)
    form = "sha1" if len(commit) == SHA1_HEX else "sha256"
    runner.run("init", "--quiet", "--bare", "--template=", f"--object-format={form}")
    options = ("--quiet", "--no-tags", "--no-recurse-submodules", "--no-auto-maintenance", "--no-write-fetch-head")
    runner.run("fetch", *options, "--depth=1", "--filter=tree:0", "--end-of-options", source.url, commit)
    first = runner.run("cat-file", "commit", commit).partition(b"\n")[0].decode("ascii", "replace")
    if first != f"tree {tree}":
        raise FactMismatchError("commit", "has another tree than the lock", expected=tree, actual=first[:100])
    return "the commit itself; its files were not asked for"


def _ask_whole(source: Source, commit: str, tree: str, cache: Path, timeout: float) -> str:
    """Fetch as a build does: this also serves files, where filters do not work, and servers that serve only refs."""
    repository = GitRepository(cache, allow_local=True, timeout=timeout)
    try:
        repository.fetch(source.url, commit, expected_tree=tree).close()
    except ToolError as error:
        _raise_meant(error, source)
        if error.hint is not None:
            raise
        raise NetworkError(source.name, f"git {error.problem}", actual=error.actual) from error
    return "with all its files"


def _raise_meant(error: ToolError, source: Source) -> None:
    """Raise what git's words mean, where they mean more than that it failed."""
    said = error.actual or ""
    if _REFUSES.search(said):
        hint = "give ssh a key that may read it; forges answer like this for what was deleted, too"
        raise UnauthorizedError(
            source.name, "is not shown to whoever asks from here", actual=said, hint=hint
        ) from error
    if source.bundle and error.problem.startswith("failed"):
        raise ArchiveError(source.name, "is no bundle that git can read", actual=said) from error
    if _ABSENT.search(said):
        raise MissingError(source.name, "is not there", actual=said) from error
