"""A plan: what a build would do, as a pure function of definition, layers and lock; no network, no store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from imgbuild import jsontext
from imgbuild.digest import Digest
from imgbuild.model.decode import Document, builtins
from imgbuild.model.image import (
    AcceptedVariable,
    Config,
    FileSource,
    GitSource,
    ImageMemberSource,
    LibraryIdentity,
    Limits,
    MemberSource,
    ToolchainSource,
    UrlSource,
    WheelSource,
)
from imgbuild.model.layer import (
    Compile,
    Edit,
    File,
    GitTree,
    LayerDefinition,
    Patch,
    Remove,
    Replace,
    Step,
    Wheel,
    changed_paths,
    kind_of,
    numbered,
)
from imgbuild.model.lockfile import (
    LockedFile,
    LockedGit,
    LockedImageMember,
    LockedSource,
    LockedToolchain,
    LockedUrl,
)
from imgbuild.text import without_credentials

if TYPE_CHECKING:
    from imgbuild.model.image import ImageDefinition, Source
    from imgbuild.model.lockfile import Lock

SCHEMA = "imgbuild/plan/v1"
_SHOWN = 40
"""characters of a text that an edit replaces, in the sentence about it."""


class PlanFile(Document, frozen=True, kw_only=True):
    """A file that a step changes, from state to state."""

    path: str
    states: list[str]


class PlanPatch(Document, frozen=True, kw_only=True):
    """A patch that a step applies: what `lock --update patch:NAME` calls it, where it is, and its digest if known."""

    name: str
    stage: str
    digest: Digest | None = None


class PlanStep(Document, frozen=True, kw_only=True):
    """One step: its kind, a sentence, its parameters as they are written, and the files whose images the lock pins.

    The files of `git-tree` and `wheel` are not listed: the digest of the tree or wheel pins them.
    """

    id: str
    kind: str
    does: str
    parameters: dict[str, Any]
    source: str | None = None
    pin: str | None = None
    toolchain: str | None = None
    patches: list[PlanPatch] = []
    files: list[PlanFile] = []


class PlanLayer(Document, frozen=True, kw_only=True):
    """One layer; `diff_id` is what the lock expects."""

    name: str
    title: str
    steps: list[PlanStep]
    diff_id: Digest | None = None


class Plan(Document, frozen=True, kw_only=True):
    """All that decides what a build makes, in order; what has its default is left out.

    `inputs` is the digest over the repository's files, which the lock holds and the image with it. Without a lock, the
    pins are those that the definition has, and `pending` says what `imgbuild lock` has to find out before a build.
    `base_labels` are those that the base must have, and `origins` says of each source where it is from.
    """

    schema: str
    image: str
    title: str
    extends: str | None = None
    platform: str
    epoch: int
    format: int
    inputs: Digest
    base: str
    base_tag: str | None = None
    base_manifest: Digest | None = None
    base_config: Digest | None = None
    base_labels: dict[str, str] = {}
    origins: dict[str, str] = {}
    sources: list[LockedSource]
    pending: list[str] = []
    layers: list[PlanLayer]
    config: Config
    limits: Limits
    tags: list[str]
    library: dict[str, LibraryIdentity]
    accept_env: list[AcceptedVariable]
    expected_manifest: Digest | None = None

    def digest(self) -> Digest:
        """The digest of the canonical plan."""
        return Digest.of(jsontext.dumps(builtins(self)))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedLayer:
    """A layer of the definition.

    Attributes:
        name: of the layer.
        definition: its steps.
        known: the states of files that upstream names, by step and path in the image.
        patches: that its steps apply, by step.
    """

    name: str
    definition: LayerDefinition
    known: dict[str, dict[str, tuple[str, ...]]]
    patches: dict[str, list[PlanPatch]]


def make_plan(
    definition: ImageDefinition, layers: tuple[PlannedLayer, ...], lock: Lock | None, *, inputs: Digest
) -> Plan:
    """The plan for a lock, or for what a definition pins by itself.

    Args:
        definition: the image.
        layers: its layers, in order.
        lock: made from the same inputs; None where there is none yet.
        inputs: the digest over the repository's files.
    """
    result = None if lock is None else lock.result
    expected = {} if result is None else {item.name: item.diff_id for item in result.layers}
    pins = _demanded(definition) if lock is None else {item.name: _pin(item) for item in lock.pins.sources}
    rows = []
    for layer in layers:
        steps = [
            _step(step_id, step, pins, _files(step_id, layer, lock), layer.patches.get(step_id, []))
            for step_id, step in numbered(layer.name, layer.definition)
        ]
        title = layer.definition.title
        rows.append(PlanLayer(name=layer.name, title=title, steps=steps, diff_id=expected.get(layer.name)))
    base = definition.base
    return Plan(
        schema=SCHEMA,
        image=definition.name,
        title=definition.title,
        extends=definition.extends,
        platform=definition.platform,
        epoch=definition.epoch,
        format=definition.format,
        inputs=inputs,
        base=base.reference if lock is None else lock.pins.base.reference,
        base_tag=base.tag,
        base_manifest=base.manifest if lock is None else lock.pins.base.manifest,
        base_config=base.config if lock is None else lock.pins.base.config,
        base_labels=dict(base.labels),
        origins={name: _origin(name, source) for name, source in definition.sources.items()},
        sources=[] if lock is None else list(lock.pins.sources),
        pending=_pending(definition, layers) if lock is None else [],
        layers=rows,
        config=definition.config,
        limits=definition.limits,
        tags=list(definition.tags),
        library=dict(definition.library),
        accept_env=list(definition.accept_env),
        expected_manifest=None if result is None else result.manifest,
    )


def _demanded(definition: ImageDefinition) -> dict[str, str]:
    """What the definition itself says of each source."""
    return {name: _demand(source) for name, source in definition.sources.items()}


def _demand(source: Source) -> str:
    match source:
        case GitSource():
            return f"commit {source.commit}" if source.commit else f"{source.ref}, not resolved yet"
        case WheelSource(digest=Digest() as digest):
            return str(digest)
        case WheelSource() | ToolchainSource():
            return f"{source.name} {source.version}, its digest not looked up yet"
        case MemberSource():
            return f"{source.member} of {source.wheel}"
        case FileSource() | UrlSource() | ImageMemberSource():
            return str(source.digest)


def _origin(name: str, source: Source) -> str:
    """Where a source is from, in words."""
    match source:
        case GitSource():
            watched = f"; watches {', '.join(source.evidence)}" if source.evidence else ""
            return f"{without_credentials(source.repository)}, {source.licence}{watched}"
        case WheelSource():
            return f"{source.name} {source.version}, from the index of pip"
        case ToolchainSource():
            return f"{source.name} {source.version}, from the index of pip, for {', '.join(source.hosts)}"
        case _:
            return _origin_of_file(name, source)


def _origin_of_file(name: str, source: MemberSource | FileSource | UrlSource | ImageMemberSource) -> str:
    match source:
        case MemberSource():
            return f"{source.member} in {source.wheel}"
        case FileSource():
            return f"a file of the operator's, given by --source {name}=FILE"
        case UrlSource():
            return without_credentials(source.url)
        case ImageMemberSource():
            return f"{source.path} in {source.image}"


def _pending_base(definition: ImageDefinition) -> str:
    base = definition.base
    rest = "layers" if base.config is not None else "config, its layers"
    if base.manifest is not None:
        return f"base {base.manifest}: whether it is an index or a platform manifest, its {rest}"
    if base.tag is not None:
        return f"base tag {base.tag}: its digest, its {rest}"
    return f"base: which one it is (nothing names a tag or a digest), its {rest}"


def _pending_source(source: Source) -> str | None:
    match source:
        case GitSource():
            evidence = sorted(set(source.evidence) - set(source.digests))
            more = f", sha256 of {', '.join(evidence)}" if evidence else ""
            return f"{'' if source.commit else 'commit, '}tree and content{more}"
        case WheelSource() | ToolchainSource():
            known = isinstance(source, WheelSource) and source.digest is not None
            return f"file name and {'size' if known else 'sha256'} of {source.name} {source.version}"
        case MemberSource():
            return "its sha256"
        case FileSource() | UrlSource() | ImageMemberSource():
            return "its size" if source.size is None else None


def _pending(definition: ImageDefinition, layers: tuple[PlannedLayer, ...]) -> list[str]:
    """What no file of the repository says, in words."""
    found = [_pending_base(definition)]
    for name, source in definition.sources.items():
        what = _pending_source(source)
        if what is not None:
            found.append(f"source {name}: {what}")
    for layer in layers:
        for step_id, step in numbered(layer.name, layer.definition):
            unknown = [path for path in changed_paths(step) if path not in layer.known.get(step_id, {})]
            if unknown:
                found.append(f"step {step_id}: states of {', '.join(unknown)}")
    return [*found, "the facts of the base, and the expected result"]


def _files(step_id: str, layer: PlannedLayer, lock: Lock | None) -> list[PlanFile]:
    if lock is not None:
        return [PlanFile(path=row.path, states=row.states) for row in lock.pins.files if row.step == step_id]
    return [PlanFile(path=path, states=list(states)) for path, states in layer.known.get(step_id, {}).items()]


def _step(step_id: str, step: Step, pins: dict[str, str], files: list[PlanFile], patches: list[PlanPatch]) -> PlanStep:
    source = str(getattr(step, "source", ""))
    parameters = builtins(step)
    del parameters["kind"]
    return PlanStep(
        id=step_id,
        kind=kind_of(step),
        does=_sentence(step),
        parameters=parameters,
        source=source if source in pins else None,
        pin=pins.get(source),
        toolchain=pins.get(step.toolchain) if isinstance(step, Compile) else None,
        patches=patches,
        files=files,
    )


def _pin(pin: LockedSource) -> str:
    match pin:
        case LockedGit():
            return f"commit {pin.commit}"
        case LockedToolchain():
            return f"{pin.distribution} {pin.version}"
        case LockedFile():
            return f"{pin.digest}, a file of the operator's"
        case LockedUrl():
            return f"{pin.digest} at {pin.url}"
        case LockedImageMember():
            return f"{pin.digest}, {pin.path} of {pin.image}"
        case _:
            return str(pin.digest)


def _sentence(step: Step) -> str:
    match step:
        case GitTree():
            over = f", over {', '.join(step.replaces)}" if step.replaces else ""
            return f"puts files of {step.source} at {step.path}{over}"
        case Patch():
            return f"patches {_count(step.files, 'file')} below {step.root} in {_count(step.stages, 'stage')}"
        case Edit():
            times = f"which occurs {step.count} time{'' if step.count == 1 else 's'}"
            return f"replaces {_beginning(step.find)!r} in {step.path}, {times}"
        case Replace():
            return f"swaps {step.path} of {step.distribution} in place"
        case _:
            return _sentence_of_files(step)


def _sentence_of_files(step: Wheel | Compile | File | Remove) -> str:
    match step:
        case Wheel():
            return f"installs {step.source} into {step.site}"
        case Compile():
            return f"compiles {', '.join(step.sources)} to {step.path}"
        case File():
            return f"{'replaces' if step.replaces else 'adds'} {step.path}, our {step.source}"
        case Remove():
            return f"removes {', '.join(step.paths)}"


def _beginning(text: str) -> str:
    """What tells one text from another: its first line that says something."""
    line = next((line.strip() for line in text.split("\n") if line.strip()), text)
    return line if len(line) <= _SHOWN and text.strip() == line else f"{line[:_SHOWN]}…"


def _count(items: list[str], noun: str) -> str:
    return f"{len(items)} {noun}{'' if len(items) == 1 else 's'}"
