"""The five layers of the stand-in base, from the bottom up. The module `system` has layer 0."""

from __future__ import annotations

import base64
import hashlib
import struct
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from imgbuild.content.packages import RecordRow, encoded_hash, parse_record
from imgbuild.content.wheel import open_archive
from imgbuild.digest import Digest, VerifiedReader
from imgbuild.errors import ArchiveError

from tests.standin import system
from tests.standin.stack import EPOCH, Layer, LayerBuilder, Stack

if TYPE_CHECKING:
    import zipfile
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from imgbuild.digest import Readable

VENV = "opt/sglang"
SITE = f"{VENV}/lib/python3.12/site-packages"
SOURCES = "sgl-workspace/sglang/python"
STALE_BYTECODE = f"{SOURCES}/sglang/srt/utils/__pycache__/auth.cpython-312.pyc"
_PYTHON_3_12 = struct.pack("<H", 3531) + b"\r\n"
"""The magic number of CPython 3.12's bytecode (PEP 3147, PEP 552)."""
_CODE = b"N"
"""A marshalled None: a body that is valid, and no code of anybody's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """Content of one file of an open wheel, checked against its RECORD row while it is read."""

    archive: zipfile.ZipFile
    name: str
    size: int
    sha256: str

    @contextmanager
    def open(self) -> Iterator[Readable]:
        """A reader of the unpacked bytes; the archive must still be open."""
        with self.archive.open(self.name) as stream:
            yield VerifiedReader(stream, Digest("sha256", self.sha256), self.size, subject=self.name)


class Wheel:
    """An open wheel with its RECORD."""

    def __init__(self, archive: zipfile.ZipFile, *, subject: str) -> None:
        self._archive = archive
        records = [name for name in archive.namelist() if name.endswith(".dist-info/RECORD")]
        if len(records) != 1:
            raise ArchiveError(subject, "has no single RECORD", actual=f"{len(records)} of them")
        self.record_name = records[0]
        rows = parse_record(archive.read(self.record_name), site=b"")
        self.rows = tuple(row for row in rows if row.path.decode() != self.record_name)
        if {row.path.decode() for row in self.rows} | {self.record_name} != set(archive.namelist()):
            raise ArchiveError(subject, "has a RECORD that does not list its members", where=self.record_name)

    def member(self, row: RecordRow) -> Member:
        """The content of a row; an `ArchiveError` for a row without hash or size."""
        if row.sha256 is None or row.size is None:
            raise ArchiveError(self.record_name, "has a row without hash or size", actual=row.path.decode())
        return Member(archive=self._archive, name=row.path.decode(), size=row.size, sha256=row.sha256)


@contextmanager
def open_wheel(path: Path, *, subject: str) -> Iterator[Wheel]:
    """Open a wheel for as long as its contents are read; its own digest is checked by whoever fetched it."""
    with path.open("rb") as file, open_archive(file, subject=subject) as archive:
        yield Wheel(archive, subject=subject)


def all_layers(parts: Mapping[str, bytes], nccl: Wheel, sglang: Wheel) -> tuple[Layer, ...]:
    """The layers; contents are read when they are written, while the wheels are still open."""
    stack = Stack()
    return (
        stack.layer("standin: system files", lambda layer: system.fill(layer, parts)),
        stack.layer("standin: site-packages", lambda layer: _site_packages(layer, nccl)),
        stack.layer("standin: sources of SGLang", lambda layer: _sources(layer, sglang)),
        stack.layer("standin: consumers of NCCL", lambda layer: _consumers(layer, parts)),
        stack.layer("standin: later changes", _later),
    )


def _site_packages(layer: LayerBuilder, nccl: Wheel) -> None:
    layer.directory(SITE, mtime=EPOCH + 7_200)
    layer.symlink(f"{VENV}/bin/python", "python3")
    layer.symlink(f"{VENV}/bin/python3", "python3.12")
    layer.symlink(f"{VENV}/bin/python3.12", "/usr/bin/python3.12")
    layer.file(f"{VENV}/pyvenv.cfg", "home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.12.3\n")
    rows = []
    for row in nccl.rows:
        member = nccl.member(row)
        layer.file(f"{SITE}/{member.name}", member)
        rows.append((member.name, encoded_hash(member.sha256), str(member.size)))
    folder = nccl.record_name.removesuffix("/RECORD")
    _pip_record(layer, folder, rows)
    _helpers(layer)


def _helpers(layer: LayerBuilder) -> None:
    """A distribution whose RECORD is wrong from the start, as pip's own rewriting of scripts makes it (case P70)."""
    shipped = b"#!python\nimport sys\n\nimport standin_helpers\n\nsys.exit(standin_helpers.main())\n"
    installed = shipped.replace(b"#!python\n", f"#!/{VENV}/bin/python3\n".encode(), 1)
    module = b'"""Nothing that helps."""\n\n\ndef main() -> int:\n    return 0\n'
    layer.file(f"{VENV}/bin/standin-helper", installed, mode=0o755)
    rows = [("../../../bin/standin-helper", _hash(shipped), str(len(shipped)))]
    _distribution(layer, "standin_helpers", "1.0.0", {"standin_helpers/__init__.py": module}, rows=rows)


def _sources(layer: LayerBuilder, sglang: Wheel) -> None:
    layer.directory(f"{SOURCES}/sglang/srt/utils", mtime=EPOCH + 10_800)
    source_size = 0
    for row in sglang.rows:
        member = sglang.member(row)
        if member.name.startswith("sglang/"):
            path = f"{SOURCES}/{member.name}"
            layer.file(path, member)
            if path.endswith("/srt/utils/auth.py"):
                source_size = member.size
    # Time and size are those of auth.py, so Python takes this in its place. A step that changes auth.py must drop it: a
    # change of the same size under the same epoch would never run (case P57).
    layer.file(STALE_BYTECODE, _PYTHON_3_12 + struct.pack("<III", 0, EPOCH, source_size) + _CODE)


def _consumers(layer: LayerBuilder, parts: Mapping[str, bytes]) -> None:
    torch = {
        "torch/__init__.py": b"from .version import __version__ as __version__\n",
        "torch/version.py": b"__version__ = '2.13.0+standin'\ncuda = '13.0'\n",
        "torch/_C.cpython-312-aarch64-linux-gnu.so": parts["_C.so"],
        "torch/lib/libtorch_cuda.so": parts["libtorch_cuda.so"],
        "torch/lib/libtorch_python.so": parts["libtorch_python.so"],
    }
    requires = ('nvidia-nccl-cu13==2.29.7; platform_system == "Linux"',)
    _distribution(layer, "torch", "2.13.0+standin", torch, requires=requires, tag="cp312-cp312-manylinux_2_28_aarch64")
    deep_ep = {
        "deep_ep/__init__.py": b'"""A stand-in for DeepEP."""\n',
        "deep_ep/libdeep_ep.so": parts["libdeep_ep.so"],
    }
    _distribution(
        layer, "deep_ep", "1.2.1+standin", deep_ep, requires=("torch",), tag="cp312-cp312-manylinux_2_28_aarch64"
    )


def _later(layer: LayerBuilder) -> None:
    """What only a layer on top of others can do, and metadata that a careless tool loses."""
    layer.directory("etc", mtime=EPOCH + 172_800)
    layer.file("etc/motd", "This is the stand-in base, replaced by layer 4.\n", mtime=EPOCH + 172_800)
    layer.whiteout("usr/share/doc/standin/removed-later.txt")
    layer.opaque("opt/standin/cache")
    layer.file("opt/standin/cache/fresh.txt", "The only file of this directory.\n")
    layer.file("opt/standin/data/tokenizer.json", '{"version": "1.0"}\n', mode=0o640, gid=1000)
    layer.hardlink("opt/standin/data/tokenizer.link.json", "opt/standin/data/tokenizer.json")
    layer.file("opt/standin/data/größe-データ.txt", "A name that is not ASCII.\n")
    layer.file(
        "opt/standin/data/labelled.bin",
        bytes(range(256)),
        xattrs=(("user.standin.origin", b"real parts"), ("user.standin.raw", b"\x00\xff\n=")),
    )
    layer.file("usr/bin/standin-su", "#!/bin/true\n", mode=0o4755)
    layer.directory("opt/standin/scratch", mode=0o1777)
    layer.directory("opt/standin/group", mode=0o2775, uid=1000, gid=1000, mtime=EPOCH + 1)


def _distribution(
    layer: LayerBuilder,
    name: str,
    version: str,
    files: Mapping[str, bytes],
    *,
    requires: tuple[str, ...] = (),
    tag: str = "py3-none-any",
    rows: Iterable[tuple[str, str, str]] = (),
) -> None:
    """Install a distribution of our own; `rows` are RECORD rows for files put elsewhere by the caller."""
    folder = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {item}\n" for item in requires)
    metadata = (
        f"Metadata-Version: 2.4\nName: {name.replace('_', '-')}\nVersion: {version}\nSummary: A stand-in.\n{needs}"
    )
    pure = str(tag.endswith("-any")).lower()
    every = {
        **files,
        f"{folder}/METADATA": metadata.encode(),
        f"{folder}/WHEEL": f"Wheel-Version: 1.0\nGenerator: standin\nRoot-Is-Purelib: {pure}\nTag: {tag}\n".encode(),
    }
    for path, data in every.items():
        layer.file(f"{SITE}/{path}", data, mode=0o755 if ".so" in path else 0o644)
    own = [(path, _hash(data), str(len(data))) for path, data in every.items()]
    _pip_record(layer, folder, [*rows, *own])


def _pip_record(layer: LayerBuilder, folder: str, rows: list[tuple[str, str, str]]) -> None:
    """INSTALLER and RECORD as pip writes them: rows sorted, its own row without a hash."""
    installer = b"pip\n"
    layer.file(f"{SITE}/{folder}/INSTALLER", installer)
    every = sorted(
        [*rows, (f"{folder}/INSTALLER", _hash(installer), str(len(installer))), (f"{folder}/RECORD", "", "")]
    )
    layer.file(f"{SITE}/{folder}/RECORD", "".join(",".join(row) + "\n" for row in every))


def _hash(data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
    return "sha256=" + digest.rstrip(b"=").decode()
