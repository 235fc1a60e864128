"""Uploads of blobs that go on after a break, also after this process was killed (distribution-spec, Pushing Blobs).

A large blob goes in pieces. After each one the newest Location is written to disk; after a break the registry is asked
how much it has, and nothing that it has is sent again. Where a registry lost the upload, or cannot say how much it has,
the upload begins anew, and says so. The registry's check of the digest at the end decides about all bytes (C46 to C49).
"""

from __future__ import annotations

import contextlib
import re
import time
from typing import TYPE_CHECKING, Protocol

from imgbuild.adapters.registry.blobs import has_blob
from imgbuild.adapters.registry.origin import next_address
from imgbuild.adapters.registry.session import Body, Call
from imgbuild.config import CHUNK_BYTES, MIB
from imgbuild.errors import (
    DigestMismatchError,
    MissingError,
    NetworkError,
    ProtocolError,
    RegistryError,
    ServerError,
    ThrottledError,
    UnauthorizedError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from imgbuild.adapters.registry.repository import Repository
    from imgbuild.adapters.registry.uploadstate import UploadMemory
    from imgbuild.adapters.registry.wire import Answer
    from imgbuild.digest import Readable
    from imgbuild.errors import ImgbuildError
    from imgbuild.model.oci import Descriptor

_RANGE = re.compile(r"(?:bytes[= ])?0-(\d{1,18})")
_LEAST_CHUNK = 1 * MIB
"""bytes below which a piece is not made smaller, whatever is refused."""
_RESTARTS = 3
"""times that one upload may begin anew."""
_UNKNOWN_METHOD = frozenset({400, 405, 501})
_BROKEN = (NetworkError, ServerError, ThrottledError, UnauthorizedError)
"""After these it is not known how much arrived; the last one is a token that expired on the way."""


class BlobSource(Protocol):
    """Where the bytes of a blob come from."""

    def open(self, offset: int) -> AbstractContextManager[Readable]:
        """A stream of the bytes from an offset on."""
        ...


class _LostError(Exception):
    """The upload session is of no use any more; `why` says so in words."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class Upload:
    """One blob on its way into one repository."""

    def __init__(
        self,
        target: Repository,
        blob: Descriptor,
        source: BlobSource,
        *,
        memory: UploadMemory,
        advance: Callable[[int], None],
    ) -> None:
        """Nothing is asked yet.

        Args:
            target: where to.
            blob: digest and size in bytes.
            source: where from.
            memory: what is kept of it on disk.
            advance: told how many bytes more are there; less than nothing where some have to be sent again.
        """
        self._target = target
        self._registry = target.registry
        self._blob = blob
        self._source = source
        self._memory = memory
        self._advance = advance
        self._subject = f"blob {blob.digest} to {target}"
        self._chunk = target.registry.settings.chunk_bytes or target.registry.profile.chunk_bytes
        self._least = _LEAST_CHUNK
        self._pieces = True
        """Whether the registry takes a blob in pieces, as far as is known."""
        self._doubtful = False
        """Whether the registry's own count contradicted ours: then its check of the digest may fail, once."""
        self._breaks = 0
        self._known = 0

    def run(self, session: str | None = None) -> None:
        """Send what is missing.

        Args:
            session: the Location of a session that a registry opened in place of a mount.

        Raises:
            NetworkError, ServerError, ThrottledError: after all tries; what is there stays for the next run.
            DigestMismatchError: the registry computed another digest.
            RegistryError: as `Registry.call`.
        """
        with self._memory.hold(str(self._target), self._blob.digest):
            restarts = 0
            while True:
                try:
                    return self._run(session)
                except _LostError as lost:
                    restarts += 1
                    session = None
                    self._memory.forget(str(self._target), self._blob.digest)
                    if restarts > _RESTARTS:
                        raise NetworkError(
                            self._subject, f"was begun anew {_RESTARTS} times and never came to its end: {lost.why}"
                        ) from lost
                    self._registry.note(f"{self._subject}: {lost.why}; it begins anew")

    def _run(self, session: str | None) -> None:
        location, offset = self._resume() or self._begin(session)
        if self._pieces and self._blob.size > self._chunk:
            location = self._send_pieces(location, offset)
            self._close(location, None)
        else:
            self._see(0)
            self._close(location, self._body(0, self._blob.size))
        self._see(self._blob.size)
        self._memory.forget(str(self._target), self._blob.digest)

    def _begin(self, session: str | None) -> tuple[str, int]:
        if session:
            return self._next(str(self._registry.origin), session), 0
        with self._registry.call(self._call("POST", self._target.path("blobs/uploads/"), {202})) as answer:
            answer.discard()
            least = answer.header("OCI-Chunk-Min-Length") or ""
            if least.isascii() and least.isdigit():
                self._least = max(self._least, min(int(least), self._blob.size))
                self._chunk = max(self._chunk, self._least)
            return self._next(answer.url, answer.header("Location")), 0

    def _resume(self) -> tuple[str, int] | None:
        """Where an earlier run stopped, if the registry still knows it."""
        location = self._memory.recall(str(self._target), self._blob.digest)
        if location is None or not self._registry.profile.resumable:
            return None
        try:
            found = self._status(location)
        except (_LostError, ProtocolError):
            self._memory.forget(str(self._target), self._blob.digest)
            return None
        self._registry.note(f"{self._subject}: {found[1]} of {self._blob.size} bytes are there from an earlier run")
        return found

    def _send_pieces(self, location: str, offset: int) -> str:
        self._see(offset)
        while offset < self._blob.size:
            count = min(self._chunk, self._blob.size - offset)
            try:
                with self._patch(location, offset, count) as answer:
                    if answer.status >= 400:  # noqa: PLR2004 - HTTP
                        location, offset = self._patch_refused(answer, location, offset)
                    else:
                        answer.discard()
                        location = self._next(answer.url, answer.header("Location"))
                        self._compare(answer, offset + count)
                        offset += count
                        self._breaks = 0
            except _BROKEN as error:
                self._pause(error)
                location, offset = self._status(location)
            self._memory.keep(str(self._target), self._blob.digest, location)
            self._see(offset)
        return location

    def _patch(self, location: str, offset: int, count: int) -> Answer:
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Range": f"{offset}-{offset + count - 1}",
        }
        accept = {200, 201, 202, 204, 400, 404, 405, 413, 416, 501}
        return self._registry.call(
            self._call("PATCH", location, accept, body=self._body(offset, count), headers=headers, once=True)
        )

    def _patch_refused(self, answer: Answer, location: str, offset: int) -> tuple[str, int]:
        if answer.status == 416:  # noqa: PLR2004 - HTTP
            # It counts otherwise than we do, and it is right.
            answer.discard()
            self._pause(NetworkError(self._subject, "is at another offset than the registry says"))
            return self._status(location)
        refusal, error = self._registry.refusal(answer, self._call("PATCH", location, ()))
        if answer.status == 413 and self._chunk > self._least:  # noqa: PLR2004
            self._chunk = max(self._least, self._chunk // 4)
            self._registry.note(f"{self._subject}: pieces are too large for it; {self._chunk} bytes from now on")
            return self._status(location)
        if answer.status == 404 or refusal.has("BLOB_UPLOAD_UNKNOWN", "BLOB_UPLOAD_INVALID"):  # noqa: PLR2004
            raise _LostError("the registry does not know the upload any more")
        if answer.status in _UNKNOWN_METHOD and offset == 0:
            self._pieces = False
            raise _LostError("the registry takes no pieces, so it goes in one request")
        raise error

    def _compare(self, answer: Answer, offset: int) -> None:
        """Look at what the registry says it has. We go on by our own count, since it took the piece (case C48)."""
        found = _RANGE.fullmatch((answer.header("Range") or "").strip())
        if found is not None and int(found[1]) + 1 != offset and self._registry.profile.range_counts:
            self._doubtful = True

    def _status(self, location: str) -> tuple[str, int]:
        """The newest Location and how many bytes the registry has."""
        if not self._registry.profile.range_counts:
            raise _LostError("this kind of registry does not say how much it has")
        accept = {200, 204, 400, 404, 405, 501}
        with self._registry.call(self._call("GET", location, accept)) as answer:
            answer.discard()
            if answer.status >= 400:  # noqa: PLR2004 - HTTP
                raise _LostError("the registry does not know how much it has of it")
            found = _RANGE.fullmatch((answer.header("Range") or "").strip())
            if found is None:
                raise _LostError("the registry does not say how much it has of it")
            # `0-0` is what is said of an empty upload, too; a registry that has one byte refuses the next piece.
            offset = int(found[1]) + 1 if int(found[1]) else 0
            if offset > self._blob.size:
                raise _LostError("the registry has more bytes of it than there are")
            newest = answer.header("Location")
            return self._next(answer.url, newest) if newest else location, offset

    def _close(self, location: str, body: Body | None) -> None:
        """Name the digest: the registry hashes what it has, and from then on it is a blob."""
        url = f"{location}{'&' if '?' in location else '?'}digest={self._blob.digest}"
        accept = {200, 201, 202, 204, 400, 404, 405, 413, 416, 501}
        headers = {"Content-Type": "application/octet-stream"}
        try:
            call = self._call("PUT", url, accept, body=body, headers=headers, once=True)
            with self._registry.call(call) as answer:
                if answer.status < 300:  # noqa: PLR2004 - HTTP
                    answer.discard()
                    return
                if not self._arrived():
                    self._close_refused(answer, call, body)
        except _BROKEN as error:
            if self._arrived():
                return
            self._pause(error)
            raise _LostError(f"the last request broke ({error.problem})") from error

    def _close_refused(self, answer: Answer, call: Call, body: Body | None) -> None:
        refusal, error = self._registry.refusal(answer, call)
        if answer.status == 404:  # noqa: PLR2004 - HTTP
            raise _LostError("the registry does not know the upload any more")
        if refusal.has("DIGEST_INVALID", "SIZE_INVALID", "RANGE_INVALID", "BLOB_UPLOAD_INVALID"):
            if self._doubtful:
                self._doubtful, self._pieces = False, False
                raise _LostError("the registry counted otherwise than we did, so it goes in one request")
            raise DigestMismatchError(
                self._subject,
                "arrived as something else",
                expected=f"{self._blob.digest} ({self._blob.size} bytes)",
                actual=error.actual,
                hint="were the bytes damaged where they come from? run it again; if it stays so, verify the source",
            )
        if body is not None and answer.status == 413 and self._blob.size > self._least:  # noqa: PLR2004
            self._pieces, self._chunk = True, max(self._least, min(self._chunk, self._blob.size // 4))
            raise _LostError("it is too large for one request, so it goes in pieces")
        raise error

    def _arrived(self) -> bool:
        with contextlib.suppress(RegistryError, MissingError):
            return has_blob(self._target, self._blob)
        return False

    def _pause(self, error: ImgbuildError) -> None:
        """Wait a little, or give up where nothing goes on any more."""
        self._breaks += 1
        if self._breaks >= self._registry.patience.attempts:
            raise error
        delay = self._registry.patience.delay(self._breaks)
        self._registry.note(f"{error}; asking how much arrived in {delay:.1f} seconds")
        time.sleep(delay)

    def _body(self, offset: int, count: int) -> Body:
        return Body(length=count, pieces=lambda: self._read(offset, count))

    def _read(self, offset: int, count: int) -> Iterator[bytes]:
        with self._source.open(offset) as stream:
            while count:
                data = stream.read(min(CHUNK_BYTES, count))
                if not data:
                    raise DigestMismatchError(
                        self._subject, "is shorter than recorded", expected=f"{self._blob.size} bytes"
                    )
                count -= len(data)
                self._known += len(data)
                self._advance(len(data))
                yield data

    def _see(self, offset: int) -> None:
        """Correct the progress to what the registry has."""
        self._advance(offset - self._known)
        self._known = offset

    def _next(self, base: str, location: str | None) -> str:
        return next_address(base, location, subject=self._subject)

    def _call(
        self,
        method: str,
        url: str,
        accept: set[int] | tuple[int, ...],
        *,
        body: Body | None = None,
        headers: dict[str, str] | None = None,
        once: bool = False,
    ) -> Call:
        return Call(
            method=method,
            url=url,
            subject=self._subject,
            repository=self._target.name,
            scopes=(self._target.scope("pull,push"),),
            accept=accept,
            headers=headers or {},
            body=body,
            once=once,
        )
