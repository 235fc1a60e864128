"""Several processes on one store and one cache (case C59): real ones, which really wait for each other."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from imgbuild.adapters.store import StagedStore, Store
from imgbuild.errors import IntegrityError, MissingError
from imgbuild.ledger import Ledger

from tests.support.scratch import forget_derived

if TYPE_CHECKING:
    from imgbuild.digest import Digest

    from tests.support.tiny import Tiny

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel who waits for a lock: /proc/locks")
_PATIENCE = 60
"""seconds after which a test gives up; nothing here takes so long."""


def start(tiny: Tiny, verb: str, *more: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "imgbuild", verb, "tiny", "--json", "--offline"]
    return subprocess.Popen(
        [*command, "--project", str(tiny.root), "--cache", str(tiny.cache_path), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def end(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    out, err = process.communicate(timeout=_PATIENCE)
    assert process.returncode == 0, err.decode()
    result: dict[str, Any] = json.loads(out)["result"]
    return result


def waits_for_a_lock(process: subprocess.Popen[bytes], path: os.PathLike[str]) -> bool:
    """Whether the kernel says that a process waits for the lock of a file."""
    inode = os.stat(path).st_ino
    with open("/proc/locks", encoding="ascii") as file:
        rows = [line.split() for line in file]
    waiting = [row for row in rows if row[1] == "->" and row[6].endswith(f":{inode}")]
    return any(row[5] == str(process.pid) for row in waiting)


def until(condition: Any) -> None:
    limit = time.monotonic() + _PATIENCE
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.005)


def left(tiny: Tiny) -> list[str]:
    return [str(path) for path in tiny.root.rglob(".imgbuild-pending-*")] + [
        str(path) for path in (tiny.store_path / ".imgbuild-staging").rglob("*") if path.is_file()
    ]


def test_C59_two_builds_at_once_both_succeed_with_the_digest_of_the_lock(tiny: Tiny) -> None:
    locked = tiny.lock().result
    assert locked is not None
    forget_derived(tiny.cache_path, tiny.lock())
    # Both come to the lock while we hold it, so that they go on at the same moment.
    lock = tiny.store_path / ".imgbuild-build-lock"
    with open(lock, "w", encoding="ascii") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        processes = [start(tiny, "build") for _ in range(2)]
        for process in processes:
            until(lambda process=process: waits_for_a_lock(process, lock))
    results = [end(process) for process in processes]
    assert [result["manifest"] for result in results] == [str(locked.manifest)] * 2
    assert all(result["tags"] == ["tiny"] for result in results)
    assert not left(tiny)
    assert end(start(tiny, "verify"))["ok"]


def test_C59_two_first_builds_at_once_share_an_empty_cache(tiny: Tiny) -> None:
    # Two stores, so that no lock keeps them apart; one cache, in which both write the same files.
    locked = tiny.lock().result
    assert locked is not None
    forget_derived(tiny.cache_path, tiny.lock())
    other = tiny.root / "other-store"
    subprocess.run(["cp", "-r", str(tiny.store_path), str(other)], check=True)
    results = [end(process) for process in [start(tiny, "build"), start(tiny, "build", "--store", str(other))]]
    assert [result["manifest"] for result in results] == [str(locked.manifest)] * 2
    assert not left(tiny)


def test_C59_a_build_waits_while_another_process_holds_the_lock_and_then_goes_on(tiny: Tiny) -> None:
    lock = tiny.store_path / ".imgbuild-build-lock"
    with open(lock, "w", encoding="ascii") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        process = start(tiny, "build")
        until(lambda: waits_for_a_lock(process, lock))
        assert process.poll() is None
        assert set(Store(tiny.store_path, ledger=Ledger()).tags()) == {"base"}
    assert end(process)["tags"] == ["tiny"]


def test_what_another_build_has_staged_and_drops_is_not_taken_for_what_is_in_the_store(tiny: Tiny) -> None:
    tiny.build()
    store = tiny.context().store
    assert isinstance(store, StagedStore)
    largest = max(tiny.lock().result.layers, key=lambda row: row.size)  # type: ignore[union-attr]
    path = store.path(largest.digest)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with store.session():
        # A whole copy, which only this session has, and which nobody publishes.
        assert store.put([whole])[0] == largest.digest
        process = start(tiny, "build")
        until(lambda: waits_for_a_lock(process, tiny.store_path / ".imgbuild-build-lock"))
    assert end(process)["tags"] == ["tiny"]
    assert path.read_bytes() == whole


def test_a_build_that_is_killed_while_it_holds_the_lock_leaves_it_free(tiny: Tiny) -> None:
    lock = tiny.store_path / ".imgbuild-lock"
    with open(lock, "w", encoding="ascii") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        process = start(tiny, "build")
        # It holds the build's lock now, and waits for that of the index.
        until(lambda: waits_for_a_lock(process, lock))
        process.kill()
        process.communicate(timeout=_PATIENCE)
    assert set(Store(tiny.store_path, ledger=Ledger()).tags()) == {"base"}
    assert end(start(tiny, "build"))["tags"] == ["tiny"]
    assert not left(tiny)


def test_a_reader_sees_the_old_image_or_the_new_one_and_all_blobs_of_it(tiny: Tiny) -> None:
    # A thread reads as fast as it can while one build after the other moves the tag to and fro.
    store = Store(tiny.store_path, ledger=Ledger())
    base = store.resolve("base")
    locked = tiny.lock().result
    assert locked is not None
    seen: set[Digest] = set()
    problems: list[str] = []
    done = threading.Event()

    def read() -> None:
        reader = Store(tiny.store_path, ledger=Ledger())
        reader.repair = False
        while not done.is_set():
            try:
                descriptor = reader.resolve("tiny")
                manifest = reader.manifest(descriptor)
                reader.config(manifest.config)
                for layer in manifest.layers:
                    reader.verify(layer.digest, layer.size, subject="layer")
                seen.add(descriptor.digest)
            except MissingError as error:
                if error.subject != "tag tiny":
                    problems.append(str(error))
            except IntegrityError as error:
                problems.append(str(error))

    thread = threading.Thread(target=read)
    thread.start()
    try:
        while len(seen) < 2:
            tiny.build()
            until(lambda: locked.manifest in seen)
            store.tag("tiny", base)
            until(lambda: base.digest in seen)
    finally:
        done.set()
        thread.join()
    assert seen == {base.digest, locked.manifest}
    assert problems == []


@pytest.mark.parametrize("before", ["nothing", "the old one"])
def test_a_verification_during_a_build_sees_what_was_there_before(tiny: Tiny, before: str) -> None:
    if before == "the old one":
        assert end(start(tiny, "build"))["tags"] == ["tiny"]
    lock = tiny.store_path / ".imgbuild-lock"
    with open(lock, "w", encoding="ascii") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        process = start(tiny, "build")
        until(lambda: waits_for_a_lock(process, lock))
        reader = start(tiny, "verify")
        out, _ = reader.communicate(timeout=_PATIENCE)
        if before == "nothing":
            assert reader.returncode == 5
            assert json.loads(out)["error"]["code"] == "MISSING"
        else:
            assert reader.returncode == 0
            assert json.loads(out)["result"]["ok"]
    assert end(process)["tags"] == ["tiny"]
