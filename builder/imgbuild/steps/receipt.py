"""What a workspace changed against its base, as facts for the lock and as the receipt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imgbuild.digest import Digest
from imgbuild.model.lockfile import LibraryFacts, TouchedFile
from imgbuild.model.paths import parents, show
from imgbuild.model.receipt import SCHEMA, Receipt, ReceiptEntry

if TYPE_CHECKING:
    from imgbuild.content.node import Node
    from imgbuild.content.tree import Tree
    from imgbuild.model.image import ImageDefinition
    from imgbuild.steps.packages import Packages


def receipt(image: str, base: Digest, before: dict[bytes, Node | None], tree: Tree) -> Receipt:
    """The receipt for all touched paths; `before` has the base's node of each. What went with a folder is not in it."""
    entries = []
    for path in sorted(before):
        new = tree.get(path)
        if new is None and any(tree.get(above) is None for above in parents(path)):
            continue
        entry = receipt_entry(path, before[path], new)
        if entry is not None:
            entries.append(entry)
    return Receipt(schema=SCHEMA, image=image, base=base, entries=entries)


def receipt_entry(path: bytes, old: Node | None, new: Node | None) -> ReceiptEntry | None:
    """One path, or None where nothing changed."""
    before = Digest("sha256", old.sha256) if old is not None and old.sha256 is not None else None
    if new is None:
        if old is None:
            return None
        return ReceiptEntry(path=show(path), change="removed", type=old.type, before=before)
    return ReceiptEntry(
        path=show(path),
        change="added" if old is None else "replaced",
        type=new.type,
        mode=f"{new.mode:04o}",
        owner=f"{new.uid}:{new.gid}",
        size=new.size if new.type == "file" else None,
        digest=Digest("sha256", new.sha256) if new.sha256 is not None else None,
        link=show(new.link)[1:] if new.type == "symlink" else None,
        before=before,
    )


def touched(before: dict[bytes, Node | None], packages: Packages) -> list[TouchedFile]:
    """What the base says about every path that is replaced or removed."""
    rows = []
    for path, node in sorted(before.items()):
        if node is None or node.layer < 0:
            continue
        claims = packages.claims(path)
        rows.append(
            TouchedFile(
                path=show(path),
                layer=node.layer,
                mode=f"{node.mode:04o}",
                owner=f"{node.uid}:{node.gid}",
                size=node.size,
                digest=Digest("sha256", node.sha256) if node.sha256 is not None else None,
                distribution=claims[0][0] if len(claims) == 1 else None,
                record=Digest("sha256", claims[0][1]) if len(claims) == 1 and claims[0][1] is not None else None,
            )
        )
    return rows


def library_facts(definition: ImageDefinition, before: dict[bytes, Node | None], tree: Tree) -> list[LibraryFacts]:
    """What identifies the swapped libraries and what they replaced; one that cannot be read has no row."""
    rows = []
    for name, library in sorted(definition.library.items()):
        found = tree.resolve(library.path.encode())
        if found is None or found[1].elf is None:
            continue
        elf, old = found[1].elf, before.get(found[0])
        if old is None or old.sha256 is None:
            continue
        rows.append(
            LibraryFacts(
                name=name,
                machine=elf.machine,
                soname=elf.soname or "",
                build_id=elf.build_id,
                glibc=elf.glibc_needed,
                replaced=Digest("sha256", old.sha256),
                replaced_build_id=old.elf.build_id if old.elf is not None else None,
            )
        )
    return rows
