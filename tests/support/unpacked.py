"""Compares a root file system on disk with our merged tree, entry by entry."""

from __future__ import annotations

import hashlib
import os
import stat
from typing import TYPE_CHECKING, Any

from imgbuild.content.node import IMPLICIT

if TYPE_CHECKING:
    from collections.abc import Container, Iterator
    from pathlib import Path

    from imgbuild.content.node import Node
    from imgbuild.content.tree import Tree

_TYPES = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "symlink",
    stat.S_IFCHR: "character",
    stat.S_IFBLK: "block",
    stat.S_IFIFO: "fifo",
}
_HOST_XATTRS = {"security.selinux"}
"""Set by the machine that unpacks, never by an image."""

Facts = dict[str, Any]


def differences(root: Path, tree: Tree, *, loose_times: Container[bytes] = ()) -> list[str]:
    """What a root file system has otherwise than the tree, as text, by path; an empty list means that they are equal.

    Compared are type, mode, owner, size, content, link target, mtime in whole seconds, xattrs, device numbers, and
    which paths are hard links of each other. Directories that no layer lists (`IMPLICIT`) need only be directories:
    the specification says nothing about their metadata, and every tool has its own.

    Args:
        root: the root file system; read without following links, so as root.
        tree: the merged view.
        loose_times: paths of directories whose mtime is not compared; the caller has a reason for each.
    """
    ours = {b"": tree.root, **dict(tree.walk())}
    theirs = dict(_entries(os.fsencode(root), b""))
    found = [f"{path!r}: only in the tree" for path in ours.keys() - theirs.keys()]
    found += [f"{path!r}: only on disk" for path in theirs.keys() - ours.keys()]
    for path in ours.keys() & theirs.keys():
        expected = _expected(ours[path])
        if path in loose_times:
            expected.pop("mtime", None)
        actual = _facts(os.fsencode(root), path, theirs[path])
        found += [
            f"{path!r}: {name} is {value!r} in the tree and {actual[name]!r} on disk"
            for name, value in expected.items()
            if actual[name] != value
        ]
    return sorted(found) + _hard_links(ours, theirs)


def _expected(node: Node) -> Facts:
    facts: Facts = {"type": node.type}
    if node.layer == IMPLICIT:
        return facts
    facts |= {"uid": node.uid, "gid": node.gid, "mtime": node.mtime, "xattrs": dict(node.xattrs)}
    if node.type == "symlink":
        # Linux has no mode for a link; lstat always says 0777.
        return facts | {"link": node.link}
    facts["mode"] = node.mode
    if node.type == "file":
        facts |= {"size": node.size, "sha256": node.sha256}
    elif node.device is not None:
        facts["device"] = node.device
    return facts


def _entries(root: bytes, path: bytes) -> Iterator[tuple[bytes, os.stat_result]]:
    here = os.path.join(root, path) if path else root
    yield path, os.lstat(here)
    with os.scandir(here) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        below = os.path.join(path, entry.name)
        if entry.is_dir(follow_symlinks=False):
            yield from _entries(root, below)
        else:
            yield below, entry.stat(follow_symlinks=False)


def _facts(root: bytes, path: bytes, found: os.stat_result) -> Facts:
    here = os.path.join(root, path) if path else root
    kind = _TYPES.get(stat.S_IFMT(found.st_mode), "unknown")
    return {
        "type": kind,
        "mode": stat.S_IMODE(found.st_mode),
        "uid": found.st_uid,
        "gid": found.st_gid,
        "size": found.st_size,
        "mtime": found.st_mtime_ns // 10**9,
        "sha256": _sha256(here) if kind == "file" else None,
        "link": os.readlink(here) if kind == "symlink" else b"",
        "device": (os.major(found.st_rdev), os.minor(found.st_rdev)),
        "xattrs": {
            name: os.getxattr(here, name, follow_symlinks=False)
            for name in os.listxattr(here, follow_symlinks=False)
            if name not in _HOST_XATTRS
        },
    }


def _sha256(path: bytes) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _hard_links(ours: dict[bytes, Node], theirs: dict[bytes, os.stat_result]) -> list[str]:
    def groups(keys: dict[bytes, int]) -> set[tuple[bytes, ...]]:
        names: dict[int, list[bytes]] = {}
        for path, key in sorted(keys.items()):
            names.setdefault(key, []).append(path)
        return {tuple(group) for group in names.values() if len(group) > 1}

    expected = groups({path: id(node) for path, node in ours.items()})
    actual = groups({path: found.st_ino for path, found in theirs.items() if not stat.S_ISDIR(found.st_mode)})
    return [f"{group!r}: hard links of each other only in the tree" for group in sorted(expected - actual)] + [
        f"{group!r}: hard links of each other only on disk" for group in sorted(actual - expected)
    ]
