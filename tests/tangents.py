"""The laws of derivatives, for any function of arrays: what each test of them checks.

The pairing of tangents and cotangents is ``Re(sum(g * t))``, without a conjugate, as in JAX.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from meshard.errors import DerivativeError
from meshard.transforms.derivatives.functions import jvp, vjp
from tests.worlds import whole

Function = Callable[..., Sequence[Any]]
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = [np.dtype(d) for d in ("f2", "f4", "f8", "c8", "c16")] + [BFLOAT16]
PRECISION = {np.dtype("f2"): 2e-2, BFLOAT16: 1e-1, np.dtype("f4"): 2e-4, np.dtype("c8"): 2e-4}


def precision(*values: Any) -> float:
    """Return how far apart results may be: by the coarsest dtype."""
    return max([PRECISION.get(x.dtype, 1e-9) for x in values], default=1e-9)


def moves(x: Any) -> bool:
    """Whether a value can change smoothly."""
    return isinstance(x, np.ndarray) and (x.dtype.kind in "fc" or x.dtype == BFLOAT16)


def moves_type(x: Any) -> bool:
    """Whether values of a type can change smoothly."""
    return np.dtype(x.dtype).kind in "fc" or x.dtype == BFLOAT16


def drawn(like: Any, rng: np.random.Generator, low: float = -1.0, high: float = 1.0) -> Any:
    """Return random values of a type; of complex ones both parts."""
    dtype, shape = np.dtype(like.dtype), tuple(like.shape)
    value: Any = rng.uniform(low, high, shape)
    if dtype.kind == "c":
        value = value + 1j * rng.uniform(low, high, shape)
    return np.asarray(value).astype(dtype)


def pairing(some: Sequence[Any], others: Sequence[Any]) -> tuple[float, float]:
    """Return ``Re(sum(g * t))`` of all pairs, and the sum of all sizes."""
    value = size = 0.0
    for a, b in zip(some, others, strict=True):
        wide = np.dtype("c16") if a.dtype.kind == "c" else np.dtype("f8")
        product = a.astype(wide) * b.astype(wide)
        value, size = value + product.sum().real, size + np.abs(product).sum()
    return float(value), float(size)


@dataclass(frozen=True)
class Both:
    """A function's derivative both ways, at one place: all as NumPy arrays.

    Attributes:
        values: the arguments that move.
        results: the results that do.
        tangents: the tangents of the arguments.
        pushed: those of the results.
        cotangents: the cotangents of the results.
        pulled: those of the arguments.
    """

    values: list[Any]
    results: list[Any]
    tangents: list[Any]
    pushed: list[Any]
    cotangents: list[Any]
    pulled: list[Any]


def both_ways(
    f: Function,
    values: Sequence[Any],
    rng: np.random.Generator,
    put: Callable[[Any], Any] = lambda x: x,
    fixed: Container[int] = (),
) -> Both:
    """Push random tangents through a function and pull random cotangents back.

    Args:
        f: from values to values.
        values: NumPy arrays and numbers; floats and complex ones are differentiated.
        rng: what tangents are drawn from.
        put: lays an array out.
        fixed: the values that stay.
    """
    places = [i for i, x in enumerate(values) if moves(x) and i not in fixed]
    given = [put(x) if isinstance(x, np.ndarray) else x for x in values]

    def moving(*own: Any) -> list[Any]:
        every = list(given)
        for i, x in zip(places, own, strict=True):
            every[i] = x
        return [y for y in f(*every) if moves_type(y)]

    primals = [given[i] for i in places]
    tangents = [drawn(values[i], rng) for i in places]
    again, back = vjp(moving, *primals)
    try:
        results, pushed = jvp(moving, primals, [put(t) for t in tangents])
    except DerivativeError:
        with pytest.raises(DerivativeError):  # what is refused is refused both ways
            back([put(drawn(y, rng)) for y in again])
        raise
    for a, b in zip(results, again, strict=True):
        np.testing.assert_array_equal(whole(a), whole(b), "jvp and vjp give other results")
    cotangents = [drawn(y, rng) for y in results]
    pulled = back([put(g) for g in cotangents])
    found = Both(
        [values[i] for i in places],
        [whole(y) for y in results],
        tangents,
        [whole(t) for t in pushed],
        cotangents,
        [whole(g) for g in pulled],
    )
    for t, y in zip(found.pushed, found.results, strict=True):
        assert (t.shape, t.dtype) == (y.shape, y.dtype), (
            f"a tangent {t.dtype}{t.shape} of {y.dtype}{y.shape}"
        )
    for g, x in zip(found.pulled, found.values, strict=True):
        assert (g.shape, g.dtype) == (x.shape, x.dtype), (
            f"a cotangent {g.dtype}{g.shape} of {x.dtype}{x.shape}"
        )
    return found


def check_adjoint(found: Both) -> None:
    """Check that ``<g, J t>`` is ``<J^T g, t>``."""
    one, size = pairing(found.cotangents, found.pushed)
    other, more = pairing(found.pulled, found.tangents)
    if not np.isfinite(size + more) and any(x.dtype.itemsize == 2 for x in found.values):
        return  # too large for a short float
    allowed = precision(*found.values, *found.results) * (size + more) + 1e-12
    assert abs(one - other) <= allowed, f"<g, J t> = {one}, but <J^T g, t> = {other}"


STEP = 1e-6


def check_differences(
    f: Function, values: Sequence[Any], found: Both, fixed: Container[int] = ()
) -> None:
    """Check the tangents of results against central finite differences."""

    def moved(step: float) -> list[Any]:
        tangents = iter(found.tangents)
        given = [
            x + step * next(tangents) if moves(x) and i not in fixed else x
            for i, x in enumerate(values)
        ]
        results = [whole(y) for y in f(*given)]
        return [y for y in results if moves(y)]

    for after, before, t in zip(moved(STEP), moved(-STEP), found.pushed, strict=True):
        slope = (after - before) / (2 * STEP)
        scale = 1 + np.abs(slope)
        worst = np.max(np.abs(slope - t) / scale, initial=0)
        assert worst <= 1e-5, f"differences give {slope}, the derivative is {t}"
