"""Files that the operator gives by `--source NAME=FILE`: hashed while they are copied into the cache, by digest.

Only their bytes matter: where there is a digest in the definition, whoever has the bytes may give them.
"""

from __future__ import annotations

import contextlib
import errno
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from imgbuild.adapters.blobs import bounded, open_regular
from imgbuild.adapters.durable import storage_errors
from imgbuild.config import DEFAULT_LIMITS
from imgbuild.digest import digest_of
from imgbuild.errors import ArchiveError, DigestMismatchError, UsageError
from imgbuild.model.image import SingleSource
from imgbuild.steps.singlefile import is_whole
from imgbuild.text import printable

if TYPE_CHECKING:
    import io
    from collections.abc import Iterator

    from imgbuild.adapters.durable import PendingFile
    from imgbuild.digest import Digest
    from imgbuild.model.image import ImageDefinition
    from imgbuild.progress import Task
    from imgbuild.steps.context import Context


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """One file and the source that it is to be."""

    name: str
    source: SingleSource
    path: Path


def parse_given(definition: ImageDefinition, texts: tuple[str, ...]) -> tuple[Given, ...]:
    """What `--source` names; no file is looked at.

    Raises:
        UsageError: one is not NAME=FILE, names a source twice, or one that is not there or of another kind.
    """
    found: dict[str, Given] = {}
    for text in texts:
        name, _, path = text.partition("=")
        option = f"--source {printable(text, 200)}"
        if not name or not path:
            raise UsageError(option, "is not NAME=FILE")
        if name in found:
            raise UsageError(option, "names a source that was given already")
        source = definition.sources.get(name)
        if not isinstance(source, SingleSource):
            known = sorted(name for name, one in definition.sources.items() if isinstance(one, SingleSource))
            raise UsageError(
                option,
                "names no source that is a file" if source is None else "names a source that is not given as a file",
                expected=", ".join(known) or "none: the definition has no source of kind file, url or image-member",
                actual=None if source is None else f"one of kind {source.__struct_config__.tag}",
            )
        found[name] = Given(name=name, source=source, path=Path(path))
    return tuple(found.values())


def take_given(context: Context, given: tuple[Given, ...]) -> None:
    """Put files into the cache under the digests that the definition demands; no second copy of one that is there.

    The copy is what was hashed, also of a file that somebody writes to meanwhile. A damaged copy is replaced.

    Raises:
        UsageError: there is no such file, or it is a link, a folder, a pipe or a device.
        DigestMismatchError: it has another digest or size; nothing of it is kept.
        ArchiveError: it is longer than `source_bytes`.
        StorageError: it cannot be read to its end, or the cache not be written.
    """
    for one in given:
        option = f"--source {one.name}={printable(str(one.path), 300)}"
        with open_given(option, one.path) as file, context.progress.task(f"reading {one.path.name}") as task:
            _take(context, one, file, task)


def take_any(context: Context, name: str, path: Path) -> tuple[Digest, int]:
    """Put a file that `--to` names into the cache under the digest that it has; returns that and its size.

    It raises as `take_given`.
    """
    cache = context.cache
    with (
        open_given(f"--to {printable(str(path), 300)}", path) as file,
        context.progress.task(f"reading {path.name}") as task,
        cache.pending() as pending,
    ):
        digest, size = digest_of(_pieces(name, path, file, pending, task))
        cache.commit(pending, digest, size)
    return digest, size


def _take(context: Context, one: Given, file: io.FileIO, task: Task) -> None:
    cache, wanted = context.cache, one.source
    with contextlib.ExitStack() as stack:
        pending = None
        if not is_whole(context, one.name, wanted):
            pending = stack.enter_context(cache.pending())
        digest, size = digest_of(_pieces(one.name, one.path, file, pending, task))
        if digest != wanted.digest or wanted.size not in {None, size}:
            raise DigestMismatchError(
                f"source {one.name}",
                "is another file than the definition demands",
                expected=f"{wanted.digest}" if wanted.size is None else f"{wanted.digest}, {wanted.size} bytes",
                actual=f"{digest}, {size} bytes",
                where=f"--source {one.name}={one.path}",
                hint="give the file that is meant; if it is this one, correct digest and size in the definition",
            )
        if pending is not None:
            cache.commit(pending, digest, size)


def _pieces(name: str, path: Path, file: io.FileIO, pending: PendingFile | None, task: Task) -> Iterator[bytes]:
    limit = DEFAULT_LIMITS.source_bytes
    left = limit
    pieces = bounded(file, limit)
    while True:
        with storage_errors(path, "read"):
            data = next(pieces, b"")
        if not data:
            return
        left -= len(data)
        if left < 0:
            raise ArchiveError(f"source {name}", "is too long", expected=f"at most {limit} bytes (source_bytes)")
        if pending is not None:
            pending.write(data)
        task.advance(len(data))
        yield data


@contextlib.contextmanager
def open_given(option: str, path: Path) -> Iterator[io.FileIO]:
    """The file, which must be one: what a link leads to may be another file in a moment, and a pipe may never end.

    `option` is how it was named. Raises a `UsageError` where it is none that can be read.
    """
    try:
        file = open_regular(path)
    except OSError as error:
        if error.errno == errno.ELOOP:
            hint = "give the file that it leads to"
            raise UsageError(option, "is a symbolic link, which is not followed", hint=hint) from error
        problem = "is not there" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"
        raise UsageError(option, problem, hint="give a regular file that this user may read") from error
    except ValueError as error:
        raise UsageError(option, "is no name of a file") from error
    with file:
        yield file
