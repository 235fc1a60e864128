"""Layers that are read by processes of their own: the same answers as from threads, and nothing is left of them."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

import msgspec
import pytest
from imgbuild import errors
from imgbuild.adapters.child import Child
from imgbuild.adapters.registry.repository import Repository
from imgbuild.digest import Digest
from imgbuild.errors import DigestMismatchError, ImgbuildError
from imgbuild.progress import Silent
from imgbuild.steps import readers
from imgbuild.steps.inventories import take_inventories
from imgbuild.steps.reader import Failed

from tests.support import apart
from tests.support.fault_registry import Answer, Busy, Fault, FlipBit, Stall
from tests.support.pushing import log_in
from tests.support.remote import BASE, Remote, base_to, moved, registries

if TYPE_CHECKING:
    from collections.abc import Callable

    from imgbuild.model.oci import Descriptor
    from imgbuild.progress import Task
    from imgbuild.steps.context import Context

    from tests.support.fault_registry import FaultRegistry
    from tests.support.tiny import Tiny

ROOT = Path(__file__).parents[2]


@pytest.fixture
def remote(
    tiny: Tiny, faulty: FaultRegistry, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Remote:
    """A base of several layers in a registry, and nothing known of it here."""
    base_to(tiny, faulty.host, monkeypatch)
    return Remote(tiny=tiny, host=faulty.host, capture=capsys)


def inventory(remote: Remote, folder: Path) -> tuple[int, dict[str, Any]]:
    """Read the base with an empty cache."""
    return remote.run("inventory", remote.reference(BASE, "v1"), "-o", str(folder / "out"), cache=folder / "cache")


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def stored(tiny: Tiny) -> tuple[Context, tuple[Descriptor, ...], tuple[Digest, ...]]:
    """The base in the store, with an empty cache, for processes."""
    context = tiny.context()
    manifest = context.store.manifest(context.store.resolve("base"))
    return context, manifest.layers, context.places.config(manifest.config).diff_ids


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[Child]:
    """The processes that were begun."""
    found: list[Child] = []

    class Watched(Child):
        def __init__(self, module: str, printed: IO[bytes]) -> None:
            super().__init__(module, printed)
            found.append(self)

    monkeypatch.setattr(readers, "Child", Watched)
    return found


@pytest.mark.parametrize("place", ["registry", "store"])
def test_processes_say_the_same_as_threads_keep_the_same_files_and_count_the_same_bytes(
    tiny: Tiny,
    faulty: FaultRegistry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    begun: list[Child],
    place: str,
) -> None:
    remote = Remote(tiny=tiny, host=faulty.host, capture=capsys)
    if place == "registry":
        base_to(tiny, faulty.host, monkeypatch)
    name = "base" if place == "store" else remote.reference(BASE, "v1")
    results = []
    for way in ("threads", "processes"):
        if way == "processes":
            assert not begun
            apart.always(monkeypatch)
        folder = tmp_path / way
        results.append(remote.run("inventory", name, "-o", str(folder / "out"), cache=folder / "cache"))
    assert results[0] == results[1]
    assert results[0][0] == 0
    assert files(tmp_path / "threads") == files(tmp_path / "processes")
    assert begun
    assert not any(child.is_alive for child in begun)


def test_with_one_layer_or_one_core_or_little_to_read_no_process_is_begun(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, layers, _ = stored(tiny)

    def processes(context: Context, layers: tuple[Descriptor, ...]) -> bool:
        with readers.reading(context, layers) as (read, count):
            assert count >= 1
            return isinstance(getattr(read, "__self__", None), readers._Readers)

    assert not processes(context, layers)
    apart.always(monkeypatch, count=1)
    assert not processes(context, layers)
    apart.always(monkeypatch)
    assert processes(context, layers)
    assert not processes(context, layers[:1])
    assert not processes(context, ())


def test_where_no_process_can_be_begun_threads_do_it(
    remote: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apart.always(monkeypatch)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no python"))
    said = notes(monkeypatch)
    assert inventory(remote, tmp_path)[0] == 0
    (line,) = said
    assert "read by this process alone" in line
    assert "no python" in line


FAULTS = {
    "flipped": Fault(action=FlipBit(at=300), kind="blob", method="GET", times=None),
    "refused": Fault(action=Answer(status=403, code="DENIED", message="no"), kind="blob", method="GET", times=None),
    "absent": Fault(action=Answer(status=404, code="BLOB_UNKNOWN"), kind="blob", method="GET", times=None),
}


@pytest.mark.parametrize("name", FAULTS)
def test_an_error_is_the_one_that_a_thread_raises(
    remote: Remote,
    faulty: FaultRegistry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    begun: list[Child],
    name: str,
) -> None:
    digest = largest(remote)
    results = []
    for way in ("threads", "processes"):
        if way == "processes":
            apart.always(monkeypatch)
        faulty.faults.clear()
        faulty.faults.add(dataclasses.replace(FAULTS[name], path=digest))
        results.append(inventory(remote, tmp_path / way))
    assert results[0] == results[1]
    assert results[0][0] == {"flipped": 4, "refused": 5, "absent": 5}[name]
    assert digest in results[0][1]["subject"]
    assert begun
    assert not any(child.is_alive for child in begun)


def test_the_same_credentials_are_shown(
    remote: Remote, faulty: FaultRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apart.always(monkeypatch)
    faulty.auth.mode = "bearer"
    code, error = inventory(remote, tmp_path)
    assert (code, error["code"]) == (5, "UNAUTHORIZED")
    log_in(monkeypatch, tmp_path / "docker", faulty.host, "tester", "open sesame")
    assert inventory(remote, tmp_path)[0] == 0


def test_what_is_tried_again_is_said(
    remote: Remote, faulty: FaultRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apart.always(monkeypatch)
    faulty.faults.add(Fault(action=Busy(retry_after=1), kind="blob", method="GET", path=largest(remote)))
    said = notes(monkeypatch)
    assert inventory(remote, tmp_path)[0] == 0
    (line,) = said
    assert "trying again in 1" in line
    assert largest(remote) in line


def test_more_bytes_than_are_allowed_end_the_command(
    remote: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: list[Child]
) -> None:
    _, result = inventory(remote, tmp_path / "all")
    limit = moved(result, remote.host)[0] - 10
    apart.always(monkeypatch)
    words = ("inventory", remote.reference(BASE, "v1"), "--max-bytes", str(limit))
    code, error = remote.run(*words, cache=tmp_path / "cache")
    assert (code, error["code"], error["expected"]) == (5, "MAX_BYTES", f"at most {limit} bytes")
    assert begun
    assert not any(child.is_alive for child in begun)


def test_a_process_that_is_killed_is_said_with_its_layer_and_the_next_run_goes_on(
    remote: Remote, faulty: FaultRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apart.always(monkeypatch)
    digest = largest(remote)
    faulty.faults.add(Fault(action=Stall(after_bytes=100, seconds=2.0), kind="blob", method="GET", path=digest))

    def kill() -> None:
        wait_for(lambda: bool(faulty.faults.fired))
        for pid in apart.children(os.getpid()):
            os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    code, error = inventory(remote, tmp_path)
    killer.join()
    assert (code, error["code"]) == (5, "TOOL_FAILED")
    assert error["subject"].startswith("layer sha256:")
    assert error["actual"] == f"signal {signal.SIGKILL.value}"
    assert inventory(remote, tmp_path)[0] == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_however_the_command_ends_its_processes_end_too(
    remote: Remote, faulty: FaultRegistry, tmp_path: Path, number: signal.Signals
) -> None:
    faulty.faults.add(
        Fault(action=Stall(after_bytes=100, seconds=60.0), kind="blob", method="GET", path=largest(remote))
    )
    words = ["inventory", remote.reference(BASE, "v1"), "--project", str(remote.tiny.root)]
    command = [sys.executable, "-m", "tests.support.apart", *words, "--cache", str(tmp_path / "cache")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as program:
        wait_for(lambda: bool(faulty.faults.fired))
        pids = apart.children(program.pid)
        program.send_signal(number)
        _, said = program.communicate(timeout=20)
    assert pids
    assert apart.ended(pids)
    assert program.returncode == (-number if number == signal.SIGKILL else 128 + number)
    assert "Traceback" not in said


def test_a_damaged_layer_of_the_store_is_set_aside_as_by_a_thread(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    apart.always(monkeypatch)
    context, layers, diff_ids = stored(tiny)
    context = dataclasses.replace(context, cache=type(context.cache)(tmp_path / "fresh", ledger=context.ledger))
    path = context.store.path(layers[0].digest)
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    with pytest.raises(DigestMismatchError, match=str(layers[0].digest)):
        take_inventories(context, layers, diff_ids, None)


@pytest.mark.parametrize("place", ["registry", "store"])
def test_progress_is_the_bytes_of_the_layers(
    tiny: Tiny, faulty: FaultRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: list[Child], place: str
) -> None:
    apart.always(monkeypatch)
    context, layers, diff_ids = stored(tiny)
    if place == "registry":
        base_to(tiny, faulty.host, monkeypatch)
        context = tiny.context(offline=False).only_from(Repository(registries().of(faulty.host), BASE))
    task = Counting()
    context = dataclasses.replace(
        context, cache=type(context.cache)(tmp_path / "fresh", ledger=context.ledger), progress=Shown(task)
    )
    take_inventories(context, layers, diff_ids, None)
    assert begun
    assert task.count == 2 * sum(layer.size for layer in set(layers))


def test_a_cache_whose_name_is_no_text_is_used(
    remote: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: list[Child]
) -> None:
    apart.always(monkeypatch)
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    assert inventory(remote, folder)[0] == 0
    assert begun
    assert (folder / "cache/inventories").is_dir()


def test_what_is_no_error_of_ours_keeps_its_traceback() -> None:
    sent = Failed(kind="", fields={}, trace="Traceback (most recent call last):\n  over there\nValueError: boom\n")
    with pytest.raises(RuntimeError, match=r"^ValueError: boom$") as caught:
        sent.raise_it()
    assert "\n  over there\n" in "".join(traceback.format_exception(caught.value))


def test_every_error_comes_over_as_what_it_is_or_as_its_nearest_kind() -> None:
    kinds = [ImgbuildError]
    for kind in kinds:
        kinds.extend(kind.__subclasses__())
    found = {}
    for kind in kinds:
        error = kind.__new__(kind)
        ImgbuildError.__init__(error, "it", "is so", expected="a", actual="\udcff", where="c", hint="d")
        sent = msgspec.msgpack.decode(msgspec.msgpack.encode(Failed.of(error)), type=Failed)
        with pytest.raises(ImgbuildError) as caught:
            sent.raise_it()
        again = caught.value
        assert (str(again), again.fields()) == (str(error), error.fields())
        assert again.exit_code == error.exit_code
        found[kind.__name__] = type(again).__name__
    others = {name: kind for name, kind in found.items() if name != kind}
    assert others == {
        "DocumentError": "InputError",
        "LockVersionError": "InputError",
        "UnresolvedError": "AvailabilityError",
    }
    assert errors.InternalError.__name__ in found


def notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is said beside the progress from now on."""
    said: list[str] = []
    monkeypatch.setattr("imgbuild.cli.bars.Bars.note", lambda _self, text: said.append(text))
    return said


def largest(remote: Remote) -> str:
    """The digest of the base's largest layer, as in the paths of requests."""
    lock = json.loads((remote.tiny.root / "locks/tiny.lock.json").read_text())
    return str(max(lock["facts"]["base_layers"], key=lambda row: int(row["size"]))["digest"])


class Counting:
    """A task that knows how far it is."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def advance(self, count: int) -> None:
        with self._lock:
            self.count += count


class Shown(Silent):
    """Progress of which every task is one and the same."""

    def __init__(self, task: Counting) -> None:
        self._task = task

    def task(self, label: str, total: int | None = None, *, unit: str = "bytes") -> Task:  # noqa: ARG002
        return self._task

    def part(self, label: str, total: int | None = None) -> Task:  # noqa: ARG002
        return self._task


def wait_for(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_diff_id_that_is_assumed_is_not_hashed_in_a_process_either(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, begun: list[Child]
) -> None:
    context, layers, diff_ids = stored(tiny)
    apart.always(monkeypatch)
    other = Digest.of(b"another layer")
    with readers.reading(context, layers) as (read, _), context.progress.task("reading layers", None) as task:
        assert read(layers[0], other, task, assumed=True).inventory.diff_id == other
        assert read(layers[0], other, task).inventory.diff_id == diff_ids[0]
    assert begun
