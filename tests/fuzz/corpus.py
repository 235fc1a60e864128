"""`python -m tests.fuzz.corpus [TARGET]...`: of what searches found, keep what makes the code do something of its own.

One archive a target, `corpus/TARGET.zip`. Every input of it is given to its target by a test, and to the next search.
What once broke a promise stays, too: its name begins with `broken-`.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import imgbuild

from tests.fuzz.targets import TARGETS, run

if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "corpus"
SOURCES = str(Path(imgbuild.__file__).parent)
_EPOCH = (1980, 1, 1, 0, 0, 0)
_Edge = tuple[str, int, int]


def kept(name: str) -> dict[str, bytes]:
    """The inputs that are kept for a target, by their names."""
    path = FOLDER / f"{name}.zip"
    if not path.exists():
        return {}
    with zipfile.ZipFile(path) as archive:
        return {member: archive.read(member) for member in archive.namelist()}


def edges(name: str, data: bytes) -> frozenset[_Edge]:
    """Which line of ours followed which in a run of a target."""
    found: set[_Edge] = set()

    def trace(frame: FrameType, _event: str, _argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(SOURCES):
            return None
        file, last = frame.f_code.co_filename, frame.f_lineno

        def line(frame: FrameType, event: str, _argument: Any) -> Any:
            nonlocal last
            if event == "line":
                found.add((file, last, frame.f_lineno))
                last = frame.f_lineno
            return line

        return line

    sys.settrace(trace)
    try:
        run(name, data)
    finally:
        sys.settrace(None)
    return frozenset(found)


def choose(name: str, inputs: dict[str, bytes]) -> dict[str, bytes]:
    """Those inputs that do what no shorter one did, and all that once broke a promise."""
    seen: set[_Edge] = set()
    chosen: dict[str, bytes] = {}
    for key, data in sorted(inputs.items(), key=lambda item: (not item[0].startswith("broken-"), len(item[1]), item)):
        new = edges(name, data) - seen
        if new or key.startswith("broken-"):
            seen |= new
            chosen[key] = data
    return chosen


def main(names: list[str]) -> None:
    """Choose anew, from what is kept and what searches left below `.imgbuild/fuzz`."""
    for name in names or TARGETS:
        inputs = kept(name)
        for path in sorted((ROOT / ".imgbuild" / "fuzz" / name).glob("*")):
            if not path.name.startswith("broken-"):
                inputs.setdefault(path.name, path.read_bytes())
        chosen = choose(name, inputs)
        FOLDER.mkdir(exist_ok=True)
        with zipfile.ZipFile(FOLDER / f"{name}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for key in sorted(chosen):
                archive.writestr(zipfile.ZipInfo(key, _EPOCH), chosen[key], zipfile.ZIP_DEFLATED)
        print(f"{name}: {len(chosen)} of {len(inputs)} inputs, {(FOLDER / f'{name}.zip').stat().st_size} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
