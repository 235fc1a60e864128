from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from imgbuild.errors import DocumentError, StepError
from imgbuild.steps.check import check_image

if TYPE_CHECKING:
    from tests.support.tiny import Tiny


def test_a_source_that_is_not_there_is_named_once_with_its_file_steps_and_those_that_there_are(tiny: Tiny) -> None:
    step = tiny.layers["tiny-adapter"][0]
    step["source"] = "adaptor"
    tiny.layers["tiny-adapter"].append({**step, "path": "/opt/again"})
    tiny.write()
    with pytest.raises(DocumentError) as caught:
        check_image(tiny.project().load("tiny"))
    assert caught.value.subject == "layers/tiny-adapter/layer.toml"
    assert caught.value.problems == (
        "step tiny-adapter/1, tiny-adapter/3: 'adaptor' is not a source of kind git; there are adapter",
    )


def test_a_source_of_another_kind_is_none_of_the_kind(tiny: Tiny) -> None:
    tiny.layers["tiny-nccl"][0]["source"] = "helper"
    tiny.write()
    with pytest.raises(
        DocumentError,
        match=r"'helper' is not a source of kind wheel-member or file or url or image-member; there are nccl$",
    ):
        check_image(tiny.project().load("tiny"))


def test_a_licence_that_is_no_expression_is_named_with_its_source(tiny: Tiny) -> None:
    path = tiny.root / "locks" / "tiny.toml"
    text = path.read_text()
    assert '"licence" = "' in text
    path.write_text(text.replace('"licence" = "', '"licence" = "not one of '))
    with pytest.raises(DocumentError, match=r"locks/tiny\.toml: sources\.adapter\.licence: "):
        check_image(tiny.project().load("tiny"))


ADAPTER = {"kind": "git", "repository": "adapter.bundle", "ref": "main"}
COMPILE = {"kind": "compile", "source": "adapter", "sources": ["a.c"], "language": "c11", "glibc": "2.34", "path": "/a"}
ZIG = {"kind": "toolchain", "name": "ziglang", "version": "0.15.2", "hosts": {"linux-x86_64": ["any"]}}


def check(tiny: Tiny) -> None:
    tiny.write()
    check_image(tiny.project().load("tiny"))


def test_the_tiny_project_has_no_problem(tiny: Tiny) -> None:
    check(tiny)


@pytest.mark.parametrize("name", ["none", "adapter", "helper", "nccl", "zig"])
@pytest.mark.parametrize(
    ("layer", "step", "field", "kind", "right"),
    [
        ("tiny-adapter", None, "source", "git", "adapter"),
        ("tiny-packages", None, "source", "wheel", "helper"),
        ("tiny-nccl", None, "source", "wheel-member or file or url or image-member", "nccl"),
        ("tiny-app", {**COMPILE, "toolchain": "zig"}, "source", "git", "adapter"),
        ("tiny-app", {**COMPILE, "toolchain": "zig"}, "toolchain", "toolchain", "zig"),
    ],
)
def test_each_step_needs_a_source_of_its_kind(
    tiny: Tiny, layer: str, step: dict[str, Any] | None, field: str, kind: str, right: str, name: str
) -> None:
    tiny.image = {"sources": {"zig": ZIG}}
    if step is not None:
        tiny.layers[layer].insert(0, dict(step))
    tiny.layers[layer][0][field] = name
    if name == right:
        check(tiny)
        return
    with pytest.raises(DocumentError) as caught:
        check(tiny)
    assert caught.value.subject == f"layers/{layer}/layer.toml"
    there = "helper, nccl-wheel" if kind == "wheel" else right
    assert caught.value.problems == (f"step {layer}/1: {name!r} is not a source of kind {kind}; there are {there}",)


def test_where_no_source_of_a_kind_is_there_it_says_none(tiny: Tiny) -> None:
    tiny.layers["tiny-app"].append({**COMPILE, "toolchain": "zig"})
    with pytest.raises(DocumentError, match=r"'zig' is not a source of kind toolchain; there are none$"):
        check(tiny)


def test_all_licences_that_are_none_are_listed(tiny: Tiny) -> None:
    wrong = {name: {**ADAPTER, "licence": licence} for name, licence in (("x", "GPL"), ("y", ""), ("z", "MIT OR"))}
    tiny.image = {"sources": {**wrong, "right": {**ADAPTER, "licence": "MIT OR (Apache-2.0 AND BSD-3-Clause)"}}}
    with pytest.raises(DocumentError) as caught:
        check(tiny)
    assert caught.value.subject == "locks/tiny.toml"
    assert [problem.partition(":")[0] for problem in caught.value.problems] == [
        f"sources.{name}.licence" for name in "xyz"
    ]


# Licence files (case P84)


@pytest.mark.parametrize("licence", ["MIT", "Apache-2.0", "BSD-3-Clause", "MIT-0 AND MIT", "GPL-2.0-only"])
def test_P84_a_source_whose_licence_asks_for_its_text_must_bring_it(tiny: Tiny, licence: str) -> None:
    tiny.image = {"sources": {"adapter": {**ADAPTER, "licence": licence}}}
    del tiny.layers["tiny-adapter"][0]["licence"]
    with pytest.raises(StepError) as caught:
        check(tiny)
    assert caught.value.subject == "source adapter"
    assert caught.value.problem == "is put into the image without its licence file"
    assert caught.value.where == "tiny-adapter/1"
    assert f"since {licence} asks for its text" in str(caught.value.expected)


@pytest.mark.parametrize("licence", ["0BSD", "CC0-1.0", "Unlicense", "MIT-0"])
def test_P84_a_source_whose_licence_does_not_ask_for_its_text_may_leave_it_out(tiny: Tiny, licence: str) -> None:
    tiny.image = {"sources": {"adapter": {**ADAPTER, "licence": licence}}}
    del tiny.layers["tiny-adapter"][0]["licence"]
    check(tiny)


@pytest.mark.parametrize("first", [True, False])
def test_P84_one_step_that_brings_the_licence_is_enough(tiny: Tiny, first: bool) -> None:
    step = tiny.layers["tiny-adapter"][0]
    without = {**step, "path": "/opt/again"}
    del without["licence"]
    tiny.layers["tiny-adapter"].insert(0 if first else 1, without)
    check(tiny)


def test_P84_the_licence_of_another_source_does_not_count(tiny: Tiny) -> None:
    tiny.image = {"sources": {"other": {**ADAPTER, "licence": "MIT"}}}
    other = {**tiny.layers["tiny-adapter"][0], "source": "other", "path": "/opt/other"}
    del other["licence"]
    tiny.layers["tiny-adapter"].append(other)
    with pytest.raises(StepError, match="source other"):
        check(tiny)


def test_P84_a_source_that_no_step_puts_into_the_image_brings_nothing(tiny: Tiny) -> None:
    tiny.image = {"sources": {"zig": ZIG, "other": {**ADAPTER, "licence": "MIT"}}}
    tiny.layers["tiny-app"].append({**COMPILE, "source": "other", "toolchain": "zig"})
    check(tiny)


# Order (cases P12, P13)


WHEEL = {"kind": "wheel", "source": "helper", "site": "/opt/other", "python": "3.12"}


@pytest.mark.parametrize(
    ("layer", "at", "says"),
    [
        ("tiny-nccl", 1, ("tiny-nccl/2", "tiny-nccl/1")),
        ("tiny-nccl", 0, None),
        ("tiny-last", 0, ("tiny-last/1", "tiny-nccl/1")),
        ("tiny-app", 3, None),
    ],
)
def test_P13_no_package_is_installed_after_a_swap(
    tiny: Tiny, layer: str, at: int, says: tuple[str, str] | None
) -> None:
    tiny.layers.setdefault(layer, []).insert(at, WHEEL)
    if says is None:
        check(tiny)
        return
    with pytest.raises(StepError) as caught:
        check(tiny)
    assert caught.value.subject == f"step {says[0]}"
    assert caught.value.actual == f"swap in step {says[1]}"
