"""OCI and Docker image documents: the bytes as received beside a parsed view, and what is appended to them.

image-spec v1.1 `manifest.md`, `config.md`, `descriptor.md`; Docker image manifest version 2, schema 2. A digest is only
ever taken of received or written bytes, never of a re-encoding. Keys that engines may read as other keys are refused
(`model.ocikeys`).
"""

from __future__ import annotations

import binascii
import enum
from dataclasses import dataclass
from typing import Any

from imgbuild import jsontext
from imgbuild.config import DEFAULT_LIMITS, Limits
from imgbuild.digest import Digest
from imgbuild.errors import DocumentError, LayoutError
from imgbuild.model import ocikeys

_MAX_SIZE = 2**53


class Family(enum.Enum):
    """Which of the two sets of media types an image uses; they must never be mixed (case C36)."""

    OCI = "oci"
    DOCKER = "docker"

    @property
    def manifest(self) -> str:
        """Media type of an image manifest."""
        return _TYPES[self][0]

    @property
    def config(self) -> str:
        """Media type of an image config."""
        return _TYPES[self][1]

    @property
    def layer_gzip(self) -> str:
        """Media type of a gzip-compressed layer."""
        return _TYPES[self][2]

    @classmethod
    def of_manifest(cls, media_type: str, *, subject: str) -> Family:
        """The family of a manifest's media type; a `LayoutError` for anything else."""
        for family, types in _TYPES.items():
            if types[0] == media_type:
                return family
        raise LayoutError(
            subject,
            "is not an image manifest",
            expected=" or ".join(types[0] for types in _TYPES.values()),
            actual=media_type[:200],
        )


_TYPES = {
    Family.OCI: (
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.oci.image.config.v1+json",
        "application/vnd.oci.image.layer.v1.tar+gzip",
    ),
    Family.DOCKER: (
        "application/vnd.docker.distribution.manifest.v2+json",
        "application/vnd.docker.container.image.v1+json",
        "application/vnd.docker.image.rootfs.diff.tar.gzip",
    ),
}
INDEX_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
LAYER_TYPES = {
    Family.OCI: ("application/vnd.oci.image.layer.",),
    Family.DOCKER: ("application/vnd.docker.image.rootfs.",),
}
REF_NAME = "org.opencontainers.image.ref.name"


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    """What a blob is, how long it is (bytes) and its digest (`descriptor.md`)."""

    media_type: str
    digest: Digest
    size: int

    @classmethod
    def parse(cls, value: Any, *, subject: str) -> Descriptor:
        """Parse one descriptor object; a `LayoutError` names the field.

        Embedded `data` must be the blob. `urls` are refused: an engine may ask there, with credentials
        (CVE-2020-15157), and an image that is whole needs none.
        """
        if not isinstance(value, dict):
            raise LayoutError(subject, "is not a descriptor", actual=type(value).__name__)
        ocikeys.check_keys(value, ocikeys.DESCRIPTOR, subject=subject)
        ocikeys.check_keys(value.get("platform"), ocikeys.PLATFORM, subject=f"{subject}, platform")
        media_type, digest, size = (value.get(name) for name in ("mediaType", "digest", "size"))
        if not isinstance(media_type, str) or not isinstance(digest, str):
            raise LayoutError(subject, "lacks mediaType or digest")
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= _MAX_SIZE:
            raise LayoutError(subject, "has no valid size", expected="0 to 2^53 bytes", actual=str(size)[:40])
        if value.get("urls"):
            raise LayoutError(subject, "names other places to fetch it from", expected="no urls")
        try:
            found = cls(media_type=media_type, digest=Digest.parse(digest), size=size)
        except DocumentError as error:
            raise LayoutError(subject, error.problem, actual=digest[:140]) from error
        if value.get("data") is not None:
            found.check_data(value["data"], subject=subject)
        return found

    def check_data(self, data: Any, *, subject: str) -> None:
        """A `LayoutError` unless `data` is the blob itself in base64 (`descriptor.md`, Embedded Content)."""
        try:
            blob = binascii.a2b_base64(data, strict_mode=True) if isinstance(data, str) else None
        except ValueError:
            blob = None
        hasher = self.digest.hasher()
        hasher.update(blob or b"")
        if blob is None or len(blob) != self.size or hasher.hexdigest() != self.digest.encoded:
            raise LayoutError(
                subject,
                "embeds data that is not the blob",
                expected=f"{self.digest}, {self.size} bytes, in base64",
                actual=f"{self.digest.algorithm}:{hasher.hexdigest()}" if blob is not None else "no base64",
            )

    def as_dict(self) -> dict[str, Any]:
        """The object as it stands in a manifest, keys in the order the specification lists them."""
        return {"mediaType": self.media_type, "digest": str(self.digest), "size": self.size}


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """An image manifest: `raw` is what was hashed, the rest is a view of it."""

    raw: bytes
    digest: Digest
    family: Family
    config: Descriptor
    layers: tuple[Descriptor, ...]

    @classmethod
    def parse(cls, raw: bytes, *, media_type: str, subject: str, limits: Limits = DEFAULT_LIMITS) -> Manifest:
        """Parse bytes that were announced as `media_type`; the body must agree (CVE-2021-41190)."""
        value = _document(raw, subject=subject, max_bytes=limits.manifest_bytes)
        ocikeys.check_keys(value, ocikeys.MANIFEST, subject=subject)
        if "manifests" in value:
            raise LayoutError(subject, "is an index or has the fields of one", expected="an image manifest")
        stated = value.get("mediaType", media_type)
        if stated != media_type:
            raise LayoutError(subject, "has another media type than its descriptor", expected=media_type, actual=stated)
        if value.get("schemaVersion") != 2:  # noqa: PLR2004 - the only version there is
            raise LayoutError(subject, "has another schema version", expected=2, actual=value.get("schemaVersion"))
        family = Family.of_manifest(media_type, subject=subject)
        _strings(value.get("annotations"), subject=f"{subject}, annotations")
        config = Descriptor.parse(value.get("config"), subject=f"{subject}, config")
        layers = _layers(value.get("layers"), family, subject=subject, limits=limits)
        ocikeys.check_keys(value.get("subject"), ocikeys.DESCRIPTOR, subject=f"{subject}, subject")
        if config.media_type != family.config:
            raise LayoutError(
                f"{subject}, config",
                "has a foreign media type",
                expected=family.config,
                actual=config.media_type,
            )
        return cls(raw=raw, digest=Digest.of(raw), family=family, config=config, layers=layers)

    def extended(self, config: Descriptor, layers: tuple[Descriptor, ...], annotations: dict[str, str]) -> bytes:
        """The bytes of a manifest with another config and more layers; all else stays as it is.

        Descriptors of the base keep fields that we do not know. The Docker family has no annotations: none are added.
        """
        value = _document(self.raw, subject=f"manifest {self.digest}", max_bytes=len(self.raw))
        value["config"] = config.as_dict()
        value["layers"] = [*value["layers"], *(layer.as_dict() for layer in layers)]
        if self.family is Family.OCI and annotations:
            value["annotations"] = {**(value.get("annotations") or {}), **annotations}
        return jsontext.compact(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChanges:
    """What a definition changes in the config; None leaves the base's value."""

    env: tuple[tuple[str, str], ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    entrypoint: tuple[str, ...] | None = None
    cmd: tuple[str, ...] | None = None
    workdir: str | None = None
    user: str | None = None
    ports: tuple[str, ...] = ()
    healthcheck: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageConfig:
    """An image config: `raw` is what was hashed, the rest is a view of it (`config.md`)."""

    raw: bytes
    digest: Digest
    os: str
    architecture: str
    diff_ids: tuple[Digest, ...]
    env: tuple[str, ...]
    labels: tuple[tuple[str, str], ...]
    history_layers: int | None
    """Number of history entries that are layers; None if there is no history."""

    @classmethod
    def parse(cls, raw: bytes, *, subject: str, limits: Limits = DEFAULT_LIMITS) -> ImageConfig:
        """Parse; a `LayoutError` names what breaks the specification."""
        value = _document(raw, subject=subject, max_bytes=limits.config_bytes)
        settings = value.get("config") or {}
        if not isinstance(settings, dict):
            raise LayoutError(f"{subject}, config", "is not a JSON object", actual=type(settings).__name__)
        rootfs = value.get("rootfs")
        if not isinstance(rootfs, dict) or not isinstance(rootfs.get("diff_ids"), list):
            raise LayoutError(subject, "has no rootfs.diff_ids")
        ocikeys.check_config_keys(value, subject=subject)
        try:
            diff_ids = tuple(Digest.parse(str(text)) for text in rootfs["diff_ids"])
        except DocumentError as error:
            raise LayoutError(f"{subject}, rootfs.diff_ids", error.problem) from error
        env = settings.get("Env") or []
        if not isinstance(env, list) or not all(isinstance(item, str) for item in env):
            raise LayoutError(f"{subject}, config.Env", "is not a list of text")
        labels = _strings(settings.get("Labels"), subject=f"{subject}, config.Labels")
        _object(settings.get("ExposedPorts"), subject=f"{subject}, config.ExposedPorts")
        return cls(
            raw=raw,
            digest=Digest.of(raw),
            os=str(value.get("os")),
            architecture=str(value.get("architecture")),
            diff_ids=diff_ids,
            env=tuple(env),
            labels=tuple(labels.items()),
            history_layers=_history_layers(value.get("history"), subject=subject),
        )

    def variable(self, name: str) -> str | None:
        """The value of an environment variable of the image; the last one counts, as in execve."""
        found = [item.partition("=")[2] for item in self.env if item.partition("=")[0] == name]
        return found[-1] if found else None

    def extended(
        self, changes: ConfigChanges, diff_ids: tuple[Digest, ...], created: str, created_by: tuple[str, ...]
    ) -> bytes:
        """The bytes of a config with more layers and the changes; unknown fields and base history stay (C27, C39).

        `created` is an RFC 3339 time; `created_by` has one text per new layer. Without a history in the base none is
        begun, since a history that counts other layers than there are is refused by registries (C12, C13).
        """
        subject = f"config {self.digest}"
        if self.history_layers not in {None, len(self.diff_ids)}:
            raise LayoutError(
                f"{subject}, history",
                "counts other layers than there are, and registries refuse that (case C13)",
                expected=f"{len(self.diff_ids)} entries that are no empty_layer",
                actual=self.history_layers,
            )
        value = _document(self.raw, subject=subject, max_bytes=len(self.raw))
        value["created"] = created
        value["config"] = _settings(value.get("config") or {}, changes)
        value["rootfs"] = {**value["rootfs"], "diff_ids": [str(item) for item in (*self.diff_ids, *diff_ids)]}
        if self.history_layers is not None:
            value["history"] = [
                *value["history"],
                *({"created": created, "created_by": text} for text in created_by),
            ]
        return jsontext.compact(value)


def _document(raw: bytes, *, subject: str, max_bytes: int) -> dict[str, Any]:
    try:
        value = jsontext.loads(raw, subject=subject, max_bytes=max_bytes)
    except DocumentError as error:
        raise LayoutError(subject, error.problem) from error
    if not isinstance(value, dict):
        raise LayoutError(subject, "is not a JSON object", actual=type(value).__name__)
    return value


def _object(value: Any, *, subject: str) -> dict[str, Any]:
    """A JSON object; null and absent are an empty one, as Go reads them."""
    if value is not None and not isinstance(value, dict):
        raise LayoutError(subject, "is not a JSON object", actual=type(value).__name__)
    return value or {}


def _strings(value: Any, *, subject: str) -> dict[str, str]:
    found = _object(value, subject=subject)
    if not all(isinstance(item, str) for item in found.values()):
        raise LayoutError(subject, "has values that are not text")
    return found


def _layers(value: Any, family: Family, *, subject: str, limits: Limits) -> tuple[Descriptor, ...]:
    if not isinstance(value, list) or not value:
        raise LayoutError(subject, "has no layers", hint="an artifact or an empty image cannot be a base (case C14)")
    if len(value) > limits.layers:
        raise LayoutError(subject, "has too many layers", expected=f"at most {limits.layers}", actual=len(value))
    layers = tuple(Descriptor.parse(item, subject=f"{subject}, layers[{i}]") for i, item in enumerate(value))
    for index, layer in enumerate(layers):
        if family is Family.DOCKER and "zstd" in layer.media_type:
            raise LayoutError(
                f"{subject}, layers[{index}]",
                "is zstd in a Docker manifest, which Docker cannot read (case C37)",
                expected=family.layer_gzip,
                actual=layer.media_type[:200],
            )
        if not layer.media_type.startswith(LAYER_TYPES[family]):
            raise LayoutError(
                f"{subject}, layers[{index}]",
                "mixes media types of two families",
                expected=f"{LAYER_TYPES[family][0]}…",
                actual=layer.media_type[:200],
            )
    return layers


def _history_layers(value: Any, *, subject: str) -> int | None:
    if not value:
        return None
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise LayoutError(subject, "has a history that is not a list of objects")
    return sum(1 for item in value if not item.get("empty_layer"))


def _settings(settings: dict[str, Any], changes: ConfigChanges) -> dict[str, Any]:
    result = dict(settings)
    if changes.env:
        result["Env"] = _environment(list(settings.get("Env") or []), changes.env)
    if changes.labels:
        result["Labels"] = {**(settings.get("Labels") or {}), **dict(changes.labels)}
    if changes.ports:
        result["ExposedPorts"] = {
            **(settings.get("ExposedPorts") or {}),
            **{port: {} for port in changes.ports},
        }
    named: tuple[tuple[str, Any], ...] = (
        ("Entrypoint", None if changes.entrypoint is None else list(changes.entrypoint)),
        ("Cmd", None if changes.cmd is None else list(changes.cmd)),
        ("WorkingDir", changes.workdir),
        ("User", changes.user),
        ("Healthcheck", changes.healthcheck),
    )
    return {**result, **{name: value for name, value in named if value is not None}}


def _environment(base: list[str], changes: tuple[tuple[str, str], ...]) -> list[str]:
    wanted = dict(changes)
    result: dict[str, str] = {}
    for index, item in enumerate(base):
        name = item.partition("=")[0]
        if name not in wanted:
            result[f"{name}#{index}"] = item
        else:
            result.setdefault(name, f"{name}={wanted[name]}")
    for name, value in changes:
        result.setdefault(name, f"{name}={value}")
    return list(result.values())
