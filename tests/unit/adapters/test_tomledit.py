"""Values and lists of a TOML file are changed, and no byte besides."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from imgbuild.adapters.tomledit import Edit, edit_lists, edit_toml, value_at
from imgbuild.errors import DocumentError

KEYS = ("sources", "a", "commit")
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "text",
    [
        "[sources.a]\ncommit = {} # after\n",
        "# before\r\n[sources.a]\r\n\tcommit={}   # after\r\n\r\n[b]\r\nx = 1",
        "sources = {{ a = {{ commit = {}, k = [1,\n 2, # two\n] }} }}\n",
        "[sources]\na.commit = {}\na.z = 1\n",
        "sources.a.commit = {}\nsources.b.x = 1 #\n",
        '["sources"."a"]\n"commit" = {}\n[other]\n[sources.a.more]\nx = 1\n[sources.b]\ncommit = "c"\n',
        "[sources]\n[sources.b]\n[l]\nx = 1\n[sources.a]\ncommit = {}\n[[m]]\ny = 1\n[[m]]\ny = 2\n",
    ],
)
@pytest.mark.parametrize("old", ['"x"', "'x'", '"\\u0078"'])
def test_all_else_stays_byte_for_byte(text: str, old: str) -> None:
    raw = text.format(old).encode()
    edited = edit_toml(raw, [Edit(keys=KEYS, value="new")], subject="t")
    assert edited == text.format('"new"').encode()
    assert value_at(tomllib.loads(edited.decode()), KEYS) == "new"


def test_the_definitions_of_the_repository_can_be_edited() -> None:
    for path in sorted((ROOT / "locks").glob("*.toml")):
        raw = path.read_bytes()
        title = tomllib.loads(raw.decode())["title"]
        edited = edit_toml(raw, [Edit(keys=("title",), value="other")], subject=path.name)
        assert edited == raw.replace(f'title = "{title}"'.encode(), b'title = "other"')


@given(st.text(st.characters(codec="utf-8"), max_size=40))
def test_any_text_can_be_a_value(value: str) -> None:
    edited = edit_toml(b'[sources.a]\ncommit = "x" # after\n', [Edit(keys=KEYS, value=value)], subject="t")
    assert value_at(tomllib.loads(edited.decode()), KEYS) == value
    assert edited.endswith(b" # after\n")
    assert edited.count(b"\n") == 2


def test_a_number_can_be_one() -> None:
    assert edit_toml(b"size = 0x10 # n\n", [Edit(keys=("size",), value=7)], subject="t") == b"size = 7 # n\n"


@pytest.mark.parametrize(
    "raw",
    [
        b"[sources.a]\nx = 1\n",
        b"[sources]\n",
        b"",
        b"[sources.a]\ncommit = \n",
        b"\xff",
        b'[sources.a]\ncommit = "x"\n[sources.a]\n',
        b"x = " + b"[" * 5_000,
        b'[[m]]\ny = 1\n[sources.a]\ncommit = "x"\n[[m]]\ny = 2\n',
        b'[sources.a]\ncommit = """\nx"""\n',
    ],
)
def test_what_is_not_there_or_no_TOML_or_would_be_moved_about_is_refused(raw: bytes) -> None:
    with pytest.raises(DocumentError) as caught:
        edit_toml(raw, [Edit(keys=KEYS, value="y")], subject="locks/x.toml")
    assert caught.value.subject == "locks/x.toml"


LISTS = b"""# of upstream
"a/b.py" = [   # kept
    "sha256:1",  # before
    "sha256:2",
]

"c" = ["absent", "sha256:2"]  # kept\r
"d" = ["absent", "sha256:2"]
"e" = [
  "x",
  "y"
]
"""


def test_texts_of_lists_change_where_they_stand_with_all_comments_kept() -> None:
    after = edit_lists(LISTS, {"a/b.py": ["sha256:1", "sha256:3"], "d": ["absent", "s"]}, subject="s")
    expected = LISTS.replace(b'"sha256:2",\n]', b'"sha256:3",\n]').replace(
        b'"d" = ["absent", "sha256:2"]', b'"d" = ["absent", "s"]'
    )
    assert after == expected


def test_lists_of_another_length_are_written_anew_as_they_were_laid_out() -> None:
    after = edit_lists(LISTS, {"c": ["absent"], "e": ["x", 'ü"', "z"]}, subject="s")
    assert b'"c" = ["absent"]  # kept\r\n' in after
    assert '"e" = [\n    "x",\n    "ü\\"",\n    "z",\n]\n'.encode() in after
    assert tomllib.loads(after.decode())["d"] == ["absent", "sha256:2"]


def test_texts_that_change_places_do() -> None:
    raw = b'a = ["1", "2", "3"]\n'
    assert tomllib.loads(edit_lists(raw, {"a": ["2", "1", "3"]}, subject="s").decode()) == {"a": ["2", "1", "3"]}


@pytest.mark.parametrize(
    ("raw", "lists"),
    [
        (LISTS, {"absent": ["x"]}),
        (LISTS, {"a/b.py": ["one"]}),
        (b"a = [", {"a": ["x"]}),
        (b"\xff", {"a": ["x"]}),
        (b"a = 5\n", {"a": ["x"]}),
        (b'a.b = ["x"]\n', {"a": ["y"]}),
    ],
)
def test_lists_that_cannot_be_changed_alone_are_left_to_the_author(raw: bytes, lists: dict[str, list[str]]) -> None:
    with pytest.raises(DocumentError) as caught:
        edit_lists(raw, lists, subject="states.toml")
    assert caught.value.subject == "states.toml"
    assert caught.value.hint == "change it by hand, and run `imgbuild lock IMAGE`"
