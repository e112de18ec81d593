"""Reductions, folds, scans, sorts and products by the names of ``jax.lax``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, cast, overload

import numpy as np

from meshard.algebra.arguments import shown
from meshard.errors import ArgumentError, DtypeError, ShapeError, TreeError
from meshard.ops.array import elementwise
from meshard.ops.array.index import getitem
from meshard.ops.array.join import concatenate, each_repeated, flip
from meshard.ops.array.shape import broadcast_to, moveaxis, reshape
from meshard.ops.array.take import take_along_axis
from meshard.ops.checked import DtypeLike, normalised_axes
from meshard.ops.dtypes.laws import as_dtype, is_whole, same_dtype
from meshard.ops.engine.later import is_traced
from meshard.ops.lax import table
from meshard.ops.lax.table import finished, named
from meshard.ops.linalg.contract import contract, matmul
from meshard.ops.reductions import partition as parting
from meshard.ops.reductions import reduce as reductions
from meshard.ops.reductions import scan
from meshard.ops.reductions import sort as sorting
from meshard.ops.reductions.reduce import reduction_rule
from meshard.ops.row import Op, Partial, register
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array
from meshard.runtime.trees import trees
from meshard.runtime.types import ArrayLike, Block

T = TypeVar("T")

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

    def __call__(self, operand: ArrayLike, axes: Sequence[int]) -> Array:
        """Reduce these dims."""


class Running(Protocol):
    """A running reduction along a dim."""

    def __call__(self, operand: ArrayLike, axis: int = 0, reverse: bool = False) -> Array:
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


# folds and scans by any operation, in steps for all elements at once

_REDUCTIONS = (
    (reduce_sum, table.add, elementwise.add),
    (reduce_prod, table.mul, elementwise.multiply),
    (reduce_max, table.max, elementwise.maximum),
    (reduce_min, table.min, elementwise.minimum),
    (reduce_and, table.bitwise_and, elementwise.bitwise_and),
    (reduce_or, table.bitwise_or, elementwise.bitwise_or),
    (reduce_xor, table.bitwise_xor, elementwise.bitwise_xor),
)


@named("lax.reduce(mnp.arange(4), 10, lambda a, b: a + b, (0,)).tolist()", "16")
def reduce(
    operands: Any, init_values: Any, computation: Callable[..., Any], dimensions: Sequence[int]
) -> Any:
    """Return an array, or a tree of arrays of one shape, reduced over dims by any operation.

    An operation that has a reduction, such as ``lax.add``, is done as that. Any other is applied
    to neighbours, then to what it gave, and so on: in about log2 of the size steps.

    Raises:
        TreeError: if the trees differ.
        ShapeError: if the arrays have different shapes.
    """
    arrays, begin, structure = to_reduce(operands, init_values, "reduce")
    shape = arrays[0].shape
    dims = normalised_axes(dimensions, len(shape), "reduce")
    known = next((f for f, *of in _REDUCTIONS if any(g is computation for g in of)), None)
    if known is not None and len(arrays) == 1:
        return computation(begin[0], known(arrays[0], dims))
    count = math.prod(shape[d] for d in dims)  # -1 would not be enough where a dim is empty
    kept = (count, *(n for d, n in enumerate(shape) if d not in dims))
    lines = [reshape(moveaxis(x, dims, range(len(dims))), kept) for x in arrays]
    if not count:  # what it begins with, in the shape that is left
        return trees.unflatten(structure, [broadcast_to(v, kept[1:]) for v in begin])
    combine = on_leaves("reduce", computation, structure)
    return trees.unflatten(structure, combine(begin, _in_pairs(combine, lines)))


def to_reduce(operands: Any, init_values: Any, what: str) -> tuple[list[Any], list[Any], Any]:
    """Return the arrays, what each begins with in its dtype, and the tree that they are."""
    leaves, structure = trees.flatten(operands)
    firsts, other = trees.flatten(init_values)
    if structure != other or not leaves:
        raise TreeError(
            f"{what}: operands are the tree {structure}, init_values {other}; each array has one "
            "value to begin with."
        )
    arrays = [as_array(x) for x in leaves]
    shapes = [x.shape for x in arrays]
    if any(shape != shapes[0] for shape in shapes):
        raise ShapeError(f"{what}: operands have shapes {shapes}; give one.")
    begin = [as_array(v).astype(x.dtype, copy=False) for v, x in zip(firsts, arrays, strict=True)]
    return arrays, begin, structure


def _in_pairs(combine: Callable[..., list[Any]], lines: list[Any]) -> list[Any]:
    """Combine neighbours along the first dim, then what that gave, until one is left."""
    while (n := lines[0].shape[0]) > 1:
        pairs = combine(*([getitem(x, slice(i, n - n % 2, 2)) for x in lines] for i in (0, 1)))
        if n % 2:
            rest = [getitem(x, slice(n - 1, None)) for x in lines]
            pairs = [concatenate(ends) for ends in zip(pairs, rest, strict=True)]
        lines = pairs
    return [getitem(x, 0) for x in lines]


def on_leaves(what: str, function: Callable[..., Any], structure: Any) -> Callable[..., list[Any]]:
    """Return a function of two lists of leaves from one of two trees."""

    def combine(a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
        found = function(*(trees.unflatten(structure, leaves) for leaves in (a, b)))
        leaves, own = trees.flatten(found)
        if own != structure:
            raise TreeError(
                f"{what}: the function returned the tree {own} for two trees {structure}; it "
                "returns one like its arguments."
            )
        return [as_array(x) for x in leaves]

    return combine


@named("lax.associative_scan(mnp.add, mnp.arange(5)).tolist()", "[0, 1, 3, 6, 10]")
def associative_scan(fn: Callable[..., Any], elems: T, reverse: bool = False, axis: int = 0) -> T:
    """Return what an associative operation makes of each element and those before it.

    In about 2 log2 of the size steps, each on all devices at once.

    Raises:
        ShapeError: if the arrays differ in the size of the dim.
        TreeError: if the function returns another tree.
    """
    what = "associative_scan"
    leaves, structure = trees.flatten(elems)
    arrays = [as_array(x) for x in leaves]
    if not arrays:
        return elems
    dims = [normalised_axes((axis,), x.ndim, what)[0] for x in arrays]
    sizes = [x.shape[d] for x, d in zip(arrays, dims, strict=True)]
    if len(set(sizes)) > 1:
        raise ShapeError(
            f"{what}: the arrays have sizes {sizes} along axis {axis}; they must be the same."
        )
    if reverse:
        arrays = [flip(x, d) for x, d in zip(arrays, dims, strict=True)]
    found = _prefixes(on_leaves(what, fn, structure), arrays, dims)
    if reverse:
        found = [flip(x, d) for x, d in zip(found, dims, strict=True)]
    return trees.unflatten(structure, found)


def _part(x: Any, dim: int, *span: int | None) -> Any:
    return getitem(x, (*(slice(None),) * dim, slice(*span)))


def _prefixes(
    combine: Callable[..., list[Any]], arrays: list[Any], dims: Sequence[int]
) -> list[Any]:
    """Scan pairs of neighbours, and from that the elements between."""

    def parts(values: Sequence[Any], *span: int | None) -> list[Any]:
        return [_part(x, d, *span) for x, d in zip(values, dims, strict=True)]

    size = arrays[0].shape[dims[0]]
    if size < 2:
        return arrays
    pairs = combine(parts(arrays, 0, size - 1, 2), parts(arrays, 1, None, 2))
    odd = _prefixes(combine, pairs, dims)
    before = odd if size % 2 else parts(odd, 0, -1)
    even = parts(arrays, 0, 1)
    if size > 2:
        later = combine(before, parts(arrays, 2, None, 2))
        even = [
            concatenate([a.astype(b.dtype, copy=False), b], axis=d)
            for a, b, d in zip(even, later, dims, strict=True)
        ]
    return [_dealt(a, b, d, size) for a, b, d in zip(even, odd, dims, strict=True)]


def _dealt(even: Any, odd: Any, dim: int, size: int) -> Any:
    """Return elements of two arrays by turns along a dim."""
    head = ((None, None, 1),) * dim
    tail = ((None, None, 1),) * (even.ndim - dim - 1)
    base = _part(each_repeated(even.astype(odd.dtype, copy=False), dim, 2), dim, 0, size)
    return bind("overlay", base, odd, slices=(*head, (1, None, 2), *tail))


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
def argmax(operand: ArrayLike, axis: int, index_dtype: DtypeLike) -> Array:
    """Return the positions of the first maximum along a dim, in a dtype of integers."""
    return reductions.argmax(operand, axis).astype(as_dtype(index_dtype), copy=False)


@named('lax.argmin(mnp.asarray([3, 9, 9]), 0, "int32").tolist()', "0")
def argmin(operand: ArrayLike, axis: int, index_dtype: DtypeLike) -> Array:
    """Return the positions of the first minimum along a dim, in a dtype of integers."""
    return reductions.argmin(operand, axis).astype(as_dtype(index_dtype), copy=False)


@overload
def sort(
    operand: ArrayLike, dimension: int = -1, is_stable: bool = True, num_keys: int = 1
) -> Array: ...
@overload
def sort(
    operand: Sequence[ArrayLike], dimension: int = -1, is_stable: bool = True, num_keys: int = 1
) -> tuple[Array, ...]: ...
@named(
    "[x.tolist() for x in lax.sort((mnp.asarray([2, 1]), mnp.asarray([7, 8])))]", "[[1, 2], [8, 7]]"
)
def sort(operand: Any, dimension: int = -1, is_stable: bool = True, num_keys: int = 1) -> Any:
    """Return an array sorted along a dim, or a sequence of arrays of one shape sorted together.

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
    keys: ArrayLike, values: ArrayLike, dimension: int = -1, is_stable: bool = True
) -> tuple[Array, Array]:
    """Return keys sorted along a dim, and values in the same order."""
    first, second = sort((keys, values), dimension, is_stable)
    return first, second


top_k = parting.top_k


# products


@named(
    "lax.dot_general(mnp.ones((2, 3, 4)), mnp.ones((2, 4)), (((2,), (1,)), ((0,), (0,)))).shape",
    "(2, 3)",
)
def dot_general(
    lhs: ArrayLike,
    rhs: ArrayLike,
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
    lhs: ArrayLike,
    rhs: ArrayLike,
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
def batch_matmul(lhs: ArrayLike, rhs: ArrayLike, precision: Any = None) -> Array:
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
def stop_gradient(x: T) -> T:
    """Return the tree as it is; a derivative takes it as constant."""
    return trees.map(lambda leaf: bind("stop_gradient", leaf) if is_traced(leaf) else leaf, x)


@named("lax.optimization_barrier((mnp.ones(2), 1))[1].tolist()", "1", operand="a tree of arrays.")
def optimization_barrier(operand: T, /) -> T:
    """Return the tree with its leaves as arrays; nothing is reordered here in any case."""
    return trees.map(as_array, operand)
