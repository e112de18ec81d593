"""The cost of hops and routes: amounts by device, memory in use at once, messages and peers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, final

import numpy as np

from meshard.plan.figures.schedule import is_gradual
from meshard.plan.hops.cells import CellGrid
from meshard.plan.hops.exact import counter, product, volumes_of
from meshard.plan.hops.hop import Hop
from meshard.plan.hops.jobs import Tally, tallied
from meshard.plan.hops.route import Route
from meshard.tuning import TABLE_JOBS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


def windows(nbytes: int, max_bytes: int | None) -> int:
    """Return how many times a window opens until that many bytes have passed through it.

    >>> windows(10, 4), windows(10, None), windows(0, 4)
    (3, 1, 0)
    """
    if not nbytes:
        return 0
    return 1 if max_bytes is None else -(-nbytes // max(max_bytes, 1))


def added(parts: Iterable[tuple[Tally, int]]) -> Tally:
    """Return the sum of tallies, each times a number.

    >>> one = Tally(np.array([0, 2]), np.array([5, 6]))
    >>> added([(one, 2), (Tally(np.array([1, 2]), np.array([1, 1])), 1)]).as_dict()
    {0: 10, 1: 1, 2: 13}
    """
    listed = list(parts)
    if not listed:
        return Tally(np.empty(0, np.int64), np.empty(0, np.int64))
    units = union([t.units for t, _ in listed])
    amounts = np.zeros(len(units), counter(sum(tally.most * n for tally, n in listed)))
    for tally, n in listed:
        more = product(tally.amounts, n).astype(amounts.dtype, copy=False)
        amounts[places(units, tally.units)] += more
    return Tally(units, amounts)


def distinct(ascending: Ints) -> Ints:
    """Return each value of an ascending array once.

    >>> distinct(np.array([1, 1, 4])).tolist()
    [1, 4]
    """
    new = np.ones(len(ascending), bool)
    np.not_equal(ascending[1:], ascending[:-1], out=new[1:])
    return ascending if new.all() else ascending[new]


def union(units: Sequence[Ints]) -> Ints:
    """Return all values that occur in some ascending arrays, ascending."""
    if all(np.array_equal(u, units[0]) for u in units[1:]):
        return distinct(units[0])
    return distinct(np.sort(np.concatenate(units), kind="stable"))


def places(units: Ints, some: Ints) -> Ints | slice:
    """Return the positions of some units among all; both ascend."""
    return slice(None) if len(units) == len(some) else np.searchsorted(units, some)


def held(grid: CellGrid) -> Tally:
    """Return the elements that each unit holds.

    >>> from meshard.algebra.layout import Layout
    >>> held(CellGrid(Layout((5,), ((0, 3, 5),), np.array([[0, 1], [2, 3]])))).as_dict()
    {0: 3, 1: 3, 2: 2, 3: 2}
    """
    # A unit holds any element of an array once; a route adds up three layouts.
    volumes = volumes_of(grid.lengths, 4 * math.prod(grid.layout.shape))
    units, cells, _ = grid.held
    return tallied(units, units, volumes[cells])


@final
@dataclass(frozen=True)
class Footprint:
    """The elements of one array that are on each device while it takes a route.

    A source that is not donated stays; a donated one is freed when its destination is complete or,
    if the array moves gradually, while the destination is filled. Each layout in between is freed
    when the next is complete. A piece that needs no messages is a view of its source, which then
    stays, if it is at least half of it.

    Attributes:
        units: the devices, ascending.
        before: what each holds at first.
        peak: the most at once.
        after: what is left at the end.
    """

    units: Ints
    before: Ints
    peak: Ints
    after: Ints

    @property
    def most(self) -> int:
        """The most elements that live on one device at once."""
        return int(self.peak.max(initial=0))

    def over(self, units: Ints) -> Ints:
        """Return the three amounts, one per row, for a set of units that contains all of these."""
        found = np.zeros((3, len(units)), self.peak.dtype)
        found[:, places(units, self.units)] = self.before, self.peak, self.after
        return found


def footprint(route: Route, *, donate: bool = False, itemsize: int = 1) -> Footprint:
    """Return the elements on each device while an array takes a route.

    Args:
        route: the route.
        donate: whether the source is given up.
        itemsize: bytes of an element, which decide whether the array moves gradually.
    """
    gradual = is_gradual(route.source, itemsize, donate=donate, hops=len(route.hops))
    stages = [held(hop.before) for hop in route.hops] + [held(route.hops[-1].after)]
    units = union([s.units for s in stages])
    amounts = np.zeros((len(stages), len(units)), stages[0].amounts.dtype)
    for row, stage in zip(amounts, stages, strict=True):
        row[places(units, stage.units)] = stage.amounts
    first, last = amounts[0], amounts[-1]
    between = [a + b for a, b in pairwise(amounts[1:])]
    peak = amounts.max(axis=0) if gradual else first + np.max([last, *between], axis=0)
    after = last if donate else first + last
    if len(route.hops) == 1:
        received = route.hops[0].received
        lacks = np.zeros(len(units), received.amounts.dtype)
        lacks[places(units, received.units)] = received.amounts
        view = (lacks == 0) & (2 * last >= first)
        peak, after = np.where(view, first, peak), np.where(view, first, after)
    return Footprint(units, first, peak, after)


@final
@dataclass(frozen=True, slots=True)
class Traffic:
    """The messages of one hop.

    Attributes:
        messages: pairs of a sender and a receiver.
        peers: the most units that one unit sends to, or receives from.
        exact: whether ``messages`` was counted; otherwise it is an upper bound.
        peers_exact: the same for ``peers``.
    """

    messages: int
    peers: int
    exact: bool
    peers_exact: bool


def jobs_at_most(hop: Hop) -> int:
    """Return how many pairs of overlapping cells there are, each counted per receiver.

    There are no more jobs than that, except for boxes that are cut between two senders.
    """
    copies = hop.after.copies
    if len(copies) and (copies == copies[0]).all():
        return math.prod(len(m.starts) for m in hop.merges) * int(copies[0])
    counts = np.ones(1, np.int64)
    for merge in hop.merges:
        first, last = merge.of_destination
        counts = np.multiply.outer(counts, last - first).reshape(-1)
    return int((counts * copies).sum())


def traffic_of(hop: Hop, *, most_jobs: int = TABLE_JOBS) -> Traffic:
    """Return how many messages a hop takes, and how many peers a unit has.

    Args:
        hop: the hop.
        most_jobs: list the jobs in order to count, if there are no more than this.
    """
    rows = jobs_at_most(hop)
    copies = hop.before.copies
    shares = int(np.maximum(copies - 1, 0).sum()) if hop.split else 0
    if rows + shares <= most_jobs:
        jobs = hop.jobs()
        sizes = jobs.elements > 0
        scale = int(jobs.receiver.max(initial=0)) + 1
        pairs = np.unique(jobs.sender[sizes] * scale + jobs.receiver[sizes])
        senders, receivers = np.divmod(pairs, scale)
        peers = [np.unique(x, return_counts=True)[1].max(initial=0) for x in (senders, receivers)]
        return Traffic(len(pairs), int(max(peers)), exact=True, peers_exact=True)
    grids = (hop.before, hop.after)
    units: list[int] = [len(distinct(grid.held[0])) for grid in grids]
    alone = all(len(grid.held[0]) == n for grid, n in zip(grids, units, strict=True))
    exact = alone and int(copies.max(initial=0)) <= 1
    messages = rows - len(hop.stays[0]) if exact else min(rows + shares, units[0] * units[1])
    sending, receiving = int(hop.after.holders.shape[1]), int(hop.before.holders.shape[1])
    for merge in hop.merges:
        sending *= _longest(merge.of_source)
        receiving *= _longest(merge.of_destination)
    most_peers = max(min(sending, units[1]), min(receiving, units[0]))
    return Traffic(messages, most_peers, exact=exact, peers_exact=False)


def _longest(spans: tuple[Ints, Ints]) -> int:
    return int((spans[1] - spans[0]).max(initial=0))
