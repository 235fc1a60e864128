"""Images that extend others, images with stand-ins, and patches out of a git source, through the program."""

from __future__ import annotations

import json
import os
import shlex
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from imgbuild.cli import run
from imgbuild.digest import Digest

from tests.support.patched import patches_of_a_commit, states_text
from tests.support.refusals import commit_again, forge, locked, relock, source
from tests.support.tiny import FIRST_PATCH, Tiny, only_own_wheels

if TYPE_CHECKING:
    from collections.abc import Callable

VARIANT = """schema = "imgbuild/image/v1"
extends = "tiny"
name = "other"
title = "tiny, and one variable more"
tags = ["other"]

[config.env]
MORE = "1"
"""


@pytest.fixture
def go(
    tiny: Tiny, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, Any]]:
    """Run a command with --json: its exit code, and its result or its error. pip finds the project's wheels only."""
    tiny.wheel_folder()
    only_own_wheels(tiny.root, monkeypatch)

    def call(verb: str, image: str, *words: str) -> tuple[int, Any]:
        capsys.readouterr()
        where = ["--project", str(tiny.root), *(["--cache", str(tiny.cache_path)] if verb != "plan" else [])]
        code = run([verb, image, *where, "--json", *words])
        document = json.loads(capsys.readouterr().out)
        return code, document.get("result") or document.get("error")

    return call


# extends


def test_a_variant_is_the_other_image_and_what_it_adds(tiny: Tiny, go: Callable[..., tuple[int, Any]]) -> None:
    (tiny.root / "locks/other.toml").write_text(VARIANT)
    assert go("lock", "other")[0] == 0
    code, built = go("build", "other", "--offline")
    assert (code, built["tags"]) == (0, ["other"])
    first = go("build", "tiny", "--offline")[1]
    own = {row["name"]: row["diff_id"] for row in built["layers"]}
    theirs = {row["name"]: row["diff_id"] for row in first["layers"]}
    assert {name for name in own if own[name] != theirs[name]} == {"imgbuild"}
    assert built["config"] != first["config"]
    plan = go("plan", "other")[1]
    assert plan["extends"] == "tiny"
    assert plan["config"]["env"] == {"PYTHONPATH": "/opt/tiny", "MORE": "1"}
    assert [layer["name"] for layer in plan["layers"]] == [layer["name"] for layer in go("plan", "tiny")[1]["layers"]]
    assert plan["tags"] == ["other"]


def test_a_change_of_the_other_definition_makes_the_lock_stale(tiny: Tiny, go: Callable[..., tuple[int, Any]]) -> None:
    (tiny.root / "locks/other.toml").write_text(VARIANT)
    assert go("lock", "other")[0] == 0
    path = tiny.root / "locks/tiny.toml"
    path.write_text(path.read_text() + "\n# changed\n")
    code, error = go("build", "other", "--offline")
    assert (code, error["code"]) == (3, "LOCK_STALE")
    assert "locks/tiny.toml differs" in error["problem"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (VARIANT.replace('"tiny"', '"other"', 1), "extends: leads in a circle: other -> other"),
        (VARIANT.replace('"tiny"', '"absent"', 1), "extends: there is no image 'absent'; there are tiny"),
        (VARIANT.replace('"tiny"', "7", 1), "extends: there is no image 7"),
        (VARIANT.replace('tags = ["other"]\n', ""), "tags"),
        (VARIANT.replace('title = "tiny, and one variable more"\n', ""), "title"),
    ],
)
def test_a_variant_that_cannot_be_read_is_refused(
    tiny: Tiny, go: Callable[..., tuple[int, Any]], text: str, problem: str
) -> None:
    (tiny.root / "locks/other.toml").write_text(text)
    code, error = go("plan", "other")
    assert code == 3
    assert problem in json.dumps(error)


# stand-ins


@pytest.fixture
def stand_in(tiny: Tiny) -> str:
    """A folder in which the base has another name."""
    folder = tiny.root / "stand-ins"
    folder.mkdir()
    base = '[base]\nreference = "localhost/test/other"\ntag = "base"\n'
    (folder / "tiny.toml").write_text(f'schema = "imgbuild/stand-in/v1"\n\n{base}')
    return str(folder)


def test_what_is_made_with_stand_ins_says_so_and_has_a_lock_of_its_own(
    tiny: Tiny, go: Callable[..., tuple[int, Any]], stand_in: str
) -> None:
    before = (tiny.root / "locks/tiny.lock.json").read_bytes()
    assert go("build", "tiny", "--stand-in", stand_in)[1]["code"] == "INPUT_INVALID"
    assert go("lock", "tiny", "--stand-in", stand_in)[0] == 0
    code, built = go("build", "tiny", "--stand-in", stand_in, "--offline")
    assert (code, built["tags"]) == (0, ["stand-in-tiny"])
    assert (tiny.root / "locks/tiny.lock.json").read_bytes() == before
    plan = go("plan", "tiny", "--stand-in", stand_in)[1]
    assert plan["base"] == "localhost/test/other"
    assert plan["config"]["labels"]["imgbuild.stand-in"] == "true"
    assert go("verify", "tiny", "--stand-in", stand_in, "--offline")[0] == 0
    assert go("plan", "tiny")[1]["tags"] == ["tiny"]


def test_commands_that_are_proposed_name_the_folder_of_the_stand_ins(
    tiny: Tiny,
    go: Callable[..., tuple[int, Any]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    stand_in: str,
) -> None:
    monkeypatch.chdir(tiny.root)
    lock, again = tiny.root / "stand-ins/tiny.lock.json", "`imgbuild lock tiny --stand-in stand-ins`"

    def printed(verb: str, *words: str) -> str:
        where = ["--project", str(tiny.root), *([] if verb == "plan" else ["--cache", str(tiny.cache_path)])]
        capsys.readouterr()
        run([verb, "tiny", *where, "--stand-in", stand_in, *words])
        return "".join(capsys.readouterr())

    assert again in printed("lock", "--check")
    assert again in printed("plan")
    for verb in ("build", "verify", "check"):
        assert again in printed(verb), verb
    assert "`imgbuild build tiny --stand-in stand-ins`" in printed("lock")
    raw = lock.read_bytes()
    lock.write_bytes(b"{")
    assert again in printed("build")
    value = json.loads(raw)
    complete = "`imgbuild lock tiny --stand-in stand-ins --complete`"
    for change, verb in (("result", "explain"), ("result", "verify"), ("facts", "verify")):
        tag = [] if verb == "explain" else ["--offline"]
        lock.write_bytes(raw)
        assert go("build", "tiny", "--stand-in", stand_in, "--offline")[0] == 0
        lock.write_bytes(dumped({key: item for key, item in value.items() if key not in {change, "result"}}))
        assert complete in printed(verb, *(["/etc/motd"] if verb == "explain" else []), "-v", *tag), (change, verb)
    lock.write_bytes(dumped({**value, "result": {**value["result"], "manifest": f"sha256:{'0' * 64}"}}))
    assert complete in printed("build", "--offline")
    commit_again(tiny, lambda folder: (folder / "boot.py").write_text("other\n"), amend=True)
    assert "`imgbuild lock tiny --stand-in stand-ins --update adapter`" in printed("check")


def test_a_proposed_command_does_what_it_says_where_it_is_typed(
    tiny: Tiny, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, stand_in: str
) -> None:
    tiny.wheel_folder()
    only_own_wheels(tiny.root, monkeypatch)
    folder = Path(stand_in).rename(tiny.root / "stand ins")
    cache = ["--cache", str(tiny.cache_path)]
    for place, shown in ((tiny.root, "'stand ins'"), (tiny.root / "layers/tiny-app", "'../../stand ins'")):
        monkeypatch.chdir(place)
        (folder / "tiny.lock.json").unlink(missing_ok=True)
        assert run(["build", "tiny", "--stand-in", os.path.relpath(folder), *cache]) == 3
        err = capsys.readouterr().err
        assert f"`imgbuild lock tiny --stand-in {shown}`" in err
        words = shlex.split(err.rpartition("`imgbuild ")[2].partition("`")[0])
        assert run([*words, *cache]) == 0, capsys.readouterr().err
        assert (folder / "tiny.lock.json").is_file()


def dumped(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False) + "\n").encode()


def test_stand_ins_do_not_leave_this_machine_and_take_no_other_tag(
    go: Callable[..., tuple[int, Any]], stand_in: str
) -> None:
    assert go("lock", "tiny", "--stand-in", stand_in)[0] == 0
    code, error = go("build", "tiny", "--stand-in", stand_in, "--push", "registry.example.test/tiny")
    assert (code, error["problem"]) == (2, "is for real images; stand-ins stay here")
    code, error = go("build", "tiny", "--stand-in", stand_in, "--push", "127.0.0.1:1/tiny", "--tag", "tiny")
    assert (code, error["problem"]) == (2, "names an image with stand-ins")


def test_stand_ins_that_are_elsewhere_or_none_are_refused(
    tiny: Tiny, go: Callable[..., tuple[int, Any]], stand_in: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert go("plan", "tiny", "--stand-in", str(tmp_path_factory.mktemp("elsewhere")))[0] == 2
    (tiny.root / "stand-ins/tiny.toml").unlink()
    code, error = go("plan", "tiny", "--stand-in", stand_in)
    assert (code, error["subject"]) == (3, "stand-ins/tiny.toml")


# patches out of a git source


@pytest.fixture
def patched(tiny: Tiny) -> Tiny:
    """The patches of `tiny-app` in the adapter's repository, with the states that upstream names."""
    return patches_of_a_commit(tiny)


def test_patches_of_a_commit_give_what_patches_of_the_repository_give(patched: Tiny) -> None:
    before = {row["path"]: row["states"] for row in locked(patched)["pins"]["files"] if row["step"] == "tiny-app/1"}
    relock(patched, "adapter")
    lock = locked(patched)
    after = {row["path"]: row["states"] for row in lock["pins"]["files"] if row["step"] == "tiny-app/1"}
    assert after == before
    (adapter,) = (row for row in lock["pins"]["sources"] if row["name"] == "adapter")
    assert sorted(adapter["evidence"]) == ["boot.py", "patches/1.patch"]
    assert adapter["evidence"]["patches/1.patch"] == str(Digest.of(FIRST_PATCH.encode()))


def refused(tiny: Tiny, go: Callable[..., tuple[int, Any]]) -> dict[str, Any]:
    tiny.write()
    before = (tiny.root / "locks/tiny.lock.json").read_bytes()
    code, error = go("lock", "tiny", "--offline")
    assert code in {3, 4, 5}
    assert (tiny.root / "locks/tiny.lock.json").read_bytes() == before
    found: dict[str, Any] = error
    return found


def test_a_file_that_is_not_what_upstream_says_is_refused_with_both_digests(
    patched: Tiny, go: Callable[..., tuple[int, Any]]
) -> None:
    text = patched.files["tiny-app/states.toml"].decode()
    real = text.split('"')[3]
    patched.files["tiny-app/states.toml"] = text.replace(real, f"sha256:{'0' * 64}", 1).encode()
    error = refused(patched, go)
    assert error["problem"] == "is not what upstream says it to be before the first patch"
    assert (error["expected"], error["actual"]) == (f"sha256:{'0' * 64}", real)
    assert error["where"] == "layers/tiny-app/states.toml"


def test_a_state_between_two_patches_that_upstream_does_not_name_is_refused(
    patched: Tiny, go: Callable[..., tuple[int, Any]]
) -> None:
    rows = patched.files["tiny-app/states.toml"].decode().splitlines()
    named = {json.loads(row.partition(" = ")[0]): json.loads(row.partition(" = ")[2]) for row in rows}
    first, middle, last = named["app/auth.py"]
    patched.files["tiny-app/states.toml"] = states_text({**named, "app/auth.py": [first, last, middle]})
    error = refused(patched, go)
    assert "is not what upstream says it to be after patch patches/1.patch of source adapter" in error["problem"]
    assert (error["expected"], error["actual"]) == (last, middle)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"digests": {"patches/1.patch": f"sha256:{'1' * 64}"}}, "has another file than the definition knows"),
        ({"digests": {"patches/absent": f"sha256:{'1' * 64}"}}, "has no such file"),
        ({"evidence": ["nothing/there"]}, "has no such file"),
        ({"commit": "0" * 40}, ""),
    ],
)
def test_a_commit_without_what_the_definition_knows_is_refused(
    patched: Tiny, go: Callable[..., tuple[int, Any]], change: dict[str, Any], says: str
) -> None:
    patched.image["sources"]["adapter"] |= change
    assert says in refused(patched, go)["problem"]


def test_a_stage_that_the_commit_does_not_have_is_refused(patched: Tiny, go: Callable[..., tuple[int, Any]]) -> None:
    patched.layers["tiny-app"][0]["stages"] = ["patches/1.patch", "patches/3.patch"]
    error = refused(patched, go)
    assert (error["problem"], error["expected"]) == ("has no such file", "patches/3.patch")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b'"app/auth.py" = ["absent"]',
        b'"app/auth.py" = "absent"',
        b"x = [1, 2]",
        b"[",
        b'"app/auth.py" = ["absent", "absent"]',
    ],
)
def test_a_file_of_states_that_does_not_name_just_the_files_of_the_step_is_refused(
    patched: Tiny, go: Callable[..., tuple[int, Any]], text: bytes
) -> None:
    patched.files["tiny-app/states.toml"] = text
    patched.write()
    assert go("lock", "tiny", "--offline")[0] == 3


def test_a_stage_that_upstream_has_and_the_step_lacks_is_refused(
    patched: Tiny, go: Callable[..., tuple[int, Any]]
) -> None:
    patched.layers["tiny-app"][0]["stages"] = ["patches/1.patch"]
    patched.layers["tiny-app"][0]["files"] = ["app/auth.py"]
    rows = patched.files["tiny-app/states.toml"].decode().splitlines(keepends=True)
    patched.files["tiny-app/states.toml"] = "".join(row for row in rows if "auth" in row).encode()
    assert refused(patched, go)["problem"] == "is not in the last state that upstream names"


@pytest.mark.parametrize("name", ["boot.py", "patches/1.patch"])
def test_digests_of_single_files_that_an_edited_lock_has_are_compared_with_the_commit(
    patched: Tiny, go: Callable[..., tuple[int, Any]], name: str
) -> None:
    relock(patched, "adapter")
    value = locked(patched)
    del value["result"]
    source(value, "adapter")["evidence"][name] = f"sha256:{'1' * 64}"
    forge(patched, value)
    for words in (["build", "tiny"], ["lock", "tiny", "--complete"]):
        code, error = go(*words, "--offline")
        assert code in {3, 4}, words
        assert name in json.dumps(error) or "made for something else" in json.dumps(error)


def test_a_wheel_that_is_known_by_another_digest_is_refused(tiny: Tiny, go: Callable[..., tuple[int, Any]]) -> None:
    helper = {"kind": "wheel", "name": "helper", "version": "1.0", "platforms": ["any"], "python": "3.12"}
    right = source(locked(tiny), "helper")["digest"]
    tiny.image["sources"] = {"helper": {**helper, "digest": right}}
    tiny.write()
    assert go("lock", "tiny")[0] == 0
    tiny.image["sources"] = {"helper": {**helper, "digest": f"sha256:{'1' * 64}"}}
    tiny.write()
    code, error = go("lock", "tiny")
    assert (code, error["problem"]) == (4, "is another file than the definition knows")
    assert (error["expected"], error["actual"]) == (f"sha256:{'1' * 64}", right)


def test_outputs_of_stand_ins_take_no_other_name(tiny: Tiny, go: Callable[..., tuple[int, Any]], stand_in: str) -> None:
    assert go("lock", "tiny", "--stand-in", stand_in)[0] == 0
    for name in ("docker.io/library/tiny:real", "localhost/other:stand-in-tiny", "localhost/tiny:tiny"):
        words = ["--output", f"docker-archive:{tiny.root}/x.tar:{name}", "--offline"]
        code, error = go("build", "tiny", "--stand-in", stand_in, *words)
        assert (code, error["problem"]) == (2, "names an image with stand-ins")
    assert go("build", "tiny", "--stand-in", stand_in, "--output", f"oci:{tiny.root}/x:tiny", "--offline")[0] == 2
    words = ["--output", f"docker-archive:{tiny.root}/x.tar", "--offline"]
    assert go("build", "tiny", "--stand-in", stand_in, *words)[0] == 0


@pytest.mark.parametrize("line", ["sources = 5", "sources = [1]", "tags = 5", "config = 5", "config.labels = 5"])
def test_a_definition_of_the_wrong_shape_is_refused_with_stand_ins_as_without(
    tiny: Tiny, go: Callable[..., tuple[int, Any]], stand_in: str, line: str
) -> None:
    path = tiny.root / "locks/tiny.toml"
    value = tomllib.loads(path.read_text())
    key = line.partition(" ")[0].partition(".")[0]
    rest = "".join(f"{name} = {json.dumps(item)}\n" for name, item in value.items() if isinstance(item, str | int))
    path.write_text(f"{rest.replace(f'{key} =', '#')}{line}\n")
    for words in ([], ["--stand-in", stand_in]):
        code, error = go("plan", "tiny", *words)
        assert (code, error["code"]) == (3, "DOCUMENT_INVALID")


def test_a_parent_of_another_schema_is_refused_and_a_chain_ends(tiny: Tiny, go: Callable[..., tuple[int, Any]]) -> None:
    (tiny.root / "locks/other.toml").write_text(VARIANT)
    path = tiny.root / "locks/tiny.toml"
    text = path.read_text()
    path.write_text(text.replace("imgbuild/image/v1", "imgbuild/image/v9"))
    code, error = go("plan", "other")
    assert (code, error["subject"]) == (3, "locks/tiny.toml")
    path.write_text(text)
    for number in range(20):
        parent = "tiny" if not number else f"v{number - 1}"
        text = VARIANT.replace('"tiny"', f'"{parent}"').replace('name = "other"', f'name = "v{number}"')
        (tiny.root / f"locks/v{number}.toml").write_text(text)
    assert go("plan", "v7")[0] == 0
    code, error = go("plan", "v19")
    assert (code, "leads on and on" in error["message"]) == (3, True)


def test_the_way_a_folder_of_stand_ins_is_written_does_not_matter(
    tiny: Tiny, go: Callable[..., tuple[int, Any]], stand_in: str
) -> None:
    assert go("lock", "tiny", "--stand-in", f"{tiny.root}/layers/../stand-ins")[0] == 0
    (tiny.root / "link").symlink_to("stand-ins")
    code, built = go("build", "tiny", "--stand-in", f"{tiny.root}/link", "--offline")
    assert (code, built["tags"]) == (0, ["stand-in-tiny"])
