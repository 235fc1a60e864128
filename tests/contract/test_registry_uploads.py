"""Uploads of blobs, on both kinds of registry where they agree: pieces, breaks, resumption, refusals (C46 to C49)."""

from __future__ import annotations

import random
import shutil
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from imgbuild.adapters.registry.blobs import has_blob, read_blob
from imgbuild.adapters.registry.uploadstate import UploadMemory
from imgbuild.digest import Digest
from imgbuild.errors import (
    DigestMismatchError,
    ImgbuildError,
    MissingError,
    NetworkError,
    ProtocolError,
    RegistryError,
    ServerError,
    StorageError,
    ThrottledError,
)

from tests.support import fault_registry as fr
from tests.support.pushing import APP, BreaksAt, Bytes, Client, blob_of, client, log_in
from tests.support.registries import KINDS, any_registry, make_authority

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.fault_registry import Action, FaultRegistry, Kind
    from tests.support.registries import LocalRegistry, RegistryKind

MIB = 1024 * 1024
BIG = bytes(5 * MIB)
CHUNK = 1000
DATA = random.Random(7).randbytes(3 * CHUNK + 500)


@pytest.fixture(params=KINDS)
def registry(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalRegistry]:
    kind: RegistryKind = request.param
    with any_registry(kind, tmp_path / "registry") as found:
        yield found


@pytest.fixture
def faulty() -> Iterator[FaultRegistry]:
    with fr.FaultRegistry() as found:
        yield found


def stored(client: Client, data: bytes) -> bytes:
    return read_blob(client.repository, blob_of(data), 1 << 30)


def pieces(registry: FaultRegistry) -> list[str]:
    return [one.headers["content-range"] for one in registry.requests("upload-patch")]


def received(registry: FaultRegistry) -> int:
    """Bytes of blobs that arrived and were not refused: of what is refused, a server reads some and drops it."""
    kinds = {"upload-patch", "upload-put"}
    return sum(one.body_bytes_read for one in registry.requests() if one.kind in kinds and one.status < 400)


def states(folder: Path) -> list[Path]:
    return sorted((folder / "uploads").glob("*.json"))


class StoppedError(Exception):
    """What a test ends an upload with."""


def stop_between(found: Client, count: int) -> None:
    """End the upload after so many pieces, while no request is on its way; as if the process were killed there."""
    seen = [0]

    def advance(moved: int) -> None:
        seen[0] += moved == 0
        if seen[0] > count:
            raise StoppedError

    found.on_advance = advance


# Sizes


@pytest.mark.parametrize("size", [0, 1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK + 500])
def test_a_blob_of_any_size_arrives_whole(registry: LocalRegistry, tmp_path: Path, size: int) -> None:
    found = client(registry, tmp_path, chunk=CHUNK)
    found.upload(DATA[:size])
    assert has_blob(found.repository, blob_of(DATA[:size]))
    assert stored(found, DATA[:size]) == DATA[:size]
    assert found.known == size
    assert not states(tmp_path)


@pytest.mark.parametrize("chunk", [1, 2])
def test_pieces_of_one_byte_are_not_taken_for_an_empty_upload(
    registry: LocalRegistry, tmp_path: Path, chunk: int
) -> None:
    found = client(registry, tmp_path, chunk=chunk)
    found.upload(b"abcde")
    assert stored(found, b"abcde") == b"abcde"
    assert not found.notes


def test_a_blob_up_to_one_chunk_goes_in_one_request_and_a_larger_one_in_pieces(
    faulty: FaultRegistry, tmp_path: Path
) -> None:
    found = client(faulty, tmp_path, chunk=CHUNK)
    found.upload(DATA[:CHUNK])
    assert pieces(faulty) == []
    found.upload(DATA[: CHUNK + 1])
    assert pieces(faulty) == ["0-999", "1000-1000"]


# Where the registry sends us next


def test_C49_relative_locations_are_followed(faulty: FaultRegistry, tmp_path: Path) -> None:
    faulty.faults.always(fr.LocationForm(form="relative"))
    found = client(faulty, tmp_path, chunk=CHUNK)
    found.upload(DATA)
    assert stored(found, DATA) == DATA


def test_C49_a_location_at_another_host_is_followed_without_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    auth = fr.Auth(mode="basic")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    with fr.FaultRegistry(auth=auth) as front, fr.FaultRegistry(storage=front.storage) as back:
        log_in(monkeypatch, tmp_path / "docker", front.host, "tester", "open sesame")
        back._backend.uploads = front.uploads
        front.faults.always(fr.LocationForm(form="origin", origin=back.url))
        found = client(front, tmp_path, chunk=CHUNK)
        found.upload(DATA)
        assert stored(found, DATA) == DATA
        assert {one.kind for one in back.requests()} == {"upload-patch", "upload-put"}
        assert not any("authorization" in one.headers for one in back.requests())
        assert any("authorization" in one.headers for one in front.requests())


def test_C49_a_registry_behind_tls_that_names_itself_by_http_is_asked_by_https(tmp_path: Path) -> None:
    authority = make_authority(tmp_path / "tls")
    with fr.FaultRegistry(ssl_context=authority.server_context()) as secure:
        secure.faults.always(fr.LocationForm(form="origin", origin=f"http://{secure.host}"))
        found = client(secure, tmp_path, chunk=CHUNK, ca=authority.ca, plain=False)
        found.upload(DATA)
        assert stored(found, DATA) == DATA


@pytest.mark.parametrize(
    "action",
    [
        fr.DropHeader(name="Location"),
        fr.SetHeader(name="Location", value="file:///etc/passwd"),
        fr.SetHeader(name="Location", value="http://[broken"),
        fr.SetHeader(name="Location", value="http://user:word@127.0.0.1/x"),
    ],
)
@pytest.mark.parametrize("kind", ["upload-post", "upload-patch"])
def test_a_location_that_cannot_be_used_is_a_typed_error(
    faulty: FaultRegistry, tmp_path: Path, kind: Kind, action: Action
) -> None:
    faulty.faults.always(action, kind)
    with pytest.raises(ProtocolError):
        client(faulty, tmp_path, chunk=CHUNK).upload(DATA)


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
        assert found.said("does not know it any more; it begins anew")
        assert found.known == len(DATA)


def test_a_source_that_breaks_inside_a_piece_ends_well_on_both_registries(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    found = client(registry, tmp_path, chunk=CHUNK)
    source = BreaksAt(DATA, 2 * CHUNK + 300, NetworkError("source", "broke"))
    found.upload(DATA, source)
    assert stored(found, DATA) == DATA
    lost = registry.kind == "docker-registry"
    assert source.opened == ([0, 1000, 2000, 0, 1000, 2000, 3000] if lost else [0, 1000, 2000, 2300, 3300])
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


def expire(registry: LocalRegistry) -> None:
    """Have the registry forget all uploads."""
    if registry.fault is not None:
        registry.fault.uploads.expire()
    else:
        assert registry.storage is not None
        for folder in registry.storage.glob("docker/registry/v2/repositories/*/*/_uploads"):
            shutil.rmtree(folder)


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


# What is kept on disk


def test_an_upload_resumes_in_another_process_between_two_pieces(registry: LocalRegistry, tmp_path: Path) -> None:
    first = client(registry, tmp_path, chunk=CHUNK)
    stop_between(first, 2)
    with pytest.raises(StoppedError):
        first.upload(DATA)
    assert len(states(tmp_path)) == 1
    assert states(tmp_path)[0].stat().st_mode & 0o777 == 0o600
    source = Bytes(DATA)
    second = client(registry, tmp_path, chunk=CHUNK)
    second.upload(DATA, source)
    assert source.opened == [2000, 3000]
    assert second.said("2000 of 3500 bytes are there from an earlier run")
    assert stored(second, DATA) == DATA
    assert second.known == len(DATA)
    assert not states(tmp_path)


def test_a_resumed_upload_goes_on_in_pieces_though_one_request_would_do_now(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    first = client(registry, tmp_path, chunk=CHUNK)
    stop_between(first, 2)
    with pytest.raises(StoppedError):
        first.upload(DATA)
    second = client(registry, tmp_path, chunk=10 * CHUNK)
    second.upload(DATA)
    assert stored(second, DATA) == DATA
    assert not second.said("anew")


def test_an_earlier_session_that_is_lost_is_said_and_begins_anew(registry: LocalRegistry, tmp_path: Path) -> None:
    first = client(registry, tmp_path, chunk=CHUNK)
    stop_between(first, 2)
    with pytest.raises(StoppedError):
        first.upload(DATA)
    expire(registry)
    second = client(registry, tmp_path, chunk=CHUNK)
    second.upload(DATA)
    assert stored(second, DATA) == DATA
    assert second.said("an earlier run began to send it, but the registry does not know it any more; it begins anew")


@pytest.mark.parametrize(
    "action",
    [
        fr.Answer(status=400),
        fr.Answer(status=410),
        fr.DropHeader(name="Range"),
        fr.SetHeader(name="Range", value="0-99999"),
        fr.SetHeader(name="Range", value="1-2"),
        fr.SetHeader(name="Location", value="ftp://elsewhere/"),
    ],
)
def test_whatever_a_registry_says_of_an_earlier_upload_does_not_keep_the_next_one_from_going(
    faulty: FaultRegistry, tmp_path: Path, action: Action
) -> None:
    first = client(faulty, tmp_path, chunk=CHUNK)
    stop_between(first, 2)
    with pytest.raises(StoppedError):
        first.upload(DATA)
    faulty.faults.always(action, "upload-status")
    second = client(faulty, tmp_path, chunk=CHUNK)
    second.upload(DATA)
    assert stored(second, DATA) == DATA
    assert second.said("an earlier run began to send it, but")


def test_an_earlier_upload_at_an_address_that_answers_no_more_begins_anew(
    faulty: FaultRegistry, tmp_path: Path
) -> None:
    found = client(faulty, tmp_path, chunk=CHUNK)
    found.memory.keep(str(found.repository), Digest.of(DATA), "http://127.0.0.1:9/v2/team/app/blobs/uploads/gone")
    found.upload(DATA)
    assert stored(found, DATA) == DATA
    assert found.said("an earlier run began to send it, but")


def test_a_registry_that_is_down_does_not_cost_the_earlier_upload(faulty: FaultRegistry, tmp_path: Path) -> None:
    first = client(faulty, tmp_path, chunk=CHUNK)
    stop_between(first, 2)
    with pytest.raises(StoppedError):
        first.upload(DATA)
    faulty.faults.always(fr.Reset())
    with pytest.raises(NetworkError):
        client(faulty, tmp_path, chunk=CHUNK).upload(DATA)
    faulty.faults.clear()
    third = client(faulty, tmp_path, chunk=CHUNK)
    third.upload(DATA)
    assert third.said("2000 of 3500 bytes are there from an earlier run")


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b'{"location": 3}', b"\xff", b'{"digest": "x", "repository": "y", "location": "http://z/"}'],
)
def test_a_damaged_note_of_an_upload_is_forgotten(faulty: FaultRegistry, tmp_path: Path, text: bytes) -> None:
    found = client(faulty, tmp_path, chunk=CHUNK)
    found.memory.keep(str(found.repository), Digest.of(DATA), f"{faulty.url}/v2/x")
    states(tmp_path)[0].write_bytes(text)
    found.upload(DATA)
    assert stored(found, DATA) == DATA


@pytest.mark.parametrize("location", ["nowhere", "://", "http://[::1", "gopher://127.0.0.1/"])
def test_a_note_with_an_address_that_is_none_is_forgotten(faulty: FaultRegistry, tmp_path: Path, location: str) -> None:
    found = client(faulty, tmp_path, chunk=CHUNK)
    found.memory.keep(str(found.repository), Digest.of(DATA), location)
    found.upload(DATA)
    assert stored(found, DATA) == DATA


def test_uploads_that_cannot_be_kept_are_a_storage_error(faulty: FaultRegistry, tmp_path: Path) -> None:
    (tmp_path / "uploads").write_text("a file")
    with pytest.raises(StorageError):
        client(faulty, tmp_path, chunk=CHUNK).upload(DATA)


def test_C59_two_processes_send_one_blob_once(faulty: FaultRegistry, tmp_path: Path) -> None:
    found = client(faulty, tmp_path, chunk=CHUNK)
    held = threading.Event()

    def other() -> None:
        with UploadMemory(tmp_path / "uploads").hold(str(found.repository), Digest.of(DATA)):
            held.set()
            time.sleep(1.3)
            faulty.put_blob(APP, DATA)

    thread = threading.Thread(target=other)
    thread.start()
    held.wait(5)
    found.upload(DATA)
    thread.join()
    assert not faulty.requests("upload-post")
    assert found.known == len(DATA)
    assert found.said("another process sends it")


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


# Sizes of pieces (C49)


def test_C49_the_least_length_of_a_piece_is_obeyed(tmp_path: Path) -> None:
    with fr.FaultRegistry(switches=fr.Switches(chunk_min_bytes=1700)) as choosy:
        found = client(choosy, tmp_path, chunk=CHUNK)
        found.upload(DATA)
        assert pieces(choosy) == ["0-1699", "1700-3399", "3400-3499"]


@pytest.mark.parametrize("value", ["9" * 5000, "-1", "abc", "", "٣"])
def test_a_least_length_that_makes_no_sense_is_passed_over(faulty: FaultRegistry, tmp_path: Path, value: str) -> None:
    faulty.faults.always(
        fr.SetHeader(name="OCI-Chunk-Min-Length", value=value.encode().decode("latin-1")), "upload-post"
    )
    found = client(faulty, tmp_path, chunk=CHUNK)
    found.upload(DATA)
    assert len(pieces(faulty)) == 4


def test_C49_pieces_that_are_too_large_are_made_smaller(faulty: FaultRegistry, tmp_path: Path) -> None:
    faulty.faults.always(fr.RefuseOver(limit=MIB), "upload-patch")
    found = client(faulty, tmp_path, chunk=4 * MIB)
    found.upload(BIG)
    assert found.said(f"{MIB} bytes from now on")
    assert received(faulty) == len(BIG)


def test_C49_a_limit_below_the_least_piece_is_an_error_that_says_what_to_do(
    faulty: FaultRegistry, tmp_path: Path
) -> None:
    faulty.faults.always(fr.RefuseOver(limit=1000), "upload-patch")
    with pytest.raises(RegistryError) as caught:
        client(faulty, tmp_path, chunk=2 * MIB).upload(BIG)
    assert "proxy" in (caught.value.hint or "")


def test_C49_a_blob_that_is_too_large_for_one_request_goes_in_pieces(faulty: FaultRegistry, tmp_path: Path) -> None:
    faulty.faults.always(fr.RefuseOver(limit=2 * MIB), "upload-put")
    found = client(faulty, tmp_path, chunk=8 * MIB)
    found.upload(BIG)
    assert found.said("too large for one request, so it goes in pieces")
    assert len(pieces(faulty)) > 1


@pytest.mark.parametrize("status", [400, 405])
def test_a_registry_that_takes_no_pieces_gets_the_blob_in_one_request(
    faulty: FaultRegistry, tmp_path: Path, status: int
) -> None:
    faulty.faults.always(fr.Answer(status=status, code="UNSUPPORTED"), "upload-patch")
    found = client(faulty, tmp_path, chunk=CHUNK)
    found.upload(DATA)
    assert stored(found, DATA) == DATA
    assert found.said("takes no pieces, so it goes in one request")


def test_a_break_of_the_one_request_of_a_registry_without_pieces_begins_anew(
    faulty: FaultRegistry, tmp_path: Path
) -> None:
    faulty.faults.always(fr.Answer(status=405), "upload-patch")
    faulty.faults.once(fr.CutRequest(after_bytes=100), "upload-put")
    found = client(faulty, tmp_path, chunk=CHUNK)
    found.upload(DATA)
    assert stored(found, DATA) == DATA


def test_a_registry_that_takes_neither_pieces_nor_the_whole_is_a_typed_error(
    faulty: FaultRegistry, tmp_path: Path
) -> None:
    faulty.faults.always(fr.Answer(status=405), "upload-patch")
    faulty.faults.always(fr.RefuseOver(limit=MIB), "upload-put")
    with pytest.raises(NetworkError, match="begun anew"):
        client(faulty, tmp_path, chunk=2 * MIB).upload(BIG)


# Bytes that are not what they should be


def test_bytes_that_are_not_those_of_the_digest_are_refused_at_the_end(registry: LocalRegistry, tmp_path: Path) -> None:
    found = client(registry, tmp_path, chunk=CHUNK)
    with pytest.raises(DigestMismatchError, match=str(Digest.of(DATA))):
        found.upload(DATA, Bytes(DATA[:-1] + b"x"))
    with pytest.raises(MissingError):
        stored(found, DATA)


@pytest.mark.parametrize("length", [0, CHUNK, 2 * CHUNK + 1, len(DATA) - 1])
def test_a_source_that_is_too_short_is_refused(registry: LocalRegistry, tmp_path: Path, length: int) -> None:
    found = client(registry, tmp_path, chunk=CHUNK)
    with pytest.raises(DigestMismatchError, match="shorter"):
        found.upload(DATA, Bytes(DATA[:length]))


@pytest.mark.parametrize("status", [200, 202, 204])
def test_other_statuses_of_success_are_taken(faulty: FaultRegistry, tmp_path: Path, status: int) -> None:
    """What the registry then has is looked at by the push, when it reads the image back."""
    faulty.faults.once(fr.Answer(status=status), "upload-put")
    client(faulty, tmp_path, chunk=CHUNK).upload(DATA)


def test_a_blob_that_is_there_in_another_size_is_refused(faulty: FaultRegistry, tmp_path: Path) -> None:
    faulty.add_synthetic(APP, str(Digest.of(DATA)), 5)
    found = client(faulty, tmp_path)
    with pytest.raises(DigestMismatchError, match="another size"):
        has_blob(found.repository, blob_of(DATA))


# Tokens that end too early


@pytest.mark.parametrize("after", [700, 1500])
def test_C46_a_token_that_is_used_up_inside_a_layer_is_made_new_and_the_same_upload_goes_on(
    tmp_path: Path, after: int
) -> None:
    auth = fr.Auth(mode="bearer", anonymous=frozenset({APP}), expire_after_bytes=after)
    auth.users["me"] = "word"
    with fr.FaultRegistry(auth=auth) as guarded, pytest.MonkeyPatch.context() as changed:
        log_in(changed, tmp_path / "docker", guarded.host, "me", "word")
        found = client(guarded, tmp_path, chunk=CHUNK)
        found.upload(DATA)
        assert len(guarded.requests("upload-post")) <= 2
        assert received(guarded) <= len(DATA) + CHUNK
        auth.expire_after_bytes = None
        assert stored(found, DATA) == DATA


def test_C46_a_token_that_expires_between_two_pieces_costs_nothing_but_a_new_one(tmp_path: Path) -> None:
    auth = fr.Auth(mode="bearer", users={"me": "word"})
    with fr.FaultRegistry(auth=auth) as guarded, pytest.MonkeyPatch.context() as changed:
        log_in(changed, tmp_path / "docker", guarded.host, "me", "word")
        found = client(guarded, tmp_path, chunk=CHUNK)
        found.on_advance = lambda count: None if count else auth.expire_all()
        found.upload(DATA)
        assert len({one.reference for one in guarded.requests("upload-patch")}) == 1
        assert stored(found, DATA) == DATA


def test_no_fault_of_a_registry_is_a_foreign_exception(faulty: FaultRegistry, tmp_path: Path) -> None:
    for seed in range(60):
        faulty.faults.clear()
        faulty.storage.repository(APP).blobs.clear()
        faulty.faults.add(fr.random_fault(random.Random(seed)))
        found = client(faulty, tmp_path, chunk=CHUNK)
        try:
            found.upload(DATA)
        except ImgbuildError:
            faulty.faults.clear()
            client(faulty, tmp_path, chunk=CHUNK).upload(DATA)
        assert str(Digest.of(DATA)) in faulty.storage.repository(APP).blobs, seed
