"""What `--json` prints instead of a result where the work could not be done: a contract, as `cli.results`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from imgbuild.errors import OfPatch, UnresolvedError
from imgbuild.model.decode import Document

if TYPE_CHECKING:
    from imgbuild.errors import AvailabilityError, ImgbuildError


class CauseBody(Document, frozen=True, kw_only=True):
    """One of several reasons, with its own `code`; `pin` is its name."""

    pin: str
    code: str
    message: str
    hint: str | None = None


class HunkBody(Document, frozen=True, kw_only=True):
    """A hunk that does not apply: its lines with their signs, and those of the file from line `at` on.

    `there` has `!` before each line that the hunk does not expect, else a blank. Without `number` and `header` it is
    the text that an edit does not find.
    """

    number: int | None = None
    header: str | None = None
    lines: list[str]
    at: int
    there: list[str]


class ChangedFileBody(Document, frozen=True, kw_only=True):
    """A file that a step touches first, which a moved base has otherwise than the lock's."""

    path: str
    step: str
    recorded: str
    found: str


class PatchBody(Document, frozen=True, kw_only=True):
    """What a patch or an edit does not fit: a file of the image, as a step found it and as the lock has it.

    `changed` are all files that steps touch and that a moved base has otherwise, this one too if it is one of them.
    """

    path: str | None = None
    step: str | None = None
    recorded: str | None = None
    found: str | None = None
    hunk: HunkBody | None = None
    changed: list[ChangedFileBody]


class ErrorBody(Document, frozen=True, kw_only=True):
    """Why the work could not be done; `code` is stable."""

    code: str
    exit_code: int
    message: str
    subject: str
    problem: str
    expected: str | None = None
    actual: str | None = None
    where: str | None = None
    hint: str | None = None
    patch: PatchBody | None = None
    causes: list[CauseBody] = []  # noqa: RUF012 - msgspec copies empty mutable defaults


class ErrorDocument(Document, frozen=True, kw_only=True):
    """What stands on stdout instead of a result."""

    schema: Literal["imgbuild/error/v1"]
    tool: dict[str, str]
    error: ErrorBody


def error_body(error: ImgbuildError) -> ErrorBody:
    """An error as its document has it."""
    fields = {name: _unicode(text) for name, text in error.fields().items()}
    return ErrorBody(
        code=error.code,
        exit_code=error.exit_code,
        message=_unicode(str(error)),
        patch=_patch(error),
        causes=[
            CauseBody(
                pin=pin,
                code=cause.code,
                message=_unicode(str(cause)),
                hint=None if cause.hint is None else _unicode(cause.hint),
            )
            for pin, cause in _causes(error)
        ],
        **fields,
    )


def _patch(error: ImgbuildError) -> PatchBody | None:
    if not isinstance(error, OfPatch) or (error.file is None and error.hunk is None and not error.changed):
        return None
    file, hunk = error.file, error.hunk
    return PatchBody(
        path=None if file is None else file.path,
        step=None if file is None else file.step,
        recorded=None if file is None else file.recorded,
        found=None if file is None else file.found,
        hunk=None
        if hunk is None
        else HunkBody(
            number=hunk.number, header=hunk.header, lines=list(hunk.lines), at=hunk.at, there=list(hunk.there)
        ),
        changed=[
            ChangedFileBody(path=one.path, step=one.step, recorded=one.recorded or "", found=one.found)
            for one in error.changed
        ],
    )


def _causes(error: ImgbuildError) -> tuple[tuple[str, AvailabilityError], ...]:
    """Why, one by one, where there are several reasons."""
    return error.causes if isinstance(error, UnresolvedError) else ()


def _unicode(text: str) -> str:
    """Text that UTF-8 can say: an argument that is not UTF-8 reaches us with halves of surrogate pairs."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
