"""The tree of one git commit as a list of files whose contents can be read.

There is never a checkout: tree objects are parsed here, and only what git itself would write is accepted
(git-fsck: canonical modes, ascending names). Not checked: signatures of commits; whether a link leaves the tree,
which is for the step that uses it.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from imgbuild.adapters.giturl import shown
from imgbuild.config import DEFAULT_LIMITS, GIB, MIB, Limits
from imgbuild.digest import Digest
from imgbuild.errors import ArchiveError, FactMismatchError, StepError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from imgbuild.adapters.gitobjects import Objects

MODE_FILE = 0o100644
MODE_EXECUTABLE = 0o100755
MODE_LINK = 0o120000
_MODE_FOLDER = 0o040000
_MODE_GITLINK = 0o160000
_MODES = {f"{mode:o}".encode(): mode for mode in (MODE_FILE, MODE_EXECUTABLE, MODE_LINK, _MODE_FOLDER, _MODE_GITLINK)}

MAX_TOTAL_BYTES = 8 * GIB
"""bytes of all files of one tree; far above a source tree, far below what would fill a build machine's disk."""
MAX_TREE_BYTES = 256 * MIB
"""bytes of all tree objects of one commit, counted as often as they are visited (a "git bomb" repeats them)."""
MAX_COMMIT_BYTES = 1 * MIB
"""bytes of one commit object."""


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
    _objects: Objects = field(repr=False, compare=False)

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
                shown(self.path),
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
    _objects: Objects = field(repr=False, compare=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def file(self, path: str, *, subject: str) -> GitFile:
        """A regular file by its path; a `StepError` about the source `subject` where there is none."""
        item = next((item for item in self.files if item.path == path.encode()), None)
        if item is None or item.target is not None:
            raise StepError(f"source {subject}", "has no such file", expected=path, where=f"commit {self.commit}")
        return item

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


def read_tree(objects: Objects, commit: str, expected_tree: str | None, limits: Limits) -> GitTree:
    """The tree of a commit, which keeps `objects` for reading contents.

    Raises what `GitRepository.fetch` says, but for what fetching itself can raise.
    """
    data = objects.load(commit, "commit", MAX_COMMIT_BYTES)
    match = re.match(rb"tree ([0-9a-f]{%d})\n" % len(commit), data)
    if match is None:
        raise ArchiveError(f"commit {commit}", "does not begin with its tree", where=objects.name)
    tree = match[1].decode("ascii")
    if expected_tree is not None and tree != expected_tree:
        raise FactMismatchError(
            f"commit {commit}", "has another tree", expected=shown(expected_tree), actual=tree, where=objects.name
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One row of a tree object, with the path of the folders above it; `item` is the object id, hex."""

    path: bytes
    mode: int
    item: str


def _file(objects: Objects, entry: Entry, size: int, limits: Limits) -> GitFile:
    target = None
    if entry.mode == MODE_LINK:
        target = objects.load(entry.item, "blob", limits.path_bytes)
        if not target or b"\0" in target:
            raise StepError(f"link {shown(entry.path)}", "has a target that no link can have", actual=shown(target))
    return GitFile(path=entry.path, mode=entry.mode, blob=entry.item, size=size, target=target, _objects=objects)


def _walk(objects: Objects, tree: str, limits: Limits) -> Iterator[Entry]:
    """Yield all files and links below a tree; depth, entries and bytes are bounded however often subtrees repeat."""
    waiting = [(b"", tree)]
    count, budget = 0, MAX_TREE_BYTES
    while waiting:
        folder, item = waiting.pop()
        data = objects.load(item, "tree", budget)
        budget -= len(data)
        for entry in tree_entries(data, folder, len(item), objects.name, limits):
            count += 1
            if count > limits.git_blobs:
                raise ArchiveError(
                    f"tree {tree}", "has too many entries", expected=f"at most {limits.git_blobs}", where=objects.name
                )
            if entry.mode == _MODE_GITLINK:
                raise StepError(
                    shown(entry.path),
                    "is a submodule (gitlink), which is not followed",
                    actual=entry.item,
                    where=objects.name,
                    hint="add the submodule's repository as a source of its own",
                )
            if entry.mode == _MODE_FOLDER:
                waiting.append((entry.path + b"/", entry.item))
            else:
                yield entry


def tree_entries(data: bytes, folder: bytes, hex_digits: int, where: str, limits: Limits) -> Iterator[Entry]:
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
            raise _bad_tree(path, f"has the mode {shown(text, 20)!r}, which is not canonical", where)
        if name in {b"", b".", b".."} or name.lower() == b".git" or b"/" in name:
            raise _bad_tree(path, "has a name that is not allowed", where)
        if len(path) > limits.path_bytes or path.count(b"/") >= limits.path_depth:
            raise _bad_tree(path, "is too long or too deep", where)
        key = name + b"/" if mode == _MODE_FOLDER else name
        if key <= previous or name in names:
            raise _bad_tree(path, "is there twice or out of order", where)
        previous = key
        names.add(name)
        yield Entry(path=path, mode=mode, item=data[end + 1 : position].hex())


def _bad_tree(path: bytes, problem: str, where: str) -> ArchiveError:
    return ArchiveError(f"git tree entry {shown(path)!r}", problem, where=where)
