"""Images and libraries made of little, without anything that only tests need: stand-ins are made of them, too."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING, Any

from imgbuild import jsontext
from imgbuild.content.changeset import BytesContent, Change, ChangeType, LayerResult, write_layer
from imgbuild.digest import Digest
from imgbuild.model.oci import Descriptor, Family

from tests.support.elf_builder import shared_object

if TYPE_CHECKING:
    from imgbuild.adapters.store import StagedStore

EPOCH = 1_700_000_000
SYMBOLS = ("ncclAllReduce", "ncclGetUniqueId", "ncclGetVersion")


def library(version: str, *, extra: bytes = b"", **changes: Any) -> bytes:
    """A stand-in libnccl.so.2 whose bytes name a version."""
    facts: dict[str, Any] = {
        "soname": "libnccl.so.2",
        "needed": ("libc.so.6",),
        "exports": SYMBOLS,
        "versions_needed": {"libc.so.6": ("GLIBC_2.17",)},
        "build_id": hashlib.sha256(version.encode()).hexdigest()[:40],
    }
    return shared_object(**{**facts, **changes}, extra=f"NCCL version {version}\0".encode() + extra)


def record_hash(data: bytes) -> str:
    """A hash as RECORD writes it."""
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def directories(paths: list[str], mode: int = 0o755) -> list[Change]:
    """All parents of paths."""
    found: set[bytes] = set()
    for path in paths:
        parts = path.encode().split(b"/")[:-1]
        found.update(b"/".join(parts[: i + 1]) for i in range(len(parts)))
    return [Change(path=path, type=ChangeType.DIRECTORY, mode=mode, mtime=EPOCH - 5) for path in found]


def files(contents: dict[str, bytes], *, mode: int = 0o644, links: dict[str, str] | None = None) -> list[Change]:
    """Changes for files and symbolic links with all their parents."""
    links = links or {}
    rows = directories([*contents, *links])
    rows += [
        Change(path=path.encode(), type=ChangeType.FILE, mode=mode, mtime=EPOCH - 7, content=BytesContent(data=data))
        for path, data in contents.items()
    ]
    rows += [
        Change(path=path.encode(), type=ChangeType.SYMLINK, mode=0o777, mtime=EPOCH, link=target.encode())
        for path, target in links.items()
    ]
    return rows


def write_image(
    store: StagedStore,
    layers: list[list[Change]],
    tag: str,
    *,
    config: dict[str, Any],
    architecture: str = "arm64",
    family: Family = Family.OCI,
) -> Descriptor:
    """An image of some layers in a store, under a tag; the same layers and config give the same digest."""
    store.create()
    results = [_write_layer(store, changes) for changes in layers]
    document = {
        "created": "2026-01-01T00:00:00Z",
        "architecture": architecture,
        "os": "linux",
        "config": config,
        "x-unknown": {"kept": [1, 2]},
        "rootfs": {"type": "layers", "diff_ids": [str(result.diff_id) for result in results]},
        "history": [{"created_by": "make"}, {"created_by": "ENV", "empty_layer": True}]
        + [{"created_by": "make"}] * (len(results) - 1),
    }
    raw = jsontext.compact(document)
    manifest = {
        "schemaVersion": 2,
        "mediaType": family.manifest,
        "config": _descriptor(family.config, raw),
        "layers": [{"mediaType": family.layer_gzip, "digest": str(item.digest), "size": item.size} for item in results],
    }
    body = jsontext.compact(manifest)
    store.put([raw])
    digest, size = store.put([body])
    store.publish()
    descriptor = Descriptor(media_type=family.manifest, digest=digest, size=size)
    store.tag(tag, descriptor)
    return descriptor


def _descriptor(media_type: str, raw: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": str(Digest.of(raw)), "size": len(raw)}


def _write_layer(store: Any, changes: list[Change]) -> LayerResult:
    unique = {change.path: change for change in changes}
    with store.pending() as pending:
        result = write_layer(unique.values(), pending.write, epoch=EPOCH)
        store.commit(pending, result.digest, result.size)
    return result
