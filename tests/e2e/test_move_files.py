"""`imgbuild lock --update NAME --to VALUE` for files, wheels and toolchains."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from imgbuild.digest import Digest
from imgbuild.errors import StorageError

from tests.support.made import library
from tests.support.moving import Mover, rest
from tests.support.tiny import make_wheel

if TYPE_CHECKING:
    from tests.support.tiny import Tiny

NEWER = library("2.30.7", extra=b"NCCL_SWITCHLESS_RING_ONLY\0")
MEMBER = "nvidia/nccl/lib/libnccl.so.2"


def sources(tiny: Tiny, **more: Any) -> dict[str, Any]:
    """The sources of a tiny project, some of them other ones."""
    wheels = {
        name: {"kind": "wheel", "name": project, "version": version, "platforms": ["any"], "python": "3.12"}
        for name, project, version in (("helper", "helper", "1.0"), ("nccl-wheel", "nccl_like", "2.30.7"))
    }
    return {
        "adapter": {"kind": "git", "repository": "adapter.bundle", "ref": "main", "licence": "Apache-2.0"},
        **wheels,
        "nccl": {"kind": "wheel-member", "wheel": "nccl-wheel", "member": MEMBER},
        **more,
    }


@pytest.fixture
def mover(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> Mover:
    """A project whose library is an operator's file, with a size, and whose definition is full of comments."""
    found = Mover(tiny, capsys)
    old = tiny.root / "old.so"
    old.write_bytes(tiny.new_library)
    (tiny.root / "new.so").write_bytes(NEWER)
    file = {"kind": "file", "digest": str(Digest.of(tiny.new_library)), "size": len(tiny.new_library)}
    tiny.image["sources"] = sources(tiny, nccl=file)
    tiny.write_definition()
    found.commented()
    found.result("--source", f"nccl={old}")
    return found


@pytest.fixture
def wheels(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> Mover:
    """A project with newer wheels beside those that it has."""
    for name, version, files in (
        ("helper", "1.1", {"helper/__init__.py": b"VALUE = 2\n"}),
        ("nccl_like", "2.31.0", {MEMBER: NEWER}),
    ):
        filename, data = make_wheel(name, version, files)
        (tiny.root / "wheels" / filename).write_bytes(data)
    return Mover(tiny, capsys)


# files


def test_a_file_moves_to_another_one_by_its_path(mover: Mover) -> None:
    before, old = mover.definition.read_bytes(), mover.pin("nccl")
    found = mover.result("--update", "nccl", "--to", str(mover.tiny.root / "new.so"))
    pin = mover.pin("nccl")
    assert (pin["digest"], pin["size"]) == (str(Digest.of(NEWER)), len(NEWER))
    values = [f'"size" = {len(NEWER)} ', pin["digest"]]
    assert rest(mover.definition.read_bytes(), *values) == rest(before, f'"size" = {old["size"]} ', old["digest"])
    (row,) = found["moved_pin"]["libraries"]
    assert (row["old"], row["new"]) == (old["digest"], pin["digest"])
    assert (row["library"]["digest"], row["against"]["library"]["digest"]) == (pin["digest"], old["digest"])
    assert "markers.NCCL_SWITCHLESS_RING_ONLY" in row["against"]["differs"]
    assert mover.run("--check")[0] == 0


def test_the_identities_stand_side_by_side(mover: Mover) -> None:
    before = mover.both()
    code, out, _ = mover.run("--update", "nccl", "--to", str(mover.tiny.root / "new.so"), "--dry-run")
    assert code == 0
    assert "library      source nccl, now\nagainst      source nccl, before\ndigest       differs  sha256:" in out
    assert re.search(r"differs +NCCL_SWITCHLESS_RING_ONLY: present +\|  NCCL_SWITCHLESS_RING_ONLY: absent", out)
    assert "version      same     2.30.7" in out
    assert mover.both() == before


def test_a_file_moves_to_a_digest_whose_bytes_are_here_or_given(mover: Mover) -> None:
    digest = str(Digest.of(NEWER))
    error = mover.refused("--update", "nccl", "--to", digest)
    assert (error["code"], error["hint"]) == ("MISSING", "give the file itself: --to FILE")
    mover.tiny.context().cache.put([NEWER])
    mover.result("--update", "nccl", "--to", digest)
    assert (mover.pin("nccl")["digest"], mover.pin("nccl")["size"]) == (digest, len(NEWER))


def test_a_file_without_a_size_moves_to_a_digest_and_is_given_as_a_source(mover: Mover) -> None:
    tiny, digest = mover.tiny, str(Digest.of(NEWER))
    del tiny.image["sources"]["nccl"]["size"]
    tiny.write_definition()
    mover.result()
    words = ("--update", "nccl", "--to", digest)
    assert mover.refused(*words)["hint"] == "give it once: --source nccl=FILE"
    assert mover.refused(*words, "--source", f"nccl={tiny.root}/old.so")["code"] == "DIGEST_MISMATCH"
    mover.result(*words, "--source", f"nccl={tiny.root}/new.so")
    assert mover.pin("nccl")["digest"] == digest


def test_a_file_that_is_no_library_is_said_to_be_none_and_left_to_build_to_refuse(mover: Mover) -> None:
    path = mover.tiny.root / "old.so"
    path.write_bytes(b"text")
    code, out, _ = mover.run("--update", "nccl", "--to", str(path))
    assert code == 0
    assert "what identifies it cannot be compared: source nccl, now: is not an ELF file" in out
    assert "not verified yet" in out


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("absent.so", "is not there"),
        ("", "is not a regular file"),
        ("/dev/null", ""),
        ("locks", ""),
        ("sha256:12", "is not a digest"),
        ("a\0b", "is no name of a file"),
    ],
)
def test_what_is_no_file_is_refused(mover: Mover, value: str, says: str) -> None:
    error = mover.refused("--update", "nccl", f"--to={value}")
    assert error["exit_code"] == 2, error


# wheels


def test_a_wheel_moves_to_a_version_and_its_member_follows(wheels: Mover) -> None:
    wheels.commented()
    before, old = wheels.definition.read_bytes(), wheels.pin("nccl")
    found = wheels.result("--update", "nccl-wheel", "--to", "2.31.0")
    after = wheels.definition.read_bytes()
    assert after.replace(b'"2.31.0"', b'"2.30.7"') == before
    pin = wheels.pin("nccl-wheel")
    (row,) = found["moved_pin"]["packages"]
    assert (row["old"], row["new"]) == ("2.30.7", "2.31.0")
    assert row["files"][0]["new_filename"] == pin["filename"] == "nccl_like-2.31.0-py3-none-any.whl"
    assert row["files"][0]["new_digest"] == pin["digest"]
    (member,) = found["moved_pin"]["libraries"]
    assert (member["name"], member["old"]) == ("nccl", old["digest"])
    assert member["new"] == wheels.pin("nccl")["digest"] == str(Digest.of(NEWER))
    assert member["against"]["same"] is False
    assert wheels.run("--check")[0] == 0


def test_a_wheel_in_words(wheels: Mover) -> None:
    code, out, _ = wheels.run("--update", "helper", "--to", "1.1")
    assert code == 0
    assert "locks/tiny.toml: sources.helper.version\n      1.0  ->  1.1\n" in out
    assert "package source helper moves: helper 1.0  ->  1.1\n  wheel:\n      helper-1.0-py3-none-any.whl  ->" in out
    assert out.index("package source") < out.index("locks/tiny.toml written\n")


def test_a_wheel_whose_digest_is_pinned_moves_with_it(wheels: Mover) -> None:
    tiny, old = wheels.tiny, wheels.pin("helper")
    tiny.image["sources"] = sources(tiny)
    tiny.image["sources"]["helper"]["digest"] = old["digest"]
    tiny.write_definition()
    wheels.result()
    found = wheels.result("--update", "helper", "--to", "1.1")
    digest = wheels.pin("helper")["digest"]
    assert found["moved_pin"]["edits"] == [
        {"path": "sources.helper.version", "old": "1.0", "new": "1.1"},
        {"path": "sources.helper.digest", "old": old["digest"], "new": digest},
    ]
    assert digest.encode() in wheels.definition.read_bytes()


@pytest.mark.parametrize("value", ["9.9", "", "1.0; rm", "--pre", "1.*"])
def test_a_version_that_is_not_there_or_none_is_refused(wheels: Mover, value: str) -> None:
    assert wheels.refused("--update", "helper", f"--to={value}")["exit_code"] in {3, 5}


def test_a_member_moves_with_its_wheel_only(wheels: Mover) -> None:
    error = wheels.refused("--update", "nccl", "--to", "2.31.0")
    assert (error["exit_code"], error["hint"]) == (2, "move its wheel: --update nccl-wheel --to VERSION")


def test_the_version_that_it_has_moves_nothing(wheels: Mover) -> None:
    before = wheels.both()
    assert wheels.result("--update", "helper", "--to", "1.0")["status"] == "current"
    code, out, _ = wheels.run("--update", "helper", "--to", "1.0")
    assert (code, "helper: stays what it was" in out) == (0, True)
    assert wheels.both() == before


def test_a_definition_that_somebody_edits_meanwhile_is_not_written_over(
    wheels: Mover, monkeypatch: pytest.MonkeyPatch
) -> None:
    from imgbuild.steps import moved

    honest, lock = moved.compare_pins, wheels.lock.read_bytes()

    def slow(*arguments: Any) -> Any:
        wheels.definition.write_text(wheels.definition.read_text() + "# mine\n")
        return honest(*arguments)

    monkeypatch.setattr(moved, "compare_pins", slow)
    code, out, _ = wheels.run("--update", "helper", "--to", "1.1", "--json")
    assert (code, json.loads(out)["error"]["problem"]) == (3, "was changed while its pin was moved")
    assert wheels.lock.read_bytes() == lock
    assert wheels.definition.read_text().endswith("# mine\n")


def test_a_lock_that_cannot_be_written_is_stale_and_made_by_the_next_run(
    wheels: Mover, monkeypatch: pytest.MonkeyPatch
) -> None:
    from imgbuild.steps import move

    before = wheels.both()
    with monkeypatch.context() as changed:
        changed.setattr(move, "put_lock", full)
        code, out, _ = wheels.run("--update", "helper", "--to", "1.1", "--json")
        assert (code, json.loads(out)["error"]["code"]) == (5, "STORAGE")
    assert wheels.lock.read_bytes() == before[1]
    assert wheels.run("--check")[0] == 1
    wheels.result()
    assert wheels.pin("helper")["version"] == "1.1"


def full(*_: Any) -> None:
    raise StorageError("disk", "is full")


def test_a_link_to_a_definition_stays_one_and_the_file_keeps_its_mode(wheels: Mover) -> None:
    real = wheels.tiny.root / "real.toml"
    wheels.definition.rename(real)
    real.chmod(0o600)
    wheels.definition.symlink_to("../real.toml")
    wheels.result("--update", "helper", "--to", "1.1")
    assert wheels.definition.is_symlink()
    assert '"version" = "1.1"' in real.read_text()
    assert real.stat().st_mode & 0o777 == 0o600


# toolchains


def test_a_toolchain_moves_for_all_kinds_of_hosts(wheels: Mover) -> None:
    tiny = wheels.tiny
    for version in ("0.15.2", "0.16.0"):
        filename, data = make_wheel("ziglang", version, {"ziglang/zig": version.encode()})
        (tiny.root / "wheels" / filename).write_bytes(data)
    hosts = {"linux-x86_64": ["any"], "linux-aarch64": ["any"]}
    zig = {"kind": "toolchain", "name": "ziglang", "version": "0.15.2", "hosts": hosts}
    tiny.image["sources"] = sources(tiny, zig=zig)
    tiny.write_definition()
    wheels.result()
    found = wheels.result("--update", "zig", "--to", "0.16.0")
    (row,) = found["moved_pin"]["packages"]
    assert [file["host"] for file in row["files"]] == ["linux-aarch64", "linux-x86_64"]
    assert {file["new_filename"] for file in row["files"]} == {"ziglang-0.16.0-py3-none-any.whl"}
    assert wheels.pin("zig")["version"] == "0.16.0"
