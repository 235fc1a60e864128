"""From parsed JSON or TOML to typed values, with every problem and its path.

The types are the schema: `msgspec` converts strictly, and the JSON Schemas that are shipped are generated from the same
classes. Only when the conversion fails is `jsonschema` asked for the whole list of problems.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from imgbuild.digest import Digest
from imgbuild.errors import DocumentError, LockVersionError

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

END = r"$(?!\n)"
"""The end of a text in a pattern. Python's `$` alone also matches before a last newline; JSON Schema's does not."""
DIGEST_PATTERN = f"^(sha256:[0-9a-f]{{64}}|sha512:[0-9a-f]{{128}}){END}"
_NO_DOCUMENT_TYPE = "a document class has a field of a type that is neither msgspec's nor a Digest"
_MAX_PROBLEMS = 50
_NOUNS = {"step": "step", "sources": "source"}
"""What the rows of a list or table are, by its key, where they are of several kinds."""

T = TypeVar("T")


class Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The base of all values that are read from or written to documents: frozen, no unknown fields."""


def convert(value: Any, kind: type[T], *, subject: str) -> T:
    """Convert builtins to `kind`; a `DocumentError` lists every problem as `path: what is wrong`."""
    try:
        return msgspec.convert(value, kind, dec_hook=_decode)
    except msgspec.ValidationError as error:
        raise DocumentError(subject, _all_problems(value, kind) or (_first_problem(error),)) from error


def builtins(value: Any) -> Any:
    """The value as dicts, lists, strings and numbers; fields that have their default are left out."""
    return msgspec.to_builtins(value, enc_hook=_encode)


def schema_of(kind: Any, identifier: str) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a document class."""
    schema: dict[str, Any] = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": identifier}
    schema.update(msgspec.json.schema(kind, schema_hook=_schema))
    return schema


def require_schema(value: Any, expected: str, *, subject: str) -> None:
    """Refuse a document that names another schema or a newer version before anything else is looked at."""
    found = value.get("schema") if isinstance(value, dict) else None
    if found == expected:
        return
    family, _, version = expected.rpartition("/v")
    if isinstance(found, str) and found.startswith(f"{family}/v"):
        raise LockVersionError(
            subject,
            (f"schema: expected {expected!r}, actual {found!r}; this program reads version {version} only",),
        )
    raise DocumentError(subject, (f"schema: expected {expected!r}, actual {found!r}",))


def _decode(kind: type, value: Any) -> Any:
    if kind is Digest:
        if not isinstance(value, str):
            raise ValueError(f"expected a digest, got {type(value).__name__}")
        try:
            return Digest.parse(value)
        except DocumentError as error:
            raise ValueError(error.problem) from error
    raise TypeError(_NO_DOCUMENT_TYPE)


def _encode(value: Any) -> Any:
    if isinstance(value, Digest):
        return str(value)
    raise TypeError(_NO_DOCUMENT_TYPE)


def _schema(kind: type) -> dict[str, Any]:
    if kind is Digest:
        return {"type": "string", "pattern": DIGEST_PATTERN}
    raise TypeError(_NO_DOCUMENT_TYPE)


def _first_problem(error: msgspec.ValidationError) -> str:
    text, _, path = str(error).partition(" - at `$")
    return f"{path.rstrip('`').lstrip('.') or 'document'}: {text}"


def _all_problems(value: Any, kind: Any) -> tuple[str, ...]:
    from jsonschema import Draft202012Validator  # noqa: PLC0415 - 100 ms, needed only to explain a failure

    found: set[str] = set()
    for error in Draft202012Validator(schema_of(kind, "explain")).iter_errors(value):
        found.update(f"{_path(leaf)}: {_words(leaf)[:300]}" for leaf in _leaves(error))
    return tuple(sorted(found)[:_MAX_PROBLEMS])


def _leaves(error: ValidationError) -> list[ValidationError]:
    """Of a failed union, the problems of the variant that was meant: the one whose `kind` agrees."""
    if not error.context:
        return [error]
    variants: dict[Any, list[ValidationError]] = {}
    for inner in error.context:
        variants.setdefault(inner.schema_path[0], []).append(inner)
    for inners in variants.values():
        if not any(inner.path and inner.path[-1] == "kind" for inner in inners):
            meant = [inner for inner in inners if inner.validator != "type" or len(inner.path) > 0]
            if meant:
                return [leaf for inner in meant for leaf in _leaves(inner)]
    return [_unknown_kind(error) or error]


def _unknown_kind(error: ValidationError) -> ValidationError | None:
    """The problem with `kind` of a union of which no variant was meant, with all kinds that there are."""
    wrong = [inner for inner in error.context or () if inner.path and inner.path[-1] == "kind"]
    if not wrong:
        return None
    enums = [cast("list[str]", inner.validator_value) for inner in wrong if inner.validator == "enum"]
    known = sorted({kind for enum in enums for kind in enum})
    wrong[0].message = f"{wrong[0].instance!r} is none of {', '.join(known)}"
    return wrong[0]


def _words(error: ValidationError) -> str:
    """What is wrong; a pattern alone says little where there are words for it."""
    if error.validator == "pattern":
        described = error.schema.get("description") if isinstance(error.schema, dict) else None
        if error.validator_value == DIGEST_PATTERN:
            described = "sha256: and 64, or sha512: and 128 lower-case hexadecimal digits"
        if described:
            return f"expected {described}, actual {error.instance!r}"
    if error.validator == "additionalProperties" and error.validator_value is False:
        return _unknown_key(error)
    return error.message


def _unknown_key(error: ValidationError) -> str:
    """The keys that are not known here, and those that are."""
    schema, found = cast("dict[str, Any]", error.schema), cast("dict[str, Any]", error.instance)
    known = schema.get("properties", {})
    extra = [repr(key) for key in found if key not in known]
    return f"unknown key{'' if len(extra) == 1 else 's'} {', '.join(extra)}; {_owner(error, known)} {', '.join(known)}"


def _owner(error: ValidationError, known: dict[str, Any]) -> str:
    """Of a variant, its kind and what it is a kind of: `an edit step has`."""
    kinds = known.get("kind", {}).get("enum", [])
    nouns = [_NOUNS[part] for part in error.absolute_path if part in _NOUNS]
    if len(kinds) != 1 or not nouns:
        return "there are"
    return f"{'an' if kinds[0][0] in 'aeiou' else 'a'} {kinds[0]} {nouns[-1]} has"


def _path(error: ValidationError) -> str:
    text = ""
    for part in error.absolute_path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.lstrip(".") or "document"
