"""The proofs of `bench.push`, each as a function that measures and prints its table."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from imgbuild.adapters.cache import Cache
from imgbuild.ledger import Ledger

from bench import bases, project, rivals

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bench.bases import BaseImage, Storage
    from bench.machine import Cost, Meter
    from bench.project import Project
    from bench.tools import Tools

GB = 1_000_000_000
RUNS = 3
_PUSHES = 7
"""of each base; the least time counts, since other work on the machine can only add to it."""
_LARGE_FILE = 100_000_000
_ROUND = 10_000_000
"""bytes above which tenths of a megabyte are not printed."""
_SHORT_SCALE = 0.05


@dataclass(slots=True, kw_only=True)
class Bench:
    """What all proofs share."""

    work: Path
    standin: Path
    cache: Cache
    tools: Tools
    host: str
    other: str
    storage: Storage
    meter: Meter
    short: bool
    pulls: bool
    engines: tuple[str, ...]
    pushed: bool = field(default=False, init=False)
    _made: tuple[BaseImage, Project] | None = field(default=None, init=False)

    def project(self, base: BaseImage) -> Project:
        """The change on a base, with a cache that has the new library, and those inventories that need no reading."""
        name = base.name.rpartition("/")[2]
        made = project.create(self.work / f"project-{name}", self.work / f"cache-{name}", self.host, base)
        copy_sources(self.cache.root, made.cache)
        bases.remember(Cache(made.cache, ledger=Ledger()), base)
        return made

    def real(self) -> tuple[BaseImage, Project]:
        """The base with many files, made once, and the change on it, locked."""
        if self._made is None:
            scale = _SHORT_SCALE if self.short else 1.0
            base = bases.b4(self.storage, self.standin, "bench/b4", scale=scale)
            print(f"base: {base.size / GB:.2f} GB in {len(base.layers)} layers, {base.files} files\n", flush=True)
            self._made = base, self.project(base)
        return self._made


def bytes_moved(bench: Bench) -> None:
    """Proof 4: neither bytes nor seconds follow the size of the base."""
    sizes = (0.25, 1.0) if bench.short else (0.25, 1.0, 4.0, 16.0)
    found = [
        (f"{size:g} GB", bases.sized(bench.storage, bench.standin, f"bench/base-{size:g}", int(size * GB)))
        for size in sizes
    ]
    claim = bases.claimed(bench.storage, bench.standin, "bench/base-33", 33 * GB, 60)
    many = bases.claimed(bench.storage, bench.standin, "bench/base-33-many", 33 * GB, 60, 400_000)
    found += [("33 GB, 60 layers, claimed", claim), ("the same with 400,000 files", many)]
    rows = [(label, base, bench.project(base)) for label, base in found]
    cold: dict[str, list[tuple[Cost, int]]] = {label: [] for label, _ in found}
    warm: dict[str, list[tuple[Cost, int]]] = {label: [] for label, _ in found}
    for _, _, made in rows:
        bench.meter.run(made.command("inventory", f"{bench.host}/{_of(made)}:base"))
        bench.meter.run(made.command("lock", project.NAME))
    for run in range(1 if bench.short else _PUSHES):
        for label, base, made in rows:
            made.forget()
            push = made.command("build", project.NAME, "--push", f"{bench.host}/{base.name}-out{run}")
            cost = bench.meter.run(push)
            cold[label].append((cost, _ledger(cost, bench.host)))
        for label, base, made in rows:
            made.touch()
            again = made.command("build", project.NAME, "--relock", "--push", f"{bench.host}/{base.name}-out{run}")
            cost = bench.meter.run(again)
            warm[label].append((cost, _ledger(cost, bench.host)))
    print("| base | push, s | more than the change, by our ledger | by the port | warm, s | MB |")
    print("|---|---|---|---|---|---|")
    for label, _, made in rows:
        change = _change(made)
        over = max(ledger - change for _, ledger in cold[label])
        port = max((_moved(cost) - change for cost, _ in cold[label]), default=0)
        print(
            f"| {label} | {_least(cold[label]):.2f} | {_kib(over)} | {_kib(port)} "
            f"| {_least(warm[label]):.2f} | {max(count for _, count in warm[label]) / 1e6:.2f} |",
            flush=True,
        )
    times = [_least(cold[label]) for label, _ in found[:-1]]
    print(f"\nslowest to fastest without the last row: {max(times) / min(times):.2f}; allowed: 1.10, and 256 KiB")


def rivalry(bench: Bench) -> None:
    """Proof 5: the same change by other tools, on a base of many files."""
    base, made = bench.real()
    reference = f"{bench.host}/{base.name}:base"
    reading = bench.meter.run(made.command("inventory", reference), disk=[made.cache])
    bench.meter.run(made.command("lock", project.NAME))
    bench.meter.run(made.command("build", project.NAME))
    change = bench.work / "change"
    project.extract_change(made, change)
    target = f"{bench.host}/bench/rival"
    job = rivals.Job(
        tools=bench.tools, meter=bench.meter, work=bench.work, change=change, base=reference, target=target
    )  # fmt: skip
    print(f"inventory of the base alone: {reading.seconds:.1f} s, {_mb(reading.peak)} MB of memory, ", end="")
    print(f"{_mb(reading.disk)} MB of cache\n")
    print("| tool | cold, s | to ours | warm, s | MB read | MB written | warm MB | disk, MB | memory, MB |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    link = "COPY --link, store=false"
    names = {suite: f"dockerd {bench.tools.version(suite, 'dockerd')}" for suite in bench.engines}
    quick: dict[str, Callable[[rivals.Job], rivals.Pair]] = {
        "imgbuild, inventory known": lambda job: _ours(bench, job, made),
        "tar and `crane append`": rivals.crane_append,
    }
    for suite, name in names.items():
        quick[f"{name}, {link}"] = partial(rivals.buildkit, suite=suite, recipe=link)
    pairs: dict[str, list[rivals.Pair]] = {label: [] for label in quick}
    # In turns, so that other work on the machine falls on all of them.
    for run in range(1 if bench.short else RUNS):
        for label, measure in quick.items():
            pairs[label].append(measure(replace(job, target=f"{target}-{run}")))
    own = _middle(pairs["imgbuild, inventory known"])[0].seconds
    for label, found in pairs.items():
        _rival_row(label, *_middle(found), own=own)
    _rival_row("imgbuild, base read first", _first(bench, base, made), None, own=own)
    if not bench.pulls:
        return
    _rival_row("buildah, COPY and push", *rivals.buildah(job), own=own)
    for suite, name in names.items():
        for recipe in ("COPY", "RUN"):
            _rival_row(f"{name}, {recipe}", *rivals.buildkit(job, suite, recipe), own=own)


def _middle(pairs: list[rivals.Pair]) -> rivals.Pair:
    """The cold run and the warm run of median time."""
    middle = [sorted(costs, key=lambda cost: cost.seconds)[len(pairs) // 2] for costs in zip(*pairs, strict=True)]
    return middle[0], middle[1]


def _rival_row(label: str, cold: Cost, warm: Cost | None, *, own: float) -> None:
    again, moved = ("", "") if warm is None else (f"{warm.seconds:.2f}", f"{_moved(warm) / 1e6:.2f}")
    print(
        f"| {label} | {cold.seconds:.2f} | {cold.seconds / own:.2f} | {again} | {_mb(cold.read)} "
        f"| {_mb(cold.written)} | {moved} | {_mb(cold.disk)} | {_mb(cold.peak)} |",
        flush=True,
    )


def copying(bench: Bench) -> None:
    """Proof 6: what is not in the target's registry goes from one to the other, and not over our disk."""
    base, made = bench.real()
    _ready(bench, base, made)
    spool = bench.work / "spool"
    spool.mkdir()
    env = {**os.environ, "TMPDIR": str(spool)}
    push = made.command("build", project.NAME, "--push", f"{bench.other}/bench/copied")
    ours = bench.meter.run(push, env=env, disk=[spool, made.store, made.cache])
    skopeo = shutil.which("skopeo")
    rows = [("imgbuild build --push", ours)]
    if skopeo is not None:
        names = (f"docker://{bench.host}/bench/ready:bench", f"docker://{bench.other}/bench/skopeo:bench")
        plain = ["--src-tls-verify=false", "--dest-tls-verify=false"]
        rows.append(("skopeo copy", bench.meter.run([skopeo, "copy", "--quiet", *plain, *names], env=env, space=spool)))
    _rows(rows)


def deep(bench: Bench) -> None:
    """Proof 7: every byte of a pushed image is read and hashed."""
    base, made = bench.real()
    _ready(bench, base, made)
    image = f"{bench.host}/bench/ready:bench"
    ours = bench.meter.run(made.command("verify", image, "--deep"), disk=[made.cache])
    _rows([("imgbuild verify --deep", ours)])
    crane = [bench.tools.program("sid", "crane"), "validate", "--remote", image]
    env = {"PATH": bench.tools.path("sid"), "HOME": str(bench.work)}
    _row("crane validate --remote", bench.meter.run(crane, env=env), own=ours.seconds)


def copy_sources(source: Path, target: Path) -> None:
    """The large artefacts of a cache and what was worked out from them; no inventory, and nothing of a base."""
    shutil.rmtree(target, ignore_errors=True)
    for path in (source / "blobs").rglob("*"):
        if path.is_file() and path.stat().st_size > _LARGE_FILE:
            there = target / path.relative_to(source)
            there.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(path, there)
            except OSError:
                shutil.copy2(path, there)
    if (source / "results").is_dir():
        shutil.copytree(source / "results", target / "results")


def _ours(bench: Bench, job: rivals.Job, made: Project) -> rivals.Pair:
    made.forget()
    push = made.command("build", project.NAME, "--relock", "--push", f"{job.target}-ours")
    cold = bench.meter.run(push, disk=[made.store, made.cache])
    made.touch()
    return cold, bench.meter.run(push)


def _first(bench: Bench, base: BaseImage, made: Project) -> Cost:
    made.forget()
    cache = bench.work / "cache-first"
    copy_sources(made.cache, cache)
    first = project.Project(root=made.root, cache=cache)
    push = first.command("build", project.NAME, "--push", f"{bench.host}/{base.name}-first")
    return bench.meter.run(push, disk=[first.store, cache])


def _ready(bench: Bench, base: BaseImage, made: Project) -> None:
    """Have the result in the first registry, and all that is known of the base in the cache; once."""
    if bench.pushed:
        return
    bench.pushed = True
    bench.meter.run(made.command("inventory", f"{bench.host}/{base.name}:base"))
    bench.meter.run(made.command("lock", project.NAME))
    bench.meter.run(made.command("build", project.NAME, "--push", f"{bench.host}/bench/ready"))


def _rows(rows: list[tuple[str, Cost]]) -> None:
    print("| tool | s | to ours | MB read | MB written | disk, MB | memory, MB |\n|---|---|---|---|---|---|---|")
    for label, cost in rows:
        _row(label, cost, own=rows[0][1].seconds)


def _row(label: str, cost: Cost, *, own: float) -> None:
    print(
        f"| {label} | {cost.seconds:.2f} | {cost.seconds / own:.2f} | {_mb(cost.read)} "
        f"| {_mb(cost.written)} | {_mb(cost.disk)} | {_mb(cost.peak)} |",
        flush=True,
    )


def _of(made: Project) -> str:
    text = (made.root / "locks/bench.toml").read_text()
    return text.partition('reference = "')[2].partition('"')[0].partition("/")[2]


def _result(cost: Cost) -> Any:
    return json.loads(cost.output)["result"]


def _ledger(cost: Cost, host: str) -> int:
    rows = _result(cost).get("moved", [])
    return sum(row["read"] + row["written"] for row in rows if row["place"] == host)


def _change(made: Project) -> int:
    lock = json.loads((made.root / "locks/bench.lock.json").read_text())
    return sum(int(layer["size"]) for layer in lock["result"]["layers"])


def _moved(cost: Cost) -> int:
    return (cost.read or 0) + (cost.written or 0)


def _least(runs: list[tuple[Cost, int]]) -> float:
    return min(cost.seconds for cost, _ in runs)


def _mb(count: int | None) -> str:
    if count is None:
        return "?"
    return f"{count / 1e6:,.{0 if count > _ROUND else 1}f}"


def _kib(count: int) -> str:
    return f"{count / 1024:.0f} KiB"
