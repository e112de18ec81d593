"""Initial weights: functions of a key, a shape and a dtype, on any sharding.

In: what the distribution depends on. Out: a function that draws the weights where they are asked
for; no device draws more than its own shard.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, cast

import numpy as np

from meshard.algebra.arguments import choice_of, integer_of, items_of, number_of, shape_of
from meshard.errors import ArgumentError, ShapeError
from meshard.ops.array import create
from meshard.ops.array.elementwise import exp, log, sqrt
from meshard.ops.array.shape import moveaxis, reshape
from meshard.ops.checked import DtypeLike, normalised_axes
from meshard.ops.dtypes.laws import as_dtype, default_float
from meshard.ops.random import choice, distributions, keys
from meshard.ops.random import uniform as drawn
from meshard.runtime.array.array import Array
from meshard.runtime.types import ArrayLike, DeviceLike

Axes = int | Sequence[int]
Mode = Literal["fan_in", "fan_out", "fan_avg", "fan_geo_avg"]
Shape = Literal["truncated_normal", "normal", "uniform"]
_CUT = 0.87962566103423978  # the standard deviation of normal numbers between -2 and 2
_CUT_COMPLEX = 0.95311164380491208  # the same of complex ones whose absolute value is 2 at most


class Initializer(Protocol):
    """A function that makes initial weights.

    Called with a key of `meshard.random`, a shape, a dtype that is by default the one the
    initializer was made with, and ``out_sharding``, the sharding of the weights.
    """

    def __call__(
        self,
        key: ArrayLike,
        shape: Sequence[int],
        dtype: DtypeLike = None,
        out_sharding: DeviceLike = None,
    ) -> Array:
        """Return the weights."""
        ...


Draw = Callable[[Any, tuple[int, ...], np.dtype[Any], Any], Any]


def _initializer(name: str, default: DtypeLike, draw: Draw) -> Initializer:
    """Return an initializer from a function of a key, a shape, a dtype and a sharding."""
    what = f"nn.initializers.{name}"
    if default is not None:
        _dtype(default, what)

    def init(
        key: ArrayLike,
        shape: Sequence[int],
        dtype: DtypeLike = None,
        out_sharding: DeviceLike = None,
    ) -> Array:
        """Return initial weights of the shape, dtype and sharding."""
        given = default if dtype is None else dtype
        kind = default_float() if given is None else _dtype(given, what)
        return cast("Array", draw(key, shape_of(shape, what, "shape"), kind, out_sharding))

    init.__name__ = init.__qualname__ = name
    return init


def _dtype(given: Any, what: str) -> np.dtype[Any]:
    dtype = as_dtype(given)
    if dtype.kind not in "fcV":
        raise ArgumentError(
            f"{what}: weights of dtype {dtype} cannot be drawn; dtype must be a float or complex "
            "dtype, such as float32."
        )
    return dtype


def zeros(
    key: ArrayLike, shape: Sequence[int], dtype: DtypeLike = None, out_sharding: DeviceLike = None
) -> Array:
    """Return weights that are zero.

    Args:
        key: ignored; it is there because all initializers take one.
        shape: the shape.
        dtype: the dtype; by default the default float.
        out_sharding: the sharding of the weights.

    >>> import meshard
    >>> meshard.nn.initializers.zeros(meshard.random.key(0), (2,), "float32")
    Array([0., 0.], dtype=float32)
    """
    return create.zeros(shape, dtype=dtype, device=out_sharding)


def ones(
    key: ArrayLike, shape: Sequence[int], dtype: DtypeLike = None, out_sharding: DeviceLike = None
) -> Array:
    """Return weights that are one.

    Args:
        key: ignored; it is there because all initializers take one.
        shape: the shape.
        dtype: the dtype; by default the default float.
        out_sharding: the sharding of the weights.

    >>> import meshard
    >>> meshard.nn.initializers.ones(meshard.random.key(0), (2,), "float32")
    Array([1., 1.], dtype=float32)
    """
    return create.ones(shape, dtype=dtype, device=out_sharding)


def constant(value: ArrayLike, dtype: DtypeLike = None) -> Initializer:
    """Return an initializer whose weights are all the same value.

    Args:
        value: a number, or an array that broadcasts to the shape of the weights.
        dtype: the dtype of the weights; by default the default float.

    >>> import meshard
    >>> meshard.nn.initializers.constant(0.5)(meshard.random.key(0), (2,), "float32")
    Array([0.5, 0.5], dtype=float32)
    """
    return _initializer(
        "constant", dtype, lambda _, shape, kind, out: create.full(shape, value, kind, device=out)
    )


def uniform(scale: ArrayLike = 1e-2, dtype: DtypeLike = None) -> Initializer:
    """Return an initializer of weights from 0 to before ``scale``, all equally likely.

    Args:
        scale: the upper bound.
        dtype: the dtype of the weights; by default the default float.

    >>> import meshard
    >>> w = meshard.nn.initializers.uniform(10.0)(meshard.random.key(0), (1000,))
    >>> bool((w >= 0).all()), bool((w < 10).all()), round(w.mean().item())
    (True, True, 5)
    """
    return _initializer(
        "uniform",
        dtype,
        lambda key, shape, kind, out: _uniform(key, shape, kind, out) * _as(scale, kind),
    )


def _as(value: Any, kind: np.dtype[Any]) -> Any:
    return create.asarray(value, kind)


def _uniform(key: Any, shape: tuple[int, ...], kind: np.dtype[Any], out: Any) -> Any:
    """Return numbers from 0 to before 1; complex ones have an absolute value below 1."""
    if kind.kind != "c":
        return drawn.uniform(key, shape, kind, out_sharding=out)
    radius, turn = _two_reals(key, shape, kind, out)
    return (sqrt(radius) * exp(_as(2j * math.pi, kind) * turn)).astype(kind)


def _two_reals(key: Any, shape: tuple[int, ...], kind: np.dtype[Any], out: Any) -> tuple[Any, Any]:
    real = np.zeros(0, kind).real.dtype
    first, second = keys.split(key)
    return (
        drawn.uniform(first, shape, real, out_sharding=out),
        drawn.uniform(second, shape, real, out_sharding=out),
    )


def normal(stddev: ArrayLike = 1e-2, dtype: DtypeLike = None) -> Initializer:
    """Return an initializer of normal weights of mean 0.

    Args:
        stddev: the standard deviation.
        dtype: the dtype of the weights; by default the default float.

    >>> import meshard
    >>> w = meshard.nn.initializers.normal(2.0)(meshard.random.key(0), (10_000,))
    >>> round(w.std().item(), 1)
    2.0
    """
    return _initializer(
        "normal",
        dtype,
        lambda key, shape, kind, out: (
            drawn.normal(key, shape, kind, out_sharding=out) * _as(stddev, kind)
        ),
    )


def truncated_normal(
    stddev: ArrayLike = 1e-2,
    dtype: DtypeLike = None,
    lower: ArrayLike = -2.0,
    upper: ArrayLike = 2.0,
) -> Initializer:
    """Return an initializer of normal weights between two bounds.

    Args:
        stddev: what the bounded normal numbers are multiplied by; that of the weights is smaller,
            since their tails are cut off.
        dtype: the dtype of the weights, a float; by default the default float.
        lower: the least number before it is multiplied.
        upper: the greatest number before it is multiplied.

    >>> import meshard
    >>> w = meshard.nn.initializers.truncated_normal(3.0)(meshard.random.key(0), (1000,))
    >>> bool((abs(w) <= 6).all())
    True
    """
    return _initializer(
        "truncated_normal",
        dtype,
        lambda key, shape, kind, out: (
            distributions.truncated_normal(key, lower, upper, shape, kind, out_sharding=out)
            * _as(stddev, kind)
        ),
    )


def _truncated(key: Any, shape: tuple[int, ...], kind: np.dtype[Any], out: Any) -> Any:
    """Return normal numbers up to 2 in absolute value, scaled to a standard deviation of 1."""
    if kind.kind != "c":
        found = distributions.truncated_normal(key, -2, 2, shape, kind, out_sharding=out)
        return found / _as(_CUT, kind)
    radius, turn = _two_reals(key, shape, kind, out)
    radius = sqrt(-log(1 - (1 - math.exp(-4)) * radius)) / _CUT_COMPLEX
    return (radius * exp(_as(2j * math.pi, kind) * turn)).astype(kind)


def _centred(key: Any, shape: tuple[int, ...], kind: np.dtype[Any], out: Any) -> Any:
    """Return uniform numbers of mean 0 and standard deviation 1."""
    if kind.kind == "c":  # on the disk of radius 1 the mean of |x|^2 is 1/2
        return _uniform(key, shape, kind, out) * _as(math.sqrt(2), kind)
    return drawn.uniform(key, shape, kind, -1, out_sharding=out) * _as(math.sqrt(3), kind)


_DRAWN: dict[str, Draw] = {
    "truncated_normal": _truncated,
    "normal": lambda key, shape, kind, out: drawn.normal(key, shape, kind, out_sharding=out),
    "uniform": _centred,
}
_MODES: dict[str, Callable[[float, float], float]] = {
    "fan_in": lambda fan_in, _: fan_in,
    "fan_out": lambda _, fan_out: fan_out,
    "fan_avg": lambda fan_in, fan_out: (fan_in + fan_out) / 2,
    "fan_geo_avg": lambda fan_in, fan_out: math.sqrt(fan_in * fan_out),
}


def variance_scaling(
    scale: float,
    mode: Mode,
    distribution: Shape,
    in_axis: Axes = -2,
    out_axis: Axes = -1,
    batch_axis: Axes = (),
    dtype: DtypeLike = None,
) -> Initializer:
    """Return an initializer whose variance is ``scale / n``, where n follows from the shape.

    Args:
        scale: a positive factor of the variance.
        mode: what n is: ``"fan_in"``, the number of weights that one output depends on;
            ``"fan_out"``, the number of outputs that one input reaches; ``"fan_avg"``, their
            average; or ``"fan_geo_avg"``, their geometric average.
        distribution: ``"truncated_normal"`` (up to two standard deviations), ``"normal"`` or
            ``"uniform"``.
        in_axis: the dim or dims of the inputs.
        out_axis: the dim or dims of the outputs.
        batch_axis: dims that count as neither, and not as part of a convolution's window.
        dtype: the dtype of the weights; by default the default float.

    Raises:
        ArgumentError: if ``mode`` or ``distribution`` is another.
        ShapeError: when called, if the shape does not have these dims.

    >>> import meshard
    >>> init = meshard.nn.initializers.variance_scaling(1.0, "fan_in", "normal")
    >>> w = init(meshard.random.key(0), (400, 50))
    >>> round(w.std().item(), 2)  # 1 / sqrt(400)
    0.05
    """
    return _scaled("variance_scaling", scale, mode, distribution, (in_axis, out_axis, batch_axis))(
        dtype
    )


def _scaled(
    name: str, scale: float, mode: str, distribution: str, dims: tuple[Axes, Axes, Axes]
) -> Callable[[DtypeLike], Initializer]:
    what = f"nn.initializers.{name}"
    scale = number_of(scale, what, "scale")
    fan = _MODES[choice_of(mode, tuple(_MODES), what, "mode")]
    draw = _DRAWN[choice_of(distribution, tuple(_DRAWN), what, "distribution")]

    def weights(key: Any, shape: tuple[int, ...], kind: np.dtype[Any], out: Any) -> Any:
        count = fan(*_fans(shape, *dims, what))
        size = scale / count if count else 0.0
        return draw(key, shape, kind, out) * _as(math.sqrt(size), kind)

    return lambda dtype: _initializer(name, dtype, weights)


def _fans(
    shape: tuple[int, ...], in_axis: Axes, out_axis: Axes, batch_axis: Axes, what: str
) -> tuple[float, float]:
    """Return how many inputs an output depends on, and how many outputs an input reaches."""
    if isinstance(in_axis, int) and in_axis == -2 and len(shape) <= 1:
        raise ShapeError(
            f"{what}: the shape {shape} has {len(shape)} dims, so it does not say how many inputs "
            "and outputs there are. Give a shape of two dims at least, or in_axis and out_axis."
        )
    inputs, outputs, batch = (
        math.prod([shape[d] for d in normalised_axes(_axes(axes, what, name), len(shape), what)])
        for axes, name in ((in_axis, "in_axis"), (out_axis, "out_axis"), (batch_axis, "batch_axis"))
    )
    window = math.prod(shape) / (inputs * outputs * batch) if inputs * outputs * batch else 0.0
    return inputs * window, outputs * window


def _axes(given: Axes, what: str, name: str) -> tuple[int, ...]:
    if isinstance(given, Sequence):
        return tuple([integer_of(d, what, name) for d in items_of(given, what, name, "dims")])
    return (integer_of(given, what, name),)


_NAMED = {
    "glorot_uniform": (1.0, "fan_avg", "uniform", "Glorot and Bengio's uniform weights"),
    "glorot_normal": (1.0, "fan_avg", "truncated_normal", "Glorot and Bengio's normal weights"),
    "lecun_uniform": (1.0, "fan_in", "uniform", "LeCun's uniform weights"),
    "lecun_normal": (1.0, "fan_in", "truncated_normal", "LeCun's normal weights"),
    "he_uniform": (2.0, "fan_in", "uniform", "He's uniform weights"),
    "he_normal": (2.0, "fan_in", "truncated_normal", "He's normal weights"),
}


class _Named(Protocol):
    def __call__(
        self,
        in_axis: Axes = -2,
        out_axis: Axes = -1,
        batch_axis: Axes = (),
        dtype: DtypeLike = None,
    ) -> Initializer: ...


def _named(name: str) -> _Named:
    """Return one of the well-known choices of `variance_scaling`."""
    scale, mode, distribution, whose = _NAMED[name]

    def make(
        in_axis: Axes = -2,
        out_axis: Axes = -1,
        batch_axis: Axes = (),
        dtype: DtypeLike = None,
    ) -> Initializer:
        return _scaled(name, scale, mode, distribution, (in_axis, out_axis, batch_axis))(dtype)

    make.__name__ = make.__qualname__ = name
    make.__doc__ = f"""Return an initializer of {whose}.

    It is ``variance_scaling({scale}, "{mode}", "{distribution}")``.

    Args:
        in_axis: the dim or dims of the inputs.
        out_axis: the dim or dims of the outputs.
        batch_axis: dims that count as neither, and not as part of a convolution's window.
        dtype: the dtype of the weights; by default the default float.

    Raises:
        ShapeError: when called, if the shape does not have these dims.

    >>> import meshard
    >>> w = meshard.nn.initializers.{name}()(meshard.random.key(0), (400, 100))
    >>> round(w.std().item(), 3)
    {round(math.sqrt(scale / _MODES[mode](400, 100)), 3)}
    """
    return make


glorot_uniform = xavier_uniform = _named("glorot_uniform")
glorot_normal = xavier_normal = _named("glorot_normal")
lecun_uniform = _named("lecun_uniform")
lecun_normal = _named("lecun_normal")
he_uniform = kaiming_uniform = _named("he_uniform")
he_normal = kaiming_normal = _named("he_normal")


def orthogonal(
    scale: ArrayLike = 1.0, column_axis: int = -1, dtype: DtypeLike = None
) -> Initializer:
    """Return an initializer of matrices with orthonormal rows or columns, whichever are fewer.

    Args:
        scale: what the matrix is multiplied by.
        column_axis: the dim of the columns; the others together are the rows.
        dtype: the dtype of the weights; by default the default float.

    Raises:
        ShapeError: when called, if the shape has fewer than two dims.

    >>> import meshard, meshard.numpy as mnp
    >>> q = meshard.nn.initializers.orthogonal()(meshard.random.key(0), (5, 3))
    >>> bool(mnp.allclose(q.T @ q, mnp.eye(3)))
    True
    """
    column = integer_of(column_axis, "nn.initializers.orthogonal", "column_axis")

    def weights(key: Any, shape: tuple[int, ...], kind: np.dtype[Any], out: Any) -> Any:
        what = "nn.initializers.orthogonal"
        if len(shape) < 2:
            raise ShapeError(f"{what}: the shape {shape} must have two dims at least.")
        (at,) = normalised_axes(column, len(shape), what)
        columns, rows = shape[at], (*shape[:at], *shape[at + 1 :])
        if math.prod(shape) == 0:
            return create.zeros(shape, kind, device=out)
        found = choice.orthogonal(key, math.prod(rows), (), kind, columns)
        found = moveaxis(reshape(found, (*rows, columns)), -1, at) * _as(scale, kind)
        return found if out is None else create.asarray(found, device=out)

    return _initializer("orthogonal", dtype, weights)


def delta_orthogonal(
    scale: ArrayLike = 1.0, column_axis: int = -1, dtype: DtypeLike = None
) -> Initializer:
    """Return an initializer of convolutions that are orthogonal at the centre and zero elsewhere.

    Xiao et al., "Dynamical isometry and a mean field theory of CNNs", 2018
    (https://arxiv.org/abs/1806.05393).

    Args:
        scale: what the matrix at the centre is multiplied by.
        column_axis: the dim of the matrix at the centre that holds the columns.
        dtype: the dtype of the weights; by default the default float.

    Raises:
        ShapeError: when called, if the shape does not have three to five dims (those of the window,
            the inputs and the outputs), or has more inputs than outputs.

    >>> import meshard
    >>> w = meshard.nn.initializers.delta_orthogonal()(meshard.random.key(0), (3, 2, 2))
    >>> abs(w).sum(axis=(1, 2)).astype(bool).tolist()
    [False, True, False]
    """
    matrix = orthogonal(scale, column_axis)

    def weights(key: Any, shape: tuple[int, ...], kind: np.dtype[Any], out: Any) -> Any:
        what = "nn.initializers.delta_orthogonal"
        if len(shape) not in (3, 4, 5):
            raise ShapeError(f"{what}: the shape {shape} must have three, four or five dims.")
        if shape[-1] < shape[-2]:
            raise ShapeError(
                f"{what}: the shape {shape} has {shape[-2]} inputs and {shape[-1]} outputs; there "
                "must be as many outputs as inputs at least."
            )
        centre = tuple([(size - 1) // 2 for size in shape[:-2]])
        return create.zeros(shape, kind, device=out).at[centre].set(matrix(key, shape[-2:], kind))

    return _initializer("delta_orthogonal", dtype, weights)
