"""Ordinary functions made of others: nearness, choices, polynomials, products."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from meshard.algebra.arguments import choice_of, refusal
from meshard.errors import ArgumentError, DtypeError, ShapeError
from meshard.ops.array.create import full, full_like
from meshard.ops.array.elementwise import clip
from meshard.ops.array.formulas import in_pieces
from meshard.ops.array.info import finfo
from meshard.ops.array.join import concatenate
from meshard.ops.array.shape import broadcast_arrays, broadcast_shapes, broadcast_to, reshape
from meshard.ops.array.take import take
from meshard.ops.checked import checked, number
from meshard.ops.dtypes.laws import (
    SMALL_FLOATS,
    common_dtype,
    default_complex,
    default_float,
    is_whole,
    operand_dtype,
    same_dtype,
    weak_kind,
)
from meshard.ops.engine.later import concrete, is_traced
from meshard.ops.engine.operand_mesh import replicated_beside
from meshard.ops.reductions.reduce import all as all_
from meshard.ops.reductions.sort import argsort
from meshard.ops.row import Dtype, Op, Operand, Params, register
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array
from meshard.runtime.types import ArrayLike, Block


def _plain(x: Any) -> Any:
    """Return a small float as one that NumPy's Python functions know."""
    return x.astype(np.float32) if getattr(x, "dtype", None) in SMALL_FLOATS else x


def _bool_law(operands: Sequence[Operand], params: Params) -> tuple[Dtype, ...]:
    return (np.dtype(bool),)


def _close(x: Any, y: Any, *, rtol: float, atol: float, equal_nan: bool) -> Any:
    return np.isclose(_plain(x), _plain(y), rtol, atol, equal_nan)


def _numbered(x: Block, *, nan: float, posinf: float | None, neginf: float | None) -> Block:
    if x.dtype in SMALL_FLOATS:
        most = finfo(x.dtype)
        posinf = float(most.max) if posinf is None else posinf
        neginf = float(most.min) if neginf is None else neginf
    found = np.nan_to_num(_plain(x), nan=nan, posinf=posinf, neginf=neginf)
    return np.asarray(found, x.dtype)


def _interpolate(
    x: Any, xp: Block, fp: Block, *, left: complex | None, right: complex | None
) -> Any:
    return np.interp(_plain(x), _plain(xp), _plain(fp), left, right)


def _interp_law(operands: Sequence[Operand], params: Params) -> tuple[Dtype, ...]:
    for name, operand in zip(("x", "xp"), operands, strict=False):
        if operand_dtype(operand).kind == "c":
            raise DtypeError(f"interp: {name} must be real, but its dtype is complex.")
    is_complex = operand_dtype(operands[2]).kind == "c"
    return (np.dtype(np.complex128 if is_complex else np.float64),)


register(
    Op("isclose", "..., ... -> ...", in_pieces(_close), dtypes=_bool_law, style="ufunc", alike=0)
)
register(Op("nan_to_num", "... -> ...", in_pieces(_numbered), dtypes=same_dtype, style="ufunc"))
register(Op("interp", "..., !p, !p -> ...", _interpolate, dtypes=_interp_law))


# nearness


@checked
def isclose(
    a: ArrayLike,
    b: ArrayLike,
    rtol: ArrayLike = 1e-5,
    atol: ArrayLike = 1e-8,
    equal_nan: bool = False,
) -> Array:
    """Return where two arrays differ by at most ``atol + rtol * abs(b)``.

    Args:
        a: the first array.
        b: the second array, which the relative tolerance is of.
        rtol: the relative tolerance; a number, or an array that broadcasts.
        atol: the absolute tolerance; a number, or an array that broadcasts.
        equal_nan: whether NaN counts as close to NaN.

    >>> import meshard.numpy as mnp
    >>> mnp.isclose(mnp.asarray([1.0, 2.0]), mnp.asarray([1.0 + 1e-9, 2.1])).tolist()
    [True, False]
    """
    tolerances: Any = rtol, atol
    if not all(isinstance(v, (int, float)) and not hasattr(v, "dtype") for v in tolerances):
        return _close_within(as_array(a), as_array(b), rtol, atol, bool(equal_nan))
    within = dict(zip(("rtol", "atol"), map(float, tolerances), strict=True))
    return bind("isclose", a, b, **within, equal_nan=bool(equal_nan))


def _close_within(x: Any, y: Any, rtol: Any, atol: Any, equal_nan: bool) -> Any:
    """Return where arrays are close within tolerances whose own dtypes take part, as in NumPy."""
    y = y.astype(common_dtype("isclose", [y.dtype, float]), copy=False)
    finite = bind("isfinite", y)
    known = bind("where", finite, y, 0)
    least = bind("add", atol, bind("multiply", rtol, bind("absolute", known)))
    near = bind("less_equal", bind("absolute", bind("subtract", x, known)), least)
    found = bind("logical_or", bind("logical_and", near, finite), bind("equal", x, y))
    if not equal_nan:
        return found
    return bind("logical_or", found, bind("logical_and", bind("isnan", x), bind("isnan", y)))


@checked
def allclose(
    a: ArrayLike,
    b: ArrayLike,
    rtol: ArrayLike = 1e-5,
    atol: ArrayLike = 1e-8,
    equal_nan: bool = False,
) -> Array:
    """Return whether two arrays are close everywhere, as `isclose` defines it.

    >>> import meshard.numpy as mnp
    >>> bool(mnp.allclose(mnp.ones(3), 1 + 1e-9))
    True
    """
    return all_(isclose(a, b, rtol, atol, equal_nan))


@checked
def array_equal(a1: ArrayLike, a2: ArrayLike, equal_nan: bool = False) -> Array:
    """Return whether two arrays have the same shape and equal elements.

    >>> import meshard.numpy as mnp
    >>> bool(mnp.array_equal(mnp.zeros(3), mnp.zeros(4)))
    False
    """
    x, y = as_array(a1), as_array(a2)
    if x.shape != y.shape:
        return replicated_beside("array_equal", np.asarray(False), x, y)
    same = bind("equal", x, y)
    if equal_nan and not (is_whole(x.dtype) or is_whole(y.dtype)):
        both = bind("logical_and", bind("isnan", x), bind("isnan", y))
        same = bind("logical_or", same, both)
    return all_(same)


def array_equiv(a1: ArrayLike, a2: ArrayLike) -> Array:
    """Return whether two arrays broadcast against each other and then are equal.

    >>> import meshard.numpy as mnp
    >>> mnp.array_equiv(mnp.ones((2, 3)), mnp.ones(3)).item()
    True
    """
    x, y = as_array(a1), as_array(a2)
    try:
        broadcast_shapes(x.shape, y.shape)
    except ShapeError:
        return replicated_beside("array_equiv", np.asarray(False), x, y)
    return all_(bind("equal", x, y))


@checked
def nan_to_num(
    x: ArrayLike,
    copy: bool = True,
    nan: float = 0.0,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Array:
    """Return the array with NaN as zero and infinities as the greatest and the least number.

    Args:
        x: the array.
        copy: accepted as in NumPy.
        nan: what to put for NaN.
        posinf: what to put for infinity.
        neginf: what to put for minus infinity.

    >>> import meshard.numpy as mnp
    >>> mnp.nan_to_num(mnp.asarray([1.0, mnp.nan]), nan=7).tolist()
    [1.0, 7.0]
    """
    value = as_array(x)
    if is_whole(value.dtype):
        return value.copy()
    ends = [None if v is None else float(v) for v in (posinf, neginf)]
    return bind("nan_to_num", value, nan=float(nan), posinf=ends[0], neginf=ends[1])


# kinds of numbers


def iscomplexobj(x: ArrayLike) -> bool:
    """Return whether the dtype is complex.

    >>> import meshard.numpy as mnp
    >>> mnp.iscomplexobj(mnp.asarray([1.0 + 0j]))
    True
    """
    return bool(as_array(x).dtype.kind == "c")


def isrealobj(x: ArrayLike) -> bool:
    """Return whether the dtype is not complex.

    >>> import meshard.numpy as mnp
    >>> mnp.isrealobj(mnp.ones(2))
    True
    """
    return not iscomplexobj(x)


def isreal(x: ArrayLike) -> Array:
    """Return where the imaginary part is zero.

    >>> import meshard.numpy as mnp
    >>> mnp.isreal(mnp.asarray([1 + 1j, 1.0])).tolist()
    [False, True]
    """
    value = as_array(x)
    if value.dtype.kind != "c":
        return full_like(value, True, np.dtype(bool))
    return bind("equal", bind("imag", value), 0)


def iscomplex(x: ArrayLike) -> Array:
    """Return where the imaginary part is not zero.

    >>> import meshard.numpy as mnp
    >>> mnp.iscomplex(mnp.asarray([1 + 1j, 1.0])).tolist()
    [True, False]
    """
    value = as_array(x)
    if value.dtype.kind != "c":
        return full_like(value, False, np.dtype(bool))
    return bind("not_equal", bind("imag", value), 0)


def _ordered(name: str, x: Any) -> Any:
    """Return an array whose elements have an order."""
    found = as_array(x)
    if found.dtype.kind == "c":
        raise DtypeError(f"{name}: complex numbers have no sign; the dtype is {found.dtype}.")
    return found


def isposinf(x: ArrayLike, /) -> Array:
    """Return where the elements are positive infinity.

    >>> import meshard.numpy as mnp
    >>> mnp.isposinf(mnp.asarray([-mnp.inf, 0.0, mnp.inf])).tolist()
    [False, False, True]
    """
    return bind("equal", _ordered("isposinf", x), float("inf"))


def isneginf(x: ArrayLike, /) -> Array:
    """Return where the elements are negative infinity.

    >>> import meshard.numpy as mnp
    >>> mnp.isneginf(mnp.asarray([-mnp.inf, 0.0, mnp.inf])).tolist()
    [True, False, False]
    """
    return bind("equal", _ordered("isneginf", x), float("-inf"))


@checked
def angle(z: ArrayLike, deg: bool = False) -> Array:
    """Return the angles of complex numbers, in radians or degrees.

    >>> import meshard.numpy as mnp
    >>> mnp.angle(mnp.asarray([1.0, 1j])).tolist()
    [0.0, 1.5707963267948966]
    """
    x = as_array(z)
    found = bind("arctan2", bind("imag", x), bind("real", x))
    return bind("rad2deg", found) if deg else found


# choices


@checked
def select(
    condlist: Sequence[ArrayLike], choicelist: Sequence[ArrayLike], default: ArrayLike = 0
) -> Array:
    """Return for each element the choice of the first condition that is true.

    Raises:
        ArgumentError: if there are none, or the lists have different lengths.
        DtypeError: if a condition does not hold bools.

    >>> import meshard.numpy as mnp
    >>> x = mnp.arange(4)
    >>> mnp.select([x < 1, x < 3], [x, x * 10], -1).tolist()
    [0, 10, 20, -1]
    """
    if len(condlist) != len(choicelist) or not condlist:
        raise ArgumentError(
            f"select: {len(condlist)} conditions and {len(choicelist)} choices; give one "
            "choice per condition, and at least one."
        )
    conditions = [as_array(c) for c in condlist]
    for i, condition in enumerate(conditions):
        if condition.dtype.kind != "b":
            raise DtypeError(
                f"select: condition {i} must hold bools, but its dtype is {condition.dtype}. "
                "Compare it, such as condition != 0."
            )
    given = [*choicelist, default]
    common = common_dtype("select", [weak_kind(c) or as_array(c).dtype for c in given])
    *choices, found = [as_array(c).astype(common, copy=False) for c in given]
    for condition, choice in zip(reversed(conditions), reversed(choices), strict=True):
        found = bind("where", condition, choice, found)
    return found


@checked
def choose(
    a: ArrayLike, choices: Sequence[ArrayLike], out: None = None, mode: str = "raise"
) -> Array:
    """Return for each position the element of the choice that a number there selects.

    Args:
        a: the numbers of choices.
        choices: arrays, which broadcast.
        out: None; arrays are immutable.
        mode: ``"raise"`` refuses other numbers; ``"wrap"`` and ``"clip"`` bring them inside.

    Raises:
        ArgumentError: if a number names no choice, or the mode is unknown.

    >>> import meshard.numpy as mnp
    >>> mnp.choose(mnp.asarray([0, 1, 0]), [mnp.zeros(3), mnp.ones(3)]).tolist()
    [0.0, 1.0, 0.0]
    """
    number, count = as_array(a), len(choices)
    if number.dtype.kind not in "biu":
        raise DtypeError(f"choose: a must hold integers, but its dtype is {number.dtype}.")
    if choice_of(mode, ("raise", "wrap", "clip"), "choose", "mode") == "clip":
        number = clip(number, 0, count - 1)
    elif mode == "wrap":
        number = bind("remainder", number.astype(np.int64), count)
    elif is_traced(number):
        number = concrete(
            number,
            "choose",
            "mode='raise' checks that each number names a choice. Give mode='clip' or "
            "mode='wrap', which bring them inside.",
        )
        return choose(number, choices, mode=mode)
    elif not bool(all_(bind("logical_and", number >= 0, number < count))):
        raise ArgumentError(
            f"choose: a number is outside the {count} choices, 0 to {count - 1}; mode='clip' "
            "or 'wrap' brings it inside."
        )
    kinds = [weak_kind(c) or as_array(c).dtype for c in choices]
    common = common_dtype("choose", kinds)
    arrays = broadcast_arrays(*[as_array(c).astype(common, copy=False) for c in choices])
    found = arrays[0]
    for i, choice in enumerate(arrays[1:], 1):
        found = bind("where", bind("equal", number, i), choice, found)
    return broadcast_to(found, broadcast_shapes(number.shape, found.shape))


# polynomials, lines, products


def polyval(p: ArrayLike, x: ArrayLike) -> Array:
    """Return the values of a polynomial, given by its coefficients, the highest power first.

    >>> import meshard.numpy as mnp
    >>> mnp.polyval(mnp.asarray([1, 0, -1]), mnp.arange(3)).tolist()
    [-1, 0, 3]
    """
    coefficients, value = as_array(p), as_array(x)
    if coefficients.ndim != 1:
        raise ShapeError(
            f"polyval: the coefficients must have one dim, but their shape is {coefficients.shape}."
        )
    found: Any = full(value.shape, 0, common_dtype("polyval", (coefficients.dtype, value.dtype)))
    for i in range(coefficients.shape[0]):
        found = found * value + coefficients[i]
    return found


@checked
def interp(
    x: ArrayLike,
    xp: ArrayLike,
    fp: ArrayLike,
    left: complex | None = None,
    right: complex | None = None,
    period: float | None = None,
) -> Array:
    """Return values between points joined by lines; laid out like ``x``.

    The points are looked up by every device, so that they are made whole on each.

    Args:
        x: where to take values.
        xp: the points' places, rising.
        fp: the points' values.
        left: the value before the first point, by default the first; a complex one only for points
            whose values are complex.
        right: the value after the last point, by default the last.
        period: after what distance the points repeat; their places need not rise then, and
            ``left`` and ``right`` have no effect.

    Raises:
        ShapeError: if the points' places and values do not pair up.
        ArgumentError: if ``period`` is zero.

    >>> import meshard.numpy as mnp
    >>> mnp.interp(mnp.asarray([0.5, 9.0]), mnp.asarray([0, 1]), mnp.asarray([10, 20])).tolist()
    [15.0, 20.0]
    """
    places, values = as_array(xp), as_array(fp)
    if places.ndim != 1 or places.shape != values.shape or not places.size:
        raise ShapeError(
            f"interp: points with places of shape {places.shape} and values of shape "
            f"{values.shape}; both must have one dim, of the same size and not empty."
        )
    at = as_array(x)
    law = _interp_dtype(at.dtype, places.dtype, values.dtype)
    if period is not None:
        left = right = None
        at, places, values = _periodic(at, places, values, float(period))
    convert = complex if values.dtype.kind == "c" else float
    ends = {
        name: None if v is None else _end_value(name, v, convert)
        for name, v in (("left", left), ("right", right))
    }
    found = bind("interp", at, places, values, **ends)
    return found.astype(law, copy=False)


def _end_value(name: str, value: Any, convert: type[complex] | type[float]) -> complex:
    """Return the value beyond an end as Python's number, complex where the points' values are."""
    if convert is float or not np.iscomplexobj(value):
        return convert(number(value, "interp", name))
    try:
        return complex(value)
    except (TypeError, ValueError):
        raise ArgumentError(refusal("interp", name, "a number or None", value)) from None


def _interp_dtype(*dtypes: Dtype) -> Dtype:
    """Return the dtype of values between points: NumPy's, that of the longest floats.

    Short floats of ml_dtypes, which NumPy does not know, keep theirs.
    """
    common = common_dtype("interp", dtypes)
    if common in SMALL_FLOATS:
        return common
    wide = default_complex() if dtypes[2].kind == "c" else default_float()
    return np.result_type(common, wide) if common.itemsize > wide.itemsize else wide


def _periodic(x: Any, places: Any, values: Any, period: float) -> tuple[Any, Any, Any]:
    """Return positions within one period, and points in order with one more at either end."""
    if not period:
        raise ArgumentError("interp: period must not be zero; None is for points that end.")
    period = abs(period)
    at, places = (bind("remainder", v.astype(default_float()), period) for v in (x, places))
    order = argsort(places)
    places, values = take(places, order), take(values, order)
    rim = [places[-1:] - period, places, places[:1] + period]
    return at, concatenate(rim), concatenate([values[-1:], values, values[:1]])


def kron(a: ArrayLike, b: ArrayLike) -> Array:
    """Return the Kronecker product: each element of ``a`` times the whole of ``b``.

    >>> import meshard.numpy as mnp
    >>> mnp.kron(mnp.asarray([1, 10]), mnp.asarray([1, 2])).tolist()
    [1, 2, 10, 20]
    """
    x, y = as_array(a), as_array(b)
    rank = max(x.ndim, y.ndim)
    first, second = (_ranked(v, rank) for v in (x, y))
    left = reshape(first, tuple(n for size in first.shape for n in (size, 1)))
    right = reshape(second, tuple(n for size in second.shape for n in (1, size)))
    found = bind("multiply", left, right)
    sizes = zip(first.shape, second.shape, strict=True)
    return reshape(found, tuple(reduce(int.__mul__, pair) for pair in sizes))


def _ranked(x: Array, rank: int) -> Any:
    return reshape(x, (1,) * (rank - x.ndim) + x.shape)
