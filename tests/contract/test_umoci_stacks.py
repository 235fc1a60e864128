"""Random stacks of layers: umoci, which applies them on a real file system, must get the tree that we get."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from imgbuild.content.inventory import scan_layer
from imgbuild.content.tree import Tree

from tests.support.layer_stacks import archive, sensible, stacks, write_image
from tests.support.outside import need_root, tool, unpack
from tests.support.unpacked import differences

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.reference_tree import Item

pytestmark = pytest.mark.tools
_NUMBERS = itertools.count()


class _Reader:
    """At most 700 bytes at a time, so that headers and contents are cut anywhere."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, size: int, /) -> bytes:
        size = min(size, 700)
        data, self._data = self._data[:size], self._data[size:]
        return data


def compare(folder: Path, stack: list[list[Item]], *, prefix: str = "", loose: set[bytes] | None = None) -> None:
    """Unpack a stack with umoci and compare with our tree."""
    layers = [archive(layer, prefix=prefix) for layer in stack]
    work = folder / str(next(_NUMBERS))
    write_image(work / "layout", "stack", layers)
    tree = Tree()
    for index, layer in enumerate(layers):
        scan = scan_layer(_Reader(layer), subject="layer", spool=tempfile.TemporaryFile, capture=lambda *_: None)
        tree.apply(scan.inventory, index)
    unpack(work / "layout", "stack", work / "root")
    assert differences(work / "root", tree, loose_times=loose or set()) == []
    shutil.rmtree(work)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need_root()
    tool("umoci")
    return tmp_path_factory.mktemp("stacks")


@settings(max_examples=200, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(stack=stacks(entries=12, fewest=3), prefix=st.sampled_from(["", "./"]))
def test_umoci_unpacks_a_random_stack_to_our_tree(folder: Path, stack: list[list[Item]], prefix: str) -> None:
    kept, model = sensible(stack)
    event(f"{sum(map(len, kept))} of {sum(map(len, stack))} entries")
    compare(folder, kept, prefix=prefix, loose={b"/".join(path) for path in model.disturbed})
