from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from imgbuild.errors import StepError
from imgbuild.model.paths import image_path, parent, parents, relative_path, show

BAD_ANYWHERE = {
    "a parent": "a/../b",
    "only a parent": "..",
    "a dot": "a/./b",
    "an empty part": "a//b",
    "a slash at the end": "a/",
    "empty": "",
    "NUL": "a\0b",
    "a line break": "a\nb",
    "an escape": "a\x1b[2Jb",
    "DEL": "a\x7fb",
    "a right-to-left override": "a\N{RIGHT-TO-LEFT OVERRIDE}b",
    "an invisible blank": "a\N{ZERO WIDTH SPACE}b",
    "half a surrogate pair": "a\ud800b",
    "too long": "a" * 4097,
    "too long in UTF-8": "ä" * 2049,
}


@pytest.mark.parametrize("case", BAD_ANYWHERE)
def test_a_path_that_leaves_its_folder_or_cannot_be_shown_is_refused(case: str) -> None:
    for read, text in ((relative_path, BAD_ANYWHERE[case]), (image_path, "/" + BAD_ANYWHERE[case])):
        with pytest.raises(StepError) as caught:
            read(text, where="layer/1")
        assert caught.value.where == "layer/1"
        assert caught.value.subject.isprintable()


@pytest.mark.parametrize("text", ["/", "a", "", "./a", "//a", "C:/a"])
def test_a_path_in_the_image_is_absolute_and_not_the_root(text: str) -> None:
    with pytest.raises(StepError):
        image_path(text, where="x")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/a", b"a"),
        ("/opt/ünï/b c", "opt/ünï/b c".encode()),
        ("/.a/..b/...", b".a/..b/..."),
        ("/" + "a" * 4096, b"a" * 4096),
    ],
)
def test_a_path_in_the_image_is_bytes_without_the_first_slash(text: str, expected: bytes) -> None:
    assert image_path(text, where="x") == expected


@given(st.text(max_size=40))
def test_any_text_is_a_path_or_a_step_error(text: str) -> None:
    try:
        found = relative_path(text, where="x")
    except StepError:
        return
    assert found == text.encode()
    assert image_path(f"/{text}", where="x") == found


@given(st.binary(max_size=40))
def test_what_is_shown_is_printable_whatever_the_bytes(path: bytes) -> None:
    assert show(path).isprintable()
    assert show(path).startswith("/")


def test_what_is_shown_escapes_only_what_must_be() -> None:
    assert show("opt/ünï".encode()) == "/opt/ünï"
    assert show(b"a\xff\n\x1b") == "/a\\xff\\n\\x1b"


def test_the_folders_above_a_path_come_from_the_top_down_without_the_root() -> None:
    assert parents(b"a/b/c") == [b"a", b"a/b"]
    assert parents(b"a") == []
    assert (parent(b"a/b/c"), parent(b"a")) == (b"a/b", b"")
