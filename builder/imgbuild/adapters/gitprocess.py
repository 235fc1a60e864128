"""git as a process; the only module that imports GitPython.

GitPython is used for one thing: `git.cmd.Git.execute` with a list of arguments made here. Its `Repo`, `Remote` and
keyword wrappers read configuration, expand variables and turn values into options, which is where its advisories came
from (CVE-2022-24439, CVE-2023-40267, CVE-2026-42215 and others); none of them is called. Each git process has an
environment of its own, no shell, no terminal, no hooks, one allowed transport and a time limit.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

from imgbuild.adapters.durable import refuse_full
from imgbuild.adapters.giturl import shown
from imgbuild.adapters.process import ERROR_BYTES, Drain, end, wait
from imgbuild.config import GIB, MIB
from imgbuild.errors import InternalError, ToolError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from imgbuild.adapters.giturl import Source

MAX_FETCH_BYTES = 8 * GIB
"""bytes that one fetch may write into the cache; looked at while git runs, so it can be overrun for a moment."""
_OUTPUT_BYTES = 4 * MIB
_ERROR_CHARACTERS = 600
_KEPT = frozenset(
    {"PATH", "TMPDIR", "SSH_AUTH_SOCK", "SSL_CERT_FILE", "SSL_CERT_DIR", "GIT_SSL_CAINFO"}
    | {"http_proxy", "https_proxy", "all_proxy", "no_proxy", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"}
)
"""variables that git inherits; all others are taken away, GIT_* above all."""
_FIXED = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "",
    "SSH_ASKPASS": "",
    "SSH_ASKPASS_REQUIRE": "never",
    "GIT_SSH_VARIANT": "ssh",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_PROTOCOL_FROM_USER": "0",
    "GIT_DEFAULT_REF_FORMAT": "files",
    "LC_ALL": "C",
    "LANGUAGE": "C",
}
_OPTIONS = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.askPass=",
    "credential.helper=",
    "transfer.fsckObjects=true",
    "transfer.bundleURI=false",
    "fetch.fsckObjects=true",
    "fetch.unpackLimit=1",
    "fetch.recurseSubmodules=false",
    "fetch.writeCommitGraph=false",
    "submodule.recurse=false",
    "http.followRedirects=initial",
    "http.sslVerify=true",
    "gc.auto=0",
    "maintenance.auto=false",
)


class Runner:
    """Runs git commands in one bare repository, each for at most `timeout` seconds."""

    def __init__(self, bare: Path, source: Source, timeout: float) -> None:
        self._bare = bare
        self._source = source
        self._timeout = timeout

    def run(self, *arguments: str) -> bytes:
        """The output of one command, at most 4 MiB. Raises `ToolError` when it fails, floods or takes too long.

        A full disk is a `StorageError`.
        """
        process = start(self._bare, self._source, arguments, interactive=False)
        output, errors = Drain(process.stdout, _OUTPUT_BYTES), Drain(process.stderr, ERROR_BYTES, keep="last")
        try:
            problem = wait(process, seconds=self._timeout, check=lambda: self._problem(output))
        finally:
            end(process, output, errors)
        problem = problem or self._problem(output)
        if problem is None and process.returncode != 0:
            problem = f"failed with status {process.returncode}"
        if problem is not None:
            refuse_full(self._bare, errors.text())
            raise ToolError(f"git {arguments[0]}", problem, actual=said(errors), where=self._source.name)
        return bytes(output.data)

    def _problem(self, output: Drain) -> str | None:
        if output.overflow:
            return f"wrote more than {_OUTPUT_BYTES} bytes"
        if _unfinished_bytes(self._bare) > MAX_FETCH_BYTES:
            return f"received more than {MAX_FETCH_BYTES} bytes"
        return None


def said(errors: Drain) -> str | None:
    """The end of what git wrote on stderr, where the reason stands, as one safe line; None when it said nothing."""
    return shown(errors.text().strip(), 8 * ERROR_BYTES)[-_ERROR_CHARACTERS:] or None


def start(bare: Path, source: Source, arguments: Sequence[str], *, interactive: bool) -> subprocess.Popen[bytes]:
    """Start git in a session of its own, so that neither git nor ssh can ask on the terminal.

    `env -u` takes variables away, since GitPython can only add some; values never stand in the arguments.
    """
    if shutil.which("git") is None:
        raise ToolError(
            "git", "is not installed, or not on PATH", where=source.name, hint="install git, and run it again"
        )
    try:
        from git.cmd import Git  # noqa: PLC0415 - 90 ms, and it runs `git version`
        from git.exc import GitError  # noqa: PLC0415
    except ImportError as error:
        raise ToolError("git", "cannot be used", actual=shown(str(error)), hint="install git") from error
    home = str(bare / "no-home")
    fixed = {**_FIXED, "HOME": home, "XDG_CONFIG_HOME": home, "GIT_ALLOW_PROTOCOL": source.protocol}
    removed = [name for name in sorted(os.environ) if name and name not in _KEPT and name not in fixed]
    options = [word for option in _OPTIONS for word in ("-c", option)]
    unset = [word for name in removed for word in ("-u", name)]
    command = ["env", *unset, "git", f"--git-dir={bare}", *options, *arguments]
    try:
        started = Git(str(bare)).execute(
            command,
            as_process=True,
            env=fixed,
            shell=False,
            istream=subprocess.PIPE if interactive else None,
            start_new_session=True,
        )
    except (GitError, OSError, ValueError) as error:
        raise ToolError("git", "could not be started", actual=shown(str(error)), where=source.name) from error
    # GitPython's wrapper would end the process when it is collected; from here it is ours to wait for and to kill.
    process, started.proc = started.proc, None
    if process is None:
        raise InternalError("git", "was started without a process")
    return process


def _unfinished_bytes(bare: Path) -> int:
    total = 0
    with contextlib.suppress(OSError), os.scandir(bare / "objects" / "pack") as entries:
        for entry in entries:
            if entry.name.startswith("tmp_"):
                with contextlib.suppress(OSError):
                    total += entry.stat(follow_symlinks=False).st_size
    return total
