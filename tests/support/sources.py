"""What the source text of the package says about its architecture. Each checker takes source texts and gives findings.

A finding is one line, `module:line: what`. Nothing is imported: a checker can be fed with any text.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import imgbuild

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PACKAGE = Path(imgbuild.__file__).parent
TIERS = {
    "errors": 0,
    "": 0,
    "config": 1,
    "digest": 1,
    "jsontext": 1,
    "ledger": 1,
    "progress": 1,
    "text": 1,
    "model": 2,
    "content": 3,
    "documents": 4,
    "adapters": 5,
    "steps": 6,
    "cli": 7,
    "__main__": 7,
}
"""Tier by the first part of a module's name inside of the package (design.md, section 3); "" is the package itself."""
HOMES = {
    "git": ("adapters/gitprocess",),
    "docker": ("adapters/engine", "adapters/node"),
    "requests": (),
    "elftools": ("content/elf*",),
    "isal": ("content/compression",),
    "installer": ("content/wheel",),
    "jsonschema": ("model/decode",),
    "tomlkit": ("adapters/tomledit",),
    "click": ("cli", "cli/*"),
    "rich": ("cli", "cli/*"),
    "subprocess": ("adapters/*",),
    "multiprocessing": (),
    "tarfile": (),
    "pickle": (),
    "marshal": (),
    "shelve": (),
    "ctypes": ("content/elftexts",),
    "socket": ("adapters/registry/connections", "adapters/registry/ending", "adapters/registry/meter"),
    "urllib3": ("adapters/registry/wire", "adapters/registry/connections"),
    "urllib.request": ("adapters/registry/wire",),
    "http": (),
}
"""Where a package of others may be imported; an empty list is nowhere."""
FORBIDDEN_CALLS = {
    "": {"eval", "exec", "compile", "__import__"},
    "builtins": {"eval", "exec", "compile", "__import__"},
    "os": {"system", "popen", "fork", "execv", "execve", "execvp", "execl", "posix_spawn", "spawnv"},
}
"""What runs text or a program, by what stands before the dot."""
OPEN_FLAGS = {"O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC", "O_APPEND", "O_TMPFILE"}
WRITING = {
    *("mkstemp", "mkdtemp", "NamedTemporaryFile", "TemporaryFile", "SpooledTemporaryFile", "TemporaryDirectory"),
    *("copy", "copy2", "copyfile", "copytree", "copyfileobj", "rmtree", "mkdir", "makedirs", "rmdir", "removedirs"),
    *("unlink", "rename", "renames", "touch", "chmod", "fchmod", "lchmod", "chown", "symlink", "symlink_to"),
    *("hardlink_to", "truncate", "ftruncate", "utime", "mkfifo", "mknod", "fsync", "fdatasync", "pwrite", "writev"),
}
"""Names of functions and methods that change a disk; `copy` only where it is shutil's."""
WRITING_OF_OS = {"replace", "remove", "link", "write", "sendfile", "posix_fallocate"}
"""Names that mean this only with `os.` before them."""
WRITING_WITH_ONE_ARGUMENT = {"write_text", "write_bytes"}
"""pathlib's; the workspace has a method of that name that takes more and writes into the tree in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One import: what is imported (`imgbuild.digest`, `git.cmd`), where, and whether it runs with the module."""

    target: str
    line: int
    at_module_level: bool


def package_sources() -> dict[str, str]:
    """Source text by module, as `adapters/store`; a package is named by its folder, the package itself ""."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).with_suffix("").as_posix()
        found[name.removesuffix("__init__").rstrip("/")] = path.read_text("utf-8")
    return found


def imports(text: str) -> list[Import]:
    """All imports of a source text. Relative ones are refused: the linter forbids them, too."""
    found: list[Import] = []
    _imports(ast.parse(text), found, at_module_level=True)
    return found


def _imports(node: ast.AST, found: list[Import], *, at_module_level: bool) -> None:
    for child in ast.iter_child_nodes(node):
        level = at_module_level and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            level = False
        if isinstance(child, ast.Import):
            found += [Import(target=name.name, line=child.lineno, at_module_level=level) for name in child.names]
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "relative import"
            module = child.module or ""
            names = [f"{module}.{name.name}" for name in child.names]
            found += [Import(target=name, line=child.lineno, at_module_level=level) for name in names]
        _imports(child, found, at_module_level=level)


def own_module(target: str, modules: Mapping[str, str]) -> str | None:
    """The module of the package that an import leads to: `imgbuild.digest.Digest` is `digest`."""
    first, _, rest = target.partition(".")
    if first != "imgbuild":
        return None
    parts = rest.split(".") if rest else []
    for end in range(len(parts), 0, -1):
        if (name := "/".join(parts[:end])) in modules:
            return name
    return ""


def tier(module: str) -> int | None:
    """The tier of a module; None if the table does not know it."""
    return TIERS.get(module.partition("/")[0])


def upward_imports(sources: Mapping[str, str]) -> list[str]:
    """Imports from a higher tier, wherever they stand, and modules without a tier."""
    found = [f"{module}:1: has no tier" for module in sources if tier(module) is None]
    for module, text in sources.items():
        for item in imports(text):
            target = own_module(item.target, sources)
            mine, other = tier(module), None if target is None else tier(target)
            if mine is not None and other is not None and other > mine:
                found.append(f"{module}:{item.line}: tier {mine} imports {target} of tier {other}")
    return found


def cycles(sources: Mapping[str, str]) -> list[str]:
    """Circles of imports that run when a module is loaded."""
    graph = {
        module: {
            target
            for item in imports(text)
            if item.at_module_level and (target := own_module(item.target, sources) or module) != module
        }
        for module, text in sources.items()
    }
    # What is left after taking away, again and again, all that imports nothing that is left.
    while free := [module for module, targets in graph.items() if not targets & graph.keys()]:
        for module in free:
            del graph[module]
    return [f"{module}:1: in a circle with {', '.join(sorted(graph[module] & graph.keys()))}" for module in graph]


def strangers(sources: Mapping[str, str]) -> list[str]:
    """Packages of others outside of their home."""
    found = []
    for module, text in sources.items():
        for item in imports(text):
            for name, homes in HOMES.items():
                if f"{item.target}.".startswith(f"{name}.") and not any(_matches(module, home) for home in homes):
                    found.append(f"{module}:{item.line}: imports {name}")
    return found


def _matches(module: str, home: str) -> bool:
    return module.startswith(home[:-1]) if home.endswith("*") else module == home


def forbidden_calls(sources: Mapping[str, str]) -> list[str]:
    """Calls that run text, start a shell, or unpack an archive onto the disk."""
    found = []
    for module, text in sources.items():
        for call in _calls(text):
            name, of_what = _name(call)
            if name == "extractall" or name in FORBIDDEN_CALLS.get(of_what, set()):
                found.append(f"{module}:{call.lineno}: calls {name}")
            if any(word.arg == "shell" and ast.unparse(word.value) != "False" for word in call.keywords):
                found.append(f"{module}:{call.lineno}: starts a shell")
    return found


def writes(sources: Mapping[str, str], *, home: str = "adapters/durable") -> list[str]:
    """Calls outside of `home` that open a file for writing, or change the disk otherwise."""
    return [
        f"{module}:{call.lineno}: {ast.unparse(call.func)}"
        for module, text in sources.items()
        if module != home
        for call in _calls(text)
        if _is_write(call)
    ]


def _is_write(call: ast.Call) -> bool:
    name, of_what = _name(call)
    if name == "open":
        return _opens_for_writing(call, of_what)
    if name in WRITING_WITH_ONE_ARGUMENT:
        return len(call.args) == 1
    if name == "copy":
        return of_what == "shutil"
    return name in WRITING or (of_what == "os" and name in WRITING_OF_OS)


def _opens_for_writing(call: ast.Call, of_what: str) -> bool:
    if of_what == "os":
        return any(getattr(node, "attr", None) in OPEN_FLAGS for node in ast.walk(call))
    modes = [word.value for word in call.keywords if word.arg == "mode"]
    # builtins.open and io.open take the mode second, a path's method takes it first.
    modes += call.args[1:2] if of_what in {"", "io", "builtins"} else call.args[:2]
    for mode in modes:
        if not isinstance(mode, ast.Constant):
            return of_what in {"", "io", "builtins"}
        text = str(mode.value)
        if set(text) <= set("rwaxbtU+") and set(text) & set("wax+"):
            return True
    return False


def long_modules(sources: Mapping[str, str], most: int = 400) -> list[str]:
    """Modules of more lines whose docstring does not say why it is long."""
    return [
        f"{module}:1: {len(text.splitlines())} lines"
        for module, text in sources.items()
        if len(text.splitlines()) > most and "long because" not in (ast.get_docstring(ast.parse(text)) or "")
    ]


def long_functions(sources: Mapping[str, str], most: int = 60) -> list[str]:
    """Functions of more lines, signature and docstring included."""
    found = []
    for module, text in sources.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > most:
                    found.append(f"{module}:{node.lineno}: {node.name} has {length} lines")
    return found


def _calls(text: str) -> Iterator[ast.Call]:
    return (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))


def _name(call: ast.Call) -> tuple[str, str]:
    """The last name of what is called, and what stands before its dot."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr, ast.unparse(call.func.value)
    return (call.func.id, "") if isinstance(call.func, ast.Name) else ("", "")
