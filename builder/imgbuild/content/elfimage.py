"""The bytes of one ELF file: bounded reads by offset and by virtual address, header, segments, interpreter, build-id.

The part of `content.elf` below the dynamic table. Records are decoded out of windows of bytes that were cut to size
before. NOT checked: alignment and protection of segments.
"""

from __future__ import annotations

import io
import struct
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from imgbuild.config import KIB
from imgbuild.errors import ArchiveError

if TYPE_CHECKING:
    from imgbuild.config import Limits

_HEADER_BYTES = 64
"""bytes of the ELF64 header, the longer one."""
_SEGMENTS = 256
"""program headers of one library or program; real ones have about 15 (core files have more and are not read)."""
_NOTE_SEGMENTS = 16
"""note segments in which the build-id is looked for; real files have at most 3."""
_NOTE_BYTES = 64 * KIB
"""bytes at the start of each note segment in which the build-id is looked for."""
_BUILD_ID_BYTES = 64
"""bytes of one build-id; linkers write 8 to 32."""
_NT_GNU_BUILD_ID = 3


_CLASSES = {b"\1": 32, b"\2": 64}
_ORDERS = {b"\1": "<", b"\2": ">"}
_HEADERS = {32: "16xHHI3IIHHH6x", 64: "16xHHI3QIHHH6x"}
"""Elf_Ehdr (gABI, "ELF Header"): the identification is looked at before, the section headers are not."""
_SEGMENT_FORMS = {32: "8I", 64: "2I6Q"}
"""Elf_Phdr (gABI, "Program Header")."""
_PT_LOAD, PT_DYNAMIC, _PT_INTERP, _PT_NOTE = 1, 2, 3, 4


def is_elf(head: bytes) -> bool:
    """Whether the first bytes of a file (at least 4) are those of an ELF file."""
    return head[:4] == b"\x7fELF"


def text_of(name: bytes) -> str:
    """The name as text; a byte that is not UTF-8 becomes a backslash, `x` and two digits."""
    return name.decode("utf-8", "backslashreplace")


@dataclass(frozen=True, slots=True)
class Header:
    """The ELF header; `kind` is e_type, and the table that of program headers, at a file offset."""

    bits: int
    kind: int
    machine: int
    table: int
    entry_size: int
    entries: int


@dataclass(frozen=True, slots=True)
class Segment:
    """One program header; `size` is the part in the file, in bytes."""

    kind: int
    offset: int
    address: int
    size: int


class Image:
    """A file that is read by offset or, once its segments are known, by virtual address; every read is bounded.

    All methods raise `ArchiveError` about the subject.
    """

    def __init__(self, data: BinaryIO, subject: str, limits: Limits) -> None:
        self._data = data
        self._subject = subject
        self._size = data.seek(0, io.SEEK_END)
        self._segments: tuple[Segment, ...] = ()
        self._loads: tuple[Segment, ...] = ()
        self.limits = limits
        self.order = "<"

    def damaged(self, problem: str, **details: Any) -> ArchiveError:
        """The error about this file, to be raised."""
        return ArchiveError(self._subject, problem, **details)

    def read(self, offset: int, length: int, what: str) -> bytes:
        """Exactly `length` bytes at a file offset."""
        if offset < 0 or length < 0 or offset + length > self._size:
            raise self.damaged(
                f"{what} reaches past the end of the file",
                expected=f"at most {self._size} bytes",
                actual=offset + length,
            )
        self._data.seek(offset)
        pieces = []
        while length:
            piece = self._data.read(length)
            if not piece:
                raise self.damaged(f"{what} ends early")
            pieces.append(piece)
            length -= len(piece)
        return b"".join(pieces)

    def header(self) -> Header:
        """The ELF header; from here on integers are read in the order of bytes that it says."""
        head = self.read(0, min(_HEADER_BYTES, self._size), "the ELF header")
        if not is_elf(head):
            raise self.damaged("is not an ELF file", expected=b"\x7fELF", actual=head[:4])
        bits, order = _CLASSES.get(head[4:5]), _ORDERS.get(head[5:6])
        if bits is None or order is None:
            raise self.damaged("has a damaged ELF header", actual=f"class and order of bytes {head[4:6].hex()}")
        form = order + _HEADERS[bits]
        if len(head) < struct.calcsize(form):
            raise self.damaged("has a damaged ELF header", actual=f"{len(head)} bytes", expected=struct.calcsize(form))
        self.order = order
        kind, machine, _, _, table, _, _, _, size, count = struct.unpack_from(form, head)
        return Header(bits=bits, kind=kind, machine=machine, table=table, entry_size=size, entries=count)

    def map_segments(self, header: Header) -> None:
        """Read the program headers; a segment that is not wholly in the file is damage (a cut-off download)."""
        form = self.order + _SEGMENT_FORMS[header.bits]
        count, size = header.entries, struct.calcsize(form)
        if count > _SEGMENTS:
            raise self.damaged("has too many program headers", expected=f"at most {_SEGMENTS}", actual=count)
        if count and header.entry_size != size:
            raise self.damaged("has program headers of a wrong size", expected=size, actual=header.entry_size)
        table = self.read(header.table, count * size, "the table of program headers")
        # Flags stand before the offset in ELF64, and behind the sizes in ELF32.
        first = 1 if header.bits == 32 else 2  # noqa: PLR2004
        self._segments = tuple(
            Segment(entry[0], entry[first], entry[first + 1], entry[first + 3])
            for entry in struct.iter_unpack(form, table)
        )
        self._loads = tuple(segment for segment in self._segments if segment.kind == _PT_LOAD)
        for segment in self._loads:
            if segment.offset + segment.size > self._size:
                raise self.damaged(
                    "is shorter than its segments",
                    expected=f"at least {segment.offset + segment.size} bytes",
                    actual=f"{self._size} bytes",
                    hint="The file was cut off, or is the debug half of a stripped file.",
                )

    def segments(self, kind: int) -> list[Segment]:
        """The segments of one type (`PT_DYNAMIC`), in the order of the table."""
        return [segment for segment in self._segments if segment.kind == kind]

    def locate(self, address: int, what: str) -> tuple[int, int]:
        """File offset of a virtual address, and the bytes from there to the end of its segment.

        Where segments overlap the last one counts, as ld.so maps them one over the other.
        """
        for segment in reversed(self._loads):
            start = address - segment.address
            if 0 <= start < segment.size:
                return segment.offset + start, segment.size - start
        raise self.damaged(f"{what} lies outside every loaded segment", actual=f"address {address:#x}")

    def at(self, address: int, length: int, what: str) -> bytes:
        """Exactly `length` bytes at a virtual address, out of one segment."""
        offset, available = self.locate(address, what)
        if length > available:
            raise self.damaged(f"{what} reaches past its segment", expected=f"at most {available} bytes", actual=length)
        return self.read(offset, length, what)

    def unpack(self, form: str, address: int, what: str) -> tuple[int, ...]:
        """One record of integers at a virtual address."""
        form = self.order + form
        return struct.unpack(form, self.at(address, struct.calcsize(form), what))

    def words(self, address: int, count: int, what: str) -> array[int]:
        """`count` 32-bit words at a virtual address."""
        words = array("I", self.at(address, 4 * count, what))
        if (self.order == "<") != (struct.pack("=H", 1) == b"\x01\x00"):
            words.byteswap()
        return words

    def interpreter(self) -> str | None:
        """The path in PT_INTERP, found by its offset as the kernel does."""
        for segment in self.segments(_PT_INTERP):
            if segment.size > self.limits.path_bytes:
                raise self.damaged("names an interpreter that is too long", actual=f"{segment.size} bytes")
            path, end, _ = self.read(segment.offset, segment.size, "the interpreter's path").partition(b"\0")
            if not end:
                raise self.damaged("names an interpreter without an end")
            return text_of(path)
        return None

    def build_id(self) -> str | None:
        """The first build-id among the notes (LSB Core, Note Sections); later or farther notes are not looked at."""
        for segment in self.segments(_PT_NOTE)[:_NOTE_SEGMENTS]:
            notes = self.read(segment.offset, min(segment.size, _NOTE_BYTES), "a note segment")
            place = 0
            while place + 12 <= len(notes):
                name_size, size, kind = struct.unpack_from(self.order + "3I", notes, place)
                start = place + 12 + (name_size + 3 & ~3)
                if kind == _NT_GNU_BUILD_ID and notes[place + 12 : place + 12 + name_size] == b"GNU\0":
                    if not 0 < size <= min(_BUILD_ID_BYTES, len(notes) - start):
                        raise self.damaged("has a build-id of a wrong size", actual=f"{size} bytes")
                    return notes[start : start + size].hex()
                place = start + (size + 3 & ~3)
        return None
