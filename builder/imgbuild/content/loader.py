"""Which file the dynamic linker takes for a NEEDED name, computed over a tree without running anything.

Follows glibc: ld.so(8) "DESCRIPTION" and "Dynamic string tokens", `elf/dl-load.c`, and ldconfig(8) with `parse_conf`
of `elf/ldconfig.c` for `/etc/ld.so.conf`. The order for a name without a slash: DT_RPATH of the consumer (only if it
has no DT_RUNPATH), LD_LIBRARY_PATH, DT_RUNPATH of the consumer, `ld.so.cache`, the default directories. The cache is
one that is given; without one, it is taken to list the configured directories as if ldconfig had just run, or nothing.
In each directory, folders of `glibc-hwcaps` and the older ones for processors come first: a file there is taken by some
processors only, so it is named as a doubt and the search goes on.
A file of another machine or class is passed over; a file that is no ELF file ends the search, as it ends the program
("invalid ELF header", "file too short").

NOT modelled, so a real process can differ:
- of the rules by which ldconfig fills a cache the names (`lib*.so*`, `ld-*.so*`) and SONAMEs are applied; which of
  several versions of one SONAME it takes is not, nor that ld.so compares numbers in names as numbers.
- a folder that goes by the name of a library, which ends the search.
- DT_RPATH of the files that loaded the consumer, where `loaders` does not name them, and of the program.
- what is already loaded: a library whose SONAME or path is in the process is not searched again (LD_PRELOAD,
  /etc/ld.so.preload, `dlopen` with a path, an earlier consumer), and LD_AUDIT, DT_FILTER, DT_AUXILIARY.
- DF_1_NODEFLIB; that LD_LIBRARY_PATH is ignored in set-user-ID programs; `$ORIGIN` in LD_LIBRARY_PATH, which is the
  program's, is taken as the consumer's.
- musl's linker, which has other rules.
The default directories are the union of what Debian's and Red Hat's builds of glibc have built in.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from imgbuild.config import DEFAULT_LIMITS, Limits
from imgbuild.content.ldconf import CONFIGURATION, Configuration, joined, shown
from imgbuild.errors import MissingError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imgbuild.content.ldcache import LdCache
    from imgbuild.content.ldconf import LibraryTree, LinkedFile

_BITS = {"aarch64": 64, "x86_64": 64}
"""machines that are known, and their class; x32 and ILP32 programs have another linker."""
_TOKEN = re.compile(rb"\$(?:\{(ORIGIN|LIB|PLATFORM)\}|(ORIGIN|LIB|PLATFORM)(?![A-Za-z0-9_]))")
_CACHED_NAME = re.compile(rb"(?:lib|ld-).*\.so.*", re.DOTALL)
_ESCAPED = re.compile(rb"\\x[0-9a-f]{2}")
"""How `content.elf` shows a byte that is not UTF-8; a name with these very characters cannot be told from one."""


_HWCAPS = b"glibc-hwcaps"
_PLATFORMS = (b"atomics", b"aarch64", b"x86_64", b"haswell", b"xeon_phi")
_OLD_HWCAPS = (b"tls", *_PLATFORMS, *(b"tls/" + name for name in _PLATFORMS))
"""Folders that glibc before 2.37 looks into."""
_Candidate = tuple[str, bytes, bytes, str | None]
"""Rule, directory and path of what ld.so would try to open, and what is in doubt about it."""


_VARIANT = "some processors"
"""In place of a doubt: whether there is one is known when the file is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchStep:
    """One candidate.

    Attributes:
        rule: `rpath`, `rpath of a loader`, `LD_LIBRARY_PATH`, `runpath`, `ld.so.cache`, `ld.so.conf`, `default`, or
            `path` for a name with a slash.
        directory: where it was looked for, tokens expanded.
        candidate: the path that ld.so would open.
        outcome: `absent`, `wrong machine`, `not ELF` (ends the search), `taken`, or `some processors` (the search goes
            on for others).
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
        cache: `ld.so.cache`; it takes the place of the configured directories.
        configured: without a cache, whether the directories of `/etc/ld.so.conf` are searched as if one were new.
        limits: `captured_file_bytes` bounds each configuration file.
    """

    def __init__(
        self,
        tree: LibraryTree,
        *,
        machine: str,
        library_path: tuple[str, ...] = (),
        working_directory: bytes = b"/",
        cache: LdCache | None = None,
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
        self._reader: Configuration | None = None
        self._cache = cache
        self._use_configured = configured
        self._variants: dict[bytes, tuple[bytes, ...]] = {}
        self._sonames: dict[bytes, dict[bytes, list[bytes]]] = {}
        multiarch = f"lib/{machine}-linux-gnu".encode()
        debian = any(True for _ in tree.listdir(b"/" + multiarch)) or any(
            True for _ in tree.listdir(b"/usr/" + multiarch)
        )
        self._lib = multiarch if debian else b"lib64"
        self._defaults = (b"/" + multiarch, b"/usr/" + multiarch, b"/lib", b"/usr/lib", b"/lib64", b"/usr/lib64")

    def resolve(self, consumer: bytes, needed: str, *, loaders: tuple[bytes, ...] = ()) -> Resolution:
        r"""Find the provider of one NEEDED name.

        Args:
            consumer: the path under which the file is loaded. `$ORIGIN` is its directory as spelled for a library
                (ld.so does not follow the last links) and the real one for a program.
            needed: the name as in `ElfFacts.needed`; one with escaped bytes (`\\xNN`) is looked for as written.
            loaders: the files because of which it is loaded, the nearest first. Their DT_RPATH counts after its own,
                unless it has DT_RUNPATH.

        Raises:
            MissingError: the consumer is not in the tree or is no ELF file.
            ArchiveError: the linker's configuration exceeds a limit.
        """
        real = self._tree.resolve(consumer)
        facts = None if real is None else self._tree.elf(real)
        if real is None or facts is None:
            raise MissingError(shown(consumer), "is not an ELF file of the tree, so nothing can be needed by it")
        origin = _origin(consumer, real, facts)
        above = [] if facts.runpath else [chain for path in loaders if (chain := self._inherited(path)) is not None]
        steps: list[tuple[SearchStep, bytes | None]] = []
        provider = None
        candidates = self._candidates(facts, origin, self._expand(_bytes_of(needed), origin), above)
        for rule, directory, candidate, unsure in candidates:
            found = self._tree.resolve(candidate)
            outcome, doubt = self._judge(found), unsure
            if unsure is _VARIANT:
                # A cache that lists what is not there sends such processors to the default folders.
                if outcome == "wrong machine" or (outcome == "absent" and rule != "ld.so.cache"):
                    continue
                outcome, doubt = "some processors", f"some processors take {shown(candidate)}"
            step = SearchStep(rule=rule, directory=directory, candidate=candidate, outcome=outcome, doubt=doubt)
            steps.append((step, found))
            if outcome == "taken":
                provider = found
            if outcome in ("taken", "not ELF"):
                break
        sure = tuple(
            replace(step, doubt=None) if step.outcome == "some processors" and found == provider else step
            for step, found in steps
        )
        return Resolution(consumer=consumer, needed=needed, provider=provider, steps=sure)

    def configured_directories(self) -> tuple[bytes, ...]:
        """The directories of `/etc/ld.so.conf` and what it includes, in order, each once.

        As ldconfig reads them: `#` starts a comment, `include` takes patterns relative to the including file, a
        pattern's matches come sorted by byte, `hwcap` lines and relative directories are passed over. A file that
        was read before is not read again, so that a cycle ends.

        Raises:
            ArchiveError: too many, too large or too deeply nested files.
        """
        return tuple(self._configuration().directories)

    def _configuration(self) -> Configuration:
        if self._reader is None:
            reader = Configuration(self._tree, self._limits)
            reader.parse(CONFIGURATION, 0)
            self._reader = reader
        return self._reader

    def _inherited(self, path: bytes) -> tuple[bytes, tuple[bytes, ...]] | None:
        """The origin of a file that loads others, and the items of its DT_RPATH, if they count."""
        real = self._tree.resolve(path)
        facts = None if real is None else self._tree.elf(real)
        if real is None or facts is None or facts.runpath:
            return None
        return _origin(path, real, facts), _items(facts.rpath)

    def _candidates(
        self, facts: LinkedFile, origin: bytes, name: bytes, above: list[tuple[bytes, tuple[bytes, ...]]]
    ) -> Iterator[_Candidate]:
        """What ld.so would try to open, in its order."""
        if b"/" in name:
            path = self._absolute(name)
            yield "path", path.rpartition(b"/")[0] or b"/", path, _doubt("the name", name)
            return
        for rule, place, directories in (
            ("rpath", origin, () if facts.runpath else _items(facts.rpath)),
            *(("rpath of a loader", start, items) for start, items in above),
            ("LD_LIBRARY_PATH", origin, self._library_path),
            ("runpath", origin, _items(facts.runpath)),
        ):
            for item in directories:
                text = self._expand(item, place)
                doubt = _doubt(f"an item of {rule}", text)
                if rule == "LD_LIBRARY_PATH" and _TOKEN.search(item):
                    doubt = f"{shown(item)} in {rule} depends on the program"
                yield from self._within(rule, self._absolute(text), name, doubt)
        yield from self._by_cache(name)
        for directory in self._defaults:
            yield from self._within("default", directory, name, None)

    def _by_cache(self, name: bytes) -> Iterator[_Candidate]:
        if self._cache is not None:
            for entry in self._cache.lookup(name):
                directory = entry.path.rpartition(b"/")[0] or b"/"
                yield "ld.so.cache", directory, entry.path, _VARIANT if entry.conditional else None
                if not entry.conditional:
                    return
        elif self._use_configured and _CACHED_NAME.fullmatch(name):
            for directory in self.configured_directories():
                yield from self._within("ld.so.conf", directory, name, None)
            # For a library without a link of its SONAME ldconfig makes one, and lists it.
            for directory in (*self.configured_directories(), *self._defaults):
                if self._tree.resolve(joined(directory, name)) is None:
                    for found in self._by_soname(directory).get(name, ()):
                        yield "ld.so.conf", directory, joined(directory, found), None

    def _by_soname(self, directory: bytes) -> dict[bytes, list[bytes]]:
        """The names of the libraries in a directory by their SONAMEs."""
        if directory not in self._sonames:
            found: dict[bytes, list[bytes]] = {}
            for name in self._tree.listdir(directory):
                real = self._tree.resolve(joined(directory, name)) if _CACHED_NAME.fullmatch(name) else None
                elf = None if real is None else self._tree.elf(real)
                if elf is not None and elf.soname is not None:
                    found.setdefault(_bytes_of(elf.soname), []).append(name)
            self._sonames[directory] = found
        return self._sonames[directory]

    def _within(self, rule: str, directory: bytes, name: bytes, doubt: str | None) -> Iterator[_Candidate]:
        """A directory, after those in it that are for some processors."""
        if directory not in self._variants:
            nested = joined(directory, _HWCAPS)
            newer = (joined(nested, folder) for folder in self._tree.listdir(nested))
            inside = set(self._tree.listdir(directory))
            older = (joined(directory, folder) for folder in _OLD_HWCAPS if folder.partition(b"/")[0] in inside)
            self._variants[directory] = (*newer, *older)
        for variant in self._variants[directory]:
            yield rule, variant, joined(variant, name), _VARIANT
        yield rule, directory, joined(directory, name), doubt

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
        path = path if path.startswith(b"/") else joined(self._working_directory, path)
        return path.rstrip(b"/") or b"/"


def _origin(path: bytes, real: bytes, facts: LinkedFile) -> bytes:
    """The folder of a file: as spelled for a library, and the real one for a program."""
    place = real if facts.kind in ("pie", "executable") else path
    return b"/" + place.lstrip(b"/").rpartition(b"/")[0]


def _doubt(what: str, path: bytes) -> str | None:
    """Why ld.so may take another path than this one."""
    if not path.startswith(b"/"):
        return f"{what} is relative to the working directory of the process: {shown(path) or 'an empty one'}"
    if _ESCAPED.search(path):
        return f"{what} has bytes that are not UTF-8: {shown(path)}"
    return None


def _items(directories: tuple[str, ...]) -> tuple[bytes, ...]:
    """A present but empty DT_RPATH or DT_RUNPATH is no directory, while empty items among others are."""
    return () if directories == ("",) else tuple(map(_bytes_of, directories))


def _bytes_of(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")
