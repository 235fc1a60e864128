"""What others published of a base: which of it is taken, what hostile ones can do, and that the layers remain."""

from __future__ import annotations

import dataclasses
import gzip
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from imgbuild import jsontext
from imgbuild.adapters.cache import Cache
from imgbuild.adapters.registry.repository import Repository
from imgbuild.adapters.registry.uploads import Upload
from imgbuild.content.bundle import SCHEMA, compress, pack
from imgbuild.content.packagetable import load_packages
from imgbuild.content.treefile import TreeFile
from imgbuild.digest import Digest
from imgbuild.errors import BudgetError
from imgbuild.ledger import Ledger
from imgbuild.steps import published_search
from imgbuild.steps.places import Places
from imgbuild.steps.published import (
    ARTIFACT_TYPE,
    FILES_TYPE,
    INVENTORY_NOTE,
    INVENTORY_TYPE,
    PREIMAGES_TYPE,
    TREE_NOTE,
    TREE_TYPE,
)
from imgbuild.steps.published_search import Wanted, fetch_published

from tests.support.fault_registry import Answer, Fault, FaultRegistry, FlipBit, stored
from tests.support.refusals import locked
from tests.support.remote import BASE, Remote, base_to, registries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.tiny import Tiny

Row = dict[str, Any]
ALL = {0, 1, 2}
"""The layers of the base of a tiny project."""
PATCHED = {2}
"""Those of which files are patched: they are read where nobody published these files."""
NONE: set[int] = set()
BY_LAYER = (INVENTORY_TYPE, FILES_TYPE)
OF_ALL = (TREE_TYPE, FILES_TYPE, PREIMAGES_TYPE)


@dataclass
class Shelf:
    """A base in a registry, and what is attached to it."""

    remote: Remote
    fault: FaultRegistry
    folder: Path

    @property
    def wanted(self) -> list[str]:
        """The inventories that the lock pins, by layer."""
        return [row["inventory"] for row in locked(self.remote.tiny)["facts"]["base_layers"]]

    @property
    def tree(self) -> str:
        """The merged view that the lock pins."""
        return str(locked(self.remote.tiny)["facts"]["base_tree"])

    def publish(self, *kinds: str) -> str:
        """Attach the right one, with these kinds of blobs or all; the digest of the referrer."""
        code, found = self.remote.run("inventory", self.remote.reference(BASE, "v1"), "--push", cache=self.folder / "a")
        assert code == 0, found
        referrer = str(found["published"]["referrer"])
        if not kinds:
            return referrer
        rows = [row for row in self.rows_of(referrer) if row["mediaType"] in kinds]
        del self.fault.repository(BASE).manifests[referrer]
        return self.attach(rows)

    def row(self, kind: str, data: bytes, named: str) -> Row:
        """A row of a referrer whose blob is in the registry."""
        blob = stored(data)
        self.fault.add_blob(BASE, blob)
        note = TREE_NOTE if kind in {TREE_TYPE, PREIMAGES_TYPE} else INVENTORY_NOTE
        return {"mediaType": kind, "digest": blob.digest, "size": blob.size, "annotations": {note: named}}

    def rows_of(self, referrer: str) -> list[Row]:
        rows: list[Row] = jsontext.loads(self.fault.repository(BASE).manifests[referrer].raw, subject="x")["layers"]
        return rows

    def attach(self, layers: Any, **more: Any) -> str:
        """Attach a referrer with these layers, whatever they are; its digest."""
        base = self.fault.repository(BASE).resolve("v1")
        assert base is not None
        document = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "artifactType": ARTIFACT_TYPE,
            "layers": layers,
            "subject": {"mediaType": base.media_type, "digest": base.digest, "size": len(base.raw)},
            **more,
        }
        return self.fault.put_manifest(BASE, document)

    def attach_before(self, right: str, count: int, layers: Any) -> None:
        """Attach referrers that are listed before the right one: the registry lists them by digest."""
        found = 0
        for number in range(100_000):
            one = self.attach(layers, annotations={"number": str(number)})
            found += one < right
            if one > right:
                del self.fault.repository(BASE).manifests[one]
            if found == count:
                return
        pytest.fail("the right one is the very first")

    def build(self, name: str = "b") -> set[int]:
        """Build on a machine that has nothing but the wheels; which layers of the base were read for it."""
        cache = Cache(self.folder / name, ledger=Ledger())
        for _, data in self.remote.tiny.keep_wheels().values():
            cache.put([data])
        self.fault.clear_log()
        code, result = self.remote.run("build", "tiny", "--dry-run", cache=self.folder / name)
        assert code == 0, result
        lock = locked(self.remote.tiny)
        assert result["manifest"] == lock["result"]["manifest"]
        asked = " ".join(one.path for one in self.fault.requests("blob", "GET"))
        return {number for number, row in enumerate(lock["facts"]["base_layers"]) if row["digest"] in asked}


@pytest.fixture
def shelf(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Shelf]:
    with FaultRegistry() as fault:
        base_to(tiny, fault.host, monkeypatch)
        yield Shelf(remote=Remote(tiny=tiny, host=fault.host, capture=capsys), fault=fault, folder=tmp_path)


def test_with_the_right_inventories_only_layers_with_patched_files_are_read(shelf: Shelf) -> None:
    assert shelf.build("without") == ALL
    shelf.publish(*BY_LAYER)
    assert shelf.build("with") == PATCHED


def test_with_the_merged_view_and_what_is_patched_no_layer_is_read_and_no_inventory(shelf: Shelf) -> None:
    inventories = {row["digest"] for row in shelf.rows_of(shelf.publish()) if row["mediaType"] == INVENTORY_TYPE}
    assert len(inventories) == len(ALL)
    assert shelf.build() == NONE
    assert not inventories & {one.reference for one in shelf.fault.requests("blob")}


def test_without_the_small_files_of_a_merged_view_the_layers_that_have_them_are_read(shelf: Shelf) -> None:
    shelf.publish(TREE_TYPE, PREIMAGES_TYPE)
    assert NONE < shelf.build() < ALL


def test_what_one_published_of_all_layers_and_another_of_each_go_together(shelf: Shelf) -> None:
    shelf.publish(FILES_TYPE, PREIMAGES_TYPE)
    shelf.publish(INVENTORY_TYPE, FILES_TYPE)
    assert shelf.build() == NONE


@pytest.mark.usefixtures("tight")
@pytest.mark.parametrize(
    "data",
    [compress(b"imgbuild/tree/v4\nanother"), b"\x1f\x8b garbage", gzip.compress(b"\0" * (8 << 20), 9)],
    ids=["another", "no-gzip", "bomb"],
)
def test_a_merged_view_that_is_not_the_right_one_is_not_kept_and_does_not_hide_it(shelf: Shelf, data: bytes) -> None:
    evil = [shelf.row(TREE_TYPE, data, shelf.tree)]
    shelf.attach(evil)
    assert shelf.build("alone") == ALL
    inventories = shelf.publish(*BY_LAYER, PREIMAGES_TYPE)
    assert shelf.build("inventories") == NONE
    del shelf.fault.repository(BASE).manifests[inventories]
    shelf.attach_before(shelf.publish(*OF_ALL), 2, evil)
    assert shelf.build("beside") == NONE


def records(shelf: Shelf) -> set[Path]:
    """The RECORDs of the base in the cache of a build."""
    found = TreeFile(
        Cache(shelf.folder / "b", ledger=Ledger()).path(Digest.parse(shelf.tree)).read_bytes(), subject="x"
    )
    parsed = load_packages(found.packages, lambda _: b"", subject="x")
    assert parsed
    return {shelf.folder / "b" / "blobs/sha256" / record for _, _, record in parsed if record is not None}


@pytest.mark.parametrize("damage", ["gone", "empty"])
def test_small_files_that_were_lost_are_fetched_again_without_a_layer(shelf: Shelf, damage: str) -> None:
    shelf.publish()
    shelf.build()
    for path in records(shelf):
        path.unlink() if damage == "gone" else path.write_bytes(b"")
    assert shelf.build() == NONE
    assert all(path.stat().st_size for path in records(shelf))


def test_a_merged_view_that_was_damaged_in_the_cache_is_fetched_again(shelf: Shelf) -> None:
    shelf.publish()
    shelf.build()
    path = Cache(shelf.folder / "b", ledger=Ledger()).path(Digest.parse(shelf.tree))
    path.write_bytes(path.read_bytes()[:-1])
    assert shelf.build() == NONE


def test_small_files_that_are_others_do_not_hide_the_right_ones_and_are_not_kept(shelf: Shelf) -> None:
    right = shelf.publish()
    trees = [row for row in shelf.rows_of(right) if row["mediaType"] == TREE_TYPE]
    junk = [shelf.row(FILES_TYPE, pack([b"junk"]), digest) for digest in shelf.wanted]
    shelf.attach_before(right, 2, [*trees, *junk])
    assert shelf.build() == NONE
    assert not Cache(shelf.folder / "b", ledger=Ledger()).has(Digest.of(b"junk"))


def test_blobs_that_hold_nothing_are_not_fetched_for_ever(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published_search, "_MAX_TOTAL", 300_000)
    empty = b"".join(gzip.compress(b"", mtime=0) for _ in range(999)) * 5
    rows = [shelf.row(INVENTORY_TYPE, empty, digest) for digest in shelf.wanted]
    for number in range(9):
        shelf.attach(rows, annotations={"number": str(number)})
    assert shelf.build() == ALL
    asked = [one for one in shelf.fault.requests("blob", "GET") if one.reference == rows[0]["digest"]]
    assert 0 < len(asked) * len(empty) < 700_000


# Files that are patched


def preimages(shelf: Shelf) -> set[str]:
    """The files of the base that steps of the lock patch."""
    states = {row["states"][0] for row in locked(shelf.remote.tiny)["pins"]["files"]}
    touched = locked(shelf.remote.tiny)["facts"]["touched"]
    return {row["digest"] for row in touched if row.get("digest") in states and row["layer"] in PATCHED}


def test_what_is_patched_is_fetched_alone_where_all_else_is_known(shelf: Shelf) -> None:
    shelf.publish()
    shelf.build()
    lost = preimages(shelf)
    assert lost
    for digest in lost:
        Cache(shelf.folder / "b", ledger=Ledger()).path(Digest.parse(digest)).unlink()
    assert shelf.build() == NONE
    kinds = {row["digest"]: row["mediaType"] for row in shelf.rows_of(shelf.publish())}
    asked = {one.reference for one in shelf.fault.requests("blob", "GET")}
    assert {kinds[digest] for digest in asked & kinds.keys()} <= {PREIMAGES_TYPE}


def test_nothing_is_asked_for_where_all_is_known(shelf: Shelf) -> None:
    shelf.publish()
    shelf.build()
    assert shelf.build() == NONE
    assert not shelf.fault.requests("referrers")


@pytest.mark.parametrize(
    "data",
    [pack([b"pollution"]), b"\x1f\x8b garbage", compress(b"no line")],
    ids=["others", "no-gzip", "no-list"],
)
def test_files_that_nobody_patches_are_not_kept_and_do_not_end_the_search(shelf: Shelf, data: bytes) -> None:
    evil = [shelf.row(PREIMAGES_TYPE, data, shelf.tree)]
    shelf.attach_before(shelf.publish(), 2, evil)
    assert shelf.build() == NONE
    assert not Cache(shelf.folder / "b", ledger=Ledger()).has(Digest.of(b"pollution"))


def test_without_a_lock_of_the_project_no_files_are_published(shelf: Shelf) -> None:
    path = shelf.remote.tiny.project().lock_path("tiny")
    raw = path.read_bytes()
    path.unlink()
    kinds = {row["mediaType"] for row in shelf.rows_of(shelf.publish())}
    assert kinds == {TREE_TYPE, INVENTORY_TYPE, FILES_TYPE}
    path.write_bytes(raw)
    assert shelf.build() == PATCHED


def test_a_lock_that_cannot_be_read_does_not_stop_the_others(shelf: Shelf) -> None:
    project = shelf.remote.tiny.project()
    (project.root / "locks" / "broken.toml").write_text("not toml")
    project.lock_path("broken").write_text("{}")
    assert PREIMAGES_TYPE in {row["mediaType"] for row in shelf.rows_of(shelf.publish())}


# What breaks does not stop the others, and alone it leaves the layers


def other_inventory(shelf: Shelf) -> list[Row]:
    """A well-formed inventory that is not the one that it is said to be."""
    data = compress(b'{"schema":"imgbuild/inventory/v4"}\n')
    return [shelf.row(INVENTORY_TYPE, data, digest) for digest in shelf.wanted]


def swapped(shelf: Shelf) -> list[Row]:
    """Right inventories, each under the name of another one."""
    rows = [row for row in shelf.rows_of(shelf.publish()) if row["mediaType"] == INVENTORY_TYPE]
    shelf.fault.repository(BASE).manifests = {
        digest: made
        for digest, made in shelf.fault.repository(BASE).manifests.items()
        if ARTIFACT_TYPE.encode() not in made.raw
    }
    return [
        {**row, "annotations": {INVENTORY_NOTE: digest}}
        for row, digest in zip(rows, shelf.wanted[1:] + shelf.wanted[:1], strict=True)
    ]


def bomb(shelf: Shelf) -> list[Row]:
    data = gzip.compress(b"\0" * (8 << 20), 9)
    return [shelf.row(kind, data, digest) for digest in shelf.wanted for kind in (INVENTORY_TYPE, FILES_TYPE)]


def no_gzip(shelf: Shelf) -> list[Row]:
    return [shelf.row(INVENTORY_TYPE, b"\x1f\x8b garbage", digest) for digest in shelf.wanted]


def absent(shelf: Shelf) -> list[Row]:
    rows = [shelf.row(INVENTORY_TYPE, digest.encode(), digest) for digest in shelf.wanted]
    for row in rows:
        del shelf.fault.repository(BASE).blobs[row["digest"]]
    return rows


def too_long(shelf: Shelf) -> list[Row]:
    return [{**shelf.row(INVENTORY_TYPE, b"x", digest), "size": 1 << 40} for digest in shelf.wanted]


def of_another_size(shelf: Shelf) -> list[Row]:
    rows = [shelf.row(INVENTORY_TYPE, compress(b"x" * 100), digest) for digest in shelf.wanted]
    return [{**row, "size": row["size"] + 1} for row in rows]


BROKEN: list[Callable[[Shelf], Any]] = [
    lambda _: "text",
    lambda _: [5],
    lambda _: [{"mediaType": INVENTORY_TYPE, "digest": "sha256:1", "size": 1}],
    lambda shelf: [{**shelf.row(INVENTORY_TYPE, b"x", "sha256:1")}],
    lambda shelf: [{**shelf.row(INVENTORY_TYPE, b"x", shelf.wanted[0]), "annotations": [1]}],
    lambda shelf: [{**shelf.row(INVENTORY_TYPE, b"x", shelf.wanted[0]), "urls": ["http://127.0.0.1:1/"]}],
    other_inventory,
    bomb,
    no_gzip,
    absent,
    too_long,
    of_another_size,
]
NAMES = ["text", "number", "digest", "note", "notes", "urls", "other", "bomb", "no-gzip", "absent", "long", "size"]


@pytest.fixture
def tight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that a quick test can exceed."""
    monkeypatch.setattr(published_search, "_MAX_EXPANDED", dict.fromkeys((*OF_ALL, *BY_LAYER), 1 << 20))


@pytest.mark.usefixtures("tight")
@pytest.mark.parametrize("broken", BROKEN, ids=NAMES)
def test_a_broken_referrer_before_the_right_one_does_not_hide_it_and_alone_leaves_the_layers(
    shelf: Shelf, broken: Callable[[Shelf], Any]
) -> None:
    layers = broken(shelf)
    shelf.attach(layers)
    assert shelf.build("alone") == ALL
    # What was made of the layers is there, and nothing that was published.
    for path in (shelf.folder / "alone").glob("blobs/sha256/*"):
        assert str(Digest.of(path.read_bytes())) == f"sha256:{path.name}"
    shelf.attach_before(shelf.publish(*BY_LAYER), 2, layers)
    assert shelf.build("beside") == PATCHED


def test_a_blob_that_is_too_large_is_not_asked_for(shelf: Shelf) -> None:
    rows = too_long(shelf)
    shelf.attach(rows)
    assert shelf.build() == ALL
    assert not {row["digest"] for row in rows} & {one.reference for one in shelf.fault.requests("blob")}


def test_right_inventories_under_the_names_of_others_are_not_taken(shelf: Shelf) -> None:
    shelf.attach(swapped(shelf))
    assert shelf.build() == ALL


@pytest.mark.parametrize("action", [Answer(status=404), Answer(status=403), FlipBit(at=30)], ids=["404", "403", "bit"])
def test_a_referrer_that_is_listed_and_cannot_be_had_does_not_stop_the_others(
    shelf: Shelf, action: Answer | FlipBit
) -> None:
    right = shelf.publish(*BY_LAYER)
    shelf.attach_before(right, 1, [])
    stray = min(digest for digest, made in shelf.fault.repository(BASE).manifests.items() if b"number" in made.raw)
    fault = shelf.fault.faults.add(Fault(action=action, path=f"manifests/{stray}", times=None))
    assert shelf.build() == PATCHED
    assert any(one.fault for one in shelf.fault.requests("manifest")), fault


def test_one_blob_that_is_gone_costs_its_own_layer_only(shelf: Shelf) -> None:
    rows = [row for row in shelf.rows_of(shelf.publish(*BY_LAYER)) if row["mediaType"] == INVENTORY_TYPE]
    del shelf.fault.repository(BASE).blobs[rows[0]["digest"]]
    assert shelf.build() == {0, *PATCHED}


def test_the_right_one_is_found_behind_many_strays(shelf: Shelf) -> None:
    shelf.attach_before(shelf.publish(), 40, [])
    assert shelf.build() == NONE


def test_what_is_listed_behind_the_last_that_is_looked_into_is_not_found_and_the_layers_are_read(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published_search, "_MAX_REFERRERS", 3)
    right = shelf.publish()
    shelf.attach_before(right, 3, [])
    assert shelf.build() == ALL
    assert not [one for one in shelf.fault.requests("manifest") if right in one.path]


def test_nothing_is_looked_into_once_all_is_there(shelf: Shelf) -> None:
    right = shelf.publish()
    shelf.attach_before(right, 1, [])
    for number in range(5):
        shelf.attach([], annotations={"later": str(number)})
    listed = sorted(digest for digest, made in shelf.fault.repository(BASE).manifests.items() if b"subject" in made.raw)
    assert shelf.build() == NONE
    asked = {one.reference for one in shelf.fault.requests("manifest", "GET")}
    assert asked & set(listed) == set(listed[: listed.index(right) + 1])


def test_what_was_of_no_use_counts_and_ends_the_search(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published_search, "_MAX_TOTAL", 1 << 20)
    right = shelf.publish()
    shelf.attach_before(right, 1, bomb(shelf))
    assert shelf.build() == ALL


def test_more_bytes_than_allowed_are_an_error_and_no_broken_referrer(shelf: Shelf) -> None:
    noise = b"".join(Digest.of(bytes([n & 255, n >> 8])).encoded.encode() for n in range(4000))
    shelf.attach([shelf.row(INVENTORY_TYPE, noise, digest) for digest in shelf.wanted])
    ledger = Ledger(max_bytes=40_000)
    repository = Repository(registries(ledger=ledger).of(shelf.fault.host), BASE)
    context = shelf.remote.tiny.context(offline=False)
    places = Places(context.store, context.cache, repositories=lambda: (repository,))
    pinned = shelf.remote.tiny.lock().pins.base.manifest
    wanted = Wanted(
        tree=Digest.parse(shelf.tree),
        inventories=tuple(map(Digest.parse, shelf.wanted)),
        missing=frozenset(map(Digest.parse, shelf.wanted)),
        small=frozenset(),
        preimages=frozenset(),
    )
    with pytest.raises(BudgetError):
        fetch_published(dataclasses.replace(context, base=places), pinned, wanted)


# The small files beside an inventory


def bundle(*files: tuple[str, bytes]) -> bytes:
    """A bundle that lists what it likes."""
    rows = [[digest, len(data)] for digest, data in files]
    head = jsontext.compact({"schema": SCHEMA, "files": rows}) + b"\n"
    return compress(head + b"".join(data for _, data in files))


FILES: dict[str, Callable[[], bytes]] = {
    "not-what-it-lists": lambda: bundle((str(Digest.of(b"another")), b"content")),
    "cut": lambda: compress(gzip.decompress(pack([b"content"]))[:-3]),
    "longer": lambda: compress(gzip.decompress(pack([b"content"])) + b"more"),
    "no-list": lambda: compress(b'{"schema":"imgbuild/files/v1","files":5}\n'),
    "no-line": lambda: compress(b"x" * 100_000),
    "negative": lambda: compress(b'{"schema":"imgbuild/files/v1","files":[["sha256:1",-1]]}\n'),
    "no-gzip": lambda: b"\x1f\x8bxx",
}


@pytest.mark.parametrize("make", FILES.values(), ids=FILES)
def test_small_files_that_are_not_what_they_are_said_to_be_are_looked_for_elsewhere(
    shelf: Shelf, make: Callable[[], bytes]
) -> None:
    right = shelf.publish(*BY_LAYER)
    rows = shelf.rows_of(right)
    evil = [
        shelf.row(FILES_TYPE, make(), row["annotations"][INVENTORY_NOTE]) if row["mediaType"] == FILES_TYPE else row
        for row in rows
    ]
    made = shelf.fault.repository(BASE).manifests.pop(right)
    shelf.attach(evil)
    alone = shelf.build("alone")
    assert alone > PATCHED
    names = {path.name for path in (shelf.folder / "alone").glob("blobs/sha256/*")}
    assert {digest.partition(":")[2] for digest in shelf.wanted} <= names
    shelf.fault.repository(BASE).manifests[right] = made
    shelf.attach_before(right, 1, evil)
    assert shelf.build("beside") == PATCHED


def test_files_without_their_inventory_are_not_kept(shelf: Shelf) -> None:
    shelf.attach([shelf.row(FILES_TYPE, pack([b"pollution"]), digest) for digest in shelf.wanted])
    assert shelf.build() == ALL
    assert not Cache(shelf.folder / "b", ledger=Ledger()).has(Digest.of(b"pollution"))


# Publishing


def test_blobs_are_sent_several_at_a_time(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, now, most = threading.Lock(), [0], [0]
    send = Upload.run

    def run(self: Upload, session: str | None = None) -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.1)
        send(self, session)
        with lock:
            now[0] -= 1

    monkeypatch.setattr(Upload, "run", run)
    shelf.publish()
    assert 2 <= most[0] <= 4


def test_what_cannot_be_sent_ends_it_with_nothing_attached(shelf: Shelf) -> None:
    shelf.fault.faults.add(Fault(action=Answer(status=403), method="POST", times=None))
    before = set(shelf.fault.repository(BASE).manifests)
    code, error = shelf.remote.run("inventory", shelf.remote.reference(BASE, "v1"), "--push", cache=shelf.folder / "a")
    assert (code, error["code"]) == (5, "FORBIDDEN")
    assert set(shelf.fault.repository(BASE).manifests) == before


def test_what_nobody_would_look_into_is_not_published(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imgbuild.steps.published.MAX_INVENTORY", 1500)
    rows = shelf.rows_of(shelf.publish())
    kept = [row["annotations"][INVENTORY_NOTE] for row in rows if row["mediaType"] in BY_LAYER]
    assert set(kept) < set(shelf.wanted)
    assert TREE_TYPE not in {row["mediaType"] for row in rows}
