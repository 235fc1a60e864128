"""The proxy that an environment names (`HTTPS_PROXY`, `NO_PROXY` and so on), as curl and others read it."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from imgbuild.adapters.registry.origin import origin_of
from imgbuild.errors import ProtocolError, UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """Where it is, and what is shown to it."""

    address: str
    headers: dict[str, str] = field(repr=False)


def parse_proxy(text: str) -> Proxy:
    """A proxy from a variable: `http://HOST:PORT`, also with a user, or `HOST:PORT` alone.

    Raises:
        UsageError: it is something else (`socks5://` is not spoken). Nothing of it is quoted.
    """
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        bare = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        address = str(origin_of(bare, subject="proxy"))
        user, password = parts.username, parts.password
    except (ValueError, ProtocolError):
        address = None
    if address is None:
        raise UsageError(
            "the proxy that the environment names",
            "cannot be used",
            expected="http://HOST:PORT",
            where="HTTPS_PROXY, HTTP_PROXY or ALL_PROXY",
            hint="correct the variable, or name the registry in NO_PROXY",
        )
    if user is None:
        return Proxy(address=address, headers={})
    pair = f"{unquote(user)}:{unquote(password or '')}".encode()
    return Proxy(address=address, headers={"Proxy-Authorization": f"Basic {base64.b64encode(pair).decode()}"})
