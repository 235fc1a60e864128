"""`imgbuild check` on wheels: real pip, and an index on loopback."""

from __future__ import annotations

import contextlib
import http.server
import os
import shutil
import time
from typing import TYPE_CHECKING, Any

import pytest
from imgbuild.adapters import offered
from imgbuild.config import KIB, MIB
from imgbuild.digest import Digest

from tests.support.checking import forget, one, serving
from tests.support.refusals import forge, locked, source
from tests.support.registries import free_port
from tests.support.remote import Remote
from tests.support.tiny import make_wheel

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.checking import Rows
    from tests.support.tiny import Tiny

HELPER = "helper-1.0-py3-none-any.whl"
PIECE = 64 * KIB


@pytest.fixture
def wheels(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> Remote:
    """A tiny project whose lock has one wheel."""
    forget(tiny, "nccl-wheel", "nccl")
    return Remote(tiny=tiny, host="", capture=capsys)


def add(remote: Remote, *names: str) -> None:
    """More wheels, each of a project of its own, in the folder of wheels and in the lock."""
    value = locked(remote.tiny)
    helper = source(value, "helper")
    for name in names:
        filename, data = make_wheel(name, "1.0", {f"{name}/__init__.py": b""})
        (remote.tiny.root / "wheels" / filename).write_bytes(data)
        digest = str(Digest.of(data))
        own = {"name": name, "distribution": name, "filename": filename, "digest": digest, "size": len(data)}
        value["pins"]["sources"].append({**helper, **own})
    forge(remote.tiny, value)


def wheel_rows(result: dict[str, Any]) -> Rows:
    """Rows of wheels by their names in the lock."""
    return {row["name"]: row for row in result["pins"] if row["kind"] == "wheel"}


class Index(http.server.BaseHTTPRequestHandler):
    """The simple API (PEP 503) of a folder of wheels; `statuses` and `types` of pages are by project.

    Hashes and metadata can be left out; `pace` is the seconds between two pieces of a wheel.
    """

    folder: Path
    statuses: dict[str, int]
    types: dict[str, str]
    hashes = True
    metadata = True
    pace = 0.0
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        parts = self.path.strip("/").split("/")
        if parts[0] == "files":
            name = parts[1].removesuffix(".metadata")
            data = (self.folder / name).read_bytes()
            return self.send(200, self.described(name) if parts[1] != name else data)
        status = self.statuses.get(parts[-1], 200)
        files = [path for path in sorted(self.folder.iterdir()) if path.name.startswith(parts[-1].replace("-", "_"))]
        links = "".join(self.link(path) for path in files)
        page = f"<html><body>{links}</body></html>".encode()
        return self.send(status if files or status != 200 else 404, page, self.types.get(parts[-1], "text/html"))

    def do_HEAD(self) -> None:
        size = (self.folder / self.path.rsplit("/", 1)[-1]).stat().st_size
        self.send_response(200)
        self.send_header("Content-Length", str(size))
        self.end_headers()

    def described(self, name: str) -> bytes:
        project, version = name.split("-")[:2]
        return f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n".encode()

    def link(self, path: Path) -> str:
        mark = f"#sha256={Digest.of(path.read_bytes()).encoded}" if self.hashes else ""
        core = ' data-core-metadata="true"' if self.metadata else ""
        return f'<a href="/files/{path.name}{mark}"{core}>{path.name}</a>'

    def send(self, status: int, body: bytes, media_type: str = "text/html") -> None:
        self.send_response(status)
        if status == 401:
            self.send_header("WWW-Authenticate", 'Basic realm="x"')
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(OSError):  # a pip that was ended hangs up
            for start in range(0, len(body), PIECE):
                self.wfile.write(body[start : start + PIECE])
                time.sleep(self.pace)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def index(wheels: Remote, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Index]]:
    """An index with the wheels of the project, and pip configured for it alone."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    folder = wheels.tiny.root / "wheels"
    handler = type("Handler", (Index,), {"folder": folder, "statuses": {}, "types": {}, "asked": []})
    with serving(handler) as port:
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_INDEX_URL", f"http://user:geheim@127.0.0.1:{port}/simple")
        yield handler


def test_wheels_are_alive_by_what_the_index_says_and_are_not_fetched(wheels: Remote, index: type[Index]) -> None:
    code, row = one(wheels, "helper")
    assert (code, row["verdict"]) == (0, "alive")
    assert not [path for path in index.asked if path.endswith(".whl")]


def test_a_wheel_or_a_project_that_is_not_in_the_index_is_gone(wheels: Remote, index: type[Index]) -> None:
    add(wheels, "absent")
    (index.folder / HELPER).rename(index.folder / "helper-2.0-py3-none-any.whl")
    (index.folder / "absent-1.0-py3-none-any.whl").unlink()
    code, result = wheels.run("check", "tiny")
    found = wheel_rows(result)
    assert code == 1
    assert {name: row["verdict"] for name, row in found.items()} == {"helper": "gone", "absent": "gone"}
    assert "imgbuild lock tiny --update helper" in found["helper"]["hint"]


@pytest.mark.parametrize("hashes", [True, False], ids=["hashes", "no hashes"])
def test_a_wheel_with_other_bytes_differs(wheels: Remote, index: type[Index], hashes: bool) -> None:
    index.hashes = index.metadata = hashes
    if not hashes:
        add(wheels, "same")
    name, data = make_wheel("helper", "1.0", {"helper/__init__.py": b"VALUE = 2\n"})
    (index.folder / name).write_bytes(data)
    code, row = one(wheels, "helper")
    assert (code, row["verdict"]) == (1, "differs")
    assert str(Digest.of(data)) in row["detail"]


def test_an_index_that_refuses_or_fails_has_lost_nothing(wheels: Remote, index: type[Index]) -> None:
    index.statuses.update(s401=401, s403=403, s429=429, s503=503)
    index.types["unlisted"] = "text/plain"
    add(wheels, *index.statuses, "unlisted")
    code, result = wheels.run("check", "tiny")
    found = wheel_rows(result)
    assert code == 5
    assert {name: row["verdict"] for name, row in found.items()} == {
        "helper": "alive",
        "s401": "not-allowed",
        "s403": "not-allowed",
        "s429": "unreachable",
        "s503": "unreachable",
        "unlisted": "unreachable",
    }
    for name, words in (("s429", "429 "), ("s503", "503 "), ("unlisted", "Content-Type: text/plain")):
        assert words in found[name]["detail"]
    assert "geheim" not in str(result)


def test_what_an_index_that_pip_passes_over_may_have_is_not_gone(
    wheels: Remote, index: type[Index], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "http://user:geheim@index.invalid/simple")
    (index.folder / HELPER).unlink()
    code, row = one(wheels, "helper")
    assert (code, row["verdict"]) == (5, "unreachable")
    assert "index.invalid is not a trusted or secure host" in row["detail"]
    assert "geheim" not in str(row)


def test_an_index_that_is_not_there_has_lost_nothing(
    wheels: Remote, index: type[Index], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{free_port()}/simple")
    code, row = one(wheels, "helper")
    assert (code, row["verdict"]) == (5, "unreachable")
    assert row["detail"].endswith(": Connection refused")


def test_a_folder_of_wheels_that_is_not_there_has_lost_nothing(wheels: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels.tiny.root / "nowhere"))
    code, row = one(wheels, "helper")
    assert (code, row["verdict"]) == (5, "unreachable")
    assert "is ignored" in row["detail"]


def test_a_wheel_gone_from_a_folder_is_gone(wheels: Remote) -> None:
    (wheels.tiny.root / "wheels" / HELPER).unlink()
    code, row = one(wheels, "helper")
    assert (code, row["verdict"]) == (1, "gone")
    assert "the cache here has a copy" in row["detail"]


def test_a_build_that_pip_prefers_says_nothing_of_the_pinned_one(wheels: Remote, index: type[Index]) -> None:
    shutil.copy(index.folder / HELPER, index.folder / "helper-1.0-1-py3-none-any.whl")
    code, row = one(wheels, "helper")
    assert (code, row["verdict"]) == (5, "unreachable")
    assert "helper-1.0-1-py3-none-any.whl" in row["detail"]


def test_a_big_wheel_is_not_fetched_to_learn_of_it(
    wheels: Remote, index: type[Index], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offered, "WHEEL_BYTES", 1024)
    index.metadata, index.pace = False, 0.05
    (index.folder / HELPER).write_bytes(bytes(16 * MIB))
    code, row = one(wheels, "helper")
    assert (code, row["verdict"]) == (5, "unreachable")
    assert "neither metadata" in row["detail"]


def test_every_host_of_a_toolchain_is_asked_for_once(wheels: Remote) -> None:
    value = locked(wheels.tiny)
    wheel = source(value, "helper")
    host = {"platforms": ["any"], "filename": wheel["filename"], "digest": wheel["digest"]}
    other = {**host, "digest": f"sha256:{'3' * 64}"}
    hosts = {"linux-x86_64": host, "macos-arm64": host, "linux-aarch64": other}
    zig = {"kind": "toolchain", "name": "zig", "distribution": "helper", "version": "1.0", "hosts": hosts}
    value["pins"]["sources"].remove(wheel)
    value["pins"]["sources"].append(zig)
    forge(wheels.tiny, value)
    code, result = wheels.run("check", "tiny")
    assert code == 1
    found = [row["verdict"] for row in result["pins"] if row["kind"] == "toolchain"]
    assert sorted(found) == ["alive", "differs"]
