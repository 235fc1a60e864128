"""What `imgbuild lock --json` prints: a contract, as `cli.results`."""

from __future__ import annotations

from typing import Literal

from imgbuild.cli.results import ChangeBody, MovedBody, ResultDocument
from imgbuild.cli.results_nccl import NcclComparison, NcclLibrary
from imgbuild.digest import Digest
from imgbuild.model.decode import Document


class EditBody(Document, frozen=True, kw_only=True):
    """A value of the definition that a pin's move changes."""

    path: str
    old: str
    new: str


class DifferencesBody(Document, frozen=True, kw_only=True):
    """How many names have another value, or are on one side only, and the first of them."""

    count: int
    first: list[ChangeBody]


class PreimageBody(Document, frozen=True, kw_only=True):
    """A file of the base in another state than before, and the first step that touches it."""

    path: str
    step: str
    old: str
    new: str


class MovedBaseBody(Document, frozen=True, kw_only=True):
    """The base, by manifest. Labels and distributions are absent where `problem` says why they are not known."""

    old: Digest
    new: Digest
    labels: DifferencesBody | None = None
    distributions: DifferencesBody | None = None
    problem: str | None = None
    preimages: list[PreimageBody]


class CommitBody(Document, frozen=True, kw_only=True):
    """A commit, and the first line of its message."""

    commit: str
    subject: str


class CommitsBody(Document, frozen=True, kw_only=True):
    """Commits that are new: their number, and the newest. `lost` are those that only the old commit has.

    `is_ancestor` says whether the old commit is an ancestor of the new one; `lost` is absent where that is not known.
    """

    count: int
    newest: list[CommitBody]
    is_ancestor: bool
    lost: int | None = None


class PathsBody(Document, frozen=True, kw_only=True):
    """How many files, and the first of them."""

    count: int
    first: list[str]


class EvidenceBody(Document, frozen=True, kw_only=True):
    """A file of the source that our layers have to follow; `left_off` counts lines that are not in `diff`."""

    path: str
    old: Digest
    new: Digest
    diff: list[str]
    left_off: int
    problem: str | None = None


class MovedGitBody(Document, frozen=True, kw_only=True):
    """A git source, by commit. What is absent is not known, for the reason in the field of its problem."""

    name: str
    old: str
    new: str
    commits: CommitsBody | None = None
    commits_problem: str | None = None
    added: PathsBody | None = None
    removed: PathsBody | None = None
    changed: PathsBody | None = None
    files_problem: str | None = None
    evidence: list[EvidenceBody]


class MovedLibraryBody(Document, frozen=True, kw_only=True):
    """A single file. `library` is what it is now and `against` what it was, as `imgbuild nccl` compares them."""

    name: str
    old: Digest
    new: Digest
    library: NcclLibrary | None = None
    against: NcclComparison | None = None
    problem: str | None = None


class WheelFileBody(Document, frozen=True, kw_only=True):
    """A wheel file; `host` is the kind of host, of a toolchain."""

    host: str | None = None
    old_filename: str | None = None
    old_digest: Digest | None = None
    new_filename: str | None = None
    new_digest: Digest | None = None


class MovedPackageBody(Document, frozen=True, kw_only=True):
    """A wheel or toolchain, by version."""

    name: str
    distribution: str
    old: str
    new: str
    files: list[WheelFileBody]


class HunksBody(Document, frozen=True, kw_only=True):
    """What a patch does to one file: the number of its hunks, and of the lines that it adds and removes."""

    count: int
    added: int
    removed: int


class PatchedPathBody(Document, frozen=True, kw_only=True):
    """A file to which a patch does something else than before; the side that does not touch it is absent."""

    path: str
    old: HunksBody | None = None
    new: HunksBody | None = None


class MovedStatesBody(Document, frozen=True, kw_only=True):
    """The states of a file that a step patches, from its preimage on; none where the step did not list it."""

    path: str
    step: str
    old: list[str]
    new: list[str]


class MovedPatchBody(Document, frozen=True, kw_only=True):
    """A patch, by digest. `files` are the first to which it does something else now; to `same` others it does the same.

    `old` and `files` are absent where `problem` says why they are not known.
    """

    name: str
    place: str
    steps: list[str]
    old: Digest | None = None
    new: Digest
    files: list[PatchedPathBody] | None = None
    same: int
    problem: str | None = None
    states: list[MovedStatesBody]


class MovedPinBody(Document, frozen=True, kw_only=True):
    """What `--update` moved. `definition` is the file that changes with the lock, by the values in `edits`.

    `files` are those of layers that change, too: a patch, and the states after it. `stale` are inputs that had changed
    before, since the lock was made: what they say now is in it, too.
    """

    names: list[str]
    definition: str | None = None
    edits: list[EditBody]
    files: list[str]
    base: MovedBaseBody | None = None
    git: list[MovedGitBody]
    libraries: list[MovedLibraryBody]
    packages: list[MovedPackageBody]
    patches: list[MovedPatchBody]
    stale: list[str]


class LockBody(Document, frozen=True, kw_only=True):
    """What became of the lock; `moved_pin` stands where `--update` was given."""

    image: str
    path: str
    status: Literal["current", "absent", "stale", "incomplete", "written", "would-write"]
    reason: str | None = None
    moved_pin: MovedPinBody | None = None
    changes: list[ChangeBody]
    moved: list[MovedBody]


class LockDocument(ResultDocument[Literal["imgbuild/lock-result/v1"], LockBody], frozen=True, kw_only=True):
    """`imgbuild lock --json`."""
