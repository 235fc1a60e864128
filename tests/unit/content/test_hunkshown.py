"""A hunk that fails is shown beside the lines where it comes nearest: for people, bounded, and printable."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from imgbuild.content.hunkshown import LINES, missing_text
from imgbuild.content.patch import apply_file, parse_patch
from imgbuild.errors import FailedHunk, PatchError

OLD = [f"line {number}" for number in range(1, 41)]


def text(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def patch_of(old: list[str], new: list[str], start: int = 1) -> bytes:
    rows = "".join(f"-{line}\n" for line in old) + "".join(f"+{line}\n" for line in new)
    return f"--- a/f\n+++ b/f\n@@ -{start},{len(old)} +{start},{len(new)} @@\n{rows}".encode()


def failed(patch: bytes, before: bytes) -> FailedHunk:
    (file,) = parse_patch(patch, subject="p")
    with pytest.raises(PatchError) as caught:
        apply_file(file, before, subject="p")
    assert caught.value.hunk is not None
    return caught.value.hunk


PATCH = b"""--- a/f
+++ b/f
@@ -10,5 +10,6 @@
 line 10
 line 11
-line 12
+changed
+added
 line 13
 line 14
"""


def test_the_lines_that_differ_are_marked() -> None:
    found = failed(PATCH, text([*OLD[:11], "other", *OLD[12:]]))
    assert found.header == "@@ -10,5 +10,6 @@"
    assert found.lines == (" line 10", " line 11", "-line 12", "+changed", "+added", " line 13", " line 14")
    assert (found.at, found.there) == (10, (" line 10", " line 11", "!other", " line 13", " line 14"))


def test_it_is_found_where_its_lines_went() -> None:
    found = failed(PATCH, text(["new"] * 300 + [*OLD[:11], "other", "more", *OLD[12:]]))
    assert (found.at, found.there[:4]) == (310, (" line 10", " line 11", "!other", "!more"))
    assert "  line 13"[1:] in found.there


def test_a_file_that_is_empty_or_shorter_has_what_it_has() -> None:
    assert failed(PATCH, b"").there == ()
    assert failed(PATCH, b"only\n").there == ("!only",)


def test_the_second_hunk_has_its_number() -> None:
    second = b"@@ -30,2 +31,2 @@\n line 30\n-line 31\n+x\n"
    found = failed(PATCH + second, text([*OLD[:30], "other", *OLD[31:]]))
    assert (found.number, found.at, found.there) == (2, 30, (" line 30", "!other"))


def test_a_long_hunk_is_cut_around_the_first_line_that_differs() -> None:
    old = [f"line {number}" for number in range(1, 201)]
    found = failed(patch_of(old, ["x"]), text([*old[:149], "other", *old[150:]]))
    assert found.at == 146
    assert found.there[4] == "!other"
    assert len(found.lines) <= LINES
    assert found.lines[0] == "-line 146"


def test_a_new_file_that_is_there_has_no_hunk_to_show() -> None:
    (file,) = parse_patch(b"--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+x\n", subject="p")
    with pytest.raises(PatchError) as caught:
        apply_file(file, b"y\n", subject="p")
    assert caught.value.hunk is None


@given(st.lists(st.binary(max_size=8).filter(lambda line: b"\n" not in line), max_size=12))
def test_whatever_the_file_is_the_lines_are_printable_and_few(lines: list[bytes]) -> None:
    before = b"\n".join(lines)
    (file,) = parse_patch(PATCH, subject="p")
    try:
        apply_file(file, before, subject="p")
    except PatchError as error:
        found = error.hunk
        assert found is not None
        assert all(line.isprintable() for line in (*found.lines, *found.there))
        assert len(found.there) <= LINES
        assert found.at >= 1


def test_hostile_sizes_take_no_time() -> None:
    started = time.monotonic()
    same = b"same line\n" * 400_000
    found = failed(patch_of(["same line"] * 5_000 + ["end"], ["x"]), same)
    assert len(found.there) <= LINES
    long = failed(patch_of(["a" * 1_000_000, "b"], ["x"]), b"a" * 999_999 + b"\nb\n")
    assert all(len(line) <= 202 for line in (*long.lines, *long.there))
    assert time.monotonic() - started < 20


CODE = text([*OLD[:20], "def run():", "    limit = 64  # of requests", "    return limit", *OLD[20:]])


def test_a_text_that_is_not_found_is_shown_beside_the_lines_that_have_most_of_it() -> None:
    found = missing_text(b"def run():\n    limit = 48\n    return limit\n", CODE)
    assert found.lines == ("-def run():", "-    limit = 48", "-    return limit")
    assert found.at == 19
    assert found.there == (
        " line 19",
        " line 20",
        " def run():",
        "!    limit = 64  # of requests",
        "     return limit",
        " line 21",
        " line 22",
    )


@pytest.mark.parametrize("piece", [b"limit = 48", b"limit = 64  # of tokens", b"x = 64  # of requests"])
def test_a_text_that_is_part_of_a_line_is_found_by_its_beginning_or_its_end(piece: bytes) -> None:
    assert "!    limit = 64  # of requests" in missing_text(piece, CODE).there


def test_of_a_text_that_is_nowhere_no_lines_are_shown() -> None:
    for before in (b"", CODE, b"\n\n"):
        found = missing_text(b"something else entirely\n\n", before)
        assert (found.at, found.there) == (1, ())


@given(st.binary(min_size=1, max_size=60), st.binary(max_size=200))
def test_whatever_text_is_looked_for_what_is_shown_is_printable_and_few(find: bytes, before: bytes) -> None:
    found = missing_text(find, before)
    assert all(line.isprintable() for line in (*found.lines, *found.there))
    assert len(found.there) <= LINES + 4
    assert 1 <= found.at <= before.count(b"\n") + 1


def test_hostile_texts_take_no_time_either() -> None:
    started = time.monotonic()
    missing_text(b"same line\n" * 5_000 + b"end", b"same line\n" * 400_000)
    missing_text(b"a" * 100_000 + b"b\n" + b"ab" * 50_000, b"a" * 8_000_000 + b"\n" + b"ab" * 4_000_000)
    assert time.monotonic() - started < 20
