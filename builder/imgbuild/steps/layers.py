"""Layers as streams: read whole for an inventory, or up to the file that is wanted. Nothing of a layer is unpacked.

A file that a step needs is read from its layer up to the file's end, checked by the sha256 of the inventory, and kept
in the cache.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from imgbuild.adapters.spool import Spool
from imgbuild.config import DEFAULT_LIMITS
from imgbuild.content.compression import decompress
from imgbuild.content.inventory import LayerScan, scan_layer
from imgbuild.content.tarstream import EntryType, TarReader
from imgbuild.digest import Digest
from imgbuild.errors import ArchiveError, DigestMismatchError, LayoutError, MissingError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from imgbuild.adapters.cache import Cache
    from imgbuild.content.node import Node
    from imgbuild.digest import Readable
    from imgbuild.model.oci import Descriptor
    from imgbuild.progress import Task
    from imgbuild.steps.context import Context


def read_layer(
    context: Context, layer: Descriptor, diff_id: Digest, task: Task, *, assumed: bool = False, beside: bool = False
) -> LayerScan:
    """Read one layer whole. Digests are taken by the algorithms of those given, and not compared.

    With `beside` they are taken in other threads, for whoever reads one layer at a time. `assumed` is the DiffID that
    is not hashed (`scan_layer`).
    """
    with (
        open_layer(context, layer) as stream,
        context.progress.part(f"layer {layer.digest.encoded[:12]}", layer.size) as part,
    ):

        def advance(count: int) -> None:
            task.advance(count)
            part.advance(count)

        return scan(context.cache, stream, layer, diff_id, advance, assumed=assumed, beside=beside)


def scan(
    cache: Cache,
    stream: Readable,
    layer: Descriptor,
    diff_id: Digest,
    advance: Callable[[int], object],
    *,
    assumed: bool = False,
    beside: bool = False,
) -> LayerScan:
    """Read the stream of a layer whole; what small files later steps need goes into the cache. As `read_layer`."""

    def capture(digest: Digest, data: bytes) -> None:
        if not cache.has(digest):
            cache.keep(digest, data)

    with contextlib.closing(Spool(cache.folder("spool"))) as spool:
        return scan_layer(
            stream,
            subject=f"layer {layer.digest}",
            spool=spool.fresh,
            capture=capture,
            advance=advance,
            algorithms=(layer.digest.algorithm, diff_id.algorithm),
            diff_id=diff_id if assumed else None,
            beside=beside,
            # Damage is the likelier cause than a layer that was made so.
            broken=lambda digest, size: check_bytes(layer, digest, size),
        )


def check_bytes(layer: Descriptor, digest: Digest, size: int) -> None:
    """A `DigestMismatchError` if a layer's bytes are not those of its descriptor."""
    if (digest, size) != (layer.digest, layer.size):
        raise DigestMismatchError(
            f"layer {layer.digest}",
            "does not have its digest and size",
            expected=f"{layer.digest}, {layer.size} bytes",
            actual=f"{digest}, {size} bytes",
            hint="it is damaged where it comes from, or on the way; fetch it again, or have it repaired there",
        )


class Bounded:
    """A layer's stream that ends one byte after the layer should, for a file that somebody writes to meanwhile."""

    def __init__(self, stream: Readable, size: int) -> None:
        self._stream = stream
        self._left = size + 1

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; empty only at the end."""
        data = self._stream.read(min(size, self._left))
        self._left -= len(data)
        return data


@contextlib.contextmanager
def open_layer(context: Context, layer: Descriptor) -> Iterator[Readable]:
    """A layer's bytes as stored, unchecked but for their number.

    Where there are more or fewer, or they break their format, the digest is looked at first.
    """
    subject = f"layer {layer.digest}"
    with context.places.open(layer, subject=subject) as stream:
        local = context.places.is_stored(layer)
        if local and not context.places.is_local(layer):
            context.store.verify(layer.digest, layer.size, subject=subject)
        try:
            yield Bounded(stream, layer.size)
        except (ArchiveError, DigestMismatchError):
            if local:
                # Damage is the likelier cause than a layer that was made so, and says more.
                context.store.verify(layer.digest, layer.size, subject=subject)
            raise


def read_file(context: Context, layers: tuple[Descriptor, ...], node: Node, name: str) -> bytes:
    """The bytes of a small file of a layer, checked by the sha256 of its inventory."""
    if node.sha256 is None or node.source is None or not 0 <= node.layer < len(layers):
        raise MissingError(f"file {name}", "is in no layer of the image")
    digest = Digest("sha256", node.sha256)
    if node.size > DEFAULT_LIMITS.text_bytes:
        raise LayoutError(f"file {name}", "is too large to be read whole", actual=f"{node.size} bytes")
    data = context.cache.get(digest)
    if data is None:
        data = _extract(context, layers[node.layer], node, name)
        context.cache.keep(digest, data)
    return data


def contents(context: Context, layer: Descriptor, node: Node) -> Generator[Iterator[bytes], None, None]:
    """The bytes, in pieces, of every entry of a layer that may be a node's.

    Of several entries for one path the tree takes one (case C10), and the reader knows which by its bytes: take the
    one with the node's sha256, and stop there. Pieces that are not taken are passed over.
    """
    subject = f"layer {layer.digest}"
    with open_layer(context, layer) as stream:
        reader = TarReader(decompress(stream, subject=subject), subject=subject)
        for entry in reader:
            if entry.path == node.source and entry.type is EntryType.FILE and entry.size == node.size:
                yield reader.content()


def _extract(context: Context, layer: Descriptor, node: Node, name: str) -> bytes:
    actual = None
    with contextlib.closing(contents(context, layer, node)) as candidates:
        for pieces in candidates:
            data = b"".join(pieces)
            actual = Digest.of(data)
            if actual.encoded == node.sha256:
                return data
    if actual is None:
        raise MissingError(
            f"file {name}", "is not in the layer that its inventory names", where=f"layer {layer.digest}"
        )
    raise DigestMismatchError(
        f"file {name}", "differs from the inventory", expected=f"sha256:{node.sha256}", actual=actual
    )
