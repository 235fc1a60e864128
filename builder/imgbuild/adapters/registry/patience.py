"""How long to wait before a request is made again: Retry-After (RFC 9110, 10.2.3), backoff with jitter, one brake.

A brake is shared by everything that talks to one registry, so that one 429 slows all parallel layers (case C51).
"""

from __future__ import annotations

import datetime as dt
import email.utils
import random
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_DIGITS = 9
_MAX_CHARACTERS = 64
"""of an HTTP date; what is longer is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How often and how long to try. All times in seconds."""

    attempts: int = 6
    """tries of one request, or of one upload without any progress."""
    first: float = 0.5
    """seconds before the second try; each further one waits twice as long."""
    cap: float = 30.0
    """seconds that one wait of our own takes at most."""
    asked_cap: float = 300.0
    """seconds that a registry may ask us to wait; where it asks for more, we give up and say so."""

    def delay(self, attempt: int) -> float:
        """Seconds before try `attempt + 1`, counted from 1: between half of the step and the whole of it."""
        step = min(self.cap, self.first * 2.0 ** min(attempt - 1, 16))
        return step * random.uniform(0.5, 1.0)  # noqa: S311 - spreads requests, protects nothing


def retry_after(text: str | None, *, now: float | None = None) -> float | None:
    """Seconds that a `Retry-After` asks for: a number of seconds or an HTTP date; None if it says neither."""
    if text is None or len(text) > _MAX_CHARACTERS:
        return None
    text = text.strip()
    if text.isascii() and text.isdigit():
        return float(text) if len(text) <= _MAX_DIGITS else float("inf")
    try:
        moment = email.utils.parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    return max(0.0, moment.timestamp() - (time.time() if now is None else now))


class Brake:
    """Holds back all requests to a registry until a moment; safe to use from several threads."""

    def __init__(self, sleep: Callable[[float], None] = time.sleep) -> None:
        """Nothing is held; `sleep` waits for some seconds, and may raise."""
        self._sleep = sleep
        self._lock = threading.Lock()
        self._until = 0.0

    def hold(self, seconds: float) -> None:
        """Nobody goes on before `seconds` from now; a longer wait that was asked for before stays."""
        with self._lock:
            self._until = max(self._until, time.monotonic() + seconds)

    def wait(self) -> None:
        """Wait as long as somebody was asked to."""
        while (left := self._until - time.monotonic()) > 0:
            # Not all at once when the time is over.
            self._sleep(left + random.uniform(0.0, min(0.25, left)))  # noqa: S311
