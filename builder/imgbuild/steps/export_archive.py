"""The image as files by name: what stands in an image layout, and beside it in an archive that `docker load` reads.

An archive for Docker is both at once, as `docker save` writes it since version 25: `manifest.json` for readers of the
old form, an image layout (image-spec `image-layout.md`) for those of the new one, and each blob once. So a Docker with
the containerd store keeps our manifest, byte by byte, instead of making its own one (cases P40, P42). Layers stay
compressed as they are: Docker and skopeo tell by their first bytes.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from imgbuild import jsontext
from imgbuild.content.archive import Entry
from imgbuild.content.changes import BytesContent
from imgbuild.digest import VerifiedReader
from imgbuild.model.oci import INDEX_TYPES, REF_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imgbuild.adapters.store import Store
    from imgbuild.digest import Digest, Readable
    from imgbuild.model.oci import Descriptor, ImageConfig, Manifest
    from imgbuild.progress import Task
    from imgbuild.steps.places import Places

_IMAGE_NAME = "io.containerd.image.name"
"""The annotation by which containerd, and Docker with its store, take a name out of an archive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A verified image, and where its blobs are.

    Args:
        descriptor: of its manifest.
        manifest: parsed.
        config: parsed.
        epoch: seconds since 1970, the time of all entries of its archives.
        places: the store, and the repositories of the base.
        layouts: image layouts that have the whole image already; filled as they are written. They are asked before
            the repositories, so that a base comes over the network once.
    """

    descriptor: Descriptor
    manifest: Manifest
    config: ImageConfig
    epoch: int
    places: Places
    layouts: list[Store] = field(default_factory=list)

    @property
    def blobs(self) -> tuple[Descriptor, ...]:
        """Every blob once: layers in order, config, and the manifest last, since it names the others."""
        found = {blob.digest: blob for blob in (*self.manifest.layers, self.manifest.config, self.descriptor)}
        return tuple(found.values())

    @property
    def size(self) -> int:
        """Bytes of all blobs."""
        return sum(blob.size for blob in self.blobs)

    @contextlib.contextmanager
    def open(self, blob: Descriptor) -> Iterator[VerifiedReader]:
        """The bytes of a blob; the reader raises `DigestMismatchError` at their end if they are other ones."""
        subject = f"blob {blob.digest}"
        with contextlib.ExitStack() as stack:
            stream: Readable
            near = next((layout for layout in self.layouts if layout.has(blob.digest, blob.size)), None)
            if near is not None and not self.places.is_local(blob):
                stream = stack.enter_context(near.open(blob.digest, subject=subject))
            else:
                stream = stack.enter_context(self.places.open(blob, subject=subject))
            yield VerifiedReader(stream, blob.digest, blob.size, subject=subject)

    def layout_entries(self, task: Task, names: tuple[dict[str, str], ...]) -> list[Entry]:
        """The files of an image layout; `names` are the annotations of its rows, without any it has one without name.

        Contents can be opened once: `task` advances as they are read.
        """
        row = self.descriptor.as_dict()
        index = {
            "schemaVersion": 2,
            "mediaType": INDEX_TYPES[0],
            "manifests": [{**row, "annotations": name} for name in names] or [row],
        }
        return [
            Entry(name="oci-layout", content=_json({"imageLayoutVersion": "1.0.0"})),
            Entry(name="index.json", content=_json(index)),
            *(Entry(name=_path(blob.digest), content=_Blob(self, blob, task)) for blob in self.blobs),
        ]

    def oci_entries(self, task: Task, tags: tuple[str, ...]) -> list[Entry]:
        """The files of an archive for `oci-archive:` readers, under tags."""
        return self.layout_entries(task, tuple({REF_NAME: tag} for tag in tags))

    def docker_entries(self, task: Task, names: tuple[str, ...]) -> list[Entry]:
        """The files of an archive for `docker load`, under names (`host/repository:tag`) or none."""
        rows = tuple({_IMAGE_NAME: name, REF_NAME: name.rpartition(":")[2]} for name in names)
        old = {
            "Config": _path(self.manifest.config.digest),
            "RepoTags": list(names) or None,
            "Layers": [_path(layer.digest) for layer in self.manifest.layers],
        }
        return [*self.layout_entries(task, rows), Entry(name="manifest.json", content=_json([old]))]


class _Blob:
    """A blob as content of an archive."""

    def __init__(self, image: Image, blob: Descriptor, task: Task) -> None:
        self._image = image
        self._blob = blob
        self._task = task

    @property
    def size(self) -> int:
        return self._blob.size

    @contextlib.contextmanager
    def open(self) -> Iterator[Readable]:
        with self._image.open(self._blob) as stream:
            yield Advancing(stream, self._task)


class Advancing:
    """A reader that tells a task how far it is."""

    def __init__(self, stream: Readable, task: Task) -> None:
        self._stream = stream
        self._task = task

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes."""
        data = self._stream.read(size)
        self._task.advance(len(data))
        return data


def _path(digest: Digest) -> str:
    return f"blobs/{digest.algorithm}/{digest.encoded}"


def _json(value: Any) -> BytesContent:
    return BytesContent(data=jsontext.compact(value))
