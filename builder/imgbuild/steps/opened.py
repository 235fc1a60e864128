"""An image by what a command line calls it: a tag or digest of the store, or a reference in a registry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from imgbuild.steps.base import read_config

if TYPE_CHECKING:
    from imgbuild.adapters.registry.repository import Repository
    from imgbuild.digest import Digest
    from imgbuild.model.oci import Descriptor, ImageConfig, Manifest
    from imgbuild.steps.context import Context


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedImage:
    """One image of one platform; `repository` is None for one of the store."""

    context: Context
    """The surroundings, with the places of its blobs."""
    descriptor: Descriptor
    manifest: Manifest
    config: ImageConfig
    repository: Repository | None


def open_named(context: Context, text: str, *, digest: Digest | None, platform: str | None) -> OpenedImage:
    """Look up an image.

    Args:
        context: the surroundings.
        text: `host/repository` with a tag or digest, or the tag in the store.
        digest: the manifest in the store, where it is named by that instead.
        platform: of an index in a registry, the one to take.

    Raises:
        MissingError: it is not in the store.
        ImgbuildError: as `steps.images.open_image`, `Store.manifest` and `read_config`.
    """
    if "/" in text:
        from imgbuild.steps.images import open_image  # noqa: PLC0415 - urllib3 takes 60 ms

        found = open_image(context, text, platform=platform)
        return OpenedImage(
            context=found.context,
            descriptor=found.descriptor,
            manifest=found.manifest,
            config=found.config,
            repository=found.repository,
        )
    store = context.store
    descriptor = store.resolve(text) if digest is None else store.descriptor_of(digest)
    manifest = store.manifest(descriptor)
    config = read_config(context, manifest)
    return OpenedImage(context=context, descriptor=descriptor, manifest=manifest, config=config, repository=None)
