"""Functions of elements and of whole arrays that choose, round, pack or apply others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshard.algebra.arguments import choice_of, items_of
from meshard.errors import ArgumentError, DtypeError, ShapeError
from meshard.ops.array.shape import broadcast_to, expand_dims, ravel, reshape
from meshard.ops.checked import checked, normalised_axes
from meshard.ops.dtypes.laws import default_float, is_float, is_whole
from meshard.ops.reductions.reduce import all as all_
from meshard.ops.reductions.reduce import sum as sum_
from meshard.ops.reductions.scan import cumsum
from meshard.runtime.array.array import Array
from meshard.runtime.array.at import At, may_write
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array, placed
from meshard.runtime.types import ArrayLike

# elements


@checked
def fix(x: ArrayLike, out: None = None) -> Array:
    """Return the nearest integers towards zero.

    >>> import meshard.numpy as mnp
    >>> mnp.fix(mnp.asarray([2.7, -2.7])).tolist()
    [2.0, -2.0]
    """
    return bind("trunc", x)


def fabs(x: ArrayLike, /) -> Array:
    """Return the absolute values of real numbers, as floats.

    Raises:
        DtypeError: if the elements are complex.

    >>> import meshard.numpy as mnp
    >>> mnp.fabs(mnp.asarray([-1, 2])).tolist()
    [1.0, 2.0]
    """
    value = as_array(x)
    if value.dtype.kind == "c":
        raise DtypeError(f"fabs: takes real numbers, but the dtype is {value.dtype}.")
    return bind("absolute", _as_floats(value))


def _as_floats(x: Any) -> Any:
    """Return integers in the float dtype that NumPy's functions of floats take them in."""
    if is_float(x.dtype):
        return x
    wide = np.result_type(np.sqrt(np.ones(1, x.dtype)).dtype)
    return x.astype(default_float() if wide == np.float64 else wide)


@checked
def real_if_close(a: ArrayLike, tol: float = 100) -> Array:
    """Return the real parts if all imaginary ones are close to zero, else the array.

    Args:
        a: the array.
        tol: how close: above 1 in units of the dtype's eps.

    Raises:
        ConcretizationError: if complex elements are traced: values decide the dtype.

    >>> import meshard.numpy as mnp
    >>> mnp.real_if_close(mnp.asarray([1.5 + 1e-15j])).tolist()
    [1.5]
    """
    x = as_array(a)
    if x.dtype.kind != "c":
        return x
    most = tol * float(np.finfo(x.dtype).eps) if tol > 1 else tol
    return bind("real", x) if bool(all_(bind("absolute", bind("imag", x)) < most)) else x


# bits


def _bits(what: str, a: Any, axis: int | None, bitorder: str) -> tuple[Any, int, bool]:
    choice_of(bitorder, ("big", "little"), what, "bitorder")
    x = as_array(a)
    if axis is None:
        x, axis = ravel(x), 0
    (dim,) = normalised_axes(axis, x.ndim, what)
    return x, dim, bitorder == "big"


@checked
def packbits(a: ArrayLike, axis: int | None = None, bitorder: str = "big") -> Array:
    """Return each eight elements along a dim as the bits of one byte; zeros fill the last one.

    Args:
        a: integers or bools; what is not zero is a bit that is set.
        axis: the dim; None for the flat array.
        bitorder: ``"big"`` if the first of eight is the highest bit, or ``"little"``.

    Raises:
        DtypeError: if the elements are not integers or bools.

    >>> import meshard.numpy as mnp
    >>> mnp.packbits(mnp.asarray([1, 0, 1])).tolist()
    [160]
    """
    x, dim, big = _bits("packbits", a, axis, bitorder)
    if not is_whole(x.dtype):
        raise DtypeError(f"packbits: takes integers or bools, not {x.dtype}.")
    size = x.shape[dim]
    count = -(-size // 8)
    bits = bind("not_equal", x, 0).astype(np.uint8)
    bits = bind("pad_zeros", bits, dims=((dim, (0, count * 8 - size)),))
    bits = reshape(bits, (*x.shape[:dim], count, 8, *x.shape[dim + 1 :]))
    weights = (1 << np.arange(8, dtype=np.uint8)).astype(np.uint8)
    weights = (weights[::-1] if big else weights).reshape((8, *(1,) * (x.ndim - dim - 1)))
    return sum_(bits * weights, dim + 1, np.dtype(np.uint8))


@checked
def unpackbits(
    a: ArrayLike, axis: int | None = None, count: int | None = None, bitorder: str = "big"
) -> Array:
    """Return the bits of bytes, eight for each along a dim.

    Args:
        a: bytes, of dtype uint8.
        axis: the dim; None for the flat array.
        count: how many bits are kept; if negative, how many are left out at the end.
        bitorder: as of `packbits`.

    Raises:
        DtypeError: if the elements are not bytes.

    >>> import meshard.numpy as mnp
    >>> mnp.unpackbits(mnp.asarray([160], dtype="uint8"), count=3).tolist()
    [1, 0, 1]
    """
    x, dim, big = _bits("unpackbits", a, axis, bitorder)
    if x.dtype != np.uint8:
        raise DtypeError(f"unpackbits: takes bytes, of dtype uint8, not {x.dtype}.")
    shifts = np.arange(8, dtype=np.uint8)
    shifts = (shifts[::-1] if big else shifts).reshape((8, *(1,) * (x.ndim - dim - 1)))
    bits = bind("bitwise_and", bind("right_shift", expand_dims(x, dim + 1), shifts), np.uint8(1))
    size = x.shape[dim] * 8
    bits = reshape(bits, (*x.shape[:dim], size, *x.shape[dim + 1 :]))
    if count is None:
        return bits
    if count < -size:
        raise ArgumentError(f"unpackbits: count {count} leaves out more than the {size} bits.")
    wanted = size + count if count < 0 else count
    head = (slice(None),) * dim
    if wanted <= size:
        return bits[(*head, slice(0, wanted))]
    return bind("pad_zeros", bits, dims=((dim, (0, wanted - size)),))


# functions of functions


def piecewise(
    x: ArrayLike,
    condlist: ArrayLike | Sequence[ArrayLike],
    funclist: Sequence[Callable[..., Any] | ArrayLike],
    *args: Any,
    **kw: Any,
) -> Array:
    """Return what different functions make of an array, each where a condition is true.

    Each function is called with the whole array; NumPy calls it with the elements that it is for.

    Args:
        x: the array.
        condlist: conditions in the array's shape; of several that are true the last one counts.
        funclist: a function or a value for each, and perhaps one more for all other elements,
            which are zero otherwise.
        args: what the functions take besides.
        kw: the same, by name.

    Raises:
        ArgumentError: if the number of functions is neither that of the conditions nor one more.

    >>> import meshard.numpy as mnp
    >>> x = mnp.asarray([-1.0, 2.0])
    >>> mnp.piecewise(x, [x < 0, x >= 0], [lambda v: -v, lambda v: v * 10]).tolist()
    [1.0, 20.0]
    """
    value = as_array(x)
    given = list(items_of(funclist, "piecewise", "funclist", "functions", ordered=True))
    masks: list[Any] = list(condlist) if isinstance(condlist, (list, tuple)) else [condlist]
    if masks and value.ndim and all(isinstance(c, (bool, np.bool_)) for c in masks):
        masks = [masks]  # one condition, written as a list of bools
    conditions = [as_array(c) for c in masks]
    if len(given) not in (len(conditions), len(conditions) + 1):
        raise ArgumentError(
            f"piecewise: {len(given)} functions for {len(conditions)} conditions; give one for "
            "each, and perhaps one more for all other elements."
        )
    default = given.pop() if len(given) > len(conditions) else 0

    def made(f: Any) -> Any:
        found = as_array(f(value, *args, **kw) if callable(f) else f)
        return broadcast_to(found.astype(value.dtype, copy=False), value.shape)

    found = made(default)
    for condition, function in zip(conditions, given, strict=True):
        found = bind("where", condition.astype(np.dtype(bool), copy=False), made(function), found)
    return found


@checked
def apply_over_axes(func: Callable[..., Any], a: ArrayLike, axes: int | Sequence[int]) -> Array:
    """Return an array to which a function is applied over one dim after another.

    Args:
        func: takes an array and a dim; its result has as many dims, or that dim less.
        a: the array.
        axes: the dims.

    Raises:
        ShapeError: if the function returns another number of dims.

    >>> import meshard.numpy as mnp
    >>> mnp.apply_over_axes(mnp.sum, mnp.ones((2, 3)), (0, 1)).tolist()
    [[6.0]]
    """
    value = as_array(a)
    rank = value.ndim
    dims: Any = (axes,) if hasattr(axes, "__index__") else axes
    for given in dims:
        (dim,) = normalised_axes(given, rank, "apply_over_axes")
        found = as_array(func(value, dim))
        if found.ndim == rank - 1:
            found = expand_dims(found, dim)
        if found.ndim != rank:
            raise ShapeError(
                f"apply_over_axes: the function returned {found.ndim} dims for an array of {rank}; "
                "it may leave out the dim that it is applied over, or keep all."
            )
        value = found
    return value


# changed copies


def _changed(what: str, x: Any, inplace: bool) -> None:
    """Refuse to change an array, but where arrays may be written into.

    Raises:
        ArgumentError: if that is asked for.
    """
    if inplace and not (type(x) is Array and may_write()):
        raise ArgumentError(
            f"{what}: arrays are immutable; give inplace=False, and use what it returns."
        )


def _kept(x: Any, found: Any, inplace: bool) -> Any:
    """Return the changed array: the same object, if it is to change."""
    if inplace:
        x._rebind(placed(found, x.sharding) if x.committed else found)
    return x if inplace else found


@checked
def put(
    a: ArrayLike,
    ind: ArrayLike | Sequence[int],
    v: ArrayLike,
    mode: str = "raise",
    *,
    inplace: bool = True,
) -> Array:
    """Return the array with elements of the flat array replaced.

    Args:
        a: the array.
        ind: their positions.
        v: the new elements, repeated as often as need be.
        mode: ``"raise"``, ``"wrap"`` or ``"clip"``, for positions outside.
        inplace: must be False, as in JAX: the array stays as it is.

    Raises:
        ArgumentError: unless ``inplace`` is False.

    >>> import meshard.numpy as mnp
    >>> mnp.put(mnp.arange(4), [0, 2], 9, inplace=False).tolist()
    [9, 1, 9, 3]
    """
    _changed("put", a, inplace)
    x, places, new = as_array(a), ravel(as_array(ind)), ravel(as_array(v))
    size, count = x.size, places.shape[0]
    how = choice_of(mode, ("raise", "wrap", "clip"), "put", "mode")
    if not count or not new.shape[0]:
        return x
    places = places.astype(np.int64, copy=False)
    if how == "wrap":
        places = bind("remainder", places, size)
    elif how == "clip":
        places = bind("minimum", bind("maximum", places, 0), size - 1)
    if new.shape[0] < count:
        new = new[np.arange(count) % new.shape[0]]
    found = At(ravel(x))[places].set(new[:count])
    return _kept(a, reshape(found, x.shape), inplace)


@checked
def fill_diagonal(
    a: ArrayLike, val: ArrayLike, wrap: bool = False, *, inplace: bool = True
) -> Array:
    """Return the array with its main diagonal replaced.

    Args:
        a: the array, of at least two dims; of more than two, all equal.
        val: the new elements, repeated as often as need be.
        wrap: whether the diagonal begins anew below a tall matrix.
        inplace: must be False, as in JAX: the array stays as it is.

    Raises:
        ArgumentError: unless ``inplace`` is False.
        ShapeError: if the array has no diagonal.

    >>> import meshard.numpy as mnp
    >>> mnp.fill_diagonal(mnp.zeros((2, 2)), 5, inplace=False).tolist()
    [[5.0, 0.0], [0.0, 5.0]]
    """
    _changed("fill_diagonal", a, inplace)
    x = as_array(a)
    if x.ndim < 2 or (x.ndim > 2 and len(set(x.shape)) > 1):
        raise ShapeError(
            f"fill_diagonal: takes a matrix, or an array of equal dims, got shape {x.shape}."
        )
    if wrap and x.ndim == 2:
        period = x.shape[1] + 1
        flat = np.arange(0, x.size, period)
        rows, columns = np.divmod(flat, x.shape[1])
        places: tuple[Any, ...] = (rows, columns)
    else:
        places = (np.arange(min(x.shape)),) * x.ndim
    new = ravel(as_array(val))
    count = places[0].size
    new = new[np.arange(count) % max(new.shape[0], 1)] if new.shape[0] != 1 else new
    return _kept(a, At(x)[places].set(new), inplace)


@checked
def put_along_axis(
    arr: ArrayLike,
    indices: ArrayLike,
    values: ArrayLike,
    axis: int | None = -1,
    *,
    inplace: bool = True,
) -> Array:
    """Return the array with the elements at positions along a dim replaced.

    Args:
        arr: the array.
        indices: positions, with as many dims as the array.
        values: the new elements, which broadcast to the positions.
        axis: the dim; None for the flat array.
        inplace: must be False, as in JAX: the array stays as it is.

    Raises:
        ArgumentError: unless ``inplace`` is False.
        ShapeError: if the numbers of dims differ.

    >>> import meshard.numpy as mnp
    >>> x = mnp.asarray([[10, 30, 20]])
    >>> mnp.put_along_axis(x, mnp.asarray([[1]]), 0, 1, inplace=False).tolist()
    [[10, 0, 20]]
    """
    _changed("put_along_axis", arr, inplace)
    x, places = as_array(arr), as_array(indices)
    whole = x.shape
    if axis is None:
        x, axis = ravel(x), 0
    (dim,) = normalised_axes(axis, x.ndim, "put_along_axis")
    if places.ndim != x.ndim:
        raise ShapeError(
            f"put_along_axis: indices of shape {places.shape} for an array of shape {x.shape}; "
            "they must have the same number of dims."
        )
    at = [
        places if d == dim else np.arange(n).reshape((-1, *(1,) * (x.ndim - d - 1)))
        for d, n in enumerate(x.shape)
    ]
    return _kept(arr, reshape(At(x)[tuple(at)].set(values), whole), inplace)


@checked
def place(arr: ArrayLike, mask: ArrayLike, vals: ArrayLike, *, inplace: bool = True) -> Array:
    """Return the array with the elements where a mask is true replaced, one after another.

    Args:
        arr: the array.
        mask: bools in its shape.
        vals: the new elements, repeated as often as need be.
        inplace: must be False, as in JAX: the array stays as it is.

    Raises:
        ArgumentError: unless ``inplace`` is False.
        ShapeError: if the shapes differ.

    >>> import meshard.numpy as mnp
    >>> mnp.place(mnp.arange(4), mnp.asarray([1, 0, 1, 1]) > 0, [7, 8], inplace=False).tolist()
    [7, 1, 8, 7]
    """
    _changed("place", arr, inplace)
    x, chosen, new = as_array(arr), as_array(mask), ravel(as_array(vals))
    if chosen.size != x.size:
        raise ShapeError(f"place: a mask of shape {chosen.shape} for an array of shape {x.shape}.")
    chosen = bind("not_equal", reshape(chosen, x.shape), 0)
    count = new.shape[0]
    if count == 1:
        return _kept(arr, bind("where", chosen, new.astype(x.dtype)[0], x), inplace)
    if not count:
        raise ArgumentError("place: there are no values to take.")
    turn = reshape(cumsum(ravel(chosen).astype(np.int64)) - 1, x.shape)
    values = new.astype(x.dtype, copy=False)[bind("remainder", turn, count)]
    return _kept(arr, bind("where", chosen, values, x), inplace)
