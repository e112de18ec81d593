"""Special functions of ``lax``, their values and derivatives, beside JAX."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard import lax
from meshard.errors import DerivativeError

A = np.array([0.05, 0.5, 1.0, 2.5, 10.0, 80.0])
X = np.array([0.3, 0.2, 1.7, 2.0, 14.0, 75.0])
SMALL = np.array([0.1, 0.3, 0.5, 0.9, 0.99, 0.01])
Z = np.array([-30.0, -2.0, 0.0, 0.5, 3.0, 100.0])
# name: arguments, and those with derivatives
CASES: dict[str, tuple[tuple[Any, ...], tuple[int, ...]]] = {
    "igamma": ((A, X), (0, 1)),
    "igammac": ((A, X), (0, 1)),
    "betainc": ((A, X, SMALL), (2,)),
    "zeta": ((A + 1.2, X), ()),
    "polygamma": ((np.array([0.0, 1.0, 2.0, 3.0, 1.0, 0.0]), X), (1,)),
    "bessel_i0e": ((Z,), (0,)),
    "bessel_i1e": ((Z,), (0,)),
    "random_gamma_grad": ((A, X), ()),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_derivatives_are_those_of_jax(name: str, jax: ModuleType) -> None:
    args, moving = CASES[name]
    own = getattr(lax, name)
    given = [mnp.asarray(x) for x in args]

    def total(f: Any) -> Any:
        return lambda *x: f(*x).sum()

    with jax.enable_x64(True):
        theirs, others = getattr(jax.lax, name), [jax.numpy.asarray(x) for x in args]
        pairs = [(own(*given), np.asarray(theirs(*others)))]
        for i in moving:
            slope = np.asarray(jax.grad(total(theirs), i)(*others))
            pairs.append((meshard.grad(total(own), i)(*given), slope))
            pairs.append((meshard.jit(meshard.grad(total(own), i))(*given), slope))
    for a, b in pairs:
        np.testing.assert_allclose(a, np.asarray(b), rtol=2e-9, atol=1e-300)


def test_the_slope_of_zeta_is_that_of_differences() -> None:
    """JAX has none."""
    x, q, h = mnp.asarray(A + 1.2), mnp.asarray(X), 1e-6
    near = (lax.zeta(x, q + h) - lax.zeta(x, q - h)) / (2 * h)
    found = meshard.grad(lambda q: lax.zeta(x, q).sum())(q)
    np.testing.assert_allclose(found, near, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize(("name", "place"), [("betainc", 0), ("betainc", 1), ("zeta", 0)])
def test_derivatives_that_are_not_known_are_refused(name: str, place: int) -> None:
    args, _ = CASES[name]
    with pytest.raises(DerivativeError, match=f"{name} has no derivative with respect to"):
        meshard.grad(lambda *x: getattr(lax, name)(*x).sum(), place)(*args)


@pytest.mark.parametrize("dtype", ["float32", "float16", ml_dtypes.bfloat16])
def test_short_floats_keep_their_dtype(dtype: Any) -> None:
    for name, (args, moving) in CASES.items():
        given = [mnp.asarray(x).astype(dtype) for x in args]
        found = getattr(lax, name)(*given)
        assert found.dtype == np.dtype(dtype), name
        for i in moving:
            slope = meshard.grad(lambda *x: getattr(lax, name)(*x).sum(), i)(*given)  # noqa: B023
            assert slope.dtype == np.dtype(dtype), name
