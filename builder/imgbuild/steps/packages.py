"""The installed distributions of a workspace: who owns a path, and RECORD rows that follow what steps change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imgbuild.content.packages import Distribution, Parsed, distribution, distributions, owners, rewrite_record
from imgbuild.errors import MissingError, StepError
from imgbuild.model.paths import parent, show
from imgbuild.steps.workspace import Attributes

if TYPE_CHECKING:
    from imgbuild.steps.workspace import Workspace


class Packages:
    """A view of the workspace that is made when it is first asked, and then follows the changes that it is told of.

    One distribution is read again where its RECORD was rewritten; after a package step, those of which METADATA or
    RECORD are others than before.
    """

    def __init__(self, workspace: Workspace, parsed: Parsed | None = None) -> None:
        """A view of a workspace.

        Args:
            workspace: what steps change.
            parsed: distributions that were read before, of whatever tree; used, and added to.
        """
        self._workspace = workspace
        self._parsed: Parsed = {} if parsed is None else parsed
        self._installed: tuple[Distribution, ...] | None = None

    def twin(self) -> Packages:
        """A second view of the workspace as it is now; of changes each has to be told."""
        twin = Packages(self._workspace, self._parsed)
        twin._installed = self._installed
        return twin

    def changed(self) -> None:
        """Look for distributions again when asked the next time: one was installed or removed."""
        self._installed = None

    def installed(self) -> tuple[Distribution, ...]:
        """All distributions."""
        if self._installed is None:
            self._installed = distributions(self._workspace.tree, self._read, self._parsed)
        return self._installed

    def owners(self, path: bytes) -> tuple[Distribution, ...]:
        """The distributions that claim a path."""
        return owners(self.installed(), path)

    def owner_names(self, path: bytes) -> tuple[str, ...]:
        """Their names."""
        return tuple(owner.name for owner in self.owners(path))

    def claims(self, path: bytes) -> tuple[tuple[str, str | None], ...]:
        """Which distributions claim a path, each with the sha256 (hex) in its RECORD row."""
        return tuple(
            (owner.name, owner.record.row(number).sha256)
            for owner in self.owners(path)
            for number in owner.record.places(path)
        )

    def refuse_second(self, name: str, version: str, site: bytes, *, where: str) -> None:
        """Refuse a second distribution of one name in a site folder: importers would mix the two."""
        # Steps of other kinds put and remove dist-info folders, too, and do not say so.
        self.changed()
        for found in self.installed():
            if found.name == name and parent(found.folder) == site:
                raise StepError(
                    f"distribution {name}",
                    "is installed already",
                    expected=f"{version} as the only one",
                    actual=f"{found.version} in {show(found.folder)}",
                    where=where,
                    hint="`remove` the installed one in a layer before, or leave this wheel out",
                )

    def update(self, path: bytes, *, where: str) -> None:
        """Let the RECORD of every owner say what is at a path now; without an owner nothing happens."""
        self._rewrite(path, where=where)

    def forget(self, path: bytes, *, where: str) -> None:
        """Take the row of a removed path out of its owners' RECORD."""
        self._rewrite(path, where=where)

    def _rewrite(self, path: bytes, *, where: str) -> None:
        for owner in self.owners(path):
            self._rewrite_record(owner, path, where=where)

    def _rewrite_record(self, owner: Distribution, path: bytes, *, where: str) -> None:
        record = owner.folder + b"/RECORD"
        real, node = self._workspace.regular_file(record, where=where)
        before = self._workspace.state(real)
        now = self._workspace.tree.get(path)
        data = rewrite_record(
            self._workspace.read(real, where=where),
            path,
            site=parent(owner.folder),
            sha256=None if now is None else now.sha256,
            size=0 if now is None else now.size,
            subject=f"file {show(real)}",
            known=owner.record,
        )
        self._workspace.write_bytes(real, data, Attributes.of(node), where=where)
        self._workspace.expect(where, real, (before, self._workspace.state(real)), final=True)
        self._read_again(owner.folder)

    def _read_again(self, folder: bytes) -> None:
        # Not kept with the others: the next row of this RECORD will be rewritten soon.
        fresh = distribution(self._workspace.tree, folder, self._read)
        self._installed = tuple(
            found for old in self.installed() if (found := fresh if old.folder == folder else old) is not None
        )

    def _read(self, path: bytes) -> bytes | None:
        found = self._workspace.tree.resolve(path)
        if found is None or found[1].type != "file":
            return None
        try:
            return self._workspace.read(path, where=show(path))
        except MissingError:
            return None
