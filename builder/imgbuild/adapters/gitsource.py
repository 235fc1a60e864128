"""Git repositories as verified trees: a cache of bare repositories, and the questions asked of them.

`giturl` says what may be asked, `gitprocess` runs git, `gitobjects`, `gittree` and `githistory` read what was fetched.
A cached repository is made without template and hooks, is named by the digest of its source's URL, and is complete for
the commits that have a ref below `refs/imgbuild/`. The history between commits is kept in another one beside it.
"""

from __future__ import annotations

import contextlib
import hashlib
from typing import TYPE_CHECKING

from imgbuild.adapters.durable import exclusive, make_folder, move_folder, work_folder
from imgbuild.adapters.githistory import (
    COMMITS,
    GitCommit,
    GitHistory,
    diff_blobs,
    fetch_commits,
    has_commit,
    read_history,
)
from imgbuild.adapters.gitobjects import Objects
from imgbuild.adapters.gitprocess import Runner
from imgbuild.adapters.gittree import (
    MODE_EXECUTABLE,
    MODE_FILE,
    MODE_LINK,
    GitFile,
    GitTree,
    content_digest,
    read_tree,
)
from imgbuild.adapters.giturl import SHA1_HEX, check_ref, is_commit, parse_source, shown
from imgbuild.config import DEFAULT_LIMITS, Limits
from imgbuild.errors import (
    ArchiveError,
    InputError,
    MissingError,
    OfflineMissError,
    StorageError,
    ToolError,
    UnpinnedError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from imgbuild.adapters.giturl import Source

__all__ = [
    "COMMITS",
    "MODE_EXECUTABLE",
    "MODE_FILE",
    "MODE_LINK",
    "TIMEOUT_SECONDS",
    "GitCommit",
    "GitFile",
    "GitHistory",
    "GitRepository",
    "GitTree",
    "content_digest",
]

TIMEOUT_SECONDS = 1_800.0
"""seconds for one git command, or for the wait for another process's fetch; room for a big one on a slow line."""
HISTORY_SECONDS = 300.0
"""seconds for one git command of a history: nothing depends on it."""
_ALL_DEPTH = 2_147_483_647
"""what git itself means by --unshallow, and right for a complete repository too."""
_ABSENT = ("not our ref", "did not send all necessary objects", "find remote ref", "bad object")
_BY_REF_ONLY = ("unadvertised object", "not valid")
"""what git, JGit and others say when they serve only what a ref points at."""


class GitRepository:
    """A cache folder of bare repositories, one for each source, and the two questions asked of them.

    Args:
        cache: folder of the bare repositories, made when needed. Each is named by the sha256 of its source's URL.
        offline: use only the cache and local sources.
        allow_local: accept absolute paths of bundles and repositories as sources.
        timeout: seconds for one git command.
        limits: `git_blobs`, `path_bytes` and `path_depth` are used.
    """

    def __init__(
        self,
        cache: Path,
        *,
        offline: bool = False,
        allow_local: bool = False,
        timeout: float = TIMEOUT_SECONDS,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self._cache = cache
        self._offline = offline
        self._allow_local = allow_local
        self._timeout = timeout
        self._limits = limits

    def resolve(self, repository: str, ref: str) -> str:
        """The commit that a branch, a tag or a full ref name points at now; for `imgbuild lock` only.

        A full commit id is its own answer and is not looked up. Annotated tags are peeled.

        Raises:
            InputError: the source or the ref is refused, or a branch and a tag of that name differ.
            MissingError: there is no such ref or local file.
            OfflineMissError: the source is remote and `offline` is set.
            ToolError: git failed, timed out or is absent.
        """
        source = parse_source(repository, allow_local=self._allow_local)
        if is_commit(ref):
            return ref
        check_ref(ref)
        if self._offline and source.remote:
            raise OfflineMissError(source.name, f"ref {ref} cannot be resolved offline")
        full = ref == "HEAD" or ref.startswith("refs/")
        names = (ref,) if full else (f"refs/heads/{ref}", f"refs/tags/{ref}")
        patterns = [pattern for name in names for pattern in (name, f"{name}^{{}}")]
        runner = Runner(self._bare(source, SHA1_HEX), source, self._timeout)
        output = runner.run("ls-remote", "--quiet", "--end-of-options", source.url, *patterns)
        refs = _parse_refs(output, source)
        commit = _choose(refs, names, source, ref)
        if source.bundle and commit not in {refs.get(f"{name}^{{}}") for name in names}:
            return self._peel(source, commit)
        return commit

    def _peel(self, source: Source, item: str) -> str:
        """The commit behind an object of a bundle: unlike servers, bundles do not list what tags point at."""
        bare = self._bare(source, len(item))
        if not _has(bare, item):
            self._download(bare, source, item)
        arguments = ("rev-parse", "--verify", "--end-of-options", f"{item}^{{commit}}")
        commit = Runner(bare, source, self._timeout).run(*arguments).decode("ascii", "replace").strip()
        if not is_commit(commit):
            raise ToolError("git rev-parse", "gave no commit", actual=shown(commit), where=source.name)
        return commit

    def fetch(self, repository: str, commit: str, *, expected_tree: str | None = None) -> GitTree:
        """The tree of one commit: from the cache, else fetched (depth 1 and by id, where the server allows it).

        Args:
            repository: https://…, ssh://…, or the absolute path of a bundle or repository.
            commit: 40 or 64 lower-case hex digits. It need not be on any ref where the server serves it, and in a
                bundle it may be any commit that the bundle contains.
            expected_tree: the tree id that was recorded, hex.

        Raises:
            UnpinnedError: `commit` is not a full id.
            InputError: the source is refused.
            StepError: the tree has a submodule or an unusable link.
            ArchiveError: an object breaks git's format or a limit.
            FactMismatchError: the commit has another tree than `expected_tree`.
            DigestMismatchError: a cached object is not what its id says.
            MissingError: the source has no such commit.
            OfflineMissError: the commit is not cached, the source is remote and `offline` is set.
            ToolError: git failed, timed out or is absent. StorageError: the cache cannot be written.
        """
        source = parse_source(repository, allow_local=self._allow_local)
        if not is_commit(commit):
            raise UnpinnedError(
                f"commit {shown(commit)!r}",
                "is not a full commit id",
                expected="40 or 64 lower-case hexadecimal digits",
                where=source.name,
                hint="run `imgbuild lock IMAGE` to resolve a branch or tag",
            )
        bare = self._bare(source, len(commit))
        if not _has(bare, commit):
            self._download(bare, source, commit)
        objects = Objects(bare, source)
        try:
            return read_tree(objects, commit, expected_tree, self._limits)
        except BaseException:
            objects.close()
            raise

    def history(self, repository: str, old: str, new: str) -> GitHistory:
        """What lies between two commits, for people; the history of both is fetched where it is not here.

        Raises:
            OfflineMissError: it would have to be fetched from elsewhere.
            MissingError: the new commit cannot be had with its history.
            InputError, ArchiveError, DigestMismatchError, ToolError, StorageError: as `fetch` says.
        """
        source = parse_source(repository, allow_local=self._allow_local)
        bare = self._bare(source, len(new), kind=".history")
        runner = Runner(bare, source, min(self._timeout, HISTORY_SECONDS))
        if not (has_commit(runner, old) and has_commit(runner, new)):
            if self._offline and source.remote:
                raise OfflineMissError(source.name, "has its history elsewhere")
            with exclusive(bare / "imgbuild-fetching", seconds=self._timeout):
                _sweep(bare)
                fetch_commits(runner, source, (new, old))
        return read_history(bare, runner, source, old, new)

    def diff(self, repository: str, old: GitFile, new: GitFile) -> list[bytes]:
        """The lines of a diff of two files of trees that `fetch` gave; a `ToolError` where it is longer than 4 MiB."""
        source = parse_source(repository, allow_local=self._allow_local)
        return diff_blobs(Runner(self._bare(source, len(new.blob)), source, self._timeout), old.blob, new.blob)

    def _bare(self, source: Source, hex_digits: int, *, kind: str = "") -> Path:
        suffix = kind + (".git" if hex_digits == SHA1_HEX else ".sha256.git")
        final = self._cache / (hashlib.sha256(source.url.encode()).hexdigest() + suffix)
        if (final / "HEAD").is_file():
            return final
        make_folder(self._cache)
        with work_folder(self._cache, prefix=".new-") as made:
            form = "sha1" if hex_digits == SHA1_HEX else "sha256"
            arguments = ("init", "--quiet", "--bare", "--template=", f"--object-format={form}")
            Runner(made, source, self._timeout).run(*arguments)
            move_folder(made, final)
        if not (final / "HEAD").is_file():
            raise StorageError(str(final), "is not a git repository", hint="delete this folder and start again")
        return final

    def _download(self, bare: Path, source: Source, commit: str) -> None:
        if self._offline and source.remote:
            raise OfflineMissError(
                source.name,
                f"commit {commit} is not in the cache",
                hint="run once without --offline, or keep the source as a git bundle in the repository",
            )
        with exclusive(bare / "imgbuild-fetching", seconds=self._timeout):
            if _has(bare, commit):
                return
            _sweep(bare)
            try:
                _fetch_commit(Runner(bare, source, self._timeout), source, commit)
            finally:
                _sweep(bare)


def _parse_refs(output: bytes, source: Source) -> dict[str, str]:
    found = {}
    for line in output.splitlines():
        commit, _, name = line.decode("ascii", "replace").partition("\t")
        if not is_commit(commit) or not name:
            raise ArchiveError(source.name, "answers with a malformed list of refs", actual=shown(line))
        found[name] = commit
    return found


def _choose(refs: dict[str, str], names: Sequence[str], source: Source, ref: str) -> str:
    commits = {name: refs.get(f"{name}^{{}}", refs[name]) for name in names if name in refs}
    if not commits:
        raise MissingError(
            f"ref {ref}", "is neither a branch nor a tag", where=source.name, hint="commits must be given in full"
        )
    if len(set(commits.values())) > 1:
        raise InputError(
            f"ref {ref}",
            "is both a branch and a tag, of different commits",
            where=source.name,
            hint=f"write {' or '.join(commits)}",
        )
    return next(iter(commits.values()))


def _has(bare: Path, commit: str) -> bool:
    """Whether a fetch of this commit was completed: git writes the ref last, after it checked connectivity."""
    try:
        return (bare / "refs" / "imgbuild" / commit).read_text("ascii").strip() == commit
    except (OSError, UnicodeDecodeError):
        return False


def _fetch_commit(runner: Runner, source: Source, commit: str) -> None:
    options = ("--quiet", "--no-tags", "--no-recurse-submodules", "--no-auto-maintenance", "--no-write-fetch-head")
    ref = f"refs/imgbuild/{commit}"
    try:
        runner.run("fetch", *options, "--depth=1", "--end-of-options", source.url, f"{commit}:{ref}")
    except ToolError as error:
        said = error.actual or ""
        if "fsck error" in said:
            raise ArchiveError(source.name, "sent an object that breaks git's format", actual=said) from error
        if any(text in said for text in _ABSENT):
            raise _missing(source, commit) from error
        if not any(text in said for text in _BY_REF_ONLY):
            raise
    else:
        return
    everything = ("+refs/heads/*:refs/all/heads/*", "+refs/tags/*:refs/all/tags/*")
    runner.run("fetch", *options, "--prune", f"--depth={_ALL_DEPTH}", "--end-of-options", source.url, *everything)
    try:
        runner.run("update-ref", "--no-deref", ref, commit)
    except ToolError as error:
        raise _missing(source, commit) from error


def _missing(source: Source, commit: str) -> MissingError:
    return MissingError(
        f"commit {commit}",
        "is not in the source",
        where=source.name,
        hint="was it force-pushed away? a git bundle in the repository keeps a commit for good",
    )


def _sweep(bare: Path) -> None:
    """Remove what a killed fetch left; only the holder of the lock may."""
    for pattern in ("*.lock", "refs/**/*.lock", "objects/pack/tmp_*"):
        for path in bare.glob(pattern):
            with contextlib.suppress(OSError):
                path.unlink()
