"""What the program asks of Python's collector of circles, seen at the end of a process."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """\
import atexit, gc, sys
from imgbuild.cli import main
default = gc.get_threshold()
atexit.register(lambda: print(gc.get_threshold()[0] > 10 * default[0], gc.get_threshold()[1:] == default[1:],
                              gc.isenabled(), gc.get_freeze_count() > 0))
sys.argv = ["imgbuild", "--help"]
main()
"""


def test_circles_are_looked_for_seldom_and_not_at_the_end() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "True True True True"
