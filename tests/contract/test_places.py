"""Where a base comes from: the store, mirrors in order, and the registry itself at last."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

import pytest
from imgbuild.adapters.cache import Cache
from imgbuild.adapters.store import StagedStore
from imgbuild.digest import Digest, chunks
from imgbuild.errors import (
    BudgetError,
    DigestMismatchError,
    InputError,
    MissingError,
    NetworkError,
    OfflineMissError,
    ServerError,
)
from imgbuild.model.oci import Descriptor
from imgbuild.steps.places import Places, locations

from tests.support import fault_registry as fr
from tests.support.fault_registry import FaultRegistry
from tests.support.reading import Client

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from imgbuild.digest import Readable

NAME = "lib/base"
LAYER = bytes(range(256)) * 2000


class Mirrored:
    """A registry, two mirrors of it that have the same image, and a client."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack, *, max_bytes: int | None = None) -> None:
        self.own = stack.enter_context(FaultRegistry())
        self.mirrors = [stack.enter_context(FaultRegistry()) for _ in range(2)]
        for number, registry in enumerate([self.own, *self.mirrors]):
            self.image = registry.seed_image(f"mirror/{NAME}" if number else NAME, layers=(LAYER,))
        document = json.loads(self.image.raw)
        self.manifest = Descriptor(
            media_type=self.image.media_type, digest=Digest.parse(self.image.digest), size=len(self.image.raw)
        )
        self.layer = Descriptor.parse(document["layers"][0], subject="layer")
        places = ", ".join(f'"{registry.host}/mirror/lib"' for registry in self.mirrors)
        settings = folder / "registries.toml"
        settings.write_text(
            f'schema = "imgbuild/registries/v1"\n[registry."{self.own.host}/lib"]\nmirrors = [{places}]\n'
        )
        self.client = stack.enter_context(Client(settings=settings, max_bytes=max_bytes))
        self.places = self.at(folder)

    def at(self, folder: Path, *, offline: bool = False) -> Places:
        ledger = self.client.ledger
        return Places(
            StagedStore(folder / "store", ledger=ledger, waiting=lambda: None),
            Cache(folder / "cache", ledger=ledger),
            name="base",
            repositories=lambda: locations(self.client.registries, f"{self.own.host}/{NAME}"),
            offline=offline,
        )

    def asked(self) -> list[int]:
        """Requests to the registry itself and to each mirror."""
        return [len(registry.requests()) for registry in (self.own, *self.mirrors)]

    def read_layer(self) -> bytes:
        with self.places.open(self.layer, subject="layer") as stream:
            return b"".join(chunks(stream))


@pytest.fixture
def mirrored(tmp_path: Path) -> Iterator[Mirrored]:
    with contextlib.ExitStack() as stack:
        yield Mirrored(tmp_path, stack)


def test_mirrors_are_in_order_and_the_registry_itself_is_last(mirrored: Mirrored) -> None:
    hosts = [str(repository) for repository in mirrored.places.repositories]
    assert hosts == [f"{one.host}/mirror/{NAME}" for one in mirrored.mirrors] + [f"{mirrored.own.host}/{NAME}"]
    names = locations(mirrored.client.registries, f"{mirrored.own.host}/other/base")
    assert [str(repository) for repository in names] == [f"{mirrored.own.host}/other/base"]
    assert locations(mirrored.client.registries, "localhost/base") == ()
    with pytest.raises(InputError):
        locations(mirrored.client.registries, "base")


def test_the_first_mirror_that_has_it_is_the_only_one_that_is_asked(mirrored: Mirrored) -> None:
    manifest = mirrored.places.manifest(mirrored.manifest)
    assert manifest.raw == mirrored.image.raw
    assert mirrored.read_layer() == LAYER
    assert mirrored.places.where(mirrored.layer) == f"{mirrored.mirrors[0].host}/mirror/{NAME}"
    assert mirrored.asked() == [0, 3, 0]
    assert mirrored.client.notes == []


def test_what_was_fetched_is_not_asked_for_again(mirrored: Mirrored, tmp_path: Path) -> None:
    mirrored.places.manifest(mirrored.manifest)
    mirrored.at(tmp_path).manifest(mirrored.manifest)
    mirrored.at(tmp_path, offline=True).manifest(mirrored.manifest)
    assert mirrored.asked() == [0, 1, 0]


def test_mirrors_that_lack_it_are_passed_over_with_a_note(mirrored: Mirrored) -> None:
    for mirror in mirrored.mirrors:
        mirror.storage.repositories.clear()
    assert mirrored.places.manifest(mirrored.manifest).raw == mirrored.image.raw
    assert mirrored.read_layer() == LAYER
    assert mirrored.places.where(mirrored.layer) == f"{mirrored.own.host}/{NAME}"
    assert mirrored.asked() == [3, 3, 3]
    assert len(mirrored.client.notes) == 6
    assert f"; asking {mirrored.own.host}/{NAME}" in mirrored.client.notes[1]


def test_a_mirror_that_is_down_is_asked_once_and_not_again(mirrored: Mirrored) -> None:
    mirrored.mirrors[0].close()
    mirrored.mirrors[1].faults.always(fr.Answer(status=503))
    assert mirrored.places.manifest(mirrored.manifest).raw == mirrored.image.raw
    before = mirrored.asked()
    assert mirrored.read_layer() == LAYER
    assert mirrored.asked() == [before[0] + 1, *before[1:]]


@pytest.mark.parametrize("action", [fr.FlipBit(at=30), fr.Answer(status=200, body=b"<html>"), fr.Gzip(force=True)])
def test_a_mirror_with_other_bytes_is_passed_over_and_the_right_ones_are_kept(
    mirrored: Mirrored, action: fr.Action
) -> None:
    mirrored.mirrors[0].faults.always(action)
    assert mirrored.places.manifest(mirrored.manifest).raw == mirrored.image.raw
    assert mirrored.asked() == [0, 1, 1]
    assert mirrored.mirrors[0].host in mirrored.client.notes[0]


@pytest.mark.parametrize("status", [401, 403, 500])
def test_a_mirror_that_forbids_is_passed_over(mirrored: Mirrored, status: int) -> None:
    mirrored.mirrors[0].faults.always(fr.Answer(status=status))
    assert mirrored.read_layer() == LAYER
    assert mirrored.asked()[2] == 1


def test_a_layer_goes_on_at_the_next_place_where_one_breaks(mirrored: Mirrored) -> None:
    for cut, mirror in zip((100_000, 200_000), mirrored.mirrors, strict=True):
        mirror.faults.once(fr.CloseInAnswer(after_bytes=cut), "blob")
        mirror.faults.add(fr.Fault(action=fr.Answer(status=403), kind="blob", skip=1, times=None))
    assert mirrored.read_layer() == LAYER
    assert mirrored.own.requests("blob")[0].headers["range"] == "bytes=300000-"


def test_what_the_registry_itself_says_is_the_answer(mirrored: Mirrored) -> None:
    for registry in (mirrored.own, *mirrored.mirrors):
        registry.storage.repositories.clear()
    with pytest.raises(MissingError, match=mirrored.own.host):
        mirrored.places.manifest(mirrored.manifest)
    assert mirrored.places.where(mirrored.layer) is None
    mirrored.own.faults.always(fr.Answer(status=500))
    with pytest.raises(ServerError):
        mirrored.places.where(mirrored.layer)
    with pytest.raises(ServerError):
        mirrored.read_layer()
    mirrored.own.close()
    with pytest.raises(NetworkError):
        mirrored.read_layer()


def test_a_manifest_of_another_size_than_pinned_is_refused(mirrored: Mirrored) -> None:
    wrong = Descriptor(media_type=mirrored.manifest.media_type, digest=mirrored.manifest.digest, size=1)
    with pytest.raises(DigestMismatchError, match="another size"):
        mirrored.places.manifest(wrong)


def test_offline_nobody_is_asked_and_the_error_says_so(mirrored: Mirrored, tmp_path: Path) -> None:
    places = mirrored.at(tmp_path, offline=True)

    def open_layer() -> Readable:
        with places.open(mirrored.layer, subject="layer") as stream:
            return stream

    assert places.repositories == ()
    with pytest.raises(OfflineMissError):
        places.manifest(mirrored.manifest)
    with pytest.raises((OfflineMissError, MissingError)):
        open_layer()
    assert places.where(mirrored.layer) is None
    assert mirrored.asked() == [0, 0, 0]


def test_max_bytes_is_for_all_places_together_and_no_reason_to_ask_the_next(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        mirrored = Mirrored(tmp_path, stack, max_bytes=10_000)
        with pytest.raises(BudgetError):
            mirrored.read_layer()
        assert mirrored.asked() == [0, 1, 0]
