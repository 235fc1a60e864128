"""An image by its reference in a registry: which manifest that is, and where its bytes come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from imgbuild.adapters.registry.repository import Repository
from imgbuild.errors import FactMismatchError, UsageError
from imgbuild.model.oci import INDEX_TYPES
from imgbuild.model.ociindex import Index
from imgbuild.model.reference import Reference
from imgbuild.steps.base import check_platform, read_config

if TYPE_CHECKING:
    from imgbuild.digest import Digest
    from imgbuild.model.oci import Descriptor, ImageConfig, Manifest
    from imgbuild.steps.context import Context


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteImage:
    """One image of one platform."""

    context: Context
    """The surroundings, with its repositories as the places of its blobs."""
    repository: Repository
    """Where the reference says it is; mirrors are among the places only."""
    index: Digest | None
    """The index that the reference leads to, where it leads to one."""
    descriptor: Descriptor
    manifest: Manifest
    config: ImageConfig


def open_image(context: Context, text: str, *, platform: str | None, only: bool = False) -> RemoteImage:
    """Look up a reference: its manifest, or the one of the platform in its index, and its config.

    Args:
        context: the surroundings.
        text: `host/repository` with a tag, a digest or both; with both, the digest counts and the tag has to name it.
        platform: `os/architecture`; None takes any image, and refuses an index, where nothing says which is meant.
        only: whether every byte has to come from the repository that the reference names: not from a mirror, the store
            or the cache, which would say nothing about that repository.

    Raises:
        UsageError: neither a tag nor a digest; or an index and no platform.
        FactMismatchError: the tag names another digest; the config is for another platform (case C40).
        LayoutError: the index has not exactly one manifest of the platform.
        RegistryError, MissingError: as `Registry.call`.
    """
    reference = Reference.parse(text, where="REFERENCE")
    name = reference.digest or reference.tag
    if name is None:
        raise UsageError(f"reference {reference}", "has neither tag nor digest", hint="write name:tag or name@digest")
    repository = Repository(context.registries.of(reference.host), reference.repository)
    context = context.only_from(repository) if only else context.based_on(reference.name)
    if reference.tag is not None and reference.digest is not None:
        _check_tag(repository, reference.tag, reference.digest)
    found = repository.manifest(name)
    index, descriptor = None, found.descriptor
    if found.descriptor.media_type in INDEX_TYPES:
        subject = f"index {found.descriptor.digest} of {repository}"
        if platform is None:
            raise UsageError(f"reference {reference}", "is an index", hint="say which one with --platform linux/arm64")
        parsed = Index.parse(found.raw, media_type=found.descriptor.media_type, subject=subject)
        index, descriptor = found.descriptor.digest, parsed.select(platform, subject=subject).descriptor
    manifest = context.places.manifest(descriptor)
    config = read_config(context, manifest)
    if platform is not None:
        check_platform(config, platform, subject=f"image {reference}")
    return RemoteImage(
        context=context,
        repository=repository,
        index=index,
        descriptor=descriptor,
        manifest=manifest,
        config=config,
    )


def _check_tag(repository: Repository, tag: str, digest: Digest) -> None:
    there = repository.manifest_digest(tag)
    if there != digest:
        raise FactMismatchError(
            f"tag {repository}:{tag}",
            "names another digest than the reference",
            expected=digest,
            actual=there or "no such tag",
            hint="leave the tag out to look at that digest, or the digest to look at what the tag names now",
        )
