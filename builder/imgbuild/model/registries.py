"""`registries.toml`: how registries are reached from here. It never decides what is built: that is named by digest.

Looked for at `--registries`, then in the project, then in the user's configuration folder.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from imgbuild.model.decode import END, Document

SCHEMA = "imgbuild/registries/v1"
Place = Annotated[
    str,
    Meta(
        pattern=rf"^[A-Za-z0-9.\-]+(:[0-9]{{1,5}})?(/[a-z0-9._\-/]+)?{END}",
        description="host[:port], or host[:port]/repository or the beginning of one",
    ),
]


class RegistrySettings(Document, frozen=True, kw_only=True, rename="kebab"):
    """One registry, or one part of it."""

    mirrors: Annotated[list[Place], Meta(description="asked first, in this order, for what is named by digest")] = []
    plain_http: Annotated[bool | None, Meta(description="http instead of https; on loopback that is the default")] = (
        None
    )
    ca: Annotated[str | None, Meta(description="PEM file of certificate authorities, instead of the machine's")] = None
    profile: Annotated[str | None, Meta(description="name of a profile of quirks, instead of its host's")] = None
    chunk_bytes: Annotated[int, Meta(ge=1, description="bytes of one piece of an upload")] | None = None
    parallel: Annotated[int, Meta(ge=1, le=64, description="layers at a time")] | None = None


class RegistriesDocument(Document, frozen=True, kw_only=True):
    """The whole file; keys are places."""

    schema: str
    registry: dict[Place, RegistrySettings] = {}

    def of(self, place: str) -> RegistrySettings:
        """What holds for `host[:port]/repository`: the entry with the longest key that is a beginning of it.

        Whole parts are compared. The longest one counts alone, but what the host's own entry says, and it does not,
        holds for all repositories of the host.
        """
        host = self.registry.get(place.partition("/")[0], RegistrySettings())
        keys = [key for key in self.registry if f"{place}/".startswith(f"{key}/")]
        if not keys:
            return RegistrySettings()
        found = self.registry[max(keys, key=len)]
        return RegistrySettings(
            mirrors=found.mirrors,
            plain_http=host.plain_http if found.plain_http is None else found.plain_http,
            ca=found.ca or host.ca,
            profile=found.profile or host.profile,
            chunk_bytes=found.chunk_bytes or host.chunk_bytes,
            parallel=found.parallel or host.parallel,
        )

    def mirrors_of(self, place: str) -> tuple[str, ...]:
        """`host/repository` of the mirrors of a repository: the key that matched is replaced by each mirror."""
        keys = [key for key in self.registry if f"{place}/".startswith(f"{key}/")]
        if not keys:
            return ()
        key = max(keys, key=len)
        return tuple(mirror + place[len(key) :] for mirror in self.registry[key].mirrors)
