"""Lists: tags with pages, and referrers (specification: Listing Tags, Listing Referrers)."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from tests.support.fault_registry.manifest_rules import OCI_INDEX
from tests.support.fault_registry.manifests import descriptors
from tests.support.fault_registry.messages import RefusedError, Response, json_response

if TYPE_CHECKING:
    from tests.support.fault_registry.exchange import Exchange


def tags(exchange: Exchange) -> Response:
    """GET /v2/NAME/tags/list, in lexical order, `n` a page, after `last`."""
    record = exchange.record
    if record.method != "GET":
        raise RefusedError(405, "UNSUPPORTED", "the operation is unsupported")
    with exchange.backend.storage.lock:
        known = exchange.backend.storage.repositories.get(record.repository)
        if known is None:
            raise RefusedError(404, "NAME_UNKNOWN", "repository name not known to registry")
        names = sorted(known.tags)
    text, limit = record.query.get("n"), exchange.backend.switches.tags_page
    if text is not None and not (text.isascii() and text.isdigit()):
        raise RefusedError(400, "PAGINATION_NUMBER_INVALID", "invalid number of results requested")
    count = min((value for value in (limit, None if text is None else int(text)) if value is not None), default=None)
    rest = [name for name in names if name > record.query.get("last", "")]
    page = rest if count is None else rest[:count]
    headers = []
    if len(page) < len(rest) and page:
        headers.append(("Link", f'<{record.path}?n={count}&last={quote(page[-1])}>; rel="next"'))
    return json_response({"name": record.repository, "tags": page}, headers=headers)


def referrers(exchange: Exchange) -> Response:
    """GET /v2/NAME/referrers/DIGEST with `artifactType`; an unknown digest has an empty list."""
    record, switches = exchange.record, exchange.backend.switches
    if record.method != "GET":
        raise RefusedError(405, "UNSUPPORTED", "the operation is unsupported")
    if not switches.referrers:
        raise RefusedError(404, "NOT_FOUND", "404 page not found")
    with exchange.backend.storage.lock:
        found = descriptors(exchange.backend.storage.repository(record.repository), record.reference)
    headers = []
    wanted = record.query.get("artifactType")
    if wanted is not None and switches.referrers_filter:
        found = [entry for entry in found if entry.get("artifactType") == wanted]
        headers.append(("OCI-Filters-Applied", "artifactType"))
    page = switches.referrers_page
    if page is not None:
        start = int(record.query.get("start", "0"))
        if start + page < len(found):
            kept = f"&artifactType={quote(wanted, safe='')}" if wanted is not None else ""
            headers.append(("Link", f'<{record.path}?start={start + page}{kept}>; rel="next"'))
        found = found[start : start + page]
    index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": found}
    return json_response(index, media_type=switches.referrers_type, headers=headers)
