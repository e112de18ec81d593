"""Hops: every element of one layout goes straight to the units that need it in another.

In: two layouts of one shape, and the units. Out: which unit sends which part of which cell to which
other, for all units or for a single one. Cells of the source are disjoint, so the choice of senders
decomposes: the elements of one cell that remote units need form a stream (by destination cell in C
order, then by receiver), and its holders take equal consecutive shares of the stream. A box that a
share's border falls into is cut there, so that the largest sender is as small as it can be. Both
ends derive this from the layouts alone.

Near before far: exchanges in which holders on the receiver's own host give before others.

In: two layouts, and the host of each device. Out: one hop for the receivers of each host. A cell
that a device of that host holds comes from there; only the others come from other hosts.

Routes: the layouts that an array passes through on its way to another layout.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, final

import numpy as np

from meshard.algebra.box import Box
from meshard.algebra.layout import Layout
from meshard.errors import DataLoss
from meshard.plan.hops.cells import (
    CellGrid,
    Merge,
    Units,
    consecutive,
    each_device,
    loss_text,
    merged_cuts,
)
from meshard.plan.hops.jobs import (
    Jobs,
    Tally,
    counter,
    flat_boxes,
    product,
    tallied,
    total,
    volumes_of,
)
from meshard.plan.hops.shares import level_borders
from meshard.plan.hops.spread import spans_of, spread
from meshard.tuning import DEVICES_AT_ONCE, MOST_HOSTS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


def unit_map(process_of: Mapping[int, int]) -> Units:
    """Return the map from device ids to their processes; -1 for ids without one."""
    ids = np.array(sorted(process_of), np.int64)
    processes = np.array([process_of[int(i)] for i in ids], np.int64)

    def units(devices: Ints) -> Ints:
        place = np.minimum(np.searchsorted(ids, devices), len(ids) - 1)
        found: Ints = np.where(ids[place] == devices, processes[place], -1)
        return found

    return units


@final
@dataclass(frozen=True)
class _Overlaps:
    """Pairs of cells that share elements, one per row."""

    source: Ints
    destination: Ints
    volume: Ints


def only_alive(units: Units, alive: Collection[int]) -> Units:
    """Return the same map for live devices, and -1 for all others."""
    living = np.array(sorted(alive), np.int64)

    def filtered(devices: Ints) -> Ints:
        found: Ints = np.where(np.isin(devices, living), units(devices), -1)
        return found

    return filtered


@final
class Hop:
    """A direct exchange from one layout to another of the same shape.

    Args:
        source: where the elements are.
        destination: where they are to be.
        units: maps device ids to the units that send and receive; by default each device is one.
        alive: the devices that still hold their part of the source; None for all.
        split: whether a box may be cut between two senders.
        load: the elements that units send in other exchanges at the same time; None for none. They
            count if some devices are gone.

    Attributes:
        level: whether holders have unequal shares where that makes the largest sender smaller: if
            some are gone.

    Raises:
        DataLoss: if a cell of the source has no holder left, and a unit needs it.

    >>> from meshard.algebra.layout import even_cuts
    >>> rows = Layout((8,), (even_cuts(8, 4),), np.arange(4).reshape(4, 1))
    >>> whole = Layout((8,), ((0, 8),), np.arange(4).reshape(1, 4))
    >>> hop = Hop(rows, whole)
    >>> hop.moved, hop.received.as_dict(), hop.sent.most
    (24, {0: 6, 1: 6, 2: 6, 3: 6}, 6)
    """

    def __init__(
        self,
        source: Layout,
        destination: Layout,
        units: Units = each_device,
        *,
        alive: Collection[int] | None = None,
        split: bool = True,
        load: Mapping[int, int] | None = None,
    ) -> None:
        assert source.shape == destination.shape
        self.source = source
        self.destination = destination
        self.split = split
        self.level = split and alive is not None
        self.load = load
        self.units = units
        self.before = CellGrid(source, units if alive is None else only_alive(units, alive))
        self.after = CellGrid(destination, units)
        # No figure of a hop is more than four times what all units together hold.
        width = max(self.before.holders.shape[1], self.after.holders.shape[1])
        self.most = 4 * math.prod(source.shape) * width
        self._check_alive()

    @property
    def shape(self) -> tuple[int, ...]:
        """The array's shape."""
        return self.source.shape

    @cached_property
    def merges(self) -> tuple[Merge, ...]:
        """For each dim the common refinement of the cuts."""
        return merged_cuts(self.before, self.after)

    # what all units know

    @cached_property
    def stays(self) -> tuple[Ints, Ints, Ints, Ints, Ints]:
        """Pairs of cells that share elements and are on one unit.

        These are the unit, the two cells, the unit's column among the destination cell's holders,
        and the number of elements that they share.
        """
        # Both lists ascend by unit: each row of one meets a range of rows of the other.
        (unit, cell, _), (other, target, column) = self.before.held, self.after.held
        if self.plain:
            rows, volume = self.keepers
            return unit[rows], cell[rows], target[rows], column[rows], volume
        first = np.searchsorted(other, unit)
        counts = np.searchsorted(other, unit, side="right") - first
        rows, match = np.repeat(np.arange(len(unit)), counts), consecutive(first, counts)
        volume = self.overlap(cell[rows], target[match])
        some = volume > 0
        rows, match = rows[some], match[some]
        return unit[rows], cell[rows], target[match], column[match], volume[some]

    @cached_property
    def plain(self) -> bool:
        """Whether units are devices, the same before and after, and each holds one cell of each."""
        before, after = self.source.slots, self.destination.slots
        if not (self.before.plain and self.after.plain) or before is None or after is None:
            return False
        return before[0] is after[0] or np.array_equal(before[0], after[0])

    @cached_property
    def keepers(self) -> tuple[Ints, Ints]:
        """Of a plain hop the places of devices that keep elements, ascending, and how many."""
        places, amounts = [], []
        # In parts, whose intermediate results stay in the cache: pages of memory that a process
        # uses for the first time take longer than the arithmetic.
        for begin in range(0, max(1, self.source.device_count), DEVICES_AT_ONCE):
            some = slice(begin, begin + DEVICES_AT_ONCE)
            mine, other = self.source.boxes_of(some), self.destination.boxes_of(some)
            volume: Ints | int = 1
            for (start, stop), (low, high) in zip(mine, other, strict=True):
                shared = np.minimum(stop, high) - np.maximum(start, low)
                volume = np.maximum(shared, 0).astype(counter(self.most), copy=False) * volume
            each = np.broadcast_to(volume, len(range(*some.indices(self.source.device_count))))
            kept = np.flatnonzero(each)
            places.append(kept + begin)
            amounts.append(each[kept])
        return np.concatenate(places), np.concatenate(amounts)

    @cached_property
    def uniform(self) -> tuple[int, int] | None:
        """The elements of every cell before and after, if those of a plain hop are equal."""
        if not self.plain or not (self.source.even and self.destination.even):
            return None
        before, after = (math.prod(x.largest_piece) for x in (self.source, self.destination))
        return before, after

    @cached_property
    def _local(self) -> tuple[Ints, Ints]:
        """The keys of pairs of cells on one unit, without and with the holder's column.

        Both ascend: by source cell, then destination cell, then the unit's place among the
        destination cell's holders.
        """
        _, source, destination, column, _ = self.stays
        keys = source * max(self.after.count, 1) + destination
        both = keys * self.after.holders.shape[1] + column
        order = np.argsort(both, kind="stable")
        return keys[order], both[order]

    def overlap(self, source: Ints, destination: Ints) -> Ints:
        """Return the number of elements that pairs of cells share."""
        volume = np.ones(len(source), counter(self.most))
        pairs = zip(self.before.places(source), self.after.places(destination), strict=True)
        for (i, j), a, b in zip(pairs, self.before.cuts, self.after.cuts, strict=True):
            stop, start = np.minimum(a[i + 1], b[j + 1]), np.maximum(a[i], b[j])
            volume *= np.maximum(stop - start, 0)
        return volume

    @cached_property
    def volumes(self) -> tuple[Ints, Ints]:
        """The number of elements of each cell of the source and of the destination."""
        grids = (self.before, self.after)
        before, after = [volumes_of(grid.lengths, self.most) for grid in grids]
        return before, after

    @cached_property
    def received(self) -> Tally:
        """The elements that each unit of the destination lacks."""
        if self.uniform is not None and self.destination.slots is not None:
            return Tally.alike(self.destination.slots[0], self.uniform[1], *self.keepers)
        unit, cell, _ = self.after.held
        stays, _, _, _, kept = self.stays
        return tallied(unit, unit, self.volumes[1][cell]).less(stays, kept)

    @cached_property
    def moved(self) -> int:
        """The elements that enter units which lack them, over all units."""
        if self.plain:
            every = math.prod(self.shape) * self.destination.replicas
            return every - total(self.keepers[1])
        _, cell, _ = self.after.held
        return total(self.volumes[1][cell]) - total(self.stays[-1])

    @cached_property
    def wanted(self) -> Ints:
        """The elements of each source cell that are needed in all by units that do not hold it."""
        copies = self.after.copies
        if len(copies) and (copies == copies[0]).all():
            wanted = self.volumes[0] * int(copies[0])
        else:
            each = copies.astype(counter(self.most)).reshape(self.after.sizes)
            wanted = spread(each, spans_of(self.after), spans_of(self.before)).reshape(-1)
        _, source, _, _, kept = self.stays
        np.subtract.at(wanted, source, kept)
        return wanted

    @cached_property
    def sent(self) -> Tally:
        """The elements that each unit of the source sends."""
        if self.uniform is not None and self.source.slots is not None and self.source.replicas == 1:
            each = self.uniform[0] * self.destination.replicas
            return Tally.alike(self.source.slots[0], each, *self.keepers)
        every, cells, columns = self.before.held
        if not self.split:
            jobs = self.jobs()
            return tallied(every, jobs.sender, jobs.elements)
        # Shares of a stream follow from its length alone, so the boxes in it need not be listed.
        return tallied(every, every, self.shares(cells, columns))

    def shares(self, cells: Ints, columns: Ints) -> Ints:
        """Return how many elements of some cells' streams one of the holders of each sends."""
        return self._border(cells, columns + 1) - self._border(cells, columns)

    def _border(self, cells: Ints, columns: Ints) -> Ints:
        """Return where the shares of some holders begin in the streams of their cells."""
        if self._borders is not None:
            found: Ints = self._borders[cells, columns]
            return found
        copies = np.maximum(self.before.copies[cells], 1)
        return product(self.wanted[cells], columns) // copies

    @cached_property
    def _borders(self) -> Ints | None:
        """Where the shares of each cell's holders begin, if these are not equal."""
        if self.before.plain or not self.level:
            return None
        return level_borders(self.before.holders, self.wanted, self.load)

    def _check_alive(self) -> None:
        lost = self.before.lost
        if lost:
            raise DataLoss(loss_text(self.shape, lost), lost)

    # pairs of cells

    def _pairs(self, side: str, cells: Ints) -> _Overlaps:
        """Return the pairs that contain given cells of the source, or of the destination.

        They are sorted by those cells as given, and then by the other cell.
        """
        grid = self.before if side == "source" else self.after
        places = grid.places(cells)
        rows = np.arange(len(cells))
        volume = np.ones(len(cells), counter(self.most))
        other = np.zeros(len(cells), np.int64)
        for place, merge, n in zip(places, self.merges, self._other_sizes(side), strict=True):
            first, last = merge.of_source if side == "source" else merge.of_destination
            ends = merge.destination if side == "source" else merge.source
            # Dim by dim each pair found so far becomes one for each stretch of its cell.
            counts = (last - first)[place][rows]
            stretch = consecutive(first[place][rows], counts)
            rows = np.repeat(rows, counts)
            volume = np.repeat(volume, counts) * merge.lengths[stretch]
            other = np.repeat(other, counts) * n + ends[stretch]
        mine = cells[rows]
        return (
            _Overlaps(mine, other, volume) if side == "source" else _Overlaps(other, mine, volume)
        )

    def _other_sizes(self, side: str) -> tuple[int, ...]:
        return self.after.sizes if side == "source" else self.before.sizes

    @cached_property
    def _all_pairs(self) -> _Overlaps:
        return self._pairs("source", np.arange(self.before.count))

    # jobs

    def jobs(self) -> Jobs:
        """Return all jobs of all units; there may be many."""
        return self._jobs(self._all_pairs)

    def sends(self, units: Sequence[int]) -> Jobs:
        """Return the jobs that some units send."""
        mine = np.asarray(units, np.int64)
        found = self._jobs(self._pairs("source", self.before.held_by(mine)))
        return found.where(np.isin(found.sender, mine)).in_order()

    def receives(self, units: Sequence[int]) -> Jobs:
        """Return the jobs that some units receive."""
        mine = np.asarray(units, np.int64)
        pairs = self._pairs("destination", self.after.held_by(mine))
        shared = self.before.copies[pairs.source] > 1
        if shared.any():
            # The position of a pair in a cell's stream depends on all pairs of that cell.
            cells = np.unique(pairs.source[shared])
            found = self._jobs(self._pairs("source", cells), mine)
            alone = _Overlaps(
                pairs.source[~shared], pairs.destination[~shared], pairs.volume[~shared]
            )
            return found.beside(self._jobs(alone, mine)).in_order()
        return self._jobs(pairs, mine).in_order()

    def _jobs(self, pairs: _Overlaps, only: Ints | None = None) -> Jobs:
        """Return the jobs of pairs, in which the pairs of one source cell are adjacent.

        The positions in a cell's stream are right only if all pairs of the cell are given, or the
        cell has one holder.

        Take a cell of six elements that units 8 and 5 hold, of which units 7 and 8 need the first
        four, and units 8 and 9 the last two. Unit 8 has them, so that the stream is four elements
        for 7, then two for 9. The shares of the two holders are its halves: 8 sends three elements
        to 7, and 5 sends the fourth to 7 and two to 9.

        >>> source = Layout((6,), ((0, 6),), np.array([[8, 5]]))
        >>> jobs = Hop(source, Layout((6,), ((0, 4, 6),), np.array([[7, 8], [8, 9]]))).jobs()
        >>> list(zip(*(x.tolist() for x in (jobs.sender, jobs.receiver, jobs.first, jobs.last))))
        [(8, 7, 0, 3), (5, 7, 3, 4), (5, 9, 0, 2)]
        """
        # What a pair adds to its cell's stream: its elements once for each receiver that lacks
        # them. `near` receivers do not: they hold the source cell too.
        keys = pairs.source * max(self.after.count, 1) + pairs.destination
        known, both = self._local
        near = np.searchsorted(known, keys, side="right") - np.searchsorted(known, keys)
        weight = (self.after.copies[pairs.destination] - near) * pairs.volume
        # The pair's position in the stream: all elements before it, less those before the first
        # pair of its source cell. `cumsum(new) - 1` numbers the source cells.
        before = np.cumsum(weight) - weight
        new = np.ones(len(weight), bool)
        new[1:] = pairs.source[1:] != pairs.source[:-1]
        start = before - before[np.flatnonzero(new)][np.cumsum(new) - 1] if len(new) else before
        # One row for each pair and receiver, in replica order; receivers that hold the cell drop
        # out.
        holders = self.after.holders
        width = holders.shape[1]
        shown = holders >= 0 if only is None else np.isin(holders, only)
        counts = shown.sum(axis=1)[pairs.destination]
        rows = np.repeat(np.arange(len(keys)), counts)
        _, listed = np.nonzero(shown)
        begins = np.cumsum(shown.sum(axis=1)) - shown.sum(axis=1)
        column = listed[consecutive(begins[pairs.destination], counts)]
        # `both` lists the receivers that hold the cell themselves, as pair and column in one
        # number. A search in it tells whether a receiver is one of them, and how many of its pair
        # come before it: that many places of the stream are not taken.
        place = keys[rows] * width + column
        earlier = np.searchsorted(both, place)
        holds = np.zeros(len(rows), bool)
        inside = earlier < len(both)
        holds[inside] = both[earlier[inside]] == place[inside]
        rank = column - (earlier - np.searchsorted(both, keys[rows] * width))
        rows, rank, column = rows[~holds], rank[~holds], column[~holds]
        volume, destination = pairs.volume[rows], pairs.destination[rows]
        return self._divided(
            holders[destination, column],
            pairs.source[rows],
            destination,
            volume,
            start[rows] + rank * volume,
        )

    def _divided(
        self, receiver: Ints, source: Ints, destination: Ints, volume: Ints, begin: Ints
    ) -> Jobs:
        """Choose the senders of boxes by their positions in their cell's stream.

        Holder ``k`` of ``n`` sends the part of ``[begin, begin + volume)`` in its share,
        ``[wanted * k // n, wanted * (k + 1) // n)``. A box is one job if it is within one share,
        and otherwise one job for each share from that of its first element to that of its last.
        """
        copies = np.maximum(self.before.copies[source], 1)
        several = copies > 1
        if not (self.split and several.any()):
            column = np.zeros(len(volume), np.int64)
            if several.any():
                # The holder in whose share the middle of the box falls sends all of it.
                wanted = self.wanted[source]
                middle = product(2 * begin + volume, copies) // (2 * np.maximum(wanted, 1))
                several &= wanted > 0
                column = np.where(several, np.minimum(middle, copies - 1), 0).astype(np.int64)
            sender = self.before.holders[source, column]
            zero = np.zeros(len(volume), np.int64)
            return Jobs(sender, receiver, source, destination, zero, volume, volume)
        low, high = (self._holder(source, p) for p in (begin, begin + volume - 1))
        parts = high - low + 1
        rows, column = np.repeat(np.arange(len(volume)), parts), consecutive(low, parts)
        edge, after = (self._border(source[rows], c) for c in (column, column + 1))
        first = np.where(column == low[rows], 0, edge - begin[rows])
        last = np.where(column == high[rows], volume[rows], after - begin[rows])
        real = last > first  # shares are empty if a stream has fewer elements than holders
        rows, column, first, last = rows[real], column[real], first[real], last[real]
        return Jobs(
            self.before.holders[source[rows], column],
            receiver[rows],
            source[rows],
            destination[rows],
            first,
            last,
            volume[rows],
        )

    def _holder(self, cells: Ints, positions: Ints) -> Ints:
        """Return the holder in whose share of its cell's stream each position is."""
        copies = np.maximum(self.before.copies[cells], 1)
        if self._borders is None:
            return _share(positions, self.wanted[cells], copies)
        begun = self._borders[cells, 1:-1] <= positions[:, None]
        found: Ints = np.minimum(begun.sum(axis=1), copies - 1)
        return found

    def boxes(self, job: Jobs, row: int) -> list[Box]:
        """Return the boxes of the array that one job carries, in C order."""
        a = self.before.box(int(job.source[row]))
        b = self.after.box(int(job.destination[row]))
        both = Box(
            tuple(map(max, a.starts, b.starts)) if a.starts else (),
            tuple(map(min, a.stops, b.stops)) if a.stops else (),
        )
        first, last = int(job.first[row]), int(job.last[row])
        if first == 0 and last == both.volume:
            return [both]
        return [
            Box(
                tuple([s + i for s, i in zip(both.starts, starts, strict=True)]),
                tuple([s + i for s, i in zip(both.starts, stops, strict=True)]),
            )
            for starts, stops in flat_boxes(both.shape, first, last)
        ]


def _share(position: Ints, wanted: Ints, copies: Ints) -> Ints:
    """Return the holder whose share of a stream holds a position.

    Holder ``k`` of ``n`` has the positions that begin at ``wanted * k // n``, so position ``p``
    belongs to the last ``k`` with ``wanted * k < n * (p + 1)``. Three holders divide ten elements
    into three, three and four.

    >>> _share(np.arange(10), np.full(10, 10), np.full(10, 3)).tolist()
    [0, 0, 0, 1, 1, 1, 2, 2, 2, 2]
    """
    found = (product(position + 1, copies) - 1) // np.maximum(wanted, 1)
    return np.where(copies > 1, np.minimum(found, copies - 1), 0).astype(np.int64)


def near_hops(
    source: Layout,
    destination: Layout,
    units: Units = each_device,
    *,
    alive: frozenset[int],
    hosts: Mapping[int, int] | None,
    load: Mapping[int, int] | None = None,
) -> tuple[Hop, ...]:
    """Return the exchanges from what some devices hold to a layout, nearest holders first.

    Args:
        source: where the elements are, as a grid; -1 fills it up.
        destination: where they are to be.
        units: maps device ids to the units that send and receive.
        alive: the devices that still hold their part of the source.
        hosts: the host of each device; None if all are equally near.
        load: the elements that units send besides; None for none.

    >>> whole = Layout((8,), ((0, 8),), np.array([[0, 2]]))
    >>> everywhere = Layout((8,), ((0, 8),), np.array([[0, 1, 2, 3]]))
    >>> hops = near_hops(whole, everywhere, alive=frozenset([0, 2]), hosts={0: 0, 1: 0, 2: 1, 3: 1})
    >>> [list(zip(*(x.tolist() for x in (h.jobs().sender, h.jobs().receiver)))) for h in hops]
    [[(0, 1)], [(2, 3)]]
    """
    some = sorted({hosts[d] for d in destination.device_ids}) if hosts is not None else []
    if hosts is None or len({*some, *(hosts[d] for d in alive)}) < 2 or len(some) > MOST_HOSTS:
        return (Hop(source, destination, units, alive=alive, load=load),)
    ids = np.array(sorted(hosts), np.int64)
    numbers = np.array([hosts[int(i)] for i in ids], np.int64)
    place = np.minimum(np.searchsorted(ids, source.tensor), len(ids) - 1)
    holders = np.isin(source.tensor, np.array(sorted(alive), np.int64))
    host_of = np.where(holders, numbers[place], -1)
    found: list[Hop] = []
    sent = dict(load or {})
    for host in some:
        near = host_of == host
        kept = np.where(near.any(axis=-1, keepdims=True), near, holders)
        tensor = np.where(kept, source.tensor, -1)
        part = Layout(source.shape, source.points, tensor)
        hop = Hop(part, _on(destination, hosts, host), units, alive=alive, load=dict(sent))
        found.append(hop)
        for unit, count in hop.sent.as_dict().items():
            sent[unit] = sent.get(unit, 0) + count
    return tuple(found)


def _on(layout: Layout, hosts: Mapping[int, int], host: int) -> Layout:
    """Return the part of a layout on one host; its pieces keep their numbers."""
    mine = [d for d in layout.device_ids if hosts[d] == host]
    if layout.regular:
        tensor = np.where(np.isin(layout.tensor, np.array(mine, np.int64)), layout.tensor, -1)
        return Layout(layout.shape, layout.points, tensor)
    boxes = layout.boxes
    own = [tuple([d for d in layout.holders(i) if d in mine]) for i in range(len(boxes))]
    return Layout(layout.shape, layout.cuts, None, boxes=boxes, box_holders=tuple(own))


@final
@dataclass(frozen=True)
class Route:
    """A route from one layout to another.

    Attributes:
        name: its name in tables: ``"direct"``, ``"striped"``, ...
        layouts: the layouts in order, the source first and the destination last.
        why: a sentence on its advantage.
        split: whether a box may be cut between two senders.
        alive: the devices that still hold their part of the source; None for all.
    """

    name: str
    layouts: tuple[Layout, ...]
    why: str = ""
    split: bool = True
    alive: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        assert len(self.layouts) > 1
        assert len({x.shape for x in self.layouts}) == 1

    @property
    def source(self) -> Layout:
        """The layout that the array has."""
        return self.layouts[0]

    @property
    def destination(self) -> Layout:
        """The layout that it is to have."""
        return self.layouts[-1]

    @cached_property
    def hops(self) -> tuple[Hop, ...]:
        """The exchanges between devices, one after another."""
        return self.between(each_device)

    def between(self, units: Units) -> tuple[Hop, ...]:
        """Return the exchanges between units, such as processes."""
        living = [self.alive, *[None] * (len(self.layouts) - 2)]
        ends = zip(self.layouts, self.layouts[1:], living, strict=False)
        return tuple([Hop(a, b, units, alive=own, split=self.split) for a, b, own in ends])
