from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from imgbuild.adapters.registry.origin import check_reach, is_loopback, next_address, origin_of, public
from imgbuild.errors import ProtocolError


@pytest.mark.parametrize(
    ("url", "origin", "place"),
    [
        ("https://a.example.test/x?y", "https://a.example.test", "a.example.test:443"),
        ("HTTPS://A.Example.TEST:443", "https://a.example.test", "a.example.test:443"),
        ("http://a_b.test:5000/", "http://a_b.test:5000", "a_b.test:5000"),
        ("http://[::1]:5000/", "http://[::1]:5000", "[::1]:5000"),
        ("http://10.0.0.1", "http://10.0.0.1", "10.0.0.1:80"),
        ("https://a.test./", "https://a.test.", "a.test.:443"),
    ],
)
def test_an_origin_is_scheme_host_and_port(url: str, origin: str, place: str) -> None:
    found = origin_of(url, subject="x")
    assert (str(found), found.place) == (origin, place)
    assert origin_of(str(found), subject="x") == found


@pytest.mark.parametrize(
    "url",
    [
        *(
            "",
            "a.test",
            "//a.test/",
            "ftp://a.test/",
            "file:///etc/passwd",
            "javascript:alert(1)",
            "http://",
            "http:///x",
        ),
        *("http://u@a.test/", "http://u:p@a.test/", "http://@a.test/", "http://a.test:99999/", "http://a.test:0/"),
        *("http://a.test:x/", "http://[::1/", "http://a test/", "http://a.test/\n", "http://é.test/", "http://a\\.b/"),
        *("http://127.1/", "http://0x7f000001/", "http://017700000001/", "http://1.2.3.4.5/", "http://a.0x1/"),
        *("http://a..b/", "http://.a/", f"http://{'a' * 64}.test/", "http://a%2e/", f"http://a.test/{'x' * 20_000}"),
    ],
)
def test_what_is_no_address_of_http_is_refused(url: str) -> None:
    with pytest.raises(ProtocolError):
        origin_of(url, subject="x")


@given(st.text() | st.text(alphabet="ahtp:/@[]%.0123456789?#\\\x1b\n").map("http://".__add__))
def test_no_text_is_more_than_a_typed_error_and_nothing_strange_is_shown(text: str) -> None:
    assert public(text).isprintable()
    try:
        origin_of(text, subject="x")
        next_address("https://a.test/v2/", text, subject="x")
    except ProtocolError as error:
        assert str(error).isprintable()  # noqa: PT017 - most texts are refused, some are not


def test_of_an_address_neither_user_nor_query_nor_fragment_is_shown() -> None:
    assert public("https://user:pw@a.test:5000/v2/x?token=s#s") == "https://a.test:5000/v2/x"
    assert public("https://[::1]:5000/\x1b[2J") == "https://[::1]:5000/\\x1b[2J"
    assert public("http://user:pw@[::1") == "an address that cannot be read"
    assert len(public("https://a.test/" + "x" * 9000)) < 600


@pytest.mark.parametrize(
    ("location", "target"),
    [
        ("/v2/b?c=d", "https://a.test:5000/v2/b?c=d"),
        ("b", "https://a.test:5000/v2/x/b"),
        ("?q", "https://a.test:5000/v2/x/y?q"),
        ("//b.test/z", "https://b.test/z"),
        ("https://b.test/z#part", "https://b.test/z"),
        ("http://a.test:5000/z?q", "https://a.test:5000/z?q"),
        ("http://a.test/z", "https://a.test:5000/z"),
        ("http://b.test/z", None),
        ("http://a.test:80/z", None),
        ("https://localhost/z", None),
        ("ftp://b.test/z", None),
        ("https://u@b.test/z", None),
        ("", None),
        (None, None),
    ],
)
def test_a_location_leads_where_it_may(location: str | None, target: str | None) -> None:
    base = "https://a.test:5000/v2/x/y"
    if target is not None:
        assert next_address(base, location, subject="x") == target
        return
    with pytest.raises(ProtocolError):
        next_address(base, location, subject="x")


INSIDE = [
    "localhost",
    "a.localhost",
    "LOCALHOST",
    "localhost.",
    "127.0.0.1",
    "127.9.9.9",
    "[::1]",
    "[::ffff:127.0.0.1]",
]
LINK = ["169.254.169.254", "[fe80::1]", "[fe80::1%25eth0]", "0.0.0.0", "[::]", "224.0.0.1", "[ff02::1]"]  # noqa: S104


@pytest.mark.parametrize("host", [*INSIDE, *LINK, "[64:ff9b::a9fe:a9fe]"])
def test_who_is_elsewhere_does_not_lead_inside_and_who_is_inside_may(host: str) -> None:
    there = origin_of(f"http://{host}/", subject="x")
    with pytest.raises(ProtocolError):
        check_reach(origin_of("http://a.test/", subject="x"), there, subject="x")
    check_reach(origin_of("http://127.0.0.1/", subject="x"), there, subject="x")
    check_reach(there, there, subject="x")


@pytest.mark.parametrize("host", ["a.test", "10.0.0.1", "192.168.1.1", "[fd00::1]", "8.8.8.8", "localhost.test"])
def test_hosts_that_others_can_reach_are_no_way_inside(host: str) -> None:
    check_reach(origin_of("http://a.test/", subject="x"), origin_of(f"http://{host}/", subject="x"), subject="x")
    assert not is_loopback(host.strip("[]"))


def test_this_machine_is_known_by_its_names() -> None:
    assert all(is_loopback(host.strip("[]")) for host in INSIDE)
    assert not any(is_loopback(host.strip("[]")) for host in LINK)
