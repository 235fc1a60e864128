"""The merged view of a stack of layers, as image-spec `layer.md` says: exact whiteouts, bytes as names, no disk.

Rules, numbered as in the tests:

1. Whiteouts and opaque markers of a layer hide lower layers only, wherever they stand in it (case C01); those nearer
   the root first, since what is below a hidden path is hidden with it. The marker `.wh..wh..opq` is matched before
   the prefix `.wh.` is stripped (C02); other names with `.wh..wh.` are ignored. An entry below a name with `.wh.` is
   refused: by the specification it cannot be, and engines differ in whether they unpack it.
2. A directory over a directory takes the new metadata and keeps the children. Anything else replaces what was there,
   a link included: nothing is ever written through a link at the end of a path (C07).
3. Links in the parents of a path are followed inside the image (C08), also to where nothing is yet. Missing parents,
   and files where a directory is needed, become directories 0755 root:root (C09). The parents of a marker are looked
   up in the lower layers; below a link that its own layer replaces by a directory there is nothing to hide.
4. A hard link takes the node that its target names when the layer is read, so later changes of the target's path do not
   reach it (C03, C05); a target in a lower layer is found through the merged view (C06).
5. Of two entries for one path in a layer the last one counts (C10).
6. What overlayfs takes for its own marks (extended attributes of it, a character device 0:0) is refused: engines that
   unpack onto overlayfs would hide or move something by it, and others not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from imgbuild.config import DEFAULT_LIMITS, Limits
from imgbuild.content.node import Node, marks_of
from imgbuild.errors import ArchiveError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imgbuild.content.inventory import Entry, Inventory

_OPAQUE = b".wh..wh..opq"
_WHITEOUT = b".wh."
_IGNORED = b".wh..wh."
_OVERLAY_XATTRS = ("trusted.overlay.", "user.overlay.", "user.fuseoverlayfs.")
"""Prefixes of what overlayfs (Documentation/filesystems/overlayfs.rst) and fuse-overlayfs read as their own marks."""
_OVERLAY_WHITEOUT = (0, 0)
"""Major and minor number of the character device that hides a name in overlayfs."""


class Tree:
    """A merged view to which layers are applied one by one.

    `fork` gives a second one in no time. The two share all directories that neither has changed since, as the same
    objects, so that `is` tells what cannot differ.
    """

    def __init__(self, root: Node | None = None, *, limits: Limits = DEFAULT_LIMITS) -> None:
        """An empty tree, or one that begins with the directory `root`, which others may hold as well."""
        self.root = Node(type="directory", mode=0o755) if root is None else root
        self.notes: list[str] = []
        """What was unusual in the layers, for people."""
        self._limits = limits
        self._own: dict[int, Node] | None = None if root is None else {}
        """The directories that are this tree's alone, by id; None where all are. They are kept here, so that an id
        cannot come to mean what another tree makes later, also where this tree drops the directory."""
        # Where paths were put before, by their directory. Forgotten when anything is replaced or removed, for that may
        # be a link or directory on the way there.
        self._parents: dict[bytes, Node] = {}

    def fork(self) -> Tree:
        """A tree that is equal to this one, and on which changes of either have no effect on the other."""
        twin = Tree(self.root, limits=self._limits)
        twin.notes = list(self.notes)
        self._own = {}
        self._parents.clear()
        return twin

    def apply(self, inventory: Inventory, layer: int) -> None:
        """Put a layer on top; an `ArchiveError` where the layer cannot be applied, which leaves it half applied."""
        additions: list[tuple[bytes, Entry]] = []
        markers: list[tuple[bytes, bytes]] = []
        for entry in inventory.entries:
            path = entry.path_bytes
            if entry.xattrs or entry.device == _OVERLAY_WHITEOUT:
                _refuse_overlay_marks(entry, layer)
            if _WHITEOUT not in path:
                additions.append((path, entry))
                continue
            directory, _, name = path.rpartition(b"/")
            if b"/" + _WHITEOUT in b"/" + directory:
                raise ArchiveError(
                    f"layer {layer}",
                    "has an entry below a whiteout, which some engines unpack and others do not",
                    expected="nothing below a name that begins with .wh.",
                    actual=entry.path,
                )
            if name.startswith(_IGNORED) and name != _OPAQUE:
                self.notes.append(f"layer {layer}: {entry.path!r} is no marker that we know and is ignored")
            elif name.startswith(_WHITEOUT):
                markers.append((directory, name))
            else:
                additions.append((path, entry))
        made = {path for path, entry in additions if entry.type == "directory"} if markers else set()
        for directory, name in sorted(markers, key=lambda marker: marker[0].count(b"/") + bool(marker[0])):
            self._hide(directory, name, made, layer)
        self._add_all(additions, layer)

    def get(self, path: bytes) -> Node | None:
        """The node at a path; links in its parents are followed, a link at its end is not."""
        if not path:
            return self.root
        directory, _, name = path.rpartition(b"/")
        found = self.resolve(directory)
        return found[1].children.get(name) if found and found[1].is_directory else None

    def resolve(self, path: bytes) -> tuple[bytes, Node] | None:
        """Follow all links inside the image; the real path and its node, or None (absent, dangling or a cycle)."""
        stack = self._follow(path, make=False)
        return None if stack is None else stack[-1]

    def _follow(self, path: bytes, *, make: bool) -> list[tuple[bytes, Node]] | None:
        """Resolve a path to the nodes from the root to its end, each with its real path.

        With `make` whatever is missing becomes a directory, and only a cycle gives None.
        """
        parts = _components(path)
        stack: list[tuple[bytes, Node]] = [(b"", self.root)]
        hops = 0
        while parts:
            here, node = stack[-1]
            if not node.is_directory:
                return None
            part = parts.pop()
            if part == b"..":
                if len(stack) > 1:
                    stack.pop()
                continue
            child = node.children.get(part)
            if child is not None and child.type == "symlink":
                hops += 1
                if hops > self._limits.link_hops:
                    return None
                if child.link.startswith(b"/"):
                    stack = stack[:1]
                parts.extend(_components(child.link))
                continue
            real = here + b"/" + part if here else part
            if make and (child is None or not child.is_directory):
                node = self._owned(stack)
                stack[-1] = (here, node)
                child = self._make(node, part, real)
            if child is None:
                return None
            stack.append((real, child))
        return stack

    def _owned(self, stack: list[tuple[bytes, Node]]) -> Node:
        """The last directory of a real path, as one that is this tree's alone; those above it become so, too."""
        if self._own is None:
            return stack[-1][1]
        node = self.root = self._private(self.root)
        for path, child in stack[1:]:
            name = path.rpartition(b"/")[2]
            above, node = node, self._private(child)
            above.children[name] = node
        return node

    def _private(self, node: Node) -> Node:
        if self._own is None or id(node) in self._own:
            return node
        copy = replace(node, below=dict(node.children))
        self._own[id(copy)] = copy
        return copy

    def _make(self, parent: Node, name: bytes, path: bytes) -> Node:
        old = parent.children.get(name)
        if old is not None:
            self.notes.append(f"{path!r} was a {old.type} and is a directory now, since entries are below it")
        made = parent.children[name] = Node(type="directory", mode=0o755)
        if self._own is not None:
            self._own[id(made)] = made
        return made

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

    def marked(self, marks: int, *, keep: bool = True) -> Iterator[tuple[bytes, Node]]:
        """All nodes below the root that have one of some marks, in the order of `walk`.

        What was not read yet, and has none of them below, is passed over unread.

        Args:
            marks: those of `content.node`, any of which is enough.
            keep: whether directories that are read now stay in the tree. Where not, the nodes found in them are not
                the tree's own, and thousands of others are never made.
        """
        pending = [(b"", self.root)]
        while pending:
            here, node = pending.pop()
            if here and marks_of(here, node) & marks:
                yield here, node
            below = node.below
            if below is None or not node.may_have(marks):
                continue
            if not keep and type(below) is not dict:
                yield from below.marked(marks)  # type: ignore[union-attr] # it is no dict
                continue
            prefix = here + b"/" if here else b""
            pending.extend(
                (prefix + name, child)
                for name, child in sorted(node.children.items(), reverse=True)
                if child.below is not None or marks_of(name, child) & marks
            )

    def put(self, path: bytes, node: Node) -> None:
        """Set a node; links in its parents are followed, missing ones made. `ArchiveError` where links never end."""
        directory, _, name = path.rpartition(b"/")
        parent = self._parents.get(directory)
        if parent is None:
            stack = self._follow(directory, make=True)
            if stack is None:
                raise ArchiveError(
                    f"path {path!r}",
                    "is below symbolic links that lead in a circle or too far",
                    expected=f"at most {self._limits.link_hops} links (link_hops)",
                )
            parent = self._parents[directory] = self._owned(stack)
        children = parent.children
        old = children.get(name)
        if old is not None:
            self._parents.clear()
            if node.is_directory and old.is_directory:
                node.below = self._private(old).children
        if self._own is not None and node.is_directory:
            self._own[id(node)] = node
        children[name] = node

    def remove(self, path: bytes) -> None:
        """Take a path and all below it away; nothing happens if it is not there."""
        directory, _, name = path.rpartition(b"/")
        stack = self._follow(directory, make=False)
        if stack is not None and name in stack[-1][1].children:
            self._parents.clear()
            self._owned(stack).children.pop(name)

    def _hide(self, directory: bytes, name: bytes, made: set[bytes], layer: int) -> None:
        if name[len(_WHITEOUT) :] in {b"", b".", b".."}:
            raise ArchiveError(f"layer {layer}", "has a whiteout without a name", where=repr(directory))
        stack = None if self._is_replaced(directory, made) else self._follow(directory, make=False)
        children = self._owned(stack).children if stack is not None and stack[-1][1].is_directory else {}
        self._parents.clear()
        if name == _OPAQUE:
            children.clear()
        elif children.pop(name[len(_WHITEOUT) :], None) is None:
            self.notes.append(f"layer {layer}: whiteout of {name!r} in {directory!r}, which is not there")

    def _is_replaced(self, directory: bytes, made: set[bytes]) -> bool:
        """Whether a layer that makes the directories `made` puts one of them in place of a link above a path."""
        while directory:
            if directory in made and (node := self.get(directory)) is not None and node.type == "symlink":
                return True
            directory = directory.rpartition(b"/")[0]
        return False

    def _add_all(self, additions: list[tuple[bytes, Entry]], layer: int) -> None:
        for path, entry in additions:
            directory, _, name = path.rpartition(b"/")
            parent = self._parents.get(directory)
            # Nearly all entries are new names in a directory that was met before.
            if not name or parent is None or name in parent.children or entry.type == "hardlink":
                self._add(path, entry, layer)
                continue
            parent.children[name] = node = _node(entry, path, layer)
            if self._own is not None and entry.type == "directory":
                self._own[id(node)] = node

    def _add(self, path: bytes, entry: Entry, layer: int) -> None:
        if not path:
            if entry.type == "directory":
                self.root = replace(_node(entry, path, layer), below=self._private(self.root).children)
                self._parents.clear()
                if self._own is not None:
                    self._own[id(self.root)] = self.root
            return
        if entry.type != "hardlink":
            self.put(path, _node(entry, path, layer))
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


def _refuse_overlay_marks(entry: Entry, layer: int) -> None:
    """`ArchiveError` for an entry that is something else where it is unpacked onto overlayfs."""
    found = [name for name, _ in entry.xattrs if name.startswith(_OVERLAY_XATTRS)]
    if entry.type == "character" and entry.device == _OVERLAY_WHITEOUT:
        found.append("character device 0:0")
    if found:
        raise ArchiveError(
            f"layer {layer}",
            "has a mark of overlayfs, by which some engines hide or move something and others do not",
            expected=f"no character device 0:0, no attribute {', '.join(f'{name}*' for name in _OVERLAY_XATTRS)}",
            actual=found[0],
            where=entry.path,
        )


def _components(path: bytes) -> list[bytes]:
    """What a path or link target consists of, last one first."""
    return [part for part in reversed(path.split(b"/")) if part not in {b"", b"."}]


def _node(entry: Entry, path: bytes, layer: int) -> Node:
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
        inside=entry.inside,
        layer=layer,
        source=path,
    )
