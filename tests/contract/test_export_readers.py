"""Other tools read the outputs of a build: skopeo each form, umoci a layout, podman the archives.

What Docker reads is in `tests/integration/test_load.py`.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from typing import TYPE_CHECKING, Any

import pytest
from imgbuild.adapters.store import Store
from imgbuild.cli import run as program
from imgbuild.ledger import Ledger
from imgbuild.model.oci import Family

from tests.support.outside import inspect, need_root, run, tool, unpack
from tests.support.tiny import Tiny
from tests.support.unpacked import differences

if TYPE_CHECKING:
    from pathlib import Path

    from imgbuild.model.oci import ImageConfig, Manifest

pytestmark = pytest.mark.tools
CONTAINERS_CONF = """[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""


class Made:
    """An image in all three forms, and what is in it."""

    def __init__(self, folder: Path, family: Family) -> None:
        (folder / "project").mkdir()
        self.family = family
        self.tiny = Tiny(folder / "project", family=family).write_locked()
        self.layout, self.oci, self.docker = folder / "layout", folder / "oci.tar", folder / "docker.tar"
        outputs = [f"oci:{self.layout}", f"oci-archive:{self.oci}", f"docker-archive:{self.docker}"]
        words = [word for output in outputs for word in ("--output", output)]
        shared = ["--project", str(self.tiny.root), "--cache", str(self.tiny.cache_path)]
        assert program(["build", "tiny", "-q", *shared, *words]) == 0

    @property
    def manifest(self) -> Manifest:
        store = Store(self.layout, ledger=Ledger())
        return store.manifest(store.resolve("tiny"))

    @property
    def config(self) -> ImageConfig:
        return Store(self.layout, ledger=Ledger()).config(self.manifest.config)


@pytest.fixture(scope="module", params=[Family.OCI, Family.DOCKER], ids=["oci", "docker"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """On a base of each family; not to be changed."""
    return Made(tmp_path_factory.mktemp("made"), request.param)


def copied(source: str, target: Path) -> Any:
    """The manifest of what skopeo copied: it checks every digest on its way."""
    answer = run(tool("skopeo"), "--insecure-policy", "copy", "-q", source, f"dir:{target}")
    assert answer.returncode == 0, answer.stderr
    return json.loads((target / "manifest.json").read_bytes())


@pytest.mark.parametrize("form", ["oci", "oci-archive"])
def test_skopeo_finds_our_digest_and_every_blob_in_a_layout_and_its_archive(
    made: Made, tmp_path: Path, form: str
) -> None:
    # By a tag it finds OCI manifests only; without one, the only image there is, of any family.
    tag = ":tiny" if made.family is Family.OCI else ""
    source = f"{form}:{made.layout if form == 'oci' else made.oci}{tag}"
    assert inspect(source)["Digest"] == str(made.manifest.digest)
    copied(source, tmp_path / "copy")
    assert (tmp_path / "copy" / "manifest.json").read_bytes() == made.manifest.raw
    for blob in (made.manifest.config, *made.manifest.layers):
        assert (tmp_path / "copy" / blob.digest.encoded).stat().st_size == blob.size


@pytest.mark.parametrize("name", ["", ":localhost/tiny:tiny"])
def test_skopeo_finds_our_config_and_all_layers_in_an_archive_for_docker(made: Made, tmp_path: Path, name: str) -> None:
    found = copied(f"docker-archive:{made.docker}{name}", tmp_path / "copy")
    assert found["config"]["digest"] == str(made.manifest.config.digest)
    # It hands layers on unpacked, whether they are compressed in the archive or not: their digests are the DiffIDs.
    assert [layer["digest"] for layer in found["layers"]] == [str(item) for item in made.config.diff_ids]


def test_skopeo_refuses_an_archive_of_which_a_byte_of_a_layer_changed(made: Made, tmp_path: Path) -> None:
    data = made.docker.read_bytes()
    at = data.index(b"NCCL version 2.30.7")
    (tmp_path / "bad.tar").write_bytes(data[:at] + b"M" + data[at + 1 :])
    answer = run(tool("skopeo"), "--insecure-policy", "copy", f"docker-archive:{tmp_path}/bad.tar", f"dir:{tmp_path}/x")
    assert answer.returncode != 0


def test_umoci_unpacks_a_layout_to_the_tree_that_the_store_has(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_root()
    from tests.contract.test_umoci import merged

    shared = ["--project", str(tiny.root), "--cache", str(tiny.cache_path), "--offline"]
    assert program(["build", "tiny", "-q", *shared, "--output", f"oci:{tmp_path / 'layout'}:v1"]) == 0
    unpack(tmp_path / "layout", "v1", tmp_path / "root")
    assert differences(tmp_path / "root", merged(tiny, "tiny")) == []


@pytest.mark.parametrize(("form", "name"), [("oci", "localhost/tiny:latest"), ("docker", "localhost/tiny:tiny")])
def test_podman_loads_both_archives_under_our_config(made: Made, tmp_path: Path, form: str, name: str) -> None:
    need_root()
    (tmp_path / "containers.conf").write_text(CONTAINERS_CONF)
    root = ["--root", str(tmp_path / "root"), "--storage-driver", "vfs"]

    def podman(*words: str) -> subprocess.CompletedProcess[str]:
        folders = [*root, "--runroot", short]
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "CONTAINERS_CONF": str(tmp_path / "containers.conf")}
        command = [tool("podman"), *folders, *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=120)

    # It wants a short path there.
    with tempfile.TemporaryDirectory(prefix="imgbuild-") as short:
        loaded = podman("load", "-q", "-i", str(made.oci if form == "oci" else made.docker))
        assert loaded.returncode == 0, loaded.stderr
        [found] = json.loads(podman("image", "inspect", name).stdout)
        assert f"sha256:{found['Id']}" == str(made.manifest.config.digest)
        assert found["RootFS"]["Layers"] == [str(item) for item in made.config.diff_ids]
        assert found["Architecture"] == "arm64"
