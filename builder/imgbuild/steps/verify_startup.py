"""Files of an image that Python runs at every start, before anything that one asked for (step 9).

`site` of the standard library runs the lines of `*.pth` in site folders that begin with `import`, and imports
`sitecustomize` and `usercustomize` from wherever the import path has them. Any of them may load a library first, or
change where others are found. What they do is not looked at: they are named.
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
_FORMS = (b".py", b".pyc", b"/__init__.py", b"/__init__.pyc")
_SHOWN = 80
"""characters of a line."""


def startup(view: View | None, config: ImageConfig) -> Finding:
    """One finding: `match` where nothing runs, else `not-checked` with what does, which does not fail the gate."""
    subject = "import paths"
    if view is None:
        return not_checked(_CHECK, subject, "the layers could not be read or merged")
    try:
        sites = sorted({parent(found.folder) for found in view.installed})
        places = [*sites, *(parent(site) for site in sites), *_python_path(config)]
        found = [*_path_files(view, sites), *_modules(view, list(dict.fromkeys(places)))]
    except UNREADABLE as error:
        return not_checked(_CHECK, subject, f"{error.subject}: {error.problem}")
    text = "nothing runs at every start of Python"
    if not found:
        return judge(_CHECK, subject, ok=True, expected=text, actual=text)
    count = "1 file" if len(found) == 1 else f"{len(found)} files"
    return not_checked(_CHECK, count, f"run at every start of Python: {'; '.join(found)}", required=False)


def _python_path(config: ImageConfig) -> list[bytes]:
    value = config.variable("PYTHONPATH") or ""
    return [item.strip("/").encode("utf-8", "backslashreplace") for item in value.split(":") if item.startswith("/")]


def _path_files(view: View, sites: list[bytes]) -> Iterator[str]:
    for site in sites:
        for name in view.listdir(site):
            if not name.endswith(b".pth") or name.startswith(b"."):
                continue
            path = site + b"/" + name
            lines = (view.read(path) or b"").decode("utf-8", "backslashreplace").splitlines()
            runs = [line for line in lines if line.startswith(("import ", "import\t"))]
            if runs:
                yield f"{show(path)} ({runs[0][:_SHOWN]})"


def _modules(view: View, places: list[bytes]) -> Iterator[str]:
    for place in places:
        for module in _MODULES:
            for form in _FORMS:
                path = (place + b"/" if place else b"") + module + form
                if view.resolve(path) is not None:
                    yield show(path)
                    break
