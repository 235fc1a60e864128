"""The blobs of an image's base: those in the store are hashed; those elsewhere are asked after, and are not read."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Self

from imgbuild.errors import UNREADABLE
from imgbuild.model.identity import Finding, judge, not_checked
from imgbuild.progress import SILENT
from imgbuild.steps.crew import Crew
from imgbuild.steps.scanned import failed

if TYPE_CHECKING:
    from types import TracebackType

    from imgbuild.model.oci import Descriptor
    from imgbuild.steps.base import Base
    from imgbuild.steps.context import Context

_BASE_HINT = "copy the base into the store again (for `mini`, `make base`)"
_REQUESTS = 8
"""requests at a time."""


class BaseBlobs:
    """A context: from its beginning on threads look at the blobs, while others look at something else."""

    def __init__(self, context: Context, base: Base, *, ask: bool = True) -> None:
        """Nothing is looked at yet; `ask` is whether anybody is asked for the blobs that are not in the store."""
        self._ask_others = ask
        places = context.places
        self._places = places
        self._store = context.store
        layers = base.manifest.layers
        self._local = [layer for layer in layers if places.is_local(layer) or not places.repositories]
        self._remote = [layer for layer in layers if layer not in self._local]
        self._hashing = Crew(context, os.cpu_count() or 1)
        self._watched = self._hashing.watched(SILENT.task("", None))
        self._asking = Crew(context, _REQUESTS)

    def __enter__(self) -> Self:
        self._hashed = self._hashing.map(self._hash, self._local)
        self._present = self._asking.map(self._ask, self._remote if self._ask_others else ())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        if kind is not None:
            self._hashing.stop()
        self._asking.__exit__(kind, value, trace)
        self._hashing.__exit__(kind, value, trace)

    def findings(self) -> list[Finding]:
        """What was found, when all were looked at."""
        found = self._hash_findings() if self._local else []
        return [*found, *self._presence_findings()] if self._remote else found

    def _hash(self, layer: Descriptor) -> Finding | None:
        try:
            subject = f"base layer {layer.digest}"
            self._store.verify(layer.digest, layer.size, subject=subject, advance=self._watched.advance)
        except UNREADABLE as error:
            return failed("base.blob", error, hint=_BASE_HINT)
        return None

    def _ask(self, layer: Descriptor) -> Finding | str:
        subject = f"base layer {layer.digest}"
        try:
            where = self._places.where(layer)
        except UNREADABLE as error:
            return failed("base.present", error)
        if where is None:
            return judge("base.present", subject, ok=False, expected=f"{layer.size} bytes", actual="nobody has it")
        return where

    def _hash_findings(self) -> list[Finding]:
        problems = [finding for finding in self._hashed if finding is not None]
        if problems:
            return problems
        text = f"{len(self._local)} blobs with their digests"
        return [judge("base.blob", "base layers", ok=True, expected=text, actual=text)]

    def _presence_findings(self) -> list[Finding]:
        """Whether somebody has the blobs. That says nothing of their bytes, and the report says so."""
        unread = not_checked(
            "base.blob",
            f"{len(self._remote)} base layers",
            "they are not in the store; `imgbuild verify REFERENCE --deep` reads every byte of a pushed image",
            required=False,
        )
        if not self._ask_others:
            return [unread]
        answers = list(self._present)
        problems = [answer for answer in answers if isinstance(answer, Finding)]
        if problems:
            return [*problems, unread]
        text = f"{len(self._remote)} blobs of their sizes"
        places = ", ".join(sorted({str(answer) for answer in answers}))
        present = judge("base.present", "base layers", ok=True, expected=text, actual=text, reason=f"said by {places}")
        return [present, unread]
