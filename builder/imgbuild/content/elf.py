r"""What the dynamic linker reads in an ELF file: machine, names, versions and dynamic symbols.

The facts come from the program headers and the dynamic table, as `ld.so` takes them, never from section headers,
which may be stripped and may lie. Sources: System V gABI chapters 4 and 5, the GNU extensions described in LSB Core
5.0 (symbol versions) and glibc's `elf/dl-load.c`, `elf/dl-lookup.c`. All records are decoded with `struct`, since
pyelftools takes about 30 microseconds for each, and an image has a hundred thousand; the names of machines are its own.

Names in ELF files are bytes. They are decoded as UTF-8, and a byte that is not UTF-8 becomes the four characters
`\xNN` (Python's `backslashreplace`): every name can be written as JSON, and no file is refused for its names.

NOT checked: signatures, relocations, code, that a symbol's hash leads to it, alignment and protection of segments.
Notes in sections of relocatable files (kernel modules) are not read.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from imgbuild.config import DEFAULT_LIMITS, Limits
from imgbuild.content.elfdynamic import Dynamic
from imgbuild.content.elfimage import Image, is_elf

__all__ = ["ElfFacts", "is_elf", "newest_glibc", "newest_version", "read_elf"]

if TYPE_CHECKING:
    from collections.abc import Iterable

_ET_EXEC, _ET_DYN = 2, 3
_KINDS = {
    0: "none",
    1: "relocatable",
    _ET_EXEC: "executable",
    _ET_DYN: "shared",
    4: "core",
    0xFF00: "loproc",
    0xFFFF: "hiproc",
}
_MACHINES = {62: "x86_64", 183: "aarch64"}
_VERSION = re.compile(r"([A-Z]{1,20})_([0-9]{1,4}(?:\.[0-9]{1,4})*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ElfFacts:
    """The facts of one ELF file. A relocatable, core or statically linked file has empty dynamic facts.

    Attributes:
        machine: `aarch64`, `x86_64`, else the gABI's name without `EM_` in lower case, or the number as text.
        bits: 32 or 64.
        little_endian: the order of bytes.
        kind: `shared`, `executable` (fixed address), `pie`, `relocatable`, `core`, else the lower-case name or number
            of e_type. ET_DYN is `pie` when it says so (DF_1_PIE), or has an interpreter and no SONAME: libc.so.6 has
            both and is a library.
        soname: DT_SONAME, None where absent.
        needed: DT_NEEDED in the order of the table.
        rpath: DT_RPATH, split at `:`; empty items (the working directory) are kept. `()` where absent;
            one empty item where present and empty, which stands for no directory.
        runpath: DT_RUNPATH, likewise. Where it is present, even if empty, ld.so ignores `rpath`.
        interpreter: PT_INTERP, None where absent.
        build_id: lower-case hexadecimal digits of NT_GNU_BUILD_ID, None where absent.
        imports: undefined dynamic symbols (weak ones too), sorted, each once: `name`, or `name@VERSION`.
        exports: defined dynamic symbols that other files can bind to (global, weak or unique; default or protected
            visibility), sorted, each once, as `elfversions.Versions.of` says: `name`, `name@VERSION`, `name@@VERSION`.
            Includes the absolute symbols that name version nodes.
        versions_needed: for each file name, sorted, the sorted version names wanted from it (`GLIBC_2.17`), without
            weak ones, of which ld.so only warns.
        versions_defined: sorted version names that the file defines, with the base one (its own name).
    """

    machine: str
    bits: int
    little_endian: bool
    kind: str
    soname: str | None = None
    needed: tuple[str, ...] = ()
    rpath: tuple[str, ...] = ()
    runpath: tuple[str, ...] = ()
    interpreter: str | None = None
    build_id: str | None = None
    imports: tuple[str, ...] = ()
    exports: tuple[str, ...] = ()
    versions_needed: tuple[tuple[str, tuple[str, ...]], ...] = ()
    versions_defined: tuple[str, ...] = ()


def read_elf(data: BinaryIO, *, subject: str, limits: Limits = DEFAULT_LIMITS) -> ElfFacts:
    """Read the facts of an ELF file, by seeking: only headers and dynamic tables are read, never the whole file.

    Args:
        data: the file, seekable; its position is moved.
        subject: the name of the file in errors.
        limits: `elf_symbols` and `path_bytes` are used; the other bounds are constants of `elfimage` and
            `elfdynamic`.

    Raises:
        ArchiveError: the file is cut off, damaged, contradicts itself or exceeds a limit.
    """
    image = Image(data, subject, limits)
    header = image.header()
    machine = machine_name(header.machine)
    facts: dict[str, Any] = {
        "machine": machine,
        "bits": header.bits,
        "little_endian": image.order == "<",
        "kind": _KINDS.get(header.kind, str(header.kind)),
    }
    if header.kind in (_ET_EXEC, _ET_DYN):
        image.map_segments(header)
        facts["interpreter"] = image.interpreter()
        facts["build_id"] = image.build_id()
        table = Dynamic(image, header.bits, machine)
        facts.update(table.facts())
        if table.is_pie or (header.kind == _ET_DYN and facts["interpreter"] and not facts.get("soname")):
            facts["kind"] = "pie"
    return ElfFacts(**facts)


@functools.cache
def machine_name(number: int) -> str:
    """The name of an e_machine as `ElfFacts` has it."""
    if number in _MACHINES:
        return _MACHINES[number]
    from elftools.elf.enums import ENUM_E_MACHINE  # noqa: PLC0415 - takes as long as a hundred files

    # Of two names for one number the later counts.
    names = {value: name for name, value in ENUM_E_MACHINE.items() if isinstance(value, int)}
    return names[number].removeprefix("EM_").lower() if number in names else str(number)


def newest_glibc(names: Iterable[str]) -> str | None:
    """The newest of versions named `GLIBC_x.y`, as `x.y`; GLIBC_PRIVATE and the like do not count."""
    return newest_version(names, "GLIBC")


def newest_version(names: Iterable[str], family: str) -> str | None:
    """The newest of versions named by a family and a number, such as `GLIBCXX_3.4.22`, as `3.4.22`."""
    matches = [match for name in names if (match := _VERSION.fullmatch(name)) and match[1] == family]
    return max((match[2] for match in matches), key=lambda text: tuple(map(int, text.split("."))), default=None)
