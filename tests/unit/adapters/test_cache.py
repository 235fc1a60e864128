from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from imgbuild.adapters.cache import Cache, default_folder
from imgbuild.content.inventory import Entry, Inventory
from imgbuild.digest import Digest
from imgbuild.ledger import Ledger
from imgbuild.model.oci import Descriptor

if TYPE_CHECKING:
    from collections.abc import Callable

DIFF_ID = Digest.of(b"a layer")
LAYER = Descriptor(media_type="x", digest=Digest.of(b"a layer, compressed"), size=7)
KEY = Digest.of(b"all inputs of some work")
INVENTORY = Inventory(
    diff_id=DIFF_ID,
    uncompressed_size=1024,
    entries=(Entry(path="a", type="file", mode=0o644, size=3, sha256="0" * 64),),
)
DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda data: data[:-1],
    "emptied": lambda _: b"",
    "longer": lambda data: data + b"\n",
    "flipped": lambda data: data[:-2] + bytes([data[-2] ^ 1]) + data[-1:],
    "not text": lambda _: b"\xff\xfe\n\x00",
}


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path, ledger=Ledger())


def only_file(folder: Path) -> Path:
    found = list(folder.iterdir())
    assert len(found) == 1
    return found[0]


def test_an_inventory_is_kept_by_layer_and_diff_id_and_found_by_them_or_with_its_own_digest(cache: Cache) -> None:
    digest = cache.keep_inventory(LAYER, INVENTORY)
    assert digest == Digest.of(INVENTORY.dump())
    assert cache.inventory(LAYER, DIFF_ID) == (INVENTORY, digest)
    assert cache.inventory(LAYER, DIFF_ID, digest) == (INVENTORY, digest)
    assert cache.inventory(LAYER, DIFF_ID, Digest.of(b"another")) is None
    assert cache.inventory(LAYER, Digest.of(b"another layer")) is None


@pytest.mark.parametrize("damage", [None, *DAMAGE.values()], ids=["whole", *DAMAGE])
def test_a_small_file_that_a_crash_has_damaged_is_as_if_it_were_not_there(
    cache: Cache, damage: Callable[[bytes], bytes] | None
) -> None:
    data = b"name,sha256=x,5\n"
    digest = Digest.of(data)
    cache.keep(digest, data)
    if damage is not None:
        cache.path(digest).write_bytes(damage(data))
    assert cache.get(digest) == (data if damage is None else None)
    cache.keep(digest, data)
    assert cache.get(digest) == data
    assert [path.name for path in cache.path(digest).parent.iterdir()] == [digest.encoded]


@pytest.mark.parametrize(
    "other",
    [
        Descriptor(media_type="x", digest=Digest.of(b"another blob"), size=7),
        Descriptor(media_type="x", digest=Digest("sha512", "0" * 128), size=7),
        Descriptor(media_type="x", digest=LAYER.digest, size=8),
    ],
    ids=str,
)
def test_an_inventory_says_nothing_of_another_blob_that_claims_the_same_diff_id(
    cache: Cache, other: Descriptor
) -> None:
    cache.keep_inventory(LAYER, INVENTORY)
    assert cache.inventory(other, DIFF_ID) is None
    digest = cache.keep_inventory(other, INVENTORY)
    assert cache.inventory(other, DIFF_ID) == cache.inventory(LAYER, DIFF_ID) == (INVENTORY, digest)


def test_C15_an_inventory_of_a_layer_with_the_longest_digests_has_a_name_that_fits(cache: Cache) -> None:
    digest = Digest("sha512", "0" * 128)
    layer = Descriptor(media_type="x", digest=digest, size=7)
    inventory = Inventory(diff_id=digest, uncompressed_size=0, entries=())
    cache.keep_inventory(layer, inventory)
    assert cache.inventory(layer, digest) is not None


@pytest.mark.parametrize("how", DAMAGE)
def test_C58_a_damaged_inventory_is_dropped(cache: Cache, how: str) -> None:
    cache.keep_inventory(LAYER, INVENTORY)
    path = only_file(cache.root / "inventories")
    path.write_bytes(DAMAGE[how](path.read_bytes()))
    assert cache.inventory(LAYER, DIFF_ID) is None
    assert not path.exists()


def test_C58_an_inventory_under_the_name_of_another_layer_is_dropped(cache: Cache) -> None:
    other = Digest.of(b"another layer")
    cache.keep_inventory(LAYER, INVENTORY)
    right = only_file(cache.root / "inventories")
    cache.keep_inventory(LAYER, msgspec.structs.replace(INVENTORY, diff_id=other))
    (wrong,) = set((cache.root / "inventories").iterdir()) - {right}
    wrong = right.rename(wrong.with_suffix(right.suffix))
    for path in set((cache.root / "inventories").iterdir()) - {wrong}:
        path.unlink()
    assert cache.inventory(LAYER, other) is None
    assert not wrong.exists()


@pytest.mark.parametrize(
    ("now", "before"),
    [
        (b"inventory/v4", b"inventory/v3"),
        (b'"families":["nccl","pnccl"]', b'"families":[]'),
        (b'"families":["nccl","pnccl"]', b'"families":["nccl","pnccl","rccl"]'),
    ],
)
def test_an_inventory_that_another_version_wrote_is_dropped(cache: Cache, now: bytes, before: bytes) -> None:
    cache.keep_inventory(LAYER, INVENTORY)
    path = only_file(cache.root / "inventories")
    raw = path.read_bytes().replace(now, before)
    assert raw != path.read_bytes()
    path.unlink()
    path = path.with_suffix(f".{Digest.of(raw).encoded}")
    path.write_bytes(raw)
    assert cache.inventory(LAYER, DIFF_ID) is None
    assert not path.exists()


def test_C59_an_inventory_that_another_process_removes_meanwhile_is_just_not_there(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.keep_inventory(LAYER, INVENTORY)
    path = only_file(cache.root / "inventories")
    real = Path.glob

    def early(self: Path, pattern: str) -> list[Path]:
        found = list(real(self, pattern))
        path.unlink()
        return found

    monkeypatch.setattr(Path, "glob", early)
    assert cache.inventory(LAYER, DIFF_ID) is None


def fifo(path: Path) -> None:
    os.mkfifo(path)


def zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("make", [fifo, zeros, folder])
def test_what_is_no_file_is_passed_over_without_waiting(cache: Cache, make: Callable[[Path], None]) -> None:
    cache.keep_inventory(LAYER, INVENTORY)
    cache.keep_result(KEY, b"body")
    blob, _ = cache.put([b"RECORD"])
    for path in (only_file(cache.root / "inventories"), only_file(cache.root / "results"), cache.path(blob)):
        path.unlink()
        make(path)
    assert cache.inventory(LAYER, DIFF_ID) is None
    assert cache.result(KEY) is None
    assert cache.get(blob) is None


@pytest.mark.parametrize("make", [fifo, zeros])
def test_what_is_no_file_is_replaced_by_what_is_kept(cache: Cache, make: Callable[[Path], None]) -> None:
    digest = cache.keep_inventory(LAYER, INVENTORY)
    cache.keep_result(KEY, b"body")
    for path in (only_file(cache.root / "inventories"), only_file(cache.root / "results")):
        path.unlink()
        make(path)
    cache.keep_inventory(LAYER, INVENTORY)
    cache.keep_result(KEY, b"body")
    assert cache.inventory(LAYER, DIFF_ID) == (INVENTORY, digest)
    assert cache.result(KEY) == b"body"


def test_a_result_that_is_far_too_long_is_dropped_unread(cache: Cache) -> None:
    cache.keep_result(KEY, b"x" * 2_000_000)
    assert cache.result(KEY) is None


def test_a_result_is_kept_under_its_key(cache: Cache) -> None:
    assert cache.result(KEY) is None
    for body in (b"", b"body", b"two\nlines\n"):
        cache.keep_result(KEY, body)
        assert cache.result(KEY) == body


@pytest.mark.parametrize("how", DAMAGE)
def test_C58_a_damaged_result_is_dropped(cache: Cache, how: str) -> None:
    cache.keep_result(KEY, b"some body\n")
    path = only_file(cache.root / "results")
    path.write_bytes(DAMAGE[how](path.read_bytes()))
    assert cache.result(KEY) is None
    assert not path.exists()


@pytest.mark.parametrize("how", [name for name in DAMAGE if name != "emptied"])
def test_C58_a_damaged_small_file_is_not_here_and_dropped(cache: Cache, how: str) -> None:
    digest, _ = cache.put([b"RECORD"])
    assert cache.get(digest) == b"RECORD"
    cache.path(digest).write_bytes(DAMAGE[how](b"RECORD"))
    assert cache.get(digest) is None
    assert not cache.has(digest)


def test_a_file_that_is_larger_than_the_caller_takes_is_as_good_as_not_here(cache: Cache) -> None:
    digest, _ = cache.put([b"x" * 100])
    assert cache.get(digest, max_bytes=99) is None
    assert cache.get(digest, max_bytes=100) == b"x" * 100


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"IMGBUILD_CACHE": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/a"),
        ({"XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/imgbuild"),
        ({"HOME": "/c"}, "/c/.cache/imgbuild"),
        ({"IMGBUILD_CACHE": "", "XDG_CACHE_HOME": "", "HOME": "/c"}, "/c/.cache/imgbuild"),
    ],
)
def test_the_default_folder_follows_the_environment(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: str
) -> None:
    for name in ("IMGBUILD_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert default_folder() == Path(expected)
