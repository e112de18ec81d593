"""Elementwise operations by the names of ``jax.lax``, and the rows that only it has.

JAX's own demand operands of one dtype; these promote as NumPy does, and broadcast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import numpy as np

from meshard.algebra.arguments import shown
from meshard.errors import ArgumentError, DtypeError, ShapeError
from meshard.ops.array.elementwise import bounded_flat
from meshard.ops.array.formulas import in_pieces
from meshard.ops.array.shape import reshape
from meshard.ops.checked import AnyDtypeLike
from meshard.ops.dtypes.laws import (
    BYTES,
    SMALL_FLOATS,
    as_dtype,
    is_float,
    is_whole,
    limits_of,
    operand_dtype,
    promoted,
    same_dtype,
)
from meshard.ops.engine.later import is_array
from meshard.ops.lax.table import named
from meshard.ops.row import Dtype, Op, Operand, Params, RuleText, register
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array
from meshard.runtime.types import ArrayLike, Block

# rows


def _whole(x: Any) -> bool:
    return is_whole(getattr(x, "dtype", np.dtype(type(x))))


def _quotient(x: Any, y: Any) -> Any:
    """Divide; integers towards zero."""
    if not (_whole(x) and _whole(y)):
        return np.divide(x, y)
    down = np.floor_divide(x, y)
    return down + ((down < 0) & (down * y != x)).astype(down.dtype)


def _unsigned(x: Block) -> Block:
    """Return the bits of integers as integers without a sign."""
    if x.dtype in BYTES:
        bits: Block = x.astype(np.uint8) & np.uint8((1 << limits_of(x.dtype).bits) - 1)
        return bits
    return x.view(f"u{x.dtype.itemsize}") if x.dtype.kind == "i" else x


def _shifted(x: Any, y: Any) -> Any:
    """Shift right, zeros coming in from the left."""
    law = promoted([getattr(v, "dtype", type(v)) for v in (x, y)])
    found = np.right_shift(*[_unsigned(np.asarray(v, law)) for v in (x, y)])
    return found.astype(law) if law in BYTES else found.view(law)


def _population(x: Block) -> Block:
    return np.bitwise_count(_unsigned(x)).astype(x.dtype)


def _leading(x: Block) -> Block:
    """Count the zeros before the first one."""
    bits = _unsigned(x).copy()
    width = limits_of(x.dtype).bits
    step = 1
    while step < width:  # every bit after the first one becomes one
        bits |= bits >> bits.dtype.type(step)
        step *= 2
    return (width - np.bitwise_count(bits)).astype(x.dtype)


def _away(x: Block) -> Block:
    """Round, halves away from zero."""
    if x.dtype in SMALL_FLOATS:
        return _away(x.astype(np.float32)).astype(x.dtype)
    # The greatest number below a half: a half itself would carry what is just below it to one.
    # It gets the signs of x by its bits; NumPy's copysign takes twice as long.
    half = np.nextafter(x.dtype.type(0.5), x.dtype.type(0))
    kind = np.dtype(f"u{x.dtype.itemsize}")
    found: Block = np.empty(x.shape, x.dtype)
    bits = found.view(kind)
    np.bitwise_and(x.view(kind), np.array(-0.0, x.dtype).view(kind), out=bits)
    bits |= half.view(kind)
    found += x
    return np.trunc(found, out=found)


def _complex(x: Any, y: Any) -> Any:
    law = promoted([getattr(v, "dtype", type(v)) for v in (x, y)])
    pair = np.result_type(law if law.kind == "f" else np.float64, np.complex64)
    found = np.empty(np.broadcast_shapes(np.shape(x), np.shape(y)), pair)
    found.real, found.imag = x, y
    return found


def _precise(x: Block, *, exponent_bits: int, mantissa_bits: int) -> Block:
    """Round floats as if they had fewer bits, halves to even; too great ones become infinite."""
    if x.dtype in SMALL_FLOATS or x.dtype == np.float16:
        wide = _precise(
            x.astype(np.float32), exponent_bits=exponent_bits, mantissa_bits=mantissa_bits
        )
        return wide.astype(x.dtype)
    kind: Any
    kind, width, exponent = (np.uint32, 23, 8) if x.dtype.itemsize == 4 else (np.uint64, 52, 11)
    bits: Any = x.copy().view(kind)
    one = kind(1)
    sign = bits & (one << kind(width + exponent))
    if mantissa_bits < width:
        lost = kind(width - mantissa_bits)
        last = (bits >> lost) & one
        bits = (bits + last + (one << (lost - one)) - one) & ~((one << lost) - one)
    if exponent_bits < exponent:
        middle = (1 << (exponent - 1)) - 1
        reach = (1 << (exponent_bits - 1)) - 1
        mask = kind((1 << exponent) - 1) << kind(width)
        size = bits & mask
        infinite = sign | mask
        bits = np.where(size > kind(middle + reach) << kind(width), infinite, bits)
        bits = np.where(size <= kind(middle - reach) << kind(width), sign, bits)
    return np.where(np.isnan(x), x, bits.view(x.dtype).reshape(x.shape))


def _widths(operands: Sequence[Operand], params: Params) -> tuple[int, int]:
    return operand_dtype(operands[0]).itemsize, params["dtype"].itemsize


def _bits_rule(operands: Sequence[Operand], params: Params) -> RuleText:
    old, new = _widths(operands, params)
    if old > new:
        return "... -> ... k", {"k": old // new}
    return "... -> ..." if old == new else "... !k -> ..."


def _bits_law(operands: Sequence[Operand], params: Params) -> tuple[Dtype, ...]:
    return (params["dtype"],)


def _bits(x: Block, *, dtype: Dtype) -> Block:
    old, new = x.dtype.itemsize, dtype.itemsize
    shape = x.shape if old == new else (*x.shape, old // new) if old > new else x.shape[:-1]
    return x.reshape(-1).copy().view(dtype).reshape(shape)


_KERNELS: tuple[tuple[str, Callable[..., Any], str, dict[str, Any]], ...] = (
    ("truncated_divide", _quotient, "..., ... -> ...", {"alike": 0}),
    ("shift_right_logical", _shifted, "..., ... -> ...", {}),
    ("population_count", _population, "... -> ...", {}),
    ("leading_zeros", _leading, "... -> ...", {}),
    ("round_away", _away, "... -> ...", {"alike": 0}),
    ("complex", _complex, "..., ... -> ...", {"alike": 0}),
    ("reduce_precision", _precise, "... -> ...", {"dtypes": same_dtype}),
)
for _name, _kernel, _rule, _more in _KERNELS:
    register(Op(_name, _rule, in_pieces(_kernel), style="ufunc", **_more))
register(Op("bitcast", _bits_rule, _bits, dtypes=_bits_law))


# those with arguments of their own


@named("lax.rsqrt(mnp.asarray([4.0])).tolist()", "[0.5]")
def rsqrt(x: ArrayLike) -> Array:
    """Return one over the square roots."""
    return bind("divide", 1, bind("sqrt", x))


class RoundingMethod(Enum):
    """Where `round` takes halves."""

    AWAY_FROM_ZERO = 0
    TO_NEAREST_EVEN = 1


@named("lax.round(mnp.asarray([0.5, 1.5])).tolist()", "[1.0, 2.0]")
def round(x: ArrayLike, rounding_method: RoundingMethod = RoundingMethod.AWAY_FROM_ZERO) -> Array:
    """Return the nearest integers, as floats.

    Raises:
        ArgumentError: if the method is not a `RoundingMethod`.
        DtypeError: if the elements are not floats.
    """
    try:
        method = RoundingMethod(getattr(rounding_method, "value", rounding_method))
    except (ValueError, RecursionError) as error:
        raise ArgumentError(
            f"round: rounding_method is RoundingMethod.AWAY_FROM_ZERO or TO_NEAREST_EVEN, not "
            f"{shown(rounding_method)}."
        ) from error
    value = as_array(x)
    if not is_float(value.dtype):
        raise DtypeError(f"round: takes floats; the dtype is {value.dtype}.")
    return bind("round_away" if method is RoundingMethod.AWAY_FROM_ZERO else "rint", value)


@named("lax.integer_pow(mnp.asarray([2, 3]), 2).tolist()", "[4, 9]", y="the power.")
def integer_pow(x: ArrayLike, y: int) -> Array:
    """Return the elements to the power of one Python integer.

    Raises:
        ArgumentError: if ``y`` is not an integer, or negative for integers.
    """
    value = as_array(x)
    if is_array(y):
        raise ArgumentError(f"integer_pow: y is a Python integer, not {y!r}; pow takes arrays.")
    if y < 0 and value.dtype.kind in "biu":
        raise ArgumentError(
            f"integer_pow: integers cannot be raised to the negative power {y}; convert them to "
            "floats first."
        )
    return bind("square", value) if y == 2 else bind("power", value, y)


@named('lax.convert_element_type(mnp.asarray([1.5]), "int32").tolist()', "[1]")
def convert_element_type(operand: ArrayLike, new_dtype: AnyDtypeLike) -> Array:
    """Return the array converted to another dtype."""
    value, wanted = as_array(operand), as_dtype(new_dtype)
    return value if value.dtype == wanted else bind("astype", value, dtype=wanted)


@named('lax.bitcast_convert_type(mnp.asarray([1.0], "float32"), "int32").tolist()', "[1065353216]")
def bitcast_convert_type(operand: ArrayLike, new_dtype: AnyDtypeLike) -> Array:
    """Return the bits of the elements read as another dtype.

    Each element becomes several of a shorter dtype, in a new last dim; the last dim becomes one
    element of a longer dtype, and holds as many as that needs.

    Raises:
        DtypeError: if one of the dtypes is bool, or no number of one fills the other.
        ShapeError: if the last dim does not hold one element of the longer dtype.
    """
    value, wanted = as_array(operand), as_dtype(new_dtype)
    old, new = value.dtype.itemsize, wanted.itemsize
    if np.dtype(bool) in (value.dtype, wanted) and value.dtype != wanted:
        raise DtypeError(
            f"bitcast_convert_type: {value.dtype} cannot be read as {wanted}; a bool is not made "
            "of bits. Use convert_element_type."
        )
    if old % new and new % old:
        raise DtypeError(
            f"bitcast_convert_type: no number of {value.dtype} fills one {wanted}: they have {old} "
            f"and {new} bytes."
        )
    if new > old and (not value.ndim or value.shape[-1] != new // old):
        raise ShapeError(
            f"bitcast_convert_type: one element of {wanted} is made of {new // old} of "
            f"{value.dtype}, so the last dim must have that size; the shape is {value.shape}."
        )
    return value if value.dtype == wanted else bind("bitcast", value, dtype=wanted)


def view(x: Any, dtype: Any = None) -> Any:
    """Return the bits of the elements read as another dtype, several or fewer in the last dim.

    A bool counts as a byte that is 0 or 1.

    Raises:
        DtypeError: if no number of elements of one dtype fills one of the other.
        ShapeError: if the last dim does not hold whole elements of a longer dtype.
    """
    value = as_array(x)
    wanted = value.dtype if dtype is None else as_dtype(dtype)
    if wanted == value.dtype:
        return value
    if value.dtype == np.bool_:
        return view(value.astype(np.uint8), wanted)
    if wanted == np.bool_:
        return bind("not_equal", view(value, np.uint8), 0)
    old, new = value.dtype.itemsize, wanted.itemsize
    if old == new:
        return bitcast_convert_type(value, wanted)
    if not value.ndim or (value.shape[-1] * old) % new:
        raise ShapeError(
            f"view: elements of shape {value.shape} of {value.dtype} cannot be read as {wanted}: "
            f"the last dim must hold whole elements of {new} bytes."
        )
    if new < old:
        found = bitcast_convert_type(value, wanted)
        return reshape(found, (*value.shape[:-1], value.shape[-1] * (old // new)))
    if new % old:
        return bitcast_convert_type(value, wanted)  # which refuses
    split = (*value.shape[:-1], value.shape[-1] * old // new, new // old)
    return bitcast_convert_type(reshape(value, split), wanted)


@named("lax.reduce_precision(mnp.asarray([1.2345678]), 5, 10).tolist()", "[1.234375]")
def reduce_precision(operand: ArrayLike, exponent_bits: int, mantissa_bits: int) -> Array:
    """Return floats rounded as if they had fewer bits of exponent and mantissa.

    Raises:
        DtypeError: if the elements are not floats.
        ArgumentError: if there are too few bits.
    """
    value = as_array(operand)
    if not is_float(value.dtype):
        raise DtypeError(f"reduce_precision: takes floats; the dtype is {value.dtype}.")
    if exponent_bits < 1 or mantissa_bits < 0:
        raise ArgumentError(
            f"reduce_precision: at least one bit of exponent and none of mantissa, not "
            f"{exponent_bits} and {mantissa_bits}."
        )
    bits = {"exponent_bits": int(exponent_bits), "mantissa_bits": int(mantissa_bits)}
    return bind("reduce_precision", value, **bits)


# choices


def _check_cases(what: str, which: Any, cases: Sequence[Any]) -> None:
    shapes = [c.shape for c in cases]
    if any(s != shapes[0] for s in shapes) or which.shape not in ((), shapes[0]):
        raise ShapeError(
            f"{what}: the cases have one shape, and the choice the same or none; here the choice "
            f"has shape {which.shape} and the cases {', '.join(map(str, shapes))}."
        )


@named("lax.select(mnp.asarray([True, False]), mnp.ones(2), mnp.zeros(2)).tolist()", "[1.0, 0.0]")
def select(pred: ArrayLike, on_true: ArrayLike, on_false: ArrayLike) -> Array:
    """Return elements of the first case where a condition is true, of the second elsewhere.

    Raises:
        ShapeError: if the shapes differ.
    """
    which, cases = as_array(pred), [as_array(on_true), as_array(on_false)]
    _check_cases("select", which, cases)
    return bind("where", which, *cases)


@named(
    "lax.select_n(mnp.asarray([2, 0]), mnp.zeros(2), mnp.ones(2), mnp.full(2, 5.0)).tolist()",
    "[5.0, 0.0]",
)
def select_n(which: ArrayLike, *cases: Any) -> Array:
    """Return for each element that of the case that a number or bool selects.

    Raises:
        ShapeError: if the shapes differ.
        ArgumentError: if there are no cases, or a bool is to choose from more than two.
        DtypeError: if neither integers nor bools choose.
    """
    number, arrays = as_array(which), [as_array(c) for c in cases]
    if not arrays or (number.dtype.kind == "b" and len(arrays) > 2):
        raise ArgumentError(
            f"select_n: {number.dtype} chooses of {len(arrays)} cases; a bool chooses of two, an "
            "integer of at least one."
        )
    if number.dtype.kind not in "biu":
        raise DtypeError(f"select_n: integers or bools choose, not {number.dtype}.")
    _check_cases("select_n", number, arrays)
    if number.dtype.kind == "b":
        return arrays[0] if len(arrays) == 1 else bind("where", number, arrays[1], arrays[0])
    found = arrays[0]
    for i, case in enumerate(arrays[1:], 1):
        found = bind("where", bind("greater_equal", number, i), case, found)
    return found


@named("lax.clamp(1, mnp.arange(5), 3).tolist()", "[1, 1, 2, 3, 3]")
def clamp(min: ArrayLike, x: ArrayLike, max: ArrayLike) -> Array:
    """Return the elements limited to an interval.

    Raises:
        ShapeError: if a limit has another shape.
    """
    value = as_array(x)
    for name, given in (("min", min), ("max", max)):
        limit = as_array(given)
        if np.shape(limit) not in ((), value.shape):
            raise ShapeError(
                f"clamp: {name} has shape {np.shape(limit)}, the array {value.shape}; a limit is a "
                "number, or has the array's shape."
            )
    return bounded_flat(value, min, max)
