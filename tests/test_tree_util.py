"""Trees by JAX's names: keys, levels, structures, and functions with arguments in place."""

from __future__ import annotations

import functools
import importlib
from collections import namedtuple
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard import tree_util as util
from meshard.errors import ArgumentError, TreeError
from meshard.flatten_util import ravel_pytree

Point = namedtuple("Point", "x y")
TREES = {
    "nested": {"a": [1, (2, None)], "b": Point(3, {4: 5})},
    "none": None,
    "leaf": 7,
    "empty": {"a": [], "b": ()},
}


@pytest.mark.parametrize("name", TREES)
def test_one_level_and_structures_are_jaxs(jax: ModuleType, name: str) -> None:
    value, theirs = TREES[name], jax.tree_util
    for call in ("flatten_one_level", "flatten_one_level_with_keys"):
        try:
            expected = repr(getattr(theirs, call)(value))
        except ValueError:
            with pytest.raises(TreeError, match="of type int is a leaf"):
                getattr(util, call)(value)
        else:
            assert repr(getattr(util, call)(value)) == expected
    mine, other = util.tree_structure(value), theirs.tree_structure(value)
    assert util.treedef_is_leaf(mine) == theirs.treedef_is_leaf(other)
    counts = [child.num_leaves for child in util.treedef_children(mine)]
    assert counts == [child.num_leaves for child in theirs.treedef_children(other)]
    assert util.all_leaves([value]) == theirs.all_leaves([value])
    assert util.is_tree_node(type(value)) == theirs.is_tree_node(type(value))


def test_all_of_jaxs_names_are_there(jax: ModuleType) -> None:
    names = {n for n in dir(jax.tree_util) if not n.startswith("_")} - {"default_registry"}
    assert sorted(n for n in names if not hasattr(util, n)) == []
    names = {n for n in dir(jax.tree) if not n.startswith("_")}
    assert sorted(n for n in names if not hasattr(meshard.tree, n)) == []


class Record:
    def __init__(self, **values: Any) -> None:
        self.values = values


util.register_pytree_with_keys(
    Record,
    lambda r: ([(util.DictKey(k), v) for k, v in r.values.items()], tuple(r.values)),
    lambda keys, values: Record(**dict(zip(keys, values, strict=True))),
)


def test_a_class_names_the_keys_of_its_children() -> None:
    record = Record(w=1, b=[2, 3])
    paths = [util.keystr(path) for path, _ in util.tree_leaves_with_path(record)]
    assert paths == ["['w']", "['b'][0]", "['b'][1]"]
    assert util.tree_map(lambda x: -x, record).values == {"w": -1, "b": [-2, -3]}
    plan = meshard.plan_reshard(Record(w=mnp.ones(2)), meshard.devices()[0])
    assert "w" in str(plan)


def test_a_class_without_names_has_numbers() -> None:
    class Bag:
        def __init__(self, *items: Any) -> None:
            self.items = items

    util.register_pytree_node(Bag, lambda b: (b.items, None), lambda _, items: Bag(*items))
    ((path, _), (second, _)) = util.tree_leaves_with_path(Bag(1, 2))
    assert (path, util.keystr(second)) == ((util.FlattenedIndexKey(0),), "[<flat index 1>]")


def test_static_classes_are_part_of_the_program() -> None:
    @util.register_static
    class Name(str):
        __slots__ = ()

    traced = []

    @meshard.jit
    def f(x: Any, name: Name) -> Any:
        traced.append(name)
        return x * len(name)

    assert [f(2, Name("ab")).item(), f(3, Name("ab")).item(), f(2, Name("abc")).item()] == [4, 6, 6]
    assert traced == ["ab", "abc"]


def test_partial_functions_are_trees_of_their_arguments() -> None:
    inner = util.Partial(mnp.subtract, 10.0)
    outer = util.Partial(functools.partial(lambda a, b, c: (a, b, c), 1), 2)
    assert outer(3) == (1, 2, 3)
    assert util.tree_leaves(outer) == [2]  # what functools.partial holds is part of the function
    assert meshard.jit(lambda f, x: f(x))(inner, 4.0).item() == 6
    assert meshard.grad(lambda f, x: f(x))(inner, 4.0).args[0].item() == 1
    assert util.tree_map(lambda x: 2 * x, inner)(1.0).item() == 19
    with pytest.raises(ArgumentError, match="Partial: func must be a function"):
        util.Partial(3)


def test_reductions_in_a_balanced_tree() -> None:
    found = util.tree_reduce_associative(lambda a, b: f"({a}{b})", list("abcde"))
    assert found == "(((ab)(cd))e)"
    assert util.tree_reduce_associative(max, [], identity=0) == 0
    with pytest.raises(TreeError, match="give an identity"):
        util.tree_reduce_associative(max, [])


@pytest.mark.parametrize(
    "value",
    [
        {"w": np.ones((2, 3)), "n": np.int32(3)},
        [np.float32(1), np.arange(3, dtype=np.int8)],
        [1, 2],
        True,
        {},
        [np.zeros((0, 2)), 1.5],
    ],
)
def test_vectors_of_trees_are_jaxs(jax: ModuleType, value: Any) -> None:
    with jax.enable_x64(True):
        theirs, back = importlib.import_module("jax.flatten_util").ravel_pytree(value)
        expected = jax.tree.leaves(back(theirs))
    vector, unravel = ravel_pytree(value)
    assert vector.shape == theirs.shape
    assert np.array_equal(vector, theirs)
    if value:
        assert vector.dtype == theirs.dtype
    found = meshard.tree.leaves(unravel(vector))
    assert [(x.shape, x.dtype) for x in found] == [(x.shape, x.dtype) for x in expected]


def test_a_vector_of_another_length_or_dtype_is_refused() -> None:
    _, unravel = ravel_pytree({"w": np.ones(3)})
    with pytest.raises(ValueError, match="takes a vector of 3 elements, got an array of shape"):
        unravel(mnp.ones(4))
    with pytest.raises(ValueError, match="takes a vector of dtype float64, got int64"):
        unravel(mnp.arange(3))


def test_odd_arguments_are_refused() -> None:
    with pytest.raises(ArgumentError, match="keys must be a list or tuple of keys of a path"):
        util.keystr(3)
    with pytest.raises(ArgumentError, match="treedef"):
        util.treedef_children(3)
    with pytest.raises(ArgumentError, match="has no method tree_flatten_with_keys"):
        util.register_pytree_with_keys_class(int)
