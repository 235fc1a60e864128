"""Whether every pin of a lock can still be had, each by its own verdict (cases P20 to P28, P61).

Whoever asks raises why a pin cannot be had; here, and only here, that becomes a verdict. Registries are asked by
`liveness_base`, git by `adapters.gitalive`, pip's index by `adapters.offered`.

Not checked: the content of configs, layers and wheels, and the files of a commit where the server can leave them out.
A file inside of a wheel is not asked for: it lives as long as its wheel. Sources that are one file are asked for by
`liveness_files`.
"""

from __future__ import annotations

import enum
import functools
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from imgbuild.adapters.fetch import WheelPin
from imgbuild.adapters.gitalive import ask_commit
from imgbuild.adapters.offered import INDEX, ask_wheel
from imgbuild.digest import Digest
from imgbuild.errors import (
    AvailabilityError,
    BudgetError,
    CredentialError,
    ForbiddenError,
    ImgbuildError,
    IntegrityError,
    MissingError,
    StorageError,
    UnauthorizedError,
)
from imgbuild.model.lockfile import LockedFile, LockedGit, LockedImageMember, LockedToolchain, LockedUrl, LockedWheel
from imgbuild.steps.liveness_base import Answer, BaseParts, said
from imgbuild.steps.liveness_files import ask_file, ask_member, ask_url
from imgbuild.steps.sources import locate, wheel_pin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from imgbuild.model.lockfile import Lock, LockedSource
    from imgbuild.steps.context import Context
    from imgbuild.steps.liveness_base import Part

PARALLEL: Final = 8
"""questions at a time."""
SECONDS: Final = 300.0
"""seconds after which no further question is begun; what was not asked by then is `unreachable`."""
Kind = Literal["base", "git", "wheel", "toolchain", "file", "url", "image-member"]


class Verdict(enum.Enum):
    """What became of one pin; the last two are no answer, which is never a yes."""

    ALIVE = "alive"
    GONE = "gone"
    DIFFERS = "differs"
    NOT_ALLOWED = "not-allowed"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """One pin and what became of it.

    Attributes:
        kind: what sort of thing it is.
        name: what `imgbuild lock --update` calls it.
        what: which part of it.
        pin: the digest or commit.
        where: who was asked; of a pin that was not asked for, who would have been.
        verdict: the answer.
        detail: what the answer rests on, or why there is none.
        hint: what to do where there is no answer.
    """

    kind: Kind
    name: str
    what: str
    pin: str
    where: str
    verdict: Verdict
    detail: str | None = None
    hint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tag:
    """What the tag for humans names now, which decides nothing; `unknown` is a tag that could not be asked for."""

    reference: str
    state: Literal["same", "moved", "gone", "unknown"]
    now: Digest | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Liveness:
    """All pins of one lock: those of the base, then sources in their order."""

    pins: tuple[Pin, ...]
    tag: Tag | None

    def count(self, *verdicts: Verdict) -> int:
        """How many pins have one of these verdicts."""
        return sum(1 for pin in self.pins if pin.verdict in verdicts)

    @property
    def lost(self) -> int:
        """How many are gone, or are something else now."""
        return self.count(Verdict.GONE, Verdict.DIFFERS)

    @property
    def unasked(self) -> int:
        """How many could not be asked for."""
        return self.count(Verdict.NOT_ALLOWED, Verdict.UNREACHABLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """One pin, and how to ask for it: `ask` answers where it is alive, and raises why where it is not."""

    kind: Kind
    name: str
    what: str
    pin: Digest | str
    where: str
    ask: Callable[[], Answer]


def check_pins(context: Context, lock: Lock, *, seconds: float = SECONDS) -> Liveness:
    """Ask for every pin of a lock, several at a time. Nothing is kept but what a registry's client keeps.

    Args:
        context: the surroundings; how long one question to a registry takes at most is said by its registries.
        lock: whose pins.
        seconds: after which no further question is begun.

    Raises:
        InputError: a source of the lock is none that may be asked for.
        BudgetError: more bytes than allowed. StorageError: the disk refuses temporary folders.
    """
    base = BaseParts(context, lock)
    sources = list(_sources(context, lock.pins.sources))
    end = time.monotonic() + seconds
    with context.progress.task("verifying pins", base.count + len(sources), unit="pins") as task:

        def ask(question: _Question) -> Pin:
            found = _answer(context, question, late=time.monotonic() >= end)
            task.advance(1)
            return found

        pool = ThreadPoolExecutor(PARALLEL)
        try:
            later = [pool.submit(ask, question) for question in sources]
            # It names the others, and who does not answer here need not be waited for again.
            first = ask(_of_base(base, base.manifest()))
            parts = [pool.submit(ask, _of_base(base, part)) for part in base.others()]
            tag = pool.submit(_tag, base)
            rows = [first, *(row.result() for row in parts), *(row.result() for row in later)]
            return Liveness(pins=tuple(rows), tag=tag.result())
        finally:
            pool.shutdown(cancel_futures=True)


def _answer(context: Context, question: _Question, *, late: bool) -> Pin:
    row = functools.partial(Pin, kind=question.kind, name=question.name, what=question.what, pin=str(question.pin))
    if late:
        over = "was not asked for: the time is over"
        return row(where=question.where, verdict=Verdict.UNREACHABLE, detail=over, hint="run it again")
    try:
        answer = question.ask()
    except (BudgetError, StorageError):
        raise
    except (AvailabilityError, IntegrityError) as error:
        verdict = _verdict(error)
        copy = _copy(context, question.pin) if verdict in {Verdict.GONE, Verdict.DIFFERS} else ""
        where, hint = _asked(question, error), error.hint or error.advice
        return row(where=where, verdict=verdict, detail=said(error) + copy, hint=hint)
    return row(where=answer.where or question.where, verdict=Verdict.ALIVE, detail=answer.detail)


def _verdict(error: ImgbuildError) -> Verdict:
    if isinstance(error, IntegrityError):
        return Verdict.DIFFERS
    if isinstance(error, MissingError):
        return Verdict.GONE
    if isinstance(error, UnauthorizedError | ForbiddenError | CredentialError):
        return Verdict.NOT_ALLOWED
    return Verdict.UNREACHABLE


def _asked(question: _Question, error: ImgbuildError) -> str:
    """Who was asked. Errors of a base say it; those of sources have in `where` what else their makers know."""
    return error.where or question.where if question.kind == "base" else question.where


def _copy(context: Context, pin: Digest | str) -> str:
    """A word on a copy on this machine: no answer, but it may be all that is left."""
    for folder, name in ((context.store, "store"), (context.cache, "cache")):
        if isinstance(pin, Digest) and folder.has(pin):
            return f"; the {name} here has a copy, {folder.path(pin)}"
    return ""


def _of_base(base: BaseParts, part: Part) -> _Question:
    return _Question(kind="base", name="base", what=part.what, pin=part.pin, where=base.name, ask=part.ask)


def _tag(base: BaseParts) -> Tag | None:
    """What the tag names now. Nothing that goes wrong here matters, but for the bytes that it takes."""
    if base.tag is None:
        return None
    try:
        now, same = base.ask_tag()
    except BudgetError:
        raise
    except ImgbuildError as error:
        return Tag(reference=base.tag, state="gone" if isinstance(error, MissingError) else "unknown")
    return Tag(reference=base.tag, state="same" if same else "moved", now=now)


def _sources(context: Context, sources: list[LockedSource]) -> Iterator[_Question]:
    for pin in sources:
        match pin:
            case LockedGit():
                ask = functools.partial(_ask_commit, context, pin)
                what = f"commit of {pin.name}"
                yield _Question(kind="git", name=pin.name, what=what, pin=pin.commit, where=pin.repository, ask=ask)
            case LockedWheel():
                yield _of_index(context, "wheel", pin.name, wheel_pin(pin))
            case LockedFile() | LockedUrl() | LockedImageMember():
                yield _of_file(context, pin)
            case LockedToolchain():
                wheel = functools.partial(WheelPin, name=pin.distribution, version=pin.version, size=None)
                for file in {host.digest: host for host in pin.hosts.values()}.values():
                    one = wheel(filename=file.filename, digest=file.digest)
                    yield _of_index(context, "toolchain", pin.name, one)


def _of_file(context: Context, pin: LockedFile | LockedUrl | LockedImageMember) -> _Question:
    question = functools.partial(_Question, name=pin.name, pin=pin.digest)
    match pin:
        case LockedUrl():
            ask = functools.partial(ask_url, context, pin)
            return question(kind="url", what=f"file of {pin.name}", where=pin.url, ask=ask)
        case LockedImageMember():
            ask = functools.partial(ask_member, context, pin)
            return question(kind="image-member", what=f"{pin.path} of {pin.name}", where=pin.image, ask=ask)
        case _:
            ask = functools.partial(ask_file, context, pin)
            where = f"the cache here, {context.cache.root}"
            return question(kind="file", what=f"file of {pin.name}", where=where, ask=ask)


def _ask_commit(context: Context, pin: LockedGit) -> Answer:
    return Answer(detail=ask_commit(locate(context, pin.repository), pin.commit, pin.tree, offline=context.offline))


def _of_index(context: Context, kind: Kind, name: str, wheel: WheelPin) -> _Question:
    def ask() -> Answer:
        ask_wheel(wheel, offline=context.offline)
        return Answer()

    return _Question(kind=kind, name=name, what=wheel.filename, pin=wheel.digest, where=INDEX, ask=ask)
