"""Run from the root of the adapter, or by the tests of the project it belongs to."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

ROWS = Path(__file__).resolve().parents[1] / "adapter" / "mini_adapter" / "rows.py"


def load() -> Any:
    spec = importlib.util.spec_from_file_location("mini_adapter_rows", ROWS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_ranks_tile_the_table() -> None:
    rows = load()
    for total in (0, 1, 7, 384_006_168):
        assert all(rows.tiles(total, tp) for tp in (1, 2, 3, 4, 8))


def test_bounds_are_floors() -> None:
    rows = load()
    assert [rows.bounds(10, rank, 3) for rank in range(3)] == [(0, 3), (3, 6), (6, 10)]
