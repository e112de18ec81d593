"""Trees: JAX's functions and meanings, over optree."""

import operator
import re
from collections import OrderedDict, defaultdict, namedtuple
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshard
from meshard import tree
from meshard.errors import TreeError
from meshard.runtime.trees.trees import broadcast_leaves
from meshard.tree_util import keystr

Point = namedtuple("Point", "x y")
Box = namedtuple("Box", "a")
LEAVES = st.integers(-9, 9)
trees = st.recursive(
    LEAVES | st.none(),
    lambda inside: (
        st.lists(inside, max_size=3)
        | st.lists(inside, max_size=3).map(tuple)
        | st.dictionaries(st.sampled_from("dcba"), inside, max_size=3)
        | st.builds(Point, inside, inside)
        | st.builds(lambda i: OrderedDict(z=i, a=1), inside)
        | st.builds(lambda i: defaultdict(int, b=i), inside)
    ),
    max_leaves=8,
)
EXAMPLE = {"b": [1, (2, None)], "a": Point(3, {"k": 4})}


@given(trees)
def test_leaves_come_in_jaxs_order(jax, value):
    assert tree.leaves(value) == jax.tree.leaves(value)
    flat, structure = tree.flatten(value)
    assert flat == jax.tree.flatten(value)[0]
    assert structure == tree.structure(value)
    assert structure.num_leaves == len(flat)
    assert tree.unflatten(structure, flat) == value
    assert type(tree.unflatten(structure, flat)) is type(value)


@given(trees)
def test_maps_and_folds_are_jaxs(jax, value):
    assert tree.map(lambda a: a + 1, value) == jax.tree.map(lambda a: a + 1, value)
    assert tree.map(operator.add, value, value) == jax.tree.map(operator.add, value, value)
    assert tree.reduce(operator.add, value, 5) == jax.tree.reduce(operator.add, value, 5)
    assert tree.all(value) == jax.tree.all(value)
    assert tree.broadcast(7, value) == jax.tree.broadcast(7, value)

    def is_leaf(node: Any) -> bool:
        return isinstance(node, list) or node is None

    assert tree.leaves(value, is_leaf) == jax.tree.leaves(value, is_leaf)
    assert tree.map(str, value, is_leaf=is_leaf) == jax.tree.map(str, value, is_leaf=is_leaf)
    assert len(tree.flatten(value, is_leaf)[0]) == len(jax.tree.flatten(value, is_leaf)[0])


@given(trees)
def test_paths_lead_to_the_leaves_as_in_jax(jax: ModuleType, value):
    mine = tree.leaves_with_path(value)
    theirs = jax.tree.leaves_with_path(value)
    assert [leaf for _, leaf in mine] == [leaf for _, leaf in theirs]
    assert [repr(path) for path, _ in mine] == [repr(path) for path, _ in theirs]
    for (path, _), (other, _) in zip(mine, theirs, strict=True):
        assert keystr(path) == jax.tree_util.keystr(other)
        given = {"simple": True, "separator": "/"}
        assert keystr(path, **given) == jax.tree_util.keystr(other, **given)
    assert tree.flatten_with_path(value) == (mine, tree.structure(value))
    found = tree.map_with_path(lambda path, leaf: (len(path), leaf), value)
    assert found == jax.tree.map_with_path(lambda path, leaf: (len(path), leaf), value)


def test_an_example():
    assert tree.leaves(EXAMPLE) == [3, 4, 1, 2]
    assert tree.map(lambda a: -a, EXAMPLE) == {"b": [-1, (-2, None)], "a": Point(-3, {"k": -4})}
    paths = [keystr(p) for p, _ in tree.leaves_with_path(EXAMPLE)]
    assert paths == ["['a'].x", "['a'].y['k']", "['b'][0]", "['b'][1][0]"]
    assert tree.reduce(operator.mul, EXAMPLE) == 24
    assert tree.all({"a": True, "b": [1, 0]}) is False
    assert tree.all([]) is True


def test_arrays_and_shardings_are_leaves():
    x = meshard.numpy.ones(3)
    spec = meshard.P("i", None)
    mesh = meshard.make_mesh((8,), ("i",))
    sharding = meshard.NamedSharding(mesh, spec)
    value = {"x": x, "s": [spec, sharding, mesh], "d": meshard.devices()[0], "n": np.ones(2)}
    assert [id(leaf) for leaf in tree.leaves(value)] == [
        id(leaf) for leaf in (value["d"], value["n"], spec, sharding, mesh, x)
    ]


def test_a_fold_of_nothing_needs_a_start():
    assert tree.reduce(operator.add, [], 3) == 3
    assert tree.reduce(operator.add, [], initializer=None) is None
    with pytest.raises(TypeError):
        tree.reduce(operator.add, [])


@pytest.mark.parametrize("other", [{"a": 1}, {"a": 1, "c": 2}, [1, 2], {"a": 1, "b": [2]}])
def test_other_structures_are_refused_where_jax_refuses_them(jax, other):
    value = {"a": 1, "b": 2}
    if other == {"a": 1, "b": [2]}:  # the first tree is a prefix of it
        assert tree.map(lambda a, b: b, value, other) == jax.tree.map(lambda a, b: b, value, other)
        return
    for map_of in (tree.map, jax.tree.map):
        with pytest.raises(ValueError):  # noqa: PT011
            map_of(lambda a, b: a, value, other)
    for map_of in (tree.map, tree.map_with_path):
        with pytest.raises(TreeError, match="tree: the first tree must be a prefix of the others"):
            map_of(lambda *a: a, value, other)


def test_an_error_of_the_function_passes_as_it_is():
    def fail(*_: Any) -> None:
        raise ValueError("mine; all mine")

    for map_of in (tree.map, tree.map_with_path):
        with pytest.raises(ValueError, match="mine; all mine") as caught:
            map_of(fail, {"a": 1})
        assert type(caught.value) is ValueError


def test_too_many_or_too_few_leaves_are_refused():
    structure = tree.structure([1, 2])
    assert tree.unflatten(structure, iter([3, 4])) == [3, 4]
    for leaves in ([1], [1, 2, 3]):
        with pytest.raises(TreeError, match=f"{len(leaves)} leaves are given for a structure of 2"):
            tree.unflatten(structure, leaves)


def test_transposing_exchanges_the_structures(jax):
    value = [{"x": 1, "y": (2, 3)}, {"x": 4, "y": (5, 6)}]
    outer, inner = tree.structure([0, 0]), tree.structure({"x": 0, "y": (0, 0)})
    expected = jax.tree.transpose(
        jax.tree.structure([0, 0]), jax.tree.structure({"x": 0, "y": (0, 0)}), value
    )
    assert tree.transpose(outer, inner, value) == expected
    assert tree.transpose(outer, None, value) == expected
    with pytest.raises(TreeError, match="must have the outer structure, and within it the inner"):
        tree.transpose(outer, tree.structure({"x": 0}), value)
    with pytest.raises(TreeError, match="prefix"):
        tree.transpose(outer, None, [1])


def test_prefixes_match_dicts_by_key():
    mixed = OrderedDict(b=1, a=OrderedDict(z=2, y=None))
    assert broadcast_leaves({"a": "A", "b": "B"}, mixed) == ["B", "A"]
    assert broadcast_leaves({"a": "A", "b": None}, mixed, none_is_leaf=True) == [None, "A", "A"]
    with pytest.raises(ValueError, match="key"):
        broadcast_leaves({"a": "A", "c": "C"}, mixed)


def test_broadcasting_repeats_the_leaves_of_a_prefix():
    assert tree.broadcast({"a": 1, "b": [2, 3]}, EXAMPLE | {"b": [0, (0, 0)]}) == {
        "a": Point(1, {"k": 1}),
        "b": [2, (3, 3)],
    }
    with pytest.raises(TreeError, match="prefix"):
        tree.broadcast({"a": 1}, EXAMPLE)


@pytest.mark.parametrize(
    ("first", "other", "message"),
    [
        ({"w": 1}, {"w": 1, "b": 2}, r"got key\(s\): \['b', 'w'\], extra key\(s\): \['b'\]\.$"),
        ({"w": 1, "b": 2}, {"w": 1}, r"missing key\(s\): \['b'\]\.$"),
        ([1, 2], [1], r"list arity mismatch; expected: 2, got: 1\.$"),
        ([1, 2], (1, 2), r"Expected an instance of list, got \(1, 2\)\.$"),
    ],
)
def test_a_refusal_says_what_is_missing_and_not_the_whole_tree(first, other, message):
    with pytest.raises(TreeError, match=message):
        tree.map(operator.add, first, other)
    with pytest.raises(TreeError, match=message):
        tree.broadcast(first, other)


def test_trees_are_flattened_in_one_place() -> None:
    """One that contains itself is refused there; elsewhere it would end in a RecursionError."""
    root = Path(meshard.__file__).parent
    taking_apart = re.compile(r"optree\.(tree_(flatten|leaves|map|structure|paths|iter)|\w*prefix)")
    found = [
        f"{path.relative_to(root)}: {line.strip()}"
        for path in sorted(root.rglob("*.py"))
        # A structure that was received is that of a tree made there, which cannot contain itself.
        if path.name not in ("trees.py", "structures.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if taking_apart.search(line)
    ]
    assert not found, f"use meshard.runtime.trees instead: {found}"


def test_a_tree_that_contains_itself_is_refused() -> None:
    around: list[object] = [1]
    around.append({"again": around})
    calls = (
        lambda: tree.flatten(around),
        lambda: tree.map(str, around),
        lambda: tree.broadcast(around, around),
        lambda: tree.leaves_with_path(around),
        lambda: meshard.device_put(around),
        lambda: meshard.device_get(around),
        lambda: meshard.block_until_ready(around),
        lambda: meshard.reshard(around, meshard.devices()[0]),
        lambda: meshard.jit(lambda x: x)(around),
        lambda: meshard.jit(lambda: around)(),
        lambda: meshard.multihost_utils.process_allgather(around),
    )
    for call in calls:
        with pytest.raises(TreeError, match="contains itself, or is nested thousands of levels"):
            call()
