"""Creation: arrays from values, constants and counting, on any sharding.

With ``device=`` a sharding, each piece is made where it lies; nothing whole is made first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from meshard.algebra.box import Box
from meshard.errors import ArgumentError, ShapeError
from meshard.runtime.array import Array
from meshard.runtime.place import as_array, as_host, as_sharding, filled, home, placed
from meshard.runtime.primitive import bind
from meshard.runtime.types import Block
from meshard.runtime.world import here

from .dtypes import as_dtype, default_float
from .move import stack
from .registry import Dtype
from .shape import broadcast_arrays

__all__ = [
    "arange",
    "array",
    "asarray",
    "copy",
    "diag",
    "empty",
    "empty_like",
    "eye",
    "full",
    "full_like",
    "identity",
    "linspace",
    "meshgrid",
    "ones",
    "ones_like",
    "tri",
    "tril",
    "triu",
    "zeros",
    "zeros_like",
]


def _made(
    shape: tuple[int, ...],
    dtype: Dtype,
    device: Any,
    make: Callable[[Box], Block],
    what: str,
    committed: bool | None = None,
) -> Array:
    """Make an array piece by piece."""
    world = here()
    sharding = as_sharding(device, what)
    settled = sharding is not None if committed is None else committed
    kind = world.type_of(shape, dtype, sharding or home(world), settled)
    return filled(world, kind, lambda piece: make(kind.layout.box(piece)), what)


def _shape(shape: Any, what: str) -> tuple[int, ...]:
    given = (shape,) if hasattr(shape, "__index__") else tuple(shape)
    if any(not hasattr(n, "__index__") or n.__index__() < 0 for n in given):
        raise ShapeError(f"{what}: {shape!r} is not a shape: sizes are whole numbers from 0 on.")
    return tuple(n.__index__() for n in given)


def _from_nested(value: Any) -> Any:
    """Stack lists that hold arrays; leave everything else alone."""
    if isinstance(value, (list, tuple)) and _holds_array(value):
        return stack(
            [_from_nested(v) if isinstance(v, (list, tuple)) else as_array(v) for v in value]
        )
    return value


def _holds_array(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(_holds_array(v) for v in value)
    return isinstance(value, Array)


def array(
    object: Any, dtype: Any = None, *, copy: bool | None = True, ndmin: int = 0, device: Any = None
) -> Any:
    """Make an array of numbers, nested lists, or anything that NumPy takes.

    Args:
        object: the value; it is copied, so that later changes to it do not show.
        dtype: the dtype; by default NumPy's, with Python floats in the default float.
        copy: accepted as in NumPy; arrays are immutable, so an `Array` is not copied.
        ndmin: the least number of dims; dims of size one are put in front.
        device: a Sharding or Device to lie on; None for the default device, uncommitted.

    Raises:
        DtypeError: if the elements are no numbers.

    >>> import meshard.numpy as mnp
    >>> mnp.array([[1, 2], [3, 4]]).shape
    (2, 2)
    """
    value = _from_nested(object)
    wanted = None if dtype is None else as_dtype(dtype)
    if isinstance(value, Array):
        result = value if wanted is None else value.astype(wanted, copy=False)
    elif device is not None:
        result = placed(as_host(value, "array", wanted), as_sharding(device, "array"))
    else:
        result = as_array(value, wanted)
    if result.ndim < ndmin:
        result = result.reshape((1,) * (ndmin - result.ndim) + result.shape)
    return placed(result, as_sharding(device, "array")) if device is not None else result


def asarray(a: Any, dtype: Any = None, *, copy: bool | None = None, device: Any = None) -> Any:
    """Make an array; one that is an array already stays where it is.

    >>> import meshard.numpy as mnp
    >>> mnp.asarray([1.0, 2.0]).dtype
    dtype('float64')
    """
    return array(a, dtype, copy=copy, device=device)


def copy(a: Any) -> Any:
    """Return an equal array with the same sharding."""
    return as_array(a).copy()


def full(shape: Any, fill_value: Any, dtype: Any = None, *, device: Any = None) -> Any:
    """Make an array of one value.

    Args:
        shape: the global shape.
        fill_value: the value, a scalar.
        dtype: the dtype, by default the value's.
        device: a Sharding or Device to lie on.

    >>> import meshard.numpy as mnp
    >>> mnp.full((2,), 7).tolist()
    [7, 7]
    """
    sizes = _shape(shape, "full")
    value = as_host(fill_value, "full", None if dtype is None else as_dtype(dtype))
    if value.ndim:
        world = here()
        whole = np.broadcast_to(value, sizes)
        return placed(whole, as_sharding(device, "full") or home(world))
    return _made(sizes, value.dtype, device, lambda box: _constant(box.shape, value), "full")


def _constant(shape: tuple[int, ...], value: Block) -> Block:
    if not value.any():
        return np.zeros(shape, value.dtype)
    block = here().pages.empty(shape, value.dtype)
    block[...] = value
    return block


def _constant_of(name: str, number: float) -> Callable[..., Any]:
    def function(shape: Any, dtype: Any = None, *, device: Any = None) -> Any:
        wanted = default_float() if dtype is None else as_dtype(dtype)
        return full(_shape(shape, name), np.asarray(number, wanted), wanted, device=device)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""Make an array of {name}, by default in the default float.

    Args:
        shape: the global shape.
        dtype: the dtype.
        device: a Sharding or Device to lie on; each piece is made where it lies.

    >>> import meshard.numpy as mnp
    >>> mnp.{name}((2, 3)).shape
    (2, 3)
    """
    return function


zeros = _constant_of("zeros", 0)
ones = _constant_of("ones", 1)
empty = _constant_of("empty", 0)


def full_like(
    a: Any, fill_value: Any, dtype: Any = None, *, shape: Any = None, device: Any = None
) -> Any:
    """Make an array of one value with the shape, dtype and sharding of another."""
    x = as_array(a)
    wanted = x.dtype if dtype is None else as_dtype(dtype)
    sizes = x.shape if shape is None else _shape(shape, "full_like")
    if device is None and sizes == x.shape:
        value = np.asarray(fill_value, wanted)
        return _made(
            sizes, wanted, x.sharding, lambda b: _constant(b.shape, value), "full_like", x.committed
        )
    return full(sizes, np.asarray(fill_value, wanted), wanted, device=device)


def zeros_like(a: Any, dtype: Any = None, *, shape: Any = None, device: Any = None) -> Any:
    """Make an array of zeros with the shape, dtype and sharding of another."""
    return full_like(a, 0, dtype, shape=shape, device=device)


def ones_like(a: Any, dtype: Any = None, *, shape: Any = None, device: Any = None) -> Any:
    """Make an array of ones with the shape, dtype and sharding of another."""
    return full_like(a, 1, dtype, shape=shape, device=device)


def empty_like(a: Any, dtype: Any = None, *, shape: Any = None, device: Any = None) -> Any:
    """Make an array of zeros with the shape, dtype and sharding of another."""
    return full_like(a, 0, dtype, shape=shape, device=device)


def arange(
    start: Any, stop: Any = None, step: Any = None, dtype: Any = None, *, device: Any = None
) -> Any:
    """Make an array that counts from ``start`` (0 by default) to before ``stop``.

    >>> import meshard.numpy as mnp
    >>> mnp.arange(2, 8, 2).tolist()
    [2, 4, 6]
    """
    if stop is None:
        start, stop = 0, start
    step = 1 if step is None else step
    if step == 0:
        raise ArgumentError("arange: the step cannot be zero.")
    given = [np.asarray(v).dtype for v in (start, stop, step)]
    floats = any(d.kind == "f" for d in given)
    wanted = (
        as_dtype(dtype)
        if dtype is not None
        else default_float()
        if floats and not any(isinstance(v, np.generic) for v in (start, stop, step))
        else np.result_type(*given)
    )
    size = max(0, math.ceil((stop - start) / step))

    def part(box: Box) -> Block:
        if wanted.kind in "iu":
            lo, hi = box.starts[0], box.stops[0]
            return np.arange(start + lo * step, start + hi * step, step).astype(wanted)[: hi - lo]
        whole: Block = np.arange(box.starts[0], box.stops[0]) * step + start
        return whole.astype(wanted)

    if wanted.kind in "iu" and floats:
        return array(np.arange(start, stop, step, dtype=wanted), device=device)
    return _made((size,), wanted, device, part, "arange")


def linspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: Any = None,
    *,
    device: Any = None,
) -> Any:
    """Make an array of evenly spaced numbers from ``start`` to ``stop``."""
    wanted = default_float() if dtype is None else as_dtype(dtype)
    values, step = np.linspace(start, stop, num, endpoint=endpoint, retstep=True)
    result = array(values.astype(wanted), device=device)
    return (result, step) if retstep else result


def _by_position(
    n: int, m: int | None, dtype: Any, device: Any, what: str, test: Callable[[Any, Any], Any]
) -> Any:
    columns = n if m is None else m
    wanted = default_float() if dtype is None else as_dtype(dtype)

    def part(box: Box) -> Block:
        rows = np.arange(box.starts[0], box.stops[0])[:, None]
        hits: Block = np.asarray(test(rows, np.arange(box.starts[1], box.stops[1])))
        return hits.astype(wanted)

    return _made((n, columns), wanted, device, part, what)


def eye(N: int, M: int | None = None, k: int = 0, dtype: Any = None, *, device: Any = None) -> Any:
    """Make a matrix with ones on the diagonal ``k``, zeros elsewhere."""
    return _by_position(N, M, dtype, device, "eye", lambda i, j: j - i == k)


def identity(n: int, dtype: Any = None) -> Any:
    """Make an identity matrix."""
    return eye(n, dtype=dtype)


def tri(N: int, M: int | None = None, k: int = 0, dtype: Any = None, *, device: Any = None) -> Any:
    """Make a matrix with ones at and below the diagonal ``k``, zeros elsewhere."""
    return _by_position(N, M, dtype, device, "tri", lambda i, j: j - i <= k)


def _triangle(m: Any, k: int, lower: bool) -> Any:
    x = as_array(m)
    if x.ndim < 2:
        raise ShapeError(f"{'tril' if lower else 'triu'}: needs at least two dims, got {x.shape}.")
    rows, columns = x.shape[-2:]
    keep = tri(rows, columns, k if lower else k - 1, bool)
    zero = np.zeros((), x.dtype)
    return bind("where", keep, x, zero) if lower else bind("where", keep, zero, x)


def tril(m: Any, k: int = 0) -> Any:
    """Return the array with zeros above the diagonal ``k`` of its last two dims."""
    return _triangle(m, k, lower=True)


def triu(m: Any, k: int = 0) -> Any:
    """Return the array with zeros below the diagonal ``k`` of its last two dims."""
    return _triangle(m, k, lower=False)


def diag(v: Any, k: int = 0) -> Any:
    """Return a matrix with a given diagonal, or the diagonal of a given matrix."""
    x = as_array(v)
    if x.ndim == 1:
        size = x.size + abs(k)
        rows = np.arange(x.size) + max(-k, 0)
        return zeros((size, size), x.dtype).at[rows, rows + k].set(x)
    if x.ndim != 2:
        raise ShapeError(f"diag: takes one or two dims, got shape {x.shape}.")
    n = max(0, min(x.shape[0] + min(k, 0), x.shape[1] - max(k, 0)))
    rows = np.arange(n) + max(-k, 0)
    return x[rows, rows + k]


def meshgrid(*xi: Any, sparse: bool = False, indexing: str = "xy") -> list[Any]:
    """Return the coordinates of a grid, one array per axis of it."""
    if indexing not in ("xy", "ij"):
        raise ArgumentError(f"meshgrid: indexing is 'xy' or 'ij', not {indexing!r}.")
    arrays = [as_array(x).reshape(-1) for x in xi]
    count = len(arrays)
    order = list(range(count))
    if indexing == "xy" and count > 1:
        order[0], order[1] = 1, 0
    thin = [
        x.reshape((1,) * order[i] + (-1,) + (1,) * (count - order[i] - 1))
        for i, x in enumerate(arrays)
    ]
    if sparse:
        return thin
    return broadcast_arrays(*thin)
