"""What was shown to a registry is found in what it says, in each form in which it may come back."""

from __future__ import annotations

import base64
import json
import re
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING
from urllib.parse import quote, quote_plus, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from imgbuild.adapters.registry.secrecy import Secrets, pair_of
from imgbuild.errors import DocumentError, ImgbuildError, LayoutError, ProtocolError
from imgbuild.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable

SECRET = 's3cr3t/Pass+word Ü"\\=='  # noqa: S105
PAIR = pair_of("user", SECRET)


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


FORMS: list[Callable[[str], str]] = [
    str,
    str.lower,
    str.upper,
    lambda text: quote(text, safe=""),
    lambda text: quote(text, safe="").replace("%2F", "%2f").replace("%3D", "%3d"),
    quote,
    quote_plus,
    lambda text: urlencode({"refresh_token": text}),
    b64,
    lambda text: b64(text).rstrip("="),
    lambda text: b64(text).lower(),
    lambda text: quote(b64(text), safe=""),
    lambda text: base64.urlsafe_b64encode(text.encode()).decode(),
    lambda text: text.encode().decode("latin-1"),
    lambda text: printable(text.encode().decode("latin-1")),
    lambda text: json.dumps(text)[1:-1],
    lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    lambda text: repr(text)[1:-1],
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("secret", [SECRET, PAIR, "eyJhbGciOi.J9-_x.y~z", "pass"])
def test_each_form_is_hidden_and_what_stands_around_it_is_not(secret: str, form: Callable[[str], str]) -> None:
    secrets = Secrets()
    secrets.add(secret)
    written = form(secret)
    hidden = secrets.hide(f"before <{written}> and <{written}> after")
    assert written not in hidden
    assert written.lower() not in hidden.lower()
    assert hidden.startswith("before <")
    assert hidden.endswith("> after")
    assert len(hidden) < 60


@pytest.mark.parametrize("form", [form for form in FORMS if "token" not in form("")])
def test_a_form_that_was_cut_is_hidden_to_its_cut(form: Callable[[str], str]) -> None:
    secrets = Secrets()
    secrets.add(SECRET, PAIR)
    for written in (form(SECRET), form(PAIR)):
        for kept in range(9, len(written)):
            # The padding says nothing.
            assert secrets.hide(f"It is {written[:kept]}").rstrip("%3Dd=") == "It is ***"
            cut = secrets.hide(f"It is {written[:kept]}… (in x)")
            assert re.fullmatch(r"It is \*\*\*[%3Dd=]*… \(in x\)", cut)


def test_words_that_only_begin_like_a_secret_stay() -> None:
    secrets = Secrets()
    secrets.add("manifest-is-my-password", "abc")
    for text in ("a manifest: is not there", "the manifes", "abc", ""):
        assert secrets.hide(text) == text
    assert secrets.hide("cut manif…") == "cut ***…"


@given(st.text(min_size=4, max_size=30), st.text(max_size=20), st.text(max_size=20))
def test_any_secret_is_found_in_any_text(secret: str, before: str, after: str) -> None:
    secrets = Secrets()
    secrets.add(secret)
    hidden = secrets.hide(f"{before}{secret}{after}")
    assert "***" in hidden
    assert len(hidden) <= len(before) + len(after) + 3 or secret in f"{before}***{after}"


def test_every_field_of_an_error_and_of_those_behind_it_is_hidden() -> None:
    secrets = Secrets()
    secrets.add(SECRET)

    behind = DocumentError(f"document {SECRET}", (f"one: {SECRET}", "two"), hint=SECRET)
    behind.__context__ = ValueError(f"key {SECRET!r} twice", 7)
    with pytest.raises(ProtocolError) as caught, secrets.hiding():
        raise ProtocolError(
            f"it {SECRET}", f"has {SECRET}", expected=SECRET, actual=SECRET.lower(), where=SECRET, hint=SECRET
        ) from behind
    error = caught.value
    assert behind.__context__.args == ("key '***' twice", 7)
    assert behind.problems == ("one: ***", "two")
    assert error.fields() == dict.fromkeys(("expected", "actual", "where", "hint"), "***") | {
        "subject": "it ***",
        "problem": "has ***",
    }
    text = f"{error!r} {behind!r} {error.args} {behind.args} {''.join(traceback.format_exception(error))}"
    assert SECRET not in text
    assert repr(SECRET)[1:-1] not in text


def test_an_error_without_a_secret_is_the_same_one_and_one_with_a_ring_of_causes_ends() -> None:
    secrets = Secrets()
    secrets.add(SECRET)
    error = ImgbuildError("a", "b")
    error.__cause__ = error.__context__ = LayoutError("c", "d")
    error.__cause__.__cause__ = error
    assert not secrets.hide_error(error)
    assert str(error) == "a: b"


def test_only_what_a_document_would_show_of_a_secret_is_raised_when_it_is_screened() -> None:
    secrets = Secrets()
    secrets.add(SECRET)

    def raises(problem: str) -> Callable[[], None]:
        def parse() -> None:
            raise LayoutError("it", problem)

        return parse

    secrets.screen(lambda: None)
    secrets.screen(raises("is something else"))
    with pytest.raises(LayoutError, match=r"it: says \*\*\*"):
        secrets.screen(raises(f"says {SECRET}"))


def test_secrets_show_themselves_nowhere_and_may_be_added_while_others_are_hidden() -> None:
    secrets = Secrets()

    def work(number: int) -> bool:
        secrets.add(f"secret-{number:04}")
        return secrets.hide(f"x secret-{number:04} y") == "x *** y"

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(100)))
    assert repr(secrets) == "Secrets(***)"
