from __future__ import annotations

import dataclasses
import io
import os
import subprocess
import tarfile
from typing import TYPE_CHECKING

import pytest
from imgbuild.config import Limits
from imgbuild.content.compression import decompress
from imgbuild.content.tarstream import EntryType, TarEntry, TarReader
from imgbuild.digest import Digest, VerifiedReader
from imgbuild.errors import ArchiveError, InternalError

if TYPE_CHECKING:
    from pathlib import Path

END = bytes(1024)
Fields = dict[str, bytes]


def block(name: bytes = b"a", flag: bytes = b"0", size: int | bytes = 0, **other: bytes) -> bytes:
    """One header block with a right checksum; `other` replaces whole fields."""
    fields: Fields = {
        "name": name,
        "mode": b"0000644\0",
        "uid": b"0000000\0",
        "gid": b"0000000\0",
        "size": size if isinstance(size, bytes) else b"%011o\0" % size,
        "mtime": b"00000000000\0",
        "checksum": b" " * 8,
        "flag": flag,
        "link": b"",
        "magic": b"ustar\x0000",
        "names": b"",
        "major": b"0000000\0",
        "minor": b"0000000\0",
        "prefix": b"",
    } | other
    widths = (100, 8, 8, 8, 12, 12, 8, 1, 100, 8, 64, 8, 8, 167)
    data = b"".join(value.ljust(width, b"\0") for value, width in zip(fields.values(), widths, strict=True))
    assert len(data) == 512
    if "checksum" in other:
        return data
    return data[:148] + b"%06o\0 " % sum(data) + data[156:]


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 512)


def member(content: bytes, name: bytes = b"a", flag: bytes = b"0", **other: bytes) -> bytes:
    return block(name, flag, len(content), **other) + padded(content)


def record(key: bytes, value: bytes) -> bytes:
    body = b" " + key + b"=" + value + b"\n"
    length = len(body)
    while len(b"%d" % length) + len(body) != length:
        length = len(b"%d" % length) + len(body)
    return b"%d" % length + body


def pax(*pairs: tuple[bytes, bytes], flag: bytes = b"x") -> bytes:
    return member(b"".join(record(key, value) for key, value in pairs), b"PaxHeader", flag)


def gnu(flag: bytes, name: bytes) -> bytes:
    return member(name + b"\0", b"././@LongLink", flag, magic=b"ustar  \0")


def read(data: bytes, limits: Limits | None = None) -> list[tuple[TarEntry, bytes]]:
    reader = TarReader(io.BytesIO(data), subject="layer 7", limits=limits or Limits())
    return [(entry, b"".join(reader.content())) for entry in reader]


def one(data: bytes) -> TarEntry:
    ((entry, _),) = read(data + END)
    return entry


B256 = bytes([0x80]) + bytes(7)
LONG = b"d/" * 90 + b"name-\xff-\xc3\xa4"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(block(b"usr/bin/x"), {"path": b"usr/bin/x", "type": EntryType.FILE, "mode": 0o644}, id="ustar"),
        pytest.param(block(b"a", b"\0", magic=b""), {"type": EntryType.FILE}, id="v7-file"),
        pytest.param(block(b"a/", b"\0", magic=b""), {"path": b"a", "type": EntryType.DIRECTORY}, id="v7-slash-is-dir"),
        pytest.param(block(b"a", b"7"), {"type": EntryType.FILE}, id="contiguous"),
        pytest.param(block(b"a/", b"5"), {"path": b"a", "type": EntryType.DIRECTORY}, id="directory"),
        pytest.param(block(b"a", b"6"), {"type": EntryType.FIFO}, id="fifo"),
        pytest.param(
            block(b"a", b"3", major=b"0000005\0", minor=b"0000001\0"),
            {"type": EntryType.CHARACTER, "device": (5, 1)},
            id="character",
        ),
        pytest.param(
            block(b"a", b"4", major=b"0000010\0"), {"type": EntryType.BLOCK, "device": (8, 0)}, id="block-device"
        ),
        pytest.param(block(b"a" * 100), {"path": b"a" * 100}, id="name-fills-its-field"),
        pytest.param(block(b"a\0junk"), {"path": b"a"}, id="bytes-behind-the-NUL-are-not-name"),
        pytest.param(block(b"a", prefix=b"p/q"), {"path": b"p/q/a"}, id="ustar-prefix"),
        pytest.param(block(b"a", magic=b"ustar  \0"), {"path": b"a"}, id="gnu-magic"),
        pytest.param(
            block(b"a", magic=b"ustar  \0", prefix=b"14524770542\x0014524770542\0"), {"path": b"a"}, id="gnu-atime"
        ),
        pytest.param(block(b"./a"), {"path": b"a"}, id="dot-slash"),
        pytest.param(block(b"/etc/x"), {"path": b"etc/x"}, id="absolute-name"),
        pytest.param(block(b"//a//b/./c"), {"path": b"a/b/c"}, id="empty-and-dot-components"),
        pytest.param(block(b"a/.hidden/..b/c.."), {"path": b"a/.hidden/..b/c.."}, id="dots-in-names-stay"),
        pytest.param(block(b"./", b"5"), {"path": b"", "type": EntryType.DIRECTORY}, id="root"),
        pytest.param(block(b".", b"5"), {"path": b""}, id="root-as-dot"),
        pytest.param(block(b"/", b"5"), {"path": b""}, id="root-as-slash"),
        pytest.param(block(b"a/.wh..wh..opq"), {"path": b"a/.wh..wh..opq"}, id="whiteouts-are-entries"),
        pytest.param(block(b"a", b"2", link=b"/../x//y/"), {"link": b"/../x//y/"}, id="symlink-target-as-stored"),
        pytest.param(block(b"a", b"2", link=b"x" * 100), {"link": b"x" * 100}, id="symlink-target-fills-its-field"),
        pytest.param(block(b"a", b"1", link=b"/./x//y"), {"link": b"x/y"}, id="hardlink-target-normalised"),
        pytest.param(block(b"a", link=b"x"), {"link": b""}, id="a-file-has-no-target"),
        pytest.param(block(b"a", mode=b"0104755\0"), {"mode": 0o4755}, id="setuid-kept-type-bits-dropped"),
        pytest.param(block(b"a", mode=b"   644 \0"), {"mode": 0o644}, id="old-number-with-spaces"),
        pytest.param(block(b"a", uid=b"", gid=b" " * 8), {"uid": 0, "gid": 0}, id="blank-numbers-are-zero"),
        pytest.param(block(b"a", uid=B256[:4] + b"\x00\x98\x96\x80"), {"uid": 10_000_000}, id="base-256"),
        pytest.param(block(b"a", mtime=b"\xff" * 12), {"mtime": -1}, id="base-256-negative-mtime"),
        pytest.param(block(b"a", mtime=b"\xff" * 11 + b"\x00"), {"mtime": -256}, id="base-256-minus-256"),
        pytest.param(block(b"a", mtime=b"777777777777"), {"mtime": 0o777777777777}, id="twelve-digits"),
        pytest.param(pax((b"path", LONG)) + block(), {"path": LONG}, id="pax-path-not-utf8"),
        pytest.param(pax((b"linkpath", b"/t" * 99)) + block(b"a", b"2"), {"link": b"/t" * 99}, id="pax-linkpath"),
        pytest.param(pax((b"linkpath", b"./t/u")) + block(b"a", b"1", link=b"z"), {"link": b"t/u"}, id="pax-hardlink"),
        pytest.param(
            pax((b"uid", b"4000000000"), (b"gid", b"7")) + block(), {"uid": 4_000_000_000, "gid": 7}, id="ids"
        ),
        pytest.param(pax((b"path", b"")) + block(b"kept"), {"path": b"kept"}, id="empty-pax-value-deletes"),
        pytest.param(pax((b"path", b"x"), (b"path", b"y")) + block(), {"path": b"y"}, id="last-record-wins"),
        pytest.param(pax() + block(b"kept"), {"path": b"kept"}, id="pax-header-without-records"),
        pytest.param(
            pax((b"comment", b"a=b\n\0c"), (b"hdrcharset", b"BINARY")) + block(), {"path": b"a"}, id="ignored"
        ),
        pytest.param(gnu(b"L", LONG) + block(magic=b"ustar  \0"), {"path": LONG}, id="gnu-long-name"),
        pytest.param(
            gnu(b"K", b"t" * 300) + gnu(b"L", LONG) + block(b"a", b"2", magic=b"ustar  \0"),
            {"path": LONG, "link": b"t" * 300},
            id="gnu-long-link-and-name",
        ),
        pytest.param(
            pax((b"comment", b"1"), flag=b"g") + pax((b"mtime", b"5"), flag=b"g") + block(), {"mtime": 5}, id="global"
        ),
        pytest.param(
            pax((b"uid", b"5"), flag=b"g") + pax((b"uid", b"6")) + block(), {"uid": 6}, id="local-over-global"
        ),
        pytest.param(
            pax((b"uid", b"5"), flag=b"g") + pax((b"uid", b"")) + block(), {"uid": 0}, id="local-deletes-global"
        ),
    ],
)
def test_headers_are_read(data: bytes, expected: dict[str, object]) -> None:
    entry = one(data)
    assert {key: getattr(entry, key) for key in expected} == expected


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (b"1.6", 1),
        (b"1.999999999999", 1),
        (b"0.5", 0),
        (b"-0.5", -1),
        (b"-1.5", -2),
        (b"-1.0", -1),
        (b"-1", -1),
        (b"-0", 0),
        (b"1700000000.", 1700000000),
        (b"9999999999", 9999999999),
    ],
)
def test_C19_fractions_of_seconds_are_cut_never_rounded(text: bytes, seconds: int) -> None:
    assert one(pax((b"mtime", text)) + block()).mtime == seconds


def test_C24_C25_xattrs_are_bytes_from_pax_records_sorted() -> None:
    capability = b"\x01\0\0\x02\0 \n=\0\0"
    entry = one(pax((b"SCHILY.xattr.user.z", b"1"), (b"SCHILY.xattr.security.capability", capability)) + block())
    assert entry.xattrs == (("security.capability", capability), ("user.z", b"1"))


def test_C24_xattrs_belong_to_one_entry_only() -> None:
    entries = read(pax((b"SCHILY.xattr.user.a", b"1")) + block(b"a") + block(b"b") + END)
    assert [entry.xattrs for entry, _ in entries] == [(("user.a", b"1"),), ()]


def test_C10_duplicates_are_both_yielded_in_order() -> None:
    assert [content for _, content in read(member(b"1") + member(b"2") + END)] == [b"1", b"2"]


def test_C18_names_of_owners_are_not_read() -> None:
    assert one(block(names=b"daemon")) == one(block())


BLOCK_SPARSE = pax((b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0"), (b"GNU.sparse.realsize", b"9"))
DEEP = b"/".join([b"d"] * 257)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        pytest.param(block(b"a/../b"), r"b'a/\.\./b'.*'\.\.' component", id="dot-dot"),
        pytest.param(block(b"..", b"5"), r"'\.\.' component", id="dot-dot-alone"),
        pytest.param(block(b"a/.."), r"'\.\.' component", id="dot-dot-at-the-end"),
        pytest.param(block(b"a", b"1", link=b"../../etc/shadow"), r"'\.\.' component", id="hardlink-dot-dot"),
        pytest.param(pax((b"path", b"../x")) + block(), r"'\.\.' component", id="pax-dot-dot"),
        pytest.param(gnu(b"L", b"x/../y") + block(), r"'\.\.' component", id="gnu-dot-dot"),
        pytest.param(block(b"", b"5"), "empty name", id="no-name"),
        pytest.param(block(b"."), "file in place of the root", id="root-as-file"),
        pytest.param(block(b"./", b"2", link=b"x"), "symlink in place of the root", id="root-as-symlink"),
        pytest.param(block(b"a", b"2"), "symlink to a target of 0 bytes", id="symlink-to-nothing"),
        pytest.param(block(b"a", b"1"), "hardlink to a target of 0 bytes", id="hardlink-to-nothing"),
        pytest.param(block(b"a", b"1", link=b"./"), "hard link to the root", id="hardlink-to-root"),
        pytest.param(pax((b"linkpath", b"a\0b")) + block(b"a", b"2"), "NUL in the PAX", id="symlink-NUL"),
        pytest.param(pax((b"path", b"a\0b")) + block(), "NUL in the PAX", id="pax-path-NUL"),
        pytest.param(gnu(b"L", b"a\0b") + block(), "GNU long name that is empty or holds a NUL", id="gnu-NUL"),
        pytest.param(gnu(b"L", b"") + block(), "GNU long name that is empty", id="gnu-empty-name"),
        pytest.param(block(b"a/"), "file whose name ends in a slash", id="file-with-slash"),
        pytest.param(block(b"a", b"S", magic=b"ustar  \0"), "b'a' is a sparse file", id="C23-gnu-sparse"),
        pytest.param(BLOCK_SPARSE + block(), "sparse file", id="C23-pax-sparse-1.0"),
        pytest.param(pax((b"GNU.sparse.size", b"9")) + block(), "sparse file", id="C23-pax-sparse-0.0"),
        pytest.param(pax((b"SCHILY.realsize", b"9")) + block(), "sparse file", id="C23-star-sparse"),
        pytest.param(block(b"a", b"V"), "unknown type b'V'", id="volume-label"),
        pytest.param(block(b"a", b"D"), "unknown type b'D'", id="dumpdir"),
        pytest.param(block(b"a", b"8"), "unknown type b'8'", id="reserved-type"),
        pytest.param(block(b"a", magic=b"ustar??"), "unknown magic: b.ustar", id="nothing-known"),
        pytest.param(block(b"a", magic=b"ustar  \0", prefix=b"p"), "GNU format and a ustar prefix", id="gnu-prefix"),
        pytest.param(block(b"a", magic=b"", prefix=b"p"), "v7 format and a ustar prefix", id="v7-prefix"),
        pytest.param(
            block(b"a", prefix=b"p" * 163 + b"tar\0"), "star format with a prefix", id="star-with-a-long-prefix"
        ),
        pytest.param(block(b"a", mode=b"0000648\0"), "not octal", id="digit-eight"),
        pytest.param(block(b"a", mode=b"644\0junk"), "neither octal", id="junk-behind-a-number"),
        pytest.param(block(b"a", mtime=b"-1"), "neither octal", id="minus-in-a-number"),
        pytest.param(block(b"a", mode=b"0o644"), "neither octal", id="python-number"),
        pytest.param(block(b"a", mode=b"6_4_4"), "neither octal", id="underscores"),
        pytest.param(block(b"a", size=0, uid=b"\xff" * 8), "number out of range: -1", id="negative-uid"),
        pytest.param(block(b"a", uid=B256[:3] + b"\1" + bytes(4)), "out of range: 4294967296", id="uid-33-bits"),
        pytest.param(block(b"a", mtime=b"\x80\x01" + bytes(10)), "time out of range", id="time-of-80-bits"),
        pytest.param(block(b"a", size=b"\xff" * 12), "size of -1 bytes", id="negative-size"),
        pytest.param(block(b"a", b"5", 5), "directory and claims 5 bytes", id="directory-with-content"),
        pytest.param(block(b"a", b"1", 5, link=b"b"), "hardlink and claims 5 bytes", id="hardlink-with-content"),
        pytest.param(block(b"a", b"2", 5, link=b"b"), "symlink and claims 5 bytes", id="symlink-with-content"),
        pytest.param(block(b"a/", b"\0", 5, magic=b""), "directory and claims", id="v7-directory-with-content"),
        pytest.param(pax((b"size", b"600")) + member(b"x" * 5), "two sizes, 5 .* 600 in PAX", id="smuggling"),
        pytest.param(pax((b"size", b"x")) + block(), "malformed number", id="pax-size-word"),
        pytest.param(pax((b"size", b"-1")) + block(), "malformed number", id="pax-size-negative"),
        pytest.param(pax((b"size", b"1" * 21)) + block(), "malformed number", id="pax-size-of-21-digits"),
        pytest.param(pax((b"size", b"9" * 20)) + block(), "layer_bytes", id="pax-size-huge"),
        pytest.param(pax((b"mtime", b"1e5")) + block(), "malformed number", id="pax-time-exponent"),
        pytest.param(pax((b"mtime", b"9" * 20)) + block(), "time out of range", id="pax-time-huge"),
        pytest.param(pax((b"ctime", b"now")) + block(), "malformed number", id="pax-unused-time"),
        pytest.param(pax((b"uid", b"4294967296")) + block(), "number out of range", id="pax-uid-33-bits"),
        pytest.param(pax((b"SCHILY.xattr.\xff", b"1")) + block(), "not UTF-8", id="xattr-name"),
        pytest.param(pax((b"SCHILY.xattr.", b"1")) + block(), "xattr without a name", id="xattr-no-name"),
        pytest.param(member(b"5 a=b", flag=b"x") + block(), "malformed PAX", id="pax-no-newline"),
        pytest.param(member(b"99 a=b\n", flag=b"x") + block(), "malformed PAX", id="pax-too-long"),
        pytest.param(member(b"1 a=b\n", flag=b"x") + block(), "malformed PAX", id="pax-length-of-itself"),
        pytest.param(member(b"0 a=b\n", flag=b"x") + block(), "malformed PAX", id="pax-length-zero"),
        pytest.param(member(b"-6 a=b\n", flag=b"x") + block(), "malformed PAX", id="pax-negative-length"),
        pytest.param(member(b"5 ab\n", flag=b"x") + block(), "malformed PAX", id="pax-no-equals"),
        pytest.param(member(b"5 =b\n", flag=b"x") + block(), "malformed PAX", id="pax-no-key"),
        pytest.param(member(b"6 a=b\n" + bytes(6), flag=b"x") + block(), "malformed PAX", id="pax-NUL-padding"),
        pytest.param(member(b"1" * 100_000, flag=b"x") + block(), "malformed PAX", id="pax-digits-only"),
        pytest.param(pax((b"a\0b", b"1")) + block(), "NUL in the PAX", id="pax-key-NUL"),
        pytest.param(pax((b"path", b"x"), flag=b"g") + block(), "b'path' in a global", id="global-path"),
        pytest.param(pax((b"size", b"5"), flag=b"g") + block(), "b'size' in a global", id="global-size"),
        pytest.param(pax((b"SCHILY.xattr.a", b"5"), flag=b"g") + block(), "in a global", id="global-xattr"),
        pytest.param(pax((b"uid", b"5")), "truncated", id="pax-then-nothing"),
        pytest.param(pax((b"uid", b"5")) + END, "no entry follows", id="pax-then-the-end"),
        pytest.param(gnu(b"L", b"x") + END, "no entry follows", id="gnu-then-the-end"),
        pytest.param(pax() + pax() + block(), "two extension headers", id="pax-twice"),
        pytest.param(gnu(b"L", b"x") + gnu(b"L", b"y") + block(), "two extension headers", id="gnu-twice"),
        pytest.param(pax() + pax(flag=b"g") + block(), "two extension headers", id="global-behind-local"),
        pytest.param(pax((b"path", b"x")) + gnu(b"L", b"y") + block(), "both a PAX and a GNU", id="pax-and-gnu"),
        pytest.param(pax((b"path", b"p" * 4097)) + block(), "path_bytes", id="path-too-long"),
        pytest.param(gnu(b"K", b"p" * 4097) + block(b"a", b"2"), "path_bytes", id="target-too-long"),
        pytest.param(pax((b"path", DEEP)) + block(), "path_depth", id="path-too-deep"),
        pytest.param(block(b"p", b"x", 2**20 + 1), "pax_bytes", id="pax-too-long-is-not-read"),
        pytest.param(block(b"p", b"L", 2**33 - 1), "pax_bytes", id="gnu-name-of-8-GiB"),
        pytest.param(block(b"p", b"x", b"\xff" * 12), "pax_bytes", id="pax-negative"),
    ],
)
def test_C23_and_hostile_headers_are_refused_with_layer_and_place(data: bytes, words: str) -> None:
    with pytest.raises(ArchiveError, match=f"^layer 7: .*(?:{words}).*header [0-9]+, byte [0-9]+ of") as caught:
        read(data if words == "truncated" else data + END)
    assert len(str(caught.value)) < 1500


@pytest.mark.parametrize("stored", [0, 5, 0o77777777777, 0o777777777777], ids=["0", "equal", "11-sevens", "12-sevens"])
def test_a_pax_size_may_replace_a_placeholder_or_repeat_the_size(stored: int) -> None:
    header = block(b"a", size=(b"%012o" if stored >= 8**11 else b"%011o\0") % stored)
    ((entry, content),) = read(pax((b"size", b"5")) + header + padded(b"12345") + END)
    assert (entry.size, content) == (5, b"12345")


def test_a_global_header_behind_entries_applies_to_later_ones_only() -> None:
    entries = read(block(b"a") + pax((b"gid", b"9"), flag=b"g") + block(b"b") + block(b"c") + END)
    assert [entry.gid for entry, _ in entries] == [0, 9, 9]


def test_checksums_of_signed_and_unsigned_bytes_are_accepted_and_others_are_not() -> None:
    blank = block(b"\xff\xfe", checksum=b" " * 8)
    for total in (sum(blank), sum(blank) - 512):
        for field in (b"%06o\0 " % total, b"%7o\0" % total, b"%o \0" % total):
            assert one(blank[:148] + field.ljust(8, b"\0") + blank[156:]).path == b"\xff\xfe"
    for total in (sum(blank) + 1, sum(blank) - 256, sum(blank) + 65521):
        with pytest.raises(ArchiveError, match="damaged"):
            one(blank[:148] + b"%06o\0 " % total + blank[156:])
    with pytest.raises(ArchiveError, match="wrong checksum"):
        read(block() + bytes([1]) + block()[1:] + END)
    with pytest.raises(ArchiveError, match="wrong checksum"):
        read(block() + block(b"b", checksum=b"") + END)


def test_what_is_no_tar_is_called_so() -> None:
    with pytest.raises(ArchiveError, match=r"not a tar archive.*xz|not a tar archive.*7zXZ"):
        read(b"\xfd7zXZ\0" + os.urandom(2000))


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(bytes(512), id="one-zero-block"),
        pytest.param(END, id="two-zero-blocks"),
        pytest.param(bytes(10240), id="padded-to-a-record"),
        pytest.param(bytes(1024 + 100), id="odd-padding"),
        pytest.param(bytes(2_000_000), id="much-padding"),
    ],
)
def test_these_are_ends(end: bytes) -> None:
    assert len(read(member(b"x") + end)) == 1
    assert read(end) == []


@pytest.mark.parametrize(
    ("data", "words"),
    [
        pytest.param(b"", "truncated: it ends after 0 bytes, before the zero block", id="nothing"),
        pytest.param(member(b"x"), "truncated: it ends after 1024 bytes, before the zero block", id="no-end"),
        pytest.param(block() + block()[:100], "ends after 612 bytes, in a header", id="half-a-header"),
        pytest.param(block(size=600) + b"x" * 599, "1111 bytes, in the content of entry b'a'", id="half-a-content"),
        pytest.param(block(size=6) + b"x" * 6, "518 bytes, in the content of entry b'a'", id="no-padding"),
        pytest.param(block(b"a", b"x", 20) + b"20 comm", "in a PAX or GNU header", id="half-a-pax-header"),
        pytest.param(block() + bytes(100), "in a header", id="half-a-zero-block"),
        pytest.param(block() + bytes(512) + block(), "trailing data.*byte 1024 ", id="entry-behind-one-zero-block"),
        pytest.param(block() + END + block(), "trailing data.*byte 1536 ", id="entry-behind-the-end"),
        pytest.param(block() + END + bytes(500_000) + b"x", "trailing data.*byte 501536 ", id="a-byte-far-behind"),
    ],
)
def test_other_ends_are_refused(data: bytes, words: str) -> None:
    with pytest.raises(ArchiveError, match=words):
        read(data)


def test_limits_of_entries_and_content_hold_exactly() -> None:
    assert len(read(block() * 3 + END, Limits(layer_entries=3))) == 3
    with pytest.raises(ArchiveError, match="layer_entries"):
        read(block() * 4 + END, Limits(layer_entries=3))
    with pytest.raises(ArchiveError, match="layer_entries"):
        read(pax(flag=b"g") * 4 + END, Limits(layer_entries=3))
    assert len(read(member(b"x" * 5) + END, Limits(layer_bytes=5))) == 1
    with pytest.raises(ArchiveError, match="layer_bytes"):
        read(member(b"x" * 6) + END, Limits(layer_bytes=5))


def test_content_that_is_not_read_is_skipped_and_half_read_content_too() -> None:
    contents = [os.urandom(size) for size in (0, 1, 511, 512, 513, 300_000, 1_000_000)]
    data = b"".join(member(content, b"f%d" % number) for number, content in enumerate(contents)) + END
    assert [entry.size for entry in TarReader(io.BytesIO(data), subject="x")] == [len(c) for c in contents]
    assert [content for _, content in read(data)] == contents
    reader = TarReader(io.BytesIO(data), subject="x")
    for entry, content in zip(reader, contents, strict=True):
        first = next(reader.content(), b"")
        assert content.startswith(first)
        assert bool(first) == bool(entry.size)
    assert list(reader) == []


def test_content_of_an_earlier_entry_is_a_bug_of_the_caller() -> None:
    reader = TarReader(io.BytesIO(member(b"1") + member(b"2") + END), subject="x")
    entries = iter(reader)
    next(entries)
    stale = reader.content()
    next(entries)
    with pytest.raises(InternalError):
        next(stale)
    last = reader.content()
    assert next(entries, None) is None
    with pytest.raises(InternalError):
        next(last)


def test_the_stream_is_read_to_its_end() -> None:
    data = member(b"x") + bytes(600_000)
    reader = TarReader(VerifiedReader(io.BytesIO(data), Digest.of(data), len(data), subject="x"), subject="x")
    assert len(list(reader)) == 1
    wrong = VerifiedReader(io.BytesIO(data), Digest.of(b""), len(data), subject="blob")
    with pytest.raises(Exception, match="recorded digest"):
        list(TarReader(wrong, subject="x"))


def test_entries_are_ordinary_frozen_values() -> None:
    entry = one(block())
    made = TarEntry(path=b"a", type=EntryType.FILE, mode=0o644, uid=0, gid=0, size=0, mtime=0)
    assert entry == made
    assert hash(entry) == hash(made)
    assert type(entry) is TarEntry
    assert dataclasses.replace(entry, uid=1).uid == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        entry.uid = 1  # type: ignore[misc]


def gnu_tar(tmp_path: Path, *options: str) -> bytes:
    command = ["tar", "-C", str(tmp_path / "tree"), "--sort=name", *options, "-cf", "-", "."]
    return subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout


@pytest.mark.parametrize("form", ["v7", "ustar", "gnu", "oldgnu", "posix"])
def test_C22_archives_of_gnu_tar_are_read_like_the_tree_they_were_made_from(tmp_path: Path, form: str) -> None:
    root = tmp_path / "tree"
    short = form in {"v7", "ustar"}
    folder = root / ("d" * (40 if short else 120)) / ("e" * (20 if short else 120))
    folder.mkdir(parents=True)
    (folder / "file-\udcff").write_bytes(b"content" * 1000)
    (folder / "empty").touch()
    os.link(folder / "empty", root / "zz-hard")
    (root / "link").symlink_to("t" * (60 if short else 150))
    (folder / "empty").chmod(0o4711)
    for path in (folder / "empty", folder / "file-\udcff", folder, folder.parent, root):
        os.utime(path, ns=(0, 1_600_000_001_999_999_999))
    if form != "v7":
        os.mkfifo(root / "pipe")
    entries = {entry.path: (entry, content) for entry, content in read(gnu_tar(tmp_path, f"--format={form}"))}
    base = os.fsencode(folder.relative_to(root))
    found = {
        os.fsencode(os.path.relpath(os.path.join(top, name), root))
        for top, folders, files in os.walk(root)
        for name in folders + files
    } | {b""}
    assert set(entries) == found
    file, content = entries[base + b"/file-\xff"]
    assert content == b"content" * 1000
    assert (file.uid, file.gid, file.mtime) == (os.getuid(), os.getgid(), 1_600_000_001)
    assert entries[base + b"/empty"][0].mode == 0o4711
    assert entries[b"zz-hard"][0] == dataclasses.replace(
        entries[base + b"/empty"][0], path=b"zz-hard", type=EntryType.HARDLINK, link=base + b"/empty"
    )
    assert entries[b"link"][0].link == b"t" * (60 if short else 150)
    assert entries[b""][0].type is EntryType.DIRECTORY


@pytest.mark.parametrize("options", [["--format=gnu"], ["--format=posix"], ["--format=posix", "--sparse-version=0.1"]])
def test_C23_sparse_files_of_gnu_tar_are_refused(tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "tree").mkdir()
    with (tmp_path / "tree" / "holes").open("wb") as file:
        file.truncate(1 << 20)
    with pytest.raises(ArchiveError, match=r"holes.*sparse|sparse.*holes"):
        read(gnu_tar(tmp_path, "--sparse", *options))


def test_C26_a_tar_in_two_gzip_members_is_one_archive() -> None:
    import gzip

    data = member(os.urandom(5000), b"one") + member(os.urandom(5000), b"two") + END
    packed = gzip.compress(data[:3000]) + gzip.compress(data[3000:])
    reader = TarReader(decompress(io.BytesIO(packed), subject="x"), subject="x")
    assert [entry.path for entry in reader] == [b"one", b"two"]


def test_large_numbers_of_tarfile_in_gnu_format_are_base_256() -> None:
    info = tarfile.TarInfo("a")
    info.uid, info.gid, info.mtime = 3_000_000_000, 2_097_152, -5
    entry = one(info.tobuf(tarfile.GNU_FORMAT))
    assert (entry.uid, entry.gid, entry.mtime) == (3_000_000_000, 2_097_152, -5)
