"""What lies between two commits, of real repositories: local, bundled, and on a server on loopback."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from imgbuild.adapters.gitsource import COMMITS, GitHistory, GitRepository
from imgbuild.errors import MissingError, OfflineMissError, ToolError

from tests.support.githttp import git_server
from tests.support.moving import git
from tests.support.registries import make_authority

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.githttp import GitServer


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    git(folder, "init", "--quiet", "--template=", "--initial-branch=main")
    return folder


@pytest.fixture
def server(tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GitServer]:
    with git_server(work, make_authority(tmp_path / "authority"), monkeypatch) as found:
        yield found


def commit(work: Path, message: str, text: str = "") -> str:
    (work / "file").write_text(text or message)
    git(work, "add", "-A")
    git(work, "commit", "--quiet", "--allow-empty-message", "-m", message)
    return git(work, "rev-parse", "HEAD")


def local(work: Path, server: GitServer) -> str:
    return str(work)


def bundled(work: Path, server: GitServer) -> str:
    path = work.parent / "made.bundle"
    git(work, "bundle", "create", "--quiet", str(path), "--all")
    return str(path)


def served(work: Path, server: GitServer) -> str:
    return f"{server.url}/.git"


def subjects(history: GitHistory) -> list[str]:
    return [row.subject for row in history.commits]


PLACES = [local, bundled, served]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("allowed", ["true", "false"])
def test_commits_in_between_are_counted_and_the_newest_are_named(
    work: Path, tmp_path: Path, server: GitServer, place: Callable[[Path, GitServer], str], allowed: str
) -> None:
    first = commit(work, "first")
    ids = [commit(work, f"number {number}") for number in range(COMMITS + 5)]
    git(work, "config", "uploadpack.allowFilter", allowed)
    repository = GitRepository(tmp_path / "cache", allow_local=True, timeout=60)
    where = place(work, server)
    found = repository.history(where, first, ids[-1])
    assert (found.count, found.lost, found.is_ancestor) == (COMMITS + 5, 0, True)
    assert [row.commit for row in found.commits] == ids[: -COMMITS - 1 : -1]
    assert subjects(found)[0] == f"number {COMMITS + 4}"
    back = repository.history(where, ids[-1], first)
    assert (back.count, back.lost, back.is_ancestor) == (0, COMMITS + 5, False)
    # What is here is not asked for again.
    requests = len(server.asked)
    again = GitRepository(tmp_path / "cache", allow_local=True, offline=True).history(where, first, ids[-1])
    assert (again, len(server.asked)) == (found, requests)


@pytest.mark.parametrize("place", PLACES)
def test_an_old_commit_that_is_gone_leaves_the_history_of_the_new_one(
    work: Path, tmp_path: Path, server: GitServer, place: Callable[[Path, GitServer], str]
) -> None:
    tip = commit(work, "only")
    found = GitRepository(tmp_path / "cache", allow_local=True).history(place(work, server), "1" * 40, tip)
    assert (found.count, found.lost, found.is_ancestor) == (1, None, False)


def test_a_new_commit_that_is_gone_is_missing(work: Path, tmp_path: Path) -> None:
    tip = commit(work, "only")
    with pytest.raises(MissingError):
        GitRepository(tmp_path / "cache", allow_local=True).history(str(work), tip, "1" * 40)


def test_a_server_is_not_asked_offline(work: Path, tmp_path: Path, server: GitServer) -> None:
    first, second = commit(work, "one"), commit(work, "two")
    with pytest.raises(OfflineMissError):
        GitRepository(tmp_path / "cache", offline=True).history(f"{server.url}/.git", first, second)
    assert server.asked == []


def test_commits_of_a_server_come_without_trees_where_it_can_leave_them_out(
    work: Path, tmp_path: Path, server: GitServer
) -> None:
    first = commit(work, "one", "".join(f"{number * 7919 % 104729}\n" for number in range(100_000)))
    second = commit(work, "two", "x")
    git(work, "config", "uploadpack.allowFilter", "true")
    GitRepository(tmp_path / "cache", timeout=60).history(f"{server.url}/.git", first, second)
    assert server.sent < 50_000


@pytest.mark.parametrize(
    ("message", "subject"),
    [("", ""), ("one\n\nbody", "one"), ("a\x1b[31m\tb\u202e", "a\\x1b[31m\\tb\\u202e"), ("x" * 9_000, "x" * 200 + "…")],
)
def test_a_subject_is_one_safe_line(work: Path, tmp_path: Path, message: str, subject: str) -> None:
    first, second = commit(work, "one"), commit(work, message, "other")
    found = GitRepository(tmp_path / "cache", allow_local=True).history(str(work), first, second)
    assert subjects(found) == [subject]


def test_two_files_differ_by_hunks_or_are_no_text(work: Path, tmp_path: Path) -> None:
    repository = GitRepository(tmp_path / "cache", allow_local=True)

    def diff(old: str | bytes, new: str | bytes) -> list[bytes]:
        trees = []
        for data in (old, new):
            (work / "other").write_bytes(data.encode() if isinstance(data, str) else data)
            trees.append(repository.fetch(str(work), commit(work, "c", "y")))
        first, second = (tree.file("other", subject="s") for tree in trees)
        return repository.diff(str(work), first, second)

    assert diff("a\nb\n", "a\nc\n") == [b"@@ -1,2 +1,2 @@", b" a", b"-b", b"+c"]
    assert diff(b"\0\1", b"\0\2") == [b"Binary files differ"]
    with pytest.raises(ToolError):
        diff("", "x" * 79 + "\n" * 5_000_000)
