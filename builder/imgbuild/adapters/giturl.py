"""What may be asked of git: sources, refs and commit ids, checked before any of them becomes an argument.

A source is an HTTPS or SSH URL of a narrow grammar (RFC 3986, and no more than forges use), or, where that is allowed,
the absolute path of a bundle or repository. Nothing here starts git or looks further than whether a path exists.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from imgbuild.config import KIB
from imgbuild.errors import InputError, MissingError
from imgbuild.text import printable, without_credentials

SHA1_HEX = 40
"""hex digits of a SHA-1 object id; the other length is 64, of SHA-256."""
_PORT_MAX = 65_535
_REF_MAX = 250
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_URL = re.compile(
    rf"(?P<scheme>https|ssh)://(?:(?P<user>[A-Za-z0-9_][A-Za-z0-9._-]{{0,63}})@)?(?P<host>{_LABEL}(?:\.{_LABEL})*)"
    r"(?::(?P<port>[0-9]{1,5}))?(?P<path>(?:/(?:[A-Za-z0-9._~+@=,-]|%(?:[2-6][0-9A-Fa-f]|7[0-9A-Ea-e]))+)+/?)"
)
_REF = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+@#=,-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.+@#=,-]*)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A checked source.

    Attributes:
        url: what git gets.
        name: what people see.
        protocol: the one transport that git may use for it.
        bundle: whether it is a file that `git bundle` made.
    """

    url: str
    name: str
    protocol: str
    bundle: bool = False

    @property
    def remote(self) -> bool:
        """Whether asking it needs the network."""
        return self.protocol != "file"


def parse_source(repository: str, *, allow_local: bool) -> Source:
    """Check a source. `InputError` for what may not be fetched, `MissingError` for a path that is not there."""
    if repository.startswith("/"):
        return _local_source(repository, allow_local=allow_local)
    name = shown(repository)
    match = _URL.fullmatch(repository)
    if match is None or len(repository) > KIB:
        secret = "@" in repository and repository.startswith("https:")
        raise InputError(
            f"repository {name!r}",
            "contains credentials" if secret else "is not a URL that may be fetched",
            expected="https://host/path, ssh://user@host/path, or the path of a local bundle",
            hint="for private repositories use ssh:// with an agent" if secret else None,
        )
    if match["user"] is not None and match["scheme"] == "https":
        raise InputError(
            f"repository {name!r}",
            "contains credentials",
            expected="a URL without user name",
            hint="for private repositories use ssh:// with an agent",
        )
    if match["port"] is not None and not 0 < int(match["port"]) <= _PORT_MAX:
        raise InputError(f"repository {name!r}", "has a port that does not exist", actual=match["port"])
    return Source(url=repository, name=repository, protocol=match["scheme"])


def _local_source(path: str, *, allow_local: bool) -> Source:
    name = shown(path)
    if not allow_local:
        raise InputError(f"repository {name!r}", "is a local path, which is not allowed here")
    if not path.isprintable() or os.path.normpath(path) != path:
        raise InputError(f"repository {name!r}", "is not a normal absolute path of printable characters")
    if not os.path.exists(path):
        raise MissingError(f"repository {name}", "does not exist")
    return Source(url=path, name=name, protocol="file", bundle=os.path.isfile(path))


def check_ref(ref: str) -> None:
    """Refuse, with an `InputError`, what git could take for something else than one ref (git-check-ref-format)."""
    bad = not _REF.fullmatch(ref) or len(ref) > _REF_MAX or ".." in ref or "@{" in ref
    if bad or any(part.endswith((".lock", ".")) for part in ref.split("/")):
        raise InputError(
            f"ref {shown(ref)!r}",
            "is not a ref name that may be asked for",
            expected="a branch, a tag, a full ref name or a full commit id",
        )


def is_commit(text: str) -> bool:
    """Whether it is a full object id: 40 or 64 lower-case hex digits."""
    return _COMMIT.fullmatch(text) is not None


def shown(text: str | bytes, limit: int = 200) -> str:
    """Text of a source, of git or of a server for a message: one safe line, without credentials in URLs."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "backslashreplace")
    return printable(without_credentials(text), limit)
