"""Cases from other people's bug reports that the whole path meets; the ids are those of the case list."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from imgbuild.adapters.spool import Spool
from imgbuild.cli import run
from imgbuild.content.inventory import LayerScan, scan_layer

from tests.support import outside
from tests.support.made import EPOCH, library, record_hash
from tests.support.refusals import locked, relock
from tests.support.tiny import LIBRARY, SITE, Tiny

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from pathlib import Path


def build(tiny: Tiny, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = run(["build", "tiny", "--json", "--project", str(tiny.root), "--cache", str(tiny.cache_path), *arguments])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, document.get("result") or document["error"]


def image_config(tiny: Tiny, result: dict[str, Any]) -> dict[str, Any]:
    raw = (tiny.store_path / "blobs" / result["config"].replace(":", "/")).read_bytes()
    config: dict[str, Any] = json.loads(raw)
    return config


def files_of(tiny: Tiny, result: dict[str, Any], layer: str) -> dict[str, bytes]:
    import tarfile

    digest = next(row["digest"] for row in result["layers"] if row["name"] == layer)
    found = {}
    with tarfile.open(tiny.store_path / "blobs" / digest.replace(":", "/")) as archive:
        for member in archive:
            stream = archive.extractfile(member) if member.isfile() else None
            found[member.name] = stream.read() if stream is not None else b""
    return found


def scan(data: bytes, folder: Path) -> LayerScan:
    return scan_layer(io.BytesIO(data), subject="layer", spool=Spool(folder).fresh, capture=lambda *_: None)


def test_C31_C32_one_tar_in_any_compression_has_one_diff_id_and_one_inventory(tiny: Tiny, tmp_path: Path) -> None:
    blob = max((tiny.store_path / "blobs" / "sha256").iterdir(), key=lambda path: path.stat().st_size)
    tar = gzip.decompress(blob.read_bytes())
    forms = [tar, gzip.compress(tar, 1), gzip.compress(tar, 9), zstd.compress(tar, 1), zstd.compress(tar, 19)]
    scans = [scan(data, tmp_path) for data in forms]
    assert {str(found.inventory.diff_id) for found in scans} == {f"sha256:{hashlib.sha256(tar).hexdigest()}"}
    assert len({found.inventory.dump() for found in scans}) == 1
    assert len({found.digest for found in scans}) == len(forms)


@pytest.mark.tools
def test_C33_a_build_from_a_lock_asks_no_network(tiny: Tiny) -> None:
    command = [outside.tool("unshare"), "-rn", sys.executable, "-m", "imgbuild", "build", "tiny", "--json"]
    done = subprocess.run(
        [*command, "--project", str(tiny.root), "--cache", str(tiny.cache_path)], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(done.stdout)["result"]["manifest"] == locked(tiny)["result"]["manifest"]


def test_C34_created_is_the_epoch_of_the_lock_whatever_the_environment_says(
    tiny: Tiny, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "not a number")
    config = image_config(tiny, build(tiny, capsys)[1])
    assert EPOCH == 1_700_000_000
    assert config["created"] == "2023-11-14T22:13:20Z"
    assert {entry["created"] for entry in config["history"][-5:]} == {"2023-11-14T22:13:20Z"}


@pytest.mark.parametrize("epoch", [-1, 1.5, "now", 2**40])
def test_C34_an_epoch_that_is_no_time_is_an_error(
    tiny: Tiny, epoch: object, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.image["epoch"] = epoch
    tiny.write()
    code, error = build(tiny, capsys)
    assert (code, error["code"]) == (3, "DOCUMENT_INVALID")
    assert "epoch" in error["message"]


def test_C39_fields_of_the_base_config_that_nobody_knows_are_kept(
    tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    config = image_config(tiny, build(tiny, capsys)[1])
    assert config["x-unknown"] == {"kept": [1, 2]}
    assert config["config"]["Healthcheck"] == {"Test": ["NONE"]}


@pytest.mark.parametrize("where", ["usr/lib/aarch64-linux-gnu/libother.so", "opt/cupy/.data/libnccl.so.2.18"])
def test_C65_C66_P07_another_copy_under_any_name_is_found_and_refused(
    tiny: Tiny, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.layers["tiny-extra"] = [{"kind": "file", "source": "files/lib", "path": f"/{where}"}]
    tiny.files["tiny-extra/files/lib"] = library("2.18.1", soname="libnccl.so.2")
    relock(tiny)
    code, result = build(tiny, capsys)
    assert code == 1
    assert result["tags"] == []
    wrong = [row for row in result["findings"] if row["verdict"] == "differs"]
    assert {(row["check"], row["subject"]) for row in wrong} >= {("library.nccl.provider", f"/{where}")}


def test_C66_P08_a_version_in_the_environment_is_refused(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    tiny.base_env = ["PATH=/usr/bin", "NCCL_VERSION=2.15.5"]
    relock(tiny, "base")
    code, result = build(tiny, capsys)
    assert code == 1
    wrong = [row["subject"] for row in result["findings"] if row["verdict"] != "match"]
    assert wrong == ["NCCL_VERSION"]


def test_C67_P68_record_says_what_the_swapped_file_is_and_the_lock_pins_both(
    tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    _, result = build(tiny, capsys)
    files = files_of(tiny, result, "tiny-nccl")
    record = files[f"{SITE}/nccl_like-2.29.7.dist-info/RECORD"].decode()
    new = tiny.new_library
    assert files[LIBRARY] == new
    assert f"nvidia/nccl/lib/libnccl.so.2,{record_hash(new)},{len(new)}\n" in record
    assert record.count("libnccl.so.2,") == 1
    pins = {row["path"]: row["states"] for row in locked(tiny)["pins"]["files"]}
    assert pins[f"/{LIBRARY}"][-1] == f"sha256:{hashlib.sha256(new).hexdigest()}"
    assert pins[f"/{SITE}/nccl_like-2.29.7.dist-info/RECORD"][-1].endswith(hashlib.sha256(record.encode()).hexdigest())


def test_P12_P13_a_package_step_after_the_swap_is_refused_before_anything_is_read(
    tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.image["layers"] = ["tiny-adapter", "tiny-app", "tiny-nccl", "tiny-packages"]
    tiny.write()
    code = run(["lock", "tiny", "--json", "--project", str(tiny.root), "--cache", str(tiny.cache_path)])
    error = json.loads(capsys.readouterr().out)["error"]
    assert (code, error["code"]) == (3, "STEP_REFUSED")
    assert error["actual"] == "swap in step tiny-nccl/1"


def test_P56_P57_bytecode_of_a_patched_file_goes_with_it(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    files = files_of(tiny, build(tiny, capsys)[1], "tiny-app")
    assert "srv/app/__pycache__/.wh.auth.cpython-312.pyc" in files
    assert not [name for name in files if name.endswith(".pyc") and ".wh." not in name]


def test_P21_a_base_without_the_required_label_is_refused(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    tiny.image["base"] = {"labels": {"commit": "another"}}
    tiny.write()
    code = run(["lock", "tiny", "--json", "--project", str(tiny.root), "--cache", str(tiny.cache_path)])
    error = json.loads(capsys.readouterr().out)["error"]
    assert (code, error["code"], error["expected"], error["actual"]) == (4, "FACT_MISMATCH", "another", "c0ffee")


def test_P14_the_locked_bytes_are_the_gate_and_not_the_version(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    assert build(tiny, capsys)[0] == 0
    checks = {row["check"]: row for row in build(tiny, capsys)[1]["findings"]}
    expected = f"sha256:{hashlib.sha256(tiny.new_library).hexdigest()}"
    assert checks["library.nccl.digest"]["expected"] == checks["library.nccl.digest"]["actual"] == expected
