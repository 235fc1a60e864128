"""A digest is a type: parsed once, never a bare string (image-spec `descriptor.md`, Digests)."""

from __future__ import annotations

import functools
import hashlib
import queue
import re
import threading
import weakref
from typing import TYPE_CHECKING, Protocol

from imgbuild.config import CHUNK_BYTES
from imgbuild.errors import DigestMismatchError, DocumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_LENGTHS = {"sha256": 64, "sha512": 128}
_HEX = re.compile(r"[0-9a-f]+")
_DRAIN_BYTES = 16 * CHUNK_BYTES
"""bytes. Reading and hashing do without the interpreter's lock; to get it back takes up to 5 ms."""
_BESIDE_BYTES = 4 * CHUNK_BYTES
"""bytes from which on to hand them to another thread is worth it."""
_BESIDE_PIECES = 2
"""that wait for that thread at most."""


class Readable(Protocol):
    """Anything with `read(n)`; short reads are allowed, an empty answer is the end."""

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes."""
        ...


@functools.total_ordering
class Digest:
    """`algorithm:encoded`, lower-case hex of the exact length. sha512 is read, never made by us (case C15).

    Immutable by convention of its slots. Not a dataclass, since `msgspec` would write one as an object.
    """

    __slots__ = ("algorithm", "encoded")

    def __init__(self, algorithm: str, encoded: str) -> None:
        length = _LENGTHS.get(algorithm)
        if length is None:
            raise DocumentError(
                f"digest {algorithm[:20]!r}", (f"unknown algorithm; known: {', '.join(sorted(_LENGTHS))}",)
            )
        if len(encoded) != length or not _HEX.fullmatch(encoded):
            raise DocumentError(
                f"digest {encoded[:140]!r}", (f"{algorithm} takes exactly {length} lower-case hexadecimal digits",)
            )
        self.algorithm = algorithm
        self.encoded = encoded

    @classmethod
    def parse(cls, text: str) -> Digest:
        """Parse `sha256:<64 hex>` or `sha512:<128 hex>`; anything else is a `DocumentError`."""
        algorithm, colon, encoded = text.partition(":")
        if not colon:
            raise DocumentError(f"digest {text[:140]!r}", ("a digest is written algorithm:hex",))
        return cls(algorithm, encoded)

    @classmethod
    def of(cls, data: bytes) -> Digest:
        """The sha256 digest of bytes in memory."""
        return cls("sha256", hashlib.sha256(data).hexdigest())

    def hasher(self) -> hashlib._Hash:
        """A new hash object of this digest's algorithm."""
        return hashlib.new(self.algorithm)

    def __str__(self) -> str:
        return f"{self.algorithm}:{self.encoded}"

    def __repr__(self) -> str:
        return f"Digest({self.algorithm!r}, {self.encoded!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Digest):
            return NotImplemented
        return (self.algorithm, self.encoded) == (other.algorithm, other.encoded)

    def __lt__(self, other: Digest) -> bool:
        return (self.algorithm, self.encoded) < (other.algorithm, other.encoded)

    def __hash__(self) -> int:
        return hash((self.algorithm, self.encoded))


class BesideHash:
    """A hash that another thread takes of what is long, while whoever gives the bytes goes on.

    For work that one thread does while another core has nothing to do. It has the last few pieces in memory; what is
    given must not change. The thread ends with `hexdigest`, or with this object.
    """

    def __init__(self, algorithm: str = "sha256") -> None:
        self._hasher = hashlib.new(algorithm)
        self._size = 0
        self._thread: threading.Thread | None = None
        self._pieces: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._room = threading.Semaphore(_BESIDE_PIECES)
        weakref.finalize(self, self._pieces.put, None)

    def update(self, data: bytes) -> None:
        """The next bytes."""
        self._size += len(data)
        if self._size < _BESIDE_BYTES:
            self._hasher.update(data)
            return
        if self._thread is None:
            work = (self._hasher, self._pieces, self._room)
            self._thread = threading.Thread(target=_hash_beside, args=work, daemon=True)
            self._thread.start()
        self._room.acquire()
        self._pieces.put(data)

    def hexdigest(self) -> str:
        """Of all bytes so far, when they are hashed; more may follow."""
        if self._thread is not None:
            self._pieces.put(None)
            self._thread.join()
            self._thread = None
        return self._hasher.hexdigest()


def _hash_beside(hasher: hashlib._Hash, pieces: queue.SimpleQueue[bytes | None], room: threading.Semaphore) -> None:
    while (data := pieces.get()) is not None:
        hasher.update(data)
        room.release()


def chunks(stream: Readable, size: int = CHUNK_BYTES) -> Iterator[bytes]:
    """Yield the rest of a stream in pieces of at most `size` bytes."""
    while data := stream.read(size):
        yield data


def digest_of(pieces: Iterable[bytes], algorithm: str = "sha256") -> tuple[Digest, int]:
    """The digest and the length in bytes of a stream given in pieces."""
    hasher = hashlib.new(algorithm)
    length = 0
    for piece in pieces:
        hasher.update(piece)
        length += len(piece)
    return Digest(algorithm, hasher.hexdigest()), length


class VerifiedReader:
    """A reader that raises `DigestMismatchError` at the end of a stream that is not what was asked for.

    Reads at most `size + 1` bytes, so that a longer stream is refused without being read whole. A reader that is
    not read to its end has checked nothing: callers must drain it, or use `drain`.
    """

    def __init__(self, stream: Readable, digest: Digest, size: int, *, subject: str) -> None:
        self._stream = stream
        self._digest = digest
        self._size = size
        self._subject = subject
        self._hasher = digest.hasher()
        self._count = 0

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes; empty only after the whole stream was checked."""
        data = self._stream.read(min(size, self._size - self._count + 1))
        self._count += len(data)
        if self._count > self._size:
            raise DigestMismatchError(
                self._subject,
                "is longer than recorded",
                expected=f"{self._size} bytes",
                actual=f"over {self._size}",
            )
        self._hasher.update(data)
        if not data:
            self._finish()
        return data

    def drain(self, advance: Callable[[int], object] = int) -> None:
        """Read what is left, so that the check is made; `advance` is told the bytes of each read."""
        while data := self.read(_DRAIN_BYTES):
            advance(len(data))

    def _finish(self) -> None:
        if self._count != self._size:
            raise DigestMismatchError(
                self._subject,
                "is shorter than recorded",
                expected=f"{self._size} bytes",
                actual=f"{self._count} bytes",
            )
        actual = self._hasher.hexdigest()
        if actual != self._digest.encoded:
            raise DigestMismatchError(
                self._subject,
                "does not have the recorded digest",
                expected=self._digest,
                actual=f"{self._digest.algorithm}:{actual}",
            )
