"""Read the hunks of a unified diff: headers, counts, line kinds and the no-newline marker.

Source: GNU diffutils, "Detailed Description of Unified Format" and "Incomplete Lines".
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NoReturn

from imgbuild.content.diffpath import Place, shown

_HUNK = re.compile(rb"@@ -([0-9]{1,10})(?:,([0-9]{1,10}))? \+([0-9]{1,10})(?:,([0-9]{1,10}))? @@(?=[ \r\n]|$)")
_MARKER = b"\\ "


@dataclass(frozen=True, slots=True, kw_only=True)
class Hunk:
    """One hunk. `old` and `new` are the whole text of each side, context included, markers resolved.

    Starts and counts are in lines and as written: a start is 1-based, or the line *before* where its count is 0.
    `context` counts the lines that both sides share; `ends_in_context` is false where a change is last.
    `patch_line` is the line of its `@@` in the patch, 1-based.
    """

    patch_line: int
    old_start: int
    old_count: int
    new_start: int
    new_count: int
    old: bytes = field(repr=False)
    new: bytes = field(repr=False)
    context: int
    ends_in_context: bool


class PatchLines:
    """The lines of a patch one at a time; a list of all would cost many times the bytes of the patch."""

    def __init__(self, data: bytes, subject: str) -> None:
        self._data = data
        self._subject = subject
        self._next = 0
        self.number = 0
        self.current = b""
        self.advance()

    def advance(self) -> None:
        """Go to the next line; `current` is empty at the end."""
        start = self._next
        self._next = self._end(start)
        self.current = self._data[start : self._next]
        self.number += 1

    def following(self) -> bytes:
        """The line after the current one."""
        return self._data[self._next : self._end(self._next)]

    def place(self) -> Place:
        """The current line, for an error."""
        return Place(self._subject, f"line {self.number}")

    def shown(self) -> str:
        """The current line as an error shows it."""
        return shown(self.current) if self.current else "the end of the patch"

    def _end(self, start: int) -> int:
        return self._data.find(b"\n", start) + 1 or len(self._data)


class _Side:
    """One side of a hunk while it is read."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.text = bytearray()
        self.ended = False

    def take(self, line: bytes) -> bool:
        """Add a line; false where the header or a marker says that there is none."""
        if not self.left or self.ended:
            return False
        self.text += line
        self.left -= 1
        return True


class HunkReader:
    """Reads one hunk; `number` is its place in the file, 1-based, for messages."""

    def __init__(self, lines: PatchLines, number: int) -> None:
        self._lines = lines
        self._number = number

    def read(self) -> Hunk:
        """Read the hunk at the current line and stop after its last line.

        Raises:
            PatchError: the header is malformed, the body has other lines than it counts, a marker is out of place, or
                the hunk changes nothing.
        """
        lines = self._lines
        place, header = lines.place(), lines.shown()
        number = lines.number
        match = _HUNK.match(lines.current)
        if match is None:
            raise place.error(
                f"the header of hunk {self._number} is malformed",
                expected="@@ -line,count +line,count @@",
                actual=header,
            )
        old_start, old_count, new_start, new_count = (1 if group is None else int(group) for group in match.groups())
        if (old_count and not old_start) or (new_count and not new_start):
            raise place.error(f"hunk {self._number} has lines at line 0", actual=header)
        old, new = _Side(old_count), _Side(new_count)
        lines.advance()
        context, ends_in_context = self._body(old, new)
        if old.text == new.text:
            raise place.error(f"hunk {self._number} changes nothing", actual=header)
        return Hunk(
            patch_line=number,
            old_start=old_start,
            old_count=old_count,
            new_start=new_start,
            new_count=new_count,
            old=bytes(old.text),
            new=bytes(new.text),
            context=context,
            ends_in_context=ends_in_context,
        )

    def _body(self, old: _Side, new: _Side) -> tuple[int, bool]:
        """Read the lines of a hunk into its sides; return the context lines and whether one is last."""
        # A bare newline is an empty context line: GNU diff and git write it when told to suppress blank ends.
        kinds = {b" ": (old, new), b"\n": (old, new), b"-": (old,), b"+": (new,)}
        lines = self._lines
        context = 0
        last: tuple[_Side, ...] = ()
        marked = False
        while old.left or new.left or lines.current.startswith(_MARKER):
            line = lines.current
            if line.startswith(_MARKER):
                self._mark(() if marked else last)
                marked = True
            else:
                last = kinds.get(line[:1], ())
                text = line if line == b"\n" else line[1:]
                if not (last and line.endswith(b"\n") and all(side.take(text) for side in last)):
                    self._refuse(old, new)
                context += len(last) > 1
                marked = False
            lines.advance()
        return context, len(last) > 1

    def _mark(self, last: tuple[_Side, ...]) -> None:
        r"""Handle `\ No newline at end of file` after a line of `last`; its words depend on the locale."""
        if not last or any(bytes(side.text[-2:]) in {b"\n", b"\n\n"} for side in last):
            raise self._lines.place().error(
                f"hunk {self._number} has a no-newline marker that follows no line or an empty one",
                actual=self._lines.shown(),
            )
        for side in last:
            del side.text[-1]
            side.ended = True

    def _refuse(self, old: _Side, new: _Side) -> NoReturn:
        line = self._lines.current
        problem = f"hunk {self._number} does not have the lines that its header counts"
        if line and not line.endswith(b"\n"):
            problem = f"hunk {self._number}: the patch ends in the middle of a line"
        elif old.ended or new.ended:
            problem = f"hunk {self._number} goes on after a no-newline marker"
        raise self._lines.place().error(
            problem, expected=f"{old.left} more old and {new.left} more new lines", actual=self._lines.shown()
        )


def check_order(before: Hunk, hunk: Hunk, number: int, place: Place) -> None:
    """Refuse hunk `number` where its old lines begin before the old lines of `before` end."""
    after = before.old_start + max(before.old_count, 1)
    if hunk.old_start < after:
        raise place.error(
            f"hunk {number} overlaps the hunk before it, or is out of order",
            expected=f"old line {after} or later",
            actual=f"old line {hunk.old_start}",
        )
