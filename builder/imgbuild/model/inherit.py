"""Definitions from more than one file: variants that extend another image, and stand-ins for what cannot be had.

Pure functions over parsed TOML; what comes out is checked as if it stood in one file.
"""

from __future__ import annotations

from typing import Any

from imgbuild.errors import DocumentError
from imgbuild.model.decode import Document, convert, require_schema
from imgbuild.model.image import Base, Source
from imgbuild.model.layer import Name

STAND_IN_SCHEMA = "imgbuild/stand-in/v1"
STAND_IN_PREFIX = "stand-in-"
"""Of every tag of an image that is made with stand-ins."""
STAND_IN_LABEL = "imgbuild.stand-in"
_DEPTH = 8
"""tables within each other."""
OWN = ("extends", "name", "title", "tags")
"""What a variant says for itself: what it is, and its tags, which would move the other image's."""


class StandIn(Document, frozen=True, kw_only=True):
    """What a base and sources are replaced by, each as a whole; everything else is that of the definition."""

    schema: str
    base: Base
    sources: dict[Name, Source] = {}


def inherit(parent: dict[str, Any], child: dict[str, Any]) -> dict[str, Any]:
    """A definition that extends another one: tables are added to, key by key; everything else is replaced.

    A source of another kind replaces the other one's as a whole. Nothing can be taken away.
    """
    return {**{key: value for key, value in parent.items() if key not in OWN}, **_merged(parent, child, _DEPTH)}


def _merged(parent: dict[str, Any], child: dict[str, Any], depth: int) -> dict[str, Any]:
    return {key: _value(parent.get(key), value, depth) for key, value in child.items()}


def _value(parent: Any, child: Any, depth: int) -> Any:
    tables = isinstance(parent, dict) and isinstance(child, dict) and parent.get("kind") == child.get("kind")
    # No definition has tables so deep; what has is refused when it is checked as a whole.
    return {**parent, **_merged(parent, child, depth - 1)} if tables and depth else child


def stand_in(definition: dict[str, Any], value: Any, *, subject: str) -> dict[str, Any]:
    """A definition with its base and some sources replaced, so that its name, tags and labels say so.

    Args:
        definition: parsed TOML, whole, and found to be a definition.
        value: parsed TOML of the stand-ins.
        subject: the file of the stand-ins, for errors.

    Raises:
        DocumentError: it does not parse, or replaces a source that the definition does not have.
    """
    require_schema(value, STAND_IN_SCHEMA, subject=subject)
    found = convert(value, StandIn, subject=subject)
    there = definition.get("sources", {})
    unknown = sorted(set(found.sources) - set(there))
    if unknown:
        raise DocumentError(subject, tuple(f"sources.{name}: the definition has no such source" for name in unknown))
    config = definition.get("config", {})
    # An image without layers is its base to the last byte: then only the tags can say it.
    labels = {STAND_IN_LABEL: "true"} if definition.get("layers") else {}
    return {
        **definition,
        "base": value["base"],
        "sources": {**there, **value.get("sources", {})},
        "tags": [f"{STAND_IN_PREFIX}{tag}" for tag in definition.get("tags", [])],
        **({"config": {**config, "labels": {**config.get("labels", {}), **labels}}} if labels else {}),
    }
