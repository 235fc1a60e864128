"""A tiny project whose base is in a registry and not in its store, and the program run on it in this process."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from imgbuild.adapters.registry.access import connect
from imgbuild.adapters.registry.patience import Patience
from imgbuild.adapters.registry.repository import Repository
from imgbuild.adapters.registry.wire import Times
from imgbuild.cli import run
from imgbuild.ledger import Ledger
from imgbuild.steps.push import move_tags, push

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    from imgbuild.adapters.registry.session import Registries
    from imgbuild.digest import Digest

    from tests.support.tiny import Tiny

QUICK = Patience(attempts=4, first=0.01, cap=0.05, asked_cap=2.0)
SHORT = Times(connect=2.0, idle=2.0, head=4.0, window=2.0)
BASE = "team/base"


def registries(*, ledger: Ledger | None = None, file: Path | None = None) -> Registries:
    """Registries for a test: as the program has them, but with little patience."""
    return connect(file, ledger=ledger or Ledger(), offline=False, note=lambda _: None, times=SHORT, patience=QUICK)


@dataclass
class Remote:
    """A tiny project and the registry that has its base."""

    tiny: Tiny
    host: str
    capture: pytest.CaptureFixture[str]

    def run(self, *words: str, cache: Path | None = None) -> tuple[int, dict[str, Any]]:
        """Exit code and the document on stdout: its result, or its error."""
        self.capture.readouterr()
        shared = ["--json", "--project", str(self.tiny.root), "--cache", str(cache or self.tiny.cache_path)]
        code = run([words[0], *shared, *words[1:]])
        document: dict[str, Any] = json.loads(self.capture.readouterr().out)
        found: dict[str, Any] = document.get("error") or document["result"]
        return code, found

    def reference(self, repository: str, name: Digest | str) -> str:
        """`host/repository` with a tag or a digest."""
        return f"{self.host}/{repository}{':' if isinstance(name, str) else '@'}{name}"


def moved(document: dict[str, Any], host: str) -> tuple[int, int]:
    """Bytes read from and written to a host, as a result states them."""
    for row in document["moved"]:
        if row["place"] == host:
            return row["read"], row["written"]
    return 0, 0


def base_to(tiny: Tiny, host: str, monkeypatch: pytest.MonkeyPatch, *, mirror: str | None = None) -> None:
    """Push the base of a tiny project to a registry, take it out of the store, and name the registry as its mirror.

    Args:
        tiny: a locked project with its base in the store.
        host: the registry.
        monkeypatch: sets the environment.
        mirror: another place to name, instead of the one where it is.
    """
    context = tiny.context(offline=False)
    descriptor = context.store.resolve("base")
    manifest = context.store.manifest(descriptor)
    target = Repository(registries().of(host), BASE)
    push(context, target, manifest, manifest.raw)
    move_tags(target, manifest, manifest.raw, ("v1",))
    shutil.rmtree(tiny.store_path)
    settings = tiny.root / "registries.toml"
    place = mirror or f"{host}/{BASE}"
    settings.write_text(f'schema = "imgbuild/registries/v1"\n[registry."localhost/test/base"]\nmirrors = ["{place}"]\n')
    monkeypatch.setenv("IMGBUILD_REGISTRIES", str(settings))
