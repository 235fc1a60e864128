"""Credentials for one registry host, from the client configuration that `docker login` and `podman login` write.

The file is docker/cli's `config.json` (`auths`, `credHelpers`, `credsStore`), which podman's `auth.json` extends by
keys of the form host/prefix. Programs speak the protocol of docker-credential-helpers. Only what is configured for the
host that is asked for is read or run, and what is configured and cannot be had is an error, never anonymous (case C57).

It is long because the file and the programs are halves of one rule, which says what decides for a host.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import os
import re
import shutil
import stat
import subprocess
import threading
import unicodedata
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import IO, TYPE_CHECKING, Any, Final, Literal, NoReturn, Self, TypeVar, cast

from imgbuild.adapters.process import ERROR_BYTES, Drain, end, wait
from imgbuild.config import KIB, MIB
from imgbuild.errors import CredentialError, DocumentError, InternalError
from imgbuild.jsontext import loads
from imgbuild.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

HELPER_SECONDS: Final = 30.0
"""seconds that a credential program may take."""
MAX_FILE_BYTES: Final = 1 * MIB
"""bytes of a client configuration."""
MAX_ANSWER_BYTES: Final = 64 * KIB
"""bytes that a credential program may answer, and of one secret."""
_SAID_CHARACTERS: Final = 300
_WORD_CHARACTERS: Final = 100
_HUB: Final = "docker.io"
_HUB_NAMES: Final = frozenset({_HUB, "index.docker.io", "registry-1.docker.io"})
_HUB_SERVER: Final = "https://index.docker.io/v1/"
_HOST: Final = re.compile(r"(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?")
_PROGRAM: Final = re.compile(r"[a-z0-9._-]{1,64}")
_VISIBLE: Final = re.compile(r"[\x21-\x7e]+")
_NOT_FOUND: Final = b"credentials not found in native keychain"
_SAFE_PROBLEM: Final = re.compile(r"is not UTF-8 at byte \d+|is nested more than \d+ levels deep|is \d+ bytes long.*")
_POSITION: Final = re.compile(r"line \d+ column \d+")
_LABEL: Final = re.compile(r"(?i)pass|pwd|secret|token|bearer|basic|(?:auth|cred|key|user)\w*\W*[:=]")
_FILLERS: Final = frozenset({"is", "was", "=", ":"})
_FLOOD: Final = f"answered more than {MAX_ANSWER_BYTES} bytes"
_HARMLESS: Final = re.compile(
    r"[\"'`(]*/?[A-Za-z]{1,24}(?:[./'_-][A-Za-z]{1,24}){0,9}[\"'`).,:;!?]*|[0-9]{1,4}[).,:;]*"
)
_T = TypeVar("_T")


class Secret:
    """A text that is shown nowhere: only `reveal` gives it. Two secrets are never equal unless they are one object."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself, for the header or body that needs it."""
        return self._text

    def __repr__(self) -> str:
        return "Secret(***)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not written down")


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What to show to one host.

    Attributes:
        username: None where there is none; may itself be half a secret, so `repr` leaves it out.
        secret: at most `MAX_ANSWER_BYTES` long.
        kind: `basic` is a password for `username`, or for a token service; `identity-token` is an OAuth2 refresh token
            for a token service; `registry-token` is a bearer token for the registry itself.
        origin: where it was found, as may be shown to people.

    Raises:
        CredentialError: a control character (it could begin a header of its own, RFC 9110 section 5.5), a colon in the
            name of a basic user (RFC 7617 section 2), an empty name or token, or a registry token that no header holds.
    """

    username: str | None = field(default=None, repr=False)
    secret: Secret
    kind: Literal["basic", "identity-token", "registry-token"]
    origin: str

    def __post_init__(self) -> None:
        secret = self.secret.reveal()
        for name, text in (("user name", self.username or ""), ("secret", secret)):
            if any(unicodedata.category(char) in {"Cc", "Cs"} for char in text):
                self._refuse(f"have a control character in the {name}")
            if len(text.encode()) > MAX_ANSWER_BYTES:
                self._refuse(f"have a {name} of more than {MAX_ANSWER_BYTES} bytes")
        if self.kind == "basic" and not self.username:
            self._refuse("have a password and no user name")
        if self.kind == "basic" and ":" in (self.username or ""):
            self._refuse("have a colon in the user name, which would move its rest into the password")
        if self.kind != "basic" and not secret:
            self._refuse("have an empty token")
        if self.kind == "registry-token" and not _VISIBLE.fullmatch(secret):
            self._refuse("have a token that is not plain ASCII without spaces")

    def _refuse(self, problem: str) -> NoReturn:
        raise CredentialError("the credentials", problem, where=self.origin)


def basic_header(credentials: Credentials) -> str:
    """The value of `Authorization` for a user and password (RFC 7617, in UTF-8); of another kind it is a bug."""
    if credentials.kind != "basic":
        raise InternalError("basic credentials", "are needed here", expected="basic", actual=credentials.kind)
    pair = f"{credentials.username}:{credentials.secret.reveal()}"
    return "Basic " + base64.b64encode(pair.encode()).decode("ascii")


class CredentialStore:
    """Finds the credentials of a host; safe to use from several threads.

    The file is read when the first host is asked for, the program of a host is run once; failures are kept like
    answers, so that sixty layers do not wait sixty times for a program that hangs.
    """

    def __init__(self, environ: Mapping[str, str], *, seconds: float = HELPER_SECONDS) -> None:
        self._environ = dict(environ)
        self._seconds = seconds
        self._lock = threading.Lock()
        self._kept: dict[str, object] = {}

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], *, seconds: float = HELPER_SECONDS) -> Self:
        """The store of whoever runs this.

        Args:
            environ: variables. The file is `REGISTRY_AUTH_FILE` alone if that is set, as podman has it; otherwise the
                first that exists of `$DOCKER_CONFIG/config.json` (`~/.docker/config.json` if not set) and
                `$XDG_RUNTIME_DIR/containers/auth.json`. Programs are searched on `PATH` and see all variables.
            seconds: that one program may take.
        """
        return cls(environ, seconds=seconds)

    def find(self, host: str, repository: str) -> Credentials | None:
        """What is configured for a repository of a host; None if nothing is.

        A program in `credHelpers` for the host has the only word. One in `credsStore` is asked next, and `auths` if it
        has none or is not configured: there the key with the longest matching prefix counts (podman), then the host's.
        Entries of other hosts are not looked at, and not checked. The `ServerURL` of an answer is not compared.

        Args:
            host: `host[:port]`; the names of Docker Hub are one host.
            repository: `a/b`, without the host.

        Raises:
            CredentialError: the file cannot be read or understood, or what it says for this host cannot be had.
        """
        host = _canonical(host)
        if not _HOST.fullmatch(host):
            raise CredentialError(f"host {printable(host)!r}", "is not a host name with an optional port")
        with self._lock:
            return self._find(host, repository)

    def _find(self, host: str, repository: str) -> Credentials | None:
        config = self._once("file", self._load)
        if config is None:
            return None
        setting, name = config.program(host)
        if name:
            program = _Program(name, f"{setting} of {config.path}", self._environ)
            found = self._once(f"program {host}", partial(program.get, _server(host), self._seconds))
            if found is not None or setting != "credsStore":
                return found
        for key, label in config.keys(host, repository):
            if found := self._once(f"entry {key}", partial(config.entry, key, label)):
                return found
        return None

    def _once(self, name: str, make: Callable[[], _T]) -> _T:
        if name not in self._kept:
            try:
                self._kept[name] = make()
            except CredentialError as error:
                self._kept[name] = error
        kept = self._kept[name]
        if isinstance(kept, CredentialError):
            raise copy.copy(kept)
        return cast("_T", kept)

    def _load(self) -> _Config | None:
        """The first client configuration that exists."""
        explicit = self._environ.get("REGISTRY_AUTH_FILE")
        home = self._environ.get("HOME") or os.path.expanduser("~")
        paths = [os.path.join(self._environ.get("DOCKER_CONFIG") or os.path.join(home, ".docker"), "config.json")]
        if runtime := self._environ.get("XDG_RUNTIME_DIR"):
            paths.append(os.path.join(runtime, "containers", "auth.json"))
        for path in [explicit] if explicit else paths:
            if (data := _read(path)) is not None:
                return _Config(data, printable(path))
        if explicit:
            raise CredentialError(
                f"client configuration {printable(explicit)}", "does not exist", where="REGISTRY_AUTH_FILE"
            )
        return None


class _Config:
    """One client configuration; `path` is safe to show."""

    def __init__(self, data: bytes, path: str) -> None:
        self.path = path
        document = self._object(self._parsed(data) if data else {}, "the document")
        self._auths = self._object(document.get("auths"), "auths")
        self._helpers = self._object(document.get("credHelpers"), "credHelpers")
        self._store = self._text(document, "credsStore", "credsStore")

    def program(self, host: str) -> tuple[str, str]:
        """The setting that decides about a host, and the program it names; none is empty."""
        for key in sorted(self._helpers, key=_rank(host)):
            if _place(key) == (host, ""):
                return "credHelpers", self._text(self._helpers, key, f"credHelpers[{host}]")
        return "credsStore", self._store

    def keys(self, host: str, repository: str) -> list[tuple[str, str]]:
        """The keys of `auths` that hold for a repository, the most exact first, each with a name that may be shown."""
        found = []
        for key in sorted(self._auths, key=_rank(host)):
            place, prefix = _place(key)
            if place == host and (not prefix or f"{repository}/".startswith(f"{prefix}/")):
                found.append((-len(prefix), key, f"auths[{host}/{prefix}]" if prefix else f"auths[{host}]"))
        found.sort(key=itemgetter(0))
        return [(key, label) for _, key, label in found]

    def entry(self, key: str, label: str) -> Credentials | None:
        """The credentials of one key of `auths`; None if it holds none, as where a program keeps them."""
        fields = self._object(self._auths[key], label)
        names = ("auth", "username", "password", "identitytoken", "registrytoken")
        auth, username, password, identity, registry = (self._text(fields, n, f"{label}.{n}") for n in names)
        if auth:
            username, password = self._pair(auth, f"{label}.auth")
        origin = f"{label} of {self.path}"
        if registry:
            return Credentials(username=username or None, secret=Secret(registry), kind="registry-token", origin=origin)
        if identity:
            return Credentials(username=username or None, secret=Secret(identity), kind="identity-token", origin=origin)
        if not username and not password:
            return None
        if not auth and not password:
            raise self._refused("has a user name without a password", label)
        return Credentials(username=username, secret=Secret(password), kind="basic", origin=origin)

    def _pair(self, auth: str, where: str) -> tuple[str, str]:
        pair = ""
        with contextlib.suppress(ValueError):
            pair = base64.b64decode(auth, validate=True).decode("utf-8")
        username, colon, password = pair.partition(":")
        if not colon:
            raise self._refused("has a field that is not the base64 of user:password", where)
        return username, password.strip("\0")

    def _parsed(self, data: bytes) -> Any:
        # What was wrong is told without the parser's words, which quote numbers, and outside of its exception, which
        # holds the whole text.
        try:
            return loads(data, subject=self.path, max_bytes=MAX_FILE_BYTES)
        except DocumentError as error:
            problem = error.problem
        position = _POSITION.search(problem)
        if "twice" in problem:
            problem = "has a key twice in one object"
        elif not _SAFE_PROBLEM.fullmatch(problem):
            problem = "is not JSON that is accepted here"
        raise self._refused(problem, position[0] if position else None)

    def _object(self, value: Any, where: str) -> Mapping[str, Any]:
        if not isinstance(value, dict | None):
            raise self._refused("has a field that is not an object", where)
        return value or {}

    def _text(self, fields: Mapping[str, Any], name: str, where: str) -> str:
        value = fields.get(name)
        if not isinstance(value, str | None):
            raise self._refused("has a field that is not a text", where)
        return value or ""

    def _refused(self, problem: str, where: str | None) -> CredentialError:
        return CredentialError(f"client configuration {self.path}", problem, where=where)


class _Program:
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


def _read(path: str) -> bytes | None:
    """The bytes of a client configuration, one more than the limit at most; None if there is no such file."""
    if path == os.devnull:
        return b""
    subject = f"client configuration {printable(path)}"
    try:
        with open(path, "rb", opener=_opener) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise CredentialError(subject, "is not a file")
            return file.read(MAX_FILE_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise CredentialError(subject, "cannot be read", actual=getattr(error, "strerror", None)) from error


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


def _canonical(host: str) -> str:
    host = host.lower()
    return _HUB if host in _HUB_NAMES else host


def _server(host: str) -> str:
    """How docker names a host to its programs and in its keys."""
    return _HUB_SERVER if host == _HUB else host


def _place(key: str) -> tuple[str, str]:
    """Host and repository prefix of a key: `host`, `host:port`, `https://host/v1/`, or `host/prefix` (podman)."""
    _, scheme, rest = key.partition("://")
    host, _, path = (rest if scheme else key).partition("/")
    return _canonical(host), "" if scheme or path in {"v1/", "v2/"} else path.rstrip("/")


def _rank(host: str) -> Callable[[str], tuple[bool, bool]]:
    """Keys that mean the same host: docker's own spelling first, then the plain one, then the order of the file."""
    return lambda key: (key != _server(host), key != host)
