"""A merged image for checks: the tree with and without the change, small files, and the bytes of large ones."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from imgbuild.content.node import ARCHIVE, ELF, LINK, Node, marks_of
from imgbuild.content.packages import Distribution, distributions
from imgbuild.digest import Digest
from imgbuild.model.paths import show
from imgbuild.steps.layers import contents, read_file

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    from imgbuild.content.inventory import ElfRecord, Inventory
    from imgbuild.content.tree import Tree
    from imgbuild.model.oci import Descriptor
    from imgbuild.steps.base import Base
    from imgbuild.steps.context import Context


class View:
    """An image that is looked at. Also the `LibraryTree` of `content.loader`."""

    def __init__(
        self, context: Context, base: Base, layers: tuple[Descriptor, ...], added: tuple[Inventory, ...]
    ) -> None:
        """Merge the layers.

        Args:
            context: the surroundings.
            base: the base; its files come from the layers of its own manifest, whatever the image lists.
            layers: descriptors of the layers added.
            added: their inventories.

        Raises:
            ArchiveError: the layers cannot be merged.
        """
        self.base = base
        self.base_tree = base.tree()
        self.tree: Tree = self.base_tree.fork()
        self.added = added
        for index, inventory in enumerate(added):
            self.tree.apply(inventory, len(base.manifest.layers) + index)
        self._context = context
        self._layers = (*base.manifest.layers, *layers)

    @cached_property
    def installed(self) -> tuple[Distribution, ...]:
        """All distributions of the image."""
        return distributions(self.tree, self.read, self.base.parsed)

    @cached_property
    def installed_before(self) -> tuple[Distribution, ...]:
        """All distributions of the base."""
        return distributions(self.base_tree, lambda path: self._read(self.base_tree, path), self.base.parsed)

    @cached_property
    def _marked(self) -> tuple[tuple[bytes, Node], ...]:
        """All that the three below are of, in one search: it looks into half of the directories of an image."""
        return tuple(self.tree.marked(ELF | ARCHIVE | LINK, keep=False))

    @cached_property
    def elf_files(self) -> tuple[tuple[bytes, Node], ...]:
        """All regular files with ELF facts, or that begin like ELF, by path."""
        return tuple(row for row in self._marked if marks_of(*row) & ELF)

    @cached_property
    def archives(self) -> tuple[tuple[bytes, Node], ...]:
        """All archives that seem to hold a library of the symbol families, by path."""
        return tuple(row for row in self._marked if marks_of(*row) & ARCHIVE)

    @cached_property
    def links(self) -> tuple[bytes, ...]:
        """The paths of all symbolic links."""
        return tuple(path for path, node in self._marked if marks_of(path, node) & LINK)

    def resolve(self, path: bytes) -> bytes | None:
        """The real path of a regular file, links followed."""
        found = self.tree.resolve(path)
        return found[0] if found is not None and found[1].type == "file" else None

    def listdir(self, path: bytes) -> Iterable[bytes]:
        """Names in a directory, links followed."""
        found = self.tree.resolve(path)
        return sorted(found[1].children) if found is not None and found[1].is_directory else ()

    def read(self, path: bytes) -> bytes | None:
        """The bytes of a small file, checked by its sha256; None where there is none."""
        return self._read(self.tree, path)

    def _read(self, tree: Tree, path: bytes) -> bytes | None:
        found = tree.resolve(path)
        if found is None or found[1].type != "file":
            return None
        return read_file(self._context, self._layers, found[1], show(found[0]))

    def elf(self, path: bytes) -> ElfRecord | None:
        """ELF facts of the file at a real path."""
        node = self.tree.get(path)
        return node.elf if node is not None else None

    def contents(self, node: Node) -> Generator[Iterator[bytes], None, None]:
        """The bytes of every entry that may be a node's, as `steps.layers.contents`; hash them to know which one is."""
        if 0 <= node.layer < len(self._layers):
            yield from contents(self._context, self._layers[node.layer], node)


def digest_of_node(node: Node | None) -> Digest | None:
    """The digest of a regular file's content."""
    return Digest("sha256", node.sha256) if node is not None and node.sha256 is not None else None
