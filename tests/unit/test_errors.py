"""The form of a message: one line, in a fixed order, with whole values, and a hint apart from it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from imgbuild.cli.render import report_error
from imgbuild.cli.schemas import shipped
from imgbuild.digest import Digest
from imgbuild.errors import DigestMismatchError, DocumentError, ImgbuildError, LockVersionError, StepError, UsageError
from jsonschema import Draft202012Validator

if TYPE_CHECKING:
    from collections.abc import Mapping

# With the halves of surrogate pairs, as which Python hands over the bytes of an argument that is not UTF-8.
ANYTHING = st.text(st.characters(), max_size=60)
VALUES = {"expected": "1", "actual": "2", "where": "layer/3", "hint": "do this"}


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ("", "a: b"),
        ("expected", "a: b; expected 1"),
        ("actual", "a: b; actual 2"),
        ("expected actual", "a: b; expected 1, actual 2"),
        ("where", "a: b (in layer/3)"),
        ("expected actual where hint", "a: b; expected 1, actual 2 (in layer/3)"),
    ],
)
def test_a_message_has_subject_problem_expected_actual_and_where_in_this_order(names: str, text: str) -> None:
    given_values: Mapping[str, str] = {name: VALUES[name] for name in names.split()}
    assert str(ImgbuildError("a", "b", **given_values)) == text


def test_a_value_that_is_false_is_said_and_one_that_is_absent_is_not() -> None:
    assert str(StepError("a", "b", expected=0, actual="")) == "a: b; expected 0, actual "
    assert str(StepError("a", "b", expected=None, actual=None)) == "a: b"


def test_digests_are_never_shortened() -> None:
    digest = Digest.of(b"x")
    error = DigestMismatchError("layer", "differs", expected=digest, actual=Digest.of(b"y"))
    assert error.expected == str(digest)
    assert str(error).count("sha256:") == 2
    assert str(digest) in str(error)


def test_all_problems_of_a_document_stand_in_one_message() -> None:
    error = DocumentError("locks/x.toml", ("epoch: -1 is too small", "name: is missing"))
    assert error.problems == ("epoch: -1 is too small", "name: is missing")
    assert str(error) == "locks/x.toml: epoch: -1 is too small; name: is missing"


def test_the_fields_are_those_that_are_set_and_always_a_hint() -> None:
    assert StepError("a", "b", actual=2, hint="c").fields() == {
        "subject": "a",
        "problem": "b",
        "actual": "2",
        "hint": "c",
    }
    assert StepError("a", "b").fields()["hint"] == StepError.advice
    assert StepError.advice != DocumentError.advice


def test_the_advice_of_a_class_holds_for_those_below_it_unless_they_have_their_own() -> None:
    assert DigestMismatchError.advice == DigestMismatchError.__mro__[1].advice  # type: ignore[attr-defined]
    assert LockVersionError.advice != DocumentError.advice


def test_an_error_is_one_line_and_a_hint_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert report_error(UsageError("a", "b", expected=1, hint="c"), as_json=False) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", "error[USAGE]: a: b; expected 1\n  hint: c\n")


def test_an_error_without_a_hint_gets_the_advice_of_its_class(capsys: pytest.CaptureFixture[str]) -> None:
    report_error(StepError("a", "b"), as_json=True)
    out, err = capsys.readouterr()
    assert err.splitlines()[1] == f"  hint: {StepError.advice}"
    assert json.loads(out)["error"]["hint"] == StepError.advice


@given(ANYTHING, ANYTHING, ANYTHING)
def test_whatever_an_error_holds_it_is_two_plain_lines_and_a_valid_document(
    subject: str, value: str, hint: str
) -> None:
    with pytest.MonkeyPatch.context() as changed:
        lines: list[tuple[str, bool]] = []
        changed.setattr("click.echo", lambda text, *, err=False, **_: lines.append((text, err)))
        error = StepError(subject, "b", actual=value, where="somewhere", hint=hint)
        assert report_error(error, as_json=True) == 3
    printed = [text for text, err in lines if err]
    assert len(printed) == 2
    assert all(text.isprintable() for text in printed)
    (document,) = [text for text, err in lines if not err]
    Draft202012Validator(json.loads(shipped("error"))).validate(json.loads(document))


def test_a_name_cannot_drive_the_terminal_or_imitate_a_second_error(capsys: pytest.CaptureFixture[str]) -> None:
    report_error(StepError("file\x1b]0;x\x07\u202e", "b\nerror[OK]: all is well\r"), as_json=False)
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 2
    assert err.replace("\n", "").isprintable()
    assert "\\x1b" in err
    assert "\\nerror[OK]" in err
