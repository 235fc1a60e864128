"""From a verified image to a name in a registry: blobs, manifest by digest, read back, and the tags last.

Nothing here has a name before the last step, so whatever ends it early leaves nothing that anybody would pull. Each
part of it can be made again: what is there is not sent again.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING

from imgbuild.adapters.registry.blobs import has_blob, mount, read_blob
from imgbuild.adapters.registry.uploads import Upload
from imgbuild.adapters.registry.uploadstate import UploadMemory
from imgbuild.config import DEFAULT_LIMITS
from imgbuild.digest import Digest
from imgbuild.errors import DigestMismatchError, MissingBlobsError, MissingError, ProtocolError, RegistryError
from imgbuild.model.identity import Finding, Report, compare
from imgbuild.steps.crew import Crew, parallel

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Executor, Future

    from imgbuild.adapters.registry.repository import Repository
    from imgbuild.digest import Readable
    from imgbuild.model.oci import Descriptor, Manifest
    from imgbuild.progress import Task
    from imgbuild.steps.context import Context
    from imgbuild.steps.places import Places

_ASKED = 16
"""questions at a time, which are small."""
_ATTEMPTS = 3
"""times that blobs are sent for one manifest, where the registry loses some meanwhile (case C54)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """A repository, and the tags that shall name the image there."""

    repository: Repository
    tags: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """What was done with the blobs of one image: numbers of blobs, and bytes of blobs that went out, however often."""

    present: int
    mounted: int
    sent: int
    sent_bytes: int
    moved: tuple[tuple[str, Digest | None], ...] = ()
    """Tags that were written, each with what it named before; None where it is new."""


class _Stored:
    """A blob as a source of an upload: out of the first place that has it."""

    def __init__(self, places: Places, blob: Descriptor) -> None:
        self._places = places
        self._blob = blob

    @contextlib.contextmanager
    def open(self, offset: int) -> Iterator[Readable]:
        with self._places.open(self._blob, subject=f"blob {self._blob.digest}", offset=offset) as stream:
            yield stream if offset else _Checked(stream, self._blob)


class _Checked:
    """A blob's bytes from its first on, with its digest checked before the last of them is given.

    A registry has to check it as well; this way it is known who is wrong, and one that does not check is not fooled.
    """

    def __init__(self, stream: Readable, blob: Descriptor) -> None:
        self._stream = stream
        self._blob = blob
        self._hasher = blob.digest.hasher()
        self._left = blob.size

    def read(self, size: int, /) -> bytes:
        data = self._stream.read(min(size, self._left)) if self._left else b""
        self._hasher.update(data)
        self._left -= len(data)
        if not self._left and data and self._hasher.hexdigest() != self._blob.digest.encoded:
            raise DigestMismatchError(
                f"blob {self._blob.digest}",
                "is damaged where it comes from",
                expected=self._blob.digest,
                actual=f"{self._blob.digest.algorithm}:{self._hasher.hexdigest()}",
            )
        return data


class _Blobs:
    """The blobs of one image on their way into one repository."""

    def __init__(
        self,
        context: Context,
        target: Repository,
        blobs: tuple[Descriptor, ...],
        mountable: frozenset[Digest],
        askers: Crew,
    ) -> None:
        self._mountable = mountable
        self._askers = askers
        self._context = context
        self._target = target
        self._blobs = sorted({blob.digest: blob for blob in blobs}.values(), key=lambda blob: (-blob.size, blob.digest))
        self._memory = UploadMemory(context.cache.folder("uploads"))
        self._lock = threading.Lock()
        self._done: dict[Digest, str] = {}
        self._sent = 0
        self._siblings = self._find_siblings()
        self._fresh = False

    def send(self) -> None:
        """Bring all blobs there that are not, several at a time, the largest first."""
        total = sum(blob.size for blob in self._blobs)
        with self._context.progress.task(f"pushing to {self._target}", total) as task:
            # The first answer says what is likely for the rest: a new repository is asked to mount, not what it has.
            self._fresh = not has_blob(self._target, self._blobs[0])
            self._bring(task)

    def _bring(self, task: Task) -> None:
        # What is to be sent goes on its way while the rest is still asked for: a base of many layers is many questions.
        # Bytes may so be sent before another blob is found to be there with another size; nothing has a name by then.
        # What is on its way when another fails would go on for as long as it takes, and why is shown only after that.
        with Crew(self._context, parallel(self._target), together=True) as senders:
            watched = senders.watched(task)
            asked: dict[Future[str | None], Descriptor] = {}
            for blob in self._blobs:
                asked[self._askers.submit(self._settle, blob, task)] = blob
            left: set[Future[str | None]] = set(asked)
            while left:
                # Whatever fails first ends it, a question or what is on its way.
                done, left = wait(left, return_when=FIRST_COMPLETED)
                for future in done:
                    session = future.result()
                    if future in asked and session is not None:
                        left.add(senders.submit(self._upload, asked[future], session, watched))

    @property
    def done(self) -> Pushed:
        """What was done so far."""
        counts = Counter(self._done.values())
        return Pushed(present=counts["present"], mounted=counts["mounted"], sent=counts["sent"], sent_bytes=self._sent)

    def _settle(self, blob: Descriptor, task: Task) -> str | None:
        """Have a blob there without sending it; else the session that was opened for it, or an empty text."""
        siblings = self._siblings if blob.digest in self._mountable else ()
        if not (self._fresh and siblings) and has_blob(self._target, blob):
            self._count(blob, task, "present")
            return None
        session: str | None = ""
        for name in siblings:
            session = mount(self._target, blob, name)
            if session is None:
                self._count(blob, task, "mounted")
                return None
        if self._fresh and siblings and has_blob(self._target, blob):
            self._count(blob, task, "present")
            return None
        return session

    def _upload(self, blob: Descriptor, session: str, task: Task) -> str | None:
        source = _Stored(self._context.places, blob)
        with self._context.progress.part(f"blob {blob.digest.encoded[:12]}", blob.size) as part:

            def advance(count: int) -> None:
                task.advance(count)
                part.advance(count)

            upload = Upload(self._target, blob, source, memory=self._memory, advance=advance)
            try:
                upload.run(session or None)
            finally:
                with self._lock:
                    self._sent += upload.sent
        with self._lock:
            self._done[blob.digest] = "sent"
        return None

    def _count(self, blob: Descriptor, task: Task, what: str) -> None:
        with self._lock:
            # Where it is looked for again, it is there because we brought it.
            self._done.setdefault(blob.digest, what)
        task.advance(blob.size)

    def _find_siblings(self) -> tuple[str, ...]:
        """Repositories of the same registry that may have the base: only from those can anything be mounted."""
        registry = self._target.registry
        if not registry.profile.mounts:
            return ()
        return tuple(
            place.name
            for place in self._context.places.repositories
            if place.registry is registry and place.name != self._target.name
        )


def push(
    context: Context, target: Repository, manifest: Manifest, raw: bytes, *, base: tuple[Descriptor, ...] | None = None
) -> tuple[Pushed, list[Finding]]:
    """Push an image by digest, without any tag, and read it back.

    Args:
        context: the surroundings, `based_on` the image's base: what is not in the store comes from there.
        target: where to.
        manifest: of the image.
        raw: its bytes.
        base: the layers that its base has, too: those are mounted, where the base is in the same registry; None takes
            those that the store lacks.

    Returns:
        What was sent, and what was found when it was read back: manifest and config byte by byte, the layers by what
        the registry says of them. That the registry keeps other bytes under a layer's digest is not excluded here.

    Raises:
        RegistryError, MissingError: as `Registry.call`; nothing has a name.
        IntegrityError: the registry has something else under a digest.
    """
    _refuse_large(target, manifest)
    if base is None:
        base = tuple(layer for layer in manifest.layers if not context.places.is_local(layer))
    with Crew(context, _ASKED) as askers:
        mountable = frozenset(layer.digest for layer in base)
        blobs = _Blobs(context, target, (*manifest.layers, manifest.config), mountable, askers)
        for attempt in range(1, _ATTEMPTS + 1):
            blobs.send()
            try:
                target.put_manifest(raw, manifest.family.manifest)
                findings = read_back(target, manifest, askers)
            except (MissingBlobsError, MissingError) as error:
                if attempt == _ATTEMPTS:
                    raise
                target.registry.note(f"{error}; sending what is missing")
                continue
            if attempt == _ATTEMPTS or Report(findings=tuple(findings)).ok:
                break
            target.registry.note(f"{target} has lost some of what it took; sending what is missing")
        return blobs.done, findings


def _refuse_large(target: Repository, manifest: Manifest) -> None:
    """Refuse layers that a registry is known not to take, before hours are spent on them (case P79)."""
    limit = target.registry.profile.max_blob_bytes
    for layer in manifest.layers:
        if limit is not None and layer.size > limit:
            raise RegistryError(
                f"layer {layer.digest}",
                f"is larger than {target.registry.host} takes",
                expected=f"at most {limit} bytes",
                actual=f"{layer.size} bytes",
                hint="make it of several layers; if the registry takes more, set another profile in registries.toml",
            )


def read_back(target: Repository, manifest: Manifest, askers: Executor) -> list[Finding]:
    """What a repository has of an image that was pushed there, as findings; a `MissingError` if it has no manifest.

    The blobs are asked for by `askers`.
    """
    found = target.manifest(manifest.digest)
    blobs = (*manifest.layers, manifest.config)
    there = list(askers.map(lambda blob: has_blob(target, blob), blobs))
    if there[-1]:
        read_blob(target, manifest.config, DEFAULT_LIMITS.config_bytes)
    return [
        compare("pushed.manifest", f"{target}@{manifest.digest}", manifest.digest, Digest.of(found.raw)),
        compare(
            "pushed.blobs",
            f"blobs of {target}",
            f"{len(blobs)} blobs of their sizes, their bytes not read",
            f"{sum(there)} blobs of their sizes, their bytes not read",
        ),
    ]


def move_tags(
    target: Repository, manifest: Manifest, raw: bytes, tags: tuple[str, ...]
) -> tuple[tuple[str, Digest | None], ...]:
    """Point tags at a manifest that is there, and look whether they do.

    Returns:
        Those that did not before, each with what it named a moment before; None where there was no such tag.

    Raises:
        TagTakenError: a tag that may not move names another digest (case C55).
        ProtocolError: the registry said yes, and the tag names something else.
        RegistryError: as `Registry.call`. Tags before the one that failed have moved.
    """
    moved = []
    for tag in tags:
        before = _named(target, tag)
        if before == manifest.digest:
            continue
        target.put_manifest(raw, manifest.family.manifest, tag=tag)
        there = _named(target, tag)
        if there != manifest.digest:
            raise ProtocolError(
                f"tag {target}:{tag}",
                "was written and names something else",
                expected=manifest.digest,
                actual=there or "nothing",
                hint="does somebody else move it? the image is there under its digest",
            )
        moved.append((tag, before))
    return tuple(moved)


def _named(target: Repository, tag: str) -> Digest | None:
    """What a tag names, by the bytes that it gives: a header may be stale, or wrong (case C43)."""
    try:
        return target.manifest(tag).descriptor.digest
    except MissingError:
        return None
