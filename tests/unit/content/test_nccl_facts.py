from __future__ import annotations

import io

import pytest
from imgbuild.content import elftexts
from imgbuild.content.nccl import MARKERS, NcclFacts, NcclScan, parse_version
from imgbuild.errors import ArchiveError

from tests.support.elf_builder import shared_object
from tests.support.fatbins import Entry, fatbin
from tests.support.made import library


def read(data: bytes, size: int = 1 << 20) -> NcclFacts:
    scan = NcclScan("lib")
    for start in range(0, len(data), size):
        scan.update(data[start : start + size])
    return scan.finish(io.BytesIO(data))


@pytest.mark.parametrize(
    ("text", "code", "cuda"),
    [
        ("NCCL version 2.30.7+cuda13.3", 23007, "13.3"),
        ("NCCL version 2.29.7", 22907, None),
        ("NCCL version 2.29.2rc1+cuda13.1", 22902, "13.1"),
        ("NCCL version 2.9.6+cuda11.0", 20906, "11.0"),
        ("NCCL version 2.8.4+cuda11.0", 2804, "11.0"),
        ("NCCL version 1.9.0", 10900, None),
        ("NCCL version 3.1.2", 30102, None),
    ],
)
def test_a_version_has_the_code_that_nccl_h_gives_it(text: str, code: int, cuda: str | None) -> None:
    found = parse_version(text)
    assert found is not None
    assert (found.code, found.cuda, found.text) == (code, cuda, text)


@pytest.mark.parametrize("text", ["NCCL version 2.30", "NCCL version 2.30.7.1", "NCCL version 2.30.7+x", "2.30.7", ""])
def test_what_is_no_version_gives_none(text: str) -> None:
    assert parse_version(text) is None


def test_the_texts_of_a_library_are_found_with_the_rest_of_what_identifies_it() -> None:
    extra = b"NCCL git version stable b81d6a5a3\0NCCL_SKIP_TREE_CONNECT\0NCCL_DEBUG\0" + fatbin(Entry(letter="a"))
    data = library("2.30.7+cuda13.3", extra=extra)
    found = read(data)
    assert found == read(data, 13)
    assert found.version is not None
    assert (found.version.number, found.version.code, found.version.cuda) == ("2.30.7", 23007, "13.3")
    assert found.git == ("stable b81d6a5a3",)
    assert found.names == ("NCCL_DEBUG", "NCCL_SKIP_TREE_CONNECT")
    assert [found.has(name) for name in MARKERS] == [False, True]
    assert [item.name for item in found.gpu.objects] == ["sm_121a"]
    assert found.exports == ("ncclAllReduce", "ncclGetUniqueId", "ncclGetVersion")
    assert (found.newest("GLIBC"), found.newest("GLIBCXX")) == ("2.17", None)
    assert found.problems() == ()


def test_a_longer_name_is_no_marker() -> None:
    assert read(library("2.30.7", extra=b"NCCL_SKIP_TREE_CONNECT_NOT\0")).has("NCCL_SKIP_TREE_CONNECT") is False


def test_where_there_are_more_names_than_are_kept_it_is_not_known_that_one_is_absent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(elftexts, "MOST", 3)
    monkeypatch.setattr("imgbuild.content.nccl.MOST", 3)
    found = read(library("2.30.7", extra=b"NCCL_AA\0NCCL_BB\0NCCL_CC\0NCCL_SKIP_TREE_CONNECT\0"))
    assert (found.has("NCCL_AA"), found.has("NCCL_SKIP_TREE_CONNECT")) == (True, None)


def test_versions_of_symbols_are_no_part_of_their_names() -> None:
    data = shared_object(soname="l", exports=["ncclGetVersion@@V", "pncclX@V", "other"], versions_defined=["V"])
    assert read(data).exports == ("ncclGetVersion", "pncclX")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (shared_object(soname="libz.so.1", exports=["deflate"]), "is no NCCL library: it does not export ncclG"),
        (library("2.30.7", exports=["foo"]), "though its bytes say 'NCCL version 2.30.7'"),
        (shared_object(soname="libnccl.so.2", exports=["ncclGetVersion"]), "states no version"),
        (library("2.30.7", extra=b"NCCL version 2.29.7\0"), "states several versions: 'NCCL version 2.29.7', 'NCCL"),
        (library("2.30.7+cuda13.3", extra=b"NCCL version 2.30.7+cuda12.9\0"), "states several versions"),
        (library("2.30.7", sections=False)[:-1], "shorter than its segments"),
        (library("2.30.7")[:-1], "is shorter than its table of sections: it was cut off"),
        (library("2.30.7")[:20], "has a damaged ELF header"),
        (b"\x7fELF", "has a damaged ELF header"),
    ],
)
def test_what_is_no_sound_library_says_why(data: bytes, words: str) -> None:
    found = read(data)
    assert words in found.problems()[0]
    assert found.size == len(data)


@pytest.mark.parametrize("data", [b"", b"\x7fEL", b"#!/bin/sh\n", b"\0" * 5000])
def test_what_is_no_elf_file_is_refused(data: bytes) -> None:
    with pytest.raises(ArchiveError, match=r"is not an ELF file|is empty"):
        read(data)
