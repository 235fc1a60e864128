"""Where a path of an image comes from, layer by layer, and who would load it.

All of it follows from the lock, the inventories that it pins and the small files of the image; nothing is hashed anew.
What `imgbuild verify` says decides; this only says why. History is by the literal path in each layer: an entry that
came through a link in its parents is not recognised as one for this path.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from imgbuild.content.changeset import LayerResult
from imgbuild.content.dpkg import LISTS, STATUS, lists_one, names_of, parse_status
from imgbuild.content.packages import owners
from imgbuild.digest import Digest
from imgbuild.errors import ArchiveError, MissingError
from imgbuild.model.oci import Descriptor, ImageConfig
from imgbuild.model.paths import image_path, parent, parents, show
from imgbuild.steps.base import machine_of, open_base
from imgbuild.steps.layers import read_layer
from imgbuild.steps.lock import check_fresh
from imgbuild.steps.verify_loader import Search
from imgbuild.steps.view import View, digest_of_node
from imgbuild.steps.written import expected_documents

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imgbuild.adapters.project import ImageInput
    from imgbuild.content.dpkg import DebianPackage
    from imgbuild.content.inventory import Inventory
    from imgbuild.content.node import Node
    from imgbuild.model.lockfile import FileStates, Lock, ResultLayer
    from imgbuild.steps.base import Base
    from imgbuild.steps.context import Context
    from imgbuild.steps.verify_loader import Load

What = Literal["has", "removes", "hides"]
_OPAQUE = b".wh..wh..opq"
_WHITEOUT = b".wh."


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerName:
    """A layer of the image: its number from 0, whose it is (`base`, or the name of a layer of ours), and its digest."""

    number: int
    name: str
    digest: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What a layer does to the path: `has` it, `removes` it, or `hides` a directory above it."""

    layer: LayerName
    what: What
    type: str | None = None
    digest: Digest | None = None
    where: str | None = None
    """The path of the marker, where it is not that of the path itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A distribution whose RECORD lists the path; `record` is the digest in its row."""

    name: str
    version: str
    record: Digest | None
    matches: bool | None
    """Whether that is the digest of what is there; None where the row has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """The Debian packages that list the path; `problem` is why that cannot be said for sure."""

    packages: tuple[DebianPackage, ...]
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What there is to say about a path."""

    path: str
    links: tuple[str, ...]
    """Each link on the way, as `/from -> to`."""
    real: str | None
    """The real path; None where nothing is."""
    node: Node | None
    origin: LayerName | None
    """The layer whose entry is there now."""
    history: tuple[Event, ...]
    unknown: tuple[LayerName, ...]
    """Layers whose inventories are not here, so that what they do to the path is not known."""
    states: tuple[FileStates, ...]
    """What steps found and left at the path."""
    owners: tuple[Owner, ...]
    system: System
    loads: tuple[Load, ...]
    """Of a library: every file that asks for it by SONAME or file name, or is led to it, and what that loads."""


def explain(context: Context, image: ImageInput, lock: Lock, path: str) -> Explanation:
    """Explain a path of the image that a lock pins. Its layers must be known here, by `imgbuild lock` or a build.

    Raises:
        StepError: `path` is none in an image.
        MissingError: the lock has no result, or a layer is neither known nor in the store.
        LockStaleError, ImgbuildError: as `check_fresh` and `open_base`.
    """
    check_fresh(image, lock)
    if lock.result is None:
        raise MissingError(
            f"result of {lock.image}", "is not in the lock", hint=f"run `imgbuild lock {image.words} --complete`"
        )
    context = context.based_on(lock.pins.base.reference)
    base = open_base(context, lock.pins.base, platform=lock.platform, facts=lock.facts)
    rows = lock.result.layers
    layers = tuple(Descriptor(media_type="", digest=row.digest, size=row.size) for row in rows)
    view = View(context, base, layers, tuple(_inventory(context, row) for row in rows))
    asked = image_path(path, where="PATH")
    found = view.tree.resolve(asked)
    real, node = (asked, view.tree.get(asked)) if found is None else found
    names = _names(base, rows)
    history, unknown = _history(context, base, view.added, names, real)
    return Explanation(
        path=show(asked),
        links=tuple(_links(view, asked)),
        real=None if node is None else show(real),
        node=node,
        origin=names[node.layer] if node is not None and 0 <= node.layer < len(names) else None,
        history=history,
        unknown=unknown,
        states=tuple(row for row in lock.pins.files if row.path == show(real)),
        owners=_owners(view, real, node),
        system=_system(view, real),
        loads=() if node is None else _loads(view, image, lock, real, node),
    )


def _inventory(context: Context, row: ResultLayer) -> Inventory:
    """The pinned inventory of a layer of ours, else what the layer in the store says."""
    layer = Descriptor(media_type="", digest=row.digest, size=row.size)
    known = context.cache.inventory(layer, row.diff_id, row.inventory)
    if known is not None:
        return known[0]
    if not context.store.has(row.digest, row.size):
        raise MissingError(
            f"layer {row.name}", "is not known here", expected=row.digest, hint="build the image once: `imgbuild build`"
        )
    with context.progress.task(f"reading layer {row.name}", row.size) as task:
        return read_layer(context, layer, row.diff_id, task).inventory


def _names(base: Base, rows: list[ResultLayer]) -> list[LayerName]:
    pairs = [("base", layer.digest) for layer in base.manifest.layers] + [(row.name, row.digest) for row in rows]
    return [LayerName(number=number, name=name, digest=digest) for number, (name, digest) in enumerate(pairs)]


def _links(view: View, path: bytes) -> Iterator[str]:
    """The links on the way, each once, as far as they lead."""
    here, seen = b"", set()
    parts = [part for part in reversed(path.split(b"/")) if part]
    while parts:
        part = parts.pop()
        if part in {b".", b".."}:
            here = parent(here) if part == b".." else here
            continue
        place = here + b"/" + part if here else part
        node = view.tree.get(place)
        if node is None or node.type != "symlink":
            here = place
            continue
        if place in seen:
            return
        seen.add(place)
        yield f"{show(place)} -> {show(node.link)[1:]}"
        if node.link.startswith(b"/"):
            here = b""
        parts.extend(part for part in reversed(node.link.split(b"/")) if part)


def _history(
    context: Context, base: Base, added: tuple[Inventory, ...], names: list[LayerName], path: bytes
) -> tuple[tuple[Event, ...], tuple[LayerName, ...]]:
    events: list[Event] = []
    unknown = []
    pairs = zip(base.manifest.layers, base.config.diff_ids, base.inventory_digests, strict=True)
    for name, (layer, diff_id, digest) in zip(names, pairs, strict=False):
        known = context.cache.inventory(layer, diff_id, digest)
        inventory = known[0] if known is not None else context.cache.claimed_inventory(diff_id, digest)
        if inventory is None:
            unknown.append(name)
        else:
            events.extend(_events(inventory, name, path))
    for name, inventory in zip(names[len(base.manifest.layers) :], added, strict=True):
        events.extend(_events(inventory, name, path))
    return tuple(events), tuple(unknown)


def _events(inventory: Inventory, layer: LayerName, path: bytes) -> Iterator[Event]:
    """What one layer says of a path; markers first, as they hide what lower layers have only."""
    above = set(parents(path))
    markers: dict[bytes, What] = {_marker(place): "hides" for place in above}
    markers |= {place + b"/" + _OPAQUE: "hides" for place in above}
    markers[_marker(path)] = "removes"
    last = None
    for entry in inventory.entries:
        found = entry.path_bytes
        if found == path:
            last = entry
        elif found in markers:
            yield Event(layer=layer, what=markers[found], where=show(found))
        elif found in above and entry.type not in {"directory", "symlink"}:
            yield Event(layer=layer, what="hides", type=entry.type, where=show(found))
    if last is not None:
        digest = None if last.sha256 is None else Digest("sha256", last.sha256)
        yield Event(layer=layer, what="has", type=last.type, digest=digest)


def _marker(path: bytes) -> bytes:
    folder, _, name = path.rpartition(b"/")
    return (folder + b"/" if folder else b"") + _WHITEOUT + name


def _owners(view: View, path: bytes, node: Node | None) -> tuple[Owner, ...]:
    found = []
    for item in owners(view.installed, path):
        row = item.record.row(item.record.places(path)[0])
        record = None if row.sha256 is None else Digest("sha256", row.sha256)
        matches = None if record is None else digest_of_node(node) == record
        found.append(Owner(name=item.name, version=item.version, record=record, matches=matches))
    return tuple(found)


def _system(view: View, path: bytes) -> System:
    """Who of dpkg's packages lists a path; what dpkg does not list as installed counts for nothing."""
    status = view.read(STATUS)
    if status is None:
        return System(packages=())
    try:
        packages = parse_status(status, subject=show(STATUS))
    except ArchiveError as error:
        return System(packages=(), problem=str(error))
    present = set(view.listdir(LISTS))
    names = names_of(path, lambda folder: (node := view.tree.get(folder)) is not None and node.type == "symlink")
    found, lost = [], 0
    for package in packages:
        name = next((name for name in package.lists if name in present), None)
        content = None if name is None else view.read(LISTS + b"/" + name)
        if content is None:
            lost += 1
        elif lists_one(content, names):
            found.append(package)
    return System(packages=tuple(found), problem=f"{lost} of {len(packages)} packages have no list" if lost else None)


def _loads(view: View, image: ImageInput, lock: Lock, path: bytes, node: Node) -> tuple[Load, ...]:
    """Who asks for a library; nobody asks for a file that is none."""
    if node.elf is None or node.elf.kind not in {"shared", "pie"} or lock.result is None:
        return ()
    layers = tuple(
        (row.name, LayerResult(diff_id=row.diff_id, digest=row.digest, size=row.size, uncompressed_size=0))
        for row in lock.result.layers
    )
    raw, _ = expected_documents(image, lock, view.base, layers)
    config = ImageConfig.parse(raw, subject="image config")
    name = path.rpartition(b"/")[2]
    soname = node.elf.soname or show(name)[1:]
    search = Search(view, machine_of(lock.platform), config)
    return tuple(search.loads(soname, soname.encode("utf-8", "backslashreplace"), {path}))
