"""One file of another image, which is never pulled: found by its inventories, and read out of its one layer.

Layers are looked through from the top until one is known to have the file; the merged view of the layers so far says
so. A merged view that somebody published may say it, too. Neither has to be right: only the bytes with the digest that
was asked for are taken. Where there are none, the view of all layers says why.

Not checked where the bytes were found before all layers were looked at: that none of the others, by a link or by a
file of another name, makes the path another file.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from imgbuild import jsontext
from imgbuild.config import DEFAULT_LIMITS
from imgbuild.content.tree import Tree
from imgbuild.digest import Digest, digest_of
from imgbuild.errors import (
    ArchiveError,
    AvailabilityError,
    DigestMismatchError,
    DocumentError,
    InputError,
    IntegrityError,
    MissingError,
    OfflineMissError,
)
from imgbuild.model.oci import INDEX_TYPES, Descriptor
from imgbuild.model.ociindex import Index
from imgbuild.model.paths import image_path, show
from imgbuild.model.reference import Reference
from imgbuild.steps.base import check_platform, read_config
from imgbuild.steps.inventories import take_inventories
from imgbuild.steps.layers import contents
from imgbuild.steps.memo import HolderMemo, recall, remember

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from imgbuild.adapters.durable import PendingFile
    from imgbuild.content.inventory import Inventory
    from imgbuild.content.node import Node
    from imgbuild.model.image import ImageMemberSource
    from imgbuild.model.lockfile import LockedImageMember
    from imgbuild.model.oci import ImageConfig, Manifest
    from imgbuild.progress import Task
    from imgbuild.steps.context import Context

_Wanted: TypeAlias = "ImageMemberSource | LockedImageMember"
_NOT_READ = (AvailabilityError, IntegrityError, DocumentError)
"""What is wrong with a published view, and says nothing of the image."""


def fetch_member(context: Context, name: str, wanted: _Wanted, *, platform: str) -> None:
    """Put a file of an image into the cache, under its digest and nowhere else; and a memo of its layer.

    Args:
        context: the surroundings.
        name: of the source.
        wanted: the image by the digest of a manifest or index, a path in it, and the digest of the file.
        platform: that the image must be for.

    Raises:
        InputError: the image has no such path, or it is no regular file; or the reference has no digest.
        DigestMismatchError: the file has another digest or size.
        FactMismatchError, LayoutError: the image is for another platform, or the index has none for it.
        ArchiveError: the file is longer than `source_bytes`; a layer is broken.
        MissingError, OfflineMissError, RegistryError, BudgetError, StorageError: as reading says.
    """
    path = image_path(wanted.path, where=f"sources.{name}.path")
    search = _Search(_open(context, name, wanted, platform), name, wanted, path)
    for node in search.nodes():
        layer = search.read(node)
        if layer is not None:
            memo = HolderMemo(digest=layer.digest, size=layer.size)
            remember(context.cache, _key(wanted.image, platform, wanted.path, wanted.digest), memo)
            return
    raise search.refusal()


def holder(context: Context, pin: LockedImageMember) -> HolderMemo | None:
    """The layer that this machine read a file from; None where it never did."""
    return recall(context.cache, _key(pin.image, pin.platform, pin.path, pin.digest), HolderMemo)


def _key(image: str, platform: str, path: str, digest: Digest) -> Digest:
    return Digest.of(jsontext.dumps(["image-member", image, platform, path, str(digest)]))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Image:
    context: Context
    """With the repositories of the image as places."""
    digest: Digest
    manifest: Manifest
    config: ImageConfig


def _open(context: Context, name: str, wanted: _Wanted, platform: str) -> _Image:
    where = f"sources.{name}.image"
    reference = Reference.parse(wanted.image, where=where)
    context = context.based_on(reference.name)
    descriptor = _find(context, name, reference, reference.pinned(where=where), platform)
    manifest = context.places.manifest(descriptor)
    config = read_config(context, manifest)
    check_platform(config, platform, subject=f"image {reference}")
    return _Image(context=context, digest=descriptor.digest, manifest=manifest, config=config)


def _find(context: Context, name: str, reference: Reference, digest: Digest, platform: str) -> Descriptor:
    """The manifest of the platform, from the store or a repository of the image."""
    subject = f"image {reference}"
    if context.store.has(digest):
        found = context.store.descriptor_of(digest)
        raw = b""
        if found.media_type in INDEX_TYPES:
            limit = DEFAULT_LIMITS.manifest_bytes
            raw = context.store.read(digest, subject=subject, max_bytes=limit, size=found.size)
    elif not context.places.repositories:
        kind = OfflineMissError if context.offline and context.places.could_ask else MissingError
        hint = f"name its registry, or give the file: --source {name}=FILE"
        raise kind(subject, "is not in the store", where=str(context.store.root), hint=hint)
    else:
        answer = context.places.first(lambda repository: repository.manifest(digest))
        found, raw = answer.descriptor, answer.raw
    if found.media_type not in INDEX_TYPES:
        return found
    index = Index.parse(raw, media_type=found.media_type, subject=subject)
    return index.select(platform, subject=subject).descriptor


class _Search:
    """Where one file of an image may be."""

    def __init__(self, image: _Image, name: str, wanted: _Wanted, path: bytes) -> None:
        self._image = image
        self._name = name
        self._wanted = wanted
        self._path = path
        self._whole: Tree | None = None
        """The view of all layers, once that was needed."""

    def nodes(self) -> Iterator[Node]:
        """Nodes that may have the bytes, what costs least first; `read` says whether one has them."""
        image = self._image
        rows: list[tuple[int, Inventory]] = []
        pairs = list(zip(image.manifest.layers, image.config.diff_ids, strict=True))
        asked = False
        for number in reversed(range(len(pairs))):
            known = image.context.cache.inventory(*pairs[number])
            if known is None and not asked and not image.context.places.is_local(pairs[number][0]):
                asked = True
                yield from self._published()
            layer, diff_id = pairs[number]
            inventory = known[0] if known else take_inventories(image.context, (layer,), (diff_id,), None)[0].inventory
            rows.insert(0, (number, inventory))
            if number and any(entry.sha256 == self._wanted.digest.encoded for entry in inventory.entries):
                yield from self._upper(rows)
        self._whole = _merge(rows)
        found = self._whole.resolve(self._path)
        if found is not None and self._fits(found[1]):
            yield found[1]

    def read(self, node: Node) -> Descriptor | None:
        """Put the bytes of a node into the cache; the layer that has them, or None where they are not there."""
        layers = self._image.manifest.layers
        if node.source is None or not 0 <= node.layer < len(layers):
            return None
        layer, cache = layers[node.layer], self._image.context.cache
        with (
            self._image.context.progress.task(f"reading {self._wanted.path}", node.size) as task,
            contextlib.closing(contents(self._image.context, layer, node)) as candidates,
        ):
            for pieces in candidates:
                with cache.pending() as pending:
                    digest, size = digest_of(_through(pieces, pending, task))
                    if digest == self._wanted.digest:
                        cache.commit(pending, digest, size)
                        return layer
        return None

    def refusal(self) -> InputError | IntegrityError:
        """Why no node had the bytes."""
        subject, where = f"source {self._name}", f"{self._wanted.path} of {self._wanted.image}"
        found = None if self._whole is None else self._whole.resolve(self._path)
        if found is None:
            return InputError(subject, "is not in the image", expected=self._wanted.path, where=self._wanted.image)
        real, node = found
        if node.type != "file":
            at = show(real) if real != self._path else None
            return InputError(subject, f"is a {node.type} in the image, not a file", actual=at, where=where)
        wanted, limit = self._wanted, DEFAULT_LIMITS.source_bytes
        if node.size > limit:
            expected, actual = f"at most {limit} bytes (source_bytes)", f"{node.size} bytes"
            return ArchiveError(subject, "is too long", expected=expected, actual=actual, where=where)
        return DigestMismatchError(
            subject,
            "is another file in the image",
            expected=f"{wanted.digest}" if wanted.size is None else f"{wanted.digest}, {wanted.size} bytes",
            actual=f"sha256:{node.sha256}, {node.size} bytes",
            where=where,
            hint="is it the image that is meant? only if it is, correct the digest in the definition",
        )

    def _fits(self, node: Node) -> bool:
        wanted = self._wanted
        if node.type != "file" or node.size > DEFAULT_LIMITS.source_bytes:
            return False
        return node.sha256 == wanted.digest.encoded and wanted.size in {None, node.size}

    def _published(self) -> Iterator[Node]:
        """What views that others published say; what is wrong with one is passed over, also while its node is read."""
        context = self._image.context
        if not context.places.repositories:
            return
        from imgbuild.steps.published_search import published_views  # noqa: PLC0415 - urllib3 takes 60 ms

        for view in published_views(context, self._image.digest):
            try:
                found = view.tree().resolve(self._path)
            except _NOT_READ as error:
                context.progress.note(f"a published view of {self._wanted.image} cannot be used: {error}")
                continue
            if found is not None and self._fits(found[1]):
                yield found[1]

    def _upper(self, rows: list[tuple[int, Inventory]]) -> Iterator[Node]:
        """What the upper layers alone say."""
        try:
            tree = _merge(rows)
        except ArchiveError:
            # A hard link to a file of a layer below, say.
            return
        found = tree.resolve(self._path)
        if found is not None and self._fits(found[1]):
            yield found[1]


def _merge(rows: Iterable[tuple[int, Inventory]]) -> Tree:
    tree = Tree()
    for number, inventory in rows:
        tree.apply(inventory, number)
    return tree


def _through(pieces: Iterator[bytes], pending: PendingFile, task: Task) -> Iterator[bytes]:
    for data in pieces:
        pending.write(data)
        task.advance(len(data))
        yield data
