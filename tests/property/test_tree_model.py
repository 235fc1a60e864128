from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from imgbuild.content.node import DIST_INFO, ELF, IMPLICIT, LINK, marks_of
from imgbuild.content.tree import Tree
from imgbuild.errors import ArchiveError

from tests.support.layer_stacks import inventory, stacks
from tests.support.reference_tree import Item, ReferenceTree, Refused

if TYPE_CHECKING:
    from collections.abc import Hashable

    from imgbuild.content.node import Node


def merged(stack: list[list[Item]]) -> Tree:
    tree = Tree()
    for index, layer in enumerate(stack):
        tree.apply(inventory(layer), index)
    return tree


def modelled(stack: list[list[Item]]) -> ReferenceTree:
    model = ReferenceTree()
    for layer in stack:
        model.apply(layer)
    return model


def comparable(node: Node) -> tuple[object, ...]:
    if node.layer == IMPLICIT:
        return (node.type,)
    owner = (node.mode, node.uid, node.gid, node.mtime)
    return (node.type, *owner, node.size, node.sha256, node.link, node.xattrs, node.device)


def groups(keys: dict[bytes, Hashable]) -> set[frozenset[bytes]]:
    """Which paths have the same key."""
    found: dict[Hashable, set[bytes]] = {}
    for path, key in keys.items():
        found.setdefault(key, set()).add(path)
    return {frozenset(paths) for paths in found.values()}


@settings(max_examples=700, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(stack=stacks())
def test_a_stack_gives_the_tree_that_the_specification_says_sentence_by_sentence(stack: list[list[Item]]) -> None:
    try:
        model = modelled(stack)
    except Refused:
        with pytest.raises(ArchiveError):
            merged(stack)
        return
    tree = merged(stack)
    ours = {b"": tree.root, **dict(tree.walk())}
    theirs = {b"/".join(path): facts for path, facts in model.paths.items()}
    assert {path: comparable(node) for path, node in ours.items()} == {
        path: facts.comparable() for path, facts in theirs.items()
    }
    assert groups({path: id(node) for path, node in ours.items()}) == groups(
        {path: facts.inode for path, facts in theirs.items()}
    )


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(stack=stacks())
def test_every_path_resolves_to_what_the_model_finds(stack: list[list[Item]]) -> None:
    try:
        model = modelled(stack)
    except Refused:
        return
    tree = merged(stack)
    for path in {item.path for layer in stack for item in layer} | {(b"a", b"..", b"b"), (b"b", b"c", b"..", b"..")}:
        found = tree.resolve(b"/".join(path))
        real = model.real(path)
        assert (None if found is None else found[0]) == (None if real is None else b"/".join(real))


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(stack=stacks(), data=st.data())
def test_both_refuse_an_entry_below_a_marker_wherever_it_stands(stack: list[list[Item]], data: st.DataObject) -> None:
    number = data.draw(st.integers(0, len(stack) - 1))
    place = data.draw(st.integers(0, len(stack[number])))
    path = data.draw(st.sampled_from([(b".wh.a", b"b"), (b"a", b".wh.b", b"c"), (b".wh..wh..opq", b"a", b".wh.b")]))
    item = Item(path=path, type=data.draw(st.sampled_from(["file", "directory"])))
    layer = [*stack[number][:place], item, *stack[number][place:]]
    changed = [*stack[:number], layer, *stack[number + 1 :]]
    with pytest.raises(Refused):
        modelled(changed)
    with pytest.raises(ArchiveError):
        merged(changed)


def listed(tree: Tree) -> dict[bytes, tuple[object, ...]]:
    return {path: comparable(node) for path, node in [(b"", tree.root), *tree.walk()]}


def apply_as_far_as_possible(tree: Tree, stack: list[list[Item]], first: int) -> None:
    for index, layer in enumerate(stack, start=first):
        try:
            tree.apply(inventory(layer), index)
        except ArchiveError:
            return


@settings(max_examples=400, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(stack=stacks(), left=stacks(), right=stacks())
def test_a_fork_is_as_a_tree_of_its_own_and_changes_of_either_do_not_reach_the_other(
    stack: list[list[Item]], left: list[list[Item]], right: list[list[Item]]
) -> None:
    one, alone = Tree(), Tree()
    for tree in (one, alone):
        apply_as_far_as_possible(tree, stack, 0)
    two = one.fork()
    three = two.fork()
    before = listed(alone)
    assert listed(one) == listed(two) == before
    apply_as_far_as_possible(two, left, 100)
    assert listed(one) == listed(three) == before
    apply_as_far_as_possible(one, right, 200)
    assert listed(three) == before
    for tree, changes, first in ((one, right, 200), (two, left, 100)):
        fresh = Tree()
        apply_as_far_as_possible(fresh, stack, 0)
        apply_as_far_as_possible(fresh, changes, first)
        assert listed(tree) == listed(fresh)
    for marks in (ELF, LINK, DIST_INFO, LINK | DIST_INFO):
        wanted = [path for path, node in two.walk() if marks_of(path, node) & marks]
        assert [path for path, _ in two.marked(marks, keep=False)] == wanted
        assert [path for path, _ in two.marked(marks)] == wanted


@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(stack=stacks(), changes=stacks())
def test_directories_that_are_one_object_in_both_trees_hold_the_same(
    stack: list[list[Item]], changes: list[list[Item]]
) -> None:
    base = Tree()
    apply_as_far_as_possible(base, stack, 0)
    before = listed(base)
    other = base.fork()
    apply_as_far_as_possible(other, changes, 100)
    after = listed(other)
    for path, node in other.walk():
        if node.is_directory and base.get(path) is node:
            prefix = path + b"/"
            assert {k: v for k, v in after.items() if k.startswith(prefix)} == {
                k: v for k, v in before.items() if k.startswith(prefix)
            }
