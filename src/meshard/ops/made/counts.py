"""Histograms of several dims, and sorting by several keys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshard.algebra.arguments import items_of
from meshard.errors import ArgumentError, ShapeError
from meshard.ops.array.create import linspace
from meshard.ops.array.samplesort import sort_split
from meshard.ops.array.shape import ravel, reshape
from meshard.ops.array.take import take_along_axis
from meshard.ops.checked import checked, normalised_axes
from meshard.ops.dtypes.laws import common_dtype, default_float, is_whole
from meshard.ops.engine.later import is_array, is_traced, when_laid_out
from meshard.ops.engine.operand_mesh import replicated_beside
from meshard.ops.reductions.histogram import histogram_bin_edges
from meshard.ops.reductions.reduce import sum as sum_
from meshard.ops.reductions.scan import cumsum, diff
from meshard.ops.reductions.sort import Way, argsort, searchsorted, sort, way_to_sort
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array
from meshard.runtime.types import ArrayLike


def _columns(sample: Any) -> list[Any]:
    """Return the coordinates of points, from rows of points or a list of coordinates."""
    if is_array(sample) or isinstance(sample, np.ndarray):
        x = as_array(sample)
        if x.ndim == 1:
            return [x]
        if x.ndim != 2:
            raise ShapeError(
                f"histogramdd: a sample has a row for each point, but its shape is {x.shape}."
            )
        return [x[:, d] for d in range(x.shape[1])]
    given = items_of(sample, "histogramdd", "sample", "coordinates", ordered=True)
    found = [ravel(as_array(c)) for c in given]
    if not found:
        raise ShapeError("histogramdd: the sample has no coordinates.")
    if len({c.shape for c in found}) > 1:
        sizes = ", ".join(str(c.shape[0]) for c in found)
        raise ShapeError(f"histogramdd: the coordinates have different sizes: {sizes}.")
    common = common_dtype("histogramdd", [c.dtype for c in found])
    return [c.astype(common, copy=False) for c in found]


def _bins_of(bins: Any, rank: int) -> list[Any]:
    if isinstance(bins, (int, np.integer)):
        return [bins] * rank
    given = list(items_of(bins, "histogramdd", "bins", "numbers or edges", ordered=True))
    if len(given) != rank:
        raise ArgumentError(
            f"histogramdd: {len(given)} bins for {rank} dims; give a number, or for each dim a "
            "number or edges."
        )
    return given


def _edges_along(x: Any, bins: Any, ends: Any) -> Any:
    """Return the edges along a dim; equal bins may be too narrow to differ, as in NumPy."""
    if isinstance(bins, (int, np.integer)) and bins > 0 and not is_traced(x):
        rim = histogram_bin_edges(x, 1, ends)
        return linspace(rim[0], rim[1], int(bins) + 1, dtype=rim.dtype)
    return histogram_bin_edges(x, bins, ends)


@checked
def histogramdd(
    sample: Any,
    bins: Any = 10,
    range: Sequence[Any] | None = None,
    density: bool = False,
    weights: ArrayLike | None = None,
) -> tuple[Array, tuple[Array, ...]]:
    """Return how many points fall into each bin of a grid, and the bins' edges along each dim.

    Each device counts its own points; the counts are added.

    Args:
        sample: a row for each point, or a list of coordinates, one for each dim.
        bins: a number of equal bins, or for each dim a number or rising edges.
        range: for each dim the first and the last edge of equal bins, or None for the extremes.
        density: whether to divide so that the integral is one.
        weights: what each point counts.

    Raises:
        ArgumentError: if there are not bins or ranges for each dim, or they give no bins.
        ShapeError: if coordinates or weights do not belong to the same points.

    >>> import meshard.numpy as mnp
    >>> points = mnp.asarray([[0.0, 0.0], [1.0, 1.0], [1.0, 0.0]])
    >>> mnp.histogramdd(points, 2)[0].tolist()
    [[1.0, 0.0], [1.0, 1.0]]
    """
    columns = _columns(sample)
    rank = len(columns)
    ranges = [None] * rank if range is None else range
    limits = items_of(ranges, "histogramdd", "range", "pairs", ordered=True)
    if len(limits) != rank:
        raise ArgumentError(
            f"histogramdd: {len(limits)} ranges for {rank} dims; give one for each."
        )
    edges, places = [], []
    for x, own, ends in zip(columns, _bins_of(bins, rank), limits, strict=True):
        line = _edges_along(x, own, ends)
        at = searchsorted(line, x, "right")
        # The last edge belongs to the last bin; 0 and the last number are outside.
        places.append(at - bind("equal", x, line[-1:]).astype(np.int64))
        edges.append(line)
    sizes = tuple([line.shape[0] - 1 for line in edges])
    flat: Any = 0
    for at, size in zip(places, sizes, strict=True):
        flat = flat * (size + 2) + at
    outer = tuple(size + 2 for size in sizes)
    operands = [flat, np.empty(0, np.int64)]
    if weights is not None:
        w = as_array(weights)
        if w.shape != flat.shape:
            raise ShapeError(f"histogramdd: weights of shape {w.shape} for {flat.shape[0]} points.")
        operands.append(w)
    counted = bind("bincount", *operands, bins=math.prod(outer), weighted=weights is not None)
    found = reshape(counted, outer)[tuple([slice(1, -1)] * rank)].astype(
        default_float(), copy=False
    )
    if density:
        for d, line in enumerate(edges):
            widths = diff(line)
            found = found / reshape(widths, (1,) * d + (-1,) + (1,) * (rank - d - 1))
        total = sum_(reshape(counted, outer)[tuple([slice(1, -1)] * rank)])
        found = found / total
    return found, tuple(edges)


@checked
def histogram2d(
    x: ArrayLike,
    y: ArrayLike,
    bins: Any = 10,
    range: Sequence[Any] | None = None,
    density: bool = False,
    weights: ArrayLike | None = None,
) -> tuple[Array, Array, Array]:
    """Return how many points of a plane fall into each bin, and the edges along both dims.

    Args:
        x: the first coordinates, of one dim.
        y: the second coordinates.
        bins: a number of equal bins, edges for both dims, or a pair of numbers or edges.
        range: for each dim the first and the last edge.
        density: whether to divide so that the integral is one.
        weights: what each point counts.

    >>> import meshard.numpy as mnp
    >>> x = mnp.asarray([0.0, 1.0, 1.0])
    >>> mnp.histogram2d(x, x * 2, 2)[0].tolist()
    [[1.0, 0.0], [0.0, 2.0]]
    """
    given = bins
    if not isinstance(bins, (int, np.integer)):
        given = items_of(bins, "histogram2d", "bins", "numbers or edges", ordered=True)
        given = given if len(given) in (1, 2) else (bins, bins)
    found, edges = histogramdd([x, y], given, range, density, weights)
    return found, edges[0], edges[1]


# several keys


def _ranks(x: Any) -> Any:
    """Return for each element of an array of one dim how many distinct ones are less."""
    values, order = sort_split(x, bind("positions", x))
    before = bind("pad_zeros", values, dims=((0, (1, -1)),))
    rises = bind("not_equal", values, before)
    if not is_whole(x.dtype):  # NaN is equal to NaN here
        same = bind("logical_and", bind("isnan", values), bind("isnan", before))
        rises = bind("logical_and", rises, bind("logical_not", same))
    rises = bind("logical_and", rises, bind("not_equal", bind("positions", values), 0))
    return sort_split(order, cumsum(rises.astype(np.int64)))[1]


def _lexsorted(*keys: Any, dim: int) -> Any:
    """Sort by keys of which the last counts most."""
    first = keys[0]
    if first.ndim == 1 and way_to_sort(first, 0) is Way.SPREAD:
        rank = _ranks(keys[-1])
        for key in keys[-2::-1]:  # which decide where those behind them are equal
            rank = _ranks(rank * key.shape[0] + _ranks(key))
        return argsort(rank)
    order = argsort(first, dim)
    for key in keys[1:]:
        again = argsort(take_along_axis(key, order, dim, "clip"), dim)
        order = take_along_axis(order, again, dim, "clip")
    return order


@checked
def lexsort(keys: Any, axis: int = -1) -> Array:
    """Return the positions that sort by several keys, of which the last counts most.

    Args:
        keys: arrays of one shape, or one array whose first dim holds them.
        axis: the dim to sort along.

    Raises:
        ShapeError: if there are no keys, or their shapes differ.

    >>> import meshard.numpy as mnp
    >>> mnp.lexsort((mnp.asarray([1, 5, 1]), mnp.asarray([9, 0, 0]))).tolist()
    [2, 1, 0]
    """
    stacked = is_array(keys) or isinstance(keys, np.ndarray)
    whole = as_array(keys) if stacked else None
    if whole is not None and whole.ndim:
        arrays = [whole[i] for i in np.arange(whole.shape[0])]
    else:
        given = items_of(keys, "lexsort", "keys", "arrays", ordered=True)
        arrays = [as_array(k) for k in given]
    if not arrays or len({k.shape for k in arrays}) > 1:
        shapes = ", ".join(str(k.shape) for k in arrays) or "none"
        raise ShapeError(f"lexsort: takes keys of one shape, got {shapes}.")
    if not arrays[0].ndim:
        return replicated_beside("lexsort", np.asarray(0, np.int64), *arrays)
    (dim,) = normalised_axes(axis, arrays[0].ndim, "lexsort")
    return when_laid_out("lexsort", _lexsorted, *arrays, dim=dim)


@checked
def sort_complex(a: ArrayLike) -> Array:
    """Return the array sorted along its last dim, as complex numbers.

    >>> import meshard.numpy as mnp
    >>> mnp.sort_complex(mnp.asarray([2.0, 1.0])).tolist()
    [(1+0j), (2+0j)]
    """
    x = sort(a)
    if x.dtype.kind == "c":
        return x
    short = x.dtype in (np.int8, np.uint8, np.int16, np.uint16)
    return x.astype(np.complex64 if short else np.complex128)
