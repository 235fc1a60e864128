"""A merged image for checks: the tree with and without the change, small files, and the bytes of large ones."""

from __future__ import annotations

import contextlib
from functools import cached_property
from typing import TYPE_CHECKING

from imgbuild.content.compression import decompress
from imgbuild.content.elf import ElfFacts
from imgbuild.content.packages import Distribution, distributions
from imgbuild.content.tarstream import TarReader
from imgbuild.digest import Digest
from imgbuild.errors import MissingError
from imgbuild.model.paths import show
from imgbuild.steps.base import open_layer, read_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from imgbuild.content.inventory import Inventory
    from imgbuild.content.tree import Node, Tree
    from imgbuild.model.oci import Descriptor
    from imgbuild.steps.base import Base
    from imgbuild.steps.context import Context


class View:
    """An image that is looked at. Also the `LibraryTree` of `content.loader`."""

    def __init__(
        self, context: Context, base: Base, layers: tuple[Descriptor, ...], added: tuple[Inventory, ...]
    ) -> None:
        self.base = base
        self.base_tree = base.tree()
        self.tree: Tree = base.tree()
        self.added = added
        for index, inventory in enumerate(added):
            self.tree.apply(inventory, len(base.inventories) + index)
        self._context = context
        self._layers = layers

    @property
    def first_added(self) -> int:
        """Index of the first layer that is not the base's."""
        return len(self.base.inventories)

    @cached_property
    def installed(self) -> tuple[Distribution, ...]:
        """All distributions of the image."""
        return distributions(self.tree, self.read)

    @cached_property
    def elf_files(self) -> tuple[tuple[bytes, Node], ...]:
        """All regular files with ELF facts, or that begin like ELF, by path."""
        return tuple(
            (path, node)
            for path, node in self.tree.walk()
            if node.type == "file" and (node.elf is not None or node.elf_problem is not None)
        )

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
        found = self.tree.resolve(path)
        if found is None or found[1].type != "file":
            return None
        return read_file(self._context, self._layers, found[1], show(found[0]))

    def elf(self, path: bytes) -> ElfFacts | None:
        """ELF facts as the loader wants them."""
        node = self.tree.get(path)
        if node is None or node.elf is None:
            return None
        record = node.elf
        return ElfFacts(
            machine=record.machine,
            bits=record.bits,
            little_endian=True,
            kind=record.kind,
            soname=record.soname,
            needed=record.needed,
            rpath=record.rpath,
            runpath=record.runpath,
            interpreter=None,
            build_id=record.build_id,
            imports=record.imports,
            exports=record.exports,
            versions_needed=(),
            versions_defined=(),
        )

    @contextlib.contextmanager
    def stream(self, path: bytes) -> Iterator[Iterator[bytes]]:
        """The bytes of a file in pieces, read from its layer. They are not checked; hash them if that matters."""
        node = self.tree.get(path)
        if node is None or node.source is None or not 0 <= node.layer < len(self._layers):
            raise MissingError(f"file {show(path)}", "is in no layer of the image")
        layer = self._layers[node.layer]
        subject = f"layer {layer.digest}"
        with open_layer(self._context, layer) as stream:
            reader = TarReader(decompress(stream, subject=subject), subject=subject)
            for entry in reader:
                if entry.path == node.source and entry.type.value == "file":
                    yield reader.content()
                    return
        raise MissingError(f"file {show(path)}", "is not in the layer that its inventory names", where=subject)


def digest_of_node(node: Node | None) -> Digest | None:
    """The digest of a regular file's content."""
    return Digest("sha256", node.sha256) if node is not None and node.sha256 is not None else None
