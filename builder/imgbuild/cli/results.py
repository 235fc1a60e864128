"""What `--json` prints: a contract. Human output may change, these documents only with their version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from imgbuild import __version__
from imgbuild.digest import Digest
from imgbuild.model.decode import Document
from imgbuild.model.plan import Plan

if TYPE_CHECKING:
    from imgbuild.errors import AvailabilityError, ImgbuildError
    from imgbuild.ledger import Ledger
    from imgbuild.model.identity import Report
    from imgbuild.steps.lock import LockChange


SchemaT = TypeVar("SchemaT")
BodyT = TypeVar("BodyT")


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


class ResultDocument(Document, Generic[SchemaT, BodyT], frozen=True, kw_only=True):
    """What stands on stdout where the work was done, whether the answer is yes or no."""

    schema: SchemaT
    tool: dict[str, str]
    result: BodyT


class FindingBody(Document, frozen=True, kw_only=True):
    """One check and its answer."""

    check: str
    subject: str
    verdict: Literal["match", "differs", "not-checked"]
    required: bool
    expected: str | None = None
    actual: str | None = None
    reason: str | None = None


class MovedBody(Document, frozen=True, kw_only=True):
    """Bytes read from and written to one place."""

    place: str
    read: int
    written: int


class LayerBody(Document, frozen=True, kw_only=True):
    """One layer that was added; size in bytes as stored."""

    name: str
    digest: Digest
    diff_id: Digest
    size: int


class ReplacedBody(Document, frozen=True, kw_only=True):
    """A file of the base that the image has with other content, or no more (`after` absent)."""

    path: str
    before: str
    after: str
    step: str


class MovedTagBody(Document, frozen=True, kw_only=True):
    """A tag that was written, and the manifest that it named before, if it was there."""

    tag: str
    before: Digest | None = None


class PushedBody(Document, frozen=True, kw_only=True):
    """What became of the blobs in a registry; `tags` name the image there, and those in `moved` did not before."""

    repository: str
    tags: list[str]
    moved: list[MovedTagBody]
    present: int
    mounted: int
    sent: int
    sent_bytes: int


class OutputBody(Document, frozen=True, kw_only=True):
    """A folder or file that has the image: bytes of the file, or of all blobs in a layout, and the digest of a file.

    `copied` are the bytes that were written; a layout may have had the rest.
    """

    kind: Literal["oci", "oci-archive", "docker-archive"]
    path: str
    names: list[str]
    bytes: int
    copied: int
    digest: Digest | None = None


class LoadedBody(Document, frozen=True, kw_only=True):
    """A Docker that has the image: what it calls it (`id`), and of what that is the digest.

    `sent` is false where it had the image already.
    """

    host: str
    version: str
    id: Digest
    matched: Literal["config", "manifest"]
    names: list[str]
    sent: bool


class ChangeBody(Document, frozen=True, kw_only=True):
    """One field of the lock that changed."""

    path: str
    old: str | None = None
    new: str | None = None


class RelockedBody(Document, frozen=True, kw_only=True):
    """What is new in a lock, and whether it was written."""

    written: bool
    changes: list[ChangeBody]


class BuildBody(Document, frozen=True, kw_only=True):
    """What was built. `tags` is empty where it did not pass, or was a dry run; `pushed` stands where it was pushed.

    `outputs` and `loaded` stand where they were asked for and made; `relocked` where the lock was made on the way.
    """

    image: str
    ok: bool
    manifest: Digest
    config: Digest
    base: Digest
    store: str
    tags: list[str]
    pushed: PushedBody | None = None
    outputs: list[OutputBody] = []  # noqa: RUF012 - msgspec copies empty mutable defaults
    loaded: LoadedBody | None = None
    relocked: RelockedBody | None = None
    layers: list[LayerBody]
    replaced: list[ReplacedBody]
    findings: list[FindingBody]
    moved: list[MovedBody]


class BuildDocument(ResultDocument[Literal["imgbuild/build-result/v1"], BuildBody], frozen=True, kw_only=True):
    """`imgbuild build --json`."""


class VerifyBody(Document, frozen=True, kw_only=True):
    """All findings about one image."""

    image: str
    ok: bool
    manifest: Digest
    findings: list[FindingBody]
    moved: list[MovedBody]


class VerifyDocument(ResultDocument[Literal["imgbuild/verify-report/v1"], VerifyBody], frozen=True, kw_only=True):
    """`imgbuild verify --json`."""


class PlanDocument(Document, frozen=True, kw_only=True):
    """`imgbuild plan --json`."""

    schema: Literal["imgbuild/plan-result/v1"]
    tool: dict[str, str]
    digest: Digest
    result: Plan


class InventoryLayer(Document, frozen=True, kw_only=True):
    """One layer in numbers; sizes in bytes. `taken` says where from: the layer's own bytes, or the cache."""

    taken: Literal["cached", "read"]
    digest: Digest
    diff_id: Digest
    inventory: Digest
    size: int
    uncompressed_size: int
    entries: int
    files: int
    elf_files: int


class PublishedBody(Document, frozen=True, kw_only=True):
    """Inventories that were attached to their image: `sent_bytes` of `total_bytes` were not there yet."""

    repository: str
    referrer: Digest
    sent_bytes: int
    total_bytes: int


class InventoryBody(Document, frozen=True, kw_only=True):
    """The layers of one image; `published` stands where they were attached to it."""

    reference: str
    manifest: Digest
    layers: list[InventoryLayer]
    notes: list[str]
    published: PublishedBody | None = None
    moved: list[MovedBody]


class InventoryDocument(
    ResultDocument[Literal["imgbuild/inventory-result/v1"], InventoryBody], frozen=True, kw_only=True
):
    """`imgbuild inventory --json`."""


class CheckPinBody(Document, frozen=True, kw_only=True):
    """One pin of the lock: who was asked (`where`), what became of it, and what to do where it is not alive."""

    kind: Literal["base", "git", "wheel", "toolchain", "file", "url", "image-member"]
    name: str
    what: str
    pin: str
    where: str
    verdict: Literal["alive", "gone", "differs", "not-allowed", "unreachable"]
    detail: str | None = None
    hint: str | None = None


class CheckTagBody(Document, frozen=True, kw_only=True):
    """What the base's tag for humans names now; it decides nothing."""

    reference: str
    state: Literal["same", "moved", "gone", "unknown"]
    now: Digest | None = None


class CheckBody(Document, frozen=True, kw_only=True):
    """Whether all pins are alive (`ok`), and whether all could be asked for (`complete`)."""

    image: str
    ok: bool
    complete: bool
    pins: list[CheckPinBody]
    tag: CheckTagBody | None = None
    moved: list[MovedBody]


class CheckDocument(ResultDocument[Literal["imgbuild/check-result/v1"], CheckBody], frozen=True, kw_only=True):
    """`imgbuild check --json`."""


TOOL = {"name": "imgbuild", "version": __version__}


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
            for pin, cause in causes_of(error)
        ],
        **fields,
    )


def _patch(error: ImgbuildError) -> PatchBody | None:
    from imgbuild.errors import OfPatch  # noqa: PLC0415 - keeps --help fast

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


def causes_of(error: ImgbuildError) -> tuple[tuple[str, AvailabilityError], ...]:
    """Why, one by one, where there are several reasons."""
    from imgbuild.errors import UnresolvedError  # noqa: PLC0415 - keeps --help fast

    return error.causes if isinstance(error, UnresolvedError) else ()


def _unicode(text: str) -> str:
    """Text that UTF-8 can say: an argument that is not UTF-8 reaches us with halves of surrogate pairs."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def change_bodies(changes: tuple[LockChange, ...]) -> list[ChangeBody]:
    """What changed in a lock."""
    return [ChangeBody(path=change.path, old=change.old, new=change.new) for change in changes]


def finding_bodies(report: Report) -> list[FindingBody]:
    """The findings of a report."""
    return [
        FindingBody(
            check=finding.check,
            subject=finding.subject,
            verdict=finding.verdict.value,
            required=finding.required,
            expected=finding.expected,
            actual=finding.actual,
            reason=finding.reason,
        )
        for finding in report.findings
    ]


def moved_bodies(ledger: Ledger) -> list[MovedBody]:
    """The rows of the byte ledger."""
    return [MovedBody(place=row.place, read=row.read, written=row.written) for row in ledger.rows()]
