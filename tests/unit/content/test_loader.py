from __future__ import annotations

import io
import itertools
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from imgbuild.config import DEFAULT_LIMITS
from imgbuild.content.elf import ElfFacts, read_elf
from imgbuild.content.loader import Linker, Resolution
from imgbuild.errors import ArchiveError, MissingError, UsageError

from tests.support.elf_builder import MACHINES, shared_object

if TYPE_CHECKING:
    from collections.abc import Iterable

HOST = platform.machine()
NO_GLIBC = not (HOST in ("x86_64", "aarch64") and platform.libc_ver()[0] == "glibc")
LDCONFIG = shutil.which("ldconfig", path="/sbin:/usr/sbin:/bin:/usr/bin")


@dataclass
class Link:
    target: bytes


@dataclass
class MemoryTree:
    """A tree out of paths without leading slash; a value is facts, the bytes of another file, or a link."""

    files: dict[bytes, ElfFacts | bytes | Link] = field(default_factory=dict)

    def real(self, path: bytes) -> bytes | None:
        left, place, hops = path.split(b"/")[::-1], b"", 0
        while left:
            part = left.pop()
            if part in (b"", b"."):
                continue
            if part == b"..":
                place = place.rpartition(b"/")[0]
                continue
            place = place + b"/" + part if place else part
            entry = self.files.get(place)
            if isinstance(entry, Link):
                hops += 1
                if hops > 40:
                    return None
                left += entry.target.split(b"/")[::-1]
                place = b"" if entry.target.startswith(b"/") else place.rpartition(b"/")[0]
        return place

    def resolve(self, path: bytes) -> bytes | None:
        real = self.real(path)
        return real if real in self.files else None

    def listdir(self, path: bytes) -> Iterable[bytes]:
        real = self.real(path)
        prefix = real + b"/" if real else b""
        return {name[len(prefix) :].split(b"/")[0] for name in self.files if name.startswith(prefix)}

    def read(self, path: bytes) -> bytes | None:
        real = self.resolve(path)
        entry = None if real is None else self.files[real]
        return entry if isinstance(entry, bytes) else None

    def elf(self, path: bytes) -> ElfFacts | None:
        entry = self.files.get(path)
        return entry if isinstance(entry, ElfFacts) else None


class HostTree:
    """The files of this system."""

    def resolve(self, path: bytes) -> bytes | None:
        path = b"/" + path.lstrip(b"/")
        return os.path.realpath(path)[1:] if os.path.isfile(path) else None

    def listdir(self, path: bytes) -> Iterable[bytes]:
        return os.listdir(path) if os.path.isdir(path) else ()

    def read(self, path: bytes) -> bytes | None:
        return Path(os.fsdecode(path)).read_bytes() if os.path.isfile(path) else None

    def elf(self, path: bytes) -> ElfFacts | None:
        try:
            return read_elf(io.BytesIO(self.read(b"/" + path) or b""), subject=os.fsdecode(path))
        except ArchiveError:
            return None


def library(**changes: Any) -> ElfFacts:
    return replace(ElfFacts(machine="aarch64", bits=64, little_endian=True, kind="shared"), **changes)


def resolved(consumer: ElfFacts, files: dict[bytes, Any], needed: str = "libnccl.so.2", **linker: Any) -> Resolution:
    tree = MemoryTree({b"opt/app/lib/libtorch.so": consumer, **files})
    return Linker(tree, machine="aarch64", **linker).resolve(b"opt/app/lib/libtorch.so", needed)


def steps_of(resolution: Resolution) -> list[tuple[str, bytes, str]]:
    return [(step.rule, step.candidate, step.outcome) for step in resolution.steps]


EVERYWHERE = {
    b"rpath/libnccl.so.2": library(),
    b"env/libnccl.so.2": library(),
    b"runpath/libnccl.so.2": library(),
    b"etc/ld.so.conf": b"/configured\n",
    b"configured/libnccl.so.2": library(),
    b"usr/lib/libnccl.so.2": library(),
}
BOTH = {"rpath": ("/rpath",), "runpath": ("/runpath",)}


@pytest.mark.parametrize(
    ("paths", "absent", "provider", "rule"),
    [
        ({"rpath": ("/rpath",)}, [], b"rpath/libnccl.so.2", "rpath"),
        (BOTH, [], b"env/libnccl.so.2", "LD_LIBRARY_PATH"),
        ({"rpath": ("/rpath",), "runpath": ("",)}, [], b"env/libnccl.so.2", "LD_LIBRARY_PATH"),
        (BOTH, ["env"], b"runpath/libnccl.so.2", "runpath"),
        (BOTH, ["env", "runpath"], b"configured/libnccl.so.2", "ld.so.conf"),
        (BOTH, ["env", "runpath", "configured"], b"usr/lib/libnccl.so.2", "default"),
    ],
)
def test_C65_the_first_place_in_the_linkers_order_wins(
    paths: dict[str, Any], absent: list[str], provider: bytes, rule: str
) -> None:
    files = {path: entry for path, entry in EVERYWHERE.items() if path.split(b"/")[0].decode() not in absent}
    resolution = resolved(library(**paths), files, library_path=("/env",))
    assert resolution.provider == provider
    assert resolution.steps[-1].rule == rule
    assert resolution.steps[-1].outcome == "taken"
    assert {step.outcome for step in resolution.steps[:-1]} <= {"absent"}


def test_nothing_found_is_no_provider_and_every_place_is_told() -> None:
    resolution = resolved(library(runpath=("/a", "/b/")), {})
    assert resolution.provider is None
    assert steps_of(resolution) == [
        ("runpath", b"/a/libnccl.so.2", "absent"),
        ("runpath", b"/b/libnccl.so.2", "absent"),
        ("default", b"/lib/aarch64-linux-gnu/libnccl.so.2", "absent"),
        ("default", b"/usr/lib/aarch64-linux-gnu/libnccl.so.2", "absent"),
        ("default", b"/lib/libnccl.so.2", "absent"),
        ("default", b"/usr/lib/libnccl.so.2", "absent"),
        ("default", b"/lib64/libnccl.so.2", "absent"),
        ("default", b"/usr/lib64/libnccl.so.2", "absent"),
    ]


def test_a_library_of_another_machine_or_class_is_passed_over() -> None:
    files = {
        b"a/libnccl.so.2": library(machine="x86_64"),
        b"b/libnccl.so.2": library(bits=32),
        b"c/libnccl.so.2": library(),
    }
    resolution = resolved(library(runpath=("/a", "/b", "/c")), files)
    assert [step.outcome for step in resolution.steps] == ["wrong machine", "wrong machine", "taken"]
    assert resolution.provider == b"c/libnccl.so.2"


def test_a_text_file_in_the_way_ends_the_search() -> None:
    files = {b"a/libnccl.so.2": b"INPUT(libnccl.so.2.30)", b"b/libnccl.so.2": library()}
    resolution = resolved(library(runpath=("/a", "/b")), files)
    assert (resolution.provider, steps_of(resolution)) == (None, [("runpath", b"/a/libnccl.so.2", "not ELF")])


@pytest.mark.parametrize(
    ("item", "directory"),
    [
        ("$ORIGIN", b"/opt/app/lib"),
        ("${ORIGIN}/../nccl", b"/opt/app/lib/../nccl"),
        ("/x/$LIB/${LIB}", b"/x/lib64/lib64"),
        ("/x/$PLATFORM", b"/x/aarch64"),
        ("/x/$ORIGINAL/$lib/${ORIGIN", b"/x/$ORIGINAL/$lib/${ORIGIN"),
        ("relative/x", b"/srv/relative/x"),
        ("", b"/srv"),
        ("//", b"/"),
    ],
)
def test_tokens_and_relative_directories(item: str, directory: bytes) -> None:
    resolution = resolved(library(runpath=(item, "/z")), {}, working_directory=b"/srv")
    assert resolution.steps[0].directory == directory
    assert resolution.steps[0].candidate == directory.rstrip(b"/") + b"/libnccl.so.2"


def test_lib_is_the_multiarch_directory_on_debian() -> None:
    files = {b"usr/lib/aarch64-linux-gnu/libc.so.6": library()}
    assert resolved(library(runpath=("/x/$LIB",)), files).steps[0].directory == b"/x/lib/aarch64-linux-gnu"


def test_dot_dot_after_a_link_is_followed_as_the_kernel_does() -> None:
    files = {
        b"opt/app/lib/nccl": Link(b"/data/nccl/lib"),
        b"data/nccl/other/libnccl.so.2": Link(b"libnccl.so.2.30"),
        b"data/nccl/other/libnccl.so.2.30": library(),
    }
    resolution = resolved(library(runpath=("$ORIGIN/nccl/../other",)), files)
    assert resolution.provider == b"data/nccl/other/libnccl.so.2.30"


def test_cyclic_and_dangling_links_are_absent() -> None:
    files = {b"a/libnccl.so.2": Link(b"libnccl.so.2"), b"b/libnccl.so.2": Link(b"/nowhere")}
    resolution = resolved(library(runpath=("/a", "/b")), files)
    assert [step.outcome for step in resolution.steps[:2]] == ["absent", "absent"]


def test_a_name_with_a_slash_is_a_path_and_nothing_is_searched() -> None:
    files = {b"opt/app/lib/x/libnccl.so.2": library(), b"usr/lib/libnccl.so.2": library()}
    there = resolved(library(), files, "$ORIGIN/x/libnccl.so.2")
    assert (there.provider, [step.rule for step in there.steps]) == (b"opt/app/lib/x/libnccl.so.2", ["path"])
    absent = resolved(library(), files, "/opt/libnccl.so.2")
    assert (absent.provider, [step.outcome for step in absent.steps]) == (None, ["absent"])
    relative = resolved(library(), files, "x/libnccl.so.2", working_directory=b"/opt/app/lib")
    assert relative.provider == b"opt/app/lib/x/libnccl.so.2"


def test_origin_of_a_library_is_the_directory_of_its_link_and_of_a_program_the_real_one() -> None:
    files: dict[bytes, Any] = {
        b"link/x": Link(b"/real/x"),
        b"link/libdep.so": library(),
        b"real/libdep.so": library(),
        b"real/x": library(runpath=("$ORIGIN",)),
    }
    assert Linker(MemoryTree(files), machine="aarch64").resolve(b"link/x", "libdep.so").provider == b"link/libdep.so"
    files[b"real/x"] = library(runpath=("$ORIGIN",), kind="pie")
    assert Linker(MemoryTree(files), machine="aarch64").resolve(b"link/x", "libdep.so").provider == b"real/libdep.so"


def test_names_that_ldconfig_does_not_list_are_not_found_in_configured_directories() -> None:
    files = {b"etc/ld.so.conf": b"/c", b"c/plugin.so": library(), b"c/libx.so": library(), b"usr/lib/_C.so": library()}
    assert resolved(library(), files, "libx.so").provider == b"c/libx.so"
    assert resolved(library(), files, "plugin.so").provider is None
    assert resolved(library(), files, "_C.so").provider == b"usr/lib/_C.so"


def test_a_consumer_that_is_not_an_elf_file_is_an_error() -> None:
    linker = Linker(MemoryTree({b"a.txt": b"text"}), machine="aarch64")
    for consumer in (b"a.txt", b"absent"):
        with pytest.raises(MissingError):
            linker.resolve(consumer, "libc.so.6")


def test_an_unknown_machine_is_refused() -> None:
    with pytest.raises(UsageError, match="aarch64, x86_64"):
        Linker(MemoryTree(), machine="sparc")


def configured(files: dict[bytes, Any], **linker: Any) -> tuple[bytes, ...]:
    return Linker(MemoryTree(files), machine="aarch64", **linker).configured_directories()


def test_configuration_with_comments_includes_and_patterns() -> None:
    files = {
        b"etc/ld.so.conf": b"# top\n  /two # t\ninclude\tld.so.conf.d/*.conf /etc/absent\n/last//\n"
        b"hwcap 1 x\nrelative\n/two\n",
        b"etc/ld.so.conf.d/b.conf": b"/b\r\n/shared",
        b"etc/ld.so.conf.d/a.conf": b"include ../more.conf\n/a\n",
        b"etc/ld.so.conf.d/.hidden.conf": b"/hidden",
        b"etc/ld.so.conf.d/c.conf.bak": b"/backup",
        b"etc/more.conf": b"/more dir",
    }
    assert configured(files) == (b"/two", b"/more dir", b"/a", b"/b", b"/shared", b"/last")


def test_without_configuration_there_are_no_directories() -> None:
    assert configured({}) == ()


def test_configuration_that_includes_itself_ends() -> None:
    files = {
        b"etc/ld.so.conf": b"/a\ninclude /etc/ld.so.conf\ninclude /etc/x/../ld.so.conf\ninclude other.conf\n/c",
        b"etc/other.conf": b"include ld.so.conf\n/b",
    }
    assert configured(files) == (b"/a", b"/b", b"/c")


def test_hostile_configuration_is_refused() -> None:
    chain: dict[bytes, Any] = {b"etc/%d" % number: b"include /etc/%d" % (number + 1) for number in range(50)}
    with pytest.raises(ArchiveError, match="too deeply"):
        configured({b"etc/ld.so.conf": b"include 0", **chain})
    many: dict[bytes, Any] = {b"etc/d/%d" % number: b"/x" for number in range(1_001)}
    with pytest.raises(ArchiveError, match="too many configuration files"):
        configured({b"etc/ld.so.conf": b"include d/*", **many})
    with pytest.raises(ArchiveError, match="look at too many files"):
        configured({b"etc/ld.so.conf": b"include d/x*y\n" * 101, **many})
    with pytest.raises(ArchiveError, match="too long"):
        configured({b"etc/ld.so.conf": b"/a" * 10}, limits=replace(DEFAULT_LIMITS, captured_file_bytes=19))


@pytest.mark.skipif(LDCONFIG is None, reason="needs ldconfig")
def test_ldconfig_of_this_system_reads_the_same_directories_in_the_same_order(tmp_path: Path) -> None:
    for name in ("one", "two", "three", "four", "conf.d"):
        (tmp_path / name).mkdir()
    top = tmp_path / "ld.so.conf"
    top.write_text(f"# c\n  {tmp_path}/two/ # t\ninclude conf.d/*.conf {tmp_path}/x?/[ab]\n{tmp_path}/four\t\n")
    (tmp_path / "conf.d" / "b.conf").write_text(f"{tmp_path}/one\n")
    (tmp_path / "conf.d" / "a.conf").write_text(f"{tmp_path}/three\n{tmp_path}/two\n")
    (tmp_path / "conf.d" / ".h.conf").write_text(f"{tmp_path}/conf.d\n")
    command = [str(LDCONFIG), "-v", "-N", "-X", "-f", str(top)]
    shown = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    expected = [line.partition(":")[0] for line in shown.splitlines() if line.startswith(str(tmp_path))]

    class Rooted(HostTree):
        def resolve(self, path: bytes) -> bytes | None:
            return super().resolve(self.moved(path))

        def read(self, path: bytes) -> bytes | None:
            return super().read(self.moved(path))

        def listdir(self, path: bytes) -> Iterable[bytes]:
            return super().listdir(self.moved(path))

        def moved(self, path: bytes) -> bytes:
            return re.sub(rb"^/etc(?=/|$)", os.fsencode(tmp_path), path)

    found = Linker(Rooted(), machine="x86_64").configured_directories()
    assert len(expected) == 4
    assert [os.fsdecode(path) for path in found] == expected


PROBE = """
import ctypes, json, sys
answers = []
for path, name in json.load(sys.stdin):
    try:
        ctypes.CDLL(path)
    except OSError:
        answers.append(None)
        continue
    with open("/proc/self/maps") as maps:
        found = {line.split(maxsplit=5)[5].strip() for line in maps if line.count("/")}
    answers.append(next(file for file in found if file.endswith("/" + name)))
print(json.dumps(answers))
"""


def write(path: Path, **arguments: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(shared_object(**{"machine": HOST, **arguments}))


def real_linker(cases: list[tuple[Path, str]], library_path: str) -> list[str | None]:
    """What the dynamic linker of this system does; every case has its own name, so that nothing is loaded before."""
    environment = {**os.environ, "LD_LIBRARY_PATH": library_path}
    result = subprocess.run(
        [sys.executable, "-c", PROBE],
        input=json.dumps([(str(path), name) for path, name in cases]),
        env=environment,
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    answers: list[str | None] = json.loads(result.stdout)
    return answers


def predicted(cases: list[tuple[Path, str]], library_path: str) -> list[str | None]:
    items = tuple(library_path.split(":")) if library_path else ()
    linker = Linker(HostTree(), machine=HOST, library_path=items)
    answers = [linker.resolve(os.fsencode(path), name).provider for path, name in cases]
    return [None if answer is None else "/" + os.fsdecode(answer) for answer in answers]


@pytest.mark.skipif(NO_GLIBC, reason="needs the dynamic linker of glibc")
@pytest.mark.parametrize("environment", ["", "{top}/c", "{top}/c:{top}/a"])
def test_the_dynamic_linker_of_this_system_takes_the_same_files(tmp_path: Path, environment: str) -> None:
    top = tmp_path.resolve()
    other = next(machine for machine in MACHINES if machine != HOST)
    cases = []
    contents = [None, HOST, other, "text"]
    arrangements = itertools.product([None, "{top}/a"], [None, "", "$ORIGIN/../b"], contents, contents, contents)
    for number, (rpath, runpath, *places) in enumerate(arrangements):
        name = f"libdep{number}.so"
        for directory, content in zip("abc", places, strict=True):
            if content == "text":
                (top / directory).mkdir(exist_ok=True)
                (top / directory / name).write_text("INPUT(x)" * 100)
            elif content:
                write(top / directory / name, machine=content)
        consumer = top / "consumers" / f"consumer{number}.so"
        write(consumer, needed=[name], rpath=rpath and rpath.format(top=top), runpath=runpath)
        cases.append((consumer, name))
    library_path = environment.format(top=top)
    answers = real_linker(cases, library_path)
    assert predicted(cases, library_path) == answers
    assert len(set(answers)) > 40


@pytest.mark.skipif(NO_GLIBC, reason="needs the dynamic linker of glibc")
def test_the_dynamic_linker_of_this_system_expands_tokens_the_same_way(tmp_path: Path) -> None:
    top = tmp_path.resolve()
    multiarch = f"lib/{HOST}-linux-gnu"
    lib = multiarch if Path("/" + multiarch).is_dir() else "lib64"
    cases = []
    for number, item in enumerate(
        ["$ORIGIN", "${ORIGIN}/../x", "$ORIGIN/$LIB", "$ORIGIN/${LIB}/deep", "$ORIGINAL", "$ORIGIN/$FOO", "$ORIGIN/"]
    ):
        name = f"libdep{number}.so"
        for place in ("real", "link", "x", f"real/{lib}", f"link/{lib}/deep", "link/$FOO"):
            write(top / place / name)
        write(top / "real" / f"consumer{number}.so", needed=[name], runpath=item)
        (top / "link" / f"consumer{number}.so").symlink_to(top / "real" / f"consumer{number}.so")
        cases += [(top / "link" / f"consumer{number}.so", name)]
    write(top / "link" / "by" / "libpath.so")
    write(top / "link" / "bypath.so", needed=["$ORIGIN/by/libpath.so"])
    write(top / "link" / "system.so", needed=["libutil.so.1"])
    cases += [(top / "link" / "bypath.so", "$ORIGIN/by/libpath.so"), (top / "link" / "system.so", "libutil.so.1")]
    files = [(path, name.rpartition("/")[2]) for path, name in cases]
    assert predicted(cases, "") == real_linker(files, "")
