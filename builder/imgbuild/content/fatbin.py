"""For which GPUs a library has code: the entries of the fatbins in its bytes.

`nvcc` puts the code for several GPUs into one container, a fatbin, and a library has many of them one behind the other
(sections `.nv_fatbin`, and `__nv_relfatbin` for code before it was linked). The layout is not published. What is read
here was compared with fatbins that NVIDIA's `fatbinary` 13.5 wrote for each kind of GPU, and with what its `cuobjdump`
lists of NCCL 2.30.7. All numbers are little-endian.

    container  magic 50 ed 55 ba, u16 version 1, u16 bytes of this header (16), u64 bytes of the entries
    entry      u16 kind, u16 version, u32 bytes of this header (64 at least), u64 bytes of the code that follows it;
               at 28 u32 number of the architecture, at 40 u64 flags; the next entry stands behind the code

Kind 1 is PTX (`compute_120`), kind 2 machine code (`sm_120`). The flag 0x100000 stands for the letter `a` behind the
number, 0x200000 for `f`. Entries of other kinds are counted and not named: 256 is several objects joined
(`fatbinary --concat`).

Containers are found by their first eight bytes, wherever they are: no section header is asked, which may be stripped
and may lie. NOT checked: the code, that it is for the architecture that its entry names, and that anything loads it.
"""

from __future__ import annotations

import io
import struct
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from imgbuild.content.elftexts import holds

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEAD = b"\x50\xed\x55\xba\x01\x00\x10\x00"
"""Magic, version 1, and 16 bytes of header."""
_CONTAINER_BYTES = 16
_ENTRY = struct.Struct("<HHIQ12xI8xQ")
"""Kind, version, bytes of the header, bytes of the code, architecture, flags."""
_ENTRY_BYTES = 64
"""bytes that the header of each entry has at least; what follows are options of the compiler and a name."""
_ENTRY_HEADER_BYTES = 65_536
"""bytes of the header of one entry; 128 is the most that was seen."""
_CONTAINERS = 20_000
"""containers of one file; NCCL has 166, the largest known library 2,775."""
_ENTRIES = 200_000
"""entries of one file; NCCL has 1,129. So many take about a second."""
_KINDS = {1: "compute", 2: "sm"}
_LETTERS = {0: "", 0x10_0000: "a", 0x20_0000: "f"}
_LETTER_BITS = 0x30_0000
_ARCHITECTURES = range(10, 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuObject:
    """One kind of GPU code in a file: its name as `nvcc` takes it (`sm_121`, `compute_121`), and how often it is there.

    `sm` is machine code; `compute` is PTX, from which a driver makes code for newer GPUs, too.
    """

    name: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCode:
    """The GPU code of one file.

    Attributes:
        fatbins: containers that were read whole.
        objects: by number, `sm` before `compute`.
        problem: why that may not be all; None where all that was found could be read.
    """

    fatbins: int = 0
    objects: tuple[GpuObject, ...] = ()
    problem: str | None = None


class Fatbins:
    """Where fatbins may begin, from the pieces of a file; what is there is read after that, by seeking."""

    def __init__(self) -> None:
        self._places: list[int] = []
        self._tail = b""
        self._count = 0

    def update(self, piece: bytes) -> None:
        """The next piece, of any length."""
        # The joint first, so that a long piece is searched where it lies.
        rest = len(_HEAD) - 1
        joint = self._tail + piece[:rest]
        self._search(joint, self._count - len(self._tail))
        self._search(piece, self._count)
        self._count += len(piece)
        self._tail = (self._tail + piece)[-rest:] if len(piece) < rest else piece[-rest:]

    def finish(self, file: BinaryIO) -> GpuCode:
        """Read the containers of the file whose pieces these were; its position is moved.

        A container inside of another one's code is passed over. Of more than 20,000 places the first are looked at.
        """
        size = file.seek(0, io.SEEK_END)
        walk = _Walk(file, size)
        fatbins, end, problem = 0, 0, None
        for place in sorted(set(self._places)):
            if place < end:
                continue
            try:
                end = walk.container(place)
            except _UnsoundError as error:
                problem = problem or f"the fatbin at byte {place} {error}"
                continue
            fatbins += 1
        if len(self._places) >= _CONTAINERS:
            problem = problem or f"there are more than {_CONTAINERS} places where a fatbin may begin"
        return GpuCode(fatbins=fatbins, objects=tuple(walk.objects()), problem=problem or walk.unknown())

    def _search(self, data: bytes, start: int) -> None:
        if not holds(data, _HEAD):
            return
        place = data.find(_HEAD)
        while place >= 0 and len(self._places) < _CONTAINERS:
            self._places.append(start + place)
            place = data.find(_HEAD, place + len(_HEAD))


class _UnsoundError(Exception):
    """Why a container cannot be read, as a clause about it."""


class _Walk:
    """Goes through the entries of containers, and counts them."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._size = size
        self._left = _ENTRIES
        self._found: Counter[tuple[int, str, str]] = Counter()
        self._others: Counter[int] = Counter()

    def container(self, place: int) -> int:
        """Read one container; returns where it ends. Its entries count only if all of them can be read."""
        length = int.from_bytes(self._read(place, _CONTAINER_BYTES)[len(_HEAD) :], "little")
        here, end = place + _CONTAINER_BYTES, place + _CONTAINER_BYTES + length
        if end > self._size:
            raise _UnsoundError("reaches past the end of the file")
        found: Counter[tuple[int, str, str]] = Counter()
        others: Counter[int] = Counter()
        while here < end:
            if not self._left:
                raise _UnsoundError(f"is behind {_ENTRIES} entries, which is the most that are read")
            self._left -= 1
            if end - here < _ENTRY_BYTES:
                raise _UnsoundError("has an entry that reaches past its end")
            kind, _, header, code, architecture, flags = _ENTRY.unpack_from(self._read(here, _ENTRY_BYTES))
            if not _ENTRY_BYTES <= header <= _ENTRY_HEADER_BYTES or header + code > end - here:
                raise _UnsoundError("has an entry that reaches past its end")
            letter = _LETTERS.get(flags & _LETTER_BITS)
            if kind not in _KINDS:
                others[kind] += 1
            elif architecture not in _ARCHITECTURES or letter is None:
                raise _UnsoundError(f"has an entry for no known architecture ({architecture}, flags {flags:#x})")
            else:
                found[architecture, letter, _KINDS[kind]] += 1
            here += header + code
        self._found += found
        self._others += others
        return end

    def objects(self) -> Iterator[GpuObject]:
        """What was found, by number; `sm` before `compute`."""
        for kind in ("sm", "compute"):
            for (number, letter, name), count in sorted(self._found.items()):
                if name == kind:
                    yield GpuObject(name=f"{name}_{number}{letter}", count=count)

    def unknown(self) -> str | None:
        """What was counted and cannot be named."""
        if not self._others:
            return None
        kinds = ", ".join(f"{count} of kind {kind}" for kind, count in sorted(self._others.items())[:5])
        return f"it has entries that are neither machine code nor PTX: {kinds}"

    def _read(self, place: int, length: int) -> bytes:
        self._file.seek(place)
        data = self._file.read(length)
        if len(data) < length:
            raise _UnsoundError("reaches past the end of the file")
        return data
