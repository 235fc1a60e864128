"""A bounded, streaming tar reader: v7, ustar, PAX and GNU archives in, `TarEntry` values and content pieces out.

Our own, because `tarfile` accepts what other readers read differently (so that an entry is hidden from one of them),
and because hundreds of thousands of entries must pass in a second. Whiteouts are entries like all others here.
Sources: image-spec `layer.md`, and those of `tarheader`, `tarfields` and `paxrecords`, which know the formats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from imgbuild.config import CHUNK_BYTES, DEFAULT_LIMITS
from imgbuild.content.paxrecords import HeaderError, global_records, long_name, records, show
from imgbuild.content.tarfields import Memo, checksum_fits, number
from imgbuild.content.tarheader import BLOCK, EntryType, Header, TarEntry, entry, name_of
from imgbuild.errors import ArchiveError, InternalError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imgbuild.config import Limits
    from imgbuild.digest import Readable

__all__ = ["EntryType", "TarEntry", "TarReader"]

_ZERO = bytes(BLOCK)
_EXTENSIONS = frozenset({b"x", b"g", b"L", b"K"})


class TarReader:
    """The entries of one uncompressed tar stream, in order, duplicates included (case C10); one pass.

    Args:
        stream: plain tar bytes, for example from `compression.decompress`; read to its very end.
        subject: the layer, for messages.
        limits: `layer_entries`, `layer_bytes` (of one file), `path_bytes`, `path_depth`, `pax_bytes`.

    Iterating raises `ArchiveError`, naming layer, entry and byte offset, for: a wrong checksum; a truncated header,
    content or archive (not one zero block at its end); anything but zero bytes after the first zero block; an unknown
    or sparse type (case C23); a malformed PAX or GNU header, one with no entry behind it, or several that contradict
    each other; a PAX size against a ustar size (CVE-2025-62518); content of anything but a file; a path or hard link
    target that is empty or holds `..` or NUL; a limit exceeded. The stream's own errors pass through.

    A global PAX header may set uid, gid and mtime; paths, sizes and xattrs are refused there. An empty PAX value
    deletes, as POSIX says, so an empty xattr is none. NOT read: user and group names, atime, ctime, device numbers and
    LIBARCHIVE.xattr.* in PAX (engines do not read them). NOT checked: the bytes that pad content to a block, whether
    links lead anywhere, whether parents exist.
    """

    def __init__(self, stream: Readable, *, subject: str, limits: Limits = DEFAULT_LIMITS) -> None:
        self._stream = stream
        self._subject = subject
        self._limits = limits
        self._buffer = b""
        self._pos = 0
        self._base = 0  # offset of the buffer in the stream
        self._left = 0  # bytes of content not handed out yet
        self._padding = 0
        self._count = 0
        self._current: TarEntry | None = None
        self._memo = Memo()
        self._global: dict[bytes, bytes] = {}
        self._pending: dict[bytes, dict[bytes, bytes]] = {}  # by flag, for the entry that follows
        self._iterator = self._entries()

    def __iter__(self) -> Iterator[TarEntry]:
        return self._iterator

    def content(self) -> Iterator[bytes]:
        """What is left of the current entry's content, in pieces as large as those of the stream.

        Valid until the next entry is asked for (`InternalError` afterwards); what is not read is skipped.
        """
        return self._content(self._count)

    def _content(self, count: int) -> Iterator[bytes]:
        while True:
            if count != self._count:
                raise InternalError(self._subject, "content of a tar entry was read after the next entry")
            if not self._left:
                return
            piece = self._take(self._left)
            self._left -= len(piece)
            yield piece

    def _entries(self) -> Iterator[TarEntry]:
        memo, limits = self._memo, self._limits
        while self._advance():
            self._count += 1
            pos = self._pos
            start = self._base + pos
            header = Header.at(self._buffer, pos)
            if not checksum_fits(self._buffer, pos, header.checksum):
                raise self._wrong_checksum(header)
            self._pos = pos + BLOCK
            try:
                if self._count > limits.layer_entries:
                    raise HeaderError(f"is one too many; limit {limits.layer_entries} (layer_entries)")  # noqa: TRY301
                if header.flag in _EXTENSIONS:
                    self._extend(header)
                    continue
                found = entry(header, self._extra() if self._pending else self._global, memo, limits)
            except HeaderError as error:
                raise self._error(f"entry {self._name(header)} {error}", offset=start) from None
            if self._pending:
                self._pending = {}
            self._current = found
            self._left = size = found.size
            self._padding = -size % BLOCK
            yield found
        self._count += 1

    def _advance(self) -> bool:
        """Go to the next header; false at the end of the archive, which is then consumed."""
        if rest := self._left + self._padding:
            self._pass(rest)
            self._left = self._padding = 0
        if len(self._buffer) - self._pos < BLOCK:
            self._fill()
        pos = self._pos
        if self._buffer[pos] or self._buffer[pos : pos + BLOCK] != _ZERO:
            return True
        if self._pending:
            raise self._error("ends after an extension header (PAX or GNU long name) that no entry follows")
        self._finish()
        return False

    def _fill(self) -> None:
        """Have one whole block in the buffer."""
        parts = [self._buffer[self._pos :]]
        have = len(parts[0])
        while have < BLOCK:
            data = self._stream.read(CHUNK_BYTES)
            if not data:
                self._base, self._pos = self._base + self._pos, have
                raise self._truncated("in a header" if have else "before the zero block that ends an archive")
            parts.append(data)
            have += len(data)
        self._base += self._pos
        self._buffer, self._pos = b"".join(parts), 0

    def _load(self) -> int:
        """Have something in the buffer; how much."""
        if self._pos >= len(self._buffer):
            self._base += self._pos
            self._buffer, self._pos = self._stream.read(CHUNK_BYTES), 0
            if not self._buffer:
                raise self._truncated(
                    f"in the content of entry {show(self._current.path)}" if self._current else "in a PAX or GNU header"
                )
        return len(self._buffer) - self._pos

    def _pass(self, count: int) -> None:
        """Go past what nobody wanted to read."""
        end = self._pos + count
        while end > len(self._buffer):
            count = end - len(self._buffer)
            self._pos = len(self._buffer)
            self._load()
            end = count
        self._pos = end

    def _take(self, count: int) -> bytes:
        step = min(count, self._load())
        pos = self._pos
        self._pos += step
        # A slice of everything is the same object: large files pass without being copied.
        return self._buffer[pos : pos + step]

    def _finish(self) -> None:
        """Read the rest, which must be zero bytes, so that digests over the stream are complete."""
        piece = self._buffer[self._pos :]
        self._base += self._pos
        while piece:
            if piece.count(0) != len(piece):
                offset = self._base + len(piece) - len(piece.lstrip(b"\0"))
                raise self._error("has trailing data after the end of the archive", offset=offset)
            self._base += len(piece)
            piece = self._stream.read(CHUNK_BYTES)

    def _wrong_checksum(self, header: Header) -> ArchiveError:
        if not self._base + self._pos:
            return self._error("is not a tar archive, or its first header is damaged", actual=repr(header.name[:8]))
        return self._error("has a header with a wrong checksum", actual=repr(header.checksum))

    def _extend(self, header: Header) -> None:
        """Read a PAX or GNU header that changes the entry behind it (or, global, all of them)."""
        self._current = None
        flag, size = header.flag, number(header.size)
        if not 0 <= size <= self._limits.pax_bytes:
            raise HeaderError(f"has an extension header of {size} bytes; limit {self._limits.pax_bytes} (pax_bytes)")
        if flag in self._pending or (flag == b"g" and self._pending):
            raise HeaderError("has two extension headers where only one has a meaning")
        rest = size + -size % BLOCK
        parts = []
        while rest:
            parts.append(self._take(rest))
            rest -= len(parts[-1])
        data = b"".join(parts)[:size]
        if flag == b"g":
            self._global.update(global_records(data))
        elif flag == b"x":
            self._pending[flag] = records(data)
        else:
            self._pending[flag] = {b"path" if flag == b"L" else b"linkpath": long_name(data)}

    def _extra(self) -> dict[bytes, bytes]:
        """The records that apply to the next entry."""
        extra = dict(self._global)
        for found in self._pending.values():
            extra.update(found)
        named = [key for found in self._pending.values() for key in found if key in {b"path", b"linkpath"}]
        if len(named) != len(set(named)):
            raise HeaderError("has both a PAX and a GNU long name; readers disagree about which one counts")
        return extra

    def _name(self, header: Header) -> str:
        """The name of an entry for a message, as far as it is known."""
        name = name_of(header)
        for found in self._pending.values():
            name = found.get(b"path") or name
        return show(name)

    def _truncated(self, what: str) -> ArchiveError:
        offset = self._base + self._pos
        return self._error(f"is truncated: it ends after {offset} bytes, {what}", offset=offset)

    def _error(
        self, problem: str, *, offset: int | None = None, expected: str | None = None, actual: str | None = None
    ) -> ArchiveError:
        at = self._base + self._pos if offset is None else offset
        where = f"header {self._count}, byte {at} of the uncompressed stream"
        return ArchiveError(self._subject, problem, expected=expected, actual=actual, where=where)
