"""`apply_along_axis`: a function of arrays of one dim, mapped over all others."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from meshard.algebra.arguments import function_of, integer_of
from meshard.ops.array.shape import moveaxis, reshape
from meshard.ops.dims import normalised_axes
from meshard.runtime.array.array import Array
from meshard.runtime.moving.place import as_array
from meshard.transforms.batching.vmap import vmap


def apply_along_axis(
    func1d: Callable[..., Any], axis: int, arr: Any, *args: Any, **kwargs: Any
) -> Array:
    """Return what a function makes of each line of an array along a dim.

    The function is called once, by `meshard.vmap`, and so must not look at values.

    Args:
        func1d: takes an array of one dim; the dims of its result stand where the dim was.
        axis: the dim.
        arr: the array.
        args: what the function takes besides.
        kwargs: the same, by name.

    Raises:
        ArgumentError: if there is no such dim.

    >>> import meshard.numpy as mnp
    >>> mnp.apply_along_axis(
    ...     lambda v: v[0] + v[-1], 1, mnp.asarray([[1, 2, 3], [4, 5, 6]])
    ... ).tolist()
    [4, 10]
    """
    f = function_of(func1d, "apply_along_axis", "func1d")
    x = as_array(arr)
    (dim,) = normalised_axes(
        integer_of(axis, "apply_along_axis", "axis"), x.ndim, "apply_along_axis"
    )
    last = moveaxis(x, dim, -1)
    heads = last.shape[:-1]
    rows = reshape(last, (math.prod(heads), last.shape[-1]))
    found = vmap(lambda row: as_array(f(row, *args, **kwargs)))(rows)
    own = found.ndim - 1
    found = reshape(found, (*heads, *found.shape[1:]))
    # Behind the dims that were not applied over, to where the dim was.
    return moveaxis(found, range(len(heads), len(heads) + own), range(dim, dim + own))
