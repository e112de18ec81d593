"""Schedules: in which order, and in which batches, the arrays of a tree are moved.

In: arrays' layouts before and after. Out: batches of their numbers. The arrays of a batch travel
together, so that small ones share messages; a donated source is freed with its batch, so batches
are small and ordered so that the least memory is in use at once. A large donated array is a
batch by itself and moves gradually (`Sweep`). All processes, and the plan, follow one schedule,
so it depends only on the layouts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product
from typing import Protocol, final

from meshard.algebra.layout import Cuts, Layout
from meshard.tuning import BATCH, GRADUAL

Interval = tuple[int, int]


class Moved(Protocol):
    """An array that moves."""

    @property
    def source(self) -> Layout:
        """Its layout before."""

    @property
    def destination(self) -> Layout:
        """Its layout after."""

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""


def is_gradual(layout: Layout, itemsize: int, *, donate: bool, hops: int = 1) -> bool:
    """Whether an array's source is freed while the array moves.

    >>> import numpy as np
    >>> whole = Layout((1 << 24,), ((0, 1 << 24),), np.zeros((1, 1), int))
    >>> is_gradual(whole, 4, donate=True), is_gradual(whole, 4, donate=False)
    (True, False)
    """
    return donate and hops == 1 and math.prod(layout.shape) * itemsize >= GRADUAL


def largest_piece(layout: Layout) -> int:
    """Return the elements of the largest piece of a layout.

    >>> import numpy as np
    >>> largest_piece(Layout((7,), ((0, 4, 7),), np.arange(2).reshape(2, 1)))
    4
    """
    if not layout.regular:
        return max([box.volume for box in layout.boxes], default=0)
    return math.prod([max([b - a for a, b in pairwise(cuts)], default=0) for cuts in layout.cuts])


def batches(leaves: Sequence[Moved], *, donate: bool) -> list[tuple[int, ...]]:
    """Return the numbers of the arrays that move together, batch by batch.

    Donated arrays that take less afterwards come first, the smallest first, since they make room;
    then those that take more, the one with the largest source first, since it makes most room.

    Args:
        leaves: the arrays.
        donate: whether each source is freed with its batch.
    """
    if len(leaves) == 1:
        return [(0,)]
    known: dict[tuple[int, int, int], tuple[int, int]] = {}
    sizes = []
    for leaf in leaves:
        before, after, itemsize = leaf.source, leaf.destination, leaf.itemsize
        key = id(before), id(after), itemsize
        if key not in known:
            known[key] = largest_piece(before) * itemsize, largest_piece(after) * itemsize
        sizes.append(known[key])
    most, limit = [max(pair) for pair in sizes], BATCH
    order = list(range(len(leaves)))
    if donate:
        order.sort(key=lambda i: _rank(*sizes[i]))
        most, limit = [leaf.itemsize * math.prod(leaf.source.shape) for leaf in leaves], GRADUAL
    found: list[tuple[int, ...]] = []
    batch: list[int] = []
    filled = 0
    for i in order:
        alone = is_gradual(leaves[i].source, leaves[i].itemsize, donate=donate)
        if batch and (alone or filled + most[i] > limit):
            found.append(tuple(batch))
            batch, filled = [], 0
        batch.append(i)
        filled += most[i]
        if alone:
            found.append((i,))
            batch, filled = [], 0
    return [*found, tuple(batch)] if batch else found


def _rank(before: int, after: int) -> tuple[bool, int]:
    return (False, after) if after <= before else (True, -before)


@final
@dataclass(frozen=True)
class Sweep:
    """The steps in which an array moves whose source is freed on the way.

    Each step takes an equal share of every segment of the leading dims, so that all processes send
    and receive evenly, and source and destination together take no more than the larger of them.

    Attributes:
        shape: the array's shape.
        cuts: the borders of each dim's segments.
        counts: into how many parts each segment of the first dims is cut; the others stay whole.

    >>> sweep = Sweep.of((6, 4), ((0, 4, 6), (0, 4)), 2)
    >>> [list(sweep.clipped(step, (0, 0), (6, 4))) for step in range(sweep.steps)]
    [[((0, 0), (2, 4)), ((4, 0), (1, 4))], [((2, 0), (2, 4)), ((5, 0), (1, 4))]]
    """

    shape: tuple[int, ...]
    cuts: tuple[Cuts, ...]
    counts: tuple[int, ...]

    @classmethod
    def of(cls, shape: tuple[int, ...], cuts: tuple[Cuts, ...], steps: int) -> Sweep:
        """Return a sweep of about that many steps.

        A dim is cut into single positions before the next dim is cut at all, so that what a step
        reads of a block is one run of its memory, or a few.
        """
        counts: list[int] = []
        for segments in cuts:
            if steps <= 1:
                break
            longest = max([b - a for a, b in pairwise(segments)], default=1)
            counts.append(max(1, min(steps, longest)))
            steps = -(-steps // counts[-1])
        return cls(shape, cuts, tuple(counts))

    @property
    def steps(self) -> int:
        """How many steps there are."""
        return math.prod(self.counts)

    @cached_property
    def segments(self) -> int:
        """In how many places of the array a step reads."""
        return math.prod([len(cuts) - 1 for cuts, _ in zip(self.cuts, self.counts, strict=False)])

    def _spans(self, step: int) -> list[list[Interval]]:
        """Return for each dim that is cut the ranges that belong to a step."""
        places = []
        for count in reversed(self.counts):
            step, place = divmod(step, count)
            places.append(place)
        found = []
        for cuts, count, place in zip(self.cuts, self.counts, reversed(places), strict=False):
            ends = [
                (a + (b - a) * place // count, a + (b - a) * (place + 1) // count)
                for a, b in pairwise(cuts)
            ]
            found.append([(a, b) for a, b in ends if a < b])
        return found

    def clipped(
        self, step: int, starts: Sequence[int], shape: Sequence[int]
    ) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Yield the parts of a box that belong to a step: where in the box, and their shapes."""
        cut = []
        for spans, start, size in zip(self._spans(step), starts, shape, strict=False):
            ends = [(max(a - start, 0), min(b - start, size)) for a, b in spans]
            cut.append([(a, b) for a, b in ends if a < b])
        whole = tuple(shape[len(cut) :])
        for ranges in product(*cut):
            at = (*[a for a, _ in ranges], *[0] * len(whole))
            yield at, (*[b - a for a, b in ranges], *whole)

    def runs(self, step: int, starts: Sequence[int], shape: Sequence[int]) -> Iterator[Interval]:
        """Yield the runs of a box, in elements in C order, that belong to a step.

        >>> sweep = Sweep.of((6, 4), ((0, 4, 6), (0, 4)), 2)
        >>> list(sweep.runs(0, (0, 2), (6, 2)))
        [(0, 4), (8, 10)]
        """
        if not shape:
            yield 0, 1
            return
        last = max(len(self.counts), 1)
        row = math.prod(shape[last:])
        for at, part in self.clipped(step, starts, shape):
            for place in product(
                *[range(a, a + n) for a, n in zip(at, part, strict=True)][: last - 1]
            ):
                first = 0
                for i, n in zip((*place, at[last - 1]), shape, strict=False):
                    first = first * n + i
                yield first * row, (first + part[last - 1]) * row
