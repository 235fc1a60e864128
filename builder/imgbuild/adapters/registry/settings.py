"""The file that says how registries are reached: where it is, and what is in it. Nothing is asked here."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING

from imgbuild.adapters.blobs import bounded, open_regular
from imgbuild.adapters.home import user_folder
from imgbuild.config import MIB
from imgbuild.errors import DocumentError, UsageError
from imgbuild.model.decode import convert, require_schema
from imgbuild.model.registries import SCHEMA, RegistriesDocument

if TYPE_CHECKING:
    from pathlib import Path

_BYTES = 1 * MIB


def default_file() -> Path | None:
    """`$XDG_CONFIG_HOME/imgbuild/registries.toml`, else `~/.config/imgbuild/registries.toml`; None without a home.

    Not a file of the project: a checkout must not be able to say where credentials go without encryption.
    """
    base = user_folder("XDG_CONFIG_HOME", ".config")
    return None if base is None else base / "imgbuild" / "registries.toml"


def read_settings(file: Path | None) -> RegistriesDocument:
    """The settings; without a file, those that hold where nothing is said."""
    path = file or default_file()
    if path is None:
        return RegistriesDocument(schema=SCHEMA)
    try:
        with open_regular(path) as stream:
            raw = b"".join(bounded(stream, _BYTES))
    except FileNotFoundError as error:
        if file is None:
            return RegistriesDocument(schema=SCHEMA)
        raise UsageError(f"--registries {path}", "is not there") from error
    except OSError as error:
        raise UsageError(f"registries {path}", f"cannot be read: {error.strerror}") from error
    try:
        value = tomllib.loads(raw[:_BYTES].decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise DocumentError(str(path), (f"is not TOML: {error}",)) from error
    require_schema(value, SCHEMA, subject=str(path))
    settings = convert(value, RegistriesDocument, subject=str(path))
    if problems := settings.problems():
        raise DocumentError(str(path), problems)
    return settings
