"""Layers that this machine wrote before, for the same changes, and that the lock expects: they are not made again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from imgbuild.content.changeset import LayerResult
from imgbuild.digest import VerifiedReader
from imgbuild.errors import IntegrityError, MissingError
from imgbuild.model.oci import Descriptor
from imgbuild.progress import SILENT
from imgbuild.steps.crew import Crew
from imgbuild.steps.memo import LayerMemo, recall, remember

if TYPE_CHECKING:
    from concurrent.futures import Future
    from types import TracebackType

    from imgbuild.content.inventory import Inventory, LayerScan
    from imgbuild.digest import Digest
    from imgbuild.model.lockfile import Result, ResultLayer
    from imgbuild.steps.context import Context


class KnownLayers:
    """What is known of the layers that a lock expects. A context: blobs are hashed in a thread from its beginning on.

    That takes as long as all else does where little has changed, so nobody waits for it: a layer is taken for whole
    until it is known to be damaged. Ask `all_whole` in the end, and if it says no, begin again. It may be entered
    before the store's session: what another build has not published yet is not looked at.
    """

    def __init__(self, context: Context, stated: Result | None, *, blobs: bool) -> None:
        """Nothing is looked at yet.

        Args:
            context: the surroundings.
            stated: the result that the lock expects, or had before.
            blobs: whether a layer must be in the store, whole; else it is enough that its inventory is known.
        """
        self._context = context
        self._store = context.store.published
        self._expected = {} if stated is None else {row.name: row for row in stated.layers}
        self._blobs = blobs
        self._crew = Crew(context, 1)
        self._watched = self._crew.watched(SILENT.task("", None))
        self._whole: dict[Digest, Future[bool]] = {}
        self._taken: set[Digest] = set()

    def __enter__(self) -> Self:
        self._crew.__enter__()
        for row in self._expected.values() if self._blobs else ():
            if self._store.has(row.digest, row.size):
                self._whole[row.digest] = self._crew.submit(self._is_whole, row)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        # What is still being hashed is of no use to anybody.
        self._crew.stop()
        self._crew.__exit__(kind, value, trace)

    def find(self, name: str, key: Digest) -> LayerResult | None:
        """The layer of a name that was written for the changes of `key`, if it is the one that is expected."""
        memo, row = recall(self._context.cache, key, LayerMemo), self._expected.get(name)
        if memo is None or row is None or (memo.diff_id, memo.digest, memo.size) != (row.diff_id, row.digest, row.size):
            return None
        result = LayerResult(
            diff_id=memo.diff_id, digest=memo.digest, size=memo.size, uncompressed_size=memo.uncompressed_size
        )
        if not self._blobs and self.inventory(name, result) is not None:
            return result
        whole = self._whole.get(row.digest)
        # Another process may have removed it since.
        if whole is None or not self._store.has(row.digest, row.size):
            return None
        # What has to be read for want of its inventory must be whole before that.
        if (whole.done() or self.inventory(name, result) is None) and not whole.result():
            return None
        self._taken.add(row.digest)
        return result

    def all_whole(self) -> bool:
        """Whether all layers that were found are whole; waits for what is being hashed, and forgets which they were."""
        taken, self._taken = self._taken, set()
        return all(self._whole[digest].result() for digest in sorted(taken))

    def inventory(self, name: str, result: LayerResult) -> Inventory | None:
        """The inventory that the lock pins of a layer, if it is here."""
        row = self._expected.get(name)
        if row is None or (row.digest, row.diff_id) != (result.digest, result.diff_id):
            return None
        known = self._context.cache.inventory(blob(result), result.diff_id, row.inventory)
        return None if known is None else known[0]

    def keep(self, key: Digest, result: LayerResult) -> None:
        """Remember a layer that was written."""
        memo = LayerMemo(
            diff_id=result.diff_id, digest=result.digest, size=result.size, uncompressed_size=result.uncompressed_size
        )
        remember(self._context.cache, key, memo)

    def keep_scan(self, result: LayerResult, scan: LayerScan) -> None:
        """Remember what was read of a layer, if that is what was written."""
        if (scan.digest, scan.size, scan.inventory.diff_id) == (result.digest, result.size, result.diff_id):
            self._context.cache.keep_inventory(blob(result), scan.inventory)

    def _is_whole(self, row: ResultLayer) -> bool:
        subject = f"layer {row.digest}"
        try:
            # A damaged copy stays where it is: the layer is written anew, and publishing replaces it (case C58).
            with self._store.open(row.digest, subject=subject) as stream:
                VerifiedReader(stream, row.digest, row.size, subject=subject).drain(self._watched.advance)
        except (IntegrityError, MissingError):
            return False
        return True


def blob(result: LayerResult) -> Descriptor:
    """A layer as a blob, whose media type nobody asks."""
    return Descriptor(media_type="", digest=result.digest, size=result.size)
