"""`imgbuild build IMAGE`."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from imgbuild.cli.lock import look, show_changes
from imgbuild.cli.options import Settings, complete_output, given_option, image_argument, shared
from imgbuild.cli.render import amount, show_answer, show_moved, show_report

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imgbuild.adapters.engine import Engine
    from imgbuild.adapters.project import ImageInput, Project
    from imgbuild.adapters.registry.repository import Repository
    from imgbuild.cli.render import Output
    from imgbuild.cli.results import BuildBody, LoadedBody, OutputBody, PushedBody, RelockedBody, ReplacedBody
    from imgbuild.model.lockfile import Lock
    from imgbuild.steps.build import BuildOutcome, Relock
    from imgbuild.steps.context import Context
    from imgbuild.steps.export import Target
    from imgbuild.steps.push import Destination

_PUSH_HINT = "write --push HOST[:PORT]/REPOSITORY, lower case, and tags with --tag"


@click.command("build")
@image_argument
@click.option("--dry-run", is_flag=True, help="Build and verify, but publish, push and tag nothing.")
@click.option("--push", metavar="HOST/REPOSITORY", help="Push it there: by digest, read back, and then the tags.")
@click.option("--tag", "tags", multiple=True, help="Tag to push, instead of those of the definition; may be repeated.")
@click.option(
    "--output",
    "outputs",
    multiple=True,
    metavar="KIND:PATH[:NAME]",
    shell_complete=complete_output,
    help="Write it there, whole: oci:DIR, oci-archive:FILE or docker-archive:FILE; may be repeated.",
)
@click.option("--relock", is_flag=True, help="Make the lock anew where it is stale, and write it if the image passes.")
@click.option("--load", is_flag=True, help="Load it into the Docker of DOCKER_HOST, and see that it is there.")
@given_option
@shared
def command(
    image: str,
    *,
    dry_run: bool,
    push: str | None,
    tags: tuple[str, ...],
    outputs: tuple[str, ...],
    load: bool,
    relock: bool,
    given: tuple[str, ...],
    settings: Settings,
) -> int:
    """Build IMAGE from its lock, verify it, and tag it.

    Nothing gets a tag before every required identity matched. Exit code 1: it was built but did not pass; nothing of
    it is kept. The base is not pulled: what --push needs of it is mounted from its repository, or streamed from there.

    With --relock a stale lock is made anew on the way, as `imgbuild lock IMAGE` does it: pins stay where they are.
    """
    from imgbuild.adapters.store import StagedStore  # noqa: PLC0415 - imported when used
    from imgbuild.steps.given import parse_given, take_given  # noqa: PLC0415
    from imgbuild.steps.known import KnownLayers  # noqa: PLC0415

    project = settings.open_project()
    context = settings.context(project, staged=True)
    inputs = project.load(image)
    old = project.lock(image) if relock else project.require_lock(image)
    store = context.store
    assert isinstance(store, StagedStore)  # noqa: S101 - opened as one
    files = parse_given(inputs.definition, given)
    stated = None if old is None else old.result
    # Large layers are hashed while most of the program is loaded.
    with contextlib.ExitStack() as stack:
        known = stack.enter_context(KnownLayers(context, stated, blobs=True))
        # What is refused by these leaves no trace.
        destination = _destination(context, push, tags, inputs, dry_run=dry_run)
        places = _outputs(outputs, inputs)
        take_given(context, files)
        engine = stack.enter_context(_docker(wanted=load and not dry_run))
        stack.enter_context(store.session())
        from imgbuild.steps.build import build  # noqa: PLC0415

        lock, making = _lock(project, context, inputs, old) if old is None or relock else (old, None)
        outcome = build(
            context,
            inputs,
            lock,
            known,
            dry_run=dry_run,
            destination=destination,
            outputs=places,
            engine=engine,
            relock=making,
        )
    _show(settings, context, image, outcome, destination)
    return 0 if outcome.report.ok else 1


def _lock(project: Project, context: Context, inputs: ImageInput, old: Lock | None) -> tuple[Lock, Relock | None]:
    """The lock as it is where it is current, else a draft and what to do with what becomes of it."""
    from imgbuild.steps.build import Relock  # noqa: PLC0415
    from imgbuild.steps.lock import draft_lock, write_lock  # noqa: PLC0415

    if old is not None and look(inputs, old)[0] == "current":
        return old, None
    path = project.lock_path(inputs.definition.name)
    return draft_lock(context, inputs, old), Relock(old=old, write=lambda lock: write_lock(path, lock, old=old))


def _destination(
    context: Context, push: str | None, tags: tuple[str, ...], inputs: ImageInput, *, dry_run: bool
) -> Destination | None:
    """Where to push, asked before anything is built: if nothing may be pushed there, that is known at once."""
    from imgbuild.errors import InputError, UsageError  # noqa: PLC0415
    from imgbuild.model.reference import Reference, check_tag  # noqa: PLC0415

    if push is None:
        if tags:
            raise UsageError("--tag", "is for --push", hint="the tags of the store are those of the definition")
        return None
    if context.offline:
        raise UsageError("--push", "cannot be together with --offline")
    try:
        reference = Reference.parse(push, where="--push")
        chosen = tuple(check_tag(tag, where="--tag") for tag in tags or inputs.definition.tags)
    except InputError as error:
        raise UsageError(error.subject, error.problem, where=error.where, hint=_PUSH_HINT) from error
    if reference.tag is not None or reference.digest is not None:
        raise UsageError("--push", "names a tag or a digest", actual=push[:300], hint="give tags with --tag")
    if reference.host == "localhost":
        raise UsageError("--push", "has a local name, which is no registry", actual=push[:300], hint=_PUSH_HINT)
    from imgbuild.adapters.registry.repository import Repository  # noqa: PLC0415 - urllib3 takes 60 ms
    from imgbuild.adapters.registry.uploadsession import ask_to_push  # noqa: PLC0415
    from imgbuild.steps.push import Destination  # noqa: PLC0415

    repository = Repository(context.registries.of(reference.host), reference.repository)
    if inputs.stand_in:
        _check_stand_in(repository, chosen)
    if not dry_run:
        ask_to_push(repository)
    return Destination(repository=repository, tags=chosen)


def _check_stand_in(repository: Repository, tags: tuple[str, ...]) -> None:
    """What is made with stand-ins goes to registries of this machine only, and by no other tags than its own."""
    from imgbuild.errors import UsageError  # noqa: PLC0415
    from imgbuild.model.inherit import STAND_IN_PREFIX  # noqa: PLC0415

    registry = repository.registry
    if not registry.origin.is_loopback:
        hint = "push it to a registry on this machine"
        raise UsageError("--push", "is for real images; stand-ins stay here", actual=registry.host, hint=hint)
    wrong = [tag for tag in tags if not tag.startswith(STAND_IN_PREFIX)]
    if wrong:
        raise UsageError("--tag", "names an image with stand-ins", expected=f"{STAND_IN_PREFIX}…", actual=wrong[0])


def _outputs(texts: tuple[str, ...], inputs: ImageInput) -> tuple[Target, ...]:
    if not texts:
        return ()
    from imgbuild.errors import UsageError  # noqa: PLC0415
    from imgbuild.model.inherit import STAND_IN_PREFIX  # noqa: PLC0415
    from imgbuild.steps.export import parse_outputs  # noqa: PLC0415

    definition = inputs.definition
    found = parse_outputs(texts, image=definition.name, tags=tuple(definition.tags))
    own = (STAND_IN_PREFIX, f"localhost/{definition.name}:{STAND_IN_PREFIX}")
    wrong = [name for target in found for name in target.names if inputs.stand_in and not name.startswith(own)]
    if wrong:
        raise UsageError("--output", "names an image with stand-ins", expected=f"{STAND_IN_PREFIX}…", actual=wrong[0])
    return found


@contextlib.contextmanager
def _docker(*, wanted: bool) -> Iterator[Engine | None]:
    """The Docker, asked before anything is built: if it is not there, that is known at once."""
    if not wanted:
        yield None
        return
    from imgbuild.adapters.engine import Engine  # noqa: PLC0415

    with contextlib.closing(Engine.connect()) as engine:
        yield engine


def _show(
    settings: Settings, context: Context, image: str, outcome: BuildOutcome, destination: Destination | None
) -> None:
    from imgbuild.cli.results import TOOL, BuildDocument  # noqa: PLC0415

    output = settings.output
    body = _body(context, image, outcome, destination)
    output.document(BuildDocument(schema="imgbuild/build-result/v1", tool=TOOL, result=body))
    if outcome.relocked is not None:
        changes, done = outcome.relocked.changes, "written" if outcome.relocked.written else "not written"
        output.line(f"lock         {len(changes)} fields changed, {done}", bold=True)
        show_changes(output, changes)
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
    for made in body.outputs:
        digest = "" if made.digest is None else f"  {made.digest}"
        output.line(f"output       {made.kind}:{_near(Path(made.path))} ({amount(made.bytes)}){digest}")
    if body.loaded is not None:
        output.line(f"loaded       {', '.join(body.loaded.names)}")
        output.line(f"             docker {body.loaded.version}, by its {body.loaded.matched}: {body.loaded.id}")
    if body.pushed is not None:
        _show_pushed(output, body.pushed)
    show_answer(output, outcome.report, _last(body), "NOT TAGGED")


def _show_pushed(output: Output, pushed: PushedBody) -> None:
    sent = f"{pushed.sent} blobs sent ({amount(pushed.sent_bytes)})"
    output.line(f"pushed       {sent}, {pushed.mounted} mounted, {pushed.present} there already")
    moved = {row.tag: row.before for row in pushed.moved}
    for tag in pushed.tags:
        before = moved.get(tag)
        was = "as before" if tag not in moved else "new" if before is None else f"was {before}"
        output.line(f"  tag        {pushed.repository}:{tag}  ({was})")


def _body(context: Context, image: str, outcome: BuildOutcome, destination: Destination | None) -> BuildBody:
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
        pushed=_pushed(outcome, destination),
        outputs=_output_bodies(outcome),
        loaded=_loaded(outcome),
        relocked=_relocked(outcome),
        layers=[
            LayerBody(name=layer.name, digest=layer.digest, diff_id=layer.diff_id, size=layer.size)
            for layer in result.layers
        ],
        replaced=_replaced(outcome),
        findings=finding_bodies(outcome.report),
        moved=moved_bodies(context.ledger),
    )


def _relocked(outcome: BuildOutcome) -> RelockedBody | None:
    from imgbuild.cli.results import RelockedBody, change_bodies  # noqa: PLC0415

    done = outcome.relocked
    return None if done is None else RelockedBody(written=done.written, changes=change_bodies(done.changes))


def _pushed(outcome: BuildOutcome, destination: Destination | None) -> PushedBody | None:
    from imgbuild.cli.results import MovedTagBody, PushedBody  # noqa: PLC0415

    done = outcome.pushed
    if done is None or destination is None:
        return None
    return PushedBody(
        repository=str(destination.repository),
        tags=list(destination.tags) if outcome.report.ok else [],
        moved=[MovedTagBody(tag=tag, before=before) for tag, before in done.moved],
        present=done.present,
        mounted=done.mounted,
        sent=done.sent,
        sent_bytes=done.sent_bytes,
    )


def _output_bodies(outcome: BuildOutcome) -> list[OutputBody]:
    from imgbuild.cli.results import OutputBody  # noqa: PLC0415

    return [
        OutputBody(
            kind=done.output.kind,
            path=str(done.output.path),
            names=list(done.output.names),
            bytes=done.size,
            copied=done.copied,
            digest=done.digest,
        )
        for done in outcome.exported
    ]


def _loaded(outcome: BuildOutcome) -> LoadedBody | None:
    from imgbuild.cli.results import LoadedBody  # noqa: PLC0415

    done = outcome.loaded
    if done is None:
        return None
    return LoadedBody(
        host=done.host,
        version=done.engine,
        id=done.identifier,
        matched=done.matched,
        names=list(done.names),
        sent=done.sent,
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
    if body.pushed is not None:
        tag = f":{body.pushed.tags[0]}" if body.pushed.tags else ""
        return f"result       {body.pushed.repository}{tag}@{body.manifest}"
    return f"result       oci:{_near(Path(body.store))}:{body.tags[0]}"


def _near(path: Path) -> Path:
    """A path as one would type it: relative if it is below the current folder."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
