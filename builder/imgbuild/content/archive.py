"""Plain tar archives of files that have their digests elsewhere: what `oci-archive:` and `docker-archive:` outputs are.

The same entries always give the same bytes: sorted by name, each folder before what is in it, ustar headers of layer
format 1 (`ustar`, with its PAX records for contents over 8 GiB), numeric owner 0:0 without names, one time for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from imgbuild.config import CHUNK_BYTES
from imgbuild.content import ustar
from imgbuild.content.paxrecords import HeaderError
from imgbuild.content.tarfields import checksum_fits, number
from imgbuild.content.tarheader import BLOCK, Header, name_of
from imgbuild.errors import DigestMismatchError, InternalError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from imgbuild.content.changes import Content

_FILE_MODE = 0o644
_FOLDER_MODE = 0o755


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A file of an archive: its name, relative and without dots, and what is in it."""

    name: str
    content: Content


def member_names(file: BinaryIO) -> Iterator[bytes]:
    """The names in the headers of a tar archive, whoever made it, up to what is no header; contents are passed over.

    Long names of GNU and PAX are not joined. Nothing is checked but the checksums of headers.
    """
    place = 0
    while len(block := file.read(BLOCK)) == BLOCK and any(block):
        header = Header.at(block, 0)
        try:
            if not checksum_fits(block, 0, header.checksum) or (size := number(header.size)) < 0:
                return
        except HeaderError:
            return
        yield name_of(header).removeprefix(b"./")
        place += BLOCK + size + -size % BLOCK
        file.seek(place)


def archive_size(entries: Iterable[Entry], *, epoch: int) -> int:
    """The bytes that `archive` gives for the same arguments; no content is opened."""
    size = len(ustar.END)
    for header, content in _headers(entries, epoch):
        size += len(header.encode())
        if content is not None:
            size += content.size + len(ustar.padding(content.size))
    return size


def archive(entries: Iterable[Entry], *, epoch: int) -> Iterator[bytes]:
    """The archive in pieces of about CHUNK_BYTES, contents as they are read.

    Args:
        entries: files, in any order; folders follow from their names.
        epoch: seconds since 1970, the time of all of them.

    Raises:
        DigestMismatchError: a content is shorter or longer than its size. What came before is no whole archive: its
            end mark is missing.
        InternalError: a name occurs twice.

    What contents raise passes through. NOT checked: the names, which are the caller's own.
    """
    for header, content in _headers(entries, epoch):
        yield header.encode()
        if content is not None:
            yield from _body(header.name.decode(), content)
    yield ustar.END


def _headers(entries: Iterable[Entry], epoch: int) -> Iterator[tuple[ustar.Header, Content | None]]:
    files: dict[str, Content] = {}
    for entry in entries:
        if entry.name in files:
            raise InternalError(f"archive entry {entry.name}", "occurs twice")
        files[entry.name] = entry.content
    folders = {name[: at + 1] for name in files for at, character in enumerate(name) if character == "/"}
    for name in sorted({*files, *folders}):
        content = files.get(name)
        yield (
            ustar.Header(
                name=name.encode(),
                typeflag=b"5" if content is None else b"0",
                mode=_FOLDER_MODE if content is None else _FILE_MODE,
                uid=0,
                gid=0,
                mtime=epoch,
                size=0 if content is None else content.size,
            ),
            content,
        )


def _body(name: str, content: Content) -> Iterator[bytes]:
    left = content.size
    with content.open() as stream:
        # One byte more than is left is asked for, so that a reader that verifies at its end is read to its end.
        while data := stream.read(min(CHUNK_BYTES, left + 1)):
            left -= len(data)
            if left < 0:
                break
            yield data
    if left:
        raise DigestMismatchError(
            name,
            f"is {'shorter' if left > 0 else 'longer'} than its size",
            expected=f"{content.size} bytes",
            actual=f"{content.size - left} bytes" if left > 0 else "more",
        )
    yield ustar.padding(content.size)
