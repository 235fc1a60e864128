"""`make soak`: pushes of the real `mini`, each with one random fault, and kills of a push of a 2 GiB layer.

Both say what they found wrong by ending with an error; otherwise they print how the pushes ended and what was sent
twice. Needs the stand-in base and a built `mini` (`make demo`). It moves much: a push of `mini` is 254 MB.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from imgbuild.adapters.cache import Cache
from imgbuild.adapters.store import Store
from imgbuild.ledger import Ledger
from imgbuild.model.identity import Report
from imgbuild.steps.context import Context
from imgbuild.steps.push import move_tags, push

from tests.support import fault_registry as fr
from tests.support import killing
from tests.support.pushing import APP
from tests.support.reading import isolate
from tests.support.soaking import Subject, Tally, WrongError, blobs_of, file_blob, push_once

if TYPE_CHECKING:
    from imgbuild.adapters.registry.session import Registries
    from imgbuild.steps.push import Destination

ROOT = Path(__file__).parents[1]
STORE = ROOT / ".imgbuild" / "store"
REFERENCE = "localhost/standin/base"
MIB = 1 << 20
KILLS_AT_A_TIME = 10


def mini(folder: Path) -> Subject:
    """The image `mini` of the store: what it adds to its base is pushed, its base is in a registry."""
    store, cache = Store(STORE, ledger=Ledger()), Cache(folder / "cache", ledger=Ledger())
    base, result = (store.manifest(store.resolve(tag)) for tag in ("standin-base", "mini"))
    own = folder / "store"
    added = {blob.digest for blob in blobs_of(result)} - {blob.digest for blob in base.layers}
    (own / "blobs" / "sha256").mkdir(parents=True)
    for digest in added:
        (own / "blobs" / "sha256" / digest.encoded).hardlink_to(STORE / "blobs" / "sha256" / digest.encoded)
    only = Store(own, ledger=Ledger())

    def push_it(registries: Registries, destination: Destination) -> bool:
        context = Context(root=folder, store=only, cache=cache, ledger=Ledger(), connect=lambda: registries)
        context = context.based_on(REFERENCE)
        _, findings = push(context, destination.repository, result, result.raw)
        if not Report(findings=tuple(findings)).ok:
            return False
        move_tags(destination.repository, result, result.raw, destination.tags)
        return True

    files = STORE / "blobs" / "sha256"
    return Subject(
        base=base,
        base_blobs=tuple(file_blob(files / blob.digest.encoded) for blob in blobs_of(base)),
        known=(file_blob(files / result.config.digest.encoded),),
        result=result,
        push=push_it,
        reference=REFERENCE,
        chunk_bytes=(8 * MIB, 64 * MIB, 512 * MIB),
        keep_bytes=False,
    )


def soak_pushes(count: int, seconds: float, first: int, folder: Path) -> None:
    """Push until the count or the time is up."""
    subject = mini(folder)
    tally = Tally()
    start = time.monotonic()
    with pytest.MonkeyPatch.context() as changed:
        isolate(changed, folder)
        for seed in range(first, first + count):
            push_once(subject, seed, folder, changed, tally)
            if time.monotonic() - start > seconds:
                break
    total = sum(tally.ends.values())
    print(f"pushes of mini     {total} in {time.monotonic() - start:.0f} s, seeds {first} to {first + total - 1}")
    print(f"  faults that met  {tally.struck}")
    print(f"  went well        {tally.ends['ok']} with the fault, {total - tally.ends['ok']} after it was gone")
    for code, times in tally.ends.most_common():
        print(f"    {code:18} {times}")
    print(f"  tags looked at   {tally.tags}, none of them on what was not whole and read back")


def soak_kills(count: int, size: int, seconds: float, seed: int, folder: Path) -> None:
    """Kill uploads until the count or the time is up, some kills to each."""
    what = killing.blob(size, 64 * MIB)
    rng = random.Random(seed)  # noqa: S311 - no cryptography
    start = time.monotonic()
    rows: list[killing.Killed] = []
    sent = 0
    pushes = 0
    while len(rows) < count and time.monotonic() - start < seconds:
        with fr.FaultRegistry(switches=fr.Switches(keep_bytes=False)) as registry:
            kills = min(KILLS_AT_A_TIME, count - len(rows))
            found = killing.kill_at_random(registry, folder / f"kills-{pushes}", what, kills, rng)
            rows += found
            pushes += 1
            sent += killing.received(registry)
            need(str(what.digest) in registry.repository(APP).blobs, "the blob is not there")
            need(
                killing.received(registry) <= what.size + kills * what.chunk, "more was sent twice than a piece a kill"
            )
    again = [row.arrived - row.resumed_at for row in rows]
    need(min(again) >= 0 and max(again) <= what.chunk, f"a run went on at the wrong place: {rows}")
    print(f"kills              {len(rows)} in {pushes} pushes of {size >> 20} MiB, {time.monotonic() - start:.0f} s")
    print(f"  went on at       the byte that had arrived in {again.count(0)} of {len(again)}")
    print(f"  sent twice       at most {max(again)} bytes after a kill, of pieces of {what.chunk}")
    print(f"  bytes sent       {sent} for {pushes * size} bytes of blobs")


def need(holds: bool, what: str) -> None:
    """End where something is not as it must be."""
    if not holds:
        raise WrongError(what)


def main() -> int:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pushes", type=int, default=1000, help="pushes of mini with a fault each")
    parser.add_argument("--kills", type=int, default=50, help="kills of uploads")
    parser.add_argument("--size", type=int, default=2 << 30, help="bytes of the layer that is killed")
    parser.add_argument("--seconds", type=float, default=1e9, help="end each of the two after so long")
    parser.add_argument("--seed", type=int, default=0, help="the first of the seeds")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=ROOT / ".imgbuild") as folder:
        if options.kills:
            soak_kills(options.kills, options.size, options.seconds, options.seed, Path(folder))
        if options.pushes:
            soak_pushes(options.pushes, options.seconds, options.seed, Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
