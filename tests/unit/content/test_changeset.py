from __future__ import annotations

import contextlib
import gzip
import hashlib
import importlib.util
import io
import os
import random
import subprocess
import sys
import tarfile
import tracemalloc
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
from imgbuild.config import DEFAULT_LIMITS, MIB
from imgbuild.content.changeset import BytesContent, Change, ChangeType, LayerResult, write_layer
from imgbuild.content.storedgzip import BLOCK_BYTES, StoredGzipWriter
from imgbuild.content.ustar import Header
from imgbuild.digest import Digest, VerifiedReader
from imgbuild.errors import DigestMismatchError, ImgbuildError, InternalError, StepError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from types import ModuleType

    from imgbuild.digest import Readable

GOLDEN = Path(__file__).parents[2] / "golden" / "changeset"
EPOCH = 1_700_000_000
MAX_OCTAL_11 = 0o77777777777


def load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("regenerate_changeset", GOLDEN / "regenerate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def file(path: bytes, data: bytes = b"", **fields: Any) -> Change:
    return Change(path=path, type=ChangeType.FILE, content=BytesContent(data=data), **fields)


def directory(path: bytes, **fields: Any) -> Change:
    return Change(path=path, type=ChangeType.DIRECTORY, **{"mode": 0o755, **fields})


def symlink(path: bytes, link: bytes) -> Change:
    return Change(path=path, type=ChangeType.SYMLINK, mode=0o777, link=link)


def hardlink(path: bytes, link: bytes, **fields: Any) -> Change:
    return Change(path=path, type=ChangeType.HARDLINK, link=link, **fields)


def whiteout(path: bytes) -> Change:
    return Change(path=path, type=ChangeType.WHITEOUT)


def opaque(path: bytes) -> Change:
    return Change(path=path, type=ChangeType.OPAQUE)


def tar_of(*changes: Change) -> bytes:
    pieces: list[bytes] = []
    write_layer(changes, pieces.append, compression="none", epoch=EPOCH)
    return b"".join(pieces)


def members(tar: bytes) -> list[tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(tar), mode="r:", encoding="utf-8", errors="surrogateescape") as archive:
        return archive.getmembers()


def names(tar: bytes) -> list[bytes]:
    return [member.name.encode("utf-8", "surrogateescape") for member in members(tar)]


def refused(*changes: Change) -> ImgbuildError:
    """The refusal, after checking that it came before the first byte."""
    pieces: list[bytes] = []
    with pytest.raises(ImgbuildError) as caught:
        write_layer(changes, pieces.append, epoch=EPOCH)
    assert pieces == []
    return caught.value


def stored(data: bytes, piece: int = 10_000_000) -> tuple[bytes, list[bytes]]:
    pieces: list[bytes] = []
    writer = StoredGzipWriter(pieces.append)
    for start in range(0, len(data), piece):
        writer.write(data[start : start + piece])
    writer.finish()
    return b"".join(pieces), pieces


@dataclass(frozen=True)
class WrongSize:
    data: bytes
    size: int

    def open(self) -> AbstractContextManager[Readable]:
        return contextlib.nullcontext(io.BytesIO(self.data))


class Endless:
    """A stream of `size` bytes that never holds more than one chunk."""

    def __init__(self, size: int) -> None:
        self.size = size

    def open(self) -> AbstractContextManager[Readable]:
        return contextlib.nullcontext(_EndlessReader(self.size))


class _EndlessReader:
    def __init__(self, left: int) -> None:
        self.left = left

    def read(self, size: int, /) -> bytes:
        size = min(size, self.left)
        self.left -= size
        return bytes(size)


# --- Golden bytes ---------------------------------------------------------------------------------------------------


def test_golden_layer_never_changes() -> None:
    # The digests stand here as well, so that regenerating the files cannot hide a change.
    digests = {
        "layer.tar": "b6a4e97d425538a8f5a30dfa3ef1ce69dbb64e05d368201cbe2b5a4c52518b91",
        "layer.tar.gz": "8c631a9d44a89987eff52210b45bebe46fc29a819546f404d6a09f86652b8353",
        "huge-header.tar": "9b3d34ce94912caba4aef705c3432fcde7dac567f393a3c53af7df3ecc0a5807",
    }
    made = load_generator().files()
    assert made.keys() == digests.keys()
    for name, data in made.items():
        assert hashlib.sha256(data).hexdigest() == digests[name], name
        assert (GOLDEN / name).read_bytes() == data, name


def test_golden_layer_is_whole_for_gnu_tar() -> None:
    environment = {"PATH": os.environ["PATH"], "TZ": "UTC", "LC_ALL": "C"}
    command = ["tar", "--numeric-owner", "--full-time", "-tvf", str(GOLDEN / "layer.tar")]
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    # GNU tar ignores hdrcharset and takes the bytes as they are; there is no other complaint.
    assert set(result.stderr.splitlines()) == {"tar: Ignoring unknown extended header keyword 'hdrcharset'"}
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[:6] == [
        "-rw------- 0/0 0 2023-11-14 22:13:20 .wh.removed",
        "drwxr-xr-x 0/0 0 2020-09-13 12:26:40 etc/",
        "-rw-r--r-- 0/0 31 1970-01-01 00:00:00 etc-default",
        "-rw------- 0/0 0 2023-11-14 22:13:20 etc/.wh..wh..opq",
        "-rw------- 0/0 0 2023-11-14 22:13:20 etc/.wh.gone",
        "-rw------- 0/0 0 2023-11-14 22:13:20 etc/.wh.zzz",
    ]
    assert "-rwsr-sr-x 0/0 512 2023-11-14 22:13:20 etc/block" in lines
    assert "hrwxr-xr-x 0/0 0 2023-11-14 22:13:20 lib/same link to lib/libnccl.so.2" in lines
    assert "-rw-r--r-- 2097152/4294967294 0 1970-01-01 00:00:00 owner-pax" in lines
    assert "-rw-r--r-- 0/0 0 2242-03-16 12:56:32 time-pax" in lines
    assert "-rw-r--r-- 0/0 8 1970-01-01 00:00:00 \\344.txt" in lines
    assert len(lines) == len(load_generator().changes())


def test_golden_layer_reads_back_field_by_field() -> None:
    by_name = {c.path: c for c in load_generator().changes() if c.type.value in {"file", "directory", "symlink"}}
    tar = (GOLDEN / "layer.tar").read_bytes()
    seen = 0
    with tarfile.open(fileobj=io.BytesIO(tar), encoding="utf-8", errors="surrogateescape") as archive:
        for member in archive:
            change = by_name.get(member.name.encode("utf-8", "surrogateescape"))
            if change is None:
                continue
            seen += 1
            assert (member.mode, member.uid, member.gid) == (change.mode & 0o7777, change.uid, change.gid)
            assert member.mtime == change.mtime
            assert member.linkname.encode("utf-8", "surrogateescape") == change.link
            if change.content is not None:
                stream = archive.extractfile(member)
                assert stream is not None
                with change.content.open() as content:
                    assert stream.read() == content.read(change.content.size + 1)
    assert seen == len(by_name)


def test_the_same_tree_by_gnu_tar_gives_the_same_bytes(tmp_path: Path) -> None:
    # One block as blocking factor, because format 1 has no padding; numeric owners make uname and gname empty.
    deep = b"usr/" + b"p" * 90 + b"/" + b"q" * 50
    changes = [
        directory(b"usr", mtime=1),
        directory(deep.rpartition(b"/")[0]),
        directory(deep, mode=0o1777),
        file(deep + b"/" + b"n" * 100, b"x" * 513, mode=0o4755, mtime=1_234_567_890),
        file(b"usr/empty", mode=0o600),
        symlink(b"usr/link", b"../" + b"t" * 97),
        directory(deep + b"/" + b"d" * 99),
    ]
    root = os.fsencode(tmp_path)
    for change in changes:
        path = root + b"/" + change.path
        if change.type is ChangeType.DIRECTORY:
            os.mkdir(path)
        elif change.type is ChangeType.SYMLINK:
            os.symlink(change.link, path)
        elif isinstance(change.content, BytesContent):
            Path(os.fsdecode(path)).write_bytes(change.content.data)
    for change in reversed(changes):
        path = root + b"/" + change.path
        if change.type is not ChangeType.SYMLINK:
            os.chmod(path, change.mode)
        os.utime(path, (change.mtime, change.mtime), follow_symlinks=False)
    command = ["tar", "--format=ustar", "--numeric-owner", "--owner=0", "--group=0", "-b1", "--no-recursion"]
    listing = b"\0".join(sorted(change.path for change in changes))
    theirs = subprocess.run(
        [*command, "-C", str(tmp_path), "--null", "-T", "-", "-cf", "-"], input=listing, capture_output=True, check=True
    )
    assert theirs.stderr == b""
    assert tar_of(*changes) == theirs.stdout


# --- Order ----------------------------------------------------------------------------------------------------------


def test_entries_are_sorted_by_bytes_of_the_whole_path() -> None:
    tar = tar_of(file(b"a/b"), file(b"a-b"), directory(b"a"), file(b"B"), file(b"a0"), file(b"\xff"), file(b"a/B"))
    assert names(tar) == [b"B", b"a", b"a-b", b"a/B", b"a/b", b"a0", b"\xff"]


def test_markers_come_before_all_else_in_their_directory_and_after_it() -> None:
    tar = tar_of(
        file(b"d/\x01first"),
        file(b"d/.a"),
        directory(b"d/e"),
        whiteout(b"d/e/x"),
        whiteout(b"d/z"),
        whiteout(b"d/\x01"),
        opaque(b"d"),
        directory(b"d"),
        file(b"\x01"),
        whiteout(b"zz"),
    )
    assert names(tar) == [
        b".wh.zz",
        b"\x01",
        b"d",
        b"d/.wh..wh..opq",
        b"d/.wh.\x01",
        b"d/.wh.z",
        b"d/\x01first",
        b"d/.a",
        b"d/e",
        b"d/e/.wh.x",
    ]


def test_C10_order_of_changes_does_not_matter() -> None:
    changes = load_generator().changes()
    expected = tar_of(*changes)
    for seed in range(5):
        random.Random(seed).shuffle(changes)
        assert tar_of(*changes) == expected


def test_root_is_never_emitted() -> None:
    assert names(tar_of(file(b"f"), directory(b"d"))) == [b"d", b"f"]
    assert tar_of() == bytes(1024)


# --- Headers --------------------------------------------------------------------------------------------------------


def test_C17_C18_owner_names_are_empty_and_ids_are_the_ones_given() -> None:
    (member,) = members(tar := tar_of(file(b"f", uid=12, gid=34)))
    assert (member.uid, member.gid) == (12, 34)
    assert tar[265:329] == bytes(64)
    assert tar[108:124] == b"0000014\x000000042\0"


def test_header_is_plain_ustar() -> None:
    tar = tar_of(file(b"f", b"data", mode=0o100755))
    assert tar[:101] == b"f" + bytes(99) + b"0"
    assert tar[100:108] == b"0000755\0"
    assert tar[257:265] == b"ustar\x0000"
    assert tar[329:345] == b"0000000\0" * 2
    assert tar[345:512] == bytes(167)


def test_C19_mtime_is_the_whole_second_given_and_never_touched() -> None:
    tar = tar_of(file(b"f", mtime=1), directory(b"d", mtime=MAX_OCTAL_11))
    assert [member.mtime for member in members(tar)] == [MAX_OCTAL_11, 1]
    assert b"mtime" not in tar


def test_markers_are_empty_private_files_at_epoch_whatever_the_change_says() -> None:
    marker = Change(path=b"d/gone", type=ChangeType.WHITEOUT, mode=0o4777, uid=7, gid=-1, mtime=-5)
    tar = tar_of(directory(b"d"), marker, Change(path=b"d", type=ChangeType.OPAQUE, mode=0o777, mtime=3))
    for member in members(tar)[1:]:
        assert member.isreg()
        assert (member.size, member.mode, member.uid, member.gid, member.mtime) == (0, 0o600, 0, 0, EPOCH)


def test_two_zero_blocks_end_the_tar_and_nothing_else() -> None:
    tar = tar_of(file(b"f", b"x"))
    assert len(tar) == 512 + 512 + 1024
    assert tar[512:] == b"x" + bytes(511 + 1024)


@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 262_144, 262_145])
def test_content_is_padded_to_a_block(size: int) -> None:
    tar = tar_of(file(b"f", b"\xff" * size))
    assert tar[512:-1024].rstrip(b"\0") == b"\xff" * size
    assert len(tar) % 512 == 0
    assert len(tar) - 1536 - size < 512


@pytest.mark.parametrize(
    ("path", "prefix", "name"),
    [
        (b"n" * 100, b"", b"n" * 100),
        (b"p/" + b"n" * 99, b"p", b"n" * 99),
        (b"a/b/" + b"c" * 97, b"a/b", b"c" * 97),
        (b"p" * 155 + b"/" + b"n" * 100, b"p" * 155, b"n" * 100),
        (b"a/" * 50 + b"n", b"a/" * 49 + b"a", b"n"),
        (b"a/" + b"p" * 153 + b"/" + b"b/c", b"a/" + b"p" * 153, b"b/c"),
        (b"p" * 100 + b"/" + b"q" * 55 + b"/" + b"n" * 40, b"p" * 100, b"q" * 55 + b"/" + b"n" * 40),
    ],
)
def test_C22_long_path_is_split_at_the_longest_prefix_that_fits(path: bytes, prefix: bytes, name: bytes) -> None:
    parts = path.split(b"/")
    parents = [directory(b"/".join(parts[:depth])) for depth in range(1, len(parts))]
    tar = tar_of(*parents, file(path))
    header = tar[-1536:-1024]
    assert header[345:500].rstrip(b"\0") == prefix
    assert header[:100].rstrip(b"\0") == name
    assert names(tar)[-1] == path


@pytest.mark.parametrize(
    "path", [b"n" * 101, b"p" * 156 + b"/n", b"p" * 155 + b"/" + b"n" * 101, "ä".encode(), b"\xff"]
)
def test_C22_path_that_ustar_cannot_say_goes_to_pax(path: bytes) -> None:
    parent = path.rpartition(b"/")[0]
    tar = tar_of(*([directory(parent)] if parent else []), file(path, b"x"))
    assert names(tar)[-1] == path
    header = tar[-2048:-1536]
    assert header[:100].rstrip(b"\0") == b"pax-only/" + hashlib.sha256(path).hexdigest().encode()
    assert header[345:500] == bytes(155)


def test_directory_that_only_its_slash_makes_too_long_goes_to_pax() -> None:
    tar = tar_of(directory(b"d" * 100), directory(b"e" * 99))
    first, second = members(tar)
    assert first.name == "d" * 100
    assert first.isdir()
    assert first.pax_headers == {"path": "d" * 100 + "/"}
    assert second.name == "e" * 99
    assert second.pax_headers == {}


def test_C20_pax_header_is_constant() -> None:
    tar = tar_of(file(b"n" * 101, uid=5, gid=6, mtime=7, mode=0o700))
    header = Header(name=b"././@PaxHeader", typeflag=b"x", mode=0o644, uid=0, gid=0, mtime=0, size=111)
    assert tar[:512] == header.encode()
    assert tar[512:1024] == b"111 path=" + b"n" * 101 + b"\n" + bytes(512 - 111)


def test_C21_pax_holds_only_what_ustar_cannot_say() -> None:
    tar = tar_of(
        file(b"a", uid=2_097_151, gid=2_097_151, mtime=MAX_OCTAL_11),
        file(b"b", uid=2_097_152),
        file(b"c", gid=2_097_152),
        file(b"d", mtime=MAX_OCTAL_11 + 1),
        file(b"e", xattrs=(("user.a", b"1"),)),
        symlink(b"f", b"t" * 100),
        symlink(b"g", b"t" * 101),
    )
    assert [member.pax_headers for member in members(tar)] == [
        {},
        {"uid": "2097152"},
        {"gid": "2097152"},
        {"mtime": "8589934592"},
        {"SCHILY.xattr.user.a": "1"},
        {},
        {"linkpath": "t" * 101},
    ]
    assert b"atime" not in tar
    assert b"ctime" not in tar


def test_numbers_in_pax_leave_zeros_in_ustar() -> None:
    tar = tar_of(file(b"f", uid=2_097_152, gid=4_294_967_294, mtime=MAX_OCTAL_11 + 1))
    header = tar[1024:1536]
    assert header[108:124] == b"0000000\0" * 2
    assert header[136:148] == b"00000000000\0"


def test_size_of_8_gib_goes_to_pax_and_one_byte_less_does_not() -> None:
    generator = load_generator()
    with tarfile.open(fileobj=io.BytesIO(generator.huge_header())) as archive:
        huge = archive.next()
    assert huge is not None
    assert huge.size == 8 * 1024**3
    pieces: list[bytes] = []
    change = Change(path=b"f", type=ChangeType.FILE, content=generator.HugeContent(size=8 * 1024**3 - 1))
    with pytest.raises(DigestMismatchError):
        write_layer([change], pieces.append, compression="none", epoch=EPOCH)
    assert pieces[0][124:136] == b"77777777777\0"
    assert len(pieces[0]) == 512


def test_gnu_tar_finds_what_follows_a_file_of_8_gib(tmp_path: Path) -> None:
    path = tmp_path / "huge.tar"
    with path.open("wb") as stream:
        stream.write(load_generator().huge_header())
        stream.seek(8 * 1024**3, io.SEEK_CUR)
        stream.write(tar_of(file(b"next")))
    listing = subprocess.run(["tar", "-tf", str(path)], capture_output=True, check=True)
    assert (listing.stdout, listing.stderr) == (b"huge\nnext\n", b"")


def test_name_that_is_not_utf8_is_written_as_its_bytes_and_declared_binary() -> None:
    tar = tar_of(symlink(b"\xff", "ä".encode()))
    assert tar[512:1024].rstrip(b"\0") == b"21 hdrcharset=BINARY\n15 linkpath=\xc3\xa4\n9 path=\xff\n"


def test_C24_xattr_bytes_survive_and_are_sorted_by_key() -> None:
    value = bytes(range(256))
    changes = [file(b"f", xattrs=(("user.b", value), ("security.capability", b"\n")))]
    tar = tar_of(*changes)
    records = b"38 SCHILY.xattr.security.capability=\n\n"
    assert tar[512:].startswith(records + b"281 SCHILY.xattr.user.b=" + value + b"\n")
    (member,) = members(tar)
    assert set(member.pax_headers) == {"SCHILY.xattr.security.capability", "SCHILY.xattr.user.b"}
    reordered = replace(changes[0], xattrs=tuple(reversed(changes[0].xattrs)))
    assert tar_of(reordered) == tar


@pytest.mark.parametrize("length", [*range(80, 100), *range(975, 995)])
def test_pax_record_length_counts_its_own_digits(length: int) -> None:
    (member,) = members(tar := tar_of(file(b"f", xattrs=(("a", b"v" * length),))))
    assert member.pax_headers == {"SCHILY.xattr.a": "v" * length}
    record = tar[512:].partition(b"\n")[0] + b"\n"
    assert int(record.split(b" ")[0]) == len(record)


# --- Refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ([file(b"a/b")], "'a'"),
        ([directory(b"a"), file(b"a/b/c")], "'a/b'"),
        ([whiteout(b"a/b")], "'a'"),
        ([opaque(b"a")], "'a'"),
        ([directory(b"a/b"), opaque(b"a/b")], "'a'"),
    ],
)
def test_C09_missing_parent_is_refused_by_name(changes: list[Change], missing: str) -> None:
    error = refused(*changes)
    assert isinstance(error, InternalError)
    assert error.expected == f"an entry {missing}"


@pytest.mark.parametrize(
    "parent", [file(b"a"), symlink(b"a", b"b"), whiteout(b"a"), hardlink(b"a", b"0")], ids=lambda c: c.type.value
)
@pytest.mark.parametrize("child", [file(b"a/b"), whiteout(b"a/b"), opaque(b"a")], ids=lambda c: c.type.value)
def test_C07_C09_nothing_goes_below_what_is_not_a_directory(parent: Change, child: Change) -> None:
    error = refused(file(b"0"), parent, child)
    assert isinstance(error, InternalError)
    assert "not a directory" in error.problem


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (file(b"f"), file(b"f")),
        (file(b"f"), directory(b"f")),
        (file(b"f"), whiteout(b"f")),
        (directory(b"f"), whiteout(b"f")),
        (whiteout(b"f"), whiteout(b"f")),
    ],
)
def test_C10_same_path_twice_is_refused(first: Change, second: Change) -> None:
    for pair in ((first, second), (second, first)):
        error = refused(*pair)
        assert isinstance(error, InternalError)
        assert error.problem == "occurs twice in one layer"
    assert "occurs twice" in refused(first, first).problem


def test_C10_same_opaque_marker_twice_is_refused() -> None:
    assert "occurs twice" in refused(directory(b"d"), opaque(b"d"), opaque(b"d")).problem


@pytest.mark.parametrize("kind", list(ChangeType))
@pytest.mark.parametrize(
    "path", [b"", b"/", b"/a", b"a/", b"a//b", b".", b"./a", b"..", b"a/../b", b"../a", b"a\0b", b"a/..", b"\0"]
)
def test_path_that_is_not_normalised_is_refused(kind: ChangeType, path: bytes) -> None:
    content = BytesContent(data=b"") if kind is ChangeType.FILE else None
    error = refused(directory(b"a"), Change(path=path, type=kind, link=b"x", content=content))
    assert isinstance(error, StepError)
    assert error.problem == "path is not normalised"


@pytest.mark.parametrize("path", [b".wh.", b".wh.a", b".wh..wh..opq", b"d/.wh.a", b".wh.d/a"])
@pytest.mark.parametrize("make", [file, directory, whiteout, opaque], ids=lambda make: make.__name__)
def test_C02_reserved_name_is_refused(make: Callable[[bytes], Change], path: bytes) -> None:
    error = refused(directory(b"d"), make(path))
    assert isinstance(error, StepError)
    assert "reserved" in error.problem


def test_C02_whiteout_cannot_be_taken_for_an_opaque_marker() -> None:
    # `.wh.` + `.wh..opq` is the opaque marker's name.
    assert "reserved" in refused(whiteout(b".wh..opq")).problem
    assert names(tar_of(whiteout(b".wh"), file(b"a.wh.b"))) == [b".wh..wh", b"a.wh.b"]


def test_path_limits() -> None:
    assert names(tar_of(file(b"n" * DEFAULT_LIMITS.path_bytes)))[0] == b"n" * DEFAULT_LIMITS.path_bytes
    assert "too long" in refused(file(b"n" * (DEFAULT_LIMITS.path_bytes + 1))).problem
    assert "too deep" in refused(file(b"/".join([b"a"] * (DEFAULT_LIMITS.path_depth + 1)))).problem


@pytest.mark.parametrize(
    ("target", "link"),
    [
        (None, hardlink(b"b", b"a")),
        (directory(b"a"), hardlink(b"b", b"a")),
        (symlink(b"a", b"c"), hardlink(b"b", b"a")),
        (whiteout(b"a"), hardlink(b"b", b"a")),
        (file(b"a"), hardlink(b"b", b"")),
        (file(b"a"), hardlink(b"b", b"/a")),
        (file(b"a"), hardlink(b"b", b"./a")),
        (file(b"c"), hardlink(b"b", b"c")),
        (file(b"a"), hardlink(b"b", b"b")),
        (file(b"a", mode=0o600), hardlink(b"b", b"a")),
        (file(b"a"), hardlink(b"b", b"a", uid=1)),
        (file(b"a"), hardlink(b"b", b"a", gid=1)),
        (file(b"a"), hardlink(b"b", b"a", mtime=1)),
        (file(b"a", xattrs=(("x", b"1"),)), hardlink(b"b", b"a", xattrs=(("x", b"1"),))),
    ],
)
def test_C06_hard_link_must_name_an_earlier_file_of_the_layer_and_agree_with_it(
    target: Change | None, link: Change
) -> None:
    error = refused(*([] if target is None else [target]), link)
    assert isinstance(error, InternalError)
    assert error.subject == "hard link 'b'"


def test_C06_hard_link_to_a_hard_link_is_refused() -> None:
    assert refused(file(b"a"), hardlink(b"b", b"a"), hardlink(b"c", b"b")).subject == "hard link 'c'"


def test_C06_hard_link_names_its_file_whole() -> None:
    tar = tar_of(file(b"a", b"xyz", mode=0o755), hardlink(b"b", b"a", mode=0o100755))
    link = members(tar)[1]
    assert (link.type, link.linkname, link.size, link.mode) == (tarfile.LNKTYPE, "a", 0, 0o755)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (file(b"f", mtime=-1), "mtime is out of range"),
        (file(b"f", mtime=2**63), "mtime is out of range"),
        (file(b"f", uid=-1), "uid is out of range"),
        (file(b"f", gid=2**32 - 1), "gid is out of range"),
        (Change(path=b"f", type=ChangeType.FILE, content=WrongSize(b"", -1)), "size is out of range"),
        (symlink(b"f", b""), "symlink target is empty or too long"),
        (symlink(b"f", b"t" * (DEFAULT_LIMITS.path_bytes + 1)), "symlink target is empty or too long"),
        (symlink(b"f", b"a\0b"), "link target holds a NUL byte"),
        (file(b"f", xattrs=(("", b"1"),)), "a PAX header cannot name this extended attribute"),
        (file(b"f", xattrs=(("a=b", b"1"),)), "a PAX header cannot name this extended attribute"),
        (file(b"f", xattrs=(("a\0", b"1"),)), "a PAX header cannot name this extended attribute"),
        (file(b"f", xattrs=(("a\udcff", b"1"),)), "a PAX header cannot name this extended attribute"),
        (file(b"f", xattrs=(("a", b""),)), "a PAX header cannot hold an empty extended attribute"),
        (file(b"f", xattrs=(("a", b"1"), ("a", b"1"))), "an extended attribute occurs twice"),
        (file(b"f", xattrs=(("a", bytes(DEFAULT_LIMITS.pax_bytes)),)), "its PAX header is too big for readers"),
    ],
)
def test_value_that_a_layer_cannot_hold_is_a_step_error(change: Change, problem: str) -> None:
    error = refused(change)
    assert isinstance(error, StepError)
    assert error.problem == problem
    assert error.subject == "'f'"


@pytest.mark.parametrize(
    "change",
    [
        Change(path=b"f", type=ChangeType.FILE),
        Change(path=b"f", type=ChangeType.DIRECTORY, content=BytesContent(data=b"")),
        Change(path=b"f", type=ChangeType.SYMLINK, link=b"a", content=BytesContent(data=b"")),
        Change(path=b"f", type=ChangeType.WHITEOUT, content=BytesContent(data=b"")),
        Change(path=b"f", type=ChangeType.WHITEOUT, link=b"a"),
        Change(path=b"f", type=ChangeType.WHITEOUT, xattrs=(("a", b""),)),
        file(b"f", link=b"a"),
        directory(b"f", link=b"a"),
    ],
)
def test_change_that_contradicts_its_type_is_an_internal_error(change: Change) -> None:
    assert isinstance(refused(change), InternalError)


def test_negative_epoch_is_refused() -> None:
    with pytest.raises(StepError, match="epoch"):
        write_layer([], lambda _: None, epoch=-1)


def test_unknown_compression_is_refused() -> None:
    with pytest.raises(InternalError, match="zstd"):
        write_layer([], lambda _: None, compression="zstd", epoch=0)  # type: ignore[arg-type]


def test_message_names_a_hostile_path_without_control_characters() -> None:
    assert "\x1b" not in str(refused(file(b"\x1b[2J\xff/..")))


@pytest.mark.parametrize(("data", "size"), [(b"abc", 4), (b"", 1), (b"abc", 2), (b"a", 0), (b"x" * 600_000, 300_000)])
@pytest.mark.parametrize("compression", ["none", "gzip-stored"])
def test_content_of_another_size_gives_nothing_valid(
    data: bytes, size: int, compression: Literal["gzip-stored", "none"]
) -> None:
    pieces: list[bytes] = []
    change = Change(path=b"f", type=ChangeType.FILE, content=WrongSize(data, size))
    with pytest.raises(DigestMismatchError, match=f"expected {size} bytes"):
        write_layer([change], pieces.append, compression=compression, epoch=EPOCH)
    output = b"".join(pieces)
    if compression == "none":
        assert len(output) <= 512 + size
    else:
        with pytest.raises(EOFError):
            gzip.decompress(output or b"\x1f\x8b\x08")


def test_content_is_read_to_its_end_so_that_its_digest_is_checked() -> None:
    class Checked:
        size = 3

        def open(self) -> AbstractContextManager[Readable]:
            stream = VerifiedReader(io.BytesIO(b"abd"), Digest.of(b"abc"), 3, subject="f")
            return contextlib.nullcontext(stream)

    with pytest.raises(DigestMismatchError, match="recorded digest"):
        write_layer([Change(path=b"f", type=ChangeType.FILE, content=Checked())], lambda _: None, epoch=EPOCH)


# --- Stored gzip and the result ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("blocks", [0, 1, 2, 15, 16, 17, 32, 33])
@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_C31_stored_gzip_has_exactly_the_blocks_of_the_format(blocks: int, extra: int) -> None:
    length = max(blocks * BLOCK_BYTES + extra, 0)
    data = random.Random(length).randbytes(length)
    output, _ = stored(data)
    expected = bytearray.fromhex("1f8b08000000000000ff")
    starts = range(0, length, BLOCK_BYTES) or [0]
    for start in starts:
        block = data[start : start + BLOCK_BYTES]
        expected.append(int(start == starts[-1]))
        expected += len(block).to_bytes(2, "little") + (65_535 - len(block)).to_bytes(2, "little") + block
    expected += zlib.crc32(data).to_bytes(4, "little") + length.to_bytes(4, "little")
    assert output == bytes(expected)
    assert zlib.decompress(output, 31) == data


@pytest.mark.parametrize("piece", [1_000, 65_535, 65_536, 2_000_000])
def test_C31_pieces_do_not_change_the_bytes(piece: int) -> None:
    data = random.Random(1).randbytes(3_000_000)
    output, pieces = stored(data, piece)
    assert output == stored(data)[0]
    assert max(map(len, pieces)) <= MIB + 100


def test_C31_gzip_and_gunzip_agree(tmp_path: Path) -> None:
    pieces: list[bytes] = []
    result = write_layer([file(b"f", b"ab" * 500_000)], pieces.append, epoch=EPOCH)
    path = tmp_path / "layer.tar.gz"
    path.write_bytes(b"".join(pieces))
    tested = subprocess.run(["gzip", "-tv", str(path)], capture_output=True, check=True)
    assert b"OK" in tested.stderr
    tar = subprocess.run(["gunzip", "-c", str(path)], capture_output=True, check=True).stdout
    assert Digest.of(tar) == result.diff_id


@pytest.mark.parametrize("changes", [[], [file(b"f", b"x" * 200_000), symlink(b"g", b"f")]], ids=["empty", "filled"])
def test_C31_result_names_the_tar_and_the_bytes_written(changes: list[Change]) -> None:
    pieces: list[bytes] = []
    result = write_layer(changes, pieces.append, epoch=EPOCH)
    output = b"".join(pieces)
    tar = zlib.decompress(output, 31)
    assert result == LayerResult(
        diff_id=Digest.of(tar), digest=Digest.of(output), size=len(output), uncompressed_size=len(tar)
    )
    assert tar == tar_of(*changes)
    bare = write_layer(changes, lambda _: None, compression="none", epoch=EPOCH)
    assert bare == LayerResult(diff_id=result.diff_id, digest=result.diff_id, size=len(tar), uncompressed_size=len(tar))


@pytest.mark.parametrize("compression", ["none", "gzip-stored"])
def test_C30_memory_does_not_grow_with_the_content(compression: Literal["gzip-stored", "none"]) -> None:
    change = Change(path=b"f", type=ChangeType.FILE, content=Endless(200 * MIB))
    largest = 0

    def sink(data: bytes) -> None:
        nonlocal largest
        largest = max(largest, len(data))

    tracemalloc.start()
    try:
        write_layer([change], sink, compression=compression, epoch=EPOCH)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * MIB
    assert largest <= MIB + 100
