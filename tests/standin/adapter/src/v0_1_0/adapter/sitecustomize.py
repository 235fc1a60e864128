"""Run by Python at start when this folder is on PYTHONPATH: leaves a marker and an import hook that only counts."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

MARKER = "mini-adapter 0.1.0"


class Watcher(MetaPathFinder):
    """Notes the first import of each watched module and finds nothing itself."""

    watched = frozenset({"sglang", "mini_adapter"})

    def __init__(self) -> None:
        self.seen: list[str] = []

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Never answers; the other finders go on."""
        del path, target
        if fullname in self.watched:
            self.seen.append(fullname)
        return None


WATCHER = Watcher()
sys.meta_path.insert(0, WATCHER)
sys.__dict__["mini_adapter_marker"] = MARKER
