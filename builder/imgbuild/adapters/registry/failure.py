"""Why a connection failed, in a few words of ours: what libraries say quotes queries, headers and bytes of others."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from imgbuild.adapters.registry.meter import StuckError
from imgbuild.errors import ImgbuildError, NetworkError
from imgbuild.text import printable

_NO_NAME = {-2, -5, 8}
"""EAI_NONAME and EAI_NODATA of Linux, EAI_NONAME of BSD; everything else may go well a moment later."""
_NO_TLS = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """`tries` is how many are worth it with a host that never answered; None if as many as one has."""

    problem: str
    hint: str | None = None
    tries: int | None = None


class WireError(Exception):
    """A request without an answer: within this package, what `NetworkError` is outside.

    Attributes:
        failure: why.
        address: the public part of the address.
    """

    def __init__(self, failure: Failure, *, address: str) -> None:
        super().__init__(failure.problem)
        self.failure = failure
        self.address = address

    def error(self, subject: str) -> NetworkError:
        """The error for whoever asked for `subject`."""
        failure = self.failure
        problem = f"the registry gives no answer: {failure.problem}"
        return NetworkError(subject, problem, where=self.address, hint=failure.hint)


_KNOWN = {
    "ConnectionRefusedError": Failure(
        problem="nobody listens there", hint="see that host and port are right, and that the registry runs", tries=2
    ),
    "TimeoutError": Failure(problem="it took too long", tries=3),
    "RemoteDisconnected": Failure(problem="the connection ended without an answer"),
    "IncompleteRead": Failure(problem="the connection ended in the middle"),
    "SSLEOFError": Failure(problem="the connection ended within TLS"),
    "SSLError": Failure(problem="TLS failed"),
    "gaierror": Failure(problem="its name cannot be looked up now"),
    "LocationParseError": Failure(problem="its name cannot be looked up", tries=1),
}


def failure_of(error: BaseException) -> Failure:
    """Why, by the innermost cause."""
    cause = _innermost(error)
    if isinstance(cause, StuckError):
        return Failure(problem=str(cause), tries=3)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return Failure(
            problem=f"its certificate is not trusted ({printable(cause.verify_message)})",
            hint="name its authority by `ca` in registries.toml, or see why it shows this certificate",
            tries=1,
        )
    if isinstance(cause, ssl.SSLError) and cause.reason in _NO_TLS:
        hint = "if it is meant to be asked by http, set `plain-http` for it in registries.toml"
        return Failure(problem="it does not speak TLS", hint=hint, tries=1)
    names = [kind.__name__ for kind in type(cause).__mro__]
    if "gaierror" in names and getattr(cause, "errno", None) in _NO_NAME:
        return Failure(problem="there is no host of this name", hint="see that its name is right", tries=2)
    if str(cause).startswith("Tunnel connection failed"):
        return Failure(problem=printable(str(cause)), hint="see the proxy that the environment names", tries=2)
    found = next((_KNOWN[name] for name in names if name in _KNOWN), None)
    if found is None and isinstance(cause, OSError) and cause.strerror:
        found = Failure(problem=printable(cause.strerror))
    return found or Failure(problem=f"what it answers makes no sense ({type(cause).__name__})")


def _innermost(error: BaseException) -> BaseException:
    for _ in range(8):
        reason = getattr(error, "reason", None)
        inner = reason if isinstance(reason, BaseException) else error.__cause__ or error.__context__
        # What was raised while an error of ours was handled, as by the next try, has nothing to do with that one.
        if inner is None or isinstance(inner, ImgbuildError):
            break
        error = inner
    return error
