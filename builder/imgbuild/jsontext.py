"""Strict JSON in, canonical JSON out.

Strict: UTF-8 without a byte order mark, no lone surrogates, no duplicate keys, no NaN or infinities, integers within
2^53, no number that would be written again otherwise, bounded bytes and depth, nothing after the value (RFC 8259; the
interoperable subset of RFC 7493). Canonical: keys sorted, two-space indent, trailing newline, so that the same value is
the same bytes and diffs are small.
"""

from __future__ import annotations

import json
import re
from typing import Any

from imgbuild.config import DEFAULT_LIMITS
from imgbuild.errors import DocumentError

# Possessive, and with the closing quote optional: so a string without an end takes linear time, too.
_STRINGS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_MAX_INT = 2**53
_MAX_DIGITS = 20


def loads(
    data: bytes,
    *,
    subject: str,
    max_bytes: int = DEFAULT_LIMITS.document_bytes,
    max_depth: int = DEFAULT_LIMITS.document_depth,
) -> Any:
    """Parse one JSON document; every deviation is a `DocumentError` that names `subject`."""
    if len(data) > max_bytes:
        raise DocumentError(subject, (f"is {len(data)} bytes long; the limit is {max_bytes} bytes",))
    if _depth(data) > max_depth:
        raise DocumentError(subject, (f"is nested more than {max_depth} levels deep",))
    try:
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_constant=_constant,
            parse_int=_integer,
            parse_float=_float,
        )
        if _SURROGATE_ESCAPE.search(data):
            compact(value)
    except UnicodeEncodeError as error:
        raise DocumentError(subject, ("has half of a surrogate pair, which is no character",)) from error
    except UnicodeDecodeError as error:
        raise DocumentError(subject, (f"is not UTF-8 at byte {error.start}",)) from error
    except (ValueError, RecursionError) as error:
        raise DocumentError(subject, (f"is not JSON that we accept: {error}",)) from error
    return value


def dumps(value: Any) -> bytes:
    """Encode canonically. NaN and infinities are a `ValueError`; no document of ours has a float at all."""
    return (json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8")


def compact(value: Any) -> bytes:
    """Encode on one line with keys in the order given, as OCI documents are written."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode("utf-8")


def _depth(data: bytes) -> int:
    depth = deepest = 0
    for byte in _STRINGS.sub(b"", data).translate(None, delete=_NOT_BRACKETS):
        if byte in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        else:
            depth -= 1
    return deepest


_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {key[:80]!r} stands twice in one object")
            seen.add(key)
    return result


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _integer(text: str) -> int:
    if len(text) > _MAX_DIGITS or abs(value := int(text)) > _MAX_INT:
        raise ValueError(f"the integer {text[:_MAX_DIGITS]} is beyond 2^53")
    if text == "-0":
        raise ValueError("the number -0 cannot be kept exactly")
    return value


def _float(text: str) -> float:
    # OCI documents are written again with their unknown fields: a number that would change is refused instead.
    if repr(value := float(text)) != text:
        raise ValueError(f"the number {text[:_MAX_DIGITS]} cannot be kept exactly")
    return value
