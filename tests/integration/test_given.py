"""`--source NAME=FILE`: whatever stands for FILE, and whatever is in it."""

from __future__ import annotations

import io
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from imgbuild.config import DEFAULT_LIMITS
from imgbuild.errors import ArchiveError, DigestMismatchError, StorageError, UsageError
from imgbuild.steps.given import parse_given, take_given

from tests.support.refusals import cached, snapshot
from tests.support.remote import Remote
from tests.support.single import digest_of_library, operators_file, take_from

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.tiny import Tiny


@pytest.fixture
def asked(tiny: Tiny) -> Tiny:
    """A project whose library is an operator's file, which nobody has given."""
    take_from(tiny, kind="file")
    return tiny


def give(tiny: Tiny, *texts: object) -> None:
    definition = tiny.project().load("tiny").definition
    take_given(tiny.context(), parse_given(definition, tuple(f"nccl={text}" for text in texts)))


def leftovers(tiny: Tiny) -> list[Path]:
    return [path for path in (tiny.cache_path / "blobs" / "sha256").iterdir() if path.name.startswith(".")]


def copy(tiny: Tiny) -> Path:
    return cached(tiny, digest_of_library(tiny))


def test_a_file_is_copied_under_its_digest_once(asked: Tiny) -> None:
    path = operators_file(asked)
    give(asked, path)
    assert copy(asked).read_bytes() == asked.new_library
    before = copy(asked).stat().st_ino
    give(asked, path)
    assert copy(asked).stat().st_ino == before


@pytest.mark.parametrize("there", [True, False])
def test_another_file_is_refused_also_where_the_right_one_is_there(asked: Tiny, there: bool) -> None:
    if there:
        give(asked, operators_file(asked))
    other = operators_file(asked, b"another library")
    with pytest.raises(DigestMismatchError) as caught:
        give(asked, other)
    assert caught.value.expected == digest_of_library(asked)
    assert caught.value.actual is not None
    assert "15 bytes" in caught.value.actual
    assert f"--source nccl={other}" in (caught.value.where or "")
    assert copy(asked).exists() is there
    assert not leftovers(asked)


@pytest.mark.parametrize("there", [True, False])
def test_another_size_is_refused_and_both_are_named(tiny: Tiny, there: bool) -> None:
    take_from(tiny, kind="file", size=5, keep=there)
    with pytest.raises(DigestMismatchError) as caught:
        give(tiny, operators_file(tiny))
    assert caught.value.expected == f"{digest_of_library(tiny)}, 5 bytes"
    assert caught.value.actual == f"{digest_of_library(tiny)}, {len(tiny.new_library)} bytes"
    assert copy(tiny).exists() is there


class Changing(io.FileIO):
    """A file that somebody writes to after its first piece was read."""

    changed = b""
    fails = False

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(min(size or 1, 1000))
        if self.fails and self.tell() > 1500:
            raise OSError(5, "Input/output error")
        if self.changed and self.tell() == 1000:
            Path(str(self.name)).write_bytes(self.changed)
        return data


@pytest.mark.parametrize("changed", [b"", b"x" * 5000, b"x" * 100_000])
def test_a_file_that_changes_while_it_is_read_is_not_taken_for_what_it_was(
    asked: Tiny, monkeypatch: pytest.MonkeyPatch, changed: bytes
) -> None:
    path = operators_file(asked)
    monkeypatch.setattr(Changing, "changed", changed or asked.new_library[:1000])
    monkeypatch.setattr("imgbuild.steps.given.open_regular", lambda path: Changing(str(path)))
    with pytest.raises(DigestMismatchError):
        give(asked, path)
    assert not copy(asked).exists()
    assert not leftovers(asked)


def test_a_disk_that_fails_is_no_wrong_digest(asked: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    path = operators_file(asked)
    monkeypatch.setattr(Changing, "fails", True)
    monkeypatch.setattr("imgbuild.steps.given.open_regular", lambda path: Changing(str(path)))
    with pytest.raises(StorageError, match="cannot be read"):
        give(asked, path)
    assert not leftovers(asked)


def test_a_file_that_is_too_long_is_not_read_to_its_end(asked: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    path = operators_file(asked)
    with path.open("ab") as file:
        file.truncate(DEFAULT_LIMITS.source_bytes + 1)
    monkeypatch.setattr("imgbuild.steps.given.DEFAULT_LIMITS", type(DEFAULT_LIMITS)(source_bytes=2000))
    with pytest.raises(ArchiveError, match=r"is too long; expected at most 2000 bytes \(source_bytes\)"):
        give(asked, path)
    assert not leftovers(asked)


def as_folder(path: Path) -> None:
    path.mkdir()


def as_fifo(path: Path) -> None:
    os.mkfifo(path)


def as_link(path: Path) -> None:
    path.symlink_to("operators.so")


def as_dangling_link(path: Path) -> None:
    path.symlink_to("absent")


def as_socket(path: Path) -> None:
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(os.path.relpath(path))
    sock.close()


def as_nothing(_path: Path) -> None:
    """Leave it so."""


@pytest.mark.parametrize("make", [as_folder, as_fifo, as_link, as_dangling_link, as_socket, as_nothing])
def test_what_is_no_regular_file_is_refused_and_not_waited_for(asked: Tiny, make: Callable[[Path], None]) -> None:
    operators_file(asked)
    path = asked.root / "given"
    make(path)
    with pytest.raises(UsageError) as caught:
        give(asked, path)
    assert caught.value.subject == f"--source nccl={path}"
    assert not copy(asked).exists()


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null", "/proc/self/mem", "a\0b", "x" * 300, "/"])
def test_devices_and_impossible_names_are_refused(asked: Tiny, path: str) -> None:
    with pytest.raises((UsageError, StorageError)):
        give(asked, path)


WORDS = [
    ("nccl", "is not NAME=FILE"),
    ("=x", "is not NAME=FILE"),
    ("nccl=", "is not NAME=FILE"),
    ("absent=x", "names no source that is a file; expected nccl"),
    ("adapter=x", "names a source that is not given as a file; expected nccl, actual one of kind git"),
    ("helper=x", "actual one of kind wheel"),
]


@pytest.mark.parametrize(("text", "problem"), WORDS)
def test_what_names_no_source_of_these_kinds_is_a_usage_error(
    asked: Tiny, capsys: pytest.CaptureFixture[str], text: str, problem: str
) -> None:
    with pytest.raises(UsageError) as caught:
        parse_given(asked.project().load("tiny").definition, (text,))
    assert problem in str(caught.value)
    remote = Remote(tiny=asked, host="", capture=capsys)
    before = snapshot(asked)
    for verb in ("lock", "build"):
        code, error = remote.run(verb, "tiny", "--source", text)
        assert (code, error["code"]) == (2, "USAGE")
    assert snapshot(asked) == before


def test_a_source_is_given_once(asked: Tiny) -> None:
    path = operators_file(asked)
    with pytest.raises(UsageError, match="was given already"):
        give(asked, path, path)


def test_a_wheel_member_is_not_given(tiny: Tiny) -> None:
    with pytest.raises(UsageError, match="expected none: the definition has no source of kind file, url or"):
        give(tiny, operators_file(tiny))


def run(tiny: Tiny, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    return Remote(tiny=tiny, host="", capture=capsys).run(*words)


def test_without_the_file_the_error_names_the_option(asked: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    code, error = run(asked, capsys, "lock", "tiny")
    assert (code, error["code"], error["subject"]) == (5, "MISSING", "source nccl")
    assert error["expected"] == digest_of_library(asked)
    assert "--source nccl=FILE" in error["hint"]


def test_check_of_a_lock_reads_nothing(asked: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    code, error = run(asked, capsys, "lock", "tiny", "--check", "--source", f"nccl={operators_file(asked)}")
    assert (code, error["code"]) == (2, "USAGE")
    assert not copy(asked).exists()


def test_a_damaged_copy_is_found_when_the_lock_is_made_and_can_be_given_again(
    asked: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = bytearray(asked.new_library)
    damaged[100] ^= 1
    copy(asked).write_bytes(damaged)
    code, error = run(asked, capsys, "lock", "tiny")
    assert (code, error["code"]) == (5, "MISSING")
    given = ("--source", f"nccl={operators_file(asked)}")
    assert run(asked, capsys, "lock", "tiny", *given)[0] == 0
    copy(asked).write_bytes(damaged)
    assert run(asked, capsys, "build", "tiny", *given)[0] == 0
    assert copy(asked).read_bytes() == asked.new_library
    copy(asked).write_bytes(damaged)
    code, error = run(asked, capsys, "build", "tiny", "--offline")
    assert (code, error["code"]) == (4, "DIGEST_MISMATCH")
    assert not copy(asked).exists()


def test_a_copy_of_another_size_is_named_with_both(asked: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    given = ("--source", f"nccl={operators_file(asked)}")
    assert run(asked, capsys, "lock", "tiny", *given)[0] == 0
    copy(asked).write_bytes(asked.new_library[:-1])
    size = len(asked.new_library)
    code, error = run(asked, capsys, "build", "tiny")
    assert (code, error["code"]) == (4, "DIGEST_MISMATCH")
    assert (error["expected"], error["actual"]) == (f"{digest_of_library(asked)}, {size} bytes", f"{size - 1} bytes")
    assert run(asked, capsys, "build", "tiny", *given)[0] == 0
