from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from imgbuild.adapters.project import Project
from imgbuild.digest import Digest
from imgbuild.errors import DocumentError, ImgbuildError, InputError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.tiny import Tiny


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_the_nearest_folder_upwards_with_locks_and_layers_is_the_project(tiny: Tiny, tmp_path: Path) -> None:
    deep = tiny.root / "layers" / "tiny-app" / "patches"
    assert Project.find(deep).root == tiny.root
    with pytest.raises(UsageError, match="is not inside a folder with locks/ and layers/") as caught:
        Project.find(tmp_path)
    assert "--project" in str(caught.value.hint)


def test_every_file_that_was_read_is_an_input_with_its_digest(tiny: Tiny) -> None:
    found = tiny.project().load("tiny")
    names = [item.name for item in found.inputs]
    assert names == [
        "locks/tiny.toml",
        "layers/tiny-packages/layer.toml",
        "layers/tiny-adapter/layer.toml",
        "layers/tiny-adapter/files/entry.sh",
        "layers/tiny-app/layer.toml",
        "layers/tiny-app/patches/1.patch",
        "layers/tiny-app/patches/2.patch",
        "layers/tiny-nccl/layer.toml",
    ]
    for item in found.inputs:
        assert item.digest == Digest.of((tiny.root / item.name).read_bytes())
    assert found.inputs_digest == tiny.lock().inputs_digest


def test_one_changed_byte_of_any_input_changes_the_digest_of_all(tiny: Tiny) -> None:
    seen = {tiny.project().load("tiny").inputs_digest}
    names = [item.name for item in tiny.project().load("tiny").inputs]
    for name in names:
        with (tiny.root / name).open("ab") as file:
            file.write(b"\n")
        seen.add(tiny.project().load("tiny").inputs_digest)
    assert len(seen) == len(names) + 1


def test_an_image_that_is_not_defined_names_those_that_are(tiny: Tiny) -> None:
    for name in ("other", "../locks/tiny", "", "tiny.toml"):
        with pytest.raises(UsageError, match="is not defined") as caught:
            tiny.project().load(name)
        assert caught.value.hint == "defined: tiny"


def test_a_definition_under_another_name_than_its_own_is_refused(tiny: Tiny) -> None:
    (tiny.root / "locks" / "tiny.toml").rename(tiny.root / "locks" / "small.toml")
    with pytest.raises(DocumentError, match="the file's name says 'small'"):
        tiny.project().load("small")


@pytest.mark.parametrize(
    "name",
    ["locks/tiny.toml", "locks/tiny.lock.json", "layers/tiny-app/layer.toml", "layers/tiny-app/patches/1.patch"],
)
@pytest.mark.parametrize("kind", ["absolute", "relative", "folder above", "circle"])
def test_C63_a_link_that_leaves_the_project_is_refused_whatever_file_it_stands_for(
    tiny: Tiny, tmp_path: Path, name: str, kind: str
) -> None:
    path = tiny.root / name
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / path.name).write_bytes(path.read_bytes())
    path.unlink()
    if kind == "absolute":
        path.symlink_to(outside / path.name)
    elif kind == "relative":
        path.symlink_to(os.path.relpath(outside / path.name, path.parent))
    elif kind == "circle":
        path.symlink_to(path.name)
    else:
        siblings = [item for item in path.parent.iterdir() if item != path]
        for item in siblings:
            item.rename(outside / item.name)
        path.parent.rmdir()
        path.parent.symlink_to(outside)
    project = tiny.project()
    if kind == "circle" and name.endswith(".lock.json"):
        # It leads nowhere, so there is no lock; that a link is there does not matter.
        assert project.lock("tiny") is None
        return
    with pytest.raises(InputError, match="is a link that") as caught:
        project.lock("tiny") if name.endswith(".json") else project.load("tiny")
    assert "/" not in caught.value.subject[:1]


def test_a_link_inside_of_the_project_is_read(tiny: Tiny) -> None:
    path = tiny.root / "layers" / "tiny-app" / "patches" / "1.patch"
    before = tiny.project().load("tiny").inputs_digest
    path.rename(tiny.root / "kept.patch")
    path.symlink_to("../../../kept.patch")
    assert tiny.project().load("tiny").inputs_digest == before


@pytest.mark.parametrize("kind", ["folder", "pipe", "absent"])
def test_an_input_that_is_no_regular_file_is_refused_without_waiting(tiny: Tiny, kind: str) -> None:
    path = tiny.root / "layers" / "tiny-adapter" / "files" / "entry.sh"
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    with pytest.raises(InputError) as caught:
        tiny.project().load("tiny")
    assert caught.value.subject == "layers/tiny-adapter/files/entry.sh"


def test_an_input_of_more_bytes_than_may_be_is_refused_unread(tiny: Tiny) -> None:
    path = tiny.root / "layers" / "tiny-adapter" / "files" / "entry.sh"
    with path.open("r+b") as file:
        file.truncate(2**40)
    with pytest.raises(InputError, match="is too large"):
        tiny.project().load("tiny")


@pytest.mark.parametrize(
    "text",
    ['title = "a"\ntitle = "b"', "x = [", "\0", "x = " + "[" * 5000, "x = 1e", 'schema = "\\uD800"'],
    ids=["a key twice", "cut", "NUL", "deep", "half a number", "surrogate"],
)
def test_what_is_not_toml_is_a_document_error_that_names_the_file(tiny: Tiny, text: str) -> None:
    (tiny.root / "locks" / "tiny.toml").write_text(text)
    with pytest.raises(DocumentError, match=r"^locks/tiny\.toml: "):
        tiny.project().load("tiny")


def test_what_is_not_utf_8_is_a_document_error(tiny: Tiny) -> None:
    (tiny.root / "layers" / "tiny-app" / "layer.toml").write_bytes(b'title = "\xff"')
    with pytest.raises(DocumentError, match=r"^layers/tiny-app/layer\.toml: is not TOML"):
        tiny.project().load("tiny")


@pytest.mark.parametrize("value", ["nan", "inf", "1.5", "2020-01-01", "true", '"1"', "-1", "8589934592", "[]", "{}"])
def test_an_epoch_that_is_none_is_one_problem_with_its_path(tiny: Tiny, value: str) -> None:
    replace(tiny.root / "locks" / "tiny.toml", "epoch = 1700000000", f"epoch = {value}")
    with pytest.raises(DocumentError) as caught:
        tiny.project().load("tiny")
    assert {problem.partition(":")[0] for problem in caught.value.problems} == {"epoch"}


@pytest.mark.parametrize("name", ["../tiny-app", "/etc", "a/b", "tiny-app\\n", "Tiny", ""])
def test_a_layer_name_cannot_lead_elsewhere(tiny: Tiny, name: str) -> None:
    replace(tiny.root / "locks" / "tiny.toml", '"tiny-app"', f'"{name}"')
    with pytest.raises(DocumentError, match="layers"):
        tiny.project().load("tiny")


@pytest.mark.parametrize("source", ["../../locks/tiny.toml", "/etc/passwd", "files/../../x", "", "a\\u0000b", "./a"])
def test_a_file_of_a_layer_cannot_lie_elsewhere(tiny: Tiny, source: str) -> None:
    replace(tiny.root / "layers" / "tiny-adapter" / "layer.toml", '"files/entry.sh"', f'"{source}"')
    with pytest.raises(ImgbuildError) as caught:
        tiny.project().load("tiny")
    assert caught.value.exit_code == 3


def test_without_a_lock_there_is_none(tiny: Tiny) -> None:
    tiny.project().lock_path("tiny").unlink()
    assert tiny.project().lock("tiny") is None


def test_a_lock_that_is_required_and_not_there_is_an_error_that_says_how_to_make_it(tiny: Tiny) -> None:
    assert tiny.project().require_lock("tiny") == tiny.lock()
    tiny.project().lock_path("tiny").unlink()
    with pytest.raises(InputError, match=r"locks/tiny\.lock\.json: is not there") as caught:
        tiny.project().require_lock("tiny")
    assert caught.value.hint == "run `imgbuild lock tiny`"


def test_layers_that_are_not_there_are_named_with_their_place_and_with_those_that_are(tiny: Tiny) -> None:
    tiny.image = {"layers": ["tiny-file", "tiny-app", "tiny-more"]}
    tiny.write()
    with pytest.raises(DocumentError) as caught:
        tiny.project().load("tiny")
    there = "there are tiny-adapter, tiny-app, tiny-nccl, tiny-packages"
    assert caught.value.subject == "locks/tiny.toml"
    assert caught.value.problems == (
        f"layers[0]: there is no layer 'tiny-file'; {there}",
        f"layers[2]: there is no layer 'tiny-more'; {there}",
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"{\n<<<<<<< HEAD\n}\n", "has a conflict marker of git in line 2"),
        (b'{\n  "a": 1\n>>>>>>> 1a2b3c4 (update)\n}\n', "has a conflict marker of git in line 3"),
    ],
)
def test_a_lock_that_is_empty_or_half_merged_is_called_so(tiny: Tiny, text: bytes, problem: str) -> None:
    tiny.project().lock_path("tiny").write_bytes(text)
    with pytest.raises(DocumentError, match=problem) as caught:
        tiny.project().lock("tiny")
    assert caught.value.hint is not None
    assert "imgbuild lock tiny" in caught.value.hint
