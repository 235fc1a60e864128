"""Whether the index that pip is configured for still offers one pinned wheel, without fetching it.

pip is asked which file it would install for exactly the tags of the pinned one, and its installation report tells the
sha256 that the index states. pip says "no matching distribution" of an index that is down, too; so its log decides
whether a file is gone or nobody answered. How pip is run stands in `pipprocess`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from packaging.utils import parse_wheel_filename

from imgbuild import jsontext
from imgbuild.adapters.blobs import bounded, open_regular
from imgbuild.adapters.durable import work_folder
from imgbuild.adapters.fetch import REPORT_BYTES, tag_arguments
from imgbuild.adapters.pipprocess import reads_ranges, redacted, run_pip
from imgbuild.config import MIB
from imgbuild.errors import (
    AvailabilityError,
    DigestMismatchError,
    DocumentError,
    IntegrityError,
    MissingError,
    OfflineMissError,
    ToolError,
    UnauthorizedError,
)
from imgbuild.text import printable

if TYPE_CHECKING:
    from pathlib import Path

    from imgbuild.adapters.fetch import WheelPin
    from imgbuild.errors import ImgbuildError

INDEX: Final = "the index that pip is configured for"
"""Who is asked, for messages: pip alone knows its address."""
WHEEL_BYTES: Final = 8 * MIB
"""bytes of a wheel that pip may fetch to learn of it, where an index has neither PEP 658 metadata nor ranges."""
LOG_BYTES: Final = 16 * MIB
"""bytes of pip's log that are looked at; a project with ten thousand files has 3 MB."""
_OPTIONS: Final = ("--no-deps", "--only-binary=:all:", "--no-cache-dir", "--retries=2", "--timeout=20")
_ERRNO: Final = re.compile(r"\[Errno -?\d+\] ([^'\")>]+)")
_UNFETCHED: Final = re.compile(
    r"Could not fetch URL \S+: (.*?) - skipping|Skipping page [^\n]*|Location '.*' is ignored"
    r"|The repository located at \S+ is not a trusted or secure host"
)
"""What pip's log says of pages that it did not get; where the first group matched, that is the reason."""


def ask_wheel(pin: WheelPin, *, offline: bool) -> None:
    """Return where the index offers a wheel under its file name with the pinned sha256; raise where it does not.

    Nothing is kept: pip works in a temporary folder. It moves the index page and the metadata of one wheel, and where
    the index has neither PEP 658 metadata nor ranges, a wheel of at most `WHEEL_BYTES`.

    Args:
        pin: which wheel; its size is not used.
        offline: refuse instead of asking.

    Raises:
        OfflineMissError: `offline` is set.
        MissingError: the index answered, and it has no such file.
        DigestMismatchError: it states another sha256, or a small wheel without a stated one has another.
        UnauthorizedError: it answered 401 or 403.
        AvailabilityError: nobody can tell without fetching: pip prefers another file that fits the same tags, no
            sha256 is stated, or the wheel would have to be fetched and is too big.
        ToolError: pip is absent, failed or gave no report, which is also how an index that is down looks.
        DocumentError: the tags of the file name are neither of py3 nor of CPython 3.
        StorageError: the disk refuses.

    Not checked: that the file is still behind its link, its size and its bytes, unless pip had to fetch it.
    """
    if offline:
        raise OfflineMissError(pin.filename, "was not asked for, as --offline forbids it")
    with work_folder(None, prefix="imgbuild-check-") as work:
        filename, digest = _offer(_text(_report(pin, work), REPORT_BYTES))
    if filename != pin.filename:
        problem = f"may be there or not: pip prefers {printable(filename)}, which fits the same tags"
        raise AvailabilityError(pin.filename, problem, hint="look into the index")
    if digest is None:
        raise AvailabilityError(
            pin.filename, "is there, and the index tells no sha256 of it", hint="look into the index"
        )
    if digest != f"sha256:{pin.digest.encoded}":
        raise DigestMismatchError(pin.filename, "has other bytes", expected=pin.digest, actual=printable(digest, 100))


def _report(pin: WheelPin, work: Path) -> Path:
    """The file with what pip would install, or why it would not."""
    log, report = work / "pip.log", work / "report.json"
    arguments = ["install", "--dry-run", "--ignore-installed", f"--target={work / 'none'}", f"--report={report}"]
    arguments += [*_OPTIONS, f"--log={log}", *(["--use-feature=fast-deps"] if reads_ranges() else [])]
    arguments += [*tag_arguments(parse_wheel_filename(pin.filename)[3]), f"{pin.name}=={pin.version}"]
    try:
        run_pip(arguments, work, subject=pin.filename, limit=WHEEL_BYTES)
    except ToolError as error:
        raise _not_offered(pin, _text(log, LOG_BYTES), error) from error
    except IntegrityError as error:
        problem = "was not fetched whole, which the index asks for: it has neither metadata apart nor ranges"
        raise AvailabilityError(pin.filename, problem, hint="build with an empty --cache to see") from error
    return report


def _not_offered(pin: WheelPin, log: str, error: ToolError) -> ImgbuildError:
    """What pip's failure means by its log."""
    unheard = [match[1] or match[0] for match in _UNFETCHED.finditer(log)]
    if any(text.startswith(("401 ", "403 ")) for text in unheard):
        return UnauthorizedError(pin.filename, "is not shown by the index", hint=error.hint)
    failed = [text for text in unheard if not text.startswith(("404 ", "410 "))]
    if failed:
        # A folder that is not there says less than a server that does not answer.
        first = min(failed, key=lambda text: text.startswith("Location "))
        return ToolError("pip", f"had no answer from {INDEX}: {_reason(first)}", hint=error.hint)
    heard = "Fetched page " in log or "Looking in links: " in log or bool(unheard)
    if not heard or "No matching distribution found" not in log:
        return error
    return MissingError(pin.filename, f"is not in {INDEX}", hint=error.hint)


def _reason(text: str) -> str:
    """What pip's log says of a page that it did not get, without the chain of exceptions and the URL around it."""
    found = _ERRNO.search(text)
    return printable(redacted(found[1] if found else text.partition(" for url: ")[0]), 200)


def _offer(report: str) -> tuple[str, str | None]:
    """File name and sha256 from an installation report (PyPA, pip's report format 1)."""
    try:
        (item,) = jsontext.loads(report.encode(), subject="report of pip")["install"]
        info: dict[str, Any] = item["download_info"]
        encoded = info["archive_info"].get("hashes", {}).get("sha256")
        filename = unquote(urlsplit(str(info["url"])).path).rsplit("/", 1)[-1]
    except (DocumentError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ToolError(
            "pip", "gave no report of one file", hint="is its version one of those in pyproject.toml?"
        ) from error
    return filename, None if encoded is None else f"sha256:{encoded}"


def _text(path: Path, limit: int) -> str:
    try:
        with open_regular(path) as stream:
            return b"".join(bounded(stream, limit))[:limit].decode("utf-8", "replace")
    except OSError:
        return ""
