"""`imgbuild inventory REFERENCE`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from imgbuild.cli.options import Settings, complete_platform, complete_tag, parse_digest, shared
from imgbuild.cli.render import amount, show_moved

if TYPE_CHECKING:
    from imgbuild.cli.results import InventoryBody, InventoryLayer
    from imgbuild.content.tree import Tree
    from imgbuild.model.oci import Descriptor
    from imgbuild.steps.inventories import Taken
    from imgbuild.steps.opened import OpenedImage
    from imgbuild.steps.published import Published


@click.command("inventory")
@click.argument("reference", shell_complete=complete_tag)
@click.option(
    "-o",
    "--output",
    "target",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write each layer's inventory (JSON Lines) into this folder.",
)
@click.option(
    "--platform",
    shell_complete=complete_platform,
    help="Of an index in a registry, the one to take, such as linux/arm64.",
)
@click.option("--push", is_flag=True, help="Attach the inventories to the image in its registry, for others to use.")
@shared
def command(reference: str, *, target: Path | None, platform: str | None, push: bool, settings: Settings) -> int:
    """List what is in the layers of an image.

    REFERENCE is a tag or a manifest digest of the store, or host/repository:tag or host/repository@digest in a
    registry. There each layer is read once, as a stream that goes on after a broken connection, and nothing of it is
    written to disk; run again, it goes on with the layers that were not read whole.

    Each layer is read whole, and checked, unless its inventory is in the cache, where it is kept by blob and DiffID.
    Such a layer is marked `cached`, and may be damaged or absent. To have all of them read, give an empty folder as
    --cache, and one as --store: what the store has is read from there.

    With --push, a build with a lock of this base does not read the base at all. What is attached are the inventories,
    the merged view of all layers, and those files that images of this project patch, by their locks: after a lock has
    changed, push again, or builds elsewhere read the layers that have them. Small files that are in the cache no more
    are read from their layers.
    """
    from imgbuild.adapters.durable import write_file  # noqa: PLC0415 - imported when used
    from imgbuild.cli.results import TOOL, InventoryDocument  # noqa: PLC0415
    from imgbuild.content.tree import Tree  # noqa: PLC0415
    from imgbuild.errors import UsageError  # noqa: PLC0415
    from imgbuild.steps.inventories import take_inventories  # noqa: PLC0415

    image = _open(settings, reference, platform)
    if push and image.repository is None:
        raise UsageError("--push", "needs an image in a registry", actual=reference, hint="write host/repository:tag")
    found = take_inventories(image.context, image.manifest.layers, image.config.diff_ids, None)
    tree = Tree()
    for index, taken in enumerate(found):
        tree.apply(taken.inventory, index)
        if target is not None:
            write_file(target / f"{index:03}-{taken.inventory.diff_id.encoded}.jsonl", taken.inventory.dump())
    published = _publish(settings, image, found, tree) if push else None
    body = _body(image, reference, found, list(tree.notes), published)
    settings.output.document(InventoryDocument(schema="imgbuild/inventory-result/v1", tool=TOOL, result=body))
    _show(settings, image, body)
    return 0


def _open(settings: Settings, reference: str, platform: str | None) -> OpenedImage:
    from imgbuild.steps.opened import open_named  # noqa: PLC0415 - imported when used

    context = settings.context(settings.open_project(), staged=False)
    digest = parse_digest(reference, "REFERENCE") if ":" in reference and "/" not in reference else None
    return open_named(context, reference, digest=digest, platform=platform)


def _publish(settings: Settings, image: OpenedImage, found: list[Taken], tree: Tree) -> Published:
    from imgbuild.steps.base import dump_base  # noqa: PLC0415 - imported when used
    from imgbuild.steps.preimages import contents_of, preimages_of  # noqa: PLC0415
    from imgbuild.steps.published import Whole, publish  # noqa: PLC0415 - urllib3 takes 60 ms

    assert image.repository is not None  # noqa: S101 - refused above
    layers = image.manifest.layers
    raw = b"".join(dump_base(image.context, layers, tree, tuple(taken.digest for taken in found)))
    files = preimages_of(settings.open_project(), image.descriptor.digest, image.context.progress)
    whole = Whole(tree=raw, preimages=tuple(contents_of(image.context, layers, tree, files)))
    rows = list(zip(layers, found, strict=True))
    return publish(image.context, image.repository, image.descriptor, rows, whole)


def _body(
    image: OpenedImage, reference: str, found: list[Taken], notes: list[str], published: Published | None
) -> InventoryBody:
    from imgbuild.cli.results import InventoryBody, PublishedBody, moved_bodies  # noqa: PLC0415 - imported when used

    shared = None
    if published is not None:
        shared = PublishedBody(
            repository=str(image.repository),
            referrer=published.referrer,
            sent_bytes=published.sent_bytes,
            total_bytes=published.total_bytes,
        )
    return InventoryBody(
        reference=reference,
        manifest=image.descriptor.digest,
        layers=[_row(layer, taken) for layer, taken in zip(image.manifest.layers, found, strict=True)],
        notes=notes,
        published=shared,
        moved=moved_bodies(image.context.ledger),
    )


def _show(settings: Settings, image: OpenedImage, body: InventoryBody) -> None:
    output = settings.output
    for index, row in enumerate(body.layers):
        counts = f"{row.entries} entries, {row.files} files, {row.elf_files} ELF"
        output.line(f"{index:3}  {amount(row.size):>9}  {row.taken:6}  {counts:44}  {row.diff_id}")
        if output.verbose:
            output.line(f"     stored as   {row.digest}, {row.size} bytes, {row.uncompressed_size} uncompressed")
            output.line(f"     inventory   {row.inventory}")
    for note in body.notes:
        output.note(note)
    if body.published is not None:
        sent, total = amount(body.published.sent_bytes), amount(body.published.total_bytes)
        output.line(f"published    {body.published.repository}@{body.published.referrer}  ({sent} of {total} sent)")
    show_moved(output, image.context.ledger)


def _row(layer: Descriptor, taken: Taken) -> InventoryLayer:
    from imgbuild.cli.results import InventoryLayer  # noqa: PLC0415 - imported when used

    inventory = taken.inventory
    return InventoryLayer(
        taken="cached" if taken.cached else "read",
        digest=layer.digest,
        diff_id=inventory.diff_id,
        inventory=taken.digest,
        size=layer.size,
        uncompressed_size=inventory.uncompressed_size,
        entries=len(inventory.entries),
        files=sum(1 for entry in inventory.entries if entry.type == "file"),
        elf_files=sum(1 for entry in inventory.entries if entry.elf is not None),
    )
