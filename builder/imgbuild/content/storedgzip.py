"""A gzip stream made of stored blocks: a compressed media type whose bytes no compressor can ever change (C31).

Registries and engines know layers as `tar+gzip`. What a compressor makes of a tar depends on its version, its
level and its buffer sizes; what this module makes of it depends on the tar alone. It follows RFC 1952 (gzip) and
RFC 1951 section 3.2.4 (stored blocks) and is part of layer format 1, so its output must never change:

    1f 8b 08 00  00000000  00 ff      no flags, no time, no name, operating system "unknown"
    {00|01} LEN NLEN data ...         blocks of exactly 65,535 bytes; only the last, marked 01, may be shorter
    CRC-32 ISIZE                      of the content, little-endian, ISIZE modulo 2^32

An empty input is one empty final block. An input whose length is a multiple of 65,535 ends with a full final block.
"""

from __future__ import annotations

import struct
import zlib
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BLOCK_BYTES = 65_535
"""bytes of one stored block; the largest that the 16-bit LEN can say (RFC 1951, 3.2.4)."""

_BATCH_BYTES = 16 * BLOCK_BYTES
"""bytes of content per call of the sink; large enough to make calls rare, small enough for a processor's cache."""

_HEADER = bytes.fromhex("1f8b08000000000000ff")
_BLOCK = struct.Struct("<BHH")
_TRAILER = struct.Struct("<II")


class StoredGzipWriter:
    """Wraps what is written to it in stored blocks and hands the result to a sink, in order.

    Args:
        sink: called with pieces of the gzip stream, each at most about 1 MiB and never changed afterwards.

    Holds at most about 1 MiB beside the piece being written. Without `finish` the stream has no final block and no
    trailer, so no reader takes it for a whole one. Raises nothing of its own; what the sink raises passes through.
    """

    def __init__(self, sink: Callable[[bytes], object]) -> None:
        self._sink = sink
        self._pending: deque[memoryview] = deque()
        self._held = 0
        self._crc = 0
        self._length = 0
        self._parts: list[bytes | memoryview] = [_HEADER]

    def write(self, data: bytes) -> None:
        """Append content. `data` may be of any length, and is referred to until it has gone to the sink."""
        if not data:
            return
        self._crc = zlib.crc32(data, self._crc)
        self._length += len(data)
        self._pending.append(memoryview(data))
        self._held += len(data)
        # Strictly more than a batch: the byte left over proves that no block of this batch is the final one.
        while self._held > _BATCH_BYTES:
            for _ in range(_BATCH_BYTES // BLOCK_BYTES):
                self._block(BLOCK_BYTES, final=False)
            self._flush()

    def finish(self) -> None:
        """Write the final block and the trailer. Nothing may be written afterwards."""
        while self._held > BLOCK_BYTES:
            self._block(BLOCK_BYTES, final=False)
        self._block(self._held, final=True)
        self._parts.append(_TRAILER.pack(self._crc, self._length & 0xFFFF_FFFF))
        self._flush()

    def _block(self, length: int, *, final: bool) -> None:
        self._parts.append(_BLOCK.pack(final, length, length ^ 0xFFFF))
        self._parts.extend(self._take(length))
        self._held -= length

    def _take(self, length: int) -> Iterator[memoryview]:
        while length:
            piece = self._pending.popleft()
            if len(piece) > length:
                self._pending.appendleft(piece[length:])
                piece = piece[:length]
            length -= len(piece)
            yield piece

    def _flush(self) -> None:
        # The one copy on the way: the sink may keep what it gets, so it must get bytes of its own.
        self._sink(b"".join(self._parts))
        self._parts = []
