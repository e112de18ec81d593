import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshard.algebra.box import Box
from meshard.algebra.layout import balanced_cuts, ceil_cuts, layout_of_boxes
from meshard.plan.figures.bounds import receive_bound
from meshard.plan.hops.hop import Hop
from meshard.plan.planner import DETOURS
from meshard.plan.routes.relay import chained, largest_sender, refined_cuts, shared, striped
from tests.lays import calm
from tests.routes import SHAPES, delivered, laid, layouts, products

EIGHT_ROWS = laid((8, 8), (8, 1), range(8))
FOUR_COPIES = laid((8, 8), (1, 1), range(8, 12))


def moved(route):
    return sum(hop.moved for hop in route.hops)


@calm
@given(st.data(), SHAPES)
def test_every_route_delivers_everything(data, shape):
    source = data.draw(layouts(shape))
    destination = data.draw(products(shape) | layouts(shape))
    direct = Hop(source, destination)
    for make in DETOURS:
        route = make(source, destination)
        if route is None:
            continue
        assert route.source is source
        assert route.destination is destination
        assert len(set(route.layouts)) == len(route.layouts)
        assert all(x.device_ids <= destination.device_ids for x in route.layouts[1:])
        assert route.hops[0].sent.most < direct.sent.most
        assert largest_sender(route.hops) <= max(direct.sent.most, direct.received.most)
        assert moved(route) >= direct.moved
        if not source.device_ids & destination.device_ids:
            assert moved(route) == direct.moved
        delivered(route)


def test_stripes_by_hand():
    route = striped(EIGHT_ROWS, FOUR_COPIES)
    assert route.name == "striped"
    assert Hop(EIGHT_ROWS, FOUR_COPIES).sent.most == 32
    assert [hop.sent.most for hop in route.hops] == [8, 48]
    assert [hop.received.most for hop in route.hops] == [16, 48]
    assert moved(route) == receive_bound(EIGHT_ROWS, FOUR_COPIES) == 256
    assert route.layouts[1] == laid((8, 8), (4, 1), range(8, 12))
    assert "goes out in 4 stripes" in route.why
    delivered(route)


@calm
@given(st.data(), st.integers(1, 3), st.integers(2, 4), st.integers(1, 3))
def test_stripes_meet_both_bounds(data, cells, copies, replicas):
    # Elsewhere, and where all divides: what all replicas need enters them once, and the source's
    # holders of a cell send equal parts of it, once.
    rows = data.draw(st.integers(1, 4)) * cells * copies * 2
    ids = data.draw(st.permutations(range(40)))
    shards = data.draw(st.sampled_from([k for k in (1, 2, 4, 8) if rows % k == 0]))
    source = laid((rows, 24), (shards, 1), ids[: shards * replicas])
    destination = laid((rows, 24), (cells, 1), ids[len(ids) - cells * copies :])
    route = striped(source, destination)
    first, second = route.hops
    assert first.moved == rows * 24
    assert first.sent.most == -(-rows * 24 // (shards * replicas))
    assert second.sent.most == second.received.most == rows * 24 // cells // copies * (copies - 1)
    assert moved(route) == receive_bound(source, destination)


def test_stripes_land_where_their_elements_are():
    # Device 4 has the first half already, so that it takes a stripe of it, though it comes last.
    source = laid((8,), (2,), [4, 0])
    destination = laid((8,), (1,), [9, 8, 7, 4])
    route = striped(source, destination)
    assert route.layouts[1].tensor.tolist()[0] == [4]
    delivered(route)


def test_dims_are_cut_where_they_are_long_enough():
    source = laid((2, 12), (1, 1), [0])
    for copies, grid in (
        (2, (2, 1)),
        (3, (1, 3)),
        (4, (2, 2)),
        (5, (1, 5)),
        (6, (2, 3)),
        (8, (2, 4)),
    ):
        route = striped(source, laid((2, 12), (1, 1), range(1, copies + 1)))
        assert route.layouts[1].grid == grid
        delivered(route)
    # Longer than any dim: some stripes are empty.
    route = striped(laid((3,), (1,), [0]), laid((3,), (1,), range(1, 8)))
    assert route.layouts[1].grid == (7,)
    delivered(route)


def test_uneven_cells_are_cut_evenly():
    assert refined_cuts((0, 4, 7, 7), 2).tolist() == [0, 2, 4, 6, 7, 7, 7]
    assert tuple(refined_cuts((0, 5), 3).tolist()) == balanced_cuts(5, 3)
    source, destination = laid((7,), (1,), [0]), laid((7,), (3,), range(1, 7), ceil_cuts)
    route = striped(source, destination)
    assert route.layouts[1].cuts == ((0, 2, 3, 5, 6, 7, 7),)
    delivered(route)


def test_chains_by_hand():
    source, destination = laid((8,), (1,), [3]), laid((8,), (1,), range(6))
    route = chained(source, destination)
    # Device 3 has it, so that it is the first; the last hop reaches the two that remain.
    assert [x.tensor.tolist() for x in route.layouts[1:-1]] == [[[3, 0]], [[3, 0, 1, 2]]]
    assert [hop.moved for hop in route.hops] == [8, 16, 16]
    assert moved(route) == receive_bound(source, destination)
    assert largest_sender(route.hops) == 8 + 8 + 4 < Hop(source, destination).sent.most
    assert "twice as many" in route.why
    delivered(route)
    afar = chained(source, laid((8,), (1,), range(4, 12)))
    assert [hop.moved for hop in afar.hops] == [8, 8, 16, 32]
    delivered(afar)


def test_scalars_go_by_chains():
    source, destination = laid((), (), [0]), laid((), (), range(8))
    assert striped(source, destination) is None
    route = chained(source, destination)
    assert [hop.sent.most for hop in route.hops] == [1, 1, 1]
    delivered(route)


@pytest.mark.parametrize("make", [striped, chained])
@pytest.mark.parametrize(
    ("source", "destination"),
    [
        (EIGHT_ROWS, laid((8, 8), (1, 8), range(8))),  # one holder for each cell
        (EIGHT_ROWS, laid((8, 8), (1, 1), range(8))),  # all send the same already
        (laid((8,), (1,), range(8)), laid((8,), (2,), range(8))),  # nothing moves
        (laid((0, 8), (4, 1), range(4)), laid((0, 8), (1, 1), range(4, 8))),  # no elements
        (EIGHT_ROWS, layout_of_boxes((8, 8), [(8, Box((0, 0), (8, 5))), (9, Box((0, 4), (8, 8)))])),
    ],
)
def test_there_is_no_route_where_none_helps(make, source, destination):
    assert make(source, destination) is None


def test_chains_are_left_where_relays_would_be_the_busiest():
    assert chained(EIGHT_ROWS, FOUR_COPIES) is None


def test_chains_are_left_where_the_source_would_send_as_much():
    # Three replicas have to send to two devices first instead of to three at once.
    source, destination = laid((2,), (1,), [0, 6, 5]), laid((2,), (1,), [4, 3, 1, 6, 0])
    assert Hop(source, destination).sent.most == 2
    assert chained(source, destination) is None
    # Two of three have it already, so that there is no step between.
    assert chained(laid((8,), (1,), [0, 1]), laid((8,), (1,), [0, 1, 2])) is None


def test_the_dead_neither_send_nor_count():
    source, destination = laid((8,), (1,), [0, 9]), laid((8,), (1,), range(8))
    direct = Hop(source, destination, alive=(9,))
    for make in (striped, chained):
        route = make(source, destination, alive={9})
        assert route.alive == (9,)
        assert route.hops[0].sent.as_dict() == {9: 8}
        assert direct.sent.most == 64
        assert make(source, destination, direct=direct, alive={9}) == route
    whole = chained(source, destination, split=False)
    assert whole is None or not whole.split


def groups_of(size):
    return lambda ids: ids // size


@calm
@given(st.data(), SHAPES.filter(len), st.sampled_from([2, 3, 4]))
def test_shared_routes_deliver_everything(data, shape, size):
    source, destination = data.draw(layouts(shape)), data.draw(products(shape))
    route = shared(source, destination, groups_of(size))
    if route is not None:
        delivered(route)
        # Nothing crosses in the second hop.
        assert route.between(groups_of(size))[1].moved == 0


@pytest.mark.parametrize("size", [2, 4])
def test_every_element_enters_a_group_once(size):
    whole = laid((8, 8), (1, 1), range(8))
    route = shared(EIGHT_ROWS, whole, groups_of(size))
    assert route.layouts[1].grid == (size, 1)
    across = route.hops[0].jobs()
    crosses = across.sender // size != across.receiver // size
    # Each group lacks all rows but its own, and gets each of them once.
    assert int(across.elements[crosses].sum()) == 8 // size * (64 - 8 * size)
    delivered(route)


def test_groups_that_differ_share_nothing():
    destination = laid((8,), (1,), range(3))
    assert shared(laid((8,), (8,), range(8)), destination, groups_of(2)) is None
    assert shared(laid((8,), (8,), range(8)), destination, groups_of(1)) is None
    assert shared(laid((8,), (8,), range(8)), laid((8,), (8,), range(8)), groups_of(2)) is None
    alone = laid((8,), (8,), range(8)), laid((8,), (1,), range(8))
    assert shared(*alone, groups_of(8)) is None  # the stripes are the source
    assert shared(*alone, lambda ids: np.where(ids == 7, -1, 0)) is None


def test_many_devices():
    n = 4096
    source, destination = laid((n, n), (n, 1), range(n)), laid((n, n), (64, 1), range(n, 2 * n))
    route = striped(source, destination)
    assert route.layouts[1].grid == (n, 1)
    assert route.hops[0].sent.most == n
    assert moved(route) == 64 * n * n
    assert math.prod(route.layouts[1].largest_piece) == n
