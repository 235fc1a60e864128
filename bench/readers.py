"""How fast the readers of layers and ELF files are on this machine: `python -m bench.readers`, from the repository.

Prints the best of five runs of each, in processor time, because other work may share the machine. A figure is never a
test: nothing fails here, and nothing in the suite asserts one.
"""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import time
import zlib
from typing import TYPE_CHECKING

from imgbuild.config import MIB
from imgbuild.content.compression import decompress
from imgbuild.content.elf import read_elf
from imgbuild.content.tarstream import TarReader
from imgbuild.digest import chunks

from tests.support.elf_builder import shared_object

if TYPE_CHECKING:
    from collections.abc import Callable

RUNS = 5
STORED_BYTES = 200 * MIB
ENTRIES = 200_000
SYMBOLS = 100_000
MEMBERS = 100_000
LIBRARY_BYTES = 50_000_000


def stored_gzip() -> bytes:
    compressor = zlib.compressobj(0, wbits=31)
    return compressor.compress(os.urandom(MIB) * (STORED_BYTES // MIB)) + compressor.flush()


def entries_tar() -> bytes:
    """Folders and empty files, alternating; the headers of 2,000 entries, repeated."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for number in range(1000):
            folder = tarfile.TarInfo(f"usr/share/doc/package-{number}/")
            folder.type = tarfile.DIRTYPE
            archive.addfile(folder)
            archive.addfile(tarfile.TarInfo(f"usr/lib/{number}"))
        end = out.tell()
    return out.getvalue()[:end] * (ENTRIES // 2000) + bytes(1024)


def many_symbols() -> bytes:
    half = SYMBOLS // 2
    exports = [f"_ZN5torch8autograd9generated{number}EvPKcS2_" for number in range(half)]
    return shared_object(exports=exports, imports=[f"import{number}" for number in range(half)])


def best(run: Callable[[], object]) -> float:
    """Seconds of processor time."""
    times = []
    for _ in range(RUNS):
        started = time.process_time()
        run()
        times.append(time.process_time() - started)
    return max(min(times), 1e-9)


def unpack(data: bytes) -> int:
    return sum(map(len, chunks(decompress(io.BytesIO(data), subject="bench"))))


def main() -> None:
    stored, tar = stored_gzip(), entries_tar()
    members = gzip.compress(b"a", 1) * MEMBERS
    symbols, library = many_symbols(), shared_object(soname="liblarge.so", extra=b"x" * LIBRARY_BYTES)
    rows = (
        ("stored gzip", lambda: unpack(stored), STORED_BYTES / 1e6, "MB/s"),
        ("gzip of one-byte members", lambda: unpack(members), MEMBERS, "members/s"),
        ("tar entries", lambda: sum(1 for _ in TarReader(io.BytesIO(tar), subject="bench")), ENTRIES, "entries/s"),
        ("ELF symbols", lambda: read_elf(io.BytesIO(symbols), subject="bench"), SYMBOLS, "symbols/s"),
        ("ELF files of 50 MB", lambda: read_elf(io.BytesIO(library), subject="bench"), 1, "files/s"),
    )
    for name, run, amount, unit in rows:
        seconds = best(run)
        print(f"{name:<26}{seconds * 1000:>10.1f} ms{amount / seconds:>16,.0f} {unit}")


if __name__ == "__main__":
    main()
