"""What a process has loaded after it opened some files in a declared order: glibc's linker, name after name.

A file that is loaded answers for its SONAME, and for each name by which it was found: whoever needs one of these later
gets it without any search (`_dl_map_object` in glibc's `elf/dl-load.c`). So the order decides, and a library that alone
would find another copy is harmless where the right one is there before it. Dependencies are loaded breadth first; the
DT_RPATH of those because of which a file is loaded counts for it.

Not followed: what code opens besides the declared files, and namespaces (`dlmopen`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from imgbuild.steps.verify_loader import Load, Search
    from imgbuild.steps.view import View


@dataclass(kw_only=True)
class Process:
    """What is loaded, in order, and why.

    Attributes:
        loaded: real paths of all files, each with those because of which it was loaded, the nearest first.
        answers: the real path that a file got for a name that it needs; None where it got nothing.
        doubts: searches whose answer is in doubt.
        absent: files of the order that are not there, or that the linker cannot load.
        failed: names that lead nowhere, each with the file that needs it: opening ends there, unless the host brings
            what is needed.
    """

    loaded: dict[bytes, tuple[bytes, ...]] = field(default_factory=dict)
    answers: dict[tuple[bytes, str], bytes | None] = field(default_factory=dict)
    doubts: list[Load] = field(default_factory=list)
    absent: list[bytes] = field(default_factory=list)
    failed: list[tuple[bytes, str]] = field(default_factory=list)


def open_in_order(view: View, search: Search, order: Iterable[bytes]) -> Process:
    """Open files one after the other, as `dlopen` with their paths does."""
    process = Process()
    names: dict[str, bytes] = {}
    for path in order:
        real = view.resolve(path)
        if real is None or not search.can_load(real):
            process.absent.append(path)
        elif real not in process.loaded:
            _open(view, search, process, names, real)
    return process


def _open(view: View, search: Search, process: Process, names: dict[str, bytes], first: bytes) -> None:
    _keep(view, process, names, first, ())
    waiting = deque([first])
    while waiting:
        path = waiting.popleft()
        elf, chain = view.elf(path), process.loaded[path]
        for needed in elf.needed if elf is not None else ():
            # What a name with a slash or a token leads to depends on who asks.
            plain = not {"/", "$"} & set(needed)
            there = names.get(needed) if plain else None
            if there is None:
                load = search.load(path, needed, loaders=chain)
                there = load.provider
                if load.doubt is not None:
                    process.doubts.append(load)
            process.answers[path, needed] = there
            if there is None:
                process.failed.append((path, needed))
                continue
            if plain:
                names.setdefault(needed, there)
            if there not in process.loaded:
                _keep(view, process, names, there, (path, *chain))
                waiting.append(there)


def _keep(view: View, process: Process, names: dict[str, bytes], path: bytes, chain: tuple[bytes, ...]) -> None:
    process.loaded[path] = chain
    elf = view.elf(path)
    if elf is not None and elf.soname is not None:
        names.setdefault(elf.soname, path)
