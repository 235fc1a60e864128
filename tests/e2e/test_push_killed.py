"""Pushes that are killed: the next run goes on, or begins anew and says so, and what has a tag is whole (case C47)."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from imgbuild.adapters.registry.blobs import has_blob
from imgbuild.digest import VerifiedReader
from imgbuild.model.oci import Descriptor, Family

from tests.support import fault_registry as fr
from tests.support import killing
from tests.support.pushing import APP, client
from tests.support.reading import isolate
from tests.support.refusals import locked
from tests.support.registries import any_registry
from tests.support.remote import base_to
from tests.support.upload_driver import Synthetic

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.fault_registry.exchange import Exchange
    from tests.support.tiny import Tiny

MIB = 1024 * 1024


@pytest.fixture(autouse=True)
def _isolated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    isolate(monkeypatch, tmp_path)


@pytest.fixture(scope="module")
def what() -> killing.Blob:
    return killing.blob(48 * MIB + 12_345, 2 * MIB)


def test_after_a_kill_at_any_moment_the_next_run_goes_on_and_sends_at_most_one_piece_twice(
    tmp_path: Path, what: killing.Blob
) -> None:
    with fr.FaultRegistry(switches=fr.Switches(keep_bytes=False)) as registry:
        found = killing.kill_at_random(registry, tmp_path, what, 5, random.Random(3))
        for one in found:
            assert one.arrived - what.chunk <= one.resumed_at <= one.arrived
        assert killing.received(registry) <= what.size + 5 * what.chunk
        assert str(what.digest) in registry.repository(APP).blobs
        assert len(registry.requests("upload-post")) <= 2


@pytest.mark.parametrize("kind", ["distribution-2.8", "docker-registry"])
def test_where_a_kill_inside_a_piece_loses_the_upload_the_next_run_begins_anew_and_says_so(
    tmp_path: Path, what: killing.Blob, kind: str
) -> None:
    with any_registry("docker-registry" if kind == "docker-registry" else "fault", tmp_path / "registry") as registry:
        if registry.fault is not None:
            registry.fault.switches.sessions = "distribution-2.8"
        process = killing.start(registry.host, tmp_path, what, 5 * MIB)
        assert process.stdout is not None
        assert process.stdout.readline() == "stalled\n"
        killing.kill(process)
        said = killing.finish(killing.start(registry.host, tmp_path, what))
        assert any("an earlier run began to send it, but" in line and "it begins anew" in line for line in said), said
        found = client(registry, tmp_path / "reader").repository
        blob = Descriptor(media_type=Family.OCI.layer_gzip, digest=what.digest, size=what.size)
        assert has_blob(found, blob)


def test_the_synthetic_blob_is_the_same_from_any_offset() -> None:
    size = 3 * MIB
    with Synthetic(size).open(0) as stream:
        VerifiedReader(stream, killing.blob(size, 1).digest, size, subject="synthetic").drain()
    with Synthetic(size).open(0) as whole, Synthetic(size).open(1_234_567) as part:
        data = b"".join(iter(lambda: whole.read(1 << 20), b""))
        assert data[1_234_567:] == b"".join(iter(lambda: part.read(777_777), b""))


class Slow(fr.Action):
    """Each request takes a moment longer."""

    def before(self, exchange: Exchange) -> None:
        exchange.body.pause(0.03)


def test_a_build_that_is_killed_while_it_pushes_leaves_no_tag_on_what_is_not_whole(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fr.FaultRegistry() as registry:
        base_to(tiny, registry.host, monkeypatch)
        registry.faults.always(Slow())
        wanted = locked(tiny)["result"]["manifest"]
        rng = random.Random(5)
        command = [sys.executable, "-m", "imgbuild", "build", "tiny", "--push", f"{registry.host}/llm/tiny"]
        places = ["--project", str(tiny.root), "--cache", str(tiny.cache_path)]
        for _ in range(5):
            process = subprocess.Popen(
                [*command, *places], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(os.environ)
            )
            deadline = time.monotonic() + 20
            posts = rng.randrange(1, 25)
            registry.clear_log()
            while len(registry.requests()) < posts and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.002)
            process.kill()
            process.wait(30)
            held = registry.repository("llm/tiny")
            for digest in held.tags.values():
                assert digest == wanted
        done = subprocess.run([*command, *places], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        assert registry.repository("llm/tiny").tags == {"tiny": wanted}
