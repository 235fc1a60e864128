"""Referrers: documents that are about an image (distribution-spec, Listing Referrers; Pushing Manifests with Subject).

Where a registry has no referrers API, the list is an index under the tag `sha256-<hex>` which clients keep up to date
themselves. No registry lets two writers of a tag know of each other, so each writer looks again after a moment, and
adds what it finds missing: its own row, and the rows that it saw before (case C52).
"""

from __future__ import annotations

import json
import random
import re
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from imgbuild import jsontext
from imgbuild.adapters.registry.origin import next_address
from imgbuild.adapters.registry.repository import refuse_encoding
from imgbuild.adapters.registry.secrecy import hiding
from imgbuild.adapters.registry.session import Call
from imgbuild.config import DEFAULT_LIMITS
from imgbuild.digest import Digest
from imgbuild.errors import LayoutError, MissingError, NetworkError, ProtocolError
from imgbuild.model.oci import INDEX_TYPES, Descriptor
from imgbuild.model.ociindex import Entry, Index

if TYPE_CHECKING:
    from imgbuild.adapters.registry.repository import Repository

_MAX_PAGES = 100
_ROUNDS = 20
"""times that the fallback tag is written before we give up against other writers."""
_SETTLE = 0.4
"""seconds after which a writer looks again at least."""
_SLOWER = 4
"""times the time between our own look and write, which another writer may need between its own."""
_NEXT = re.compile(r'<([^<>]{1,4096})>\s*;\s*rel="?next"?')
_EMPTY = {"schemaVersion": 2, "mediaType": INDEX_TYPES[0], "manifests": []}


def fallback_tag(subject: Digest) -> str:
    """The tag of the list where there is no referrers API (distribution-spec, Referrers Tag Schema)."""
    return f"{subject.algorithm}-{subject.encoded}"[:128]


@hiding
def referrers(repository: Repository, subject: Digest, *, artifact_type: str | None = None) -> tuple[Entry, ...]:
    """What a registry lists as being about a digest; from its API, and if it has none, from the fallback tag.

    What is listed is not fetched. An answer is filtered here again, since some registries do not.

    Raises:
        RegistryError: as `Registry.call`.
        LayoutError: the list breaks its specification, or a page of it is longer than a manifest may be.
    """
    found = _from_api(repository, subject, artifact_type)
    if found is None:
        index = _fallback(repository, subject)
        found = index.entries if index is not None else ()
    unique = {row.descriptor.digest: row for row in found}
    return tuple(row for row in unique.values() if artifact_type in {None, row.artifact_type})


@hiding
def attach(repository: Repository, raw: bytes, media_type: str, subject: Descriptor) -> Digest:
    """Write a manifest that has `subject`, so that it is found from there; its blobs must be in the repository already.

    Args:
        repository: where the subject is.
        raw: the manifest; its `subject` is `subject`, its `artifactType` and `annotations` go into the list.
        media_type: of the manifest.
        subject: what it is about.

    Returns:
        The digest of the manifest.

    Raises:
        RegistryError: refused; or the list under the fallback tag could not be kept against other writers.
    """
    answer = repository.put_manifest(raw, media_type)
    row = _row(raw, media_type)
    if answer.header("OCI-Subject") != str(subject.digest) and not _listed_by_api(repository, subject.digest, row):
        _merge(repository, subject.digest, row)
    return row.descriptor.digest


def _listed_by_api(repository: Repository, subject: Digest, row: Entry) -> bool:
    found = _from_api(repository, subject, None)
    return found is not None and row.descriptor.digest in {item.descriptor.digest for item in found}


def _from_api(repository: Repository, subject: Digest, artifact_type: str | None) -> tuple[Entry, ...] | None:
    """The rows that the API lists; None if there is no such API."""
    name = f"referrers of {subject} in {repository}"
    query = f"?{urlencode({'artifactType': artifact_type})}" if artifact_type else ""
    url = repository.path(f"referrers/{subject}{query}")
    limit = DEFAULT_LIMITS.manifest_bytes
    rows: list[Entry] = []
    seconds = repository.registry.times.document
    end = time.monotonic() + seconds
    for _ in range(_MAX_PAGES):
        call = Call(
            method="GET",
            url=url,
            subject=name,
            repository=repository.name,
            scopes=(repository.scope(),),
            accept={200, 400, 404, 405, 501},
            headers={"Accept": INDEX_TYPES[0]},
            follow=True,
        )
        answer, raw = repository.registry.whole(call, limit)
        kind = (answer.header("Content-Type") or "").partition(";")[0].strip().lower()
        if answer.status != 200 or kind != INDEX_TYPES[0]:  # noqa: PLR2004 - HTTP
            # A 200 of another kind is a page of whatever answers for the registry, not its API.
            return None
        refuse_encoding(answer, name)
        if len(raw) > limit:
            raise LayoutError(name, "is too long", expected=f"at most {limit} bytes a page")
        rows += Index.parse(raw, media_type=kind, subject=name).entries
        more = _NEXT.search(answer.header("Link") or "")
        if more is None:
            return tuple(rows)
        url = next_address(answer.url, more[1], subject=name)
        if time.monotonic() > end:
            raise NetworkError(name, f"did not come whole in {seconds:g} seconds", actual=f"{len(rows)} rows so far")
    raise ProtocolError(name, "has no end", expected=f"at most {_MAX_PAGES} pages")


def _fallback(repository: Repository, subject: Digest) -> Index | None:
    tag = fallback_tag(subject)
    try:
        found = repository.manifest(tag)
    except MissingError:
        return None
    return Index.parse(found.raw, media_type=found.descriptor.media_type, subject=f"tag {repository}:{tag}")


def _merge(repository: Repository, subject: Digest, row: Entry) -> None:
    """Add a row to the index under the fallback tag, and look until it stays there."""
    own = row.descriptor.digest
    seen = {own: row}
    settle = 0.0
    for _ in range(_ROUNDS):
        started = time.monotonic()
        index = _fallback(repository, subject)
        there = {} if index is None else {item.descriptor.digest: item for item in index.entries}
        lost = [item for digest, item in seen.items() if digest not in there]
        # What somebody deleted does not come back.
        lost = [item for item in lost if item is row or repository.manifest_digest(item.descriptor.digest) is not None]
        if not lost:
            return
        _write(repository, subject, index, lost)
        seen = {**there, **{item.descriptor.digest: item for item in lost}}
        # Others are as fast as we are, more or less.
        settle = max(settle, _SETTLE, _SLOWER * (time.monotonic() - started))
        repository.registry.ending.sleep(settle * random.uniform(1.0, 2.0))  # noqa: S311 - spreads writers
    raise NetworkError(
        f"tag {repository}:{fallback_tag(subject)}",
        f"does not keep what is written there, after {_ROUNDS} tries",
        expected=f"an index that lists {own}",
        hint="do others write to it without end? the document itself is there, under its digest; run it again",
    )


def _write(repository: Repository, subject: Digest, index: Index | None, rows: list[Entry]) -> None:
    value: dict[str, Any] = dict(_EMPTY) if index is None else json.loads(index.raw)
    value["manifests"] = [*value["manifests"], *(row.as_dict() for row in rows)]
    media_type = INDEX_TYPES[0] if index is None else index.media_type
    repository.put_manifest(jsontext.compact(value), media_type, tag=fallback_tag(subject))


def _row(raw: bytes, media_type: str) -> Entry:
    value = jsontext.loads(raw, subject="manifest to attach")
    config = value.get("config") or {}
    return Entry(
        descriptor=Descriptor(media_type=media_type, digest=Digest.of(raw), size=len(raw)),
        platform=None,
        artifact_type=value.get("artifactType") or config.get("mediaType"),
        annotations=tuple((value.get("annotations") or {}).items()),
    )
