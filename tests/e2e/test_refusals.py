"""Every refusal that the program promises, triggered for real through the command line ("Must hold" 4).

A row sets up a tiny project that was built and tagged before, and says how the next command must refuse. Each is run
twice, for people and as `--json`; the store, its tags and the repository must be what they were.
"""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from typing import TYPE_CHECKING, Any

import pytest
from imgbuild.adapters.cache import Cache, default_folder
from imgbuild.adapters.store import Store
from imgbuild.cli import run
from imgbuild.cli.schemas import shipped
from imgbuild.digest import Digest
from imgbuild.ledger import Ledger
from imgbuild.steps.context import Context
from imgbuild.steps.sources import fetch_wheel, host_key
from jsonschema import Draft202012Validator

from tests.standin import pins
from tests.support.made import SYMBOLS, files, library
from tests.support.refusals import (
    LOCK,
    Finding,
    Refusal,
    blob,
    cached,
    commit_again,
    digest_of,
    flip,
    forge,
    locked,
    nearly_full,
    pin_wheel,
    relock,
    snapshot,
    source,
    states,
    swap_library,
)
from tests.support.tiny import FIRST_PATCH, LIBRARY, SITE, Tiny, base_layers, copied, make_wheel

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ELF_MACHINE = 18
"""Offset of `e_machine` in a 64-bit ELF file."""
REFUSALS: dict[str, Callable[[Tiny], Refusal]] = {}
FINDINGS: dict[str, Callable[[Tiny], Finding]] = {}


def refused(function: Callable[[Tiny], Refusal]) -> Callable[[Tiny], Refusal]:
    """A row that ends in an error."""
    REFUSALS[function.__name__] = function
    return function


def not_verified(function: Callable[[Tiny], Finding]) -> Callable[[Tiny], Finding]:
    """A row that is built and does not pass its verification."""
    FINDINGS[function.__name__] = function
    return function


@pytest.fixture
def tiny(tiny_built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tiny:
    """A built one."""
    return copied(tiny_built, tmp_path, monkeypatch)


def execute(tiny: Tiny, *arguments: str) -> int:
    cache = [] if arguments[0] == "plan" else ["--cache", str(tiny.cache_path)]
    return run([*arguments, "--project", str(tiny.root), *cache])


def validated(name: str, text: str) -> Any:
    document = json.loads(text)
    Draft202012Validator(json.loads(shipped(name))).validate(document)
    return document


@pytest.mark.parametrize("name", REFUSALS)
def test_it_is_refused_with_one_clear_error_and_nothing_changes(
    name: str, tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = REFUSALS[name](tiny)
    check_refusal(tiny, wanted, capsys)


def check_refusal(tiny: Tiny, wanted: Refusal, capsys: pytest.CaptureFixture[str]) -> None:
    before = snapshot(tiny)
    capsys.readouterr()

    assert execute(tiny, *wanted.command) == wanted.exit_code, capsys.readouterr()
    out, err = capsys.readouterr()
    assert out == ""
    # Between them stands, of a patch only, the hunk that does not fit.
    error, *block, hint = err.splitlines()
    assert error.startswith(f"error[{wanted.code}]: ")
    assert all(line.startswith("  ") for line in block)
    assert [text for text in wanted.says if text not in err] == [], err
    assert hint.startswith("  hint: ")
    assert snapshot(tiny) == before

    if wanted.again is not None:
        wanted.again()
    assert execute(tiny, *wanted.command, "--json") == wanted.exit_code
    out, err = capsys.readouterr()
    document = validated("error", out)["error"]
    assert err.splitlines() == [error, *block, hint]
    assert bool(block) == ("patch" in document)
    assert document["code"] == wanted.code
    assert document["exit_code"] == wanted.exit_code
    assert error == f"error[{wanted.code}]: {document['message']}"
    assert hint == f"  hint: {document['hint']}"
    assert snapshot(tiny) == before


@pytest.mark.parametrize("name", FINDINGS)
def test_it_is_built_but_not_tagged_and_the_finding_says_why(
    name: str, tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = FINDINGS[name](tiny)
    before = snapshot(tiny)
    capsys.readouterr()

    assert execute(tiny, "build", "tiny", "--offline") == 1
    out, err = capsys.readouterr()
    assert err == ""
    for text in (wanted.check, wanted.subject, f"expected {wanted.expected}", f"actual   {wanted.actual}"):
        assert text in out
    assert "NOT TAGGED" in out.splitlines()[-1]
    assert snapshot(tiny) == before

    assert execute(tiny, "build", "tiny", "--offline", "--json") == 1
    out, err = capsys.readouterr()
    assert err == ""
    result = validated("build-result", out)["result"]
    assert result["ok"] is False
    assert result["tags"] == []
    rows = [
        (row["expected"], row["actual"])
        for row in result["findings"]
        if (row["check"], row["subject"], row["verdict"], row["required"])
        == (wanted.check, wanted.subject, "differs", True)
    ]
    assert rows == [(wanted.expected, wanted.actual)]
    assert snapshot(tiny) == before


# Wrong digest of an input


@refused
def C58_the_base_manifest_is_damaged(tiny: Tiny) -> Refusal:
    pin = locked(tiny)["pins"]["base"]
    actual = flip(blob(tiny, pin["manifest"]))
    return Refusal(exit_code=4, code="DIGEST_MISMATCH", says=(pin["manifest"], actual))


@refused
def C58_the_base_config_is_damaged(tiny: Tiny) -> Refusal:
    pin = locked(tiny)["pins"]["base"]
    actual = flip(blob(tiny, pin["config"]))
    return Refusal(exit_code=4, code="DIGEST_MISMATCH", says=(pin["config"], actual))


@refused
def C58_a_base_layer_is_damaged_and_not_known_yet(tiny: Tiny) -> Refusal:
    layer = locked(tiny)["facts"]["base_layers"][1]["digest"]
    actual = flip(blob(tiny, layer))
    tiny.forget_base()
    return Refusal(exit_code=4, code="DIGEST_MISMATCH", says=(layer, actual))


@refused
def C58_a_base_layer_is_damaged_and_a_file_of_it_is_needed(tiny: Tiny) -> Refusal:
    layer = locked(tiny)["facts"]["base_layers"][2]["digest"]
    actual = flip(blob(tiny, layer))
    before = states(locked(tiny), "/srv/app/auth.py")[0]
    cached(tiny, before).unlink()
    return Refusal(exit_code=4, code="DIGEST_MISMATCH", says=(layer, actual))


@not_verified
def C58_a_base_layer_is_damaged_and_nothing_of_it_is_needed(tiny: Tiny) -> Finding:
    layer = locked(tiny)["facts"]["base_layers"][0]["digest"]
    actual = flip(blob(tiny, layer))
    return Finding(check="base.blob", subject=f"base layer {layer}", expected=layer, actual=actual)


@refused
def C58_a_base_layer_is_cut(tiny: Tiny) -> Refusal:
    layer = locked(tiny)["facts"]["base_layers"][1]
    path = blob(tiny, layer["digest"])
    path.write_bytes(path.read_bytes()[:-100])
    tiny.forget_base()
    says = (f"{layer['size']} bytes", f"{layer['size'] - 100} bytes")
    return Refusal(exit_code=4, code="DIGEST_MISMATCH", says=says)


@refused
def C58_a_wheel_in_the_cache_is_damaged(tiny: Tiny) -> Refusal:
    pin = source(locked(tiny), "helper")
    path = cached(tiny, pin["digest"])
    whole = path.read_bytes()
    actual = flip(path)

    def again() -> None:
        path.write_bytes(whole)
        flip(path)

    return Refusal(exit_code=4, code="DIGEST_MISMATCH", says=(pin["filename"], pin["digest"], actual), again=again)


@refused
def C58_the_library_in_the_cache_is_damaged_and_its_layer_has_to_be_made(tiny: Tiny) -> Refusal:
    return damaged_library(tiny, -1)


@refused
def C58_the_library_in_the_cache_is_damaged_where_its_facts_stand(tiny: Tiny) -> Refusal:
    return damaged_library(tiny, ELF_MACHINE)


def damaged_library(tiny: Tiny, at: int) -> Refusal:
    value = locked(tiny)
    pin = source(value, "nccl")
    path = cached(tiny, pin["digest"])
    whole = path.read_bytes()
    actual = flip(path, at)
    blob(tiny, next(row["digest"] for row in value["result"]["layers"] if row["name"] == "tiny-nccl")).unlink()

    def again() -> None:
        path.write_bytes(whole)
        flip(path, at)

    return Refusal(exit_code=4, code="DIGEST_MISMATCH", says=("nccl", pin["digest"], actual), again=again)


@refused
def the_library_in_the_wheel_is_another_one(tiny: Tiny) -> Refusal:
    value = locked(tiny)
    pin = source(value, "nccl")
    actual, pin["digest"] = pin["digest"], str(Digest.of(b"other"))
    forge(tiny, value)
    return Refusal(exit_code=4, code="DIGEST_MISMATCH", says=(pin["digest"], actual))


@refused
def the_bundle_lost_the_locked_commit(tiny: Tiny) -> Refusal:
    commit = source(locked(tiny), "adapter")["commit"]
    commit_again(tiny, lambda work: (work / "boot.py").unlink(), amend=True)
    shutil.rmtree(tiny.cache_path / "git")
    says = (commit, "is not in the source", str(tiny.root / "adapter.bundle"))
    return Refusal(exit_code=5, code="MISSING", says=says)


@refused
def the_locked_commit_has_another_tree(tiny: Tiny) -> Refusal:
    value = locked(tiny)
    pin = source(value, "adapter")
    actual, pin["tree"] = pin["tree"], "0" * 40
    forge(tiny, value)
    return Refusal(exit_code=4, code="FACT_MISMATCH", says=("0" * 40, actual))


@refused
def the_locked_commit_has_other_content(tiny: Tiny) -> Refusal:
    value = locked(tiny)
    pin = source(value, "adapter")
    actual, pin["content"] = pin["content"], str(Digest.of(b"other"))
    forge(tiny, value)
    return Refusal(exit_code=4, code="FACT_MISMATCH", says=(pin["content"], actual))


@refused
def P60_the_locked_commit_is_another_one_of_the_bundle(tiny: Tiny) -> Refusal:
    value = locked(tiny)
    pin = source(value, "adapter")
    pin["commit"] = commit_again(tiny, lambda work: (work / "boot.py").write_text("print('other')\n"))
    forge(tiny, value)
    return Refusal(exit_code=4, code="FACT_MISMATCH", says=(pin["tree"],))


@refused
def the_base_config_is_not_the_locked_one(tiny: Tiny) -> Refusal:
    value = locked(tiny)
    pin = value["pins"]["base"]
    actual, pin["config"] = pin["config"], str(Digest.of(b"other"))
    forge(tiny, value)
    return Refusal(exit_code=4, code="FACT_MISMATCH", says=(pin["config"], actual))


@refused
def an_inventory_is_not_the_locked_one(tiny: Tiny) -> Refusal:
    value = locked(tiny)
    row = value["facts"]["base_layers"][0]
    actual, row["inventory"] = row["inventory"], str(Digest.of(b"other"))
    forge(tiny, value)
    return Refusal(exit_code=4, code="FACT_MISMATCH", says=(row["inventory"], actual))


@refused
def a_locked_fact_is_not_what_the_bytes_say(tiny: Tiny) -> Refusal:
    value = locked(tiny)
    row = value["facts"]["libraries"][0]
    actual, row["build_id"] = row["build_id"], "00ff"
    forge(tiny, value)
    return Refusal(exit_code=4, code="FACT_MISMATCH", says=("00ff", actual, "facts.libraries[nccl].build_id"))


@refused
def C35_the_result_is_not_the_locked_one(tiny: Tiny) -> Refusal:
    value = locked(tiny)
    row = value["result"]["layers"][1]
    actual, row["diff_id"] = row["diff_id"], str(Digest.of(b"other"))
    forge(tiny, value)
    return Refusal(exit_code=4, code="FACT_MISMATCH", says=(row["name"], row["diff_id"], actual))


@refused
def C40_the_base_is_for_another_platform(tiny: Tiny) -> Refusal:
    tiny.image = {"platform": "linux/amd64"}
    tiny.write()
    return Refusal(exit_code=4, code="FACT_MISMATCH", says=("linux/amd64", "linux/arm64"), command=LOCK)


@refused
def P21_the_base_lacks_a_required_label(tiny: Tiny) -> Refusal:
    tiny.image = {"base": {"labels": {"commit": "decade"}}}
    tiny.write()
    return Refusal(exit_code=4, code="FACT_MISMATCH", says=("label commit", "decade", "c0ffee"), command=LOCK)


# A stale lock


def stale(tiny: Tiny, name: str, path: Path, text: bytes) -> Refusal:
    before = digest_of(path)
    path.write_bytes(text)
    return Refusal(exit_code=3, code="LOCK_STALE", says=(name, before, digest_of(path)))


@refused
def the_lock_is_stale_because_of_a_patch(tiny: Tiny) -> Refusal:
    name = "layers/tiny-app/patches/1.patch"
    return stale(tiny, name, tiny.root / name, FIRST_PATCH.replace("'b'", "'c'").encode())


@refused
def the_lock_is_stale_because_of_a_file_of_a_layer(tiny: Tiny) -> Refusal:
    name = "layers/tiny-adapter/files/entry.sh"
    return stale(tiny, name, tiny.root / name, b"#!/bin/sh\n")


@refused
def the_lock_is_stale_because_of_the_definition(tiny: Tiny) -> Refusal:
    path = tiny.root / "locks" / "tiny.toml"
    return stale(tiny, "locks/tiny.toml", path, path.read_bytes() + b"# a word\n")


@refused
def the_lock_is_stale_because_of_a_new_layer(tiny: Tiny) -> Refusal:
    tiny.layers["tiny-more"] = [{"kind": "remove", "paths": ["/etc/motd"]}]
    tiny.image = {"layers": list(tiny.layers)}
    tiny.write()
    name = "layers/tiny-more/layer.toml"
    return Refusal(
        exit_code=3,
        code="LOCK_STALE",
        says=(name, "not an input", digest_of(tiny.root / name)),
        command=("plan", "tiny"),
    )


# Files are not what the lock recorded


@refused
def P63_the_preimage_of_a_patched_file_differs(tiny: Tiny) -> Refusal:
    value = locked(tiny)
    rows = states(value, "/srv/app/auth.py")
    actual, rows[0] = rows[0], str(Digest.of(b"other"))
    forge(tiny, value)
    return Refusal(exit_code=4, code="FACT_MISMATCH", says=("/srv/app/auth.py", rows[0], actual))


@refused
def P64_the_postimage_of_a_patch_stage_differs(tiny: Tiny) -> Refusal:
    value = locked(tiny)
    rows = states(value, "/srv/app/auth.py")
    actual, rows[1] = rows[1], str(Digest.of(b"other"))
    forge(tiny, value)
    return Refusal(exit_code=4, code="FACT_MISMATCH", says=("/srv/app/auth.py", "stage 1", rows[1], actual))


@refused
def P64_a_patch_has_fewer_stages_than_the_lock(tiny: Tiny) -> Refusal:
    value = locked(tiny)
    rows = states(value, "/srv/app/auth.py")
    rows.append(str(Digest.of(b"other")))
    forge(tiny, value)
    says = ("/srv/app/auth.py", "stage 3", rows[-1], "no further state")
    return Refusal(exit_code=4, code="FACT_MISMATCH", says=says)


@refused
def P63_the_base_moved_under_a_forged_lock(tiny: Tiny) -> Refusal:
    value = locked(tiny)
    tiny.base = base_layers(extra={"srv/app/server.py": b"LIMIT = 48\n"})
    descriptor = tiny.write_base()
    config = tiny.context().store.manifest(descriptor).config
    value["pins"]["base"].update(
        manifest=str(descriptor.digest), manifest_size=descriptor.size, config=str(config.digest)
    )
    del value["facts"], value["result"]
    forge(tiny, value)
    says = ("/srv/app/server.py", states(value, "/srv/app/server.py")[0], str(Digest.of(b"LIMIT = 48\n")))
    return Refusal(exit_code=4, code="FACT_MISMATCH", says=says)


@refused
def a_changed_file_is_not_in_the_lock(tiny: Tiny) -> Refusal:
    value = locked(tiny)
    before = states(value, "/srv/app/server.py")[0]
    value["pins"]["files"] = [row for row in value["pins"]["files"] if row["path"] != "/srv/app/server.py"]
    forge(tiny, value)
    return Refusal(exit_code=4, code="FACT_MISMATCH", says=("/srv/app/server.py", "a row in pins.files", before))


@refused
def a_file_in_the_lock_is_changed_by_no_step(tiny: Tiny) -> Refusal:
    value = locked(tiny)
    value["pins"]["files"].append({"step": "tiny-app/9", "path": "/etc/motd", "states": ["absent", "link:x"]})
    forge(tiny, value)
    return Refusal(exit_code=4, code="FACT_MISMATCH", says=("/etc/motd", "tiny-app/9", "absent -> link:x", "no change"))


# Patches and edits


def patched(tiny: Tiny, text: str) -> None:
    tiny.files["tiny-app/patches/1.patch"] = text.encode()
    tiny.write()


@refused
def P63_a_patch_needs_fuzz(tiny: Tiny) -> Refusal:
    patched(tiny, FIRST_PATCH.replace(" def check(key):", " def check(token):"))
    says = ("patches/1.patch", "app/auth.py", "def check(token):", "def check(key):")
    return Refusal(exit_code=3, code="PATCH_REFUSED", says=says, command=LOCK)


@refused
def P22_a_patch_is_already_applied(tiny: Tiny) -> Refusal:
    tiny.base = base_layers(extra={"srv/app/auth.py": b"def check(key):\n    return key in ('a', 'b')\n"})
    tiny.write()
    says = ("patches/1.patch", "app/auth.py", "already applied", "line 1")
    return Refusal(exit_code=3, code="PATCH_REFUSED", says=says, command=(*LOCK, "--update", "base"))


@refused
def P64_a_patch_changes_nothing(tiny: Tiny) -> Refusal:
    patched(tiny, FIRST_PATCH.replace("+    return key in ('a', 'b')", "+    return key == 'a'"))
    return Refusal(exit_code=3, code="PATCH_REFUSED", says=("patches/1.patch", "changes nothing"), command=LOCK)


@refused
def a_patch_touches_a_file_that_the_step_does_not_list(tiny: Tiny) -> Refusal:
    patched(tiny, FIRST_PATCH.replace("app/auth.py", "app/server.py"))
    tiny.layers["tiny-app"][0]["files"] = ["app/auth.py", "app/keys.py"]
    return Refusal(exit_code=3, code="PATCH_REFUSED", says=("app/auth.py, app/keys.py", "app/server.py"), command=LOCK)


@refused
def an_edit_finds_its_text_nowhere(tiny: Tiny) -> Refusal:
    tiny.layers["tiny-app"][1]["find"] = "LIMIT = 49"
    tiny.write()
    says = ("/srv/app/server.py", "expected 1 time,", "actual 0 times")
    return Refusal(exit_code=3, code="STEP_REFUSED", says=says, command=LOCK)


@refused
def an_edit_finds_its_text_twice(tiny: Tiny) -> Refusal:
    tiny.layers["tiny-app"][1].update(find="LIMIT", replace="BOUND")
    tiny.write()
    says = ("/srv/app/server.py", "expected 1 time,", "actual 2 times")
    return Refusal(exit_code=3, code="STEP_REFUSED", says=says, command=LOCK)


# The library


@not_verified
def P87_the_library_is_for_another_machine(tiny: Tiny) -> Finding:
    swap_library(tiny, library("2.30.7", machine="x86_64"))
    return Finding(
        check="library.nccl.machine", subject=f"/{LIBRARY}", expected="aarch64, 64 bits", actual="x86_64, 64 bits"
    )


@not_verified
def the_library_has_another_soname(tiny: Tiny) -> Finding:
    swap_library(tiny, library("2.30.7", soname="libnccl.so.3"))
    return Finding(check="library.nccl.soname", subject=f"/{LIBRARY}", expected="libnccl.so.2", actual="libnccl.so.3")


@not_verified
def the_library_needs_a_newer_glibc(tiny: Tiny) -> Finding:
    swap_library(tiny, library("2.30.7", versions_needed={"libc.so.6": ("GLIBC_2.40",)}))
    return Finding(
        check="library.nccl.versions",
        subject=f"/{LIBRARY}",
        expected="needs no version that is not in the image",
        actual="needs GLIBC_2.40 of libc.so.6",
    )


@not_verified
def P18_the_library_lacks_a_symbol_that_is_needed(tiny: Tiny) -> Finding:
    swap_library(tiny, library("2.30.7", exports=[name for name in SYMBOLS if name != "ncclAllReduce"]))
    return Finding(
        check="library.nccl.symbols",
        subject=f"/{LIBRARY}",
        expected="exports the 1 symbols that other files import",
        actual=f"lacks ncclAllReduce (for /{SITE}/torch/lib/libtorch_cuda.so)",
    )


@not_verified
def P15_the_library_lacks_a_required_string(tiny: Tiny) -> Finding:
    swap_library(tiny, library("2.30.6"))
    return Finding(
        check="library.nccl.strings",
        subject=f"/{LIBRARY}",
        expected="holds 'NCCL version 2.30.7'",
        actual="lacks 'NCCL version 2.30.7'",
    )


@not_verified
def the_library_is_no_elf_file(tiny: Tiny) -> Finding:
    swap_library(tiny, b"NCCL version 2.30.7, honestly\n")
    return Finding(
        check="library.nccl.elf", subject=f"/{LIBRARY}", expected="a readable ELF file", actual="no ELF file"
    )


def add_file(tiny: Tiny, path: str, data: bytes) -> str:
    """Let a layer put a file that nobody declared anywhere else; returns its digest."""
    tiny.files["tiny-adapter/files/more"] = data
    tiny.layers["tiny-adapter"].append({"kind": "file", "source": "files/more", "path": path})
    relock(tiny)
    return str(Digest.of(data))


def third(path: str, digest: str) -> Finding:
    return Finding(
        check="library.nccl.provider",
        subject=path,
        expected=f"no other libnccl.so.2 than /{LIBRARY}",
        actual=digest,
    )


@not_verified
def C65_a_third_nccl_has_an_innocent_name(tiny: Tiny) -> Finding:
    return third("/opt/x/libfoo.so", add_file(tiny, "/opt/x/libfoo.so", library("2.27.3")))


@not_verified
def P02_a_third_nccl_has_no_soname_but_the_symbol(tiny: Tiny) -> Finding:
    data = library("2.27.3", soname=None, exports=("ncclGetVersion",))
    return third("/opt/x/libfoo.so", add_file(tiny, "/opt/x/libfoo.so", data))


@not_verified
def P02_a_third_nccl_comes_with_the_base(tiny: Tiny) -> Finding:
    data = library("2.27.3")
    tiny.base = base_layers(extra={"opt/x/data.bin": data})
    relock(tiny, "base")
    return third("/opt/x/data.bin", str(Digest.of(data)))


@not_verified
def P06_a_backup_lies_beside_the_library(tiny: Tiny) -> Finding:
    add_file(tiny, f"/{LIBRARY}.orig", library("2.29.7"))
    folder = f"only it and links to it begin with libnccl.so in /{LIBRARY.rpartition('/')[0]}"
    return Finding(
        check="library.nccl.folder",
        subject=f"/{LIBRARY}",
        expected=folder,
        actual=f"also there: /{LIBRARY}.orig",
    )


@refused
def P13_a_package_step_follows_the_swap(tiny: Tiny) -> Refusal:
    tiny.layers["tiny-nccl"].append(tiny.layers["tiny-packages"].pop())
    tiny.layers["tiny-packages"] = [{"kind": "remove", "paths": ["/etc/motd"]}]
    tiny.write()
    says = ("tiny-nccl/2", "no package step later", "tiny-nccl/1")
    return Refusal(exit_code=3, code="STEP_REFUSED", says=says, command=LOCK)


@not_verified
def the_definition_sets_LD_PRELOAD(tiny: Tiny) -> Finding:
    tiny.image = {"config": {"env": {"LD_PRELOAD": "/opt/x.so"}}}
    relock(tiny)
    return Finding(check="environment", subject="LD_PRELOAD", expected="not set", actual="LD_PRELOAD=/opt/x.so")


@not_verified
def the_base_sets_LD_PRELOAD(tiny: Tiny) -> Finding:
    tiny.base_env = ["PATH=/usr/bin", "LD_PRELOAD=/usr/lib/x.so"]
    relock(tiny, "base")
    return Finding(check="environment", subject="LD_PRELOAD", expected="not set", actual="LD_PRELOAD=/usr/lib/x.so")


# Locks that are not ours


def raw_lock(tiny: Tiny, change: Callable[[bytes], bytes]) -> None:
    path = tiny.project().lock_path("tiny")
    path.write_bytes(change(path.read_bytes()))


@refused
def the_lock_is_of_a_newer_version(tiny: Tiny) -> Refusal:
    forge(tiny, {**locked(tiny), "schema": "imgbuild/lock/v2", "new-field": 1})
    says = ("locks/tiny.lock.json", "imgbuild/lock/v1", "imgbuild/lock/v2")
    return Refusal(exit_code=3, code="LOCK_VERSION", says=says)


@refused
def the_lock_has_a_key_twice(tiny: Tiny) -> Refusal:
    raw_lock(tiny, lambda raw: raw.replace(b'"image": "tiny"', b'"image": "tiny", "image": "other"'))
    return Refusal(exit_code=3, code="DOCUMENT_INVALID", says=("locks/tiny.lock.json", "'image' stands twice"))


@refused
def the_lock_has_NaN(tiny: Tiny) -> Refusal:
    raw_lock(tiny, lambda raw: raw.replace(b'"epoch": 1700000000', b'"epoch": NaN'))
    return Refusal(exit_code=3, code="DOCUMENT_INVALID", says=("locks/tiny.lock.json", "NaN is not a JSON number"))


@refused
def the_lock_goes_on_after_its_end(tiny: Tiny) -> Refusal:
    raw_lock(tiny, lambda raw: raw + b"{}\n")
    return Refusal(exit_code=3, code="DOCUMENT_INVALID", says=("locks/tiny.lock.json", "Extra data"))


@refused
def the_lock_is_nested_too_deep(tiny: Tiny) -> Refusal:
    raw_lock(tiny, lambda raw: raw.replace(b'"epoch": 1700000000', b'"epoch": ' + b"[" * 5000 + b"]" * 5000))
    return Refusal(exit_code=3, code="DOCUMENT_INVALID", says=("locks/tiny.lock.json", "64 levels"))


@refused
def the_lock_has_a_byte_order_mark(tiny: Tiny) -> Refusal:
    raw_lock(tiny, lambda raw: b"\xef\xbb\xbf" + raw)
    return Refusal(exit_code=3, code="DOCUMENT_INVALID", says=("locks/tiny.lock.json", "BOM"))


@refused
def the_lock_is_not_UTF_8(tiny: Tiny) -> Refusal:
    raw_lock(tiny, lambda raw: raw.replace(b'"image": "tiny"', b'"image": "tin\xff"'))
    return Refusal(exit_code=3, code="DOCUMENT_INVALID", says=("locks/tiny.lock.json", "is not UTF-8 at byte"))


@refused
def there_is_no_lock(tiny: Tiny) -> Refusal:
    tiny.project().lock_path("tiny").unlink()
    return Refusal(exit_code=3, code="INPUT_INVALID", says=("locks/tiny.lock.json", "is not there"))


# Unpinned references


@refused
def P19_the_base_has_neither_tag_nor_digest(tiny: Tiny) -> Refusal:
    path = tiny.root / "locks" / "tiny.toml"
    text = path.read_text()
    assert '"tag" = "base", ' in text
    path.write_text(text.replace('"tag" = "base", ', ""))
    tiny.project().lock_path("tiny").unlink()
    says = ("localhost/test/base", "a manifest digest or a tag", "neither")
    return Refusal(exit_code=3, code="UNPINNED", says=says, command=LOCK)


@refused
def P19_the_locked_base_has_no_digest(tiny: Tiny) -> Refusal:
    value = locked(tiny)
    del value["pins"]["base"]["manifest"]
    forge(tiny, value)
    return Refusal(exit_code=3, code="DOCUMENT_INVALID", says=("pins.base", "'manifest' is a required property"))


@refused
def P19_the_locked_base_has_a_tag_for_a_digest(tiny: Tiny) -> Refusal:
    value = locked(tiny)
    value["pins"]["base"]["manifest"] = "latest"
    forge(tiny, value)
    says = ("pins.base.manifest", "'latest'", "sha256:")
    return Refusal(exit_code=3, code="DOCUMENT_INVALID", says=says)


@refused
def P60_the_locked_commit_is_a_branch(tiny: Tiny) -> Refusal:
    value = locked(tiny)
    source(value, "adapter")["commit"] = "main"
    forge(tiny, value)
    return Refusal(exit_code=3, code="DOCUMENT_INVALID", says=("pins.sources[0].commit", "'main'", "[0-9a-f]{40}"))


@refused
def P19_the_reference_of_the_base_holds_a_tag(tiny: Tiny) -> Refusal:
    tiny.image = {"base": {"reference": "localhost/test/base:nightly"}}
    tiny.write()
    return Refusal(exit_code=3, code="DOCUMENT_INVALID", says=("base.reference", "nightly", "base.tag"), command=LOCK)


@refused
def P19_the_reference_of_the_base_holds_a_digest(tiny: Tiny) -> Refusal:
    digest = str(Digest.of(b"wanted"))
    tiny.image = {"base": {"reference": f"localhost/test/base@{digest}"}}
    tiny.write()
    return Refusal(exit_code=3, code="DOCUMENT_INVALID", says=("base.reference", digest, "base.manifest"), command=LOCK)


# Offline with something missing


@refused
def offline_the_base_is_gone(tiny: Tiny) -> Refusal:
    digest = locked(tiny)["pins"]["base"]["manifest"]
    blob(tiny, digest).unlink()
    return Refusal(exit_code=5, code="MISSING", says=("localhost/test/base", digest, str(tiny.store_path)))


@refused
def offline_the_base_config_is_gone(tiny: Tiny) -> Refusal:
    digest = locked(tiny)["pins"]["base"]["config"]
    blob(tiny, digest).unlink()
    return Refusal(exit_code=5, code="MISSING", says=(digest, str(tiny.store_path)))


@refused
def offline_a_base_layer_is_gone(tiny: Tiny) -> Refusal:
    digest = locked(tiny)["facts"]["base_layers"][1]["digest"]
    blob(tiny, digest).unlink()
    tiny.forget_base()
    return Refusal(exit_code=5, code="MISSING", says=(digest, str(tiny.store_path)))


@refused
def offline_a_wheel_is_gone(tiny: Tiny) -> Refusal:
    pin = source(locked(tiny), "helper")
    cached(tiny, pin["digest"]).unlink()
    return Refusal(exit_code=5, code="OFFLINE_MISS", says=(pin["filename"], pin["digest"]))


@refused
def offline_a_new_source_is_to_be_locked(tiny: Tiny) -> Refusal:
    more = {"kind": "wheel", "name": "tabulate", "version": "0.9.0", "platforms": ["any"], "python": "3.12"}
    tiny.image = {"sources": {"tabulate": more}}
    tiny.write()
    return Refusal(exit_code=5, code="OFFLINE_MISS", says=("tabulate==0.9.0",), command=LOCK)


@refused
def the_store_is_gone(tiny: Tiny) -> Refusal:
    shutil.rmtree(tiny.store_path)
    (tiny.store_path).mkdir()
    return Refusal(exit_code=5, code="MISSING", says=(str(tiny.store_path),), command=("verify", "tiny"))


@refused
def the_tag_of_the_base_is_gone(tiny: Tiny) -> Refusal:
    tiny.image = {"base": {"tag": "nightly"}}
    tiny.write()
    says = ("nightly", "base, tiny", str(tiny.store_path))
    return Refusal(exit_code=5, code="MISSING", says=says, command=(*LOCK, "--update", "base"))


# Definitions and steps


@refused
def the_image_is_unknown(tiny: Tiny) -> Refusal:
    return Refusal(exit_code=2, code="USAGE", says=("'nope'", "tiny"), command=("build", "nope", "--offline"))


@refused
def the_name_of_the_image_is_not_UTF_8(tiny: Tiny) -> Refusal:
    return Refusal(exit_code=2, code="USAGE", says=("'no\\udcffpe'", "tiny"), command=("build", "no\udcffpe"))


@refused
def an_option_is_unknown(tiny: Tiny) -> Refusal:
    return Refusal(exit_code=2, code="USAGE", says=("--nope",), command=("build", "tiny", "--nope"))


@refused
def P33_a_digest_on_the_command_line_is_none(tiny: Tiny) -> Refusal:
    command = ("verify", "tiny", "--digest", "sha256:latest")
    says = ("--digest 'sha256:latest'", "64 hexadecimal digits")
    return Refusal(exit_code=2, code="USAGE", says=says, command=command)


@refused
def a_tag_is_not_in_the_store(tiny: Tiny) -> Refusal:
    says = ("tag nightly", "base, tiny", str(tiny.store_path))
    return Refusal(exit_code=5, code="MISSING", says=says, command=("verify", "tiny", "--tag", "nightly"))


@refused
def a_definition_has_several_problems(tiny: Tiny) -> Refusal:
    tiny.image = {"colour": "red", "epoch": -1, "limits": {"bytes": "many"}, "base": {"taag": "x"}}
    tiny.write()
    says = ("locks/tiny.toml", "'colour'", "epoch: -1", "limits.bytes: 'many'", "base: ", "'taag'")
    return Refusal(exit_code=3, code="DOCUMENT_INVALID", says=says)


@refused
def a_layer_has_several_problems(tiny: Tiny) -> Refusal:
    tiny.layers["tiny-app"][1].update(count=0, colour="red")
    tiny.layers["tiny-app"][2] = {"kind": "remoove", "paths": ["/opt/unused"]}
    tiny.write()
    says = (
        "layers/tiny-app/layer.toml",
        "step[1].count (tiny-app/2): 0",
        "'colour'; an edit step has",
        "'remoove'",
    )
    return Refusal(exit_code=3, code="DOCUMENT_INVALID", says=says)


@refused
def a_layer_is_not_there(tiny: Tiny) -> Refusal:
    tiny.image = {"layers": ["tiny-adapter", "tiny-more"]}
    tiny.write()
    says = ("locks/tiny.toml", "layers[1]: there is no layer 'tiny-more'", "tiny-adapter")
    return Refusal(exit_code=3, code="DOCUMENT_INVALID", says=says)


@refused
def a_step_names_a_path_that_is_not_there(tiny: Tiny) -> Refusal:
    tiny.layers["tiny-app"][1]["path"] = "/srv/app/sever.py"
    tiny.write()
    says = ("/srv/app/sever.py", "is not in the image", "a regular file", "tiny-app/2")
    return Refusal(exit_code=3, code="STEP_REFUSED", says=says, command=LOCK)


@refused
def a_file_is_there_that_no_step_may_replace(tiny: Tiny) -> Refusal:
    tiny.layers["tiny-adapter"][1]["path"] = "/bin/tool"
    tiny.write()
    says = ("/usr/bin/tool", "nothing there", "a file", "tiny-adapter/2")
    return Refusal(exit_code=3, code="STEP_REFUSED", says=says, command=LOCK)


@refused
def a_link_of_a_source_leaves_its_tree(tiny: Tiny) -> Refusal:
    commit_again(tiny, lambda work: (work / "lib" / "out").symlink_to("../../../etc/passwd"))
    says = ("/opt/tiny/lib/out", "/opt/tiny", "../../../etc/passwd", "tiny-adapter/1")
    return Refusal(exit_code=3, code="STEP_REFUSED", says=says, command=(*LOCK, "--update", "adapter"))


@refused
def P84_a_source_lacks_its_licence(tiny: Tiny) -> Refusal:
    tiny.layers["tiny-adapter"][0]["licence"] = "COPYING"
    tiny.write()
    says = ("adapter", "COPYING", "LICENSE", "tiny-adapter/1")
    return Refusal(exit_code=3, code="STEP_REFUSED", says=says, command=LOCK)


@refused
def a_wheel_would_overwrite_a_file_of_another_distribution(tiny: Tiny) -> Refusal:
    filename, data = make_wheel("helper", "1.0", {"nvidia/nccl/lib/libnccl.so.2": b"mine\n"})
    pin_wheel(tiny, "helper", filename, data)
    tiny.layers["tiny-packages"][0]["python"] = "3.13"
    tiny.write()
    says = (f"/{LIBRARY}", filename, "nothing there", "nccl-like", "tiny-packages/1")
    return Refusal(exit_code=3, code="STEP_REFUSED", says=says, command=LOCK)


@refused
def a_wheel_would_be_a_second_distribution_of_its_name(tiny: Tiny) -> Refusal:
    tiny.layers["tiny-packages"][0]["source"] = "nccl-wheel"
    tiny.write()
    says = ("nccl-like", "2.30.7", "2.29.7", f"/{SITE}/nccl_like-2.29.7.dist-info", "tiny-packages/1")
    return Refusal(exit_code=3, code="STEP_REFUSED", says=says, command=LOCK)


@refused
def a_second_distribution_hides_behind_a_link(tiny: Tiny) -> Refusal:
    tiny.base = base_layers()
    tiny.base[0] += files({}, links={"opt/site": f"/{SITE}"})
    tiny.layers["tiny-packages"][0].update(source="nccl-wheel", site="/opt/site")
    tiny.write()
    says = ("nccl-like", "2.30.7", "2.29.7", f"/{SITE}/nccl_like-2.29.7.dist-info", "tiny-packages/1")
    return Refusal(exit_code=3, code="STEP_REFUSED", says=says, command=(*LOCK, "--update", "base"))


@refused
def a_wheel_is_for_another_machine(tiny: Tiny) -> Refusal:
    _, data = make_wheel("helper", "1.0", {"helper/__init__.py": b""})
    pin_wheel(tiny, "helper", "helper-1.0-cp312-cp312-manylinux_2_17_x86_64.whl", data)
    says = ("CPython 3.12 on linux aarch64", "cp312-cp312-manylinux_2_17_x86_64", "tiny-packages/1")
    return Refusal(exit_code=3, code="STEP_REFUSED", says=says)


@refused
def a_wheel_breaks_its_own_RECORD(tiny: Tiny) -> Refusal:
    recorded, actual = b"VALUE = 1\n", b"VALUE = 2\n"
    filename, data = make_wheel("helper", "1.0", {"helper/__init__.py": recorded})
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as made, zipfile.ZipFile(buffer, "w") as changed:
        for info in made.infolist():
            changed.writestr(info, made.read(info).replace(recorded, actual))
    pin_wheel(tiny, "helper", filename, buffer.getvalue())
    says = (filename, "helper/__init__.py", "didn't match RECORD")
    return Refusal(exit_code=4, code="ARCHIVE_INVALID", says=says)


@refused
def a_path_to_be_removed_is_not_there(tiny: Tiny) -> Refusal:
    tiny.layers["tiny-app"][2]["paths"] = ["/opt/unusedd"]
    tiny.write()
    says = ("/opt/unusedd", "is not in the image", "tiny-app/3")
    return Refusal(exit_code=3, code="STEP_REFUSED", says=says, command=LOCK)


# Damage that is not refused, since the next build makes it anew


def test_C58_a_damaged_layer_of_ours_is_found_by_verify_and_replaced_by_build(
    tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    layer = locked(tiny)["result"]["layers"][0]["digest"]
    actual = flip(blob(tiny, layer))
    before = snapshot(tiny)
    capsys.readouterr()

    assert execute(tiny, "verify", "tiny", "--json") == 1
    findings = validated("verify-report", capsys.readouterr().out)["result"]["findings"]
    failed = [(row["expected"], row["actual"]) for row in findings if row["verdict"] == "differs"]
    assert failed == [(layer, actual)]
    assert snapshot(tiny) == before

    assert execute(tiny, "build", "tiny", "--offline") == 0
    assert digest_of(blob(tiny, layer)) == layer
    assert execute(tiny, "verify", "tiny") == 0


# A real compiler


@pytest.fixture(scope="module")
def compiler() -> Cache:
    """The cache of this user, with the pinned compiler, which is fetched where it is not there."""
    cache = Cache(default_folder(), ledger=Ledger())
    store = Store(cache.root / "no-store", ledger=cache.ledger)
    fetch_wheel(Context(root=cache.root, store=store, cache=cache, ledger=cache.ledger), pins.zig())
    return cache


@pytest.mark.mini
def test_P58_a_compile_output_that_differs_is_refused(
    compiler: Cache, tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    add_compile_step(tiny, compiler)
    value = locked(tiny)
    rows = states(value, "/opt/tiny/libone.so")
    actual, rows[1] = rows[1], str(Digest.of(b"other"))
    forge(tiny, value)

    def again() -> None:
        # Without the result of an earlier run the compiler has to run.
        shutil.rmtree(tiny.cache_path / "results")

    again()
    says = ("/opt/tiny/libone.so", "after the step", rows[1], actual)
    check_refusal(tiny, Refusal(exit_code=4, code="FACT_MISMATCH", says=says, again=again), capsys)


def add_compile_step(tiny: Tiny, compiler: Cache) -> None:
    for name in ("tools", "zig"):
        compiler.folder(name).mkdir(exist_ok=True)
        (tiny.cache_path / name).symlink_to(compiler.folder(name))
    pin = pins.zig()
    shutil.copyfile(compiler.path(pin.digest), cached(tiny, pin.digest))
    host = {"platforms": ["any"], "filename": pin.filename, "digest": str(pin.digest)}
    toolchain = {"kind": "toolchain", "name": "zig", "distribution": pin.name, "version": pin.version}
    value = locked(tiny)
    value["pins"]["sources"].append({**toolchain, "hosts": {host_key(): host}})
    forge(tiny, value)
    hosts = {host_key(): ["any"]}
    tiny.image = {"sources": {"zig": {**toolchain, "name": pin.name, "hosts": hosts}}}
    del tiny.image["sources"]["zig"]["distribution"]
    compiled = {"kind": "compile", "source": "adapter", "toolchain": "zig", "sources": ["one.c"], "language": "c17"}
    tiny.layers["tiny-adapter"].append({**compiled, "glibc": "2.34", "path": "/opt/tiny/libone.so"})
    tiny.layers["tiny-adapter"][0]["exclude"] = ["one.c"]
    commit_again(tiny, lambda work: (work / "one.c").write_text("int one(void) { return 1; }\n"))
    relock(tiny, "adapter")


# A full disk


@pytest.mark.parametrize("free", [0, 8, 24])
def test_C58_a_full_disk_under_the_store_is_refused_and_nothing_changes(
    free: int, tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(tiny.cache_path / "results")
    with nearly_full(tiny.store_path, free):
        wanted = Refusal(exit_code=5, code="STORAGE", says=(str(tiny.store_path), "the disk is full"))
        check_refusal(tiny, wanted, capsys)
        (tiny.store_path / "filler").unlink()
        assert execute(tiny, "build", "tiny", "--offline") == 0


def test_C58_a_damaged_library_whose_layer_is_known_is_not_needed_and_does_no_harm(tiny: Tiny) -> None:
    path = cached(tiny, source(locked(tiny), "nccl")["digest"])
    flip(path)
    assert execute(tiny, "build", "tiny", "--offline") == 0
    assert execute(tiny, "verify", "tiny", "--offline") == 0


def test_C58_a_library_whose_facts_are_not_those_in_its_known_layer_is_found_damaged(
    tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    path = cached(tiny, source(locked(tiny), "nccl")["digest"])
    actual = flip(path, ELF_MACHINE)
    assert execute(tiny, "lock", "tiny", "--complete", "--offline") == 4
    assert actual in capsys.readouterr().err
    assert not path.exists()


@pytest.mark.parametrize("free", [0, 8, 16, 24, 32, 40, 48])
def test_a_full_disk_under_the_cache_is_refused_and_nothing_changes(
    free: int, tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.forget_base()
    for name in ("results", "git"):
        shutil.rmtree(tiny.cache_path / name)
    with nearly_full(tiny.cache_path, free):
        wanted = Refusal(exit_code=5, code="STORAGE", says=(str(tiny.cache_path), "the disk is full"))
        check_refusal(tiny, wanted, capsys)
        (tiny.cache_path / "filler").unlink()
        assert execute(tiny, "build", "tiny", "--offline") == 0
