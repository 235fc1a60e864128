#!/usr/bin/env python3
"""Join the bearer keys of a file, one a line, into the environment of the server; print only their number.

API_KEY_FILE names the file. Without it nothing is served: who wants no keys says so, by API_KEY_FILE=none.
"""

import os
import sys

FIRST, LAST = 33, 126
SERVER = "/opt/dsv41/boot.py"


def read_keys(name: str) -> list[str]:
    """The keys of a file; distinct, printable ASCII without commas. An empty last line is none."""
    try:
        with open(name, "rb") as file:
            lines = file.read().decode("ascii", "replace").replace("\r\n", "\n").split("\n")
    except OSError as error:
        raise SystemExit(f"API_KEY_FILE {name}: cannot be read: {error.strerror}") from None
    keys = lines[:-1] if lines[-1] == "" else lines
    for number, key in enumerate(keys, 1):
        if not key or not all(FIRST <= ord(letter) <= LAST and letter != "," for letter in key):
            raise SystemExit(f"API_KEY_FILE {name}: line {number} is no key: printable ASCII, no blanks, no commas")
        if key in keys[: number - 1]:
            raise SystemExit(f"API_KEY_FILE {name}: line {number} is a key that stands there before")
    if not keys:
        raise SystemExit(f"API_KEY_FILE {name}: has no key")
    return keys


def main() -> None:
    """Read the keys and become the server."""
    os.umask(0o077)
    name = os.environ.pop("API_KEY_FILE", "")
    if not name:
        raise SystemExit("API_KEY_FILE is not set: name a file with one key a line, or say API_KEY_FILE=none")
    if name == "none":
        print("no keys: everybody is served", flush=True)
    else:
        keys = read_keys(name)
        os.environ["API_KEY"] = ",".join(keys)
        print(f"{len(keys)} keys", flush=True)
    os.execv(sys.executable, [sys.executable, "-u", SERVER, *sys.argv[1:]])


if __name__ == "__main__":
    main()
