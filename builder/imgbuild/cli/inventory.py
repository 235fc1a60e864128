"""`imgbuild inventory REFERENCE`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from imgbuild.cli.options import Settings, parse_digest, shared
from imgbuild.cli.render import amount, show_moved

if TYPE_CHECKING:
    from imgbuild.content.inventory import Inventory
    from imgbuild.digest import Digest
    from imgbuild.model.oci import Descriptor


@click.command("inventory")
@click.argument("reference")
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

    Each layer is read once, whole, and checked; its inventory is kept in the cache by DiffID.
    """
    from imgbuild.adapters.durable import write_file  # noqa: PLC0415 - imported when used
    from imgbuild.cli.results import TOOL, InventoryBody, InventoryDocument, moved_bodies  # noqa: PLC0415
    from imgbuild.content.tree import Tree  # noqa: PLC0415
    from imgbuild.steps.base import take_inventories  # noqa: PLC0415

    project = settings.open_project()
    context = settings.context(project, staged=False)
    store = context.store
    descriptor = store.descriptor_of(parse_digest(reference)) if ":" in reference else store.resolve(reference)
    manifest = store.manifest(descriptor)
    config = store.config(manifest.config)
    found = take_inventories(context, manifest.layers, config.diff_ids, None)
    tree = Tree()
    for index, (inventory, _) in enumerate(found):
        tree.apply(inventory, index)
        if target is not None:
            write_file(target / f"{index:03}-{inventory.diff_id.encoded}.jsonl", inventory.dump())
    rows = [_row(layer, inventory, digest) for layer, (inventory, digest) in zip(manifest.layers, found, strict=True)]
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
        output.line(f"{index:3}  {amount(row.size):>9}  {counts:44}  {row.diff_id}")
    for note in tree.notes:
        settings.output.note(note)
    show_moved(output, context.ledger)
    return 0


def _row(layer: Descriptor, inventory: Inventory, digest: Digest):  # type: ignore[no-untyped-def] # noqa: ANN202
    from imgbuild.cli.results import InventoryLayer  # noqa: PLC0415

    return InventoryLayer(
        digest=layer.digest,
        diff_id=inventory.diff_id,
        inventory=digest,
        size=layer.size,
        uncompressed_size=inventory.uncompressed_size,
        entries=len(inventory.entries),
        files=sum(1 for entry in inventory.entries if entry.type == "file"),
        elf_files=sum(1 for entry in inventory.entries if entry.elf is not None),
    )
