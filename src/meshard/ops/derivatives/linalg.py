"""Derivatives of decompositions, inverses and determinants.

The formulas for tangents are those of Giles, "An extended collection of matrix derivative results
for forward and reverse mode algorithmic differentiation" (2008), and for the complex case those of
JAX. What only reads one triangle of a symmetric matrix counts as reading both halves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshard.errors import DerivativeError
from meshard.ops.array.create import eye
from meshard.ops.array.diagonals import tril, triu
from meshard.ops.array.join import concatenate
from meshard.ops.array.shape import matrix_transpose, reshape
from meshard.ops.derivatives.elementwise import is_complex, o
from meshard.ops.derivatives.kinds import Derivative, Pulls, Refused, Site, Tangents, Values
from meshard.ops.engine.later import when_laid_out
from meshard.ops.linalg.contract import matmul
from meshard.ops.linalg.decompose import SPLIT
from meshard.ops.linalg.norms import diagonal
from meshard.ops.linalg.triangular import solve_triangular
from meshard.ops.reductions.reduce import sum as sum_


def _h(x: Any) -> Any:
    """Return the conjugate transposes."""
    turned = matrix_transpose(x)
    return o.conjugate(turned) if is_complex(turned) else turned


def _solve(a: Any, b: Any) -> Any:
    return o.solve(a, b)[0]


def _split(name: str, x: Any, **params: Any) -> Any:
    """Decompose matrices where they are."""
    return when_laid_out(name, SPLIT[name], x, **params)


def _trace(x: Any) -> Any:
    return sum_(diagonal(x, 0, -2, -1), axis=-1)


def _row(x: Any) -> Any:
    """Return vectors as rows of matrices."""
    return reshape(x, (*x.shape[:-1], 1, x.shape[-1]))


def _column(x: Any) -> Any:
    return reshape(x, (*x.shape, 1))


def _real(x: Any) -> Any:
    return o.real(x) if is_complex(x) else x


def _halved(x: Any) -> Any:
    """Return the Hermitian part."""
    return o.multiply(o.add(x, _h(x)), 0.5)


def _inv(site: Site, t: Values) -> list[Any]:
    y = site.y
    return [o.negative(matmul(matmul(y, t[0]), y)), None]


def _det(site: Site, t: Values) -> list[Any]:
    cofactors, _ = o.cofactors(site.x)
    return [sum_(o.multiply(cofactors, t[0]), axis=(-2, -1)), None]


def _cofactors(site: Site, t: Values) -> list[Any]:
    turned = matrix_transpose(site.x)
    change = _column(_column(_trace(_solve(site.x, t[0]))))
    less = _solve(turned, matmul(matrix_transpose(t[0]), site.y))
    return [o.subtract(o.multiply(site.y, change), less), None]


def _pseudo_inverse(site: Site, t: Values) -> list[Any]:
    """Return the tangent of a pseudo-inverse (Golub and Pereyra, 1973)."""
    if t[0] is None:
        return [None]
    a, p, dx = site.x, site.y, t[0]
    ph, dxh = _h(p), _h(dx)
    found = o.negative(matmul(matmul(p, dx), p))
    right = matmul(matmul(p, ph), dxh)
    left = matmul(matmul(dxh, ph), p)
    found = o.add(found, o.subtract(right, matmul(matmul(right, a), p)))
    return [o.add(found, o.subtract(left, matmul(p, matmul(a, left))))]


def _slogdet(site: Site, t: Values) -> list[Any]:
    change = _trace(_solve(site.x, t[0]))
    if not is_complex(site.x):
        return [None, change, None]
    turn = o.multiply(o.multiply(site.y, 1j), o.imag(change))
    return [turn, o.real(change), None]


def _solved(site: Site, t: Values) -> list[Any]:
    a, _ = site.operands
    change = t[1]
    if t[0] is not None:
        less = o.negative(matmul(t[0], site.y))
        change = less if change is None else o.add(change, less)
    return [_solve(a, change), None]


def _solved_back(site: Site, g: Values, wanted: Sequence[bool]) -> list[Any]:
    a, _ = site.operands
    found = _solve(matrix_transpose(a), g[0])
    less = o.negative(matmul(found, matrix_transpose(site.y))) if wanted[0] else None
    return [less, found]


def _triangle(x: Any, lower: bool) -> Any:
    return tril(x) if lower else triu(x)


def _triangular(site: Site, t: Values) -> list[Any]:
    a, lower, change = site.x, site.params["lower"], t[1]
    if t[0] is not None:
        less = o.negative(matmul(_triangle(t[0], lower), site.y))
        change = less if change is None else o.add(change, less)
    return [solve_triangular(a, change, lower=lower)]


def _triangular_back(site: Site, g: Values, wanted: Sequence[bool]) -> list[Any]:
    lower = site.params["lower"]
    found = solve_triangular(matrix_transpose(site.x), g[0], lower=not lower)
    if not wanted[0]:
        return [None, found]
    less = o.negative(matmul(found, matrix_transpose(site.y)))
    return [_triangle(less, lower), found]


def _cholesky(site: Site, t: Values) -> list[Any]:
    upper = site.params["upper"]
    low = _h(site.y) if upper else site.y
    half = solve_triangular(low, _halved(t[0]), lower=True)
    middle = solve_triangular(low, _h(half), lower=True)
    n = low.shape[-1]
    weights = o.where(eye(n, dtype=bool), 0.5, 1.0)
    found = matmul(low, tril(o.multiply(middle, weights)))
    return [_h(found) if upper else found, None]


def _qr_parts(q: Any, r: Any, t: Any) -> tuple[Any, Any]:
    over = _h(_solve(_h(r), _h(t)))  # t @ inverse(r)
    inner = matmul(_h(q), over)
    low = tril(inner, -1)
    turn = o.subtract(low, _h(low))
    if is_complex(q):
        n = r.shape[-1]
        turn = o.add(turn, o.where(eye(n, dtype=bool), o.complex(0.0, o.imag(inner)), 0))
    dq = o.add(matmul(q, o.subtract(turn, inner)), over)
    return dq, matmul(o.subtract(inner, turn), r)


def _qr_wide(q: Any, r: Any, t: Any) -> tuple[Any, Any]:
    """Return tangents of both factors of a matrix that may have more columns than rows."""
    m, n = t.shape[-2:]
    if m >= n:
        return _qr_parts(q, r, t)
    dq, left = _qr_parts(q, r[..., :m], t[..., :m])
    right = matmul(_h(q), o.subtract(t[..., m:], matmul(dq, r[..., m:])))
    return dq, concatenate([left, right], axis=-1)


def _qr(site: Site, t: Values) -> list[Any]:
    m, n = site.x.shape[-2:]
    if m > n and site.params["mode"] == "complete":
        raise DerivativeError(
            f"qr of matrices of shape ({m}, {n}) with mode='complete' has no derivative: nothing "
            "settles the last columns of q. Use mode='reduced'."
        )
    return [*_qr_wide(site.results[0], site.results[1], t[0]), None]


def _qr_r(site: Site, t: Values) -> list[Any]:
    q, r, _ = _split("qr", site.x, mode="reduced")
    return [_qr_wide(q, r, t[0])[1], None]


def _svd(site: Site, t: Values) -> list[Any]:
    u, s, vh, _ = site.results
    m, n = site.x.shape[-2:]
    if site.params["full_matrices"] and m != n:
        raise DerivativeError(
            "svd with full_matrices=True has no derivative for matrices that are not square. Pass "
            "full_matrices=False."
        )
    v, dx = _h(vh), t[0]
    inner = matmul(matmul(_h(u), dx), v)
    ds = _real(diagonal(inner, 0, -2, -1))
    # Where two values are equal, the turn between their vectors is not defined; it counts as none.
    squares = o.subtract(o.square(_row(s)), o.square(_column(s)))
    same = o.equal(squares, 0)
    f = o.where(same, 0.0, o.divide(1.0, o.where(same, 1.0, squares)))
    left = o.multiply(inner, _row(s))
    right = o.multiply(_column(s), inner)
    du = matmul(u, o.multiply(f, o.add(left, _h(left))))
    dv = matmul(v, o.multiply(f, o.add(right, _h(right))))
    if is_complex(u):
        k = s.shape[-1]
        safe = o.where(o.equal(s, 0), 1, s)
        on = o.where(eye(k, dtype=bool), o.complex(0.0, o.imag(inner)), 0)
        du = o.add(du, matmul(u, o.divide(on, _row(safe))))
    if m > n:
        rest = o.subtract(matmul(dx, v), matmul(u, matmul(_h(u), matmul(dx, v))))
        du = o.add(du, o.divide(rest, _row(s)))
    if n > m:
        turned = matmul(_h(dx), u)
        rest = o.subtract(turned, matmul(v, matmul(_h(v), turned)))
        dv = o.add(dv, o.divide(rest, _row(s)))
    return [du, ds, _h(dv), None]


def _svdvals(site: Site, t: Values) -> list[Any]:
    u, _, vh, _ = _split("svd", site.x, full_matrices=False)
    return [_real(diagonal(matmul(matmul(_h(u), t[0]), _h(vh)), 0, -2, -1)), None]


def _eigh(site: Site, t: Values) -> list[Any]:
    w, v, _ = site.results
    inner = matmul(_h(v), matmul(_halved(t[0]), v))
    gaps = o.subtract(_row(w), _column(w))
    same = o.equal(gaps, 0)
    f = o.where(same, 0.0, o.divide(1.0, o.where(same, 1.0, gaps)))
    return [_real(diagonal(inner, 0, -2, -1)), matmul(v, o.multiply(f, inner)), None]


def _eigvalsh(site: Site, t: Values) -> list[Any]:
    _, v, _ = o.eigh(site.x, **site.params)
    return [_real(diagonal(matmul(_h(v), matmul(_halved(t[0]), v)), 0, -2, -1)), None]


def _eigvals(site: Site, t: Values) -> list[Any]:
    # The order of the values is that of the vectors: both rows call one function of LAPACK.
    _, v, _ = o.eig(site.x)
    return [diagonal(_solve(v, matmul(t[0], v)), 0, -2, -1), None]


LINALG: dict[str, Derivative] = {
    "inv": Tangents(_inv),
    "det": Tangents(_det),
    "cofactors": Tangents(_cofactors),
    "pseudo_inverse": Tangents(_pseudo_inverse),
    "slogdet": Tangents(_slogdet),
    "solve": Pulls(_solved, _solved_back),
    "solve_triangular": Pulls(_triangular, _triangular_back),
    "cholesky": Tangents(_cholesky),
    "qr": Tangents(_qr),
    "qr_r": Tangents(_qr_r),
    "svd": Tangents(_svd),
    "svdvals": Tangents(_svdvals),
    "eigh": Tangents(_eigh),
    "eigvalsh": Tangents(_eigvalsh),
    "eigvals": Tangents(_eigvals),
    "eig": Refused(
        "eigenvectors of matrices that are not Hermitian are defined up to factors that nothing "
        "settles. Use eigvals for the values alone, or eigh for Hermitian matrices."
    ),
}
"""The derivative of each row on matrices."""
LATE_LINALG: dict[str, Derivative] = {n: LINALG[n] for n in (*SPLIT, "solve_triangular")}
"""The derivative of each decomposition that is put off until layouts are known, by name."""
