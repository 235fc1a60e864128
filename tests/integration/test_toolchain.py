"""Real zig: what it makes is read back with pyelftools, run on this host, or compared with recorded digests."""

from __future__ import annotations

import ctypes
import hashlib
import io
import os
import platform
import stat
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerDefSection
from imgbuild.adapters import toolchain
from imgbuild.adapters.fetch import WheelPin, download_wheel
from imgbuild.adapters.toolchain import CompileJob, unpack_zig
from imgbuild.config import Limits
from imgbuild.digest import Digest
from imgbuild.errors import ArchiveError, DocumentError, ToolError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

_LINUX = "manylinux_2_12_x86_64.manylinux2010_x86_64.musllinux_1_1_x86_64"
_ARM = "manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64"
HOSTS = {
    ("Linux", "x86_64"): (_LINUX, "806316453d1ede7174ed3fefb8e5348154629089c3bb5fe812dfd0e172fac130"),
    ("Linux", "aarch64"): (_ARM, "edc0aa60ec964a4cf462d40f68d7de242ddf37fd9a80f2afaee6397059463230"),
    ("Darwin", "arm64"): (
        "macosx_12_0_arm64",
        "acae2a9ce67ed249ad68d42c21bc73b5f9d51a33ba5ea42f609f78683e8d9bb7",
    ),
    ("Darwin", "x86_64"): (
        "macosx_12_0_x86_64",
        "47af4f85e3e59bd672126cc026d3a01b516cad24b9a9ea075abfe8532f4c6bc1",
    ),
}
CPP = rb"""
#include "name.h"
#include <algorithm>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>
extern "C" __attribute__((visibility("default"))) int work(int n) {
  std::vector<std::string> names;
  std::mutex lock;
  std::vector<std::thread> threads;
  for (int i = 0; i < n; ++i)
    threads.emplace_back([&, i] { std::lock_guard<std::mutex> held(lock); names.push_back(std::to_string(i) + NAME); });
  for (auto& thread : threads) thread.join();
  std::sort(names.begin(), names.end());
  if (names.empty()) throw std::runtime_error(__FILE__);
  return static_cast<int>(names.front().size());
}
extern "C" __attribute__((visibility("default"))) int caught() {
  try { work(0); } catch (const std::exception& error) { return std::string(error.what()).size() > 0; }
  return -1;
}
"""
CPP_DIGEST = "eb87072d7c4c726b5970413bafa2b26785f0433c87a522cec239fe99550e5427"
"""sha256 of the library made from CPP; a new zig release or other flags change it, another host must not."""
C = b"int answer(void){ return 42; }\nconst char *where(void){ return __FILE__; }\n"
FAKE_LIBC = b"int malloc(void){return 0;}\nint pthread_create(void){return 0;}\n"
LIBC_MAP = b"""GLIBC_2.17 { global: malloc; local: *; };
GLIBC_2.28 { } GLIBC_2.17;
GLIBC_2.34 { global: pthread_create; } GLIBC_2.28;
GLIBC_2.39 { } GLIBC_2.34;
"""
NCCL = b"int ncclGetVersion(int *v){ *v = 22803; return 0; }\n"
USER = b"int ncclGetVersion(int *v);\nint use(void){ int v = 0; return ncclGetVersion(&v) + v; }\n"


def cpp_job(**changes: Any) -> CompileJob:
    fields: dict[str, Any] = {
        "sources": (("src/work.cpp", CPP), ("src/name.h", b'#define NAME "xyz"\n')),
        "compile": ("src/work.cpp",),
        "language": "c++17",
        "glibc": "2.34",
        "soname": "libwork.so.1",
        "flags": ("-O2", "-Wall", "-fvisibility=hidden", "-pthread"),
        "output": "libwork.so.1",
    }
    return CompileJob(**(fields | changes))


def c_job(source: bytes = C, **changes: Any) -> CompileJob:
    fields: dict[str, Any] = {
        "sources": (("one.c", source),),
        "compile": ("one.c",),
        "language": "c17",
        "glibc": "2.34",
        "output": "libone.so",
    }
    return CompileJob(**(fields | changes))


@pytest.fixture(scope="session")
def home() -> Path:
    """A folder that outlives the run: the wheel is 93 MB and libc++ takes half a minute."""
    path = Path(tempfile.gettempdir()) / f"imgbuild-tests-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    assert path.stat().st_uid == os.getuid()
    return path


@pytest.fixture(scope="session")
def zig(home: Path) -> Path:
    tags, digest = HOSTS[platform.system(), platform.machine()]
    pin = WheelPin(
        name="ziglang",
        version="0.15.2",
        filename=f"ziglang-0.15.2-py3-none-{tags}.whl",
        digest=Digest("sha256", digest),
        size=None,
    )
    wheel = home / pin.filename
    if not wheel.is_file():
        download_wheel(pin, wheel, offline=False)
    return unpack_zig(wheel, home / "zig")


@pytest.fixture
def build(zig: Path, home: Path, tmp_path: Path) -> Callable[[CompileJob], bytes]:
    return lambda job: toolchain.compile(job, zig=zig, work=tmp_path / "work", cache=home / "cache")


def dynamic(data: bytes) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    section = ELFFile(io.BytesIO(data)).get_section_by_name(".dynamic")
    assert isinstance(section, DynamicSection)
    for tag in section.iter_tags():
        for kind in ("needed", "soname", "runpath", "rpath"):
            if hasattr(tag, kind):
                found.setdefault(kind, []).append(getattr(tag, kind))
    return found


def test_a_cpp17_library_has_the_bytes_recorded_for_every_host(build: Callable[[CompileJob], bytes]) -> None:
    data = build(cpp_job())
    assert hashlib.sha256(data).hexdigest() == CPP_DIGEST
    assert dynamic(data) == {"needed": ["libc.so.6"], "soname": ["libwork.so.1"]}
    assert b"/tmp" not in data
    assert b"src/work.cpp\0" in data


@pytest.mark.skipif((platform.system(), platform.machine()) != ("Linux", "x86_64"), reason="runs what it compiled")
def test_a_compiled_library_works_when_it_is_loaded(build: Callable[[CompileJob], bytes], tmp_path: Path) -> None:
    path = tmp_path / "libone.so"
    path.write_bytes(build(c_job(target_arch="x86_64", glibc="2.17")))
    assert ctypes.CDLL(str(path)).answer() == 42


def test_folder_cache_umask_and_environment_do_not_change_the_bytes(
    zig: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = toolchain.compile(c_job(), zig=zig, work=tmp_path / "a", cache=tmp_path / "cache a")
    for name, value in {"TZ": "Asia/Tokyo", "CPATH": "/nowhere", "CFLAGS": "-O0", "USER": "zork"}.items():
        monkeypatch.setenv(name, value)
    moved = tmp_path / "moved zig"
    moved.mkdir()
    (moved / "lib").symlink_to(zig.parent / "lib")
    (moved / "zig").hardlink_to(zig)
    old = os.umask(0o077)
    try:
        second = toolchain.compile(
            c_job(), zig=moved / "zig", work=tmp_path / "b" / "deeper", cache=tmp_path / "cache b"
        )
    finally:
        os.umask(old)
    assert first == second


def test_nothing_is_left_in_the_work_folder(build: Callable[[CompileJob], bytes], tmp_path: Path) -> None:
    build(c_job())
    assert list((tmp_path / "work").iterdir()) == []


def test_a_fake_libc_gets_the_version_definitions_of_its_script(build: Callable[[CompileJob], bytes]) -> None:
    data = build(
        c_job(
            FAKE_LIBC,
            soname="libc.so.6",
            flags=("-nostdlib", "-ffreestanding", "-fno-builtin"),
            link_inputs=(("libc.map", LIBC_MAP),),
        )
    )
    section = ELFFile(io.BytesIO(data)).get_section_by_name(".gnu.version_d")
    assert isinstance(section, GNUVerDefSection)
    names = [next(iter(auxiliary)).name for _, auxiliary in section.iter_versions()]
    assert names == ["libc.so.6", "GLIBC_2.17", "GLIBC_2.28", "GLIBC_2.34", "GLIBC_2.39"]
    assert dynamic(data) == {"soname": ["libc.so.6"]}


@pytest.mark.parametrize(
    ("dtags", "kind"), [("-Wl,--enable-new-dtags", "runpath"), ("-Wl,--disable-new-dtags", "rpath")]
)
def test_a_consumer_needs_the_stub_that_it_was_linked_with(
    build: Callable[[CompileJob], bytes], dtags: str, kind: str
) -> None:
    stub = build(c_job(NCCL, soname="libnccl.so.2", output="libnccl.so.2"))
    data = build(
        c_job(
            USER,
            soname="libuser.so",
            flags=(dtags, "-Wl,-rpath,$ORIGIN/../../nvidia/nccl/lib"),
            link_inputs=(("libnccl.so.2", stub),),
        )
    )
    assert dynamic(data) == {
        "needed": ["libnccl.so.2"],
        "soname": ["libuser.so"],
        kind: ["$ORIGIN/../../nvidia/nccl/lib"],
    }


def test_an_executable_has_the_interpreter_of_its_target(build: Callable[[CompileJob], bytes]) -> None:
    data = build(c_job(b"int main(void){return 0;}\n", kind="executable", output="prog"))
    assert b"/lib/ld-linux-aarch64.so.1\0" in data


def test_an_error_of_the_compiler_is_shown_with_its_line_and_without_its_escapes(
    build: Callable[[CompileJob], bytes],
) -> None:
    with pytest.raises(ToolError, match=r"one\.c:1:.*error:") as caught:
        build(c_job(b"int f(void) { return \x1b[31m\xe2\x80\xae; }\n"))
    assert "\x1b" not in str(caught.value)
    assert "\u202e" not in str(caught.value)
    assert len(str(caught.value)) < 5000


def test_the_date_of_the_build_cannot_get_into_the_bytes(build: Callable[[CompileJob], bytes]) -> None:
    with pytest.raises(ToolError, match="not reproducible"):
        build(c_job(b"const char *when(void){ return __DATE__; }\n"))


def test_a_job_that_takes_too_long_is_stopped(zig: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "COMPILE_SECONDS", 0.05)
    with pytest.raises(ToolError, match="did not end within"):
        toolchain.compile(cpp_job(), zig=zig, work=tmp_path / "w", cache=tmp_path / "c")


def test_a_missing_zig_is_a_tool_error(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="cannot be started"):
        toolchain.compile(c_job(), zig=tmp_path / "zig", work=tmp_path / "w", cache=tmp_path / "c")


def test_a_folder_that_cannot_be_mapped_is_refused(zig: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="path mapping"):
        toolchain.compile(c_job(), zig=zig, work=tmp_path / "a=b", cache=tmp_path / "c")


@pytest.mark.parametrize(
    "flag",
    [
        "@file",
        "-o",
        "-Wl,-T,x.ld",
        "-Wl,--version-script,/etc/passwd",
        "-I/usr/include",
        "-include",
        "-B/usr",
        "-Wa,--x",
        "-fplugin=x.so",
        "-march=native",
        "-mcpu=native",
        "-L/usr/lib",
        "-g",
        "-DX=a\nb",
        "-Wl,-rpath,relative",
        "-Wl,-rpath,$ORIGIN,-T,x",
        "-O2 -g",
        "one.c",
        "",
    ],
)
def test_a_flag_outside_the_list_is_refused(flag: str) -> None:
    with pytest.raises(DocumentError, match="is not allowed"):
        c_job(flags=(flag,))


@pytest.mark.parametrize(
    "changes",
    [
        {"sources": (("../x.c", C),), "compile": ("../x.c",)},
        {"sources": (("/x.c", C),), "compile": ("/x.c",)},
        {"sources": (("-x.c", C),), "compile": ("-x.c",)},
        {"sources": (("x.c", C), ("X.c", C)), "compile": ("x.c",)},
        {"sources": (("x.c", C), ("x.c/y.h", C)), "compile": ("x.c",)},
        {"compile": ("two.c",)},
        {"compile": ()},
        {"soname": "a,b"},
        {"glibc": "2.34 -x"},
        {"language": "c++98"},
        {"kind": "static"},
        {"target_arch": "riscv64"},
        {"output": "a/../b"},
        {"link_inputs": (("a.map", b""), ("b.map", b""))},
        {"link_inputs": (("a.ld", b""),)},
    ],
)
def test_a_job_with_a_wrong_field_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(DocumentError):
        c_job(**changes)


def make_zip(path: Path, *members: tuple[str | zipfile.ZipInfo, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return path


def member(name: str, mode: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    return info


ZIG = (member("ziglang/zig", stat.S_IFREG | 0o755), b"#!/bin/sh\n")


def test_unpacking_keeps_the_exec_bit_and_happens_once(tmp_path: Path) -> None:
    wheel = make_zip(tmp_path / "z.whl", ZIG, ("ziglang/lib/a.h", b"x"))
    program = unpack_zig(wheel, tmp_path / "into")
    assert stat.S_IMODE(program.stat().st_mode) == 0o755
    assert stat.S_IMODE((program.parent / "lib" / "a.h").stat().st_mode) == 0o644
    (program.parent / "mark").touch()
    assert unpack_zig(wheel, tmp_path / "into") == program
    assert (program.parent / "mark").exists()
    assert [path.name for path in (tmp_path / "into").iterdir()] == [program.parent.parent.name]


@pytest.mark.parametrize(
    "bad",
    [
        ("../x", b""),
        ("/x", b""),
        ("ziglang/../../x", b""),
        ("ziglang//x", b""),
        ("ziglang/./x", b""),
        ("zig\\x", b""),
        ("a\x1bb", b""),
        ("ziglang/zig/x", b""),
        ("ziglang/zig/", b""),
        (member("link", stat.S_IFLNK | 0o777), b"/etc"),
        (member("pipe", stat.S_IFIFO | 0o644), b""),
        ("x" * 5000, b""),
        ("/".join("x" * 300), b""),
    ],
)
def test_a_wheel_with_a_hostile_member_is_refused_and_nothing_stays(
    tmp_path: Path, bad: tuple[str | zipfile.ZipInfo, bytes]
) -> None:
    wheel = make_zip(tmp_path / "z.whl", ZIG, bad)
    with pytest.raises(ArchiveError):
        unpack_zig(wheel, tmp_path / "into")
    assert list((tmp_path / "into").iterdir()) == []


def test_duplicate_members_are_refused(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate"):
        wheel = make_zip(tmp_path / "z.whl", ZIG, ZIG)
    with pytest.raises(ArchiveError, match="twice"):
        unpack_zig(wheel, tmp_path / "into")


def test_overlapping_members_are_refused(tmp_path: Path) -> None:
    wheel = make_zip(tmp_path / "z.whl", ZIG, ("ziglang/aaa", b"x" * 50))
    data = bytearray(wheel.read_bytes())
    entry = data.rindex(b"PK\x01\x02")
    data[entry + 42 : entry + 46] = bytes(4)
    wheel.write_bytes(data)
    with pytest.raises(ArchiveError, match="overlap"):
        unpack_zig(wheel, tmp_path / "into")


def test_a_member_with_a_wrong_checksum_is_refused(tmp_path: Path) -> None:
    wheel = make_zip(tmp_path / "z.whl", (member("ziglang/zig", stat.S_IFREG | 0o755), b"abcdef" * 9))
    data = wheel.read_bytes()
    wheel.write_bytes(data.replace(b"abcdef", b"abcdeg", 1))
    with pytest.raises(ArchiveError):
        unpack_zig(wheel, tmp_path / "into")


@pytest.mark.parametrize("data", [b"", b"PK\x05\x06", b"x" * 100, b"PK\x03\x04" + bytes(100)])
def test_what_is_no_zip_is_an_archive_error(tmp_path: Path, data: bytes) -> None:
    wheel = tmp_path / "z.whl"
    wheel.write_bytes(data)
    with pytest.raises(ArchiveError):
        unpack_zig(wheel, tmp_path / "into")


def test_limits_on_members_and_bytes_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = make_zip(tmp_path / "z.whl", ZIG, ("ziglang/big", bytes(5000)))
    with pytest.raises(ArchiveError, match="too many members"):
        unpack_zig(wheel, tmp_path / "into", limits=Limits(wheel_entries=1))
    monkeypatch.setattr(toolchain, "ZIG_BYTES", 4000)
    with pytest.raises(ArchiveError, match="too much"):
        unpack_zig(wheel, tmp_path / "into")


def test_a_wheel_without_zig_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="holds no file"):
        unpack_zig(make_zip(tmp_path / "z.whl", ("ziglang/lib", b"")), tmp_path / "into")
