from __future__ import annotations

import pytest
from imgbuild.adapters.registry.proxy import parse_proxy
from imgbuild.errors import UsageError


@pytest.mark.parametrize(
    ("text", "address", "shown"),
    [
        ("http://p.test:3128", "http://p.test:3128", {}),
        ("p.test:3128", "http://p.test:3128", {}),
        ("https://p.test/", "https://p.test", {}),
        ("http://bob:a%40b@p.test:1", "http://p.test:1", {"Proxy-Authorization": "Basic Ym9iOmFAYg=="}),
        ("bob@p.test:1", "http://p.test:1", {"Proxy-Authorization": "Basic Ym9iOg=="}),
        ("http://[::1]:3128", "http://[::1]:3128", {}),
    ],
)
def test_a_proxy_is_read_as_other_tools_read_it(text: str, address: str, shown: dict[str, str]) -> None:
    found = parse_proxy(text)
    assert (found.address, found.headers) == (address, shown)
    assert "Basic" not in repr(found)


@pytest.mark.parametrize(
    "text", ["socks5://u:secret@p.test", "http://", "http://u:secret@", "http://[::1", "a b", "x:y:z"]
)
def test_what_is_no_proxy_is_refused_and_not_quoted(text: str) -> None:
    with pytest.raises(UsageError, match="cannot be used") as caught:
        parse_proxy(text)
    assert "secret" not in f"{caught.value} {caught.value.__context__!r}"
