"""Large layers that are made while they are read, and a program that inventories one of them.

`python -m tests.support.large_layers NAME` prints one JSON object: entries, bytes read, seconds and the peak of its
memory in bytes, after the scan and, with `--tree`, after the inventory was dumped, loaded and built into a tree.
"""

from __future__ import annotations

import gc
import hashlib
import json
import resource
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from imgbuild.config import GIB, MIB
from imgbuild.content.inventory import Inventory, scan_layer
from imgbuild.content.tree import Tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

ENTRIES = 200_000
_PATTERN = hashlib.shake_128(b"pattern").digest(MIB)
_FILES_IN_A_FOLDER = 500


class Pieces:
    """A readable over pieces that are made when they are asked for."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._rest = memoryview(b"")

    def read(self, size: int, /) -> bytes:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return b""
            self._rest = memoryview(piece)
        data, self._rest = self._rest[:size], self._rest[size:]
        return data.tobytes()


def one_large_file(head: bytes = b"") -> Iterator[bytes]:
    """A plain layer with one file of 1 GiB, which begins with `head`."""
    yield _header(b"opt/model.bin", GIB)
    yield head + _PATTERN[len(head) :]
    for _ in range(GIB // MIB - 1):
        yield _PATTERN
    yield bytes(1024)


def many_entries() -> Iterator[bytes]:
    """A stored gzip layer with 200,000 entries, shaped like site-packages."""
    compressor = zlib.compressobj(0, wbits=31)
    block: list[bytes] = []
    for number in range(ENTRIES):
        folder = b"opt/venv/lib/python3.12/site-packages/package_%05d/" % (number // _FILES_IN_A_FOLDER)
        if number % _FILES_IN_A_FOLDER == 0:
            block.append(_header(folder, 0, b"5"))
            yield compressor.compress(b"".join(block))
            block.clear()
        else:
            block += (_header(b"%smodule_%06d.py" % (folder, number), 9), b"%09d" % number, bytes(503))
    yield compressor.compress(b"".join(block) + bytes(1024)) + compressor.flush()


LAYERS: dict[str, Callable[[], Iterator[bytes]]] = {
    "file": one_large_file,
    # A library is spooled to disk, since its tables are read by seeking; this one is damaged behind its magic.
    "library": lambda: one_large_file(b"\x7fELF\x02\x01\x01" + bytes(9)),
    "entries": many_entries,
}


def _header(name: bytes, size: int, flag: bytes = b"0") -> bytes:
    block = name.ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2 + b"%011o\0" % size + b"14524770400\0"
    block += b" " * 8 + flag + bytes(100) + b"ustar\x0000" + bytes(64) + b"0000000\0" * 2 + bytes(167)
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def _peak() -> int:
    """Bytes of the largest resident set so far.

    Linux counts the memory of the process that started this one into `ru_maxrss` (it is kept over exec), so there the
    mark of the address space itself is taken.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def measure(name: str, *, tree: bool) -> dict[str, float]:
    """Inventory one of the layers, and what it took."""
    start = time.monotonic()
    scan = scan_layer(Pieces(LAYERS[name]()), subject=name, spool=tempfile.TemporaryFile, capture=lambda *_: None)
    found: dict[str, float] = {
        "entries": len(scan.inventory.entries),
        "bytes": scan.inventory.uncompressed_size,
        "scan_seconds": time.monotonic() - start,
        "scan_peak": _peak(),
    }
    if tree:
        raw = scan.inventory.dump()
        del scan
        gc.collect()
        start = time.monotonic()
        inventory = Inventory.load(raw, subject=name)
        found |= {"document_bytes": len(raw), "load_seconds": time.monotonic() - start, "load_peak": _peak()}
        del raw
        start = time.monotonic()
        merged = Tree()
        merged.apply(inventory, 0)
        found |= {"tree_seconds": time.monotonic() - start, "tree_peak": _peak()}
    return found


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], tree="--tree" in sys.argv[2:])))
