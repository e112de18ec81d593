"""Methods of NumPy's ufuncs on elementwise functions: ``add.reduce``, ``multiply.outer`` and so on.

In: a function of two operands, and an array. Out: its elements combined along dims, as the
reductions and scans do it where there is one of this function; else by halves, if the order does
not matter, or one after another.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshard.algebra.arguments import described
from meshard.algebra.boundary import bounded
from meshard.errors import ArgumentError, DtypeError, IndexingError, ShapeError
from meshard.ops.array import elementwise
from meshard.ops.array.elementwise import Binary
from meshard.ops.array.join import concatenate
from meshard.ops.array.samplesort import known
from meshard.ops.array.shape import broadcast_to, reshape
from meshard.ops.checked import Axis, DtypeLike, checked, normalised_axes
from meshard.ops.dtypes.laws import as_dtype, common_dtype, weak_kind
from meshard.ops.engine.later import concrete, is_array, is_traced
from meshard.ops.lax import reduce as _rows  # noqa: F401  (which registers those of bits)
from meshard.ops.reductions import reduce as reductions
from meshard.ops.reductions import scan
from meshard.ops.reductions.reduce import where_of
from meshard.runtime.array.array import Array
from meshard.runtime.array.at import At
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array, as_host
from meshard.runtime.types import ArrayLike

_MOST = 256
"""Elements along a dim up to which they are combined one after another."""

_SUMS: dict[str, Callable[..., Any]] = {"add": reductions.sum, "multiply": reductions.prod}
_EXTREMES: dict[str, Callable[..., Any]] = {"maximum": reductions.max, "minimum": reductions.min}
_TESTS: dict[str, Callable[..., Any]] = {
    "logical_and": reductions.all,
    "logical_or": reductions.any,
}
_SCANS: dict[str, Callable[..., Any]] = {
    "add": scan.cumsum,
    "multiply": scan.cumprod,
    "maximum": scan.cummax,
    "minimum": scan.cummin,
}
_ROWS = {f"bitwise_{how}": f"reduce_{how}" for how in ("and", "or", "xor")}
_COMPARISONS = frozenset(("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"))
_ASSOCIATIVE = frozenset(
    (
        *("add", "multiply", "maximum", "minimum", "fmax", "fmin", "logaddexp", "logaddexp2"),
        *("logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor"),
        *("gcd", "lcm", "hypot"),
    )
)
_UPDATES = {
    **{name: name for name in ("add", "subtract", "multiply", "divide", "power")},
    "maximum": "max",
    "minimum": "min",
}


def _part(x: Any, dim: int, start: int | None, stop: int | None) -> Any:
    return x[(*(slice(None),) * dim, slice(start, stop))]


def _one_dim(what: str, a: Any, axis: Axis) -> tuple[Any, int]:
    x = as_array(a)
    dims = normalised_axes(axis, x.ndim, what)
    if len(dims) != 1:
        raise ArgumentError(f"{what}: takes one dim at a time, but axis={axis} names {len(dims)}.")
    return x, dims[0]


def _too_many(what: str, size: int) -> ArgumentError:
    return ArgumentError(
        f"{what}: combines elements one after another, since the order matters, and takes at most "
        f"{_MOST} of them, not {size}. Use meshard.lax.scan."
    )


def _identity(name: str, dtype: Any) -> Any:
    """Return what changes nothing: the ufunc's identity.

    Raises:
        ShapeError: if there is none.
    """
    identity = getattr(np, name).identity
    if identity is None:
        raise ShapeError(f"{name}.reduce: there are no elements, and no initial= to start from.")
    return np.asarray(identity).astype(dtype)


def _folded(name: str, x: Any, dim: int, mask: Any) -> Any:
    """Combine the elements along a dim that are not masked; the dim stays with size one."""
    size = x.shape[dim]
    if not size:
        shape = tuple(1 if d == dim else n for d, n in enumerate(x.shape))
        return np.broadcast_to(_identity(name, x.dtype), shape)
    if name in _ASSOCIATIVE and mask is None:
        while size > 1:
            half = size // 2
            ends = _part(x, dim, 0, half), _part(x, dim, half, 2 * half)
            rest = _part(x, dim, 2 * half, None)
            joined = bind(name, *ends)
            x = concatenate([joined, rest], axis=dim) if size % 2 else joined
            size = half + size % 2
        return x
    if size > _MOST:
        raise _too_many(f"{name}.reduce", size)
    first = _part(x, dim, 0, 1)
    found = first.astype(bind(name, first, first).dtype, copy=False)
    for i in range(1, size):
        joined = bind(name, found, _part(x, dim, i, i + 1))
        part = None if mask is None else _part(mask, dim, i, i + 1)
        found = joined if part is None else bind("where", part, joined, found)
    return found


def _prepared(name: str, x: Any, dims: Sequence[int], initial: Any, where: Any) -> tuple[Any, Any]:
    """Return elements with a first value in front, and which of them take part; None: all.

    Raises:
        ArgumentError: if some may be left out, and there is nothing to start from.
    """
    mask = None
    if where is not None:
        mask = broadcast_to(where_of(x, where, f"{name}.reduce"), x.shape)
        identity = getattr(np, name).identity
        if identity is not None and name in _ASSOCIATIVE:
            x, mask = bind("where", mask, x, _identity(name, x.dtype)), None
        elif initial is None:
            raise ArgumentError(
                f"{name}.reduce: where= may leave out all elements; give initial=, a value to "
                "start from."
            )
    if initial is not None and dims:
        dim = dims[0]
        start = as_array(initial).astype(x.dtype, copy=False)
        shape = tuple([1 if d == dim else n for d, n in enumerate(x.shape)])
        x = concatenate([broadcast_to(start, shape), x], axis=dim)
        if mask is not None:
            mask = concatenate([broadcast_to(np.ones((), bool), shape), mask], axis=dim)
    return x, mask


def _reduced(
    name: str,
    x: Any,
    axis: Axis,
    keepdims: bool,
    *,
    initial: Any = None,
    where: Any = None,
) -> Any:
    """Return the elements combined over dims, by a reduction if there is one of this function."""
    x = _comparable(f"{name}.reduce", name, x)
    if name in _EXTREMES:
        return _EXTREMES[name](x, axis, None, keepdims, initial, where)
    if name in _TESTS and initial is None:
        return _TESTS[name](x, axis, None, keepdims, where=where)
    if name.startswith("logical_"):
        x = bind("not_equal", x, 0)
    dims = normalised_axes(axis, x.ndim, f"{name}.reduce")
    if len(dims) > 1 and name not in _ASSOCIATIVE:
        raise ArgumentError(
            f"{name}.reduce: the order matters, so that dims are taken one by one, not {len(dims)}."
        )
    found = _combined(name, *_prepared(name, x, dims, initial, where), dims)
    if keepdims or not dims:
        return as_array(found)
    return reshape(found, tuple([n for d, n in enumerate(x.shape) if d not in dims]))


def _combined(name: str, x: Any, mask: Any, dims: Sequence[int]) -> Any:
    """Return the elements combined over dims, which stay with size one."""
    if name in _ROWS and mask is None and all(x.shape[d] for d in dims):
        return bind(_ROWS[name], x, axis=tuple(dims), keepdims=True)
    for dim in dims:
        x, mask = _folded(name, x, dim, mask), None
    return x


def _in_dtype(x: Any, dtype: Any) -> Any:
    return x if dtype is None else x.astype(as_dtype(dtype), copy=False)


def _comparable(what: str, name: str, x: Any) -> Any:
    """Return an array, of bools where a function compares: what it gives is compared again.

    Raises:
        DtypeError: if it has another dtype.
    """
    if name in _COMPARISONS and x.dtype.kind != "b":
        raise DtypeError(f"{what}: takes bools, which is what it gives, not {x.dtype}.")
    return x


def _accumulated(name: str, a: Any, axis: int, dtype: Any) -> Any:
    x, dim = _one_dim(f"{name}.accumulate", a, axis)
    x = _comparable(f"{name}.accumulate", name, x)
    if name in _SCANS and name in _SUMS:
        return _SCANS[name](x, dim, dtype)
    x = _in_dtype(x, dtype)
    if name in _SCANS:
        return _SCANS[name](x, dim)
    if name.startswith("logical_"):
        x = bind("not_equal", x, 0)
    size = x.shape[dim]
    if name in _ASSOCIATIVE:
        step = 1
        while step < size:
            joined = bind(name, _part(x, dim, 0, size - step), _part(x, dim, step, None))
            x = concatenate([_part(x, dim, 0, step), joined], axis=dim)
            step *= 2
        return x
    if size > _MOST:
        raise _too_many(f"{name}.accumulate", size)
    parts = [_folded(name, _part(x, dim, 0, 1), dim, None)] if size else []
    for i in range(1, size):
        parts.append(bind(name, parts[-1], _part(x, dim, i, i + 1)))
    return concatenate(parts, axis=dim) if parts else x


def _reduced_at(combine: Any, a: Any, indices: Any, axis: int, dtype: Any) -> Any:
    what = f"{combine.__qualname__}at"
    x, dim = _one_dim(what, a, axis)
    size = x.shape[dim]
    if is_traced(indices):
        indices = concrete(indices, what, "They decide which elements meet. Give integers.")
    places = known(indices) if is_array(indices) else as_host(indices, f"{what}: indices")
    if places.ndim != 1 or (places.size and places.dtype.kind not in "iu"):
        raise ArgumentError(f"{what}: indices must be integers, got {described(indices)}.")
    if places.size and (places.min() < 0 or places.max() >= size):
        raise IndexingError(
            f"{what}: positions from {places.min()} to {places.max()} for a dim of size {size}."
        )
    if not places.size:
        one = broadcast_to(np.ones((), x.dtype), (1,))
        return _part(x, dim, 0, 0).astype(combine(one, 0, dtype).dtype, copy=False)
    ends = [*places[1:].tolist(), size]
    parts = []
    for start, stop in zip(places.tolist(), ends, strict=True):
        own = _part(x, dim, start, max(stop, start + 1))
        parts.append(combine(own, dim, dtype, None, True))
    return concatenate(parts, axis=dim)


def _in_place(what: str, inplace: bool) -> None:
    if inplace:
        raise ArgumentError(
            f"{what}: arrays are immutable; give inplace=False, and use what it returns."
        )


def _combined_at(name: str, a: Any, indices: Any, b: Any) -> Any:
    """Return an array with elements at positions combined with others."""
    if name not in _UPDATES:
        raise ArgumentError(
            f"{name}.at: positions that repeat are combined by {', '.join(_UPDATES)} only. Use "
            "x.at[index].apply(function) where they do not repeat."
        )
    x = as_array(a)
    kind = common_dtype(f"{name}.at", [x.dtype, weak_kind(b) or as_array(b).dtype])
    # What is combined keeps its dtype, as in NumPy: only the result is cast to the array's.
    wide = x.astype(kind, copy=False)
    return getattr(At(wide)[indices], _UPDATES[name])(b).astype(x.dtype, copy=False)


def _with_methods(name: str, function: Binary) -> None:
    """Give an elementwise function of two operands the methods that NumPy's ufunc has."""
    ufunc: np.ufunc = getattr(np, name)

    @checked
    def reduce(
        a: ArrayLike,
        axis: Axis = 0,
        dtype: DtypeLike = None,
        out: None = None,
        keepdims: bool = False,
        **more: Any,
    ) -> Array:
        """Return the elements combined over dims, the first by default.

        ``initial=`` and ``where=`` mean what they do to `sum`.
        """
        x = as_array(a)
        if name in _SUMS:
            return _SUMS[name](x, axis, dtype, None, keepdims, **more)
        return _reduced(name, _in_dtype(x, dtype), axis, keepdims, **more)

    @checked
    def accumulate(a: ArrayLike, axis: int = 0, dtype: DtypeLike = None, out: None = None) -> Array:
        """Return the elements up to each one combined, along a dim."""
        return _accumulated(name, a, axis, dtype)

    @checked
    def reduceat(
        a: ArrayLike,
        indices: ArrayLike | Sequence[int],
        axis: int = 0,
        dtype: DtypeLike = None,
        out: None = None,
    ) -> Array:
        """Return the elements between positions combined, along a dim."""
        return _reduced_at(reduce, a, indices, axis, dtype)

    def outer(A: ArrayLike, B: ArrayLike, /) -> Array:
        """Return what it gives for each pair of elements of two arrays."""
        x, y = as_array(A), as_array(B)
        return bind(name, reshape(x, (*x.shape, *(1,) * y.ndim)), y)

    @checked
    def at(a: ArrayLike, indices: Any, b: ArrayLike, /, *, inplace: bool = True) -> Array:
        """Return the array with elements at positions, which may repeat, combined with others."""
        _in_place(f"{name}.at", inplace)
        return _combined_at(name, a, indices, b)

    for method in (reduce, accumulate, reduceat, outer, at):
        method.__qualname__ = f"{name}.{method.__name__}"
        inspect.unwrap(method).__qualname__ = method.__qualname__
        setattr(function, method.__name__, bounded(method))
    for attribute in ("nin", "nout", "nargs", "identity"):
        setattr(function, attribute, getattr(ufunc, attribute))


METHODS = ("reduce", "accumulate", "reduceat", "outer", "at")
"""The methods that elementwise functions of two operands have."""

for _name in sorted(elementwise.BINARY):
    _with_methods(_name, elementwise.BINARY[_name])
