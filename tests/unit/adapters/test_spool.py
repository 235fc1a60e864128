"""What is spooled comes back, byte by byte, from memory, from disk and from both."""

from __future__ import annotations

import contextlib
import io
import os
import random
import resource
import tracemalloc
from typing import TYPE_CHECKING

import pytest
from imgbuild.adapters import spool
from imgbuild.adapters.spool import Spool
from imgbuild.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(params=[4, 64])
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Spool]:
    """One that keeps ten bytes in memory, and joins pieces of less than four, or all of them."""
    monkeypatch.setattr(spool, "_MEMORY_BYTES", 10)
    monkeypatch.setattr(spool, "_PIECE_BYTES", request.param)
    with contextlib.closing(Spool(tmp_path / "spool")) as made:
        yield made


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 12, 500])
@pytest.mark.parametrize("piece", [1, 3, 10, 11, 1000])
def test_what_was_written_comes_back(small: Spool, size: int, piece: int) -> None:
    data = bytes(range(256)) * 2
    for count in (size, 500, size):
        with small.fresh() as file:
            for start in range(0, count, piece):
                file.write(data[start : min(start + piece, count)])
            assert file.seek(0, os.SEEK_END) == count
            assert file.seek(0) == 0
            assert file.read() == data[:count]
            assert file.read(1) == b""


def test_any_read_at_any_place_is_that_of_a_file(small: Spool) -> None:
    chance = random.Random(7)
    for _ in range(200):
        data = chance.randbytes(chance.randrange(40))
        model = io.BytesIO(data)
        with small.fresh() as file:
            file.write(data)
            file.seek(0)
            for _ in range(10):
                if chance.random() < 0.5:
                    place, whence = chance.choice([(chance.randrange(45), 0), (-chance.randrange(len(data) + 1), 2)])
                    assert file.seek(place, whence) == model.seek(place, whence)
                size = chance.choice([-1, 0, 1, 5, 20])
                assert file.read(size) == model.read(size)


def test_a_byte_at_a_time_takes_no_more_memory_than_all_at_once(tmp_path: Path) -> None:
    with contextlib.closing(Spool(tmp_path)) as made, made.fresh() as file:
        tracemalloc.start()
        for _ in range(200_000):
            file.write(b"x")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 500_000


def test_what_is_written_after_a_read_comes_last(small: Spool) -> None:
    with small.fresh() as file:
        file.write(b"a" * 15)
        file.seek(12)
        assert file.read(1) == b"a"
        file.write(b"b" * 5)
        file.seek(0)
        assert file.read() == b"a" * 15 + b"b" * 5


def test_nothing_of_one_content_is_in_the_next(small: Spool) -> None:
    with small.fresh() as file:
        file.write(b"a" * 100)
    with small.fresh() as file:
        assert file.read() == b""
        file.write(b"b" * 12)
        file.seek(5)
        assert file.read() == b"b" * 7


def test_a_file_on_disk_is_written_over_until_it_is_too_large_to_be_kept(
    small: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "_REUSED_BYTES", 100)
    on_disk = []
    for count in (60, 30, 110, 111, 30, 112, 20):
        with small.fresh() as file:
            file.write(bytes([count]) * count)
            file.seek(0)
            assert file.read() == bytes([count]) * count
        assert small._file is not None
        on_disk.append(os.fstat(small._file.fileno()).st_size)
    assert on_disk == [50, 50, 100, 0, 20, 0, 10]


def test_a_small_content_needs_no_folder_and_a_large_one_leaves_nothing_in_it(small: Spool, tmp_path: Path) -> None:
    with small.fresh() as file:
        file.write(b"x" * 10)
    assert not (tmp_path / "spool").exists()
    with small.fresh() as file:
        file.write(b"x" * 11)
        assert os.listdir(tmp_path / "spool") == []


def test_a_full_disk_is_a_storage_error_and_nothing_of_it_is_in_the_next_content(small: Spool) -> None:
    # A limit on the size of files stands for the full disk: the kernel refuses the write, for real.
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, old[1]))
    try:
        with pytest.raises(StorageError, match="the disk is full"), small.fresh() as file:
            file.write(b"x" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    with small.fresh() as file:
        file.write(b"y" * 12)
        file.seek(0)
        assert file.read() == b"y" * 12
