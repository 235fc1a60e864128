"""`imgbuild plan` of the images that people run prints the whole, also of what a definition extends."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from imgbuild.cli import run
from imgbuild.model.inherit import inherit

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
IMAGES = ("dsv41", "dsv41-267", "dsv41-nvfp4", "dsv41-aiden", "dsv41-1017-vllm", "mini")
ONLY_WITH_V = {"kind", "ref", "platforms", "python", "hosts", "soname", "symbol", "prefixes", "member", "load_order"}
"""Keys of sources and libraries whose values are detail."""


def definition(image: str) -> dict[str, Any]:
    value = tomllib.loads((ROOT / f"locks/{image}.toml").read_text())
    return inherit(definition(value["extends"]), value) if "extends" in value else value


def texts(value: Any, *, whole: bool, key: str = "") -> Iterator[str]:
    """All texts of a definition, and the names of its tables' rows that are no keys of ours."""
    if not whole and key in ONLY_WITH_V:
        return
    match value:
        case dict():
            for name, item in value.items():
                yield from texts(item, whole=whole, key=name)
            if key in {"env", "labels", "digests"}:
                yield from value
        case list():
            for item in value:
                yield from texts(item, whole=whole)
        case str():
            yield value


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert run(["plan", *words, "--project", str(ROOT)]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("image", IMAGES)
def test_every_text_of_a_definition_is_in_its_plan(image: str, capsys: pytest.CaptureFixture[str]) -> None:
    value = {key: item for key, item in definition(image).items() if key != "schema"}
    assert list(texts(value, whole=False))
    for whole, words in ((False, ()), (True, ("-v",))):
        shown = printed(capsys, image, *words)
        assert [text for text in texts(value, whole=whole) if text not in shown] == []


@pytest.mark.parametrize("image", IMAGES)
def test_every_layer_says_what_it_puts_there_and_every_step_what_it_does(
    image: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = printed(capsys, image)
    for name in definition(image)["layers"]:
        layer = tomllib.loads((ROOT / f"layers/{name}/layer.toml").read_text())
        assert f"{name}: {layer['title']}" in shown
        for number, step in enumerate(layer["step"], 1):
            assert f"{name}/{number}  {step['kind']}: " in shown
            paths = [f"{step['root']}/{path}" for path in step.get("files", [])]
            paths += step.get("replaces", []) if step["kind"] == "git-tree" else []
            assert [path for path in paths if path not in shown] == []
    if not definition(image)["layers"]:
        assert "as it is: no layer of ours" in shown


def test_patches_stand_with_the_names_by_which_they_move_and_their_digests(capsys: pytest.CaptureFixture[str]) -> None:
    shown = printed(capsys, "dsv41")
    folder = "runtime/deepseek-v41-sglang/patches"
    for name, digest in (("sglang-39068", "35986cd6debbf34b"), ("bounded-prefill", "15cb2eae1791f735")):
        assert f"      patch {name}: {folder}/{name}.patch\n        sha256:{digest}" in shown
    assert "      patch 0002-bound-the-keys: patches/0002-bound-the-keys.patch\n        sha256:" in printed(
        capsys, "mini"
    )
