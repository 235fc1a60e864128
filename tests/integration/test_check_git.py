"""`imgbuild check` on commits: from bundles, and from a git server over HTTPS."""

from __future__ import annotations

import os
import subprocess
import tempfile
from typing import TYPE_CHECKING

import pytest
from imgbuild.adapters import gitprocess

from tests.support.checking import WHEELS, forget, one
from tests.support.githttp import git_server
from tests.support.refusals import forge, locked, source
from tests.support.registries import free_port, make_authority
from tests.support.remote import Remote

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.githttp import GitServer
    from tests.support.registries import Authority
    from tests.support.tiny import Tiny


@pytest.fixture
def here(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> Remote:
    """A tiny project whose lock has no wheels."""
    forget(tiny, *WHEELS)
    return Remote(tiny=tiny, host="", capture=capsys)


def test_a_bundle_that_is_not_there_is_gone_and_a_damaged_one_differs(here: Remote) -> None:
    bundle = here.tiny.root / "adapter.bundle"
    whole = bundle.read_bytes()
    bundle.write_bytes(b"no bundle")
    code, row = one(here, "adapter")
    assert (code, row["verdict"]) == (1, "differs")
    bundle.write_bytes(whole[:-40])
    assert one(here, "adapter")[1]["verdict"] == "differs"
    bundle.unlink()
    code, row = one(here, "adapter")
    assert (code, row["verdict"]) == (1, "gone")
    assert "imgbuild lock tiny --update adapter" in row["hint"]


def test_P61_a_commit_that_a_bundle_does_not_contain_is_gone(here: Remote) -> None:
    code, row = one(here, "adapter", commit="1" * 40)
    assert (code, row["verdict"]) == (1, "gone")


def test_a_commit_with_another_tree_than_the_lock_differs(here: Remote) -> None:
    code, row = one(here, "adapter", tree="2" * 40)
    assert (code, row["verdict"]) == (1, "differs")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def forge_of_git(here: Remote, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> Iterator[GitServer]:
    """A server for the repository of the adapter, whose only commit is on no ref."""
    git(here.tiny.root / "adapter-work", "update-ref", "-d", "refs/heads/main")
    with git_server(here.tiny.root, authority, monkeypatch) as server:
        yield server


def git(work: Path, *words: str) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": str(work), "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", "-C", str(work), *words], env=environment, check=True, capture_output=True, timeout=20)


@pytest.mark.parametrize("filters", [True, False], ids=["filters", "no filters"])
def test_P61_a_commit_on_no_ref_is_alive_while_the_server_gives_it(
    here: Remote,
    forge_of_git: GitServer,
    filters: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    work = here.tiny.root / "adapter-work"
    git(work, "config", "uploadpack.allowFilter", "true" if filters else "false")
    code, row = one(here, "adapter", repository=f"{forge_of_git.url}/adapter-work/.git")
    assert (code, row["verdict"]) == (0, "alive")
    assert "commit itself" in row["detail"]
    assert forge_of_git.sent < 8 * 1024
    assert not list(temporary.iterdir())
    code, row = one(here, "adapter", commit="1" * 40)
    assert (code, row["verdict"]) == (1, "gone")


def test_a_server_that_serves_only_refs_is_asked_as_a_build_does(
    here: Remote, forge_of_git: GitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gitprocess, "_OPTIONS", (*gitprocess._OPTIONS, "protocol.version=0"))
    work, commit = here.tiny.root / "adapter-work", source(locked(here.tiny), "adapter")["commit"]
    url = f"{forge_of_git.url}/adapter-work/.git"
    git(work, "update-ref", "refs/heads/other", commit)
    assert one(here, "adapter", repository=url)[1]["verdict"] == "alive"
    identity = ("-c", "user.name=t", "-c", "user.email=t@t")
    git(work, *identity, "commit", "--quiet", "--allow-empty", "--message=another")
    git(work, "update-ref", "-d", "refs/heads/other")
    code, row = one(here, "adapter", repository=url)
    assert (code, row["verdict"]) == (1, "gone")


def test_another_tree_of_a_commit_on_a_server_differs(here: Remote, forge_of_git: GitServer) -> None:
    code, row = one(here, "adapter", repository=f"{forge_of_git.url}/adapter-work/.git", tree="2" * 40)
    assert (code, row["verdict"]) == (1, "differs")


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        (401, "not-allowed"),
        (403, "not-allowed"),
        (404, "gone"),
        (410, "gone"),
        (429, "unreachable"),
        (500, "unreachable"),
    ],
)
def test_statuses_of_a_git_server_are_told_apart(
    here: Remote, forge_of_git: GitServer, status: int, verdict: str
) -> None:
    code, row = one(here, "adapter", repository=f"{forge_of_git.url}/{status}/a.git")
    assert (row["verdict"], code) == (verdict, 1 if verdict == "gone" else 5)
    assert row["detail"]


def test_a_git_server_that_is_not_there_is_unreachable(here: Remote) -> None:
    code, row = one(here, "adapter", repository=f"https://127.0.0.1:{free_port()}/a.git")
    assert (code, row["verdict"]) == (5, "unreachable")


def test_offline_a_git_server_is_not_asked_and_the_answer_says_why(here: Remote) -> None:
    value = locked(here.tiny)
    source(value, "adapter")["repository"] = f"https://127.0.0.1:{free_port()}/a.git"
    forge(here.tiny, value)
    code, result = here.run("check", "tiny", "--offline")
    (row,) = [row for row in result["pins"] if row["kind"] == "git"]
    assert (code, row["verdict"], row["detail"]) == (5, "unreachable", "was not asked, as --offline forbids it")


def test_a_repository_that_may_not_be_asked_is_an_error_of_the_lock(here: Remote) -> None:
    value = locked(here.tiny)
    source(value, "adapter")["repository"] = "http://127.0.0.1/a.git"
    forge(here.tiny, value)
    code, error = here.run("check", "tiny")
    assert (code, error["code"]) == (3, "INPUT_INVALID")
