"""Inventories of layers that claim what they are not, in a real store and cache."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
from typing import TYPE_CHECKING

import msgspec
import pytest
from imgbuild.digest import Digest
from imgbuild.errors import DigestMismatchError, FactMismatchError, LayoutError
from imgbuild.model.oci import Descriptor, Family
from imgbuild.steps.inventories import take_inventories
from imgbuild.steps.layers import open_layer

from tests.support.tiny import Tiny

if TYPE_CHECKING:
    from pathlib import Path

    from imgbuild.steps.context import Context


def tar(name: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(tarfile.TarInfo(name))
    return buffer.getvalue()


GOOD, EVIL = tar("good"), tar("evil")
DIFF_ID = Digest.of(GOOD)


@pytest.fixture
def context(tmp_path: Path) -> Context:
    context = Tiny(tmp_path).context()
    context.store.create()
    return context


def put(context: Context, content: bytes, *, algorithm: str = "sha256", level: int = 9) -> Descriptor:
    data = gzip.compress(content, level, mtime=0)
    expected = Digest(algorithm, hashlib.new(algorithm, data).hexdigest())
    digest, size = context.store.put([data], expected=expected)
    return Descriptor(media_type=Family.OCI.layer_gzip, digest=digest, size=size)


def test_a_layer_that_claims_the_diff_id_of_another_one_is_refused_though_that_one_is_known(context: Context) -> None:
    good, evil = put(context, GOOD), put(context, EVIL)
    assert [row.cached for row in take_inventories(context, (good,), (DIFF_ID,), None)] == [False]
    with pytest.raises(DigestMismatchError, match="does not have the DiffID"):
        take_inventories(context, (evil,), (DIFF_ID,), None)


@pytest.mark.parametrize("first", [0, 1])
def test_of_two_layers_with_one_diff_id_the_wrong_one_is_refused_in_either_order(context: Context, first: int) -> None:
    layers = (put(context, GOOD), put(context, EVIL))
    for _ in ("cold", "warm"):
        with pytest.raises(DigestMismatchError, match="does not have the DiffID"):
            take_inventories(context, (layers[first], layers[1 - first]), (DIFF_ID, DIFF_ID), None)


def test_each_pair_of_layer_and_diff_id_is_read_once(context: Context) -> None:
    one, other = put(context, GOOD), put(context, GOOD, level=0)
    layers = (one, other, one)
    rows = take_inventories(context, layers, (DIFF_ID,) * 3, None)
    assert len({row.digest for row in rows}) == 1
    assert all(row.cached for row in take_inventories(context, layers, (DIFF_ID,) * 3, None))
    assert len(list((context.cache.root / "inventories").iterdir())) == 2


def test_a_known_layer_with_another_size_in_its_descriptor_is_refused(context: Context) -> None:
    layer = put(context, GOOD)
    take_inventories(context, (layer,), (DIFF_ID,), None)
    wrong = Descriptor(media_type=layer.media_type, digest=layer.digest, size=layer.size + 1)
    context.store.repair = False
    with pytest.raises(DigestMismatchError, match="shorter than recorded"):
        take_inventories(context, (wrong,), (DIFF_ID,), None)


@pytest.mark.parametrize("algorithms", [("sha512", "sha256"), ("sha256", "sha512"), ("sha512", "sha512")], ids=str)
def test_C15_a_layer_with_sha512_digests_is_checked_by_them(context: Context, algorithms: tuple[str, str]) -> None:
    good, evil = (put(context, content, algorithm=algorithms[0]) for content in (GOOD, EVIL))
    diff_id = Digest(algorithms[1], hashlib.new(algorithms[1], GOOD).hexdigest())
    for cached in (False, True):
        (row,) = take_inventories(context, (good,), (diff_id,), None)
        assert (row.inventory.diff_id, row.cached) == (diff_id, cached)
    with pytest.raises(DigestMismatchError, match="does not have the DiffID"):
        take_inventories(context, (evil,), (diff_id,), None)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_facts_of_another_number_of_layers_are_refused(context: Context, count: int) -> None:
    layer = put(context, GOOD)
    with pytest.raises(FactMismatchError, match="another number of base layers"):
        take_inventories(context, (layer, layer), (DIFF_ID, DIFF_ID), (DIFF_ID,) * count)


def claimed(context: Context, layer: Descriptor, content: bytes, diff_id: Digest) -> Digest:
    """The digest of the inventory of a layer, with a DiffID that somebody claims."""
    (row,) = take_inventories(context, (layer,), (Digest.of(content),), None)
    context.cache.root.joinpath("inventories").rename(context.cache.root / f"once-{layer.digest.encoded[:8]}")
    return Digest.of(msgspec.structs.replace(row.inventory, diff_id=diff_id).dump())


def test_a_layer_whose_inventory_is_pinned_is_kept_for_whoever_pins_it_and_for_nobody_else(context: Context) -> None:
    good = put(context, GOOD)
    pinned = claimed(context, good, GOOD, DIFF_ID)
    for cached in (False, True):
        (row,) = take_inventories(context, (good,), (DIFF_ID,), (pinned,))
        assert (row.digest, row.cached, row.inventory.diff_id) == (pinned, cached, DIFF_ID)
    assert not (context.cache.root / "inventories").exists()
    (row,) = take_inventories(context, (good,), (DIFF_ID,), None)
    assert (row.digest, row.cached) == (pinned, False)


def test_a_pinned_inventory_with_another_diff_id_than_that_of_the_config_is_refused(context: Context) -> None:
    evil = put(context, EVIL)
    pinned = claimed(context, evil, EVIL, Digest.of(EVIL))
    with pytest.raises(DigestMismatchError, match="does not have the DiffID"):
        take_inventories(context, (evil,), (DIFF_ID,), (pinned,))


def test_another_inventory_than_the_pinned_one_is_refused_where_the_diff_id_is_right(context: Context) -> None:
    good = put(context, GOOD)
    with pytest.raises(FactMismatchError, match="differs from the lock's") as caught:
        take_inventories(context, (good,), (DIFF_ID,), (DIFF_ID,))
    assert caught.value.actual == str(claimed(context, good, GOOD, DIFF_ID))


def test_what_a_lock_wrongly_says_of_a_diff_id_is_believed_with_that_lock_only(context: Context) -> None:
    evil = put(context, EVIL)
    forged = claimed(context, evil, EVIL, DIFF_ID)
    assert take_inventories(context, (evil,), (DIFF_ID,), (forged,))[0].digest == forged
    with pytest.raises(DigestMismatchError, match="does not have the DiffID"):
        take_inventories(context, (evil,), (DIFF_ID,), None)


def test_damage_of_a_layer_whose_inventory_is_pinned_is_found(context: Context) -> None:
    good = put(context, GOOD)
    pinned = claimed(context, good, GOOD, DIFF_ID)
    path = context.store.path(good.digest)
    # Of the time in the header of gzip, which changes nothing of what is in it.
    path.write_bytes(path.read_bytes()[:4] + b"\1" + path.read_bytes()[5:])
    with pytest.raises(DigestMismatchError, match="does not have its digest"):
        take_inventories(context, (good,), (DIFF_ID,), (pinned,))


@pytest.mark.parametrize("change", [-1, 1, 10_000_000])
def test_a_layer_of_another_length_is_damage_before_it_is_unpacked(context: Context, change: int) -> None:
    layer = put(context, GOOD)
    path = context.store.path(layer.digest)
    data = path.read_bytes()
    path.write_bytes(data[:change] if change < 0 else data + bytes(change))
    with pytest.raises(DigestMismatchError, match="than recorded"), open_layer(context, layer):
        pytest.fail("was opened")


def test_a_layer_that_grows_while_it_is_read_ends_one_byte_too_late(context: Context) -> None:
    layer = put(context, GOOD)
    with open_layer(context, layer) as stream:
        with context.store.path(layer.digest).open("ab") as file:
            file.write(bytes(1000))
        count = 0
        while data := stream.read(10):
            count += len(data)
    assert count == layer.size + 1


@pytest.mark.parametrize("target", [None, "/dev/zero"])
def test_a_layer_that_is_no_file_is_refused_and_not_waited_for(context: Context, target: str | None) -> None:
    layer = put(context, GOOD)
    path = context.store.path(layer.digest)
    path.unlink()
    if target is None:
        os.mkfifo(path)
    else:
        path.symlink_to(target)
    with pytest.raises(LayoutError, match="cannot be read: it is"):
        take_inventories(context, (layer,), (DIFF_ID,), None)
