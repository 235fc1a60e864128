"""What contract tests share: clients that know nothing of whoever runs them, and a registry with a blob."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.reading import DATA, NAME, Client, isolate
from tests.support.registries import PAIR

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.fault_registry import FaultRegistry


@pytest.fixture(autouse=True)
def _isolated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    isolate(monkeypatch, tmp_path)


@pytest.fixture
def client() -> Iterator[Client]:
    with Client() as found:
        yield found


@pytest.fixture
def seeded(faulty: FaultRegistry) -> FaultRegistry:
    """A registry whose faults the test chooses, with the blob `DATA` in the repository `NAME`."""
    faulty.put_blob(NAME, DATA)
    return faulty


@pytest.fixture
def login(tmp_path: Path) -> Callable[..., None]:
    """Write the client configuration for a host; without a call there is none."""

    def write(host: str, **entry: Any) -> None:
        (tmp_path / ".docker").mkdir(exist_ok=True)
        document = {"auths": {host: entry or {"auth": PAIR}}}
        (tmp_path / ".docker" / "config.json").write_text(json.dumps(document))

    return write
