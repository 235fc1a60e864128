"""Who we are to one registry: anonymous, basic, or bearer tokens (Docker's token authentication; RFC 6750).

Nothing is shown before the registry asked for it. A token is asked for again before it expires, and when it is refused
(case C46). Credentials that are configured and refused are an error: nothing falls back to anonymous.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from imgbuild import jsontext
from imgbuild.adapters.registry.challenge import choose, parse_challenges
from imgbuild.adapters.registry.credentials import basic_header
from imgbuild.adapters.registry.origin import check_reach, origin_of, public
from imgbuild.adapters.registry.patience import retry_after
from imgbuild.adapters.registry.refusal import RETRIED, error_of, read_refusal
from imgbuild.adapters.registry.secrecy import Secrets, pair_of
from imgbuild.config import MIB
from imgbuild.errors import CredentialError, DocumentError, NetworkError, ProtocolError, UnauthorizedError

if TYPE_CHECKING:
    from imgbuild.adapters.registry.challenge import Challenge
    from imgbuild.adapters.registry.credentials import Credentials, CredentialStore
    from imgbuild.adapters.registry.origin import Origin
    from imgbuild.adapters.registry.refusal import Refusal
    from imgbuild.adapters.registry.wire import Answer, Times, Wire
    from imgbuild.errors import AvailabilityError

_TOKEN_BYTES = 1 * MIB
_LIFETIME = 60.0
"""seconds a token is good for where nothing is said (token specification)."""
_MARGIN = 10.0
"""seconds before its end that a token is not used any more; a tenth of its life if that is less."""
_MAX_LIFETIME = 24 * 3600.0
_TOKEN_NAME = 20
"""characters of a user name that may be a token, as some registries have it; a name of people is shorter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Token:
    header: str = field(repr=False)
    until: float


class BusyError(Exception):
    """A token service that may answer a moment later: within this package, its error with what it asks for."""

    def __init__(self, error: AvailabilityError, *, status: int, asked: float | None) -> None:
        # Not its text, from which nothing was taken out yet.
        super().__init__()
        self.error = error
        self.status = status
        self.asked = asked


class Authorizer:
    """The `Authorization` for one registry; safe to use from several threads."""

    def __init__(self, *, host: str, origin: Origin, wire: Wire, credentials: CredentialStore) -> None:
        self._host = host
        self._origin = origin
        self._wire = wire
        self._store = credentials
        self._lock = threading.Lock()
        self._challenge: Challenge | None = None
        self._tokens: dict[tuple[str, ...], _Token] = {}
        self._fetching: dict[tuple[str, ...], threading.Lock] = {}
        self.secrets = Secrets()

    def header(self, repository: str, scopes: tuple[str, ...]) -> str | None:
        """What to show with a request of these scopes; None before the registry has asked for anything.

        Raises:
            WireError, BusyError: the token service does not answer now.
            UnauthorizedError, ForbiddenError, RegistryError: it refuses.
            ProtocolError: its answer is no token, or it is none that may be asked.
            CredentialError: the credentials that are configured cannot be had, or are none that the registry takes.
        """
        with self._lock:
            challenge = self._challenge
            fetching = self._fetching.setdefault(scopes, threading.Lock())
        if challenge is None:
            return None
        if challenge.scheme == "basic":
            return self._basic(repository)
        # One thread asks for a token, and the others of the same scopes wait for it.
        with fetching:
            token = self._tokens.get(scopes)
            if token is None or token.until <= time.monotonic():
                token = self._fetch(challenge, repository, scopes)
                self.secrets.add(token.header.partition(" ")[2])
                self._tokens[scopes] = token
        return token.header

    def refused(self, answer: Answer, repository: str, scopes: tuple[str, ...], shown: str | None) -> bool:
        """Learn from a 401 to a request that showed `shown`; whether there is something else to show now.

        Raises:
            ProtocolError: the challenge breaks its grammar.
            CredentialError: as `header`.
        """
        found = choose(parse_challenges(answer.headers("WWW-Authenticate"), subject=f"registry {self._host}"))
        if found is None:
            return False
        with self._lock:
            self._challenge = found
            token = self._tokens.get(scopes)
            if token is not None and token.header == shown:
                # Another thread may have fetched a new one since.
                del self._tokens[scopes]
        if found.scheme == "basic":
            return self._basic(repository) not in {None, shown}
        credentials = self._credentials(repository)
        if credentials is not None and credentials.kind == "registry-token":
            return shown != _bearer(credentials.secret.reveal())
        return True

    def who(self, repository: str) -> str:
        """Whose credentials are shown, in words; not the user name, which is half a secret with some registries."""
        found = self._credentials(repository)
        return "anonymously" if found is None else f"with the credentials in {found.origin}"

    def _credentials(self, repository: str) -> Credentials | None:
        found = self._store.find(self._host, repository)
        if found is not None:
            secret, name = found.secret.reveal(), found.username or ""
            self.secrets.add(secret, pair_of(name, secret), name if len(name) >= _TOKEN_NAME else "")
        return found

    def _basic(self, repository: str) -> str | None:
        found = self._credentials(repository)
        if found is None:
            return None
        if found.kind != "basic":
            raise CredentialError(
                f"credentials for registry {self._host}",
                "are a token, and it asks for a user and a password",
                where=found.origin,
                hint=f"log in again with a password: `docker login {self._host}`",
            )
        return basic_header(found)

    def _fetch(self, challenge: Challenge, repository: str, scopes: tuple[str, ...]) -> _Token:
        credentials = self._credentials(repository)
        began = time.monotonic()
        if credentials is not None and credentials.kind == "registry-token":
            return _Token(header=_bearer(credentials.secret.reveal()), until=began + _MAX_LIFETIME)
        realm = challenge.get("realm") or ""
        self._check_realm(realm)
        with self._ask(realm, challenge.get("service"), scopes, credentials) as answer:
            if answer.status == 200:  # noqa: PLR2004 - HTTP
                return _token(_body(answer, self._wire.times), subject=f"token of {public(realm)}", began=began)
            refusal = read_refusal(answer, hide=self.secrets.hide)
        error = self._refusal(refusal, realm, repository, scopes)
        if refusal.status in RETRIED or refusal.status == 429:  # noqa: PLR2004
            raise BusyError(error, status=refusal.status, asked=retry_after(answer.header("Retry-After")))
        raise error

    def _refusal(self, refusal: Refusal, realm: str, repository: str, scopes: tuple[str, ...]) -> AvailabilityError:
        subject = f"token for {', '.join(scopes) or self._host}"
        error = error_of(refusal, subject=subject, url=realm, who=self.who(repository))
        if refusal.status == 400 and "invalid_grant" in refusal.said:  # noqa: PLR2004 - RFC 6749, 5.2
            return UnauthorizedError(
                subject, "is not given for these credentials", actual=error.actual, where=error.where
            )
        if refusal.status in {404, 405, 410}:
            return ProtocolError(
                subject, "is not given where the registry says", actual=error.actual, where=error.where
            )
        return error

    def _ask(self, realm: str, service: str | None, scopes: tuple[str, ...], credentials: Credentials | None) -> Answer:
        named = [] if service is None else [("service", service)]
        if credentials is not None and credentials.kind == "identity-token":
            fields = [
                ("grant_type", "refresh_token"),
                *named,
                ("scope", " ".join(scopes)),
                ("client_id", "imgbuild"),
                ("refresh_token", credentials.secret.reveal()),
            ]
            headers = {"Content-Type": "application/x-www-form-urlencoded"}
            return self._wire.send("POST", realm, headers=headers, body=urlencode(fields).encode())
        query = urlencode([*named, *(("scope", scope) for scope in scopes)])
        url = f"{realm}{'&' if '?' in realm else '?'}{query}" if query else realm
        shown = {} if credentials is None else {"Authorization": basic_header(credentials)}
        return self._wire.send("GET", url, headers=shown)

    def _check_realm(self, realm: str) -> None:
        subject = f"realm of registry {self._host}"
        there = origin_of(realm, subject=subject)
        if "#" in realm:
            raise ProtocolError(subject, "has a fragment, which would swallow what is asked for", actual=public(realm))
        check_reach(self._origin, there, subject=subject)
        # Another port of the same host may be another user's program, and the network in between hears it all.
        plain = self._origin.scheme == "http" and self._origin.is_loopback and there.is_loopback
        if there.scheme != "https" and there != self._origin and not plain:
            raise ProtocolError(
                subject, "would be shown credentials without encryption", expected="https", actual=public(realm)
            )


def _body(answer: Answer, times: Times) -> bytes:
    began = time.monotonic()
    try:
        return answer.body(_TOKEN_BYTES)
    except NetworkError as error:
        if time.monotonic() - began >= times.document:
            raise
        raise BusyError(error, status=0, asked=None) from error


def _bearer(token: str) -> str:
    return f"Bearer {token}"


def _token(raw: bytes, *, subject: str, began: float) -> _Token:
    try:
        value = jsontext.loads(raw, subject=subject, max_bytes=_TOKEN_BYTES)
    except DocumentError:
        # The text is not shown: what is broken may still be a token.
        value = None
    if not isinstance(value, dict):
        raise ProtocolError(subject, "is not a JSON object", actual=f"{len(raw)} bytes")
    text = value.get("token") or value.get("access_token")
    if not isinstance(text, str) or not text or not all("!" <= letter <= "~" for letter in text):
        raise ProtocolError(subject, "has no token that can be shown in a header")
    seconds = value.get("expires_in")
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not seconds > 0:
        seconds = _LIFETIME
    life = float(min(seconds, _MAX_LIFETIME))
    return _Token(header=_bearer(text), until=began + life - min(_MARGIN, life / 10))
