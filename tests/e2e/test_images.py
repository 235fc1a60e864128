"""The images that people run, on stand-ins for what cannot be had here: built, verified, listed, and refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from imgbuild.adapters.cache import default_folder
from imgbuild.adapters.store import StagedStore, Store
from imgbuild.cli import run
from imgbuild.content.changes import BytesContent
from imgbuild.content.compression import decompress
from imgbuild.content.tarstream import EntryType, TarReader
from imgbuild.digest import Digest
from imgbuild.ledger import Ledger

from tests.standin.images import bases, sources
from tests.standin.images.make import FOLDER, make
from tests.support.made import files, library

if TYPE_CHECKING:
    from collections.abc import Callable

    from imgbuild.content.changeset import Change

pytestmark = pytest.mark.mini

REPOSITORY = Path(__file__).parents[2]
STAND_IN = "tests/standin/images"
IMAGES = ("dsv41", "dsv41-267", "dsv41-nvfp4", "dsv41-aiden", "dsv41-1017-vllm")
BASES = {"dsv41-aiden": "standin-aiden", "dsv41-1017-vllm": "standin-vllm"}
"""Of those that have not the base of dsv41."""


class Site:
    """A copy of the repository's documents, with stand-ins of its own."""

    def __init__(self, root: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.root = root
        self._capture = capture
        for name in ("locks", "layers"):
            shutil.copytree(REPOSITORY / name, root / name)
        shutil.copytree(REPOSITORY / STAND_IN, root / STAND_IN, ignore=shutil.ignore_patterns("__pycache__", "*.py"))
        self.pins = make(root)

    def run(self, verb: str, image: str, *words: str) -> tuple[int, Any]:
        """A command with --json: its exit code, and its result or its error."""
        self._capture.readouterr()
        where = ["--project", str(self.root), "--stand-in", str(self.root / STAND_IN)]
        cache = [] if verb == "plan" else ["--cache", str(self.root / "cache")]
        code = run([verb, image, *where, *cache, "--json", *words])
        document = json.loads(self._capture.readouterr().out)
        return code, document.get("result") or document.get("error")

    def build(self, image: str) -> tuple[int, Any]:
        given = [] if image in BASES else ["--source", f"nccl={self.root / FOLDER / 'libnccl.so.2'}"]
        return self.run("build", image, "--offline", *given)

    def edit(self, image: str, old: str, new: str) -> None:
        """Change what stands in for an image."""
        path = self.root / STAND_IN / f"{image}.toml"
        text = path.read_text()
        assert text.count(old) == 1
        path.write_text(text.replace(old, new))

    def other_base(self, image: str, layers: list[list[Change]] | None = None, **changes: Any) -> None:
        """Another base under the same name."""
        tag = BASES.get(image, "standin-dsv41")
        store = StagedStore(self.root / ".imgbuild/store", ledger=Ledger())
        digest = bases.write(store, tag, changed=layers, **changes).digest
        self.edit(image, self.pins[tag], str(digest))

    def other_source(self, image: str, name: str, contents: dict[str, str]) -> None:
        """Another commit of a repository."""
        data, commit = sources.bundle(contents)
        (self.root / FOLDER / f"{name}.bundle").write_bytes(data)
        self.edit(image, self.pins[name], commit)


@pytest.fixture
def site(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Site:
    cache, common = tmp_path / "cache", default_folder()
    for name in ("blobs", "zig", "tools"):
        if (common / name).is_dir():
            shutil.copytree(common / name, cache / name, copy_function=os.link, symlinks=True)
    return Site(tmp_path, capsys)


def listing(root: Path, result: dict[str, Any]) -> str:
    """What the layers of ours hold, one path a line: mode, owner, type, and what is in it.

    But for what is in the documents of imgbuild's own layer, which follow from everything else.
    """
    store = Store(root / ".imgbuild/store", ledger=Ledger())
    rows = []
    for layer in result["layers"]:
        rows.append(f"# {layer['name']}")
        with store.path(Digest.parse(layer["digest"])).open("rb") as stream:
            reader = TarReader(decompress(stream, subject=layer["name"]), subject=layer["name"])
            for entry in reader:
                what = entry.link.decode()
                if entry.type is EntryType.FILE and layer["name"] != "imgbuild":
                    what = Digest.of(b"".join(reader.content())).encoded
                row = f"/{entry.path.decode()} {entry.mode:04o} {entry.uid}:{entry.gid} {entry.type.value} {what}"
                rows.append(row.rstrip())
    return "\n".join(rows) + "\n"


def test_the_stand_ins_are_what_their_documents_pin(site: Site) -> None:
    for image in IMAGES:
        text = (site.root / STAND_IN / f"{image}.toml").read_text()
        wanted = [BASES.get(image, "standin-dsv41"), *(["adapter", "sparkring", "nccl"] if image not in BASES else [])]
        wanted += ["recipes"] if image == "dsv41-aiden" else []
        assert [name for name in wanted if site.pins[name] not in text] == []
    named = (site.root / STAND_IN / "dsv41-overlays.states.toml").read_text()
    expected = "".join(f"{json.dumps(path)} = {json.dumps(states)}\n" for path, states in sources.states().items())
    assert named == expected


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_is_built_as_its_lock_says_and_verified_and_has_just_these_files(site: Site, image: str) -> None:
    code, built = site.build(image)
    assert code == 0, built
    assert built["tags"] == [f"stand-in-{image}"]
    lock = json.loads((site.root / STAND_IN / f"{image}.lock.json").read_text())
    assert built["manifest"] == lock["result"]["manifest"]
    code, verified = site.run("verify", image, "--offline")
    assert code == 0
    assert {row["verdict"] for row in verified["findings"]} <= {"match", "not-checked"}
    golden = REPOSITORY / "tests/golden/images" / f"{image}.txt"
    found = listing(site.root, built)
    if os.environ.get("IMGBUILD_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(found)
    assert found == golden.read_text()


# Refusals: what is changed, for which images, and what is said.

AUTH = f"{bases.SGLANG}/python/sglang/srt/utils/auth.py"
BACKEND = f"{bases.SGLANG}/{sources.TWICE}"
ADAPTER = ("dsv41", "dsv41-267", "dsv41-nvfp4")


def with_file(path: str, data: bytes) -> list[list[Change]]:
    """The layers of a base, and one more file in the last of them, or in place of one."""
    *others, last = bases.layers()
    return [*others, [change for change in last if change.path.decode() != path] + files({path: data})]


def a_preimage_of_a_patch(site: Site, image: str) -> None:
    text = sources.before(sources.TWICE).replace("line 35\n", "line 35, another\n")
    site.other_base(image, with_file(BACKEND, text.encode()))


def a_preimage_of_an_edit(site: Site, image: str) -> None:
    site.other_base(image, with_file(AUTH, b"import secrets\n"))


def the_order_of_patches(site: Site, _image: str) -> None:
    path = site.root / "layers/dsv41-overlays/layer.toml"
    one, other = "sglang-39068.patch", "bounded-prefill.patch"
    text = path.read_text().replace(one, "?").replace(other, one).replace("?", other)
    path.write_text(text)


def a_file_of_the_adapter(site: Site, image: str) -> None:
    site.other_source(
        image, "adapter", {path: text for path, text in sources.ADAPTER.items() if "row_store" not in path}
    )


def a_file_of_the_overlay(site: Site, image: str) -> None:
    kept = {path: text for path, text in sources.RECIPES.items() if not path.endswith(".c")}
    site.other_source(image, "recipes", kept)


def a_library_without_the_ring(site: Site, image: str) -> None:
    data = library("2.30.7", extra=b"NCCL_SKIP_TREE_CONNECT\0")
    (site.root / FOLDER / "libnccl.so.2").write_bytes(data)
    site.edit(image, site.pins["nccl"], str(Digest.of(data)))


def the_architecture(site: Site, image: str) -> None:
    site.other_base(image, architecture="amd64")


def the_label(site: Site, image: str) -> None:
    tag = BASES.get(image, "standin-dsv41")
    site.edit(image, bases.LABELS[tag], "0" * 40)


def an_extra_library(site: Site, image: str) -> None:
    site.other_base(image, with_file("opt/other/libnccl.so.2", library("2.27.1")))


@pytest.mark.parametrize(
    ("images", "change", "code", "says"),
    [
        (ADAPTER, a_preimage_of_a_patch, 4, "is not what upstream says it to be before the first patch"),
        (ADAPTER, a_preimage_of_an_edit, 3, "auth.py"),
        (ADAPTER, the_order_of_patches, 4, "is not what upstream says it to be after patch"),
        (ADAPTER, a_file_of_the_adapter, 3, "adapter/row_store.cpp"),
        (("dsv41-aiden",), a_file_of_the_overlay, 3, "engram_rows.c"),
        (IMAGES, the_architecture, 4, "linux/amd64"),
        (IMAGES, the_label, 4, "ai.sglang.build.commit"),
    ],
)
def test_what_cannot_be_locked_is_refused_with_the_right_words(
    site: Site, images: tuple[str, ...], change: Callable[[Site, str], None], code: int, says: str
) -> None:
    for image in images:
        lock = (site.root / STAND_IN / f"{image}.lock.json").read_bytes()
        change(site, image)
        found, error = site.run("lock", image, "--offline")
        assert (found, says in error["message"]) == (code, True), error["message"]
        assert (site.root / STAND_IN / f"{image}.lock.json").read_bytes() == lock
        if change is the_order_of_patches:
            change(site, image)


def an_undeclared_requirement(site: Site, _image: str) -> None:
    path = site.root / "locks/dsv41.toml"
    text, found, _ = path.read_text().partition("\n# The base force-installs")
    if found:
        path.write_text(text)


def a_requirement_that_is_met(site: Site, image: str) -> None:
    metadata = f"{bases.SITE}/torch-2.13.0+cu130.dist-info/METADATA"
    (old,) = (change for layer in bases.layers() for change in layer if change.path.decode() == metadata)
    assert isinstance(old.content, BytesContent)
    layers = bases.layers()
    layers.append(files({metadata: old.content.data.replace(b"==2.29.7", b"==2.30.7")}))
    site.other_base(image, layers)


@pytest.mark.parametrize(
    ("images", "change", "check"),
    [
        (ADAPTER, an_undeclared_requirement, "library.nccl.metadata"),
        (ADAPTER, a_requirement_that_is_met, "library.nccl.accept"),
        (ADAPTER, a_library_without_the_ring, "library.nccl.strings"),
        (ADAPTER, an_extra_library, "library.nccl.provider"),
    ],
)
def test_what_does_not_pass_gets_no_tag_and_the_finding_says_why(
    site: Site, images: tuple[str, ...], change: Callable[[Site, str], None], check: str
) -> None:
    for image in images:
        change(site, image)
        given = ["--source", f"nccl={site.root / FOLDER / 'libnccl.so.2'}"] if image in ADAPTER else []
        assert site.run("lock", image, "--offline", *given)[0] == 0
        code, built = site.run("build", image, "--offline")
        assert code == 1
        assert check in {row["check"] for row in built["findings"] if row["verdict"] == "differs"}
        assert f"stand-in-{image}" not in Store(site.root / ".imgbuild/store", ledger=Ledger()).tags()


def test_an_image_without_layers_is_its_base_under_a_name_and_verified(site: Site) -> None:
    code, built = site.build("dsv41-1017-vllm")
    assert code == 0, built
    assert (built["manifest"], built["layers"]) == (site.pins["standin-vllm"], [])
    assert {row["check"] for row in built["findings"] if row["verdict"] == "match"} >= {
        "base.layers",
        "manifest",
        "config",
    }
    path = site.root / "locks/dsv41-1017-vllm.toml"
    path.write_text(path.read_text() + '\n[config.env]\nA = "1"\n')
    code, error = site.run("plan", "dsv41-1017-vllm")
    assert (code, "changes an image without layers" in error["message"]) == (3, True)


def test_stand_ins_are_made_without_what_only_tests_need(tmp_path: Path) -> None:
    """`make demo` installs no pytest, and README says to make them then."""
    program = f"import runpy, sys; sys.modules['pytest'] = None; sys.argv[1:] = [{str(tmp_path)!r}]; "
    program += "runpy.run_module('tests.standin.images', run_name='__main__')"
    subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, check=True)
    assert (tmp_path / FOLDER / "libnccl.so.2").is_file()
