"""Grids and index helpers: what is written with brackets, ``mgrid[0:3, 0:4]``, and index arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np

from meshard.algebra.arguments import choice_of, described, function_of, items_of
from meshard.errors import ArgumentError, DtypeError, IndexingError, ShapeError
from meshard.ops.array.create import arange, linspace, ones, zeros
from meshard.ops.array.join import concatenate, stack
from meshard.ops.array.nonzero import nonzero
from meshard.ops.array.patterns import diag_indices, tril_indices, triu_indices
from meshard.ops.array.shape import broadcast_arrays, moveaxis, reshape
from meshard.ops.checked import checked
from meshard.ops.dtypes.laws import common_dtype, weak_kind
from meshard.ops.engine.later import is_array, is_traced
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array, filling
from meshard.runtime.types import ArrayLike


def _ends(part: slice) -> tuple[Any, Any, Any]:
    """Return start, stop and step of a slice; an imaginary step says how many points there are."""
    start = 0 if part.start is None else part.start
    step = 1 if part.step is None else part.step
    if part.stop is None:
        raise ArgumentError(f"a grid ends somewhere: {part} has no stop.")
    return start, part.stop, step


def _line(part: slice, dtype: Any = None) -> Any:
    """Return the numbers that a slice stands for; if it says how many, of a dtype."""
    start, stop, step = _ends(part)
    if isinstance(step, (complex, np.complexfloating)):
        return linspace(start, stop, int(np.abs(step)), dtype=dtype)
    return arange(start, stop, step)


def _kinds_of_line(part: slice) -> list[Any]:
    """Return what decides the dtype of a grid: an imaginary step counts as the float it is."""
    start, stop, step = _ends(part)
    if isinstance(step, (complex, np.complexfloating)):
        step = np.abs(step) if isinstance(step, np.complexfloating) else abs(step)
    return [_kind(v) for v in (start, stop, step)]


@final
class Grid:
    """What `mgrid` and `ogrid` are: in brackets, a slice for each dim."""

    def __init__(self, name: str, sparse: bool) -> None:
        self._name = name
        self._sparse = sparse

    def __repr__(self) -> str:
        return f"meshard.numpy.{self._name}"

    def __getitem__(self, key: slice | tuple[slice, ...]) -> Any:
        parts = key if isinstance(key, tuple) else (key,)
        for part in parts:
            if not isinstance(part, slice):
                raise ArgumentError(
                    f"{self._name}: takes slices, such as {self._name}[0:3, 0:4], got "
                    f"{described(part)}."
                )
        kinds = [kind for part in parts for kind in _kinds_of_line(part)]
        common = common_dtype(self._name, kinds) if kinds else np.dtype(np.int64)
        lines = [_line(part, common) for part in parts]
        if not isinstance(key, tuple):
            return lines[0]
        lines = [x.astype(common, copy=False) for x in lines]
        rank = len(lines)
        thin = [reshape(x, (1,) * d + (-1,) + (1,) * (rank - d - 1)) for d, x in enumerate(lines)]
        if self._sparse:
            return tuple(thin)
        sizes = tuple([x.shape[0] for x in lines])
        if not rank or 0 in sizes:
            return zeros((rank, *sizes), common)
        return stack(broadcast_arrays(*thin))


mgrid = Grid("mgrid", sparse=False)
ogrid = Grid("ogrid", sparse=True)


@final
class Joiner:
    """What `r_` and `c_` are: in brackets, arrays, numbers and slices that are joined."""

    def __init__(self, name: str, axis: int, least: int, behind: int) -> None:
        self._name = name
        self._how = axis, least, behind

    def __repr__(self) -> str:
        return f"meshard.numpy.{self._name}"

    def __getitem__(self, key: Any) -> Array:
        parts = list(key) if isinstance(key, tuple) else [key]
        axis, least, behind = self._how
        if parts and isinstance(parts[0], str):
            axis, least, behind = self._directive(parts.pop(0))
        values = [_line(p) if isinstance(p, slice) else p for p in parts]
        kinds = [_kind(v) for v in values]
        if not values:
            raise ArgumentError(f"{self._name}: there is nothing to join.")
        common = common_dtype(self._name, kinds)
        shaped = []
        for value, part in zip(values, parts, strict=True):
            x = _joined(value, common, self._name)
            own = 1 if isinstance(part, slice) else x.ndim
            missing = least - x.ndim
            if missing > 0:
                x = reshape(x, (1,) * missing + x.shape)
                at = behind if behind >= 0 else least - max(own, 1) + behind + 1
                if own:
                    x = moveaxis(x, range(missing, least), range(at, at + own))
            shaped.append(x if x.ndim else reshape(x, (1,)))
        return concatenate(shaped, axis=axis)

    def _directive(self, text: str) -> tuple[int, int, int]:
        """Return the dim to join along, the least rank, and where dims go, as a string says."""
        try:
            numbers = [int(word) for word in text.split(",")]
        except ValueError:
            numbers = []
        if not 1 <= len(numbers) <= 3:
            raise ArgumentError(
                f"{self._name}: a string says how to join, as 'axis', 'axis,ndim' or "
                f"'axis,ndim,place' in integers; got {text!r}."
            )
        axis, least, behind = [*numbers, *(0, 1, -1)[len(numbers) :]]
        return axis, least, behind


def _joined(value: Any, dtype: Any, what: str) -> Any:
    """Return a part in the dtype of all; Python's numbers must fit into it, others are cast."""
    if weak_kind(value):
        return filling(value, dtype, what)
    return as_array(value).astype(dtype, copy=False)


def _kind(value: Any) -> Any:
    if (weak := weak_kind(value)) is not None:
        return weak
    return value.dtype if hasattr(value, "dtype") else as_array(value).dtype


r_ = Joiner("r_", 0, 1, -1)
c_ = Joiner("c_", -1, 2, 0)


def ix_(*args: ArrayLike | Sequence[int]) -> tuple[Array, ...]:
    """Return index arrays that pick rows and columns, and so on: each dim has its own.

    Args:
        args: for each dim positions, or a mask of which the true positions are taken.

    Raises:
        ShapeError: if one has not one dim.

    >>> import meshard.numpy as mnp
    >>> mnp.arange(9).reshape(3, 3)[mnp.ix_([0, 2], [1, 2])].tolist()
    [[1, 2], [7, 8]]
    """
    found = []
    for number, given in enumerate(args):
        x = as_array(given)
        if x.ndim != 1:
            raise ShapeError(
                f"ix_: argument {number} must have one dim, but its shape is {x.shape}."
            )
        if x.dtype.kind == "b":
            (x,) = nonzero(x)
        elif not (x.size or is_array(given) or isinstance(given, np.ndarray)):
            x = x.astype(np.int64)  # an empty list says nothing of its dtype
        found.append(reshape(x, (1,) * number + (-1,) + (1,) * (len(args) - number - 1)))
    return tuple(found)


@checked
def ravel_multi_index(
    multi_index: Sequence[ArrayLike] | ArrayLike,
    dims: Sequence[int],
    mode: str | Sequence[str] = "raise",
    order: str = "C",
) -> Array:
    """Return the positions in the flat array of positions along each dim.

    Args:
        multi_index: for each dim integers, which broadcast.
        dims: the array's shape.
        mode: ``"raise"`` refuses positions outside; ``"wrap"`` and ``"clip"`` bring them inside;
            for all dims, or one for each. Traced ones are clipped, as in JAX.
        order: ``"C"`` if the last dim counts fastest, ``"F"`` if the first does.

    Raises:
        IndexingError: if a position is outside the shape.
        ArgumentError: if there is not one array for each dim.

    >>> import meshard.numpy as mnp
    >>> mnp.ravel_multi_index(mnp.asarray([[1, 0], [2, 1]]), (2, 3)).tolist()
    [5, 1]
    """
    stacked: Any = multi_index
    if is_array(stacked) and stacked.ndim:
        given = [stacked[d] for d in range(stacked.shape[0])]
    else:
        what = "ravel_multi_index", "multi_index", "arrays of positions"
        given = list(items_of(stacked, *what, ordered=True))
    shape = tuple(dims)
    if len(given) != len(shape):
        raise ArgumentError(
            f"ravel_multi_index: {len(given)} arrays of positions for {len(shape)} dims, of the "
            f"shape {shape}."
        )
    choice_of(order, ("C", "F"), "ravel_multi_index", "order")
    modes = [mode] * len(shape) if isinstance(mode, str) else list(mode)
    if len(modes) != len(shape):
        raise ArgumentError(
            f"ravel_multi_index: {len(modes)} modes for {len(shape)} dims; give one, or one "
            "for each."
        )
    places = []
    for x, n, how in zip(map(as_array, given), shape, modes, strict=True):
        if x.dtype.kind not in "iu":
            raise DtypeError(
                f"ravel_multi_index: positions must be integers, but their dtype is {x.dtype}."
            )
        places.append(_inside(x.astype(np.int64, copy=False), n, how, shape))
    found: Any = 0
    for d in range(len(shape)) if order == "C" else reversed(range(len(shape))):
        found = found * shape[d] + places[d]
    return as_array(found)


def _inside(x: Any, n: int, mode: str, shape: tuple[int, ...]) -> Any:
    """Return positions along a dim that are inside it."""
    choice_of(mode, ("raise", "wrap", "clip"), "ravel_multi_index", "mode")
    if mode == "wrap":
        return bind("remainder", x, n)
    if mode == "raise" and not is_traced(x):
        if x.size and (int(x.min()) < 0 or int(x.max()) >= n):
            raise IndexingError(
                f"ravel_multi_index: positions from {int(x.min())} to {int(x.max())} along a dim "
                f"of size {n} of the shape {shape}; mode='wrap' or 'clip' brings them inside."
            )
        return x
    return bind("minimum", bind("maximum", x, 0), n - 1)


def diag_indices_from(arr: ArrayLike) -> tuple[Array, ...]:
    """Return the positions of the main diagonal of an array with equal dims.

    Raises:
        ShapeError: if it has less than two dims, or they differ.

    >>> import meshard.numpy as mnp
    >>> [index.tolist() for index in mnp.diag_indices_from(mnp.ones((2, 2)))]
    [[0, 1], [0, 1]]
    """
    shape = as_array(arr).shape
    if len(shape) < 2 or len(set(shape)) != 1:
        raise ShapeError(
            f"diag_indices_from: takes an array of at least two equal dims, got shape {shape}."
        )
    return diag_indices(shape[0], len(shape))


def _matrix_shape(name: str, arr: Any) -> tuple[int, ...]:
    shape: tuple[int, ...] = as_array(arr).shape
    if len(shape) != 2:
        raise ShapeError(f"{name}: takes a matrix, got shape {shape}.")
    return shape


def mask_indices(
    n: int, mask_func: Callable[..., Any], k: Any = 0, *, size: int | None = None
) -> tuple[Array, ...]:
    """Return the positions that a function leaves in a square matrix of ones.

    Args:
        n: the number of rows and columns.
        mask_func: called with the matrix and ``k``, as `triu` and `tril` are.
        k: passed on, such as the number of a diagonal.
        size: how many positions to return, as in `nonzero`.

    >>> import meshard.numpy as mnp
    >>> [index.tolist() for index in mnp.mask_indices(2, mnp.triu)]
    [[0, 0, 1], [0, 1, 1]]
    """
    function_of(mask_func, "mask_indices", "mask_func")
    return nonzero(mask_func(ones((n, n)), k), size=size)


@checked
def tril_indices_from(arr: ArrayLike, k: int = 0) -> tuple[Array, Array]:
    """Return the positions at and below the diagonal ``k`` of a matrix of an array's shape.

    >>> import meshard.numpy as mnp
    >>> [index.tolist() for index in mnp.tril_indices_from(mnp.ones((2, 2)))]
    [[0, 1, 1], [0, 0, 1]]
    """
    rows, columns = _matrix_shape("tril_indices_from", arr)
    return tril_indices(rows, k, columns)


@checked
def triu_indices_from(arr: ArrayLike, k: int = 0) -> tuple[Array, Array]:
    """Return the positions at and above the diagonal ``k`` of a matrix of an array's shape.

    >>> import meshard.numpy as mnp
    >>> [index.tolist() for index in mnp.triu_indices_from(mnp.ones((2, 2)))]
    [[0, 0, 1], [0, 1, 1]]
    """
    rows, columns = _matrix_shape("triu_indices_from", arr)
    return triu_indices(rows, k, columns)
