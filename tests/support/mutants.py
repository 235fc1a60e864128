"""The gate with one rule taken out of it; `python -m tests.support.mutants NAME` judges the corpus by it.

A mutant is a piece of source that is replaced (`tests/corpus/nccl-mutants.toml`). If no arrangement of the corpus
notices, the corpus lacks one.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType, ModuleType

_FILE = Path(__file__).parents[1] / "corpus" / "nccl-mutants.toml"
MUTANTS: dict[str, dict[str, str]] = {row["name"]: row for row in tomllib.loads(_FILE.read_text())["mutant"]}


class _Mutant(importlib.machinery.SourceFileLoader):
    """A module from its file, with a piece replaced."""

    def __init__(self, module: str, path: str, old: str, new: str) -> None:
        super().__init__(module, path)
        self._pieces = old, new

    def get_code(self, fullname: str) -> CodeType:
        old, new = self._pieces
        text = Path(self.path).read_text()
        assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in {fullname}"
        return compile(text.replace(old, new), self.path, "exec")


class _Finder:
    def __init__(self, mutant: dict[str, str]) -> None:
        self._mutant = mutant

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None, /
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._mutant["module"]:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        assert spec is not None
        assert spec.origin is not None
        loader = _Mutant(fullname, spec.origin, self._mutant["old"], self._mutant["new"])
        return importlib.util.spec_from_loader(fullname, loader)


if __name__ == "__main__":
    sys.meta_path.insert(0, _Finder(MUTANTS[sys.argv[1]]))
    from tests.support.arrangements import wrong

    print(json.dumps(wrong()))
