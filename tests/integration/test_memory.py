"""Inventories of large layers are made in bounded memory (issue 2, "Must hold" 5)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from imgbuild.config import GIB, MIB

from tests.support.large_layers import ENTRIES

LIMIT = 300 * MIB
"""bytes of resident memory at the peak."""
ROOT = Path(__file__).parents[2]


def measured(*arguments: str) -> dict[str, float]:
    """Run the inventory in a process of its own, so that nobody else's memory counts."""
    answer = subprocess.run(
        [sys.executable, "-m", "tests.support.large_layers", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    found: dict[str, float] = json.loads(answer.stdout)
    return found


@pytest.mark.parametrize("name", ["file", "library"])
def test_a_layer_with_a_file_of_a_gibibyte_is_inventoried_in_bounded_memory(name: str) -> None:
    found = measured(name)
    assert (found["entries"], found["bytes"]) == (1, GIB + 512 + 1024)
    assert found["scan_peak"] < LIMIT


def test_a_layer_with_200_000_entries_is_inventoried_in_bounded_memory() -> None:
    found = measured("entries")
    assert found["entries"] == ENTRIES
    assert found["scan_peak"] < LIMIT
