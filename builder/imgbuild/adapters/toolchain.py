"""Hermetic cross compiling with zig, which the PyPI project `ziglang` ships as a wheel for each host.

Chosen version: 0.15.2. Its library tree is the same, file for file, in the wheels for x86_64 and AArch64 Linux and
macOS, and all four name the same zig-bootstrap (LLVM) commit. 0.14.1, 0.16.0 and 0.17.1 were as repeatable on one
host; the newer ones are larger, and 0.16.0 prints tens of thousands of warnings while it builds libc++.

The same job gives the same bytes: sources lie under relative names in a fresh folder, no debug data, symbols
stripped, paths mapped, `__DATE__` refused (zig does), environment built from nothing, a baseline CPU, and a build-id
that is a hash of the content. Tested on one host; other hosts rest on the comparison above.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import stat
import struct
import subprocess
import tempfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, Literal

from imgbuild.config import CHUNK_BYTES, DEFAULT_LIMITS, GIB, KIB, MIB
from imgbuild.digest import chunks, digest_of
from imgbuild.errors import ArchiveError, DocumentError, StorageError, ToolError, UsageError
from imgbuild.progress import SILENT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imgbuild.config import Limits
    from imgbuild.progress import Progress

ZIG_BYTES: Final = 2 * GIB
"""bytes of an unpacked zig; 0.15.2 has 345 MB."""
SOURCE_BYTES: Final = 64 * MIB
"""bytes of all sources and link inputs of one job."""
SOURCE_FILES: Final = 1_000
"""files of one job."""
OUTPUT_BYTES: Final = 256 * MIB
"""bytes of one compiled file."""
COMPILE_SECONDS: Final = 900.0
"""seconds for one job; the first C++ job, which builds libc++, took 26 on two idle cores, 115 on a busy one."""
_LOG_BYTES: Final = 16 * KIB
_LOG_LINES: Final = 10
_MACHINES: Final = {"aarch64": 183, "x86_64": 62}
_PART: Final = r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}"
_NAME: Final = re.compile(rf"{_PART}(?:/{_PART}){{0,15}}")
_SONAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}")
_GLIBC: Final = re.compile(r"2\.[0-9]{1,2}")
_LIBRARY: Final = re.compile(r".+\.(?:a|so(?:\.[0-9]+)*)")
_FLAG: Final = re.compile(
    r"-O[0-3s]|-pthread|-nostdlib|-pie|-fPI[CE]|-l(?:c|m|dl|rt|pthread)"
    r"|-W(?!no-(?:error|date-time))(?:no-)?[a-z][a-z0-9+=-]*"
    r"|-[DU][A-Za-z_][A-Za-z0-9_]*(?:=[ -~]{0,200})?"
    r"|-fvisibility(?:=(?:hidden|default|protected)|-inlines-hidden)"
    r"|-f(?:no-)?(?:builtin|exceptions|rtti|strict-aliasing|wrapv|function-sections|data-sections)"
    r"|-ffreestanding|-ffp-contract=(?:off|on|fast)"
    r"|-mcpu=(?!native)[a-z][a-z0-9_+.-]{0,80}"
    r"|-Wl,-rpath,(?:\$ORIGIN|/)[A-Za-z0-9_.+$/{}-]{0,200}(?::(?:\$ORIGIN|/)[A-Za-z0-9_.+$/{}-]{0,200})*"
    r"|-Wl,--(?:enable|disable)-new-dtags|-Wl,--(?:no-)?as-needed|-Wl,--gc-sections|-Wl,--no-undefined"
    r"|-Wl,--(?:no-)?allow-shlib-undefined|-Wl,-z,(?:now|lazy|relro|norelro|noexecstack|defs)"
)
_WRONG_INPUT: Final = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    ValueError,
    OverflowError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileJob:
    """One file to compile and everything that its bytes depend on, next to the zig release.

    The name of a link input says what it is: `*.map` is the version script (one at most), `*.so`, `*.so.N` and
    `*.a` are libraries, linked in the order given after the sources; a shared one is recorded under its SONAME.
    """

    sources: tuple[tuple[str, bytes], ...]
    """(relative name, text), headers too."""
    compile: tuple[str, ...]
    """names of sources to compile, in link order."""
    language: Literal["c11", "c17", "c++17", "c++20"]
    glibc: str
    """the oldest glibc that the result may need, for example `2.34`."""
    output: str
    """file name; it does not enter the bytes."""
    kind: Literal["shared", "executable"] = "shared"
    target_arch: Literal["aarch64", "x86_64"] = "aarch64"
    soname: str | None = None
    flags: tuple[str, ...] = ()
    """from an allow-list: -O -W -D -U, some -f, -mcpu, -nostdlib, -l of glibc's parts, -Wl,-rpath and a few."""
    link_inputs: tuple[tuple[str, bytes], ...] = ()
    """(name, content) of version scripts and libraries."""

    def __post_init__(self) -> None:
        problems = tuple(_problems(self))
        if problems:
            raise DocumentError(f"compile job {_shown(self.output[:80])!r}", problems)

    @property
    def version_script(self) -> str | None:
        """The name of the version script among the link inputs."""
        return next((name for name, _ in self.link_inputs if name.endswith(".map")), None)


def _problems(job: CompileJob) -> Iterator[str]:
    yield from _file_problems(job)
    if not job.compile or not set(job.compile) <= {name for name, _ in job.sources}:
        yield "compile names no source, or one that is not there"
    if job.language not in {"c11", "c17", "c++17", "c++20"} or job.kind not in {"shared", "executable"}:
        yield f"language {_shown(job.language)!r} or kind {_shown(job.kind)!r} is not known"
    if job.target_arch not in _MACHINES or not _GLIBC.fullmatch(job.glibc):
        yield f"target {_shown(job.target_arch)!r} with glibc {_shown(job.glibc)!r} is not known"
    if job.soname is not None and not _SONAME.fullmatch(job.soname):
        yield f"soname {_shown(job.soname[:140])!r} is not a file name"
    yield from (f"flag {_shown(flag[:140])!r} is not allowed" for flag in job.flags if not _FLAG.fullmatch(flag))


def _file_problems(job: CompileJob) -> Iterator[str]:
    files = (*job.sources, *job.link_inputs)
    names = [name for name, _ in files] + [job.output]
    for name in names:
        if not _NAME.fullmatch(name):
            yield f"{_shown(name[:140])!r} is not a plain relative name"
    folded = {name.lower() for name in names}
    if len(folded) != len(names):
        yield "two names are equal (letter case aside: hosts differ in that)"
    folders = {name[:at] for name in folded for at, char in enumerate(name) if char == "/"}
    if folders & folded:
        yield "one name is the folder of another"
    if len(files) > SOURCE_FILES or sum(len(data) for _, data in files) > SOURCE_BYTES:
        yield f"has over {SOURCE_FILES} files or over {SOURCE_BYTES} bytes"
    scripts = [name for name, _ in job.link_inputs if name.endswith(".map")]
    others = [name for name, _ in job.link_inputs if name not in scripts and not _LIBRARY.fullmatch(name)]
    if len(scripts) > 1 or others:
        yield "link inputs are at most one *.map, and *.so, *.so.N, *.a"


def unpack_zig(wheel: Path, into: Path, *, progress: Progress = SILENT, limits: Limits = DEFAULT_LIMITS) -> Path:
    """Unpack a `ziglang` wheel under `into/<sha256 of the wheel>` and return the path of the zig program.

    A folder that is there is complete, because it gets its name last, and is used as it is. Two processes may do
    this at once; one wins.

    Raises:
        ArchiveError: not a zip, a name that leaves the folder, twice the same name, overlapping members, a link,
            an unknown compression, too much of anything, or no zig program inside.
        StorageError: the disk refuses.

    Not checked: RECORD (the caller checks the wheel's digest), and files changed in the folder afterwards.
    """
    try:
        with wheel.open("rb") as stream:
            digest, _ = digest_of(chunks(stream))
            home = into / digest.encoded
            program = home / "ziglang" / "zig"
            if program.is_file():
                return program
            into.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".zig-", dir=into, ignore_cleanup_errors=True) as temporary:
                unpacked = Path(temporary) / "tree"
                _unpack(stream, unpacked, subject=wheel.name, progress=progress, limits=limits)
                if not (unpacked / "ziglang" / "zig").is_file():
                    raise ArchiveError(wheel.name, "holds no file ziglang/zig")
                with contextlib.suppress(FileExistsError):
                    _rename(unpacked, home)
            if not program.is_file():
                raise StorageError(str(home), "is not a whole zig", hint="delete this folder and start again")
            return program
    except OSError as error:
        raise StorageError(str(error.filename or into), "cannot be used", actual=error.strerror) from error


def _rename(source: Path, home: Path) -> None:
    try:
        source.rename(home)
    except OSError as error:
        if not home.is_dir():
            raise
        raise FileExistsError(error.errno, error.strerror) from error


def _unpack(stream: IO[bytes], root: Path, *, subject: str, progress: Progress, limits: Limits) -> None:
    try:
        with zipfile.ZipFile(stream) as archive:
            members = archive.infolist()
            _check_members(members, stream, archive.start_dir, subject=subject, limits=limits)
            files = [member for member in members if not member.is_dir()]
            total = sum(member.file_size for member in files)
            with progress.task(f"unpack {subject}", total) as task:
                for member in files:
                    _write(archive, member, root)
                    task.advance(member.file_size)
    except _WRONG_INPUT as error:
        raise ArchiveError(subject, f"is not a readable zip: {_shown(str(error)[:200])}") from error


def _write(archive: zipfile.ZipFile, member: zipfile.ZipInfo, root: Path) -> None:
    path = root.joinpath(*member.filename.split("/"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        sink = path.open("xb")
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise zipfile.BadZipFile("a name is both file and folder, or differs only in letter case") from error
    with archive.open(member) as source, sink:
        shutil.copyfileobj(source, sink, CHUNK_BYTES)
    path.chmod(0o755 if (member.external_attr >> 16) & 0o111 else 0o644)


def _check_members(
    members: list[zipfile.ZipInfo], stream: IO[bytes], end: int, *, subject: str, limits: Limits
) -> None:
    """Everything that makes one zip two different trees for two readers, or leaves the folder, is refused."""
    if len(members) > limits.wheel_entries:
        raise ArchiveError(subject, "has too many members", expected=limits.wheel_entries, actual=len(members))
    total = sum(member.file_size for member in members)
    if total > ZIG_BYTES:
        raise ArchiveError(subject, "unpacks to too much", expected=f"{ZIG_BYTES} bytes", actual=total)
    seen: set[str] = set()
    for member in members:
        where = _shown(member.filename[:200])
        kind = stat.S_IFMT(member.external_attr >> 16)
        name = member.filename.removesuffix("/")
        parts = name.split("/")
        if len(name.encode()) > limits.path_bytes or len(parts) > limits.path_depth:
            raise ArchiveError(subject, "has a name that is too long", where=where)
        if any(part in {"", ".", ".."} for part in parts) or "\\" in name or not name.isprintable():
            raise ArchiveError(subject, "has a name that is not a plain relative path", where=where)
        if member.orig_filename != member.filename or name in seen:
            raise ArchiveError(subject, "has a name twice or a cut one", where=where)
        if kind not in {0, stat.S_IFDIR if member.is_dir() else stat.S_IFREG}:
            raise ArchiveError(subject, "has a member that is no file and no folder", where=where)
        if member.flag_bits & 0x1 or member.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
            raise ArchiveError(subject, "has an encrypted or unknown compressed member", where=where)
        seen.add(name)
    _check_overlap(members, stream, end, subject=subject)


def _check_overlap(members: list[zipfile.ZipInfo], stream: IO[bytes], end: int, *, subject: str) -> None:
    free = 0
    for member in sorted(members, key=lambda one: one.header_offset):
        stream.seek(member.header_offset)
        header = stream.read(30)
        name_bytes, extra_bytes = struct.unpack("<26xHH", header)
        if member.header_offset < free or stream.read(name_bytes) != _raw_name(member):
            raise ArchiveError(subject, "has members that overlap or two names", where=_shown(member.filename[:200]))
        free = member.header_offset + 30 + name_bytes + extra_bytes + member.compress_size
    if free > end:
        raise ArchiveError(subject, "has a member that runs into the directory")


def _raw_name(member: zipfile.ZipInfo) -> bytes:
    return member.orig_filename.encode("utf-8" if member.flag_bits & 0x800 else "cp437")


def compile(job: CompileJob, *, zig: Path, work: Path, cache: Path) -> bytes:  # noqa: A001  the verb of this module
    """Compile and link one job and return the stripped ELF file.

    Args:
        job: what to make.
        zig: the program that `unpack_zig` returned.
        work: a folder for a temporary folder.
        cache: a folder of zig's own, kept between jobs; it holds libc++ and glibc stubs and may be deleted.

    Raises:
        ToolError: zig cannot start, fails, takes over `COMPILE_SECONDS`, or makes no ELF file for the target.
        UsageError: a folder's name contains `=`, which the path mapping cannot express.
        StorageError: the disk refuses.

    Not checked: what the code does; warnings are dropped. Nothing keeps zig from the network.
    """
    try:
        work.mkdir(parents=True, exist_ok=True)
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="compile-", dir=work, ignore_cleanup_errors=True) as temporary:
            room = Path(temporary).resolve()
            (room / "tree").mkdir()
            for name, data in (*job.sources, *job.link_inputs):
                path = room / "tree" / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
            arguments = _arguments(job, zig.resolve(), room / "tree")
            _run(arguments, room, cache.resolve(), subject=job.output)
            return _result(room / "out.bin", job)
    except OSError as error:
        raise StorageError(str(error.filename or work), "cannot be used", actual=error.strerror) from error


def _arguments(job: CompileJob, zig: Path, tree: Path) -> list[str]:
    for path in (zig, tree):
        if "=" in str(path):
            raise UsageError(_shown(str(path)), "has `=` in its name, which a path mapping cannot contain")
    target = f"-target {job.target_arch}-linux-gnu.{job.glibc} -std={job.language} -O2 -g0 -s".split()
    mapping = [f"-ffile-prefix-map={tree}=.", f"-ffile-prefix-map={zig.parent}=/zig", "-fno-sanitize=all"]
    link = ["-Wl,--build-id=sha1", *(("-shared", "-fPIC") if job.kind == "shared" else ())]
    if job.soname is not None:
        link.append(f"-Wl,-soname,{job.soname}")
    if job.version_script is not None:
        link.append(f"-Wl,--version-script,{job.version_script}")
    libraries = [name for name, _ in job.link_inputs if name != job.version_script]
    driver = "c++" if job.language.startswith("c++") else "cc"
    inputs = [*job.compile, *libraries, "-o", "../out.bin"]
    return [str(zig), driver, *target, *mapping, *link, *job.flags, *inputs]


def _run(arguments: list[str], room: Path, cache: Path, *, subject: str) -> None:
    """Run zig in a group of its own, because it starts itself again for parts of the work."""
    log = room / "stderr.txt"
    environment = {
        "HOME": str(room),
        "LANG": "C",
        "LC_ALL": "C",
        "TZ": "UTC",
        "PATH": "",
        "TMPDIR": str(room),
        "ZIG_GLOBAL_CACHE_DIR": str(cache),
        "ZIG_LOCAL_CACHE_DIR": str(room / "cache"),
    }
    try:
        with log.open("wb") as stderr:
            child = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                cwd=room / "tree",
                env=environment,
                start_new_session=True,
            )
    except OSError as error:
        raise ToolError("zig", "cannot be started", actual=error.strerror, where=arguments[0]) from error
    try:
        status = child.wait(COMPILE_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise ToolError("zig", f"did not end within {COMPILE_SECONDS:.0f} seconds", where=subject) from error
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    if status != 0:
        with log.open("rb") as stream:
            text = stream.read(_LOG_BYTES).decode("utf-8", "replace")
        lines = [_shown(line[:300]) for line in text.splitlines() if line.strip()]
        said = " | ".join(lines[:_LOG_LINES]) or "it said nothing"
        raise ToolError("zig", f"could not compile (status {status}): {said}", where=subject)


def _result(path: Path, job: CompileJob) -> bytes:
    with path.open("rb") as stream:
        data = stream.read(OUTPUT_BYTES + 1)
    if len(data) > OUTPUT_BYTES:
        raise ToolError("zig", f"made a file of over {OUTPUT_BYTES} bytes", where=job.output)
    if data[:6] != b"\x7fELF\x02\x01" or int.from_bytes(data[18:20], "little") != _MACHINES[job.target_arch]:
        raise ToolError("zig", f"made no 64-bit ELF file for {job.target_arch}", where=job.output)
    return data


def _shown(text: str) -> str:
    """Text of others for one line of ours: controls, bidirectional marks and line breaks escaped."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)
