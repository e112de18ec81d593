"""Elements of given ranks, without sorting all others.

In: an array, dims of it, and the positions that elements would have if these dims, as one, were
sorted. Out: these elements. Where the dims are whole each cell partitions its block. Where they are
split, samples give two elements between which each wanted one is expected; all cells count what
comes before them, and only the few elements between them are brought together: the order of what
is looked through does not matter, so that nothing moves to become one dim. If the count says that
the samples were misleading, the array is sorted.

Whatever depends on values is the same on every process.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, final

import numpy as np

from meshard.algebra.box import Box
from meshard.algebra.sharding import NamedSharding
from meshard.algebra.spec import PartitionSpec
from meshard.ops.array.join import stack
from meshard.ops.array.samplesort import everywhere, known, on_pieces, regular
from meshard.ops.array.shape import broadcast_to, moveaxis, reshape
from meshard.ops.array.take import take_along_axis
from meshard.ops.dtypes.laws import SMALL_FLOATS, same_dtype
from meshard.ops.engine.later import ByValues, at_run_time, is_traced, when_laid_out
from meshard.ops.ordering import select_at_block, select_block, sort_keys
from meshard.ops.reductions.sort import Way, sort, way_to_sort
from meshard.ops.row import Dtype, Op, Operand, Params, RuleText, register
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.types import ArrayType, Block
from meshard.runtime.world import here
from meshard.tuning import COUNTED_PIECE, SELECTED_FROM

MOST_RANKS = 16
"""Ranks up to which counting costs less than sorting: there are up to four passes for each."""
_MOST_ROWS = 256
"""Rows that are looked through one after the other by each cell."""


# rows


def _select_rule(operands: Sequence[Operand], params: Params) -> RuleText:
    names = [f"d{i}" for i in range(len(operands[0][0]))]
    over, alone = params["axis"], params["everywhere"]
    read = [f"!{n}" if alone or i in over else n for i, n in enumerate(names)]
    kept = [n for i, n in enumerate(names) if i not in over]
    return f"{' '.join(read)} -> {' '.join([*kept, 'k'])}", {"k": len(params["kth"])}


def _rows_of(x: Block, axis: Sequence[int]) -> Block:
    """Return a block in which some dims are one, the last."""
    kept = [n for d, n in enumerate(x.shape) if d not in axis]
    moved = np.moveaxis(x, axis, range(x.ndim - len(axis), x.ndim))
    return moved.reshape(*kept, math.prod(x.shape[d] for d in axis))


def _select(x: Block, *, axis: tuple[int, ...], kth: tuple[int, ...], everywhere: bool) -> Block:
    return select_block(_rows_of(x, axis), kth=kth)


def _at_rule(operands: Sequence[Operand], params: Params) -> RuleText:
    names = [f"d{i}" for i in range(len(operands[0][0]))]
    over, alone = params["axis"], params["everywhere"]
    read = [f"!{n}" if alone or i in over else n for i, n in enumerate(names)]
    kept = " ".join([n for i, n in enumerate(names) if i not in over])
    return f"{' '.join(read)}, {kept} !k -> {kept} k"


def _select_at(x: Block, ranks: Block, *, axis: tuple[int, ...], everywhere: bool) -> Block:
    return select_at_block(_rows_of(x, axis), ranks)


register(Op("select", _select_rule, _select, dtypes=same_dtype))
register(
    Op(
        "select_at",
        _at_rule,
        _select_at,
        dtypes=lambda operands, params: same_dtype(operands[:1], params),
    )
)


def selected(x: Array, axis: Sequence[int], kth: Sequence[int]) -> Any:
    """Return the elements that sorting some dims, as one, puts at some positions.

    Args:
        x: the array; not complex. NaN is the greatest element.
        axis: the dims, in whose place the result has one, the last.
        kth: the positions, ascending and each once, from 0 to the number of elements, less one.
    """
    return when_laid_out("select", _selected, x, axis=tuple(axis), kth=tuple(kth))


def selected_at(x: Array, axis: Sequence[int], ranks: Array) -> Any:
    """Return elements at positions of which each row has its own.

    Args:
        x: the array; not complex.
        axis: the dims.
        ranks: positions; its dims are the other dims, and one more.
    """
    return when_laid_out("select_at", _selected_at, x, ranks, axis=tuple(axis))


def _selected(x: Array, *, axis: tuple[int, ...], kth: tuple[int, ...]) -> Any:
    x = regular(x)
    if _is_split(x, axis):
        if _is_counted(x, axis, kth):
            return at_run_time("select", _Across(axis, kth), x)
        if len(axis) > 1 or axis[0] != x.ndim - 1:
            merged = behind(x, axis)
            return _selected(merged, axis=(merged.ndim - 1,), kth=kth)
        return _of_last(x, kth)
    return bind("select", x, axis=axis, kth=kth, everywhere=False)


def _selected_at(x: Array, ranks: Array, *, axis: tuple[int, ...]) -> Any:
    x = regular(x)
    if not _is_split(x, axis):
        return bind("select_at", x, ranks, axis=axis, everywhere=False)
    count = ranks.shape[-1]
    size = math.prod(x.shape[d] for d in axis)
    if _is_counted(x, axis, _typical(size, count)):
        return at_run_time("select_at", _Across(axis, None), x, ranks)
    found = sort(behind(x, axis))
    return take_along_axis(found, broadcast_to(ranks, (*found.shape[:-1], count)), -1, "clip")


def behind(x: Array, axis: Sequence[int]) -> Array:
    """Return an array in which some dims are one, the last."""
    kept = [n for d, n in enumerate(x.shape) if d not in axis]
    moved = moveaxis(x, axis, range(x.ndim - len(axis), x.ndim))
    return reshape(moved, (*kept, math.prod(x.shape[d] for d in axis)))


def _of_last(x: Array, kth: tuple[int, ...]) -> Any:
    """Return elements of given ranks of a split last dim, brought together or sorted."""
    last = (x.ndim - 1,)
    way = way_to_sort(x, x.ndim - 1)
    if way in (Way.WHOLE, Way.GATHERED):
        return bind("select", x, axis=last, kth=kth, everywhere=False)
    if way is Way.SPREAD:
        return sort(x)[np.asarray(kth)]
    rows = reshape(x, (-1, x.shape[-1]))
    if way is Way.MERGED:
        found = bind("select", rows, axis=(1,), kth=kth, everywhere=False)
    else:
        found = stack([_selected(rows[i], axis=(0,), kth=kth) for i in range(len(rows))])
    return reshape(found, (*x.shape[:-1], len(kth)))


# across devices


def _is_split(x: Array, axis: Sequence[int]) -> bool:
    """Whether several pieces of an array have elements of one row."""
    cuts = x.aval.layout.cuts
    return any(sum(a < b for a, b in pairwise(cuts[d])) > 1 for d in axis)


def _is_counted(x: Array, axis: Sequence[int], ranks: Sequence[int]) -> bool:
    """Whether elements of an array are found by counting."""
    numbers = x.dtype in SMALL_FLOATS or x.dtype.kind in "biuf"
    return bool(numbers and ranks and x.size and _pays(x, axis, ranks))


def _pays(x: Array, axis: Sequence[int], ranks: Sequence[int]) -> bool:
    """Whether counting moves less than bringing the dims together would."""
    size = math.prod(x.shape[d] for d in axis)
    rows = x.size // size
    if len(ranks) > MOST_RANKS or size < SELECTED_FROM or rows > _MOST_ROWS:
        return False
    return brought(size, rows, ranks) * x.aval.layout.piece_count < 2 * x.size


def brought(size: int, rows: int, ranks: Sequence[int]) -> int:
    """Return how many elements each device is expected to get."""
    count, reached, open_ = _samples(size), -1, 0
    for k in ranks:
        first, last = _span(k, size, count, _width(rows))
        open_ += max(min(last, count) - max(first, reached, 0), 0)
        reached = max(reached, last)
    return rows * (count + open_ * size // count)


def _span(k: Any, size: int, count: int, width: float) -> tuple[Any, Any]:
    """Return the samples between which an element of a rank is expected.

    Args:
        k: the rank, or several.
        size: of how many elements.
        count: the number of samples.
        width: how many times the standard deviation of a rank among samples to look within.
    """
    at = np.asarray(k, np.int64) * count // size
    margin = 2 + np.ceil(width * np.sqrt(at * (count - at) / count)).astype(np.int64)
    return at - margin, at + margin + 1


def _typical(size: int, count: int) -> list[int]:
    """Return ranks like those that are computed: pairs of neighbours, and the last."""
    return [*[size // 2 + 1] * (count // 2), size - 1]


def _samples(size: int) -> int:
    """Return how many of a row's elements are samples.

    Floyd and Rivest: the two thirds power, so that samples and what they leave open are few.
    """
    return max(1, round(size ** (2 / 3)))


def _width(rows: int) -> float:
    """Return how many times the standard deviation of a rank its place is looked for within."""
    return 3.0 if rows == 1 else 3.0 + math.log10(rows)


@final
@dataclass(frozen=True)
class _Across(ByValues):
    """The elements of given ranks of dims that are split, on all devices of the mesh.

    Attributes:
        axis: the dims.
        kth: the ranks; None if they are an operand.
    """

    axis: tuple[int, ...]
    kth: tuple[int, ...] | None

    def __call__(self, x: Array, ranks: Array | None = None) -> Any:
        """Return the elements."""
        if is_traced(x) or not x.aval.local:  # only the type is asked for
            if ranks is None:
                return bind("select", x, axis=self.axis, kth=self.kth, everywhere=True)
            return bind("select_at", x, ranks, axis=self.axis, everywhere=True)
        kept = tuple([n for d, n in enumerate(x.shape) if d not in self.axis])
        if ranks is None:
            assert self.kth is not None
            wanted = np.broadcast_to(np.asarray(self.kth), (math.prod(kept), len(self.kth)))
        else:
            wanted = np.broadcast_to(known(ranks), (*kept, ranks.shape[-1]))
            wanted = wanted.reshape(-1, ranks.shape[-1])
        found = of_ranks(Bag(x, self.axis), wanted).reshape(*kept, -1)
        return _replicated(x, found.astype(x.dtype, copy=False))

    def most(self, kinds: Sequence[ArrayType]) -> Mapping[int, int]:
        """Return by device how many bytes it gets at most, unless samples mislead."""
        kind = kinds[0]
        size = math.prod(kind.shape[d] for d in self.axis)
        rows = math.prod(kind.shape) // max(size, 1)
        ranks = _typical(size, kinds[1].shape[-1]) if self.kth is None else self.kth
        pieces = kind.layout.piece_count
        told = brought(size, rows, ranks) * kind.dtype.itemsize
        told += 32 * len(ranks) * rows * pieces  # the counts
        return {int(d): told for p in range(pieces) for d in kind.layout.holders(p)}


def of_ranks(bag: Bag, ranks: Block) -> Block:
    """Return elements of given ranks, the same on every process.

    Args:
        bag: an array on a mesh.
        ranks: shape (rows, ranks).
    """
    width = _width(bag.rows)
    found = bag.found(ranks, width)
    if found is None:
        found = bag.found(ranks, 4 * width)
    if found is None:
        ordered = sort(behind(bag.x, bag.axis))
        places = ranks.reshape(*ordered.shape[:-1], -1)
        found = sort_keys(known(take_along_axis(ordered, places, -1, "clip"))).reshape(ranks.shape)
    return found


def _replicated(x: Array, values: Block) -> Array:
    """Return values that all processes know as an array on all devices of another's mesh."""
    own: Any = x.sharding
    sharding = NamedSharding(own.mesh, PartitionSpec(), memory_kind=own.memory_kind)
    kind = here().type_of(values.shape, values.dtype, sharding, x.committed)
    return Array(kind, (values if kind.local else None,))


class _Ends(NamedTuple):
    """Elements between which wanted ones are expected: pairs, of each row its own.

    Attributes:
        values: shape (rows, 2 * pairs); the lesser one first.
        pair_of: for each wanted rank the number of its pair.
    """

    values: Block
    pair_of: list[int]


class _Told(NamedTuple):
    """What is known of a bag when elements have been found.

    Attributes:
        ends: as in `_Ends`.
        pair_of: likewise.
        counts: for each piece how many of each of its rows are before ends, and up to them.
    """

    ends: Block
    pair_of: list[int]
    counts: list[Block]


@final
class Bag:
    """The elements of an array as rows whose order does not matter, in pieces.

    Args:
        x: the array.
        axis: the dims that make a row.
    """

    def __init__(self, x: Array, axis: Sequence[int]) -> None:
        self.x, self.axis = x, axis
        self.samples: Block | None = None
        self._told: _Told | None = None
        self.size = math.prod(x.shape[d] for d in axis)
        kept = [n for d, n in enumerate(x.shape) if d not in axis]
        self.rows = math.prod(kept)
        numbers = np.arange(self.rows).reshape(kept)
        self.boxes: Sequence[Box] = x.aval.layout.boxes
        self.row_numbers = [
            numbers[tuple([s for d, s in enumerate(b.slices) if d not in axis])].reshape(-1)
            for b in self.boxes
        ]
        """The rows of which each piece has elements."""
        self.lengths = [math.prod(b.shape[d] for d in axis) for b in self.boxes]
        """How many elements of each of its rows a piece has."""

    def _rows(self, block: Block) -> Block:
        moved = np.moveaxis(block, self.axis, range(block.ndim - len(self.axis), block.ndim))
        length = math.prod(block.shape[d] for d in self.axis)
        rows = math.prod(n for d, n in enumerate(block.shape) if d not in self.axis)
        return sort_keys(moved.reshape(rows, length))

    def _samples(self) -> Block:
        """Return elements of each row, in order."""
        step = _prime_from(self.size // _samples(self.size))
        counts = [
            len(r) * -(-n // step) for r, n in zip(self.row_numbers, self.lengths, strict=True)
        ]
        parts = everywhere(
            self.x,
            on_pieces(self.x, lambda p, block: self._rows(block)[:, ::step].reshape(-1)),
            counts,
            sort_keys(np.empty(0, self.x.dtype)).dtype,
        )
        return np.sort(np.stack(self._by_row(parts)), -1)

    def _by_row(self, parts: Sequence[Block]) -> list[Block]:
        """Return the elements of each row, from those of each piece, as many in all its rows."""
        found: list[list[Block]] = [[] for _ in range(self.rows)]
        for rows, part in zip(self.row_numbers, parts, strict=True):
            if part.size:
                for row, own in zip(rows.tolist(), part.reshape(len(rows), -1), strict=True):
                    found[row].append(own)
        return [np.concatenate(own) for own in found]

    def _ends(self, ranks: Block, width: float) -> _Ends:
        samples = self.samples
        if samples is None:
            samples = self.samples = self._samples()
        count = samples.shape[1]
        low, high = _limits(samples.dtype)
        spans: list[list[Block]] = []
        pair_of: list[int] = []
        for k in ranks.T:
            first, last = _span(k, self.size, count, width)
            if spans and (first <= spans[-1][1]).all():
                spans[-1][1] = np.maximum(spans[-1][1], last)
                spans[-1][0] = np.minimum(spans[-1][0], first)
            else:
                spans.append([first, last])
            pair_of.append(len(spans) - 1)
        values = np.empty((self.rows, 2 * len(spans)), samples.dtype)
        every = np.arange(self.rows)
        for i, (first, last) in enumerate(spans):
            below = samples[every, np.maximum(first, 0)]
            above = samples[every, np.minimum(last, count - 1)]
            values[:, 2 * i] = np.where(first >= 0, below, low)
            values[:, 2 * i + 1] = np.where(last < count, above, high)
        return _Ends(values, pair_of)

    def found(self, ranks: Block, width: float) -> Block | None:
        """Return elements of given ranks; None if one of them is not between its pair of ends.

        Args:
            ranks: shape (rows, ranks).
            width: how many standard deviations to look within.
        """
        ends, pair_of = self._ends(ranks, width)
        own = self.counts(ends)
        across = ends.shape[1]
        counts = np.zeros((self.rows, across, 2), np.int64)
        for rows, part in zip(self.row_numbers, own, strict=True):
            counts[rows] += part
        before, upto = counts[:, ::2, :], counts[:, 1::2, :]
        pairs = np.asarray(pair_of)
        if (before[:, pairs, 0] > ranks).any() or (upto[:, pairs, 1] <= ranks).any():
            return None
        inside = (before[:, pairs, 1] <= ranks) & (ranks < upto[:, pairs, 0])
        wanted = np.unique(pairs[inside.any(0)])
        between: Mapping[tuple[int, int], Block] = {}
        if len(wanted):
            widths = [(c[:, 1::2, 0] - c[:, ::2, 1])[:, wanted] for c in own]
            total = sum(int(w.sum()) for w in widths)
            if total * len(self.boxes) > max(2 * self.x.size, 2 * SELECTED_FROM):
                return None
            between = self._between(ends, wanted, widths)
        self._told = _Told(ends, pair_of, own)
        return _chosen(ranks, pair_of, ends, counts, between)

    def below(self, values: Block) -> list[Block]:
        """Return for each piece how many elements are before those found, and how many up to them.

        Args:
            values: what `of_ranks` has found, of one row.

        Returns:
            Blocks of the shape (values, 2).
        """
        assert self.rows == 1, "pieces that have no elements of a row know nothing of it"
        if self._told is None:
            return [c[0] for c in self.counts(values[None])]
        ends, pair_of, own = self._told
        result = []
        for piece, counts in enumerate(own):
            found = np.empty((len(values), 2), np.int64)
            for i, (value, pair) in enumerate(zip(values, pair_of, strict=True)):
                low, high = 2 * pair, 2 * pair + 1
                if _same(value, ends[0, low]):
                    found[i] = counts[0, low]
                elif _same(value, ends[0, high]):
                    found[i] = counts[0, high]
                else:
                    some = self._near[piece, pair]
                    inside = [np.count_nonzero(_before(some, value, e)) for e in (False, True)]
                    found[i] = counts[0, low, 1] + np.asarray(inside)
            result.append(found)
        return result

    def counts(self, ends: Block) -> list[Block]:
        """Return for each piece how many elements are before ends, and how many up to them.

        Args:
            ends: elements; shape (rows, ends).

        Returns:
            Blocks of the shape (rows of the piece, ends, 2).
        """
        cells = everywhere(
            self.x,
            on_pieces(self.x, lambda p, block: self._counted(p, block, ends)),
            [len(rows) * ends.shape[1] * 2 for rows in self.row_numbers],
            np.dtype(np.int64),
        )
        return [c.reshape(-1, ends.shape[1], 2) for c in cells]

    def _counted(self, piece: int, block: Block, ends: Block) -> Block:
        """Count the elements before each end, and those up to it."""
        rows = self._rows(block)
        found = np.zeros((len(rows), ends.shape[1], 2), np.int64)
        for row, own, count in zip(rows, ends[self.row_numbers[piece]], found, strict=True):
            for start in range(0, len(row), COUNTED_PIECE):
                some = row[start : start + COUNTED_PIECE]
                for i, end in enumerate(own):
                    count[i] += [np.count_nonzero(_before(some, end, e)) for e in (False, True)]
        return found.reshape(-1)

    def _between(
        self, ends: Block, pairs: Block, widths: Sequence[Block]
    ) -> Mapping[tuple[int, int], Block]:
        """Return the elements strictly between ends, in order, by the row and the pair.

        Args:
            ends: the ends of all pairs.
            pairs: the pairs.
            widths: for each piece how many they are, of each row and pair.
        """
        ends = ends.reshape(self.rows, -1, 2)[:, pairs]

        def near(piece: int, block: Block) -> Block:
            parts = [
                some
                for row, own in zip(self._rows(block), ends[self.row_numbers[piece]], strict=True)
                for some in _strictly(row, own)
            ]
            return np.concatenate(parts) if parts else np.empty(0, ends.dtype)

        lengths = [int(w.sum()) for w in widths]
        parts = everywhere(self.x, on_pieces(self.x, near), lengths, ends.dtype)
        found: dict[tuple[int, int], list[Block]] = {}
        self._near: dict[tuple[int, int], Block] = {}
        pieces = enumerate(zip(self.row_numbers, parts, widths, strict=True))
        for piece, (rows, part, own) in pieces:
            at = 0
            for row, counts in zip(rows.tolist(), own.tolist(), strict=True):
                for pair, count in zip(pairs.tolist(), counts, strict=True):
                    self._near[piece, pair] = part[at : at + count]
                    found.setdefault((row, pair), []).append(part[at : at + count])
                    at += count
        return {key: np.sort(np.concatenate(own)) for key, own in found.items()}


def _prime_from(n: int) -> int:
    """Return the first prime from n on: a step that hardly meets what repeats in an array."""
    n = max(n, 1)
    while any(n % d == 0 for d in range(2, math.isqrt(n) + 1)):
        n += 1
    return n


def _limits(dtype: Dtype) -> tuple[Any, Any]:
    """Return the least and the greatest element that there may be; NaN is greater than all."""
    if dtype.kind == "f":
        return -np.inf, np.nan
    if dtype.kind == "b":
        return False, True
    return np.iinfo(dtype).min, np.iinfo(dtype).max


def _before(x: Block, end: Any, equal: bool) -> Block:
    """Return which elements come before another one, or are equal to it; NaN is the greatest."""
    if end != end:
        return np.ones(x.shape, bool) if equal else x == x
    return x <= end if equal else x < end


def _same(value: Any, other: Any) -> bool:
    return bool(value == other or (value != value and other != other))


def _strictly(row: Block, pairs: Block) -> list[Block]:
    """Return for each pair of ends the elements of a row that are strictly between them."""
    found: list[list[Block]] = [[] for _ in pairs]
    for start in range(0, len(row), COUNTED_PIECE):
        some = row[start : start + COUNTED_PIECE]
        for (low, high), own in zip(pairs, found, strict=True):
            mask = _before(some, high, False)
            mask &= ~_before(some, low, True)
            own.append(some[mask])
    return [np.concatenate(own) if own else row[:0] for own in found]


def _chosen(
    ranks: Block,
    pair_of: Sequence[int],
    ends: Block,
    counts: Block,
    between: Mapping[tuple[int, int], Block],
) -> Block:
    """Return the elements of given ranks: ends, or some of those between them."""
    values = np.empty(ranks.shape, ends.dtype)
    for row, own in enumerate(ranks.tolist()):
        for place, (k, pair) in enumerate(zip(own, pair_of, strict=True)):
            low, high = 2 * pair, 2 * pair + 1
            if k < counts[row, low, 1]:
                values[row, place] = ends[row, low]
            elif k >= counts[row, high, 0]:
                values[row, place] = ends[row, high]
            else:
                values[row, place] = between[row, pair][k - counts[row, low, 1]]
    return values
