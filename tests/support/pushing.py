"""What pushes to one registry as the program does, with little patience, and keeps what was said meanwhile."""

from __future__ import annotations

import contextlib
import io
import json
import random
import shutil
from base64 import b64encode
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from imgbuild import jsontext
from imgbuild.adapters.cache import Cache
from imgbuild.adapters.registry.access import connect
from imgbuild.adapters.registry.blobs import read_blob
from imgbuild.adapters.registry.repository import Repository
from imgbuild.adapters.registry.uploads import Upload
from imgbuild.adapters.registry.uploadstate import UploadMemory
from imgbuild.adapters.store import Store
from imgbuild.digest import Digest
from imgbuild.ledger import Ledger
from imgbuild.model.identity import Report
from imgbuild.model.oci import Descriptor, Family, Manifest
from imgbuild.steps.context import Context
from imgbuild.steps.places import Places
from imgbuild.steps.push import move_tags, push

from tests.support.remote import QUICK, SHORT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import pytest
    from imgbuild.adapters.registry.session import Registries
    from imgbuild.adapters.registry.uploadsource import BlobSource
    from imgbuild.digest import Readable
    from imgbuild.steps.push import Pushed

    from tests.support.fault_registry import FaultRegistry
    from tests.support.registries import LocalRegistry

APP = "team/app"
CHUNK = 1000
"""bytes of a piece"""
DATA = random.Random(7).randbytes(3 * CHUNK + 500)
LAYERS = (DATA, b"small", b"")
"""of the image that `ready` makes"""


class Bytes:
    """A source of an upload in memory; `opened` has the offsets at which it was read."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.opened: list[int] = []

    @contextlib.contextmanager
    def open(self, offset: int) -> Iterator[Readable]:
        self.opened.append(offset)
        yield io.BytesIO(self.data[offset:])


class BreaksAt(Bytes):
    """A source that fails once, at a byte."""

    def __init__(self, data: bytes, at: int, error: BaseException) -> None:
        super().__init__(data)
        self.at = at
        self.error: BaseException | None = error

    @contextlib.contextmanager
    def open(self, offset: int) -> Iterator[Readable]:
        self.opened.append(offset)
        yield _Breaking(self, offset)


class _Breaking:
    def __init__(self, source: BreaksAt, offset: int) -> None:
        self._source = source
        self._place = offset

    def read(self, size: int, /) -> bytes:
        source = self._source
        if source.error is not None and self._place <= source.at < self._place + size:
            size = source.at - self._place
            if not size:
                error, source.error = source.error, None
                raise error
        data = source.data[self._place : self._place + size]
        self._place += len(data)
        return data


def blob_of(data: bytes) -> Descriptor:
    """The descriptor of a layer."""
    return Descriptor(media_type=Family.OCI.layer_gzip, digest=Digest.of(data), size=len(data))


@dataclass
class Client:
    """A repository, and what was noted of it. `known` is what the progress says is there, in bytes."""

    repository: Repository
    registries: Registries
    memory: UploadMemory
    ledger: Ledger
    notes: list[str]
    known: int = 0
    on_advance: Callable[[int], None] = field(default=lambda _: None)

    def upload(self, data: bytes, source: BlobSource | None = None, *, session: str | None = None) -> Descriptor:
        """Send a blob; `source` where its bytes shall come from another place than memory."""
        blob = blob_of(data)
        upload = Upload(self.repository, blob, source or Bytes(data), memory=self.memory, advance=self._advance)
        upload.run(session)
        return blob

    def said(self, text: str) -> bool:
        """Whether some note has a text in it."""
        return any(text in note for note in self.notes)

    def _advance(self, count: int) -> None:
        self.known += count
        self.on_advance(count)


class HasOrigin(Protocol):
    """A registry of any kind."""

    @property
    def host(self) -> str: ...


def client(
    registry: HasOrigin | str,
    folder: Path,
    *,
    name: str = APP,
    chunk: int | None = None,
    profile: str | None = None,
    ca: Path | None = None,
    plain: bool | None = None,
) -> Client:
    """A client whose uploads are kept in `folder`; several of one folder are as runs after each other."""
    host = registry if isinstance(registry, str) else registry.host
    rows = {"chunk-bytes": chunk, "profile": profile, "ca": None if ca is None else str(ca), "plain-http": plain}
    text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in rows.items() if value is not None)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "registries.toml"
    file.write_text(f'schema = "imgbuild/registries/v1"\n[registry."{host}"]\n{text}')
    ledger, notes = Ledger(), list[str]()
    registries = connect(file, ledger=ledger, offline=False, note=notes.append, times=SHORT, patience=QUICK)
    repository = Repository(registries.of(host), name)
    return Client(
        repository=repository,
        registries=registries,
        memory=UploadMemory(folder / "uploads"),
        ledger=ledger,
        notes=notes,
    )


def image_of(layers: Sequence[Descriptor], config: Descriptor, family: Family = Family.OCI, **fields: Any) -> Manifest:
    """The manifest of an image that has these blobs; `fields` are more of its fields."""
    body = {
        "schemaVersion": 2,
        "mediaType": family.manifest,
        "config": config.as_dict(),
        "layers": [layer.as_dict() for layer in layers],
        **fields,
    }
    return Manifest.parse(jsontext.compact(body), media_type=family.manifest, subject="image")


def config_of(text: str = "app") -> bytes:
    """The bytes of a config; another text gives another image."""
    return jsontext.compact({"architecture": "arm64", "os": "linux", "author": text, "rootfs": {"type": "layers"}})


def config_descriptor(raw: bytes) -> Descriptor:
    """Its descriptor."""
    return Descriptor(media_type=Family.OCI.config, digest=Digest.of(raw), size=len(raw))


@dataclass
class Shop:
    """A store with one image, and the context that a push is given."""

    store: Store
    context: Context
    manifest: Manifest

    def push(self, target: Repository, *tags: str) -> Pushed:
        """Push it, and tag it if it was read back as it should be; then the findings are right."""
        pushed, findings = push(self.context, target, self.manifest, self.manifest.raw)
        assert Report(findings=tuple(findings)).ok, findings
        move_tags(target, self.manifest, self.manifest.raw, tags)
        return pushed


def shop(
    found: Client,
    folder: Path,
    layers: Sequence[bytes],
    *,
    config: bytes | None = None,
    base: Sequence[Repository] = (),
    elsewhere: Sequence[Descriptor] = (),
) -> Shop:
    """An image of some layers in a store.

    Args:
        found: whose registries are asked.
        folder: for the store and the cache.
        layers: in the store.
        config: its bytes.
        base: repositories that have the layers `elsewhere`.
        elsewhere: layers of the image before those of the store.
    """
    config = config_of() if config is None else config
    store, cache = Store(folder / "store", ledger=found.ledger), Cache(folder / "cache", ledger=found.ledger)
    store.create()
    for data in (*layers, config):
        store.put([data])
    places = Places(store, cache, repositories=lambda: tuple(base))
    context = Context(
        root=folder, store=store, cache=cache, ledger=found.ledger, connect=lambda: found.registries, base=places
    )
    manifest = image_of([*elsewhere, *map(blob_of, layers)], config_descriptor(config))
    return Shop(store=store, context=context, manifest=manifest)


def ready(registry: HasOrigin, folder: Path, text: str = "app") -> tuple[Client, Shop]:
    """A client whose uploads are in pieces, and an image to push; another text gives another image."""
    found = client(registry, folder, chunk=CHUNK)
    return found, shop(found, folder / text, LAYERS, config=config_of(text))


def tags(registry: FaultRegistry) -> dict[str, str]:
    """The tags of the repository, with the digests that they name."""
    return registry.repository(APP).tags


def log_in(monkeypatch: pytest.MonkeyPatch, folder: Path, host: str, user: str, password: str) -> None:
    """Write the client configuration that `docker login` would, and have it found."""
    folder.mkdir(parents=True, exist_ok=True)
    word = b64encode(f"{user}:{password}".encode()).decode()
    (folder / "config.json").write_text(json.dumps({"auths": {host: {"auth": word}}}))
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))


def stored(found: Client, data: bytes) -> bytes:
    """The bytes that the repository has under the digest of some bytes, checked."""
    return read_blob(found.repository, blob_of(data), 1 << 30)


def pieces(registry: FaultRegistry) -> list[str]:
    """The `Content-Range` of all pieces that were sent."""
    return [one.headers["content-range"] for one in registry.requests("upload-patch")]


def received(registry: FaultRegistry) -> int:
    """Bytes of blobs that arrived and were not refused: of what is refused, a server reads some and drops it."""
    kinds = {"upload-patch", "upload-put"}
    return sum(one.body_bytes_read for one in registry.requests() if one.kind in kinds and one.status < 400)


def states(folder: Path) -> list[Path]:
    """What is kept of uploads that have begun."""
    return sorted((folder / "uploads").glob("*.json"))


class StoppedError(Exception):
    """What a test ends an upload with."""


def stop_between(found: Client, count: int) -> None:
    """End the upload after so many pieces, while no request is on its way; as if the process were killed there."""
    seen = [0]

    def advance(moved: int) -> None:
        seen[0] += moved == 0
        if seen[0] > count:
            raise StoppedError

    found.on_advance = advance


def expire(registry: LocalRegistry) -> None:
    """Have the registry forget all uploads."""
    if registry.fault is not None:
        registry.fault.uploads.expire()
    else:
        assert registry.storage is not None
        for folder in registry.storage.glob("docker/registry/v2/repositories/*/*/_uploads"):
            shutil.rmtree(folder)
