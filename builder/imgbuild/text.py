"""Text of others, made safe to stand in one line of ours."""

from __future__ import annotations

import re

_USER = re.compile(r"(?<=://)[^/\s]*@")
_QUERY = re.compile(r"(://[^\s?#]*\?)[^\s'\"]+")


def printable(text: str | bytes, limit: int = 200) -> str:
    """Text from outside as one line that cannot drive a terminal: controls, direction characters and breaks escaped.

    Bytes are read as UTF-8, what is none of it escaped. What is longer than `limit` characters (of the escaped text)
    is cut and ends with an ellipsis. Credentials are not looked for; see `without_credentials`.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8", "backslashreplace")
    safe = "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)
    return safe if len(safe) <= limit else safe[:limit] + "…"


def without_credentials(text: str) -> str:
    """The text with user name, password and query of every URL in it (RFC 3986) replaced by `***`."""
    return _QUERY.sub(r"\1***", _USER.sub("***@", text))
