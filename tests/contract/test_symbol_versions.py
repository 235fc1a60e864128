"""Which definition of a symbol the linker of this machine takes: libraries by its compiler, one put for another."""

from __future__ import annotations

import itertools
import subprocess
from typing import TYPE_CHECKING

import pytest
from imgbuild.content.elf import ElfFacts, read_elf
from imgbuild.content.elfversions import binds

from tests.support.outside import tool

if TYPE_CHECKING:
    from pathlib import Path

SONAME = "libp.so"
PROVIDERS = {
    "without": ("int f(void){return 0;}", None),
    "without-but-needs": ('int puts(const char*); int f(void){return puts("") < 0;}', None),
    "one": ("int f(void){return 0;}", "V1 { global: f; local: *; };"),
    "other": ("int f(void){return 0;}", "V2 { global: f; local: *; };"),
    "both": (
        '__asm__(".symver f1,f@V1"); __asm__(".symver f2,f@@V2"); int f1(void){return 0;} int f2(void){return 0;}',
        "V1 { local: *; }; V2 {} V1;",
    ),
    "version-only": ("int g(void){return 0;}", "V1 { global: g; local: *; };"),
    "beside-a-version": ("int f(void){return 0;} int g(void){return 0;}", "V1 { global: g; };"),
    "hidden": (
        '__asm__(".symver f1,f@V2"); int f1(void){return 0;} int g(void){return 0;}',
        "V1 { global: g; local: *; }; V2 {} V1;",
    ),
    "hidden-in-the-first": (
        '__asm__(".symver f1,f@V1"); int f1(void){return 0;}',
        "V1 { local: *; };",
    ),
    "no-versions-but-a-table": ("int f(void){return 0;}", "{ global: f; local: *; };"),
    "nothing": ("int g(void){return 0;}", None),
}
LINKED = ("without-but-needs", "one", "other", "both")
"""Providers that a consumer of `f` can be linked with."""


def compiled(folder: Path, name: str) -> Path:
    source, script = PROVIDERS[name]
    path = folder / name / SONAME
    path.parent.mkdir(parents=True)
    (path.parent / "p.c").write_text(source)
    options = []
    if script is not None:
        (path.parent / "p.map").write_text(script)
        options = [f"-Wl,--version-script={path.parent / 'p.map'}"]
    run(["cc", "-shared", "-fPIC", f"-Wl,-soname,{SONAME}", *options, "-o", str(path), str(path.parent / "p.c")])
    return path


def run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def facts(path: Path) -> ElfFacts:
    with path.open("rb") as file:
        return read_elf(file, subject=path.name)


def starts(program: Path, folder: Path) -> tuple[bool, str]:
    environment = {"LD_LIBRARY_PATH": str(folder), "LD_BIND_NOW": "1"}
    done = subprocess.run([str(program)], env=environment, capture_output=True, text=True, check=False)
    return done.returncode == 0, done.stderr


@pytest.mark.parametrize(("linked", "given"), list(itertools.product(LINKED, PROVIDERS)))
def test_a_program_starts_where_its_symbol_binds_and_its_versions_are_there(
    tmp_path: Path, linked: str, given: str
) -> None:
    tool("cc")
    library, other = compiled(tmp_path / "linked", linked), compiled(tmp_path / "given", given)
    (tmp_path / "m.c").write_text("int f(void); int main(void){return f();}")
    program = tmp_path / "program"
    run(["cc", "-o", str(program), str(tmp_path / "m.c"), str(library)])
    wanted, found = facts(program), facts(other)
    (symbol,) = [name for name in wanted.imports if name.partition("@")[0] == "f"]
    needed = set(dict(wanted.versions_needed).get(SONAME, ()))
    # As `steps.verify_library` says it.
    there = needed <= set(found.versions_defined) or not found.versions_defined
    plain = not found.versions_defined and not found.versions_needed
    began, words = starts(program, other.parent)
    expected = there and binds(symbol, found.exports) and not (plain and "@" in symbol)
    assert began == expected, (symbol, needed, found.exports, words)
