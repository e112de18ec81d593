"""Polynomials as NumPy's functions have them: coefficients, the highest power first."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshard.errors import ArgumentError, ShapeError
from meshard.ops.array.create import eye, full, full_like, zeros
from meshard.ops.array.join import concatenate
from meshard.ops.array.patterns import vander
from meshard.ops.array.shape import atleast_1d, matrix_transpose, reshape
from meshard.ops.checked import checked
from meshard.ops.dtypes.laws import common_dtype, default_float, is_whole
from meshard.ops.engine.later import concrete, is_traced, when_laid_out
from meshard.ops.linalg.contract import matmul
from meshard.ops.linalg.decompose import eigvals, inv
from meshard.ops.linalg.functions import lstsq
from meshard.ops.made.editing import trim_zeros
from meshard.ops.made.signals import convolve
from meshard.ops.reductions.reduce import sum as sum_
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array
from meshard.runtime.types import ArrayLike


def _coefficients(what: str, p: Any) -> Any:
    found = atleast_1d(as_array(p))
    if found.ndim != 1:
        raise ShapeError(
            f"{what}: coefficients must have one dim, but their shape is {found.shape}."
        )
    return found


def _trimmed(x: Any, trim: bool | None) -> Any:
    """Return coefficients without leading zeros, where their values are known."""
    if trim is False or (trim is None and is_traced(x)):
        return x
    found = trim_zeros(x, "f")
    return found if found.shape[0] else x[-1:]


def _sum(what: str, a1: Any, a2: Any, row: str) -> Any:
    x, y = _coefficients(what, a1), _coefficients(what, a2)
    size = max(x.shape[0], y.shape[0])
    pads = [((0, (size - v.shape[0], 0)),) for v in (x, y)]
    return bind(row, *[bind("pad_zeros", v, dims=p) for v, p in zip((x, y), pads, strict=True)])


def polyadd(a1: ArrayLike, a2: ArrayLike) -> Array:
    """Return the coefficients of the sum of two polynomials.

    >>> import meshard.numpy as mnp
    >>> mnp.polyadd(mnp.asarray([1, 2]), mnp.asarray([9, 5, 4])).tolist()
    [9, 6, 6]
    """
    return _sum("polyadd", a1, a2, "add")


def polysub(a1: ArrayLike, a2: ArrayLike) -> Array:
    """Return the coefficients of the difference of two polynomials.

    >>> import meshard.numpy as mnp
    >>> mnp.polysub(mnp.asarray([2, 10, -2]), mnp.asarray([3, 10])).tolist()
    [2, 7, -12]
    """
    return _sum("polysub", a1, a2, "subtract")


@checked
def polymul(a1: ArrayLike, a2: ArrayLike, *, trim_leading_zeros: bool | None = None) -> Array:
    """Return the coefficients of the product of two polynomials.

    Args:
        a1: the one polynomial.
        a2: the other one.
        trim_leading_zeros: whether leading zeros are left out first; by default where values are
            known, as NumPy does, and not where they are traced, as JAX.

    >>> import meshard.numpy as mnp
    >>> mnp.polymul(mnp.asarray([1, 2]), mnp.asarray([1, 3])).tolist()
    [1, 5, 6]
    """
    x, y = (_trimmed(_coefficients("polymul", a), trim_leading_zeros) for a in (a1, a2))
    return convolve(x, y)


@checked
def polydiv(
    u: ArrayLike, v: ArrayLike, *, trim_leading_zeros: bool | None = None
) -> tuple[Array, Array]:
    """Return the coefficients of the quotient of two polynomials, and of the remainder.

    ``trim_leading_zeros`` is as of `polymul`, and holds for the remainder; one that is not trimmed
    is as long as ``u``.

    >>> import meshard.numpy as mnp
    >>> [c.tolist() for c in mnp.polydiv(mnp.asarray([3.0, 5.0, 2.0]), mnp.asarray([2.0, 1.0]))]
    [[1.5, 1.75], [0.25]]
    """
    x, y = _coefficients("polydiv", u), _coefficients("polydiv", v)
    common = common_dtype("polydiv", (x.dtype, y.dtype, float))
    x, y = x.astype(common), y.astype(common)
    n, m = x.shape[0], y.shape[0]
    steps = n - m + 1
    quotient = []
    for k in range(steps):
        factor = x[k : k + 1] / y[:1]
        quotient.append(factor)
        x = x - bind("pad_zeros", factor * y, dims=((0, (k, n - m - k)),))
    rest = x[max(steps, 0) :] if steps > 0 and m > 1 else x[-1:] if steps > 0 else x
    if trim_leading_zeros is False or (trim_leading_zeros is None and is_traced(rest)):
        rest = bind("pad_zeros", rest, dims=((0, (n - rest.shape[0], 0)),))
    elif rest.shape[0] > 1:
        near = bind("isclose", rest, 0.0, rtol=1e-14, atol=1e-14, equal_nan=False)
        kept = np.flatnonzero(~np.asarray(near))
        rest = rest[int(kept[0]) if kept.size else rest.shape[0] - 1 :]
    return (concatenate(quotient) if quotient else x[:1] * 0), rest


@checked
def polyder(p: ArrayLike, m: int = 1) -> Array:
    """Return the coefficients of the ``m``-th derivative of a polynomial.

    Raises:
        ArgumentError: if ``m`` is negative.

    >>> import meshard.numpy as mnp
    >>> mnp.polyder(mnp.asarray([1, 2, 3])).tolist()
    [2, 2]
    """
    if m < 0:
        raise ArgumentError(f"polyder: m must not be negative, got {m}.")
    x = _coefficients("polyder", p)
    for _ in range(m):
        x = x[:-1] * np.arange(x.shape[0] - 1, 0, -1)
    return x


@checked
def polyint(p: ArrayLike, m: int = 1, k: ArrayLike | None = None) -> Array:
    """Return the coefficients of the ``m``-th integral of a polynomial.

    Args:
        p: the polynomial.
        m: how often it is integrated.
        k: the constants of integration, the last integral's last; one number for all, 0 by default.

    Raises:
        ArgumentError: if ``m`` is negative, or there are more or fewer constants than that.

    >>> import meshard.numpy as mnp
    >>> mnp.polyint(mnp.asarray([3.0, 2.0, 1.0]), k=5).tolist()
    [1.0, 1.0, 1.0, 5.0]
    """
    if m < 0:
        raise ArgumentError(f"polyint: m must not be negative, got {m}.")
    x = _coefficients("polyint", p)
    constants = zeros((m,)) if k is None else atleast_1d(as_array(k))
    if constants.shape[0] == 1 and m > 1:
        constants = full((m,), constants[0])
    if constants.shape[0] < m:
        raise ArgumentError(
            f"polyint: {constants.shape[0]} constants for {m} integrals; give one for all, or one "
            "for each."
        )
    for i in range(m):
        x = concatenate([x / np.arange(x.shape[0], 0, -1), constants[i : i + 1]])
    return x


@checked
def roots(p: ArrayLike, *, strip_zeros: bool = True) -> Array:
    """Return the roots of a polynomial.

    Args:
        p: the coefficients.
        strip_zeros: whether zeros at the ends are looked for, which decide how many roots there
            are; False for traced coefficients, which must not begin with a zero then.

    Raises:
        ConcretizationError: if the coefficients are traced, and zeros are looked for.

    >>> import meshard.numpy as mnp
    >>> sorted(mnp.roots(mnp.asarray([1.0, -3.0, 2.0])).real.round(6).tolist())
    [1.0, 2.0]
    """
    x = _coefficients("roots", p)
    trailing = 0
    if strip_zeros:
        x = concrete(
            x,
            "roots",
            "Zeros at the ends decide how many roots there are. Give "
            "strip_zeros=False if there are none in front.",
        )
        x = trim_zeros(x, "f")
        size = x.shape[0]
        x = trim_zeros(x, "b")
        trailing = size - x.shape[0] if x.shape[0] else 0
    wide = x.astype(default_float()) if is_whole(x.dtype) else x
    n = wide.shape[0]
    if n < 2:
        return bind("pad_zeros", wide[:0], dims=((0, (0, trailing)),))
    first = reshape(-wide[1:] / wide[:1], (1, -1))
    companion = concatenate([first, eye(n - 2, n - 1, dtype=wide.dtype)]) if n > 2 else first
    found = eigvals(companion)
    if not is_traced(found) and wide.dtype.kind != "c" and not np.asarray(found.imag).any():
        found = found.real
    return bind("pad_zeros", found, dims=((0, (0, trailing)),)) if trailing else found


def poly(seq_of_zeros: ArrayLike) -> Array:
    """Return the coefficients of the polynomial with these roots, or these of a matrix's equation.

    Raises:
        ShapeError: if it is neither of one dim nor a square matrix.

    >>> import meshard.numpy as mnp
    >>> mnp.poly(mnp.asarray([1.0, 2.0])).tolist()
    [1.0, -3.0, 2.0]
    """
    x = atleast_1d(as_array(seq_of_zeros))
    if x.ndim == 2 and x.shape[0] == x.shape[1] and x.shape[0]:
        x = eigvals(x)
        if not is_traced(x) and not np.asarray(x.imag).any():
            x = x.real
    if x.ndim != 1:
        raise ShapeError(f"poly: takes roots of one dim or a square matrix, got shape {x.shape}.")
    x = x.astype(default_float()) if is_whole(x.dtype) else x
    found = full_like(x, 1, shape=(1,))
    for i in range(x.shape[0]):
        longer = [bind("pad_zeros", found, dims=((0, pair),)) for pair in ((0, 1), (1, 0))]
        found = longer[0] - x[i] * longer[1]
    if found.dtype.kind == "c" and not is_traced(found):
        values = np.asarray(x)
        if np.array_equal(np.sort(values), np.sort(values.conjugate())):
            return found.real
    return found


def _condensed(both: Any, *, dim: int) -> Any:
    """Return the triangle with which a tall matrix, which may be split, is a product.

    Each device makes its own rows triangular; only the triangles are brought together.

    Args:
        both: the matrix.
        dim: the dim of its rows; those before it are of many examples.
    """
    parts = max(len(both.aval.layout.cuts[dim]) - 1, 1)
    *head, rows, columns = both.shape
    each = -(-rows // parts)
    if parts > 1 and each > columns:
        both = bind("pad_zeros", both, dims=((dim, (0, parts * each - rows)),))
        stacked = reshape(both, (*head, parts, each, columns))
        both = reshape(bind("qr_r", stacked, mode="r")[0], (*head, -1, columns))
    return bind("qr_r", both, mode="r")[0]


@checked
def polyfit(
    x: ArrayLike,
    y: ArrayLike,
    deg: int,
    rcond: float | None = None,
    full: bool = False,
    w: ArrayLike | None = None,
    cov: bool | str = False,
) -> Any:
    """Return the coefficients of the polynomial that fits points best, by least squares.

    Of points that are split, each device condenses its own; only triangular matrices of ``deg``
    rows are brought together.

    Args:
        x: the points' places, of one dim.
        y: their values; of two dims, a polynomial for each column.
        deg: the polynomial's degree.
        rcond: the share of the greatest singular value up to which one counts as zero; by default
            the number of points times the dtype's eps.
        full: whether to return the residuals, the rank, the singular values and ``rcond``, too.
        w: how much each point's residual counts.
        cov: whether to return the covariances of the coefficients, too; ``"unscaled"`` as if the
            weights were one over the known deviations.

    Raises:
        ShapeError: if the shapes do not fit.
        ArgumentError: if the degree is negative, or there are too few points for covariances.

    >>> import meshard.numpy as mnp
    >>> x = mnp.asarray([0.0, 1.0, 2.0, 3.0])
    >>> mnp.polyfit(x, x * x - 1, 2).round(6).tolist()
    [1.0, -0.0, -1.0]
    """
    at, values = (_floats(v) for v in (x, y))
    _check_points(at, values, deg)
    count, terms = at.shape[0], deg + 1
    rcond = count * float(np.finfo(at.dtype).eps) if rcond is None else rcond
    left, right = vander(at, terms), values if values.ndim == 2 else reshape(values, (-1, 1))
    if w is not None:
        weights = as_array(w)
        if weights.shape != (count,):
            raise ShapeError(f"polyfit: w of shape {weights.shape} for {count} points.")
        column = reshape(weights.astype(at.dtype, copy=False), (-1, 1))
        left, right = left * column, right * column
    if count > terms + right.shape[1]:  # few equations with the same solution and residuals
        both = when_laid_out("polyfit", _condensed, concatenate([left, right], axis=1), dim=0)
        left, right = both[:, :terms], both[:, terms:]
    scale = bind("sqrt", sum_(left * left, 0))
    found, residuals, rank, s = lstsq(left / scale, right, rcond)
    found = found / reshape(scale, (-1, 1))
    result = found if values.ndim == 2 else found[:, 0]
    if full:
        if count <= terms:
            residuals = residuals[:0]
        return result, residuals, rank, s, rcond
    if not cov:
        return result
    spread = inv(matmul(matrix_transpose(left / scale), left / scale))
    spread = spread / (reshape(scale, (-1, 1)) * scale)
    factor: Any = 1.0
    if cov != "unscaled":
        if count <= terms:
            raise ArgumentError(
                f"polyfit: {count} points for {terms} coefficients are too few for covariances; "
                "cov='unscaled' takes them as they are."
            )
        factor = residuals / (count - terms)
    if values.ndim == 1:
        return result, spread * factor
    return result, reshape(spread, (*spread.shape, 1)) * factor


def _floats(x: Any) -> Any:
    value = as_array(x)
    own = default_float() if is_whole(value.dtype) else value.dtype
    return value.astype(common_dtype("polyfit", (own, default_float())), copy=False)


def _check_points(x: Any, y: Any, deg: int) -> None:
    if deg < 0:
        raise ArgumentError(f"polyfit: deg must not be negative, got {deg}.")
    if x.ndim != 1 or not x.shape[0]:
        raise ShapeError(f"polyfit: x must have one dim with elements, but its shape is {x.shape}.")
    if y.ndim not in (1, 2) or y.shape[0] != x.shape[0]:
        raise ShapeError(
            f"polyfit: y of shape {y.shape} for {x.shape[0]} points; its first dim must be theirs, "
            "and it may have one more."
        )
