"""Texts in a file by which a library of the symbol families names itself.

A version that a program prints stands in its bytes also where a linker has put the library into another file and
dropped its symbols: so every ELF file is searched for it while it is read. Names of environment variables tell builds
apart that state the same version; they are looked for in files that export the families' symbols.
"""

from __future__ import annotations

import ctypes
import re
from typing import TYPE_CHECKING, BinaryIO, cast

from imgbuild.config import CHUNK_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_VERSION = b"NCCL version "
NAME = b"NCCL_"
"""How names of environment variables begin; others do so, too."""
GIT = b"NCCL git version "
"""What stands before the branch and the commit of a build."""
_TEXT = re.compile(rb"NCCL(?: version [0-9][!-~]{0,39}|_[A-Z0-9_]{2,60}| git version [!-~]{1,60} [!-~]{1,40})")
_LONGEST = 118
"""bytes of a text."""
MOST = 1_000
"""texts of each kind in one file; NCCL has 350."""


_ZIP = b"PK\x03\x04"
_SCRIPT = b"#!"
ARCHIVES = (b"!<arch>\n", _ZIP, _SCRIPT)
"""How archives begin: those of `ar` (static libraries), zip (wheels), and zip behind a line that names a program."""
_INSIDE = (b"libnccl.so", b"ncclGetVersion")


def _memmem() -> Callable[[bytes, int, bytes, int], int | None] | None:
    """The C library's search (glibc, musl, macOS): three times as fast, and other threads run meanwhile."""
    try:
        function = ctypes.CDLL(None).memmem
    except (OSError, AttributeError):
        # A Python without shared libraries, or a C library without it.
        return None
    function.argtypes = (ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t)
    function.restype = ctypes.c_void_p
    return cast("Callable[[bytes, int, bytes, int], int | None]", function)


_search_memory = _memmem()
_SHORT = 16 * 1024
"""bytes below which a call outside of Python takes longer than it saves."""


def holds(data: bytes, word: bytes) -> bool:
    """Whether bytes hold a word."""
    if _search_memory is None or len(data) < _SHORT:
        return word in data
    return bool(_search_memory(data, len(data), word, len(word)))


class Inside:
    """Whether an archive holds a library of the families, by a file name or a symbol in its bytes."""

    def __init__(self, head: bytes) -> None:
        """Begin with the first bytes of a file that begins like one of `ARCHIVES`; they are not searched."""
        # Python imports from a zip behind a script (zipapp, PEX); other scripts may name the library as they like.
        self._needed = {_ZIP} if head.startswith(_SCRIPT) else set()
        self._left = {*_INSIDE, *self._needed}
        self._tail = b""

    def update(self, piece: bytes) -> None:
        """The next piece, of any length."""
        window = self._tail + piece
        self._left -= {word for word in self._left if holds(window, word)}
        self._tail = window[-(max(map(len, _INSIDE)) - 1) :]

    def finish(self) -> tuple[str, ...]:
        """What was found, sorted."""
        if self._needed & self._left:
            return ()
        return tuple(sorted(word.decode() for word in set(_INSIDE) - self._left))


class Texts:
    """The texts that begin with one word, from the pieces of a file; one may begin inside of another."""

    def __init__(self, word: bytes = _VERSION) -> None:
        self._word = word
        self._found: set[bytes] = set()
        self._tail = b""

    def update(self, piece: bytes) -> None:
        """The next piece, of any length."""
        # What begins in the last bytes may not be whole yet. The rest of a long piece is searched where it lies.
        if len(piece) > _LONGEST:
            self._search(self._tail + piece[:_LONGEST], len(self._tail))
            window = piece
        else:
            window = self._tail + piece
        limit = max(0, len(window) - _LONGEST)
        self._search(window, limit)
        self._tail = window[limit:]

    def finish(self) -> tuple[str, ...]:
        """Those that were found, sorted; of more than 1,000 the first ones in the file."""
        self._search(self._tail, len(self._tail))
        return tuple(sorted(text.decode("ascii") for text in self._found))

    def _search(self, window: bytes, limit: int) -> None:
        """Keep the texts that begin before a limit."""
        if not holds(window, self._word):
            return
        end = limit + len(self._word) - 1
        place = window.find(self._word, 0, end)
        while place >= 0 and len(self._found) < MOST:
            match = _TEXT.match(window, place)
            if match is not None:
                self._found.add(match[0])
            place = window.find(self._word, place + 1, end)


def variable_names(file: BinaryIO) -> tuple[str, ...]:
    """The names of environment variables in a file, from its beginning on; sorted."""
    file.seek(0)
    texts = Texts(NAME)
    for piece in _pieces(file):
        texts.update(piece)
    return texts.finish()


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    while data := file.read(CHUNK_BYTES):
        yield data
