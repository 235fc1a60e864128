"""Hypothesis strategies for whole locks: every field of every class, in every shape that a lock may have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from hypothesis import strategies as st
from imgbuild.digest import Digest
from imgbuild.model.image import FORMAT
from imgbuild.model.lockfile import (
    SCHEMA,
    Facts,
    FileStates,
    HostWheel,
    Input,
    LibraryFacts,
    Lock,
    LockedBase,
    LockedFile,
    LockedGit,
    LockedImageMember,
    LockedLayer,
    LockedMember,
    LockedSource,
    LockedToolchain,
    LockedUrl,
    LockedWheel,
    Pins,
    Result,
    ResultLayer,
    TouchedFile,
    digest_of_inputs,
)

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

HEX = "0123456789abcdef"
TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
NAMES = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,12}", fullmatch=True)
SIZES = st.integers(0, 2**53)
PATHS = st.text(st.characters(codec="utf-8", exclude_characters="\n"), min_size=1, max_size=12).map("/{}".format)
DIGESTS = st.builds(Digest, st.just("sha256"), st.text(HEX, min_size=64, max_size=64)) | st.builds(
    Digest, st.just("sha512"), st.text(HEX, min_size=128, max_size=128)
)
URLS = st.text(HEX, min_size=1).map("https://host.example:8443/{}".format)
COMMITS = st.text(HEX, min_size=40, max_size=40) | st.text(HEX, min_size=64, max_size=64)
STATES = (
    st.just("absent")
    | st.text(HEX, min_size=64, max_size=64).map("sha256:{}".format)
    | PATHS.map(lambda text: f"link:{text[1:]}")
)


def lists(of: st.SearchStrategy[T], *, min_size: int = 0) -> st.SearchStrategy[list[T]]:
    return st.lists(of, min_size=min_size, max_size=3)


def builds(kind: Callable[..., T], **fields: Any) -> st.SearchStrategy[T]:
    """A strategy for each field; what is given as a value stands as it is."""
    return st.builds(
        kind, **{name: item if isinstance(item, st.SearchStrategy) else st.just(item) for name, item in fields.items()}
    )


BASES = builds(
    LockedBase,
    reference=TEXTS,
    tag_for_humans=st.none() | TEXTS,
    index=st.none() | DIGESTS,
    manifest=DIGESTS,
    media_type=TEXTS,
    manifest_size=SIZES,
    config=DIGESTS,
).filter(lambda base: base.index != base.manifest)
HOSTS = builds(HostWheel, platforms=lists(TEXTS), filename=TEXTS, digest=DIGESTS)
SOURCES = st.one_of(
    builds(LockedGit, name=NAMES, repository=TEXTS, ref=TEXTS, commit=COMMITS, tree=COMMITS, content=DIGESTS),
    builds(
        LockedWheel,
        name=NAMES,
        distribution=TEXTS,
        version=TEXTS,
        platforms=lists(TEXTS),
        python=TEXTS,
        filename=TEXTS,
        digest=DIGESTS,
        size=SIZES,
    ),
    builds(LockedFile, name=NAMES, digest=DIGESTS, size=SIZES),
    builds(LockedUrl, name=NAMES, url=URLS, digest=DIGESTS, size=SIZES),
    builds(LockedImageMember, name=NAMES, image=TEXTS, platform=TEXTS, path=PATHS, digest=DIGESTS, size=SIZES),
    builds(
        LockedToolchain,
        name=NAMES,
        distribution=TEXTS,
        version=TEXTS,
        hosts=st.dictionaries(
            NAMES, builds(HostWheel, platforms=lists(TEXTS), filename=TEXTS, digest=DIGESTS), max_size=3
        ),
    ),
)


@st.composite
def sources(draw: st.DrawFn) -> list[LockedSource]:
    """Sources of all kinds; a member is of a wheel that is among them."""
    found: list[LockedSource] = draw(st.lists(SOURCES, max_size=4, unique_by=lambda source: source.name))
    for wheel in [source for source in found if isinstance(source, LockedWheel)]:
        name = f"{wheel.name}-m"
        if draw(st.booleans()) and name not in {source.name for source in found}:
            member = builds(
                LockedMember,
                name=name,
                wheel=wheel.name,
                wheel_digest=wheel.digest,
                member=TEXTS,
                digest=DIGESTS,
                size=SIZES,
            )
            found.append(draw(member))
    return found


PINS = builds(
    Pins,
    format=FORMAT,
    epoch=st.integers(0, 8589934591),
    base=BASES,
    sources=sources(),
    files=st.lists(
        builds(FileStates, step=TEXTS, path=PATHS, states=lists(STATES, min_size=2)),
        max_size=3,
        unique_by=lambda row: (row.step, row.path),
    ),
)
FACTS = builds(
    Facts,
    base_layers=lists(
        builds(LockedLayer, digest=DIGESTS, media_type=TEXTS, size=SIZES, diff_id=DIGESTS, inventory=DIGESTS)
    ),
    base_tree=DIGESTS,
    touched=lists(
        builds(
            TouchedFile,
            path=PATHS,
            layer=st.integers(0, 200),
            mode=TEXTS,
            owner=TEXTS,
            size=SIZES,
            digest=st.none() | DIGESTS,
            distribution=st.none() | TEXTS,
        )
    ),
    libraries=lists(
        builds(
            LibraryFacts,
            name=NAMES,
            machine=TEXTS,
            soname=TEXTS,
            build_id=st.none() | TEXTS,
            glibc=st.none() | TEXTS,
            replaced=DIGESTS,
            replaced_build_id=st.none() | TEXTS,
        )
    ),
)
RESULTS = builds(
    Result,
    layers=lists(builds(ResultLayer, name=TEXTS, diff_id=DIGESTS, digest=DIGESTS, size=SIZES, inventory=DIGESTS)),
    config=DIGESTS,
    manifest=DIGESTS,
)


@st.composite
def locks(draw: st.DrawFn) -> Lock:
    """Any lock that the parser must accept."""
    inputs = draw(lists(builds(Input, name=TEXTS, digest=DIGESTS)))
    return Lock(
        schema=SCHEMA,
        image=draw(NAMES),
        platform=draw(TEXTS),
        inputs_digest=digest_of_inputs(inputs),
        inputs=inputs,
        pins=draw(PINS),
        facts=draw(st.none() | FACTS),
        result=draw(st.none() | RESULTS),
    )
