"""`imgbuild check`: all pins of a tiny project against registries, and what the command says."""

from __future__ import annotations

import contextlib
import http.client
import shutil
from typing import TYPE_CHECKING

import pytest
from imgbuild.cli import run
from imgbuild.steps.liveness import Verdict, check_pins

from tests.support.checking import WHEELS, base_rows, based_at, hurry, rows, verdicts
from tests.support.fault_registry import Answer, Fault, FaultRegistry
from tests.support.refusals import locked
from tests.support.remote import BASE, Remote, moved

if TYPE_CHECKING:
    from tests.support.registries import LocalRegistry
    from tests.support.tiny import Tiny


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


@pytest.fixture
def remote(
    tiny: Tiny, registry: LocalRegistry, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Remote:
    shutil.rmtree(tiny.cache_path)
    return based_at(registry.host, tiny, monkeypatch, capsys, *WHEELS)


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
    ]
    assert {row["where"] for row in base_rows(result).values()} == {f"{remote.host}/{BASE}"}
    assert result["tag"]["state"] == "same"
    assert moved(result, remote.host)[0] < 8 * 1024
    assert not remote.tiny.store_path.exists()


def test_P23_each_lost_layer_has_its_own_verdict_and_says_what_to_do(remote: Remote) -> None:
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


def test_what_is_lost_outweighs_what_could_not_be_asked(based: Remote, faulty: FaultRegistry) -> None:
    first, second, _ = (row["digest"] for row in locked(based.tiny)["facts"]["base_layers"])
    faulty.faults.add(Fault(action=Answer(status=404), path=first, times=None))
    faulty.faults.add(Fault(action=Answer(status=403), path=second, times=None))
    code, result = based.run("check", "tiny")
    assert (code, result["ok"], result["complete"]) == (1, False, False)


def test_what_was_not_begun_in_time_is_no_yes(tiny: Tiny) -> None:
    found = check_pins(tiny.context(), tiny.lock(), seconds=0)
    assert {pin.verdict for pin in found.pins} == {Verdict.UNREACHABLE}
    assert {pin.detail for pin in found.pins} == {"was not asked for: the time is over"}
    assert (found.lost, found.unasked) == (0, len(found.pins))


def test_a_copy_that_is_left_here_is_named(based: Remote, faulty: FaultRegistry) -> None:
    based.tiny.write_base()
    faulty.repository(BASE).blobs.clear()
    code, result = based.run("check", "tiny")
    assert code == 1
    assert f"the store here has a copy, {based.tiny.store_path}" in rows(result)["layer 1 of 3"]["detail"]


def test_the_pins_of_sources_follow_in_their_order_and_what_is_inside_of_a_wheel_is_none(
    tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    code, result = Remote(tiny=tiny, host="", capture=capsys).run("check", "tiny")
    assert (code, verdicts(result)) == (0, {"alive"})
    assert [(row["kind"], row["what"]) for row in result["pins"] if row["kind"] != "base"] == [
        ("git", "commit of adapter"),
        ("wheel", "helper-1.0-py3-none-any.whl"),
        ("wheel", "nccl_like-2.30.7-py3-none-any.whl"),
    ]


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


def test_offline_a_registry_is_not_asked(based: Remote, faulty: FaultRegistry) -> None:
    faulty.clear_log()
    code, result = based.run("check", "tiny", "--offline")
    assert code == 5
    assert {(row["verdict"], row["detail"]) for row in base_rows(result).values()} == {
        ("unreachable", "was not asked for, as --offline forbids it")
    }
    assert not faulty.requests()


def test_more_bytes_than_allowed_are_an_error_and_no_verdict(based: Remote) -> None:
    code, error = based.run("check", "tiny", "--max-bytes", "1000")
    assert (code, error["code"]) == (5, "MAX_BYTES")


def plain(remote: Remote, *words: str) -> tuple[int, str, str]:
    remote.capture.readouterr()
    code = run(["check", "tiny", "--project", str(remote.tiny.root), "--cache", str(remote.tiny.cache_path), *words])
    return code, *remote.capture.readouterr()


def test_quiet_says_only_what_is_not_alive(based: Remote, faulty: FaultRegistry) -> None:
    assert plain(based, "-q") == (0, "", "")
    layer = locked(based.tiny)["facts"]["base_layers"][1]["digest"]
    faulty.faults.add(Fault(action=Answer(status=404), path=layer, times=None))
    code, out, err = plain(based, "-q")
    assert (code, out) == (1, "")
    assert [line.split()[0] for line in err.splitlines()] == ["gone", "where", "detail", "hint", "GONE"]
    assert layer in err
    assert err.endswith("GONE         1 of 6 pins cannot be had any more\n")


def test_the_table_is_by_kind_and_counts_layers_that_are_alive(based: Remote, faulty: FaultRegistry) -> None:
    first = locked(based.tiny)["facts"]["base_layers"][0]["digest"]
    faulty.faults.add(Fault(action=Answer(status=403), path=first, times=None))
    code, out, _ = plain(based)
    assert code == 5
    assert "pins         5 alive, 0 gone, 0 differs, 1 not-allowed, 0 unreachable" in out
    assert f"\nbase         {based.host}/{BASE}\n" in out
    assert "\n  alive        2 layers\n" in out
    assert [line.split()[0] for line in out.splitlines() if line.startswith(" " * 15)] == ["detail", "hint"]
    assert out.index("\nbase ") < out.index("\ngit ") < out.index("\ntag ")
    assert out.endswith("NOT CHECKED  1 of 6 pins could not be asked for, and may be gone\n")
    assert "layer 3 of 3" in plain(based, "-v")[1]


def test_what_all_pins_of_a_base_say_is_said_once(based: Remote, faulty: FaultRegistry) -> None:
    faulty.repository(BASE).blobs.clear()
    _, _, err = plain(based, "-q")
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


def test_the_lock_is_asked_about_though_the_definition_is_broken(based: Remote) -> None:
    (based.tiny.root / "locks" / "tiny.toml").write_text("broken")
    assert based.run("check", "tiny")[0] == 0
