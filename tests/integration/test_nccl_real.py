"""The real NCCL libraries of the stand-in, against what readelf and pyelftools say of them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from elftools.elf.elffile import ELFFile
from imgbuild.adapters.cache import Cache, default_folder
from imgbuild.adapters.store import Store
from imgbuild.ledger import Ledger
from imgbuild.steps.context import Context
from imgbuild.steps.nccl import Library, parse_asked, read_file_library
from imgbuild.steps.sources import fetch_wheel

from tests.standin import make, pins

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.mini

SHARED_CACHE = default_folder()
"""Taken once, so that large parts are downloaded once a machine, whatever a test sets."""
MEMBER = "nvidia/nccl/lib/libnccl.so.2"


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Library]:
    ledger = Ledger()
    store = Store(tmp_path_factory.mktemp("store"), ledger=ledger)
    context = Context(root=make.ROOT, store=store, cache=Cache(SHARED_CACHE, ledger=ledger), ledger=ledger)

    def read(name: str) -> Library:
        path = name if name.startswith("/") else str(fetch_wheel(context, pins.wheel(name)))
        return read_file_library(context, parse_asked(path))

    return read


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Library], Path]:
    folder = tmp_path_factory.mktemp("unpacked")

    def unpack(library: Library) -> Path:
        import zipfile

        assert library.asked.file is not None
        with zipfile.ZipFile(library.asked.file) as archive:
            return Path(archive.extract(MEMBER, folder / library.asked.file.name))

    return unpack


EXPECTED = {
    "nccl": ("2.29.7", 22907, "13.2", "stable b81d6a5a3", 137, 152),
    "nccl-swap": ("2.30.7", 23007, "13.3", "HEAD a5187fa2e", 165, 166),
}
GPUS = ["sm_75", "sm_80", "sm_90", "sm_100", "sm_100f", "sm_110", "sm_120", "compute_120"]
"""Those of `cuobjdump --list-elf --list-ptx` 13.5, which leaves the letter out."""


@pytest.mark.parametrize("name", EXPECTED)
def test_a_real_library_has_the_facts_that_others_read_from_it(
    read: Callable[[str], Library], unpacked: Callable[[Library], Path], name: str
) -> None:
    library = read(name)
    facts, version = library.facts, library.facts.version
    number, code, cuda, git, exports, fatbins = EXPECTED[name]
    assert version is not None
    assert (version.number, version.code, version.cuda, facts.git) == (number, code, cuda, (git,))
    assert (len(facts.exports), facts.gpu.fatbins, facts.gpu.problem) == (exports, fatbins, None)
    assert [item.name for item in facts.gpu.objects] == GPUS
    assert library.problems == ()
    path = unpacked(library)
    assert read(str(path)).facts == facts
    said = subprocess.run(["readelf", "-WdnV", str(path)], capture_output=True, text=True, check=True).stdout
    assert facts.elf is not None
    assert facts.elf.soname == re.findall(r"\(SONAME\).*\[(.*)\]", said)[0]
    assert facts.elf.build_id == re.findall(r"Build ID: (\w+)", said)[0]
    assert list(facts.elf.needed) == re.findall(r"\(NEEDED\).*\[(.*)\]", said)
    for family in ("GLIBC", "GLIBCXX", "CXXABI"):
        found = re.findall(rf"Name: {family}_([0-9.]+)  Flags", said)
        assert facts.newest(family) == max(found, key=lambda text: [int(part) for part in text.split(".")])
    with path.open("rb") as file:
        # The library tells the CUDA runtime of each fatbin by a record of 24 bytes.
        section = ELFFile(file).get_section_by_name(".nvFatBinSegment")
        assert section is not None
        assert section["sh_size"] == 24 * facts.gpu.fatbins
