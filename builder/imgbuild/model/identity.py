"""Findings: what a check was asked to look for and what it found. Data, never exceptions.

A verdict is `match`, `differs` or `not-checked`; not checked is never yes (design.md, section 1, promise 4).
`CHECKS` and `LIBRARY_CHECKS` are the names of all checks, a contract like the documents of `--json`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

CHECKS = {
    "image": 1,
    "base.layers": 1,
    "base.blob": 1,
    "base.present": 1,
    "layers.count": 1,
    "config": 2,
    "manifest": 2,
    "layer.digest": 3,
    "layer.diff_id": 3,
    "lock.result": 3,
    "embedded.lock": 5,
    "receipt": 5,
    "file": 6,
    "packages.record": 7,
    "packages.single": 7,
    "environment": 9,
    "python.startup": 9,
    "base.inventory": 11,
    "base.tree": 11,
    "pushed.manifest": 10,
    "pushed.blobs": 10,
}
"""Every check but those of step 8, with the number of its step in docs/verification.md."""
LIBRARY_CHECKS = (
    "path",
    "digest",
    "elf",
    "machine",
    "soname",
    "build_id",
    "versions",
    "needed",
    "symbols",
    "strings",
    "provider",
    "consumer",
    "folder",
    "process",
    "metadata",
    "accept",
)
"""The checks of step 8, each as `library.NAME.` and this, once for each library of the definition."""
LIBRARY_STEP = 8
_ONLY_NO = {"image", "path", "elf", "accept", "base.present", "process"}
"""Checks that are in a report only where the answer is no, or (`base.present`) where the base is not in the store, or
(`process`) where the definition asks for it."""


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
    return judge(check, subject, expected == actual, expected=expected, actual=actual, reason=reason)


def judge(
    check: str, subject: str, ok: bool, *, expected: object, actual: object, reason: str | None = None
) -> Finding:
    """A finding whose answer is known: `match` if `ok`; the values say in words what was expected and what is."""
    return Finding(
        check=check,
        subject=subject,
        verdict=Verdict.MATCH if ok else Verdict.DIFFERS,
        expected=str(expected),
        actual=str(actual),
        reason=reason,
    )


def not_checked(check: str, subject: str, reason: str, *, required: bool = True) -> Finding:
    """A finding for what could not be looked at."""
    return Finding(check=check, subject=subject, verdict=Verdict.NOT_CHECKED, reason=reason, required=required)


def unlooked(steps: Collection[int], libraries: Iterable[str], subject: str, reason: str) -> list[Finding]:
    """A `not-checked` for every check of these steps, so that what was not looked at cannot be overlooked."""
    names = [name for name, step in CHECKS.items() if step in steps and name not in _ONLY_NO]
    if LIBRARY_STEP in steps:
        names += [
            f"library.{library}.{what}"
            for library in sorted(libraries)
            for what in LIBRARY_CHECKS
            if what not in _ONLY_NO
        ]
    return [not_checked(name, subject, reason) for name in names]
