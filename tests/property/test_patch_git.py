"""The patch applier against the real `git` and GNU `diff` (cases P22, P63; git apply and GNU patch, class E)."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from imgbuild.content.patch import FilePatch, apply_edit, apply_file, parse_patch
from imgbuild.errors import PatchError, StepError

BOUNDED = settings(
    max_examples=50,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
MANY = settings(BOUNDED, max_examples=200)

# Few different lines, so that repeated blocks and wrong places are common.
WORDS = st.sampled_from(
    [b"a", b"b", b"c", b"}", b"", b" ", b"-- x", b"++ y", b"@@ -1 +1 @@", b"\\ No", b"\xc3\xa4", b"\xff", b"\t"]
)
ENDS = st.sampled_from([b"\n"] * 8 + [b"\r\n"])
LINE = st.builds(lambda word, end: word + end, WORDS, ENDS)
NUMBERED = st.integers(4, 40).map(lambda count: [b"line %d\n" % number for number in range(count)])
BODY = st.one_of(st.lists(LINE, max_size=25), NUMBERED)
TAIL = st.sampled_from([b"", b"", b"", b"end", b"a\r"])


@st.composite
def edited(draw: st.DrawFn, lines: list[bytes], most: int = 5) -> list[bytes]:
    """Some lines inserted, removed, replaced, or a block of them repeated."""
    lines = list(lines)
    for _ in range(draw(st.integers(0, most))):
        at = draw(st.integers(0, len(lines)))
        kind = draw(st.sampled_from(["insert", "remove", "replace", "repeat"]))
        if kind == "insert":
            lines[at:at] = draw(st.lists(LINE, min_size=1, max_size=3))
        elif kind == "remove":
            del lines[at : at + draw(st.integers(1, 3))]
        elif kind == "replace":
            lines[at : at + 1] = [draw(LINE)]
        else:
            lines[at:at] = lines[max(0, at - draw(st.integers(1, 8))) : at]
    return lines


@st.composite
def texts(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A file before and after."""
    lines = draw(BODY)
    return b"".join(lines) + draw(TAIL), b"".join(draw(edited(lines))) + draw(TAIL)


@st.composite
def moved(draw: st.DrawFn) -> tuple[bytes, bytes, bytes]:
    """A file before, after, and the file as a newer base has it."""
    lines = draw(BODY)
    tail = draw(TAIL)
    after = b"".join(draw(edited(lines))) + draw(TAIL)
    base = b"".join(draw(edited(lines, most=2))) + draw(st.sampled_from([tail, tail, b"", b"end"]))
    return b"".join(lines) + tail, after, base


MAYBE_FILE = st.one_of(st.none(), st.lists(LINE, max_size=6).map(b"".join))
DIFF_OPTIONS = st.sampled_from([("-U3",), ("-U1",), ("-U10",), ("-U3", "--patience"), ("-U2", "--histogram"), ("-W",)])


def git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run git without anyone's configuration and outside of any repository."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CEILING_DIRECTORIES": str(folder.parent),
    }
    return subprocess.run(
        ["git", "-c", "core.quotePath=true", *arguments], cwd=folder, env=environment, capture_output=True, check=False
    )


def write(folder: Path, files: dict[str, bytes | None]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        if data is not None:
            (folder / name).write_bytes(data)


def git_diff(folder: Path, *options: str) -> bytes:
    """The diff of folders a and b, with names a/NAME and b/NAME."""
    arguments = ("diff", "--no-index", "--no-prefix", "--no-color", "--text", "--no-renames", *options, "a", "b")
    return git(folder, *arguments).stdout


def split(patch: bytes) -> list[bytes]:
    """The parts of a git diff, one per file; no content line can begin with the separator."""
    return re.split(rb"(?m)^(?=diff --git )", patch)[1:]


def apply_all(patch: bytes, before: dict[str, bytes | None]) -> dict[str, bytes | None]:
    after = dict(before)
    for file in parse_patch(patch, subject="the patch") if patch else ():
        result = apply_file(file, before[file.path.decode()], subject="the patch")
        assert set(result.offsets) <= {0}
        after[file.path.decode()] = result.data
    return after


@BOUNDED
@given(
    pairs=st.lists(st.one_of(texts(), st.tuples(MAYBE_FILE, MAYBE_FILE)), min_size=4, max_size=8), options=DIFF_OPTIONS
)
def test_P63_what_git_diff_says_is_applied_to_the_same_bytes_as_git_apply(
    pairs: list[tuple[bytes | None, bytes | None]], options: tuple[str, ...]
) -> None:
    names = ["f 0", "f\t1", "f2", "f\xe43", 'f"4', "f5", "f\\6", "f\n7"]
    before = {name: pair[0] for name, pair in zip(names, pairs, strict=False)}
    after = {name: pair[1] for name, pair in zip(names, pairs, strict=False)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "a", before)
        write(folder / "b", after)
        patch = git_diff(folder, *options)
        assert apply_all(patch, before) == after
        if patch:
            (folder / "patch").write_bytes(patch)
            applied = git(folder / "a", "apply", "../patch")
            assert applied.returncode == 0, applied.stderr
            by_git = {key: (folder / "a" / key).read_bytes() for key in names if (folder / "a" / key).is_file()}
            assert by_git == {key: data for key, data in after.items() if data is not None}


@BOUNDED
@given(pairs=st.lists(texts(), min_size=3, max_size=6))
def test_what_plain_diff_says_is_applied_with_new_and_deleted_files(pairs: list[tuple[bytes, bytes]]) -> None:
    before: dict[str, bytes | None] = {f"f{number}": pair[0] for number, pair in enumerate(pairs)}
    after: dict[str, bytes | None] = {f"f{number}": pair[1] for number, pair in enumerate(pairs)}
    before["new one"], after["new one"] = None, pairs[0][1] + b"!"
    before["old one"], after["old one"] = pairs[0][0] + b"!\n", None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "a", before)
        write(folder / "b", after)
        environment = {"PATH": os.environ["PATH"], "LC_ALL": "C", "TZ": "America/New_York"}
        made = subprocess.run(
            ["diff", "-ruN", "--text", "a", "b"], cwd=folder, env=environment, capture_output=True, check=False
        )
        assert apply_all(made.stdout, before) == after


def ours(patch: bytes, base: bytes) -> tuple[bytes | None, str]:
    """The result, or None and the reason."""
    try:
        (file,) = parse_patch(patch, subject="the patch")
        return apply_file(file, base, subject="the patch").data, ""
    except PatchError as error:
        return None, error.problem


STRICTER = ("is not unique", "is already applied", "changes nothing", "stands before the hunk", "belongs at the")


@BOUNDED
@given(cases=st.lists(moved(), min_size=4, max_size=6), options=DIFF_OPTIONS)
def test_P63_on_a_moved_base_we_give_the_bytes_of_git_apply_or_refuse(
    cases: list[tuple[bytes, bytes, bytes]], options: tuple[str, ...]
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "a", {f"f{number}": case[0] for number, case in enumerate(cases)})
        write(folder / "b", {f"f{number}": case[1] for number, case in enumerate(cases)})
        for patch in split(git_diff(folder, *options)):
            (file,) = parse_patch(patch, subject="the patch")
            target = folder / "a" / file.path.decode()
            base = cases[int(file.path[1:])][2]
            target.write_bytes(base)
            (folder / "patch").write_bytes(patch)
            applied = git(folder / "a", "apply", "../patch")
            result, reason = ours(patch, base)
            if applied.returncode:
                assert result is None, "git apply refuses and we do not"
            elif result is None:
                assert any(words in reason for words in STRICTER), reason
            else:
                assert result == target.read_bytes()


@BOUNDED
@given(cases=st.lists(texts(), min_size=4, max_size=6), data=st.data())
def test_a_damaged_patch_is_refused_whenever_git_apply_refuses_it(
    cases: list[tuple[bytes, bytes]], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "a", {f"f{number}": case[0] for number, case in enumerate(cases)})
        write(folder / "b", {f"f{number}": case[1] for number, case in enumerate(cases)})
        for patch in split(git_diff(folder)):
            (file,) = parse_patch(patch, subject="the patch")
            lines = patch.splitlines(keepends=True)
            at = data.draw(st.integers(4, len(lines) - 1))
            lines[at : at + 1] = data.draw(
                st.sampled_from(
                    [[], [lines[at]] * 2, [b" other\n"], [b"+other\n"], [b"-other\n"], [b"junk\n"], [b"\n"]]
                )
            )
            damaged = b"".join(lines)
            target = folder / "a" / file.path.decode()
            base = target.read_bytes()
            (folder / "patch").write_bytes(damaged)
            applied = git(folder / "a", "apply", "../patch")
            result, _ = ours(damaged, base)
            if result is not None:
                assert applied.returncode == 0, applied.stderr
                assert result == target.read_bytes()


def one_patch(before: bytes, after: bytes) -> FilePatch:
    """A patch with one hunk that has the whole of both sides, made without a program."""

    def side(sign: bytes, text: bytes) -> bytes:
        lines = [sign + line + b"\n" for line in text.split(b"\n")]
        if lines[-1] == sign + b"\n":
            return b"".join(lines[:-1])
        return b"".join(lines) + b"\\ No newline at end of file\n"

    old, new = side(b"-", before), side(b"+", after)
    counts = [text.count(b"\n") + (not text.endswith(b"\n") and text != b"") for text in (before, after)]
    starts = [min(count, 1) for count in counts]
    head = b"--- a/f\n+++ b/f\n@@ -%d,%d +%d,%d @@\n" % (starts[0], counts[0], starts[1], counts[1])
    (patch,) = parse_patch(head + old + new, subject="the patch")
    return patch


@MANY
@given(pair=texts())
def test_P22_a_patch_is_refused_on_its_own_result(pair: tuple[bytes, bytes]) -> None:
    before, after = pair
    if before == after:
        return
    patch = one_patch(before, after)
    assert apply_file(patch, before, subject="the patch").data == after
    with pytest.raises(PatchError):
        apply_file(patch, after, subject="the patch")


@MANY
@given(data=st.one_of(st.binary(max_size=200), st.lists(LINE, max_size=30).map(b"".join)), cut=st.integers(0, 400))
def test_any_bytes_are_parsed_or_refused_with_our_error(data: bytes, cut: int) -> None:
    real = b"diff --git a/f b/f\nindex 1..2 100644\n--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@ x\n a\n-b\n+c\n\\ No newline\n"
    for patch in (data, real[:cut] + data, real[:cut] + data + real[cut:]):
        try:
            for file in parse_patch(patch, subject="the patch"):
                apply_file(file, data, subject="the patch")
        except PatchError:
            continue


@MANY
@given(text=st.text("ab\n", max_size=40), find=st.text("ab\n", max_size=3), new=st.text("ab\n", max_size=3))
def test_P22_an_edit_changes_exactly_the_declared_places_or_is_refused(text: str, find: str, new: str) -> None:
    before, old, replacement = text.encode(), find.encode(), new.encode()
    for count in range(4):
        try:
            after = apply_edit(before, find=old, replace=replacement, count=count, subject="step", where="f")
        except StepError:
            continue
        assert after != before
        assert after == replacement.join(before.split(old))
        assert before.count(old) == count
