"""What this machine worked out before, kept in the cache under the digest of everything it follows from.

A memo saves time and never decides: it is used only where the lock says the same, so that neither a damaged nor a
forged one can change a digest. While a lock is made, the lock before is what says it (SECURITY.md). Anything that does
not read as a memo is none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from imgbuild import jsontext
from imgbuild.digest import Digest
from imgbuild.errors import ImgbuildError
from imgbuild.model.decode import Document, builtins, convert

if TYPE_CHECKING:
    from imgbuild.adapters.cache import Cache

T = TypeVar("T", bound=Document)


class LayerMemo(Document, frozen=True, kw_only=True):
    """A canonical layer that was written for some changes."""

    diff_id: Digest
    digest: Digest
    size: int
    uncompressed_size: int


class BlobMemo(Document, frozen=True, kw_only=True):
    """A file that came out of some work: a compiled library, a member of a wheel."""

    digest: Digest
    size: int


class HolderMemo(Document, frozen=True, kw_only=True):
    """The layer of an image that a file was read from."""

    digest: Digest
    size: int


def recall(cache: Cache, key: Digest, kind: type[T]) -> T | None:
    """The memo under a key, or None."""
    raw = cache.result(key)
    if raw is None:
        return None
    try:
        return convert(jsontext.loads(raw, subject="memo"), kind, subject="memo")
    except (ImgbuildError, msgspec.MsgspecError):
        return None


def remember(cache: Cache, key: Digest, memo: Document) -> None:
    """Keep a memo."""
    cache.keep_result(key, jsontext.dumps(builtins(memo)))
