"""Routes to many replicas, on which no device of the source sends an element twice.

A direct exchange sends every element once for each replica that lacks it, all from the devices that
hold it at first. Striped, each replica gets its own part of the cell and the replicas then share;
chained, one replica gets the cell, and the number of those that have it doubles from hop to hop.
Shared inside groups, each group (a process, a host) gets every element once, and its devices share.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from meshard.algebra.layout import Cuts, Layout
from meshard.plan.hops.cells import Units
from meshard.plan.hops.hop import Hop, Route
from meshard.plan.hops.jobs import counter, total
from meshard.plan.routes.device_order import best_device_order, kept_elements, living
from meshard.plan.routes.mixed_radix import prime_factors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


def striped(
    source: Layout,
    destination: Layout,
    *,
    direct: Hop | None = None,
    split: bool = True,
    alive: Collection[int] | None = None,
) -> Route | None:
    """Return the route that sends each replica a stripe of its cell, and then gathers the stripes.

    From devices outside of the destination it moves no more than a direct exchange, and the source
    sends every element that is needed only once, however many replicas there are.

    Args:
        source: where the elements are.
        destination: where they are to be.
        direct: the direct hop, if there is one already.
        split: whether a box may be cut between two senders.
        alive: the ids of the devices that still have their part of the source; None for all.

    Returns:
        The route, or None if cells have one holder, if boxes are not a product of cuts, if no
        device of the source would send less than in a direct exchange, or if relays would send more
        than the busiest device of a direct exchange sends or receives.

    >>> from meshard.algebra.layout import even_cuts
    >>> rows = Layout((8, 8), (even_cuts(8, 8), (0, 8)), np.arange(8).reshape(8, 1, 1))
    >>> copies = Layout((8, 8), ((0, 8), (0, 8)), np.arange(8, 12).reshape(1, 1, 4))
    >>> route = striped(rows, copies)
    >>> [(hop.moved, hop.sent.most) for hop in route.hops]
    [(64, 8), (192, 48)]
    """
    if not _replicated(destination) or not destination.ndim:
        return None
    straight = _straight(source, destination, direct, split, alive)
    if not _room(straight):
        return None
    replicas = destination.replicas
    stripes = _cut(destination, replicas, destination.tensor)
    stripes = best_device_order(living(source, alive), stripes, within=destination)
    why = (
        f"Each cell goes out in {replicas:,} stripes, one to each of its replicas, which then "
        "gather them: the source sends every element once."
    )
    return _useful("striped", (source, stripes, destination), why, straight, alive)


def chained(
    source: Layout,
    destination: Layout,
    *,
    direct: Hop | None = None,
    split: bool = True,
    alive: Collection[int] | None = None,
) -> Route | None:
    """Return the route on which the number of replicas doubles from hop to hop.

    The first replica of each cell is the one that already holds most of it. With ``R`` replicas no
    device sends to more than about ``log2 R`` others, in messages of whole cells, where stripes
    take ``R - 1`` short messages for each device.

    Args:
        source: where the elements are.
        destination: where they are to be.
        direct: the direct hop, if there is one already.
        split: whether a box may be cut between two senders.
        alive: the ids of the devices that still have their part of the source; None for all.

    Returns:
        The route, or None if cells have one holder, if boxes are not a product of cuts, or if the
        busiest device would not be less busy.

    >>> one = Layout((8,), ((0, 8),), np.array([[0]]))
    >>> all_of_them = Layout((8,), ((0, 8),), np.arange(8).reshape(1, 8))
    >>> [hop.sent.as_dict() for hop in chained(one, all_of_them).hops]
    [{0: 8}, {0: 8, 1: 8}, {0: 8, 1: 8, 2: 8, 3: 8}]
    """
    if not _replicated(destination):
        return None
    straight = _straight(source, destination, direct, split, alive)
    if not _room(straight):
        return None
    tensor = destination.tensor.reshape(destination.piece_count, -1)
    kept = kept_elements(living(source, alive), destination).reshape(tensor.shape)
    # From afar the first replica sends whole cells as often as their number doubles.
    sends = (destination.replicas.bit_length() - 1) * math.prod(destination.largest_piece)
    if not kept.any() and sends >= max(straight.sent.most, straight.received.most):
        return None
    order = np.argsort(-kept, axis=1, kind="stable")
    ranked = np.take_along_axis(tensor, order, axis=1)
    layouts, count, before = [source], 1, living(source, alive)
    while count < destination.replicas:
        some = ranked[:, :count].reshape(*destination.grid, count)
        step = Layout(destination.shape, destination.cuts, np.ascontiguousarray(some))
        if total(kept_elements(before, step)) < _total(step):
            layouts.append(step)
            before = step
        count *= 2
    why = (
        f"Each cell goes to one of its {destination.replicas:,} replicas, and from hop to hop "
        "twice as many have it: few messages, each of a whole cell."
    )
    return _useful("chained", (*layouts, destination), why, straight, alive)


def shared(source: Layout, destination: Layout, groups: Units) -> Route | None:
    """Return the route on which every group of devices gets each element once and then shares it.

    With slow links between groups, it attains the bound on the elements that must enter a group:
    the devices of a group that hold one cell take equal parts of it, and gather inside the group.

    Args:
        source: where the elements are.
        destination: where they are to be.
        groups: the map from device ids to their groups, such as hosts.

    Returns:
        The route, or None if no cell has several holders in a group, if cells differ in how many
        they have in each, or if boxes are not a product of cuts.

    >>> from meshard.algebra.layout import even_cuts
    >>> rows = Layout((8,), (even_cuts(8, 8),), np.arange(8).reshape(8, 1))
    >>> whole = Layout((8,), ((0, 8),), np.arange(8).reshape(1, 8))
    >>> route = shared(rows, whole, lambda ids: ids // 2)
    >>> route.layouts[1].grid, [hop.moved for hop in route.between(lambda ids: ids // 2)]
    ((2,), [24, 0])
    """
    if not _replicated(destination) or not destination.ndim:
        return None
    tensor = destination.tensor.reshape(destination.piece_count, -1)
    owner = groups(tensor)
    order = np.argsort(owner, axis=1, kind="stable")
    owner = np.take_along_axis(owner, order, axis=1)
    new = np.ones(owner.shape, bool)
    new[:, 1:] = owner[:, 1:] != owner[:, :-1]
    runs = np.diff(np.flatnonzero(new), append=owner.size)  # every row begins a new run
    inside = int(runs[0])
    if inside < 2 or (runs != inside).any() or owner.min() < 0:
        return None
    # Replica (group, member) becomes copy `group` of stripe `member`.
    ranked = np.take_along_axis(tensor, order, axis=1).reshape(*destination.grid, -1, inside)
    stripes = _cut(destination, inside, np.swapaxes(ranked, -1, -2))
    if stripes == source:
        return None
    why = (
        f"The {inside:,} devices of a group that hold one cell get a part each and share inside "
        "the group: every element enters a group once."
    )
    return Route("shared inside groups", (source, stripes, destination), why)


def largest_sender(hops: tuple[Hop, ...]) -> int:
    """Return the most that any unit sends over several hops, in elements."""
    units = np.concatenate([hop.sent.units for hop in hops])
    amounts = np.concatenate([hop.sent.amounts for hop in hops])
    amounts = amounts.astype(counter(sum(hop.sent.most for hop in hops)), copy=False)
    order = np.argsort(units, kind="stable")
    begins = np.flatnonzero(np.diff(units[order], prepend=-1))
    return int(np.add.reduceat(amounts[order], begins).max(initial=0))


def _replicated(layout: Layout) -> bool:
    """Whether cells have several holders, all of them alive, and elements."""
    if not layout.regular or layout.replicas < 2:
        return False
    return math.prod(layout.shape) > 0 and int(layout.tensor.min()) >= 0


def _room(direct: Hop) -> bool:
    """Whether some device sends more than its share of all elements that must move."""
    # Sorting takes less time than the hash table of np.unique.
    devices = np.sort(np.concatenate([direct.sent.units, direct.received.units]), kind="stable")
    count = 1 + int(np.count_nonzero(np.diff(devices)))
    return direct.sent.most > -(-direct.moved // count)


def _total(layout: Layout) -> int:
    return math.prod(layout.shape) * layout.replicas


def _straight(
    source: Layout,
    destination: Layout,
    direct: Hop | None,
    split: bool,
    alive: Collection[int] | None,
) -> Hop:
    return Hop(source, destination, alive=alive, split=split) if direct is None else direct


def _useful(
    name: str,
    layouts: tuple[Layout, ...],
    why: str,
    direct: Hop,
    alive: Collection[int] | None,
) -> Route | None:
    """Return a route if it relieves the devices of the source and overloads none."""
    if len(layouts) < 3 or any(a == b for a, b in pairwise(layouts)):
        return None
    living_ids = None if alive is None else tuple(sorted(alive))
    route = Route(name, layouts, why, split=direct.split, alive=living_ids)
    if route.hops[0].sent.most >= direct.sent.most:
        return None
    busiest = max(direct.sent.most, direct.received.most)
    most = largest_sender(route.hops)
    return route if most < busiest or (most == busiest and name == "striped") else None


_LONGEST = (1 << 63) - 1


def refined_cuts(cuts: Cuts | Ints, parts: int) -> Ints:
    """Return cuts that divide each cell into that many parts, which differ by at most one.

    >>> refined_cuts((0, 4, 7), 2).tolist()
    [0, 2, 4, 6, 7]
    """
    points = np.asarray(cuts, np.int64)
    low, more = np.divmod(np.diff(points)[:, None], parts)
    part = np.arange(parts)
    inner = points[:-1, None] + part * low + np.minimum(part, more)
    return np.append(inner.reshape(-1), points[-1])


def _factors(layout: Layout, parts: int) -> list[tuple[int, int]]:
    """Return along which dim, and into how many, the cells of a layout are cut, step by step.

    Dims are cut from the outermost inwards, so that parts are long runs in memory: first where the
    cut is even, then where every part has an element, then where cells are longest.
    """
    shortest = [int(c[c > 0].min(initial=_LONGEST)) if c.any() else 0 for c in layout.lengths]
    times = [1] * layout.ndim
    factors: list[tuple[int, int]] = []
    for p in sorted(prime_factors(parts), reverse=True):
        wanted = [n * p for n in times]
        even = [
            dim
            for dim, n in enumerate(wanted)
            if shortest[dim] and not (layout.lengths[dim] % n).any()
        ]
        fits = [dim for dim, n in enumerate(wanted) if shortest[dim] >= n]
        longest = max(range(layout.ndim), key=lambda d: shortest[d] // times[d], default=0)
        dim = (even or fits or [longest])[0]
        times[dim] *= p
        factors.append((dim, p))
    return factors


def _cut(layout: Layout, parts: int, holders: Ints) -> Layout:
    """Return a layout with each cell cut into parts, and with holders ``[cell..., part, copy]``."""
    factors = _factors(layout, parts)
    times = [math.prod([p for d, p in factors if d == dim]) for dim in range(layout.ndim)]
    # The parts of all dims are one axis, slowest factor first. Each factor becomes an axis of its
    # own and goes behind the cells of its dim: with (2, 1) cells in 6 parts, of which 3 along dim 0
    # and 2 along dim 1, axes (2, 1, 3, 2, copy) become (2, 3, 1, 2, copy), a grid of (6, 2).
    rank = layout.ndim
    tensor = holders.reshape(*layout.grid, *(p for _, p in factors), -1)
    order: list[int] = []
    for dim in range(rank):
        order += [dim, *(rank + k for k, (d, _) in enumerate(factors) if d == dim)]
    order.append(tensor.ndim - 1)
    grid = [n * t for n, t in zip(layout.grid, times, strict=True)]
    tensor = tensor.transpose(order).reshape(*grid, tensor.shape[-1])
    cuts = tuple(
        [c if t == 1 else refined_cuts(c, t) for c, t in zip(layout.points, times, strict=True)]
    )
    return Layout(layout.shape, cuts, np.ascontiguousarray(tensor))
