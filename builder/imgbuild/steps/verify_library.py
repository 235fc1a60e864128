"""Step 8 of static verification: a swapped library, and that nothing else can be loaded in its place.

For each library of the definition (design.md, section 7; cases C65, C66, P01 to P18):

a. The path resolves to a regular file with the digest of the locked source.
b. It is for the image's machine, has the SONAME, and its build id is the lock's.
c. All it needs is in the image, with every version that it needs of glibc, libstdc++ and the like.
d. It exports every symbol with its prefixes that some other file imports, in the version that this one asks for, and
   defines every version that others need of its SONAME. Some symbol must be imported.
e. Its bytes hold the required strings.
f. Every other file that has the SONAME, its file name, its symbol or one of the library's exports with its prefixes,
   under any name, is accepted in the definition.
g. For every file that needs the SONAME, or whatever leads to this file or one of (f), the linker's search ends at this
   file. There must be such a file; with `consumers = "none"` in the definition there must be none, and (d) may have
   nothing to compare. What is in doubt about the search (`steps.verify_loader`) is `not-checked`.
h. In its folder, nothing but it and links to it goes by its name: a sorted glob must find it (DeepEP's discovery).
i. Files that begin like ELF but cannot be read are accepted in the definition; anything may be in them.
j. So are files that print the library's version and export none of its symbols: a linker may have put a copy into
   them, which nobody can replace and no search finds.
k. After a process has opened the files of `load_order` in the definition, in this order, it has loaded this file and
   no other copy (`steps.verify_process`). A file whose need was met in it by this file is no consumer of another one.
l. Archives that seem to hold a copy (static libraries, wheels) are named, and do not fail: no process loads them.
m. Every acceptance is still needed.
n. No distribution asks for another version of the one that owns it than METADATA states, or the definition says why
   that is right (`steps.verify_requirements`).

Not checked here: dlopen with a path of what `load_order` does not name (content.loader says what is not modelled).
"""

from __future__ import annotations

import contextlib
import hashlib
from typing import TYPE_CHECKING

from imgbuild.content.elfversions import binds
from imgbuild.content.inventory import SYMBOL_FAMILIES
from imgbuild.errors import UNREADABLE
from imgbuild.model.identity import Finding, compare, judge, not_checked
from imgbuild.model.lockfile import LockedLibrary
from imgbuild.model.paths import image_path, show
from imgbuild.steps.base import machine_of
from imgbuild.steps.scanned import reason
from imgbuild.steps.verify_copies import Copies
from imgbuild.steps.verify_loader import Search, needs
from imgbuild.steps.verify_process import open_in_order
from imgbuild.steps.verify_requirements import requirements
from imgbuild.steps.view import digest_of_node

_NO_CONSUMERS = 'if that is so by design, say `consumers = "none"` in the definition'

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imgbuild.content.inventory import ElfRecord
    from imgbuild.content.node import Node
    from imgbuild.model.image import LibraryIdentity
    from imgbuild.model.lockfile import Lock
    from imgbuild.model.oci import ImageConfig
    from imgbuild.steps.verify_loader import Load
    from imgbuild.steps.verify_process import Process
    from imgbuild.steps.view import View


def library(view: View, name: str, identity: LibraryIdentity, lock: Lock, config: ImageConfig) -> list[Finding]:
    """Findings for one library of the definition."""
    return _Gate(view, name, identity, lock, config).findings()


class _Gate:
    def __init__(self, view: View, name: str, library: LibraryIdentity, lock: Lock, config: ImageConfig) -> None:
        self._view = view
        self._name = name
        self._library = library
        self._lock = lock
        self._machine = machine_of(lock.platform)
        self._search = Search(view, self._machine, config)

    def findings(self) -> list[Finding]:
        target = self._view.resolve(image_path(self._library.path, where=self._name))
        node = self._view.tree.get(target) if target is not None else None
        if target is None or node is None:
            return [
                judge(
                    self._check("path"),
                    self._library.path,
                    ok=False,
                    expected="a regular file",
                    actual="nothing, or a link that leads nowhere",
                )
            ]
        copies = Copies(self._view, self._name, self._library, target, node)
        found = [self._digest(target, node)]
        if node.elf is None:
            actual = node.elf_problem or "no ELF file"
            found.append(
                judge(self._check("elf"), show(target), ok=False, expected="a readable ELF file", actual=actual)
            )
        else:
            found.extend(
                [
                    *self._facts(target, node.elf),
                    *needs(self._view, self._search, target, node.elf, self._check),
                    self._symbols(target, node.elf, copies),
                ]
            )
        found.extend(self._strings(target, node))
        found.extend(copies.findings())
        order = [image_path(path, where=self._name) for path in self._library.load_order]
        process = open_in_order(self._view, self._search, order)
        found.extend(self._consumers(target, copies, process))
        if order:
            found.append(self._process(target, copies, process))
        try:
            found.extend(requirements(self._view, self._name, self._library, target))
        except UNREADABLE as error:
            found.append(not_checked(self._check("metadata"), error.subject, reason(error)))
        found.extend(copies.unused())
        return found

    def _check(self, what: str) -> str:
        return f"library.{self._name}.{what}"

    def _digest(self, target: bytes, node: Node) -> Finding:
        source = self._lock.source(self._library.source)
        if not isinstance(source, LockedLibrary):
            return not_checked(self._check("digest"), show(target), f"source {source.name} is not a single file")
        return compare(self._check("digest"), show(target), source.digest, digest_of_node(node))

    def _facts(self, target: bytes, elf: ElfRecord) -> list[Finding]:
        where = show(target)
        found = [
            compare(self._check("machine"), where, f"{self._machine}, 64 bits", f"{elf.machine}, {elf.bits} bits"),
            compare(self._check("soname"), where, self._library.soname, elf.soname),
        ]
        rows = self._lock.facts.libraries if self._lock.facts is not None else []
        locked = next((row for row in rows if row.name == self._name), None)
        if locked is None:
            found.append(not_checked(self._check("build_id"), where, "the lock has no facts about it"))
        else:
            found.append(compare(self._check("build_id"), where, locked.build_id, elf.build_id))
        return found

    def _symbols(self, target: bytes, elf: ElfRecord, copies: Copies) -> Finding:
        check = self._check("symbols")
        prefixes = tuple(self._library.prefixes)
        if any(not prefix.startswith(SYMBOL_FAMILIES) for prefix in prefixes):
            return not_checked(check, show(target), f"inventories keep symbols of {', '.join(SYMBOL_FAMILIES)} only")
        users = [
            (path, node.elf)
            for path, node in self._view.elf_files
            if node.elf is not None and path != target and node.elf.machine == self._machine
        ]
        soname = self._library.soname
        # Those that are accepted may load another copy.
        own = [
            (path, user)
            for path, user in users
            if not copies.is_accepted(path) or self._search.load(path, soname).provider == target
        ]
        wanted = {name: path for path, user in own for name in user.imports if name.startswith(prefixes)}
        if not wanted and self._library.consumers == "some":
            reason = f"no other file imports a symbol that begins with {' or '.join(prefixes)}, so none was compared"
            return not_checked(check, show(target), f"{reason}; {_NO_CONSUMERS}")
        lacking = [*_lacking_symbols(wanted, elf), *_lacking_versions(own, elf, soname)]
        return judge(
            check,
            show(target),
            not lacking,
            expected=f"exports the {len(wanted)} symbols that other files import",
            actual="lacks " + ", ".join(lacking[:5]) if lacking else "exports them all",
        )

    def _strings(self, target: bytes, node: Node) -> list[Finding]:
        check, where = self._check("strings"), show(target)
        known = node.elf.texts if node.elf is not None else ()
        if all(any(text in one for one in known) for text in self._library.strings):
            # The inventory of its layer, which was taken from its bytes.
            return [
                judge(check, where, ok=True, expected=f"holds {text!r}", actual=f"holds {text!r}")
                for text in self._library.strings
            ]
        wanted = {text.encode() for text in self._library.strings}
        digest = None
        try:
            with contextlib.closing(self._view.contents(node)) as candidates:
                for pieces in candidates:
                    digest, absent = _search(pieces, wanted)
                    if digest == node.sha256:
                        break
        except UNREADABLE as error:
            return [not_checked(check, where, f"its layer cannot be read: {error}")]
        if digest is None:
            return [not_checked(check, where, "is not in the layer that its inventory names")]
        if digest != node.sha256:
            return [compare(check, where, f"sha256:{node.sha256}", f"sha256:{digest}")]
        found = [(text, text.encode() not in absent) for text in self._library.strings]
        return [
            judge(check, where, there, expected=f"holds {text!r}", actual=f"{'holds' if there else 'lacks'} {text!r}")
            for text, there in found
        ]

    def _consumers(self, target: bytes, copies: Copies, process: Process) -> list[Finding]:
        loads = list(self._search.loads(self._library.soname, copies.stem, {target, *copies.known()}))
        check = self._check("consumer")
        expects_none = self._library.consumers == "none"
        if not loads and not expects_none:
            reason = f"no file of the image needs {self._library.soname}, so no search was followed"
            return [not_checked(check, show(target), f"{reason}; {_NO_CONSUMERS}")]
        found = []
        if expects_none:
            text = f"no file of the image needs {self._library.soname}"
            count = len({load.path for load in loads})
            actual = f"{count} do, the first {show(loads[0].path)}" if loads else text
            found.append(judge(check, show(target), not loads, expected=text, actual=actual))
        return [*found, *(self._consumer(target, load, copies, process) for load in loads)]

    def _consumer(self, target: bytes, load: Load, copies: Copies, process: Process) -> Finding:
        check, where = self._check("consumer"), show(load.path)
        ok, reason = load.provider == target and load.doubt is None, f"{load.needed} is found by {load.rule}"
        if not ok and process.answers.get((load.path, load.needed)) == target:
            ok, reason = True, "by then the process has loaded it: load_order in the definition"
        elif not ok and (accepted := copies.accepted(load.path)) is not None:
            ok, reason = True, accepted
        elif not ok and load.doubt is not None and load.provider in {target, None}:
            return not_checked(check, where, f"{load.needed}: {load.doubt}")
        actual = "loads nothing" if load.provider is None else f"loads {show(load.provider)}"
        return judge(check, where, ok, expected=f"loads {show(target)}", actual=actual, reason=reason)

    def _process(self, target: bytes, copies: Copies, process: Process) -> Finding:
        """What a process has loaded after the declared files."""
        check, where = self._check("process"), f"{len(self._library.load_order)} files in order"
        if process.absent:
            absent = ", ".join(map(show, process.absent))
            text = "each is an ELF file of the image's machine"
            return judge(check, where, ok=False, expected=text, actual=f"absent: {absent}")
        loaded = [path for path in process.loaded if path in {target, *copies.paths}]
        failed = [(path, name) for path, name in process.failed if name not in self._library.provided]
        if loaded == [target] and failed:
            names = "; ".join(f"{show(path)} needs {name}, which is not in the image" for path, name in failed[:3])
            reason = f"{names}: opening ends there, unless the host brings it; then name it as `provided`"
            return not_checked(check, where, reason)
        if loaded == [target] and process.doubts:
            doubts = "; ".join(f"{show(load.path)} needs {load.needed}: {load.doubt}" for load in process.doubts[:3])
            return not_checked(check, where, doubts)
        actual = f"loads {', '.join(map(show, loaded)) or 'none'}"
        return judge(check, where, loaded == [target], expected=f"loads {show(target)}", actual=actual)


_Users = list[tuple[bytes, "ElfRecord"]]


def _lacking_symbols(wanted: dict[str, bytes], elf: ElfRecord) -> list[str]:
    """What a file does not export, or not in the version that is asked for, each with one who asks."""
    exports = set(elf.exports)
    # ld.so ends where a version is asked of a file that knows of none (the assertion in `check_match`).
    plain = not elf.versions_needed and not elf.versions_defined
    return [
        f"{name} (for {show(path)})"
        for name, path in sorted(wanted.items())
        if not binds(name, exports) or (plain and "@" in name)
    ]


def _lacking_versions(users: _Users, elf: ElfRecord, soname: str) -> list[str]:
    """Versions of a file that it does not define; of one that defines none at all ld.so only says so."""
    wanted = {
        name: path
        for path, user in users
        for file, names in user.versions_needed
        if file == soname and elf.versions_defined
        for name in names
    }
    return [
        f"version {name} (for {show(path)})"
        for name, path in sorted(wanted.items())
        if name not in elf.versions_defined
    ]


def _search(pieces: Iterator[bytes], wanted: set[bytes]) -> tuple[str, set[bytes]]:
    """The sha256 (hex) of a file in pieces, and which of some texts it does not hold."""
    left = set(wanted)
    overlap = max(map(len, wanted), default=1) - 1
    hasher, tail = hashlib.sha256(), b""
    for piece in pieces:
        hasher.update(piece)
        window = tail + piece
        left -= {text for text in left if text in window}
        tail = window[-overlap:] if overlap else b""
    return hasher.hexdigest(), left
