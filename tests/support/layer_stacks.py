"""Random stacks of small layers, and the archives and images that say the same."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from imgbuild.content.inventory import Entry, Inventory
from imgbuild.digest import Digest

from tests.support.reference_tree import Item, ReferenceTree, Refused

if TYPE_CHECKING:
    from pathlib import Path

_TAR_TYPES = {
    "file": tarfile.REGTYPE,
    "directory": tarfile.DIRTYPE,
    "symlink": tarfile.SYMTYPE,
    "hardlink": tarfile.LNKTYPE,
    "fifo": tarfile.FIFOTYPE,
    "character": tarfile.CHRTYPE,
}
# Few names, so that layers meet each other often.
_NAMES = st.sampled_from([b"a", b"b", b"c", b"a", b"b", b"\xff"])
_PATHS = st.lists(_NAMES, min_size=1, max_size=3).map(tuple)
_TARGETS = st.sampled_from(
    [
        b"a", b"b", b"c", b"/a", b"/b", b"/b/c", b"a/b", b"./c", b"../a", b"../b", b"../../b", b"../../../../c", b".",
        b"..", b"/", b"b//c/", b"missing", b"/missing/deep", b"missing/../b", b"b/../c",
    ]
)  # fmt: skip
_KINDS = st.sampled_from(
    ["file"] * 4
    + ["directory"] * 5
    + ["symlink"] * 3
    + ["hardlink"] * 2
    + ["whiteout"] * 3
    + ["opaque"] * 2
    + ["fifo", "character"]
)
_XATTRS = st.sampled_from([(), (), (("user.a", b"1"),), (("trusted.z", b"\x01="), ("user.b", b"2"))])


@st.composite
def items(draw: st.DrawFn) -> Item:
    """One entry of a layer."""
    kind = draw(_KINDS)
    path = draw(_PATHS)
    if kind in {"whiteout", "opaque"}:
        name = b".wh." + (path[-1] if kind == "whiteout" else b".wh..opq")
        return Item(path=(*path[:-1], name), type="file")
    facts: dict[str, Any] = {
        "mode": draw(st.sampled_from([0o644, 0o755, 0o4711, 0o1777, 0o2750, 0])),
        "uid": draw(st.sampled_from([0, 7, 70_000])),
        "gid": draw(st.sampled_from([0, 8, 3_000_000])),
        "mtime": draw(st.sampled_from([0, 1, 1_700_000_000, 2_000_000_000])),
    }
    if kind in {"file", "directory"}:
        facts["xattrs"] = draw(_XATTRS)
    if kind == "file":
        facts["data"] = draw(st.sampled_from([b"", b"x", b"yy", bytes(600)]))
    elif kind == "directory":
        # Now and then the root itself.
        path = draw(st.sampled_from([path] * 9 + [()]))
    elif kind == "symlink":
        facts |= {"mode": 0o777, "link": draw(_TARGETS)}
    elif kind == "hardlink":
        facts["link"] = b"/".join(draw(_PATHS))
    elif kind == "character":
        facts["device"] = (1, draw(st.sampled_from([3, 7])))
    return Item(path=path, type=kind, **facts)


@st.composite
def _pairs(draw: st.DrawFn) -> list[Item]:
    """A path that is replaced or hidden, and a marker below it, as overlayfs differs write them, in either order."""
    path = draw(_PATHS)
    below = draw(st.sampled_from([b".wh..wh..opq", b".wh.a", b".wh.b"]))
    pair = [
        draw(
            st.sampled_from(
                [Item(path=path, type="directory", mtime=9), Item(path=(*path[:-1], b".wh." + path[-1]), type="file")]
            )
        ),
        Item(path=(*path, below), type="file"),
    ]
    return draw(st.sampled_from([pair, pair[::-1]]))


_SKELETON = [
    Item(path=(b"a",), type="directory", mode=0o750, mtime=3),
    Item(path=(b"a", b"a"), type="directory", mode=0o700, mtime=4, xattrs=(("user.a", b"1"),)),
    Item(path=(b"a", b"a", b"a"), type="file", data=b"deep"),
    Item(path=(b"a", b"b"), type="file", data=b"linked", uid=5),
    Item(path=(b"a", b"c"), type="hardlink", link=b"a/b", uid=5),
    Item(path=(b"b",), type="symlink", mode=0o777, link=b"a"),
    Item(path=(b"c",), type="symlink", mode=0o777, link=b"/a/a"),
    Item(path=(b"a", b"\xff"), type="symlink", mode=0o777, link=b"/a/a"),
]
"""A base with something to hide and links to directories."""


def stacks(*, layers: int = 4, entries: int = 9, fewest: int = 0) -> st.SearchStrategy[list[list[Item]]]:
    """One to `layers` layers of anything, sensible or not; often on a base with directories, files and links."""
    layer = st.lists(st.one_of(items().map(lambda item: [item]), _pairs()), min_size=fewest, max_size=entries).map(
        lambda groups: [item for group in groups for item in group]
    )
    free = st.lists(layer, min_size=1, max_size=layers)
    based = st.lists(layer, min_size=1, max_size=layers - 1).map(lambda above: [_SKELETON, *above])
    return st.one_of(free, based, based)


def sensible(stack: list[list[Item]]) -> tuple[list[list[Item]], ReferenceTree]:
    """A stack without the entries about which tools disagree, and the tree that it must give.

    Such entries are those that the model doubts or refuses, and those whose effect would depend on their position: the
    specification says that markers hide lower layers only, but tools read an archive once, so for them it matters
    whether a link has been replaced already when they come to a marker below it.
    """
    tree = ReferenceTree()
    kept: list[list[Item]] = []
    for candidates in stack:
        layer: list[Item] = []
        loose: set[tuple[bytes, ...]] = set()
        for candidate in candidates:
            if _is_sensible(tree, layer, candidate):
                loose |= _emptied(tree, layer, candidate)
                layer.append(candidate)
        tree.apply(layer)
        tree.disturbed |= {path for path in loose if path in tree.paths}
        kept.append(layer)
    return kept, tree


def _is_sensible(lower: ReferenceTree, layer: list[Item], candidate: Item) -> bool:
    now, then = lower.copy(), lower.copy()
    places = now.apply(layer)
    try:
        *others, place = then.apply([*layer, candidate])
    except Refused:
        return False
    if then.doubts or others != places:
        return False
    if not candidate.is_marker:
        return True
    reached = now.real(candidate.path[:-1])
    if now.doubts:
        return False
    if reached == place:
        return True
    # The model hides nothing; nor may a tool that reads the layer in order, at the place where it then is.
    return place is None and not any(
        now.paths[path] is lower.paths.get(path) for path in (now.below(reached) if reached is not None else [])
    )


def _emptied(lower: ReferenceTree, layer: list[Item], candidate: Item) -> set[tuple[bytes, ...]]:
    """Directories that stay while a marker behind them empties them: umoci leaves their mtime to the clock."""
    if not candidate.is_marker:
        return set()
    tree = lower.copy()
    tree.apply(layer)
    place = tree.real(candidate.path[:-1])
    return set() if place is None else set(tree.below(place))


def inventory(layer: list[Item]) -> Inventory:
    """The inventory of a layer as the scanner would make it, without an archive."""
    return Inventory(diff_id=Digest.of(b""), uncompressed_size=0, entries=tuple(_entry(item) for item in layer))


def _entry(item: Item) -> Entry:
    raw = b"/".join(item.path)
    try:
        path, raw_path = raw.decode(), None
    except UnicodeDecodeError:
        path, raw_path = raw.decode("utf-8", "backslashreplace"), raw
    return Entry(
        path=path,
        raw_path=raw_path,
        type=item.type,
        mode=item.mode,
        uid=item.uid,
        gid=item.gid,
        mtime=item.mtime,
        size=len(item.data),
        sha256=hashlib.sha256(item.data).hexdigest() if item.type == "file" else None,
        link="" if item.link.isascii() is False else item.link.decode(),
        raw_link=None if item.link.isascii() else item.link,
        xattrs=item.xattrs,
        device=item.device,
    )


def archive(layer: list[Item], *, prefix: str = "") -> bytes:
    """The layer as Python's tarfile writes it, in the PAX format, entries in the given order."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for item in layer:
            info = tarfile.TarInfo(prefix + os.fsdecode(b"/".join(item.path)) or "./")
            info.type = _TAR_TYPES[item.type]
            info.mode, info.uid, info.gid, info.mtime = item.mode, item.uid, item.gid, item.mtime
            info.size, info.linkname = len(item.data), os.fsdecode(item.link)
            info.devmajor, info.devminor = item.device or (0, 0)
            info.pax_headers = {f"SCHILY.xattr.{name}": os.fsdecode(value) for name, value in item.xattrs}
            tar.addfile(info, io.BytesIO(item.data))
    return buffer.getvalue()


def write_image(layout: Path, tag: str, layers: list[bytes]) -> None:
    """An OCI image layout with one image of plain tar layers; what is there stays, but only this one has a name."""
    (layout / "blobs/sha256").mkdir(parents=True, exist_ok=True)
    config = {
        "architecture": "arm64",
        "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [str(Digest.of(layer)) for layer in layers]},
    }
    manifest = {
        "schemaVersion": 2,
        "config": _blob(layout, "application/vnd.oci.image.config.v1+json", json.dumps(config).encode()),
        "layers": [_blob(layout, "application/vnd.oci.image.layer.v1.tar", layer) for layer in layers],
    }
    entry = _blob(layout, "application/vnd.oci.image.manifest.v1+json", json.dumps(manifest).encode())
    entry["annotations"] = {"org.opencontainers.image.ref.name": tag}
    (layout / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))


def _blob(layout: Path, media_type: str, data: bytes) -> dict[str, Any]:
    digest = Digest.of(data)
    (layout / "blobs/sha256" / digest.encoded).write_bytes(data)
    return {"mediaType": media_type, "digest": str(digest), "size": len(data)}
