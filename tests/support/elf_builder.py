"""Writes small ELF64 little-endian shared objects, byte by byte, for tests.

The files are complete enough for the real `readelf` and the real dynamic linker of the machine they are made for:
an `x86_64` one can be loaded, its exports called (they return at once). Layout, one writable and executable PT_LOAD at
address 0, so that every address is also the offset in the file:

    ELF header, program headers, [interpreter], [build-id note], dynamic symbols, hash table(s),
    [versions], strings, dynamic table, code, extra bytes, [section headers and their names]

The same arguments give the same bytes. It checks nothing: it can also write nonsense.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MACHINES = {"x86_64": 62, "aarch64": 183, "riscv": 243, "ppc64": 21}
_RETURN = {"x86_64": b"\xc3", "aarch64": bytes.fromhex("c0035fd6")}

_HEADER, _SEGMENT, _SECTION = 64, 56, 64
_ROOM = 5 * _SEGMENT
_PT_LOAD, _PT_DYNAMIC, _PT_INTERP, _PT_NOTE = 1, 2, 3, 4
_SHT = {
    "progbits": 1, "strtab": 3, "hash": 5, "dynamic": 6, "note": 7, "dynsym": 11, "gnu_hash": 0x6FFFFFF6,
    "verdef": 0x6FFFFFFD, "verneed": 0x6FFFFFFE, "versym": 0x6FFFFFFF,
}  # fmt: skip
DT = {
    "NEEDED": 1, "HASH": 4, "STRTAB": 5, "SYMTAB": 6, "STRSZ": 10, "SYMENT": 11, "SONAME": 14, "RPATH": 15,
    "RUNPATH": 29, "GNU_HASH": 0x6FFFFEF5, "VERSYM": 0x6FFFFFF0, "FLAGS_1": 0x6FFFFFFB, "VERDEF": 0x6FFFFFFC,
    "VERDEFNUM": 0x6FFFFFFD, "VERNEED": 0x6FFFFFFE, "VERNEEDNUM": 0x6FFFFFFF,
}  # fmt: skip
"""Numbers of the dynamic tags that the builder writes; tests use them to find what they damage."""


def shared_object(
    *,
    machine: str = "aarch64",
    soname: str | None = None,
    needed: Sequence[str] = (),
    rpath: str | None = None,
    runpath: str | None = None,
    build_id: str | None = None,
    exports: Iterable[str] = (),
    imports: Iterable[str] = (),
    versions_needed: Mapping[str, Sequence[str]] | None = None,
    versions_defined: Sequence[str] = (),
    extra: bytes = b"",
    interpreter: str | None = None,
    pie: bool = False,
    hash_style: str = "gnu",
    sections: bool = True,
) -> bytes:
    """The bytes of a shared object (ET_DYN).

    Args:
        machine: a key of `MACHINES`.
        soname: DT_SONAME.
        needed: DT_NEEDED, in this order.
        rpath: DT_RPATH as one text with `:`.
        runpath: DT_RUNPATH, likewise.
        build_id: hexadecimal digits of the GNU build-id.
        exports: names of global functions; `name@@VERSION` gives one a version of `versions_defined`, `name@VERSION`
            hides it from those who ask for none, and `name@` does so without a version.
        imports: names of undefined global symbols; `name@VERSION` takes a version of `versions_needed`.
        versions_needed: version names for each file.
        versions_defined: names of version nodes, besides the base one (the SONAME).
        extra: bytes of a section `.rodata` (a version banner, for example).
        interpreter: path in PT_INTERP.
        pie: set DF_1_PIE.
        hash_style: `gnu`, `sysv`, `both` or `none`.
        sections: False leaves the section headers out, as `strip --strip-section-headers` does.

    Strings may hold any bytes but NUL, written with `surrogateescape`.
    """
    builder = _Builder(machine, _Strings())
    if interpreter is not None:
        builder.add(".interp", "progbits", _raw(interpreter) + b"\0", segment=_PT_INTERP, align=1)
    if build_id is not None:
        builder.add_build_id(build_id)
    strings = builder.strings
    tags: list[tuple[str, int | str]] = [("NEEDED", strings.add(name)) for name in needed]
    texts = (("SONAME", soname), ("RPATH", rpath), ("RUNPATH", runpath))
    tags += [(tag, strings.add(text)) for tag, text in texts if text is not None]
    wanted = dict(versions_needed or {})
    numbers = _version_numbers(versions_defined, wanted)
    symbols = _Symbols(strings, list(imports), list(exports), numbers)
    builder.add(".dynsym", "dynsym", symbols.table(0, 0), entry=24, link=".dynstr", info=1)
    tags += [("SYMTAB", ".dynsym"), ("SYMENT", 24), ("STRTAB", ".dynstr")]
    if hash_style in ("gnu", "both"):
        builder.add(".gnu.hash", "gnu_hash", symbols.gnu_hash(), link=".dynsym")
        tags.append(("GNU_HASH", ".gnu.hash"))
    if hash_style in ("sysv", "both"):
        builder.add(".hash", "hash", symbols.sysv_hash(), entry=4, link=".dynsym")
        tags.append(("HASH", ".hash"))
    if numbers:
        builder.add(".gnu.version", "versym", symbols.versions(), entry=2, link=".dynsym")
        tags.append(("VERSYM", ".gnu.version"))
        tags += builder.add_versions([soname or "base", *versions_defined], wanted, numbers)
    if pie:
        tags.append(("FLAGS_1", 0x0800_0000))
    builder.add(".dynstr", "strtab", strings.data(), align=1)
    builder.add_dynamic([*tags, ("STRSZ", len(strings.data()))])
    builder.add_code(extra)
    builder.replace(".dynsym", symbols.table(builder.address(".text"), builder.index(".text")))
    return builder.finish(with_sections=sections)


def static_program(*, machine: str = "aarch64", build_id: str | None = None) -> bytes:
    """A program without a dynamic table (ET_EXEC)."""
    builder = _Builder(machine, _Strings(), kind=2)
    if build_id is not None:
        builder.add_build_id(build_id)
    builder.add_code(b"")
    return builder.finish(with_sections=True)


def tag_offset(data: bytes, tag: str) -> int:
    """The offset in the file of the first dynamic entry with this tag (its value is 8 bytes further)."""
    header = segment_header(data, _PT_DYNAMIC)
    start, _, _, size = struct.unpack_from("<4Q", data, header + 8)
    for place in range(start, start + size, 16):
        if struct.unpack_from("<Q", data, place)[0] == DT[tag]:
            return place
    raise KeyError(tag)


def tag_value(data: bytes, tag: str) -> int:
    """The value of the first dynamic entry with this tag; for a table, its address and offset in the file."""
    value: int = struct.unpack_from("<Q", data, tag_offset(data, tag) + 8)[0]
    return value


def segment_header(data: bytes, kind: int) -> int:
    """The offset of the first program header of a type (1 load, 2 dynamic, 3 interpreter, 4 note).

    In it, at 8 bytes stands the offset, at 16 the address, at 32 the size in the file, 8 bytes each.
    """
    (count,) = struct.unpack_from("<H", data, 56)
    for place in range(_HEADER, _HEADER + count * _SEGMENT, _SEGMENT):
        if struct.unpack_from("<I", data, place)[0] == kind:
            return place
    raise KeyError(kind)


def with_tag(data: bytes, tag: str, value: int) -> bytes:
    """The file with another value in the first dynamic entry with this tag."""
    return with_bytes(data, tag_offset(data, tag) + 8, struct.pack("<Q", value))


def with_bytes(data: bytes, offset: int, new: bytes) -> bytes:
    """The file with other bytes at an offset, of the same length."""
    return data[:offset] + new + data[offset + len(new) :]


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


class _Strings:
    """A string table; equal strings are stored once."""

    def __init__(self) -> None:
        self._data = bytearray(b"\0")
        self._places: dict[str, int] = {"": 0}

    def add(self, text: str) -> int:
        if text not in self._places:
            self._places[text] = len(self._data)
            self._data += _raw(text) + b"\0"
        return self._places[text]

    def data(self) -> bytes:
        return bytes(self._data)


@dataclass(slots=True)
class _Part:
    """A section and the segment that may go with it."""

    name: str
    kind: int
    data: bytes
    align: int
    entry: int
    link: str
    info: int
    segment: int
    address: int = 0


@dataclass(slots=True)
class _Builder:
    machine: str
    strings: _Strings
    kind: int = 3
    parts: list[_Part] = field(default_factory=list)

    def add(
        self,
        name: str,
        kind: str,
        data: bytes,
        *,
        align: int = 8,
        entry: int = 0,
        link: str = "",
        info: int = 0,
        segment: int = 0,
    ) -> None:
        """Append a part."""
        self.parts.append(_Part(name, _SHT[kind], data, align, entry, link, info, segment))

    def add_build_id(self, digits: str) -> None:
        note = struct.pack("<3I4s", 4, len(digits) // 2, 3, b"GNU\0") + bytes.fromhex(digits)
        note += b"\0" * (-len(note) % 4)
        self.add(".note.gnu.build-id", "note", note, segment=_PT_NOTE, align=4)

    def add_code(self, extra: bytes) -> None:
        self.add(".text", "progbits", _RETURN.get(self.machine, b"\0\0\0\0"), align=16)
        if extra:
            self.add(".rodata", "progbits", extra, align=1)

    def add_versions(
        self, defined: Sequence[str], needed: Mapping[str, Sequence[str]], numbers: Mapping[str, int]
    ) -> list[tuple[str, int | str]]:
        """The tables of versions and their tags; `defined` starts with the base one."""
        tags: list[tuple[str, int | str]] = []
        if len(defined) > 1:
            table = _defined_table(self.strings, defined)
            self.add(".gnu.version_d", "verdef", table, link=".dynstr", info=len(defined))
            tags += [("VERDEF", ".gnu.version_d"), ("VERDEFNUM", len(defined))]
        if needed:
            table = _needed_table(self.strings, needed, numbers)
            self.add(".gnu.version_r", "verneed", table, link=".dynstr", info=len(needed))
            tags += [("VERNEED", ".gnu.version_r"), ("VERNEEDNUM", len(needed))]
        return tags

    def add_dynamic(self, tags: list[tuple[str, int | str]]) -> None:
        """The dynamic table; a value that is text is the address of the section of that name."""
        self.add(".dynamic", "dynamic", b"\0" * 16 * (len(tags) + 1), entry=16, link=".dynstr", segment=_PT_DYNAMIC)
        self._place()
        places = {part.name: part.address for part in self.parts}
        data = b"".join(
            struct.pack("<2Q", DT[tag], places[value] if isinstance(value, str) else value) for tag, value in tags
        )
        self.replace(".dynamic", data + b"\0" * 16)

    def index(self, name: str) -> int:
        return next(number for number, part in enumerate(self.parts, 1) if part.name == name)

    def replace(self, name: str, data: bytes) -> None:
        part = self.parts[self.index(name) - 1]
        assert len(part.data) == len(data)
        part.data = data

    def address(self, name: str) -> int:
        self._place()
        return self.parts[self.index(name) - 1].address

    def _place(self) -> int:
        """Give every part its address; there is always room for 5 program headers, so that it does not move parts."""
        place = _HEADER + _ROOM
        for part in self.parts:
            place += -place % part.align
            part.address = place
            place += len(part.data)
        return place

    def finish(self, *, with_sections: bool) -> bytes:
        end = self._place()
        ordered = sorted((part for part in self.parts if part.segment), key=lambda part: part.segment != _PT_INTERP)
        segments = [
            struct.pack(
                "<2I6Q", part.segment, 6, part.address, part.address, part.address, len(part.data), len(part.data),
                part.align,
            )
            for part in ordered
        ]  # fmt: skip
        load = struct.pack("<2I6Q", _PT_LOAD, 7, 0, 0, 0, end, end, 0x1000)
        # gABI: an interpreter comes before every loadable segment.
        segments.insert(int(bool(ordered) and ordered[0].segment == _PT_INTERP), load)
        body = bytearray(b"".join(segments).ljust(_ROOM, b"\0"))
        for part in self.parts:
            body += b"\0" * (part.address - _HEADER - len(body)) + part.data
        names, headers = self._sections(end) if with_sections else (b"", [])
        start = end + len(names) + -(end + len(names)) % 8
        ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
        header = ident + struct.pack(
            "<2HI3QI6H", self.kind, MACHINES[self.machine], 1, 0, _HEADER, start if headers else 0, 0, _HEADER,
            _SEGMENT, len(segments), _SECTION, len(headers), len(headers) - 1 if headers else 0,
        )  # fmt: skip
        tail = names + b"\0" * (start - end - len(names)) + b"".join(headers) if headers else b""
        return header + bytes(body) + tail

    def _sections(self, end: int) -> tuple[bytes, list[bytes]]:
        names = _Strings()
        headers = [b"\0" * _SECTION]
        flags = {".text": 6, ".dynamic": 3}
        for part in self.parts:
            link = self.index(part.link) if part.link else 0
            headers.append(
                struct.pack(
                    "<2I4Q2I2Q", names.add(part.name), part.kind, flags.get(part.name, 2), part.address, part.address,
                    len(part.data), link, part.info, part.align, part.entry,
                )
            )  # fmt: skip
        own = names.add(".shstrtab")
        data = names.data()
        headers.append(struct.pack("<2I4Q2I2Q", own, 3, 0, 0, end, len(data), 0, 0, 1, 0))
        return data, headers


class _Symbols:
    """The dynamic symbols: the null one, imports, then exports in the order of their hash buckets."""

    def __init__(
        self,
        strings: _Strings,
        imports: list[str],
        exports: list[str],
        numbers: Mapping[str, int],
    ) -> None:
        self._buckets = max(1, len(exports) // 4)
        exports = sorted(exports, key=lambda name: _gnu_hash(name.partition("@")[0]) % self._buckets)
        self._all = [name.partition("@")[::2] for name in imports + exports]
        self._hidden = [False] * len(imports) + ["@" in name and "@@" not in name for name in exports]
        self._first = len(imports) + 1
        self._names = [strings.add(name) for name, _ in self._all]
        self._numbers = numbers

    def table(self, code: int, section: int) -> bytes:
        """Imports are undefined symbols; every export is a function of one return instruction at `code`."""
        records = [b"\0" * 24]
        for index, name in enumerate(self._names, 1):
            defined = index >= self._first
            info = 0x12 if defined else 0x10
            place = (section, code, 4) if defined else (0, 0, 0)
            records.append(struct.pack("<IBBHQQ", name, info, 0, *place))
        return b"".join(records)

    def versions(self) -> bytes:
        numbers = [
            (self._numbers[version.lstrip("@")] if version else 1) | (0x8000 if hidden else 0)
            for (_, version), hidden in zip(self._all, self._hidden, strict=True)
        ]
        return struct.pack(f"<{len(numbers) + 1}H", 0, *numbers)

    def sysv_hash(self) -> bytes:
        """One bucket for about four symbols; each symbol's chain entry is the next one of its bucket."""
        buckets = [0] * self._buckets
        chains = [0] * (len(self._all) + 1)
        for index, (name, _) in enumerate(self._all, 1):
            bucket = _sysv_hash(name) % len(buckets)
            chains[index], buckets[bucket] = buckets[bucket], index
        return struct.pack(f"<{2 + len(buckets) + len(chains)}I", len(buckets), len(chains), *buckets, *chains)

    def gnu_hash(self) -> bytes:
        """With a Bloom filter of one word that lets everything pass; like GNU ld, an empty table starts at 1."""
        hashes = [_gnu_hash(name) for name, _ in self._all[self._first - 1 :]]
        first = self._first if hashes else 1
        buckets = [0] * self._buckets
        words = []
        for position, value in enumerate(hashes):
            bucket = value % self._buckets
            buckets[bucket] = buckets[bucket] or first + position
            last = position + 1 == len(hashes) or hashes[position + 1] % self._buckets != bucket
            words.append(value & ~1 | last)
        head = struct.pack("<4IQ", self._buckets, first, 1, 0, 0xFFFF_FFFF_FFFF_FFFF if hashes else 0)
        return head + struct.pack(f"<{len(buckets) + len(words)}I", *buckets, *words)


def _gnu_hash(name: str) -> int:
    value = 5381
    for byte in _raw(name):
        value = (value * 33 + byte) & 0xFFFF_FFFF
    return value


def _sysv_hash(name: str) -> int:
    value = 0
    for byte in _raw(name):
        value = (value << 4) + byte
        value = (value ^ (value >> 24 & 0xF0)) & 0x0FFF_FFFF
    return value


def _version_numbers(defined: Sequence[str], needed: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Number of each version in .gnu.version: 1 is the base, then those defined, then those needed."""
    names = [*defined, *(name for names in needed.values() for name in names)]
    return {name: number for number, name in enumerate(dict.fromkeys(names), 2)}


def _defined_table(strings: _Strings, names: Sequence[str]) -> bytes:
    """One Verdef with one Verdaux for each name; the first is the base."""
    records = []
    for number, name in enumerate(names, 1):
        following = 28 if number < len(names) else 0
        flags = 1 if number == 1 else 0
        records.append(struct.pack("<4H3I", 1, flags, number, 1, _sysv_hash(name), 20, following))
        records.append(struct.pack("<2I", strings.add(name), 0))
    return b"".join(records)


def _needed_table(strings: _Strings, needed: Mapping[str, Sequence[str]], numbers: Mapping[str, int]) -> bytes:
    """One Verneed for each file, followed by its Vernaux records."""
    records = []
    for position, (file, names) in enumerate(needed.items(), 1):
        following = 16 * (len(names) + 1) if position < len(needed) else 0
        records.append(struct.pack("<2H3I", 1, len(names), strings.add(file), 16, following))
        for index, name in enumerate(names, 1):
            after = 16 if index < len(names) else 0
            records.append(struct.pack("<I2H2I", _sysv_hash(name), 0, numbers[name], strings.add(name), after))
    return b"".join(records)
