"""What every step is given: where things are kept, whether fetching is allowed, who counts and who watches."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from imgbuild.errors import MissingError
from imgbuild.progress import SILENT, Progress
from imgbuild.steps.places import Places, locations

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from imgbuild.adapters.cache import Cache
    from imgbuild.adapters.registry.repository import Repository
    from imgbuild.adapters.registry.session import Registries
    from imgbuild.adapters.store import Store
    from imgbuild.ledger import Ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The surroundings of one command."""

    root: Path
    """The repository, against which local sources are resolved."""
    store: Store
    cache: Cache
    ledger: Ledger
    offline: bool = False
    progress: Progress = SILENT
    connect: Callable[[], Registries] | None = None
    """Gives the registries of this command, always the same ones; None where a command has none to ask."""
    base: Places | None = None

    @property
    def registries(self) -> Registries:
        """The registries; a `MissingError` where a command has none to ask."""
        if self.connect is None:
            raise MissingError("registries", "cannot be asked here")
        return self.connect()

    @property
    def places(self) -> Places:
        """Where the bytes of the image come from."""
        return self.base or Places(self.store, self.cache, offline=self.offline)

    def based_on(self, reference: str) -> Context:
        """The same surroundings, for an image on a base: its repositories are asked for what is not in the store."""

        def find() -> tuple[Repository, ...]:
            return () if self.connect is None else locations(self.registries, reference)

        places = Places(self.store, self.cache, name=reference, repositories=find, offline=self.offline)
        return dataclasses.replace(self, base=places)

    def only_from(self, repository: Repository) -> Context:
        """The same surroundings, for an image of which every byte has to come from this repository and nowhere else."""
        places = Places(
            self.store,
            self.cache,
            name=str(repository),
            repositories=lambda: (repository,),
            offline=self.offline,
            local=False,
        )
        return dataclasses.replace(self, base=places)
