from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from imgbuild import jsontext
from imgbuild.cli.schemas import shipped
from imgbuild.errors import DocumentError
from imgbuild.model.lockfile import Lock, parse_lock
from jsonschema import Draft202012Validator

from tests.support.locks import locks

SCHEMA = Draft202012Validator(json.loads(shipped("lock")))
MANY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**53) | st.text(st.characters(codec="utf-8"), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(locks())
@MANY
def test_a_lock_is_what_it_was_after_writing_and_parsing_and_its_bytes_are_canonical(lock: Lock) -> None:
    raw = lock.dump()
    again = parse_lock(raw, subject="x")
    assert again == lock
    assert again.dump() == raw
    assert raw == jsontext.dumps(jsontext.loads(raw, subject="x"))
    assert raw.endswith(b"}\n")


@given(locks())
@MANY
def test_every_lock_that_is_written_follows_the_shipped_schema(lock: Lock) -> None:
    SCHEMA.validate(json.loads(lock.dump()))


@given(locks())
@MANY
def test_another_order_of_keys_or_other_blanks_are_refused_as_not_canonical(lock: Lock) -> None:
    def reversed_keys(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: reversed_keys(item) for key, item in reversed(value.items())}
        return [reversed_keys(item) for item in value] if isinstance(value, list) else value

    raw = json.dumps(reversed_keys(json.loads(lock.dump())), indent=None, ensure_ascii=True).encode()
    with pytest.raises(DocumentError, match="canonical form"):
        parse_lock(raw, subject="x")


@given(locks(), st.data())
@MANY
def test_a_lock_with_one_value_exchanged_is_another_lock_or_a_document_error(lock: Lock, data: st.DataObject) -> None:
    value = json.loads(lock.dump())
    places = list(_places(value))
    holder, key = data.draw(st.sampled_from(places))
    before = holder[key]
    holder[key] = data.draw(VALUES.filter(lambda new: (type(new), new) != (type(before), before)))
    try:
        found = parse_lock(jsontext.dumps(value), subject="x")
    except DocumentError:
        return
    assert parse_lock(found.dump(), subject="x") == found
    # null stands for what is not there, so the change may be none.
    assert found != lock or holder[key] is None or before is None


def _places(value: Any) -> Any:
    """Every place of a document, as holder and key."""
    rows = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in rows:
        yield value, key
        yield from _places(item)
