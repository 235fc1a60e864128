from __future__ import annotations

import io
import json
import re
import shutil
import struct
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.enums import ENUM_D_TAG, ENUM_E_MACHINE
from imgbuild.config import DEFAULT_LIMITS
from imgbuild.content.elf import ElfFacts, is_elf, machine_name, newest_glibc, read_elf
from imgbuild.content.elfdynamic import TAGS
from imgbuild.content.elfimage import Image
from imgbuild.errors import ArchiveError

from tests.support.elf_builder import shared_object, static_program, tag_value, with_bytes, with_tag

NCCL: dict[str, Any] = {
    "soname": "libnccl.so.2",
    "needed": ["libpthread.so.0", "libc.so.6"],
    "rpath": "/a:$ORIGIN",
    "runpath": "$ORIGIN/../lib:/b",
    "build_id": "ab54bc831187dbf664867543564e5390b464ee58",
    "exports": ["ncclGetVersion", "ncclAllReduce@@NCCL_2", *(f"ncclFunction{number}" for number in range(40))],
    "imports": ["memcpy@GLIBC_2.17", "pthread_create", "free@GLIBC_2.9"],
    "versions_needed": {"libc.so.6": ["GLIBC_2.9", "GLIBC_2.17"], "ld-linux.so.1": ["GLIBC_PRIVATE"]},
    "versions_defined": ["NCCL_2"],
    "extra": b"NCCL version 2.30.7+cuda13.0\0",
}
HASH_STYLES = ["gnu", "sysv", "both", "none"]
HOST_LIBRARIES = sorted(
    path
    for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64")
    for path in Path(folder).glob("*.so*")
    if path.is_file()
)


def facts_of(data: bytes) -> ElfFacts:
    return read_elf(io.BytesIO(data), subject="libx.so")


def oracle(path: Path) -> dict[str, Any]:
    """The same facts out of readelf's text."""
    command = ["readelf", "-W", "-d", "--dyn-syms", "-n", "-V", str(path)]
    text = subprocess.run(command, capture_output=True, check=True).stdout.decode("utf-8", "replace")
    names: dict[bool, set[str]] = {True: set(), False: set()}
    symbol = re.compile(r" +\d+: [0-9a-f]+ +\S+ (?:<.*?>: \d+|\w+) +(<.*?>: \d+|\w+) +(\w+) +(?:\[.*\] +)?(\w+) (\S+)")
    for binding, visibility, section, name in (m.groups() for m in map(symbol.match, text.splitlines()) if m):
        undefined = section == "UND"
        if binding != "LOCAL" and (undefined or visibility in ("DEFAULT", "PROTECTED")):
            names[undefined].add(name.replace("@@", "@"))
    needs = text.partition("Version needs section")[2]
    versions: dict[str, set[str]] = {}
    for file, version in re.findall(r"File: (\S+)|  Name: (\S+)  Flags", needs):
        versions.setdefault(file, set()) if file else versions[list(versions)[-1]].add(version)
    defined = text.partition("Version definition section")[2].partition("Version needs section")[0]
    return {
        "needed": re.findall(r"\(NEEDED\).*\[(.*)\]", text),
        "soname": next(iter(re.findall(r"\(SONAME\).*\[(.*)\]", text)), None),
        "rpath": next(iter(re.findall(r"\(RPATH\).*\[(.*)\]", text)), None),
        "runpath": next(iter(re.findall(r"\(RUNPATH\).*\[(.*)\]", text)), None),
        "build_id": next(iter(re.findall(r"Build ID: (\w+)", text)), None),
        "imports": sorted(names[True]),
        "exports": sorted(names[False]),
        "versions_needed": {file: sorted(found) for file, found in versions.items()},
        "versions_defined": sorted(re.findall(r"Flags: \w+ +Index: \d+  Cnt: \d+  Name: (\S+)", defined)),
    }


def as_oracle(facts: ElfFacts) -> dict[str, Any]:
    # readelf shows no version of the symbol that names one, and another sign where ld.so minds no hidden bit.
    exports = {re.sub(r"^(.*)@\1$", r"\1", name.replace("@@", "@")) for name in facts.exports}
    return {
        "needed": list(facts.needed),
        "soname": facts.soname,
        "rpath": ":".join(facts.rpath) if facts.rpath else None,
        "runpath": ":".join(facts.runpath) if facts.runpath else None,
        "build_id": facts.build_id,
        "imports": list(facts.imports),
        "exports": sorted(exports),
        "versions_needed": {file: list(names) for file, names in facts.versions_needed},
        "versions_defined": list(facts.versions_defined),
    }


@pytest.mark.parametrize("sections", [True, False])
@pytest.mark.parametrize("hash_style", HASH_STYLES)
def test_every_fact_is_read_with_and_without_section_headers(hash_style: str, sections: bool) -> None:
    facts = facts_of(shared_object(hash_style=hash_style, sections=sections, **NCCL))
    assert (facts.machine, facts.bits, facts.little_endian, facts.kind) == ("aarch64", 64, True, "shared")
    assert facts.soname == "libnccl.so.2"
    assert facts.needed == ("libpthread.so.0", "libc.so.6")
    assert facts.rpath == ("/a", "$ORIGIN")
    assert facts.runpath == ("$ORIGIN/../lib", "/b")
    assert facts.interpreter is None
    assert facts.build_id == NCCL["build_id"]
    assert facts.imports == tuple(sorted(NCCL["imports"]))
    assert facts.exports == tuple(sorted(NCCL["exports"]))
    assert facts.versions_needed == (
        ("ld-linux.so.1", ("GLIBC_PRIVATE",)),
        ("libc.so.6", ("GLIBC_2.17", "GLIBC_2.9")),
    )
    assert facts.versions_defined == ("NCCL_2", "libnccl.so.2")


@pytest.mark.parametrize("hash_style", ["gnu", "sysv", "both"])
def test_readelf_agrees_about_a_file_of_the_builder(tmp_path: Path, hash_style: str) -> None:
    path = tmp_path / "libnccl.so.2"
    path.write_bytes(shared_object(hash_style=hash_style, **NCCL))
    assert as_oracle(facts_of(path.read_bytes())) == oracle(path)
    whole = subprocess.run(["readelf", "-aW", str(path)], capture_output=True, check=True)
    assert whole.stderr == b""


@pytest.mark.skipif(not HOST_LIBRARIES, reason="no library folder of a known layout")
def test_readelf_agrees_about_the_libraries_of_this_system() -> None:
    step = max(1, len(HOST_LIBRARIES) // 40)
    elves = [path for path in HOST_LIBRARIES[::step] if is_elf(path.read_bytes()[:4])]
    assert elves
    for path in elves:
        with path.open("rb") as file:
            assert as_oracle(read_elf(file, subject=str(path))) == oracle(path), path


def test_libc_of_this_system_is_a_library_that_tells_its_version() -> None:
    path = next((path for path in HOST_LIBRARIES if path.name == "libc.so.6"), None)
    if path is None:
        pytest.skip("no glibc")
    with path.open("rb") as file:
        facts = read_elf(file, subject="libc.so.6")
    assert facts.kind == "shared"
    assert facts.interpreter is not None
    defined = newest_glibc(facts.versions_defined)
    assert defined is not None
    assert int(defined.split(".")[1]) >= 17


def test_the_running_interpreter_is_a_program() -> None:
    with Path(sys.executable).resolve().open("rb") as file:
        facts = read_elf(file, subject="python")
    assert facts.kind in ("pie", "executable")
    assert facts.interpreter is not None
    assert "libc.so.6" in facts.needed


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({}, "shared"),
        ({"pie": True}, "pie"),
        ({"interpreter": "/lib/ld-linux-aarch64.so.1"}, "pie"),
        ({"interpreter": "/lib/ld-linux-aarch64.so.1", "soname": "libc.so.6"}, "shared"),
    ],
)
def test_kind_of_a_position_independent_file(arguments: dict[str, Any], kind: str) -> None:
    facts = facts_of(shared_object(**arguments))
    assert facts.kind == kind
    assert facts.interpreter == arguments.get("interpreter")


def test_a_static_program_has_a_build_id_and_no_dynamic_facts() -> None:
    assert facts_of(static_program(build_id="c0ffee00")) == ElfFacts(
        machine="aarch64", bits=64, little_endian=True, kind="executable", build_id="c0ffee00"
    )


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_an_object_file_is_relocatable(tmp_path: Path) -> None:
    (tmp_path / "f.c").write_text("int f(void) { return 1; }")
    subprocess.run(["gcc", "-c", "f.c"], cwd=tmp_path, check=True)
    facts = facts_of((tmp_path / "f.o").read_bytes())
    assert (facts.kind, facts.exports, facts.needed) == ("relocatable", (), ())


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_hidden_symbols_are_no_exports_and_protected_ones_are(tmp_path: Path) -> None:
    (tmp_path / "f.c").write_text(
        "int shown(void) { return 1; }\n"
        '__attribute__((visibility("hidden"))) int hidden(void) { return 1; }\n'
        '__attribute__((visibility("protected"))) int protected(void) { return 1; }\n'
        "__attribute__((weak)) int weak(void) { return 1; }\n"
        "static int own(void) { return 1; }\n"
        "int used(void) { return own(); }\n"
    )  # fmt: skip
    subprocess.run(["gcc", "-shared", "-fPIC", "-nostdlib", "f.c", "-o", "f.so"], cwd=tmp_path, check=True)
    facts = facts_of((tmp_path / "f.so").read_bytes())
    assert facts.exports == ("protected", "shown", "used", "weak")


def test_hidden_visibility_in_the_table_itself_hides_a_symbol() -> None:
    data = shared_object(exports=["f"], imports=["g"])
    other = tag_value(data, "SYMTAB") + 2 * 24 + 5
    assert facts_of(data).exports == ("f",)
    assert facts_of(with_bytes(data, other, b"\2")).exports == ()


def test_imports_are_found_where_the_gnu_hash_table_is_empty() -> None:
    facts = facts_of(shared_object(imports=["ncclSend", "ncclRecv"], exports=[], sections=False))
    assert facts.imports == ("ncclRecv", "ncclSend")


@pytest.mark.parametrize(
    ("names", "newest"),
    [
        (["GLIBC_2.9", "GLIBC_2.34", "GLIBC_2.4"], "2.34"),
        (["GLIBC_2.2.5", "GLIBC_2.2"], "2.2.5"),
        (["GLIBC_PRIVATE", "GLIBCXX_3.4.30", "GLIBC_ABI_DT_RELR", "GLIBC_2.x"], None),
        ([], None),
    ],
)
def test_glibc_versions_compare_as_numbers(names: list[str], newest: str | None) -> None:
    facts = facts_of(shared_object(versions_needed={"libc.so.6": names} if names else {}, versions_defined=names))
    assert newest_glibc(facts.versions_defined) == newest
    assert newest_glibc(name for _, wanted in facts.versions_needed for name in wanted) == newest


def test_a_weak_version_is_not_needed_and_a_symbol_has_it_all_the_same() -> None:
    data = shared_object(imports=["puts@GLIBC_2.99"], versions_needed={"libc.so.6": ["GLIBC_2.99"]})
    flags = tag_value(data, "VERNEED") + 16 + 4
    facts = facts_of(with_bytes(data, flags, b"\2\0"))
    assert facts_of(data).versions_needed == (("libc.so.6", ("GLIBC_2.99",)),)
    assert facts.versions_needed == (("libc.so.6", ()),)
    assert facts.imports == ("puts@GLIBC_2.99",)


def test_a_symbol_that_is_hidden_from_those_who_ask_for_no_version_is_marked() -> None:
    exports = ["a", "b@@V1", "c@V1", "d@@V2", "e@V2", "f@"]
    facts = facts_of(shared_object(exports=exports, versions_defined=["V1", "V2"]))
    # Of the first version ld.so minds no hidden bit; one without a version is then for those alone who ask for none.
    assert facts.exports == ("a", "b@@V1", "c@@V1", "d@@V2", "e@V2", "f@@")


@pytest.mark.parametrize("tag", ["VERDEF", "VERNEED"])
def test_a_table_of_versions_of_another_version_is_damage(tag: str) -> None:
    data = shared_object(versions_needed={"libc.so.6": ["V"]}, versions_defined=["W"])
    with pytest.raises(ArchiveError, match="a record of another version"):
        facts_of(with_bytes(data, tag_value(data, tag), b"\2\0"))


def test_versions_of_symbols_take_no_more_memory_than_names_may() -> None:
    version = "V" * 1_000_000
    data = shared_object(exports=[f"ncclA{n}@@{version}" for n in range(300)], versions_defined=[version])
    with pytest.raises(ArchiveError, match="too many names"):
        facts_of(data)


def test_versions_of_symbols_outside_of_their_segment_are_damage() -> None:
    data = shared_object(imports=["puts@V"], versions_needed={"libc.so.6": ["V"]})
    with pytest.raises(ArchiveError, match="the versions of symbols"):
        facts_of(with_tag(data, "VERSYM", len(data) - 1))


def test_names_that_are_not_utf8_can_be_written_as_json() -> None:
    facts = facts_of(shared_object(soname="lib\udcff.so", needed=["libé.so"], exports=["f\udc80"]))
    assert (facts.soname, facts.needed, facts.exports) == ("lib\\xff.so", ("libé.so",), ("f\\x80",))
    assert "\\\\xff" in json.dumps(asdict(facts), ensure_ascii=False)


def test_an_empty_runpath_differs_from_none() -> None:
    assert facts_of(shared_object(runpath="")).runpath == ("",)
    assert facts_of(shared_object()).runpath == ()


def test_C40_the_machine_is_what_the_header_says() -> None:
    machines = {name: facts_of(shared_object(machine=name)).machine for name in ("aarch64", "x86_64", "riscv")}
    assert machines == {"aarch64": "aarch64", "x86_64": "x86_64", "riscv": "riscv"}
    assert facts_of(with_bytes(shared_object(), 18, struct.pack("<H", 0xABCD))).machine == str(0xABCD)


def test_a_big_endian_32_bit_header_is_read() -> None:
    header = b"\x7fELF\1\2\1".ljust(16, b"\0") + struct.pack(">2H5I6H", 1, 8, 1, 0, 0, 0, 0, 52, 0, 0, 0, 0, 0)
    facts = facts_of(header)
    assert (facts.machine, facts.bits, facts.little_endian, facts.kind) == ("mips", 32, False, "relocatable")


class CountingFile(io.BytesIO):
    """Counts the bytes that are read."""

    count = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.count += len(data)
        return data


def test_only_headers_and_dynamic_tables_are_read() -> None:
    file = CountingFile(shared_object(**{**NCCL, "extra": b"x" * 50_000_000}))
    assert read_elf(file, subject="libnccl.so.2").soname == "libnccl.so.2"
    assert file.count < 2_000_000


def test_a_hundred_thousand_symbols_are_all_read() -> None:
    exports = [f"_ZN5torch8autograd9generated{number}EvPKcS2_" for number in range(50_000)]
    data = shared_object(exports=exports, imports=[f"import{number}" for number in range(50_000)])
    facts = facts_of(data)
    assert facts.exports == tuple(sorted(exports))
    assert len(facts.imports) == 50_000


def test_is_elf_looks_at_the_magic_number() -> None:
    assert is_elf(static_program()[:4])
    assert not is_elf(b"INPUT(libx.so)")
    assert not is_elf(b"\x7fEL")


def test_a_file_that_is_not_elf_is_refused_by_name() -> None:
    with pytest.raises(ArchiveError, match=r"libx\.so: is not an ELF file"):
        facts_of(b"INPUT(libx.so)")


def test_machines_and_kinds_have_the_names_that_pyelftools_gives_them() -> None:
    named = {number: name for name, number in ENUM_E_MACHINE.items() if isinstance(number, int)}
    assert len(named) > 100
    for number, name in named.items():
        assert machine_name(number) == name.removeprefix("EM_").lower()
    assert machine_name(0xFEED) == str(0xFEED)


def test_tags_have_the_numbers_that_pyelftools_knows() -> None:
    assert {name: ENUM_D_TAG[name] for name in TAGS} == TAGS


@pytest.mark.parametrize("little", [True, False])
@pytest.mark.parametrize("bits", [32, 64])
def test_program_headers_are_read_as_pyelftools_reads_them(bits: int, little: bool) -> None:
    order, word = "<" if little else ">", "I" if bits == 32 else "Q"
    start, size = (52, 32) if bits == 32 else (64, 56)
    numbers = iter(range(100, 200))
    rows = [[kind, *(next(numbers) for _ in range(7))] for kind in (2, 3, 4, 4, 0x6474E551)]
    table = b"".join(struct.pack(f"{order}8I" if bits == 32 else f"{order}2I6Q", *row) for row in rows)
    fields = (3, 62, 1, 7, start + 5, 9, 0, start, size, len(rows), 0, 0, 0)
    head = b"\x7fELF" + bytes([bits // 32, 1 if little else 2, 1]) + bytes(9)
    data = head + struct.pack(f"{order}HHI3{word}I6H", *fields) + bytes(5) + table
    image = Image(io.BytesIO(data), "x", DEFAULT_LIMITS)
    header = image.header()
    image.map_segments(header)
    theirs = ELFFile(io.BytesIO(data))
    assert (header.bits, image.order == "<", header.kind, header.machine) == (bits, little, 3, 62)
    found = [(row.offset, row.address, row.size) for kind in (2, 3, 4, 0x6474E551) for row in image.segments(kind)]
    wanted = [theirs._get_segment_header(index) for index in range(len(rows))]
    assert found == [(row["p_offset"], row["p_vaddr"], row["p_filesz"]) for row in wanted]


@pytest.mark.parametrize("bits", [32, 64])
def test_a_header_that_is_cut_off_is_damage(bits: int) -> None:
    size = 52 if bits == 32 else 64
    head = b"\x7fELF" + bytes([bits // 32, 1, 1]) + bytes(size - 7)
    assert facts_of(head).kind == "none"
    with pytest.raises(ArchiveError, match="has a damaged ELF header"):
        facts_of(head[:-1])


def test_reading_a_file_of_our_machines_does_not_import_pyelftools() -> None:
    code = (
        "import io, sys, imgbuild.content.elf as elf;"
        "elf.read_elf(io.BytesIO(sys.stdin.buffer.read()), subject='x'); sys.exit('elftools' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, input=shared_object())
