"""A repository in a registry, and its manifests: bytes as received, hashed by us (case C43)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from imgbuild import jsontext
from imgbuild.adapters.registry.secrecy import hiding
from imgbuild.adapters.registry.session import Body, Call
from imgbuild.config import DEFAULT_LIMITS
from imgbuild.digest import Digest
from imgbuild.errors import (
    DigestMismatchError,
    DocumentError,
    LayoutError,
    MissingBlobsError,
    MissingError,
    ProtocolError,
    TagTakenError,
)
from imgbuild.model.oci import INDEX_TYPES, Descriptor, Family, Manifest
from imgbuild.model.ociindex import Index
from imgbuild.text import printable

if TYPE_CHECKING:
    from imgbuild.adapters.registry.session import Registry
    from imgbuild.adapters.registry.wire import Answer

MANIFEST_TYPES = (Family.OCI.manifest, Family.DOCKER.manifest, *INDEX_TYPES)
_ACCEPT = ", ".join(MANIFEST_TYPES)
"""All that there are, in every request: some registries say 404 to a request that does not name the stored type."""
_IMMUTABLE = frozenset({400, 403, 405, 409, 412})
"""What registries answer where a tag may not move; not these alone: a refusal of another kind may have them too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteManifest:
    """A manifest or index as a registry gave it."""

    raw: bytes
    descriptor: Descriptor

    @property
    def is_index(self) -> bool:
        """Whether it lists other manifests."""
        return self.descriptor.media_type in INDEX_TYPES


@dataclass(frozen=True, slots=True)
class Repository:
    """`host/name`. Nothing is asked before a method is called."""

    registry: Registry
    name: str

    def __str__(self) -> str:
        return f"{self.registry.host}/{self.name}"

    def path(self, rest: str) -> str:
        """The path of an end point (distribution-spec, Endpoints)."""
        return f"/v2/{self.name}/{rest}"

    def scope(self, actions: str = "pull") -> str:
        """The scope of a token for `pull` or `pull,push`."""
        return f"repository:{self.name}:{actions}"

    @hiding
    def manifest(self, reference: str | Digest) -> RemoteManifest:
        """Fetch a manifest by tag or digest.

        Raises:
            MissingError: there is none.
            DigestMismatchError: the bytes are not those that were asked for, or not those that the answer announces.
            LayoutError: it is too long, or of no kind that we know.
            RegistryError: as `Registry.call`.
        """
        subject = self._subject(reference)
        answer, raw = self.registry.whole(self._look("GET", reference, {200}), DEFAULT_LIMITS.manifest_bytes)
        if len(raw) > DEFAULT_LIMITS.manifest_bytes:
            raise LayoutError(subject, "is too long", expected=f"at most {DEFAULT_LIMITS.manifest_bytes} bytes")
        refuse_encoding(answer, subject)
        media_type, stated = answer.header("Content-Type"), digest_header(answer, subject)
        found = _checked(raw, media_type, (reference, stated), subject=subject)
        self.registry.secrets.screen(lambda: _parsed(found, subject))
        return found

    @hiding
    def manifest_digest(self, reference: str | Digest) -> Digest | None:
        """The digest of a manifest; None if there is none. The whole is asked for where its head says nothing."""
        subject = self._subject(reference)
        with self.registry.call(self._look("HEAD", reference, {200, 404, 405, 501})) as answer:
            answer.discard()
            if answer.status == 404:  # noqa: PLR2004 - HTTP
                return None
            stated = digest_header(answer, subject) if answer.status == 200 else None  # noqa: PLR2004
        if stated is not None and (not isinstance(reference, Digest) or stated == reference):
            return stated
        try:
            return self.manifest(reference).descriptor.digest
        except MissingError:
            return None

    @hiding
    def put_manifest(self, raw: bytes, media_type: str, *, tag: str | None = None) -> Answer:
        """Write a manifest under its digest or a tag. What was stored is not looked at: read it back.

        Returns:
            The answer, read and closed; its headers say what the registry did with a `subject`.

        Raises:
            MissingBlobsError: the registry lacks a blob that the manifest names.
            TagTakenError: the tag may not move.
            RegistryError: as `Registry.call`.
        """
        digest = Digest.of(raw)
        subject = f"manifest {digest} of {self}" if tag is None else f"tag {self}:{tag}"
        call = Call(
            method="PUT",
            url=self.path(f"manifests/{digest if tag is None else tag}"),
            subject=subject,
            repository=self.name,
            scopes=(self.scope("pull,push"),),
            accept={200, 201, 202, 204, 404, *_IMMUTABLE},
            headers={"Content-Type": media_type},
            body=Body.of(raw),
        )
        with self.registry.call(call) as answer:
            if answer.status < 300:  # noqa: PLR2004 - HTTP
                answer.discard()
                stated = digest_header(answer, subject)
                if stated is not None and stated != digest:
                    raise DigestMismatchError(subject, "was stored as something else", expected=digest, actual=stated)
            else:
                self._put_refused(answer, call, tag, digest)
            return answer

    def _put_refused(self, answer: Answer, call: Call, tag: str | None, digest: Digest) -> None:
        """Raise what a refusal means, unless it is the refusal to move a tag to where it is (case C55)."""
        refusal, error = self.registry.refusal(answer, subject=call.subject, repository=self.name)
        if refusal.has("MANIFEST_BLOB_UNKNOWN", "BLOB_UNKNOWN", "MANIFEST_UNKNOWN"):
            raise MissingBlobsError(
                call.subject, "names blobs that the registry does not have", actual=error.actual, where=error.where
            )
        if tag is not None and answer.status in _IMMUTABLE and refusal.says_immutable:
            there = self.manifest_digest(tag)
            if there == digest:
                return
            if there is not None:
                raise TagTakenError(
                    call.subject, f"may not be moved: {error.actual}", expected=digest, actual=there, where=error.where
                )
        raise error

    def _look(self, method: str, reference: str | Digest, accept: set[int]) -> Call:
        return Call(
            method=method,
            url=self.path(f"manifests/{reference}"),
            subject=self._subject(reference),
            repository=self.name,
            scopes=(self.scope(),),
            accept=accept,
            headers={"Accept": _ACCEPT},
            follow=True,
        )

    def _subject(self, reference: str | Digest) -> str:
        return f"manifest {self}{'@' if isinstance(reference, Digest) else ':'}{reference}"


def _checked(
    raw: bytes, media_type: str | None, expected: tuple[str | Digest, Digest | None], *, subject: str
) -> RemoteManifest:
    reference, stated = expected
    for wanted in (reference, stated):
        if isinstance(wanted, Digest):
            hasher = wanted.hasher()
            hasher.update(raw)
            if hasher.hexdigest() != wanted.encoded:
                raise DigestMismatchError(
                    subject,
                    "is not what it is said to be",
                    expected=wanted,
                    actual=f"{wanted.algorithm}:{hasher.hexdigest()}",
                )
    digest = reference if isinstance(reference, Digest) else Digest.of(raw)
    return RemoteManifest(
        raw=raw,
        descriptor=Descriptor(media_type=_media_type(raw, media_type, subject=subject), digest=digest, size=len(raw)),
    )


def _parsed(found: RemoteManifest, subject: str) -> Index | Manifest:
    kind = Index if found.is_index else Manifest
    return kind.parse(found.raw, media_type=found.descriptor.media_type, subject=subject)


def _media_type(raw: bytes, header: str | None, *, subject: str) -> str:
    """The type that the answer states; the body has to agree, or to say it alone."""
    try:
        value = jsontext.loads(raw, subject=subject, max_bytes=DEFAULT_LIMITS.manifest_bytes)
    except DocumentError as error:
        raise LayoutError(subject, printable(error.problem)) from error
    inside = value.get("mediaType") if isinstance(value, dict) else None
    outside = None if header is None else header.partition(";")[0].strip().lower()
    if outside not in MANIFEST_TYPES:
        # Many registries that answer from a file store say text/plain or application/json.
        outside = None
    if inside is not None and not isinstance(inside, str):
        raise LayoutError(subject, "has a media type that is not text")
    if inside is not None and outside is not None and inside != outside:
        raise LayoutError(subject, "has another media type than announced", expected=outside, actual=printable(inside))
    found = inside or outside
    if found not in MANIFEST_TYPES:
        raise LayoutError(
            subject,
            "is of no kind that we know",
            expected=" or ".join(MANIFEST_TYPES),
            actual=printable(str(found or header)),
        )
    return found


def digest_header(answer: Answer, subject: str) -> Digest | None:
    """The `Docker-Content-Digest` of an answer, if there is one; a `ProtocolError` if it is none."""
    text = answer.header("Docker-Content-Digest")
    if not text:
        return None
    try:
        return Digest.parse(text.strip())
    except DocumentError as error:
        raise ProtocolError(subject, "was answered with a digest that is none", actual=printable(text, 140)) from error


def refuse_encoding(answer: Answer, subject: str) -> None:
    """We ask for the bytes as they are; whoever encodes them all the same breaks every digest (case C56)."""
    encoding = (answer.header("Content-Encoding") or "identity").strip().lower()
    if encoding != "identity":
        raise ProtocolError(
            subject, "came encoded, which was not asked for", expected="identity", actual=printable(encoding, 40)
        )
