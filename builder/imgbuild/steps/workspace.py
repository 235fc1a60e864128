"""The tree while steps change it, and the changes of one layer (changeset) that this gives.

Every write goes to the real path: links in the parents are followed inside the image, so that a file for `/bin` of a
base with `bin -> usr/bin` lands in `usr/bin` and the link stays (case C08). A link at the end of a path is replaced
itself (C07).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

from msgspec.structs import replace

from imgbuild import jsontext
from imgbuild.content.changeset import BytesContent, Change, ChangeType
from imgbuild.content.elf import is_elf, read_elf
from imgbuild.content.inventory import ElfRecord, elf_record
from imgbuild.content.node import Node
from imgbuild.digest import Digest
from imgbuild.errors import ArchiveError, FactMismatchError, InternalError, StepError
from imgbuild.model.image import FORMAT
from imgbuild.model.lockfile import ABSENT, FileStates
from imgbuild.model.paths import parent, parents, show
from imgbuild.steps.filecontent import FileContent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from imgbuild.content.changeset import Content
    from imgbuild.content.inventory import Inventory
    from imgbuild.content.tree import Tree

_MOVED = "is the path right? if it was, the base has moved: see what it has there now, and correct the step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attributes:
    """Metadata of a path that a step writes."""

    mode: int
    uid: int = 0
    gid: int = 0
    xattrs: tuple[tuple[str, bytes], ...] = ()

    @classmethod
    def of(cls, node: Node) -> Attributes:
        """The metadata of what is there, to be kept."""
        return cls(mode=node.mode, uid=node.uid, gid=node.gid, xattrs=node.xattrs)


class Workspace:
    """A merged tree with the layer that is being made on top of it."""

    def __init__(
        self,
        tree: Tree,
        read_base: Callable[[Node, str], bytes],
        *,
        epoch: int,
        first_layer: int,
        expected: Mapping[tuple[str, str], tuple[str, ...]] | None,
    ) -> None:
        self.tree = tree
        self.states: list[FileStates] = []
        """What steps found and left, in order."""
        self.before: dict[bytes, Node | None] = {}
        """For every path that any layer touched, the node of the base."""
        self._read_base = read_base
        self.epoch = epoch
        """Seconds since 1970, the time of all that steps write."""
        self._layer = first_layer - 1
        self._expected = expected
        self._contents: dict[str, Content] = {}
        self._elves: dict[str, tuple[ElfRecord | None, str | None]] = {}
        self._original: dict[bytes, Node | None] = {}

    def begin_layer(self) -> None:
        """Start the next layer."""
        self._layer += 1
        self._original = {}

    def real_path(self, path: bytes, *, where: str) -> bytes:
        """The path with links in its parents followed where they exist; a parent that is a file is a `StepError`."""
        walked = b""
        parts = path.split(b"/")
        for index, part in enumerate(parts[:-1]):
            found = self.tree.resolve(walked + b"/" + part)
            if found is None:
                if self.tree.get(walked + b"/" + part if walked else part) is not None:
                    raise StepError(f"path {show(path)}", "goes through a link that leads nowhere", where=where)
                return b"/".join(filter(None, [walked, *parts[index:]]))
            if not found[1].is_directory:
                raise StepError(
                    f"path {show(path)}", "goes through what is not a directory", actual=show(found[0]), where=where
                )
            walked = found[0]
        return b"/".join(filter(None, [walked, parts[-1]]))

    def real_folder(self, path: bytes, *, where: str) -> bytes:
        """The same for a folder, which itself may be a link to one."""
        return parent(self.real_path(path + b"/.", where=where))

    def regular_file(self, path: bytes, *, where: str) -> tuple[bytes, Node]:
        """The real path and node of an existing regular file, all links followed."""
        found = self.tree.resolve(path)
        if found is None or found[1].type != "file":
            raise StepError(
                f"file {show(path)}",
                "is not in the image" if found is None else f"is a {found[1].type}",
                expected="a regular file",
                where=where,
                hint=_MOVED,
            )
        return found

    def read(self, path: bytes, *, where: str) -> bytes:
        """The bytes of a small regular file of the tree as it is now."""
        real, node = self.regular_file(path, where=where)
        content = self._contents.get(str(node.sha256))
        if content is None:
            return self._read_base(node, show(real))
        with content.open() as stream:
            return b"".join(iter(lambda: stream.read(1 << 20), b""))

    def write(self, path: bytes, content: Content, digest: Digest, attributes: Attributes, *, where: str) -> None:
        """Put a regular file at a path; missing parents become 0755 of the same owner."""
        real = self.real_path(path, where=where)
        old = self.tree.get(real)
        if old is not None and old.is_directory:
            raise StepError(
                f"path {show(real)}", "is a directory in the image", expected="a file or nothing", where=where
            )
        self._make_parents(real, attributes, where=where)
        self._touch(real)
        self._contents[digest.encoded] = content
        elf, problem = self._elves[digest.encoded] = self._elf(content, show(real))
        node = Node(
            type="file",
            mode=attributes.mode,
            uid=attributes.uid,
            gid=attributes.gid,
            mtime=self.epoch,
            size=content.size,
            sha256=digest.encoded,
            xattrs=attributes.xattrs,
            elf=elf,
            elf_problem=problem,
            layer=self._layer,
            source=real,
        )
        self.tree.put(real, node)

    def write_bytes(self, path: bytes, data: bytes, attributes: Attributes, *, where: str) -> Digest:
        """Put bytes at a path; returns their digest."""
        digest = Digest.of(data)
        self.write(path, BytesContent(data=data), digest, attributes, where=where)
        return digest

    def link(self, path: bytes, target: bytes, attributes: Attributes, *, where: str) -> None:
        """Put a symbolic link at a path."""
        real = self.real_path(path, where=where)
        old = self.tree.get(real)
        if old is not None and old.is_directory:
            raise StepError(
                f"path {show(real)}", "is a directory in the image", expected="a link or nothing", where=where
            )
        self._make_parents(real, attributes, where=where)
        self._touch(real)
        node = Node(
            type="symlink",
            mode=0o777,
            uid=attributes.uid,
            gid=attributes.gid,
            mtime=self.epoch,
            link=target,
            layer=self._layer,
            source=real,
        )
        self.tree.put(real, node)

    def remove(self, path: bytes, *, where: str) -> None:
        """Take a path away; a `StepError` if it is not there."""
        real = self.real_path(path, where=where)
        if self.tree.get(real) is None:
            raise StepError(
                f"path {show(path)}", "is not in the image, so it cannot be removed", hint=_MOVED, where=where
            )
        self._touch(real)
        self.tree.remove(real)

    def drop_bytecode(self, path: bytes, *, where: str) -> tuple[bytes, ...]:
        """Remove compiled forms of a changed `.py` file, which would be loaded in its place (cases P56, P57)."""
        if not path.endswith(b".py"):
            return ()
        folder, stem = parent(path), path.rpartition(b"/")[2][: -len(b".py")]
        cache = self.tree.get(folder + b"/__pycache__" if folder else b"__pycache__")
        names = sorted(cache.children) if cache is not None else []
        stale = [
            folder + b"/__pycache__/" + name
            for name in names
            if name.startswith(stem + b".") and name.endswith(b".pyc")
        ]
        for name in stale:
            self.remove(name, where=where)
        return tuple(stale)

    def state(self, path: bytes) -> str:
        """The state of a path as the lock writes it."""
        node = self.tree.get(path)
        if node is not None and node.type != "symlink" and node.sha256 is None:
            raise StepError(f"path {show(path)}", f"is a {node.type}", expected="a regular file")
        return state_of(node)

    def expect(self, step: str, path: bytes, states: tuple[str, ...], *, final: bool = False) -> None:
        """Compare states with the lock's as far as they are known; with `final`, record them."""
        text = show(path)
        if self._expected is not None:
            wanted = self._expected.get((step, text))
            if wanted is None or states != wanted[: len(states)] or (final and len(states) != len(wanted)):
                raise _unexpected(step, text, states, wanted)
        if final:
            self.states.append(FileStates(step=step, path=text, states=list(states)))

    def expected_last(self, step: str, path: bytes) -> str | None:
        """The state that the lock pins for a path after a step; None while a lock is being made."""
        states = None if self._expected is None else self._expected.get((step, show(path)))
        return states[-1] if states else None

    def finish_layer(self) -> tuple[Change, ...]:
        """The changes of this layer against the layers below, parents included."""
        changes: dict[bytes, Change] = {}
        for path, old in self._original.items():
            if any(above in self._original and self.tree.get(above) is None for above in parents(path)):
                continue
            node = self.tree.get(path)
            if node is None:
                if old is not None:
                    changes[path] = Change(path=path, type=ChangeType.WHITEOUT)
            elif node != old:
                changes[path] = self._change(path, node)
        for path in list(changes):
            for above in parents(path):
                if above not in changes:
                    changes[above] = self._change(above, self._existing(above))
        return tuple(changes[path] for path in sorted(changes))

    def check_libraries(self, changes: tuple[Change, ...], inventory: Inventory) -> None:
        """Compare what is known of large files, which were not read whole, with what the inventory of their layer says.

        Raises:
            DigestMismatchError: a file is damaged, so that its facts are not those of what was pinned.
            InternalError: it is not, and yet the layer holds something else.
        """
        files = {change.path: content for change in changes if isinstance(content := change.content, FileContent)}
        for entry in inventory.entries if files else ():
            content = files.get(entry.path_bytes)
            if content is None:
                continue
            elf = None if entry.elf is None else replace(entry.elf, texts=())
            known = (content.digest.encoded, content.size, *self._elves[content.digest.encoded])
            if (entry.sha256, entry.size, elf, entry.elf_problem) == known:
                continue
            content.check()
            raise InternalError(
                f"file {show(entry.path_bytes)}", "has other facts than in the layer that was made of it"
            )

    def check_contents(self) -> None:
        """Read all large files that were put into the tree; a `DigestMismatchError` for one that is damaged."""
        for content in self._contents.values():
            if isinstance(content, FileContent):
                content.check()

    def layer_key(self, changes: tuple[Change, ...]) -> Digest:
        """The digest of all that the bytes of a canonical layer depend on; content stands for itself by its sha256."""
        rows = [
            [
                change.path.hex(),
                change.type.value,
                change.mode,
                change.uid,
                change.gid,
                change.mtime,
                change.link.hex(),
                [[name, value.hex()] for name, value in change.xattrs],
                change.sha256,
            ]
            for change in changes
        ]
        return Digest.of(jsontext.dumps({"format": FORMAT, "epoch": self.epoch, "changes": rows}))

    def _existing(self, path: bytes) -> Node:
        node = self.tree.get(path)
        if node is None:
            raise StepError(f"path {show(path)}", "was removed in the layer that writes below it")
        return node

    def _change(self, path: bytes, node: Node) -> Change:
        kinds = {"file": ChangeType.FILE, "directory": ChangeType.DIRECTORY, "symlink": ChangeType.SYMLINK}
        return Change(
            path=path,
            type=kinds[node.type],
            mode=node.mode,
            uid=node.uid,
            gid=node.gid,
            mtime=node.mtime,
            link=node.link,
            xattrs=node.xattrs,
            content=self._contents[str(node.sha256)] if node.type == "file" else None,
            sha256=node.sha256 if node.type == "file" else None,
        )

    def _make_parents(self, path: bytes, attributes: Attributes, *, where: str) -> None:
        for above in parents(path):
            node = self.tree.get(above)
            if node is None:
                if self._original.get(above) is not None:
                    raise StepError(f"path {show(above)}", "is made again in the layer that removes it", where=where)
                self._touch(above)
                made = Node(
                    type="directory",
                    mode=0o755,
                    uid=attributes.uid,
                    gid=attributes.gid,
                    mtime=self.epoch,
                    layer=self._layer,
                    source=above,
                )
                self.tree.put(above, made)

    def _touch(self, path: bytes) -> None:
        node = self.tree.get(path)
        kept = None if node is None else replace(node)
        if path not in self._original:
            self._original[path] = kept
        if path not in self.before:
            self.before[path] = kept

    def _elf(self, content: Content, subject: str) -> tuple[ElfRecord | None, str | None]:
        with content.file() if isinstance(content, FileContent) else content.open() as stream:
            if not is_elf(stream.read(4)):
                return None, None
            try:
                return elf_record(read_elf(stream, subject=subject)), None  # type: ignore[arg-type]
            except ArchiveError as error:
                return None, error.problem


def state_of(node: Node | None) -> str:
    """The state of a path as the lock writes it; of what is neither file nor link, which no lock has, its type."""
    if node is None:
        return ABSENT
    if node.type == "symlink":
        return f"link:{show(node.link)[1:]}"
    return node.type if node.sha256 is None else f"sha256:{node.sha256}"


def _unexpected(step: str, path: str, states: tuple[str, ...], wanted: tuple[str, ...] | None) -> FactMismatchError:
    """The error for the first state that differs from the lock's."""
    problem, expected, actual = "is changed by a step but not in the lock", "a row in pins.files", states[0]
    if wanted is not None:
        pairs = list(zip_longest(states, wanted, fillvalue="no further state"))
        index = next(index for index, (found, recorded) in enumerate(pairs) if found != recorded)
        stage = "the step" if len(pairs) <= 2 else f"stage {index}"  # noqa: PLR2004 - before and after
        problem = f"is not what the lock recorded {f'after {stage}' if index else 'before the step'}"
        actual, expected = pairs[index]
    return FactMismatchError(
        f"file {path}",
        problem,
        expected=expected,
        actual=actual,
        where=f"step {step}",
        hint="was the lock edited? take that back; or remove the lock and run `imgbuild lock IMAGE` to make it anew",
    )
