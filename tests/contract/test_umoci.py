"""Independent tools read our results: skopeo names the same digest, umoci unpacks the same tree."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING

import pytest
from imgbuild.content.inventory import scan_layer
from imgbuild.content.tree import Tree
from imgbuild.model.oci import Family

from tests.support.outside import inspect, need_root, run, tool, unpack
from tests.support.tiny import Tiny
from tests.support.unpacked import differences

if TYPE_CHECKING:
    from pathlib import Path

    from imgbuild.digest import Digest
    from imgbuild.model.oci import Descriptor

pytestmark = pytest.mark.tools


def built(tiny: Tiny) -> Digest:
    """Build the tiny image; the digest of its manifest."""
    context = tiny.context()
    outcome = tiny.build(context)
    assert outcome.tags == ("tiny",)
    return outcome.assembled.manifest.digest


def merged(tiny: Tiny, tag: str) -> Tree:
    """The merged tree of an image of the store, from the bytes of its layers."""
    store = tiny.context().store
    tree = Tree()
    for index, layer in enumerate(store.manifest(store.resolve(tag)).layers):
        with store.open(layer.digest, subject=tag) as stream:
            scan = scan_layer(stream, subject=tag, spool=tempfile.TemporaryFile, capture=lambda *_: None)
        assert scan.digest == layer.digest
        tree.apply(scan.inventory, index)
    return tree


@pytest.fixture(scope="module")
def docker(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """A built tiny project on a base of the Docker family; not to be changed."""
    tiny = Tiny(tmp_path_factory.mktemp("docker"), family=Family.DOCKER).write_locked()
    built(tiny)
    return tiny


def skopeo_folder(tiny: Tiny, tag: str, target: Path) -> Descriptor:
    """The image as a folder of skopeo's `dir:` transport, which keeps any media type; our files, linked."""
    store = tiny.context().store
    descriptor = store.resolve(tag)
    manifest = store.manifest(descriptor)
    target.mkdir()
    (target / "version").write_text("Directory Transport Version: 1.1\n")
    os.link(store.path(descriptor.digest), target / "manifest.json")
    for blob in {manifest.config.digest, *(layer.digest for layer in manifest.layers)}:
        os.link(store.path(blob), target / blob.encoded)
    return descriptor


def test_skopeo_accepts_the_result_and_names_our_digest_and_layers(tiny: Tiny) -> None:
    digest = built(tiny)
    store = tiny.context().store
    seen = inspect(f"oci:{tiny.store_path}:tiny")
    assert seen["Digest"] == str(digest)
    assert seen["Layers"] == [str(layer.digest) for layer in store.manifest(store.resolve("tiny")).layers]
    assert (seen["Os"], seen["Architecture"]) == ("linux", "arm64")


def test_skopeo_copies_the_result_with_every_digest_kept(tiny: Tiny, tmp_path: Path) -> None:
    digest = built(tiny)
    copy = f"oci:{tmp_path / 'copy'}:tiny"
    answer = run(tool("skopeo"), "copy", "-q", "--preserve-digests", f"oci:{tiny.store_path}:tiny", copy)
    assert answer.returncode == 0, answer.stderr
    assert inspect(copy)["Digest"] == str(digest)


def test_umoci_unpacks_the_result_to_exactly_our_merged_tree(tiny: Tiny, tmp_path: Path) -> None:
    need_root()
    built(tiny)
    unpack(tiny.store_path, "tiny", tmp_path / "root")
    assert differences(tmp_path / "root", merged(tiny, "tiny")) == []


def test_umoci_makes_a_bundle_whose_settings_are_those_of_the_definition(tiny: Tiny, tmp_path: Path) -> None:
    need_root()
    built(tiny)
    bundle = tmp_path / "bundle"
    answer = run(tool("umoci"), "unpack", "--image", f"{tiny.store_path}:tiny", str(bundle))
    assert answer.returncode == 0, answer.stderr
    assert '"PYTHONPATH=/opt/tiny"' in (bundle / "config.json").read_text()
    assert differences(bundle / "rootfs", merged(tiny, "tiny")) == []


def test_the_comparison_finds_every_kind_of_difference(tiny: Tiny, tmp_path: Path) -> None:
    need_root()
    built(tiny)
    root = tmp_path / "root"
    unpack(tiny.store_path, "tiny", root)
    tree = merged(tiny, "tiny")
    (root / "etc/motd").write_text("hallo\n")
    (root / "usr/bin/tool").chmod(0o755)
    os.chown(root / "usr/bin/entry", 7, 8)
    (root / "bin").unlink()
    (root / "bin").symlink_to("/usr/bin")
    os.utime(root / "srv", (1, 1))
    os.setxattr(root / "srv/app/keys.py", "user.note", b"x")
    (root / "opt/more").mkdir()
    (root / "srv/app/server.py").unlink()
    os.link(root / "srv/app/auth.py", root / "srv/app/server.py")
    (root / "opt/tiny/LICENSE").unlink()
    text = "\n".join(differences(root, tree))
    for expected in (
        "b'etc/motd': sha256 is",
        "b'usr/bin/tool': mode is",
        "b'usr/bin/entry': uid is",
        "b'usr/bin/entry': gid is",
        "b'bin': link is",
        "b'srv': mtime is",
        "b'srv/app/keys.py': xattrs is",
        "b'opt/more': only on disk",
        "b'opt/tiny/LICENSE': only in the tree",
        "(b'srv/app/auth.py', b'srv/app/server.py'): hard links of each other only on disk",
        "b'srv/app/server.py': size is",
    ):
        assert expected in text


def test_C36_skopeo_accepts_the_result_on_a_docker_base_and_names_our_digest(docker: Tiny, tmp_path: Path) -> None:
    descriptor = skopeo_folder(docker, "tiny", tmp_path / "tiny")
    assert descriptor.media_type == Family.DOCKER.manifest
    assert inspect(f"dir:{tmp_path / 'tiny'}")["Digest"] == str(descriptor.digest)
    # skopeo checks every blob against the manifest while it copies.
    answer = run(
        tool("skopeo"), "copy", "-q", "--preserve-digests", f"dir:{tmp_path / 'tiny'}", f"dir:{tmp_path / 'copy'}"
    )
    assert answer.returncode == 0, answer.stderr
    assert (tmp_path / "copy/manifest.json").read_bytes() == (tmp_path / "tiny/manifest.json").read_bytes()


def test_skopeo_does_not_look_for_docker_manifests_in_an_image_layout(docker: Tiny) -> None:
    """A fact about skopeo (image-spec lets a layout hold any media type); users of such a store must know it."""
    answer = run(tool("skopeo"), "inspect", f"oci:{docker.store_path}:tiny")
    if answer.returncode == 0:
        assert str(docker.context().store.resolve("tiny").digest) in answer.stdout
    else:
        assert "no descriptor found for reference" in answer.stderr


def test_umoci_unpacks_the_result_on_a_docker_base_once_skopeo_changed_its_media_types(
    docker: Tiny, tmp_path: Path
) -> None:
    need_root()
    skopeo_folder(docker, "tiny", tmp_path / "tiny")
    answer = run(tool("skopeo"), "copy", "-q", f"dir:{tmp_path / 'tiny'}", f"oci:{tmp_path / 'layout'}:tiny")
    assert answer.returncode == 0, answer.stderr
    store = docker.context().store
    layers = [str(layer.digest) for layer in store.manifest(store.resolve("tiny")).layers]
    assert inspect(f"oci:{tmp_path / 'layout'}:tiny")["Layers"] == layers
    unpack(tmp_path / "layout", "tiny", tmp_path / "root")
    assert differences(tmp_path / "root", merged(docker, "tiny")) == []
