from __future__ import annotations

import io
import struct
import time
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imgbuild.content import fatbin as subject
from imgbuild.content.fatbin import Fatbins, GpuCode

from tests.support.fatbins import JOINED, PTX, Entry, fatbin

FROM_FATBINARY = bytes.fromhex(
    # What `fatbinary` 13.5 wrote for sm_90a, without the code, whose length is set to 8 here, and one entry less.
    "50ed55ba01001000 4800000000000000 0200010140000000 0800000000000000"
    "0000000000000000 080001005a000000 0000000000000000 1100100000000000"
    "0000000000000000 0000000000000000 7f454c4602010141"
)


def read(data: bytes, size: int = 1 << 20) -> GpuCode:
    fatbins = Fatbins()
    for start in range(0, len(data), size):
        fatbins.update(data[start : start + size])
    return fatbins.finish(io.BytesIO(data))


def names(code: GpuCode) -> list[tuple[str, int]]:
    return [(item.name, item.count) for item in code.objects]


def test_entries_are_named_by_number_and_letter_and_machine_code_stands_first() -> None:
    one = fatbin(
        Entry(kind=PTX, architecture=121),
        Entry(architecture=121, letter="a"),
        Entry(architecture=100, letter="f", header=112),
        Entry(architecture=90),
    )
    found = read(b"\x7fELF" + b"x" * 99 + one + b"\0" * 32 + fatbin(Entry(architecture=90)))
    assert names(found) == [("sm_90", 2), ("sm_100f", 1), ("sm_121a", 1), ("compute_121", 1)]
    assert (found.fatbins, found.problem) == (2, None)


def test_a_container_of_nvidias_own_program_is_read() -> None:
    assert names(read(FROM_FATBINARY)) == [("sm_90a", 1)]


def test_a_file_without_containers_has_none_and_no_problem() -> None:
    assert read(b"\x7fELF" + struct.pack("<I", 0xBA55ED50) * 20) == GpuCode()
    assert read(b"") == GpuCode()
    assert read(fatbin()) == GpuCode(fatbins=1)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 9, 64, 100])
def test_containers_are_found_wherever_the_pieces_are_cut(size: int) -> None:
    data = b"y" * 61 + fatbin(Entry()) + b"z" * 3 + fatbin(Entry(kind=PTX))
    assert read(data, size) == read(data)
    assert read(data).fatbins == 2


def test_a_container_inside_of_code_is_passed_over() -> None:
    found = read(fatbin(Entry(architecture=120, code=fatbin(Entry(architecture=90)))))
    assert names(found) == [("sm_120", 1)]


def test_entries_of_other_kinds_are_said_and_not_guessed() -> None:
    found = read(fatbin(Entry(kind=JOINED, architecture=0), Entry(architecture=120), Entry(kind=8)))
    assert names(found) == [("sm_120", 1)]
    assert found.problem == "it has entries that are neither machine code nor PTX: 1 of kind 8, 1 of kind 256"


WHOLE = fatbin(Entry(architecture=90), Entry(architecture=121))
DAMAGED = {
    "the end is missing": (WHOLE[:-1], "at byte 0 reaches past the end of the file"),
    "only its first bytes are there": (WHOLE[:9], "reaches past the end of the file"),
    "it is longer than its entries": (WHOLE[:8] + struct.pack("<Q", len(WHOLE) - 8) + WHOLE[16:] + b"\0" * 8, "entry"),
    "it says to be endless": (WHOLE[:8] + b"\xff" * 8 + WHOLE[16:], "reaches past the end of the file"),
    "a header is too short": (fatbin(Entry(header=56)), "an entry that reaches past its end"),
    "a header is of no bytes": (WHOLE[:20] + b"\0" * 4 + WHOLE[24:], "an entry that reaches past its end"),
    "code is longer than its container": (WHOLE[:24] + b"\xff" * 8 + WHOLE[32:], "an entry that reaches past its end"),
    "an architecture is none": (fatbin(Entry(architecture=4096)), r"no known architecture \(4096"),
    "two letters at once": (fatbin(Entry(letter="a", flags=0x20_0011)), r"flags 0x300011"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_of_a_damaged_container_nothing_counts_and_it_is_said_why(case: str) -> None:
    data, words = DAMAGED[case]
    alone = read(data)
    assert (alone.fatbins, alone.objects) == (0, ())
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(alone.problem)
    beside = read(fatbin(Entry(kind=PTX, architecture=75)) + b"\0" * 8 + data)
    assert names(beside) == [("compute_75", 1)]
    assert beside.problem is not None


def test_more_containers_or_entries_than_are_read_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "_CONTAINERS", 3)
    found = read(fatbin(Entry()) * 5)
    assert (found.fatbins, found.problem) == (3, "there are more than 3 places where a fatbin may begin")
    monkeypatch.setattr(subject, "_ENTRIES", 2)
    found = read(fatbin(Entry()) + fatbin(Entry(), Entry()))
    assert found.fatbins == 1
    assert str(found.problem).endswith("is behind 2 entries, which is the most that are read")


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(fatbin()[:8] * 1_000_000, id="beginnings"),
        pytest.param(fatbin() * 500_000, id="empty containers"),
        pytest.param(fatbin(*[Entry(code=b"")] * 120_000), id="entries"),
    ],
)
def test_a_hostile_file_ends_in_time_and_memory(data: bytes) -> None:
    started = time.perf_counter()
    read(data, 1 << 19)
    assert time.perf_counter() - started < 5
    tracemalloc.start()
    try:
        read(data, 1 << 19)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


ENTRIES = st.builds(
    Entry,
    kind=st.sampled_from([0, 1, 2, 8, JOINED, 65535]),
    architecture=st.integers(0, 2**32 - 1) | st.integers(70, 130),
    letter=st.sampled_from(["", "a", "f"]),
    code=st.binary(max_size=40),
    header=st.sampled_from([64, 72, 112, 0, 63]),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(max_size=30) | st.lists(ENTRIES, max_size=4).map(lambda rows: fatbin(*rows)), max_size=5))
def test_any_mixture_is_read_the_same_however_it_is_cut(parts: list[bytes]) -> None:
    data = b"".join(parts)
    assert read(data) == read(data, 5)


@settings(max_examples=300, deadline=None)
@given(st.lists(ENTRIES.filter(lambda entry: entry.header >= 64), min_size=1, max_size=6), st.data())
def test_a_changed_byte_is_read_or_said(entries: list[Entry], data: st.DataObject) -> None:
    raw = bytearray(fatbin(*entries))
    raw[data.draw(st.integers(8, len(raw) - 1))] = data.draw(st.integers(0, 255))
    found = read(bytes(raw))
    assert found.fatbins or found.problem
