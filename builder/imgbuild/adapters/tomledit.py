"""Single values and lists of a TOML file, changed where they stand; the only module that imports tomlkit.

Comments, blanks, the order and the line endings stay. Nothing is written here.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from imgbuild.errors import DocumentError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_BY_HAND = "change it by hand, and run `imgbuild lock IMAGE`"
_SOMETHING_ELSE = "changing something else"


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One value: the keys that lead to it, and what is to stand there."""

    keys: tuple[str, ...]
    value: str | int

    @property
    def path(self) -> str:
        """The keys as people write them: `sources.adapter.commit`."""
        return ".".join(self.keys)


def value_at(document: Any, keys: tuple[str, ...]) -> Any:
    """What stands in parsed TOML under some keys; None where one of them is not there."""
    for key in keys:
        document = document.get(key) if isinstance(document, dict) else None
    return document


def edit_toml(raw: bytes, edits: Sequence[Edit], *, subject: str) -> bytes:
    """The bytes of a document with some values replaced, each of which has to be there.

    What comes out is parsed by another parser and compared: it says the same as before but for these values, and so
    many lines differ at most. (tomlkit moves tables where other ones stand between those of an array.)

    Args:
        raw: the document, UTF-8.
        edits: the values.
        subject: the file, for errors.

    Raises:
        DocumentError: it is not TOML, lacks one of the values, or cannot be edited without changing something else.
    """
    # 60 ms, and needed where a pin moves only.
    from tomlkit import parse  # noqa: PLC0415
    from tomlkit.exceptions import TOMLKitError  # noqa: PLC0415

    try:
        text = raw.decode("utf-8")
        wanted = tomllib.loads(text)
        document = parse(text)
        for edit in edits:
            _set(wanted, edit, subject)
            _set(document, edit, subject)
        changed = document.as_string()
        found = tomllib.loads(changed)
    except (ValueError, RecursionError, TOMLKitError) as error:
        raise DocumentError(subject, (f"cannot be edited: {error}",), hint=_BY_HAND) from error
    before, after = text.split("\n"), changed.split("\n")
    different = sum(old != new for old, new in zip(before, after, strict=False))
    if found != wanted or len(before) != len(after) or different > len(edits):
        where = ", ".join(edit.path for edit in edits)
        raise DocumentError(subject, (f"{where}: cannot be changed without changing something else",), hint=_BY_HAND)
    return changed.encode("utf-8")


def _set(document: Any, edit: Edit, subject: str) -> None:
    *folders, last = edit.keys
    for key in folders:
        document = document.get(key, {})
    if last not in document:
        raise DocumentError(subject, (f"{edit.path}: is not there to be changed",), hint=_BY_HAND)
    document[last] = edit.value


def edit_lists(raw: bytes, lists: Mapping[str, Sequence[str]], *, subject: str) -> bytes:
    """The bytes of a document with some lists of texts at its top replaced, each of which has to be there.

    Texts of a list of the same length are replaced where they stand; of another length the list is written anew, on one
    line or on several as it was before. What comes out is parsed by another parser and compared.

    Args:
        raw: the document, UTF-8.
        lists: by key, what is to stand there.
        subject: the file, for errors.

    Raises:
        DocumentError: it is not TOML, lacks one of the lists, or cannot be edited without changing something else.
    """
    from tomlkit import parse  # noqa: PLC0415
    from tomlkit.exceptions import TOMLKitError  # noqa: PLC0415

    try:
        text = raw.decode("utf-8")
        before, document = tomllib.loads(text), parse(text)
        old = {key: document[key].as_string() for key in lists if isinstance(before.get(key), list)}
        changed = _with_lists(text, {key: _list(old[key], before[key], values) for key, values in lists.items()})
        right = tomllib.loads(changed) == before | {key: list(values) for key, values in lists.items()}
        # What was replaced, put back, has to give the same document again: so nothing else is another one.
        right = right and _with_lists(changed, old) == text
    except (ValueError, KeyError, RecursionError, TOMLKitError) as error:
        why = f"losing {error}" if isinstance(error, _CommentsError) else _SOMETHING_ELSE
        raise DocumentError(
            subject, (f"{', '.join(lists)}: cannot be changed without {why}",), hint=_BY_HAND
        ) from error
    if not right:
        problem = f"{', '.join(lists)}: cannot be changed without {_SOMETHING_ELSE}"
        raise DocumentError(subject, (problem,), hint=_BY_HAND)
    return changed.encode("utf-8")


def _with_lists(text: str, lists: Mapping[str, str]) -> str:
    """A document with lists at its top replaced, as they are written."""
    from tomlkit import parse  # noqa: PLC0415

    document = parse(text)
    for key, written in lists.items():
        document[key] = parse(f"x = {written}")["x"]
    return document.as_string()


class _CommentsError(ValueError):
    pass


def _list(old: str, before: Any, values: Sequence[str]) -> str:
    """The text of a list, with other texts in it. A `_CommentsError` where they would be lost."""
    if isinstance(before, list) and len(before) == len(values):
        for one, other in zip(before, values, strict=True):
            if one != other and old.count(_text(one)) == 1:
                old = old.replace(_text(one), _text(other))
            elif one != other:
                return _list(old, None, values)
        return old
    if "#" in old:
        raise _CommentsError("the comments in a list")
    end = "\r\n" if "\r\n" in old else "\n"
    if "\n" not in old:
        return f"[{', '.join(map(_text, values))}]"
    return f"[{end}" + "".join(f"    {_text(value)},{end}" for value in values) + "]"


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
