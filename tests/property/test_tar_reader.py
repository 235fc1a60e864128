from __future__ import annotations

import io
import os
import subprocess
import tarfile
import time
from math import floor
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imgbuild.config import Limits
from imgbuild.content.compression import decompress
from imgbuild.content.tarstream import EntryType, TarEntry, TarReader
from imgbuild.errors import ArchiveError

KINDS = {
    tarfile.REGTYPE: EntryType.FILE,
    tarfile.DIRTYPE: EntryType.DIRECTORY,
    tarfile.SYMTYPE: EntryType.SYMLINK,
    tarfile.LNKTYPE: EntryType.HARDLINK,
    tarfile.CHRTYPE: EntryType.CHARACTER,
    tarfile.FIFOTYPE: EntryType.FIFO,
}
FORMATS = {"ustar": tarfile.USTAR_FORMAT, "pax": tarfile.PAX_FORMAT, "gnu": tarfile.GNU_FORMAT}


class Dribble:
    """Answers with pieces of uneven sizes."""

    def __init__(self, data: bytes, step: int) -> None:
        self._inner = io.BytesIO(data)
        self._step = step

    def read(self, size: int, /) -> bytes:
        self._step = self._step * 31 % 1999 + 1
        return self._inner.read(min(size, self._step))


class Member(NamedTuple):
    path: bytes
    kind: bytes
    mode: int
    uid: int
    gid: int
    mtime: float
    content: bytes
    link: bytes
    xattrs: dict[str, str]


component = st.binary(min_size=1, max_size=60).map(lambda raw: raw.replace(b"/", b"-").replace(b"\0", b"0"))
names = (
    st.lists(component.filter(lambda raw: raw not in {b".", b".."}), min_size=1, max_size=8)
    .map(b"/".join)
    .filter(lambda path: len(path) <= 400)
)


def members(form: str) -> st.SearchStrategy[Member]:
    """What the format can say: ustar has short names and no large numbers, only PAX has fractions and xattrs."""
    wide = form != "ustar"
    name = names if wide else names.filter(lambda path: len(path) < 99)
    number = st.integers(0, 2**32 - 1 if wide else 0o7777777)
    pax = form == "pax"
    times: st.SearchStrategy[float] = {
        "ustar": st.integers(0, 2**33 - 1),
        "gnu": st.integers(-(2**40), 2**40),
        "pax": st.floats(-1e10, 1e10).map(lambda value: round(value, 3)) | st.integers(0, 2**40),
    }[form]
    keys = st.text("abc.", min_size=1, max_size=9).map("user.".__add__)
    return st.builds(
        Member,
        path=name,
        kind=st.sampled_from(sorted(KINDS)),
        mode=st.integers(0, 0o7777),
        uid=number,
        gid=number,
        mtime=times,
        content=st.binary(max_size=1600),
        link=name,
        xattrs=st.dictionaries(keys, st.text(st.characters(codec="utf-8"), min_size=1)) if pax else st.just({}),
    )


def written(entries: list[Member], form: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=FORMATS[form], encoding="utf-8") as archive:
        for entry in entries:
            info = tarfile.TarInfo(os.fsdecode(entry.path))
            info.type, info.mode, info.uid, info.gid = entry.kind, entry.mode, entry.uid, entry.gid
            info.mtime = entry.mtime
            if entry.kind in {tarfile.SYMTYPE, tarfile.LNKTYPE}:
                info.linkname = os.fsdecode(entry.link)
            if entry.kind == tarfile.CHRTYPE:
                info.devmajor, info.devminor = 5, 1
            if entry.kind == tarfile.REGTYPE:
                info.size = len(entry.content)
            info.pax_headers = {f"SCHILY.xattr.{key}": value for key, value in entry.xattrs.items()}
            archive.addfile(info, io.BytesIO(entry.content))
    return out.getvalue()


def expected(entry: Member) -> tuple[TarEntry, bytes]:
    kind = KINDS[entry.kind]
    content = entry.content if kind is EntryType.FILE else b""
    found = TarEntry(
        path=entry.path,
        type=kind,
        mode=entry.mode,
        uid=entry.uid,
        gid=entry.gid,
        size=len(content),
        mtime=floor(entry.mtime),
        link=entry.link if kind in {EntryType.SYMLINK, EntryType.HARDLINK} else b"",
        xattrs=tuple(sorted((key, value.encode()) for key, value in entry.xattrs.items())),
        device=(5, 1) if kind is EntryType.CHARACTER else None,
    )
    return found, content


def everything(reader: TarReader) -> list[tuple[TarEntry, bytes]]:
    return [(entry, b"".join(reader.content())) for entry in reader]


@pytest.mark.parametrize("form", sorted(FORMATS))
@settings(max_examples=35, deadline=None)
@given(data=st.data())
def test_C18_C19_C22_C24_what_tarfile_writes_is_read_back_equal(form: str, data: st.DataObject) -> None:
    entries = data.draw(st.lists(members(form), max_size=6))
    try:
        raw = written(entries, form)
    except ValueError:  # a name that the format ustar cannot split
        return
    step = data.draw(st.integers(1, 1999))
    assert everything(TarReader(Dribble(raw, step), subject="x")) == [expected(entry) for entry in entries]


SAMPLE = [
    Member(b"d" * 120 + b"/f", tarfile.REGTYPE, 0o644, 1, 1, 1.5, b"x" * 700, b"", {"user.a": "1"}),
    Member(b"l", tarfile.SYMTYPE, 0o777, 0, 0, 0, b"", b"t" * 130, {}),
    Member(b"h", tarfile.LNKTYPE, 0o644, 0, 0, 7, b"", b"l", {}),
    Member(b"e", tarfile.DIRTYPE, 0o755, 0, 0, 7, b"", b"", {}),
]
SAMPLES = [written(SAMPLE, "pax"), written([entry._replace(mtime=-9) for entry in SAMPLE], "gnu")]


def outcome(data: bytes) -> list[tuple[TarEntry, bytes]] | None:
    """Entries, or None for an `ArchiveError`; anything else fails the test, and so does slowness."""
    started = time.process_time()
    try:
        stream = decompress(io.BytesIO(data), subject="x", limits=Limits(layer_bytes=1 << 20))
        return everything(TarReader(stream, subject="x", limits=Limits(layer_entries=1000)))
    except ArchiveError:
        return None
    finally:
        assert time.process_time() - started < 1


@pytest.mark.parametrize("sample", SAMPLES, ids=["pax", "gnu"])
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_damaged_archives_give_entries_or_an_archive_error(sample: bytes, data: st.DataObject) -> None:
    changed = bytearray(sample[: data.draw(st.integers(0, len(sample)))] if data.draw(st.booleans()) else sample)
    for _ in range(data.draw(st.integers(0, 4))):
        if changed:
            changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    outcome(bytes(changed))


def resummed(block: bytes) -> bytes:
    blank = block[:148] + b" " * 8 + block[156:512]
    return blank[:148] + b"%06o\0 " % sum(blank) + blank[156:]


@settings(max_examples=400, deadline=None)
@given(
    sample=st.sampled_from(SAMPLES),
    number=st.integers(0, 12),
    edits=st.lists(st.tuples(st.integers(0, 511), st.integers(0, 255)), max_size=5),
)
def test_headers_with_any_field_changed_and_a_right_checksum_are_no_surprise(
    sample: bytes, number: int, edits: list[tuple[int, int]]
) -> None:
    start = number * 512 % len(sample)
    block = bytearray(sample[start : start + 512])
    for index, value in edits:
        block[index] = value
    found = outcome(sample[:start] + resummed(bytes(block)) + sample[start + 512 :])
    for entry, content in found or []:
        assert len(content) == entry.size
        assert not {b"..", b".", b""} & set(entry.path.split(b"/")) or entry.path == b""
        assert entry.mode <= 0o7777


@settings(max_examples=150, deadline=None)
@given(body=st.binary(max_size=300) | st.text("0123456789 =path\n", max_size=60).map(str.encode))
def test_any_pax_header_is_read_or_refused(body: bytes) -> None:
    info = tarfile.TarInfo("p")
    info.type, info.size = tarfile.XHDTYPE, len(body)
    header = info.tobuf(tarfile.USTAR_FORMAT)
    outcome(header + body + bytes(-len(body) % 512) + tarfile.TarInfo("a").tobuf(tarfile.USTAR_FORMAT) + bytes(1024))


@pytest.mark.parametrize("sample", SAMPLES, ids=["pax", "gnu"])
def test_every_truncation_is_an_archive_error_unless_only_end_blocks_are_missing(sample: bytes) -> None:
    whole = outcome(sample)
    assert whole is not None
    end = len(sample.rstrip(b"\0"))
    end += -end % 512
    for length in range(0, len(sample), 61):
        found = outcome(sample[:length])
        assert found == (whole if length >= end + 512 else None)


@pytest.mark.parametrize("sample", SAMPLES, ids=["pax", "gnu"])
def test_gnu_tar_lists_the_same_names(sample: bytes) -> None:
    listing = subprocess.run(
        ["tar", "--list", "--quoting-style=literal", "--file=-"], input=sample, stdout=subprocess.PIPE, check=True
    ).stdout
    found = outcome(sample)
    assert found is not None
    assert [line.rstrip(b"/") for line in listing.splitlines()] == [entry.path for entry, _ in found]
