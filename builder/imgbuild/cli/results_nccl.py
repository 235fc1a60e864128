"""What `imgbuild nccl --json` prints: a contract, as `cli.results`."""

from __future__ import annotations

from typing import Literal

from imgbuild.cli.results import MovedBody, ResultDocument
from imgbuild.digest import Digest
from imgbuild.model.decode import Document


class NcclVersion(Document, frozen=True, kw_only=True):
    """The version that a text in the bytes states; `code` is what ncclGetVersion of that version returns."""

    number: str
    code: int
    cuda: str | None = None
    text: str


class NcclMarker(Document, frozen=True, kw_only=True):
    """A name in the bytes by which a patch shows; `present` is absent where it is not known."""

    name: str
    present: bool | None = None


class NcclObject(Document, frozen=True, kw_only=True):
    """GPU code of one kind (`sm_121`, `compute_121`), and in how many fatbins it is."""

    name: str
    count: int


class NcclGpu(Document, frozen=True, kw_only=True):
    """The GPU code; `problem` is why `objects` may not be all."""

    fatbins: int
    objects: list[NcclObject]
    problem: str | None = None


class NcclLibrary(Document, frozen=True, kw_only=True):
    """What identifies one library. What stands in ELF tables is absent where they cannot be read (`problems`).

    `real` and `layer` are of a library of an image, `wheel` and `member` of one in a wheel. Size in bytes.
    """

    asked: str
    real: str | None = None
    layer: Digest | None = None
    wheel: str | None = None
    member: str | None = None
    ok: bool
    problems: list[str]
    digest: Digest
    size: int
    machine: str | None = None
    kind: str | None = None
    soname: str | None = None
    build_id: str | None = None
    version: NcclVersion | None = None
    texts: list[str]
    git: list[str]
    markers: list[NcclMarker]
    variables: list[str]
    """All words that begin with NCCL_; most are names of environment variables."""
    exports: list[str]
    needed: list[str]
    glibc: str | None = None
    glibcxx: str | None = None
    cxxabi: str | None = None
    gpu: NcclGpu


class NcclComparison(Document, frozen=True, kw_only=True):
    """The other library; `differs` names the facts in which the first one differs from it.

    `lacks` are symbols that the other one exports and the first one does not, `adds` the opposite.
    """

    library: NcclLibrary
    same: bool
    differs: list[str]
    lacks: list[str]
    adds: list[str]


class NcclBody(Document, frozen=True, kw_only=True):
    """One library; `definition` are lines for a definition of an image that takes it."""

    library: NcclLibrary
    against: NcclComparison | None = None
    definition: list[str]
    moved: list[MovedBody]


class NcclDocument(ResultDocument[Literal["imgbuild/nccl-result/v1"], NcclBody], frozen=True, kw_only=True):
    """`imgbuild nccl --json`."""
