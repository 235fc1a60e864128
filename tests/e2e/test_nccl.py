"""`imgbuild nccl LIBRARY`: what identifies an NCCL library on disk, in a wheel or in an image, and what differs."""

from __future__ import annotations

import json
import os
import tomllib
import zipfile
from typing import TYPE_CHECKING, Any

import pytest
from imgbuild.cli import run
from imgbuild.cli.schemas import shipped
from imgbuild.content.changeset import Change, ChangeType
from imgbuild.digest import Digest
from imgbuild.model.image import parse_image
from jsonschema import Draft202012Validator

from tests.support.elf_builder import shared_object
from tests.support.fatbins import PTX, Entry, fatbin
from tests.support.made import files, library
from tests.support.refusals import locked
from tests.support.registries import any_registry
from tests.support.remote import BASE, base_to
from tests.support.tiny import LIBRARY, Tiny

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.registries import LocalRegistry

NEW = library(
    "2.30.7+cuda13.3",
    exports=("ncclGetVersion", "ncclAllReduce", "pncclAllReduce", "ncclNew"),
    versions_needed={"libc.so.6": ("GLIBC_2.17", "GLIBC_2.28"), "libstdc++.so.6": ("GLIBCXX_3.4.22", "CXXABI_1.3.9")},
    extra=b"NCCL git version ring a5187fa2e\0NCCL_SWITCHLESS_RING_ONLY\0"
    + fatbin(Entry(architecture=121), Entry(kind=PTX, architecture=121)),
)
WHEEL = "nvidia_nccl_cu13-2.30.7-py3-none-manylinux_2_18_aarch64.manylinux2014_aarch64.whl"
SYSTEM = "/usr/lib/aarch64-linux-gnu/libnccl.so.2"


@pytest.fixture
def nccl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Nccl:
    return Nccl(tmp_path, capsys)


class Nccl:
    """Runs the verb, and writes files for it."""

    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.folder = folder / "files"
        self.folder.mkdir()
        self.cache = folder / "files-cache"
        self._capture = capture
        self.project: list[str] = []

    def file(self, name: str, data: bytes) -> str:
        (self.folder / name).write_bytes(data)
        return str(self.folder / name)

    def wheel(self, name: str, members: dict[str, bytes]) -> str:
        with zipfile.ZipFile(self.folder / name, "w", zipfile.ZIP_DEFLATED) as archive:
            for member, data in members.items():
                archive.writestr(member, data)
        return str(self.folder / name)

    def run(self, *words: str) -> tuple[int, str, str]:
        self._capture.readouterr()
        code = run(["nccl", *words, *self.project, "--cache", str(self.cache)])
        return code, *self._capture.readouterr()

    def document(self, *words: str) -> tuple[int, dict[str, Any]]:
        code, out, _ = self.run(*words, "--json")
        found = json.loads(out)
        name = "error" if "error" in found else "nccl-result"
        Draft202012Validator(json.loads(shipped(name))).validate(found)
        return code, found.get("error") or found["result"]

    def inside(self, tiny: Tiny) -> Nccl:
        self.project, self.cache = ["--project", str(tiny.root)], tiny.cache_path
        return self


def test_a_file_has_its_facts(nccl: Nccl) -> None:
    path = nccl.file("libnccl.so.2", NEW)
    code, found = nccl.document(path)
    assert code == 0
    facts = found["library"]
    assert (facts["digest"], facts["size"]) == (str(Digest.of(NEW)), len(NEW))
    assert facts["version"] == {
        "number": "2.30.7",
        "code": 23007,
        "cuda": "13.3",
        "text": "NCCL version 2.30.7+cuda13.3",
    }
    assert (facts["soname"], facts["machine"], facts["kind"]) == ("libnccl.so.2", "aarch64", "shared")
    assert facts["git"] == ["ring a5187fa2e"]
    assert [(row["name"], row["present"]) for row in facts["markers"]] == [
        ("NCCL_SWITCHLESS_RING_ONLY", True),
        ("NCCL_SKIP_TREE_CONNECT", False),
    ]
    assert facts["exports"] == ["ncclAllReduce", "ncclGetVersion", "ncclNew", "pncclAllReduce"]
    assert (facts["glibc"], facts["glibcxx"], facts["cxxabi"]) == ("2.28", "3.4.22", "1.3.9")
    assert facts["gpu"] == {
        "fatbins": 1,
        "objects": [{"name": "sm_121", "count": 1}, {"name": "compute_121", "count": 1}],
    }
    assert (facts["ok"], facts["problems"]) == (True, [])
    code, out, err = nccl.run(path)
    assert (code, err) == (0, "")
    assert "2.30.7, code 23007 (from its text 'NCCL version 2.30.7+cuda13.3')" in out
    assert "GPU code     sm_121 compute_121 (1 fatbin)" in out
    assert "NCCL_SWITCHLESS_RING_ONLY: present" in out
    assert "ncclNew" not in out
    assert "             ncclNew\n" in nccl.run(path, "-v")[1]


def test_files_are_read_outside_of_every_project_and_through_links(nccl: Nccl, monkeypatch: pytest.MonkeyPatch) -> None:
    nccl.file("libnccl.so.2.30.7", NEW)
    (nccl.folder / "libnccl.so.2").symlink_to("libnccl.so.2.30.7")
    monkeypatch.chdir(nccl.folder)
    code, found = nccl.document("libnccl.so.2")
    assert (code, found["library"]["size"]) == (0, len(NEW))
    code, found = nccl.document("base:/x")
    assert (code, found["code"]) == (2, "USAGE")


def test_the_only_library_of_a_wheel_is_found_and_a_member_can_be_named(nccl: Nccl) -> None:
    path = nccl.wheel(WHEEL, {"nvidia/nccl/lib/libnccl.so.2": NEW, "nvidia/other.so": library("2.29.7")})
    code, found = nccl.document(path)
    assert (code, found["library"]["member"]) == (0, "nvidia/nccl/lib/libnccl.so.2")
    assert (found["library"]["wheel"], found["library"]["digest"]) == (WHEEL, str(Digest.of(NEW)))
    code, found = nccl.document(f"{path}:nvidia/other.so", "--against", path)
    assert (code, found["library"]["version"]["code"]) == (1, 22907)
    assert found["against"]["lacks"] == ["ncclNew", "pncclAllReduce"]
    assert found["against"]["adds"] == ["ncclGetUniqueId"]


def test_a_path_of_an_image_is_read_through_links(nccl: Nccl, tiny: Tiny) -> None:
    code, found = nccl.inside(tiny).document(f"base:{SYSTEM}")
    assert code == 0
    facts = found["library"]
    assert (facts["real"], facts["version"]["code"]) == (f"{SYSTEM}.28.3", 22803)
    assert facts["digest"] == str(Digest.of(library("2.28.3")))
    manifest = tiny.lock().pins.base.manifest
    assert nccl.document(f"{manifest}:{SYSTEM}")[1]["library"] == {**facts, "asked": f"{manifest}:{SYSTEM}"}


def test_only_the_layer_that_has_the_file_is_read(nccl: Nccl, tiny: Tiny) -> None:
    layers = locked(tiny)["facts"]["base_layers"]
    for row in [*layers[:1], *layers[2:]]:
        (tiny.store_path / "blobs" / row["digest"].replace(":", "/")).unlink()
    code, found = nccl.inside(tiny).document(f"base:/{LIBRARY}", "--offline")
    assert (code, found["library"]["layer"]) == (0, layers[1]["digest"])
    code, found = nccl.document(f"base:{SYSTEM}", "--offline")
    assert (code, found["code"]) == (5, "MISSING")


@pytest.fixture
def other(tmp_path: Path) -> Iterator[LocalRegistry]:
    with any_registry("fault", tmp_path / "other") as found:
        yield found


def test_of_an_image_in_a_registry_its_layer_is_read_and_nothing_is_kept(
    nccl: Nccl, tiny: Tiny, other: LocalRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = locked(tiny)["facts"]["base_layers"]
    base_to(tiny, other.host, monkeypatch)
    name = f"{other.host}/{BASE}:v1:/{LIBRARY}"
    assert other.fault is not None
    other.fault.clear_log()
    code, found = nccl.inside(tiny).document(name)
    assert (code, found["library"]["layer"]) == (0, rows[1]["digest"])
    asked = {request.path.rpartition("/")[2] for request in other.fault.requests("blob", "GET")}
    assert asked & {row["digest"] for row in rows} == {rows[1]["digest"]}
    assert not tiny.store_path.exists() or not list(tiny.store_path.glob("blobs/*/*"))
    assert nccl.document(name, "--offline")[0] == 5


@pytest.mark.parametrize("quiet", [False, True])
def test_two_libraries_are_compared_fact_by_fact(nccl: Nccl, tiny: Tiny, *, quiet: bool) -> None:
    path = nccl.file("new.so", NEW)
    nccl.inside(tiny)
    code, found = nccl.document(path, "--against", f"base:/{LIBRARY}")
    assert code == 1
    against = found["against"]
    assert (against["same"], against["lacks"]) == (False, ["ncclGetUniqueId"])
    assert {"digest", "size", "version", "cuda", "exports", "gpu", "markers.NCCL_SWITCHLESS_RING_ONLY"} <= set(
        against["differs"]
    )
    assert not {"soname", "machine", "needed", "markers.NCCL_SKIP_TREE_CONNECT"} & set(against["differs"])
    code, out, err = nccl.run(path, "--against", f"base:/{LIBRARY}", *(["-q"] if quiet else []))
    assert code == 1
    assert "other bytes; the facts that differ: digest, size" in (err if quiet else out)
    assert (out == "") == quiet
    if not quiet:
        assert "\nSONAME       same     libnccl.so.2\n" in out
        assert f"\ndigest       differs  {Digest.of(NEW)} " in out
        assert "\nlacks        1 that the other one exports:\n             ncclGetUniqueId\n" in out


def test_the_same_bytes_in_two_places_are_the_same(nccl: Nccl, tiny: Tiny) -> None:
    path = nccl.file("old.so", library("2.29.7"))
    code, out, _ = nccl.inside(tiny).run(path, "--against", f"base:/{LIBRARY}")
    assert (code, out.splitlines()[-1]) == (0, "the same bytes")
    assert "differs" not in out


def test_what_is_printed_for_a_definition_is_one(nccl: Nccl, tiny: Tiny) -> None:
    path = nccl.wheel(WHEEL, {"nvidia/nccl/lib/libnccl.so.2": NEW})
    _, found = nccl.inside(tiny).document(path, "--against", f"base:/{LIBRARY}")
    lines = found["definition"]
    assert lines[0].startswith(f"# {Digest.of(NEW)}, {len(NEW)} bytes")
    image = {
        "schema": "imgbuild/image/v1",
        "name": "x",
        "title": "x",
        "platform": "linux/arm64",
        "epoch": 0,
        "layers": ["a"],
        "tags": ["x"],
        "base": {"reference": "localhost/x"},
        "limits": {"bytes": 1},
        "config": {},
    }
    parsed = parse_image({**image, **tomllib.loads("\n".join(lines))}, subject="lines")
    one = parsed.library["nccl"]
    assert (one.path, one.soname) == (f"/{LIBRARY}", "libnccl.so.2")
    assert one.strings == ["NCCL version 2.30.7+cuda13.3", "NCCL_SWITCHLESS_RING_ONLY"]
    assert all(text.encode() in NEW for text in one.strings)
    wheel = tomllib.loads("\n".join(lines))["sources"]["nccl-wheel"]
    assert (wheel["name"], wheel["version"]) == ("nvidia-nccl-cu13", "2.30.7")
    assert wheel["platforms"] == ["manylinux_2_18_aarch64", "manylinux2014_aarch64"]


def test_lines_for_a_definition_say_what_it_cannot_have(nccl: Nccl) -> None:
    _, found = nccl.document(nccl.wheel("other-name.zip", {"libnccl.so.2": NEW}))
    text = "\n".join(found["definition"])
    assert "has to be" in text
    assert "nccl-wheel" not in tomllib.loads(text).get("sources", {})


def test_a_library_that_is_in_no_wheel_becomes_an_operators_file(nccl: Nccl) -> None:
    _, found = nccl.document(nccl.file("libnccl.so.2", NEW))
    source = tomllib.loads("\n".join(found["definition"]))["sources"]["nccl"]
    assert source == {"kind": "file", "digest": str(Digest.of(NEW)), "size": len(NEW)}


PROBLEMS = {
    "cut off": (NEW[:-1], "shorter than its table of sections"),
    "cut off in its tables": (NEW[:700], "shorter than its segments"),
    "another library": (shared_object(soname="libz.so.1", exports=["deflate"]), "is no NCCL library"),
    "without a version": (shared_object(soname="libnccl.so.2", exports=["ncclGetVersion"]), "states no version"),
}


@pytest.mark.parametrize("case", PROBLEMS)
def test_a_damaged_or_other_library_has_facts_and_a_problem(nccl: Nccl, case: str) -> None:
    data, words = PROBLEMS[case]
    path = nccl.file("x.so", data)
    code, found = nccl.document(path)
    assert code == 1
    assert words in found["library"]["problems"][0]
    assert (found["library"]["digest"], found["definition"]) == (str(Digest.of(data)), [])
    code, out, _ = nccl.run(path)
    assert (code, words in out.splitlines()[-1]) == (1, True)
    assert words in nccl.run(path, "-q")[2]


def test_damage_in_gpu_code_is_no_guess(nccl: Nccl) -> None:
    half = fatbin(Entry(architecture=121))[:40]
    path = nccl.file("x.so", library("2.30.7", extra=fatbin(Entry(architecture=90)) + half, sections=False))
    code, out, _ = nccl.run(path)
    assert code == 0
    assert "GPU code     sm_90; not known whether that is all: the fatbin at byte" in out
    path = nccl.file("y.so", library("2.30.7", extra=half, sections=False))
    assert "GPU code     not known: the fatbin at byte" in nccl.run(path)[1]


def test_a_library_for_another_machine_than_its_image_is_a_problem(nccl: Nccl, tiny: Tiny) -> None:
    tiny.base = [*tiny.base, files({"opt/libnccl.so.2": library("2.30.7", machine="x86_64")})]
    tiny.write_base()
    code, found = nccl.inside(tiny).document("base:/opt/libnccl.so.2")
    assert code == 1
    assert found["library"]["problems"] == ["is for x86_64, and its image for aarch64"]


REFUSED = {
    "missing": ("{folder}/absent", 2, "is not there"),
    "a missing wheel": ("{folder}/absent.whl:x", 2, "is not there"),
    "a directory": ("{folder}", 2, "cannot be read: it is no regular file"),
    "a pipe": ("{folder}/pipe", 2, "it is no regular file"),
    "a circle": ("{folder}/circle", 2, "cannot be read"),
    "empty": ("{folder}/empty", 4, "is empty"),
    "a script": ("{folder}/script", 4, "is not an ELF file"),
    "a wheel without it": ("{folder}/none.whl", 4, "has no libnccl.so.2"),
    "a wheel with two": ("{folder}/two.whl", 2, "has 2 files libnccl.so.2"),
    "a member that is not there": ("{folder}/two.whl:c", 4, "has no such member"),
    "no wheel": ("{folder}/bad.whl", 4, "is not a sound zip archive"),
    "a wheel that is cut off": ("{folder}/cut.whl", 4, "is not a sound zip archive"),
    "a member that is no library": ("{folder}/none.whl:a.py", 4, "is not an ELF file"),
    "no reference": (":/opt/x", 2, "lacks an image or a path"),
    "no path": ("base:/", 2, "lacks an image or a path"),
    "no tag": ("absent:/opt/x", 5, "is not in the store"),
    "no digest": ("sha256:00:/opt/x", 2, "is not a digest"),
    "nothing there": ("base:/opt/absent", 5, "is not in the image"),
    "a link that leads nowhere": ("base:/opt/dangling", 5, "is not in the image"),
    "a directory of the image": ("base:/usr/lib", 2, "is a directory"),
    "no plain path": ("base:/usr/../lib", 2, "'..' component"),
    "a text of the image": ("base:/etc/motd", 4, "is not an ELF file"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_looked_at_is_a_typed_error(nccl: Nccl, tiny: Tiny, case: str) -> None:
    if case == "a link that leads nowhere":
        link = Change(path=b"opt/dangling", type=ChangeType.SYMLINK, mode=0o777, link=b"absent")
        tiny.base = [*tiny.base, [*files({"opt/other": b""}), link]]
        tiny.write_base()
    os.mkfifo(nccl.folder / "pipe")
    (nccl.folder / "circle").symlink_to("circle")
    nccl.file("empty", b"")
    nccl.file("script", b"#!/bin/sh\n")
    nccl.file("bad.whl", NEW)
    nccl.wheel("none.whl", {"a.py": b"X = 1\n"})
    nccl.wheel("two.whl", {"a/libnccl.so.2": NEW, "b/libnccl.so.2": NEW})
    whole = (nccl.folder / "two.whl").read_bytes()
    nccl.file("cut.whl", whole[: len(whole) // 2])
    asked, code, words = REFUSED[case]
    nccl.inside(tiny)
    actual, found = nccl.document(asked.format(folder=nccl.folder), "--offline")
    assert (actual, words in found["message"]) == (code, True), found
    assert "error[" in nccl.run(asked.format(folder=nccl.folder), "--offline")[2]


def test_a_name_from_a_library_cannot_imitate_a_line(nccl: Nccl) -> None:
    path = nccl.file("x.so", library("2.30.7", soname="x\ndigest       sha256:forged", needed=("y\nlibrary",)))
    _, out, _ = nccl.run(path)
    assert "\ndigest       sha256:forged" not in out
    assert "\nlibrary" not in out
    tomllib.loads("\n".join(nccl.document(path)[1]["definition"]))


def test_a_name_that_is_not_utf_8_is_shown(nccl: Nccl) -> None:
    path = os.fsdecode(os.fsencode(nccl.folder) + b"/\xff.so")
    with open(path, "wb") as file:
        file.write(NEW)
    code, found = nccl.document(path)
    assert (code, found["library"]["asked"].endswith("/\\udcff.so")) == (0, True)
    assert nccl.run(path)[0] == 0
