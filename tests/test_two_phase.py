import math
import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshard.algebra.box import Box
from meshard.algebra.layout import balanced_cuts, ceil_cuts, layout_of_boxes
from meshard.plan.hops.hop import Hop
from meshard.plan.routes import two_phase as intermediate
from meshard.plan.routes.two_phase import candidates
from tests.lays import calm
from tests.routes import SHAPES, delivered, laid, layouts


def piece(layout):
    return math.prod(layout.largest_piece)


def messages(hop):
    """The most messages that a device sends, and the most that it receives."""
    jobs = hop.jobs()
    links = {(int(a), int(b)) for a, b in zip(jobs.sender, jobs.receiver, strict=True)}
    counts = [Counter(link[side] for link in links) for side in (0, 1)]
    return tuple(max(count.values(), default=0) for count in counts)


def named(routes):
    return [(r.name, r.layouts[1].grid, r.layouts[1].replicas) for r in routes]


@calm
@given(st.data(), SHAPES, st.integers(0, 20))
def test_every_route_delivers_everything(data, shape, limit):
    source, destination = data.draw(layouts(shape)), data.draw(layouts(shape))
    routes = candidates(source, destination, limit=limit)
    assert len(routes) <= min(limit, 16)
    assert len({r.layouts for r in routes}) == len(routes)
    for route in routes:
        before, between, after = route.layouts
        assert before is source
        assert after is destination
        assert between not in (source, destination)
        assert piece(between) <= max(piece(source), piece(destination))
        assert between.device_ids in (source.device_ids, destination.device_ids)
        assert route.why.endswith(".")
        delivered(route)
        if route.name == "split replicas first":
            assert route.hops[0].moved == 0
            assert between.replicas == 1
    again = candidates(source, destination, limit=limit)
    assert [r.layouts for r in again] == [r.layouts for r in routes]


@calm
@given(st.data(), st.sampled_from([(24, 24), (13, 11), (64,), (4, 6, 8)]))
def test_names_of_devices_do_not_matter(data, shape):
    source, destination = data.draw(layouts(shape)), data.draw(layouts(shape))
    if not (source.regular and destination.regular):
        assert candidates(source, destination) == []
        return
    names = np.array(data.draw(st.permutations(range(50, 62))))

    def renamed(layout):
        return type(layout)(layout.shape, layout.cuts, names[layout.tensor])

    routes = candidates(source, destination)
    assert [r.layouts for r in candidates(renamed(source), renamed(destination))] == [
        tuple(map(renamed, r.layouts)) for r in routes
    ]


@pytest.mark.parametrize(("n", "side"), [(16, 4), (12, (4, 3)), (64, 8), (36, 6)])
def test_two_phases_take_fewer_messages(n, side):
    rows, columns = laid((n, n), (n, 1), range(n)), laid((n, n), (1, n), range(n))
    route = candidates(rows, columns)[0]
    assert route.name == "two-phase"
    assert route.layouts[1].grid == (side if isinstance(side, tuple) else (side, side))
    assert messages(Hop(rows, columns)) == (n - 1, n - 1)
    assert sum(max(messages(hop)) for hop in route.hops) <= 2 * math.sqrt(n)
    # Each phase moves at most the whole array.
    assert all(hop.moved <= n * n for hop in route.hops)
    assert f"about {route.layouts[1].grid[1]} and {route.layouts[1].grid[0]}" in route.why


def test_a_gather_in_two_phases_moves_no_more():
    rows, whole = laid((16, 2), (16, 1), range(16)), laid((16, 2), (1, 1), range(16))
    (route,) = candidates(rows, whole)
    assert named([route]) == [("two-phase", (4, 1), 4)]
    assert sum(hop.moved for hop in route.hops) == Hop(rows, whole).moved
    assert [max(messages(hop)) for hop in route.hops] == [3, 3]
    delivered(route)


def test_more_messages_must_save_bytes():
    rows, columns = laid((64, 64), (64, 1), range(64)), laid((64, 64), (1, 64), range(64))
    moved = [sum(hop.moved for hop in r.hops) for r in candidates(rows, columns)]
    assert moved == sorted(moved, reverse=True)
    assert len(set(moved)) == len(moved) > 1


def test_axes_in_another_order_keep_digits_in_place():
    # Two of four digits change places; the others stay where they are, in both hops.
    ids = np.arange(64).reshape(2, 2, 16)
    source = laid((64, 64), (64, 1), range(64))
    destination = laid((64, 64), (4, 16), ids.transpose(1, 0, 2))
    for route in candidates(source, destination):
        delivered(route)
        assert sum(max(messages(h)) for h in route.hops) < max(messages(Hop(source, destination)))


def test_between_two_meshes_cells_are_made_alike_first_or_last():
    rows, columns = laid((16, 16), (8, 1), range(8)), laid((16, 16), (1, 8), range(8, 16))
    routes = candidates(rows, columns)
    assert named(routes) == [
        ("retile first", (1, 8), 1),
        ("retile first", (2, 4), 1),
        ("retile first", (4, 2), 1),
        ("retile last", (8, 1), 1),
        ("retile last", (4, 2), 1),
        ("retile last", (2, 4), 1),
    ]
    assert [messages(hop) for hop in routes[0].hops] == [(7, 7), (1, 1)]
    assert [messages(hop) for hop in routes[3].hops] == [(1, 1), (7, 7)]
    assert routes[0].hops[1].moved == routes[3].hops[0].moved == 256
    for route in routes:
        delivered(route)


def test_replicas_are_split_so_that_each_sends_its_part():
    source = laid((8, 8), (1, 4), np.arange(8).reshape(2, 4).T)
    destination = laid((8, 8), (1, 2), [8, 9])
    first = candidates(source, destination)[0]
    assert named([first]) == [("split replicas first", (2, 4), 1)]
    assert first.hops[1].sent.as_dict() == dict.fromkeys(range(8), 8)
    assert "2 replicas of a cell keep a part each, which moves nothing" in first.why
    # Whole boxes go out as evenly, where a direct exchange would have to cut them.
    unsplit = candidates(source, destination, split=False)[0]
    assert not unsplit.split
    assert unsplit.hops[1].sent.most == 8 < Hop(source, destination, split=False).sent.most


def test_replicas_are_split_inside_their_own_cells():
    # The destination's cuts, by another rule, do not refine the source's.
    source = laid((10,), (2,), range(4), balanced_cuts)
    destination = laid((10,), (4,), range(4, 8), ceil_cuts)
    first = candidates(source, destination)[0]
    assert named([first]) == [("split replicas first", (4,), 1)]
    assert first.layouts[1].cuts == ((0, 3, 5, 8, 10),)
    assert first.hops[0].moved == 0


def test_elements_cross_once_where_the_other_mesh_has_replicas():
    source, destination = laid((16, 16), (8, 1), range(8)), laid((16, 16), (1, 2), range(8, 16))
    last = [r for r in candidates(source, destination) if r.name == "retile last"]
    assert last[0].layouts[1].replicas == 1
    assert [hop.moved for hop in last[0].hops] == [256, 896]
    assert "crosses once instead of 4 times" in last[0].why
    assert any("crosses 2 times instead of 4 times" in r.why for r in last)
    for route in last:
        delivered(route)


def test_memory_is_kept_unless_more_is_allowed():
    rows, columns = laid((16, 16), (8, 1), range(8)), laid((16, 16), (1, 2), range(8, 10))
    for most in (None, 1 << 18, 32, 31, 0):
        for route in candidates(rows, columns, most=most):
            allowed = 128 if most is None else most
            assert piece(route.layouts[1]) <= allowed
    assert candidates(rows, columns, most=0) == []
    gather = laid((16, 16), (16, 1), range(16)), laid((16, 16), (1, 16), range(16))
    assert all(r.layouts[1].replicas == 1 for r in candidates(*gather))
    assert candidates(*gather, most=1 << 20)


def test_uneven_layouts_have_candidates_too():
    rows = laid((97, 61), (12, 1), range(12), ceil_cuts)
    for ids in (range(12), range(12, 24)):
        routes = candidates(rows, laid((97, 61), (1, 12), ids, balanced_cuts))
        assert routes
        for route in routes:
            delivered(route)
    ten, six = laid((60,), (10,), range(10)), laid((60,), (6,), range(10, 16))
    for route in candidates(ten, six):
        delivered(route)


def test_the_dead_hold_no_intermediate_layout():
    source, destination = laid((16, 16), (8, 1), range(16)), laid((16, 16), (1, 8), range(16, 24))
    assert {r.name for r in candidates(source, destination)} > {"retile last"}
    alive = range(15)
    routes = candidates(source, destination, alive=alive)
    assert {r.name for r in routes} == {"retile last"}
    assert all(r.alive == tuple(alive) for r in routes)
    assert all(15 not in r.layouts[1].device_ids for r in routes)
    assert all(r.hops[0].sent[15] == 0 for r in routes)


def test_there_are_none_where_none_makes_sense():
    rows = laid((8, 8), (8, 1), range(8))
    boxes = layout_of_boxes((8, 8), [(8, Box((0, 0), (8, 5))), (9, Box((0, 4), (8, 8)))])
    assert candidates(rows, rows) == []
    assert candidates(rows, boxes) == candidates(boxes, rows) == []
    assert candidates(laid((0, 8), (4, 1), range(4)), laid((0, 8), (1, 4), range(4))) == []
    assert candidates(laid((), (), [0]), laid((), (), [1])) == []
    assert candidates(rows, laid((8, 8), (1, 8), [0, 1, 2, 3, 4, 5, 6, -1])) == []


def test_arrays_of_many_dims_are_searched_in_part(monkeypatch):
    shape = (4,) * 8
    source = laid(shape, (4,) * 4 + (1,) * 4, range(256))
    destination = laid(shape, (1,) * 4 + (4,) * 4, range(256))
    for most in (20_000, 400, 1):
        monkeypatch.setattr(intermediate, "MOST_GRIDS", most)
        routes = candidates(source, destination)
        for route in routes:
            assert sum(max(messages(h)) for h in route.hops) < 255


def test_4096_devices_take_milliseconds():
    n = 4096
    rows, columns = laid((n, n), (n, 1), range(n)), laid((n, n), (1, n), range(n))
    other = laid((n, n), (64, 64), range(n, 2 * n))
    for source, destination in ((rows, columns), (rows, other), (other, columns)):
        candidates(source, destination)
        begin = time.perf_counter()
        routes = candidates(source, destination)
        assert time.perf_counter() - begin < 0.1
        assert routes
