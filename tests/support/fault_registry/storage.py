"""What the registry holds: blobs over all repositories, and per repository links, manifests and tags."""

from __future__ import annotations

import hashlib
import re
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
NAME = re.compile(r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*")
TAG = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}")
_PIECE = 256 * 1024


def digest_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """`piece(start, stop)` gives bytes [start, stop); None where the bytes are not there."""

    digest: str
    size: int
    piece: Callable[[int, int], bytes] | None

    def read(self, start: int, stop: int) -> Iterator[bytes]:
        assert self.piece is not None, f"{self.digest} has no bytes"
        while start < stop:
            data = self.piece(start, min(stop, start + _PIECE))
            start += len(data)
            yield data


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    digest: str
    media_type: str
    raw: bytes


@dataclass(slots=True, kw_only=True)
class Repository:
    """Blobs linked here (digests, oldest first), manifests by digest, and tags."""

    name: str
    blobs: dict[str, Blob] = field(default_factory=dict)
    manifests: dict[str, Manifest] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    def resolve(self, reference: str) -> Manifest | None:
        return self.manifests.get(self.tags.get(reference, reference))


class Storage:
    """Everything; `lock` guards it and is held only while nothing is read from or written to a socket."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.blobs: dict[str, Blob] = {}
        self.repositories: dict[str, Repository] = {}

    def repository(self, name: str) -> Repository:
        """The repository of that name, made where it is not there."""
        with self.lock:
            return self.repositories.setdefault(name, Repository(name=name))

    def link(self, repository: str, blob: Blob) -> None:
        with self.lock:
            known = self.blobs.get(blob.digest)
            kept = known if known is not None and known.piece is not None else blob
            self.blobs[blob.digest] = kept
            self.repository(repository).blobs[blob.digest] = kept


def stored(data: bytes) -> Blob:
    """A blob whose bytes are in memory."""
    return Blob(digest=digest_of(data), size=len(data), piece=lambda start, stop: data[start:stop])


def repeated(pattern: bytes, size: int) -> Blob:
    """A blob of `size` bytes made of a pattern again and again: no memory, one pass of hashing to make it."""
    step = len(pattern)
    long = pattern * (_PIECE // step + 2)

    def piece(start: int, stop: int) -> bytes:
        offset = start % step
        return long[offset : offset + min(stop - start, _PIECE)]

    hasher = hashlib.sha256()
    done = 0
    while done < size:
        data = piece(done, size)
        hasher.update(data)
        done += len(data)
    return Blob(digest="sha256:" + hasher.hexdigest(), size=size, piece=piece)
