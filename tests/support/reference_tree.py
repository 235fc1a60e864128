"""A slow model of layers that are applied one after another: a dict from paths to facts, by the sentences of the spec.

Written from image-spec `layer.md` ("Applying Changesets") without a look at `imgbuild.content.tree`, as a second
opinion on it. Paths are tuples of names, `()` is the root. Everything is found by searching the whole dict.

Where the specification is silent, the model takes what containerd and umoci do, and notes in `doubts` what they, or
the kernel, see differently from each other.
"""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass, field, replace

Path = tuple[bytes, ...]
HOPS = 40
_MARKER = b".wh."
_OPAQUE = b".wh..wh..opq"


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One entry of a layer's archive."""

    path: Path
    type: str
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    mtime: int = 0
    data: bytes = b""
    link: bytes = b""
    xattrs: tuple[tuple[str, bytes], ...] = ()
    device: tuple[int, int] | None = None

    @property
    def is_marker(self) -> bool:
        """Whether it hides something instead of being something."""
        return bool(self.path) and self.path[-1].startswith(_MARKER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is at a path. `item` is None for a directory that no layer lists."""

    type: str
    item: Item | None
    inode: int

    def comparable(self) -> tuple[object, ...]:
        """All that the specification says something about."""
        item = self.item
        if item is None:
            return (self.type,)
        sha256 = hashlib.sha256(item.data).hexdigest() if item.type == "file" else None
        link = item.link if item.type == "symlink" else b""
        owner = (item.mode, item.uid, item.gid, item.mtime)
        return (self.type, *owner, len(item.data), sha256, link, item.xattrs, item.device)


class Refused(Exception):  # noqa: N818 - not an error but an answer
    """The layer cannot be applied."""


@dataclass
class ReferenceTree:
    """The merged view."""

    paths: dict[Path, Facts] = field(default_factory=lambda: {(): Facts(type="directory", item=None, inode=0)})
    doubts: list[str] = field(default_factory=list)
    disturbed: set[Path] = field(default_factory=set)
    """Directories that got an unlisted directory after they were listed: tools leave their mtime to the clock."""
    _inodes: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def copy(self) -> ReferenceTree:
        """A copy to try something on."""
        return replace(self, paths=dict(self.paths), doubts=list(self.doubts), disturbed=set(self.disturbed))

    def apply(self, layer: list[Item]) -> list[Path | None]:
        """Put a layer on top; for every item the place that it reached (of a marker, the directory; None: nowhere)."""
        # "Whiteout files MUST only apply to resources in lower/parent layers": so all of them come first, and what is
        # hidden near the root cannot lead a deeper one through a link that is not there any more.
        places: dict[int, Path | None] = {}
        # A whiteout "is an empty file": nothing can be below it, and what is meant there is anybody's guess.
        if any(name.startswith(_MARKER) for item in layer for name in item.path[:-1]):
            raise Refused("an entry below a marker")
        listed = {item.path for item in layer if item.type == "directory"}
        markers = [index for index, item in enumerate(layer) if item.is_marker]
        for index in sorted(markers, key=lambda index: len(layer[index].path)):
            places[index] = self._hide(layer[index].path, listed)
        for index, item in enumerate(layer):
            if index not in places:
                places[index] = self._place(item)
        return [places[index] for index in range(len(layer))]

    def real(self, path: Path) -> Path | None:
        """The path without links in it, or None where something is missing, or no directory, or links never end."""
        return self._real(path, make=False)

    def below(self, path: Path) -> list[Path]:
        """All paths below one."""
        return [other for other in self.paths if other[: len(path)] == path and len(other) > len(path)]

    def _real(self, path: Path, *, make: bool) -> Path | None:
        hops = 0
        done = 0
        while done < len(path):
            here, name, rest = path[:done], path[done], path[done + 1 :]
            if name == b"..":
                path, done = here[:-1] + rest, max(done - 1, 0)
                continue
            found = self.paths.get((*here, name))
            if found is not None and found.type == "symlink" and found.item is not None:
                hops += 1
                if hops > HOPS:
                    self.doubts.append("links that never end: umoci fails, even where there is nothing to do")
                    return None
                absolute = found.item.link.startswith(b"/")
                path, done = (() if absolute else here) + split(found.item.link) + rest, 0
                continue
            missing = found is None or (found.type != "directory" and bool(rest or make))
            if missing and b".." in rest:
                self.doubts.append("'..' after something that is no directory: Linux fails, umoci takes it as text")
            if missing and not make:
                return None
            if missing:
                self._make_directory((*here, name))
            done += 1
        return path

    def _make_directory(self, path: Path) -> None:
        if path in self.paths:
            self.doubts.append("an entry below a file: umoci and containerd fail, overlayfs shows a directory")
            self._remove(path)
        self.disturbed.add(path[:-1])
        self.paths[path] = Facts(type="directory", item=None, inode=next(self._inodes))

    def _remove(self, path: Path) -> None:
        for other in [path, *self.below(path)]:
            self.paths.pop(other, None)
            self.disturbed.discard(other)

    def _hide(self, path: Path, listed: set[Path]) -> Path | None:
        directory, name = path[:-1], path[-1]
        for length in range(1, len(directory) + 1):
            parent = self._parent_and_name(directory[:length])
            facts = self.paths.get(parent) if parent is not None else None
            # The layer was made of a tree with a directory there, so the marker does not mean the link's target.
            if directory[:length] in listed and facts is not None and facts.type == "symlink":
                return None
        real = self.real(directory)
        if real is None:
            return None
        if name == _OPAQUE:
            # "hiding all children of a directory": "indicating that all siblings are hidden in the lower layer".
            for other in self.below(real):
                self._remove(other)
        else:
            # "the prefix .wh. plus the basename of the path to be deleted".
            self._remove((*real, name.removeprefix(_MARKER)))
        return real

    def _parent_and_name(self, path: Path) -> Path | None:
        parent = self.real(path[:-1])
        return None if parent is None else (*parent, path[-1])

    def _place(self, item: Item) -> Path:
        facts = self._facts(item)
        if not item.path:
            self.paths[()] = facts
            self.disturbed.discard(())
            return ()
        parent = self._real(item.path[:-1], make=True)
        if parent is None:
            raise Refused("links that never end")
        place = (*parent, item.path[-1])
        old = self.paths.get(place)
        # "If the entry and the existing path are both directories, then the existing path's attributes MUST be
        # replaced by those of the entry": its children stay. "In all other cases": remove and recreate.
        if old is not None and not (old.type == facts.type == "directory"):
            self._remove(place)
            if item.type == "hardlink" and self._linked(item) is not facts:
                self.doubts.append("a hard link over what leads to its target: umoci removes that before it links")
        self.paths[place] = facts
        self.disturbed.discard(place)
        return place

    def _facts(self, item: Item) -> Facts:
        if item.type != "hardlink":
            return Facts(type=item.type, item=item, inode=next(self._inodes))
        found = self._linked(item)
        if found is None or found.type == "directory":
            raise Refused("a hard link to what is not a file")
        return found

    def _linked(self, item: Item) -> Facts | None:
        target = self._parent_and_name(split(item.link))
        return None if target is None else self.paths.get(target)


def split(path: bytes) -> Path:
    """The components of a path or link target."""
    return tuple(part for part in path.split(b"/") if part not in {b"", b"."})
