"""Sources of a tiny project's library that are one file, and other images that have it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from imgbuild.adapters.registry.repository import Repository
from imgbuild.digest import Digest
from imgbuild.steps.push import move_tags, push

from tests.support.made import files
from tests.support.refusals import cached
from tests.support.remote import registries
from tests.support.tiny import Tiny

if TYPE_CHECKING:
    from pathlib import Path

    from imgbuild.content.changeset import Change

OTHER = "team/other"
INSIDE = "usr/lib/nccl/libnccl.so.2.30.7"
"""Where other images have the library."""


def digest_of_library(tiny: Tiny) -> str:
    """What every kind of source has to give."""
    return str(Digest.of(tiny.new_library))


def take_from(tiny: Tiny, *, keep: bool = False, **source: Any) -> None:
    """Let the library come from another source, whose bytes are not in the cache."""
    tiny.image = {"sources": {"nccl": {"digest": digest_of_library(tiny), **source}}}
    tiny.write_definition()
    if not keep:
        lose(tiny)


def lose(tiny: Tiny) -> None:
    """Take the library out of the cache."""
    cached(tiny, digest_of_library(tiny)).unlink(missing_ok=True)


def operators_file(tiny: Tiny, data: bytes | None = None) -> Path:
    """A file with the library, or with other bytes."""
    path = tiny.root / "operators.so"
    path.write_bytes(tiny.new_library if data is None else data)
    return path


def image_layers(library: bytes) -> list[list[Change]]:
    """Three layers; the library is in the middle, and a link to it and to its folder in the lowest."""
    return [
        files(
            {"usr/share/below": b"below" * 1000},
            links={"lib": "usr/lib", "usr/lib/libnccl.so.2": f"/{INSIDE}", "usr/lib/round": "round"},
        ),
        files({INSIDE: library}),
        files({"usr/share/above": b"above" * 1000}),
    ]


def other_image(folder: Path, host: str, layers: list[list[Change]]) -> str:
    """Push an image to a registry; returns its reference by digest."""
    other = Tiny(folder)
    folder.mkdir(parents=True, exist_ok=True)
    other.base = layers
    descriptor = other.write_base()
    context = other.context(offline=False)
    manifest = context.store.manifest(descriptor)
    target = Repository(registries().of(host), OTHER)
    push(context, target, manifest, manifest.raw)
    move_tags(target, manifest, manifest.raw, ("v1",))
    return f"{host}/{OTHER}@{descriptor.digest}"
