"""`build --load`: real daemons, and one of our own that does what daemons do wrong (cases P34 to P43)."""

from __future__ import annotations

import dataclasses
import gc
import http.server
import io
import json
import os
import socketserver
import subprocess
import tarfile
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pytest
from imgbuild.adapters.store import Store
from imgbuild.cli.results import TOOL
from imgbuild.cli.schemas import shipped
from imgbuild.ledger import Ledger
from imgbuild.steps import export_archive
from jsonschema import Draft202012Validator

from tests.support.dockerd import dockerd
from tests.support.fault_registry import FaultRegistry
from tests.support.outside import need_root, tool
from tests.support.refusals import blob, flip
from tests.support.remote import Remote, base_to

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imgbuild.model.oci import Manifest

    from tests.support.tiny import Tiny

NAME = "localhost/tiny:tiny"
NEWER = os.environ.get("IMGBUILD_NEWER_DOCKER")
"""A folder with usr/bin and usr/sbin of another Docker, which is then started with both of its stores, too."""
DAEMONS = ["installed", *(["newer, classic store", "newer, containerd store"] if NEWER else [])]


@pytest.fixture
def here(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> Remote:
    return Remote(tiny, "", capsys)


def image(tiny: Tiny) -> Manifest:
    store = Store(tiny.store_path, ledger=Ledger())
    return store.manifest(store.resolve("tiny"))


def check_document(result: dict[str, Any]) -> None:
    """Whether a result follows the schema that is shipped."""
    document = {"schema": "imgbuild/build-result/v1", "tool": TOOL, "result": result}
    Draft202012Validator(json.loads(shipped("build-result"))).validate(document)


def tagged(tiny: Tiny) -> bool:
    return "tiny" in Store(tiny.store_path, ledger=Ledger()).tags()


# Real daemons


@dataclass(frozen=True, kw_only=True)
class Daemon:
    """A dockerd on a socket of its own, without any network."""

    socket: Path
    containerd: bool

    def docker(self, *words: str) -> str:
        command = ["docker", "-H", f"unix://{self.socket}", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.fixture(scope="module", params=DAEMONS)
def daemon(request: pytest.FixtureRequest) -> Iterator[Daemon]:
    need_root()
    docker = tool("docker")
    path = "/usr/sbin:/usr/bin:/sbin:/bin"
    if request.param == "installed":
        tool("dockerd")
    else:
        path = f"{NEWER}/usr/sbin:{NEWER}/usr/bin:{NEWER}/usr/libexec/docker:{path}"
    containerd = request.param.endswith("containerd store")
    # A socket's path may have 107 bytes, and tmp_path is long.
    with tempfile.TemporaryDirectory(prefix="imgbuild-", ignore_cleanup_errors=True) as name:
        environment = {"PATH": path, "HOME": name}
        known = None if request.param == "installed" else containerd
        with dockerd(Path(name), environment, docker, containerd=known) as found:
            yield Daemon(socket=found.socket, containerd=containerd)


@pytest.fixture
def at(daemon: Daemon, here: Remote, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """The daemon, named by DOCKER_HOST; afterwards it has no image."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{daemon.socket}")
    yield daemon
    for identifier in set(daemon.docker("images", "-aq", "--no-trunc").split()):
        daemon.docker("rmi", "-f", identifier)


@pytest.mark.tools
def test_a_docker_has_the_image_under_our_digest_and_name(at: Daemon, here: Remote) -> None:
    code, found = here.run("build", "tiny", "--load")
    assert code == 0
    ours = "manifest" if at.containerd else "config"
    loaded = found["loaded"]
    assert (loaded["id"], loaded["matched"], loaded["sent"]) == (found[ours], ours, True)
    assert loaded["names"] == [NAME]
    [there] = json.loads(at.docker("inspect", NAME))
    assert there["Id"] == found[ours]
    assert there["RootFS"]["Layers"][-1] == found["layers"][-1]["diff_id"]
    assert at.docker("images", "-aq").split() == at.docker("images", "-q").split()


@pytest.mark.tools
def test_a_classic_store_that_has_the_image_gets_its_name_only(at: Daemon, here: Remote) -> None:
    assert here.run("build", "tiny", "--load")[0] == 0
    at.docker("tag", NAME, "localhost/other:1")
    at.docker("rmi", NAME)
    code, found = here.run("build", "tiny", "--load")
    assert (code, found["loaded"]["sent"]) == (0, at.containerd)
    assert json.loads(at.docker("inspect", NAME))[0]["Id"] == found["loaded"]["id"]


@pytest.mark.tools
def test_docker_load_reads_the_archive_under_its_name(at: Daemon, here: Remote, tmp_path: Path) -> None:
    code, found = here.run("build", "tiny", "--output", f"docker-archive:{tmp_path}/d.tar:localhost/a/b:v1")
    assert code == 0
    check_document(found)
    assert "localhost/a/b:v1" in at.docker("load", "-i", str(tmp_path / "d.tar"))
    [there] = json.loads(at.docker("inspect", "localhost/a/b:v1"))
    assert there["Id"] == found["manifest" if at.containerd else "config"]


@pytest.mark.tools
def test_a_blob_that_is_damaged_while_it_is_sent_leaves_no_image_in_docker(
    at: Daemon, here: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage_when_sent(here, monkeypatch)
    code, found = here.run("build", "tiny", "--load")
    assert (code, found["code"]) == (4, "DIGEST_MISMATCH")
    assert at.docker("images", "-aq") == ""
    assert not tagged(here.tiny)


@pytest.mark.tools
def test_a_base_that_is_in_a_registry_only_goes_through_to_docker(
    at: Daemon, here: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FaultRegistry() as registry:
        base_to(here.tiny, registry.host, monkeypatch)
        code, found = here.run("build", "tiny", "--load")
    assert code == 0
    assert json.loads(at.docker("inspect", NAME))[0]["Id"] == found["loaded"]["id"]
    assert not Store(here.tiny.store_path, ledger=Ledger()).has(image(here.tiny).layers[0].digest)


def damage_when_sent(here: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flip a bit of the last layer of the base when the archive begins, that is after the verification."""
    store = Store(here.tiny.store_path, ledger=Ledger())
    layer = blob(here.tiny, store.manifest(store.resolve("base")).layers[-1].digest)
    real = export_archive.Image.docker_entries

    def later(*arguments: Any) -> Any:
        flip(layer)
        return real(*arguments)

    monkeypatch.setattr(export_archive.Image, "docker_entries", later)


# A daemon that does wrong


@dataclass
class Fake:
    """What a daemon says. `tamper` changes the description of an image by its name as it was asked for."""

    containerd: bool = False
    version: dict[str, Any] = field(default_factory=lambda: {"ApiVersion": "1.41", "Version": "20.10.99"})
    load_status: int = 200
    load_lines: list[Any] = field(default_factory=list)
    forgets: bool = False
    hangs_up: bool = False
    tamper: dict[str, dict[str, Any]] = field(default_factory=dict)
    images: dict[str, dict[str, Any]] = field(default_factory=dict)
    archives: list[bytes] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def take(self, archive: bytes) -> None:
        """Know the image of an archive, as a daemon with this store names it."""
        self.archives.append(archive)
        if self.forgets:
            return
        with tarfile.open(fileobj=io.BytesIO(archive)) as file:
            files = {item.name: found.read() for item in file if (found := file.extractfile(item)) is not None}
        [row] = json.loads(files["manifest.json"])
        config = json.loads(files[row["Config"]])
        [named] = json.loads(files["index.json"])["manifests"]
        identifier = named["digest"] if self.containerd else f"sha256:{row['Config'].rpartition('/')[2]}"
        self.images[identifier] = {
            "Id": identifier,
            "RootFS": {"Layers": config["rootfs"]["diff_ids"]},
            "Os": config["os"],
            "Architecture": config["architecture"],
        }

    def find(self, name: str) -> Any:
        found = self.images.get(name)
        return None if found is None else {**found, **self.tamper.get(name, {})}


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    fake: Fake


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def address_string(self) -> str:
        return "unix"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        fake = self.server.fake
        path = self._path()
        if path == "version":
            self._json(fake.version)
        elif path == "info":
            kind = [["driver-type", "io.containerd.snapshotter.v1"]] if fake.containerd else [["Backing", "ext4"]]
            self._json({"DriverStatus": kind})
        else:
            found = fake.find(path.removeprefix("images/").removesuffix("/json"))
            self._json(found if found is not None else {"message": "No such image"}, 200 if found else 404)

    def do_POST(self) -> None:
        fake, path = self.server.fake, self._path()
        if path != "images/load":
            name = path.removeprefix("images/").removesuffix("/tag")
            query = dict(part.split("=") for part in self.path.partition("?")[2].split("&"))
            fake.images[unquote(f"{query['repo']}:{query['tag']}")] = fake.images[name]
            self._json({}, 201)
            return
        if fake.hangs_up:
            self.rfile.read(100)
            self.close_connection = True
            return
        fake.take(self._chunks())
        if fake.load_status != 200:
            self._json({"message": "no space left on device"}, fake.load_status)
            return
        self._stream(fake.load_lines or [{"stream": "Loaded image"}])

    def _path(self) -> str:
        path = unquote(self.path.partition("?")[0]).lstrip("/")
        self.server.fake.requests.append(f"{self.command} {path}")
        first, _, rest = path.partition("/")
        return rest if first.startswith("v1.") else path

    def _chunks(self) -> bytes:
        found = bytearray()
        while size := int(self.rfile.readline(), 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return bytes(found)

    def _json(self, value: Any, status: int = 200) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, lines: list[Any]) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for line in lines:
            data = (line if isinstance(line, str) else json.dumps(line)).encode() + b"\r\n"
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.write(b"0\r\n\r\n")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    with tempfile.TemporaryDirectory(prefix="imgbuild-") as folder, _Server(f"{folder}/s", _Handler) as server:
        server.fake = Fake()
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{folder}/s")
        yield server.fake
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("containerd", [False, True])
def test_either_digest_is_ours_and_the_document_says_which(here: Remote, fake: Fake, containerd: bool) -> None:
    fake.containerd = containerd
    code, found = here.run("build", "tiny", "--load")
    ours = "manifest" if containerd else "config"
    assert (code, found["loaded"]["matched"], found["loaded"]["id"]) == (0, ours, found[ours])
    check_document(found)
    assert fake.images[NAME]["Id"] == found[ours]


def test_what_is_sent_has_no_name_so_that_a_name_comes_after_the_proof(here: Remote, fake: Fake) -> None:
    assert here.run("build", "tiny", "--load")[0] == 0
    with tarfile.open(fileobj=io.BytesIO(fake.archives[0])) as file:
        manifest, index = (file.extractfile(name) for name in ("manifest.json", "index.json"))
        assert manifest is not None
        assert index is not None
        assert json.load(manifest)[0]["RepoTags"] is None
        assert "annotations" not in json.load(index)["manifests"][0]
    kinds = [request for request in fake.requests if request.startswith("POST")]
    assert kinds[0].endswith("images/load")
    assert kinds[1].endswith("/tag")


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # docker leaves a socket that did not connect
def test_no_answer_is_said_before_anything_is_built(
    here: Remote, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody")
    code, found = here.run("build", "tiny", "--load")
    assert (code, found["code"]) == (5, "TOOL_FAILED")
    gc.collect()
    assert found["actual"] == "No such file or directory"
    assert "DOCKER_HOST" in found["hint"]
    assert not tagged(here.tiny)


@pytest.mark.parametrize("host", ["nonsense://x", "tcp://user:open-sesame@127.0.0.1:1", "ssh://nobody@127.0.0.1", "%"])
def test_a_host_that_cannot_be_used_is_one_typed_error_without_its_password(
    here: Remote, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setenv("DOCKER_HOST", host)
    code, found = here.run("build", "tiny", "--load")
    assert (code, found["code"]) == (5, "TOOL_FAILED")
    assert "sesame" not in json.dumps(found)


@pytest.mark.parametrize("version", [{}, {"ApiVersion": "0.1", "Version": "x"}, {"ApiVersion": [], "Version": "x"}, []])
def test_what_answers_and_is_no_docker_is_a_typed_error(here: Remote, fake: Fake, version: Any) -> None:
    fake.version = version
    code, found = here.run("build", "tiny", "--load")
    assert (code, found["code"]) == (5, "TOOL_FAILED")
    assert not fake.archives


REFUSALS: dict[str, dict[str, Any]] = {
    "a status": {"load_status": 500},
    "an error in the stream": {"load_lines": [{"errorDetail": {"message": "x"}, "error": "no space left on device"}]},
    "a broken connection": {"hangs_up": True},
    "no json": {"load_lines": ["<html>"]},
    "success without the image": {"forgets": True},
}


@pytest.mark.parametrize("change", REFUSALS.values(), ids=REFUSALS)
def test_a_daemon_that_does_not_load_is_an_error_and_nothing_has_a_name(
    here: Remote, fake: Fake, change: dict[str, Any]
) -> None:
    for name, value in dataclasses.replace(fake, **change).__dict__.items():
        setattr(fake, name, value)
    code, found = here.run("build", "tiny", "--load")
    assert (code, found["code"]) == (5, "TOOL_FAILED")
    assert NAME not in fake.images
    assert not tagged(here.tiny)
    if "space" in json.dumps(change) or "load_status" in change:
        assert "no space left on device" in found["actual"]


@pytest.mark.parametrize(
    "change", [{"RootFS": {"Layers": [f"sha256:{'0' * 64}"]}}, {"Architecture": "amd64"}, {"Os": "windows"}]
)
def test_another_image_under_our_digest_gets_no_name(here: Remote, fake: Fake, change: dict[str, Any]) -> None:
    assert here.run("build", "tiny", "--dry-run")[0] == 0
    _, built = here.run("build", "tiny")
    fake.tamper = {built["config"]: change}
    code, found = here.run("build", "tiny", "--load")
    assert (code, found["code"]) == (4, "FACT_MISMATCH")
    assert NAME not in fake.images


@pytest.mark.parametrize("change", [{"Id": 5}, {"RootFS": None}, {"Id": "latest"}, {"Os": None, "Id": []}])
def test_a_description_that_nobody_knows_is_a_typed_error(here: Remote, fake: Fake, change: dict[str, Any]) -> None:
    _, built = here.run("build", "tiny")
    fake.tamper = {built["config"]: change}
    code, found = here.run("build", "tiny", "--load")
    assert (code, found["code"]) == (5, "TOOL_FAILED")


def test_a_name_that_is_moved_by_somebody_else_is_seen(here: Remote, fake: Fake) -> None:
    fake.tamper = {NAME: {"Id": f"sha256:{'1' * 64}"}}
    code, found = here.run("build", "tiny", "--load")
    assert (code, found["code"]) == (4, "FACT_MISMATCH")
    assert found["actual"] == f"sha256:{'1' * 64}"


def test_a_damaged_blob_is_told_as_such_and_not_as_a_fault_of_docker(
    here: Remote, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage_when_sent(here, monkeypatch)
    code, found = here.run("build", "tiny", "--load")
    assert (code, found["code"]) == (4, "DIGEST_MISMATCH")
    assert not fake.images


def test_a_dry_run_asks_no_docker(here: Remote, fake: Fake) -> None:
    code, found = here.run("build", "tiny", "--dry-run", "--load")
    assert (code, found.get("loaded")) == (0, None)
    assert fake.requests == []
