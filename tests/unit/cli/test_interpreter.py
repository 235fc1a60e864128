"""What the program asks of the interpreter, seen at the end of a process."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """\
import atexit, gc, sys
from imgbuild.cli import main
default = (gc.get_threshold(), sys.getswitchinterval())
sys.argv = ["imgbuild", "--help"]
atexit.register(lambda: print({shown}))
main()
"""


def at_the_end(shown: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(shown=shown)], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()[-1]


def test_circles_are_looked_for_seldom_and_not_at_the_end() -> None:
    seldom = "gc.get_threshold()[0] > 10 * default[0][0], gc.get_threshold()[1:] == default[0][1:]"
    assert at_the_end(f"{seldom}, gc.isenabled(), gc.get_freeze_count() > 0") == "True True True True"


def test_a_thread_that_hashes_waits_less_for_one_that_computes_than_by_default() -> None:
    assert at_the_end("sys.getswitchinterval() * 4 < default[1]") == "True"
