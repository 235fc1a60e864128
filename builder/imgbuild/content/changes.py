"""What a layer may say: the values of a changeset, and the rules by which they belong together.

Errors: a value which a definition or a source may have brought in (a name, a target, a number, an attribute) is a
`StepError`; a set of changes which was put together wrongly (a missing parent, a duplicate, a link to nothing) is an
`InternalError`.
"""

from __future__ import annotations

import enum
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from imgbuild.config import DEFAULT_LIMITS
from imgbuild.errors import InternalError, StepError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager

    from imgbuild.digest import Readable

MARKER_PREFIX = b".wh."
"""What the name of a whiteout begins with (image-spec `layer.md`, Whiteouts)."""


class ChangeType(enum.Enum):
    """What a change does with its path."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    HARDLINK = "hardlink"
    WHITEOUT = "whiteout"
    OPAQUE = "opaque"


MARKERS = frozenset({ChangeType.WHITEOUT, ChangeType.OPAQUE})
_LINKS = frozenset({ChangeType.SYMLINK, ChangeType.HARDLINK})


class Content(Protocol):
    """Where the bytes of a file come from. Opened once per layer that is written, and read to its end."""

    @property
    def size(self) -> int:
        """Bytes that `open` gives, known before it is called."""
        ...

    def open(self) -> AbstractContextManager[Readable]:
        """A reader at the first byte; each call gives a new one."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BytesContent:
    """Content in memory."""

    data: bytes

    @property
    def size(self) -> int:
        """Length of the data in bytes."""
        return len(self.data)

    def open(self) -> AbstractContextManager[Readable]:
        """A reader of the data, which is not copied."""
        return io.BytesIO(self.data)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One entry of a layer. Checked by `write_layer`, not here.

    Args:
        path: relative to the root, without leading or trailing slash, `.` or `..`; for WHITEOUT the path of what is
            removed, for OPAQUE the directory whose lower content is hidden.
        type: what is there, or done.
        mode: permission bits; all but `0o7777` is ignored.
        uid: numeric owner.
        gid: numeric group.
        mtime: whole seconds since 1970. There is no place for a fraction, so none can be rounded (C19).
        link: the target of a SYMLINK as it is stored, or the path of the FILE of this layer that a HARDLINK names.
        xattrs: name and value of each extended attribute, in any order (C24); no empty values, PAX cannot say them.
        content: the bytes of a FILE, and of nothing else.
        sha256: of the content, in hex, for those who want to know it; not looked at here.

    Of WHITEOUT and OPAQUE only `path` counts: mode, owner and mtime are ignored.
    """

    path: bytes
    type: ChangeType
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    mtime: int = 0
    link: bytes = b""
    xattrs: tuple[tuple[str, bytes], ...] = ()
    content: Content | None = None
    sha256: str | None = None


def checked(changes: Iterable[Change]) -> list[Change]:
    """The changes as a list in no particular order, once every one and all of them together follow the rules.

    Numbers and attributes are not looked at: `ustar.Header.check` knows what a header can hold.
    """
    entries: dict[bytes, Change] = {}
    opaque: dict[bytes, Change] = {}
    for change in changes:
        _check_values(change)
        seen = opaque if change.type is ChangeType.OPAQUE else entries
        if (other := seen.get(change.path)) is not None:
            raise InternalError(
                show(change.path), "occurs twice in one layer", actual=f"{other.type.value} and {change.type.value}"
            )
        seen[change.path] = change
    for path in opaque:
        _check_parent(path, path, entries)
    for change in entries.values():
        _check_parent(change.path, change.path.rpartition(b"/")[0], entries)
        if change.type is ChangeType.HARDLINK:
            _check_hardlink(change, entries.get(change.link))
    return [*entries.values(), *opaque.values()]


def _check_parent(path: bytes, parent: bytes, entries: dict[bytes, Change]) -> None:
    if not parent:
        return
    found = entries.get(parent)
    if found is None:
        raise InternalError(
            show(path), "its parent directory is missing from the layer", expected=f"an entry {show(parent)}"
        )
    if found.type is not ChangeType.DIRECTORY:
        raise InternalError(
            show(path), "is below something that is not a directory", actual=f"{show(parent)} is a {found.type.value}"
        )


def _check_hardlink(link: Change, target: Change | None) -> None:
    subject = f"hard link {show(link.path)}"
    if target is None or target.type is not ChangeType.FILE:
        raise InternalError(subject, "does not name a file of this layer", actual=show(link.link))
    if target.path >= link.path:
        raise InternalError(subject, "sorts before the file that it names", actual=show(link.link))
    # One inode has one set of metadata; where the headers differ, it is up to the tool which of them counts.
    if link.xattrs or _inode(link) != _inode(target):
        raise InternalError(
            subject,
            "must have the mode, owner and mtime of its file, and no attributes of its own",
            expected=_inode(target),
            actual=_inode(link),
        )


def _inode(change: Change) -> tuple[int, int, int, int]:
    return change.mode & 0o7777, change.uid, change.gid, change.mtime


def _check_values(change: Change) -> None:
    subject = show(change.path)
    _check_path(change.path)
    if change.type in MARKERS:
        if change.link or change.xattrs or change.content is not None:
            raise InternalError(subject, f"is a {change.type.value} marker and can carry nothing")
        return
    if (change.content is not None) != (change.type is ChangeType.FILE):
        raise InternalError(subject, "every file has content, and nothing else has", actual=change.type.value)
    if change.link and change.type not in _LINKS:
        raise InternalError(subject, "only links have a target", actual=change.type.value)
    if change.type is ChangeType.SYMLINK and not 0 < len(change.link) <= DEFAULT_LIMITS.path_bytes:
        raise StepError(
            subject,
            "symlink target is empty or too long",
            expected=f"1 to {DEFAULT_LIMITS.path_bytes} bytes",
            actual=f"{len(change.link)} bytes",
        )
    if b"\0" in change.link:
        raise StepError(subject, "link target holds a NUL byte", actual=show(change.link))


def _check_path(path: bytes) -> None:
    if len(path) > DEFAULT_LIMITS.path_bytes:
        raise StepError(
            show(path[:200]),
            "path is too long",
            expected=f"at most {DEFAULT_LIMITS.path_bytes} bytes",
            actual=f"{len(path)} bytes",
        )
    components = path.split(b"/")
    if len(components) > DEFAULT_LIMITS.path_depth:
        raise StepError(
            show(path),
            "path is too deep",
            expected=f"at most {DEFAULT_LIMITS.path_depth} components",
            actual=len(components),
        )
    for component in components:
        if component in {b"", b".", b".."} or b"\0" in component:
            raise StepError(show(path), "path is not normalised", actual=f"component {show(component)}")
        if component.startswith(MARKER_PREFIX):
            raise StepError(
                show(path),
                "name is reserved for whiteouts",
                actual=f"component {show(component)}",
                hint="image layers cannot hold names that begin with .wh.; rename the file",
            )


def show(path: bytes) -> str:
    """A path as it may stand in a message: quoted, and without control characters."""
    return repr(path.decode("utf-8", "backslashreplace"))
