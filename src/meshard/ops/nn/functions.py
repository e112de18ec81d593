"""Functions of neural networks, made of operations, so that each keeps the sharding."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, ParamSpec, overload

import numpy as np

from meshard.ops.array.create import arange
from meshard.ops.array.elementwise import bounded_flat, clip
from meshard.ops.array.join import split
from meshard.ops.array.shape import broadcast_to, expand_dims, squeeze
from meshard.ops.checked import DtypeLike, checked, normalised_axes
from meshard.ops.dtypes.laws import as_dtype, default_float, is_whole
from meshard.ops.engine.later import is_traced
from meshard.ops.reductions.moments import mean as mean_
from meshard.ops.reductions.moments import var
from meshard.ops.reductions.reduce import max as max_
from meshard.ops.reductions.reduce import sum as sum_
from meshard.ops.reductions.reduce import where_of
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array
from meshard.runtime.types import ArrayLike

P = ParamSpec("P")
Axis = int | tuple[int, ...] | None

_MESH = """>>> import meshard, meshard.nn, meshard.numpy as mnp
    >>> mesh = meshard.make_mesh((2,), ("i",))
    >>> split = meshard.NamedSharding(mesh, meshard.P("i"))"""


def _pointwise(printed: str, **own: str) -> Callable[[Callable[P, Array]], Callable[P, Array]]:
    """Complete the docstring of a function that is computed for each element by itself.

    Args:
        printed: what the function gives for -1, 0, 1 and 2, rounded to three decimals.
        **own: what its arguments besides the array are.
    """

    def finish(function: Callable[P, Array]) -> Callable[P, Array]:
        name = function.__name__
        arguments = "".join(f"\n        {a}: {what}" for a, what in own.items())
        function.__doc__ = f"""{function.__doc__}

    Args:
        x: the array.{arguments}

    Returns:
        An array of the same shape and sharding.

    Raises:
        DtypeError: if ``x`` is not an array of numbers.

    {_MESH}
    >>> y = meshard.nn.{name}(mnp.asarray([-1.0, 0.0, 1.0, 2.0], device=split))
    >>> mnp.round(y, 3).tolist(), y.sharding.spec
    ({printed}, P('i',))
    """
        return function

    return finish


def _float(x: Any) -> Any:
    value = as_array(x)
    return value.astype(default_float()) if is_whole(value.dtype) else value


@_pointwise("[0.0, 0.0, 1.0, 2.0]")
def relu(x: ArrayLike) -> Array:
    """Return the elements where they are positive, zero elsewhere."""
    x = as_array(x)
    if is_traced(x):  # the derivative at zero is zero, where that of a maximum is a half
        return bind("where", bind("less_equal", x, 0), 0, x)
    return bind("maximum", x, 0)


@_pointwise("[0.0, 0.0, 1.0, 2.0]")
def relu6(x: ArrayLike) -> Array:
    """Return the elements limited to the interval from 0 to 6."""
    return bounded_flat(as_array(x), 0, 6.0)


@_pointwise("[0.333, 0.5, 0.667, 0.833]")
def hard_sigmoid(x: ArrayLike) -> Array:
    """Return relu6(x + 3) / 6."""
    return relu6(_float(x) + 3.0) / 6.0


@_pointwise("[-0.333, 0.0, 0.667, 1.667]")
def hard_silu(x: ArrayLike) -> Array:
    """Return x times its hard sigmoid."""
    value = _float(x)
    return value * hard_sigmoid(value)


hard_swish = hard_silu


@_pointwise("[-0.303, 0.0, 0.865, 1.944]")
def mish(x: ArrayLike) -> Array:
    """Return x * tanh(softplus(x)) (Misra, 2019)."""
    value = _float(x)
    return value * bind("tanh", softplus(value))


@_pointwise("[0.618, 1.0, 1.618, 2.414]", b="what is added to the square; a number, or an array.")
def squareplus(x: ArrayLike, b: ArrayLike = 4) -> Array:
    """Return (x + sqrt(x**2 + b)) / 2, with all digits where x is negative, too."""
    value = _float(x)
    offset: Any = b
    number = isinstance(b, (int, float))
    root = bind("hypot", value, float(np.sqrt(offset)) if number else bind("sqrt", offset))
    below = value < 0
    small = (offset * 0.5) / bind("where", below, root - value, 1.0)
    return bind("where", below, small, value * 0.5 + root * 0.5)


@_pointwise("[0.0, 0.25, 1.0, 2.0]")
def sparse_plus(x: ArrayLike) -> Array:
    """Return 0 up to -1, x from 1 on, and (x + 1)**2 / 4 between."""
    value = _float(x)
    between = bind("square", value + 1.0) / 4
    return bind("where", value <= -1, 0.0, bind("where", value >= 1, value, between))


@_pointwise("[0.0, 0.5, 1.0, 1.0]")
def sparse_sigmoid(x: ArrayLike) -> Array:
    """Return the line from 0 at -1 to 1 at 1, level outside."""
    return clip(_float(x) + 1.0, 0.0, 2.0) * 0.5


@_pointwise("[nan, -inf, -0.459, -0.145]")
def log1mexp(x: ArrayLike) -> Array:
    """Return log(1 - exp(-x)), without overflow."""
    value = _float(x)
    with np.errstate(divide="ignore", invalid="ignore"):  # each half is kept where it is safe
        small = bind("log", -bind("expm1", -value))
        great = bind("log1p", -bind("exp", -value))
    return bind("where", value < float(np.log(2.0)), small, great)


@_pointwise("[-1.0, 0.0, 1.0, 2.0]")
def identity(x: ArrayLike) -> Array:
    """Return the array."""
    return as_array(x)


@_pointwise("[-0.762, 0.0, 0.762, 0.964]")
def tanh(x: ArrayLike) -> Array:
    """Return the hyperbolic tangents."""
    return bind("tanh", as_array(x))


@_pointwise("[-1.0, 0.0, 1.0, 1.0]")
def hard_tanh(x: ArrayLike) -> Array:
    """Return the elements limited to the interval from -1 to 1."""
    value = as_array(x)
    if is_traced(value):  # the derivative at the ends is one
        return bind("where", value > 1, 1, bind("where", value < -1, -1, value))
    return clip(value, -1, 1)


@_pointwise("[0.269, 0.5, 0.731, 0.881]")
def sigmoid(x: ArrayLike) -> Array:
    """Return 1 / (1 + exp(-x))."""
    return bind("logistic", _float(x))


@_pointwise("[-1.313, -0.693, -0.313, -0.127]")
def log_sigmoid(x: ArrayLike) -> Array:
    """Return the logarithm of the sigmoid, without overflow."""
    return -softplus(-_float(x))


@_pointwise("[0.313, 0.693, 1.313, 2.127]")
def softplus(x: ArrayLike) -> Array:
    """Return log(1 + exp(x)), without overflow."""
    return bind("logaddexp", _float(x), 0.0)


@_pointwise("[-0.5, 0.0, 0.5, 0.667]")
def soft_sign(x: ArrayLike) -> Array:
    """Return ``x / (1 + |x|)``."""
    value = _float(x)
    return value / (abs(value) + 1)


@_pointwise("[-0.269, 0.0, 0.731, 1.762]")
def silu(x: ArrayLike) -> Array:
    """Return x times its sigmoid."""
    value = _float(x)
    return value * sigmoid(value)


swish = silu


@_pointwise(
    "[-0.159, 0.0, 0.841, 1.955]",
    approximate="by tanh; otherwise exactly.",
)
@checked
def gelu(x: ArrayLike, approximate: bool = True) -> Array:
    """Return the Gaussian error linear unit (Hendrycks and Gimpel, 2016)."""
    value = _float(x)
    if not approximate:
        # 1 + erf(x) would lose all digits where x is negative: it is erfc(-x).
        return value * 0.5 * bind("erfc", value * -float(np.sqrt(0.5)))
    # A product: a power of negative numbers takes NumPy fifty times as long.
    inner = value * (1.0 + 0.044715 * value * value)
    # Likewise (1 + tanh(x)) / 2, which is sigmoid(2 x).
    return value * sigmoid(float(np.sqrt(8 / np.pi)) * inner)


@_pointwise("[-0.632, 0.0, 1.0, 2.0]", alpha="the results are above ``-alpha``.")
@checked
def elu(x: ArrayLike, alpha: float = 1.0) -> Array:
    """Return x where positive, alpha * (exp(x) - 1) elsewhere."""
    value = _float(x)
    above = value > 0
    return bind("where", above, value, bind("expm1", bind("where", above, 0.0, value)) * alpha)


@_pointwise("[-1.111, 0.0, 1.051, 2.101]")
def selu(x: ArrayLike) -> Array:
    """Return the scaled exponential linear unit (Klambauer et al., 2017)."""
    return elu(x, 1.6732632423543772) * 1.0507009873554805


@_pointwise("[-0.632, 0.0, 1.0, 2.0]", alpha="the results are above ``-alpha``.")
@checked
def celu(x: ArrayLike, alpha: float = 1.0) -> Array:
    """Return max(x, 0) + alpha * (exp(min(x, 0) / alpha) - 1)."""
    value = _float(x)
    below = bind("expm1", bind("minimum", value, 0.0) / alpha) * alpha
    return bind("maximum", value, 0.0) + below


@_pointwise("[-0.01, 0.0, 1.0, 2.0]", negative_slope="the slope where ``x`` is negative.")
@checked
def leaky_relu(x: ArrayLike, negative_slope: float = 0.01) -> Array:
    """Return x where it is not negative, x times a slope elsewhere."""
    value = _float(x)
    return bind("where", value >= 0, value, value * negative_slope)


@checked
def glu(x: ArrayLike, axis: int = -1) -> Array:
    """Return the first half along a dim times the sigmoid of the second.

    Args:
        x: the array.
        axis: the dim.

    Returns:
        An array with half of the dim; the other dims stay split as they are.

    Raises:
        ShapeError: if the size of the dim is odd.

    >>> import meshard, meshard.nn, meshard.numpy as mnp
    >>> mesh = meshard.make_mesh((2,), ("i",))
    >>> split = meshard.NamedSharding(mesh, meshard.P("i"))
    >>> y = meshard.nn.glu(mnp.zeros((4, 6), device=split))
    >>> y.shape, y.sharding.spec
    ((4, 3), P('i',))
    """
    first, second = split(_float(x), 2, axis)
    return first * sigmoid(second)


@checked
def softmax(x: ArrayLike, axis: Axis = -1, where: ArrayLike | None = None) -> Array:
    """Return exp(x) divided by its sum over dims, without overflow.

    Of a split dim each device computes its own part; only sums and maxima move.

    Args:
        x: the array.
        axis: the dim or dims along which the result adds up to one.
        where: elements that take part; the others give 0.

    Returns:
        An array of the same shape and sharding.

    Raises:
        ArgumentError: if the array does not have such a dim.

    >>> import meshard, meshard.nn, meshard.numpy as mnp
    >>> mesh = meshard.make_mesh((2,), ("i",))
    >>> split = meshard.NamedSharding(mesh, meshard.P("i"))
    >>> y = meshard.nn.softmax(mnp.zeros(4, device=split))
    >>> y.tolist(), y.sharding.spec
    ([0.25, 0.25, 0.25, 0.25], P('i',))
    """
    value = _float(x)
    dims = normalised_axes(axis, value.ndim, "softmax")
    if not value.size:
        return value
    if where is None:
        weights = bind("exp", value - _top(value, dims))
        return weights / sum_(weights, dims, keepdims=True)
    value, top = _masked(value, dims, where)
    weights = bind("exp", value - top)
    total = sum_(weights, dims, keepdims=True)
    return weights / bind("where", total == 0, 1.0, total)


def _top(value: Any, axis: Axis) -> Any:
    """Return the maxima, which are taken off and do not change what comes out: nor do slopes."""
    top = max_(value, axis, keepdims=True)
    return bind("stop_gradient", top) if is_traced(top) else top


def _masked(value: Any, axis: Axis, where: Any) -> tuple[Any, Any]:
    """Return the array with minus infinity where it takes no part, and what to take off it."""
    lowest = -float("inf")
    value = bind("where", where, value, lowest)
    top = _top(value, axis)
    return value, bind("where", top == lowest, 0.0, top)


@checked
def log_softmax(x: ArrayLike, axis: Axis = -1, where: ArrayLike | None = None) -> Array:
    """Return the logarithm of the softmax, without overflow.

    Args:
        x: the array.
        axis: the dim or dims along which the exponentials of the result add up to one.
        where: elements that take part; the others give minus infinity.

    Returns:
        An array of the same shape and sharding.

    Raises:
        ArgumentError: if the array does not have such a dim.

    >>> import meshard, meshard.nn, meshard.numpy as mnp
    >>> mesh = meshard.make_mesh((2,), ("i",))
    >>> split = meshard.NamedSharding(mesh, meshard.P("i"))
    >>> y = meshard.nn.log_softmax(mnp.asarray([0.0, 1000.0], device=split))
    >>> y.tolist(), y.sharding.spec
    ([-1000.0, 0.0], P('i',))
    """
    value = _float(x)
    dims = normalised_axes(axis, value.ndim, "log_softmax")
    if not value.size:
        return value
    if where is None:
        shifted = value - _top(value, dims)
        return shifted - bind("log", sum_(bind("exp", shifted), dims, keepdims=True))
    value, top = _masked(value, dims, where)
    shifted = value - top
    total = sum_(bind("exp", shifted), dims, keepdims=True)
    return shifted - bind("log", bind("where", total == 0, 1.0, total))


@overload
def logsumexp(
    a: ArrayLike,
    axis: Axis = None,
    b: ArrayLike | None = None,
    keepdims: bool = False,
    return_sign: Literal[False] = False,
    where: ArrayLike | None = None,
) -> Array: ...
@overload
def logsumexp(
    a: ArrayLike,
    axis: Axis = None,
    b: ArrayLike | None = None,
    keepdims: bool = False,
    *,
    return_sign: Literal[True],
    where: ArrayLike | None = None,
) -> tuple[Array, Array]: ...
@checked
def logsumexp(
    a: ArrayLike,
    axis: Axis = None,
    b: ArrayLike | None = None,
    keepdims: bool = False,
    return_sign: bool = False,
    where: ArrayLike | None = None,
) -> Array | tuple[Array, Array]:
    """Return the logarithm of the sum of exponentials, without overflow.

    Args:
        a: the array.
        axis: the dim or dims summed over, all by default.
        b: what the exponentials are multiplied by; where their sum is negative, the result is NaN.
        keepdims: keep the dims, with size one.
        return_sign: return the logarithm of the sum's magnitude, and its sign.
        where: elements that take part.

    Returns:
        An array, or two with ``return_sign``; the other dims stay split as they are.

    Raises:
        ArgumentError: if the array does not have such a dim.

    >>> import meshard, meshard.nn, meshard.numpy as mnp
    >>> mesh = meshard.make_mesh((2,), ("i",))
    >>> split = meshard.NamedSharding(mesh, meshard.P("i"))
    >>> y = meshard.nn.logsumexp(mnp.full((2, 1), 1000.0, device=split), axis=1)
    >>> y.tolist(), y.sharding.spec
    ([1000.0, 1000.0], P('i',))
    """
    value = _float(a)
    lowest = -float("inf")
    if b is not None:
        value = bind("where", bind("equal", b, 0), lowest, value)
    if where is not None:
        value = bind("where", where, value, lowest)
    dims = normalised_axes(axis, value.ndim, "logsumexp")
    safe: Any = 0.0
    is_complex = value.dtype.kind == "c"
    if all(value.shape[d] for d in dims):
        top = _top(value.real if is_complex else value, dims)
        safe = bind("where", bind("isfinite", top), top, 0.0)
    weights = bind("exp", value - safe)
    if b is not None:
        weights = bind("multiply", weights, b)
    total = sum_(weights, dims, keepdims=True)
    with np.errstate(divide="ignore"):  # nothing has the logarithm minus infinity
        size = total if is_complex and not return_sign else bind("absolute", total)
        found = bind("log", size) + safe
    sign = bind("sign", total)
    if b is not None and not return_sign and not is_complex:
        found = bind("where", sign < 0, float("nan"), found)
    if not keepdims:
        found, sign = squeeze(found, dims), squeeze(sign, dims)
    return (found, sign) if return_sign else found


@checked
def logmeanexp(
    x: ArrayLike, axis: Axis = None, where: ArrayLike | None = None, keepdims: bool = False
) -> Array:
    """Return the logarithm of the mean of exponentials, without overflow.

    Args:
        x: the array.
        axis: the dim or dims, all by default.
        where: elements that take part.
        keepdims: keep the dims, with size one.

    Returns:
        An array; the other dims stay split as they are.

    Raises:
        ArgumentError: if the array does not have such a dim.

    >>> import meshard, meshard.nn, meshard.numpy as mnp
    >>> mesh = meshard.make_mesh((2,), ("i",))
    >>> split = meshard.NamedSharding(mesh, meshard.P("i"))
    >>> y = meshard.nn.logmeanexp(mnp.zeros((2, 4), device=split), axis=1)
    >>> y.tolist(), y.sharding.spec
    ([0.0, 0.0], P('i',))
    """
    value = _float(x)
    dims = normalised_axes(axis, value.ndim, "logmeanexp")
    total = logsumexp(value, dims, keepdims=keepdims, where=where)
    if where is None:
        return total - float(np.log(math.prod(value.shape[d] for d in dims)))
    mask = broadcast_to(where_of(value, where, "logmeanexp"), value.shape)
    return total - bind("log", sum_(mask, dims, value.dtype, None, keepdims))


@checked
def standardize(
    x: ArrayLike,
    axis: Axis = -1,
    mean: ArrayLike | None = None,
    variance: ArrayLike | None = None,
    epsilon: float = 1e-5,
) -> Array:
    """Return the array minus its mean, divided by its standard deviation over dims.

    Args:
        x: the array.
        axis: the dim or dims.
        mean: the mean, where it is known.
        variance: the variance, where it is known.
        epsilon: added to the variance, so that nothing is divided by zero.

    Returns:
        An array of the same shape and sharding.

    Raises:
        ArgumentError: if the array does not have such a dim.

    >>> import meshard, meshard.nn, meshard.numpy as mnp
    >>> mesh = meshard.make_mesh((2,), ("i",))
    >>> split = meshard.NamedSharding(mesh, meshard.P("i"))
    >>> y = meshard.nn.standardize(mnp.asarray([1.0, 3.0], device=split), epsilon=0)
    >>> y.tolist(), y.sharding.spec
    ([-1.0, 1.0], P('i',))
    """
    value = _float(x)
    dims = normalised_axes(axis, value.ndim, "standardize")
    off = value - (mean_(value, dims, keepdims=True) if mean is None else as_array(mean))
    if variance is None:
        variance = var(value, dims, keepdims=True)
    return off / bind("sqrt", as_array(variance) + epsilon)


@checked
def one_hot(x: ArrayLike, num_classes: int, *, dtype: DtypeLike = None, axis: int = -1) -> Array:
    """Return for each integer a row of zeros with a one at its place.

    Args:
        x: the integers; those that are not places give zeros only.
        num_classes: how long the rows are.
        dtype: the dtype of the result, by default that of floats.
        axis: which dim of the result the rows run along.

    Returns:
        An array with one more dim, which is not split; the others stay split as they are.

    Raises:
        ArgumentError: if the result does not have such a dim.

    >>> import meshard, meshard.nn, meshard.numpy as mnp
    >>> mesh = meshard.make_mesh((2,), ("i",))
    >>> split = meshard.NamedSharding(mesh, meshard.P("i"))
    >>> y = meshard.nn.one_hot(mnp.asarray([0, 2], device=split), 3)
    >>> y.tolist(), y.sharding.spec
    ([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]], P('i',))
    """
    value = as_array(x)
    (at,) = normalised_axes((axis,), value.ndim + 1, "one_hot")
    classes = arange(num_classes).reshape((-1,) + (1,) * (value.ndim - at))
    hits = bind("equal", expand_dims(value, at), classes)
    return hits.astype(default_float() if dtype is None else as_dtype(dtype))
