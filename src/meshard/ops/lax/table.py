"""Elementwise operations that have a name of their own in ``jax.lax``, and take arrays only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshard.ops.lax import elementwise as _rows  # noqa: F401  (it registers some of the rows)
from meshard.runtime.doors import bind

Function = Callable[..., Any]

# fmt: off
# fmt: on


def _finish(function: Function, name: str, text: str, operands: str) -> Function:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""{text}

    Elementwise, as ``jax.lax.{name}``; dtypes are promoted as in NumPy, and the result keeps the
    sharding.

    Raises:
        ShapeError: if the shapes do not broadcast.
        DtypeError: if an operand is no array or has a dtype that this cannot take.

    >>> import meshard.numpy as mnp
    >>> from meshard import lax
    >>> lax.{name}({operands}).shape
    (2,)
    """
    return function


def _unary(name: str, row: str, text: str, operand: str = "mnp.ones(2)") -> Function:
    def function(x: Any) -> Any:
        return bind(row, x)

    return _finish(function, name, text, operand)


def _binary(name: str, row: str, text: str, operand: str = "mnp.ones(2)") -> Function:
    def function(x: Any, y: Any) -> Any:
        return bind(row, x, y)

    return _finish(function, name, text, f"{operand}, {operand}")


_INTEGERS = "mnp.ones(2, int)"

abs = _unary("abs", "absolute", "Return the absolute values.")
acos = _unary("acos", "arccos", "Return the angles in radians with these cosines.")
acosh = _unary("acosh", "arccosh", "Return the inverse hyperbolic cosines.")
asin = _unary("asin", "arcsin", "Return the angles in radians with these sines.")
asinh = _unary("asinh", "arcsinh", "Return the inverse hyperbolic sines.")
atan = _unary("atan", "arctan", "Return the angles in radians with these tangents.")
atanh = _unary("atanh", "arctanh", "Return the inverse hyperbolic tangents.", "mnp.zeros(2)")
bitwise_not = _unary(
    "bitwise_not", "invert", "Return the elements with all bits flipped.", _INTEGERS
)
cbrt = _unary("cbrt", "cbrt", "Return the cube roots.")
ceil = _unary("ceil", "ceil", "Return the least whole numbers not below.")
clz = _unary(
    "clz", "leading_zeros", "Return for each integer how many zero bits it begins with.", _INTEGERS
)
conj = _unary("conj", "conjugate", "Return the complex conjugates.")
cos = _unary("cos", "cos", "Return the cosines of angles in radians.")
cosh = _unary("cosh", "cosh", "Return the hyperbolic cosines.")
digamma = _unary(
    "digamma", "digamma", "Return the derivatives of the logarithm of the gamma function."
)
erf = _unary("erf", "erf", "Return the error function.")
erf_inv = _unary("erf_inv", "erfinv", "Return the inverse of the error function.")
erfc = _unary("erfc", "erfc", "Return one less the error function.")
exp = _unary("exp", "exp", "Return e to the power of each element.")
exp2 = _unary("exp2", "exp2", "Return 2 to the power of each element.")
expm1 = _unary("expm1", "expm1", "Return e to the power of each element, less one.")
floor = _unary("floor", "floor", "Return the greatest whole numbers not above.")
imag = _unary("imag", "imag", "Return the imaginary parts.")
is_finite = _unary("is_finite", "isfinite", "Return where the elements are finite.")
lgamma = _unary("lgamma", "lgamma", "Return the logarithms of the absolute gamma function.")
log = _unary("log", "log", "Return the natural logarithms.")
log1p = _unary("log1p", "log1p", "Return the natural logarithms of one plus each element.")
logistic = _unary("logistic", "logistic", "Return 1 / (1 + exp(-x)).")
neg = _unary("neg", "negative", "Return the elements with the opposite sign.")
population_count = _unary(
    "population_count",
    "population_count",
    "Return for each integer how many bits are set.",
    _INTEGERS,
)
real = _unary("real", "real", "Return the real parts.")
reciprocal = _unary("reciprocal", "reciprocal", "Return one over each element.")
sign = _unary("sign", "sign", "Return the signs: -1, 0 or 1.")
sin = _unary("sin", "sin", "Return the sines of angles in radians.")
sinh = _unary("sinh", "sinh", "Return the hyperbolic sines.")
sqrt = _unary("sqrt", "sqrt", "Return the square roots.")
square = _unary("square", "square", "Return the squares.")
tan = _unary("tan", "tan", "Return the tangents of angles in radians.")
tanh = _unary("tanh", "tanh", "Return the hyperbolic tangents.")

add = _binary("add", "add", "Return the sums.")
atan2 = _binary("atan2", "arctan2", "Return the angles in radians of the points (y, x).")
bitwise_and = _binary("bitwise_and", "bitwise_and", "Return the bits set in both.", _INTEGERS)
bitwise_or = _binary("bitwise_or", "bitwise_or", "Return the bits set in either.", _INTEGERS)
bitwise_xor = _binary("bitwise_xor", "bitwise_xor", "Return the bits set in one only.", _INTEGERS)
complex = _binary(
    "complex", "complex", "Return the complex numbers with these real and imaginary parts."
)
div = _binary("div", "truncated_divide", "Return the quotients; of integers without the fraction.")
eq = _binary("eq", "equal", "Return where the elements are equal.")
ge = _binary("ge", "greater_equal", "Return where x >= y.")
gt = _binary("gt", "greater", "Return where x > y.")
le = _binary("le", "less_equal", "Return where x <= y.")
lt = _binary("lt", "less", "Return where x < y.")
max = _binary("max", "maximum", "Return the greater elements; NaN where either is.")
min = _binary("min", "minimum", "Return the lesser elements; NaN where either is.")
mul = _binary("mul", "multiply", "Return the products.")
ne = _binary("ne", "not_equal", "Return where the elements differ.")
nextafter = _binary("nextafter", "nextafter", "Return the next floats after x towards y.")
pow = _binary("pow", "power", "Return the first elements to the power of the second.")
rem = _binary("rem", "fmod", "Return the remainders, with the dividend's sign.")
shift_left = _binary("shift_left", "left_shift", "Return x shifted y bits to the left.", _INTEGERS)
shift_right_arithmetic = _binary(
    "shift_right_arithmetic",
    "right_shift",
    "Return x shifted y bits right, the sign kept.",
    _INTEGERS,
)
shift_right_logical = _binary(
    "shift_right_logical",
    "shift_right_logical",
    "Return x shifted y bits right, zeros coming.",
    _INTEGERS,
)
sub = _binary("sub", "subtract", "Return the differences.")
