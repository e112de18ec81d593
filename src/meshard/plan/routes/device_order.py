"""Free device orders: which device should hold which piece, so that most elements stay put.

A destination whose device order is free is a linear assignment: device ``d`` at a slot of piece
``t`` keeps what its source box shares with ``t``. Slots of one piece are alike. Only pairs that
share elements count, and each device finds its own by binary search per dim, so the graph is as
sparse as the overlap of the two layouts and is matched as such. If it is dense, it is thinned
along its product structure: devices that hold one source box divide the slots that it overlaps,
in order, each keeping a few near its own share, and all devices divide them once more by their
place in the given order. The given order is always part of the graph, so the result is
never worse.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, final

import numpy as np

from meshard.algebra.layout import Layout
from meshard.plan.hops.cells import consecutive
from meshard.plan.hops.jobs import products, total
from meshard.tuning import DENSE_EDGES, THINNED_SHARE, WEIGHED_EDGES

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from scipy.sparse import csr_array

    Ints = NDArray[np.int64]


_EXACT = 1 << 50
"""Costs below it, and sums of some, are exact as floats."""


def device_boxes(layout: Layout, ids: Ints) -> tuple[Ints, Ints]:
    """Return the boxes that devices hold, as starts and stops ``[dim, device]``.

    A device that the layout does not have gets a box without elements; for arrays of rank 0, see
    `kept_elements`.
    """
    starts = np.zeros((layout.ndim, len(ids)), np.int64)
    stops = np.zeros((layout.ndim, len(ids)), np.int64)
    at = _pieces(layout, ids)
    held = at >= 0
    if layout.regular:
        where = np.unravel_index(at[held], layout.grid) if layout.ndim else ()
        for dim, (cuts, index) in enumerate(zip(layout.cuts, where, strict=True)):
            points = np.asarray(cuts, np.int64)
            starts[dim, held], stops[dim, held] = points[index], points[index + 1]
        return starts, stops
    for column in np.flatnonzero(held):
        box = layout.box(int(at[column]))
        starts[:, column], stops[:, column] = box.starts, box.stops
    return starts, stops


def _pieces(layout: Layout, ids: Ints) -> Ints:
    """Return the piece that each device holds; -1 for those that hold none."""
    flat = _holders(layout)
    order = np.argsort(flat, kind="stable")
    place = np.minimum(np.searchsorted(flat, ids, sorter=order), max(len(flat) - 1, 0))
    at = order[place]
    there = (flat[at] == ids) & (ids >= 0)
    found: Ints = np.where(there, _piece_of_slot(layout)[at], -1)
    return found


def _holders(layout: Layout) -> Ints:
    """Return the devices of all slots: piece by piece, in replica order."""
    if layout.regular:
        return layout.tensor.reshape(-1)
    return np.array([d for p in range(layout.piece_count) for d in layout.holders(p)], np.int64)


def _piece_of_slot(layout: Layout) -> Ints:
    """Return the piece that each slot belongs to."""
    if layout.regular:
        width = max(layout.tensor.shape[-1], 1)
        return np.repeat(np.arange(layout.piece_count), width)
    counts = [len(layout.holders(p)) for p in range(layout.piece_count)]
    return np.repeat(np.arange(layout.piece_count), counts)


def living(layout: Layout, alive: Collection[int] | None) -> Layout:
    """Return a layout with -1 for devices that are not alive.

    If the boxes are not a product of cuts, the layout is returned as it is.

    >>> pair = Layout((4,), ((0, 4),), np.array([[5, 6]]))
    >>> living(pair, {6}).tensor.tolist()
    [[-1, 6]]
    """
    if alive is None or not layout.regular:
        return layout
    there = np.isin(layout.tensor, np.array(sorted(alive), np.int64))
    if there.all():
        return layout
    return Layout(layout.shape, layout.cuts, np.where(there, layout.tensor, -1))


def kept_elements(source: Layout, destination: Layout) -> Ints:
    """Return the elements that each device of the destination already holds, slot by slot.

    Slots are the destination's pieces and their holders, in order.

    >>> from meshard.algebra.layout import even_cuts
    >>> two = Layout((8,), (even_cuts(8, 2),), np.array([[5], [6]]))
    >>> four = Layout((8,), (even_cuts(8, 4),), np.array([[6], [5], [7], [8]]))
    >>> kept_elements(two, four).tolist()
    [0, 2, 0, 0]
    """
    ids = _holders(destination)
    have, want = device_boxes(source, ids), device_boxes(destination, ids)
    common = np.maximum(np.minimum(have[1], want[1]) - np.maximum(have[0], want[0]), 0)
    kept = products(common, math.prod(destination.shape))
    kept[_pieces(source, ids) < 0] = 0
    return kept


def best_device_order(
    source: Layout, destination: Layout, *, within: Layout | None = None
) -> Layout:
    """Return the destination with its devices permuted so that most elements stay put.

    The order is optimal if at most `DENSE_EDGES` pairs of a device and a slot share elements;
    beyond that, it is the best of a thinned graph. It is never worse than the given order, which is
    returned as it is if no other is better.

    Args:
        source: where the elements are.
        destination: where they are to be, in any order of its devices.
        within: a layout on the same devices whose boxes the destination divides; every device then
            stays inside the box that it has there.

    >>> from meshard.algebra.layout import even_cuts
    >>> rows = Layout((8,), (even_cuts(8, 4),), np.array([[0], [1], [2], [3]]))
    >>> back = Layout((8,), (even_cuts(8, 4),), np.array([[3], [2], [1], [0]]))
    >>> best_device_order(rows, back) == rows
    True
    """
    ids = _holders(destination)
    if len(ids) < 2 or ids.min() < 0 or destination.ndim == 0:
        return destination
    if (_pieces(source, ids) < 0).all():
        return destination
    slots = _Slots(source, destination, ids, within)
    if not slots.may_improve:
        return destination
    row, column, gain = slots.edges()
    chosen = _matched(row, column, _scaled(gain), len(ids))
    _filled(chosen, slots.group)
    order = np.empty(len(ids), np.int64)
    order[chosen] = ids  # the device now at slot i goes to slot chosen[i]
    found = _with_devices(destination, order)
    better = total(kept_elements(source, found)) > total(slots.kept)
    return found if better else destination


@final
class _Slots:
    """The slots of a destination, and the elements that each of its devices would keep there.

    Attributes:
        kept: the elements that each slot's device keeps in the given order.
        group: the number of the box that each slot's device must stay in.
    """

    def __init__(
        self, source: Layout, destination: Layout, ids: Ints, within: Layout | None
    ) -> None:
        self.destination = destination
        self.count = len(ids)
        self.starts, self.stops = device_boxes(source, ids)
        self.group = np.zeros(len(ids), np.int64)
        self.kept = kept_elements(source, destination)
        if within is not None:
            low, high = device_boxes(within, ids)
            self.starts, self.stops = np.maximum(self.starts, low), np.minimum(self.stops, high)
            self.group = _pieces(within, ids)

    @property
    def may_improve(self) -> bool:
        """Whether some device could keep more in another slot, if it could choose alone."""
        longest = np.array(self.destination.largest_piece, np.int64)[:, None]
        most = np.minimum(np.maximum(self.stops - self.starts, 0), longest)
        return bool((products(most, math.prod(self.destination.shape)) > self.kept).any())

    def edges(self) -> tuple[Ints, Ints, Ints]:
        """Return pairs of a device, by its given slot, and a slot, and the elements kept there.

        They are sorted by both, and each pair occurs once.
        """
        if not self.destination.regular:
            return self._all_pairs()
        first, counts = self._ranges()
        replicas = self.destination.tensor.shape[-1]
        length = np.prod(counts, axis=0, dtype=np.int64) * replicas
        rows, position = self._shares(length) if length.sum() > DENSE_EDGES else _positions(length)
        # A position counts the slots that a device's box overlaps, the last dim and then the
        # replicas fastest: its digits, to the base of how many cells each dim has of them, are how
        # far the slot's cell is from the first. A `scale` of all cells makes a slot's number of it.
        rest, copy = np.divmod(position, replicas)
        column, gain = np.zeros_like(rows), np.ones(len(rows), self.kept.dtype)
        scale = 1
        for dim in reversed(range(self.destination.ndim)):
            rest, at = np.divmod(rest, counts[dim][rows])
            cell = first[dim][rows] + at
            cuts = np.asarray(self.destination.cuts[dim], np.int64)
            stop = np.minimum(cuts[cell + 1], self.stops[dim][rows])
            gain *= np.maximum(stop - np.maximum(cuts[cell], self.starts[dim][rows]), 0)
            column += scale * cell
            scale *= len(cuts) - 1
        column = column * replicas + copy
        given = np.flatnonzero(self.kept)
        rows = np.concatenate([rows, given])
        column = np.concatenate([column, given])
        gain = np.concatenate([gain, self.kept[given]])
        some = (gain > 0) & (self.group[rows] == self.group[column])
        rows, column, gain = rows[some], column[some], gain[some]
        # The given order was added, and the two shares of a thinned graph overlap.
        keys = rows * self.count + column
        order = np.argsort(keys, kind="stable")
        order = order[np.diff(keys[order], prepend=-1) != 0]
        return rows[order], column[order], gain[order]

    def _ranges(self) -> tuple[Ints, Ints]:
        """Return for each dim and device the first cell that its box overlaps, and how many."""
        first, counts = np.zeros_like(self.starts), np.zeros_like(self.starts)
        for dim, points in enumerate(self.destination.cuts):
            cuts = np.asarray(points, np.int64)
            start, stop = self.starts[dim], self.stops[dim]
            first[dim] = np.searchsorted(cuts, start, side="right") - 1
            last = np.searchsorted(cuts, stop, side="left")
            counts[dim] = np.where(stop > start, last - first[dim], 0)
        return first, counts

    def _shares(self, length: Ints) -> tuple[Ints, Ints]:
        """Return for each device some of the slots that its box overlaps, by their position."""
        # Say four devices hold one box that overlaps eight slots: in the first round they begin at
        # slots 0, 2, 4 and 6 of it, each at its own, and keep some from there on. In the second all
        # devices of the layout do so by their given place, since boxes that overlap the same slots
        # would else all begin at the same ones.
        order = np.lexsort((*self.starts, *self.stops))
        boxes = np.concatenate([self.starts, self.stops])[:, order]
        new = np.ones(self.count, bool)
        new[1:] = (boxes[:, 1:] != boxes[:, :-1]).any(axis=0)
        begins = np.flatnonzero(new)
        number = np.cumsum(new) - 1
        same = np.diff(np.append(begins, self.count))[number]
        rank, sharers = np.empty_like(order), np.empty_like(order)
        rank[order], sharers[order] = np.arange(self.count) - begins[number], same
        rows, positions = [], []
        every = np.flatnonzero(length)
        for begin in (length * rank // sharers, length * np.arange(self.count) // self.count):
            for at in range(THINNED_SHARE):
                rows.append(every)
                positions.append(((begin + at) % np.maximum(length, 1))[every])
        return np.concatenate(rows), np.concatenate(positions)

    def _all_pairs(self) -> tuple[Ints, Ints, Ints]:
        """Return the pairs of a destination whose boxes are not a product of cuts.

        Its boxes are compared one by one: such layouts are made by hand, and have few boxes.
        """
        piece = _piece_of_slot(self.destination)
        if self.count * self.destination.piece_count > DENSE_EDGES:
            given = np.flatnonzero(self.kept)
            return given, given, self.kept[given]
        gain = np.ones((self.count, self.destination.piece_count), self.kept.dtype)
        for dim in range(self.destination.ndim):
            low = np.array([b.starts[dim] for b in self.destination.boxes], np.int64)
            high = np.array([b.stops[dim] for b in self.destination.boxes], np.int64)
            stop = np.minimum.outer(self.stops[dim], high)
            gain *= np.maximum(stop - np.maximum.outer(self.starts[dim], low), 0)
        slots = gain[:, piece] * (self.group[:, None] == self.group)
        rows, column = np.nonzero(slots)
        return rows, column, slots[rows, column]


def _scaled(gain: Ints) -> Ints:
    """Return gains that fit into 64 bits, each with its ratio to the largest kept to 50 bits."""
    if gain.dtype != object:
        return gain
    unit = max(1, int(gain.max(initial=0)) // _EXACT)
    return np.maximum(gain // unit, 1).astype(np.int64)


def _positions(length: Ints) -> tuple[Ints, Ints]:
    """Return all pairs of a row and a position below its length, in order."""
    return np.repeat(np.arange(len(length)), length), consecutive(np.zeros_like(length), length)


def _graph(weights: NDArray[Any], rows: Ints, columns: Ints, count: int) -> csr_array[Any]:
    """Return edges as SciPy's functions take them; older ones refuse 64-bit numbers of nodes."""
    from scipy.sparse import csr_array

    ends = rows.astype(np.int32), columns.astype(np.int32)
    return csr_array((weights, ends), shape=(count, count))


def _matched(row: Ints, column: Ints, gain: Ints, count: int) -> Ints:
    """Return for each device its slot in a best matching; -1 if it has none.

    Layouts overlap in many small components, and in most of them a matching of edges that are each
    the best of their device is best: these come from one maximum matching, in near linear time.
    Only components in which devices compete for slots are matched by weight, some hundred rows at a
    time, because the time for a weighted matching grows with the square of its rows.
    """
    from scipy.sparse.csgraph import connected_components, maximum_bipartite_matching

    chosen = np.full(count, -1, np.int64)
    if not len(row):
        return chosen
    best = np.zeros(count, np.int64)
    np.maximum.at(best, row, gain)
    top = gain == best[row]
    graph = _graph(np.ones(int(top.sum()), bool), row[top], column[top], count)
    chosen[:] = maximum_bipartite_matching(graph, perm_type="column")
    both = _graph(np.ones(len(row), bool), row, count + column, 2 * count)
    # Devices are nodes 0 to count - 1, and slots those from count on.
    parts, label = connected_components(both, directed=False)
    # A component is done if all its edges weigh the same, or if each device has its best.
    low = np.full(parts, np.iinfo(np.int64).max)
    high = np.zeros(parts, np.int64)
    np.minimum.at(low, label[row], gain)
    np.maximum.at(high, label[row], gain)
    met = np.ones(parts, bool)
    met[label[row[chosen[row] < 0]]] = False
    open_parts = (low < high) & ~met
    if open_parts.any():
        edges = np.flatnonzero(open_parts[label[row]])
        edges = edges[np.argsort(label[row[edges]], kind="stable")]
        chosen[row[edges]] = -1
        ends = np.flatnonzero(np.diff(label[row[edges]], append=-1)) + 1
        begin = 0
        for end in ends.tolist():
            if end - begin >= WEIGHED_EDGES or end == len(edges):
                some = edges[begin:end]
                devices, slots = _weighed(row[some], column[some], gain[some])
                chosen[devices] = slots
                begin = end
    return chosen


def _weighed(row: Ints, column: Ints, gain: Ints) -> tuple[Ints, Ints]:
    """Return the devices, and their slots, of a matching of the greatest gain.

    A matching need not cover all nodes, but the solver requires one that does. So the graph is
    joined with its mirror image, and nodes without a partner are matched with their own images.
    """
    from scipy.sparse.csgraph import min_weight_full_bipartite_matching

    devices, i = np.unique(row, return_inverse=True)
    slots, j = np.unique(column, return_inverse=True)
    n, m = len(devices), len(slots)
    gain = gain // int(np.gcd.reduce(gain))
    most = int(gain.max())
    if most * (n + 1) < _EXACT:  # prefer matchings that leave devices where they are
        gain = gain * (n + 1) + (row == column)
        most = most * (n + 1) + 1
    # Rows are the n devices, then images of the m slots; columns the m slots, then images of the n
    # devices. Edges: each of the graph, device and own image, image of a slot and the slot, and the
    # mirror image of each edge. All cost the same except those of the graph itself, which cost
    # less by their gain: so the cheapest matching that covers all is the one of the greatest gain.
    rows = np.concatenate([i, np.arange(n), n + np.arange(m), n + j])
    columns = np.concatenate([j, m + np.arange(n), np.arange(m), m + i])
    costs = np.full(len(rows), most + 1)
    costs[: len(i)] -= gain
    graph = _graph(costs.astype(np.float64), rows, columns, n + m)
    matched, partner = min_weight_full_bipartite_matching(graph)
    real = (matched < n) & (partner < m)
    return devices[matched[real]], slots[partner[real]]


def _filled(chosen: Ints, group: Ints) -> None:
    """Give the devices without a slot the slots that are left, their own if it is free."""
    count = len(chosen)
    free = np.ones(count, bool)
    free[chosen[chosen >= 0]] = False
    mine = (chosen < 0) & free
    chosen[mine] = np.flatnonzero(mine)
    free &= ~mine
    left, slots = np.flatnonzero(chosen < 0), np.flatnonzero(free)
    chosen[left[np.argsort(group[left], kind="stable")]] = slots[
        np.argsort(group[slots], kind="stable")
    ]


def _with_devices(layout: Layout, ids: Ints) -> Layout:
    """Return a layout with other devices in its slots."""
    if layout.regular:
        return Layout(layout.shape, layout.cuts, ids.reshape(layout.tensor.shape))
    counts = [len(layout.holders(p)) for p in range(layout.piece_count)]
    ends = np.cumsum(counts).tolist()
    holders = tuple([tuple(ids[e - n : e].tolist()) for n, e in zip(counts, ends, strict=True)])
    return Layout(layout.shape, layout.cuts, None, boxes=layout.boxes, box_holders=holders)
