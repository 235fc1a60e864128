"""What the dynamic linker of an image loads, as step 8 of static verification asks it, and what is in doubt about it.

The search is that of `content.loader`, with LD_LIBRARY_PATH and WorkingDir of the image, and its `/etc/ld.so.cache`.
ld.so trusts that file as it is, and without it reads nothing of `/etc/ld.so.conf`. But runtimes and entrypoints run
ldconfig when a container starts (NVIDIA's do), and then the cache is another. So an answer that is not the same before
and after a run of ldconfig is in doubt; and so is one that rests on a cache that cannot be read.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from imgbuild.content.elf import newest_glibc
from imgbuild.content.ldcache import LdCache, parse_cache
from imgbuild.content.loader import Linker
from imgbuild.errors import UNREADABLE
from imgbuild.model.identity import Finding, judge, not_checked
from imgbuild.model.paths import show
from imgbuild.steps.verify_environment import settings

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from imgbuild.content.inventory import ElfRecord
    from imgbuild.content.loader import Resolution, SearchStep
    from imgbuild.model.oci import ImageConfig
    from imgbuild.steps.view import View

_BITS = 64
_CACHE = b"etc/ld.so.cache"
_BY_CACHE = {"ld.so.cache", "ld.so.conf", "default"}
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
        present: whether there is something to load now, and the same after a run of ldconfig.
        trail: where it was looked for, in order.
    """

    path: bytes
    needed: str
    provider: bytes | None
    rule: str
    doubt: str | None
    present: bool
    trail: tuple[SearchStep, ...] = ()


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
        self._cache, self._unreadable = _read_cache(view, machine)

        def linker(cache: LdCache | None, *, configured: bool) -> Linker:
            return Linker(
                view,
                machine=machine,
                library_path=parts,
                working_directory=place,
                cache=cache,
                configured=configured,
            )

        self._renewed = linker(None, configured=True)
        self._present = linker(self._cache, configured=False)

    def load(self, path: bytes, needed: str, *, loaders: tuple[bytes, ...] = ()) -> Load:
        """What the file at a real path loads for a name, where it is loaded because of others, the nearest first."""
        renewed = found = self._renewed.resolve(path, needed, loaders=loaders)
        doubt = found.doubt
        if found.rule is None or found.rule in _BY_CACHE:
            found = self._present.resolve(path, needed, loaders=loaders)
            doubt = doubt or found.doubt or self._cache_doubt(found, renewed)
        return Load(
            path=path,
            needed=needed,
            provider=found.provider,
            rule=found.rule or "no search",
            doubt=doubt,
            present=found.provider is not None and found.provider == renewed.provider,
            trail=found.steps,
        )

    def can_load(self, path: bytes) -> bool:
        """Whether the file at a real path is one that the linker of the machine loads."""
        elf = self._view.elf(path)
        return elf is not None and elf.machine == self._machine and elf.bits == _BITS

    def loads(self, soname: str, prefix: bytes, copies: Collection[bytes]) -> Iterator[Load]:
        """Every NEEDED of every file of the machine that asks for a library, or that leads to a copy of it.

        Args:
            soname: its SONAME.
            prefix: what its file names begin with.
            copies: real paths of all its copies. A name without a slash leads to one only by a file or link of this
                name, so that not every name of an image needs a search.
        """
        names = self._names(copies)

        # Thousands of files need the same few hundred names.
        @functools.cache
        def asks(needed: str) -> bool:
            raw = _raw(needed)
            return raw == soname.encode() or raw.rpartition(b"/")[2].startswith(prefix)

        @functools.cache
        def may_lead(needed: str) -> bool:
            raw = _raw(needed)
            return asks(needed) or raw in names or any(sign in raw for sign in (b"/", b"$", b"\\"))

        for path, node in self._view.elf_files:
            if node.elf is None or node.elf.machine != self._machine:
                continue
            for needed in dict.fromkeys(filter(may_lead, node.elf.needed)):
                load = self.load(path, needed)
                if asks(needed) or load.provider in copies or (load.provider is None and load.doubt is not None):
                    yield load

    def _names(self, copies: Collection[bytes]) -> set[bytes]:
        """What may lead to a copy without a slash: file and link names, names of the cache, and SONAMEs."""
        names = {path.rpartition(b"/")[2] for path in copies}
        if self._cache is not None:
            names |= self._cache.names_of(lambda path: self._view.resolve(path) in copies)
        for elf in map(self._view.elf, copies):
            if elf is not None and elf.soname is not None:
                names.add(_raw(elf.soname))
        for path in self._view.links:
            found = self._view.tree.resolve(path)
            if found is not None and found[0] in copies:
                names.add(path.rpartition(b"/")[2])
        return names

    def _cache_doubt(self, present: Resolution, renewed: Resolution) -> str | None:
        where = show(_CACHE)
        if self._unreadable is not None:
            return f"{where} cannot be read: {self._unreadable}"
        if present.provider == renewed.provider:
            return None
        now, then = ("nothing" if one is None else show(one) for one in (present.provider, renewed.provider))
        absent = "" if self._cache is not None else f"{where} is absent; "
        return f"{absent}it loads {now}, and {then} after a run of ldconfig"


def _raw(name: str) -> bytes:
    return name.encode("utf-8", "backslashreplace")


def _read_cache(view: View, machine: str) -> tuple[LdCache | None, str | None]:
    """The cache, and why it cannot be read."""
    try:
        raw = view.read(_CACHE)
        return (None if raw is None else parse_cache(raw, machine=machine, subject=show(_CACHE))), None
    except UNREADABLE as error:
        return None, error.problem


def needs(view: View, search: Search, target: bytes, elf: ElfRecord, name: Callable[[str], str]) -> list[Finding]:
    """Whether the image has all that a file needs, and in it the versions: in the files that its own search finds.

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
    return [_versions(view, search, target, elf, name("versions")), second]


def _versions(view: View, search: Search, target: bytes, elf: ElfRecord, check: str) -> Finding:
    """ld.so refuses a file if a version that it needs of another one is not defined there (`elf/dl-version.c`)."""
    where, lacking, doubts, found = show(target), [], [], []
    for file, wanted in elf.versions_needed:
        if not wanted:
            continue
        load = search.load(target, file)
        facts = view.elf(load.provider) if load.provider is not None else None
        if load.provider is None or facts is None or not facts.versions_defined:
            doubts.append(f"its search finds no {file} with versions")
        elif load.doubt is not None and not load.present:
            doubts.append(f"{file}: {load.doubt}")
        else:
            absent = sorted(set(wanted) - set(facts.versions_defined))
            lacking += [f"{version} of {file}" for version in absent]
            glibc = newest_glibc(facts.versions_defined)
            found.append(f"{file} is {show(load.provider)}" + (f", glibc {glibc}" if glibc else ""))
    if doubts and not lacking:
        return not_checked(check, where, "; ".join(doubts))
    text = "needs no version that is not in the image"
    met = text if elf.versions_needed else "needs no version"
    actual = f"needs {', '.join(lacking[:5])}" if lacking else met
    return judge(check, where, not lacking, expected=text, actual=actual, reason="; ".join(found) or None)
