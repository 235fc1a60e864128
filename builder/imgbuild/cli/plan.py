"""`imgbuild plan IMAGE`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from imgbuild.cli.options import Settings, image_argument, shared

if TYPE_CHECKING:
    from imgbuild.cli.render import Output
    from imgbuild.model.plan import Plan


@click.command("plan")
@image_argument
@shared
def command(image: str, *, settings: Settings) -> int:
    """Show what building IMAGE would do: layers, steps, sources, and files from state to state.

    Reads only the repository: no network, no store.
    """
    from imgbuild.cli.results import TOOL, PlanDocument  # noqa: PLC0415 - imported when used
    from imgbuild.model.plan import make_plan  # noqa: PLC0415
    from imgbuild.steps.check import check_image  # noqa: PLC0415
    from imgbuild.steps.lock import check_fresh  # noqa: PLC0415

    project = settings.open_project()
    inputs = project.load(image)
    lock = project.require_lock(image)
    check_fresh(inputs, lock)
    check_image(inputs)
    plan = make_plan(inputs.definition, tuple((layer.name, layer.definition) for layer in inputs.layers), lock)
    document = PlanDocument(schema="imgbuild/plan-result/v1", tool=TOOL, digest=plan.digest(), result=plan)
    settings.output.document(document)
    _show(settings.output, plan)
    return 0


def _show(output: Output, plan: Plan) -> None:
    output.line(f"{plan.image} for {plan.platform}", bold=True)
    output.line(f"on {plan.base}@{plan.base_manifest}")
    for number, layer in enumerate(plan.layers, 1):
        output.line()
        output.line(f"layer {number}  {layer.name}: {layer.title}", bold=True)
        if layer.diff_id is not None:
            output.line(f"  gives {layer.diff_id}")
        for step in layer.steps:
            output.line(f"  {step.kind:9} {step.does}")
            if step.pin is not None:
                output.line(f"            {step.source} is {step.pin}")
            for file in step.files:
                output.line(f"            {file.path}")
                output.line(f"              {' -> '.join(file.states)}")
    output.line()
    for name, value in plan.env.items():
        output.line(f"env          {name}={value}")
    for identity in plan.identities:
        output.line(f"identity     {identity}")
    output.line(f"tags         {', '.join(plan.tags)}")
    output.line(f"expected     {plan.expected_manifest or 'not in the lock yet'}")
    output.line(f"plan         {plan.digest()}")
