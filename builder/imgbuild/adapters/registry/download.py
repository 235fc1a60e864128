"""Files at addresses that anybody may ask: no credentials, https or this machine only, read on after breaks.

Redirects are followed as everywhere here (`origin.next_address`), and never to plain http elsewhere. An answer of 401
is the end: nobody is asked for a token, since there is nothing to show for it. Nothing is verified here.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from imgbuild.adapters.registry.blobs import ResumedStream
from imgbuild.adapters.registry.origin import check_https, origin_of
from imgbuild.adapters.registry.repository import refuse_encoding
from imgbuild.adapters.registry.session import Call
from imgbuild.errors import AvailabilityError, ForbiddenError, MissingError, UnauthorizedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imgbuild.adapters.registry.session import Registries, Registry
    from imgbuild.adapters.registry.wire import Answer

_UNAUTHORIZED = 401
_NO_HEAD = frozenset({403, 405, 501})
"""Statuses after which GET may do what HEAD does not: signed addresses are good for one method."""
_HINT = "no credentials are shown to the address of a source: fetch the file yourself, and give it by --source"
_GONE = "was it moved or deleted? whoever has the file can give it by --source"


class UrlStream(ResumedStream):
    """The bytes at an address, whose size in bytes is known.

    Raises:
        As `ResumedStream`, with words for what is no registry; `OfflineMissError` where asking is forbidden, and
        `ProtocolError` for an address that is none or that is plain http elsewhere.
    """

    def __init__(self, registries: Registries, url: str, *, size: int, subject: str) -> None:
        super().__init__(_host(registries, url, subject), size=size, subject=subject)
        self._url = url

    def start(self) -> None:
        """Ask for the first byte now, so that what is missing is known before anything is read; raises as `read`."""
        with _as_server():
            super().start()

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes, as soon as there are some; empty only at the end."""
        with _as_server():
            return super().read(size)

    def _call(self, accept: set[int], headers: dict[str, str]) -> Call:
        return _call("GET", self._url, accept | {_UNAUTHORIZED}, self._subject, headers)

    def _stands(self, answer: Answer) -> bool:
        _refuse_401(self.registry, answer, self._subject)
        return super()._stands(answer)


def stated_length(registries: Registries, url: str, *, subject: str) -> int | None:
    """The length in bytes that the server states of a file; None if it has the file and states none.

    Nothing of its content is looked at.

    Raises:
        MissingError: 404, 410. UnauthorizedError, ForbiddenError, RegistryError: as `Registry.call`.
        OfflineMissError, ProtocolError: as `UrlStream`.
    """
    registry = _host(registries, url, subject)
    with _as_server(), registry.hiding():
        with registry.call(_call("HEAD", url, {200, _UNAUTHORIZED, *_NO_HEAD}, subject)) as answer:
            _refuse_401(registry, answer, subject)
            answer.discard()
            if answer.status not in _NO_HEAD:
                refuse_encoding(answer, subject)
                return answer.length
        # The body is dropped.
        with registry.call(_call("GET", url, {200, _UNAUTHORIZED}, subject)) as answer:
            _refuse_401(registry, answer, subject)
            refuse_encoding(answer, subject)
            return answer.length


def _host(registries: Registries, url: str, subject: str) -> Registry:
    origin = origin_of(url, subject=subject)
    check_https(origin, subject=subject)
    return registries.anybody(origin)


def _call(method: str, url: str, accept: set[int], subject: str, headers: dict[str, str] | None = None) -> Call:
    return Call(
        method=method,
        url=url,
        subject=subject,
        repository="",
        scopes=(),
        accept=accept,
        headers=headers or {},
        follow=True,
        https=True,
    )


def _refuse_401(registry: Registry, answer: Answer, subject: str) -> None:
    if answer.status == _UNAUTHORIZED:
        raise registry.refusal(answer, subject=subject, repository="")[1]


@contextlib.contextmanager
def _as_server() -> Iterator[None]:
    """A block whose errors speak of a server, where a registry is not what was asked."""
    try:
        yield
    except AvailabilityError as error:
        error.problem = error.problem.replace("in the registry", "there").replace("the registry", "the server")
        if isinstance(error, UnauthorizedError | ForbiddenError):
            error.hint = _HINT
        elif isinstance(error, MissingError):
            error.hint = _GONE
        elif error.hint is not None:
            error.hint = error.hint.replace("the registry", "the server")
        raise
