"""Fixtures for all tests: a tiny project that is locked once, and private copies of it."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING

import pytest
from imgbuild.steps.lock import make_lock, write_lock

from tests.support.fault_registry import FaultRegistry
from tests.support.registries import KINDS, any_registry
from tests.support.tiny import Tiny

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
    made = Tiny(root).write()
    with pytest.MonkeyPatch.context() as changed:
        changed.setenv("PIP_FIND_LINKS", str(made.wheel_folder()))
        changed.setenv("PIP_NO_INDEX", "1")
        outcome = make_lock(made.context(offline=False), made.project().load("tiny"), None, update=frozenset())
    write_lock(made.project().lock_path("tiny"), outcome.lock)
    return root


@pytest.fixture
def tiny(tiny_locked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tiny:
    """A locked tiny project of one's own; pip finds its wheels in the project and asks nobody else."""
    root = tmp_path / "project"
    shutil.copytree(tiny_locked, root, symlinks=True)
    monkeypatch.setenv("PIP_FIND_LINKS", str(root / "wheels"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    for name in ("IMGBUILD_STORE", "IMGBUILD_CACHE", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return Tiny(root)


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
