"""Objects of one bare repository, read through `git cat-file`; every object is hashed again against its id.

Not checked: SHA-1 collisions between objects, for which `gittree.content_digest` exists.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import threading
import weakref
from typing import TYPE_CHECKING

from imgbuild.adapters.gitprocess import said, start
from imgbuild.adapters.giturl import SHA1_HEX, shown
from imgbuild.adapters.process import ERROR_BYTES, Drain, end, kill
from imgbuild.config import CHUNK_BYTES, KIB
from imgbuild.errors import (
    ArchiveError,
    DigestMismatchError,
    InternalError,
    MissingError,
    ToolError,
    UnpinnedError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from imgbuild.adapters.giturl import Source

_BATCH = 256
"""objects asked for at once: requests and answers of a batch both fit into a pipe (64 KiB), so none can block."""


class Objects:
    """Reads objects of one bare repository. Keeps idle processes until it is closed or collected."""

    def __init__(self, bare: Path, source: Source) -> None:
        self._bare = bare
        self._source = source
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._idle: list[_Pipe] = []
        self._finalizer = weakref.finalize(self, _close_all, self._idle)

    @property
    def name(self) -> str:
        """The source, for messages."""
        return self._source.name

    def close(self) -> None:
        """End the idle processes; running iterators end theirs."""
        with self._lock:
            self._closed.set()
            _close_all(self._idle)

    def chunks(self, blob: str, size: int) -> Iterator[bytes]:
        """Yield one blob of known size."""
        with self._pipe() as pipe:
            pipe.ask((blob,))
            kind, actual = pipe.header(blob)
            if kind != "blob" or actual != size:
                raise InternalError(
                    f"object {blob}", "changed", expected=f"blob of {size}", actual=f"{kind} of {actual}"
                )
            yield from pipe.content(blob, kind, size)

    def load(self, item: str, kind: str, limit: int) -> bytes:
        """One whole object, which must have this type and at most `limit` bytes."""
        with self._pipe() as pipe:
            pipe.ask((item,))
            actual, size = pipe.header(item)
            if actual != kind:
                wrong = UnpinnedError if kind == "commit" else ArchiveError
                raise wrong(f"object {item}", "has the wrong type", expected=kind, actual=actual, where=self.name)
            if size > limit:
                raise ArchiveError(
                    f"{kind} {item}", "is too big", expected=f"at most {limit} bytes", actual=size, where=self.name
                )
            return b"".join(pipe.content(item, kind, size))

    def blob_sizes(self, ids: Sequence[str]) -> dict[str, int]:
        """The sizes in bytes of blobs."""
        sizes = {}
        pipe = _Pipe(self._bare, self._source, "--batch-check")
        try:
            for start in range(0, len(ids), _BATCH):
                batch = ids[start : start + _BATCH]
                pipe.ask(batch)
                for item in batch:
                    kind, sizes[item] = pipe.header(item)
                    if kind != "blob":
                        raise ArchiveError(f"object {item}", "is listed as a file", actual=kind, where=self.name)
        finally:
            pipe.close()
        return sizes

    @contextlib.contextmanager
    def _pipe(self) -> Iterator[_Pipe]:
        """A process of its own for one object; one that was not read to its end is not used again."""
        if self._closed.is_set():
            raise InternalError("git tree", "is read after it was closed")
        with self._lock:
            pipe = self._idle.pop() if self._idle else None
        if pipe is None:
            pipe = _Pipe(self._bare, self._source, "--batch")
        try:
            yield pipe
        except BaseException:
            pipe.close()
            raise
        with self._lock:
            self._idle.append(pipe)
            if self._closed.is_set():
                _close_all(self._idle)


def _close_all(pipes: list[_Pipe]) -> None:
    while pipes:
        pipes.pop().close()


class _Pipe:
    """One `git cat-file` process; requests and answers in turn."""

    def __init__(self, bare: Path, source: Source, form: str) -> None:
        self._process = start(bare, source, ("cat-file", form), interactive=True)
        self._errors = Drain(self._process.stderr, ERROR_BYTES, keep="last")
        self._source = source
        if self._process.stdin is None or self._process.stdout is None:
            raise InternalError("git cat-file", "was started without pipes")
        self._in, self._out = self._process.stdin, self._process.stdout

    def ask(self, ids: Sequence[str]) -> None:
        """Send a batch of object ids."""
        with self._broken():
            self._in.write("".join(f"{item}\n" for item in ids).encode("ascii"))
            self._in.flush()

    def header(self, item: str) -> tuple[str, int]:
        """Type and size in bytes of the next answer, which must be about object `item`."""
        with self._broken():
            line = self._out.readline(KIB)
        words = line.decode("ascii", "replace").split()
        if words[1:] == ["missing"]:
            hint = "the cache or bundle is incomplete; remove the cached repository to fetch it again"
            raise MissingError(f"object {item}", "is not in the repository", where=self._source.name, hint=hint)
        if words[:1] != [item] or not re.fullmatch(r"[a-z]+ [0-9]{1,18}", " ".join(words[1:])):
            answer = shown(line) or said(self._errors)
            raise ToolError("git cat-file", "gave no usable answer", actual=answer, where=self._source.name)
        return words[1], int(words[2])

    def content(self, item: str, kind: str, size: int) -> Iterator[bytes]:
        """Yield the content after a header, and check that it has the id under which it was asked for."""
        hasher = hashlib.new("sha1" if len(item) == SHA1_HEX else "sha256", usedforsecurity=False)
        hasher.update(f"{kind} {size}\0".encode("ascii"))
        left = size
        while left:
            with self._broken():
                piece = self._out.read1(min(left, CHUNK_BYTES))  # type: ignore[attr-defined]
            if not piece:
                raise ToolError("git cat-file", "ended early", actual=said(self._errors), where=self._source.name)
            left -= len(piece)
            hasher.update(piece)
            yield piece
        with self._broken():
            self._out.read(1)
        if hasher.hexdigest() != item:
            raise DigestMismatchError(
                f"object {item}",
                "is damaged in the cache",
                expected=item,
                actual=hasher.hexdigest(),
                where=self._source.name,
                hint="remove the cached repository; it is fetched again",
            )

    def close(self) -> None:
        """End the process."""
        with contextlib.suppress(OSError):
            self._in.close()
        if self._process.poll() is None:
            kill(self._process)
        with contextlib.suppress(OSError):
            self._out.close()
        end(self._process, self._errors)

    @contextlib.contextmanager
    def _broken(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            raise ToolError("git cat-file", "broke off", actual=said(self._errors), where=self._source.name) from error
