"""One function for each reader of bytes from outside. It must end with a value, or with an error of ours.

Small limits stand for the real ones, so that an input of a few bytes can reach them.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from imgbuild import jsontext
from imgbuild.adapters.project import _toml
from imgbuild.config import Limits
from imgbuild.content.bundle import Expanded, unpack
from imgbuild.content.compression import decompress
from imgbuild.content.dpkg import parse_status
from imgbuild.content.elf import read_elf
from imgbuild.content.fatbin import Fatbins
from imgbuild.content.inventory import Inventory, scan_layer
from imgbuild.content.ldcache import parse_cache
from imgbuild.content.ldconf import Configuration
from imgbuild.content.nccl import NcclScan
from imgbuild.content.node import ELF, LINK
from imgbuild.content.packagetable import load_packages
from imgbuild.content.patch import apply_file
from imgbuild.content.record import parse_record, read_record
from imgbuild.content.tarstream import TarReader
from imgbuild.content.tree import Tree
from imgbuild.content.treefile import TreeFile
from imgbuild.content.unidiff import parse_patch
from imgbuild.content.ziparchive import member_digest, open_archive
from imgbuild.digest import Digest
from imgbuild.errors import ImgbuildError
from imgbuild.model.image import parse_image
from imgbuild.model.layer import parse_layer
from imgbuild.model.lockfile import parse_lock
from imgbuild.model.oci import INDEX_TYPES, Family, ImageConfig, Manifest
from imgbuild.model.ociindex import Index
from imgbuild.model.receipt import parse_receipt
from imgbuild.model.reference import Reference

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

LIMITS = Limits(layer_bytes=1 << 20, layer_entries=200, path_bytes=300, path_depth=20, pax_bytes=4096)


def tar(data: bytes) -> None:
    """The walk alone."""
    reader = TarReader(io.BytesIO(data), subject="tar", limits=LIMITS)
    for _ in reader:
        for _ in reader.content():
            pass


def layer(data: bytes) -> None:
    """The whole pass, and the tree from it."""
    scan = scan_layer(io.BytesIO(data), subject="layer", spool=io.BytesIO, capture=lambda *_: None, limits=LIMITS)
    tree = Tree(limits=LIMITS)
    tree.apply(scan.inventory, 0)
    assert Inventory.load(scan.inventory.dump(), subject="again") == scan.inventory


def compressed(data: bytes) -> None:
    """gzip, zstd or neither."""
    stream = decompress(io.BytesIO(data), subject="stream", limits=LIMITS)
    while stream.read(4096):
        pass


def bundle(data: bytes) -> None:
    """Small files that somebody published."""
    for digest, content in unpack(Expanded(io.BytesIO(data), subject="bundle", max_bytes=1 << 20)):
        assert Digest.of(content) == digest


def inventory(data: bytes) -> None:
    """A document from a cache or a registry."""
    Tree(limits=LIMITS).apply(Inventory.load(data, subject="inventory"), 0)


def tree(data: bytes) -> None:
    """A merged base from a cache."""
    file = TreeFile(data, subject="tree")
    found = file.tree()
    list(found.marked(ELF | LINK, keep=False))
    list(found.walk())
    list(found.marked(ELF | LINK))
    load_packages(file.packages, lambda _folder: b"", subject="tree")


def elf(data: bytes) -> None:
    """Facts of an ELF file."""
    read_elf(io.BytesIO(data), subject="elf", limits=LIMITS)


def fatbin(data: bytes) -> None:
    """GPU code, however the bytes are cut."""
    whole, cut = Fatbins(), Fatbins()
    whole.update(data)
    for start in range(0, len(data), 61):
        cut.update(data[start : start + 61])
    assert whole.finish(io.BytesIO(data)) == cut.finish(io.BytesIO(data))


def nccl(data: bytes) -> None:
    """What identifies an NCCL library."""
    scan = NcclScan("nccl")
    scan.update(data)
    found = scan.finish(io.BytesIO(data))
    assert found.size == len(data)
    assert found.problems() or found.version


def record(data: bytes) -> None:
    """RECORD, by both ways."""
    try:
        found = read_record(data, site=b"site")
    except ValueError:
        return
    assert found.rows == parse_record(data, site=b"site")
    assert len(found) == len(found.rows)


def dpkg_status(data: bytes) -> None:
    """What dpkg says is installed."""
    for package in parse_status(data, subject="status"):
        assert all(name.endswith(b".list") and b"/" not in name for name in package.lists)


def patch(data: bytes) -> None:
    """A patch, and what it makes of a file."""
    for file in parse_patch(data, subject="patch"):
        apply_file(file, b"one\ntwo\nthree\n", subject="patch")


def manifest(data: bytes) -> None:
    """An image manifest."""
    Manifest.parse(data, media_type=Family.OCI.manifest, subject="manifest")


def index(data: bytes) -> None:
    """An image index."""
    Index.parse(data, media_type=INDEX_TYPES[0], subject="index").select("linux/arm64", subject="index")


def config(data: bytes) -> None:
    """An image config."""
    ImageConfig.parse(data, subject="config").variable("PATH")


def definition(data: bytes) -> None:
    """An image definition."""
    parse_image(_toml(data, "definition"), subject="definition")


def layer_definition(data: bytes) -> None:
    """A layer definition."""
    parse_layer(_toml(data, "layer"), name="layer", subject="layer")


def lock(data: bytes) -> None:
    """A lock."""
    found = parse_lock(data, subject="lock")
    assert found.dump() == data


def receipt(data: bytes) -> None:
    """A receipt."""
    parse_receipt(data, subject="receipt")


def json(data: bytes) -> None:
    """Strict JSON."""
    jsontext.loads(data, subject="json", max_bytes=1 << 16)


def linker_cache(data: bytes) -> None:
    """`ld.so.cache`."""
    parse_cache(data, machine="aarch64", subject="cache").lookup(b"libc.so.6")


def linker_configuration(data: bytes) -> None:
    """`ld.so.conf`, which includes itself and one more."""
    found = Configuration(_Etc(data), LIMITS)  # type: ignore[arg-type] # it has what is asked
    found.parse(b"/etc/ld.so.conf", 0)


def wheel(data: bytes) -> None:
    """A wheel's table of contents, and its members."""
    file = io.BytesIO(data)
    with open_archive(file, subject="wheel", limits=LIMITS) as archive:
        names = archive.namelist()
    for name in names[:5]:
        member_digest(file, name, subject="wheel")


def reference(data: bytes) -> None:
    """A reference."""
    Reference.parse(data.decode("utf-8", "replace"), where="reference")


class _Etc:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def resolve(self, path: bytes) -> bytes | None:
        return path.lstrip(b"/") if path.startswith(b"/etc/") and len(path) < 60 else None

    def listdir(self, _path: bytes) -> Iterable[bytes]:
        return [b"ld.so.conf", b"a.conf"]

    def read(self, _path: bytes) -> bytes:
        return self._data


TARGETS: dict[str, Callable[[bytes], None]] = {
    function.__name__: function
    for function in (
        *(
            tar,
            layer,
            compressed,
            bundle,
            inventory,
            tree,
            elf,
            fatbin,
            nccl,
            record,
            dpkg_status,
            patch,
            manifest,
            index,
            config,
            definition,
        ),
        *(layer_definition, lock, receipt, json, linker_cache, linker_configuration, wheel, reference),
    )
}


def run(name: str, data: bytes) -> None:
    """Give bytes to a target; anything but a value or an error of ours passes through."""
    try:
        TARGETS[name](data)
    except ImgbuildError as error:
        if not (str(error) and error.code):
            raise AssertionError("an error without words") from error
