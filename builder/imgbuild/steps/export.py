"""Outputs of a build that are no registry: an image layout, and archives of two kinds.

Each is whole or has no name: blobs come first and are checked while they are copied, the tag of a layout comes last,
and an archive is a pending file until its last byte is on the disk.
"""

from __future__ import annotations

import hashlib
import itertools
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from imgbuild.adapters.blobs import open_regular
from imgbuild.adapters.durable import PendingFile, storage_errors
from imgbuild.adapters.store import Store
from imgbuild.content.archive import archive, archive_size, member_names
from imgbuild.digest import Digest, chunks
from imgbuild.errors import DigestMismatchError, InputError, InternalError, LayoutError, StorageError, UsageError
from imgbuild.ledger import Ledger
from imgbuild.model.reference import Reference, check_tag
from imgbuild.progress import SILENT
from imgbuild.steps.export_archive import Advancing, Image

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from imgbuild.content.archive import Entry
    from imgbuild.model.oci import Descriptor
    from imgbuild.progress import Progress, Task

OutputKind = Literal["oci", "oci-archive", "docker-archive"]
_KINDS: tuple[OutputKind, ...] = get_args(OutputKind)
_FORMS = "oci:DIR[:TAG], oci-archive:FILE[:TAG] or docker-archive:FILE[:HOST/REPOSITORY:TAG]"
_IMAGE_FILES = {b"oci-layout", b"manifest.json"}
_MEMBERS = 20_000
"""members of an archive that are looked at; nothing of them is read."""
_ELSEWHERE = "choose another place with --output"
_ROOM = "free some space there, or choose a place on another disk with --output"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where an image shall go: a folder (`oci`) or a file, and its names there: tags, or for Docker whole names."""

    kind: OutputKind
    path: Path
    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.kind}:{self.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was written. `digest` is that of a file; a layout has none.

    Args:
        output: where.
        size: bytes of the file, or of all blobs of the image in a layout.
        copied: bytes that were written for it; a layout may have had the rest.
        digest: of the file.
    """

    output: Target
    size: int
    copied: int
    digest: Digest | None


def docker_names(image: str, tags: Iterable[str]) -> tuple[str, ...]:
    """The names that an image has in a Docker where none are given: `localhost/IMAGE:TAG`."""
    return tuple(f"localhost/{image}:{tag}" for tag in tags)


def parse_outputs(texts: Iterable[str], *, image: str, tags: tuple[str, ...]) -> tuple[Target, ...]:
    """Outputs from the command line; the same place named twice gets both names.

    Args:
        texts: `KIND:PATH[:NAME]`; a path ends at its first colon, as for other tools.
        image: name of the image.
        tags: of the definition; the names where none is given.

    Raises:
        UsageError: another kind, no path or a wrong name, `-`, or a place where something else is: only an empty folder
            can become a layout, and only a layout or a tar archive be replaced by one. Nothing is written here.
    """
    found: dict[tuple[OutputKind, Path], tuple[str, ...]] = {}
    for text in texts:
        output = _parse(text, image, tags)
        key = output.kind, output.path
        found[key] = tuple(dict.fromkeys((*found.get(key, ()), *output.names)))
    paths = [path for _, path in found]
    twice = next((path for path in paths if paths.count(path) > 1), None)
    if twice is not None:
        raise UsageError(f"--output {twice}", "is asked for in two forms", hint=_ELSEWHERE)
    return tuple(Target(kind=kind, path=path, names=names) for (kind, path), names in found.items())


def _parse(text: str, image: str, tags: tuple[str, ...]) -> Target:
    subject = f"--output {text[:300]}"
    word, _, rest = text.partition(":")
    place, colon, name = rest.partition(":")
    kind = next((kind for kind in _KINDS if kind == word), None)
    if kind is None or not place:
        raise UsageError(subject, "is not a form of output", expected=_FORMS)
    if place == "-":
        raise UsageError(subject, "is standard output, which has the result", expected="the name of a file")
    names = docker_names(image, tags) if kind == "docker-archive" else tags
    if colon:
        names = (_checked(name, kind, subject),)
    path = Path(place).absolute()
    _check_place(path, kind, subject)
    return Target(kind=kind, path=path, names=names)


def _checked(name: str, kind: OutputKind, subject: str) -> str:
    try:
        if kind != "docker-archive":
            return check_tag(name, where="--output")
        reference = Reference.parse(name, where="--output")
    except InputError as error:
        raise UsageError(subject, f"has a wrong name: {error.subject} {error.problem}", expected=_FORMS) from error
    if reference.tag is None or reference.digest is not None:
        raise UsageError(subject, "has a name without a tag, or with a digest", expected="HOST/REPOSITORY:TAG")
    return str(reference)


def _check_place(path: Path, kind: OutputKind, subject: str) -> None:
    """Refuse what is there and is something else; a link to a folder may stand for it, a link to a file may not."""
    try:
        found = (path.stat if kind == "oci" else path.lstat)()
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise UsageError(subject, f"cannot be looked at: {error.strerror}", hint=_ELSEWHERE) from error
    problem = _foreign_folder(path, found.st_mode) if kind == "oci" else _foreign_file(path, found)
    if problem is not None:
        raise UsageError(subject, f"is there and {problem}", hint=_ELSEWHERE)


def _foreign_folder(path: Path, mode: int) -> str | None:
    if not stat.S_ISDIR(mode):
        return "is no folder"
    return "is neither empty nor an OCI image layout" if Store(path, ledger=Ledger()).is_foreign() else None


def _foreign_file(path: Path, found: os.stat_result) -> str | None:
    if not stat.S_ISREG(found.st_mode):
        return "is no regular file"
    if not found.st_size:
        return None
    try:
        with open_regular(path) as stream:
            names = set(itertools.islice(member_names(stream), _MEMBERS))
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None if names & _IMAGE_FILES else "is no archive of an image"


def export(image: Image, outputs: Iterable[Target], progress: Progress) -> tuple[Exported, ...]:
    """Write a verified image to places, layouts first: the other ones then take from there what is not in the store.

    Raises:
        StorageError: there is too little space (nothing is written then), or writing failed.
        IntegrityError: a blob is not what its digest says, or a layout breaks the specification.
        AvailabilityError: a blob of the base is nowhere.

    Whatever ends it, no output that is not whole has its name; those before it are there, and stay.
    """
    ordered = sorted(outputs, key=lambda output: _KINDS.index(output.kind))
    _check_space(image, ordered)
    return tuple(_export(image, output, progress) for output in ordered)


def _export(image: Image, output: Target, progress: Progress) -> Exported:
    try:
        return _layout(image, output, progress) if output.kind == "oci" else _file(image, output, progress)
    except StorageError as error:
        if Path(error.subject).is_relative_to(output.path.parent):
            error.hint = _ELSEWHERE
        raise


def _check_space(image: Image, outputs: Iterable[Target]) -> None:
    """A `StorageError` where a file system has less than all outputs on it need together (cases P36, P77)."""
    needs: dict[int, tuple[Path, int]] = {}
    for output in outputs:
        device, near = _device(output.path)
        needs[device] = near, needs.get(device, (near, 0))[1] + _need(image, output)
    for near, need in needs.values():
        with storage_errors(near, "looked at"):
            free = shutil.disk_usage(near).free
        if need > free:
            raise StorageError(
                str(near), "has too little space", expected=f"{need} bytes", actual=f"{free} bytes free", hint=_ROOM
            )


def _device(path: Path) -> tuple[int, Path]:
    """The file system that a path will be on, and the nearest folder that is there."""
    near = path.parent if path.is_file() else path
    while not near.is_dir() and near != near.parent:
        near = near.parent
    with storage_errors(near, "looked at"):
        return near.stat().st_dev, near


def _need(image: Image, output: Target) -> int:
    if output.kind != "oci":
        return archive_size(_entries(image, output, SILENT.task("")), epoch=image.epoch)
    target = Store(output.path, ledger=Ledger())
    return sum(blob.size for blob in image.blobs if not target.has(blob.digest, blob.size))


def _layout(image: Image, output: Target, progress: Progress) -> Exported:
    # What is there may be of another tool, and all that somebody has: it is counted nowhere, and nothing is removed.
    target = Store(output.path, ledger=Ledger())
    target.repair = False
    copied = 0
    try:
        target.create()
        # Read before anything is copied: an index.json that cannot be kept is known now, not an hour later.
        target.tags()
    except LayoutError as error:
        error.hint = _ELSEWHERE
        raise
    with progress.task(f"writing {output}", image.size) as task:
        for blob in image.blobs:
            if _is_whole(target, blob):
                task.advance(blob.size)
                continue
            with image.open(blob) as stream:
                target.put(chunks(Advancing(stream, task)), expected=blob.digest, subject=f"blob {blob.digest}")
            copied += blob.size
    for tag in output.names:
        target.tag(tag, image.descriptor)
    image.layouts.append(target)
    return Exported(output=output, size=image.size, copied=copied, digest=None)


def _is_whole(target: Store, blob: Descriptor) -> bool:
    """Whether a layout has a blob, by its bytes; what is there and is damaged is written anew."""
    if not target.has(blob.digest, blob.size):
        return False
    try:
        target.verify(blob.digest, blob.size, subject=f"blob {blob.digest}")
    except DigestMismatchError:
        return False
    return True


def _entries(image: Image, output: Target, task: Task) -> list[Entry]:
    if output.kind == "oci-archive":
        return image.oci_entries(task, output.names)
    if output.kind == "docker-archive":
        return image.docker_entries(task, output.names)
    raise InternalError(str(output), "is no archive")


def _file(image: Image, output: Target, progress: Progress) -> Exported:
    hasher, size = hashlib.sha256(), 0
    with progress.task(f"writing {output}", image.size) as task, PendingFile(output.path.parent) as pending:
        for piece in archive(_entries(image, output, task), epoch=image.epoch):
            hasher.update(piece)
            size += len(piece)
            pending.write(piece)
        pending.commit(output.path)
    return Exported(output=output, size=size, copied=size, digest=Digest("sha256", hasher.hexdigest()))
