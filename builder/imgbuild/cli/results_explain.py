"""What `imgbuild explain --json` prints: a contract, as `cli.results`."""

from __future__ import annotations

from typing import Literal

from imgbuild.cli.results import MovedBody, ResultDocument
from imgbuild.digest import Digest
from imgbuild.model.decode import Document


class ExplainLayer(Document, frozen=True, kw_only=True):
    """A layer by its number from 0; `name` is `base`, or that of a layer of ours."""

    number: int
    name: str
    digest: Digest


class ExplainEvent(Document, frozen=True, kw_only=True):
    """What a layer does to the path; `where` is the marker, or what is in place of a directory above."""

    layer: ExplainLayer
    what: Literal["has", "removes", "hides"]
    type: str | None = None
    digest: Digest | None = None
    where: str | None = None


class ExplainState(Document, frozen=True, kw_only=True):
    """What a step finds at the path and what it leaves, stage by stage."""

    step: str
    states: list[str]


class ExplainOwner(Document, frozen=True, kw_only=True):
    """A distribution that lists the path; `matches` says whether its row is what is there, if it has a hash."""

    name: str
    version: str
    record: Digest | None = None
    matches: bool | None = None


class ExplainPackage(Document, frozen=True, kw_only=True):
    """A Debian package that lists the path."""

    name: str
    version: str
    architecture: str


class ExplainTry(Document, frozen=True, kw_only=True):
    """One place where the linker looks."""

    rule: str
    path: str
    outcome: str


class ExplainLoad(Document, frozen=True, kw_only=True):
    """A file that asks for the library, or is led to it, and what it loads; None is nothing."""

    path: str
    needed: str
    provider: str | None
    rule: str
    doubt: str | None = None
    trail: list[ExplainTry]


class ExplainLibrary(Document, frozen=True, kw_only=True):
    """What identifies an ELF file, and who loads it."""

    kind: str
    machine: str
    soname: str | None = None
    build_id: str | None = None
    glibc: str | None = None
    texts: list[str]
    loads: list[ExplainLoad]


class ExplainBody(Document, frozen=True, kw_only=True):
    """Where a path comes from. `real`, `type` and what follows are absent where nothing is there."""

    image: str
    path: str
    links: list[str]
    real: str | None = None
    type: str | None = None
    mode: str | None = None
    owner: str | None = None
    size: int | None = None
    digest: Digest | None = None
    link: str | None = None
    origin: ExplainLayer | None = None
    history: list[ExplainEvent]
    unknown: list[ExplainLayer]
    states: list[ExplainState]
    owners: list[ExplainOwner]
    system: list[ExplainPackage]
    system_problem: str | None = None
    """Why `system` may not be all."""
    library: ExplainLibrary | None = None
    moved: list[MovedBody]


class ExplainDocument(ResultDocument[Literal["imgbuild/explain-result/v1"], ExplainBody], frozen=True, kw_only=True):
    """`imgbuild explain --json`."""
