"""Other copies of a swapped library in the image, and which of them the definition accepts: (f), (h) to (j), (l), (m).

The letters are those of `steps.verify_library`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from imgbuild.content.elfversions import unversioned
from imgbuild.content.inventory import SYMBOL_FAMILIES
from imgbuild.model.identity import Finding, judge, not_checked
from imgbuild.model.paths import image_path, parent, show
from imgbuild.steps.view import digest_of_node

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imgbuild.content.node import Node
    from imgbuild.model.image import LibraryIdentity
    from imgbuild.steps.view import View


class Copies:
    """The copies of one library. An acceptance counts as needed from the first time that it was asked for.

    Attributes:
        stem: what file names of the library begin with, as `libnccl.so`.
        paths: real paths of all files that are, by their facts or their name, another copy.
    """

    def __init__(self, view: View, name: str, library: LibraryIdentity, target: bytes, node: Node) -> None:
        """Look through the ELF files of the image.

        Args:
            view: the image.
            name: the library's, in the definition.
            library: what the definition says of it.
            target: the real path of the right one.
            node: what is there.
        """
        self._view = view
        self._name = name
        self._library = library
        self._target = target
        self._reasons = {image_path(item.path, where=name): item.reason for item in library.accept}
        self._used: set[bytes] = set()
        self._advice = f"remove it, or accept it under [[library.{name}.accept]] with a reason"
        self._check = f"library.{name}.provider"
        self.stem = library.soname.partition(".so")[0].encode() + b".so"
        self.paths = list(self._found(node))

    def findings(self) -> list[Finding]:
        """All findings but those about acceptances that nobody needs."""
        found = [*self._providers(), self._folder(), *self._unreadable(), *self._inside()]
        return [*found, *self._archives()]

    def accepted(self, path: bytes) -> str | None:
        """The reason for which a file is accepted, None where it is not."""
        reason = self._reasons.get(path)
        if reason is not None:
            self._used.add(path)
        return reason

    def is_accepted(self, path: bytes) -> bool:
        """Whether the definition accepts a file; that alone does not make it one that is needed (`unused`)."""
        return path in self._reasons

    def known(self) -> set[bytes]:
        """Real paths of the copies and of all that is accepted."""
        return {*self.paths, *(real for path in self._reasons if (real := self._view.resolve(path)) is not None)}

    def unused(self) -> list[Finding]:
        """The acceptances that nobody asked for; to be called last."""
        return [
            judge(
                f"library.{self._name}.accept",
                show(path),
                ok=False,
                expected="is there, as the definition says",
                actual="is not there, or not needed any more",
                reason=f"take its [[library.{self._name}.accept]] out of the definition",
            )
            for path in sorted(set(self._reasons) - self._used)
        ]

    def _found(self, node: Node) -> Iterator[bytes]:
        own = unversioned(node.elf.exports) if node.elf is not None else ()
        symbols = {self._library.symbol, *(name for name in own if name.startswith(tuple(self._library.prefixes)))}
        for path, other in self._view.elf_files:
            if path == self._target or other.elf is None:
                continue
            named = other.elf.soname == self._library.soname or path.rpartition(b"/")[2].startswith(self.stem)
            if named or not symbols.isdisjoint(unversioned(other.elf.exports)):
                yield path

    def _providers(self) -> list[Finding]:
        found = []
        if not self._library.symbol.startswith(SYMBOL_FAMILIES):
            reason = f"inventories keep symbols of {', '.join(SYMBOL_FAMILIES)} only, not {self._library.symbol}"
            found.append(not_checked(self._check, show(self._target), reason))
        for path in self.paths:
            digest, accepted = digest_of_node(self._view.tree.get(path)), self.accepted(path)
            if accepted is not None:
                expected, reason = "accepted in the definition", accepted
            else:
                expected, reason = f"no other {self._library.soname} than {show(self._target)}", self._advice
            ok = accepted is not None
            found.append(judge(self._check, show(path), ok, expected=expected, actual=digest, reason=reason))
        if not found:
            only = f"the only {self._library.soname}"
            found.append(judge(self._check, show(self._target), ok=True, expected=only, actual=only))
        return found

    def _folder(self) -> Finding:
        folder = parent(self._target)
        named = [folder + b"/" + name for name in self._view.listdir(folder) if name.startswith(self.stem)]
        others = [path for path in named if self._view.resolve(path) != self._target]
        wrong = [show(path) for path in others if self.accepted(path) is None]
        text = f"only it and links to it begin with {self.stem.decode()} in {show(folder)}"
        actual = f"also there: {', '.join(wrong)}" if wrong else text
        reason = self._advice if wrong else None
        check = f"library.{self._name}.folder"
        return judge(check, show(self._target), not wrong, expected=text, actual=actual, reason=reason)

    def _unreadable(self) -> Iterator[Finding]:
        for path, node in self._view.elf_files:
            if node.elf_problem is not None and self.accepted(path) is None:
                reason = f"begins like ELF but {node.elf_problem}, so it may be another one; {self._advice}"
                yield not_checked(self._check, show(path), reason)

    def _inside(self) -> Iterator[Finding]:
        """Copies of which only a text is left."""
        known = {self._target, *self.paths}
        for path, node in self._view.elf_files:
            text = next((text for text in node.elf.texts if " " in text), None) if node.elf is not None else None
            if text is not None and path not in known and self.accepted(path) is None:
                reason = f"says {text!r} and exports none of its symbols: is a copy of it inside? {self._advice}"
                yield not_checked(self._check, show(path), reason)

    def _archives(self) -> Iterator[Finding]:
        """Copies that no linker of the image sees, though what is built in it may take them."""
        for path, node in self._view.archives:
            reason = f"an archive that seems to hold a copy ({', '.join(node.inside)}); no process loads it as it is"
            yield not_checked(self._check, show(path), reason, required=False)
