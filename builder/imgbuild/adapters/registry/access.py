"""The registries of one command: settings from disk, credentials from the user's client configuration, one wire."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from imgbuild.adapters.blobs import bounded, open_regular
from imgbuild.adapters.home import user_folder
from imgbuild.adapters.registry.credentials import CredentialStore
from imgbuild.adapters.registry.session import Registries, origin_for
from imgbuild.adapters.registry.wire import Wire
from imgbuild.config import MIB
from imgbuild.errors import DocumentError, UsageError
from imgbuild.model.decode import convert, require_schema
from imgbuild.model.registries import SCHEMA, RegistriesDocument

if TYPE_CHECKING:
    from collections.abc import Callable

    from imgbuild.adapters.registry.patience import Patience
    from imgbuild.adapters.registry.wire import Times
    from imgbuild.ledger import Ledger

_BYTES = 1 * MIB


def default_file() -> Path | None:
    """`$XDG_CONFIG_HOME/imgbuild/registries.toml`, else `~/.config/imgbuild/registries.toml`; None without a home.

    Not a file of the project: a checkout must not be able to say where credentials go without encryption.
    """
    base = user_folder("XDG_CONFIG_HOME", ".config")
    return None if base is None else base / "imgbuild" / "registries.toml"


def connect(
    file: Path | None,
    *,
    ledger: Ledger,
    offline: bool,
    note: Callable[[str], None],
    times: Times | None = None,
    patience: Patience | None = None,
) -> Registries:
    """The registries; nothing is asked yet.

    Args:
        file: settings; None takes the default one, which need not be there.
        ledger: counts bytes.
        offline: whether asking is forbidden.
        note: told what goes wrong and is tried again.
        times: time limits of connections.
        patience: how often to try.

    Raises:
        UsageError: the settings cannot be read.
        DocumentError: they are wrong.
    """
    settings = read_settings(file)
    path = file or default_file()
    authorities = {
        origin_for(host, entry).place: _authority(entry.ca, path)
        for host, entry in settings.registry.items()
        if entry.ca is not None and path is not None
    }
    return Registries(
        settings=settings,
        credentials=CredentialStore.from_environment(os.environ),
        wire=Wire(ledger=ledger, times=times, authorities=authorities),
        patience=patience,
        offline=offline,
        note=note,
    )


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


def _authority(text: str, file: Path) -> Path:
    """The path of a PEM file; one that is not absolute is taken from the folder of the settings."""
    try:
        return file.absolute().parent / Path(text).expanduser()
    except RuntimeError as error:
        raise UsageError(f"authorities {text}", "name a home that is not there", where=str(file)) from error
