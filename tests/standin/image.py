"""Config and manifest of the stand-in base, in either family of media types."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from imgbuild import jsontext
from imgbuild.content.changeset import write_layer
from imgbuild.digest import Digest
from imgbuild.model.oci import Descriptor, Family

from tests.standin.stack import EPOCH

if TYPE_CHECKING:
    from collections.abc import Iterable

    from imgbuild.adapters.store import Store
    from imgbuild.content.changeset import LayerResult
    from imgbuild.progress import Progress

    from tests.standin.stack import Layer

SGLANG_COMMIT = "e087e662ba1ac4ef7747537e2a9141085efd4561"
"""The label of the real base; the sources here are those of a release instead."""
_BLOCK = 512
_PATH = "/opt/sglang/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SETTINGS: dict[str, Any] = {
    "Env": [f"PATH={_PATH}", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"],
    "Entrypoint": ["/opt/nvidia/nvidia_entrypoint.sh"],
    "Cmd": ["/bin/bash"],
    "WorkingDir": "/sgl-workspace",
    "Healthcheck": {"Test": ["CMD-SHELL", "true"], "Interval": 30_000_000_000, "Timeout": 5_000_000_000, "Retries": 3},
    "Labels": {
        "ai.sglang.build.commit": SGLANG_COMMIT,
        "org.opencontainers.image.ref.name": "ubuntu",
        "org.opencontainers.image.version": "24.04",
    },
    "ArgsEscaped": True,
}
_UNKNOWN = {"purpose": "a field that no specification knows and that must survive", "versions": [1, 2]}
"""The value of `x-standin` (case C27)."""


def write_layers(store: Store, layers: Iterable[Layer], *, progress: Progress) -> list[LayerResult]:
    """Write each layer as a blob of the store."""
    return [_write_layer(store, layer, index, progress) for index, layer in enumerate(layers)]


def _write_layer(store: Store, layer: Layer, index: int, progress: Progress) -> LayerResult:
    contents = [change.content.size for change in layer.changes if change.content is not None]
    size = sum(contents) + _BLOCK * (len(layer.changes) + len(contents) // 2)  # headers, and padding by half a block
    label = f"layer {index}: {layer.created_by.removeprefix('standin: ')}"
    with progress.task(label, size) as task, store.pending() as pending:

        def sink(data: bytes) -> None:
            pending.write(data)
            task.advance(len(data))

        result = write_layer(layer.changes, sink, epoch=EPOCH)
        store.commit(pending, result.digest, result.size)
    return result


def write_image(store: Store, layers: Iterable[Layer], written: list[LayerResult], family: Family) -> Descriptor:
    """Write config and manifest; returns the manifest's descriptor, which has no tag yet."""
    config = _config([layer.created_by for layer in layers], [str(result.diff_id) for result in written])
    manifest = {
        "schemaVersion": 2,
        "mediaType": family.manifest,
        "config": _blob(store, config, family.config).as_dict(),
        "layers": [
            Descriptor(media_type=family.layer_gzip, digest=result.digest, size=result.size).as_dict()
            for result in written
        ],
    }
    return _blob(store, jsontext.compact(manifest), family.manifest)


def _config(created_by: list[str], diff_ids: list[str]) -> bytes:
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(EPOCH))
    history: list[dict[str, Any]] = [{"created": created, "created_by": text} for text in created_by]
    # In the middle, so that the entries of history and the layers cannot be taken for the same list (case C12).
    setting = {"created": created, "created_by": f"ENV PATH={_PATH}", "comment": "standin", "empty_layer": True}
    history.insert(2, setting)
    return jsontext.compact(
        {
            "architecture": "arm64",
            "config": _SETTINGS,
            "created": created,
            "history": history,
            "os": "linux",
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
            "x-standin": _UNKNOWN,
        }
    )


def _blob(store: Store, data: bytes, media_type: str) -> Descriptor:
    digest, size = store.put([data], expected=Digest.of(data))
    return Descriptor(media_type=media_type, digest=digest, size=size)
