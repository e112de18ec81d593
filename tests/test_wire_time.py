"""Times of communications: those of hops where elements keep their places, else of rings."""

import numpy as np
import pytest

from meshard.algebra.device import Device
from meshard.algebra.dimmap import DimMap
from meshard.algebra.layout import Layout, even_cuts
from meshard.algebra.sharding import SingleDeviceSharding
from meshard.errors import ArgumentError
from meshard.plan.figures.simulate import seconds_of, simulate
from meshard.plan.figures.topology import Level, Topology, topology
from meshard.plan.hops.hop import Hop
from meshard.plan.move.assemble import Source
from meshard.plan.move.wires import (
    Move,
    Wire,
    all_reduced,
    exchanged,
    fold_wire,
    gathered,
    in_turns,
    move_wire,
    together,
)

ROWS = Layout((8,), (even_cuts(8, 4),), np.arange(4).reshape(4, 1))
WHOLE = Layout((8,), ((0, 8),), np.arange(4).reshape(1, 4))
ANYWHERE = SingleDeviceSharding(Device(0))
ALL = np.arange(4).reshape(1, 4)
FLAT = Topology("flat", (Level("all", latency=0.5, bandwidth=2.0),))
PAIRS = Topology(
    "pairs",
    (Level("pair", latency=0.0, bandwidth=8.0, size=2), Level("all", latency=0.5, bandwidth=1.0)),
)


def ring(kind, received, groups=ALL):
    return Wire("uint8[8]", kind, ("i",), lambda: received, groups=lambda: groups)


def move(destination, *sources):
    origins = (ANYWHERE,) * len(sources)
    return move_wire("uint8[8]", Move(ANYWHERE, origins, destination, sources, 1))


@pytest.mark.parametrize("where", [FLAT, PAIRS, topology("two racks")])
@pytest.mark.parametrize(("before", "after"), [(ROWS, WHOLE), (WHOLE, ROWS)])
def test_a_move_without_maps_takes_as_long_as_its_hop(where, before, after):
    found = seconds_of([move(after, Source(before))], where)
    assert found == simulate(Hop(before, after), 1, where).seconds


def test_a_shift_by_one_sends_each_device_s_edge_to_the_next():
    shift = DimMap(8, 8, [(1, 7, 0, 1), (0, 1, 7, 1)])
    found = seconds_of([move(ROWS, Source(ROWS, (shift,)))], FLAT)
    assert found == 1 / 2.0 + 0.5  # one byte and one message out of each device


def test_collectives_go_round_a_ring():
    # 4 devices, 8 bytes: an all-reduce brings 12 bytes to each, in 6 messages.
    tensor = np.arange(4).reshape(4, 1)
    reduce = fold_wire("uint8[8]", ("i",), tensor, _one(), 1, scattered=False)
    assert reduce.received == all_reduced(ALL, 8)
    assert seconds_of([reduce], FLAT) == 12 / 2.0 + 6 * 0.5
    gather = ring("all-gather", gathered(ALL, 2))
    assert seconds_of([gather], FLAT) == 6 / 2.0 + 3 * 0.5
    assert seconds_of([ring("permute", dict.fromkeys(range(4), 8))], FLAT) == 8 / 2.0 + 0.5
    # Between pairs only two of the ring's four ways go: out of each pair as much as into it.
    assert seconds_of([gather], PAIRS) == 6 / 1.0 + 3 * 0.5


def _one():
    return Layout((8,), ((0, 8),), np.arange(4).reshape(1, 4))


def test_an_all_to_all_goes_from_each_to_each():
    found = seconds_of([ring("all-to-all", exchanged(ALL, 8))], PAIRS)
    # Of 2 bytes to each other device, 8 leave each pair, in two messages of each device.
    assert found == 8 / 1.0 + 2 * 0.5


def test_what_happens_together_shares_the_ways():
    halves = [ring("all-gather", gathered(g, 4), g) for g in (ALL[:, :2], ALL[:, 2:])]
    assert seconds_of(halves, FLAT) == seconds_of(halves[:1], FLAT)
    twice = seconds_of([halves[0], halves[0]], FLAT)
    assert twice == 2 * seconds_of(halves[:1], FLAT)
    assert seconds_of([together(halves)], FLAT) == seconds_of(halves, FLAT)


def test_what_happens_in_turns_takes_the_sum_of_its_times():
    gather, reduce = ring("all-gather", gathered(ALL, 2)), ring("all-reduce", all_reduced(ALL, 8))
    both = in_turns([(gather, 3), (reduce, 2)], "uint8[8]")
    assert seconds_of([both], FLAT) == 3 * seconds_of([gather], FLAT) + 2 * seconds_of(
        [reduce], FLAT
    )


def test_without_groups_all_that_receive_are_one():
    gather = ring("all-gather", gathered(ALL, 2))
    loose = Wire("uint8[8]", "all-gather", ("i",), lambda: gathered(ALL, 2))
    assert seconds_of([loose], FLAT) == seconds_of([gather], FLAT)


def test_nothing_takes_no_time():
    assert seconds_of([], FLAT) == 0
    assert seconds_of([ring("permute", {0: 0, 1: 0}, ALL[:, :2])], FLAT) == 0
    assert seconds_of([move(ROWS, Source(ROWS, (DimMap.identity(8),)))], FLAT) == 0
    aside = DimMap(8, 8, [(0, 2, 0, 1)])  # within the first device alone
    assert seconds_of([move(ROWS, Source(ROWS, (aside,)))], FLAT) == 0
    alone = ring("all-reduce", {0: 4}, np.array([[0]]))
    assert seconds_of([alone], FLAT) == 0


def test_a_device_that_the_topology_lacks_is_named():
    small = Topology("small", (Level("host", latency=0.0, bandwidth=1.0, size=2),))
    with pytest.raises(ArgumentError, match="Device 2 has no place in topology 'small'"):
        seconds_of([ring("all-gather", gathered(ALL, 2))], small)
