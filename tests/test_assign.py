import itertools
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshard.algebra.box import Box
from meshard.algebra.layout import Layout, balanced_cuts, ceil_cuts, layout_of_boxes
from meshard.plan.hops.hop import Hop
from meshard.plan.routes import device_order as assign
from meshard.plan.routes.device_order import best_device_order, device_boxes, kept_elements, living
from tests.lays import calm
from tests.routes import SHAPES, laid, layouts, products


def kept(source, destination):
    return int(kept_elements(source, destination).sum())


def holders(layout):
    return [d for piece in range(layout.piece_count) for d in layout.holders(piece)]


def with_holders(layout, ids):
    if layout.regular:
        return Layout(layout.shape, layout.cuts, np.array(ids).reshape(layout.tensor.shape))
    rest = iter(ids)
    counts = [len(layout.holders(p)) for p in range(layout.piece_count)]
    return Layout(
        layout.shape,
        layout.cuts,
        None,
        boxes=layout.boxes,
        box_holders=tuple(tuple(itertools.islice(rest, n)) for n in counts),
    )


@calm
@given(st.data(), SHAPES)
def test_what_devices_keep_is_what_a_hop_does_not_move(data, shape):
    source, destination = data.draw(layouts(shape)), data.draw(layouts(shape))
    total = sum(
        destination.box(p).volume * len(destination.holders(p))
        for p in range(destination.piece_count)
    )
    assert kept(source, destination) == total - Hop(source, destination).moved


@calm
@given(st.data(), SHAPES)
def test_the_order_is_never_worse_and_of_the_same_devices(data, shape):
    source, destination = data.draw(layouts(shape)), data.draw(layouts(shape))
    found = best_device_order(source, destination)
    assert found.shape == destination.shape
    assert found.boxes == destination.boxes
    assert sorted(holders(found)) == sorted(holders(destination))
    if found is not destination:
        assert Hop(source, found).moved < Hop(source, destination).moved
    assert best_device_order(source, found) is found


@calm
@given(st.data(), SHAPES, st.booleans())
def test_the_order_is_the_best_of_all(data, shape, boxes):
    source = data.draw(layouts(shape))
    destination = data.draw(products(shape, 5) if not boxes else layouts(shape))
    if len(holders(destination)) > 5:
        return
    found = best_device_order(source, destination)
    best = max(
        kept(source, with_holders(destination, p))
        for p in itertools.permutations(holders(destination))
    )
    assert kept(source, found) == best


@calm
@given(st.data(), SHAPES)
def test_names_of_devices_do_not_matter(data, shape):
    source, destination = data.draw(layouts(shape)), data.draw(layouts(shape))
    names = data.draw(st.permutations(range(100, 112)))

    def renamed(layout):
        return with_holders(layout, [names[d] for d in holders(layout)])

    found = best_device_order(renamed(source), renamed(destination))
    assert found == renamed(best_device_order(source, destination))


@calm
@given(st.data(), st.integers(1, 12), st.integers(1, 3))
def test_devices_stay_within_the_boxes_of_another_layout(data, size, parts):
    source = data.draw(layouts((size,)))
    cells = data.draw(st.integers(1, 2))
    ids = data.draw(st.permutations(range(12)))[: cells * parts]
    coarse = laid((size,), (cells,), ids, balanced_cuts)
    points = [0]
    for a, b in itertools.pairwise(coarse.cuts[0]):
        points += [a + c for c in balanced_cuts(b - a, parts)[1:]]
    fine = Layout((size,), (tuple(points),), coarse.tensor.reshape(-1, 1))
    found = best_device_order(source, fine, within=coarse)
    assert kept(source, found) >= kept(source, fine)
    assert found.cuts == fine.cuts
    where = coarse.piece_of
    assert [where[d] for d in holders(found)] == [where[d] for d in holders(fine)]
    best = max(
        kept(source, with_holders(fine, [d for row in rows for d in row]))
        for rows in itertools.product(*map(itertools.permutations, coarse.tensor.tolist()))
    )
    assert kept(source, found) == best


def test_a_rotation_and_a_reversal_are_found():
    line = laid((64,), (64,), range(64))
    for ids in (np.roll(np.arange(64), 1), np.arange(64)[::-1]):
        assert best_device_order(line, laid((64,), (64,), ids)) == line
    square = laid((8, 8), (4, 4), range(16))
    turned = laid((8, 8), (4, 4), np.arange(16).reshape(4, 4).T)
    assert best_device_order(square, turned) == square


def test_devices_that_stand_in_each_others_way_are_weighed():
    # Device 0 would keep most at the first cell, but there only device 1 keeps anything.
    source = Layout((10,), ((0, 3, 9, 10),), np.array([[1], [0], [2]]))
    destination = Layout((10,), ((0, 6, 9, 10),), np.array([[2], [1], [0]]))
    found = best_device_order(source, destination)
    assert kept(source, found) == 3 + 3 + 1
    assert holders(found) == [1, 0, 2]


def test_slots_of_one_cell_are_alike():
    source = laid((8,), (4,), [0, 1, 2, 3, 4, 5, 6, 7])
    assert best_device_order(
        source, laid((8,), (2,), [3, 2, 1, 0, 7, 6, 5, 4])
    ).tensor.tolist() == [
        [3, 2, 1, 0],
        [7, 6, 5, 4],
    ]
    found = best_device_order(source, laid((8,), (2,), [7, 6, 5, 4, 3, 2, 1, 0]))
    assert [set(row) for row in found.tensor.tolist()] == [{0, 1, 2, 3}, {4, 5, 6, 7}]


def test_devices_that_hold_nothing_take_what_is_left():
    source = laid((8,), (2,), [5, 6])
    found = best_device_order(source, laid((8,), (4,), [9, 8, 6, 5]))
    assert kept(source, found) == 4
    assert sorted(holders(found)) == [5, 6, 8, 9]


def test_boxes_that_form_no_product():
    boxes = [(0, Box((0,), (3,))), (1, Box((2,), (8,))), (2, Box((2,), (8,)))]
    destination = layout_of_boxes((8,), boxes)
    assert not destination.regular
    source = laid((8,), (2,), [2, 0])
    found = best_device_order(source, destination)
    assert found.holders(0) == (2,)
    assert set(found.holders(1)) == {0, 1}


def test_the_dead_hold_nothing():
    source = laid((8,), (2,), [0, 1, 2, 3])
    assert living(source, None) is source
    assert living(source, range(9)) is source
    gone = living(source, {1, 2, 3})
    assert gone.tensor.tolist() == [[-1, 1], [2, 3]]
    assert kept_elements(gone, source).tolist() == [0, 4, 4, 4]
    irregular = layout_of_boxes((4,), [(0, Box((0,), (3,))), (1, Box((1,), (4,)))])
    assert living(irregular, {0}) is irregular
    assert best_device_order(source, gone) is gone
    starts, stops = device_boxes(gone, np.array([3, 0, 8]))
    assert (starts.tolist(), stops.tolist()) == ([[4, 0, 0]], [[8, 0, 0]])


@pytest.mark.parametrize("edges", [8, 64])
def test_a_thinned_graph_is_no_worse_than_the_given_order(edges, monkeypatch):
    monkeypatch.setattr(assign, "DENSE_EDGES", edges)
    order = np.random.default_rng(3).permutation(64)
    for before, after in (
        (laid((64,), (2,), range(64)), laid((64,), (64,), order)),
        (laid((64,), (64,), range(64)), laid((64,), (2,), order)),
        (laid((64, 64), (8, 8), range(64)), laid((64, 64), (64, 1), order)),
        (
            laid((67, 61), (64, 1), range(64), ceil_cuts),
            laid((67, 61), (1, 64), order, balanced_cuts),
        ),
    ):
        found = best_device_order(before, after)
        assert kept(before, found) >= kept(before, after)
        assert sorted(holders(found)) == list(range(64))
    boxes = layout_of_boxes((64,), [(i, Box((i,), (i + 2,))) for i in range(63)])
    assert best_device_order(laid((64,), (64,), np.roll(range(64), 9)), boxes) is boxes
    # Cells that lie in one another are matched in full all the same.
    before, after = laid((64,), (2,), range(64)), laid((64,), (64,), order)
    assert kept(before, best_device_order(before, after)) == 64
    boxes = layout_of_boxes((8,), [(i, Box((max(i - 1, 0),), (i + 2,))) for i in range(7)])
    some = laid((8,), (4,), range(4))
    assert kept(some, best_device_order(some, boxes)) >= kept(some, boxes)


def test_gains_beyond_what_floats_tell_apart_are_still_matched():
    n = 1 << 58
    source = Layout((n,), ((0, 3, n - 1, n),), np.array([[1], [0], [2]]))
    destination = Layout((n,), ((0, n - 2, n - 1, n),), np.array([[1], [0], [2]]))
    assert kept(source, destination) == 3 + 1 + 1
    assert kept(source, best_device_order(source, destination)) == n - 5 + 1


def test_65536_devices_take_well_under_a_second():
    n = 1 << 16
    order = np.random.default_rng(0).permutation(n)
    square = laid((n, n), (256, 256), range(n))
    for before, after, all_of_it in (
        (laid((n,), (n,), range(n)), laid((n,), (n,), order), n),
        (square, laid((n, n), (256, 256), order), n * n),
        (laid((n,), (n // 8,), range(n)), laid((n,), (n // 8,), order), 8 * n),
        (laid((n,), (2,), range(n)), laid((n,), (n,), order), n),
    ):
        begin = time.perf_counter()
        found = best_device_order(before, after)
        assert time.perf_counter() - begin < 3
        assert kept(before, found) == all_of_it
