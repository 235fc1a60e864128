"""Steps 5 to 7 of static verification: embedded documents, changed files, installed packages."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from imgbuild.errors import ImgbuildError
from imgbuild.model.identity import Finding, compare, judge, not_checked
from imgbuild.model.lockfile import ABSENT
from imgbuild.model.paths import image_path, parent, parents, show
from imgbuild.model.receipt import RECEIPT_PATH, SCHEMA, Receipt, lock_path, parse_receipt
from imgbuild.steps.receipt import receipt_entry

if TYPE_CHECKING:
    from imgbuild.content.packages import Distribution
    from imgbuild.content.tree import Node, Tree
    from imgbuild.model.lockfile import Lock
    from imgbuild.model.receipt import ReceiptEntry
    from imgbuild.steps.view import View

_SHOWN = 5


def documents(view: View, lock: Lock) -> list[Finding]:
    """Step 5: the embedded lock is the lock, and the receipt names exactly what the added layers hold."""
    path = lock_path(lock.image)
    if lock.facts is None:
        why = f"the lock has no facts; run `imgbuild lock {lock.image} --complete`"
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
    """Step 7: RECORD rows against bytes, with the base as baseline, and doubled distributions."""
    base = set(_mismatches(view.base_tree, view.installed_before))
    now = list(_mismatches(view.tree, view.installed))
    fresh = [text for text, *facts in now if (text, *facts) not in base]
    doubled = Counter((distribution.name, parent(distribution.folder)) for distribution in view.installed)
    twice = sorted(f"{name} in {show(site)}" for (name, site), count in doubled.items() if count > 1)
    rows = [row for distribution in view.installed for row in distribution.rows]
    compared = sum(1 for row in rows if row.sha256 is not None)
    other = sorted({row.algorithm for row in rows if row.algorithm is not None})
    unknown = [show(row.path) for row in rows if row.algorithm is not None]
    notes = [f"{len(rows) - compared - len(unknown)} rows have no hash, as a RECORD's own, and were not compared"]
    if len(now) > len(fresh):
        notes.append(f"{len(now) - len(fresh)} mismatches are the base's own")
    findings = [
        judge(
            "packages.record",
            f"{compared} RECORD rows of {len(view.installed)} distributions",
            not fresh,
            expected="no mismatch that the base did not have",
            actual=f"{len(fresh)} new: {_some(fresh)}" if fresh else "none",
            reason="; ".join(notes),
        )
    ]
    if unknown:
        reason = f"{_some(unknown)}: have a hash by {', '.join(other)}, and inventories have sha256 only"
        subject = f"{len(unknown)} RECORD rows with another hash"
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


_Mismatch = tuple[str, str | None, int | None, str | None, int | None]


def _mismatches(tree: Tree, installed: tuple[Distribution, ...]) -> list[_Mismatch]:
    """Rows that are not what is there: a name for people, then what the row claims and what is there."""
    found: list[_Mismatch] = []
    for distribution in installed:
        for row in distribution.rows:
            if row.sha256 is None:
                continue
            node = tree.get(row.path)
            actual, size = (None, None) if node is None else (node.sha256, node.size)
            if actual != row.sha256 or (node is not None and row.size not in {None, size}):
                found.append((f"{show(row.path)} ({distribution.name})", row.sha256, row.size, actual, size))
    return found


def _some(items: list[str]) -> str:
    more = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return ", ".join(items[:_SHOWN]) + more
