"""Special functions of ``jax.lax``: incomplete gamma and beta functions, zeta, Bessel functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import meshard.ops.random.gamma_slope  # noqa: F401  (its row is bound below)
from meshard.ops.array.formulas import in_pieces
from meshard.ops.dtypes.laws import SMALL_FLOATS
from meshard.ops.lax.table import named
from meshard.ops.row import Op, register
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.types import ArrayLike

_SHAPES = "the shape of the distribution, an array or a number above 0."
_ORDER = "the order, an array or a number: integers that are not negative."
_X = "an array or a number."


def _of_scipy(name: str) -> Callable[..., Any]:
    """Return a function of scipy.special, imported at first use."""

    def function(*blocks: Any) -> Any:
        import scipy.special

        return getattr(scipy.special, name)(*blocks)

    return function


def _kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel that calls a function, with float32 at least."""

    def kernel(*blocks: Any) -> Any:
        dtypes = [x.dtype for x in blocks if hasattr(x, "dtype")]
        short = [d for d in dtypes if d in SMALL_FLOATS or d == np.float16]
        wide = [x.astype(np.float32) if getattr(x, "dtype", None) in short else x for x in blocks]
        found = function(*wide)
        return found.astype(short[0]) if short and len(short) == len(dtypes) else found

    return kernel


def _polygamma(m: Any, x: Any) -> Any:
    from scipy.special import digamma, gamma, zeta

    order, x = np.asarray(m), np.asarray(x)
    order = order.astype(np.result_type(order, x)) + 1
    found = np.where(order % 2 == 0, 1, -1) * gamma(order) * zeta(order, x)
    return np.where(order == 1, digamma(x), found).astype(order.dtype)


_ROWS: tuple[tuple[str, Any, int], ...] = (
    ("igamma", _of_scipy("gammainc"), 2),
    ("igammac", _of_scipy("gammaincc"), 2),
    ("betainc", _of_scipy("betainc"), 3),
    ("zeta", _of_scipy("zeta"), 2),
    ("polygamma", _polygamma, 2),
    ("bessel_i0e", _of_scipy("i0e"), 1),
    ("bessel_i1e", _of_scipy("i1e"), 1),
)
for _name, _function, _count in _ROWS:
    _rule = f"{', '.join(['...'] * _count)} -> ..."
    register(Op(_name, _rule, in_pieces(_kernel(_function)), style="ufunc"))


@named("lax.igamma(1.0, mnp.zeros(2)).tolist()", "[0.0, 0.0]", a=_SHAPES, x=_X)
def igamma(a: ArrayLike, x: ArrayLike) -> Array:
    """Return the regularized lower incomplete gamma function."""
    return bind("igamma", a, x)


@named("lax.igammac(1.0, mnp.zeros(2)).tolist()", "[1.0, 1.0]", a=_SHAPES, x=_X)
def igammac(a: ArrayLike, x: ArrayLike) -> Array:
    """Return the regularized upper incomplete gamma function."""
    return bind("igammac", a, x)


@named("lax.betainc(1.0, 1.0, mnp.ones(2)).tolist()", "[1.0, 1.0]", a=_SHAPES, b=_SHAPES, x=_X)
def betainc(a: ArrayLike, b: ArrayLike, x: ArrayLike) -> Array:
    """Return the regularized incomplete beta function; its derivative is that by ``x`` alone."""
    return bind("betainc", a, b, x)


@named("mnp.round(lax.zeta(2.0, mnp.ones(2)), 4).tolist()", "[1.6449, 1.6449]", x=_X, q=_X)
def zeta(x: ArrayLike, q: ArrayLike) -> Array:
    """Return the zeta function of Hurwitz; its derivative is that by ``q`` alone."""
    return bind("zeta", x, q)


@named("mnp.round(lax.polygamma(1, mnp.ones(2)), 4).tolist()", "[1.6449, 1.6449]", m=_ORDER, x=_X)
def polygamma(m: ArrayLike, x: ArrayLike) -> Array:
    """Return derivatives of `digamma`."""
    return bind("polygamma", m, x)


@named("lax.bessel_i0e(mnp.zeros(2)).tolist()", "[1.0, 1.0]", x=_X)
def bessel_i0e(x: ArrayLike) -> Array:
    """Return the modified Bessel function of order 0, times exp(-abs(x))."""
    return bind("bessel_i0e", x)


@named("lax.bessel_i1e(mnp.zeros(2)).tolist()", "[0.0, 0.0]", x=_X)
def bessel_i1e(x: ArrayLike) -> Array:
    """Return the modified Bessel function of order 1, times exp(-abs(x))."""
    return bind("bessel_i1e", x)


@named("lax.random_gamma_grad(1.0, mnp.zeros(2)).tolist()", "[0.0, 0.0]", a=_SHAPES, x=_X)
def random_gamma_grad(a: ArrayLike, x: ArrayLike) -> Array:
    """Return how gamma numbers ``x`` follow the shape of their distribution."""
    some = bind("greater", x, 0)
    slope = bind("random_gamma_slope", bind("log", bind("where", some, x, 1.0)), a)
    return bind("where", some, bind("multiply", x, slope), 0.0)
