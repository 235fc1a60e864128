"""Where client configurations come from; what is in them is tested with the credentials."""

from __future__ import annotations

import base64
import json
import pwd
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from imgbuild.adapters.registry.credentials import CredentialStore, default_files
from imgbuild.errors import CredentialError

if TYPE_CHECKING:
    from pathlib import Path


def auths(**pairs: str) -> dict[str, Any]:
    return {"auths": {host: {"auth": base64.b64encode(pair.encode()).decode()} for host, pair in pairs.items()}}


def store(folder: Path, variable: Any, file: Any) -> CredentialStore:
    (folder / ".docker").mkdir(exist_ok=True)
    (folder / ".docker" / "config.json").write_text(json.dumps(file))
    text = variable if isinstance(variable, str) else json.dumps(variable)
    return CredentialStore({"HOME": str(folder), "PATH": str(folder), "DOCKER_AUTH_CONFIG": text})


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number without a user, as in many containers."""

    def unknown(uid: int) -> NoReturn:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", unknown)


def secret(found: CredentialStore, host: str) -> str | None:
    credentials = found.find(host, "team/app")
    return None if credentials is None else credentials.secret.reveal()


def test_the_variable_goes_before_the_file_and_the_file_has_the_rest(tmp_path: Path) -> None:
    found = store(tmp_path, auths(one="a:variable"), auths(one="a:file", two="a:file"))
    assert [secret(found, host) for host in ("one", "two", "three")] == ["variable", "file", None]
    assert "auths[one] of DOCKER_AUTH_CONFIG" in str(found.find("one", "x"))
    assert secret(store(tmp_path, "", auths(one="a:file")), "one") == "file"


def test_C57_the_variable_goes_before_a_program_of_the_file_and_names_programs_itself(tmp_path: Path) -> None:
    found = store(tmp_path, auths(one="a:variable"), {"credsStore": "missing"})
    assert secret(found, "one") == "variable"
    with pytest.raises(CredentialError, match="docker-credential-missing"):
        found.find("two", "x")
    with pytest.raises(CredentialError, match=r"docker-credential-other.*credHelpers of DOCKER_AUTH_CONFIG"):
        store(tmp_path, {"credHelpers": {"one": "other"}}, auths(one="a:file")).find("one", "x")


@pytest.mark.parametrize(
    "text", ["{", '"s3cr3t"', '{"auths": {"one": {"auth": "s3cr3t!"}}}', '{"auths": 7, "x": "s3cr3t"}']
)
def test_a_variable_that_is_broken_is_an_error_and_not_the_file_instead(tmp_path: Path, text: str) -> None:
    with pytest.raises(CredentialError, match="DOCKER_AUTH_CONFIG") as caught:
        store(tmp_path, text, auths(one="a:file")).find("one", "x")
    assert "s3cr3t" not in f"{caught.value} {caught.value.__context__!r} {caught.value.__cause__!r}"


@pytest.mark.parametrize(
    ("environ", "files"),
    [
        ({}, ["/h/.docker/config.json", "/run/containers/1000/auth.json"]),
        ({"XDG_RUNTIME_DIR": "/r"}, ["/h/.docker/config.json", "/r/containers/auth.json"]),
        ({"DOCKER_CONFIG": "/d"}, ["/d/config.json", "/run/containers/1000/auth.json"]),
        ({"XDG_RUNTIME_DIR": "r"}, ["/h/.docker/config.json", "/run/containers/1000/auth.json"]),
    ],
)
def test_the_files_of_docker_and_podman_are_looked_for_in_this_order(environ: dict[str, str], files: list[str]) -> None:
    assert default_files({"HOME": "/h", **environ}, 1000) == files


@pytest.mark.parametrize("place", [".docker/config.json", "~/.docker/config.json", "containers/auth.json", "auth.json"])
@pytest.mark.parametrize("variables", [{}, {"HOME": ""}, {"HOME": "."}, {"HOME": "~"}, {"XDG_RUNTIME_DIR": "."}])
def test_C57_the_folder_we_work_in_supplies_no_credentials_to_who_has_no_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, homeless: None, place: str, variables: dict[str, str]
) -> None:
    file = tmp_path / place
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(auths(one="a:planted")))
    monkeypatch.chdir(tmp_path)
    assert CredentialStore(variables).find("one", "team/app") is None
    assert default_files(variables, 7) == ["/run/containers/7/auth.json"]


@pytest.mark.parametrize("variable", ["DOCKER_CONFIG", "REGISTRY_AUTH_FILE"])
@pytest.mark.parametrize("path", [".", "folder", "~/.docker", "./config.json"])
def test_C57_a_configuration_named_by_a_relative_path_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, path: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(auths(one="a:planted")))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CredentialError, match="expected an absolute path") as caught:
        CredentialStore({"HOME": "/h", variable: path}).find("one", "team/app")
    assert caught.value.where == variable
    assert caught.value.actual == path
