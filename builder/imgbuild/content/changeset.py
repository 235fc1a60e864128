"""The canonical layer writer, format 1: the same changes always give the same bytes.

A layer is a tar (image-spec `layer.md`, Representing Changes) of what changes against the layers below. Tar can say
one thing in many ways, and every tool has its own; format 1 is one way, fixed for good by golden bytes:

- Entries are sorted by the bytes of their path. Markers stand after their directory and before all else below it:
  first `d/.wh..wh..opq`, then `d/.wh.NAME` by name. The root has no entry. Every parent has one (case C09).
- ustar headers (POSIX.1-1988): no leading `./`, a trailing `/` for directories, `mode & 0o7777`, numeric owners, empty
  uname and gname (C17), zero device numbers, whole seconds. A path over 100 bytes is split at the last `/` which leaves
  at most 155 bytes before it, as Go's archive/tar and GNU tar do.
- A PAX header (POSIX.1-2001) only for what ustar cannot say: a path or target that is too long or not ASCII, a number
  that is too big, extended attributes (`SCHILY.xattr.NAME`). Records are sorted by key, and never hold a time but an
  mtime which is too big for ustar (C21). Its own header is constant (C20). A name which is not UTF-8 is written as
  the bytes it has, under `hdrcharset=BINARY`.
- Where PAX carries a value, the ustar field is a placeholder: 0 for a number (as Go's archive/tar writes it, so readers
  that compare the two accept it), `pax-only/` and the sha256 of the path for a name. A reader without PAX then
  makes a file of an odd name, where a shortened path could overwrite a file that is something else.
- Markers are empty files with mode 0600, owner 0:0 and mtime = epoch. 0600, because a tool that takes a marker for a
  file then leaves nothing that others can read.
- Two zero blocks at the end and no padding to 10,240 bytes. Sparse files, devices and FIFOs are never written.

Errors: a value which a definition or a source may have brought in (a name, a target, a number, an attribute) is a
`StepError`; a set of changes which was put together wrongly (a missing parent, a duplicate, a link to nothing) is an
`InternalError`. Both are raised before the first byte is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from imgbuild.config import CHUNK_BYTES
from imgbuild.content import ustar
from imgbuild.content.changes import MARKER_PREFIX, MARKERS, BytesContent, Change, ChangeType, Content, checked, show
from imgbuild.content.storedgzip import StoredGzipWriter
from imgbuild.digest import BesideHash, Digest
from imgbuild.errors import DigestMismatchError, InternalError, StepError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["BytesContent", "Change", "ChangeType", "Content", "LayerResult", "write_layer"]

_OPAQUE_NAME = b".wh..wh..opq"
_MARKER_MODE = 0o600
_TYPEFLAGS = {
    ChangeType.FILE: b"0",
    ChangeType.HARDLINK: b"1",
    ChangeType.SYMLINK: b"2",
    ChangeType.DIRECTORY: b"5",
    ChangeType.WHITEOUT: b"0",
    ChangeType.OPAQUE: b"0",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerResult:
    """What was written.

    Args:
        diff_id: sha256 of the uncompressed tar (image-spec `config.md`, Layer DiffID).
        digest: sha256 of the bytes that went to the sink; equals `diff_id` without compression.
        size: bytes that went to the sink.
        uncompressed_size: bytes of the tar.
    """

    diff_id: Digest
    digest: Digest
    size: int
    uncompressed_size: int


def write_layer(
    changes: Iterable[Change],
    sink: Callable[[bytes], object],
    *,
    compression: Literal["gzip-stored", "none"] = "gzip-stored",
    epoch: int,
) -> LayerResult:
    """Write changes, given in any order, as one layer of format 1.

    Args:
        changes: held in memory whole, to be checked and sorted; contents are streamed (C30).
        sink: called in order with the pieces of the layer, each at most about 1 MiB.
        compression: `gzip-stored` (see `storedgzip`) or `none` for the bare tar.
        epoch: seconds since 1970, the mtime of whiteouts and opaque markers.

    Raises:
        StepError: a path, link target, number or attribute that a layer cannot or must not hold.
        InternalError: changes that do not belong together; see the module's docstring.
        DigestMismatchError: a content is shorter or longer than its `size`. What the sink has got by then has no
            end mark (as gzip it is invalid) and must be thrown away, as after any other exception.

    What contents and the sink raise passes through. NOT checked: whether the parents' metadata are the base's, whether
    a whiteout removes something that exists, whether a symlink's target exists, how long a single component is, the
    limits on entries and bytes of a layer.
    """
    if compression not in {"gzip-stored", "none"}:
        raise InternalError(f"compression {compression!r}", "is not part of layer format 1")
    if epoch < 0:
        raise StepError("epoch", "is before 1970", expected="seconds since 1970", actual=epoch)
    ordered = sorted(checked(changes), key=_position)
    for change in ordered:
        _header(change, epoch).check(show(change.path))
    tar, out = _Meter(), _Meter()
    if compression == "none":
        for piece in _tar_pieces(ordered, epoch):
            tar.update(piece)
            sink(piece)
        return LayerResult(diff_id=tar.digest, digest=tar.digest, size=tar.size, uncompressed_size=tar.size)

    def measured(data: bytes) -> None:
        out.update(data)
        sink(data)

    gzip = StoredGzipWriter(measured)
    for piece in _tar_pieces(ordered, epoch):
        tar.update(piece)
        gzip.write(piece)
    gzip.finish()
    return LayerResult(diff_id=tar.digest, digest=out.digest, size=out.size, uncompressed_size=tar.size)


class _Meter:
    """The sha256 and the length of what has gone by."""

    def __init__(self) -> None:
        self._hasher = BesideHash()
        self.size = 0

    def update(self, data: bytes) -> None:
        self._hasher.update(data)
        self.size += len(data)

    @property
    def digest(self) -> Digest:
        return Digest("sha256", self._hasher.hexdigest())


def _tar_pieces(ordered: list[Change], epoch: int) -> Iterator[bytes]:
    for change in ordered:
        yield _header(change, epoch).encode()
        if change.content is not None:
            yield from _body(change, change.content)
    yield ustar.END


def _body(change: Change, content: Content) -> Iterator[bytes]:
    size = left = content.size
    with content.open() as stream:
        # One byte more than is left is asked for, so that a longer content shows, and so that a reader which verifies
        # at its end (digest.VerifiedReader) is read to its end.
        while data := stream.read(min(CHUNK_BYTES, left + 1)):
            if len(data) > left:
                raise DigestMismatchError(
                    show(change.path), "content is longer than its size", expected=f"{size} bytes", actual="more"
                )
            left -= len(data)
            yield data
    if left:
        raise DigestMismatchError(
            show(change.path),
            "content is shorter than its size",
            expected=f"{size} bytes",
            actual=f"{size - left} bytes",
        )
    yield ustar.padding(size)


def _header(change: Change, epoch: int) -> ustar.Header:
    typeflag = _TYPEFLAGS[change.type]
    name = _entry_name(change)
    if change.type in MARKERS:
        return ustar.Header(name=name, typeflag=typeflag, mode=_MARKER_MODE, uid=0, gid=0, mtime=epoch)
    return ustar.Header(
        name=name,
        typeflag=typeflag,
        mode=change.mode & 0o7777,
        uid=change.uid,
        gid=change.gid,
        mtime=change.mtime,
        size=0 if change.content is None else change.content.size,
        link=change.link,
        xattrs=change.xattrs,
    )


def _position(change: Change) -> bytes:
    """The sort key. No path holds NUL, so NUL after the slash puts a marker before all else in its directory."""
    if change.type is ChangeType.OPAQUE:
        return change.path + b"/\0\0"
    if change.type is ChangeType.WHITEOUT:
        parent, slash, name = change.path.rpartition(b"/")
        return parent + slash + b"\0\1" + name
    return change.path


def _entry_name(change: Change) -> bytes:
    """The name in the tar (image-spec `layer.md`, Whiteouts)."""
    if change.type is ChangeType.OPAQUE:
        return change.path + b"/" + _OPAQUE_NAME
    if change.type is ChangeType.WHITEOUT:
        parent, slash, name = change.path.rpartition(b"/")
        return parent + slash + MARKER_PREFIX + name
    return change.path + b"/" if change.type is ChangeType.DIRECTORY else change.path
