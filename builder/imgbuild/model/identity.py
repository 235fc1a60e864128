"""Findings: what a check was asked to look for and what it found. Data, never exceptions.

A verdict is `match`, `differs` or `not-checked`; not checked is never yes (design.md, section 1, promise 4).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Verdict(enum.Enum):
    """The three answers."""

    MATCH = "match"
    DIFFERS = "differs"
    NOT_CHECKED = "not-checked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One answer.

    Args:
        check: which check, a stable name such as `library.provider`.
        subject: what was looked at.
        verdict: the answer.
        expected: what should be, in words or as a value.
        actual: what is.
        reason: why it was not checked, or what the answer rests on.
        required: whether anything but `match` fails the gate.
    """

    check: str
    subject: str
    verdict: Verdict
    expected: str | None = None
    actual: str | None = None
    reason: str | None = None
    required: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All findings of one verification, in the order of its steps."""

    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether every required check was made and matched. Nothing checked is no."""
        required = [finding for finding in self.findings if finding.required]
        return bool(required) and all(finding.verdict is Verdict.MATCH for finding in required)

    def count(self, verdict: Verdict) -> int:
        """How many findings have a verdict."""
        return sum(1 for finding in self.findings if finding.verdict is verdict)

    @property
    def failed(self) -> tuple[Finding, ...]:
        """The required findings that are not a match."""
        return tuple(f for f in self.findings if f.required and f.verdict is not Verdict.MATCH)


def compare(check: str, subject: str, expected: object, actual: object, *, reason: str | None = None) -> Finding:
    """A finding from two values: `match` if they are equal."""
    return Finding(
        check=check,
        subject=subject,
        verdict=Verdict.MATCH if expected == actual else Verdict.DIFFERS,
        expected=str(expected),
        actual=str(actual),
        reason=reason,
    )


def not_checked(check: str, subject: str, reason: str, *, required: bool = True) -> Finding:
    """A finding for what could not be looked at."""
    return Finding(check=check, subject=subject, verdict=Verdict.NOT_CHECKED, reason=reason, required=required)
