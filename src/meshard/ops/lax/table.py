"""Names of ``jax.lax``: one row for each name of an elementwise operation.

In: what meshard calls the operation, and what differs. Out: a function with the signature, checks
and docstring of a public one. `named` and `finished` do the same for the names in other modules.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from textwrap import fill
from typing import Any, ParamSpec, Protocol, TypeVar, cast

from meshard.ops.array import elementwise as of
from meshard.ops.checked import checked
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.types import ArrayLike

P = ParamSpec("P")
R = TypeVar("R")

_ARGUMENTS = {
    "array": "the array.",
    "axes": "the dims.",
    "axis": "the dim.",
    "broadcast_dimensions": "for each dim of the array, rising, which dim of the result it is.",
    "cases": "arrays of one shape.",
    "computation": "an associative function of two trees like ``operands``, elementwise.",
    "dimension": "the dim.",
    "dimension_numbers": "``((summed of lhs, of rhs), (batch of lhs, of rhs))``.",
    "dimensions": "the dims.",
    "dtype": "the dtype; by default that of the value, or of the array.",
    "elems": "an array, or a tree of arrays.",
    "exponent_bits": "how many bits the exponent has, at least one.",
    "fill_value": "the value.",
    "fn": "a function of two trees like ``elems``, elementwise along the dim, that returns a "
    "third; ``fn(fn(a, b), c)`` equals ``fn(a, fn(b, c))``.",
    "idxs": "for each of these dims positions, in one dim; they go round the end.",
    "index": "the position.",
    "index_dtype": "the dtype of the positions.",
    "init_values": "for each array the value to begin with.",
    "is_stable": "accepted as in JAX; equal elements always keep their order.",
    "keepdims": "whether the dim stays, with size one.",
    "keys": "the array that decides the order.",
    "lhs": "the first operand.",
    "limit_index": "the position before which it ends.",
    "limit_indices": "for each dim the position before which it ends.",
    "mantissa_bits": "how many bits the mantissa has, at least none.",
    "max": "the upper limit: a number, or an array of the same shape.",
    "min": "the lower limit: a number, or an array of the same shape.",
    "new_dtype": "the dtype of the result.",
    "new_sizes": "the new shape.",
    "num_keys": "by how many of the arrays, beginning with the first, the order is decided.",
    "on_false": "the elements elsewhere.",
    "on_true": "the elements where the condition is true.",
    "operand": "the array.",
    "operands": "the arrays.",
    "padding_config": "for each dim how many come before, after, and between two elements; those "
    "at the ends may be negative, and then take elements away.",
    "padding_value": "the value of the added elements.",
    "permutation": "for each dim of the result which dim of the array it is.",
    "precision": "accepted as in JAX; products are computed in full precision.",
    "pred": "bools, of the shape of the others or without dims.",
    "preferred_element_type": "the dtype of the result.",
    "reps": "how often, for each dim.",
    "reverse": "whether to begin at the end.",
    "rhs": "the second operand.",
    "rounding_method": "whether halves go away from zero or to the even integer.",
    "shape": "the shape of the result.",
    "sharding": "a Sharding or Device to place the result on.",
    "size": "how many elements.",
    "sizes": "the sizes.",
    "src": "the array.",
    "start_dimension": "the first of the dims that become one.",
    "start_index": "the first position; negative ones count from the end.",
    "start_indices": "for each dim the first position.",
    "stop_dimension": "the dim after the last of them; by default there is none.",
    "stride": "the step.",
    "strides": "for each dim the step, 1 by default.",
    "values": "an array of the same shape.",
    "which": "numbers of cases, counted from 0, of the shape of the cases or without dims; others "
    "count as the nearest. A bool chooses the second of two cases where it is true.",
    "x": "the array.",
    "x1": "the array.",
    "x2": "an array whose shape broadcasts with that of ``x1``, or a number.",
    "y": "an array whose shape broadcasts with that of ``x``, or a number.",
    "batch_group_count": "into how many groups examples are divided; each meets its own "
    "features of ``rhs``.",
    "feature_group_count": "into how many groups features are divided; each has its own part "
    "of ``rhs``.",
    "filter_shape": "the size of a window along each dim in space.",
    "in_shape": "the sizes of the dims.",
    "lhs_dilation": "for each dim in space how far its elements are moved apart, 1 by default.",
    "lhs_shape": "the shape of the first operand.",
    "padding": "``'SAME'``, ``'SAME_LOWER'``, ``'VALID'``, or for each dim how many elements "
    "come before and after.",
    "rhs_dilation": "for each dim in space how far the elements of a window are apart, 1 by "
    "default.",
    "rhs_shape": "the shape of the second operand.",
    "transpose_kernel": "whether the kernel is turned round, and its features change places.",
    "use_consistent_padding": "whether pairs are those of the convolution that this "
    "transposes, too.",
    "window_shape": "the size of a window along each dim.",
    "window_strides": "for each dim how far it is from one window to the next.",
    "indices_are_sorted": "accepted as in JAX.",
    "unique_indices": "whether the caller knows that no element is named twice; accepted as "
    "in JAX.",
}
"""What the arguments of ``jax.lax`` are: each name means the same in all functions."""


def _arguments(function: Any) -> list[str]:
    names, varargs, _ = inspect.getargs(function.__code__)
    return [*names, varargs] if varargs else names


def finished(function: Any, name: str, text: str, example: tuple[str, str], **own: str) -> Any:
    """Return a function under its name, with a docstring made of a row, checked by annotations.

    Args:
        function: the function.
        name: its name.
        text: the docstring's first lines; a section ``Raises:`` at their end stays at the end.
        example: a line of code, and what it prints.
        **own: what arguments are that mean something else here.
    """
    function.__name__ = function.__qualname__ = name
    head, section, raises = inspect.cleandoc(text).partition("\n\nRaises:\n")
    lines = [head, "", "Args:"]
    for argument in _arguments(function):
        line = f"    {argument}: {own.get(argument) or _ARGUMENTS[argument]}"
        lines.append(line if len(line) < 97 else fill(line, 96, subsequent_indent=" " * 8))
    lines.append("")
    lines += [f"Raises:\n{raises}", ""] if section else []
    lines += [">>> from meshard import lax", ">>> import meshard.numpy as mnp"]
    function.__doc__ = "\n".join([*lines, f">>> {example[0]}", example[1]])
    return checked(function)


def named(code: str, printed: str, **own: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Finish a function whose docstring says what it returns; see `finished`."""

    def finish(function: Callable[P, R]) -> Callable[P, R]:
        text = function.__doc__ or ""
        return cast(
            Callable[P, R], finished(function, function.__name__, text, (code, printed), **own)
        )

    return finish


class Unary(Protocol):
    """An elementwise operation on one array."""

    def __call__(self, x: ArrayLike) -> Array:
        """Apply it to each element."""


class Binary(Protocol):
    """An elementwise operation on two arrays."""

    def __call__(self, x: ArrayLike, y: ArrayLike) -> Array:
        """Apply it to each pair of elements."""


Operation = str | Callable[..., Any]
"""A row of the registry, or the function of ``meshard.numpy`` that is one with its docstring."""


def _elementwise(function: Any, name: str, operation: Operation, text: str, operands: str) -> Any:
    if not isinstance(operation, str):
        said = (operation.__doc__ or "").partition("\n")[0]
        text = text or said.replace("x1", "x").replace("x2", "y")
    text += """

    Operands broadcast, dtypes are promoted as in NumPy, and the result keeps the sharding.

    Raises:
        ShapeError: if the shapes do not broadcast.
        DtypeError: if an operand is not an array, or has a dtype that this cannot take.
    """
    names = ", ".join([operands] * len(_arguments(function)))
    return finished(function, name, text, (f"lax.{name}({names}).shape", "(2,)"))


def _row_of(operation: Operation) -> str:
    return operation if isinstance(operation, str) else operation.__name__


def _unary(name: str, operation: Operation, text: str = "", operand: str = "mnp.ones(2)") -> Unary:
    row = _row_of(operation)

    def function(x: Any) -> Array:
        return bind(row, x)

    return cast(Unary, _elementwise(function, name, operation, text, operand))


def _binary(
    name: str, operation: Operation, text: str = "", operand: str = "mnp.ones(2)"
) -> Binary:
    row = _row_of(operation)

    def function(x: Any, y: Any) -> Array:
        return bind(row, x, y)

    return cast(Binary, _elementwise(function, name, operation, text, operand))


_INTEGERS = "mnp.ones(2, int)"
_CLZ = "Return for each integer how many zero bits it begins with."
_COMPLEX = "Return the complex numbers with these real and imaginary parts."
_DIGAMMA = "Return the derivatives of the logarithm of the gamma function."
_LGAMMA = "Return the logarithms of the absolute values of the gamma function."
_QUOTIENTS = "Return the quotients; those of integers without their fractions."
_SIGNED = "Return x shifted y bits to the right; copies of the sign move in."
_UNSIGNED = "Return x shifted y bits to the right; zeros move in."

abs = _unary("abs", of.absolute)
acos = _unary("acos", of.arccos)
acosh = _unary("acosh", of.arccosh)
asin = _unary("asin", of.arcsin)
asinh = _unary("asinh", of.arcsinh)
atan = _unary("atan", of.arctan)
atanh = _unary("atanh", of.arctanh, operand="mnp.zeros(2)")
bitwise_not = _unary("bitwise_not", of.invert, operand=_INTEGERS)
cbrt = _unary("cbrt", of.cbrt)
ceil = _unary("ceil", of.ceil)
clz = _unary("clz", "leading_zeros", _CLZ, _INTEGERS)
conj = _unary("conj", of.conjugate)
cos = _unary("cos", of.cos)
cosh = _unary("cosh", of.cosh)
digamma = _unary("digamma", "digamma", _DIGAMMA)
erf = _unary("erf", "erf", "Return the error function.")
erf_inv = _unary("erf_inv", "erfinv", "Return the inverse of the error function.")
erfc = _unary("erfc", "erfc", "Return one minus the error function.")
exp = _unary("exp", of.exp)
exp2 = _unary("exp2", of.exp2)
expm1 = _unary("expm1", of.expm1)
floor = _unary("floor", of.floor)
imag = _unary("imag", of.imag)
is_finite = _unary("is_finite", of.isfinite)
lgamma = _unary("lgamma", "lgamma", _LGAMMA)
log = _unary("log", of.log)
log1p = _unary("log1p", of.log1p)
logistic = _unary("logistic", "logistic", "Return 1 / (1 + exp(-x)).")
neg = _unary("neg", of.negative)
population_count = _unary(
    "population_count",
    "population_count",
    "Return for each integer how many of its bits are set.",
    _INTEGERS,
)
real = _unary("real", of.real)
reciprocal = _unary("reciprocal", of.reciprocal)
sign = _unary("sign", of.sign)
sin = _unary("sin", of.sin)
sinh = _unary("sinh", of.sinh)
sqrt = _unary("sqrt", of.sqrt)
square = _unary("square", of.square)
tan = _unary("tan", of.tan)
tanh = _unary("tanh", of.tanh)

add = _binary("add", of.add)
atan2 = _binary("atan2", of.arctan2)
bitwise_and = _binary("bitwise_and", of.bitwise_and, operand=_INTEGERS)
bitwise_or = _binary("bitwise_or", of.bitwise_or, operand=_INTEGERS)
bitwise_xor = _binary("bitwise_xor", of.bitwise_xor, operand=_INTEGERS)
complex = _binary("complex", "complex", _COMPLEX)
div = _binary("div", "truncated_divide", _QUOTIENTS)
eq = _binary("eq", of.equal)
ge = _binary("ge", of.greater_equal)
gt = _binary("gt", of.greater)
le = _binary("le", of.less_equal)
lt = _binary("lt", of.less)
max = _binary("max", of.maximum)
min = _binary("min", of.minimum)
mul = _binary("mul", of.multiply)
ne = _binary("ne", of.not_equal)
pow = _binary("pow", of.power)
rem = _binary("rem", of.fmod)
shift_left = _binary("shift_left", of.left_shift, operand=_INTEGERS)
shift_right_arithmetic = _binary("shift_right_arithmetic", of.right_shift, _SIGNED, _INTEGERS)
shift_right_logical = _binary("shift_right_logical", "shift_right_logical", _UNSIGNED, _INTEGERS)
sub = _binary("sub", of.subtract)


@named("lax.nextafter(mnp.zeros(2), mnp.ones(2)).tolist()", "[5e-324, 5e-324]")
def nextafter(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Return the next floats after x1 towards x2, elementwise."""
    return bind("nextafter", x1, x2)
