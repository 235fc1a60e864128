"""All talk with registries ended at once, wherever its threads are: before an answer, in a body, between two tries."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from imgbuild.adapters.registry.access import connect
from imgbuild.adapters.registry.blobs import BlobStream, has_blob
from imgbuild.adapters.registry.ending import EndedError, Ending
from imgbuild.adapters.registry.patience import Patience
from imgbuild.adapters.registry.repository import Repository
from imgbuild.adapters.registry.uploads import Upload
from imgbuild.adapters.registry.uploadstate import UploadMemory
from imgbuild.ledger import Ledger

from tests.support import fault_registry as fr
from tests.support.pushing import APP, DATA, Bytes, blob_of
from tests.support.registries import make_authority

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from imgbuild.adapters.registry.session import Registries

LONG = 60.0
SOON = 2.0
SLOW = Patience(attempts=6, first=LONG, cap=LONG)
BLOB = blob_of(DATA)


@pytest.fixture
def faulty(faulty: fr.FaultRegistry) -> fr.FaultRegistry:
    """A registry with the blob, whose faults the test chooses."""
    faulty.put_blob(APP, DATA)
    return faulty


def patient(file: Path | None = None, notes: list[str] | None = None) -> Registries:
    """As the program has them, with waits that no test could sit out."""
    note = (lambda _: None) if notes is None else notes.append
    return connect(file, ledger=Ledger(), offline=False, note=note, patience=SLOW)


class Worker:
    """A thread, what ended it, and when."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.error: BaseException | None = None
        self.ended = 0.0
        self._work = work
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - it is looked at
            self.error = error
        self.ended = time.monotonic()

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def join(self) -> None:
        self._thread.join(LONG)
        assert not self._thread.is_alive()


def ends_at_once(registries: Registries, work: Callable[[], object], is_stuck: Callable[[], bool]) -> None:
    worker = Worker(work)
    limit = time.monotonic() + 20
    while not is_stuck() and time.monotonic() < limit:
        time.sleep(0.01)
    # What it waits for is a moment later than what can be seen of it.
    time.sleep(0.1)
    assert worker.is_alive(), worker.error
    began = time.monotonic()
    registries.abort()
    worker.join()
    assert worker.ended - began < SOON
    assert isinstance(worker.error, EndedError), worker.error


def read(repository: Repository) -> None:
    with contextlib.closing(BlobStream(repository, BLOB)) as stream:
        while stream.read(100):
            pass


def test_before_any_answer(faulty: fr.FaultRegistry) -> None:
    registries = patient()
    repository = Repository(registries.of(faulty.host), APP)
    faulty.faults.always(fr.Hang(seconds=20))
    ends_at_once(registries, lambda: has_blob(repository, BLOB), lambda: bool(faulty.faults.fired))


def test_inside_of_a_body(faulty: fr.FaultRegistry) -> None:
    registries = patient()
    repository = Repository(registries.of(faulty.host), APP)
    faulty.faults.always(fr.Stall(after_bytes=1000, seconds=20), "blob")
    ends_at_once(registries, lambda: read(repository), lambda: bool(faulty.faults.fired))


def test_over_tls(tmp_path: Path) -> None:
    authority = make_authority(tmp_path / "ca")
    with fr.FaultRegistry(ssl_context=authority.server_context()) as registry:
        registry.put_blob(APP, DATA)
        file = tmp_path / "registries.toml"
        text = f'[registry."{registry.host}"]\nplain-http = false\nca = "{authority.ca}"\n'
        file.write_text(f'schema = "imgbuild/registries/v1"\n{text}')
        registries = patient(file)
        repository = Repository(registries.of(registry.host), APP)
        registry.faults.always(fr.Stall(after_bytes=1000, seconds=20), "blob")
        ends_at_once(registries, lambda: read(repository), lambda: bool(registry.faults.fired))


@pytest.mark.parametrize(
    "action", [fr.Answer(status=503), fr.Busy(retry_after=60), fr.Reset(), fr.CloseInAnswer(after_bytes=10)]
)
def test_between_two_tries(faulty: fr.FaultRegistry, action: fr.Action) -> None:
    notes: list[str] = []
    registries = patient(notes=notes)
    repository = Repository(registries.of(faulty.host), APP)
    faulty.faults.always(action)
    ends_at_once(registries, lambda: read(repository), lambda: bool(notes))
    assert len(notes) == 1


def test_behind_the_brake_that_another_thread_pulled(faulty: fr.FaultRegistry) -> None:
    notes: list[str] = []
    registries = patient(notes=notes)
    repository = Repository(registries.of(faulty.host), APP)
    faulty.faults.once(fr.Busy(retry_after=60))
    first = Worker(lambda: has_blob(repository, BLOB))
    while not notes:
        time.sleep(0.01)
    ends_at_once(registries, lambda: has_blob(repository, BLOB), lambda: True)
    first.join()
    assert isinstance(first.error, EndedError)
    assert len(faulty.requests()) == 1


@pytest.mark.parametrize("action", [fr.Hang(seconds=20), fr.Answer(status=503)])
@pytest.mark.parametrize("kind", ["upload-post", "upload-put"])
def test_inside_of_an_upload(faulty: fr.FaultRegistry, tmp_path: Path, action: fr.Action, kind: Any) -> None:
    registries = patient()
    repository = Repository(registries.of(faulty.host), APP)
    faulty.faults.always(action, kind)
    memory = UploadMemory(tmp_path / "uploads")
    new = b"a new blob"
    upload = Upload(repository, blob_of(new), Bytes(new), memory=memory, advance=lambda _: None)
    ends_at_once(registries, upload.run, lambda: bool(faulty.faults.fired))
    assert list((tmp_path / "uploads").glob("*.lock")) == []


def test_while_another_process_sends_the_same_blob(faulty: fr.FaultRegistry, tmp_path: Path) -> None:
    notes: list[str] = []
    registries = patient(notes=notes)
    repository = Repository(registries.of(faulty.host), APP)
    memory = UploadMemory(tmp_path / "uploads")
    upload = Upload(repository, BLOB, Bytes(DATA), memory=memory, advance=lambda _: None)
    with memory.hold(str(repository), BLOB.digest):
        ends_at_once(registries, upload.run, lambda: bool(notes))


def test_nothing_is_asked_afterwards(faulty: fr.FaultRegistry) -> None:
    registries = patient()
    repository = Repository(registries.of(faulty.host), APP)
    assert has_blob(repository, BLOB)
    repository.registry.abort()
    with pytest.raises(EndedError):
        has_blob(repository, BLOB)
    with pytest.raises(EndedError):
        has_blob(Repository(registries.of(faulty.host), "another"), BLOB)
    assert len(faulty.requests()) == 1


def test_a_wait_that_is_not_cut_short_is_as_long_as_it_should_be() -> None:
    began = time.monotonic()
    Ending().sleep(0.05)
    assert time.monotonic() - began >= 0.05
