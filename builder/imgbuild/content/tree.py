"""The merged view of a stack of layers, as image-spec `layer.md` says: exact whiteouts, bytes as names, no disk.

Rules, numbered as in the tests:

1. Whiteouts and opaque markers of a layer hide lower layers only, wherever they stand in it (case C01). The marker
   `.wh..wh..opq` is matched before the prefix `.wh.` is stripped (C02); other names with `.wh..wh.` are ignored.
2. A directory over a directory takes the new metadata and keeps the children. Anything else replaces what was there,
   a link included: nothing is ever written through a link at the end of a path (C07).
3. Links in the parents of a path are followed inside the image (C08). Missing parents become 0755 root:root (C09).
4. A hard link takes the node that its target names when the layer is read, so later changes of the target's path do not
   reach it (C03, C05); a target in a lower layer is found through the merged view (C06).
5. Of two entries for one path in a layer the last one counts (C10).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from imgbuild.config import DEFAULT_LIMITS, Limits
from imgbuild.errors import ArchiveError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imgbuild.content.inventory import ElfRecord, Entry, Inventory

_OPAQUE = b".wh..wh..opq"
_WHITEOUT = b".wh."
_IGNORED = b".wh..wh."
IMPLICIT = -1
"""Layer index of directories that no layer lists."""


@dataclass(slots=True, kw_only=True)
class Node:
    """One path of the merged view. Only `children` is ever changed in place."""

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
    layer: int = IMPLICIT
    source: bytes | None = None
    """The path of the tar entry in `layer` that has the content."""
    children: dict[bytes, Node] = field(default_factory=dict)

    @property
    def is_directory(self) -> bool:
        """Whether this is a directory."""
        return self.type == "directory"


class Tree:
    """A merged view to which layers are applied one by one."""

    def __init__(self, *, limits: Limits = DEFAULT_LIMITS) -> None:
        self.root = Node(type="directory", mode=0o755)
        self.notes: list[str] = []
        """What was unusual in the layers, for people."""
        self._limits = limits

    def apply(self, inventory: Inventory, layer: int) -> None:
        """Put a layer on top; an `ArchiveError` where the layer cannot be applied."""
        additions: list[tuple[bytes, Entry]] = []
        for entry in inventory.entries:
            path = entry.path_bytes
            directory, _, name = path.rpartition(b"/")
            if not name.startswith(_WHITEOUT):
                additions.append((path, entry))
            elif name == _OPAQUE:
                self._hide_children(directory)
            elif name.startswith(_IGNORED):
                self.notes.append(f"layer {layer}: {entry.path!r} is no marker that we know and is ignored")
            else:
                self._hide(directory, name[len(_WHITEOUT) :], layer)
        for path, entry in additions:
            self._add(path, entry, layer)

    def get(self, path: bytes) -> Node | None:
        """The node at a path; links in its parents are followed, a link at its end is not."""
        if not path:
            return self.root
        directory, _, name = path.rpartition(b"/")
        found = self.resolve(directory)
        return found[1].children.get(name) if found and found[1].is_directory else None

    def resolve(self, path: bytes) -> tuple[bytes, Node] | None:
        """Follow all links inside the image; the real path and its node, or None (absent, dangling or a cycle)."""
        parts = [part for part in path.split(b"/") if part not in {b"", b"."}]
        parts.reverse()
        stack: list[tuple[bytes, Node]] = [(b"", self.root)]
        hops = 0
        while parts:
            part = parts.pop()
            if part == b"..":
                if len(stack) > 1:
                    stack.pop()
                continue
            here, node = stack[-1]
            child = node.children.get(part)
            if child is None:
                return None
            if child.type == "symlink":
                hops += 1
                if hops > self._limits.link_hops:
                    return None
                if child.link.startswith(b"/"):
                    stack = stack[:1]
                parts.extend(reversed([item for item in child.link.split(b"/") if item not in {b"", b"."}]))
                continue
            stack.append((here + b"/" + part if here else part, child))
        return stack[-1]

    def walk(self, path: bytes = b"") -> Iterator[tuple[bytes, Node]]:
        """All nodes below a directory, by name at each level, parents first; the directory itself is left out."""
        start = self.get(path)
        pending = [(path, start)] if start is not None else []
        while pending:
            here, node = pending.pop()
            if here != path:
                yield here, node
            prefix = here + b"/" if here else b""
            pending.extend((prefix + name, node.children[name]) for name in sorted(node.children, reverse=True))

    def put(self, path: bytes, node: Node) -> None:
        """Set a node; its parent must be a directory that exists (links in it are followed)."""
        directory, _, name = path.rpartition(b"/")
        parent = self._directory(directory)
        old = parent.children.get(name)
        if node.is_directory and old is not None and old.is_directory:
            node.children = old.children
        parent.children[name] = node

    def remove(self, path: bytes) -> None:
        """Take a path and all below it away; nothing happens if it is not there."""
        directory, _, name = path.rpartition(b"/")
        found = self.resolve(directory)
        if found is not None:
            found[1].children.pop(name, None)

    def _directory(self, path: bytes) -> Node:
        found = self.resolve(path)
        if found is not None and found[1].is_directory:
            return found[1]
        node = self.root
        walked = b""
        for part in path.split(b"/"):
            walked = walked + b"/" + part if walked else part
            found = self.resolve(walked)
            if found is None or not found[1].is_directory:
                made = Node(type="directory", mode=0o755)
                node.children[part] = made
                node = made
            else:
                node = found[1]
        return node

    def _hide_children(self, directory: bytes) -> None:
        found = self.resolve(directory)
        if found is not None:
            found[1].children.clear()

    def _hide(self, directory: bytes, name: bytes, layer: int) -> None:
        if name in {b"", b".", b".."}:
            raise ArchiveError(f"layer {layer}", "has a whiteout without a name", where=repr(directory))
        found = self.resolve(directory)
        if found is None or found[1].children.pop(name, None) is None:
            self.notes.append(f"layer {layer}: whiteout of {name!r} in {directory!r}, which is not there")

    def _add(self, path: bytes, entry: Entry, layer: int) -> None:
        if not path:
            if entry.type == "directory":
                self.root = replace(_node(entry, layer), children=self.root.children)
            return
        if entry.type != "hardlink":
            self.put(path, _node(entry, layer))
            return
        target = self.get(entry.link_bytes)
        if target is None or target.is_directory:
            raise ArchiveError(
                f"layer {layer}",
                "has a hard link to what is not a file",
                actual=repr(entry.link_bytes),
                where=entry.path,
            )
        self.put(path, target)


def _node(entry: Entry, layer: int) -> Node:
    return Node(
        type=entry.type,
        mode=entry.mode,
        uid=entry.uid,
        gid=entry.gid,
        mtime=entry.mtime,
        size=entry.size,
        sha256=entry.sha256,
        link=entry.link_bytes,
        xattrs=entry.xattrs,
        device=entry.device,
        elf=entry.elf,
        elf_problem=entry.elf_problem,
        layer=layer,
        source=entry.path_bytes,
    )
