"""One small arrangement for each rule of the gate, and the whole set of checks that then say no.

That the set is exact shows two things: the rule is there, and no other one says it instead.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from imgbuild.model.identity import Finding, Verdict
from imgbuild.steps.verify import verify
from imgbuild.steps.verify_environment import REFUSED
from imgbuild.steps.view import View

from tests.support.elf_builder import MACHINES, shared_object
from tests.support.ld_cache import ld_cache
from tests.support.made import files, library
from tests.support.refusals import forge, locked, relock, swap_library
from tests.support.tiny import LIBRARY, SITE, Tiny, base_layers

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from imgbuild.content.changeset import Change
    from imgbuild.content.node import Node

SYSTEM = "usr/lib/aarch64-linux-gnu"
COPY = f"{SYSTEM}/libnccl.so.2.28.3"
FOLDER = LIBRARY.rpartition("/")[0]


def built(tiny: Tiny) -> tuple[Finding, ...]:
    """What the gate of a build says."""
    return tiny.build(dry_run=True).report.findings


def failed(found: tuple[Finding, ...]) -> set[str]:
    """`check: verdict` of all that is no match, without the library's name."""
    return {
        f"{finding.check.removeprefix('library.nccl.')}: {finding.verdict.value}"
        for finding in found
        if finding.verdict is not Verdict.MATCH
    }


def gate(tiny: Tiny, *layers: list[Change]) -> set[str]:
    """What fails with further layers in the base."""
    tiny.base = [*tiny.base, *layers]
    relock(tiny, "base")
    return failed(built(tiny))


def identity(tiny: Tiny, **changes: Any) -> None:
    value = msgspec.to_builtins(tiny.project().load("tiny").definition.library["nccl"])
    assert isinstance(value, dict)
    tiny.image = {**tiny.image, "library": {"nccl": {**value, **changes}}}


def accept(tiny: Tiny, *paths: str) -> None:
    identity(tiny, accept=[{"path": f"/{path}", "reason": "accepted by a test"} for path in paths])


def user(needed: str = "libnccl.so.2", **facts: Any) -> bytes:
    """A file that needs the library, and imports from it."""
    return shared_object(**{"soname": "libuser.so", "needed": (needed,), "imports": ("ncclAllReduce",), **facts})


def test_nothing_fails_as_it_is(tiny: Tiny) -> None:
    assert failed(built(tiny)) == set()


# Consumers, and what they load


@pytest.mark.parametrize(
    "needed",
    ["libnccl.so.2.28.3", f"/{COPY}", "libnccl.so", "libother.so", "$ORIGIN/../../lib/libother.so"],
)
def test_a_copy_that_is_needed_under_another_name_is_found_out(tiny: Tiny, needed: str) -> None:
    links = {f"{SYSTEM}/libnccl.so": "libnccl.so.2.28.3", f"{SYSTEM}/libother.so": f"/{COPY}"}
    links["usr/lib/libother.so"] = f"/{COPY}"
    assert gate(tiny, files({"usr/share/app/libuser.so": user(needed)}, links=links)) == {"consumer: differs"}


def test_a_name_that_leads_to_the_library_is_good(tiny: Tiny) -> None:
    assert gate(tiny, files({"opt/app/libuser.so": user(f"/{LIBRARY}")})) == set()


def test_a_consumer_that_finds_the_accepted_copy_differs(tiny: Tiny) -> None:
    assert gate(tiny, files({"opt/app/libuser.so": user()})) == {"consumer: differs"}


def test_a_consumer_that_finds_nothing_differs(tiny: Tiny) -> None:
    assert gate(tiny, files({"opt/app/libuser.so": user("libnccl.so.9")})) == {"consumer: differs"}


def test_a_consumer_may_be_accepted(tiny: Tiny) -> None:
    accept(tiny, COPY, "opt/app/libuser.so")
    assert gate(tiny, files({"opt/app/libuser.so": user()})) == set()


def test_a_file_of_another_machine_is_no_consumer(tiny: Tiny) -> None:
    assert gate(tiny, files({"opt/app/libuser.so": user(machine="x86_64")})) == set()


# Consumers: what is in doubt

CONFIGURED = "opt/configured"


def configured(**more: bytes) -> list[Change]:
    """A consumer that finds the library by the linker's configuration only; the copy of the system comes later."""
    return files(
        {
            "opt/app/libuser.so": user(),
            "etc/ld.so.conf": f"/{FOLDER}\n/{SYSTEM}\n".encode(),
            **more,
        }
    )


NAME = "libnccl.so.2"
RIGHT = (NAME, f"/{LIBRARY}")
WRONG = (NAME, f"/{COPY}")


def cached(*entries: tuple[str, str], **options: Any) -> dict[str, bytes]:
    return {"etc/ld.so.cache": ld_cache(entries, **options)}


def test_a_configuration_without_a_cache_has_no_effect(tiny: Tiny) -> None:
    assert gate(tiny, configured()) == {"consumer: differs"}


@pytest.mark.parametrize("old", [False, True])
def test_what_the_cache_lists_is_what_is_loaded(tiny: Tiny, old: bool) -> None:
    assert gate(tiny, configured(**cached(RIGHT, old=old))) == set()


def test_a_cache_that_lists_another_copy_counts_and_not_what_it_was_made_from(tiny: Tiny) -> None:
    assert gate(tiny, configured(**cached(WRONG))) == {"consumer: differs"}


def test_a_cache_that_does_not_list_the_name_leaves_the_default_folders(tiny: Tiny) -> None:
    assert gate(tiny, configured(**cached(("libother.so", f"/{LIBRARY}")))) == {"consumer: differs"}


def test_a_cache_that_lists_what_is_not_there_leaves_the_default_folders(tiny: Tiny) -> None:
    assert gate(tiny, configured(**cached((NAME, "/opt/gone/libnccl.so.2")))) == {"consumer: differs"}


def test_entries_for_another_machine_do_not_count(tiny: Tiny) -> None:
    assert gate(tiny, configured(**cached(RIGHT, machine="x86_64"))) == {"consumer: differs"}


def test_a_cache_that_ldconfig_would_not_write_again_is_in_doubt(tiny: Tiny) -> None:
    changes = configured(**{**cached(RIGHT), "etc/ld.so.conf": b"/opt/other\n"})
    assert gate(tiny, changes) == {"consumer: not-checked"}


def test_a_configuration_that_a_layer_of_ours_changes_is_in_doubt(tiny: Tiny) -> None:
    tiny.files["tiny-adapter/files/nccl.conf"] = f"/{SYSTEM}\n".encode()
    step = {"kind": "file", "source": "files/nccl.conf", "path": "/etc/ld.so.conf.d/nccl.conf"}
    tiny.layers["tiny-adapter"].append(step)
    conf = b"include ld.so.conf.d/*.conf\n/" + FOLDER.encode() + b"\n"
    assert gate(tiny, configured(**{**cached(RIGHT), "etc/ld.so.conf": conf})) == {"consumer: not-checked"}


def test_a_configuration_that_a_layer_of_ours_changes_without_effect_does_not_matter(tiny: Tiny) -> None:
    tiny.files["tiny-adapter/files/nccl.conf"] = b"/opt/x\n"
    step = {"kind": "file", "source": "files/nccl.conf", "path": "/etc/ld.so.conf.d/nccl.conf"}
    tiny.layers["tiny-adapter"].append(step)
    conf = b"/" + FOLDER.encode() + b"\ninclude ld.so.conf.d/*.conf\n"
    assert gate(tiny, configured(**{**cached(RIGHT), "etc/ld.so.conf": conf})) == set()


@pytest.mark.parametrize("raw", [b"", b"made by ldconfig", b"ld.so-1.7.0\0\0\0\0\0", ld_cache([RIGHT])[:60]])
def test_a_cache_that_cannot_be_read_does_not_count_and_is_in_doubt(tiny: Tiny, raw: bytes) -> None:
    assert gate(tiny, configured(**{"etc/ld.so.cache": raw})) == {"consumer: differs"}


def test_a_cache_that_cannot_be_read_leaves_an_answer_of_the_default_folders_in_doubt(tiny: Tiny) -> None:
    links = {"usr/lib/libnccl.so.9": f"/{LIBRARY}"}
    changes = files({"opt/app/libuser.so": user("libnccl.so.9"), "etc/ld.so.cache": b"?"}, links=links)
    assert gate(tiny, changes) == {"consumer: not-checked"}


def test_a_cache_with_another_copy_for_some_processors_is_in_doubt(tiny: Tiny) -> None:
    changes = configured(**cached(RIGHT, conditional=[WRONG]))
    assert gate(tiny, changes) == {"consumer: not-checked"}


def test_a_cache_with_the_same_file_for_some_processors_is_good(tiny: Tiny) -> None:
    assert gate(tiny, configured(**cached(RIGHT, conditional=[RIGHT]))) == set()


@pytest.mark.parametrize("folder", ["glibc-hwcaps/aarch64-v9", "tls", "atomics", "aarch64"])
def test_a_copy_in_a_folder_for_some_processors_is_in_doubt(tiny: Tiny, folder: str) -> None:
    path = f"{FOLDER}/{folder}/libnccl.so.2"
    accept(tiny, COPY, path)
    app = user(runpath=f"/{FOLDER}")
    changes = files({path: library("6"), "opt/app/libuser.so": app})
    assert "consumer: not-checked" in gate(tiny, changes)


def test_C65_a_cache_does_not_list_a_file_that_a_layer_of_ours_adds(tiny: Tiny) -> None:
    old, new = LIBRARY.encode(), f"{CONFIGURED}/libnccl.so.2"
    tiny.layers["tiny-nccl"] = [{"kind": "file", "source": "files/libnccl.so.2", "path": f"/{new}"}]
    tiny.files["tiny-nccl/files/libnccl.so.2"] = tiny.new_library
    identity(tiny, path=f"/{new}", accept=[])
    tiny.base = [[c for c in layer if c.path != old and b"libnccl" not in c.path] for layer in base_layers()]
    some = cached(("libc.so.6", "/lib/libc.so.6"))
    changes = files({"opt/app/libuser.so": user(), "etc/ld.so.conf": f"/{CONFIGURED}\n".encode(), **some})
    assert "consumer: not-checked" in gate(tiny, changes)


@pytest.mark.parametrize(
    "runpath",
    [f".:/{FOLDER}", f":/{FOLDER}", f"lib:/{FOLDER}", f"/opt/\udcff:/{FOLDER}"],
)
def test_a_folder_that_is_not_known_before_the_library_is_found_is_in_doubt(tiny: Tiny, runpath: str) -> None:
    assert gate(tiny, files({"opt/app/libuser.so": user(runpath=runpath)})) == {"consumer: not-checked"}


def test_a_folder_that_is_not_known_after_the_library_is_found_does_not_matter(tiny: Tiny) -> None:
    assert gate(tiny, files({"opt/app/libuser.so": user(runpath=f"/{FOLDER}:.:/opt/\udcff")})) == set()


def test_a_needed_name_that_is_not_utf_8_is_in_doubt(tiny: Tiny) -> None:
    assert gate(tiny, files({"opt/app/libuser.so": user("lib\udcff.so")})) == {"consumer: not-checked"}


def search_path(tiny: Tiny, value: str, *also: str, **config: Any) -> set[str]:
    accept(tiny, COPY, *also)
    tiny.image |= {
        "config": {"env": {"PYTHONPATH": "/opt/tiny", "LD_LIBRARY_PATH": value}, **config},
        "accept_env": [{"name": "LD_LIBRARY_PATH", "value": value, "reason": "accepted by a test"}],
    }
    found = {"opt/evil/libnccl.so.2": library("6.6.6")} if also else {}
    return gate(tiny, files(found) if found else [])


@pytest.mark.parametrize("value", ["/opt/evil", "/nowhere;/opt/evil", f"/{SITE}/../../../../evil"])
def test_folders_of_the_environment_come_before_runpath(tiny: Tiny, value: str) -> None:
    assert search_path(tiny, value, "opt/evil/libnccl.so.2") == {"consumer: differs"}


def test_the_working_directory_is_an_empty_item_of_the_environment(tiny: Tiny) -> None:
    assert search_path(tiny, ":/usr/bin", "opt/evil/libnccl.so.2", workdir="/opt/evil") == {"consumer: differs"}


@pytest.mark.parametrize("value", [":/usr/bin", "lib", "$ORIGIN/lib"])
def test_a_folder_of_the_environment_that_depends_on_the_process_is_in_doubt(tiny: Tiny, value: str) -> None:
    assert search_path(tiny, value) == {"consumer: not-checked"}


# What runs at every start of Python


def startup(tiny: Tiny, *layers: list[Change]) -> tuple[str, bool, str]:
    tiny.base = [*tiny.base, *layers]
    relock(tiny, "base")
    found = next(finding for finding in built(tiny) if finding.check == "python.startup")
    return found.verdict.value, found.required, found.reason or ""


@pytest.mark.parametrize("text", ["/opt/more\n", "# import x\n", "", "importer\n"])
def test_a_path_file_that_only_names_folders_runs_nothing(tiny: Tiny, text: str) -> None:
    assert startup(tiny, files({f"{SITE}/a.pth": text.encode()}))[0] == "match"


@pytest.mark.parametrize("line", ["import evil; evil.load()", "import\tevil", "  import evil"])
def test_a_line_of_a_path_file_that_begins_with_import_is_named(tiny: Tiny, line: str) -> None:
    verdict, required, reason = startup(tiny, files({f"{SITE}/a.pth": f"/opt\n{line}\n".encode()}))
    assert (verdict, required) == ("not-checked", False)
    assert f"/{SITE}/a.pth" in reason


def test_a_file_of_entry_points_is_named(tiny: Tiny) -> None:
    assert startup(tiny, files({f"{SITE}/a.start": b"evil:load\n"}))[2].endswith(f": /{SITE}/a.start")


@pytest.mark.parametrize(
    "path",
    [
        f"{SITE}/sitecustomize.py",
        f"{SITE}/sitecustomize.cpython-312-aarch64-linux-gnu.so",
        "usr/lib/python3.12/sitecustomize.py",
        "usr/lib/python3/dist-packages/usercustomize.py",
        "root/.local/lib/python3.12/site-packages/usercustomize.py",
        f"{SITE.rpartition('/')[0]}/sitecustomize.pyc",
        "opt/tiny/usercustomize.py",
    ],
)
def test_a_module_that_every_start_imports_is_named(tiny: Tiny, path: str) -> None:
    assert startup(tiny, files({path: b"1\n"}))[2].endswith(f": /{path}")


def test_a_package_that_every_start_imports_is_named(tiny: Tiny) -> None:
    assert startup(tiny, files({f"{SITE}/usercustomize/__init__.py": b"1\n"}))[2].endswith(f": /{SITE}/usercustomize")


def test_a_module_behind_a_link_is_named(tiny: Tiny) -> None:
    links = {"usr/lib/python3.12/sitecustomize.py": "/etc/python3.12/sitecustomize.py"}
    layer = files({"etc/python3.12/sitecustomize.py": b"1\n"}, links=links)
    assert startup(tiny, layer)[2].endswith(": /usr/lib/python3.12/sitecustomize.py")


def test_a_module_in_a_folder_that_a_path_file_names_is_named(tiny: Tiny) -> None:
    found = startup(tiny, files({f"{SITE}/a.pth": b"\xef\xbb\xbf/opt/more\n", "opt/more/sitecustomize.py": b"1\n"}))
    assert found[2].endswith(": /opt/more/sitecustomize.py")


def test_a_relative_item_of_the_python_path_is_named(tiny: Tiny) -> None:
    tiny.image = {**tiny.image, "config": {"env": {"PYTHONPATH": ".:/opt/tiny"}}}
    assert "working directory" in startup(tiny)[2]


def test_a_path_file_elsewhere_is_not_read_by_python(tiny: Tiny) -> None:
    hidden = {
        f"{SITE}/.a.pth": b"import x\n",
        f"{SITE}/.a.start": b"x:y\n",
        "opt/tiny/b.pth": b"import x\n",
        "srv/sitecustomize.py": b"",
    }
    assert startup(tiny, files(hidden))[0] == "match"


# Providers


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("opt/x/libx.so", library("6", exports=("other",))),
        ("opt/x/libx.so", library("6", soname="libx.so", exports=("ncclGetVersion",))),
        ("opt/x/libx.so", library("6", soname="libx.so", exports=("ncclAllReduce",))),
        ("opt/x/libnccl.so.2", library("6", soname=None, exports=("other",))),
        ("opt/x/libnccl.so.7", library("6", soname="libx.so", exports=("other",))),
        ("opt/x/libnccl.so.2", library("6", machine="x86_64")),
        ("usr/lib/libnccl.so.2", library("6", soname=None, exports=("ncclAllReduce", "ncclGetUniqueId"))),
    ],
)
def test_another_copy_by_soname_name_or_symbol_differs(tiny: Tiny, path: str, data: bytes) -> None:
    assert gate(tiny, files({path: data})) == {"provider: differs"}


def test_another_copy_may_be_accepted(tiny: Tiny) -> None:
    accept(tiny, COPY, "opt/x/libx.so")
    assert gate(tiny, files({"opt/x/libx.so": library("6", soname="libx.so")})) == set()


def test_a_plugin_with_symbols_of_its_own_is_no_copy(tiny: Tiny) -> None:
    assert (
        gate(tiny, files({"opt/x/libnccl-net.so": shared_object(soname=None, exports=("ncclNetPlugin_v8",))})) == set()
    )


def test_a_symbol_that_inventories_do_not_keep_is_not_checked(tiny: Tiny) -> None:
    identity(tiny, symbol="rcclGetVersion")
    relock(tiny)
    assert failed(built(tiny)) == {"provider: not-checked"}


def test_a_file_that_begins_like_elf_and_cannot_be_read_is_not_checked(tiny: Tiny) -> None:
    assert gate(tiny, files({"opt/x/broken": b"\x7fELF" + bytes(60)})) == {"provider: not-checked"}


def test_an_acceptance_that_is_not_needed_differs(tiny: Tiny) -> None:
    accept(tiny, COPY, "opt/none")
    relock(tiny)
    assert failed(built(tiny)) == {"accept: differs"}


def test_another_file_of_its_name_in_its_folder_differs(tiny: Tiny) -> None:
    assert gate(tiny, files({f"{FOLDER}/libnccl.so": b"a linker script"})) == {"folder: differs"}


# The library itself


def swapped(tiny: Tiny, data: bytes) -> set[str]:
    swap_library(tiny, data)
    return failed(built(tiny))


@pytest.mark.parametrize(
    ("changes", "fails"),
    [
        ({"needed": ("libc.so.6", "libgone.so.1")}, {"needed: differs"}),
        ({"versions_needed": {"libc.so.6": ("GLIBC_2.40",)}}, {"versions: differs"}),
        ({"exports": ("ncclGetVersion",)}, {"symbols: differs"}),
        ({"machine": "x86_64"}, {"machine: differs", "consumer: differs"}),
    ],
)
def test_a_library_with_other_facts_differs(tiny: Tiny, changes: dict[str, Any], fails: set[str]) -> None:
    assert swapped(tiny, library("2.30.7", **changes)) == fails


def test_a_library_without_the_string_differs(tiny: Tiny) -> None:
    assert swapped(tiny, library("2.30.6")) == {"strings: differs"}


def test_a_string_across_pieces_is_found(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = View.contents

    def chopped(view: View, node: Node) -> Generator[Iterator[bytes], None, None]:
        for pieces in contents(view, node):
            data = b"".join(pieces)
            yield (data[at : at + 7] for at in range(0, len(data), 7))

    monkeypatch.setattr(View, "contents", chopped)
    assert failed(built(tiny)) == set()


def test_a_library_that_is_not_the_locked_source_differs(tiny: Tiny) -> None:
    other = {"kind": "wheel-member", "wheel": "helper", "member": "helper/__init__.py"}
    tiny.image = {"sources": {"other": other}}
    identity(tiny, source="other")
    relock(tiny, keep=False)
    assert failed(built(tiny)) == {"digest: differs"}


def test_a_library_with_another_soname_differs(tiny: Tiny) -> None:
    assert swapped(tiny, library("2.30.7", soname="libnccl.so.3")) == {"soname: differs"}


def test_a_library_with_another_build_id_than_the_locks_differs(tiny: Tiny) -> None:
    image = tiny.project().load("tiny")
    tiny.build()
    value = locked(tiny)
    value["facts"]["libraries"][0]["build_id"] = "00" * 20
    forge(tiny, value)
    context = tiny.context()
    found = verify(context, image, tiny.lock(), context.store.resolve("tiny")).findings
    # The image embeds the lock, and says its digest.
    assert failed(found) == {"build_id: differs", "embedded.lock: differs"}


def test_a_library_of_32_bits_differs(tiny: Tiny) -> None:
    fields = struct.pack("<HHIIIIIHHHHHH", 3, MACHINES["aarch64"], 1, 0, 0, 0, 0, 52, 32, 0, 0, 0, 0)
    header = b"\x7fELF\x01\x01\x01".ljust(16, b"\0") + fields
    others = {"soname: differs", "symbols: differs", "consumer: differs"}
    assert swapped(tiny, header + b"NCCL version 2.30.7") == {"machine: differs", *others}


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_a_glibc_that_the_search_does_not_find_does_not_count(tiny: Tiny, machine: str) -> None:
    newer = shared_object(soname="libc.so.6", versions_defined=("GLIBC_2.99",), machine=machine)
    swap_library(tiny, library("2.30.7", versions_needed={"libc.so.6": ("GLIBC_2.99",)}))
    assert gate(tiny, files({"opt/sysroot/lib/libc.so.6": newer})) == {"versions: differs"}


# The environment


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_every_refused_variable_of_the_base_differs(tiny: Tiny, name: str) -> None:
    tiny.base_env.append(f"{name}=/opt/x")
    assert gate(tiny) == {"environment: differs"}


def test_a_refused_variable_may_be_accepted_with_its_value(tiny: Tiny) -> None:
    tiny.base_env.append("NCCL_VERSION=2.30.7")
    tiny.image = {"accept_env": [{"name": "NCCL_VERSION", "value": "2.30.7", "reason": "accepted by a test"}]}
    assert gate(tiny) == set()


@pytest.mark.parametrize("env", [["NCCL_VERSION=2.28.3"], []])
def test_an_accepted_variable_with_another_value_differs(tiny: Tiny, env: list[str]) -> None:
    tiny.base_env += env
    tiny.image = {"accept_env": [{"name": "NCCL_VERSION", "value": "2.30.7", "reason": "accepted by a test"}]}
    assert gate(tiny) == {"environment: differs"}


def test_a_variable_that_is_there_twice_differs(tiny: Tiny) -> None:
    tiny.base_env += ["SOME=1", "SOME=1"]
    assert gate(tiny) == {"environment: differs"}


@pytest.mark.parametrize(
    "config",
    [
        {"entrypoint": ["/usr/bin/env", "LD_PRELOAD=/opt/x.so", "/bin/entry"]},
        {"cmd": ["sh", "-c", "export NCCL_NET_PLUGIN=/opt/x.so; exec app"]},
        {"healthcheck": {"test": ["CMD-SHELL", "LD_AUDIT=/opt/x.so true"]}},
    ],
)
def test_a_command_that_sets_a_refused_variable_differs(tiny: Tiny, config: dict[str, Any]) -> None:
    tiny.image = {"config": {"env": {"PYTHONPATH": "/opt/tiny"}, "entrypoint": ["/bin/entry"], **config}}
    assert gate(tiny) == {"environment: differs"}


def test_a_command_that_only_names_a_variable_is_good(tiny: Tiny) -> None:
    command = ["env", "-u", "LD_PRELOAD", "MY_LD_PRELOAD=1", "app"]
    tiny.image = {"config": {"env": {"PYTHONPATH": "/opt/tiny"}, "entrypoint": ["/bin/entry"], "cmd": command}}
    assert gate(tiny) == set()


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("etc/ld.so.preload", b""),
        ("etc/nccl.conf", b"NCCL_DEBUG=INFO\n NCCL_NET_PLUGIN=/opt/x.so\n"),
        ("root/.nccl.conf", b"LD_AUDIT=/opt/x.so"),
        ("home/me/.nccl.conf", b"NCCL_TUNER_PLUGIN=x\n"),
    ],
)
def test_a_file_that_changes_what_is_loaded_differs(tiny: Tiny, path: str, content: bytes) -> None:
    assert gate(tiny, files({path: content})) == {"environment: differs"}


def test_a_file_of_nccl_that_sets_nothing_refused_is_good(tiny: Tiny) -> None:
    assert gate(tiny, files({"etc/nccl.conf": b"NCCL_DEBUG=INFO\n# NCCL_NET_PLUGIN=x\n"})) == set()
