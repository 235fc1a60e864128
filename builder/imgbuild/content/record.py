"""RECORD, the list of a distribution's files (PEP 376, "RECORD"; PEP 627): read, asked by path, rewritten in one row.

Nearly all RECORDs have a plain form that one regular expression recognises; their rows stay bytes until somebody asks
for them. All others are read row by row with `csv`. Both ways give the same rows, and only the second gives errors.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import itertools
import posixpath
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from imgbuild.errors import StepError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SHA256_BYTES = 32
_SHA256 = b"sha256="
_UP = b"../"
# Parts and repeats are bounded so that no name is longer than the largest field of `csv`. Every repeat is possessive
# and nothing in one can give back what it took: time is linear.
_PART = rb'\.?+[^\0\r\n",/.][^\0\r\n",/]{0,254}+'
_NAME = rb"(?:\.\./){0,64}+" + _PART + rb"(?:/" + _PART + rb"){0,255}+"
_PLAIN = re.compile(rb"(?:" + _NAME + rb",(?:sha256=[A-Za-z0-9_-]{43})?+,[0-9]{0,19}+\r?+\n)*+")

Claim = tuple[bytes, bytes, bytes]
"""Path in the image, hash as RECORD writes one by sha256 (b"" without), size in decimal digits (b"" without)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRow:
    """One row: path in the image, sha256 in hex (None without one), size in bytes.

    `algorithm` names the one of the row's hash where it is not sha256.
    """

    path: bytes
    sha256: str | None
    size: int | None
    algorithm: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """The bytes of a RECORD, and its rows if it is not in the plain form."""

    raw: bytes
    odd: tuple[RecordRow, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """What is asked of every RECORD of an image, so that most of them need not be read.

    Attributes:
        sha256: in hex, of the file.
        rows: how many rows there are.
        hashed: how many of them have a sha256.
        foreign: how many have a hash by another algorithm.
        folders: those in which the paths lie, each once; b"" is the root. Links are not followed.
    """

    sha256: str
    rows: int
    hashed: int
    foreign: int
    folders: frozenset[bytes]


class Record:
    """A RECORD. Make it with `read_record`. What it says about files is not compared with them here."""

    def __init__(self, site: bytes, content: Callable[[], Content], outline: Outline | None = None) -> None:
        """Nothing is read yet.

        Args:
            site: the folder in the image from which relative names start, without `.`, `..` or slashes around it.
            content: reads it, once, when more is asked than the outline says.
            outline: where it is known already; it must be that of the content.
        """
        self.site = site
        self._read = content
        if outline is not None:
            self.outline = outline

    def __eq__(self, other: object) -> bool:
        """Whether site and bytes are the same."""
        if not isinstance(other, Record):
            return NotImplemented
        return self is other or (self.site == other.site and self.outline.sha256 == other.outline.sha256)

    def __hash__(self) -> int:
        """By the bytes."""
        return hash((self.site, self.outline.sha256))

    def __len__(self) -> int:
        """How many rows there are."""
        return self.outline.rows

    @cached_property
    def _content(self) -> Content:
        return self._read()

    @property
    def raw(self) -> bytes:
        """The bytes of the file."""
        return self._content.raw

    @cached_property
    def outline(self) -> Outline:
        """The outline, from the content."""
        raw, odd = self._content.raw, self._content.odd
        sha256 = hashlib.sha256(raw).hexdigest()
        if odd is not None:
            hashed = sum(1 for row in odd if row.sha256 is not None)
            folders = frozenset(row.path.rpartition(b"/")[0] for row in odd)
            return Outline(
                sha256=sha256, rows=len(odd), hashed=hashed, foreign=len(self._other_hashes()), folders=folders
            )
        # Neither hash nor size has a slash in the plain form, so a line can be cut as if it were a path.
        names = {line.rpartition(b"/")[0] for line in self._lines()}
        prefix = self._prefix
        folders = frozenset(
            _normal(prefix + name) if name.startswith(b"..") else prefix + name if name else self.site for name in names
        )
        rows = raw.count(b"\n") + (raw != b"" and not raw.endswith(b"\n"))
        return Outline(sha256=sha256, rows=rows, hashed=raw.count(b"," + _SHA256), foreign=0, folders=folders)

    @property
    def foreign(self) -> tuple[RecordRow, ...]:
        """The rows that have a hash by another algorithm."""
        return self._other_hashes() if self.outline.foreign else ()

    def _other_hashes(self) -> tuple[RecordRow, ...]:
        return tuple(row for row in self._content.odd or () if row.algorithm is not None)

    @property
    def rows(self) -> tuple[RecordRow, ...]:
        """All rows in their order."""
        odd = self._content.odd
        return odd if odd is not None else tuple(itertools.starmap(_plain_row, self.claims()))

    @cached_property
    def paths(self) -> list[bytes]:
        """The path of each row."""
        raw, odd = self._content.raw, self._content.odd
        if odd is not None:
            return [row.path for row in odd]
        prefix = self._prefix
        paths = [prefix + line.partition(b",")[0] for line in self._lines()]
        if _UP in raw:
            upward = prefix + _UP
            paths = [_normal(path) if path.startswith(upward) else path for path in paths]
        return paths

    def claims(self) -> Iterator[Claim]:
        """All rows in their order, as bytes. Where a row has another hash than sha256, it is left out of the claim."""
        if self._content.odd is not None:
            return map(_claim, self._content.odd)
        cells = b",".join(self._lines()).replace(b"\r", b"").split(b",") if self.raw else []
        return zip(self.paths, cells[1::3], cells[2::3], strict=True)

    def places(self, path: bytes) -> list[int]:
        """The numbers, from 0, of the rows for a path."""
        if path.rpartition(b"/")[0] not in self.outline.folders:
            return []
        return [number for number, found in enumerate(self.paths) if found == path]

    def row(self, number: int) -> RecordRow:
        """One row by its number, from 0."""
        if self._content.odd is not None:
            return self._content.odd[number]
        _, encoded, size = self._lines()[number].rstrip(b"\r").split(b",")
        return _plain_row(self.paths[number], encoded, size)

    def span(self, number: int) -> tuple[str, slice]:
        """The name as written in a row, by the row's number, and which bytes of `raw` the row takes, with its end."""
        if self._content.odd is not None:
            fields, place = next(itertools.islice(_rows(self.raw), number, None))
            return fields[0], place
        lines = self.raw.split(b"\n", number + 1)
        start = sum(map(len, lines[:number])) + number
        name = lines[number].partition(b",")[0]
        return name.decode(), slice(start, min(start + len(lines[number]) + 1, len(self.raw)))

    @property
    def _prefix(self) -> bytes:
        return self.site + b"/" if self.site else b""

    def _lines(self) -> list[bytes]:
        return self.raw.removesuffix(b"\n").split(b"\n") if self.raw else []


def read_record(raw: bytes, *, site: bytes) -> Record:
    """A RECORD whose relative names start from the folder `site` of the image. ValueError if it is no RECORD."""
    site = _normal(site)
    content = read_content(raw, site=site)
    return Record(site, lambda: content)


def read_content(raw: bytes, *, site: bytes) -> Content:
    """The same, for a `Record` with an outline that is known already."""
    if not _PLAIN.fullmatch(raw if raw.endswith(b"\n") or not raw else raw + b"\n"):
        return Content(raw=raw, odd=_odd_rows(raw, site))
    if not raw.isascii():
        raw.decode()
    return Content(raw=raw)


def parse_record(raw: bytes, *, site: bytes) -> tuple[RecordRow, ...]:
    """Rows with paths in the image; relative ones start from the folder `site`. ValueError if it is no RECORD."""
    return read_record(raw, site=site).rows


def rewrite_record(
    raw: bytes,
    path: bytes,
    *,
    site: bytes,
    sha256: str | None,
    size: int,
    subject: str,
    known: Record | None = None,
) -> bytes:
    """The RECORD with another hash and size in the row of `path`, or without that row where `sha256` is None.

    Every other byte stays. A `StepError` unless it can be read and exactly one row matches. `known` saves reading it
    again where it is of the same bytes and the same `site`.
    """
    try:
        record = known if known is not None and known.raw == raw else read_record(raw, site=site)
    except ValueError as error:
        raise StepError(subject, f"is a RECORD that cannot be read: {error}") from error
    matching = record.places(path)
    if len(matching) != 1:
        raise StepError(
            subject, "does not list the swapped file once", expected="1 row", actual=f"{len(matching)} rows"
        )
    name, span = record.span(matching[0])
    if sha256 is None:
        return raw[: span.start] + raw[span.stop :]
    old = raw[span.start : span.stop]
    ending = old[len(old.rstrip(b"\r\n")) :]
    new = f"{_quoted(name)},{encoded_hash(sha256)},{size}".encode()
    return raw[: span.start] + new + ending + raw[span.stop :]


def encoded_hash(sha256: str) -> str:
    """A hash as RECORD writes it: urlsafe base64 without padding (PEP 376, PEP 427)."""
    return "sha256=" + base64.urlsafe_b64encode(bytes.fromhex(sha256)).rstrip(b"=").decode()


def decoded_hash(encoded: bytes) -> str:
    """The sha256 in hex of the hash in a `Claim`, not empty; the spare bits at its end are passed over."""
    return base64.urlsafe_b64decode(encoded[len(_SHA256) :] + b"=").hex()


def _normal(path: bytes) -> bytes:
    return posixpath.normpath(b"/" + path).lstrip(b"/")


def _plain_row(path: bytes, encoded: bytes, size: bytes) -> RecordRow:
    return RecordRow(path=path, sha256=decoded_hash(encoded) if encoded else None, size=int(size) if size else None)


def _claim(row: RecordRow) -> Claim:
    encoded = b"" if row.sha256 is None else encoded_hash(row.sha256).encode()
    return row.path, encoded, b"" if row.size is None else b"%d" % row.size


def _odd_rows(raw: bytes, site: bytes) -> tuple[RecordRow, ...]:
    return tuple(_row(fields, site) for fields, _ in _rows(raw))


def _rows(raw: bytes) -> Iterator[tuple[list[str], slice]]:
    """The fields of each row, and which bytes it takes, its end of line included."""
    offset = start = 0

    def lines() -> Iterator[str]:
        nonlocal offset
        for line in io.StringIO(raw.decode("utf-8"), newline=""):
            offset += len(line.encode())
            yield line

    try:
        # A quoted name may hold an end of line, so a row is what the reader took, not a line.
        for fields in csv.reader(lines(), strict=True):
            if fields:
                if len(fields) != 3:  # noqa: PLR2004 - path, hash, size
                    raise ValueError(f"a row has {len(fields)} fields instead of 3")
                yield fields, slice(start, offset)
            start = offset
    except csv.Error as error:
        raise ValueError(str(error)) from error


def _quoted(name: str) -> str:
    if any(character in name for character in ',"\r\n'):
        return '"' + name.replace('"', '""') + '"'
    return name


def _row(fields: list[str], site: bytes) -> RecordRow:
    text, encoded, size = fields
    path = posixpath.normpath(posixpath.join(b"/" + site, text.encode())).lstrip(b"/")
    algorithm, _, value = encoded.partition("=")
    sha256 = None
    if algorithm == "sha256":
        digest = base64.b64decode(value + "=" * (-len(value) % 4), altchars=b"-_", validate=True)
        if len(digest) != _SHA256_BYTES:
            raise ValueError(f"{encoded[:80]!r} is not a sha256")
        sha256 = digest.hex()
    if size and not (size.isascii() and size.isdigit() and len(size) < 20):  # noqa: PLR2004 - beyond any file
        raise ValueError(f"{size[:40]!r} is not a size")
    other = algorithm[:80] if sha256 is None and encoded else None
    return RecordRow(path=path, sha256=sha256, size=int(size) if size else None, algorithm=other)
