"""The real thing: `mini` on the stand-in base, in many surroundings, and seen by programs that are not ours."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from imgbuild.adapters.cache import default_folder
from imgbuild.content.tree import Tree

from tests.support import outside
from tests.support.unpacked import differences

pytestmark = pytest.mark.mini

REPOSITORY = Path(__file__).parents[2]
BUILDS = 30


@pytest.fixture(scope="session")
def standin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the stand-in base, made from the pinned parts."""
    store = tmp_path_factory.mktemp("standin") / "store"
    script = REPOSITORY / "tests" / "standin" / "make.py"
    subprocess.run([sys.executable, script, "--store", store, "-q"], check=True, timeout=600)
    return store


def place(folder: Path, standin: Path, *, seed: int = 0) -> Path:
    """A copy of the repository's inputs with a store of its own; blobs of the base are hard links."""
    project = folder / "project"
    names = ["locks", "layers"]
    random.Random(seed).shuffle(names)
    for name in names:
        found = sorted(path for path in (REPOSITORY / name).rglob("*") if path.is_file())
        random.Random(seed).shuffle(found)
        for path in found:
            target = project / path.relative_to(REPOSITORY)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    shutil.copytree(standin, project / ".imgbuild" / "store", copy_function=os.link)
    index = project / ".imgbuild" / "store" / "index.json"
    text = index.read_bytes()
    index.unlink()
    index.write_bytes(text)
    return project


def seeded_cache(folder: Path) -> Path:
    """A cache that has the fetched parts, and nothing that an earlier build worked out."""
    cache = folder / "cache"
    common = default_folder()
    for name in ("blobs", "zig", "tools"):
        if (common / name).is_dir():
            shutil.copytree(common / name, cache / name, copy_function=os.link, symlinks=True)
    return cache


def build(
    project: Path, cache: Path, *, prefix: list[str], python: str, umask: int, **environment: str
) -> dict[str, Any]:
    env = {"PATH": os.environ["PATH"], "HOME": str(project), **environment}
    command = [*prefix, python, "-m", "imgbuild", "build", "mini", "--json", "--cache", str(cache)]
    done = subprocess.run(command, cwd=project, env=env, umask=umask, capture_output=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr.decode()
    document: dict[str, Any] = json.loads(done.stdout)["result"]
    return document


def surroundings(number: int) -> dict[str, Any]:
    """What build `number` differs in: every value occurs several times, and in other combinations."""
    other = os.environ.get("IMGBUILD_OTHER_PYTHON")
    if other is None and os.environ.get("CI"):
        pytest.fail("IMGBUILD_OTHER_PYTHON must name the newest Python in CI (.ci/newest-python makes one)")
    prefixes = [[], ["taskset", "-c", "0"], ["unshare", "-U", "--map-user=65534", "--map-group=65534"]]
    return {
        "prefix": prefixes[number % 3],
        "python": other if other and number % 2 else sys.executable,
        "umask": (0o022, 0o077, 0o000, 0o027)[number % 4],
        "TZ": ("UTC", "Pacific/Kiritimati", "America/St_Johns")[number % 3],
        "LC_ALL": ("C", "C.UTF-8", "POSIX", "tr_TR.UTF-8", "de_DE.ISO-8859-1")[number % 5],
        "PYTHONHASHSEED": str(number),
        "PYTHONOPTIMIZE": str(number % 3),
        "USER": f"user{number}",
        "SOURCE_DATE_EPOCH": str(1_000_000_000 + number),
    }


def test_C35_thirty_builds_in_other_surroundings_give_the_digest_of_the_lock(tmp_path: Path, standin: Path) -> None:
    outside.tool("taskset"), outside.tool("unshare")
    lock = json.loads((REPOSITORY / "locks" / "mini.lock.json").read_text())

    def one(number: int) -> str:
        folder = tmp_path / f"{'x' * (number % 7)}build {number}"
        project = place(folder, standin, seed=number)
        result = build(project, seeded_cache(folder), **surroundings(number))
        shutil.rmtree(folder)
        assert result["ok"]
        return str(result["manifest"])

    with ThreadPoolExecutor(2) as pool:
        digests = set(pool.map(one, range(BUILDS)))
    assert digests == {lock["result"]["manifest"]}


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory, standin: Path) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("built")
    project = place(folder, standin)
    return project, build(project, default_folder(), prefix=[], python=sys.executable, umask=0o022)


def test_readme_shows_how_many_checks_there_are(built: tuple[Path, dict[str, Any]]) -> None:
    findings = built[1]["findings"]
    # The adapter has a sitecustomize, as the real one.
    assert [row["check"] for row in findings if row["verdict"] != "match"] == ["python.startup"]
    line = f"identities   {len(findings) - 1} match, 0 differs, 1 not-checked"
    assert line in (REPOSITORY / "README.md").read_text().splitlines()


def manifests(store: Path) -> dict[str, dict[str, Any]]:
    index = json.loads((store / "index.json").read_text())
    found = {}
    for entry in index["manifests"]:
        raw = (store / "blobs" / entry["digest"].replace(":", "/")).read_text()
        found[entry["annotations"]["org.opencontainers.image.ref.name"]] = json.loads(raw)
    return found


def test_C28_leading_layers_and_base_history_are_those_of_the_base(built: tuple[Path, dict[str, Any]]) -> None:
    store = built[0] / ".imgbuild" / "store"
    found = manifests(store)
    base, image = found["standin-base"], found["mini"]
    assert image["layers"][: len(base["layers"])] == base["layers"]
    configs = [
        json.loads((store / "blobs" / item["config"]["digest"].replace(":", "/")).read_text()) for item in (base, image)
    ]
    count = len(configs[0]["rootfs"]["diff_ids"])
    assert configs[1]["rootfs"]["diff_ids"][:count] == configs[0]["rootfs"]["diff_ids"]
    assert configs[1]["history"][: len(configs[0]["history"])] == configs[0]["history"]


@pytest.mark.tools
def test_skopeo_and_umoci_see_the_image_as_we_do(tmp_path: Path, built: tuple[Path, dict[str, Any]]) -> None:
    store = built[0] / ".imgbuild" / "store"
    assert outside.inspect(f"oci:{store}:mini")["Digest"] == built[1]["manifest"]
    outside.unpack(store, "mini", tmp_path / "rootfs")
    assert differences(tmp_path / "rootfs", merged_tree(store, "mini")) == []


def merged_tree(store: Path, tag: str) -> Tree:
    """Our merged view of an image, from fresh inventories of its layers."""
    from imgbuild.adapters.cache import Cache
    from imgbuild.adapters.store import Store
    from imgbuild.ledger import Ledger
    from imgbuild.steps.context import Context
    from imgbuild.steps.inventories import take_inventories

    ledger = Ledger()
    opened = Store(store, ledger=ledger)
    context = Context(root=store, store=opened, cache=Cache(store.parent / "fresh", ledger=ledger), ledger=ledger)
    manifest = opened.manifest(opened.resolve(tag))
    config = opened.config(manifest.config)
    tree = Tree()
    for index, row in enumerate(take_inventories(context, manifest.layers, config.diff_ids, None)):
        tree.apply(row.inventory, index)
    return tree


def test_the_compiled_library_is_the_same_from_an_empty_compiler_cache(tmp_path: Path, standin: Path) -> None:
    project = place(tmp_path, standin)
    cache = seeded_cache(tmp_path)
    shutil.rmtree(cache / "zig", ignore_errors=True)
    result = build(project, cache, prefix=[], python=sys.executable, umask=0o022)
    assert result["ok"]


def test_verify_finds_one_flipped_byte_in_the_swapped_library(
    tmp_path: Path, built: tuple[Path, dict[str, Any]]
) -> None:
    project = tmp_path / "project"
    shutil.copytree(built[0], project, copy_function=os.link)
    layer = next(row for row in built[1]["layers"] if row["name"] == "mini-nccl")
    blob = project / ".imgbuild" / "store" / "blobs" / layer["digest"].replace(":", "/")
    damaged = bytearray(blob.read_bytes())
    damaged[100_000_000] ^= 1
    blob.unlink()
    blob.write_bytes(damaged)
    command = [sys.executable, "-m", "imgbuild", "verify", "mini", "--json", "--project", str(project)]
    done = subprocess.run(command, capture_output=True, check=False, timeout=300)
    assert done.returncode == 1
    findings = json.loads(done.stdout)["result"]["findings"]
    assert any(row["verdict"] == "differs" for row in findings)
    assert blob.read_bytes() == damaged
