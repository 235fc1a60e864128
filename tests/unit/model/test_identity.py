from __future__ import annotations

import pytest
from imgbuild.model.identity import Finding, Report, Verdict, compare, judge, not_checked, unlooked

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


@pytest.mark.parametrize(("ok", "verdict"), [(True, Verdict.MATCH), (False, Verdict.DIFFERS)])
def test_a_judgement_is_the_callers_and_not_that_of_its_texts(ok: bool, verdict: Verdict) -> None:
    finding = judge("a", "x", ok, expected="one", actual=1, reason="why")
    assert (finding.verdict, finding.expected, finding.actual, finding.reason) == (verdict, "one", "1", "why")
    assert finding.required


def test_what_was_not_looked_at_is_named_check_by_check() -> None:
    found = unlooked((7, 8), ("b", "a"), "image", "is gone")
    names = [finding.check for finding in found]
    assert names[:3] == ["packages.record", "packages.single", "library.a.digest"]
    assert len(names) == 2 + 2 * 12
    assert {(finding.verdict, finding.required, finding.reason) for finding in found} == {
        (Verdict.NOT_CHECKED, True, "is gone")
    }
    assert not any(name.endswith((".path", ".elf", ".accept")) for name in names)
