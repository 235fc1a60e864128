"""Layers as they are put together: parents come by themselves, with the metadata that they already have below."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from imgbuild.content.changeset import BytesContent, Change, ChangeType

if TYPE_CHECKING:
    from collections.abc import Callable

    from imgbuild.content.changeset import Content

EPOCH = 1_764_547_200
"""seconds since 1970: 1 December 2025, the mtime of nearly everything in the stand-in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer: what the history says of it, and its changes."""

    created_by: str
    changes: tuple[Change, ...]


@dataclass(slots=True)
class Stack:
    """The directories of all layers so far, so that a later layer repeats them exactly (case C09)."""

    directories: dict[bytes, Change] = field(default_factory=dict)

    def layer(self, created_by: str, fill: Callable[[LayerBuilder], None]) -> Layer:
        """Make the next layer."""
        builder = LayerBuilder(self)
        fill(builder)
        return Layer(created_by=created_by, changes=tuple(builder.changes.values()))


class LayerBuilder:
    """The changes of one layer. Paths are text without leading slash."""

    def __init__(self, stack: Stack) -> None:
        self.changes: dict[tuple[bytes, bool], Change] = {}
        self._stack = stack

    def directory(self, path: str, *, mode: int = 0o755, uid: int = 0, gid: int = 0, mtime: int = EPOCH) -> None:
        """A directory with metadata of its own, over what it had."""
        change = Change(path=path.encode(), type=ChangeType.DIRECTORY, mode=mode, uid=uid, gid=gid, mtime=mtime)
        self._stack.directories[change.path] = change
        self._put(change)

    def file(
        self,
        path: str,
        content: bytes | str | Content,
        *,
        mode: int = 0o644,
        uid: int = 0,
        gid: int = 0,
        mtime: int = EPOCH,
        xattrs: tuple[tuple[str, bytes], ...] = (),
    ) -> None:
        """A regular file."""
        if isinstance(content, str):
            content = content.encode()
        if isinstance(content, bytes):
            content = BytesContent(data=content)
        self._put(
            Change(
                path=path.encode(), type=ChangeType.FILE, mode=mode, uid=uid, gid=gid, mtime=mtime, xattrs=xattrs,
                content=content,
            )
        )  # fmt: skip

    def symlink(self, path: str, target: str) -> None:
        """A symbolic link."""
        self._put(Change(path=path.encode(), type=ChangeType.SYMLINK, mode=0o777, mtime=EPOCH, link=target.encode()))

    def hardlink(self, path: str, target: str) -> None:
        """A second name of a file of this layer."""
        found = self.changes[target.encode(), False]
        self._put(
            Change(
                path=path.encode(), type=ChangeType.HARDLINK, mode=found.mode, uid=found.uid, gid=found.gid,
                mtime=found.mtime, link=found.path,
            )
        )  # fmt: skip

    def whiteout(self, path: str) -> None:
        """Remove what a lower layer has."""
        self._put(Change(path=path.encode(), type=ChangeType.WHITEOUT))

    def opaque(self, path: str) -> None:
        """Hide what lower layers have in a directory."""
        self._parents(path.encode() + b"/.")
        self.changes[path.encode(), True] = Change(path=path.encode(), type=ChangeType.OPAQUE)

    def _put(self, change: Change) -> None:
        self._parents(change.path)
        self.changes[change.path, False] = change

    def _parents(self, path: bytes) -> None:
        parts = path.split(b"/")[:-1]
        for count in range(1, len(parts) + 1):
            above = b"/".join(parts[:count])
            if (above, False) not in self.changes:
                known = self._stack.directories.setdefault(
                    above, Change(path=above, type=ChangeType.DIRECTORY, mode=0o755, mtime=EPOCH)
                )
                self.changes[above, False] = known
