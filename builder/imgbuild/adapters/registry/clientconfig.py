"""The client configuration that `docker login` and `podman login` write: docker/cli's `config.json` and `auth.json`.

Only what is said of the host that is asked for is looked at. Nothing of the file is ever quoted.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import stat
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from imgbuild.adapters.registry.credential import Credentials, Secret
from imgbuild.config import MIB
from imgbuild.errors import CredentialError, DocumentError
from imgbuild.jsontext import loads
from imgbuild.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MAX_FILE_BYTES: Final = 1 * MIB
"""bytes of a client configuration."""
_HUB: Final = "docker.io"
_HUB_NAMES: Final = frozenset({_HUB, "index.docker.io", "registry-1.docker.io"})
_HUB_SERVER: Final = "https://index.docker.io/v1/"
_SAFE_PROBLEM: Final = re.compile(r"is not UTF-8 at byte \d+|is nested more than \d+ levels deep|is \d+ bytes long.*")
_POSITION: Final = re.compile(r"line \d+ column \d+")


class ClientConfig:
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


def read_config(path: str) -> bytes | None:
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


def canonical(host: str) -> str:
    """A host in lower case; the names of Docker Hub are one host."""
    host = host.lower()
    return _HUB if host in _HUB_NAMES else host


def server_of(host: str) -> str:
    """How docker names a host to its programs and in its keys."""
    return _HUB_SERVER if host == _HUB else host


def _place(key: str) -> tuple[str, str]:
    """Host and repository prefix of a key: `host`, `host:port`, `https://host/v1/`, or `host/prefix` (podman)."""
    _, scheme, rest = key.partition("://")
    host, _, path = (rest if scheme else key).partition("/")
    return canonical(host), "" if scheme or path in {"v1/", "v2/"} else path.rstrip("/")


def _rank(host: str) -> Callable[[str], tuple[bool, bool]]:
    """Keys that mean the same host: docker's own spelling first, then the plain one, then the order of the file."""
    return lambda key: (key != server_of(host), key != host)
