"""The tiny image in many surroundings: one manifest digest, the lock's (cases C27, C28, C35, P55).

`test_mini` does the same with the real one; this takes seconds, and also changes the user for real.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from imgbuild.adapters.store import Store
from imgbuild.ledger import Ledger

from tests.support import outside
from tests.support.scratch import forget_derived
from tests.support.tiny import Tiny

if TYPE_CHECKING:
    from collections.abc import Iterator

NOBODY = 65534
AS_NOBODY = f"""
import os, sys
from imgbuild.cli import run
first, second = sys.argv[1:]
arguments = ["build", "tiny", "--json", "--offline", "--project"]
# The interpreter may lie where only we can read: one build loads all that a build needs.
assert run([*arguments, first, "--cache", first + "/cache"]) == 0
print("\\x1e", flush=True)
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
sys.exit(run([*arguments, second, "--cache", second + "/cache"]))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What one build differs in."""

    folder: str = "project"
    umask: int = 0o022
    prefix: tuple[str, ...] = ()
    python: str = sys.executable
    nobody: bool = False
    warm: bool = False
    order: int | None = None
    variables: dict[str, str] = field(default_factory=dict)


OTHER = os.environ.get("IMGBUILD_OTHER_PYTHON", "")
ROWS = {
    "another folder": Surroundings(folder="a much longer name, with spaces and ünïcode/project"),
    "umask 000": Surroundings(umask=0o000),
    "umask 077": Surroundings(umask=0o077),
    "east of the date line": Surroundings(variables={"TZ": "Pacific/Kiritimati"}),
    "half an hour west": Surroundings(variables={"TZ": "America/St_Johns", "SOURCE_DATE_EPOCH": "1"}),
    "a Turkish locale": Surroundings(variables={"LC_ALL": "tr_TR.UTF-8", "LANG": "tr_TR.UTF-8", "LANGUAGE": "tr"}),
    "no locale": Surroundings(variables={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
    "another hash seed": Surroundings(variables={"PYTHONHASHSEED": "1"}),
    "a third hash seed, optimised": Surroundings(variables={"PYTHONHASHSEED": "4294967295", "PYTHONOPTIMIZE": "2"}),
    "no home, another name": Surroundings(variables={"HOME": "/nonexistent", "USER": "someone", "LOGNAME": "someone"}),
    "nobody": Surroundings(nobody=True),
    "one processor": Surroundings(prefix=("taskset", "-c", "0")),
    "layer files made in another order": Surroundings(order=1),
    "layer files made in a third order": Surroundings(order=2),
    "a cache that has all": Surroundings(warm=True),
    "another Python": Surroundings(python=OTHER or sys.executable),
}


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that every user can enter; pytest's are for us alone."""
    with tempfile.TemporaryDirectory(prefix="imgbuild-reproducible-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.parametrize("row", ROWS)
def test_C35_a_build_in_any_surroundings_gives_the_digest_of_the_lock(
    tiny_locked: Path, shared: Path, row: str
) -> None:
    given = ROWS[row]
    if given.nobody and os.geteuid() != 0:
        pytest.skip("only root can become another user")
    if given.prefix:
        outside.tool(given.prefix[0])
    if row == "another Python" and not OTHER:
        assert not os.environ.get("CI"), "IMGBUILD_OTHER_PYTHON must name another Python in CI (.ci/newest-python)"
        pytest.skip("IMGBUILD_OTHER_PYTHON names no other Python")
    tiny = placed(tiny_locked, shared / given.folder, given)
    result = built_by_nobody(tiny, shared) if given.nobody else built(tiny, given)
    locked = tiny.lock().result
    assert locked is not None
    assert result["manifest"] == str(locked.manifest)
    assert {layer["name"]: layer["diff_id"] for layer in result["layers"]} == {
        layer.name: str(layer.diff_id) for layer in locked.layers
    }
    assert result["tags"] == ["tiny"]


def test_the_surroundings_differ_from_those_of_the_lock_in_at_least_twelve_ways() -> None:
    assert sum(surroundings != Surroundings() for surroundings in ROWS.values()) >= 12


def test_C27_C28_P55_layers_diff_ids_and_history_begin_with_those_of_the_base(tiny: Tiny) -> None:
    built(tiny, Surroundings(variables={"SOURCE_DATE_EPOCH": "1"}))
    store = Store(tiny.store_path, ledger=Ledger())
    base, image = (store.manifest(store.resolve(tag)) for tag in ("base", "tiny"))
    configs = [json.loads(store.config(manifest.config).raw) for manifest in (base, image)]
    entries = [json.loads(manifest.raw)["layers"] for manifest in (base, image)]
    count = len(base.layers)
    assert count == 3
    assert entries[1][:count] == entries[0]
    assert configs[1]["rootfs"]["diff_ids"][:count] == configs[0]["rootfs"]["diff_ids"]
    assert configs[1]["history"][: len(configs[0]["history"])] == configs[0]["history"]
    assert len(configs[1]["history"]) == len(configs[0]["history"]) + len(image.layers) - count
    assert len(image.layers) > count


def placed(source: Path, root: Path, given: Surroundings) -> Tiny:
    """A copy of a locked project; with `order`, its files are made in another order, as directories list them."""
    files = sorted(path for path in source.rglob("*") if path.is_file() or path.is_symlink())
    if given.order is not None:
        random.Random(given.order).shuffle(files)
    for path in files:
        target = root / path.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target, follow_symlinks=False)
    for path in source.rglob("*"):
        if path.is_dir():
            (root / path.relative_to(source)).mkdir(parents=True, exist_ok=True)
    tiny = Tiny(root)
    if not given.warm:
        forget_derived(tiny.cache_path, tiny.lock())
        shutil.rmtree(tiny.cache_path / "git", ignore_errors=True)
    return tiny


def built(tiny: Tiny, given: Surroundings) -> dict[str, Any]:
    """Build with the program as a user runs it; returns the result of its document."""
    command = [*given.prefix, given.python, "-m", "imgbuild", "build", "tiny", "--json", "--offline"]
    done = subprocess.run(
        [*command, "--cache", str(tiny.cache_path)],
        cwd=tiny.root,
        env={"PATH": os.environ["PATH"], "HOME": str(tiny.root), **given.variables},
        umask=given.umask,
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr.decode()
    result: dict[str, Any] = json.loads(done.stdout)["result"]
    return result


def built_by_nobody(tiny: Tiny, shared: Path) -> dict[str, Any]:
    first = shared / "first"
    shutil.copytree(tiny.root, first, symlinks=True)
    for path in [tiny.root, *tiny.root.rglob("*")]:
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, str(first), str(tiny.root)],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tiny.root)},
        cwd=shared,
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert (tiny.store_path / "index.json").stat().st_uid == NOBODY
    result: dict[str, Any] = json.loads(done.stdout.decode().rpartition("\x1e")[2])["result"]
    return result
