"""`imgbuild plan IMAGE`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from imgbuild import jsontext
from imgbuild.cli.options import Settings, image_argument, reading
from imgbuild.model.decode import builtins

if TYPE_CHECKING:
    from imgbuild.adapters.project import ImageInput
    from imgbuild.cli.render import Output
    from imgbuild.model.image import LibraryIdentity
    from imgbuild.model.lockfile import Lock
    from imgbuild.model.plan import Plan, PlanPatch, PlanStep

_SAID = {
    *("source", "toolchain", "path", "root", "site", "distribution", "paths", "sources", "files"),
    *("count", "find", "replace", "replaces", "stages"),
}
"""Parameters of steps that the sentence about them, or its files, say already; -v shows all."""
_INDENT = "               "


@click.command("plan")
@image_argument
@reading
def command(image: str, *, settings: Settings) -> int:
    """Show what building IMAGE would do: layers, steps, sources, and files from state to state.

    Reads only the repository: no network, no store, no cache. The digest at the end covers all that decides what a
    build makes. -v shows every parameter of the steps and every pin of the sources. Where there is no lock yet, it
    shows what the definition pins by itself, and what `imgbuild lock IMAGE` has to find out before a build.
    """
    from imgbuild.cli.results import TOOL, PlanDocument  # noqa: PLC0415 - imported when used
    from imgbuild.model.plan import PlannedLayer, make_plan  # noqa: PLC0415
    from imgbuild.steps.check import check_image  # noqa: PLC0415
    from imgbuild.steps.lock import check_fresh  # noqa: PLC0415

    project = settings.open_project()
    inputs = project.load(image)
    lock = project.lock(image)
    if lock is not None:
        check_fresh(inputs, lock)
    check_image(inputs)
    patches = _patches(inputs, lock)
    layers = tuple(
        PlannedLayer(name=layer.name, definition=layer.definition, known=layer.known, patches=patches)
        for layer in inputs.layers
    )
    plan = make_plan(inputs.definition, layers, lock, inputs=inputs.inputs_digest)
    document = PlanDocument(schema="imgbuild/plan-result/v1", tool=TOOL, digest=plan.digest(), result=plan)
    settings.output.document(document)
    _show(settings.output, plan, inputs)
    return 0


def _patches(inputs: ImageInput, lock: Lock | None) -> dict[str, list[PlanPatch]]:
    """The patches of each step, in their order."""
    from imgbuild.digest import Digest  # noqa: PLC0415
    from imgbuild.model.plan import PlanPatch  # noqa: PLC0415
    from imgbuild.steps.patchpins import patch_pins  # noqa: PLC0415

    known = {} if lock is None else {item.name: getattr(item, "evidence", {}) for item in lock.pins.sources}
    rows: dict[str, dict[int, PlanPatch]] = {}
    for pin in patch_pins(inputs).values():
        for use in pin.uses:
            digest = None
            if pin.source is None:
                digest = Digest.of(use.layer.files[pin.stage])
            else:
                named = getattr(inputs.definition.sources.get(pin.source), "digests", {})
                digest = {**known.get(pin.source, {}), **named}.get(pin.stage)
            patch = PlanPatch(name=pin.name, stage=pin.stage, digest=digest)
            rows.setdefault(use.step_id, {})[use.number] = patch
    return {step_id: [found[number] for number in sorted(found)] for step_id, found in rows.items()}


def _show(output: Output, plan: Plan, inputs: ImageInput) -> None:
    _show_base(output, plan)
    for number, layer in enumerate(plan.layers, 1):
        output.line()
        output.line(f"layer {number}  {layer.name}: {layer.title}", bold=True)
        if layer.diff_id is not None:
            output.line(f"  gives {layer.diff_id}")
        for step in layer.steps:
            _show_step(output, step)
    output.line()
    for name, value in plan.config.env.items():
        output.line(f"env          {name}={value}")
    for name, value in builtins(plan.config).items():
        if name != "env":
            output.line(f"{name:12} {_text(value)}")
    for name, library in plan.library.items():
        _show_library(output, name, library)
    for accepted in plan.accept_env:
        output.line(f"accepted     {accepted.name}={accepted.value}: {accepted.reason}")
    output.line(f"limits       {plan.limits.bytes} bytes added, {plan.limits.layers} layers")
    output.line(f"epoch        {plan.epoch}, layer format {plan.format}")
    pins = {source.name: source for source in plan.sources}
    for name, origin in plan.origins.items():
        output.line(f"source       {name}: {origin}")
        said = pins.get(name, inputs.definition.sources[name])
        _show_parameters(output, builtins(said) if output.verbose else {}, _INDENT)
    output.line(f"tags         {', '.join(plan.tags)}")
    _show_end(output, plan, inputs.words)


def _show_base(output: Output, plan: Plan) -> None:
    output.line(_title(plan), bold=True)
    output.line(plan.title)
    output.line(f"on {plan.base}@{plan.base_manifest}" if plan.base_manifest else f"on {plan.base}, not pinned yet")
    if plan.base_config is not None:
        output.line(f"  whose config is {plan.base_config}")
    if plan.base_tag is not None:
        output.line(f"  which `lock --update base` finds by the tag {plan.base_tag}")
    for name, value in plan.base_labels.items():
        output.line(f"  whose label {name} must be {value}")
    if not plan.layers:
        output.line("  as it is: no layer of ours")


def _show_library(output: Output, name: str, library: LibraryIdentity) -> None:
    """What is accepted beside a library stands with its reason: nobody shall have to look for an exception."""
    output.line(f"identity     {name}: {library.path} is {library.source}, and no other one may be loaded")
    output.line(f"{_INDENT}must have {', '.join(library.strings)}")
    for accepted in library.accept:
        output.line(f"{_INDENT}accepted {accepted.path}: {accepted.reason}")
    for asked in library.metadata:
        output.line(f"{_INDENT}accepted {asked.distribution} requires {asked.requires}: {asked.reason}")
    _show_parameters(output, builtins(library) if output.verbose else {}, _INDENT)


def _show_end(output: Output, plan: Plan, words: str) -> None:
    output.line(f"expected     {plan.expected_manifest or 'not in the lock yet'}")
    for text in plan.pending:
        output.line(f"pending      {text}")
    output.line(f"plan         {plan.digest()}")
    if plan.pending:
        output.line(f"no lock yet: `imgbuild lock {words}` finds out what is pending, where it can be reached")


def _title(plan: Plan) -> str:
    extends = "" if plan.extends is None else f", extends {plan.extends}; this is the whole"
    return f"{plan.image} for {plan.platform}{extends}"


def _show_step(output: Output, step: PlanStep) -> None:
    output.line(f"  {step.id}  {step.kind}: {step.does}")
    if step.pin is not None:
        output.line(f"      {step.source} is {step.pin}")
    if step.toolchain is not None:
        output.line(f"      {step.parameters['toolchain']} is {step.toolchain}")
    for patch in step.patches:
        output.line(f"      patch {patch.name}: {patch.stage}")
        if patch.digest is not None:
            output.line(f"        {patch.digest}")
    shown = {name: value for name, value in step.parameters.items() if output.verbose or name not in _SAID}
    _show_parameters(output, shown, "      ")
    for file in step.files:
        output.line(f"      {file.path}")
        output.line(f"        {' -> '.join(file.states)}")


def _show_parameters(output: Output, parameters: dict[str, Any], indent: str) -> None:
    for name, value in parameters.items():
        output.line(f"{indent}{name} {_text(value)}")


def _text(value: Any) -> str:
    """A value on one line: a text as it is, a list of texts by commas, else JSON."""
    if isinstance(value, str):
        return value.replace("\n", "\\n")
    if isinstance(value, list) and all(isinstance(item, str) and item and " " not in item for item in value):
        return ", ".join(value)
    return jsontext.compact(value).decode()
