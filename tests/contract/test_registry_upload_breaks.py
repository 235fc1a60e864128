"""Uploads that break, whose session is lost, or whose registry counts otherwise (cases C47, C48, C51)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from imgbuild.adapters.registry.blobs import has_blob
from imgbuild.digest import Digest
from imgbuild.errors import (
    NetworkError,
    RegistryError,
    ServerError,
    ThrottledError,
)

from tests.support import fault_registry as fr
from tests.support.pushing import (
    APP,
    CHUNK,
    DATA,
    BreaksAt,
    blob_of,
    client,
    expire,
    pieces,
    received,
    states,
    stored,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.fault_registry import Action, FaultRegistry, Kind
    from tests.support.registries import LocalRegistry

MIB = 1024 * 1024
BIG = bytes(5 * MIB)


# Breaks

BREAKS: dict[str, Action] = {
    "reset": fr.Reset(),
    "reset after it was done": fr.Reset(handled=True),
    "429": fr.Busy(retry_after=0),
    "429 without a time": fr.Busy(retry_after=None),
    "503 with a date": fr.Busy(retry_after=0, form="date", status=503),
    "500": fr.Answer(status=500),
    "502 page": fr.Answer(status=502, body=fr.NOT_JSON),
    "504": fr.Answer(status=504),
    "408": fr.Answer(status=408),
    "huge headers": fr.HugeHeaders(),
    "hang": fr.Hang(seconds=0.05),
}


@pytest.mark.parametrize(
    ("kind", "skip"),
    [("upload-post", 0), ("upload-patch", 0), ("upload-patch", 2), ("upload-put", 0), ("upload-status", 0)],
)
@pytest.mark.parametrize("name", BREAKS)
def test_C47_C51_a_request_that_breaks_is_made_up_for(
    faulty: FaultRegistry, tmp_path: Path, name: str, kind: Kind, skip: int
) -> None:
    faulty.faults.once(BREAKS[name], kind, skip=skip, times=2)
    faulty.faults.once(fr.Reset(), "upload-patch", skip=3)
    found = client(faulty, tmp_path, chunk=CHUNK)
    found.upload(DATA)
    assert any(fault.action is BREAKS[name] for fault, _ in faulty.faults.fired)
    assert stored(found, DATA) == DATA
    assert found.known == len(DATA)
    assert not states(tmp_path)


@pytest.mark.parametrize("how", ["reset", "close", 502, 504])
@pytest.mark.parametrize("at", [0, 1, 2, 999])
def test_C47_after_a_cut_the_registry_is_asked_how_much_it_has_and_nothing_is_sent_twice(
    faulty: FaultRegistry, tmp_path: Path, at: int, how: Any
) -> None:
    faulty.faults.once(fr.CutRequest(after_bytes=at, how=how), "upload-patch", skip=1)
    found = client(faulty, tmp_path, chunk=CHUNK)
    found.upload(DATA)
    assert stored(found, DATA) == DATA
    start = CHUNK + at
    assert pieces(faulty)[1:3] == ["1000-1999", f"{start}-{start + CHUNK - 1}"]
    assert len(faulty.requests("upload-status")) == 1


def test_C47_a_proxy_that_cuts_with_413_makes_the_pieces_smaller(faulty: FaultRegistry, tmp_path: Path) -> None:
    faulty.faults.once(fr.CutRequest(after_bytes=600_000, how=413), "upload-patch", skip=1)
    found = client(faulty, tmp_path, chunk=2 * MIB)
    found.upload(BIG)
    assert has_blob(found.repository, blob_of(BIG))
    start = 2 * MIB + 600_000
    assert pieces(faulty)[2] == f"{start}-{start + MIB - 1}"


def test_C47_a_cut_after_exactly_one_byte_is_not_taken_for_an_empty_upload(
    faulty: FaultRegistry, tmp_path: Path
) -> None:
    """`Range: 0-0` says both; a registry that has the byte refuses the next piece, and it ends all the same."""
    faulty.faults.once(fr.CutRequest(after_bytes=1), "upload-patch")
    found = client(faulty, tmp_path, chunk=CHUNK)
    found.upload(DATA)
    assert stored(found, DATA) == DATA
    assert found.said("refuses to go on where it says that it is; it begins anew")


def test_a_whole_blob_that_broke_goes_on_where_the_registry_is(faulty: FaultRegistry, tmp_path: Path) -> None:
    faulty.faults.once(fr.CutRequest(after_bytes=600), "upload-put")
    found = client(faulty, tmp_path, chunk=len(DATA))
    found.upload(DATA)
    assert stored(found, DATA) == DATA
    assert received(faulty) == len(DATA)


def test_a_last_request_whose_answer_was_lost_is_not_made_again(faulty: FaultRegistry, tmp_path: Path) -> None:
    faulty.faults.once(fr.Reset(handled=True), "upload-put")
    found = client(faulty, tmp_path, chunk=CHUNK)
    found.upload(DATA)
    assert len(faulty.requests("upload-put")) == 1
    assert received(faulty) == len(DATA)


def test_a_last_request_that_failed_does_not_cost_the_pieces(faulty: FaultRegistry, tmp_path: Path) -> None:
    faulty.faults.once(fr.Answer(status=503), "upload-put", times=3)
    found = client(faulty, tmp_path, chunk=CHUNK)
    found.upload(DATA)
    assert received(faulty) == len(DATA)


def test_on_distribution_2_8_a_cut_inside_a_piece_loses_the_upload_and_that_is_said(tmp_path: Path) -> None:
    with fr.FaultRegistry(switches=fr.Switches(sessions="distribution-2.8")) as old:
        old.faults.once(fr.CutRequest(after_bytes=500), "upload-patch", skip=2)
        found = client(old, tmp_path, chunk=CHUNK)
        found.upload(DATA)
        assert stored(found, DATA) == DATA
        assert found.said("does not let it go on; it begins anew")
        assert found.known == len(DATA)


def test_a_source_that_breaks_inside_a_piece_ends_well_on_both_registries(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    found = client(registry, tmp_path, chunk=CHUNK)
    source = BreaksAt(DATA, 2 * CHUNK + 300, NetworkError("source", "broke"))
    found.upload(DATA, source)
    assert stored(found, DATA) == DATA
    lost = registry.kind == "docker-registry"
    assert source.opened == ([0, 0] if lost else [0, 2300])
    assert found.said("it begins anew") is lost


def test_a_registry_that_never_recovers_is_a_typed_error_and_what_is_there_stays(
    faulty: FaultRegistry, tmp_path: Path
) -> None:
    faulty.faults.add(fr.Fault(action=fr.Answer(status=503), kind="upload-patch", skip=2, times=None))
    with pytest.raises(ServerError):
        client(faulty, tmp_path, chunk=CHUNK).upload(DATA)
    assert len(states(tmp_path)) == 1
    faulty.faults.clear()
    again = client(faulty, tmp_path, chunk=CHUNK)
    again.upload(DATA)
    assert again.said("2000 of 3500 bytes are there from an earlier run")
    assert received(faulty) == len(DATA)


def test_C51_a_registry_that_throttles_for_ever_is_said_to_do_so(faulty: FaultRegistry, tmp_path: Path) -> None:
    faulty.faults.always(fr.Busy(retry_after=0), "upload-patch")
    with pytest.raises(ThrottledError):
        client(faulty, tmp_path, chunk=CHUNK).upload(DATA)


def test_an_upload_that_is_lost_again_and_again_ends(faulty: FaultRegistry, tmp_path: Path) -> None:
    faulty.faults.always(fr.Answer(status=404), "upload-patch")
    with pytest.raises(NetworkError, match="begun anew 3 times"):
        client(faulty, tmp_path, chunk=CHUNK).upload(DATA)
    assert len(faulty.requests("upload-post")) == 4


@pytest.mark.parametrize("kind", ["upload-post", "upload-patch", "upload-put"])
@pytest.mark.parametrize("status", [401, 403, 409])
def test_a_refusal_that_is_final_is_raised(faulty: FaultRegistry, tmp_path: Path, kind: Kind, status: int) -> None:
    faulty.faults.add(
        fr.Fault(action=fr.Answer(status=status), kind=kind, skip=int(kind == "upload-patch"), times=None)
    )
    with pytest.raises(RegistryError):
        client(faulty, tmp_path, chunk=CHUNK).upload(DATA)


@pytest.mark.parametrize("kind", ["upload-patch", "upload-put"])
def test_a_refusal_of_no_known_meaning_late_in_an_upload_is_raised(
    faulty: FaultRegistry, tmp_path: Path, kind: Kind
) -> None:
    faulty.faults.once(fr.Answer(status=405, message="not today"), kind, skip=int(kind == "upload-patch"))
    with pytest.raises(RegistryError, match="not today"):
        client(faulty, tmp_path, chunk=CHUNK).upload(DATA)


def test_a_blob_that_somebody_else_brought_meanwhile_is_there(faulty: FaultRegistry, tmp_path: Path) -> None:
    faulty.faults.once(fr.Answer(status=400), "upload-put")
    found = client(faulty, tmp_path, chunk=CHUNK)
    found.on_advance = lambda _: None if found.known < len(DATA) else faulty.storage.link(APP, fr.stored(DATA))
    found.upload(DATA)
    assert found.known == len(DATA)


def test_a_refused_end_is_said_though_the_registry_cannot_be_asked_for_the_blob(
    faulty: FaultRegistry, tmp_path: Path
) -> None:
    faulty.faults.once(fr.Answer(status=405, message="not today"), "upload-put")
    faulty.faults.always(fr.Answer(status=403), "blob")
    with pytest.raises(RegistryError, match="not today"):
        client(faulty, tmp_path, chunk=CHUNK).upload(DATA)


# Sessions that are lost


def test_a_session_that_is_lost_between_two_pieces_begins_anew_and_says_so(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    found = client(registry, tmp_path, chunk=CHUNK)
    lost: list[bool] = []

    def advance(_: int) -> None:
        if found.known == 2 * CHUNK and not lost:
            lost.append(True)
            expire(registry)

    found.on_advance = advance
    found.upload(DATA)
    assert stored(found, DATA) == DATA
    assert found.said("it begins anew")


@pytest.mark.parametrize("status", [404, 410])
def test_a_session_that_is_lost_before_the_last_request_begins_anew(
    faulty: FaultRegistry, tmp_path: Path, status: int
) -> None:
    faulty.faults.once(fr.Answer(status=status), "upload-put")
    found = client(faulty, tmp_path, chunk=CHUNK)
    found.upload(DATA)
    assert stored(found, DATA) == DATA
    assert found.said("it begins anew")


# Registries that count otherwise (C48)


@pytest.mark.parametrize("form", ["first", "last"])
@pytest.mark.parametrize("sessions", ["spec", "distribution-2.8"])
@pytest.mark.parametrize("fault", [None, fr.Busy(retry_after=0), fr.CutRequest(after_bytes=300), fr.Reset()])
def test_C48_a_range_that_is_stuck_or_counts_the_last_piece_only_is_survived_and_never_silently(
    tmp_path: Path, form: Any, sessions: Any, fault: Action | None
) -> None:
    with fr.FaultRegistry(switches=fr.Switches(sessions=sessions)) as odd:
        odd.faults.always(fr.WrongCount(form=form))
        if fault is not None:
            odd.faults.once(fault, "upload-patch", skip=3)
        found = client(odd, tmp_path, chunk=CHUNK)
        found.upload(DATA)
        assert stored(found, DATA) == DATA
        if fault is None:
            assert received(odd) == len(DATA)
        if received(odd) > len(DATA) + CHUNK:
            assert found.said("it begins anew")


def test_C48_a_registry_without_a_range_cannot_be_asked_and_begins_anew(faulty: FaultRegistry, tmp_path: Path) -> None:
    faulty.faults.always(fr.DropHeader(name="Range"))
    faulty.faults.once(fr.Reset(), "upload-patch", skip=2)
    found = client(faulty, tmp_path, chunk=CHUNK)
    found.upload(DATA)
    assert stored(found, DATA) == DATA
    assert found.said("does not say how much it has of it; it begins anew")


def test_C48_the_ecr_profile_keeps_nothing_and_repeats_a_piece_that_was_refused_unread(
    faulty: FaultRegistry, tmp_path: Path
) -> None:
    faulty.faults.once(fr.Busy(retry_after=0), "upload-patch", skip=2)
    found = client(faulty, tmp_path, chunk=CHUNK, profile="ecr")
    found.on_advance = lambda _: None if not states(tmp_path) else pytest.fail("it was kept")
    found.upload(DATA)
    assert received(faulty) == len(DATA)
    assert not faulty.requests("upload-status")


def test_C48_with_the_ecr_profile_a_break_begins_anew_and_an_earlier_upload_too(
    faulty: FaultRegistry, tmp_path: Path
) -> None:
    found = client(faulty, tmp_path, chunk=CHUNK, profile="ecr")
    found.memory.keep(str(found.repository), Digest.of(DATA), f"{faulty.url}/v2/team/app/blobs/uploads/x")
    faulty.faults.once(fr.Reset(), "upload-patch", skip=2)
    found.upload(DATA)
    assert stored(found, DATA) == DATA
    assert found.said("an earlier run began to send it, but this registry does not say rightly how much it has")
    assert sum("begins anew" in note for note in found.notes) == 2


def test_C48_a_count_that_was_wrong_is_found_by_the_digest_and_goes_in_one_request(tmp_path: Path) -> None:
    """Distribution 2.8 ignores Content-Range, so nothing but the digest notices a wrong offset."""
    with fr.FaultRegistry() as odd:
        odd.faults.once(fr.CutRequest(after_bytes=500), "upload-patch", skip=1)
        odd.faults.add(
            fr.Fault(action=fr.SetHeader(name="Range", value="0-1499"), kind="upload-status", skip=0, times=1)
        )
        odd.faults.once(fr.Answer(status=400, code="DIGEST_INVALID"), "upload-put")
        found = client(odd, tmp_path, chunk=CHUNK)
        found.upload(DATA)
        assert stored(found, DATA) == DATA
        assert found.said("counted otherwise than we did, so it goes in one request")
        assert odd.requests("upload-put")[-1].body_bytes_read == len(DATA)


def test_C48_a_registry_that_corrects_its_count_when_it_refuses_a_piece_is_followed(
    faulty: FaultRegistry, tmp_path: Path
) -> None:
    faulty.faults.once(fr.CutRequest(after_bytes=500), "upload-patch", skip=1)
    faulty.faults.once(fr.SetHeader(name="Range", value="0-999"), "upload-status")
    found = client(faulty, tmp_path, chunk=CHUNK)
    found.upload(DATA)
    assert stored(found, DATA) == DATA
    assert pieces(faulty)[2:4] == ["1000-1999", "1500-2499"]
    assert not found.said("anew")
