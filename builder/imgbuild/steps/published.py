"""What is known of a base, shared through its registry as a referrer of it (design.md, section 6).

Two blobs a layer: its inventory, and the small files that steps read (package records). Two of the whole: the merged
view, which is all that a build with a lock needs of them, and the files that locks say are patched. Whoever has a lock
needs not read the base at all (`steps.published_search`).
"""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

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
TREE_TYPE = "application/vnd.imgbuild.tree.v4+gzip"
PREIMAGES_TYPE = "application/vnd.imgbuild.preimages.v1+gzip"
_LAYER = "imgbuild.layer"
INVENTORY_NOTE = "imgbuild.inventory"
TREE_NOTE = "imgbuild.tree"
_EMPTY = b"{}"
_EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
MAX_COMPRESSED: Final = 64 * MIB
"""bytes of one blob; an inventory has 80 bytes an entry, compressed."""
MAX_INVENTORY: Final = 1 * GIB
"""bytes of one inventory or merged view, expanded; 800 an entry."""
_Document: TypeAlias = tuple[str, bytes, dict[str, str]]
"""Media type, bytes and annotations of a blob."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """What is published of all layers together: the bytes of the merged view, and files that are patched."""

    tree: bytes
    preimages: tuple[bytes, ...]


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
    context: Context, repository: Repository, image: Descriptor, rows: list[tuple[Descriptor, Taken]], whole: Whole
) -> Published:
    """Attach to an image what is known of it. What is too large to be looked into by others is left out, with a note.

    Args:
        context: the surroundings; the small files come from its cache, and those that are not there are left out.
        repository: where the image is.
        image: its manifest.
        rows: its layers, each with the inventory that was taken of it or that a lock pins.
        whole: the rest.

    Raises:
        RegistryError: as `Registry.call`.
    """
    blobs: dict[Digest, tuple[Descriptor, bytes]] = {}
    layers: list[dict[str, Any]] = []
    for media_type, data, notes in (
        *_documents_of_whole(context, image, whole),
        *(document for layer, taken in rows for document in _documents(context, layer, taken)),
    ):
        blob = Descriptor(media_type=media_type, digest=Digest.of(data), size=len(data))
        blobs[blob.digest] = (blob, data)
        layers.append({**blob.as_dict(), "annotations": notes})
    empty = Descriptor(media_type=_EMPTY_TYPE, digest=Digest.of(_EMPTY), size=len(_EMPTY))
    blobs[empty.digest] = (empty, _EMPTY)
    sent = _send(context, repository, sorted(blobs.values(), key=lambda row: -row[0].size))
    referrer = _attach(repository, image, empty, layers)
    return Published(referrer=referrer, sent_bytes=sent, total_bytes=sum(blob.size for blob, _ in blobs.values()))


def _attach(repository: Repository, image: Descriptor, config: Descriptor, layers: list[dict[str, Any]]) -> Digest:
    manifest = {
        "schemaVersion": 2,
        "mediaType": Family.OCI.manifest,
        "artifactType": ARTIFACT_TYPE,
        "config": config.as_dict(),
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
    return referrer


def _documents_of_whole(context: Context, image: Descriptor, whole: Whole) -> list[_Document]:
    notes = {TREE_NOTE: str(Digest.of(whole.tree))}
    found = [(TREE_TYPE, compress(whole.tree), notes)] if len(whole.tree) <= MAX_INVENTORY else []
    if whole.preimages:
        found.append((PREIMAGES_TYPE, pack(whole.preimages), notes))
    small = [row for row in found if len(row[1]) <= MAX_COMPRESSED]
    if len(small) < 1 + bool(whole.preimages):
        names = {TREE_TYPE: "the merged view", PREIMAGES_TYPE: "what is patched"}
        left = [name for kind, name in names.items() if kind not in {row[0] for row in small}]
        context.progress.note(
            f"{' and '.join(left)} of {image.digest} is not published, being too large: builds read more"
        )
    return small


def _documents(context: Context, layer: Descriptor, taken: Taken) -> list[_Document]:
    raw = taken.inventory.dump()
    notes = {_LAYER: str(layer.digest), INVENTORY_NOTE: str(taken.digest)}
    found = [
        (INVENTORY_TYPE, compress(raw), notes),
        (FILES_TYPE, pack(_small_files(context, taken.inventory)), notes),
    ]
    if len(raw) > MAX_INVENTORY or any(len(data) > MAX_COMPRESSED for _, data, _ in found):
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
