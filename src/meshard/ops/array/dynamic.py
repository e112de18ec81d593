"""Slices whose place is a value: taken out of an array, or laid over it.

The size is known, the place may be computed. Where the place is known when the function is called,
the slice is one of box maps, and only what crosses between devices moves. A traced place is for the
kernel, which finds the slice in its block; where a dim is split, the slice's rows are exchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any, final

import numpy as np

from meshard.algebra.arguments import items_of, shown
from meshard.errors import DtypeError, IndexingError, ShapeError
from meshard.ops.array.samplesort import known
from meshard.ops.array.shape import expand_dims, moveaxis, reshape
from meshard.ops.checked import checked, normalised_axes
from meshard.ops.dtypes.laws import same_dtype
from meshard.ops.engine.later import Advised, is_array, is_traced, when_laid_out
from meshard.ops.row import Op, Operand, Params, RuleText, register
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array, as_host
from meshard.runtime.types import ArrayLike, ArrayType, Block


def _start(start: Any, size: int, length: int, wrap: bool) -> int:
    """Return where a slice begins: counted from the end if negative, then moved inside."""
    at = int(start)
    if at < 0 and wrap:
        at += size
    return min(max(at, 0), size - length)


def _slice_rule(operands: Sequence[Operand], params: Params) -> RuleText:
    left, right, sizes = [], [], {}
    for d, (n, m) in enumerate(zip(operands[0][0], params["sizes"], strict=True)):
        left.append(f"x{d}" if n == m else f"!x{d}")
        right.append(f"x{d}" if n == m else f"n{d}")
        sizes.update({} if n == m else {f"n{d}": m})
    places = ", " * (len(operands) - 1)
    return f"{' '.join(left)}{places} -> {' '.join(right)}", sizes


def _slice(x: Block, *starts: Any, sizes: tuple[int, ...], wrap: tuple[bool, ...]) -> Block:
    # Of a dim that is taken whole the cell may hold a part: it takes all of it.
    spans = [
        slice(None) if whole else slice(at, at + m)
        for at, m, whole in (
            (_start(s, n, min(m, n), w), m, m >= n)
            for s, n, m, w in zip(starts, x.shape, sizes, wrap, strict=True)
        )
    ]
    return x[tuple(spans)]


def _update_rule(operands: Sequence[Operand], params: Params) -> RuleText:
    left, right = [], []
    for d, (n, m) in enumerate(zip(operands[0][0], operands[1][0], strict=True)):
        left.append(f"x{d}" if n == m else f"!x{d}")
        right.append(f"x{d}" if n == m else f"!n{d}")
    dims = " ".join(left)
    places = ", " * (len(operands) - 2)
    return f"{dims}, {' '.join(right)}{places} -> {dims.replace('!', '')}"


def _update(x: Block, update: Block, *starts: Any, wrap: tuple[bool, ...]) -> Block:
    begins = [
        _start(s, n, m, w) for s, n, m, w in zip(starts, x.shape, update.shape, wrap, strict=True)
    ]
    result = x.copy()
    result[tuple(slice(at, at + m) for at, m in zip(begins, update.shape, strict=True))] = update
    return result


register(Op("dynamic_slice", _slice_rule, _slice, dtypes=same_dtype, style="view"))
register(Op("dynamic_update_slice", _update_rule, _update, dtypes=same_dtype))


def _rows(start: Any, size: int, count: int, wrap: bool) -> Any:
    """Return the positions along a dim that a slice from a traced place on has."""
    at = bind("positions_within", as_array(start), size=size, clamp=True)
    if not wrap:
        at = bind("where", bind("less", start, 0), 0, at)
    return bind("add", bind("minimum", at, size - count), np.arange(count))


@final
class _Window(Advised):
    """A slice whose place is traced: of a dim that is split, its rows come from where they are."""

    def __init__(self, sizes: tuple[int, ...], wrap: tuple[bool, ...]) -> None:
        self.sizes, self.wrap = sizes, wrap

    def __call__(self, *operands: Any) -> Any:
        """Return the slice."""
        x, *starts = operands
        cuts = x.aval.layout.cuts
        for d, (n, m) in enumerate(zip(x.shape, self.sizes, strict=True)):
            if 0 < m < n and len(cuts[d]) > 2:
                places = _rows(starts[d], n, m, self.wrap[d])
                x, starts[d] = bind("gather", x, places, dims=(d,), at=d), 0
        if x.shape == self.sizes:
            return x
        return bind("dynamic_slice", x, *starts, sizes=self.sizes, wrap=self.wrap)


def window(x: Any, starts: Sequence[Any], sizes: tuple[int, ...], wrap: tuple[bool, ...]) -> Any:
    """Return a slice of fixed size from places of which some are traced.

    Args:
        x: the array.
        starts: for each dim the place; one outside is moved inside.
        sizes: for each dim the size.
        wrap: for each dim whether negative places count from the end.
    """
    if not isinstance(x.aval, ArrayType):  # a device's own, in a body
        return bind("dynamic_slice", x, *starts, sizes=sizes, wrap=wrap)
    given = [as_array(s) for s in starts]
    return when_laid_out("window", _Window(sizes, wrap), x, *given)


@final
class _Laid(Advised):
    """An array laid over another at a traced place: its rows go to where the dim is split."""

    def __init__(self, wrap: tuple[bool, ...]) -> None:
        self.wrap = wrap

    def __call__(self, *operands: Any) -> Any:
        """Return the array."""
        x, update, *starts = operands
        part = [d for d, (n, m) in enumerate(zip(x.shape, update.shape, strict=True)) if m < n]
        if len(part) != 1 or not update.size or len(x.aval.layout.cuts[part[0]]) == 2:
            return bind("dynamic_update_slice", x, update, *starts, wrap=self.wrap)
        (d,) = part
        places = _rows(starts[d], x.shape[d], update.shape[d], self.wrap[d])
        return bind("scatter", x, moveaxis(update, d, 0), places, arrays=(d,), how="set")


def _starts(what: str, given: Any, shape: tuple[int, ...], negative: Any) -> list[Any]:
    """Return the places along all dims: Python integers, or traced integers without dims."""
    if is_traced(given):
        places = [given[i] for i in range(given.shape[0])] if given.ndim == 1 else [given]
    elif is_array(given) or isinstance(given, np.ndarray):
        places = list(_values(what, given)) if given.ndim == 1 else [given]
    else:
        places = [*items_of(given, what, "start_indices", "integers", ordered=True)]
    if len(places) != len(shape):
        raise ShapeError(
            f"{what}: {len(places)} start indices for an array of shape {shape}, which has "
            f"{len(shape)} dims; give one per dim."
        )
    wraps = _wraps(what, negative, len(shape))
    return [_start_of(what, d, *given) for d, given in enumerate(zip(places, wraps, strict=True))]


def _start_of(what: str, dim: int, place: Any, wrap: bool) -> Any:
    """Return the start index of a dim: a Python integer, or a traced one."""
    dtype = place.dtype if is_array(place) else as_host(place, what).dtype
    if dtype.kind not in "iu" or np.ndim(place):
        raise DtypeError(
            f"{what}: the start index of dim {dim} must be one integer, got {shown(place)} "
            f"of dtype {dtype}."
        )
    if is_traced(place):
        return place
    at = index(_values(what, place)[()])
    # Only an integer that is written in the program can be refused: an array's value is data.
    if isinstance(place, (int, np.integer)) and at < 0 and not wrap:
        raise IndexingError(
            f"{what}: start index {at} of dim {dim} is negative, and allow_negative_indices is "
            "False. Give a non-negative integer, or allow it to count from the end."
        )
    return at


def _values(what: str, given: Any) -> Block:
    return known(given) if is_array(given) else as_host(given, what)


def _wraps(what: str, negative: Any, ndim: int) -> tuple[bool, ...]:
    wraps = (negative,) * ndim if isinstance(negative, (bool, np.bool_)) else tuple(negative)
    if len(wraps) != ndim:
        raise ShapeError(
            f"{what}: allow_negative_indices has {len(wraps)} entries for {ndim} dims; give one "
            "bool, or one for each dim."
        )
    return tuple(map(bool, wraps))


def _check_sizes(what: str, sizes: Sequence[int], shape: tuple[int, ...], name: str) -> None:
    if len(sizes) != len(shape) or any(not 0 <= m <= n for m, n in zip(sizes, shape, strict=False)):
        raise ShapeError(
            f"{what}: {name} {tuple(sizes)} for an array of shape {shape}; it must have one "
            "size for each dim, from 0 to the dim's."
        )


@checked
def dynamic_slice(
    operand: ArrayLike,
    start_indices: Any,
    slice_sizes: Sequence[int],
    *,
    allow_negative_indices: bool | Sequence[bool] = True,
) -> Array:
    """Return a slice of fixed size from a place that may be computed.

    A slice that would leave the array is moved inside. Where the place is known, the result keeps
    the array's cuts, and only what crosses between devices moves.

    Args:
        operand: the array.
        start_indices: for each dim an integer: a Python integer, an array without dims or a traced
            value; or all of them as one array of one dim.
        slice_sizes: for each dim the size.
        allow_negative_indices: whether negative places count from the end; one bool, or one for
            each dim.

    Raises:
        ShapeError: if a size is greater than the dim's, or there is not one for each dim.
        DtypeError: if a place is not an integer.
        IndexingError: if a Python integer is negative, and that is not allowed.

    >>> import meshard.numpy as mnp
    >>> from meshard.lax import dynamic_slice
    >>> dynamic_slice(mnp.arange(5), (3,), (3,)).tolist()
    [2, 3, 4]
    """
    what = "dynamic_slice"
    x = as_array(operand)
    sizes = tuple(map(index, slice_sizes))
    _check_sizes(what, sizes, x.shape, "slice_sizes")
    wraps = _wraps(what, allow_negative_indices, x.ndim)
    starts = _starts(what, start_indices, x.shape, wraps)
    if is_traced(*starts):
        return window(x, starts, sizes, wraps)
    begins = [_start(s, n, m, w) for s, n, m, w in zip(starts, x.shape, sizes, wraps, strict=True)]
    if sizes == x.shape:
        return x
    spans = tuple((at, at + m, 1) for at, m in zip(begins, sizes, strict=True))
    return bind("slice", x, slices=spans, dropped=())


@checked
def dynamic_update_slice(
    operand: ArrayLike,
    update: ArrayLike,
    start_indices: Any,
    *,
    allow_negative_indices: bool | Sequence[bool] = True,
) -> Array:
    """Return a copy of an array with another laid over it at a place that may be computed.

    The copy is laid out like the array; blocks that the update does not touch stay what they are.
    An update that would leave the array is moved inside.

    Args:
        operand: the array.
        update: the new elements, of as many dims; they take the array's dtype.
        start_indices: as of `dynamic_slice`.
        allow_negative_indices: as of `dynamic_slice`.

    Raises:
        ShapeError: if the update is larger than the array.

    >>> import meshard.numpy as mnp
    >>> from meshard.lax import dynamic_update_slice
    >>> dynamic_update_slice(mnp.zeros(4, int), mnp.asarray([7, 8]), (1,)).tolist()
    [0, 7, 8, 0]
    """
    what = "dynamic_update_slice"
    x = as_array(operand)
    value = as_array(update).astype(x.dtype, copy=False)
    _check_sizes(what, value.shape, x.shape, "an update of shape")
    wraps = _wraps(what, allow_negative_indices, x.ndim)
    starts = _starts(what, start_indices, x.shape, wraps)
    if is_traced(*starts):
        if not isinstance(x.aval, ArrayType) or not isinstance(value.aval, ArrayType):  # in a body
            return bind(what, x, value, *starts, wrap=wraps)
        return when_laid_out(
            "update_window", _Laid(wraps), x, value, *[as_array(s) for s in starts]
        )
    places = zip(starts, x.shape, value.shape, wraps, strict=True)
    spans = tuple((at := _start(s, n, m, w), at + m, 1) for s, n, m, w in places)
    return bind("overlay", x, value, slices=spans)


def _along(x: Any, axis: int, what: str, start: Any) -> tuple[int, list[Any]]:
    """Return a dim's number, and the start indices of a slice of that dim alone."""
    (dim,) = normalised_axes((axis,), x.ndim, what)
    starts: list[Any] = [0] * x.ndim
    starts[dim] = start
    return dim, starts


@checked
def dynamic_slice_in_dim(
    operand: ArrayLike,
    start_index: Any,
    slice_size: int,
    axis: int = 0,
    *,
    allow_negative_indices: bool = True,
) -> Array:
    """Return a slice of fixed size along one dim, as `dynamic_slice` does; other dims stay whole.

    >>> import meshard.numpy as mnp
    >>> from meshard.lax import dynamic_slice_in_dim
    >>> dynamic_slice_in_dim(mnp.arange(5), 1, 2).tolist()
    [1, 2]
    """
    x = as_array(operand)
    dim, starts = _along(x, axis, "dynamic_slice_in_dim", start_index)
    sizes = [index(slice_size) if d == dim else n for d, n in enumerate(x.shape)]
    return dynamic_slice(x, starts, sizes, allow_negative_indices=allow_negative_indices)


@checked
def dynamic_index_in_dim(
    operand: ArrayLike,
    index: Any,
    axis: int = 0,
    keepdims: bool = True,
    *,
    allow_negative_indices: bool = True,
) -> Array:
    """Return the elements at one place along a dim, which stays with size one, or goes.

    >>> import meshard.numpy as mnp
    >>> from meshard.lax import dynamic_index_in_dim
    >>> dynamic_index_in_dim(mnp.arange(5), 3).tolist()
    [3]
    """
    x = as_array(operand)
    found = dynamic_slice_in_dim(x, index, 1, axis, allow_negative_indices=allow_negative_indices)
    dim = axis % x.ndim
    return found if keepdims else reshape(found, (*x.shape[:dim], *x.shape[dim + 1 :]))


@checked
def dynamic_update_slice_in_dim(
    operand: ArrayLike,
    update: ArrayLike,
    start_index: Any,
    axis: int,
    *,
    allow_negative_indices: bool = True,
) -> Array:
    """Return a copy with another array laid over it from a place along one dim on.

    >>> import meshard.numpy as mnp
    >>> from meshard.lax import dynamic_update_slice_in_dim
    >>> dynamic_update_slice_in_dim(mnp.zeros(4, int), mnp.asarray([7, 8]), 2, 0).tolist()
    [0, 0, 7, 8]
    """
    x = as_array(operand)
    _, starts = _along(x, axis, "dynamic_update_slice_in_dim", start_index)
    return dynamic_update_slice(x, update, starts, allow_negative_indices=allow_negative_indices)


@checked
def dynamic_update_index_in_dim(
    operand: ArrayLike,
    update: ArrayLike,
    index: Any,
    axis: int,
    *,
    allow_negative_indices: bool = True,
) -> Array:
    """Return a copy with the elements at one place along a dim replaced.

    Args:
        operand: the array.
        update: the new elements; with that dim, of size one, or without it.
        index: the place.
        axis: the dim.
        allow_negative_indices: as of `dynamic_slice`.

    >>> import meshard.numpy as mnp
    >>> from meshard.lax import dynamic_update_index_in_dim
    >>> dynamic_update_index_in_dim(mnp.zeros(3, int), 9, 1, 0).tolist()
    [0, 9, 0]
    """
    x, value = as_array(operand), as_array(update)
    dim, starts = _along(x, axis, "dynamic_update_index_in_dim", index)
    if value.ndim == x.ndim - 1:
        value = expand_dims(value, dim)
    return dynamic_update_slice(x, value, starts, allow_negative_indices=allow_negative_indices)
