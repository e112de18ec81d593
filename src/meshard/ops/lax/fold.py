"""Folds and scans by any associative operation, in steps for all elements at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from meshard.errors import ShapeError, TreeError
from meshard.ops.array import elementwise
from meshard.ops.array.index import getitem
from meshard.ops.array.join import concatenate, flip, repeat
from meshard.ops.array.shape import broadcast_to, moveaxis, reshape
from meshard.ops.engine.dims import normalised_axes
from meshard.ops.lax import table
from meshard.ops.lax.reduce import (
    reduce_and,
    reduce_max,
    reduce_min,
    reduce_or,
    reduce_prod,
    reduce_sum,
    reduce_xor,
)
from meshard.ops.lax.table import named
from meshard.runtime import trees
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array

_REDUCTIONS = (
    (reduce_sum, table.add, elementwise.add),
    (reduce_prod, table.mul, elementwise.multiply),
    (reduce_max, table.max, elementwise.maximum),
    (reduce_min, table.min, elementwise.minimum),
    (reduce_and, table.bitwise_and, elementwise.bitwise_and),
    (reduce_or, table.bitwise_or, elementwise.bitwise_or),
    (reduce_xor, table.bitwise_xor, elementwise.bitwise_xor),
)


@named(
    "lax.reduce(mnp.arange(4), 10, lambda a, b: a + b, (0,)).tolist()",
    "16",
    operands="an array, or a tree of arrays of one shape.",
)
def reduce(
    operands: Any, init_values: Any, computation: Callable[..., Any], dimensions: Sequence[int]
) -> Any:
    """Return arrays reduced over some dims by any operation.

    An operation that has a reduction, such as ``lax.add``, is done as that. Any other is applied
    to neighbours, then to what it gave, and so on: in about log2 of the size steps.

    Raises:
        TreeError: if the trees differ.
        ShapeError: if the arrays have different shapes.
    """
    leaves, structure = trees.flatten(operands)
    firsts, other = trees.flatten(init_values)
    if structure != other or not leaves:
        raise TreeError(
            f"reduce: operands are the tree {structure}, init_values {other}; each array has one "
            "value to begin with."
        )
    arrays = [as_array(x) for x in leaves]
    shape = arrays[0].shape
    if any(x.shape != shape for x in arrays):
        raise ShapeError(f"reduce: operands have shapes {[x.shape for x in arrays]}; give one.")
    dims = normalised_axes(dimensions, len(shape), "reduce")
    begin = [as_array(v).astype(x.dtype, copy=False) for v, x in zip(firsts, arrays, strict=True)]
    known = next((f for f, *of in _REDUCTIONS if any(g is computation for g in of)), None)
    if known is not None and len(arrays) == 1:
        return computation(begin[0], known(arrays[0], dims))
    kept = [n for d, n in enumerate(shape) if d not in dims]
    count = math.prod(shape[d] for d in dims)  # -1 would not be enough where a dim is empty
    lines = [reshape(moveaxis(x, dims, range(len(dims))), (count, *kept)) for x in arrays]
    combine = _on_leaves("reduce", computation, structure)
    while lines[0].shape[0] > 1:
        n = lines[0].shape[0]
        pairs = combine(*([getitem(x, slice(i, n - n % 2, 2)) for x in lines] for i in (0, 1)))
        if n % 2:
            rest = [getitem(x, slice(n - 1, None)) for x in lines]
            pairs = [concatenate(ends) for ends in zip(pairs, rest, strict=True)]
        lines = pairs
    if not lines[0].shape[0]:  # what it begins with, in the shape that is left
        spread = [broadcast_to(v, x.shape[1:]) for v, x in zip(begin, lines, strict=True)]
        return trees.unflatten(structure, spread)
    return trees.unflatten(structure, combine(begin, [getitem(x, 0) for x in lines]))


def _on_leaves(what: str, function: Callable[..., Any], structure: Any) -> Callable[..., list[Any]]:
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
def associative_scan(
    fn: Callable[..., Any], elems: Any, reverse: bool = False, axis: int = 0
) -> Any:
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
    found = _prefixes(_on_leaves(what, fn, structure), arrays, dims)
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
    base = _part(repeat(even.astype(odd.dtype, copy=False), 2, dim), dim, 0, size)
    return bind("overlay", base, odd, slices=(*head, (1, None, 2), *tail))
