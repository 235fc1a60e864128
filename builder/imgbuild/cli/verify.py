"""`imgbuild verify IMAGE`."""

from __future__ import annotations

import click

from imgbuild.cli.options import Settings, complete_tag, image_argument, parse_digest, shared
from imgbuild.cli.render import show_answer, show_moved, show_report


@click.command("verify")
@image_argument
@click.option("--tag", shell_complete=complete_tag, help="Tag in the store; default the first of the definition.")
@click.option("--digest", help="Manifest digest in the store, instead of a tag.")
@shared
def command(image: str, *, tag: str | None, digest: str | None, settings: Settings) -> int:
    """Recompute everything about a built IMAGE from its bytes, against definition and lock.

    Reports all findings. Exit code 0: every required check was made and matched; 1: one did not, or could not be made.
    """
    from imgbuild.cli.results import (  # noqa: PLC0415 - imported when used
        TOOL,
        VerifyBody,
        VerifyDocument,
        finding_bodies,
        moved_bodies,
    )
    from imgbuild.steps.verify import verify  # noqa: PLC0415

    if tag is not None and digest is not None:
        raise click.UsageError("--tag and --digest exclude each other")
    project = settings.open_project()
    context = settings.context(project, staged=False)
    inputs = project.load(image)
    lock = project.require_lock(image)
    if digest is not None:
        descriptor = context.store.descriptor_of(parse_digest(digest, "--digest"))
    else:
        descriptor = context.store.resolve(tag or inputs.definition.tags[0])
    report = verify(context, inputs, lock, descriptor)
    body = VerifyBody(
        image=image,
        ok=report.ok,
        manifest=descriptor.digest,
        findings=finding_bodies(report),
        moved=moved_bodies(context.ledger),
    )
    output = settings.output
    output.document(VerifyDocument(schema="imgbuild/verify-report/v1", tool=TOOL, result=body))
    show_report(output, report)
    show_moved(output, context.ledger)
    output.line(f"manifest     {descriptor.digest}")
    show_answer(output, report, "verified", "NOT VERIFIED")
    return 0 if report.ok else 1
