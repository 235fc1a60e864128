"""The byte ledger: bytes read and written per place (`store`, `cache`, `packages`, or a host), for every command."""

from __future__ import annotations

import threading
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """Bytes of one place."""

    place: str
    read: int
    written: int


class Ledger:
    """Counts; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read: dict[str, int] = {}
        self._written: dict[str, int] = {}

    def read(self, place: str, count: int) -> None:
        """`count` bytes came from a place."""
        with self._lock:
            self._read[place] = self._read.get(place, 0) + count

    def written(self, place: str, count: int) -> None:
        """`count` bytes went to a place."""
        with self._lock:
            self._written[place] = self._written.get(place, 0) + count

    def rows(self) -> tuple[Moved, ...]:
        """What was counted, sorted by place."""
        with self._lock:
            places = sorted({*self._read, *self._written})
            return tuple(
                Moved(place=place, read=self._read.get(place, 0), written=self._written.get(place, 0))
                for place in places
            )
