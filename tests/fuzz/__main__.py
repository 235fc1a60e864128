"""`python -m tests.fuzz TARGET [SECONDS]`: atheris guides the search by what the code has not done yet.

It begins with whole inputs and with those that are kept. New ones go below `.imgbuild/fuzz/TARGET`;
`python -m tests.fuzz.corpus` keeps what is worth it. What breaks a promise is shown with its traceback and written
there as `broken-…`: put it into the archive of its target under such a name, with its mending.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["imgbuild"]):
    from tests.fuzz.corpus import kept
    from tests.fuzz.seeds import seeds
    from tests.fuzz.targets import TARGETS, run

ROOT = Path(__file__).parents[2]


def main() -> None:
    """Search."""
    name, seconds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 60
    if name not in TARGETS:
        raise SystemExit(f"there is no target {name!r}; there are: {', '.join(TARGETS)}")
    work = ROOT / ".imgbuild" / "fuzz" / name
    work.mkdir(parents=True, exist_ok=True)
    begin = {f"seed-{number}": data for number, data in enumerate(seeds()[name])} | kept(name)
    for key, data in begin.items():
        (work / key).write_bytes(data)
    options = [f"-max_total_time={seconds}", "-max_len=16384", "-timeout=10", "-rss_limit_mb=1024"]
    atheris.Setup([sys.argv[0], *options, f"-artifact_prefix={work}/broken-", str(work)], lambda data: run(name, data))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
