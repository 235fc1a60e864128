from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from imgbuild.adapters.store import StagedStore, Store
from imgbuild.digest import Digest
from imgbuild.errors import DigestMismatchError, IntegrityError, LayoutError, MissingError, StorageError
from imgbuild.ledger import Ledger
from imgbuild.model.oci import Descriptor, Family

if TYPE_CHECKING:
    from pathlib import Path

REF_NAME = "org.opencontainers.image.ref.name"
IMAGE = Descriptor(media_type=Family.OCI.manifest, digest=Digest.of(b"image"), size=5)
OTHER = Descriptor(media_type=Family.OCI.manifest, digest=Digest.of(b"other"), size=6)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "store", ledger=Ledger())
    store.create()
    return store


def index(store: Store) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((store.root / "index.json").read_bytes())
    return value


def write_index(store: Store, value: Any) -> None:
    (store.root / "index.json").write_text(json.dumps(value))


def test_an_empty_store_is_an_image_layout(store: Store) -> None:
    assert json.loads((store.root / "oci-layout").read_bytes()) == {"imageLayoutVersion": "1.0.0"}
    assert index(store) == {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [],
    }
    assert store.tags() == {}


def test_making_it_again_changes_nothing(store: Store) -> None:
    store.tag("one", IMAGE)
    before = {path: path.read_bytes() for path in store.root.rglob("*") if path.is_file()}
    store.create()
    assert {path: path.read_bytes() for path in store.root.rglob("*") if path.is_file()} == before


def test_a_tag_is_found_moved_and_named_when_it_is_missing(store: Store) -> None:
    store.tag("one", IMAGE)
    store.tag("two", IMAGE)
    store.tag("one", OTHER)
    assert store.tags() == {"two": IMAGE, "one": OTHER}
    assert store.resolve("one") == OTHER
    with pytest.raises(MissingError) as caught:
        store.resolve("three")
    assert caught.value.hint == "tags there: one, two"


def test_C59_what_others_wrote_into_the_index_keeps_its_value_and_order(store: Store) -> None:
    foreign = [
        {"mediaType": "application/x", "digest": str(OTHER.digest), "size": 1, "platform": {"os": "plan9"}},
        {
            **IMAGE.as_dict(),
            "annotations": {REF_NAME: "z", "x": "\N{SNOWMAN}"},
            "data": "eA==",
            "x-kept": [1, None, 0.5],
        },
        {**IMAGE.as_dict(), "annotations": {"no": "name"}},
        {**IMAGE.as_dict(), "annotations": None},
        {**IMAGE.as_dict(), "annotations": {REF_NAME: "a"}},
    ]
    outer = {"schemaVersion": 2, "manifests": foreign, "annotations": {"of": "the index"}, "x-unknown": {"kept": True}}
    write_index(store, outer)
    store.tag("ours", IMAGE)
    ours = {**IMAGE.as_dict(), "annotations": {REF_NAME: "ours"}}
    assert index(store) == {**outer, "manifests": [*foreign, ours]}
    store.tag("ours", OTHER)
    assert index(store)["manifests"][:-1] == foreign


@pytest.mark.parametrize("value", [{"imageLayoutVersion": "2.0.0"}, {"imageLayoutVersion": 1}, {}, [], None])
def test_a_layout_of_another_version_is_neither_read_nor_written(store: Store, value: Any) -> None:
    (store.root / "oci-layout").write_text(json.dumps(value))
    for use in (store.create, store.tags, lambda: store.tag("x", IMAGE)):
        with pytest.raises(LayoutError, match="another version") as caught:
            use()
        assert caught.value.expected == "1.0.0"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"manifests": {}}',
        b'{"manifests": [1]}',
        b'{"manifests": [], "manifests": []}',
        b'{"manifests": [{"annotations": {"org.opencontainers.image.ref.name": "x"}}]}',
        b'{"manifests": [], "x": "' + b"x" * 5_000_000 + b'"}',
    ],
    ids=range(9),
)
def test_an_index_that_is_none_is_one_typed_error(store: Store, content: bytes) -> None:
    (store.root / "index.json").write_bytes(content)
    with pytest.raises(LayoutError, match=r"index\.json"):
        store.tags()


@pytest.mark.parametrize("name", ["index.json", "oci-layout"])
@pytest.mark.parametrize("target", [None, "/dev/zero", "elsewhere"])
def test_a_document_that_is_no_file_is_refused_without_waiting(store: Store, name: str, target: str | None) -> None:
    path = store.root / name
    path.rename(store.root / "elsewhere")
    if target is None:
        os.mkfifo(path)
    else:
        path.symlink_to(target)
    with pytest.raises(LayoutError, match=r"cannot be read: it is (no regular file|a symbolic link)"):
        store.tags()


@pytest.mark.parametrize("annotations", [[], "text", 1, {REF_NAME: 1}, {REF_NAME: None}])
def test_annotations_of_any_shape_are_no_tag_and_no_crash(store: Store, annotations: Any) -> None:
    write_index(store, {"schemaVersion": 2, "manifests": [{**IMAGE.as_dict(), "annotations": annotations}]})
    assert store.tags() == {}
    store.tag("ours", IMAGE)
    assert index(store)["manifests"][0]["annotations"] == annotations


def test_a_folder_that_is_no_layout_is_missing_and_says_what_to_do(tmp_path: Path) -> None:
    for root in (tmp_path / "absent", tmp_path):
        with pytest.raises(MissingError, match="is not an OCI image layout") as caught:
            Store(root, ledger=Ledger()).resolve("x")
        assert "--store" in str(caught.value.hint)


def test_a_folder_with_other_things_in_it_is_not_made_a_store(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(LayoutError, match="neither empty nor an OCI image layout"):
        Store(tmp_path, ledger=Ledger()).create()
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def manifest_of(store: Store, **changes: Any) -> Descriptor:
    config = store.put([b"{}"])
    layer = store.put([b"layer"])
    value = {
        "schemaVersion": 2,
        "mediaType": Family.OCI.manifest,
        "config": {"mediaType": Family.OCI.config, "digest": str(config[0]), "size": config[1]},
        "layers": [{"mediaType": Family.OCI.layer_gzip, "digest": str(layer[0]), "size": layer[1]}],
        **changes,
    }
    raw = json.dumps({key: item for key, item in value.items() if item is not None}).encode()
    digest, size = store.put([raw])
    return Descriptor(media_type=Family.OCI.manifest, digest=digest, size=size)


def test_a_manifest_is_read_by_its_descriptor_or_by_its_digest_alone(store: Store) -> None:
    descriptor = manifest_of(store)
    assert store.manifest(descriptor).digest == descriptor.digest
    assert store.descriptor_of(descriptor.digest) == descriptor


def test_a_manifest_that_does_not_say_what_it_is_needs_a_descriptor(store: Store) -> None:
    descriptor = manifest_of(store, mediaType=None)
    assert store.manifest(descriptor).digest == descriptor.digest
    with pytest.raises(LayoutError, match="does not state its media type"):
        store.descriptor_of(descriptor.digest)


@pytest.mark.parametrize(
    "media_type",
    ["application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json"],
)
def test_C40_an_index_is_not_taken_for_an_image(store: Store, media_type: str) -> None:
    with pytest.raises(LayoutError, match="is an index"):
        store.manifest(Descriptor(media_type=media_type, digest=IMAGE.digest, size=5))


def test_a_descriptor_with_another_size_than_its_blob_is_refused(store: Store) -> None:
    descriptor = manifest_of(store)
    for size in (descriptor.size - 1, descriptor.size + 1):
        store.repair = False
        with pytest.raises(DigestMismatchError):
            store.manifest(Descriptor(media_type=descriptor.media_type, digest=descriptor.digest, size=size))


def test_a_descriptor_that_announces_a_huge_manifest_is_refused_before_anything_is_read(store: Store) -> None:
    descriptor = Descriptor(media_type=Family.OCI.manifest, digest=IMAGE.digest, size=2**53)
    with pytest.raises(LayoutError, match="too long"):
        store.manifest(descriptor)
    assert store.ledger.rows() == ()


@pytest.fixture
def staged(tmp_path: Path) -> StagedStore:
    return StagedStore(tmp_path / "store", ledger=Ledger())


def test_staged_blobs_are_ours_alone_until_they_are_published(staged: StagedStore) -> None:
    with staged.session():
        digest, size = staged.put([b"new"])
        staged.verify(digest, size, subject="blob")
        others = Store(staged.root, ledger=Ledger())
        assert not others.has(digest)
        staged.publish()
        assert others.has(digest, size)
        staged.verify(digest, size, subject="blob")
    assert staged.has(digest)


def test_what_was_not_published_is_gone_after_the_session_whatever_ended_it(staged: StagedStore) -> None:
    digest = Digest.of(b"new")
    with pytest.raises(LayoutError, match="it did not work"), staged.session():  # noqa: PT012 - how it ends
        staged.put([b"new"])
        raise LayoutError("x", "it did not work")
    assert not staged.has(digest)
    assert not [path for path in (staged.root / ".imgbuild-staging").rglob("*") if path.is_file()]


def test_what_a_killed_session_left_is_gone_in_the_next_one(staged: StagedStore) -> None:
    staged.create()
    staged.put([b"left"])
    pending = staged.root / ".imgbuild-staging" / "blobs" / "sha256" / ".imgbuild-pending-left"
    pending.write_bytes(b"half")
    index = staged.root / ".imgbuild-pending-index"
    index.write_bytes(b"half")
    with staged.session():
        assert not staged.has(Digest.of(b"left"))
        assert not pending.exists()
        assert not index.exists()


def test_C58_publishing_puts_a_whole_blob_in_the_place_of_a_damaged_one(staged: StagedStore) -> None:
    with staged.session():
        digest, size = staged.put([b"content"])
        damaged = staged.root / "blobs" / "sha256" / digest.encoded
        damaged.parent.mkdir(parents=True, exist_ok=True)
        damaged.write_bytes(b"conten?")
        staged.publish()
    assert damaged.read_bytes() == b"content"
    staged.verify(digest, size, subject="blob")


def test_a_damaged_staged_blob_is_taken_away_and_the_published_one_of_that_name_stays(staged: StagedStore) -> None:
    with staged.session():
        digest, size = staged.put([b"content"])
        staged.publish()
        staged.put([b"content"])
        staged.path(digest).write_bytes(b"conten?")
        with pytest.raises(IntegrityError):
            staged.verify(digest, size, subject="blob")
        staged.verify(digest, size, subject="blob")


@pytest.mark.parametrize(
    "name", ["blobs", "blobs/sha256", ".imgbuild-staging", ".imgbuild-staging/blobs", ".imgbuild-staging/blobs/x"]
)
def test_a_folder_of_the_store_that_is_a_link_is_refused_and_nothing_is_touched_behind_it(
    staged: StagedStore, tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    for below in ("abc", "blobs/sha256/abc", "sha256/abc", "blobs/sha256/.imgbuild-pending-abc"):
        (elsewhere / below).parent.mkdir(parents=True, exist_ok=True)
        (elsewhere / below).write_bytes(b"years of work")
    before = sorted(elsewhere.rglob("*"))
    path = staged.root / name
    shutil.rmtree(path, ignore_errors=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(elsewhere)
    with pytest.raises(LayoutError, match="is a symbolic link") as caught, staged.session():
        staged.put([b"new"])
    assert str(path) in str(caught.value.subject)
    assert sorted(elsewhere.rglob("*")) == before


@pytest.mark.parametrize("name", [".imgbuild-lock", ".imgbuild-build-lock"])
def test_a_lock_file_that_is_a_link_makes_nothing_elsewhere(staged: StagedStore, tmp_path: Path, name: str) -> None:
    staged.create()
    (staged.root / name).unlink(missing_ok=True)
    (staged.root / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError) as caught, staged.session():
        staged.tag("x", IMAGE)
    assert "symbolic link" in str(caught.value.hint)
    assert not (tmp_path / "elsewhere").exists()


def test_the_store_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "store").symlink_to("real")
    linked = StagedStore(tmp_path / "store", ledger=Ledger())
    with linked.session():
        digest, _ = linked.put([b"new"])
        linked.publish()
    assert (tmp_path / "real" / "blobs" / "sha256" / digest.encoded).is_file()
