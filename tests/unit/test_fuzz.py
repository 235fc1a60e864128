"""The fuzz targets on whole inputs, on damaged ones, and on what searches found; and a short search in CI."""

from __future__ import annotations

import importlib.util
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.corpus import choose, kept
from tests.fuzz.seeds import seeds
from tests.fuzz.targets import TARGETS, run

ROOT = Path(__file__).parents[2]
SECONDS = 3


def test_every_target_has_whole_inputs_that_it_accepts() -> None:
    assert seeds().keys() == TARGETS.keys()
    for name, rows in seeds().items():
        if name != "receipt":
            TARGETS[name](rows[0])


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_inputs_end_in_a_value_or_an_error_of_ours(name: str) -> None:
    chance = random.Random(name)
    for data in seeds()[name]:
        for _ in range(60):
            raw = bytearray(data[:20_000])
            for _ in range(chance.randrange(1, 6)):
                place = chance.randrange(len(raw) + 1)
                what = chance.randrange(3)
                if what == 0 and raw:
                    raw[min(place, len(raw) - 1)] ^= 1 << chance.randrange(8)
                elif what == 1:
                    del raw[place : place + chance.randrange(1, 40)]
                else:
                    raw[place:place] = chance.randbytes(chance.randrange(1, 12))
            run(name, bytes(raw))


@pytest.mark.parametrize("name", TARGETS)
def test_what_searches_found_ends_in_a_value_or_an_error_of_ours(name: str) -> None:
    inputs = kept(name)
    assert inputs
    for data in inputs.values():
        run(name, data)


def test_an_input_is_kept_for_what_it_alone_does_or_for_what_it_broke() -> None:
    short, long, other = b"{}", b'{"a":1}', b"[1.5]"
    inputs = {"1": short, "2": long, "3": long + b" ", "4": other, "broken-1": short}
    chosen = choose("json", inputs)
    assert "broken-1" in chosen
    assert "2" in chosen
    assert not {"1", "3"} & chosen.keys()


@pytest.mark.parametrize("name", TARGETS)
def test_a_short_search_finds_nothing(name: str) -> None:
    if importlib.util.find_spec("atheris") is None:
        if os.environ.get("CI") and sys.version_info < (3, 14):
            pytest.fail("atheris is not installed, and CI must have it")
        pytest.skip("atheris is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", name, str(SECONDS)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
