"""The walls of the package (design.md, section 3): each is checked on the sources, and each check on a text that breaks
it, so that none can become one that always says yes."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support import sources

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

HEAVY = (
    "backports",
    "elftools",
    "git",
    "installer",
    "jsonschema",
    "msgspec",
    "packaging",
    "rich",
    "tomlkit",
    "tomllib",
)
WRITES = {
    "adapters/fetch: os.fsync": "pip wrote the wheel; it is synced before durable.move gives it its name",
    "adapters/gitsource: path.unlink": "removes what a killed git left in git's own repository, under its lock",
    "adapters/spool: self._file.truncate": "gives back what durable.anonymous made, which nobody else can see",
    "cli/schemas/__main__: (Path(__file__).parent / f'{name}.v1.json').write_bytes": "a developer's tool",
}
"""What changes the disk outside of `adapters/durable`, with the reason."""

PACKAGE = sources.package_sources()


def test_the_package_is_seen_whole() -> None:
    assert {"", "errors", "adapters/durable", "cli", "cli/schemas", "model/lockfile", "__main__"} <= PACKAGE.keys()
    assert len(PACKAGE) > 60


def test_modules_import_from_lower_tiers_and_their_own_only() -> None:
    assert sources.upward_imports(PACKAGE) == []


def test_no_modules_import_each_other_when_they_are_loaded() -> None:
    assert sources.cycles(PACKAGE) == []


def test_packages_of_others_are_imported_in_their_one_home() -> None:
    assert sources.strangers(PACKAGE) == []


def test_nothing_runs_text_or_a_shell_or_extracts_an_archive() -> None:
    assert sources.forbidden_calls(PACKAGE) == []


def test_only_durable_changes_the_disk_but_for_named_exceptions() -> None:
    found = {f"{line.split(':')[0]}:{line.split(':', 2)[2]}" for line in sources.writes(PACKAGE)}
    assert found == WRITES.keys()


def test_modules_are_short_or_say_why_they_are_not() -> None:
    assert sources.long_modules(PACKAGE) == []


def test_functions_are_short() -> None:
    assert sources.long_functions(PACKAGE) == []


BAD: dict[Callable[[Mapping[str, str]], list[str]], list[dict[str, str]]] = {
    sources.upward_imports: [
        {"model/a": "from imgbuild.steps.b import c", "steps/b": ""},
        {"model/a": "import imgbuild.steps.b", "steps/b": ""},
        {"model/a": "def f():\n    from imgbuild.steps import b", "steps/b": "", "steps": ""},
        {"content/a": "if TYPE_CHECKING:\n    from imgbuild.cli import b", "cli": ""},
        {"errors": "from imgbuild import digest", "digest": ""},
        {"extras/a": ""},
    ],
    sources.cycles: [
        {"model/a": "from imgbuild.model.b import c", "model/b": "from imgbuild.model import a", "model": ""},
        {
            "model/a": "try:\n    import imgbuild.model.b\nexcept ImportError:\n    pass",
            "model/b": "import imgbuild.model.c",
            "model/c": "class K:\n    from imgbuild.model.a import d",
        },
    ],
    sources.strangers: [
        {"steps/a": "import git"},
        {"adapters/other": "from git.cmd import Git"},
        {"content/tree": "from elftools.elf.elffile import ELFFile"},
        {"content/loader": "def f():\n    import installer.utils"},
        {"model/image": "from jsonschema import validate"},
        {"steps/a": "import click"},
        {"adapters/project": "import tomlkit"},
        {"adapters/fetch": "import rich.progress"},
        {"steps/a": "import subprocess as s"},
        {"content/tarstream": "import tarfile"},
        {"adapters/cache": "import pickle"},
        {"adapters/fetch": "from urllib import request"},
        {"adapters/fetch": "import urllib.request"},
    ],
    sources.forbidden_calls: [
        {"adapters/a": "archive.extractall(path)"},
        {"adapters/a": "subprocess.run(text, shell=True)"},
        {"adapters/a": "subprocess.run(text, shell=wanted)"},
        {"steps/a": "eval(text)"},
        {"steps/a": "exec(text)"},
        {"steps/a": "os.system(text)"},
    ],
    sources.writes: [
        {"steps/a": "open(path, 'w')"},
        {"steps/a": "open(path, mode='ab')"},
        {"steps/a": "open(path, mode)"},
        {"steps/a": "io.open(path, 'r+')"},
        {"steps/a": "path.open('xb')"},
        {"steps/a": "(folder / name).open(mode='w', encoding='utf-8')"},
        {"steps/a": "os.open(path, os.O_CREAT | os.O_EXCL)"},
        {"steps/a": "os.open(path, flags=os.O_RDWR)"},
        {"steps/a": "path.write_text(text)"},
        {"steps/a": "path.write_bytes(data)"},
        {"steps/a": "tempfile.mkstemp()"},
        {"steps/a": "with NamedTemporaryFile() as f:\n    pass"},
        {"steps/a": "shutil.copy(a, b)"},
        {"steps/a": "shutil.copyfileobj(a, b)"},
        {"steps/a": "os.rename(a, b)"},
        {"steps/a": "os.replace(a, b)"},
        {"steps/a": "os.write(fd, b'')"},
        {"steps/a": "path.mkdir(parents=True)"},
        {"steps/a": "path.unlink()"},
    ],
    sources.long_modules: [{"steps/a": "x = 1\n" * 401}],
    sources.long_functions: [{"steps/a": "def f():\n" + "    x = 1\n" * 61}],
}


@pytest.mark.parametrize(
    ("checker", "bad"),
    [
        pytest.param(checker, bad, id=f"{checker.__name__}{i}")
        for checker, bads in BAD.items()
        for i, bad in enumerate(bads)
    ],
)
def test_each_check_finds_what_breaks_it(
    checker: Callable[[Mapping[str, str]], list[str]], bad: dict[str, str]
) -> None:
    assert checker(bad), bad


@pytest.mark.parametrize(
    ("checker", "good"),
    [
        (sources.upward_imports, {"steps/b": "from imgbuild.model.a import c", "model/a": "import imgbuild"}),
        (sources.cycles, {"model/a": "import imgbuild.model.b", "model/b": "def f():\n    import imgbuild.model.a"}),
        (
            sources.cycles,
            {"model/a": "import imgbuild.model.b", "model/b": "if TYPE_CHECKING:\n    import imgbuild.model.a"},
        ),
        (sources.strangers, {"adapters/fetch": "from urllib.parse import urlsplit", "cli/lock": "import click"}),
        (sources.forbidden_calls, {"adapters/a": "re.compile(x)\nsubprocess.run([a], shell=False)"}),
        (
            sources.writes,
            {"steps/a": "open(path)\npath.open('rb')\nblobs.open(digest, subject='wax')\nos.open(p, os.O_RDONLY)"},
        ),
        (
            sources.writes,
            {"steps/a": "text.replace('a', 'b')\nwords.remove(x)\nworkspace.write_bytes(a, b, c, where=d)"},
        ),
        (sources.long_modules, {"steps/a": '"""It is long because of this."""\n' + "x = 1\n" * 401}),
    ],
)
def test_no_check_refuses_what_is_right(
    checker: Callable[[Mapping[str, str]], list[str]], good: dict[str, str]
) -> None:
    assert checker(good) == []


def imported_by(statement: str, names: tuple[str, ...] = HEAVY) -> set[str]:
    """The modules of some, by default the packages of `HEAVY`, that a fresh interpreter has after a statement."""
    program = f"import sys\n{statement}\nprint('\\n', *(name for name in {names!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_the_help_imports_nothing_that_is_heavy() -> None:
    assert imported_by("from imgbuild.cli import run; assert run(['--help']) == 0") == set()


def test_a_build_imports_what_only_some_sources_and_steps_need_when_it_meets_them() -> None:
    program = "import imgbuild.cli.build, imgbuild.steps.build, imgbuild.steps.push"
    assert imported_by(program) == {"backports", "msgspec"}
    some = ("adapters.fetch", "adapters.gitsource", "adapters.toolchain", "content.wheel")
    assert imported_by(program, tuple(f"imgbuild.{name}" for name in some)) == set()


def test_what_is_heavy_would_be_seen() -> None:
    assert imported_by("import imgbuild.model.lockfile") == {"msgspec"}
