"""Keys of OCI and Docker documents that engines may read as other keys.

Engines that are written in Go match the keys of an object to fields without regard to case, and the last one wins
(encoding/json, Unmarshal). So a key that is a field but for its case, or that is another key of its object but for its
case, is refused: such an engine would read another value than we do. Case is Unicode's, as there: U+017F is an s, and
U+212A a k. Maps with free keys (annotations, labels, ports) keep their case in Go, and are not looked at.
"""

from __future__ import annotations

from typing import Any

from imgbuild.errors import LayoutError

# The fields of image-spec v1.1 and of Docker's documents. Those of other kinds of manifest are among the manifest's,
# since an engine may guess the kind by them.
DESCRIPTOR = ("mediaType", "digest", "size", "urls", "annotations", "data", "artifactType", "platform")
PLATFORM = ("architecture", "os", "os.version", "os.features", "variant", "features")
MANIFEST = (
    *("schemaVersion", "mediaType", "artifactType", "config", "layers", "subject", "annotations"),
    *("manifests", "fsLayers", "history", "signatures", "name", "tag", "architecture", "blobs"),
)
_CONFIG = (
    *("created", "author", "architecture", "os", "os.version", "os.features", "variant", "config", "rootfs", "history"),
    *("id", "parent", "comment", "container", "container_config", "docker_version"),
)
_SETTINGS = (
    *("User", "ExposedPorts", "Env", "Entrypoint", "Cmd", "Volumes", "WorkingDir", "Labels", "StopSignal"),
    *("ArgsEscaped", "Memory", "MemorySwap", "CpuShares", "Healthcheck", "Hostname", "Domainname", "Image", "Shell"),
    *("AttachStdin", "AttachStdout", "AttachStderr", "Tty", "OpenStdin", "StdinOnce", "NetworkDisabled"),
    *("MacAddress", "OnBuild", "StopTimeout"),
)
_HEALTH = ("Test", "Interval", "Timeout", "StartPeriod", "StartInterval", "Retries")
_ROOTFS = ("type", "diff_ids")
_HISTORY = ("created", "author", "created_by", "comment", "empty_layer")


def check_keys(value: Any, fields: tuple[str, ...], *, subject: str) -> None:
    """A `LayoutError` for keys that an engine takes for other ones; what is no object is not looked at."""
    if not isinstance(value, dict):
        return
    exact = {field.casefold(): field for field in fields}
    for key in value:
        other = exact.setdefault(key.casefold(), key)
        if other != key:
            raise LayoutError(
                subject,
                "has a key that some engines take for another one, since it differs in case only",
                expected=other,
                actual=key[:200],
            )


def check_config_keys(value: dict[str, Any], *, subject: str) -> None:
    """A `LayoutError` for such keys in an image config, in its settings, rootfs or history. These must be objects."""
    settings = value.get("config") or {}
    history = value.get("history")
    check_keys(value, _CONFIG, subject=subject)
    check_keys(settings, _SETTINGS, subject=f"{subject}, config")
    check_keys(settings.get("Healthcheck"), _HEALTH, subject=f"{subject}, config.Healthcheck")
    check_keys(value["rootfs"], _ROOTFS, subject=f"{subject}, rootfs")
    for index, row in enumerate(history if isinstance(history, list) else []):
        check_keys(row, _HISTORY, subject=f"{subject}, history[{index}]")
