"""A lock, `locks/<image>.lock.json`: what a definition resolves to (design.md, section 5).

`pins` decide: every input by digest or commit, and the images of the files that steps change. `facts` follow from the
pins and save work; a lock without them is still fully pinned. Facts that contradict the bytes are an integrity error.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from imgbuild import jsontext
from imgbuild.digest import Digest
from imgbuild.errors import DocumentError, LockVersionError
from imgbuild.model.decode import END, Document, builtins, convert, require_schema
from imgbuild.model.image import FORMAT, NO_OPEN_URL, Commit, Epoch, Url, is_open_url
from imgbuild.model.layer import ImagePath, Name, State

SCHEMA = "imgbuild/lock/v1"
ABSENT = "absent"
Size = Annotated[int, Meta(ge=0, le=2**53, description="bytes")]


class LockedBase(Document, frozen=True, kw_only=True):
    """The base by kind of digest; `index` is set only where the reference led to an index (cases P29, P30, C40)."""

    reference: str
    tag_for_humans: str | None = None
    index: Digest | None = None
    manifest: Digest
    media_type: str
    manifest_size: Size
    config: Digest


class LockedGit(Document, frozen=True, kw_only=True, tag_field="kind", tag="git"):
    """A commit, its git tree id, and our own sha256 over the sorted files, which does not rest on SHA-1."""

    name: Name
    repository: str
    ref: str
    commit: Commit
    tree: Annotated[str, Meta(pattern=f"^([0-9a-f]{{40}}|[0-9a-f]{{64}}){END}")]
    content: Digest
    evidence: Annotated[dict[str, Digest], Meta(description="files of the commit by their sha256")] = {}


class LockedWheel(Document, frozen=True, kw_only=True, tag_field="kind", tag="wheel"):
    """One wheel file."""

    name: Name
    distribution: str
    version: str
    platforms: list[str]
    python: str
    filename: str
    digest: Digest
    size: Size


class LockedMember(Document, frozen=True, kw_only=True, tag_field="kind", tag="wheel-member"):
    """One file inside a wheel."""

    name: Name
    wheel: Name
    wheel_digest: Digest
    member: str
    digest: Digest
    size: Size


class LockedFile(Document, frozen=True, kw_only=True, tag_field="kind", tag="file"):
    """An operator's file."""

    name: Name
    digest: Digest
    size: Size


class LockedUrl(Document, frozen=True, kw_only=True, tag_field="kind", tag="url"):
    """A file at an address."""

    name: Name
    url: Url
    digest: Digest
    size: Size


class LockedImageMember(Document, frozen=True, kw_only=True, tag_field="kind", tag="image-member"):
    """One file of another image. Which of its layers has the file follows from the image, and is not pinned."""

    name: Name
    image: str
    platform: str
    path: ImagePath
    digest: Digest
    size: Size


class HostWheel(Document, frozen=True, kw_only=True):
    """The toolchain's wheel for one kind of host."""

    platforms: list[str]
    filename: str
    digest: Digest


class LockedToolchain(Document, frozen=True, kw_only=True, tag_field="kind", tag="toolchain"):
    """A toolchain for every kind of host."""

    name: Name
    distribution: str
    version: str
    hosts: dict[Name, HostWheel]


LockedSingle = LockedFile | LockedUrl | LockedImageMember
LockedLibrary = LockedMember | LockedSingle
"""What a library may come from: one file, with digest and size."""
LockedSource = LockedGit | LockedWheel | LockedToolchain | LockedLibrary


class FileStates(Document, frozen=True, kw_only=True):
    """What one step finds at a path and what it leaves, stage by stage; the first state is the preimage."""

    step: Annotated[str, Meta(description="layer/number, counted from 1")]
    path: ImagePath
    states: Annotated[list[State], Meta(min_length=2)]


class Pins(Document, frozen=True, kw_only=True):
    """What decides."""

    format: int
    epoch: Epoch
    base: LockedBase
    sources: list[LockedSource]
    files: list[FileStates]


class LockedLayer(Document, frozen=True, kw_only=True):
    """A layer of the base with the digest of its inventory."""

    digest: Digest
    media_type: str
    size: Size
    diff_id: Digest
    inventory: Digest


class TouchedFile(Document, frozen=True, kw_only=True):
    """What the base says about a path that the change replaces or removes."""

    path: ImagePath
    layer: Annotated[int, Meta(ge=0, description="index into base_layers")]
    mode: str
    owner: str
    size: Size
    digest: Digest | None = None
    distribution: str | None = None
    record: Annotated[Digest | None, Meta(description="what the owner's RECORD row claims")] = None


class LibraryFacts(Document, frozen=True, kw_only=True):
    """What identifies a swapped library besides its digest."""

    name: Name
    machine: str
    soname: str
    build_id: str | None = None
    glibc: str | None = None
    replaced: Digest
    replaced_build_id: str | None = None


class ResultLayer(Document, frozen=True, kw_only=True):
    """A layer that the change adds, with the digest of its inventory, as the base's layers have one."""

    name: str
    diff_id: Digest
    digest: Digest
    size: Size
    inventory: Digest


class Result(Document, frozen=True, kw_only=True):
    """The expected result."""

    layers: list[ResultLayer]
    config: Digest
    manifest: Digest


class Facts(Document, frozen=True, kw_only=True):
    """What follows from the pins."""

    base_layers: list[LockedLayer]
    base_tree: Annotated[Digest, Meta(description="of the merged view of base_layers, as imgbuild/tree/v4")]
    touched: list[TouchedFile]
    libraries: list[LibraryFacts]


class Input(Document, frozen=True, kw_only=True):
    """A file of the repository that the lock was made from."""

    name: str
    digest: Digest


class Lock(Document, frozen=True, kw_only=True):
    """A whole lock."""

    schema: str
    image: Name
    platform: str
    inputs_digest: Digest
    inputs: list[Input]
    pins: Pins
    facts: Facts | None = None
    result: Result | None = None

    def dump(self) -> bytes:
        """Canonical bytes of the file."""
        return jsontext.dumps(builtins(self))

    def embedded(self, facts: Facts) -> bytes:
        """The bytes that go into the image: with facts, without the result, which would contain itself."""
        return jsontext.dumps(builtins(msgspec.structs.replace(self, facts=facts, result=None)))

    def source(self, name: str) -> LockedSource:
        """The locked source of that name."""
        for source in self.pins.sources:
            if source.name == name:
                return source
        raise DocumentError(
            f"lock of {self.image}",
            (f"pins.sources: has no {name!r}",),
            hint="make the lock again, with `imgbuild lock` as this one was made",
        )


def parse_lock(raw: bytes, *, subject: str) -> Lock:
    """Parse and check; the version is looked at first (`LockVersionError`), then all problems are listed."""
    value: Any = jsontext.loads(raw, subject=subject)
    require_schema(value, SCHEMA, subject=subject)
    lock = convert(value, Lock, subject=subject)
    if lock.pins.format != FORMAT:
        raise LockVersionError(
            subject,
            (f"pins.format: is {lock.pins.format}; this program writes layers of format {FORMAT} only",),
            hint="use the imgbuild release that made the lock, or run `imgbuild lock IMAGE` with this one",
        )
    names = [source.name for source in lock.pins.sources]
    problems = [f"pins.sources: {name!r} stands twice" for name in sorted(set(names)) if names.count(name) > 1]
    problems += _contradictions(lock)
    if digest_of_inputs(lock.inputs) != lock.inputs_digest:
        problems.append("inputs_digest: is not the digest of inputs")
    if not problems and lock.dump() != raw:
        problems.append("is not in canonical form (sorted keys, two spaces, no defaults, one newline at the end)")
    if problems:
        raise DocumentError(subject, tuple(problems))
    return lock


def _contradictions(lock: Lock) -> list[str]:
    """Pins that say two things."""
    rows = Counter((row.step, row.path) for row in lock.pins.files)
    wheels = {source.name: source.digest for source in lock.pins.sources if isinstance(source, LockedWheel)}
    urls = [source for source in lock.pins.sources if isinstance(source, LockedUrl)]
    members = [source for source in lock.pins.sources if isinstance(source, LockedMember)]
    same = lock.pins.base.index == lock.pins.base.manifest
    return [
        *(["pins.base.index: is the digest of the manifest"] if same else []),
        *(f"pins.files: {step} {path} stands twice" for (step, path), count in sorted(rows.items()) if count > 1),
        *(
            f"pins.sources[{member.name}].wheel_digest: is not the digest of {member.wheel!r}"
            for member in members
            if wheels.get(member.wheel) != member.wheel_digest
        ),
        *(f"pins.sources[{source.name}].url: {NO_OPEN_URL}" for source in urls if not is_open_url(source.url)),
    ]


def digest_of_inputs(inputs: list[Input]) -> Digest:
    """The digest over names and digests of all inputs, sorted by name."""
    return Digest.of(jsontext.dumps(builtins(sorted(inputs, key=lambda item: item.name))))
