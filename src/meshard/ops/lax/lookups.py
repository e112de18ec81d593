"""Windows at positions that are values, by the names of ``jax.lax``: gather and scatter.

The dims along which positions tell windows apart become positions of single elements, for which
there are rows that pass just what is asked for between devices; all other dims stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import Enum, auto
from operator import index
from typing import Any, NamedTuple, final

import numpy as np

from meshard.algebra.arguments import function_of, shown
from meshard.errors import ArgumentError, DtypeError, ShapeError
from meshard.ops.array.create import full_like
from meshard.ops.array.dynamic import dynamic_slice
from meshard.ops.array.shape import broadcast_to, reshape, transpose
from meshard.ops.array.take import gap
from meshard.ops.engine.later import is_traced
from meshard.ops.lax.table import named
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array
from meshard.runtime.types import ArrayLike


class GatherDimensionNumbers(NamedTuple):
    """Which dims of a gather's operands and result are what.

    Attributes:
        offset_dims: the dims of the result that are within windows.
        collapsed_slice_dims: the dims of the operand that windows have one element of, and the
            result has not.
        start_index_map: for each number of a position the dim of the operand that it counts along.
        operand_batching_dims: dims of the operand that go with dims of the positions.
        start_indices_batching_dims: these dims of the positions.
    """

    offset_dims: tuple[int, ...]
    collapsed_slice_dims: tuple[int, ...]
    start_index_map: tuple[int, ...]
    operand_batching_dims: tuple[int, ...] = ()
    start_indices_batching_dims: tuple[int, ...] = ()


class ScatterDimensionNumbers(NamedTuple):
    """Which dims of a scatter's operands are what.

    Attributes:
        update_window_dims: the dims of the updates that are within windows.
        inserted_window_dims: the dims of the operand that windows have one element of, and the
            updates have not.
        scatter_dims_to_operand_dims: for each number of a position the dim of the operand that it
            counts along.
        operand_batching_dims: dims of the operand that go with dims of the positions.
        scatter_indices_batching_dims: these dims of the positions.
    """

    update_window_dims: Sequence[int]
    inserted_window_dims: Sequence[int]
    scatter_dims_to_operand_dims: Sequence[int]
    operand_batching_dims: Sequence[int] = ()
    scatter_indices_batching_dims: Sequence[int] = ()


class GatherScatterMode(Enum):
    """What becomes of windows that are not all inside.

    Attributes:
        CLIP: they are moved inside.
        FILL_OR_DROP: those that are read give one value, those that are written are left out.
        PROMISE_IN_BOUNDS: there are none; else those that are read are moved inside, and those
            that are written are left out.
        ONE_HOT: as FILL_OR_DROP.
    """

    CLIP = auto()
    FILL_OR_DROP = auto()
    PROMISE_IN_BOUNDS = auto()
    ONE_HOT = auto()

    @staticmethod
    def from_any(s: str | GatherScatterMode | None) -> GatherScatterMode:
        """Return the mode that a name stands for; None stands for FILL_OR_DROP.

        Raises:
            ArgumentError: if there is no such mode.

        >>> from meshard import lax
        >>> lax.GatherScatterMode.from_any("clip").name
        'CLIP'
        """
        given = "fill" if s is None else getattr(s, "name", s)
        given = given if isinstance(given, str) else ""
        name = "FILL_OR_DROP" if given in ("fill", "drop") else given.upper()
        if name not in GatherScatterMode.__members__:
            raise ArgumentError(
                f"GatherScatterMode: the modes are 'clip', 'fill', 'drop', 'promise_in_bounds' and "
                f"'one_hot', not {shown(s)}."
            )
        return GatherScatterMode[name]


@final
class _Windows:
    """Windows of an array at positions.

    Attributes:
        shape: the shape of the array.
        batch: the shape of the positions.
        sizes: the size of a window along each dim.
        dims: the dims along which there is a position for each element of a window.
        within: those of them whose windows are dims of the result.
        kept: the other dims.
        inside: which windows are all inside, of the shape ``batch``; None if all are.
    """

    def __init__(
        self,
        what: str,
        shape: tuple[int, ...],
        places: Any,
        sizes: Sequence[int],
        ways: GatherDimensionNumbers,
        all_partial: bool = False,
    ) -> None:
        self.shape, self.sizes, self.batch = shape, tuple(sizes), tuple(places.shape[:-1])
        self._check(what, places, ways)
        dropped = {*ways.collapsed_slice_dims, *ways.operand_batching_dims}
        along = dict(zip(ways.start_index_map, range(len(ways.start_index_map)), strict=True))
        batching = dict(
            zip(ways.operand_batching_dims, ways.start_indices_batching_dims, strict=True)
        )
        self._starts = {d: bind("astype", places[..., k], dtype=_LONG) for d, k in along.items()}
        self._batching = batching
        partial = [d for d, n in enumerate(shape) if (d in along or all_partial) and sizes[d] < n]
        self.dims = tuple(sorted({*batching, *partial}))
        self.within = [d for d in self.dims if d not in dropped]
        self.kept = [d for d in range(len(shape)) if d not in self.dims]
        self.window = [d for d in range(len(shape)) if d not in dropped]
        self.inside = self._inside()

    def _check(self, what: str, places: Any, ways: GatherDimensionNumbers) -> None:
        rank = len(self.shape)
        if not places.ndim or places.dtype.kind not in "iu":
            raise DtypeError(
                f"{what}: positions are integers, as many as dims that they count along in the "
                f"last dim; these have dtype {places.dtype} and shape {places.shape}."
            )
        named_dims = [*ways.collapsed_slice_dims, *ways.operand_batching_dims]
        known = all(0 <= d < rank for d in (*named_dims, *ways.start_index_map))
        pairs = len(ways.operand_batching_dims) == len(ways.start_indices_batching_dims)
        if not known or not pairs or len(ways.start_index_map) != places.shape[-1]:
            raise ArgumentError(
                f"{what}: dimension_numbers {ways} do not fit an operand of shape {self.shape} "
                f"and positions of shape {places.shape}: each number of a position counts along "
                "one dim, and dims that go together come in pairs."
            )
        if len(self.sizes) != rank or any(
            not 0 <= m <= n for m, n in zip(self.sizes, self.shape, strict=True)
        ):
            raise ShapeError(
                f"{what}: a window of sizes {self.sizes} does not fit into the shape {self.shape}; "
                "it has a size for each dim."
            )
        if any(self.sizes[d] != 1 for d in named_dims):
            raise ShapeError(
                f"{what}: windows of sizes {self.sizes} have more than one element along a dim of "
                f"{sorted(named_dims)}, which the result has not."
            )

    def _inside(self) -> Any:
        found = None
        for d, start in self._starts.items():
            last = self.shape[d] - self.sizes[d]
            own = bind("less_equal", bind("astype", start, dtype=_UNSIGNED), last)
            found = own if found is None else bind("logical_and", found, own)
        return found

    def places(self, clamp: bool) -> list[Any]:
        """Return the position of each element; those of windows outside are left as they are.

        Args:
            clamp: whether windows are moved inside.
        """
        rank, found = len(self.batch), []
        shape = (*self.batch, *[self.sizes[d] for d in self.within])
        for d in self.dims:
            if d in self._batching:
                at = self._batching[d]
                steps = np.arange(self.shape[d]).reshape(
                    [-1 if e == at else 1 for e in range(len(shape))]
                )
                found.append(as_array(np.broadcast_to(steps, shape)))
                continue
            start = self._starts.get(d)
            if start is None:
                start = as_array(np.zeros(self.batch, _LONG))
            elif clamp:
                last = self.shape[d] - self.sizes[d]
                start = bind("minimum", bind("maximum", start, 0), last)
            start = reshape(start, (*self.batch, *[1] * len(self.within)))
            if d in self.within:
                at = rank + self.within.index(d)
                steps = np.arange(self.sizes[d]).reshape(
                    [-1 if e == at else 1 for e in range(len(shape))]
                )
                start = bind("add", start, steps)
            found.append(broadcast_to(start, shape))
        return found

    def reached(self, x: Any) -> Any:
        """Return the array without what no window reaches in dims without positions."""
        spans = [slice(0, self.sizes[d]) if d in self.kept else slice(None) for d in range(x.ndim)]
        partial = any(self.sizes[d] < self.shape[d] for d in self.kept)
        return x[tuple(spans)] if partial else x


_LONG, _UNSIGNED = np.dtype(np.int64), np.dtype(np.uint64)


def _taken(x: Any, windows: _Windows, clamp: bool) -> Any:
    """Return windows: the dims of the positions, then the windows' that the result has, rising."""
    rank, batch = len(windows.batch), windows.batch
    x = windows.reached(x)
    if windows.dims:
        places = windows.places(clamp)
        found = bind("gather", x, *places, dims=windows.dims, at=0)
        made = [*windows.within, *windows.kept]
    else:
        found, made = broadcast_to(x, (*batch, *x.shape)), windows.kept
    held = [d for d in made if d in windows.window]
    shape = (*batch, *[windows.sizes[d] for d in held])
    found = reshape(found, shape) if found.shape != shape else found
    order = [rank + held.index(d) for d in windows.window]
    return _ordered(found, [*range(rank), *order])


def _ordered(x: Any, order: Sequence[int]) -> Any:
    return x if list(order) == list(range(x.ndim)) else transpose(x, tuple(order))


def _numbers(kind: Any, given: Any, what: str) -> Any:
    """Return dimension numbers of a kind from those of any like it."""
    try:
        return kind(*[tuple(map(index, getattr(given, name))) for name in kind._fields])
    except (AttributeError, TypeError) as error:
        raise ArgumentError(
            f"{what}: dimension_numbers are {kind.__name__}, not {shown(given)}."
        ) from error


_GATHER = (
    "lax.gather(mnp.arange(6), mnp.asarray([[4], [1]]), "
    "lax.GatherDimensionNumbers((1,), (), (0,)), (2,)).tolist()"
)


@named(
    _GATHER,
    "[[4, 5], [1, 2]]",
    start_indices="positions of windows' first elements; the last dim holds their numbers.",
    dimension_numbers="a `GatherDimensionNumbers`.",
    slice_sizes="the size of a window along each dim of the operand.",
    mode="what becomes of windows that are not all inside: a `GatherScatterMode` or its name, by "
    "default PROMISE_IN_BOUNDS.",
    fill_value="what FILL_OR_DROP puts there; by default NaN, the least signed or the greatest "
    "unsigned integer, or True.",
)
def gather(
    operand: ArrayLike,
    start_indices: ArrayLike,
    dimension_numbers: Any,
    slice_sizes: Sequence[int],
    *,
    unique_indices: bool = False,
    indices_are_sorted: bool = False,
    mode: Any = None,
    fill_value: Any = None,
) -> Array:
    """Return windows of an array at positions that are values.

    Where the operand is split along a dim of positions, just the elements that a device lacks
    move to it.

    Raises:
        ArgumentError: if the dimension numbers do not fit, or there is no such mode.
        ShapeError: if windows are larger than the operand.
        DtypeError: if positions are not integers.
    """
    x, places = as_array(operand), as_array(start_indices)
    ways = _numbers(GatherDimensionNumbers, dimension_numbers, "gather")
    how = GatherScatterMode.from_any("promise_in_bounds" if mode is None else mode)
    sizes = tuple(map(index, slice_sizes))
    windows = _Windows("gather", x.shape, places, sizes, ways)
    rank = len(windows.batch) + len(windows.window)
    offset = ways.offset_dims
    if len(offset) != len(windows.window) or not all(0 <= d < rank for d in offset):
        raise ArgumentError(
            f"gather: offset_dims {offset} are not {len(windows.window)} dims of a result with "
            f"{rank} dims, one for each dim of windows that is not left out."
        )
    if not windows.batch and not ways.operand_batching_dims:
        found = _one(x, windows, ways)
    else:
        found = _taken(x, windows, True)
    if how in (GatherScatterMode.FILL_OR_DROP, GatherScatterMode.ONE_HOT):
        found = _filled(found, windows, fill_value)
    batch = iter(range(len(windows.batch)))
    inner = iter(range(len(windows.batch), rank))
    return _ordered(found, [next(inner if d in offset else batch) for d in range(rank)])


def _one(x: Any, windows: _Windows, ways: GatherDimensionNumbers) -> Any:
    """Return the one window that a single position names."""
    starts: list[Any] = [0] * x.ndim
    for d, start in windows._starts.items():
        starts[d] = start
    found = dynamic_slice(x, starts, windows.sizes, allow_negative_indices=False)
    return reshape(found, tuple([windows.sizes[d] for d in windows.window]))


def _filled(found: Any, windows: _Windows, value: Any) -> Any:
    if windows.inside is None:
        return found
    inner = found.ndim - len(windows.batch)
    inside = reshape(windows.inside, (*windows.batch, *[1] * inner))
    return bind("where", inside, found, gap(found.dtype, value))


# changes


def _scattered(x: Any, value: Any, windows: _Windows, clamp: bool, how: str) -> Any:
    """Return the array changed by values whose dims are those that `_taken` returns."""
    rank, batch = len(windows.batch), windows.batch
    held = [d for d in (*windows.within, *windows.kept) if d in windows.window]
    value = _ordered(value, [*range(rank), *[rank + windows.window.index(d) for d in held]])
    sizes = [windows.sizes[d] for d in (*windows.within, *windows.kept)]
    value = bind("astype", reshape(value, (*batch, *sizes)), dtype=x.dtype)
    dims, places = windows.dims, windows.places(clamp)
    if not dims:  # windows are all of the array, of which there is one
        dims, places = (0,), [as_array(np.zeros(batch, _LONG))]
        x = reshape(x, (1, *x.shape))
    if not clamp and windows.inside is not None:
        inside = reshape(windows.inside, (*batch, *[1] * len(windows.within)))
        places = [bind("where", inside, places[0], -1), *places[1:]]
    found = bind("scatter", x, value, *places, arrays=dims, how=how)
    return found if windows.dims else reshape(found, windows.shape)


_SCATTER = (
    "lax.{name}(mnp.ones(4), mnp.asarray([[3], [0], [3]]), mnp.asarray([2.0, 5.0, 7.0]), "
    "lax.ScatterDimensionNumbers((), (0,), (0,))).tolist()"
)


def _windows_of(
    what: str, x: Any, places: Any, shape: Sequence[int], given: Any
) -> tuple[_Windows, list[int]]:
    """Return the windows that updates of a shape are for, and the order of their dims."""
    ways = _numbers(ScatterDimensionNumbers, given, what)
    dropped = {*ways.inserted_window_dims, *ways.operand_batching_dims}
    inner = list(ways.update_window_dims)
    if len(inner) != x.ndim - len(dropped) or not all(0 <= d < len(shape) for d in inner):
        raise ArgumentError(
            f"{what}: update_window_dims {tuple(inner)} are not one dim of updates of shape "
            f"{tuple(shape)} for each dim of windows in an operand of shape {x.shape}."
        )
    own = iter(inner)
    sizes = [1 if d in dropped else shape[next(own)] for d in range(x.ndim)]
    numbers = GatherDimensionNumbers(
        tuple(inner),
        tuple(ways.inserted_window_dims),
        tuple(ways.scatter_dims_to_operand_dims),
        tuple(ways.operand_batching_dims),
        tuple(ways.scatter_indices_batching_dims),
    )
    windows = _Windows(what, x.shape, places, sizes, numbers, all_partial=True)
    batch = [d for d in range(len(shape)) if d not in inner]
    if tuple([shape[d] for d in batch]) != windows.batch:
        raise ShapeError(
            f"{what}: updates of shape {tuple(shape)} have windows in dims {tuple(inner)}; the "
            f"others must have the sizes of the positions, {windows.batch}."
        )
    return windows, [*batch, *inner]


_MEANING = {
    "scatter_indices": "positions of windows' first elements; the last dim holds their numbers.",
    "updates": "the windows' new values, or what their elements are combined with.",
    "dimension_numbers": "a `ScatterDimensionNumbers`.",
    "mode": "what becomes of windows that are not all inside: a `GatherScatterMode` or its name, "
    "by default FILL_OR_DROP.",
    "func": "an elementwise function.",
    "update_shape": "the shape that updates would have.",
}


def _changed(
    ways: tuple[str, str], x: Any, places: Any, value: Any, numbers: Any, mode: Any
) -> Any:
    """Return an array changed by windows.

    Args:
        ways: the function's name, and how the row combines elements.
        x: the array.
        places: the positions.
        value: what the windows hold.
        numbers: which dims are what.
        mode: what becomes of windows that are not all inside.
    """
    x, places, value = as_array(x), as_array(places), as_array(value)
    clamp = GatherScatterMode.from_any(mode) is GatherScatterMode.CLIP
    windows, order = _windows_of(ways[0], x, places, value.shape, numbers)
    return _scattered(x, _ordered(value, order), windows, clamp, ways[1])


@named(_SCATTER.format(name="scatter"), "[5.0, 1.0, 1.0, 7.0]", **_MEANING)
def scatter(
    operand: ArrayLike,
    scatter_indices: ArrayLike,
    updates: ArrayLike,
    dimension_numbers: Any,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: Any = None,
) -> Array:
    """Return a copy with new windows; of those that overlap the last one counts.

    Changes move to the devices that have the elements, which apply them in the order of the
    positions.

    Raises:
        ArgumentError: if the dimension numbers do not fit, or there is no such mode.
        ShapeError: if updates do not fit the positions and the operand.
        DtypeError: if positions are not integers.
    """
    found: Array = _changed(
        ("scatter", "set"), operand, scatter_indices, updates, dimension_numbers, mode
    )
    return found


@named(_SCATTER.format(name="scatter_add"), "[6.0, 1.0, 1.0, 10.0]", **_MEANING)
def scatter_add(
    operand: ArrayLike,
    scatter_indices: ArrayLike,
    updates: ArrayLike,
    dimension_numbers: Any,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: Any = None,
) -> Array:
    """Return a copy with windows added.

    Changes move to the devices that have the elements, which apply them in the order of the
    positions.

    Raises:
        ArgumentError: if the dimension numbers do not fit, or there is no such mode.
        ShapeError: if updates do not fit the positions and the operand.
        DtypeError: if positions are not integers.
    """
    found: Array = _changed(
        ("scatter_add", "add"), operand, scatter_indices, updates, dimension_numbers, mode
    )
    return found


@named(_SCATTER.format(name="scatter_sub"), "[-4.0, 1.0, 1.0, -8.0]", **_MEANING)
def scatter_sub(
    operand: ArrayLike,
    scatter_indices: ArrayLike,
    updates: ArrayLike,
    dimension_numbers: Any,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: Any = None,
) -> Array:
    """Return a copy with windows subtracted.

    Changes move to the devices that have the elements, which apply them in the order of the
    positions.

    Raises:
        ArgumentError: if the dimension numbers do not fit, or there is no such mode.
        ShapeError: if updates do not fit the positions and the operand.
        DtypeError: if positions are not integers.
    """
    found: Array = _changed(
        ("scatter_sub", "subtract"), operand, scatter_indices, updates, dimension_numbers, mode
    )
    return found


@named(_SCATTER.format(name="scatter_mul"), "[5.0, 1.0, 1.0, 14.0]", **_MEANING)
def scatter_mul(
    operand: ArrayLike,
    scatter_indices: ArrayLike,
    updates: ArrayLike,
    dimension_numbers: Any,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: Any = None,
) -> Array:
    """Return a copy with elements multiplied by those of windows.

    Changes move to the devices that have the elements, which apply them in the order of the
    positions.

    Raises:
        ArgumentError: if the dimension numbers do not fit, or there is no such mode.
        ShapeError: if updates do not fit the positions and the operand.
        DtypeError: if positions are not integers.
    """
    found: Array = _changed(
        ("scatter_mul", "multiply"), operand, scatter_indices, updates, dimension_numbers, mode
    )
    return found


@named(_SCATTER.format(name="scatter_min"), "[1.0, 1.0, 1.0, 1.0]", **_MEANING)
def scatter_min(
    operand: ArrayLike,
    scatter_indices: ArrayLike,
    updates: ArrayLike,
    dimension_numbers: Any,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: Any = None,
) -> Array:
    """Return a copy with the minima of elements and those of windows.

    Changes move to the devices that have the elements, which apply them in the order of the
    positions.

    Raises:
        ArgumentError: if the dimension numbers do not fit, or there is no such mode.
        ShapeError: if updates do not fit the positions and the operand.
        DtypeError: if positions are not integers.
    """
    found: Array = _changed(
        ("scatter_min", "min"), operand, scatter_indices, updates, dimension_numbers, mode
    )
    return found


@named(_SCATTER.format(name="scatter_max"), "[5.0, 1.0, 1.0, 7.0]", **_MEANING)
def scatter_max(
    operand: ArrayLike,
    scatter_indices: ArrayLike,
    updates: ArrayLike,
    dimension_numbers: Any,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: Any = None,
) -> Array:
    """Return a copy with the maxima of elements and those of windows.

    Changes move to the devices that have the elements, which apply them in the order of the
    positions.

    Raises:
        ArgumentError: if the dimension numbers do not fit, or there is no such mode.
        ShapeError: if updates do not fit the positions and the operand.
        DtypeError: if positions are not integers.
    """
    found: Array = _changed(
        ("scatter_max", "max"), operand, scatter_indices, updates, dimension_numbers, mode
    )
    return found


@named(
    "lax.scatter_apply(mnp.ones(3), mnp.asarray([[2], [0]]), mnp.exp, "
    "lax.ScatterDimensionNumbers((), (0,), (0,)), update_shape=(2,)).round(2).tolist()",
    "[2.72, 1.0, 2.72]",
    **_MEANING,
)
def scatter_apply(
    operand: ArrayLike,
    scatter_indices: ArrayLike,
    func: Callable[..., Any],
    dimension_numbers: Any,
    *,
    update_shape: Sequence[int] = (),
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: Any = None,
) -> Array:
    """Return a copy with a function applied to windows, as often as these have an element.

    Raises:
        ArgumentError: if the dimension numbers do not fit, or there is no such mode.
        ShapeError: if updates of that shape would not fit the positions and the operand.
        DtypeError: if positions are not integers.
    """
    what = "scatter_apply"
    apply = function_of(func, what, "func")
    x, places = as_array(operand), as_array(scatter_indices)
    clamp = GatherScatterMode.from_any(mode) is GatherScatterMode.CLIP
    windows, _ = _windows_of(what, x, places, update_shape, dimension_numbers)
    sizes = [windows.sizes[d] for d in windows.window]
    ones = np.ones((*windows.batch, *sizes), np.int64)
    times = _scattered(full_like(x, 0, np.int64), as_array(ones), windows, clamp, "add")
    most = math.prod(windows.batch)
    turns = most if most < 2 or unique_indices or is_traced(times) else int(times.max())
    for turn in range(1, (min(turns, 1) if unique_indices else turns) + 1):
        x = bind("where", bind("greater_equal", times, turn), apply(x), x)
    return x
