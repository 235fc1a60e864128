"""Variants that extend another image, and stand-ins: what is taken over, what is not, and what is refused."""

from __future__ import annotations

import pytest
from imgbuild.errors import DocumentError
from imgbuild.model.inherit import inherit, stand_in

PARENT = {
    "schema": "imgbuild/image/v1",
    "name": "one",
    "title": "The first",
    "tags": ["one"],
    "layers": ["a", "b"],
    "config": {"env": {"A": "1", "B": "2"}, "entrypoint": ["/run"]},
    "sources": {"x": {"kind": "git", "repository": "https://h/x", "ref": "main"}, "y": {"kind": "wheel", "name": "y"}},
    "library": {"nccl": {"path": "/l", "accept": [{"path": "/old"}]}},
}


def test_tables_are_added_to_and_everything_else_is_replaced() -> None:
    child = {
        "extends": "one",
        "name": "two",
        "layers": ["a", "c", "b"],
        "config": {"env": {"B": "3", "C": "4"}},
        "sources": {"x": {"kind": "git", "ref": "v2"}, "z": {"kind": "wheel", "name": "z"}},
        "library": {"nccl": {"accept": []}},
    }
    assert inherit(PARENT, child) == {
        "schema": "imgbuild/image/v1",
        "extends": "one",
        "name": "two",
        "layers": ["a", "c", "b"],
        "config": {"env": {"A": "1", "B": "3", "C": "4"}, "entrypoint": ["/run"]},
        "sources": {
            "x": {"kind": "git", "repository": "https://h/x", "ref": "v2"},
            "y": {"kind": "wheel", "name": "y"},
            "z": {"kind": "wheel", "name": "z"},
        },
        "library": {"nccl": {"path": "/l", "accept": []}},
    }


@pytest.mark.parametrize("key", ["name", "title", "tags", "extends"])
def test_what_a_variant_has_to_say_for_itself_is_not_taken_over(key: str) -> None:
    assert key not in inherit({**PARENT, "extends": "zero"}, {"layers": []})


def test_a_source_of_another_kind_takes_nothing_over() -> None:
    child = {"sources": {"x": {"kind": "wheel", "name": "x"}}}
    assert inherit(PARENT, child)["sources"]["x"] == {"kind": "wheel", "name": "x"}


STAND_IN = {"schema": "imgbuild/stand-in/v1", "base": {"reference": "localhost/x", "tag": "x"}}


def test_a_stand_in_replaces_base_and_sources_as_a_whole_and_says_so() -> None:
    other = {"kind": "git", "repository": "x.bundle", "ref": "v1", "licence": "MIT"}
    found = stand_in(
        {**PARENT, "base": {"reference": "r", "config": "c"}}, {**STAND_IN, "sources": {"x": other}}, subject="s"
    )
    assert found["base"] == STAND_IN["base"]
    assert found["sources"] == {"x": other, "y": PARENT["sources"]["y"]}  # type: ignore[index]
    assert found["tags"] == ["stand-in-one"]
    assert found["config"]["labels"] == {"imgbuild.stand-in": "true"}
    assert found["config"]["env"] == {"A": "1", "B": "2"}
    assert found["name"] == "one"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"sources": {"q": {"kind": "git", "repository": "x", "ref": "v", "licence": "MIT"}}}, "has no such source"),
        ({"layers": []}, "layers"),
        ({"config": {}}, "config"),
        ({"schema": "imgbuild/image/v1"}, "schema"),
        ({"base": {}}, "reference"),
    ],
)
def test_a_stand_in_that_replaces_more_is_refused(change: dict[str, object], problem: str) -> None:
    with pytest.raises(DocumentError, match=problem):
        stand_in(PARENT, {**STAND_IN, **change}, subject="stand-in")
