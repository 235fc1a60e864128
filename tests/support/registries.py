"""Registries that tests talk to: Debian's docker-registry as a process of its own, and the fault registry, alike."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import ssl
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tests.support.fault_registry import Auth, FaultRegistry
from tests.support.outside import tool

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

USER = "tester"
PASSWORD = "open sesame"  # noqa: S105  of servers on loopback that live for a test
PAIR = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
"""as `docker login` writes it"""
_HTPASSWD = "tester:$2y$04$imgbuildregistrytestuu8R.2Tf/Sxfn5xrTNFB1mHKZhs89t6M."
"""bcrypt of PASSWORD at its lowest cost; the standard library of newer Pythons cannot make one"""
READY_SECONDS = 10
RegistryKind = Literal["fault", "docker-registry"]
KINDS: tuple[RegistryKind, ...] = ("fault", "docker-registry")


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """A certificate for 127.0.0.1 and the authority that signed it, as PEM files."""

    ca: Path
    certificate: Path
    key: Path

    def server_context(self) -> ssl.SSLContext:
        """For a server that shows the certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        return context


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRegistry:
    """A registry on loopback: `host` is `127.0.0.1:PORT`, `url` has the scheme before it.

    `storage` and `log` are files of docker-registry; `fault` is the other kind itself.
    """

    kind: RegistryKind
    host: str
    url: str
    storage: Path | None = None
    log: Path | None = None
    pid: int | None = None
    fault: FaultRegistry | None = None


@contextlib.contextmanager
def any_registry(kind: RegistryKind, folder: Path, *, basic: bool = False) -> Iterator[LocalRegistry]:
    """A registry of a kind; `basic` asks for USER and PASSWORD. Both kinds allow DELETE."""
    if kind == "docker-registry":
        with docker_registry(folder, basic=basic) as found:
            yield found
        return
    auth = Auth(mode="basic" if basic else "none", users={USER: PASSWORD})
    with FaultRegistry(auth=auth) as registry:
        yield LocalRegistry(kind="fault", host=registry.host, url=registry.url, fault=registry)


@contextlib.contextmanager
def docker_registry(folder: Path, *, basic: bool = False, tls: Authority | None = None) -> Iterator[LocalRegistry]:
    """The real docker-registry with its storage and log under `folder`. Skips where it is absent, fails under CI.

    The port is chosen by the system and may be taken before the program listens; then another one is tried.
    """
    program = tool("docker-registry")
    folder.mkdir(parents=True, exist_ok=True)
    for _ in range(3):
        port = free_port()
        process = _start(program, folder, port, basic=basic, tls=tls)
        if _ready(process, port):
            break
        _end(process)
    else:
        raise AssertionError((folder / "registry.log").read_text())
    try:
        yield LocalRegistry(
            kind="docker-registry",
            host=f"127.0.0.1:{port}",
            url=f"{'https' if tls else 'http'}://127.0.0.1:{port}",
            storage=folder / "storage",
            log=folder / "registry.log",
            pid=process.pid,
        )
    finally:
        _end(process)


def make_authority(folder: Path) -> Authority:
    """A new authority and a certificate for 127.0.0.1, by openssl."""
    openssl = tool("openssl")
    folder.mkdir(parents=True, exist_ok=True)
    ca, ca_key, certificate, key = (folder / name for name in ("ca.pem", "ca.key", "server.pem", "server.key"))
    new = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30"]
    own = ["-subj", "/CN=test authority", "-addext", "keyUsage=critical,keyCertSign", "-keyout", str(ca_key)]
    subprocess.run([*new, *own, "-out", str(ca)], check=True, capture_output=True, timeout=60)
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    kind = ["-addext", "basicConstraints=critical,CA:FALSE", "-CA", str(ca), "-CAkey", str(ca_key)]
    subprocess.run(
        [*new, *names, *kind, "-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
        timeout=60,
    )
    return Authority(ca=ca, certificate=certificate, key=key)


def free_port() -> int:
    """A port of 127.0.0.1 on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def _start(program: str, folder: Path, port: int, *, basic: bool, tls: Authority | None) -> subprocess.Popen[bytes]:
    http: dict[str, object] = {"addr": f"127.0.0.1:{port}"}
    if tls is not None:
        http["tls"] = {"certificate": str(tls.certificate), "key": str(tls.key)}
    config: dict[str, object] = {
        "version": "0.1",
        "log": {"level": "info"},
        "storage": {
            "filesystem": {"rootdirectory": str(folder / "storage")},
            "delete": {"enabled": True},
            "maintenance": {"uploadpurging": {"enabled": False}},
        },
        "http": http,
    }
    if basic:
        (folder / "htpasswd").write_text(_HTPASSWD + "\n")
        config["auth"] = {"htpasswd": {"realm": "test", "path": str(folder / "htpasswd")}}
    (folder / "config.yml").write_text(json.dumps(config))
    with (folder / "registry.log").open("ab") as log:
        return subprocess.Popen(
            [program, "serve", str(folder / "config.yml")],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={"PATH": "/usr/bin:/bin", "OTEL_TRACES_EXPORTER": "none"},
        )


def _ready(process: subprocess.Popen[bytes], port: int) -> bool:
    end = time.monotonic() + READY_SECONDS
    while process.poll() is None and time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return process.poll() is None
        time.sleep(0.01)
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
