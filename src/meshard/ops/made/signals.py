"""Signals of one dim and their kin: convolutions, differences of neighbours, windows.

Only what devices lack of their neighbours' elements moves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshard.algebra.arguments import choice_of
from meshard.errors import ArgumentError, DtypeError, ShapeError
from meshard.ops.array.create import asarray
from meshard.ops.array.join import concatenate, flip
from meshard.ops.array.shape import expand_dims, reshape
from meshard.ops.checked import Axis, checked, normalised_axes
from meshard.ops.dtypes.laws import (
    SMALL_FLOATS,
    accumulator,
    common_dtype,
    default_float,
    is_float,
    is_whole,
)
from meshard.ops.engine.later import when_laid_out
from meshard.ops.lax.special import bessel_i0e
from meshard.ops.reductions.scan import cumsum, diff
from meshard.ops.row import Dtype, Op, Operand, Params, RuleText, register
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array
from meshard.runtime.types import ArrayLike, Block

# convolutions: rows of windows, each device one row


def _correlate_rule(operands: Sequence[Operand], params: Params) -> RuleText:
    size = operands[0][0][-1] - operands[1][0][-1] + 1
    return "... !w, ... !k -> ... o", {"o": size}


def _correlate_law(operands: Sequence[Operand], params: Params) -> tuple[Dtype, ...]:
    dtype = operands[0][1]
    assert isinstance(dtype, np.dtype)
    return (dtype,)


def _correlate(x: Block, v: Block) -> Block:
    """Return the sums of products of a row's windows with another row, not conjugated."""
    own = x.dtype
    if own == np.float16 or own in SMALL_FLOATS:
        x, v = x.astype(np.float32), v.astype(np.float32)
    lead = np.broadcast_shapes(x.shape[:-1], v.shape[:-1])
    size = x.shape[-1] - v.shape[-1] + 1
    found = np.empty((*lead, size), x.dtype)
    rows = np.broadcast_to(x, (*lead, x.shape[-1]))
    kernels = np.broadcast_to(v, (*lead, v.shape[-1]))
    for place in np.ndindex(*lead):
        found[place] = np.convolve(rows[place], kernels[place][::-1], "valid")
    return found.astype(own, copy=False)


register(Op("correlate", _correlate_rule, _correlate, dtypes=_correlate_law, sums=True))


def _windows(x: Any, v: Any, *, dim: int) -> Any:
    """Correlate an array along its last dim, which may be split, with a shorter one.

    Args:
        x: the array.
        v: what slides along it; whole on each device.
        dim: the last dim of both; those before it are of many examples.
    """
    count, size = v.shape[dim], x.shape[dim] - v.shape[dim] + 1
    parts = max(len(x.aval.layout.cuts[dim]) - 1, 1)
    each = -(-size // parts)
    if parts == 1:
        return bind("correlate", x, v)
    # Each row begins where its device's results do, and reaches into what follows.
    starts = np.arange(parts)[:, None] * each
    places = np.minimum(starts + np.arange(each + count - 1), x.shape[dim] - 1)
    rows = bind("take_positions", x, dims=((dim, (tuple(places.reshape(-1).tolist()),)),))
    head = x.shape[:dim]
    rows = reshape(rows, (*head, parts, each + count - 1))
    found = bind("correlate", rows, expand_dims(v, dim) if dim else v)
    return reshape(found, (*head, parts * each))[..., :size]


def _sliding(what: str, a: Any, v: Any, mode: str) -> Any:
    """Return sums of products of an array with another that slides along it.

    Args:
        what: the function, for errors.
        a: the array.
        v: the other one, which is not longer.
        mode: one of NumPy's; ``"same"`` gives what ``"full"`` does.
    """
    choice_of(mode, ("full", "same", "valid"), what, "mode")
    for name, value in (("a", a), ("v", v)):
        if value.ndim != 1 or not value.shape[0]:
            raise ShapeError(
                f"{what}: {name} must have one dim with elements, but its shape is {value.shape}."
            )
    common = common_dtype(what, (a.dtype, v.dtype))
    a, v = a.astype(common, copy=False), v.astype(common, copy=False)
    beyond = 0 if mode == "valid" else v.shape[0] - 1
    if beyond:
        a = bind("pad_zeros", a, dims=((0, (beyond, beyond)),))
    return when_laid_out("correlate", _windows, a, v, dim=0)


def _longer_first(x: Any, y: Any) -> tuple[Any, Any, bool]:
    """Return two arrays, the longer one of one dim first, and whether they changed places."""
    swapped = x.ndim == y.ndim == 1 and x.shape[0] < y.shape[0]
    return (y, x, True) if swapped else (x, y, False)


@checked
def convolve(a: ArrayLike, v: ArrayLike, mode: str = "full") -> Array:
    """Return the convolution of two arrays of one dim, computed where the longer one is.

    Args:
        a: the one array.
        v: the other one; the shorter of the two is made whole on each device.
        mode: ``"full"``: wherever they meet; ``"same"``: as many as the longer one has;
            ``"valid"``: where the shorter one is within the longer one.

    Raises:
        ShapeError: if an array has not one dim, or no elements.
        ArgumentError: if the mode is unknown.

    >>> import meshard.numpy as mnp
    >>> mnp.convolve(mnp.asarray([1, 2, 3]), mnp.asarray([0, 1, 2])).tolist()
    [0, 1, 4, 7, 6]
    """
    x, y, _ = _longer_first(as_array(a), as_array(v))
    found = _sliding("convolve", x, flip(y) if y.ndim else y, mode)
    start = (y.shape[0] - 1) // 2
    return found[start : start + x.shape[0]] if mode == "same" else found


@checked
def correlate(a: ArrayLike, v: ArrayLike, mode: str = "valid") -> Array:
    """Return the cross-correlation of two arrays of one dim, ``sum(a[n + k] * conj(v[k]))``.

    Takes what `convolve` takes, and is computed in the same way.

    >>> import meshard.numpy as mnp
    >>> mnp.correlate(mnp.asarray([1, 2, 3]), mnp.asarray([0, 1]), "full").tolist()
    [1, 2, 3, 0]
    """
    y = as_array(v)
    y = bind("conjugate", y) if y.dtype.kind == "c" else y
    x, y, swapped = _longer_first(as_array(a), y)
    found = _sliding("correlate", x, y, mode)
    if mode == "same":
        start = (y.shape[0] - 1) // 2
        found = found[start : start + x.shape[0]]
    return flip(found) if swapped else found


# differences


@checked
def gradient(
    f: ArrayLike, *varargs: ArrayLike, axis: Axis = None, edge_order: int = 1
) -> Array | tuple[Array, ...]:
    """Return the slopes along dims: central differences, one-sided ones at the ends.

    Each device needs one element of its neighbours, and the result is laid out like the array.

    Args:
        f: the values.
        varargs: the distance of points: none for 1, a number, or for each dim a number or the
            points' places, of one dim.
        axis: the dims, all by default; of several there is a tuple of arrays.
        edge_order: 1 or 2, the order to which the differences at the ends are exact.

    Raises:
        ShapeError: if a dim has fewer than ``edge_order + 1`` elements, or places do not fit.
        ArgumentError: if the number of distances is neither one nor that of the dims.

    >>> import meshard.numpy as mnp
    >>> mnp.gradient(mnp.asarray([1.0, 2.0, 4.0, 7.0])).tolist()
    [1.0, 1.5, 2.5, 3.0]
    """
    x = as_array(f)
    dims = normalised_axes(axis, x.ndim, "gradient")
    if axis is not None and not hasattr(axis, "__index__"):
        dims = tuple([d % x.ndim for d in axis])
    if edge_order not in (1, 2):
        raise ArgumentError(f"gradient: edge_order must be 1 or 2, got {edge_order}.")
    if len(varargs) not in (0, 1, len(dims)):
        raise ArgumentError(
            f"gradient: {len(varargs)} distances for {len(dims)} dims; give none, one for all, "
            "or one for each."
        )
    steps: list[Any] = (
        list(varargs) if len(varargs) == len(dims) else [*varargs, 1.0][:1] * len(dims)
    )
    if is_whole(x.dtype):
        x = x.astype(default_float())
    found = tuple([_slopes(x, d, s, edge_order) for d, s in zip(dims, steps, strict=True)])
    return found[0] if len(found) == 1 else found


def _slopes(x: Any, d: int, step: Any, edge_order: int) -> Any:
    size = x.shape[d]
    if size < edge_order + 1:
        raise ShapeError(
            f"gradient: dim {d} of the shape {x.shape} has {size} elements; edge_order="
            f"{edge_order} needs at least {edge_order + 1}."
        )
    places = as_array(step)
    if places.ndim and places.shape != (size,):
        raise ShapeError(
            f"gradient: places of shape {places.shape} for dim {d} of size {size}; give a number, "
            "or one for each position."
        )

    def at(start: int, stop: int | None) -> Any:
        return x[(*(slice(None),) * d, slice(start, stop))]

    if not places.ndim:
        own = step if isinstance(step, (int, float)) else places
        inner = (at(2, None) - at(0, -2)) / (2.0 * own)
        widths: Sequence[Any] = [own] * 4
    else:
        whole = diff(places.astype(default_float()) if is_whole(places.dtype) else places)
        shaped = reshape(whole, (-1, *(1,) * (x.ndim - d - 1)))
        low, high = shaped[:-1], shaped[1:]
        both = low + high
        inner = (
            -(high / (low * both)) * at(0, -2)
            + (high - low) / (low * high) * at(1, -1)
            + low / (high * both) * at(2, None)
        )
        widths = [whole[0], whole[1:2].sum(), whole[-2:-1].sum(), whole[-1]]
    if edge_order == 1:
        first, last = (at(1, 2) - at(0, 1)) / widths[0], (at(-1, None) - at(-2, -1)) / widths[3]
    else:
        first = _second(widths[:2], [at(0, 1), at(1, 2), at(2, 3)], 1)
        last = _second(widths[:1:-1], [at(-1, None), at(-2, -1), at(-3, -2)], -1)
    return concatenate([v.astype(x.dtype, copy=False) for v in (first, inner, last)], axis=d)


def _second(widths: Sequence[Any], values: Sequence[Any], sign: int) -> Any:
    """Return the slope at an end, by three elements, the nearest first."""
    near, far = widths
    both = near + far
    parts = (-(2.0 * near + far) / (near * both), both / (near * far), -near / (far * both))
    return sign * sum(
        (p * v for p, v in zip(parts[1:], values[1:], strict=True)), parts[0] * values[0]
    )


@checked
def unwrap(
    p: ArrayLike, discont: float | None = None, axis: int = -1, *, period: float = 2 * np.pi
) -> Array:
    """Return the array without jumps: multiples of a period are added to what follows them.

    Args:
        p: the array.
        discont: the least difference of neighbours that is a jump, by default half a period.
        axis: the dim.
        period: the period.

    >>> import meshard.numpy as mnp
    >>> mnp.unwrap(mnp.asarray([0, 1, 2, -1, 0]), period=4).tolist()
    [0, 1, 2, 3, 4]
    """
    x = as_array(p)
    (dim,) = normalised_axes(axis, x.ndim, "unwrap")
    steps = diff(x, axis=dim)
    least = period / 2 if discont is None else discont
    law = common_dtype("unwrap", (steps.dtype, type(period)))
    whole = is_whole(law)
    high = period // 2 if whole else period / 2
    moved = bind("remainder", steps + high, period) - high
    if not whole or not period % 2:
        tied = bind("logical_and", bind("equal", moved, -high), bind("greater", steps, 0))
        moved = bind("where", tied, high, moved)
    added = bind("where", bind("less", bind("absolute", steps), least), 0, moved - steps)
    head = (slice(None),) * dim
    later = x[(*head, slice(1, None))] + cumsum(added, dim)
    return concatenate([x[(*head, slice(0, 1))], later], axis=dim).astype(law, copy=False)


# functions of each element


def sinc(x: ArrayLike) -> Array:
    """Return ``sin(pi x) / (pi x)`` of each element, 1 at zero.

    >>> import meshard.numpy as mnp
    >>> mnp.sinc(mnp.asarray([0.0, 0.5, 1.0])).round(6).tolist()
    [1.0, 0.63662, 0.0]
    """
    value = as_array(x)
    value = value.astype(default_float()) if is_whole(value.dtype) else value
    angle = value * np.pi
    least = float(np.finfo(accumulator(value.dtype)).eps) if is_float(value.dtype) else 1e-20
    safe = bind("where", bind("equal", angle, 0), least, angle)
    return bind("sin", safe) / safe


# windows


def _window(name: str, text: str, shown: str) -> Callable[[int], Array]:
    @checked
    def function(M: int) -> Array:
        return asarray(getattr(np, name)(M), default_float())

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""Return {text} of a number of points.

    Args:
        M: the number of points; none if it is not positive.

    >>> import meshard.numpy as mnp
    >>> mnp.{name}(3).round(2).tolist()
    {shown}
    """
    return function


bartlett = _window("bartlett", "the Bartlett window, a triangle,", "[0.0, 1.0, 0.0]")
blackman = _window("blackman", "the Blackman window, a sum of three cosines,", "[-0.0, 1.0, -0.0]")
hamming = _window("hamming", "the Hamming window, a raised cosine,", "[0.08, 1.0, 0.08]")
hanning = _window("hanning", "the Hann window, a cosine bell,", "[0.0, 1.0, 0.0]")


@checked
def kaiser(M: int, beta: float) -> Array:
    """Return the Kaiser window of a number of points.

    Args:
        M: the number of points; none if it is not positive.
        beta: how narrow it is; 0 is a rectangle.

    >>> import meshard.numpy as mnp
    >>> mnp.kaiser(3, 0.0).tolist()
    [1.0, 1.0, 1.0]
    """
    return asarray(np.kaiser(M, beta), default_float())


@checked
def i0(x: ArrayLike) -> Array:
    """Return the modified Bessel function of the first kind and order 0, of real numbers.

    >>> import meshard.numpy as mnp
    >>> mnp.i0(mnp.asarray([0.0, 1.0])).round(3).tolist()
    [1.0, 1.266]
    """
    value = as_array(x)
    if value.dtype.kind == "c":
        raise DtypeError(f"i0: takes real numbers, not {value.dtype}.")
    if is_whole(value.dtype):
        value = value.astype(default_float())
    return bind("multiply", bind("exp", bind("absolute", value)), bessel_i0e(value))
