"""Pushes that each meet one random fault, and what must be true of every one of them, whatever the fault was.

Each push ends in success with the right digest, in a verdict of no, or in one typed error, and then goes well without
the fault. At no moment does a tag name what is not whole, or was not read back before.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from imgbuild.adapters.registry.access import connect
from imgbuild.adapters.registry.patience import Patience
from imgbuild.adapters.registry.repository import Repository
from imgbuild.errors import ImgbuildError
from imgbuild.ledger import Ledger
from imgbuild.steps.push import Destination

from tests.support import fault_registry as fr
from tests.support.pushing import log_in
from tests.support.remote import SHORT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest
    from imgbuild.adapters.registry.session import Registries
    from imgbuild.model.oci import Descriptor, Manifest

BASE = "team/base"
TARGET = "llm/app"
TAG = "now"
HURRY = Patience(attempts=4, first=0.002, cap=0.02, asked_cap=2.0)


class WrongError(AssertionError):
    """Something that must never be: a tag on what is not whole or was not verified, or a foreign exception."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is pushed again and again.

    Args:
        base: its base, of which the registries have `base_blobs`.
        base_blobs: with their bytes.
        result: the manifest that must come out.
        push: pushes it with these registries to a destination; whether it passed.
        reference: of the base, as the definition has it.
        chunk_bytes: sizes of pieces to choose from.
        keep_bytes: whether the registry keeps what it is sent.
        known: what is read back, where it does not.
    """

    base: Manifest
    base_blobs: tuple[fr.Blob, ...]
    result: Manifest
    push: Callable[[Registries, Destination], bool]
    reference: str
    chunk_bytes: tuple[int, ...]
    keep_bytes: bool = True
    known: tuple[fr.Blob, ...] = ()


@dataclass(slots=True, kw_only=True)
class Tally:
    """How pushes ended: `ok`, `no` (read back otherwise), or the code of an error; and how many faults struck."""

    ends: Counter[str] = field(default_factory=Counter)
    struck: int = 0
    tags: int = 0
    """times that a tag was written and looked at"""


class _Watch:
    """Looks, after every write of a tag, at what the tag names at that moment."""

    def __init__(self, registry: fr.FaultRegistry, subject: Subject, tally: Tally) -> None:
        self._registry = registry
        self._subject = subject
        self._tally = tally
        self.wrong: list[str] = []

    def look(self, repository: fr.Repository, tag: str) -> None:
        digest = repository.tags.get(tag)
        if digest is None:
            return
        self._tally.tags += 1
        if digest != str(self._subject.result.digest):
            self.wrong.append(f"{tag} names {digest}")
            return
        for blob in blobs_of(self._subject.result):
            found = repository.blobs.get(str(blob.digest))
            if found is None or found.size != blob.size:
                self.wrong.append(f"{tag} names an image without {blob.digest}")
        read = [
            one
            for one in self._registry.requests("manifest", "GET")
            if one.reference == digest and one.sent == len(self._subject.result.raw)
        ]
        if not read:
            self.wrong.append(f"{tag} names what was not read back")


def blobs_of(manifest: Manifest) -> tuple[Descriptor, ...]:
    """Its layers and its config."""
    return (*manifest.layers, manifest.config)


def file_blob(path: Path) -> fr.Blob:
    """A blob whose bytes stay in their file, which is named by its digest."""

    def piece(start: int, stop: int) -> bytes:
        fd = os.open(path, os.O_RDONLY)
        try:
            return os.pread(fd, stop - start, start)
        finally:
            os.close(fd)

    return fr.Blob(digest=f"sha256:{path.name}", size=path.stat().st_size, piece=piece)


def push_once(subject: Subject, seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch, tally: Tally) -> None:
    """One push with the fault of a seed, and one without it if that failed; raises where something is wrong."""
    rng = random.Random(seed)
    guarded = rng.random() < 0.5
    beside = rng.random() < 0.7
    switches = fr.Switches(keep_bytes=subject.keep_bytes)
    if rng.random() < 0.5:
        switches.sessions = "distribution-2.8"
    auth = fr.Auth(mode="bearer" if guarded else "none", users={"me": "word"})
    with fr.FaultRegistry(auth=auth, switches=switches) as registry, fr.FaultRegistry() as other:
        source = registry if beside else other
        for blob in subject.base_blobs:
            source.add_blob(BASE, blob)
        source.put_manifest(BASE, subject.base.raw, media_type=subject.base.family.manifest)
        for blob in subject.known:
            registry.add_blob("team/other", blob)
        watch = _Watch(registry, subject, tally)
        registry.switches.after_put_tag = watch.look
        log_in(monkeypatch, folder / "docker", registry.host, "me", "word")
        settings = folder / "registries.toml"
        _write_settings(settings, registry.host, f"{source.host}/{BASE}", subject, rng)
        fault = (registry if beside or rng.random() < 0.8 else other).faults.add(fr.random_fault(rng))
        first = _attempt(subject, registry, settings, f"seed {seed}, {fault}")
        tally.ends[first] += 1
        tally.struck += bool(registry.faults.fired or other.faults.fired)
        registry.faults.clear()
        other.faults.clear()
        if first != "ok":
            second = _attempt(subject, registry, settings, f"seed {seed}, {fault}, again")
            if second != "ok":
                raise WrongError(f"seed {seed}, {fault}: {first}, and without the fault {second}")
        if watch.wrong or registry.repository(TARGET).tags != {TAG: str(subject.result.digest)}:
            raise WrongError(f"seed {seed}, {fault}: {watch.wrong or registry.repository(TARGET).tags}")


def _write_settings(file: Path, host: str, mirror: str, subject: Subject, rng: random.Random) -> None:
    rows = [
        'schema = "imgbuild/registries/v1"',
        f"[registry.{json.dumps(host)}]",
        f"chunk-bytes = {rng.choice(subject.chunk_bytes)}",
        f"[registry.{json.dumps(subject.reference)}]",
        f"mirrors = [{json.dumps(mirror)}]",
    ]
    file.write_text("\n".join(rows) + "\n")


def _attempt(subject: Subject, registry: fr.FaultRegistry, settings: Path, what: str) -> str:
    registries = connect(settings, ledger=Ledger(), offline=False, note=lambda _: None, times=SHORT, patience=HURRY)
    repository = Repository(registries.of(registry.host), TARGET)
    try:
        return "ok" if subject.push(registries, Destination(repository=repository, tags=(TAG,))) else "no"
    except ImgbuildError as error:
        if type(error).code == "INTERNAL" or not str(error):
            raise WrongError(f"{what}: {error!r}") from error
        return type(error).code
    except Exception as error:
        raise WrongError(f"{what}: a foreign {type(error).__name__}: {error}") from error
    finally:
        registries.close()
