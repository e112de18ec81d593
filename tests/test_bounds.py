import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshard.algebra.box import Box
from meshard.algebra.layout import Layout, balanced_cuts, even_cuts, layout_of_boxes
from meshard.errors import DataLoss
from meshard.plan.figures.bounds import (
    bounds_of,
    group_bound,
    hop_bounds,
    receive_bound,
    relay_send_bound,
    send_bound,
    time_bound,
)
from meshard.plan.hops.hop import Hop
from meshard.sharding import Mesh, NamedSharding, P, SingleDeviceSharding
from meshard.testing.strategies import box_shardings, meshes, specs
from meshard.testing.virtual import virtual_devices
from tests.lays import calm

DEVICES = virtual_devices(16)


def lines(size, shards, ids=None):
    ids = np.arange(shards) if ids is None else np.asarray(ids)
    return Layout((size,), (balanced_cuts(size, shards),), ids.reshape(shards, 1))


def missing(source, destination):
    """Count element by element what each destination device lacks."""
    count = 0
    for device, piece in destination.piece_of.items():
        want = np.zeros(destination.shape, bool)
        want[destination.box(piece).slices] = True
        if device in source.piece_of:
            want[source.box(source.piece_of[device]).slices] = False
        count += int(want.sum())
    return count


def layouts(shape):
    named = meshes(DEVICES[:8]).flatmap(
        lambda m: specs(m, len(shape)).map(lambda s: NamedSharding(m, s, uneven="ceil"))
    )
    alone = st.sampled_from(DEVICES[:8]).map(SingleDeviceSharding)
    return (named | alone | box_shardings(shape, DEVICES[:8])).map(lambda s: s.layout(shape))


@calm
@given(st.data(), st.lists(st.integers(0, 6), max_size=3).map(tuple))
def test_the_bound_is_what_devices_lack(data, shape):
    source, destination = data.draw(layouts(shape)), data.draw(layouts(shape))
    bound = receive_bound(source, destination)
    assert type(bound) is int
    assert bound == missing(source, destination)
    assert receive_bound(source, source) == 0


def test_by_hand():
    assert receive_bound(lines(10, 4), lines(10, 3)) == 10 - (3 + 2 + 1)
    assert receive_bound(lines(8, 2), lines(8, 2, [1, 0])) == 8
    assert receive_bound(lines(8, 2), lines(8, 2, [7, 9])) == 8
    assert receive_bound(lines(8, 2), lines(8, 4)) == 6
    halves = [(3, Box((0,), (5,))), (1, Box((4,), (8,)))]
    overlapping = layout_of_boxes((8,), halves)
    assert receive_bound(overlapping, lines(8, 2, [1, 3])) == 4 + 3
    assert receive_bound(lines(8, 2, [3, 1]), overlapping) == 1


def test_scalars_and_arrays_without_elements():
    spread = NamedSharding(Mesh(DEVICES[:4], "x"), P())
    one = SingleDeviceSharding(DEVICES[2])
    assert receive_bound(one.layout(()), spread.layout(())) == 3
    assert receive_bound(spread.layout(()), one.layout(())) == 0
    assert receive_bound(one.layout((0, 5)), spread.layout((0, 5))) == 0


@pytest.mark.parametrize("side", [4, 64, 512])
def test_a_transpose_of_any_mesh(side):
    # Each device keeps the square on the diagonal of its row of shards.
    devices = np.empty(side * side, object)
    devices[:] = virtual_devices(side * side)
    mesh = Mesh(devices.reshape(side, side), ("x", "y"))
    n = side * 8
    a, b = (NamedSharding(mesh, s).layout((n, n)) for s in (P("x", "y"), P("y", "x")))
    assert receive_bound(a, b) == n * n - side * 64


def test_totals_of_more_elements_than_32_bits_count():
    mesh = Mesh(DEVICES[:8], "x")
    shape = (1 << 20, 1 << 20)
    rows, columns = (NamedSharding(mesh, s).layout(shape) for s in (P("x"), P(None, "x")))
    assert receive_bound(rows, columns) == math.prod(shape) * 7 // 8
    everywhere = NamedSharding(mesh, P()).layout(shape)
    assert receive_bound(rows, everywhere) == math.prod(shape) * 7


# the table of cases: amounts that are known


def lay(shape, axes, ids, spec):
    """Return the layout of a spec on a mesh of devices with some ids."""
    grid = np.empty(math.prod(axes.values()), object)
    grid[:] = [DEVICES[i] for i in ids]
    mesh = Mesh(grid.reshape(tuple(axes.values())), tuple(axes))
    return NamedSharding(mesh, P(*spec), uneven="ceil").layout(shape)


X8, EIGHT, FOUR = {"x": 8}, range(8), range(4)
A2B4, F8 = {"a": 2, "b": 4}, {"f": 8}
CASES = {
    "rows to all": ((8,), (X8, EIGHT, "x"), (X8, EIGHT, ""), (56, 8, 7, 7, 24)),
    "all to rows": ((8,), (X8, EIGHT, ""), (X8, EIGHT, "x"), (0, 8, 0, 0, 0)),
    "transpose": ((8, 8), (X8, EIGHT, "x"), (X8, EIGHT, [None, "x"]), (56, 8, 7, 7, 48)),
    "axes swap": ((8, 8), (A2B4, EIGHT, "ab"), (A2B4, EIGHT, "ba"), (48, 16, 8, 8, 32)),
    "order in a tuple": (
        (4,),
        ({"a": 2, "b": 2}, FOUR, [("a", "b")]),
        ({"a": 2, "b": 2}, FOUR, [("b", "a")]),
        (2, 2, 1, 1, 2),
    ),
    "reversed": ((8,), (X8, EIGHT, "x"), (X8, EIGHT[::-1], "x"), (8, 0, 1, 1, 8)),
    "uneven": ((10,), ({"x": 4}, FOUR, "x"), ({"x": 3}, range(3), "x"), (4, 6, 2, 2, 2)),
    "empty shards": ((3,), ({"x": 1}, [0], ""), (X8, EIGHT, "x"), (2, 1, 1, 2, 1)),
    "grow": ((16,), ({"x": 4}, FOUR, "x"), (X8, EIGHT, "x"), (14, 2, 2, 4, 12)),
    "shrink": ((16,), (X8, EIGHT, "x"), ({"x": 4}, FOUR, "x"), (14, 2, 4, 2, 12)),
    "broadcast": (
        (8, 8),
        (F8, EIGHT, "f"),
        ({"t": 4}, range(8, 12), ""),
        (256, 0, 64, 32, 128),
    ),
    "to columns elsewhere": (
        (8, 8),
        (F8, EIGHT, "f"),
        ({"t": 4}, range(8, 12), [None, "t"]),
        (64, 0, 16, 8, 64),
    ),
    "trainer to server": (
        (8, 8),
        ({"dp": 2, "tp": 4}, EIGHT, [None, "tp"]),
        ({"tp": 2}, [8, 9], [None, "tp"]),
        (64, 0, 32, 8, 64),
    ),
    "another mesh": (
        (6, 6),
        ({"x": 3, "y": 2}, range(6), "xy"),
        ({"y": 2, "x": 3}, range(6), "yx"),
        (24, 12, 6, 6, 16),
    ),
    "replicas": (
        (6,),
        ({"x": 2, "y": 3}, range(6), "x"),
        ({"x": 2, "y": 3}, range(6), "y"),
        (6, 6, 2, 1, 2),
    ),
    "nothing": ((0, 8), ({"x": 4}, FOUR, "x"), ({"x": 4}, FOUR, [None, "x"]), (0, 0, 0, 0, 0)),
    "a lost device": (
        (12,),
        ({"r": 2, "x": 2}, FOUR, ["x"]),
        ({"x": 3}, [0, 2, 3], "x"),
        (2, 10, 2, 1, 0),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_table_of_cases(name):
    shape, before, after, (total, local, receive, send, in_hosts) = CASES[name]
    source, destination = lay(shape, *before), lay(shape, *after)
    found = bounds_of(source, destination, hosts=lambda ids: ids // 2)
    assert (found.moved, found.kept) == (total, local)
    assert (found.receive, found.send) == (receive, send)
    assert found.hosts.total == in_hosts
    assert receive_bound(source, destination) == total
    assert Hop(source, destination).sent.most == send
    assert group_bound(source, destination, {i: i // 2 for i in range(16)}).total == in_hosts


def test_relays_spare_the_senders_of_a_broadcast():
    shape, before, after, _ = CASES["broadcast"]
    source, destination = lay(shape, *before), lay(shape, *after)
    assert send_bound(source, destination) == 32
    assert relay_send_bound(source, destination) == 8
    found = bounds_of(source, destination)
    assert found.relay_send == 8
    assert found.hosts is None


def test_dead_devices_leave_the_others_more_to_send():
    shape, before, after, _ = CASES["a lost device"]
    source, destination = lay(shape, *before), lay(shape, *after)
    assert bounds_of(source, destination, alive=[0, 2, 3]).send == 2
    with pytest.raises(DataLoss, match="No live device holds"):
        bounds_of(source, destination, alive=[0, 2])


def grids(n, *shapes):
    ids = np.arange(512 * 256)
    return [
        Layout((n, n), tuple(even_cuts(n, k) for k in shape), tensor(ids).reshape(*shape, 1))
        for shape, tensor in shapes
    ]


def transposed(ids):
    return ids.reshape(512, 256).T


def test_two_axes_of_131072_devices_change_places():
    n = 262144
    source, destination = grids(n, ((512, 256), np.array), ((256, 512), transposed))
    found = bounds_of(source, destination, hosts=lambda ids: ids // 8)
    assert (found.moved, found.kept) == (68585259008, 134217728)
    assert (found.receive, found.send, found.relay_send) == (524288,) * 3
    assert found.hosts.total <= found.moved


def test_131072_devices_each_have_something_for_each_other():
    n = 262144
    source, destination = grids(n, ((131072, 1), np.array), ((1, 131072), np.array))
    found = bounds_of(source, destination, hosts=lambda ids: ids // 512)
    assert (found.moved, found.kept) == (68718952448, 524288)
    assert (found.receive, found.send) == (524284,) * 2
    # Of what the 512 devices of a group need they have the 1024 x 1024 square on the diagonal.
    assert found.hosts.amounts.tolist() == [1024 * (n - 1024)] * 256


# brute force


def marked(layout, devices):
    """Return which elements any of some devices holds."""
    mask = np.zeros(layout.shape, bool)
    for device in devices:
        if device in layout.piece_of:
            mask[layout.box(layout.piece_of[device]).slices] = True
    return mask


@calm
@given(st.data(), st.lists(st.integers(0, 6), max_size=3).map(tuple), st.booleans())
def test_groups_lack_what_none_of_theirs_holds(data, shape, scattered):
    source, destination = data.draw(layouts(shape)), data.draw(layouts(shape))
    group_of = (lambda ids: ids % 3) if scattered else (lambda ids: ids // 3)
    found = group_bound(source, destination, group_of)
    groups = {int(group_of(np.array(d))) for d in range(8)}
    for group in groups:
        ours = [d for d in range(8) if int(group_of(np.array(d))) == group]
        lacking = marked(destination, ours) & ~marked(source, ours)
        assert found[group] == lacking.sum()


@calm
@given(st.data(), st.lists(st.integers(0, 6), max_size=3).map(tuple))
def test_senders_have_equal_shares_at_best(data, shape):
    source, destination = data.draw(layouts(shape)), data.draw(layouts(shape))
    hop = Hop(source, destination)
    found = hop_bounds(hop)
    # For each element how many devices hold it, and how many of those that need it do not.
    holders = sum(marked(source, [d]).astype(int) for d in source.device_ids)
    lacking = sum((marked(destination, [d]) & ~marked(source, [d])).astype(int) for d in range(8))
    direct, relayed = [0], [0]
    for cell in range(hop.before.count):
        box = hop.before.box(cell).slices
        if lacking[box].size:
            copies = int(holders[box].max())
            direct.append(-(-int(lacking[box].sum()) // copies))
            relayed.append(-(-int((lacking[box] > 0).sum()) // copies))
    assert found.send == max(direct)
    assert found.relay_send == max(relayed)
    assert found.relay_send <= found.send <= hop.sent.most
    assert found.moved == hop.received.total == int(np.sum(lacking))
    kept = sum((marked(destination, [d]) & marked(source, [d])).astype(int).sum() for d in range(8))
    assert found.kept == kept


def test_devices_in_no_group_do_not_count():
    source, destination = lines(8, 2), lines(8, 4)
    assert group_bound(source, destination, {0: 5, 2: 5}).as_dict() == {5: 2}
    assert group_bound(source, destination, lambda ids: np.full_like(ids, -1)).total == 0


def test_the_time_of_a_port():
    assert time_bound(4.0, 8.0, bandwidth=2.0) == 4.0
    assert time_bound(4.0, 8.0, bandwidth=2.0, latency=0.5, messages=3) == 5.5
    found = bounds_of(lines(8, 2), lines(8, 1, [5]))
    assert (found.receive, found.send) == (8, 4)
    assert found.seconds(4, bandwidth=16.0) == 2.0
    assert found.seconds(4, bandwidth=16.0, latency=1.0) == 3.0
    assert found.seconds(4, bandwidth=16.0, latency=1.0, messages=7) == 9.0
    still = bounds_of(lines(8, 2), lines(8, 2))
    assert still.seconds(4, bandwidth=16.0, latency=1.0) == 0.0
    spread = Layout((8,), ((0, 8),), np.arange(1, 9).reshape(1, 8))
    broadcast = bounds_of(lines(8, 1), spread)
    assert broadcast.seconds(1, bandwidth=1.0) == 64.0
    assert broadcast.seconds(1, bandwidth=1.0, relays=True) == 8.0
