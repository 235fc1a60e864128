"""Whole inputs for each target, from which a search begins."""

from __future__ import annotations

import gzip
import io
import zipfile
from pathlib import Path

from imgbuild.content.bundle import pack
from imgbuild.content.changeset import BytesContent, Change, ChangeType, write_layer
from imgbuild.content.compression import zstd  # type: ignore[attr-defined] # whichever module has it
from imgbuild.content.inventory import scan_layer
from imgbuild.content.packagetable import dump_packages
from imgbuild.content.tree import Tree
from imgbuild.content.treefile import dump_tree

from tests.support.elf_builder import shared_object
from tests.support.fatbins import PTX, Entry, fatbin
from tests.support.ld_cache import ld_cache

ROOT = Path(__file__).parents[2]
_DIGEST = "sha256:" + "0" * 64


def _tar() -> bytes:
    library = shared_object(soname="libx.so", needed=["libc.so.6"], exports=["ncclGetVersion"], build_id="ab" * 20)
    changes = [
        Change(path=b"opt", type=ChangeType.DIRECTORY, mode=0o755),
        Change(path=b"opt/libx.so", type=ChangeType.FILE, mode=0o644, content=BytesContent(data=library)),
        Change(path=b"opt/link", type=ChangeType.SYMLINK, mode=0o777, link=b"libx.so"),
        Change(path=b"opt/gone", type=ChangeType.WHITEOUT),
        Change(
            path=b"opt/" + b"n" * 120, type=ChangeType.FILE, mode=0o600, content=BytesContent(data=b"x"), mtime=1 << 40
        ),
    ]
    out = io.BytesIO()
    write_layer(changes, out.write, compression="none", epoch=5)
    return out.getvalue()


def _inventory() -> bytes:
    return scan_layer(io.BytesIO(_tar()), subject="seed", spool=io.BytesIO, capture=lambda *_: None).inventory.dump()


def _tree() -> bytes:
    scan = scan_layer(io.BytesIO(_tar()), subject="seed", spool=io.BytesIO, capture=lambda *_: None)
    tree = Tree()
    tree.apply(scan.inventory, 0)
    return b"".join(dump_tree(tree, (), dump_packages({})))


def _wheel() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.py", "X = 1\n" * 20)
        archive.writestr("a-1.dist-info/METADATA", "Name: a\nVersion: 1\n")
    return out.getvalue()


def _fatbin() -> bytes:
    return fatbin(Entry(letter="a", header=112), Entry(kind=PTX, architecture=120), Entry(architecture=90))


def _nccl() -> bytes:
    texts = b"NCCL version 2.30.7+cuda13.3\0NCCL git version stable b81d6a5a3\0NCCL_SKIP_TREE_CONNECT\0"
    return shared_object(soname="libnccl.so.2", exports=["ncclGetVersion", "pncclX"], extra=texts + _fatbin())


_DESCRIPTOR = f'{{"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip","digest":"{_DIGEST}","size":5}}'
_PATCH = b"--- a/f\n+++ b/f\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"


def seeds() -> dict[str, list[bytes]]:
    """By target."""
    tar, lock = _tar(), (ROOT / "locks/mini.lock.json").read_bytes()
    oci = "application/vnd.oci.image"
    config = f'{{"mediaType":"{oci}.config.v1+json","digest":"{_DIGEST}","size":5}}'
    blobs = f'"config":{config},"layers":[{_DESCRIPTOR}]'
    manifest = f'{{"schemaVersion":2,"mediaType":"{oci}.manifest.v1+json",{blobs}}}'
    platform = '{"os":"linux","architecture":"arm64"}'
    child = f'{{"mediaType":"{oci}.manifest.v1+json","digest":"{_DIGEST}","size":5,"platform":{platform}}}'
    index = f'{{"schemaVersion":2,"mediaType":"{oci}.index.v1+json","manifests":[{child}]}}'
    rootfs = f'{{"type":"layers","diff_ids":["{_DIGEST}"]}}'
    settings = f'{{"architecture":"arm64","os":"linux","config":{{"Env":["PATH=/bin"]}},"rootfs":{rootfs}}}'
    library = shared_object(
        soname="libx.so",
        needed=["libc.so.6"],
        imports=["a@V"],
        exports=["ncclA"],
        versions_needed={"libc.so.6": ["V"]},
    )
    return {
        "tar": [tar],
        "layer": [tar, gzip.compress(tar, mtime=0)],
        "compressed": [gzip.compress(b"text" * 50, mtime=0), zstd.compress(b"text" * 50)],
        "bundle": [pack([b"text" * 50, b"more"])],
        "inventory": [_inventory()],
        "tree": [_tree()],
        "elf": [library],
        "fatbin": [_fatbin(), fatbin(Entry(code=_fatbin())) + b"x" + fatbin(Entry(kind=256, architecture=0))],
        "nccl": [_nccl()],
        "record": [b"a.py,sha256=" + b"_" * 43 + b',5\n"b,c",,\n'],
        "dpkg_status": [
            (
                b"Package: a1\nStatus: install ok installed\nArchitecture: arm64\nVersion: 1:2\nDescription: x\n y\n\n"
                b"Package: b2\nStatus: deinstall ok config-files\nArchitecture: all\nVersion: 1\n"
            )
        ],
        "patch": [_PATCH, b"diff --git a/n b/n\nnew file mode 100644\n--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+x\n"],
        "manifest": [manifest.encode()],
        "index": [index.encode()],
        "config": [settings.encode()],
        "definition": [(ROOT / "locks/mini.toml").read_bytes()],
        "layer_definition": [path.read_bytes() for path in sorted((ROOT / "layers").glob("*/layer.toml"))],
        "lock": [lock],
        "receipt": [b'{"schema": "imgbuild/receipt/v1"}'],
        "json": [b'{"a": [1, 2.5, "\\u00e9", null, true]}', lock[:2000]],
        "linker_cache": [ld_cache([("liba.so", "/lib/liba.so")], conditional=[("liba.so", "/x/liba.so")], old=True)],
        "linker_configuration": [b"include ld.so.conf.d/*.conf\n/opt/lib # x\nhwcap 1 a\n"],
        "wheel": [_wheel()],
        "reference": [b"registry.example:5000/a/b:tag@" + _DIGEST.encode()],
    }
