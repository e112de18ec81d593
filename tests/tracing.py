"""A transformation that does nothing: values that nobody may look at, to find who does."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshard.ops.engine.eager import EAGER
from meshard.runtime.array.array import Array
from meshard.runtime.array.traced import Traced
from meshard.runtime.doors import Interpreter, interpreting
from meshard.runtime.moving.place import as_array, home
from meshard.runtime.trees import trees
from meshard.runtime.world import here
from meshard.transforms.jit.jit import jit


class Hidden(Traced):
    """An array whose value can only be had by `opened`; of constants by anybody."""

    __slots__ = ("constant", "inner")

    def __init__(self, inner: Array, constant: bool) -> None:
        world = here()
        self._type = world.type_of(inner.shape, inner.dtype, home(world), False)
        self.inner = inner
        self.constant = constant

    def _concrete(self, what: str) -> Any:
        return np.asarray(self.inner) if self.constant else super()._concrete(what)


class Hiding(Interpreter):
    """Runs each operation at once, and hides the result."""

    def run(self, name: str, operands: tuple[Any, ...], params: Any) -> Any:
        given = [x.inner if isinstance(x, Hidden) else x for x in operands]
        constant = all(x.constant for x in operands if isinstance(x, Hidden))
        found = EAGER.run(name, tuple(given), params)
        if isinstance(found, tuple):
            return tuple(Hidden(x, constant) for x in found)
        return Hidden(found, constant)


def traced(function: Any) -> Any:
    """Call a function with what hides a value, while operations hide their results."""
    with interpreting(Hiding()):
        return opened(function(lambda value: Hidden(as_array(value), constant=False)))


def jitted(function: Any) -> Any:
    """Call a function as a jitted one of the values that go through what it is given."""
    values: list[Any] = []

    def gathered(value: Any) -> Any:
        values.append(value)
        return as_array(value)

    function(gathered)

    told: list[Any] = []

    def again(*given: Any) -> Any:
        rest = iter(given)
        found, structure = trees.flatten(function(lambda value: next(rest)))
        # Names and dtypes are known while a function is traced, and are no results.
        told[:] = [structure, *(x if isinstance(x, (str, np.dtype)) else None for x in found)]
        return [None if isinstance(x, (str, np.dtype)) else x for x in found]

    found = jit(again)(*values)
    structure, *names = told
    leaves = [x if name is None else name for x, name in zip(found, names, strict=True)]
    return opened(trees.unflatten(structure, leaves))


def opened(found: Any) -> Any:
    """Return a tree of values as NumPy arrays."""
    if isinstance(found, (list, tuple)):
        return [opened(x) for x in found]
    if isinstance(found, dict):
        return {k: opened(x) for k, x in found.items()}
    return np.array(found.inner) if isinstance(found, Hidden) else np.array(found)
