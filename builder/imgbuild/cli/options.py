"""Options that verbs share, and the surroundings that follow from them."""

from __future__ import annotations

import functools
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from imgbuild.cli.render import Bars, Output

if TYPE_CHECKING:
    from collections.abc import Callable

    from imgbuild.adapters.project import Project
    from imgbuild.digest import Digest
    from imgbuild.steps.context import Context


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the shared options say."""

    output: Output
    offline: bool
    project: Path | None
    store: Path | None
    cache: Path | None

    def open_project(self) -> Project:
        """The repository."""
        from imgbuild.adapters.project import Project  # noqa: PLC0415 - keeps --help fast

        return Project(self.project.absolute()) if self.project is not None else Project.find(Path.cwd())

    def context(self, project: Project, *, staged: bool) -> Context:
        """The surroundings; `staged` for verbs that write to the store."""
        from imgbuild.adapters.cache import Cache, default_folder  # noqa: PLC0415
        from imgbuild.adapters.store import StagedStore, Store  # noqa: PLC0415
        from imgbuild.ledger import Ledger  # noqa: PLC0415
        from imgbuild.steps.context import Context  # noqa: PLC0415

        ledger = Ledger()
        root = self.store or project.root / ".imgbuild" / "store"
        store = (StagedStore if staged else Store)(root.absolute(), ledger=ledger)
        # What refuses leaves the store as it was: a damaged blob may be all that is left of a base.
        store.repair = False
        cache = Cache((self.cache or default_folder()).absolute(), ledger=ledger)
        return Context(
            root=project.root, store=store, cache=cache, ledger=ledger, offline=self.offline, progress=Bars(self.output)
        )


def shared(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the shared options; the function gets them as `settings`."""

    @click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON document on stdout.")
    @click.option("--offline", is_flag=True, help="Use only what is here; fail instead of fetching.")
    @click.option(
        "--project",
        type=click.Path(path_type=Path, exists=True, file_okay=False),
        help="Folder with locks/ and layers/.",
    )
    @click.option(
        "--store",
        type=click.Path(path_type=Path, file_okay=False),
        envvar="IMGBUILD_STORE",
        show_envvar=True,
        help="OCI image layout to work on; default .imgbuild/store in the project.",
    )
    @click.option(
        "--cache",
        type=click.Path(path_type=Path, file_okay=False),
        envvar="IMGBUILD_CACHE",
        show_envvar=True,
        help="Cache folder; default ~/.cache/imgbuild.",
    )
    @click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
    @click.option("-v", "--verbose", is_flag=True, help="Print every finding and note.")
    @click.option("--no-color", is_flag=True, help="No colours (also by NO_COLOR).")
    @functools.wraps(function)
    def wrapper(
        *,
        as_json: bool,
        offline: bool,
        project: Path | None,
        store: Path | None,
        cache: Path | None,
        quiet: bool,
        verbose: bool,
        no_color: bool,
        **others: Any,
    ) -> Any:
        colour = not no_color and not os.environ.get("NO_COLOR") and sys.stdout.isatty()
        output = Output(as_json=as_json, quiet=quiet, verbose=verbose, colour=colour)
        settings = Settings(output=output, offline=offline, project=project, store=store, cache=cache)
        return function(settings=settings, **others)

    return wrapper


def image_argument(function: Callable[..., Any]) -> Callable[..., Any]:
    """The name of an image, completed by the shell from `locks/`."""

    def complete(context: click.Context, parameter: click.Parameter, text: str) -> list[str]:  # noqa: ARG001
        from imgbuild.adapters.project import Project  # noqa: PLC0415
        from imgbuild.errors import ImgbuildError  # noqa: PLC0415

        try:
            return [name for name in Project.find(Path.cwd()).images() if name.startswith(text)]
        except ImgbuildError:
            return []

    return click.argument("image", shell_complete=complete)(function)


def parse_digest(text: str) -> Digest:
    """A digest from the command line; anything else is a usage error, not one of a file of the repository."""
    from imgbuild.digest import Digest  # noqa: PLC0415
    from imgbuild.errors import DocumentError, UsageError  # noqa: PLC0415

    try:
        return Digest.parse(text)
    except DocumentError as error:
        raise UsageError(error.subject, error.problem, expected="sha256: and 64 hexadecimal digits") from error
