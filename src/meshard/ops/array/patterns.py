"""Arrays that follow a pattern, and arrays put together or apart in ordinary ways."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Literal, TypeVar, overload

import numpy as np

from meshard.algebra.arguments import choice_of
from meshard.errors import ArgumentError, DimError, DtypeError, IndexingError, ShapeError
from meshard.ops.array.create import arange, array, linspace, zeros
from meshard.ops.array.diagonals import diag
from meshard.ops.array.join import concatenate, flip, stack
from meshard.ops.array.samplesort import known
from meshard.ops.array.shape import (
    atleast_1d,
    broadcast_to,
    each_of,
    expand_dims,
    reshape,
    transpose,
)
from meshard.ops.checked import Axis, DtypeLike, checked, normalised_axes
from meshard.ops.dtypes.laws import as_dtype, default_float
from meshard.ops.engine.later import concrete, is_array, is_traced
from meshard.ops.engine.operand_mesh import replicated_beside
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array, as_host
from meshard.runtime.moving.structs import ShapeDtypeStruct
from meshard.runtime.types import ArrayLike, DeviceLike

# arrays by a formula


R = TypeVar("R")


@checked
def logspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = 50,
    endpoint: bool = True,
    base: ArrayLike = 10.0,
    dtype: DtypeLike = None,
    axis: int = 0,
    *,
    device: DeviceLike = None,
) -> Array:
    """Make an array of powers of ``base`` whose exponents are evenly spaced.

    >>> import meshard.numpy as mnp
    >>> mnp.logspace(0, 2, 3).tolist()
    [1.0, 10.0, 100.0]
    """
    exponents = linspace(start, stop, num, endpoint, axis=axis, device=device)
    if as_array(base).ndim:
        base = expand_dims(as_array(base), axis)
    found = bind("power", base, exponents)
    return found if dtype is None else found.astype(as_dtype(dtype), copy=False)


@checked
def geomspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = 50,
    endpoint: bool = True,
    dtype: DtypeLike = None,
    axis: int = 0,
    *,
    device: DeviceLike = None,
) -> Array:
    """Make an array of numbers in a geometric sequence from ``start`` to ``stop``.

    Raises:
        ArgumentError: if an end is zero.
        DimError: if ``axis`` is not a dim of the result.

    >>> import meshard.numpy as mnp
    >>> mnp.geomspace(1.0, 8.0, 4).round(6).tolist()
    [1.0, 2.0, 4.0, 8.0]
    """
    if is_traced(start, stop):
        way_out = (
            "Its numbers are computed by NumPy. Write mnp.exp(mnp.linspace(mnp.log(start), "
            "mnp.log(stop), num))."
        )
        start, stop = (concrete(v, "geomspace", way_out) for v in (start, stop))
    first, last = (known(v) if is_array(v) else as_host(v, "geomspace") for v in (start, stop))
    try:
        wide = None if dtype is None or as_dtype(dtype).kind != "c" else as_dtype(dtype)
        values = np.geomspace(first, last, num, endpoint, wide, axis)
    except np.exceptions.AxisError:
        raise DimError(f"geomspace: the result has no axis {axis} for the numbers.") from None
    except (ValueError, TypeError) as error:
        raise ArgumentError(
            f"geomspace: there is no sequence from {start} to {stop}: {error}."
        ) from error
    if values.dtype == np.float64:
        values = values.astype(default_float())
    own = replicated_beside("geomspace", values, start, stop)
    return array(own, None if dtype is None else as_dtype(dtype), device=device)


@overload
def indices(
    dimensions: Sequence[int], dtype: DtypeLike = int, sparse: Literal[False] = False
) -> Array: ...
@overload
def indices(
    dimensions: Sequence[int], dtype: DtypeLike = int, *, sparse: Literal[True]
) -> tuple[Array, ...]: ...
@checked
def indices(dimensions: Sequence[int], dtype: DtypeLike = int, sparse: bool = False) -> Any:
    """Return for a grid of a shape each position's number along each dim.

    Args:
        dimensions: the grid's shape.
        dtype: the dtype.
        sparse: whether to return thin arrays that broadcast, instead of one array.

    >>> import meshard.numpy as mnp
    >>> mnp.indices((2, 2)).tolist()
    [[[0, 0], [1, 1]], [[0, 1], [0, 1]]]
    """
    rank, whole = len(dimensions), tuple(dimensions)
    thin = [
        reshape(arange(n, dtype=dtype), (1,) * d + (-1,) + (1,) * (rank - d - 1))
        if n
        else zeros((1,) * d + (0,) + (1,) * (rank - d - 1), dtype)
        for d, n in enumerate(whole)
    ]
    if sparse:
        return tuple(thin)
    if not rank:
        return zeros((0,), dtype)
    return stack([broadcast_to(x, whole) for x in thin])


@checked
def fromfunction(
    function: Callable[..., R], shape: Sequence[int], *, dtype: DtypeLike = float, **kwargs: Any
) -> R:
    """Return what a function makes of each position's numbers along the dims.

    >>> import meshard.numpy as mnp
    >>> mnp.fromfunction(lambda i, j: i + j, (2, 3), dtype=int).tolist()
    [[0, 1, 2], [1, 2, 3]]
    """
    whole = tuple(shape)
    grid = [broadcast_to(x, whole) for x in indices(whole, dtype, sparse=True)]
    return function(*grid, **kwargs)


@checked
def triu_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Array, Array]:
    """Return the positions at and above the diagonal ``k`` of a matrix.

    >>> import meshard.numpy as mnp
    >>> [index.tolist() for index in mnp.triu_indices(2)]
    [[0, 0, 1], [0, 1, 1]]
    """
    rows, columns = np.triu_indices(n, k, m)
    return as_array(rows), as_array(columns)


@checked
def tril_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Array, Array]:
    """Return the positions at and below the diagonal ``k`` of a matrix.

    >>> import meshard.numpy as mnp
    >>> [index.tolist() for index in mnp.tril_indices(2)]
    [[0, 1, 1], [0, 0, 1]]
    """
    rows, columns = np.tril_indices(n, k, m)
    return as_array(rows), as_array(columns)


@checked
def diag_indices(n: int, ndim: int = 2) -> tuple[Array, ...]:
    """Return the positions of the main diagonal of an array with equal dims.

    >>> import meshard.numpy as mnp
    >>> [index.tolist() for index in mnp.diag_indices(3)]
    [[0, 1, 2], [0, 1, 2]]
    """
    return (arange(n),) * ndim


@checked
def diagflat(v: ArrayLike, k: int = 0) -> Array:
    """Return a matrix with the flat array on its diagonal ``k``.

    >>> import meshard.numpy as mnp
    >>> mnp.diagflat(mnp.asarray([1, 2])).tolist()
    [[1, 0], [0, 2]]
    """
    return diag(reshape(v, (-1,)), k)


@checked
def vander(x: ArrayLike, N: int | None = None, increasing: bool = False) -> Array:
    """Return the powers of each element as a row, the highest first by default.

    >>> import meshard.numpy as mnp
    >>> mnp.vander(mnp.asarray([1, 2, 3])).tolist()
    [[1, 1, 1], [4, 2, 1], [9, 3, 1]]
    """
    value = as_array(x)
    if value.ndim != 1:
        raise ShapeError(f"vander: takes an array of one dim, got shape {value.shape}.")
    if N is not None and N < 0:
        raise ArgumentError(f"vander: N must not be negative, got {N}.")
    powers = np.arange(value.shape[0] if N is None else N)
    return bind("power", reshape(value, (-1, 1)), powers if increasing else powers[::-1])


@checked
def unravel_index(
    indices: ArrayLike | Sequence[int], shape: Sequence[int], order: str = "C"
) -> tuple[Array, ...]:
    """Return the positions along each dim of positions in the flat array.

    Args:
        indices: the positions, integers of any shape.
        shape: the array's shape.
        order: ``"C"`` if the last dim counts fastest, ``"F"`` if the first does.

    Raises:
        IndexingError: if a position is outside the shape; a traced one is moved inside.

    >>> import meshard.numpy as mnp
    >>> [index.tolist() for index in mnp.unravel_index(mnp.asarray([1, 5]), (2, 3))]
    [[0, 1], [1, 2]]
    """
    flat = as_array(indices)
    volume = math.prod(shape)
    if not shape and flat.ndim:
        raise ArgumentError(
            "unravel_index: an array without dims has one position, which one number says; got "
            f"indices of shape {flat.shape}."
        )
    if flat.dtype.kind not in "iu":
        raise DtypeError(
            f"unravel_index: indices must be integers, but their dtype is {flat.dtype}."
        )
    if is_traced(flat):
        flat = bind("minimum", bind("maximum", flat, 0), max(volume - 1, 0))
    elif flat.size and (int(flat.min()) < 0 or int(flat.max()) >= volume):
        raise IndexingError(
            f"unravel_index: positions from {int(flat.min())} to {int(flat.max())} for shape "
            f"{tuple(shape)}, whose positions are 0 to {volume - 1}."
        )
    fast_first = choice_of(order, ("C", "F"), "unravel_index", "order") == "F"
    found = []
    for n in tuple(shape) if fast_first else tuple(shape)[::-1]:
        found.append(bind("remainder", flat, n))
        flat = bind("floor_divide", flat, n)
    return tuple(found if fast_first else found[::-1])


@checked
def from_dlpack(x: Any, /, *, device: DeviceLike = None, copy: bool | None = None) -> Array:
    """Return an array of what another library's array on the host holds.

    Args:
        x: an object with ``__dlpack__`` and ``__dlpack_device__``.
        device: a Sharding or Device for the result; None for the default device.
        copy: accepted as in the standard; what is not an `Array` is copied.

    Raises:
        ArgumentError: if the object has no such methods, or is not in the host's memory.

    >>> import numpy, meshard.numpy as mnp
    >>> mnp.from_dlpack(numpy.arange(3)).tolist()
    [0, 1, 2]
    """
    if is_array(x):
        return array(x, device=device)
    try:
        value = np.from_dlpack(x)
    except (AttributeError, TypeError, RuntimeError, BufferError) as error:
        raise ArgumentError(
            f"from_dlpack: a {type(x).__name__} cannot be read on the host: {error}"
        ) from error
    return array(value, device=device)


# what it is


def _shaped(a: Any) -> Any:
    """Return what has a shape: an array, or a `ShapeDtypeStruct` as it is."""
    return a if isinstance(a, ShapeDtypeStruct) else as_array(a)


def ndim(a: ArrayLike) -> int:
    """Return the number of dims.

    >>> import meshard.numpy as mnp
    >>> mnp.ndim([[1, 2], [3, 4]])
    2
    """
    return int(_shaped(a).ndim)


def shape(a: ArrayLike) -> tuple[int, ...]:
    """Return the shape.

    >>> import meshard.numpy as mnp
    >>> mnp.shape([[1, 2, 3]])
    (1, 3)
    """
    return tuple(_shaped(a).shape)


@checked
def size(a: ArrayLike, axis: Axis = None) -> int:
    """Return the number of elements, or of the positions along some dims.

    >>> import meshard.numpy as mnp
    >>> mnp.size(mnp.ones((2, 3)), 1)
    3
    """
    x = _shaped(a)
    return math.prod(x.shape[d] for d in normalised_axes(axis, x.ndim, "size"))


# put together and apart


@checked
def append(arr: ArrayLike, values: ArrayLike, axis: int | None = None) -> Array:
    """Return an array with others joined at its end, along a dim or flat.

    >>> import meshard.numpy as mnp
    >>> mnp.append(mnp.arange(3), 5).tolist()
    [0, 1, 2, 5]
    """
    return concatenate([as_array(arr), as_array(values)], axis=axis)


@overload
def atleast_3d(ary: ArrayLike, /) -> Array: ...
@overload
def atleast_3d(*arys: ArrayLike) -> Array | tuple[Array, ...]: ...
def atleast_3d(*arys: ArrayLike) -> Array | tuple[Array, ...]:
    """Return the array with at least three dims; of several arrays a tuple.

    >>> import meshard.numpy as mnp
    >>> mnp.atleast_3d(mnp.ones((2, 3))).shape
    (2, 3, 1)
    """
    return each_of(arys, _three_dims)


def _three_dims(a: Any) -> Any:
    x = as_array(a)
    if x.ndim >= 3:
        return x
    return reshape(x, [(1, 1, 1), (1, x.size, 1), (*x.shape, 1)][x.ndim])


@checked
def dstack(tup: Sequence[ArrayLike]) -> Array:
    """Return arrays joined along the third dim.

    >>> import meshard.numpy as mnp
    >>> mnp.dstack([mnp.ones((2, 3)), mnp.zeros((2, 3))]).shape
    (2, 3, 2)
    """
    return concatenate([atleast_3d(a) for a in tup], axis=2)


@checked
def column_stack(tup: Sequence[ArrayLike]) -> Array:
    """Return arrays joined as columns; those of one dim become columns first.

    >>> import meshard.numpy as mnp
    >>> mnp.column_stack([mnp.arange(2), mnp.arange(2, 4)]).tolist()
    [[0, 2], [1, 3]]
    """
    values = [atleast_1d(a) for a in tup]
    return concatenate([reshape(x, (-1, 1)) if x.ndim == 1 else x for x in values], axis=1)


@checked
def array_split(
    ary: ArrayLike, indices_or_sections: int | Sequence[int], axis: int = 0
) -> list[Array]:
    """Return the parts of the array along a dim, which may differ in size by one.

    Raises:
        ArgumentError: if the number of sections is not above zero.

    >>> import meshard.numpy as mnp
    >>> [part.tolist() for part in mnp.array_split(mnp.arange(5), 2)]
    [[0, 1, 2], [3, 4]]
    """
    x = as_array(ary)
    (dim,) = normalised_axes(axis, x.ndim, "array_split")
    length = x.shape[dim]
    if isinstance(indices_or_sections, (int, np.integer)):
        n = int(indices_or_sections)
        if n < 1:
            raise ArgumentError(f"array_split: the number of sections must be at least 1, not {n}.")
        each, more = divmod(length, n)
        cuts = [i * each + min(i, more) for i in range(n + 1)]
    else:
        cuts = [0, *[int(i) for i in indices_or_sections], length]
    head = (slice(None),) * dim
    return [x[(*head, slice(i, j))] for i, j in pairwise(cuts)]


def _split(name: str, a: Any, sections: Any, dim: int) -> list[Any]:
    from meshard.ops.array.join import split

    x = as_array(a)
    if x.ndim <= dim:
        raise ShapeError(f"{name}: needs at least {dim + 1} dims, got shape {x.shape}.")
    return split(x, sections, dim)


@checked
def vsplit(ary: ArrayLike, indices_or_sections: int | Sequence[int]) -> list[Array]:
    """Return the parts of the array along the first of two or more dims.

    >>> import meshard.numpy as mnp
    >>> [part.shape for part in mnp.vsplit(mnp.ones((4, 2)), 2)]
    [(2, 2), (2, 2)]
    """
    if as_array(ary).ndim < 2:
        raise ShapeError(f"vsplit: needs at least 2 dims, got shape {as_array(ary).shape}.")
    return _split("vsplit", ary, indices_or_sections, 0)


@checked
def hsplit(ary: ArrayLike, indices_or_sections: int | Sequence[int]) -> list[Array]:
    """Return the parts of the array along the second dim, or the first of one-dim arrays.

    >>> import meshard.numpy as mnp
    >>> [part.tolist() for part in mnp.hsplit(mnp.arange(4), 2)]
    [[0, 1], [2, 3]]
    """
    return _split("hsplit", ary, indices_or_sections, 0 if as_array(ary).ndim == 1 else 1)


@checked
def dsplit(ary: ArrayLike, indices_or_sections: int | Sequence[int]) -> list[Array]:
    """Return the parts of the array along the third dim.

    >>> import meshard.numpy as mnp
    >>> [part.shape for part in mnp.dsplit(mnp.ones((2, 2, 4)), 2)]
    [(2, 2, 2), (2, 2, 2)]
    """
    return _split("dsplit", ary, indices_or_sections, 2)


def flipud(m: ArrayLike) -> Array:
    """Return the array with its first dim reversed.

    >>> import meshard.numpy as mnp
    >>> mnp.flipud(mnp.asarray([[1, 2], [3, 4]])).tolist()
    [[3, 4], [1, 2]]
    """
    return flip(m, 0)


def fliplr(m: ArrayLike) -> Array:
    """Return the array with its second dim reversed.

    >>> import meshard.numpy as mnp
    >>> mnp.fliplr(mnp.asarray([[1, 2], [3, 4]])).tolist()
    [[2, 1], [4, 3]]
    """
    return flip(m, 1)


@checked
def rot90(m: ArrayLike, k: int = 1, axes: tuple[int, int] = (0, 1)) -> Array:
    """Return the array turned by 90 degrees, from the first of two dims towards the second.

    Raises:
        ArgumentError: if ``axes`` are not two dims.

    >>> import meshard.numpy as mnp
    >>> mnp.rot90(mnp.asarray([[1, 2], [3, 4]])).tolist()
    [[2, 4], [1, 3]]
    """
    x = as_array(m)
    dims = [normalised_axes(d, x.ndim, "rot90")[0] for d in axes]
    if len(dims) != 2 or dims[0] == dims[1]:
        raise ArgumentError(f"rot90: axes {tuple(axes)} are not two dims.")
    turns = k % 4
    if turns == 2:
        return flip(x, tuple(dims))
    if not turns:
        return x
    order = list(range(x.ndim))
    order[dims[0]], order[dims[1]] = dims[1], dims[0]
    if turns == 1:
        return transpose(flip(x, dims[1]), order)
    return flip(transpose(x, order), dims[1])
