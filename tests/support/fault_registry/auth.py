"""Who may do what: nobody is asked, basic, or tokens with scopes from an own endpoint (distribution: token auth)."""

from __future__ import annotations

import base64
import binascii
import secrets
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal
from urllib.parse import parse_qsl

from tests.support.fault_registry.messages import RefusedError, json_response, refusal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.support.fault_registry.exchange import Exchange
    from tests.support.fault_registry.messages import Response

    Scope = tuple[str, str]


@dataclass(slots=True, kw_only=True)
class Grant:
    """What a token stands for. `scopes` holds (repository, action)."""

    account: str
    scopes: frozenset[Scope]
    ends: float
    """seconds on the clock of `Auth`"""
    requests: int = 0
    bytes: int = 0


@dataclass(slots=True, kw_only=True)
class Auth:
    """One authority; may be shared by several registries, so that the realm can be another origin."""

    mode: Literal["none", "basic", "bearer"] = "none"
    users: dict[str, str] = field(default_factory=lambda: {"tester": "open sesame"})
    anonymous: frozenset[str] = frozenset()
    """repositories that a token without an account may pull"""
    readable: dict[str, frozenset[str]] = field(default_factory=dict)
    """account to the only repositories it may pull; an account that is not named may pull all"""
    writable: dict[str, frozenset[str]] = field(default_factory=dict)
    """account to the only repositories it may push to; an account that is not named may push to all"""
    realm: str | None = None
    """address of the token endpoint; None is `/token` of the registry that challenges"""
    service: str = "fault registry"
    lifetime: float = 300
    """seconds that a token is good for"""
    expires_in: int | None = 300
    """seconds that a token says it is good for; None leaves it out (then 60 are meant)"""
    issued_at: bool = True
    expire_after_requests: int | None = None
    """requests that a token is good for"""
    expire_after_bytes: int | None = None
    """bytes of bodies that a token is good for; an upload is cut there with 401 and the connection is closed"""
    field_name: Literal["token", "access_token", "both"] = "both"
    oauth2: bool = True
    """POST to the endpoint is served; otherwise 404"""
    scheme: str = "Bearer"
    """how the challenge spells it"""
    grants: dict[str, Grant] = field(default_factory=dict)
    refresh_tokens: dict[str, str] = field(default_factory=dict)
    """refresh token to account"""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def expire_all(self) -> None:
        """No token that was given out is good any more."""
        with self.lock:
            self.grants.clear()

    def admit(self, exchange: Exchange, needed: list[Scope], besides: list[Scope]) -> None:
        """Let the request pass, or refuse it with 401 and a challenge for these scopes and those besides."""
        if self.mode == "none":
            return
        scheme, _, value = exchange.headers.get("authorization", "").partition(" ")
        if self.mode == "basic":
            account = self._account(value) if scheme.lower() == "basic" else None
            if account is None:
                raise self.challenge(exchange, needed)
            exchange.grant = Grant(account=account, scopes=frozenset(), ends=0)
        else:
            exchange.grant = self._grant(value) if scheme.lower() == "bearer" else None
            if exchange.grant is None:
                error = "invalid_token" if value else ""
                raise self.challenge(exchange, [*needed, *besides], error=error)
            exchange.grant.requests += 1
        if not all(self.allows(exchange.grant, *scope) for scope in needed):
            raise self._denied(exchange, [*needed, *besides])

    def allows(self, grant: Grant | None, repository: str, action: str) -> bool:
        if self.mode == "none":
            return True
        if grant is None:
            return False
        return (repository, action) in (grant.scopes if self.mode == "bearer" else self._of(grant.account, repository))

    def challenge(self, exchange: Exchange, needed: Iterable[Scope], *, error: str = "") -> RefusedError:
        """401 as distribution words it."""
        if self.mode == "basic":
            value = f'Basic realm="{self.service}"'
        else:
            value = f'{self.scheme} realm="{self.realm or exchange.backend.base + "/token"}",service="{self.service}"'
            if scopes := _spelled(needed):
                value += f',scope="{scopes}"'
            value += f',error="{error}"' if error else ""
        return RefusedError(401, "UNAUTHORIZED", "authentication required", (("WWW-Authenticate", value),))

    def spend(self, exchange: Exchange, count: int) -> None:
        """Count bytes of a body for the token of the request; refuse once it is used up."""
        grant = exchange.grant
        if grant is None or self.mode != "bearer":
            return
        grant.bytes += count
        if self._used_up(grant):
            raise self.challenge(exchange, (), error="invalid_token")

    def token(self, exchange: Exchange) -> Response:
        """The token endpoint: GET with basic or without credentials, or POST as OAuth 2."""
        if exchange.record.method == "POST":
            return self._oauth2(exchange)
        if exchange.record.method != "GET" or exchange.query.get("service") != self.service:
            return refusal(400, "UNSUPPORTED", "GET with the service of the challenge")
        header = exchange.headers.get("authorization")
        account: str | None = ""
        if header is not None:
            scheme, _, value = header.partition(" ")
            account = self._account(value) if scheme.lower() == "basic" else None
        if account is None:
            return refusal(401, "UNAUTHORIZED", "incorrect username or password")
        scopes = [value for key, text in exchange.record.pairs if key == "scope" for value in text.split(" ")]
        answer = self.issue(account, scopes)
        if exchange.query.get("offline_token") == "true" and account:
            answer["refresh_token"] = self.refresh_token(account)
        return json_response(answer)

    def issue(self, account: str, scopes: Iterable[str]) -> dict[str, object]:
        """The answer of the endpoint for an account ("" is nobody) and scopes such as `repository:a/b:pull,push`."""
        granted = set()
        for text in scopes:
            kind, _, rest = text.partition(":")
            name, _, actions = rest.rpartition(":")
            allowed = self._of(account, name) if kind == "repository" else set()
            granted |= {(name, action) for action in actions.split(",")} & allowed
        value = "token-" + secrets.token_urlsafe(24)
        with self.lock:
            self.grants[value] = Grant(
                account=account, scopes=frozenset(granted), ends=time.monotonic() + self.lifetime
            )
        names = ("token", "access_token") if self.field_name == "both" else (self.field_name,)
        answer: dict[str, object] = dict.fromkeys(names, value)
        if self.expires_in is not None:
            answer["expires_in"] = self.expires_in
        if self.issued_at:
            answer["issued_at"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return answer

    def refresh_token(self, account: str) -> str:
        """A new refresh token (an identity token) for an account."""
        value = "refresh-" + secrets.token_urlsafe(24)
        self.refresh_tokens[value] = account
        return value

    def _oauth2(self, exchange: Exchange) -> Response:
        if not self.oauth2:
            return refusal(404, "UNSUPPORTED", "no OAuth 2 here")
        form = dict(parse_qsl(b"".join(exchange.body.pieces()).decode("utf-8", "replace")))
        if not form.get("client_id") or form.get("service") != self.service:
            return json_response({"error": "invalid_request"}, status=400)
        account: str | None = None
        if form.get("grant_type") == "refresh_token":
            account = self.refresh_tokens.get(form.get("refresh_token", ""))
        elif form.get("grant_type") == "password" and self.users.get(form.get("username", "")) == form.get("password"):
            account = form["username"]
        if account is None:
            return json_response({"error": "invalid_grant"}, status=401)
        answer = self.issue(account, form.get("scope", "").split(" "))
        return json_response({**answer, "scope": form.get("scope", "")})

    def _account(self, value: str) -> str | None:
        try:
            name, colon, password = base64.b64decode(value, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return None
        return name if colon and name in self.users and self.users[name] == password else None

    def _grant(self, value: str) -> Grant | None:
        grant = self.grants.get(value)
        if grant is None or grant.ends < time.monotonic() or self._used_up(grant):
            return None
        limit = self.expire_after_requests
        return None if limit is not None and grant.requests >= limit else grant

    def _used_up(self, grant: Grant) -> bool:
        return self.expire_after_bytes is not None and grant.bytes > self.expire_after_bytes

    def _of(self, account: str, repository: str) -> set[Scope]:
        """All that an account may do in a repository."""
        if not account:
            return {(repository, "pull")} if repository in self.anonymous else set()
        readable, writable = self.readable.get(account), self.writable.get(account)
        actions = set()
        if readable is None or repository in readable:
            actions.add("pull")
        if writable is None or repository in writable:
            actions |= {"push", "delete"}
        return {(repository, action) for action in actions}

    def _denied(self, exchange: Exchange, needed: Iterable[Scope]) -> RefusedError:
        if self.mode == "basic":
            return RefusedError(403, "DENIED", "requested access to the resource is denied")
        return self.challenge(exchange, needed, error="insufficient_scope")


def _spelled(needed: Iterable[Scope]) -> str:
    """Scopes as a challenge has them: `repository:a/b:pull,push repository:c:pull`."""
    actions: dict[str, list[str]] = {}
    for repository, action in needed:
        actions.setdefault(repository, []).append(action)
    return " ".join(f"repository:{name}:{','.join(found)}" for name, found in actions.items())
