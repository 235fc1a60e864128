"""Another process of this program: messages of bytes to it and back, until one of the two ends.

For work that Python's lock would let only one thread do. Both sides are this installation, so messages are trusted, and
not bounded. A child has no terminal: what it prints is stderr's, and a signal of the terminal does not reach it. When
whoever began it ends, however that is, it notices and ends, too.
"""

from __future__ import annotations

import os
import queue
import select
import struct
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Self

from imgbuild.adapters.process import kill
from imgbuild.config import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

_START = "import runpy, sys; name, *sys.path[:] = sys.argv[1:]; runpy.run_module(name, run_name='__main__')"
"""What is imported is what is imported here, wherever the interpreter itself would look."""
_LENGTH = struct.Struct(">Q")
"""before each message: its bytes."""
_GRACE_SECONDS = 1.0
"""for a child to end by itself, so that it takes away what it had begun to write."""


class GoneError(Exception):
    """The other side has ended; its text is how, where that is known."""


class Child:
    """One process, begun here, used by one thread at a time. Leaving it as a context ends it."""

    def __init__(self, module: str) -> None:
        """Begin it.

        Args:
            module: with what to do as `__main__`; uses `Parent`.

        Raises:
            OSError: it cannot be begun.
        """
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", _START, module, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            process_group=0,
        )
        assert self._process.stdout is not None  # noqa: S101 - a pipe
        assert self._process.stdin is not None  # noqa: S101 - a pipe
        self._from, self._to = self._process.stdout, self._process.stdin
        self._poll = select.poll()
        self._poll.register(self._from, select.POLLIN)
        self._buffer = bytearray()

    def send(self, message: bytes) -> None:
        """Send a message; a `GoneError` where nobody is there any more."""
        try:
            for part in (_LENGTH.pack(len(message)), message):
                view = memoryview(part)
                while view:
                    view = view[self._to.write(view) :]
        except BrokenPipeError as error:
            raise self._gone() from error

    def receive(self, seconds: float) -> bytes | None:
        """The next message, or None if there is none within so many seconds; a `GoneError` after the last one."""
        while (message := self._whole()) is None:
            if not self._poll.poll(seconds * 1000):
                return None
            data = os.read(self._from.fileno(), MIB)
            if not data:
                raise self._gone()
            self._buffer += data
        return message

    def end(self) -> None:
        """Let it end: by itself where it does so soon, else it is killed."""
        self._to.close()
        try:
            self._process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            kill(self._process)
            self._process.wait()
        self._from.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.end()

    def _whole(self) -> bytes | None:
        if len(self._buffer) < _LENGTH.size:
            return None
        end = _LENGTH.size + _LENGTH.unpack_from(self._buffer)[0]
        if len(self._buffer) < end:
            return None
        message = bytes(memoryview(self._buffer)[_LENGTH.size : end])
        del self._buffer[:end]
        return message

    def _gone(self) -> GoneError:
        try:
            status = self._process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            return GoneError("closed its end, and goes on")
        return GoneError(f"signal {-status}" if status < 0 else f"exit code {status}")


class Parent:
    """In a child: whoever began it. There is one; stdin and stdout are its."""

    def __init__(self) -> None:
        self._to = sys.stdout.buffer
        # What anybody prints must not come between messages.
        sys.stdout = sys.stderr
        self._messages: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._gone = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def messages(self) -> Iterator[bytes]:
        """What it sends, to the end."""
        while (message := self._messages.get()) is not None:
            yield message

    def send(self, message: bytes) -> None:
        """Send a message; a `GoneError` where nobody is there any more."""
        self.check()
        try:
            self._to.write(_LENGTH.pack(len(message)))
            self._to.write(message)
            self._to.flush()
        except BrokenPipeError as error:
            raise GoneError from error

    def check(self) -> None:
        """A `GoneError` where nobody waits for an answer any more."""
        if self._gone.is_set():
            raise GoneError

    def _listen(self) -> None:
        source = sys.stdin.buffer
        while len(head := source.read(_LENGTH.size)) == _LENGTH.size:
            self._messages.put(source.read(_LENGTH.unpack(head)[0]))
        self._gone.set()
        self._messages.put(None)
        time.sleep(_GRACE_SECONDS)
        # Whoever waits for a network now may do so for minutes.
        os._exit(1)
