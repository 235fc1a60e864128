"""The table of a base's packages says what their files say, and reads a RECORD only when its rows are asked for."""

from __future__ import annotations

import hashlib

import msgspec
import pytest
from imgbuild.content.node import Node
from imgbuild.content.packages import Distribution, Parsed, distributions, owners
from imgbuild.content.packagetable import dump_packages, load_packages
from imgbuild.content.tree import Tree
from imgbuild.errors import ArchiveError

SITE = "opt/site"
HASH = "sha256=" + "_" * 43
FILES = {
    "plain-1.dist-info/METADATA": b"Name: Plain\nVersion: 1\nRequires-Dist: odd\nRequires-Dist: x>1\n\n",
    "plain-1.dist-info/RECORD": f"plain/a.py,{HASH},1\nplain/sub/b.py,,\n../../bin/plain,{HASH},9\n".encode(),
    "odd-2.dist-info/METADATA": b"Name: odd\nVersion: 2\n\n",
    "odd-2.dist-info/RECORD": f'"odd/a,b.py",{HASH},1\nodd/c.py,sha512=abc,2\n'.encode(),
    "empty-3.dist-info/METADATA": b"Name: empty\nVersion: 3\n\n",
    "empty-3.dist-info/RECORD": b"",
    "broken-4.dist-info/METADATA": b"Name: broken\nVersion: 4\n\n",
    "broken-4.dist-info/RECORD": b"a,b\n",
    "bare-5.dist-info/METADATA": b"Name: bare\nVersion: 5\n\n",
    "nothing-6.dist-info/INSTALLER": b"pip\n",
}


def image() -> tuple[Tree, dict[bytes, bytes]]:
    tree = Tree()
    files = {f"{SITE}/{name}".encode(): data for name, data in FILES.items()}
    for path, data in files.items():
        tree.put(path, Node(type="file", mode=0o644, size=len(data), sha256=hashlib.sha256(data).hexdigest()))
    return tree, files


def facts(found: Distribution) -> tuple[object, ...]:
    record = found.record
    whole = (record.outline, len(record), record.foreign, record.rows, list(record.claims()), record.paths, record.raw)
    return found.name, found.version, found.folder, found.requires, found.problem, record, *whole


def known() -> tuple[tuple[Distribution, ...], Parsed, list[bytes]]:
    """The distributions as they were read, those of the table, and the folders whose RECORD was asked for since."""
    tree, files = image()
    parsed: Parsed = {}
    found = distributions(tree, files.get, parsed)
    asked: list[bytes] = []

    def read(folder: bytes) -> bytes:
        asked.append(folder)
        return files[folder + b"/RECORD"]

    return found, load_packages(dump_packages(parsed), read, subject="table"), asked


def test_a_table_has_all_that_the_files_say() -> None:
    found, table, _ = known()
    assert len(found) == len(table) == 6
    assert [facts(item) for item in found] == [facts(item) for item in table.values()]


def test_who_reads_the_tree_with_a_table_reads_no_file() -> None:
    found, table, asked = known()
    tree, _ = image()
    again = distributions(tree, lambda path: pytest.fail(f"{path!r} is read"), table)
    assert [item.record for item in again] == [item.record for item in found]
    assert [item.problem for item in again] == [item.problem for item in found]
    assert [len(item.record) for item in again] == [len(item.record) for item in found]
    assert asked == []


def test_to_find_an_owner_only_those_are_read_that_have_files_in_the_folder() -> None:
    _, table, asked = known()
    installed = tuple(table.values())
    assert [item.name for item in owners(installed, f"{SITE}/plain/sub/b.py".encode())] == ["plain"]
    assert [item.name for item in owners(installed, b"bin/other")] == []
    assert [item.name for item in owners(installed, b"nowhere/x")] == []
    assert asked == [f"{SITE}/plain-1.dist-info".encode()]


def test_a_distribution_of_which_one_file_changed_is_not_taken_from_the_table() -> None:
    _, table, _ = known()
    tree, files = image()
    path = f"{SITE}/plain-1.dist-info/RECORD".encode()
    files[path] += b"plain/more.py,,\n"
    digest = hashlib.sha256(files[path]).hexdigest()
    tree.put(path, Node(type="file", mode=0o644, size=len(files[path]), sha256=digest))
    plain = next(item for item in distributions(tree, files.get, table) if item.name == "plain")
    assert len(plain.record) == 4


@pytest.mark.parametrize("raw", [b"", b"\xc1", msgspec.msgpack.encode([["a"]]), msgspec.msgpack.encode({})])
def test_what_is_no_table_is_refused(raw: bytes) -> None:
    with pytest.raises(ArchiveError, match="table of packages that cannot be read"):
        load_packages(raw, lambda _folder: b"", subject="table")
