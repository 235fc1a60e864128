"""Writes fatbins as NVIDIA's `fatbinary` does: containers of entries with code for one GPU each.

Compared with what `fatbinary` 13.5 writes for sm_75 to sm_121a: the fields that it sets are the same, but for those
whose meaning is not known, which are zero here. It checks nothing: it can also write nonsense.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

PTX, MACHINE_CODE, JOINED = 1, 2, 256
LETTERS = {"": 0, "a": 0x10_0000, "f": 0x20_0000}
_LINUX_64 = 0x11
MAGIC = 0xBA55ED50


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry; `header` are the bytes of its header, what is more than 64 is options of the compiler."""

    kind: int = MACHINE_CODE
    architecture: int = 121
    letter: str = ""
    code: bytes = b"\0" * 24
    header: int = 64
    flags: int = _LINUX_64

    def data(self) -> bytes:
        """Its bytes."""
        flags = self.flags | LETTERS[self.letter]
        first = struct.pack("<HHIQII", self.kind, 0x101, self.header, len(self.code), len(self.code), 0)
        second = struct.pack("<HHIIIQQQ", 8, 1, self.architecture, 0, 0, flags, 0, 0)
        return (first + second).ljust(self.header, b"\0") + self.code


def fatbin(*entries: Entry) -> bytes:
    """A container."""
    data = b"".join(entry.data() for entry in entries)
    return struct.pack("<IHHQ", MAGIC, 1, 16, len(data)) + data
