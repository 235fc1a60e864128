"""Pins of the images that people run, moved: their own definitions, on what stands in for what cannot be had here."""

from __future__ import annotations

import difflib
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from imgbuild.adapters.cache import default_folder
from imgbuild.adapters.store import StagedStore
from imgbuild.adapters.tomledit import Edit, edit_toml
from imgbuild.cli import run
from imgbuild.digest import Digest
from imgbuild.ledger import Ledger

from tests.standin.images import bases, sources
from tests.standin.images.make import FOLDER, make
from tests.support.made import files, library

if TYPE_CHECKING:
    from imgbuild.content.changeset import Change

pytestmark = pytest.mark.mini

REPOSITORY = Path(__file__).parents[2]
STAND_IN = REPOSITORY / "tests/standin/images"
BACKEND = f"{bases.SGLANG}/{sources.TWICE}"


class Images:
    """`dsv41` with the values of its stand-ins in its own definition, whose comments are the real ones."""

    def __init__(self, root: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.root = root
        self._capture = capture
        for name in ("locks", "layers"):
            shutil.copytree(REPOSITORY / name, root / name)
        self.pins = make(root)
        self.definition = root / "locks/dsv41.toml"
        self.lock = root / "locks/dsv41.lock.json"
        shutil.copy(STAND_IN / "dsv41.lock.json", self.lock)
        shutil.copy(STAND_IN / "dsv41-overlays.states.toml", root / "layers/dsv41-overlays/states.toml")
        config = json.loads(self.lock.read_text())["pins"]["base"]["config"]
        values = {
            "base.reference": "localhost/imgbuild/standin-dsv41",
            "base.tag": "standin-dsv41",
            "base.manifest": self.pins["standin-dsv41"],
            "base.config": config,
            "sources.nccl.digest": self.pins["nccl"],
        }
        for name in ("adapter", "sparkring"):
            values[f"sources.{name}.repository"] = f"{FOLDER}/{name}.bundle"
            values[f"sources.{name}.commit"] = self.pins[name]
        edits = [Edit(keys=tuple(path.split(".")), value=value) for path, value in values.items()]
        edits += [
            Edit(keys=("sources", "sparkring", "digests", path), value=str(Digest.of(text.encode())))
            for path, text in sources.patches().items()
        ]
        raw = edit_toml(self.definition.read_bytes(), edits, subject="test")
        self.definition.write_bytes(raw)
        code, found = self.run("lock", "dsv41", "--source", f"nccl={root / FOLDER / 'libnccl.so.2'}")
        assert code == 0, found

    def run(self, verb: str, image: str, *words: str) -> tuple[int, Any]:
        """A command with --json: its exit code, and its result or its error."""
        self._capture.readouterr()
        where = ["--project", str(self.root), "--cache", str(self.root / "cache"), "--offline"]
        code = run([verb, image, *where, "--json", *words])
        document = json.loads(self._capture.readouterr().out)
        return code, document.get("result") or document.get("error")

    def base(self, path: str, data: bytes, tag: str = "standin-dsv41") -> str:
        """Another base with one file more, or in place of one; returns its manifest."""
        *others, last = bases.layers()
        kept = [change for change in last if change.path.decode() != path]
        layers: list[list[Change]] = [*others, kept + files({path: data})]
        store = StagedStore(self.root / ".imgbuild/store", ledger=Ledger())
        return str(bases.write(store, tag, changed=layers).digest)

    def commit(self, name: str, contents: dict[str, str]) -> str:
        """Another commit on the branch of a repository."""
        data, commit = sources.bundle(contents)
        (self.root / FOLDER / f"{name}.bundle").write_bytes(data)
        return commit

    def both(self) -> tuple[bytes, bytes]:
        return self.definition.read_bytes(), self.lock.read_bytes()


@pytest.fixture
def images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Images:
    cache, common = tmp_path / "cache", default_folder()
    for name in ("blobs", "zig", "tools"):
        if (common / name).is_dir():
            shutil.copytree(common / name, cache / name, copy_function=os.link, symlinks=True)
    return Images(tmp_path, capsys)


def changed_lines(before: bytes, after: bytes) -> list[str]:
    rows = difflib.ndiff(before.decode().splitlines(), after.decode().splitlines())
    return [row for row in rows if row[0] in "+-"]


def test_the_base_moves_and_its_two_lines_are_all_that_changes_in_the_definition(images: Images) -> None:
    before, _ = images.both()
    old = json.loads(images.lock.read_text())["pins"]["base"]
    manifest = images.base(f"{bases.SGLANG}/python/sglang/new.py", b"NEW = 1\n")
    code, found = images.run("lock", "dsv41", "--update", "base")
    assert code == 0, found
    new = json.loads(images.lock.read_text())["pins"]["base"]
    assert new["manifest"] == manifest
    assert changed_lines(before, images.definition.read_bytes()) == [
        f'- manifest = "{old["manifest"]}"',
        f'- config = "{old["config"]}"',
        f'+ manifest = "{manifest}"',
        f'+ config = "{new["config"]}"',
    ]
    base = found["moved_pin"]["base"]
    assert (base["labels"]["count"], base["distributions"]["count"], base["preimages"]) == (0, 0, [])
    code, built = images.run("build", "dsv41")
    assert code == 0, built


def test_a_base_whose_file_upstream_does_not_know_shows_the_hunk_that_fails_and_moves_nothing(images: Images) -> None:
    before = images.both()
    text = sources.before(sources.TWICE).replace("line 18\n", "line 18, another\n")
    manifest = images.base(BACKEND, text.encode())
    code, error = images.run("lock", "dsv41", "--update", "base", "--to", manifest)
    assert (code, error["code"]) == (4, "FACT_MISMATCH")
    assert images.both() == before
    patch = error["patch"]
    assert (patch["path"], patch["step"]) == (f"/{BACKEND}", "dsv41-overlays/1")
    assert (patch["recorded"], patch["found"]) == (error["expected"], str(Digest.of(text.encode())))
    assert f"!# {sources.TWICE}, line 18, another" in patch["hunk"]["there"]
    assert f"-# {sources.TWICE}, line 20" in patch["hunk"]["lines"]


def test_the_adapter_moves_and_what_our_layer_has_to_follow_is_shown(images: Images) -> None:
    commit = images.commit("adapter", {**sources.ADAPTER, "Dockerfile": "FROM lmsysorg/sglang:newer\n"})
    code, found = images.run("lock", "dsv41", "--update", "adapter")
    assert code == 0, found
    (row,) = found["moved_pin"]["git"]
    assert row["new"] == commit
    assert row["commits"]["is_ancestor"] is False
    (evidence,) = row["evidence"]
    assert evidence["path"] == "Dockerfile"
    assert "+FROM lmsysorg/sglang:newer" in evidence["diff"]


def test_a_patch_of_the_source_that_is_known_by_digest_does_not_change_unseen(images: Images) -> None:
    before = images.both()
    patches = {path: text.replace("changed", "changed!") for path, text in sources.sparkring().items()}
    images.commit("sparkring", patches)
    code, error = images.run("lock", "dsv41", "--update", "sparkring")
    path = f"{sources.PATCHES}/bounded-prefill.patch"
    assert (code, error["where"].split(",")[0]) == (4, path)
    assert error["actual"] == str(Digest.of(patches[path].encode()))
    assert "sources.sparkring.digests" in error["hint"]
    assert images.both() == before


def as_upstream_writes_them(states: dict[str, list[str]]) -> bytes:
    """A file of states as that of the repository is laid out: a comment, and each list on several lines."""
    rows = (
        f"{json.dumps(path)} = [\n" + "".join(f'    "{state}",\n' for state in row) + "]\n"
        for path, row in states.items()
    )
    return "".join(["# What upstream says.\n", *rows]).encode()


def test_a_patch_moves_with_its_digest_and_its_state_and_nothing_else_does(images: Images) -> None:
    path = images.root / "layers/dsv41-overlays/states.toml"
    path.write_bytes(as_upstream_writes_them(sources.states()))
    assert images.run("lock", "dsv41")[0] == 0
    before, states = images.definition.read_bytes(), path.read_bytes()
    name = f"{sources.PATCHES}/bounded-prefill.patch"
    old = sources.sparkring()
    new = {**old, name: old[name].replace("line 30, changed again", "line 30, changed otherwise")}
    commit = images.commit("sparkring", new)
    code, found = images.run("lock", "dsv41", "--update", "patch:bounded-prefill", "--dry-run")
    assert (code, images.definition.read_bytes(), path.read_bytes()) == (0, before, states), found
    code, found = images.run("lock", "dsv41", "--update", "patch:bounded-prefill")
    assert code == 0, found
    (patch,) = found["moved_pin"]["patches"]
    assert [row["path"] for row in patch["files"]] == [sources.TWICE]
    (row,) = patch["states"]
    assert (row["path"], row["old"][:2] == row["new"][:2]) == (f"/{BACKEND}", True)
    assert changed_lines(before, images.definition.read_bytes()) == [
        f'- commit = "{images.pins["sparkring"]}"',
        f'+ commit = "{commit}"',
        f'- "{name}" = "{Digest.of(old[name].encode())}"',
        f'+ "{name}" = "{Digest.of(new[name].encode())}"',
    ]
    assert changed_lines(states, path.read_bytes()) == [f'-     "{row["old"][-1]}",', f'+     "{row["new"][-1]}",']
    pins = {change["path"].partition("[")[0] for change in found["changes"] if change["path"].startswith("pins")}
    assert pins == {"pins.files", "pins.sources"}
    code, built = images.run("build", "dsv41")
    assert code == 0, built


def test_a_patch_after_which_the_next_one_fails_moves_nothing_and_the_next_one_is_named(images: Images) -> None:
    path = images.root / "layers/dsv41-overlays/states.toml"
    before, states = images.both(), path.read_bytes()
    name = f"{sources.PATCHES}/sglang-39068.patch"
    old = sources.sparkring()
    # What the first patch leaves in the file that both change, around the line that the second one changes.
    line = f"# {sources.TWICE}, line 30\n"
    again = "@@ -27,7 +27,7 @@\n" + "".join(
        f"-{line}+# {sources.TWICE}, no 30\n" if number == 30 else f" # {sources.TWICE}, line {number}\n"
        for number in range(27, 34)
    )
    start = old[name].index(f"--- a/{sources.TWICE}\n")
    end = old[name].find("diff --git", start)
    end = len(old[name]) if end == -1 else end
    images.commit("sparkring", {**old, name: old[name][:end] + again + old[name][end:]})
    code, error = images.run("lock", "dsv41", "--update", "patch:sglang-39068")
    assert (code, error["code"]) == (3, "PATCH_REFUSED")
    assert f"patch {sources.PATCHES}/bounded-prefill.patch of source sparkring" in error["subject"]
    assert (error["patch"]["path"], error["patch"]["step"]) == (f"/{BACKEND}", "dsv41-overlays/1")
    assert error["patch"]["recorded"] == sources.states()[sources.TWICE][1]
    assert error["patch"]["found"] not in sources.states()[sources.TWICE]
    assert f"!# {sources.TWICE}, no 30" in error["patch"]["hunk"]["there"]
    assert (images.both(), path.read_bytes()) == (before, states)


def test_the_library_moves_to_a_build_for_the_ring_and_is_compared(images: Images) -> None:
    before, _ = images.both()
    path = images.root / "other.so"
    path.write_bytes(library("2.30.7", extra=b"NCCL_SWITCHLESS_RING_ONLY\0"))
    code, found = images.run("lock", "dsv41", "--update", "nccl", "--to", str(path))
    assert code == 0, found
    (row,) = found["moved_pin"]["libraries"]
    assert row["against"]["differs"][0] == "digest"
    assert "markers.NCCL_SKIP_TREE_CONNECT" in row["against"]["differs"]
    assert len(changed_lines(before, images.definition.read_bytes())) == 2


def test_a_variant_moves_the_commit_that_is_its_own_and_no_other_pin(images: Images) -> None:
    variant = images.root / "locks/dsv41-267.toml"
    raw = variant.read_bytes()
    variant.write_bytes(
        edit_toml(raw, [Edit(keys=("sources", "adapter", "commit"), value=images.pins["adapter"])], subject="test")
    )
    shutil.copy(STAND_IN / "dsv41-267.lock.json", images.root / "locks/dsv41-267.lock.json")
    code, found = images.run("lock", "dsv41-267")
    assert code == 0, found
    manifest = images.base(f"{bases.SGLANG}/python/sglang/new.py", b"NEW = 1\n")
    code, error = images.run("lock", "dsv41-267", "--update", "base", "--to", manifest)
    assert (code, "which stands in locks/dsv41.toml, which dsv41-267 extends" in error["problem"]) == (2, True)
    commit = images.commit("adapter", {**sources.ADAPTER, "README.md": "Another one.\n"})
    code, found = images.run("lock", "dsv41-267", "--update", "adapter", "--to", "main")
    assert (code, found["moved_pin"]["definition"]) == (0, "locks/dsv41-267.toml")
    assert variant.read_bytes() == raw.replace(b"e59e6eb67479aa68f6fa700c600dc90a0729b5ec", commit.encode())
