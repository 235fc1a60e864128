"""gitsource against the real git: repositories and bundles made in the test, and what must be refused."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from imgbuild.adapters import gitobjects, gitprocess, gitsource, gittree, giturl
from imgbuild.adapters.gitsource import GitRepository, GitTree, content_digest
from imgbuild.config import DEFAULT_LIMITS, Limits
from imgbuild.digest import Digest
from imgbuild.errors import (
    ArchiveError,
    DigestMismatchError,
    FactMismatchError,
    ImgbuildError,
    InputError,
    InternalError,
    MissingError,
    OfflineMissError,
    StepError,
    ToolError,
    UnpinnedError,
)

from tests.support.githttp import git_server
from tests.support.registries import make_authority

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.githttp import GitServer

ROOT = Path(__file__).resolve().parents[2]
MAKE_BUNDLE = ROOT / "tests" / "standin" / "adapter" / "make_bundle.py"
BUNDLE = ROOT / "layers" / "mini-adapter" / "adapter.bundle"
REMOTE = "https://git.example.invalid/team/adapter"
DATE = "1767225600 +0000"


class Work:
    """A real repository with a work tree, driven by the git on this machine."""

    def __init__(self, folder: Path, *, form: str = "sha1") -> None:
        self.folder = folder
        folder.mkdir()
        self.git("init", "--quiet", "--template=", f"--object-format={form}", "--initial-branch=main")

    def git(self, *arguments: str, data: bytes | None = None) -> str:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "GIT_CONFIG_NOSYSTEM": "1",
            **{
                f"GIT_{who}_{what}": "t@example.invalid"
                for who in ("AUTHOR", "COMMITTER")
                for what in ("NAME", "EMAIL")
            },
            **{f"GIT_{who}_DATE": DATE for who in ("AUTHOR", "COMMITTER")},
        }
        command = ["git", "-c", "protocol.file.allow=always", *arguments]
        done = subprocess.run(
            command, cwd=self.folder, env=environment, input=data, check=True, stdout=subprocess.PIPE, timeout=60
        )
        return done.stdout.decode().strip()

    def commit(self, **files: str | bytes) -> str:
        for name, content in files.items():
            raw = content.encode() if isinstance(content, str) else content
            (self.folder / name).write_bytes(raw)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", "c")
        return self.git("rev-parse", "HEAD")

    def commit_tree(self, raw: bytes) -> str:
        """A commit on `main` whose root tree consists of exactly these bytes, right or wrong."""
        tree = self.git("hash-object", "-t", "tree", "-w", "--stdin", "--literally", data=raw)
        commit = self.git("commit-tree", tree, "-m", "crafted")
        self.git("update-ref", "refs/heads/main", commit)
        return commit

    def bundle(self, *refs: str) -> str:
        path = self.folder.parent / f"{self.folder.name}.bundle"
        self.git("bundle", "create", "--quiet", str(path), *(refs or ("--all",)))
        return str(path)


@pytest.fixture
def work(tmp_path: Path) -> Work:
    return Work(tmp_path / "source")


@pytest.fixture
def repository(tmp_path: Path) -> GitRepository:
    return GitRepository(tmp_path / "cache", allow_local=True, timeout=60)


def contents(tree: GitTree) -> dict[bytes, bytes]:
    return {item.path: item.read() for item in tree.files}


def bare_of(cache: Path, source: str) -> Path:
    return cache / (hashlib.sha256(source.encode()).hexdigest() + ".git")


def become_remote(cache: Path, source: str) -> None:
    """What was fetched from a local source now counts as fetched from REMOTE."""
    bare_of(cache, source).rename(bare_of(cache, REMOTE))


def children() -> set[int]:
    """Processes that this one started and that still run."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[1]) == os.getpid():
                found.add(int(entry.name))
    return found


# --- reading -------------------------------------------------------------------------------------------------------


def test_a_tree_has_paths_modes_sizes_and_link_targets_as_git_lists_them(work: Work, repository: GitRepository) -> None:
    (work.folder / "dir").mkdir()
    (work.folder / "dir" / "run").write_bytes(b"#!/bin/sh\n")
    (work.folder / "dir" / "run").chmod(0o755)
    (work.folder / "dir.txt").write_bytes(b"sorts before dir/ in git and as a path")
    (work.folder / "out").symlink_to("../../etc/passwd")
    (work.folder / os.fsdecode(b"\xff\n")).write_bytes(b"")
    commit = work.commit(a="1")
    with repository.fetch(str(work.folder), commit) as tree:
        rows = subprocess.run(
            ["git", "ls-tree", "-r", "-l", "-z", commit], cwd=work.folder, check=True, stdout=subprocess.PIPE
        ).stdout
        expected = []
        for row in rows.rstrip(b"\0").split(b"\0"):
            facts, _, path = row.partition(b"\t")
            mode, _kind, blob, size = facts.split()
            expected.append((path, int(mode, 8), blob.decode(), int(size)))
        assert [(f.path, f.mode, f.blob, f.size) for f in tree.files] == sorted(expected)
        assert tree.commit == commit
        assert tree.tree == work.git("rev-parse", "HEAD^{tree}")
        assert {f.path: f.target for f in tree.files if f.target is not None} == {b"out": b"../../etc/passwd"}
        assert contents(tree)[b"dir/run"] == b"#!/bin/sh\n"


@pytest.mark.parametrize("form", ["sha1", "sha256"])
def test_both_object_formats_give_the_same_content_digest(tmp_path: Path, form: str) -> None:
    work = Work(tmp_path / form, form=form)
    commit = work.commit(a="1", b="2")
    for source in (str(work.folder), work.bundle()):
        repository = GitRepository(tmp_path / "cache", allow_local=True)
        assert repository.resolve(source, "main") == commit
        with repository.fetch(source, commit) as tree:
            lines = b"".join(
                b"100644 %s\0%s\0" % (hashlib.sha256(data).hexdigest().encode(), path)
                for path, data in ((b"a", b"1"), (b"b", b"2"))
            )
            assert content_digest(tree) == Digest.of(b"imgbuild git content 1\n" + lines)


def test_the_content_digest_sees_mode_path_and_content(work: Work, repository: GitRepository) -> None:
    commits = [work.commit(a="1"), work.commit(a="2")]
    (work.folder / "a").chmod(0o755)
    commits.append(work.commit())
    (work.folder / "a").rename(work.folder / "b")
    commits.append(work.commit())
    digests = set()
    for commit in commits:
        with repository.fetch(str(work.folder), commit) as tree:
            digests.add(content_digest(tree))
    assert len(digests) == 4


def test_a_big_file_is_streamed_in_bounded_pieces(work: Work, repository: GitRepository) -> None:
    data = os.urandom(1 << 20) * 24
    commit = work.commit(big=data)
    with repository.fetch(str(work.folder), commit) as tree:
        hasher, longest = hashlib.sha256(), 0
        for piece in tree.files[0].chunks():
            longest = max(longest, len(piece))
            hasher.update(piece)
        assert hasher.digest() == hashlib.sha256(data).digest()
        assert longest <= 256 * 1024
        with pytest.raises(ArchiveError, match="too big"):
            tree.files[0].read(limit=len(data) - 1)


def test_iterators_may_be_interleaved_abandoned_and_used_in_threads(work: Work, repository: GitRepository) -> None:
    one, two = b"1" * 700_000, b"2" * 700_000
    commit = work.commit(one=one, two=two)
    with repository.fetch(str(work.folder), commit) as tree:
        abandoned = tree.files[0].chunks()
        next(abandoned)
        first, second = tree.files[0].chunks(), tree.files[1].chunks()
        mixed = [next(first), next(second)]
        assert mixed[0][:1] == b"1"
        assert mixed[1][:1] == b"2"
        assert mixed[0] + b"".join(first) == one
        assert mixed[1] + b"".join(second) == two
        abandoned.close()  # type: ignore[attr-defined]
        got: dict[int, bytes] = {}
        threads = [threading.Thread(target=lambda n=n: got.__setitem__(n, tree.files[n % 2].read())) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert got == {n: (two if n % 2 else one) for n in range(8)}


def test_no_process_outlives_a_tree(work: Work, repository: GitRepository) -> None:
    commit = work.commit(a="1" * 900_000)
    before = children()
    with repository.fetch(str(work.folder), commit) as tree:
        started = tree.files[0].chunks()
        next(started)
        assert children() > before
    started.close()  # type: ignore[attr-defined]
    assert children() == before
    with pytest.raises(InternalError):
        tree.files[0].read()
    forgotten = repository.fetch(str(work.folder), commit)
    forgotten.files[0].read()
    del forgotten
    assert children() == before


# --- pins ----------------------------------------------------------------------------------------------------------


def test_the_tree_must_be_the_recorded_one(work: Work, repository: GitRepository) -> None:
    first, second = work.commit(a="1"), work.commit(a="2")
    right, wrong = (work.git("rev-parse", f"{commit}^{{tree}}") for commit in (second, first))
    repository.fetch(str(work.folder), second, expected_tree=right).close()
    with pytest.raises(FactMismatchError) as caught:
        repository.fetch(str(work.folder), second, expected_tree=wrong)
    assert (caught.value.expected, caught.value.actual) == (wrong, right)


def test_P60_a_moved_tag_changes_what_resolve_says_and_not_what_a_pin_gives(
    work: Work, repository: GitRepository
) -> None:
    first = work.commit(a="1")
    work.git("tag", "v1")
    source = str(work.folder)
    assert repository.resolve(source, "v1") == first
    second = work.commit(a="2")
    work.git("tag", "--force", "v1")
    assert repository.resolve(source, "v1") == second
    with repository.fetch(source, first) as tree:
        assert contents(tree) == {b"a": b"1"}


def test_P61_a_commit_on_no_ref_any_more_comes_from_a_bundle(work: Work, repository: GitRepository) -> None:
    work.commit(a="0")
    pinned = work.commit(a="pinned")
    work.commit(a="tip")
    bundle = work.bundle()
    work.git("reset", "--quiet", "--hard", "HEAD~2")
    work.git("reflog", "expire", "--expire=now", "--all")
    work.git("gc", "--quiet", "--prune=now")
    with pytest.raises(MissingError, match=pinned) as caught:
        repository.fetch(str(work.folder), pinned)
    assert "bundle" in (caught.value.hint or "")
    with repository.fetch(bundle, pinned) as tree:
        assert contents(tree) == {b"a": b"pinned"}


def test_P61_a_commit_on_no_ref_is_fetched_by_id_while_the_server_has_it(work: Work, repository: GitRepository) -> None:
    work.commit(a="0")
    orphan = work.commit(a="orphan")
    work.git("reset", "--quiet", "--hard", "HEAD~1")
    with repository.fetch(str(work.folder), orphan) as tree:
        assert contents(tree) == {b"a": b"orphan"}


def test_only_one_commit_is_fetched(tmp_path: Path, work: Work, repository: GitRepository) -> None:
    first, second = work.commit(a="1"), work.commit(a="2")
    source = str(work.folder)
    repository.fetch(source, second).close()
    found = subprocess.run(
        ["git", f"--git-dir={bare_of(tmp_path / 'cache', source)}", "cat-file", "-e", first],
        check=False,
        stderr=subprocess.DEVNULL,
    )
    assert found.returncode != 0


def test_a_server_that_serves_only_refs_gives_its_whole_history(
    work: Work, repository: GitRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gitprocess, "_OPTIONS", (*gitprocess._OPTIONS, "protocol.version=0"))
    first = work.commit(a="1")
    tip = work.commit(a="2")
    source = str(work.folder)
    repository.fetch(source, tip).close()
    with repository.fetch(source, first) as tree:
        assert contents(tree) == {b"a": b"1"}
    with pytest.raises(MissingError):
        repository.fetch(source, "1" * 40)


@pytest.mark.parametrize(
    "commit",
    ["main", "v1", "abcdef0", "A" * 40, "a" * 39, "a" * 41, "-" + "a" * 39, "a" * 40 + "\n", "", "HEAD", "٣" * 40],
)
def test_a_commit_that_is_not_a_full_id_is_refused(work: Work, repository: GitRepository, commit: str) -> None:
    with pytest.raises(UnpinnedError):
        repository.fetch(str(work.folder), commit)


def test_the_id_of_a_tag_or_a_tree_is_not_a_commit(work: Work, repository: GitRepository) -> None:
    work.commit(a="1")
    work.git("tag", "--annotate", "-m", "x", "v1")
    for name in ("v1", "HEAD^{tree}"):
        with pytest.raises(ImgbuildError) as caught:
            repository.fetch(str(work.folder), work.git("rev-parse", name))
        assert caught.value.exit_code in {3, 5}


# --- resolving -----------------------------------------------------------------------------------------------------


def test_resolve_finds_branches_peeled_tags_full_names_and_head(work: Work, repository: GitRepository) -> None:
    first = work.commit(a="1")
    work.git("tag", "--annotate", "-m", "x", "v1")
    second = work.commit(a="2")
    work.git("branch", "feature/x")
    for source in (str(work.folder), work.bundle()):
        assert repository.resolve(source, "v1") == first
        assert repository.resolve(source, "refs/tags/v1") == first
        assert repository.resolve(source, "feature/x") == second
        assert repository.resolve(source, "HEAD") == second
        assert repository.resolve(source, first) == first
        with pytest.raises(MissingError):
            repository.resolve(source, "x")
        with pytest.raises(MissingError, match="neither"):
            repository.resolve(source, first[:12])


def test_a_name_of_two_commits_is_refused_and_one_of_the_same_commit_is_not(
    work: Work, repository: GitRepository
) -> None:
    first = work.commit(a="1")
    work.git("tag", "release")
    work.git("branch", "release")
    assert repository.resolve(str(work.folder), "release") == first
    work.git("checkout", "--quiet", "heads/release")
    work.git("branch", "--force", "release", work.commit(a="2"))
    with pytest.raises(InputError, match="both"):
        repository.resolve(str(work.folder), "release")


@pytest.mark.parametrize(
    "ref",
    [
        "-x",
        "--upload-pack=touch x",
        "a b",
        "a\nb",
        "a..b",
        "a@{1}",
        "a^",
        "a~1",
        "a:b",
        "*",
        "a/*",
        "[a]",
        "",
        "/a",
        "a/",
        "a//b",
        "a/.b",
        "a.lock",
        "a/b.lock/c",
        "+a",
        "\0",
        "a\\b",
        "$HOME",
        "a" * 300,
        "a\u202eb",
        "refs/-x",
    ],
)
def test_a_ref_with_another_meaning_is_refused(repository: GitRepository, ref: str) -> None:
    with pytest.raises(InputError):
        repository.resolve(str(BUNDLE), ref)


# --- sources -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "ext::sh -c touch% /tmp/x",
        "ext://sh",
        "::x",
        "fd::17",
        "http://example.org/a",
        "git://example.org/a",
        "ftp://example.org/a",
        "file:///tmp/a",
        "HTTPS://example.org/a",
        "git@example.org:a/b",
        "example.org:a/b",
        "a/b",
        "./a",
        "-oProxyCommand=x",
        "--upload-pack=x",
        "ssh://-oProxyCommand=x/a",
        "ssh://git@-oProxyCommand=x/a",
        "ssh://-x@example.org/a",
        "ssh://git;x@example.org/a",
        "ssh://example.org;touch x/a",
        "ssh://$(x)/a",
        "ssh://git:secret@example.org/a",
        "https://example.org",
        "https://example.org/",
        "https://example.org/a b",
        "https://example.org/a\nb",
        "https://example.org/a\r",
        "https://example.org/a%0ab",
        "https://example.org/a%00",
        "https://example.org/a%7f",
        "https://example.org/a?token=x",
        "https://example.org/a#x",
        "https://example.org/a\\b",
        "https://example.org\\@evil.org/a",
        "https://example.org:0/a",
        "https://example.org:99999/a",
        "https://exämple.org/a",
        "https://.example.org/a",
        "https://example..org/a",
        "https://[::1]/a",
        "https://example.org/" + "a" * 2_000,
        "~/a",
        "$HOME/a",
        "",
    ],
)
def test_a_url_that_git_could_understand_otherwise_is_refused_before_git_runs(
    repository: GitRepository, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (gitprocess, gitobjects):
        monkeypatch.setattr(module, "start", lambda *_, **__: pytest.fail("git was started"))
    for call in (lambda: repository.resolve(url, "main"), lambda: repository.fetch(url, "a" * 40)):
        with pytest.raises(InputError):
            call()


@pytest.mark.parametrize(
    "url", ["https://canary@example.org/a", "https://u:canary@example.org/a", "ssh://u:canary@h/a"]
)
def test_credentials_are_refused_and_never_repeated(repository: GitRepository, url: str) -> None:
    with pytest.raises(InputError) as caught:
        repository.fetch(url, "a" * 40)
    assert "canary" not in str(caught.value) + str(caught.value.fields())


def test_what_git_says_is_escaped_bounded_and_without_credentials() -> None:
    said = giturl.shown(b"see https://u:canary@h/x \x1b[31m\r\n::error::\xe2\x80\xae \xff" + b"x" * 1_000, 600)
    assert "canary" not in said
    assert said.isprintable()
    assert len(said) <= 601
    assert "https://***@h/x" in said


def test_local_sources_need_permission_and_a_normal_path(work: Work, tmp_path: Path, repository: GitRepository) -> None:
    commit = work.commit(a="1")
    with pytest.raises(InputError, match="not allowed"):
        GitRepository(tmp_path / "cache").fetch(str(work.folder), commit)
    for path in (f"{tmp_path}/x/../source", f"{work.folder}/", f"//{tmp_path}", "/tmp/a\nb"):
        with pytest.raises(InputError):
            repository.fetch(path, commit)
    with pytest.raises(MissingError):
        repository.fetch(str(tmp_path / "absent"), commit)


def test_files_that_are_no_bundle_are_refused(tmp_path: Path, work: Work, repository: GitRepository) -> None:
    commit = work.commit(a="1" * 1_000)
    whole = Path(work.bundle()).read_bytes()
    for number, data in enumerate(
        (b"", b"text", b"# v2 git bundle\n", whole[:-30], whole[:-1] + b"x", whole[: len(whole) // 2])
    ):
        path = tmp_path / f"bad{number}.bundle"
        path.write_bytes(data)
        with pytest.raises(ImgbuildError) as caught:
            repository.fetch(str(path), commit)
        assert caught.value.exit_code in {4, 5}


def test_a_bundle_without_its_prerequisite_says_so(work: Work, repository: GitRepository) -> None:
    work.commit(a="1")
    commit = work.commit(a="2")
    with pytest.raises(ToolError, match="prerequisite"):
        repository.fetch(work.bundle("HEAD~1..main"), commit)


# --- nothing of the source or the user runs ------------------------------------------------------------------------


def test_hooks_filters_and_helpers_of_the_source_do_not_run(
    work: Work, tmp_path: Path, repository: GitRepository
) -> None:
    mark = tmp_path / "ran"
    commit = work.commit(**{".gitattributes": "* filter=evil text eol=crlf export-subst ident\n", "a": "$Id$\n"})
    hooks = work.folder / ".git" / "hooks"
    hooks.mkdir()
    for name in ("post-checkout", "post-update", "reference-transaction", "pre-receive", "post-index-change"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch {mark}\n")
        (hooks / name).chmod(0o755)
    command = f"touch {mark}"
    config = work.folder / ".git" / "config"
    with config.open("a") as stream:
        stream.write(f'[filter "evil"]\n\tsmudge = {command}\n\tclean = {command}\n')
        stream.write(f"[uploadpack]\n\tpackObjectsHook = {command}\n")
        stream.write(f"[core]\n\tfsmonitor = {command}\n\tsshCommand = {command}\n\talternateRefsCommand = {command}\n")
    with repository.fetch(str(work.folder), commit) as tree:
        assert contents(tree)[b"a"] == b"$Id$\n"
    assert not mark.exists()


def test_environment_and_configuration_of_the_user_have_no_influence(
    work: Work, tmp_path: Path, repository: GitRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = work.commit(a="1")
    mark, home = tmp_path / "ran", tmp_path / "home"
    template = tmp_path / "template" / "hooks"
    template.mkdir(parents=True)
    (template / "reference-transaction").write_text(f"#!/bin/sh\ntouch {mark}\n")
    (template / "reference-transaction").chmod(0o755)
    home.mkdir()
    evil = f"[init]\n\ttemplateDir = {template.parent}\n[core]\n\thooksPath = {template}\n"
    evil += f"[uploadpack]\n\tpackObjectsHook = {template}/reference-transaction\n"
    evil += f'[url "{tmp_path}/elsewhere"]\n\tinsteadOf = {work.folder}\n'
    (home / ".gitconfig").write_text(evil)
    for name, value in {
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home),
        "GIT_CONFIG_GLOBAL": str(home / ".gitconfig"),
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "core.hooksPath",
        "GIT_CONFIG_VALUE_0": str(template),
        "GIT_CONFIG_PARAMETERS": f"'core.hookspath'='{template}'",
        "GIT_TEMPLATE_DIR": str(template.parent),
        "GIT_DIR": str(tmp_path / "elsewhere"),
        "GIT_OBJECT_DIRECTORY": str(tmp_path / "elsewhere"),
        "GIT_TRACE": str(tmp_path / "trace"),
        "GIT_EXEC_PATH": str(tmp_path / "elsewhere"),
        "GIT_DEFAULT_HASH": "sha256",
        "GIT_SSH_COMMAND": f"touch {mark}",
        "GIT_ALLOW_PROTOCOL": "ext",
    }.items():
        monkeypatch.setenv(name, value)
    with repository.fetch(str(work.folder), commit) as tree:
        assert contents(tree) == {b"a": b"1"}
    assert not mark.exists()
    assert not (tmp_path / "trace").exists()
    assert not (bare_of(tmp_path / "cache", str(work.folder)) / "hooks").exists()


def test_replacement_refs_of_the_cache_are_ignored(work: Work, tmp_path: Path, repository: GitRepository) -> None:
    first, second = work.commit(a="1"), work.commit(a="2")
    source = str(work.folder)
    for commit in (first, second):
        repository.fetch(source, commit).close()
    bare = bare_of(tmp_path / "cache", source)
    subprocess.run(["git", f"--git-dir={bare}", "replace", first, second], check=True)
    with repository.fetch(source, first) as tree:
        assert contents(tree) == {b"a": b"1"}


def test_git_cannot_ask_or_use_another_transport(work: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}
    folder = tmp_path / "bin"
    folder.mkdir()
    fake = folder / "git"
    fake.write_text(f'#!/bin/sh\nenv -0 > {tmp_path}/env\nprintf "%s\\0" "$@" > {tmp_path}/args\nexit 3\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("CANARY_TOKEN", "canary")
    source = giturl.Source(url=REMOTE, name=REMOTE, protocol="https")
    with pytest.raises(ToolError, match="status 3"):
        gitprocess.Runner(tmp_path, source, 30).run("fetch", "x")
    for row in (tmp_path / "env").read_text().split("\0"):
        name, _, value = row.partition("=")
        seen[name] = value
    assert seen["GIT_ALLOW_PROTOCOL"] == "https"
    assert seen["GIT_TERMINAL_PROMPT"] == "0"
    assert seen["GIT_ASKPASS"] == ""
    assert seen["GIT_CONFIG_NOSYSTEM"] == "1"
    assert seen["GIT_CONFIG_GLOBAL"] == os.devnull
    assert seen["LC_ALL"] == "C"
    assert not Path(seen["HOME"]).exists()
    assert "canary" not in str(seen)
    assert "core.hooksPath=/dev/null" in (tmp_path / "args").read_text().split("\0")


def test_an_absent_git_is_called_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    source = giturl.Source(url=REMOTE, name=REMOTE, protocol="https")
    with pytest.raises(ToolError, match="git: is not installed, or not on PATH") as caught:
        gitprocess.Runner(tmp_path, source, 30).run("fetch", "x")
    assert caught.value.hint == "install git, and run it again"


def test_a_command_that_hangs_or_floods_is_killed_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    fake = folder / "git"
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    source = giturl.Source(url=REMOTE, name=REMOTE, protocol="https")
    for script, problem in (
        ("sleep 300 & sleep 300", "did not end within 0.3 seconds"),
        ("while :; do printf '%05000d' 1; done", "wrote more than"),
        ("while :; do printf '%05000d' 1 >&2; done", "did not end within"),
    ):
        fake.write_text(f"#!/bin/sh\n{script}\n")
        fake.chmod(0o755)
        with pytest.raises(ToolError, match=problem):
            gitprocess.Runner(tmp_path, source, 0.3 if "wrote" not in problem else 20).run("fetch", "x")
    assert (
        "sleep"
        not in subprocess.run(
            ["ps", "-o", "comm=", "--ppid", str(os.getpid())], check=False, stdout=subprocess.PIPE, text=True
        ).stdout
    )


def test_a_fetch_that_writes_too_much_is_stopped(
    work: Work, repository: GitRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = tmp_path / "cache" / "objects" / "pack"
    pack.mkdir(parents=True)
    (pack / "tmp_pack_x").write_bytes(b"x" * 2_000)
    monkeypatch.setattr(gitprocess, "MAX_FETCH_BYTES", 1_000)
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "git").write_text("#!/bin/sh\nsleep 300\n")
    (folder / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    with pytest.raises(ToolError, match="received more than"):
        gitprocess.Runner(tmp_path / "cache", giturl.Source(url=REMOTE, name=REMOTE, protocol="https"), 30).run("x")


@pytest.fixture
def server(tmp_path: Path, work: Work, monkeypatch: pytest.MonkeyPatch) -> Iterator[GitServer]:
    """A server on loopback for `work`."""
    with git_server(work.folder, make_authority(tmp_path / "authority"), monkeypatch) as found:
        yield found


def test_over_https_one_commit_is_fetched_by_id_and_a_redirect_to_http_is_refused(
    work: Work, tmp_path: Path, server: GitServer
) -> None:
    work.commit(a="0")
    commit = work.commit(a="orphan")
    work.git("reset", "--quiet", "--hard", "HEAD~1")
    tip = work.git("rev-parse", "HEAD")
    repository = GitRepository(tmp_path / "cache", timeout=60)
    assert repository.resolve(f"{server.url}/.git", "main") == tip
    with repository.fetch(f"{server.url}/.git", commit) as tree:
        assert contents(tree) == {b"a": b"orphan"}
    bare = bare_of(tmp_path / "cache", f"{server.url}/.git")
    assert (bare / "shallow").read_text().split() == [commit]
    with pytest.raises(MissingError):
        repository.fetch(f"{server.url}/.git", "1" * 40)
    requests = len(server.asked)
    with GitRepository(tmp_path / "cache", offline=True).fetch(f"{server.url}/.git", commit) as tree:
        assert contents(tree) == {b"a": b"orphan"}
    assert len(server.asked) == requests
    with pytest.raises(ToolError, match=r"(?i)protocol|not supported|disabled|allowed"):
        repository.fetch(f"{server.url}/302/.git", commit)


# --- trees that must not be -----------------------------------------------------------------------------------------


def entry(mode: str, name: bytes, item: str) -> bytes:
    return mode.encode() + b" " + name + b"\0" + bytes.fromhex(item)


@pytest.mark.parametrize("kind", ["folder", "bundle"])
def test_a_submodule_is_refused_by_name(work: Work, repository: GitRepository, kind: str) -> None:
    blob = work.git("hash-object", "-w", "--stdin", data=b"x")
    commit = work.commit_tree(entry("100644", b"a", blob) + entry("160000", b"third_party", "1" * 40))
    with pytest.raises(StepError, match="third_party: is a submodule"):
        repository.fetch(work.bundle() if kind == "bundle" else str(work.folder), commit)


CRAFTED = {
    "link and folder of one name (CVE-2026-44471)": [("120000", b"d"), ("40000", b"d")],
    "same name twice": [("100644", b"a"), ("100644", b"a")],
    "file and folder of one name, apart": [("100644", b"a"), ("100644", b"a.b"), ("40000", b"a")],
    "out of order": [("100644", b"b"), ("100644", b"a")],
    "dot": [("100644", b".")],
    "dot dot": [("40000", b"..")],
    "dot git": [("40000", b".git")],
    "dot git in capitals": [("40000", b".GIT")],
    "slash": [("100644", b"a/b")],
    "padded mode": [("040000", b"a")],
    "group-writable mode": [("100664", b"a")],
    "set-user-id mode": [("104755", b"a")],
    "device mode": [("20644", b"a")],
}


@pytest.mark.parametrize("kind", ["folder", "bundle"])
@pytest.mark.parametrize("name", CRAFTED)
def test_a_tree_that_is_not_canonical_is_refused(work: Work, repository: GitRepository, name: str, kind: str) -> None:
    blob = work.git("hash-object", "-w", "--stdin", data=b"x")
    tree = work.git("mktree", data=f"100644 blob {blob}\tinner\n".encode())
    rows = CRAFTED[name]
    commit = work.commit_tree(b"".join(entry(m, n, tree if int(m, 8) == 0o040000 else blob) for m, n in rows))
    with pytest.raises(ArchiveError):
        repository.fetch(work.bundle() if kind == "bundle" else str(work.folder), commit)


@given(
    st.lists(st.tuples(st.sampled_from([b"100644", b"100755", b"120000", b"40000", b"160000"]), st.binary(max_size=6)))
)
def test_the_tree_parser_accepts_only_what_it_would_write_itself(rows: list[tuple[bytes, bytes]]) -> None:
    data = b"".join(mode + b" " + name + b"\0" + b"i" * 20 for mode, name in rows)
    for raw in (data, data[:-1], data + b"x"):
        try:
            found = list(gittree.tree_entries(raw, b"", 40, "test", DEFAULT_LIMITS))
        except ArchiveError:
            continue
        assert b"".join(b"%o %s\0%s" % (e.mode, e.path, bytes.fromhex(e.item)) for e in found) == raw
        assert len({e.path for e in found}) == len(found)


@pytest.mark.parametrize(
    "data", [b"100644 \0" + b"i" * 20, b"100644", b"100644 a\0short", b" a\0" + b"i" * 20, b"\0" * 9]
)
def test_a_tree_that_git_itself_would_not_transport_is_refused(data: bytes) -> None:
    with pytest.raises(ArchiveError):
        list(gittree.tree_entries(data, b"", 40, "test", DEFAULT_LIMITS))


def test_a_git_bomb_is_refused(work: Work, tmp_path: Path) -> None:
    item, kind = work.git("hash-object", "-w", "--stdin", data=b"x"), "100644 blob"
    for _ in range(10):
        item = work.git("mktree", data="".join(f"{kind} {item}\t{n}\n" for n in range(10)).encode())
        kind = "040000 tree"
    commit = work.git("commit-tree", item, "-m", "bomb")
    work.git("update-ref", "refs/heads/main", commit)
    repository = GitRepository(tmp_path / "cache", allow_local=True, limits=Limits(git_blobs=5_000))
    with pytest.raises(ArchiveError, match="too many entries"):
        repository.fetch(str(work.folder), commit)


def test_limits_on_bytes_depth_and_link_targets_hold(
    work: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (work.folder / "l").symlink_to("t" * 60)
    (work.folder / "d" / "e").mkdir(parents=True)
    (work.folder / "d" / "e" / "f").write_text("x")
    commit = work.commit(a="1" * 100)
    source = str(work.folder)
    for limits in (Limits(path_bytes=59), Limits(path_depth=2)):
        with pytest.raises(ArchiveError):
            GitRepository(tmp_path / "cache", allow_local=True, limits=limits).fetch(source, commit)
    monkeypatch.setattr(gittree, "MAX_TOTAL_BYTES", 160)
    with pytest.raises(ArchiveError, match="too big"):
        GitRepository(tmp_path / "cache", allow_local=True).fetch(source, commit)


@pytest.mark.parametrize("target", [b"", b"a\0b"])
def test_a_link_target_that_no_link_can_have_is_refused(work: Work, repository: GitRepository, target: bytes) -> None:
    blob = work.git("hash-object", "-w", "--stdin", data=target)
    commit = work.commit_tree(entry("120000", b"l", blob))
    with pytest.raises((StepError, ArchiveError), match=r"link l|fsck"):
        repository.fetch(work.bundle(), commit)


def test_an_entry_of_the_wrong_type_is_refused(work: Work, repository: GitRepository) -> None:
    tree = work.git("mktree", data=b"")
    commit = work.commit_tree(entry("100644", b"a", tree))
    with pytest.raises(ImgbuildError):
        repository.fetch(work.bundle(), commit)


# --- the cache -----------------------------------------------------------------------------------------------------


def test_offline_a_cached_commit_is_enough_and_a_missing_one_is_named(work: Work, tmp_path: Path) -> None:
    commit = work.commit(a="1")
    other = work.commit(a="2")
    source, cache = str(work.folder), tmp_path / "cache"
    GitRepository(cache, allow_local=True).fetch(source, commit).close()
    become_remote(cache, source)
    offline = GitRepository(cache, offline=True)
    with offline.fetch(REMOTE, commit) as tree:
        assert contents(tree) == {b"a": b"1"}
    with pytest.raises(OfflineMissError, match=other):
        offline.fetch(REMOTE, other)
    with pytest.raises(OfflineMissError):
        offline.resolve(REMOTE, "main")


def test_offline_local_sources_are_read(work: Work, tmp_path: Path) -> None:
    commit = work.commit(a="1")
    offline = GitRepository(tmp_path / "cache", offline=True, allow_local=True)
    for source in (str(work.folder), work.bundle()):
        assert offline.resolve(source, "main") == commit
        with offline.fetch(source, commit) as tree:
            assert contents(tree) == {b"a": b"1"}


def test_a_cached_commit_is_not_fetched_again(work: Work, repository: GitRepository, tmp_path: Path) -> None:
    commit = work.commit(a="1")
    repository.fetch(str(work.folder), commit).close()
    (work.folder / ".git").rename(tmp_path / "gone")
    with repository.fetch(str(work.folder), commit) as tree:
        assert contents(tree) == {b"a": b"1"}


def test_what_a_killed_fetch_left_does_not_matter(work: Work, repository: GitRepository, tmp_path: Path) -> None:
    first = work.commit(a="1")
    repository.fetch(str(work.folder), first).close()
    bare = bare_of(tmp_path / "cache", str(work.folder))
    second = work.commit(a="2")
    (bare / "objects" / "pack").mkdir(exist_ok=True)
    for name in ("shallow.lock", f"refs/imgbuild/{second}.lock", "objects/pack/tmp_pack_abc"):
        (bare / name).write_bytes(b"")
    with repository.fetch(str(work.folder), second) as tree:
        assert contents(tree) == {b"a": b"2"}
    assert not (bare / "objects" / "pack" / "tmp_pack_abc").exists()


def test_parallel_fetches_into_one_cache_all_succeed(work: Work, tmp_path: Path) -> None:
    commits = [work.commit(a=str(n)) for n in range(4)]
    got: dict[int, dict[bytes, bytes]] = {}

    def run(n: int) -> None:
        with GitRepository(tmp_path / "cache", allow_local=True).fetch(str(work.folder), commits[n]) as tree:
            got[n] = contents(tree)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == {n: {b"a": str(n).encode()} for n in range(4)}
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [bare_of(tmp_path, str(work.folder)).name]


def loose(bare: Path, item: str) -> Iterator[Path]:
    """Unpack the cache's packs, so that one object is one file."""
    packs = list((bare / "objects" / "pack").glob("*.pack"))
    for pack in packs:
        moved = bare / pack.name
        pack.rename(moved)
        for other in (bare / "objects" / "pack").glob(f"{pack.stem}.*"):
            other.unlink()
        with moved.open("rb") as stream:
            subprocess.run(["git", f"--git-dir={bare}", "unpack-objects", "-q"], stdin=stream, check=True)
    yield bare / "objects" / item[:2] / item[2:]


def test_a_damaged_or_incomplete_cache_is_noticed(work: Work, repository: GitRepository, tmp_path: Path) -> None:
    commit = work.commit(a="right" * 100)
    other = work.git("hash-object", "-w", "--stdin", data=b"wrong" * 100)
    source = str(work.folder)
    repository.fetch(source, commit).close()
    blob = work.git("rev-parse", "HEAD:a")
    (path,) = loose(bare_of(tmp_path / "cache", source), blob)
    stored = (work.folder / ".git" / "objects" / other[:2] / other[2:]).read_bytes()
    path.chmod(stat.S_IRUSR | stat.S_IWUSR)
    path.write_bytes(stored)
    with repository.fetch(source, commit) as tree, pytest.raises((DigestMismatchError, ToolError)):
        tree.files[0].read()
    path.write_bytes(b"garbage")
    with pytest.raises((ToolError, MissingError)):
        repository.fetch(source, commit)
    path.unlink()
    with pytest.raises(MissingError, match=blob):
        repository.fetch(source, commit)


# --- the stand-in adapter ------------------------------------------------------------------------------------------


def make_bundle() -> Any:
    spec = importlib.util.spec_from_file_location("make_bundle", MAKE_BUNDLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_stand_in_bundle_is_reproducible_and_is_the_committed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_bundle()
    made.make(tmp_path / "one")
    (tmp_path / "config").write_text("[core]\n\tcompression = 9\n\tautocrlf = true\n[pack]\n\tthreads = 7\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "config"))
    monkeypatch.setenv("GIT_AUTHOR_NAME", "someone")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    made.make(tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes() == BUNDLE.read_bytes()
    assert BUNDLE.stat().st_size < 20_000


@pytest.mark.parametrize("tag", ["v0.1.0", "v0.2.0"])
def test_the_stand_in_bundle_holds_its_sources(repository: GitRepository, tag: str) -> None:
    expected = make_bundle().version_files(tag)
    with repository.fetch(str(BUNDLE), repository.resolve(str(BUNDLE), tag)) as tree:
        assert {f.path.decode() for f in tree.files} == set(expected)
        for item in tree.files:
            path = expected[item.path.decode()]
            if path.is_symlink():
                assert item.target == os.fsencode(path.readlink())
            else:
                assert item.read() == path.read_bytes()
        modes = {f.path: f.mode for f in tree.files}
        assert modes[b"boot.py"] == gitsource.MODE_EXECUTABLE
        assert modes[b"docs/latest.md"] == gitsource.MODE_LINK


def test_importing_the_module_does_not_import_git() -> None:
    code = "import sys, imgbuild.adapters.gitsource; sys.exit('git' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_machine_without_git_gets_a_clear_error(tmp_path: Path, work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "env").symlink_to("/usr/bin/env")
    monkeypatch.setenv("PATH", str(folder))
    with pytest.raises(ToolError, match="git"):
        GitRepository(tmp_path / "cache", allow_local=True).fetch(str(work.folder), "a" * 40)
