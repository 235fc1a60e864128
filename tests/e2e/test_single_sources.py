"""A library from an operator's file, an address, or another image: always the same layer as from a wheel."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from imgbuild.cli import run

from tests.support.fault_registry import Answer, CloseInAnswer, Fault, FaultRegistry
from tests.support.refusals import cached, forge, locked, source
from tests.support.remote import Remote, moved
from tests.support.single import (
    INSIDE,
    digest_of_library,
    image_layers,
    lose,
    operators_file,
    other_image,
    take_from,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.tiny import Tiny

KINDS = ("file", "url", "image-member")


@pytest.fixture
def remote(tiny: Tiny, faulty: FaultRegistry, capsys: pytest.CaptureFixture[str]) -> Remote:
    return Remote(tiny=tiny, host=faulty.host, capture=capsys)


def nccl_layer(tiny: Tiny) -> str:
    rows = {row["name"]: row["diff_id"] for row in locked(tiny)["result"]["layers"]}
    return str(rows["tiny-nccl"])


def prepare(remote: Remote, faulty: FaultRegistry, folder: Path, kind: str) -> tuple[str, ...]:
    """Let the library come from a kind of source; returns the options that `lock` needs then."""
    tiny = remote.tiny
    if kind == "file":
        take_from(tiny, kind="file")
        return ("--source", f"nccl={operators_file(tiny)}")
    if kind == "url":
        faulty.put_blob("any", tiny.new_library)
        take_from(tiny, kind="url", url=f"{faulty.url}/cdn/{digest_of_library(tiny)}")
        return ()
    image = other_image(folder / "other", faulty.host, image_layers(tiny.new_library))
    take_from(tiny, kind="image-member", image=image, path=f"/{INSIDE}")
    return ()


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_gives_the_layer_of_the_wheel_and_what_is_locked_builds_offline(
    remote: Remote, faulty: FaultRegistry, tmp_path: Path, kind: str
) -> None:
    tiny, wanted = remote.tiny, nccl_layer(remote.tiny)
    code, result = remote.run("lock", "tiny", *prepare(remote, faulty, tmp_path, kind))
    assert (code, result.get("status")) == (0, "written"), result
    assert nccl_layer(tiny) == wanted
    pin = source(locked(tiny), "nccl")
    assert (pin["kind"], pin["digest"], pin["size"]) == (kind, digest_of_library(tiny), len(tiny.new_library))
    code, result = remote.run("build", "tiny", "--offline")
    assert (code, result.get("ok")) == (0, True), result
    assert {row["check"]: row["verdict"] for row in result["findings"]}["library.nccl.digest"] == "match"


@pytest.mark.parametrize("kind", KINDS)
def test_a_lock_that_is_made_anew_is_the_same_whoever_had_the_bytes(
    remote: Remote, faulty: FaultRegistry, tmp_path: Path, kind: str
) -> None:
    options = prepare(remote, faulty, tmp_path, kind)
    assert remote.run("lock", "tiny", *options)[0] == 0
    path = remote.tiny.project().lock_path("tiny")
    first = path.read_bytes()
    assert remote.run("lock", "tiny", "--update", "nccl")[1]["status"] == "current"
    lose(remote.tiny)
    assert remote.run("lock", "tiny", "--update", "nccl", "--source", f"nccl={operators_file(remote.tiny)}")[0] == 0
    assert path.read_bytes() == first


@pytest.mark.parametrize("kind", KINDS)
def test_a_build_fetches_or_is_given_what_its_cache_has_lost(
    remote: Remote, faulty: FaultRegistry, tmp_path: Path, kind: str
) -> None:
    options = prepare(remote, faulty, tmp_path, kind)
    assert remote.run("lock", "tiny", *options)[0] == 0
    lose(remote.tiny)
    code, error = remote.run("build", "tiny", "--offline")
    assert (code, error["code"]) == (5, "MISSING" if kind == "file" else "OFFLINE_MISS")
    assert "nccl" in error["subject"] or kind == "image-member"
    if kind != "image-member":
        assert "--source nccl=FILE" in error["hint"]
    code, result = remote.run("build", "tiny", *options)
    assert (code, result.get("ok")) == (0, True), result
    lose(remote.tiny)
    given = ("--source", f"nccl={operators_file(remote.tiny)}")
    assert remote.run("build", "tiny", "--offline", *given)[0] == 0


def plan(remote: Remote) -> tuple[int, dict[str, Any]]:
    remote.capture.readouterr()
    code = run(["plan", "tiny", "--json", "--project", str(remote.tiny.root)])
    return code, json.loads(remote.capture.readouterr().out)["result"]


def test_plan_says_where_each_is_from(remote: Remote, faulty: FaultRegistry, tmp_path: Path) -> None:
    for kind, word in (("file", "operator"), ("url", "/cdn/"), ("image-member", f"/{INSIDE} of ")):
        assert remote.run("lock", "tiny", *prepare(remote, faulty, tmp_path / kind, kind))[0] == 0
        code, result = plan(remote)
        (step,) = [step for layer in result["layers"] for step in layer["steps"] if step["kind"] == "replace"]
        assert (code, digest_of_library(remote.tiny) in step["pin"], word in step["pin"]) == (0, True, True)


ELSE = [
    ("file", "digest", "sha256:" + "0" * 64),
    ("file", "size", 5),
    ("url", "digest", "sha256:" + "0" * 64),
    ("url", "url", "https://files.example/x"),
    ("url", "size", 5),
    ("image-member", "digest", "sha256:" + "0" * 64),
    ("image-member", "image", "host.example/team/other@sha256:" + "0" * 64),
    ("image-member", "path", "/usr/share/above"),
    ("image-member", "platform", "linux/amd64"),
]


@pytest.mark.parametrize(("kind", "field", "value"), ELSE)
def test_a_lock_that_was_made_for_something_else_is_refused(
    remote: Remote, faulty: FaultRegistry, tmp_path: Path, kind: str, field: str, value: Any
) -> None:
    options = prepare(remote, faulty, tmp_path, kind)
    remote.tiny.image["sources"]["nccl"]["size"] = len(remote.tiny.new_library)
    remote.tiny.write_definition()
    assert remote.run("lock", "tiny", *options)[0] == 0
    found = locked(remote.tiny)
    source(found, "nccl")[field] = value
    forge(remote.tiny, found)
    code, error = remote.run("build", "tiny")
    assert (code, error["code"]) == (3, "DOCUMENT_INVALID")
    assert "pins.sources[nccl]: was made for something else" in error["problem"]


def test_a_download_goes_on_after_a_break_and_is_counted(
    remote: Remote, faulty: FaultRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imgbuild.adapters.registry.patience.Patience.delay", lambda *_: 0.01)
    prepare(remote, faulty, tmp_path, "url")
    faulty.faults.add(Fault(action=CloseInAnswer(after_bytes=1000), kind="cdn", method="GET"))
    code, result = remote.run("lock", "tiny")
    assert code == 0, result
    gets = faulty.requests("cdn", "GET")
    assert [request.headers.get("range") for request in gets] == [None, "bytes=1000-"]
    assert all("authorization" not in request.headers for request in faulty.requests())
    assert moved(result, faulty.host)[0] >= len(remote.tiny.new_library)


def test_of_an_image_only_the_layers_down_to_the_file_are_read(
    remote: Remote, faulty: FaultRegistry, tmp_path: Path
) -> None:
    prepare(remote, faulty, tmp_path, "image-member")
    faulty.clear_log()
    assert remote.run("lock", "tiny")[0] == 0
    other = remote.tiny.image["sources"]["nccl"]["image"]
    manifest = json.loads(cached(remote.tiny, other.partition("@")[2]).read_bytes())
    low, middle, high = (layer["digest"] for layer in manifest["layers"])
    asked = [request.reference for request in faulty.requests("blob", "GET")]
    assert low not in asked
    assert (asked.count(high), asked.count(middle)) == (1, 2)
    assert not {cached(remote.tiny, digest).exists() for digest in (low, middle, high)} - {False}


# imgbuild check


def verdict(remote: Remote, *words: str) -> dict[str, Any]:
    _, result = remote.run("check", "tiny", *words)
    (row,) = [row for row in result["pins"] if row["name"] == "nccl"]
    found: dict[str, Any] = row
    return found


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imgbuild.cli.check._FIRST_SECONDS", 0.01)


@pytest.mark.usefixtures("_quick")
def test_check_asks_a_server_by_head(remote: Remote, faulty: FaultRegistry, tmp_path: Path) -> None:
    prepare(remote, faulty, tmp_path, "url")
    assert remote.run("lock", "tiny")[0] == 0
    faulty.clear_log()
    row = verdict(remote)
    assert (row["kind"], row["verdict"], row["pin"]) == ("url", "alive", digest_of_library(remote.tiny))
    assert [request.method for request in faulty.requests("cdn")] == ["HEAD"]
    for status, expected in (
        (404, "gone"),
        (410, "gone"),
        (403, "not-allowed"),
        (401, "not-allowed"),
        (500, "unreachable"),
    ):
        faulty.faults.clear()
        faulty.faults.add(Fault(action=Answer(status=status), kind="cdn", times=None))
        assert verdict(remote)["verdict"] == expected
    faulty.faults.clear()
    faulty.storage.blobs[digest_of_library(remote.tiny)] = faulty.storage.blobs[faulty.put_blob("any", b"short")]
    assert verdict(remote)["verdict"] == "differs"
    assert verdict(remote, "--offline")["verdict"] == "unreachable"


@pytest.mark.usefixtures("_quick")
def test_check_asks_for_manifest_and_layer_of_an_image(remote: Remote, faulty: FaultRegistry, tmp_path: Path) -> None:
    prepare(remote, faulty, tmp_path, "image-member")
    assert remote.run("lock", "tiny")[0] == 0
    faulty.clear_log()
    row = verdict(remote)
    assert (row["kind"], row["verdict"], "and layer sha256:" in row["detail"]) == ("image-member", "alive", True)
    assert {request.kind for request in faulty.requests()} == {"manifest", "blob"}
    assert not faulty.requests("blob", "GET")
    faulty.faults.add(Fault(action=Answer(status=404), kind="blob", times=None))
    assert verdict(remote)["verdict"] == "gone"
    faulty.faults.add(Fault(action=Answer(status=404), kind="manifest", times=None))
    row = verdict(remote)
    assert (row["verdict"], "the cache here has a copy" in row["detail"]) == ("gone", True)
    assert verdict(remote, "--offline")["verdict"] == "unreachable"


def test_check_looks_for_an_operators_file_here_and_says_no_more_than_that(
    remote: Remote, faulty: FaultRegistry, tmp_path: Path
) -> None:
    assert remote.run("lock", "tiny", *prepare(remote, faulty, tmp_path, "file"))[0] == 0
    assert verdict(remote, "--offline")["verdict"] == "alive"
    path = cached(remote.tiny, digest_of_library(remote.tiny))
    path.write_bytes(b"damaged")
    assert verdict(remote)["verdict"] == "differs"
    assert path.exists()
    path.unlink()
    row = verdict(remote)
    assert (row["verdict"], "is not here" in row["detail"]) == ("unreachable", True)
    assert "--source nccl=FILE" in row["hint"]
