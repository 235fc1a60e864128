from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import stat
import threading
from typing import TYPE_CHECKING, Any

import pytest
from imgbuild.adapters import durable
from imgbuild.adapters.durable import PendingFile, anonymous, exclusive, move, remove, storage_errors, sweep, write_file
from imgbuild.errors import StorageError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _as_a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable, "_SWEPT", set())


def full(*_: object, **__: object) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_file_appears_whole_readable_for_all_whatever_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        write_file(tmp_path / "a" / "b" / "file", b"content")
    finally:
        os.umask(old)
    path = tmp_path / "a" / "b" / "file"
    assert path.read_bytes() == b"content"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert os.listdir(path.parent) == ["file"]


def test_before_it_is_committed_a_file_has_no_name_and_without_it_nothing_stays(tmp_path: Path) -> None:
    with PendingFile(tmp_path) as pending:
        pending.write(b"half")
        assert [name[:18] for name in os.listdir(tmp_path)] == [".imgbuild-pending-"]
    assert os.listdir(tmp_path) == []


def test_a_failure_while_writing_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_file(tmp_path / "file", b"old")
    for name in ("write", "fsync", "fchmod", "replace"):
        with monkeypatch.context() as changed:
            changed.setattr(os, name, full)
            with pytest.raises(StorageError, match="the disk is full") as caught:
                write_file(tmp_path / "file", b"new")
        assert caught.value.hint is not None
        assert (tmp_path / "file").read_bytes() == b"old"
        assert os.listdir(tmp_path) == ["file"]


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data)[:3]))
    write_file(tmp_path / "file", b"0123456789")
    assert (tmp_path / "file").read_bytes() == b"0123456789"


def test_C59_the_last_of_two_writers_of_one_file_wins_and_no_reader_sees_a_mixture(tmp_path: Path) -> None:
    with PendingFile(tmp_path) as first, PendingFile(tmp_path) as second:
        first.write(b"1" * 10)
        second.write(b"2" * 5)
        first.write(b"1" * 10)
        second.commit(tmp_path / "file")
        assert (tmp_path / "file").read_bytes() == b"2" * 5
        first.commit(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"1" * 20
    assert os.listdir(tmp_path) == ["file"]


def test_sweeping_removes_what_dead_writers_left_and_keeps_what_somebody_writes(tmp_path: Path) -> None:
    (tmp_path / ".imgbuild-pending-dead").write_bytes(b"half")
    (tmp_path / "other").write_bytes(b"no business of ours")
    with PendingFile(tmp_path / "x") as pending:
        pending.write(b"alive")
        sweep(tmp_path / "x")
        sweep(tmp_path)
        pending.commit(tmp_path / "x" / "file")
    assert sorted(os.listdir(tmp_path)) == ["other", "x"]
    assert (tmp_path / "x" / "file").read_bytes() == b"alive"


def test_the_first_file_of_a_process_in_a_folder_sweeps_it(tmp_path: Path) -> None:
    (tmp_path / ".imgbuild-pending-dead").write_bytes(b"half")
    write_file(tmp_path / "file", b"")
    assert os.listdir(tmp_path) == ["file"]


def test_sweeping_does_not_follow_a_link_that_is_named_like_a_pending_file(tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"")
    (tmp_path / ".imgbuild-pending-link").symlink_to("precious")
    sweep(tmp_path)
    assert (tmp_path / "precious").exists()


def test_a_pending_file_that_was_swept_before_it_was_locked_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fcntl.flock
    taken: list[str] = []

    def late(fd: int, operation: int) -> None:
        if not taken:
            taken.extend(os.listdir(tmp_path))
            os.unlink(tmp_path / taken[0])
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    write_file(tmp_path / "file", b"content")
    assert len(taken) == 1
    assert (tmp_path / "file").read_bytes() == b"content"


def test_a_place_that_cannot_be_written_is_a_storage_error_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for attempt in (
        lambda: write_file(tmp_path / "file" / "below", b""),
        lambda: anonymous(tmp_path / "file"),
        lambda: move(tmp_path / "absent", tmp_path / "target"),
        lambda: remove(tmp_path / "file" / "below"),
        lambda: exclusive(tmp_path / "file" / "lock").__enter__(),
    ):
        with pytest.raises(StorageError, match="cannot be written") as caught:
            attempt()
        assert str(tmp_path) in caught.value.subject


def test_removing_what_is_not_there_does_nothing(tmp_path: Path) -> None:
    remove(tmp_path / "absent")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_every_way_of_having_no_room_is_called_a_full_disk(tmp_path: Path, number: int) -> None:
    with pytest.raises(StorageError, match="the disk is full"), storage_errors(tmp_path):
        raise OSError(number, os.strerror(number))


def test_an_error_of_reading_is_not_called_one_of_writing(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be read: Input/output error"), storage_errors(tmp_path, "read"):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def _hold(path: Path, begun: Any, end: Any) -> None:
    with exclusive(path):
        begun.set()
        end.wait(30)


def test_a_lock_with_a_time_limit_names_itself_when_it_is_held_too_long(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    begun, end = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(tmp_path / "lock", begun, end))
    process.start()
    try:
        assert begun.wait(30)
        with pytest.raises(StorageError, match=r"held by another process for 0\.1 seconds"):
            exclusive(tmp_path / "lock", seconds=0.1).__enter__()
    finally:
        end.set()
        process.join()
    with exclusive(tmp_path / "lock", seconds=0.1):
        pass


def test_who_waits_for_a_lock_says_so_after_a_while_and_only_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = threading.Event()
    with exclusive(tmp_path / "lock", waiting=said.set):
        pass
    assert not said.is_set()
    monkeypatch.setattr(durable, "_SAY_SECONDS", 0.01)
    got = threading.Event()

    def second() -> None:
        with exclusive(tmp_path / "lock", waiting=said.set):
            got.set()

    with exclusive(tmp_path / "lock"):
        waiter = threading.Thread(target=second, daemon=True)
        waiter.start()
        assert said.wait(60)
        assert not got.is_set()
    assert got.wait(60)
    waiter.join(60)


def _count(folder: Path, times: int) -> None:
    """What two of them may not do at once: read a number, and write the next one."""
    for _ in range(times):
        with exclusive(folder / "lock", remove=True):
            number = int((folder / "number").read_text())
            (folder / "number").write_text(str(number + 1))


def _count_in_threads(folder: Path, times: int) -> None:
    threads = [threading.Thread(target=_count, args=(folder, times)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


def test_a_lock_whose_file_is_removed_is_held_by_one_thread_of_one_process_at_a_time(tmp_path: Path) -> None:
    (tmp_path / "number").write_text("0")
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_count_in_threads, args=(tmp_path, 100)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert (tmp_path / "number").read_text() == "1200"
    assert os.listdir(tmp_path) == ["number"]


def test_a_lock_that_a_killed_process_left_is_taken_and_removed(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    with exclusive(tmp_path / "lock", remove=True):
        assert (tmp_path / "lock").exists()
    assert os.listdir(tmp_path) == []


def test_who_waits_for_a_lock_can_be_told_to_stop(tmp_path: Path) -> None:
    calls: list[int] = []

    def check() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise InterruptedError

    with (
        exclusive(tmp_path / "lock", remove=True),
        pytest.raises(InterruptedError),
        exclusive(tmp_path / "lock", remove=True, check=check),
    ):
        pass
    assert len(calls) == 3
    assert os.listdir(tmp_path) == []


def test_a_disk_that_is_read_only_is_no_matter_of_permissions(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="Read-only file system") as caught, storage_errors(tmp_path):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))
    assert caught.value.hint is not None
    assert "mounted read-only; choose another place" in caught.value.hint
