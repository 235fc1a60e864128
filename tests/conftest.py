"""Fixtures for all tests: a tiny project that is locked once, and private copies of it."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING

import pytest
from imgbuild.cli import run

from tests.support.fault_registry import FaultRegistry
from tests.support.registries import KINDS, any_registry
from tests.support.tiny import Tiny, copied

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.registries import LocalRegistry, RegistryKind


@pytest.fixture(autouse=True)
def _not_in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A time zone that nobody has (5:45 h east), so that a local time in an output cannot pass as UTC."""
    with monkeypatch.context() as changed:
        changed.setenv("TZ", "<+0545>-05:45")
        time.tzset()
        yield
    time.tzset()


@pytest.fixture(scope="session")
def tiny_locked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a written and locked tiny project. Do not change it: take `tiny` for a copy."""
    root = tmp_path_factory.mktemp("tiny") / "project"
    root.mkdir()
    Tiny(root).write_locked()
    return root


@pytest.fixture(scope="session")
def tiny_built(tiny_locked: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny project that was built and tagged. Do not change it: take a copy."""
    root = tmp_path_factory.mktemp("built") / "project"
    shutil.copytree(tiny_locked, root, symlinks=True)
    assert run(["build", "tiny", "-q", "--project", str(root), "--cache", str(root / "cache")]) == 0
    return root


@pytest.fixture
def tiny(tiny_locked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tiny:
    """A locked tiny project of one's own; pip finds its wheels in the project and asks nobody else."""
    return copied(tiny_locked, tmp_path, monkeypatch)


@pytest.fixture(params=KINDS)
def registry(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalRegistry]:
    """An empty registry of each kind."""
    kind: RegistryKind = request.param
    with any_registry(kind, tmp_path / "registry") as found:
        yield found


@pytest.fixture
def faulty() -> Iterator[FaultRegistry]:
    """An empty registry whose faults the test chooses."""
    with FaultRegistry() as found:
        yield found
