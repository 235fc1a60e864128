"""`imgbuild check` on the base: faults of registries, tags, mirrors and local names."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

import pytest
from imgbuild import jsontext
from imgbuild.adapters.registry.access import connect
from imgbuild.adapters.registry.patience import Patience
from imgbuild.adapters.registry.repository import Repository
from imgbuild.adapters.registry.wire import Times
from imgbuild.cli import run
from imgbuild.digest import Digest
from imgbuild.model.oci import INDEX_TYPES
from imgbuild.steps.liveness import Verdict, check_pins

from tests.support.checking import at, base_rows, hurry, rows
from tests.support.fault_registry import CONTROL, Answer, Blob, Busy, Fault, FaultRegistry, FlipBit, Hang, Reset
from tests.support.refusals import forge, locked
from tests.support.registries import any_registry, free_port
from tests.support.remote import BASE, Remote, registries

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.fault_registry import Action
    from tests.support.tiny import Tiny


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


def put_index(remote: Remote) -> Digest:
    """An index of the base's manifest, tagged `multi`."""
    repository = Repository(registries().of(remote.host), BASE)
    row = repository.manifest("v1").descriptor.as_dict()
    rows = [{**row, "platform": {"os": "linux", "architecture": "arm64"}}]
    raw = jsontext.compact({"schemaVersion": 2, "mediaType": INDEX_TYPES[0], "manifests": rows})
    repository.put_manifest(raw, INDEX_TYPES[0], tag="multi")
    return Digest.of(raw)


def test_no_layer_and_no_config_is_asked_for_by_more_than_its_head(based: Remote, faulty: FaultRegistry) -> None:
    faulty.clear_log()
    assert based.run("check", "tiny")[0] == 0
    assert {one.method for one in faulty.requests("blob")} == {"HEAD"}


def test_P27_a_manifest_whose_tag_and_index_are_healthy_is_gone(based: Remote, faulty: FaultRegistry) -> None:
    at(based, index=str(put_index(based)), tag_for_humans="multi")
    assert based.run("check", "tiny")[0] == 0
    del faulty.repository(BASE).manifests[locked(based.tiny)["pins"]["base"]["manifest"]]
    code, result = based.run("check", "tiny")
    assert (code, result["ok"], result["complete"]) == (1, False, True)
    found = base_rows(result)
    assert found.pop("manifest")["verdict"] == "gone"
    assert {row["verdict"] for row in found.values()} == {"alive"}
    assert {"index", "config"} < set(found)
    assert result["tag"]["state"] == "same"


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
    based: Remote, faulty: FaultRegistry, action: Action, verdict: str, code: int, kind: str
) -> None:
    layer = locked(based.tiny)["facts"]["base_layers"][0]["digest"]
    what, digest = (
        ("layer 1 of 3", layer) if kind == "blob" else ("manifest", str(based.tiny.lock().pins.base.manifest))
    )
    faulty.faults.add(Fault(action=action, path=digest, times=None))
    found, result = based.run("check", "tiny")
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


def test_what_fails_once_and_then_answers_is_alive(based: Remote, faulty: FaultRegistry) -> None:
    for action in (Reset(), Busy(retry_after=0), Answer(status=502)):
        faulty.faults.once(action)
        assert based.run("check", "tiny")[0] == 0
    assert not faulty.faults.pending()


def test_a_manifest_with_other_bytes_and_a_layer_of_another_size_differ(based: Remote, faulty: FaultRegistry) -> None:
    layer = locked(based.tiny)["facts"]["base_layers"][2]
    faulty.faults.add(Fault(action=FlipBit(at=40), kind="manifest", path="sha256:", times=None))
    faulty.repository(BASE).blobs[layer["digest"]] = Blob(digest=layer["digest"], size=7, piece=None)
    code, result = based.run("check", "tiny")
    found = rows(result)
    assert code == 1
    assert found["manifest"]["verdict"] == "differs"
    assert found["layer 3 of 3"]["verdict"] == "differs"
    assert f"expected {layer['size']} bytes; actual 7 bytes" in found["layer 3 of 3"]["detail"]
    assert found["config"]["verdict"] == "alive"


def test_a_registry_that_nobody_answers_for_is_asked_once_and_its_parts_say_so(based: Remote) -> None:
    value = locked(based.tiny)
    value["pins"]["base"]["reference"] = f"127.0.0.1:{free_port()}/{BASE}"
    forge(based.tiny, value)
    started = time.monotonic()
    code, result = based.run("check", "tiny")
    assert time.monotonic() - started < 20
    assert code == 5
    found = base_rows(result)
    assert {row["verdict"] for row in found.values()} == {"unreachable"}
    assert "was not asked for" in found["layer 3 of 3"]["detail"]
    assert result["tag"]["state"] == "unknown"


def test_a_registry_that_hangs_holds_nobody(tiny: Tiny, based: Remote, faulty: FaultRegistry) -> None:
    faulty.faults.always(Hang(seconds=30), "blob")
    short = Times(connect=1.0, idle=0.3, head=0.3, window=0.3)
    patience = Patience(attempts=1)
    context = tiny.context(offline=False)
    known = connect(None, ledger=context.ledger, offline=False, note=print, times=short, patience=patience)
    started = time.monotonic()
    found = check_pins(dataclasses.replace(context, connect=lambda: known), based.tiny.lock())
    assert time.monotonic() - started < 10
    assert {pin.verdict for pin in found.pins if pin.what.startswith("layer")} == {Verdict.UNREACHABLE}


def test_a_lock_without_facts_finds_the_layers_in_the_manifest(based: Remote, faulty: FaultRegistry) -> None:
    value = locked(based.tiny)
    del value["facts"], value["result"]
    forge(based.tiny, value)
    code, result = based.run("check", "tiny")
    assert code == 0
    assert "layer 3 of 3" in rows(result)
    faulty.repository(BASE).manifests.clear()
    code, result = based.run("check", "tiny")
    assert code == 1
    assert rows(result)["layers"]["verdict"] == "unreachable"
    assert "--complete" in rows(result)["layers"]["hint"]


def test_a_layer_that_stands_twice_is_asked_for_once(based: Remote) -> None:
    value = locked(based.tiny)
    value["facts"]["base_layers"].append(value["facts"]["base_layers"][0])
    forge(based.tiny, value)
    code, result = based.run("check", "tiny")
    assert code == 0
    assert [what for what in rows(result) if what.startswith("layer")] == [f"layer {n} of 4" for n in (1, 2, 3)]


# Tags


def test_P19_a_tag_that_moved_or_is_gone_is_said_and_is_no_failure(based: Remote, faulty: FaultRegistry) -> None:
    other = faulty.seed_image(BASE, "v1")
    code, result = based.run("check", "tiny")
    assert (code, result["ok"]) == (0, True)
    assert (result["tag"]["state"], result["tag"]["now"]) == ("moved", other.digest)
    faulty.repository(BASE).tags.clear()
    code, result = based.run("check", "tiny")
    assert (code, result["tag"]["state"]) == (0, "gone")
    faulty.faults.add(Fault(action=Answer(status=403), path="manifests/v1", times=None))
    code, result = based.run("check", "tiny")
    assert (code, result["tag"]["state"]) == (0, "unknown")


def test_P30_a_tag_of_an_index_that_lists_the_pinned_manifest_has_not_moved(based: Remote) -> None:
    put_index(based)
    at(based, tag_for_humans="multi")
    assert based.run("check", "tiny")[1]["tag"]["state"] == "same"


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
    based: Remote, faulty: FaultRegistry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with any_registry("fault", tmp_path / "other") as other:
        assert other.fault is not None
        other.fault.storage.repositories[BASE] = faulty.storage.repositories.pop(BASE)
        mirror(based, monkeypatch, f"{based.host}/{BASE}", f"{other.host}/{BASE}")
        code, result = based.run("check", "tiny")
        assert code == 1
        assert {row["verdict"] for row in base_rows(result).values()} == {"gone"}
        assert not other.fault.requests()


def test_a_local_name_is_looked_for_at_its_mirrors_and_then_in_the_store(
    based: Remote, faulty: FaultRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    local(based)
    mirror(based, monkeypatch, "localhost/test/base", f"{based.host}/nothing", f"{based.host}/{BASE}")
    code, result = based.run("check", "tiny")
    assert code == 0
    assert {row["where"] for row in base_rows(result).values()} == {f"{based.host}/{BASE}"}
    faulty.storage.repositories.clear()
    code, result = based.run("check", "tiny")
    assert code == 1
    assert {row["verdict"] for row in base_rows(result).values()} == {"gone"}
    here = f"the store here, {based.tiny.store_path}"
    asked = f"{based.host}/nothing and {based.host}/{BASE} and {here}"
    assert {row["where"] for row in base_rows(result).values()} == {asked}
    based.tiny.write_base()
    code, result = based.run("check", "tiny")
    assert code == 0
    assert {row["where"] for row in base_rows(result).values()} == {f"the store here, {based.tiny.store_path}"}
    assert result["tag"]["state"] == "same"


def test_a_mirror_that_does_not_answer_may_have_it(
    based: Remote, faulty: FaultRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    local(based)
    mirror(based, monkeypatch, "localhost/test/base", f"{based.host}/closed", f"{based.host}/nothing")
    faulty.faults.add(Fault(action=Answer(status=403), path="/closed/", times=None))
    code, result = based.run("check", "tiny")
    assert code == 5
    found = base_rows(result)
    assert {row["verdict"] for row in found.values()} == {"not-allowed"}
    here = f"the store here, {based.tiny.store_path}"
    for row in found.values():
        assert row["where"] == f"{based.host}/closed and {based.host}/nothing and {here}"
        first, second, third = row["detail"].split(", and ")
        assert first.startswith(f"{based.host}/closed: ")
        assert second.startswith(f"{based.host}/nothing: ")
        assert third == f"{here}: is not in the store" or third.startswith(f"{here}: is not in the store;")


def test_the_one_mirror_that_lacks_a_base_of_a_local_name_is_named_to_people(
    based: Remote, faulty: FaultRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    local(based)
    mirror(based, monkeypatch, "localhost/test/base", f"{based.host}/{BASE}")
    faulty.repository(BASE).blobs.clear()
    based.capture.readouterr()
    assert run(["check", "tiny", "--project", str(based.tiny.root), "--cache", str(based.tiny.cache_path)]) == 1
    out = based.capture.readouterr().out
    assert f"  where    {based.host}/{BASE} and the store here, {based.tiny.store_path}\n" in out
    assert f"  detail   {based.host}/{BASE}: is not in the registry, and the store here, " in out


def test_a_manifest_of_another_config_than_the_lock_says_who_gave_it(
    based: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    local(based)
    mirror(based, monkeypatch, "localhost/test/base", f"{based.host}/{BASE}")
    value = locked(based.tiny)
    value["pins"]["base"]["config"] = value["facts"]["base_layers"][0]["digest"]
    forge(based.tiny, value)
    code, result = based.run("check", "tiny")
    row = rows(result)["manifest"]
    assert (code, row["verdict"], row["where"]) == (1, "differs", f"{based.host}/{BASE}")


def test_a_local_name_without_mirror_and_store_cannot_be_asked_for(based: Remote) -> None:
    local(based)
    code, result = based.run("check", "tiny")
    assert code == 5
    found = base_rows(result)
    assert {row["verdict"] for row in found.values()} == {"unreachable"}
    assert "is of no registry" in found["manifest"]["detail"]
    assert found["manifest"]["where"] == f"the store here, {based.tiny.store_path}"


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
