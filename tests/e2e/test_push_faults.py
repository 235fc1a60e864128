"""A thousand pushes of a whole build, each with one random fault of all that the fault registry knows."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
from typing import TYPE_CHECKING

import pytest
from imgbuild.adapters.store import StagedStore
from imgbuild.model.oci import Manifest
from imgbuild.steps.build import _push

from tests.support.reading import isolate
from tests.support.soaking import Subject, Tally, blobs_of, file_blob, push_once

if TYPE_CHECKING:
    from pathlib import Path

    from imgbuild.adapters.registry.session import Registries
    from imgbuild.steps.push import Destination

    from tests.support.tiny import Tiny

BLOCKS = 10
EACH = 100
WHOLE = 10
"""pushes of which one is a whole build, and the others begin where it is verified"""


@pytest.fixture
def subject(tiny: Tiny, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Subject:
    """The tiny image, assembled and verified, on a base that is in registries only."""
    isolate(monkeypatch, tmp_path)
    context = tiny.context(offline=False)
    lock = tiny.lock()
    assert isinstance(context.store, StagedStore)
    base = context.store.manifest(context.store.resolve("base"))
    outcome = tiny.build(context)
    result = context.store.manifest(outcome.assembled.manifest)
    folder = tiny.store_path / "blobs" / "sha256"
    kept = tmp_path / "base"
    kept.mkdir()
    for blob in blobs_of(base):
        shutil.move(folder / blob.digest.encoded, kept / blob.digest.encoded)

    numbers = itertools.count()

    def push_it(registries: Registries, destination: Destination) -> bool:
        here = dataclasses.replace(tiny.context(offline=False), connect=lambda: registries)
        if next(numbers) % WHOLE == 0:
            return tiny.build(here, destination=destination).report.ok
        # What a build does when it has assembled and verified.
        here = here.based_on(lock.pins.base.reference)
        return _push(here, outcome.assembled, outcome.report, destination)[1].ok

    return Subject(
        base=base,
        base_blobs=tuple(file_blob(kept / blob.digest.encoded) for blob in blobs_of(base)),
        result=Manifest.parse(result.raw, media_type=result.family.manifest, subject="result"),
        push=push_it,
        reference="localhost/test/base",
        chunk_bytes=(2500, 1_000_000),
    )


@pytest.mark.parametrize("block", range(BLOCKS))
def test_a_push_with_a_fault_ends_right_or_in_a_typed_error_and_never_with_a_tag_on_what_is_not_whole(
    subject: Subject, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tally = Tally()
    for seed in range(block * EACH, (block + 1) * EACH):
        push_once(subject, seed, tmp_path, monkeypatch, tally)
    assert sum(tally.ends.values()) == EACH
    assert tally.struck > EACH // 4
    assert tally.ends["ok"] > EACH // 3
    assert tally.tags >= EACH
