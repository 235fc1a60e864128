"""Credential programs: the protocol of docker-credential-helpers, spoken with `docker-credential-NAME get`."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from typing import IO, TYPE_CHECKING, Final, cast

from imgbuild.adapters.process import ERROR_BYTES, Drain, end, wait
from imgbuild.adapters.registry.credential import Credentials, Secret
from imgbuild.config import KIB
from imgbuild.errors import CredentialError, DocumentError
from imgbuild.jsontext import loads
from imgbuild.text import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_ANSWER_BYTES: Final = 64 * KIB
"""bytes that a credential program may answer."""
_SAID_CHARACTERS: Final = 300
_WORD_CHARACTERS: Final = 100
_PROGRAM: Final = re.compile(r"[a-z0-9._-]{1,64}")
_NOT_FOUND: Final = b"credentials not found in native keychain"
_LABEL: Final = re.compile(r"(?i)pass|pwd|secret|token|bearer|basic|(?:auth|cred|key|user)\w*\W*[:=]")
_FLOOD: Final = f"answered more than {MAX_ANSWER_BYTES} bytes"
_HARMLESS: Final = re.compile(
    r"[\"'`(]*/?[A-Za-z]{1,24}(?:[./'_-][A-Za-z]{1,24}){0,9}[\"'`).,:;!?]*|[0-9]{1,4}[).,:;]*"
)


class Program:
    """One credential program, `docker-credential-NAME`; `configured` says where it is named."""

    def __init__(self, name: str, configured: str, environ: Mapping[str, str]) -> None:
        self._name = f"docker-credential-{printable(name)}"
        self._valid = _PROGRAM.fullmatch(name) is not None
        self._configured = configured
        self._environ = environ

    def get(self, server: str, seconds: float) -> Credentials | None:
        """The credentials of a server; None if the program says that it has none, or answers with empty ones."""
        status, output, errors = self._run(self._path(), server, seconds)
        if status > 0 and output.strip() == _NOT_FOUND:
            return None
        if status != 0:
            hint = f"run `{self._name} get` by itself, with {server} as its input, to see all that it says"
            problem = f"failed with status {status}" if status > 0 else f"was ended by signal {-status}"
            raise self._refused(problem, actual=_said(output, errors, server), hint=hint)
        answer = None
        with contextlib.suppress(DocumentError):
            answer = loads(output, subject=self._name, max_bytes=MAX_ANSWER_BYTES)
        if not isinstance(answer, dict):
            raise self._refused("did not answer with one JSON object")
        username, secret = answer.get("Username"), answer.get("Secret")
        if not isinstance(username, str) or not isinstance(secret, str):
            raise self._refused("did not answer with a Username and a Secret that are texts")
        if not username and not secret:
            return None
        origin = f"{self._name}, {self._configured}"
        if username == "<token>":
            return Credentials(secret=Secret(secret), kind="identity-token", origin=origin)
        return Credentials(username=username, secret=Secret(secret), kind="basic", origin=origin)

    def _path(self) -> str:
        if not self._valid:
            raise self._refused("is not the name of a program", hint="a name is made of a-z, 0-9, and . _ -")
        # A relative folder of PATH could be one of the repository that is built.
        folders = [part for part in self._environ.get("PATH", os.defpath).split(os.pathsep) if os.path.isabs(part)]
        if path := shutil.which(self._name, path=os.pathsep.join(folders) or os.devnull):
            return path
        hint = f"install {self._name}, or take it out of the configuration and log in again"
        raise self._refused("is configured and not on PATH", hint=hint)

    def _run(self, path: str, server: str, seconds: float) -> tuple[int, bytes, str]:
        """Status, output and errors of one run. It sees all variables, for its keys may be there."""
        try:
            child = subprocess.Popen(
                [path, "get"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=os.sep,
                env=self._environ,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise self._refused("cannot be started", actual=getattr(error, "strerror", None)) from error
        problem, output = None, Drain(child.stdout, MAX_ANSWER_BYTES)
        errors = Drain(child.stderr, ERROR_BYTES, keep="last")
        try:
            with contextlib.suppress(OSError), cast("IO[bytes]", child.stdin) as stdin:
                stdin.write(server.encode())
            problem = wait(child, seconds=seconds, check=lambda: _FLOOD if output.overflow else None)
        finally:
            end(child, output, errors)
        if problem := problem or (_FLOOD if output.overflow else None):
            raise self._refused(problem)
        return child.returncode, bytes(output.data), errors.text()

    def _refused(self, problem: str, *, actual: str | None = None, hint: str | None = None) -> CredentialError:
        return CredentialError(self._name, problem, actual=actual, where=self._configured, hint=hint)


def _said(output: bytes, errors: str, server: str) -> str | None:
    """What a failed program said, as one line in which everything that may be a secret is `***`.

    Plain words and small numbers are kept, unless they follow a word like "password"; what looks like an answer is left
    out whole. A secret of letters alone in the middle of prose would pass: it cannot be told from a word.
    """
    text = f"{output.decode('utf-8', 'replace')} {errors}"
    if '"secret"' in text.casefold():
        return "(an answer that is not shown, for it holds a secret)"
    words: list[str] = []
    hidden = False
    for word in text.split():
        short = len(word) <= _WORD_CHARACTERS
        filler, harmless = word in {"is", "was"}, short and bool(_HARMLESS.fullmatch(word))
        words.append(word if filler or word == server or (harmless and not hidden) else "***")
        hidden = not short or bool(_LABEL.search(word)) or (hidden and (filler or not harmless))
        if sum(map(len, words)) > _SAID_CHARACTERS:
            break
    return " ".join(words) or None
