"""Hostile zips, made with `zipfile` and then changed byte by byte; the good ones are read back with it too."""

from __future__ import annotations

import io
import stat
import struct
import subprocess
import sys
import warnings
import zipfile
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imgbuild.config import DEFAULT_LIMITS, Limits
from imgbuild.content import ziparchive
from imgbuild.content.ziparchive import member_digest, open_archive, open_member
from imgbuild.digest import Digest
from imgbuild.errors import ArchiveError

if TYPE_CHECKING:
    from pathlib import Path

Named = str | zipfile.ZipInfo
LOCAL, DIRECTORY, END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
TEXT = b"abc " * 100


def named(name: str, mode: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    return info


def made(*members: tuple[Named, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(out, "w", method) as archive:
        warnings.simplefilter("ignore")  # it warns about the duplicates that are wanted here
        for name, data in members:
            archive.writestr(name, data)
    return out.getvalue()


def changed(data: bytes, header: bytes, offset: int, value: bytes, *, last: bool = False) -> bytes:
    """The archive with other bytes at an offset in its first (or last) header of a kind."""
    at = (data.rindex if last else data.index)(header) + offset
    return data[:at] + value + data[at + len(value) :]


def contents(data: bytes, limits: Limits = DEFAULT_LIMITS) -> dict[str, bytes]:
    with open_archive(io.BytesIO(data), subject="x.whl", limits=limits) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist() if not info.is_dir()}


class Unseekable(io.BytesIO):
    """Makes `zipfile` write data descriptors, as streaming writers do."""

    def seekable(self) -> bool:
        return False

    def seek(self, *_: int) -> int:
        raise io.UnsupportedOperation


def streamed() -> bytes:
    out = Unseekable()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", TEXT)
        archive.writestr("b", b"")
    return out.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(made(("a/b", TEXT), ("c", b"")), id="deflated"),
        pytest.param(made(("a/b", TEXT), ("c", b""), method=zipfile.ZIP_STORED), id="stored"),
        pytest.param(made(("a/", b""), ("a/b", TEXT)), id="folder-entry-first"),
        pytest.param(made(("a/b", TEXT), ("a/", b"")), id="folder-entry-behind"),
        pytest.param(made(("a.b", b"1"), ("a/c", b"2"), ("a-b", b"3")), id="names-that-sort-around-a-slash"),
        pytest.param(made(("ä/€", TEXT), ("with space", TEXT)), id="utf8"),
        pytest.param(made((named("run", stat.S_IFREG | 0o755), TEXT)), id="executable"),
        pytest.param(made((named("folder/", stat.S_IFDIR | 0o755), b""), ("folder/a", b"")), id="folder-with-mode"),
        pytest.param(made(), id="empty"),
        pytest.param(streamed(), id="data-descriptors"),
    ],
)
def test_a_sound_archive_is_read_as_zipfile_reads_it(data: bytes) -> None:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert contents(data) == {i.filename: archive.read(i) for i in archive.infolist() if not i.is_dir()}


def test_zip64_headers_are_read() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive, archive.open("a", "w", force_zip64=True) as member:
        member.write(TEXT)
    assert contents(out.getvalue()) == {"a": TEXT}


def test_an_archive_of_the_zipfile_program_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "setup.py").write_text("")
    (tmp_path / "a.txt").write_bytes(TEXT)
    command = [sys.executable, "-m", "zipfile", "-c", "x.zip", "a.txt", "setup.py"]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert contents((tmp_path / "x.zip").read_bytes()) == {"a.txt": TEXT, "setup.py": b""}


@pytest.mark.parametrize(
    "bad",
    [
        "../x",
        "/x",
        "a/../../x",
        "a/..",
        "a//x",
        "a/./x",
        "./x",
        ".",
        "..",
        "/",
        "a\\x",
        "C:\\x",
        "a\nb",
        "a\x1b[31mb",
        "a\u202eb",
        "a\u200bb",
    ],
)
def test_a_name_that_is_not_a_plain_relative_path_is_refused_and_shown_escaped(bad: str) -> None:
    with pytest.raises(ArchiveError, match="not a plain relative path") as caught:
        contents(made(("good", b""), (bad, b"")))
    assert str(caught.value).isprintable()


def test_names_are_limited_in_bytes_and_depth() -> None:
    assert contents(made(("€" * 3, b"")), Limits(path_bytes=9))
    assert contents(made(("a/b/c", b"")), Limits(path_depth=3))
    for data, limits in (
        (made(("€" * 3, b"")), Limits(path_bytes=8)),
        (made(("a/b/c", b"")), Limits(path_depth=2)),
    ):
        with pytest.raises(ArchiveError, match="name is too long"):
            contents(data, limits)


def test_a_name_that_a_nul_cuts_is_refused() -> None:
    data = made(("abcd", b""))
    for header, offset in ((LOCAL, 30), (DIRECTORY, 46)):
        data = changed(data, header, offset, b"ab\0d")
    with pytest.raises(ArchiveError, match="cut"):
        contents(data)


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ((("a", b"1"), ("a", b"2")), "twice"),
        ((("a/", b""), ("a/", b"")), "twice"),
        ((("a", b"1"), ("a/", b"")), "file and folder"),
        ((("a", b"1"), ("a/b", b"")), "file and folder"),
        ((("a/b/c/d", b"1"), ("a/b", b"")), "file and folder"),
        ((("a/b", b"1"), ("a/b/c/", b""), ("a/b.c", b""), ("a/b-c", b"")), "file and folder"),
    ],
)
def test_members_that_take_each_others_place_are_refused(members: tuple[tuple[Named, bytes], ...], words: str) -> None:
    with pytest.raises(ArchiveError, match=words):
        contents(made(*members))


@pytest.mark.parametrize(
    "info",
    [
        named("a", stat.S_IFLNK | 0o777),
        named("a", stat.S_IFIFO | 0o644),
        named("a", stat.S_IFCHR | 0o644),
        named("a", stat.S_IFDIR | 0o755),
        named("a/", stat.S_IFREG | 0o644),
    ],
)
def test_what_is_no_file_and_no_folder_is_refused(info: zipfile.ZipInfo) -> None:
    with pytest.raises(ArchiveError, match="no file and no folder"):
        contents(made((info, b"")))


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_only_stored_and_deflated_members_are_read(method: int) -> None:
    with pytest.raises(ArchiveError, match="unknown way"):
        contents(made(("a", TEXT), method=method))


def test_encryption_is_refused_in_either_header() -> None:
    data = made(("a", TEXT))
    with pytest.raises(ArchiveError, match="encrypted"):
        contents(changed(data, DIRECTORY, 8, b"\1"))
    with pytest.raises(ArchiveError, match="two headers differ"):
        contents(changed(data, LOCAL, 6, b"\1"))


def test_a_local_header_with_another_name_or_method_is_refused() -> None:
    data = made(("abc", TEXT))
    with pytest.raises(ArchiveError, match="two names"):
        contents(changed(data, LOCAL, 30, b"xyz"))
    with pytest.raises(ArchiveError, match="two headers differ"):
        contents(changed(data, LOCAL, 8, b"\0"))


def test_members_that_overlap_are_refused() -> None:
    data = made(("a", TEXT), ("b", TEXT), method=zipfile.ZIP_STORED)
    with pytest.raises(ArchiveError, match=r"overlap|sound"):
        contents(changed(data, DIRECTORY, 42, bytes(4), last=True))
    inside = made(("outer", made(("a", TEXT), method=zipfile.ZIP_STORED)), ("a", TEXT), method=zipfile.ZIP_STORED)
    quoted = struct.pack("<L", inside.index(LOCAL, 4))
    with pytest.raises(ArchiveError, match=r"overlap|sound"):
        contents(changed(inside, DIRECTORY, 42, quoted, last=True))


def test_bytes_that_belong_to_no_member_are_refused() -> None:
    data = made(("a", TEXT), ("b", TEXT))
    second, directory = data.index(LOCAL, 4), data.index(DIRECTORY)
    hidden = made(("evil", b"x"))
    hidden = hidden[: hidden.index(DIRECTORY)]
    with pytest.raises(ArchiveError, match="belong to no member"):
        contents(b"#!/bin/sh\n" + data)
    between = data[:second] + hidden + data[second:]
    between = changed(between, DIRECTORY, 42, struct.pack("<L", second + len(hidden)), last=True)
    between = changed(between, END, 16, struct.pack("<L", directory + len(hidden)))
    assert zipfile.ZipFile(io.BytesIO(between)).read("b") == TEXT
    with pytest.raises(ArchiveError, match="belong to no member"):
        contents(between)
    behind = changed(data[:directory] + hidden + data[directory:], END, 16, struct.pack("<L", directory + len(hidden)))
    assert zipfile.ZipFile(io.BytesIO(behind)).read("b") == TEXT
    with pytest.raises(ArchiveError, match="belong to no member"):
        contents(behind)


def test_a_comment_is_part_of_an_archive_and_what_is_behind_it_is_not() -> None:
    out = io.BytesIO(made(("a", TEXT)))
    with zipfile.ZipFile(out, "a") as archive:
        archive.comment = b"said by the maker"
    assert contents(out.getvalue()) == {"a": TEXT}
    for data in (out.getvalue(), made(("a", TEXT)), made()):
        with pytest.raises(ArchiveError, match="bytes behind its end"):
            contents(data + b"x")


def test_members_are_limited_in_number_size_and_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    data = made(("a", b"x"), ("b", bytes(500_000)))
    assert len(contents(data, Limits(wheel_entries=2))) == 2
    with pytest.raises(ArchiveError, match="too many members"):
        contents(data, Limits(wheel_entries=1))
    with pytest.raises(ArchiveError, match="far more than it holds"):
        contents(data, Limits(ratio_floor=1000, compression_ratio=100))
    monkeypatch.setattr(ziparchive, "MEMBER_BYTES", 499_999)
    with pytest.raises(ArchiveError, match="too large"):
        contents(data)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_member_never_gives_more_bytes_than_it_says(method: int) -> None:
    data = made(("a", TEXT), method=method)
    with pytest.raises(ArchiveError):
        contents(changed(data, DIRECTORY, 24, struct.pack("<L", len(TEXT) - 1)))


def test_a_wrong_crc_is_an_archive_error_when_the_member_is_read() -> None:
    data = made(("a", TEXT), method=zipfile.ZIP_STORED).replace(b"abc abc", b"abc xbc", 1)
    with pytest.raises(ArchiveError, match="CRC"), open_member(io.BytesIO(data), "a", subject="x") as (stream, _):
        stream.read()


@pytest.mark.parametrize("data", [b"", END, b"x" * 100, LOCAL + bytes(100), made(("a", TEXT))[:-5]])
def test_what_is_no_zip_is_an_archive_error(data: bytes) -> None:
    with pytest.raises(ArchiveError, match="not a sound zip archive"):
        contents(data)


def test_errors_of_the_caller_inside_the_block_are_not_taken_for_the_archives() -> None:
    for mistake in (ValueError("mine"), RuntimeError("mine"), KeyError("mine")):
        with (
            pytest.raises(type(mistake), match="mine"),
            open_archive(io.BytesIO(made(("a", TEXT))), subject="x"),
        ):
            raise mistake


def test_one_member_is_opened_by_name_with_its_size_and_digest() -> None:
    data = made(("a", b""), ("dir/b", TEXT))
    with open_member(io.BytesIO(data), "dir/b", subject="x") as (stream, size):
        assert (stream.read(), size) == (TEXT, len(TEXT))
    assert member_digest(io.BytesIO(data), "dir/b", subject="x") == (Digest.of(TEXT), len(TEXT))
    with pytest.raises(ArchiveError, match="no such member"):
        member_digest(io.BytesIO(data), "b", subject="x")


SAMPLE = made(("a/b", TEXT), ("c/", b""), (named("d", stat.S_IFREG | 0o755), b"x" * 50))


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, len(SAMPLE) - 1), st.integers(0, 255)), max_size=4), st.integers(0, len(SAMPLE))
)
def test_a_damaged_archive_gives_its_members_or_an_archive_error(changes: list[tuple[int, int]], length: int) -> None:
    data = bytearray(SAMPLE)
    for at, value in changes:
        data[at] = value
    for candidate in (bytes(data), bytes(data[:length])):
        try:
            found = contents(candidate)
        except ArchiveError:
            continue
        assert all(".." not in name.split("/") and not name.startswith("/") for name in found)
