"""Zip archives, opened only if every reader sees the same tree in them and nothing in it leaves its folder.

A zip tells its members twice, in local headers and in the central directory, and readers differ in which one they
believe. Here both must agree. Sources: PKWARE APPNOTE 6.3.10 (4.3.7 local header, 4.3.12 central directory), PEP 427.
"""

from __future__ import annotations

import contextlib
import stat
import struct
import zipfile
import zlib
from typing import TYPE_CHECKING, BinaryIO

from imgbuild.config import DEFAULT_LIMITS, GIB, Limits
from imgbuild.digest import Digest, chunks, digest_of
from imgbuild.errors import ArchiveError
from imgbuild.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

MEMBER_BYTES = 8 * GIB
"""bytes of one member; the largest wheels that are published have about 3."""
_METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
_ENCRYPTED = 0x1
_UTF8 = 0x800
_LOCAL = struct.Struct("<4s2xHH16xHH")
_LOCAL_MAGIC = b"PK\x03\x04"
_READING = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, UnicodeDecodeError)
"""what `zipfile` raises while members of a checked archive are read."""
_OPENING = (*_READING, struct.error, RuntimeError, ValueError, OverflowError)
"""what it raises before; too wide for a block that runs the code of others."""


@contextlib.contextmanager
def open_archive(file: BinaryIO, *, subject: str, limits: Limits = DEFAULT_LIMITS) -> Iterator[zipfile.ZipFile]:
    """Open a zip archive and refuse what readers disagree about, what leaves its folder, and what is too much.

    Args:
        file: a seekable file. The caller closes it.
        subject: the archive, for messages.
        limits: `wheel_entries`, `path_bytes`, `path_depth`, `compression_ratio` above `ratio_floor`.

    Raises:
        ArchiveError: not a zip; a name that is there twice, is the folder of another one, is not a plain relative
            path or is cut by a NUL; a link or device; encryption; a method other than stored and deflated; members
            that overlap; a local header that says another name or method than the directory. Also what `zipfile`
            says of a member that is read inside the block (CRC, truncation).

    NOT checked: hashes of members; sizes and CRC in local headers; bytes before, between and after the members; names
    that differ only in letter case.
    """
    with contextlib.ExitStack() as stack:
        with _archive_errors(subject, _OPENING):
            archive = stack.enter_context(zipfile.ZipFile(file))
            members = archive.infolist()
            _check_members(members, subject, limits)
            _check_headers(members, file, archive.start_dir, subject)
        with _archive_errors(subject, _READING):
            yield archive


@contextlib.contextmanager
def open_member(file: BinaryIO, member: str, *, subject: str) -> Iterator[tuple[BinaryIO, int]]:
    """Open one member for reading; gives the stream and its size in bytes. The CRC is checked at its end."""
    with open_archive(file, subject=subject) as archive:
        try:
            info = archive.getinfo(member)
        except KeyError as error:
            raise ArchiveError(subject, "has no such member", expected=member) from error
        with archive.open(info) as stream:
            yield stream, info.file_size  # type: ignore[misc]


def member_digest(file: BinaryIO, member: str, *, subject: str) -> tuple[Digest, int]:
    """The sha256 and size in bytes of one member."""
    with open_member(file, member, subject=subject) as (stream, _):
        return digest_of(chunks(stream))


@contextlib.contextmanager
def _archive_errors(subject: str, kinds: tuple[type[Exception], ...]) -> Iterator[None]:
    try:
        yield
    except kinds as error:
        raise ArchiveError(subject, f"is not a sound zip archive: {printable(str(error))}") from error


def _check_members(members: list[zipfile.ZipInfo], subject: str, limits: Limits) -> None:
    if len(members) > limits.wheel_entries:
        raise ArchiveError(
            subject, "has too many members", expected=f"at most {limits.wheel_entries}", actual=len(members)
        )
    files: set[str] = set()
    folders: set[str] = set()
    for member in members:
        problem = _name_problem(member, limits) or _kind_problem(member, limits)
        name = member.filename.removesuffix("/")
        if problem is None and (name in files or (member.is_dir() and name in folders)):
            problem = "has a member twice"
        if problem is not None:
            raise ArchiveError(subject, problem, where=printable(member.filename))
        (folders if member.is_dir() else files).add(name)
    for name in (*files, *folders):
        parent = name.rpartition("/")[0]
        while parent:
            if parent in files:
                raise ArchiveError(subject, "has a member that is file and folder", where=printable(parent))
            parent = parent.rpartition("/")[0]
    if both := files & folders:
        raise ArchiveError(subject, "has a member that is file and folder", where=printable(min(both)))


def _name_problem(member: zipfile.ZipInfo, limits: Limits) -> str | None:
    name = member.filename.removesuffix("/")
    parts = name.split("/")
    if member.orig_filename != member.filename:
        return "has a member with two names, or one that is cut"
    if len(name.encode("utf-8", "surrogatepass")) > limits.path_bytes or len(parts) > limits.path_depth:
        return "has a member whose name is too long"
    if any(part in {"", ".", ".."} for part in parts) or "\\" in name or not name.isprintable():
        return "has a member whose name is not a plain relative path"
    return None


def _kind_problem(member: zipfile.ZipInfo, limits: Limits) -> str | None:
    # Writers on systems without Unix modes leave the kind 0.
    if stat.S_IFMT(member.external_attr >> 16) not in {0, stat.S_IFDIR if member.is_dir() else stat.S_IFREG}:
        return "has a member that is no file and no folder"
    if member.flag_bits & _ENCRYPTED or member.compress_type not in _METHODS:
        return "has a member that is encrypted or compressed in an unknown way"
    if member.file_size > MEMBER_BYTES:
        return "has a member that is too large"
    if member.file_size > limits.ratio_floor and member.file_size > limits.compression_ratio * member.compress_size:
        return "has a member that unpacks to far more than it holds"
    return None


def _check_headers(members: list[zipfile.ZipInfo], file: BinaryIO, end: int, subject: str) -> None:
    """Refuse local headers that tell another story than the directory, which starts at byte `end`."""
    free = 0
    for member in sorted(members, key=lambda one: one.header_offset):
        file.seek(member.header_offset)
        magic, flags, method, name_bytes, extra_bytes = _LOCAL.unpack(file.read(_LOCAL.size))
        problem = None
        if member.header_offset < free:
            problem = "has members that overlap"
        elif magic != _LOCAL_MAGIC or file.read(name_bytes) != _raw_name(member):
            problem = "has a member with two names"
        elif method != member.compress_type or flags & _ENCRYPTED:
            problem = "has a member whose two headers differ"
        if problem is not None:
            raise ArchiveError(subject, problem, where=printable(member.filename))
        free = member.header_offset + _LOCAL.size + name_bytes + extra_bytes + member.compress_size
    if free > end:
        raise ArchiveError(subject, "has a member that runs into the directory")


def _raw_name(member: zipfile.ZipInfo) -> bytes:
    return member.orig_filename.encode("utf-8" if member.flag_bits & _UTF8 else "cp437")
