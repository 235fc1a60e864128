"""An image definition, `locks/<image>.toml`: what is wanted (design.md, section 4)."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from msgspec import Meta

from imgbuild.digest import Digest
from imgbuild.errors import DocumentError
from imgbuild.model.decode import END, Document, convert, require_schema
from imgbuild.model.layer import ImagePath, Name
from imgbuild.model.oci import ConfigChanges
from imgbuild.model.paths import image_path
from imgbuild.model.reference import Reference, check_tag

SCHEMA = "imgbuild/image/v1"
FORMAT = 1
"""The canonical layer format that this program writes (docs/formats.md)."""

Epoch = Annotated[int, Meta(ge=0, le=8589934591, description="seconds since 1970; the time of all that we write")]
"""The largest that ustar's eleven octal digits can say."""

Commit = Annotated[str, Meta(pattern=f"^([0-9a-f]{{40}}|[0-9a-f]{{64}}){END}")]
Platform = Annotated[str, Meta(pattern=f"^linux/(arm64|amd64){END}")]
FileSize = Annotated[int, Meta(ge=0, le=2**53, description="bytes")]
Url = Annotated[
    str, Meta(description="https, or http to this machine; without user, query and fragment, which all would see")
]
"""Looked at by `is_open_url`: what a pattern refuses is quoted, and there may be a password in it."""
_URL = re.compile(
    r"(?:https://[A-Za-z0-9._-]+|https?://(?:localhost|127(?:\.[0-9]{1,3}){3}|\[::1\]))(?::[0-9]{1,5})?/[!-\"$->@-~]*"
)
_URL_LENGTH = 2_000
"""characters."""
NO_OPEN_URL = (
    "is no https address with a path, and without user, query and fragment: what is secret there would be in the lock "
    "and in the image"
)

Reason = Annotated[
    str, Meta(min_length=10, max_length=500, description="why this is right, for the reader of the audit")
]


class Base(Document, frozen=True, kw_only=True):
    """The image that is extended. `tag` is for people and for `lock --update base`; the lock holds the digests."""

    reference: str
    tag: str | None = None
    manifest: Digest | None = None
    config: Digest | None = None
    labels: dict[str, str] = {}


class Health(Document, frozen=True, kw_only=True):
    """A health check; times in whole seconds (config.md writes nanoseconds)."""

    test: Annotated[list[str], Meta(min_length=1)]
    interval: Annotated[int, Meta(ge=1)] = 30
    timeout: Annotated[int, Meta(ge=1)] = 30
    start_period: Annotated[int, Meta(ge=0)] = 0
    retries: Annotated[int, Meta(ge=1)] = 3


class Config(Document, frozen=True, kw_only=True):
    """Changes to the image config; what is not named stays as the base has it."""

    env: dict[Annotated[str, Meta(pattern=f"^[A-Za-z_][A-Za-z0-9_]*{END}")], str] = {}
    labels: dict[str, str] = {}
    entrypoint: list[str] | None = None
    cmd: list[str] | None = None
    workdir: ImagePath | None = None
    user: str | None = None
    ports: list[Annotated[str, Meta(pattern=f"^[0-9]{{1,5}}/(tcp|udp){END}")]] = []
    healthcheck: Health | None = None


class GitSource(Document, frozen=True, kw_only=True, tag_field="kind", tag="git"):
    """A repository. `ref` is what `lock --update` follows; the lock holds commit and tree."""

    repository: str
    ref: str
    commit: Annotated[Commit | None, Meta(description="the only one that will do; else what ref means")] = None
    licence: Annotated[str, Meta(description="SPDX licence expression of the sources")]
    digests: Annotated[
        dict[str, Digest], Meta(description="files of the commit that are known by sha256; others are refused")
    ] = {}
    evidence: Annotated[
        list[str],
        Meta(description="files of the commit whose change has to be seen, though none is used: the lock has them"),
    ] = []


class WheelSource(Document, frozen=True, kw_only=True, tag_field="kind", tag="wheel"):
    """A wheel by name, version and platform tags; the lock holds its file name, size and digest."""

    name: str
    version: str
    platforms: Annotated[list[str], Meta(min_length=1, description="platform tags, all that may match")]
    python: Annotated[str, Meta(pattern=rf"^3\.[0-9]{{1,2}}{END}")] = "3.12"
    digest: Annotated[Digest | None, Meta(description="the only file that will do; else what the index has")] = None


class MemberSource(Document, frozen=True, kw_only=True, tag_field="kind", tag="wheel-member"):
    """One file inside a wheel source; the lock holds its digest and size."""

    wheel: Name
    member: str


class FileSource(Document, frozen=True, kw_only=True, tag_field="kind", tag="file"):
    """An operator's file, which is nowhere but with the operator: it is given by `--source NAME=FILE`."""

    digest: Digest
    size: FileSize | None = None


class UrlSource(Document, frozen=True, kw_only=True, tag_field="kind", tag="url"):
    """A file at an address that anybody may ask: no credentials are in it, and none are shown there."""

    url: Url
    digest: Digest
    size: FileSize | None = None


class ImageMemberSource(Document, frozen=True, kw_only=True, tag_field="kind", tag="image-member"):
    """One file of another image. `platform` chooses from an index; without it, that of the definition does."""

    image: Annotated[str, Meta(description="host/repository@sha256:..., of a manifest or an index")]
    path: ImagePath
    digest: Digest
    size: FileSize | None = None
    platform: Platform | None = None


class ToolchainSource(Document, frozen=True, kw_only=True, tag_field="kind", tag="toolchain"):
    """The cross-compiler as a package: one wheel per kind of host, all of them in the lock."""

    name: str
    version: str
    hosts: dict[Name, Annotated[list[str], Meta(min_length=1)]]


SingleSource = FileSource | UrlSource | ImageMemberSource
"""What is one file, whose digest the definition demands: whoever has these bytes may give them."""
LibrarySource = MemberSource | SingleSource
"""What a library may come from."""
Source = GitSource | WheelSource | ToolchainSource | LibrarySource


class Accepted(Document, frozen=True, kw_only=True):
    """Something the gate would refuse, accepted with a reason. If it is no longer there, that is a finding too."""

    path: ImagePath
    reason: Reason


class AcceptedVariable(Document, frozen=True, kw_only=True):
    """An environment variable the gate would refuse, accepted with a reason."""

    name: str
    value: str
    reason: Reason


class AcceptedRequirement(Document, frozen=True, kw_only=True):
    """A distribution that asks for another version of the library's one than is there, accepted with a reason."""

    distribution: str
    requires: Annotated[str, Meta(min_length=1, description="as its METADATA has it")]
    reason: Reason


class LibraryIdentity(Document, frozen=True, kw_only=True):
    """What a swapped library must be, and that nothing else in the image can be loaded in its place (section 7)."""

    path: ImagePath
    source: Name
    soname: str
    symbol: Annotated[str, Meta(description="exported by every copy of the library, under whatever name")]
    prefixes: Annotated[list[str], Meta(min_length=1, description="prefixes of the symbols that only it provides")]
    strings: Annotated[
        list[Annotated[str, Meta(min_length=1)]],
        Meta(min_length=1, description="texts that its bytes must hold, such as its version"),
    ]
    consumers: Annotated[
        Literal["some", "none"],
        Meta(description="whether files of the image need it by SONAME; none where it is only opened by path"),
    ] = "some"
    accept: list[Accepted] = []
    metadata: list[AcceptedRequirement] = []
    load_order: Annotated[
        list[ImagePath],
        Meta(description="files that a process opens, in this order; then it must have loaded this library only"),
    ] = []
    provided: Annotated[
        list[Annotated[str, Meta(min_length=1)]],
        Meta(description="names that files of load_order need and the host brings, such as libcuda.so.1"),
    ] = []


class Limits(Document, frozen=True, kw_only=True):
    """Budgets of the change."""

    bytes: Annotated[int, Meta(ge=1, description="bytes of all layers added")]
    layers: Annotated[int, Meta(ge=1, le=127, description="layers of the result")] = 127


class ImageDefinition(Document, frozen=True, kw_only=True):
    """One image."""

    schema: str
    extends: Annotated[
        Name | None,
        Meta(description="the image whose definition this one adds to; its name, title and tags are not taken"),
    ] = None
    name: Name
    title: Annotated[str, Meta(min_length=1, max_length=200)]
    platform: Platform
    epoch: Epoch
    format: Annotated[int, Meta(ge=1, le=FORMAT, description="version of the canonical layer format")] = FORMAT
    base: Base
    layers: Annotated[list[Name], Meta(description="in order; none if the image is its base, pinned as it is")]
    tags: Annotated[list[str], Meta(min_length=1)]
    limits: Limits
    config: Config = Config()
    sources: dict[Name, Source] = {}
    library: dict[Name, LibraryIdentity] = {}
    accept_env: list[AcceptedVariable] = []

    def changes(self) -> ConfigChanges:
        """The config changes as values of the OCI model, in the order of the definition."""
        config = self.config
        return ConfigChanges(
            env=tuple(config.env.items()),
            labels=tuple(config.labels.items()),
            entrypoint=None if config.entrypoint is None else tuple(config.entrypoint),
            cmd=None if config.cmd is None else tuple(config.cmd),
            workdir=config.workdir,
            user=config.user,
            ports=tuple(config.ports),
            healthcheck=None if config.healthcheck is None else _health(config.healthcheck),
        )


def is_open_url(url: str) -> bool:
    """Whether an address is one that everybody may see; not whether anybody is there."""
    return len(url) <= _URL_LENGTH and _URL.fullmatch(url) is not None


def parse_image(value: Any, *, subject: str) -> ImageDefinition:
    """From parsed TOML to a definition; a `DocumentError` lists all problems of shape or of reference."""
    require_schema(value, SCHEMA, subject=subject)
    image = convert(value, ImageDefinition, subject=subject)
    Reference.parse(image.base.reference, where=f"{subject}, base.reference")
    for tag in (*image.tags, *([image.base.tag] if image.base.tag else [])):
        check_tag(tag, where=subject)
    for name, library in image.library.items():
        for path in (library.path, *(accepted.path for accepted in library.accept)):
            image_path(path, where=f"{subject}, library.{name}")
    for name, source in image.sources.items():
        if isinstance(source, ImageMemberSource):
            where = f"{subject}, sources.{name}"
            image_path(source.path, where=where)
            Reference.parse(source.image, where=where).pinned(where=where)
    problems = _references(image)
    if problems:
        raise DocumentError(subject, problems)
    return image


def _references(image: ImageDefinition) -> tuple[str, ...]:
    problems = []
    reference = Reference.parse(image.base.reference, where="base.reference")
    if reference.tag is not None:
        problems.append(f"base.reference: holds the tag {reference.tag!r}, which belongs into base.tag")
    if reference.digest is not None:
        problems.append(f"base.reference: holds the digest {reference.digest}, which belongs into base.manifest")
    if not image.layers and image.config != Config():
        problems.append("config: changes an image without layers, which is its base as it is")
    if len(set(image.layers)) != len(image.layers):
        problems.append("layers: a layer is listed twice")
    for name, source in image.sources.items():
        if isinstance(source, MemberSource) and not isinstance(image.sources.get(source.wheel), WheelSource):
            problems.append(f"sources.{name}.wheel: {source.wheel!r} is not a wheel among the sources")
        if isinstance(source, UrlSource) and not is_open_url(source.url):
            problems.append(f"sources.{name}.url: {NO_OPEN_URL}")
        if isinstance(source, SingleSource) and source.digest.algorithm != "sha256":
            problems.append(f"sources.{name}.digest: is {source.digest.algorithm}; a file is pinned by its sha256")
        if isinstance(source, ImageMemberSource) and Reference.parse(source.image, where=f"sources.{name}").tag:
            problems.append(f"sources.{name}.image: holds a tag, which decides nothing beside its digest")
    problems.extend(
        f"library.{name}.source: {library.source!r} is not among the sources"
        for name, library in image.library.items()
        if library.source not in image.sources
    )
    return tuple(problems)


def _health(health: Health) -> dict[str, Any]:
    second = 1_000_000_000
    return {
        "Test": health.test,
        "Interval": health.interval * second,
        "Timeout": health.timeout * second,
        "StartPeriod": health.start_period * second,
        "Retries": health.retries,
    }
