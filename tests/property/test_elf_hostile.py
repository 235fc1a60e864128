from __future__ import annotations

import io
import struct
import time
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imgbuild.config import DEFAULT_LIMITS
from imgbuild.content.elf import ElfFacts, read_elf
from imgbuild.errors import ArchiveError

from tests.support.elf_builder import segment_header, shared_object, tag_offset, tag_value, with_bytes, with_tag

BASE = {
    hash_style: shared_object(
        soname="libnccl.so.2",
        needed=["libc.so.6", "libm.so.6"],
        rpath="/a",
        runpath="/b:/c",
        build_id="ab" * 20,
        exports=[f"f{number}" for number in range(20)],
        imports=["memcpy@GLIBC_2.17"],
        versions_needed={"libc.so.6": ["GLIBC_2.17"]},
        versions_defined=["V_1", "V_2"],
        interpreter="/lib/ld.so",
        hash_style=hash_style,
    )
    for hash_style in ("gnu", "sysv", "both", "none")
}
FILE = BASE["gnu"]
VERSIONS: dict[str, Any] = {"versions_needed": {"libx.so": ["A"]}, "versions_defined": ["B"]}
MANY = 2**63


def outcome(data: bytes) -> ElfFacts | ArchiveError:
    """Facts or the one allowed error; anything else fails the test."""
    try:
        return read_elf(io.BytesIO(data), subject="hostile")
    except ArchiveError as error:
        return error


def refused(data: bytes, words: str, *, memory: bool = False) -> None:
    """It is an ArchiveError that says so, in under 2 seconds and, where asked, under 300 MB of memory."""
    started = time.perf_counter()
    with pytest.raises(ArchiveError, match=words):
        read_elf(io.BytesIO(data), subject="hostile")
    assert time.perf_counter() - started < 2
    if memory:
        tracemalloc.start()
        try:
            outcome(data)
            assert tracemalloc.get_traced_memory()[1] < 300_000_000
        finally:
            tracemalloc.stop()


@given(st.sampled_from(sorted(BASE)), st.integers(0, len(FILE)), st.binary(min_size=1, max_size=12))
@settings(max_examples=400, deadline=2_000)
def test_any_overwritten_bytes_give_facts_or_an_archive_error(style: str, place: int, new: bytes) -> None:
    outcome(with_bytes(BASE[style], place, new))


@given(
    st.sampled_from(sorted(BASE)),
    st.integers(0, len(FILE) // 4),
    st.sampled_from([0, 1, 3, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF, 0xFFFF_FFF0]),
)
@settings(max_examples=400, deadline=2_000)
def test_any_extreme_word_gives_facts_or_an_archive_error(style: str, word: int, value: int) -> None:
    outcome(with_bytes(BASE[style], word * 4, struct.pack("<I", value)))


@given(st.integers(0, len(FILE) - 1))
@settings(max_examples=150, deadline=2_000)
def test_a_file_cut_off_inside_its_segments_is_refused(length: int) -> None:
    end = struct.unpack_from("<Q", FILE, 64 + 56 + 32)[0]
    result = outcome(FILE[:length])
    assert isinstance(result, ArchiveError) == (length < end)


@given(st.binary(max_size=300))
@settings(max_examples=200, deadline=2_000)
def test_any_bytes_after_the_magic_number_are_survived(data: bytes) -> None:
    outcome(b"\x7fELF\2\1\1" + data)


@pytest.mark.parametrize("tag", ["SYMTAB", "STRTAB", "GNU_HASH", "VERNEED", "VERDEF", "SONAME", "NEEDED", "RUNPATH"])
@pytest.mark.parametrize("value", [MANY, 2**64 - 1, len(FILE) + 1])
def test_a_tag_that_points_nowhere_is_refused(tag: str, value: int) -> None:
    refused(with_tag(FILE, tag, value), "outside|past")


def test_a_string_table_longer_than_its_segment_is_refused() -> None:
    refused(with_tag(FILE, "STRSZ", MANY), "too long")
    refused(with_tag(FILE, "STRSZ", len(FILE)), "past its segment")


def test_a_name_without_an_end_is_refused() -> None:
    data = shared_object(soname="libx.so", exports=["f"])
    end = tag_value(data, "STRTAB") + tag_value(data, "STRSZ")
    refused(with_bytes(data, end - 1, b"x"), "has no end")


def test_a_huge_number_of_symbols_is_refused() -> None:
    place = tag_value(BASE["sysv"], "HASH") + 4
    refused(with_bytes(BASE["sysv"], place, struct.pack("<I", 0xFFFF_FFFF)), "too many dynamic symbols")
    refused(with_bytes(BASE["sysv"], place, struct.pack("<I", 100_000)), "past its segment")


def test_a_huge_number_of_buckets_is_refused() -> None:
    refused(with_bytes(FILE, tag_value(FILE, "GNU_HASH"), b"\xff" * 4), "too many buckets")
    refused(with_bytes(FILE, tag_value(FILE, "GNU_HASH") + 8, b"\xff" * 4), "outside every loaded segment")


@pytest.mark.parametrize("megabytes", [1, 20])
def test_a_hash_chain_without_an_end_is_refused(megabytes: int) -> None:
    zeroes = bytes(megabytes * 1_000_000)
    data = shared_object(exports=["f"], extra=zeroes)
    table = tag_value(data, "GNU_HASH")
    bucket, chain = table + 24, table + 28
    first = struct.unpack_from("<I", data, table + 4)[0]
    far = first + (data.index(zeroes) + 3 - chain) // 4
    refused(with_bytes(data, bucket, struct.pack("<I", far)), "chain without an end", memory=True)


# Each leads to the next one behind it, and to names that are there; the first also serves as what it points to.
CHAINED = {"VERNEED": struct.pack("<2H3I", 1, 0, 16, 16, 16), "VERDEF": struct.pack("<4H3I", 1, 0, 0, 0, 16, 20, 20)}


@pytest.mark.parametrize("tag", CHAINED)
def test_version_records_that_lead_on_and_on_are_refused(tag: str) -> None:
    data = shared_object(needed=["libx.so" * 10], extra=CHAINED[tag] * 25_000, **VERSIONS)
    refused(with_tag(data, tag, data.index(CHAINED[tag] * 2)), "too many version records")


@pytest.mark.parametrize("tag", CHAINED)
def test_version_records_that_leave_the_segment_are_refused(tag: str) -> None:
    data = shared_object(needed=["libx.so" * 10], extra=CHAINED[tag] * 25, **VERSIONS)
    refused(with_tag(data, tag, data.index(CHAINED[tag] * 2)), "outside|past its segment")


def with_dynamic_table_at(data: bytes, address: int) -> bytes:
    return with_bytes(data, segment_header(data, 2) + 16, struct.pack("<Q", address))


def test_a_dynamic_table_without_an_end_is_refused() -> None:
    tag = struct.pack("<2Q", 0x7000_0000, 1)
    data = shared_object(extra=tag * 70_000)
    refused(with_dynamic_table_at(data, data.index(tag * 2)), "too many dynamic tags")


def test_many_long_overlapping_names_are_refused() -> None:
    count = 2_000
    data = shared_object(needed=["n" * 1_000_000], extra=bytes(16 * (count + 10)))
    start, name = data.index(bytes(16 * (count + 10))), tag_value(data, "NEEDED")
    tags = data[tag_offset(data, "NEEDED") :][: 16 * 8]
    table = b"".join(struct.pack("<2Q", 1, name + cut) for cut in range(count)) + tags
    refused(with_dynamic_table_at(with_bytes(data, start, table), start), "too many names", memory=True)


def test_directories_of_colons_only_stay_small() -> None:
    data = shared_object(runpath=":" * 2_000_000)
    refused(data, "has no end", memory=True)


def test_many_symbols_with_one_long_name_are_refused() -> None:
    count = 400_000
    data = shared_object(exports=["x" * 2_000], hash_style="sysv", extra=bytes(24 * count))
    start = data.index(bytes(24 * count))
    (name,) = struct.unpack_from("<I", data, tag_value(data, "SYMTAB") + 24)
    data = with_bytes(data, start, struct.pack("<IBBHQQ", name, 0x12, 0, 1, 64, 4) * count)
    data = with_bytes(data, tag_value(data, "HASH") + 4, struct.pack("<I", count))
    refused(with_tag(data, "SYMTAB", start), "too many names", memory=True)


def test_the_limit_of_symbols_is_the_given_one() -> None:
    with pytest.raises(ArchiveError, match="too many dynamic symbols"):
        read_elf(io.BytesIO(FILE), subject="x", limits=replace(DEFAULT_LIMITS, elf_symbols=21))
    assert read_elf(io.BytesIO(FILE), subject="x", limits=replace(DEFAULT_LIMITS, elf_symbols=22)).soname


def test_too_many_or_misshapen_program_headers_are_refused() -> None:
    refused(with_bytes(FILE, 56, b"\xff\xff"), "too many program headers")
    refused(with_bytes(FILE, 54, b"\x20\0"), "wrong size")
    refused(with_bytes(FILE, 32, struct.pack("<Q", MANY)), "past the end")


def test_an_interpreter_or_build_id_of_a_wrong_size_is_refused() -> None:
    refused(with_bytes(FILE, 64 + 32, struct.pack("<Q", 5_000)), "too long")
    refused(with_bytes(FILE, 64 + 32, struct.pack("<Q", 4)), "without an end")
    note = FILE.index(struct.pack("<3I4s", 4, 20, 3, b"GNU\0"))
    refused(with_bytes(FILE, note + 4, b"\xff\xff\0\0"), "build-id of a wrong size")


def test_lying_section_headers_change_nothing() -> None:
    start = struct.unpack_from("<Q", FILE, 40)[0]
    assert outcome(FILE[:start] + b"\xff" * (len(FILE) - start)) == outcome(FILE)
    assert outcome(with_bytes(FILE, 60, b"\xff\xff\xff\xff")) == outcome(FILE)


def test_without_hash_tables_a_moved_string_table_ends_the_symbols_at_the_first_impossible_name() -> None:
    # As patchelf leaves a file: the old strings stay behind the symbols and are no symbols.
    # The fifth byte of the old strings looks like the type of a global function.
    arguments: dict[str, Any] = {"imports": ["mem\x12cpy", "ncclSend"], "hash_style": "none"}
    plain = shared_object(**arguments)
    start, size = tag_value(plain, "STRTAB"), tag_value(plain, "STRSZ")
    strings = plain[start : start + size]
    data = shared_object(**arguments, extra=strings)
    facts = outcome(with_tag(data, "STRTAB", data.rindex(strings)))
    assert isinstance(facts, ElfFacts)
    assert facts.imports == ("mem\x12cpy", "ncclSend")


def test_where_segments_overlap_the_last_one_counts_as_it_is_mapped_last() -> None:
    first, last = b"\0libold.so\0", b"\0libnew.so\0"
    data = shared_object(soname="libold.so", extra=last)
    (count,) = struct.unpack_from("<H", data, 56)
    start = data.index(first)
    second = struct.pack("<2I6Q", 1, 4, data.index(last), start, start, len(last), len(last), 1)
    data = with_bytes(with_bytes(data, 64 + 56 * count, second), 56, struct.pack("<H", count + 1))
    facts = outcome(data)
    assert isinstance(facts, ElfFacts)
    assert facts.soname == "libnew.so"
