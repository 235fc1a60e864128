"""One request to a registry, as a value: what is asked for, whose credentials may be shown, what is an answer to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """What a request sends: its length in bytes, and how to get the pieces, for each try anew."""

    length: int
    pieces: Callable[[], Iterable[bytes]]

    @classmethod
    def of(cls, data: bytes) -> Body:
        """Bytes in memory."""
        return cls(length=len(data), pieces=lambda: (data,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request to a registry."""

    method: str
    url: str
    """Absolute, or a path below the registry's origin."""
    subject: str
    """What it is about, as the reader of an error knows it."""
    repository: str
    scopes: tuple[str, ...]
    accept: Collection[int]
    """Statuses that are answers; all others are refusals."""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Body | None = None
    once: bool = False
    """Whether a failure is raised at once, because making the same request again might do harm."""
    follow: bool = False
    """Whether redirects are followed; credentials stay with the origin that they are for."""
    https: bool = False
    """Whether redirects may lead to https and to this machine only, also where the first address is plain http."""
