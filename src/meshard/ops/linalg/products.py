"""Products of matrices with vectors, and equations between tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence

from meshard.errors import ShapeError
from meshard.ops.array.shape import expand_dims, moveaxis, reshape, squeeze
from meshard.ops.checked import checked
from meshard.ops.dims import normalised_axes
from meshard.ops.linalg.contract import matmul
from meshard.ops.linalg.decompose import inv, solve
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array
from meshard.runtime.types import ArrayLike


def matvec(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """Return the products of matrices with vectors; other dims broadcast.

    Raises:
        ShapeError: if the matrices have another number of columns than the vectors elements.

    >>> import meshard.numpy as mnp
    >>> mnp.matvec(mnp.asarray([[1, 2], [3, 4]]), mnp.asarray([1, 1])).tolist()
    [3, 7]
    """
    return squeeze(matmul(x1, expand_dims(x2, -1)), -1)


def vecmat(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """Return the products of vectors, conjugated, with matrices; other dims broadcast.

    Raises:
        ShapeError: if the matrices have another number of rows than the vectors elements.

    >>> import meshard.numpy as mnp
    >>> mnp.vecmat(mnp.asarray([1, 1]), mnp.asarray([[1, 2], [3, 4]])).tolist()
    [4, 6]
    """
    x = as_array(x1)
    x = bind("conjugate", x) if x.dtype.kind == "c" else x
    return squeeze(matmul(expand_dims(x, -2), x2), -2)


@checked
def tensorsolve(a: ArrayLike, b: ArrayLike, axes: Sequence[int] | None = None) -> Array:
    """Return ``x`` of ``tensordot(a, x, x.ndim) == b``.

    Args:
        a: the coefficients, of shape ``b.shape + x.shape``, as many of each.
        b: the right-hand side.
        axes: dims of ``a`` that are moved to its end first.

    Raises:
        ShapeError: if the equations are not as many as the unknowns.

    >>> import meshard.numpy as mnp
    >>> a = mnp.eye(6).reshape(6, 2, 3)
    >>> mnp.linalg.tensorsolve(a, mnp.arange(6.0)).tolist()
    [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    """
    x, y = as_array(a), as_array(b)
    if axes is not None:
        moved = [normalised_axes(d, x.ndim, "tensorsolve")[0] for d in axes]
        x = moveaxis(x, moved, range(x.ndim - len(moved), x.ndim))
    shape = x.shape[y.ndim :]
    if math.prod(shape) != y.size or x.size != y.size**2:
        raise ShapeError(
            f"tensorsolve: coefficients of shape {x.shape} for a right-hand side of shape "
            f"{y.shape} are {x.size // max(y.size, 1)} unknowns in {y.size} equations; they must "
            "be as many."
        )
    return reshape(solve(reshape(x, (y.size, y.size)), reshape(y, (-1,))), shape)


@checked
def tensorinv(a: ArrayLike, ind: int = 2) -> Array:
    """Return the inverse of an array as a map between tensors: that of ``tensordot(a, x, ind)``.

    Args:
        a: the array.
        ind: how many of its first dims belong to what the map gives.

    Raises:
        ShapeError: if these dims have not as many elements as the others.

    >>> import meshard.numpy as mnp
    >>> mnp.linalg.tensorinv(mnp.eye(4).reshape(4, 2, 2), 1).shape
    (2, 2, 4)
    """
    x = as_array(a)
    first, last = x.shape[: max(ind, 0)], x.shape[max(ind, 0) :]
    if ind < 1 or math.prod(first) != math.prod(last):
        raise ShapeError(
            f"tensorinv: the first {ind} dims of the shape {x.shape} have {math.prod(first)} "
            f"elements, and the others {math.prod(last)}; they must be as many, and ind positive."
        )
    return reshape(inv(reshape(x, (math.prod(first), -1))), (*last, *first))
