"""What a manifest must be (image-spec manifest.md, image-index.md; Docker image manifest 2.2), checked strictly.

Not checked: the content of configs, annotations, platforms, and whether a subject exists (it need not).
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import TYPE_CHECKING, Any, NoReturn

from tests.support.fault_registry.messages import RefusedError
from tests.support.fault_registry.storage import DIGEST, digest_of

if TYPE_CHECKING:
    from tests.support.fault_registry.storage import Repository

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
INDEXES = {OCI_INDEX, DOCKER_INDEX}
MANIFESTS = {OCI_MANIFEST, DOCKER_MANIFEST}
_DOCKER = ("application/vnd.docker.",)
_FOREIGN = ("nondistributable", "foreign.diff")


def kind_of(raw: bytes, media_type: str) -> dict[str, Any]:
    """The parsed manifest, if it is of the type that it was sent as."""
    if media_type not in INDEXES | MANIFESTS:
        _refuse(f"unknown media type {media_type[:80]!r}")
    try:
        document = json.loads(raw, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise RefusedError(400, "MANIFEST_INVALID", f"not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("schemaVersion") != 2:
        _refuse("schemaVersion is not 2")
    inner = document.get("mediaType")
    if inner != media_type and (inner is not None or media_type.startswith(_DOCKER)):
        _refuse(f"mediaType {inner!r} was sent as {media_type!r}")
    wrong = {"config", "layers"} if media_type in INDEXES else {"manifests"}
    if wrong & document.keys():
        _refuse(f"{sorted(wrong & document.keys())} do not belong to {media_type}")
    return document


def check(document: dict[str, Any], media_type: str, repository: Repository) -> None:
    """Everything a manifest names is there, in its size and of its family."""
    docker = media_type.startswith(_DOCKER)
    if media_type in INDEXES:
        for child in _list(document, "manifests"):
            _child(child, repository, docker=docker)
    else:
        for part in (document.get("config"), *_list(document, "layers")):
            _blob(part, repository, docker=docker)
    if "subject" in document:
        _descriptor(document["subject"])


def _child(child: Any, repository: Repository, *, docker: bool) -> None:
    kind, digest, size = _descriptor(child)
    if kind.startswith(_DOCKER) != docker:
        _refuse(f"an entry of type {kind} in an index of the other family")
    found = repository.manifests.get(digest)
    if found is None:
        raise RefusedError(404, "MANIFEST_BLOB_UNKNOWN", f"manifest {digest} is unknown to the repository")
    if len(found.raw) != size or found.media_type != kind:
        _refuse(f"{digest} has {len(found.raw)} bytes and the type {found.media_type}")


def _blob(part: Any, repository: Repository, *, docker: bool) -> None:
    kind, digest, size = _descriptor(part)
    if kind.startswith(_DOCKER) != docker:
        _refuse(f"a blob of type {kind} in a manifest of the other family")
    found = repository.blobs.get(digest)
    if found is None and part.get("urls") and any(word in kind for word in _FOREIGN):
        return
    if found is None:
        raise RefusedError(400, "MANIFEST_BLOB_UNKNOWN", f"blob {digest} is unknown to the repository")
    if found.size != size:
        _refuse(f"{digest} has {found.size} bytes, the descriptor says {size}")


def _descriptor(part: Any) -> tuple[str, str, int]:
    """Media type, digest and size of a descriptor of the right shape (image-spec descriptor.md)."""
    if not isinstance(part, dict):
        _refuse("a descriptor is missing")
    kind, digest, size = part.get("mediaType"), part.get("digest"), part.get("size")
    if not isinstance(kind, str) or "/" not in kind or not isinstance(digest, str) or not DIGEST.fullmatch(digest):
        _refuse(f"descriptor without media type or digest: {part!r:.120}")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        _refuse(f"size {size!r:.40}")
    if "data" in part:
        _embedded(part["data"], digest)
    return kind, digest, size


def _embedded(text: Any, digest: str) -> None:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise RefusedError(400, "MANIFEST_INVALID", "data is not base64") from error
    if digest.startswith("sha256:") and digest_of(data) != digest:
        _refuse("data is not what the digest says")


def _list(document: dict[str, Any], name: str) -> list[Any]:
    value = document.get(name)
    if not isinstance(value, list):
        _refuse(f"{name} is not a list")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


def _refuse(message: str) -> NoReturn:
    raise RefusedError(400, "MANIFEST_INVALID", message)
