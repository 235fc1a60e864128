"""Blobs of a repository: whether one is there, its bytes as a stream that survives broken connections, and mounts."""

from __future__ import annotations

import abc
import re
import time
from typing import TYPE_CHECKING, Self

from imgbuild.adapters.registry.origin import public
from imgbuild.adapters.registry.repository import refuse_encoding
from imgbuild.adapters.registry.secrecy import hiding
from imgbuild.adapters.registry.session import Call
from imgbuild.config import CHUNK_BYTES, DEFAULT_LIMITS, MIB
from imgbuild.digest import VerifiedReader, chunks
from imgbuild.errors import (
    DigestMismatchError,
    ForbiddenError,
    LayoutError,
    MissingError,
    NetworkError,
    ProtocolError,
    RegistryError,
    UnauthorizedError,
)
from imgbuild.model.oci import ImageConfig

if TYPE_CHECKING:
    from imgbuild.adapters.registry.repository import Repository
    from imgbuild.adapters.registry.session import Registry
    from imgbuild.adapters.registry.wire import Answer
    from imgbuild.model.oci import Descriptor

_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")
_PROGRESS_BYTES = 4 * MIB
"""bytes that have to come before breaks are forgiven: a connection that gives a byte at a time ends some day."""


@hiding
def blob_size(repository: Repository, blob: Descriptor) -> int | None:
    """The size in bytes of a blob that a repository says it has; -1 if it has it and does not say; None if it has not.

    Nothing of its content is looked at.
    """
    with _head(repository, blob, "HEAD", {200, 404, 405, 501}) as answer:
        answer.discard()
        if answer.status in {200, 404}:
            return _stated_size(answer)
    # It does not know HEAD: the head of a GET says the same, and its body is dropped.
    with _head(repository, blob, "GET", {200, 404}) as answer:
        return _stated_size(answer)


def _head(repository: Repository, blob: Descriptor, method: str, accept: set[int]) -> Answer:
    call = Call(
        method=method,
        url=repository.path(f"blobs/{blob.digest}"),
        subject=f"blob {blob.digest} of {repository}",
        repository=repository.name,
        scopes=(repository.scope(),),
        accept=accept,
        follow=True,
    )
    return repository.registry.call(call)


def _stated_size(answer: Answer) -> int | None:
    if answer.status == 404:  # noqa: PLR2004 - HTTP
        return None
    return -1 if answer.length is None else answer.length


@hiding
def has_blob(repository: Repository, blob: Descriptor) -> bool:
    """Whether a repository says it has a blob, with its size; a `DigestMismatchError` where the size is another one."""
    found = blob_size(repository, blob)
    if found is not None and found not in {-1, blob.size}:
        raise DigestMismatchError(
            f"blob {blob.digest} of {repository}",
            "is there with another size",
            expected=f"{blob.size} bytes",
            actual=f"{found} bytes",
            hint="the registry's copy is damaged, or the manifest states a wrong size; have it removed there",
        )
    return found is not None


@hiding
def mount(target: Repository, blob: Descriptor, source: str) -> str | None:
    """Have a blob of another repository of the same registry linked into this one (distribution-spec, Mounting).

    Returns:
        None if it was mounted; else the Location of the upload session that the registry opened instead, or an empty
        text where it refused: then the blob has to be sent, which is no failure (cases C44, C45).
    """
    query = f"uploads/?mount={blob.digest}&from={source}"
    call = Call(
        method="POST",
        url=target.path(f"blobs/{query}"),
        subject=f"mount of {blob.digest} from {source}",
        repository=target.name,
        # Both scopes: a token for the target alone may not read the source.
        scopes=(target.scope("pull,push"), f"repository:{source}:pull"),
        accept={201, 202},
    )
    try:
        with target.registry.call(call) as answer:
            answer.discard()
            if answer.status == 201:  # noqa: PLR2004 - HTTP
                return None
            return answer.header("Location") or ""
    except (UnauthorizedError, ForbiddenError, MissingError, ProtocolError):
        return ""
    except RegistryError as error:
        if type(error) is RegistryError:
            return ""
        raise


@hiding
def read_blob(repository: Repository, blob: Descriptor, limit: int) -> bytes:
    """A whole blob, checked; one that is no longer than a config may be has to come in `Times.document`.

    Raises:
        NetworkError: it did not come in that time.
        LayoutError: it is longer than `limit` bytes.
        DigestMismatchError, RegistryError: as `BlobStream.read`.
    """
    subject = f"blob {blob.digest} of {repository}"
    if blob.size > limit:
        raise LayoutError(subject, "is too long", expected=f"at most {limit} bytes", actual=f"{blob.size} bytes")
    small = blob.size <= DEFAULT_LIMITS.config_bytes
    seconds = repository.registry.times.document
    raw = bytearray()
    with BlobStream(repository, blob) as stream:
        stream.start()
        end = time.monotonic() + seconds
        for piece in chunks(VerifiedReader(stream, blob.digest, blob.size, subject=subject)):
            raw += piece
            if small and len(raw) < blob.size and time.monotonic() > end:
                raise NetworkError(
                    subject, f"did not come whole in {seconds:g} seconds", actual=f"{len(raw)} of {blob.size} bytes"
                )
    found = bytes(raw)
    if small:
        repository.registry.secrets.screen(lambda: ImageConfig.parse(found, subject=subject))
    return found


class ResumedStream(abc.ABC):
    """The bytes of something whose size is known, from an offset on. Not verified: wrap it in a `VerifiedReader`.

    After a broken connection it goes on where it was, by Range, and where the registry does not do that right, by
    reading from the start and dropping what is known. Whoever answers right and breaks again and again, without
    `_PROGRESS_BYTES` between, is left after as many breaks as a request has tries.
    """

    def __init__(self, registry: Registry, *, size: int, subject: str, offset: int = 0) -> None:
        self.registry = registry
        self._size = size
        self._offset = offset
        self._subject = subject
        self._answer: Answer | None = None
        self._breaks = 0
        self._mark = offset
        self._ranges = True

    @abc.abstractmethod
    def _call(self, accept: set[int], headers: dict[str, str]) -> Call:
        """The request that asks for the bytes."""

    @hiding
    def start(self) -> None:
        """Ask for the first byte now, so that what is missing is known before anything is read; raises as `read`."""
        while self._answer is None and self._offset < self._size:
            self._answer = self._open()

    @hiding
    def read(self, size: int, /) -> bytes:
        """At most `size` bytes, as soon as there are some; empty only at the end.

        Raises:
            NetworkError: it broke too often.
            MissingError, RegistryError: as `Registry.call`.
            DigestMismatchError: the registry announces another length.
        """
        while self._offset < self._size:
            if self._answer is None:
                self._answer = self._open()
                continue
            try:
                data = self._answer.read(min(size, self._size - self._offset))
            except NetworkError as error:
                self._break(error.problem)
                continue
            if data:
                self._offset += len(data)
                if self._offset == self._size:
                    self._finish()
                return data
            # An end without a length: TLS of Python does not tell a reset from it either.
            self._break("ended too early")
        return b""

    def close(self) -> None:
        """Drop the connection, if it is open."""
        if self._answer is not None:
            self._answer.close()
            self._answer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _finish(self) -> None:
        """Give the connection back. What comes after the last byte that was announced is not looked at."""
        if self._answer is not None:
            self._answer.discard()
            self._answer = None

    def _break(self, problem: str) -> None:
        where = None if self._answer is None else public(self._answer.url)
        self.close()
        if self._offset - self._mark >= _PROGRESS_BYTES:
            self._breaks = 0
        self._mark = self._offset
        self._breaks += 1
        actual = f"{self._offset} of {self._size} bytes"
        if self._breaks >= self.registry.patience.attempts:
            raise NetworkError(self._subject, f"{problem}, after {self._breaks} breaks", actual=actual, where=where)
        delay = self.registry.patience.delay(self._breaks)
        self.registry.note(f"{self._subject}: {problem}; going on after {actual} in {delay:.1f} seconds")
        self.registry.ending.sleep(delay)

    def _open(self) -> Answer | None:
        """An answer that stands at our offset; None if that one did not get there, and another one may."""
        ranged = self._offset > 0 and self._ranges
        headers = {"Range": f"bytes={self._offset}-"} if ranged else {}
        call = self._call({200, 206, 416} if ranged else {200}, headers)
        # What the call raises is final: it has tried as often as is worth it.
        answer = self.registry.call(call)
        try:
            if self._stands(answer):
                return answer
        except BaseException:
            answer.close()
            raise
        answer.close()
        return None

    def _stands(self, answer: Answer) -> bool:
        """Whether the answer is what was asked for, after it was read up to our offset."""
        refuse_encoding(answer, self._subject)
        if answer.status == 206 and self._continues(answer):  # noqa: PLR2004 - HTTP
            return True
        if answer.status != 200:  # noqa: PLR2004
            # The body of a 416 is not looked at: some announce the length of the blob and send less.
            self._ranges = False
            self.registry.note(f"{self._subject}: not the part that was asked for; reading from the start")
            return False
        if answer.length not in {None, self._size}:
            raise DigestMismatchError(
                self._subject,
                "has another length than recorded",
                expected=f"{self._size} bytes",
                actual=f"{answer.length} bytes",
            )
        return self._skip(answer)

    def _skip(self, answer: Answer) -> bool:
        left = self._offset
        while left:
            try:
                data = answer.read(min(left, CHUNK_BYTES))
            except NetworkError as error:
                self._break(error.problem)
                return False
            if not data:
                self._break("ended too early")
                return False
            left -= len(data)
        return True

    def _continues(self, answer: Answer) -> bool:
        """Whether a 206 begins at our offset. It may end before the blob does (RFC 9110, 15.3.7): that is a break."""
        found = _CONTENT_RANGE.fullmatch(answer.header("Content-Range") or "")
        return (
            found is not None
            and int(found[1]) == self._offset
            and self._offset <= int(found[2]) < self._size
            and found[3] in {"*", str(self._size)}
        )


class BlobStream(ResumedStream):
    """The bytes of a blob of a repository."""

    def __init__(self, repository: Repository, blob: Descriptor, *, offset: int = 0) -> None:
        subject = f"blob {blob.digest} of {repository}"
        super().__init__(repository.registry, size=blob.size, subject=subject, offset=offset)
        self._repository = repository
        self._blob = blob

    def _call(self, accept: set[int], headers: dict[str, str]) -> Call:
        return Call(
            method="GET",
            url=self._repository.path(f"blobs/{self._blob.digest}"),
            subject=self._subject,
            repository=self._repository.name,
            scopes=(self._repository.scope(),),
            accept=accept,
            headers=headers,
            follow=True,
        )
