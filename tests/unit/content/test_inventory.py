from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import tempfile
from typing import Any

import pytest
from imgbuild.config import Limits
from imgbuild.content.inventory import ElfRecord, Entry, Inventory, LayerScan, captured, scan_layer
from imgbuild.digest import Digest
from imgbuild.errors import ArchiveError, DocumentError

from tests.support.elf_builder import shared_object

Member = tuple[str, bytes | None, dict[str, Any]]
LIBRARY = shared_object(
    soname="libnccl.so.2",
    needed=("libc.so.6",),
    runpath="$ORIGIN:/opt/lib",
    exports=("ncclGetVersion", "pncclX", "cudaMalloc"),
    imports=("ncclY", "malloc"),
    versions_needed={"libc.so.6": ("GLIBC_2.17", "GLIBC_2.4")},
    build_id="ab" * 20,
)


def member(name: str, data: bytes | None = None, **fields: Any) -> Member:
    return name, data, fields


def tar(*members: Member) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data, fields in members:
            info = tarfile.TarInfo(name)
            for key, value in fields.items():
                setattr(info, key, value)
            info.size = len(data or b"")
            archive.addfile(info, io.BytesIO(data or b""))
    return buffer.getvalue()


class Drip:
    """Gives at most `step` bytes at a time, as a network may."""

    def __init__(self, data: bytes, step: int) -> None:
        self._stream = io.BytesIO(data)
        self._step = step

    def read(self, size: int, /) -> bytes:
        return self._stream.read(min(size, self._step))


def scan(data: bytes, *, step: int = 1 << 20, kept: dict[str, bytes] | None = None, **other: Any) -> LayerScan:
    def capture(digest: Digest, content: bytes) -> None:
        if kept is not None:
            kept[digest.encoded] = content

    return scan_layer(Drip(data, step), subject="layer 7", spool=tempfile.TemporaryFile, capture=capture, **other)


def entries(*members: Member) -> tuple[Entry, ...]:
    return scan(tar(*members)).inventory.entries


def test_one_pass_gives_digest_diff_id_and_both_sizes() -> None:
    plain = tar(member("a", b"x" * 5_000))
    packed = gzip.compress(plain, mtime=0)
    found = scan(packed)
    assert (found.digest, found.size) == (Digest.of(packed), len(packed))
    assert (found.inventory.diff_id, found.inventory.uncompressed_size) == (Digest.of(plain), len(plain))
    assert scan(plain).inventory == found.inventory


def test_C26_a_layer_of_several_gzip_members_has_the_diff_id_of_all() -> None:
    plain = tar(member("a", b"x" * 50_000), member("b", b"y"))
    packed = gzip.compress(plain[:20_000]) + gzip.compress(plain[20_000:40_001]) + gzip.compress(plain[40_001:])
    found = scan(packed)
    assert found.digest == Digest.of(packed)
    assert found.inventory == scan(plain).inventory
    assert [entry.path for entry in found.inventory.entries] == ["a", "b"]


def test_progress_is_told_every_compressed_byte() -> None:
    packed = gzip.compress(tar(member("a", b"x" * 5_000)))
    told: list[int] = []
    scan(packed, step=100, advance=told.append)
    assert sum(told) == len(packed)


def test_entries_hold_all_facts_in_the_order_of_the_archive() -> None:
    pax = {"SCHILY.xattr.user.b": "2", "SCHILY.xattr.security.capability": "\x01\x02"}
    found = entries(
        member("b/", type=tarfile.DIRTYPE, mode=0o1755, uid=5, gid=6, mtime=7),
        member("./b/f", b"hello", mode=0o4755, uid=2_500_000, mtime=1.9, pax_headers=pax),
        member("b/s", type=tarfile.SYMTYPE, linkname="../x//y"),
        member("b/h", type=tarfile.LNKTYPE, linkname="./b/f"),
        member("b/c", type=tarfile.CHRTYPE, devmajor=1, devminor=300),
        member("b/p", type=tarfile.FIFOTYPE),
        member(".wh.gone"),
    )
    assert [entry.type for entry in found] == [
        "directory", "file", "symlink", "hardlink", "character", "fifo", "file",
    ]  # fmt: skip
    folder, file, link, hard, device, _, marker = found
    assert (folder.path, folder.mode, folder.uid, folder.gid, folder.mtime) == ("b", 0o1755, 5, 6, 7)
    # C19: a fraction of a second is cut, not rounded.
    assert (file.path, file.mode, file.uid, file.size, file.mtime) == ("b/f", 0o4755, 2_500_000, 5, 1)
    assert file.sha256 == hashlib.sha256(b"hello").hexdigest()
    assert file.xattrs == (("security.capability", b"\x01\x02"), ("user.b", b"2"))
    assert (link.link, hard.link, link.sha256, hard.sha256) == ("../x//y", "b/f", None, None)
    assert device.device == (1, 300)
    assert (marker.path, marker.sha256) == (".wh.gone", hashlib.sha256(b"").hexdigest())


def test_C10_both_entries_of_one_path_are_listed() -> None:
    assert [(entry.path, entry.size) for entry in entries(member("a", b"1"), member("a", b"22"))] == [
        ("a", 1),
        ("a", 2),
    ]


def test_names_that_are_not_utf_8_keep_their_bytes_and_have_a_text_for_people() -> None:
    found = scan(tar(member("caf\udce9", b"x"), member("l", type=tarfile.SYMTYPE, linkname="\udcff/é"))).inventory
    file, link = found.entries
    assert (file.path, file.raw_path, file.path_bytes) == ("caf\\xe9", b"caf\xe9", b"caf\xe9")
    assert (link.link, link.link_bytes) == ("\\xff/é", b"\xff/\xc3\xa9")
    assert Inventory.load(found.dump(), subject="x") == found


@pytest.mark.parametrize(
    "name", ["plain", "é", "new\nline", 'quo"te', "back\\slash", "\x01\x1f", "\U0001f600", "a\udc80b"]
)
def test_every_name_survives_dump_and_load(name: str) -> None:
    found = scan(tar(member(name, b"x"))).inventory
    loaded = Inventory.load(found.dump(), subject="x")
    assert loaded == found
    assert loaded.entries[0].path_bytes == name.encode("utf-8", "surrogateescape")


class TestElf:
    def test_the_facts_of_a_library_are_kept_with_the_symbols_of_the_families_only(self) -> None:
        (entry,) = entries(member("lib.so", LIBRARY))
        assert entry.elf == ElfRecord(
            machine="aarch64",
            soname="libnccl.so.2",
            needed=("libc.so.6",),
            runpath=("$ORIGIN", "/opt/lib"),
            build_id="ab" * 20,
            versions_needed=(("libc.so.6", ("GLIBC_2.17", "GLIBC_2.4")),),
            imports=("ncclY",),
            exports=("ncclGetVersion", "pncclX"),
        )
        assert entry.sha256 == hashlib.sha256(LIBRARY).hexdigest()
        assert entry.elf_problem is None

    @pytest.mark.parametrize("step", [1, 2, 3, 511, 513, 515, 1024, 1 << 20])
    def test_a_library_is_found_however_the_stream_is_cut(self, step: int) -> None:
        data = tar(member("a", b"text"), member("lib.so", LIBRARY))
        assert scan(data, step=step).inventory == scan(data).inventory
        assert scan(data, step=step).inventory.entries[1].elf is not None

    def test_a_library_is_found_in_gzip_members_of_one_byte(self) -> None:
        data = tar(member("lib.so", LIBRARY))
        packed = b"".join(gzip.compress(data[at : at + 1]) for at in range(520)) + gzip.compress(data[520:])
        assert scan(packed).inventory == scan(data).inventory

    @pytest.mark.parametrize(
        "data", [LIBRARY[:100], LIBRARY[:64], b"\x7fELF", b"\x7fELF" + bytes(200), LIBRARY[:40] + b"\xff" * 60]
    )
    def test_a_damaged_library_gets_a_problem_and_its_digest(self, data: bytes) -> None:
        (entry,) = entries(member("lib.so", data))
        assert entry.elf is None
        assert entry.elf_problem
        assert entry.sha256 == hashlib.sha256(data).hexdigest()

    @pytest.mark.parametrize("data", [b"", b"\x7f", b"\x7fEL", b"\x7fELD" + LIBRARY[4:], b" " + LIBRARY])
    def test_what_does_not_begin_like_elf_has_neither_facts_nor_a_problem(self, data: bytes) -> None:
        (entry,) = entries(member("lib.so", data))
        assert (entry.elf, entry.elf_problem) == (None, None)
        assert entry.sha256 == hashlib.sha256(data).hexdigest()

    def test_names_that_are_not_utf_8_can_be_dumped(self) -> None:
        data = shared_object(soname="lib\udcff.so", runpath="a\udcfe", needed=("\udcfd",), exports=("nccl\udcfc",))
        found = scan(tar(member("lib.so", data))).inventory
        assert Inventory.load(found.dump(), subject="x") == found
        assert found.entries[0].elf is not None
        assert found.entries[0].elf.soname == "lib\\xff.so"

    def test_a_library_longer_than_one_read_is_spooled_whole(self) -> None:
        data = LIBRARY + b"\xaa" * 900_000
        (entry,) = entries(member("lib.so", data))
        assert entry.sha256 == hashlib.sha256(data).hexdigest()
        assert entry.elf is not None


class TestCapture:
    def test_small_files_for_later_steps_are_handed_out_with_their_digest(self) -> None:
        kept: dict[str, bytes] = {}
        data = {"s/a-1.dist-info/RECORD": b"rows", "etc/ld.so.conf": b"include", "etc/motd": b"hello"}
        scan(tar(*(member(name, content) for name, content in data.items())), step=513, kept=kept)
        assert kept == {hashlib.sha256(value).hexdigest(): value for value in (b"rows", b"include")}

    @pytest.mark.parametrize(
        ("path", "wanted"),
        [
            (b"usr/lib/python3/a-1.0.dist-info/METADATA", True),
            (b"a-1.0.dist-info/INSTALLER", True),
            (b"a.egg-info/RECORD", True),
            (b"a-1.0.dist-info/LICENSE", False),
            (b"a/RECORD", False),
            (b"RECORD", False),
            (b"a-1.0.dist-info/sub/RECORD", False),
            (b"etc/ld.so.conf.d/cuda.conf", True),
            (b"etc/ld.so.conf.d/cuda.conf.bak", False),
            (b"etc/ld.so.preload", True),
            (b"x/etc/ld.so.preload", False),
            (b"var/lib/dpkg/status", True),
            (b"usr/lib/os-release", True),
        ],
    )
    def test_package_records_and_linker_configuration_are_wanted(self, path: bytes, wanted: bool) -> None:
        assert captured(path) is wanted

    def test_a_file_above_the_limit_is_hashed_and_not_kept(self) -> None:
        kept: dict[str, bytes] = {}
        limits = Limits(captured_file_bytes=4)
        found = scan(tar(member("etc/ld.so.conf", b"12345")), kept=kept, limits=limits)
        assert kept == {}
        assert found.inventory.entries[0].sha256 == hashlib.sha256(b"12345").hexdigest()
        scan(tar(member("etc/ld.so.conf", b"1234")), kept=kept, limits=limits)
        assert list(kept.values()) == [b"1234"]


class TestRefusals:
    def test_C23_a_sparse_file_is_refused(self) -> None:
        sparse = tar(member("a", b"x", pax_headers={"GNU.sparse.major": "1", "GNU.sparse.name": "a"}))
        with pytest.raises(ArchiveError, match="is a sparse file"):
            scan(sparse)

    @pytest.mark.parametrize("cut", [1, 600, 1_100, 2_000])
    def test_a_truncated_layer_is_refused(self, cut: int) -> None:
        data = tar(member("a", b"x" * 700), member("b", b"y"))[:2_600]
        with pytest.raises(ArchiveError, match="layer 7: "):
            scan(data[:-cut])
        with pytest.raises(ArchiveError, match="is truncated"):
            scan(gzip.compress(data)[:-9])

    def test_data_behind_the_end_is_refused(self) -> None:
        with pytest.raises(ArchiveError, match="trailing"):
            scan(tar(member("a")) + b"x")
        with pytest.raises(ArchiveError, match="garbage"):
            scan(gzip.compress(tar(member("a"))) + b"xxxx")

    def test_what_is_no_tar_is_refused(self) -> None:
        for data in (b"", b"\0", b"PK\x03\x04" + bytes(600), gzip.compress(b"hello")):
            with pytest.raises(ArchiveError):
                scan(data)

    def test_too_many_entries_are_refused(self) -> None:
        with pytest.raises(ArchiveError, match="layer_entries"):
            scan(tar(*(member(str(number)) for number in range(4))), limits=Limits(layer_entries=3))


class TestDocument:
    DATA = tar(member("a", b"x", mtime=5), member("lib.so", LIBRARY), member("d/", type=tarfile.DIRTYPE))

    def test_the_same_diff_id_gives_the_same_bytes_however_it_is_compressed_and_cut(self) -> None:
        documents = {
            scan(data, step=step).inventory.dump()
            for data in (self.DATA, gzip.compress(self.DATA, 1), gzip.compress(self.DATA, 9))
            for step in (7, 600, 1 << 20)
        }
        assert len(documents) == 1

    def test_the_document_is_json_lines_with_a_header(self) -> None:
        dumped = scan(self.DATA).inventory.dump()
        header, *rows = [json.loads(line) for line in dumped.splitlines()]
        assert header == {
            "schema": "imgbuild/inventory/v4",
            "diff_id": str(Digest.of(self.DATA)),
            "uncompressed_size": len(self.DATA),
            "entries": 3,
            "families": ["nccl", "pnccl"],
        }
        sha256 = hashlib.sha256(b"x").hexdigest()
        assert rows[0] == {"path": "a", "type": "file", "mode": 0o644, "mtime": 5, "size": 1, "sha256": sha256}
        assert dumped.endswith(b"}\n")

    def test_load_gives_what_was_dumped_and_dumps_the_same_bytes(self) -> None:
        found = scan(self.DATA).inventory
        loaded = Inventory.load(found.dump(), subject="x")
        assert loaded == found
        assert loaded.dump() == found.dump()

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            (b"imgbuild/inventory/v4", b"imgbuild/inventory/v3"),
            (b'"entries":3', b'"entries":4'),
            (b'"entries":3', b'"entries":-3'),
            (b"sha256:", b"sha255:"),
            (b'"mode":420', b'"mode":"420"'),
            (b'"mode":420', b'"mode":NaN'),
            (b'"mode":420,', b""),
            (b'"path":"a"', b'"path":"\\ud800"'),
            (b'"path":"a"', b'"path":"\xff"'),
            (b'"path":"a"', b'"path":"a","raw_path":"?"'),
            (b'"families"', b'"x":' + b"[" * 100_000 + b"]" * 100_000 + b',"families"'),
            (b'"mode":420', b'"x":' + b"[" * 100_000 + b"]" * 100_000 + b',"mode":420'),
            (b"}\n", b"}\n{\n"),
            (b"\n", b""),
        ],
    )
    def test_a_damaged_document_is_one_typed_error(self, old: bytes, new: bytes) -> None:
        dumped = scan(self.DATA).inventory.dump()
        assert old in dumped
        with pytest.raises(DocumentError, match=r"inventory of layer 3|digest"):
            Inventory.load(dumped.replace(old, new), subject="inventory of layer 3")

    @pytest.mark.parametrize("raw", [b"", b"\n", b"{}", b"[]", b"\0" * 40, b"\xff\xfe", b"null\nnull\n"])
    def test_what_is_no_inventory_is_one_typed_error(self, raw: bytes) -> None:
        with pytest.raises(DocumentError, match="is not an inventory"):
            Inventory.load(raw, subject="x")
