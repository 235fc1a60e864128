"""An NCCL library where somebody names it: a file, a member of a wheel, or a path of an image.

Of an image only the layer that has the file is read, up to the file, after the inventories of all layers; those that
are not in the cache are taken first, each from one pass over its layer as a stream. Nothing of it is unpacked.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from imgbuild.adapters.blobs import open_regular
from imgbuild.adapters.durable import storage_errors
from imgbuild.adapters.spool import Spool
from imgbuild.config import GIB
from imgbuild.content.nccl import NcclFacts, NcclScan
from imgbuild.content.ziparchive import open_archive, open_member
from imgbuild.digest import Digest, chunks
from imgbuild.errors import ArchiveError, DigestMismatchError, MissingError, StepError, UsageError
from imgbuild.model.paths import image_path, show
from imgbuild.steps.base import machine_of, merge
from imgbuild.steps.inventories import take_inventories
from imgbuild.steps.layers import contents

if TYPE_CHECKING:
    import io
    from collections.abc import Iterable
    from typing import BinaryIO

    from imgbuild.content.node import Node
    from imgbuild.progress import Task
    from imgbuild.steps.context import Context
    from imgbuild.steps.opened import OpenedImage

LIBRARY = "libnccl.so.2"
"""The file name for which a wheel is searched."""
_LIBRARY_BYTES = 8 * GIB
"""bytes of one library; the largest that are published have about 300 MB."""
_ZIP = b"PK\x03\x04"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a command line names: `path` of the image `reference`, or `file`, or `member` of the wheel that this is."""

    text: str
    """As it was given; bytes that are not UTF-8 are escaped."""
    file: Path | None = None
    member: str | None = None
    reference: str | None = None
    path: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """One library that was read."""

    asked: Asked
    facts: NcclFacts
    problems: tuple[str, ...]
    """Why it is no sound NCCL library, or none for its image, each as a clause about it."""
    real: str | None = None
    """Of a library of an image: the path to which links lead."""
    layer: Digest | None = None
    """The layer that it was read from."""
    wheel: str | None = None
    """The file name of the wheel that it was read from."""
    member: str | None = None
    """Its path in there."""


def parse_asked(text: str) -> Asked:
    """Tell what a text names; a `UsageError` where it is none of them.

    What is on disk under the whole text is that file. Else what follows the last `:/` is a path of an image, and what
    follows the last colon behind a file is the member of a wheel.
    """
    shown = _unicode(text)
    if os.path.lexists(text):
        return Asked(text=shown, file=Path(text))
    reference, mark, path = text.rpartition(":/")
    if mark:
        if not reference or not path:
            raise UsageError(f"library {text!r}", "lacks an image or a path", hint="write name:tag:/path/in/the/image")
        return Asked(text=shown, reference=reference, path=f"/{path}")
    file, mark, member = text.rpartition(":")
    if mark and (file.endswith(".whl") or os.path.lexists(file)):
        return Asked(text=shown, file=Path(file), member=member)
    return Asked(text=shown, file=Path(text))


def read_file_library(context: Context, asked: Asked) -> Library:
    """Read a library on disk, or in a wheel there.

    Raises:
        UsageError: the file is not there, is a directory, cannot be read, or is a wheel with several libraries.
        ArchiveError: it is no ELF file, or a damaged wheel, or a wheel without the library.
        StorageError: the disk fails.
    """
    assert asked.file is not None  # noqa: S101 - the other kind has another function
    with _open(asked.file) as file, storage_errors(asked.file, "read"):
        is_zip = file.read(len(_ZIP)) == _ZIP
        if asked.member is not None or is_zip or asked.file.suffix == ".whl":
            return _from_wheel(context, asked, file)
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        scan = NcclScan(asked.text)
        with context.progress.task(f"reading {asked.file.name}", _bounded(asked.text, size)) as task:
            _feed(asked.text, scan, chunks(file), task, None)
        facts = scan.finish(file)
        return Library(asked=asked, facts=facts, problems=facts.problems())


def read_image_library(asked: Asked, image: OpenedImage) -> Library:
    """Read a library of an image, from the layer that has it.

    Raises:
        UsageError: the path is none in an image, or of a directory.
        MissingError: nothing is at the path, or links lead nowhere; a layer is nowhere.
        ArchiveError: it is no ELF file.
        IntegrityError: a layer is damaged.
    """
    layers = image.manifest.layers
    tree = merge(row.inventory for row in take_inventories(image.context, layers, image.config.diff_ids, None))
    found = tree.resolve(_path(asked))
    if found is None:
        raise MissingError(
            f"{asked.path} of {asked.reference}",
            "is not in the image, or a link on the way leads nowhere",
            hint=f"`imgbuild inventory {asked.reference} -o FOLDER` lists what is",
        )
    real, node = found
    if node.type != "file" or not 0 <= node.layer < len(layers):
        raise UsageError(f"{asked.path} of {asked.reference}", f"is a {node.type}", expected="a file")
    facts = _from_layer(asked, image, node)
    machine = None
    with contextlib.suppress(KeyError):
        machine = machine_of(f"{image.config.os}/{image.config.architecture}")
    problems = list(facts.problems())
    if machine is not None and facts.elf is not None and facts.elf.machine != machine:
        problems.append(f"is for {facts.elf.machine}, and its image for {machine}")
    layer = layers[node.layer].digest
    return Library(asked=asked, facts=facts, problems=tuple(problems), real=show(real), layer=layer)


def _unicode(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _path(asked: Asked) -> bytes:
    assert asked.path is not None  # noqa: S101 - the other kind has another function
    try:
        return image_path(asked.path, where="PATH")
    except StepError as error:
        hint = "give it as it is in the image, from / on"
        raise UsageError(error.subject, error.problem, where=error.where, hint=hint) from error


def _open(path: Path) -> io.FileIO:
    """The file behind all links; a `UsageError` for what is none."""
    try:
        return open_regular(Path(os.path.realpath(path)))
    except FileNotFoundError as error:
        hint = "give a file, FILE.whl:MEMBER, or IMAGE:/PATH"
        raise UsageError(f"file {path}", "is not there", hint=hint) from error
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"file {path}", f"cannot be read: {why}") from error


def _bounded(subject: str, size: int) -> int:
    if size > _LIBRARY_BYTES:
        raise ArchiveError(
            subject, "is too large for a library", expected=f"at most {_LIBRARY_BYTES} bytes", actual=f"{size} bytes"
        )
    return size


def _feed(subject: str, scan: NcclScan, pieces: Iterable[bytes], task: Task, copy: BinaryIO | None) -> None:
    """Give all pieces to a scan, and to a copy; an `ArchiveError` where they do not end."""
    count = 0
    for piece in pieces:
        count = _bounded(subject, count + len(piece))
        scan.update(piece)
        if copy is not None:
            copy.write(piece)
        task.advance(len(piece))


def _from_wheel(context: Context, asked: Asked, file: io.FileIO) -> Library:
    assert asked.file is not None  # noqa: S101 - it is open
    subject = f"wheel {asked.file.name}"
    member = asked.member if asked.member is not None else _only_member(file, subject)
    with (
        open_member(file, member, subject=subject) as (stream, size),
        context.progress.task(f"unpacking {member}", _bounded(member, size)) as task,
        contextlib.closing(Spool(context.cache.folder("spool"))) as spool,
        spool.fresh() as copy,
    ):
        scan = NcclScan(f"{member} of {asked.file.name}")
        _feed(member, scan, chunks(stream), task, copy)
        facts = scan.finish(copy)
    return Library(asked=asked, facts=facts, problems=facts.problems(), wheel=_unicode(asked.file.name), member=member)


def _only_member(file: io.FileIO, subject: str) -> str:
    with open_archive(file, subject=subject) as archive:
        found = [name for name in archive.namelist() if PurePosixPath(name).name == LIBRARY]
    if not found:
        raise ArchiveError(subject, f"has no {LIBRARY}", hint="name the library in it: FILE.whl:MEMBER")
    if len(found) > 1:
        hint = f"name one of them: FILE.whl:{found[0]}"
        raise UsageError(subject, f"has {len(found)} files {LIBRARY}", actual=", ".join(found[:5]), hint=hint)
    return found[0]


def _from_layer(asked: Asked, image: OpenedImage, node: Node) -> NcclFacts:
    """The facts of a node's file, which is told by its digest from others of the same path in its layer."""
    subject = f"{asked.path} of {asked.reference}"
    context, layer = image.context, image.manifest.layers[node.layer]
    actual = None
    with (
        contextlib.closing(contents(context, layer, node)) as candidates,
        contextlib.closing(Spool(context.cache.folder("spool"))) as spool,
    ):
        for pieces in candidates:
            scan = NcclScan(subject)
            with (
                spool.fresh() as copy,
                context.progress.task(f"reading {subject}", _bounded(subject, node.size)) as task,
            ):
                _feed(subject, scan, pieces, task, copy)
                actual = scan.digest
                if actual.encoded == node.sha256:
                    return scan.finish(copy)
    if actual is None:
        raise MissingError(subject, "is not in the layer that its inventory names", where=f"layer {layer.digest}")
    raise DigestMismatchError(subject, "differs from the inventory", expected=f"sha256:{node.sha256}", actual=actual)
