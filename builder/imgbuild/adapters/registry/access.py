"""The registries of one command: settings from disk, credentials from the user's client configuration, one wire."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from imgbuild.adapters.registry.credentials import CredentialStore
from imgbuild.adapters.registry.session import Registries, origin_for
from imgbuild.adapters.registry.settings import default_file, read_settings
from imgbuild.adapters.registry.wire import Wire
from imgbuild.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from imgbuild.adapters.registry.patience import Patience
    from imgbuild.adapters.registry.wire import Times
    from imgbuild.ledger import Ledger


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
        note: told what goes wrong and is tried again, and whom one waits for.
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
        wire=Wire(ledger=ledger, times=times, authorities=authorities, note=note),
        patience=patience,
        offline=offline,
        note=note,
    )


def _authority(text: str, file: Path) -> Path:
    """The path of a PEM file; one that is not absolute is taken from the folder of the settings."""
    try:
        return file.absolute().parent / Path(text).expanduser()
    except RuntimeError as error:
        raise UsageError(f"authorities {text}", "name a home that is not there", where=str(file)) from error
