"""When a fault meets a request. What it then does is an action (`actions`)."""

from __future__ import annotations

import random
import re
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.fault_registry.actions import Action
    from tests.support.fault_registry.messages import Kind, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """An action and the requests that it meets.

    `kind` and `method` are compared, `path` is a regular expression that is searched for; None matches all. The first
    `skip` requests that match pass; then it fires `times` times (None: for ever), each with `probability`.
    """

    action: Action
    kind: Kind | frozenset[Kind] | None = None
    method: str | None = None
    path: str | None = None
    skip: int = 0
    times: int | None = 1
    probability: float = 1.0
    seed: int = 0

    def matches(self, request: Request) -> bool:
        kinds = {self.kind} if isinstance(self.kind, str) else self.kind
        return (
            (kinds is None or request.kind in kinds)
            and self.method in {None, request.method}
            and (self.path is None or re.search(self.path, request.path) is not None)
        )


@dataclass(slots=True, kw_only=True)
class _Entry:
    fault: Fault
    skip: int
    left: int | None
    rng: random.Random


@dataclass(slots=True)
class Faults:
    """The faults that wait. At most one that is limited in number meets a request, and all that are for ever."""

    fired: list[tuple[Fault, Request]] = field(default_factory=list)
    _entries: list[_Entry] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, fault: Fault) -> Fault:
        with self._lock:
            self._entries.append(_Entry(fault=fault, skip=fault.skip, left=fault.times, rng=random.Random(fault.seed)))
        return fault

    def once(self, action: Action, kind: Kind | None = None, *, skip: int = 0, times: int = 1) -> Fault:
        """Short for the usual one."""
        return self.add(Fault(action=action, kind=kind, skip=skip, times=times))

    def always(self, action: Action, kind: Kind | None = None, *, method: str | None = None) -> Fault:
        """A registry that is so."""
        return self.add(Fault(action=action, kind=kind, method=method, times=None))

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
            self.fired.clear()

    def pending(self) -> list[Fault]:
        """Those that have not fired as often as they should; those that are for ever are not among them."""
        with self._lock:
            return [entry.fault for entry in self._entries if entry.left]

    def take(self, request: Request) -> list[Action]:
        """The actions that meet this request, in the order in which they were added."""
        taken: list[Action] = []
        limited = False
        with self._lock:
            for entry in self._entries:
                if entry.left == 0 or not entry.fault.matches(request):
                    continue
                if entry.skip:
                    entry.skip -= 1
                    continue
                if entry.left is not None and limited:
                    continue
                if entry.rng.random() >= entry.fault.probability:
                    continue
                if entry.left is not None:
                    entry.left -= 1
                    limited = True
                taken.append(entry.fault.action)
                self.fired.append((entry.fault, request))
        return taken
