"""The ways to a registry: redirects that are followed or refused, and proxies of the environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from imgbuild.errors import MissingError, NetworkError, ProtocolError, UsageError

from tests.support import fault_registry as fr
from tests.support.fault_registry import Auth, FaultRegistry
from tests.support.proxying import Proxy, authority_for
from tests.support.reading import DATA, DIGEST, NAME, SIZE, Client, Scripted, all_text, settings
from tests.support.registries import make_authority

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OUTSIDE = "registry.example.test"


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    with Proxy() as found:
        monkeypatch.setenv("HTTPS_PROXY", f"http://bob:pass%20word@{found.host}")
        monkeypatch.setenv("http_proxy", found.host)
        yield found


# redirects


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("to", ["/cdn/{digest}?a=b/c", "{base}/cdn/{digest}#x", "../../../../cdn/{digest}"])
def test_a_redirect_is_followed(seeded: FaultRegistry, client: Client, status: int, to: str) -> None:
    seeded.faults.always(fr.Redirect(to=to, status=status), "blob")  # type: ignore[arg-type]
    assert client.read(seeded.host, DIGEST, SIZE) == DATA
    assert seeded.requests("cdn")[0].query == ({"a": "b/c"} if "?" in to else {})


def test_a_query_right_after_the_host_is_kept(client: Client) -> None:
    with Scripted(b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n") as server, FaultRegistry() as registry:
        registry.faults.always(fr.Redirect(to=f"http://{server.host}?a=/b"))
        with pytest.raises(MissingError):
            client.at(registry.host).manifest("t")
        assert server.asked[0].startswith(b"GET /?a=/b HTTP/1.1\r\n")


@pytest.mark.parametrize(
    ("to", "problem"),
    [
        ("{base}{path}", "redirected on and on"),
        ("ftp://127.0.0.1/x", "cannot be used"),
        ("javascript:alert(1)", "cannot be read"),
        ("http://user:pw@127.0.0.1/", "with a user in it"),
        ("http://127.0.0.1:99999/", "cannot be read"),
        ("http://127.1/", "name or number of a host"),
        ("/\x1b[2J", "cannot be read"),
        ("", "without a Location"),
    ],
)
def test_a_redirect_to_nowhere_is_a_typed_error(seeded: FaultRegistry, client: Client, to: str, problem: str) -> None:
    seeded.faults.always(fr.Redirect(to=to), "blob")
    with pytest.raises(ProtocolError, match=problem) as caught:
        client.read(seeded.host, DIGEST, SIZE)
    assert "pw" not in all_text(caught.value)
    assert "\x1b" not in all_text(caught.value)
    assert len(seeded.requests()) == (6 if "on and on" in problem else 1)


def test_C50_a_redirect_leaves_https_only_for_the_same_host_and_then_by_https(tmp_path: Path) -> None:
    authority = make_authority(tmp_path / "ca")
    with FaultRegistry(ssl_context=authority.server_context()) as secure, FaultRegistry() as plain:
        secure.put_blob(NAME, DATA)
        table = f'[registry."{secure.host}"]\nplain-http = false\nca = "ca/ca.pem"'
        with Client(settings=settings(tmp_path, table)) as client:
            secure.faults.once(fr.Redirect(to=f"http://{secure.host}/cdn/{{digest}}"), "blob")
            assert client.read(secure.host, DIGEST, SIZE) == DATA
            for to in (f"{plain.url}/cdn/{{digest}}", "http://elsewhere.example.test/x"):
                secure.faults.once(fr.Redirect(to=to), "blob")
                with pytest.raises(ProtocolError, match="leaves https") as caught:
                    client.read(secure.host, DIGEST, SIZE)
                assert "X-Forwarded-Proto" in caught.value.fields()["hint"]
        assert plain.requests() == []


@pytest.mark.parametrize(
    "inside",
    [
        *("127.0.0.1", "localhost", "LOCALHOST.", "[::1]", "0.0.0.0", "169.254.169.254", "[fe80::1]"),  # noqa: S104
        *("[::ffff:127.0.0.1]", "[64:ff9b::7f00:1]", "2130706433", "0x7f.0.0.1", "127.0.0.01"),
    ],
)
@pytest.mark.parametrize("how", ["redirect", "realm"])
def test_a_registry_elsewhere_cannot_lead_us_into_this_machine(
    seeded: FaultRegistry, proxy: Proxy, tmp_path: Path, inside: str, how: str
) -> None:
    host, to = f"{OUTSIDE}:{seeded.port}", f"http://{inside}:1/secrets"
    if how == "realm":
        seeded.auth.mode, seeded.auth.realm = "bearer", to
    else:
        seeded.faults.always(fr.Redirect(to=to), "blob")
    file = settings(tmp_path, f'[registry."{host}"]\nplain-http = true')
    problem = r"inside this machine or its link|name or number of a host"
    with Client(settings=file) as client, pytest.raises(ProtocolError, match=problem):
        client.read(host, DIGEST, SIZE)
    assert len(seeded.requests()) == len(proxy.asked) == 1


# proxies


def test_a_registry_is_asked_through_the_proxy_of_the_environment(proxy: Proxy, tmp_path: Path) -> None:
    authority = authority_for(tmp_path / "ca", OUTSIDE)
    with FaultRegistry(ssl_context=authority.server_context()) as registry:
        registry.put_blob(NAME, DATA)
        host = f"{OUTSIDE}:{registry.port}"
        with Client(settings=settings(tmp_path, f'[registry."{host}"]\nca = "ca/ca.pem"')) as client:
            assert client.read(host, DIGEST, SIZE) == DATA
            assert client.read(host, DIGEST, SIZE) == DATA
            assert SIZE * 2 < client.moved(host)[0] < SIZE * 2 + 2000
        (asked,) = proxy.asked
        assert asked.startswith(f"CONNECT {host} HTTP/1.")
        assert "Proxy-Authorization: Basic Ym9iOnBhc3Mgd29yZA==\r\n" in asked
        assert all("proxy-authorization" not in one.headers for one in registry.requests())


def test_plain_http_goes_through_its_proxy_with_the_whole_address(
    seeded: FaultRegistry, proxy: Proxy, tmp_path: Path
) -> None:
    host = f"{OUTSIDE}:{seeded.port}"
    with Client(settings=settings(tmp_path, f'[registry."{host}"]\nplain-http = true')) as client:
        assert client.read(host, DIGEST, SIZE) == DATA
        assert client.moved(host)[0] > SIZE
        assert client.moved(host)[1] == len(proxy.asked[0])
    assert proxy.asked[0].startswith(f"GET http://{host}/v2/{NAME}/blobs/{DIGEST} HTTP/1.1\r\nHost: {host}\r\n")


def test_this_machine_and_what_no_proxy_names_are_asked_directly(
    seeded: FaultRegistry, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client() as client:
        assert client.read(seeded.host, DIGEST, SIZE) == DATA
    assert proxy.asked == []
    monkeypatch.setenv("no_proxy", "0.0.0.0")  # noqa: S104
    host = f"0.0.0.0:{seeded.port}"
    with Client(settings=settings(tmp_path, f'[registry."{host}"]\nplain-http = true')) as client:
        assert client.read(host, DIGEST, SIZE) == DATA
    assert proxy.asked == []


@pytest.mark.parametrize("value", ["socks5://bob:s3cr3t@127.0.0.1:1080", "http://bob:s3cr3t@[::1", "http://"])
def test_a_proxy_that_cannot_be_used_is_a_usage_error_without_its_password(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALL_PROXY", value)
    with Client() as client, pytest.raises(UsageError, match="cannot be used") as caught:
        client.at(OUTSIDE).manifest("t")
    assert "s3cr3t" not in all_text(caught.value)


def test_a_proxy_that_refuses_or_is_away_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with Scripted(b"HTTP/1.1 407 Pay \x1b[2J first\r\n\r\n") as server:
        monkeypatch.setenv("https_proxy", f"http://{server.host}")
        with Client() as client, pytest.raises(NetworkError, match="407 Pay") as caught:
            client.at(OUTSIDE).manifest("t")
        assert str(caught.value).isprintable()
        assert len(server.asked) == 2
    with Client() as client, pytest.raises(NetworkError, match="nobody listens there"):
        client.at(OUTSIDE).manifest("t")


def test_a_token_service_elsewhere_is_asked_through_the_proxy(proxy: Proxy, tmp_path: Path) -> None:
    authority = authority_for(tmp_path / "ca", OUTSIDE, "auth.example.test")
    auth = Auth(mode="bearer", anonymous=frozenset({NAME}))
    context = authority.server_context()
    with (
        FaultRegistry(auth=auth, ssl_context=context) as registry,
        FaultRegistry(auth=auth, ssl_context=context) as tokens,
    ):
        registry.put_blob(NAME, DATA)
        auth.realm = f"https://auth.example.test:{tokens.port}/token"
        host, other = f"{OUTSIDE}:{registry.port}", f"auth.example.test:{tokens.port}"
        tables = [f'[registry."{name}"]\nca = "ca/ca.pem"' for name in (host, other)]
        with Client(settings=settings(tmp_path, *tables)) as client:
            assert client.read(host, DIGEST, SIZE) == DATA
            assert client.moved(other)[0] > 0
    assert len(proxy.asked) == 2
