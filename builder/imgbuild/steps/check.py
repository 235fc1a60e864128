"""What can be refused before anything is read: the order of steps, their sources, and licence files."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, get_args

from imgbuild.errors import DocumentError, StepError
from imgbuild.model.image import GitSource, LibrarySource, ToolchainSource, WheelSource
from imgbuild.model.layer import PACKAGE_STEPS, Compile, GitTree, Patch, Replace, Wheel, numbered

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import UnionType

    from imgbuild.adapters.project import ImageInput, LayerInput
    from imgbuild.model.image import Source
    from imgbuild.model.layer import Step

_Kind: TypeAlias = "type[Source] | UnionType"
_NO_NOTICE = {"0BSD", "CC0-1.0", "Unlicense", "MIT-0"}
"""Licences that do not ask for their text to be kept with copies."""


def check_image(image: ImageInput) -> None:
    """Refuse what no base and no source could make right; a pure function of the repository's files."""
    for subject, problems in _problems(image):
        if problems:
            raise DocumentError(subject, tuple(problems))
    _check_order(image)
    _check_licences(image)


def _steps(image: ImageInput) -> Iterator[tuple[str, Step]]:
    for layer in image.layers:
        yield from numbered(layer.name, layer.definition)


def _problems(image: ImageInput) -> Iterator[tuple[str, list[str]]]:
    """Each file with its problems."""
    problems = []
    for name, source in image.definition.sources.items():
        if isinstance(source, GitSource):
            from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression  # noqa: PLC0415

            try:
                canonicalize_license_expression(source.licence)
            except InvalidLicenseExpression as error:
                problems.append(f"sources.{name}.licence: {error}")
    yield f"locks/{image.definition.name}.toml", problems
    for layer in image.layers:
        yield f"layers/{layer.name}/layer.toml", [*_absent_sources(image, layer), *_other_states(layer)]


def _absent_sources(image: ImageInput, layer: LayerInput) -> list[str]:
    """What the steps of a layer call a source and is none of the kind they need, each name once."""
    sources = image.definition.sources
    users: dict[tuple[str, _Kind], list[str]] = {}
    for step_id, step in numbered(layer.name, layer.definition):
        for name, kind in _needs(step):
            if not isinstance(sources.get(name), kind):
                users.setdefault((name, kind), []).append(step_id)
    problems = []
    for (name, kind), steps in users.items():
        there = sorted(known for known, source in sources.items() if isinstance(source, kind))
        problems.append(
            f"step {', '.join(steps)}: {name!r} is not a source of kind {_words(kind)}; "
            f"there are {', '.join(there) or 'none'}"
        )
    return problems


def _words(kind: _Kind) -> str:
    return " or ".join(str(one.__struct_config__.tag) for one in get_args(kind) or (kind,))


def _other_states(layer: LayerInput) -> Iterator[str]:
    """Files of states that do not name just the files of their step."""
    for step_id, step in numbered(layer.name, layer.definition):
        if isinstance(step, Patch) and step.states is not None:
            other = sorted(set(step.files) ^ layer.states[step.states].keys())
            if other:
                yield f"step {step_id}: {step.states} and `files` differ: {', '.join(other)}"


def _needs(step: Step) -> Iterator[tuple[str, _Kind]]:
    match step:
        case GitTree():
            yield step.source, GitSource
        case Patch(source=str(name)):
            yield name, GitSource
        case Compile():
            yield step.source, GitSource
            yield step.toolchain, ToolchainSource
        case Wheel():
            yield step.source, WheelSource
        case Replace():
            yield step.source, LibrarySource


def _check_order(image: ImageInput) -> None:
    """A package step after a swap could put the old library back (cases P12, P13)."""
    swapped: str | None = None
    for step_id, step in _steps(image):
        if isinstance(step, Replace):
            swapped = step_id
        elif isinstance(step, PACKAGE_STEPS) and swapped is not None:
            raise StepError(
                f"step {step_id}",
                "installs a package after the swap",
                expected="no package step later",
                actual=f"swap in step {swapped}",
                hint="move the layer with the swap to the end of `layers`",
            )


def _check_licences(image: ImageInput) -> None:
    """A source whose licence asks for its text must bring the file with at least one step (case P84)."""
    for name, source in image.definition.sources.items():
        if not isinstance(source, GitSource) or source.licence in _NO_NOTICE:
            continue
        uses = [(step_id, step) for step_id, step in _steps(image) if isinstance(step, GitTree) and step.source == name]
        if uses and not any(step.licence for _, step in uses):
            raise StepError(
                f"source {name}",
                "is put into the image without its licence file",
                expected=f"`licence` in a git-tree step, since {source.licence} asks for its text",
                actual="no step names one",
                where=uses[0][0],
            )
