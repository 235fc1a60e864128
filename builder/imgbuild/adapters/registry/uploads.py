"""Uploads of blobs that go on after a break, also after this process was killed (cases C46 to C49).

A large blob goes in pieces. After each one the newest address is written to disk; after a break the registry is asked
how much it has, and nothing that it has is sent again. Where it lost the upload, or cannot say how much it has, the
upload begins anew, and says so. The registry's check of the digest at the end decides about all bytes.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from imgbuild.adapters.registry.blobs import has_blob
from imgbuild.adapters.registry.origin import origin_of
from imgbuild.adapters.registry.session import Body
from imgbuild.adapters.registry.uploadsession import LostError, UploadSession, held
from imgbuild.adapters.registry.uploadsource import OpenSource
from imgbuild.config import CHUNK_BYTES, MIB
from imgbuild.errors import (
    DigestMismatchError,
    ForbiddenError,
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

    from imgbuild.adapters.registry.repository import Repository
    from imgbuild.adapters.registry.uploadsource import BlobSource
    from imgbuild.adapters.registry.uploadstate import UploadMemory
    from imgbuild.adapters.registry.wire import Answer
    from imgbuild.errors import AvailabilityError, ImgbuildError
    from imgbuild.model.oci import Descriptor

_LEAST_CHUNK = 1 * MIB
"""bytes below which a piece is not made smaller, whatever is refused; nginx takes so much where nothing is set."""
_RESTARTS = 3
"""times that one upload may begin anew in one run."""
_BROKEN = (NetworkError, ServerError, ThrottledError, UnauthorizedError)
"""After these it is not known how much arrived; the last one is a token that expired on the way."""
_UNREAD = (ThrottledError, UnauthorizedError)
"""Those of them that are said before a body is looked at."""


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
        self._source = OpenSource(source)
        self._memory = memory
        self._advance = advance
        self._subject = f"blob {blob.digest} to {target}"
        self._session = UploadSession(target, blob, subject=self._subject)
        self._chunk = target.registry.settings.chunk_bytes or target.registry.profile.chunk_bytes
        self._least = _LEAST_CHUNK
        self._pieces = True
        """Whether the registry takes a blob in pieces, as far as is known."""
        self._miscounts = not target.registry.profile.range_counts
        """Whether what the registry says of its count is of no use (case C48)."""
        self._guessed = False
        """Whether some piece did not begin where both of us counted: then the check at the end may fail, once."""
        self._breaks = 0
        self._known = 0
        self.sent = 0
        """bytes of the blob that were given to the connection so far, those that had to go again each time."""

    def run(self, session: str | None = None) -> None:
        """Send what is missing.

        Args:
            session: the Location of a session that a registry opened in place of a mount.

        Raises:
            NetworkError, ServerError, ThrottledError: after all tries; what is there stays for the next run.
            DigestMismatchError: the registry computed another digest.
            RegistryError: as `Registry.call`.
        """
        waited: list[bool] = []
        with (
            self._registry.hiding(),
            contextlib.closing(self._source),
            self._memory.hold(
                str(self._target),
                self._blob.digest,
                waiting=lambda: self._wait(waited),
                check=self._registry.ending.check,
            ),
        ):
            if waited and self._arrived():
                self._see(self._blob.size)
                return
            restarts = 0
            while (why := self._lost(session)) is not None:
                self._forget()
                session = None
                restarts += 1
                if restarts > _RESTARTS:
                    raise NetworkError(
                        self._subject, f"was begun anew {_RESTARTS} times and never came to its end: {why}"
                    )
                self._say(f"{why}; it begins anew")
            self._see(self._blob.size)
            self._forget()

    def _lost(self, session: str | None) -> str | None:
        """Send it; why it did not come to its end, if it did not."""
        try:
            self._send(*(self._resume() or self._begin(session)))
        except LostError as lost:
            return lost.why
        return None

    def _begin(self, session: str | None) -> tuple[str, int]:
        if session:
            return self._session.adopt(session), 0
        location, least = self._session.begin()
        self._least = max(self._least, min(least, self._blob.size))
        self._chunk = max(self._chunk, min(least, self._blob.size))
        return location, 0

    def _resume(self) -> tuple[str, int] | None:
        """Where an earlier run stopped, if the registry still knows it."""
        location = self._memory.recall(str(self._target), self._blob.digest)
        if location is None:
            return None
        try:
            found = self._ask(self._own(location))
        except LostError as lost:
            why = lost.why
        except (ProtocolError, ForbiddenError) as error:
            why = error.problem
        else:
            self._say(f"{found[1]} of {self._blob.size} bytes are there from an earlier run")
            return found
        self._forget()
        self._say(f"an earlier run began to send it, but {why}; it begins anew")
        return None

    def _own(self, location: str) -> str:
        """An address from disk, which may be anybody's: nothing goes to where the registry did not send us just now."""
        if origin_of(location, subject=self._subject) != self._registry.origin:
            raise LostError("it would go to another host")
        return location

    def _send(self, location: str, offset: int) -> None:
        """Send from an offset on, until it is a blob."""
        while True:
            whole = offset == 0 and not (self._pieces and self._blob.size > self._chunk)
            if not whole:
                self._keep(location)
            self._see(offset)
            try:
                if whole or offset == self._blob.size:
                    return self._close(location, self._body(0, self._blob.size) if whole else None)
                location, offset = self._piece(location, offset)
            except _BROKEN as error:
                location, offset = self._after_break(error, location, offset)

    def _piece(self, location: str, offset: int) -> tuple[str, int]:
        count = min(self._chunk, self._blob.size - offset)
        with self._session.patch(location, offset, self._body(offset, count)) as answer:
            if answer.status >= 400:  # noqa: PLR2004 - HTTP
                return self._piece_refused(answer, location, offset)
            answer.discard()
            if held(answer) not in {None, offset + count}:
                # We go on by our own count, since it took the piece.
                self._miscounts = self._guessed = True
            self._breaks = 0
            return self._session.after(answer), offset + count

    def _piece_refused(self, answer: Answer, location: str, offset: int) -> tuple[str, int]:
        refusal, error = self._session.refusal(answer)
        if answer.status == 416:  # noqa: PLR2004 - HTTP
            found = self._ask(location)
            if found[1] == offset:
                raise LostError("the registry refuses to go on where it says that it is")
            self._pause(error)
            return found
        if answer.status == 413:  # noqa: PLR2004
            return self._shrink(error, location)
        if answer.status in {404, 410} or refusal.has("BLOB_UPLOAD_UNKNOWN", "BLOB_UPLOAD_INVALID"):
            raise LostError("the registry does not let it go on")
        if offset == 0:
            self._pieces = False
            raise LostError("the registry takes no pieces, so it goes in one request")
        raise error

    def _shrink(self, error: AvailabilityError, location: str) -> tuple[str, int]:
        if self._chunk <= self._least:
            error.hint = "a proxy before the registry limits how long a request may be; have that limit raised"
            raise error
        self._chunk = max(self._least, self._chunk // 4)
        self._say(f"pieces are too large for the registry; {self._chunk} bytes from now on")
        return self._ask(location)

    def _after_break(self, error: ImgbuildError, location: str, offset: int) -> tuple[str, int]:
        self._pause(error)
        if not self._pieces:
            raise LostError("the request broke")
        if self._miscounts and isinstance(error, _UNREAD):
            self._guessed = True
            return location, offset
        return self._ask(location)

    def _ask(self, location: str) -> tuple[str, int]:
        """The newest address and how many bytes the registry has."""
        if self._miscounts:
            raise LostError("this registry does not say rightly how much it has")
        found = self._session.status(location)
        self._guessed = True
        return found

    def _close(self, location: str, body: Body | None) -> None:
        try:
            with self._session.put(location, body) as answer:
                if answer.status < 300:  # noqa: PLR2004 - HTTP
                    answer.discard()
                elif not self._arrived():
                    self._close_refused(answer, body)
        except _BROKEN:
            if not self._arrived():
                raise

    def _close_refused(self, answer: Answer, body: Body | None) -> None:
        refusal, error = self._session.refusal(answer)
        if answer.status in {404, 410}:
            raise LostError("the registry does not let it go on")
        if body is not None and answer.status == 413 and self._blob.size > self._least:  # noqa: PLR2004 - HTTP
            self._pieces, self._chunk = True, max(self._least, min(self._chunk, self._blob.size // 4))
            raise LostError("it is too large for one request, so it goes in pieces")
        if refusal.has("DIGEST_INVALID", "SIZE_INVALID", "RANGE_INVALID", "BLOB_UPLOAD_INVALID"):
            if self._guessed:
                self._guessed = self._pieces = False
                raise LostError("the registry counted otherwise than we did, so it goes in one request")
            raise DigestMismatchError(
                self._subject,
                "arrived as something else",
                expected=f"{self._blob.digest} ({self._blob.size} bytes)",
                actual=error.actual,
                hint="were the bytes damaged where they come from? run it again; if it stays so, verify the source",
            )
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
        self._registry.ending.sleep(delay)

    def _body(self, offset: int, count: int) -> Body:
        return Body(length=count, pieces=lambda: self._read(offset, count))

    def _read(self, offset: int, count: int) -> Iterator[bytes]:
        end = offset + count
        while offset < end:
            data = self._source.read(offset, min(CHUNK_BYTES, end - offset))
            if not data:
                raise DigestMismatchError(
                    self._subject, "is shorter than recorded", expected=f"{self._blob.size} bytes"
                )
            offset += len(data)
            self._known += len(data)
            self.sent += len(data)
            self._advance(len(data))
            yield data

    def _see(self, offset: int) -> None:
        """Correct the progress to what the registry has."""
        self._advance(offset - self._known)
        self._known = offset

    def _wait(self, waited: list[bool]) -> None:
        waited.append(True)
        self._say("another process sends it; waiting for that")

    def _keep(self, location: str) -> None:
        if self._registry.profile.resumable:
            self._memory.keep(str(self._target), self._blob.digest, location)

    def _forget(self) -> None:
        self._memory.forget(str(self._target), self._blob.digest)

    def _say(self, text: str) -> None:
        self._registry.note(f"{self._subject}: {text}")
