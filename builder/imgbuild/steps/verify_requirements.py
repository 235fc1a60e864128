"""What distributions ask of the one whose library was swapped: (n) of `steps.verify_library`.

METADATA of a swapped distribution stays as it is, so its version is what `pip` and others compare, whatever the bytes
of the library say. A base may have such a contradiction already: then the definition says why it is right.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from imgbuild.content.packages import canonical_name, owners
from imgbuild.model.identity import Finding, judge

if TYPE_CHECKING:
    from collections.abc import Iterator

    from packaging.requirements import Requirement

    from imgbuild.content.packages import Distribution
    from imgbuild.model.image import LibraryIdentity
    from imgbuild.steps.view import View

_LONGEST = 300
"""characters of a requirement; longer ones are not looked at."""
_NAME = re.compile(r"[ \t]*+([A-Za-z0-9][A-Za-z0-9._-]*+)")
"""What a requirement begins with (PEP 508). None that can be parsed has a longer or shorter name."""


def requirements(view: View, name: str, library: LibraryIdentity, target: bytes) -> list[Finding]:
    """Whether all that is asked of the library's distributions is met by their METADATA, or declared.

    Of each distribution that names one of them in Requires-Dist, the specifier is compared with the version that
    METADATA states. Markers and extras are not evaluated, so a requirement for another platform counts as well. What
    cannot be parsed is no requirement: no installer would take it.
    """
    check = f"library.{name}.metadata"
    declared = {(item.distribution, item.requires): item.reason for item in library.metadata}
    used: set[tuple[str, str]] = set()
    advice = f"declare it under [[library.{name}.metadata]], with a reason"
    found = []
    for asking, text in _unmet(view.installed, owners(view.installed, target)):
        key = next((key for key in declared if (canonical_name(key[0]), key[1]) == (asking.name, text)), None)
        if key is not None:
            used.add(key)
        found.append(
            judge(
                check,
                f"{asking.name} {asking.version}",
                ok=key is not None,
                expected="what it requires is what METADATA states, or declared",
                actual=text,
                reason=advice if key is None else declared[key],
            )
        )
    unused = [
        judge(
            f"library.{name}.accept",
            f"{distribution} requires {text}",
            ok=False,
            expected="is there, as the definition says",
            actual="is not there, or met",
            reason=f"take its [[library.{name}.metadata]] out of the definition",
        )
        for distribution, text in sorted(set(declared) - used)
    ]
    if not found:
        met = "what it requires is what METADATA states, or declared"
        found = [
            judge(check, "requirements", ok=True, expected=met, actual=f"so do {len(view.installed)} distributions")
        ]
    return [*found, *unused]


def _unmet(installed: tuple[Distribution, ...], owning: tuple[Distribution, ...]) -> Iterator[tuple[Distribution, str]]:
    """Who asks for another version of an owner than its METADATA states, with the requirement as it is written."""
    versions = {owner.name: owner.version for owner in owning}
    for asking in installed:
        for text in asking.requires:
            # An image has thousands of requirements, few of which are about an owner, and each takes long to parse.
            name = _NAME.match(text)
            version = None if name is None else versions.get(canonical_name(name[1]))
            wanted = None if version is None else _parsed(text)
            if wanted is not None and version is not None and not wanted.specifier.contains(version, prereleases=True):
                yield asking, text


def _parsed(text: str) -> Requirement | None:
    from packaging.requirements import InvalidRequirement, Requirement  # noqa: PLC0415 - imported when used

    try:
        return Requirement(text) if len(text) <= _LONGEST else None
    except InvalidRequirement:
        return None
