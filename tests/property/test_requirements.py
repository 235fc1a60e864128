"""Requirements are only parsed where they begin with an owner's name; that must be as if all of them were parsed."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from imgbuild.content.packages import Distribution, canonical_name
from imgbuild.content.record import read_record
from imgbuild.steps.verify_requirements import _unmet
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

NAMES = ("nccl-cu13", "torch", "x")
WORDS = "nccl cu13 NCCL Torch X - _ . é [a] ( ) 1 ==1 ==2 >=2 !=2 <3 , ; ;extra=='a' @file:///x # ~=2.0"
TEXTS = st.lists(st.sampled_from([*NAMES, *WORDS.split(), " ", "\t", "\n"]), max_size=6).map("".join)


def distribution(name: str, version: str, requires: tuple[str, ...] = ()) -> Distribution:
    return Distribution(
        name=name, version=version, folder=name.encode(), requires=requires, record=read_record(b"", site=b"")
    )


OWNERS = tuple(distribution(canonicalize_name(name), "2") for name in NAMES)


def asks_for_another(text: str) -> bool:
    """By parsing whatever it is."""
    try:
        wanted = Requirement(text)
    except InvalidRequirement:
        return False
    about = canonicalize_name(wanted.name) in {owner.name for owner in OWNERS}
    return about and not wanted.specifier.contains("2", prereleases=True)


@given(st.lists(TEXTS, max_size=5))
@example(
    ["x==1", " \tX ==1", "nccl_.CU13 (==1)", "x-==1", "x.", "torch[a]>=3; extra == 'b'", "xé==1", "\nx==1", "y==1"]
)
def test_what_is_not_met_is_what_parsing_all_of_them_finds(texts: list[str]) -> None:
    asking = distribution("asking", "1", tuple(texts))
    found = [text for _, text in _unmet((*OWNERS, asking), OWNERS)]
    assert found == [text for text in texts if asks_for_another(text)]


def test_the_example_has_both_answers() -> None:
    assert [asks_for_another(text) for text in ("x==1", "nccl_.CU13 (==1)", "x==2", "xé==1")] == [
        True,
        True,
        False,
        False,
    ]


@given(st.text("aZ-_.é1", max_size=12))
def test_names_are_compared_as_packaging_does(name: str) -> None:
    assert canonical_name(name) == canonicalize_name(name)
