"""Another process of this program: messages of bytes to it and back, until one of the two ends.

Messages go through pipes. A long stream goes through memory that both have, since a pipe copies all of it twice in the
kernel: pieces of it lie in slots, a message says that one is filled, and another one that it can be filled again.

For work that Python's lock would let only one thread do. Both sides are this installation, so messages are trusted. A
child is in a session of its own: signals of a terminal do not reach it, and when whoever began it ends or is stopped,
however that is, it finds nobody to read from or to write to. What it prints goes into a file without a name.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import mmap
import os
import select
import struct
import subprocess
import sys
from typing import IO, TYPE_CHECKING

from imgbuild.adapters.durable import memory_file
from imgbuild.adapters.process import ERROR_BYTES, kill
from imgbuild.config import CHUNK_BYTES, MIB
from imgbuild.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable

_START = (
    "import sys; module, slots, *sys.path[:] = sys.argv[1:]; "
    "from imgbuild.adapters.child import begin; begin(module, int(slots))"
)
"""What is imported is what is imported here, wherever the interpreter itself would look."""
_LENGTH = struct.Struct(">Q")
"""before each message: its bytes."""
_TAKEN = 2**64 - 1
"""as a length: no message, but a slot that can be filled again."""
_SLOTS = 4
_SLOT_BYTES = CHUNK_BYTES
_READY = b"ready"
_READY_SECONDS = 30.0
_GRACE_SECONDS = 1.0
"""for a child to end by itself, so that it takes away what it had begun to write."""
_LOOK_SECONDS = 0.1
"""after which somebody who waits is asked whether to go on."""
_ALLOCATOR = {
    "MALLOC_TRIM_THRESHOLD_": str(16 * MIB),
    "MALLOC_MMAP_THRESHOLD_": str(16 * MIB),
    "MALLOC_TOP_PAD_": str(1 * MIB),
}
"""For glibc's malloc (mallopt(3)), unless the user says otherwise: what is freed is kept and used again. By itself it
would go back to the kernel and be asked for anew with each piece of a layer, 1.5 of 20.5 seconds for a base of 4 GB."""


class GoneError(Exception):
    """The other side has ended; its text is how, where that is known."""


class Child:
    """One process, begun here, used by one thread at a time."""

    def __init__(self, module: str, printed: IO[bytes]) -> None:
        """Begin it, and wait until it is there.

        Args:
            module: its `main` is called with the `Parent`.
            printed: a file for what it prints; closed with it.

        Raises:
            OSError: it cannot be begun.
            GoneError: it ended at once.
        """
        self._printed = printed
        self._free = _SLOTS
        self._next = 0
        self._early: int | None = None
        # Names of files have to mean the same there. Without -P a folder's own modules would be found before ours.
        flags = ["-I" if sys.flags.isolated else "-P"]
        flags += ["-X", "utf8"] if sys.flags.utf8_mode else []
        flags += ["-B"] if sys.flags.dont_write_bytecode else []
        with memory_file(_SLOTS * _SLOT_BYTES) as shared:
            self._slots = mmap.mmap(shared.fileno(), _SLOTS * _SLOT_BYTES)
            number = shared.fileno()
            self._process = subprocess.Popen(
                [sys.executable, *flags, "-c", _START, module, str(number), *sys.path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=printed,
                env={**_ALLOCATOR, **os.environ},
                pass_fds=(number,),
                bufsize=0,
                start_new_session=True,
            )
        assert self._process.stdout is not None  # noqa: S101 - a pipe
        assert self._process.stdin is not None  # noqa: S101 - a pipe
        self._from, self._to = self._process.stdout, self._process.stdin
        os.set_blocking(self._to.fileno(), False)
        try:
            self._await()
        except BaseException:
            self.end()
            raise

    def send(self, message: bytes, waiting: Callable[[], object] = int) -> bool:
        """Send a message; false if something came back before it was taken whole, which then nobody will.

        Args:
            message: its bytes.
            waiting: is called now and then, and may end it by an exception.

        Raises:
            GoneError: nobody is there any more.
        """
        both = select.poll()
        both.register(self._to, select.POLLOUT)
        both.register(self._from, select.POLLIN)
        for part in (_LENGTH.pack(len(message)), message):
            view = memoryview(part)
            while view:
                found = dict(both.poll(_LOOK_SECONDS * 1000))
                if not found:
                    waiting()
                elif found.get(self._from.fileno(), 0) & select.POLLIN:
                    return False
                else:
                    view = view[self._write(view) :]
        return True

    def give(self, piece: bytes, waiting: Callable[[], object] = int) -> bool:
        """Send a piece of a stream (`Parent.stream`), an empty one at its end; false as `send`.

        Args:
            piece: its bytes.
            waiting: as for `send`.

        Raises:
            GoneError: nobody is there any more.
        """
        view = memoryview(piece)
        while True:
            part = view[:_SLOT_BYTES]
            if part and not self._fill(part, waiting):
                return False
            # So few of these are on the way that the pipe has room for them.
            self._write(memoryview(_LENGTH.pack(len(part))))
            view = view[len(part) :]
            if not view:
                return True

    def _fill(self, part: memoryview, waiting: Callable[[], object]) -> bool:
        """Put bytes into the next slot, when it is free."""
        while not self._free:
            length = self._length(waiting)
            if length != _TAKEN:
                self._early = length
                return False
            self._free += 1
        start = self._next * _SLOT_BYTES
        self._slots[start : start + len(part)] = part
        self._next = (self._next + 1) % _SLOTS
        self._free -= 1
        return True

    def receive(self, waiting: Callable[[], object] = int) -> bytes:
        """The next message; `waiting` is called now and then. A `GoneError` after the last one."""
        early, self._early = self._early, None
        length = self._length(waiting) if early is None else early
        while length == _TAKEN:
            self._free += 1
            length = self._length(waiting)
        return self._exactly(length, waiting)

    def _length(self, waiting: Callable[[], object]) -> int:
        found: int = _LENGTH.unpack(self._exactly(_LENGTH.size, waiting))[0]
        return found

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def end(self) -> None:
        """Let it end: by itself where it does so soon, else it is killed."""
        self._to.close()
        self._from.close()
        self._slots.close()
        try:
            self._process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            kill(self._process)
            self._process.wait()
        self._printed.close()

    def _await(self) -> None:
        if not _is_ready(self._from, _READY_SECONDS) or self.receive() != _READY:
            raise GoneError(f"it was not there after {_READY_SECONDS:g} seconds")

    def _write(self, view: memoryview) -> int:
        try:
            return self._to.write(view) or 0
        except BrokenPipeError as error:
            raise self._gone() from error

    def _exactly(self, count: int, waiting: Callable[[], object]) -> bytes:
        data = bytearray(count)
        view = memoryview(data)
        while view:
            if not _is_ready(self._from, _LOOK_SECONDS):
                waiting()
                continue
            done = self._from.readinto(view)  # type: ignore[attr-defined] # it is a FileIO
            if not done:
                raise self._gone()
            view = view[done:]
        return bytes(data)

    def _gone(self) -> GoneError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_SECONDS)
        status = self._process.returncode
        if status is None:
            return GoneError("it closed its end, and goes on")
        self._printed.seek(max(0, self._printed.seek(0, os.SEEK_END) - ERROR_BYTES))
        lines = self._printed.read().splitlines()
        last = f": {printable(lines[-1])}" if lines else ""
        return GoneError(f"signal {-status}" if status < 0 else f"exit code {status}{last}")


class Parent:
    """In a child: whoever began it. There is one; stdin and stdout are its."""

    def __init__(self, slots: int) -> None:
        """`slots` is the file descriptor of the memory that both have."""
        self._slots = mmap.mmap(slots, _SLOTS * _SLOT_BYTES)
        os.close(slots)
        self._next = 0
        self._from = io.FileIO(sys.stdin.fileno(), closefd=False)
        self._to = sys.stdout.buffer
        # What anybody prints must not come between messages.
        sys.stdout = sys.stderr

    def send(self, message: bytes) -> None:
        """Send a message; a `GoneError` where nobody is there any more."""
        self._write(_LENGTH.pack(len(message)), message)

    def receive(self) -> bytes:
        """The next message; a `GoneError` after the last one."""
        return self._exactly(self._length())

    def stream(self) -> Stream:
        """What `Child.give` gives, up to an empty piece."""
        return Stream(self)

    def _length(self) -> int:
        found: int = _LENGTH.unpack(self._exactly(_LENGTH.size))[0]
        return found

    def _exactly(self, count: int) -> bytes:
        parts = []
        while count:
            if not (data := self._from.read(count)):
                raise GoneError
            parts.append(data)
            count -= len(data)
        return b"".join(parts)

    def _write(self, *parts: bytes) -> None:
        try:
            for part in parts:
                self._to.write(part)
            self._to.flush()
        except BrokenPipeError as error:
            raise GoneError from error

    def piece(self) -> tuple[int, int]:
        """Where the next piece of a stream begins in the slots, and its bytes: 0 at the end."""
        length = self._length()
        start = self._next * _SLOT_BYTES
        if length:
            self._next = (self._next + 1) % _SLOTS
        return start, length

    def take(self, start: int, end: int, *, last: bool) -> bytes:
        """Bytes of a piece; with `last` its slot can be filled again."""
        data = self._slots[start:end]
        if last:
            self._write(_LENGTH.pack(_TAKEN))
        return data


class Stream:
    """Pieces as one stream, by `Parent.stream`."""

    def __init__(self, parent: Parent) -> None:
        self._parent = parent
        self._start = self._end = 0
        self._ended = False

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; empty only at the end. A `GoneError` if it never comes."""
        if self._start == self._end and not self._ended:
            self._start, length = self._parent.piece()
            self._end = self._start + length
            self._ended = not length
        if self._ended:
            return b""
        start = self._start
        self._start = min(start + size, self._end)
        return self._parent.take(start, self._start, last=self._start == self._end)


def begin(module: str, slots: int) -> None:
    """In a child: call `main` of a module, and end when nobody is there any more."""
    parent = Parent(slots)
    work: Callable[[Parent], None] = importlib.import_module(module).main
    # What is left to be done by an interpreter that ends takes a while, and matters to nobody.
    with contextlib.suppress(GoneError):
        parent.send(_READY)
        work(parent)
    sys.stderr.flush()
    os._exit(0)


def _is_ready(file: IO[bytes], seconds: float) -> bool:
    """Whether there is something to read, or never will be, within so many seconds."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(seconds * 1000))
