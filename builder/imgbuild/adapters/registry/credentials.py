"""Credentials for one registry host, from the client configuration that `docker login` and `podman login` write.

The file is docker/cli's `config.json` (`auths`, `credHelpers`, `credsStore`), which podman's `auth.json` extends by
keys of the form host/prefix. Programs speak the protocol of docker-credential-helpers. Only what is configured for the
host that is asked for is read or run, and what is configured and cannot be had is an error, never anonymous (case C57).
"""

from __future__ import annotations

import copy
import os
import re
import threading
from functools import partial
from typing import TYPE_CHECKING, Final, Self, TypeVar, cast

from imgbuild.adapters.home import home
from imgbuild.adapters.registry.clientconfig import MAX_FILE_BYTES, ClientConfig, canonical, read_config, server_of
from imgbuild.adapters.registry.credential import Credentials, Secret, basic_header
from imgbuild.adapters.registry.credentialprogram import MAX_ANSWER_BYTES, Program
from imgbuild.errors import CredentialError
from imgbuild.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["MAX_ANSWER_BYTES", "MAX_FILE_BYTES", "CredentialStore", "Credentials", "Secret", "basic_header"]

HELPER_SECONDS: Final = 30.0
"""seconds that a credential program may take."""
_VARIABLE: Final = "DOCKER_AUTH_CONFIG"
_HOST: Final = re.compile(r"(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?")
_T = TypeVar("_T")


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
            environ: variables. `DOCKER_AUTH_CONFIG` is itself a configuration and asked first, as docker/cli has it;
                what it does not have is looked for in one file: `REGISTRY_AUTH_FILE` alone if that is set, as podman
                has it, otherwise the first that exists of `$DOCKER_CONFIG/config.json` (`~/.docker/config.json` if not
                set) and `$XDG_RUNTIME_DIR/containers/auth.json` (`/run/containers/UID/auth.json` if not set). The
                first two variables have to be absolute paths. Programs are searched on `PATH` and see all variables.
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
        host = canonical(host)
        if not _HOST.fullmatch(host):
            raise CredentialError(f"host {printable(host)!r}", "is not a host name with an optional port")
        with self._lock:
            return self._find(host, repository)

    def _find(self, host: str, repository: str) -> Credentials | None:
        for name, load in (("variable", self._load_variable), ("file", self._load_file)):
            config = self._once(name, load)
            if config is not None and (found := self._find_in(config, host, repository)) is not None:
                return found
        return None

    def _find_in(self, config: ClientConfig, host: str, repository: str) -> Credentials | None:
        setting, name = config.program(host)
        if name:
            program = Program(name, f"{setting} of {config.path}", self._environ)
            get = partial(program.get, server_of(host), self._seconds)
            found = self._once(f"program {host} of {config.path}", get)
            if found is not None or setting != "credsStore":
                return found
        for key, label in config.keys(host, repository):
            if found := self._once(f"entry {key} of {config.path}", partial(config.entry, key, label)):
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

    def _load_variable(self) -> ClientConfig | None:
        text = self._environ.get(_VARIABLE)
        return ClientConfig(text.encode("utf-8", "surrogateescape"), _VARIABLE) if text else None

    def _load_file(self) -> ClientConfig | None:
        """The first client configuration that exists."""
        explicit = self._environ.get("REGISTRY_AUTH_FILE")
        if explicit:
            _require_absolute("REGISTRY_AUTH_FILE", explicit)
        for path in [explicit] if explicit else default_files(self._environ, os.getuid()):
            if (data := read_config(path)) is not None:
                return ClientConfig(data, printable(path))
        if explicit:
            raise CredentialError(
                f"client configuration {printable(explicit)}", "does not exist", where="REGISTRY_AUTH_FILE"
            )
        return None


class NoCredentials(CredentialStore):
    """Has none and looks for none, for hosts that are no registries."""

    def __init__(self) -> None:
        super().__init__({})

    def find(self, host: str, repository: str) -> None:
        """None."""


def default_files(environ: Mapping[str, str], uid: int) -> list[str]:
    """Where docker's and podman's configurations of a user are, in the order in which they are looked for.

    All are absolute paths. Without a home and `DOCKER_CONFIG`, docker has none; a relative `XDG_RUNTIME_DIR` is ignored
    (XDG Base Directory Specification).

    Raises:
        CredentialError: `DOCKER_CONFIG` is relative.
    """
    found = []
    if docker := environ.get("DOCKER_CONFIG"):
        _require_absolute("DOCKER_CONFIG", docker)
        found.append(os.path.join(docker, "config.json"))
    elif (base := home(environ)) is not None:
        found.append(str(base / ".docker" / "config.json"))
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    podman = os.path.join(runtime, "containers") if os.path.isabs(runtime) else f"/run/containers/{uid}"
    return [*found, os.path.join(podman, "auth.json")]


def _require_absolute(variable: str, path: str) -> None:
    # From the folder we work in, a checkout would supply credentials, and name programs that are run for them.
    if not os.path.isabs(path):
        raise CredentialError(
            "client configuration",
            "is named by a path that depends on the folder this is run in",
            expected="an absolute path",
            actual=printable(path),
            where=variable,
            hint=f"write the whole path into {variable}",
        )
