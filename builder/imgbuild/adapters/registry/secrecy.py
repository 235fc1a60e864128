"""What was shown to a registry, and how it is kept out of all that is printed: there are registries that repeat it.

A secret is looked for as it is and in the forms in which others write it: in a query or form (RFC 3986, WHATWG URL),
in base64 (RFC 4648) alone and with its user (RFC 7617), escaped as in JSON, Python or our own `printable`, in any case
of its letters, and cut off. Who turns it round or encodes it otherwise is not found out.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import threading
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar
from urllib.parse import quote, quote_plus

from imgbuild.errors import DocumentError, ImgbuildError
from imgbuild.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_STARS = "***"
_SHORTEST = 4
"""characters of the shortest secret that is looked for; a shorter one is in every text."""
_LEAST_CUT = 8
"""characters of the beginning of a form that are taken for it where the text ends; a shorter one may be any word."""
_CUT = "…"
"""How `printable` ends what it cut: before it, a beginning of `_SHORTEST` is enough."""
_SHOWN = ("subject", "problem", "expected", "actual", "where", "hint")
_MAX_CHAIN = 16
"""errors behind an error that are looked at."""

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Secrets:
    """The secrets of one registry; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: set[str] = set()
        self._forms: tuple[str, ...] = ()
        """Lower case, the longest first."""

    def __repr__(self) -> str:
        return "Secrets(***)"

    def add(self, *texts: str) -> None:
        """Look for these from now on, those that are long enough."""
        new = {text for text in texts if len(text) >= _SHORTEST} - self._known
        if new:
            with self._lock:
                self._known |= new
                forms = {_lower(form) for text in new for form in _forms(text) if len(form) >= _SHORTEST}
                self._forms = tuple(sorted(forms.union(self._forms), key=lambda form: (-len(form), form)))

    def hide(self, text: str) -> str:
        """A text without them, in whatever form."""
        forms = self._forms
        for form in forms:
            text = _without(text, form)
        for form in forms:
            text = _without_start(text, form)
        return text

    def hide_error(self, error: ImgbuildError) -> bool:
        """Take them out of an error and of the errors behind it; whether there were any."""
        changed = False
        left: list[BaseException | None] = [error]
        seen: set[int] = set()
        while left and len(seen) < _MAX_CHAIN:
            one = left.pop()
            if one is None or id(one) in seen:
                continue
            seen.add(id(one))
            left += [one.__cause__, one.__context__]
            changed |= self._hide_fields(one) if isinstance(one, ImgbuildError) else self._hide_words(one)
        return changed

    @contextlib.contextmanager
    def hiding(self) -> Iterator[None]:
        """Whatever error of ours leaves this block has no secret in it."""
        try:
            yield
        except ImgbuildError as error:
            self.hide_error(error)
            raise

    def screen(self, parse: Callable[[], object]) -> None:
        """Raise now, without secrets, what `parse` raises with a secret in it; of anything else nothing is raised.

        For documents that are parsed by somebody who knows no secrets, later, and perhaps from a cache.
        """
        try:
            parse()
        except ImgbuildError as error:
            if self.hide_error(error):
                raise

    def _hide_fields(self, error: ImgbuildError) -> bool:
        before = [getattr(error, name) for name in _SHOWN]
        after = [None if value is None else self.hide(value) for value in before]
        if before == after:
            return False
        for name, value in zip(_SHOWN, after, strict=True):
            setattr(error, name, value)
        if isinstance(error, DocumentError):
            error.problems = tuple(map(self.hide, error.problems))
        error.args = (error.subject, error.problem)
        return True

    def _hide_words(self, error: BaseException) -> bool:
        """Of an error of Python: only a traceback of a bug shows it."""
        error.args = tuple(self.hide(value) if isinstance(value, str) else value for value in error.args)
        return False


class _Registry(Protocol):
    def hiding(self) -> contextlib.AbstractContextManager[None]: ...


class _Asking(Protocol):
    @property
    def registry(self) -> _Registry: ...


_A = TypeVar("_A", bound=_Asking)


def hiding(function: Callable[Concatenate[_A, _P], _T]) -> Callable[Concatenate[_A, _P], _T]:
    """A function whose first argument has a `registry`: no error leaves it with what that one was shown."""

    @functools.wraps(function)
    def hidden(first: _A, /, *arguments: _P.args, **options: _P.kwargs) -> _T:
        with first.registry.hiding():
            return function(first, *arguments, **options)

    return hidden


def pair_of(username: str, secret: str) -> str:
    """The base64 of a user with a secret, as it stands in a header (RFC 7617, in UTF-8); of any kind of secret."""
    return base64.b64encode(f"{username}:{secret}".encode()).decode("ascii")


def _forms(text: str) -> Iterator[str]:
    data = text.encode("utf-8", "surrogatepass")
    # The last one is what UTF-8 looks like in a header, which is read as Latin-1.
    plain = [text, *(coder(data).decode("ascii") for coder in _BASE64), data.decode("latin-1")]
    for one in plain:
        for form in (one, one.rstrip("=")):
            yield form
            yield from (quote(form, safe="", errors="replace"), quote(form, errors="replace"))
            yield quote_plus(form, errors="replace")
            yield from (printable(form, len(form) * 10), repr(form)[1:-1], json.dumps(form)[1:-1])
            yield json.dumps(form, ensure_ascii=False)[1:-1]


_BASE64 = (base64.b64encode, base64.urlsafe_b64encode)


def _lower(text: str) -> str:
    """Lower case with as many characters as before, so that places are the same."""
    lowered = text.lower()
    if len(lowered) == len(text):
        return lowered
    return "".join(char if len(char.lower()) > 1 else char.lower() for char in text)


def _without(text: str, form: str) -> str:
    lowered = _lower(text)
    pieces = []
    start = 0
    while (found := lowered.find(form, start)) >= 0:
        pieces += [text[start:found], _STARS]
        start = found + len(form)
    return "".join([*pieces, text[start:]])


def _without_start(text: str, form: str) -> str:
    """The text without a beginning of a form where it was cut: at its end, or before the sign for that."""
    parts = text.split(_CUT)
    for number, part in enumerate(parts):
        least = _SHORTEST if number < len(parts) - 1 else _LEAST_CUT
        lowered = _lower(part)
        found = lowered.find(form[:least]) if len(form) > least else -1
        while found >= 0:
            if form.startswith(lowered[found:]):
                parts[number] = part[:found] + _STARS
                break
            found = lowered.find(form[:least], found + 1)
    return _CUT.join(parts)
