"""Decompositions of tall matrices whose rows are split, without bringing the rows together.

Each shard is factored where it is; the triangular factors, which are small, come together on every
device and are factored once more (TSQR). So only these factors move, and ``Q`` is split like the
rows. Wide matrices whose columns are split are taken the other way round. Where both dims are
split, the axes of the short one move to the long one first.

The first ``n`` rows of a matrix with ``n`` columns take part in the second step as they are. A
Householder reflection depends on these rows and on inner products of columns of the rest, which
factoring the rest does not change: so the signs are those that LAPACK gives the whole matrix.

Matrices that are made whole on every device: whether a row does that, and what is said of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, final

import numpy as np

from meshard.algebra.dimmap import DimMap
from meshard.algebra.layout import Cuts, balanced_cuts
from meshard.algebra.propagate import Split
from meshard.algebra.sharding import NamedSharding
from meshard.ops.array.shape import matrix_transpose
from meshard.ops.dtypes.laws import accumulator
from meshard.ops.engine.decide import decide
from meshard.ops.engine.decision import KernelDecision
from meshard.ops.engine.later import Advised, relaid, when_laid_out
from meshard.ops.engine.operand_mesh import named_sharding
from meshard.ops.linalg.contract import matmul
from meshard.ops.row import Bounds, Dtype, MoveOp, Op, Operand, Params, register
from meshard.runtime.array.fetch import gather, gather_law
from meshard.runtime.doors import bind
from meshard.runtime.types import ArrayType, Block
from meshard.runtime.world import here
from meshard.tuning import QR_CHUNK


def gathers(row: str, x: Any, **params: Any) -> bool:
    """Whether a row brings whole matrices to every device, as no leading dim can take their axes.

    Args:
        row: a row with one operand.
        x: the matrices, whose layout is known.
        params: the parameters.
    """
    if not isinstance(x.sharding, NamedSharding) or not isinstance(x.aval, ArrayType):
        return False
    return _gathered(row, (x.aval,), params)


def _gathered(row: str, kinds: tuple[ArrayType, ...], params: Any) -> bool:
    found = decide(here(), row, kinds, tuple(params.items()))
    assert isinstance(found, KernelDecision), row
    read, given = found.operands[0], kinds[0].layout
    return read is not None and read.layout.piece_count < given.piece_count


@final
class _Told(Advised):
    """What passes matrices on, and says that a row is about to bring them to every device."""

    def __init__(self, row: str, params: Any) -> None:
        self.row, self.params = row, params

    def __call__(self, *operands: Any) -> list[Any]:
        kinds = tuple(x.aval for x in operands)
        named = isinstance(operands[0].sharding, NamedSharding)
        known = named and all(isinstance(k, ArrayType) for k in kinds)
        if known and _gathered(self.row, kinds, self.params):
            gather(kinds[0], f"linalg.{self.row.partition('_')[0]}")
        return list(operands)


def made_whole(row: str, *operands: Any, **params: Any) -> list[Any]:
    """Run a row that needs whole matrices; the setting ``on_gather`` is obeyed.

    Raises:
        GatherError: if they would be brought to every device, and the setting forbids it.
    """
    given = list(operands)
    if gather_law() != "allow":
        given = when_laid_out("whole matrices", _Told(row, params), *given)
    return list(bind(row, *given, **params))


def _counts(cuts: Cuts, n: int) -> list[int]:
    """Return how many rows each shard of a matrix with ``n`` columns gives to the second step."""
    return [sum(_parts_of(a, b, n)) for a, b in pairwise(cuts)]


def _parts_of(start: int, stop: int, n: int) -> tuple[int, int]:
    """Return how many of these rows take part as they are, and the rows of the others' factor."""
    head = max(0, min(stop, n) - start)
    return head, min(stop - start - head, n)


# rows: the first step, what comes together, and the last step


def own_dtype(operands: Sequence[Operand], params: Params) -> tuple[Dtype, ...]:
    """Return the dtype of the first operand, as a row's law."""
    dtype = operands[0][1]
    assert isinstance(dtype, np.dtype)
    return (dtype,)


def _two_dtypes(operands: Sequence[Operand], params: Params) -> tuple[Dtype, ...]:
    return own_dtype(operands, params) * 2


def _head_cell(params: Params, bounds: Bounds, shape: tuple[int, ...]) -> Params:
    start, stop = bounds["d"]
    return {"head": _parts_of(start, stop, params["n"])[0]}


def _factors(x: Block, *, head: int, out: Block | None = None) -> Block:
    """Return the first rows as they are, then the triangular factor of the others, then zeros."""
    return _placed(x, head, _factored(x[..., head:, :], None))


def _both(x: Block, *, head: int, out: Block | None = None) -> tuple[Block, Block]:
    """Return the orthonormal factor of all rows but the first ones, and what `_factors` does."""
    q = np.empty(x.shape, x.dtype) if out is None else out
    q[..., :head, :] = 0
    return q, _placed(x, head, _factored(x[..., head:, :], q[..., head:, :]))


def _placed(x: Block, head: int, r: Block) -> Block:
    found = np.zeros(x.shape, x.dtype)
    found[..., :head, :] = x[..., :head, :]
    found[..., head : head + r.shape[-2], :] = r
    return found


def _factored(x: Block, q: Block | None) -> Block:
    """Return the triangular factor of a block, in steps that stay in the cache.

    Args:
        x: the block, with any number of rows.
        q: where the orthonormal factor goes, in as many columns as it has; None: nobody needs it.
    """
    m, n = x.shape[-2:]
    count = m // max(2 * n, QR_CHUNK // (n * x.itemsize))
    if not x.size:
        return x[..., :0, :]
    if count < 2:
        if q is None:
            return np.asarray(np.linalg.qr(x, mode="r"))
        own, r = np.linalg.qr(x)
        q[..., : own.shape[-1]] = own
        q[..., own.shape[-1] :] = 0
        return r
    even = m // count * count  # the few rows after these take part in the next step as they are
    chunks = x[..., :even, :].reshape(*x.shape[:-2], count, -1, n)
    if q is None:
        factors = np.asarray(np.linalg.qr(chunks, mode="r"))
        return _factored(_under(x, even, factors), None)
    first, factors = np.linalg.qr(chunks)
    stack = _under(x, even, factors)
    second = np.empty_like(stack)
    r = _factored(stack, second)
    q[..., even:, :] = second[..., : m - even, :]
    parts = second[..., m - even :, :].reshape(factors.shape)
    np.matmul(first, parts, out=q[..., :even, :].reshape(chunks.shape))
    return r


def _under(x: Block, even: int, factors: Block) -> Block:
    """Return the last rows of a block, and the factors of its chunks below them."""
    return np.concatenate([x[..., even:, :], factors.reshape(*x.shape[:-2], -1, x.shape[-1])], -2)


def _joined_cell(params: Params, bounds: Bounds, shape: tuple[int, ...]) -> Params:
    cuts, n = params["cuts"], params["n"]
    start, stop = bounds["d"]
    head, rows = _parts_of(start, stop, n)
    at = sum(sum(_parts_of(a, b, n)) for a, b in pairwise(cuts) if b <= start)
    return {"at": at, "head": head, "rows": rows}


def _joined(
    x: Block, second: Block, *, at: int, head: int, rows: int, out: Block | None = None
) -> Block:
    """Return a shard's rows of the product of both steps' orthonormal factors."""
    found = np.empty((*x.shape[:-1], second.shape[-1]), x.dtype) if out is None else out
    found[..., :head, :] = second[..., at : at + head, :]
    below = second[..., at + head : at + head + rows, :]
    np.matmul(x[..., head:, :rows], below, out=found[..., head:, :])
    return found


def _stretches(shapes: Sequence[tuple[int, ...]], params: Params) -> list[tuple[DimMap, ...]]:
    (shape,), chosen = shapes, dict(params["dims"])
    return [tuple(_joined_map(n, chosen.get(d)) for d, n in enumerate(shape))]


def _joined_map(n: int, stretches: Sequence[tuple[int, int]] | None) -> DimMap:
    if stretches is None:
        return DimMap.identity(n)
    at, segments = 0, []
    for start, stop in stretches:
        segments.append((at, stop - start, start, 1))
        at += stop - start
    return DimMap(at, n, segments)


def _chosen_dims(params: Params) -> frozenset[int]:
    return frozenset(d for d, _ in params["dims"])


def _wide_cell(params: Params, bounds: Bounds, shape: tuple[int, ...]) -> Params:
    return {"start": bounds["n"][0]}


def _wide(q: Block, x: Block, *, start: int, out: Block | None = None) -> Block:
    """Return some columns of the triangular factor, the first of which has this number."""
    found: Block = np.matmul(np.conj(np.swapaxes(q, -1, -2)), x, out=out)
    rows, columns = np.arange(found.shape[-2])[:, None], start + np.arange(found.shape[-1])
    found[..., rows > columns] = 0
    if found.dtype.kind == "c":  # LAPACK's diagonals are real
        found.imag[..., rows == columns] = 0
    return found


def _register(name: str, rule: str, kernel: Any, local: Any, laws: Any = own_dtype) -> None:
    outputs = 2 if laws is _two_dtypes else 1
    register(Op(name, rule, kernel, laws, None, local, outputs, style="blas", sums=True))


_register("qr_factors", "... d !n -> ... d n", _factors, _head_cell)
_register("qr_both", "... d !n -> ... d n, ... d n", _both, _head_cell, _two_dtypes)
_register("qr_joined", "... d !k, ... !s c -> ... d c", _joined, _joined_cell)
_register("qr_wide", "... !m !k, ... !m n -> ... k n", _wide, _wide_cell)
register(MoveOp("take_whole", _stretches, whole=_chosen_dims))


# layouts


class Rows(NamedTuple):
    """Matrices whose rows alone are split.

    Attributes:
        x: the matrices; a traced array does not tell how it was asked to be laid out.
        cuts: where the rows are cut.
    """

    x: Any
    cuts: Cuts


def by_rows(x: Any, *, factored: bool = True) -> Rows | None:
    """Return matrices so that their rows alone are split, if there are more of these; else None.

    Where columns are split, too, or only they, their axes move to the rows.

    Args:
        x: matrices.
        factored: whether a matrix must also be so tall that what its shards give to the second step
            is less than the matrix.
    """
    place, kind = x.sharding, x.aval
    m, n = x.shape[-2:]
    if not isinstance(place, NamedSharding) or m <= n or not x.size:
        return None
    axes, cuts = place.spec.axes(x.ndim), kind.layout.cuts
    rows = cuts[-2]
    shards = len(cuts[-1]) - 1
    if shards > 1:
        rows = tuple(a + c for a, b in pairwise(rows) for c in balanced_cuts(b - a, shards)[:-1])
        rows = (*rows, m)
    if sum(a < b for a, b in pairwise(rows)) < 2 or (factored and sum(_counts(rows, n)) >= m):
        return None
    if shards == 1:
        return Rows(x, rows)
    splits = [Split(a, c) for a, c in zip(axes, cuts, strict=True)]
    splits[-2:] = [Split((*axes[-2], *axes[-1]), rows), Split((), (0, n))]
    target = named_sharding(place.mesh, tuple(splits), place.memory_kind)
    kind = here().type_of(x.shape, x.dtype, target, kind.committed)
    return Rows(relaid(x, kind, "by_rows"), rows)


def taken_whole(x: Any, **stretches: Sequence[tuple[int, int]]) -> Any:
    """Return some stretches of rows, or of columns, on all devices along those dims.

    Args:
        x: matrices.
        stretches: ``rows`` and ``columns``; a dim that is not named stays as it is.
    """
    dims = {"rows": x.ndim - 2, "columns": x.ndim - 1}
    chosen = tuple((dims[name], tuple(s)) for name, s in stretches.items())
    return bind("take_whole", x, dims=chosen)


def _second(cuts: Cuts, factors: Any) -> Any:
    """Bring together what the second step reads."""
    counts = zip(cuts, _counts(cuts, factors.shape[-1]), strict=False)
    return taken_whole(factors, rows=[(a, a + count) for a, count in counts if count])


class _Tall:
    """A tall matrix in the middle of its decomposition.

    Attributes:
        stack: what comes together: it has the same triangular factor as the matrix.
    """

    def __init__(self, rows: Rows) -> None:
        self._n, self._cuts = rows.x.shape[-1], rows.cuts
        self._first, factors = bind("qr_both", rows.x, n=self._n)
        self.stack = _second(rows.cuts, factors)

    def joined(self, second: Any) -> Any:
        """Return what ``Q`` is for the matrix, from what it is for the stack."""
        return bind("qr_joined", self._first, second, cuts=self._cuts, n=self._n)


def _stacked(rows: Rows) -> Any:
    """Return a small matrix with the triangular factor, and the singular values, of a tall one."""
    return _second(rows.cuts, bind("qr_factors", rows.x, n=rows.x.shape[-1]))


def turned(x: Any) -> Any:
    """Return the conjugate transposes; nothing moves."""
    found = matrix_transpose(x)
    return bind("conjugate", found) if x.dtype.kind == "c" else found


def _wide_enough(x: Any) -> Rows | None:
    """Return wide matrices with split columns as their conjugate transposes; or None."""
    return by_rows(turned(x)) if x.shape[-2] < x.shape[-1] else None


# decompositions, for operands whose layouts are known; the last result says which matrices failed


def split_qr(x: Any, *, mode: str) -> list[Any]:
    """Return what the row ``qr`` does, and which matrices failed, moving as little as possible."""
    wide = accumulated(x)
    if mode == "reduced" and (tall := by_rows(wide)) is not None:
        work = _Tall(tall)
        second, r, failed = bind("qr", work.stack, mode=mode)
        return [*rounded(x, work.joined(second), r), failed]
    if (columns := _columns(wide)) is not None:
        m = x.shape[-2]
        q, _, failed = bind("qr", taken_whole(columns, columns=[(0, m)]), mode="reduced")
        return [*rounded(x, q, bind("qr_wide", q, columns)), failed]
    return made_whole("qr", x, mode=mode)


def split_r(x: Any, *, mode: str) -> list[Any]:
    """Return the triangular factors alone."""
    wide = accumulated(x)
    if (tall := by_rows(wide)) is not None:
        r, failed = bind("qr_r", _stacked(tall), mode=mode)
        return [*rounded(x, r), failed]
    if _columns(wide) is not None:
        return split_qr(x, mode="reduced")[1:]
    return made_whole("qr_r", x, mode=mode)


def _columns(x: Any) -> Any:
    """Return matrices whose columns alone are split, if there are more of these; else None."""
    if x.shape[-2] >= x.shape[-1]:
        return None
    found = by_rows(turned(x), factored=False)
    return None if found is None else turned(found.x)


def split_svd(x: Any, *, full_matrices: bool) -> list[Any]:
    """Return singular vectors and values, the long vectors split like the matrix."""
    m, n = x.shape[-2:]
    if full_matrices and m != n:
        return made_whole("svd", x, full_matrices=full_matrices)
    wide = accumulated(x)
    if (tall := by_rows(wide)) is not None:
        work = _Tall(tall)
        second, r, _ = bind("qr", work.stack, mode="reduced")
        u, s, vh, failed = bind("svd", r, full_matrices=False)
        return [*rounded(x, work.joined(matmul(second, u)), s, vh), failed]
    if (rows := _wide_enough(wide)) is not None:
        work = _Tall(rows)
        second, r, _ = bind("qr", work.stack, mode="reduced")
        u, s, vh, failed = bind("svd", turned(r), full_matrices=False)
        v = work.joined(matmul(second, turned(vh)))
        return [*rounded(x, u, s, turned(v)), failed]
    return made_whole("svd", x, full_matrices=full_matrices)


def split_svdvals(x: Any) -> list[Any]:
    """Return singular values; only the small factors move."""
    wide = accumulated(x)
    tall = by_rows(wide)
    tall = _wide_enough(wide) if tall is None else tall
    if tall is None:
        return made_whole("svdvals", x)
    s, failed = bind("svdvals", _stacked(tall))
    return [*rounded(x, s), failed]


def accumulated(x: Any) -> Any:
    """Return matrices in the dtype that they are computed in."""
    return x.astype(accumulator(x.dtype), copy=False)


def rounded(x: Any, *results: Any) -> list[Any]:
    """Return results in the dtype of the matrices, real ones in that of its real part."""
    if accumulator(x.dtype) == x.dtype:
        return list(results)
    return [r.astype(x.dtype) for r in results]
