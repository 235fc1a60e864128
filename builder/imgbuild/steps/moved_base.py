"""What changed in the base between two pins of it, for people: labels, Python packages, and files that steps touch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from imgbuild.errors import ImgbuildError, MissingError, PatchedFile
from imgbuild.model.lockfile import ABSENT
from imgbuild.model.oci import Descriptor
from imgbuild.steps.base import open_base, read_config
from imgbuild.steps.moved_git import RAISED
from imgbuild.steps.workspace import state_of
from imgbuild.text import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from imgbuild.content.packages import Parsed
    from imgbuild.digest import Digest
    from imgbuild.model.lockfile import Lock
    from imgbuild.model.oci import Manifest
    from imgbuild.steps.context import Context

ROWS = 200
"""labels, and distributions, that are named."""
_TEXT = 300
"""characters of one text of the base."""
_ELSEWHERE = "elsewhere"
"""instead of a state: the step touches another path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One name whose value is another one, or is on one side only."""

    name: str
    old: str | None
    new: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """How many there are, and the first `ROWS` of them by name."""

    count: int
    first: tuple[Difference, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreimageChange:
    """A file that a step found in another state than the lock had: `absent`, a digest or a link.

    `new` is `elsewhere` where the step touches another path now, since a link is on the way.
    """

    step: str
    path: str
    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedBase:
    """The base, from one manifest to another.

    Attributes:
        old: the manifest before.
        new: the manifest now.
        labels: None where the old config cannot be had.
        distributions: installed Python distributions by name and folder, their versions as values; None where the old
            base is not known here.
        problem: why one of them is None.
        preimages: the first step of each path whose preimage is another one now.
    """

    old: Digest
    new: Digest
    labels: Differences | None = None
    distributions: Differences | None = None
    problem: str | None = None
    preimages: tuple[PreimageChange, ...] = ()


def moved_base(context: Context, old: Lock, new: Lock) -> MovedBase:
    """Compare the bases of two locks.

    The old one is not read for this: what is not known of it here is said to be unknown. Only `RAISED` is raised.
    """
    labels, distributions, problem = None, None, None
    try:
        before = _labels(context, old)
        labels = differences(before, _labels(context, new))
        distributions = differences(_versions(context, old), _versions(context, new))
    except RAISED:
        raise
    except ImgbuildError as error:
        problem = printable(str(error), _TEXT)
    return MovedBase(
        old=old.pins.base.manifest,
        new=new.pins.base.manifest,
        labels=labels,
        distributions=distributions,
        problem=problem,
        preimages=preimage_changes(old, new),
    )


def differences(old: Mapping[str, str], new: Mapping[str, str]) -> Differences:
    """The names of two tables that differ."""
    names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    rows = tuple(
        Difference(name=printable(name, _TEXT), old=_shown(old.get(name)), new=_shown(new.get(name)))
        for name in names[:ROWS]
    )
    return Differences(count=len(names), first=rows)


def moved_preimages(context: Context, new: Lock, old: Lock) -> tuple[PatchedFile, ...]:
    """The same where steps did not come to an end: files that they touch, as the base of `new` has them.

    Each stands with the first step that touches it. None where the base is the same; a path of which the old lock does
    not say what the base had (a step before had put it there) is left out. Raises as `open_base`.
    """
    pin, facts = new.pins.base, old.facts
    if facts is None or pin.manifest == old.pins.base.manifest:
        return ()
    tree = open_base(context.based_on(pin.reference), pin, platform=new.platform, facts=new.facts).tree()
    known = {file.path for file in facts.touched}
    first = {row.path: row for row in reversed(old.pins.files)}
    found = []
    for row in old.pins.files:
        recorded = row.states[0]
        if first[row.path] is row and (recorded == ABSENT or row.path in known):
            state = state_of(tree.get(row.path.encode()[1:]))
            if state != recorded:
                found.append(PatchedFile(path=row.path, step=row.step, found=state, recorded=recorded))
    return tuple(found)


def preimage_changes(old: Lock, new: Lock) -> tuple[PreimageChange, ...]:
    """Paths that both locks have, and whose first step found something else; in the order of the steps."""
    before = {(row.step, row.path): row.states[0] for row in old.pins.files}
    found: dict[str, PreimageChange | None] = {}
    for row in new.pins.files:
        state = before.get((row.step, row.path))
        if row.path not in found:
            changed = state is not None and state != row.states[0]
            found[row.path] = (
                PreimageChange(step=row.step, path=row.path, old=state or "", new=row.states[0]) if changed else None
            )
    # A link on the way to a file, and the step touches another one.
    steps, after = {row.step for row in new.pins.files}, {(row.step, row.path) for row in new.pins.files}
    for (step, path), state in before.items():
        if step in steps and (step, path) not in after and path not in found:
            found[path] = PreimageChange(step=step, path=path, old=state, new=_ELSEWHERE)
    return tuple(row for row in found.values() if row is not None)


def _shown(text: str | None) -> str | None:
    return None if text is None else printable(text, _TEXT)


def _manifest(context: Context, lock: Lock) -> Manifest:
    pin = lock.pins.base
    descriptor = Descriptor(media_type=pin.media_type, digest=pin.manifest, size=pin.manifest_size)
    return context.places.manifest(descriptor)


def _labels(context: Context, lock: Lock) -> dict[str, str]:
    context = context.based_on(lock.pins.base.reference)
    return dict(read_config(context, _manifest(context, lock)).labels)


def _versions(context: Context, lock: Lock) -> dict[str, str]:
    """The versions of the distributions of a base, if that is known here or can be read without network."""
    pin, facts = lock.pins.base, lock.facts
    context = context.based_on(pin.reference)
    if facts is None or context.cache.tree(facts.base_tree) is None:
        layers = _manifest(context, lock).layers
        if not all(map(context.places.is_local, layers)):
            raise MissingError(f"base {pin.manifest}", "was not read here, so its packages are not known")
    return versions(open_base(context, pin, platform=lock.platform, facts=facts).parsed)


def versions(parsed: Parsed) -> dict[str, str]:
    """By name and folder of the distributions, their versions."""
    found: dict[str, list[str]] = {}
    for item in parsed.values():
        folder = item.folder.rpartition(b"/")[0].decode("utf-8", "backslashreplace")
        found.setdefault(f"{item.name} (/{folder})", []).append(item.version)
    return {name: ", ".join(sorted(rows)) for name, rows in found.items()}
