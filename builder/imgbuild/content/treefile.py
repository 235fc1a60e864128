"""The merged view of a base and the table of its packages as one file, of which only that is read which is looked at.

A change on a base of 200,000 files looks at some dozens of its directories; merging its inventories anew each time
takes longer than all the rest. The file follows from the base's layers alone, byte by byte, so that its digest stands
in a lock beside those of the inventories, and whoever reads it by that digest need not trust where it was kept.

The format (`SCHEMA`): a line with its name; one block a directory, those further down first, each a MessagePack array
of what is in it, sorted by name; the table (`content.packagetable`); the header; the header's offset in 8 bytes,
big-endian. A row names the block of a directory by its offset and length, always before its own: no file leads in a
circle. Of one in which many rows name one block, neither a tree nor a search reads more than eight times what it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from imgbuild.content.inventory import SYMBOL_FAMILIES, ElfRecord, captured
from imgbuild.content.node import IMPLICIT, KEPT, Below, Node, marks_of
from imgbuild.content.tree import Tree
from imgbuild.digest import Digest
from imgbuild.errors import ArchiveError, DocumentError

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMA = "imgbuild/tree/v4"
_FIRST_LINE = f"{SCHEMA}\n".encode()
_OFFSET_BYTES = 8
_HINT = "remove the file; it is made anew from the inventories of the layers"
_Block = tuple[int, int, int]
"""Offset and length in bytes, and the marks of all that is below."""


# Fields that are usually left out come last: an array ends where only defaults follow.
class _Row(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    name: bytes
    type: str
    mode: int
    layer: int
    mtime: int = 0
    size: int = 0
    sha256: bytes | None = None
    uid: int = 0
    gid: int = 0
    block: _Block | None = None
    link: bytes = b""
    elf: ElfRecord | None = None
    source: bytes | None = None
    """Where it is not the path itself."""
    xattrs: tuple[tuple[str, bytes], ...] = ()
    device: tuple[int, int] | None = None
    elf_problem: str | None = None
    inside: tuple[str, ...] = ()


class _Header(msgspec.Struct, frozen=True, kw_only=True):
    families: tuple[str, ...]
    inventories: tuple[str, ...]
    packages: tuple[int, int]
    root: _Row


_rows = msgspec.msgpack.Decoder(list[_Row])


class TreeFile:
    """The merged view in a file's bytes."""

    def __init__(self, raw: bytes, *, subject: str) -> None:
        """Read the header. That `raw` has its digest, and follows from the inventories, is the caller's to know.

        Raises:
            ArchiveError: it is no such file, or one of other symbol families than this program looks for.
        """
        self._raw = memoryview(raw)
        self._rows = 0
        self._subject = subject
        header = self._read_header()
        self._root = header.root
        self._packages = header.packages
        try:
            self.inventories = tuple(map(Digest.parse, header.inventories))
            """The digests of the inventories that it follows from, the lowest layer first."""
        except DocumentError as error:
            raise self._damaged(b"", str(error)) from error

    def tree(self) -> Tree:
        """A tree of its own; directories are read when they are asked for, which may be an `ArchiveError`."""
        return Tree(self._node(b"", self._root, len(self._raw)))

    @property
    def packages(self) -> memoryview:
        """The table of packages, as `dump_packages` made it."""
        return self._part(b"", *self._packages)

    def read(self, path: bytes, offset: int, length: int) -> dict[bytes, Node]:
        """What is in the directory of a block."""
        rows = self._decode(path, offset, length)
        self._rows += len(rows)
        self._bound(path, self._rows)
        prefix = path + b"/" if path else b""
        return {row.name: self._node(prefix + row.name, row, offset) for row in rows}

    def search(self, path: bytes, offset: int, length: int, marks: int) -> Iterator[tuple[bytes, Node]]:
        """All nodes below the directory of a block that have one of some marks, in the order of `Tree.walk`.

        Nodes are made of what is found, and of the directories on the way.
        """
        count = 0
        pending: list[tuple[bytes, _Row, int]] = []

        def enter(folder: bytes, offset: int, length: int) -> None:
            nonlocal count
            rows = self._decode(folder, offset, length)
            count += len(rows)
            self._bound(folder, count)
            prefix = folder + b"/" if folder else b""
            pending.extend(
                (prefix + row.name, row, offset)
                for row in reversed(rows)
                if marks_of(row.name, row) & marks or (row.block is not None and row.block[2] & marks)
            )

        enter(path, offset, length)
        while pending:
            here, row, before = pending.pop()
            node = self._node(here, row, before)
            if marks_of(row.name, row) & marks:
                yield here, node
            if row.block is not None and row.block[2] & marks:
                enter(here, *row.block[:2])

    def _decode(self, path: bytes, offset: int, length: int) -> list[_Row]:
        """The rows of a block, as they are in the file."""
        try:
            return _rows.decode(self._part(path, offset, length))
        except (msgspec.MsgspecError, RecursionError) as error:
            raise self._damaged(path, str(error)) from error

    def _bound(self, path: bytes, rows: int) -> None:
        """Refuse a file of which so many rows were read: it names blocks again and again."""
        # A row has more than eight bytes.
        if rows > len(self._raw):
            raise self._damaged(path, "its directories hold each other")

    def _part(self, path: bytes, offset: int, length: int) -> memoryview:
        if not 0 <= offset <= offset + length <= len(self._raw):
            raise self._damaged(path, f"a part of it is not in the file: {offset} and {length} bytes")
        return self._raw[offset : offset + length]

    def _node(self, path: bytes, row: _Row, before: int) -> Node:
        below: Below = None
        if row.block is not None:
            offset, length, marks = row.block
            if row.type != "directory" or offset >= before:
                raise self._damaged(path, "its block is not before its own")
            below = _Directory(self, path, offset, length, marks)
        return Node(
            type=row.type,
            mode=row.mode,
            uid=row.uid,
            gid=row.gid,
            mtime=row.mtime,
            size=row.size,
            sha256=None if row.sha256 is None else row.sha256.hex(),
            link=row.link,
            xattrs=row.xattrs,
            device=row.device,
            elf=row.elf,
            elf_problem=row.elf_problem,
            inside=row.inside,
            layer=row.layer,
            source=path if row.source is None and row.layer != IMPLICIT else row.source,
            below=below,
        )

    def _read_header(self) -> _Header:
        raw = self._raw
        end = len(raw) - _OFFSET_BYTES
        if end < len(_FIRST_LINE) or raw[: len(_FIRST_LINE)] != _FIRST_LINE:
            raise ArchiveError(self._subject, f"is no tree file of the schema {SCHEMA}", hint=_HINT)
        offset = int.from_bytes(raw[end:], "big")
        try:
            header = msgspec.msgpack.decode(raw[offset:end], type=_Header)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise self._damaged(b"", f"its header cannot be read: {error}") from error
        if header.root.type != "directory":
            raise self._damaged(b"", f"its root is a {header.root.type}")
        if header.families != SYMBOL_FAMILIES:
            expected, actual = ", ".join(SYMBOL_FAMILIES), ", ".join(header.families)
            raise ArchiveError(
                self._subject, "was made for other symbols", expected=expected, actual=actual, hint=_HINT
            )
        return header

    def _damaged(self, path: bytes, problem: str) -> ArchiveError:
        return ArchiveError(self._subject, "is damaged", actual=problem, where=repr(path), hint=_HINT)


class _Directory:
    """The content of a directory that was not read yet."""

    __slots__ = ("_file", "_length", "_offset", "_path", "marks")

    def __init__(self, file: TreeFile, path: bytes, offset: int, length: int, marks: int) -> None:
        self.marks = marks
        self._file = file
        self._path = path
        self._offset = offset
        self._length = length

    def read(self) -> dict[bytes, Node]:
        return self._file.read(self._path, self._offset, self._length)

    def marked(self, marks: int) -> Iterator[tuple[bytes, Node]]:
        return self._file.search(self._path, self._offset, self._length, marks)


def small_files(file: TreeFile) -> Iterator[Digest]:
    """The files whose bytes later steps read (`inventory.captured`), each as often as it is there."""
    for path, node in file.tree().marked(KEPT):
        if node.sha256 is not None and captured(path):
            yield Digest("sha256", node.sha256)


def dump_tree(tree: Tree, inventories: tuple[Digest, ...], packages: bytes) -> Iterator[bytes]:
    """The bytes of the file, in pieces.

    Args:
        tree: the merged view. That two paths are one file, by a hard link, is not written down, only their facts.
        inventories: the digests of those that it was merged from, the lowest layer first.
        packages: the table of its packages.
    """
    encoder = msgspec.msgpack.Encoder()
    yield _FIRST_LINE
    position = len(_FIRST_LINE)
    blocks: dict[int, _Block] = {}
    for path, node in _deepest_first(tree):
        prefix = path + b"/" if path else b""
        rows, marks = [], 0
        for name, child in sorted(node.children.items()):
            block = blocks.pop(id(child), None)
            marks |= marks_of(name, child) | (block[2] if block is not None else 0)
            rows.append(_row(prefix + name, name, child, block))
        data = encoder.encode(rows)
        blocks[id(node)] = (position, len(data), marks)
        position += len(data)
        yield data
    yield packages
    header = _Header(
        packages=(position, len(packages)),
        families=SYMBOL_FAMILIES,
        inventories=tuple(map(str, inventories)),
        root=_row(b"", b"", tree.root, blocks[id(tree.root)]),
    )
    yield encoder.encode(header) + (position + len(packages)).to_bytes(_OFFSET_BYTES, "big")


def _deepest_first(tree: Tree) -> Iterator[tuple[bytes, Node]]:
    """All directories, each after those in it; the root comes last."""
    found = [(b"", tree.root)]
    for path, node in found:
        prefix = path + b"/" if path else b""
        found.extend((prefix + name, child) for name, child in sorted(node.children.items()) if child.is_directory)
    return reversed(found)


def _row(path: bytes, name: bytes, node: Node, block: _Block | None) -> _Row:
    return _Row(
        name=name,
        type=node.type,
        mode=node.mode,
        layer=node.layer,
        mtime=node.mtime,
        size=node.size,
        sha256=None if node.sha256 is None else bytes.fromhex(node.sha256),
        uid=node.uid,
        gid=node.gid,
        block=block,
        link=node.link,
        elf=node.elf,
        source=None if node.source == path else node.source,
        xattrs=node.xattrs,
        device=node.device,
        elf_problem=node.elf_problem,
        inside=node.inside,
    )
