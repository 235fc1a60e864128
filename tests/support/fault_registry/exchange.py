"""One request on its way through the registry, and what all handlers share."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.support.fault_registry.messages import RefusedError, Request
from tests.support.fault_registry.storage import DIGEST, NAME, Storage

if TYPE_CHECKING:
    from tests.support.fault_registry.auth import Auth, Grant
    from tests.support.fault_registry.messages import Kind
    from tests.support.fault_registry.switches import Switches
    from tests.support.fault_registry.uploads import Session, Uploads
    from tests.support.fault_registry.wire import Body, Head

_UPLOADS: dict[str, Kind] = {
    "PATCH": "upload-patch",
    "PUT": "upload-put",
    "GET": "upload-status",
    "DELETE": "upload-delete",
}
_ROUTES: tuple[tuple[re.Pattern[str], Kind], ...] = (
    (re.compile(r"/v2/(?P<name>.+)/manifests/(?P<reference>[^/]+)"), "manifest"),
    (re.compile(r"/v2/(?P<name>.+)/blobs/uploads/(?P<reference>[^/]*)"), "upload-post"),
    (re.compile(r"/v2/(?P<name>.+)/blobs/(?P<reference>[^/]+)"), "blob"),
    (re.compile(r"/v2/(?P<name>.+)/tags/list(?P<reference>)"), "tags"),
    (re.compile(r"/v2/(?P<name>.+)/referrers/(?P<reference>[^/]+)"), "referrers"),
    (re.compile(r"/v2/(?P<name>)(?P<reference>)"), "ping"),
    (re.compile(r"/token(?P<name>)(?P<reference>)"), "token"),
    (re.compile(r"/cdn/(?P<name>)(?P<reference>[^/]+)"), "cdn"),
)


@dataclass(slots=True, kw_only=True)
class Backend:
    """The state of one registry."""

    storage: Storage
    uploads: Uploads
    switches: Switches
    auth: Auth
    base: str
    """`http://127.0.0.1:PORT`, for absolute addresses"""


@dataclass(slots=True, kw_only=True)
class Exchange:
    """A request with its body still on the wire, and what was found out about it so far."""

    backend: Backend
    record: Request
    body: Body
    grant: Grant | None = None
    session: Session | None = None
    """set by the handlers of uploads, for actions that change `Range`"""
    forget_tag: bool = False
    """a fault: the tag of a manifest PUT is not written"""
    headers: dict[str, str] = field(default_factory=dict)
    query: dict[str, str] = field(default_factory=dict)
    """copies that actions may change; the record keeps what arrived"""

    def __post_init__(self) -> None:
        self.headers = dict(self.record.headers)
        self.query = dict(self.record.query)

    @property
    def kind(self) -> Kind:
        return self.record.kind


def record_of(head: Head) -> Request:
    """What a head asks for."""
    parts = urlsplit(head.target)
    path = unquote(parts.path)
    kind: Kind = "other"
    name = reference = ""
    for pattern, candidate in _ROUTES:
        if found := pattern.fullmatch(path):
            kind, name, reference = candidate, found["name"], found["reference"]
            break
    if kind == "upload-post" and reference:
        kind = _UPLOADS.get(head.method, "other")
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    return Request(
        method=head.method,
        path=path,
        query=dict(pairs),
        pairs=tuple(pairs),
        headers=head.headers,
        kind=kind,
        repository=name,
        reference=reference,
    )


def check_names(record: Request) -> None:
    """The names in a path have the forms of the specification."""
    if record.repository and (len(record.repository) > 255 or not NAME.fullmatch(record.repository)):
        raise RefusedError(400, "NAME_INVALID", f"invalid repository name {record.repository[:60]!r}")
    if record.kind in {"blob", "referrers", "cdn"} and not DIGEST.fullmatch(record.reference):
        raise RefusedError(400, "DIGEST_INVALID", f"invalid digest {record.reference[:80]!r}")
