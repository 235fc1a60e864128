"""Outputs that are no registry: whole or without a name, the same bytes every time, the base from wherever it is."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import shutil
import tarfile
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest
from imgbuild.adapters.store import Store
from imgbuild.cli import run
from imgbuild.content.archive import Entry, archive, archive_size
from imgbuild.content.changes import BytesContent
from imgbuild.digest import Digest
from imgbuild.errors import DigestMismatchError, UsageError
from imgbuild.ledger import Ledger
from imgbuild.steps import export
from imgbuild.steps.export import parse_outputs

from tests.support.fault_registry import Fault, FaultRegistry, FlipBit
from tests.support.faults import Fault as WriteFault
from tests.support.faults import run_child
from tests.support.made import EPOCH, library
from tests.support.refusals import blob, flip, relock
from tests.support.remote import Remote, base_to

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from imgbuild.digest import Readable
    from imgbuild.model.oci import Manifest

    from tests.support.tiny import Tiny

KINDS = ("oci", "oci-archive", "docker-archive")
Usage = namedtuple("Usage", "total used free")  # noqa: PYI024 - the one of shutil has this form


@pytest.fixture
def here(tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Remote:
    """A tiny project whose base is in its store, run from a folder `out` of its own."""
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path / "out")
    return Remote(tiny, "", capsys)


def image(tiny: Tiny, root: Path | None = None, tag: str = "tiny") -> Manifest:
    store = Store(root or tiny.store_path, ledger=Ledger())
    return store.manifest(store.resolve(tag))


def whole(root: Path, tag: str = "tiny") -> Manifest:
    """The manifest under a tag of a layout, after every blob of it was hashed."""
    store = Store(root, ledger=Ledger())
    store.repair = False
    manifest = store.manifest(store.resolve(tag))
    for part in (manifest.config, *manifest.layers):
        store.verify(part.digest, part.size, subject="test")
    return manifest


def members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as file:
        return {item.name: found.read() for item in file if (found := file.extractfile(item)) is not None}


def left(folder: Path) -> list[str]:
    """All files below a folder but the lock that stays."""
    found = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return [name for name in found if not name.endswith(".imgbuild-lock")]


# What is written


def test_a_layout_has_all_blobs_also_those_of_the_base_under_the_tags_of_the_definition(here: Remote) -> None:
    code, found = here.run("build", "tiny", "--output", "oci:layout")
    assert code == 0
    manifest = whole(Path("layout"))
    assert str(manifest.digest) == found["manifest"]
    assert len(manifest.layers) == len(image(here.tiny, tag="base").layers) + len(found["layers"])
    size = sum(item.size for item in (*manifest.layers, manifest.config)) + len(manifest.raw)
    assert found["outputs"] == [
        {"kind": "oci", "path": str(Path("layout").absolute()), "names": ["tiny"], "bytes": size, "copied": size}
    ]


def test_an_archive_of_a_layout_has_the_files_of_that_layout(here: Remote) -> None:
    code, found = here.run("build", "tiny", "--output", "oci:layout:v1", "--output", "oci-archive:a.tar:v1")
    assert code == 0
    expected = {name: Path("layout", name).read_bytes() for name in left(Path("layout"))}
    archived = members(Path("a.tar"))
    assert {name: archived[name] for name in archived if name.startswith("blobs/")} == {
        name: expected[name] for name in expected if name.startswith("blobs/")
    }
    assert archived["oci-layout"] == expected["oci-layout"]
    assert json.loads(archived["index.json"]) == json.loads(expected["index.json"])
    assert found["outputs"][1]["bytes"] == Path("a.tar").stat().st_size


def test_the_manifest_of_an_archive_for_docker_names_files_that_are_there(here: Remote) -> None:
    code, found = here.run("build", "tiny", "--output", "docker-archive:d.tar")
    assert code == 0
    archived = members(Path("d.tar"))
    [row] = json.loads(archived["manifest.json"])
    assert row["RepoTags"] == ["localhost/tiny:tiny"]
    assert hashlib.sha256(archived[row["Config"]]).hexdigest() == found["config"].removeprefix("sha256:")
    layers = [f"sha256:{hashlib.sha256(archived[name]).hexdigest()}" for name in row["Layers"]]
    assert layers == [str(layer.digest) for layer in image(here.tiny).layers]
    [named] = json.loads(archived["index.json"])["manifests"]
    assert named["digest"] == found["manifest"]


def test_the_name_after_the_file_is_the_only_one(here: Remote) -> None:
    code, found = here.run("build", "tiny", "--output", "docker-archive:d.tar:localhost:5000/a/b:v2")
    assert code == 0
    assert found["outputs"][0]["names"] == ["localhost:5000/a/b:v2"]
    assert json.loads(members(Path("d.tar"))["manifest.json"])[0]["RepoTags"] == ["localhost:5000/a/b:v2"]


@pytest.mark.parametrize("kind", ["oci-archive", "docker-archive"])
def test_the_same_lock_gives_the_same_file_and_its_digest_is_told(here: Remote, kind: str) -> None:
    answers = [here.run("build", "tiny", "--output", f"{kind}:{name}")[1]["outputs"][0] for name in ("1", "2")]
    digests = [f"sha256:{hashlib.sha256(Path(name).read_bytes()).hexdigest()}" for name in ("1", "2")]
    assert [answer["digest"] for answer in answers] == digests
    assert len(set(digests)) == 1


def test_an_archive_tells_nothing_of_who_made_it_and_when(here: Remote) -> None:
    here.run("build", "tiny", "--output", "docker-archive:d.tar")
    with tarfile.open("d.tar") as file:
        facts = {(item.uid, item.gid, item.uname, item.gname, item.mtime) for item in file}
        names = [item.name for item in file]
    assert facts == {(0, 0, "", "", EPOCH)}
    assert names == sorted(names)


def test_outputs_without_tags_of_the_store_are_made_before_it_is_tagged(here: Remote) -> None:
    Path("full").write_bytes(b"a file where a folder is needed")
    code, found = here.run("build", "tiny", "--output", "oci-archive:a.tar", "--output", "oci-archive:full/b.tar")
    assert (code, found["code"]) == (5, "STORAGE")
    assert "tiny" not in Store(here.tiny.store_path, ledger=Ledger()).tags()


# Layouts that are there


def test_other_tags_of_a_layout_stay_and_its_blobs_too(here: Remote) -> None:
    other = Store(Path("layout").absolute(), ledger=Ledger())
    other.create()
    digest, size = other.put([b"of somebody else"])
    index = json.loads(Path("layout/index.json").read_bytes())
    row = {"mediaType": "application/x-other", "digest": str(digest), "size": size, "x-unknown": [1]}
    index["manifests"] = [{**row, "annotations": {"org.opencontainers.image.ref.name": "other"}}, row]
    Path("layout/index.json").write_text(json.dumps(index))
    assert here.run("build", "tiny", "--output", "oci:layout")[0] == 0
    assert json.loads(Path("layout/index.json").read_bytes())["manifests"][:2] == index["manifests"]
    other.verify(digest, size, subject="test")
    whole(Path("layout"))


def test_what_a_layout_has_whole_is_not_copied_again_and_what_is_damaged_is(here: Remote) -> None:
    assert here.run("build", "tiny", "--output", "oci:layout")[0] == 0
    assert here.run("build", "tiny", "--output", "oci:layout")[1]["outputs"][0]["copied"] == 0
    layers = image(here.tiny).layers
    flip(Path("layout/blobs/sha256") / layers[0].digest.encoded)
    (Path("layout/blobs/sha256") / layers[-1].digest.encoded).unlink()
    code, found = here.run("build", "tiny", "--output", "oci:layout")
    assert (code, found["outputs"][0]["copied"]) == (0, layers[0].size + layers[-1].size)
    whole(Path("layout"))


def test_two_tags_of_one_layout_are_one_output(here: Remote) -> None:
    code, found = here.run("build", "tiny", "--output", "oci:layout:a", "--output", "oci:layout:b")
    assert code == 0
    assert [row["names"] for row in found["outputs"]] == [["a", "b"]]
    assert whole(Path("layout"), "a").digest == whole(Path("layout"), "b").digest


def test_a_folder_with_other_things_is_no_layout_and_is_left_alone(here: Remote) -> None:
    Path("photos").mkdir()
    Path("photos/1.jpg").write_bytes(b"a photo")
    code, found = here.run("build", "tiny", "--output", "oci:photos")
    assert (code, found["code"]) == (2, "USAGE")
    assert "is neither empty nor an OCI image layout" in found["problem"]
    assert "--output" in found["hint"]
    assert left(Path("photos")) == ["1.jpg"]


def test_a_file_that_is_no_archive_is_left_alone_and_an_archive_is_replaced(here: Remote) -> None:
    Path("thesis.tex").write_bytes(b"\\documentclass{book}" * 100)
    code, found = here.run("build", "tiny", "--output", "oci-archive:thesis.tex")
    assert (code, found["code"], found["problem"]) == (2, "USAGE", "is there and is no archive of an image")
    assert Path("thesis.tex").read_bytes().startswith(b"\\documentclass")
    with tarfile.open("backup.tar", "w") as archive:
        archive.add("thesis.tex")
    assert here.run("build", "tiny", "--output", "docker-archive:backup.tar")[0] == 2
    with tarfile.open("backup.tar") as archive:
        assert archive.getnames() == ["thesis.tex"]
    Path("old.tar").write_bytes(b"")
    for _ in range(2):
        assert here.run("build", "tiny", "--output", "oci-archive:old.tar")[0] == 0
    with tarfile.open("old.tar") as archive:
        assert "oci-layout" in archive.getnames()


def test_a_link_in_a_layout_is_not_written_through(here: Remote) -> None:
    assert here.run("build", "tiny", "--output", "oci:layout")[0] == 0
    layer = Path("layout/blobs/sha256") / image(here.tiny).layers[0].digest.encoded
    layer.unlink()
    Path("victim").write_bytes(b"of somebody else")
    layer.symlink_to(Path("victim").absolute())
    assert here.run("build", "tiny", "--output", "oci:layout")[0] == 0
    assert Path("victim").read_bytes() == b"of somebody else"
    assert not layer.is_symlink()
    whole(Path("layout"))


# Bases in registries


@pytest.fixture
def far(here: Remote, faulty: FaultRegistry, monkeypatch: pytest.MonkeyPatch) -> Remote:
    """The same project, its base in a registry only, and all that is known of it in the cache."""
    base_to(here.tiny, faulty.host, monkeypatch)
    assert here.run("build", "tiny", "--dry-run")[0] == 0
    faulty.clear_log()
    return here


def test_a_base_comes_over_the_network_once_for_a_layout_and_all_archives(far: Remote, faulty: FaultRegistry) -> None:
    words = [word for kind in reversed(KINDS) for word in ("--output", f"{kind}:{kind}")]
    code, found = far.run("build", "tiny", *words)
    assert code == 0
    assert [row["kind"] for row in found["outputs"]] == list(KINDS)
    manifest = whole(Path("oci"))
    gets = [item.reference for item in faulty.requests("blob", "GET")]
    base = [str(layer.digest) for layer in manifest.layers[: len(manifest.layers) - len(found["layers"])]]
    assert sorted(gets) == sorted(base)
    assert not Store(far.tiny.store_path, ledger=Ledger()).has(manifest.layers[0].digest)
    for name in KINDS[1:]:
        assert {f"blobs/sha256/{layer.digest.encoded}" for layer in manifest.layers} <= members(Path(name)).keys()


def test_a_resumed_layout_asks_for_what_it_lacks_only(far: Remote, faulty: FaultRegistry) -> None:
    assert far.run("build", "tiny", "--output", "oci:layout")[0] == 0
    first = whole(Path("layout")).layers[0]
    (Path("layout/blobs/sha256") / first.digest.encoded).unlink()
    faulty.clear_log()
    code, found = far.run("build", "tiny", "--output", "oci:layout")
    assert (code, found["outputs"][0]["copied"]) == (0, first.size)
    assert [item.reference for item in faulty.requests("blob", "GET")] == [str(first.digest)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_blob_that_a_registry_sends_wrong_leaves_no_output(far: Remote, faulty: FaultRegistry, kind: str) -> None:
    faulty.faults.add(Fault(action=FlipBit(at=5), kind="blob", method="GET", times=None))
    code, found = far.run("build", "tiny", "--output", f"{kind}:place")
    assert (code, found["code"]) == (4, "DIGEST_MISMATCH")
    assert has_no_name(kind)
    assert "tiny" not in Store(far.tiny.store_path, ledger=Ledger()).tags()


def test_nothing_is_written_offline_where_the_base_is_far(far: Remote, faulty: FaultRegistry) -> None:
    code, _ = far.run("build", "tiny", "--offline", "--output", "oci-archive:a.tar")
    # The verification says that first, as a no; without it, it would be an error.
    assert code in {1, 5}
    assert left(Path()) == []
    assert faulty.requests() == []


def has_no_name(kind: str) -> bool:
    """Whether `place` is no output: no file, or a layout without tags; and no pending file is left."""
    if list(Path().rglob(".imgbuild-pending-*")):
        return False
    return not Path("place").exists() if kind != "oci" else Store(Path("place"), ledger=Ledger()).tags() == {}


# What is not written


@pytest.mark.parametrize("kind", KINDS)
def test_a_blob_that_is_damaged_after_the_verification_leaves_no_output(
    here: Remote, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    damaged_after_verification(here, monkeypatch)
    code, found = here.run("build", "tiny", "--output", f"{kind}:place")
    assert (code, found["code"]) == (4, "DIGEST_MISMATCH")
    assert has_no_name(kind)


def test_a_file_that_was_there_stays_until_the_new_one_is_whole(here: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    with tarfile.open("a.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("oci-layout"))
    old = Path("a.tar").read_bytes()
    with monkeypatch.context() as changed:
        restore = damaged_after_verification(here, changed)
        assert here.run("build", "tiny", "--output", "oci-archive:a.tar")[0] == 4
    assert Path("a.tar").read_bytes() == old
    restore()
    assert here.run("build", "tiny", "--output", "oci-archive:a.tar")[0] == 0
    assert "index.json" in members(Path("a.tar"))


def damaged_after_verification(here: Remote, monkeypatch: pytest.MonkeyPatch) -> Callable[[], object]:
    """Flip a bit of the last layer of the base when outputs begin; what is returned takes that back."""
    layer = blob(here.tiny, image(here.tiny, tag="base").layers[-1].digest)
    good = layer.read_bytes()
    real = export.export

    def later(*arguments: Any) -> Any:
        flip(layer)
        return real(*arguments)

    monkeypatch.setattr(export, "export", later)
    return lambda: layer.write_bytes(good)


@pytest.mark.parametrize("kind", KINDS)
def test_what_did_not_pass_is_not_written(here: Remote, kind: str) -> None:
    here.tiny.new_library = library("2.30.7", needed=("libc.so.6", "libabsent.so.1"))
    here.tiny.keep_wheels()
    here.tiny.image = {"config": {"env": {"LD_PRELOAD": "/opt/evil.so"}}}
    relock(here.tiny)
    code, found = here.run("build", "tiny", "--output", f"{kind}:place")
    assert (code, found["ok"], found.get("outputs", [])) == (1, False, [])
    assert left(Path()) == []


def test_a_dry_run_writes_no_output(here: Remote) -> None:
    code, found = here.run("build", "tiny", "--dry-run", "--output", "oci:a", "--output", "oci-archive:b")
    assert (code, found.get("outputs", [])) == (0, [])
    assert left(Path()) == []


def test_too_little_space_for_all_outputs_together_is_said_before_the_first_byte(
    here: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, found = here.run("build", "tiny", "--output", "oci-archive:first.tar")
    assert code == 0
    need = found["outputs"][0]["bytes"]
    asked: list[Path] = []

    def usage(path: Path) -> Usage:
        asked.append(path)
        return Usage(total=2 * need, used=0, free=2 * need - 1)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    code, found = here.run("build", "tiny", "--output", "oci-archive:deep/a.tar", "--output", "oci-archive:b.tar")
    assert (code, found["code"]) == (5, "STORAGE")
    assert (found["expected"], found["actual"]) == (f"{2 * need} bytes", f"{2 * need - 1} bytes free")
    assert asked
    assert left(Path()) == ["first.tar"]
    assert not Path("deep").exists()


def test_what_a_layout_has_needs_no_space(here: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    assert here.run("build", "tiny", "--output", "oci:layout")[0] == 0
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(total=1, used=1, free=0))
    assert here.run("build", "tiny", "--output", "oci:layout:again")[0] == 0


@pytest.mark.parametrize(
    "words",
    [
        ["oci-archive:-"],
        ["oci"],
        ["oci:"],
        ["dir:place"],
        ["docker:place"],
        ["place"],
        ["oci:file"],
        ["oci-archive:folder"],
        ["docker-archive:/dev/null"],
        ["docker-archive:link"],
        ["oci:place:not/a/tag"],
        ["oci:place:"],
        ["docker-archive:place:tiny"],
        ["docker-archive:place:localhost/tiny"],
        [f"docker-archive:place:localhost/tiny@sha256:{'0' * 64}"],
        ["oci-archive:place", "docker-archive:place"],
    ],
)
def test_an_output_that_makes_no_sense_is_a_usage_error_before_anything_is_built(
    here: Remote, words: list[str]
) -> None:
    Path("file").write_bytes(b"")
    Path("folder").mkdir()
    Path("link").symlink_to("file")
    code, found = here.run("build", "tiny", *(part for word in words for part in ("--output", word)))
    assert (code, found["code"]) == (2, "USAGE")
    assert not Path("place").exists()
    assert "tiny" not in Store(here.tiny.store_path, ledger=Ledger()).tags()


def test_hostile_names_are_short_in_errors() -> None:
    with pytest.raises(UsageError) as caught:
        parse_outputs([f"oci:{'a' * 5000}:{'b' * 5000}"], image="tiny", tags=("tiny",))
    assert len(str(caught.value)) < 1000


# Interruptions


@pytest.mark.parametrize("way", ["kill", "full disk"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_ends_at_any_write_leaves_no_name_on_a_part(
    here: Remote, tmp_path: Path, kind: str, way: str
) -> None:
    out = tmp_path / "out"
    words = ["--project", str(here.tiny.root), "--cache", str(here.tiny.cache_path), "--json"]

    def build() -> int:
        return run(["build", "tiny", *words, "--output", f"{kind}:place"])

    log = tmp_path / "calls"
    clean = run_child(build, out, None, log=log)
    assert clean.status == 0, clean.output
    expected = {name: Path(name).read_bytes() for name in left(Path())}
    number = len(clean.calls)
    # Every write of an archive, and of a layout some: one blob is like the other.
    for at in range(0, number, 1 if number < 40 else number // 12):
        clear(out)
        fault = WriteFault(at=at, errno=errno.ENOSPC if way == "full disk" else None)
        outcome = run_child(build, out, fault, log=log)
        assert outcome.status == (None if way == "kill" else 5), outcome.output
        found = {name: Path(name).read_bytes() for name in left(Path()) if ".imgbuild-pending-" not in name}
        assert way == "kill" or left(Path()) == sorted(found)
        if kind == "oci":
            check_layout(found, expected)
        else:
            # After the rename only syncing the folder can fail: then the file is whole.
            assert found in ({}, expected), at
    clear(out)
    assert run_child(build, out, None, log=log).status == 0
    assert {name: Path(name).read_bytes() for name in left(Path())} == expected


def check_layout(found: dict[str, bytes], expected: dict[str, bytes]) -> None:
    """All blobs are what they are called; a tag is there only with every file of the finished layout."""
    for name, data in found.items():
        if name.startswith("place/blobs/"):
            assert data == expected[name]
    if b"ref.name" in found.get("place/index.json", b""):
        assert found == expected


def clear(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


# The archive itself


@dataclass(frozen=True, kw_only=True)
class Pretended:
    """A content of a size that gives other bytes."""

    size: int
    data: bytes = b""

    @contextlib.contextmanager
    def open(self) -> Iterator[Readable]:
        yield io.BytesIO(self.data)


def entries(**contents: bytes) -> list[Entry]:
    return [Entry(name=name.replace("_", "/"), content=BytesContent(data=data)) for name, data in contents.items()]


def test_the_size_is_known_before_and_the_order_given_does_not_matter() -> None:
    rows = entries(a_b_c=b"x" * 513, z=b"1")
    data = b"".join(archive(rows, epoch=7))
    assert len(data) == archive_size(rows, epoch=7)
    assert b"".join(archive(reversed(rows), epoch=7)) == data
    with tarfile.open(fileobj=io.BytesIO(data)) as file:
        assert file.getnames() == ["a", "a/b", "a/b/c", "z"]


def test_a_content_over_8_gib_has_its_size_in_a_pax_record() -> None:
    size = 9 * 2**30
    rows = [Entry(name="blob", content=Pretended(size=size))]
    head = next(iter(archive(rows, epoch=1)))
    found = tarfile.TarInfo.frombuf(head[-512:], "utf-8", "strict")
    assert found.name == "blob"
    assert f" size={size}\n".encode() in head
    assert archive_size(rows, epoch=1) == len(head) + size + 1024


@pytest.mark.parametrize(("size", "data"), [(3, b"ab"), (3, b"abcd"), (0, b"a")])
def test_a_content_of_another_size_ends_the_archive_without_its_end_mark(size: int, data: bytes) -> None:
    made: list[bytes] = []
    with pytest.raises(DigestMismatchError, match="than its size"):
        made.extend(archive([Entry(name="a", content=Pretended(size=size, data=data))], epoch=0))
    assert not b"".join(made).endswith(bytes(1024))


def test_the_progress_ends_at_the_size_of_all_blobs(here: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, list[int]] = {}

    class Task:
        def __init__(self, label: str, total: int) -> None:
            self.counts = seen.setdefault(label.partition(":")[0], [total, 0])

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            return None

        def advance(self, count: int, /) -> None:
            self.counts[1] += count

    class Bars:
        def task(self, label: str, total: int | None = None, **_: str) -> Any:
            return Task(label, total or 0)

    real = export.export
    monkeypatch.setattr(export, "export", lambda image, outputs, _: real(image, outputs, Bars()))  # type: ignore[arg-type]
    code, _ = here.run("build", "tiny", *(word for kind in KINDS for word in ("--output", f"{kind}:{kind}")))
    assert code == 0
    assert seen.keys() == {f"writing {kind}" for kind in KINDS}
    assert all(total == done > 0 for total, done in seen.values())


def test_the_digest_type_is_what_the_document_says(here: Remote) -> None:
    _, found = here.run("build", "tiny", "--output", "oci-archive:a.tar")
    assert Digest.parse(found["outputs"][0]["digest"]).algorithm == "sha256"
    assert os.path.isabs(found["outputs"][0]["path"])
