from __future__ import annotations

import base64
import copy
import dataclasses
import json
import os
import pickle
import signal
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
from imgbuild.adapters.registry.credentials import (
    MAX_ANSWER_BYTES,
    MAX_FILE_BYTES,
    Credentials,
    CredentialStore,
    Secret,
    basic_header,
)
from imgbuild.errors import CredentialError, InternalError

if TYPE_CHECKING:
    from collections.abc import Callable

HOST = "registry.example.test:5000"
HUB = "https://index.docker.io/v1/"
PASSWORD = "hunter2-Ünïcode"  # noqa: S105


def pair(username: str = "bob", password: str = PASSWORD) -> str:
    return base64.b64encode(f"{username}:{password}".encode()).decode()


def plain(found: Credentials | None) -> tuple[str | None, str, str] | None:
    return None if found is None else (found.username, found.secret.reveal(), found.kind)


def all_text(error: CredentialError) -> str:
    """Everything of an error that could be printed, by us or by Python."""
    return f"{error} {error!r} {error.fields()} {''.join(traceback.format_exception(error))} {error.__context__!r}"


class Client:
    """A home with a client configuration and a folder of credential programs."""

    def __init__(self, root: Path) -> None:
        self.home = root / "home"
        self.config = self.home / ".docker" / "config.json"
        self.programs = root / "programs"
        self.config.parent.mkdir(parents=True)
        self.programs.mkdir()
        self.environ = {"HOME": str(self.home), "PATH": f"{self.programs}:{os.environ['PATH']}"}

    def write(self, document: Any) -> None:
        self.config.write_bytes(document if isinstance(document, bytes) else json.dumps(document).encode())

    def program(self, name: str, body: str, *, first_line: str = "#!/bin/sh\n") -> None:
        """A program; it notes its arguments and input in NAME.asked, and goes on with `body`."""
        path = self.programs / f"docker-credential-{name}"
        note = f'input=$(cat; echo .)\nprintf "%s|%s\\n" "$*" "${{input%.}}" >> {self.programs}/{name}.asked\n'
        path.write_text(f"{first_line}{note}{body}\n")
        path.chmod(0o755)

    def answers(self, name: str, username: str = "bob", secret: str = PASSWORD) -> None:
        answer = json.dumps({"ServerURL": "x", "Username": username, "Secret": secret}, ensure_ascii=False)
        self.program(name, f"cat <<'END'\n{answer}\nEND")

    def asked(self, name: str) -> list[str]:
        note = self.programs / f"{name}.asked"
        return note.read_text().splitlines() if note.exists() else []

    def store(self, **environ: str) -> CredentialStore:
        return CredentialStore.from_environment({**self.environ, **environ})

    def find(self, host: str = HOST, repository: str = "team/app") -> Credentials | None:
        return self.store().find(host, repository)

    def refuses(self, host: str = HOST, repository: str = "team/app") -> CredentialError:
        with pytest.raises(CredentialError) as caught:
            self.find(host, repository)
        assert "hunter" not in all_text(caught.value)
        return caught.value


@pytest.fixture
def client(tmp_path: Path) -> Client:
    return Client(tmp_path)


# ---- values


def test_a_secret_shows_itself_nowhere_and_is_equal_to_itself_only() -> None:
    secret = Secret(PASSWORD)
    assert secret.reveal() == PASSWORD
    assert {repr(secret), str(secret), f"{secret}", f"{secret!r}", "%s" % secret} == {"Secret(***)"}  # noqa: UP031
    assert secret == secret  # noqa: PLR0124
    assert secret != Secret(PASSWORD)
    for write_down in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError):
            write_down(secret)


def test_credentials_show_where_they_are_from_and_no_secret() -> None:
    found = Credentials(username="bob", secret=Secret(PASSWORD), kind="basic", origin="auths[h] of f")
    assert repr(found) == "Credentials(secret=Secret(***), kind='basic', origin='auths[h] of f')"
    with pytest.raises(TypeError):
        dataclasses.asdict(found)


def test_a_basic_header_is_made_of_a_user_and_a_password_in_utf_8() -> None:
    found = Credentials(username="Aladdin", secret=Secret("open:sesame £"), kind="basic", origin="here")
    assert basic_header(found) == "Basic " + base64.b64encode("Aladdin:open:sesame £".encode()).decode()
    token = Credentials(username="Aladdin", secret=Secret("t"), kind="identity-token", origin="here")
    with pytest.raises(InternalError):
        basic_header(token)


@pytest.mark.parametrize(
    ("username", "secret", "kind", "problem"),
    [
        ("bob\r\nX-Evil: y", PASSWORD, "basic", "control character in the user name"),
        ("bob\x85", PASSWORD, "basic", "control character in the user name"),
        ("bob\ud800", PASSWORD, "basic", "control character in the user name"),
        ("bob", "hunter2\n", "basic", "control character in the secret"),
        ("bob", "hunter2\x00", "identity-token", "control character in the secret"),
        ("bob", "hunter2\x7f", "registry-token", "control character in the secret"),
        ("bob:x", PASSWORD, "basic", "colon in the user name"),
        ("", PASSWORD, "basic", "no user name"),
        (None, PASSWORD, "basic", "no user name"),
        ("bob", "", "identity-token", "empty token"),
        (None, "", "registry-token", "empty token"),
        (None, "hunter2 x", "registry-token", "plain ASCII"),
        (None, "hunter2ü", "registry-token", "plain ASCII"),
        ("bob", "h" * (MAX_ANSWER_BYTES + 1), "basic", "secret of more than 65536 bytes"),
        ("b" * (MAX_ANSWER_BYTES + 1), PASSWORD, "basic", "user name of more than 65536 bytes"),
    ],
)
def test_credentials_that_no_header_can_hold_are_refused(
    username: str | None, secret: str, kind: Literal["basic", "identity-token", "registry-token"], problem: str
) -> None:
    with pytest.raises(CredentialError, match=problem) as caught:
        Credentials(username=username, secret=Secret(secret), kind=kind, origin="auths[h] of f")
    assert caught.value.where == "auths[h] of f"
    assert "hunter" not in all_text(caught.value)


# ---- which file


def test_the_files_are_taken_in_their_order_and_only_the_first_that_exists(client: Client, tmp_path: Path) -> None:
    def written(path: Path, username: str) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"auths": {HOST: {"auth": pair(username)}}}))
        return path

    def user(**environ: str) -> str | None:
        found = client.store(**environ).find(HOST, "team/app")
        return None if found is None else found.username

    named = {"DOCKER_CONFIG": str(tmp_path / "named"), "XDG_RUNTIME_DIR": str(tmp_path / "run")}
    explicit = written(tmp_path / "explicit.json", "explicit")
    assert user() is None
    assert user(**named) is None
    written(tmp_path / "run" / "containers" / "auth.json", "podman")
    assert user(**named) == "podman"
    written(client.config, "home")
    assert user(XDG_RUNTIME_DIR=named["XDG_RUNTIME_DIR"]) == "home"
    assert user(**named) == "podman"
    written(tmp_path / "named" / "config.json", "named")
    assert user(**named) == "named"
    assert user(**named, REGISTRY_AUTH_FILE=str(explicit)) == "explicit"
    assert user(**named, REGISTRY_AUTH_FILE=os.devnull) is None
    assert user(DOCKER_CONFIG="", REGISTRY_AUTH_FILE="") == "home"


def test_an_explicit_file_that_is_missing_is_an_error_and_nothing_else_is_read(client: Client) -> None:
    client.write({"auths": {HOST: {"auth": pair()}}})
    with pytest.raises(CredentialError, match=r"/nowhere/auth\.json: does not exist \(in REGISTRY_AUTH_FILE\)"):
        client.store(REGISTRY_AUTH_FILE="/nowhere/auth.json").find(HOST, "a")


def test_links_and_files_that_others_can_read_are_taken_and_a_broken_link_is_no_file(client: Client) -> None:
    target = client.home / "elsewhere.json"
    client.config.symlink_to(target)
    assert client.find() is None
    target.write_text(json.dumps({"auths": {HOST: {"auth": pair()}}}))
    target.chmod(0o644)
    assert plain(client.find()) == ("bob", PASSWORD, "basic")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_refused_without_waiting(client: Client, make: Callable[[Path], None]) -> None:
    make(client.config)
    error = client.refuses()
    assert str(client.config) in error.subject


def test_an_endless_device_and_an_impossible_path_are_refused(client: Client) -> None:
    for path in ("/dev/zero", "/" + "x" * 5000, "/a\x00b"):
        with pytest.raises(CredentialError, match=r"is not a file|cannot be read"):
            client.store(REGISTRY_AUTH_FILE=path).find(HOST, "a")


def test_the_file_is_read_when_the_first_host_is_asked_for(client: Client) -> None:
    store = client.store()
    client.write({"auths": {HOST: {"auth": pair()}}})
    assert store.find(HOST, "a") is not None
    client.config.unlink()
    assert store.find(HOST, "b") is not None


# ---- auths


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"auth": pair()}, ("bob", PASSWORD, "basic")),
        ({"auth": pair("bob", "a:b")}, ("bob", "a:b", "basic")),
        ({"auth": pair("bob", "padded\0\0")}, ("bob", "padded", "basic")),
        ({"auth": pair("bob", "")}, ("bob", "", "basic")),
        ({"username": "bob", "password": PASSWORD}, ("bob", PASSWORD, "basic")),
        ({"username": "x", "password": "y", "auth": pair()}, ("bob", PASSWORD, "basic")),
        ({"identitytoken": "tok"}, (None, "tok", "identity-token")),
        ({"auth": pair("00000000", ""), "identitytoken": "tok"}, ("00000000", "tok", "identity-token")),
        ({"registrytoken": "reg", "identitytoken": "tok", "auth": pair()}, ("bob", "reg", "registry-token")),
        ({"auth": None, "identitytoken": "", "email": "e@example.test"}, None),
        ({}, None),
        (None, None),
    ],
)
def test_an_entry_gives_a_password_or_a_token(
    client: Client, entry: Any, expected: tuple[str | None, str, str] | None
) -> None:
    client.write({"auths": {HOST: entry}, "psFormat": "table", "proxies": {"default": {}}})
    assert plain(client.find()) == expected


@pytest.mark.parametrize(
    ("key", "host", "repository", "matches"),
    [
        (HOST, HOST, "team/app", True),
        (HOST, HOST.upper(), "team/app", True),
        (HOST.upper(), HOST, "team/app", True),
        (f"https://{HOST}", HOST, "team/app", True),
        (f"https://{HOST}/v1/", HOST, "team/app", True),
        (f"http://{HOST}/v2/", HOST, "team/app", True),
        (f"{HOST}/v1/", HOST, "team/app", True),
        (f"{HOST}/", HOST, "team/app", True),
        (f"{HOST}/team", HOST, "team/app", True),
        (f"{HOST}/team/app", HOST, "team/app", True),
        (f"{HOST}/tea", HOST, "team/app", False),
        (f"{HOST}/team/app/x", HOST, "team/app", False),
        ("registry.example.test", HOST, "team/app", False),
        (HOST, "registry.example.test", "team/app", False),
        (HOST, f"x.{HOST}", "team/app", False),
        (f"evil.test/{HOST}", HOST, "team/app", False),
        (f"https://user@{HOST}/", HOST, "team/app", False),
        ("", HOST, "team/app", False),
        ("[::1]:5000", "[::1]:5000", "a", True),
        (HUB, "docker.io", "library/debian", True),
        (HUB, "index.docker.io", "library/debian", True),
        (HUB, "registry-1.docker.io", "library/debian", True),
        ("docker.io/library", "registry-1.docker.io", "library/debian", True),
        ("docker.io/library", "docker.io", "other/debian", False),
        ("hub.docker.io", "docker.io", "library/debian", False),
    ],
)
def test_a_key_holds_for_its_host_and_prefix_only(
    client: Client, key: str, host: str, repository: str, matches: bool
) -> None:
    client.write({"auths": {key: {"auth": pair()}}})
    assert (client.find(host, repository) is not None) == matches


def test_the_longest_prefix_decides_and_then_the_spelling_of_docker(client: Client) -> None:
    client.write(
        {
            "auths": {
                "https://other.example.test/v1/": {"auth": pair("url")},
                "other.example.test": {"auth": pair("plain")},
                "docker.io": {"auth": pair("podman")},
                HUB: {"auth": pair("docker")},
                HOST: {"auth": pair("host")},
                f"{HOST}/team": {"auth": pair("team")},
                f"{HOST}/team/app": {"auth": pair("app")},
                f"{HOST}/empty": {},
            }
        }
    )
    store = client.store()

    def of(host: str, repository: str) -> tuple[str | None, str] | None:
        found = store.find(host, repository)
        return None if found is None else (found.username, found.origin.removesuffix(f" of {client.config}"))

    assert of(HOST, "team/app/part") == ("app", f"auths[{HOST}/team/app]")
    assert of(HOST, "team/other") == ("team", f"auths[{HOST}/team]")
    assert of(HOST, "teams") == ("host", f"auths[{HOST}]")
    assert of(HOST, "empty/x") == ("host", f"auths[{HOST}]")
    assert of("docker.io", "library/debian") == ("docker", "auths[docker.io]")
    assert of("other.example.test", "a") == ("plain", "auths[other.example.test]")
    assert store.find(HOST, "teams") is store.find(HOST, "elsewhere")


@pytest.mark.parametrize(
    ("entry", "where"),
    [
        ({"auth": "***"}, ".auth"),
        ({"auth": "hunter2"}, ".auth"),
        ({"auth": base64.b64encode(b"hunter2").decode()}, ".auth"),
        ({"auth": base64.b64encode(b"bob:hunter2\xff").decode()}, ".auth"),
        ({"auth": pair() + "\n"}, ".auth"),
        ({"auth": "aHVudGVyMg=ü"}, ".auth"),
        ({"auth": 7}, ".auth"),
        ({"username": "bob", "password": ["hunter2"]}, ".password"),
        ({"identitytoken": {"hunter2": 1}}, ".identitytoken"),
        ({"registrytoken": True}, ".registrytoken"),
        ({"username": "bob"}, ""),
        ("hunter2", ""),
        (["hunter2"], ""),
    ],
)
def test_a_broken_entry_of_the_host_is_named_by_file_and_field(client: Client, entry: Any, where: str) -> None:
    client.write({"auths": {HOST: entry, "fine.example.test": {"auth": pair()}}})
    error = client.refuses()
    assert (error.subject, error.where) == (f"client configuration {client.config}", f"auths[{HOST}]{where}")
    assert client.find("fine.example.test") is not None


@pytest.mark.parametrize("entry", [{"auth": pair("", PASSWORD)}, {"password": PASSWORD}, {"auth": pair("bob\n")}])
def test_an_entry_that_no_header_can_hold_is_named_by_its_origin(client: Client, entry: Any) -> None:
    client.write({"auths": {HOST: entry}})
    assert client.refuses().where == f"auths[{HOST}] of {client.config}"


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        (b'{"auths": {"h": {"auth": "hunter2"}', "is not JSON that is accepted here (in line 1 column 36)"),
        (b'{"auths": {"h": {"password": 12345678901234567890123}}}', "is not JSON that is accepted here"),
        (b'{"auths": {"h": {"password": 1.2345678901234567890123}}}', "is not JSON that is accepted here"),
        (b'{"auths": {"hunter2": {}, "hunter2": {}}}', "has a key twice in one object"),
        (b'{"auths": {"h": "hunter2\xff"}}', "is not UTF-8 at byte 24"),
        (b'{"a":' * 65 + b"1" + b"}" * 65, "is nested more than 64 levels deep"),
        (b"[" * 1_000_000, "is nested more than 64 levels deep"),
        (b" " * (MAX_FILE_BYTES + 1), f"is {MAX_FILE_BYTES + 1} bytes long; the limit is {MAX_FILE_BYTES} bytes"),
        (b"[]", "has a field that is not an object (in the document)"),
        (b'"hunter2"', "has a field that is not an object (in the document)"),
        (b'{"auths": ["hunter2"]}', "has a field that is not an object (in auths)"),
        (b'{"credHelpers": "hunter2"}', "has a field that is not an object (in credHelpers)"),
        (b'{"credsStore": ["hunter2"]}', "has a field that is not a text (in credsStore)"),
        (b'{"credHelpers": {"registry.example.test:5000": 1}}', f"is not a text (in credHelpers[{HOST}])"),
        (b"\xef\xbb\xbf{}", "is not JSON that is accepted here"),
        (b" ", "is not JSON that is accepted here"),
    ],
)
def test_a_broken_file_is_an_error_that_quotes_nothing_of_it(client: Client, document: bytes, problem: str) -> None:
    client.write(document)
    text = str(client.refuses())
    assert text.startswith(f"client configuration {client.config}: ")
    assert problem in text
    assert "1234567" not in text


@pytest.mark.parametrize("document", [b"", b"{}", b'{"auths": null, "credHelpers": null, "credsStore": null}'])
def test_a_file_without_credentials_has_none(client: Client, document: bytes) -> None:
    client.write(document)
    assert client.find() is None


@pytest.mark.parametrize("host", ["", "a b", "a\nb", "a/b", "user@a", "a:port", "::1", "a" + chr(0x0430)])
def test_what_is_no_host_is_refused_before_anything_is_read(client: Client, host: str) -> None:
    client.write(b"broken")
    assert "is not a host name" in str(client.refuses(host))


# ---- programs


@pytest.mark.parametrize(
    ("host", "key", "server"),
    [
        (HOST, HOST, HOST),
        ("docker.io", HUB, HUB),
        ("registry-1.docker.io", "docker.io", HUB),
        ("ghcr.io", "https://ghcr.io", "ghcr.io"),
    ],
)
def test_C57_the_program_of_a_host_is_told_the_server_on_its_input(
    client: Client, host: str, key: str, server: str
) -> None:
    client.answers("own")
    client.write({"credHelpers": {key: "own"}})
    found = client.find(host)
    assert plain(found) == ("bob", PASSWORD, "basic")
    assert found is not None
    assert found.origin == f"docker-credential-own, credHelpers of {client.config}"
    assert client.asked("own") == [f"get|{server}"]


def test_the_user_name_token_means_an_identity_token(client: Client) -> None:
    client.answers("own", "<token>", "refresh")
    client.write({"credsStore": "own"})
    assert plain(client.find()) == (None, "refresh", "identity-token")


def test_C57_only_the_program_that_is_configured_for_the_host_runs(client: Client) -> None:
    for name in ("own", "general", "other", "stranger"):
        client.answers(name, name)
    client.write({"credsStore": "general", "credHelpers": {HOST: "own", "other.example.test": "other"}})
    store = client.store()
    users = [found and found.username for found in (store.find(host, "a") for host in (HOST, "third.example.test"))]
    assert users == ["own", "general"]
    assert (client.asked("other"), client.asked("stranger")) == ([], [])
    assert (client.asked("own"), client.asked("general")) == ([f"get|{HOST}"], ["get|third.example.test"])


NOT_FOUND = "echo credentials not found in native keychain; exit 1"


def test_C57_a_program_that_has_none_leaves_the_word_to_the_file_only_where_it_is_the_general_one(
    client: Client,
) -> None:
    client.program("empty", NOT_FOUND)
    auths = {HOST: {"auth": pair("from-file")}}
    client.write({"credHelpers": {HOST: "empty"}, "auths": auths})
    assert client.find() is None
    client.write({"credsStore": "empty", "auths": auths})
    assert plain(client.find()) == ("from-file", PASSWORD, "basic")
    client.write({"credsStore": "empty", "auths": {HOST: {}}})
    assert client.find() is None


def test_an_empty_program_for_a_host_means_the_file(client: Client) -> None:
    client.answers("general", "general")
    client.write({"credsStore": "general", "credHelpers": {HOST: ""}, "auths": {HOST: {"auth": pair("from-file")}}})
    found = client.find()
    assert found is not None
    assert found.username == "from-file"
    assert client.asked("general") == []


def test_an_answer_of_empty_texts_is_none(client: Client) -> None:
    client.answers("own", "", "")
    client.write({"credHelpers": {HOST: "own"}})
    assert client.find() is None


@pytest.mark.parametrize("setting", ["credsStore", "credHelpers"])
def test_C57_a_missing_program_is_named_and_nothing_else_is_tried(client: Client, setting: str) -> None:
    value: Any = "gone" if setting == "credsStore" else {HOST: "gone"}
    client.answers("other")
    client.write({setting: value, "auths": {HOST: {"auth": pair()}}})
    error = client.refuses()
    assert str(error) == f"docker-credential-gone: is configured and not on PATH (in {setting} of {client.config})"
    assert error.hint is not None
    assert "install docker-credential-gone" in error.hint


def test_a_program_is_not_taken_from_the_current_folder(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.answers("own")
    client.write({"credsStore": "own"})
    monkeypatch.chdir(client.programs)
    for path in (".", "", ":", "programs:."):
        with pytest.raises(CredentialError, match="not on PATH"):
            client.store(PATH=path).find(HOST, "a")
    assert client.asked("own") == []


@pytest.mark.parametrize("name", ["../programs/own", "/bin/sh", "own;ls", "Own", "own ", "own\n", "o" * 65, "\x1b[2J"])
def test_a_name_that_could_be_a_path_or_a_command_is_refused(client: Client, name: str) -> None:
    client.answers("own")
    client.write({"credsStore": name})
    error = client.refuses()
    assert "is not the name of a program" in str(error)
    assert str(error).isprintable()
    assert client.asked("own") == []


@pytest.mark.parametrize(
    "said",
    [
        'echo \'{"ServerURL": "x", "Username": "bob", "Secret": "hunter"}\'; exit 1',
        "echo 'login with hunter2-Ünïcode failed' >&2; exit 1",
        "echo wrong password: hunter; exit 1",
        "echo the password is hunter; exit 1",
        "echo the token = hunter; exit 1",
        "echo 'token \"hunter\" has expired'; exit 1",
        "echo user=hunter bob:hunter https://bob:hunter@example.test/?sig=hunter; exit 1",
        "printf 'secret \\033[2J hunter'; exit 1",
        "head -c 60000 /dev/zero | tr '\\0' a; echo hunter2; exit 1",
        "yes 'no space left' | head -n 2000; exit 1",
    ],
)
def test_a_secret_in_the_words_of_a_failing_program_is_not_repeated_and_the_words_are_few(
    client: Client, said: str
) -> None:
    client.program("own", said)
    client.write({"credsStore": "own", "auths": {HOST: {"auth": pair()}}})
    error = client.refuses()
    assert error.problem == "failed with status 1"
    assert len(error.actual or "") < 600
    assert str(error).isprintable()


def test_the_reason_of_a_failing_program_is_kept(client: Client) -> None:
    said = "error getting it - err: keychain of org.example.secrets is locked"
    client.program("own", f"echo '{said}'; echo 7 >&2; exit 7")
    client.write({"credsStore": "own"})
    error = client.refuses()
    assert error.problem == "failed with status 7"
    assert error.actual == "error getting it *** err: keychain of org.example.secrets is *** 7"
    assert error.hint is not None
    assert "docker-credential-own get" in error.hint


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("echo hunter2", "did not answer with one JSON object"),
        (":", "did not answer with one JSON object"),
        ("echo credentials not found in native keychain", "did not answer with one JSON object"),
        ("echo '[\"hunter2\"]'", "did not answer with one JSON object"),
        ('printf \'{"Username": "bob", "Secret": "hunter2\\377"}\'', "did not answer with one JSON object"),
        ('echo \'{"Username": "bob", "Secret": "hunter2", "Secret": "x"}\'', "did not answer with one JSON object"),
        ('echo \'{"Username": "bob", "Secret": 12345678901234567890}\'', "did not answer with one JSON object"),
        ('echo \'{"Username": "bob", "Secret": 7}\'', "did not answer with a Username and a Secret"),
        ('echo \'{"Username": "bob"}\'', "did not answer with a Username and a Secret"),
        ('echo \'{"Secret": "hunter2"}\'', "did not answer with a Username and a Secret"),
        ('echo \'{"Username": "", "Secret": "hunter2"}\'', "have a password and no user name"),
        ('echo \'{"Username": "<token>", "Secret": ""}\'', "have an empty token"),
        ('echo \'{"Username": "a:b", "Secret": "hunter2"}\'', "have a colon in the user name"),
        ('printf \'%s\' \'{"Username": "bob", "Secret": "hunter2\\nX-Evil: 1"}\'', "have a control character"),
        ("kill -9 $$", "was ended by signal 9"),
        (NOT_FOUND.replace("echo", "echo x;echo"), "failed with status 1"),
    ],
)
def test_an_answer_that_is_not_the_protocol_is_refused(client: Client, body: str, problem: str) -> None:
    client.program("own", body)
    client.write({"credsStore": "own", "auths": {HOST: {"auth": pair()}}})
    error = client.refuses()
    assert problem in error.problem
    assert "docker-credential-own" in f"{error.subject} {error.where}"
    assert "1234567" not in str(error)


def test_a_program_that_cannot_be_started_is_an_error(client: Client) -> None:
    client.program("own", ":", first_line="#!/nowhere/interpreter\n")
    client.write({"credsStore": "own"})
    assert client.refuses().problem == "cannot be started"


def test_a_program_may_leave_its_input_unread(client: Client) -> None:
    path = client.programs / "docker-credential-own"
    path.write_text('#!/bin/sh\nexec 0<&-\necho \'{"Username": "bob", "Secret": "x"}\'\n')
    path.chmod(0o755)
    client.write({"credsStore": "own"})
    assert plain(client.find()) == ("bob", "x", "basic")


@pytest.mark.parametrize("where", ["", " >&2"])
def test_a_program_that_floods_is_stopped_or_ignored_and_fills_no_memory(client: Client, where: str) -> None:
    client.program("own", f"head -c 1000000000 /dev/zero{where}; exit 3")
    client.write({"credsStore": "own"})
    started = time.monotonic()
    error = client.refuses()
    assert error.problem == ("failed with status 3" if where else f"answered more than {MAX_ANSWER_BYTES} bytes")
    assert time.monotonic() - started < 10
    assert len(str(error)) < 1000


def test_a_program_that_hangs_is_stopped_with_its_children_and_not_started_again(client: Client) -> None:
    client.program("own", f"sleep 60 & echo $! > {client.programs}/child; wait")
    client.write({"credsStore": "own"})
    store = CredentialStore.from_environment(client.environ, seconds=0.5)
    started = time.monotonic()
    for repository in ("a", "b", "a"):
        with pytest.raises(CredentialError, match=r"docker-credential-own: did not end within 0\.5 seconds"):
            store.find(HOST, repository)
    assert time.monotonic() - started < 5
    assert client.asked("own") == [f"get|{HOST}"]
    assert not alive(int((client.programs / "child").read_text()))


def test_a_child_that_keeps_the_output_open_does_not_hold_us_up_and_is_stopped(client: Client) -> None:
    answer = '{"Username": "bob", "Secret": "x"}'
    client.program("own", f"sleep 60 & echo $! > {client.programs}/child; echo '{answer}'")
    client.write({"credsStore": "own"})
    started = time.monotonic()
    assert plain(client.find()) == ("bob", "x", "basic")
    assert time.monotonic() - started < 5
    assert not alive(int((client.programs / "child").read_text()))


def alive(pid: int) -> bool:
    """Whether a process still runs a moment later; one that ended and was not collected does not run."""
    for _ in range(40):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        if state in "ZX":
            return False
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    return True


def test_many_threads_ask_a_program_once_and_get_the_same_answer(client: Client) -> None:
    client.answers("own")
    client.write({"credsStore": "own"})
    store = client.store()
    found: list[Credentials | None] = []
    threads = [threading.Thread(target=lambda: found.append(store.find(HOST, "a"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert client.asked("own") == [f"get|{HOST}"]
    assert len(found) == 8
    assert all(item is found[0] and item is not None for item in found)


def test_a_failure_is_told_to_everyone_as_an_error_of_ones_own(client: Client) -> None:
    client.program("own", "echo locked; exit 1")
    client.write({"credsStore": "own"})
    store = client.store()
    errors = []
    for _ in range(2):
        with pytest.raises(CredentialError) as caught:
            store.find(HOST, "a")
        errors.append(caught.value)
    assert errors[0] is not errors[1]
    assert errors[0].fields() == errors[1].fields()
    assert errors[0].hint == errors[1].hint
    assert client.asked("own") == [f"get|{HOST}"]


def test_a_program_sees_the_variables_of_the_store_and_not_ours(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMGBUILD_TEST_OURS", "1")
    client.program("own", 'echo "{\\"Username\\": \\"$GIVEN\\", \\"Secret\\": \\"x$IMGBUILD_TEST_OURS\\"}"')
    client.write({"credsStore": "own"})
    assert plain(client.store(GIVEN="given").find(HOST, "a")) == ("given", "x", "basic")
