"""Decompositions, inverses and determinants of stacked matrices.

Tall and wide matrices stay split along their long dim in `qr`, `svd` and `svdvals` (`tall`), large
ones in `cholesky` (`blocked`). Otherwise each matrix is made whole on a device: where its dims are
split, their axes move to leading dims that are long enough, and where there are none every device
gets the whole matrix, of which the setting ``on_gather`` may warn, or which it may forbid. Leading
dims stay split. Integers are taken as the default float, floats shorter than 32 bits are computed
in float32.

Cholesky factors of one large matrix that is split, block by block, where its blocks are.

The matrix is cut into panels of columns at the cuts of both its dims. Each panel in turn is
factored and passed to those who need it to take its product off what is to the right of it
(right-looking). So a device receives about half the matrix over the whole run, in pieces of one
panel, and never holds more than its own part and a panel; the factor is split like the matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from itertools import pairwise
from typing import Any, Literal, NamedTuple, overload

import numpy as np

from meshard.algebra.arguments import choice_of
from meshard.errors import ArgumentError, LinAlgError, MatrixShapeError, ShapeError
from meshard.ops.array.samplesort import known
from meshard.ops.array.shape import expand_dims
from meshard.ops.array.take import take_along_axis
from meshard.ops.checked import checked
from meshard.ops.dtypes.laws import accumulator, common_dtype, default_float, is_whole
from meshard.ops.engine.later import is_traced, when_laid_out
from meshard.ops.linalg.tall import (
    accumulated,
    gathers,
    made_whole,
    own_dtype,
    rounded,
    split_qr,
    split_r,
    split_svd,
    split_svdvals,
    taken_whole,
    turned,
)
from meshard.ops.reductions.sort import argsort, sort
from meshard.ops.row import Bounds, Dtype, Op, Operand, Params, RuleText, register
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array
from meshard.runtime.types import ArrayLike, Block
from meshard.tuning import WHOLE_CHOLESKY


def _panel_cell(params: Params, bounds: Bounds, shape: tuple[int, ...]) -> Params:
    start, stop = bounds["m"]
    first, last = (min(max(n, start), stop) - start for n in params["rows"])
    return {"rows": (first, last), "at": start + first - params["rows"][0]}


def _panel(
    x: Block, low: Block, *, rows: tuple[int, int], at: int, out: Block | None = None
) -> Block:
    """Return some rows of a panel's part of the factor.

    Args:
        x: the panel's columns.
        low: the factor of the panel's diagonal block.
        rows: those of these rows that are in the diagonal block; there is nothing above them.
        at: the number of the first in the block.
        out: where the result goes.
    """
    import scipy.linalg

    first, last = rows
    found = np.empty(x.shape, x.dtype) if out is None else out
    found[..., :first, :] = 0
    found[..., first:last, :] = low[..., at : at + last - first, :]
    for place in np.ndindex(*x.shape[:-2]):
        below = x[place][last:]
        if below.size:
            solved = scipy.linalg.solve_triangular(
                low[place], np.conj(below.T), lower=True, check_finite=False
            )
            found[place][last:] = np.conj(solved.T)
    return found


def _update_rule(operands: Sequence[Operand], params: Params) -> RuleText:
    rows = "!r" if params["whole"][0] else "m"
    columns = "!c" if params["whole"][1] else "n"
    return f"... m n, ... {rows} !b, ... {columns} !b -> ... m n"


def _update_cell(params: Params, bounds: Bounds, shape: tuple[int, ...]) -> Params:
    (first, last), (rows, columns) = params["panel"], params["whole"]
    origins = first if rows else bounds["m"][0], last if columns else bounds["n"][0]
    return {"panel": (first, last), "cell": (*bounds["m"], *bounds["n"], *origins)}


def _update(
    x: Block,
    left: Block,
    right: Block,
    *,
    panel: tuple[int, int],
    cell: tuple[int, ...],
    out: Block | None = None,
) -> Block:
    """Return a cell with the panel in its place, and its product taken off what is right of it.

    Above the diagonal nothing is computed, since nobody reads it.

    Args:
        x: the cell.
        left: rows of the panel, to multiply from the left.
        right: rows of the panel that have the numbers of columns of the cell.
        panel: the panel's first column, and the one after its last.
        cell: the same of the cell's rows, and of its columns, and then the number of the first row
            of ``left``, and of ``right``.
        out: where the result goes.
    """
    (first, last), (top, bottom, start, stop, upper, lower) = panel, cell
    found = np.empty_like(x) if out is None else out
    found[...] = x
    a, b, row = max(first, start), min(last, stop), max(first, top)
    if a < b:
        found[..., a - start : b - start] = 0
        if row < bottom:
            own = left[..., row - upper : bottom - upper, a - first : b - first]
            found[..., row - top :, a - start : b - start] = own
    row, a, b = max(last, top), max(last, start), min(stop, bottom)
    if row < bottom and a < b:
        own = left[..., row - upper : bottom - upper, :]
        other = right[..., a - lower : b - lower, :]
        product = np.matmul(own, np.conj(np.swapaxes(other, -1, -2)))
        found[..., row - top :, a - start : b - start] -= product
    return found


register(
    Op(
        "cholesky_panel",
        "... m !b, ... !c !e -> ... m b",
        _panel,
        dtypes=own_dtype,
        local=_panel_cell,
        style="blas",
        sums=True,
    )
)
register(
    Op(
        "cholesky_update",
        _update_rule,
        _update,
        dtypes=own_dtype,
        local=_update_cell,
        style="blas",
        sums=True,
    )
)


def split_cholesky(x: Any, *, upper: bool) -> list[Any]:
    """Return what the row ``cholesky`` does; a large matrix that is split stays so."""
    n = x.shape[-1]
    small = n * n * x.dtype.itemsize <= WHOLE_CHOLESKY
    if small or not gathers("cholesky", x, upper=upper):
        return made_whole("cholesky", x, upper=upper)
    given = accumulated(x)
    found, failed = _blocked(turned(given) if upper else given)
    return [*rounded(x, turned(found) if upper else found), failed]


def _blocked(x: Any) -> list[Any]:
    """Return lower factors, and which matrices have none."""
    cuts = x.aval.layout.cuts
    whole = len(cuts[-2]) == 2, len(cuts[-1]) == 2
    failures = []
    for first, last in pairwise(sorted({*cuts[-2], *cuts[-1]})):
        block, rest = [(first, last)], [(first, x.shape[-1])]
        if whole[0]:  # every device gets the panel, and factors it
            columns = taken_whole(x, rows=rest, columns=block)
            low, failed = bind("cholesky", columns[..., : last - first, :], upper=False)
            left = bind("cholesky_panel", columns, low, rows=(0, last - first))
            right = left[..., last - first :, :]
        else:
            diagonal = taken_whole(x, rows=block, columns=block)
            low, failed = bind("cholesky", diagonal, upper=False)
            left = bind("cholesky_panel", taken_whole(x, columns=block), low, rows=(first, last))
            right = taken_whole(left, rows=[(last, x.shape[-1])]) if whole[1] else left
        apart = whole[0], any(whole)
        x = bind("cholesky_update", x, left, right, panel=(first, last), whole=apart)
        failures.append(failed)
    return [x, reduce(partial(bind, "logical_or"), failures)]


class EigResult(NamedTuple):
    """What `eig` returns."""

    eigenvalues: Array
    eigenvectors: Array


class EighResult(NamedTuple):
    """What `eigh` returns."""

    eigenvalues: Array
    eigenvectors: Array


class QRResult(NamedTuple):
    """What `qr` returns."""

    Q: Array
    R: Array


class SVDResult(NamedTuple):
    """What `svd` returns."""

    U: Array
    S: Array
    Vh: Array


class SlogdetResult(NamedTuple):
    """What `slogdet` returns."""

    sign: Array
    logabsdet: Array


# rows: results, and for each matrix whether the computation failed


def _kernel(function: Callable[..., Any], kinds: str) -> Callable[..., Any]:
    """Return a kernel that computes with float32 at least, and marks matrices that fail.

    Args:
        function: called with the blocks; raises NumPy's LinAlgError if one matrix fails.
        kinds: for each result ``s`` (the operand's dtype), ``r`` (its real part's) or ``c`` (its
            complex one).
    """

    def kernel(*blocks: Block, **params: Any) -> tuple[Any, ...]:
        laws = [_law(blocks[0].dtype, kind) for kind in kinds]
        wide = [b.astype(accumulator(b.dtype), copy=False) for b in blocks]
        batch = np.broadcast_shapes(*(b.shape[:-2] for b in wide))
        failed = np.zeros(batch, bool)
        try:
            found = function(*wide, **params)
        except np.linalg.LinAlgError:
            found = _one_by_one(function, wide, params, failed)
        results = found if isinstance(found, tuple) else (found,)
        if len(blocks) > 1:  # all results of a cell are split alike, so the columns' are told, too
            failed = np.repeat(failed[..., None], blocks[1].shape[-1], -1)
        return *(np.asarray(r, law) for r, law in zip(results, laws, strict=True)), failed

    return kernel


def _one_by_one(
    function: Callable[..., Any], blocks: Sequence[Block], params: Params, failed: Block
) -> tuple[Any, ...]:
    """Compute matrix by matrix, to find those that fail; their results are NaN."""
    batch = failed.shape
    spread = [np.broadcast_to(b, (*batch, *b.shape[-2:])) for b in blocks]
    sample = function(*[np.zeros((0, *b.shape[-2:]), b.dtype) for b in blocks], **params)
    shapes = [np.asarray(s) for s in (sample if isinstance(sample, tuple) else (sample,))]
    results = [np.full((*batch, *s.shape[1:]), np.nan, s.dtype) for s in shapes]
    for place in np.ndindex(*batch):
        try:
            found = function(*[b[place] for b in spread], **params)
        except np.linalg.LinAlgError:
            failed[place] = True
            continue
        values = found if isinstance(found, tuple) else (found,)
        for result, value in zip(results, values, strict=True):
            result[place] = value
    return tuple(results)


def _law(dtype: Dtype, kind: str) -> Dtype:
    if kind == "r" and dtype.kind == "c":
        return np.empty(0, dtype).real.dtype
    if kind == "c" and dtype.kind != "c":
        return np.result_type(accumulator(dtype), np.complex64)
    return dtype


def _laws(kinds: str) -> Callable[[Sequence[Operand], Params], tuple[Dtype, ...]]:
    def laws(operands: Sequence[Operand], params: Params) -> tuple[Dtype, ...]:
        dtype = operands[0][1]
        assert isinstance(dtype, np.dtype)
        return *(_law(dtype, kind) for kind in kinds), np.dtype(bool)

    return laws


def _row(name: str, rule: Any, function: Callable[..., Any], kinds: str) -> None:
    kernel, laws = _kernel(function, kinds), _laws(kinds)
    register(Op(name, rule, kernel, dtypes=laws, outputs=len(kinds) + 1, sums=True))


def _qr_rule(operands: Sequence[Operand], params: Params) -> RuleText:
    *_, m, n = operands[0][0]
    q, r = {"reduced": ("k", "k"), "complete": ("p", "p"), "r": ("", "k")}[params["mode"]]
    first = f"... m {q}, " if q else ""
    return f"... !m !n -> {first}... {r} n, ...", {"k": min(m, n), "p": m}


def _svd_rule(operands: Sequence[Operand], params: Params) -> RuleText:
    *_, m, n = operands[0][0]
    text = "... m p, ... k, ... q n" if params["full_matrices"] else "... m k, ... k, ... k n"
    return f"... !m !n -> {text}, ...", {"k": min(m, n), "p": m, "q": n}


def _values_rule(operands: Sequence[Operand], params: Params) -> RuleText:
    *_, m, n = operands[0][0]
    return "... !m !n -> ... k, ...", {"k": min(m, n)}


def _cholesky(x: Block, *, upper: bool) -> Any:
    return np.linalg.cholesky(x, upper=upper)


def _cofactors(x: Block) -> Any:
    """Return the derivatives of determinants; those of singular matrices are finite, too."""
    det = np.linalg.det(x)[..., None, None]
    zero = det == 0
    turned = np.swapaxes(np.linalg.inv(np.where(zero, np.eye(x.shape[-1]), x)), -1, -2)
    found = det * turned
    if zero.any():
        u, s, vh = np.linalg.svd(x)
        others = np.where(np.eye(s.shape[-1], dtype=bool), 1, s[..., None, :]).prod(-1)
        sides = (np.linalg.det(u) * np.linalg.det(vh))[..., None, None]
        product = (np.conj(u) * others[..., None, :]) @ np.conj(vh)
        found = np.where(zero, sides * product, found)
    return found


_EIGEN = "... !m !n -> ... n, ... m n, ..."
_row("inv", "... !m !n -> ... n m, ...", np.linalg.inv, "s")
_row("det", "... !m !n -> ..., ...", np.linalg.det, "s")
_row("cofactors", "... !m !n -> ... m n, ...", _cofactors, "s")
_row("slogdet", "... !m !n -> ..., ..., ...", lambda x: tuple(np.linalg.slogdet(x)), "sr")
_row("solve", "... !m !n, ... !m k -> ... n k, ... k", np.linalg.solve, "s")
_row("cholesky", "... !m !n -> ... m n, ...", _cholesky, "s")
_row("qr", _qr_rule, lambda x, mode: tuple(np.linalg.qr(x, mode)), "ss")
_row("qr_r", _qr_rule, lambda x, mode: np.linalg.qr(x, mode), "s")
_row("svd", _svd_rule, lambda x, full_matrices: tuple(np.linalg.svd(x, full_matrices)), "srs")
_row("svdvals", _values_rule, lambda x: np.linalg.svd(x, compute_uv=False), "r")
_row("eigh", _EIGEN, lambda x, UPLO: tuple(np.linalg.eigh(x, UPLO)), "rs")
_row("eigvalsh", "... !m !n -> ... n, ...", lambda x, UPLO: np.linalg.eigvalsh(x, UPLO), "r")
_row("eig", _EIGEN, lambda x: tuple(np.linalg.eig(x)), "cc")
_row("eigvals", "... !m !n -> ... n, ...", np.linalg.eigvals, "c")


SPLIT: dict[str, Callable[..., list[Any]]] = {
    "cholesky": split_cholesky,
    "qr": split_qr,
    "qr_r": split_r,
    "svd": split_svd,
    "svdvals": split_svdvals,
}
"""What does the same as a row to matrices that are split, without making them whole."""


def matrices(name: str, x: Any, square: bool = False) -> Array:
    """Return stacked matrices as floats.

    Raises:
        MatrixShapeError: if there are less than two dims, or a matrix is not square where it must
            be.
    """
    value = as_array(x)
    if value.ndim < 2:
        raise MatrixShapeError(
            f"{name}: takes matrices, the last two dims of an array; got shape {value.shape}."
        )
    if square and value.shape[-1] != value.shape[-2]:
        raise MatrixShapeError(
            f"{name}: takes square matrices; the last two dims of the shape {value.shape} are "
            f"{value.shape[-2]} and {value.shape[-1]}."
        )
    found: Array = value.astype(default_float()) if is_whole(value.dtype) else value
    return found


def _run(row: str, name: str, why: str, *operands: Array, **params: Any) -> list[Any]:
    """Run a row; if a matrix failed, every process of its devices says which, unless traced.

    Raises:
        LinAlgError: if one did.
    """
    if row in SPLIT:
        results: list[Any] = list(when_laid_out(row, SPLIT[row], *operands, **params))
    else:
        results = made_whole(row, *operands, **params)
    failed = results.pop()
    if is_traced(failed):  # nobody can look; the results of a matrix that failed are NaN
        return results
    if failed.aval.local and bool(failed.any()):
        rank = operands[0].ndim - 2
        bad = list(dict.fromkeys(tuple(p[:rank]) for p in np.argwhere(known(failed)).tolist()))
        place = f" {bad[0]}" if rank else ""
        more = f", and {len(bad) - 1} more" if len(bad) > 1 else ""
        raise LinAlgError(
            f"{name}: the matrix{place} of an array of shape {operands[0].shape} {why}{more}."
        )
    return results


_SINGULAR = "is singular"
_UNSETTLED = "did not converge; look for NaN or infinities in it"


def inv(a: ArrayLike) -> Array:
    """Return the inverses of matrices.

    Args:
        a: array of shape ``(..., n, n)``; leading dims stay split, each matrix is made whole on a
            device.

    Raises:
        ShapeError: if the matrices are not square.
        LinAlgError: if a matrix is singular; every process raises it.

    >>> import meshard.numpy as mnp
    >>> mnp.linalg.inv(mnp.asarray([[2.0, 0.0], [0.0, 4.0]])).tolist()
    [[0.5, 0.0], [0.0, 0.25]]
    """
    return _run("inv", "inv", _SINGULAR, matrices("inv", a, square=True))[0]


def det(a: ArrayLike) -> Array:
    """Return the determinants of matrices of shape ``(..., n, n)``.

    >>> import meshard.numpy as mnp
    >>> round(float(mnp.linalg.det(mnp.asarray([[1.0, 2.0], [3.0, 4.0]]))), 6)
    -2.0
    """
    return _run("det", "det", _UNSETTLED, matrices("det", a, square=True))[0]


def slogdet(a: ArrayLike) -> SlogdetResult:
    """Return the signs of determinants, and the logarithms of their absolute values."""
    found = _run("slogdet", "slogdet", _UNSETTLED, matrices("slogdet", a, square=True))
    return SlogdetResult(*found)


def solve(a: ArrayLike, b: ArrayLike) -> Array:
    """Return the solution ``x`` of ``a @ x = b``.

    Args:
        a: square matrices, ``(..., n, n)``, each made whole on a device.
        b: one vector, ``(n,)``, or matrices, ``(..., n, k)``, whose columns may be split.

    Raises:
        ShapeError: if the matrices are not square, or ``b`` has other rows.
        LinAlgError: if a matrix is singular; every process raises it.

    >>> import meshard.numpy as mnp
    >>> mnp.linalg.solve(mnp.asarray([[2.0, 0.0], [0.0, 4.0]]), mnp.ones(2)).tolist()
    [0.5, 0.25]
    """
    x, y = matrices("solve", a, square=True), as_array(b)
    alone = y.ndim == 1
    if not y.ndim or y.shape[0 if alone else -2] != x.shape[-1]:
        raise ShapeError(
            f"solve: the right side of shape {y.shape} does not fit matrices of shape {x.shape}; "
            f"it must have {x.shape[-1]} rows."
        )
    y = y.astype(default_float()) if is_whole(y.dtype) else y
    common = common_dtype("solve", (x.dtype, y.dtype))
    x, y = x.astype(common, copy=False), y.astype(common, copy=False)
    y = expand_dims(y, -1) if alone else y
    found = _run("solve", "solve", _SINGULAR, x, y)[0]
    return found[..., 0] if alone else found


@checked
def cholesky(a: ArrayLike, *, upper: bool = False, symmetrize_input: bool = False) -> Array:
    """Return the Cholesky factors ``L`` of Hermitian matrices: ``a = L @ L.mT.conj()``.

    A matrix of more than 1 MiB that is split along its rows, its columns or both stays so: panels
    of columns pass between devices, about half of its bytes to each, and the factor is laid out
    like the matrix.

    Args:
        a: positive definite matrices, ``(..., n, n)``.
        upper: whether to return ``L.mT.conj()``, computed from the upper triangle.
        symmetrize_input: whether to take the mean of ``a`` and ``a.mT.conj()``; otherwise only one
            triangle is read, as in NumPy. JAX takes the mean by default.

    Raises:
        ShapeError: if the matrices are not square.
        LinAlgError: if a matrix is not positive definite.

    >>> import meshard.numpy as mnp
    >>> mnp.linalg.cholesky(mnp.asarray([[4.0, 0.0], [0.0, 9.0]])).tolist()
    [[2.0, 0.0], [0.0, 3.0]]
    """
    x = _hermitian("cholesky", a, symmetrize_input)
    return _run("cholesky", "cholesky", "is not positive definite", x, upper=bool(upper))[0]


def _hermitian(name: str, a: Any, symmetrize: bool) -> Any:
    """Return square matrices, on request the Hermitian part of them."""
    x = matrices(name, a, square=True)
    return bind("multiply", bind("add", x, turned(x)), 0.5) if symmetrize else x


@overload
def qr(a: ArrayLike, mode: Literal["reduced", "complete"] = "reduced") -> QRResult: ...
@overload
def qr(a: ArrayLike, mode: Literal["r"]) -> Array: ...
@overload
def qr(a: ArrayLike, mode: str) -> QRResult | Array: ...
@checked
def qr(a: ArrayLike, mode: str = "reduced") -> Any:
    """Return the factors of ``a = Q @ R``, ``Q`` orthonormal and ``R`` upper triangular.

    Of a tall matrix whose rows are split only the ``n`` by ``n`` factors of its shards move, and
    ``Q`` is split like the rows; of a wide one with split columns, the first ``m`` columns, and
    ``R`` is split like the columns. Signs are those of one LAPACK call on the whole matrix.

    Args:
        a: matrices, ``(..., m, n)``.
        mode: ``"reduced"``, ``"complete"`` (``Q`` is square, each matrix is made whole), or
            ``"r"`` for ``R`` alone.

    Raises:
        ArgumentError: if the mode is another word.

    >>> import meshard.numpy as mnp
    >>> q, r = mnp.linalg.qr(mnp.ones((3, 2)))
    >>> q.shape, r.shape
    ((3, 2), (2, 2))
    """
    choice_of(mode, ("reduced", "complete", "r"), "qr", "mode")
    x = matrices("qr", a)
    if mode == "r":
        return _run("qr_r", "qr", _UNSETTLED, x, mode=mode)[0]
    return QRResult(*_run("qr", "qr", _UNSETTLED, x, mode=mode))


@overload
def svd(
    a: ArrayLike,
    full_matrices: bool = True,
    compute_uv: Literal[True] = True,
    hermitian: bool = False,
) -> SVDResult: ...
@overload
def svd(
    a: ArrayLike,
    full_matrices: bool = True,
    *,
    compute_uv: Literal[False],
    hermitian: bool = False,
) -> Array: ...
@overload
def svd(
    a: ArrayLike, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = False
) -> SVDResult | Array: ...
@checked
def svd(
    a: ArrayLike, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = False
) -> Any:
    """Return the singular value decomposition ``a = U * S @ Vh``.

    With ``full_matrices=False`` a tall matrix whose rows are split, or a wide one whose columns
    are, is decomposed by way of `qr`: ``U``, or ``Vh``, is split alike.

    Args:
        a: matrices, ``(..., m, n)``.
        full_matrices: whether ``U`` and ``Vh`` are square; each matrix is then made whole.
        compute_uv: whether to return them, and not only the singular values.
        hermitian: whether the matrices are Hermitian, which is quicker; their lower triangles are
            read.

    Raises:
        ShapeError: if they are to be Hermitian, and are not square.
        LinAlgError: if it does not converge.

    >>> import meshard.numpy as mnp
    >>> mnp.linalg.svd(mnp.asarray([[3.0, 0.0], [0.0, 4.0]])).S.tolist()
    [4.0, 3.0]
    """
    if hermitian:
        return _hermitian_svd(a) if compute_uv else _hermitian_values(a)
    if not compute_uv:
        return svdvals(a)
    x = matrices("svd", a)
    return SVDResult(*_run("svd", "svd", _UNSETTLED, x, full_matrices=bool(full_matrices)))


def _hermitian_values(a: Any) -> Any:
    found = _run("eigvalsh", "svd", _UNSETTLED, matrices("svd", a, square=True), UPLO="L")[0]
    return sort(bind("absolute", found), axis=-1, descending=True)


def _hermitian_svd(a: Any) -> SVDResult:
    """Return singular vectors and values by way of eigenvectors and eigenvalues."""
    x = matrices("svd", a, square=True)
    values, vectors = _run("eigh", "svd", _UNSETTLED, x, UPLO="L")
    sizes = bind("absolute", values)
    order = argsort(sizes, axis=-1, descending=True)
    u = take_along_axis(vectors, expand_dims(order, -2), -1)
    signs = bind("where", bind("less", take_along_axis(values, order, -1), 0), -1.0, 1.0)
    v = bind("multiply", u, expand_dims(signs.astype(u.dtype), -2))
    return SVDResult(u, take_along_axis(sizes, order, -1), turned(v))


def svdvals(x: ArrayLike, /) -> Array:
    """Return the singular values of matrices, the greatest first.

    Of tall matrices with split rows, and wide ones with split columns, only small factors move.

    >>> import meshard.numpy as mnp
    >>> mnp.linalg.svdvals(mnp.asarray([[3.0, 0.0], [0.0, 4.0]])).tolist()
    [4.0, 3.0]
    """
    return _run("svdvals", "svdvals", _UNSETTLED, matrices("svdvals", x))[0]


def _triangle(name: str, UPLO: str) -> str:
    if UPLO not in ("L", "U", "l", "u"):
        raise ArgumentError(f"{name}: UPLO must be 'L' or 'U', not {UPLO!r}.")
    return UPLO.upper()


@checked
def eigh(a: ArrayLike, UPLO: str = "L", symmetrize_input: bool = False) -> EighResult:
    """Return eigenvalues, rising, and eigenvectors of Hermitian matrices.

    Args:
        a: matrices, ``(..., n, n)``.
        UPLO: which triangle is read: ``"L"`` or ``"U"``.
        symmetrize_input: whether to take the mean of ``a`` and ``a.mT.conj()`` first, as JAX does
            by default.

    Raises:
        LinAlgError: if it does not converge.

    >>> import meshard.numpy as mnp
    >>> mnp.linalg.eigh(mnp.asarray([[2.0, 0.0], [0.0, 1.0]])).eigenvalues.tolist()
    [1.0, 2.0]
    """
    x = _hermitian("eigh", a, symmetrize_input)
    return EighResult(*_run("eigh", "eigh", _UNSETTLED, x, UPLO=_triangle("eigh", UPLO)))


@checked
def eigvalsh(a: ArrayLike, UPLO: str = "L", *, symmetrize_input: bool = False) -> Array:
    """Return the eigenvalues of Hermitian matrices, rising; the arguments are those of `eigh`.

    >>> import meshard.numpy as mnp
    >>> mnp.linalg.eigvalsh(mnp.asarray([[2.0, 0.0], [0.0, 1.0]])).tolist()
    [1.0, 2.0]
    """
    x = _hermitian("eigvalsh", a, symmetrize_input)
    return _run("eigvalsh", "eigvalsh", _UNSETTLED, x, UPLO=_triangle("eigvalsh", UPLO))[0]


def eig(a: ArrayLike) -> EigResult:
    """Return eigenvalues and eigenvectors of square matrices; always complex, as in JAX."""
    return EigResult(*_run("eig", "eig", _UNSETTLED, matrices("eig", a, square=True)))


def eigvals(a: ArrayLike) -> Array:
    """Return the eigenvalues of square matrices; always complex, as in JAX."""
    return _run("eigvals", "eigvals", _UNSETTLED, matrices("eigvals", a, square=True))[0]
