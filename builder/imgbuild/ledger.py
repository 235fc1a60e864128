"""The byte ledger of a command: bytes read and written per place (`store`, `cache`, `packages`, or `host:port`)."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from imgbuild.errors import BudgetError

LOCAL = frozenset({"store", "cache"})
"""Places on this machine; what moves there is counted and not limited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """Bytes of one place."""

    place: str
    read: int
    written: int


class Ledger:
    """Counts; safe to use from several threads."""

    def __init__(self, *, max_bytes: int | None = None) -> None:
        """Begin at nothing; with `max_bytes`, no more than that may come from and go to other machines together."""
        self._limit = max_bytes
        self._far = 0
        self._lock = threading.Lock()
        self._read: dict[str, int] = {}
        self._written: dict[str, int] = {}

    def read(self, place: str, count: int) -> None:
        """`count` bytes came from a place; a `BudgetError` if those are too many."""
        with self._lock:
            self._read[place] = self._read.get(place, 0) + count
            self._spend(place, count)

    def written(self, place: str, count: int) -> None:
        """`count` bytes went to a place; a `BudgetError` if those are too many."""
        with self._lock:
            self._written[place] = self._written.get(place, 0) + count
            self._spend(place, count)

    def _spend(self, place: str, count: int) -> None:
        if place in LOCAL:
            return
        self._far += count
        if self._limit is not None and self._far > self._limit:
            raise BudgetError(
                "this command",
                "moves more bytes than it may",
                expected=f"at most {self._limit} bytes",
                actual=f"{self._far} bytes, the last of them from or to {place}",
            )

    def rows(self) -> tuple[Moved, ...]:
        """What was counted, sorted by place."""
        with self._lock:
            places = sorted({*self._read, *self._written})
            return tuple(
                Moved(place=place, read=self._read.get(place, 0), written=self._written.get(place, 0))
                for place in places
            )
