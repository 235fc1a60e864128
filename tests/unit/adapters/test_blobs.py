from __future__ import annotations

import hashlib
import os
import threading
from typing import TYPE_CHECKING

import pytest
from imgbuild.adapters.blobs import BlobFolder
from imgbuild.digest import Digest
from imgbuild.errors import DigestMismatchError, LayoutError, MissingError
from imgbuild.ledger import Ledger, Moved

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

DATA = b"the content of a blob"
DIGEST = Digest.of(DATA)
DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda data: data[:-1],
    "emptied": lambda _: b"",
    "longer": lambda data: data + b"!",
    "much longer": lambda data: data + b"!" * 3_000_000,
    "flipped": lambda data: bytes([data[0] ^ 1]) + data[1:],
}


@pytest.fixture
def folder(tmp_path: Path) -> BlobFolder:
    return BlobFolder(tmp_path, place="store", ledger=Ledger())


def read(folder: BlobFolder, *, size: int | None = len(DATA)) -> bytes:
    return folder.read(DIGEST, subject="blob", max_bytes=1000, size=size)


def verify(folder: BlobFolder) -> None:
    folder.verify(DIGEST, len(DATA), subject="blob")


def test_a_blob_lies_under_its_digest_and_is_read_back(folder: BlobFolder) -> None:
    assert folder.put([DATA[:5], b"", DATA[5:]], expected=DIGEST) == (DIGEST, len(DATA))
    assert (folder.root / "blobs" / "sha256" / DIGEST.encoded).read_bytes() == DATA
    assert read(folder) == read(folder, size=None) == DATA
    verify(folder)
    with folder.open(DIGEST, subject="blob") as stream:
        assert stream.read(4) + stream.read(1000) == DATA


def test_bytes_that_are_not_what_was_expected_leave_nothing(folder: BlobFolder) -> None:
    with pytest.raises(DigestMismatchError) as caught:
        folder.put([b"other"], expected=DIGEST, subject="wheel")
    assert (caught.value.expected, caught.value.actual) == (str(DIGEST), str(Digest.of(b"other")))
    assert not folder.has(DIGEST)
    assert os.listdir(folder.root / "blobs" / "sha256") == []


def test_a_source_that_breaks_off_leaves_nothing(folder: BlobFolder) -> None:
    def pieces() -> Iterator[bytes]:
        yield DATA
        raise ConnectionError

    with pytest.raises(ConnectionError):
        folder.put(pieces())
    assert os.listdir(folder.root / "blobs" / "sha256") == []


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("use", [read, verify])
def test_C58_a_damaged_blob_is_refused_and_taken_away_so_that_the_next_run_makes_it_anew(
    folder: BlobFolder, how: str, use: Callable[[BlobFolder], object]
) -> None:
    folder.put([DATA])
    path = folder.path(DIGEST)
    path.write_bytes(DAMAGE[how](DATA))
    with pytest.raises(DigestMismatchError) as caught:
        use(folder)
    assert caught.value.expected is not None
    assert caught.value.actual is not None
    assert "run it again" in str(caught.value.hint)
    assert not path.exists()
    with pytest.raises(MissingError):
        use(folder)
    folder.put([DATA])
    use(folder)


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("use", [read, verify])
def test_C58_whoever_only_looks_leaves_a_damaged_blob_as_it_is(
    folder: BlobFolder, how: str, use: Callable[[BlobFolder], object]
) -> None:
    folder.put([DATA])
    path = folder.path(DIGEST)
    damaged = DAMAGE[how](DATA)
    path.write_bytes(damaged)
    folder.repair = False
    with pytest.raises(DigestMismatchError) as caught:
        use(folder)
    assert "imgbuild build" in str(caught.value.hint)
    assert path.read_bytes() == damaged


def test_C58_a_blob_of_another_size_is_not_here_whatever_its_name_says(folder: BlobFolder) -> None:
    folder.put([DATA])
    assert folder.has(DIGEST)
    assert folder.has(DIGEST, len(DATA))
    assert not folder.has(DIGEST, len(DATA) - 1)
    folder.path(DIGEST).unlink()
    folder.path(DIGEST).mkdir()
    assert not folder.has(DIGEST)


def test_what_is_longer_than_the_caller_can_take_is_refused_unread(folder: BlobFolder) -> None:
    folder.put([DATA])
    for size in (None, len(DATA)):
        with pytest.raises(LayoutError, match="too long") as caught:
            folder.read(DIGEST, subject="manifest", max_bytes=5, size=size)
        assert caught.value.expected == "at most 5 bytes"
    assert folder.has(DIGEST)
    assert folder.read(DIGEST, subject="manifest", max_bytes=len(DATA)) == DATA


def test_a_blob_that_is_not_here_says_where_it_was_looked_for(folder: BlobFolder) -> None:
    with pytest.raises(MissingError) as caught:
        read(folder)
    assert (caught.value.expected, caught.value.where) == (str(DIGEST), str(folder.root))


def test_what_cannot_be_read_is_one_typed_error(folder: BlobFolder) -> None:
    folder.path(DIGEST).mkdir(parents=True)
    with pytest.raises(LayoutError, match="cannot be read"):
        read(folder)


def fifo(path: Path) -> None:
    os.mkfifo(path)


def zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def link_to_the_blob_itself(path: Path) -> None:
    path.with_name("elsewhere").write_bytes(DATA)
    path.symlink_to("elsewhere")


@pytest.mark.parametrize("make", [fifo, zeros, link_to_the_blob_itself])
def test_what_is_no_file_is_refused_without_waiting_and_is_not_here(
    folder: BlobFolder, make: Callable[[Path], None]
) -> None:
    folder.path(DIGEST).parent.mkdir(parents=True)
    make(folder.path(DIGEST))
    assert not folder.has(DIGEST)
    for use in (read, verify):
        with pytest.raises(LayoutError, match=r"cannot be read: it is (no regular file|a symbolic link)"):
            use(folder)
    folder.put([DATA])
    assert read(folder) == DATA


def test_C15_bytes_are_put_under_the_digest_that_is_expected_of_them(folder: BlobFolder) -> None:
    digest = Digest("sha512", hashlib.sha512(DATA).hexdigest())
    assert folder.put([DATA], expected=digest) == (digest, len(DATA))
    assert folder.read(digest, subject="blob", max_bytes=100) == DATA
    with pytest.raises(DigestMismatchError):
        folder.put([DATA + b"!"], expected=digest)


def test_C15_a_sha512_blob_is_found_and_checked_by_its_own_algorithm(folder: BlobFolder) -> None:
    digest = Digest("sha512", hashlib.sha512(DATA).hexdigest())
    path = folder.path(digest)
    path.parent.mkdir(parents=True)
    path.write_bytes(DATA)
    assert folder.read(digest, subject="blob", max_bytes=100) == DATA
    folder.verify(digest, len(DATA), subject="blob")
    path.write_bytes(DATA.upper())
    with pytest.raises(DigestMismatchError):
        folder.verify(digest, len(DATA), subject="blob")


def test_C59_many_writers_of_one_blob_all_succeed_and_leave_one_whole_file(folder: BlobFolder) -> None:
    pieces = [bytes([number]) * 100_000 for number in range(10)]
    failures: list[BaseException] = []

    def write() -> None:
        try:
            folder.put(pieces)
        except BaseException as error:  # noqa: BLE001 - shown by the test
            failures.append(error)

    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    digest = Digest.of(b"".join(pieces))
    assert failures == []
    assert os.listdir(folder.root / "blobs" / "sha256") == [digest.encoded]
    folder.verify(digest, 1_000_000, subject="blob")


def test_every_byte_read_and_written_is_in_the_ledger(folder: BlobFolder) -> None:
    folder.put([DATA])
    read(folder)
    verify(folder)
    assert folder.ledger.rows() == (Moved(place="store", read=2 * len(DATA), written=len(DATA)),)
