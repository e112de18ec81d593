"""Public array functions as functions of arrays alone, for laws over all of them.

Each valid call of `tests/odd_array_calls.py` becomes a function of the float and complex arrays
among its arguments, wherever in lists these are; everything else stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np

import meshard
from meshard.runtime.trees import trees
from tests.odd_array_calls import Case, cases
from tests.tangents import moves
from tests.worlds import whole


@dataclass(frozen=True)
class Public:
    """A public function at one place.

    Attributes:
        name: its name without ``meshard.``.
        function: from the arrays to the arrays that it returns.
        values: the arrays.
    """

    name: str
    function: Callable[..., list[Any]]
    values: list[Any]


def is_array(x: Any) -> bool:
    """Whether a value is an array of meshard, with data or without."""
    return isinstance(x, meshard.Array)


def public_functions() -> Iterator[Public]:
    """Yield every function of arrays that the public modules have."""
    for case in cases():
        if case.in_mesh:
            continue
        found = _public(case)
        if found.values:
            yield found


def _public(case: Case) -> Public:
    given = {n: make() for n, make in case.given.items()}
    leaves, tree = trees.flatten(given)
    places = [i for i, x in enumerate(leaves) if is_array(x) and moves(whole(x))]

    def function(*own: Any) -> list[Any]:
        every = list(leaves)
        for i, x in zip(places, own, strict=True):
            every[i] = x
        found = case._call(trees.unflatten(tree, every))
        return [y for y in trees.leaves(found) if is_array(y)]

    rng = np.random.default_rng(crc32(case.name.encode()))
    values = [whole(leaves[i]) for i in places]
    noisy = [x + rng.uniform(0.01, 0.05, x.shape) for x in values]
    return Public(case.name, function, noisy)
