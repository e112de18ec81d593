"""Classes as containers in trees: JAX's functions and meanings."""

from __future__ import annotations

import dataclasses
from types import ModuleType
from typing import Any

import pytest

from meshard import tree
from meshard.errors import ArgumentError
from meshard.tree_util import keystr


def pair() -> type:
    class Pair:
        def __init__(self, a: Any, b: Any) -> None:
            self.a, self.b = a, b

        def tree_flatten(self) -> Any:
            return (self.a,), self.b

        @classmethod
        def tree_unflatten(cls, aux: Any, children: Any) -> Any:
            return cls(*children, aux)

    return Pair


def layer() -> type:
    @dataclasses.dataclass
    class Layer:
        w: Any
        b: Any = None
        name: str = dataclasses.field(default="", metadata={"static": True})

    return Layer


def test_classes_come_apart_as_in_jax(jax: ModuleType) -> None:
    for module, of in ((tree, tree), (jax.tree_util, jax.tree)):
        Pair, Layer = module.register_pytree_node_class(pair()), layer()
        module.register_dataclass(Layer)
        value = {"p": Pair([1, 2], "kept"), "l": Layer(3, None, "kept too")}
        assert of.leaves(value) == [3, 1, 2]
        found = of.map(lambda x: x * 2, value)
        assert (found["p"].a, found["p"].b) == ([2, 4], "kept")
        assert found["l"] == Layer(6, None, "kept too")
        assert of.structure(value) != of.structure({**value, "p": Pair([1, 2], "other")})


def test_functions_say_how_a_class_comes_apart() -> None:
    class Bag:
        def __init__(self, x: Any) -> None:
            self.x = x

    tree.register_pytree_node(Bag, lambda b: ((b.x,), None), lambda _, xs: Bag(*xs))
    assert tree.leaves(Bag((1, 2))) == [1, 2]
    assert tree.map(str, Bag(3)).x == "3"


def test_fields_are_named_in_paths_and_chosen() -> None:
    Layer = layer()
    tree.register_dataclass(Layer, ["b"], ["w", "name"])
    (path, leaf), *rest = tree.flatten_with_path(Layer(1, {"k": 2}, "n"))[0]
    assert (keystr(path), leaf, rest) == (".b['k']", 2, [])


def test_refusals() -> None:
    Pair = tree.register_pytree_node_class(pair())
    with pytest.raises(ArgumentError, match="Pair is already registered"):
        tree.register_pytree_node_class(Pair)
    with pytest.raises(ArgumentError, match="int has no method tree_flatten"):
        tree.register_pytree_node_class(int)
    with pytest.raises(
        ArgumentError, match=r"register_dataclass\(Pair\): the class is not a dataclass"
    ):
        tree.register_dataclass(Pair)
    with pytest.raises(ArgumentError, match="data_fields and meta_fields both, or neither"):
        tree.register_dataclass(layer(), ["w"])
    with pytest.raises(ArgumentError, match="missing or unknown: b, q"):
        tree.register_dataclass(layer(), ["w", "q"], ["name"])
