"""Image indexes (`image-index.md`; Docker manifest lists): one child of a platform, and what referrers lists hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from imgbuild import jsontext
from imgbuild.config import DEFAULT_LIMITS
from imgbuild.digest import Digest
from imgbuild.errors import DocumentError, LayoutError
from imgbuild.model import ocikeys
from imgbuild.model.oci import INDEX_TYPES, Descriptor
from imgbuild.text import printable

REFERENCE_TYPE = "vnd.docker.reference.type"
"""The annotation by which BuildKit marks attestation manifests in an index."""
_MAX_ENTRIES = 10_000
_SHOWN = 500
"""characters of the platforms that are shown where none is the right one."""
_DEFAULT_VARIANT = {"arm64": "v8"}
"""The variant that is meant where none is written (platform specification of containerd)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One row of an index."""

    descriptor: Descriptor
    platform: tuple[str, str, str] | None
    """Operating system, architecture, variant (empty where none is written); None where no platform is."""
    artifact_type: str | None
    annotations: tuple[tuple[str, str], ...]

    @property
    def is_attestation(self) -> bool:
        """Whether it says of itself that it is about another row, or that it is for no platform (C38, P31)."""
        marked = any(name == REFERENCE_TYPE for name, _ in self.annotations)
        return marked or (self.platform is not None and self.platform[:2] == ("unknown", "unknown"))

    @property
    def platform_name(self) -> str:
        """`os/architecture[/variant]` as it is written there."""
        return "/".join(part for part in self.platform if part) if self.platform else "no platform"

    def as_dict(self) -> dict[str, Any]:
        """The row as an index holds it; a platform is left out."""
        row: dict[str, Any] = self.descriptor.as_dict()
        if self.artifact_type is not None:
            row["artifactType"] = self.artifact_type
        if self.annotations:
            row["annotations"] = dict(self.annotations)
        return row


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """An index: `raw` is what was hashed, the rest is a view of it."""

    raw: bytes
    digest: Digest
    media_type: str
    entries: tuple[Entry, ...]

    @classmethod
    def parse(cls, raw: bytes, *, media_type: str, subject: str) -> Index:
        """Parse bytes that were announced as `media_type`; a `LayoutError` names what breaks the specification."""
        try:
            value = jsontext.loads(raw, subject=subject, max_bytes=DEFAULT_LIMITS.manifest_bytes)
        except DocumentError as error:
            raise LayoutError(subject, printable(error.problem)) from error
        if not isinstance(value, dict) or media_type not in INDEX_TYPES:
            raise LayoutError(subject, "is no index", expected=" or ".join(INDEX_TYPES), actual=printable(media_type))
        ocikeys.check_keys(value, ocikeys.MANIFEST, subject=subject)
        if "layers" in value or "config" in value:
            raise LayoutError(subject, "is an image manifest or has the fields of one", expected="an index")
        stated = value.get("mediaType", media_type)
        if stated != media_type:
            raise LayoutError(
                subject, "has another media type than announced", expected=media_type, actual=printable(str(stated))
            )
        rows = value.get("manifests")
        if not isinstance(rows, list) or len(rows) > _MAX_ENTRIES:
            raise LayoutError(subject, "has no list of manifests", expected=f"at most {_MAX_ENTRIES} rows")
        entries = tuple(_entry(row, subject=f"{subject}, manifests[{number}]") for number, row in enumerate(rows))
        return cls(raw=raw, digest=Digest.of(raw), media_type=media_type, entries=entries)

    def select(self, platform: str, *, subject: str) -> Entry:
        """The one row of a platform `os/architecture[/variant]`; attestations are passed over.

        Raises:
            LayoutError: there is none, or more than one (cases C40, P29).
        """
        wanted = _normal(*[*platform.split("/"), "", ""][:3])
        found = [
            row for row in self.entries if not row.is_attestation and row.platform and _normal(*row.platform) == wanted
        ]
        if len(found) != 1:
            there = sorted({row.platform_name for row in self.entries if not row.is_attestation})
            raise LayoutError(
                subject,
                "has no manifest of the platform" if not found else "has several manifests of the platform",
                expected=f"one of {platform}",
                actual=printable(", ".join(there), _SHOWN) or "none",
                hint="name the digest of the manifest that is meant",
            )
        return found[0]


def _normal(system: str, architecture: str, variant: str) -> tuple[str, str, str]:
    return system, architecture, variant or _DEFAULT_VARIANT.get(architecture, "")


def _entry(row: Any, *, subject: str) -> Entry:
    descriptor = Descriptor.parse(row, subject=subject)
    platform = row.get("platform")
    if platform is not None and not isinstance(platform, dict):
        raise LayoutError(f"{subject}, platform", "is not a JSON object")
    parts = None
    if platform:
        parts = (
            _text(platform, "os", subject),
            _text(platform, "architecture", subject),
            _text(platform, "variant", subject),
        )
    annotations = row.get("annotations") or {}
    if not isinstance(annotations, dict) or not all(isinstance(item, str) for item in annotations.values()):
        raise LayoutError(f"{subject}, annotations", "is not a JSON object of texts")
    return Entry(
        descriptor=descriptor,
        platform=parts,
        artifact_type=_text(row, "artifactType", subject) or None,
        annotations=tuple(annotations.items()),
    )


def _text(value: dict[str, Any], name: str, subject: str) -> str:
    found = value.get(name, "")
    if found is None:
        return ""
    if not isinstance(found, str):
        raise LayoutError(f"{subject}, {name}", "is not text", actual=type(found).__name__)
    return found
