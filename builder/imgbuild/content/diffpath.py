"""Names in unified diffs: C-quoting, strip, `/dev/null`, timestamps, and the `diff --git` line.

Sources: git's `Documentation/diff-generate-patch.txt` and `quote.c` for the quoting; POSIX `diff -u` and GNU diffutils
("Detailed Description of Unified Format") for names with a timestamp after a tab.
Nothing here looks at a file system.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from imgbuild.errors import PatchError

NO_FILE = b"/dev/null"
SHOWN_BYTES = 160
"""bytes of a line or name that an error message repeats; enough to recognise it, short enough for a terminal."""
_SPACES = 64
"""spaces in an unquoted `diff --git` line; real paths have few, and each is a split that has to be tried."""

_QUOTED = re.compile(rb'"((?:[^"\\]|\\(?:[abtnvfr"\\]|[0-3][0-7]{2}))*)"')
_ESCAPE = re.compile(rb'\\([abtnvfr"\\]|[0-3][0-7]{2})')
_LETTERS = {b"a": b"\a", b"b": b"\b", b"t": b"\t", b"n": b"\n", b"v": b"\v", b"f": b"\f", b"r": b"\r"}
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")
_EPOCH = re.compile(
    rb"(1969-12-31|1970-01-01) ([0-2][0-9]):([0-5][0-9]):00(?:\.0{1,9})? ([-+])([0-2][0-9]):?([0-5][0-9])"
)
_DAY = 24 * 60


@dataclass(frozen=True, slots=True)
class Place:
    """What an error is about and where it stands, so that each refusal needs only its own words."""

    subject: str
    where: str

    def error(
        self, problem: str, *, expected: object = None, actual: object = None, hint: str | None = None
    ) -> PatchError:
        """A `PatchError` about this place."""
        return PatchError(self.subject, problem, expected=expected, actual=actual, where=self.where, hint=hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """How names become paths: `strip` leading components are removed; then the path limits hold."""

    strip: int
    path_bytes: int
    path_depth: int


def shown(data: bytes, *, start: int = 0) -> str:
    """Bytes for an error message: quoted, control and bidirectional characters escaped, at most `SHOWN_BYTES` long.

    UTF-8 is shown as text, anything else as Python writes bytes. `start` (bytes) leaves out a beginning.
    """
    piece = data[start : start + SHOWN_BYTES]
    try:
        text = repr(piece.decode())
    except UnicodeDecodeError:
        text = repr(piece)
    before = "..." if start else ""
    after = "..." if start + SHOWN_BYTES < len(data) else ""
    return f"{before}{text}{after}"


def shown_pair(expected: bytes, actual: bytes) -> tuple[str, str]:
    """Two lines that differ, for a message, without a long equal beginning and the last newline that both have."""
    if expected.endswith(b"\n") and actual.endswith(b"\n"):
        expected, actual = expected[:-1], actual[:-1]
    start = max(0, _common(expected, actual) - SHOWN_BYTES // 4)
    if max(len(expected), len(actual)) <= SHOWN_BYTES:
        start = 0
    return shown(expected, start=start), shown(actual, start=start) if actual else "the end of the file"


def first_difference(block: bytes, text: bytes, at: int) -> tuple[int, bytes, bytes]:
    """Compare `block` with `text` from byte `at`, line by line: the first line that differs, 0-based, of both.

    The second line is empty at the end of `text`. `block` must not stand at `at`.
    """
    start = number = 0
    while True:
        end = block.find(b"\n", start) + 1 or len(block)
        stop = text.find(b"\n", at) + 1 or len(text)
        wanted, found = block[start:end], text[at:stop]
        if wanted != found or end == len(block):
            return number, wanted, found
        start, at, number = end, stop, number + 1


def unquote(text: bytes, place: Place) -> tuple[bytes, bytes]:
    r"""Decode a C-quoted name (`"a/\303\244"`) at the start of `text`; return the name and what follows it.

    Raises:
        PatchError: the closing quote is missing, or an escape is none of git's.
    """
    match = _QUOTED.match(text)
    if match is None:
        raise place.error("a quoted file name is broken", actual=shown(text))

    def plain(escape: re.Match[bytes]) -> bytes:
        code: bytes = escape[1]
        return bytes([int(code, 8)]) if code.isdigit() else _LETTERS.get(code, code)

    return _ESCAPE.sub(plain, match[1]), text[match.end() :]


def read_name(text: bytes, place: Place) -> tuple[bytes, bool]:
    """Read what follows `--- ` or `+++ `: the name, and whether a timestamp after it is the epoch.

    GNU diff writes the epoch for a file that is absent (`diff -N`); an mtime of exactly zero looks the same.
    """
    if text.startswith(b'"'):
        name, rest = unquote(text, place)
        if rest and not rest.startswith(b"\t"):
            raise place.error("text follows the quoted file name", actual=shown(rest))
        stamp = rest[1:]
    else:
        name, _, stamp = text.partition(b"\t")
        _refuse_control(name, place)
    return name, _is_epoch(stamp.strip())


def strip_name(name: bytes, naming: Naming, place: Place) -> bytes:
    """The path inside the tree: `name` without its first `strip` components.

    Raises:
        PatchError: the name is absolute, has `..`, NUL, empty or `.` components, is too long or too deep, or has not
            more components than are stripped.
    """
    if b"\0" in name:
        raise place.error("a file name holds a NUL byte", actual=shown(name))
    if name.startswith(b"/"):
        raise place.error("a file name is absolute", actual=shown(name))
    if len(name) > naming.path_bytes:
        raise place.error("a file name is too long", expected=f"<= {naming.path_bytes} bytes", actual=len(name))
    parts = name.split(b"/")
    if b".." in parts:
        raise place.error("a file name has a '..' component", actual=shown(name))
    if len(parts) > naming.path_depth:
        raise place.error("a file name is too deep", expected=f"<= {naming.path_depth}", actual=len(parts))
    kept = parts[naming.strip :]
    if not kept:
        raise place.error(
            f"strip {naming.strip} leaves nothing of a file name", actual=shown(name), hint="use a smaller strip"
        )
    if b"" in kept or b"." in kept:
        raise place.error("a file name has an empty or '.' component", actual=shown(name))
    return b"/".join(kept)


def git_paths(text: bytes, naming: Naming, place: Place) -> frozenset[bytes]:
    """The paths, after strip, that the rest of a `diff --git ` line can mean when both of its names are one path.

    Without quotes nothing marks where the first name ends, so a path with spaces can have several readings; the
    other header lines decide among them. An empty set means that the two names differ.
    """
    if text.startswith(b'"'):
        left, rest = unquote(text, place)
        if not rest.startswith(b" "):
            raise place.error("the second name of the diff line is missing", actual=shown(text))
        right = _whole_name(rest[1:], place)
        return _same(left, right, naming, place)
    if text.endswith(b'"'):
        plain, _, _ = text.partition(b' "')
        return _same(plain, _whole_name(text[len(plain) + 1 :], place), naming, place)
    _refuse_control(text, place)
    if text.count(b" ") > _SPACES:
        raise place.error("the diff line has too many spaces", expected=f"<= {_SPACES}", actual=text.count(b" "))
    found: set[bytes] = set()
    at = text.find(b" ")
    while at != -1:
        left, right = text[:at], text[at + 1 :]
        if _tail(left, naming) == _tail(right, naming) != b"":
            found |= _same(left, right, naming, place)
        at = text.find(b" ", at + 1)
    return frozenset(found)


def _common(left: bytes, right: bytes) -> int:
    """Bytes at the start that are equal; in steps, because lines can be as long as a file."""
    at, step = 0, 4096
    while left[at : at + step] == right[at : at + step] and at < len(left):
        at += step
    while left[at : at + 1] == right[at : at + 1] and at < len(left):
        at += 1
    return at


def _whole_name(text: bytes, place: Place) -> bytes:
    if not text.startswith(b'"'):
        _refuse_control(text, place)
        return text
    name, rest = unquote(text, place)
    if rest:
        raise place.error("text follows the quoted file name", actual=shown(rest))
    return name


def _same(left: bytes, right: bytes, naming: Naming, place: Place) -> frozenset[bytes]:
    path = strip_name(left, naming, place)
    return frozenset({path} if strip_name(right, naming, place) == path else ())


def _tail(name: bytes, naming: Naming) -> bytes:
    parts = name.split(b"/", naming.strip)
    return parts[-1] if len(parts) > naming.strip else b""


def _refuse_control(name: bytes, place: Place) -> None:
    # A carriage return here means that the whole patch was converted, and then its content is not what was made.
    if _CONTROL.search(name):
        raise place.error(
            "an unquoted file name holds a control character",
            actual=shown(name),
            hint="a trailing \\r means that the patch was converted to CRLF; take it unconverted",
        )


def _is_epoch(stamp: bytes) -> bool:
    match = _EPOCH.fullmatch(stamp)
    if match is None:
        return False
    local = int(match[2]) * 60 + int(match[3]) - (_DAY if match[1].startswith(b"1969") else 0)
    zone = int(match[5]) * 60 + int(match[6])
    return local == (-zone if match[4] == b"-" else zone)
