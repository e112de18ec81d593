"""Figures of plans of arrays of any size, against the same figures in Python's integers."""

import math
import re
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshard
from meshard.algebra.box import Box
from meshard.algebra.layout import Layout, balanced_cuts, ceil_cuts, layout_of_boxes
from meshard.algebra.sharding import SingleDeviceSharding
from meshard.plan.figures.bounds import bounds_of, receive_bound
from meshard.plan.figures.choice import PlanLeaf
from meshard.plan.figures.load import DevicePlaces, load_of
from meshard.plan.figures.topology import topology
from meshard.plan.hops.hop import Hop
from meshard.plan.hops.jobs import counter, sums_at, total
from meshard.plan.hops.jobs import product as times
from meshard.plan.move.assemble import Source
from meshard.plan.move.wires import Move, move_wire, moved
from meshard.plan.plan import Plan
from meshard.plan.planner import PlanOptions, make_plan
from meshard.sharding import Mesh, NamedSharding, P
from meshard.testing.virtual import virtual_devices
from tests.lays import calm

SIZES = [1 << 40, (1 << 40) + 7, 10**12 + 39, (1 << 31) + 1, 6, 1]
GRIDS = {1: [(1,), (2,), (3,), (6,)], 2: [(1, 1), (2, 1), (1, 3), (3, 2), (2, 3)]}


@st.composite
def layouts(draw, shape):
    """Draw a layout of at most twelve devices, cut by a rule or anywhere, or boxes that overlap."""
    if draw(st.integers(0, 5)) == 0 and shape[0] > 3:
        cut, other = sorted(draw(st.integers(1, shape[0] - 1)) for _ in range(2))
        boxes = [(0, Box.whole(shape)[1], other, 0), (3, Box.whole(shape)[1], shape[0], cut)]
        rest = shape[1:]
        return layout_of_boxes(
            shape, [(d, Box((low, *(0,) * len(rest)), (high, *rest))) for d, _, high, low in boxes]
        )
    grid = draw(st.sampled_from(GRIDS[len(shape)]))
    cuts = []
    for size, n in zip(shape, grid, strict=True):
        points = sorted(draw(st.integers(0, size)) for _ in range(n - 1))
        anywhere = (0, *points, size)
        cuts.append(draw(st.sampled_from([balanced_cuts(size, n), ceil_cuts(size, n), anywhere])))
    count = math.prod(grid) * draw(st.integers(1, 2))
    ids = draw(st.permutations(range(draw(st.integers(0, 2)) * 3, 18)))[:count]
    return Layout(shape, tuple(cuts), np.array(ids).reshape(*grid, -1))


@st.composite
def ends(draw):
    shape = tuple(draw(st.lists(st.sampled_from(SIZES), min_size=1, max_size=2)))
    return draw(layouts(shape)), draw(layouts(shape))


def held(layout):
    """Return for each device its box."""
    return {d: layout.box(p) for p in range(layout.piece_count) for d in layout.holders(p)}


def common(a, b):
    return a.intersect(b).volume


def cells(layout):
    """Return the cells of a layout, and the devices that hold each, in replica order."""
    for place in product(*[range(len(c) - 1) for c in layout.cuts]):
        box = Box(
            tuple(c[i] for c, i in zip(layout.cuts, place, strict=True)),
            tuple(c[i + 1] for c, i in zip(layout.cuts, place, strict=True)),
        )
        if box.volume:
            over = [p for p in range(layout.piece_count) if layout.box(p).intersect(box) == box]
            yield box, [d for p in over for d in layout.holders(p)]


def received(source, destination):
    have = held(source)
    return {
        d: box.volume - (common(box, have[d]) if d in have else 0)
        for d, box in held(destination).items()
    }


def sent(source, destination):
    """Return what each device sends: equal shares of what others need of each of its cells."""
    found = dict.fromkeys(held(source), 0)
    for box, holders in cells(source):
        wanted = sum(common(box, b) for d, b in held(destination).items() if d not in holders)
        for k, d in enumerate(holders):
            found[d] += wanted * (k + 1) // len(holders) - wanted * k // len(holders)
    return found


def by_group(source, destination, group_of):
    """Return what each group of devices lacks together."""
    have, need = {}, {}
    for box, holders in cells(source):
        for g in {group_of(d) for d in holders}:
            have.setdefault(g, []).append(box)
    for box, holders in cells(destination):
        for g in {group_of(d) for d in holders}:
            need.setdefault(g, []).append(box)
    return {
        g: sum(b.volume - sum(common(b, o) for o in have.get(g, [])) for b in boxes)
        for g, boxes in need.items()
    }


@settings(calm, max_examples=80)
@given(ends(), st.sampled_from([1, 8, 16]), st.integers(1, 3))
def test_every_figure_is_that_of_python_integers(both, itemsize, count):
    source, destination = both
    leaves = [PlanLeaf(f"x{i}", source, destination, itemsize, "float64") for i in range(count)]
    plan, weight = Plan(leaves), itemsize * count
    into, out = received(source, destination), sent(source, destination)
    assert plan.received == {d: n * weight for d, n in sorted(into.items())}
    assert plan.sent == {d: n * weight for d, n in out.items()}
    assert plan.bytes_moved == plan.lower_bound_bytes == sum(into.values()) * weight
    assert plan.most_sent == max(out.values()) * weight
    assert plan.most_received == max(into.values()) * weight
    assert plan.nbytes == math.prod(source.shape) * weight
    assert leaves[0].received() == {d: n * itemsize for d, n in into.items()}
    assert receive_bound(source, destination) == sum(into.values())
    bounds = bounds_of(source, destination, hosts=lambda ids: ids // 4)
    assert bounds.received.as_dict() == into
    assert bounds.kept == sum(b.volume for b in held(destination).values()) - bounds.moved
    lacked = {g: n for g, n in bounds.hosts.as_dict().items() if n}
    assert lacked == {g: n for g, n in by_group(source, destination, lambda d: d // 4).items() if n}
    assert moved(destination, [Source(source)], itemsize) == {
        d: n * itemsize for d, n in into.items()
    }
    assert plan.check().complete
    assert {t.receiver: 0 for t in plan.transfers()}.keys() == {d for d, n in into.items() if n}
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert again.bytes_moved == plan.bytes_moved
    for text in (str(plan), plan._repr_html_(), str(plan.choices[0].figures)):
        assert not re.search(r"(?<![\w.-])-\d", re.sub(r"<[^>]*>", " ", text)), text


@settings(calm, max_examples=40)
@given(ends())
def test_jobs_and_sums_and_simulations_agree(both):
    hop = Hop(*both)
    into, out = received(*both), sent(*both)
    jobs = hop.jobs()
    for units, expected in ((jobs.sender, out), (jobs.receiver, into)):
        sums = {}
        for unit, n in zip(units.tolist(), jobs.elements.tolist(), strict=True):
            sums[unit] = sums.get(unit, 0) + n
        assert sums == {d: n for d, n in expected.items() if n}
    whole_boxes = Hop(*both, split=False)
    assert whole_boxes.received.as_dict() == into
    assert whole_boxes.sent.total == sum(out.values())
    where = topology("two racks")
    places = DevicePlaces(where, [hop])
    for most in (1 << 20, -1):
        load = load_of(hop, places, most_jobs=most).times(8)
        assert load.received.tolist() == [8 * into.get(d, 0) for d in places.ids.tolist()]
        assert load.sent.tolist() == [8 * out.get(d, 0) for d in places.ids.tolist()]
    found = Plan([PlanLeaf("x", *both, 8)]).simulate(where)
    assert found.bytes == sum(level.bytes for level in found.levels) == 8 * sum(into.values())


@settings(calm, max_examples=40)
@given(ends(), st.booleans(), st.sampled_from([None, "8-gpu hosts", "two racks"]))
def test_routes_of_huge_arrays_are_found_and_counted(both, donate, where):
    leaf = PlanLeaf("x", *both, 8)
    plan = make_plan([leaf], PlanOptions(donate=donate, topology=where and topology(where)))
    hops = [received(a, b) for a, b in pairwise(plan.routes[0].layouts)]
    assert plan.bytes_moved == 8 * sum(sum(h.values()) for h in hops)
    assert plan.lower_bound_bytes == 8 * sum(received(*both).values())
    assert 0 <= plan.choices[0].figures.bytes_moved == plan.bytes_moved
    before, after = ({d: b.volume for d, b in held(x).items()} for x in both)
    largest = max(*before.values(), *after.values())
    assert 8 * largest <= plan.peak_bytes
    assert plan.check().complete


def test_a_plan_of_two_to_the_eighty_elements():
    devices = np.array(virtual_devices(8), object)
    mesh = Mesh(devices.reshape(4, 2), ("x", "y"))
    x = meshard.ShapeDtypeStruct(
        (1 << 40, 1 << 40), "float64", sharding=NamedSharding(mesh, P("x", "y"))
    )
    plan = meshard.plan_reshard({"a": x, "b": x}, NamedSharding(mesh, P("y")))
    assert plan.bytes_moved == plan.lower_bound_bytes == 7 * 2**83
    assert max(plan.received.values()) == 2**83
    assert "56.0 YiB" in str(plan)
    assert "56.0 YiB" in plan._repr_html_()
    assert max(map(len, str(plan).splitlines())) <= 100
    assert max(map(len, str(plan.simulate("two racks")).splitlines())) <= 100
    many = Plan([PlanLeaf("x", leaf.source, leaf.destination, 8) for leaf in plan.leaves] * 3)
    assert many.bytes_moved == 3 * plan.bytes_moved


def test_a_wire_of_a_huge_array_counts_exactly():
    one, other = virtual_devices(2)
    target, origin = SingleDeviceSharding(other), SingleDeviceSharding(one)
    shape = (1 << 40, 1 << 40)
    move = Move(target, (origin,), target.layout(shape), (Source(origin.layout(shape)),), 8)
    assert move_wire("x", move).received == {1: 1 << 83}


@pytest.mark.parametrize("scale", [1, 1 << 61, 1 << 80])
def test_the_arithmetic_itself(scale):
    amounts = np.array([1, 3, 2], counter(3 * scale)) * scale
    assert total(amounts) == 6 * scale
    assert times(amounts, 5).tolist() == [5 * scale, 15 * scale, 10 * scale]
    assert times(amounts, np.array([0, 7, 1])).tolist() == [0, 21 * scale, 2 * scale]
    assert sums_at(np.array([1, 1, 0]), amounts, 3).tolist() == [2 * scale, 4 * scale, 0]
    assert all(type(n) is int for n in times(amounts, 5).tolist())
