"""`/etc/ld.so.conf` as ldconfig reads it, and the tree of files in which a linker searches.

Source: `parse_conf` of glibc's `elf/ldconfig.c`.
"""

from __future__ import annotations

import fnmatch
import re
from typing import TYPE_CHECKING, Protocol

from imgbuild.errors import ArchiveError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from imgbuild.config import Limits

CONFIGURATION = b"/etc/ld.so.conf"
_INCLUDE_DEPTH = 16
"""files that include each other; ldconfig has no bound but its open files, real systems use 2."""
_INCLUDED_FILES = 1_000
"""configuration files."""
_LISTED_NAMES = 100_000
"""directory entries compared with the patterns of `include`."""
_MAGIC = re.compile(rb"[*?\[]")


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
    def soname(self) -> str | None:
        """DT_SONAME."""
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


class Configuration:
    """Reads `ld.so.conf`, one file after the other."""

    def __init__(self, tree: LibraryTree, limits: Limits) -> None:
        self._tree = tree
        self._limits = limits
        self.seen: set[bytes] = set()
        self._listed = 0
        self.directories: dict[bytes, None] = {}

    def parse(self, path: bytes, depth: int) -> None:
        """Read a file and what it includes; `depth` files include each other by now."""
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
                # "=libc6" and the like behind a directory said of which kind its libraries are.
                self.directories.setdefault(line.partition(b"=")[0].rstrip(b" \t/") or b"/")

    def _matches(self, pattern: bytes, path: bytes) -> list[bytes]:
        """The paths that a pattern matches, as glob(3) without flags gives them."""
        if not pattern.startswith(b"/"):
            pattern = joined(path.rpartition(b"/")[0], pattern)
        found = [b""]
        for part in pattern.lstrip(b"/").split(b"/"):
            if _MAGIC.search(part):
                found = [parent + b"/" + name for parent in found for name in self._names(parent or b"/", part, path)]
            else:
                found = [parent + b"/" + part for parent in found]
        return sorted(found)

    def _names(self, directory: bytes, pattern: bytes, path: bytes) -> list[bytes]:
        # glob(3) takes ^ for ! in brackets. Of escapes it knows, none is in any configuration that was seen.
        glob = pattern.replace(b"[^", b"[!")
        names = []
        for name in self._tree.listdir(directory):
            self._listed += 1
            self._bound(path, "has patterns that look at too many files", _LISTED_NAMES, self._listed)
            if name.startswith(b".") == pattern.startswith(b".") and fnmatch.fnmatchcase(name, glob):
                names.append(name)
        return names

    @staticmethod
    def _bound(path: bytes, problem: str, most: int, actual: int) -> None:
        if actual > most:
            raise ArchiveError(shown(path), problem, expected=f"at most {most}", actual=actual)


def shown(path: bytes) -> str:
    """A path for people."""
    return path.decode("utf-8", "backslashreplace")


def joined(directory: bytes, name: bytes) -> bytes:
    """A name in a directory."""
    return directory.rstrip(b"/") + b"/" + name
