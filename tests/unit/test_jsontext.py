from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from imgbuild import jsontext
from imgbuild.errors import DocumentError

SUBJECT = "a document"

REFUSED = {
    "a duplicate key": (b'{"a": 1, "a": 1}', "'a' stands twice"),
    "a duplicate key deep inside": (b'[{"x": {"b": 1, "c": 2, "b": 3}}]', "'b' stands twice"),
    "a duplicate key by escape": (b'{"a": 1, "\\u0061": 2}', "'a' stands twice"),
    "NaN": (b"[NaN]", "NaN is not"),
    "infinity": (b"[Infinity]", "Infinity is not"),
    "minus infinity": (b'{"a": -Infinity}', "-Infinity is not"),
    "an overflowing number": (b"[1e400]", "cannot be kept exactly"),
    "a number that would be written otherwise": (b"[1e5]", "cannot be kept exactly"),
    "a longer form of a number": (b"[0.10]", "cannot be kept exactly"),
    "minus zero": (b"[-0]", "cannot be kept exactly"),
    "2^53 + 1": (b"[9007199254740993]", "beyond 2^53"),
    "-2^53 - 1": (b"[-9007199254740993]", "beyond 2^53"),
    "an integer of a megabyte": (b"[" + b"9" * 1_000_000 + b"]", "beyond 2^53"),
    "a byte order mark": (b'\xef\xbb\xbf{"a": 1}', "BOM"),
    "UTF-16": ('{"a": 1}'.encode("utf-16"), "not UTF-8 at byte 0"),
    "a broken UTF-8 sequence": (b'{"a": "\xff"}', "not UTF-8 at byte 7"),
    "an encoded surrogate": (b'["\xed\xa0\x80"]', "not UTF-8"),
    "half a surrogate pair": (b'["\\ud800"]', "half of a surrogate pair"),
    "half a surrogate pair in a key": (b'{"\\uDFFF": 1}', "half of a surrogate pair"),
    "data after the value": (b"{} {}", "Extra data"),
    "nothing": (b"", "not JSON"),
    "a comment": (b"{} // a", "Extra data"),
    "a trailing comma": (b"[1,]", "not JSON"),
    "an unquoted key": (b"{a: 1}", "not JSON"),
    "a control character in text": (b'["a\nb"]', "control character"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_text_that_two_parsers_could_read_differently_is_refused(case: str) -> None:
    data, problem = REFUSED[case]
    with pytest.raises(DocumentError, match=SUBJECT) as caught:
        jsontext.loads(data, subject=SUBJECT)
    assert problem in caught.value.problem


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"9007199254740992", 2**53),
        (b"-9007199254740992", -(2**53)),
        (b"[0.1, 1.5, -2.5e-07]", [0.1, 1.5, -2.5e-07]),
        (b'"\\ud83d\\ude00"', "\N{GRINNING FACE}"),
        (b'"\\\\ud800"', "\\ud800"),
        (b' { "a" : [ ] } \n', {"a": []}),
        (b"null", None),
    ],
)
def test_text_with_one_meaning_is_read(data: bytes, value: Any) -> None:
    assert jsontext.loads(data, subject=SUBJECT) == value


def test_depth_is_limited_to_what_was_asked_and_brackets_in_text_do_not_count() -> None:
    deep = b"[" * 64 + b"]" * 64
    assert jsontext.loads(deep, subject=SUBJECT) is not None
    with pytest.raises(DocumentError, match="more than 64 levels"):
        jsontext.loads(b"[" + deep + b"]", subject=SUBJECT)
    text = json.dumps(["[" * 1000, '"[{', "\\", '\\"[']).encode()
    assert jsontext.loads(text, subject=SUBJECT, max_depth=1) == json.loads(text)


def test_nesting_that_would_exhaust_the_stack_is_a_document_error() -> None:
    for data in (b"[" * 1_000_000, b'{"a":' * 1_000_000):
        with pytest.raises(DocumentError, match="levels deep"):
            jsontext.loads(data, subject=SUBJECT)


def test_size_is_limited_to_the_byte() -> None:
    assert jsontext.loads(b"[1,2]", subject=SUBJECT, max_bytes=5) == [1, 2]
    with pytest.raises(DocumentError, match="6 bytes long; the limit is 5 bytes"):
        jsontext.loads(b"[1,23]", subject=SUBJECT, max_bytes=5)


def test_a_text_without_an_end_is_refused_in_linear_time() -> None:
    # Two million escaped quotes: each would have been tried as a beginning of its own, which takes hours.
    with pytest.raises(DocumentError, match="Unterminated"):
        jsontext.loads(b'["' + b'\\"' * 2_000_000, subject=SUBJECT)


def test_canonical_bytes_are_sorted_indented_and_end_with_a_line_break() -> None:
    assert jsontext.dumps({"b": [1, {"d": None, "c": "ü"}], "a": True}) == (
        b'{\n  "a": true,\n  "b": [\n    1,\n    {\n      "c": "\xc3\xbc",\n      "d": null\n    }\n  ]\n}\n'
    )
    assert jsontext.compact({"b": 1, "a": "ü"}) == b'{"b":1,"a":"\xc3\xbc"}'


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_json_number_is_never_written(value: float) -> None:
    for write in (jsontext.dumps, jsontext.compact):
        with pytest.raises(ValueError, match="not JSON compliant"):
            write([value])


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=20,
)


@given(VALUES)
def test_what_is_written_is_read_back_and_equal_values_are_equal_bytes(value: Any) -> None:
    written = jsontext.dumps(value)
    assert jsontext.loads(written, subject=SUBJECT) == value
    assert jsontext.dumps(jsontext.loads(written, subject=SUBJECT)) == written
    assert jsontext.loads(jsontext.compact(value), subject=SUBJECT) == value


@given(st.binary(max_size=60))
def test_any_bytes_are_a_value_or_a_document_error(data: bytes) -> None:
    try:
        value = jsontext.loads(data, subject=SUBJECT)
    except DocumentError:
        return
    assert jsontext.loads(jsontext.compact(value), subject=SUBJECT) == value
