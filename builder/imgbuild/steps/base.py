"""The base image: manifest and config by digest, and the inventories of its layers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from imgbuild.content.tree import Tree
from imgbuild.errors import (
    FactMismatchError,
    LayoutError,
)
from imgbuild.model.oci import Descriptor, ImageConfig, Manifest
from imgbuild.steps.inventories import take_inventories

if TYPE_CHECKING:
    from collections.abc import Iterable

    from imgbuild.content.inventory import Inventory
    from imgbuild.content.packages import Parsed
    from imgbuild.digest import Digest
    from imgbuild.model.lockfile import LockedBase
    from imgbuild.steps.context import Context

Machine = Literal["aarch64", "x86_64"]
_MACHINES: dict[str, Machine] = {"arm64": "aarch64", "amd64": "x86_64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """A base image as far as it was read."""

    manifest: Manifest
    descriptor: Descriptor
    config: ImageConfig
    merged: Tree
    """All its layers; not to be changed, as many look at it. The inventories are let go of once they are in it."""
    inventory_digests: tuple[Digest, ...]
    parsed: Parsed = field(default_factory=dict)
    """Distributions that were read, of this base or of what was put on it: most are the same."""

    def tree(self) -> Tree:
        """A merged view of all layers; what a caller changes in it is in no other one."""
        return self.merged.fork()


def merge(inventories: Iterable[Inventory]) -> Tree:
    """The merged view of layers, the lowest first; an `ArchiveError` where one cannot be applied."""
    tree = Tree()
    for index, inventory in enumerate(inventories):
        tree.apply(inventory, index)
    return tree


def open_base(context: Context, pin: LockedBase, *, platform: str, inventories: tuple[Digest, ...] | None) -> Base:
    """Read the base that a lock pins.

    Args:
        context: the surroundings, `based_on` its reference.
        pin: the pinned digests.
        platform: `linux/arm64`; the config must agree (case C40).
        inventories: the locked inventory digests, by layer; None where they are not known yet.

    Raises:
        OfflineMissError, MissingError: the base is neither in the store nor in its registry.
        RegistryError: what its registry says.
        FactMismatchError: config digest, platform or an inventory differ from the lock.
    """
    descriptor = Descriptor(media_type=pin.media_type, digest=pin.manifest, size=pin.manifest_size)
    manifest = context.places.manifest(descriptor)
    if manifest.config.digest != pin.config:
        raise FactMismatchError(
            f"base {pin.reference}", "has another config", expected=pin.config, actual=manifest.config.digest
        )
    config = read_config(context, manifest)
    check_platform(config, platform, subject=f"base {pin.reference}")
    found = take_inventories(context, manifest.layers, config.diff_ids, inventories, pin.manifest)
    digests = tuple(row.digest for row in found)
    found.reverse()
    return Base(
        manifest=manifest,
        descriptor=descriptor,
        config=config,
        # Each is let go of when it is in the tree: together they take as much memory as that.
        merged=merge(found.pop().inventory for _ in range(len(found))),
        inventory_digests=digests,
    )


def read_config(context: Context, manifest: Manifest) -> ImageConfig:
    """The config of an image, which lists one DiffID for each layer of the manifest; a `LayoutError` if not."""
    config = context.places.config(manifest.config)
    if len(config.diff_ids) != len(manifest.layers):
        raise LayoutError(
            f"config {config.digest}",
            f"lists another number of DiffIDs than manifest {manifest.digest} lists layers",
            expected=f"{len(manifest.layers)} DiffIDs",
            actual=len(config.diff_ids),
            hint="whatever wrote this image is broken; make it again",
        )
    return config


def check_platform(config: ImageConfig, platform: str, *, subject: str) -> None:
    """Refuse an image of another operating system or architecture."""
    actual = f"{config.os}/{config.architecture}"
    if actual != platform:
        raise FactMismatchError(
            subject,
            "is for another platform",
            expected=platform,
            actual=actual,
            hint="choose the manifest of that platform, or correct `platform` in the definition",
        )


def machine_of(platform: str) -> Machine:
    """The ELF machine of a platform."""
    return _MACHINES[platform.partition("/")[2]]
