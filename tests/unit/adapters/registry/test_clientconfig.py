"""Where client configurations come from; what is in them is tested with the credentials."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

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
    ],
)
def test_the_files_of_docker_and_podman_are_looked_for_in_this_order(environ: dict[str, str], files: list[str]) -> None:
    assert default_files({"HOME": "/h", **environ}, 1000) == files
