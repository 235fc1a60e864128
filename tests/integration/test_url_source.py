"""A source at an address, through the program: what is refused leaves nothing, and says what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from imgbuild.adapters.store import StagedStore

from tests.support.fault_registry import Answer, Chunked, Fault, FaultRegistry, FlipBit, Redirect
from tests.support.refusals import cached, snapshot
from tests.support.remote import Remote
from tests.support.single import digest_of_library, image_layers, other_image, take_from
from tests.support.tiny import Tiny

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.fault_registry import Action


@pytest.fixture
def remote(tiny: Tiny, faulty: FaultRegistry, capsys: pytest.CaptureFixture[str]) -> Remote:
    faulty.put_blob("any", tiny.new_library)
    demand(tiny, faulty)
    return Remote(tiny=tiny, host=faulty.host, capture=capsys)


def demand(tiny: Tiny, faulty: FaultRegistry, **changes: Any) -> None:
    take_from(tiny, kind="url", **{"url": f"{faulty.url}/cdn/{digest_of_library(tiny)}", **changes})


def refused(remote: Remote, *words: str) -> tuple[int, str, dict[str, Any]]:
    """Exit code, code and error of `lock`, which has changed nothing."""
    before = snapshot(remote.tiny)
    code, error = remote.run("lock", "tiny", *words)
    assert snapshot(remote.tiny) == before
    assert not cached(remote.tiny, digest_of_library(remote.tiny)).exists()
    assert not list((remote.tiny.cache_path / "blobs" / "sha256").glob(".*"))
    return code, error["code"], error


CASES: list[tuple[Action, int, str]] = [
    (FlipBit(at=100), 4, "DIGEST_MISMATCH"),
    (Answer(status=404), 5, "MISSING"),
    (Answer(status=401), 5, "UNAUTHORIZED"),
    (Answer(status=403), 5, "FORBIDDEN"),
    (Redirect(to="http://files.example/x"), 5, "PROTOCOL"),
]


@pytest.mark.parametrize(("action", "exit_code", "code"), CASES)
def test_what_the_server_does_wrong_is_named_with_the_source(
    remote: Remote, faulty: FaultRegistry, action: Action, exit_code: int, code: str
) -> None:
    faulty.faults.add(Fault(action=action, kind="cdn", times=None))
    found = refused(remote)
    assert (found[0], found[1], found[2]["subject"]) == (exit_code, code, "source nccl")


def test_the_bytes_of_another_address_are_not_these(remote: Remote, faulty: FaultRegistry) -> None:
    other = faulty.put_blob("any", b"another library")
    for size in (None, 15):
        demand(remote.tiny, faulty, url=f"{faulty.url}/cdn/{other}", **({} if size is None else {"size": size}))
        code, name, error = refused(remote)
        assert (code, name, error["expected"], error["actual"]) == (
            4,
            "DIGEST_MISMATCH",
            digest_of_library(remote.tiny),
            other,
        )


def test_a_server_that_states_no_length_needs_the_size(remote: Remote, faulty: FaultRegistry) -> None:
    faulty.faults.add(Fault(action=Chunked(), kind="cdn", times=None))
    code, name, error = refused(remote)
    assert (code, name) == (5, "PROTOCOL")
    assert "`size`" in error["hint"]
    demand(remote.tiny, faulty, size=len(remote.tiny.new_library))
    assert remote.run("lock", "tiny")[0] == 0


def test_a_wrong_size_is_refused(remote: Remote, faulty: FaultRegistry) -> None:
    demand(remote.tiny, faulty, size=7)
    code, name, error = refused(remote)
    assert (code, name, error["expected"]) == (4, "DIGEST_MISMATCH", "7 bytes")
    assert error["actual"] == f"{len(remote.tiny.new_library)} bytes"


@pytest.mark.parametrize("size", [None, 2**52])
def test_what_is_too_long_is_not_fetched(
    remote: Remote, faulty: FaultRegistry, monkeypatch: pytest.MonkeyPatch, size: int | None
) -> None:
    if size is None:
        from imgbuild.config import Limits

        monkeypatch.setattr("imgbuild.steps.singlefile.DEFAULT_LIMITS", Limits(source_bytes=1000))
    else:
        demand(remote.tiny, faulty, size=size)
    code, name, error = refused(remote)
    assert (code, name, "source_bytes" in error["expected"]) == (4, "ARCHIVE_INVALID", True)
    assert not faulty.requests("cdn", "GET")


def test_offline_and_max_bytes_hold(remote: Remote, faulty: FaultRegistry) -> None:
    code, name, error = refused(remote, "--offline")
    assert (code, name, "--source nccl=FILE" in error["hint"]) == (5, "OFFLINE_MISS", True)
    assert not faulty.requests()
    assert refused(remote, "--max-bytes", "1000")[:2] == (5, "MAX_BYTES")


# Images with local names, for `imgbuild check`


def member(remote: Remote) -> dict[str, Any]:
    _, result = remote.run("check", "tiny")
    (row,) = [row for row in result["pins"] if row["name"] == "nccl"]
    found: dict[str, Any] = row
    return found


def test_an_image_with_a_local_name_is_asked_of_its_mirror_and_of_the_store(
    remote: Remote, faulty: FaultRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imgbuild.cli.check._FIRST_SECONDS", 0.01)
    tiny = remote.tiny
    image = other_image(tmp_path / "other", faulty.host, image_layers(tiny.new_library))
    place, _, digest = image.partition("@")
    settings = tmp_path / "registries.toml"
    settings.write_text(
        f'schema = "imgbuild/registries/v1"\n[registry."localhost/some/other"]\nmirrors = ["{place}"]\n'
    )
    monkeypatch.setenv("IMGBUILD_REGISTRIES", str(settings))
    take_from(tiny, kind="image-member", image=f"localhost/some/other@{digest}", path="/lib/libnccl.so.2")
    assert remote.run("lock", "tiny")[0] == 0
    row = member(remote)
    assert (row["verdict"], row["where"]) == ("alive", place)
    faulty.faults.add(Fault(action=Answer(status=404), kind="manifest", times=None))
    assert member(remote)["verdict"] == "gone"
    monkeypatch.delenv("IMGBUILD_REGISTRIES")
    row = member(remote)
    assert (row["verdict"], "is not in the store here" in row["detail"]) == ("unreachable", True)
    here, there = tiny.context().store, Tiny(tmp_path / "other").context().store
    assert isinstance(here, StagedStore)
    with here.session():
        for path in (there.root / "blobs" / "sha256").iterdir():
            here.put([path.read_bytes()])
        here.publish()
    row = member(remote)
    assert (row["verdict"], row["where"]) == ("alive", f"the store here, {here.root}")
