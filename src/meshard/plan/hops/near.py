"""Near before far: exchanges in which holders on the receiver's own host give before others.

In: two layouts, and the host of each device. Out: one hop for the receivers of each host. A cell
that a device of that host holds comes from there; only the others come from other hosts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from meshard.algebra.layout import Layout
from meshard.plan.hops.cells import Units, each_device
from meshard.plan.hops.hop import Hop
from meshard.tuning import MOST_HOSTS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


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
