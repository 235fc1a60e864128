"""`registries.toml`: how registries are reached from here. It never decides what is built: that is named by digest.

It is a file of the user or of `--registries`, never of the project (`adapters.registry.settings.default_file`).
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from imgbuild.model.decode import END, Document

SCHEMA = "imgbuild/registries/v1"
Place = Annotated[
    str,
    Meta(
        pattern=rf"^([A-Za-z0-9.\-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{{1,5}})?(/[a-z0-9._\-/]+)?{END}",
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

    def of(self, host: str) -> RegistrySettings:
        """What holds for a host; its case does not matter."""
        found = [entry for key, entry in self.registry.items() if key.lower() == host.lower()]
        return found[0] if found else RegistrySettings()

    def problems(self) -> tuple[str, ...]:
        """What would be passed over in silence: keys that mean one host, and settings of a part of a registry."""
        found = []
        hosts: set[str] = set()
        for key, entry in self.registry.items():
            host, slash, _ = key.partition("/")
            if slash and entry != RegistrySettings(mirrors=entry.mirrors):
                found.append(f"registry.{key}: has more than mirrors; all else is said of the whole host, {host}")
            if not slash and host.lower() in hosts:
                found.append(f"registry.{key}: is there twice, since the case of a host does not matter")
            hosts |= set() if slash else {host.lower()}
        return tuple(found)

    def mirrors_of(self, place: str) -> tuple[str, ...]:
        """`host/repository` of the mirrors of a repository: the key that matched is replaced by each mirror.

        The longest key that is a beginning of it, by whole parts, counts alone. The host's case does not matter.
        """
        wanted = _folded(place)
        found = [(key, entry) for key, entry in self.registry.items() if f"{wanted}/".startswith(f"{_folded(key)}/")]
        if not found:
            return ()
        key, entry = max(found, key=lambda row: len(row[0]))
        return tuple(mirror + wanted[len(key) :] for mirror in entry.mirrors)


def _folded(place: str) -> str:
    host, slash, path = place.partition("/")
    return f"{host.lower()}{slash}{path}"
