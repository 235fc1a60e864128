"""Who we are: what is shown to whom, when, and that it is shown to nobody else and nowhere else."""

from __future__ import annotations

import base64
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from imgbuild.config import MIB
from imgbuild.errors import (
    CredentialError,
    ForbiddenError,
    ImgbuildError,
    MissingError,
    NetworkError,
    ProtocolError,
    ServerError,
    ThrottledError,
    UnauthorizedError,
)

from tests.support import fault_registry as fr
from tests.support.fault_registry import Auth, FaultRegistry
from tests.support.proxying import Proxy
from tests.support.reading import NAME, Client, Scripted, all_text, check_silence
from tests.support.registries import KINDS, PAIR, PASSWORD, USER, any_registry, make_authority

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.registries import RegistryKind

DATA = bytes(range(256)) * 1000
DIGEST = fr.digest_of(DATA)


@pytest.fixture
def bearer() -> Iterator[FaultRegistry]:
    with FaultRegistry(auth=Auth(mode="bearer")) as found:
        found.put_blob(NAME, DATA)
        found.seed_image(NAME, "t")
        yield found


def read(registry: FaultRegistry, client: Client) -> bytes:
    return client.read(registry.host, DIGEST, len(DATA))


# basic


@pytest.mark.parametrize("kind", KINDS)
def test_basic_credentials_are_shown_and_wrong_ones_never_fall_to_anonymous(
    kind: RegistryKind, tmp_path: Path, login: Callable[..., None]
) -> None:
    with any_registry(kind, tmp_path / "r", basic=True) as found:
        login(found.host)
        with Client() as client, pytest.raises(MissingError):
            client.at(found.host).manifest("t")
        login(found.host, auth=base64.b64encode(b"tester:hunter2").decode())
        with Client() as client, pytest.raises(UnauthorizedError, match="with the credentials in auths") as caught:
            client.at(found.host).manifest("t")
        assert "hunter2" not in all_text(caught.value)
        assert USER not in str(caught.value)
        login("other.example.test")
        with Client() as client, pytest.raises(UnauthorizedError, match="asked anonymously") as caught:
            client.at(found.host).manifest("t")
        assert "docker login" in caught.value.fields()["hint"]


def test_nothing_is_shown_before_the_registry_asks(login: Callable[..., None]) -> None:
    with FaultRegistry() as registry, Client() as client:
        login(registry.host)
        registry.put_blob(NAME, DATA)
        assert read(registry, client) == DATA
        assert all("authorization" not in one.headers for one in registry.requests())


def test_many_threads_that_are_asked_at_once_for_basic_credentials_all_show_them(login: Callable[..., None]) -> None:
    with FaultRegistry(auth=Auth(mode="basic")) as registry, Client() as client, ThreadPoolExecutor(12) as pool:
        login(registry.host)
        registry.put_blob(NAME, DATA)
        registry.faults.add(fr.Fault(action=fr.Stall(after_bytes=0, seconds=0.05), kind="blob", times=12))
        assert all(pool.map(lambda _: read(registry, client) == DATA, range(12)))


def test_a_token_for_a_registry_that_wants_a_password_is_a_typed_error(login: Callable[..., None]) -> None:
    with FaultRegistry(auth=Auth(mode="basic")) as registry, Client() as client:
        login(registry.host, identitytoken="refresh-secret")
        with pytest.raises(CredentialError, match="are a token, and it asks for a user and a password") as caught:
            read(registry, client)
        assert "refresh-secret" not in all_text(caught.value)


# bearer


@pytest.mark.parametrize("names", ["token", "access_token", "both"])
def test_a_token_is_asked_for_once_with_its_scope_and_shown_to_the_registry(
    bearer: FaultRegistry, login: Callable[..., None], names: Any
) -> None:
    login(bearer.host)
    bearer.auth.field_name = names
    with Client() as client:
        for _ in range(3):
            assert read(bearer, client) == DATA
        (asked,) = bearer.requests("token")
        assert dict(asked.pairs) == {"service": "fault registry", "scope": f"repository:{NAME}:pull"}
        assert asked.headers["authorization"] == f"Basic {PAIR}"
        assert [one.status for one in bearer.requests("blob")] == [401, 200, 200, 200]
        check_silence(bearer, client)


def test_anonymous_tokens_are_asked_for_without_credentials(bearer: FaultRegistry, login: Callable[..., None]) -> None:
    bearer.auth.anonymous = frozenset({NAME})
    with Client() as client:
        assert read(bearer, client) == DATA
        with pytest.raises(UnauthorizedError, match="asked anonymously"):
            client.at(bearer.host, "private/app").manifest("t")
    assert all("authorization" not in one.headers for one in bearer.requests("token"))


def test_refused_credentials_never_fall_to_anonymous(bearer: FaultRegistry, login: Callable[..., None]) -> None:
    login(bearer.host, username=USER, password="hunter2-wrong")  # noqa: S106
    bearer.auth.anonymous = frozenset({NAME})
    with Client() as client:
        with pytest.raises(UnauthorizedError, match="token for repository:team/app:pull") as caught:
            read(bearer, client)
        assert [one.status for one in bearer.requests()] == [401, 401]
        check_silence(bearer, client, caught.value)
        assert "hunter2" not in all_text(caught.value)


def test_an_identity_token_is_changed_for_access_tokens(bearer: FaultRegistry, login: Callable[..., None]) -> None:
    login(bearer.host, identitytoken=bearer.auth.refresh_token(USER))
    with Client() as client:
        assert read(bearer, client) == DATA
        (asked,) = bearer.requests("token")
        assert (asked.method, "authorization" in asked.headers, asked.query) == ("POST", False, {})
        check_silence(bearer, client)
        bearer.auth.refresh_tokens.clear()
        bearer.auth.expire_all()
        with pytest.raises(UnauthorizedError) as caught:
            read(bearer, client)
        check_silence(bearer, client, caught.value)


def test_a_registry_token_is_shown_as_it_is_and_not_again_when_it_is_refused(
    bearer: FaultRegistry, login: Callable[..., None]
) -> None:
    token = str(bearer.auth.issue(USER, [f"repository:{NAME}:pull"])["token"])
    login(bearer.host, registrytoken=token)
    with Client() as client:
        assert read(bearer, client) == DATA
        bearer.auth.expire_all()
        bearer.clear_log()
        with pytest.raises(UnauthorizedError) as caught:
            read(bearer, client)
        assert not bearer.requests("token")
        assert len(bearer.requests()) == 1
        assert token not in all_text(caught.value)


def test_C46_a_token_is_fetched_anew_before_it_ends(bearer: FaultRegistry, login: Callable[..., None]) -> None:
    login(bearer.host)
    bearer.auth.expires_in = 1
    with Client() as client:
        read(bearer, client)
        time.sleep(0.95)
        read(bearer, client)
    assert [one.status for one in bearer.requests("blob")] == [401, 200, 200]
    assert len(bearer.requests("token")) == 2


def test_C46_a_token_that_ends_within_a_layer_is_fetched_anew_and_the_layer_goes_on(
    bearer: FaultRegistry, login: Callable[..., None]
) -> None:
    login(bearer.host)
    bearer.faults.once(fr.ResetInAnswer(after_bytes=100_000), "blob", skip=1)
    bearer.faults.once(fr.ExpireToken(), "blob", skip=1)
    bearer.faults.once(fr.ResetInAnswer(after_bytes=100_000), "blob", skip=1)
    bearer.faults.once(fr.ExpireToken(), "blob")
    with Client() as client:
        assert read(bearer, client) == DATA
        assert client.moved(bearer.host)[0] < len(DATA) + 6000
    assert 401 in [one.status for one in bearer.requests("blob")[1:]]


def test_a_fresh_token_that_is_refused_is_not_fetched_for_ever(
    bearer: FaultRegistry, login: Callable[..., None]
) -> None:
    login(bearer.host)
    bearer.auth.readable = {USER: frozenset()}
    with Client() as client, pytest.raises(UnauthorizedError):
        read(bearer, client)
    assert len(bearer.requests("token")) <= 2


def test_threads_share_one_token_and_one_refresh(bearer: FaultRegistry, login: Callable[..., None]) -> None:
    login(bearer.host)
    with Client() as client, ThreadPoolExecutor(12) as pool:
        for _ in range(2):
            assert all(pool.map(lambda _: read(bearer, client) == DATA, range(24)))
            bearer.auth.expire_all()
    assert len(bearer.requests("token")) <= 4


# realms


@pytest.mark.parametrize(
    ("realm", "problem"),
    [
        ("javascript:alert(1)", "address that cannot be used"),
        ("http://user:pw@127.0.0.1/token", "with a user in it"),
        ("http://auth.example.test/token", "without encryption"),
        ("http://127.0.0.1:99999/token", "cannot be read"),
        ("/token", "cannot be used"),
        ("http://127.0.0.1:1/token#", "fragment"),
        ("http://127.1/token", "name or number of a host"),
    ],
)
def test_a_realm_that_is_not_to_be_trusted_is_refused_and_not_asked(
    bearer: FaultRegistry, login: Callable[..., None], realm: str, problem: str
) -> None:
    login(bearer.host)
    bearer.auth.realm = realm
    with Client() as client, pytest.raises(ProtocolError, match=problem) as caught:
        read(bearer, client)
    check_silence(bearer, client, caught.value)
    assert "pw" not in all_text(caught.value)


def test_a_realm_by_http_is_refused_from_https_and_on_this_machine_one_of_another_port_is_asked(
    tmp_path: Path, login: Callable[..., None]
) -> None:
    authority = make_authority(tmp_path / "ca")
    auth = Auth(mode="bearer")
    with FaultRegistry(auth=auth) as tokens, FaultRegistry(auth=auth, ssl_context=authority.server_context()) as secure:
        settings = tmp_path / "r.toml"
        settings.write_text(
            f'schema = "imgbuild/registries/v1"\n[registry."{secure.host}"]\n'
            f'plain-http = false\nca = "{authority.ca}"\n'
        )
        auth.realm = f"{tokens.url}/token"
        login(secure.host)
        with Client(settings=settings) as client, pytest.raises(ProtocolError, match="without encryption"):
            client.at(secure.host).manifest("t")
        assert not tokens.requests()
        with FaultRegistry(auth=auth) as plain, Client() as client:
            login(plain.host)
            plain.put_blob(NAME, DATA)
            assert read(plain, client) == DATA
            assert tokens.requests("token")[0].headers["authorization"] == f"Basic {PAIR}"


@pytest.mark.parametrize("other", [True, False])
def test_a_realm_by_http_is_asked_at_the_very_port_of_the_registry_only_and_not_at_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, login: Callable[..., None], other: bool
) -> None:
    auth = Auth(mode="bearer")
    with Proxy() as proxy, FaultRegistry(auth=auth) as registry, FaultRegistry(auth=auth) as tokens:
        monkeypatch.setenv("http_proxy", proxy.host)
        host = f"registry.example.test:{registry.port}"
        auth.realm = f"http://registry.example.test:{tokens.port if other else registry.port}/token"
        settings = tmp_path / "r.toml"
        settings.write_text(f'schema = "imgbuild/registries/v1"\n[registry."{host}"]\nplain-http = true\n')
        login(host)
        registry.put_blob(NAME, DATA)
        with Client(settings=settings) as client:
            if other:
                with pytest.raises(ProtocolError, match="without encryption"):
                    client.read(host, DIGEST, len(DATA))
                assert len(proxy.asked) == 1
                assert "Authorization" not in proxy.asked[0]
            else:
                assert client.read(host, DIGEST, len(DATA)) == DATA
        assert not tokens.requests()


@pytest.mark.parametrize(
    ("action", "kind", "asked"),
    [
        (fr.Redirect(to="http://127.0.0.1:1/"), ProtocolError, 1),
        (fr.Answer(status=500), ServerError, 4),
        (fr.Busy(retry_after=None), ThrottledError, 4),
        (fr.Reset(), NetworkError, 4),
        (fr.CloseInAnswer(after_bytes=5), NetworkError, 4),
        (fr.Answer(status=403), ForbiddenError, 1),
        (fr.Answer(status=404), ProtocolError, 1),
        (fr.Answer(status=400, body=b'{"error": "invalid_grant"}'), UnauthorizedError, 1),
        (fr.Answer(status=200, body=b"<html>"), ProtocolError, 1),
        (fr.Answer(status=200, body=b"[]"), ProtocolError, 1),
        (fr.Answer(status=200, body=b'{"token": 7}'), ProtocolError, 1),
        (fr.Answer(status=200, body=b'{"token": "t", "expires_in": 1e999}'), ProtocolError, 1),
        (fr.Answer(status=200, body=b'{"token": ""}'), ProtocolError, 1),
        (fr.Answer(status=200, body=b'{"token": "a\\r\\nX-Injected: 1"}'), ProtocolError, 1),
        (fr.Answer(status=200, body=b'{"token": "' + b"t" * (2 * MIB) + b'"}'), ProtocolError, 1),
        (fr.Endless(), ProtocolError, 1),
        (fr.HugeError(size=1 << 30, status=403), ForbiddenError, 1),
    ],
)
def test_a_token_service_that_fails_is_one_typed_error_of_bounded_size(
    bearer: FaultRegistry, login: Callable[..., None], action: fr.Action, kind: type[ImgbuildError], asked: int
) -> None:
    login(bearer.host)
    bearer.faults.always(action, "token")
    with Client() as client, pytest.raises(kind) as caught:
        read(bearer, client)
    assert len(bearer.requests("token")) == asked
    assert client.moved(bearer.host)[0] < 3 * MIB
    check_silence(bearer, client, caught.value)


def test_a_token_service_that_fails_once_is_asked_again(bearer: FaultRegistry, login: Callable[..., None]) -> None:
    login(bearer.host)
    for action in (fr.Answer(status=503), fr.Reset(), fr.Busy(retry_after=0)):
        bearer.faults.once(action, "token")
    with Client() as client:
        assert read(bearer, client) == DATA
        assert len(client.notes) == 3


@pytest.mark.parametrize("seconds", [b"-1", b"0", b'"x"', b"true", b"null", b"9007199254740991"])
def test_a_life_that_makes_no_sense_is_taken_for_none(
    bearer: FaultRegistry, login: Callable[..., None], seconds: bytes
) -> None:
    token = str(bearer.auth.issue(USER, [f"repository:{NAME}:pull"])["token"]).encode()
    bearer.faults.always(fr.Answer(status=200, body=b'{"token": "%b", "expires_in": %b}' % (token, seconds)), "token")
    with Client() as client:
        assert read(bearer, client) == DATA


# other origins


def test_C50_credentials_stay_with_the_registry_when_a_blob_is_elsewhere(
    bearer: FaultRegistry, login: Callable[..., None]
) -> None:
    login(bearer.host)
    with FaultRegistry(storage=bearer.storage) as bucket, Client() as client:
        to = f"{bucket.url}/cdn/{{digest}}?X-Signature=s3cr3t"
        bearer.faults.always(fr.Redirect(to=to), "blob")
        bucket.faults.once(fr.ResetInAnswer(after_bytes=50_000), "cdn")
        assert read(bearer, client) == DATA
        assert all("authorization" not in one.headers for one in bucket.requests())
        assert bucket.requests()[1].headers["range"] == "bytes=50000-"
        bucket.faults.always(fr.Answer(status=403, message="signature s3cr3t"), "cdn")
        with pytest.raises(ForbiddenError, match="without credentials, since it is elsewhere") as caught:
            read(bearer, client)
        assert caught.value.where == f"{bucket.url}/cdn/{DIGEST}"
        check_silence(bearer, client, caught.value)


def test_C50_credentials_do_not_come_back_by_a_way_through_elsewhere(
    bearer: FaultRegistry, login: Callable[..., None]
) -> None:
    login(bearer.host)
    with FaultRegistry() as other, Client() as client:
        other.faults.always(fr.Redirect(to=f"{bearer.url}/cdn/{DIGEST}"))
        bearer.faults.always(fr.Redirect(to=f"{other.url}/away"), "blob")
        assert read(bearer, client) == DATA
        assert "authorization" not in bearer.requests("cdn")[0].headers


def test_a_challenge_of_another_origin_does_not_decide_where_credentials_go(
    bearer: FaultRegistry, login: Callable[..., None]
) -> None:
    login(bearer.host)
    with FaultRegistry(auth=Auth(mode="basic")) as evil, Client() as client:
        bearer.faults.always(fr.Redirect(to=f"{evil.url}/v2/{NAME}/blobs/{{digest}}"), "blob")
        with pytest.raises(UnauthorizedError, match="without credentials"):
            read(bearer, client)
        assert len(evil.requests()) == 1
        assert "authorization" not in evil.requests()[0].headers


def test_a_registry_that_repeats_what_it_was_shown_is_not_quoted(login: Callable[..., None]) -> None:
    with FaultRegistry(auth=Auth(mode="basic", users={})) as registry, Client() as client:
        login(registry.host)
        registry.faults.add(fr.Fault(action=fr.Answer(status=403, message=f"no: {PAIR} = {PASSWORD}"), skip=1))
        with pytest.raises(ForbiddenError, match=r"403 UNKNOWN: no: \*\*\* = \*\*\*") as caught:
            read(registry, client)
        check_silence(registry, client, caught.value)


def test_C57_credentials_that_cannot_be_had_stop_everything(login: Callable[..., None], tmp_path: Path) -> None:
    login("x")
    (tmp_path / ".docker" / "config.json").write_text('{"credsStore": "nowhere"}')
    with FaultRegistry(auth=Auth(mode="bearer")) as registry, Client() as client:
        with pytest.raises(CredentialError, match="docker-credential-nowhere"):
            read(registry, client)
        assert len(registry.requests()) == 1


def test_two_challenges_bearer_is_answered(login: Callable[..., None]) -> None:
    head = b'HTTP/1.1 401 No\r\nWWW-Authenticate: Basic realm="x", Bearer realm="http://127.0.0.1:1/token"\r\n'
    with Scripted(head + b"Content-Length: 0\r\n\r\n") as server, Client() as client:
        login(server.host)
        with pytest.raises(NetworkError, match="nobody listens there"):
            client.at(server.host).manifest("t")
        assert b"Authorization" not in b"".join(server.asked)
