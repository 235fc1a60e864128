"""`WWW-Authenticate`, as RFC 9110 has it (section 11.6.1, list rules of 5.6.1).

Several challenges in one field, several fields, quoted strings with commas and escapes, names in any case. What does
not follow the grammar is refused, never guessed: a half-read realm would be a host to which credentials go.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from imgbuild.config import KIB
from imgbuild.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_FIELD_BYTES = 8 * KIB
"""bytes of one header field."""
MAX_CHALLENGES = 16
"""challenges of one answer, and fields in which they may stand."""
MAX_PARAMETERS = 32
"""parameters of one challenge."""

# Possessive, and each alternative with its own first character: linear on any input.
_WORD = r"[!#$%&'*+.^_`|~0-9A-Za-z-]++"
_GAP = re.compile(r"[ \t,]*+")
_SPACE = re.compile(r"[ \t]++")
_SCHEME = re.compile(rf"({_WORD})(?![ \t]*+=)")
_TOKEN68 = re.compile(r"([0-9A-Za-z._~+/-]++=*+)(?=[ \t]*+(?:,|\Z))")
_NAME = re.compile(rf"({_WORD})[ \t]*+=[ \t]*+")
_PLAIN = re.compile(rf"({_WORD})")
_QUOTED = re.compile(r'"((?:[\t\x20\x21\x23-\x5b\x5d-\x7e\x80-\xff]|\\[\t\x20-\x7e\x80-\xff])*+)"')
_ESCAPE = re.compile(r"\\(.)")
_SEPARATOR = re.compile(r"[ \t]*+(?:,[ \t,]*+|\Z)")
_NO_PARAMETER = "has something else where a parameter should begin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """One way to log in that a server offers.

    Attributes:
        scheme: lower case (`bearer`, `basic`).
        parameters: pairs in the order sent; names in lower case, values as they are meant, without quotes and escapes.
            They are the server's words: whether a realm may be trusted is not checked here.
        token68: the one value of schemes that have no parameters (`Negotiate`).
    """

    scheme: str
    parameters: tuple[tuple[str, str], ...] = ()
    token68: str | None = None

    def get(self, name: str) -> str | None:
        """The value of a parameter, whatever the case of its name."""
        return dict(self.parameters).get(name.lower())


def parse_challenges(values: Sequence[str], *, subject: str) -> tuple[Challenge, ...]:
    """All challenges of an answer, in the order sent.

    Args:
        values: the value of each `WWW-Authenticate` field, read as ISO 8859-1; none is no challenge.
        subject: who answered what, for errors.

    Raises:
        ProtocolError: a field breaks the grammar, names a parameter twice, or exceeds a limit of this module. Nothing
            of the field is quoted, for it could repeat what we sent.
    """
    if len(values) > MAX_CHALLENGES:
        raise ProtocolError(subject, f"has more than {MAX_CHALLENGES} WWW-Authenticate fields", actual=len(values))
    found: list[Challenge] = []
    for number, value in enumerate(values, 1):
        found += _Field(value, subject, f"WWW-Authenticate field {number} of {len(values)}").challenges()
    if len(found) > MAX_CHALLENGES:
        raise ProtocolError(subject, f"has more than {MAX_CHALLENGES} challenges", actual=len(found))
    return tuple(found)


def choose(challenges: Sequence[Challenge]) -> Challenge | None:
    """The challenge to answer: the first `bearer` that names a realm, else the first `basic`, else None."""
    for challenge in challenges:
        if challenge.scheme == "bearer" and challenge.get("realm"):
            return challenge
    return next((challenge for challenge in challenges if challenge.scheme == "basic"), None)


class _Field:
    """One field and how far it is read."""

    def __init__(self, text: str, subject: str, where: str) -> None:
        self._text = text
        self._subject = subject
        self._where = where
        self._at = 0
        if len(text) > MAX_FIELD_BYTES:
            raise self._refused(f"is longer than {MAX_FIELD_BYTES} bytes")

    def challenges(self) -> list[Challenge]:
        found: list[Challenge] = []
        self._take(_GAP)
        while self._at < len(self._text):
            found.append(self._challenge())
        return found

    def _challenge(self) -> Challenge:
        scheme = self._take(_SCHEME)
        if scheme is None:
            raise self._refused("has something else where a scheme should begin")
        if self._take(_SEPARATOR) is None:
            if self._take(_SPACE) is None:
                raise self._refused("has something else where a scheme should end")
            if (token68 := self._take(_TOKEN68)) is not None:
                self._separated()
                return Challenge(scheme=scheme[1].lower(), token68=token68[1])
            if not _NAME.match(self._text, self._at):
                raise self._refused(_NO_PARAMETER)
        return Challenge(scheme=scheme[1].lower(), parameters=self._parameters())

    def _parameters(self) -> tuple[tuple[str, str], ...]:
        found: dict[str, str] = {}
        while self._at < len(self._text) and not _SCHEME.match(self._text, self._at):
            name = self._take(_NAME)
            if name is None:
                raise self._refused(_NO_PARAMETER)
            if name[1].lower() in found:
                raise self._refused("has a parameter twice")
            if len(found) == MAX_PARAMETERS:
                raise self._refused(f"has more than {MAX_PARAMETERS} parameters in one challenge")
            found[name[1].lower()] = self._value()
            self._separated()
        return tuple(found.items())

    def _value(self) -> str:
        if quoted := self._take(_QUOTED):
            return _ESCAPE.sub(r"\1", quoted[1])
        if plain := self._take(_PLAIN):
            return plain[1]
        raise self._refused("has a value that is neither a token nor a quoted string")

    def _separated(self) -> None:
        if self._take(_SEPARATOR) is None:
            raise self._refused("has two things without a comma between them")

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self._text, self._at)
        if match is not None:
            self._at = match.end()
        return match

    def _refused(self, problem: str) -> ProtocolError:
        where = f"{self._where}, character {self._at + 1}"
        return ProtocolError(self._subject, f"has a WWW-Authenticate field that {problem}", where=where)
