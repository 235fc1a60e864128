"""What `--json` prints: a contract. Human output may change, these documents only with their version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from imgbuild import __version__
from imgbuild.digest import Digest
from imgbuild.model.decode import Document
from imgbuild.model.plan import Plan

if TYPE_CHECKING:
    from imgbuild.ledger import Ledger
    from imgbuild.model.identity import Report
    from imgbuild.steps.lock import LockChange


SchemaT = TypeVar("SchemaT")
BodyT = TypeVar("BodyT")


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
