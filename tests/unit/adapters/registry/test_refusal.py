"""What a refusal means, and that the documentation says the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from imgbuild.adapters.registry.refusal import RETRIED, Refusal, error_of
from imgbuild.errors import ServerError

DOCUMENT = Path(__file__).parents[4] / "docs" / "registries.md"


def documented(answer: str) -> set[int]:
    """The statuses of the rows of `REGISTRY_FAILED` that are tried again, or not."""
    text = DOCUMENT.read_text(encoding="utf-8")
    found: set[int] = set()
    for row in re.findall(rf"^\|(.*)\| `REGISTRY_FAILED` \| {answer} \|$", text, re.MULTILINE):
        for first, last in re.findall(r"\b(\d{3})\b(?: to (\d{3}))?", row):
            found |= set(range(int(first), int(last or first) + 1))
    return found


def test_the_documentation_says_which_statuses_are_tried_again() -> None:
    assert documented("yes") == RETRIED
    assert documented("no") == {501, 505, 507}
    assert not documented("no") & RETRIED


@pytest.mark.parametrize("status", sorted(RETRIED | {501, 505, 507}))
def test_each_of_them_is_the_error_that_the_documentation_names(status: int) -> None:
    refusal = Refusal(status=status, codes=(), said="")
    assert isinstance(error_of(refusal, subject="it", url="https://host/", who="anonymously"), ServerError)


@pytest.mark.parametrize(
    ("status", "codes", "said", "expected"),
    [
        (403, ("DENIED",), "requested access to the resource is denied", False),
        (403, ("DENIED",), "the project is locked", False),
        (400, ("MANIFEST_INVALID",), "schema conflict", False),
        (403, ("DENIED",), "Immutable tag", True),
        (400, ("TAG_INVALID",), "", True),
        (409, (), "", True),
        (412, (), "", True),
    ],
)
def test_C55_only_what_speaks_of_the_tag_says_that_it_may_not_move(
    status: int, codes: tuple[str, ...], said: str, expected: bool
) -> None:
    assert Refusal(status=status, codes=codes, said=said).says_immutable is expected
