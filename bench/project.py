"""The change that is measured, as a project of imgbuild: NCCL swapped, two texts patched, 20 small files, our receipt.

The steps and patches are those of `mini`. What changes often, the small files, has the last layer of its own. The same
files for other tools are taken out of the layers that were built.
"""

from __future__ import annotations

import json
import shutil
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imgbuild import jsontext
from imgbuild.adapters.store import Store
from imgbuild.ledger import Ledger

if TYPE_CHECKING:
    from bench.bases import BaseImage

ROOT = Path(__file__).parents[1]
NAME = "bench"
SMALL_FILES = 20
_LIBRARY = "libnccl.so.2"
_SOURCES = ("nccl", "nccl-wheel")
_MINI = ("mini-sglang", "mini-nccl")
_DEFINITION = """\
schema = "imgbuild/image/v1"
name = "bench"
title = "the change that is measured"
platform = "linux/arm64"
epoch = 1767225600
layers = ["mini-sglang", "mini-nccl", "bench-files"]
tags = ["bench"]

[base]
reference = "{reference}"
tag = "base"

[limits]
bytes = 300_000_000

"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """A project on disk with its own store and cache."""

    root: Path
    cache: Path

    @property
    def store(self) -> Path:
        return self.root / ".imgbuild/store"

    def command(self, *arguments: str) -> list[str]:
        """A run of imgbuild on this project."""
        verb, *rest = arguments
        own = ["--project", str(self.root), "--store", str(self.store), "--cache", str(self.cache)]
        return [sys.executable, "-m", "imgbuild", verb, *rest, *own, "--json"]

    def touch(self) -> None:
        """Change one byte of a small file."""
        path = self.root / "layers/bench-files/files/00.txt"
        text = path.read_text()
        path.write_text(f"{int(text[:8]) + 1:08}{text[8:]}")

    def forget(self) -> None:
        """Empty the store."""
        shutil.rmtree(self.store, ignore_errors=True)


def create(root: Path, cache: Path, host: str, base: BaseImage) -> Project:
    """Write definition, layers and a lock that has the pins of the sources, so that no package index is asked."""
    shutil.rmtree(root, ignore_errors=True)
    for name in _MINI:
        shutil.copytree(ROOT / "layers" / name, root / "layers" / name)
    files = root / "layers/bench-files/files"
    files.mkdir(parents=True)
    steps = ['schema = "imgbuild/layer/v1"\ntitle = "small files that change often"\n']
    for number in range(SMALL_FILES):
        name = f"{number:02}.txt"
        (files / name).write_text(f"{number:08}\n" + "what an adapter is made of\n" * 100)
        steps.append(f'[[step]]\nkind = "file"\nsource = "files/{name}"\npath = "/opt/bench/{name}"\n')
    (root / "layers/bench-files/layer.toml").write_text("\n".join(steps))
    (root / "locks").mkdir()
    mini = (ROOT / "locks/mini.toml").read_text()
    definition = _DEFINITION.format(reference=f"{host}/{base.name}")
    wanted = [f"[sources.{name}]" for name in _SOURCES]
    parts = [part for part in mini.split("\n\n") if part.startswith((*wanted, "# What the swapped", "[[library"))]
    (root / "locks/bench.toml").write_text(definition + "\n\n".join(parts) + "\n")
    lock: dict[str, Any] = json.loads((ROOT / "locks/mini.lock.json").read_text())
    lock["image"] = NAME
    lock["pins"]["files"] = []
    lock["pins"]["sources"] = [row for row in lock["pins"]["sources"] if row["name"] in _SOURCES]
    del lock["facts"], lock["result"]
    (root / "locks/bench.lock.json").write_bytes(jsontext.dumps(lock))
    return Project(root=root, cache=cache)


def extract_change(project: Project, target: Path) -> None:
    """What the built image adds or replaces, but lock and receipt, below `library/` and `rest/`."""
    store = Store(project.store, ledger=Ledger())
    manifest = store.manifest(store.resolve(NAME))
    added = json.loads((project.root / "locks/bench.lock.json").read_text())["result"]["layers"]
    shutil.rmtree(target, ignore_errors=True)
    for layer in manifest.layers[-len(added) : -1]:
        with tarfile.open(store.path(layer.digest)) as archive:
            for member in archive:
                source = archive.extractfile(member) if member.isfile() else None
                if source is None or "/.wh." in member.name:
                    continue
                path = target / ("library" if member.name.endswith(_LIBRARY) else "rest") / member.name
                path.parent.mkdir(parents=True, exist_ok=True)
                with source, path.open("wb") as file:
                    shutil.copyfileobj(source, file)
                path.chmod(member.mode)
