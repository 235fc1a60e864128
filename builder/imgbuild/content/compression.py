"""Layer compression, read only: gzip of many members, zstd of many frames, or none, told apart by the first bytes.

The media type is not asked: engines sniff as well, so what the bytes say is what will be run.
Sources: RFC 1952 (gzip), RFC 8878 (zstd), image-spec `layer.md`. Case C26: all members are read, not only the first.
"""

from __future__ import annotations

import abc
import re
import sys
from typing import TYPE_CHECKING, Literal, Protocol, cast

from isal import igzip_lib, isal_zlib

from imgbuild.config import CHUNK_BYTES, DEFAULT_LIMITS
from imgbuild.errors import ArchiveError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from imgbuild.config import Limits
    from imgbuild.digest import Readable

# Its types say that the class is an instance of itself.
_IsalError = cast("type[Exception]", igzip_lib.IsalError)

_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE = b"\x2a\x4d\x18"
_MAGIC_BYTES = 4

EMPTY_PARTS = 1_000
"""members or frames without content in a row; pzstd puts one skippable frame before each frame, nobody puts more."""

_NUMBER = re.compile(r"^Error -?\d+ ")
_FIRST_FEED = 1024
_LAST_FEED = 256 * 1024
# Bytes given to a decompressor at once. What it does not use it copies, so members of 20 bytes in a large input would
# cost quadratic time; each member starts small and doubles.


def compression_of(head: bytes) -> Literal["gzip", "zstd", "none"]:
    """Tell the compression from the first bytes of a stream; 4 are enough.

    zstd includes streams that start with a skippable frame (pzstd writes them). Anything unknown, also bzip2 and xz,
    is "none": the tar reader then says that it is not a tar.
    """
    if head[:2] == _GZIP_MAGIC:
        return "gzip"
    if head[:4] == _ZSTD_MAGIC or (head[1:4] == _ZSTD_SKIPPABLE and head[0] >> 4 == 5):  # noqa: PLR2004 - 0x184D2A5?
        return "zstd"
    return "none"


def decompress(stream: Readable, *, subject: str, limits: Limits = DEFAULT_LIMITS) -> Readable:
    """Wrap a stream so that reading it gives uncompressed bytes. Reads the first piece at once, to sniff.

    Args:
        stream: compressed or plain bytes; read to its very end, so that a `VerifiedReader` below has checked it.
        subject: the layer or file, for messages.
        limits: `layer_bytes` of output, `compression_ratio` above `ratio_floor`, `zstd_window_log`, and
            `layer_entries` as the number of members or frames.

    Returns:
        A `Readable`; answers are at most `CHUNK_BYTES` long whatever is asked, empty only at the end. Memory is
        bounded by a few pieces plus the zstd window.

    Raises:
        ArchiveError: (here or on `read`) corrupt or truncated data, anything after the last member or frame (zero
            padding too), more than `EMPTY_PARTS` empty members or frames in a row, or a limit exceeded.

    gzip checks CRC-32 and length of each member; zstd checks its checksum only in frames that carry one. NOT checked:
    that the bytes are those of a descriptor, that they are a tar, the names and times in gzip headers.
    """
    source = _Source(stream)
    kind = compression_of(source.at_least(_MAGIC_BYTES)[:_MAGIC_BYTES].tobytes())
    if kind == "none":
        return _Plain(source, subject=subject, limits=limits)
    return _Decompressed(source, kind, subject=subject, limits=limits)


class _Source:
    """Compressed input with a position that a decompressor may move back within the piece at hand."""

    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        self._piece = memoryview(b"")
        self._start = 0
        self._before = 0

    @property
    def taken(self) -> int:
        """Bytes used so far."""
        return self._before + self._start

    def at_least(self, count: int) -> memoryview:
        """What is unused of the input: at least `count` bytes, fewer only at the end of the stream."""
        rest = self._piece[self._start :]
        if len(rest) >= count:
            return rest
        parts = [rest]
        have = len(rest)
        while have < count and (data := self._stream.read(CHUNK_BYTES)):
            parts.append(memoryview(data))
            have += len(data)
        self._before += self._start
        self._start = 0
        self._piece = parts[-1] if not rest and len(parts) == 2 else memoryview(b"".join(parts))  # noqa: PLR2004
        return self._piece

    def take(self, count: int) -> None:
        """Mark bytes as used; a negative count gives some back."""
        self._start += count


class _Part(Protocol):
    """One gzip member or zstd frame being decompressed."""

    @property
    def hungry(self) -> bool:
        """Whether more output needs more input."""
        ...

    @property
    def eof(self) -> bool:
        """Whether the member or frame is complete and checked."""
        ...

    def feed(self, data: memoryview) -> tuple[bytes, int]:
        """Output of at most `CHUNK_BYTES`, and how many bytes of input were used (negative: given back)."""
        ...


class _GzipMember:
    hungry = True

    def __init__(self) -> None:
        # Twice as fast as zlib at this (bench/README.md); what is read does not depend on who inflates it.
        self._inner = isal_zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    def feed(self, data: memoryview) -> tuple[bytes, int]:
        out = self._inner.decompress(data, CHUNK_BYTES)
        return out, len(data) - len(self._inner.unconsumed_tail) - len(self._inner.unused_data)


class _ZstdFrame:
    def __init__(self, window_log: int) -> None:
        self._inner = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: window_log})

    @property
    def hungry(self) -> bool:
        return self._inner.needs_input

    @property
    def eof(self) -> bool:
        return self._inner.eof

    def feed(self, data: memoryview) -> tuple[bytes, int]:
        # It keeps unused input to itself until the output of a feed is fetched, with empty feeds; what lies behind
        # the frame's end is then given back, and still is in the piece at hand because nothing was read in between.
        given = data if self._inner.needs_input else memoryview(b"")
        out = self._inner.decompress(given, CHUNK_BYTES)
        return out, len(given) - (len(self._inner.unused_data) if self._inner.eof else 0)


class _Pieces(abc.ABC):
    """`read` over pieces, with the limit on output; subclasses make the pieces."""

    def __init__(self, source: _Source, *, subject: str, limits: Limits) -> None:
        self._source = source
        self._subject = subject
        self._limits = limits
        self._written = 0
        self._piece = b""
        self._start = 0

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes, which must be positive; fewer than asked is usual, empty is the end."""
        if size <= 0:
            message = f"size must be positive, not {size}"
            raise ValueError(message)
        if self._start >= len(self._piece):
            self._piece, self._start = self._next(), 0
            self._check(len(self._piece))
        if self._start == 0 and len(self._piece) <= size:
            data, self._piece = self._piece, b""
            return data
        data = self._piece[self._start : self._start + size]
        self._start += len(data)
        return data

    @abc.abstractmethod
    def _next(self) -> bytes:
        """The next piece; empty at the end."""

    def _check(self, count: int) -> None:
        self._written += count
        if self._written > self._limits.layer_bytes:
            raise self._error(
                "is larger than the limit of one uncompressed layer",
                expected=f"at most {self._limits.layer_bytes} bytes (layer_bytes)",
            )
        allowed = self._limits.compression_ratio * self._source.taken
        if self._written > self._limits.ratio_floor and self._written > allowed:
            raise self._error(
                "expands more than any honest layer does (a decompression bomb)",
                expected=f"at most {self._limits.compression_ratio} bytes per byte of input (compression_ratio)",
            )

    def _error(self, problem: str, *, expected: str | None = None, hint: str | None = None) -> ArchiveError:
        return ArchiveError(
            self._subject,
            problem,
            expected=expected,
            actual=f"{self._source.taken} bytes read, {self._written} bytes produced",
            where=self._where(),
            hint=hint,
        )

    def _where(self) -> str | None:
        return None


class _Plain(_Pieces):
    def _next(self) -> bytes:
        data = self._source.at_least(1)[:CHUNK_BYTES].tobytes()
        self._source.take(len(data))
        return data


class _Decompressed(_Pieces):
    def __init__(self, source: _Source, kind: Literal["gzip", "zstd"], *, subject: str, limits: Limits) -> None:
        super().__init__(source, subject=subject, limits=limits)
        self._kind = kind
        self._noun = "gzip member" if kind == "gzip" else "zstd frame"
        self._count = 0
        self._empty = 0
        self._ended = False
        self._open()

    def _open(self) -> None:
        self._part: _Part = _GzipMember() if self._kind == "gzip" else _ZstdFrame(self._limits.zstd_window_log)
        self._feed = _FIRST_FEED
        self._count += 1
        self._part_written = 0

    def _where(self) -> str:
        return f"{self._noun} {self._count}"

    def _next(self) -> bytes:
        while not self._ended:
            if self._part.eof:
                self._close()
                continue
            data = self._source.at_least(1)[: self._feed] if self._part.hungry else memoryview(b"")
            out, used = self._decode(data)
            self._source.take(used)
            self._feed = min(2 * self._feed, _LAST_FEED)
            if out:
                self._part_written += len(out)
                return out
            if not used and not self._part.eof and self._part.hungry:
                raise self._error(f"is truncated: it ends inside a {self._noun}")
        return b""

    def _decode(self, data: memoryview) -> tuple[bytes, int]:
        try:
            return self._part.feed(data)
        except (_IsalError, zstd.ZstdError) as error:
            if "too much memory" in str(error):
                raise self._error(
                    "needs a zstd window above the limit",
                    expected=f"a window of at most 2^{self._limits.zstd_window_log} bytes (zstd_window_log)",
                    hint="compress the layer again without --long or --ultra",
                ) from error
            raise self._error(f"is not valid {self._kind}: {_reason(error)}") from error

    def _close(self) -> None:
        """Go on with the next member or frame, or notice the end."""
        self._empty = 0 if self._part_written else self._empty + 1
        if self._empty > EMPTY_PARTS:
            raise self._error(f"has too many empty {self._noun}s in a row", expected=f"at most {EMPTY_PARTS}")
        head = self._source.at_least(_MAGIC_BYTES)[:_MAGIC_BYTES].tobytes()
        if not head:
            self._ended = True
        elif compression_of(head) == self._kind:
            if self._count >= self._limits.layer_entries:
                raise self._error(
                    f"has too many {self._noun}s",
                    expected=f"at most {self._limits.layer_entries} (layer_entries)",
                )
            self._open()
        elif not any(head):
            raise self._error(
                f"has zero bytes after its last {self._noun}; padding is refused, it is not part of the format",
            )
        else:
            raise self._error(f"has trailing garbage after its last {self._noun}: {head!r}")


def _reason(error: Exception) -> str:
    """What a decompression library says, without its own preamble."""
    return _NUMBER.sub("", str(error).rpartition(": ")[2])
