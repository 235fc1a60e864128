#!/usr/bin/env python3
"""Say which adapter this is, then become the command that was given."""

from __future__ import annotations

import os
import sys

VERSION = "0.1.0"


def main(argv: list[str]) -> int:
    """Print the version; with arguments, replace this process by them."""
    print(f"mini-adapter {VERSION}", flush=True)
    if argv:
        os.execvp(argv[0], argv)  # noqa: S606
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
