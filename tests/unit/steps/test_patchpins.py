"""The names of patches: short where that is clear, else the whole place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from imgbuild.errors import UsageError
from imgbuild.steps.patchpins import named_patches, patch_pins

if TYPE_CHECKING:
    from tests.support.tiny import Tiny


def names(tiny: Tiny) -> list[str]:
    tiny.write()
    return list(patch_pins(tiny.project().load("tiny")))


def step(*stages: str, **more: str) -> dict[str, object]:
    return {"kind": "patch", "root": "/srv", "stages": list(stages), "files": ["app/auth.py"], **more}


def test_a_patch_is_called_as_its_file_without_the_usual_ends(tiny: Tiny) -> None:
    tiny.files |= {f"tiny-app/{name}": b"" for name in ("a.diff", "b.txt", ".patch", "x.y.patch")}
    tiny.layers["tiny-app"][0] = step("a.diff", "b.txt", ".patch", "x.y.patch")
    assert names(tiny) == ["a", "b.txt", ".patch", "x.y"]


def test_where_several_are_called_so_each_has_its_place_as_its_name(tiny: Tiny) -> None:
    tiny.files |= {"tiny-app/other/1.patch": b"", "tiny-adapter/1.diff": b""}
    tiny.layers["tiny-app"].append(step("other/1.patch"))
    tiny.layers["tiny-adapter"].append(step("1.diff"))
    tiny.layers["tiny-adapter"].append(step("patches/1.patch", source="adapter"))
    assert names(tiny) == [
        "layers/tiny-adapter/1.diff",
        "adapter/patches/1.patch",
        "layers/tiny-app/patches/1.patch",
        "2",
        "layers/tiny-app/other/1.patch",
    ]


def test_a_file_that_two_steps_apply_is_one_patch(tiny: Tiny) -> None:
    tiny.layers["tiny-app"].append(step("patches/2.patch"))
    tiny.write()
    found = patch_pins(tiny.project().load("tiny"))
    assert [use.step_id for use in found["2"].uses] == ["tiny-app/1", "tiny-app/4"]
    assert [(use.number, use.step.stages) for use in found["2"].uses][1] == (0, ["patches/2.patch"])


def test_a_name_that_is_not_there_is_refused_with_those_that_are(tiny: Tiny) -> None:
    image = tiny.write().project().load("tiny")
    assert [pin.name for pin in named_patches(image, ["base", "patch:2", "patch:1"])] == ["1", "2"]
    with pytest.raises(UsageError) as caught:
        named_patches(image, ["patch:3"])
    assert caught.value.expected == "1, 2"
    tiny.layers["tiny-app"] = tiny.layers["tiny-app"][1:]
    with pytest.raises(UsageError) as caught:
        named_patches(tiny.write().project().load("tiny"), ["patch:1"])
    assert caught.value.expected == "none: no step of the image is a patch"
