"""The bytes of one ELF file: bounded reads by offset and by virtual address, header, segments, interpreter, build-id.

The part of `content.elf` below the dynamic table. pyelftools decodes the header and the program headers, out of
windows of bytes that were cut to size before. NOT checked: alignment and protection of segments.
"""

from __future__ import annotations

import functools
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


_BITS = {b"\1": 32, b"\2": 64}
_LITTLE = {b"\1": True, b"\2": False}


@functools.lru_cache(maxsize=256)
def _shapes(bits: int, little: bool, *facts: Any) -> Any:
    """Record shapes of pyelftools for a class and order of bytes; with more facts of the header, those for its kind.

    To make them takes a hundred times as long as to use them once, and an image has thousands of ELF files.
    """
    from elftools.elf.structs import ELFStructs  # noqa: PLC0415 - keeps `imgbuild --help` fast

    shapes = ELFStructs(little_endian=little, elfclass=bits)
    shapes.create_basic_structs()
    if facts:
        shapes.create_advanced_structs(*facts)
    return shapes


def is_elf(head: bytes) -> bool:
    """Whether the first bytes of a file (at least 4) are those of an ELF file."""
    return head[:4] == b"\x7fELF"


def text_of(name: bytes) -> str:
    """The name as text; a byte that is not UTF-8 becomes a backslash, `x` and two digits."""
    return name.decode("utf-8", "backslashreplace")


@dataclass(frozen=True, slots=True)
class Segment:
    """One program header; `size` is the part in the file, in bytes."""

    kind: str | int
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

    def header(self) -> tuple[Any, Any]:
        """The ELF header and pyelftools' record shapes for this class and order of bytes."""
        head = self.read(0, min(_HEADER_BYTES, self._size), "the ELF header")
        if not is_elf(head):
            raise self.damaged("is not an ELF file", expected=b"\x7fELF", actual=head[:4])
        from elftools.common.exceptions import ELFError  # noqa: PLC0415 - keeps `imgbuild --help` fast
        from elftools.common.utils import struct_parse  # noqa: PLC0415

        bits, little = _BITS.get(head[4:5]), _LITTLE.get(head[5:6])
        if bits is None or little is None:
            raise self.damaged("has a damaged ELF header", actual=f"class and order of bytes {head[4:6].hex()}")
        try:
            header = struct_parse(_shapes(bits, little).Elf_Ehdr, io.BytesIO(head), 0)
            shapes = _shapes(bits, little, header["e_type"], header["e_machine"], header["e_ident"]["EI_OSABI"])
        except (ELFError, ValueError, LookupError, TypeError, AttributeError, AssertionError) as error:
            raise self.damaged("has a damaged ELF header", actual=error) from error
        self.order = "<" if little else ">"
        return header, shapes

    def map_segments(self, header: Any, structs: Any) -> None:
        """Read the program headers; a segment that is not wholly in the file is damage (a cut-off download)."""
        from elftools.common.exceptions import ELFError  # noqa: PLC0415
        from elftools.common.utils import struct_parse  # noqa: PLC0415

        count, size = header["e_phnum"], structs.Elf_Phdr.sizeof()
        if count > _SEGMENTS:
            raise self.damaged("has too many program headers", expected=f"at most {_SEGMENTS}", actual=count)
        if count and header["e_phentsize"] != size:
            raise self.damaged("has program headers of a wrong size", expected=size, actual=header["e_phentsize"])
        table = io.BytesIO(self.read(header["e_phoff"], count * size, "the table of program headers"))
        try:
            records = [struct_parse(structs.Elf_Phdr, table, index * size) for index in range(count)]
        except (ELFError, ValueError, LookupError, TypeError) as error:
            raise self.damaged("has damaged program headers", actual=error) from error
        self._segments = tuple(
            Segment(entry["p_type"], entry["p_offset"], entry["p_vaddr"], entry["p_filesz"]) for entry in records
        )
        self._loads = tuple(segment for segment in self._segments if segment.kind == "PT_LOAD")
        for segment in self._loads:
            if segment.offset + segment.size > self._size:
                raise self.damaged(
                    "is shorter than its segments",
                    expected=f"at least {segment.offset + segment.size} bytes",
                    actual=f"{self._size} bytes",
                    hint="The file was cut off, or is the debug half of a stripped file.",
                )

    def segments(self, kind: str) -> list[Segment]:
        """The segments of one type (`PT_NOTE`), in the order of the table."""
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
        for segment in self.segments("PT_INTERP"):
            if segment.size > self.limits.path_bytes:
                raise self.damaged("names an interpreter that is too long", actual=f"{segment.size} bytes")
            path, end, _ = self.read(segment.offset, segment.size, "the interpreter's path").partition(b"\0")
            if not end:
                raise self.damaged("names an interpreter without an end")
            return text_of(path)
        return None

    def build_id(self) -> str | None:
        """The first build-id among the notes (LSB Core, Note Sections); later or farther notes are not looked at."""
        for segment in self.segments("PT_NOTE")[:_NOTE_SEGMENTS]:
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
