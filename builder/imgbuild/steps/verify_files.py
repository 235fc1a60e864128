"""Steps 5 to 7 of static verification: embedded documents, changed files, installed packages."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from imgbuild.content.node import LINK
from imgbuild.content.record import decoded_hash
from imgbuild.errors import ImgbuildError
from imgbuild.model.identity import Finding, compare, judge, not_checked
from imgbuild.model.lockfile import ABSENT
from imgbuild.model.paths import image_path, parent, parents, show
from imgbuild.model.receipt import RECEIPT_PATH, SCHEMA, Receipt, lock_path, parse_receipt
from imgbuild.steps.receipt import receipt_entry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imgbuild.content.node import Node
    from imgbuild.content.packages import Distribution
    from imgbuild.content.record import Claim
    from imgbuild.content.tree import Tree
    from imgbuild.model.lockfile import Lock
    from imgbuild.model.receipt import ReceiptEntry
    from imgbuild.steps.view import View

_SHOWN = 5


def documents(view: View, lock: Lock, words: str) -> list[Finding]:
    """Step 5: the embedded lock is the lock, and the receipt names exactly what the added layers hold.

    `words` name the image on the command line.
    """
    path = lock_path(lock.image)
    if lock.facts is None:
        why = f"the lock has no facts; run `imgbuild lock {words} --complete`"
        first = not_checked("embedded.lock", show(path), why)
    else:
        same = view.read(path) == lock.embedded(lock.facts)
        text = "the lock, without its result"
        first = judge("embedded.lock", show(path), same, expected=text, actual=text if same else "other bytes")
    raw = view.read(RECEIPT_PATH)
    if raw is None:
        return [first, judge("receipt", show(RECEIPT_PATH), ok=False, expected="a receipt", actual="nothing")]
    try:
        found = parse_receipt(raw, subject=show(RECEIPT_PATH))
    except ImgbuildError as error:
        return [first, judge("receipt", show(RECEIPT_PATH), ok=False, expected="a receipt", actual=error)]
    stated = {entry.path: entry for entry in found.entries}
    actual = _changes(view)
    wrong = sorted(name for name in stated.keys() | actual.keys() if stated.get(name) != actual.get(name))
    whole = Receipt(schema=SCHEMA, image=lock.image, base=lock.pins.base.manifest, entries=list(actual.values()))
    same = raw == whole.dump()
    other = f"{len(wrong)} differ: {_some(wrong)}" if wrong else "names another image or base, or a path twice"
    return [
        first,
        judge(
            "receipt",
            f"{len(actual)} changed paths",
            same,
            expected="the receipt names each of them once and as it is, no other, and this image and base",
            actual="it does" if same else other,
        ),
    ]


def files(view: View, lock: Lock) -> list[Finding]:
    """Step 6: every file that a step changed is in the last state that the lock pins for it."""
    last = {row.path: row.states[-1] for row in lock.pins.files}
    return [compare("file", path, state, _state(view.tree, path)) for path, state in sorted(last.items())]


def packages(view: View) -> list[Finding]:
    """Step 7: RECORD rows against bytes, with the base as baseline, and doubled distributions.

    A row is compared unless the base has it in the same distribution, and its file's folder untouched: such a row can
    have no mismatch that the base did not have.
    """
    installed = view.installed
    looked, now = _mismatches(view)
    base = _base_mismatches(view, now) if now else set()
    fresh = [f"{show(path)} ({name})" for path, name, *facts in now if (path, name, *facts) not in base]
    doubled = Counter((distribution.name, parent(distribution.folder)) for distribution in installed)
    twice = sorted(f"{name} in {show(site)}" for (name, site), count in doubled.items() if count > 1)
    hashed = sum(distribution.record.outline.hashed for distribution in installed)
    foreign = [row for distribution in installed for row in distribution.record.foreign]
    without = sum(len(distribution.record) for distribution in installed) - hashed - len(foreign)
    notes = [f"{without} rows have no hash, as a RECORD's own, and were not compared"]
    if looked < hashed:
        notes.append(
            f"{looked} were compared; the other {hashed - looked} rows and the folders of their files are the base's, "
            "unchanged, so none of them can have a new mismatch"
        )
    if len(now) > len(fresh):
        notes.append(f"{len(now) - len(fresh)} mismatches are the base's own")
    findings = [
        judge(
            "packages.record",
            f"{hashed} RECORD rows of {len(installed)} distributions",
            not fresh,
            expected="no mismatch that the base did not have",
            actual=f"{len(fresh)} new: {_some(fresh)}" if fresh else "none",
            reason="; ".join(notes),
        )
    ]
    if foreign:
        other = sorted({str(row.algorithm) for row in foreign})
        paths = _some([show(row.path) for row in foreign])
        reason = f"{paths}: have a hash by {', '.join(other)}, and inventories have sha256 only"
        subject = f"{len(foreign)} RECORD rows with another hash"
        findings.append(not_checked("packages.record", subject, reason, required=False))
    findings.extend(_unreadable(view))
    findings.append(
        judge(
            "packages.single",
            "distributions",
            not twice,
            expected="one of each name in a site folder",
            actual=f"twice: {_some(twice)}" if twice else "one of each",
        )
    )
    return findings


def _unreadable(view: View) -> list[Finding]:
    """Distributions that say nothing about their files. What the base had so is not for the change to mend."""
    broken = {item.folder: item.problem for item in view.installed if item.problem}
    before = {item.folder: item.problem for item in view.installed_before} if broken else {}
    fresh = [f"{show(folder)} {problem}" for folder, problem in broken.items() if before.get(folder) != problem]
    old = [f"{show(folder)} {problem}" for folder, problem in broken.items() if before.get(folder) == problem]
    findings = []
    if fresh:
        reason = "their files cannot be checked, and a layer of ours brought or changed them; mend that"
        findings.append(not_checked("packages.record", _some(fresh), reason))
    if old:
        findings.append(not_checked("packages.record", _some(old), "they are so in the base", required=False))
    return findings


def _changes(view: View) -> dict[str, ReceiptEntry]:
    """What the added layers hold, computed from their entries and the two trees."""
    paths: set[bytes] = set()
    for inventory in view.added:
        for entry in inventory.entries:
            path = entry.path_bytes
            folder, _, name = path.rpartition(b"/")
            if name.startswith(b".wh."):
                path = (folder + b"/" if folder else b"") + name[len(b".wh.") :]
            paths.add(path)
    changes: dict[str, ReceiptEntry] = {}
    for path in sorted(paths - {RECEIPT_PATH}):
        old, new = view.base_tree.get(path), view.tree.get(path)
        if new is not None and old is not None and new.is_directory and _same_directory(old, new):
            continue
        if new is None and any(view.tree.get(above) is None for above in parents(path)):
            continue
        row = receipt_entry(path, old, new)
        if row is not None:
            changes[row.path] = row
    return changes


def _same_directory(old: Node, new: Node) -> bool:
    facts = ("type", "mode", "uid", "gid", "mtime", "xattrs")
    return all(getattr(old, name) == getattr(new, name) for name in facts)


def _state(tree: Tree, path: str) -> str:
    node = tree.get(image_path(path, where="lock"))
    if node is None:
        return ABSENT
    return f"link:{show(node.link)[1:]}" if node.type == "symlink" else f"sha256:{node.sha256}"


_Mismatch = tuple[bytes, str, str, int | None, str | None, int | None]
"""Path and distribution of a row, then sha256 and size that it claims, then those that are there."""


def _mismatches(view: View) -> tuple[int, list[_Mismatch]]:
    """How many rows were compared, and those that are not what is there."""
    before = {distribution.folder: distribution for distribution in view.installed_before}
    folders, shared = _Folders(view.tree), _Shared(view.base_tree, view.tree)
    looked = 0
    found: list[_Mismatch] = []
    for distribution in view.installed:
        for claim in _suspects(shared, distribution, before.get(distribution.folder)):
            looked += 1
            mismatch = _mismatch(claim, distribution.name, folders.get(claim[0]))
            if mismatch is not None:
                found.append(mismatch)
    return looked, found


def _suspects(shared: _Shared, now: Distribution, before: Distribution | None) -> Iterator[Claim]:
    """The rows with a sha256 that the base does not have, or of which the file's folder is another than there."""
    kept = before is not None and before.name == now.name
    same = before is not None and kept and before.record == now.record
    moved = {folder for folder in now.record.outline.folders if folder not in shared}
    if same and not moved:
        return
    known = set(before.record.claims()) if before is not None and kept and not same else set()
    for claim in now.record.claims():
        if claim[1] and (claim[0].rpartition(b"/")[0] in moved or not (same or claim in known)):
            yield claim


class _Shared:
    """Which folders are one object in two trees, links followed in each, or nothing in both.

    By `Tree.fork` no object is changed that two trees have: what is directly in such a folder is the same in both.
    """

    def __init__(self, one: Tree, other: Tree) -> None:
        self._trees = one, other
        self._pairs: dict[bytes, tuple[Node, Node] | None] = {b"": (one.root, other.root)}

    def __contains__(self, folder: bytes) -> bool:
        pair = self._pair(folder)
        if pair is None:
            one, other = (None if found is None else found[1] for found in (t.resolve(folder) for t in self._trees))
            return one is other
        return pair[0] is pair[1]

    def _pair(self, folder: bytes) -> tuple[Node, Node] | None:
        """The folder in both trees; None where links, or something that is no folder, are on the way.

        Below one object without links that is this object: whatever is there, or is not, is the same in both.
        """
        if folder not in self._pairs:
            above, _, name = folder.rpartition(b"/")
            pair = self._pair(above)
            if pair is not None and not (pair[0] is pair[1] and not pair[0].may_have(LINK)):
                nodes = [node.children.get(name) for node in pair]
                pair = (nodes[0], nodes[1]) if all(node is not None and node.is_directory for node in nodes) else None  # type: ignore[assignment] # both are nodes
            self._pairs[folder] = pair
        return self._pairs[folder]


class _Folders:
    """`Tree.get` of many paths, each folder resolved once."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._children: dict[bytes, dict[bytes, Node]] = {}

    def get(self, path: bytes) -> Node | None:
        if not path:
            return self._tree.root
        folder, _, name = path.rpartition(b"/")
        children = self._children.get(folder)
        if children is None:
            found = self._tree.resolve(folder)
            children = self._children[folder] = {} if found is None else found[1].children
        return children.get(name)


def _mismatch(claim: Claim, name: str, node: Node | None) -> _Mismatch | None:
    """What a row with a sha256 says and what is there, unless that is the same."""
    path, encoded, digits = claim
    sha256, size = decoded_hash(encoded), int(digits) if digits else None
    actual, there = (None, None) if node is None else (node.sha256, node.size)
    if actual == sha256 and size in {None, there}:
        return None
    return path, name, sha256, size, actual, there


def _base_mismatches(view: View, now: list[_Mismatch]) -> set[_Mismatch]:
    """The mismatches of the base at the paths and in the distributions of those given."""
    paths, names = {mismatch[0] for mismatch in now}, {mismatch[1] for mismatch in now}
    folders = _Folders(view.base_tree)
    found = set()
    for distribution in view.installed_before:
        if distribution.name in names:
            for claim in distribution.record.claims():
                if claim[1] and claim[0] in paths:
                    found.add(_mismatch(claim, distribution.name, folders.get(claim[0])))
    return {mismatch for mismatch in found if mismatch is not None}


def _some(items: list[str]) -> str:
    more = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return ", ".join(items[:_SHOWN]) + more
