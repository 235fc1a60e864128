"""A layer definition, `layers/<layer>/layer.toml`: the steps that make one OCI layer (design.md, section 4)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta

from imgbuild.errors import DocumentError, InputError
from imgbuild.model.decode import END, Document, convert, require_schema
from imgbuild.model.paths import image_path, relative_path

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMA = "imgbuild/layer/v1"
_STEP_PATH = re.compile(r"step\[([0-9]+)\][^:\s]*(?=:)")

Name = Annotated[str, Meta(pattern=f"^[a-z0-9][a-z0-9._-]{{0,63}}{END}", description="lower-case name")]
ImagePath = Annotated[str, Meta(pattern="^/.", description="absolute path in the image")]
RelativePath = Annotated[str, Meta(pattern="^[^/]", description="relative path below the folder the step names")]
Mode = Annotated[str, Meta(pattern=f"^0[0-7]{{3,4}}{END}", description="octal permission bits, as 0644")]
State = Annotated[
    str, Meta(pattern=f"^(absent|sha256:[0-9a-f]{{64}}|link:.+){END}", description="content of a path, or absent")
]
Owner = Annotated[str, Meta(pattern=f"^[0-9]{{1,10}}:[0-9]{{1,10}}{END}", description="numeric uid:gid")]


Language = Literal["c11", "c17", "gnu11", "gnu17", "c++17", "c++20", "gnu++17", "gnu++20"]


class GitTree(Document, frozen=True, kw_only=True, tag_field="kind", tag="git-tree"):
    """Puts files of a pinned commit at a path."""

    source: Name
    path: ImagePath
    prefix: str = ""
    include: list[str] = []
    exclude: list[str] = []
    licence: str | None = None
    notice: Annotated[
        ImagePath | None,
        Meta(description="where a text goes that says whose files these are, and that they were changed"),
    ] = None
    replaces: list[ImagePath] = []
    owner: Owner = "0:0"


class Patch(Document, frozen=True, kw_only=True, tag_field="kind", tag="patch"):
    """Applies unified diffs, one stage each, to files of the tree; nothing but `files` may be touched."""

    root: ImagePath
    source: Annotated[
        Name | None, Meta(description="the git source that has the patch files; else the layer's folder")
    ] = None
    stages: Annotated[list[RelativePath], Meta(min_length=1, description="patch files, in order")]
    files: Annotated[list[RelativePath], Meta(min_length=1, description="all files touched, relative to root")]
    states: Annotated[
        RelativePath | None,
        Meta(description="file below the layer's folder: of each file the states that upstream names, as TOML"),
    ] = None
    strip: Annotated[int, Meta(ge=0, le=8)] = 1
    mode: Mode = "0644"
    owner: Owner = "0:0"


class Edit(Document, frozen=True, kw_only=True, tag_field="kind", tag="edit"):
    """Replaces an exact text that must occur exactly `count` times."""

    path: ImagePath
    find: Annotated[str, Meta(min_length=1)]
    replace: str
    count: Annotated[int, Meta(ge=1)] = 1


class Replace(Document, frozen=True, kw_only=True, tag_field="kind", tag="replace"):
    """Swaps one file inside an installed package in place, RECORD row included."""

    path: ImagePath
    source: Name
    distribution: str
    shared_with: Annotated[
        list[str], Meta(description="the other distributions whose RECORD claims the path, if it is not one alone")
    ] = []


class Wheel(Document, frozen=True, kw_only=True, tag_field="kind", tag="wheel"):
    """Installs a pinned wheel by its RECORD, without running pip."""

    source: Name
    site: ImagePath
    scripts: ImagePath | None = None
    python: Annotated[str, Meta(pattern=rf"^3\.[0-9]{{1,2}}{END}", description="Python of the image, as 3.12")]
    owner: Owner = "0:0"


class Compile(Document, frozen=True, kw_only=True, tag_field="kind", tag="compile"):
    """Compiles sources of a pinned commit with the pinned cross-compiler."""

    source: Name
    toolchain: Name
    sources: Annotated[list[RelativePath], Meta(min_length=1)]
    headers: list[RelativePath] = []
    language: Language
    glibc: Annotated[str, Meta(pattern=rf"^2\.[0-9]{{1,2}}{END}", description="glibc the output may need")]
    flags: list[str] = []
    soname: str | None = None
    path: ImagePath
    mode: Mode = "0755"
    owner: Owner = "0:0"


class File(Document, frozen=True, kw_only=True, tag_field="kind", tag="file"):
    """Puts one of the layer's own files at a path."""

    source: Annotated[RelativePath, Meta(description="file below the layer's folder")]
    path: ImagePath
    replaces: Annotated[bool, Meta(description="whether the path must exist already; otherwise it must not")] = False
    mode: Mode = "0644"
    owner: Owner = "0:0"


class Remove(Document, frozen=True, kw_only=True, tag_field="kind", tag="remove"):
    """Removes paths that must exist, by whiteouts."""

    paths: Annotated[list[ImagePath], Meta(min_length=1)]


Step = GitTree | Patch | Edit | Replace | Wheel | Compile | File | Remove
PACKAGE_STEPS = (Wheel,)
"""Steps after which a package manager's idea of the image has changed; none may follow a swap (cases P12, P13)."""


class LayerDefinition(Document, frozen=True, kw_only=True):
    """One layer."""

    schema: str
    title: Annotated[str, Meta(min_length=1, max_length=120, description="what the layer puts on the base, and why")]
    step: Annotated[list[Step], Meta(min_length=1)]


def own_files(step: Step) -> list[str]:
    """The files below the layer's folder that a step needs."""
    match step:
        case File():
            return [step.source]
        case Patch():
            return [*(step.stages if step.source is None else []), *([step.states] if step.states is not None else [])]
        case _:
            return []


def changed_paths(step: Step) -> list[str]:
    """The paths in the image that a step changes or makes and names; what trees and wheels add is not named."""
    match step:
        case GitTree():
            return step.replaces
        case Patch():
            return [f"{step.root}/{path}" for path in step.files]
        case Remove():
            return step.paths
        case Edit() | Replace() | Compile() | File():
            return [step.path]
        case _:
            return []


def parse_states(value: Any, *, subject: str) -> dict[str, tuple[str, ...]]:
    """From parsed TOML to the states of files, relative to the root of their step: from the preimage on.

    Raises:
        DocumentError: it is something else, or a state is neither a sha256, `absent` nor `link:` and its target.
    """
    found = convert(value, dict[str, Annotated[list[State], Meta(min_length=2)]], subject=subject)
    return {path: tuple(states) for path, states in found.items()}


def parse_layer(value: Any, *, name: str, subject: str) -> LayerDefinition:
    """From parsed TOML to a definition; a `DocumentError` lists all problems. Paths are checked too (`StepError`).

    `name` is the layer's; with it problems name steps as locks do, `name/1` and so on.
    """
    require_schema(value, SCHEMA, subject=subject)
    try:
        layer = convert(value, LayerDefinition, subject=subject)
    except DocumentError as error:
        raise DocumentError(subject, tuple(_with_step_id(text, name) for text in error.problems)) from error
    for step_id, step in numbered(name, layer):
        _check_paths(step, where=f"{subject}, step {step_id}")
    return layer


def numbered(name: str, layer: LayerDefinition) -> Iterator[tuple[str, Step]]:
    """The steps of a layer with their ids: its name and the number, counted from 1."""
    for number, step in enumerate(layer.step, 1):
        yield f"{name}/{number}", step


def kind_of(step: Step) -> str:
    """The step's kind as it is written."""
    return str(step.__struct_config__.tag)


def mode_bits(text: str) -> int:
    """`0644` as a number."""
    return int(text, 8)


def owner_ids(text: str) -> tuple[int, int]:
    """`0:0` as uid and gid."""
    uid, _, gid = text.partition(":")
    return int(uid), int(gid)


def _with_step_id(problem: str, name: str) -> str:
    """`step[1].count: …`, which counts from 0 as JSON paths do, with the step's id: `step[1].count (name/2): …`."""
    found = _STEP_PATH.match(problem)
    if found is None:
        return problem
    return f"{found[0]} ({name}/{int(found[1]) + 1}){problem[found.end() :]}"


def _check_paths(step: Step, *, where: str) -> None:
    for path in _absolute(step):
        image_path(path, where=where)
    for path in _relative(step):
        relative_path(path, where=where)
    if isinstance(step, Patch) and len(set(step.files)) != len(step.files):
        raise InputError(where, "lists a file twice", actual=", ".join(sorted(step.files)))


def _absolute(step: Step) -> list[str]:
    if isinstance(step, Remove):
        return step.paths
    if isinstance(step, Patch):
        return [step.root]
    if isinstance(step, Wheel):
        return [step.site, *([step.scripts] if step.scripts else [])]
    if isinstance(step, GitTree):
        return [step.path, *([step.notice] if step.notice else [])]
    return [step.path]


def _relative(step: Step) -> list[str]:
    if isinstance(step, Patch):
        return [*step.stages, *step.files, *([step.states] if step.states is not None else [])]
    if isinstance(step, Compile):
        return [*step.sources, *step.headers]
    if isinstance(step, GitTree):
        return [path for path in (step.prefix, step.licence) if path]
    return [step.source] if isinstance(step, File) else []
