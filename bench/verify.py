"""Results against plain NumPy: the whole value, and every shard where a layout is asked for."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Whole = NDArray[Any] | np.generic | Sequence[NDArray[Any]]


class WrongResult(Exception):
    """A peer computed another value, or laid it out in another way, than the row asks for."""


def leaves(tree: Any) -> list[Any]:
    """The arrays of a list or tuple, or the one array itself."""
    return list(tree) if isinstance(tree, list | tuple) else [tree]


def check_value(got: Any, expected: Whole, tolerance: float, what: str = "the result") -> None:
    """Refuse `got` where it differs from `expected`.

    Args:
        got: an array, or a list of arrays.
        expected: the same from plain NumPy.
        tolerance: largest difference allowed, as a fraction of the largest expected magnitude
            (a reduction of many terms leaves its error on small and on large elements alike).
        what: the name of the value in the message.

    Raises:
        WrongResult: another number of arrays, shape, kind or value.
    """
    arrays, models = leaves(got), leaves(expected)
    if len(arrays) != len(models):
        raise WrongResult(f"{what} has {len(arrays)} arrays, expected {len(models)}")
    for array, model in zip(map(np.asarray, arrays), map(np.asarray, models), strict=True):
        if array.shape != model.shape or array.dtype.kind != model.dtype.kind:
            raise WrongResult(
                f"{what} is {array.dtype}{array.shape}, expected {model.dtype}{model.shape}"
            )
        if model.dtype.kind == "f" and array.dtype != np.float32:
            raise WrongResult(f"{what} is {array.dtype}, the rows ask for float32")
        if tolerance == 0 and np.array_equal(array, model):
            continue
        scale = float(np.max(np.abs(model))) or 1.0
        error = float(np.max(np.abs(array - model))) / scale
        if not error <= tolerance:
            raise WrongResult(
                f"{what} is off by {error:.2g} of its largest magnitude, allowed {tolerance:g}"
            )


def check_layout(got: Any, expected: Whole, sharding: Any, tolerance: float) -> None:
    """Refuse a result that does not lie as `sharding` says, or whose shards hold wrong values.

    Raises:
        WrongResult: another sharding, a missing shard, or a shard with another value.
    """
    for array, model in zip(leaves(got), leaves(expected), strict=True):
        if not array.sharding.is_equivalent_to(sharding, model.ndim):
            raise WrongResult(f"the result lies as {array.sharding}, expected {sharding}")
        shards = list(array.addressable_shards)
        if len(shards) != sharding.num_devices:
            raise WrongResult(f"the result has {len(shards)} shards of {sharding.num_devices}")
        for shard in shards:
            check_value(shard.data, model[shard.index], tolerance, f"the shard {shard.index}")
