"""Tar headers of layer format 1: ustar, and PAX for what ustar cannot say. See `changeset` for the whole format.

Sources: POSIX.1-2001 `pax` (ustar and pax interchange formats); where it leaves a choice, what Go's archive/tar writes,
because the engines read with it. The output must never change.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

from imgbuild.config import DEFAULT_LIMITS
from imgbuild.errors import StepError

BLOCK_BYTES = 512
"""bytes of a header, and what contents are padded to."""

END = bytes(2 * BLOCK_BYTES)
"""The end mark of a tar. Format 1 adds no further padding."""

_NAME_BYTES = 100
_PREFIX_BYTES = 155
_OCTAL_7 = 0o7777777
_OCTAL_11 = 0o77777777777
_LARGEST_ID = 2**32 - 2
"""(uid_t)-1 means "leave as it is" to chown(2), so it is nobody's number."""
_LARGEST_NUMBER = 2**63 - 1
"""What readers keep numbers in."""
_FIELDS = struct.Struct("100s8s8s8s12s12s8sc100s8s32s32s8s8s155s12x")
_MAGIC = b"ustar\x0000"
_BLANK_CHECKSUM = b" " * 8
_NO_DEVICE = b"0000000\0"
_PAX_NAME = b"././@PaxHeader"
_PAX_MODE = 0o644


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The fields of one entry, as they shall be read back.

    Args:
        name: path, with a trailing slash for a directory.
        typeflag: one byte, `0` to `5`.
        mode: permission bits, at most 0o7777.
        uid: numeric owner.
        gid: numeric group.
        mtime: whole seconds since 1970.
        size: bytes of content; 0 for all but files.
        link: target of a link, else empty.
        xattrs: name and value of each extended attribute, in any order.
    """

    name: bytes
    typeflag: bytes
    mode: int
    uid: int
    gid: int
    mtime: int
    size: int = 0
    link: bytes = b""
    xattrs: tuple[tuple[str, bytes], ...] = ()

    def check(self, subject: str) -> None:
        """Raise a `StepError` about `subject` if a number or an attribute fits neither ustar nor PAX.

        NOT checked: the name and the link, which are the caller's to judge.
        """
        largest = {"uid": _LARGEST_ID, "gid": _LARGEST_ID, "mtime": _LARGEST_NUMBER, "size": _LARGEST_NUMBER}
        for field, limit in largest.items():
            value = getattr(self, field)
            if not 0 <= value <= limit:
                raise StepError(subject, f"{field} is out of range", expected=f"0 to {limit}", actual=value)
        _check_xattrs(subject, self.xattrs)
        size = len(self._records())
        if size > DEFAULT_LIMITS.pax_bytes:
            raise StepError(
                subject,
                "its PAX header is too big for readers",
                expected=f"at most {DEFAULT_LIMITS.pax_bytes} bytes",
                actual=f"{size} bytes",
            )

    def encode(self) -> bytes:
        """The header block, after a PAX header and its records where needed; a multiple of 512 bytes.

        Only for a header that `check` accepts.
        """
        records = self._records()
        name, prefix = _split(self.name) or (_placeholder(self.name), b"")
        link = self.link if _fits(self.link) else _placeholder(self.link)
        block = _block(self, name=name, prefix=prefix, link=link)
        if not records:
            return block
        pax = Header(name=_PAX_NAME, typeflag=b"x", mode=_PAX_MODE, uid=0, gid=0, mtime=0, size=len(records))
        return _block(pax, name=_PAX_NAME, prefix=b"", link=b"") + records + padding(len(records)) + block

    def _records(self) -> bytes:
        values = {f"SCHILY.xattr.{name}".encode(): value for name, value in self.xattrs}
        names = {}
        if _split(self.name) is None:
            names[b"path"] = self.name
        if not _fits(self.link):
            names[b"linkpath"] = self.link
        if not all(map(_is_utf8_bytes, names.values())):
            values[b"hdrcharset"] = b"BINARY"
        values |= names
        for key, number, largest in (
            (b"uid", self.uid, _OCTAL_7),
            (b"gid", self.gid, _OCTAL_7),
            (b"mtime", self.mtime, _OCTAL_11),
            (b"size", self.size, _OCTAL_11),
        ):
            if number > largest:
                values[key] = b"%d" % number
        return b"".join(_record(key, values[key]) for key in sorted(values))


def _check_xattrs(subject: str, xattrs: tuple[tuple[str, bytes], ...]) -> None:
    seen = set()
    for name, value in xattrs:
        if not name or "=" in name or "\0" in name or not _is_utf8(name):
            raise StepError(subject, "a PAX header cannot name this extended attribute", actual=ascii(name))
        if name in seen:
            raise StepError(subject, "an extended attribute occurs twice", actual=ascii(name))
        if not value:
            # An empty PAX value deletes the keyword (POSIX), so Go's archive/tar would drop the attribute in silence.
            raise StepError(subject, "a PAX header cannot hold an empty extended attribute", actual=ascii(name))
        seen.add(name)


def padding(size: int) -> bytes:
    """The zeros after `size` bytes of content."""
    return bytes(-size % BLOCK_BYTES)


def _split(name: bytes) -> tuple[bytes, bytes] | None:
    """Name and prefix fields, or None where they cannot hold the name.

    The prefix is the longest that fits, never the whole name: a name that ends with its only slash is not split there.
    """
    if not name.isascii():
        return None
    if len(name) <= _NAME_BYTES:
        return name, b""
    cut = name.rfind(b"/", 0, min(_PREFIX_BYTES + 1, len(name) - 1))
    if cut <= 0 or len(name) - cut - 1 > _NAME_BYTES:
        return None
    return name[cut + 1 :], name[:cut]


def _fits(link: bytes) -> bool:
    return len(link) <= _NAME_BYTES and link.isascii()


def _placeholder(name: bytes) -> bytes:
    slash = b"/" if name.endswith(b"/") else b""
    return b"pax-only/" + hashlib.sha256(name.rstrip(b"/")).hexdigest().encode() + slash


def _block(header: Header, *, name: bytes, prefix: bytes, link: bytes) -> bytes:
    def pack(checksum: bytes) -> bytes:
        return _FIELDS.pack(
            name,
            b"%07o\0" % header.mode,
            b"%07o\0" % (header.uid if header.uid <= _OCTAL_7 else 0),
            b"%07o\0" % (header.gid if header.gid <= _OCTAL_7 else 0),
            b"%011o\0" % (header.size if header.size <= _OCTAL_11 else 0),
            b"%011o\0" % (header.mtime if header.mtime <= _OCTAL_11 else 0),
            checksum,
            header.typeflag,
            link,
            _MAGIC,
            b"",
            b"",
            _NO_DEVICE,
            _NO_DEVICE,
            prefix,
        )

    return pack(b"%06o\0 " % sum(pack(_BLANK_CHECKSUM)))


def _record(key: bytes, value: bytes) -> bytes:
    """`LENGTH key=value` and a newline, where LENGTH counts itself."""
    rest = len(key) + len(value) + 3
    length = rest + len(str(rest))
    # The digits of the length can make it one digit longer, once.
    length = rest + len(str(length))
    return b"%d %s=%s\n" % (length, key, value)


def _is_utf8(name: str) -> bool:
    # A str has surrogates where it was made from bytes that are not UTF-8.
    return not any("\ud800" <= character <= "\udfff" for character in name)


def _is_utf8_bytes(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True
