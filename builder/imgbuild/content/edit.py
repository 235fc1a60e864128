"""The anchored edit: exact text, found exactly as often as declared, replaced."""

from __future__ import annotations

from imgbuild.config import DEFAULT_LIMITS, Limits
from imgbuild.content.hunkshown import missing_text
from imgbuild.errors import StepError

_LINES = 10
"""lines that a hint names."""


def apply_edit(
    before: bytes,
    *,
    find: bytes,
    replace: bytes,
    count: int,
    subject: str,
    where: str,
    limits: Limits = DEFAULT_LIMITS,
) -> bytes:
    """Replace all occurrences of a text that must occur exactly `count` times.

    Args:
        before: the bytes of the file, at most `limits.text_bytes`.
        find: exact bytes, no pattern; not empty. Line endings are part of it.
        replace: other bytes than `find`; may be empty.
        count: how often `find` occurs, at least 1.
        subject: the step as the reader knows it, for messages.
        where: the file, for messages.
        limits: `text_bytes` bounds `before` and the result.

    Raises:
        StepError: another number of occurrences, occurrences that overlap, an edit that says nothing, or a size limit.
            Where there is none, it has the text beside the lines that come nearest to it.

    Not checked: whether `find` still occurs in the result (`replace` may contain it), and so whether a second
    application would be refused; the caller compares digests before and after (case P22).
    """
    if not find:
        raise StepError(subject, "the text to find is empty", where=where)
    if find == replace:
        raise StepError(subject, "changes nothing: the text to find is its replacement", where=where)
    if count < 1:
        raise StepError(subject, "the declared count is not positive", expected=">= 1", actual=count, where=where)
    # Counted apart from replacing, because a result can be many times larger than what is found.
    size = len(before) + count * (len(replace) - len(find))
    if max(len(before), size) > limits.text_bytes:
        raise StepError(
            subject,
            "the file is too large to edit",
            expected=f"<= {limits.text_bytes} bytes",
            actual=f"{len(before)} bytes before, {size} after",
            where=where,
        )
    found = before.count(find)
    if found != count:
        error = StepError(
            subject,
            "the text to find does not occur as often as declared",
            expected=_times(count),
            actual=_times(found),
            where=where,
            hint=_hint(before, find, found),
        )
        if not found:
            error.hunk = missing_text(find, before)
        raise error
    _refuse_overlap(before, find, subject, where)
    # The first occurrence is replaced by another text and nothing before it changes: the result always differs.
    return before.replace(find, replace)


def _refuse_overlap(before: bytes, find: bytes, subject: str, where: str) -> None:
    end = 0
    at = before.find(find)
    while at != -1:
        if at < end:
            raise StepError(
                subject,
                "occurrences of the text to find overlap, so it is not clear which are meant",
                actual=f"again at line {_line(before, at)}",
                where=where,
            )
        end = at + len(find)
        at = before.find(find, at + 1)


def _times(count: int) -> str:
    return f"{count} time" if count == 1 else f"{count} times"


def _hint(before: bytes, find: bytes, found: int) -> str | None:
    if found:
        return f"it stands at line {_places(before, find, found)}; see which are meant, and correct `count` or `find`"
    if find.replace(b"\r\n", b"\n") in before.replace(b"\r\n", b"\n"):
        return "the text occurs with other line endings (CRLF or LF)"
    return None


def _places(before: bytes, find: bytes, found: int) -> str:
    """The lines of the first occurrences, as words."""
    lines: list[str] = []
    at = -1
    for _ in range(min(found, _LINES)):
        at = before.find(find, at + 1 if not lines else at + len(find))
        lines.append(str(_line(before, at)))
    return ", ".join(lines) + (f" and {found - _LINES} more" if found > _LINES else "")


def _line(text: bytes, at: int) -> int:
    return text.count(b"\n", 0, at) + 1
