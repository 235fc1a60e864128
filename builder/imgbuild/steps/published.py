"""Inventories that are shared through the registry: a referrer of the base, a blob a layer (design.md, section 6).

Whoever has a lock needs not read the base at all: an inventory whose digest is the one in the lock is as good as one
that was taken here. Without a lock's digest a published inventory proves nothing, and is not used.
"""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from imgbuild import jsontext
from imgbuild.adapters.registry.blobs import has_blob, read_blob
from imgbuild.adapters.registry.referrers import attach, referrers
from imgbuild.adapters.registry.uploads import Upload
from imgbuild.adapters.registry.uploadstate import UploadMemory
from imgbuild.config import GIB, MIB
from imgbuild.content.bundle import compress, expand, pack, unpack
from imgbuild.content.inventory import captured
from imgbuild.digest import Digest
from imgbuild.errors import AvailabilityError, DocumentError, IntegrityError
from imgbuild.model.oci import Descriptor, Family

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imgbuild.adapters.registry.repository import Repository
    from imgbuild.content.inventory import Inventory
    from imgbuild.digest import Readable
    from imgbuild.steps.context import Context
    from imgbuild.steps.inventories import Taken

ARTIFACT_TYPE = "application/vnd.imgbuild.inventory.v1"
INVENTORY_TYPE = "application/vnd.imgbuild.inventory.layer.v1.jsonl+gzip"
FILES_TYPE = "application/vnd.imgbuild.files.v1+gzip"
_LAYER = "imgbuild.layer"
_INVENTORY = "imgbuild.inventory"
_EMPTY = b"{}"
_EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
_MAX_COMPRESSED = 512 * MIB
_MAX_INVENTORY = 2 * GIB
_MAX_REFERRERS = 8
"""published inventories of one base that are looked into."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What was published: the referrer, and its blobs that were not there yet, in bytes."""

    referrer: Digest
    sent_bytes: int
    total_bytes: int


class _Bytes:
    def __init__(self, data: bytes) -> None:
        self._data = data

    @contextlib.contextmanager
    def open(self, offset: int) -> Iterator[Readable]:
        yield io.BytesIO(self._data[offset:])


def publish(
    context: Context, repository: Repository, image: Descriptor, rows: list[tuple[Descriptor, Taken]]
) -> Published:
    """Attach the inventories of an image to it, with the small files that steps need (package records).

    Args:
        context: the surroundings; the small files come from its cache, and those that are not there are left out.
        repository: where the image is.
        image: its manifest.
        rows: its layers, each with the inventory that was taken of it or that a lock pins.

    Raises:
        RegistryError: as `Registry.call`.
    """
    blobs: dict[Digest, tuple[Descriptor, bytes]] = {}
    layers: list[dict[str, Any]] = []
    for layer, taken in rows:
        for media_type, data in (
            (INVENTORY_TYPE, compress(taken.inventory.dump())),
            (FILES_TYPE, pack(_small_files(context, taken.inventory))),
        ):
            blob = Descriptor(media_type=media_type, digest=Digest.of(data), size=len(data))
            blobs[blob.digest] = (blob, data)
            notes = {_LAYER: str(layer.digest), _INVENTORY: str(taken.digest)}
            layers.append({**blob.as_dict(), "annotations": notes})
    empty = Descriptor(media_type=_EMPTY_TYPE, digest=Digest.of(_EMPTY), size=len(_EMPTY))
    blobs[empty.digest] = (empty, _EMPTY)
    sent = _send(context, repository, list(blobs.values()))
    manifest = {
        "schemaVersion": 2,
        "mediaType": Family.OCI.manifest,
        "artifactType": ARTIFACT_TYPE,
        "config": empty.as_dict(),
        "layers": layers,
        "subject": image.as_dict(),
    }
    referrer = attach(repository, jsontext.compact(manifest), Family.OCI.manifest, image)
    return Published(referrer=referrer, sent_bytes=sent, total_bytes=sum(blob.size for blob, _ in blobs.values()))


def fetch_published(context: Context, image: Digest, wanted: frozenset[Digest]) -> None:
    """Put published inventories of these digests into the cache, as far as some repository of the base has them.

    What cannot be had is passed over with a note: then the layers are read. Nothing is trusted: an inventory goes into
    the cache under the digest that its bytes have, small files under theirs.
    """
    left = set(wanted)
    for repository in context.places.repositories:
        try:
            for row in referrers(repository, image, artifact_type=ARTIFACT_TYPE)[:_MAX_REFERRERS]:
                left -= _take(context, repository, row.descriptor, left)
                if not left:
                    return
        except (AvailabilityError, IntegrityError, DocumentError) as error:
            context.progress.note(f"published inventories of {image} in {repository}: {error}")


def _take(context: Context, repository: Repository, referrer: Descriptor, wanted: set[Digest]) -> set[Digest]:
    found: set[Digest] = set()
    rows = _layers(repository.manifest(referrer.digest).raw, subject=f"referrer {referrer.digest} of {repository}")
    mine = [(blob, digest) for blob, digest in rows if digest in wanted]
    with context.progress.task("fetching inventories", sum(blob.size for blob, _ in mine)) as task:
        for blob, digest in mine:
            data = read_blob(repository, blob, _MAX_COMPRESSED)
            task.advance(len(data))
            subject = f"blob {blob.digest} of {repository}"
            if blob.media_type == INVENTORY_TYPE:
                raw = expand(data, subject=subject, max_bytes=_MAX_INVENTORY)
                context.cache.put([raw], expected=digest, subject=f"inventory in {subject}")
                found.add(digest)
            else:
                for _, content in unpack(data, subject=subject):
                    context.cache.put([content])
    return found


def _layers(raw: bytes, *, subject: str) -> list[tuple[Descriptor, Digest]]:
    """The blobs that we know, each with the inventory that it is or belongs to; others are passed over."""
    value = jsontext.loads(raw, subject=subject)
    rows = value.get("layers") if isinstance(value, dict) else None
    found = []
    for number, row in enumerate(rows if isinstance(rows, list) else []):
        blob = Descriptor.parse(row, subject=f"{subject}, layers[{number}]")
        notes = row.get("annotations")
        digest = notes.get(_INVENTORY) if isinstance(notes, dict) else None
        if blob.media_type in {INVENTORY_TYPE, FILES_TYPE} and isinstance(digest, str):
            found.append((blob, Digest.parse(digest)))
    return found


def _small_files(context: Context, inventory: Inventory) -> Iterator[bytes]:
    for entry in inventory.entries:
        if entry.sha256 is not None and captured(entry.path_bytes):
            data = context.cache.get(Digest("sha256", entry.sha256))
            if data is not None:
                yield data


def _send(context: Context, repository: Repository, blobs: list[tuple[Descriptor, bytes]]) -> int:
    memory = UploadMemory(context.cache.folder("uploads"))
    sent = 0
    with context.progress.task(f"pushing to {repository}", sum(blob.size for blob, _ in blobs)) as task:
        for blob, data in blobs:
            if has_blob(repository, blob):
                task.advance(blob.size)
                continue
            Upload(repository, blob, _Bytes(data), memory=memory, advance=task.advance).run()
            sent += blob.size
    return sent
