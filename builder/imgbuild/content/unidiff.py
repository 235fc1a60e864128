"""Read unified diffs, from git or `diff -u`, strictly: what is not understood is refused, never skipped.

Sources: GNU diffutils, "Detailed Description of Unified Format"; git's `Documentation/diff-generate-patch.txt`.
Text before the first header (a mail, a commit message) and after a mail signature (`-- `) is passed over. Between the
hunks of a file, and between files, nothing may stand but headers and blank lines.
Refused by name: renames, copies, mode changes, binary patches, combined diffs, symbolic links, submodules.
Only `imgbuild.content.patch` is meant to be imported by other tiers; it re-exports what is public here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import NoReturn

from imgbuild.config import DEFAULT_LIMITS, Limits
from imgbuild.content.diffhunk import Hunk, HunkReader, PatchLines, check_order
from imgbuild.content.diffpath import NO_FILE, Naming, Place, git_paths, read_name, shown, strip_name

MAX_HUNKS = 100_000
"""hunks of one patch; bounds the objects a hostile patch can make (a whole kernel release has about this many)."""
MAX_FILES = 20_000
"""files of one patch; the same reason."""

_BINARY = re.compile(rb"Binary files .+ and .+ differ\s*")
_REFUSED = (
    (b"old mode ", "changes the mode of a file"),
    (b"new mode ", "changes the mode of a file"),
    (b"similarity index ", "renames or copies a file"),
    (b"rename ", "renames a file"),
    (b"copy ", "copies a file"),
    (b"GIT binary patch", "holds a binary patch"),
    (b"Binary files ", "says that binary files differ"),
)
_MODES = {b"100644": 0o644, b"100755": 0o755}
_MODE_NAMES = {b"120000": "a symbolic link", b"160000": "a submodule", b"040000": "a directory"}
_SIGNATURES = (b"-- \n", b"--\n", b"-- \r\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePatch:
    """The change of one file.

    `path` is the path after strip, bytes, relative, without `..`; `old_path` and `new_path` are the names as written,
    unquoted and not stripped (`/dev/null` where there is no file). `mode` holds the permission bits (0o644 or 0o755)
    that a git header gives to a new file, None otherwise. `added` and `removed` count lines.
    """

    path: bytes
    old_path: bytes
    new_path: bytes
    is_new: bool
    is_delete: bool
    mode: int | None
    hunks: tuple[Hunk, ...]
    added: int
    removed: int


def parse_patch(data: bytes, *, subject: str, strip: int = 1, limits: Limits = DEFAULT_LIMITS) -> tuple[FilePatch, ...]:
    """Parse a patch of one or more files, in their order.

    Args:
        data: the patch, at most `limits.text_bytes` bytes. CRLF in content is content.
        subject: the patch as the reader knows it, for messages.
        strip: leading components removed from each name, as `patch -pN`.
        limits: bounds on bytes, path length and path depth.

    Raises:
        PatchError: anything malformed, refused by name, twice in the patch, or without effect.

    Not checked: the blob ids of `index` lines (the caller compares digests of the whole files), and whether the patch
    fits a file (`apply_file`). Quoted-printable and base64 mails are not decoded.
    """
    whole = Place(subject, "the patch")
    if len(data) > limits.text_bytes:
        raise whole.error("is too large", expected=f"<= {limits.text_bytes} bytes", actual=f"{len(data)} bytes")
    if strip < 0:
        raise whole.error("the strip depth is negative", actual=strip)
    naming = Naming(strip=strip, path_bytes=limits.path_bytes, path_depth=limits.path_depth)
    parser = _Parser(PatchLines(data, subject), naming)
    files: dict[bytes, FilePatch] = {}
    while (patch := parser.next_file()) is not None:
        if patch.path in files:
            raise whole.error(f"changes {shown(patch.path)} twice", hint="merge the changes into one diff")
        if len(files) == MAX_FILES:
            raise whole.error("changes too many files", expected=f"<= {MAX_FILES}")
        files[patch.path] = patch
    if not files:
        raise whole.error("holds no unified diff", hint="make it with `git diff` or `diff -u`")
    return tuple(files.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    """What the lines before `---` say about a file."""

    is_new: bool = False
    is_delete: bool = False
    mode: int | None = None


class _Parser:
    def __init__(self, lines: PatchLines, naming: Naming) -> None:
        self._lines = lines
        self._naming = naming
        self._hunks_left = MAX_HUNKS
        self._after_signature = False

    def next_file(self) -> FilePatch | None:
        """Pass over text up to the next header and read that file; None at the end."""
        lines = self._lines
        while line := lines.current:
            if line.startswith(b"diff --git "):
                self._after_signature = False
                return self._git_file()
            if self._at_names():
                self._after_signature = False
                return self._named_file(None, _Header())
            self._refuse_lost(line)
            lines.advance()
        return None

    def _at_names(self) -> bool:
        return self._lines.current.startswith(b"--- ") and self._lines.following().startswith(b"+++ ")

    def _refuse_lost(self, line: bytes) -> None:
        """Refuse what would be lost if it were passed over as text."""
        if line.startswith(b"@@ -"):
            self._refuse("a hunk stands outside of a file", actual=shown(line))
        if line.startswith((b"diff --cc ", b"diff --combined ")):
            self._refuse("is a combined diff of a merge", actual=shown(line))
        if line.startswith(b"GIT binary patch") or _BINARY.fullmatch(line):
            self._refuse("holds a binary change", actual=shown(line))
        if line.startswith(b"From "):
            self._after_signature = False
        elif self._after_signature and line[:1] in b"+- @":
            self._refuse("a line after the signature looks like part of a hunk", actual=shown(line))

    def _git_file(self) -> FilePatch:
        place = self._lines.place()
        paths = git_paths(self._value(b"diff --git "), self._naming, place)
        header = _Header()
        lines = self._lines
        lines.advance()
        while not self._at_names():
            line = lines.current
            if not line.strip() or line.startswith((b"diff ", b"From ", b"Index: ")) or line in _SIGNATURES:
                return self._empty_file(paths, header, place)
            header = self._extended(line, header)
            lines.advance()
        return self._named_file(paths, header)

    def _extended(self, line: bytes, header: _Header) -> _Header:
        for start, problem in _REFUSED:
            if line.startswith(start):
                self._refuse(problem, actual=shown(line), hint="state it as a step of its own")
        if line.startswith(b"new file mode "):
            return replace(header, is_new=True, mode=self._mode(self._value(b"new file mode ")))
        if line.startswith(b"deleted file mode "):
            self._mode(self._value(b"deleted file mode "))
            return replace(header, is_delete=True)
        if line.startswith(b"index "):
            _, space, mode = self._value(b"index ").partition(b" ")
            if space:
                self._mode(mode)
        elif not line.startswith(b"dissimilarity index "):
            self._refuse("a header line is unknown", actual=shown(line))
        return header

    def _mode(self, text: bytes) -> int:
        mode = _MODES.get(text)
        if mode is None:
            kind = _MODE_NAMES.get(text, "of an unknown mode")
            self._refuse(f"changes a file that is {kind}", expected="100644 or 100755", actual=shown(text))
        return mode

    def _empty_file(self, paths: frozenset[bytes], header: _Header, place: Place) -> FilePatch:
        """A file without hunks: only an empty file that comes or goes."""
        if header.is_new == header.is_delete:
            raise place.error("changes nothing: a file has no hunks and is neither new nor deleted")
        if len(paths) != 1:
            raise place.error("the two names of the diff line are not one path", expected=f"strip {self._naming.strip}")
        self._end_of_file(0)
        (path,) = paths
        return FilePatch(
            path=path,
            old_path=NO_FILE if header.is_new else path,
            new_path=NO_FILE if header.is_delete else path,
            is_new=header.is_new,
            is_delete=header.is_delete,
            mode=header.mode,
            hunks=(),
            added=0,
            removed=0,
        )

    def _named_file(self, paths: frozenset[bytes] | None, header: _Header) -> FilePatch:
        """Read `---`, `+++` and the hunks; `paths` are those of a `diff --git` line, None where there was none."""
        place = self._lines.place()
        old, old_epoch = read_name(self._value(b"--- "), place)
        self._lines.advance()
        new, new_epoch = read_name(self._value(b"+++ "), place)
        self._lines.advance()
        path = self._one_path(old, new, place)
        hunks = self._hunks()
        is_new = old == NO_FILE or (paths is None and old_epoch and not hunks[0].old)
        is_delete = new == NO_FILE or (paths is None and new_epoch and not hunks[0].new)
        if paths is not None and (path not in paths or (is_new, is_delete) != (header.is_new, header.is_delete)):
            raise place.error(
                "the header lines of a file contradict each other", actual=f"{shown(old)} and {shown(new)}"
            )
        if is_new and is_delete:
            raise place.error("a file is both new and deleted", actual=shown(path))
        if is_new and (hunks[0].old or len(hunks) > 1):
            raise place.error("a new file has lines to remove or keep", actual=shown(path))
        context = sum(hunk.context for hunk in hunks)
        return FilePatch(
            path=path,
            old_path=old,
            new_path=new,
            is_new=is_new,
            is_delete=is_delete,
            mode=header.mode,
            hunks=hunks,
            added=sum(hunk.new_count for hunk in hunks) - context,
            removed=sum(hunk.old_count for hunk in hunks) - context,
        )

    def _one_path(self, old: bytes, new: bytes, place: Place) -> bytes:
        names = [name for name in (old, new) if name != NO_FILE]
        paths = {strip_name(name, self._naming, place) for name in names}
        if not paths:
            raise place.error("a file is both new and deleted")
        if len(paths) > 1:
            raise place.error(
                f"renames a file, or strip {self._naming.strip} is wrong: the two names are different paths",
                actual=f"{shown(old)} and {shown(new)}",
                hint="make the diff of two directories, or give both sides one name with `diff --label`",
            )
        return paths.pop()

    def _hunks(self) -> tuple[Hunk, ...]:
        hunks: list[Hunk] = []
        while self._lines.current.startswith(b"@@"):
            place = self._lines.place()
            hunk = HunkReader(self._lines, len(hunks) + 1).read()
            if hunks:
                check_order(hunks[-1], hunk, len(hunks) + 1, place)
            self._hunks_left -= 1
            if self._hunks_left < 0:
                raise place.error("has too many hunks", expected=f"<= {MAX_HUNKS}")
            hunks.append(hunk)
        if not hunks:
            self._refuse("a file has no hunks", expected="@@ -line,count +line,count @@", actual=self._lines.shown())
        self._end_of_file(len(hunks))
        return tuple(hunks)

    def _end_of_file(self, number: int) -> None:
        """Check that what follows the last hunk cannot be a lost part of it."""
        lines = self._lines
        while lines.current and not lines.current.strip(b"\r\n"):
            lines.advance()
        line = lines.current
        if line in _SIGNATURES:
            self._after_signature = True
            lines.advance()
        elif line and not self._at_names() and not line.startswith((b"diff ", b"From ", b"Index: ")):
            after = f"after hunk {number} " if number else ""
            self._refuse(
                f"unexpected text {after}of a file",
                actual=shown(line),
                hint="the hunk has more lines than its header says, or text was put between hunks",
            )

    def _value(self, start: bytes) -> bytes:
        line = self._lines.current
        longest = 8 * self._naming.path_bytes + 1024
        if len(line) > longest:
            self._refuse("a header line is too long", expected=f"<= {longest} bytes", actual=len(line))
        return line[len(start) :].removesuffix(b"\n")

    def _refuse(
        self, problem: str, *, expected: object = None, actual: object = None, hint: str | None = None
    ) -> NoReturn:
        raise self._lines.place().error(problem, expected=expected, actual=actual, hint=hint)
