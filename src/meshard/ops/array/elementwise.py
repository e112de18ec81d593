"""Elementwise operations: rows of one table, with broadcasting and NumPy 2 promotion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar, cast, overload

import numpy as np

from meshard.errors import ArgumentError, DtypeError
from meshard.ops.array.formulas import FORMULAS, computed, in_pieces, logistic_formula
from meshard.ops.array.nonzero import nonzero
from meshard.ops.checked import AnyDtypeLike, Axis, checked
from meshard.ops.dtypes.laws import EXTENDED, SMALL_FLOATS, as_dtype, kind_of, limits_of, same_dtype
from meshard.ops.dtypes.laws import cast as converted
from meshard.ops.engine.later import is_traced
from meshard.ops.row import Dtype, Op, Operand, Params, register
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array, moved_to
from meshard.runtime.types import KEY, ArrayLike, Block, DeviceLike, dtype_name
from meshard.tuning import LARGE

F = TypeVar("F", bound=Callable[..., Any])


class Unary(Protocol):
    """An elementwise operation on one array."""

    def __call__(self, x: ArrayLike, /) -> Array:
        """Apply it to each element."""


class Binary(Protocol):
    """An elementwise operation on two arrays, which broadcast."""

    nin: int
    nout: int
    nargs: int
    identity: Any

    def __call__(self, x1: ArrayLike, x2: ArrayLike, /) -> Array:
        """Apply it to each pair of elements."""

    def reduce(
        self,
        a: ArrayLike,
        axis: Axis = 0,
        dtype: AnyDtypeLike = None,
        out: None = None,
        keepdims: bool = False,
        **more: ArrayLike | None,
    ) -> Array:
        """Return the elements combined over dims, the first by default.

        ``initial=`` and ``where=`` mean what they do to `sum`.
        """

    def accumulate(
        self, a: ArrayLike, axis: int = 0, dtype: AnyDtypeLike = None, out: None = None
    ) -> Array:
        """Return the elements up to each one combined, along a dim."""

    def reduceat(
        self,
        a: ArrayLike,
        indices: ArrayLike | Sequence[int],
        axis: int = 0,
        dtype: AnyDtypeLike = None,
        out: None = None,
    ) -> Array:
        """Return the elements between positions combined, along a dim."""

    def outer(self, A: ArrayLike, B: ArrayLike, /) -> Array:
        """Return what it gives for each pair of elements of two arrays."""

    def at(self, a: ArrayLike, indices: Any, b: ArrayLike, /, *, inplace: bool = True) -> Array:
        """Return the array with elements at positions combined with others."""


BINARY: dict[str, Binary] = {}
"""The operations on two arrays, which get the methods of NumPy's ufuncs (`ops/made/ufuncs`)."""


def _negative_powers(operands: Sequence[Operand]) -> bool:
    """Whether integers are raised to integers that may be negative, which have no integer power."""
    (_, base), (_, exponent) = operands
    if not isinstance(exponent, np.dtype):  # a number is the same on all processes
        return False
    return np.dtype(base).kind in "biu" and exponent.kind == "i"


_REFUSES = {"power": _negative_powers}


def _row(name: str, kernel: Callable[..., Any], arity: int, outputs: int = 1) -> None:
    rule = ", ".join(["..."] * arity) + " -> " + ", ".join(["..."] * outputs)
    chooses = kernel is np.where  # its first operand is a condition
    style: Any = "ufunc" if outputs == 1 and not chooses else "plain"
    register(
        Op(
            name,
            rule,
            kernel,
            outputs=outputs,
            style=style,
            alike=int(chooses),
            refuses=_REFUSES.get(name),
        )
    )


def _finish(function: F, name: str, text: str, operands: str, kind: str = "float") -> F:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""{text}

    Elementwise, as ``numpy.{name}``: operands broadcast, dtypes are promoted as in NumPy 2, and
    the result keeps the operands' sharding.

    Raises:
        ShapeError: if the shapes do not broadcast.
        DtypeError: if an operand is not an array, or has a dtype that this cannot take.

    >>> import meshard, meshard.numpy as mnp
    >>> rows = meshard.NamedSharding(meshard.make_mesh((1,), ("x",)), meshard.P("x"))
    >>> x = mnp.ones(2, dtype={kind}, device=rows)
    >>> mnp.{name}({operands}).sharding.spec
    P('x',)
    """
    return function


def _unary(name: str, kernel: Callable[..., Any], text: str) -> Unary:
    _row(name, kernel, 1)

    def function(x: ArrayLike, /) -> Array:
        return bind(name, x)

    return _finish(function, name, text, "x")


def _unary_integer(name: str, kernel: Callable[..., Any], text: str) -> Unary:
    _row(name, kernel, 1)

    def function(x: ArrayLike, /) -> Array:
        return bind(name, x)

    return _finish(function, name, text, "x", "int")


def _binary(name: str, kernel: Callable[..., Any], text: str, kind: str = "float") -> Binary:
    _row(name, kernel, 2)

    def function(x1: ArrayLike, x2: ArrayLike, /) -> Array:
        return bind(name, x1, x2)

    BINARY[name] = found = cast(Binary, _finish(function, name, text, "x, x", kind))
    return found


def _special(name: str) -> Callable[..., Any]:
    """Return a kernel that calls a function of scipy.special, imported at first use.

    SciPy has it for float32 and float64; floats shorter than that are computed in float32, and the
    error function of float32 by a formula.
    """

    def kernel(x: Any, out: Block | None = None) -> Any:
        kind = getattr(x, "dtype", None)
        if kind in SMALL_FLOATS or kind == np.float16:
            found = kernel(x.astype(np.float32)).astype(x.dtype)
            if out is None:
                return found
            out[...] = found
            return out
        if kind == np.float32 and name in FORMULAS:
            return computed(name, x, out)
        import scipy.special

        function = getattr(scipy.special, name)
        return function(x, out=out) if out is not None else function(x)

    return kernel


def _logistic(x: Any, out: Block | None = None) -> Any:
    """Return 1 / (1 + exp(-x)), without overflow, so that what it gives may be multiplied by x."""
    kind = getattr(x, "dtype", None)
    if kind not in (np.float32, np.float64):
        return _EXPIT(x, out=out)
    return _SIGMOID(x, out=out)


_SIGMOID = in_pieces(partial(logistic_formula, np))
_EXPIT = _special("expit")
negative = _unary("negative", np.negative, "Return the elements with the opposite sign.")
positive = _unary("positive", np.positive, "Return the elements as they are.")
absolute = _unary("absolute", np.absolute, "Return the absolute values.")
sign = _unary("sign", np.sign, "Return the signs: -1, 0 or 1.")
exp = _unary("exp", np.exp, "Return e to the power of each element.")
exp2 = _unary("exp2", np.exp2, "Return 2 to the power of each element.")
expm1 = _unary("expm1", np.expm1, "Return e to the power of each element, less one.")
log = _unary("log", np.log, "Return the natural logarithms.")
log2 = _unary("log2", np.log2, "Return the logarithms to base 2.")
log10 = _unary("log10", np.log10, "Return the logarithms to base 10.")
log1p = _unary("log1p", np.log1p, "Return the natural logarithms of one plus each element.")
sqrt = _unary("sqrt", np.sqrt, "Return the square roots.")
cbrt = _unary("cbrt", np.cbrt, "Return the cube roots.")
square = _unary("square", np.square, "Return the squares.")
reciprocal = _unary("reciprocal", np.reciprocal, "Return one over each element.")
sin = _unary("sin", np.sin, "Return the sines of angles in radians.")
cos = _unary("cos", np.cos, "Return the cosines of angles in radians.")
tan = _unary("tan", np.tan, "Return the tangents of angles in radians.")
arcsin = _unary("arcsin", np.arcsin, "Return the angles in radians with these sines.")
arccos = _unary("arccos", np.arccos, "Return the angles in radians with these cosines.")
arctan = _unary("arctan", np.arctan, "Return the angles in radians with these tangents.")
sinh = _unary("sinh", np.sinh, "Return the hyperbolic sines.")
cosh = _unary("cosh", np.cosh, "Return the hyperbolic cosines.")
tanh = _unary("tanh", np.tanh, "Return the hyperbolic tangents.")
arcsinh = _unary("arcsinh", np.arcsinh, "Return the inverse hyperbolic sines.")
arccosh = _unary("arccosh", np.arccosh, "Return the inverse hyperbolic cosines.")
arctanh = _unary(
    "arctanh", lambda x, **k: np.arctanh(x, **k), "Return the inverse hyperbolic tangents."
)
floor = _unary("floor", np.floor, "Return the greatest integers not above.")
ceil = _unary("ceil", np.ceil, "Return the least integers not below.")
trunc = _unary("trunc", np.trunc, "Return the elements without their fractions.")
rint = _unary("rint", np.rint, "Return the nearest integers, halves to even.")
deg2rad = _unary("deg2rad", np.deg2rad, "Return degrees as radians.")
rad2deg = _unary("rad2deg", np.rad2deg, "Return radians as degrees.")
isnan = _unary("isnan", np.isnan, "Return where the elements are not a number.")
isinf = _unary("isinf", np.isinf, "Return where the elements are infinite.")
isfinite = _unary("isfinite", np.isfinite, "Return where the elements are finite.")
signbit = _unary("signbit", np.signbit, "Return where the sign bit is set.")
logical_not = _unary("logical_not", np.logical_not, "Return where the elements are zero.")
conjugate = _unary("conjugate", np.conjugate, "Return the complex conjugates.")
invert = _unary_integer("invert", np.invert, "Return the elements with all bits flipped.")
bitwise_count = _unary_integer(
    "bitwise_count", np.bitwise_count, "Return how many bits of the absolute values are set."
)
spacing = _unary("spacing", np.spacing, "Return the distances to the next floats from zero.")

add = _binary("add", np.add, "Return the sums.")
subtract = _binary("subtract", np.subtract, "Return the differences.")
multiply = _binary("multiply", np.multiply, "Return the products.")
divide = _binary("divide", np.divide, "Return the true quotients.")
floor_divide = _binary("floor_divide", np.floor_divide, "Return the quotients, rounded down.")
remainder = _binary("remainder", np.remainder, "Return the remainders, with the divisor's sign.")
fmod = _binary("fmod", np.fmod, "Return the remainders, with the dividend's sign.")
power = _binary("power", np.power, "Return the first elements to the power of the second.")
float_power = _binary("float_power", np.float_power, "Return powers, computed as floats.")
arctan2 = _binary("arctan2", np.arctan2, "Return the angles in radians of the points (x2, x1).")
hypot = _binary("hypot", np.hypot, "Return the lengths of the hypotenuses.")
maximum = _binary("maximum", np.maximum, "Return the greater elements; NaN where either is.")
minimum = _binary("minimum", np.minimum, "Return the lesser elements; NaN where either is.")
fmax = _binary("fmax", np.fmax, "Return the greater elements; NaN only where both are.")
fmin = _binary("fmin", np.fmin, "Return the lesser elements; NaN only where both are.")
logaddexp = _binary("logaddexp", np.logaddexp, "Return log(exp(x1) + exp(x2)), safely.")
logaddexp2 = _binary("logaddexp2", np.logaddexp2, "Return log2(2**x1 + 2**x2), safely.")
copysign = _binary("copysign", np.copysign, "Return the first magnitudes with the second signs.")
nextafter = _binary("nextafter", np.nextafter, "Return the next floats after x1 towards x2.")
heaviside = _binary("heaviside", np.heaviside, "Return the step function of x1, x2 where it is 0.")
ldexp = _binary("ldexp", np.ldexp, "Return x1 times 2 to the power of integers x2.", "int")
gcd = _binary("gcd", np.gcd, "Return the greatest common divisors.", "int")
lcm = _binary("lcm", np.lcm, "Return the least common multiples.", "int")
bitwise_and = _binary("bitwise_and", np.bitwise_and, "Return the bits set in both.", "int")
bitwise_or = _binary("bitwise_or", np.bitwise_or, "Return the bits set in either.", "int")
bitwise_xor = _binary("bitwise_xor", np.bitwise_xor, "Return the bits set in one only.", "int")
left_shift = _binary("left_shift", np.left_shift, "Return x1 shifted x2 bits to the left.", "int")
right_shift = _binary("right_shift", np.right_shift, "Return x1 shifted x2 bits right.", "int")
logical_and = _binary("logical_and", np.logical_and, "Return where both are true.")
logical_or = _binary("logical_or", np.logical_or, "Return where either is true.")
logical_xor = _binary("logical_xor", np.logical_xor, "Return where one only is true.")
equal = _binary("equal", np.equal, "Return where the elements are equal.")
not_equal = _binary("not_equal", np.not_equal, "Return where the elements differ.")
less = _binary("less", np.less, "Return where x1 < x2.")
less_equal = _binary("less_equal", np.less_equal, "Return where x1 <= x2.")
greater = _binary("greater", np.greater, "Return where x1 > x2.")
greater_equal = _binary("greater_equal", np.greater_equal, "Return where x1 >= x2.")

_row("erf", _special("erf"), 1)
_row("erfc", _special("erfc"), 1)
_row("erfinv", _special("erfinv"), 1)
_row("lgamma", _special("gammaln"), 1)
_row("digamma", _special("digamma"), 1)
_row("logistic", _logistic, 1)
_row("where", np.where, 3)
_row("clip", np.clip, 3)
_row("divmod", np.divmod, 2, 2)
_row("modf", np.modf, 1, 2)
_row("frexp", np.frexp, 1, 2)


def _real(x: Block) -> Block:
    return x.real.copy() if x.dtype.kind == "c" else x


def _imag(x: Block) -> Block:
    return x.imag.copy() if x.dtype.kind == "c" else np.zeros_like(x)


def _round(x: Block, decimals: int, out: Block | None = None) -> Any:
    return np.round(x, decimals, out=out)


def _astype(x: Block, dtype: Dtype, out: Block | None = None) -> Block:
    if out is None:
        return converted(x, dtype)
    np.copyto(out, converted(x, dtype) if dtype in EXTENDED else x, casting="unsafe")
    return out


def _astype_law(operands: Sequence[Operand], params: Params) -> tuple[Dtype, ...]:
    given, wanted = operands[0][1], params["dtype"]
    if given != wanted and KEY in (given, wanted):
        names = [dtype_name(k) if isinstance(k, np.dtype) else k.__name__ for k in (given, wanted)]
        raise DtypeError(
            f"astype: from {names[0]} to {names[1]} is not possible: random keys are not numbers. "
            "Their words are in meshard.random.key_data(key), and wrap_key_data(words) makes keys."
        )
    return (wanted,)


def _itself(x: Block) -> Block:
    return x


AGAIN = "again"
"""The row of values from which others are computed a second time."""


def _again(x: Block, *, number: int) -> Block:
    return x


def _named(x: Block, *, name: str) -> Block:
    return x


register(Op("stop_gradient", "... -> ...", _itself, dtypes=same_dtype, style="view"))
# What is computed behind it is not taken for what was computed before, whose number is another.
register(Op(AGAIN, "... -> ...", _again, dtypes=same_dtype, style="view"))
register(Op("checkpoint_name", "... -> ...", _named, dtypes=same_dtype, style="view"))
register(Op("real", "... -> ...", _real))
register(Op("imag", "... -> ...", _imag))
register(Op("round", "... -> ...", _round, alike=0, style="ufunc"))
register(Op("astype", "... -> ...", _astype, dtypes=_astype_law, style="ufunc"))


@overload
def where(
    condition: ArrayLike, /, *, size: int | None = None, fill_value: ArrayLike | None = None
) -> tuple[Array, ...]: ...
@overload
def where(condition: ArrayLike, x: ArrayLike, y: ArrayLike, /) -> Array: ...
@checked
def where(
    condition: ArrayLike,
    x: ArrayLike | None = None,
    y: ArrayLike | None = None,
    /,
    *,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
) -> Any:
    """Return elements of ``x`` where the condition is true, of ``y`` elsewhere.

    With the condition alone, return the positions where it is true, one array per dim; then
    ``size`` and ``fill_value`` mean what they do to `nonzero`.

    >>> import meshard.numpy as mnp
    >>> mnp.where(mnp.arange(4) < 2, mnp.arange(4), 9).tolist()
    [0, 1, 9, 9]
    """
    if x is None and y is None:
        return nonzero(condition, size=size, fill_value=fill_value)
    if size is not None or fill_value is not None:
        raise ArgumentError(
            "where: size= and fill_value= go with the condition alone, for the number of its "
            "positions; the result of where(condition, x, y) has their shape."
        )
    if x is None or y is None:
        raise ArgumentError("where: give both x and y, or neither for the positions.")
    return bind("where", condition, x, y)


def _limit(x: Any, name: str, limit: Any, *, below: bool) -> Any:
    """Return a limit of `clip`, None for a Python integer that all numbers of the dtype are within.

    Raises:
        ArgumentError: if none of them is.
    """
    if type(limit) is not int or kind_of(x.dtype) not in "iu":
        return limit
    least, greatest, _ = limits_of(x.dtype)
    if least <= limit <= greatest:
        return limit
    if (limit < least) != below:
        raise ArgumentError(
            f"clip: {name}={limit} leaves no number of the array's dtype {x.dtype}, whose numbers "
            f"are {least} to {greatest}. Convert the array to a wider dtype first."
        )
    return None


@checked
def clip(
    a: ArrayLike,
    min: ArrayLike | None = None,
    max: ArrayLike | None = None,
    out: None = None,
    *,
    a_min: ArrayLike | None = None,
    a_max: ArrayLike | None = None,
) -> Array:
    """Return the elements limited to the interval from ``min`` to ``max``; None sets no limit.

    Args:
        a: the array.
        min: the least value. Python integers may be beyond the numbers of an integer dtype, on
            the side where they limit nothing.
        max: the greatest value.
        out: None; arrays are immutable.
        a_min: another name of ``min``, as NumPy has it.
        a_max: another name of ``max``.

    Raises:
        ArgumentError: if no number of the array's dtype is within a limit, or a limit is given
            by both of its names.

    >>> import meshard.numpy as mnp
    >>> mnp.clip(mnp.arange(5), 1, 3).tolist()
    [1, 1, 2, 3, 3]
    """
    x = as_array(a)
    min, max = _either("min", min, a_min), _either("max", max, a_max)
    low, high = _limit(x, "min", min, below=True), _limit(x, "max", max, below=False)
    if low is not None and high is not None:
        return limited(x, low, high)
    raised = x.copy() if low is None else bind("maximum", x, low)
    return raised if high is None else bind("minimum", raised, high)


def _either(name: str, given: Any, other: Any) -> Any:
    if given is not None and other is not None:
        raise ArgumentError(f"clip: {name} and a_{name} are two names of one limit; give one.")
    return other if given is None else given


def limited(x: Any, low: Any, high: Any) -> Any:
    """Return the elements of an array limited to an interval, in one pass."""
    if type(x) is Array and x.nbytes >= LARGE and x.dtype.kind in "iuf":
        return bind("clip", x, low, high)  # in a program the two below are one pass
    return bind("minimum", bind("maximum", x, low), high)


def bounded_flat(x: Any, low: Any, high: Any) -> Any:
    """Return the elements limited to an interval, at whose ends the derivative is zero."""
    if not is_traced(x):
        return limited(x, low, high)
    raised = bind("where", bind("less_equal", x, low), low, x)
    return bind("where", bind("greater_equal", raised, high), high, raised)


def divmod(x1: ArrayLike, x2: ArrayLike, /) -> tuple[Array, Array]:
    """Return the quotients rounded down, and the remainders.

    >>> import meshard.numpy as mnp
    >>> [a.tolist() for a in mnp.divmod(mnp.arange(4), 2)]
    [[0, 0, 1, 1], [0, 1, 0, 1]]
    """
    return bind("divmod", x1, x2)


def modf(x: ArrayLike, /) -> tuple[Array, Array]:
    """Return the fractions and the whole parts.

    >>> import meshard.numpy as mnp
    >>> [part.tolist() for part in mnp.modf(mnp.asarray([1.5, -2.25]))]
    [[0.5, -0.25], [1.0, -2.0]]
    """
    return bind("modf", x)


def frexp(x: ArrayLike, /) -> tuple[Array, Array]:
    """Return mantissas and exponents of two.

    >>> import meshard.numpy as mnp
    >>> [part.tolist() for part in mnp.frexp(mnp.asarray([3.0, 8.0]))]
    [[0.75, 0.5], [2, 4]]
    """
    return bind("frexp", x)


def real(x: ArrayLike, /) -> Array:
    """Return the real parts.

    >>> import meshard.numpy as mnp
    >>> mnp.real(mnp.asarray([1 + 2j, 3.0])).tolist()
    [1.0, 3.0]
    """
    return bind("real", x)


def imag(x: ArrayLike, /) -> Array:
    """Return the imaginary parts; zeros for real elements.

    >>> import meshard.numpy as mnp
    >>> mnp.imag(mnp.asarray([1 + 2j, 3.0])).tolist()
    [2.0, 0.0]
    """
    return bind("imag", x)


@checked
def round(a: ArrayLike, decimals: int = 0, out: None = None) -> Array:
    """Return the elements rounded to a number of decimals, halves to even.

    >>> import meshard.numpy as mnp
    >>> mnp.round(mnp.asarray([1.25, 2.75]), 1).tolist()
    [1.2, 2.8]
    """
    return bind("round", a, decimals=int(decimals))


@checked
def astype(
    x: ArrayLike, dtype: AnyDtypeLike, /, *, copy: bool = True, device: DeviceLike = None
) -> Array:
    """Return the array converted to another dtype; the sharding stays, unless a device is given.

    Raises:
        DtypeError: if ``dtype`` is not one of numbers.

    >>> import meshard.numpy as mnp
    >>> mnp.astype(mnp.arange(3), "float32").dtype
    dtype('float32')
    """
    wanted = as_dtype(dtype)
    own = getattr(x, "dtype", None)
    same = not copy and own is not None and own == wanted  # NumPy takes None for float64
    found = as_array(x) if same else bind("astype", x, dtype=wanted)
    return found if device is None else moved_to(found, device, "astype")
