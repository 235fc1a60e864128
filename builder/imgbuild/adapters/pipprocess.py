"""pip as a child process: what it may see, when it is stopped, and what its failures mean.

No index host is named here: pip reads its own configuration (`pip.conf`, `PIP_INDEX_URL` and the like), which alone
knows where this machine's indexes are. It gets a list of arguments, a cleaned environment and no input.
"""

from __future__ import annotations

import os
import re
import sys
import time
from importlib import metadata
from typing import TYPE_CHECKING, Final

from packaging.version import InvalidVersion, Version

from imgbuild.adapters.durable import extract_file, make_folder, refuse_full
from imgbuild.adapters.process import run
from imgbuild.config import KIB
from imgbuild.errors import DigestMismatchError, ImgbuildError, IntegrityError, ToolError
from imgbuild.text import printable, without_credentials

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from imgbuild.digest import Digest

STALL_SECONDS: Final = 600.0
"""seconds without a new byte before pip is stopped; pip's own socket timeouts (15 by default) end first."""
INDEX: Final = "the index that pip asked"
OTHER_BYTES: Final = "was the lock edited? take that back; if not, find out who changed it before you make a new lock"
"""What to do when an index has something else under the name of a locked wheel."""
_SLACK_BYTES: Final = 64 * KIB
_ERROR_LINES: Final = 8
_LINE_CHARACTERS: Final = 500
_GOT: Final = re.compile(r"\bGot\s+([0-9a-f]{64})\b")
_URL_QUERY: Final = re.compile(r"(://[^\s?#]*)[?#]\S*")
_FAST_DEPS_PIP: Final = Version("25.3")
_KEPT_ENV: Final = re.compile(
    r"PATH|HOME|LANG|LC_ALL|LC_CTYPE|NETRC|PYTHONPATH|PYTHONHOME|VIRTUAL_ENV|XDG_CONFIG_(?:HOME|DIRS)"
    r"|SSL_CERT_(?:FILE|DIR)|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|(?i:(?:HTTPS?|ALL|NO)_PROXY)"
    r"|PIP_(?:CONFIG_FILE|INDEX_URL|EXTRA_INDEX_URL|NO_INDEX|FIND_LINKS|TRUSTED_HOST|CERT|CLIENT_CERT|PROXY"
    r"|DEFAULT_TIMEOUT|TIMEOUT|RETRIES|KEYRING_PROVIDER)"
)


def run_pip(
    arguments: Sequence[str],
    work: Path,
    *,
    subject: str,
    limit: int,
    advance: Callable[[int], None] = lambda _count: None,
    expected: Digest | None = None,
) -> None:
    """Run pip to its end in a folder of its own.

    Args:
        arguments: what follows `pip`.
        work: where it runs, keeps its temporary files, and is watched.
        subject: what is fetched, for messages.
        limit: bytes that the largest wheel in `work` may have; a little more is noticed and stops pip.
        advance: is told how many bytes that wheel has grown.
        expected: the digest that pip was told to require.

    Raises:
        IntegrityError: the wheel is larger than `limit`.
        DigestMismatchError: pip found other bytes than `expected`.
        ToolError: pip cannot start, failed, or stood still for `STALL_SECONDS`.
        StorageError: the disk refuses.
    """
    command = [sys.executable, "-P", "-m", "pip", *arguments]
    watch = _Watch(work, subject=subject, limit=limit, advance=advance)
    done = run("pip", command, folder=work, environment=environment(work), keep="last", check=watch.look)
    if done.problem is not None:
        raise ToolError("pip", done.problem, where=subject)
    if done.status != 0:
        refuse_full(work, done.errors)
        raise _failure(done.errors, subject, done.status, expected)


def reads_ranges() -> bool:
    """Whether `fast-deps` saves a dry run the download; pip 24.3 still fetched all, 25.3 does not."""
    try:
        return Version(metadata.version("pip")) >= _FAST_DEPS_PIP
    except (metadata.PackageNotFoundError, InvalidVersion):
        return False


def environment(work: Path) -> dict[str, str]:
    """What pip may see: paths, indexes, certificates, proxies. No tokens, no options that change the question.

    An empty constraints file of ours outranks a configured one: an exact version needs none, and one that
    excludes it would make the lock unusable on that machine.
    """
    temporary, nothing = work / "tmp", work / "constraints.txt"
    make_folder(temporary)
    extract_file(nothing, ())
    kept = {name: value for name, value in os.environ.items() if _KEPT_ENV.fullmatch(name)}
    return kept | {
        "TMPDIR": str(temporary),
        "PIP_CONSTRAINT": str(nothing),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_COLOR": "1",
        "PIP_NO_INPUT": "1",
        "PIP_QUIET": "1",
    }


class _Watch:
    """Looks at the wheels that grow in a folder while pip runs."""

    def __init__(self, work: Path, *, subject: str, limit: int, advance: Callable[[int], None]) -> None:
        self._work = work
        self._subject = subject
        self._limit = limit
        self._advance = advance
        self._told = 0
        self._total = 0
        self._last = time.monotonic()

    def look(self) -> str | None:
        """Tell of the growth; an `IntegrityError` over the limit, a reason to stop when nothing grows."""
        sizes = list(_sizes(self._work))
        largest, total = max(sizes, default=0), sum(sizes)
        if largest > self._limit + _SLACK_BYTES:
            raise IntegrityError(
                self._subject, "is larger than it may be", expected=f"{self._limit} bytes", actual=largest
            )
        if largest > self._told:
            self._advance(largest - self._told)
            self._told = largest
        if total != self._total:
            self._total, self._last = total, time.monotonic()
        elif time.monotonic() - self._last > STALL_SECONDS:
            return f"got no byte for {STALL_SECONDS:.0f} seconds and was stopped"
        return None


def _sizes(work: Path) -> Iterator[int]:
    """Sizes in bytes of the wheels that pip has under its hands; its own files come and go meanwhile."""
    for folder, _folders, files in os.walk(work):
        for name in files:
            if name.endswith(".whl"):
                try:
                    yield os.lstat(os.path.join(folder, name)).st_size
                except OSError:
                    continue


def _failure(text: str, subject: str, status: int, expected: Digest | None) -> ImgbuildError:
    got = _GOT.search(text)
    if expected is not None and got is not None:
        return DigestMismatchError(
            subject,
            "has other bytes than the lock pins",
            expected=expected,
            actual=f"sha256:{got[1]}",
            where=INDEX,
            hint=OTHER_BYTES,
        )
    lines = [printable(redacted(line.strip()), _LINE_CHARACTERS) for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")] or lines
    return ToolError(
        "pip",
        f"could not get {subject} (status {status}): {' | '.join(errors[-_ERROR_LINES:]) or 'it said nothing'}",
        hint="`python -m pip config list` shows which indexes, proxies and certificates pip uses here",
    )


def redacted(text: str) -> str:
    """Text without what may be secret in URLs: credentials, queries (signatures of storage services) and fragments."""
    return _URL_QUERY.sub(r"\1?...", without_credentials(text))
