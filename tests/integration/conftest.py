"""What integration tests share: a tiny project whose base is in a registry with faults, which its lock names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.checking import WHEELS, based_at

if TYPE_CHECKING:
    from tests.support.fault_registry import FaultRegistry
    from tests.support.remote import Remote
    from tests.support.tiny import Tiny


@pytest.fixture
def based(
    tiny: Tiny, faulty: FaultRegistry, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Remote:
    return based_at(faulty.host, tiny, monkeypatch, capsys, *WHEELS)
