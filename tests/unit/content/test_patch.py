"""The patch applier and the anchored edit by example (cases P22, P63, P64; git apply and GNU patch, class E)."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from imgbuild.config import DEFAULT_LIMITS
from imgbuild.content import patch as patch_module
from imgbuild.content.patch import Applied, FilePatch, apply_edit, apply_file, parse_patch
from imgbuild.errors import PatchError, StepError

TEN = b"".join(b"line %d\n" % number for number in range(1, 11))
NAMES = b"--- a/f\n+++ b/f\n"
FIVE = NAMES + b"@@ -4,3 +4,3 @@\n line 4\n-line 5\n+line five\n line 6\n"
NO_NEWLINE = b"\\ No newline at end of file\n"


def parse(data: bytes, strip: int = 1) -> tuple[FilePatch, ...]:
    return parse_patch(data, subject="fix.diff", strip=strip)


def one(data: bytes, strip: int = 1) -> FilePatch:
    (patch,) = parse(data, strip)
    return patch


def run(data: bytes, before: bytes | None) -> Applied:
    return apply_file(one(data), before, subject="fix.diff")


def refusal(data: bytes, before: bytes | None = b"", strip: int = 1) -> PatchError:
    def work() -> None:
        for patch in parse(data, strip):
            apply_file(patch, before, subject="fix.diff")

    with pytest.raises(PatchError) as caught:
        work()
    assert caught.value.subject == "fix.diff"
    assert caught.value.where
    return caught.value


# Where hunks go.


def test_a_hunk_at_its_line_has_offset_zero() -> None:
    assert run(FIVE, TEN) == Applied(data=TEN.replace(b"line 5", b"line five"), offsets=(0,))


@pytest.mark.parametrize(("base", "offset"), [(b"new\n" * 3 + TEN, 3), (TEN.removeprefix(b"line 1\nline 2\n"), -2)])
def test_P63_a_moved_hunk_is_applied_where_its_text_is_unique_and_the_offset_is_told(base: bytes, offset: int) -> None:
    assert run(FIVE, base) == Applied(data=base.replace(b"line 5", b"line five"), offsets=(offset,))


def test_P63_a_moved_hunk_whose_text_stands_twice_is_refused_with_both_lines() -> None:
    error = refusal(FIVE, b"new\n" + TEN + TEN)
    assert error.problem == "hunk 1 is not at its stated line, and the place is not unique"
    assert (error.expected, error.actual) == ("line 4", "lines 5 and 15")


def test_a_hunk_at_its_stated_line_is_applied_there_though_its_text_stands_twice() -> None:
    assert run(FIVE, TEN + TEN).data == TEN.replace(b"line 5", b"line five") + TEN


def test_old_text_in_the_middle_of_a_line_is_no_match() -> None:
    base = b"new\n" + TEN.replace(b"line 4", b"xline 4")
    assert refusal(FIVE, base).problem == "hunk 1 does not match: line 4 is not what the patch expects"


def test_after_a_moved_hunk_the_next_must_be_unique_even_at_its_stated_line() -> None:
    block = b"p\nq\nr\n"
    patch = NAMES + b"@@ -4,3 +4,3 @@\n line 4\n-line 5\n+line five\n line 6\n@@ -11,3 +11,3 @@\n p\n-q\n+Q\n r\n"
    assert run(patch, TEN + block).offsets == (0, 0)
    assert run(patch, b"new\n" + TEN + block).offsets == (1, 1)
    base = b"new\nnew\nnew\n" + TEN[:49] + block + TEN[49:] + block
    assert "hunk 2 is not at its stated line, and the place is not unique" in refusal(patch, base).problem


def test_a_hunk_whose_two_line_numbers_disagree_must_be_unique() -> None:
    patch = FIVE.replace(b"+4,3", b"+9,3")
    assert run(patch, TEN).offsets == (0,)
    assert "not unique" in refusal(patch, TEN + TEN).problem


def test_a_hunk_is_never_applied_before_the_hunk_before_it() -> None:
    patch = (
        NAMES
        + b"@@ -4,3 +4,3 @@\n line 4\n-line 5\n+line five\n line 6\n@@ -8,2 +8,2 @@\n-line 8\n+line eight\n line 9\n"
    )
    base = b"line 8\nline 9\n" + TEN.replace(b"line 8\n", b"")
    assert refusal(patch, base).problem == "hunk 2 stands before the hunk before it"


def test_a_hunk_of_line_one_belongs_at_the_start() -> None:
    patch = NAMES + b"@@ -1,2 +1,2 @@\n-line 1\n+line one\n line 2\n"
    assert run(patch, TEN).offsets == (0,)
    assert "belongs at the start of the file" in refusal(patch, b"new\n" + TEN).problem


def test_a_hunk_without_context_after_its_change_belongs_at_the_end() -> None:
    patch = NAMES + b"@@ -9,2 +9,3 @@\n line 9\n line 10\n+line 11\n"
    assert run(patch, TEN).data == TEN + b"line 11\n"
    assert run(patch, b"new\n" + TEN).offsets == (1,)
    assert "belongs at the end of the file" in refusal(patch, TEN + b"more\n").problem


def test_an_insertion_without_any_context_is_refused() -> None:
    assert "hunk 1 has no context" in refusal(NAMES + b"@@ -5,0 +6 @@\n+new\n", TEN).problem
    assert "hunk 1 has no context" in refusal(NAMES + b"@@ -0,0 +1 @@\n+new\n", TEN).problem


# Refusals when applying.


def test_P63_a_context_that_differs_is_refused_with_hunk_line_expected_and_actual() -> None:
    error = refusal(FIVE, TEN.replace(b"line 6", b"line \x1b[31m6"))
    assert error.problem == "hunk 1 does not match: line 6 is not what the patch expects"
    assert error.expected == "'line 6'"
    assert error.actual == "'line \\x1b[31m6'"
    assert error.where == "'f'"


def test_P63_a_difference_of_line_endings_is_named() -> None:
    error = refusal(FIVE, TEN.replace(b"\n", b"\r\n"))
    assert error.hint == "only white space or the line ending differs"
    assert error.actual == "'line 4\\r'"


def test_P63_a_file_that_ends_early_is_refused() -> None:
    assert refusal(FIVE, TEN[:35]).actual == "the end of the file"
    assert refusal(FIVE, b"other\n").problem == "hunk 1 does not match"


def test_P63_the_difference_in_a_long_line_is_what_is_shown() -> None:
    long = b"x" * 100_000
    error = refusal(NAMES + b"@@ -4 +4 @@\n-" + long + b"A\n+B\n", b"a\nb\nc\n" + long + b"C\n")
    assert error.expected is not None
    assert error.expected.endswith("xA'")
    assert error.actual is not None
    assert error.actual.endswith("xC'")
    assert len(error.expected) < 200


@pytest.mark.parametrize(
    "patch",
    [
        FIVE,
        NAMES + b"@@ -4,3 +4,2 @@\n line 4\n-line 5\n line 6\n",
        NAMES + b"@@ -4,2 +4,3 @@\n line 4\n+line 4 and a half\n line 5\n",
        NAMES + b"@@ -1,2 +1,3 @@\n+line 0\n line 1\n line 2\n",
        NAMES + b"@@ -1,2 +1 @@\n-line 1\n line 2\n",
        NAMES + b"@@ -9,2 +9,3 @@\n line 9\n line 10\n+line 11\n",
        NAMES + b"@@ -10 +10 @@\n-line 10\n+line 10\n" + NO_NEWLINE,
    ],
)
def test_P22_a_patch_that_is_already_applied_is_refused_by_that_name(patch: bytes) -> None:
    once = run(patch, TEN).data
    assert "hunk 1 is already applied: its new text stands at line" in refusal(patch, once).problem


def test_P22_a_patch_that_is_already_applied_elsewhere_is_refused_by_that_name() -> None:
    error = refusal(FIVE, b"new\n" + TEN.replace(b"line 5", b"line five"))
    assert error.problem == "hunk 1 is already applied: its new text stands at line 5"


def test_P22_an_addition_at_the_end_that_is_applied_elsewhere_is_refused_by_that_name() -> None:
    patch = NAMES + b"@@ -9,2 +9,3 @@\n line 9\n line 10\n+line 11\n"
    error = refusal(patch, b"new\n" + TEN + b"line 11\n")
    assert error.problem == "hunk 1 is already applied: its new text stands at line 10"


def test_P22_new_text_at_the_stated_line_is_already_applied_though_old_text_stands_elsewhere() -> None:
    base = TEN.replace(b"line 5", b"line five") + TEN
    assert "hunk 1 is already applied" in refusal(FIVE, base).problem


def test_P22_hunks_that_cancel_each_other_are_refused() -> None:
    patch = NAMES + b"@@ -2,2 +2 @@\n x\n-x\n x\n@@ -5,2 +4,3 @@\n x\n+x\n x\n"
    patch = patch.replace(b"-2,2 +2 ", b"-2,3 +2,2 ")
    assert "changes nothing: the file is the same" in refusal(patch, b"a\n" + b"x\n" * 7 + b"b\n").problem


def test_P64_nothing_is_returned_when_the_second_hunk_fails() -> None:
    patch = FIVE + b"@@ -8,2 +8,2 @@\n-line 8\n+line eight\n other\n"
    error = refusal(patch, TEN)
    assert error.problem == "hunk 2 does not match: line 9 is not what the patch expects"


def test_a_file_that_does_not_exist_is_refused() -> None:
    assert refusal(FIVE, None).problem == "changes a file that does not exist"


def test_too_large_files_patches_and_results_are_refused() -> None:
    small = replace(DEFAULT_LIMITS, text_bytes=len(TEN))
    patch = one(FIVE)
    with pytest.raises(PatchError, match="the file is too large to patch"):
        apply_file(patch, TEN + b"x", subject="fix.diff", limits=small)
    with pytest.raises(PatchError, match="the patched file is too large"):
        apply_file(patch, TEN, subject="fix.diff", limits=small)
    with pytest.raises(PatchError, match="is too large; expected <= 71 bytes, actual 82 bytes"):
        parse_patch(FIVE.ljust(82, b"\n"), subject="fix.diff", limits=small)


# Line endings.


@pytest.mark.parametrize("old", [b"b\n", b"b"])
@pytest.mark.parametrize("new", [b"c\n", b"c"])
def test_the_no_newline_marker_is_exact_in_all_four_combinations(old: bytes, new: bytes) -> None:
    def line(sign: bytes, text: bytes) -> bytes:
        return sign + text + (b"" if text.endswith(b"\n") else b"\n" + NO_NEWLINE)

    patch = NAMES + b"@@ -1,2 +1,2 @@\n a\n" + line(b"-", old) + line(b"+", new)
    assert run(patch, b"a\n" + old).data == b"a\n" + new
    other = b"b" if old.endswith(b"\n") else b"b\n"
    assert "does not match" in refusal(patch, b"a\n" + other).problem


@pytest.mark.parametrize(("old", "new"), [(b"b", b"b\n"), (b"b\n", b"b")])
def test_only_the_last_newline_can_change(old: bytes, new: bytes) -> None:
    markers = (NO_NEWLINE, b"") if old == b"b" else (b"", NO_NEWLINE)
    patch = NAMES + b"@@ -1,2 +1,2 @@\n a\n-b\n" + markers[0] + b"+b\n" + markers[1]
    assert run(patch, b"a\n" + old).data == b"a\n" + new


def test_a_marker_after_context_ends_both_sides_and_the_file() -> None:
    patch = NAMES + b"@@ -1,2 +1,2 @@\n-a\n+x\n b\n" + NO_NEWLINE
    assert run(patch, b"a\nb").data == b"x\nb"
    assert "does not match" in refusal(patch, b"a\nb\n").problem
    assert "does not match" in refusal(patch, b"a\nbc").problem


def test_a_marker_in_another_language_is_read() -> None:
    patch = NAMES + b"@@ -1 +1 @@\n-a\n+b\n\\ Kein Zeilenumbruch am Dateiende.\n"
    assert run(patch, b"a\n").data == b"b"


def test_crlf_is_content() -> None:
    patch = NAMES + b"@@ -1,2 +1,2 @@ int main()\r\n a\r\n-b\r\n+c\r\n"
    assert run(patch, b"a\r\nb\r\n").data == b"a\r\nc\r\n"
    assert "does not match" in refusal(patch, b"a\nb\n").problem


def test_an_empty_context_line_without_its_space_is_read() -> None:
    assert run(NAMES + b"@@ -1,3 +1,3 @@\n-a\n+b\n\n c\n", b"a\n\nc\n").data == b"b\n\nc\n"


# New and deleted files.

NEW = b"diff --git a/f b/f\nnew file mode 100755\nindex 0000000..1\n--- /dev/null\n+++ b/f\n@@ -0,0 +1,2 @@\n+x\n+y\n"
GONE = b"diff --git a/f b/f\ndeleted file mode 100644\nindex 1..0\n--- a/f\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-x\n-y\n"


def test_a_new_file_has_its_mode_and_its_text() -> None:
    patch = one(NEW)
    assert (patch.path, patch.old_path, patch.new_path) == (b"f", b"/dev/null", b"b/f")
    assert (patch.is_new, patch.is_delete, patch.mode, patch.added, patch.removed) == (True, False, 0o755, 2, 0)
    assert run(NEW, None).data == b"x\ny\n"


def test_a_new_file_that_exists_is_refused() -> None:
    assert refusal(NEW, b"").problem == "makes a new file where one exists"
    assert "is already applied" in refusal(NEW, b"x\ny\n").problem


def test_a_deleted_file_is_none() -> None:
    assert run(GONE, b"x\ny\n") == Applied(data=None, offsets=(0,))
    assert "is already applied" in refusal(GONE, None).problem


def test_a_deletion_that_leaves_text_is_refused() -> None:
    more = GONE.replace(b"-1,2 +0,0", b"-1,3 +1").replace(b"-y\n", b"-y\n z\n")
    assert refusal(more, b"x\ny\nz\n").problem == "deletes a file but not all of its text"
    assert "belongs at the end of the file" in refusal(GONE, b"x\ny\nz\n").problem


def test_empty_files_come_and_go_by_the_git_header_alone() -> None:
    new = b"diff --git a/dir/e f b/dir/e f\nnew file mode 100644\nindex 0000000..e69de29\n"
    assert one(new).path == b"dir/e f"
    assert run(new, None) == Applied(data=b"", offsets=())
    gone = b"diff --git a/e b/e\ndeleted file mode 100644\nindex e69de29..0000000\n"
    assert run(gone, b"") == Applied(data=None, offsets=())
    assert refusal(gone, b"text").problem == "deletes a file but not all of its text"


@pytest.mark.parametrize("stamp", [b"1970-01-01 00:00:00.000000000 +0000", b"1969-12-31 19:00:00.000000000 -0500"])
def test_plain_diff_marks_an_absent_file_with_the_epoch(stamp: bytes) -> None:
    new = b"diff -ruN a/f b/f\n--- a/f\t" + stamp + b"\n+++ b/f\t2024-05-01 10:00:00.5 +0200\n@@ -0,0 +1 @@\n+x\n"
    assert (one(new).is_new, run(new, None).data) == (True, b"x\n")
    gone = b"--- a/f\t2024-05-01 10:00:00.5 +0200\n+++ b/f\t" + stamp + b"\n@@ -1 +0,0 @@\n-x\n"
    assert (one(gone).is_delete, run(gone, b"x\n").data) == (True, None)


def test_without_the_epoch_a_plain_diff_of_an_empty_file_needs_that_file() -> None:
    patch = b"--- a/f\t1970-01-01 00:00:00 -0500\n+++ b/f\n@@ -0,0 +1 @@\n+x\n"
    assert run(patch, b"").data == b"x\n"
    assert refusal(patch, None).problem == "changes a file that does not exist"


# Names.


@pytest.mark.parametrize(
    ("names", "strip", "path"),
    [
        (b"--- a/d/f g\t\n+++ b/d/f g\t\n", 1, b"d/f g"),
        (b"--- old/d/f\t2024-01-01 00:00:00 +0000\n+++ new/d/f\t2024-01-02 00:00:00 +0000\n", 1, b"d/f"),
        (b"--- f\n+++ f\n", 0, b"f"),
        (b"--- x/y/f\n+++ x/z/f\n", 2, b"f"),
        (b'--- "a/\\303\\244\\t\\"\\\\\\n"\n+++ "b/\\303\\244\\t\\"\\\\\\n"\n', 1, b'\xc3\xa4\t"\\\n'),
        (b"--- a/\xff\n+++ b/\xff\n", 1, b"\xff"),
        (b"Index: f\n=======\n--- a/f\n+++ b/f\n", 1, b"f"),
    ],
)
def test_names_are_read_and_stripped(names: bytes, strip: int, path: bytes) -> None:
    assert one(names + b"@@ -1 +1 @@\n-a\n+b\n", strip).path == path


def test_quoted_names_of_the_git_line_are_read() -> None:
    empty = b'diff --git "a/\\303\\244 b/x" "b/\\303\\244 b/x"\nnew file mode 100644\n'
    assert one(empty).path == b"\xc3\xa4 b/x"
    mixed = b'diff --git a/q/f "\\303\\244/q/f"\nnew file mode 100644\n'
    assert one(mixed, 2).path == b"f"


@pytest.mark.parametrize(
    ("name", "strip", "problem"),
    [
        (b"/etc/passwd", 1, "a file name is absolute"),
        (b"a/../../f", 1, "a file name has a '..' component"),
        (b"../a/f", 2, "a file name has a '..' component"),
        (b'"a/\\000f"', 1, "a file name holds a NUL byte"),
        (b"a/\0f", 1, "an unquoted file name holds a control character"),
        (b"a/f\r", 1, "an unquoted file name holds a control character"),
        (b"a//f", 1, "a file name has an empty or '.' component"),
        (b"a/./f", 1, "a file name has an empty or '.' component"),
        (b"a/d/", 1, "a file name has an empty or '.' component"),
        (b"a/f", 2, "strip 2 leaves nothing of a file name"),
        (b"f", 1, "strip 1 leaves nothing of a file name"),
        (b"", 0, "a file name has an empty or '.' component"),
        (b'"a/f', 1, "a quoted file name is broken"),
        (b'"a/\\x41"', 1, "a quoted file name is broken"),
        (b'"a/\\400"', 1, "a quoted file name is broken"),
        (b'"a/f" g', 1, "text follows the quoted file name"),
        (b"a/" + b"x" * 5000, 1, "a file name is too long"),
        (b"a/" * 300 + b"f", 1, "a file name is too deep"),
        (b"a/" + b"x" * 50_000, 1, "a header line is too long"),
    ],
)
def test_unsafe_or_broken_names_are_refused(name: bytes, strip: int, problem: str) -> None:
    patch = b"--- " + name + b"\n+++ " + name + b"\n@@ -1 +1 @@\n-a\n+b\n"
    assert refusal(patch, b"a\n", strip).problem == problem


def test_a_path_through_dev_null_on_both_sides_is_refused() -> None:
    assert "both new and deleted" in refusal(b"--- /dev/null\n+++ /dev/null\n@@ -0,0 +1 @@\n+x\n").problem


def test_the_same_file_twice_is_refused() -> None:
    assert refusal(FIVE + FIVE, TEN).problem == "changes 'f' twice"


def test_two_different_names_are_a_rename() -> None:
    error = refusal(FIVE.replace(b"--- a/f", b"--- a/f.orig"), TEN)
    assert error.problem == "renames a file, or strip 1 is wrong: the two names are different paths"


def test_a_rewrite_by_git_is_read() -> None:
    rewrite = b"diff --git a/f b/f\ndissimilarity index 100%\nindex 1..2 100644\n" + NAMES + b"@@ -1 +1 @@\n-a\n+b\n"
    assert run(rewrite, b"a\n").data == b"b\n"


def test_the_git_line_must_name_the_same_file() -> None:
    header = b"diff --git a/other b/other\nindex 1..2 100644\n"
    assert "header lines of a file contradict" in refusal(header + FIVE, TEN).problem
    assert "header lines of a file contradict" in refusal(NEW.replace(b"new file mode 100755\n", b""), None).problem
    hidden = b"diff --git a/f b/f\nnew file mode 100644\n" + FIVE
    assert "header lines of a file contradict" in refusal(hidden, TEN).problem


def test_the_split_of_a_git_line_with_spaces_must_be_certain() -> None:
    line = b"diff --git a/x b/x b/x b/x\nnew file mode 100644\n"
    assert one(line).path == b"x b/x"
    many = b"diff --git a/" + b" x" * 40 + b" b/" + b" x" * 40 + b"\nnew file mode 100644\n"
    assert refusal(many).problem == "the diff line has too many spaces"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'"a/f"', "the second name of the diff line is missing"),
        (b'"a/f" "b/f" x', "text follows the quoted file name"),
        (b'"a/f" b/\x01f', "an unquoted file name holds a control character"),
        (b'"a/f" b/g', "the two names of the diff line are not one path"),
        (b"a/f b/g", "the two names of the diff line are not one path"),
        (b"a/../f b/../f", "a file name has a '..' component"),
    ],
)
def test_a_broken_git_line_is_refused(line: bytes, problem: str) -> None:
    assert refusal(b"diff --git " + line + b"\nnew file mode 100644\n").problem == problem


def test_a_negative_strip_is_refused() -> None:
    assert refusal(FIVE, TEN, -1).problem == "the strip depth is negative"


def test_a_new_file_with_lines_to_remove_is_refused() -> None:
    patch = b"--- /dev/null\n+++ b/f\n@@ -1 +1 @@\n-x\n+y\n"
    assert refusal(patch, None).problem == "a new file has lines to remove or keep"


def test_a_file_both_new_and_deleted_by_its_times_is_refused() -> None:
    epoch = b"\t1970-01-01 00:00:00 +0000\n"
    patch = b"--- a/f" + epoch + b"+++ /dev/null\n@@ -0,0 +1 @@\n+y\n"
    assert refusal(patch, None).problem == "a file is both new and deleted"


def test_a_hunk_into_an_empty_file_is_already_applied_on_its_result() -> None:
    patch = NAMES + b"@@ -0,0 +1 @@\n+new\n"
    assert "hunk 1 is already applied" in refusal(patch, run(patch, b"").data).problem


# What is refused by name.


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        (b"old mode 100644\nnew mode 100755\n", "changes the mode of a file"),
        (b"similarity index 90%\nrename from f\nrename to g\n", "renames or copies a file"),
        (b"rename from f\nrename to f\n", "renames a file"),
        (b"copy from f\ncopy to f\n", "copies a file"),
        (b"index 1..2 100644\nGIT binary patch\nliteral 1\nIcmZ>\n", "holds a binary patch"),
        (b"index 1..2 100644\nBinary files a/f and b/f differ\n", "says that binary files differ"),
        (b"new file mode 120000\n", "changes a file that is a symbolic link"),
        (b"new file mode 160000\n", "changes a file that is a submodule"),
        (b"deleted file mode 120000\n", "changes a file that is a symbolic link"),
        (b"index 1111111..2222222 120000\n", "changes a file that is a symbolic link"),
        (b"index 1111111..2222222 160000\n", "changes a file that is a submodule"),
        (b"new file mode 104755\n", "changes a file that is of an unknown mode"),
        (b"index 1..2 100644\nsurprise\n", "a header line is unknown"),
        (b"index 1..2 100644\n", "changes nothing: a file has no hunks and is neither new nor deleted"),
    ],
)
def test_what_a_patch_may_not_do_is_refused_by_name(header: bytes, problem: str) -> None:
    assert refusal(b"diff --git a/f b/f\n" + header, TEN).problem == problem


@pytest.mark.parametrize(
    ("patch", "problem"),
    [
        (b"", "holds no unified diff"),
        (b"5c\nline five\n.\nw\n", "holds no unified diff"),
        (b"*** a/f\n--- b/f\n***************\n*** 1 ****\n! a\n--- 1 ----\n! b\n", "holds no unified diff"),
        (NAMES + b"5c\n!sh\n.\n", "a file has no hunks"),
        (FIVE + b"1,2d\n", "unexpected text after hunk 1 of a file"),
        (b"diff --cc f\nindex 1,2..3\n", "is a combined diff of a merge"),
        (NAMES + b"@@@ -1 -1 +1 @@@\n- a\n++b\n", "the header of hunk 1 is malformed"),
        (b"diff -ru a/x b/x\nBinary files a/x and b/x differ\n" + FIVE, "holds a binary change"),
        (FIVE + b"Only in b: new\n", "unexpected text after hunk 1 of a file"),
    ],
)
def test_other_kinds_of_diff_and_ed_scripts_are_refused(patch: bytes, problem: str) -> None:
    assert refusal(patch, TEN).problem == problem


# Malformed hunks.


@pytest.mark.parametrize(
    ("hunks", "problem"),
    [
        (b"@@ -1,2 +1 @@\n-a\n+b\n", "hunk 1 does not have the lines that its header counts"),
        (b"@@ -1 +1,2 @@\n-a\n+b\n", "hunk 1 does not have the lines that its header counts"),
        (b"@@ -1,2 +1,2 @@\n-a\n+b\n@@ -9 +9 @@\n-a\n+b\n", "hunk 1 does not have the lines that its header counts"),
        (b"@@ -1 +1 @@\n-a\n+b\n c\n", "unexpected text after hunk 1 of a file"),
        (b"@@ -1 +1 @@\n-a\n+b\n+c\n", "unexpected text after hunk 1 of a file"),
        (b"@@ -1 +1 @@\n-a\n+b\n-c\n", "unexpected text after hunk 1 of a file"),
        (b"@@ -1 +1 @@\n-a\n+b\n-- c\n", "unexpected text after hunk 1 of a file"),
        (b"@@ -1 +1 @@\n-a\n+b\n\n@@ -9 +9 @@\n-a\n+b\n", "unexpected text after hunk 1 of a file"),
        (b"@@ -1 +1 @@\n-a\n+b\njunk\n@@ -9 +9 @@\n-a\n+b\n", "unexpected text after hunk 1 of a file"),
        (b"@@ -1 +1 @@\n-a\n+b\n-- \n@@ -9 +9 @@\n-a\n+b\n", "a hunk stands outside of a file"),
        (b"@@ -1 +1 @@\n-a\n+b\n-- \n+c\n", "a line after the signature looks like part of a hunk"),
        (b"@@ -1 +1 @@\n a\n", "hunk 1 changes nothing"),
        (b"@@ -1 +1 @@\n-a\n+a\n", "hunk 1 changes nothing"),
        (b"@@ -0,0 +0,0 @@\n", "hunk 1 changes nothing"),
        (b"@@ -0 +1 @@\n-a\n+b\n", "hunk 1 has lines at line 0"),
        (b"@@ -1 +0 @@\n-a\n+b\n", "hunk 1 has lines at line 0"),
        (b"@@ -1 +1 @@\n-a\n+b", "hunk 1: the patch ends in the middle of a line"),
        (b"@@ -1,1 +1,1\n-a\n+b\n", "the header of hunk 1 is malformed"),
        (b"@@ -1 +1 @@x\n-a\n+b\n", "the header of hunk 1 is malformed"),
        (b"@@ -99999999999 +1 @@\n-a\n+b\n", "the header of hunk 1 is malformed"),
        (b"@@ --1 +1 @@\n-a\n+b\n", "the header of hunk 1 is malformed"),
        (b"@@ -5 +5 @@\n-a\n+b\n@@ -5 +5 @@\n-a\n+b\n", "hunk 2 overlaps the hunk before it, or is out of order"),
        (b"@@ -5 +5 @@\n-a\n+b\n@@ -1 +1 @@\n-a\n+b\n", "hunk 2 overlaps the hunk before it, or is out of order"),
        (b"@@ -5,0 +6 @@\n+a\n@@ -5 +7 @@\n-a\n+b\n", "hunk 2 overlaps the hunk before it, or is out of order"),
        (b"@@ -1 +1 @@\n" + NO_NEWLINE, "hunk 1 has a no-newline marker that follows no line or an empty one"),
        (
            b"@@ -1 +1 @@\n-a\n+b\n" + NO_NEWLINE * 2,
            "hunk 1 has a no-newline marker that follows no line or an empty one",
        ),
        (b"@@ -1 +1 @@\n-a\n+\n" + NO_NEWLINE, "hunk 1 has a no-newline marker that follows no line or an empty one"),
        (b"@@ -1,2 +1 @@\n-a\n" + NO_NEWLINE + b"-b\n+c\n", "hunk 1 goes on after a no-newline marker"),
    ],
)
def test_malformed_hunks_are_refused_with_the_hunk(hunks: bytes, problem: str) -> None:
    error = refusal(NAMES + hunks, b"a\n")
    assert error.problem == problem
    assert error.where is not None
    assert error.where.startswith("line ")


def test_a_refused_patch_names_its_line() -> None:
    assert refusal(b"text\n" + NAMES + b"@@ -1 +1 @@\n-a\n+b\njunk\n", b"a\n").where == "line 7"


def test_limits_on_hunks_and_files_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imgbuild.content.unidiff.MAX_HUNKS", 2)
    monkeypatch.setattr("imgbuild.content.unidiff.MAX_FILES", 2)
    hunk = b"@@ -%d +%d @@\n-a\n+b\n"
    assert len(one(NAMES + b"".join(hunk % (at, at) for at in (1, 3))).hunks) == 2
    assert "has too many hunks" in refusal(NAMES + b"".join(hunk % (at, at) for at in (1, 3, 5))).problem
    monkeypatch.setattr("imgbuild.content.unidiff.MAX_HUNKS", 9)
    files = [NAMES.replace(b"f", name) + hunk % (1, 1) for name in (b"x", b"y", b"z")]
    assert len(parse(b"".join(files[:2]))) == 2
    assert refusal(b"".join(files), b"a\n").problem == "changes too many files"


# Mails and several files.

MAIL = (
    b"From 1111111111111111111111111111111111111111 Mon Sep 17 00:00:00 2001\nFrom: A <a@example.org>\n"
    b"Subject: [PATCH] Two files\n\nThe text of the message.\n\n--- a quote\n---\n f | 2 +-\n g | 1 +\n"
    b" 2 files changed, 2 insertions(+), 1 deletion(-)\n create mode 100644 g\n\n"
    b"diff --git a/f b/f\nindex 1111111..2222222 100644\n" + FIVE + NEW.replace(b"/f", b"/g") + b"-- \n2.39.5\n\n"
)


def test_a_mail_of_format_patch_is_read() -> None:
    first, second = parse(MAIL)
    assert (first.path, second.path) == (b"f", b"g")
    assert (first.added, first.removed, first.mode) == (1, 1, None)
    assert [hunk.patch_line for hunk in first.hunks] == [18]


def test_a_series_of_mails_is_read_when_each_file_is_changed_once() -> None:
    second = b"From 2\nSubject: second\n\n---\n h | 1 +\n\n" + NEW.replace(b"/f", b"/h")
    assert [patch.path for patch in parse(MAIL + second)] == [b"f", b"g", b"h"]
    assert refusal(MAIL + MAIL, TEN).problem == "changes 'f' twice"


def test_removed_lines_that_look_like_headers_are_content() -> None:
    patch = NAMES + b"@@ -1,3 +1,3 @@\n--- a/x\n+++ b/x\n-diff --git a b\n+-- \n @@ -1 +1 @@\n"
    assert run(patch, b"-- a/x\ndiff --git a b\n@@ -1 +1 @@\n").data == b"++ b/x\n-- \n@@ -1 +1 @@\n"


# Time.


def test_many_hunks_are_read_and_applied_in_linear_time() -> None:
    count = 20_000
    body = b"".join(b"x%d\nc\n" % number for number in range(count))
    hunks = b"".join(b"@@ -%d,2 +%d,2 @@\n-x%d\n+y\n c\n" % (2 * n + 1, 2 * n + 1, n) for n in range(count))
    started = time.monotonic()
    assert run(NAMES + hunks, body).data == b"y\nc\n" * count
    assert time.monotonic() - started < 5


def test_the_search_for_moved_hunks_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patch_module, "SEARCH_BYTES", 200)
    patch = FIVE + b"@@ -8,2 +8,2 @@\n-line 8\n+line eight\n line 9\n line 10\n"
    patch = patch.replace(b"@@ -8,2 +8,2 @@", b"@@ -8,3 +8,3 @@")
    assert run(patch, b"new\n" + TEN).offsets == (1, 1)
    monkeypatch.setattr(patch_module, "SEARCH_BYTES", 100)
    assert "hunk 2 is not at its line, and too much was searched" in refusal(patch, b"new\n" + TEN).problem


# The anchored edit.


def edit(before: bytes, find: bytes, new: bytes, count: int = 1) -> bytes:
    return apply_edit(before, find=find, replace=new, count=count, subject="step 3", where="etc/x.conf")


def edit_refusal(before: bytes, find: bytes, new: bytes, count: int = 1) -> StepError:
    with pytest.raises(StepError) as caught:
        edit(before, find, new, count)
    assert (caught.value.subject, caught.value.where) == ("step 3", "etc/x.conf")
    return caught.value


def test_an_edit_replaces_all_declared_occurrences() -> None:
    assert edit(b"a b a", b"a", b"aa", 2) == b"aa b aa"
    assert edit(b"x\r\ny\r\n", b"\r\ny", b"") == b"x\r\n"


@pytest.mark.parametrize(("count", "actual"), [(1, "3 times"), (2, "3 times"), (4, "3 times")])
def test_P22_another_count_is_refused_with_both_counts(count: int, actual: str) -> None:
    error = edit_refusal(b"q\na a\na\n", b"a", b"b", count)
    assert (error.expected, error.actual) == (f"{count} time{'s' * (count != 1)}", actual)
    assert error.hint == "it stands at line 2, 2, 3; see which are meant, and correct `count` or `find`"
    assert error.hunk is None


def test_P22_of_many_occurrences_the_first_lines_are_named() -> None:
    hint = edit_refusal(b"a\n" * 12, b"a", b"b", 11).hint
    assert hint is not None
    assert hint.startswith("it stands at line 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 2 more;")


def test_P63_an_edit_that_finds_nothing_shows_its_text_beside_the_lines_that_have_a_part_of_it() -> None:
    error = edit_refusal(b"one\ntwo\n  timeout = 30\n", b"[net]\ntimeout = 30\n", b"")
    assert error.actual == "0 times"
    assert error.hunk is not None
    assert (error.hunk.number, error.hunk.header) == (None, None)
    assert error.hunk.lines == ("-[net]", "-timeout = 30")
    assert (error.hunk.at, error.hunk.there) == (1, (" one", "!two", "!  timeout = 30"))
    for find in (b"other", b" \n "):
        nothing = edit_refusal(b"one\n", find, b"")
        assert nothing.hint is None
        assert nothing.hunk is not None
        assert nothing.hunk.there == ()


def test_P63_an_edit_that_fails_by_line_endings_says_so() -> None:
    assert edit_refusal(b"a\r\nb\r\n", b"a\nb\n", b"").hint == "the text occurs with other line endings (CRLF or LF)"
    assert edit_refusal(b"a\nb\n", b"a\r\nb\r\n", b"").hint == "the text occurs with other line endings (CRLF or LF)"
    mixed = edit_refusal(b"x = 1\nfoo\r\nbar\n", b"foo\nbar\n", b"")
    assert mixed.hint == "the text occurs with other line endings (CRLF or LF)"
    assert mixed.hunk is not None
    assert " bar" in mixed.hunk.there


@pytest.mark.parametrize(
    ("find", "new", "count", "problem"),
    [
        (b"", b"x", 1, "the text to find is empty"),
        (b"a", b"a", 1, "changes nothing: the text to find is its replacement"),
        (b"a", b"b", 0, "the declared count is not positive"),
        (b"a", b"b", -1, "the declared count is not positive"),
        (b"aa", b"b", 1, "occurrences of the text to find overlap, so it is not clear which are meant"),
    ],
)
def test_P22_an_edit_that_says_nothing_clear_is_refused(find: bytes, new: bytes, count: int, problem: str) -> None:
    assert edit_refusal(b"aaa", find, new, count).problem == problem


def test_an_edit_beyond_the_limit_is_refused_before_it_is_made() -> None:
    small = replace(DEFAULT_LIMITS, text_bytes=10)
    with pytest.raises(StepError, match="too large to edit; expected <= 10 bytes, actual 3 bytes before, 33 after"):
        apply_edit(b"aaa", find=b"a", replace=b"b" * 11, count=3, subject="step 3", where="f", limits=small)
