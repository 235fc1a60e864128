from __future__ import annotations

from typing import Any

import pytest
from imgbuild.steps.difference import first_difference


@pytest.mark.parametrize(
    ("recorded", "found", "answer"),
    [
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, ("x.b", 2, 3)),
        ({"b": 1, "a": 2}, {"a": 3, "b": 4}, ("x.b", 1, 4)),
        ({"a": 1}, {"a": 1, "b": 2}, ("x.b", "nothing", 2)),
        ({"a": 1, "b": 2}, {"a": 1}, ("x.b", 2, "nothing")),
        ({"a": [1, 2]}, {"a": [1, 3]}, ("x.a[1]", 2, 3)),
        ({"a": [1, 2]}, {"a": [3]}, ("x.a", "2 rows", "1 rows")),
        ([{"name": "n", "v": 1}], [{"name": "n", "v": 2}], ("x[n].v", 1, 2)),
        ([{"name": "n"}], [{"name": "m"}], ("x[n].name", "n", "m")),
        ([{"v": 1}], [{"v": 2}], ("x[0].v", 1, 2)),
        ({"a": {"b": 1}}, {"a": None}, ("x.a", {"b": 1}, "nothing")),
    ],
)
def test_the_first_field_that_differs_is_named_with_both_values(
    recorded: Any, found: Any, answer: tuple[str, object, object]
) -> None:
    assert first_difference(recorded, found, "x") == answer
