"""The cost of hops and routes: amounts by device, memory in use at once, messages and peers.

Windows: the most bytes that may be in flight at once, one rule for planning and for moving.

``max_bytes`` is the most bytes that are in flight from and to one process at once, besides its
parts of source and destination. Half of it is for bytes that leave a process and half for bytes
that enter, in equal parts for each other process. Boxes are cut as small as that requires, so it
must hold one element for each. Layouts between two hops count, too. Within one process nothing is
in flight. Devices that do not exist belong to the processes that they name; if only layouts are
known, each device is a process by itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import index
from typing import TYPE_CHECKING, final

import numpy as np

from meshard.algebra.arguments import shown
from meshard.errors import ArgumentError
from meshard.plan.figures.schedule import is_gradual
from meshard.plan.hops.cells import CellGrid, Units, distinct, stretches
from meshard.plan.hops.hop import Hop, Route
from meshard.plan.hops.jobs import Tally, counter, product, tallied, volumes_of
from meshard.plan.hops.spread import spans_of, spread
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
    alike = _added_alike(units, listed)
    if alike is not None:
        return alike
    amounts = np.zeros(len(units), counter(sum(tally.most * n for tally, n in listed)))
    for tally, n in listed:
        more = product(tally.amounts, n).astype(amounts.dtype, copy=False)
        amounts[positions(units, tally.units)] += more
    return Tally(units, amounts)


def _added_alike(units: Ints, listed: Sequence[tuple[Tally, int]]) -> Tally | None:
    """Return the sum of tallies over the same units, all of them uniform; None for others."""
    each, places, less = 0, [], []
    for tally, n in listed:
        if tally.uniform is None or len(tally.units) != len(units):
            return None
        amount, some, fewer = tally.uniform
        each += amount * n
        places.append(some)
        less.append(product(fewer, n))
    every = distinct(np.concatenate(places))
    sums = np.zeros(len(every), counter(each))
    for some, fewer in zip(places, less, strict=True):
        sums[positions(every, some)] += fewer.astype(sums.dtype, copy=False)
    return Tally.alike(units, each, every, sums)


def union(units: Sequence[Ints]) -> Ints:
    """Return all values that occur in some ascending arrays, ascending."""
    if all(u is units[0] or np.array_equal(u, units[0]) for u in units[1:]):
        return distinct(units[0])
    return distinct(np.concatenate(units))


def positions(units: Ints, some: Ints) -> Ints | slice:
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
        found[:, positions(units, self.units)] = self.before, self.peak, self.after
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
        row[positions(units, stage.units)] = stage.amounts
    first, last = amounts[0], amounts[-1]
    between = [a + b for a, b in pairwise(amounts[1:])]
    peak = amounts.max(axis=0) if gradual else first + np.max([last, *between], axis=0)
    after = last if donate else first + last
    if len(route.hops) == 1:
        received = route.hops[0].received
        lacks = np.zeros(len(units), received.amounts.dtype)
        lacks[positions(units, received.units)] = received.amounts
        view = (lacks == 0) & (2 * last >= first)
        peak, after = np.where(view, first, peak), np.where(view, first, after)
    return Footprint(units, first, peak, after)


def peak_elements(route: Route, *, donate: bool = False, itemsize: int = 1) -> int:
    """Return the most elements of one device in a `footprint`, without a list of all devices."""
    hops = route.hops
    if any(hop.uniform is None for hop in hops):
        return footprint(route, donate=donate, itemsize=itemsize).most
    stages = [math.prod(layout.largest_piece) for layout in route.layouts]
    first, last = stages[0], stages[-1]
    if len(hops) == 1 and 2 * last >= first and not hops[0].received.most:
        return first  # every device has a view
    if is_gradual(route.source, itemsize, donate=donate, hops=len(hops)):
        return max(stages)
    return first + max(last, *[a + b for a, b in pairwise(stages[1:])], 0)


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
        pairs = zip(hop.before.cuts, hop.after.cuts, strict=True)
        return math.prod([stretches(a, b) for a, b in pairs]) * int(copies[0])
    return int((_overlaps(hop, "of_destination") * copies).sum())


def _overlaps(hop: Hop, side: str) -> Ints:
    """Return how many cells of the other layout each cell of one overlaps."""
    counts = np.ones(1, np.int64)
    for merge in hop.merges:
        first, last = getattr(merge, side)
        counts = np.multiply.outer(counts, last - first).reshape(-1)
    return counts


def _each_alone(hop: Hop) -> bool:
    """Whether units have at most one cell before and one after, and no cell has replicas before.

    A unit then sends one message to each unit that needs part of its cell, except itself.
    """
    grids = (hop.before, hop.after)
    alone = all(g.plain or len(distinct(g.held[0])) == len(g.held[0]) for g in grids)
    return alone and int(hop.before.copies.max(initial=0)) <= 1


@final
@dataclass(frozen=True, slots=True)
class Messages:
    """How many pairs of a sender and a receiver a hop has.

    Attributes:
        count: their number.
        exact: whether they were counted; otherwise it is an upper bound.
    """

    count: int
    exact: bool


def messages_of(hop: Hop, *, most_jobs: int = TABLE_JOBS) -> Messages:
    """Return how many messages a hop takes.

    Args:
        hop: the hop.
        most_jobs: list the jobs in order to count, if there are no more than this.
    """
    if not hop.moved:
        return Messages(0, exact=True)
    rows = jobs_at_most(hop)
    if _each_alone(hop):
        own = hop.keepers[0] if hop.plain else hop.stays[0]
        return Messages(rows - len(own), exact=True)
    shares = _shares(hop)
    if rows + shares <= most_jobs:
        return Messages(len(_pairs(hop)[0]), exact=True)
    senders, receivers = (len(distinct(grid.held[0])) for grid in (hop.before, hop.after))
    return Messages(min(rows + shares, senders * receivers), exact=False)


def _shares(hop: Hop) -> int:
    """Return how many borders between two senders can cut a box."""
    return int(np.maximum(hop.before.copies - 1, 0).sum()) if hop.split else 0


def _pairs(hop: Hop) -> tuple[Ints, Ints]:
    """Return the senders and receivers of all messages, listed from the jobs."""
    jobs = hop.jobs()
    sizes = jobs.elements > 0
    scale = int(jobs.receiver.max(initial=0)) + 1
    return np.divmod(distinct(jobs.sender[sizes] * scale + jobs.receiver[sizes]), scale)


def traffic_of(hop: Hop, *, most_jobs: int = TABLE_JOBS) -> Traffic:
    """Return how many messages a hop takes, and how many peers a unit has.

    Args:
        hop: the hop.
        most_jobs: list the jobs in order to count, if there are no more than this.
    """
    if not hop.moved:
        return Traffic(0, 0, exact=True, peers_exact=True)
    if _each_alone(hop):
        return _counted(hop)
    if jobs_at_most(hop) + _shares(hop) <= most_jobs:
        senders, receivers = _pairs(hop)
        # Senders ascend; receivers are numbers of devices, few or sparse.
        peers = [most_alike(senders), most_alike(np.sort(receivers))]
        return Traffic(len(senders), max(peers), exact=True, peers_exact=True)
    found = messages_of(hop, most_jobs=0)
    units = [len(distinct(grid.held[0])) for grid in (hop.before, hop.after)]
    sending, receiving = int(hop.after.holders.shape[1]), int(hop.before.holders.shape[1])
    for merge in hop.merges:
        sending *= _longest(merge.of_source)
        receiving *= _longest(merge.of_destination)
    most_peers = max(min(sending, units[1]), min(receiving, units[0]))
    return Traffic(found.count, most_peers, exact=found.exact, peers_exact=False)


def _counted(hop: Hop) -> Traffic:
    """Return the traffic of units that have one cell each, from the cells that each overlaps."""
    copies = hop.after.copies
    _, source, destination, _, _ = hop.stays
    receiving = _overlaps(hop, "of_destination")
    messages = int((receiving * copies).sum()) - len(source)
    if int(copies.max(initial=0)) == int(copies.min(initial=0)):
        sending = _overlaps(hop, "of_source") * int(copies.max(initial=0))
    else:
        each = copies.reshape(hop.after.sizes)
        spans = spans_of(hop.after), spans_of(hop.before)
        sending = spread(each, *spans, counting=True).reshape(-1)
    sending = np.where(hop.before.copies == 0, 0, sending)
    np.subtract.at(sending, source, 1)
    # A receiver that has part of its cell receives one message less than another of that cell.
    keepers = np.bincount(destination, minlength=len(receiving))
    receiving = receiving - (keepers >= copies) * (copies > 0)
    receiving[copies == 0] = 0
    peers = max(int(sending.max(initial=0)), int(receiving.max(initial=0)))
    return Traffic(messages, peers, exact=True, peers_exact=True)


def most_alike(ascending: Ints) -> int:
    """Return how often the most frequent value of an ascending array occurs.

    >>> most_alike(np.array([2, 2, 2, 5, 7, 7]))
    3
    """
    begins = np.flatnonzero(np.diff(ascending, prepend=-1))
    return int(np.diff(begins, append=len(ascending)).max(initial=0))


def _longest(spans: tuple[Ints, Ints]) -> int:
    return int((spans[1] - spans[0]).max(initial=0))


def checked_window(max_bytes: object, what: str) -> int | None:
    """Return ``max_bytes`` as an integer, or None for no limit.

    Raises:
        ArgumentError: if it is neither None nor a positive integer.
    """
    if max_bytes is None:
        return None
    try:
        window = -1 if isinstance(max_bytes, bool) else index(max_bytes)  # type: ignore[arg-type]
    except TypeError:
        window = -1
    if window < 1:
        raise ArgumentError(
            f"{what}: max_bytes must be a positive number of bytes, or None for no limit, not "
            f"{shown(max_bytes)}."
        )
    return window


def quota(window: int, processes: int) -> int:
    """Return the bytes that may be in flight between two processes in one direction.

    >>> quota(600, 4), quota(600, 1)
    (100, 300)
    """
    return window // (2 * max(1, processes - 1))


def check_window(window: int | None, processes: int, itemsize: int, array: str, what: str) -> None:
    """Refuse a window that does not hold one element to and from each other process.

    Args:
        window: the bytes; None for no limit.
        processes: how many processes there are.
        itemsize: bytes per element.
        array: the array's name, for the message.
        what: the function that was called, for the message.

    Raises:
        ArgumentError: if it is too small.
    """
    if window is None or processes < 2 or itemsize <= quota(window, processes):
        return
    raise ArgumentError(
        f"{what}: max_bytes={window} allows {quota(window, processes)} bytes at a time to each of "
        f"{processes - 1} other processes, and as many from it, but one element of {array} takes "
        f"{itemsize} bytes. Give at least {2 * (processes - 1) * itemsize}."
    )


def between(route: Route, itemsize: int, units: Units) -> int:
    """Return the most bytes that one process holds of layouts between source and destination.

    >>> import numpy as np
    >>> from meshard.algebra.layout import Layout
    >>> a, b, c = (Layout((4,), ((0, 4),), np.array([[d]])) for d in range(3))
    >>> between(Route("around", (a, b, c)), 8, lambda ids: ids)
    32
    """
    middle = [(held(CellGrid(layout, units)), itemsize) for layout in route.layouts[1:-1]]
    pairs = [[a, b] for a, b in pairwise(middle)] or [middle]
    return max([added(pair).most for pair in pairs])
