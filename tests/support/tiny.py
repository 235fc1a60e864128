"""A tiny project and base with the shape of the real ones, made in milliseconds from synthetic parts.

The base has a site-packages with a distribution `nccl-like` whose library is an AArch64 ELF file of our own, a
consumer with RUNPATH, a second "system" copy, a libc with versions, and sources to patch. The definition uses every
step kind but `compile` and `run`.
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import zipfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from imgbuild.adapters.cache import Cache
from imgbuild.adapters.project import Project
from imgbuild.adapters.store import StagedStore
from imgbuild.ledger import Ledger
from imgbuild.model.oci import Descriptor, Family
from imgbuild.steps.build import build
from imgbuild.steps.context import Context
from imgbuild.steps.known import KnownLayers
from imgbuild.steps.lock import make_lock, write_lock

from tests.support.elf_builder import shared_object
from tests.support.made import EPOCH, files, library, record_hash, write_image

if TYPE_CHECKING:
    from pathlib import Path

    from imgbuild.content.changeset import Change
    from imgbuild.model.lockfile import Lock
    from imgbuild.steps.build import BuildOutcome

SITE = "opt/venv/lib/python3.12/site-packages"
LIBRARY = f"{SITE}/nvidia/nccl/lib/libnccl.so.2"


def make_wheel(name: str, version: str, files: dict[str, bytes]) -> tuple[str, bytes]:
    """A pure wheel: file name and bytes."""
    info = f"{name}-{version}.dist-info"
    members = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},{record_hash(data)},{len(data)}\n" for path, data in members.items())
    members[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, data in members.items():
            archive.writestr(zipfile.ZipInfo(path, (2020, 1, 1, 0, 0, 0)), data)
    return f"{name}-{version}-py3-none-any.whl", buffer.getvalue()


def base_layers(*, extra: dict[str, bytes] | None = None) -> list[list[Change]]:
    """The layers of the tiny base."""
    old = library("2.29.7")
    dist = f"{SITE}/nccl_like-2.29.7.dist-info"
    metadata = b"Metadata-Version: 2.1\nName: nccl-like\nVersion: 2.29.7\n"
    rows = {"nvidia/nccl/lib/libnccl.so.2": old, "nccl_like-2.29.7.dist-info/METADATA": metadata}
    record = "".join(f"{path},{record_hash(data)},{len(data)}\n" for path, data in rows.items()).encode()
    system = files(
        {
            "usr/lib/aarch64-linux-gnu/libc.so.6": shared_object(
                soname="libc.so.6", versions_defined=("GLIBC_2.17", "GLIBC_2.34", "GLIBC_2.39")
            ),
            "usr/lib/aarch64-linux-gnu/libnccl.so.2.28.3": library("2.28.3"),
            "etc/ld.so.conf": b"include /etc/ld.so.conf.d/*.conf\n",
            "etc/ld.so.conf.d/arm64.conf": b"/usr/lib/aarch64-linux-gnu\n",
            "etc/motd": b"hello\n",
            "usr/bin/tool": b"#!/bin/sh\n",
            "opt/unused/file": b"not needed\n",
        },
        links={
            "bin": "usr/bin",
            "lib": "usr/lib",
            "usr/lib/aarch64-linux-gnu/libnccl.so.2": "libnccl.so.2.28.3",
        },
    )
    packages = files(
        {
            LIBRARY: old,
            f"{dist}/METADATA": metadata,
            f"{dist}/RECORD": record + b"nccl_like-2.29.7.dist-info/RECORD,,\n",
            f"{SITE}/torch/lib/libtorch_cuda.so": shared_object(
                soname="libtorch_cuda.so",
                needed=("libnccl.so.2", "libc.so.6"),
                runpath="$ORIGIN/../../nvidia/nccl/lib:$ORIGIN",
                imports=("ncclAllReduce",),
            ),
        }
    )
    sources = files(
        {
            "srv/app/server.py": b"import os\n\nLIMIT = 48\n\n\ndef run():\n    return LIMIT\n",
            "srv/app/auth.py": b"def check(key):\n    return key == 'a'\n",
            "srv/app/__pycache__/auth.cpython-312.pyc": b"stale",
            **(extra or {}),
        }
    )
    return [system, packages, sources]


FIRST_PATCH = """--- a/app/auth.py
+++ b/app/auth.py
@@ -1,2 +1,2 @@
 def check(key):
-    return key == 'a'
+    return key in ('a', 'b')
"""
SECOND_PATCH = """--- a/app/auth.py
+++ b/app/auth.py
@@ -1,2 +1,2 @@
 def check(key):
-    return key in ('a', 'b')
+    return key in KEYS
--- /dev/null
+++ b/app/keys.py
@@ -0,0 +1 @@
+KEYS = ('a', 'b')
"""
LAYERS: dict[str, list[dict[str, Any]]] = {
    "tiny-packages": [
        {"kind": "wheel", "source": "helper", "site": f"/{SITE}", "python": "3.12"},
    ],
    "tiny-adapter": [
        {"kind": "git-tree", "source": "adapter", "path": "/opt/tiny", "licence": "LICENSE"},
        {"kind": "file", "source": "files/entry.sh", "path": "/bin/entry", "mode": "0755"},
    ],
    "tiny-app": [
        {
            "kind": "patch",
            "root": "/srv",
            "stages": ["patches/1.patch", "patches/2.patch"],
            "files": ["app/auth.py", "app/keys.py"],
        },
        {"kind": "edit", "path": "/srv/app/server.py", "find": "LIMIT = 48", "replace": "LIMIT = 8"},
        {"kind": "remove", "paths": ["/opt/unused"]},
    ],
    "tiny-nccl": [
        {"kind": "replace", "path": f"/{LIBRARY}", "source": "nccl", "distribution": "nccl-like"},
    ],
}
FILES = {
    "tiny-adapter/files/entry.sh": b"#!/bin/sh\nexec /opt/tiny/boot.py\n",
    "tiny-app/patches/1.patch": FIRST_PATCH.encode(),
    "tiny-app/patches/2.patch": SECOND_PATCH.encode(),
}


@dataclass
class Tiny:
    """A project in a folder. Change `image`, `layers`, `files`, `new_library` or `base`, then `write()`."""

    root: Path
    image: dict[str, Any] = field(default_factory=dict)
    layers: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: json.loads(json.dumps(LAYERS)))
    files: dict[str, bytes] = field(default_factory=lambda: dict(FILES))
    new_library: bytes = field(default_factory=lambda: library("2.30.7"))
    base: list[list[Change]] = field(default_factory=base_layers)
    base_env: list[str] = field(default_factory=lambda: ["PATH=/usr/bin"])
    family: Family = Family.OCI

    @property
    def store_path(self) -> Path:
        return self.root / ".imgbuild" / "store"

    @property
    def cache_path(self) -> Path:
        return self.root / "cache"

    def context(self, *, offline: bool = True) -> Context:
        ledger = Ledger()
        return Context(
            root=self.root,
            store=StagedStore(self.store_path, ledger=ledger),
            cache=Cache(self.cache_path, ledger=ledger),
            ledger=ledger,
            offline=offline,
        )

    def build(self, context: Context | None = None, **options: Any) -> BuildOutcome:
        """Build it from its lock, as the program does."""
        context, lock = context or self.context(), self.lock()
        assert isinstance(context.store, StagedStore)
        with context.store.session(), KnownLayers(context, lock.result, blobs=True) as known:
            return build(context, self.project().load("tiny"), lock, known, **options)

    def write(self) -> Tiny:
        """Write definition, layers, files, sources, and the base into the store."""
        context = self.context()
        (self.root / "locks").mkdir(exist_ok=True)
        bundle = self.root / "adapter.bundle"
        if not bundle.exists():
            bundle.write_bytes(adapter_bundle(self.root / "adapter-work"))
        for name, steps in self.layers.items():
            (self.root / "layers" / name).mkdir(parents=True, exist_ok=True)
            text = 'schema = "imgbuild/layer/v1"\ntitle = "test layer"\n' + "".join(
                "\n[[step]]\n" + _toml(step) for step in steps
            )
            (self.root / "layers" / name / "layer.toml").write_text(text)
        for path, data in self.files.items():
            target = self.root / "layers" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        self.write_definition()
        self.write_base(context)
        return self

    def write_locked(self) -> Tiny:
        """The same, and the first lock; pip finds the wheels in the project and asks nobody else."""
        self.write()
        self.wheel_folder()
        with pytest.MonkeyPatch.context() as changed:
            only_own_wheels(self.root, changed)
            outcome = make_lock(self.context(offline=False), self.project().load("tiny"), None, update=frozenset())
        write_lock(self.project().lock_path("tiny"), outcome.lock, old=self.project().lock("tiny"))
        return self

    def write_definition(self) -> None:
        """Write the definition only, as `image` changes it."""
        (self.root / "locks" / "tiny.toml").write_text(self._definition())

    def write_base(self, context: Context | None = None) -> Descriptor:
        """Write the base image into the store, tagged `base`."""
        store = (context or self.context()).store
        assert isinstance(store, StagedStore)
        settings = {"Env": self.base_env, "Labels": {"commit": "c0ffee"}, "Healthcheck": {"Test": ["NONE"]}}
        return write_image(store, self.base, "base", config=settings, family=self.family)

    def forget_base(self) -> None:
        """Take what was found out about the base out of the cache; small files of it stay."""
        shutil.rmtree(self.cache_path / "inventories")
        facts = self.lock().facts
        assert facts is not None
        self.context().cache.path(facts.base_tree).unlink()

    def keep_wheels(self) -> dict[str, tuple[str, bytes]]:
        """The two wheels of the sources; put into the cache by digest, as a download would."""
        wheels = {
            "helper": make_wheel("helper", "1.0", {"helper/__init__.py": b"VALUE = 1\n"}),
            "nccl-wheel": make_wheel("nccl_like", "2.30.7", {"nvidia/nccl/lib/libnccl.so.2": self.new_library}),
        }
        for _, data in wheels.values():
            self.context().cache.put([data])
        return wheels

    def wheel_folder(self) -> Path:
        """A folder of the wheels for pip's --find-links."""
        folder = self.root / "wheels"
        folder.mkdir(exist_ok=True)
        for name, data in self.keep_wheels().values():
            (folder / name).write_bytes(data)
        return folder

    def project(self) -> Project:
        return Project(self.root)

    def lock(self) -> Lock:
        lock = self.project().lock("tiny")
        assert lock is not None
        return lock

    def _definition(self) -> str:
        image: dict[str, Any] = {
            "schema": "imgbuild/image/v1",
            "name": "tiny",
            "title": "a tiny image",
            "platform": "linux/arm64",
            "epoch": EPOCH,
            "layers": list(self.layers),
            "tags": ["tiny"],
            "base": {"reference": "localhost/test/base", "tag": "base", "labels": {"commit": "c0ffee"}},
            "limits": {"bytes": 10_000_000},
            "config": {"env": {"PYTHONPATH": "/opt/tiny"}, "entrypoint": ["/bin/entry"]},
            "sources": {
                "adapter": {"kind": "git", "repository": "adapter.bundle", "ref": "main", "licence": "Apache-2.0"},
                "helper": {
                    "kind": "wheel",
                    "name": "helper",
                    "version": "1.0",
                    "platforms": ["any"],
                    "python": "3.12",
                },
                "nccl-wheel": {
                    "kind": "wheel",
                    "name": "nccl_like",
                    "version": "2.30.7",
                    "platforms": ["any"],
                    "python": "3.12",
                },
                "nccl": {"kind": "wheel-member", "wheel": "nccl-wheel", "member": "nvidia/nccl/lib/libnccl.so.2"},
            },
            "library": {
                "nccl": {
                    "path": f"/{LIBRARY}",
                    "source": "nccl",
                    "soname": "libnccl.so.2",
                    "symbol": "ncclGetVersion",
                    "prefixes": ["nccl"],
                    "strings": ["NCCL version 2.30.7"],
                    "accept": [
                        {
                            "path": "/usr/lib/aarch64-linux-gnu/libnccl.so.2.28.3",
                            "reason": "the system's own copy, never found first",
                        }
                    ],
                }
            },
        }
        for key, value in self.image.items():
            if value is None:
                image.pop(key, None)
            else:
                image[key] = {**image[key], **value} if isinstance(value, dict) and key in image else value
        return _toml(image)


def only_own_wheels(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have pip find the wheels of a tiny project, and no others."""
    monkeypatch.setenv("PIP_FIND_LINKS", str(root / "wheels"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")


def copied(source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Tiny:
    """A tiny project of one's own, as a copy of another one; nothing of the user's settings matters to it."""
    root = folder / "project"
    shutil.copytree(source, root, symlinks=True)
    only_own_wheels(root, monkeypatch)
    for name in ("IMGBUILD_STORE", "IMGBUILD_CACHE", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return Tiny(root)


def adapter_bundle(work: Path) -> bytes:
    """A git bundle with one commit, always the same bytes of content."""
    work.mkdir(parents=True)
    (work / "LICENSE").write_text("Apache-2.0\n")
    (work / "boot.py").write_text("#!/usr/bin/env python3\nprint('tiny')\n")
    (work / "boot.py").chmod(0o755)
    (work / "lib").mkdir()
    (work / "lib" / "mod.py").write_text("X = 1\n")
    (work / "lib" / "link.py").symlink_to("mod.py")
    env = {
        "PATH": "/usr/bin:/bin:/usr/local/bin",
        "HOME": str(work),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "t",
        "GIT_AUTHOR_EMAIL": "t@t",
        "GIT_AUTHOR_DATE": "1700000000 +0000",
        "GIT_COMMITTER_NAME": "t",
        "GIT_COMMITTER_EMAIL": "t@t",
        "GIT_COMMITTER_DATE": "1700000000 +0000",
    }
    for arguments in (
        ["init", "-q", "-b", "main"],
        ["add", "-A"],
        ["commit", "-qm", "one"],
        ["bundle", "create", "-q", "out.bundle", "main"],
    ):
        subprocess.run(["git", *arguments], cwd=work, env=env, check=True)
    return (work / "out.bundle").read_bytes()


def _toml(value: dict[str, Any], prefix: str = "") -> str:
    """Enough TOML for these documents: nested values are written inline, as JSON-like tables."""
    return "".join(f"{key} = {_inline(item)}\n" for key, item in value.items())


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_inline(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_inline(item) for item in value) + "]"
    return json.dumps(value)
