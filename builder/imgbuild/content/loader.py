"""Which file the dynamic linker takes for a NEEDED name, computed over a tree without running anything.

Follows glibc: ld.so(8) "DESCRIPTION" and "Dynamic string tokens", `elf/dl-load.c`, and ldconfig(8) with `parse_conf`
of `elf/ldconfig.c` for `/etc/ld.so.conf`. The order for a name without a slash: DT_RPATH of the consumer (only if it
has no DT_RUNPATH), LD_LIBRARY_PATH, DT_RUNPATH of the consumer, the configured directories, the default directories.
A file of another machine or class is passed over; a file that is no ELF file ends the search, as it ends the program
("invalid ELF header", "file too short").

NOT modelled, so a real process can differ:
- `ld.so.cache` is not read: the configured directories are searched as if ldconfig had just run. Of its rules only the
  names (`lib*.so*`, `ld-*.so*`) are applied; that it lists a regular file by SONAME and not by file name is not.
- DT_RPATH of the parents that loaded the consumer, and of the program, which apply after the consumer's own.
- what is already loaded: a library whose SONAME or path is in the process is not searched again (LD_PRELOAD,
  /etc/ld.so.preload, `dlopen` with a path, an earlier consumer), and LD_AUDIT, DT_FILTER, DT_AUXILIARY.
- subdirectories for processors (`glibc-hwcaps`, `tls`, platform); DF_1_NODEFLIB; that LD_LIBRARY_PATH is ignored in
  set-user-ID programs; `$ORIGIN` in LD_LIBRARY_PATH, which is the program's, is taken as the consumer's.
- musl's linker, which has other rules.
The default directories are the union of what Debian's and Red Hat's builds of glibc have built in.
"""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from imgbuild.config import DEFAULT_LIMITS, Limits
from imgbuild.errors import ArchiveError, MissingError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_CONFIGURATION = b"/etc/ld.so.conf"
_BITS = {"aarch64": 64, "x86_64": 64}
"""machines that are known, and their class; x32 and ILP32 programs have another linker."""
_INCLUDE_DEPTH = 16
"""files that include each other; ldconfig has no bound but its open files, real systems use 2."""
_INCLUDED_FILES = 1_000
"""configuration files."""
_LISTED_NAMES = 100_000
"""directory entries compared with the patterns of `include`."""
_TOKEN = re.compile(rb"\$(?:\{(ORIGIN|LIB|PLATFORM)\}|(ORIGIN|LIB|PLATFORM)(?![A-Za-z0-9_]))")
_CACHED_NAME = re.compile(rb"(?:lib|ld-).*\.so.*", re.DOTALL)
_MAGIC = re.compile(rb"[*?\[]")
_ESCAPED = re.compile(rb"\\x[0-9a-f]{2}")
"""How `content.elf` shows a byte that is not UTF-8; a name with these very characters cannot be told from one."""


_Candidate = tuple[str, bytes, bytes, str | None]


class LinkedFile(Protocol):
    """What the search asks of an ELF file; `content.elf.ElfFacts` and `content.inventory.ElfRecord` say it."""

    @property
    def machine(self) -> str:
        """`aarch64`, `x86_64` or another."""
        ...

    @property
    def bits(self) -> int:
        """32 or 64."""
        ...

    @property
    def kind(self) -> str:
        """`shared`, `pie`, `executable` or another."""
        ...

    @property
    def rpath(self) -> tuple[str, ...]:
        """DT_RPATH, split at `:`."""
        ...

    @property
    def runpath(self) -> tuple[str, ...]:
        """DT_RUNPATH, split at `:`."""
        ...


class LibraryTree(Protocol):
    """The files of an image, seen from its root. Paths are bytes; those with a leading slash are absolute."""

    def resolve(self, path: bytes) -> bytes | None:
        """The real path (no leading slash) of an existing regular file, links and `..` followed as by Linux."""
        ...

    def listdir(self, path: bytes) -> Iterable[bytes]:
        """Names in a directory, links followed; empty where it is absent or no directory."""
        ...

    def read(self, path: bytes) -> bytes | None:
        """The content of a small file, links followed; None where it is absent."""
        ...

    def elf(self, path: bytes) -> LinkedFile | None:
        """The facts of the file at a real path; None where it is no readable ELF file."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchStep:
    """One candidate.

    Attributes:
        rule: `rpath`, `LD_LIBRARY_PATH`, `runpath`, `ld.so.conf`, `default`, or `path` for a name with a slash.
        directory: where it was looked for, tokens expanded.
        candidate: the path that ld.so would open.
        outcome: `absent`, `wrong machine`, `not ELF` (ends the search) or `taken`.
        doubt: why ld.so may look elsewhere than in `directory`, None where that is known.
    """

    rule: str
    directory: bytes
    candidate: bytes
    outcome: str
    doubt: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """The answer for one NEEDED name; `provider` is a real path without leading slash, None if the load would fail."""

    consumer: bytes
    needed: str
    provider: bytes | None
    steps: tuple[SearchStep, ...]

    @property
    def rule(self) -> str | None:
        """The rule of the last candidate; None without any."""
        return self.steps[-1].rule if self.steps else None

    @property
    def doubt(self) -> str | None:
        """Why a process may find another file: the first doubt among the candidates. None is no proof (see above)."""
        if _ESCAPED.search(_bytes_of(self.needed)):
            return f"the name {self.needed} has bytes that are not UTF-8"
        return next((step.doubt for step in self.steps if step.doubt is not None), None)


class Linker:
    """The search of one machine's dynamic linker over one tree.

    Args:
        tree: the files.
        machine: `aarch64` or `x86_64`; anything else is a `UsageError`.
        library_path: LD_LIBRARY_PATH of the image, split at `:` and `;`; an empty item is the working directory.
        working_directory: absolute path against which relative directories are taken (WorkingDir of the image).
        configured: whether the directories of `/etc/ld.so.conf` are searched; without `ld.so.cache` they are not.
        limits: `captured_file_bytes` bounds each configuration file.
    """

    def __init__(
        self,
        tree: LibraryTree,
        *,
        machine: str,
        library_path: tuple[str, ...] = (),
        working_directory: bytes = b"/",
        configured: bool = True,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        if machine not in _BITS:
            raise UsageError(
                f"machine {machine!r}", "is not one whose linker is known", expected=", ".join(sorted(_BITS))
            )
        self._tree = tree
        self._machine = machine
        self._library_path = tuple(map(_bytes_of, library_path))
        self._working_directory = working_directory
        self._limits = limits
        self._reader: _Configuration | None = None
        self._use_configured = configured
        multiarch = f"lib/{machine}-linux-gnu".encode()
        debian = any(True for _ in tree.listdir(b"/" + multiarch)) or any(
            True for _ in tree.listdir(b"/usr/" + multiarch)
        )
        self._lib = multiarch if debian else b"lib64"
        self._defaults = (b"/" + multiarch, b"/usr/" + multiarch, b"/lib", b"/usr/lib", b"/lib64", b"/usr/lib64")

    def resolve(self, consumer: bytes, needed: str) -> Resolution:
        r"""Find the provider of one NEEDED name.

        Args:
            consumer: the path under which the file is loaded. `$ORIGIN` is its directory as spelled for a library
                (ld.so does not follow the last links) and the real one for a program.
            needed: the name as in `ElfFacts.needed`; one with escaped bytes (`\\xNN`) is looked for as written.

        Raises:
            MissingError: the consumer is not in the tree or is no ELF file.
            ArchiveError: the linker's configuration exceeds a limit.
        """
        real = self._tree.resolve(consumer)
        facts = None if real is None else self._tree.elf(real)
        if real is None or facts is None:
            raise MissingError(_shown(consumer), "is not an ELF file of the tree, so nothing can be needed by it")
        place = real if facts.kind in ("pie", "executable") else consumer
        origin = b"/" + place.lstrip(b"/").rpartition(b"/")[0]
        steps = []
        provider = None
        candidates = self._candidates(facts, origin, self._expand(_bytes_of(needed), origin))
        for rule, directory, candidate, doubt in candidates:
            found = self._tree.resolve(candidate)
            outcome = self._judge(found)
            steps.append(SearchStep(rule=rule, directory=directory, candidate=candidate, outcome=outcome, doubt=doubt))
            if outcome == "taken":
                provider = found
            if outcome in ("taken", "not ELF"):
                break
        return Resolution(consumer=consumer, needed=needed, provider=provider, steps=tuple(steps))

    def configured_directories(self) -> tuple[bytes, ...]:
        """The directories of `/etc/ld.so.conf` and what it includes, in order, each once.

        As ldconfig reads them: `#` starts a comment, `include` takes patterns relative to the including file, a
        pattern's matches come sorted by byte, `hwcap` lines and relative directories are passed over. A file that
        was read before is not read again, so that a cycle ends.

        Raises:
            ArchiveError: too many, too large or too deeply nested files.
        """
        return tuple(self._configuration().directories)

    def configuration_files(self) -> tuple[bytes, ...]:
        """The real paths of the files that `configured_directories` comes from, in no order; it raises the same."""
        return tuple(self._configuration().seen)

    def _configuration(self) -> _Configuration:
        if self._reader is None:
            reader = _Configuration(self._tree, self._limits)
            reader.parse(_CONFIGURATION, 0)
            self._reader = reader
        return self._reader

    def _candidates(self, facts: LinkedFile, origin: bytes, name: bytes) -> Iterator[_Candidate]:
        """Rule, directory and path of what ld.so would try to open, in its order, and what is in doubt about it."""
        if b"/" in name:
            path = self._absolute(name)
            yield "path", path.rpartition(b"/")[0] or b"/", path, _doubt("the name", name)
            return
        for rule, directories in (
            ("rpath", () if facts.runpath else _items(facts.rpath)),
            ("LD_LIBRARY_PATH", self._library_path),
            ("runpath", _items(facts.runpath)),
        ):
            for item in directories:
                text = self._expand(item, origin)
                doubt = _doubt(f"an item of {rule}", text)
                if rule == "LD_LIBRARY_PATH" and _TOKEN.search(item):
                    doubt = f"{_shown(item)} in {rule} depends on the program"
                directory = self._absolute(text)
                yield rule, directory, _joined(directory, name), doubt
        if self._use_configured and _CACHED_NAME.fullmatch(name):
            for directory in self.configured_directories():
                yield "ld.so.conf", directory, _joined(directory, name), None
        for directory in self._defaults:
            yield "default", directory, _joined(directory, name), None

    def _judge(self, found: bytes | None) -> str:
        if found is None:
            return "absent"
        facts = self._tree.elf(found)
        if facts is None:
            return "not ELF"
        if facts.machine != self._machine or facts.bits != _BITS[self._machine]:
            return "wrong machine"
        return "taken"

    def _expand(self, text: bytes, origin: bytes) -> bytes:
        """Replace the dynamic string tokens; an unknown one stays as it is."""
        values = {b"ORIGIN": origin, b"LIB": self._lib, b"PLATFORM": self._machine.encode()}
        return _TOKEN.sub(lambda match: values[match[1] or match[2]], text)

    def _absolute(self, path: bytes) -> bytes:
        """Textual only: `..` is left to the tree, since it may follow a link."""
        path = path if path.startswith(b"/") else _joined(self._working_directory, path)
        return path.rstrip(b"/") or b"/"


class _Configuration:
    """Reads `ld.so.conf`, one file after the other."""

    def __init__(self, tree: LibraryTree, limits: Limits) -> None:
        self._tree = tree
        self._limits = limits
        self.seen: set[bytes] = set()
        self._listed = 0
        self.directories: dict[bytes, None] = {}

    def parse(self, path: bytes, depth: int) -> None:
        real = self._tree.resolve(path)
        if real is None or real in self.seen:
            return
        self.seen.add(real)
        self._bound(path, "includes other files too deeply", _INCLUDE_DEPTH, depth)
        self._bound(path, "is one of too many configuration files", _INCLUDED_FILES, len(self.seen))
        content = self._tree.read(path) or b""
        self._bound(path, "is too long", self._limits.captured_file_bytes, len(content))
        for raw in content.split(b"\n"):
            line = raw.partition(b"#")[0].strip(b" \t\r\f\v")
            word, _, rest = line.replace(b"\t", b" ").partition(b" ")
            if word == b"include" and rest:
                for pattern in rest.split():
                    for match in self._matches(pattern, path):
                        self.parse(match, depth + 1)
            elif line.startswith(b"/"):
                self.directories.setdefault(line.rstrip(b"/") or b"/")

    def _matches(self, pattern: bytes, path: bytes) -> list[bytes]:
        """The paths that a pattern matches, as glob(3) without flags gives them."""
        if not pattern.startswith(b"/"):
            pattern = _joined(path.rpartition(b"/")[0], pattern)
        found = [b""]
        for part in pattern.lstrip(b"/").split(b"/"):
            if _MAGIC.search(part):
                found = [parent + b"/" + name for parent in found for name in self._names(parent or b"/", part, path)]
            else:
                found = [parent + b"/" + part for parent in found]
        return sorted(found)

    def _names(self, directory: bytes, pattern: bytes, path: bytes) -> list[bytes]:
        names = []
        for name in self._tree.listdir(directory):
            self._listed += 1
            self._bound(path, "has patterns that look at too many files", _LISTED_NAMES, self._listed)
            if name.startswith(b".") == pattern.startswith(b".") and fnmatch.fnmatchcase(name, pattern):
                names.append(name)
        return names

    @staticmethod
    def _bound(path: bytes, problem: str, most: int, actual: int) -> None:
        if actual > most:
            raise ArchiveError(_shown(path), problem, expected=f"at most {most}", actual=actual)


def _doubt(what: str, path: bytes) -> str | None:
    """Why ld.so may take another path than this one."""
    if not path.startswith(b"/"):
        return f"{what} is relative to the working directory of the process: {_shown(path) or 'an empty one'}"
    if _ESCAPED.search(path):
        return f"{what} has bytes that are not UTF-8: {_shown(path)}"
    return None


def _items(directories: tuple[str, ...]) -> tuple[bytes, ...]:
    """A present but empty DT_RPATH or DT_RUNPATH is no directory, while empty items among others are."""
    return () if directories == ("",) else tuple(map(_bytes_of, directories))


def _bytes_of(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")


def _shown(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace")


def _joined(directory: bytes, name: bytes) -> bytes:
    return directory.rstrip(b"/") + b"/" + name
