"""Arrays with elements added at the ends of their dims, in NumPy's eleven ways.

Dim after dim, so that corners hold what is added to what was added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from meshard.algebra.arguments import choice_of, described
from meshard.errors import ArgumentError
from meshard.ops.array.create import linspace
from meshard.ops.array.join import concatenate, flip
from meshard.ops.array.shape import broadcast_to, squeeze
from meshard.ops.checked import checked, normalised_axes
from meshard.ops.dtypes.laws import is_whole
from meshard.ops.engine.later import concrete, is_traced
from meshard.ops.reductions.moments import mean
from meshard.ops.reductions.quantiles import median
from meshard.ops.reductions.reduce import max as max_
from meshard.ops.reductions.reduce import min as min_
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array, as_host
from meshard.runtime.types import ArrayLike, Block

_OWN = ("edge", "wrap", "reflect", "symmetric")
_STATISTICS: dict[str, Callable[..., Any]] = {
    "maximum": max_,
    "mean": mean,
    "median": median,
    "minimum": min_,
}
_TAKEN = {
    "constant": "constant_values",
    "linear_ramp": "end_values",
    **dict.fromkeys(_STATISTICS, "stat_length"),
    **dict.fromkeys(("reflect", "symmetric"), "reflect_type"),
}
"""The argument that each mode takes."""


@checked
def pad(
    array: ArrayLike,
    pad_width: Any,
    mode: str = "constant",
    *,
    constant_values: Any = None,
    end_values: Any = None,
    stat_length: Any = None,
    reflect_type: str | None = None,
) -> Array:
    """Return the array with elements added at the ends of its dims.

    Args:
        array: the array.
        pad_width: a number, a pair for all dims, a pair per dim, or pairs by dims in a dict.
        mode: ``"constant"``, ``"empty"`` (zeros), ``"edge"``, ``"wrap"``, ``"reflect"``,
            ``"symmetric"``, ``"linear_ramp"``, ``"maximum"``, ``"mean"``, ``"median"`` or
            ``"minimum"``.
        constant_values: the value of the added elements in mode ``"constant"``, by default 0;
            like ``pad_width`` a number, a pair or a pair per dim; in corners, the later dim
            decides.
        end_values: the outermost values in mode ``"linear_ramp"``, given in the same way.
        stat_length: of how many elements at an end the maximum, mean, median or minimum is, by
            default of all; given in the same way. The mean and the median of 0 elements are NaN.
        reflect_type: in modes ``"reflect"`` and ``"symmetric"``: ``"even"``, or ``"odd"`` for
            twice the edge less what is reflected.

    Raises:
        ArgumentError: if the widths do not fit the dims, the mode is unknown, or does not take an
            argument that is given.

    >>> import meshard.numpy as mnp
    >>> mnp.pad(mnp.arange(3), (1, 2), mode="edge").tolist()
    [0, 0, 1, 2, 2, 2]
    """
    x = as_array(array)
    choice_of(mode, ("constant", "empty", *_OWN, "linear_ramp", *_STATISTICS), "pad", "mode")
    given = {
        "constant_values": constant_values,
        "end_values": end_values,
        "stat_length": stat_length,
        "reflect_type": reflect_type,
    }
    for name, value in given.items():
        if value is not None and _TAKEN.get(mode) != name:
            raise ArgumentError(f"pad: mode {mode!r} does not take {name}.")
    added = _added(pad_width, x.ndim)
    if mode in ("constant", "empty"):
        return _with_constants(x, added, 0 if constant_values is None else constant_values)
    for d in added:
        if not x.shape[d]:
            raise ArgumentError(f"pad: dim {d} has no elements that mode {mode!r} could use.")
    if mode in _STATISTICS:
        return _with_statistics(x, added, mode, stat_length)
    if mode == "linear_ramp":
        return _with_ramps(x, added, 0 if end_values is None else end_values)
    if choice_of(reflect_type or "even", ("even", "odd"), "pad", "reflect_type") == "odd":
        return _reflected_oddly(x, added, mode)
    return _padded_with_own(x, added, mode)


def _with_constants(x: Any, added: Mapping[int, tuple[int, int]], constant_values: Any) -> Any:
    values = _border(constant_values, x)
    result = bind("pad_zeros", x, dims=tuple(added.items())) if added else x.copy()
    if not (is_traced(values) or values.any()):
        return result
    for d, (low, _) in added.items():
        # Broadcast along the dims behind: of shape (size, 1, ...).
        at = np.arange(result.shape[d]).reshape((-1, *(1,) * (x.ndim - d - 1)))
        border = values if is_traced(values) else np.where(at < low, *values[d]).astype(x.dtype)
        result = bind("where", (at < low) | (at >= low + x.shape[d]), border, result)
    return result


def _ends(x: Any, d: int, low: int, high: int) -> tuple[Any, Any]:
    """Return that many elements from the beginning of a dim, and from its end."""
    head, size = (slice(None),) * d, x.shape[d]
    return x[(*head, slice(0, low))], x[(*head, slice(size - high, size))]


def _widened(value: Any, d: int, size: int) -> Any:
    return broadcast_to(value, (*value.shape[:d], size, *value.shape[d + 1 :]))


def _with_statistics(
    x: Any, added: Mapping[int, tuple[int, int]], mode: str, stat_length: Any
) -> Any:
    """Return the array with a statistic of the elements at each end added there."""
    statistic = _STATISTICS[mode]
    lengths = None if stat_length is None else _per_side("stat_length", stat_length, x.ndim)
    least = 0 if mode in ("mean", "median") else 1  # that of no elements is NaN
    if lengths is not None and (lengths.dtype.kind not in "iu" or (lengths < least).any()):
        raise ArgumentError(
            f"pad: stat_length must be integers of at least {least} for mode {mode!r}, got "
            f"{described(stat_length)}."
        )
    for d, widths in added.items():
        size = x.shape[d]
        own = (size, size) if lengths is None else [min(int(n), size) for n in lengths[d]]
        found = [statistic(part, d, keepdims=True) for part in _ends(x, d, *own)]
        if is_whole(x.dtype):
            found = [bind("rint", f) if f.dtype.kind == "f" else f for f in found]
        found = [f.astype(x.dtype, copy=False) for f in found]
        low, high = (_widened(f, d, n) for f, n in zip(found, widths, strict=True))
        x = concatenate([low, x, high], axis=d)
    return x


def _with_ramps(x: Any, added: Mapping[int, tuple[int, int]], end_values: Any) -> Any:
    """Return the array with lines added that lead from each end to a value."""
    ends = _per_side("end_values", as_host(end_values, "pad: end_values"), x.ndim)
    for d, (low, high) in added.items():
        edges = [squeeze(edge, d) for edge in _ends(x, d, 1, 1)]
        first, last = (
            linspace(end, edge, n, endpoint=False, dtype=x.dtype, axis=d)
            for end, edge, n in zip(ends[d].tolist(), edges, (low, high), strict=True)
        )
        x = concatenate([first, x, flip(last, d)], axis=d)
    return x


def _reflected_oddly(x: Any, added: Mapping[int, tuple[int, int]], mode: str) -> Any:
    """Return the array with twice its edges less what is reflected, again until it suffices."""
    skipped = int(mode == "reflect")
    for d, (low, high) in added.items():
        if x.shape[d] == 1 and skipped:
            edges = (_widened(e, d, n) for e, n in zip(_ends(x, d, 1, 1), (low, high), strict=True))
            first, last = edges
            x = concatenate([first, x, last], axis=d)
            continue
        period = x.shape[d] - skipped
        while low or high:
            most = (x.shape[d] - skipped) // period * period
            sizes = min(low, most), min(high, most)
            first, last = (flip(v, d) for v in _beside(x, d, skipped, sizes))
            left, right = _ends(x, d, 1, 1)
            x = concatenate([left * 2 - first, x, right * 2 - last], axis=d)
            low, high = low - sizes[0], high - sizes[1]
    return x


def _beside(x: Any, d: int, skipped: int, sizes: tuple[int, int]) -> tuple[Any, Any]:
    """Return elements at both ends of a dim, behind those that are skipped."""
    head, size = (slice(None),) * d, x.shape[d]
    return (
        x[(*head, slice(skipped, skipped + sizes[0]))],
        x[(*head, slice(size - skipped - sizes[1], size - skipped))],
    )


def _added(pad_width: Any, ndim: int) -> dict[int, tuple[int, int]]:
    """Return for each dim that is padded how many elements come before and after."""
    if is_traced(pad_width):
        way_out = "The result's shape depends on pad_width. Give Python integers."
        pad_width = np.asarray(concrete(pad_width, "pad", way_out))
    if isinstance(pad_width, Mapping):
        pad_width = _by_dim(pad_width, ndim)
    widths = _per_side("pad_width", pad_width, ndim)
    if widths.size and widths.dtype.kind not in "iu":
        raise ArgumentError(f"pad: pad_width must be integers, got {described(pad_width)}.")
    if (widths < 0).any():
        raise ArgumentError(f"pad: pad_width must not be negative, got {described(pad_width)}.")
    return {d: (low, high) for d, (low, high) in enumerate(widths.tolist()) if low or high}


def _by_dim(pad_width: Mapping[int, Any], ndim: int) -> Block:
    """Return the widths of all dims, of those that a dict names."""
    found = np.zeros((ndim, 2), np.int64)
    for d, width in pad_width.items():
        (dim,) = normalised_axes(d, ndim, "pad")
        found[dim] = _per_side("pad_width", width, 1)[0]
    return found


def _padded_with_own(x: Any, added: Mapping[int, tuple[int, int]], mode: str) -> Any:
    """Return the array padded with elements of its own: NumPy pads the positions along each dim."""
    positions = {
        d: np.pad(np.arange(x.shape[d]), pair, mode=mode)  # type: ignore[call-overload]
        for d, pair in added.items()
    }
    dims = tuple((d, (tuple(p.tolist()),)) for d, p in positions.items())
    return bind("take_positions", x, dims=dims) if dims else x.copy()


def _border(constant_values: Any, x: Any) -> Any:
    """Return what an array is padded with: a traced number, or a pair of values for each dim."""
    if is_traced(constant_values) and not constant_values.ndim:
        return constant_values.astype(x.dtype, copy=False)
    if is_traced(constant_values):
        way_out = "A traced constant_values must be one number. Give one, or pad side by side."
        constant_values = np.asarray(concrete(constant_values, "pad", way_out))
    typed = hasattr(constant_values, "dtype")
    filler = as_host(constant_values, "pad: constant_values", None if typed else x.dtype)
    return _per_side("constant_values", filler, x.ndim).astype(x.dtype)


def _per_side(name: str, given: Any, ndim: int) -> Block:
    """Return an argument of `pad` as an array of shape ``(ndim, 2)``."""
    try:
        return np.broadcast_to(as_host(given, f"pad: {name}"), (ndim, 2))
    except ValueError:
        raise ArgumentError(
            f"pad: {name} must be a number, a pair, or a pair for each of the {ndim} dims, got "
            f"{described(given)}."
        ) from None
