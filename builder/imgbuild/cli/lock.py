"""`imgbuild lock IMAGE`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import click

from imgbuild.cli.options import Settings, complete_pin, given_option, image_argument, shared
from imgbuild.cli.render import show_moved

if TYPE_CHECKING:
    from imgbuild.adapters.project import ImageInput, Project
    from imgbuild.cli.render import Output
    from imgbuild.cli.results_lock import MovedPinBody
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
    help="Resolve this pin anew: base, a source, or patch:NAME; repeatable.",
)
@click.option(
    "--to",
    metavar="VALUE",
    help="Where the one pin of --update goes: a digest or tag of the base; a commit, branch or tag of a git source; a "
    "path or digest of a file; a version of a wheel or toolchain; of a patch, a file, or a commit of its source.",
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
    to: str | None,
    dry_run: bool,
    given: tuple[str, ...],
    settings: Settings,
) -> int:
    """Resolve the definition of IMAGE to digests and write locks/IMAGE.lock.json.

    Pins that still fit the definition are kept; only new ones, and those named by --update, are resolved. Where the
    definition has the value that --update moves (base.manifest, a commit, a digest, a version), it is changed there,
    too; nothing else of the file is. So are the states that are known to be after a patch that moves. No file is
    written unless all steps apply.
    """
    if sum((check, complete, bool(update))) > 1:
        raise click.UsageError("--check, --complete and --update exclude each other")
    if to is not None and len(set(update)) != 1:
        raise click.UsageError("--to needs exactly one --update")
    if check and given:
        raise click.UsageError("--check reads no sources: leave --source out")
    project = settings.open_project()
    context = settings.context(project, staged=True)
    inputs = project.load(image)
    old = project.lock(image)
    if update:
        _update(settings, context, project, inputs, old, names=frozenset(update), to=to, given=given, dry_run=dry_run)
        return 0
    from imgbuild.steps.given import parse_given, take_given  # noqa: PLC0415 - imported when used
    from imgbuild.steps.lock import complete_lock, make_lock, write_lock  # noqa: PLC0415 - imported when used

    take_given(context, parse_given(inputs.definition, given))
    status, reason = look(inputs, old)
    if check or (status == "current" and not complete):
        _show(settings, context, project, image, None, status, reason)
        return 1 if status in _NOT_CURRENT else 0
    if complete and old is not None:
        outcome = complete_lock(context, inputs, old)
    else:
        outcome = make_lock(context, inputs, old, update=frozenset())
    status = _status(outcome, dry_run=dry_run)
    if status == "written":
        write_lock(project.lock_path(image), outcome.lock, old=old)
    _show(settings, context, project, image, outcome, status, None)
    return 0


def _update(
    settings: Settings,
    context: Context,
    project: Project,
    inputs: ImageInput,
    old: Lock | None,
    *,
    names: frozenset[str],
    to: str | None,
    given: tuple[str, ...],
    dry_run: bool,
) -> None:
    """Move pins: nothing is written before all is known, and of the files the lock last."""
    from imgbuild.cli.lock_bodies import moved_pin_body  # noqa: PLC0415 - imported when used
    from imgbuild.steps.given import parse_given, take_given  # noqa: PLC0415
    from imgbuild.steps.lock import make_lock  # noqa: PLC0415
    from imgbuild.steps.move import move_pins, move_states, write_move  # noqa: PLC0415
    from imgbuild.steps.moved import compare_pins  # noqa: PLC0415
    from imgbuild.steps.moved_patch import moved_patches  # noqa: PLC0415

    image = inputs.definition.name
    # A name that makes no sense is refused before anything is asked for.
    parse_given(inputs.definition, given)
    move = move_pins(context, project, inputs, old, names=names, to=to)
    assert old is not None  # noqa: S101 - else it was refused
    take_given(context, parse_given(move.image.definition, given))
    move = move_states(context, project, move, old)
    outcome = make_lock(context, move.image, old, update=move.update, start=move.start)
    patches = moved_patches(context, inputs, move.image, old, outcome.lock)
    body = moved_pin_body(move, compare_pins(context, old, outcome.lock), patches)
    status = _status(outcome, dry_run=dry_run, files=bool(move.files))
    if status == "written":
        write_move(project.root, project.lock_path(image), move.files, outcome.lock, old=old)
    _show(settings, context, project, image, outcome, status, None, body)


def _status(outcome: LockOutcome, *, dry_run: bool, files: bool = False) -> Status:
    """What becomes of the lock, and of other `files` that change with it: the lock may be what it will be already."""
    return "current" if not (outcome.changes or files) else "would-write" if dry_run else "written"


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
    moved_pin: MovedPinBody | None = None,
) -> None:
    """The document, or words; the fields of the lock stand after those of a moved pin with -v only."""
    from imgbuild.cli.results import TOOL, change_bodies, moved_bodies  # noqa: PLC0415
    from imgbuild.cli.results_lock import LockBody, LockDocument  # noqa: PLC0415

    changes = () if outcome is None else outcome.changes
    path = str(project.lock_path(image).relative_to(project.root))
    body = LockBody(
        image=image,
        path=path,
        status=status,
        reason=reason,
        moved_pin=moved_pin,
        changes=change_bodies(changes),
        moved=moved_bodies(context.ledger),
    )
    output = settings.output
    output.document(LockDocument(schema="imgbuild/lock-result/v1", tool=TOOL, result=body))
    if moved_pin is not None:
        from imgbuild.cli.lock_moved import show_moved_pin  # noqa: PLC0415 - imported when used

        show_moved_pin(output, moved_pin)
    if moved_pin is None or output.verbose:
        show_changes(output, changes)
    if changes:
        show_moved(output, context.ledger)
    if reason is not None:
        output.line(f"  {reason}")
    if moved_pin is not None:
        for name in (*([moved_pin.definition] if moved_pin.definition is not None else []), *moved_pin.files):
            output.line(f"{name} {'written' if status == 'written' else 'would change'}", bold=True)
    output.line(f"{path} {_words(project.words(image), status, len(changes))}", bold=True)


def _words(image: str, status: Status, count: int) -> str:
    words = {
        "current": "is up to date: its inputs are unchanged (facts and result are checked by `imgbuild build`)",
        "absent": f"is not there; run `imgbuild lock {image}`",
        "stale": f"is stale; run `imgbuild lock {image}`",
        "incomplete": f"is incomplete; run `imgbuild lock {image} --complete`",
        "written": f"written, {count} fields changed; not verified yet, `imgbuild build {image}` does that",
        "would-write": f"would change in {count} fields; nothing was written",
    }
    return words[status]


def show_changes(output: Output, changes: tuple[LockChange, ...]) -> None:
    """The fields of a lock that changed, for people."""
    for change in changes:
        output.line(f"  {change.path}")
        output.line(f"      {change.old or '(new)'}  ->  {change.new or '(gone)'}")
