"""Files of an image that Python runs at every start, before anything that one asked for (step 9).

`site` of the standard library runs the lines of `*.pth` in site folders that begin with `import`, from 3.15 on indented
ones too and what `*.start` names (PEP 829), and imports `sitecustomize` and `usercustomize` from wherever the import
path has them. Any of them may load a library first, or change where others are found. What they do is not looked at:
they are named, whichever Python the image has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from imgbuild.errors import UNREADABLE
from imgbuild.model.identity import Finding, judge, not_checked
from imgbuild.model.paths import parent, show

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imgbuild.model.oci import ImageConfig
    from imgbuild.steps.view import View

_CHECK = "python.startup"
_MODULES = (b"sitecustomize", b"usercustomize")
_ENDINGS = (b".py", b".pyc", b".so")
_SITES = (b"site-packages", b"dist-packages")
_ROOTS = (b"usr/lib", b"usr/local/lib")


def startup(view: View | None, config: ImageConfig) -> Finding:
    """One finding: `match` where nothing runs, else `not-checked` with what does, which does not fail the gate."""
    subject = "import paths"
    if view is None:
        return not_checked(_CHECK, subject, "the layers could not be read or merged")
    try:
        sites, places = _import_paths(view)
        found = list(_path_files(view, sites, places))
        found += _python_path(config, places)
        found += _modules(view, list(dict.fromkeys((*places, *sites))))
    except UNREADABLE as error:
        return not_checked(_CHECK, subject, f"{error.subject}: {error.problem}")
    text = "nothing runs at every start of Python"
    if not found:
        return judge(_CHECK, subject, ok=True, expected=text, actual=text)
    count = "1 place" if len(found) == 1 else f"{len(found)} places"
    return not_checked(_CHECK, count, f"run at every start of Python: {'; '.join(found)}", required=False)


def _import_paths(view: View) -> tuple[list[bytes], list[bytes]]:
    """Site folders, and other folders from which modules are imported, of every Python that can be told by its name."""
    known = [parent(found.folder) for found in view.installed]
    homes = [b"root", *(b"home/" + name for name in view.listdir(b"home"))]
    roots = [*_ROOTS, *(parent(parent(site)) for site in known), *(home + b"/.local/lib" for home in homes)]
    folders = [(root, name) for root in dict.fromkeys(roots) for name in view.listdir(root)]
    libraries = [root + b"/" + name for root, name in folders if name.startswith(b"python3")]
    inside = [folder + b"/" + name for folder in libraries for name in _SITES if view.listdir(folder + b"/" + name)]
    return sorted({*known, *inside}), libraries


def _path_files(view: View, sites: list[bytes], places: list[bytes]) -> Iterator[str]:
    """The `.pth` and `.start` files that run something; the folders that they name are added to the places."""
    for site in sites:
        for name in view.listdir(site):
            path = site + b"/" + name
            if name.endswith(b".start") and not name.startswith(b"."):
                yield show(path)
            if not name.endswith(b".pth") or name.startswith(b"."):
                continue
            text = (view.read(path) or b"").decode("utf-8-sig", "backslashreplace")
            lines = [line.strip() for line in text.splitlines()]
            lines = [line for line in lines if line and not line.startswith("#")]
            folders = [line for line in lines if not line.startswith(("import ", "import\t"))]
            for folder in folders:
                raw = folder.encode("utf-8", "backslashreplace")
                places.append(raw.strip(b"/") if raw.startswith(b"/") else site + b"/" + raw)
            if len(folders) < len(lines):
                yield show(path)


def _python_path(config: ImageConfig, places: list[bytes]) -> Iterator[str]:
    value = config.variable("PYTHONPATH")
    for item in value.split(":") if value else ():
        if item.startswith("/"):
            places.append(item.strip("/").encode("utf-8", "backslashreplace"))
        else:
            yield "whatever lies in the working directory, by a relative item of PYTHONPATH"


def _modules(view: View, places: list[bytes]) -> Iterator[str]:
    for place in places:
        for name in view.listdir(place):
            module = next((one for one in _MODULES if name == one or name.startswith(one + b".")), None)
            path = (place + b"/" if place else b"") + name
            if module is None:
                continue
            package = name == module and any(inner.startswith(b"__init__.") for inner in view.listdir(path))
            if package or (name.endswith(_ENDINGS) and view.resolve(path) is not None):
                yield show(path)
