"""`imgbuild lock --update NAME --to VALUE` for git sources: where the pin goes, and what is said of it."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from imgbuild.digest import Digest

from tests.support.moving import Mover, bundle, commit, git, rest

if TYPE_CHECKING:
    from tests.support.tiny import Tiny

ADAPTER = {"kind": "git", "repository": "adapter.bundle", "ref": "main", "licence": "Apache-2.0"}


@pytest.fixture
def mover(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> Mover:
    """A project whose definition pins the commit, with a file that has to be followed, and is full of comments."""
    found = Mover(tiny, capsys)
    write(found, commit=found.pin("adapter")["commit"], evidence=["boot.py"])
    found.result()
    return found


def write(mover: Mover, **more: Any) -> None:
    mover.tiny.image["sources"] = {**SOURCES, "adapter": {**ADAPTER, **more}}
    mover.tiny.write()
    mover.commented()


SOURCES = {
    "helper": {"kind": "wheel", "name": "helper", "version": "1.0", "platforms": ["any"], "python": "3.12"},
    "nccl-wheel": {"kind": "wheel", "name": "nccl_like", "version": "2.30.7", "platforms": ["any"], "python": "3.12"},
    "nccl": {"kind": "wheel-member", "wheel": "nccl-wheel", "member": "nvidia/nccl/lib/libnccl.so.2"},
}


def test_a_commit_moves_in_the_definition_and_in_the_lock_and_all_else_stays(mover: Mover) -> None:
    before, old = mover.definition.read_bytes(), mover.pin("adapter")["commit"]
    new = commit(
        mover.tiny, "second\n\nbody", {"boot.py": "#!/usr/bin/env python3\nprint('new')\n", "more.py": "Y = 1\n"}
    )
    found = mover.result("--update", "adapter", "--to", new)
    assert found["status"] == "written"
    assert rest(mover.definition.read_bytes(), new) == rest(before, old)
    assert mover.pin("adapter")["commit"] == new
    moved = found["moved_pin"]
    assert moved["definition"] == "locks/tiny.toml"
    assert moved["edits"] == [{"path": "sources.adapter.commit", "old": old, "new": new}]
    (row,) = moved["git"]
    assert row["commits"] == {
        "count": 1,
        "newest": [{"commit": new, "subject": "second"}],
        "is_ancestor": True,
        "lost": 0,
    }
    assert (row["added"], row["removed"]["count"]) == ({"count": 1, "first": ["more.py"]}, 0)
    assert row["changed"] == {"count": 1, "first": ["boot.py"]}
    (evidence,) = row["evidence"]
    assert evidence["path"] == "boot.py"
    assert evidence["diff"] == ["@@ -1,2 +1,2 @@", " #!/usr/bin/env python3", "-print('tiny')", "+print('new')"]
    assert mover.run("--check")[0] == 0
    assert mover.result()["status"] == "current"


def test_what_changed_is_said_in_words_and_fields_only_with_v(mover: Mover) -> None:
    new = commit(mover.tiny, "second", {"boot.py": "new\n", "LICENSE": "MIT\n"})
    before = mover.both()
    for words, fields in (((), False), (("-v",), True)):
        code, out, _ = mover.run("--update", "adapter", "--to", new, "--dry-run", *words)
        assert code == 0
        assert "git source adapter moves" in out
        assert f"1 commit newer:\n    {new[:12]}  second\n" in out
        assert "2 files changed:\n    ~ LICENSE\n    ~ boot.py\n" in out
        assert "evidence boot.py changed: our layer has to follow it" in out
        assert "      +new\n" in out
        assert ("pins.sources[adapter].content" in out) is fields
        assert "locks/tiny.toml would change\n" in out
        assert "nothing was written" in out
    assert mover.both() == before


def test_without_to_the_ref_is_followed_and_the_definition_moves_with_it(mover: Mover) -> None:
    new = commit(mover.tiny, "second", {"lib/mod.py": "X = 2\n"})
    assert mover.result("--update", "adapter")["moved_pin"]["edits"][0]["new"] == new
    assert mover.result("--update", "adapter")["status"] == "current"
    assert b'"ref" = "main"' in mover.definition.read_bytes()


def test_a_tag_or_branch_says_where_a_pinned_commit_goes_and_the_ref_stays(mover: Mover) -> None:
    new = commit(mover.tiny, "second", {"lib/mod.py": "X = 2\n"})
    work = mover.tiny.root / "adapter-work"
    git(work, "tag", "-am", "release", "v2")
    commit(mover.tiny, "third", {"lib/mod.py": "X = 3\n"})
    found = mover.result("--update", "adapter", "--to", "v2")
    assert [row["path"] for row in found["moved_pin"]["edits"]] == ["sources.adapter.commit"]
    assert (mover.pin("adapter")["commit"], mover.pin("adapter")["ref"]) == (new, "main")


def test_where_no_commit_is_pinned_the_ref_moves_or_only_the_lock(mover: Mover) -> None:
    write(mover)
    mover.result()
    before = mover.definition.read_bytes()
    new = commit(mover.tiny, "second", {"lib/mod.py": "X = 2\n"})
    found = mover.result("--update", "adapter", "--to", new)
    assert ("definition" in found["moved_pin"], found["moved_pin"]["edits"]) == (False, [])
    assert (mover.definition.read_bytes(), mover.pin("adapter")["commit"]) == (before, new)
    work = mover.tiny.root / "adapter-work"
    git(work, "checkout", "-qb", "next")
    newer = commit(mover.tiny, "third", {"lib/mod.py": "X = 3\n"})
    found = mover.result("--update", "adapter", "--to", "next")
    assert found["moved_pin"]["edits"] == [{"path": "sources.adapter.ref", "old": "main", "new": "next"}]
    assert (mover.pin("adapter")["ref"], mover.pin("adapter")["commit"]) == ("next", newer)
    assert mover.run("--check")[0] == 0


def test_a_commit_that_is_no_ancestor_is_said_to_be_none(mover: Mover) -> None:
    first = mover.pin("adapter")["commit"]
    second = commit(mover.tiny, "second", {"lib/mod.py": "X = 2\n"})
    mover.result("--update", "adapter", "--to", second)
    git(mover.tiny.root / "adapter-work", "checkout", "-qb", "side", first)
    side = commit(mover.tiny, "side", {"lib/mod.py": None, "lib/link.py": None})
    code, out, _ = mover.run("--update", "adapter", "--to", side)
    assert code == 0
    assert "the old commit is NOT an ancestor of the new one; 1 commit of it are not in the new one" in out
    assert "2 files removed:\n    - lib/link.py\n    - lib/mod.py\n" in out


def test_an_old_commit_that_is_gone_is_no_obstacle(mover: Mover) -> None:
    work = mover.tiny.root / "adapter-work"
    git(work, "commit", "-q", "--amend", "-m", "instead")
    bundle(mover.tiny)
    shutil.rmtree(mover.tiny.cache_path / "git")
    found = mover.result("--update", "adapter")
    (row,) = found["moved_pin"]["git"]
    assert (row["commits"]["is_ancestor"], "lost" in row["commits"]) == (False, False)
    assert "is not in the source" in row["files_problem"]
    assert row["commits"]["newest"][0]["subject"] == "instead"


def test_lists_and_lines_from_outside_are_bounded_and_printable(mover: Mover) -> None:
    tiny = mover.tiny
    for number in range(25):
        commit(tiny, f"number {number} \x1b[31m\u202e{'x' * 5000}", {f"many/{number:02}": "x\n"})
    long = "".join(f"line {number} \x1b]0;t\x07 {'y' * 4000}\n" for number in range(400))
    new = commit(tiny, "last", {"boot.py": long})
    found = mover.result("--update", "adapter", "--to", new)
    (row,) = found["moved_pin"]["git"]
    assert (row["commits"]["count"], len(row["commits"]["newest"])) == (26, 20)
    assert (row["added"]["count"], len(row["added"]["first"])) == (25, 20)
    (evidence,) = row["evidence"]
    assert (len(evidence["diff"]), evidence["left_off"]) == (200, 203)
    texts = [*row["added"]["first"], *evidence["diff"], *(one["subject"] for one in row["commits"]["newest"])]
    assert all(text.isprintable() and len(text) <= 301 for text in texts)


def test_a_digest_that_the_definition_knows_and_that_changed_is_an_error_with_both(mover: Mover) -> None:
    known = {
        path: str(Digest.of((mover.tiny.root / "adapter-work" / path).read_bytes())) for path in ("LICENSE", "boot.py")
    }
    write(mover, commit=mover.pin("adapter")["commit"], digests=known)
    mover.result()
    new = commit(mover.tiny, "second", {"LICENSE": "MIT\n", "boot.py": "other\n"})
    error = mover.refused("--update", "adapter", "--to", new)
    assert (error["expected"], error["actual"]) == (known["LICENSE"], str(Digest.of(b"MIT\n")))
    assert error["where"] == f"LICENSE, commit {new}"
    assert "correct sources.adapter.digests" in error["hint"]
    assert f"boot.py: {known['boot.py']} -> {Digest.of(b'other' + bytes([10]))}" in error["hint"]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("0" * 40, "is not in the source"),
        ("nobody", "is neither a branch nor a tag"),
        ("--upload-pack=x", "is not a ref name that may be asked for"),
        ("", "is not a ref name that may be asked for"),
    ],
)
def test_a_commit_or_ref_that_is_none_is_refused(mover: Mover, value: str, says: str) -> None:
    assert says in mover.refused("--update", "adapter", f"--to={value}")["problem"]


def test_to_needs_exactly_one_update(mover: Mover) -> None:
    for words in ((), ("--update", "adapter", "--update", "base"), ("--check",)):
        error = mover.refused(*words, "--to", "main")
        assert (error["exit_code"], error["problem"]) == (2, "--to needs exactly one --update")


def test_a_pin_of_the_image_that_is_extended_is_not_moved_from_here(mover: Mover) -> None:
    new = commit(mover.tiny, "second", {"lib/mod.py": "X = 2\n"})
    text = 'schema = "imgbuild/image/v1"\nextends = "tiny"\nname = "other"\ntitle = "another"\ntags = ["other"]\n'
    other = mover.tiny.root / "locks/other.toml"
    other.write_text(text)
    mover.result(image="other")
    before = (mover.tiny.root / "locks/other.lock.json").read_bytes()
    error = mover.refused("--update", "adapter", "--to", new, image="other")
    assert error["exit_code"] == 2
    assert (
        error["problem"] == "has to move sources.adapter.commit, which stands in locks/tiny.toml, which other extends"
    )
    assert "imgbuild lock tiny --update adapter" in error["hint"]
    assert (other.read_text(), (mover.tiny.root / "locks/other.lock.json").read_bytes()) == (text, before)
    other.write_text(f'{text}\n[sources.adapter]\nkind = "git"\ncommit = "{mover.pin("adapter")["commit"]}" # own\n')
    tiny = mover.both()
    assert (
        mover.result("--update", "adapter", "--to", new, image="other")["moved_pin"]["definition"] == "locks/other.toml"
    )
    assert other.read_text().endswith(f'commit = "{new}" # own\n')
    assert mover.both() == tiny


def test_a_pin_of_a_document_of_stand_ins_is_not_moved_from_here(mover: Mover, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(mover.tiny.root)
    new = commit(mover.tiny, "second", {"lib/mod.py": "X = 2\n"})
    folder = mover.tiny.root / "stand-ins"
    folder.mkdir()
    rows = {**ADAPTER, "commit": mover.pin("adapter")["commit"]}
    text = (
        'schema = "imgbuild/stand-in/v1"\n[base]\nreference = "localhost/test/base"\ntag = "base"\n[sources.adapter]\n'
        + "".join(f"{key} = {json.dumps(value)}\n" for key, value in rows.items())
    )
    (folder / "tiny.toml").write_text(text)
    mover.result("--stand-in", str(folder))
    error = mover.refused("--update", "adapter", "--to", new, "--stand-in", str(folder))
    assert error["exit_code"] == 2
    assert "which stands in stand-ins/tiny.toml, a document of stand-ins" in error["problem"]
    assert new in error["hint"]
    assert "`imgbuild lock tiny --stand-in stand-ins`" in error["hint"]
    assert (folder / "tiny.toml").read_text() == text
