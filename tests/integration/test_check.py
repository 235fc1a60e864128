"""`imgbuild check`: registries with faults and a real one, git over HTTPS and from bundles, real pip and an index."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import http.server
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from imgbuild import jsontext
from imgbuild.adapters import gitprocess
from imgbuild.adapters.registry.access import connect
from imgbuild.adapters.registry.patience import Patience
from imgbuild.adapters.registry.repository import Repository
from imgbuild.adapters.registry.wire import Times
from imgbuild.cli import run
from imgbuild.digest import Digest
from imgbuild.model.oci import INDEX_TYPES
from imgbuild.steps.liveness import Verdict, check_pins

from tests.support.fault_registry import CONTROL, Answer, Blob, Busy, Fault, FlipBit, Hang, Reset
from tests.support.refusals import forge, locked, source
from tests.support.registries import KINDS, any_registry, make_authority
from tests.support.remote import BASE, Remote, base_to, moved, registries
from tests.support.tiny import make_wheel

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.fault_registry import Action, FaultRegistry
    from tests.support.registries import LocalRegistry, RegistryKind
    from tests.support.tiny import Tiny

Rows = dict[str, dict[str, Any]]


def rows(result: dict[str, Any]) -> Rows:
    """The pins of a result by what they are."""
    found = {row["what"]: row for row in result["pins"]}
    assert len(found) == len(result["pins"])
    return found


def base_rows(result: dict[str, Any]) -> Rows:
    return {what: row for what, row in rows(result).items() if row["kind"] == "base"}


def verdicts(result: dict[str, Any]) -> set[str]:
    return {row["verdict"] for row in result["pins"]}


def forget(tiny: Tiny, *names: str) -> None:
    """Take sources out of the lock that a test does not look at: pip takes a second for each wheel."""
    value = locked(tiny)
    value["pins"]["sources"] = [row for row in value["pins"]["sources"] if row["name"] not in names]
    forge(tiny, value)


WHEELS = ("helper", "nccl-wheel", "nccl")


def at(remote: Remote, **base: Any) -> Remote:
    """The base of a lock is in the registry itself from here on, under the tag `v1`, and no mirror is known."""
    value = locked(remote.tiny)
    value["pins"]["base"] |= {"reference": f"{remote.host}/{BASE}", "tag_for_humans": "v1", **base}
    forge(remote.tiny, value)
    return remote


def put_index(remote: Remote) -> Digest:
    """An index of the base's manifest, tagged `multi`."""
    repository = Repository(registries().of(remote.host), BASE)
    row = repository.manifest("v1").descriptor.as_dict()
    rows = [{**row, "platform": {"os": "linux", "architecture": "arm64"}}]
    raw = jsontext.compact({"schemaVersion": 2, "mediaType": INDEX_TYPES[0], "manifests": rows})
    repository.put_manifest(raw, INDEX_TYPES[0], tag="multi")
    return Digest.of(raw)


@pytest.fixture(params=KINDS)
def registry(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalRegistry]:
    kind: RegistryKind = request.param
    with any_registry(kind, tmp_path / "registry") as found:
        yield found


@pytest.fixture
def remote(
    tiny: Tiny, registry: LocalRegistry, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Remote:
    base_to(tiny, registry.host, monkeypatch)
    shutil.rmtree(tiny.cache_path)
    return at(Remote(tiny=tiny, host=registry.host, capture=capsys))


@pytest.fixture
def fault(tmp_path: Path) -> Iterator[FaultRegistry]:
    with any_registry("fault", tmp_path / "registry") as found:
        assert found.fault is not None
        yield found.fault


@pytest.fixture
def faulty(
    tiny: Tiny, fault: FaultRegistry, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Remote:
    base_to(tiny, fault.host, monkeypatch)
    monkeypatch.delenv("IMGBUILD_REGISTRIES")
    forget(tiny, *WHEELS)
    return at(Remote(tiny=tiny, host=fault.host, capture=capsys))


# The base


def test_P20_without_store_and_cache_all_pins_are_alive_and_no_layer_is_moved(remote: Remote) -> None:
    code, result = remote.run("check", "tiny")
    assert (code, result["ok"], result["complete"], verdicts(result)) == (0, True, True, {"alive"})
    assert list(rows(result)) == [
        "manifest",
        "config",
        "layer 1 of 3",
        "layer 2 of 3",
        "layer 3 of 3",
        "commit of adapter",
        "helper-1.0-py3-none-any.whl",
        "nccl_like-2.30.7-py3-none-any.whl",
    ]
    assert {row["where"] for row in base_rows(result).values()} == {f"{remote.host}/{BASE}"}
    assert result["tag"]["state"] == "same"
    assert moved(result, remote.host)[0] < 8 * 1024
    assert not remote.tiny.store_path.exists()


def test_no_layer_and_no_config_is_asked_for_by_more_than_its_head(faulty: Remote, fault: FaultRegistry) -> None:
    fault.clear_log()
    assert faulty.run("check", "tiny")[0] == 0
    assert {one.method for one in fault.requests("blob")} == {"HEAD"}


def test_P27_a_manifest_whose_tag_and_index_are_healthy_is_gone(faulty: Remote, fault: FaultRegistry) -> None:
    at(faulty, index=str(put_index(faulty)), tag_for_humans="multi")
    assert faulty.run("check", "tiny")[0] == 0
    del fault.repository(BASE).manifests[locked(faulty.tiny)["pins"]["base"]["manifest"]]
    code, result = faulty.run("check", "tiny")
    assert (code, result["ok"], result["complete"]) == (1, False, True)
    found = base_rows(result)
    assert found.pop("manifest")["verdict"] == "gone"
    assert {row["verdict"] for row in found.values()} == {"alive"}
    assert {"index", "config"} < set(found)
    assert result["tag"]["state"] == "same"


def test_P23_each_lost_layer_has_its_own_verdict_and_says_what_to_do(remote: Remote) -> None:
    forget(remote.tiny, *WHEELS)
    layer = locked(remote.tiny)["facts"]["base_layers"][1]
    connection = http.client.HTTPConnection(remote.host, timeout=10)
    with contextlib.closing(connection):
        connection.request("DELETE", f"/v2/{BASE}/blobs/{layer['digest']}")
        assert connection.getresponse().status == 202
    code, result = remote.run("check", "tiny")
    assert code == 1
    (lost,) = [row for row in result["pins"] if row["verdict"] != "alive"]
    assert (lost["what"], lost["verdict"], lost["pin"]) == ("layer 2 of 3", "gone", layer["digest"])
    assert "imgbuild lock tiny --update base" in lost["hint"]
    assert "mirror" in lost["hint"]


@pytest.mark.parametrize(
    ("action", "verdict", "code"),
    [
        (Answer(status=404), "gone", 1),
        (Answer(status=410), "gone", 1),
        (Answer(status=401), "not-allowed", 5),
        (Answer(status=403, body=CONTROL, media_type="application/json"), "not-allowed", 5),
        (Busy(retry_after=3600), "unreachable", 5),
        (Busy(retry_after=None), "unreachable", 5),
        (Answer(status=503), "unreachable", 5),
        (Answer(status=400), "unreachable", 5),
        (Reset(), "unreachable", 5),
    ],
    ids=lambda value: getattr(value, "status", None) or type(value).__name__,
)
@pytest.mark.parametrize("kind", ["manifest", "blob"])
def test_P25_statuses_are_told_apart(
    faulty: Remote, fault: FaultRegistry, action: Action, verdict: str, code: int, kind: str
) -> None:
    layer = locked(faulty.tiny)["facts"]["base_layers"][0]["digest"]
    what, digest = (
        ("layer 1 of 3", layer) if kind == "blob" else ("manifest", str(faulty.tiny.lock().pins.base.manifest))
    )
    fault.faults.add(Fault(action=action, path=digest, times=None))
    found, result = faulty.run("check", "tiny")
    assert found == code
    row = rows(result)[what]
    assert row["verdict"] == verdict
    assert row["detail"]
    assert row["hint"]
    assert (result["ok"], result["complete"]) == (False, code == 1)
    assert "\x1b" not in row["detail"]
    assert {row["verdict"] for name, row in rows(result).items() if row["kind"] != "base"} == {"alive"}
    if kind == "blob":
        assert len([row for row in result["pins"] if row["verdict"] != "alive"]) == 1


def test_what_fails_once_and_then_answers_is_alive(faulty: Remote, fault: FaultRegistry) -> None:
    for action in (Reset(), Busy(retry_after=0), Answer(status=502)):
        fault.faults.once(action)
        assert faulty.run("check", "tiny")[0] == 0
    assert not fault.faults.pending()


def test_a_manifest_with_other_bytes_and_a_layer_of_another_size_differ(faulty: Remote, fault: FaultRegistry) -> None:
    layer = locked(faulty.tiny)["facts"]["base_layers"][2]
    fault.faults.add(Fault(action=FlipBit(at=40), kind="manifest", path="sha256:", times=None))
    fault.repository(BASE).blobs[layer["digest"]] = Blob(digest=layer["digest"], size=7, piece=None)
    code, result = faulty.run("check", "tiny")
    found = rows(result)
    assert code == 1
    assert found["manifest"]["verdict"] == "differs"
    assert found["layer 3 of 3"]["verdict"] == "differs"
    assert f"expected {layer['size']} bytes; actual 7 bytes" in found["layer 3 of 3"]["detail"]
    assert found["config"]["verdict"] == "alive"


def test_what_is_lost_outweighs_what_could_not_be_asked(faulty: Remote, fault: FaultRegistry) -> None:
    first, second, _ = (row["digest"] for row in locked(faulty.tiny)["facts"]["base_layers"])
    fault.faults.add(Fault(action=Answer(status=404), path=first, times=None))
    fault.faults.add(Fault(action=Answer(status=403), path=second, times=None))
    code, result = faulty.run("check", "tiny")
    assert (code, result["ok"], result["complete"]) == (1, False, False)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def test_a_registry_that_nobody_answers_for_is_asked_once_and_its_parts_say_so(faulty: Remote) -> None:
    value = locked(faulty.tiny)
    value["pins"]["base"]["reference"] = f"127.0.0.1:{free_port()}/{BASE}"
    forge(faulty.tiny, value)
    started = time.monotonic()
    code, result = faulty.run("check", "tiny")
    assert time.monotonic() - started < 20
    assert code == 5
    found = base_rows(result)
    assert {row["verdict"] for row in found.values()} == {"unreachable"}
    assert "was not asked for" in found["layer 3 of 3"]["detail"]
    assert result["tag"]["state"] == "unknown"


def test_a_registry_that_hangs_holds_nobody(tiny: Tiny, faulty: Remote, fault: FaultRegistry) -> None:
    fault.faults.always(Hang(seconds=30), "blob")
    short = Times(connect=1.0, idle=1.0, head=1.0, window=1.0)
    patience = Patience(attempts=1)
    context = tiny.context(offline=False)
    known = connect(None, ledger=context.ledger, offline=False, note=print, times=short, patience=patience)
    started = time.monotonic()
    found = check_pins(dataclasses.replace(context, connect=lambda: known), faulty.tiny.lock())
    assert time.monotonic() - started < 10
    assert {pin.verdict for pin in found.pins if pin.what.startswith("layer")} == {Verdict.UNREACHABLE}


def test_what_was_not_begun_in_time_is_no_yes(tiny: Tiny) -> None:
    found = check_pins(tiny.context(), tiny.lock(), seconds=0)
    assert {pin.verdict for pin in found.pins} == {Verdict.UNREACHABLE}
    assert {pin.detail for pin in found.pins} == {"was not asked for: the time is over"}
    assert (found.lost, found.unasked) == (0, len(found.pins))


def test_a_copy_that_is_left_here_is_named(faulty: Remote, fault: FaultRegistry) -> None:
    faulty.tiny.write_base()
    fault.repository(BASE).blobs.clear()
    code, result = faulty.run("check", "tiny")
    assert code == 1
    assert f"the store here has a copy, {faulty.tiny.store_path}" in rows(result)["layer 1 of 3"]["detail"]


def test_a_lock_without_facts_finds_the_layers_in_the_manifest(faulty: Remote, fault: FaultRegistry) -> None:
    value = locked(faulty.tiny)
    del value["facts"], value["result"]
    forge(faulty.tiny, value)
    code, result = faulty.run("check", "tiny")
    assert code == 0
    assert "layer 3 of 3" in rows(result)
    fault.repository(BASE).manifests.clear()
    code, result = faulty.run("check", "tiny")
    assert code == 1
    assert rows(result)["layers"]["verdict"] == "unreachable"
    assert "--complete" in rows(result)["layers"]["hint"]


def test_a_layer_that_stands_twice_is_asked_for_once(faulty: Remote) -> None:
    value = locked(faulty.tiny)
    value["facts"]["base_layers"].append(value["facts"]["base_layers"][0])
    forge(faulty.tiny, value)
    code, result = faulty.run("check", "tiny")
    assert code == 0
    assert [what for what in rows(result) if what.startswith("layer")] == [f"layer {n} of 4" for n in (1, 2, 3)]


# Tags


def test_P19_a_tag_that_moved_or_is_gone_is_said_and_is_no_failure(faulty: Remote, fault: FaultRegistry) -> None:
    other = fault.seed_image(BASE, "v1")
    code, result = faulty.run("check", "tiny")
    assert (code, result["ok"]) == (0, True)
    assert (result["tag"]["state"], result["tag"]["now"]) == ("moved", other.digest)
    fault.repository(BASE).tags.clear()
    code, result = faulty.run("check", "tiny")
    assert (code, result["tag"]["state"]) == (0, "gone")
    fault.faults.add(Fault(action=Answer(status=403), path="manifests/v1", times=None))
    code, result = faulty.run("check", "tiny")
    assert (code, result["tag"]["state"]) == (0, "unknown")


def test_P30_a_tag_of_an_index_that_lists_the_pinned_manifest_has_not_moved(faulty: Remote) -> None:
    put_index(faulty)
    at(faulty, tag_for_humans="multi")
    assert faulty.run("check", "tiny")[1]["tag"]["state"] == "same"


# Mirrors and local names


def mirror(remote: Remote, monkeypatch: pytest.MonkeyPatch, name: str, *mirrors: str) -> None:
    file = remote.tiny.root / "registries.toml"
    listed = ", ".join(f'"{one}"' for one in mirrors)
    file.write_text(f'schema = "imgbuild/registries/v1"\n[registry."{name}"]\nmirrors = [{listed}]\n')
    monkeypatch.setenv("IMGBUILD_REGISTRIES", str(file))


def local(remote: Remote) -> None:
    value = locked(remote.tiny)
    value["pins"]["base"] |= {"reference": "localhost/test/base", "tag_for_humans": "base"}
    forge(remote.tiny, value)


def test_a_mirror_does_not_hide_what_its_origin_lost(
    faulty: Remote, fault: FaultRegistry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with any_registry("fault", tmp_path / "other") as other:
        assert other.fault is not None
        other.fault.storage.repositories[BASE] = fault.storage.repositories.pop(BASE)
        mirror(faulty, monkeypatch, f"{faulty.host}/{BASE}", f"{other.host}/{BASE}")
        code, result = faulty.run("check", "tiny")
        assert code == 1
        assert {row["verdict"] for row in base_rows(result).values()} == {"gone"}
        assert not other.fault.requests()


def test_a_local_name_is_looked_for_at_its_mirrors_and_then_in_the_store(
    faulty: Remote, fault: FaultRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    local(faulty)
    mirror(faulty, monkeypatch, "localhost/test/base", f"{faulty.host}/nothing", f"{faulty.host}/{BASE}")
    code, result = faulty.run("check", "tiny")
    assert code == 0
    assert {row["where"] for row in base_rows(result).values()} == {f"{faulty.host}/{BASE}"}
    fault.storage.repositories.clear()
    code, result = faulty.run("check", "tiny")
    assert code == 1
    assert {row["verdict"] for row in base_rows(result).values()} == {"gone"}
    faulty.tiny.write_base()
    code, result = faulty.run("check", "tiny")
    assert code == 0
    assert {row["where"] for row in base_rows(result).values()} == {f"the store here, {faulty.tiny.store_path}"}
    assert result["tag"]["state"] == "same"


def test_a_mirror_that_does_not_answer_may_have_it(
    faulty: Remote, fault: FaultRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    local(faulty)
    mirror(faulty, monkeypatch, "localhost/test/base", f"{faulty.host}/closed", f"{faulty.host}/nothing")
    fault.faults.add(Fault(action=Answer(status=403), path="/closed/", times=None))
    code, result = faulty.run("check", "tiny")
    assert code == 5
    assert {row["verdict"] for row in base_rows(result).values()} == {"not-allowed"}


def test_a_local_name_without_mirror_and_store_cannot_be_asked_for(faulty: Remote) -> None:
    local(faulty)
    code, result = faulty.run("check", "tiny")
    assert code == 5
    found = base_rows(result)
    assert {row["verdict"] for row in found.values()} == {"unreachable"}
    assert "is of no registry" in found["manifest"]["detail"]


def test_damage_in_the_store_is_seen_as_far_as_it_is_looked_at(tiny: Tiny) -> None:
    lock = tiny.lock()
    for digest, change in ((lock.pins.base.manifest, b""), (lock.facts.base_layers[0].digest, b"x")):  # type: ignore[union-attr]
        path = tiny.store_path / "blobs" / "sha256" / digest.encoded
        path.chmod(0o644)
        path.write_bytes(path.read_bytes()[::-1] + change)
    found = {pin.what: pin.verdict for pin in check_pins(tiny.context(), lock).pins}
    assert (found["manifest"], found["layer 1 of 3"], found["config"]) == (
        Verdict.DIFFERS,
        Verdict.DIFFERS,
        Verdict.ALIVE,
    )


# What the command says


def test_offline_only_what_is_here_has_a_verdict(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    code, result = Remote(tiny=tiny, host="", capture=capsys).run("check", "tiny", "--offline")
    assert code == 5
    assert {
        kind: {row["verdict"] for row in result["pins"] if row["kind"] == kind} for kind in ("base", "git", "wheel")
    } == {
        "base": {"alive"},
        "git": {"alive"},
        "wheel": {"unreachable"},
    }


def test_offline_a_registry_is_not_asked(faulty: Remote, fault: FaultRegistry) -> None:
    fault.clear_log()
    code, result = faulty.run("check", "tiny", "--offline")
    assert code == 5
    assert {row["verdict"] for row in base_rows(result).values()} == {"unreachable"}
    assert not fault.requests()


def test_more_bytes_than_allowed_are_an_error_and_no_verdict(faulty: Remote) -> None:
    code, error = faulty.run("check", "tiny", "--max-bytes", "1000")
    assert (code, error["code"]) == (5, "MAX_BYTES")


def plain(remote: Remote, *words: str) -> tuple[int, str, str]:
    remote.capture.readouterr()
    code = run(["check", "tiny", "--project", str(remote.tiny.root), "--cache", str(remote.tiny.cache_path), *words])
    return code, *remote.capture.readouterr()


def test_quiet_says_only_what_is_not_alive(faulty: Remote, fault: FaultRegistry) -> None:
    assert plain(faulty, "-q") == (0, "", "")
    layer = locked(faulty.tiny)["facts"]["base_layers"][1]["digest"]
    fault.faults.add(Fault(action=Answer(status=404), path=layer, times=None))
    code, out, err = plain(faulty, "-q")
    assert (code, out) == (1, "")
    assert [line.split()[0] for line in err.splitlines()] == ["gone", "where", "detail", "hint", "GONE"]
    assert layer in err


def test_the_table_is_by_kind_and_counts_layers_that_are_alive(faulty: Remote, fault: FaultRegistry) -> None:
    first = locked(faulty.tiny)["facts"]["base_layers"][0]["digest"]
    fault.faults.add(Fault(action=Answer(status=403), path=first, times=None))
    code, out, _ = plain(faulty)
    assert code == 5
    assert "pins         5 alive, 0 gone, 0 differs, 1 not-allowed, 0 unreachable" in out
    assert f"\nbase         {faulty.host}/{BASE}\n" in out
    assert "\n  alive        2 layers\n" in out
    assert out.index("\nbase ") < out.index("\ngit ") < out.index("\ntag ")
    assert out.endswith("NOT CHECKED  of 6 pins, 1 could not be asked for, which is no yes\n")
    assert "layer 3 of 3" in plain(faulty, "-v")[1]


def test_what_all_pins_of_a_base_say_is_said_once(faulty: Remote, fault: FaultRegistry) -> None:
    fault.repository(BASE).blobs.clear()
    _, _, err = plain(faulty, "-q")
    assert [line.split()[0] for line in err.splitlines()] == ["gone"] * 4 + ["where", "detail", "hint", "GONE"]


@pytest.mark.parametrize("name", ["absent", "../tiny", ""])
def test_an_image_that_is_not_defined_is_refused(tiny: Tiny, capsys: pytest.CaptureFixture[str], name: str) -> None:
    code, error = Remote(tiny=tiny, host="", capture=capsys).run("check", name)
    assert (code, error["code"]) == (2, "USAGE")
    assert "tiny" in error["hint"]


def test_without_a_lock_there_is_nothing_to_ask(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    tiny.project().lock_path("tiny").unlink()
    code, error = Remote(tiny=tiny, host="", capture=capsys).run("check", "tiny")
    assert (code, error["code"]) == (3, "INPUT_INVALID")


def test_the_lock_is_asked_about_though_the_definition_is_broken(faulty: Remote) -> None:
    (faulty.tiny.root / "locks" / "tiny.toml").write_text("broken")
    assert faulty.run("check", "tiny")[0] == 0


# Git


def one(remote: Remote, name: str, **changes: Any) -> tuple[int, dict[str, Any]]:
    """The verdict on one source after a change of its pin."""
    value = locked(remote.tiny)
    source(value, name).update(changes)
    forge(remote.tiny, value)
    code, result = remote.run("check", "tiny")
    (row,) = [row for row in result["pins"] if row["name"] == name]
    assert {other["verdict"] for other in result["pins"] if other is not row} == {"alive"}
    return code, row


@pytest.fixture
def here(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> Remote:
    """A tiny project whose lock has no wheels."""
    forget(tiny, *WHEELS)
    return Remote(tiny=tiny, host="", capture=capsys)


@pytest.fixture
def wheels(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> Remote:
    """A tiny project whose lock has one wheel."""
    forget(tiny, "nccl-wheel", "nccl")
    return Remote(tiny=tiny, host="", capture=capsys)


def test_a_bundle_that_is_not_there_is_gone_and_a_damaged_one_differs(here: Remote) -> None:
    bundle = here.tiny.root / "adapter.bundle"
    whole = bundle.read_bytes()
    bundle.write_bytes(b"no bundle")
    code, row = one(here, "adapter")
    assert (code, row["verdict"]) == (1, "differs")
    bundle.write_bytes(whole[:-40])
    assert one(here, "adapter")[1]["verdict"] == "differs"
    bundle.unlink()
    code, row = one(here, "adapter")
    assert (code, row["verdict"]) == (1, "gone")
    assert "imgbuild lock tiny --update adapter" in row["hint"]


def test_P61_a_commit_that_a_bundle_does_not_contain_is_gone(here: Remote) -> None:
    code, row = one(here, "adapter", commit="1" * 40)
    assert (code, row["verdict"]) == (1, "gone")


def test_a_commit_with_another_tree_than_the_lock_differs(here: Remote) -> None:
    code, row = one(here, "adapter", tree="2" * 40)
    assert (code, row["verdict"]) == (1, "differs")


class Backend(http.server.BaseHTTPRequestHandler):
    """`git http-backend` over HTTPS for /work, and statuses for the rest."""

    root = ""
    sent = 0

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        status = path.split("/")[1]
        if status.isdigit():
            self.send_response(int(status))
            if status == "401":
                self.send_header("WWW-Authenticate", 'Basic realm="x"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        environment = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": self.root,
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
        }
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        done = subprocess.run(
            ["git", "http-backend"], env=environment, input=body, check=False, stdout=subprocess.PIPE, timeout=60
        )
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        self.send_response(int(fields.pop("Status", "200").split()[0]))
        for name, value in fields.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        type(self).sent += len(content)

    do_POST = do_GET  # noqa: N815 - the name is the base class's

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def serving(handler: type[http.server.BaseHTTPRequestHandler], context: ssl.SSLContext | None = None) -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as listening:
        if context is not None:
            listening.socket = context.wrap_socket(listening.socket, server_side=True)
        thread = threading.Thread(target=listening.serve_forever, daemon=True)
        thread.start()
        yield int(listening.server_address[1])
        listening.shutdown()
        thread.join()


@pytest.fixture
def forge_of_git(here: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, type[Backend]]]:
    """A server for the repository of the adapter, whose only commit is on no ref: its URL, and what it sent."""
    work = here.tiny.root / "adapter-work"
    git(work, "update-ref", "-d", "refs/heads/main")
    authority = make_authority(tmp_path / "authority")
    monkeypatch.setenv("GIT_SSL_CAINFO", str(authority.ca))
    monkeypatch.setenv("NO_PROXY", "localhost,127.0.0.1")
    handler = type("Handler", (Backend,), {"root": str(here.tiny.root)})
    with serving(handler, authority.server_context()) as port:
        yield f"https://127.0.0.1:{port}", handler


def git(work: Path, *words: str) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": str(work), "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", "-C", str(work), *words], env=environment, check=True, capture_output=True, timeout=20)


@pytest.mark.parametrize("filters", [True, False], ids=["filters", "no filters"])
def test_P61_a_commit_on_no_ref_is_alive_while_the_server_gives_it(
    here: Remote,
    forge_of_git: tuple[str, type[Backend]],
    filters: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url, handler = forge_of_git
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    work = here.tiny.root / "adapter-work"
    git(work, "config", "uploadpack.allowFilter", "true" if filters else "false")
    code, row = one(here, "adapter", repository=f"{url}/adapter-work/.git")
    assert (code, row["verdict"]) == (0, "alive")
    assert "commit itself" in row["detail"]
    assert handler.sent < 8 * 1024
    assert not list(temporary.iterdir())
    code, row = one(here, "adapter", commit="1" * 40)
    assert (code, row["verdict"]) == (1, "gone")


def test_a_server_that_serves_only_refs_is_asked_as_a_build_does(
    here: Remote, forge_of_git: tuple[str, type[Backend]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gitprocess, "_OPTIONS", (*gitprocess._OPTIONS, "protocol.version=0"))
    work, commit = here.tiny.root / "adapter-work", source(locked(here.tiny), "adapter")["commit"]
    url = f"{forge_of_git[0]}/adapter-work/.git"
    git(work, "update-ref", "refs/heads/other", commit)
    assert one(here, "adapter", repository=url)[1]["verdict"] == "alive"
    identity = ("-c", "user.name=t", "-c", "user.email=t@t")
    git(work, *identity, "commit", "--quiet", "--allow-empty", "--message=another")
    git(work, "update-ref", "-d", "refs/heads/other")
    code, row = one(here, "adapter", repository=url)
    assert (code, row["verdict"]) == (1, "gone")


def test_another_tree_of_a_commit_on_a_server_differs(here: Remote, forge_of_git: tuple[str, type[Backend]]) -> None:
    code, row = one(here, "adapter", repository=f"{forge_of_git[0]}/adapter-work/.git", tree="2" * 40)
    assert (code, row["verdict"]) == (1, "differs")


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        (401, "not-allowed"),
        (403, "not-allowed"),
        (404, "gone"),
        (410, "gone"),
        (429, "unreachable"),
        (500, "unreachable"),
    ],
)
def test_statuses_of_a_git_server_are_told_apart(
    here: Remote, forge_of_git: tuple[str, type[Backend]], status: int, verdict: str
) -> None:
    code, row = one(here, "adapter", repository=f"{forge_of_git[0]}/{status}/a.git")
    assert (row["verdict"], code) == (verdict, 1 if verdict == "gone" else 5)
    assert row["detail"]


def test_a_git_server_that_is_not_there_is_unreachable(here: Remote) -> None:
    code, row = one(here, "adapter", repository=f"https://127.0.0.1:{free_port()}/a.git")
    assert (code, row["verdict"]) == (5, "unreachable")


def test_a_repository_that_may_not_be_asked_is_an_error_of_the_lock(here: Remote) -> None:
    value = locked(here.tiny)
    source(value, "adapter")["repository"] = "http://127.0.0.1/a.git"
    forge(here.tiny, value)
    code, error = here.run("check", "tiny")
    assert (code, error["code"]) == (3, "INPUT_INVALID")


# Wheels

HELPER = "helper-1.0-py3-none-any.whl"


class Index(http.server.BaseHTTPRequestHandler):
    """The simple API (PEP 503) of a folder of wheels; `statuses` by project, hashes and metadata can be left out."""

    folder: Path
    statuses: dict[str, int]
    hashes = True
    metadata = True
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
        return self.send(status if files or status != 200 else 404, f"<html><body>{links}</body></html>".encode())

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

    def send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        if status == 401:
            self.send_header("WWW-Authenticate", 'Basic realm="x"')
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def index(wheels: Remote, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Index]]:
    """An index with the wheels of the project, and pip configured for it alone."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    folder = wheels.tiny.root / "wheels"
    handler = type("Handler", (Index,), {"folder": folder, "statuses": {}, "asked": []})
    with serving(handler) as port:
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_INDEX_URL", f"http://user:geheim@127.0.0.1:{port}/simple")
        yield handler


def test_wheels_are_alive_by_what_the_index_says_and_are_not_fetched(wheels: Remote, index: type[Index]) -> None:
    code, row = one(wheels, "helper")
    assert (code, row["verdict"]) == (0, "alive")
    assert not [path for path in index.asked if path.endswith(".whl")]


def test_a_wheel_or_a_project_that_is_not_in_the_index_is_gone(wheels: Remote, index: type[Index]) -> None:
    path = index.folder / HELPER
    path.rename(path.with_name("helper-2.0-py3-none-any.whl"))
    code, row = one(wheels, "helper")
    assert (code, row["verdict"]) == (1, "gone")
    assert "imgbuild lock tiny --update helper" in row["hint"]
    path.with_name("helper-2.0-py3-none-any.whl").unlink()
    assert one(wheels, "helper")[1]["verdict"] == "gone"


@pytest.mark.parametrize("hashes", [True, False], ids=["hashes", "no hashes"])
def test_a_wheel_with_other_bytes_differs(wheels: Remote, index: type[Index], hashes: bool) -> None:
    index.hashes = index.metadata = hashes
    code, row = one(wheels, "helper")
    assert (code, row["verdict"]) == (0, "alive")
    name, data = make_wheel("helper", "1.0", {"helper/__init__.py": b"VALUE = 2\n"})
    (index.folder / name).write_bytes(data)
    code, row = one(wheels, "helper")
    assert (code, row["verdict"]) == (1, "differs")
    assert str(Digest.of(data)) in row["detail"]


@pytest.mark.parametrize(
    ("status", "verdict"), [(401, "not-allowed"), (403, "not-allowed"), (429, "unreachable"), (503, "unreachable")]
)
def test_an_index_that_refuses_or_fails_has_lost_nothing(
    wheels: Remote, index: type[Index], status: int, verdict: str
) -> None:
    index.statuses["helper"] = status
    code, row = one(wheels, "helper")
    assert (code, row["verdict"]) == (5, verdict)
    assert "geheim" not in str(row)


def test_an_index_that_is_not_there_has_lost_nothing(
    wheels: Remote, index: type[Index], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{free_port()}/simple")
    code, result = wheels.run("check", "tiny")
    assert code == 5
    assert {row["verdict"] for row in result["pins"] if row["kind"] == "wheel"} == {"unreachable"}


def test_a_folder_of_wheels_that_is_not_there_has_lost_nothing(wheels: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels.tiny.root / "nowhere"))
    code, result = wheels.run("check", "tiny")
    assert code == 5
    assert {row["verdict"] for row in result["pins"] if row["kind"] == "wheel"} == {"unreachable"}


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
    from imgbuild.adapters import offered

    monkeypatch.setattr(offered, "WHEEL_BYTES", 1024)
    index.metadata = False
    path = index.folder / HELPER
    path.write_bytes(os.urandom(64 * 1024 * 1024))
    code, row = one(wheels, "helper")
    assert (code, row["verdict"]) == (5, "unreachable")
    assert "neither metadata" in row["detail"]


def test_every_host_of_a_toolchain_is_asked_for_once(wheels: Remote) -> None:
    value = locked(wheels.tiny)
    wheel = source(value, "helper")
    host = {"platforms": ["any"], "filename": wheel["filename"], "digest": wheel["digest"]}
    other = {**host, "digest": f"sha256:{'3' * 64}"}
    value["pins"]["sources"].append(
        {
            "kind": "toolchain",
            "name": "zig",
            "distribution": "helper",
            "version": "1.0",
            "hosts": {"linux-x86_64": host, "macos-arm64": host, "linux-aarch64": other},
        }
    )
    forge(wheels.tiny, value)
    code, result = wheels.run("check", "tiny")
    assert code == 1
    found = [row["verdict"] for row in result["pins"] if row["kind"] == "toolchain"]
    assert sorted(found) == ["alive", "differs"]
