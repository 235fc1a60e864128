"""The stand-in base, made for real: digests in both families, and the merged tree that the issues rely on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from imgbuild.adapters.cache import Cache, default_folder
from imgbuild.adapters.store import Store
from imgbuild.content.elf import newest_glibc
from imgbuild.content.loader import Linker
from imgbuild.errors import ToolError
from imgbuild.ledger import Ledger
from imgbuild.model.lockfile import LockedBase
from imgbuild.model.oci import Family
from imgbuild.steps import sources
from imgbuild.steps.base import open_base
from imgbuild.steps.context import Context
from imgbuild.steps.inventories import take_inventories
from imgbuild.steps.view import View

from tests.standin import compiled, layers, make, pins
from tests.standin.stack import EPOCH

if TYPE_CHECKING:
    from pathlib import Path

    from imgbuild.content.node import Node

pytestmark = pytest.mark.mini

SITE = layers.SITE.encode()
NCCL = SITE + b"/nvidia/nccl/lib/libnccl.so.2"
SYSTEM_NCCL = b"usr/lib/aarch64-linux-gnu/libnccl.so.2.28.3"
SHARED_CACHE = default_folder()
"""Taken once, so that large parts are downloaded once a machine, whatever a test sets."""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(make.ROOT / "tests/standin/make.py"), *arguments],
        check=False,
        capture_output=True,
        text=True,
        cwd="/",
    )


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the base in both families."""
    folder = tmp_path_factory.mktemp("standin") / "store"
    for family in make.TAGS:
        result = run("--store", str(folder), "--cache", str(SHARED_CACHE), "--family", family)
        assert result.returncode == 0, result.stderr
    return folder


@pytest.fixture
def store(made: Path) -> Store:
    return Store(made, ledger=Ledger())


@pytest.fixture(scope="session")
def view(made: Path) -> View:
    ledger = Ledger()
    store = Store(made, ledger=ledger)
    context = Context(
        root=make.ROOT, store=store, cache=Cache(SHARED_CACHE, ledger=ledger), ledger=ledger, offline=True
    )
    descriptor = store.resolve("standin-base")
    locked = LockedBase(
        reference="localhost/imgbuild/standin-base",
        manifest=descriptor.digest,
        media_type=descriptor.media_type,
        manifest_size=descriptor.size,
        config=store.manifest(descriptor).config.digest,
    )
    base = open_base(context, locked, platform="linux/arm64", facts=None)
    return View(context, base, (), ())


def at(view: View, path: str) -> Node:
    found = view.tree.get(path.encode())
    assert found is not None, path
    return found


def text(view: View, path: str) -> str:
    data = view.read(path.encode())
    assert data is not None, path
    return data.decode()


@pytest.mark.parametrize("family", sorted(make.TAGS))
def test_an_empty_store_gets_the_recorded_digest_in_each_family(store: Store, tmp_path: Path, family: str) -> None:
    assert store.resolve(make.TAGS[family]).digest == pins.expected(family)
    result = run("--store", str(tmp_path / "s"), "--cache", str(SHARED_CACHE), "--family", family, "--offline")
    assert result.returncode == 0, result.stderr
    again = Store(tmp_path / "s", ledger=Ledger())
    assert again.resolve(make.TAGS[family]).digest == pins.expected(family)
    assert str(pins.expected(family)) in result.stdout


def test_both_families_hold_the_same_bytes_under_their_own_media_types(store: Store) -> None:
    oci, docker = (store.manifest(store.resolve(make.TAGS[name])) for name in ("oci", "docker"))
    assert (oci.family, docker.family) == (Family.OCI, Family.DOCKER)
    assert [blob.digest for blob in oci.layers] == [blob.digest for blob in docker.layers]
    assert oci.config.digest == docker.config.digest
    assert len(oci.layers) == 5


def test_every_blob_of_the_base_has_its_digest(store: Store) -> None:
    manifest = store.manifest(store.resolve("standin-base"))
    for blob in (manifest.config, *manifest.layers):
        store.verify(blob.digest, blob.size, subject=str(blob.digest))


def test_a_base_that_is_there_needs_neither_network_nor_cache_nor_time(made: Path, tmp_path: Path) -> None:
    before = time.monotonic()
    result = run("--store", str(made), "--cache", str(tmp_path / "none"), "--offline")
    assert result.returncode == 0, result.stderr
    assert "is there already" in result.stdout
    assert time.monotonic() - before < 1.0
    assert not (tmp_path / "none").exists()


def test_a_base_with_a_missing_blob_is_made_again(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path / "s", copy_function=os.link)
    store = Store(tmp_path / "s", ledger=Ledger())
    lost = store.manifest(store.resolve("standin-base")).layers[3]
    store.path(lost.digest).unlink()
    result = run("--store", str(tmp_path / "s"), "--cache", str(SHARED_CACHE), "--offline", "-q")
    assert (result.returncode, result.stdout) == (0, ""), result.stderr
    assert store.has(lost.digest, lost.size)


def test_another_digest_than_the_recorded_one_is_refused_and_gets_no_tag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = pins.expected("oci")
    monkeypatch.setattr(pins, "PINS", tmp_path / "pins.toml")
    wrong = "sha256:" + "0" * 64
    pins.PINS.write_text((make.ROOT / "tests/standin/pins.toml").read_text().replace(str(good), wrong))
    arguments = ["--store", str(tmp_path / "s"), "--cache", str(SHARED_CACHE), "--offline"]
    assert make.main(arguments) == 4
    said = capsys.readouterr().err
    assert wrong in said
    assert str(good) in said
    assert "--accept" in said
    assert Store(tmp_path / "s", ledger=Ledger()).tags() == {}

    before = pins.PINS.read_text()
    assert make.main([*arguments, "--accept"]) == 0
    assert pins.PINS.read_text() == before.replace(wrong, str(good))
    assert Store(tmp_path / "s", ledger=Ledger()).resolve("standin-base").digest == good


@pytest.mark.parametrize("host", ["linux-x86_64", "linux-aarch64", "macos-x86_64", "macos-arm64"])
def test_each_kind_of_host_has_a_compiler(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "host_key", lambda: host)
    system, _, machine = host.replace("macos", "macosx").partition("-")
    assert pins.zig().filename.endswith(f"_{machine}.whl")
    assert system in pins.zig().filename


def test_a_host_without_a_compiler_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "host_key", lambda: "plan9-vax")
    with pytest.raises(ToolError, match="plan9-vax"):
        pins.zig()


def test_offline_without_the_parts_is_exit_code_5(tmp_path: Path) -> None:
    result = run("--store", str(tmp_path / "s"), "--cache", str(tmp_path / "none"), "--offline")
    assert result.returncode == 5
    assert "OFFLINE_MISS" in result.stderr


def test_C08_system_links_lead_into_usr(view: View) -> None:
    assert [at(view, name).link for name in ("bin", "lib", "sbin")] == [b"usr/bin", b"usr/lib", b"usr/sbin"]
    assert view.resolve(b"lib/aarch64-linux-gnu/libnccl.so.2") == SYSTEM_NCCL
    assert view.resolve(b"lib/ld-linux-aarch64.so.1") == b"usr/lib/aarch64-linux-gnu/ld-linux-aarch64.so.1"
    assert "Ubuntu 24.04" in text(view, "etc/os-release")
    assert "Package: libnccl2" in text(view, "var/lib/dpkg/status")


def test_C09_every_layer_repeats_its_parents_and_only_etc_changes_its_metadata(view: View) -> None:
    seen: dict[str, tuple[int, ...]] = {}
    changed = []
    layers = take_inventories(view._context, view.base.manifest.layers, view.base.config.diff_ids, None)
    for inventory in (layer.inventory for layer in layers):
        here = {entry.path for entry in inventory.entries}
        for entry in inventory.entries:
            parent = entry.path.rpartition("/")[0]
            assert not parent or parent in here
            if entry.type == "directory":
                facts = (entry.mode, entry.uid, entry.gid, entry.mtime)
                if seen.setdefault(entry.path, facts) != facts:
                    changed.append(entry.path)
                    seen[entry.path] = facts
    assert changed == ["etc"]
    assert at(view, "etc").mtime == EPOCH + 172_800


def test_the_later_layer_removes_hides_links_and_replaces(view: View) -> None:
    assert view.tree.get(b"usr/share/doc/standin/removed-later.txt") is None
    assert sorted(at(view, "opt/standin/cache").children) == [b"fresh.txt"]
    assert at(view, "opt/standin/data/tokenizer.json") == at(view, "opt/standin/data/tokenizer.link.json")
    assert "layer 4" in text(view, "etc/motd")
    assert at(view, "etc/motd").layer == 4
    assert at(view, "usr/bin/standin-su").mode == 0o4755
    assert at(view, "opt/standin/scratch").mode == 0o1777
    assert at(view, "opt/standin/data/größe-データ.txt").size == 26
    assert dict(at(view, "opt/standin/data/labelled.bin").xattrs)["user.standin.raw"] == b"\x00\xff\n="
    assert at(view, "opt/standin/unused").is_directory


def test_P70_one_record_row_does_not_match_from_the_start_and_all_others_do(view: View) -> None:
    wrong, right = [], 0
    for distribution in view.installed:
        assert distribution.problem is None
        for row in distribution.rows:
            node = at(view, row.path.decode())
            if row.sha256 is not None and (node.sha256, node.size) != (row.sha256, row.size):
                wrong.append(row.path)
            right += row.sha256 == node.sha256
    assert wrong == [b"opt/sglang/bin/standin-helper"]
    assert {item.name: item.version for item in view.installed} == {
        "deep-ep": "1.2.1+standin",
        "nvidia-nccl-cu13": "2.29.7",
        "standin-helpers": "1.0.0",
        "torch": "2.13.0+standin",
    }
    assert right == 57 + 4 + 8 + 5
    assert text(view, f"{layers.SITE}/nvidia_nccl_cu13-2.29.7.dist-info/INSTALLER") == "pip\n"


def test_the_sources_are_those_of_sglang_with_stale_bytecode_beside_one(view: View) -> None:
    assert at(view, f"{layers.SOURCES}/sglang/srt/utils/auth.py").size == 7289
    assert "max_running_requests" in text(view, f"{layers.SOURCES}/sglang/srt/server_args.py")
    bytecode = view.read(layers.STALE_BYTECODE.encode())
    assert bytecode is not None
    assert bytecode[:4] == bytes.fromhex("cb0d0d0a")
    assert int.from_bytes(bytecode[12:16], "little") == 7289


def test_the_real_nccl_and_the_system_nccl_are_two_providers(view: View) -> None:
    real, system = view.tree.get(NCCL), view.tree.get(SYSTEM_NCCL)
    assert real is not None
    assert real.elf is not None
    assert system is not None
    assert system.elf is not None
    assert (real.size, real.elf.soname, real.elf.glibc_needed) == (237_975_080, "libnccl.so.2", "2.18")
    assert (system.elf.soname, len(system.elf.exports)) == ("libnccl.so.2", 101)
    assert {"ncclGetVersion", "ncclAllReduce", "ncclGetUniqueId"} <= set(system.elf.exports) < set(real.elf.exports)
    providers = [path for path, node in view.elf_files if node.elf and "ncclGetVersion" in node.elf.exports]
    assert sorted(providers) == sorted([NCCL, SYSTEM_NCCL])


def test_every_needed_library_of_every_file_is_in_the_base(view: View) -> None:
    linker = Linker(view, machine="aarch64")
    absent = [
        (path, name)
        for path, node in view.elf_files
        if node.elf is not None
        for name in node.elf.needed
        if linker.resolve(path, name).provider is None
    ]
    assert absent == []
    libc = at(view, "usr/lib/aarch64-linux-gnu/libc.so.6").elf
    assert libc is not None
    assert newest_glibc(libc.versions_defined) == "2.39"


def test_consumers_find_nccl_in_site_packages_by_rpath_and_by_runpath(view: View) -> None:
    linker = Linker(view, machine="aarch64")
    found = {}
    for path, node in view.elf_files:
        if node.elf is not None and "libnccl.so.2" in node.elf.needed:
            resolution = linker.resolve(path, "libnccl.so.2")
            assert resolution.provider == NCCL
            found[path.removeprefix(SITE + b"/").decode()] = (resolution.steps[-1].rule, len(node.elf.imports))
    assert found == {
        "deep_ep/libdeep_ep.so": ("runpath", 3),
        "torch/lib/libtorch_cuda.so": ("rpath", 46),
        "torch/lib/libtorch_python.so": ("rpath", 1),
    }
    torch = at(view, f"{layers.SITE}/torch/lib/libtorch_cuda.so").elf
    assert torch is not None
    assert (torch.rpath, torch.runpath) == (tuple(compiled.TORCH_RPATH.split(":")), ())


def test_all_symbols_that_consumers_import_are_exported_by_the_real_nccl_and_not_all_by_the_system_one(
    view: View,
) -> None:
    wanted = {
        name
        for path, node in view.elf_files
        if node.elf is not None
        for name in node.elf.imports
        if name.startswith("nccl")
    }
    real, system = view.tree.get(NCCL), view.tree.get(SYSTEM_NCCL)
    assert real is not None
    assert real.elf is not None
    assert system is not None
    assert system.elf is not None
    assert wanted <= set(real.elf.exports)
    assert "ncclCommSuspend" in wanted - set(system.elf.exports)


def test_the_config_has_what_a_build_must_keep(view: View) -> None:
    config = view.base.config
    assert (config.os, config.architecture) == ("linux", "arm64")
    assert dict(config.labels)["ai.sglang.build.commit"] == "e087e662ba1ac4ef7747537e2a9141085efd4561"
    assert config.variable("NVIDIA_VISIBLE_DEVICES") == "all"
    assert config.variable("NCCL_VERSION") is None
    assert config.history_layers == 5
    assert config.raw.count(b'"created_by"') == 6
    assert b'"x-standin":' in config.raw
