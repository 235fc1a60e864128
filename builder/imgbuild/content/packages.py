"""Installed Python distributions in a tree: who owns which path, and what RECORD says of it (PEP 376).

RECORD is what an installer wrote once; nobody checks it later. So it is read as a claim, compared with the bytes, and
rewritten only in the row of a file that a step swaps.
"""

from __future__ import annotations

import email.parser
import posixpath
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from imgbuild.content.node import DIST_INFO
from imgbuild.content.record import (
    Record,
    RecordRow,
    encoded_hash,
    parse_record,
    read_record,
    rewrite_record,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from imgbuild.content.node import Node
    from imgbuild.content.tree import Tree

__all__ = [
    "Distribution",
    "Parsed",
    "Record",
    "RecordRow",
    "canonical_name",
    "distribution",
    "distributions",
    "encoded_hash",
    "owners",
    "parse_record",
    "rewrite_record",
]

_DIST_INFO = b".dist-info"
_SEPARATORS = re.compile(r"[-_.]+")
_END_OF_HEADERS = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r)")
# Keys as `email.feedparser` knows them. All repeats are possessive: time is linear.
_PLAIN_HEADERS = re.compile(rb"(?:[!-9;-~]++:[^\r\n]*+\r?+\n(?:[ \t][^\r\n]*+\r?+\n)*+)*+(?:\r?+\n)?+")
_WANTED = re.compile(
    rb"^(name|version|requires-dist):[ \t]*+([^\r\n]*+(?:\r?+\n[ \t][^\r\n]*+)*+)", re.MULTILINE | re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """One installed distribution."""

    name: str
    version: str
    folder: bytes
    """The dist-info folder."""
    requires: tuple[str, ...]
    record: Record
    """RECORD, without rows where it is missing or cannot be read."""
    problem: str | None = None
    """Why METADATA or RECORD could not be read."""

    @property
    def rows(self) -> tuple[RecordRow, ...]:
        """The rows of RECORD, made anew each time."""
        return self.record.rows


Parsed = dict[tuple[bytes, str | None, str | None], Distribution]
"""Distributions by all that they follow from: folder, sha256 of METADATA and of RECORD (None where there is none)."""


def canonical_name(name: str) -> str:
    """The form in which names of distributions are compared (PEP 503)."""
    return _SEPARATORS.sub("-", name).lower()


def distributions(
    tree: Tree, read: Callable[[bytes], bytes | None], parsed: Parsed | None = None
) -> tuple[Distribution, ...]:
    """All distributions with a dist-info folder, in the order of `Tree.walk`.

    Args:
        tree: the merged view.
        read: the bytes of a small file of the tree, or None.
        parsed: what was read before, of whatever tree; used, and added to. `read` must give what the tree says.
    """
    return tuple(_distribution(tree, path, node, read, parsed) for path, node in tree.marked(DIST_INFO))


def distribution(tree: Tree, folder: bytes, read: Callable[[bytes], bytes | None]) -> Distribution | None:
    """The one of a dist-info folder as it is now; None where there is no folder."""
    node = tree.get(folder)
    return _distribution(tree, folder, node, read, None) if node is not None and node.is_directory else None


def owners(installed: tuple[Distribution, ...], path: bytes) -> tuple[Distribution, ...]:
    """Which distributions claim a path; one that lists it twice is there once."""
    folder = path.rpartition(b"/")[0]
    return tuple(item for item in installed if folder in item.record.outline.folders and path in item.record.paths)


def _distribution(
    tree: Tree, folder: bytes, node: Node, read: Callable[[bytes], bytes | None], parsed: Parsed | None
) -> Distribution:
    """As it was read before, or read now."""
    metadata, record = folder + b"/METADATA", folder + b"/RECORD"
    files = _file(tree, metadata, node), _file(tree, record, node)
    if parsed is None or any(file is not None and file.sha256 is None for file in files):
        return _read(folder, read(metadata), read(record))
    first, second = (None if file is None else file.sha256 for file in files)
    key = (folder, first, second)
    known = parsed.get(key)
    if known is not None:
        return known
    contents = read(metadata), read(record)
    found = _read(folder, *contents)
    # What could not be had now may be had the next time, under the same digest.
    if (contents[0] is None, contents[1] is None) == (first is None, second is None):
        parsed[key] = found
    return found


def _file(tree: Tree, path: bytes, folder: Node) -> Node | None:
    """The regular file to which a path leads, of which the folder is known."""
    node = folder.children.get(path.rpartition(b"/")[2])
    if node is not None and node.type == "symlink":
        found = tree.resolve(path)
        node = None if found is None else found[1]
    return node if node is not None and node.type == "file" else None


def _read(folder: bytes, metadata: bytes | None, record: bytes | None) -> Distribution:
    stem = posixpath.basename(folder)[: -len(_DIST_INFO)].decode("utf-8", "backslashreplace")
    name, _, version = stem.partition("-")
    requires: tuple[str, ...] = ()
    problem = None
    if metadata is None:
        problem = "has no METADATA"
    else:
        name, version, requires = _headers(metadata, name, version)
    site = posixpath.dirname(folder)
    found = read_record(b"", site=site)
    if record is None:
        problem = problem or "has no RECORD"
    else:
        try:
            found = read_record(record, site=site)
        except ValueError as error:
            problem = f"has a RECORD that cannot be read: {error}"
    return Distribution(
        name=canonical_name(name), version=version, folder=folder, requires=requires, record=found, problem=problem
    )


def _headers(metadata: bytes, name: str, version: str) -> tuple[str, str, tuple[str, ...]]:
    """Name, version and requirements of METADATA as `email` reads them, or those given where there are none."""
    end = _END_OF_HEADERS.search(metadata)
    # The description behind the headers is most of the file.
    head = metadata if end is None else metadata[: end.end()]
    wanted = [(key.lower(), value) for key, value in _WANTED.findall(head)]
    if not _PLAIN_HEADERS.fullmatch(head) or any(b"\n" in value or not value.isascii() for _, value in wanted):
        return _odd_headers(head, name, version)
    names, versions, requires = (
        tuple(value.decode() for key, value in wanted if key == header)
        for header in (b"name", b"version", b"requires-dist")
    )
    return next(iter(names), name), next(iter(versions), version), requires


def _odd_headers(head: bytes, name: str, version: str) -> tuple[str, str, tuple[str, ...]]:
    headers = email.parser.BytesHeaderParser().parsebytes(head)
    requires = tuple(str(text) for text in headers.get_all("Requires-Dist", []))
    return str(headers.get("Name", name)), str(headers.get("Version", version)), requires
