"""A tree of arrays as one vector, and back."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from meshard.errors import ShapeError
from meshard.ops.array.create import asarray, zeros
from meshard.ops.array.info import result_type
from meshard.ops.array.join import concatenate, split
from meshard.runtime.array.array import Array
from meshard.runtime.trees import trees
from meshard.runtime.types import dtype_name


def ravel_pytree(pytree: Any) -> tuple[Array, Callable[[Any], Any]]:
    """Return the elements of all leaves as one vector, and the function that undoes this.

    Args:
        pytree: a tree of arrays and numbers.

    Returns:
        The vector, whose dtype is the one that the leaves' dtypes promote to; and a function that
        takes a vector of this length and dtype and returns a tree like ``pytree``, whose leaves
        have the dtypes of the tree's.

    Raises:
        DtypeError: if a leaf is not an array or a number.
        ShapeError: by the function, if the vector has another length.

    >>> import meshard.numpy as mnp
    >>> from meshard.flatten_util import ravel_pytree
    >>> vector, unravel = ravel_pytree({"w": mnp.ones((2, 2)), "b": mnp.zeros(2)})
    >>> vector.tolist(), unravel(2 * vector)["w"].tolist()
    ([0.0, 0.0, 1.0, 1.0, 1.0, 1.0], [[2.0, 2.0], [2.0, 2.0]])
    """
    leaves, structure = trees.flatten(pytree)
    arrays = [asarray(leaf) for leaf in leaves]
    if not arrays:
        return zeros(0), lambda vector: trees.unflatten(structure, _parts(vector, [], None))
    dtype = result_type(*leaves)
    vector = concatenate([x.astype(dtype).ravel() for x in arrays])

    def unravel(vector: Any) -> Any:
        """Return a vector of this length as a tree."""
        parts = _parts(vector, [x.shape for x in arrays], dtype)
        kinds = [x.dtype for x in arrays]
        found = [p if p.dtype == k else p.astype(k) for p, k in zip(parts, kinds, strict=True)]
        return trees.unflatten(structure, found)

    return vector, unravel


def _parts(vector: Any, shapes: list[tuple[int, ...]], dtype: np.dtype[Any] | None) -> list[Any]:
    """Return a vector cut into arrays of the given shapes.

    Raises:
        ShapeError: if it has another length or dtype.
    """
    x = asarray(vector)
    sizes = [math.prod(shape) for shape in shapes]
    if x.shape != (sum(sizes),):
        raise ShapeError(
            f"flatten_util: the function that undoes ravel_pytree takes a vector of {sum(sizes)} "
            f"elements, got an array of shape {x.shape}."
        )
    if dtype is not None and x.dtype != dtype:
        raise ShapeError(
            f"flatten_util: the function that undoes ravel_pytree takes a vector of dtype "
            f"{dtype_name(dtype)}, got {dtype_name(x.dtype)}. Convert it with astype."
        )
    if not shapes:
        return []
    cut = split(x, np.cumsum(sizes)[:-1].tolist())
    return [part.reshape(shape) for part, shape in zip(cut, shapes, strict=True)]
