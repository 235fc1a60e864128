from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from imgbuild.config import Limits
from imgbuild.content.inventory import Entry, Inventory
from imgbuild.content.node import IMPLICIT, Node
from imgbuild.content.tree import Tree
from imgbuild.digest import Digest
from imgbuild.errors import ArchiveError

if TYPE_CHECKING:
    from collections.abc import Callable

OPAQUE = ".wh..wh..opq"


def entry(path: str, kind: str = "file", text: str = "", **other: Any) -> Entry:
    sha256 = Digest.of(text.encode()).encoded if kind == "file" else None
    return Entry(path=path, type=kind, sha256=sha256, size=len(text), **{"mode": 0o644, **other})


def folder(path: str, **other: Any) -> Entry:
    return entry(path, "directory", **{"mode": 0o755, "mtime": 5, **other})


def link(path: str, target: str) -> Entry:
    return entry(path, "symlink", link=target, mode=0o777)


def hard_link(path: str, target: str) -> Entry:
    return entry(path, "hardlink", link=target)


def merged(*layers: list[Entry], limits: Limits | None = None) -> Tree:
    tree = Tree(limits=limits or Limits())
    for index, entries in enumerate(layers):
        tree.apply(Inventory(diff_id=Digest.of(b""), uncompressed_size=0, entries=tuple(entries)), index)
    return tree


def paths(tree: Tree) -> list[str]:
    return [path.decode() for path, _ in tree.walk()]


def node(tree: Tree, path: str) -> Node:
    found = tree.get(path.encode())
    assert found is not None
    return found


def text(tree: Tree, path: str, *candidates: str) -> str:
    """Which of the candidates a file holds."""
    return next(one for one in candidates if Digest.of(one.encode()).encoded == node(tree, path).sha256)


def marker_first(marker: Entry, *others: Entry) -> list[Entry]:
    return [marker, *others]


def marker_last(marker: Entry, *others: Entry) -> list[Entry]:
    return [*others, marker]


@pytest.mark.parametrize("order", [marker_first, marker_last])
class TestMarkersHideLowerLayersOnly:
    def test_C01_an_opaque_marker_keeps_what_its_own_layer_has_wherever_it_stands(
        self, order: Callable[..., list[Entry]]
    ) -> None:
        upper = order(entry(f"d/{OPAQUE}"), entry("d/new"), entry("d/both", text="upper"))
        tree = merged([folder("d"), entry("d/old"), entry("d/both", text="lower")], upper)
        assert paths(tree) == ["d", "d/both", "d/new"]
        assert text(tree, "d/both", "lower", "upper") == "upper"

    def test_C01_a_whiteout_keeps_a_file_of_its_own_layer(self, order: Callable[..., list[Entry]]) -> None:
        tree = merged([entry("a", text="lower")], order(entry(".wh.a"), entry("a", text="upper")))
        assert text(tree, "a", "lower", "upper") == "upper"

    def test_a_whiteout_and_a_directory_of_the_same_name_give_an_empty_directory(
        self, order: Callable[..., list[Entry]]
    ) -> None:
        tree = merged([folder("d"), entry("d/old")], order(entry(".wh.d"), folder("d", mode=0o700)))
        assert paths(tree) == ["d"]
        assert node(tree, "d").mode == 0o700

    def test_a_whiteout_of_a_directory_that_the_layer_fills_again_leaves_only_the_new_files(
        self, order: Callable[..., list[Entry]]
    ) -> None:
        tree = merged([folder("d", mode=0o700), entry("d/old")], order(entry(".wh.d"), entry("d/new")))
        assert paths(tree) == ["d", "d/new"]
        assert node(tree, "d").layer == IMPLICIT

    def test_C08_a_marker_below_a_link_hides_in_the_target(self, order: Callable[..., list[Entry]]) -> None:
        base = [folder("usr/bin"), entry("usr/bin/a"), entry("usr/bin/b"), link("bin", "usr/bin")]
        tree = merged(base, order(entry("bin/.wh.a"), entry("bin/c")))
        assert paths(tree) == ["bin", "usr", "usr/bin", "usr/bin/b", "usr/bin/c"]

    def test_a_marker_below_a_link_that_the_layer_replaces_by_a_directory_does_not_touch_the_target(
        self, order: Callable[..., list[Entry]]
    ) -> None:
        """overlayfs marks a directory that took the place of something else as opaque, and engines export that."""
        base = [folder("usr/bin"), entry("usr/bin/a"), link("bin", "usr/bin")]
        tree = merged(base, [*order(entry(f"bin/{OPAQUE}"), folder("bin")), entry("bin/c")])
        assert paths(tree) == ["bin", "bin/c", "usr", "usr/bin", "usr/bin/a"]

    def test_a_marker_below_a_link_that_is_hidden_itself_does_not_touch_the_target(
        self, order: Callable[..., list[Entry]]
    ) -> None:
        base = [folder("usr/bin"), entry("usr/bin/a"), link("bin", "usr/bin")]
        tree = merged(base, order(entry("bin/.wh.a"), entry(".wh.bin")))
        assert paths(tree) == ["usr", "usr/bin", "usr/bin/a"]


def test_C02_the_opaque_marker_is_no_whiteout_of_a_file_named_wh_opq() -> None:
    tree = merged([folder("d"), entry("d/a"), folder("d/e"), entry("d/e/f"), entry("g")], [entry(f"d/{OPAQUE}")])
    assert paths(tree) == ["d", "g"]


def test_an_opaque_marker_at_the_root_hides_everything_below() -> None:
    tree = merged([folder("d"), entry("d/a"), entry("b")], [entry("c"), entry(OPAQUE)])
    assert paths(tree) == ["c"]


@pytest.mark.parametrize("path", ["d/.wh..wh.plnk", ".wh..wh.aufs"])
def test_reserved_names_that_are_no_markers_are_ignored_with_a_note(path: str) -> None:
    tree = merged([folder("d"), entry("d/a")], [entry(path)])
    assert paths(tree) == ["d", "d/a"]
    assert tree.notes == [f"layer 1: {path!r} is no marker that we know and is ignored"]


BELOW_MARKERS = ["d/.wh.a/b", ".wh.a/b", ".wh.a/b/c", "d/.wh..wh.plnk/77.1", f"{OPAQUE}/a", ".wh./a", ".wh.a/.wh.b"]


@pytest.mark.parametrize("path", BELOW_MARKERS)
@pytest.mark.parametrize("kind", ["file", "directory", "symlink"])
def test_an_entry_below_a_marker_is_refused_since_some_engines_unpack_it(path: str, kind: str) -> None:
    with pytest.raises(ArchiveError, match="below a whiteout") as caught:
        merged([folder("d"), entry("d/a")], [entry(path, kind)])
    assert caught.value.actual == path


@pytest.mark.parametrize("name", ["trusted.overlay.opaque", "user.overlay.redirect", "user.fuseoverlayfs.opaque"])
@pytest.mark.parametrize("path", ["", "d"])
def test_a_mark_of_overlayfs_in_the_attributes_is_refused(path: str, name: str) -> None:
    with pytest.raises(ArchiveError, match="mark of overlayfs") as caught:
        merged([folder(path, xattrs=((name, b"y"),))])
    assert caught.value.actual == name


def test_a_device_that_hides_a_name_in_overlayfs_is_refused() -> None:
    with pytest.raises(ArchiveError, match="mark of overlayfs"):
        merged([entry("d/a", "character", device=(0, 0))])


def test_other_attributes_and_devices_stay() -> None:
    attributes = (("trusted.overlays", b"y"), ("user.overlay", b"y"), ("security.capability", b"y"))
    devices = [entry("a", "character", device=(0, 1)), entry("b", "block", device=(0, 0))]
    tree = merged([folder("d", xattrs=attributes), *devices])
    assert node(tree, "d").xattrs == attributes
    assert paths(tree) == ["a", "b", "d"]


def test_a_name_that_only_holds_the_prefix_is_an_ordinary_name() -> None:
    assert paths(merged([entry("a.wh.b"), entry("c/d.wh.e")])) == ["a.wh.b", "c", "c/d.wh.e"]


@pytest.mark.parametrize("name", [".wh.", ".wh..", ".wh..."])
def test_a_whiteout_without_a_name_is_refused(name: str) -> None:
    with pytest.raises(ArchiveError, match="has a whiteout without a name"):
        merged([folder("d"), entry("d/a")], [entry(f"d/{name}")])


def test_a_whiteout_of_nothing_does_nothing_and_leaves_a_note() -> None:
    tree = merged([folder("d"), entry("f")], [entry("d/.wh.gone"), entry("none/.wh.x"), entry("f/.wh.x")])
    assert paths(tree) == ["d", "f"]
    assert len(tree.notes) == 3


def test_a_whiteout_of_a_link_leaves_its_target() -> None:
    tree = merged([folder("d"), entry("d/a"), link("l", "d")], [entry(".wh.l")])
    assert paths(tree) == ["d", "d/a"]


def test_C03_other_names_of_an_inode_keep_the_old_bytes_when_one_is_rewritten() -> None:
    base = [entry("t1", text="old"), hard_link("t2", "t1"), hard_link("t3", "t2")]
    tree = merged(base, [entry("t1", text="new")])
    assert [text(tree, name, "old", "new") for name in ("t1", "t2", "t3")] == ["new", "old", "old"]
    assert node(tree, "t2") is node(tree, "t3")


def test_C03_other_names_of_an_inode_keep_the_bytes_when_one_is_removed() -> None:
    tree = merged([entry("t1", text="old"), hard_link("t2", "t1")], [entry(".wh.t1")])
    assert paths(tree) == ["t2"]
    assert (text(tree, "t2", "old"), node(tree, "t2").source) == ("old", b"t1")


def test_C04_a_hard_link_whose_parents_have_no_entry_gets_them() -> None:
    tree = merged([entry("a", text="x"), hard_link("p/q/b", "a")])
    assert paths(tree) == ["a", "p", "p/q", "p/q/b"]
    assert node(tree, "p/q/b") is node(tree, "a")


def test_C05_a_hard_link_is_bound_to_the_bytes_that_its_target_has_when_the_layer_is_read() -> None:
    tree = merged(
        [entry("a", text="one"), hard_link("b", "a")],
        [entry("a", text="two"), hard_link("c", "a")],
        [entry(".wh.a"), entry("a", "symlink", link="a")],
    )
    assert [text(tree, name, "one", "two") for name in ("b", "c")] == ["one", "two"]
    assert (node(tree, "b").size, node(tree, "b").layer, node(tree, "c").layer) == (3, 0, 1)


def test_C05_a_hard_link_to_a_path_that_is_rewritten_in_the_same_layer_keeps_the_first_bytes() -> None:
    tree = merged([entry("a", text="one"), hard_link("b", "a"), entry("a", text="two")])
    assert [text(tree, name, "one", "two") for name in ("a", "b")] == ["two", "one"]


def test_C06_a_hard_link_to_a_file_of_a_lower_layer_is_found_through_the_merged_view() -> None:
    tree = merged([folder("usr/lib"), entry("usr/lib/a", text="x"), link("lib", "usr/lib")], [hard_link("b", "lib/a")])
    assert node(tree, "b") is node(tree, "usr/lib/a")


@pytest.mark.parametrize("target", ["gone", "d", "d/gone", "loop/a", "later"])
def test_C06_a_hard_link_to_what_is_not_a_file_is_refused(target: str) -> None:
    with pytest.raises(ArchiveError, match="has a hard link to what is not a file") as caught:
        merged([folder("d"), link("loop", "loop")], [hard_link("b", target), entry("later")])
    assert (caught.value.subject, caught.value.where, caught.value.actual) == ("layer 1", "b", repr(target.encode()))


def test_C06_a_hard_link_to_a_file_that_its_own_layer_hides_is_refused() -> None:
    with pytest.raises(ArchiveError, match="hard link"):
        merged([entry("a")], [hard_link("b", "a"), entry(".wh.a")])


def test_a_hard_link_to_a_symbolic_link_is_that_link() -> None:
    tree = merged([entry("a"), link("l", "a"), hard_link("b", "l")])
    assert (node(tree, "b").type, node(tree, "b").link) == ("symlink", b"a")


def test_C07_a_file_over_a_link_replaces_the_link_and_never_writes_through_it() -> None:
    tree = merged(
        [entry("real", text="real"), link("l", "real"), link("out", "../../etc/passwd")], [entry("l"), entry("out")]
    )
    assert paths(tree) == ["l", "out", "real"]
    assert node(tree, "l").type == node(tree, "out").type == "file"
    assert text(tree, "real", "real") == "real"


@pytest.mark.parametrize("upper", [entry("d"), link("d", "other"), entry("d", "fifo"), hard_link("d", "other/f")])
def test_anything_over_a_directory_takes_its_children_away(upper: Entry) -> None:
    tree = merged([folder("d/e"), entry("d/e/f"), entry("other/f")], [upper])
    assert paths(tree) == ["d", "other", "other/f"]


def test_a_directory_over_a_directory_takes_the_metadata_and_keeps_the_children() -> None:
    tree = merged(
        [folder("d", mode=0o700, uid=1, xattrs=(("user.a", b"1"),)), entry("d/a")],
        [folder("d", mode=0o1777, gid=2, mtime=9)],
    )
    found = node(tree, "d")
    assert (found.mode, found.uid, found.gid, found.mtime, found.xattrs, found.layer) == (0o1777, 0, 2, 9, (), 1)
    assert paths(tree) == ["d", "d/a"]


def test_a_directory_over_a_link_to_a_directory_is_a_new_empty_one() -> None:
    tree = merged([folder("usr/bin"), entry("usr/bin/a"), link("bin", "usr/bin")], [folder("bin"), entry("bin/b")])
    assert paths(tree) == ["bin", "bin/b", "usr", "usr/bin", "usr/bin/a"]


def test_the_root_takes_metadata_like_any_directory() -> None:
    tree = merged([entry("a")], [folder("", mode=0o711, mtime=8)])
    assert (tree.root.mode, tree.root.mtime, tree.get(b"") is tree.root) == (0o711, 8, True)
    assert paths(tree) == ["a"]


def test_C08_an_entry_below_a_link_lands_in_its_target_and_the_link_stays() -> None:
    base = [folder("usr", mode=0o750), folder("usr/bin", mode=0o700), link("bin", "usr/bin")]
    tree = merged(base, [entry("bin/foo", text="x"), folder("bin/sub"), entry("bin/sub/deep")])
    assert paths(tree) == ["bin", "usr", "usr/bin", "usr/bin/foo", "usr/bin/sub", "usr/bin/sub/deep"]
    assert (node(tree, "bin").type, node(tree, "usr/bin").mode) == ("symlink", 0o700)
    assert node(tree, "usr/bin/foo").source == b"bin/foo"


@pytest.mark.parametrize("target", ["run/later", "/run/later", "run/../run/later", "../../run/./later/"])
def test_C08_an_entry_below_a_link_to_nothing_makes_the_target_and_keeps_the_link(target: str) -> None:
    tree = merged([link("l", target)], [entry("l/a")])
    assert paths(tree) == ["l", "run", "run/later", "run/later/a"]
    assert node(tree, "l").type == "symlink"


@pytest.mark.parametrize("loop", [[link("l", "l")], [link("l", "m/x"), link("m", "l")], [link("l", "./x/../l")]])
def test_an_entry_below_links_that_never_end_is_refused(loop: list[Entry]) -> None:
    with pytest.raises(ArchiveError, match="lead in a circle or too far; expected at most 40 links"):
        merged(loop, [folder("x"), entry("l/a")])


def test_an_entry_below_a_file_makes_it_a_directory_and_leaves_a_note() -> None:
    tree = merged([entry("a")], [entry("a/b")])
    assert paths(tree) == ["a", "a/b"]
    assert tree.notes == ["b'a' was a file and is a directory now, since entries are below it"]


def test_C09_omitted_parents_keep_the_metadata_of_the_base_and_new_ones_are_0755_of_root() -> None:
    tree = merged([folder("d", mode=0o700, uid=7, gid=8, mtime=9)], [entry("d/new/a")])
    found, made = node(tree, "d"), node(tree, "d/new")
    assert (found.mode, found.uid, found.gid, found.mtime, found.layer) == (0o700, 7, 8, 9, 0)
    assert (made.mode, made.uid, made.gid, made.layer) == (0o755, 0, 0, IMPLICIT)


def test_C09_a_parent_that_is_listed_after_its_children_takes_the_metadata_then() -> None:
    tree = merged([entry("d/a"), folder("d", mode=0o700)])
    assert (node(tree, "d").mode, node(tree, "d").layer, paths(tree)) == (0o700, 0, ["d", "d/a"])


def test_C10_of_two_entries_for_one_path_the_last_one_counts() -> None:
    tree = merged([entry("a", text="one"), entry("a", text="two", mode=0o600)])
    assert (text(tree, "a", "one", "two"), node(tree, "a").mode) == ("two", 0o600)
    assert paths(merged([folder("a"), entry("a/b"), link("a", "c")])) == ["a"]


def test_C11_the_same_layer_twice_is_applied_twice() -> None:
    layer = [entry(".wh.a"), entry("b", text="x"), hard_link("c", "b"), folder("d"), entry(f"d/{OPAQUE}"), entry("d/e")]
    tree = merged([entry("a")], layer, [entry("a"), entry("d/f"), entry("b", text="y")], layer)
    assert paths(tree) == ["b", "c", "d", "d/e"]
    assert node(tree, "b") is node(tree, "c")
    assert node(tree, "b").layer == 3


class TestResolve:
    TREE = merged(
        [
            folder("usr/lib"),
            entry("usr/lib/a"),
            link("lib", "usr/lib"),
            link("abs", "/usr/lib"),
            link("up", "../../../usr/./lib//"),
            link("usr/root", "/"),
            link("dangling", "usr/none/a"),
            link("loop", "loop"),
            link("ping", "pong"),
            link("pong", "ping/x"),
            link("filelink", "usr/lib/a"),
        ]
    )

    @pytest.mark.parametrize(
        ("path", "real"),
        [
            ("", ""),
            ("/usr//lib/.", "usr/lib"),
            ("lib/a", "usr/lib/a"),
            ("abs/a", "usr/lib/a"),
            ("up/a", "usr/lib/a"),
            ("filelink", "usr/lib/a"),
            ("usr/root/usr/root/lib/a", "usr/lib/a"),
            ("..", ""),
            ("../../usr/lib/../lib/a", "usr/lib/a"),
            # `..` is taken at the target of the link, as Linux does, not at the link.
            ("lib/../lib/a", "usr/lib/a"),
            ("abs/..", "usr"),
        ],
    )
    def test_links_are_followed_inside_the_image(self, path: str, real: str) -> None:
        found = self.TREE.resolve(path.encode())
        assert found is not None
        assert found[0] == real.encode()
        assert found[1] is (self.TREE.get(real.encode()))

    @pytest.mark.parametrize(
        "path",
        [
            "none",
            "lib/none",
            "dangling",
            "loop",
            "loop/x",
            "ping",
            "pong/..",
            "usr/lib/a/b",
            "usr/lib/a/..",
            "filelink/../a",
            "usr/none/../lib",
        ],
    )
    def test_nothing_is_found_where_linux_would_find_nothing(self, path: str) -> None:
        assert self.TREE.resolve(path.encode()) is None

    def test_get_does_not_follow_a_link_at_the_end(self) -> None:
        assert node(self.TREE, "lib").type == "symlink"
        assert node(self.TREE, "usr/root/lib").type == "symlink"
        assert self.TREE.get(b"loop/x") is None
        assert self.TREE.get(b"usr/lib/a/b") is None

    @pytest.mark.parametrize(("links", "found"), [(40, True), (41, False)])
    def test_forty_links_are_followed_and_no_more(self, links: int, found: bool) -> None:
        chain = [link(f"l{number}", f"l{number + 1}") for number in range(links)]
        tree = merged([*chain, entry(f"l{links}")])
        assert (tree.resolve(b"l0") is not None) is found

    @pytest.mark.parametrize(("links", "refused"), [(40, False), (41, True)])
    def test_forty_links_are_written_through_and_no_more(self, links: int, refused: bool) -> None:
        chain = [*(link(f"l{number}", f"l{number + 1}") for number in range(links)), folder(f"l{links}")]
        if refused:
            with pytest.raises(ArchiveError, match="too far"):
                merged(chain, [entry("l0/a")])
        else:
            assert merged(chain, [entry("l0/a")]).get(f"l{links}/a".encode()) is not None


def test_put_and_remove_go_through_links_of_the_parents() -> None:
    tree = merged([folder("usr/bin"), link("bin", "usr/bin")])
    tree.put(b"bin/a", Node(type="file", mode=0o755))
    assert paths(tree) == ["bin", "usr", "usr/bin", "usr/bin/a"]
    tree.remove(b"bin/a")
    tree.remove(b"bin/a")
    tree.remove(b"none/a")
    assert paths(tree) == ["bin", "usr", "usr/bin"]


def test_walk_gives_parents_first_and_names_in_order_and_can_start_anywhere() -> None:
    tree = merged([entry("b/c"), entry("b-/d"), entry("a"), link("l", "b")])
    assert paths(tree) == ["a", "b", "b/c", "b-", "b-/d", "l"]
    assert [path for path, _ in tree.walk(b"b")] == [b"b/c"]
    assert [path for path, _ in tree.walk(b"none")] == [path for path, _ in tree.walk(b"l")] == []


def test_names_are_bytes() -> None:
    raw = Entry(path="caf\\xe9/x", raw_path=b"caf\xe9/x", type="file", mode=0o644)
    tree = merged([raw, Entry(path="l", type="symlink", link="caf\\xe9", raw_link=b"caf\xe9", mode=0o777)])
    found = tree.resolve(b"l/x")
    assert found is not None
    assert found[0] == b"caf\xe9/x"


def test_a_very_deep_tree_is_walked_without_recursion() -> None:
    deep = "/".join(["d"] * 2_000)
    tree = merged([entry(deep)])
    assert len(paths(tree)) == 2_000
