"""What every step is given: where things are kept, whether fetching is allowed, who counts and who watches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from imgbuild.progress import SILENT, Progress

if TYPE_CHECKING:
    from pathlib import Path

    from imgbuild.adapters.cache import Cache
    from imgbuild.adapters.store import Store
    from imgbuild.ledger import Ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The surroundings of one command."""

    root: Path
    """The repository, against which local sources are resolved."""
    store: Store
    cache: Cache
    ledger: Ledger
    offline: bool = False
    progress: Progress = SILENT
