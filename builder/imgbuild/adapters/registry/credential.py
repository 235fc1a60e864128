"""What is shown to one registry host: a user and password, or a token; and how none of it is ever printed."""

from __future__ import annotations

import base64
import re
import unicodedata
from dataclasses import dataclass, field
from typing import Final, Literal, NoReturn

from imgbuild.config import KIB
from imgbuild.errors import CredentialError, InternalError

MAX_SECRET_BYTES: Final = 64 * KIB
"""bytes of one user name or secret."""
_VISIBLE: Final = re.compile(r"[\x21-\x7e]+")


class Secret:
    """A text that is shown nowhere: only `reveal` gives it. Two secrets are never equal unless they are one object."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself, for the header or body that needs it."""
        return self._text

    def __repr__(self) -> str:
        return "Secret(***)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not written down")


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What to show to one host.

    Attributes:
        username: None where there is none; may itself be half a secret, so `repr` leaves it out.
        secret: at most `MAX_SECRET_BYTES` long.
        kind: `basic` is a password for `username`, or for a token service; `identity-token` is an OAuth2 refresh token
            for a token service; `registry-token` is a bearer token for the registry itself.
        origin: where it was found, as may be shown to people.

    Raises:
        CredentialError: a control character (it could begin a header of its own, RFC 9110 section 5.5), a colon in the
            name of a basic user (RFC 7617 section 2), an empty name or token, or a registry token that no header holds.
    """

    username: str | None = field(default=None, repr=False)
    secret: Secret
    kind: Literal["basic", "identity-token", "registry-token"]
    origin: str

    def __post_init__(self) -> None:
        secret = self.secret.reveal()
        for name, text in (("user name", self.username or ""), ("secret", secret)):
            if any(unicodedata.category(char) in {"Cc", "Cs"} for char in text):
                self._refuse(f"have a control character in the {name}")
            if len(text.encode()) > MAX_SECRET_BYTES:
                self._refuse(f"have a {name} of more than {MAX_SECRET_BYTES} bytes")
        if self.kind == "basic" and not self.username:
            self._refuse("have a password and no user name")
        if self.kind == "basic" and ":" in (self.username or ""):
            self._refuse("have a colon in the user name, which would move its rest into the password")
        if self.kind != "basic" and not secret:
            self._refuse("have an empty token")
        if self.kind == "registry-token" and not _VISIBLE.fullmatch(secret):
            self._refuse("have a token that is not plain ASCII without spaces")

    def _refuse(self, problem: str) -> NoReturn:
        raise CredentialError("the credentials", problem, where=self.origin)


def basic_header(credentials: Credentials) -> str:
    """The value of `Authorization` for a user and password (RFC 7617, in UTF-8); of another kind it is a bug."""
    if credentials.kind != "basic":
        raise InternalError("basic credentials", "are needed here", expected="basic", actual=credentials.kind)
    pair = f"{credentials.username}:{credentials.secret.reveal()}"
    return "Basic " + base64.b64encode(pair.encode()).decode("ascii")
