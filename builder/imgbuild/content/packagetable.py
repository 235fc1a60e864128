"""The installed distributions of a base as a table, so that no METADATA and few RECORDs are read again.

A row holds all that follows from a distribution's two files, but for the rows of RECORD, of which it has the outline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from imgbuild.content.packages import Distribution, Parsed
from imgbuild.content.record import Content, Outline, Record, read_content
from imgbuild.digest import Digest
from imgbuild.errors import ArchiveError

if TYPE_CHECKING:
    from collections.abc import Callable

_NOTHING = Digest.of(b"").encoded


class _Row(msgspec.Struct, frozen=True, array_like=True, gc=False):
    folder: bytes
    metadata: str | None
    record: str | None
    name: str
    version: str
    requires: tuple[str, ...]
    problem: str | None
    site: bytes
    sha256: str
    """Of the RECORD's bytes as far as they could be read: of no bytes where they could not."""
    rows: int
    hashed: int
    foreign: int
    folders: tuple[bytes, ...]


def dump_packages(parsed: Parsed) -> bytes:
    """The table of some distributions; the same ones give the same bytes."""
    rows = [
        _Row(
            folder=folder,
            metadata=metadata,
            record=record,
            name=found.name,
            version=found.version,
            requires=found.requires,
            problem=found.problem,
            site=found.record.site,
            sha256=found.record.outline.sha256,
            rows=found.record.outline.rows,
            hashed=found.record.outline.hashed,
            foreign=found.record.outline.foreign,
            folders=tuple(sorted(found.record.outline.folders)),
        )
        for (folder, metadata, record), found in sorted(parsed.items(), key=lambda item: item[0][0])
    ]
    return msgspec.msgpack.encode(rows)


def load_packages(raw: bytes | memoryview, read: Callable[[bytes], bytes], *, subject: str) -> Parsed:
    """The distributions of a table.

    Args:
        raw: the table. That it has its digest is the caller's to check.
        read: the bytes of a RECORD, by the distribution's folder, when its rows are asked for. They must have the
            sha256 of the table; what else they raise then is what `read` and `read_content` raise.
        subject: the file that the table is in, for errors.

    Raises:
        ArchiveError: it is no such table.
    """
    try:
        rows = msgspec.msgpack.decode(raw, type=list[_Row])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ArchiveError(subject, "has a table of packages that cannot be read", actual=str(error)) from error
    return {(row.folder, row.metadata, row.record): _distribution(row, read) for row in rows}


def _distribution(row: _Row, read: Callable[[bytes], bytes]) -> Distribution:
    def content() -> Content:
        return read_content(b"" if row.sha256 == _NOTHING else read(row.folder), site=row.site)

    outline = Outline(
        sha256=row.sha256, rows=row.rows, hashed=row.hashed, foreign=row.foreign, folders=frozenset(row.folders)
    )
    return Distribution(
        name=row.name,
        version=row.version,
        folder=row.folder,
        requires=row.requires,
        record=Record(row.site, content, outline),
        problem=row.problem,
    )
