"""The distinct elements of an array, or the distinct rows of a table, found where they are.

Each device first finds the distinct ones among its own, so that no value leaves it twice. Samples
cut their order into nearly equal parts; each part goes to one device, which finds the distinct
ones of all that come, and answers with their places. Few ones, such as the classes of labels, every
process finds for itself, and has them whole.

Whatever depends on values (counts and samples) is the same on every process, and so is the plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from meshard.algebra.box import Box
from meshard.algebra.dimmap import DimMap
from meshard.algebra.layout import Cuts, Layout
from meshard.algebra.propagate import Split
from meshard.algebra.sharding import NamedSharding
from meshard.ops.array.samplesort import known, told
from meshard.ops.dtypes.laws import SMALL_FLOATS, kind_of
from meshard.ops.engine.operand_mesh import named_sharding
from meshard.ops.ordering import sort_keys
from meshard.plan.move.assemble import Source, assemble
from meshard.plan.move.wires import Move, move_wire
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.moving.execute import run_part
from meshard.runtime.types import ArrayType, Block, Blocks
from meshard.runtime.watching.ledger import wired
from meshard.runtime.world import RuntimeWorld, here
from meshard.tuning import GATHERED_SORT, LARGE, SORT_SAMPLES

Ints = NDArray[np.int64]
_LONG = np.dtype(np.int64)


class Wanted(NamedTuple):
    """What is wanted besides the distinct elements."""

    indices: bool = False
    inverse: bool = False
    counts: bool = False


# one block


@final
@dataclass(frozen=True, slots=True)
class _Own:
    """The distinct ones of some rows, in order.

    Attributes:
        rows: the distinct ones.
        numbers: where each first occurs, among all rows.
        counts: how often it does.
        places: for each of the rows its place among the distinct ones.
    """

    rows: Block
    numbers: Ints | None = None
    counts: Ints | None = None
    places: Ints | None = None


def _row_keys(rows: Block) -> Block:
    """Return texts of bytes in the order of rows, which compare their first elements first.

    All NaN are alike, and the greatest; so are both zeros.
    """
    x = rows.astype(np.float32) if rows.dtype in SMALL_FLOATS else rows
    if x.dtype.kind == "c":
        pair = np.stack([x.real, x.imag], axis=-1)
        pair[np.isnan(x)] = np.nan
        x = pair.reshape(len(x), math.prod(pair.shape[1:]))
    kind, size = kind_of(x.dtype), x.dtype.itemsize
    whole = np.dtype(f"u{size}")
    top = whole.type(1 << (8 * size - 1))
    if kind == "f":
        bits = np.where(np.isnan(x), np.array(np.nan, x.dtype), x + x.dtype.type(0)).view(whole)
        bits = np.where(bits & top, ~bits, bits | top)
    elif kind == "i":
        bits = x.astype(f"i{size}").view(whole) ^ top
    else:
        bits = x.astype(whole)
    width = math.prod(x.shape[1:])
    if not width:
        return np.zeros(len(x), "S1")
    ordered = np.ascontiguousarray(bits.astype(whole.newbyteorder(">")))
    return ordered.reshape(len(x), width).view(f"S{width * size}").reshape(-1)


def _keys(rows: Block) -> Block:
    return sort_keys(rows) if rows.ndim == 1 else _row_keys(rows)


def _without_value(rows: Block) -> Block | None:
    """Return which rows hold NaN; None if none does."""
    if kind_of(rows.dtype) not in "fc":
        return None
    found: Block = np.isnan(sort_keys(rows))
    if rows.ndim > 1:
        found = np.logical_or.reduce(found, axis=1)
    return found if found.any() else None


def _rises(keys: Block, nan: Block | None, equal_nan: bool) -> Block:
    """Return where sorted keys differ from the one before."""
    found: Block = np.ones(len(keys), bool)
    found[1:] = keys[1:] != keys[:-1]
    if nan is not None:
        if not equal_nan:
            found |= nan
        elif keys.dtype.kind != "S":
            found[1:] &= ~(nan[1:] & nan[:-1])
    return found


def _own(
    rows: Block, wanted: Wanted, equal_nan: bool, numbers: Ints | None, counts: Ints | None
) -> _Own:
    """Find the distinct ones of some rows.

    Args:
        rows: elements, or rows of a table.
        wanted: what is wanted besides.
        equal_nan: whether all NaN are alike.
        numbers: the number of each row among all; None: they are in order, from 0 on.
        counts: how often each occurs; None: once.
    """
    keys = _keys(rows)
    plain = rows.ndim == 1 and numbers is None and counts is None
    if plain and _in_short_range(keys):
        return _counted(keys, wanted)
    if plain and not wanted.indices and not wanted.inverse:
        ordered = np.sort(keys)
        first = _rises(ordered, _without_value(ordered), equal_nan)
        times = np.diff(np.flatnonzero(first), append=len(keys)) if wanted.counts else None
        return _Own(ordered[first].astype(rows.dtype, copy=False), None, times, None)
    if numbers is not None and keys.dtype.kind == "c":  # of all NaN the first in order counts
        order = np.lexsort((numbers, keys))
    else:
        order = np.argsort(keys, kind="stable")
    nan = _without_value(rows)
    first = _rises(keys[order], None if nan is None else nan[order], equal_nan)
    starts = np.flatnonzero(first)
    return _Own(
        rows[order[starts]],
        _first_numbers(order, starts, numbers, keys.dtype.kind) if wanted.indices else None,
        _times(order, starts, counts) if wanted.counts else None,
        _places(order, first) if wanted.inverse else None,
    )


def _in_short_range(keys: Block) -> bool:
    """Whether keys are integers of which a table has about as many entries as there are keys."""
    if not keys.size or keys.dtype.kind not in "iu":
        return False
    least, greatest = int(keys.min()), int(keys.max())
    return greatest - least < 2 * keys.size and greatest < 1 << 62 and least > -(1 << 62)


def _counted(keys: Block, wanted: Wanted) -> _Own:
    """Find the distinct ones of integers in a short range by counting, without sorting."""
    least = int(keys.min())
    entries = keys.astype(np.int64) - least
    counts = np.bincount(entries)
    present = np.flatnonzero(counts)
    first, places = None, None
    if wanted.indices:
        table = np.empty(len(counts), np.int64)
        table[entries[::-1]] = np.arange(len(entries))[::-1]  # of equal ones the last one stays
        first = table[present]
    if wanted.inverse:
        places = (np.cumsum(counts > 0) - 1)[entries]
    rows = (present + least).astype(keys.dtype)
    return _Own(rows, first, counts[present] if wanted.counts else None, places)


def _first_numbers(order: Ints, starts: Ints, numbers: Ints | None, kind: str) -> Ints:
    """Return the number of the first of each stretch of equal rows."""
    found = order[starts]
    if numbers is None:
        return found
    if kind == "c" or not len(starts):
        return numbers[found]
    return np.minimum.reduceat(numbers[order], starts)


def _times(order: Ints, starts: Ints, counts: Ints | None) -> Ints:
    """Return how often the rows of each stretch occur."""
    if counts is None or not len(starts):
        return np.diff(starts, append=len(order))
    return np.add.reduceat(counts[order], starts)


def _places(order: Ints, first: Block) -> Ints:
    """Return for each row, in their own order, the number of its stretch."""
    found = np.empty(len(order), np.int64)
    found[order] = np.cumsum(first) - 1
    return found


def _numbers(local: Ints, box: Box, shape: Sequence[int]) -> Ints:
    """Return numbers in the whole array, in C order, of elements of a box."""
    at = np.unravel_index(local, box.shape)
    found = np.zeros(len(local), np.int64)
    for d, own in enumerate(at):
        found = found * shape[d] + own + box.starts[d]
    return found


# among devices


class Distinct(NamedTuple):
    """Distinct rows, in order, and what else was wanted, all split alike."""

    rows: Array
    indices: Array | None
    inverse: Array | None
    counts: Array | None


def distinct(x: Array, wanted: Wanted, *, equal_nan: bool, of_rows: bool) -> Distinct:
    """Find the distinct elements of an array, or rows of a table.

    Args:
        x: on a mesh or one device; a table of two dims whose rows are not split, ``of_rows``.
        wanted: what is wanted besides.
        equal_nan: whether all NaN are alike.
        of_rows: whether rows count, instead of elements.

    Returns:
        What is wanted; the numbers of elements are those of the flat array, and ``inverse`` is
        laid out like ``x``, without the dim of a row's elements.
    """
    return _Search(here(), x, wanted, equal_nan, of_rows).found()


@final
class _Search:
    """One search for what is distinct."""

    def __init__(
        self, world: RuntimeWorld, x: Array, wanted: Wanted, equal_nan: bool, of_rows: bool
    ) -> None:
        self.world, self.x, self.wanted, self.equal_nan = world, x, wanted, equal_nan
        self.of_rows = of_rows
        self.width = x.shape[1:] if of_rows else ()
        self.layout: Layout = x.aval.layout
        sharding = x.sharding
        if isinstance(sharding, NamedSharding):
            self.axes = tuple(a for d in range(x.ndim) for a in sharding.spec.axes(x.ndim)[d])
        else:
            self.axes = ()
        self.cells = self.layout.piece_count
        self.process_of = world.process_map(sharding)
        self.held = [i for i, b in enumerate(x._live()) if b is not None]

    def found(self) -> Distinct:
        """Return what is wanted."""
        own = self._each(self._of_block, self.x.nbytes)
        cuts = self._sizes(own)
        runs = self._arrays(own, cuts)
        ranks: Blocks
        if self.cells > 1 and sum(r.nbytes for r in runs) <= GATHERED_SORT:
            results, ranks = self._gathered(runs, cuts)
        elif sum(a < b for a, b in pairwise(cuts)) < 2:
            results, ranks = runs, self._counting(own, cuts)
        else:
            results, ranks = self._exchanged(runs, cuts)
        rest = iter(results[1:])
        return Distinct(
            results[0],
            next(rest) if self.wanted.indices else None,
            self._inverse(own, ranks) if self.wanted.inverse else None,
            next(rest) if self.wanted.counts else None,
        )

    def _each(self, make: Callable[[int], _Own], nbytes: int) -> list[_Own | None]:
        """Call a function for each piece here, side by side if they are large."""
        results: list[_Own | None] = [None] * self.cells

        def one(piece: int) -> None:
            results[piece] = make(piece)

        tasks = [partial(one, p) for p in self.held]
        if nbytes >= LARGE:
            self.world.workers.run(tasks)
            return results
        for task in tasks:
            task()
        return results

    def _of_block(self, piece: int) -> _Own:
        """Find the distinct ones of a block, with their numbers in the whole array."""
        block = self.x._live()[piece]
        assert block is not None
        box = self.layout.box(piece)
        rows = block if self.of_rows else block.reshape(-1)
        found = _own(rows, self.wanted, self.equal_nan, None, None)
        if found.numbers is None:
            return found
        numbers = found.numbers + box.starts[0]
        if not self.of_rows:
            numbers = _numbers(found.numbers, box, self.x.shape)
        return _Own(found.rows, numbers, found.counts, found.places)

    # arrays of one row for each distinct one

    def _kind(self, cuts: Cuts, dtype: Any, width: tuple[int, ...] = ()) -> ArrayType:
        """Return the type of rows that are split like the operand, or whole on each device."""
        sharding = self.x.sharding
        if isinstance(sharding, NamedSharding):
            axes = self.axes if len(cuts) > 2 else ()
            placement = (Split(axes, cuts), *[Split((), (0, n)) for n in width])
            sharding = named_sharding(sharding.mesh, placement, sharding.memory_kind)
        return self.world.type_of((cuts[-1], *width), dtype, sharding, self.x.committed)

    def _sizes(self, own: Sequence[_Own | None]) -> Cuts:
        """Return where the rows of each piece begin among all, and how many there are."""
        sizes = [None if o is None else [len(o.rows)] for o in own]
        return (0, *accumulate(told(sizes, self.x, self.axes)[:, 0].tolist()))

    def _arrays(self, own: Sequence[_Own | None], cuts: Cuts) -> list[Array]:
        """Return the parts of what was found in each piece as arrays."""
        found = [_array(self._rows(cuts), [None if o is None else o.rows for o in own])]
        long = self._kind(cuts, _LONG)
        if self.wanted.indices:
            found.append(_array(long, [None if o is None else o.numbers for o in own]))
        if self.wanted.counts:
            found.append(_array(long, [None if o is None else o.counts for o in own]))
        return found

    def _rows(self, cuts: Cuts) -> ArrayType:
        return self._kind(cuts, self.x.dtype, self.width)

    def _counting(self, own: Sequence[_Own | None], cuts: Cuts) -> Blocks:
        """Return the numbers of rows that are distinct already."""
        pairs = zip(own, cuts[:-1], strict=True)
        return tuple(None if o is None else a + np.arange(len(o.rows)) for o, a in pairs)

    def _inverse(self, own: Sequence[_Own | None], ranks: Blocks) -> Array:
        """Return for each element of the operand its place among the distinct ones."""
        x = self.x
        blocks: list[Block | None] = [None] * self.cells
        for piece in self.held:
            found, rank, block = own[piece], ranks[piece], x._live()[piece]
            assert found is not None
            assert found.places is not None
            assert rank is not None
            assert block is not None
            shape = block.shape[: x.ndim - len(self.width)]
            blocks[piece] = rank.astype(np.int64, copy=False)[found.places].reshape(shape)
        if self.of_rows:
            return _array(self._kind(self.layout.cuts[0], _LONG), blocks)
        return _array(self.world.type_of(x.shape, _LONG, x.sharding, x.committed), blocks)

    # what is in several pieces

    def _merged(self, blocks: Sequence[Block]) -> _Own:
        """Find the distinct ones of runs that came together."""
        rest = iter(blocks[1:])
        numbers = next(rest) if self.wanted.indices else None
        counts = next(rest) if self.wanted.counts else None
        return _own(blocks[0], self.wanted, self.equal_nan, numbers, counts)

    def _gathered(self, runs: Sequence[Array], cuts: Cuts) -> tuple[list[Array], Blocks]:
        """Let each process find all that is distinct, and keep it."""
        own = self._merged([known(r) for r in runs])
        ranks: list[Block | None] = [None] * self.cells
        if own.places is not None:
            for piece in self.held:
                ranks[piece] = own.places[cuts[piece] : cuts[piece + 1]]
        return self._arrays([own], (0, len(own.rows))), tuple(ranks)

    def _splitters(self, run: Array, cuts: Cuts) -> Block:
        """Choose keys that cut all rows into nearly equal parts, from samples of each run."""
        size, cells = cuts[-1], self.cells
        most = min(8 * cells * cells, SORT_SAMPLES, max(4 * cells, size // (4 * cells)))
        gap = max(1, size // most)
        where = [
            a + at
            for a, b in pairwise(cuts)
            for at in range(min(gap, b - a) - 1, b - a, gap)
            if b > a
        ]
        keys = np.sort(_keys(known(bind("take_positions", run, dims=((0, (tuple(where),)),)))))
        ranks = [len(keys) * i // cells for i in range(1, cells)]
        return keys[ranks]

    def _exchanged(self, runs: Sequence[Array], cuts: Cuts) -> tuple[list[Array], Blocks]:
        """Bring equal rows together, and return what is distinct, and the place of each row."""
        splitters, rows = self._splitters(runs[0], cuts), runs[0]._live()
        counts = told(
            [
                None if b is None else np.searchsorted(_keys(b), splitters, "right").tolist()
                for b in rows
            ],
            self.x,
            self.axes,
        )
        lengths = np.diff(np.asarray(cuts))[:, None]
        bounds = np.concatenate([np.zeros((self.cells, 1), np.int64), counts, lengths], axis=1)
        parts = (0, *accumulate(np.diff(bounds, axis=1).sum(axis=0).tolist()))
        there, back = _segments(bounds, cuts)
        came = [self._passed(r.aval.layout, r.dtype, r._live(), parts, there) for r in runs]
        own = self._each(
            lambda piece: self._merged([_some(c[piece]) for c in came]), sum(r.nbytes for r in runs)
        )
        ends = self._sizes(own)
        results = self._arrays(own, ends)
        if not self.wanted.inverse:
            return results, (None,) * self.cells
        short = np.dtype(np.int32 if ends[-1] < 1 << 31 else np.int64)
        places = [
            None if o is None or o.places is None else (o.places + start).astype(short)
            for o, start in zip(own, ends[:-1], strict=True)
        ]
        middle = Layout((parts[-1],), (parts,), self._kind(cuts, short).layout.tensor)
        return results, self._passed(middle, short, tuple(places), cuts, back)

    def _passed(
        self, layout: Layout, dtype: Any, blocks: Blocks, cuts: Cuts, segments: Sequence[Any]
    ) -> Blocks:
        """Bring rows to other places, cut elsewhere."""
        world, (size, *width) = self.world, layout.shape
        target = Layout(layout.shape, (cuts, *layout.cuts[1:]), layout.tensor)
        maps = (DimMap(size, size, segments), *[DimMap.slice(n, None, None, 1) for n in width])
        source = Source(layout, maps)
        if world.ledgers:
            own = self._kind(layout.cuts[0], dtype, tuple(width)).sharding
            move = Move(own, (own,), target, (source,), dtype.itemsize)
            wired(world, "unique", [move_wire(self.x.aval.str_short(), move)])
        part = assemble(target, [source], self.process_of, world.process_index)
        return run_part(world, part, (blocks,), dtype)


def _array(kind: ArrayType, blocks: Sequence[Block | None]) -> Array:
    return Array(kind, tuple(blocks))


def _some(block: Block | None) -> Block:
    assert block is not None
    return block


def _segments(bounds: Ints, cuts: Cuts) -> tuple[list[Any], list[Any]]:
    """Return which stretches of runs make up parts, and which of the parts make up the runs.

    Args:
        bounds: for each run where the parts begin in it, and its length.
        cuts: where the runs begin.
    """
    cells, at = len(cuts) - 1, 0
    there, back = [], []
    for part in range(cells):
        for cell in range(cells):
            start, stop = int(bounds[cell, part]), int(bounds[cell, part + 1])
            if start < stop:
                there.append((at, stop - start, cuts[cell] + start, 1))
                back.append((cuts[cell] + start, stop - start, at, 1))
            at += stop - start
    return there, sorted(back)
