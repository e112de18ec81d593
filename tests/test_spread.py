import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshard.algebra.box import Box
from meshard.algebra.layout import Layout, even_cuts, layout_of_boxes
from meshard.plan.hops import spread as module
from meshard.plan.hops.cells import CellGrid
from meshard.plan.hops.spread import HeldCells, shared, spans_of, spread
from tests.lays import calm, lays, shapes


def spans(draw, size):
    """Draw disjoint stretches of a dim, which may be empty or leave gaps."""
    points = sorted(draw(st.lists(st.integers(0, size), min_size=0, max_size=8)))
    points = np.array(points[: len(points) // 2 * 2], np.int64)
    return points[::2], points[1::2]


@given(st.data(), st.lists(st.integers(1, 7), max_size=3))
def test_sums_over_cells_are_those_over_elements(data, shape):
    mine = [spans(data.draw, n) for n in shape]
    onto = [spans(data.draw, n) for n in shape]
    sizes = [len(a) for a, _ in mine]
    values = np.arange(1.0, np.prod(sizes, dtype=int) + 1).reshape(sizes)
    found = spread(values, mine, onto)
    counted = spread(values, mine, onto, counting=True)
    assert found.shape == counted.shape == tuple(len(a) for a, _ in onto)
    elements = np.zeros(shape)
    for cell in np.ndindex(*sizes):
        box = tuple(slice(a[i], b[i]) for (a, b), i in zip(mine, cell, strict=True))
        elements[box] = values[cell]
    for cell in np.ndindex(*found.shape):
        box = tuple(slice(a[i], b[i]) for (a, b), i in zip(onto, cell, strict=True))
        assert found[cell] == elements[box].sum()
        assert counted[cell] == sum(set(elements[box].flatten()) - {0.0})


def slow(mine, other, weights, counting):
    result = np.zeros(len(mine.group))
    for i in range(len(result)):
        for j in range(len(other.group)):
            if mine.group[i] == other.group[j]:
                volume = 1
                for (a, b), (c, d) in zip(mine.spans, other.spans, strict=True):
                    volume *= max(min(b[i], d[j]) - max(a[i], c[j]), 0)
                result[i] += weights[j] * (volume > 0 if counting else volume)
    return result


@calm
@given(st.data(), shapes(), st.booleans(), st.integers(1, 8))
def test_what_groups_share_by_pairs_and_by_grids(data, shape, counting, size):
    one, other = (data.draw(lays(shape).filter(bool)) for _ in range(2))
    layouts = [drawn(lay, shape) for lay in (one, other)]
    mine, theirs = (HeldCells(CellGrid(layout), lambda ids: ids // size - 1) for layout in layouts)
    weights = np.arange(1.0, len(theirs.group) + 1)
    expected = slow(mine, theirs, weights, counting)
    ways = [(1 << 60, 1 << 20), (1 << 60, 3), (-1 << 60, 3)]
    for cost, at_once in ways[: 3 if shape else 2]:  # a scalar is one pair, never a grid
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "GROUP_COST", cost)
            patch.setattr(module, "PAIRS_AT_ONCE", at_once)
            assert shared(mine, theirs, weights, counting=counting).tolist() == expected.tolist()


def drawn(lay, shape):
    sharding = lay.sharding(shape)
    if sharding is None or not hasattr(sharding, "layout"):
        return Layout(shape, tuple((0, n) for n in shape), np.full((*[1] * len(shape), 1), 5))
    return sharding.layout(shape)


def test_large_groups_are_summed_as_grids(monkeypatch):
    # One group of 256 rows and 256 columns: 65,536 pairs, and 512 cells.
    ids = np.arange(256)
    rows = Layout((512, 512), (even_cuts(512, 256), (0, 512)), ids.reshape(256, 1, 1))
    columns = Layout((512, 512), ((0, 512), even_cuts(512, 256)), ids.reshape(1, 256, 1))
    monkeypatch.setattr(module, "_by_pairs", None)
    a, b = (HeldCells(CellGrid(x), np.zeros_like) for x in (rows, columns))
    assert set(shared(a, b, np.ones(256)).tolist()) == {2.0 * 512}
    assert set(shared(a, b, np.ones(256), counting=True).tolist()) == {256.0}


def test_rows_of_groups():
    layout = Layout((4,), ((0, 2, 4),), np.array([[0, 1], [2, 3]]))
    rows = HeldCells(CellGrid(layout), lambda ids: np.where(ids == 3, -1, ids // 2))
    assert rows.group.tolist() == [0, 1]
    assert rows.cell.tolist() == [0, 1]
    assert rows.count.tolist() == [2.0, 1.0]
    assert rows.volumes.tolist() == [2, 2]
    assert rows.at(np.array([1]), np.array([1])).tolist() == [1]


def test_cells_of_boxes():
    layout = layout_of_boxes((4,), [(0, Box((0,), (3,))), (1, Box((2,), (4,)))])
    grid = CellGrid(layout)
    assert [list(map(int, x)) for x in spans_of(grid)[0]] == [[0, 2, 3], [2, 3, 4]]
