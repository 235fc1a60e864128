"""Sources that are one file each, pinned by its digest: given by the operator, downloaded, or read from an image.

All of them are kept in the cache under that digest, and whoever put them there does not matter: the digest decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from imgbuild.config import DEFAULT_LIMITS
from imgbuild.digest import VerifiedReader, chunks
from imgbuild.errors import ArchiveError, DigestMismatchError, MissingError, OfflineMissError, ProtocolError
from imgbuild.model.image import ImageMemberSource, UrlSource
from imgbuild.model.lockfile import LockedImageMember, LockedUrl

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imgbuild.model.image import SingleSource
    from imgbuild.model.lockfile import LockedSingle
    from imgbuild.steps.context import Context

_Wanted: TypeAlias = "SingleSource | LockedSingle"


def fetch_whole(context: Context, name: str, source: SingleSource) -> int:
    """Have a source's file in the cache, hashed now; returns its size in bytes.

    Args:
        context: the surroundings.
        name: of the source.
        source: as the definition has it, with its platform where it is in an image.

    Raises:
        MissingError: it is a file that the operator has not given, or is nowhere any more.
        OfflineMissError: it would have to be fetched.
        DigestMismatchError: what is there is something else.
        ArchiveError: it is longer than `source_bytes`.
        InputError: the image has no such file.
        RegistryError, BudgetError, StorageError: as fetching says.
    """
    cache = context.cache
    if not is_whole(context, name, source):
        _fetch(context, name, source)
    return cache.path(source.digest).stat().st_size


def have(context: Context, pin: LockedSingle) -> None:
    """Have the file of a pin in the cache, with its size; that one that is there is whole, its reader checks.

    Raises:
        As `fetch_whole`.
    """
    if not context.cache.has(pin.digest, pin.size):
        _fetch(context, pin.name, pin)


def is_whole(context: Context, name: str, source: SingleSource) -> bool:
    """Whether the cache has the very bytes, with the size that is demanded; a damaged copy is put out of the way."""
    cache = context.cache
    if not cache.has(source.digest, source.size):
        return False
    size = cache.path(source.digest).stat().st_size
    with context.progress.task(f"verifying {name}", size) as task:
        try:
            cache.verify(source.digest, size, subject=f"source {name}", advance=task.advance)
        except DigestMismatchError:
            return False
    return True


def _fetch(context: Context, name: str, wanted: _Wanted) -> None:
    subject, limit = f"source {name}", DEFAULT_LIMITS.source_bytes
    if wanted.size is not None and wanted.size > limit:
        raise _too_long(subject, wanted.size)
    match wanted:
        case UrlSource() | LockedUrl():
            _download(context, name, wanted)
        case ImageMemberSource() | LockedImageMember():
            from imgbuild.steps.imagemember import fetch_member  # noqa: PLC0415 - for few images

            fetch_member(context, name, wanted, platform=wanted.platform or "")
        case _:
            raise _not_given(context, name, wanted)


def _not_given(context: Context, name: str, wanted: _Wanted) -> MissingError | DigestMismatchError:
    subject, cache = f"source {name}", context.cache
    if cache.has(wanted.digest):
        size = cache.path(wanted.digest).stat().st_size
        return DigestMismatchError(
            subject,
            "is in the cache with another size",
            expected=f"{wanted.digest}, {wanted.size} bytes",
            actual=f"{size} bytes",
            where=str(cache.path(wanted.digest)),
            hint=f"is that size right? then that copy is damaged: give the file again, --source {name}=FILE",
        )
    return MissingError(
        subject,
        "is a file of the operator's, and is not here",
        expected=wanted.digest,
        where=str(cache.root),
        hint=f"give it once: --source {name}=FILE",
    )


def _download(context: Context, name: str, wanted: UrlSource | LockedUrl) -> None:
    from imgbuild.adapters.registry.download import UrlStream, stated_length  # noqa: PLC0415 - urllib3 takes 60 ms

    subject = f"source {name}"
    if context.offline:
        raise OfflineMissError(
            subject,
            "is not in the cache",
            expected=wanted.digest,
            where=wanted.url,
            hint=f"run it once without --offline, or give it: --source {name}=FILE",
        )
    registries = context.registries
    size = wanted.size
    if size is None:
        size = _stated(subject, wanted.url, stated_length(registries, wanted.url, subject=subject))
    with (
        UrlStream(registries, wanted.url, size=size, subject=subject) as stream,
        context.progress.task(f"fetching {name}", size) as task,
    ):
        verified = VerifiedReader(stream, wanted.digest, size, subject=subject)

        def pieces() -> Iterator[bytes]:
            for data in chunks(verified):
                task.advance(len(data))
                yield data

        context.cache.put(pieces(), expected=wanted.digest, subject=subject)


def _stated(subject: str, url: str, size: int | None) -> int:
    if size is None:
        raise ProtocolError(
            subject, "has no length by its server", where=url, hint="write its `size` in bytes into the definition"
        )
    if size > DEFAULT_LIMITS.source_bytes:
        raise _too_long(subject, size)
    return size


def _too_long(subject: str, size: int) -> ArchiveError:
    limit = DEFAULT_LIMITS.source_bytes
    expected = f"at most {limit} bytes (source_bytes)"
    return ArchiveError(subject, "is too long", expected=expected, actual=f"{size} bytes")
