"""What glibc's own linker for aarch64 takes, under QEMU, in the arrangements that the gate is judged by."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from imgbuild.steps.verify_loader import Search

from tests.support.arrangements import MemoryView, Scene, arranged, cases, config_of, read_case
from tests.support.outside import need_root, tool

if TYPE_CHECKING:
    from imgbuild.steps.verify_loader import Load
    from imgbuild.steps.view import View

LINKER = Path("/usr/aarch64-linux-gnu/lib/ld-linux-aarch64.so.1")
"""Of Debian's libc6-arm64-cross: the native program, whose default folders are those of an arm64 system."""
_ROW = re.compile(r"\t(\S+)(?: => (\S+|not found))?(?: \(0x[0-9a-f]+\))?")


@pytest.fixture(scope="module")
def emulator() -> str:
    need_root()
    if not LINKER.exists():
        if os.environ.get("CI"):
            pytest.fail("libc6-arm64-cross is not installed, and CI must have it")
        pytest.skip("libc6-arm64-cross is not installed")
    return tool("qemu-aarch64-static")


def lay_out(found: Scene, root: Path, emulator: str) -> None:
    for path, data in found.files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    for path, text in found.links.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).symlink_to(text)
    shutil.copy(emulator, root / "emulator")
    shutil.copy(LINKER, root / "linker")


def listed(root: Path, consumer: str, found: Scene) -> dict[str, str | None]:
    """What the linker takes for each name; nothing for the one at which it ended."""
    folder = "/" + str(found.config.get("WorkingDir", "/")).lstrip("/")

    def enter() -> None:
        os.chroot(root)
        os.chdir(folder)

    # As ldd does it: names that lead nowhere are listed, too.
    environment = {"LD_TRACE_LOADED_OBJECTS": "1"} | dict(item.split("=", 1) for item in found.config.get("Env", []))
    done = subprocess.run(
        ["/emulator", "/linker", f"/{consumer}"],
        env=environment,
        preexec_fn=enter,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    rows = [match.groups() for line in done.stdout.splitlines() if (match := _ROW.fullmatch(line))]
    answers = {name: None if path == "not found" else path or name for name, path in rows}
    if done.returncode and not rows:
        # It ends the program at a file that is no ELF file.
        assert re.search(r"invalid ELF header|file too short|cannot open", done.stderr), done.stderr
    return answers


def asked(view: MemoryView, found: Scene) -> list[tuple[str, Load]]:
    search = Search(cast("View", view), "aarch64", config_of(found))
    return [
        (path.decode(), search.load(path, needed))
        for path, node in view.elf_files
        if node.elf is not None and node.elf.machine == "aarch64" and node.elf.bits == 64
        for needed in node.elf.needed
    ]


@pytest.mark.parametrize("folder", cases(), ids=lambda folder: folder.name)
def test_the_linker_takes_what_was_computed(folder: Path, emulator: str, tmp_path: Path) -> None:
    found = arranged(read_case(folder))
    lay_out(found, tmp_path, emulator)
    view = MemoryView(found)
    answers: dict[str, dict[str, str | None]] = {}
    for consumer, load in asked(view, found):
        if consumer not in answers:
            answers[consumer] = listed(tmp_path, consumer, found)
        if load.doubt is not None:
            continue
        taken = next((path for name, path in answers[consumer].items() if name in {load.needed, expanded(load)}), None)
        real = None if taken is None else view.resolve(taken.encode())
        assert real == load.provider, (consumer, load.needed, answers[consumer])


def expanded(load: Load) -> str:
    """The name as the linker shows it, tokens replaced."""
    return load.trail[-1].candidate.decode() if load.trail else load.needed
