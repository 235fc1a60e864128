"""Installed Python distributions in a tree: who owns which path, and RECORD rows (PEP 376, recording installs).

RECORD is what an installer wrote once; nobody checks it later. So it is read as a claim, compared with the bytes, and
rewritten only in the row of a file that a step swaps.
"""

from __future__ import annotations

import base64
import csv
import email.parser
import io
import posixpath
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from imgbuild.errors import StepError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from imgbuild.content.tree import Tree

_DIST_INFO = b".dist-info"
_SHA256_BYTES = 32


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
class Distribution:
    """One installed distribution."""

    name: str
    version: str
    folder: bytes
    """The dist-info folder."""
    requires: tuple[str, ...]
    rows: tuple[RecordRow, ...]
    problem: str | None = None
    """Why METADATA or RECORD could not be read."""


def distributions(tree: Tree, read: Callable[[bytes], bytes | None]) -> tuple[Distribution, ...]:
    """All distributions with a dist-info folder, in the order of `Tree.walk`.

    Args:
        tree: the merged view.
        read: the bytes of a small file of the tree, or None.
    """
    found = []
    for path, node in tree.walk():
        if node.is_directory and path.endswith(_DIST_INFO):
            found.append(_distribution(path, read))
    return tuple(found)


def owners(installed: tuple[Distribution, ...]) -> dict[bytes, tuple[Distribution, ...]]:
    """Which distributions claim a path; one that lists it twice is there once."""
    claims: dict[bytes, list[Distribution]] = {}
    for distribution in installed:
        for path in dict.fromkeys(row.path for row in distribution.rows):
            claims.setdefault(path, []).append(distribution)
    return {path: tuple(found) for path, found in claims.items()}


def parse_record(raw: bytes, *, site: bytes) -> tuple[RecordRow, ...]:
    """Rows with paths in the image; relative ones start from the folder `site`. ValueError if it is no RECORD."""
    return tuple(_row(fields, site) for fields, _ in _rows(raw))


def rewrite_record(raw: bytes, path: bytes, *, site: bytes, sha256: str | None, size: int, subject: str) -> bytes:
    """The RECORD with another hash and size in the row of `path`, or without that row where `sha256` is None.

    Every other byte stays. A `StepError` unless it can be read and exactly one row matches.
    """
    try:
        rows = [(fields, span, _row(fields, site)) for fields, span in _rows(raw)]
    except ValueError as error:
        raise StepError(subject, f"is a RECORD that cannot be read: {error}") from error
    matching = [(fields[0], span) for fields, span, row in rows if row.path == path]
    if len(matching) != 1:
        raise StepError(
            subject, "does not list the swapped file once", expected="1 row", actual=f"{len(matching)} rows"
        )
    name, span = matching[0]
    if sha256 is None:
        return raw[: span.start] + raw[span.stop :]
    old = raw[span.start : span.stop]
    ending = old[len(old.rstrip(b"\r\n")) :]
    new = f"{_quoted(name)},{encoded_hash(sha256)},{size}".encode()
    return raw[: span.start] + new + ending + raw[span.stop :]


def encoded_hash(sha256: str) -> str:
    """A hash as RECORD writes it: urlsafe base64 without padding (PEP 376, PEP 427)."""
    return "sha256=" + base64.urlsafe_b64encode(bytes.fromhex(sha256)).rstrip(b"=").decode()


def _distribution(folder: bytes, read: Callable[[bytes], bytes | None]) -> Distribution:
    metadata, record = read(folder + b"/METADATA"), read(folder + b"/RECORD")
    stem = posixpath.basename(folder)[: -len(_DIST_INFO)].decode("utf-8", "backslashreplace")
    name, _, version = stem.partition("-")
    requires: tuple[str, ...] = ()
    problem = None
    if metadata is None:
        problem = "has no METADATA"
    else:
        headers = email.parser.BytesHeaderParser().parsebytes(metadata)
        name, version = str(headers.get("Name", name)), str(headers.get("Version", version))
        requires = tuple(str(text) for text in headers.get_all("Requires-Dist", []))
    rows: tuple[RecordRow, ...] = ()
    if record is None:
        problem = problem or "has no RECORD"
    else:
        try:
            rows = parse_record(record, site=posixpath.dirname(folder))
        except ValueError as error:
            problem = f"has a RECORD that cannot be read: {error}"
    return Distribution(
        name=canonicalize_name(name), version=version, folder=folder, requires=requires, rows=rows, problem=problem
    )


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
