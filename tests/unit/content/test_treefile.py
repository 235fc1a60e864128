"""The merged view as a file: the same tree, read one directory at a time, the same bytes for the same tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from imgbuild.content import treefile
from imgbuild.content.inventory import SYMBOL_FAMILIES, ElfRecord, Entry, Inventory
from imgbuild.content.node import DIST_INFO, ELF, LINK, Node
from imgbuild.content.tree import Tree
from imgbuild.content.treefile import SCHEMA, TreeFile, dump_tree
from imgbuild.digest import Digest
from imgbuild.errors import ArchiveError

from tests.support.layer_stacks import inventory, stacks

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.reference_tree import Item

INVENTORIES = (Digest.of(b"first"), Digest.of(b"second"))
PACKAGES = b"a table"
FACTS = tuple(field for field in Node.__struct_fields__ if field != "below")


def merged(*entries: Entry) -> Tree:
    tree = Tree()
    tree.apply(Inventory(diff_id=Digest.of(b""), uncompressed_size=0, entries=entries), 0)
    return tree


def facts(node: Node) -> tuple[object, ...]:
    return tuple(getattr(node, name) for name in FACTS)


def listed(tree: Tree) -> dict[bytes, tuple[object, ...]]:
    return {path: facts(node) for path, node in [(b"", tree.root), *tree.walk()]}


def dumped(tree: Tree) -> bytes:
    return b"".join(dump_tree(tree, INVENTORIES, PACKAGES))


def opened(raw: bytes) -> TreeFile:
    return TreeFile(raw, subject="tree")


def file(path: str, **other: object) -> Entry:
    return Entry(path=path, type="file", mode=0o644, sha256=Digest.of(path.encode()).encoded, **other)  # type: ignore[arg-type]


def image() -> Tree:
    """One of everything."""
    return merged(
        Entry(path="", type="directory", mode=0o711, uid=7),
        Entry(path="empty", type="directory", mode=0o700, mtime=5),
        file("usr/lib/libx.so", size=9, elf=ElfRecord(machine="aarch64", soname="libx.so", exports=("ncclA",))),
        file("usr/lib/broken.so", elf_problem="is cut"),
        file("usr/share/doc/x/copyright", xattrs=(("user.a", b"\0\xff"),)),
        file("odd", raw_path=b"opt/\xff"),
        Entry(path="usr/bin/x", type="symlink", mode=0o777, link="../lib/libx.so"),
        Entry(path="dev/null", type="character", mode=0o666, device=(1, 3)),
        Entry(path="again", type="hardlink", mode=0o644, link="usr/lib/libx.so"),
        file("site/a-1.dist-info/METADATA"),
        file("plain/a/b/c/d"),
    )


@settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(stack=stacks(), changes=stacks())
def test_a_tree_that_was_read_from_its_file_is_that_tree_also_under_changes(
    stack: list[list[Item]], changes: list[list[Item]]
) -> None:
    tree = Tree()
    try:
        for index, layer in enumerate(stack):
            tree.apply(inventory(layer), index)
    except ArchiveError:
        pass
    raw = dumped(tree)
    file = opened(raw)
    base = file.tree()
    assert dumped(base) == raw
    assert listed(base) == listed(tree)
    one, other = opened(raw).tree(), tree.fork()
    twin = one.fork()
    for index, layer in enumerate(changes):
        outcomes = []
        for changed in (one, other):
            try:
                changed.apply(inventory(layer), 100 + index)
                outcomes.append("")
            except ArchiveError as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1]
    assert listed(one) == listed(other)
    assert listed(twin) == listed(base) == listed(tree) == listed(file.tree())


def test_all_facts_of_all_kinds_come_back() -> None:
    tree = image()
    file = opened(dumped(tree))
    assert listed(file.tree()) == listed(tree)
    assert file.inventories == INVENTORIES
    assert file.packages == PACKAGES


def test_the_same_tree_gives_the_same_bytes_in_whatever_order_it_was_made() -> None:
    entries = [file(f"d{number % 7}/f{number}") for number in range(50)]
    assert dumped(merged(*entries)) == dumped(merged(*reversed(entries)))
    assert dumped(merged(*entries)) != dumped(merged(*entries[1:]))


def test_the_bytes_of_the_format_do_not_change() -> None:
    assert str(Digest.of(dumped(image()))) == GOLDEN


GOLDEN = "sha256:a846503c44f8e7046ce0f225b822a4a8918c208aef08d9741607e70bb1bf4d38"


def watched(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The directories that are read from here on."""
    read: list[bytes] = []
    honest = TreeFile._decode

    def watch(self: TreeFile, path: bytes, offset: int, length: int) -> Any:
        read.append(path)
        return honest(self, path, offset, length)

    monkeypatch.setattr(TreeFile, "_decode", watch)
    return read


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("marks", [ELF, LINK, DIST_INFO, ELF | LINK, LINK | DIST_INFO])
def test_a_search_finds_what_a_walk_finds_and_reads_no_directory_without_it(
    marks: int, keep: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = watched(monkeypatch)
    found = [path for path, _ in opened(dumped(image())).tree().marked(marks, keep=keep)]
    assert found == [path for path, _ in image().marked(marks)]
    assert found
    assert len(read) == len(set(read))
    assert not any(path.startswith((b"plain", b"empty", b"dev")) for path in read)
    assert (b"usr/bin" in read) == bool(marks & LINK)
    assert (b"usr/lib" in read) == bool(marks & ELF)
    assert b"usr/share" not in read


@pytest.mark.parametrize("marks", [ELF, LINK, DIST_INFO])
def test_a_search_that_keeps_nothing_gives_the_same_nodes_and_leaves_the_tree_unread(
    marks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = dumped(image())
    tree = opened(raw).tree()
    assert tree.get(b"usr/bin") is not None
    read = watched(monkeypatch)
    first = [(path, facts(node)) for path, node in tree.marked(marks, keep=False)]
    again = list(read)
    assert first == [(path, facts(node)) for path, node in opened(raw).tree().marked(marks)]
    del read[:]
    assert [path for path, _ in tree.marked(marks, keep=False)] == [path for path, _ in first]
    assert read == again
    assert b"usr" not in read
    assert read
    assert b"usr/bin" not in read or marks == LINK


def test_a_search_that_keeps_nothing_sees_what_was_put_on_the_tree() -> None:
    tree = opened(dumped(image())).tree()
    whole = image()
    for one in (tree, whole):
        one.put(b"plain/new", Node(type="symlink", mode=0o777, link=b"x"))
        one.remove(b"usr/bin")
    assert [path for path, _ in tree.marked(LINK, keep=False)] == [path for path, _ in whole.marked(LINK)]


def test_looking_up_one_path_reads_only_the_directories_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = opened(dumped(image())).tree()
    read = watched(monkeypatch)
    assert tree.get(b"plain/a/b") is not None
    assert tree.get(b"plain/a/b") is not None
    assert read == [b"", b"plain", b"plain/a"]


def other_header(raw: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    start = int.from_bytes(raw[-8:], "big")
    header = msgspec.msgpack.decode(raw[start:-8])
    change(header)
    return raw[:start] + msgspec.msgpack.encode(header) + raw[-8:]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda raw: raw[:0], f"is no tree file of the schema {SCHEMA}"),
        (lambda raw: raw.replace(b"/v4\n", b"/v3\n", 1), f"is no tree file of the schema {SCHEMA}"),
        (lambda raw: raw[:-1], "is damaged"),
        (lambda raw: raw[:-8] + b"\xff" * 8, "is damaged"),
        (lambda raw: raw[:-8] + bytes(8), "is damaged"),
        (lambda raw: other_header(raw, lambda header: header.pop("root")), "is damaged"),
        (lambda raw: other_header(raw, lambda header: header.update(inventories=["x"])), "is damaged"),
        (lambda raw: other_header(raw, lambda header: header["root"].__setitem__(1, "file")), "is damaged"),
        (lambda raw: other_header(raw, lambda header: header.update(families=["cuda"])), "was made for other symbols"),
    ],
    ids=["empty", "other version", "cut", "beyond", "before", "no root", "no digest", "a file", "other symbols"],
)
def test_what_is_no_tree_file_is_refused_at_once(change: Callable[[bytes], bytes], says: str) -> None:
    with pytest.raises(ArchiveError, match=says) as caught:
        opened(change(dumped(image())))
    assert "made anew" in str(caught.value.hint)


@pytest.mark.parametrize("block", [(10**9, 5, 7), (0, 10**9, 7), (-1, 5, 7), (0, -5, 7), (3, 9, 7)])
def test_a_block_that_is_not_one_of_the_file_is_refused_when_it_is_asked_for(
    block: tuple[int, int, int],
) -> None:
    def change(header: dict[str, Any]) -> None:
        header["root"][9] = block

    with pytest.raises(ArchiveError, match="is damaged"):
        opened(other_header(dumped(image()), change)).tree().get(b"usr")


def test_a_directory_that_holds_itself_is_refused_and_never_walked_for_ever() -> None:
    row = treefile._Row(name=b"a", type="directory", mode=0o755, layer=0, block=(17, 0, 7))
    size = len(msgspec.msgpack.encode([row]))
    looped = msgspec.structs.replace(row, block=(17, size, 7))
    assert len(msgspec.msgpack.encode([looped])) == size
    root = msgspec.structs.replace(looped, name=b"")
    header = {"families": SYMBOL_FAMILIES, "inventories": [], "packages": (0, 0), "root": root}
    head = f"{SCHEMA}\n".encode()
    assert len(head) == 17
    raw = head + msgspec.msgpack.encode([looped]) + msgspec.msgpack.encode(header) + (17 + size).to_bytes(8, "big")
    with pytest.raises(ArchiveError, match="is damaged"):
        list(opened(raw).tree().walk())
    with pytest.raises(ArchiveError, match="is damaged"):
        list(opened(raw).tree().marked(ELF, keep=False))


def test_what_a_fork_makes_and_drops_never_gives_it_what_the_tree_below_reads_later() -> None:
    entries = [file(f"t{number}/s{inner}/f") for number in range(4) for inner in range(12)]
    raw = dumped(merged(*entries))
    for _ in range(20):
        base = opened(raw).tree()
        before = listed(opened(raw).tree())
        fork = base.fork()
        for number in range(60):
            fork.put(b"tmp/d%d/x" % number, Node(type="file", mode=0o600, sha256="0" * 64))
        fork.remove(b"tmp")
        for number in range(4):
            for inner in range(12):
                fork.put(b"t%d/s%d/f" % (number, inner), Node(type="file", mode=0o600, sha256="1" * 64))
        assert listed(base) == before


def test_a_file_whose_directories_hold_each_other_is_refused_after_a_bounded_time() -> None:
    head = f"{SCHEMA}\n".encode()
    data, block = head, None
    for _ in range(40):
        rows = [treefile._Row(name=name, type="directory", mode=0, layer=0, block=block) for name in (b"a", b"b")]
        body = msgspec.msgpack.encode(rows)
        block = (len(data), len(body), 7)
        data += body
    root = treefile._Row(name=b"", type="directory", mode=0, layer=0, block=block)
    header = {"families": SYMBOL_FAMILIES, "inventories": [], "packages": (0, 0), "root": root}
    raw = data + msgspec.msgpack.encode(header) + len(data).to_bytes(8, "big")
    for keep in (True, False):
        with pytest.raises(ArchiveError, match="is damaged"):
            list(opened(raw).tree().marked(ELF, keep=keep))
