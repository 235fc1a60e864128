"""The keys under which results are kept: all that the bytes depend on changes them, and each field does by itself."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import msgspec
import pytest
from imgbuild.adapters.toolchain import CompileJob
from imgbuild.content.changeset import BytesContent, Change, ChangeType
from imgbuild.content.tree import Tree
from imgbuild.digest import Digest
from imgbuild.model.image import FORMAT
from imgbuild.model.lockfile import HostWheel, LockedToolchain
from imgbuild.steps.change import compile_key
from imgbuild.steps.workspace import Attributes, Workspace

EPOCH = 1_700_000_000
FILE = Change(
    path=b"a", type=ChangeType.FILE, mode=0o644, uid=1, gid=2, mtime=3, xattrs=(("user.a", b"1"),), content=None
)
LINK = Change(path=b"l", type=ChangeType.SYMLINK, mode=0o777, mtime=3, link=b"a")


def layer_key(*changes: Change, data: bytes = b"data", epoch: int = EPOCH) -> Digest:
    """The key of a layer whose files all have the same bytes."""
    made = Workspace(Tree(), lambda _node, _name: b"", epoch=epoch, first_layer=0, expected=None)
    made.begin_layer()
    filled: dict[str, Any] = {"content": BytesContent(data=data), "sha256": Digest.of(data).encoded}
    return made.layer_key(
        tuple(replace(change, **filled) if change.type is ChangeType.FILE else change for change in changes)
    )


LAYER_ROWS: dict[str, tuple[str, Change, dict[str, Any]]] = {
    "path": ("path", FILE, {"path": b"b"}),
    "path that is not UTF-8": ("path", FILE, {"path": b"\xff"}),
    "type": ("type", LINK, {"type": ChangeType.HARDLINK}),
    "type of a marker": ("type", replace(LINK, type=ChangeType.OPAQUE), {"type": ChangeType.WHITEOUT}),
    "mode": ("mode", FILE, {"mode": 0o755}),
    "mode of a link": ("mode", LINK, {"mode": 0o755}),
    "set-user-id": ("mode", FILE, {"mode": 0o4644}),
    "uid": ("uid", FILE, {"uid": 9}),
    "gid": ("gid", FILE, {"gid": 9}),
    "uid and gid the other way round": ("uid", FILE, {"uid": 2, "gid": 1}),
    "mtime": ("mtime", FILE, {"mtime": 4}),
    "mtime of a link": ("mtime", LINK, {"mtime": 4}),
    "link": ("link", LINK, {"link": b"b"}),
    "no attributes": ("xattrs", FILE, {"xattrs": ()}),
    "another attribute's name": ("xattrs", FILE, {"xattrs": (("user.b", b"1"),)}),
    "another attribute's value": ("xattrs", FILE, {"xattrs": (("user.a", b"2"),)}),
    "one attribute more": ("xattrs", FILE, {"xattrs": (("user.a", b"1"), ("user.b", b"1"))}),
}


@pytest.mark.parametrize("name", LAYER_ROWS)
def test_each_field_of_a_change_is_in_the_key_of_a_layer(name: str) -> None:
    _, change, other = LAYER_ROWS[name]
    assert layer_key(change) != layer_key(replace(change, **other))
    assert layer_key(change) == layer_key(replace(change))


def test_content_epoch_format_and_number_of_changes_are_in_the_key_of_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    key = layer_key(FILE)
    assert key == layer_key(FILE)
    assert key != layer_key(FILE, data=b"DATA")
    assert key != layer_key(FILE, epoch=EPOCH + 1)
    assert key != layer_key(FILE, LINK)
    assert layer_key() != key
    monkeypatch.setattr("imgbuild.steps.workspace.FORMAT", FORMAT + 1)
    assert key != layer_key(FILE)


def test_no_field_of_a_change_is_without_a_row() -> None:
    # The content has its own test: it stands in the key by its digest.
    without = {field.name for field in fields(Change)} - {"content", "sha256"}
    assert {field for field, _, _ in LAYER_ROWS.values()} == without


def test_the_key_of_a_layer_has_what_it_writes_and_not_what_a_later_one_makes_of_it() -> None:
    keys = []
    for first in (b"one", b"two"):
        made = Workspace(Tree(), lambda _node, _name: b"", epoch=EPOCH, first_layer=0, expected=None)
        made.begin_layer()
        made.write_bytes(b"a", first, Attributes(mode=0o644), where="test")
        changes = made.finish_layer()
        made.begin_layer()
        made.write_bytes(b"a", b"last", Attributes(mode=0o644), where="test")
        made.finish_layer()
        keys.append(made.layer_key(changes))
    assert keys[0] != keys[1]


JOB = CompileJob(
    sources=(("a.c", b"int a;"), ("b.c", b"int b;"), ("c.h", b"int c;")),
    compile=("a.c", "b.c"),
    language="c11",
    glibc="2.34",
    output="liba.so",
    kind="shared",
    target_arch="aarch64",
    soname="liba.so.1",
    flags=("-O2", "-DA=1"),
    link_inputs=(("a.map", b"{};"), ("libb.so", b"elf")),
)
PIN = LockedToolchain(
    name="zig",
    distribution="ziglang",
    version="0.15.2",
    hosts={
        host: HostWheel(platforms=["any"], filename=f"{host}.whl", digest=Digest.of(host.encode()))
        for host in ("linux-x86_64", "linux-aarch64")
    },
)
JOB_ROWS: dict[str, tuple[str, Any]] = {
    "text of a source": ("sources", (("a.c", b"int A;"), *JOB.sources[1:])),
    "text of a header": ("sources", (*JOB.sources[:2], ("c.h", b"int C;"))),
    "name of a header": ("sources", (*JOB.sources[:2], ("d.h", b"int c;"))),
    "a header less": ("sources", JOB.sources[:2]),
    "texts of two sources the other way round": ("sources", (("a.c", b"int b;"), ("b.c", b"int a;"), JOB.sources[2])),
    "which sources": ("compile", ("a.c",)),
    "order of sources": ("compile", ("b.c", "a.c")),
    "language": ("language", "c17"),
    "glibc": ("glibc", "2.35"),
    "kind": ("kind", "executable"),
    "machine": ("target_arch", "x86_64"),
    "soname": ("soname", "liba.so.2"),
    "no soname": ("soname", None),
    "a flag": ("flags", ("-O3", "-DA=1")),
    "a flag less": ("flags", ("-O2",)),
    "order of flags": ("flags", ("-DA=1", "-O2")),
    "text of a link input": ("link_inputs", (("a.map", b"{ };"), JOB.link_inputs[1])),
    "a link input less": ("link_inputs", JOB.link_inputs[:1]),
    "name of a link input": ("link_inputs", (("a.map", b"{};"), ("libc.so", b"elf"))),
}


@pytest.mark.parametrize("name", JOB_ROWS)
def test_each_field_of_a_job_is_in_the_key_of_what_is_compiled(name: str) -> None:
    field, value = JOB_ROWS[name]
    assert compile_key(JOB, PIN) != compile_key(replace(JOB, **{field: value}), PIN)
    assert compile_key(JOB, PIN) == compile_key(replace(JOB), PIN)


def test_no_field_of_a_job_is_without_a_row() -> None:
    assert {field for field, _ in JOB_ROWS.values()} == {field.name for field in fields(CompileJob)} - {"output"}


def test_the_name_of_the_output_is_not_in_the_key_since_it_does_not_enter_the_bytes() -> None:
    assert compile_key(JOB, PIN) == compile_key(replace(JOB, output="another.so"), PIN)


@pytest.mark.parametrize(
    "changes",
    [
        {"distribution": "another"},
        {"version": "0.15.3"},
        {"hosts": {}},
        {"hosts": {**PIN.hosts, "macos-arm64": PIN.hosts["linux-x86_64"]}},
        {
            "hosts": {
                **PIN.hosts,
                "linux-x86_64": msgspec.structs.replace(PIN.hosts["linux-x86_64"], digest=Digest.of(b"another")),
            }
        },
    ],
    ids=["distribution", "version", "no wheels", "a wheel more", "another wheel"],
)
def test_the_toolchain_and_each_of_its_wheels_is_in_the_key_of_what_is_compiled(changes: dict[str, Any]) -> None:
    assert compile_key(JOB, PIN) != compile_key(JOB, msgspec.structs.replace(PIN, **changes))
