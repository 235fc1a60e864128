"""Manifests and configs by their descriptors, wherever the bytes come from."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from imgbuild.config import DEFAULT_LIMITS
from imgbuild.errors import LayoutError
from imgbuild.model.oci import INDEX_TYPES, ImageConfig, Manifest

if TYPE_CHECKING:
    from collections.abc import Callable

    from imgbuild.model.oci import Descriptor

ReadDocument: TypeAlias = "Callable[[Descriptor, str, int], bytes]"
"""Gives the bytes of a descriptor, checked by its digest and size; the subject is for errors, the bound is in bytes."""


def read_manifest(descriptor: Descriptor, read: ReadDocument) -> Manifest:
    """Read and check an image manifest; an index is a `LayoutError` before anything is read."""
    subject = f"manifest {descriptor.digest}"
    if descriptor.media_type in INDEX_TYPES:
        raise LayoutError(
            subject,
            "is an index",
            expected="an image manifest of one platform",
            hint="give the digest of one of the manifests that the index lists",
        )
    raw = read(descriptor, subject, DEFAULT_LIMITS.manifest_bytes)
    return Manifest.parse(raw, media_type=descriptor.media_type, subject=subject)


def read_config(descriptor: Descriptor, read: ReadDocument) -> ImageConfig:
    """Read and check an image config."""
    subject = f"config {descriptor.digest}"
    return ImageConfig.parse(read(descriptor, subject, DEFAULT_LIMITS.config_bytes), subject=subject)
