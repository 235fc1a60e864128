"""Apply unified diffs and anchored edits to bytes in memory, exactly or not at all.

Stricter than `git apply` and GNU patch: fuzz 0, no `ed` scripts, no reject files, no path outside the tree, no effect
on a second application (cases P22, P63, P64; `git apply` CVE-2023-23946 and -25652; GNU patch CVE-2015-1196,
CVE-2018-1000156, CVE-2019-13638). Whether the result is the wanted one is for digests to
decide, which the caller compares.

Where a hunk goes:

- At its stated line, if its old text stands there byte for byte.
- Else, and for every hunk after one that was moved or whose two line numbers disagree, where its old text stands, if
  that is exactly one place in the whole file and after the hunk before it. Such offsets are part of the result.
- A hunk of line 0 or 1 only at the start of the file, one without context after its last change only at the end (both
  as `git apply`), one that only inserts and has no context at all only into an empty file.
- Never where its new text already stands at the stated line.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NoReturn

from imgbuild.config import DEFAULT_LIMITS, GIB, Limits
from imgbuild.content.diffhunk import Hunk
from imgbuild.content.diffpath import Place, first_difference, shown, shown_pair
from imgbuild.content.edit import apply_edit
from imgbuild.content.hunkshown import failed_hunk
from imgbuild.content.unidiff import FilePatch, parse_patch
from imgbuild.errors import PatchError

__all__ = ["Applied", "FilePatch", "Hunk", "apply_edit", "apply_file", "parse_patch"]

SEARCH_BYTES = 2 * GIB
"""bytes read to find the moved hunks of one file: seconds. 1,000 moved hunks in a file of 2 MiB are within it; without
it a hostile patch costs hunks times bytes of the file."""
_ANEW = "make the patch anew against this file, with context lines (-U3)"
_NEWLINE = b"\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """The result of one file: `data` is its new bytes, None where it is deleted.

    `offsets` has one number per hunk: lines between where it was found and the stated line, 0 where it fits exactly,
    negative where it was found earlier.
    """

    data: bytes | None = field(repr=False)
    offsets: tuple[int, ...]


def apply_file(patch: FilePatch, before: bytes | None, *, subject: str, limits: Limits = DEFAULT_LIMITS) -> Applied:
    """Apply the hunks of one file, all or none.

    Args:
        patch: one file of `parse_patch`.
        before: the bytes of the file, at most `limits.text_bytes`; None where there is no such file.
        subject: the patch as the reader knows it, for messages.
        limits: `text_bytes` bounds `before` and the result.

    Raises:
        PatchError: the file exists and should not, or the reverse; a hunk does not match, is already applied, or could
            go to several places (then it has that `hunk`); a deletion leaves text; the result equals `before` or is too
            large.

    Not checked: that `before` and the result are the wanted ones (compare digests), and that the path is allowed.
    Time is linear in the sizes of file and patch plus `SEARCH_BYTES`; memory is about three times the file.
    """
    place = Place(subject, shown(patch.path))
    _check_existence(patch, before, place)
    text = before or b""
    if len(text) > limits.text_bytes:
        raise place.error(
            "the file is too large to patch", expected=f"<= {limits.text_bytes} bytes", actual=f"{len(text)} bytes"
        )
    pieces: list[bytes] = []
    offsets: list[int] = []
    locator = _Locator(text, place)
    for number, hunk in enumerate(patch.hunks, 1):
        try:
            start, offset = locator.locate(hunk, number)
        except PatchError as error:
            error.hunk = failed_hunk(hunk, number, text)
            raise
        pieces += (text[locator.position : start], hunk.new)
        offsets.append(offset)
        locator.move_past(hunk, start, offset)
    pieces.append(text[locator.position :])
    after = b"".join(pieces)
    if len(after) > limits.text_bytes:
        raise place.error(
            "the patched file is too large", expected=f"<= {limits.text_bytes} bytes", actual=f"{len(after)} bytes"
        )
    if patch.is_delete:
        if after:
            raise place.error("deletes a file but not all of its text", expected="0 bytes left", actual=len(after))
        return Applied(data=None, offsets=tuple(offsets))
    if after == before:
        raise place.error("changes nothing: the file is the same afterwards")
    return Applied(data=after, offsets=tuple(offsets))


def _check_existence(patch: FilePatch, before: bytes | None, place: Place) -> None:
    if patch.is_new and before is not None:
        if before == b"".join(hunk.new for hunk in patch.hunks):
            raise place.error("is already applied: the new file exists with this content")
        raise place.error("makes a new file where one exists", actual=f"a file of {len(before)} bytes")
    if before is None and patch.is_delete:
        raise place.error("is already applied: the file to delete does not exist")
    if before is None and not patch.is_new:
        raise place.error(
            "changes a file that does not exist", hint="check the strip depth and that the base still has the file"
        )


class _Locator:
    """Finds the hunks of one file in order; `position` is the byte after the old text of the last one."""

    def __init__(self, text: bytes, place: Place) -> None:
        self.position = 0
        self._text = text
        self._place = place
        self._line = 0  # lines before `position`
        self._growth = 0  # lines that the hunks so far added
        self._offset = 0  # of the last hunk
        self._moved = False
        self._budget = SEARCH_BYTES

    def locate(self, hunk: Hunk, number: int) -> tuple[int, int]:
        """The byte where the old text of a hunk stands, and its offset in lines from the stated line."""
        if not hunk.old:
            self._check_no_context(hunk, number)
        if self._trusted(hunk):
            stated = self._stated(hunk)
            if stated is not None and self._stands(hunk, hunk.old, stated):
                return stated, 0
            if stated is not None and hunk.new and self._stands(hunk, hunk.new, stated):
                raise self._applied(number, stated)
        start = self._only_place(hunk, number)
        if start < self.position:
            raise self._place.error(
                f"hunk {number} stands before the hunk before it", actual=f"line {self._line_at(start)}"
            )
        self._check_anchors(hunk, number, start)
        return start, self._lines_before(start) - _first_line(hunk.old_start, hunk.old_count)

    def move_past(self, hunk: Hunk, start: int, offset: int) -> None:
        """Take a located hunk as applied."""
        self._line = self._lines_before(start) + hunk.old_count
        self.position = start + len(hunk.old)
        self._growth += hunk.new_count - hunk.old_count
        self._offset = offset
        self._moved = self._moved or offset != 0

    def _trusted(self, hunk: Hunk) -> bool:
        """Whether the stated line says where the hunk goes.

        After a moved hunk it does not, and git and GNU patch would count from different lines; the same where the two
        numbers of the header disagree.
        """
        first = _first_line(hunk.old_start, hunk.old_count)
        return not self._moved and _first_line(hunk.new_start, hunk.new_count) == first + self._growth

    def _stated(self, hunk: Hunk) -> int | None:
        """The byte at which the stated line begins; None where it is before `position` or after the end."""
        lines = _first_line(hunk.old_start, hunk.old_count) + self._offset - self._line
        at = self.position
        for _ in range(lines):
            at = self._text.find(b"\n", at) + 1
            if not at:
                return None
        return at if lines >= 0 else None

    def _stands(self, hunk: Hunk, side: bytes, at: int) -> bool:
        """Whether one side of a hunk stands at a byte, and at the end of the file if the hunk belongs there."""
        at_end = at + len(side) == len(self._text)
        return self._text.startswith(side, at) and (at_end or not _ends_file(hunk))

    def _only_place(self, hunk: Hunk, number: int) -> int:
        """The one byte where the old text of a hunk stands as whole lines."""
        self._budget -= len(self._text)
        if self._budget < 0:
            raise self._place.error(
                f"hunk {number} is not at its line, and too much was searched for such hunks",
                expected=f"<= {SEARCH_BYTES} bytes",
                hint=_ANEW,
            )
        first = self._find(hunk.old)
        if first is None:
            self._refuse_missing(hunk, number)
        again = self._text.find(b"\n" + hunk.old, first) if hunk.old.endswith(b"\n") else -1
        if again != -1:
            raise self._place.error(
                f"hunk {number} is not at its stated line, and the place is not unique",
                expected=f"line {hunk.old_start}",
                actual=f"lines {self._line_at(first)} and {self._line_at(again + 1)}",
                hint=_ANEW,
            )
        return first

    def _find(self, block: bytes) -> int | None:
        """The first byte where a block of whole lines stands; without a last newline it can only stand at the end."""
        if not block.endswith(b"\n"):
            at = len(self._text) - len(block)
            whole = self._text.endswith(block) and (at == 0 or self._text[at - 1 : at] == b"\n")
            return at if whole else None
        if self._text.startswith(block):
            return 0
        return self._text.find(b"\n" + block) + 1 or None

    def _check_no_context(self, hunk: Hunk, number: int) -> None:
        if self._text == hunk.new:
            raise self._applied(number, 0)
        if self._text or hunk.old_start:
            raise self._place.error(
                f"hunk {number} has no context: nothing shows that its place is right",
                expected="lines of context" if hunk.old_start else "an empty file",
                actual=f"a file of {len(self._text)} bytes",
                hint="make the diff with context lines (-U3)",
            )

    def _check_anchors(self, hunk: Hunk, number: int, start: int) -> None:
        if hunk.old_start <= 1 and start:
            wanted, applied_at = "start", 0
        elif _ends_file(hunk) and start + len(hunk.old) != len(self._text):
            wanted, applied_at = "end", start
        else:
            return
        if hunk.new and self._stands(hunk, hunk.new, applied_at):
            raise self._applied(number, applied_at)
        raise self._place.error(
            f"hunk {number} belongs at the {wanted} of the file, and its old text stands elsewhere",
            expected=f"the {wanted} of the file",
            actual=f"line {self._line_at(start)}",
            hint=_ANEW,
        )

    def _refuse_missing(self, hunk: Hunk, number: int) -> NoReturn:
        new_at = self._find(hunk.new) if hunk.new else None
        if new_at is not None:
            raise self._applied(number, new_at)
        stated = self._stated(hunk)
        if stated is None:
            raise self._place.error(
                f"hunk {number} does not match",
                expected=f"{shown(hunk.old.split(_NEWLINE, 1)[0])} at line {hunk.old_start}",
                actual=f"a file of {self._text.count(_NEWLINE)} lines without it",
            )
        line, wanted, found = first_difference(hunk.old, self._text, stated)
        expected, actual = shown_pair(wanted, found)
        space = found != b"" and wanted.split() == found.split()
        raise self._place.error(
            f"hunk {number} does not match: line {self._line_at(stated) + line} is not what the patch expects",
            expected=expected,
            actual=actual,
            hint="only white space or the line ending differs" if space else None,
        )

    def _applied(self, number: int, at: int) -> PatchError:
        return self._place.error(
            f"hunk {number} is already applied: its new text stands at line {self._line_at(at)}",
            hint="remove the patch if the base has the change now",
        )

    def _lines_before(self, at: int) -> int:
        return self._line + self._text.count(b"\n", self.position, at)

    def _line_at(self, at: int) -> int:
        return self._text.count(b"\n", 0, at) + 1


def _first_line(start: int, count: int) -> int:
    """Lines before a hunk: where it has no lines, its start already names the line before."""
    return start - 1 if count else start


def _ends_file(hunk: Hunk) -> bool:
    """Whether the hunk can stand only at the end of the file."""
    return (
        not hunk.ends_in_context or not hunk.old.endswith(b"\n") or (hunk.new != b"" and not hunk.new.endswith(b"\n"))
    )
