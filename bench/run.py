"""`make bench`: what the promises of README cost, each as a ratio to a program or a limit measured in the same run.

Prints a table. Every figure is the median of five runs after one that does not count. Needs the stand-in base
(`make base`) and, for the comparison, skopeo.
"""

from __future__ import annotations

import hashlib
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

RUNS = 5
ROOT = Path(__file__).parents[1]
STORE = ROOT / ".imgbuild" / "store"


def median(work: Callable[[], object], before: Callable[[], object] = lambda: None) -> float:
    """Seconds of one run."""
    times = []
    for _ in range(RUNS + 1):
        before()
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def program(*arguments: str) -> Callable[[], object]:
    """A run of imgbuild as its own process."""
    command = [sys.executable, "-m", "imgbuild", *arguments]
    return lambda: subprocess.run(command, cwd=ROOT, check=True, capture_output=True)


def layers(tag: str) -> list[Path]:
    """The blobs of an image's layers."""
    index = json.loads((STORE / "index.json").read_text())
    entry = next(e for e in index["manifests"] if e["annotations"]["org.opencontainers.image.ref.name"] == tag)
    manifest = json.loads(blob(entry["digest"]).read_text())
    return [blob(layer["digest"]) for layer in manifest["layers"]]


def blob(digest: str) -> Path:
    """Where a blob is."""
    return STORE / "blobs" / digest.replace(":", "/")


def limit(paths: list[Path]) -> None:
    """What one pass cannot avoid: sha256 of the stored bytes, inflate, sha256 of the tar, and again for its files."""
    for path in paths:
        stored, plain, files = hashlib.sha256(), hashlib.sha256(), hashlib.sha256()
        inflate = zlib.decompressobj(31)
        with path.open("rb") as stream:
            while data := stream.read(1 << 18):
                stored.update(data)
                out = inflate.decompress(data)
                plain.update(out)
                files.update(out)


def row(what: str, seconds: float, against: str, other: float) -> None:
    """One line of the table."""
    print(f"| {what} | {seconds:.3f} s | {against} | {other:.3f} s | {seconds / other:.2f} |")


def main() -> None:
    """Measure and print."""
    program("build", "mini")()
    size = sum(path.stat().st_size for path in layers("standin-base"))
    print(f"base {size / 1e6:.0f} MB, Python {sys.version.split()[0]}\n")
    print("| what | median | against | median | ratio |\n|---|---|---|---|---|")
    bare = median(lambda: subprocess.run([sys.executable, "-c", "pass"], check=True))
    row("imgbuild --help", median(program("--help")), "bare interpreter", bare)
    copying = shutil.which("skopeo")
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "cache"
        passing = median(
            program("inventory", "standin-base", "--cache", str(cache)),
            lambda: shutil.rmtree(cache, ignore_errors=True),
        )
        row(
            "inventory of the base, empty cache",
            passing,
            "hashing and inflating alone, 1 core",
            median(lambda: limit(layers("standin-base"))),
        )
        warm, verified = median(program("build", "mini")), median(program("verify", "mini"))
        if copying is not None:
            target = Path(folder) / "copy"
            command = [copying, "copy", "--quiet", f"oci:{STORE}:mini", f"oci:{target}:mini"]
            other = median(
                lambda: subprocess.run(command, check=True), lambda: shutil.rmtree(target, ignore_errors=True)
            )
            row("build mini, warm", warm, "skopeo copy of the result", other)
            row("verify mini", verified, "skopeo copy of the result", other)
        else:
            print(f"| build mini, warm | {warm:.3f} s | skopeo is not installed | | |")
            print(f"| verify mini | {verified:.3f} s | skopeo is not installed | | |")
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    print(f"\nlargest process: {peak / 1024:.0f} MB of memory")


if __name__ == "__main__":
    main()
