"""Whether a source that is one file can still be had: an address, another image, or what an operator gave.

Each answers where it is alive, and raises why where it is not (`liveness`). Of an address the length that its server
states is compared; of an image the manifests are read and hashed, and of the layer the registry's word is taken. An
operator's file is looked for in the cache, and is hashed there; where it is not, nobody else can be asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from imgbuild.config import DEFAULT_LIMITS
from imgbuild.digest import VerifiedReader
from imgbuild.errors import (
    AvailabilityError,
    BudgetError,
    DigestMismatchError,
    IntegrityError,
    MissingError,
    OfflineMissError,
    StorageError,
)
from imgbuild.model.oci import Descriptor, Family
from imgbuild.model.ociindex import Index
from imgbuild.model.reference import Reference
from imgbuild.steps.imagemember import holder
from imgbuild.steps.liveness_base import Answer

if TYPE_CHECKING:
    from imgbuild.adapters.registry.repository import Repository
    from imgbuild.digest import Digest
    from imgbuild.model.lockfile import LockedFile, LockedImageMember, LockedUrl
    from imgbuild.steps.context import Context
    from imgbuild.steps.memo import HolderMemo

_OFFLINE = "was not asked for, as --offline forbids it"


def ask_file(context: Context, pin: LockedFile) -> Answer:
    """Look for an operator's file in the cache.

    Raises:
        AvailabilityError: it is not there, which says nothing of whether somebody has it.
        DigestMismatchError: what is there is damaged; it stays where it is.
    """
    cache, subject = context.cache, f"source {pin.name}"
    if not cache.has(pin.digest):
        problem = "is not here, and nobody but its operator can be asked for it"
        raise AvailabilityError(subject, problem, hint=f"whoever has it gives it once: --source {pin.name}=FILE")
    with cache.open(pin.digest, subject=subject) as stream:
        VerifiedReader(stream, pin.digest, pin.size, subject=subject).drain()
    return Answer(detail=f"{pin.size} bytes, hashed")


def ask_url(context: Context, pin: LockedUrl) -> Answer:
    """Ask a server for the length of a file.

    Raises:
        MissingError: it has none. DigestMismatchError: it states another length.
        OfflineMissError, RegistryError: as `stated_length`.
    """
    from imgbuild.adapters.registry.download import stated_length  # noqa: PLC0415 - urllib3 takes 60 ms

    subject = f"source {pin.name}"
    if context.offline:
        raise OfflineMissError(subject, _OFFLINE)
    found = stated_length(context.registries, pin.url, subject=subject)
    if found is None:
        return Answer(detail="its length is not told")
    if found != pin.size:
        raise _other_size(subject, pin.size, found)
    return Answer(detail=f"{found} bytes by its server; they were not hashed")


def ask_member(context: Context, pin: LockedImageMember) -> Answer:
    """Ask for the manifest of an image, and for the layer that a file was read from, where that is known here.

    Raises:
        MissingError: one of them is gone. IntegrityError: one of them is something else.
        OfflineMissError, RegistryError: nobody answered.
    """
    reference = Reference.parse(pin.image, where=f"pins.sources[{pin.name}].image")
    digest = reference.pinned(where=f"pins.sources[{pin.name}].image")
    local = reference.host == "localhost"
    if context.offline and not local:
        raise OfflineMissError(f"source {pin.name}", _OFFLINE)
    layer = holder(context, pin)
    refused: AvailabilityError | IntegrityError | None = None
    for repository in context.based_on(reference.name).places.repositories if local else [_own(context, reference)]:
        try:
            _ask_manifest(repository, digest, pin.platform)
            return Answer(detail=_ask_layer(repository, layer), where=str(repository))
        except (BudgetError, StorageError):
            raise
        except (AvailabilityError, IntegrityError) as error:
            refused = refused or error
    if local and context.store.has(digest):
        return _in_store(context, digest, layer)
    raise refused or AvailabilityError(
        f"source {pin.name}", "is in an image that is not in the store here, and its name is of no registry"
    )


def _own(context: Context, reference: Reference) -> Repository:
    """The place that the lock names: a mirror that still has the image would hide the loss."""
    from imgbuild.adapters.registry.repository import Repository  # noqa: PLC0415 - urllib3 takes 60 ms

    return Repository(context.registries.of(reference.host), reference.repository)


def _ask_manifest(repository: Repository, digest: Digest, platform: str) -> None:
    found = repository.manifest(digest)
    if found.is_index:
        subject = f"index {digest} of {repository}"
        index = Index.parse(found.raw, media_type=found.descriptor.media_type, subject=subject)
        repository.manifest(index.select(platform, subject=subject).descriptor.digest)


def _ask_layer(repository: Repository, layer: HolderMemo | None) -> str:
    from imgbuild.adapters.registry.blobs import blob_size  # noqa: PLC0415 - urllib3 takes 60 ms

    if layer is None:
        return "its manifest was asked for; which layer has the file is not known here"
    blob = Descriptor(media_type=Family.OCI.layer_gzip, digest=layer.digest, size=layer.size)
    found = blob_size(repository, blob)
    if found is None:
        raise MissingError(f"layer {layer.digest}", f"is not in the registry: {layer.digest}, which has the file")
    if found not in {-1, layer.size}:
        raise _other_size(f"layer {layer.digest}", layer.size, found)
    return f"its manifest, and layer {layer.digest}, which has the file"


def _in_store(context: Context, digest: Digest, layer: HolderMemo | None) -> Answer:
    limit = DEFAULT_LIMITS.manifest_bytes
    context.store.read(digest, subject=f"manifest {digest}", max_bytes=limit)
    if layer is not None and not context.store.has(layer.digest, layer.size):
        raise MissingError(f"layer {layer.digest}", f"is not in the store: {layer.digest}, which has the file")
    known = "the layer that has the file" if layer is not None else "no layer, as none is known to have the file"
    return Answer(detail=f"its manifest, and {known}", where=f"the store here, {context.store.root}")


def _other_size(subject: str, expected: int, found: int) -> DigestMismatchError:
    return DigestMismatchError(
        subject, "is there with another size", expected=f"{expected} bytes", actual=f"{found} bytes"
    )
