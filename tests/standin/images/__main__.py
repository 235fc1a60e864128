"""`python -m tests.standin.images [PROJECT]`: make the stand-ins in a project, where they are missing."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.standin.images.make import make

if __name__ == "__main__":
    make(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[3])
