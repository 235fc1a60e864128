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
        return self.run("build", image, "--offline", *self.given(image))

    def given(self, image: str) -> list[str]:
        """The words that give the library, where the image has one."""
        return [] if image in BASES else ["--source", f"nccl={self.root / FOLDER / 'libnccl.so.2'}"]

    def digest(self, image: str) -> str:
        """The hexadecimal digits of the manifest of an image's base."""
        return self.pins[BASES.get(image, "standin-dsv41")].removeprefix("sha256:")

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


# Refusals: what is changed, for which images, and what is said. Not for each image is there each of them: only those
# with an adapter have patches and swap a library; one without layers has neither sources nor files that could be other
# ones, and of its base alone it can be said whether it is the one that is meant.

AUTH = f"{bases.SGLANG}/python/sglang/srt/utils/auth.py"
DRAFT = f"{bases.SGLANG}/python/sglang/srt/layers/quantization/modelopt_quant.py"
KERNEL = f"{bases.SGLANG}/python/sglang/kernels/ops/attention/flash_mla_sm120.py"
BACKEND = f"{bases.SGLANG}/{sources.TWICE}"
ADAPTER = ("dsv41", "dsv41-267", "dsv41-nvfp4")
NVFP4, AIDEN, VLLM = ("dsv41-nvfp4",), ("dsv41-aiden",), ("dsv41-1017-vllm",)


def with_file(path: str, data: bytes) -> list[list[Change]]:
    """The layers of a base, and one more file in the last of them, or in place of one."""
    *others, last = bases.layers()
    return [*others, [change for change in last if change.path.decode() != path] + files({path: data})]


def without_file(path: str) -> list[list[Change]]:
    """The layers of a base without a file of them."""
    found = [[change for change in layer if change.path.decode() != path] for layer in bases.layers()]
    assert found != bases.layers()
    return found


def a_preimage_of_a_patch(site: Site, image: str) -> None:
    text = sources.before(sources.TWICE).replace("line 35\n", "line 35, another\n")
    site.other_base(image, with_file(BACKEND, text.encode()))


def a_preimage_of_an_edit(site: Site, image: str) -> None:
    site.other_base(image, with_file(AUTH, b"import secrets\n"))


def a_preimage_of_the_draft(site: Site, image: str) -> None:
    site.other_base(image, with_file(DRAFT, b"import torch\n"))


def no_kernel_to_replace(site: Site, image: str) -> None:
    site.other_base(image, without_file(KERNEL))


def a_file_where_ours_goes(site: Site, image: str) -> None:
    site.other_base(image, with_file("opt/dsv41-spark/overlay/sitecustomize.py", b"HOOKS = None\n"))


def the_package_is_there_already(site: Site, image: str) -> None:
    folder = f"{bases.SITE}/tabulate-0.8.0.dist-info"
    layers = bases.layers()
    layers.append(files({f"{folder}/METADATA": b"Name: tabulate\nVersion: 0.8.0\n", f"{folder}/RECORD": b""}))
    site.other_base(image, layers)


def the_order_of_patches(site: Site, _image: str) -> None:
    path = site.root / "layers/dsv41-overlays/layer.toml"
    one, other = "sglang-39068.patch", "bounded-prefill.patch"
    text = path.read_text().replace(one, "?").replace(other, one).replace("?", other)
    path.write_text(text)


def a_file_of_the_adapter(site: Site, image: str) -> None:
    site.other_source(
        image, "adapter", {path: text for path, text in sources.ADAPTER.items() if "row_store" not in path}
    )


def the_licence_of_the_adapter(site: Site, image: str) -> None:
    site.other_source(image, "adapter", {path: text for path, text in sources.ADAPTER.items() if path != "LICENSE"})


def a_patch_of_the_overlays(site: Site, image: str) -> None:
    kept = {path: text for path, text in sources.sparkring().items() if "bounded-prefill" not in path}
    site.other_source(image, "sparkring", kept)


def a_file_of_the_overlay(site: Site, image: str) -> None:
    kept = {path: text for path, text in sources.RECIPES.items() if not path.endswith(".c")}
    site.other_source(image, "recipes", kept)


def the_licence_of_the_overlay(site: Site, image: str) -> None:
    site.other_source(image, "recipes", {path: text for path, text in sources.RECIPES.items() if "LICENSE" not in path})


def a_library_without_the_ring(site: Site, image: str) -> None:
    data = library("2.30.7", extra=b"NCCL_SKIP_TREE_CONNECT\0")
    (site.root / FOLDER / "libnccl.so.2").write_bytes(data)
    site.edit(image, site.pins["nccl"], str(Digest.of(data)))


def another_library_than_the_one_that_is_pinned(site: Site, _image: str) -> None:
    shutil.rmtree(site.root / "cache/blobs")
    (site.root / FOLDER / "libnccl.so.2").write_bytes(library("2.30.7"))


def the_architecture(site: Site, image: str) -> None:
    site.other_base(image, architecture="amd64")


def the_label(site: Site, image: str) -> None:
    tag = BASES.get(image, "standin-dsv41")
    site.edit(image, bases.LABELS[tag], "0" * 40)


def no_label(site: Site, image: str) -> None:
    site.other_base(image, labels={"other": "label"})


def the_config(site: Site, image: str) -> None:
    manifest = site.pins[BASES.get(image, "standin-dsv41")]
    site.edit(image, f'manifest = "{manifest}"\n', f'manifest = "{manifest}"\nconfig = "sha256:{"0" * 64}"\n')


def the_manifest(site: Site, image: str) -> None:
    site.edit(image, site.pins[BASES.get(image, "standin-dsv41")], f"sha256:{'0' * 64}")


def an_extra_library(site: Site, image: str) -> None:
    site.other_base(image, with_file("opt/other/libnccl.so.2", library("2.27.1")))


@pytest.mark.parametrize(
    ("images", "change", "code", "name", "says"),
    [
        (ADAPTER, a_preimage_of_a_patch, 4, "FACT_MISMATCH", "is not what upstream says it to be before the first"),
        (ADAPTER, a_preimage_of_an_edit, 3, "STEP_REFUSED", f"edit of /{AUTH}: the text to find does not occur"),
        (NVFP4, a_preimage_of_the_draft, 3, "STEP_REFUSED", f"edit of /{DRAFT}: the text to find does not occur"),
        (ADAPTER, no_kernel_to_replace, 3, "STEP_REFUSED", f"file /{KERNEL}: is to be replaced but is not in the"),
        (AIDEN, a_file_where_ours_goes, 3, "STEP_REFUSED", "sitecustomize.py: exists in the image already"),
        (AIDEN, the_package_is_there_already, 3, "STEP_REFUSED", "tabulate"),
        (ADAPTER, the_order_of_patches, 4, "FACT_MISMATCH", "is not what upstream says it to be after patch"),
        (ADAPTER, a_patch_of_the_overlays, 3, "STEP_REFUSED", "bounded-prefill.patch"),
        (ADAPTER, a_file_of_the_adapter, 3, "STEP_REFUSED", "has no such file to compile; expected adapter/row_store"),
        (ADAPTER, the_licence_of_the_adapter, 3, "STEP_REFUSED", "lacks its licence file; expected LICENSE"),
        (AIDEN, a_file_of_the_overlay, 3, "STEP_REFUSED", "engram_rows.c"),
        (AIDEN, the_licence_of_the_overlay, 3, "STEP_REFUSED", "lacks its licence file; expected"),
        (IMAGES, the_architecture, 4, "FACT_MISMATCH", "expected linux/arm64, actual linux/amd64"),
        (IMAGES, the_label, 4, "FACT_MISMATCH", "label ai.sglang.build.commit of the base"),
        (IMAGES, no_label, 4, "FACT_MISMATCH", "label ai.sglang.build.commit of the base"),
        (IMAGES, the_config, 3, "INPUT_INVALID", "has another config than the definition demands"),
        (IMAGES, the_manifest, 5, "MISSING", f"sha256:{'0' * 64}"),
    ],
)
def test_what_cannot_be_locked_is_refused_with_the_right_words(
    site: Site, images: tuple[str, ...], change: Callable[[Site, str], None], code: int, name: str, says: str
) -> None:
    for image in images:
        lock = (site.root / STAND_IN / f"{image}.lock.json").read_bytes()
        change(site, image)
        found, error = site.run("lock", image, "--offline", *site.given(image))
        assert (found, error["code"], says in error["message"]) == (code, name, True), error
        assert (site.root / STAND_IN / f"{image}.lock.json").read_bytes() == lock
        if change is the_order_of_patches:
            change(site, image)


@pytest.mark.parametrize("image", ADAPTER)
def test_a_library_of_another_digest_is_not_taken(site: Site, image: str) -> None:
    another_library_than_the_one_that_is_pinned(site, image)
    code, error = site.build(image)
    assert (code, error["code"]) == (4, "DIGEST_MISMATCH")
    assert (error["expected"], site.pins["nccl"] in error["expected"]) == (site.pins["nccl"], True)


@pytest.mark.parametrize("image", IMAGES)
def test_a_damaged_layer_of_the_base_gets_no_tag(site: Site, image: str) -> None:
    manifest = json.loads((site.root / ".imgbuild/store/blobs/sha256" / site.digest(image)).read_bytes())
    name = manifest["layers"][-1]["digest"].removeprefix("sha256:")
    path = site.root / ".imgbuild/store/blobs/sha256" / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    code, built = site.build(image)
    assert code == 1, built
    found = [row for row in built["findings"] if row["verdict"] == "differs" and name in json.dumps(row)]
    assert [row["check"] for row in found] == ["base.blob"], found
    assert f"stand-in-{image}" not in Store(site.root / ".imgbuild/store", ledger=Ledger()).tags()


def an_undeclared_requirement(site: Site, _image: str) -> None:
    path = site.root / "locks/dsv41.toml"
    text, found, rest = path.read_text().partition("\n# The base force-installs")
    if found:
        path.write_text(text + rest[rest.index("\n\n") :])


def a_requirement_that_is_met(site: Site, image: str) -> None:
    metadata = f"{bases.SITE}/torch-2.13.0+cu130.dist-info/METADATA"
    (old,) = (change for layer in bases.layers() for change in layer if change.path.decode() == metadata)
    assert isinstance(old.content, BytesContent)
    layers = bases.layers()
    layers.append(files({metadata: old.content.data.replace(b"==2.29.7", b"==2.30.7")}))
    site.other_base(image, layers)


def an_extra_that_is_not_accepted(site: Site, _image: str) -> None:
    path = site.root / "locks/dsv41.toml"
    path.write_text(path.read_text().replace("libnccl.so.2.28.3", "libnccl.so.2.28.9"))


def an_extra_that_is_gone(site: Site, image: str) -> None:
    site.other_base(image, without_file(SYSTEM))


SYSTEM = "usr/lib/aarch64-linux-gnu/libnccl.so.2.28.3"


@pytest.mark.parametrize(
    ("change", "check", "subject", "says"),
    [
        (an_undeclared_requirement, "library.nccl.metadata", "torch", "nvidia-nccl-cu13==2.29.7"),
        (a_requirement_that_is_met, "library.nccl.accept", "torch", ""),
        (a_library_without_the_ring, "library.nccl.strings", "libnccl.so.2", "NCCL_SWITCHLESS_RING_ONLY"),
        (an_extra_library, "library.nccl.provider", "/opt/other/libnccl.so.2", ""),
        (an_extra_that_is_not_accepted, "library.nccl.provider", f"/{SYSTEM}", ""),
        (an_extra_that_is_gone, "library.nccl.accept", f"/{SYSTEM}", ""),
    ],
)
def test_what_does_not_pass_gets_no_tag_and_the_finding_says_why(
    site: Site, change: Callable[[Site, str], None], check: str, subject: str, says: str
) -> None:
    for image in ADAPTER:
        change(site, image)
        assert site.run("lock", image, "--offline", *site.given(image))[0] == 0
        code, built = site.run("build", image, "--offline")
        assert code == 1
        found = [row for row in built["findings"] if row["verdict"] == "differs" and row["check"] == check]
        assert [row for row in found if subject in row["subject"] and says in json.dumps(row)], built["findings"]
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
