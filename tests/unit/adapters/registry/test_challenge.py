from __future__ import annotations

import contextlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from imgbuild.adapters.registry.challenge import (
    MAX_CHALLENGES,
    MAX_FIELD_BYTES,
    MAX_PARAMETERS,
    Challenge,
    choose,
    parse_challenges,
)
from imgbuild.errors import ProtocolError

SUBJECT = "GET https://example.test/v2/"
TOKEN = st.from_regex(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,12}", fullmatch=True)
TEXT = st.text(alphabet=st.characters(min_codepoint=0x20, max_codepoint=0xFF, exclude_categories=["Cc"]), max_size=20)


def parse(*values: str) -> tuple[Challenge, ...]:
    return parse_challenges(values, subject=SUBJECT)


def one(scheme: str, **parameters: str) -> tuple[Challenge, ...]:
    return (Challenge(scheme=scheme, parameters=tuple(parameters.items())),)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (
            'Bearer realm="https://auth.example.test/token",service="reg",scope="repository:a/b:pull,push"',
            one("bearer", realm="https://auth.example.test/token", service="reg", scope="repository:a/b:pull,push"),
        ),
        ('BASIC REALM="a b"', one("basic", realm="a b")),
        ("Basic realm=plain, charset=UTF-8", one("basic", realm="plain", charset="UTF-8")),
        ('Basic realm \t= \t"x" \t,  other="y"', one("basic", realm="x", other="y")),
        (r'Basic realm="say \"hi\", \\ and \a"', one("basic", realm='say "hi", \\ and a')),
        ('Basic realm=""', one("basic", realm="")),
        ('Basic realm="\xe4\t"', one("basic", realm="\xe4\t")),
        ("Basic", one("basic")),
        ("Basic ", one("basic")),
        ('Basic , realm="x"', one("basic", realm="x")),
        ("Negotiate YWJj==", (Challenge(scheme="negotiate", token68="YWJj=="),)),
        ("Other realm=", (Challenge(scheme="other", token68="realm="),)),
        ("", ()),
        (" , ,", ()),
        (',, Basic realm="x",, ,', one("basic", realm="x")),
    ],
)
def test_a_field_is_read_by_the_grammar_of_rfc_9110(value: str, expected: tuple[Challenge, ...]) -> None:
    assert parse(value) == expected


def test_several_challenges_in_one_field_and_several_fields_are_read_in_order() -> None:
    value = 'Negotiate abc=, Bearer realm="a, Basic realm=b",scope="x", NTLM, Basic realm="c"'
    found = parse(value, 'Digest realm="d", nonce=n')
    assert [challenge.scheme for challenge in found] == ["negotiate", "bearer", "ntlm", "basic", "digest"]
    assert [challenge.get("Realm") for challenge in found] == [None, "a, Basic realm=b", None, "c", "d"]


@pytest.mark.parametrize(
    "value",
    [
        'Bearer realm="x',
        'Bearer realm="x\\',
        'Bearer realm="x\\"',
        'Bearer realm="x" service="y"',
        'Bearer realm="x"service="y"',
        'Bearer"x"',
        "Bearer realm=https://auth.example.test/token",
        'Bearer realm="a",scope=',
        'Bearer realm="a",scope=,service="b"',
        'Bearer realm="a",="b"',
        'Bearer ="b"',
        'realm="x"',
        "Bearer Basic realm=x",
        "Negotiate abc=, realm=x y",
        "Negotiate abc=, realm=x",
        'Bearer realm="x\r\nEvil: y"',
        'Bearer realm="\x00"',
        'Bearer realm="\x7f"',
        'Bearer realm="\u2603"',
        "B\xe4rer realm=x",
        "(comment)",
        'Bearer realm="a", Realm="b"',
        "Bearer realm=a, realm=a",
    ],
)
def test_what_is_not_the_grammar_is_refused_without_quoting_it(value: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse("Basic", value)
    assert caught.value.subject == SUBJECT
    assert (caught.value.where or "").startswith("WWW-Authenticate field 2 of 2, character ")
    assert "Evil" not in str(caught.value)
    assert "auth.example" not in str(caught.value)


def test_limits_are_exact() -> None:
    def of(parameters: int) -> str:
        return "Basic " + ",".join(f"p{number}=x" for number in range(parameters))

    def long(size: int) -> str:
        return f'Basic realm="{"x" * (size - 14)}"'

    assert len(parse(of(MAX_PARAMETERS))[0].parameters) == MAX_PARAMETERS
    assert len(parse(*["Basic"] * MAX_CHALLENGES)) == MAX_CHALLENGES
    assert len(parse(long(MAX_FIELD_BYTES))) == 1
    for bad in (
        [of(MAX_PARAMETERS + 1)],
        ["Basic"] * (MAX_CHALLENGES + 1),
        [""] * (MAX_CHALLENGES + 1),
        ["Basic," * (MAX_CHALLENGES + 1)],
        [long(MAX_FIELD_BYTES + 1)],
    ):
        with pytest.raises(ProtocolError, match=r"more than|longer than"):
            parse(*bad)


@pytest.mark.parametrize("unit", ["a", "a ", "a=", ",", '"', "\\", "\t", 'a="', "a,", "a=b,", "=", "a b=c,"])
def test_the_longest_field_takes_no_time_whatever_it_repeats(unit: str) -> None:
    started = time.monotonic()
    for start in ("", "Basic ", 'Basic a="', "Basic a"):
        try:
            parse((start + unit * MAX_FIELD_BYTES)[:MAX_FIELD_BYTES])
        except ProtocolError:
            continue
    assert time.monotonic() - started < 1.0


@given(st.lists(st.text(max_size=40) | st.text(alphabet=' ,="\\Bar\t', max_size=40), max_size=4))
def test_any_text_is_read_or_refused(values: list[str]) -> None:
    with contextlib.suppress(ProtocolError):
        parse(*values)


@given(st.lists(st.tuples(TOKEN, st.dictionaries(TOKEN.map(str.lower), TEXT, max_size=4)), max_size=4))
def test_what_is_written_by_the_grammar_is_read_back(challenges: list[tuple[str, dict[str, str]]]) -> None:
    def quoted(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    value = ", ".join(
        scheme + " " + ", ".join(f"{name}={quoted(text)}" for name, text in parameters.items())
        for scheme, parameters in challenges
    )
    expected = [(scheme.lower(), tuple(parameters.items())) for scheme, parameters in challenges]
    assert [(found.scheme, found.parameters) for found in parse(value)] == expected


def test_bearer_with_a_realm_is_chosen_before_basic_and_nothing_else_is() -> None:
    assert choose(parse('Basic realm="b", Bearer realm="t"')) == one("bearer", realm="t")[0]
    assert choose(parse('Bearer realm="1", Bearer realm="2"')) == one("bearer", realm="1")[0]
    assert choose(parse('Bearer service="s", Basic realm="b"')) == one("basic", realm="b")[0]
    assert choose(parse('Bearer realm="", Basic')) == one("basic")[0]
    assert choose(parse('Bearer service="s", Digest realm="d", Negotiate')) is None
    assert choose(()) is None
