from __future__ import annotations

import io
import tarfile
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st
from imgbuild.content.changeset import BytesContent, Change, ChangeType, write_layer
from imgbuild.content.tarstream import EntryType, TarEntry, TarReader
from imgbuild.digest import Digest

if TYPE_CHECKING:
    from collections.abc import Iterator

EPOCH = 1_700_000_000
TARFILE_TYPES = {
    ChangeType.FILE: tarfile.REGTYPE,
    ChangeType.DIRECTORY: tarfile.DIRTYPE,
    ChangeType.SYMLINK: tarfile.SYMTYPE,
    ChangeType.HARDLINK: tarfile.LNKTYPE,
    ChangeType.WHITEOUT: tarfile.REGTYPE,
    ChangeType.OPAQUE: tarfile.REGTYPE,
}

_BYTE = st.one_of(st.sampled_from(b"ab-.~ \n="), st.integers(1, 255)).filter(lambda byte: byte != ord("/"))
_SHORT = st.lists(_BYTE, min_size=1, max_size=5).map(bytes)
_LONG = st.builds(lambda head, length: head + b"n" * length, _SHORT, st.integers(40, 160))
_NAME = st.one_of(st.sampled_from([b"a", b"b", b"a-"]), _SHORT, _LONG).filter(
    lambda name: name not in {b".", b".."} and not name.startswith(b".wh.")
)
_PATH = st.lists(_NAME, min_size=1, max_size=4).map(tuple)
_ID = st.one_of(st.integers(0, 70_000), st.sampled_from([0o7777777, 0o7777777 + 1, 2**32 - 2]))
_MTIME = st.one_of(st.integers(0, 2_000_000_000), st.sampled_from([0o77777777777, 0o77777777777 + 1, 2**40]))
_LINK = st.one_of(_SHORT, _LONG, st.lists(_NAME, min_size=1, max_size=3).map(b"/".join))
_XATTRS = st.dictionaries(
    st.sampled_from(["user.a", "user.b", "security.capability", "user.ü"]), st.binary(min_size=1, max_size=30)
)
_DATA = st.one_of(st.binary(max_size=40), st.integers(0, 1500).map(lambda length: b"\xa5" * length))


def _ancestors(path: tuple[bytes, ...]) -> Iterator[tuple[bytes, ...]]:
    return (path[:depth] for depth in range(1, len(path)))


def _make(draw: st.DrawFn, path: tuple[bytes, ...], kind: ChangeType, files: list[Change]) -> Change:
    name = b"/".join(path)
    earlier = [file for file in files if file.path < name]
    if kind is ChangeType.HARDLINK and earlier:
        file = draw(st.sampled_from(earlier))
        return Change(
            path=name, type=kind, mode=file.mode, uid=file.uid, gid=file.gid, mtime=file.mtime, link=file.path
        )
    if kind is ChangeType.WHITEOUT:
        return Change(path=name, type=kind)
    kind = ChangeType.FILE if kind is ChangeType.HARDLINK else kind
    return Change(
        path=name,
        type=kind,
        mode=draw(st.integers(0, 0o7777)),
        uid=draw(_ID),
        gid=draw(_ID),
        mtime=draw(_MTIME),
        link=draw(_LINK) if kind is ChangeType.SYMLINK else b"",
        xattrs=tuple(draw(_XATTRS).items()),
        content=BytesContent(data=draw(_DATA)) if kind is ChangeType.FILE else None,
    )


@st.composite
def layers(draw: st.DrawFn) -> list[Change]:
    """Changes that belong together, in any order."""
    leaves = draw(st.lists(_PATH, max_size=8, unique=True))
    directories = {ancestor for path in leaves for ancestor in _ancestors(path)}
    changes: list[Change] = []
    files: list[Change] = []
    for path in sorted(directories | set(leaves)):
        kinds = [kind for kind in ChangeType if kind is not ChangeType.OPAQUE]
        kind = ChangeType.DIRECTORY if path in directories else draw(st.sampled_from(kinds))
        change = _make(draw, path, kind, files)
        changes.append(change)
        if change.type is ChangeType.FILE:
            files.append(change)
        if kind is ChangeType.DIRECTORY and draw(st.booleans()):
            changes.append(Change(path=change.path, type=ChangeType.OPAQUE))
    return draw(st.permutations(changes))


def _written(changes: list[Change]) -> bytes:
    pieces: list[bytes] = []
    result = write_layer(changes, pieces.append, epoch=EPOCH)
    output = b"".join(pieces)
    tar = zlib.decompress(output, 31)
    assert (result.diff_id, result.uncompressed_size) == (Digest.of(tar), len(tar))
    assert (result.digest, result.size) == (Digest.of(output), len(output))
    return tar


def _entry_path(change: Change) -> bytes:
    parent, slash, name = change.path.rpartition(b"/")
    if change.type is ChangeType.WHITEOUT:
        return parent + slash + b".wh." + name
    return change.path + b"/.wh..wh..opq" if change.type is ChangeType.OPAQUE else change.path


def _expected(change: Change) -> tuple[TarEntry, bytes]:
    path = _entry_path(change)
    if change.type in {ChangeType.WHITEOUT, ChangeType.OPAQUE}:
        return TarEntry(path=path, type=EntryType.FILE, mode=0o600, uid=0, gid=0, size=0, mtime=EPOCH), b""
    data = change.content.data if isinstance(change.content, BytesContent) else b""
    entry = TarEntry(
        path=path,
        type=EntryType(change.type.value),
        mode=change.mode,
        uid=change.uid,
        gid=change.gid,
        size=len(data),
        mtime=change.mtime,
        link=change.link,
        xattrs=tuple(sorted(change.xattrs)),
    )
    return entry, data


@given(layers())
@settings(max_examples=150, deadline=None)
def test_our_reader_gets_back_every_field_in_the_order_of_the_format(changes: list[Change]) -> None:
    expected = {_entry_path(change): _expected(change) for change in changes}
    reader = TarReader(io.BytesIO(_written(changes)), subject="layer")
    read = [(entry, b"".join(reader.content())) for entry in reader]
    assert {entry.path: (entry, data) for entry, data in read} == expected
    assert len(read) == len(changes)

    seen: set[bytes] = set()
    directories = {change.path for change in changes if change.type is ChangeType.DIRECTORY}
    files = {change.path for change in changes if change.type is ChangeType.FILE}
    for entry, _ in read:
        parent, _, name = entry.path.rpartition(b"/")
        assert not parent or parent in seen & directories
        if name.startswith(b".wh."):
            others = (path for path in seen if path.startswith(parent + b"/" if parent else b""))
            assert all(path.rpartition(b"/")[2].startswith(b".wh.") for path in others)
        if entry.type is EntryType.HARDLINK:
            assert entry.link in seen & files
        seen.add(entry.path)


@given(layers())
@settings(max_examples=100, deadline=None)
def test_tarfile_gets_back_every_field(changes: list[Change]) -> None:
    tar = _written(changes)
    with tarfile.open(fileobj=io.BytesIO(tar), mode="r:", encoding="utf-8", errors="surrogateescape") as archive:
        read = {member.name.encode("utf-8", "surrogateescape"): member for member in archive.getmembers()}
        assert read.keys() == {_entry_path(change) for change in changes}
        for change in changes:
            member = read[_entry_path(change)]
            entry, data = _expected(change)
            assert member.type == TARFILE_TYPES[change.type]
            assert (member.mode, member.uid, member.gid) == (entry.mode, entry.uid, entry.gid)
            assert (member.mtime, member.uname, member.gname) == (entry.mtime, "", "")
            assert member.linkname.encode("utf-8", "surrogateescape") == entry.link
            if change.type is ChangeType.FILE:
                stream = archive.extractfile(member)
                assert stream is not None
                assert stream.read() == data


@given(st.data(), layers())
@settings(max_examples=100, deadline=None)
def test_C10_any_order_of_changes_and_attributes_gives_the_same_bytes(
    data: st.DataObject, changes: list[Change]
) -> None:
    other = [replace(change, xattrs=change.xattrs[::-1]) for change in data.draw(st.permutations(changes))]
    assert _written(other) == _written(changes)
