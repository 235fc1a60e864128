"""What it moves to build the real images, on stand-ins: the change, whatever the base's size (`bench.push`, 8)."""

from __future__ import annotations

import json
import os
import re
import shutil
from typing import TYPE_CHECKING

from imgbuild.adapters.cache import Cache
from imgbuild.ledger import Ledger

from bench import bases
from bench.project import ROOT, Project
from bench.proofs import GB
from tests.standin.images import make as stand_ins

if TYPE_CHECKING:
    from bench.bases import BaseImage
    from bench.proofs import Bench

STAND_IN = "tests/standin/images"
_IMAGES = {"dsv41": "standin-dsv41", "dsv41-nvfp4": "standin-dsv41", "dsv41-aiden": "standin-aiden"}
_LAYERS = 20
_ALLOWED = 256 * 1024


def images(bench: Bench) -> None:
    """Each image on a base of 4 GB that is known: bytes to and from the registry besides those of the added layers."""
    print("| image | push, s | added, bytes | more than that, by our ledger | of the base in the registry, GB |")
    print("|---|---|---|---|---|")
    for image, tag in _IMAGES.items():
        made = Project(root=bench.work / f"project-{image}", cache=bench.work / f"cache-{image}")
        for name in ("locks", "layers", STAND_IN):
            shutil.copytree(ROOT / name, made.root / name, ignore=shutil.ignore_patterns("__pycache__"))
        stand_ins.make(made.root)
        base = bases.claimed(bench.storage, made.store, f"bench/{tag}", 4 * GB, _LAYERS, tag=tag)
        _replace_base(made, image, f"{bench.host}/{base.name}", base)
        for name in ("blobs", "tools", "zig"):
            shutil.copytree(bench.cache.root / name, made.cache / name, copy_function=os.link, symlinks=True)
        bases.remember(Cache(made.cache, ledger=Ledger()), base)
        words = ["--stand-in", str(made.root / STAND_IN)]
        library = f"nccl={made.root / stand_ins.FOLDER / 'libnccl.so.2'}"
        given = ["--source", library] if image != "dsv41-aiden" else []
        bench.meter.run(made.command("lock", image, *words, *given))
        made.forget()
        push = made.command("build", image, "--push", f"{bench.host}/{base.name}-{image}-out", *words)
        cost = bench.meter.run(push)
        result = json.loads(cost.output)["result"]
        added = sum(layer["size"] for layer in result["layers"])
        moved = sum(row["read"] + row["written"] for row in result["moved"] if row["place"] == bench.host)
        print(
            f"| {image} | {cost.seconds:.2f} | {added:,} | {(moved - added) / 1024:.0f} KiB | {base.size / GB:.2f} |",
            flush=True,
        )
    print(f"\nallowed: {_ALLOWED // 1024} KiB more than what is added")


def _replace_base(made: Project, image: str, reference: str, base: BaseImage) -> None:
    path = made.root / STAND_IN / f"{image}.toml"
    text = re.sub(r'reference = "[^"]*"\ntag = "[^"]*"', f'reference = "{reference}"\ntag = "base"', path.read_text())
    path.write_text(re.sub(r'manifest = "[^"]*"', f'manifest = "{base.manifest}"', text))
