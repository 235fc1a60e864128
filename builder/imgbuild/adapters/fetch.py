"""Pinned wheels through pip, which alone knows where this machine's indexes are.

No index host is named here: pip reads its own configuration (`pip.conf`, `PIP_INDEX_URL` and the like). pip is a
child process with a list of arguments, a cleaned environment and no standard input. Its answer is not believed:
size and sha256 are checked here again before a file gets its name.

pip matches `--platform` literally, so every platform tag of a file name is handed to it (PEP 425, PEP 600).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from imgbuild.config import GIB, KIB, MIB
from imgbuild.digest import Digest, chunks, digest_of
from imgbuild.errors import (
    DigestMismatchError,
    DocumentError,
    ImgbuildError,
    IntegrityError,
    OfflineMissError,
    StorageError,
    ToolError,
)
from imgbuild.progress import SILENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from packaging.tags import Tag

    from imgbuild.progress import Progress

WHEEL_BYTES: Final = 8 * GIB
"""bytes of a wheel whose size is not known yet; a bound against endless answers, not an estimate."""
REPORT_BYTES: Final = 16 * MIB
"""bytes of pip's installation report; it holds the metadata of one wheel."""
STALL_SECONDS: Final = 600.0
"""seconds without a new byte before pip is stopped; pip's own socket timeouts (15 by default) end first."""
POLL_SECONDS: Final = 0.2
"""seconds between two looks at the growing file."""
GRACE_SECONDS: Final = 5.0
"""seconds that pip gets to end by itself after SIGTERM."""
_SLACK_BYTES: Final = 64 * KIB
_ERROR_LINES: Final = 8
_ERROR_BYTES: Final = 64 * KIB
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")
_PLATFORM: Final = re.compile(r"[a-z0-9_]{1,64}")
_PYTHON: Final = re.compile(r"3(?:\.?[0-9]{1,2}(?:\.[0-9]{1,2})?)?")
_INTERPRETER: Final = re.compile(r"(py|cp)(3)([0-9]{0,2})")
_GOT: Final = re.compile(r"\bGot\s+([0-9a-f]{64})\b")
_URL_SECRET: Final = re.compile(r"(?<=://)[^/\s]*@")
_URL_QUERY: Final = re.compile(r"(://[^\s?#]*)[?#]\S*")
_FAST_DEPS_PIP: Final = Version("25.3")
_COMMON: Final = ("--no-deps", "--only-binary=:all:", "--no-cache-dir", "--progress-bar=off")
_KEPT_ENV: Final = re.compile(
    r"PATH|HOME|LANG|LC_ALL|LC_CTYPE|NETRC|PYTHONPATH|PYTHONHOME|VIRTUAL_ENV|XDG_CONFIG_(?:HOME|DIRS)"
    r"|SSL_CERT_(?:FILE|DIR)|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|(?i:(?:HTTPS?|ALL|NO)_PROXY)"
    r"|PIP_(?:CONFIG_FILE|INDEX_URL|EXTRA_INDEX_URL|NO_INDEX|FIND_LINKS|TRUSTED_HOST|CERT|CLIENT_CERT|PROXY"
    r"|DEFAULT_TIMEOUT|TIMEOUT|RETRIES|KEYRING_PROVIDER)"
)


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
            raise DocumentError(_shown(self.filename), ("is not the file name of a wheel (PEP 427)",)) from error
        if len(self.filename) > 255 or _shown(self.filename) != self.filename or "/" in self.filename:  # noqa: PLR2004
            raise DocumentError(_shown(self.filename), ("is not a plain file name",))
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
            pin.filename, "is needed and --offline forbids fetching it", hint="run once without --offline"
        )
    limit = WHEEL_BYTES if pin.size is None else pin.size
    with _workspace(target.parent) as work, progress.task(f"fetch {pin.filename}", pin.size) as task:
        requirements = work / "requirements.txt"
        requirements.write_text(f"{pin.name}=={pin.version} --hash={pin.digest}\n", encoding="ascii")
        _, _, _, tags = parse_wheel_filename(pin.filename)
        found = _download(
            ["--require-hashes", "--requirement", str(requirements), *_tag_arguments(tags)],
            work,
            subject=pin.filename,
            limit=limit,
            advance=task.advance,
            expected=pin.digest,
        )
        size = _verify(found, pin)
        os.replace(found, target)
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
            subject, "must be looked up and --offline forbids it", hint="run `imgbuild lock` without --offline"
        )
    with _workspace(keep) as work:
        if keep is None:
            filename, digest = _report(subject, selection, work)
            if digest is not None:
                return _pin(name, wanted, filename, digest, None)
        with progress.task(f"fetch {subject}") as task:
            found = _download([*selection, subject], work, subject=subject, limit=WHEEL_BYTES, advance=task.advance)
        with found.open("rb") as stream:
            digest, size = digest_of(chunks(stream))
        pin = _pin(name, wanted, found.name, digest, size)
        if keep is not None:
            os.replace(found, keep / found.name)
        return pin


def _check_name(name: str, version: str) -> Version:
    """The parsed version; names and versions become arguments and lines, so their grammar is checked first."""
    if not _NAME.fullmatch(name):
        raise DocumentError(f"project {_shown(name[:140])!r}", ("is not a project name (PEP 508)",))
    try:
        parsed = Version(version)
    except (InvalidVersion, ValueError) as error:
        raise DocumentError(f"version {_shown(version[:140])!r} of {name}", ("is not a version (PEP 440)",)) from error
    if len(version) > 100 or not version.isascii() or version.strip() != version:  # noqa: PLR2004
        raise DocumentError(f"version {_shown(version[:140])!r} of {name}", ("is not a plain version",))
    return parsed


def _selection(subject: str, platforms: tuple[str, ...], python_version: str | None) -> list[str]:
    if not platforms or not all(_PLATFORM.fullmatch(tag) for tag in platforms):
        raise DocumentError(subject, ("platforms are a list of tags such as manylinux_2_17_aarch64 (PEP 425)",))
    arguments = [f"--platform={tag}" for tag in platforms]
    if python_version is None:
        return [*arguments, "--ignore-requires-python"]
    if not _PYTHON.fullmatch(python_version):
        raise DocumentError(subject, (f"Python version {_shown(python_version[:40])!r} is not like 3.12",))
    return [*arguments, f"--python-version={python_version}"]


def _tag_arguments(tags: frozenset[Tag]) -> list[str]:
    """The options with which pip takes exactly the file that has these tags.

    Requires-Python is ignored: the file is pinned, and it is not for the interpreter that runs this program.
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
    if _reads_ranges():
        arguments.append("--use-feature=fast-deps")
    _run_pip([*arguments, *_COMMON, *selection, subject], work, subject=subject, limit=WHEEL_BYTES)
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


def _reads_ranges() -> bool:
    """Whether `fast-deps` saves a dry run the download; pip 24.3 still fetched all, 25.3 does not."""
    try:
        return Version(metadata.version("pip")) >= _FAST_DEPS_PIP
    except (metadata.PackageNotFoundError, InvalidVersion):
        return False


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
    folder.mkdir()
    arguments = ["download", f"--dest={folder}", *_COMMON, *arguments]
    _run_pip(arguments, work, subject=subject, limit=limit, advance=advance, expected=expected)
    found = sorted(folder.iterdir())
    if len(found) != 1 or not found[0].is_file() or found[0].is_symlink():
        raise IntegrityError(subject, "pip did not bring exactly one file", actual=f"{len(found)} files")
    return found[0]


def _verify(found: Path, pin: WheelPin) -> int:
    with found.open("rb") as stream:
        digest, size = digest_of(chunks(stream))
        os.fsync(stream.fileno())
    if pin.size is not None and size != pin.size:
        raise DigestMismatchError(
            pin.filename, "has another size", expected=f"{pin.size} bytes", actual=f"{size} bytes"
        )
    if digest != pin.digest:
        raise DigestMismatchError(pin.filename, "has other bytes", expected=pin.digest, actual=digest)
    return size


def _run_pip(
    arguments: Sequence[str],
    work: Path,
    *,
    subject: str,
    limit: int,
    advance: Callable[[int], None] = lambda _count: None,
    expected: Digest | None = None,
) -> None:
    """Run pip to its end, telling of the largest growing file; stop it when it exceeds `limit` or stands still."""
    log = work / "stderr.txt"
    try:
        with log.open("wb") as stderr:
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", "pip", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                cwd=work,
                env=_environment(work),
            )
    except OSError as error:
        raise ToolError("pip", "cannot be started", actual=error.strerror) from error
    try:
        _watch(child, work, subject=subject, limit=limit, advance=advance)
    finally:
        _end(child)
    if child.returncode != 0:
        raise _failure(log, subject, child.returncode, expected)


def _environment(work: Path) -> dict[str, str]:
    """What pip may see: paths, indexes, certificates, proxies. No tokens, no options that change the question.

    An empty constraints file of ours outranks a configured one: an exact version needs none, and one that
    excludes it would make the lock unusable on that machine.
    """
    temporary = work / "tmp"
    temporary.mkdir(exist_ok=True)
    nothing = work / "constraints.txt"
    nothing.touch()
    kept = {name: value for name, value in os.environ.items() if _KEPT_ENV.fullmatch(name)}
    return kept | {
        "TMPDIR": str(temporary),
        "PIP_CONSTRAINT": str(nothing),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_COLOR": "1",
        "PIP_NO_INPUT": "1",
        "PIP_QUIET": "1",
    }


def _watch(
    child: subprocess.Popen[bytes], work: Path, *, subject: str, limit: int, advance: Callable[[int], None]
) -> None:
    told = before = 0
    last = time.monotonic()
    running = True
    while running:
        try:
            child.wait(POLL_SECONDS)
            running = False
        except subprocess.TimeoutExpired:
            pass
        sizes = list(_sizes(work))
        largest, total = max(sizes, default=0), sum(sizes)
        if largest > limit + _SLACK_BYTES:
            raise IntegrityError(subject, "is larger than it may be", expected=f"{limit} bytes", actual=largest)
        if largest > told:
            advance(largest - told)
            told = largest
        if total != before:
            before, last = total, time.monotonic()
        elif running and time.monotonic() - last > STALL_SECONDS:
            raise ToolError("pip", f"got no byte of {subject} for {STALL_SECONDS:.0f} seconds and was stopped")


def _sizes(work: Path) -> Iterator[int]:
    """Sizes in bytes of the wheels that pip has under its hands; its own files come and go meanwhile."""
    for folder, _folders, files in os.walk(work):
        for name in files:
            if name.endswith(".whl"):
                try:
                    yield os.lstat(os.path.join(folder, name)).st_size
                except OSError:
                    continue


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _failure(log: Path, subject: str, status: int, expected: Digest | None) -> ImgbuildError:
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - _ERROR_BYTES))
        text = stream.read(_ERROR_BYTES).decode("utf-8", "replace")
    got = _GOT.search(text)
    if expected is not None and got is not None:
        return DigestMismatchError(
            subject,
            "the index has other bytes under this name",
            expected=expected,
            actual=f"sha256:{got[1]}",
            hint="find out who changed it before you make a new lock",
        )
    lines = [_shown(_redacted(line.strip())) for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")] or lines
    return ToolError(
        "pip",
        f"could not get {subject} (status {status}): {' | '.join(errors[-_ERROR_LINES:]) or 'it said nothing'}",
        hint="`python -m pip config list` shows which indexes, proxies and certificates pip uses here",
    )


def _redacted(text: str) -> str:
    return _URL_QUERY.sub(r"\1?...", _URL_SECRET.sub("***@", text))


def _shown(text: str) -> str:
    """Text of others for one line of ours: controls, bidirectional marks and line breaks escaped, bounded."""
    safe = (char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text[:500])
    return "".join(safe)


@contextmanager
def _workspace(parent: Path | None) -> Iterator[Path]:
    try:
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=parent, ignore_cleanup_errors=True) as work:
            yield Path(work).resolve()
    except OSError as error:
        where = error.filename if isinstance(error.filename, str) else str(parent)
        raise StorageError(where, "cannot be written", actual=error.strerror) from error
