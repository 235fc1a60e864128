"""What the dynamic linker of an image loads, as step 8 of static verification asks it, and what is in doubt about it.

The search is that of `content.loader`, with LD_LIBRARY_PATH and WorkingDir of the image. `/etc/ld.so.cache` decides
what is found by `/etc/ld.so.conf`, and it is not read here. So an answer that rests on that file is in doubt where

- there is no cache, as ld.so reads nothing else, unless the default directories give the same answer;
- the cache is older than a file that it is made from, which a higher layer or a later time says;
- a layer of ours removed such a file, or added the file that was found, and not the cache.

Not seen: a cache that lists what its configuration does not name, or that lacks a file of the base.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from imgbuild.content.loader import Linker
from imgbuild.content.node import LINK
from imgbuild.model.identity import Finding, judge, not_checked
from imgbuild.model.paths import show
from imgbuild.steps.verify_environment import settings

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from imgbuild.content.inventory import ElfRecord
    from imgbuild.content.loader import Resolution
    from imgbuild.content.node import Node
    from imgbuild.model.oci import ImageConfig
    from imgbuild.steps.view import View

_CACHE = b"etc/ld.so.cache"
_CONFIGURATION = b"etc/ld.so.conf.d"
_BY_CACHE = {"ld.so.conf", "default"}
"""The rules whose answer rests on the cache, by what it lists or by what it does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a file loads for one of its NEEDED names.

    Attributes:
        path: the file.
        needed: the name.
        provider: the real path of what is loaded; None where nothing is.
        rule: by which rule of the search.
        doubt: why a process may load another file; None where nothing says so.
        present: whether `provider` is found also without the directories of `/etc/ld.so.conf`.
    """

    path: bytes
    needed: str
    provider: bytes | None
    rule: str
    doubt: str | None
    present: bool


class Search:
    """The search of an image's linker."""

    def __init__(self, view: View, machine: str, config: ImageConfig) -> None:
        value = config.variable("LD_LIBRARY_PATH")
        parts = tuple(value.replace(";", ":").split(":")) if value else ()
        folder = settings(config).get("WorkingDir")
        place = folder.encode("utf-8", "backslashreplace") if isinstance(folder, str) else b""
        place = b"/" + place.lstrip(b"/")
        self._view = view
        self._machine = machine
        self._linker = Linker(view, machine=machine, library_path=parts, working_directory=place)
        self._bare = Linker(view, machine=machine, library_path=parts, working_directory=place, configured=False)

    def load(self, path: bytes, needed: str) -> Load:
        """What the file at a real path loads for a name."""
        found = self._linker.resolve(path, needed)
        bare = found.provider
        if found.rule in _BY_CACHE:
            bare = self._bare.resolve(path, needed).provider
        return Load(
            path=path,
            needed=needed,
            provider=found.provider,
            rule=found.rule or "no search",
            doubt=found.doubt or self._cache_doubt(found, bare),
            present=bare is not None and bare == found.provider,
        )

    def loads(self, soname: str, prefix: bytes, copies: Collection[bytes]) -> Iterator[Load]:
        """Every NEEDED of every file of the machine that asks for a library, or that leads to a copy of it.

        Args:
            soname: its SONAME.
            prefix: what its file names begin with.
            copies: real paths of all its copies. A name without a slash leads to one only by a file or link of this
                name, so that not every name of an image needs a search.
        """
        names = self._names(copies)

        def asks(raw: bytes) -> bool:
            return raw == soname.encode() or raw.rpartition(b"/")[2].startswith(prefix)

        for path, node in self._view.elf_files:
            if node.elf is None or node.elf.machine != self._machine:
                continue
            for needed in dict.fromkeys(node.elf.needed):
                raw = needed.encode("utf-8", "backslashreplace")
                if asks(raw) or raw in names or any(sign in raw for sign in (b"/", b"$", b"\\")):
                    load = self.load(path, needed)
                    if asks(raw) or load.provider in copies or (load.provider is None and load.doubt is not None):
                        yield load

    def _names(self, copies: Collection[bytes]) -> set[bytes]:
        names = {path.rpartition(b"/")[2] for path in copies}
        for path, _ in self._view.tree.marked(LINK):
            found = self._view.tree.resolve(path)
            if found is not None and found[0] in copies:
                names.add(path.rpartition(b"/")[2])
        return names

    def _cache_doubt(self, found: Resolution, bare: bytes | None) -> str | None:
        if found.rule not in _BY_CACHE:
            return None
        if self._cache is None:
            same = bare == found.provider
            return None if same else f"{show(_CACHE)} is absent, so {show(b'etc/ld.so.conf')} has no effect"
        if self._stale is not None or found.provider is None or found.rule != "ld.so.conf":
            return self._stale
        ours = self._cache.layer < len(self._view.base.manifest.layers)
        if ours and self._view.base_tree.resolve(found.steps[-1].candidate) is None:
            return f"{show(_CACHE)} is the base's and cannot list {show(found.provider)}"
        return None

    @cached_property
    def _cache(self) -> Node | None:
        found = self._view.tree.resolve(_CACHE)
        return found[1] if found is not None and found[1].type == "file" else None

    @cached_property
    def _stale(self) -> str | None:
        cache = self._cache
        if cache is None:
            return None
        for path in self._linker.configuration_files():
            node = self._view.tree.get(path)
            if node is not None and (node.layer, node.mtime) > (cache.layer, cache.mtime):
                return f"{show(_CACHE)} is older than {show(path)}"
        before = self._view.base_tree.resolve(_CONFIGURATION)
        names = set(before[1].children) if before is not None else set()
        gone = sorted(names - set(self._view.listdir(_CONFIGURATION)))
        if gone and cache.layer < len(self._view.base.manifest.layers):
            return f"{show(_CACHE)} is older than the removal of {show(_CONFIGURATION + b'/' + gone[0])}"
        return None


def needs(view: View, search: Search, target: bytes, elf: ElfRecord, name: Callable[[str], str]) -> list[Finding]:
    """Whether the image has all that a file needs, and a glibc that is new enough: the one that its search finds.

    Args:
        view: the image.
        search: its linker.
        target: the file.
        elf: its facts.
        name: makes the full name of a check.
    """
    where = show(target)
    loads = [search.load(target, needed) for needed in elf.needed]
    absent = [load.needed for load in loads if load.provider is None]
    doubts = [f"{load.needed}: {load.doubt}" for load in loads if load.doubt is not None and not load.present]
    if doubts and not absent:
        second = not_checked(name("needed"), where, "; ".join(doubts))
    else:
        text = "all it needs is in the image"
        actual = f"absent: {', '.join(absent)}" if absent else text
        second = judge(name("needed"), where, not absent, expected=text, actual=actual)
    return [_glibc(view, search.load(target, "libc.so.6"), elf.glibc_needed, name("glibc")), second]


def _glibc(view: View, load: Load, wanted: str | None, check: str) -> Finding:
    where = show(load.path)
    facts = view.elf(load.provider) if load.provider is not None else None
    if load.provider is None or facts is None or facts.glibc_defined is None:
        return not_checked(check, where, "its search finds no libc.so.6 with versions")
    if load.doubt is not None and not load.present:
        return not_checked(check, where, f"libc.so.6: {load.doubt}")
    have = facts.glibc_defined
    enough = wanted is None or _version(wanted) <= _version(have)
    actual = f"needs glibc {wanted}" if wanted else "needs no version of glibc"
    reason = f"that is {show(load.provider)}"
    return judge(check, where, enough, expected=f"needs at most glibc {have}", actual=actual, reason=reason)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())
