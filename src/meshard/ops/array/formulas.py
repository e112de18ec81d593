"""Formulas of elementwise operations, that NumPy and compilers compute alike.

In: a namespace of elementwise operations and values; for `computed` blocks of float32. Out: the
logistic function, and the error function of float32. The formulas name elementwise operations only,
so that whoever computes them has the same bits.

The error function is computed in float64 and rounded once: within 0.51 units in the last place.
SciPy's functions take ten times as long, since they go element by element. The tail is
``erfc(z) = t exp(-z^2) p(2 t - 1)`` with ``t = 2 / (2 + z)``, as in Press et al., "Numerical
Recipes", 6.2.2, but with a polynomial for the factor instead of the exponent. Both polynomials are
fits at Chebyshev's nodes, with relative errors below 2e-10 and 2e-11.

Elementwise kernels of several steps, run on a few elements at a time.

In: a kernel that makes temporaries. Out: one that also takes ``out=``, as ufuncs do, and fills that
in pieces, so that what the steps pass on stays in the cache, and no large temporary is made. And
copies of what is repeated, made of pieces that grow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

from meshard.runtime.types import Block
from meshard.tuning import CACHE_PIECE, KERNEL_PIECE

_TAIL = (
    1.499654763849645e-06,
    2.6572569669923155e-06,
    -1.3751658463069954e-05,
    -9.963213020977383e-06,
    7.488686989998875e-05,
    -2.2157171323587178e-05,
    -0.00033300058914575813,
    0.00042054382850331674,
    0.0015457594019482807,
    -0.0032399660779599783,
    -0.010755400721168219,
    0.01822114816148148,
    0.13973605038946038,
    0.3435803414008093,
    0.5107913525811233,
)
"""Coefficients of the factor of the tail, in 2 t - 1, the highest power first."""
_NEAR = (
    -0.0007692331735811722,
    0.0052002756029381645,
    -0.026863112687293623,
    0.11283773740680199,
    -0.37612638517067515,
    1.1283791670819752,
)
"""Coefficients of erf(x) / x in x^2 for x up to a half, the highest power first."""
_PIECE = 1 << 15
"""Elements that are computed at a time: with fewer, the workers wait for Python's lock."""


def polynomial(ops: Any, coefficients: Sequence[float], x: Any) -> Any:
    """Return a polynomial by Horner's rule, given the coefficients from the highest power on."""
    found = ops.add(ops.multiply(x, coefficients[0]), coefficients[1])
    if ops is np and np.ndim(found):
        for c in coefficients[2:]:  # the same, without temporaries
            found *= x
            found += c
        return found
    for c in coefficients[2:]:
        found = ops.add(ops.multiply(found, x), c)
    return found


def logistic_formula(ops: Any, x: Any) -> Any:
    """Return 1 / (1 + exp(-x)) of a float, without overflow, so that it may be multiplied by x."""
    ease = ops.exp(ops.negative(ops.absolute(x)))
    return ops.divide(ops.where(ops.less(x, 0), ease, 1), ops.add(ease, 1))


def _tail(ops: Any, z: Any) -> Any:
    t = ops.divide(2.0, ops.add(z, 2.0))
    factor = polynomial(ops, _TAIL, ops.subtract(ops.multiply(t, 2.0), 1.0))
    return ops.multiply(ops.multiply(factor, t), ops.exp(ops.negative(ops.multiply(z, z))))


def erfc_formula(ops: Any, x: Any) -> Any:
    """Return 1 - erf(x), given a namespace of elementwise operations and x in float64."""
    tail = _tail(ops, ops.absolute(x))
    return ops.where(ops.less(x, 0.0), ops.subtract(2.0, tail), tail)


def erf_formula(ops: Any, x: Any) -> Any:
    """Return erf(x), given a namespace of elementwise operations and x in float64."""
    size = ops.absolute(x)
    far = ops.copysign(ops.subtract(1.0, _tail(ops, size)), x)
    near = ops.multiply(x, polynomial(ops, _NEAR, ops.minimum(ops.multiply(x, x), 0.25)))
    return ops.where(ops.less(size, 0.5), near, far)


FORMULAS: dict[str, Callable[[Any, Any], Any]] = {"erf": erf_formula, "erfc": erfc_formula}
"""Rows that are computed in float64 for float32, and their formulas."""


def computed(name: str, x: Block, out: Block | None) -> Block:
    """Return what a formula gives for a block of float32, a few elements at a time."""
    formula = FORMULAS[name]
    found = np.empty(x.shape, np.float32) if out is None else out
    source = np.ascontiguousarray(x).reshape(-1)
    target = found.reshape(-1) if found.flags.c_contiguous else np.empty(source.shape, np.float32)
    for start in range(0, source.size, _PIECE):
        piece = slice(start, start + _PIECE)
        target[piece] = formula(np, source[piece].astype(np.float64))
    if not found.flags.c_contiguous:
        found[...] = target.reshape(found.shape)
    return found


def in_pieces(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel like a given one that may write its result to ``out``.

    Args:
        kernel: from blocks that broadcast, and parameters, to a block; elementwise.
    """

    @wraps(kernel)
    def in_pieces_of(*blocks: Any, out: Block | None = None, **params: Any) -> Any:
        if out is None:
            return kernel(*blocks, **params)
        if out.nbytes <= KERNEL_PIECE or not out.ndim:
            out[...] = kernel(*blocks, **params)
            return out
        whole, flat = out, list(blocks)
        if all(_is_straight(x, out.shape) for x in (out, *blocks)):
            whole = out.reshape(-1)
            flat = [x.reshape(-1) if np.ndim(x) else x for x in blocks]
        _fill(kernel, flat, whole, params)
        return out

    return in_pieces_of


def _is_straight(x: Any, shape: tuple[int, ...]) -> bool:
    return not np.ndim(x) or (x.shape == shape and x.flags.c_contiguous)


def _fill(
    kernel: Callable[..., Any], blocks: list[Any], out: Block, params: dict[str, Any]
) -> None:
    """Fill a block along its first dim."""
    n = len(out)
    step = max(1, KERNEL_PIECE * n // out.nbytes)
    along = [np.ndim(x) == out.ndim and x.shape[0] == n for x in blocks]
    for start in range(0, n, step):
        piece = slice(start, start + step)
        given = [x[piece] if cut else x for x, cut in zip(blocks, along, strict=True)]
        out[piece] = kernel(*given, **params)


_OFTEN = 16
"""Repetitions from which copying what was copied before is quicker than NumPy's own way."""


def repeated_copy(x: Block) -> Block:
    """Return a broadcast block as one with an element for each position; others unchanged.

    NumPy copies each repetition by itself, which takes long where they are short. Here as many are
    copied at once as have been made, up to what the cache holds.
    """
    repeated = [
        d for d, (n, s) in enumerate(zip(x.shape, x.strides, strict=True)) if n > 1 and not s
    ]
    if not repeated or x.shape[repeated[0]] < _OFTEN or not x.size:
        return x
    dim = repeated[0]
    outer = 1
    for n in x.shape[:dim]:
        outer *= n
    inner = x.nbytes // x.shape[dim] // outer
    if outer > _OFTEN or inner >= CACHE_PIECE:
        return x
    out = np.empty(x.shape, x.dtype)
    head = (slice(None),) * dim
    out[(*head, slice(0, 1))] = x[(*head, slice(0, 1))]
    done, most, n = 1, max(1, CACHE_PIECE // inner), x.shape[dim]
    while done < n:
        more = min(done, most, n - done)
        out[(*head, slice(done, done + more))] = out[(*head, slice(0, more))]
        done += more
    return out
