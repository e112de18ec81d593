import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshard.algebra.box import Box
from meshard.algebra.layout import Layout, balanced_cuts, layout_of_boxes
from meshard.plan.bounds import receive_bound
from meshard.sharding import Mesh, NamedSharding, P, SingleDeviceSharding
from meshard.testing import box_shardings, meshes, specs, virtual_devices
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
