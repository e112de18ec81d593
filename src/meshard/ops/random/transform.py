"""Distributions as functions of uniform numbers: one function, two ways to run it.

With constant parameters the function runs while each tile is drawn. With arrays as parameters it is
an elementwise row on uniform numbers that are drawn where the parameters lie. Both give the same
numbers, so that it does not matter whether a parameter is a Python number, an array, or traced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from meshard.algebra.abstract import Sharding
from meshard.algebra.arguments import shape_of
from meshard.algebra.sharding import NamedSharding, SingleDeviceSharding
from meshard.algebra.spec import PartitionSpec
from meshard.errors import ArgumentError, DtypeError, ShapeError
from meshard.ops.engine.concrete import is_array, is_traced
from meshard.ops.engine.dtypes import as_dtype, is_float
from meshard.ops.engine.later import layouts_known, when_laid_out
from meshard.ops.engine.row import Dtype, Op, Operand, Params, register
from meshard.ops.random.basic import open_uniform
from meshard.ops.random.drawing import Draw, drawn, refuse_place, register_sampler
from meshard.runtime.array.traced import Traced
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array, as_sharding, placed
from meshard.runtime.types import Block, dtype_name

_DRAWS: dict[str, int] = {}
"""For each transform the uniform numbers that one element takes; written at import."""


def _cast(values: Any, dtype: Dtype) -> Block:
    """Convert computed float64 numbers; to integers with the ends of their range as limits."""
    found = np.asarray(values)
    if dtype.kind not in "iu" or found.dtype.kind != "f":
        return found.astype(dtype, copy=False)
    info = np.iinfo(dtype)
    whole = found.astype(dtype)
    whole = np.where(found >= float(info.max), info.max, whole)
    return np.where(found <= float(info.min), info.min, whole).astype(dtype, copy=False)


def elementwise_row(name: str, function: Callable[..., Any], arity: int) -> None:
    """Add an elementwise row whose results have the dtype of the parameter ``dtype``."""

    def kernel(*operands: Any, dtype: Dtype) -> Block:
        with np.errstate(all="ignore"):
            return _cast(function(*operands), dtype)

    def law(operands: Sequence[Operand], params: Params) -> tuple[Dtype, ...]:
        return (params["dtype"],)

    register(Op(f"random_{name}", ", ".join(["..."] * arity) + " -> ...", kernel, dtypes=law))


def register_transform(
    name: str, function: Callable[..., Any], parameters: int, draws: int = 1
) -> None:
    """Add a distribution: a function of ``draws`` uniform numbers and of its parameters."""

    def sampler(draw: Draw, out: Block, *constants: float) -> None:
        numbers = [open_uniform(draw.words(out.size, i)) for i in range(draws)]
        out[...] = _cast(function(*numbers, *constants), out.dtype)

    _DRAWS[name] = draws
    register_sampler(name, sampler)
    if parameters:  # which may be arrays
        elementwise_row(f"{name}_of", function, draws + parameters)


def parameter(what: str, name: str, given: Any) -> Any:
    """Return a distribution's parameter: a Python float, or an array of real numbers.

    Raises:
        DtypeError: if it is no real number.
    """
    if isinstance(given, (int, float, np.integer, np.floating, np.bool_)):
        return float(given)
    try:
        x = as_array(given)
    except DtypeError as error:
        raise DtypeError(
            f"{what}: {name} must be a real number or an array of such; {error}"
        ) from (error)
    if x.dtype.kind not in "biu" and not is_float(x.dtype):
        raise DtypeError(
            f"{what}: {name} must be a real number or an array of such; its dtype is "
            f"{dtype_name(x.dtype)}."
        )
    return x


def result_shape(what: str, shape: Any, parameters: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the shape asked for, or that of the parameters together.

    Raises:
        ShapeError: if the parameters do not broadcast to it.
    """
    shapes = {n: tuple(p.shape) for n, p in parameters.items() if not isinstance(p, float)}
    sizes = None if shape is None else shape_of(shape, what)
    given = list(shapes.values()) + ([] if sizes is None else [sizes])
    try:
        found = np.broadcast_shapes(*given)
    except ValueError:
        found = None
    if found is None or (sizes is not None and found != sizes):
        listed = ", ".join(f"{n} has {s}" for n, s in shapes.items())
        asked = "" if sizes is None else f" and shape={sizes} is asked for"
        raise ShapeError(
            f"{what}: incompatible shapes for broadcasting: {listed}{asked}. The parameters must "
            "broadcast to the result's shape."
        )
    return found


def like(key: Any, shape: tuple[int, ...], *parameters: Any) -> Sharding | None:
    """Return where numbers are best drawn that meet parameters: as the largest of them lies."""
    if is_traced(key, *parameters) and not layouts_known():
        return None
    arrays = [p for p in parameters if is_array(p) and p.committed and p.ndim and p.size > 1]
    for x in sorted(arrays, key=lambda p: -p.size):
        place: Sharding = x.sharding
        if x.shape == shape:
            return place
        lead = len(shape) - x.ndim
        if isinstance(place, NamedSharding) and x.shape == shape[lead:]:
            uneven = place.uneven
            entries = (*[()] * lead, *place.spec.axes(x.ndim))
            if uneven is None or isinstance(uneven, str):
                return NamedSharding(place.mesh, PartitionSpec(*entries), uneven=uneven)
    return None


def arranged(what: str, place: Any, rank: int, order: Sequence[int | None]) -> Sharding | None:
    """Return where an array is best computed with that becomes a result lying as asked.

    Args:
        what: the function, for messages.
        place: how the result is asked to lie.
        rank: the result's number of dims.
        order: for each dim of the array the dim of the result that it lies like; None for whole.
    """
    sharding = as_sharding(place, what)
    if not isinstance(sharding, NamedSharding):
        return sharding if isinstance(sharding, SingleDeviceSharding) else None
    axes, uneven = sharding.spec.axes(rank), sharding.uneven
    if isinstance(uneven, tuple):
        cuts = (*uneven, *[None] * rank)
        uneven = tuple([None if d is None else cuts[d] for d in order])
    spec = PartitionSpec(*[() if d is None else axes[d] for d in order])
    return NamedSharding(sharding.mesh, spec, uneven=uneven)


def uniforms(what: str, key: Any, shape: tuple[int, ...], place: Any, part: int = 0) -> Any:
    """Draw float64 numbers strictly between 0 and 1."""
    return drawn(what, key, "open", shape, np.dtype(np.float64), place, (part,))


def finished(what: str, result: Any, place: Any) -> Any:
    """Return a computed result laid out as asked."""
    if place is None:
        return result
    if isinstance(result, Traced):
        refuse_place(what, place)
    return placed(result, as_sharding(place, what))


def transformed(
    what: str,
    key: Any,
    parameters: Mapping[str, Any],
    shape: Any,
    dtype: Dtype,
    place: Any,
) -> Any:
    """Draw from the transform named ``what``.

    Args:
        what: the function's name, which is the transform's.
        key: one key.
        parameters: the distribution's parameters by name, in the transform's order.
        shape: the result's shape; None for that of the parameters.
        dtype: the result's dtype.
        place: how the result lies.
    """
    values = {n: parameter(what, n, p) for n, p in parameters.items()}
    sizes = result_shape(what, shape, values)
    if all(isinstance(v, float) for v in values.values()):
        return drawn(what, key, what, sizes, dtype, place, tuple(values.values()))
    if is_traced(*values.values()):
        refuse_place(what, place)
    if place is not None:
        place = as_sharding(place, what)
    made = partial(_transform, what, sizes, dtype, place)
    return when_laid_out(what, made, key, *values.values())


def _transform(
    what: str, sizes: tuple[int, ...], dtype: Dtype, place: Any, key: Any, *values: Any
) -> Any:
    """Draw what a transform needs where the result lies best, and transform it."""
    where = place if place is not None else like(key, sizes, *values)
    numbers = [uniforms(what, key, sizes, where, i) for i in range(_DRAWS[what])]
    result = bind(f"random_{what}_of", *numbers, *values, dtype=dtype)
    return finished(what, result, place)


def integer_dtype(dtype: Any, what: str) -> Dtype:
    """Return the dtype of an integer result, int64 by default.

    Raises:
        ArgumentError: if it is of another kind.
    """
    wanted = np.dtype(np.int64) if dtype is None else as_dtype(dtype)
    if wanted.kind not in "iu":
        raise ArgumentError(f"dtype argument to {what} must be an int dtype, got {wanted.name}.")
    return wanted
