"""Single values of a TOML file, changed where they stand; the only module that imports tomlkit.

Comments, blanks, the order and the line endings stay. Nothing is written here.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from imgbuild.errors import DocumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

_BY_HAND = "change it by hand, and run `imgbuild lock IMAGE`"


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
