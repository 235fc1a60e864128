"""Symbol versions of an ELF file: which it defines, which it needs of which file, and which one a symbol has.

Sources: LSB Core 5.0, "Symbol Versioning"; where glibc's `elf/dl-version.c` ignores a count and follows a chain, so
does this. Part of `content.elfdynamic`; all raises are `ArchiveError`s about the image.
"""

from __future__ import annotations

import itertools
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from imgbuild.content.elfimage import Image

_RECORDS = 10_000
"""version records of one table; libc.so.6 has about 100."""
_VER_FLG_WEAK = 2
_HIDDEN = 0x8000
"""of an entry of DT_VERSYM: not for those who name no version."""
_FIRST = 2
"""the first index that is a version: 0 is a local symbol, 1 one without a version."""
_ANY = 3
"""the first index whose hidden bit ld.so minds where no version is asked for."""


class Versions:
    """The tables of versions; `value` gives the address of a dynamic tag, `name` a text of the string table."""

    def __init__(self, image: Image, value: Callable[[str], int | None], name: Callable[[int], str]) -> None:
        self._image = image
        self._name = name
        self._symbols = value("DT_VERSYM")
        self._by_index: dict[int, str] = {}
        self._texts: dict[int, str] = {}
        # In the order of ld.so: of two with one index the last counts.
        self.needed = self._read_needed(value("DT_VERNEED"))
        self.defined = self._read_defined(value("DT_VERDEF"))

    def of(self, first: int, count: int, *, certain: bool) -> Iterable[str]:
        """What stands behind the names of so many symbols from one on.

        Nothing for one without a version; `@@V` for one that is also taken where no version is asked for (`@@` alone
        for one that is taken only then); `@V` for one that is taken only where this version is. Where it is not
        `certain` that there are so many symbols, those behind the table's segment have none.
        """
        if self._symbols is None or not self._by_index:
            return itertools.repeat("", count)
        what, address = "the versions of symbols", self._symbols + 2 * first
        there = count if certain else min(count, self._image.locate(address, what)[1] // 2)
        numbers = struct.iter_unpack(self._image.order + "H", self._image.at(address, 2 * there, what))
        found = [self._texts.get(number) or self._text(number) for (number,) in numbers]
        return found + [""] * (count - there)

    def _text(self, number: int) -> str:
        index, hidden = number & ~_HIDDEN, bool(number & _HIDDEN)
        name = self._by_index.get(index, "")
        sign = "@" if hidden and index >= _ANY else "@@"
        text = f"{sign}{name}" if name or hidden else ""
        self._texts[number] = text
        return text

    def _read_defined(self, start: int | None) -> tuple[str, ...]:
        """Sorted, with the base one (the file's own name), with which ld.so compares, too."""
        names = set()
        if start is not None:
            what, left = "the table of defined versions", [_RECORDS]
            for address, (version, _, index, _, _, first, _) in self._linked("4H3I", start, what, left):
                self._check(version, what)
                name = self._name(self._image.unpack("2I", address + first, what)[0])
                names.add(name)
                self._remember(index, name)
        return tuple(sorted(names))

    def _read_needed(self, start: int | None) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """By file, sorted, without those that are weak: of these ld.so only says that they are not there."""
        files: dict[str, set[str]] = {}
        if start is not None:
            what, left = "the table of needed versions", [_RECORDS]
            for address, (version, _, file, first, _) in self._linked("2H3I", start, what, left):
                self._check(version, what)
                names = files.setdefault(self._name(file), set())
                for _, (_, flags, index, offset, _) in self._linked("I2H2I", address + first, what, left):
                    name = self._name(offset)
                    self._remember(index, name)
                    if not flags & _VER_FLG_WEAK:
                        names.add(name)
        return tuple((file, tuple(sorted(names))) for file, names in sorted(files.items()))

    def _check(self, version: int, what: str) -> None:
        if version != 1:
            raise self._image.damaged(f"has a record of another version in {what}", expected="1", actual=version)

    def _remember(self, index: int, name: str) -> None:
        if index & ~_HIDDEN >= _FIRST:
            self._by_index[index & ~_HIDDEN] = name

    def _linked(self, form: str, address: int, what: str, left: list[int]) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Records whose last field is the distance to the next one; 0 ends them, as in ld.so, not the count."""
        while True:
            left[0] -= 1
            if left[0] < 0:
                raise self._image.damaged("has too many version records", expected=f"at most {_RECORDS}")
            record = self._image.unpack(form, address, what)
            yield address, record
            if not record[-1]:
                return
            address += record[-1]


def unversioned(symbols: tuple[str, ...]) -> set[str]:
    """The names of symbols that may have versions."""
    return {symbol.partition("@")[0] for symbol in symbols}


def binds(symbol: str, exports: Collection[str]) -> bool:
    """Whether ld.so takes a definition for an import (glibc's `check_match` in `elf/dl-lookup.c`).

    Args:
        symbol: the import, `name` or `name@VERSION`.
        exports: of the file that is looked into, as `ElfFacts` has them.

    With a version it takes this one, or one that has none; without, one that has none, or the only one that is not
    hidden. NOT modelled: a file that knows no versions at all, at which ld.so ends if one of its own is asked for.
    """
    name, _, version = symbol.partition("@")
    if name in exports:
        return True
    if version:
        return f"{name}@{version}" in exports or f"{name}@@{version}" in exports
    return f"{name}@@" in exports or sum(export.startswith(f"{name}@@") for export in exports) == 1
