"""Many small files in one stream: a line of JSON with digest and size of each, then their bytes, in one gzip member.

Made and read by us alone, as the companion of published inventories. What is read is hashed: a file is handed out under
the digest that it has, never under the one that it claims.
"""

from __future__ import annotations

import gzip
import io
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
_HEAD_BYTES = 64 * MIB
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


def expand(data: bytes, *, subject: str, max_bytes: int) -> bytes:
    """What is compressed in some bytes, bounded; an `ArchiveError` if it is more, or no gzip."""
    stream = decompress(io.BytesIO(data), subject=subject)
    pieces = []
    left = max_bytes
    while piece := stream.read(MIB):
        left -= len(piece)
        if left < 0:
            raise ArchiveError(subject, "is too long", expected=f"at most {max_bytes} bytes")
        pieces.append(piece)
    return b"".join(pieces)


def unpack(data: bytes, *, subject: str) -> Iterator[tuple[Digest, bytes]]:
    """The files of a bundle, each with the digest of its bytes.

    Raises:
        ArchiveError: it is no bundle, is cut, or has a file whose bytes are not those that it lists.
    """
    stream = decompress(io.BytesIO(data), subject=subject)
    head, rest = _line(stream, subject)
    for claimed, size in _rows(head, subject):
        while len(rest) < size and (more := stream.read(MIB)):
            rest += more
        content, rest = rest[:size], rest[size:]
        digest = Digest.of(content)
        if len(content) != size or str(digest) != claimed:
            raise ArchiveError(subject, "has a file that is not what it lists", expected=claimed, actual=digest)
        yield digest, content


def _line(stream: Readable, subject: str) -> tuple[bytes, bytes]:
    data = b""
    while b"\n" not in data:
        more = stream.read(MIB)
        data += more
        if not more or len(data) > _HEAD_BYTES:
            raise ArchiveError(subject, "does not begin with a list of files")
    head, _, rest = data.partition(b"\n")
    return head, rest


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
