"""The search for what somebody published of a base, among all that anybody attached to it.

Whoever has a lock needs not read the base at all: a merged view, an inventory or a file whose digest is the one in the
lock is as good as one that was taken here. Without a lock's digest it proves nothing, and is not used.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from imgbuild import jsontext
from imgbuild.adapters.registry.blobs import BlobStream
from imgbuild.adapters.registry.referrers import referrers
from imgbuild.config import GIB, MIB
from imgbuild.content.bundle import Expanded, unpack
from imgbuild.content.treefile import small_files
from imgbuild.digest import Digest, VerifiedReader, chunks
from imgbuild.errors import (
    AvailabilityError,
    BudgetError,
    DocumentError,
    IntegrityError,
    LayoutError,
    NetworkError,
    ServerError,
    StorageError,
    ThrottledError,
)
from imgbuild.model.oci import Descriptor
from imgbuild.steps.crew import Crew, parallel
from imgbuild.steps.published import (
    ARTIFACT_TYPE,
    FILES_TYPE,
    INVENTORY_NOTE,
    INVENTORY_TYPE,
    MAX_COMPRESSED,
    MAX_INVENTORY,
    PREIMAGES_TYPE,
    TREE_NOTE,
    TREE_TYPE,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from imgbuild.adapters.registry.repository import Repository
    from imgbuild.content.treefile import TreeFile
    from imgbuild.errors import ImgbuildError
    from imgbuild.steps.context import Context

_NOTES: Final = {
    TREE_TYPE: TREE_NOTE,
    INVENTORY_TYPE: INVENTORY_NOTE,
    FILES_TYPE: INVENTORY_NOTE,
    PREIMAGES_TYPE: TREE_NOTE,
}
"""What kinds of blobs there are, and the annotation that says what each is or belongs to."""
_MAX_EXPANDED: Final = {
    TREE_TYPE: MAX_INVENTORY,
    INVENTORY_TYPE: MAX_INVENTORY,
    FILES_TYPE: 256 * MIB,
    PREIMAGES_TYPE: 256 * MIB,
}
"""bytes of one blob, expanded."""
_MAX_TOTAL: Final = 4 * GIB
"""bytes of all blobs that are looked into for one base, expanded, more or less: reading the layers may cost less."""
_FILE_BYTES: Final = 4096
"""bytes that a file takes on a disk besides its own."""
_MAX_REFERRERS: Final = 64
"""published inventories of one base that are looked into, in each repository."""
_MAX_VIEWS: Final = 4
"""merged views that are looked into where no lock says which is right."""
_PASSED: Final = (AvailabilityError, IntegrityError, DocumentError)
"""What is wrong with one referrer, and says nothing of the others."""
_FINAL: Final = (BudgetError, StorageError, NetworkError, ServerError, ThrottledError)
"""What others would say, too, each after all tries."""
_Key: TypeAlias = tuple[Digest, str]
"""A merged view or an inventory, and the kind of blob that is or belongs to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Digests from a lock, and what is missing of what they stand for."""

    tree: Digest
    inventories: tuple[Digest, ...]
    """Of all layers."""
    missing: frozenset[Digest]
    """Those of the inventories that are not here; none where the merged view is, which is wanted otherwise."""
    small: frozenset[Digest]
    """Small files of the base that are missing; where the merged view is, too, it says in the end which these are."""
    preimages: frozenset[Digest]
    """Files that are patched and missing."""


def fetch_published(context: Context, image: Digest, wanted: Wanted) -> None:
    """Put what is wanted of a base into the cache, as far as some repository of the base has it.

    What cannot be had is passed over with a note: then the layers are read. Nothing is trusted: what goes into the
    cache goes there under the digest that is wanted and that its bytes have, small files, beside such a view or
    inventory only, under theirs. A referrer that breaks does not stop the others; a registry that does not answer ends
    the search in it. Where a merged view is found, no inventory is asked for.

    Args:
        context: the surroundings, with the base's places.
        image: the manifest of the base.
        wanted: what.

    Raises:
        BudgetError: more bytes than allowed. StorageError: the disk refuses.
    """
    search = _Search(context, wanted)
    for repository in context.places.repositories:
        if not search.left:
            return
        name = f"what was published of {image} in {repository}"
        try:
            broken = search.look_into(repository, image)
        except (BudgetError, StorageError):
            raise
        except _PASSED as error:
            broken = [error]
        if broken:
            more = f"; {len(broken) - 1} more could not be used" if len(broken) > 1 else ""
            context.progress.note(f"{name}: {broken[0]}{more}")


def published_views(context: Context, image: Digest) -> Iterator[TreeFile]:
    """Merged views that somebody published of an image, into the cache under their digests.

    Nothing says that one is right: it may only be asked where to look for what has a digest of its own. Raises as
    `fetch_published`, and notes what else is wrong.
    """
    nothing: frozenset[Digest] = frozenset()
    wanted = Wanted(tree=image, inventories=(), missing=nothing, small=nothing, preimages=nothing)
    search = _Search(context, wanted)
    for repository in context.places.repositories:
        try:
            for row in search.views(repository, image):
                found = context.cache.tree(row)
                if found is not None:
                    yield found
        except (BudgetError, StorageError):
            raise
        except _PASSED as error:
            context.progress.note(f"what was published of {image} in {repository}: {error}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A blob of a referrer, and the merged view or inventory that it is or belongs to."""

    blob: Descriptor
    named: Digest

    @property
    def key(self) -> _Key:
        return self.named, self.blob.media_type


class _Search:
    """What is still wanted of what is known of an image, and how much may still be read for it."""

    def __init__(self, context: Context, wanted: Wanted) -> None:
        self._context = context
        self._wanted = wanted
        self._bytes = _MAX_TOTAL
        self._lock = threading.Lock()
        self._small = wanted.small
        self.left: set[_Key] = set()
        if wanted.missing:
            self.left |= {(wanted.tree, TREE_TYPE), *((digest, INVENTORY_TYPE) for digest in wanted.missing)}
        if wanted.missing or wanted.small:
            self.left |= {(digest, FILES_TYPE) for digest in wanted.inventories}
        if wanted.preimages:
            self.left.add((wanted.tree, PREIMAGES_TYPE))

    def look_into(self, repository: Repository, image: Digest) -> list[ImgbuildError]:
        """Take what is wanted from the referrers in a repository; returns what broke meanwhile."""
        rows = referrers(repository, image, artifact_type=ARTIFACT_TYPE)
        broken: list[ImgbuildError] = []
        for row in rows[:_MAX_REFERRERS]:
            if not self.left:
                return []
            try:
                broken += self._take(repository, row.descriptor)
            except _FINAL:
                raise
            except _PASSED as error:
                broken.append(error)
        if len(rows) > _MAX_REFERRERS and self.left:
            self._context.progress.note(f"{len(rows)} inventories of {image}: only {_MAX_REFERRERS} were looked into")
        return broken

    def views(self, repository: Repository, image: Digest) -> Iterator[Digest]:
        """Put merged views from the referrers in a repository into the cache, one after the other."""
        for found in referrers(repository, image, artifact_type=ARTIFACT_TYPE)[:_MAX_VIEWS]:
            referrer = found.descriptor.digest
            rows = _rows(repository.manifest(referrer).raw, subject=f"referrer {referrer} of {repository}")
            for row in rows:
                if row.blob.media_type == TREE_TYPE and (
                    self._context.cache.has(row.named) or self._try(repository, row) is None
                ):
                    yield row.named

    def _take(self, repository: Repository, referrer: Descriptor) -> list[ImgbuildError]:
        raw = repository.manifest(referrer.digest).raw
        rows = _rows(raw, subject=f"referrer {referrer.digest} of {repository}")
        broken = self._take_all(repository, trees := self._still(rows, TREE_TYPE))
        if trees and trees[0].key not in self.left:
            self.left = {key for key in self.left if key[1] != INVENTORY_TYPE}
            found = self._context.cache.tree(self._wanted.tree)
            self._small = frozenset() if found is None else frozenset(small_files(found))
        broken += self._take_all(repository, self._still(rows, INVENTORY_TYPE))
        # Files of an inventory that nobody has shown are anything at all.
        files = [row for row in self._still(rows, FILES_TYPE) if (row.named, INVENTORY_TYPE) not in self.left]
        broken += self._take_all(repository, [*files, *self._still(rows, PREIMAGES_TYPE)])
        if self._small and self._has_all(self._small):
            self.left = {key for key in self.left if key[1] != FILES_TYPE}
        return broken

    def _still(self, rows: list[_Row], kind: str) -> list[_Row]:
        return [row for row in rows if row.blob.media_type == kind and row.key in self.left]

    def _take_all(self, repository: Repository, rows: list[_Row]) -> list[ImgbuildError]:
        """Take several blobs at a time; many layers have the same bundle of files, which is taken once."""
        by_blob: dict[tuple[Digest, Digest | None], list[_Row]] = {}
        for row in rows:
            own = row.named if row.blob.media_type in {TREE_TYPE, INVENTORY_TYPE} else None
            by_blob.setdefault((row.blob.digest, own), []).append(row)
        groups = list(by_blob.values())
        total = sum(group[0].blob.size for group in groups)
        with (
            self._context.progress.task("fetching what is known of the base", total) as task,
            Crew(self._context, parallel(repository)) as pool,
        ):

            def one(group: list[_Row]) -> ImgbuildError | None:
                found = self._try(repository, group[0])
                task.advance(group[0].blob.size)
                return found

            results = list(pool.map(one, groups))
        for group, error in zip(groups, results, strict=True):
            if error is None and self._is_all(group[0]):
                self.left -= {row.key for row in group}
        return [error for error in results if error is not None]

    def _is_all(self, row: _Row) -> bool:
        """Whether there is no more to be had elsewhere; others may have published other files."""
        if row.blob.media_type == FILES_TYPE:
            return not self._small
        return row.blob.media_type != PREIMAGES_TYPE or self._has_all(self._wanted.preimages)

    def _has_all(self, files: frozenset[Digest]) -> bool:
        return all(map(self._context.cache.has_small, files))

    def _try(self, repository: Repository, row: _Row) -> ImgbuildError | None:
        """Keep what a blob has; returns why that cannot be."""
        try:
            self._keep(repository, row)
        except _FINAL:
            raise
        except _PASSED as error:
            return error
        return None

    def _keep(self, repository: Repository, row: _Row) -> None:
        blob, cache = row.blob, self._context.cache
        subject = f"blob {blob.digest} of {repository}"
        most = min(_MAX_EXPANDED[blob.media_type], self._bytes)
        if blob.size > MAX_COMPRESSED or most <= 0:
            problem = "is too long" if most > 0 else "was not looked into, after so much that was of no use"
            raise LayoutError(subject, problem, expected=f"at most {MAX_COMPRESSED} bytes", actual=f"{blob.size} bytes")
        with self._lock:
            self._bytes -= blob.size
        with BlobStream(repository, blob) as stream:
            verified = VerifiedReader(stream, blob.digest, blob.size, subject=subject)
            expanded = Expanded(verified, subject=subject, max_bytes=most)
            try:
                if blob.media_type in {TREE_TYPE, INVENTORY_TYPE}:
                    cache.put(chunks(expanded), expected=row.named, subject=f"content of {subject}")
                else:
                    self._keep_files(row, unpack(expanded))
            finally:
                with self._lock:
                    self._bytes -= expanded.count

    def _keep_files(self, row: _Row, files: Iterable[tuple[Digest, bytes]]) -> None:
        for digest, content in files:
            # Which small files an inventory has is known where there is the merged view; which are patched, always.
            wanted = self._wanted.preimages if row.blob.media_type == PREIMAGES_TYPE else self._small
            if digest in wanted or (row.blob.media_type == FILES_TYPE and not wanted):
                self._context.cache.keep(digest, content)
                with self._lock:
                    self._bytes -= _FILE_BYTES


def _rows(raw: bytes, *, subject: str) -> list[_Row]:
    """The blobs that we know, the first of each kind for what it belongs to; others are passed over."""
    value = jsontext.loads(raw, subject=subject)
    rows = value.get("layers") if isinstance(value, dict) else None
    found: dict[_Key, _Row] = {}
    for number, row in enumerate(rows if isinstance(rows, list) else []):
        blob = Descriptor.parse(row, subject=f"{subject}, layers[{number}]")
        notes = row.get("annotations")
        note = _NOTES.get(blob.media_type)
        digest = notes.get(note) if isinstance(notes, dict) else None
        if isinstance(digest, str):
            one = _Row(blob=blob, named=Digest.parse(digest))
            found.setdefault(one.key, one)
    return list(found.values())
