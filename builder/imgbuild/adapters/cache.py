"""The cache: what can be made or fetched again, by digest, outside of the store. Always checked, never required."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from imgbuild.adapters.blobs import BlobFolder
from imgbuild.adapters.durable import remove, write_file
from imgbuild.config import DEFAULT_LIMITS, GIB
from imgbuild.content.inventory import Inventory
from imgbuild.digest import Digest
from imgbuild.errors import DocumentError, ImgbuildError

if TYPE_CHECKING:
    from imgbuild.ledger import Ledger

_INVENTORY_BYTES = 4 * GIB


def default_folder() -> Path:
    """`$IMGBUILD_CACHE`, else `$XDG_CACHE_HOME/imgbuild`, else `~/.cache/imgbuild`."""
    if chosen := os.environ.get("IMGBUILD_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "imgbuild"


class Cache(BlobFolder):
    """Blobs, inventories by DiffID, results of steps by key, and folders for tools."""

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

    def inventory(self, diff_id: Digest, expected: Digest | None = None) -> tuple[Inventory, Digest] | None:
        """The inventory of a layer and its digest; with `expected`, only one with that digest.

        The file's name holds its digest, so that a damaged one is found out and dropped.
        """
        for path in sorted(self._inventories.glob(f"{diff_id.encoded}.*")):
            try:
                raw = path.read_bytes() if path.stat().st_size <= _INVENTORY_BYTES else b""
            except OSError:
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

    def keep_inventory(self, inventory: Inventory) -> Digest:
        """Write an inventory; returns its digest."""
        raw = inventory.dump()
        digest = Digest.of(raw)
        write_file(self._inventories / f"{inventory.diff_id.encoded}.{digest.encoded}", raw)
        self.ledger.written(self.place, len(raw))
        return digest

    def result(self, key: Digest) -> bytes | None:
        """The small record kept under a key (the digest of all inputs of some work), or None."""
        path = self.root / "results" / key.encoded
        try:
            raw = path.read_bytes()
        except OSError:
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
