import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshard.algebra.box import Box
from meshard.algebra.layout import Layout, balanced_cuts, even_cuts, layout_of_boxes
from meshard.errors import ArgumentError
from meshard.plan.captions import time_text
from meshard.plan.figures.bounds import bounds_of
from meshard.plan.figures.load import DevicePlaces, load_of
from meshard.plan.figures.simulate import simulate, simulate_many
from meshard.plan.figures.topology import Level, Topology, topology
from meshard.plan.hops.hop import Hop, Route
from meshard.sharding import Mesh, NamedSharding, P
from meshard.testing.strategies import meshes, specs
from meshard.testing.virtual import virtual_devices
from tests.lays import calm

DEVICES = virtual_devices(12)
FLAT = Topology("flat", (Level("process", latency=0.25, bandwidth=4.0),))
PAIRS = Topology(
    "pairs",
    (
        Level("host", latency=0.5, bandwidth=8.0, size=2),
        Level("rack", latency=2.0, bandwidth=2.0, size=2),
        Level("row", latency=10.0, bandwidth=1.0),
    ),
)


def lines(size, shards, ids=None, replicas=1):
    ids = np.arange(shards * replicas) if ids is None else np.asarray(ids)
    return Layout((size,), (balanced_cuts(size, shards),), ids.reshape(shards, replicas))


def everywhere(size, ids):
    return Layout((size,), ((0, size),), np.asarray(ids).reshape(1, -1))


def levels_of(found):
    return [(x.bytes, x.messages, x.seconds) for x in found.levels]


# by hand


def test_one_level():
    # Each of four devices sends 2 elements of 4 bytes to three others, and receives 6.
    found = simulate(Hop(lines(8, 4), everywhere(8, range(4))), 4, FLAT)
    assert found.seconds == 24 / 4.0 + 3 * 0.25
    assert (found.bytes, found.messages, found.exact) == (96, 12, True)
    assert levels_of(found) == [(96, 12, 6.75)]
    assert found.hops[0].slowest == "device 0"
    assert [x.name for x in found.senders] == [f"device {i}" for i in range(4)]
    assert [(x.sent, x.received, x.seconds) for x in found.receivers] == [(24, 24, 6.0)] * 4


def test_ports_of_each_level():
    # Device 0 has 8 bytes that devices 1 (its host), 2 (its rack) and 4 (its row) want.
    hop = Hop(everywhere(8, [0]), everywhere(8, [1, 2, 4]))
    found = simulate(hop, 1, PAIRS)
    device = 24 / 8.0 + 0.5 + 2.0 + 10.0
    host = 16 / 2.0 + 2.0 + 10.0  # what stays in the host does not pass its port
    rack = 8 / 1.0 + 10.0
    assert levels_of(found) == [(8, 1, device), (8, 1, host), (8, 1, rack)]
    assert found.seconds == host
    assert found.hops[0].slowest == "host 0"
    assert [(x.name, x.sent, x.received, x.seconds) for x in found.senders] == [
        ("host 0", 16, 0, 8.0),
        ("rack 0", 8, 0, 8.0),
        ("device 0", 24, 0, 3.0),
    ]
    assert [(x.name, x.received) for x in found.receivers] == [
        ("rack 1", 8),
        ("host 1", 8),
        ("host 2", 8),
        ("device 1", 8),
        ("device 2", 8),
    ]


def test_a_port_waits_for_the_device_with_the_most_messages():
    # Each of hosts 0 and 1 sends all that host 2 needs of it through one port.
    hop = Hop(lines(8, 4), everywhere(8, [4]))
    slow = Topology(
        "slow",
        (
            Level("host", latency=0.0, bandwidth=1.0, size=2),
            Level("row", latency=3.0, bandwidth=1.0),
        ),
    )
    found = simulate(hop, 1, slow)
    # Device 4 receives four messages one after another; those who send have one each.
    assert found.seconds == 8.0 + 4 * 3.0
    assert found.hops[0].slowest == "device 4"
    assert levels_of(found) == [(0, 0, 20.0), (8, 4, 20.0)]


def test_capacity_of_a_group():
    levels = (
        Level("host", latency=0.0, bandwidth=100.0, size=2, capacity=4.0),
        Level("row", latency=0.0, bandwidth=100.0, capacity=1.0),
    )
    shift = Hop(lines(8, 4), lines(8, 4, [1, 2, 3, 0]))
    found = simulate(shift, 1, Topology("narrow", levels))
    # Host 0: 2 bytes inside, 2 out, 2 in. The row: 4 bytes between its hosts.
    assert [x.seconds for x in found.levels] == [6 / 4.0, 4 / 1.0]
    assert found.seconds == 4.0
    assert found.hops[0].slowest == "inside row 0"
    inner = Topology("inner", (levels[0], Level("row", latency=0.0, bandwidth=100.0)))
    assert simulate(shift, 1, inner).hops[0].slowest == "inside host 0"
    three = Topology("three", (levels[0], Level("rack", 0.0, 100.0, size=1), *levels[1:]))
    assert simulate(shift, 1, three).levels[2].seconds == 4.0


def test_routes_take_the_sum_of_their_hops():
    first, last = lines(8, 4), everywhere(8, range(4))
    middle = lines(8, 4, [1, 2, 3, 0])
    found = simulate(Route("around", (first, middle, last)), 4, FLAT)
    hops = [simulate(Hop(first, middle), 4, FLAT), simulate(Hop(middle, last), 4, FLAT)]
    assert [x.seconds for x in found.hops] == [x.seconds for x in hops] == [2.25, 6.75]
    assert found.seconds == 9.0
    assert found.bytes == 32 + 96
    assert simulate([Hop(first, middle), Hop(middle, last)], 4, FLAT) == found


def test_what_stays_takes_no_time():
    found = simulate(Hop(lines(8, 4), lines(8, 4)), 4, PAIRS)
    assert (found.seconds, found.bytes, found.messages) == (0.0, 0, 0)
    assert found.hops[0].slowest == "-"
    assert found.senders == found.receivers == ()
    nothing = simulate_many([], FLAT)
    assert (nothing.seconds, nothing.hops, nothing.exact) == (0, (), True)
    assert nothing.levels[0].bytes == 0
    empty = Layout((0,), ((0, 0, 0),), np.arange(2).reshape(2, 1))
    assert simulate(Hop(empty, everywhere(0, [5])), 4, PAIRS).seconds == 0.0


def test_a_device_outside_the_topology():
    small = Topology("small", (Level("host", 0.0, 1.0, size=2),))
    with pytest.raises(ArgumentError, match="Device 2 has no place in topology 'small'"):
        simulate(Hop(lines(8, 2), lines(8, 4)), 4, small)


def test_many_arrays_share_the_ports():
    one, other = Hop(lines(8, 2), lines(8, 2, [1, 0])), Hop(lines(8, 2), lines(8, 2, [2, 1]))
    together = simulate_many([(one, 4, 3), (other, 2, 1)], FLAT)
    # Device 1 sends 3 x 16 + 0 and receives 3 x 16 bytes; device 0 sends 3 x 16 + 8.
    assert together.seconds == 56 / 4.0 + 4 * 0.25
    assert together.messages == 6 + 1
    assert together.senders[0].name == "device 0"
    longer = simulate_many([(Route("r", (lines(8, 2), lines(8, 2, [1, 0]))), 4, 3)], FLAT)
    assert longer.bytes == 96
    # Second hops run with second hops.
    twice = Route("twice", (lines(8, 2), lines(8, 2, [1, 0]), lines(8, 2)))
    both = simulate_many([(twice, 4, 1), (one, 4, 1)], FLAT)
    assert [x.bytes for x in both.hops] == [64, 32]


# listed and summed


def layouts(shape):
    return meshes(DEVICES).flatmap(
        lambda m: specs(m, len(shape)).map(
            lambda s: NamedSharding(m, s, uneven="ceil").layout(shape)
        )
    )


def loads(hop, tree):
    places = DevicePlaces(tree, [hop])
    return load_of(hop, places), load_of(hop, places, most_jobs=-1)


@calm
@given(st.data(), st.lists(st.integers(0, 9), max_size=3).map(tuple), st.integers(1, 4))
def test_sums_are_exact_where_elements_are_on_one_device(data, shape, size):
    source, destination = data.draw(layouts(shape)), data.draw(layouts(shape))
    tree = Topology("t", (Level("h", 1.0, 1.0, size=size), Level("r", 2.0, 1.0)))
    hop = Hop(source, destination)
    listed, summed = loads(hop, tree)
    assert listed.exact
    np.testing.assert_allclose(summed.sent, listed.sent)
    np.testing.assert_allclose(summed.received, listed.received)
    assert summed.exact == (source.replicas == 1)
    if summed.exact:
        for name in ("inside", "messages_sent", "messages_received"):
            for a, b in zip(getattr(listed, name), getattr(summed, name), strict=True):
                assert a.tolist() == b.tolist()
        assert simulate(hop, 4, tree) == simulate(hop, 4, tree, most_jobs=-1)
    else:
        estimate = simulate(hop, 4, tree, most_jobs=-1)
        assert not estimate.exact
        assert estimate.bytes == simulate(hop, 4, tree).bytes
        # All meets at the last level.
        np.testing.assert_allclose(summed.inside[-1].sum(), hop.moved)


def test_sums_of_groups_of_any_size(monkeypatch):
    monkeypatch.setattr("meshard.plan.hops.spread.GROUP_COST", 8)
    ids = np.random.default_rng(0).permutation(96)
    blocks = Layout((48, 50), (even_cuts(48, 8), balanced_cuts(50, 12)), ids.reshape(8, 12, 1))
    ids = np.random.default_rng(1).permutation(96)
    others = Layout((48, 50), (balanced_cuts(48, 4), balanced_cuts(50, 12)), ids.reshape(4, 12, 2))
    sizes = (4, 3, 4)
    tree = Topology("t", tuple(Level(f"l{i}", 1.0, 2.0, size=n) for i, n in enumerate((*sizes, 2))))
    hop = Hop(blocks, others)
    assert simulate(hop, 8, tree) == simulate(hop, 8, tree, most_jobs=-1)


@pytest.mark.parametrize("replicas", [1, 2])
def test_many_jobs_are_listed_only_where_sums_are_estimates(replicas, monkeypatch):
    ids = np.arange(320)
    rows = Layout(
        (640, 640), (even_cuts(640, 160), (0, 640)), ids[: 160 * replicas].reshape(160, 1, -1)
    )
    columns = Layout((640, 640), ((0, 640), even_cuts(640, 160)), ids.reshape(1, 160, 2))
    hop = Hop(rows, columns)
    tree = Topology("t", (Level("h", 1.0, 1.0, size=8), Level("r", 2.0, 1.0)))
    found = simulate(hop, 4, tree)
    assert found.exact
    monkeypatch.setattr("meshard.plan.figures.load._summed", None)
    if replicas == 1:
        with pytest.raises(TypeError):
            simulate(hop, 4, tree)
        monkeypatch.setattr("meshard.plan.figures.load.LISTED_JOBS", 1 << 20)
    assert simulate(hop, 4, tree) == found


def test_devices_that_are_gone_send_nothing():
    source = Layout((8,), (even_cuts(8, 4),), np.arange(8).reshape(4, 2))
    hop = Hop(source, everywhere(8, [7, 8]), alive=[0, 3, 4, 7])
    listed, summed = loads(hop, PAIRS)
    assert summed.exact
    assert listed.sent.tolist() == summed.sent.tolist() == [4, 4, 4, 2, 0]
    assert listed.received.tolist() == summed.received.tolist() == [0, 0, 0, 6, 8]
    for a, b in zip(listed.messages_received, summed.messages_received, strict=True):
        assert a.tolist() == b.tolist()


def test_boxes_that_overlap_are_estimated():
    boxes = layout_of_boxes((8,), [(0, Box((0,), (5,))), (1, Box((4,), (8,)))])
    hop = Hop(boxes, everywhere(8, [2]))
    listed, summed = loads(hop, PAIRS)
    assert listed.exact
    assert not summed.exact
    assert summed.received.tolist() == listed.received.tolist()
    back = Hop(everywhere(8, [2]), boxes)
    assert not loads(back, PAIRS)[1].exact
    assert loads(back, PAIRS)[1].inside[-1].sum() == 9


def test_estimates_share_evenly():
    # Both hosts hold everything, so each sends half of what the third needs.
    source, destination = everywhere(8, [0, 2]), everywhere(8, [4])
    estimate = simulate(Hop(source, destination), 1, PAIRS, most_jobs=0)
    assert not estimate.exact
    assert [x.sent for x in estimate.senders if x.name.startswith("host")] == [4, 4]
    assert "the bytes of replicas are estimated" in str(estimate)


# laws


@calm
@given(st.data(), st.lists(st.integers(0, 9), max_size=3).map(tuple))
def test_one_level_is_the_bound_of_a_port(data, shape):
    source, destination = data.draw(layouts(shape)), data.draw(layouts(shape))
    hop = Hop(source, destination)
    found = simulate(hop, 4, FLAT)
    bounds = bounds_of(source, destination)
    assert found.bytes == 4 * bounds.moved
    assert found.seconds >= bounds.seconds(4, bandwidth=4.0, latency=0.25)
    without = Topology("t", (Level("process", latency=0.0, bandwidth=4.0),))
    assert simulate(hop, 4, without).seconds == bounds.seconds(4, bandwidth=4.0)


@calm
@given(st.data(), st.lists(st.integers(1, 9), max_size=3).map(tuple))
def test_slower_machines_take_longer(data, shape):
    source, destination = data.draw(layouts(shape)), data.draw(layouts(shape))
    route = Route("direct", (source, destination))
    base = simulate(route, 4, PAIRS)
    number = data.draw(st.integers(0, 2))

    def changed(**figures):
        levels = list(PAIRS.levels)
        old = levels[number]
        values = {"latency": old.latency, "bandwidth": old.bandwidth, **figures}
        levels[number] = Level(old.name, size=old.size, **values)
        return simulate(route, 4, Topology("changed", tuple(levels)))

    assert changed(latency=20.0).seconds >= base.seconds
    assert changed(bandwidth=0.125).seconds >= base.seconds
    assert changed(bandwidth=1e9, latency=0.0).seconds <= base.seconds
    assert changed(capacity=0.5).seconds >= base.seconds
    assert simulate(route, 8, PAIRS).seconds >= base.seconds
    more = simulate_many([(route, 4, 2)], PAIRS)
    assert more.seconds == pytest.approx(2 * base.seconds)
    assert sum(x.bytes for x in base.levels) == base.bytes
    assert sum(x.messages for x in base.levels) == base.messages
    assert base.seconds == max(x.seconds for x in base.levels)


# large meshes, and the table


def squares(n, *shapes):
    ids = np.arange(math.prod(shapes[0]))
    for number, shape in enumerate(shapes):
        tensor = ids.reshape(shapes[0]).T if number else ids
        yield Layout((n, n), tuple(even_cuts(n, k) for k in shape), tensor.reshape(*shape, 1))


def test_131072_devices_change_axes():
    found = simulate(Hop(*squares(262144, (512, 256), (256, 512))), 2, topology("8-gpu hosts"))
    assert found.exact
    assert found.bytes == 2 * 68585259008
    # A host's eight devices send all they have through one port.
    assert found.senders[0].sent == 8 * 2 * 524288


def test_131072_devices_talk_to_all_others():
    found = simulate(Hop(*squares(262144, (131072, 1), (1, 131072))), 2, topology("tpu torus"))
    assert found.exact
    assert found.bytes == 2 * 68718952448
    assert found.messages == 131072 * 131071
    assert [x.messages for x in found.levels] == [
        131072 * 63,
        131072 * (4096 - 64),
        131072 * (131072 - 4096),
    ]


def test_a_trainer_sends_to_a_server():
    mesh = np.empty(384, object)
    mesh[:] = virtual_devices(384)
    trainer = NamedSharding(Mesh(mesh[:256].reshape(32, 8), ("d", "m")), P("d", "m"))
    server = NamedSharding(Mesh(mesh[256:].reshape(8, 16), ("d", "m")), P(None, ("m", "d")))
    route = Route("direct", (trainer.layout((8192, 8192)), server.layout((8192, 8192))))
    found = simulate_many([(route, 2, 61)], topology("8-gpu hosts"))
    assert found.bytes == 61 * 2 * 8192 * 8192
    assert found.exact


def test_the_table():
    hop = Hop(everywhere(8, [0]), everywhere(8, [1, 2, 4]))
    assert str(simulate(hop, 1, PAIRS)).splitlines() == [
        "20 s on pairs for 24 bytes",
        "",
        "limit     host 0  sends 16 bytes; 60% of its time is the latency of messages",
        "messages  3",
        "",
        "hop      s  bytes  messages  slowest",
        "1    20.00     24         3  host 0",
        "",
        "level      s  bytes  messages  % of bytes",
        "host   15.50      8         1        33.3",
        "rack   20.00      8         1        33.3",
        "row    18.00      8         1        33.3",
        "",
        "busiest sender     s  sent bytes  received bytes",
        "host 0          8.00          16               0",
        "rack 0          8.00           8               0",
        "device 0        3.00          24               0",
        "",
        "busiest receiver     s  sent bytes  received bytes",
        "rack 1            8.00           0               8",
        "host 1            4.00           0               8",
        "host 2            4.00           0               8",
        "device 1          1.00           0               8",
        "device 2          1.00           0               8",
    ]


def test_tables_are_at_most_100_columns_wide():
    name = "a level with a long name"
    levels = (Level(name, 0.0, 1e-9, size=1), Level("b" * 24, 0.0, 1e-12, capacity=1e-15))
    wide = Topology("x" * 120, levels)
    ids = np.array([10**9, 10**9 + 1])
    hop = Hop(lines(1 << 40, 2, ids), lines(1 << 40, 2, ids[::-1]))
    text = str(simulate_many([(hop, 8, 1 << 18)], wide))
    assert max(map(len, text.splitlines())) <= 100


def test_figures_as_a_dict():
    found = simulate(Hop(lines(8, 4), everywhere(8, range(4))), 4, PAIRS)
    figures = found.to_dict()
    assert json.loads(json.dumps(figures)) == figures
    assert figures["seconds"] == found.seconds
    assert figures["bytes"] == 96
    assert figures["topology"] == "pairs"
    assert figures["levels"][0] == {
        "name": "host",
        "bytes": 32,
        "messages": 4,
        "seconds": found.levels[0].seconds,
    }


@pytest.mark.parametrize(
    ("seconds", "text"), [(1234.0, "1,234 s"), (0.9999, "1,000 ms"), (5e-12, "0.005 ns")]
)
def test_times_are_short(seconds, text):
    assert time_text(seconds) == text
