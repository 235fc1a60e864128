"""Git repositories as verified trees of blobs; the only module that imports GitPython.

GitPython is used for one thing: `git.cmd.Git.execute` with a list of arguments made here. Its `Repo`, `Remote` and
keyword wrappers read configuration, expand variables and turn values into options, which is where its advisories came
from (CVE-2022-24439, CVE-2023-40267, CVE-2026-42215 and others); none of them is called. Each git process has an
environment of its own, no shell, no terminal, a bare repository without template and hooks, one allowed transport and a
time limit. There is never a checkout: trees are parsed here from raw objects, and every object read is hashed again.

Not checked: signatures of commits and tags; whether a link leaves the tree (the step does that); SHA-1 collisions
between blobs, for which `content_digest` exists.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self

from imgbuild.config import CHUNK_BYTES, DEFAULT_LIMITS, GIB, KIB, MIB, Limits
from imgbuild.digest import Digest
from imgbuild.errors import (
    ArchiveError,
    DigestMismatchError,
    FactMismatchError,
    InputError,
    InternalError,
    MissingError,
    OfflineMissError,
    StepError,
    StorageError,
    ToolError,
    UnpinnedError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType

MODE_FILE = 0o100644
MODE_EXECUTABLE = 0o100755
MODE_LINK = 0o120000
_MODE_FOLDER = 0o040000
_MODE_GITLINK = 0o160000
_MODES = {f"{mode:o}".encode(): mode for mode in (MODE_FILE, MODE_EXECUTABLE, MODE_LINK, _MODE_FOLDER, _MODE_GITLINK)}

TIMEOUT_SECONDS = 1_800.0
"""seconds for one git command, or for the wait for another process's fetch; room for a big one on a slow line."""
MAX_TOTAL_BYTES = 8 * GIB
"""bytes of all files of one tree; far above a source tree, far below what would fill a build machine's disk."""
MAX_FETCH_BYTES = 8 * GIB
"""bytes that one fetch may write into the cache; looked at while git runs, so it can be overrun for a moment."""
MAX_TREE_BYTES = 256 * MIB
"""bytes of all tree objects of one commit, counted as often as they are visited (a "git bomb" repeats them)."""
MAX_COMMIT_BYTES = 1 * MIB
"""bytes of one commit object."""
_ALL_DEPTH = 2_147_483_647
"""what git itself means by --unshallow, and right for a complete repository too."""
_ABSENT = ("not our ref", "did not send all necessary objects", "find remote ref", "bad object")
_BY_REF_ONLY = ("unadvertised object", "not valid")
"""what git, JGit and others say when they serve only what a ref points at."""
_OUTPUT_BYTES = 4 * MIB
_ERROR_BYTES = 64 * KIB
_ERROR_CHARACTERS = 600
_BATCH = 256
"""objects asked for at once: requests and answers of a batch both fit into a pipe (64 KiB), so none can block."""
_POLL_SECONDS = 0.05

_SHA1_HEX = 40
_PORT_MAX = 65_535
_REF_MAX = 250
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_URL = re.compile(
    rf"(?P<scheme>https|ssh)://(?:(?P<user>[A-Za-z0-9_][A-Za-z0-9._-]{{0,63}})@)?(?P<host>{_LABEL}(?:\.{_LABEL})*)"
    r"(?::(?P<port>[0-9]{1,5}))?(?P<path>(?:/(?:[A-Za-z0-9._~+@=,-]|%(?:[2-6][0-9A-Fa-f]|7[0-9A-Ea-e]))+)+/?)"
)
_REF = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+@#=,-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.+@#=,-]*)*")
_SECRET = re.compile(r"(?<=://)[^/\s@]*(?:@[^/\s@]*)*@")
_KEPT = frozenset(
    {"PATH", "TMPDIR", "SSH_AUTH_SOCK", "SSL_CERT_FILE", "SSL_CERT_DIR", "GIT_SSL_CAINFO"}
    | {"http_proxy", "https_proxy", "all_proxy", "no_proxy", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"}
)
"""variables that git inherits; all others are taken away, GIT_* above all."""
_FIXED = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "",
    "SSH_ASKPASS": "",
    "SSH_ASKPASS_REQUIRE": "never",
    "GIT_SSH_VARIANT": "ssh",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_PROTOCOL_FROM_USER": "0",
    "GIT_DEFAULT_REF_FORMAT": "files",
    "LC_ALL": "C",
    "LANGUAGE": "C",
}
_OPTIONS = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.askPass=",
    "credential.helper=",
    "transfer.fsckObjects=true",
    "transfer.bundleURI=false",
    "fetch.fsckObjects=true",
    "fetch.unpackLimit=1",
    "fetch.recurseSubmodules=false",
    "fetch.writeCommitGraph=false",
    "submodule.recurse=false",
    "http.followRedirects=initial",
    "http.sslVerify=true",
    "gc.auto=0",
    "maintenance.auto=false",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GitFile:
    """One file or symbolic link of a tree.

    Attributes:
        path: relative path bytes as git stores them, without "", ".", ".." and ".git" components.
        mode: `MODE_FILE`, `MODE_EXECUTABLE` or `MODE_LINK`.
        blob: git object id, hex.
        size: bytes of the content, or of the link target.
        target: link target bytes, None unless `mode` is `MODE_LINK`. It may point anywhere.
    """

    path: bytes
    mode: int
    blob: str
    size: int
    target: bytes | None
    _objects: _Objects = field(repr=False, compare=False)

    def chunks(self) -> Iterator[bytes]:
        """Yield the content in pieces of at most `CHUNK_BYTES` bytes, from disk, and check the object id at the end.

        Several files may be read at a time, also in threads; each running iterator holds one process.

        Raises:
            DigestMismatchError: at the end, when the cached object is not what its id says.
            MissingError, ToolError: the cache was damaged or removed, or its tree was closed.
        """
        return self._objects.chunks(self.blob, self.size)

    def read(self, limit: int = DEFAULT_LIMITS.text_bytes) -> bytes:
        """The whole content. Raises `ArchiveError` when it is longer than `limit` bytes, and what `chunks` raises."""
        if self.size > limit:
            raise ArchiveError(
                _printable(self.path),
                "is too big to be held in memory",
                expected=f"at most {limit} bytes",
                actual=self.size,
            )
        return b"".join(self.chunks())


@dataclass(frozen=True, slots=True, kw_only=True)
class GitTree:
    """The files of one commit. A context manager: leaving it ends the processes that read contents.

    Attributes:
        commit: the commit id, 40 or 64 hex digits.
        tree: the id of the commit's tree, recomputed from its bytes.
        files: all files and links, sorted by path bytes. Folders appear only as parts of paths.
    """

    commit: str
    tree: str
    files: tuple[GitFile, ...]
    _objects: _Objects = field(repr=False, compare=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the reading processes; contents cannot be read afterwards. May be called twice."""
        self._objects.close()


def content_digest(tree: GitTree) -> Digest:
    """The sha256 of the tree's content, which does not depend on SHA-1.

    Hashed are the line `imgbuild git content 1` and, for each file in the order of path bytes, the mode as six octal
    digits, a space, the sha256 of the content (or link target) in hex, NUL, the path, NUL. Reads every file once.
    Raises what `GitFile.chunks` raises.
    """
    hasher = hashlib.sha256(b"imgbuild git content 1\n")
    for item in tree.files:
        content = hashlib.sha256()
        for piece in item.chunks():
            content.update(piece)
        hasher.update(b"%06o %s\0%s\0" % (item.mode, content.hexdigest().encode(), item.path))
    return Digest("sha256", hasher.hexdigest())


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
        source = _source(repository, allow_local=self._allow_local)
        if _COMMIT.fullmatch(ref):
            return ref
        _check_ref(ref)
        if self._offline and source.remote:
            raise OfflineMissError(source.name, f"ref {ref} cannot be resolved offline")
        full = ref == "HEAD" or ref.startswith("refs/")
        names = (ref,) if full else (f"refs/heads/{ref}", f"refs/tags/{ref}")
        patterns = [pattern for name in names for pattern in (name, f"{name}^{{}}")]
        runner = _Runner(self._bare(source, _SHA1_HEX), source, self._timeout)
        output = runner.run("ls-remote", "--quiet", "--end-of-options", source.url, *patterns)
        refs = _parse_refs(output, source)
        commit = _choose(refs, names, source, ref)
        if source.bundle and commit not in {refs.get(f"{name}^{{}}") for name in names}:
            return self._peel(source, commit)
        return commit

    def _peel(self, source: _Source, item: str) -> str:
        """The commit behind an object of a bundle: unlike servers, bundles do not list what tags point at."""
        bare = self._bare(source, len(item))
        if not _has(bare, item):
            self._download(bare, source, item)
        arguments = ("rev-parse", "--verify", "--end-of-options", f"{item}^{{commit}}")
        commit = _Runner(bare, source, self._timeout).run(*arguments).decode("ascii", "replace").strip()
        if not _COMMIT.fullmatch(commit):
            raise ToolError("git rev-parse", "gave no commit", actual=_printable(commit), where=source.name)
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
        source = _source(repository, allow_local=self._allow_local)
        if not _COMMIT.fullmatch(commit):
            raise UnpinnedError(
                f"commit {_printable(commit)!r}",
                "is not a full commit id",
                expected="40 or 64 lower-case hexadecimal digits",
                where=source.name,
                hint="run `imgbuild lock` to resolve a branch or tag",
            )
        bare = self._bare(source, len(commit))
        if not _has(bare, commit):
            self._download(bare, source, commit)
        objects = _Objects(bare, source)
        try:
            return _read_tree(objects, commit, expected_tree, self._limits)
        except BaseException:
            objects.close()
            raise

    def _bare(self, source: _Source, hex_digits: int) -> Path:
        suffix = ".git" if hex_digits == _SHA1_HEX else ".sha256.git"
        final = self._cache / (hashlib.sha256(source.url.encode()).hexdigest() + suffix)
        if (final / "HEAD").is_file():
            return final
        with _storage(source):
            self._cache.mkdir(parents=True, exist_ok=True)
            made = Path(tempfile.mkdtemp(prefix=".new-", dir=self._cache))
        try:
            form = "sha1" if hex_digits == _SHA1_HEX else "sha256"
            arguments = ("init", "--quiet", "--bare", "--template=", f"--object-format={form}")
            _Runner(made, source, self._timeout).run(*arguments)
            with _storage(source):
                _rename_unless_there(made, final)
        finally:
            shutil.rmtree(made, ignore_errors=True)
        return final

    def _download(self, bare: Path, source: _Source, commit: str) -> None:
        if self._offline and source.remote:
            raise OfflineMissError(
                source.name,
                f"commit {commit} is not in the cache",
                hint="run once without --offline, or keep the source as a git bundle in the repository",
            )
        with _locked(bare, source, self._timeout):
            if _has(bare, commit):
                return
            _sweep(bare)
            try:
                _fetch_commit(_Runner(bare, source, self._timeout), source, commit)
            finally:
                _sweep(bare)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """A checked source: `url` for git, `name` for people, the one transport it may use."""

    url: str
    name: str
    protocol: str
    bundle: bool = False

    @property
    def remote(self) -> bool:
        return self.protocol != "file"


def _printable(text: str | bytes, limit: int = 200) -> str:
    """Text from outside as one safe line: controls and bidi marks escaped, URL credentials removed, cut to `limit`."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "backslashreplace")
    text = _SECRET.sub("***@", text)
    safe = "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)
    return safe if len(safe) <= limit else safe[:limit] + "…"


def _said(tail: _Tail) -> str | None:
    """The end of what git wrote on stderr, where the reason stands, as one safe line; None when it said nothing."""
    text = _printable(bytes(tail.data).strip(), 8 * _ERROR_BYTES)
    return text[-_ERROR_CHARACTERS:] or None


def _source(repository: str, *, allow_local: bool) -> _Source:
    if repository.startswith("/"):
        return _local_source(repository, allow_local=allow_local)
    name = _printable(repository)
    match = _URL.fullmatch(repository)
    if match is None or len(repository) > KIB:
        secret = "@" in repository and repository.startswith("https:")
        raise InputError(
            f"repository {name!r}",
            "contains credentials" if secret else "is not a URL that may be fetched",
            expected="https://host/path, ssh://user@host/path, or the path of a local bundle",
            hint="for private repositories use ssh:// with an agent" if secret else None,
        )
    if match["user"] is not None and match["scheme"] == "https":
        raise InputError(
            f"repository {name!r}",
            "contains credentials",
            expected="a URL without user name",
            hint="for private repositories use ssh:// with an agent",
        )
    if match["port"] is not None and not 0 < int(match["port"]) <= _PORT_MAX:
        raise InputError(f"repository {name!r}", "has a port that does not exist", actual=match["port"])
    return _Source(url=repository, name=repository, protocol=match["scheme"])


def _local_source(path: str, *, allow_local: bool) -> _Source:
    name = _printable(path)
    if not allow_local:
        raise InputError(f"repository {name!r}", "is a local path, which is not allowed here")
    if not path.isprintable() or os.path.normpath(path) != path:
        raise InputError(f"repository {name!r}", "is not a normal absolute path of printable characters")
    if not os.path.exists(path):
        raise MissingError(f"repository {name}", "does not exist")
    return _Source(url=path, name=name, protocol="file", bundle=os.path.isfile(path))


def _check_ref(ref: str) -> None:
    bad = not _REF.fullmatch(ref) or len(ref) > _REF_MAX or ".." in ref or "@{" in ref
    if bad or any(part.endswith((".lock", ".")) for part in ref.split("/")):
        raise InputError(
            f"ref {_printable(ref)!r}",
            "is not a ref name that may be asked for",
            expected="a branch, a tag, a full ref name or a full commit id",
        )


def _parse_refs(output: bytes, source: _Source) -> dict[str, str]:
    found = {}
    for line in output.splitlines():
        commit, _, name = line.decode("ascii", "replace").partition("\t")
        if not _COMMIT.fullmatch(commit) or not name:
            raise ArchiveError(source.name, "answers with a malformed list of refs", actual=_printable(line))
        found[name] = commit
    return found


def _choose(refs: dict[str, str], names: Sequence[str], source: _Source, ref: str) -> str:
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


def _fetch_commit(runner: _Runner, source: _Source, commit: str) -> None:
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


def _missing(source: _Source, commit: str) -> MissingError:
    return MissingError(
        f"commit {commit}",
        "is not in the source",
        where=source.name,
        hint="was it force-pushed away? a git bundle in the repository keeps a commit for good",
    )


def _rename_unless_there(made: Path, final: Path) -> None:
    """Another process may have made the same folder in the meantime; then it is as good."""
    try:
        made.rename(final)
    except OSError:
        if not (final / "HEAD").is_file():
            raise


@contextlib.contextmanager
def _storage(source: _Source) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        text = error.strerror or type(error).__name__
        raise StorageError("git cache", "cannot be written", actual=text, where=source.name) from error


@contextlib.contextmanager
def _locked(bare: Path, source: _Source, timeout: float) -> Iterator[None]:
    """Hold the one lock of a bare repository; the kernel drops it when its holder dies."""
    deadline = time.monotonic() + timeout
    with _storage(source):
        handle = os.open(bare / "imgbuild-fetching", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            if time.monotonic() > deadline:
                raise ToolError("git fetch", f"another one did not end within {timeout:g} seconds", where=source.name)
            time.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(handle)


def _sweep(bare: Path) -> None:
    """Remove what a killed fetch left; only the holder of the lock may."""
    for pattern in ("*.lock", "refs/**/*.lock", "objects/pack/tmp_*"):
        for path in bare.glob(pattern):
            with contextlib.suppress(OSError):
                path.unlink()


def _unfinished_bytes(bare: Path) -> int:
    total = 0
    with contextlib.suppress(OSError), os.scandir(bare / "objects" / "pack") as entries:
        for entry in entries:
            if entry.name.startswith("tmp_"):
                with contextlib.suppress(OSError):
                    total += entry.stat(follow_symlinks=False).st_size
    return total


class _Runner:
    """Runs git commands in one bare repository."""

    def __init__(self, bare: Path, source: _Source, timeout: float) -> None:
        self._bare = bare
        self._source = source
        self._timeout = timeout

    def run(self, *arguments: str) -> bytes:
        """The output of one command, at most 4 MiB. Raises `ToolError` when it fails, floods or takes too long."""
        process = _start(self._bare, self._source, arguments, interactive=False)
        output, errors = _Tail(process.stdout, _OUTPUT_BYTES), _Tail(process.stderr, _ERROR_BYTES)
        try:
            problem = self._wait(process, output)
        finally:
            _end(process, output, errors)
        if problem is None and process.returncode != 0:
            problem = f"failed with status {process.returncode}"
        if problem is not None:
            raise ToolError(f"git {arguments[0]}", problem, actual=_said(errors), where=self._source.name)
        return bytes(output.data)

    def _wait(self, process: subprocess.Popen[bytes], output: _Tail) -> str | None:
        deadline = time.monotonic() + self._timeout
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_SECONDS)
                return f"wrote more than {_OUTPUT_BYTES} bytes" if output.overflow else None
            if time.monotonic() > deadline:
                return f"did not end within {self._timeout:g} seconds"
            if output.overflow:
                return f"wrote more than {_OUTPUT_BYTES} bytes"
            if _unfinished_bytes(self._bare) > MAX_FETCH_BYTES:
                return f"received more than {MAX_FETCH_BYTES} bytes"


class _Tail(threading.Thread):
    """Drains a pipe and keeps its first bytes, so that a talkative process neither blocks nor fills the memory."""

    def __init__(self, stream: IO[bytes] | None, limit: int) -> None:
        super().__init__(daemon=True)
        self.data = bytearray()
        self.overflow = False
        self._stream = stream
        self._limit = limit
        self.start()

    def run(self) -> None:
        """Read to the end."""
        if self._stream is None:
            return
        with self._stream as stream:
            while piece := stream.read1(CHUNK_BYTES):  # type: ignore[attr-defined]
                self.overflow |= len(self.data) + len(piece) > self._limit
                self.data += piece[: self._limit - len(self.data)]


def _end(process: subprocess.Popen[bytes], *tails: _Tail) -> None:
    """Kill what still runs of a process and its children, and collect it."""
    if process.poll() is None:
        _kill_group(process)
        process.wait()
    for tail in tails:
        tail.join(1.0)
        if tail.is_alive():  # a child outlived git and holds the pipe
            _kill_group(process)
            tail.join(1.0)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _start(bare: Path, source: _Source, arguments: Sequence[str], *, interactive: bool) -> subprocess.Popen[bytes]:
    """Start git in a session of its own, so that neither git nor ssh can ask on the terminal.

    `env -u` takes variables away, since GitPython can only add some; values never stand in the arguments.
    """
    try:
        from git.cmd import Git  # noqa: PLC0415 - 90 ms, and it runs `git version`
        from git.exc import GitError  # noqa: PLC0415
    except ImportError as error:
        raise ToolError("git", "cannot be used", actual=_printable(str(error)), hint="install git") from error
    home = str(bare / "no-home")
    fixed = {**_FIXED, "HOME": home, "XDG_CONFIG_HOME": home, "GIT_ALLOW_PROTOCOL": source.protocol}
    removed = [name for name in sorted(os.environ) if name and name not in _KEPT and name not in fixed]
    options = [word for option in _OPTIONS for word in ("-c", option)]
    unset = [word for name in removed for word in ("-u", name)]
    command = ["env", *unset, "git", f"--git-dir={bare}", *options, *arguments]
    try:
        started = Git(str(bare)).execute(
            command,
            as_process=True,
            env=fixed,
            shell=False,
            istream=subprocess.PIPE if interactive else None,
            start_new_session=True,
        )
    except (GitError, OSError, ValueError) as error:
        raise ToolError("git", "could not be started", actual=_printable(str(error)), where=source.name) from error
    # GitPython's wrapper would end the process when it is collected; from here it is ours to wait for and to kill.
    process, started.proc = started.proc, None
    if process is None:
        raise InternalError("git", "was started without a process")
    return process


class _Pipe:
    """One `git cat-file` process; requests and answers in turn."""

    def __init__(self, bare: Path, source: _Source, form: str) -> None:
        self._process = _start(bare, source, ("cat-file", form), interactive=True)
        self._errors = _Tail(self._process.stderr, _ERROR_BYTES)
        self._source = source
        if self._process.stdin is None or self._process.stdout is None:
            raise InternalError("git cat-file", "was started without pipes")
        self._in, self._out = self._process.stdin, self._process.stdout

    def ask(self, ids: Sequence[str]) -> None:
        """Send a batch of object ids."""
        with self._broken():
            self._in.write("".join(f"{item}\n" for item in ids).encode("ascii"))
            self._in.flush()

    def header(self, item: str) -> tuple[str, int]:
        """Type and size in bytes of the next answer, which must be about object `item`."""
        with self._broken():
            line = self._out.readline(KIB)
        words = line.decode("ascii", "replace").split()
        if words[1:] == ["missing"]:
            hint = "the cache or bundle is incomplete; remove the cached repository to fetch it again"
            raise MissingError(f"object {item}", "is not in the repository", where=self._source.name, hint=hint)
        if words[:1] != [item] or not re.fullmatch(r"[a-z]+ [0-9]{1,18}", " ".join(words[1:])):
            said = _printable(line) or _said(self._errors)
            raise ToolError("git cat-file", "gave no usable answer", actual=said, where=self._source.name)
        return words[1], int(words[2])

    def content(self, item: str, kind: str, size: int) -> Iterator[bytes]:
        """Yield the content after a header, and check that it has the id under which it was asked for."""
        hasher = hashlib.new("sha1" if len(item) == _SHA1_HEX else "sha256", usedforsecurity=False)
        hasher.update(f"{kind} {size}\0".encode("ascii"))
        left = size
        while left:
            with self._broken():
                piece = self._out.read1(min(left, CHUNK_BYTES))  # type: ignore[attr-defined]
            if not piece:
                raise ToolError("git cat-file", "ended early", actual=_said(self._errors), where=self._source.name)
            left -= len(piece)
            hasher.update(piece)
            yield piece
        with self._broken():
            self._out.read(1)
        if hasher.hexdigest() != item:
            raise DigestMismatchError(
                f"object {item}",
                "is damaged in the cache",
                expected=item,
                actual=hasher.hexdigest(),
                where=self._source.name,
                hint="remove the cached repository; it is fetched again",
            )

    def close(self) -> None:
        """End the process."""
        with contextlib.suppress(OSError):
            self._in.close()
        if self._process.poll() is None:
            _kill_group(self._process)
        with contextlib.suppress(OSError):
            self._out.close()
        _end(self._process, self._errors)

    @contextlib.contextmanager
    def _broken(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            raise ToolError("git cat-file", "broke off", actual=_said(self._errors), where=self._source.name) from error


class _Objects:
    """Reads objects of one bare repository. Keeps idle processes until it is closed or collected."""

    def __init__(self, bare: Path, source: _Source) -> None:
        self._bare = bare
        self._source = source
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._idle: list[_Pipe] = []
        self._finalizer = weakref.finalize(self, _close_all, self._idle)

    @property
    def name(self) -> str:
        """The source, for messages."""
        return self._source.name

    def close(self) -> None:
        """End the idle processes; running iterators end theirs."""
        with self._lock:
            self._closed.set()
            _close_all(self._idle)

    def chunks(self, blob: str, size: int) -> Iterator[bytes]:
        """Yield one blob of known size."""
        with self._pipe() as pipe:
            pipe.ask((blob,))
            kind, actual = pipe.header(blob)
            if kind != "blob" or actual != size:
                raise InternalError(
                    f"object {blob}", "changed", expected=f"blob of {size}", actual=f"{kind} of {actual}"
                )
            yield from pipe.content(blob, kind, size)

    def load(self, item: str, kind: str, limit: int) -> bytes:
        """One whole object, which must have this type and at most `limit` bytes."""
        with self._pipe() as pipe:
            pipe.ask((item,))
            actual, size = pipe.header(item)
            if actual != kind:
                wrong = UnpinnedError if kind == "commit" else ArchiveError
                raise wrong(f"object {item}", "has the wrong type", expected=kind, actual=actual, where=self.name)
            if size > limit:
                raise ArchiveError(
                    f"{kind} {item}", "is too big", expected=f"at most {limit} bytes", actual=size, where=self.name
                )
            return b"".join(pipe.content(item, kind, size))

    def blob_sizes(self, ids: Sequence[str]) -> dict[str, int]:
        """The sizes in bytes of blobs."""
        sizes = {}
        pipe = _Pipe(self._bare, self._source, "--batch-check")
        try:
            for start in range(0, len(ids), _BATCH):
                batch = ids[start : start + _BATCH]
                pipe.ask(batch)
                for item in batch:
                    kind, sizes[item] = pipe.header(item)
                    if kind != "blob":
                        raise ArchiveError(f"object {item}", "is listed as a file", actual=kind, where=self.name)
        finally:
            pipe.close()
        return sizes

    @contextlib.contextmanager
    def _pipe(self) -> Iterator[_Pipe]:
        """A process of its own for one object; one that was not read to its end is not used again."""
        if self._closed.is_set():
            raise InternalError("git tree", "is read after it was closed")
        with self._lock:
            pipe = self._idle.pop() if self._idle else None
        if pipe is None:
            pipe = _Pipe(self._bare, self._source, "--batch")
        try:
            yield pipe
        except BaseException:
            pipe.close()
            raise
        with self._lock:
            self._idle.append(pipe)
            if self._closed.is_set():
                _close_all(self._idle)


def _close_all(pipes: list[_Pipe]) -> None:
    while pipes:
        pipes.pop().close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    path: bytes
    mode: int
    item: str


def _read_tree(objects: _Objects, commit: str, expected_tree: str | None, limits: Limits) -> GitTree:
    data = objects.load(commit, "commit", MAX_COMMIT_BYTES)
    match = re.match(rb"tree ([0-9a-f]{%d})\n" % len(commit), data)
    if match is None:
        raise ArchiveError(f"commit {commit}", "does not begin with its tree", where=objects.name)
    tree = match[1].decode("ascii")
    if expected_tree is not None and tree != expected_tree:
        raise FactMismatchError(
            f"commit {commit}", "has another tree", expected=_printable(expected_tree), actual=tree, where=objects.name
        )
    entries = sorted(_walk(objects, tree, limits), key=lambda entry: entry.path)
    sizes = objects.blob_sizes(sorted({entry.item for entry in entries}))
    total = sum(sizes[entry.item] for entry in entries)
    if total > MAX_TOTAL_BYTES:
        raise ArchiveError(
            f"tree {tree}", "is too big", expected=f"at most {MAX_TOTAL_BYTES} bytes", actual=total, where=objects.name
        )
    files = tuple(_file(objects, entry, sizes[entry.item], limits) for entry in entries)
    return GitTree(commit=commit, tree=tree, files=files, _objects=objects)


def _file(objects: _Objects, entry: _Entry, size: int, limits: Limits) -> GitFile:
    target = None
    if entry.mode == MODE_LINK:
        target = objects.load(entry.item, "blob", limits.path_bytes)
        if not target or b"\0" in target:
            raise StepError(
                f"link {_printable(entry.path)}", "has a target that no link can have", actual=_printable(target)
            )
    return GitFile(path=entry.path, mode=entry.mode, blob=entry.item, size=size, target=target, _objects=objects)


def _walk(objects: _Objects, tree: str, limits: Limits) -> Iterator[_Entry]:
    """Yield all files and links below a tree; depth, entries and bytes are bounded however often subtrees repeat."""
    waiting = [(b"", tree)]
    count, budget = 0, MAX_TREE_BYTES
    while waiting:
        folder, item = waiting.pop()
        data = objects.load(item, "tree", budget)
        budget -= len(data)
        for entry in _tree_entries(data, folder, len(item), objects.name, limits):
            count += 1
            if count > limits.git_blobs:
                raise ArchiveError(
                    f"tree {tree}", "has too many entries", expected=f"at most {limits.git_blobs}", where=objects.name
                )
            if entry.mode == _MODE_GITLINK:
                raise StepError(
                    _printable(entry.path),
                    "is a submodule (gitlink), which is not followed",
                    actual=entry.item,
                    where=objects.name,
                    hint="add the submodule's repository as a source of its own",
                )
            if entry.mode == _MODE_FOLDER:
                waiting.append((entry.path + b"/", entry.item))
            else:
                yield entry


def _tree_entries(data: bytes, folder: bytes, hex_digits: int, where: str, limits: Limits) -> Iterator[_Entry]:
    """Parse one raw tree object: `mode SP name NUL id`, strictly ascending as git sorts, canonical modes only."""
    width = hex_digits // 2
    names: set[bytes] = set()
    position, previous = 0, b""
    while position < len(data):
        end = data.find(b"\0", position)
        text, space, name = data[position:end].partition(b" ")
        position = end + 1 + width
        path = folder + name
        if end < 0 or not space or position > len(data):
            raise _bad_tree(folder, "is cut off", where)
        mode = _MODES.get(text)
        if mode is None:
            raise _bad_tree(path, f"has the mode {_printable(text, 20)!r}, which is not canonical", where)
        if name in {b"", b".", b".."} or name.lower() == b".git" or b"/" in name:
            raise _bad_tree(path, "has a name that is not allowed", where)
        if len(path) > limits.path_bytes or path.count(b"/") >= limits.path_depth:
            raise _bad_tree(path, "is too long or too deep", where)
        key = name + b"/" if mode == _MODE_FOLDER else name
        if key <= previous or name in names:
            raise _bad_tree(path, "is there twice or out of order", where)
        previous = key
        names.add(name)
        yield _Entry(path=path, mode=mode, item=data[end + 1 : position].hex())


def _bad_tree(path: bytes, problem: str, where: str) -> ArchiveError:
    return ArchiveError(f"git tree entry {_printable(path)!r}", problem, where=where)
