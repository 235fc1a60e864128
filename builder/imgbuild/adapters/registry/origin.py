"""Origins: who a request goes to, and where an answer may send us (RFC 6454; cases C44, C50)."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import SplitResult, urljoin, urlsplit

from imgbuild.errors import ProtocolError
from imgbuild.text import printable

_PORTS = {"https": 443, "http": 80}
_MAX_URL = 16 * 1024
"""bytes; signed addresses of object stores have up to 4 KiB."""
_SHOWN = 500
"""characters of an address that are shown."""
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_NUMERIC = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)\.?")
"""Hosts that resolvers read as IPv4 addresses (URL standard, "ends in a number"): `127.1`, `0x7f000001`."""

_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*\.?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Scheme, host and port. Credentials that were meant for one origin are never shown to another one."""

    scheme: str
    host: str
    """Lower case; an IPv6 address stands without its brackets."""
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether it is this machine, by its name: nothing is looked up."""
        return is_loopback(self.host)

    @property
    def place(self) -> str:
        """`host:port`, as the byte ledger has it."""
        return f"{self._bracketed}:{self.port}"

    @property
    def _bracketed(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host

    def __str__(self) -> str:
        return f"{self.scheme}://{self._bracketed}" + ("" if _PORTS[self.scheme] == self.port else f":{self.port}")


def is_loopback(host: str) -> bool:
    """Whether a host names this machine: `localhost`, 127.0.0.0/8, ::1."""
    address = _address(host)
    name = host.lower().rstrip(".")
    return name == "localhost" or name.endswith(".localhost") or (address is not None and address.is_loopback)


def public(url: str) -> str:
    """An address without what may be secret in it, as one line: user, query and fragment are left out."""
    try:
        parts = urlsplit(url)
        port = "" if parts.port is None else f":{parts.port}"
    except ValueError:
        return "an address that cannot be read"
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    return printable(f"{parts.scheme}://{host}{port}{parts.path}", _SHOWN)


def origin_of(url: str, *, subject: str) -> Origin:
    """The origin of an absolute http(s) address; a `ProtocolError` for anything else."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        # The parser's words quote the address, with a password that may stand in it.
        parts, port = None, None
    if parts is None:
        raise ProtocolError(subject, "names an address that cannot be read")
    host = parts.hostname
    if parts.scheme not in _PORTS or not host or port == 0 or len(url) > _MAX_URL or not _plain(url):
        raise ProtocolError(
            subject, "names an address that cannot be used", expected="an http or https address", actual=public(url)
        )
    if "@" in parts.netloc:
        raise ProtocolError(subject, "names an address with a user in it", actual=public(url))
    if _address(host) is None and (_NUMERIC.fullmatch(host) or not _NAME.fullmatch(host)):
        raise ProtocolError(
            subject, "names an address that cannot be used", expected="the name or number of a host", actual=public(url)
        )
    return Origin(scheme=parts.scheme, host=host, port=_PORTS[parts.scheme] if port is None else port)


def next_address(base: str, location: str | None, *, subject: str) -> str:
    """Where a `Location` leads from an address, as an absolute one that we are willing to use, without a fragment.

    A registry behind a proxy that ends TLS may name itself by `http://`: the same host is then asked as before, by
    https. Anything else that would leave encryption, or lead from elsewhere into this machine or its link, is refused.

    Raises:
        ProtocolError: there is no Location, or it is refused.
    """
    if not location:
        raise ProtocolError(subject, "answered without a Location")
    try:
        parts = urlsplit(urljoin(base, location) if _plain(location) else "")
    except ValueError:
        parts = urlsplit("")
    if not parts.netloc:
        raise ProtocolError(subject, "answered with a Location that cannot be read")
    target = parts._replace(fragment="").geturl()
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


def check_https(origin: Origin, *, subject: str) -> None:
    """A `ProtocolError` for plain http, but to this machine."""
    if origin.scheme != "https" and not origin.is_loopback:
        raise ProtocolError(
            subject, "would be asked without encryption", expected="https", actual=str(origin), hint="name it by https"
        )


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host.partition("%")[0].rstrip("."))
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address


def _plain(url: str) -> bool:
    return all("!" <= letter <= "~" for letter in url)
