"""Paths inside an image: bytes without a leading slash in values, absolute text in documents."""

from __future__ import annotations

import sys
import unicodedata

from imgbuild.config import DEFAULT_LIMITS
from imgbuild.errors import StepError
from imgbuild.text import printable


def image_path(text: str, *, where: str) -> bytes:
    """`/opt/a` as `b"opt/a"`. Refuses relative, empty, `.`/`..` and unprintable parts (`StepError`)."""
    if not text.startswith("/") or text == "/":
        raise StepError(f"path {text!r}", "is not an absolute path below /", where=where)
    return relative_path(text[1:], where=where)


def relative_path(text: str, *, where: str) -> bytes:
    """`a/b` as bytes, with the same refusals."""
    parts = text.split("/")
    if any(part in {"", ".", ".."} for part in parts):
        raise StepError(f"path {text!r}", "has an empty, '.' or '..' component", where=where)
    if any(unicodedata.category(character) in {"Cc", "Cf", "Cs"} for character in text):
        raise StepError(f"path {text!r}", "has control or invisible characters", where=where)
    data = text.encode("utf-8")
    if len(data) > DEFAULT_LIMITS.path_bytes:
        raise StepError(
            f"path {text[:80]!r}…", "is too long", expected=f"{DEFAULT_LIMITS.path_bytes} bytes", where=where
        )
    return data


def show(path: bytes) -> str:
    """A path for people and documents of ours: absolute, undecodable and unprintable bytes escaped."""
    return "/" + printable(path, sys.maxsize)


def parent(path: bytes) -> bytes:
    """The directory of a path; b"" is the root."""
    return path.rpartition(b"/")[0]


def parents(path: bytes) -> list[bytes]:
    """All directories above a path from the top down, without the root."""
    parts = path.split(b"/")[:-1]
    return [b"/".join(parts[: index + 1]) for index in range(len(parts))]
