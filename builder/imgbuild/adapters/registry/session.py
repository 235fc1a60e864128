"""Requests to registries: the right host, credentials, patience, redirects; one typed error where all that fails."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from imgbuild.adapters.registry.origin import Origin, check_reach, is_loopback, next_address, origin_of, public
from imgbuild.adapters.registry.patience import Brake, Patience, retry_after
from imgbuild.adapters.registry.profile import PROFILES, Profile, profile_of
from imgbuild.adapters.registry.refusal import RETRIED, error_of, read_refusal
from imgbuild.adapters.registry.tokens import Authorizer
from imgbuild.errors import NetworkError, OfflineMissError, ProtocolError, ServerError, ThrottledError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from imgbuild.adapters.registry.credentials import CredentialStore
    from imgbuild.adapters.registry.refusal import Refusal
    from imgbuild.adapters.registry.wire import Answer, Wire
    from imgbuild.errors import AvailabilityError
    from imgbuild.model.registries import RegistriesDocument, RegistrySettings

_DOCKER_HUB = {"docker.io", "index.docker.io"}
_DOCKER_HUB_API = "registry-1.docker.io"
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MAX_REDIRECTS = 5
_MAX_REFUSED = 3
"""times that one request may be refused with 401; tokens may expire on the way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """What a request sends: its length in bytes, and how to get the pieces, for each try anew."""

    length: int
    pieces: Callable[[], Iterable[bytes]]

    @classmethod
    def of(cls, data: bytes) -> Body:
        """Bytes in memory."""
        return cls(length=len(data), pieces=lambda: (data,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request to a registry."""

    method: str
    url: str
    """Absolute, or a path below the registry's origin."""
    subject: str
    """What it is about, as the reader of an error knows it."""
    repository: str
    scopes: tuple[str, ...]
    accept: Collection[int]
    """Statuses that are answers; all others are refusals."""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Body | None = None
    once: bool = False
    """Whether a failure is raised at once, because making the same request again might do harm."""
    follow: bool = False
    """Whether redirects are followed; credentials stay with the origin that they are for."""


class Registry:
    """One registry: a host as references name it."""

    def __init__(
        self,
        host: str,
        *,
        settings: RegistrySettings,
        wire: Wire,
        credentials: CredentialStore,
        patience: Patience,
        note: Callable[[str], None],
    ) -> None:
        self.host = host
        self.settings = settings
        self.origin = _origin(host, plain=settings.plain_http)
        self.profile = _profile(host, settings)
        self.patience = patience
        self.note = note
        self._wire = wire
        self._brake = Brake()
        self._auth = Authorizer(host=host, origin=self.origin, wire=wire, credentials=credentials)

    def call(self, call: Call) -> Answer:
        """Make a request until it is answered, or one of the reasons why not is final.

        Raises:
            NetworkError, ThrottledError, ServerError: after all tries (with `once`, after the first).
            UnauthorizedError, ForbiddenError, MissingError, RegistryError: refused.
            ProtocolError: the answer breaks the specification or leads where we do not go.
            CredentialError: credentials are configured and cannot be had.
        """
        url = call.url if "://" in call.url else f"{self.origin}{call.url}"
        refused = 0
        attempt = 1
        while True:
            self._brake.wait()
            try:
                answer = self._send(call, url)
            except NetworkError as broken:
                self._again(call, attempt, broken, self.patience.delay(attempt))
                attempt += 1
                continue
            if answer.status in call.accept:
                return answer
            if answer.status == 401 and refused < _MAX_REFUSED:  # noqa: PLR2004 - HTTP
                refused += 1
                news = self._auth.refused(answer, call.repository, call.scopes)
                answer.discard()
                if news and not (call.once and call.body is not None):
                    continue
            delay = retry_after(answer.header("Retry-After"))
            error = error_of(
                read_refusal(answer), subject=call.subject, url=answer.url, who=self._auth.who(call.repository)
            )
            if answer.status != 429 and answer.status not in RETRIED:  # noqa: PLR2004
                raise error
            self._pause(call, attempt, error, delay, throttled=answer.status == 429)  # noqa: PLR2004
            attempt += 1

    def refusal(self, answer: Answer, call: Call) -> tuple[Refusal, AvailabilityError]:
        """What an answer that was accepted as a status, and is a refusal all the same, says; and the error for it."""
        refusal = read_refusal(answer)
        who = self._auth.who(call.repository)
        return refusal, error_of(refusal, subject=call.subject, url=answer.url, who=who)

    def _pause(self, call: Call, attempt: int, error: Exception, asked: float | None, *, throttled: bool) -> None:
        if asked is not None and asked > self.patience.asked_cap:
            assert isinstance(error, ThrottledError | ServerError)  # noqa: S101 - the only ones with a Retry-After
            error.hint = f"the registry asks to wait {asked:.0f} seconds; run it again then, what was done is kept"
            raise error
        delay = max(asked or 0.0, self.patience.delay(attempt))
        if throttled:
            self._brake.hold(delay)
        self._again(call, attempt, error, delay)

    def _again(self, call: Call, attempt: int, error: Exception, delay: float) -> None:
        if call.once or attempt >= self.patience.attempts:
            raise error
        self.note(f"{error}; trying again in {delay:.1f} seconds")
        time.sleep(delay)

    def _send(self, call: Call, url: str) -> Answer:
        origin = origin_of(url, subject=call.subject)
        headers = dict(call.headers)
        if origin == self.origin:
            shown = self._auth.header(call.repository, call.scopes)
            if shown is not None:
                headers["Authorization"] = shown
        answer = self._post(call, url, headers)
        hops = 0
        while call.follow and answer.status in _REDIRECTS:
            hops += 1
            target = next_address(url, answer.header("Location"), subject=call.subject)
            answer.discard()
            if hops > _MAX_REDIRECTS:
                raise ProtocolError(
                    call.subject, "is redirected on and on", expected=f"at most {_MAX_REDIRECTS}", actual=public(target)
                )
            there = origin_of(target, subject=call.subject)
            check_reach(self.origin, there, subject=call.subject)
            if there != origin_of(url, subject=call.subject):
                # Once away, they do not come back either: the way led through somebody else's hands (case C50).
                headers.pop("Authorization", None)
            url = target
            answer = self._post(call, url, headers)
        return answer

    def _post(self, call: Call, url: str, headers: Mapping[str, str]) -> Answer:
        if call.body is None:
            return self._wire.send(call.method, url, headers=headers)
        return self._wire.send(call.method, url, headers=headers, body=call.body.pieces(), length=call.body.length)


class Registries:
    """All registries of one command."""

    def __init__(
        self,
        *,
        settings: RegistriesDocument,
        credentials: CredentialStore,
        wire: Wire,
        patience: Patience | None = None,
        offline: bool = False,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.settings = settings
        self.offline = offline
        self._credentials = credentials
        self._wire = wire
        self._patience = patience or Patience()
        self._note = note
        self._lock = threading.Lock()
        self._known: dict[str, Registry] = {}

    def of(self, host: str) -> Registry:
        """The registry of a host; an `OfflineMissError` where asking is forbidden."""
        if self.offline:
            raise OfflineMissError(f"registry {host}", "would have to be asked")
        with self._lock:
            found = self._known.get(host)
            if found is None:
                found = self._known[host] = Registry(
                    host,
                    settings=self.settings.of(host),
                    wire=self._wire,
                    credentials=self._credentials,
                    patience=self._patience,
                    note=self._note,
                )
            return found

    def close(self) -> None:
        """Close all connections."""
        self._wire.close()


def _origin(host: str, *, plain: bool | None) -> Origin:
    name = _DOCKER_HUB_API if host in _DOCKER_HUB else host
    bare = name.partition(":")[0]
    # Plain http is for this machine, and for what the settings name; never a second try after https (a downgrade).
    scheme = "http" if (is_loopback(bare) if plain is None else plain) else "https"
    return origin_of(f"{scheme}://{name}", subject=f"registry {host}")


def _profile(host: str, settings: RegistrySettings) -> Profile:
    try:
        return profile_of(host, settings.profile)
    except KeyError as error:
        raise UsageError(
            f"profile of registry {host}",
            "is not known",
            expected=", ".join(profile.name for profile in PROFILES),
            actual=settings.profile,
        ) from error
