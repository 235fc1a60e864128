"""Origins: who a request goes to, and where an answer may send us (RFC 6454; cases C44, C50)."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import SplitResult, urljoin, urlsplit

from imgbuild.errors import ProtocolError

_PORTS = {"https": 443, "http": 80}
_MAX_URL = 16 * 1024
"""bytes; signed addresses of object stores have up to 4 KiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Scheme, host and port. Credentials that were meant for one origin are never shown to another one."""

    scheme: str
    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether it is this machine, by its name: nothing is looked up."""
        return is_loopback(self.host)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}" + ("" if _PORTS[self.scheme] == self.port else f":{self.port}")


def is_loopback(host: str) -> bool:
    """Whether a host names this machine: `localhost`, 127.0.0.0/8, ::1."""
    address = _address(host)
    return host == "localhost" or host.endswith(".localhost") or (address is not None and address.is_loopback)


def public(url: str) -> str:
    """An address without what may be secret in it: user, query and fragment are left out."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port is not None else ""
    except ValueError:
        return "an address that cannot be read"
    return f"{parts.scheme}://{parts.hostname or ''}{port}{parts.path}"[:500]


def origin_of(url: str, *, subject: str) -> Origin:
    """The origin of an absolute http(s) address; a `ProtocolError` for anything else."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ProtocolError(subject, "names an address that cannot be read", actual=str(error)[:200]) from error
    if parts.scheme not in _PORTS or not parts.hostname or len(url) > _MAX_URL or not _plain(url):
        raise ProtocolError(
            subject, "names an address that cannot be used", expected="an http or https address", actual=public(url)
        )
    if parts.username is not None or parts.password is not None:
        raise ProtocolError(subject, "names an address with a user in it", actual=public(url))
    return Origin(scheme=parts.scheme, host=parts.hostname, port=_PORTS[parts.scheme] if port is None else port)


def next_address(base: str, location: str | None, *, subject: str) -> str:
    """Where a `Location` leads from an address, as an absolute one that we are willing to use.

    A registry behind a proxy that ends TLS may name itself by `http://`: the same host is then asked as before, by
    https. Anything else that would leave encryption, or lead from elsewhere into this machine or its link, is refused.

    Raises:
        ProtocolError: there is no Location, or it is refused.
    """
    if not location:
        raise ProtocolError(subject, "answered without a Location")
    try:
        target = urljoin(base, location)
        parts = urlsplit(target)
    except ValueError as error:
        raise ProtocolError(subject, "answered with a Location that cannot be read") from error
    here = origin_of(base, subject=subject)
    there = origin_of(target, subject=subject)
    if here.scheme == "https" and there.scheme == "http":
        if there.host != here.host or parts.port not in {None, here.port}:
            raise ProtocolError(
                subject,
                "answered with a Location that leaves https",
                expected="https",
                actual=public(target),
                hint="a proxy in front of the registry must say X-Forwarded-Proto: https",
            )
        return SplitResult("https", urlsplit(base).netloc, parts.path, parts.query, "").geturl()
    check_reach(here, there, subject=subject)
    return target


def check_reach(here: Origin, there: Origin, *, subject: str) -> None:
    """A `ProtocolError` where an origin elsewhere sends us into this machine, or to an address of the local link.

    Looks at what is written, not at what a name resolves to.
    """
    address = _address(there.host)
    inside = there.is_loopback or (
        address is not None and (address.is_link_local or address.is_unspecified or address.is_multicast)
    )
    if inside and not here.is_loopback and here.host != there.host:
        raise ProtocolError(
            subject,
            "sends us to an address inside this machine or its link",
            expected="an address that others can reach",
            actual=str(there),
        )


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _plain(url: str) -> bool:
    return all("!" <= letter <= "~" for letter in url)
