"""`imgbuild lock --update patch:NAME --to VALUE`: where a patch goes, what follows from it, and what is said of it."""

from __future__ import annotations

import json
import os
import tomllib
from typing import TYPE_CHECKING, Any

import pytest
from imgbuild import jsontext
from imgbuild.adapters.durable import write_file
from imgbuild.cli import run
from imgbuild.digest import Digest
from imgbuild.errors import StorageError

from tests.support.made import files
from tests.support.moving import Mover, commit
from tests.support.patched import patches_of_a_commit
from tests.support.tiny import FIRST_PATCH, SECOND_PATCH

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.tiny import Tiny

MORE = SECOND_PATCH.replace("+KEYS = ('a', 'b')", "+KEYS = ('a', 'b', 'c')")
"""The second patch, with another text in the file that it makes."""
KEYS = b"KEYS = ('a', 'b', 'c')\n"
PATCH = "layers/tiny-app/patches/2.patch"


def digest(text: str | bytes) -> str:
    return str(Digest.of(text.encode() if isinstance(text, str) else text))


def states(mover: Mover, path: str) -> list[str]:
    rows = json.loads(mover.lock.read_bytes())["pins"]["files"]
    found: list[str] = next(row["states"] for row in rows if row["path"] == path)
    return found


def repository_files(mover: Mover) -> dict[str, bytes]:
    root = mover.tiny.root
    return {
        str(path.relative_to(root)): path.read_bytes()
        for name in ("locks", "layers")
        for path in sorted((root / name).rglob("*"))
        if path.is_file()
    }


def builds(mover: Mover, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--project", str(mover.tiny.root), "--cache", str(mover.tiny.cache_path)]
    assert run(["build", "tiny", *where, "--offline", "-q"]) == 0, capsys.readouterr().err


# patches of the layer itself


@pytest.fixture
def own(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> Mover:
    return Mover(tiny, capsys)


def written(folder: Path, text: str) -> str:
    path = folder / "new.patch"
    path.write_text(text)
    return str(path)


def test_a_patch_of_a_layer_moves_to_another_file_and_only_it_and_its_states_do(
    own: Mover, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, first, old = repository_files(own), states(own, "/srv/app/auth.py"), states(own, "/srv/app/keys.py")
    found = own.result("--update", "patch:2", "--to", written(tmp_path, MORE))
    assert found["status"] == "written"
    moved = found["moved_pin"]
    assert ("definition" in moved, moved["edits"], moved["files"]) == (False, [], [PATCH])
    (patch,) = moved["patches"]
    assert patch == {
        "name": "2",
        "place": PATCH,
        "steps": ["tiny-app/1"],
        "old": digest(SECOND_PATCH),
        "new": digest(MORE),
        "files": [
            {
                "path": "app/keys.py",
                "old": {"count": 1, "added": 1, "removed": 0},
                "new": {"count": 1, "added": 1, "removed": 0},
            }
        ],
        "same": 1,
        "states": [{"path": "/srv/app/keys.py", "step": "tiny-app/1", "old": old, "new": ["absent", digest(KEYS)]}],
    }
    after = repository_files(own)
    assert {name for name in after if after[name] != before[name]} == {PATCH, "locks/tiny.lock.json"}
    assert after[PATCH] == MORE.encode()
    assert states(own, "/srv/app/auth.py") == first
    changed = {row["path"].partition("[")[0] for row in found["changes"]}
    assert {name for name in changed if name.startswith("pins")} == {"pins.files"}
    assert own.run("--check")[0] == 0
    builds(own, capsys)


def test_what_a_patch_changes_is_said_in_words_and_a_dry_run_writes_nothing(own: Mover, tmp_path: Path) -> None:
    before, old = repository_files(own), states(own, "/srv/app/keys.py")
    code, out, _ = own.run("--update", "patch:2", "--to", written(tmp_path, MORE), "--dry-run")
    assert code == 0
    assert repository_files(own) == before
    assert out.startswith(
        "patch 2 moves (tiny-app/1)\n"
        f"      {PATCH}\n"
        f"      {digest(SECOND_PATCH)}  ->  {digest(MORE)}\n"
        "    ~ app/keys.py  1 hunk, +1 -0  ->  1 hunk, +1 -0\n"
        "  to 1 file it does the same as before\n"
        "  files with other states: 1\n"
        "    /srv/app/keys.py  (tiny-app/1)\n"
        f"      was  {' -> '.join(old)}\n"
        f"      is   absent -> {digest(KEYS)}\n"
    )
    assert f"{PATCH} would change\n" in out
    assert "nothing was written" in out


def test_a_patch_that_was_edited_in_place_is_taken_as_it_is(own: Mover) -> None:
    (own.tiny.root / PATCH).write_text(MORE)
    (patch,) = own.result("--update", "patch:2")["moved_pin"]["patches"]
    assert (patch["old"], patch["new"], "files" in patch) == (digest(SECOND_PATCH), digest(MORE), False)
    assert "is not here any more as it was locked" in patch["problem"]
    assert [row["path"] for row in patch["states"]] == ["/srv/app/keys.py"]
    assert own.result("--update", "patch:2")["status"] == "current"


def test_a_patch_that_does_not_apply_moves_nothing_and_shows_its_hunk(own: Mover, tmp_path: Path) -> None:
    before = repository_files(own)
    text = SECOND_PATCH.replace("-    return key in ('a', 'b')", "-    return key in ('x', 'y')")
    error = own.refused("--update", "patch:2", "--to", written(tmp_path, text))
    assert (error["code"], error["exit_code"]) == ("PATCH_REFUSED", 3)
    assert f"patch {PATCH}" in error["subject"]
    first = states(own, "/srv/app/auth.py")[1]
    assert (error["patch"]["path"], error["patch"]["recorded"], error["patch"]["found"]) == (
        "/srv/app/auth.py",
        first,
        first,
    )
    assert "!    return key in ('a', 'b')" in error["patch"]["hunk"]["there"]
    assert repository_files(own) == before


def test_a_later_patch_that_no_longer_applies_is_the_one_that_is_named(own: Mover, tmp_path: Path) -> None:
    before = repository_files(own)
    text = FIRST_PATCH.replace("+    return key in ('a', 'b')", "+    return key in ['a', 'b']")
    error = own.refused("--update", "patch:1", "--to", written(tmp_path, text))
    assert (error["code"], f"patch {PATCH}" in error["subject"]) == ("PATCH_REFUSED", True)
    assert error["patch"]["hunk"]["there"] == [" def check(key):", "!    return key in ['a', 'b']"]
    assert repository_files(own) == before


def test_a_patch_that_touches_a_file_that_the_step_does_not_list_moves_nothing(own: Mover, tmp_path: Path) -> None:
    text = MORE.replace("b/app/keys.py", "b/app/others.py")
    error = own.refused("--update", "patch:2", "--to", written(tmp_path, text))
    assert (error["code"], error["problem"]) == ("PATCH_REFUSED", "touches a file that the step does not list")


def test_the_same_file_moves_nothing(own: Mover, tmp_path: Path) -> None:
    code, out, _ = own.run("--update", "patch:2", "--to", written(tmp_path, SECOND_PATCH))
    assert (code, out.splitlines()[0]) == (0, "patch:2: stays what it was")


def test_files_that_were_taken_back_are_written_again_though_the_lock_is_right_already(
    own: Mover, tmp_path: Path
) -> None:
    new = written(tmp_path, MORE)
    own.result("--update", "patch:2", "--to", new)
    after = repository_files(own)
    (own.tiny.root / PATCH).write_text(SECOND_PATCH)
    assert own.result("--update", "patch:2", "--to", new, "--dry-run")["status"] == "would-write"
    assert own.result("--update", "patch:2", "--to", new)["status"] == "written"
    assert repository_files(own) == after
    assert own.run("--check")[0] == 0


def test_a_patch_that_another_layer_has_by_a_link_is_refused(own: Mover, tmp_path: Path) -> None:
    other = own.tiny.root / "layers/tiny-app/patches/linked.patch"
    other.symlink_to("2.patch")
    layer = own.tiny.root / "layers/tiny-app/layer.toml"
    layer.write_text(
        layer.read_text() + '\n[[step]]\nkind = "file"\nsource = "patches/linked.patch"\npath = "/opt/linked"\n'
    )
    own.result()
    before = repository_files(own)
    error = own.refused("--update", "patch:2", "--to", written(tmp_path, MORE))
    assert (error["exit_code"], error["subject"], error["actual"]) == (
        2,
        PATCH,
        "layers/tiny-app/patches/linked.patch",
    )
    assert repository_files(own) == before


def test_the_patch_of_a_real_layer_is_not_changed_for_stand_ins(own: Mover, tmp_path: Path) -> None:
    folder = own.tiny.root / "stand-ins"
    folder.mkdir()
    (folder / "tiny.toml").write_text(
        'schema = "imgbuild/stand-in/v1"\n[base]\nreference = "localhost/test/base"\ntag = "base"\n'
    )
    own.result("--stand-in", str(folder))
    before = repository_files(own)
    error = own.refused("--update", "patch:2", "--to", written(tmp_path, MORE), "--stand-in", str(folder))
    assert (error["exit_code"], error["problem"]) == (2, f"is {PATCH}, a file of the real layer")
    assert repository_files(own) == before


def test_names_and_files_that_make_no_sense_are_refused(own: Mover, tmp_path: Path) -> None:
    error = own.refused("--update", "patch:3")
    assert (error["exit_code"], error["problem"], error["expected"]) == (2, "names no patch of the image", "1, 2")
    assert "patch:1, patch:2" in own.refused("--update", "absent")["expected"]
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(written(tmp_path, MORE))
    os.mkfifo(pipe)
    for path in (link, pipe, tmp_path, tmp_path / "absent"):
        error = own.refused("--update", "patch:2", "--to", str(path))
        assert (error["exit_code"], error["subject"].startswith("--to ")) == (2, True)
    with (tmp_path / "long").open("wb") as file:
        file.truncate(100 * 1024 * 1024)
    error = own.refused("--update", "patch:2", "--to", str(tmp_path / "long"))
    assert (error["exit_code"], error["problem"]) == (2, "is too long for a patch")


def test_a_patch_that_somebody_edits_meanwhile_is_not_written_over(
    own: Mover, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from imgbuild.steps import moved_patch

    honest = moved_patch.moved_patches

    def slow(*arguments: object) -> object:
        (own.tiny.root / PATCH).write_text("mine\n")
        return honest(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(moved_patch, "moved_patches", slow)
    error = own.refused("--update", "patch:2", "--to", written(tmp_path, MORE))
    assert (error["subject"], error["problem"]) == (PATCH, "was changed while its pin was moved")
    assert (own.tiny.root / PATCH).read_text() == "mine\n"


def test_files_that_had_changed_before_are_named_and_locked_with_it(own: Mover) -> None:
    layer = own.tiny.root / "layers/tiny-app/layer.toml"
    layer.write_text("# a note\n" + layer.read_text())
    code, out, _ = own.run("--update", "patch:2", "--dry-run")
    assert code == 0
    assert "changed since the lock was made, and locked as it is now:\n      layers/tiny-app/layer.toml\n" in out
    (own.tiny.root / PATCH).write_text(MORE)
    found = own.result("--update", "patch:2")
    assert found["moved_pin"]["stale"] == ["layers/tiny-app/layer.toml"]
    assert own.result("--update", "patch:2")["moved_pin"]["stale"] == []


def test_of_two_moves_at_once_the_second_one_is_not_written_over_the_first(
    own: Mover, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from imgbuild.steps import moved_patch

    honest, lock = moved_patch.moved_patches, json.loads(own.lock.read_bytes())
    lock["pins"]["epoch"] += 1
    other = jsontext.dumps(lock)

    def slow(*arguments: object) -> object:
        own.lock.write_bytes(other)
        return honest(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(moved_patch, "moved_patches", slow)
    code, _, err = own.run("--update", "patch:2", "--to", written(tmp_path, MORE))
    assert (code, "was changed while a new one was made" in err) == (3, True)
    assert own.lock.read_bytes() == other
    assert (own.tiny.root / PATCH).read_text() == SECOND_PATCH


def test_a_lock_that_is_a_link_stays_one_and_keeps_its_mode(own: Mover, tmp_path: Path) -> None:
    real = own.tiny.root / "kept.json"
    own.lock.rename(real)
    real.chmod(0o640)
    own.lock.symlink_to(real)
    own.result("--update", "patch:2", "--to", written(tmp_path, MORE))
    assert own.lock.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    assert states(own, "/srv/app/keys.py")[-1] == digest(KEYS)


def test_a_file_that_is_no_patch_is_the_one_that_is_named(own: Mover, tmp_path: Path) -> None:
    path = written(tmp_path, SECOND_PATCH[:60])
    error = own.refused("--update", "patch:2", "--to", path)
    assert (error["code"], error["subject"]) == ("PATCH_REFUSED", f"--to {path}")


def test_what_is_said_of_a_later_patch_is_the_state_that_it_found(own: Mover, tmp_path: Path) -> None:
    old = states(own, "/srv/app/auth.py")[1]
    text = FIRST_PATCH.replace("+    return key in ('a', 'b')", "+    return key in ['a', 'b']")
    error = own.refused("--update", "patch:1", "--to", written(tmp_path, text))
    assert error["patch"]["recorded"] == old
    assert error["patch"]["found"] not in states(own, "/srv/app/auth.py")


# patches of a git source


@pytest.fixture
def of_commit(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> Mover:
    """The patches in the adapter's repository, whose commit and digests the definition pins; the states in a file."""
    found = Mover(patches_of_a_commit(tiny), capsys)
    tiny.write()
    found.result("--update", "adapter")
    source = tiny.image["sources"]["adapter"]
    source["commit"] = found.pin("adapter")["commit"]
    source["digests"]["patches/2.patch"] = digest(SECOND_PATCH)
    tiny.write_definition()
    found.result()
    found.commented()
    found.result()
    return found


def named(mover: Mover) -> Path:
    return mover.tiny.root / "layers/tiny-app/states.toml"


def test_a_patch_of_a_commit_moves_with_its_digest_and_the_states_after_it(
    of_commit: Mover, capsys: pytest.CaptureFixture[str]
) -> None:
    old, before = of_commit.pin("adapter")["commit"], repository_files(of_commit)
    path = named(of_commit)
    path.write_bytes(b"# of upstream\n\n" + path.read_bytes())
    of_commit.result()
    known = path.read_text()
    new = commit(of_commit.tiny, "another text", {"patches/2.patch": MORE})
    found = of_commit.result("--update", "patch:2", "--to", "main")
    moved = found["moved_pin"]
    assert moved["edits"] == [
        {"path": "sources.adapter.commit", "old": old, "new": new},
        {"path": "sources.adapter.digests.patches/2.patch", "old": digest(SECOND_PATCH), "new": digest(MORE)},
    ]
    assert (moved["definition"], moved["files"]) == ("locks/tiny.toml", ["layers/tiny-app/states.toml"])
    (patch,) = moved["patches"]
    assert (patch["place"], patch["old"], patch["new"]) == (
        "adapter/patches/2.patch",
        digest(SECOND_PATCH),
        digest(MORE),
    )
    assert [row["path"] for row in patch["states"]] == ["/srv/app/keys.py"]
    (git,) = moved["git"]
    assert (git["new"], git["changed"]["first"]) == (new, ["patches/2.patch"])
    keys = tomllib.loads(known)["app/keys.py"][-1]
    assert path.read_text() == known.replace(keys, digest(KEYS))
    after = repository_files(of_commit)
    assert {name for name in after if after[name] != before[name]} == {
        "layers/tiny-app/states.toml",
        "locks/tiny.toml",
        "locks/tiny.lock.json",
    }
    assert of_commit.run("--check")[0] == 0
    builds(of_commit, capsys)


def test_without_to_the_ref_is_followed_and_a_dry_run_writes_none_of_three_files(of_commit: Mover) -> None:
    new = commit(of_commit.tiny, "another text", {"patches/2.patch": MORE})
    before = repository_files(of_commit)
    code, out, _ = of_commit.run("--update", "patch:2", "--dry-run")
    assert code == 0
    assert repository_files(of_commit) == before
    assert f"->  {new}\n" in out
    assert "\nlocks/tiny.toml would change\nlayers/tiny-app/states.toml would change\n" in out
    assert of_commit.result("--update", "patch:2")["status"] == "written"
    assert of_commit.result("--update", "patch:2")["status"] == "current"


def test_a_file_with_one_more_state_than_upstream_named_gets_it(of_commit: Mover) -> None:
    first = FIRST_PATCH + "--- /dev/null\n+++ b/app/keys.py\n@@ -0,0 +1 @@\n+KEYS = ()\n"
    second = SECOND_PATCH.replace(
        "--- /dev/null\n+++ b/app/keys.py\n@@ -0,0 +1 @@\n",
        "--- a/app/keys.py\n+++ b/app/keys.py\n@@ -1 +1 @@\n-KEYS = ()\n",
    )
    commit(of_commit.tiny, "both", {"patches/1.patch": first, "patches/2.patch": second})
    before = tomllib.loads(named(of_commit).read_text())
    error = of_commit.refused("--update", "patch:1")
    assert "that steps take and that change, too" in error["problem"]
    assert error["actual"] == "patches/2.patch"
    assert error["hint"] == "move them together: `imgbuild lock tiny --update patch:1 --update patch:2`"
    found = of_commit.result("--update", "patch:1", "--update", "patch:2")
    assert [patch["name"] for patch in found["moved_pin"]["patches"]] == ["1", "2"]
    expected = {**before, "app/keys.py": ["absent", digest("KEYS = ()\n"), digest("KEYS = ('a', 'b')\n")]}
    assert tomllib.loads(named(of_commit).read_text()) == expected


def test_another_file_that_would_move_with_the_patch_is_named_and_nothing_moves(of_commit: Mover) -> None:
    new = commit(of_commit.tiny, "two things", {"patches/2.patch": MORE, "boot.py": "#!/bin/sh\n", "more.py": "\n"})
    error = of_commit.refused("--update", "patch:2")
    assert (error["exit_code"], error["problem"]) == (
        3,
        "has 2 other files there that steps take and that change, too",
    )
    assert error["actual"] == "boot.py, more.py"
    assert new in error["where"]
    assert "`--update adapter`" in error["hint"]


def test_a_commit_in_which_the_patch_is_the_same_moves_nothing(of_commit: Mover) -> None:
    before = repository_files(of_commit)
    commit(of_commit.tiny, "elsewhere", {"boot.py": "#!/bin/sh\n"})
    code, out, _ = of_commit.run("--update", "patch:2")
    assert (code, out.splitlines()[0]) == (0, "patch:2: stays what it was")
    assert repository_files(of_commit) == before


def test_a_patch_of_a_commit_that_does_not_apply_moves_nothing_and_shows_its_hunk(of_commit: Mover) -> None:
    before = repository_files(of_commit)
    new = commit(of_commit.tiny, "broken", {"patches/1.patch": FIRST_PATCH.replace("== 'a'", "== 'A'")})
    error = of_commit.refused("--update", "patch:1")
    assert error["code"] == "PATCH_REFUSED"
    assert f"patch patches/1.patch of source adapter, commit {new}" in error["subject"]
    assert error["patch"]["hunk"]["there"] == [" def check(key):", "!    return key == 'a'"]
    assert error["patch"]["recorded"] == error["patch"]["found"] == states(of_commit, "/srv/app/auth.py")[0]
    assert repository_files(of_commit) == before


def test_states_that_do_not_follow_from_the_patch_still_have_to_hold(of_commit: Mover) -> None:
    commit(of_commit.tiny, "another text", {"patches/2.patch": MORE})
    path, right = named(of_commit), states(of_commit, "/srv/app/auth.py")
    text = path.read_text()
    for state, what in ((right[0], "before the first patch"), (right[1], "after patch patches/1.patch")):
        path.write_text(text.replace(state, f"sha256:{'0' * 64}"))
        wrong = path.read_bytes()
        error = of_commit.refused("--update", "patch:2")
        assert (error["code"], what in error["problem"]) == ("FACT_MISMATCH", True)
        assert (error["expected"], error["actual"]) == (f"sha256:{'0' * 64}", state)
        assert path.read_bytes() == wrong


def test_a_state_that_is_wrong_is_not_written_over_where_no_patch_moves(of_commit: Mover) -> None:
    path = named(of_commit)
    path.write_text(path.read_text().replace(states(of_commit, "/srv/app/keys.py")[-1], f"sha256:{'0' * 64}"))
    wrong = path.read_bytes()
    for words in ((), ("--to", of_commit.pin("adapter")["commit"])):
        error = of_commit.refused("--update", "patch:2", *words)
        assert (error["code"], error["expected"]) == ("FACT_MISMATCH", f"sha256:{'0' * 64}")
    assert path.read_bytes() == wrong


def test_a_move_that_was_interrupted_is_ended_by_the_same_command(
    of_commit: Mover, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    new = commit(of_commit.tiny, "another text", {"patches/2.patch": MORE})
    count = 0

    def full(path: Path, data: bytes, **options: Any) -> None:
        nonlocal count
        count += 1
        if count == 2:
            raise StorageError(str(path), "cannot be written: No space left on device")
        write_file(path, data, **options)

    with monkeypatch.context() as patched:
        patched.setattr("imgbuild.steps.move.write_file", full)
        code, _, err = of_commit.run("--update", "patch:2", "--to", new)
    assert code == 5
    assert "then run the same command again: locks/tiny.toml is written already\n" in err
    assert of_commit.run("--check")[0] == 1
    assert of_commit.result("--update", "patch:2", "--to", new)["status"] == "written"
    assert of_commit.run("--check")[0] == 0
    builds(of_commit, capsys)


def test_a_commit_that_the_definition_has_and_the_lock_has_not_is_locked_first(of_commit: Mover) -> None:
    old = of_commit.pin("adapter")["commit"]
    new = commit(of_commit.tiny, "two things", {"patches/2.patch": MORE, "boot.py": "#!/bin/sh\n"})
    of_commit.definition.write_text(of_commit.definition.read_text().replace(old, new))
    before = repository_files(of_commit)
    error = of_commit.refused("--update", "patch:2", "--to", old)
    assert (error["exit_code"], error["expected"], error["actual"]) == (2, new, old)
    assert "`imgbuild lock tiny` first" in error["hint"]
    assert repository_files(of_commit) == before


@pytest.mark.parametrize("value", ["", "/tmp/new.patch", "../new.patch"])
def test_what_is_no_commit_of_the_patchs_source_is_refused_as_a_word_on_the_command_line(
    of_commit: Mover, value: str
) -> None:
    error = of_commit.refused("--update", "patch:2", "--to", value)
    assert (error["exit_code"], error["subject"]) == (2, f"--to {value}")
    assert "source adapter is a git repository: give a commit, branch or tag of it" in error["hint"]


def test_a_commit_without_the_patch_names_the_patch_and_the_commit(of_commit: Mover) -> None:
    new = commit(of_commit.tiny, "renamed", {"patches/second.patch": MORE, "patches/2.patch": None})
    error = of_commit.refused("--update", "patch:2")
    assert (error["subject"], error["where"]) == ("patch adapter/patches/2.patch", f"commit {new}")
    assert "change `stages` of its step" in error["hint"]


def test_states_of_a_path_through_a_link_are_said_to_be_for_the_hand(of_commit: Mover) -> None:
    tiny = of_commit.tiny
    tiny.base = [*tiny.base, files({}, links={"lnk": "srv"})]
    for step in tiny.layers["tiny-app"]:
        if step["kind"] == "patch":
            step["root"] = "/lnk"
    tiny.write()
    of_commit.result("--update", "base")
    commit(tiny, "another text", {"patches/2.patch": MORE})
    before = repository_files(of_commit)
    error = of_commit.refused("--update", "patch:2")
    assert "under another path, so its states cannot be moved" in error["problem"]
    assert "/lnk/app/" in error["problem"]
    assert repository_files(of_commit) == before


def test_a_source_and_a_patch_of_it_are_not_moved_at_once(of_commit: Mover) -> None:
    error = of_commit.refused("--update", "adapter", "--update", "patch:2")
    assert (error["exit_code"], error["problem"]) == (2, "names a source and a patch of it")


def test_states_in_a_document_of_stand_ins_are_not_changed_from_here(of_commit: Mover) -> None:
    tiny = of_commit.tiny
    folder = tiny.root / "stand-ins"
    folder.mkdir()
    (folder / "tiny.toml").write_text(
        'schema = "imgbuild/stand-in/v1"\n[base]\nreference = "localhost/test/base"\ntag = "base"\n'
        '[sources.adapter]\nkind = "git"\nrepository = "adapter.bundle"\nref = "main"\nlicence = "Apache-2.0"\n'
    )
    (folder / "tiny-app.states.toml").write_bytes(named(of_commit).read_bytes())
    of_commit.result("--stand-in", str(folder))
    new = commit(tiny, "another text", {"patches/2.patch": MORE})
    error = of_commit.refused("--update", "patch:2", "--to", new, "--stand-in", str(folder))
    assert error["exit_code"] == 2
    assert "which stand in stand-ins/tiny-app.states.toml, a document of stand-ins" in error["problem"]
    assert digest(KEYS) in error["hint"]


def test_the_pin_of_an_image_that_is_extended_is_not_moved_from_here_either(of_commit: Mover) -> None:
    text = 'schema = "imgbuild/image/v1"\nextends = "tiny"\nname = "other"\ntitle = "another"\ntags = ["other"]\n'
    (of_commit.tiny.root / "locks/other.toml").write_text(text)
    of_commit.result(image="other")
    commit(of_commit.tiny, "another text", {"patches/2.patch": MORE})
    error = of_commit.refused("--update", "patch:2", image="other")
    assert (error["exit_code"], error["subject"]) == (2, "--update patch:2")
    assert "imgbuild lock tiny --update patch:2 --to" in error["hint"]


def test_states_that_name_other_files_than_the_step_are_refused_before_anything_moves(of_commit: Mover) -> None:
    path = named(of_commit)
    path.write_text("".join(line for line in path.read_text().splitlines(True) if "keys.py" not in line))
    commit(of_commit.tiny, "another text", {"patches/2.patch": MORE})
    error = of_commit.refused("--update", "patch:2")
    assert (error["code"], "`files` differ: app/keys.py" in error["problem"]) == ("DOCUMENT_INVALID", True)


def test_states_that_are_another_file_of_the_image_by_a_link_are_refused(of_commit: Mover) -> None:
    folder = of_commit.tiny.root / "layers/tiny-app"
    (folder / "linked.toml").symlink_to("states.toml")
    text = (folder / "layer.toml").read_text()
    (folder / "layer.toml").write_text(
        text + '\n[[step]]\nkind = "file"\nsource = "linked.toml"\npath = "/opt/states"\n'
    )
    of_commit.result()
    commit(of_commit.tiny, "another text", {"patches/2.patch": MORE})
    before = repository_files(of_commit)
    error = of_commit.refused("--update", "patch:2")
    assert (error["exit_code"], error["actual"]) == (2, "layers/tiny-app/linked.toml")
    assert repository_files(of_commit) == before


def test_comments_in_a_list_of_states_are_not_lost_and_the_states_to_write_are_said(of_commit: Mover) -> None:
    path = named(of_commit)
    old = tomllib.loads(path.read_text())["app/keys.py"]
    rows = "".join(f'    "{state}", # {number}\n' for number, state in enumerate(old))
    lines = [line for line in path.read_text().splitlines(True) if "keys.py" not in line]
    path.write_text("".join(lines) + f'"app/keys.py" = [\n{rows}]\n')
    of_commit.result()
    first = FIRST_PATCH + "--- /dev/null\n+++ b/app/keys.py\n@@ -0,0 +1 @@\n+KEYS = ()\n"
    second = SECOND_PATCH.replace(
        "--- /dev/null\n+++ b/app/keys.py\n@@ -0,0 +1 @@\n",
        "--- a/app/keys.py\n+++ b/app/keys.py\n@@ -1 +1 @@\n-KEYS = ()\n",
    )
    commit(of_commit.tiny, "both", {"patches/1.patch": first, "patches/2.patch": second})
    error = of_commit.refused("--update", "patch:1", "--update", "patch:2")
    assert "app/keys.py: cannot be changed without losing the comments in a list" in error["problem"]
    assert f'app/keys.py = ["absent", "{digest("KEYS = ()" + chr(10))}", "{old[-1]}"]' in error["hint"]


def test_a_commit_in_which_only_the_mode_of_a_patch_is_another_one_moves_nothing(of_commit: Mover) -> None:
    (of_commit.tiny.root / "adapter-work/patches/2.patch").chmod(0o755)
    commit(of_commit.tiny, "a mode", {})
    before = repository_files(of_commit)
    code, out, _ = of_commit.run("--update", "patch:2")
    assert (code, out.splitlines()[0]) == (0, "patch:2: stays what it was")
    assert repository_files(of_commit) == before


def test_a_ref_that_is_a_commit_moves_with_its_digests(of_commit: Mover, capsys: pytest.CaptureFixture[str]) -> None:
    old = of_commit.pin("adapter")["commit"]
    del of_commit.tiny.image["sources"]["adapter"]["commit"]
    of_commit.tiny.image["sources"]["adapter"]["ref"] = old
    of_commit.tiny.write_definition()
    of_commit.result()
    new = commit(of_commit.tiny, "another text", {"patches/2.patch": MORE})
    edits = of_commit.result("--update", "patch:2", "--to", new)["moved_pin"]["edits"]
    assert {"path": "sources.adapter.ref", "old": old, "new": new} in edits
    assert of_commit.run("--update", "adapter")[0] == 0
    builds(of_commit, capsys)


def test_a_branch_and_digests_do_not_go_to_a_commit_of_their_own(of_commit: Mover) -> None:
    del of_commit.tiny.image["sources"]["adapter"]["commit"]
    of_commit.tiny.write_definition()
    of_commit.result()
    new = commit(of_commit.tiny, "another text", {"patches/2.patch": MORE})
    before = repository_files(of_commit)
    error = of_commit.refused("--update", "patch:2", "--to", new)
    assert (error["exit_code"], "would have the definition contradict itself" in error["problem"]) == (2, True)
    assert repository_files(of_commit) == before


def test_what_is_wrong_with_the_repository_is_not_said_of_the_word_on_the_command_line(of_commit: Mover) -> None:
    text = of_commit.definition.read_text()
    where = '"https://bob:s3cr3t@127.0.0.1:9/x.git?token=s3cr3t"'
    of_commit.definition.write_text(text.replace('"adapter.bundle"', where))
    for words in (("adapter",), ("adapter", "--to", "main"), ("patch:2",), ("patch:2", "--to", "main")):
        error = of_commit.refused("--update", *words)
        assert (error["exit_code"], "credentials" in error["problem"]) == (3, True)
        assert "s3cr3t" not in json.dumps(error)
    error = of_commit.refused("--update", "adapter", "--to", "https://bob:s3cr3t@host/x?token=s3cr3t")
    assert "s3cr3t" not in json.dumps(error)


def test_a_file_of_the_definition_that_a_commit_has_not_is_said_to_be_named_there(of_commit: Mover) -> None:
    new = commit(of_commit.tiny, "renamed", {"patches/second.patch": MORE, "patches/2.patch": None})
    error = of_commit.refused("--update", "adapter", "--to", new)
    assert "sources.adapter.digests" in error["hint"]


def test_ctrl_c_between_two_files_says_which_one_is_written(of_commit: Mover, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(of_commit.tiny, "another text", {"patches/2.patch": MORE})
    count = 0

    def stopped(path: Path, data: bytes, **options: Any) -> None:
        nonlocal count
        count += 1
        if count == 2:
            raise KeyboardInterrupt
        write_file(path, data, **options)

    monkeypatch.setattr("imgbuild.steps.move.write_file", stopped)
    code, _, err = of_commit.run("--update", "patch:2")
    assert code == 130
    assert err.endswith("  run the same command again: locks/tiny.toml is written already\n")
