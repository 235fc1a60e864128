"""A library of an image whose layer has several entries for its path, or is not what its inventory says."""

from __future__ import annotations

import gzip
import io
import tarfile
from typing import TYPE_CHECKING

import pytest
from imgbuild import jsontext
from imgbuild.digest import Digest
from imgbuild.errors import ArchiveError, DigestMismatchError
from imgbuild.model.oci import Descriptor, Family
from imgbuild.steps.nccl import Library, parse_asked, read_image_library
from imgbuild.steps.opened import OpenedImage, open_named

from tests.support.made import library
from tests.support.tiny import Tiny

if TYPE_CHECKING:
    from pathlib import Path

    from imgbuild.steps.context import Context

OLD, NEW = library("2.29.7"), library("2.30.7")
NOISE = b"x" * len(NEW)


def tar(*contents: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for content in contents:
            row = tarfile.TarInfo("libnccl.so.2")
            row.size = len(content)
            archive.addfile(row, io.BytesIO(content))
    return buffer.getvalue()


@pytest.fixture
def context(tmp_path: Path) -> Context:
    context = Tiny(tmp_path).context()
    context.store.create()
    return context


def put(context: Context, raw: bytes, media_type: str) -> Descriptor:
    digest, size = context.store.put([raw])
    return Descriptor(media_type=media_type, digest=digest, size=size)


def image(context: Context, *contents: bytes) -> OpenedImage:
    raw = tar(*contents)
    layer = put(context, gzip.compress(raw, mtime=0), Family.OCI.layer_gzip)
    rootfs = {"type": "layers", "diff_ids": [str(Digest.of(raw))]}
    config = {"architecture": "arm64", "os": "linux", "config": {}, "rootfs": rootfs}
    manifest = {
        "schemaVersion": 2,
        "mediaType": Family.OCI.manifest,
        "config": put(context, jsontext.compact(config), Family.OCI.config).as_dict(),
        "layers": [layer.as_dict()],
    }
    found = put(context, jsontext.compact(manifest), Family.OCI.manifest)
    return open_named(context, str(found.digest), digest=found.digest, platform=None)


def read(found: OpenedImage) -> Library:
    return read_image_library(parse_asked("image:/libnccl.so.2"), found)


@pytest.mark.parametrize("contents", [(OLD, NEW), (NOISE, OLD, NEW), (NEW, NEW), (OLD, b"short", NEW)])
def test_of_several_entries_the_last_one_is_the_library(context: Context, contents: tuple[bytes, ...]) -> None:
    assert len(OLD) == len(NEW)
    found = read(image(context, *contents))
    assert (found.facts.digest, found.problems) == (Digest.of(NEW), ())


def test_where_the_last_entry_is_no_library_none_before_it_is_taken(context: Context) -> None:
    with pytest.raises(ArchiveError, match="is not an ELF file"):
        read(image(context, NEW, NOISE))


def test_a_layer_that_changed_after_its_inventory_is_refused(context: Context) -> None:
    found = image(context, NEW)
    read(found)
    path = context.store.path(found.manifest.layers[0].digest)
    path.write_bytes(gzip.compress(tar(OLD), mtime=0))
    with pytest.raises(DigestMismatchError):
        read(found)
