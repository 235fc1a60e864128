# ruff: noqa: ARG002  (all actions have one signature)
"""More of what faults do: answers that are changed after a registry made them, and registries that behave otherwise."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tests.support.fault_registry.actions import Action
from tests.support.fault_registry.messages import Response, refusal

if TYPE_CHECKING:
    from tests.support.fault_registry.exchange import Exchange


@dataclass(frozen=True, slots=True, kw_only=True)
class DropHeader(Action):
    """The answer comes without this header (`Docker-Content-Digest`, `Location`, `Range`, `Content-Range`)."""

    name: str

    def after(self, exchange: Exchange, response: Response) -> Response:
        response.drop(self.name)
        return response


@dataclass(frozen=True, slots=True, kw_only=True)
class SetHeader(Action):
    """The answer comes with this value in a header."""

    name: str
    value: str

    def after(self, exchange: Exchange, response: Response) -> Response:
        response.put(self.name, self.value)
        return response


@dataclass(frozen=True, slots=True, kw_only=True)
class Gzip(Action):
    """Content-Encoding gzip on a body that is read whole (case C56); `force`: though the client did not allow it."""

    force: bool = False

    def after(self, exchange: Exchange, response: Response) -> Response:
        allowed = exchange.headers.get("accept-encoding", "")
        if response.status == 200 and (self.force or "gzip" in allowed or "*" in allowed):
            data = gzip.compress(response.whole(), mtime=0)
            response.body, response.length = (data,), len(data)
            response.put("Content-Encoding", "gzip")
        return response


@dataclass(frozen=True, slots=True, kw_only=True)
class Redirect(Action):
    """To another address; `{path}` with the query, `{digest}` and `{base}` are filled in.

    `{base}{path}` is a loop, `http://HOST/cdn/{digest}` the bucket of another `FaultRegistry` (case C50).
    """

    to: str
    status: Literal[301, 302, 303, 307, 308] = 307

    def before(self, exchange: Exchange) -> Response | None:
        query = "&".join(f"{key}={value}" for key, value in exchange.record.pairs)
        path = exchange.record.path + (f"?{query}" if query else "")
        to = self.to.format(path=path, digest=exchange.record.reference, base=exchange.backend.base)
        body = f'<a href="{to}">moved</a>'.encode()
        return Response(status=self.status, headers=[("Location", to)], body=(body,), length=len(body))


@dataclass(frozen=True, slots=True, kw_only=True)
class IgnoreRange(Action):
    """200 with the whole blob, whatever range was asked for."""

    def before(self, exchange: Exchange) -> Response | None:
        exchange.headers.pop("range", None)
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftRange(Action):
    """206 with bytes that start `by` bytes later; `honest`: Content-Range says so."""

    by: int
    honest: bool = True

    def before(self, exchange: Exchange) -> Response | None:
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", exchange.headers.get("range", ""))
        if found:
            exchange.headers["range"] = f"bytes={int(found[1]) + self.by}-{found[2]}"
        return None

    def after(self, exchange: Exchange, response: Response) -> Response:
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", exchange.record.headers.get("range", ""))
        said = re.fullmatch(r"bytes \d+-(\d+)/(\d+)", response.get("Content-Range") or "")
        if not self.honest and asked and said:
            response.put("Content-Range", f"bytes {asked[1]}-{said[1]}/{said[2]}")
        return response


@dataclass(frozen=True, slots=True, kw_only=True)
class LocationForm(Action):
    """How Location is written: relative, absolute at another origin (`http://HOST`), relative to the folder."""

    form: Literal["relative", "origin"]
    origin: str = ""

    def after(self, exchange: Exchange, response: Response) -> Response:
        location = response.get("Location")
        if location is not None:
            path = location.removeprefix(exchange.backend.base)
            response.put("Location", path if self.form == "relative" else self.origin + path)
        return response


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongCount(Action):
    """`Range` of an upload stays at its first chunk (ECR), or counts only its last one (case C48)."""

    form: Literal["first", "last"]

    def after(self, exchange: Exchange, response: Response) -> Response:
        session = exchange.session
        if session is not None and session.chunks and response.get("Range") is not None:
            length = session.chunks[0 if self.form == "first" else -1]
            response.put("Range", f"0-{max(length - 1, 0)}")
        return response


@dataclass(frozen=True, slots=True, kw_only=True)
class RefuseOver(Action):
    """A body of more than so many bytes is refused unread (Quay's 20 GB PUT, a proxy's limit; case C49)."""

    limit: int
    status: int = 413

    def before(self, exchange: Exchange) -> Response | None:
        if exchange.body.length is not None and exchange.body.length <= self.limit:
            return None
        return refusal(self.status, "SIZE_INVALID", f"over {self.limit} bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class RefuseMount(Action):
    """A mount is answered with this status; 202 opens an upload instead (cases C44, C45)."""

    status: Literal[202, 400, 401, 403, 404]

    def before(self, exchange: Exchange) -> Response | None:
        if exchange.query.pop("mount", None) is None or self.status == 202:
            return None
        if self.status == 401:
            return exchange.backend.auth.challenge(exchange, ()).response()
        return refusal(self.status, "DENIED" if self.status == 403 else "BLOB_UNKNOWN", "no mount")


@dataclass(frozen=True, slots=True, kw_only=True)
class VanishBlob(Action):
    """A collector takes a blob away before a manifest PUT is looked at (case C54): this one, or the newest that no
    manifest of the repository names. At other requests nothing happens."""

    digest: str | None = None

    def before(self, exchange: Exchange) -> Response | None:
        storage = exchange.backend.storage
        if exchange.record.method != "PUT":
            return None
        with storage.lock:
            repository = storage.repository(exchange.record.repository)
            kept = b"".join(made.raw for made in repository.manifests.values())
            loose = [digest for digest in repository.blobs if digest.encode() not in kept]
            repository.blobs.pop(self.digest or (loose or [""])[-1], None)
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class VanishManifest(Action):
    """The manifest is gone right after its PUT was answered with 201, with its tags."""

    def after(self, exchange: Exchange, response: Response) -> Response:
        storage, reference = exchange.backend.storage, exchange.record.reference
        if response.status == 201:
            with storage.lock:
                repository = storage.repository(exchange.record.repository)
                digest = repository.tags.get(reference, reference)
                repository.manifests.pop(digest, None)
                repository.tags = {tag: held for tag, held in repository.tags.items() if held != digest}
        return response


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetTag(Action):
    """A PUT by tag is answered with 201, and the tag does not move: a lost update (case C52)."""

    def before(self, exchange: Exchange) -> Response | None:
        exchange.forget_tag = True
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reformat(Action):
    """JSON is given back with other spaces: the same document, another digest."""

    def after(self, exchange: Exchange, response: Response) -> Response:
        if response.status == 200 and exchange.record.method == "GET":
            data = json.dumps(json.loads(response.whole()), indent=1).encode() + b"\n"
            response.body, response.length = (data,), len(data)
        return response
