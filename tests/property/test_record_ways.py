"""A RECORD is read in two ways, and METADATA, too: what the fast one takes must be what the slow one says."""

from __future__ import annotations

import base64
import email.parser
import hashlib

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from imgbuild.content.packages import _headers, _odd_headers
from imgbuild.content.record import (
    Content,
    Record,
    _odd_rows,
    decoded_hash,
    read_content,
    read_record,
    rewrite_record,
)
from imgbuild.errors import StepError
from imgbuild.model.paths import parent

NEW = hashlib.sha256(b"new").hexdigest()
SITES = st.sampled_from([b"", b"s", b"opt/lib/site-packages"])
PARTS = st.one_of(
    st.sampled_from(["a", "b", "a.py", ".", "..", "...", "..a", ".a", "a.", "a..", "", "é", "a b", "\u2028", "\x0b"]),
    st.text(st.characters(codec="utf-8", exclude_characters='\r\n",'), max_size=4),
)
NAMES = st.lists(PARTS, min_size=1, max_size=4).map("/".join)
HASHES = st.one_of(
    st.just(""),
    st.binary(min_size=32, max_size=32)
    .map(lambda data: base64.urlsafe_b64encode(data).decode().rstrip("="))
    .map(lambda text: f"sha256={text}"),
    st.sampled_from(["sha256=" + "_" * 43, "sha256=" + "a" * 42, "sha256=" + "/" * 43, "md5=a", "sha256="]),
)
SIZES = st.one_of(st.just(""), st.integers(0, 10**20).map(str), st.sampled_from(["007", "+1", "\u0663", " 1"]))
ROWS = st.tuples(NAMES, HASHES, SIZES).map(",".join)
PLAIN_ROWS = st.tuples(st.sampled_from(["a/b", "b", "../../bin/x", "a/é.py", "a/.b"]), HASHES, SIZES).map(",".join)
ENDS = st.sampled_from(["\n", "\n", "\n", "\r\n", "\r", "", "\n\n"])


@st.composite
def records(draw: st.DrawFn) -> bytes:
    rows = draw(st.lists(st.one_of(PLAIN_ROWS, PLAIN_ROWS, PLAIN_ROWS, ROWS), max_size=6))
    end = draw(st.sampled_from(["\n", "\r\n"]))
    text = "".join(row + end for row in rows[:-1]) + "".join(row + draw(ENDS) for row in rows[-1:])
    raw = bytearray(text.encode())
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        place = draw(st.integers(0, len(raw)))
        raw[place : place + draw(st.integers(0, 2))] = draw(
            st.sampled_from([b"\r", b"\n", b'"', b",", b"/", b".", b"\0", b"\xff", b"=", b"1", b"../", b"//"])
        )
    return bytes(raw)


def ways(raw: bytes, site: bytes) -> tuple[Record, Record] | None:
    """The RECORD as it is read and as the slow way reads it; None if both refuse it with the same words."""
    try:
        content = Content(raw=raw, odd=_odd_rows(raw, site))
    except ValueError as error:
        words = str(error)
    else:
        return read_record(raw, site=site), Record(site, lambda: content)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the words are compared
        read_record(raw, site=site)
    assert str(caught.value) == words
    return None


@settings(max_examples=1_000, deadline=None, derandomize=True)
@given(raw=records(), site=SITES)
@example(raw=b"a,,\r", site=b"")
@example(raw=b"a,,\r\n", site=b"")
@example(raw=b"a,,1\r\nb,,2", site=b"s")
@example(raw=b"a,," + b"9" * 19, site=b"s")
@example(raw=b"a,," + b"9" * 20, site=b"s")
@example(raw=b"\n", site=b"s")
@example(raw=b"", site=b"s")
@example(raw=b"../../../x,,\n../y,,\n", site=b"s")
@example(raw=b"\xff,,\n", site=b"s")
@example(raw=b"a," + b"sha256=" + b"_" * 43 + b",\n", site=b"s")
def test_both_ways_say_the_same_of_every_row(raw: bytes, site: bytes) -> None:
    found = ways(raw, site)
    if found is None:
        return
    fast, slow = found
    assert fast.rows == slow.rows
    assert len(fast) == len(fast.rows) == len(slow)
    assert fast.outline == slow.outline
    assert fast.foreign == slow.foreign
    assert fast.paths == slow.paths
    assert fast.outline.folders == {parent(path) for path in slow.paths}
    for number, (ours, theirs) in enumerate(zip(fast.claims(), slow.claims(), strict=True)):
        assert fast.row(number) == slow.row(number) == slow.rows[number]
        assert fast.span(number) == slow.span(number)
        assert (ours[0], ours[1] != b"", ours[2] != b"") == (theirs[0], theirs[1] != b"", theirs[2] != b"")
        assert not ours[1] or decoded_hash(ours[1]) == slow.rows[number].sha256
        assert not ours[2] or int(ours[2]) == slow.rows[number].size
    for path in slow.paths:
        assert fast.places(path) == slow.places(path)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(raw=records(), site=SITES, sha256=st.sampled_from([NEW, None]))
def test_both_ways_rewrite_a_row_to_the_same_bytes(raw: bytes, site: bytes, sha256: str | None) -> None:
    found = ways(raw, site)
    for path in found[1].paths if found is not None else ():
        answers = []
        for known in found or ():
            try:
                answers.append(rewrite_record(raw, path, site=site, sha256=sha256, size=9, subject="file", known=known))
            except StepError as error:
                answers.append(str(error).encode())
        assert answers[0] == answers[1]


@pytest.mark.parametrize(
    "row",
    ["a/b.py,,", "../../bin/x,,5", "a/.b/c.d,,", "é/a.py,,", "a b,,", f"a,sha256={'_' * 43},12"],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_what_installers_write_is_read_the_fast_way(row: str, end: str) -> None:
    assert read_content(f"{row}{end}b,,{end}".encode(), site=b"s").odd is None
    assert read_content(f"b,,{end}{row}".encode(), site=b"s").odd is None


@pytest.mark.parametrize("unit", [b"a/", b"../", b".", b"a", b"a,", b"a,,\n", b"a,,\r", b"sha256=", b"a,,1"])
def test_no_text_takes_more_than_linear_time(unit: bytes) -> None:
    raw = unit * (1_000_000 // len(unit))
    # Refused or not: that it ends is the point; anything quadratic would take an hour.
    try:
        read_record(raw + b"\0", site=b"s")
    except ValueError:
        return


LINES = st.sampled_from(
    [
        *("Name: a", "name:  b ", "NAME:\tc", "Name:", "Name : x", "Version: 1", "Version: \xe9", "Version:1 : 2"),
        *("Requires-Dist: a>=1", "requires-dist: b; x", " folded", "\tfolded", "Licence: x", "Summary: \xe9\xe9"),
        *("", "", ":", ": x", "From me", "no header", "Name", "x\x0bName: y", "Version: a\x0cb", "Description: é"),
    ]
)


@settings(max_examples=1_000, deadline=None, derandomize=True)
@given(
    lines=st.lists(st.tuples(LINES, st.sampled_from(["\n", "\n", "\n", "\r\n", "\r"])), max_size=9), cut=st.booleans()
)
def test_metadata_are_read_as_email_reads_them(lines: list[tuple[str, str]], cut: bool) -> None:
    raw = "".join(line + end for line, end in lines).encode()
    raw = raw[:-1] if cut else raw
    headers = email.parser.BytesHeaderParser().parsebytes(raw)
    expected = (
        str(headers.get("Name", "n")),
        str(headers.get("Version", "v")),
        tuple(str(text) for text in headers.get_all("Requires-Dist", [])),
    )
    assert _headers(raw, "n", "v") == _odd_headers(raw, "n", "v") == expected
