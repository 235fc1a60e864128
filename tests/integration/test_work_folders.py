"""What `durable` offers for programs outside: work folders, new files in them, folders that get their name last."""

from __future__ import annotations

import multiprocessing
import os
import stat
from typing import TYPE_CHECKING

import pytest
from imgbuild.adapters.durable import exclusive, extract_file, make_folder, move_folder, work_folder
from imgbuild.errors import ArchiveError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def test_a_work_folder_is_gone_with_all_in_it_also_after_an_error(tmp_path: Path) -> None:
    def failing() -> None:
        with work_folder(tmp_path, prefix=".x-") as work:
            assert (work.parent, work.name[:3]) == (tmp_path, ".x-")
            extract_file(work / "a" / "b", [b"x"])
            raise ArchiveError("a", "b")

    with pytest.raises(ArchiveError):
        failing()
    assert list(tmp_path.iterdir()) == []


def test_a_work_folder_without_a_parent_is_where_temporary_files_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with work_folder(None) as work:
        assert work.parent == tmp_path


def test_a_parent_that_is_missing_or_a_file_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for parent in (tmp_path / "none", tmp_path / "file"):
        with pytest.raises(StorageError), work_folder(parent):
            pass
    with pytest.raises(StorageError):
        make_folder(tmp_path / "file" / "x")


def test_an_extracted_file_has_its_mode_whatever_the_umask_and_is_never_written_over(tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        extract_file(tmp_path / "a" / "run", (piece for piece in (b"1", b"", b"2")), 0o755)
    finally:
        os.umask(old)
    assert (tmp_path / "a" / "run").read_bytes() == b"12"
    assert stat.S_IMODE((tmp_path / "a" / "run").stat().st_mode) == 0o755
    for target in (tmp_path / "a" / "run", tmp_path / "a", tmp_path / "a" / "run" / "below"):
        with pytest.raises(StorageError):
            extract_file(target, [b"3"])
    assert (tmp_path / "a" / "run").read_bytes() == b"12"


def test_an_extracted_file_does_not_follow_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError):
        extract_file(tmp_path / "link", [b"x"])
    assert not (tmp_path / "elsewhere").exists()


def test_errors_of_the_pieces_pass_through(tmp_path: Path) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"1"
        raise OSError(5, "of reading")

    with pytest.raises(OSError, match="of reading"):
        extract_file(tmp_path / "a", pieces())


def test_a_folder_keeps_its_name_when_another_process_was_first(tmp_path: Path) -> None:
    for name in ("one", "two"):
        extract_file(tmp_path / name / "who", [name.encode()])
        move_folder(tmp_path / name, tmp_path / "final")
    assert (tmp_path / "final" / "who").read_bytes() == b"one"
    assert (tmp_path / "two").exists()
    (tmp_path / "file").touch()
    with pytest.raises(StorageError):
        move_folder(tmp_path / "two", tmp_path / "file")


def hold(path: Path, held: object, release: object) -> None:
    with exclusive(path):
        held.set()  # type: ignore[attr-defined]
        release.wait(30)  # type: ignore[attr-defined]


def test_a_lock_with_a_time_limit_ends_in_a_storage_error_and_is_free_afterwards(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    held, release = context.Event(), context.Event()
    other = context.Process(target=hold, args=(tmp_path / "lock", held, release))
    other.start()
    try:
        assert held.wait(30)
        with pytest.raises(StorageError, match=r"for 0\.2 seconds"), exclusive(tmp_path / "lock", seconds=0.2):
            pass
        release.set()
        with exclusive(tmp_path / "lock", seconds=30):
            pass
    finally:
        release.set()
        other.join()
