"""Writes the stand-ins of a project: bundles and the library as files, and bases into its store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imgbuild.adapters.durable import make_folder, write_file
from imgbuild.adapters.store import StagedStore
from imgbuild.digest import Digest
from imgbuild.ledger import Ledger

from tests.standin.images import bases, sources

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = ".imgbuild/stand-ins"


def make(project: Path) -> dict[str, str]:
    """Make all of them; returns what pins them: commits and digests by name."""
    folder = project / FOLDER
    make_folder(folder)
    pins = {}
    texts = {"adapter": sources.ADAPTER, "sparkring": sources.sparkring(), "recipes": sources.RECIPES}
    for name, files in texts.items():
        data, pins[name] = sources.bundle(files)
        write_file(folder / f"{name}.bundle", data)
    data = sources.nccl()
    write_file(folder / "libnccl.so.2", data)
    pins["nccl"] = str(Digest.of(data))
    store = StagedStore(project / ".imgbuild/store", ledger=Ledger())
    for tag in bases.LABELS:
        pins[tag] = str(bases.write(store, tag).digest)
    return pins
