"""Transcendental functions as polynomials, for ``jit_math = "fast"``: within 2 ulp, without NumPy.

In: a namespace of elementwise operations, and a value of float32 or float64. Out: formulas that
compile into the loops around them, where NumPy's own loops would need the values side by side. The
polynomials are those of Moshier's Cephes Mathematical Library 2.8 (expf.c, exp.c, logf.c, tanhf.c,
tanh.c). `two_to`, `exponent` and `fraction` are operations on the bits of floats (`templates`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshard.ops.array.formulas import polynomial

_LOG2E = 1.4426950408889634
_EXP = (
    *(1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3),
    *(4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1),
)
_EXP_P = (1.26177193074810590878e-4, 3.02994407707441961300e-2, 9.99999999999999999910e-1)
_EXP_Q = (
    *(3.00198505138664455042e-6, 2.52448340349684104192e-3),
    *(2.27265548208155028766e-1, 2.00000000000000000009e0),
)
_PARTS = {4: (0.693359375, -2.12194440e-4), 8: (6.93145751953125e-1, 1.42860682030941723212e-6)}
"""The logarithm of 2 in two parts, of which the first has few digits."""
_RANGE = {4: (-104.5, 89.0), 8: (-746.0, 710.0)}
"""Where the exponential is neither zero nor infinite, and a little more."""
_LOG = (
    *(7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1),
    *(-1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1),
)
_TANH = (
    *(-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2),
    *(1.33314422036e-1, -3.33332819422e-1),
)
_TANH_P = (-9.64399179425052238628e-1, -9.92877231001918586564e1, -1.61468768441708447952e3)
_TANH_Q = (1.0, 1.12811678491632931402e2, 2.23548839060100448583e3, 4.84406305325125486048e3)


def exp(ops: Any, x: Any) -> Any:
    """Return e to the power of x: a power of two times that of a remainder below log(2) / 2."""
    size = x.dtype.itemsize
    low, high = _RANGE[size]
    x = ops.where(ops.less(x, low), low, ops.where(ops.greater(x, high), high, x))
    n = ops.floor(ops.add(ops.multiply(x, _LOG2E), 0.5))
    first, second = _PARTS[size]
    r = ops.subtract(ops.subtract(x, ops.multiply(n, first)), ops.multiply(n, second))
    square = ops.multiply(r, r)
    if size == 4:
        found = ops.multiply(polynomial(ops, _EXP, r), square)
        found = ops.add(ops.add(found, r), 1.0)
    else:
        top = ops.multiply(r, polynomial(ops, _EXP_P, square))
        rest = ops.divide(top, ops.subtract(polynomial(ops, _EXP_Q, square), top))
        found = ops.add(ops.multiply(rest, 2.0), 1.0)
    # In two steps, since neither of them must leave the range of exponents.
    half = ops.floor(ops.multiply(n, 0.5))
    found = ops.multiply(found, ops.two_to(half))
    return ops.multiply(found, ops.two_to(ops.subtract(n, half)))


def log(ops: Any, x: Any) -> Any:
    """Return the natural logarithm of a float32."""
    tiny = ops.less(x, float(np.finfo(np.float32).tiny))
    scaled = ops.where(tiny, ops.multiply(x, 8388608.0), x)
    n = ops.exponent(scaled)
    n = ops.where(tiny, ops.subtract(n, 23.0), n)
    m = ops.fraction(scaled)  # in [1/2, 1)
    below = ops.less(m, 0.70710678118654752440)
    n = ops.where(below, ops.subtract(n, 1.0), n)
    m = ops.subtract(ops.where(below, ops.add(m, m), m), 1.0)
    square = ops.multiply(m, m)
    y = ops.multiply(ops.multiply(polynomial(ops, _LOG, m), m), square)
    first, second = _PARTS[4]
    y = ops.add(y, ops.multiply(n, second))
    y = ops.subtract(y, ops.multiply(square, 0.5))
    found = ops.add(ops.add(m, y), ops.multiply(n, first))
    found = ops.where(ops.equal(x, np.inf), np.inf, found)
    found = ops.where(ops.equal(x, 0.0), -np.inf, found)
    return ops.where(ops.less(x, 0.0), np.nan, ops.where(ops.isnan(x), x, found))


def tanh(ops: Any, x: Any) -> Any:
    """Return the hyperbolic tangent."""
    size = ops.absolute(x)
    ease = exp(ops, ops.multiply(size, -2.0))
    far = ops.divide(ops.subtract(1.0, ease), ops.add(ease, 1.0))
    square = ops.multiply(x, x)
    if x.dtype.itemsize == 4:
        near = ops.multiply(polynomial(ops, _TANH, square), square)
    else:
        under = polynomial(ops, _TANH_Q, square)
        near = ops.multiply(ops.divide(polynomial(ops, _TANH_P, square), under), square)
    near = ops.add(ops.multiply(near, x), x)
    return ops.where(ops.less(size, 0.625), near, ops.copysign(far, x))


FAST: dict[tuple[str, str], Callable[[Any, Any], Any]] = {
    ("exp", "f"): exp,
    ("exp", "d"): exp,
    ("log", "f"): log,
    ("tanh", "f"): tanh,
    ("tanh", "d"): tanh,
}
"""By the ufunc and the dtype's character."""
