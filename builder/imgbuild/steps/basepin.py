"""Which image a definition means by its base: a digest it names, else what a tag means now. Digests by their kind.

The store is looked at first, then the registry. A digest may be that of an index: then exactly one manifest of the
platform is in it, and the lock keeps both (cases P29, P30, C40).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from imgbuild import jsontext
from imgbuild.errors import FactMismatchError, LayoutError, MissingError, OfflineMissError, UnpinnedError
from imgbuild.model.lockfile import LockedBase
from imgbuild.model.oci import INDEX_TYPES
from imgbuild.model.ociindex import Index

if TYPE_CHECKING:
    from imgbuild.adapters.registry.repository import RemoteManifest
    from imgbuild.digest import Digest
    from imgbuild.model.image import ImageDefinition
    from imgbuild.model.oci import Descriptor
    from imgbuild.model.reference import Reference
    from imgbuild.steps.context import Context


def resolve_base(context: Context, definition: ImageDefinition, reference: Reference) -> LockedBase:
    """Look up what the base of a definition is.

    Args:
        context: the surroundings, `based_on` the reference.
        definition: whose base is meant.
        reference: its parsed reference.

    Raises:
        As `pin_base`.
    """
    wanted = definition.base
    if wanted.manifest is None and wanted.tag is None:
        raise UnpinnedError(
            f"base {reference}",
            "has nothing that says which image is meant",
            expected="a manifest digest or a tag",
            actual="neither",
            hint="set base.tag or base.manifest",
        )
    index, descriptor = _find(context, definition, wanted.manifest or wanted.tag or "")
    manifest = context.places.manifest(descriptor)
    return LockedBase(
        reference=reference.name,
        tag_for_humans=wanted.tag,
        index=index,
        manifest=descriptor.digest,
        media_type=descriptor.media_type,
        manifest_size=descriptor.size,
        config=manifest.config.digest,
    )


def check_index(context: Context, definition: ImageDefinition, pin: LockedBase) -> None:
    """Where a definition demands an index, refuse a pin whose manifest is not the one that this index has.

    The lock says which manifest of it is meant, and somebody may have edited it.

    Raises:
        FactMismatchError: the index has another manifest of the platform, or the pin names no index.
        LayoutError: what has that digest is no index, or one without exactly one manifest of the platform.
        OfflineMissError, MissingError, RegistryError: the index cannot be had.
    """
    wanted = definition.base.manifest
    if wanted in {None, pin.manifest}:
        return
    subject = f"index {wanted} of {pin.reference}"
    raw = None if wanted is None else context.cache.get(wanted)
    if raw is None:
        found = _find(context, definition, wanted or "")
        raw = None if found[0] is None or wanted is None else context.cache.get(wanted)
    if raw is None:
        raise LayoutError(subject, "is no index, and not the manifest that the lock pins", actual=str(pin.manifest))
    index = Index.parse(raw, media_type=_media_type(raw, subject), subject=subject)
    chosen = index.select(definition.platform, subject=subject).descriptor.digest
    if chosen != pin.manifest:
        raise FactMismatchError(
            subject,
            f"has another manifest for {definition.platform} than the lock pins",
            expected=chosen,
            actual=pin.manifest,
            hint=f"was the lock edited? take that back, or move the base of {definition.name} by `--update base`",
        )


def _media_type(raw: bytes, subject: str) -> str:
    value = jsontext.loads(raw, subject=subject)
    stated = value.get("mediaType") if isinstance(value, dict) else None
    # Only OCI lets an index leave it out (image-spec, `image-index.md`).
    return stated if isinstance(stated, str) else INDEX_TYPES[0]


def _find(context: Context, definition: ImageDefinition, name: Digest | str) -> tuple[Digest | None, Descriptor]:
    """The index, if there is one, and the manifest of the platform."""
    try:
        return None, _in_store(context, name)
    except MissingError as error:
        if context.offline and context.places.could_ask:
            raise OfflineMissError(error.subject, error.problem, where=error.where, hint=error.hint) from error
        if not context.places.repositories:
            raise
    found = _at_registry(context, name)
    if found.descriptor.media_type not in INDEX_TYPES:
        return None, found.descriptor
    subject = f"index {found.descriptor.digest} of {definition.base.reference}"
    # Kept, so that a build without network can see which manifest it has.
    context.cache.keep(found.descriptor.digest, found.raw)
    index = Index.parse(found.raw, media_type=found.descriptor.media_type, subject=subject)
    return found.descriptor.digest, index.select(definition.platform, subject=subject).descriptor


def _in_store(context: Context, name: Digest | str) -> Descriptor:
    if isinstance(name, str):
        return context.store.resolve(name)
    return context.store.descriptor_of(name)


def _at_registry(context: Context, name: Digest | str) -> RemoteManifest:
    """What the first repository says; a tag is asked of the last one, which is no mirror and cannot be behind."""
    if isinstance(name, str):
        return context.places.repositories[-1].manifest(name)
    return context.places.first(lambda repository: repository.manifest(name))
