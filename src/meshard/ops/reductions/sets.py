"""Sets: the distinct elements of arrays, and what is in both, either or one.

All of these use the spread sort: equal elements become neighbours, and only marks cross devices.
The results' shapes depend on the values; each piece stays where the sort has brought it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, overload

import numpy as np

from meshard.algebra.arguments import choice_of
from meshard.algebra.layout import balanced_cuts
from meshard.algebra.propagate import Split
from meshard.algebra.sharding import NamedSharding
from meshard.errors import ArgumentError, ShapeError
from meshard.ops.array.create import full
from meshard.ops.array.join import concatenate, stack
from meshard.ops.array.nonzero import GIVE_SIZE, filled, first_true, mask_of, nonzero
from meshard.ops.array.samplesort import compress as kept
from meshard.ops.array.samplesort import known, regular, sort_split
from meshard.ops.array.shape import moveaxis, ravel, reshape
from meshard.ops.array.take import take
from meshard.ops.checked import checked, normalised_axes
from meshard.ops.dtypes.laws import SMALL_FLOATS, common_dtype, is_whole
from meshard.ops.engine.later import at_run_time, concrete, is_traced, relaid
from meshard.ops.engine.operand_mesh import named_sharding, replicated_beside
from meshard.ops.reductions.distinct import Wanted, distinct
from meshard.ops.reductions.scan import cumsum
from meshard.ops.reductions.sort import argsort, searchsorted
from meshard.ops.row import Dtype, Op, Operand, Params, Partial, RuleText, register
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array
from meshard.runtime.types import ArrayLike, Block
from meshard.runtime.world import here


class UniqueAllResult(NamedTuple):
    """What `unique_all` returns."""

    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array


class UniqueCountsResult(NamedTuple):
    """What `unique_counts` returns."""

    values: Array
    counts: Array


class UniqueInverseResult(NamedTuple):
    """What `unique_inverse` returns."""

    values: Array
    inverse_indices: Array


def _unique(
    x: Any, wanted: Wanted, size: int | None, fill_value: Any, *, equal_nan: bool = False
) -> list[Any]:
    """Return the distinct elements, and what else is wanted."""
    if size is None and is_traced(x):  # known values that are followed: they are picked by position
        known = concrete(x, "unique", GIVE_SIZE)
        found = _unique(known, wanted._replace(indices=True), None, None, equal_nan=equal_nan)
        return [take(ravel(x), found[1]), *found[1 if wanted.indices else 2 :]]
    if size is None:
        return _all_distinct(regular(x), wanted, equal_nan)
    flat = ravel(x)
    if wanted.indices or wanted.inverse:
        values, order = sort_split(flat, bind("positions", flat))
    else:
        (values,) = sort_split(flat)
        order = values
    first = _firsts(values, equal_nan)
    values, _, order_of, places = _first_of(first, values, order, size, fill_value)
    results: list[Any] = [values]
    if wanted.indices:
        results.append(order_of)
    if wanted.inverse:
        rank = cumsum(first) - 1
        back = sort_split(order, rank)[1]
        results.append(reshape(back, x.shape))
    if wanted.counts:
        ends = bind("where", bind("less", places, 0), flat.size, places)
        results.append(ends[1:] - ends[:-1])
    return results


def _all_distinct(x: Any, wanted: Wanted, equal_nan: bool) -> list[Any]:
    """Return all distinct elements, and what else is wanted."""
    shape = x.shape
    if x.ndim != 1 and (not x.ndim or not (equal_nan or is_whole(x.dtype))):
        x = regular(ravel(x))  # so that each NaN has its place among them
    found = distinct(x, wanted, equal_nan=equal_nan, of_rows=False)
    inverse = found.inverse
    if inverse is not None and inverse.shape != shape:
        inverse = reshape(inverse, shape)
    return [y for y in (found.rows, found.indices, inverse, found.counts) if y is not None]


def _distinct_along(
    x: Any, dim: int, wanted: Wanted, size: int | None, fill_value: Any, *, equal_nan: bool
) -> list[Any]:
    """Return the distinct slices along a dim, and what else is wanted."""
    if size is not None:
        return _some_along(x, dim, wanted, size, fill_value, equal_nan=equal_nan)
    if is_traced(x):  # known values that are followed: they are picked by position
        given = concrete(x, "unique", GIVE_SIZE)
        every = wanted._replace(indices=True)
        picked = _distinct_along(given, dim, every, None, None, equal_nan=equal_nan)
        return [take(x, picked[1], dim), *picked[1 if wanted.indices else 2 :]]
    found = distinct(_table(x, dim), wanted, equal_nan=equal_nan, of_rows=True)
    others = [n for d, n in enumerate(x.shape) if d != dim]
    values = moveaxis(reshape(found.rows, (found.rows.shape[0], *others)), 0, dim)
    rest = (found.indices, found.inverse, found.counts)
    return [values, *[y for y in rest if y is not None]]


def _table(x: Any, dim: int) -> Any:
    """Return the slices along a dim as rows of a table, each whole on one device."""
    x = moveaxis(regular(x), dim, 0)
    sharding, cuts = x.sharding, x.aval.layout.cuts
    if isinstance(sharding, NamedSharding) and any(len(c) > 2 for c in cuts[1:]):
        axes = tuple([a for own in sharding.spec.axes(x.ndim) for a in own])
        count = math.prod(sharding.mesh.shape[a] for a in axes)
        whole = [Split((), (0, n)) for n in x.shape[1:]]
        placement = (Split(axes, balanced_cuts(x.shape[0], count)), *whole)
        own = named_sharding(sharding.mesh, placement, sharding.memory_kind)
        x = relaid(x, here().type_of(x.shape, x.dtype, own, x.committed), "unique")
    return reshape(x, (x.shape[0], math.prod(x.shape[1:])))


def _some_along(
    x: Any, dim: int, wanted: Wanted, size: int, fill_value: Any, *, equal_nan: bool
) -> list[Any]:
    """Return a known number of distinct slices along a dim, the least, and what else is wanted."""
    if is_traced(size):
        raise ArgumentError("size must be a Python integer, but it is traced.")
    if size < 0:
        raise ArgumentError(f"size must not be negative, got {size}.")
    if not x.shape[dim]:
        if size and fill_value is None:
            raise ArgumentError(
                f"unique: size={size} of dim {dim} without elements: there is no slice to fill the "
                "result with; give fill_value=."
            )
        shape = tuple([size if d == dim else n for d, n in enumerate(x.shape)])
        none = full((size,), 0, dtype=np.int64)
        made = [full(shape, fill_value or 0, dtype=x.dtype)]
        made += [none] * wanted.indices + [full((0,), 0, dtype=np.int64)] * wanted.inverse
        return made + [none] * wanted.counts
    places, inverse, counts = at_run_time(
        "unique", _first_slices, x, dim=dim, size=int(size), equal_nan=equal_nan, examples=0
    )
    values = take(x, places, dim, mode="clip")
    if fill_value is not None:
        line = reshape(counts, (-1, *(1,) * (x.ndim - dim - 1)))
        other = as_array(fill_value).astype(x.dtype, copy=False)
        values = bind("where", bind("equal", line, 0), other, values)
    pairs = zip((places, inverse, counts), wanted, strict=True)
    return [values, *[y for y, wish in pairs if wish]]


def _first_slices(x: Any, *, dim: int, size: int, equal_nan: bool, examples: int) -> list[Any]:
    """Return where the first distinct slices are, the place of each among all, and their counts.

    There are as many dims of ``examples`` in front, of which each has slices of its own.
    """
    others = tuple([d for d in range(examples, x.ndim) if d != dim])
    marks = bind("any", x, axis=others, keepdims=False)
    line = bind("astype", marks, dtype=np.dtype(np.int64))
    shape = (*x.shape[:examples], size)
    like = reshape(bind("first_true", ravel(marks), size=math.prod(shape)), shape)
    if is_traced(like, line):
        return [like, line, like]
    if not examples:
        found = _sized_slices(x, dim, size, equal_nan)
    else:
        settings: Any = {"size": size, "equal_nan": equal_nan, "examples": examples - 1}
        each = [_first_slices(x[i], dim=dim - 1, **settings) for i in range(x.shape[0])]
        found = [stack(parts) for parts in zip(*each, strict=True)] or [like, line, like]
    pairs = zip(found, (like, line, like), strict=True)
    return [relaid(y, kind.aval, "unique") for y, kind in pairs]


def _sized_slices(x: Any, dim: int, size: int, equal_nan: bool) -> list[Any]:
    """Return what `_first_slices` does, without other examples."""
    found = distinct(_table(x, dim), Wanted(True, True, True), equal_nan=equal_nan, of_rows=True)
    assert found.indices is not None
    assert found.counts is not None
    missing = max(0, size - found.indices.size)
    places = known(found.indices[:size]), known(found.indices[:1]).repeat(missing)
    counts = known(found.counts[:size]), np.zeros(missing, np.int64)
    return [
        replicated_beside("unique", np.concatenate(places), x),
        found.inverse,
        replicated_beside("unique", np.concatenate(counts), x),
    ]


def _firsts(values: Any, equal_nan: bool) -> Any:
    """Return where elements of a sorted array differ from the one before."""
    # Each element beside the one before it; only the elements at edges move.
    before = bind("pad_zeros", values, dims=((0, (1, -1)),)) if values.size else values
    first = bind("not_equal", values, before)
    if equal_nan and not is_whole(values.dtype):
        both = bind("logical_and", bind("isnan", values), bind("isnan", before))
        first = bind("logical_and", first, bind("logical_not", both))
    return bind("logical_or", first, bind("equal", bind("positions", values), 0))


def _first_of(
    first: Any, values: Any, order: Any, size: int, fill_value: Any
) -> tuple[Any, Any, Any, Any]:
    """Return a known number of the elements that a mask marks, with their places and one more.

    Where there are no more, ``fill_value`` replaces them, by default the first, or 0 if there is
    none.
    """
    places = first_true(first, size + 1)
    if not values.size:
        if size and fill_value is None:
            raise ArgumentError(
                f"unique: size={size} of an array without elements: there is no element to fill "
                "the result with; give fill_value=."
            )
        empty = places[:size]
        made = [full((size,), fill_value or 0, dtype=v.dtype) for v in (values, order)]
        return made[0], empty, made[1], places
    own = places[:size]
    at = bind("maximum", bind("where", bind("less", own, 0), own[:1], own), 0)
    found = take(values, at, mode="clip")
    missing, other = (own[:1], 0) if fill_value is None else (own, fill_value)
    found = filled(missing, found, other)
    return found, own, take(order, at, mode="clip"), places


@overload
def unique(
    ar: ArrayLike,
    return_index: Literal[False] = False,
    return_inverse: Literal[False] = False,
    return_counts: Literal[False] = False,
    axis: int | None = None,
    *,
    equal_nan: bool = True,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
    sorted: bool = True,
) -> Array: ...
@overload
def unique(
    ar: ArrayLike,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    *,
    equal_nan: bool = True,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
    sorted: bool = True,
) -> Array | tuple[Array, ...]: ...
@checked
def unique(
    ar: ArrayLike,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    *,
    equal_nan: bool = True,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
    sorted: bool = True,
) -> Any:
    """Return the distinct elements of the flat array, or slices along a dim, sorted.

    Each device finds the distinct ones that it has; only these cross to other devices, each about
    once, and the places of the inverse come back. The result is split, too: each device keeps a
    stretch of the sorted values; up to 16 KB, such as the classes of labels, all devices have it
    whole. The shape depends on the values, unless ``size`` gives it.

    Args:
        ar: the array.
        return_index: also return where each value first occurs in the flat array.
        return_inverse: also return, in the array's shape, each element's place among the values.
        return_counts: also return how often each value occurs there.
        axis: the dim whose slices count, compared element by element in C order; the places are
            then those along this dim. None for the elements of the flat array.
        equal_nan: whether all NaN count as one value, also in slices, as in JAX; NumPy's slices
            with NaN are all distinct.
        size: how many values to return, which also traced arrays have: the least ones. Where there
            are no more, ``fill_value`` fills the rest, counted zero times.
        fill_value: by default the least value.
        sorted: accepted as in NumPy; the result is sorted.

    Raises:
        ArgumentError: if the dim does not exist, or there is nothing to fill a size with.
        ConcretizationError: if the array is traced, and no size is given.

    >>> import meshard.numpy as mnp
    >>> [found.tolist() for found in mnp.unique(mnp.asarray([3, 1, 3]), return_counts=True)]
    [[1, 3], [1, 2]]
    >>> mnp.unique(mnp.asarray([[3, 1], [2, 0], [3, 1]]), axis=0).tolist()
    [[2, 0], [3, 1]]
    """
    wanted = Wanted(bool(return_index), bool(return_inverse), bool(return_counts))
    x = as_array(ar)
    if axis is None:
        found = _unique(x, wanted, size, fill_value, equal_nan=equal_nan)
    else:
        (dim,) = normalised_axes(axis, x.ndim, "unique")
        found = _distinct_along(x, dim, wanted, size, fill_value, equal_nan=equal_nan)
    return tuple(found) if any(wanted) else found[0]


@checked
def unique_values(
    x: ArrayLike, /, *, size: int | None = None, fill_value: ArrayLike | None = None
) -> Array:
    """Return the distinct elements of the flat array; each NaN is distinct.

    ``size`` and ``fill_value`` mean what they do to `unique`.

    >>> import meshard.numpy as mnp
    >>> mnp.unique_values(mnp.asarray([[2, 1], [1, 2]])).tolist()
    [1, 2]
    """
    return _unique(as_array(x), Wanted(), size, fill_value)[0]


@checked
def unique_counts(
    x: ArrayLike, /, *, size: int | None = None, fill_value: ArrayLike | None = None
) -> UniqueCountsResult:
    """Return the distinct elements of the flat array, and how often each occurs there.

    >>> import meshard.numpy as mnp
    >>> mnp.unique_counts(mnp.asarray([3, 1, 3])).counts.tolist()
    [1, 2]
    """
    found = _unique(as_array(x), Wanted(counts=True), size, fill_value)
    return UniqueCountsResult(*found)


@checked
def unique_inverse(
    x: ArrayLike, /, *, size: int | None = None, fill_value: ArrayLike | None = None
) -> UniqueInverseResult:
    """Return the distinct elements, and each element's place among them, in the array's shape.

    >>> import meshard.numpy as mnp
    >>> mnp.unique_inverse(mnp.asarray([3, 1, 3])).inverse_indices.tolist()
    [1, 0, 1]
    """
    found = _unique(as_array(x), Wanted(inverse=True), size, fill_value)
    return UniqueInverseResult(*found)


@checked
def unique_all(
    x: ArrayLike, /, *, size: int | None = None, fill_value: ArrayLike | None = None
) -> UniqueAllResult:
    """Return the distinct elements, where each first occurs, each element's place, and counts.

    >>> import meshard.numpy as mnp
    >>> [found.tolist() for found in mnp.unique_all(mnp.asarray([3, 1, 3]))]
    [[1, 3], [1, 0], [1, 0, 1], [1, 2]]
    """
    return UniqueAllResult(*_unique(as_array(x), Wanted(True, True, True), size, fill_value))


# membership


def _in_rule(operands: Sequence[Operand], params: Params) -> RuleText:
    names = " ".join(f"v{i}" for i in range(len(operands[0][0])))
    return f"{names}, t -> {names}"


def _in_law(operands: Sequence[Operand], params: Params) -> tuple[Dtype, ...]:
    return (np.dtype(bool),)


def _in(x: Block, test: Block) -> Block:
    if x.dtype in SMALL_FLOATS:
        x, test = x.astype(np.float32), test.astype(np.float32)
    return np.isin(x, test)


register(
    Op("isin", _in_rule, _in, dtypes=_in_law, partial=Partial(np.logical_or, "selects"), alike=0)
)


@checked
def isin(
    element: ArrayLike,
    test_elements: ArrayLike,
    assume_unique: bool = False,
    invert: bool = False,
    *,
    kind: str | None = None,
) -> Array:
    """Return where the elements are among the test elements; laid out like the elements.

    Args:
        element: the array to test.
        test_elements: what to look for; where it is split, each device looks at its own part.
        assume_unique: accepted as in NumPy.
        invert: whether to return where they are not.
        kind: None, ``"sort"`` or ``"table"``, which NumPy chooses from; the result is the same.

    >>> import meshard.numpy as mnp
    >>> mnp.isin(mnp.arange(4), mnp.asarray([1, 9])).tolist()
    [False, True, False, False]
    """
    x, others = as_array(element), ravel(as_array(test_elements))
    if kind is not None and choice_of(kind, ("sort", "table"), "isin", "kind") == "table":
        for y in (x, others):
            if not is_whole(y.dtype):
                raise ArgumentError(
                    f"isin: kind='table' is for integers and bools, not {y.dtype}; leave it out."
                )
    found = bind("isin", x, others)
    return bind("logical_not", found) if invert else found


def _both(what: str, ar1: Any, ar2: Any) -> tuple[Any, Any]:
    """Return two flat arrays of one dtype."""
    x, y = ravel(as_array(ar1)), ravel(as_array(ar2))
    common = common_dtype(what, (x.dtype, y.dtype))
    return x.astype(common, copy=False), y.astype(common, copy=False)


def _distinct(x: Any, y: Any, *, among: bool) -> tuple[Any, Any]:
    """Return an array sorted, and where an element first occurs and is among others, or is not."""
    (values,) = sort_split(x)
    first = _firsts(values, equal_nan=True)
    return values, bind("logical_and", first, isin(values, y, invert=not among))


def _sized_set(values: Any, chosen: Any, size: int, fill_value: Any) -> Any:
    """Return a known number of the chosen elements of a sorted array, the least first."""
    if not values.size and fill_value is None:
        fill_value = 0
    return _first_of(chosen, values, values, size, fill_value)[0]


@checked
def union1d(
    ar1: ArrayLike, ar2: ArrayLike, *, size: int | None = None, fill_value: ArrayLike | None = None
) -> Array:
    """Return the distinct elements that are in either array, sorted.

    Args:
        ar1: the first array.
        ar2: the second array.
        size: how many to return, which also traced arrays have, as in `unique`.
        fill_value: what fills the rest where there are no more.

    >>> import meshard.numpy as mnp
    >>> mnp.union1d(mnp.asarray([3, 1]), mnp.asarray([2, 3])).tolist()
    [1, 2, 3]
    """
    return unique(concatenate(_both("union1d", ar1, ar2)), size=size, fill_value=fill_value)


@overload
def intersect1d(
    ar1: ArrayLike,
    ar2: ArrayLike,
    assume_unique: bool = False,
    return_indices: Literal[False] = False,
    *,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
) -> Array: ...
@overload
def intersect1d(
    ar1: ArrayLike,
    ar2: ArrayLike,
    assume_unique: bool = False,
    return_indices: bool = False,
    *,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
) -> Array | tuple[Array, Array, Array]: ...
@checked
def intersect1d(
    ar1: ArrayLike,
    ar2: ArrayLike,
    assume_unique: bool = False,
    return_indices: bool = False,
    *,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
) -> Any:
    """Return the distinct elements that are in both arrays, sorted; takes what `union1d` takes.

    Args:
        ar1: the first array.
        ar2: the second array.
        assume_unique: accepted as in NumPy.
        return_indices: also return where each first occurs in either flat array; beyond the
            last of a known ``size`` there is the array's size, as in JAX.
        size: how many to return, which also traced arrays have, as in `unique`.
        fill_value: what fills the rest where there are no more.

    >>> import meshard.numpy as mnp
    >>> mnp.intersect1d(mnp.asarray([3, 1, 2]), mnp.asarray([2, 3])).tolist()
    [2, 3]
    """
    x, y = _both("intersect1d", ar1, ar2)
    if return_indices:
        return _common_places(x, y, size, fill_value)
    if size is not None:
        return _sized_set(*_distinct(x, y, among=True), size, fill_value)
    values = unique(x)
    return _in_set("intersect1d", values, y, among=True)


def _common_places(x: Any, y: Any, size: int | None, fill_value: Any) -> tuple[Any, Any, Any]:
    """Return what is in both flat arrays, and where it first is in each."""
    if size is None:
        x, y = (concrete(v, "intersect1d", GIVE_SIZE) for v in (x, y))
        (mine, places), (others, theirs) = (unique(v, return_index=True) for v in (x, y))
        chosen = regular(isin(mine, others))
        found, first = kept(chosen, mine, places)
        if not others.size:
            return found, first, first
        at = bind("minimum", searchsorted(others, found), others.size - 1)
        return found, first, take(theirs, at)
    values = intersect1d(x, y, size=size, fill_value=fill_value)
    count = _sized_count(x, y)
    missing = bind("greater_equal", np.arange(size), count)
    lines = []
    for v in (x, y):
        order = argsort(v)
        at = searchsorted(v, values, sorter=order) if v.size else np.zeros(size, np.int64)
        where = take(order, at, mode="clip") if v.size else at
        lines.append(bind("where", missing, v.size, where))
    return values, lines[0], lines[1]


def _sized_count(x: Any, y: Any) -> Any:
    """Return how many distinct elements are in both arrays."""
    _, chosen = _distinct(x, y, among=True)
    return bind("astype", chosen, dtype=np.dtype(np.int64)).sum()


@checked
def setdiff1d(
    ar1: ArrayLike,
    ar2: ArrayLike,
    assume_unique: bool = False,
    *,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
) -> Array:
    """Return the distinct elements of the first array that are not in the second, sorted.

    Takes what `union1d` takes; where there are no more, zeros fill the rest by default, as in JAX.
    With ``assume_unique`` the elements stay in the first array's order.

    >>> import meshard.numpy as mnp
    >>> mnp.setdiff1d(mnp.asarray([3, 1, 2]), mnp.asarray([2])).tolist()
    [1, 3]
    """
    x, y = ravel(as_array(ar1)), ravel(as_array(ar2))
    fill = 0 if fill_value is None else fill_value
    if assume_unique:
        own = y if size is not None else concrete(y, "setdiff1d", GIVE_SIZE)
        return _selected("setdiff1d", isin(x, own, invert=True), x, 0, size, fill)
    if size is not None:
        return _sized_set(*_distinct(x, y, among=False), size, fill)
    return _in_set("setdiff1d", unique(x), y, among=False)


@checked
def setxor1d(
    ar1: ArrayLike,
    ar2: ArrayLike,
    assume_unique: bool = False,
    *,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
) -> Array:
    """Return the distinct elements that are in one of two arrays only, sorted.

    Takes what `union1d` takes. A NaN of one array is not in the other, so that two may come out.

    >>> import meshard.numpy as mnp
    >>> mnp.setxor1d(mnp.asarray([1, 2]), mnp.asarray([2, 3])).tolist()
    [1, 3]
    """
    x, y = _both("setxor1d", ar1, ar2)
    if size is None:
        return sort_split(concatenate([setdiff1d(x, y), setdiff1d(y, x)]))[0]
    pairs = [_distinct(x, y, among=False), _distinct(y, x, among=False)]
    values, chosen = (concatenate(parts) for parts in zip(*pairs, strict=True))
    values, chosen = sort_split(values, chosen)
    return _sized_set(values, chosen, size, fill_value)


def _in_set(what: str, values: Any, others: Any, *, among: bool) -> Any:
    """Return the values that are among others, or are not."""
    chosen = isin(values, concrete(others, what, GIVE_SIZE), invert=not among)
    return _selected(what, chosen, values, 0, None, 0)


# the elements and positions that a mask selects


@checked
def flatnonzero(
    a: ArrayLike, *, size: int | None = None, fill_value: ArrayLike | None = None
) -> Array:
    """Return the positions in the flat array of the elements that are not zero.

    The result stays split where the array was, each device keeping its own positions.

    Args:
        a: the array.
        size: how many positions to return, which also traced values have, as in `nonzero`.
        fill_value: what fills the rest where there are no more; 0 by default.

    >>> import meshard.numpy as mnp
    >>> mnp.flatnonzero(mnp.asarray([0, 7, 0, 8])).tolist()
    [1, 3]
    """
    if size is not None:
        return nonzero(ravel(as_array(a)), size=size, fill_value=fill_value)[0]
    x = concrete(a, "flatnonzero", GIVE_SIZE)
    mask = regular(mask_of(ravel(x)))
    return kept(mask, bind("positions", mask))[0]


@checked
def argwhere(
    a: ArrayLike, *, size: int | None = None, fill_value: ArrayLike | None = None
) -> Array:
    """Return the positions of the elements that are not zero, one row for each.

    Args:
        a: the array.
        size: how many rows to return, which also traced values have, as in `nonzero`.
        fill_value: what fills the rest where there are no more; 0 by default.

    >>> import meshard.numpy as mnp
    >>> mnp.argwhere(mnp.asarray([[0, 1], [1, 0]])).tolist()
    [[0, 1], [1, 0]]
    """
    x = as_array(a)
    if not x.ndim:  # one row without columns, or none
        return argwhere(ravel(x), size=size)[:, :0]
    return stack(list(nonzero(x, size=size, fill_value=fill_value)), axis=1)


@checked
def extract(
    condition: ArrayLike, arr: ArrayLike, *, size: int | None = None, fill_value: ArrayLike = 0
) -> Array:
    """Return the elements of the flat array where a condition of the same size is true.

    Args:
        condition: the condition.
        arr: the array.
        size: how many elements to return, which also traced values have.
        fill_value: what fills the rest where there are no more.

    Raises:
        ShapeError: if the sizes differ.

    >>> import meshard.numpy as mnp
    >>> mnp.extract(mnp.asarray([True, False, True]), mnp.arange(3)).tolist()
    [0, 2]
    """
    mask, x = as_array(condition), as_array(arr)
    if mask.size != x.size:
        raise ShapeError(
            f"extract: the condition of shape {mask.shape} and the array of shape {x.shape} must "
            f"have the same size, but have {mask.size} and {x.size} elements."
        )
    return _selected("extract", ravel(mask), ravel(x), 0, size, fill_value)


def _selected(what: str, mask: Any, x: Any, dim: int, size: int | None, fill_value: Any) -> Any:
    """Return what a condition of one dim selects along a dim: all, or a known number."""
    if size is not None:
        places = first_true(mask_of(mask), size)
        found = take(x, bind("maximum", places, 0), axis=dim, mode="clip")
        line = reshape(places, (-1, *(1,) * (x.ndim - dim - 1)))
        other = as_array(fill_value).astype(x.dtype, copy=False)
        return bind("where", bind("less", line, 0), other, found)
    mask = mask_of(concrete(mask, what, GIVE_SIZE))
    if x.ndim == 1 and mask.size == x.size and not is_traced(x):
        return kept(regular(mask), x)[0]
    return take(x, flatnonzero(mask), axis=dim)


@checked
def compress(
    condition: ArrayLike,
    a: ArrayLike,
    axis: int | None = None,
    out: None = None,
    *,
    size: int | None = None,
    fill_value: ArrayLike = 0,
) -> Array:
    """Return the slices along a dim where a condition is true, or elements of the flat array.

    Args:
        condition: one dim, at most as long as the dim; what it does not reach is left out.
        a: the array.
        axis: the dim; None for the flat array.
        out: None; arrays are immutable.
        size: how many slices to return, which also traced values have.
        fill_value: what fills the rest where there are no more.

    Raises:
        ShapeError: if the condition has not one dim, or is too long.

    >>> import meshard.numpy as mnp
    >>> mnp.compress(mnp.asarray([True, False, True]), mnp.arange(3)).tolist()
    [0, 2]
    """
    x, mask = as_array(a), as_array(condition)
    if axis is None:
        x, axis = ravel(x), 0
    (dim,) = normalised_axes(axis, x.ndim, "compress")
    if mask.ndim != 1 or mask.size > x.shape[dim]:
        raise ShapeError(
            f"compress: a condition of shape {mask.shape} for dim {dim} of an array of shape "
            f"{x.shape}; it must have one dim that is not longer."
        )
    return _selected("compress", mask, x, dim, size, fill_value)
