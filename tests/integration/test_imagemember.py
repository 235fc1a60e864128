"""A file of another image: where it is looked for, and what is refused about the image, the path and the bytes."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import io
import json
import tarfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from imgbuild.adapters.registry.repository import Repository
from imgbuild.config import DEFAULT_LIMITS
from imgbuild.content.node import Node
from imgbuild.content.packagetable import dump_packages
from imgbuild.content.tree import Tree
from imgbuild.content.treefile import dump_tree
from imgbuild.digest import Digest
from imgbuild.errors import (
    ArchiveError,
    BudgetError,
    DigestMismatchError,
    FactMismatchError,
    ImgbuildError,
    InputError,
    IntegrityError,
    LayoutError,
    MissingError,
    OfflineMissError,
    UnpinnedError,
)
from imgbuild.ledger import Ledger
from imgbuild.model.image import ImageMemberSource
from imgbuild.model.oci import INDEX_TYPES, Descriptor, Family
from imgbuild.steps.imagemember import fetch_member
from imgbuild.steps.inventories import take_inventories
from imgbuild.steps.published import Whole, publish

from tests.support.fault_registry import Answer, Fault, FaultRegistry, FlipBit, SeededImage
from tests.support.remote import registries
from tests.support.tiny import Tiny

if TYPE_CHECKING:
    from pathlib import Path

    from imgbuild.adapters.registry.session import Registries
    from imgbuild.steps.context import Context

NAME = "team/other"
WANTED = b"the library" * 1000
DIGEST = Digest.of(WANTED)
Item = tuple[str, str, bytes]
"""Kind, path, and content or target."""
_TYPES = {"file": tarfile.REGTYPE, "dir": tarfile.DIRTYPE, "link": tarfile.SYMTYPE, "hard": tarfile.LNKTYPE}


def layer(*items: Item) -> bytes:
    """A tar of entries in their order."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for kind, path, data in items:
            entry = tarfile.TarInfo(path)
            entry.type, entry.mode = _TYPES.get(kind, tarfile.FIFOTYPE), 0o755
            if kind == "file":
                entry.size = len(data)
            else:
                entry.linkname = data.decode()
            archive.addfile(entry, io.BytesIO(data) if kind == "file" else None)
    return buffer.getvalue()


LOW = layer(("dir", "usr", b""), ("dir", "usr/lib", b""), ("link", "lib", b"usr/lib"), ("file", "usr/low", b"low"))
MIDDLE = layer(("dir", "usr", b""), ("dir", "usr/lib", b""), ("file", "usr/lib/nccl", WANTED))
HIGH = layer(("dir", "usr", b""), ("file", "usr/high", b"high" * 100))
LAYERS = (LOW, MIDDLE, HIGH)


@dataclass
class Shelf:
    """A registry and a machine that has nothing of it."""

    fault: FaultRegistry
    folder: Path
    max_bytes: int | None = None
    offline: bool = False

    @functools.cached_property
    def context(self) -> Context:
        root = self.folder / "machine"
        root.mkdir(exist_ok=True)
        ledger = Ledger(max_bytes=self.max_bytes)

        @functools.cache
        def connect() -> Registries:
            return registries(ledger=ledger)

        plain = Tiny(root).context(offline=self.offline)
        plain.store.create()
        return dataclasses.replace(plain, ledger=ledger, connect=connect)

    def seed(self, *layers: bytes, architecture: str = "arm64") -> SeededImage:
        diff_ids = [f"sha256:{hashlib.sha256(raw).hexdigest()}" for raw in layers]
        rootfs = {"type": "layers", "diff_ids": diff_ids}
        config = {"architecture": architecture, "os": "linux", "rootfs": rootfs, "config": {}}
        return self.fault.seed_image(NAME, layers=layers, config=config)

    def index(self, *rows: tuple[SeededImage, str]) -> str:
        manifests = [
            {
                "mediaType": image.media_type,
                "digest": image.digest,
                "size": len(image.raw),
                "platform": {"os": "linux", "architecture": architecture},
            }
            for image, architecture in rows
        ]
        return self.fault.put_manifest(NAME, {"schemaVersion": 2, "mediaType": INDEX_TYPES[0], "manifests": manifests})

    def fetch(self, image: str, path: str = "/usr/lib/nccl", **changes: Any) -> bytes:
        """The bytes that are in the cache afterwards."""
        platform = changes.pop("platform", "linux/arm64")
        reference = image if "/" in image else f"{self.fault.host}/{NAME}@{image}"
        source = ImageMemberSource(**{"image": reference, "path": path, "digest": DIGEST, **changes})
        try:
            fetch_member(self.context, "nccl", source, platform=platform)
        except ImgbuildError:
            assert not self.context.cache.has(source.digest)
            assert not list((self.context.cache.root / "blobs" / "sha256").glob(".*"))
            raise
        found = self.context.cache.get(source.digest)
        assert found is not None
        return found

    def read(self, image: SeededImage) -> list[int]:
        """Which layers were asked for, in order."""
        asked = [request.reference for request in self.fault.requests("blob", "GET")]
        return [image.layers.index(digest) for digest in asked if digest in image.layers]


@pytest.fixture
def shelf(faulty: FaultRegistry, tmp_path: Path) -> Shelf:
    return Shelf(fault=faulty, folder=tmp_path)


def test_layers_are_read_from_the_top_and_the_one_with_the_file_again(shelf: Shelf) -> None:
    image = shelf.seed(*LAYERS)
    assert shelf.fetch(image.digest) == WANTED
    assert shelf.read(image) == [2, 1, 1]
    assert not any(shelf.context.cache.has(Digest.parse(digest)) for digest in image.layers)
    shelf.context.cache.path(DIGEST).unlink()
    shelf.fault.clear_log()
    assert shelf.fetch(image.digest) == WANTED
    assert shelf.read(image) == [1]


def test_links_on_the_way_are_followed_in_the_merged_tree(shelf: Shelf) -> None:
    top = layer(("dir", "opt", b""), ("link", "opt/current", b"../lib/./nccl"), ("link", "opt/back", b"/opt/../opt"))
    image = shelf.seed(*LAYERS, top)
    for path in ("/lib/nccl", "/opt/current", "/opt/back/back/current"):
        shelf.context.cache.path(DIGEST).unlink(missing_ok=True)
        assert shelf.fetch(image.digest, path) == WANTED


HARD = [
    (LOW, layer(("file", "a", WANTED), ("hard", "b", b"a"))),
    (LOW, layer(("file", "a", WANTED)), layer(("hard", "b", b"a"))),
    (layer(("file", "a", WANTED)), layer(("hard", "b", b"a"), ("file", "a", b"new"))),
    (layer(("file", "a", WANTED)), layer(("hard", "c", b"a")), layer(("hard", "b", b"c"), ("file", ".wh.a", b""))),
]


@pytest.mark.parametrize("layers", HARD)
def test_a_hard_link_is_its_file_wherever_that_is(shelf: Shelf, layers: tuple[bytes, ...]) -> None:
    image = shelf.seed(*layers)
    assert shelf.fetch(image.digest, "/b") == WANTED


def test_of_two_entries_for_one_path_the_one_that_counts_is_taken(shelf: Shelf) -> None:
    image = shelf.seed(LOW, layer(("file", "a", b"x" * len(WANTED)), ("file", "a", WANTED)))
    assert shelf.fetch(image.digest, "/a") == WANTED
    with pytest.raises(DigestMismatchError, match="is another file in the image"):
        shelf.fetch(image.digest, "/a", digest=Digest.of(b"x" * len(WANTED)))


@pytest.mark.parametrize(("number", "read"), [(0, [2, 1, 0, 0]), (1, [2, 1, 1]), (2, [2, 2])])
def test_a_file_without_folders_is_found_in_whatever_layer_it_is(shelf: Shelf, number: int, read: list[int]) -> None:
    layers = [LOW, HIGH, layer(("file", "else", b"else"))]
    layers[number] = layer(("file", "deep/er/nccl", WANTED))
    image = shelf.seed(*layers)
    assert shelf.fetch(image.digest, "/deep/er/nccl") == WANTED
    assert shelf.read(image) == read


def test_a_file_of_the_digest_at_another_path_ends_nothing(shelf: Shelf) -> None:
    image = shelf.seed(*LAYERS, layer(("file", "elsewhere", WANTED)))
    assert shelf.fetch(image.digest) == WANTED
    assert shelf.read(image) == [3, 2, 1, 1]


NOT_THERE = [
    ("/usr/lib/absent", (), "is not in the image"),
    ("/usr/low/nccl", (), "is not in the image"),
    ("/usr/lib/nccl", (("file", "usr/lib/.wh.nccl", b""),), "is not in the image"),
    ("/usr/lib/nccl", (("file", "usr/.wh.lib", b""),), "is not in the image"),
    ("/usr/lib/nccl", (("file", "usr/lib/.wh..wh..opq", b""),), "is not in the image"),
    ("/round", (("link", "round", b"round"),), "is not in the image"),
    ("/out", (("link", "out", b"../../etc/absent"),), "is not in the image"),
    ("/usr/lib", (), "is a directory in the image, not a file"),
    ("/lib", (), "is a directory in the image, not a file"),
    ("/pipe", (("fifo", "pipe", b""),), "is a fifo in the image, not a file"),
]


@pytest.mark.parametrize(("path", "items", "problem"), NOT_THERE)
def test_a_path_that_is_no_file_of_the_merged_tree_is_refused(
    shelf: Shelf, path: str, items: tuple[Item, ...], problem: str
) -> None:
    image = shelf.seed(*LAYERS, layer(*items))
    with pytest.raises(InputError, match=problem) as caught:
        shelf.fetch(image.digest, path)
    assert caught.value.subject == "source nccl"


@pytest.mark.parametrize(
    "path", ["/", "usr/lib/nccl", "/usr/../usr/lib/nccl", "/usr//lib", "/usr/lib/nccl\n", "/a" * 3000]
)
def test_a_path_that_is_none_is_refused_before_the_image_is_asked_for(shelf: Shelf, path: str) -> None:
    with pytest.raises(InputError):
        shelf.fetch(shelf.seed(*LAYERS).digest, path)
    assert not shelf.fault.requests()


def test_a_file_that_a_layer_above_replaces_is_not_the_file(shelf: Shelf) -> None:
    image = shelf.seed(*LAYERS, layer(("file", "usr/lib/nccl", b"newer")))
    with pytest.raises(DigestMismatchError) as caught:
        shelf.fetch(image.digest)
    assert (caught.value.expected, caught.value.actual) == (str(DIGEST), f"{Digest.of(b'newer')}, 5 bytes")


def test_another_size_is_refused_with_both(shelf: Shelf) -> None:
    with pytest.raises(DigestMismatchError, match=f"{DIGEST}, 5 bytes, actual {DIGEST}, {len(WANTED)} bytes"):
        shelf.fetch(shelf.seed(*LAYERS).digest, size=5)


def test_a_file_that_is_too_long_is_not_read(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = dataclasses.replace(DEFAULT_LIMITS, source_bytes=len(WANTED) - 1)
    monkeypatch.setattr("imgbuild.steps.imagemember.DEFAULT_LIMITS", limits)
    with pytest.raises(ArchiveError, match="source_bytes"):
        shelf.fetch(shelf.seed(*LAYERS).digest)


# Which image


def test_of_an_index_the_manifest_of_the_platform_is_taken(shelf: Shelf) -> None:
    other = shelf.seed(layer(("file", "usr/lib/nccl", b"amd64")), architecture="amd64")
    index = shelf.index((other, "amd64"), (shelf.seed(*LAYERS), "arm64"))
    assert shelf.fetch(index) == WANTED
    assert shelf.fetch(index, platform="linux/amd64", digest=Digest.of(b"amd64")) == b"amd64"


def test_an_index_without_the_platform_is_refused(shelf: Shelf) -> None:
    index = shelf.index((shelf.seed(*LAYERS, architecture="amd64"), "amd64"))
    with pytest.raises(LayoutError, match="has no manifest of the platform"):
        shelf.fetch(index)


def test_an_image_for_another_platform_is_refused_also_where_an_index_lies_about_it(shelf: Shelf) -> None:
    image = shelf.seed(*LAYERS, architecture="amd64")
    for digest in (image.digest, shelf.index((image, "arm64"))):
        with pytest.raises(FactMismatchError, match="is for another platform"):
            shelf.fetch(digest)


def test_a_digest_that_only_another_repository_has_is_missing(shelf: Shelf) -> None:
    image = shelf.seed(*LAYERS)
    with pytest.raises(MissingError):
        shelf.fetch(f"{shelf.fault.host}/team/empty@{image.digest}")


def test_the_manifest_of_another_image_is_not_taken_for_this_one(shelf: Shelf) -> None:
    image, other = shelf.seed(*LAYERS), shelf.seed(LOW)
    held = shelf.fault.repository(NAME).manifests
    held[image.digest] = held[other.digest]
    with pytest.raises(DigestMismatchError):
        shelf.fetch(image.digest)


def test_what_is_no_manifest_is_refused(shelf: Shelf) -> None:
    digest = shelf.fault.put_manifest(NAME, b"[1, 2]", media_type=Family.OCI.manifest)
    with pytest.raises(IntegrityError):
        shelf.fetch(digest)


def test_without_a_digest_the_image_is_not_pinned(shelf: Shelf) -> None:
    with pytest.raises(UnpinnedError):
        shelf.fetch(f"{shelf.fault.host}/{NAME}:v1")


def test_an_image_in_the_store_is_read_there(shelf: Shelf) -> None:
    root = shelf.folder / "machine"
    shelf.context  # noqa: B018 - makes the folder
    tiny = Tiny(root)
    descriptor = tiny.write_base()
    found = shelf.fetch(f"localhost/some/base@{descriptor.digest}", "/etc/motd", digest=Digest.of(b"hello\n"))
    assert found == b"hello\n"
    assert not shelf.fault.requests()


# What is on the way


def test_a_damaged_layer_is_refused(shelf: Shelf) -> None:
    shelf.fault.faults.add(Fault(action=FlipBit(at=700), kind="blob", path=shelf.seed(*LAYERS).layers[1], times=None))
    with pytest.raises(IntegrityError):
        shelf.fetch(shelf.seed(*LAYERS).digest)


def test_a_layer_that_is_gone_is_said(shelf: Shelf) -> None:
    image = shelf.seed(*LAYERS)
    shelf.fault.faults.add(Fault(action=Answer(status=404), path=image.layers[1], times=None))
    with pytest.raises(MissingError):
        shelf.fetch(image.digest)


def test_offline_nobody_is_asked(shelf: Shelf) -> None:
    shelf.offline = True
    image = shelf.seed(*LAYERS)
    with pytest.raises(OfflineMissError):
        shelf.fetch(image.digest)
    assert not shelf.fault.requests()


def test_no_more_bytes_are_read_than_allowed(shelf: Shelf) -> None:
    shelf.max_bytes = 10_000
    with pytest.raises(BudgetError):
        shelf.fetch(shelf.seed(*LAYERS).digest)


# What others published


def attach(shelf: Shelf, image: SeededImage, tree: Tree, folder: str = "publisher") -> None:
    """Publish a merged view of an image, be it right or not."""
    other = dataclasses.replace(shelf, folder=shelf.folder / folder)
    other.folder.mkdir()
    raw = b"".join(dump_tree(tree, (), dump_packages({})))
    repository = Repository(registries().of(shelf.fault.host), NAME)
    subject = Descriptor(media_type=image.media_type, digest=Digest.parse(image.digest), size=len(image.raw))
    publish(other.context, repository, subject, [], Whole(tree=raw, preimages=()))
    shelf.fault.clear_log()


def right(shelf: Shelf, image: SeededImage) -> Tree:
    """The merged view, as somebody else finds it."""
    other = dataclasses.replace(shelf, folder=shelf.folder / "reader")
    other.folder.mkdir()
    manifest = json.loads(image.raw)
    layers = [Descriptor.parse(row, subject="layer") for row in manifest["layers"]]
    diff_ids = [Digest.of(raw) for raw in LAYERS]
    context = other.context.based_on(f"{shelf.fault.host}/{NAME}")
    tree = Tree()
    for number, taken in enumerate(take_inventories(context, tuple(layers), tuple(diff_ids), None)):
        tree.apply(taken.inventory, number)
    return tree


def test_with_a_published_view_only_the_layer_with_the_file_is_read(shelf: Shelf) -> None:
    image = shelf.seed(*LAYERS)
    attach(shelf, image, right(shelf, image))
    assert shelf.fetch(image.digest, "/lib/nccl") == WANTED
    assert shelf.read(image) == [1]


def lie(**changes: Any) -> Tree:
    facts = {"type": "file", "mode": 0o644, "size": len(WANTED), "sha256": DIGEST.encoded, "layer": 0}
    tree = Tree()
    tree.put(b"usr/lib/nccl", Node(**{**facts, "source": b"usr/low", **changes}))
    return tree


LIES = [
    lie(),
    lie(layer=99),
    lie(layer=-5),
    lie(layer=1, source=b"usr/lib/nccl", size=2**60),
    lie(layer=2, source=b"usr/high", size=400),
    lie(sha256="00" * 32),
    lie(sha256="00"),
    lie(sha256=None),
    lie(source=None),
    lie(type="symlink", link=b"/usr/lib/nccl"),
    Tree(),
]


@pytest.mark.parametrize("tree", LIES)
def test_a_published_view_that_lies_costs_time_and_changes_nothing(shelf: Shelf, tree: Tree) -> None:
    image = shelf.seed(*LAYERS)
    attach(shelf, image, tree)
    assert shelf.fetch(image.digest) == WANTED
    shelf.context.cache.path(DIGEST).unlink()
    with pytest.raises(DigestMismatchError):
        shelf.fetch(image.digest, "/usr/high")


def test_of_several_published_views_the_right_one_is_used(shelf: Shelf) -> None:
    image = shelf.seed(*LAYERS)
    attach(shelf, image, lie(), "liar")
    attach(shelf, image, right(shelf, image))
    assert shelf.fetch(image.digest) == WANTED
    assert set(shelf.read(image)) <= {0, 1}


def test_a_registry_whose_referrers_break_has_the_layers_all_the_same(shelf: Shelf) -> None:
    image = shelf.seed(*LAYERS)
    attach(shelf, image, right(shelf, image))
    shelf.fault.faults.add(Fault(action=Answer(status=400), kind="referrers", times=None))
    assert shelf.fetch(image.digest) == WANTED
    assert shelf.read(image) == [2, 1, 1]
