"""`/etc/ld.so.cache`: which file glibc's linker takes for a name that it looks up there.

Sources: glibc's `sysdeps/generic/dl-cache.h` (formats), `elf/dl-cache.c` (how a name is looked up) and `elf/cache.c`
(how ldconfig writes it). The old format may stand before the new one in one file, and is passed over; a file with
nothing but the old one is refused, since no system has written it since 2020.

ld.so trusts what it finds here: a path that is not there any more makes it go on with the default directories, and a
library that came later is not found. NOT checked: that the entries are sorted, as ldconfig leaves them; ld.so searches
them by halves and would miss some otherwise.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imgbuild.errors import ArchiveError

if TYPE_CHECKING:
    from collections.abc import Callable

_OLD_MAGIC = b"ld.so-1.7.0\0"
_OLD_ENTRY = 12
_NEW_MAGIC = b"glibc-ld.so.cache1.1"
_HEADER = struct.Struct("<20sIIB3xI12x")
"""magic, entries, bytes of all texts, order of bytes, offset of the extension."""
_ENTRY = struct.Struct("<iIIIQ")
"""flags, offsets of name and path from the header's beginning, version of the kernel, hardware capabilities."""
_LITTLE_ENDIAN = 2
_ORDER_MASK = 3
_FLAGS: Final = {"aarch64": 0x0A03, "x86_64": 0x0303}
"""FLAG_ELF_LIBC6 with FLAG_AARCH64_LIB64 or FLAG_X8664_LIB64."""
_MAX_ENTRIES = 100_000
_MAX_TEXT = 4096
_MAX_TEXTS = 16_000_000
"""bytes of all names and paths together; real ones have 100 kB. Entries may share texts, and ours do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cached:
    """One library of a name: its path, and whether only some processors take it (a folder of `glibc-hwcaps`)."""

    path: bytes
    conditional: bool


class LdCache:
    """The libraries of one machine in a cache."""

    def __init__(self, entries: dict[bytes, tuple[Cached, ...]]) -> None:
        self._entries = entries

    def __len__(self) -> int:
        """How many names there are."""
        return len(self._entries)

    def names_of(self, is_one: Callable[[bytes], bool]) -> set[bytes]:
        """The names under which a path is listed of which `is_one` says yes."""
        return {name for name, rows in self._entries.items() if any(is_one(row.path) for row in rows)}

    def lookup(self, name: bytes) -> tuple[Cached, ...]:
        """The libraries of a name in the order of the file: those for some processors, and one for all."""
        return self._entries.get(name, ())


def parse_cache(raw: bytes, *, machine: str, subject: str) -> LdCache:
    """Read a cache.

    Args:
        raw: the file.
        machine: `aarch64` or `x86_64`; entries of other machines are left out.
        subject: how errors name it.

    Raises:
        ArchiveError: it is no cache in the format of glibc 2.2 and later, or in another order of bytes; or it is
            damaged, or too large.
    """
    start = _start(raw, subject)
    if len(raw) < start + _HEADER.size:
        raise ArchiveError(subject, "is cut within its header")
    _, count, _, order, _ = _HEADER.unpack_from(raw, start)
    if order & _ORDER_MASK not in {0, _LITTLE_ENDIAN}:
        raise ArchiveError(subject, "is not for a little-endian machine", actual=f"flags {order}")
    if count > _MAX_ENTRIES:
        raise ArchiveError(subject, "has too many entries", expected=f"at most {_MAX_ENTRIES}", actual=count)
    first = start + _HEADER.size
    if len(raw) < first + count * _ENTRY.size:
        raise ArchiveError(subject, "is cut", expected=f"{count} entries", actual=f"{len(raw)} bytes")
    found: dict[bytes, list[Cached]] = {}
    total = 0
    for number in range(count):
        flags, key, value, _, hwcap = _ENTRY.unpack_from(raw, first + number * _ENTRY.size)
        if flags == _FLAGS[machine]:
            name, path = (_text(raw, start + place, subject) for place in (key, value))
            total += len(name) + len(path)
            if total > _MAX_TEXTS:
                raise ArchiveError(subject, "has too long texts", expected=f"at most {_MAX_TEXTS} bytes together")
            found.setdefault(name, []).append(Cached(path=path, conditional=hwcap != 0))
    return LdCache({name: tuple(rows) for name, rows in found.items()})


def _start(raw: bytes, subject: str) -> int:
    """Where the new format begins."""
    if raw.startswith(_NEW_MAGIC):
        return 0
    start = 0
    if raw.startswith(_OLD_MAGIC) and len(raw) >= len(_OLD_MAGIC) + 4:
        count = int.from_bytes(raw[len(_OLD_MAGIC) : len(_OLD_MAGIC) + 4], "little")
        start = -(-(len(_OLD_MAGIC) + 4 + count * _OLD_ENTRY) // 8) * 8
    if not start or raw[start : start + len(_NEW_MAGIC)] != _NEW_MAGIC:
        expected = _NEW_MAGIC.decode()
        raise ArchiveError(subject, "is no linker cache that is known", expected=expected, actual=repr(raw[:20]))
    return start


def _text(raw: bytes, start: int, subject: str) -> bytes:
    end = raw.find(b"\0", start, start + _MAX_TEXT)
    if end < 0 or start >= len(raw):
        raise ArchiveError(subject, "has a name or path that is not in it", actual=f"offset {start}")
    return raw[start:end]
