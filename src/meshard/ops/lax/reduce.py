"""Reductions, scans, sorts and products by the names of ``jax.lax``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import numpy as np

from meshard.algebra.arguments import shown
from meshard.errors import ArgumentError, DtypeError, ShapeError
from meshard.ops.array.join import flip
from meshard.ops.array.take import take_along_axis
from meshard.ops.engine.arguments import DtypeLike
from meshard.ops.engine.dims import normalised_axes
from meshard.ops.engine.dtypes import as_dtype, is_whole, same_dtype
from meshard.ops.engine.row import Op, Partial, register
from meshard.ops.lax.table import finished, named
from meshard.ops.linalg.contract import contract, matmul
from meshard.ops.reductions import reduce as reductions
from meshard.ops.reductions import scan
from meshard.ops.reductions import sort as sorting
from meshard.ops.reductions.reduce import reduction_rule
from meshard.runtime import trees
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array
from meshard.runtime.types import Block

# reductions by one operation


def _bits(ufunc: np.ufunc) -> Callable[..., Any]:
    def kernel(x: Block, *, axis: tuple[int, ...], keepdims: bool) -> Any:
        return ufunc.reduce(x, axis=axis, keepdims=keepdims)

    return kernel


for _name, _ufunc in (
    ("reduce_and", np.bitwise_and),
    ("reduce_or", np.bitwise_or),
    ("reduce_xor", np.bitwise_xor),
):
    _partial = Partial(_ufunc, "selects")
    _op = Op(_name, reduction_rule, _bits(_ufunc), dtypes=same_dtype, partial=_partial, alike=0)
    register(_op)


class Fold(Protocol):
    """A reduction by one operation."""

    def __call__(self, operand: Any, axes: Sequence[int]) -> Array:
        """Reduce these dims."""


class Running(Protocol):
    """A running reduction along a dim."""

    def __call__(self, operand: Any, axis: int = 0, reverse: bool = False) -> Array:
        """Run along this dim."""


def _reduction(name: str, row: str, text: str) -> Fold:
    def function(operand: Any, axes: Sequence[int]) -> Array:
        x = as_array(operand)
        if row == name and not is_whole(x.dtype):
            raise DtypeError(f"{name}: takes integers or bools; the dtype is {x.dtype}.")
        more = {"dtype": x.dtype} if row in ("sum", "prod") else {}
        return bind(row, x, axis=normalised_axes(axes, x.ndim, name), keepdims=False, **more)

    text = f"{text} over some dims, in the dtype of the array."
    text += "\n\nA split dim is reduced part by part, and the parts in the order of the mesh."
    if row == name:
        text += "\n\nRaises:\n    DtypeError: if the elements are neither integers nor bools."
    example = f"lax.{name}(mnp.ones((2, 3), int), (0,)).tolist()"
    printed = {"sum": "[2, 2, 2]", "reduce_xor": "[0, 0, 0]"}.get(row, "[1, 1, 1]")
    return cast(Fold, finished(function, name, text, (example, printed)))


reduce_sum = _reduction("reduce_sum", "sum", "Return the sum")
reduce_prod = _reduction("reduce_prod", "prod", "Return the product")
reduce_max = _reduction("reduce_max", "max", "Return the maximum")
reduce_min = _reduction("reduce_min", "min", "Return the minimum")
reduce_and = _reduction("reduce_and", "reduce_and", "Return the bits that are set in all elements")
reduce_or = _reduction("reduce_or", "reduce_or", "Return the bits that are set in any element")
reduce_xor = _reduction("reduce_xor", "reduce_xor", "Return the bits set in an odd number")


# scans


def _cumulative(name: str, run: Callable[..., Any], text: str, printed: str) -> Running:
    def function(operand: Any, axis: int = 0, reverse: bool = False) -> Array:
        x = as_array(operand)
        (dim,) = normalised_axes((axis,), x.ndim, name)
        more = (x.dtype,) if name in ("cumsum", "cumprod") else ()
        return flip(run(flip(x, dim), dim, *more), dim) if reverse else run(x, dim, *more)

    text = f"Return the {text} along a dim.\n\nDtype and sharding are those of the array."
    example = f"lax.{name}(mnp.asarray([1, 3, 2])).tolist()"
    return cast(Running, finished(function, name, text, (example, printed)))


cumsum = _cumulative("cumsum", scan.cumsum, "running sums", "[1, 4, 6]")
cumprod = _cumulative("cumprod", scan.cumprod, "running products", "[1, 3, 6]")
cummax = _cumulative("cummax", scan.cummax, "greatest elements so far", "[1, 3, 3]")
cummin = _cumulative("cummin", scan.cummin, "least elements so far", "[1, 1, 1]")
cumlogsumexp = _cumulative(
    "cumlogsumexp",
    scan.cumlogsumexp,
    "logarithms of the running sums of exponentials",
    "[1.0, 3.1269280110429727, 3.4076059644443806]",
)


# order


@named('lax.argmax(mnp.asarray([3, 9, 9]), 0, "int32").tolist()', "1")
def argmax(operand: Any, axis: int, index_dtype: DtypeLike) -> Array:
    """Return the positions of the first maximum along a dim, in a dtype of integers."""
    return reductions.argmax(operand, axis).astype(as_dtype(index_dtype), copy=False)


@named('lax.argmin(mnp.asarray([3, 9, 9]), 0, "int32").tolist()', "0")
def argmin(operand: Any, axis: int, index_dtype: DtypeLike) -> Array:
    """Return the positions of the first minimum along a dim, in a dtype of integers."""
    return reductions.argmin(operand, axis).astype(as_dtype(index_dtype), copy=False)


@named(
    "[x.tolist() for x in lax.sort((mnp.asarray([2, 1]), mnp.asarray([7, 8])))]",
    "[[1, 2], [8, 7]]",
    operand="an array, or a sequence of arrays of one shape.",
)
def sort(operand: Any, dimension: int = -1, is_stable: bool = True, num_keys: int = 1) -> Any:
    """Return an array sorted along a dim, or several sorted together.

    Raises:
        ArgumentError: if ``num_keys`` is not from 1 to the number of arrays.
        ShapeError: if the shapes differ.
    """
    if not isinstance(operand, (list, tuple)):
        return sorting.sort(operand, dimension)
    arrays = [as_array(x) for x in operand]
    if not 1 <= num_keys <= len(arrays):
        raise ArgumentError(f"sort: num_keys={num_keys} for {len(arrays)} arrays.")
    if any(x.shape != arrays[0].shape for x in arrays):
        raise ShapeError(f"sort: the arrays have shapes {[x.shape for x in arrays]}; give one.")
    (dim,) = normalised_axes((dimension,), arrays[0].ndim, "sort")
    order = sorting.argsort(arrays[num_keys - 1], dim)
    for key in reversed(arrays[: num_keys - 1]):
        step = sorting.argsort(take_along_axis(key, order, dim), dim)
        order = take_along_axis(order, step, dim)
    return tuple(take_along_axis(x, order, dim) for x in arrays)


@named(
    "[x.tolist() for x in lax.sort_key_val(mnp.asarray([2, 1]), mnp.asarray([7, 8]))]",
    "[[1, 2], [8, 7]]",
)
def sort_key_val(
    keys: Any, values: Any, dimension: int = -1, is_stable: bool = True
) -> tuple[Array, Array]:
    """Return keys sorted along a dim, and values in the same order."""
    return sort((keys, values), dimension, is_stable)


top_k = sorting.top_k


# products


@named(
    "lax.dot_general(mnp.ones((2, 3, 4)), mnp.ones((2, 4)), (((2,), (1,)), ((0,), (0,)))).shape",
    "(2, 3)",
)
def dot_general(
    lhs: Any,
    rhs: Any,
    dimension_numbers: Any,
    precision: Any = None,
    preferred_element_type: DtypeLike = None,
) -> Array:
    """Return products summed over pairs of dims, with other pairs as batch dims.

    The result has the batch dims, the other dims of ``lhs``, and those of ``rhs``.

    Raises:
        ArgumentError: if ``dimension_numbers`` do not pair dims up.
        ShapeError: if two dims of a pair differ.
    """
    x, y = as_array(lhs), as_array(rhs)
    try:
        groups = [[tuple(int(d) for d in dims) for dims in pair] for pair in dimension_numbers]
        (left, right), (left_batch, right_batch) = groups
        normalised_axes((*left, *left_batch), x.ndim, "dot_general")
        normalised_axes((*right, *right_batch), y.ndim, "dot_general")
        pairs = list(zip(left, right, strict=True))
        batch = list(zip(left_batch, right_batch, strict=True))
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"dot_general: dimension_numbers {shown(dimension_numbers)} do not pair up dims of "
            f"shapes {x.shape} and {y.shape}: they must be ((summed of lhs, of rhs), "
            "(batch of lhs, of rhs))."
        ) from error
    for i, j in (*pairs, *batch):
        if x.shape[i] != y.shape[j]:
            raise ShapeError(
                f"dot_general: dim {i} of {x.shape} is {x.shape[i]}, and dim {j} of {y.shape}, "
                f"which goes with it, is {y.shape[j]}."
            )
    first, second = [f"i{d}" for d in range(x.ndim)], [f"j{d}" for d in range(y.ndim)]
    for i, j in (*pairs, *batch):
        second[j] = first[i]
    lead = [first[i] for i, _ in batch]
    out = [*lead, *(f for f in first if f not in second), *(f for f in second if f not in first)]
    rule = f"{' '.join(first)}, {' '.join(second)} -> {' '.join(out)}"
    return contract("dot_general", x, y, rule, preferred_element_type)


@named("lax.dot(mnp.ones((2, 3)), mnp.ones(3)).tolist()", "[3.0, 3.0]")
def dot(
    lhs: Any,
    rhs: Any,
    *,
    dimension_numbers: Any = None,
    precision: Any = None,
    preferred_element_type: DtypeLike = None,
) -> Array:
    """Return the product of two vectors or matrices; of others by dimension numbers.

    Raises:
        ShapeError: if the operands are not vectors or matrices that fit, and no numbers are given.
    """
    if dimension_numbers is not None:
        return dot_general(lhs, rhs, dimension_numbers, precision, preferred_element_type)
    x, y = as_array(lhs), as_array(rhs)
    if x.ndim not in (1, 2) or y.ndim not in (1, 2) or x.shape[-1] != y.shape[0]:
        raise ShapeError(
            f"dot: without dimension_numbers the last dim of a vector or matrix goes with the "
            f"first of another; the shapes are {x.shape} and {y.shape}."
        )
    return matmul(x, y, preferred_element_type=preferred_element_type)


@named("lax.batch_matmul(mnp.ones((2, 3, 4)), mnp.ones((2, 4, 5))).shape", "(2, 3, 5)")
def batch_matmul(lhs: Any, rhs: Any, precision: Any = None) -> Array:
    """Return the products of matrices, whose leading dims are the same.

    Raises:
        ShapeError: if they are not.
    """
    x, y = as_array(lhs), as_array(rhs)
    if x.ndim < 2 or x.ndim != y.ndim or x.shape[:-2] != y.shape[:-2]:
        raise ShapeError(
            f"batch_matmul: takes matrices with the same leading dims, got shapes {x.shape} and "
            f"{y.shape}."
        )
    return matmul(x, y)


# nothing


@named("lax.stop_gradient(mnp.ones(2)).tolist()", "[1.0, 1.0]", x="a tree of arrays.")
def stop_gradient(x: Any) -> Any:
    """Return the tree as it is; a derivative takes it as constant."""
    return x


@named("lax.optimization_barrier((mnp.ones(2), 1))[1].tolist()", "1", operand="a tree of arrays.")
def optimization_barrier(operand: Any, /) -> Any:
    """Return the tree with its leaves as arrays; nothing is reordered here in any case."""
    return trees.map(as_array, operand)
