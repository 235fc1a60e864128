"""Options that verbs share, and the surroundings that follow from them."""

from __future__ import annotations

import dataclasses
import decimal
import functools
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, get_args

import click

from imgbuild.cli.bars import Bars
from imgbuild.cli.render import Output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from imgbuild.adapters.project import Project
    from imgbuild.adapters.registry.session import Registries
    from imgbuild.digest import Digest
    from imgbuild.steps.context import Context


_F = TypeVar("_F", bound="Callable[..., Any]")
_AMOUNT = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?) ?((?:[KMGT]i?)?B)?", re.ASCII | re.IGNORECASE)
Complete: TypeAlias = "Callable[[click.Context, click.Parameter, str], list[str]]"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the shared options say."""

    output: Output
    project: Path | None
    stand_in: Path | None = None
    offline: bool = False
    store: Path | None = None
    cache: Path | None = None
    registries: Path | None = None
    max_bytes: int | None = None

    def open_project(self) -> Project:
        """The repository."""
        from imgbuild.adapters.project import Project  # noqa: PLC0415 - keeps --help fast

        project = Project(self.project.absolute()) if self.project is not None else Project.find(Path.cwd())
        return project if self.stand_in is None else project.standing_in(self.stand_in.absolute())

    def store_path(self, project: Project) -> Path:
        """Where the store is."""
        return (self.store or project.root / ".imgbuild" / "store").absolute()

    def context(self, project: Project, *, staged: bool) -> Context:
        """The surroundings; `staged` for verbs that write to the store."""
        from imgbuild.adapters.cache import Cache, default_folder  # noqa: PLC0415
        from imgbuild.adapters.store import StagedStore, Store  # noqa: PLC0415
        from imgbuild.ledger import Ledger  # noqa: PLC0415
        from imgbuild.steps.context import Context  # noqa: PLC0415

        ledger = Ledger(max_bytes=self.max_bytes)
        root = self.store_path(project)
        waiting = functools.partial(self.output.note, f"waiting for another imgbuild on {root}")
        store = StagedStore(root, ledger=ledger, waiting=waiting) if staged else Store(root, ledger=ledger)
        # What refuses leaves the store as it was: a damaged blob may be all that is left of a base.
        store.repair = False
        if self.registries is not None:
            from imgbuild.adapters.registry.settings import read_settings  # noqa: PLC0415

            # What was named on the command line is looked at also where no registry will be asked.
            read_settings(self.registries)
        cache = Cache((self.cache or default_folder()).absolute(), ledger=ledger)
        bars = Bars(self.output)

        @functools.cache
        def connect() -> Registries:
            from imgbuild.adapters.registry.access import connect as open_registries  # noqa: PLC0415 - takes 60 ms

            return open_registries(self.registries, ledger=ledger, offline=self.offline, note=bars.note)

        return Context(
            root=project.root,
            store=store,
            cache=cache,
            ledger=ledger,
            offline=self.offline,
            progress=bars,
            connect=connect,
        )


class Amount(click.ParamType[int]):
    """Bytes: a number, alone or with a unit as this program prints them (MB is a million, MiB is 2 to the 20th)."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number of bytes, rounded down; fails as click's types do."""
        if isinstance(value, int):
            return value
        found = _AMOUNT.fullmatch(value.strip())
        if found is None:
            self.fail(f"{value[:40]!r} is no number of bytes, such as 5000000, 5MB or 4.5MiB", param, ctx)
        number, unit = found.groups("")
        power = "KMGT".find(unit[:1].upper()) + 1 if unit else 0
        return int(decimal.Decimal(number) * (1024 if unit.lower().endswith("ib") else 1000) ** power)


def _path_option(name: str, text: str, *, folder: bool) -> Callable[[_F], _F]:
    """An option for a folder or a file, which may also come from `IMGBUILD_NAME`."""
    return click.option(
        f"--{name}",
        type=click.Path(path_type=Path, file_okay=not folder, dir_okay=folder),
        envvar=f"IMGBUILD_{name.upper()}",
        show_envvar=True,
        help=text,
    )


def shared(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of all verbs that work on a store; the function gets them as `settings`."""

    @click.option("--offline", is_flag=True, help="Use only what is here; fail instead of fetching.")
    @_path_option("store", "OCI image layout to work on; default .imgbuild/store in the project.", folder=True)
    @_path_option("cache", "Cache folder; default ~/.cache/imgbuild, or imgbuild in XDG_CACHE_HOME.", folder=True)
    @_path_option(
        "registries",
        "How registries are reached (mirrors, plain http); default ~/.config/imgbuild/registries.toml.",
        folder=False,
    )
    @click.option(
        "--max-bytes",
        type=Amount(),
        help="Fail before more than this comes from or goes to other machines: 5000000, 5MB, 4.5MiB.",
    )
    @reading
    @functools.wraps(function)
    def wrapper(*, settings: Settings, **others: Any) -> Any:
        names = ("offline", "store", "cache", "registries", "max_bytes")
        settings = dataclasses.replace(settings, **{name: others.pop(name) for name in names})
        return function(settings=settings, **others)

    return wrapper


def reading(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of all verbs that read the repository; the function gets them as `settings`."""

    @click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON document on stdout.")
    @click.option(
        "--project",
        type=click.Path(path_type=Path, exists=True, file_okay=False),
        help="Folder with locks/ and layers/.",
    )
    @click.option(
        "--stand-in",
        type=click.Path(path_type=Path, exists=True, file_okay=False),
        metavar="FOLDER",
        help="Replace base and sources by those of FOLDER/IMAGE.toml; its lock is there, too, and its tags say so.",
    )
    @click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors, and why an answer is no.")
    @click.option("-v", "--verbose", is_flag=True, help="Print every finding, parameter and digest.")
    @click.option("--no-color", is_flag=True, help="No colours (also by NO_COLOR).")
    @functools.wraps(function)
    def wrapper(
        *,
        as_json: bool,
        project: Path | None,
        stand_in: Path | None,
        quiet: bool,
        verbose: bool,
        no_color: bool,
        **others: Any,
    ) -> Any:
        plain = no_color or bool(os.environ.get("NO_COLOR"))
        output = Output(as_json=as_json, quiet=quiet, verbose=verbose, colour=sys.stdout.isatty(), plain=plain)
        return function(settings=Settings(output=output, project=project, stand_in=stand_in), **others)

    return wrapper


def image_argument(function: Callable[..., Any]) -> Callable[..., Any]:
    """The name of an image, completed by the shell from `locks/`."""
    return click.argument("image", shell_complete=_complete_image)(function)


def _completing(find: Callable[[Settings, click.Context], Iterable[str]]) -> Complete:
    """What the shell may offer; where the words cannot be found, none, since completing is no place for errors."""

    def complete(context: click.Context, _parameter: click.Parameter, text: str) -> list[str]:
        from imgbuild.errors import ImgbuildError  # noqa: PLC0415

        output = Output(as_json=False, quiet=True, verbose=False, colour=False)
        settings = Settings(output=output, project=context.params.get("project"), store=context.params.get("store"))
        try:
            return sorted(word for word in find(settings, context) if word.startswith(text))
        except (ImgbuildError, OSError):
            return []

    return complete


@_completing
def _complete_image(settings: Settings, _context: click.Context) -> Iterable[str]:
    return settings.open_project().images()


@_completing
def complete_tag(settings: Settings, _context: click.Context) -> Iterable[str]:
    """The tags of the store."""
    from imgbuild.adapters.store import Store  # noqa: PLC0415
    from imgbuild.ledger import Ledger  # noqa: PLC0415

    return Store(settings.store_path(settings.open_project()), ledger=Ledger()).tags()


@_completing
def complete_pin(settings: Settings, context: click.Context) -> Iterable[str]:
    """What `lock IMAGE --update` may name: base, sources and patches of the image; of all where none is named."""
    from imgbuild.steps.patchpins import PREFIX, patch_pins  # noqa: PLC0415
    from imgbuild.steps.pins import BASE  # noqa: PLC0415

    project = settings.open_project()
    # click stops at the option that lacks its value, with the words before it still in `args`.
    words = [context.params.get("image"), *context.args]
    image = next((word for word in words if word is not None), None)
    images = project.images() if image is None else [image]
    inputs = [project.load(one) for one in images]
    patches = {f"{PREFIX}{name}" for one in inputs for name in patch_pins(one)}
    return {BASE, *patches, *(name for one in inputs for name in one.definition.sources)}


@_completing
def complete_given(settings: Settings, context: click.Context) -> Iterable[str]:
    """The sources that `--source` may give, with the sign that comes next; the file is left to the user."""
    from imgbuild.model.image import SingleSource  # noqa: PLC0415

    image = context.params.get("image") or next(iter(context.args), "")
    sources = settings.open_project().load(image).definition.sources
    return [f"{name}=" for name, source in sources.items() if isinstance(source, SingleSource)]


@_completing
def complete_output(_settings: Settings, _context: click.Context) -> Iterable[str]:
    """The kinds of `build --output`; what follows the colon is left to the user."""
    from imgbuild.steps.export import OutputKind  # noqa: PLC0415

    return [f"{kind}:" for kind in get_args(OutputKind)]


@_completing
def complete_platform(_settings: Settings, _context: click.Context) -> Iterable[str]:
    """The platforms that bases have; any other one may be given, too."""
    return ["linux/amd64", "linux/arm64"]


def parse_digest(text: str, what: str) -> Digest:
    """A digest from the command line, given as `what`; anything else is a usage error, not one of a file."""
    from imgbuild.digest import Digest  # noqa: PLC0415
    from imgbuild.errors import DocumentError, UsageError  # noqa: PLC0415

    try:
        return Digest.parse(text)
    except DocumentError as error:
        raise UsageError(
            f"{what} {text[:140]!r}",
            f"is not a digest: {error.problem}",
            expected="sha256: and 64 hexadecimal digits",
            hint="give the whole digest, as `imgbuild build` prints it",
        ) from error


def given_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """The option that gives files of sources; the function gets its texts as `given`."""
    return click.option(
        "--source",
        "given",
        multiple=True,
        metavar="NAME=FILE",
        shell_complete=complete_given,
        help="The file of a source of kind file, url or image-member, by its digest; may be repeated.",
    )(function)
