"""Many small files in one stream: a line of JSON with digest and size of each, then their bytes, in one gzip member.

Made and read by us alone, as the companion of published inventories. What is read is hashed: a file is handed out under
the digest that it has, never under the one that it claims.
"""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, Any

from imgbuild import jsontext
from imgbuild.config import DEFAULT_LIMITS, MIB
from imgbuild.content.compression import decompress
from imgbuild.digest import Digest
from imgbuild.errors import ArchiveError, DocumentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from imgbuild.digest import Readable

SCHEMA = "imgbuild/files/v1"
_HEAD_BYTES = 8 * MIB
"""bytes of the line that lists the files; 80 bytes each."""
_LEVEL = 6


def pack(files: Iterable[bytes]) -> bytes:
    """The bundle of some files, each of them once, sorted by digest."""
    unique = {str(Digest.of(data)): data for data in files}
    rows = [[digest, len(unique[digest])] for digest in sorted(unique)]
    head = jsontext.compact({"schema": SCHEMA, "files": rows}) + b"\n"
    return compress(head + b"".join(unique[digest] for digest in sorted(unique)))


def compress(data: bytes) -> bytes:
    """One gzip member without time and name. Its bytes depend on zlib's version: identity is what is inside."""
    return gzip.compress(data, compresslevel=_LEVEL, mtime=0)


class Expanded:
    """What is compressed in a stream: a `Readable` of which nothing is kept, and that ends with an error if it is long.

    Raises:
        ArchiveError: (here or on `read`) it is more than `max_bytes`, or breaks its format as `decompress` says.
    """

    def __init__(self, stream: Readable, *, subject: str, max_bytes: int) -> None:
        self.subject = subject
        self.count = 0
        """bytes that were read so far, expanded."""
        self._stream = decompress(stream, subject=subject)
        self._max_bytes = max_bytes

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; empty only at the end."""
        data = self._stream.read(size)
        self.count += len(data)
        if self.count > self._max_bytes:
            raise ArchiveError(self.subject, "is too long", expected=f"at most {self._max_bytes} bytes, expanded")
        return data


def unpack(pieces: Expanded) -> Iterator[tuple[Digest, bytes]]:
    """The files of a bundle, each with the digest of its bytes, one in memory at a time.

    Raises:
        ArchiveError: it is no bundle, is cut, is too long, or has a file whose bytes are not those that it lists. The
            files before that one have been given by then, and are right.
    """
    subject = pieces.subject
    head, rest = _line(pieces, subject)
    for claimed, size in _rows(head, subject):
        while len(rest) < size and (more := pieces.read(MIB)):
            rest += more
        content = bytes(rest[:size])
        del rest[:size]
        digest = Digest.of(content)
        if len(content) != size or str(digest) != claimed:
            raise ArchiveError(subject, "has a file that is not what it lists", expected=claimed, actual=digest)
        yield digest, content
    if rest or pieces.read(1):
        raise ArchiveError(subject, "goes on after its last file")


def _line(stream: Readable, subject: str) -> tuple[bytes, bytearray]:
    """The first line without its end, and what was read of the rest."""
    data = bytearray()
    while (end := data.find(b"\n", max(0, len(data) - MIB))) < 0:
        more = stream.read(MIB)
        data += more
        if not more or len(data) > _HEAD_BYTES:
            raise ArchiveError(subject, "does not begin with a list of files")
    return bytes(data[:end]), data[end + 1 :]


def _rows(head: bytes, subject: str) -> list[tuple[str, int]]:
    try:
        value: Any = jsontext.loads(head, subject=subject)
    except DocumentError as error:
        raise ArchiveError(subject, error.problem) from error
    rows = value.get("files") if isinstance(value, dict) and value.get("schema") == SCHEMA else None
    if not isinstance(rows, list):
        raise ArchiveError(subject, "is no bundle of files", expected=SCHEMA)
    found = []
    for row in rows:
        match row:
            case [str(digest), int(size)] if 0 <= size <= DEFAULT_LIMITS.captured_file_bytes:
                found.append((digest, size))
            case _:
                raise ArchiveError(subject, "lists a file without digest or size, or one that is too large")
    return found
