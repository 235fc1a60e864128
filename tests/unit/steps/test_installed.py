"""Distributions of a workspace: read once, followed as steps change them; and which RECORD rows are compared."""

from __future__ import annotations

import hashlib
import random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from imgbuild.content import record
from imgbuild.content.changeset import BytesContent
from imgbuild.content.node import Node
from imgbuild.content.packages import Parsed, distributions, encoded_hash
from imgbuild.content.tree import Tree
from imgbuild.digest import Digest
from imgbuild.errors import StepError
from imgbuild.model.identity import Verdict
from imgbuild.steps import verify_files
from imgbuild.steps.packages import Packages
from imgbuild.steps.workspace import Attributes, Workspace

if TYPE_CHECKING:
    from imgbuild.model.identity import Finding
    from imgbuild.steps.view import View

SITE = "opt/site"
ATTRIBUTES = Attributes(mode=0o644)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def put(tree: Tree, path: str, data: bytes) -> None:
    tree.put(path.encode(), Node(type="file", mode=0o644, size=len(data), sha256=sha256(data)))


def row(path: str, data: bytes) -> str:
    return f"{path},{encoded_hash(sha256(data))},{len(data)}\n"


class Image:
    """A base whose distributions are called by letters, and what was read of it."""

    def __init__(self, names: str = "ab", modules: int = 2) -> None:
        self.tree = Tree()
        self.contents: dict[str | None, bytes] = {}
        self.read: list[str] = []
        for name in names:
            paths = [f"{name}/sub/m{number}.py" for number in range(modules)]
            for path in paths:
                self.put(f"{SITE}/{path}", path.encode())
            rows = "".join(row(path, path.encode()) for path in paths)
            self.install(name, rows + f"{name}-1.dist-info/RECORD,,\n")

    def install(self, name: str, rows: str, version: str = "1", tree: Tree | None = None) -> None:
        folder = f"{SITE}/{name}-{version}.dist-info"
        self.put(f"{folder}/METADATA", f"Name: {name}\nVersion: {version}\n\n".encode(), tree)
        self.put(f"{folder}/RECORD", rows.encode(), tree)

    def put(self, path: str, data: bytes, tree: Tree | None = None) -> None:
        self.contents[sha256(data)] = data
        put(tree or self.tree, path, data)

    def content(self, node: Node, name: str) -> bytes:
        self.read.append(name)
        return self.contents[node.sha256]

    def workspace(self) -> Workspace:
        workspace = Workspace(self.tree, self.content, epoch=1, first_layer=1, expected=None)
        workspace.begin_layer()
        return workspace

    def view(self, tree: Tree, before: Tree | None = None, parsed: Parsed | None = None) -> View:
        base = before or self.tree

        def read(tree: Tree, path: bytes) -> bytes | None:
            node = tree.get(path)
            return None if node is None else self.contents[node.sha256]

        found = SimpleNamespace(
            base_tree=base,
            tree=tree,
            installed=distributions(tree, lambda path: read(tree, path), parsed),
            installed_before=distributions(base, lambda path: read(base, path), parsed),
        )
        return cast("View", found)


def write(workspace: Workspace, path: str, data: bytes) -> None:
    workspace.write(path.encode(), BytesContent(data=data), Digest.of(data), ATTRIBUTES, where="test")


class TestPackages:
    def test_two_views_with_one_memo_read_each_file_once(self) -> None:
        image, parsed = Image(), Parsed()
        workspace = image.workspace()
        one, two = Packages(workspace, parsed), Packages(workspace, parsed)
        assert [item.name for item in one.installed()] == ["a", "b"]
        assert two.installed() == one.installed()
        assert len(image.read) == len(set(image.read)) == 4

    def test_a_rewritten_row_reads_its_own_distribution_only(self) -> None:
        image = Image("abc")
        workspace = image.workspace()
        packages = Packages(workspace)
        packages.installed()
        image.read.clear()
        write(workspace, f"{SITE}/b/sub/m0.py", b"new")
        packages.update(f"{SITE}/b/sub/m0.py".encode(), where="test")
        assert {name.split("/")[3] for name in image.read} == {"b-1.dist-info"}
        assert packages.claims(f"{SITE}/b/sub/m0.py".encode()) == (("b", sha256(b"new")),)
        assert [item.name for item in packages.installed()] == ["a", "b", "c"]

    def test_rows_of_one_record_are_rewritten_one_after_another(self) -> None:
        image = Image(modules=9)
        workspace = image.workspace()
        packages = Packages(workspace)
        for number in range(9):
            write(workspace, f"{SITE}/a/sub/m{number}.py", b"new")
            packages.update(f"{SITE}/a/sub/m{number}.py".encode(), where="test")
        expected = "".join(row(f"a/sub/m{number}.py", b"new") for number in range(9)) + "a-1.dist-info/RECORD,,\n"
        assert workspace.read(f"{SITE}/a-1.dist-info/RECORD".encode(), where="test").decode() == expected

    def test_the_row_of_a_removed_file_is_claimed_by_nobody(self) -> None:
        workspace = Image().workspace()
        packages, path = Packages(workspace), f"{SITE}/a/sub/m0.py".encode()
        workspace.remove(path, where="test")
        packages.forget(path, where="test")
        assert packages.owners(path) == ()
        write(workspace, path.decode(), b"again")
        packages.update(path, where="test")
        assert packages.owner_names(f"{SITE}/a/sub/m1.py".encode()) == ("a",)

    def test_a_view_from_before_a_change_keeps_what_it_saw(self) -> None:
        workspace, parsed = Image().workspace(), Parsed()
        original, packages = Packages(workspace, parsed), Packages(workspace, parsed)
        original.installed()
        path = f"{SITE}/a/sub/m0.py"
        write(workspace, path, b"new")
        packages.update(path.encode(), where="test")
        packages.changed()
        assert original.claims(path.encode()) == (("a", sha256(b"a/sub/m0.py")),)
        assert packages.claims(path.encode()) == (("a", sha256(b"new")),)

    def test_a_twin_reads_nothing_again_and_neither_view_follows_the_changes_of_the_other(self) -> None:
        image = Image()
        workspace = image.workspace()
        original = Packages(workspace)
        before = original.installed()
        image.read.clear()
        twin = original.twin()
        assert twin.installed() == before
        assert image.read == []
        paths = [f"{SITE}/{name}/sub/m0.py" for name in "ab"]
        for path, view in zip(paths, (twin, original), strict=True):
            write(workspace, path, b"new")
            view.update(path.encode(), where="test")
        claims = [[view.claims(path.encode())[0][1] for path in paths] for view in (twin, original)]
        assert claims == [[sha256(b"new"), sha256(b"b/sub/m0.py")], [sha256(b"a/sub/m0.py"), sha256(b"new")]]

    def test_a_record_that_a_step_wrote_itself_is_the_one_that_is_rewritten(self) -> None:
        workspace = Image().workspace()
        packages, path = Packages(workspace), f"{SITE}/a/sub/m0.py"
        packages.installed()
        write(workspace, f"{SITE}/a-1.dist-info/RECORD", b"first,,\n./a/sub/m0.py,,\n")
        write(workspace, path, b"new")
        packages.update(path.encode(), where="test")
        text = workspace.read(f"{SITE}/a-1.dist-info/RECORD".encode(), where="test").decode()
        assert text == "first,,\n" + row("./a/sub/m0.py", b"new")

    def test_a_path_of_two_distributions_is_rewritten_in_both(self) -> None:
        image = Image()
        image.install("c", "a/sub/m0.py,,\nc/own.py,,\n")
        workspace = image.workspace()
        packages = Packages(workspace)
        path = f"{SITE}/a/sub/m0.py"
        write(workspace, path, b"new")
        packages.update(path.encode(), where="test")
        for name in ("a", "c"):
            text = workspace.read(f"{SITE}/{name}-1.dist-info/RECORD".encode(), where="test").decode()
            assert row("a/sub/m0.py", b"new") in text
        assert "c/own.py,,\n" in text

    def test_a_second_of_a_name_is_refused_and_a_removed_one_does_not_count(self) -> None:
        workspace = Image().workspace()
        packages = Packages(workspace)
        packages.installed()
        with pytest.raises(StepError, match="is installed already"):
            packages.refuse_second("a", "2", SITE.encode(), where="test")
        packages.refuse_second("a", "2", b"opt/other", where="test")
        workspace.remove(f"{SITE}/a-1.dist-info".encode(), where="test")
        packages.refuse_second("a", "2", SITE.encode(), where="test")

    def test_one_that_was_put_by_another_step_is_refused_too(self) -> None:
        workspace = Image().workspace()
        packages = Packages(workspace)
        packages.installed()
        write(workspace, f"{SITE}/c-1.dist-info/METADATA", b"Name: c\nVersion: 1\n")
        with pytest.raises(StepError, match="is installed already"):
            packages.refuse_second("c", "2", SITE.encode(), where="test")


def answer(view: View) -> Finding:
    return verify_files.packages(view)[0]


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> set[bytes]:
    """The hashes that were compared, with either tree."""
    seen: set[bytes] = set()

    def decoded(encoded: bytes) -> str:
        seen.add(encoded)
        return record.decoded_hash(encoded)

    monkeypatch.setattr(verify_files, "decoded_hash", decoded)
    return seen


UNCHANGED = "and the folders of their files are the base's, unchanged, so none of them can have a new mismatch"


class TestRowsThatAreCompared:
    def test_none_where_nothing_changed(self, looked: set[bytes]) -> None:
        image = Image()
        found = answer(image.view(image.tree.fork()))
        assert (found.verdict, found.subject) == (Verdict.MATCH, "4 RECORD rows of 2 distributions")
        without = "2 rows have no hash, as a RECORD's own, and were not compared"
        assert found.reason == f"{without}; 0 were compared; the other 4 rows {UNCHANGED}"
        assert looked == set()

    @pytest.mark.parametrize("memo", [True, False])
    def test_those_of_a_folder_with_a_change_and_no_other(self, looked: set[bytes], memo: bool) -> None:
        image = Image("abc")
        tree = image.tree.fork()
        put(tree, f"{SITE}/b/sub/m1.py", b"other")
        found = answer(image.view(tree, parsed={} if memo else None))
        assert (found.verdict, found.actual) == (Verdict.DIFFERS, f"1 new: /{SITE}/b/sub/m1.py (b)")
        assert f"2 were compared; the other 4 rows {UNCHANGED}" in str(found.reason)
        assert len(looked) == 2

    def test_a_row_that_the_base_does_not_have(self, looked: set[bytes]) -> None:
        image = Image()
        tree = image.tree.fork()
        rows = row("a/sub/m0.py", b"a/sub/m0.py") + row("a/sub/m1.py", b"another")
        image.install("a", rows, tree=tree)
        found = answer(image.view(tree))
        assert (found.verdict, found.actual) == (Verdict.DIFFERS, f"1 new: /{SITE}/a/sub/m1.py (a)")
        assert "1 were compared; the other 3 rows" in str(found.reason)
        assert looked == {encoded_hash(sha256(data)).encode() for data in (b"another", b"a/sub/m1.py")}

    def test_a_row_with_another_size_only(self) -> None:
        image = Image()
        tree = image.tree.fork()
        image.install("a", row("a/sub/m0.py", b"a/sub/m0.py").replace(",11", ",12"), tree=tree)
        assert answer(image.view(tree)).actual == f"1 new: /{SITE}/a/sub/m0.py (a)"

    def test_all_of_a_distribution_that_the_base_does_not_have(self, looked: set[bytes]) -> None:
        image = Image()
        tree = image.tree.fork()
        image.install("c", row("a/sub/m0.py", b"x") + row("b/sub/m1.py", b"b/sub/m1.py"), tree=tree)
        found = answer(image.view(tree))
        assert (found.verdict, found.actual) == (Verdict.DIFFERS, f"1 new: /{SITE}/a/sub/m0.py (c)")
        assert len(looked) == 2

    def test_all_where_the_name_is_another(self) -> None:
        image = Image()
        image.install("a", row("a/sub/m0.py", b"wrong"))
        tree = image.tree.fork()
        image.put(f"{SITE}/a-1.dist-info/METADATA", b"Name: z\nVersion: 1\n", tree)
        found = answer(image.view(tree))
        assert (found.verdict, found.actual) == (Verdict.DIFFERS, f"1 new: /{SITE}/a/sub/m0.py (z)")

    def test_a_folder_that_a_link_of_the_added_layers_leads_elsewhere(self) -> None:
        image = Image()
        image.install("c", row("link/m0.py", b"a/sub/m0.py"))
        image.tree.put(f"{SITE}/link".encode(), Node(type="symlink", mode=0o777, link=b"a/sub"))
        assert answer(image.view(image.tree.fork())).verdict is Verdict.MATCH
        tree = image.tree.fork()
        tree.put(f"{SITE}/link".encode(), Node(type="symlink", mode=0o777, link=b"b/sub"))
        assert answer(image.view(tree)).actual == f"1 new: /{SITE}/link/m0.py (c)"

    def test_a_folder_behind_a_link_that_stays(self) -> None:
        image = Image()
        image.install("c", row("link/m0.py", b"a/sub/m0.py"))
        image.tree.put(f"{SITE}/link".encode(), Node(type="symlink", mode=0o777, link=b"/opt/site/a/sub"))
        tree = image.tree.fork()
        put(tree, f"{SITE}/a/sub/m0.py", b"other")
        assert answer(image.view(tree)).actual == f"2 new: /{SITE}/a/sub/m0.py (a), /{SITE}/link/m0.py (c)"

    def test_a_folder_that_is_gone_or_is_a_file(self) -> None:
        image = Image()
        for change in (
            lambda tree: tree.remove(f"{SITE}/a".encode()),
            lambda tree: put(tree, f"{SITE}/a/sub", b"file"),
        ):
            tree = image.tree.fork()
            change(tree)
            assert answer(image.view(tree)).actual == f"2 new: /{SITE}/a/sub/m0.py (a), /{SITE}/a/sub/m1.py (a)"

    def test_mismatches_of_the_base_are_counted_among_them_only(self) -> None:
        image = Image()
        put(image.tree, f"{SITE}/a/sub/m0.py", b"swapped in the base")
        put(image.tree, f"{SITE}/b/sub/m0.py", b"swapped in the base")
        tree = image.tree.fork()
        put(tree, f"{SITE}/a/sub/new.py", b"makes the folder another one")
        found = answer(image.view(tree))
        assert found.verdict is Verdict.MATCH
        assert str(found.reason).endswith("; 1 mismatches are the base's own")

    def test_a_mismatch_of_the_base_that_is_another_one_now_is_new(self) -> None:
        image = Image()
        put(image.tree, f"{SITE}/a/sub/m0.py", b"swapped in the base")
        tree = image.tree.fork()
        put(tree, f"{SITE}/a/sub/m0.py", b"swapped again")
        assert answer(image.view(tree)).actual == f"1 new: /{SITE}/a/sub/m0.py (a)"


def copied(tree: Tree) -> Tree:
    """An equal tree that shares no directory."""
    twin = Tree()
    for path, node in tree.walk():
        if not node.is_directory:
            twin.put(path, node)
    return twin


@pytest.mark.parametrize("seed", range(40))
def test_what_is_left_out_changes_no_answer(seed: int) -> None:
    choose = random.Random(seed)
    image = Image("abcd", modules=3)
    paths = [path.decode() for path, node in image.tree.walk() if path.endswith(b".py")]
    for path in choose.sample(paths, 2):
        put(image.tree, path, b"wrong in the base")
    image.tree.put(f"{SITE}/l".encode(), Node(type="symlink", mode=0o777, link=choose.choice([b"a/sub", b"b", b"/no"])))
    image.install("l", row("l/m0.py", b"a/sub/m0.py") + row("l/sub/m1.py", b"b/sub/m1.py") + row("../../x", b"x"))
    tree = image.tree.fork()
    for _ in range(choose.randrange(4)):
        change_something(choose, image, tree, paths)
    found, whole = answer(image.view(tree)), answer(image.view(copied(tree), copied(image.tree)))
    assert (found.verdict, found.subject, found.actual) == (whole.verdict, whole.subject, whole.actual)


def change_something(choose: random.Random, image: Image, tree: Tree, paths: list[str]) -> None:
    path = choose.choice(paths)
    name = choose.choice("abcdl")
    changes: list[Any] = [
        lambda: put(tree, path, choose.choice([b"new", path.removeprefix(f"{SITE}/").encode()])),
        lambda: tree.remove(path.encode()),
        lambda: tree.remove(path.rpartition("/")[0].encode()),
        lambda: image.install(name, row("a/sub/m0.py", b"a/sub/m0.py") + row("b/sub/m9.py", b"9"), tree=tree),
        lambda: image.install(name, row("a/sub/m0.py", b"0"), version=choose.choice("12"), tree=tree),
        lambda: tree.put(f"{SITE}/l".encode(), Node(type="symlink", mode=0o777, link=choose.choice([b"c/sub", b"b"]))),
        lambda: put(tree, "x", b"x"),
    ]
    choose.choice(changes)()
