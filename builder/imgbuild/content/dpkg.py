"""Debian packages of an image: what dpkg says is installed, and who says that a path is theirs.

Sources: Debian Policy, 5.1 ("Syntax of control files"); dpkg(1), files below `/var/lib/dpkg`. As in a RECORD, these are
claims that were written once. NOT read: `status.d` of images without dpkg, hashes (`*.md5sums`), diversions,
configuration files that are in no list, other package managers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from imgbuild.errors import ArchiveError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STATUS = b"var/lib/dpkg/status"
LISTS = b"var/lib/dpkg/info"
LIST = b".list"

_MAX_PACKAGES = 20_000
_MERGED = (b"bin", b"sbin", b"lib", b"lib32", b"lib64", b"libx32")
"""Folders at the root that may be links into `/usr`; packages name their files by either way."""
_BREAK = re.compile(rb"\n\n++")
_FIELD = re.compile(rb"^(Package|Version|Architecture|Status):[ \t]*+([^\n]*+)$", re.MULTILINE | re.IGNORECASE)
_NAME = re.compile(rb"[a-z0-9][a-z0-9+.-]{1,200}")
_WORD = re.compile(rb"[!-~]{1,300}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DebianPackage:
    """A package that dpkg has unpacked, and may have configured."""

    name: str
    version: str
    architecture: str

    @property
    def lists(self) -> tuple[bytes, bytes]:
        """The names that its list of files may have; the first where several architectures can be installed."""
        return f"{self.name}:{self.architecture}".encode() + LIST, self.name.encode() + LIST


def parse_status(raw: bytes, *, subject: str) -> tuple[DebianPackage, ...]:
    """The packages of `/var/lib/dpkg/status` whose files are in the image, in the order of the file.

    Raises:
        ArchiveError: a paragraph has no name, version, architecture or status that can be used, or one of them twice;
            two paragraphs are of one package; there are too many.
    """
    found: dict[tuple[str, str], DebianPackage] = {}
    for number, paragraph in enumerate(_paragraphs(raw), 1):
        if number > _MAX_PACKAGES:
            raise ArchiveError(subject, "has too many paragraphs", expected=f"at most {_MAX_PACKAGES}")
        package = _package(paragraph, subject=f"{subject}, paragraph {number}")
        if package is None:
            continue
        if found.setdefault((package.name, package.architecture), package) is not package:
            raise ArchiveError(subject, "has a package twice", actual=f"{package.name}:{package.architecture}")
    return tuple(found.values())


def _paragraphs(raw: bytes) -> Iterator[bytes]:
    return (part for part in _BREAK.split(raw.strip(b"\n")) if part.strip())


def _package(paragraph: bytes, *, subject: str) -> DebianPackage | None:
    """The package of a paragraph; None where only its configuration is left, or nothing."""
    rows = [(key.lower(), value.strip()) for key, value in _FIELD.findall(paragraph)]
    fields = dict(rows)
    if len(fields) != len(rows):
        raise ArchiveError(subject, "has a field twice")
    words = fields.get(b"status", b"").split()
    if len(words) != 3:  # noqa: PLR2004 - what is wanted, an error flag, what is
        raise ArchiveError(subject, "has no status of three words", actual=repr(fields.get(b"status", b"")[:80]))
    if words[2] in {b"not-installed", b"config-files"}:
        return None
    name, version, architecture = (fields.get(key, b"") for key in (b"package", b"version", b"architecture"))
    if not _NAME.fullmatch(name) or not _WORD.fullmatch(version) or not _NAME.fullmatch(architecture):
        raise ArchiveError(
            subject,
            "has no name, version and architecture that can be used",
            actual=f"{name[:80]!r}, {version[:80]!r}, {architecture[:80]!r}",
        )
    return DebianPackage(name=name.decode(), version=version.decode(), architecture=architecture.decode())


def names_of(path: bytes, is_link: Callable[[bytes], bool]) -> tuple[bytes, ...]:
    """A real path, and what packages may call it that were made when a folder at the root was no link into `/usr`.

    Args:
        path: without links in it.
        is_link: whether something at the root is a symbolic link; where it leads is not asked.
    """
    first, _, rest = path.removeprefix(b"usr/").partition(b"/")
    merged = path.startswith(b"usr/") and first in _MERGED and rest and is_link(first)
    return (path, first + b"/" + rest) if merged else (path,)


def lists_one(content: bytes, names: tuple[bytes, ...]) -> bool:
    """Whether a list of files (`NAME.list`) has one of some names."""
    framed = b"\n" + content + b"\n"
    return any(b"\n/" + name + b"\n" in framed for name in names)
