"""Pinned wheels through pip, whose answer is not believed: size and sha256 are checked here again.

pip matches `--platform` literally, so every platform tag of a file name is handed to it (PEP 425, PEP 600). How pip
is run stands in `pipprocess`.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from imgbuild.adapters.durable import extract_file, make_folder, move, storage_errors, work_folder
from imgbuild.adapters.pipprocess import INDEX, OTHER_BYTES, reads_ranges, run_pip
from imgbuild.config import GIB, MIB
from imgbuild.digest import Digest, chunks, digest_of
from imgbuild.errors import DigestMismatchError, DocumentError, ImgbuildError, IntegrityError, OfflineMissError
from imgbuild.progress import SILENT
from imgbuild.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from packaging.tags import Tag

    from imgbuild.progress import Progress

WHEEL_BYTES: Final = 8 * GIB
"""bytes of a wheel whose size is not known yet; a bound against endless answers, not an estimate."""
REPORT_BYTES: Final = 16 * MIB
"""bytes of pip's installation report; it holds the metadata of one wheel."""
_FILENAME_CHARACTERS: Final = 255
"""characters of a file name; NAME_MAX of Linux, for names in ASCII."""
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")
_PLATFORM: Final = re.compile(r"[a-z0-9_]{1,64}")
_PYTHON: Final = re.compile(r"3(?:\.?[0-9]{1,2}(?:\.[0-9]{1,2})?)?")
_INTERPRETER: Final = re.compile(r"(py|cp)(3)([0-9]{0,2})")
_COMMON: Final = ("--no-deps", "--only-binary=:all:", "--no-cache-dir", "--progress-bar=off")


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelPin:
    """One wheel, exactly: what the lock records and what a download must give."""

    name: str
    """the project's name, in any spelling (PEP 503 compares)."""
    version: str
    """PEP 440, without operator."""
    filename: str
    """PEP 427 file name; its tags tell pip which file is meant."""
    digest: Digest
    """sha256 of the file."""
    size: int | None
    """bytes; None where only the hash was recorded, then `WHEEL_BYTES` is the bound."""

    def __post_init__(self) -> None:
        version = _check_name(self.name, self.version)
        try:
            name, file_version, _build, _tags = parse_wheel_filename(self.filename)
        except (InvalidWheelFilename, InvalidVersion, ValueError) as error:
            raise DocumentError(printable(self.filename), ("is not the file name of a wheel (PEP 427)",)) from error
        if not self.filename.isprintable() or len(self.filename) > _FILENAME_CHARACTERS or "/" in self.filename:
            raise DocumentError(printable(self.filename), ("is not a plain file name",))
        if (name, file_version) != (canonicalize_name(self.name), version):
            raise DocumentError(self.filename, (f"is not a file of {self.name} {self.version}",))
        if self.digest.algorithm != "sha256":
            raise DocumentError(self.filename, ("wheels are pinned by sha256",))
        if self.size is not None and not 0 < self.size <= WHEEL_BYTES:
            raise DocumentError(self.filename, (f"size {self.size} is not between 1 and {WHEEL_BYTES} bytes",))


def download_wheel(pin: WheelPin, target: Path, *, offline: bool, progress: Progress = SILENT) -> int:
    """Bring a pinned wheel into the file `target` and return its size in bytes, which is what was moved.

    pip writes into a temporary folder beside `target` (up to twice the wheel's size for a moment, because pip
    copies). Only a file with the pinned size and sha256 gets the name `target`; an older file there is replaced
    in one step. If this process is killed hard, a folder `.fetch-*` may stay, never a half `target`.

    Args:
        pin: what to fetch.
        target: the file to make; its folder must exist.
        offline: refuse instead of fetching.
        progress: gets one task in bytes.

    Raises:
        OfflineMissError: `offline` is set.
        DigestMismatchError: the index has other bytes under this name.
        ToolError: pip is absent, failed, or stood still for `STALL_SECONDS`.
        StorageError: the disk refuses.

    Not checked: the content of the wheel, and bytes of index pages, which pip does not count.
    """
    if offline:
        raise OfflineMissError(
            pin.filename,
            "is needed and --offline forbids fetching it",
            expected=pin.digest,
            actual="not in the cache",
        )
    limit = WHEEL_BYTES if pin.size is None else pin.size
    with (
        work_folder(target.parent, prefix=".fetch-") as work,
        progress.task(f"fetching {pin.filename}", pin.size) as task,
    ):
        requirements = work / "requirements.txt"
        extract_file(requirements, [f"{pin.name}=={pin.version} --hash={pin.digest}\n".encode("ascii")])
        _, _, _, tags = parse_wheel_filename(pin.filename)
        found = _download(
            ["--require-hashes", "--requirement", str(requirements), *tag_arguments(tags)],
            work,
            subject=pin.filename,
            limit=limit,
            advance=task.advance,
            expected=pin.digest,
        )
        digest, size = _measured(found)
        _check_measured(digest, size, pin)
        move(found, target)
        return size


def resolve_wheel(
    name: str,
    version: str,
    *,
    platforms: tuple[str, ...],
    python_version: str | None = None,
    offline: bool,
    keep: Path | None = None,
    progress: Progress = SILENT,
) -> WheelPin:
    """Ask pip which wheel `name==version` is for a list of platform tags.

    Without `keep`, the answer is what the index says (file name and sha256, no size); pip moves a few hundred kB
    where the index has PEP 658 metadata or answers ranges and pip is new enough, and the whole wheel otherwise.
    With `keep`, the wheel is downloaded into that folder under its own name, and size and sha256 are measured.

    Args:
        name: project name (PEP 508).
        version: exact version (PEP 440).
        platforms: every platform tag that may match, for example `manylinux_2_17_aarch64`; pip compares literally.
            `("any",)` takes wheels without native code.
        python_version: `3.12`, `3.12.1` or `312` of the image; None takes what fits the running interpreter and
            ignores the wheel's Requires-Python.
        offline: refuse instead of asking.
        keep: an existing folder for the file.
        progress: gets one task in bytes when `keep` is given.

    Raises:
        OfflineMissError: `offline` is set.
        DocumentError: name, version, platform or Python version is not of its grammar.
        IntegrityError: pip's answer is another project, another version, or not readable.
        ToolError: pip failed, which includes "no such wheel".
        StorageError: the disk refuses.
    """
    wanted = _check_name(name, version)
    subject = f"{name}=={version}"
    selection = _selection(subject, platforms, python_version)
    if offline:
        raise OfflineMissError(
            subject, "must be looked up and --offline forbids it", hint="run `imgbuild lock IMAGE` without --offline"
        )
    with work_folder(keep, prefix=".fetch-") as work:
        if keep is None:
            filename, digest = _report(subject, selection, work)
            if digest is not None:
                return _pin(name, wanted, filename, digest, None)
        with progress.task(f"fetching {subject}") as task:
            found = _download([*selection, subject], work, subject=subject, limit=WHEEL_BYTES, advance=task.advance)
        digest, size = _measured(found)
        pin = _pin(name, wanted, found.name, digest, size)
        if keep is not None:
            move(found, keep / found.name)
        return pin


def _check_name(name: str, version: str) -> Version:
    """The parsed version; names and versions become arguments and lines, so their grammar is checked first."""
    if not _NAME.fullmatch(name):
        raise DocumentError(f"project {printable(name, 140)!r}", ("is not a project name (PEP 508)",))
    try:
        parsed = Version(version)
    except (InvalidVersion, ValueError) as error:
        raise DocumentError(
            f"version {printable(version, 140)!r} of {name}", ("is not a version (PEP 440)",)
        ) from error
    if len(version) > 100 or not version.isascii() or version.strip() != version:  # noqa: PLR2004
        raise DocumentError(f"version {printable(version, 140)!r} of {name}", ("is not a plain version",))
    return parsed


def _selection(subject: str, platforms: tuple[str, ...], python_version: str | None) -> list[str]:
    if not platforms or not all(_PLATFORM.fullmatch(tag) for tag in platforms):
        raise DocumentError(subject, ("platforms are a list of tags such as manylinux_2_17_aarch64 (PEP 425)",))
    arguments = [f"--platform={tag}" for tag in platforms]
    if python_version is None:
        return [*arguments, "--ignore-requires-python"]
    if not _PYTHON.fullmatch(python_version):
        raise DocumentError(subject, (f"Python version {printable(python_version, 40)!r} is not like 3.12",))
    return [*arguments, f"--python-version={python_version}"]


def tag_arguments(tags: frozenset[Tag]) -> list[str]:
    """The options with which pip takes exactly the file that has these tags (PEP 425).

    Requires-Python is ignored: the file is pinned, and it is not for the interpreter that runs this program. Tags that
    are neither of py3 nor of CPython 3 are a `DocumentError`. Files that differ in the build number have the same tags.
    """
    arguments = [f"--platform={platform}" for platform in sorted({tag.platform for tag in tags})]
    arguments.append("--ignore-requires-python")
    if any((tag.interpreter, tag.abi) == ("py3", "none") for tag in tags):
        return [*arguments, "--implementation=py", "--abi=none"]
    interpreters = sorted({tag.interpreter for tag in tags}, reverse=True)
    matches = [match for interpreter in interpreters if (match := _INTERPRETER.fullmatch(interpreter))]
    if not matches:
        raise DocumentError("wheel", (f"tags for {', '.join(interpreters)} are neither py3 nor CPython 3",))
    kind, major, minor = matches[0].groups()
    arguments += [f"--implementation={kind}", f"--python-version={major}{'.' if minor else ''}{minor}"]
    return [*arguments, *(f"--abi={abi}" for abi in sorted({tag.abi for tag in tags}))]


def _report(subject: str, selection: list[str], work: Path) -> tuple[str, Digest | None]:
    """File name and, if the index tells it, sha256 from an installation report (PyPA, pip's report format 1)."""
    report = work / "report.json"
    arguments = ["install", "--dry-run", "--ignore-installed", f"--target={work / 'none'}", f"--report={report}"]
    if reads_ranges():
        arguments.append("--use-feature=fast-deps")
    run_pip([*arguments, *_COMMON, *selection, subject], work, subject=subject, limit=WHEEL_BYTES)
    try:
        with report.open("rb") as stream:
            text = stream.read(REPORT_BYTES + 1)
        if len(text) > REPORT_BYTES:
            raise IntegrityError(subject, f"pip's report is larger than {REPORT_BYTES} bytes")
        (item,) = json.loads(text)["install"]
        info = item["download_info"]
        filename = unquote(urlsplit(str(info["url"])).path).rsplit("/", 1)[-1]
        encoded = info["archive_info"].get("hashes", {}).get("sha256")
    except ImgbuildError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise IntegrityError(subject, "pip's report is not one download with one file") from error
    return filename, None if encoded is None else Digest("sha256", str(encoded))


def _pin(name: str, version: Version, filename: str, digest: Digest, size: int | None) -> WheelPin:
    try:
        return WheelPin(name=name, version=str(version), filename=filename, digest=digest, size=size)
    except DocumentError as error:
        raise IntegrityError(f"{name}=={version}", f"pip chose another file: {error}") from error


def _download(
    arguments: Sequence[str],
    work: Path,
    *,
    subject: str,
    limit: int,
    advance: Callable[[int], None],
    expected: Digest | None = None,
) -> Path:
    folder = work / "wheel"
    make_folder(folder)
    arguments = ["download", f"--dest={folder}", *_COMMON, *arguments]
    run_pip(arguments, work, subject=subject, limit=limit, advance=advance, expected=expected)
    found = sorted(folder.iterdir())
    if len(found) != 1 or not found[0].is_file() or found[0].is_symlink():
        raise IntegrityError(subject, "pip did not bring exactly one file", actual=f"{len(found)} files")
    return found[0]


def _measured(found: Path) -> tuple[Digest, int]:
    """sha256 and size in bytes of what pip brought, which is on the disk then."""
    with storage_errors(found), found.open("rb") as stream:
        os.fsync(stream.fileno())
        return digest_of(chunks(stream))


def _check_measured(digest: Digest, size: int, pin: WheelPin) -> None:
    if pin.size is not None and size != pin.size:
        raise DigestMismatchError(
            pin.filename,
            "has another size",
            expected=f"{pin.size} bytes",
            actual=f"{size} bytes",
            where=INDEX,
            hint=OTHER_BYTES,
        )
    if digest != pin.digest:
        raise DigestMismatchError(
            pin.filename, "has other bytes", expected=pin.digest, actual=digest, where=INDEX, hint=OTHER_BYTES
        )
