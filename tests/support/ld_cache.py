"""`ld.so.cache` as ldconfig writes it (glibc 2.32 and later), for trees that no ldconfig can be run in."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

FLAGS = {"aarch64": 0x0A03, "x86_64": 0x0303}
_NEW = b"glibc-ld.so.cache1.1"
_HEADER, _ENTRY = 48, 24
_HWCAPS = 1 << 62


def ld_cache(
    entries: Sequence[tuple[str, str]],
    *,
    machine: str = "aarch64",
    conditional: Sequence[tuple[str, str]] = (),
    old: bool = False,
) -> bytes:
    """A cache of names and paths; those of `conditional` are for some processors and stand first.

    With `old`, the table of the format before stands in front, as ldconfig wrote it until 2020.
    """
    rows = [(*entry, _HWCAPS) for entry in conditional] + [(*entry, 0) for entry in entries]
    texts, places = b"", {}
    start = _HEADER + len(rows) * _ENTRY
    for text in dict.fromkeys(text for row in rows for text in row[:2]):
        places[text] = start + len(texts)
        texts += text.encode("utf-8", "surrogateescape") + b"\0"
    table = b"".join(struct.pack("<iIIIQ", FLAGS[machine], places[row[0]], places[row[1]], 0, row[2]) for row in rows)
    body = _NEW + struct.pack("<IIB3xI12x", len(rows), len(texts), 2, 0) + table + texts
    if not old:
        return body
    head = b"ld.so-1.7.0\0" + struct.pack("<I", 1) + struct.pack("<iII", 3, 0, 0)
    return head + bytes(-len(head) % 8) + body
