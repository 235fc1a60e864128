"""A plan: what a build would do, as a pure function of definition, layers and lock; no network, no store."""

from __future__ import annotations

from imgbuild import jsontext
from imgbuild.digest import Digest
from imgbuild.model.decode import Document, builtins
from imgbuild.model.layer import LayerDefinition, kind_of
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from imgbuild.model.lockfile import Lock
    from imgbuild.model.image import ImageDefinition

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


def _step(step_id: str, step: object, lock: Lock) -> PlanStep:
    value = builtins(step)
    source = value.get("source")
    locked = {item.name: item for item in lock.pins.sources}
    pin = locked.get(str(source))
    return PlanStep(
        id=step_id,
        kind=kind_of(step),  # type: ignore[arg-type] # every step of a layer definition has a kind
        does=_sentence(value),
        source=str(source) if pin is not None else None,
        pin=None if pin is None else _pin(builtins(pin)),
        files=[PlanFile(path=row.path, states=row.states) for row in lock.pins.files if row.step == step_id],
    )


def _pin(value: dict[str, object]) -> str:
    return str(value.get("commit") or value.get("digest") or value.get("version"))


def _sentence(value: dict[str, object]) -> str:
    match value["kind"]:
        case "git-tree":
            return f"puts files of {value['source']} at {value['path']}"
        case "patch":
            return f"patches {len(value['files'])} files below {value['root']} in {len(value['stages'])} stages"  # type: ignore[arg-type]
        case "edit":
            return f"replaces a text that occurs {value.get('count', 1)} times in {value['path']}"
        case "replace":
            return f"swaps {value['path']} of {value['distribution']} in place"
        case "wheel":
            return f"installs {value['source']} into {value['site']}"
        case "compile":
            return f"compiles {', '.join(value['sources'])} to {value['path']}"  # type: ignore[arg-type]
        case "file":
            return f"{'replaces' if value.get('replaces') else 'adds'} {value['path']}"
        case _:
            return f"removes {', '.join(value['paths'])}"  # type: ignore[arg-type]
