"""Other clients read what was pushed and attached: `oras` (Debian trixie) and `crane` (sid), by .ci/other-programs.

CI has skopeo (`test_push`); these two come from newer suites of Debian than the one that CI runs on.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from imgbuild import jsontext
from imgbuild.adapters.registry.referrers import attach
from imgbuild.digest import Digest
from imgbuild.model.oci import Descriptor, Family

from tests.support.outside import run, tool
from tests.support.pushing import APP, CHUNK, DATA, client, config_of, shop

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.pushing import Shop
    from tests.support.registries import LocalRegistry

SBOM = "application/vnd.cyclonedx+json"


def pushed(registry: LocalRegistry, folder: Path) -> Shop:
    """An image and a document about it."""
    found = client(registry, folder, chunk=CHUNK)
    image = shop(found, folder, (DATA, b"small"), config=config_of())
    image.push(found.repository, "one")
    found.upload(b"{}")
    empty = Descriptor(media_type="application/vnd.oci.empty.v1+json", digest=Digest.of(b"{}"), size=2)
    subject = Descriptor(media_type=Family.OCI.manifest, digest=image.manifest.digest, size=len(image.manifest.raw))
    body: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": Family.OCI.manifest,
        "artifactType": SBOM,
        "config": empty.as_dict(),
        "layers": [empty.as_dict()],
        "subject": subject.as_dict(),
        "annotations": {"kept": "yes"},
    }
    attach(found.repository, jsontext.compact(body), Family.OCI.manifest, subject)
    return image


def test_oras_finds_the_document_by_the_image_and_copies_both(registry: LocalRegistry, tmp_path: Path) -> None:
    oras = tool("oras")
    image = pushed(registry, tmp_path)
    name = f"{registry.host}/{APP}:one"
    answer = run(oras, "discover", "--plain-http", "--format", "json", name)
    assert answer.returncode == 0, answer.stderr
    (row,) = json.loads(answer.stdout)["manifests"]
    assert (row["artifactType"], row["annotations"]) == (SBOM, {"kept": "yes"})
    layout = tmp_path / "layout"
    done = run(oras, "copy", "-r", "--from-plain-http", "--to-oci-layout", name, f"{layout}:one")
    assert done.returncode == 0, done.stderr
    for blob in (*image.manifest.layers, image.manifest.config):
        assert Digest.of((layout / "blobs" / "sha256" / blob.digest.encoded).read_bytes()) == blob.digest
    fetched = run(oras, "manifest", "fetch", "--plain-http", name)
    assert fetched.stdout.encode() == image.manifest.raw


def test_crane_reads_the_manifest_the_config_and_every_blob(registry: LocalRegistry, tmp_path: Path) -> None:
    crane = tool("crane")
    image = pushed(registry, tmp_path)
    name = f"{registry.host}/{APP}"
    assert run(crane, "digest", f"{name}:one").stdout.strip() == str(image.manifest.digest)
    assert run(crane, "manifest", f"{name}:one").stdout.encode() == image.manifest.raw
    assert run(crane, "config", f"{name}:one").stdout.encode().strip() == config_of().strip()
    small = image.manifest.layers[1]
    assert run(crane, "blob", f"{name}@{small.digest}").stdout == "small"
