import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshard.algebra.box import Box

SHAPE = (5, 4)


@st.composite
def boxes(draw: st.DrawFn) -> Box:
    ends = [sorted((draw(st.integers(0, n)), draw(st.integers(0, n)))) for n in SHAPE]
    return Box(tuple(e[0] for e in ends), tuple(e[1] for e in ends))


def elements(box: Box) -> set[tuple[int, ...]]:
    array = np.zeros(SHAPE, bool)
    array[box.slices] = True
    return {tuple(map(int, at)) for at in np.argwhere(array)}


@given(boxes(), boxes())
def test_an_intersection_holds_the_common_elements(a, b):
    both = a.intersect(b)
    assert elements(both) == elements(a) & elements(b)
    assert both.volume == len(elements(both))
    assert all(n >= 0 for n in both.shape)
    assert both.intersect(a).volume == both.volume


@given(boxes(), boxes())
def test_within_moves_the_origin(a, b):
    moved = a.within(b)
    assert moved.shape == a.shape
    assert tuple(m + o for m, o in zip(moved.starts, b.starts, strict=True)) == a.starts


@given(boxes())
def test_slices_and_back(box):
    assert Box.from_index(box.slices, SHAPE) == box
    assert np.zeros(SHAPE)[box.slices].shape == box.shape
    assert box.intersect(Box.whole(SHAPE)) == box


@given(st.tuples(*[st.slices(n).filter(lambda s: s.step in (None, 1)) for n in SHAPE]))
def test_an_index_is_read_as_numpy_reads_it(index):
    box = Box.from_index(index, SHAPE)
    assert np.zeros(SHAPE)[index].shape == box.shape
    assert box.volume == np.zeros(SHAPE)[index].size


def test_whole_and_print():
    assert Box.whole((2, 0)) == Box((0, 0), (2, 0))
    assert str(Box((0, 3), (2, 5))) == "[0:2, 3:5]"
    assert str(Box.whole(())) == "[]"
    assert Box.whole(()).volume == 1


def test_an_index_of_another_rank_is_refused():
    with pytest.raises(ValueError, match="zip"):
        Box.from_index((slice(None),), SHAPE)
