"""`imgbuild explain IMAGE PATH`: where a path comes from, and who loads it."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

from imgbuild.cli import run
from imgbuild.cli.schemas import shipped
from imgbuild.content.changeset import Change, ChangeType
from jsonschema import Draft202012Validator

from tests.support.elf_builder import shared_object
from tests.support.made import files
from tests.support.refusals import locked, relock, states
from tests.support.tiny import LIBRARY, Tiny

if TYPE_CHECKING:
    import pytest

SYSTEM = "/usr/lib/aarch64-linux-gnu/libnccl.so.2"


def ask(tiny: Tiny, path: str, *arguments: str) -> int:
    common = ["--project", str(tiny.root), "--cache", str(tiny.cache_path), "--offline"]
    return run(["explain", "tiny", path, *common, *arguments])


def explained(tiny: Tiny, capsys: pytest.CaptureFixture[str], path: str) -> dict[str, Any]:
    capsys.readouterr()
    code = ask(tiny, path, "--json")
    document = json.loads(capsys.readouterr().out)
    Draft202012Validator(json.loads(shipped("explain-result"))).validate(document)
    result: dict[str, Any] = document["result"]
    assert code == (1 if "real" not in result else 0)
    return result


def test_a_swapped_library_has_its_layer_its_step_and_those_who_load_it(
    tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    found = explained(tiny, capsys, f"/{LIBRARY}")
    lock = locked(tiny)
    before, after = states(lock, f"/{LIBRARY}")
    layer = next(row for row in lock["result"]["layers"] if row["name"] == "tiny-nccl")
    assert (found["digest"], found["origin"]["name"], found["origin"]["digest"]) == (
        after,
        "tiny-nccl",
        layer["digest"],
    )
    assert [(row["layer"]["name"], row["what"], row["digest"]) for row in found["history"]] == [
        ("base", "has", before),
        ("tiny-nccl", "has", after),
    ]
    assert [row["states"] for row in found["states"]] == [[before, after]]
    assert [(row["name"], row["matches"]) for row in found["owners"]] == [("nccl-like", True)]
    assert found["library"]["soname"] == "libnccl.so.2"
    assert found["library"]["texts"] == ["NCCL version 2.30.7"]
    assert {row["provider"] for row in found["library"]["loads"]} == {f"/{LIBRARY}"}
    assert found["unknown"] == []


def test_a_copy_that_is_not_loaded_says_who_asks_for_its_name_and_what_they_load(
    tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    found = explained(tiny, capsys, SYSTEM)
    assert found["links"] == [f"{SYSTEM} -> libnccl.so.2.28.3"]
    assert found["real"] == f"{SYSTEM}.28.3"
    assert found["library"]["loads"]
    assert all(row["provider"] == f"/{LIBRARY}" and row["trail"] for row in found["library"]["loads"])
    capsys.readouterr()
    assert ask(tiny, SYSTEM) == 0
    out = capsys.readouterr().out
    assert "loaded by  no files" in out
    assert "is loaded by" in out


def test_a_removed_path_says_which_layer_removed_it(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    found = explained(tiny, capsys, "/opt/unused")
    assert [row["what"] for row in found["history"]] == ["has", "removes"]
    assert found["history"][-1]["where"] == "/opt/.wh.unused"
    capsys.readouterr()
    assert ask(tiny, "/opt/unused") == 1
    assert "nothing is there" in capsys.readouterr().out


def test_a_path_that_never_was_has_no_history(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    found = explained(tiny, capsys, "/never/was")
    assert (found["history"], found["states"], found["owners"]) == ([], [], [])


def test_layers_whose_inventories_are_not_here_are_named(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    for row in locked(tiny)["facts"]["base_layers"]:
        (path,) = (tiny.cache_path / "inventories").glob(f"*.{row['inventory'].removeprefix('sha256:')}")
        path.unlink()
    found = explained(tiny, capsys, f"/{LIBRARY}")
    assert [row["number"] for row in found["unknown"]] == [0, 1, 2]
    assert [row["layer"]["name"] for row in found["history"]] == ["tiny-nccl"]


def test_a_layer_of_ours_that_is_nowhere_is_refused(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(tiny.cache_path / "inventories")
    shutil.rmtree(tiny.store_path / "blobs")
    assert ask(tiny, f"/{LIBRARY}") == 5
    assert "error[" in capsys.readouterr().err


DPKG = {
    "var/lib/dpkg/status": b"Package: libnccl2\nStatus: install ok installed\nArchitecture: arm64\n"
    b"Version: 2.28.3-1\n\n"
    b"Package: other\nStatus: install ok installed\nArchitecture: all\nVersion: 1\n\n"
    b"Package: gone\nStatus: deinstall ok config-files\nArchitecture: all\nVersion: 1\n",
    "var/lib/dpkg/info/libnccl2:arm64.list": b"/.\n/lib\n/lib/aarch64-linux-gnu/libnccl.so.2.28.3\n",
    "var/lib/dpkg/info/other.list": b"/.\n/usr/share/doc/other\n/usr/lib/aarch64-linux-gnu/libnccl.so.2.28.30\n",
    "var/lib/dpkg/info/gone.list": b"/usr/lib/aarch64-linux-gnu/libnccl.so.2.28.3\n",
}


def test_a_debian_package_that_lists_a_path_is_named_also_where_it_knows_no_merged_root(
    tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.base = [*tiny.base, files(DPKG)]
    relock(tiny, "base")
    found = explained(tiny, capsys, SYSTEM)
    assert found["system"] == [{"name": "libnccl2", "version": "2.28.3-1", "architecture": "arm64"}]
    assert "system_problem" not in found
    assert ask(tiny, SYSTEM) == 0
    assert "package    libnccl2 2.28.3-1 (arm64), by dpkg's list" in capsys.readouterr().out
    assert explained(tiny, capsys, f"/{LIBRARY}")["system"] == []


def test_what_dpkg_does_not_say_of_all_packages_is_said_to_be_unknown(
    tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    lists = {path: data for path, data in DPKG.items() if "libnccl2" not in path}
    tiny.base = [*tiny.base, files(lists)]
    relock(tiny, "base")
    found = explained(tiny, capsys, SYSTEM)
    assert (found["system"], found["system_problem"]) == ([], "1 of 2 packages have no list")
    tiny.base = [*tiny.base, files({"var/lib/dpkg/status": b"Package: x\n"})]
    relock(tiny, "base")
    assert "has no status of three words" in explained(tiny, capsys, SYSTEM)["system_problem"]


def test_a_name_from_the_image_cannot_imitate_a_line(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    evil = shared_object(soname="libevil.so\n└── content    sha256:forged", needed=("libc.so.6",))
    tiny.base = [*tiny.base, files({"opt/evil.so": evil})]
    relock(tiny, "base")
    assert ask(tiny, "/opt/evil.so") == 0
    assert "\n└── content" not in capsys.readouterr().out


def test_what_hides_a_directory_is_said(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    gone = Change(path=b"opt/gone", type=ChangeType.WHITEOUT)
    tiny.base = [files({"opt/gone/x": b"1"}), *tiny.base, [*files({"opt/other": b""}), gone]]
    relock(tiny, "base")
    found = explained(tiny, capsys, "/opt/gone/x")
    assert [row["what"] for row in found["history"]] == ["has", "hides"]
    assert found["history"][1]["where"] == "/opt/.wh.gone"


def test_a_relative_path_is_refused(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(tiny, "opt/x") == 2
    assert "is not an absolute path" in capsys.readouterr().err


def test_links_on_the_way_are_followed_as_they_are_and_a_circle_ends(
    tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    links = {"l1": "data/deep", "q": "l1/../x", "round": "trip", "trip": "round"}
    tiny.base = [*tiny.base, files({"data/deep/y": b"1", "data/x": b"2"}, links=links)]
    relock(tiny, "base")
    found = explained(tiny, capsys, "/q")
    assert found["links"] == ["/q -> l1/../x", "/l1 -> data/deep"]
    assert found["real"] == "/data/x"
    assert explained(tiny, capsys, "/round")["links"] == ["/round -> trip", "/trip -> round"]
