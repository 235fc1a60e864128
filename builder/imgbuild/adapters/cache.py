"""The cache: what can be made or fetched again, by digest, outside of the store. Never required.

What is asked for by digest is checked. What is found by a name of ours (inventories where no lock has their digest,
memos, uploads that had begun) is as trustworthy as whoever can write here: keep others from it (SECURITY.md).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from imgbuild.adapters.blobs import BlobFolder, bounded, open_regular
from imgbuild.adapters.durable import remove, write_file
from imgbuild.adapters.home import user_folder
from imgbuild.config import DEFAULT_LIMITS, GIB, MIB
from imgbuild.content.inventory import Inventory
from imgbuild.content.treefile import TreeFile
from imgbuild.digest import Digest
from imgbuild.errors import DocumentError, ImgbuildError, UsageError

if TYPE_CHECKING:
    from imgbuild.ledger import Ledger
    from imgbuild.model.oci import Descriptor

_INVENTORY_BYTES = 4 * GIB
"""bytes; that of a layer with as many entries as we take, 800 bytes each. A merged view has fewer bytes an entry."""
_EMPTY = Digest.of(b"")
_RESULT_BYTES = 1 * MIB
"""bytes of a record; those that we write have less than 1 KiB."""


def default_folder() -> Path:
    """`$IMGBUILD_CACHE`, else `$XDG_CACHE_HOME/imgbuild`, else `~/.cache/imgbuild`; a `UsageError` without a home."""
    if chosen := os.environ.get("IMGBUILD_CACHE"):
        return Path(chosen)
    base = user_folder("XDG_CACHE_HOME", ".cache")
    if base is None:
        raise UsageError(
            "cache", "has no folder, since this user has no home", hint="set HOME or XDG_CACHE_HOME, or give --cache"
        )
    return base / "imgbuild"


class Cache(BlobFolder):
    """Blobs, inventories by layer and DiffID, results of steps by key, and folders for tools."""

    def __init__(self, root: Path, *, ledger: Ledger) -> None:
        super().__init__(root, place="cache", ledger=ledger)

    def get(self, digest: Digest, *, max_bytes: int = DEFAULT_LIMITS.text_bytes) -> bytes | None:
        """A whole small blob, or None if it is not here whole."""
        if not self.has(digest):
            return None
        try:
            return self.read(digest, subject=f"cached {digest}", max_bytes=max_bytes)
        except ImgbuildError:
            return None

    def has_small(self, digest: Digest) -> bool:
        """Whether a small blob is here, and not as a crash usually leaves one that was not synced: empty."""
        size = self.length(digest)
        return size is not None and (size > 0 or digest == _EMPTY)

    def keep(self, digest: Digest, data: bytes) -> None:
        """Keep a small blob under its digest, which is the caller's word, for whoever asks `get`.

        It is not synced: there are thousands of them, and one that a crash has damaged is as if it were not here.
        """
        with self.pending() as pending:
            pending.write(data)
            pending.commit(self.path(digest), durable=False)
        self.ledger.written(self.place, len(data))

    def inventory(
        self, layer: Descriptor, diff_id: Digest, expected: Digest | None = None
    ) -> tuple[Inventory, Digest] | None:
        """The inventory of a layer and its digest; with `expected`, only one with that digest.

        Only of a layer that was read as this blob, with this size and this DiffID: what one blob holds says nothing of
        another one that claims the same DiffID. The file's name holds the inventory's digest, too, so that a damaged
        one is found out and dropped.
        """
        for path in sorted(self._inventories.glob(f"{_proven(layer, diff_id)}.*")):
            raw = _read(path, _INVENTORY_BYTES)
            if raw is None:
                # Another process found it damaged and removed it, or it cannot be read: the layer can.
                continue
            digest = Digest.of(raw)
            self.ledger.read(self.place, len(raw))
            if path.suffix[1:] != digest.encoded:
                remove(path)
            elif expected in {None, digest}:
                try:
                    inventory = Inventory.load(raw, subject=str(path))
                except DocumentError:
                    inventory = None
                if inventory is not None and inventory.diff_id == diff_id:
                    return inventory, digest
                remove(path)
        return None

    def has_inventory(self, layer: Descriptor, diff_id: Digest, expected: Digest) -> bool:
        """Whether an inventory with that digest is here, taken here or by others. Its bytes are not looked at."""
        return self.has(expected) or (self._inventories / f"{_proven(layer, diff_id)}.{expected.encoded}").is_file()

    def claimed_inventory(self, diff_id: Digest, expected: Digest) -> Inventory | None:
        """An inventory that somebody else took, by its digest: only for whoever has the digest from a lock."""
        if not self.has(expected):
            return None
        try:
            raw = self.read(expected, subject=f"inventory {expected}", max_bytes=_INVENTORY_BYTES)
            inventory = Inventory.load(raw, subject=f"inventory {expected}")
        except ImgbuildError:
            return None
        return inventory if inventory.diff_id == diff_id else None

    def keep_inventory(self, layer: Descriptor, inventory: Inventory) -> Digest:
        """Write the inventory of a layer whose digest, size and DiffID have been checked; returns its digest."""
        raw = inventory.dump()
        digest = Digest.of(raw)
        write_file(self._inventories / f"{_proven(layer, inventory.diff_id)}.{digest.encoded}", raw)
        self.ledger.written(self.place, len(raw))
        return digest

    def tree(self, expected: Digest) -> TreeFile | None:
        """The merged view of a base, by its digest; it was put here as a blob.

        None where it is not here or cannot be used: it is made again then, and that refuses what has another digest.
        """
        if not self.has(expected):
            return None
        subject = f"merged view {expected}"
        try:
            return TreeFile(self.read(expected, subject=subject, max_bytes=_INVENTORY_BYTES), subject=subject)
        except ImgbuildError:
            return None

    def result(self, key: Digest) -> bytes | None:
        """The small record kept under a key (the digest of all inputs of some work), or None."""
        path = self.root / "results" / key.encoded
        raw = _read(path, _RESULT_BYTES)
        if raw is None:
            return None
        digest, _, body = raw.partition(b"\n")
        if digest.decode("ascii", "replace") != str(Digest.of(body)):
            remove(path)
            return None
        return body

    def keep_result(self, key: Digest, body: bytes) -> None:
        """Keep a small record under a key, with its own digest, so that damage is found out."""
        write_file(self.root / "results" / key.encoded, str(Digest.of(body)).encode() + b"\n" + body)

    def folder(self, name: str) -> Path:
        """A folder for what is not addressed by digest (tools, bare repositories, spool files)."""
        return self.root / name

    @property
    def _inventories(self) -> Path:
        return self.root / "inventories"


def _proven(layer: Descriptor, diff_id: Digest) -> str:
    """A name for the pair of a blob and the DiffID of what it holds."""
    return Digest.of(f"{layer.digest} {layer.size} {diff_id}".encode()).encoded


def _read(path: Path, limit: int) -> bytes | None:
    """A whole file; None if it cannot be read. Of one that is too long, one byte more than the limit."""
    try:
        with open_regular(path) as file:
            return b"".join(bounded(file, limit))
    except OSError:
        return None
