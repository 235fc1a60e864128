"""What a refusal of a registry means: its status, and the codes its body may state (distribution-spec, Error Codes)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from imgbuild import jsontext
from imgbuild.adapters.registry.origin import public
from imgbuild.config import KIB
from imgbuild.errors import (
    AvailabilityError,
    DocumentError,
    ForbiddenError,
    MissingError,
    NetworkError,
    ProtocolError,
    RegistryError,
    ServerError,
    ThrottledError,
    UnauthorizedError,
)
from imgbuild.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from imgbuild.adapters.registry.wire import Answer

_BODY_BYTES = 64 * KIB
_SHOWN = 300
"""letters of what a registry says that are shown."""
_CODE = 64
_MAX_ERRORS = 8
_IMMUTABLE_WORDS = re.compile(r"immutable|already exists|overwrit")
"""What registries say when a tag may not move: "immutable", "already exists", "overwrite", "cannot be overwritten"."""
_IMMUTABLE_CODES = ("TAG_INVALID",)
_IMMUTABLE_STATUSES = frozenset({409, 412})
RETRIED = frozenset({408, 425, 500, 502, 503, 504, 520, 521, 522, 523, 524})
"""Statuses after which the same request may go well a moment later; 429 besides. From 520 on they are Cloudflare's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A refused request, with the answer read and closed."""

    status: int
    codes: tuple[str, ...]
    """Error codes of the body, upper case; empty where it has none."""
    said: str
    """What the body says in words, fit to be shown."""

    def has(self, *codes: str) -> bool:
        """Whether one of these codes was stated."""
        return any(code in self.codes for code in codes)

    @property
    def says_immutable(self) -> bool:
        """Whether it says that a tag may not move; each registry has its own words for that (case C55).

        "Denied" is none of them: that is what somebody is told who may not write at all.
        """
        if self.status in _IMMUTABLE_STATUSES or self.has(*_IMMUTABLE_CODES):
            return True
        return _IMMUTABLE_WORDS.search(f"{' '.join(self.codes)} {self.said}".lower()) is not None


def read_refusal(answer: Answer, *, hide: Callable[[str], str] = str) -> Refusal:
    """Read the body of a refusal, as far as it is worth it; `hide` takes out what must not be shown."""
    try:
        raw = answer.body(_BODY_BYTES)[:_BODY_BYTES]
    except NetworkError:
        raw = b""
    codes: list[str] = []
    said: list[str] = []
    for row in _rows(raw):
        code, message = row.get("code"), row.get("message")
        if isinstance(code, str):
            codes.append(printable(hide(code).upper(), _CODE))
        if isinstance(message, str) and message:
            said.append(message)
    text = "; ".join(said) if codes or said else raw.decode("utf-8", "replace")
    # What must not be shown is looked for before anything is cut, or half of it could stay.
    return Refusal(status=answer.status, codes=tuple(codes), said=printable(" ".join(hide(text).split()), _SHOWN))


def _rows(raw: bytes) -> list[dict[str, Any]]:
    try:
        value = jsontext.loads(raw, subject="error") if raw else None
    except DocumentError:
        return []
    rows = value.get("errors") if isinstance(value, dict) else None
    return [row for row in rows[:_MAX_ERRORS] if isinstance(row, dict)] if isinstance(rows, list) else []


def error_of(refusal: Refusal, *, subject: str, url: str, who: str) -> AvailabilityError:
    """The error for a refusal.

    Args:
        refusal: what was answered.
        subject: what was asked for, as the reader knows it.
        url: the address; what may be secret in it is not shown.
        who: whose credentials were shown, in words; no secret.
    """
    status = refusal.status
    codes = f" {', '.join(refusal.codes)}" if refusal.codes else ""
    actual = f"{status}{codes}" + (f": {refusal.said}" if refusal.said else "")
    kind, problem, says_who = _meaning(status)
    return kind(
        subject,
        problem,
        actual=f"{actual}, asked {who}" if says_who else actual,
        where=public(url),
        hint=_MISSING_HINT if kind is MissingError else None,
    )


def _meaning(status: int) -> tuple[type[AvailabilityError], str, bool]:
    """The class of a refusal, what it is about, and whether it matters who asked."""
    known: dict[int, tuple[type[AvailabilityError], str, bool]] = {
        401: (UnauthorizedError, "needs other credentials", True),
        403: (ForbiddenError, "is not allowed", True),
        404: (MissingError, "is not in the registry", False),
        410: (MissingError, "is not in the registry any more", False),
        429: (ThrottledError, "was asked for too often", True),
    }
    if status in RETRIED or status >= 500:  # noqa: PLR2004 - HTTP
        return ServerError, "made the registry fail", False
    if status < 400:  # noqa: PLR2004
        return ProtocolError, "was answered with a status that has no meaning here", False
    return known.get(status, (RegistryError, "was refused", False))


_MISSING_HINT = (
    "was it deleted? `imgbuild check IMAGE` says which pins are alive; some registries hide so what is private"
)
