"""One tar header block, with the PAX or GNU extensions that apply to it, as an entry; pure functions over bytes.

`tarstream` reads the blocks; nobody else needs this module. Sources: POSIX.1-2017 `pax` (ustar and pax formats), GNU
tar manual "Basic Tar Format". Where GNU tar, Go's archive/tar and Python's tarfile would read the same header
differently it is refused, because such an archive shows a different tree to each of them.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from imgbuild.content.paxrecords import HeaderError, seconds, show, xattrs
from imgbuild.content.tarfields import Memo, in_32_bits, is_number, number

if TYPE_CHECKING:
    from imgbuild.config import Limits

BLOCK: Final = 512
"""bytes of a header, and the unit to which content is padded."""

_LAYOUT = struct.Struct("100s24s12s12s8sc100s8s64x16s155s8x4s")
_USTAR = b"ustar\x0000"
_USTAR_MAGIC = b"ustar\0"
_GNU = b"ustar  \0"
_NO_PREFIX = bytes(155)
_STAR_PREFIX = 131
_PLACEHOLDERS = frozenset({0, 0o77777777777, 0o777777777777})
"""ustar sizes that only say "see the PAX size": Go and tarfile write 0, others the largest octal number."""


class EntryType(enum.Enum):
    """What an entry makes."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    HARDLINK = "hardlink"
    CHARACTER = "character"
    BLOCK = "block"
    FIFO = "fifo"


# Members of an enum are looked up through its metaclass, which shows at 200,000 entries.
_FILE, _DIRECTORY = EntryType.FILE, EntryType.DIRECTORY
_SYMLINK, _HARDLINK = EntryType.SYMLINK, EntryType.HARDLINK
_LINKS, _DEVICES = (_SYMLINK, _HARDLINK), (EntryType.CHARACTER, EntryType.BLOCK)
_TYPES = {
    b"\0": _FILE,
    b"0": _FILE,
    b"1": _HARDLINK,
    b"2": _SYMLINK,
    b"3": EntryType.CHARACTER,
    b"4": EntryType.BLOCK,
    b"5": _DIRECTORY,
    b"6": EntryType.FIFO,
    b"7": _FILE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TarEntry:
    """One member, without its content.

    `path` is normalised: no leading "./" or "/", no trailing "/", no "." or empty component, never ".."; `b""` is the
    root itself. `mode` holds the permission bits 0o7777 only, `size` bytes of content (0 unless FILE), `mtime` whole
    seconds since the epoch, a fraction cut toward minus infinity (case C19). `link` is the target of a SYMLINK exactly
    as stored, of a HARDLINK normalised like `path`. `xattrs` come from SCHILY.xattr.* records, sorted by name (case
    C24); `device` is (major, minor) of CHARACTER and BLOCK.
    """

    path: bytes
    type: EntryType
    mode: int
    uid: int
    gid: int
    size: int
    mtime: int
    link: bytes = b""
    xattrs: tuple[tuple[str, bytes], ...] = ()
    device: tuple[int, int] | None = None


class _Draft:
    """A `TarEntry` while it is being filled.

    A frozen dataclass assigns each field through `object.__setattr__`, which would be a third of the time of reading an
    entry. This class has the same slots, so that a filled one can become a `TarEntry` by changing its class.
    """

    __slots__ = tuple(TarEntry.__slots__)

    path: bytes
    type: EntryType
    mode: int
    uid: int
    gid: int
    size: int
    mtime: int
    link: bytes
    xattrs: tuple[tuple[str, bytes], ...]
    device: tuple[int, int] | None

    def entry(self) -> TarEntry:
        self.__class__ = TarEntry  # type: ignore[assignment]
        return cast("TarEntry", self)


class Header(NamedTuple):
    """The fields of a header block, as stored; `owner` is mode, uid and gid, `device` major and minor."""

    name: bytes
    owner: bytes
    size: bytes
    mtime: bytes
    checksum: bytes
    flag: bytes
    link: bytes
    magic: bytes
    device: bytes
    prefix: bytes
    trailer: bytes

    @classmethod
    def at(cls, data: bytes, offset: int) -> Header:
        """The header in `data[offset : offset + 512]`."""
        return cls(*_LAYOUT.unpack_from(data, offset))


def name_of(header: Header) -> bytes:
    """The name that the header block itself holds: ustar prefix and name."""
    name = header.name.partition(b"\0")[0]
    if header.prefix[0] and header.magic.startswith(_USTAR_MAGIC):
        return header.prefix.partition(b"\0")[0] + b"/" + name
    return name


def entry(header: Header, extra: dict[bytes, bytes], memo: Memo, limits: Limits) -> TarEntry:
    """The entry of a header, with the PAX records (and GNU names as `path` and `linkpath`) that apply to it.

    Raises `HeaderError`. NOT checked: the checksum.
    """
    draft = _Draft()
    raw, owner, size, mtime, _, flag, link, magic, device, prefix, _ = header
    kind = _TYPES.get(flag)
    if kind is None:
        raise HeaderError(_unknown(flag))
    name = raw.partition(b"\0")[0]
    if prefix != _NO_PREFIX or magic != _USTAR:
        _check_format(header)
        name = name_of(header)
    draft.mode, draft.uid, draft.gid = memo.owners[owner]
    draft.mtime = memo.times[mtime]
    draft.size = number(size)
    draft.link = link.partition(b"\0")[0] if kind in _LINKS else b""
    draft.xattrs = ()
    draft.device = _device(device) if kind in _DEVICES else None
    if extra:
        name = extra.get(b"path") or name
        _apply(extra, draft, link=kind in _LINKS)
    if name.endswith(b"/") and kind is _FILE:
        kind = _directory(flag)
    if draft.size:
        _check_size(kind, draft.size, limits)
    draft.type = kind
    draft.path = path = _normal(name, limits)
    if not path and (not name or kind is not _DIRECTORY):
        raise HeaderError(f"puts a {kind.value} in place of the root" if name else "has an empty name")
    if kind in _LINKS:
        draft.link = _target(kind, draft.link, limits)
    return draft.entry()


def _apply(extra: dict[bytes, bytes], draft: _Draft, *, link: bool) -> None:
    """Replace what PAX records replace; an empty record keeps what the header says."""
    if link:
        draft.link = extra.get(b"linkpath") or draft.link
    if uid := extra.get(b"uid"):
        draft.uid = in_32_bits(int(uid))
    if gid := extra.get(b"gid"):
        draft.gid = in_32_bits(int(gid))
    if mtime := extra.get(b"mtime"):
        draft.mtime = seconds(mtime)
    if size := extra.get(b"size"):
        draft.size = _size(draft.size, int(size))
    draft.xattrs = xattrs(extra)


def _device(field: bytes) -> tuple[int, int]:
    return in_32_bits(number(field[:8])), in_32_bits(number(field[8:]))


def _check_format(header: Header) -> None:
    """Refuse magics that nobody defines, and prefixes that are one in some readers only."""
    prefix = header.prefix
    if header.magic.startswith(_USTAR_MAGIC):
        if header.trailer == b"tar\0" and b"\0" not in prefix[: _STAR_PREFIX + 1]:
            raise HeaderError("has the star format with a prefix of more than 131 bytes; readers disagree about that")
    elif header.magic == _GNU:
        # GNU keeps atime and ctime here; Go before 1.8 wrote a prefix with this magic, and Go still guesses.
        if prefix != _NO_PREFIX and not (is_number(prefix[:12]) and is_number(prefix[12:24])):
            raise HeaderError("has the GNU format and a ustar prefix; readers disagree about its name")
    elif any(header.magic):
        raise HeaderError(f"has an unknown magic: {header.magic!r}; known are ustar, GNU and none (v7)")
    elif prefix[0]:
        raise HeaderError("has the v7 format and a ustar prefix; readers disagree about its name")


def _size(stored: int, wanted: int) -> int:
    if stored != wanted and stored not in _PLACEHOLDERS:
        raise HeaderError(
            f"has two sizes, {stored} in its header and {wanted} in PAX, so that readers see other entries"
        )
    return wanted


def _directory(flag: bytes) -> EntryType:
    # v7 had no directories: a name with a slash at its end was one, and only the flag NUL still means v7.
    if flag != b"\0":
        raise HeaderError("is a file whose name ends in a slash; readers disagree about that")
    return _DIRECTORY


def _check_size(kind: EntryType, size: int, limits: Limits) -> None:
    if kind is not _FILE:
        raise HeaderError(f"is a {kind.value} and claims {size} bytes of content; readers disagree about that")
    if not 0 <= size <= limits.layer_bytes:
        raise HeaderError(f"has a size of {size} bytes; limit {limits.layer_bytes} (layer_bytes)")


def _target(kind: EntryType, raw: bytes, limits: Limits) -> bytes:
    if not raw or len(raw) > limits.path_bytes:
        raise HeaderError(f"is a {kind.value} to a target of {len(raw)} bytes; limit {limits.path_bytes} (path_bytes)")
    if kind is _SYMLINK:
        return raw
    target = _normal(raw, limits)
    if not target:
        raise HeaderError("is a hard link to the root directory")
    return target


def _normal(raw: bytes, limits: Limits) -> bytes:
    if len(raw) > limits.path_bytes:
        raise HeaderError(f"has a path of {len(raw)} bytes; limit {limits.path_bytes} (path_bytes)")
    path = raw[:-1] if raw.endswith(b"/") else raw
    framed = b"/" + path + b"/"
    # Two searches find all that is left to be normalised; most names have none of it.
    if b"//" in framed or b"/." in framed:
        parts = [part for part in raw.split(b"/") if part not in {b"", b"."}]
        if b".." in parts:
            raise HeaderError(f"has a '..' component in a path: {show(raw)}")
        path = b"/".join(parts)
    if path.count(b"/") >= limits.path_depth:
        raise HeaderError(f"has a path of too many components; limit {limits.path_depth} (path_depth)")
    return path


def _unknown(flag: bytes) -> str:
    if flag == b"S":
        return "is a sparse file (GNU type 'S'); write the layer without sparse files"
    return f"has the unknown type {flag!r}"
