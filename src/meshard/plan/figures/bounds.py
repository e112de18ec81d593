"""Bounds: the least that any plan between two layouts must move.

Everything is summed over cells and over the devices that hold them with NumPy; device pairs are
never compared. All amounts are elements; the caller multiplies by the size of one.

- LB1, received: a device must receive what it needs and does not hold.
- LB2, by group: a group of devices (a host, a rack) must receive what its devices need together
  and do not hold together.
- LB3, sent directly: what devices need of a shard that they do not hold is sent by the shard's
  holders; the busiest sends at least an equal share.
- LB3', sent with relays: the holders must send every element that is needed elsewhere once; its
  receivers may pass it on.
- LB4, time: a full-duplex port is busy for as long as it sends, or receives, at full bandwidth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, final

import numpy as np

from meshard.algebra.arguments import count_of, flag_of, function_of, instance_of, number_of, shown
from meshard.algebra.device import device_ids_of
from meshard.algebra.layout import Layout
from meshard.errors import ArgumentError, ShapeError
from meshard.plan.captions import count_text
from meshard.plan.hops.cells import CellGrid, Units
from meshard.plan.hops.hop import Hop, unit_map
from meshard.plan.hops.jobs import Tally, products, total
from meshard.plan.hops.spread import HeldCells, shared
from meshard.plan.show.summary import Fact, Summarized, Summary

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

Hosts = Units | Mapping[int, int]
"""From device ids to hosts, as a function of arrays of ids (-1 for none) or as a mapping."""


def _spans(
    layout: Layout, ids: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Return each device's box as two arrays ``[dim, device]``, and whether it holds one."""
    starts = np.zeros((layout.ndim, len(ids)), np.int64)
    stops = np.zeros((layout.ndim, len(ids)), np.int64)
    if not layout.regular:
        held = np.array([int(i) in layout.piece_of for i in ids], bool)
        for column in np.flatnonzero(held):
            box = layout.box(layout.piece_of[int(ids[column])])
            starts[:, column], stops[:, column] = box.starts, box.stops
        return starts, stops, held
    flat = layout.tensor.reshape(-1)
    order = np.argsort(flat, kind="stable")
    place = np.minimum(np.searchsorted(flat, ids, sorter=order), len(flat) - 1)
    at = order[place]
    held = flat[at] == ids
    where = np.unravel_index(at // layout.tensor.shape[-1], layout.grid) if layout.ndim else ()
    for dim, (cuts, index) in enumerate(zip(layout.cuts, where, strict=True)):
        points = np.asarray(cuts, np.int64)
        starts[dim], stops[dim] = points[index], points[index + 1]
    return starts, stops, held


def receive_bound(source: Layout, destination: Layout) -> int:
    """Return the elements that must enter a device which lacks them, over all devices.

    For a device with source box S and destination box D that is ``|D| - |D ∩ S|``; a plan that
    sends each box directly moves exactly this (LB1 of the design).

    >>> from meshard.algebra.layout import even_cuts
    >>> ids = np.arange(4)
    >>> rows = Layout((8,), (even_cuts(8, 4),), ids.reshape(4, 1))
    >>> everywhere = Layout((8,), ((0, 8),), ids.reshape(1, 4))
    >>> receive_bound(rows, everywhere), receive_bound(everywhere, rows)
    (24, 0)
    """
    ids = np.array(sorted(destination.device_ids), np.int64)
    start, stop, _ = _spans(destination, ids)
    have_start, have_stop, held = _spans(source, ids)
    common = np.maximum(np.minimum(stop, have_stop) - np.maximum(start, have_start), 0)
    elements = math.prod(destination.shape)
    here = products(common, elements)[held]
    return total(products(stop - start, elements)) - total(here)


def group_bound(source: Layout, destination: Layout, group_of: Hosts) -> Tally:
    """Return the elements that must enter each group of devices from outside (LB2).

    Args:
        source: where the elements are.
        destination: where they are to be.
        group_of: maps device ids to groups; devices without a group count neither as holders nor
            as receivers.

    A plan attains the bound if and only if it sends each element to a group once and shares it
    there.

    >>> from meshard.algebra.layout import even_cuts
    >>> ids = np.arange(4)
    >>> rows = Layout((8,), (even_cuts(8, 4),), ids.reshape(4, 1))
    >>> everywhere = Layout((8,), ((0, 8),), ids.reshape(1, 4))
    >>> group_bound(rows, everywhere, lambda ids: ids // 2).as_dict()
    {0: 4, 1: 4}
    """
    return _by_group(CellGrid(source), CellGrid(destination), group_of)


def send_bound(source: Layout, destination: Layout) -> int:
    """Return the least that the largest sender sends if all is sent directly (LB3).

    >>> from meshard.algebra.layout import even_cuts
    >>> rows = Layout((8,), (even_cuts(8, 4),), np.arange(4).reshape(4, 1))
    >>> everywhere = Layout((8,), ((0, 8),), np.arange(4, 8).reshape(1, 4))
    >>> send_bound(rows, everywhere), relay_send_bound(rows, everywhere)
    (8, 2)
    """
    return hop_bounds(Hop(source, destination)).send


def relay_send_bound(source: Layout, destination: Layout) -> int:
    """Return the least that the largest sender of the source sends if receivers may relay (LB3').

    Example: see `send_bound`.
    """
    return hop_bounds(Hop(source, destination)).relay_send


def time_bound(
    send: float, receive: float, *, bandwidth: float, latency: float = 0.0, messages: float = 1
) -> float:
    """Return the seconds that a full-duplex port is busy at least (LB4).

    Args:
        send: bytes that leave it.
        receive: bytes that enter it.
        bandwidth: bytes per second, in each direction.
        latency: seconds that one message costs besides its bytes.
        messages: how many messages the port sends, or receives, at least.

    >>> time_bound(1e9, 3e9, bandwidth=1e9, latency=0.5, messages=2)
    4.0
    """
    return max(send, receive) / bandwidth + latency * messages


def bounds_of(
    source: Layout,
    destination: Layout,
    hosts: Hosts | None = None,
    *,
    alive: Collection[int] | None = None,
) -> Bounds:
    """Return all bounds for an array that goes from one layout to another.

    Args:
        source: where the elements are.
        destination: where they are to be.
        hosts: maps device ids to the groups of `Bounds.hosts`.
        alive: the devices that still hold their part of the source; None for all.

    Raises:
        DataLoss: if no live device holds some part of the array.
        ArgumentError, ShapeError: if an argument has the wrong type, or the shapes differ.

    >>> import numpy as np
    >>> from meshard.algebra.layout import Layout, even_cuts
    >>> from meshard.resharding import bounds_of
    >>> ids = np.arange(4)
    >>> rows = Layout((8,), (even_cuts(8, 4),), ids.reshape(4, 1))
    >>> everywhere = Layout((8,), ((0, 8),), ids.reshape(1, 4))
    >>> found = bounds_of(rows, everywhere, hosts=lambda ids: ids // 2)
    >>> found.moved, found.kept, found.receive, found.send, found.hosts.total
    (24, 8, 6, 6, 8)
    """
    what = "bounds_of"
    advice = "A sharding makes one: sharding.layout(shape)."
    instance_of(source, Layout, what, "source", advice=advice)
    instance_of(destination, Layout, what, "destination", advice=advice)
    if source.shape != destination.shape:
        raise ShapeError(
            f"{what}: source lays out an array of shape {source.shape}, destination one of shape "
            f"{destination.shape}. An array that moves keeps its shape."
        )
    living = None if alive is None else device_ids_of(alive, what, "alive")
    return hop_bounds(Hop(source, destination, alive=living), _hosts(hosts))


def _hosts(given: object) -> Hosts | None:
    """Return the map from device ids to hosts, given as a mapping or as a function of arrays."""
    what, name = "bounds_of", "hosts"
    if given is None:
        return None
    if isinstance(given, Mapping):
        if not given:
            raise ArgumentError(f"{what}: {name} is empty; give the host of each device.")
        ids = [count_of(d, what, f"each device id in {name}") for d in given]
        numbers = [count_of(h, what, f"each host in {name}") for h in given.values()]
        return dict(zip(ids, numbers, strict=True))
    advice = "Or give a mapping from device ids to hosts."
    function: Callable[[Ints], object] = function_of(given, what, name, advice)

    def hosts(ids: Ints) -> Ints:
        try:
            found = np.asarray(function(ids))
        except ValueError:  # not an array
            found = np.empty(0, object)
        if found.dtype.kind not in "iu" or found.shape != ids.shape:
            raise ArgumentError(
                f"{what}: {name} must return the hosts of an array of device ids, as integers in "
                f"an array of its shape {ids.shape}, but returned {shown(found)}."
            )
        return found.astype(np.int64)

    return hosts


def hop_bounds(hop: Hop, hosts: Hosts | None = None) -> Bounds:
    """Return all bounds from a hop between devices, which shares its arithmetic.

    Args:
        hop: from the source to the destination; its units are devices.
        hosts: as for `bounds_of`.

    >>> rows = Layout((4,), ((0, 2, 4),), np.array([[0], [1]]))
    >>> hop_bounds(Hop(rows, Layout((4,), ((0, 4),), np.array([[0, 1]])))).moved
    4
    """
    copies = np.maximum(hop.before.copies, 1)
    direct, relayed = (-(-x // copies) for x in (hop.wanted, _needed(hop)))
    return Bounds(
        received=hop.received,
        kept=total(hop.stays[-1]),
        send=int(direct.max(initial=0)),
        relay_send=int(relayed.max(initial=0)),
        hosts=None if hosts is None else _by_group(hop.before, hop.after, hosts),
    )


@final
@dataclass(frozen=True, eq=False)
class Bounds(Summarized):
    """The least that any plan between two layouts must do, in elements; it prints.

    Attributes:
        received: what each device must receive (LB1).
        kept: the elements that devices need and already have, over all devices.
        send: the least that the largest sender sends if all is sent directly (LB3).
        relay_send: the same if receivers may pass on what they have (LB3').
        hosts: what must enter each host (LB2); None if the hosts were not given.
    """

    received: Tally
    kept: int
    send: int
    relay_send: int
    hosts: Tally | None = None

    @cached_property
    def moved(self) -> int:
        """What must be received, over all devices (LB1)."""
        return self.received.total

    @property
    def receive(self) -> int:
        """The most that one device must receive."""
        return self.received.most

    def _summary(self) -> Summary:
        facts = [
            Fact("kept", f"{self.kept:,}", "that devices need and already have"),
            Fact("received", f"{self.receive:,}", "by one device, at least"),
            Fact("sent", f"{self.send:,}", "by one device, if all is sent directly"),
            Fact("relayed", f"{self.relay_send:,}", "by one device, if receivers pass on"),
        ]
        if self.hosts is not None:
            told = f"enter hosts, at most {self.hosts.most:,} one of them"
            facts.append(Fact("hosts", f"{self.hosts.total:,}", told))
        return Summary(f"At least {count_text(self.moved, 'element')} must move", facts)

    def seconds(
        self,
        itemsize: int,
        *,
        bandwidth: float,
        latency: float = 0.0,
        messages: float | None = None,
        relays: bool = False,
    ) -> float:
        """Return the least time that the busiest device needs, if each has one port (LB4).

        Args:
            itemsize: bytes per element.
            bandwidth: bytes per second of a port, in each direction.
            latency: seconds that one message costs besides its bytes.
            messages: what one device sends or receives at least; by default one if anything moves.
            relays: whether receivers may pass on what they have.
        """
        what = "Bounds.seconds"
        size = count_of(itemsize, what, "itemsize")
        least = 1.0 if self.moved else 0.0
        send = self.relay_send if flag_of(relays, what, "relays") else self.send
        return time_bound(
            send * size,
            self.receive * size,
            bandwidth=number_of(bandwidth, what, "bandwidth", open_below=True),
            latency=number_of(latency, what, "latency"),
            messages=least if messages is None else number_of(messages, what, "messages"),
        )


def _needed(hop: Hop) -> Ints:
    """Return how many elements of each source cell are needed by devices that do not hold it."""
    _, source, destination, _, volume = hop.stays
    needed = hop.volumes[0].copy()
    copies = hop.after.copies[destination]
    if (copies > 1).any():
        # If all holders of a destination cell hold the source cell too, none of them lacks the
        # elements that the two share.
        keys = source * max(hop.after.count, 1) + destination
        _, first, counts = np.unique(keys, return_index=True, return_counts=True)
        first = first[counts == copies[first]]
        source, volume = source[first], volume[first]
    np.subtract.at(needed, source, volume)
    return needed


def _by_group(before: CellGrid, after: CellGrid, group_of: Hosts) -> Tally:
    """Return the elements that each group lacks; cells of a layout are disjoint, so they add up."""
    units = unit_map(group_of) if isinstance(group_of, Mapping) else group_of
    have, need = HeldCells(before, units), HeldCells(after, units)
    missing = need.volumes - shared(need, have, np.ones(len(have.group), need.volumes.dtype))
    groups, first = np.unique(need.group, return_index=True)
    sums = np.add.reduceat(missing, first) if len(first) else missing
    return Tally(groups, sums)
