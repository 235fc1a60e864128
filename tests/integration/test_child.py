"""Another process of this program, and messages to it and back."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
from typing import TYPE_CHECKING

import pytest
from imgbuild.adapters.child import Child, GoneError
from imgbuild.adapters.durable import anonymous
from imgbuild.config import CHUNK_BYTES, MIB

from tests.support import echoing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class EnoughError(Exception):
    """Whoever waits has had enough."""


def enough() -> None:
    raise EnoughError


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    found = Child(echoing.__name__, anonymous(tmp_path))
    try:
        yield found
    finally:
        found.end()


def ask(child: Child, message: bytes) -> bytes:
    assert child.send(message)
    return child.receive()


@pytest.mark.parametrize("size", [0, 1, 65_536, 5 * MIB])
def test_a_message_comes_back_as_it_was_whatever_is_printed_besides(child: Child, size: int) -> None:
    data = os.urandom(size)
    for _ in range(2):
        assert ask(child, b"echo " + data) == data


@pytest.mark.parametrize("step", [1_000, CHUNK_BYTES, CHUNK_BYTES + 1, 5 * MIB])
def test_a_stream_arrives_as_it_was_however_it_is_cut_and_another_one_follows(child: Child, step: int) -> None:
    for size in (0, 1, 3 * MIB + 7, 100_000):
        data = os.urandom(size)
        assert child.send(b"stream 65537")
        for start in range(0, size, step):
            assert child.give(data[start : start + step])
        assert child.give(b"")
        assert child.receive() == hashlib.sha256(data).digest()
    assert ask(child, b"echo more") == b"more"


def test_a_stream_that_is_not_read_on_is_not_waited_for_and_the_reason_comes(child: Child) -> None:
    assert child.send(b"leave 3")
    given = 0
    while child.give(bytes(CHUNK_BYTES)):
        given += 1
        assert given < 20
    assert child.receive() == b"enough"


def test_whoever_gives_a_stream_is_asked_whether_to_go_on_and_told_that_nobody_reads(child: Child) -> None:
    child.send(b"sleep")
    with pytest.raises(EnoughError):
        child.give(bytes(16 * MIB), enough)
    os.kill(child.pid, signal.SIGKILL)
    with pytest.raises(GoneError, match=f"^signal {signal.SIGKILL.value}$"):
        child.give(bytes(16 * MIB))


def test_where_both_write_more_than_is_read_nobody_waits_for_ever(child: Child) -> None:
    child.send(b"flood " + str(8 * MIB).encode())
    assert not child.send(b"echo " + bytes(8 * MIB))
    assert len(child.receive()) == 8 * MIB


def test_it_imports_what_is_imported_here_and_nothing_of_the_folder_it_is_begun_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "struct.py").write_text("raise SystemError('of the folder')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "ä"), os.fsdecode(b"/not/utf-8/\xff")])
    child = Child(echoing.__name__, anonymous(tmp_path))
    assert os.fsdecode(ask(child, b"where")).split("\n") == sys.path
    child.end()


def test_one_that_fails_is_said_with_what_it_printed_last(child: Child) -> None:
    with pytest.raises(GoneError, match=r"exit code 1: ValueError: so it is"):
        ask(child, b"raise so it is")
    with pytest.raises(GoneError):
        ask(child, b"echo again")


def test_one_that_is_killed_is_said_with_the_signal(child: Child) -> None:
    os.kill(child.pid, signal.SIGKILL)
    with pytest.raises(GoneError, match=f"^signal {signal.SIGKILL.value}$"):
        ask(child, b"echo again")


def test_one_that_does_not_end_by_itself_is_killed(child: Child) -> None:
    child.send(b"sleep")
    began = time.monotonic()
    child.end()
    assert not child.is_alive
    assert time.monotonic() - began < 10


def test_one_that_cannot_be_begun_says_why(tmp_path: Path) -> None:
    with pytest.raises(GoneError, match="exit code 1: ModuleNotFoundError"):
        Child("imgbuild.no_such_module", anonymous(tmp_path))


def test_whoever_waits_is_asked_whether_to_go_on(child: Child) -> None:
    child.send(b"sleep")
    with pytest.raises(EnoughError):
        child.receive(enough)
    with pytest.raises(EnoughError):
        child.send(bytes(32 * MIB), enough)


def test_memory_that_is_freed_is_kept_for_what_follows_unless_the_user_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MALLOC_TOP_PAD_", "1234")
    child = Child(echoing.__name__, anonymous(tmp_path))
    assert ask(child, b"variable MALLOC_TOP_PAD_") == b"1234"
    assert int(ask(child, b"variable MALLOC_TRIM_THRESHOLD_")) == 16 * MIB
    child.end()


def test_a_signal_of_the_terminal_does_not_reach_it(child: Child) -> None:
    assert os.getsid(child.pid) == os.getpgid(child.pid) == child.pid
