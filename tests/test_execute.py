import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard.algebra.dimmap import DimMap
from meshard.algebra.layout import Layout, balanced_cuts
from meshard.plan.move.assemble import Source, assemble
from meshard.runtime.moving.execute import run_part
from meshard.runtime.world import here
from meshard.sharding import NamedSharding, P
from meshard.tuning import LARGE
from tests.worlds import alone, everywhere, in_worlds, mesh, put, whole


def lines(size, shards):
    return Layout((size,), (balanced_cuts(size, shards),), np.arange(shards).reshape(shards, 1))


def blocks_of(layout, value):
    return tuple(value[b.slices].copy() for b in layout.boxes)


def run(destination, sources, values, fill=None):
    """Assemble and run in a world of its own, and return the pieces."""
    part = assemble(destination, sources)
    operands = [blocks_of(s.layout, v) for s, v in zip(sources, values, strict=True)]
    return operands, alone(lambda: run_part(here(), part, operands, values[0].dtype, fill))


def test_aliases_are_the_blocks_and_views_share_their_memory():
    layout = lines(8, 2)
    (given,), made = run(layout, [Source(layout)], [np.arange(8)])
    assert all(a is b for a, b in zip(given, made, strict=True))
    (given,), made = run(lines(8, 4), [Source(layout)], [np.arange(8)])
    assert [m.tolist() for m in made] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert all(np.shares_memory(m, given[i // 2]) for i, m in enumerate(made))


def test_one_position_read_by_all():
    source = Source(lines(3, 1), (DimMap(3, 3, [(0, 3, 1, 0)]),))
    (given,), (made,) = run(lines(3, 1), [source], [np.arange(3)])
    assert made.tolist() == [1, 1, 1]
    assert np.shares_memory(made, given[0])


def test_what_no_source_gives_is_filled():
    _, made = run(lines(6, 2), [Source(lines(3, 1), (DimMap.pad(3, 2, 1),))], [np.arange(3)], 7)
    assert [m.tolist() for m in made] == [[7, 7, 0], [1, 2, 7]]


@pytest.mark.parametrize("size", [12, LARGE // 4])
def test_later_sources_lie_over_earlier_ones(size):
    below, above = np.zeros(size, "f8"), np.ones(size // 3, "f8")
    source = Source(lines(size // 3, 2), (DimMap.flip(size // 3),), ((1, 2),))
    _, made = run(lines(size, 2), [Source(lines(size, 2)), source], [below, above])
    expected = below.copy()
    expected[1 : 1 + 2 * (size // 3) : 2] = 1
    assert np.concatenate(made).tolist() == expected.tolist()


@pytest.mark.parametrize("rows", [6, 1200])
def test_flat_pieces_are_written_box_by_box(rows):
    value = np.arange(rows * 250.0).reshape(rows, 250)
    grid = Layout(value.shape, ((0, rows // 2, rows), (0, 90, 250)), np.arange(4).reshape(2, 2, 1))
    _, made = run(lines(value.size, 7), [Source(grid, flat=True)], [value])
    assert np.concatenate(made).tolist() == value.ravel().tolist()


def test_a_view_of_a_view_lets_go_of_the_buffer():
    def body():
        buffer = np.zeros(1 << 16)
        block = buffer[: 1 << 10]
        part = assemble(lines(1 << 10, 2), [Source(lines(1 << 10, 1))])
        made = run_part(here(), part, [(block,)], block.dtype)
        assert not any(np.shares_memory(m, buffer) for m in made)
        half = buffer[: 1 << 15]
        part = assemble(lines(1 << 15, 2), [Source(lines(1 << 15, 1))])
        assert all(
            np.shares_memory(m, buffer) for m in run_part(here(), part, [(half,)], half.dtype)
        )
        # The block itself is handed on as it is: whoever gave it keeps it anyway.
        part = assemble(lines(1 << 10, 1), [Source(lines(1 << 10, 1))])
        (same,) = run_part(here(), part, [(block,)], block.dtype)
        assert same is block

    alone(body)


def test_arrays_without_dims_cross_processes():
    def body():
        devices = meshard.devices()
        x = meshard.device_put(np.float32(2.5), devices[1])
        there = meshard.device_put(x, devices[6])
        everywhere_ = meshard.device_put(there, NamedSharding(mesh(), P()))
        return [whole(everywhere_), whole(everywhere_.at[()].set(4))]

    assert [v.tolist() for v in everywhere(body)] == [2.5, 4.0]


@in_worlds
def test_large_blocks_are_copied_by_the_workers():
    value = np.arange(3 * LARGE // 8, dtype="f8").reshape(-1, 64)
    x = put(value, "i", "j")
    turned = meshard.device_put(x, NamedSharding(mesh(), P("j", "i")))
    assert whole(turned).tobytes() == value.tobytes()
    assert (
        whole(mnp.pad(turned, 3, constant_values=1)).sum()
        == np.pad(value, 3, constant_values=1).sum()
    )
    assert whole(turned.at[5::7].set(-1.0)).tobytes() == with_rows(value).tobytes()


def with_rows(value):
    result = value.copy()
    result[5::7] = -1.0
    return result
