"""A client of registries for tests: short patience, everything it says and counts, and a server that says anything."""

from __future__ import annotations

import contextlib
import hashlib
import socket
import traceback
from typing import TYPE_CHECKING, Self

from imgbuild.adapters.registry.access import connect
from imgbuild.adapters.registry.blobs import BlobStream, read_blob
from imgbuild.adapters.registry.patience import Patience
from imgbuild.adapters.registry.repository import Repository
from imgbuild.adapters.registry.wire import Times
from imgbuild.config import GIB
from imgbuild.digest import Digest
from imgbuild.errors import ImgbuildError
from imgbuild.ledger import Ledger
from imgbuild.model.oci import Descriptor

from tests.support.fault_registry import digest_of
from tests.support.listening import Listener
from tests.support.registries import PASSWORD

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    from tests.support.fault_registry import FaultRegistry

QUICK = Times(connect=5, idle=5, head=5, window=5)
HASTY = Patience(attempts=4, first=0.001, cap=0.002)
NAME = "team/app"
"""the repository of most tests"""
DATA = b"".join(hashlib.sha256(str(index).encode()).digest() for index in range(20_000))
"""a blob of 640,000 bytes of which no two parts are alike"""
DIGEST = digest_of(DATA)
SIZE = len(DATA)


def isolate(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """No credentials, settings and proxies of whoever runs the tests."""
    for name in ("DOCKER_CONFIG", "DOCKER_AUTH_CONFIG", "REGISTRY_AUTH_FILE", "XDG_CONFIG_HOME", "REQUEST_METHOD"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(home / "run"))


def settings(folder: Path, *tables: str) -> Path:
    """The settings of registries, as a file in a folder."""
    file = folder / "registries.toml"
    file.write_text("\n".join(['schema = "imgbuild/registries/v1"', *tables]))
    return file


class Client:
    """The registries of one command, as a context manager; `notes` is what it said, `waits` how often it slept."""

    def __init__(
        self,
        *,
        settings: Path | None = None,
        times: Times = QUICK,
        patience: Patience = HASTY,
        max_bytes: int | None = None,
        offline: bool = False,
    ) -> None:
        self.ledger = Ledger(max_bytes=max_bytes)
        self.notes: list[str] = []
        self.registries = connect(
            settings, ledger=self.ledger, offline=offline, note=self.notes.append, times=times, patience=patience
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.registries.close()

    def at(self, host: str, name: str = NAME) -> Repository:
        return Repository(self.registries.of(host), name)

    def read(self, host: str, digest: str, size: int, name: str = NAME) -> bytes:
        """A whole blob, checked."""
        return read_blob(self.at(host, name), described(digest, size), GIB)

    def stream(self, host: str, digest: str, size: int, offset: int = 0) -> BlobStream:
        return BlobStream(self.at(host), described(digest, size), offset=offset)

    def moved(self, place: str) -> tuple[int, int]:
        """Bytes read and written of a place."""
        return next(((row.read, row.written) for row in self.ledger.rows() if row.place == place), (0, 0))


def described(digest: str, size: int) -> Descriptor:
    return Descriptor(media_type="application/octet-stream", digest=Digest.parse(digest), size=size)


def all_text(error: BaseException) -> str:
    """Everything of an error that could be printed, by us or by Python."""
    fields = error.fields() if isinstance(error, ImgbuildError) else {}
    return f"{error} {error!r} {fields} {error.args} {''.join(traceback.format_exception(error))}"


def secrets(registry: FaultRegistry) -> set[str]:
    """All that must be in no text."""
    sent = {one.headers.get("authorization", "").partition(" ")[2] for one in registry.requests()}
    return (sent | {PASSWORD, *registry.auth.grants, *registry.auth.refresh_tokens}) - {""}


def check_silence(registry: FaultRegistry, client: Client, *errors: BaseException) -> None:
    """No secret is in an error, a note or a representation."""
    text = "".join([*map(all_text, errors), *client.notes, repr(client.registries), repr(vars(client.registries))])
    assert not [secret for secret in secrets(registry) if secret in text]


class Scripted(Listener):
    """A server that answers each connection by the next script, whatever is asked; the last one serves all others.

    A script is bytes, or a function of the socket that returns when the connection shall be closed.
    """

    def __init__(self, *scripts: bytes | Callable[[socket.socket], None]) -> None:
        super().__init__()
        self._scripts = scripts
        self.asked: list[bytes] = []

    def serve(self, sock: socket.socket, number: int, /) -> None:
        script = self._scripts[min(number, len(self._scripts) - 1)]
        with contextlib.suppress(OSError), sock:
            head = b""
            while b"\r\n\r\n" not in head and (data := sock.recv(65536)):
                head += data
            self.asked.append(head)
            if isinstance(script, bytes):
                sock.sendall(script)
                sock.shutdown(socket.SHUT_WR)
                sock.recv(65536)
            else:
                script(sock)
