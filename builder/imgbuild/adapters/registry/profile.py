"""What registries do otherwise than the specification says, as data; found by the host's name, or set in the settings.

Facts come from bug reports (cases C45, C48, C49, P79), not from runs against these hosts: those are *not verified*.
What a registry does is noticed at run time, too; a profile only spares the first failure.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass

from imgbuild.config import GIB, MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One kind of registry. Sizes in bytes."""

    name: str
    hosts: tuple[str, ...] = ()
    """Patterns of host names."""
    range_counts: bool = True
    """Whether the `Range` of an upload says how much is there (case C48: ECR's stays at the first piece)."""
    resumable: bool = True
    """Whether an upload can go on after a break; where not, it begins anew."""
    chunk_bytes: int = 64 * MIB
    """bytes of one piece of an upload, unless the registry asks for more."""
    max_blob_bytes: int | None = None
    """bytes of the largest layer (case P79: GHCR takes 10 GB)."""
    mounts: bool = True
    """Whether it is of use to ask for a blob of another repository."""


GENERIC = Profile(name="generic")
PROFILES = (
    GENERIC,
    Profile(name="ecr", hosts=("*.dkr.ecr.*.amazonaws.com", "public.ecr.aws"), range_counts=False, resumable=False),
    # Its limit of 20 GB is for one request (case C49), and what is large goes in pieces.
    Profile(name="quay", hosts=("quay.io",)),
    Profile(name="ghcr", hosts=("ghcr.io",), max_blob_bytes=10 * GIB),
    Profile(name="jfrog", hosts=("*.jfrog.io",), mounts=False),
)


def profile_of(host: str, name: str | None = None) -> Profile:
    """The profile with a name, else the one for a host, else the generic one. An unknown name is a `KeyError`."""
    if name is not None:
        return {profile.name: profile for profile in PROFILES}[name]
    bare = host.partition(":")[0].lower()
    for profile in PROFILES:
        if any(fnmatch.fnmatchcase(bare, pattern) for pattern in profile.hosts):
            return profile
    return GENERIC
