"""The end of all talk with registries, at once: for a user who does not want to wait for one that stalls.

A signal reaches the main thread only. Other threads may be in a read that has a minute to go, or asleep before another
try; `Ending.now` cuts both short. What this does not reach: the look-up of a name, and a connection that is not open
yet (`Times.connect` limits it).
"""

from __future__ import annotations

import contextlib
import socket
import threading
import weakref


class EndedError(Exception):
    """A call after the end, or one that was cut short by it: nobody waits for what it would have given.

    Of no family of errors that anything catches: whoever ends the talk has a better reason to show.
    """

    def __init__(self) -> None:
        super().__init__("was ended")


class Ending:
    """Whether it has come; safe to use from several threads."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def now(self) -> None:
        """End it, for good: every wait is over, every connection is cut, every further call is an `EndedError`."""
        self._event.set()
        with self._lock:
            open_ones = list(self._sockets)
        for one in open_ones:
            _cut(one)

    def check(self) -> None:
        """An `EndedError` if it has come."""
        if self._event.is_set():
            raise EndedError

    def sleep(self, seconds: float) -> None:
        """Wait, or an `EndedError` as soon as it comes."""
        if self._event.wait(seconds):
            raise EndedError

    def watch(self, connection: socket.socket) -> None:
        """Cut this one, too, when it comes; an `EndedError` if it has."""
        with self._lock:
            self._sockets.add(connection)
        # Looked at after it was added: whichever of the two threads is later sees what the other one did.
        self.check()


def _cut(connection: socket.socket) -> None:
    # Not close, which would leave the reader waiting; and not the method of a TLS socket, which would take the keys
    # away under its reader.
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
