"""The base image: manifest and config by digest, and the inventories of its layers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from imgbuild.content.packages import distributions
from imgbuild.content.packagetable import dump_packages, load_packages
from imgbuild.content.tree import Tree
from imgbuild.content.treefile import TreeFile, dump_tree, small_files
from imgbuild.digest import Digest
from imgbuild.errors import FactMismatchError, LayoutError, MissingError
from imgbuild.model.oci import Descriptor, ImageConfig, Manifest
from imgbuild.model.paths import show
from imgbuild.steps.inventories import take_inventories
from imgbuild.steps.layers import read_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from imgbuild.content.inventory import Inventory
    from imgbuild.content.packages import Parsed
    from imgbuild.model.lockfile import Facts, LockedBase
    from imgbuild.steps.context import Context

Machine = Literal["aarch64", "x86_64"]
_MACHINES: dict[str, Machine] = {"arm64": "aarch64", "amd64": "x86_64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Merged:
    """A merged view, its digest, and what it says of packages."""

    file: TreeFile
    digest: Digest
    tree: Tree
    parsed: Parsed


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """A base image as far as it was read."""

    manifest: Manifest
    descriptor: Descriptor
    config: ImageConfig
    merged: Tree
    """All its layers; not to be changed, as many look at it."""
    inventory_digests: tuple[Digest, ...] = ()
    tree_digest: Digest | None = None
    """Of the file that `merged` was read from (`content.treefile`)."""
    parsed: Parsed = field(default_factory=dict)
    """Distributions that are known, of this base or of what was put on it: most are the same."""

    def tree(self) -> Tree:
        """A merged view of all layers; what a caller changes in it is in no other one."""
        return self.merged.fork()


def merge(inventories: Iterable[Inventory]) -> Tree:
    """The merged view of layers, the lowest first; an `ArchiveError` where one cannot be applied."""
    tree = Tree()
    for index, inventory in enumerate(inventories):
        tree.apply(inventory, index)
    return tree


def dump_base(
    context: Context, layers: tuple[Descriptor, ...], tree: Tree, inventories: tuple[Digest, ...]
) -> Iterator[bytes]:
    """The file of a merged view (`content.treefile`), in pieces; small files are read from the cache or the layers."""

    def read(path: bytes) -> bytes | None:
        found = tree.resolve(path)
        if found is None or found[1].type != "file":
            return None
        return read_file(context, layers, found[1], show(found[0]))

    parsed: Parsed = {}
    distributions(tree, read, parsed)
    return dump_tree(tree, inventories, dump_packages(parsed))


def open_base(
    context: Context,
    pin: LockedBase,
    *,
    platform: str,
    facts: Facts | None,
    preimages: frozenset[Digest] = frozenset(),
) -> Base:
    """Read the base that a lock pins.

    Args:
        context: the surroundings, `based_on` its reference.
        pin: the pinned digests.
        platform: `linux/arm64`; the config must agree (case C40).
        facts: the lock's: digests of inventories and of their merged view; None where they are not known yet. Without
            them a merged view of the cache is not taken: nothing says that it follows from the inventories.
        preimages: files of it that are going to be read: they are looked for where others published such, too.

    Raises:
        OfflineMissError, MissingError: the base is neither in the store nor in its registry.
        RegistryError: what its registry says.
        FactMismatchError: config digest, platform, an inventory or the merged view differ from the lock.
    """
    descriptor = Descriptor(media_type=pin.media_type, digest=pin.manifest, size=pin.manifest_size)
    manifest = context.places.manifest(descriptor)
    if manifest.config.digest != pin.config:
        raise FactMismatchError(
            f"base {pin.reference}", "has another config", expected=pin.config, actual=manifest.config.digest
        )
    config = read_config(context, manifest)
    check_platform(config, platform, subject=f"base {pin.reference}")
    known = _known(context, manifest, facts)
    if facts is not None and _look_for(context, manifest, config, facts, known, preimages):
        known = _known(context, manifest, facts)
    merged = known or _merge(context, manifest, config, facts)
    return Base(
        manifest=manifest,
        descriptor=descriptor,
        config=config,
        merged=merged.tree,
        inventory_digests=merged.file.inventories,
        tree_digest=merged.digest,
        parsed=merged.parsed,
    )


def _known(context: Context, manifest: Manifest, facts: Facts | None) -> _Merged | None:
    """The merged view of the cache, if it is the one that follows from the facts."""
    found = None if facts is None else context.cache.tree(facts.base_tree)
    if facts is None or found is None or found.inventories != tuple(row.inventory for row in facts.base_layers):
        return None
    return _opened(context, manifest, found, facts.base_tree)


def _opened(context: Context, manifest: Manifest, file: TreeFile, digest: Digest) -> _Merged:
    tree = file.tree()

    def read_record(folder: bytes) -> bytes:
        path = folder + b"/RECORD"
        found = tree.resolve(path)
        if found is None:
            raise MissingError(f"file {show(path)}", "is not in the base, of which the cache says that it is")
        return read_file(context, manifest.layers, found[1], show(found[0]))

    parsed = load_packages(file.packages, read_record, subject="merged view of the base")
    return _Merged(file=file, digest=digest, tree=tree, parsed=parsed)


def _look_for(
    context: Context,
    manifest: Manifest,
    config: ImageConfig,
    facts: Facts,
    known: _Merged | None,
    preimages: frozenset[Digest],
) -> bool:
    """Ask for what others published of layers that are not in the store; there reading is cheaper than asking.

    Returns:
        Whether there may be a merged view now.
    """
    layers, cache = manifest.layers, context.cache
    if len(facts.base_layers) != len(layers) or all(map(context.places.is_local, layers)):
        return False
    inventories = tuple(row.inventory for row in facts.base_layers)
    pairs = zip(layers, config.diff_ids, inventories, strict=True)
    missing = () if known else (row[2] for row in pairs if not cache.has_inventory(*row))
    inventories_missing = frozenset(missing)
    # Where the RECORDs are, the others are, too: they came together.
    small: frozenset[Digest] = frozenset()
    if known is not None and not all(map(cache.has_small, _records(known.parsed))):
        small = frozenset(row for row in small_files(known.file) if not cache.has_small(row))
    patched = frozenset(row for row in preimages if not cache.has_small(row))
    if not (inventories_missing or small or patched):
        return False
    from imgbuild.steps.published_search import Wanted, fetch_published  # noqa: PLC0415 - urllib3 takes 60 ms

    wanted = Wanted(
        tree=facts.base_tree,
        inventories=inventories,
        missing=inventories_missing,
        small=small,
        preimages=patched,
    )
    fetch_published(context, manifest.digest, wanted)
    return known is None


def _records(parsed: Parsed) -> Iterator[Digest]:
    return (Digest("sha256", record) for _, _, record in parsed if record is not None)


def _merge(context: Context, manifest: Manifest, config: ImageConfig, facts: Facts | None) -> _Merged:
    """The merged view of the base's layers, from their inventories."""
    wanted = None if facts is None else facts.base_tree
    inventories = None if facts is None else tuple(layer.inventory for layer in facts.base_layers)
    rows = take_inventories(context, manifest.layers, config.diff_ids, inventories)
    digests = tuple(row.digest for row in rows)
    rows.reverse()
    # Each is let go of when it is in the tree: together they take as much memory as that.
    tree = merge(rows.pop().inventory for _ in range(len(rows)))
    raw = b"".join(dump_base(context, manifest.layers, tree, digests))
    digest, _ = context.cache.put([raw])
    if wanted is not None and digest != wanted:
        raise FactMismatchError(
            "merged view of the base",
            "differs from the lock's",
            expected=wanted,
            actual=digest,
            where="facts.base_tree",
            hint="the layers are right; was the lock made by another version? `imgbuild lock IMAGE --complete`",
        )
    return _opened(context, manifest, TreeFile(raw, subject="merged view of the base"), digest)


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
