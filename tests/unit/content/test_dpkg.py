"""What dpkg says is installed, as dpkg itself reads it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from imgbuild.content.dpkg import DebianPackage, lists_one, names_of, parse_status
from imgbuild.errors import ArchiveError

INSTALLED = "install ok installed"


def stanza(name: str, *, version: str = "1", architecture: str = "all", status: str = INSTALLED, rest: str = "") -> str:
    head = f"Package: {name}\nStatus: {status}\nArchitecture: {architecture}\nVersion: {version}\n"
    return f"{head}Maintainer: A <a@b.test>\nDescription: x\n{rest}"


def by_dpkg(folder: Path, text: bytes) -> set[tuple[str, str, str]]:
    """What dpkg-query reads, of packages whose files are there."""
    folder.mkdir(exist_ok=True)
    (folder / "status").write_bytes(text)
    form = "${Package}|${Version}|${Architecture}|${db:Status-Status}\n"
    command = ["dpkg-query", f"--admindir={folder}", "-W", f"-f={form}"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    rows = [line.split("|") for line in done.stdout.splitlines()]
    return {(row[0], row[1], row[2]) for row in rows if row[3] not in {"not-installed", "config-files"}}


def by_us(text: bytes) -> set[tuple[str, str, str]]:
    found = parse_status(text, subject="status")
    return {(package.name, package.version, package.architecture) for package in found}


@pytest.mark.parametrize(
    "text",
    [
        stanza("one1"),
        "\n\n" + stanza("one1") + "\n\n\n" + stanza("two2", version="1:2.0~rc1-3+b1", architecture="arm64") + "\n\n",
        stanza("one1").replace("Package:", "PACKAGE:\t").replace("Version: 1", "version:   1  "),
        stanza(
            "one1", rest=" Package: not-one\n .\n Version: 9\nConffiles:\n /etc/one 0123456789abcdef0123456789abcdef\n"
        ),
        stanza("libx", architecture="arm64", rest="Multi-Arch: same\n")
        + "\n"
        + stanza("libx", architecture="armhf", rest="Multi-Arch: same\n"),
        stanza("left1", status="deinstall ok config-files") + "\n" + stanza("one1"),
        stanza("never", status="unknown ok not-installed") + "\n" + stanza("one1"),
        *(stanza("one1", status=f"install ok {word}") for word in ("half-installed", "unpacked", "half-configured")),
        stanza("one1", status="hold ok installed"),
    ],
)
def test_packages_are_those_that_dpkg_reads(tmp_path: Path, text: str) -> None:
    assert by_us(text.encode()) == by_dpkg(tmp_path / "dpkg", text.encode()) != set()


def test_all_packages_of_this_machine_are_read_as_dpkg_reads_them_and_own_what_it_says(tmp_path: Path) -> None:
    status = Path("/var/lib/dpkg/status").read_bytes()
    assert len(by_us(status)) > 50
    assert by_us(status) == by_dpkg(tmp_path / "dpkg", status)
    found = parse_status(status, subject="status")
    for path in ("/usr/bin/dpkg", "/bin/ls", "/etc/debian_version", "/usr/share/doc"):
        done = subprocess.run(["dpkg-query", "-S", path], check=True, capture_output=True, text=True)
        theirs = {name.partition(":")[0].strip() for name in done.stdout.rpartition(": ")[0].split(",")}
        folder = Path("/var/lib/dpkg/info")
        ours = set()
        for package in found:
            lists = [folder / name.decode() for name in package.lists if (folder / name.decode()).exists()]
            if lists and lists_one(lists[0].read_bytes(), (path[1:].encode(),)):
                ours.add(package.name)
        assert ours == theirs


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("Package: one1\n", "no status of three words"),
        ("nonsense", "no status of three words"),
        (stanza("one1", status="installed"), "no status of three words"),
        (stanza("one1") + "Package: two2\n", "a field twice"),
        (stanza("one1") + "\n" + stanza("one1"), "a package twice"),
        (stanza("../../etc"), "no name, version and architecture"),
        (stanza("one1", architecture="a/b"), "no name, version and architecture"),
        (stanza("one1", version="1 2"), "no name, version and architecture"),
        (stanza("One"), "no name, version and architecture"),
        ("Status: install ok installed\nVersion: 1\n", "no name, version and architecture"),
        ("\n".join(stanza(f"p{number}") for number in range(20_001)), "too many paragraphs"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_reason(text: str, problem: str) -> None:
    with pytest.raises(ArchiveError, match=problem):
        parse_status(text.encode(), subject="status")


def test_no_packages_are_none() -> None:
    assert parse_status(b"", subject="status") == ()
    assert parse_status(b"\n\n \n", subject="status") == ()


def test_the_list_of_one_architecture_comes_first() -> None:
    package = DebianPackage(name="libc6", version="2.36", architecture="arm64")
    assert package.lists == (b"libc6:arm64.list", b"libc6.list")


def test_a_path_in_usr_has_its_old_name_only_where_the_root_has_a_link() -> None:
    assert names_of(b"usr/lib/x/y.so", lambda _: True) == (b"usr/lib/x/y.so", b"lib/x/y.so")
    assert names_of(b"usr/lib/x/y.so", lambda _: False) == (b"usr/lib/x/y.so",)
    assert names_of(b"usr/share/x", lambda _: True) == (b"usr/share/x",)
    assert names_of(b"lib/x", lambda _: True) == (b"lib/x",)
    assert names_of(b"usr/lib", lambda _: True) == (b"usr/lib",)
    assert names_of(b"usr/library/x", lambda _: True) == (b"usr/library/x",)


def test_a_list_has_whole_names_only() -> None:
    content = b"/.\n/usr\n/usr/lib/libnccl.so.2.28.30\n/usr/lib/last"
    assert lists_one(content, (b"usr/lib/last",))
    assert lists_one(content, (b"absent", b"usr"))
    assert not lists_one(content, (b"usr/lib/libnccl.so.2.28.3",))
    assert not lists_one(content, (b"lib/last",))
