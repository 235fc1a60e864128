"""`imgbuild inventory REFERENCE`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from imgbuild.cli.options import Settings, complete_tag, parse_digest, shared
from imgbuild.cli.render import amount, show_moved

if TYPE_CHECKING:
    from imgbuild.model.oci import Descriptor
    from imgbuild.steps.base import Taken


@click.command("inventory")
@click.argument("reference", shell_complete=complete_tag)
@click.option(
    "-o",
    "--output",
    "target",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write each layer's inventory (JSON Lines) into this folder.",
)
@shared
def command(reference: str, *, target: Path | None, settings: Settings) -> int:
    """List what is in the layers of an image of the store; REFERENCE is a tag or a manifest digest.

    Each layer is read whole, and checked, unless its inventory is in the cache, where it is kept by DiffID. Such a
    layer is marked `cached`, and may be damaged or absent. To have all of them read, give an empty folder as --cache.
    """
    from imgbuild.adapters.durable import write_file  # noqa: PLC0415 - imported when used
    from imgbuild.cli.results import TOOL, InventoryBody, InventoryDocument, moved_bodies  # noqa: PLC0415
    from imgbuild.content.tree import Tree  # noqa: PLC0415
    from imgbuild.steps.base import read_config, take_inventories  # noqa: PLC0415

    project = settings.open_project()
    context = settings.context(project, staged=False)
    store = context.store
    descriptor = (
        store.descriptor_of(parse_digest(reference, "REFERENCE")) if ":" in reference else store.resolve(reference)
    )
    manifest = store.manifest(descriptor)
    config = read_config(context, manifest)
    found = take_inventories(context, manifest.layers, config.diff_ids, None)
    tree = Tree()
    for index, taken in enumerate(found):
        tree.apply(taken.inventory, index)
        if target is not None:
            write_file(target / f"{index:03}-{taken.inventory.diff_id.encoded}.jsonl", taken.inventory.dump())
    rows = [_row(layer, taken) for layer, taken in zip(manifest.layers, found, strict=True)]
    body = InventoryBody(
        reference=reference,
        manifest=descriptor.digest,
        layers=rows,
        notes=list(tree.notes),
        moved=moved_bodies(context.ledger),
    )
    output = settings.output
    output.document(InventoryDocument(schema="imgbuild/inventory-result/v1", tool=TOOL, result=body))
    for index, row in enumerate(rows):
        counts = f"{row.entries} entries, {row.files} files, {row.elf_files} ELF"
        output.line(f"{index:3}  {amount(row.size):>9}  {row.taken:6}  {counts:44}  {row.diff_id}")
        if output.verbose:
            output.line(f"     stored as   {row.digest}, {row.size} bytes, {row.uncompressed_size} uncompressed")
            output.line(f"     inventory   {row.inventory}")
    for note in tree.notes:
        settings.output.note(note)
    show_moved(output, context.ledger)
    return 0


def _row(layer: Descriptor, taken: Taken):  # type: ignore[no-untyped-def] # noqa: ANN202
    from imgbuild.cli.results import InventoryLayer  # noqa: PLC0415

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
