"""Base images, written straight into the storage of a docker-registry: as large as wanted, and cheap to make.

All of them begin with the five layers of the stand-in, so that the same change can be made on each. What comes on top:

- `b4`: 15 layers of many files, so that the whole is like a real base: 4 GB in 20 layers, 120,000 files.
- `sized`: uncompressed layers with one file of zeros each. Digests are true; on disk they are holes.
- `claimed`: layers that nobody has ever read: the registry has holes of their sizes. Only for work that reads no layer.

Of the last two the inventories are known without reading them, and are put into a cache by `remember`.
"""

from __future__ import annotations

import hashlib
import json
import os
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

from imgbuild import jsontext
from imgbuild.adapters.cache import Cache, default_folder
from imgbuild.adapters.store import Store
from imgbuild.config import MIB
from imgbuild.content.compression import decompress
from imgbuild.content.inventory import Entry, Inventory
from imgbuild.digest import Digest, chunks
from imgbuild.ledger import Ledger
from imgbuild.model.oci import Descriptor, Family

from bench.synthetic import Written, copy_compressed, plans, read_corpus, tar_header, write_synthetic
from tests.standin import pins
from tests.standin.stack import EPOCH

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bench.synthetic import Corpus, Plan

STANDIN = "standin-base"
PLAIN = "application/vnd.oci.image.layer.v1.tar"
GZIP = Family.OCI.layer_gzip
_LIBRARY_BYTES = 7_550_000_000
_PACKAGES = 650
_SYNTHETIC_LAYERS = 15
_PIECES = 4
"""layers of a sized base besides the stand-in's, at most."""
_WORKERS = 2
_ZEROS = bytes(MIB)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A layer of a base; `inventory` where it is known without reading."""

    blob: Descriptor
    diff_id: Digest
    inventory: Inventory | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseImage:
    """A base in a registry; `size` is the bytes of its layers as stored."""

    name: str
    manifest: Digest
    layers: tuple[Layer, ...]
    files: int = 0

    @property
    def size(self) -> int:
        return sum(layer.blob.size for layer in self.layers)


class Storage:
    """The folder of a docker-registry (its driver `filesystem`), written while it runs: it keeps nothing in memory."""

    def __init__(self, root: Path) -> None:
        self._root = root / "docker/registry/v2"

    def blob(self, digest: Digest) -> Path:
        """Where the bytes of a blob are."""
        path = self._root / "blobs" / digest.algorithm / digest.encoded[:2] / digest.encoded / "data"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def put(self, data: bytes) -> Digest:
        digest = Digest.of(data)
        self.blob(digest).write_bytes(data)
        return digest

    def hole(self, digest: Digest, size: int, head: bytes = b"") -> None:
        """A blob of zeros after its head, which takes no room."""
        with self.blob(digest).open("wb") as file:
            file.write(head)
            file.truncate(size)

    def link(self, name: str, manifest: Digest, blobs: list[Digest], tag: str) -> None:
        """Let a repository have blobs, a manifest and a tag."""
        repository = self._root / "repositories" / name
        for blob in blobs:
            _link(repository / "_layers", blob)
        _link(repository / "_manifests/revisions", manifest)
        _link(repository / f"_manifests/tags/{tag}/index", manifest)
        current = repository / f"_manifests/tags/{tag}/current/link"
        current.parent.mkdir(parents=True, exist_ok=True)
        current.write_text(str(manifest))


def b4(storage: Storage, standin: Path, name: str, *, scale: float = 1.0) -> BaseImage:
    """The base with many files; `scale` makes it smaller, for trying out."""
    lower = [layer.blob.digest for layer in _standin(standin)]
    folder = Cache(default_folder(), ledger=Ledger())
    corpus = read_corpus(folder.path(pins.wheel("sglang").digest), folder.path(pins.zig().digest))
    rows = plans(int(_LIBRARY_BYTES * scale), max(_SYNTHETIC_LAYERS, int(_PACKAGES * scale)), _SYNTHETIC_LAYERS)
    store = Store(standin, ledger=Ledger())
    with ProcessPoolExecutor(_WORKERS, mp_context=get_context("fork")) as pool:
        above = [pool.submit(_synthetic, storage, plan, corpus) for plan in rows]
        below = [pool.submit(_recompressed, storage, store.path(digest)) for digest in lower]
        written = [future.result() for future in (*below, *above)]
    layers = [
        Layer(blob=Descriptor(media_type=GZIP, digest=row.digest, size=row.size), diff_id=row.diff_id)
        for row in written
    ]
    return _publish(storage, standin, name, layers, files=sum(row.files for row in written))


def sized(storage: Storage, standin: Path, name: str, size: int) -> BaseImage:
    """A base of `size` bytes, or of the stand-in's where that is more."""
    layers = _copied(storage, standin)
    left = size - sum(layer.blob.size for layer in layers)
    if left > MIB:
        files = [(f"opt/bulk/{number}.bin", left // _PIECES - 4096) for number in range(_PIECES)]
        with ThreadPoolExecutor(_WORKERS) as pool:
            layers += pool.map(lambda file: _zeros(storage, *file), files)
    return _publish(storage, standin, name, layers)


def claimed(
    storage: Storage, standin: Path, name: str, size: int, layers: int, entries: int = 0, *, tag: str = STANDIN
) -> BaseImage:
    """A base of `size` bytes in so many layers, and with so many entries, none of which is anywhere.

    The lowest layers are those of the image that has `tag` in the store `standin`.
    """
    found = _copied(storage, standin, tag)
    count = layers - len(found)
    each = (size - sum(layer.blob.size for layer in found)) // count
    for number in range(count):
        digest, diff_id = (Digest.of(f"{name} {number} {what}".encode()) for what in ("blob", "tar"))
        storage.hole(digest, each)
        rows = [_entry(f"opt/bulk{number}/{index}.bin", each // 100_000, diff_id) for index in range(entries // count)]
        inventory = Inventory(
            diff_id=diff_id, uncompressed_size=2 * each, entries=(*_folders(f"opt/bulk{number}/x"), *rows)
        )
        blob = Descriptor(media_type=GZIP, digest=digest, size=each)
        found.append(Layer(blob=blob, diff_id=diff_id, inventory=inventory))
    return _publish(storage, standin, name, found, tag=tag)


def remember(cache: Cache, base: BaseImage) -> None:
    """Put the inventories that are known without reading into a cache."""
    for layer in base.layers:
        if layer.inventory is not None:
            cache.keep_inventory(layer.blob, layer.inventory)


def _standin(store: Path, tag: str = STANDIN) -> list[Layer]:
    found = Store(store, ledger=Ledger())
    manifest = found.manifest(found.resolve(tag))
    config = found.config(manifest.config)
    return [Layer(blob=blob, diff_id=diff_id) for blob, diff_id in zip(manifest.layers, config.diff_ids, strict=True)]


def _copied(storage: Storage, standin: Path, tag: str = STANDIN) -> list[Layer]:
    store = Store(standin, ledger=Ledger())
    layers = _standin(standin, tag)
    for layer in layers:
        target = storage.blob(layer.blob.digest)
        if not target.exists():
            with store.open(layer.blob.digest, subject="stand-in") as source, target.open("wb") as file:
                file.writelines(chunks(source))
    return layers


def _synthetic(storage: Storage, plan: Plan, corpus: Corpus) -> Written:
    path = storage.blob(Digest.of(f"being written {plan.number}".encode()))
    with path.open("wb") as file:
        written = write_synthetic(plan, corpus, file)
    return _moved(storage, path, written)


def _recompressed(storage: Storage, source: Path) -> Written:
    path = storage.blob(Digest.of(f"being written {source.name}".encode()))
    with source.open("rb") as stream, path.open("wb") as file:
        written = copy_compressed(chunks(decompress(stream, subject="stand-in")), file)
    return _moved(storage, path, written)


def _moved(storage: Storage, path: Path, written: Written) -> Written:
    os.replace(path, storage.blob(written.digest))
    path.parent.rmdir()
    return written


def _zeros(storage: Storage, path: str, size: int) -> Layer:
    head = _tar_head(path, size)
    tail = -size % 512 + 1024
    body, whole = hashlib.sha256(), hashlib.sha256(head)
    left = size
    while left:
        count = min(left, len(_ZEROS))
        body.update(_ZEROS[:count])
        whole.update(_ZEROS[:count])
        left -= count
    whole.update(bytes(tail))
    digest = Digest("sha256", whole.hexdigest())
    total = len(head) + size + tail
    storage.hole(digest, total, head)
    entries = (*_folders(path), _entry(path, size, Digest("sha256", body.hexdigest())))
    inventory = Inventory(diff_id=digest, uncompressed_size=total, entries=entries)
    return Layer(blob=Descriptor(media_type=PLAIN, digest=digest, size=total), diff_id=digest, inventory=inventory)


def _tar_head(path: str, size: int) -> bytes:
    folders = [entry.path for entry in _folders(path)]
    return b"".join([*(tar_header(folder, None) for folder in folders), tar_header(path, size)])


def _folders(path: str) -> Iterator[Entry]:
    parts = path.split("/")[:-1]
    for count in range(1, len(parts) + 1):
        yield Entry(path="/".join(parts[:count]), type="directory", mode=0o755, mtime=EPOCH)


def _entry(path: str, size: int, digest: Digest) -> Entry:
    return Entry(path=path, type="file", mode=0o644, mtime=EPOCH, size=size, sha256=digest.encoded)


def _link(folder: Path, digest: Digest) -> None:
    path = folder / digest.algorithm / digest.encoded / "link"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(str(digest))


def _publish(
    storage: Storage, standin: Path, name: str, layers: list[Layer], files: int = 0, *, tag: str = STANDIN
) -> BaseImage:
    store = Store(standin, ledger=Ledger())
    manifest = store.manifest(store.resolve(tag))
    config: dict[str, Any] = json.loads(store.read(manifest.config.digest, subject="stand-in", max_bytes=MIB))
    config["rootfs"]["diff_ids"] = [str(layer.diff_id) for layer in layers]
    config["history"] += [{"created": config["created"], "created_by": "bench"}] * (len(layers) - len(manifest.layers))
    raw = jsontext.compact(config)
    digest = storage.put(raw)
    blobs = [layer.blob for layer in layers]
    document = {
        "schemaVersion": 2,
        "mediaType": Family.OCI.manifest,
        "config": Descriptor(media_type=Family.OCI.config, digest=digest, size=len(raw)).as_dict(),
        "layers": [blob.as_dict() for blob in blobs],
    }
    whole = storage.put(jsontext.compact(document))
    storage.link(name, whole, [digest, *(blob.digest for blob in blobs)], "base")
    return BaseImage(name=name, manifest=whole, layers=tuple(layers), files=files)
