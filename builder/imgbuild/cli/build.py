"""`imgbuild build IMAGE`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from imgbuild.cli.options import Settings, image_argument, shared
from imgbuild.cli.render import amount, show_answer, show_moved, show_report

if TYPE_CHECKING:
    from imgbuild.cli.results import BuildBody, ReplacedBody
    from imgbuild.steps.build import BuildOutcome
    from imgbuild.steps.context import Context


@click.command("build")
@image_argument
@click.option("--dry-run", is_flag=True, help="Build and verify, but publish and tag nothing.")
@shared
def command(image: str, *, dry_run: bool, settings: Settings) -> int:
    """Build IMAGE from its lock, verify it, and tag it.

    Nothing gets a tag before every required identity matched. Exit code 1: it was built but did not pass; nothing of
    it is kept.
    """
    from imgbuild.adapters.store import StagedStore  # noqa: PLC0415 - imported when used
    from imgbuild.steps.build import build  # noqa: PLC0415

    project = settings.open_project()
    context = settings.context(project, staged=True)
    inputs = project.load(image)
    lock = project.require_lock(image)
    store = context.store
    assert isinstance(store, StagedStore)  # noqa: S101 - opened as one
    outcome = build(context, store, inputs, lock, dry_run=dry_run)
    _show(settings, context, image, outcome)
    return 0 if outcome.report.ok else 1


def _show(settings: Settings, context: Context, image: str, outcome: BuildOutcome) -> None:
    from imgbuild.cli.results import TOOL, BuildDocument  # noqa: PLC0415

    output = settings.output
    body = _body(context, image, outcome)
    output.document(BuildDocument(schema="imgbuild/build-result/v1", tool=TOOL, result=body))
    base = outcome.assembled.base
    size = sum(layer.size for layer in base.manifest.layers)
    output.line(
        f"layers       {len(base.manifest.layers)} of the base ({amount(size)}), {len(body.layers)} added", bold=True
    )
    for layer in body.layers:
        output.line(f"  {layer.name:24}  {amount(layer.size):>9}  {layer.digest}")
    output.line(f"replaced     {len(body.replaced)} files of the base", bold=True)
    for row in body.replaced:
        output.line(f"  {row.path}  ({row.step})")
        output.line(f"      {row.before}  ->  {row.after}")
    show_report(output, outcome.report)
    show_moved(output, context.ledger)
    output.line(f"base         {body.base}")
    output.line(f"config       {body.config}")
    output.line(f"manifest     {body.manifest}")
    show_answer(output, outcome.report, _last(body), "NOT TAGGED")


def _body(context: Context, image: str, outcome: BuildOutcome) -> BuildBody:
    from imgbuild.cli.results import BuildBody, LayerBody, finding_bodies, moved_bodies  # noqa: PLC0415

    result = outcome.assembled.lock.result
    assert result is not None  # noqa: S101 - assembling always gives one
    return BuildBody(
        image=image,
        ok=outcome.report.ok,
        manifest=result.manifest,
        config=result.config,
        base=outcome.assembled.base.manifest.digest,
        store=str(context.store.root),
        tags=list(outcome.tags),
        layers=[
            LayerBody(name=layer.name, digest=layer.digest, diff_id=layer.diff_id, size=layer.size)
            for layer in result.layers
        ],
        replaced=_replaced(outcome),
        findings=finding_bodies(outcome.report),
        moved=moved_bodies(context.ledger),
    )


def _replaced(outcome: BuildOutcome) -> list[ReplacedBody]:
    from imgbuild.cli.results import ReplacedBody  # noqa: PLC0415

    rows: dict[str, ReplacedBody] = {}
    for row in outcome.assembled.workspace.states:
        if row.states[0] == "absent" and row.path not in rows:
            continue
        before = rows[row.path].before if row.path in rows else row.states[0]
        rows[row.path] = ReplacedBody(path=row.path, before=before, after=row.states[-1], step=row.step)
    return list(rows.values())


def _last(body: BuildBody) -> str:
    if not body.tags:
        return "dry run      verified; nothing was published"
    return f"result       oci:{_near(Path(body.store))}:{body.tags[0]}"


def _near(path: Path) -> Path:
    """A path as one would type it: relative if it is below the current folder."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
