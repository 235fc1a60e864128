"""The exception tree: one root, families by who can fix it, a stable code and an exit code each.

    ImgbuildError
    ├─ UsageError             exit 2   the command line or the environment
    ├─ InputError             exit 3   a file of the repository is wrong
    │  ├─ DocumentError                 a definition or lock does not parse or contradicts itself
    │  │  └─ LockVersionError           made for another version of the format
    │  ├─ LockStaleError                an input changed after the lock was made
    │  ├─ UnpinnedError                 a movable name where a digest or commit is needed
    │  ├─ PatchError                    a patch does not apply exactly, or does nothing
    │  └─ StepError                     a step refuses what it finds
    ├─ IntegrityError         exit 4   bytes are not what was recorded
    │  ├─ DigestMismatchError
    │  ├─ ArchiveError                  a tar, wheel or compressed stream that breaks its format or a limit
    │  ├─ LayoutError                   an image, manifest or layout that breaks the OCI specification
    │  └─ FactMismatchError             a recorded fact differs from what the bytes say
    ├─ AvailabilityError      exit 5   something outside is missing or refused
    │  ├─ OfflineMissError              needed, not here, and --offline forbids fetching
    │  ├─ MissingError                  not in the store, repository or cache
    │  ├─ UnresolvedError               several pins, each with its own error
    │  ├─ ToolError                     a program outside failed or is absent
    │  ├─ StorageError                  the disk is full or not writable
    │  ├─ BudgetError                   more bytes than --max-bytes allows
    │  └─ RegistryError                 a registry refused, and said no more than that
    │     ├─ NetworkError               no connection, or it broke or stalled, after all tries
    │     ├─ CredentialError            the credentials for a host are configured and cannot be had
    │     ├─ UnauthorizedError          401: it wants other credentials than those that were shown
    │     ├─ ForbiddenError             403: it knows who asks, and that one may not
    │     ├─ ThrottledError             429, after all tries
    │     ├─ ServerError                5xx, after all tries where another one may help
    │     ├─ ProtocolError              an answer that breaks the distribution specification
    │     ├─ MissingBlobsError          it lacks blobs that a manifest names
    │     └─ TagTakenError              a tag that may not move names another digest
    └─ InternalError          exit 70  a bug

An exception means that the work could not be done. What a check was asked to look for and found is a
`Finding` (model.identity), never an exception; where one of them says no, the command ends with exit code 1.
This module imports nothing of the package.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedHunk:
    """The first hunk of a patch that does not apply, beside what the file has; bounded, each text one safe line.

    Or the text that an edit does not find: that is like a hunk of old lines only, without number and header.

    Attributes:
        number: of the hunk among those of its file, from 1.
        header: `@@ -1,2 +1,3 @@`.
        lines: of the hunk, with their signs.
        at: the line of the file, from 1, with which `there` begins: where the hunk comes nearest.
        there: lines of the file, each after `!` where the hunk does not expect it, else after a blank; none where the
            file is empty or, of an edit, has nothing like its text.
    """

    number: int | None
    header: str | None
    lines: tuple[str, ...]
    at: int
    there: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchedFile:
    """The file of an image that a step was to patch or edit: `found` is its state then.

    `number` counts the patches of the step before that one. `recorded` is what the lock has as that state; None where
    there is no lock, or it has none.
    """

    path: str
    step: str
    found: str
    recorded: str | None = None
    number: int = 0


class OfPatch:
    """What errors about patches and edits have besides: who knows them on the way up adds them.

    Attributes:
        hunk: the first one that does not fit, if it is one that does not; or the text that an edit does not find.
        file: the file of the image.
        changed: where the base is another one than the lock's: all files that steps touch and that it has otherwise,
            each with the first step that touches it.
    """

    hunk: FailedHunk | None = None
    file: PatchedFile | None = None
    changed: tuple[PatchedFile, ...] = ()


class ImgbuildError(Exception):
    """The root: what is wrong with which thing, what was expected, what was found, where, and what to do.

    Args:
        subject: the thing that is wrong, named as the reader knows it (a path, a step, a reference).
        problem: what is wrong with it, as a clause.
        expected: the value that was recorded or required, whole (digests are never shortened).
        actual: the value that was found.
        where: file, layer, line or field.
        hint: what to do about it, printed on a line of its own; where nothing better is known, `advice` is.

    None of the fields may hold a secret; callers redact before they raise.
    """

    code: ClassVar[str] = "INTERNAL"
    exit_code: ClassVar[int] = 70
    advice: ClassVar[str] = "this is a bug of imgbuild; please report it with the text above"
    """What to do about any error of this class."""

    def __init__(
        self,
        subject: str,
        problem: str,
        *,
        expected: object = None,
        actual: object = None,
        where: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(subject, problem)
        self.subject = subject
        self.problem = problem
        self.expected = None if expected is None else str(expected)
        self.actual = None if actual is None else str(actual)
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        """One line: subject, problem, expected, actual, where. The hint is not part of it."""
        text = f"{self.subject}: {self.problem}"
        if self.expected is not None:
            text += f"; expected {self.expected}"
        if self.actual is not None:
            text += f", actual {self.actual}" if self.expected is not None else f"; actual {self.actual}"
        if self.where is not None:
            text += f" (in {self.where})"
        return text

    def fields(self) -> dict[str, str]:
        """The fields that are set, for `--json`; keys are those of the constructor. There is always a hint."""
        names = ("subject", "problem", "expected", "actual", "where")
        found = {name: value for name in names if (value := getattr(self, name)) is not None}
        return {**found, "hint": self.hint or self.advice}


class UsageError(ImgbuildError):
    """The command line or the environment asks for something that makes no sense."""

    code = "USAGE"
    exit_code = 2
    advice = "see `imgbuild --help`"


class InputError(ImgbuildError):
    """A file of the repository is wrong; whoever edits the repository can fix it."""

    code = "INPUT_INVALID"
    exit_code = 3
    advice = "correct it in the repository, and run it again"


class DocumentError(InputError):
    """A definition, layer definition or lock does not parse, or contradicts itself.

    `problems` holds every problem found, each starting with its path in the document.
    """

    code = "DOCUMENT_INVALID"
    advice = "correct it there; `imgbuild schema` prints what each document may have"

    def __init__(self, subject: str, problems: tuple[str, ...], *, hint: str | None = None) -> None:
        super().__init__(subject, "; ".join(problems), hint=hint)
        self.problems = problems


class LockVersionError(DocumentError):
    """The document was written for a version of the format that this program does not know."""

    code = "LOCK_VERSION"
    advice = "use the imgbuild release that wrote it, or make it again with this one"


class LockStaleError(InputError):
    """The lock was made from other inputs than those in the repository now."""

    code = "LOCK_STALE"
    advice = "run `imgbuild lock IMAGE` and review the difference, or take the change back"


class UnpinnedError(InputError):
    """A movable name stands where only a digest or a commit may."""

    code = "UNPINNED"
    advice = "name a digest or a full commit id, or run `imgbuild lock IMAGE` to pin it"


class PatchError(OfPatch, InputError):
    """A unified diff does not apply exactly, changes nothing, or leaves its list of files."""

    code = "PATCH_REFUSED"
    advice = "make the patch anew against the file as the steps before it leave it, and run `imgbuild lock IMAGE`"


class StepError(OfPatch, InputError):
    """A step found another situation in the tree than the one it declares. Of an edit it has the file and its text."""

    code = "STEP_REFUSED"
    advice = "correct the step in its layer.toml; if it was right, the base has moved: see what it has there now"


class IntegrityError(ImgbuildError):
    """Bytes are not what was recorded."""

    code = "INTEGRITY"
    exit_code = 4
    advice = "get the bytes again from where they come from; if they stay so, do not use them"


class DigestMismatchError(IntegrityError):
    """Content does not have the digest or size under which it was asked for."""

    code = "DIGEST_MISMATCH"


class ArchiveError(IntegrityError):
    """A tar, wheel or compressed stream breaks its format or exceeds a limit."""

    code = "ARCHIVE_INVALID"


class LayoutError(IntegrityError):
    """An image, manifest, config or image layout breaks the OCI specification."""

    code = "LAYOUT_INVALID"


class FactMismatchError(OfPatch, IntegrityError):
    """A fact in the lock differs from what the verified bytes say.

    Of a file that is to be patched it may be what upstream says of it; then it has the file, and the hunk, if any.
    """

    code = "FACT_MISMATCH"
    advice = "was the lock edited? take that back; or remove the lock and run `imgbuild lock IMAGE` to make it anew"


class AvailabilityError(ImgbuildError):
    """Something outside the repository is missing or refused."""

    code = "UNAVAILABLE"
    exit_code = 5
    advice = "see that it can be reached from here, and run it again"


class OfflineMissError(AvailabilityError):
    """Content is needed and not here, and `--offline` forbids fetching it."""

    code = "OFFLINE_MISS"
    advice = "run it once without --offline"


class MissingError(AvailabilityError):
    """Content is in none of the places where it may be."""

    code = "MISSING"
    advice = "fetch or make it again, and see that --store and --cache name the right folders"


class UnresolvedError(AvailabilityError):
    """Several pins cannot be found out from here; `causes` has their names, and of each why."""

    code = "UNRESOLVED"
    advice = "run it where all of these can be reached; what was found out by then is kept"

    def __init__(self, subject: str, causes: tuple[tuple[str, AvailabilityError], ...]) -> None:
        problem = f"has {len(causes)} pins that cannot be found out from here"
        super().__init__(subject, problem, actual=", ".join(name for name, _ in causes))
        self.causes = causes


class ToolError(AvailabilityError):
    """A program outside (pip, git, a compiler) is absent or failed."""

    code = "TOOL_FAILED"
    advice = "install it, or see what it says when it is run by itself"


class StorageError(AvailabilityError):
    """The disk is full, read-only or not permitted."""

    code = "STORAGE"
    advice = "free some space or correct the permissions, and run it again"


class BudgetError(AvailabilityError):
    """The command would move more bytes than `--max-bytes` allows."""

    code = "MAX_BYTES"
    advice = "raise --max-bytes if so many bytes are meant; what was done is kept"


class RegistryError(AvailabilityError):
    """A registry refused a request for a reason that none of the other classes has."""

    code = "REGISTRY"
    advice = "see what the registry says above, and its log"


class NetworkError(RegistryError):
    """No connection, or one that broke or stalled, after all tries."""

    code = "NETWORK"
    advice = "see that the host can be reached from here, and run it again: what was done is kept"


class CredentialError(RegistryError):
    """Credentials are configured for a host and cannot be had. Nothing is tried without them (case C57)."""

    code = "CREDENTIALS"
    advice = "correct the client configuration (`docker login HOST` writes it), and run it again"


class UnauthorizedError(RegistryError):
    """401: the registry wants other credentials than those that were shown."""

    code = "UNAUTHORIZED"
    advice = "log in to that host (`docker login HOST`), and run it again"


class ForbiddenError(RegistryError):
    """403: the registry does not allow this to whoever asks."""

    code = "FORBIDDEN"
    advice = "ask whoever runs the registry for the right to do this"


class ThrottledError(RegistryError):
    """429: too many requests, after all tries."""

    code = "THROTTLED"
    advice = "wait, or log in if that raises the limit, and run it again: what was done is kept"


class ServerError(RegistryError):
    """5xx: the registry failed, after all tries where another one may help."""

    code = "REGISTRY_FAILED"
    advice = "see the log of the registry, and run it again: what was done is kept"


class ProtocolError(RegistryError):
    """An answer that breaks the distribution specification or HTTP."""

    code = "PROTOCOL"
    advice = "report it to whoever runs the registry, with the text above"


class MissingBlobsError(RegistryError):
    """A registry lacks blobs that a manifest names: they were removed meanwhile (case C54), or never sent."""

    code = "BLOBS_UNKNOWN"
    advice = "run it again: what is missing is sent then"


class TagTakenError(RegistryError):
    """A tag that the registry does not let move names another digest (case C55)."""

    code = "TAG_TAKEN"
    advice = "choose another tag; the image is there under its digest"


class InternalError(ImgbuildError):
    """A broken assumption of ours: a bug."""


UNREADABLE = (IntegrityError, MissingError, OfflineMissError, RegistryError)
"""What a verification turns into findings: damaged, not there, or not shown.

A full or failing disk is none of these: then nothing was found out.
"""
