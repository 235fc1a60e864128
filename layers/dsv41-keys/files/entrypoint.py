#!/usr/bin/env python3
"""Join the bearer keys of a file, one a line, into the environment of the server; print only their number."""

import os
import sys
from pathlib import Path

FIRST, LAST = 33, 126


def read_keys(path: Path) -> list[str]:
    """The keys; distinct, not empty, printable ASCII without commas."""
    keys = path.read_text(encoding="ascii").splitlines()
    sound = all(key and all(FIRST <= ord(letter) <= LAST and letter != "," for letter in key) for key in keys)
    if not keys or not sound or len(set(keys)) != len(keys):
        raise SystemExit("the key file must hold distinct, printable keys without commas or blanks, one a line")
    return keys


def main() -> None:
    """Read the keys, if a file is named, and become the adapter."""
    os.umask(0o077)
    if name := os.environ.pop("API_KEY_FILE", None):
        keys = read_keys(Path(name))
        os.environ["API_KEY"] = ",".join(keys)
        print(f"{len(keys)} keys", flush=True)
    os.execv(sys.executable, [sys.executable, "-u", "/opt/dsv41/boot.py", *sys.argv[1:]])


if __name__ == "__main__":
    main()
