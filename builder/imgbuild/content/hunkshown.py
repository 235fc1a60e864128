"""A hunk that does not apply, beside the lines of the file where it comes nearest: for people, and bounded.

Where that is decides nothing: `patch` has refused the hunk before.
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
_TELLING = 4
"""bytes of a line, without blanks around it, that is worth looking for."""


def failed_hunk(hunk: Hunk, number: int, text: bytes) -> FailedHunk:
    """Show a hunk of a file whose bytes are `text`; `number` is its place among the file's hunks, from 1.

    Time is that of reading the file `_PROBES` times `_PLACES`; of the hunk and the file only pieces are copied.
    """
    old = list(_lines(hunk.old, 0, _ALIGNED + 1))
    start = _nearest(hunk, old, text)
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


def _lines(data: bytes, start: int, most: int) -> Iterator[bytes]:
    """Lines from a byte on, without their ends, at most so many."""
    while start < len(data) and most > 0:
        end = data.find(b"\n", start)
        end = len(data) if end == -1 else end
        yield data[start:end]
        start, most = end + 1, most - 1


def _nearest(hunk: Hunk, old: list[bytes], text: bytes) -> int:
    """The byte of the line from which on most of the hunk's old lines stand; of equal ones the stated line first."""
    places = [_stated(hunk, text)]
    telling = [(index, line) for index, line in enumerate(old) if len(line.strip()) >= _TELLING]
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
