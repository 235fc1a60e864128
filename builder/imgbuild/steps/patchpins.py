"""The patches of an image by name: what `imgbuild lock --update patch:NAME` may move.

A patch is pinned by its file: one of the layer's own, whose digest is among the lock's inputs, or one of a git source,
at that source's commit, and by its digest where the definition has it in `sources.NAME.digests`. Pure functions.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import TYPE_CHECKING

from imgbuild.errors import UsageError
from imgbuild.model.layer import Patch, numbered

if TYPE_CHECKING:
    from collections.abc import Iterable

    from imgbuild.adapters.project import ImageInput, LayerInput

PREFIX = "patch:"
"""Before the name of a patch, where pins of all kinds are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchUse:
    """A step that applies a patch, as its stage `number` (from 0)."""

    layer: LayerInput
    step_id: str
    step: Patch
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchPin:
    """One patch file.

    Attributes:
        name: what it is called: its file name without `.patch` or `.diff`; the whole place where others are called so.
        source: the git source that has it; None where a layer's folder has it.
        stage: its path in the source, or below the layer's folder.
        uses: the steps that apply it, in their order; at least one.
    """

    name: str
    source: str | None
    stage: str
    uses: tuple[PatchUse, ...]

    @property
    def place(self) -> str:
        """Where it is: `layers/LAYER/STAGE`, or `SOURCE/STAGE`."""
        return f"{self.source or f'layers/{self.uses[0].layer.name}'}/{self.stage}"


def patch_pins(image: ImageInput) -> dict[str, PatchPin]:
    """The patches of an image by their names, in the order in which they are applied first."""
    found: dict[tuple[str, str], list[PatchUse]] = {}
    for layer in image.layers:
        for step_id, step in numbered(layer.name, layer.definition):
            for number, stage in enumerate(step.stages if isinstance(step, Patch) else ()):
                assert isinstance(step, Patch)  # noqa: S101 - others have no stages
                key = (f"layers/{layer.name}" if step.source is None else step.source, stage)
                found.setdefault(key, []).append(PatchUse(layer=layer, step_id=step_id, step=step, number=number))
    names = [_short(stage) for _, stage in found]
    pins = {}
    for (folder, stage), uses in found.items():
        name = _short(stage) if names.count(_short(stage)) == 1 else f"{folder}/{stage}"
        pins[name] = PatchPin(name=name, source=uses[0].step.source, stage=stage, uses=tuple(uses))
    return pins


def named_patches(image: ImageInput, names: Iterable[str]) -> tuple[PatchPin, ...]:
    """The patches among the names of pins, sorted by name; a `UsageError` if there is none of such a name."""
    pins = patch_pins(image)
    wanted = sorted(name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX))
    for name in wanted:
        if name not in pins:
            known = ", ".join(pins) or "none: no step of the image is a patch"
            several = [one for one in pins if _short(one) == name]
            problem = "names several patches of the image" if several else "names no patch of the image"
            raise UsageError(f"--update {PREFIX}{name}".rstrip(":"), problem, expected=", ".join(several) or known)
    return tuple(pins[name] for name in wanted)


def _short(stage: str) -> str:
    name = posixpath.basename(stage)
    stem, extension = posixpath.splitext(name)
    return stem if stem and extension in {".patch", ".diff"} else name
