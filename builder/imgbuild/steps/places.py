"""Where the bytes of an image come from: the store, what was fetched before, and the repositories that have its base.

Everything is asked for by digest, so it does not matter who answers. Layers of a base are streams: they are never
written to disk here.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, TypeVar

from imgbuild.adapters.manifests import read_config, read_manifest
from imgbuild.errors import (
    AvailabilityError,
    BudgetError,
    DigestMismatchError,
    ImgbuildError,
    IntegrityError,
    LayoutError,
    MissingError,
    NetworkError,
    OfflineMissError,
    ServerError,
    ThrottledError,
)
from imgbuild.model.reference import Reference

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from imgbuild.adapters.cache import Cache
    from imgbuild.adapters.registry.blobs import BlobStream
    from imgbuild.adapters.registry.repository import Repository
    from imgbuild.adapters.registry.session import Registries
    from imgbuild.adapters.store import Store
    from imgbuild.digest import Readable
    from imgbuild.model.oci import Descriptor, ImageConfig, Manifest

_T = TypeVar("_T")
_PASSED = (AvailabilityError, IntegrityError)
"""What one place says that another one may know better: it lacks it, is down, forbids it, or has something else."""
_DOWN = (NetworkError, ServerError, ThrottledError)
"""After these, all tries made, a mirror is not asked again by the same command."""
_HINT = "for `mini`, run `make base`; for another base, copy it into the store as an OCI layout, or name its registry"


class Places:
    """The places of one image."""

    def __init__(
        self,
        store: Store,
        cache: Cache,
        *,
        name: str = "",
        repositories: Callable[[], tuple[Repository, ...]] = tuple,
        offline: bool = False,
        local: bool = True,
    ) -> None:
        """Nothing is asked yet.

        Args:
            store: asked first.
            cache: has manifests and configs that were fetched before.
            name: what the base is called, for errors.
            repositories: gives those that may have the base, best first; called when one is needed.
            offline: whether asking them is forbidden.
            local: whether what is in the store or in the cache is as good; not where a repository is what is looked at.
        """
        self.store = store
        self.cache = cache
        self.offline = offline
        self._local = local
        self._name = name
        self._find = functools.cache(repositories)
        self._down: set[Repository] = set()

    @property
    def repositories(self) -> tuple[Repository, ...]:
        """The repositories that may have the base; none where there are none, or asking is forbidden."""
        return () if self.offline else self._find()

    @property
    def could_ask(self) -> bool:
        """Whether there is a repository to ask, or there would be if asking were not forbidden."""
        try:
            return bool(self._find())
        except OfflineMissError:
            return True

    def is_local(self, blob: Descriptor) -> bool:
        """Whether the store has a blob, with its size."""
        return self._local and self.store.has(blob.digest, blob.size)

    def is_stored(self, blob: Descriptor) -> bool:
        """Whether the store has something under a blob's digest, of whatever size: then it is taken from there."""
        return self._local and self.store.has(blob.digest)

    def manifest(self, descriptor: Descriptor) -> Manifest:
        """Read and check an image manifest."""
        return read_manifest(descriptor, self._document)

    def config(self, descriptor: Descriptor) -> ImageConfig:
        """Read and check an image config."""
        return read_config(descriptor, self._document)

    @contextlib.contextmanager
    def open(self, blob: Descriptor, *, subject: str, offset: int = 0) -> Iterator[Readable]:
        """The bytes of a blob from an offset on, as they are in the first place that has it. Nothing is checked.

        Raises:
            MissingError, OfflineMissError: it is nowhere.
            RegistryError: what the last repository says.
        """
        if not self.offline and not self.is_stored(blob) and self.repositories:
            with self._stream(blob, offset) as stream:
                yield stream
            return
        if self.offline and not self.is_stored(blob) and self.could_ask:
            raise OfflineMissError(subject, "is not in the store", expected=blob.digest, where=str(self.store.root))
        with self.store.open(blob.digest, subject=subject, offset=offset) as stream:
            yield stream

    def where(self, blob: Descriptor) -> str | None:
        """The first place that says it has a blob of this size; None if there is none. Its bytes are not looked at."""
        from imgbuild.adapters.registry.blobs import has_blob  # noqa: PLC0415 - urllib3 takes 60 ms

        if self.is_local(blob):
            return str(self.store.root)
        if not self.repositories:
            return None

        def ask(repository: Repository) -> str:
            if has_blob(repository, blob):
                return str(repository)
            raise MissingError(f"blob {blob.digest} of {repository}", "is not in the registry")

        try:
            return self.first(ask)
        except MissingError:
            return None

    def _document(self, descriptor: Descriptor, subject: str, limit: int) -> bytes:
        if descriptor.size > limit:
            raise LayoutError(
                subject, "is too long", expected=f"at most {limit} bytes", actual=f"{descriptor.size} bytes"
            )
        if self.is_stored(descriptor):
            return self.store.read(descriptor.digest, subject=subject, max_bytes=limit, size=descriptor.size)
        raw = self.cache.get(descriptor.digest, max_bytes=limit) if self._local else None
        if raw is None:
            raw = self._fetch(descriptor, subject, limit)
            self.cache.put([raw], expected=descriptor.digest, subject=subject)
        if len(raw) != descriptor.size:
            raise DigestMismatchError(
                subject, "has another size", expected=f"{descriptor.size} bytes", actual=f"{len(raw)} bytes"
            )
        return raw

    def _fetch(self, descriptor: Descriptor, subject: str, limit: int) -> bytes:
        from imgbuild.adapters.registry.blobs import read_blob  # noqa: PLC0415 - urllib3 takes 60 ms
        from imgbuild.adapters.registry.repository import MANIFEST_TYPES  # noqa: PLC0415

        if self.offline or not self.repositories:
            raise self._absent(descriptor, subject)

        def ask(repository: Repository) -> bytes:
            if descriptor.media_type in MANIFEST_TYPES:
                return repository.manifest(descriptor.digest).raw
            return read_blob(repository, descriptor, limit)

        return self.first(ask)

    def first(self, ask: Callable[[Repository], _T]) -> _T:
        """What the first place answers that can; of the last one, which is no mirror, also what it refuses."""
        left = self.candidates()
        while True:
            try:
                return ask(left[0])
            except _PASSED as error:
                self.pass_over(left.pop(0), error, left)

    def candidates(self) -> list[Repository]:
        """The repositories to ask in order: mirrors that are not known to be down, and the last one."""
        found = self.repositories
        return [one for one in found[:-1] if one not in self._down] + list(found[-1:])

    def pass_over(self, repository: Repository, error: ImgbuildError, left: list[Repository]) -> None:
        """Say that the next place is asked; raise the error where there is none, or where that would not help."""
        if not left or isinstance(error, BudgetError):
            raise error
        if isinstance(error, _DOWN):
            self._down.add(repository)
        repository.registry.note(f"{error}; asking {left[0]}")

    @contextlib.contextmanager
    def _stream(self, blob: Descriptor, offset: int) -> Iterator[Readable]:
        with contextlib.closing(_Relay(self, blob, offset)) as stream:
            stream.start()
            yield stream

    def _absent(self, descriptor: Descriptor, subject: str) -> MissingError | OfflineMissError:
        kind = OfflineMissError if self.offline and self.could_ask else MissingError
        return kind(
            f"base {self._name}" if self._name else subject,
            "is not in the store",
            expected=descriptor.digest,
            where=str(self.store.root),
            hint=_HINT,
        )


class _Relay:
    """A blob's bytes from the first place that has it; where one fails on the way, the next one goes on there."""

    def __init__(self, places: Places, blob: Descriptor, offset: int) -> None:
        self._places = places
        self._blob = blob
        self._offset = offset
        self._left = places.candidates()
        self._stream: BlobStream | None = None

    def start(self) -> None:
        """Raise now what is known before the first byte."""
        self._try(lambda stream: stream.start())

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; empty only at the end."""
        data = self._try(lambda stream: stream.read(size))
        self._offset += len(data)
        return data

    def close(self) -> None:
        """Drop the connection."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _try(self, use: Callable[[BlobStream], _T]) -> _T:
        from imgbuild.adapters.registry.blobs import BlobStream  # noqa: PLC0415 - urllib3 takes 60 ms

        while True:
            if self._stream is None:
                self._stream = BlobStream(self._left[0], self._blob, offset=self._offset)
            try:
                return use(self._stream)
            except _PASSED as error:
                self.close()
                self._places.pass_over(self._left.pop(0), error, self._left)


def locations(registries: Registries, reference: str) -> tuple[Repository, ...]:
    """The repositories that may have what a reference names: its mirrors in order, then itself.

    `localhost/…` without a port is a local name, as for other tools: it stands for no registry, only for its mirrors.
    """
    from imgbuild.adapters.registry.repository import Repository  # noqa: PLC0415 - urllib3 takes 60 ms

    own = Reference.parse(reference, where="base.reference")
    names = [Reference.parse(name, where="registries.toml") for name in registries.settings.mirrors_of(own.name)]
    if own.host != "localhost":
        names.append(own)
    return tuple(Repository(registries.of(name.host), name.repository) for name in names)
