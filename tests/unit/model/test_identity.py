from __future__ import annotations

import pytest
from imgbuild.model.identity import Finding, Report, Verdict, compare, not_checked

YES = compare("a", "x", 1, 1)
NO = compare("a", "x", 1, 2)
UNKNOWN = not_checked("a", "x", "could not be read")
UNKNOWN_BUT_OPTIONAL = not_checked("a", "x", "could not be read", required=False)
NO_BUT_OPTIONAL = Finding(check="a", subject="x", verdict=Verdict.DIFFERS, required=False)


@pytest.mark.parametrize(
    ("findings", "ok"),
    [
        ((YES,), True),
        ((YES, YES), True),
        ((YES, UNKNOWN_BUT_OPTIONAL, NO_BUT_OPTIONAL), True),
        ((YES, NO), False),
        ((YES, UNKNOWN), False),
        ((), False),
        ((UNKNOWN_BUT_OPTIONAL,), False),
        ((NO_BUT_OPTIONAL,), False),
    ],
)
def test_only_checks_that_were_made_and_matched_are_a_yes(findings: tuple[Finding, ...], ok: bool) -> None:
    assert Report(findings=findings).ok is ok


def test_a_report_counts_every_answer_and_names_what_failed() -> None:
    report = Report(findings=(YES, NO, UNKNOWN, UNKNOWN_BUT_OPTIONAL, NO_BUT_OPTIONAL))
    assert {verdict.value: report.count(verdict) for verdict in Verdict} == {"match": 1, "differs": 2, "not-checked": 2}
    assert report.failed == (NO, UNKNOWN)


def test_a_comparison_says_both_values() -> None:
    assert (NO.verdict, NO.expected, NO.actual) == (Verdict.DIFFERS, "1", "2")
    assert compare("a", "x", "1", 1).verdict is Verdict.DIFFERS
    assert compare("a", "x", None, None).verdict is Verdict.MATCH
