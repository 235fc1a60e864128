"""`imgbuild lock IMAGE`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import click

from imgbuild.cli.options import Settings, complete_pin, given_option, image_argument, shared
from imgbuild.cli.render import show_moved

if TYPE_CHECKING:
    from imgbuild.adapters.project import ImageInput, Project
    from imgbuild.cli.render import Output
    from imgbuild.model.lockfile import Lock
    from imgbuild.steps.context import Context
    from imgbuild.steps.lock import LockChange, LockOutcome

Status = Literal["current", "absent", "stale", "incomplete", "written", "would-write"]
_NOT_CURRENT = {"absent", "stale", "incomplete"}


@click.command("lock")
@image_argument
@click.option("--check", is_flag=True, help="Only say whether the lock is current; exit code 1 if it is not.")
@click.option("--complete", is_flag=True, help="Keep all pins and write down the facts that follow from them.")
@click.option(
    "--update",
    multiple=True,
    metavar="NAME",
    shell_complete=complete_pin,
    help="Resolve this pin anew: base, or a source; repeatable.",
)
@click.option("--dry-run", is_flag=True, help="Show what would change, and write nothing.")
@given_option
@shared
def command(
    image: str,
    *,
    check: bool,
    complete: bool,
    update: tuple[str, ...],
    dry_run: bool,
    given: tuple[str, ...],
    settings: Settings,
) -> int:
    """Resolve the definition of IMAGE to digests and write locks/IMAGE.lock.json.

    Pins that still fit the definition are kept; only new ones, and those named by --update, are resolved.
    """
    if sum((check, complete, bool(update))) > 1:
        raise click.UsageError("--check, --complete and --update exclude each other")
    if check and given:
        raise click.UsageError("--check reads no sources: leave --source out")
    from imgbuild.steps.given import parse_given, take_given  # noqa: PLC0415 - imported when used
    from imgbuild.steps.lock import complete_lock, make_lock, write_lock  # noqa: PLC0415 - imported when used

    project = settings.open_project()
    context = settings.context(project, staged=True)
    inputs = project.load(image)
    old = project.lock(image)
    take_given(context, parse_given(inputs.definition, given))
    status, reason = look(inputs, old)
    if check or (status == "current" and not complete and not update):
        _show(settings, context, project, image, None, status, reason)
        return 1 if status in _NOT_CURRENT else 0
    if complete and old is not None:
        outcome = complete_lock(context, inputs, old)
    else:
        outcome = make_lock(context, inputs, old, update=frozenset(update))
    status = "current" if not outcome.changes else "would-write" if dry_run else "written"
    if status == "written":
        write_lock(project.lock_path(image), outcome.lock)
    _show(settings, context, project, image, outcome, status, None)
    return 0


def look(inputs: ImageInput, lock: Lock | None) -> tuple[Status, str | None]:
    """What can be said of a lock from the repository alone, and why."""
    from imgbuild.steps.lock import is_complete, stale_input  # noqa: PLC0415 - imported when used

    if lock is None:
        return "absent", None
    found = stale_input(inputs, lock)
    if found is not None:
        name, recorded, current = found
        return "stale", f"{name} was {recorded}, is {current}"
    return ("current", None) if is_complete(lock) else ("incomplete", "its facts or its result are not written down")


def _show(
    settings: Settings,
    context: Context,
    project: Project,
    image: str,
    outcome: LockOutcome | None,
    status: Status,
    reason: str | None,
) -> None:
    from imgbuild.cli.results import TOOL, LockBody, LockDocument, change_bodies, moved_bodies  # noqa: PLC0415

    changes = () if outcome is None else outcome.changes
    path = str(project.lock_path(image).relative_to(project.root))
    body = LockBody(
        image=image,
        path=path,
        status=status,
        reason=reason,
        changes=change_bodies(changes),
        moved=moved_bodies(context.ledger),
    )
    output = settings.output
    output.document(LockDocument(schema="imgbuild/lock-result/v1", tool=TOOL, result=body))
    show_changes(output, changes)
    if changes:
        show_moved(output, context.ledger)
    words = {
        "current": "is up to date: its inputs are unchanged (facts and result are checked by `imgbuild build`)",
        "absent": f"is not there; run `imgbuild lock {image}`",
        "stale": f"is stale; run `imgbuild lock {image}`",
        "incomplete": f"is incomplete; run `imgbuild lock {image} --complete`",
        "written": f"written, {len(changes)} fields changed; not verified yet, `imgbuild build {image}` does that",
        "would-write": f"would change in {len(changes)} fields; nothing was written",
    }
    if reason is not None:
        output.line(f"  {reason}")
    output.line(f"{path} {words[status]}", bold=True)


def show_changes(output: Output, changes: tuple[LockChange, ...]) -> None:
    """The fields of a lock that changed, for people."""
    for change in changes:
        output.line(f"  {change.path}")
        output.line(f"      {change.old or '(new)'}  ->  {change.new or '(gone)'}")
