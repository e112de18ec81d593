"""Functions of neural networks, made of operations, so that each keeps the sharding."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meshard.ops.array.create import arange
from meshard.ops.array.elementwise import clip
from meshard.ops.array.join import split
from meshard.ops.array.shape import broadcast_to, expand_dims, squeeze
from meshard.ops.engine.arguments import DtypeLike, checked
from meshard.ops.engine.dims import normalised_axes
from meshard.ops.engine.dtypes import as_dtype, default_float, is_whole
from meshard.ops.reductions.moments import mean as mean_
from meshard.ops.reductions.moments import var
from meshard.ops.reductions.reduce import max as max_
from meshard.ops.reductions.reduce import sum as sum_
from meshard.ops.reductions.reduce import where_of
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array

Axis = int | tuple[int, ...] | None


def _float(x: Any) -> Any:
    value = as_array(x)
    return value.astype(default_float()) if is_whole(value.dtype) else value


def relu(x: Any) -> Any:
    """Return the elements that are positive, zero for the others.

    >>> import meshard.nn, meshard.numpy as mnp
    >>> meshard.nn.relu(mnp.asarray([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """
    return bind("maximum", as_array(x), 0)


def relu6(x: Any) -> Any:
    """Return the elements limited to the interval from 0 to 6."""
    return bind("minimum", relu(x), 6.0)


def hard_sigmoid(x: Any) -> Any:
    """Return relu6(x + 3) / 6.

    >>> import meshard.nn, meshard.numpy as mnp
    >>> meshard.nn.hard_sigmoid(mnp.asarray([-3.0, 0.0, 3.0])).tolist()
    [0.0, 0.5, 1.0]
    """
    return relu6(_float(x) + 3.0) / 6.0


def hard_silu(x: Any) -> Any:
    """Return x times its hard sigmoid.

    >>> import meshard.nn, meshard.numpy as mnp
    >>> meshard.nn.hard_silu(mnp.asarray([-3.0, 3.0])).tolist()
    [-0.0, 3.0]
    """
    value = _float(x)
    return value * hard_sigmoid(value)


hard_swish = hard_silu


def mish(x: Any) -> Any:
    """Return x * tanh(softplus(x)) (Misra, 2019).

    >>> import meshard.nn, meshard.numpy as mnp
    >>> float(meshard.nn.mish(mnp.asarray(0.0)))
    0.0
    """
    value = _float(x)
    return value * bind("tanh", softplus(value))


def squareplus(x: Any, b: Any = 4) -> Any:
    """Return (x + sqrt(x**2 + b)) / 2, with all digits where x is negative, too.

    >>> import meshard.nn, meshard.numpy as mnp
    >>> float(meshard.nn.squareplus(mnp.asarray(0.0)))
    1.0
    """
    value = _float(x)
    number = isinstance(b, (int, float))
    root = bind("hypot", value, float(np.sqrt(b)) if number else bind("sqrt", b))
    below = value < 0
    small = (b * 0.5) / bind("where", below, root - value, 1.0)
    return bind("where", below, small, value * 0.5 + root * 0.5)


def sparse_plus(x: Any) -> Any:
    """Return 0 up to -1, x from 1 on, and (x + 1)**2 / 4 between.

    >>> import meshard.nn, meshard.numpy as mnp
    >>> meshard.nn.sparse_plus(mnp.asarray([-2.0, 1.0])).tolist()
    [0.0, 1.0]
    """
    value = _float(x)
    between = bind("square", value + 1.0) / 4
    return bind("where", value <= -1, 0.0, bind("where", value >= 1, value, between))


def sparse_sigmoid(x: Any) -> Any:
    """Return the line from 0 at -1 to 1 at 1, level outside.

    >>> import meshard.nn, meshard.numpy as mnp
    >>> meshard.nn.sparse_sigmoid(mnp.asarray([-2.0, 0.0, 2.0])).tolist()
    [0.0, 0.5, 1.0]
    """
    return bind("minimum", bind("maximum", _float(x) + 1.0, 0.0), 2.0) * 0.5


def log1mexp(x: Any) -> Any:
    """Return log(1 - exp(-x)), safely.

    >>> import meshard.nn, meshard.numpy as mnp
    >>> float(meshard.nn.log1mexp(mnp.asarray(mnp.inf)))
    -0.0
    """
    value = _float(x)
    with np.errstate(divide="ignore", invalid="ignore"):  # each half is kept where it is safe
        small = bind("log", -bind("expm1", -value))
        great = bind("log1p", -bind("exp", -value))
    return bind("where", value < float(np.log(2.0)), small, great)


def identity(x: Any) -> Any:
    """Return the array.

    >>> import meshard.nn, meshard.numpy as mnp
    >>> meshard.nn.identity(mnp.ones(2)).tolist()
    [1.0, 1.0]
    """
    return as_array(x)


def tanh(x: Any) -> Any:
    """Return the hyperbolic tangents."""
    return bind("tanh", as_array(x))


def hard_tanh(x: Any) -> Any:
    """Return the elements limited to the interval from -1 to 1."""
    return clip(x, -1, 1)


def sigmoid(x: Any) -> Any:
    """Return 1 / (1 + exp(-x))."""
    return bind("logistic", _float(x))


def log_sigmoid(x: Any) -> Any:
    """Return the logarithm of the sigmoid, safely."""
    return -softplus(-_float(x))


def softplus(x: Any) -> Any:
    """Return log(1 + exp(x)), safely."""
    return bind("logaddexp", _float(x), 0.0)


def soft_sign(x: Any) -> Any:
    """Return ``x / (1 + |x|)``."""
    value = _float(x)
    return value / (abs(value) + 1)


def silu(x: Any) -> Any:
    """Return x times its sigmoid."""
    value = _float(x)
    return value * sigmoid(value)


swish = silu


@checked
def gelu(x: Any, approximate: bool = True) -> Any:
    """Return the Gaussian error linear unit (Hendrycks and Gimpel, 2016).

    Args:
        x: the array.
        approximate: by tanh, as in the paper; else exactly, by the error function.

    >>> import meshard.nn, meshard.numpy as mnp
    >>> float(meshard.nn.gelu(mnp.asarray(0.0)))
    0.0
    """
    value = _float(x)
    if not approximate:
        # 1 + erf(x) would lose all digits where x is negative: it is erfc(-x).
        return value * 0.5 * bind("erfc", value * -float(np.sqrt(0.5)))
    inner = (value + 0.044715 * value**3) * float(np.sqrt(2 / np.pi))
    return value * sigmoid(2.0 * inner)  # likewise (1 + tanh(x)) / 2, which is sigmoid(2 x)


@checked
def elu(x: Any, alpha: float = 1.0) -> Any:
    """Return x where positive, alpha * (exp(x) - 1) elsewhere."""
    value = _float(x)
    return bind("where", value > 0, value, bind("expm1", bind("minimum", value, 0.0)) * alpha)


def selu(x: Any) -> Any:
    """Return the scaled exponential linear unit (Klambauer et al., 2017)."""
    return elu(x, 1.6732632423543772) * 1.0507009873554805


@checked
def celu(x: Any, alpha: float = 1.0) -> Any:
    """Return max(x, 0) + min(0, alpha * (exp(x / alpha) - 1))."""
    value = _float(x)
    return relu(value) + bind(
        "minimum", bind("expm1", bind("minimum", value, 0.0) / alpha) * alpha, 0.0
    )


@checked
def leaky_relu(x: Any, negative_slope: float = 0.01) -> Any:
    """Return x where it is not negative, x times a slope elsewhere."""
    value = _float(x)
    return bind("where", value >= 0, value, value * negative_slope)


@checked
def glu(x: Any, axis: int = -1) -> Any:
    """Return the first half along a dim times the sigmoid of the second."""
    first, second = split(_float(x), 2, axis)
    return first * sigmoid(second)


@checked
def softmax(x: Any, axis: Axis = -1, where: Any = None) -> Any:
    """Return exp(x) divided by its sum over a dim, safely.

    Args:
        x: the array.
        axis: the dim or dims that add up to one.
        where: elements that take part; the others give 0.

    >>> import meshard.nn, meshard.numpy as mnp
    >>> meshard.nn.softmax(mnp.zeros(4)).tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    value = _float(x)
    dims = normalised_axes(axis, value.ndim, "softmax")
    if where is None:
        weights = bind("exp", value - max_(value, dims, keepdims=True))
        return weights / sum_(weights, dims, keepdims=True)
    value, top = _masked(value, dims, where)
    weights = bind("exp", value - top)
    total = sum_(weights, dims, keepdims=True)
    return weights / bind("where", total == 0, 1.0, total)


def _masked(value: Any, axis: Axis, where: Any) -> tuple[Any, Any]:
    """Return the array with minus infinity where it takes no part, and what to take off it."""
    lowest = -float("inf")
    value = bind("where", where, value, lowest)
    top = max_(value, axis, keepdims=True)
    return value, bind("where", top == lowest, 0.0, top)


@checked
def log_softmax(x: Any, axis: Axis = -1, where: Any = None) -> Any:
    """Return the logarithm of the softmax, safely.

    Args:
        x: the array.
        axis: the dim or dims whose exponentials add up to one.
        where: elements that take part; the others give minus infinity.
    """
    value = _float(x)
    dims = normalised_axes(axis, value.ndim, "log_softmax")
    if where is None:
        shifted = value - max_(value, dims, keepdims=True)
        return shifted - bind("log", sum_(bind("exp", shifted), dims, keepdims=True))
    value, top = _masked(value, dims, where)
    shifted = value - top
    total = sum_(bind("exp", shifted), dims, keepdims=True)
    return shifted - bind("log", bind("where", total == 0, 1.0, total))


@checked
def logsumexp(
    a: Any,
    axis: Axis = None,
    b: Any = None,
    keepdims: bool = False,
    return_sign: bool = False,
    where: Any = None,
) -> Any:
    """Return the logarithm of the sum of exponentials, safely.

    Args:
        a: the array.
        axis: the dim or dims summed over, all by default.
        b: what the exponentials are multiplied by; where their sum is negative, the result is NaN.
        keepdims: keep the dims, with size one.
        return_sign: return the logarithm of the sum's magnitude, and its sign.
        where: elements that take part.
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
        top = max_(value.real if is_complex else value, dims, keepdims=True)
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
def logmeanexp(x: Any, axis: Axis = None, where: Any = None, keepdims: bool = False) -> Any:
    """Return the logarithm of the mean of exponentials, safely.

    Args:
        x: the array.
        axis: the dim or dims, all by default.
        where: elements that take part.
        keepdims: keep the dims, with size one.

    >>> import meshard.nn, meshard.numpy as mnp
    >>> float(meshard.nn.logmeanexp(mnp.zeros(4)))
    0.0
    """
    value = _float(x)
    dims = normalised_axes(axis, value.ndim, "logmeanexp")
    total = logsumexp(value, dims, keepdims=keepdims, where=where)
    if where is None:
        return total - float(np.log(math.prod(value.shape[d] for d in dims)))
    mask = broadcast_to(where_of(value, where, "logmeanexp"), value.shape)
    return total - bind("log", sum_(mask, dims, value.dtype, keepdims))


@checked
def standardize(
    x: Any, axis: Axis = -1, mean: Any = None, variance: Any = None, epsilon: float = 1e-5
) -> Any:
    """Return the array less its mean, divided by its standard deviation over dims.

    Args:
        x: the array.
        axis: the dim or dims.
        mean: the mean, where it is known.
        variance: the variance, where it is known.
        epsilon: added to the variance, so that nothing is divided by zero.
    """
    value = _float(x)
    dims = normalised_axes(axis, value.ndim, "standardize")
    off = value - (mean_(value, dims, keepdims=True) if mean is None else as_array(mean))
    if variance is None:
        variance = var(value, dims, keepdims=True)
    return off / bind("sqrt", as_array(variance) + epsilon)


@checked
def one_hot(x: Any, num_classes: int, *, dtype: DtypeLike = None, axis: int = -1) -> Any:
    """Return for each integer a row of zeros with a one at its place."""
    value = as_array(x)
    (at,) = normalised_axes((axis,), value.ndim + 1, "one_hot")
    classes = arange(num_classes).reshape((-1,) + (1,) * (value.ndim - at))
    hits = bind("equal", expand_dims(value, at), classes)
    return hits.astype(default_float() if dtype is None else as_dtype(dtype))
