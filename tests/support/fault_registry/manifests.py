"""Manifests: GET and HEAD with Accept, PUT, DELETE (specification: Pulling and Pushing manifests)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.support.fault_registry.manifest_rules import check, kind_of
from tests.support.fault_registry.messages import RefusedError, Response
from tests.support.fault_registry.storage import DIGEST, TAG, Manifest, Repository, digest_of

if TYPE_CHECKING:
    from tests.support.fault_registry.exchange import Exchange

MANIFEST_BYTES = 4 * 1024 * 1024
"""bytes; what registries must accept at least (specification: Pushing Manifests)"""


def manifest(exchange: Exchange) -> Response:
    """GET, HEAD, PUT or DELETE of a manifest by tag or digest."""
    record = exchange.record
    if not DIGEST.fullmatch(record.reference) and not TAG.fullmatch(record.reference):
        raise RefusedError(400, "MANIFEST_INVALID", f"neither a tag nor a digest: {record.reference[:80]!r}")
    if record.method == "PUT":
        return _put(exchange)
    if record.method == "DELETE":
        return _delete(exchange)
    if record.method not in {"GET", "HEAD"}:
        raise RefusedError(405, "UNSUPPORTED", "the operation is unsupported")
    with exchange.backend.storage.lock:
        found = exchange.backend.storage.repository(record.repository).resolve(record.reference)
    if found is None:
        raise RefusedError(404, "MANIFEST_UNKNOWN", "manifest unknown")
    accepted = {part.partition(";")[0].strip() for part in exchange.headers.get("accept", "").split(",")}
    if found.media_type not in accepted:
        raise RefusedError(404, "MANIFEST_UNKNOWN", f"manifest found, but Accept does not name {found.media_type}")
    headers = [("Content-Type", found.media_type)]
    if exchange.backend.switches.content_digest:
        headers.append(("Docker-Content-Digest", found.digest))
    return Response(status=200, headers=headers, body=(found.raw,), length=len(found.raw))


def _put(exchange: Exchange) -> Response:
    record, switches = exchange.record, exchange.backend.switches
    raw = _read(exchange)
    media_type = exchange.headers.get("content-type", "")
    document = kind_of(raw, media_type)
    algorithm_digest = digest_of(raw)
    by_digest = DIGEST.fullmatch(record.reference) is not None
    if by_digest and record.reference != algorithm_digest:
        raise RefusedError(400, "DIGEST_INVALID", f"the manifest has the digest {algorithm_digest}")
    repository = exchange.backend.storage.repository(record.repository)
    made = Manifest(digest=algorithm_digest, media_type=media_type, raw=raw)
    with exchange.backend.storage.lock:
        check(document, media_type, repository)
        if not by_digest:
            _protect(exchange, repository, made.digest)
        repository.manifests[made.digest] = made
    if not by_digest:
        _tag(exchange, repository, made.digest)
    path = f"/v2/{record.repository}/manifests/{record.reference}"
    headers = [("Location", exchange.backend.base + path)]
    if switches.content_digest:
        headers.append(("Docker-Content-Digest", made.digest))
    if switches.referrers and isinstance(document.get("subject"), dict):
        headers.append(("OCI-Subject", document["subject"]["digest"]))
    return Response(status=201, headers=headers)


def _read(exchange: Exchange) -> bytes:
    if exchange.body.length is None:
        raise RefusedError(411, "SIZE_INVALID", "a manifest needs a Content-Length")
    if exchange.body.length > MANIFEST_BYTES:
        raise RefusedError(413, "MANIFEST_INVALID", f"over {MANIFEST_BYTES} bytes")
    return b"".join(exchange.body.pieces())


def _protect(exchange: Exchange, repository: Repository, digest: str) -> None:
    """Refuse to move a tag where tags are immutable."""
    switches, tag = exchange.backend.switches, exchange.record.reference
    old = repository.tags.get(tag)
    if switches.immutable is None or old is None or (old == digest and not switches.immutable_same):
        return
    code = {400: "TAG_INVALID", 403: "DENIED", 409: "TAG_INVALID", 412: "MANIFEST_INVALID"}[switches.immutable]
    raise RefusedError(switches.immutable, code, f"the tag {tag} is immutable and exists already")


def _tag(exchange: Exchange, repository: Repository, digest: str) -> None:
    switches, tag = exchange.backend.switches, exchange.record.reference
    if switches.before_put_tag is not None:
        switches.before_put_tag(repository, tag)
    if not exchange.forget_tag:
        repository.tags[tag] = digest
    if switches.after_put_tag is not None:
        switches.after_put_tag(repository, tag)


def _delete(exchange: Exchange) -> Response:
    """By digest the manifest and all its tags go, by tag only the tag."""
    reference = exchange.record.reference
    if not exchange.backend.switches.delete:
        raise RefusedError(405, "UNSUPPORTED", "the operation is unsupported")
    with exchange.backend.storage.lock:
        repository = exchange.backend.storage.repository(exchange.record.repository)
        if repository.tags.pop(reference, None) is None and repository.manifests.pop(reference, None) is None:
            raise RefusedError(404, "MANIFEST_UNKNOWN", "manifest unknown")
        for tag in [tag for tag, digest in repository.tags.items() if digest == reference]:
            del repository.tags[tag]
    return Response(status=202)


def descriptors(repository: Repository, subject: str) -> list[dict[str, Any]]:
    """The referrers of a digest, as the API and the fallback tag list them."""
    found = []
    for made in repository.manifests.values():
        document = json.loads(made.raw)
        if not isinstance(document.get("subject"), dict) or document["subject"].get("digest") != subject:
            continue
        kind = document.get("artifactType") or document.get("config", {}).get("mediaType")
        entry = {"mediaType": made.media_type, "digest": made.digest, "size": len(made.raw)}
        entry |= {"artifactType": kind} if kind else {}
        entry |= {"annotations": document["annotations"]} if document.get("annotations") else {}
        found.append(entry)
    return sorted(found, key=lambda entry: str(entry["digest"]))
