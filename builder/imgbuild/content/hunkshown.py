"""A hunk that does not apply, or a text that is not found, beside the lines of the file where it comes nearest.

For people, and bounded. Where that is decides nothing: `patch` or `edit` has refused before.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from imgbuild.errors import FailedHunk
from imgbuild.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imgbuild.content.diffhunk import Hunk

LINES = 40
"""lines of the hunk, and of the file, that are shown."""
_LINE = 200
"""characters of one line."""
_ALIGNED = 400
"""lines of both sides of a hunk up to which its signs are worked out anew; of a longer one its old lines are shown."""
_BEFORE = 4
"""lines shown before the first one that differs, of a hunk that is longer than `LINES`."""
_PROBES = 20
"""lines of a hunk that are looked for in the file."""
_PLACES = 3
"""places of each of them that are tried."""
_AROUND = 2
"""lines of a file that are shown before and behind those that have most of a text."""
_PIECE = 1024
"""bytes of a line of which pieces are looked for."""
_TELLING = 4
"""bytes of a line, without blanks around it, that is worth looking for."""


def failed_hunk(hunk: Hunk, number: int, text: bytes) -> FailedHunk:
    """Show a hunk of a file whose bytes are `text`; `number` is its place among the file's hunks, from 1.

    Time is that of reading the file `_PROBES` times `_PLACES`; of the hunk and the file only pieces are copied.
    """
    old = list(_lines(hunk.old, 0, _ALIGNED + 1))
    start = _nearest(old, text, _stated(hunk, text))
    there = list(_lines(text, start, len(old) + _BEFORE))
    differs = next((index for index, line in enumerate(old) if there[index : index + 1] != [line]), 0)
    first = max(0, differs - _BEFORE) if len(old) > LINES else 0
    rows = _signed(hunk, old, first)
    shown = _marked(old[first : first + LINES], there[first : first + LINES])
    return FailedHunk(
        number=number,
        header=f"@@ -{hunk.old_start},{hunk.old_count} +{hunk.new_start},{hunk.new_count} @@",
        lines=tuple(sign + printable(line, _LINE) for sign, line in rows[:LINES]),
        at=text.count(b"\n", 0, start) + first + 1,
        there=tuple(sign + printable(line, _LINE) for sign, line in shown),
    )


def missing_text(find: bytes, text: bytes) -> FailedHunk:
    """Show a text that a file does not have, beside the lines of the file that have most of it.

    They are looked for by whole lines, and by the longest beginning or end of one of its longest lines. Two lines
    before and behind are shown with them. Time is that of reading the file some `_PROBES` times `_PLACES`.
    """
    old = list(_lines(find, 0, _ALIGNED + 1))
    similar = _similar(old, text)
    start = _nearest(old, text, 0 if similar is None else similar)
    there = list(_lines(text, start, min(len(old), LINES)))
    lines = tuple("-" + printable(line, _LINE) for line in old[:LINES])
    if similar is None and not any(line in old for line in there if line.strip()):
        return FailedHunk(number=None, header=None, lines=lines, at=1, there=())
    before = _lines_back(text, start, _AROUND)
    around = list(_lines(text, before, LINES + 2 * _AROUND))
    skipped = text.count(b"\n", before, start)
    shown = [(" ", line) for line in around[:skipped]]
    shown += [(" " if line in old else "!", line) for line in there]
    shown += [(" ", line) for line in around[len(shown) : len(shown) + _AROUND]]
    return FailedHunk(
        number=None,
        header=None,
        lines=lines,
        at=text.count(b"\n", 0, before) + 1,
        there=tuple(sign + printable(line, _LINE) for sign, line in shown),
    )


def _similar(old: list[bytes], text: bytes) -> int | None:
    """The byte of the line where the longest piece of one of the longest lines stands, as if all lines stood there.

    A piece is the beginning or the end of a line, at least half of it; None where there is none.
    """
    rows = sorted(enumerate(old), key=lambda row: -len(row[1].strip()))[:_PLACES]
    best, found = 0, None
    for index, line in ((index, line.strip()[:_PIECE]) for index, line in rows):
        for part in (line[: _longest(line, text, end=False)], line[len(line) - _longest(line, text, end=True) :]):
            if len(part) > best and len(part) >= _TELLING and 2 * len(part) >= len(line):
                at = text.rfind(b"\n", 0, text.find(part)) + 1
                best, found = len(part), _lines_back(text, at, index)
    return found


def _longest(line: bytes, text: bytes, *, end: bool) -> int:
    """How many bytes of the beginning, or of the end, of a line stand somewhere: where more do, fewer do, too."""
    low, high = 0, len(line)
    while low < high:
        middle = (low + high + 1) // 2
        if (line[len(line) - middle :] if end else line[:middle]) in text:
            low = middle
        else:
            high = middle - 1
    return low


def _lines(data: bytes, start: int, most: int) -> Iterator[bytes]:
    """Lines from a byte on, without their ends, at most so many."""
    while start < len(data) and most > 0:
        end = data.find(b"\n", start)
        end = len(data) if end == -1 else end
        yield data[start:end]
        start, most = end + 1, most - 1


def _nearest(old: list[bytes], text: bytes, first: int) -> int:
    """The byte of the line from which on most of the old lines stand; of equal ones `first`, the byte of a line."""
    places = [first]
    telling = [(index, line) for index, line in enumerate(old) if len(line.strip()) >= _TELLING]
    # Of a text that has short lines only, those have to do.
    telling = telling or [(index, line) for index, line in enumerate(old) if line.strip()]
    for index, line in telling[:_PROBES]:
        at = -1
        for _ in range(_PLACES):
            at = text.find(b"\n" + line + b"\n", at + 1)
            if at == -1:
                break
            places.append(_lines_back(text, at + 1, index))
    compared = old[:LINES]
    return max(
        dict.fromkeys(places),
        key=lambda at: sum(a == b for a, b in zip(compared, _lines(text, at, LINES), strict=False)),
    )


def _stated(hunk: Hunk, text: bytes) -> int:
    """The byte of the hunk's stated line, or of the last line of a file that is shorter."""
    at = 0
    for _ in range(hunk.old_start - 1):
        following = text.find(b"\n", at) + 1
        if not following or following >= len(text):
            break
        at = following
    return at


def _lines_back(text: bytes, at: int, count: int) -> int:
    for _ in range(count):
        if at == 0:
            break
        at = text.rfind(b"\n", 0, at - 1) + 1
    return at


def _signed(hunk: Hunk, old: list[bytes], first: int) -> list[tuple[str, bytes]]:
    """The hunk's lines with their signs, from the old line `first` on."""
    new = list(_lines(hunk.new, 0, _ALIGNED + 1))
    if len(old) + len(new) > _ALIGNED:
        return [(" ", line) for line in old[first : first + LINES]]
    rows: list[tuple[str, bytes]] = []
    for kind, start, end, new_start, new_end in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "equal":
            rows += [(" ", line) for line in old[max(start, first) : max(end, first)]]
            continue
        rows += [("-", line) for line in old[max(start, first) : max(end, first)]]
        if end >= first:
            rows += [("+", line) for line in new[new_start:new_end]]
    return rows


def _marked(old: list[bytes], there: list[bytes]) -> list[tuple[str, bytes]]:
    """Lines of the file, with `!` before those that the hunk does not expect."""
    blocks = difflib.SequenceMatcher(None, old, there, autojunk=False).get_matching_blocks()
    same = {index for block in blocks for index in range(block.b, block.b + block.size)}
    end = max((index + 1 for index in same), default=0)
    # What stands behind the last line that the hunk expects is of interest only as far as the hunk goes.
    return [(" " if index in same else "!", line) for index, line in enumerate(there) if index < max(end, len(old))]
