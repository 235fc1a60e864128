"""A plan: what a build would do, as a pure function of definition, layers and lock; no network, no store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from imgbuild import jsontext
from imgbuild.digest import Digest
from imgbuild.model.decode import Document, builtins
from imgbuild.model.image import AcceptedVariable, Config, LibraryIdentity, Limits
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

if TYPE_CHECKING:
    from imgbuild.model.image import ImageDefinition
    from imgbuild.model.lockfile import Lock

SCHEMA = "imgbuild/plan/v1"


class PlanFile(Document, frozen=True, kw_only=True):
    """A file that a step changes, from state to state."""

    path: str
    states: list[str]


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
    files: list[PlanFile] = []


class PlanLayer(Document, frozen=True, kw_only=True):
    """One layer; `diff_id` is what the lock expects."""

    name: str
    title: str
    steps: list[PlanStep]
    diff_id: Digest | None = None


class Plan(Document, frozen=True, kw_only=True):
    """All that decides what a build makes, in order; what has its default is left out.

    `inputs` is the digest over the repository's files, which the lock holds and the image with it.
    """

    schema: str
    image: str
    platform: str
    epoch: int
    format: int
    inputs: Digest
    base: str
    base_manifest: Digest
    base_config: Digest
    sources: list[LockedSource]
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


def make_plan(definition: ImageDefinition, layers: tuple[tuple[str, LayerDefinition], ...], lock: Lock) -> Plan:
    """The plan for a lock."""
    expected = {} if lock.result is None else {item.name: item.diff_id for item in lock.result.layers}
    rows = []
    for name, layer in layers:
        steps = [_step(step_id, step, lock) for step_id, step in numbered(name, layer)]
        rows.append(PlanLayer(name=name, title=layer.title, steps=steps, diff_id=expected.get(name)))
    return Plan(
        schema=SCHEMA,
        image=definition.name,
        platform=definition.platform,
        epoch=lock.pins.epoch,
        format=lock.pins.format,
        inputs=lock.inputs_digest,
        base=lock.pins.base.reference,
        base_manifest=lock.pins.base.manifest,
        base_config=lock.pins.base.config,
        sources=list(lock.pins.sources),
        layers=rows,
        config=definition.config,
        limits=definition.limits,
        tags=list(definition.tags),
        library=dict(definition.library),
        accept_env=list(definition.accept_env),
        expected_manifest=None if lock.result is None else lock.result.manifest,
    )


def _step(step_id: str, step: Step, lock: Lock) -> PlanStep:
    pins = {item.name: _pin(item) for item in lock.pins.sources}
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
        files=[PlanFile(path=row.path, states=row.states) for row in lock.pins.files if row.step == step_id],
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
            return f"puts files of {step.source} at {step.path}"
        case Patch():
            return f"patches {_count(step.files, 'file')} below {step.root} in {_count(step.stages, 'stage')}"
        case Edit():
            return f"replaces a text that occurs {step.count} time{'' if step.count == 1 else 's'} in {step.path}"
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
            return f"{'replaces' if step.replaces else 'adds'} {step.path}"
        case Remove():
            return f"removes {', '.join(step.paths)}"


def _count(items: list[str], noun: str) -> str:
    return f"{len(items)} {noun}{'' if len(items) == 1 else 's'}"
