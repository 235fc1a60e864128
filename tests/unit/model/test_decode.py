from __future__ import annotations

from typing import Annotated, Any

import pytest
from imgbuild.digest import Digest
from imgbuild.errors import DocumentError, LockVersionError, StepError
from imgbuild.model.decode import Document, builtins, convert, require_schema, schema_of
from imgbuild.model.layer import SCHEMA, Edit, Remove, parse_layer
from jsonschema import Draft202012Validator
from msgspec import Meta

HEX = "0" * 64


class Inner(Document, frozen=True, kw_only=True):
    digest: Digest
    size: Annotated[int, Meta(ge=0)] = 0


class Outer(Document, frozen=True, kw_only=True):
    name: str
    inner: Inner
    steps: list[Edit | Remove] = []  # noqa: RUF012 - msgspec copies it
    table: dict[str, int] = {}  # noqa: RUF012


GOOD = {"name": "x", "inner": {"digest": f"sha256:{HEX}"}}


def problems(value: Any) -> tuple[str, ...]:
    with pytest.raises(DocumentError) as caught:
        convert(value, Outer, subject="file")
    assert caught.value.subject == "file"
    return caught.value.problems


def test_a_value_is_converted_and_given_back_without_its_defaults() -> None:
    outer = convert(GOOD, Outer, subject="file")
    assert outer.inner.digest == Digest("sha256", HEX)
    assert outer.inner.size == 0
    assert builtins(outer) == GOOD


def test_every_problem_is_listed_with_its_path() -> None:
    found = problems({"inner": {"digest": "md5:0", "size": -1, "typo": 1}, "table": {"a": "1"}, "more": 1})
    assert sorted(problem.partition(":")[0] for problem in found) == [
        "document",
        "document",
        "inner",
        "inner.digest",
        "inner.size",
        "table.a",
    ]
    assert any("'name' is a required property" in problem for problem in found)
    assert any("'typo'" in problem for problem in found)


def test_in_a_union_the_problems_are_those_of_the_kind_that_was_meant() -> None:
    found = problems({**GOOD, "steps": [{"kind": "remove", "paths": []}, {"kind": "edit", "path": "a", "find": "x"}]})
    assert sorted(problem.partition(":")[0] for problem in found) == ["steps[0].paths", "steps[1]", "steps[1].path"]


@pytest.mark.parametrize("kind", ["move", None, 1, [], {}])
def test_an_unknown_kind_is_a_problem_at_its_step(kind: Any) -> None:
    assert all(problem.startswith("steps[0]") for problem in problems({**GOOD, "steps": [{"kind": kind}]}))


@pytest.mark.parametrize("digest", ["", f"sha256:{HEX}\n", f"SHA256:{HEX}", "sha256:../x", 1, None, [], b"x"])
def test_what_is_no_digest_is_a_problem_at_its_field(digest: Any) -> None:
    assert [problem.partition(":")[0] for problem in problems({**GOOD, "inner": {"digest": digest}})] == [
        "inner.digest"
    ]


@pytest.mark.parametrize("value", [None, [], "text", 1, 1.5, True])
def test_a_value_of_another_type_is_a_problem_of_the_document(value: Any) -> None:
    assert problems(value)[0].startswith("document: ")


@pytest.mark.parametrize("size", [True, 1.0, "1", 1.5, float("nan"), float("inf"), -1])
def test_numbers_are_not_guessed(size: Any) -> None:
    assert problems({**GOOD, "inner": {"digest": f"sha256:{HEX}", "size": size}})


def test_very_many_problems_are_cut() -> None:
    assert len(problems({**GOOD, "table": {str(number): "x" for number in range(1000)}})) == 50


def test_a_problem_with_a_huge_value_is_short() -> None:
    assert all(len(problem) < 400 for problem in problems({**GOOD, "name": ["x" * 1_000_000]}))


def test_the_schema_says_the_same_as_the_class() -> None:
    schema = schema_of(Outer, "x/outer/v1")
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    assert validator.is_valid(GOOD)
    for bad in ({}, {**GOOD, "more": 1}, {**GOOD, "inner": {"digest": f"sha256:{HEX}\n"}}, {**GOOD, "steps": [{}]}):
        assert not validator.is_valid(bad)
        assert problems(bad)


@pytest.mark.parametrize("found", ["imgbuild/lock/v2", "imgbuild/lock/v0", "imgbuild/lock/v1.1", "imgbuild/lock/v"])
def test_another_version_of_the_same_document_is_its_own_error(found: str) -> None:
    with pytest.raises(LockVersionError, match="reads version 1 only") as caught:
        require_schema({"schema": found, "anything": "else"}, "imgbuild/lock/v1", subject="file")
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("value", [None, [], "imgbuild/lock/v1", {}, {"schema": 1}, {"schema": "imgbuild/image/v1"}])
def test_another_document_is_refused(value: Any) -> None:
    with pytest.raises(DocumentError, match="schema: expected 'imgbuild/lock/v1'") as caught:
        require_schema(value, "imgbuild/lock/v1", subject="file")
    assert not isinstance(caught.value, LockVersionError)


def test_an_unknown_key_is_named_with_the_keys_that_there_are() -> None:
    found = problems({**GOOD, "colour": 1, "inner": {**GOOD["inner"], "siez": 1, "more": 2}})  # type: ignore[dict-item]
    assert found == (
        "document: unknown key 'colour'; there are name, inner, steps, table",
        "inner: unknown keys 'siez', 'more'; there are digest, size",
    )


def test_an_unknown_key_of_a_step_is_named_with_the_keys_of_its_kind() -> None:
    step = {"kind": "edit", "path": "/a", "find": "x", "replace": "y", "cuont": 2}
    with pytest.raises(DocumentError) as caught:
        parse_layer({"schema": SCHEMA, "title": "t", "step": [step]}, name="app", subject="layers/app/layer.toml")
    text = "step[0] (app/1): unknown key 'cuont'; an edit step has kind, path, find, replace, count"
    assert caught.value.problems == (text,)


def test_a_path_that_is_none_is_refused_with_the_id_of_its_step() -> None:
    steps = [{"kind": "remove", "paths": ["/a"]}, {"kind": "remove", "paths": ["/a/../b"]}]
    with pytest.raises(StepError) as caught:
        parse_layer({"schema": SCHEMA, "title": "t", "step": steps}, name="app", subject="layers/app/layer.toml")
    assert caught.value.where == "layers/app/layer.toml, step app/2"
