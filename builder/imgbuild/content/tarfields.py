"""The number fields of a tar header block: octal, GNU base-256, owners, times, the checksum.

Only `tarheader` and `tarstream` need this module. Sources: POSIX.1-2017 `pax`, "ustar Interchange Format"; GNU tar
manual, "Basic Tar Format".
"""

from __future__ import annotations

import re
from zlib import adler32

from imgbuild.content.paxrecords import HeaderError, time_in_range

_ID_LIMIT = 2**32
_OCTAL = re.compile(rb" *([0-7]*)[ \0]*")
_MEMO = 4096
"""number fields remembered; a layer has few modes, owners and times."""


class Memo:
    """Fields that were seen before and what they say; one for each reader."""

    __slots__ = ("owners", "times")

    def __init__(self) -> None:
        self.owners = _Owners()
        self.times = _Times()


def number(field: bytes) -> int:
    """A number field: octal with spaces before and spaces or NULs behind, or GNU base-256; blank is 0."""
    if field[-1] == 0 and field[:-1].isdigit():
        try:
            return int(field[:-1], 8)
        except ValueError:
            raise HeaderError(f"has a number field that is not octal: {field!r}") from None
    if field[0] & 0x80:
        # Big-endian two's complement behind one marker bit.
        bits = 8 * len(field) - 1
        value = int.from_bytes(field, "big") & ((1 << bits) - 1)
        return value - (1 << bits) if field[0] & 0x40 else value
    if match := _OCTAL.fullmatch(field):
        return int(match[1] or b"0", 8)
    raise HeaderError(f"has a number field that is neither octal nor base-256: {field!r}")


def checksum_fits(data: bytes, offset: int, field: bytes) -> bool:
    """Whether the checksum field of the header at an offset is its sum, the field itself counting as spaces."""
    # adler32 from 0 is the plain sum modulo 65521, which 256 bytes cannot reach; sum() takes many times as long.
    total = adler32(data[offset : offset + 256], 0) & 0xFFFF
    total += adler32(data[offset + 256 : offset + 512], 0) & 0xFFFF
    total += 8 * 32 - sum(field)
    if field == b"%06o\0 " % total:
        return True
    match = _OCTAL.fullmatch(field)
    if match is None or not match[1]:
        return False
    # Old tars summed signed bytes, and readers accept both ever since.
    signed = total - 256 * sum(byte >> 7 for byte in data[offset : offset + 148] + data[offset + 156 : offset + 512])
    return int(match[1], 8) in {total, signed}


def is_number(field: bytes) -> bool:
    """Whether `number` can read it."""
    return bool(field[0] & 0x80 or _OCTAL.fullmatch(field))


def in_32_bits(value: int) -> int:
    """The same owner or device number, if 32 bits hold it."""
    if not 0 <= value < _ID_LIMIT:
        raise HeaderError(f"has an owner or device number out of range: {value}")
    return value


class _Times(dict[bytes, int]):
    def __missing__(self, field: bytes) -> int:
        if len(self) > _MEMO:
            self.clear()
        self[field] = value = time_in_range(number(field))
        return value


class _Owners(dict[bytes, tuple[int, int, int]]):
    def __missing__(self, field: bytes) -> tuple[int, int, int]:
        if len(self) > _MEMO:
            self.clear()
        mode, uid, gid = (number(field[start : start + 8]) for start in (0, 8, 16))
        self[field] = value = (mode & 0o7777, in_32_bits(uid), in_32_bits(gid))
        return value
