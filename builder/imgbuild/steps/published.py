"""Inventories that are shared through the registry: a referrer of the base, two blobs a layer (design.md, section 6).

Whoever has a lock needs not read the base at all (`steps.published_search`).
"""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from imgbuild import jsontext
from imgbuild.adapters.registry.blobs import has_blob
from imgbuild.adapters.registry.referrers import attach, referrers
from imgbuild.adapters.registry.uploads import Upload
from imgbuild.adapters.registry.uploadstate import UploadMemory
from imgbuild.config import GIB, MIB
from imgbuild.content.bundle import compress, pack
from imgbuild.content.inventory import captured
from imgbuild.digest import Digest
from imgbuild.errors import ProtocolError
from imgbuild.model.oci import Descriptor, Family
from imgbuild.steps.crew import Crew, parallel

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
INVENTORY_NOTE = "imgbuild.inventory"
_EMPTY = b"{}"
_EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
MAX_COMPRESSED: Final = 64 * MIB
"""bytes of one blob; an inventory has 80 bytes an entry, compressed."""
MAX_INVENTORY: Final = 1 * GIB
"""bytes of one inventory, expanded; 800 an entry."""


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

    What is too large to be looked into by others is left out, with a note.

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
        for media_type, data in _documents(context, layer, taken):
            blob = Descriptor(media_type=media_type, digest=Digest.of(data), size=len(data))
            blobs[blob.digest] = (blob, data)
            notes = {_LAYER: str(layer.digest), INVENTORY_NOTE: str(taken.digest)}
            layers.append({**blob.as_dict(), "annotations": notes})
    empty = Descriptor(media_type=_EMPTY_TYPE, digest=Digest.of(_EMPTY), size=len(_EMPTY))
    blobs[empty.digest] = (empty, _EMPTY)
    sent = _send(context, repository, sorted(blobs.values(), key=lambda row: -row[0].size))
    manifest = {
        "schemaVersion": 2,
        "mediaType": Family.OCI.manifest,
        "artifactType": ARTIFACT_TYPE,
        "config": empty.as_dict(),
        "layers": layers,
        "subject": image.as_dict(),
    }
    referrer = attach(repository, jsontext.compact(manifest), Family.OCI.manifest, image)
    listed = {row.descriptor.digest for row in referrers(repository, image.digest, artifact_type=ARTIFACT_TYPE)}
    if referrer not in listed:
        raise ProtocolError(
            f"inventories of {image.digest} in {repository}",
            "were taken and are not listed as referrers",
            expected=referrer,
            actual=f"{len(listed)} others",
        )
    return Published(referrer=referrer, sent_bytes=sent, total_bytes=sum(blob.size for blob, _ in blobs.values()))


def _documents(context: Context, layer: Descriptor, taken: Taken) -> list[tuple[str, bytes]]:
    raw = taken.inventory.dump()
    found = [(INVENTORY_TYPE, compress(raw)), (FILES_TYPE, pack(_small_files(context, taken.inventory)))]
    if len(raw) > MAX_INVENTORY or any(len(data) > MAX_COMPRESSED for _, data in found):
        context.progress.note(f"the inventory of layer {layer.digest} is too large to be published")
        return []
    return found


def _small_files(context: Context, inventory: Inventory) -> Iterator[bytes]:
    for entry in inventory.entries:
        if entry.sha256 is not None and captured(entry.path_bytes):
            data = context.cache.get(Digest("sha256", entry.sha256))
            if data is not None:
                yield data


def _send(context: Context, repository: Repository, blobs: list[tuple[Descriptor, bytes]]) -> int:
    """Send blobs that are not there, several at a time in the order given; returns their bytes."""
    memory = UploadMemory(context.cache.folder("uploads"))
    with (
        context.progress.task(f"pushing to {repository}", sum(blob.size for blob, _ in blobs)) as task,
        Crew(context, parallel(repository), together=True) as pool,
    ):
        watched = pool.watched(task)

        def one(row: tuple[Descriptor, bytes]) -> int:
            blob, data = row
            if has_blob(repository, blob):
                task.advance(blob.size)
                return 0
            Upload(repository, blob, _Bytes(data), memory=memory, advance=watched.advance).run()
            return blob.size

        return sum(pool.map(one, blobs))
