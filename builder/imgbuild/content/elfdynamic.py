"""The dynamic table of an ELF file and what it points to: names, symbols, versions.

The part of `content.elf` between the bytes (`content.elfimage`) and the facts. Where glibc's `elf/dl-load.c` and
`elf/dl-lookup.c` ignore a count and follow a chain, so does this. NOT checked: relocations, that a
symbol's hash leads to it, and the hashes of versions.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from imgbuild.config import MIB
from imgbuild.content.elfimage import PT_DYNAMIC, text_of
from imgbuild.content.elfversions import Versions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imgbuild.content.elfimage import Image

_TAGS = 65_536
"""entries of one dynamic table; real ones have under 1,000."""
_STRING_TABLE_BYTES = 64 * MIB
"""bytes of one dynamic string table; the largest known (machine-learning frameworks) have about 40 MiB."""
_NAMES_BYTES = 128 * MIB
"""bytes of memory that all names of one file may take; with the tables it keeps a hostile file under 300 MB."""
_NAME_BYTES = 1 * MIB
"""bytes of one name; mangled C++ names can have tens of kilobytes."""
_NAME_OVERHEAD = 128
"""bytes of memory that a name takes besides its characters, in its object and in the set; it also bounds their number
to about a million, which takes about a second."""
_SYMBOL_BATCH = 16_384
"""symbols decoded at a time."""

_LINKED = frozenset(bind << 4 | kind for bind in (1, 2, 10) for kind in range(16) if kind not in (3, 4))
"""st_info of symbols that dl-lookup.c binds to: STB_GLOBAL, STB_WEAK or STB_GNU_UNIQUE; not STT_SECTION or STT_FILE."""
_HIDDEN = frozenset((1, 2))
"""STV_INTERNAL and STV_HIDDEN; default and protected symbols are found from outside."""
_TAG_FORMS = {32: "2I", 64: "2Q"}
"""Elf_Dyn: tag and value."""
_SYMBOL_FORMS = {32: "I8xBBH", 64: "IBBH16x"}
"""Elf_Sym: name, info, other and section index; value and size are skipped."""
_WIDE_HASHES = frozenset(("s390", "alpha"))
"""machines whose DT_HASH has 64-bit words in ELF64."""
_LOWEST_BITS = bytes(byte & 1 for byte in range(256))
_DF_1_PIE = 0x0800_0000
TAGS = {
    "DT_NEEDED": 1, "DT_PLTGOT": 3, "DT_HASH": 4, "DT_STRTAB": 5, "DT_SYMTAB": 6, "DT_RELA": 7, "DT_STRSZ": 10,
    "DT_INIT": 12, "DT_FINI": 13, "DT_SONAME": 14, "DT_RPATH": 15, "DT_REL": 17, "DT_JMPREL": 23, "DT_INIT_ARRAY": 25,
    "DT_FINI_ARRAY": 26, "DT_RUNPATH": 29, "DT_PREINIT_ARRAY": 32, "DT_RELR": 36, "DT_GNU_HASH": 0x6FFF_FEF5,
    "DT_VERSYM": 0x6FFF_FFF0, "DT_FLAGS_1": 0x6FFF_FFFB, "DT_VERDEF": 0x6FFF_FFFC, "DT_VERNEED": 0x6FFF_FFFE,
}  # fmt: skip
"""d_tag (gABI, "Dynamic Section"; those of GNU in glibc's `elf.h`)."""
_ADDRESS_TAGS = (
    "DT_STRTAB", "DT_HASH", "DT_GNU_HASH", "DT_VERSYM", "DT_VERNEED", "DT_VERDEF", "DT_RELA", "DT_REL", "DT_RELR",
    "DT_JMPREL", "DT_INIT", "DT_FINI", "DT_INIT_ARRAY", "DT_FINI_ARRAY", "DT_PREINIT_ARRAY", "DT_PLTGOT",
)  # fmt: skip


class Dynamic:
    """The dynamic table at PT_DYNAMIC and what it points to. All methods raise `ArchiveError` about the image."""

    def __init__(self, image: Image, bits: int, machine: str) -> None:
        self._image = image
        self._bits = bits
        self._machine = machine
        self._names: bytes | None = None
        self._budget = _NAMES_BYTES
        # Like ld.so: the last PT_DYNAMIC counts, found by its address.
        places = [segment for segment in image.segments(PT_DYNAMIC) if segment.size]
        self.entries = self._read_entries(places[-1].address) if places else []
        self._last = dict(self.entries)

    def _read_entries(self, address: int) -> list[tuple[int, int]]:
        """Tags and values up to DT_NULL or the end of the segment; p_filesz is not believed, nor is it by ld.so."""
        form = self._image.order + _TAG_FORMS[self._bits]
        size = struct.calcsize(form)
        _, available = self._image.locate(address, "the dynamic table")
        count = min(available // size, _TAGS)
        entries: list[tuple[int, int]] = []
        for tag, value in struct.iter_unpack(form, self._image.at(address, count * size, "the dynamic table")):
            if tag == 0:
                return entries
            entries.append((tag, value))
        if count == _TAGS:
            raise self._image.damaged("has too many dynamic tags", expected=f"at most {_TAGS}")
        return entries

    def value(self, tag: str) -> int | None:
        """The value of a tag; of several the last, as in ld.so."""
        return self._last.get(TAGS[tag])

    @property
    def is_pie(self) -> bool:
        """Whether the file says that it is a program (DF_1_PIE)."""
        return bool((self.value("DT_FLAGS_1") or 0) & _DF_1_PIE)

    def facts(self) -> dict[str, Any]:
        """The dynamic fields of `ElfFacts`."""
        if not self.entries:
            return {}
        needed = TAGS["DT_NEEDED"]
        versions = Versions(self._image, self.value, self._name)
        imports, exports = self._symbols(versions)
        return {
            "soname": self._string("DT_SONAME"),
            "needed": tuple(self._name(value) for tag, value in self.entries if tag == needed),
            "rpath": self._directories("DT_RPATH"),
            "runpath": self._directories("DT_RUNPATH"),
            "imports": imports,
            "exports": exports,
            "versions_needed": versions.needed,
            "versions_defined": versions.defined,
        }

    def _string_table(self) -> bytes:
        if self._names is None:
            address, size = self.value("DT_STRTAB"), self.value("DT_STRSZ")
            if address is None or size is None:
                raise self._image.damaged("has a dynamic table without a string table")
            if size > _STRING_TABLE_BYTES:
                raise self._image.damaged(
                    "has a dynamic string table that is too long",
                    expected=f"at most {_STRING_TABLE_BYTES} bytes",
                    actual=f"{size} bytes",
                )
            self._names = self._image.at(address, size, "the dynamic string table") if size else b""
        return self._names

    def _name(self, offset: int) -> str:
        table = self._names if self._names is not None else self._string_table()
        end = table.find(b"\0", offset, offset + _NAME_BYTES) if offset < len(table) else -1
        if end < 0:
            raise self._image.damaged(
                "has a name that is outside its dynamic string table or has no end",
                expected=f"a name of at most {_NAME_BYTES} bytes in a table of {len(table)}",
                actual=f"a name at {offset}",
            )
        name = table[offset:end]
        self._spend(name)
        return text_of(name)

    def _symbol(self, offset: int, version: str) -> str:
        """A name with its version: another text, which takes as much memory again."""
        name = self._name(offset)
        if version:
            name += version
            self._spend(name)
        return name

    def _spend(self, name: bytes | str) -> None:
        # One character that is not ASCII makes Python store all of them in 4 bytes, or writes them as 4.
        self._budget -= _NAME_OVERHEAD + (len(name) if name.isascii() else 4 * len(name))
        if self._budget < 0:
            raise self._image.damaged("has too many names", expected=f"at most {_NAMES_BYTES} bytes of them")

    def _string(self, tag: str) -> str | None:
        offset = self.value(tag)
        return None if offset is None else self._name(offset)

    def _directories(self, tag: str) -> tuple[str, ...]:
        text = self._string(tag)
        return () if text is None else tuple(text.split(":"))

    def _symbols(self, versions: Versions) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Imports and exports, each sorted."""
        imports: set[str] = set()
        exports: set[str] = set()
        for (offset, info, other, section), version in self._records(versions):
            if offset and info in _LINKED:
                if not section:
                    imports.add(self._symbol(offset, version.replace("@@", "@")))
                elif other & 3 not in _HIDDEN:
                    exports.add(self._symbol(offset, version))
        return tuple(sorted(imports)), tuple(sorted(exports))

    def _records(self, versions: Versions) -> Iterator[tuple[tuple[int, int, int, int], str]]:
        """Name offset, info, other and section index of each dynamic symbol, and its version."""
        address = self.value("DT_SYMTAB")
        if address is None:
            return
        form = self._image.order + _SYMBOL_FORMS[self._bits]
        size = struct.calcsize(form)
        count, certain = self._symbol_count(address, size)
        if count > self._image.limits.elf_symbols:
            raise self._image.damaged(
                "has too many dynamic symbols",
                expected=f"at most {self._image.limits.elf_symbols}",
                actual=count,
            )
        for start in range(0, count, _SYMBOL_BATCH):
            batch = min(_SYMBOL_BATCH, count - start)
            data = self._image.at(address + start * size, batch * size, "the dynamic symbol table")
            # Where their number is a guess, there may be no versions for the last of them: the name ends the table.
            numbers = versions.of(start, batch, certain=certain)
            for record, version in zip(struct.iter_unpack(form, data), numbers, strict=True):
                if not certain and record[0] >= len(self._string_table()):
                    return
                yield record, version

    def _symbol_count(self, table: int, size: int) -> tuple[int, bool]:
        """How many dynamic symbols there are, and whether that is certain: no tag says it.

        DT_GNU_HASH is what ld.so uses: the last symbol is the end of the chain that starts last. A table that hashes
        nothing says nothing, since imports are not hashed; then DT_HASH does, which has one chain link per symbol.
        Without either, the table ends at latest where the next one starts, or at the first impossible name.
        """
        address = self.value("DT_GNU_HASH")
        if address is not None and (count := self._gnu_hash_count(address)):
            return count, True
        address = self.value("DT_HASH")
        if address is not None:
            wide = self._bits == max(_TAG_FORMS) and self._machine in _WIDE_HASHES
            return self._image.unpack("2Q" if wide else "2I", address, "the symbol hash table")[1], True
        _, available = self._image.locate(table, "the dynamic symbol table")
        others = (self.value(tag) for tag in _ADDRESS_TAGS)
        nearest = min((other for other in others if other is not None and other > table), default=table + available)
        return min(nearest - table, available) // size, False

    def _gnu_hash_count(self, address: int) -> int:
        """Number of symbols according to DT_GNU_HASH; 0 where it hashes none."""
        what = "the GNU symbol hash table"
        buckets, first, bloom, _ = self._image.unpack("4I", address, what)
        if buckets > self._image.limits.elf_symbols:
            raise self._image.damaged(f"has too many buckets in {what}", actual=buckets)
        start = address + 16 + bloom * (self._bits // 8)
        last = max(self._image.words(start, buckets, what), default=0) if buckets else 0
        if last < first or not last:
            return 0
        chain = start + 4 * buckets + 4 * (last - first)
        _, available = self._image.locate(chain, what)
        left = min(available // 4, self._image.limits.elf_symbols)
        low = 0 if self._image.order == "<" else 3
        while left:
            batch = min(left, _SYMBOL_BATCH)
            # The lowest bit of a word ends the chain; only the byte that has it is looked at, by C code.
            ends = self._image.at(chain, 4 * batch, what)[low::4].translate(_LOWEST_BITS)
            if (place := ends.find(1)) >= 0:
                return last + place + 1
            last += batch
            chain += 4 * batch
            left -= batch
        raise self._image.damaged(f"has a chain without an end in {what}")
