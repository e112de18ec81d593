"""Sorting, and searching in what is sorted.

A dim that is whole is sorted in place; of a split dim the axes move to another dim that is long
enough, which then is sorted in place. Where there is none, as with one dim, the sort is spread:
see `samplesort`. No device ever holds more than about its share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Any, final

import numpy as np

from meshard.algebra.arguments import choice_of
from meshard.algebra.sharding import NamedSharding
from meshard.algebra.spec import PartitionSpec
from meshard.errors import ArgumentError, DtypeError, ShapeError
from meshard.ops.array.join import flip, stack
from meshard.ops.array.samplesort import argsort_split, regular, sort_split
from meshard.ops.array.shape import moveaxis, ravel, reshape
from meshard.ops.array.take import take
from meshard.ops.checked import checked, normalised_axes
from meshard.ops.dtypes.laws import SMALL_FLOATS, promoted, same_dtype
from meshard.ops.engine.later import Advised, is_traced, relaid, when_laid_out
from meshard.ops.ordering import argsort_block, sort_block
from meshard.ops.row import Dtype, Op, Operand, Params, Partial, Positions, RuleText, register
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array
from meshard.runtime.types import ArrayLike, Block
from meshard.runtime.world import here
from meshard.tuning import GATHERED_SORT


def sort_rule(operands: Sequence[Operand], params: Params) -> RuleText:
    """Return the rule of a row whose dim ``dim`` must be whole."""
    names = [f"d{i}" for i in range(len(operands[0][0]))]
    marked = [f"!{n}" if i == params["dim"] else n for i, n in enumerate(names)]
    return f"{' '.join(marked)} -> {' '.join(names)}"


def position_law(operands: Sequence[Operand], params: Params) -> tuple[Dtype, ...]:
    """Return the dtype of positions."""
    return (np.dtype(np.int64),)


register(Op("sort", sort_rule, sort_block, dtypes=same_dtype))
register(Op("argsort", sort_rule, argsort_block, dtypes=position_law))


class Way(Enum):
    """How an array is sorted along a dim."""

    WHOLE = "along the dim as it is, or with its axes moved to another dim"
    GATHERED = "by each device for itself, since the array is small"
    SPREAD = "across devices: it has one dim, which is split"
    MERGED = "as rows, over which the axes are moved"
    EACH = "row by row, each across devices"


def way_to_sort(x: Array, dim: int) -> Way:
    """Return how an array on a mesh, or on one device, is sorted along a dim."""
    layout = x.aval.layout
    others = [d for d in range(x.ndim) if d != dim]
    shards = [sum(a < b for a, b in pairwise(c)) for c in layout.cuts]
    volume = math.prod(x.shape[d] for d in others)
    if shards[dim] < 2 or not volume:
        return Way.WHOLE
    axes = len(layout.cuts[dim]) - 1
    if any(x.shape[d] >= (len(layout.cuts[d]) - 1) * axes for d in others):
        return Way.WHOLE
    if x.nbytes <= GATHERED_SORT:
        return Way.GATHERED
    if x.ndim == 1:
        return Way.SPREAD
    rows = volume >= axes * math.prod(shards[d] for d in others)
    return Way.MERGED if rows else Way.EACH


def _alone(x: Array, name: str, descending: bool) -> Any:
    """Sort an array of one dim that is split."""
    if name == "sort":
        return sort_split(x, descending=descending)[0]
    return argsort_split(x, descending=descending)


def _along(x: Array, *, dim: int, name: str, descending: bool) -> Any:
    """Sort along a dim in the way that the layout calls for.

    Args:
        x: the array.
        dim: the dim.
        name: the row that sorts a dim that is whole.
        descending: whether the greatest comes first.
    """
    x = regular(x)
    way = way_to_sort(x, dim)
    if way is Way.WHOLE:
        return bind(name, x, dim=dim, descending=descending)
    if way is Way.GATHERED:
        return as_laid_out(bind(name, x, dim=dim, descending=descending), x, name)
    if way is Way.SPREAD:
        return _alone(x, name, descending)
    last = moveaxis(x, dim, -1)
    rows = reshape(last, (-1, x.shape[dim]))
    if way is Way.MERGED:
        # The merged dim is split, which the dims that it is made of may be too short to be.
        found = as_laid_out(bind(name, rows, dim=1, descending=descending), rows, name)
    else:
        found = stack([_alone(rows[i], name, descending) for i in range(len(rows))])
    return moveaxis(reshape(found, last.shape), -1, dim)


def as_laid_out(found: Any, x: Array, name: str) -> Any:
    """Return a result laid out like the operand of the same shape."""
    kind = here().type_of(x.shape, found.dtype, x.sharding, x.committed)
    return relaid(found, kind, name)


def operand_of(name: str, a: Any, axis: int | None) -> tuple[Array, int]:
    """Return an array, and its dim of a number; flat without one.

    Raises:
        ShapeError: if the array has no dims.
    """
    x = as_array(a)
    if axis is None:
        x, axis = ravel(x), 0
    if not x.ndim:
        raise ShapeError(
            f"{name}: an array without dims has nothing to sort along; give it one with "
            "reshape(x, (1,)), or say axis=None."
        )
    (dim,) = normalised_axes(axis, x.ndim, name)
    return x, dim


_SORTS = ("quicksort", "mergesort", "heapsort", "stable")


def _check_kind(name: str, kind: str | None) -> None:
    """Refuse names of kinds that NumPy does not know; the known ones change nothing."""
    if kind is not None:
        choice_of(kind, _SORTS, name, "kind")


@checked
def sort(
    a: ArrayLike,
    axis: int | None = -1,
    kind: str | None = None,
    order: None = None,
    *,
    descending: bool = False,
    stable: bool | None = True,
) -> Array:
    """Return the array sorted along a dim; NaN counts as the greatest.

    Along a split dim of several, the axes move to another dim. Where the array has one dim, and
    that is split, each device sorts its own block, the blocks are exchanged by value and merged,
    and the result is laid out like the array. Nothing is brought together on one device.

    Args:
        a: the array.
        axis: the dim; None for the flat array.
        kind: accepted as in NumPy; the kernel chooses.
        order: accepted as in NumPy; arrays have no fields.
        descending: whether the greatest comes first.
        stable: accepted as in the standard; equal elements always keep their order.

    Raises:
        ArgumentError: if ``axis`` names no dim.
        ShapeError: if the array has no dims.

    >>> import meshard.numpy as mnp
    >>> mnp.sort(mnp.asarray([3, 1, 2]), descending=True).tolist()
    [3, 2, 1]
    """
    _check_kind("sort", kind)
    x, dim = operand_of("sort", a, axis)
    return when_laid_out("sort", _along, x, dim=dim, name="sort", descending=bool(descending))


@checked
def argsort(
    a: ArrayLike,
    axis: int | None = -1,
    kind: str | None = None,
    order: None = None,
    *,
    descending: bool = False,
    stable: bool | None = True,
) -> Array:
    """Return the positions that would sort the array along a dim; equal elements keep their order.

    Laid out as by `sort`, whose arguments it takes.

    >>> import meshard.numpy as mnp
    >>> mnp.argsort(mnp.asarray([3, 1, 2])).tolist()
    [1, 2, 0]
    """
    _check_kind("argsort", kind)
    x, dim = operand_of("argsort", a, axis)
    return when_laid_out("argsort", _along, x, dim=dim, name="argsort", descending=bool(descending))


# searching


def _search_rule(operands: Sequence[Operand], params: Params) -> RuleText:
    names = " ".join(f"v{i}" for i in range(len(operands[1][0])))
    return f"a, {names} -> {names}"


def _search(a: Block, v: Block, *, side: Any) -> Block:
    """Count the elements of one cell that come before each value; the cells' counts add up."""
    if a.dtype in SMALL_FLOATS:
        a, v = a.astype(np.float32), v.astype(np.float32)
    return np.asarray(np.searchsorted(a, v, side), np.int64)


register(
    Op(
        "searchsorted",
        _search_rule,
        _search,
        dtypes=position_law,
        partial=Partial(np.add, "counts"),
        alike=0,
    )
)


def _search_pieces_rule(operands: Sequence[Operand], params: Params) -> RuleText:
    names = " ".join(f"v{i}" for i in range(len(operands[1][0])))
    return f"a, {names}, !p -> {names}"


def _search_pieces(a: Block, v: Block, firsts: Block, *, side: Any) -> Block:
    return _search(a, v, side=side)


register(
    Op(
        "search_pieces",
        _search_pieces_rule,
        _search_pieces,
        dtypes=position_law,
        positions=Positions(lambda params: (0,), by_value=True),
    )
)


@final
@dataclass(frozen=True)
class _Searched(Advised):
    """Where values belong in a sorted array; those that are split go where they belong."""

    side: str

    def __call__(self, *operands: Any) -> Any:
        """Return the places."""
        (x, values), side = operands, self.side
        own, other = x.aval.sharding, values.aval.sharding
        dtype = promoted([x.dtype, values.dtype])
        apart = (
            isinstance(own, NamedSharding)
            and isinstance(other, NamedSharding)
            and own.mesh == other.mesh
            and x.size > 0
            and min(x.aval.layout.piece_count, values.aval.layout.piece_count) > 1
            and dtype.kind in "iuf"
            and dtype.isbuiltin
        )
        if not apart:
            return bind("searchsorted", x, values, side=side)
        x, values = (bind("astype", y, dtype=dtype) if y.dtype != dtype else y for y in (x, values))
        whole = NamedSharding(own.mesh, PartitionSpec(), memory_kind=own.memory_kind)

        def everywhere(y: Any) -> Any:
            kind = here().type_of(y.shape, dtype, whole, y.aval.committed)
            return relaid(y, kind, "searchsorted")

        # A short array goes to the values; else values go to their places, and these come back.
        if x.size * dtype.itemsize * own.mesh.size <= values.size * (dtype.itemsize + 8):
            return bind("searchsorted", everywhere(x), values, side=side)
        places = tuple([min(c, x.shape[0] - 1) for c in x.aval.layout.cuts[0][:-1]])
        firsts = bind("take_positions", x, dims=((0, (places,)),))
        return bind("search_pieces", x, values, everywhere(firsts), side=side)


_SEARCHES = ("scan", "scan_unrolled", "sort", "compare_all")


@checked
def searchsorted(
    a: ArrayLike,
    v: ArrayLike,
    side: str = "left",
    sorter: ArrayLike | None = None,
    *,
    method: str = "scan",
) -> Array:
    """Return where values would be inserted in a sorted array to keep it sorted.

    Where both are split, values go to where they belong, and their places come back; the result is
    laid out like the values. Where only the sorted array is split, each device counts its own
    elements before each value, and the counts are added. In an array that is not sorted, places
    depend on how it is split.

    Args:
        a: the sorted array, of one dim.
        v: the values, of any shape.
        side: ``"left"`` for the first place, ``"right"`` for the last.
        sorter: positions that sort ``a``, as from `argsort`.
        method: one of JAX's words, which say how XLA searches; each has the same result.

    Raises:
        ShapeError: if ``a`` has not one dim.
        ArgumentError: if ``side`` or ``method`` is another word.

    >>> import meshard.numpy as mnp
    >>> mnp.searchsorted(mnp.asarray([1, 2, 2, 3]), mnp.asarray([2, 9])).tolist()
    [1, 4]
    """
    x, values = as_array(a), as_array(v)
    if x.ndim != 1:
        raise ShapeError(
            f"searchsorted: the array to search must have one dim, but its shape is {x.shape}."
        )
    choice_of(side, ("left", "right"), "searchsorted", "side")
    choice_of(method, _SEARCHES, "searchsorted", "method")
    if sorter is not None:
        order = as_array(sorter)
        if order.shape != x.shape:
            raise ShapeError(
                f"searchsorted: sorter must have the shape of the array to search, {x.shape}, but "
                f"its shape is {order.shape}."
            )
        x = take(x, order)
    return when_laid_out("searchsorted", _Searched(side), x, values)


@checked
def digitize(x: ArrayLike, bins: ArrayLike, right: bool = False) -> Array:
    """Return for each element the number of the bin that it falls into.

    Args:
        x: the array.
        bins: the edges, rising or falling.
        right: whether a bin holds its right edge instead of its left one.

    Raises:
        ArgumentError: if the edges neither rise nor fall; traced edges cannot be checked.
        DtypeError: if one of both is complex.

    >>> import meshard.numpy as mnp
    >>> mnp.digitize(mnp.asarray([0.2, 6.4, 3.0]), mnp.asarray([0.0, 1.0, 2.5, 4.0])).tolist()
    [1, 4, 3]
    """
    value, edges = as_array(x), as_array(bins)
    for name, given in (("x", value), ("bins", edges)):
        if given.dtype.kind == "c":
            raise DtypeError(
                f"digitize: complex numbers have no order, and the dtype of {name} is "
                f"{given.dtype}. Give their real parts, or their absolute values."
            )
    side = "left" if right else "right"
    if is_traced(edges):  # whether they rise or fall is for the kernels
        rising = searchsorted(edges, value, side)
        falling = edges.shape[0] - searchsorted(flip(edges), value, side)
        return bind("where", edges[-1] >= edges[0], rising, falling) if edges.size else rising
    if bool(bind("less_equal", edges[:-1], edges[1:]).all()):
        return searchsorted(edges, value, side)
    if not bool(bind("greater_equal", edges[:-1], edges[1:]).all()):
        raise ArgumentError(
            "digitize: the bins must be edges that rise or fall, but these do neither."
        )
    return edges.shape[0] - searchsorted(flip(edges), value, side)
