"""Zip archives, opened only if every reader sees the same tree in them and nothing in it leaves its folder.

A zip tells its members twice, in local headers and in the central directory, and readers differ in which one they
believe. Here both must agree. Sources: PKWARE APPNOTE 6.3.10 (4.3.7 local headers, 4.3.12 central directory), PEP 427.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
import zipfile
import zlib
from itertools import pairwise
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
_DESCRIPTOR = 0x8
_UTF8 = 0x800
_COMPARED = _ENCRYPTED | _DESCRIPTOR | _UTF8
"""flags that change how a member is read, and so must be the same in both headers."""
_DESCRIPTOR_BYTES = (12, 16, 20, 24)
"""bytes of a data descriptor: with and without signature, with sizes of 4 and of 8 bytes (APPNOTE 4.3.9)."""
_LOCAL = struct.Struct("<4s2xHH16xHH")
_LOCAL_MAGIC = b"PK\x03\x04"
_END_MAGIC = b"PK\x05\x06"
_END_BYTES = 22
"""bytes of the end of central directory record without the archive comment (APPNOTE 4.3.16)."""
_READING = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, UnicodeDecodeError)
"""what `zipfile` raises while members of a checked archive are read; the fourth is for an unknown compression."""
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
            that overlap; bytes that belong to no member, or behind the end; a local header that says another name,
            method or flag than the directory. Also what `zipfile` says of a member that is read inside the block
            (CRC, truncation).

    NOT checked: hashes of members; sizes and CRC in local headers; that a member has as many bytes as it says, when
    it has fewer; what the comment says; names that differ only in letter case.
    """
    with contextlib.ExitStack() as stack:
        with _archive_errors(subject, _OPENING):
            archive = stack.enter_context(zipfile.ZipFile(file))
            members = archive.infolist()
            _check_members(members, subject, limits)
            _check_headers(members, file, archive.start_dir, subject)
            _check_end(file, len(archive.comment), subject)
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
    for member in members:
        if problem := _name_problem(member, limits) or _kind_problem(member, limits):
            raise ArchiveError(subject, problem, where=printable(member.filename))
    # Checked names have no NUL, which sorts before all else: what is below a name stands directly behind it.
    rows = sorted((member.filename.removesuffix("/").replace("/", "\0"), member.is_dir()) for member in members)
    for (name, is_folder), (following, is_also) in pairwise(rows):
        where = printable(following.replace("\0", "/"))
        if name == following and is_folder == is_also:
            raise ArchiveError(subject, "has a member twice", where=where)
        if name == following or (not is_folder and following.startswith(f"{name}\0")):
            raise ArchiveError(subject, "has a member that is file and folder", where=where)


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
    """Refuse local headers that tell another story than the directory, which starts at byte `end`.

    Members must follow each other from the first byte on: a reader that walks through the local headers would find
    what hides in a gap.
    """
    free = descriptor = 0
    for member in sorted(members, key=lambda one: one.header_offset):
        file.seek(member.header_offset)
        magic, flags, method, name_bytes, extra_bytes = _LOCAL.unpack(file.read(_LOCAL.size))
        problem = _gap_problem(member.header_offset - free, descriptor)
        if magic != _LOCAL_MAGIC or file.read(name_bytes) != _raw_name(member):
            problem = problem or "has a member with two names"
        elif method != member.compress_type or flags & _COMPARED != member.flag_bits & _COMPARED:
            problem = problem or "has a member whose two headers differ"
        if problem is not None:
            raise ArchiveError(subject, problem, where=printable(member.filename))
        free = member.header_offset + _LOCAL.size + name_bytes + extra_bytes + member.compress_size
        descriptor = flags & _DESCRIPTOR
    if problem := _gap_problem(end - free, descriptor):
        raise ArchiveError(subject, problem, where="the central directory")


def _check_end(file: BinaryIO, comment_bytes: int, subject: str) -> None:
    file.seek(-_END_BYTES - comment_bytes, os.SEEK_END)
    if file.read(len(_END_MAGIC)) != _END_MAGIC:
        raise ArchiveError(subject, "has bytes behind its end")


def _gap_problem(gap: int, descriptor: int) -> str | None:
    if gap < 0:
        return "has members that overlap"
    if gap not in (_DESCRIPTOR_BYTES if descriptor else (0,)):
        return "has bytes that belong to no member"
    return None


def _raw_name(member: zipfile.ZipInfo) -> bytes:
    return member.orig_filename.encode("utf-8" if member.flag_bits & _UTF8 else "cp437")
