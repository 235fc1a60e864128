from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from imgbuild.text import printable, without_credentials


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text, ä and 漢", "plain text, ä and 漢"),
        ("a\nb\rc\td", "a\\nb\\rc\\td"),
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("abc\u202efed\u2066", "abc\\u202efed\\u2066"),
        ("zero\u200bwidth", "zero\\u200bwidth"),
        ("\U000e0041", "\\U000e0041"),
        ("half \udcff", "half \\udcff"),
        (b"utf-8 \xc3\xa4, not \xff", "utf-8 ä, not \\xff"),
        ("", ""),
    ],
)
def test_what_could_drive_a_terminal_is_escaped(text: str | bytes, shown: str) -> None:
    assert printable(text) == shown


def test_long_text_is_cut_with_an_ellipsis_and_text_of_the_limit_is_not() -> None:
    assert printable("x" * 10, 10) == "x" * 10
    assert printable("x" * 11, 10) == "x" * 10 + "…"
    assert printable("\0" * 3, 10) == "\\x00\\x00\\x…"


@given(st.text(st.characters()) | st.binary(), st.integers(0, 50))
def test_the_answer_is_always_one_bounded_printable_line(text: str | bytes, limit: int) -> None:
    shown = printable(text, limit)
    assert shown.isprintable()
    assert len(shown) <= limit + 1


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("see https://u:p@h/x", "see https://***@h/x"),
        ("https://u:p@ss@h/x and ssh://tok@b", "https://***@h/x and ssh://***@b"),
        ("https://h/x@y", "https://h/x@y"),
        ("someone@example.org", "someone@example.org"),
    ],
)
def test_urls_lose_user_and_password(text: str, clean: str) -> None:
    assert without_credentials(text) == clean
