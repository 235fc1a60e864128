"""What a registry is asked about the base of a lock: one question for each part, each with its own answer.

Only the place that the lock names is asked (cases P20 to P28): a mirror that still has what its origin lost would
hide the loss. A local name (`localhost/…` without port) has no place of its own; there its mirrors are asked, then the
store is looked at. Manifests are read and hashed; of configs and layers the registry's word is taken.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from imgbuild.config import DEFAULT_LIMITS
from imgbuild.errors import (
    AvailabilityError,
    BudgetError,
    DigestMismatchError,
    FactMismatchError,
    ImgbuildError,
    IntegrityError,
    LayoutError,
    MissingError,
    NetworkError,
    OfflineMissError,
    StorageError,
)
from imgbuild.model.oci import Descriptor, Family, Manifest
from imgbuild.model.ociindex import Index
from imgbuild.model.reference import Reference

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from imgbuild.adapters.registry.repository import Repository
    from imgbuild.digest import Digest
    from imgbuild.model.lockfile import Lock
    from imgbuild.steps.context import Context

_UNKNOWN: Final = -2
"""the size of a config, as long as no manifest states it."""
_LOCAL: Final = (
    "for `mini`, run `make base`; another one has to be copied into the store, or given a mirror in registries.toml"
)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """That something can be had: what that rests on, and who has it where that is another place than was named."""

    detail: str | None = None
    where: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a base. `ask` raises an AvailabilityError or IntegrityError where it cannot be had as it is pinned.

    Its `where` is who was asked, None if nobody was. BudgetError and StorageError are raised, too; they say nothing of
    the part.
    """

    what: str
    pin: Digest
    ask: Callable[[], Answer]


class BaseParts:
    """The parts of the base of one lock.

    Ask for the manifest first: it names the others where the lock has no facts, and where nobody answers for it the
    others are not asked for. They may then be asked for from several threads.

    Raises:
        InputError: the reference of the lock is none.
    """

    def __init__(self, context: Context, lock: Lock) -> None:
        self._context = context
        self._base = lock.pins.base
        self._own = Reference.parse(self._base.reference, where="pins.base.reference")
        self._local = self._own.host == "localhost"
        self._layers: list[Descriptor] | None = None
        if lock.facts is not None:
            rows = lock.facts.base_layers
            self._layers = [Descriptor(media_type=row.media_type, digest=row.digest, size=row.size) for row in rows]
        self._config = Descriptor(media_type=Family.OCI.config, digest=self._base.config, size=_UNKNOWN)
        self._silent: AvailabilityError | None = None

    @property
    def name(self) -> str:
        """The place that the lock names: `host/repository`."""
        return self._own.name

    @property
    def count(self) -> int:
        """How many parts there will be, as far as that is known."""
        return 2 + (self._base.index is not None) + len({layer.digest for layer in self._layers or ()})

    @property
    def tag(self) -> str | None:
        """The tag for humans as a whole reference; None where the lock has none."""
        name = self._base.tag_for_humans
        return None if name is None else f"{self._own.name}:{name}"

    def manifest(self) -> Part:
        """The manifest of the platform: its bytes are hashed, its size and its config are compared with the lock."""
        return Part(what="manifest", pin=self._base.manifest, ask=self._ask_manifest)

    def others(self) -> Iterator[Part]:
        """Index, config and layers, in this order; a layer that stands twice comes once."""
        if self._base.index is not None:
            ask = functools.partial(self._document, self._base.index, None)
            yield Part(what="index", pin=self._base.index, ask=lambda: Answer(where=ask()[1]))
        yield Part(what="config", pin=self._config.digest, ask=functools.partial(self._blob, self._config))
        if self._layers is None:
            yield Part(what="layers", pin=self._base.manifest, ask=_unknown_layers)
        layers = self._layers or []
        first = {layer.digest: number for number, layer in reversed(list(enumerate(layers, start=1)))}
        for number, layer in enumerate(layers, start=1):
            if first[layer.digest] == number:
                what = f"layer {number} of {len(layers)}"
                yield Part(what=what, pin=layer.digest, ask=functools.partial(self._blob, layer))

    def ask_tag(self) -> tuple[Digest, bool]:
        """What the tag for humans names now, and whether that is, or is an index that lists, what is pinned.

        Raises:
            MissingError: there is no such tag, or the lock has none.
            ImgbuildError: of any other kind, where it could not be asked for.
        """
        if self._silent is not None:
            raise self._silent
        name = self._base.tag_for_humans
        if name is None:
            raise MissingError(self._own.name, "has no tag in the lock")
        pinned = {self._base.index, self._base.manifest}
        if self._local:
            now = self._context.store.resolve(name).digest
            return now, now in pinned
        found = self._places()[0].manifest(name)
        names = {found.descriptor.digest}
        if found.is_index:
            index = Index.parse(found.raw, media_type=found.descriptor.media_type, subject=f"{self._own.name}:{name}")
            names |= {row.descriptor.digest for row in index.entries}
        return found.descriptor.digest, bool(names & pinned)

    def _places(self) -> tuple[Repository, ...]:
        """Who is asked: the registry that the lock names; for a local name, its mirrors."""
        from imgbuild.adapters.registry.repository import Repository  # noqa: PLC0415 - urllib3 takes 60 ms

        if self._local and (self._context.connect is None or self._context.offline):
            return ()
        registries = self._context.registries
        names = [self._own]
        if self._local:
            mirrors = registries.settings.mirrors_of(self._own.name)
            names = [Reference.parse(name, where="registries.toml") for name in mirrors]
        return tuple(Repository(registries.of(name.host), name.repository) for name in names)

    def _ask_manifest(self) -> Answer:
        try:
            raw, where = self._document(self._base.manifest, self._base.manifest_size)
        except (NetworkError, OfflineMissError) as error:
            self._silent = None if self._local else error
            raise
        found = self._parse(raw, where)
        self._config = found.config
        if self._layers is None:
            self._layers = list(found.layers)
        return Answer(where=where)

    def _parse(self, raw: bytes, where: str) -> Manifest:
        try:
            found = Manifest.parse(raw, media_type=self._base.media_type, subject=f"manifest {self._base.manifest}")
        except LayoutError as error:
            raise LayoutError(
                error.subject, error.problem, expected=error.expected, actual=error.actual, where=where
            ) from error
        if found.config.digest != self._base.config:
            problem = "names another config than the lock"
            raise FactMismatchError(
                "base", problem, expected=self._base.config, actual=found.config.digest, where=where
            )
        return found

    def _document(self, digest: Digest, size: int | None) -> tuple[bytes, str]:
        """The bytes of a manifest or index, hashed, and who gave them."""

        def ask(repository: Repository) -> bytes:
            raw = repository.manifest(digest).raw
            if size not in {None, len(raw)}:
                raise DigestMismatchError(
                    "manifest", "has another size", expected=f"{size} bytes", actual=f"{len(raw)} bytes"
                )
            return raw

        def look() -> bytes:
            limit = DEFAULT_LIMITS.manifest_bytes
            return self._context.store.read(digest, subject=f"manifest {digest}", max_bytes=limit, size=size)

        return self._first(ask, look)

    def _blob(self, blob: Descriptor) -> Answer:
        """Whether a blob is there with its size, and who says so."""
        from imgbuild.adapters.registry.blobs import blob_size  # noqa: PLC0415 - urllib3 takes 60 ms

        def ask(repository: Repository) -> str:
            found = blob_size(repository, blob)
            if found is None:
                raise MissingError("blob", "is not in the registry", hint="some registries hide so what is private")
            if blob.size != _UNKNOWN and found not in {-1, blob.size}:
                raise _other_size(blob, f"{found} bytes")
            return "its size is not told" if found == -1 else f"{found} bytes"

        def look() -> str:
            store = self._context.store
            if not store.has(blob.digest):
                raise MissingError("blob", "is not in the store")
            if blob.size != _UNKNOWN and not store.has(blob.digest, blob.size):
                raise _other_size(blob, "another size")
            return "its bytes were not hashed"

        detail, where = self._first(ask, look)
        return Answer(detail=detail, where=where)

    def _first(self, ask: Callable[[Repository], T], look: Callable[[], T]) -> tuple[T, str]:
        """The first good answer: of the registry, or for a local name of a mirror, else of the store."""
        if self._context.offline and not self._local:
            raise OfflineMissError("it", "was not asked for, as --offline forbids it")
        if self._silent is not None:
            problem = f"was not asked for, as there was no answer for the manifest: {self._silent.problem}"
            raise type(self._silent)("it", problem, hint=self._silent.hint)
        refusals: dict[str, ImgbuildError] = {}
        for repository in self._places():
            try:
                return ask(repository), str(repository)
            except (BudgetError, StorageError):
                raise
            except (AvailabilityError, IntegrityError) as error:
                refusals[str(repository)] = error
        if self._local:
            store = f"the store here, {self._context.store.root}"
            try:
                return look(), store
            except MissingError as error:
                refusals[store] = error if refusals else _nowhere()
            except IntegrityError as error:
                refusals[store] = error
        raise _refusal(refusals)


def said(error: ImgbuildError) -> str:
    """What is wrong, for where the thing and its place stand beside it."""
    text = error.problem
    if error.expected is not None:
        text += f"; expected {error.expected}"
    return text if error.actual is None else f"{text}; actual {error.actual}"


def _refusal(refusals: dict[str, ImgbuildError]) -> ImgbuildError:
    """What the answers of all who were asked come to, with each of them where there are several."""
    # A mirror that was not heard may have it: then it is not gone.
    errors = list(refusals.values())
    found = next((error for error in errors if not isinstance(error, MissingError)), errors[0])
    words = [said(error) for error in errors]
    if len(words) > 1:
        words = [f"{place}: {text}" for place, text in zip(refusals, words, strict=True)]
    return type(found)(found.subject, ", and ".join(words), where=" and ".join(refusals), hint=found.hint)


def _nowhere() -> AvailabilityError:
    return AvailabilityError("it", "is not in the store here, and its name is of no registry", hint=_LOCAL)


def _other_size(blob: Descriptor, found: str) -> DigestMismatchError:
    return DigestMismatchError("blob", "is there with another size", expected=f"{blob.size} bytes", actual=found)


def _unknown_layers() -> Answer:
    raise AvailabilityError(
        "layers",
        "are named by the manifest only, since the lock has no facts",
        hint="`imgbuild lock IMAGE --complete` writes them down while the base is there",
    )
