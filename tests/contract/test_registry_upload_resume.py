"""Uploads that go on in another process, from what is kept on disk (cases C47, C59)."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest
from imgbuild.adapters.registry.uploadstate import UploadMemory
from imgbuild.digest import Digest
from imgbuild.errors import (
    NetworkError,
    StorageError,
)

from tests.support import fault_registry as fr
from tests.support.pushing import (
    APP,
    CHUNK,
    DATA,
    Bytes,
    StoppedError,
    client,
    expire,
    states,
    stop_between,
    stored,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.fault_registry import Action, FaultRegistry
    from tests.support.registries import LocalRegistry


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
    assert source.opened == [2000]
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
    assert second.said("an earlier run began to send it, but the registry does not let it go on; it begins anew")


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
