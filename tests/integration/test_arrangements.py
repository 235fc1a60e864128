"""The gate of a swapped library on the arrangements of the corpus, and the corpus on the gate with a rule taken out."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.arrangements import CORPUS, arranged, cases, failures, read_case, scene
from tests.support.mutants import MUTANTS

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("folder", cases(), ids=lambda folder: folder.name)
def test_an_arrangement_gets_its_verdict(folder: Path) -> None:
    case = read_case(folder)
    assert failures(arranged(case)) == set(case["fails"])


def test_the_corpus_is_whole() -> None:
    folders = [path for path in CORPUS.iterdir() if path.is_dir()]
    assert len(folders) == len(cases()) >= 60
    lines = [(folder / "README.md").read_text() for folder in folders]
    assert all(line.count("\n") == 1 and len(line) > 20 for line in lines)
    assert len(set(lines)) == len(lines)
    verdicts = [bool(read_case(folder)["fails"]) for folder in folders]
    assert 20 <= sum(verdicts) <= len(verdicts) - 20


def test_the_scene_has_two_copies_and_nothing_wrong() -> None:
    assert failures(scene()) == set()


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_rule_that_is_taken_out_is_missed_by_the_corpus(mutant: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.mutants", mutant], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) != []
