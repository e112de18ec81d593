"""Simulation: how long a plan takes on a topology, and which ports limit it.

The model is a port's time (LB4 of the bounds), applied to each port of each level. A message
between two devices passes a port of each at every level up to the one where they meet. A port is
full-duplex, so that a hop keeps it busy for::

    max(bytes out, bytes in) / bandwidth + delay

where the delay is the largest of the devices behind it: the latencies of all messages that a device
sends through the port, or receives, whichever is more; each message has the latency of the level
where its ends meet. A group with a capacity is busy for all bytes that
pass inside it, enter or leave it, divided by the capacity. A hop takes as long as the slowest port
or group; hops follow each other. Everything that a device sends to another in one hop is one
message; so is what it sends of all arrays of a batch, which move together (`schedule`).

What this leaves out: messages that wait for each other, rounds, and anything else in the network.
The time is a lower bound for the topology as described.

Times of communications on a topology.

In: a communication (a `Wire`), the mesh that it runs on, and a topology. Out: seconds, by the model
of `simulate`. Elements that keep their places move as in a hop; if maps say what moves, each box
comes from one of its holders. Of collectives only the bytes and the groups are known; they are
timed as their bandwidth-optimal forms: around a ring in mesh order, or from each device to each
other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, final

import numpy as np

from meshard.plan.captions import count_text, size_unit, time_text, time_unit, whole_text
from meshard.plan.figures.load import (
    DevicePlaces,
    Load,
    added_up,
    as_floats,
    load_of,
    messages_together,
    summed,
    summed_at,
)
from meshard.plan.figures.topology import Topology, as_topology
from meshard.plan.hops.cells import each_device
from meshard.plan.hops.hop import Hop, Route
from meshard.plan.move.assemble import overlaps
from meshard.plan.move.wires import Groups, Move, Wire
from meshard.plan.show.report import Table
from meshard.plan.show.summary import Fact, Summarized, Summary
from meshard.tuning import ESTIMATED_JOBS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Amounts = Floats | Ints

Moves = Route | Hop | Sequence[Hop]
"""What can be simulated: a route, one hop, or hops one after another, between devices."""


_SPOTS = 5
_WAYS = ("sends", "receives")


@final
@dataclass(frozen=True, slots=True)
class Limit:
    """The port, or the group, that decides how long a hop takes.

    Attributes:
        name: whose port it is: ``"host 3"``.
        way: what its owner does: ``"sends"`` or ``"receives"``; ``"carries"``, for a group that has
            a capacity.
        bytes: what passes.
        seconds: how long it is busy.
        waits: the part of them that is the latencies of messages.
        mean: the mean of such seconds, over all owners of a like port that do the same.
        count: how many these are.
    """

    name: str
    way: str
    bytes: int
    seconds: float
    waits: float
    mean: float
    count: int

    @property
    def ratio(self) -> float:
        """How much longer it is busy than the mean; 1 if the load is balanced."""
        return self.seconds / self.mean if self.mean else 1.0

    def told(self, where: str = "") -> str:
        """Return what its owner does, without the name: a sentence's end.

        Args:
            where: words on the hop, if there are several.
        """
        word = self.name.removeprefix("inside ").rpartition(" ")[0]
        told = f"{self.way} {whole_text(self.bytes)}"
        if self.count > 1:
            told += f", {self.ratio:.2f} x the mean of {count_text(self.count, word)}"
        told += where
        if self.waits > self.seconds / 2:
            told += f"; {self.waits / self.seconds:.0%} of its time is the latency of messages"
        return told

    def __str__(self) -> str:
        return f"{self.name} {self.told()}"


@final
@dataclass(frozen=True, slots=True)
class HopTime:
    """One hop of a simulation.

    Attributes:
        seconds: how long it takes.
        bytes: what moves between devices.
        messages: in how many messages.
        slowest: the port or group that decides how long it takes; ``"-"`` if nothing moves.
        limit: what passes there, beside the mean; None if nothing moves.
    """

    seconds: float
    bytes: int
    messages: int
    slowest: str
    limit: Limit | None = None


@final
@dataclass(frozen=True, slots=True)
class LevelTraffic:
    """One level's part in a simulation, over all hops.

    Attributes:
        name: the level's name.
        bytes: what passes between devices that meet there.
        messages: in how many messages.
        seconds: how long the slowest port of the level is busy, and the slowest group, summed over
            the hops.
    """

    name: str
    bytes: int
    messages: int
    seconds: float


@final
@dataclass(frozen=True, slots=True)
class HotSpot:
    """A port with much traffic, over all hops.

    Attributes:
        name: the port's owner: ``"device 5"``, ``"host 3"``.
        sent: bytes that leave through it.
        received: bytes that enter through it.
        seconds: how long its larger direction takes, without latencies.
    """

    name: str
    sent: int
    received: int
    seconds: float


@final
@dataclass(frozen=True)
class Simulation(Summarized):
    """What moving arrays takes on a topology; prints as tables.

    Attributes:
        topology: the topology's name.
        hops: each hop.
        levels: each level, from the inside out.
        senders: the ports that are busy sending for longest; at most five.
        receivers: the same for receiving.
        exact: whether all traffic is that of the jobs; otherwise it is estimated where several
            devices hold the same elements, by assuming that each sends an equal part.
    """

    topology: str
    hops: tuple[HopTime, ...]
    levels: tuple[LevelTraffic, ...]
    senders: tuple[HotSpot, ...]
    receivers: tuple[HotSpot, ...]
    exact: bool

    @property
    def seconds(self) -> float:
        """The predicted time."""
        return sum(hop.seconds for hop in self.hops)

    @property
    def bytes(self) -> int:
        """What moves between devices."""
        return sum(hop.bytes for hop in self.hops)

    @property
    def messages(self) -> int:
        """In how many messages it moves."""
        return sum(hop.messages for hop in self.hops)

    def to_dict(self) -> dict[str, object]:
        """Return all figures as dicts, lists and numbers, as in JSON."""
        totals = {"seconds": self.seconds, "bytes": self.bytes, "messages": self.messages}
        found = asdict(self)
        return {k: list(v) if isinstance(v, tuple) else v for k, v in {**totals, **found}.items()}

    @property
    def limit(self) -> Limit | None:
        """What decides how long the longest hop takes; None if nothing moves."""
        return max(self.hops, key=lambda hop: hop.seconds).limit if self.hops else None

    @property
    def facts(self) -> tuple[Fact, Fact]:
        """The time and what limits it, as lines of a summary."""
        time = Fact("time", time_text(self.seconds), f"on {self.topology}")
        if self.limit is None:
            return time, Fact("limit", "none", "nothing moves")
        number, hop = max(enumerate(self.hops, 1), key=lambda pair: pair[1].seconds)
        where = f", in hop {number} of {len(self.hops)}, which takes {time_text(hop.seconds)}"
        told = self.limit.told(where * (len(self.hops) > 1))
        return time, Fact("limit", self.limit.name, told)

    def _summary(self) -> Summary:
        time, limit = self.facts
        title = f"{time.figure} on {self.topology} for {whole_text(self.bytes)}"
        how = "" if self.exact else "the bytes of replicas are estimated: each sends an equal part"
        facts = [limit, Fact("messages", f"{self.messages:,}", how)]
        return Summary(title, facts, list(self._tables()))

    def _tables(self) -> Iterator[Table]:
        """Yield the hops, the levels, and the busiest ports."""
        every: tuple[HopTime | LevelTraffic, ...] = (*self.hops, *self.levels)
        time, size = time_unit([x.seconds for x in every]), size_unit([x.bytes for x in every])
        total = max(self.bytes, 1)
        columns = (time.name, size.name, "messages")
        hops = [
            (f"{n}", time.text(x.seconds), size.text(x.bytes), f"{x.messages:,}", x.slowest)
            for n, x in enumerate(self.hops, 1)
        ]
        yield Table(("hop", *columns, "slowest"), hops, "<>>><")
        levels = [
            (
                x.name,
                time.text(x.seconds),
                size.text(x.bytes),
                f"{x.messages:,}",
                f"{100 * x.bytes / total:.1f}",
            )
            for x in self.levels
        ]
        yield Table(("level", *columns, "% of bytes"), levels, "<>>>>")
        ways = (("busiest sender", self.senders), ("busiest receiver", self.receivers))
        for title, spots in ways:
            time = time_unit([x.seconds for x in spots])
            size = size_unit([n for x in spots for n in (x.sent, x.received)])
            head = (title, time.name, f"sent {size.name}", f"received {size.name}")
            rows = [
                (x.name, time.text(x.seconds), size.text(x.sent), size.text(x.received))
                for x in spots
            ]
            if rows:
                yield Table(head, rows, "<>>>")


def simulate(
    moves: Moves, itemsize: int, topology: Topology | str, *, most_jobs: int = ESTIMATED_JOBS
) -> Simulation:
    """Return how long an array takes to move on a topology, and which ports limit it.

    Args:
        moves: the route, hop or hops that the array takes.
        itemsize: bytes per element.
        topology: where the devices are, or the name of a preset, as in ``"8-gpu hosts"``.
        most_jobs: if several devices hold the same elements and a hop has more jobs than this, its
            traffic is estimated, in time proportional to the number of devices.

    Raises:
        ArgumentError: if there is no such topology, or a device has no place in it.

    >>> from meshard.algebra.layout import Layout, even_cuts
    >>> from meshard.plan.figures.topology import Level
    >>> rows = Layout((8,), (even_cuts(8, 4),), np.arange(4).reshape(4, 1))
    >>> whole = Layout((8,), ((0, 8),), np.arange(4).reshape(1, 4))
    >>> pairs = Level("pair", latency=0.0, bandwidth=10.0, size=2)
    >>> slow = Topology("slow between pairs", (pairs, Level("all", latency=0.5, bandwidth=1.0)))
    >>> found = simulate(Hop(rows, whole), 1, slow)
    >>> found.seconds, [level.bytes for level in found.levels], found.hops[0].slowest
    (9.0, [8, 16], 'pair 0')
    """
    return simulate_many([(moves, itemsize, 1)], topology, most_jobs=most_jobs)


def simulate_many(
    moves: Iterable[tuple[Moves, int, int]],
    topology: Topology | str,
    *,
    together: Mapping[frozenset[int], int] | None = None,
    most_jobs: int = ESTIMATED_JOBS,
    tell: Callable[[int, int], None] | None = None,
) -> Simulation:
    """Return how long many arrays take to move.

    Args:
        moves: for each kind of array its route, its bytes per element, and the number of such
            arrays.
        topology: where the devices are, or the name of a preset, as in ``"8-gpu hosts"``.
        together: numbers of moves whose arrays share messages, and how many such batches there
            are; None if each array has its own messages.
        most_jobs: as for `simulate`.
        tell: called with the number of moves that are counted, and of all moves.

    All first hops run at once, then all second hops, and so on: their traffic is added up on each
    port and then timed. In a batch everything that a device sends to another in one hop is one
    message.

    Raises:
        ArgumentError: if there is no such topology, or a device has no place in it.
    """
    listed = [(_hops(way), itemsize, count) for way, itemsize, count in moves]
    where = as_topology(topology, "simulate")
    places = DevicePlaces(where, [hop for hops, _, _ in listed for hop in hops])
    loads = []
    for number, (hops, _, _) in enumerate(listed):
        loads.append([load_of(hop, places, most_jobs=most_jobs) for hop in hops])
        if tell is not None:
            tell(number + 1, len(listed))
    rounds = _rounds(listed, loads, places, together, most_jobs)
    timed = [_Timed(load, places) for load in rounds]
    levels = tuple(
        LevelTraffic(
            level.name,
            _whole(sum(x.bytes[number] for x in timed)),
            _whole(sum(x.messages[number] for x in timed)),
            sum(x.seconds[number] for x in timed),
        )
        for number, level in enumerate(where.levels)
    )
    return Simulation(
        where.name,
        tuple([x.hop for x in timed]),
        levels,
        _hottest(timed, places, 0),
        _hottest(timed, places, 1),
        all(load.exact for load in rounds),
    )


def _rounds(
    listed: Sequence[tuple[tuple[Hop, ...], int, int]],
    loads: Sequence[Sequence[Load]],
    places: DevicePlaces,
    together: Mapping[frozenset[int], int] | None,
    most_jobs: int,
) -> list[Load]:
    """Return the traffic of all first hops, all second hops, and so on; see `simulate_many`."""
    rounds = [Load.none(places)] * max([len(hops) for hops, _, _ in listed], default=0)
    for own, (_, itemsize, count) in zip(loads, listed, strict=True):
        for number, load in enumerate(own):
            once = load if together is None else load.silent()
            rounds[number] += once.times(itemsize, count)
    for batch, count in (together or {}).items():
        for number in range(max([len(loads[i]) for i in batch], default=0)):
            ways = [i for i in batch if number < len(loads[i])]
            sent, received = messages_together(
                [listed[i][0][number] for i in ways],
                [loads[i][number] for i in ways],
                places,
                most_jobs=most_jobs,
            )
            joined = replace(Load.none(places), messages_sent=sent, messages_received=received)
            rounds[number] += joined.times(1, count)
    return rounds


def busy(load: Load, places: DevicePlaces) -> HopTime:
    """Return how long the traffic between devices at one time takes."""
    return _Timed(load, places).hop


def _hops(moves: Moves) -> tuple[Hop, ...]:
    hops = moves.hops if isinstance(moves, Route) else (moves,) if isinstance(moves, Hop) else moves
    assert all(hop.units is each_device for hop in hops)
    return tuple(hops)


def _whole(amount: float) -> int:
    return amount if isinstance(amount, int) else round(float(amount))


def _at(amounts: Amounts, place: int) -> float:
    found: float = amounts[place] if amounts.dtype == object else amounts[place].item()
    return found


def _owner(places: DevicePlaces, level: int, port: int) -> str:
    """Return whose port one of a level's ports is."""
    if level == 0:
        return f"device {places.ids[port]}"
    return f"{places.topology.levels[level - 1].name} {places.groups[level - 1][port]}"


_NOTHING = Limit("-", "sends", 0, 0.0, 0.0, 0.0, 0)


@final
class _Timed:
    """One round of hops, timed.

    Attributes:
        ports: for each level the bytes that leave and enter each of its ports.
        bytes: for each level what passes between devices that meet there.
        messages: in how many messages.
        seconds: for each level how long its slowest port or group is busy.
        hop: the sum of them.
    """

    def __init__(self, load: Load, places: DevicePlaces) -> None:
        self._places = places
        levels = places.topology.levels
        inside = [0, *map(summed, load.inside)]
        self.bytes = [max(b - a, 0) for a, b in pairwise(inside)]
        # Messages by the level where their ends meet, and what the rest of the way out costs.
        sent, received = (
            np.maximum(np.diff(x, axis=0, prepend=0.0), 0.0)
            for x in (load.messages_sent, load.messages_received)
        )
        self.messages = sent.sum(axis=1).tolist()
        waits = np.array([level.latency for level in levels])[:, None]
        delays = np.maximum(*(np.cumsum((x * waits)[::-1], axis=0)[::-1] for x in (sent, received)))
        self.ports: list[tuple[Amounts, Amounts]] = []
        self.seconds: list[float] = []
        limit: Limit | None = None
        for number, level in enumerate(levels):
            out, into = self._through(load, number)
            self.ports.append((out, into))
            delay = np.zeros(len(out))
            at = places.at[number - 1] if number else np.arange(len(out))
            np.maximum.at(delay, at, delays[number])
            busy = as_floats(np.maximum(out, into)) / level.bandwidth + delay
            found = self._limit(number, (out, into), busy, delay)
            if level.capacity is not None:
                carried = self._carried(load, number)
                group = self._inside(number, carried, carried / level.capacity)
                found = max(found, group, key=lambda x: x.seconds)
            self.seconds.append(found.seconds)
            if found.seconds > (limit.seconds if limit else 0.0):
                limit = found
        total, messages = _whole(summed(load.received)), _whole(sum(self.messages))
        took, slowest = (limit.seconds, limit.name) if limit else (0.0, "-")
        self.hop = HopTime(took, total, messages, slowest, limit)

    def _limit(
        self, number: int, ways: tuple[Amounts, Amounts], busy: Floats, delay: Floats
    ) -> Limit:
        """Return the port of a level that is longest busy, beside those that do the same."""
        port = int(busy.argmax()) if len(busy) else -1
        if port < 0:
            return _NOTHING
        way = int(ways[1][port] > ways[0][port])
        like = busy[as_floats(ways[way]) > 0]
        name = _owner(self._places, number, port)
        amount, waits = _whole(_at(ways[way], port)), float(delay[port])
        mean = float(like.mean()) if len(like) else 0.0
        took = float(busy[port])
        return Limit(name, _WAYS[way], amount, took, waits, mean, len(like))

    def _inside(self, number: int, carried: Floats, busy: Floats) -> Limit:
        """Return the group of a level that carries most."""
        group = int(busy.argmax()) if len(busy) else -1
        if group < 0:
            return _NOTHING
        level = self._places.topology.levels[number].name
        name = f"inside {level} {self._places.groups[number][group]}"
        like = busy[busy > 0]
        took, mean = float(busy[group]), float(like.mean()) if len(like) else 0.0
        return Limit(name, "carries", _whole(float(carried[group])), took, 0.0, mean, len(like))

    def _through(self, load: Load, number: int) -> tuple[Amounts, Amounts]:
        """Return the bytes that leave and enter each port of a level."""
        if number == 0:
            return load.sent, load.received
        at, within = self._places.at[number - 1], load.inside[number - 1]
        out, into = (
            np.maximum(summed_at(at, x, len(within)) - within, 0)
            for x in (load.sent, load.received)
        )
        return out, into

    def _carried(self, load: Load, number: int) -> Floats:
        """Return the bytes that each group of a level carries between its subgroups, in and out."""
        out, into = map(as_floats, self._through(load, number + 1))
        own = as_floats(load.inside[number])
        if number:
            above = np.zeros(len(load.inside[number - 1]), np.int64)
            above[self._places.at[number - 1]] = self._places.at[number]
            own = own - np.bincount(above, as_floats(load.inside[number - 1]), len(own))
        return np.maximum(own, 0.0) + out + into


def _hottest(timed: Sequence[_Timed], places: DevicePlaces, direction: int) -> tuple[HotSpot, ...]:
    """Return the ports that are longest busy in one direction, over all rounds."""
    found: list[tuple[float, int, int, HotSpot]] = []
    for number, level in enumerate(places.topology.levels):
        sums = [added_up([x.ports[number][way] for x in timed]) for way in (0, 1)] if timed else []
        if not sums:
            continue
        amounts = as_floats(sums[direction])
        for port in np.argsort(-amounts, kind="stable")[:_SPOTS]:
            if amounts[port] > 0:
                out, into = (_at(x, int(port)) for x in sums)
                seconds = max(out, into) / level.bandwidth
                spot = HotSpot(
                    _owner(places, number, int(port)), _whole(out), _whole(into), seconds
                )
                order = float(amounts[port]) / level.bandwidth
                found.append((-order, number, int(port), spot))
    return tuple([spot for *_, spot in sorted(found, key=lambda x: x[:3])[:_SPOTS]])


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
