from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from imgbuild.adapters.cache import Cache, default_folder
from imgbuild.content.inventory import Entry, Inventory
from imgbuild.digest import Digest
from imgbuild.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable

DIFF_ID = Digest.of(b"a layer")
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


def test_an_inventory_is_kept_by_diff_id_and_found_by_it_or_with_its_own_digest(cache: Cache) -> None:
    digest = cache.keep_inventory(INVENTORY)
    assert digest == Digest.of(INVENTORY.dump())
    assert cache.inventory(DIFF_ID) == (INVENTORY, digest)
    assert cache.inventory(DIFF_ID, digest) == (INVENTORY, digest)
    assert cache.inventory(DIFF_ID, Digest.of(b"another")) is None
    assert cache.inventory(Digest.of(b"another layer")) is None


@pytest.mark.parametrize("how", DAMAGE)
def test_C58_a_damaged_inventory_is_dropped(cache: Cache, how: str) -> None:
    cache.keep_inventory(INVENTORY)
    path = only_file(cache.root / "inventories")
    path.write_bytes(DAMAGE[how](path.read_bytes()))
    assert cache.inventory(DIFF_ID) is None
    assert not path.exists()


def test_C58_an_inventory_under_the_name_of_another_layer_is_dropped(cache: Cache) -> None:
    digest = cache.keep_inventory(INVENTORY)
    other = Digest.of(b"another layer")
    path = only_file(cache.root / "inventories")
    wrong = path.rename(path.with_name(f"{other.encoded}.{digest.encoded}"))
    assert cache.inventory(other) is None
    assert not wrong.exists()


def test_an_inventory_that_an_older_version_wrote_is_dropped(cache: Cache) -> None:
    raw = INVENTORY.dump().replace(b"inventory/v1", b"inventory/v0")
    (cache.root / "inventories").mkdir()
    path = cache.root / "inventories" / f"{DIFF_ID.encoded}.{Digest.of(raw).encoded}"
    path.write_bytes(raw)
    assert cache.inventory(DIFF_ID) is None
    assert not path.exists()


def test_C59_an_inventory_that_another_process_removes_meanwhile_is_just_not_there(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.keep_inventory(INVENTORY)
    path = only_file(cache.root / "inventories")
    real = Path.read_bytes

    def late(self: Path) -> bytes:
        path.unlink(missing_ok=True)
        return real(self)

    monkeypatch.setattr(Path, "read_bytes", late)
    assert cache.inventory(DIFF_ID) is None


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
