"""What a test puts into a registry, and looks up in it, without HTTP."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.support.fault_registry import manifest_rules as rules
from tests.support.fault_registry.storage import Blob, Manifest, Repository, digest_of, stored

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.fault_registry.storage import Storage

_CONFIGS = {
    rules.OCI_MANIFEST: "application/vnd.oci.image.config.v1+json",
    rules.DOCKER_MANIFEST: "application/vnd.docker.container.image.v1+json",
}
_LAYERS = {
    rules.OCI_MANIFEST: "application/vnd.oci.image.layer.v1.tar+gzip",
    rules.DOCKER_MANIFEST: "application/vnd.docker.image.rootfs.diff.tar.gzip",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SeededImage:
    """Digests of an image that was put into a registry; `raw` is its manifest."""

    digest: str
    raw: bytes
    media_type: str
    config: str
    layers: tuple[str, ...]


class Seeding:
    """The part of `FaultRegistry` that tests fill and look at."""

    storage: Storage

    def repository(self, name: str) -> Repository:
        """A repository as it is now: blobs, manifests, tags. It is made where it is not there."""
        return self.storage.repository(name)

    def put_blob(self, repository: str, data: bytes) -> str:
        """Store bytes and link them; the digest."""
        return self.add_blob(repository, stored(data))

    def add_blob(self, repository: str, blob: Blob) -> str:
        """Link a blob that `storage.repeated` or a test has made; the digest."""
        self.storage.link(repository, blob)
        return blob.digest

    def add_synthetic(self, repository: str, digest: str, size: int) -> None:
        """A blob that HEAD and mount know, and that has no bytes: a GET of it is an error of the registry."""
        self.storage.link(repository, Blob(digest=digest, size=size, piece=None))

    def put_manifest(
        self,
        repository: str,
        document: dict[str, Any] | bytes,
        *,
        tag: str | None = None,
        media_type: str | None = None,
    ) -> str:
        """Store a manifest unchecked; the digest. The media type is the document's own unless given."""
        raw = document if isinstance(document, bytes) else json.dumps(document).encode()
        kind = media_type or json.loads(raw)["mediaType"]
        made = Manifest(digest=digest_of(raw), media_type=kind, raw=raw)
        with self.storage.lock:
            held = self.storage.repository(repository)
            held.manifests[made.digest] = made
            if tag is not None:
                held.tags[tag] = made.digest
        return made.digest

    def seed_image(
        self,
        repository: str,
        tag: str | None = None,
        *,
        layers: Sequence[bytes | Blob] = (b"layer",),
        config: dict[str, Any] | None = None,
        docker: bool = False,
        extra: dict[str, Any] | None = None,
    ) -> SeededImage:
        """An image of these layers (compressed bytes); `extra` goes into the manifest, DiffIDs are the caller's."""
        kind = rules.DOCKER_MANIFEST if docker else rules.OCI_MANIFEST
        basic = {"architecture": "arm64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": []}, "config": {}}
        head = stored(json.dumps(config if config is not None else basic).encode())
        made = [layer if isinstance(layer, Blob) else stored(layer) for layer in layers]
        for blob in (head, *made):
            self.add_blob(repository, blob)
        document = {
            "schemaVersion": 2,
            "mediaType": kind,
            "config": {"mediaType": _CONFIGS[kind], "digest": head.digest, "size": head.size},
            "layers": [{"mediaType": _LAYERS[kind], "digest": one.digest, "size": one.size} for one in made],
            **(extra or {}),
        }
        raw = json.dumps(document).encode()
        digest = self.put_manifest(repository, raw, tag=tag)
        return SeededImage(
            digest=digest, raw=raw, media_type=kind, config=head.digest, layers=tuple(one.digest for one in made)
        )
