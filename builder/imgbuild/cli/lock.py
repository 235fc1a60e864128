"""`imgbuild lock IMAGE`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import click

from imgbuild.cli.options import Settings, image_argument, shared
from imgbuild.cli.render import show_moved

if TYPE_CHECKING:
    from imgbuild.adapters.project import ImageInput, Project
    from imgbuild.steps.context import Context
    from imgbuild.steps.lock import LockOutcome

Status = Literal["current", "stale", "written", "would-write"]


@click.command("lock")
@image_argument
@click.option("--check", is_flag=True, help="Only say whether the lock is current; exit code 1 if it is not.")
@click.option("--complete", is_flag=True, help="Keep all pins and write down the facts that follow from them.")
@click.option("--update", multiple=True, metavar="NAME", help="Resolve this pin anew: base, or a source; repeatable.")
@click.option("--dry-run", is_flag=True, help="Show what would change, and write nothing.")
@shared
def command(
    image: str, *, check: bool, complete: bool, update: tuple[str, ...], dry_run: bool, settings: Settings
) -> int:
    """Resolve the definition of IMAGE to digests and write locks/IMAGE.lock.json.

    Pins that still fit the definition are kept; only new ones, and those named by --update, are resolved.
    """
    if sum((check, complete, bool(update))) > 1:
        raise click.UsageError("--check, --complete and --update exclude each other")
    project = settings.open_project()
    context = settings.context(project, staged=True)
    inputs = project.load(image)
    outcome, status = _run(
        project, context, inputs, check=check, complete=complete, update=frozenset(update), dry_run=dry_run
    )
    _show(settings, context, project, image, outcome, status)
    return 1 if status == "stale" else 0


def _run(
    project: Project,
    context: Context,
    inputs: ImageInput,
    *,
    check: bool,
    complete: bool,
    update: frozenset[str],
    dry_run: bool,
) -> tuple[LockOutcome | None, Status]:
    from imgbuild.errors import InputError  # noqa: PLC0415 - imported when used
    from imgbuild.steps.lock import complete_lock, is_current, make_lock, write_lock  # noqa: PLC0415

    name = inputs.definition.name
    old = project.lock(name)
    if old is not None and not update and not complete and is_current(inputs, old):
        return None, "current"
    if check:
        return None, "stale"
    if complete:
        if old is None:
            raise InputError(f"locks/{name}.lock.json", "is not there", hint=f"run `imgbuild lock {name}`")
        outcome = complete_lock(context, inputs, old)
    else:
        outcome = make_lock(context, inputs, old, update=update)
    if not outcome.changes:
        return outcome, "current"
    if dry_run:
        return outcome, "would-write"
    write_lock(project.lock_path(name), outcome.lock)
    return outcome, "written"


def _show(
    settings: Settings, context: Context, project: Project, image: str, outcome: LockOutcome | None, status: Status
) -> None:
    from imgbuild.cli.documents import TOOL, ChangeBody, LockBody, LockDocument, moved_bodies  # noqa: PLC0415

    changes = () if outcome is None else outcome.changes
    path = str(project.lock_path(image).relative_to(project.root))
    body = LockBody(
        image=image,
        path=path,
        status=status,
        changes=[ChangeBody(path=change.path, old=change.old, new=change.new) for change in changes],
        moved=moved_bodies(context.ledger),
    )
    output = settings.output
    output.document(LockDocument(schema="imgbuild/lock-result/v1", tool=TOOL, result=body))
    for change in changes:
        output.line(f"  {change.path}")
        output.line(f"      {change.old or '(new)'}  ->  {change.new or '(gone)'}")
    if changes:
        show_moved(output, context.ledger)
    words = {
        "current": "is up to date",
        "stale": f"is stale or incomplete; run `imgbuild lock {image}`",
        "written": f"written, {len(changes)} fields changed",
        "would-write": f"would change in {len(changes)} fields; nothing was written",
    }
    output.line(f"{path} {words[status]}", bold=True)
