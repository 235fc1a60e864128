"""One path of a merged view, and what may be below it that nobody has read yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

import msgspec

from imgbuild.content.inventory import CAPTURED_ENDS, ElfRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

IMPLICIT = -1
"""Layer index of directories that no layer lists."""
_DIST_INFO = b".dist-info"


# Marks, for which whole trees are searched; numbers of one bit each. A directory that was not read knows which of them
# are below it.
ELF = 1
"""A regular file with ELF facts, or that begins like ELF."""
LINK = 2
"""A symbolic link."""
DIST_INFO = 4
"""A directory that says what a Python distribution installed."""
ARCHIVE = 8
"""A regular file, an archive that seems to hold a library of the families."""
KEPT = 16
"""A regular file, not ELF, whose name ends as those do that `inventory.captured` wants."""


class Unread(Protocol):
    """The content of a directory that is read when it is asked for."""

    @property
    def marks(self) -> int:
        """All marks of what is below, at any depth."""
        ...

    def read(self) -> dict[bytes, Node]:
        """The nodes in the directory by name, new ones at every call."""
        ...

    def marked(self, marks: int) -> Iterator[tuple[bytes, Node]]:
        """All nodes below that have one of some marks, new ones at every call, in the order of `Tree.walk`."""
        ...


# `gc=False`: nodes hold no references in a circle, and looking for some in a million of them takes longer than a tree.
class Node(msgspec.Struct, kw_only=True, gc=False):
    """One path of the merged view. Only what is below a directory is ever changed in place, and only by a `Tree`."""

    type: str
    mode: int
    uid: int = 0
    gid: int = 0
    mtime: int = 0
    size: int = 0
    sha256: str | None = None
    link: bytes = b""
    xattrs: tuple[tuple[str, bytes], ...] = ()
    device: tuple[int, int] | None = None
    elf: ElfRecord | None = None
    elf_problem: str | None = None
    inside: tuple[str, ...] = ()
    layer: int = IMPLICIT
    source: bytes | None = None
    """The path of the tar entry in `layer` that has the content."""
    below: Below = None
    """Of a directory; ask for `children`."""

    @property
    def is_directory(self) -> bool:
        """Whether this is a directory."""
        return self.type == "directory"

    @property
    def children(self) -> dict[bytes, Node]:
        """The nodes in a directory by name, the same dict every time; of all else a new and empty one.

        Two threads must not ask at the same time: the first call reads.
        """
        below = self.below
        if type(below) is dict:
            return below
        found = {} if below is None else below.read()  # type: ignore[union-attr] # it is no dict
        if self.type == "directory":
            self.below = found
        return found

    def may_have(self, marks: int) -> bool:
        """Whether something below, at any depth, may have one of some marks; False only where that is known."""
        below = self.below
        return below is not None and (type(below) is dict or bool(below.marks & marks))  # type: ignore[union-attr]


Below: TypeAlias = "dict[bytes, Node] | Unread | None"


class Marked(Protocol):
    """What `marks_of` asks of a node, or of the row of one."""

    @property
    def type(self) -> str: ...  # noqa: D102
    @property
    def elf(self) -> ElfRecord | None: ...  # noqa: D102
    @property
    def elf_problem(self) -> str | None: ...  # noqa: D102
    @property
    def inside(self) -> tuple[str, ...]: ...  # noqa: D102


def marks_of(name: bytes, node: Marked) -> int:
    """The marks of one node, by its name or path; those of what is below it are not among them."""
    if node.type == "file":
        if node.elf is not None or node.elf_problem is not None:
            return ELF
        return (ARCHIVE if node.inside else 0) | (KEPT if name.endswith(CAPTURED_ENDS) else 0)
    if node.type == "symlink":
        return LINK
    return DIST_INFO if node.type == "directory" and name.endswith(_DIST_INFO) else 0
