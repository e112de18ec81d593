import copy
import os
import pickle
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshard.algebra.box import Box
from meshard.algebra.layout import (
    Layout,
    balanced_cuts,
    ceil_cuts,
    even_cuts,
    layout_of_boxes,
)
from meshard.errors import CoverageError
from meshard.testing.strategies import placed_shapes

SIZES = st.integers(0, 60)
SHARDS = st.integers(1, 12)
# Of 4 by 6: two rows of blocks on two devices each.
ROWS = Layout((4, 6), ((0, 2, 4), (0, 6)), np.array([[[0, 1]], [[2, 3]]]))
# Of 2 by 2: a left column, and two cells beside it.
PINWHEEL = layout_of_boxes(
    (2, 2), [(5, Box((0, 0), (2, 1))), (3, Box((0, 1), (1, 2))), (4, Box((1, 1), (2, 2)))]
)


def lengths(cuts: tuple[int, ...]) -> list[int]:
    return [b - a for a, b in pairwise(cuts)]


@given(SIZES, SHARDS)
def test_cuts_rise_from_zero_to_the_size(size, shards):
    for rule in (balanced_cuts, ceil_cuts):
        cuts = rule(size, shards)
        assert len(cuts) == shards + 1
        assert (cuts[0], cuts[-1]) == (0, size)
        assert list(cuts) == sorted(cuts)


@given(SIZES, SHARDS)
def test_balanced_parts_differ_by_at_most_one_the_longer_first(size, shards):
    parts = lengths(balanced_cuts(size, shards))
    assert parts == sorted(parts, reverse=True)
    assert parts[0] - parts[-1] <= 1


@given(SIZES, SHARDS)
def test_ceil_parts_are_what_is_left_of_padded_tiles(size, shards):
    tile = -(-size // shards)
    padded = np.arange(tile * shards).reshape(shards, tile)
    assert lengths(ceil_cuts(size, shards)) == (padded < size).sum(1).tolist()


@given(st.integers(0, 9), SHARDS)
def test_where_it_divides_all_rules_agree(part, shards):
    size = part * shards
    assert even_cuts(size, shards) == balanced_cuts(size, shards) == ceil_cuts(size, shards)
    assert lengths(even_cuts(size, shards)) == [part] * shards


@pytest.mark.parametrize(
    ("size", "shards", "ceil", "balanced"),
    [
        (10, 4, [3, 3, 3, 1], [3, 3, 2, 2]),
        (10, 3, [4, 4, 2], [4, 3, 3]),
        (3, 8, [1, 1, 1, 0, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0, 0, 0]),
        (9, 8, [2, 2, 2, 2, 1, 0, 0, 0], [2, 1, 1, 1, 1, 1, 1, 1]),
    ],
)
def test_the_known_uneven_cuts(size, shards, ceil, balanced):
    assert lengths(ceil_cuts(size, shards)) == ceil
    assert lengths(balanced_cuts(size, shards)) == balanced


def test_the_product_form_answers():
    assert ROWS.ndim == 2
    assert (ROWS.grid, ROWS.replicas, ROWS.piece_count) == ((2, 1), 2, 2)
    assert ROWS.boxes == (Box((0, 0), (2, 6)), Box((2, 0), (4, 6)))
    assert [ROWS.holders(i) for i in range(2)] == [(0, 1), (2, 3)]
    assert ROWS.piece_of == {0: 0, 1: 0, 2: 1, 3: 1}
    assert ROWS.device_ids == {0, 1, 2, 3}
    assert ROWS.even
    assert ROWS.regular
    assert not ROWS.replicated
    assert ROWS.largest_piece == (2, 6)
    assert repr(ROWS) == "Layout(shape=(4, 6), grid=(2, 1), replicas=2)"


def test_an_irregular_layout_answers():
    assert not PINWHEEL.regular
    assert PINWHEEL.piece_count == 3
    assert PINWHEEL.replicas == 1
    assert PINWHEEL.boxes == (Box((0, 0), (2, 1)), Box((0, 1), (1, 2)), Box((1, 1), (2, 2)))
    assert PINWHEEL.box(1) == Box((0, 1), (1, 2))
    assert [PINWHEEL.holders(i) for i in range(3)] == [(5,), (3,), (4,)]
    assert PINWHEEL.piece_of == {5: 0, 3: 1, 4: 2}
    assert not PINWHEEL.even
    assert not PINWHEEL.replicated
    assert PINWHEEL.largest_piece == (2, 1)
    assert repr(PINWHEEL) == "Layout(shape=(2, 2), irregular)"


def test_layouts_are_even_or_not():
    tensor = np.arange(3).reshape(3, 1)
    assert Layout((6,), ((0, 2, 4, 6),), tensor).even
    assert not Layout((6,), ((0, 2, 3, 6),), tensor).even
    overlapping = [(0, Box((0,), (3,))), (1, Box((1,), (4,)))]
    assert layout_of_boxes((4,), overlapping).even


def test_a_replicated_layout_has_one_piece():
    assert Layout((4,), ((0, 4),), np.array([[3, 1, 2]])).replicated
    assert layout_of_boxes((), [(4, Box.whole(())), (2, Box.whole(()))]).holders(0) == (4, 2)


@given(placed_shapes(uneven=(None, "balanced", "ceil")))
def test_every_element_is_held_by_as_many_devices_as_there_are_replicas(placed):
    sharding, shape = placed
    layout = sharding.layout(shape)
    held = np.zeros(shape, int)
    for piece in range(layout.piece_count):
        assert layout.piece_at(layout.coordinate(piece)) == piece
        box = layout.box(piece)
        assert all(n <= most for n, most in zip(box.shape, layout.largest_piece, strict=True))
        for device in layout.holders(piece):
            assert layout.piece_of[device] == piece
            held[box.slices] += 1
    assert (held == layout.replicas).all()
    assert layout.piece_count * layout.replicas == len(layout.device_ids) == sharding.num_devices
    assert layout.boxes == tuple(layout.box(i) for i in range(layout.piece_count))
    assert layout.even == (len({b.shape for b in layout.boxes}) == 1)
    assert layout.replicated == (layout.piece_count == 1)


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=6).map(sorted),
    st.integers(0, 9),
    st.integers(0, 9),
)
def test_the_range_of_shards_is_that_of_those_that_overlap(inner, start, stop):
    cuts = (0, *inner, 9)
    shards = len(cuts) - 1
    layout = Layout((9,), (cuts,), np.arange(shards).reshape(shards, 1))
    found = layout.dim_range(0, start, stop)
    overlaps = [i for i in range(shards) if max(cuts[i], start) < min(cuts[i + 1], stop)]
    assert [i for i in found if cuts[i] < cuts[i + 1]] == overlaps
    if overlaps:
        assert (found[0], found[-1]) == (overlaps[0], overlaps[-1])


def test_equal_layouts_are_equal():
    again = Layout((4, 6), ((0, 2, 4), (0, 6)), np.array([[[0, 1]], [[2, 3]]]))
    assert again == ROWS
    assert hash(ROWS) == hash(again)
    swapped = Layout((4, 6), ((0, 2, 4), (0, 6)), np.array([[[1, 0]], [[2, 3]]]))
    uneven = Layout((4, 6), ((0, 1, 4), (0, 6)), np.array([[[0, 1]], [[2, 3]]]))
    for other in (swapped, uneven, PINWHEEL, "layout"):
        assert other != ROWS


@pytest.mark.parametrize("layout", [ROWS, PINWHEEL])
@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_a_copy_is_equal(layout, again):
    assert again(layout) == layout
    assert again(layout).boxes == layout.boxes
    assert again(layout).piece_of == layout.piece_of


MADE_ELSEWHERE = """
import pickle, sys
from tests.test_layout import travellers
sys.stdout.buffer.write(pickle.dumps(travellers()))
"""


def travellers() -> list[object]:
    from meshard.algebra.mesh import Mesh
    from meshard.algebra.sharding import BoxSharding, NamedSharding, SingleDeviceSharding
    from meshard.algebra.spec import P
    from meshard.testing.virtual import virtual_devices

    devices = virtual_devices(2)
    named = NamedSharding(Mesh(devices, "x"), P("x"), uneven="ceil")
    boxes = BoxSharding((3,), {devices[0]: (slice(0, 1),), devices[1]: (slice(1, 3),)})
    named.layout((3,))
    return [
        *(devices[0], named.mesh, named.spec, P(P.UNCONSTRAINED), named, boxes),
        *(SingleDeviceSharding(devices[0]), ROWS, PINWHEEL),
    ]


def test_what_another_process_made_is_equal_and_found_in_sets():
    """Another process hashes text to other numbers."""
    environment = os.environ | {
        "PYTHONHASHSEED": "12345",
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }
    made = subprocess.run(
        [sys.executable, "-c", MADE_ELSEWHERE],
        env=environment,
        cwd=os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
        capture_output=True,
        check=True,
        timeout=60,
    ).stdout
    for there, here in zip(pickle.loads(made), travellers(), strict=True):
        assert there == here
        assert there in {here}


def test_boxes_that_form_a_product_become_one():
    boxes = [
        (7, Box((0, 0), (1, 2))),
        (6, Box((0, 2), (1, 5))),
        (5, Box((1, 0), (3, 2))),
        (4, Box((1, 2), (3, 5))),
    ]
    layout = layout_of_boxes((3, 5), boxes)
    assert layout == Layout(
        (3, 5), ((0, 1, 3), (0, 2, 5)), np.array([[[7], [6]], [[5], [4]]], np.int64)
    )


def test_replicas_keep_the_order_of_the_devices():
    halves = [Box((0,), (2,)), Box((2,), (4,))]
    layout = layout_of_boxes((4,), [(9, halves[1]), (3, halves[0]), (1, halves[1]), (8, halves[0])])
    assert layout.regular
    assert layout.tensor.tolist() == [[3, 8], [9, 1]]


@pytest.mark.parametrize(
    ("shape", "boxes"),
    [
        ((4,), [Box((0,), (4,)), Box((0,), (2,))]),  # one inside the other
        ((4,), [Box((0,), (3,)), Box((1,), (4,))]),  # overlapping
        ((4,), [Box((0,), (2,)), Box((2,), (4,)), Box((2,), (4,))]),  # unequal replicas
        ((4,), [Box((0,), (4,)), Box((4,), (4,))]),  # one without elements
        ((0, 4), [Box((0, 0), (0, 2)), Box((0, 2), (0, 4))]),  # none with elements
    ],
)
def test_boxes_that_form_no_product_are_kept(shape, boxes):
    layout = layout_of_boxes(shape, list(enumerate(boxes)))
    assert not layout.regular
    assert [layout.box(layout.piece_of[i]) for i in range(len(boxes))] == boxes
    assert layout.replicas == max(map(boxes.count, boxes))


def test_replicas_of_an_array_without_elements_are_a_product():
    layout = layout_of_boxes((0, 4), [(i, Box.whole((0, 4))) for i in range(3)])
    assert layout == Layout((0, 4), ((0, 0), (0, 4)), np.array([[[0, 1, 2]]]))


@pytest.mark.parametrize(
    ("boxes", "gap"),
    [
        ([Box((0, 0), (2, 6))], "[2:4, 0:6]"),
        ([Box((0, 0), (4, 2)), Box((0, 3), (4, 6))], "[0:4, 2:3]"),
        ([Box((0, 0), (2, 6)), Box((2, 0), (4, 1)), Box((3, 1), (4, 6))], "[2:3, 1:6]"),
        ([Box((0, 0), (0, 0))], "[0:4, 0:6]"),
    ],
)
def test_a_gap_is_named(boxes, gap):
    with pytest.raises(CoverageError, match="leave a gap: no device holds") as refused:
        layout_of_boxes((4, 6), list(enumerate(boxes)))
    assert f"holds {gap} of an array of shape (4, 6)" in str(refused.value)
