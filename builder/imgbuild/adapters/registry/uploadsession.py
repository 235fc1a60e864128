"""The requests of one upload (distribution-spec, Pushing Blobs), without any patience of their own.

What a registry answers is turned into an address and a count of bytes, or into one of two reasons to stop: an error, or
`LostError`, after which the upload can only begin anew.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

from imgbuild.adapters.registry.origin import next_address
from imgbuild.adapters.registry.secrecy import hiding
from imgbuild.adapters.registry.session import Call
from imgbuild.errors import MissingError, RegistryError

if TYPE_CHECKING:
    from collections.abc import Collection

    from imgbuild.adapters.registry.refusal import Refusal
    from imgbuild.adapters.registry.repository import Repository
    from imgbuild.adapters.registry.session import Body
    from imgbuild.adapters.registry.wire import Answer
    from imgbuild.errors import AvailabilityError
    from imgbuild.model.oci import Descriptor

REFUSED = frozenset({400, 404, 405, 410, 413, 416, 501})
"""Statuses that say something about the upload itself; all others are errors of `Registry.call`."""
_GONE = frozenset({*range(400, 500), 501}) - {401, 403, 408, 425, 429}
"""What a registry says to a question about an upload that it does not know, or cannot be asked about."""
_DONE = frozenset({200, 201, 202, 204})
_RANGE = re.compile(r"(?:bytes[= ])?0-(\d{1,18})")
_COUNT = re.compile(r"[0-9]{1,18}")
_OCTETS = {"Content-Type": "application/octet-stream"}


class LostError(Exception):
    """The upload session is of no use any more; `why` says so as a clause."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class UploadSession:
    """The upload of one blob into one repository. It keeps nothing: the newest address is the caller's to give."""

    def __init__(self, target: Repository, blob: Descriptor, *, subject: str) -> None:
        self._target = target
        self._blob = blob
        self._subject = subject

    def begin(self) -> tuple[str, int]:
        """POST: the address of a new session, and the bytes below which a piece is refused (0 where none are said)."""
        with self._target.registry.call(
            self._call("POST", self._target.path("blobs/uploads/"), accept={202})
        ) as answer:
            answer.discard()
            least = _COUNT.fullmatch(answer.header("OCI-Chunk-Min-Length") or "")
            return self._next(answer), int(least[0]) if least else 0

    def adopt(self, location: str) -> str:
        """The address of a session that the registry opened in place of a mount, from its Location."""
        return next_address(str(self._target.registry.origin), location, subject=self._subject)

    def status(self, location: str) -> tuple[str, int]:
        """GET: the newest address, and how many bytes the registry says it has.

        Raises:
            LostError: it does not know the upload, or does not say how much it has.
            ProtocolError: it sends us where we do not go.
            RegistryError: as `Registry.call`.
        """
        with self._target.registry.call(self._call("GET", location, accept={200, 204, *_GONE})) as answer:
            answer.discard()
            if answer.status in _GONE:
                raise LostError("the registry does not let it go on")
            count = held(answer)
            if count is None:
                raise LostError("the registry does not say how much it has of it")
            if count > self._blob.size:
                raise LostError("the registry says that it has more bytes of it than there are")
            # `0-0` is what is said of an empty upload, too.
            offset = count if count > 1 else 0
            return self._next(answer) if answer.header("Location") else location, offset

    def patch(self, location: str, offset: int, body: Body) -> Answer:
        """PATCH one piece: an answer that is a success or one of `REFUSED`, which the caller closes."""
        headers = {**_OCTETS, "Content-Range": f"{offset}-{offset + body.length - 1}"}
        return self._target.registry.call(self._call("PATCH", location, body=body, headers=headers))

    def after(self, answer: Answer) -> str:
        """The address that comes after a piece that was taken."""
        return self._next(answer)

    def put(self, location: str, body: Body | None) -> Answer:
        """PUT the digest, with the whole blob or after all pieces: from then on it is a blob; as `patch`."""
        url = f"{location}{'&' if '?' in location else '?'}digest={self._blob.digest}"
        return self._target.registry.call(self._call("PUT", url, body=body, headers=_OCTETS))

    def refusal(self, answer: Answer) -> tuple[Refusal, AvailabilityError]:
        """What a refused piece or PUT says, and the error for it."""
        return self._target.registry.refusal(answer, subject=self._subject, repository=self._target.name)

    def _next(self, answer: Answer) -> str:
        return next_address(answer.url, answer.header("Location"), subject=self._subject)

    def _call(
        self,
        method: str,
        url: str,
        *,
        accept: Collection[int] = REFUSED | _DONE,
        body: Body | None = None,
        headers: dict[str, str] | None = None,
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
            # After a broken PATCH or PUT it is not known how much arrived, so the same bytes must not just go again.
            once=method in {"PATCH", "PUT"},
        )


@hiding
def ask_to_push(target: Repository) -> None:
    """Begin an upload and take it back, which says whether the registry is there and lets us push.

    Raises:
        UnauthorizedError, ForbiddenError, CredentialError: it does not let us.
        NetworkError, RegistryError: as `Registry.call`.
    """
    subject = f"a push to {target}"
    begin = Call(
        method="POST",
        url=target.path("blobs/uploads/"),
        subject=subject,
        repository=target.name,
        scopes=(target.scope("pull,push"),),
        accept={202},
    )
    with target.registry.call(begin) as answer:
        answer.discard()
        location = answer.header("Location")
        url = answer.url
    with contextlib.suppress(RegistryError, MissingError):
        # Many registries do not know how to end an upload; they forget it after some days.
        end = Call(
            method="DELETE",
            url=next_address(url, location, subject=subject),
            subject=subject,
            repository=target.name,
            scopes=(target.scope("pull,push"),),
            accept={200, 202, 204},
            once=True,
        )
        target.registry.call(end).discard()


def held(answer: Answer) -> int | None:
    """How many bytes the `Range` of an answer says are there; None if it says nothing. 1 may mean none at all."""
    found = _RANGE.fullmatch((answer.header("Range") or "").strip())
    return None if found is None else int(found[1]) + 1
