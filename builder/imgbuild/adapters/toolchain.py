"""Hermetic cross compiling with zig, which the PyPI project `ziglang` ships as a wheel for each host.

Chosen version: 0.15.2. Its library tree is the same, file for file, in the wheels for x86_64 and AArch64 Linux and
macOS, and all four name the same zig-bootstrap (LLVM) commit. 0.14.1, 0.16.0 and 0.17.1 were as repeatable on one
host; the newer ones are larger, and 0.16.0 prints tens of thousands of warnings while it builds libc++.

The same job gives the same bytes: sources lie under relative names in a fresh folder, no debug data, symbols
stripped, paths mapped, `__DATE__` refused (zig does), environment built from nothing, a baseline CPU, and a build-id
that is a hash of the content. Tested on one host; other hosts rest on the comparison above.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Final, Literal, get_args

from imgbuild.adapters.durable import extract_file, make_folder, move_folder, refuse_full, work_folder
from imgbuild.adapters.process import run
from imgbuild.config import DEFAULT_LIMITS, GIB, MIB
from imgbuild.content.ziparchive import open_archive
from imgbuild.digest import chunks, digest_of
from imgbuild.errors import ArchiveError, DocumentError, StorageError, ToolError, UsageError
from imgbuild.model.layer import Language
from imgbuild.progress import SILENT
from imgbuild.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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
_PROGRAM: Final = "ziglang/zig"
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
    language: Language
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
            raise DocumentError(f"compile job {printable(self.output[:80])!r}", problems)

    @property
    def version_script(self) -> str | None:
        """The name of the version script among the link inputs."""
        return next((name for name, _ in self.link_inputs if name.endswith(".map")), None)


def _problems(job: CompileJob) -> Iterator[str]:
    yield from _file_problems(job)
    if not job.compile or not set(job.compile) <= {name for name, _ in job.sources}:
        yield "compile names no source, or one that is not there"
    if job.language not in get_args(Language) or job.kind not in {"shared", "executable"}:
        yield f"language {printable(job.language)!r} or kind {printable(job.kind)!r} is not known"
    if job.target_arch not in _MACHINES or not _GLIBC.fullmatch(job.glibc):
        yield f"target {printable(job.target_arch)!r} with glibc {printable(job.glibc)!r} is not known"
    if job.soname is not None and not _SONAME.fullmatch(job.soname):
        yield f"soname {printable(job.soname, 140)!r} is not a file name"
    yield from (f"flag {printable(flag, 140)!r} is not allowed" for flag in job.flags if not _FLAG.fullmatch(flag))


def _file_problems(job: CompileJob) -> Iterator[str]:
    files = (*job.sources, *job.link_inputs)
    names = [name for name, _ in files] + [job.output]
    for name in names:
        if not _NAME.fullmatch(name):
            yield f"{printable(name, 140)!r} is not a plain relative name"
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
        ArchiveError: what `ziparchive.open_archive` refuses, over `ZIG_BYTES`, or no zig program inside.
        StorageError: the disk refuses, the wheel cannot be read, or the folder is there and is not whole.

    Not checked: RECORD (the caller checks the wheel's digest), and files changed in the folder afterwards.
    """
    try:
        with wheel.open("rb") as stream:
            digest, _ = digest_of(chunks(stream))
            home = into / digest.encoded
            if not home.is_dir():
                make_folder(into)
                with work_folder(into, prefix=".zig-") as work:
                    _unpack(stream, work / "tree", subject=wheel.name, progress=progress, limits=limits)
                    move_folder(work / "tree", home)
    except OSError as error:  # of reading; writing has errors of its own
        raise StorageError(str(wheel), "cannot be read", actual=error.strerror) from error
    program = home / _PROGRAM
    if not program.is_file():
        raise StorageError(str(home), "is not a whole zig", hint="delete this folder and start again")
    return program


def _unpack(stream: BinaryIO, root: Path, *, subject: str, progress: Progress, limits: Limits) -> None:
    with open_archive(stream, subject=subject, limits=limits) as archive:
        files = [member for member in archive.infolist() if not member.is_dir()]
        if _PROGRAM not in {member.filename for member in files}:
            raise ArchiveError(subject, f"holds no file {_PROGRAM}")
        total = sum(member.file_size for member in files)
        if total > ZIG_BYTES:
            raise ArchiveError(subject, "unpacks to too much", expected=f"{ZIG_BYTES} bytes", actual=total)
        with progress.task("unpacking zig", total) as task:
            for member in files:
                with archive.open(member) as source:
                    mode = 0o755 if (member.external_attr >> 16) & 0o111 else 0o644
                    extract_file(root.joinpath(*member.filename.split("/")), chunks(source), mode)
                task.advance(member.file_size)


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
    make_folder(work)
    make_folder(cache)
    with work_folder(work, prefix="compile-") as room:
        for name, data in (*job.sources, *job.link_inputs):
            extract_file(room / "tree" / name, [data])
        arguments = _arguments(job, zig.resolve(), room / "tree")
        _run_zig(arguments, room, cache.resolve(), subject=job.output)
        return _result(room / "out.bin", job)


def _arguments(job: CompileJob, zig: Path, tree: Path) -> list[str]:
    for path in (zig, tree):
        if "=" in str(path):
            raise UsageError(printable(str(path)), "has `=` in its name, which a path mapping cannot contain")
    target = f"-target {job.target_arch}-linux-gnu.{job.glibc} -std={job.language} -O2 -g0 -s".split()
    mapping = [f"-ffile-prefix-map={tree}=.", f"-ffile-prefix-map={zig.parent}=/zig", "-fno-sanitize=all"]
    link = ["-Wl,--build-id=sha1", *(("-shared", "-fPIC") if job.kind == "shared" else ())]
    if job.soname is not None:
        link.append(f"-Wl,-soname,{job.soname}")
    if job.version_script is not None:
        link.append(f"-Wl,--version-script,{job.version_script}")
    libraries = [name for name, _ in job.link_inputs if name != job.version_script]
    driver = "c++" if "++" in job.language else "cc"
    inputs = [*job.compile, *libraries, "-o", "../out.bin"]
    return [str(zig), driver, *target, *mapping, *link, *job.flags, *inputs]


def _run_zig(arguments: list[str], room: Path, cache: Path, *, subject: str) -> None:
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
    done = run("zig", arguments, folder=room / "tree", environment=environment, keep="first", seconds=COMPILE_SECONDS)
    if done.problem is not None:
        raise ToolError("zig", done.problem, where=subject)
    if done.status != 0:
        for folder in (room, cache):
            refuse_full(folder, done.errors)
        # The first errors of a compiler are the cause of the others.
        lines = [printable(line, 300) for line in done.errors.splitlines() if line.strip()]
        said = " | ".join(lines[:_LOG_LINES]) or "it said nothing"
        raise ToolError("zig", f"could not compile (status {done.status}): {said}", where=subject)


def _result(path: Path, job: CompileJob) -> bytes:
    try:
        with path.open("rb") as stream:
            data = stream.read(OUTPUT_BYTES + 1)
    except OSError as error:
        raise ToolError("zig", "ended well and made no file", actual=error.strerror, where=job.output) from error
    if len(data) > OUTPUT_BYTES:
        raise ToolError("zig", f"made a file of over {OUTPUT_BYTES} bytes", where=job.output)
    if data[:6] != b"\x7fELF\x02\x01" or int.from_bytes(data[18:20], "little") != _MACHINES[job.target_arch]:
        raise ToolError("zig", f"made no 64-bit ELF file for {job.target_arch}", where=job.output)
    return data
