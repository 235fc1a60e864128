from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from imgbuild.digest import Digest
from imgbuild.errors import InputError, UnpinnedError
from imgbuild.model.reference import Reference, check_tag

HEX = "0123456789abcdef" * 4
GOOD = {
    "localhost/a": ("localhost", "a", None, None),
    "localhost:5000/llm/dsv41": ("localhost:5000", "llm/dsv41", None, None),
    "head:5000/llm/dsv41:v1": ("head:5000", "llm/dsv41", "v1", None),
    "ghcr.io/a/b_c/d__e/f-g.h:Tag_1.2-x": ("ghcr.io", "a/b_c/d__e/f-g.h", "Tag_1.2-x", None),
    f"r.io/a@sha256:{HEX}": ("r.io", "a", None, f"sha256:{HEX}"),
    f"r.io/a:tag@sha256:{HEX}": ("r.io", "a", "tag", f"sha256:{HEX}"),
    f"r.io/a@sha512:{HEX}{HEX}": ("r.io", "a", None, f"sha512:{HEX}{HEX}"),
    "192.168.1.1:5000/a": ("192.168.1.1:5000", "a", None, None),
    "r.io/" + "a" * 255: ("r.io", "a" * 255, None, None),
    "r.io/a:" + "t" * 128: ("r.io", "a", "t" * 128, None),
}
BAD = {
    "empty": "",
    "no host": "ubuntu",
    "a host that is a user": "library/ubuntu",
    "a tag but no host": "ubuntu:22.04",
    "no repository": "r.io/",
    "only a slash": "/",
    "no host before the slash": "/a",
    "upper case": "r.io/A",
    "a part of dots": "r.io/../a",
    "an empty part": "r.io/a//b",
    "a slash at the end": "r.io/a/",
    "two dots": "r.io/a..b",
    "three underscores": "r.io/a___b",
    "an underscore at the end": "r.io/a_",
    "an empty tag": "r.io/a:",
    "a tag with a slash": "r.io/a:b/c",
    "a tag that begins with a dot": "r.io/a:.b",
    "two tags": "r.io/a:b:c",
    "a tag of 129": "r.io/a:" + "t" * 129,
    "a repository of 256": "r.io/" + "a" * 256,
    "an empty digest": "r.io/a@",
    "a short digest": "r.io/a@sha256:" + HEX[1:],
    "an unknown algorithm": "r.io/a@md5:" + HEX[:32],
    "two digests": f"r.io/a@sha256:{HEX}@sha256:{HEX}",
    "a digest and then a tag": f"r.io/a@sha256:{HEX}:tag",
    "a scheme": "https://r.io/a",
    "a password": "user:secret@r.io/a",
    "a port of letters": "r.io:http/a",
    "a port of six digits": "r.io:123456/a",
    "an empty port": "r.io:/a",
    "a blank": "r.io/a b",
    "a blank before": " r.io/a",
    "a line break after": "r.io/a\n",
    "a line break in the tag": "r.io/a:b\n",
    "NUL": "r.io/a\0",
    "a control character": "r.io/a\x1b[2J",
    "letters of others": "r.io/\N{CYRILLIC SMALL LETTER A}",
    "a shell": "r.io/$(id)",
    "an IPv6 host": "[::1]:5000/a",
    "a megabyte": "r.io/" + "a-" * 500_000,
}


@pytest.mark.parametrize("text", GOOD)
def test_a_reference_is_parsed_into_its_parts_and_written_back(text: str) -> None:
    host, repository, tag, digest = GOOD[text]
    found = Reference.parse(text, where="here")
    assert (found.host, found.repository, found.tag) == (host, repository, tag)
    assert found.digest == (None if digest is None else Digest.parse(digest))
    assert str(found) == text
    assert found.name == f"{host}/{repository}"


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_whole_reference_is_refused_and_nothing_is_filled_in(case: str) -> None:
    with pytest.raises(InputError) as caught:
        Reference.parse(BAD[case], where="base.reference")
    assert caught.value.where == "base.reference"
    assert len(str(caught.value)) < 800


PARTS = st.from_regex(r"[a-z0-9]+(?:[._-][a-z0-9]+)?", fullmatch=True)


@given(
    st.from_regex(r"(?:localhost|[a-z0-9-]{1,9}(?:\.[a-z0-9-]{1,9}){1,3})(?::[0-9]{1,5})?", fullmatch=True),
    st.lists(PARTS, min_size=1, max_size=4).map("/".join).filter(lambda text: len(text) < 200),
    st.none() | st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", fullmatch=True),
    st.none() | st.text("0123456789abcdef", min_size=64, max_size=64).map(lambda text: Digest("sha256", text)),
)
def test_any_reference_is_what_it_was_after_writing_and_parsing(
    host: str, repository: str, tag: str | None, digest: Digest | None
) -> None:
    reference = Reference(host=host, repository=repository, tag=tag, digest=digest)
    assert Reference.parse(str(reference), where="x") == reference


@given(st.text(max_size=60))
def test_any_text_is_a_reference_or_an_input_error(text: str) -> None:
    try:
        found = Reference.parse(text, where="x")
    except InputError:
        return
    assert str(found) == text


def test_P19_a_tag_alone_is_refused_where_a_digest_is_needed() -> None:
    with pytest.raises(UnpinnedError, match="names a tag, which may move") as caught:
        Reference.parse("r.io/a:latest", where="x").pinned(where="base")
    assert "imgbuild lock" in str(caught.value.hint)
    assert Reference.parse(f"r.io/a:b@sha256:{HEX}", where="x").pinned(where="base") == Digest("sha256", HEX)


@pytest.mark.parametrize("tag", ["", "-a", ".a", "a b", "a/b", "a:b", "a\n", "a" * 129, "ä"])
def test_a_tag_that_no_registry_takes_is_refused(tag: str) -> None:
    with pytest.raises(InputError, match="is not a valid tag"):
        check_tag(tag, where="tags")


@pytest.mark.parametrize("tag", ["a", "_", "9", "A.b-c_d", "a" * 128])
def test_a_tag_that_registries_take_is_given_back(tag: str) -> None:
    assert check_tag(tag, where="tags") == tag
