"""Requests to registries: the right host, credentials, patience, redirects; one typed error where all that fails."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from imgbuild.adapters.registry.call import Body, Call
from imgbuild.adapters.registry.credentials import NoCredentials
from imgbuild.adapters.registry.failure import WireError
from imgbuild.adapters.registry.origin import Origin, check_https, check_reach, next_address, origin_of, public
from imgbuild.adapters.registry.patience import Brake, Patience, retry_after
from imgbuild.adapters.registry.profile import PROFILES, Profile, profile_of
from imgbuild.adapters.registry.refusal import RETRIED, error_of, read_refusal
from imgbuild.adapters.registry.tokens import Authorizer, BusyError
from imgbuild.errors import AvailabilityError, NetworkError, OfflineMissError, ProtocolError, UsageError
from imgbuild.model.registries import RegistrySettings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from imgbuild.adapters.registry.credentials import CredentialStore
    from imgbuild.adapters.registry.refusal import Refusal
    from imgbuild.adapters.registry.wire import Answer, Wire
    from imgbuild.model.registries import RegistriesDocument

__all__ = ["Body", "Call", "Registries", "Registry", "origin_for"]

_DOCKER_HUB = {"docker.io", "index.docker.io"}
_DOCKER_HUB_API = "registry-1.docker.io"
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MAX_REDIRECTS = 5
_MAX_REFUSED = 2
"""times that one request may be refused with 401 and made again: nothing was shown, or a token that had expired."""
_THROTTLED = 429
_SAID_SECONDS = 60.0
"""after which the same problem is said again."""


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
        self.origin = origin_for(host, settings)
        self.profile = _profile(host, settings)
        self.patience = patience
        self._note = note
        self._wire = wire
        self.ending = wire.ending
        """Where to wait and to look whether all talk has ended."""
        self.times = wire.times
        self._brake = Brake(self.ending.sleep)
        self._auth = Authorizer(host=host, origin=self.origin, wire=wire, credentials=credentials)
        self.secrets = self._auth.secrets
        self._answered = False
        self._saying = threading.Lock()
        self._said: dict[str, tuple[int, float]] = {}

    def note(self, text: str) -> None:
        """Say one line, without secrets."""
        self._note(self.secrets.hide(text))

    def hiding(self) -> AbstractContextManager[None]:
        """A block that no error of ours leaves with a secret in it, whoever repeated it (see `secrecy`)."""
        return self.secrets.hiding()

    def abort(self) -> None:
        """As `Registries.abort`, since all registries of a command share its connections."""
        self._wire.abort()

    def call(self, call: Call) -> Answer:
        """Make a request until it is answered, or one of the reasons why not is final.

        Raises:
            NetworkError, ThrottledError, ServerError: after all tries (with `once`, after the first).
            UnauthorizedError, ForbiddenError, MissingError, RegistryError: refused.
            ProtocolError: the answer breaks the specification or leads where we do not go.
            CredentialError: credentials are configured and cannot be had.
            BudgetError: it would be more than `--max-bytes`.
            EndedError: after `abort`.
            Whatever the pieces of the body raise.
        """
        with self.hiding():
            return self._call(call)

    def whole(self, call: Call, limit: int) -> tuple[Answer, bytes]:
        """Make a request and read its body, or the first `limit` + 1 bytes; what breaks on the way is asked for again.

        Where `Times.document` is spent on reading, by all tries together, there is no other one.

        Returns:
            The answer, read and closed, and its body; of another status than 200, nothing.

        Raises:
            As `call`.
        """
        attempt = 1
        spent = 0.0
        while True:
            with self.call(call) as answer:
                began = time.monotonic()
                if answer.status != 200:  # noqa: PLR2004 - HTTP
                    answer.discard()
                    return answer, b""
                try:
                    return answer, answer.body(limit)
                except NetworkError as error:
                    broken = NetworkError(call.subject, error.problem, where=public(answer.url))
            spent += time.monotonic() - began
            tries = 1 if spent >= self.times.document else None
            self._again(call, attempt, broken, self.patience.delay(attempt), tries=tries)
            attempt += 1

    def refusal(self, answer: Answer, *, subject: str, repository: str) -> tuple[Refusal, AvailabilityError]:
        """What an answer that was accepted as a status, and is a refusal all the same, says; and the error for it.

        Args:
            answer: read here as far as it is worth it.
            subject: what was asked for, as the reader of an error knows it.
            repository: whose credentials were shown.
        """
        refusal = read_refusal(answer, hide=self.secrets.hide)
        if origin_of(answer.url, subject=subject) == self.origin:
            who = self._auth.who(repository)
        else:
            who = "without credentials, since it is elsewhere"
        return refusal, error_of(refusal, subject=subject, url=answer.url, who=who)

    def _call(self, call: Call) -> Answer:
        url = call.url if "://" in call.url else f"{self.origin}{call.url}"
        here = origin_of(url, subject=call.subject) == self.origin
        refused = 0
        attempt = 1
        while True:
            self._brake.wait()
            try:
                shown = self._auth.header(call.repository, call.scopes) if here else None
                answer = self._send(call, url, shown)
            except WireError as broken:
                lost = broken
            except BusyError as busy:
                self._pause(call, attempt, busy.error, status=busy.status, asked=busy.asked)
                attempt += 1
                continue
            else:
                self._answered = True
                if answer.status in call.accept:
                    return answer
                if refused < _MAX_REFUSED and self._learned(call, answer, shown):
                    refused += 1
                    continue
                self._refused(call, attempt, answer)
                attempt += 1
                continue
            # Who never answered at all is most likely named wrong; a registry that we know may be starting again.
            tries = None if self._answered else lost.failure.tries
            self._again(call, attempt, lost.error(call.subject), self.patience.delay(attempt), tries=tries)
            attempt += 1

    def _learned(self, call: Call, answer: Answer, shown: str | None) -> bool:
        """Whether an answer is a 401 of the registry itself after which something else can be shown."""
        # The challenge of somebody else would decide where our credentials go.
        if answer.status != 401 or origin_of(answer.url, subject=call.subject) != self.origin:  # noqa: PLR2004 - HTTP
            return False
        try:
            news = self._auth.refused(answer, call.repository, call.scopes, shown)
        except BaseException:
            answer.close()
            raise
        if not news or (call.once and call.body is not None):
            return False
        answer.discard()
        return True

    def _refused(self, call: Call, attempt: int, answer: Answer) -> None:
        """Raise what a refusal means, unless it is worth another try."""
        asked = retry_after(answer.header("Retry-After"))
        _, error = self.refusal(answer, subject=call.subject, repository=call.repository)
        if answer.status != _THROTTLED and answer.status not in RETRIED:
            raise error
        self._pause(call, attempt, error, status=answer.status, asked=asked)

    def _pause(self, call: Call, attempt: int, error: AvailabilityError, *, status: int, asked: float | None) -> None:
        if asked is not None and asked > self.patience.asked_cap:
            error.hint = f"the registry asks to wait {asked:.0f} seconds; run it again then, what was done is kept"
            raise error
        delay = max(asked or 0.0, self.patience.delay(attempt))
        if status == _THROTTLED or asked is not None:
            self._brake.hold(delay)
        self._again(call, attempt, error, delay)

    def _again(
        self, call: Call, attempt: int, error: AvailabilityError, delay: float, *, tries: int | None = None
    ) -> None:
        if call.once or attempt >= min(self.patience.attempts, tries or self.patience.attempts):
            raise error
        if self._is_news(error.problem, attempt):
            self.note(f"{error}; trying again in {delay:.1f} seconds")
        self.ending.sleep(delay)

    def _is_news(self, problem: str, attempt: int) -> bool:
        """Whether nobody was told yet of so many failures for this reason: thirty blobs that wait are one line."""
        now = time.monotonic()
        with self._saying:
            before, until = self._said.get(problem, (0, now))
            if attempt <= before and now < until:
                return False
            self._said[problem] = attempt, now + _SAID_SECONDS
            return True

    def _send(self, call: Call, url: str, shown: str | None) -> Answer:
        headers = dict(call.headers)
        if shown is not None:
            headers["Authorization"] = shown
        answer = self._post(call, url, headers)
        hops = 0
        while call.follow and answer.status in _REDIRECTS:
            hops += 1
            with answer:
                answer.discard()
                target = next_address(url, answer.header("Location"), subject=call.subject)
                there = origin_of(target, subject=call.subject)
                check_reach(self.origin, there, subject=call.subject)
                if call.https:
                    check_https(there, subject=call.subject)
            if hops > _MAX_REDIRECTS:
                raise ProtocolError(
                    call.subject, "is redirected on and on", expected=f"at most {_MAX_REDIRECTS}", actual=public(target)
                )
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

    def anybody(self, origin: Origin) -> Registry:
        """A host that is no registry, asked as anybody may ask it: nothing that is configured is looked at or shown.

        But for `ca` in the settings, which holds for all connections. An `OfflineMissError` where asking is forbidden.
        """
        if self.offline:
            raise OfflineMissError(f"host {origin.place}", "would have to be asked")
        return Registry(
            origin.place,
            settings=RegistrySettings(plain_http=origin.scheme == "http"),
            wire=self._wire,
            credentials=NoCredentials(),
            patience=self._patience,
            note=lambda text: self._note(text.replace("the registry", "the server")),
        )

    def abort(self) -> None:
        """End every request, read and wait of every thread, for good: each raises an `EndedError` then.

        For a command that ends. Nothing can be asked afterwards.
        """
        self._wire.abort()

    def close(self) -> None:
        """Close all connections."""
        self._wire.close()


def origin_for(host: str, settings: RegistrySettings) -> Origin:
    """Where a registry is asked that references name by `host`; a `ProtocolError` where that is no host."""
    subject = f"registry {host}"
    name = _DOCKER_HUB_API if host.lower() in _DOCKER_HUB else host
    found = origin_of(f"https://{name}", subject=subject)
    # Plain http is for this machine, and for what the settings name; never a second try after https (a downgrade).
    plain = found.is_loopback if settings.plain_http is None else settings.plain_http
    return origin_of(f"http://{name}", subject=subject) if plain else found


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
