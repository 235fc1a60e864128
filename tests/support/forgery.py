"""Images whose documents agree with each other, made by somebody who knows the formats and changed one thing."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from typing import TYPE_CHECKING, Any

from imgbuild import jsontext
from imgbuild.adapters.store import StagedStore
from imgbuild.content.inventory import scan_layer
from imgbuild.digest import Digest
from imgbuild.errors import ArchiveError
from imgbuild.model.oci import Descriptor

from tests.support.refusals import blob, forge, locked

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.tiny import Tiny

RECEIPT = "usr/share/imgbuild/receipt.json"
LOCK = "usr/share/imgbuild/tiny.lock.json"


class Forgery:
    """The image `tiny` taken apart. Change it, then `finish`: digests, DiffIDs and the lock's result agree with it.

    `manifest`, `config` and `lock` are JSON values. The result in the lock follows what is changed by the methods and
    what `finish` writes, as that of a lock that was forged along with the image.
    """

    def __init__(self, tiny: Tiny) -> None:
        self._tiny = tiny
        self._store = tiny.context().store
        self.lock = locked(tiny)
        self.base_layers = len(self.lock["facts"]["base_layers"])
        self.manifest = self._json(self._store.resolve("tiny").digest)
        self.config = self._json(self.manifest["config"]["digest"])

    def index(self, name: str) -> int:
        """Where a layer that was added stands in the manifest."""
        names = [row["name"] for row in self.lock["result"]["layers"]]
        return self.base_layers + names.index(name)

    def path(self, index: int) -> Path:
        """Where the store has a layer."""
        return self._store.path(Digest.parse(self.manifest["layers"][index]["digest"]))

    def raw(self, index: int) -> bytes:
        """A layer as it is stored."""
        return self.path(index).read_bytes()

    def entries(self, name: str) -> dict[str, tuple[tarfile.TarInfo, bytes]]:
        """The entries of a layer that was added, in order."""
        return self.layer(self.index(name))

    def layer(self, index: int) -> dict[str, tuple[tarfile.TarInfo, bytes]]:
        """The entries of any layer, in order."""
        found = {}
        with tarfile.open(fileobj=io.BytesIO(gzip.decompress(self.raw(index)))) as archive:
            for info in archive:
                file = archive.extractfile(info) if info.isfile() else None
                found[info.name] = (info, b"" if file is None else file.read())
        return found

    def write(self, name: str, entries: dict[str, tuple[tarfile.TarInfo, bytes]]) -> None:
        """A layer with other entries."""
        raw = io.BytesIO()
        with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for info, data in entries.values():
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
        self.store(self.index(name), gzip.compress(raw.getvalue(), mtime=0), raw.getvalue())

    def store(self, index: int, packed: bytes, raw: bytes) -> None:
        """A layer with other bytes."""
        digest, size = self._store.put([packed])
        new = {"digest": str(digest), "size": size}
        self.manifest["layers"][index].update(new)
        self.config["rootfs"]["diff_ids"][index] = str(Digest.of(raw))
        inventory = str(_inventory(packed))
        rows = self.lock["result"]["layers"]
        if self.base_layers <= index < self.base_layers + len(rows):
            row = rows[index - self.base_layers]
            row.update(new, diff_id=str(Digest.of(raw)), inventory=inventory)

    def put(self, name: str, path: str, data: bytes, **row: Any) -> None:
        """A regular file in a layer, in place of what the layer has there; the receipt says it as it is."""
        entries = self.entries(name)
        there = entries.get(path)
        info = tarfile.TarInfo(path) if there is None else there[0]
        info.type, info.linkname = tarfile.REGTYPE, ""
        self.write(name, {**entries, path: (info, data)})
        if path != RECEIPT:
            new = {"digest": str(Digest.of(data)), "size": len(data), "type": "file", "mode": f"{info.mode:04o}"}
            self.state(path, {"change": "added", "owner": f"{info.uid}:{info.gid}", **self.row(path), **new, **row})

    def folder(self, name: str, path: str) -> None:
        """A new folder in a layer, which the receipt names."""
        info = tarfile.TarInfo(path)
        info.type, info.mode = tarfile.DIRTYPE, 0o755
        self.write(name, {**self.entries(name), path: (info, b"")})
        self.state(path, {"change": "added", "type": "directory", "mode": "0755", "owner": "0:0"})

    def drop(self, name: str, path: str) -> None:
        """A layer without one of its entries."""
        self.write(name, {key: value for key, value in self.entries(name).items() if key != path})

    def receipt(self) -> Any:
        """The receipt of the image."""
        return json.loads(self.entries("imgbuild")[RECEIPT][1])

    def row(self, path: str) -> dict[str, Any]:
        """What the receipt says about a path; nothing if it says nothing."""
        return next((dict(row) for row in self.receipt()["entries"] if row["path"] == f"/{path}"), {})

    def state(self, path: str, row: dict[str, Any] | None) -> None:
        """Let the receipt say something about a path, or nothing."""
        value = self.receipt()
        rows = [item for item in value["entries"] if item["path"] != f"/{path}"]
        rows += [] if row is None else [{**row, "path": f"/{path}"}]
        value["entries"] = sorted(rows, key=lambda item: str(item["path"]))
        self.put("imgbuild", RECEIPT, jsontext.dumps(value))

    def finish(self, *, follow: bool = True) -> None:
        """Write config, manifest and lock, and name the image; with `follow` the lock's result is this image."""
        config, size = self._store.put([jsontext.compact(self.config)])
        self.manifest["config"].update(digest=str(config), size=size)
        manifest, size = self._store.put([jsontext.compact(self.manifest)])
        assert isinstance(self._store, StagedStore)
        self._store.publish()
        self._store.tag("tiny", Descriptor(media_type=self.manifest["mediaType"], digest=manifest, size=size))
        if follow:
            self.lock["result"].update(config=str(config), manifest=str(manifest))
        forge(self._tiny, self.lock)

    def _json(self, digest: object) -> dict[str, Any]:
        value = json.loads(blob(self._tiny, digest).read_bytes())
        assert isinstance(value, dict)
        return value


def _inventory(packed: bytes) -> Digest:
    """The digest of a layer's inventory; of what cannot be read as a layer, that of nothing."""
    try:
        found = scan_layer(io.BytesIO(packed), subject="forged", spool=io.BytesIO, capture=lambda *_: None)
    except ArchiveError:
        return Digest.of(b"")
    return Digest.of(found.inventory.dump())
