"""Times of communications on a topology.

In: a communication (a `Wire`), the mesh that it runs on, and a topology. Out: seconds, by the model
of `simulate`. Elements that keep their places move as in a hop; if maps say what moves, each box
comes from one of its holders. Of collectives only the bytes and the groups are known; they are
timed as their bandwidth-optimal forms: around a ring in mesh order, or from each device to each
other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from meshard.plan.figures.load import DevicePlaces, Load, load_of
from meshard.plan.figures.presets import as_topology
from meshard.plan.figures.simulate import busy
from meshard.plan.figures.topology import Topology
from meshard.plan.hops.hop import Hop
from meshard.plan.move.assemble import overlaps
from meshard.plan.move.wires import Groups, Move, Wire

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


_PER_RING = {"all-reduce": 2, "permute": 0, "broadcast": 0}
"""How often a ring's messages go round; 0 if each device sends only one."""


def seconds_of(wires: Sequence[Wire], topology: Topology | str) -> float:
    """Return how long communications take together if they happen at the same time.

    Args:
        wires: the communications.
        topology: where the devices are, or the name of a preset.

    Raises:
        ArgumentError: if there is no such topology, or a device has no place in it.

    >>> import numpy as np
    >>> from meshard.plan.move.wires import Wire
    >>> ring = Wire("float32[8]", "all-gather", ("i",), lambda: {0: 3000, 1: 3000})
    >>> seconds_of([ring], "one process")
    9e-07
    """
    where = as_topology(topology, "seconds_of")
    own = [w for w in wires if not w.parts]
    for wire in wires:
        if wire.parts and wire.at_once:
            own += [w for w, _ in wire.parts]
    after = sum(
        times * seconds_of([w], where) for v in wires if not v.at_once for w, times in v.parts
    )
    devices = sorted({d for wire in own for d in _devices(wire)})
    if not devices:
        return after
    places = DevicePlaces(where, (), devices)
    load = Load.none(places)
    for wire in own:
        if any(wire.received.values()):
            load += _load(wire, places)
    return after + busy(load, places).seconds


def _devices(wire: Wire) -> set[int]:
    found = {int(d) for d in wire.received}
    if wire.move is not None:
        found |= {int(d) for source in wire.move.sources for d in source.layout.device_ids}
    groups = wire.groups
    return found if groups is None else found | {int(d) for d in groups.ravel()}


def _load(wire: Wire, places: DevicePlaces) -> Load:
    move = wire.move
    if move is not None:
        if wire.kind != "move":  # elements keep their places
            return load_of(Hop(move.sources[0].layout, move.destination), places).times(
                move.itemsize
            )
        return _between(_boxes(move), places)
    groups = wire.groups
    if groups is None:
        groups = np.array([sorted(wire.received)], np.int64)
    return _between(_collective(wire, groups), places)


def _boxes(move: Move) -> list[tuple[int, int, float, float]]:
    """Return sender, receiver, bytes and messages of each box that a device lacks."""
    found: dict[tuple[int, int], int] = {}
    turn = 0
    for source in move.sources:
        layout = source.layout
        for piece in range(move.destination.piece_count):
            for volume, origins in overlaps(source, move.destination, piece):
                holders = [int(d) for origin in origins for d in layout.holders(origin)]
                for device in move.destination.holders(piece):
                    if int(device) not in holders:
                        pair = holders[turn % len(holders)], int(device)
                        found[pair] = found.get(pair, 0) + volume * move.itemsize
                        turn += 1
    return [(a, b, float(count), 1.0) for (a, b), count in found.items()]


def _collective(wire: Wire, groups: Groups) -> list[tuple[int, int, float, float]]:
    found: list[tuple[int, int, float, float]] = []
    for members in groups.tolist():
        count = len(members)
        for place, device in enumerate(members):
            received = float(wire.received.get(device, 0))
            if not received or count < 2:
                continue
            if wire.kind == "all-to-all":
                share = received / (count - 1)
                found += [(other, device, share, 1.0) for other in members if other != device]
            else:
                times = _PER_RING.get(wire.kind, 1) * (count - 1) or 1
                found.append((members[place - 1], device, received, float(times)))
    return found


def _between(pairs: Sequence[tuple[int, int, float, float]], places: DevicePlaces) -> Load:
    """Return the load of messages from one device to another."""
    if not pairs:
        return Load.none(places)
    ends: Any = np.array([p[:2] for p in pairs], np.int64)
    sender, receiver = places.of(ends[:, 0]), places.of(ends[:, 1])
    amounts, messages = (np.array([p[i] for p in pairs]) for i in (2, 3))
    count = len(places.ids)

    def sums(at: Ints, values: Floats, length: int = count) -> Floats:
        return np.asarray(np.bincount(at, values, length), np.float64)

    inside, sent, received = [], [], []
    for at, own in zip(places.at, places.groups, strict=True):
        near = at[sender] == at[receiver]
        inside.append(sums(at[sender[near]], amounts[near], len(own)))
        sent.append(sums(sender[near], messages[near]))
        received.append(sums(receiver[near], messages[near]))
    return Load(
        sums(sender, amounts),
        sums(receiver, amounts),
        tuple(inside),
        np.array(sent),
        np.array(received),
        exact=False,
    )
