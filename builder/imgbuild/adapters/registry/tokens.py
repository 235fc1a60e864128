"""Who we are to one registry: anonymous, basic, or bearer tokens (Docker's token authentication; RFC 6750).

Nothing is shown before the registry asked for it. A token is asked for again before it expires, and when it is refused
(case C46). Credentials that are configured and refused are an error: nothing falls back to anonymous.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from imgbuild import jsontext
from imgbuild.adapters.registry.challenge import choose, parse_challenges
from imgbuild.adapters.registry.credentials import basic_header
from imgbuild.adapters.registry.origin import check_reach, origin_of, public
from imgbuild.adapters.registry.refusal import error_of, read_refusal
from imgbuild.config import MIB
from imgbuild.errors import DocumentError, ProtocolError

if TYPE_CHECKING:
    from imgbuild.adapters.registry.challenge import Challenge
    from imgbuild.adapters.registry.credentials import Credentials, CredentialStore
    from imgbuild.adapters.registry.origin import Origin
    from imgbuild.adapters.registry.wire import Answer, Wire

_TOKEN_BYTES = 1 * MIB
_LIFETIME = 60.0
"""seconds a token is good for where nothing is said (token specification)."""
_MARGIN = 10.0
"""seconds before its end that a token is not used any more; a tenth of its life if that is less."""
_MAX_LIFETIME = 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Token:
    header: str
    until: float


class Authorizer:
    """The `Authorization` for one registry; safe to use from several threads."""

    def __init__(self, *, host: str, origin: Origin, wire: Wire, credentials: CredentialStore) -> None:
        self._host = host
        self._origin = origin
        self._wire = wire
        self._store = credentials
        self._lock = threading.RLock()
        self._challenge: Challenge | None = None
        self._tokens: dict[tuple[str, ...], _Token] = {}

    def header(self, repository: str, scopes: tuple[str, ...]) -> str | None:
        """What to show with a request of these scopes; None before the registry has asked for anything."""
        with self._lock:
            if self._challenge is None:
                return None
            if self._challenge.scheme == "basic":
                found = self._credentials(repository)
                return None if found is None else basic_header(found)
            token = self._tokens.get(scopes)
            if token is None or token.until <= time.monotonic():
                token = self._tokens[scopes] = self._fetch(self._challenge, repository, scopes)
            return token.header

    def refused(self, answer: Answer, repository: str, scopes: tuple[str, ...]) -> bool:
        """Learn from a 401; whether there is something else to show now.

        Raises:
            ProtocolError: the challenge breaks its grammar, or names a realm that is not to be trusted.
            CredentialError: the credentials that are configured cannot be had.
        """
        subject = f"registry {self._host}"
        found = choose(parse_challenges(answer.headers("WWW-Authenticate"), subject=subject))
        if found is None:
            return False
        with self._lock:
            if found.scheme == "basic":
                news = self._challenge is None or self._challenge.scheme != "basic"
                self._challenge = found
                return news and self._credentials(repository) is not None
            self._challenge = found
            self._tokens.pop(scopes, None)
            return True

    def who(self, repository: str) -> str:
        """Whose credentials are shown, in words."""
        found = self._credentials(repository)
        if found is None:
            return "anonymously"
        return f"as {found.username or 'the owner of a token'} (from {found.origin})"

    def _credentials(self, repository: str) -> Credentials | None:
        return self._store.find(self._host, repository)

    def _fetch(self, challenge: Challenge, repository: str, scopes: tuple[str, ...]) -> _Token:
        credentials = self._credentials(repository)
        if credentials is not None and credentials.kind == "registry-token":
            return _Token(header=f"Bearer {credentials.secret.reveal()}", until=time.monotonic() + _MAX_LIFETIME)
        realm = challenge.get("realm") or ""
        self._check_realm(realm)
        service = challenge.get("service")
        with self._ask(realm, service, scopes, credentials) as answer:
            if answer.status != 200:  # noqa: PLR2004 - HTTP
                refusal = read_refusal(answer)
                subject = f"token for {', '.join(scopes) or self._host}"
                raise error_of(refusal, subject=subject, url=realm, who=self.who(repository))
            return _token(answer.body(_TOKEN_BYTES), subject=f"token of {public(realm)}")

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
        return self._wire.send(
            "GET", url, headers={} if credentials is None else {"Authorization": basic_header(credentials)}
        )

    def _check_realm(self, realm: str) -> None:
        subject = f"realm of registry {self._host}"
        there = origin_of(realm, subject=subject)
        check_reach(self._origin, there, subject=subject)
        if there.scheme != "https" and (self._origin.scheme == "https" or there.host != self._origin.host):
            raise ProtocolError(
                subject, "would be shown credentials without encryption", expected="https", actual=public(realm)
            )


def _token(raw: bytes, *, subject: str) -> _Token:
    try:
        value = jsontext.loads(raw, subject=subject, max_bytes=_TOKEN_BYTES)
    except DocumentError as error:
        # The text is not shown: what is broken may still be a token.
        raise ProtocolError(subject, "is not JSON") from error
    text = (value.get("token") or value.get("access_token")) if isinstance(value, dict) else None
    if not isinstance(text, str) or not text or not all("!" <= letter <= "~" for letter in text):
        raise ProtocolError(subject, "has no token that can be shown in a header")
    seconds = value.get("expires_in")
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or seconds <= 0:
        seconds = _LIFETIME
    life = min(float(seconds), _MAX_LIFETIME)
    return _Token(header=f"Bearer {text}", until=time.monotonic() + life - min(_MARGIN, life / 10))
