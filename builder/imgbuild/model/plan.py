"""A plan: what a build would do, as a pure function of definition, layers and lock; no network, no store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imgbuild import jsontext
from imgbuild.digest import Digest
from imgbuild.model.decode import Document, builtins
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
)
from imgbuild.model.lockfile import LockedGit, LockedToolchain

if TYPE_CHECKING:
    from imgbuild.model.image import ImageDefinition
    from imgbuild.model.lockfile import Lock, LockedSource

SCHEMA = "imgbuild/plan/v1"


class PlanFile(Document, frozen=True, kw_only=True):
    """A file that a step changes, from state to state."""

    path: str
    states: list[str]


class PlanStep(Document, frozen=True, kw_only=True):
    """One step: its kind, a sentence, and the files whose images the lock pins."""

    id: str
    kind: str
    does: str
    source: str | None = None
    pin: str | None = None
    files: list[PlanFile] = []


class PlanLayer(Document, frozen=True, kw_only=True):
    """One layer; `diff_id` is what the lock expects."""

    name: str
    title: str
    steps: list[PlanStep]
    diff_id: Digest | None = None


class Plan(Document, frozen=True, kw_only=True):
    """All that a build does, in order."""

    schema: str
    image: str
    platform: str
    base: str
    base_manifest: Digest
    layers: list[PlanLayer]
    env: dict[str, str]
    tags: list[str]
    identities: list[str]
    expected_manifest: Digest | None = None

    def digest(self) -> Digest:
        """The digest of the canonical plan."""
        return Digest.of(jsontext.dumps(builtins(self)))


def make_plan(definition: ImageDefinition, layers: tuple[tuple[str, LayerDefinition], ...], lock: Lock) -> Plan:
    """The plan for a lock."""
    expected = {} if lock.result is None else {item.name: item.diff_id for item in lock.result.layers}
    rows = []
    for name, layer in layers:
        steps = [_step(f"{name}/{number}", step, lock) for number, step in enumerate(layer.step, 1)]
        rows.append(PlanLayer(name=name, title=layer.title, steps=steps, diff_id=expected.get(name)))
    return Plan(
        schema=SCHEMA,
        image=definition.name,
        platform=definition.platform,
        base=lock.pins.base.reference,
        base_manifest=lock.pins.base.manifest,
        layers=rows,
        env=dict(definition.config.env),
        tags=list(definition.tags),
        identities=[f"{name}: {library.path}" for name, library in sorted(definition.library.items())],
        expected_manifest=None if lock.result is None else lock.result.manifest,
    )


def _step(step_id: str, step: Step, lock: Lock) -> PlanStep:
    source = getattr(step, "source", None)
    pin = next((item for item in lock.pins.sources if item.name == source), None)
    return PlanStep(
        id=step_id,
        kind=kind_of(step),
        does=_sentence(step),
        source=source if pin is not None else None,
        pin=None if pin is None else _pin(pin),
        files=[PlanFile(path=row.path, states=row.states) for row in lock.pins.files if row.step == step_id],
    )


def _pin(pin: LockedSource) -> str:
    if isinstance(pin, LockedGit):
        return f"commit {pin.commit}"
    return pin.version if isinstance(pin, LockedToolchain) else str(pin.digest)


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
