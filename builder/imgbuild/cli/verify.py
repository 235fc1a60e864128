"""`imgbuild verify IMAGE` and `imgbuild verify REFERENCE --deep`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from imgbuild.cli.options import Settings, complete_platform, complete_tag, image_argument, parse_digest, shared
from imgbuild.cli.render import show_answer, show_moved, show_report

if TYPE_CHECKING:
    from imgbuild.digest import Digest
    from imgbuild.model.identity import Report
    from imgbuild.steps.context import Context


@click.command("verify")
@image_argument
@click.option("--tag", shell_complete=complete_tag, help="Tag in the store; default the first of the definition.")
@click.option("--digest", help="Manifest digest in the store, instead of a tag.")
@click.option("--deep", is_flag=True, help="IMAGE is a reference in a registry: read every byte of it.")
@click.option(
    "--platform",
    shell_complete=complete_platform,
    help="With --deep, of an index the one to take, such as linux/arm64.",
)
@shared
def command(
    image: str, *, tag: str | None, digest: str | None, deep: bool, platform: str | None, settings: Settings
) -> int:
    """Recompute everything about a built IMAGE from its bytes, against definition and lock.

    With --deep, IMAGE is host/repository:tag or host/repository@digest. Every blob is read once: its digest, DiffID and
    the digest of every file are compared with manifest, config, and the lock and receipt that are inside of the image.
    Nothing is taken from the store, the cache or a mirror.

    Reports all findings. Exit code 0: every required check was made and matched; 1: one did not, or could not be made.
    """
    if tag is not None and digest is not None:
        raise click.UsageError("--tag and --digest exclude each other")
    if deep and (tag is not None or digest is not None):
        raise click.UsageError("with --deep, tag and digest are part of the reference")
    if deep != ("/" in image):
        raise click.UsageError("--deep takes a reference, host/repository:tag, and a reference needs --deep")
    if platform is not None and not deep:
        raise click.UsageError("--platform is for --deep")
    project = settings.open_project()
    context = settings.context(project, staged=False)
    if deep:
        report, found = _deep(context, image, platform)
    else:
        from imgbuild.steps.verify import verify  # noqa: PLC0415 - imported when used

        inputs = project.load(image)
        lock = project.require_lock(image)
        if digest is not None:
            descriptor = context.store.descriptor_of(parse_digest(digest, "--digest"))
        else:
            descriptor = context.store.resolve(tag or inputs.definition.tags[0])
        report, found = verify(context, inputs, lock, descriptor), descriptor.digest
    return _show(settings, context, image, report, found)


def _deep(context: Context, reference: str, platform: str | None) -> tuple[Report, Digest]:
    from imgbuild.steps.deep import verify_deep  # noqa: PLC0415 - imported when used
    from imgbuild.steps.images import open_image  # noqa: PLC0415

    image = open_image(context, reference, platform=platform, only=True)
    return verify_deep(image), image.descriptor.digest


def _show(settings: Settings, context: Context, image: str, report: Report, manifest: Digest) -> int:
    from imgbuild.cli.results import (  # noqa: PLC0415 - imported when used
        TOOL,
        VerifyBody,
        VerifyDocument,
        finding_bodies,
        moved_bodies,
    )

    body = VerifyBody(
        image=image,
        ok=report.ok,
        manifest=manifest,
        findings=finding_bodies(report),
        moved=moved_bodies(context.ledger),
    )
    output = settings.output
    output.document(VerifyDocument(schema="imgbuild/verify-report/v1", tool=TOOL, result=body))
    show_report(output, report)
    show_moved(output, context.ledger)
    output.line(f"manifest     {manifest}")
    bare = any(finding.check == "embedded.lock" and not finding.required for finding in report.findings)
    show_answer(
        output, report, "verified: digests only, there is no lock inside" if bare else "verified", "NOT VERIFIED"
    )
    return 0 if report.ok else 1
