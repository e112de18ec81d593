"""The laws of `DimMap`: maps do to positions what NumPy does to arrays."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshard.algebra.dimmap import DimMap, Run, Segment
from meshard.errors import ArgumentError, IndexingError, ShapeError

Ints = npt.NDArray[np.int64]
FILL = -1
DRAWN = settings().max_examples


def read(by: DimMap, array: Ints) -> Ints:
    """Apply a map by its definition."""
    out = np.full(by.size, FILL, dtype=np.int64)
    for start, length, source, step in by.segments:
        for k in range(length):
            out[start + k] = array[source + step * k]
    return out


def padded(array: Ints, low: int, high: int) -> Ints:
    out = np.pad(array, (max(low, 0), max(high, 0)), constant_values=FILL)
    return out[max(-low, 0) : len(out) - max(-high, 0)]


@st.composite
def steps(draw: st.DrawFn, n: int) -> tuple[DimMap, str, tuple[int | list[int] | None, ...]]:
    """Draw a map of ``n`` elements, with the name and arguments of what NumPy does instead."""
    kinds = ["slice", "flip", "roll", "pad", "tile", "place"]
    kinds += ["broadcast"] if n == 1 else []
    kinds += ["take"] if n else []
    kind = draw(st.sampled_from(kinds))
    small = st.integers(-5, 5)
    if kind == "slice":
        end = st.none() | st.integers(-n - 3, n + 3)
        step = draw(st.none() | st.sampled_from([1, 2, 3, 7, -1, -2, -3, -7]))
        bounds = (draw(end), draw(end), step)
        return DimMap.slice(n, *bounds), kind, bounds
    if kind == "flip":
        return DimMap.flip(n), kind, ()
    if kind == "roll":
        shift = draw(st.integers(-2 * n - 1, 2 * n + 1))
        return DimMap.roll(n, shift), kind, (shift,)
    if kind == "pad":
        low = draw(small)
        high = max(draw(small), -n - low)
        return DimMap.pad(n, low, high), kind, (low, high)
    if kind == "place":
        low, high = abs(draw(small)), abs(draw(small))
        return DimMap.place(n, low + n + high, low), "pad", (low, high)
    if kind == "take":
        some = draw(st.lists(st.integers(0, n - 1), max_size=12))
        return DimMap.take(n, some), kind, (some,)
    times = draw(st.integers(0, 3)) if n < 40 else 1
    return (DimMap.tile(n, times) if kind == "tile" else DimMap.broadcast(times)), "tile", (times,)


def by_numpy(array: Ints, kind: str, given: tuple[int | list[int] | None, ...]) -> Ints:
    if kind == "slice":
        return array[slice(*given)]
    if kind == "take":
        return array[np.array(given[0], dtype=np.int64)]
    if kind == "flip":
        return np.flip(array)
    numbers = [number for number in given if isinstance(number, int)]
    if kind == "roll":
        return np.roll(array, numbers[0])
    if kind == "pad":
        return padded(array, numbers[0], numbers[1])
    return np.tile(array, numbers[0])


@st.composite
def chains(draw: st.DrawFn, longest: int = 6) -> list[DimMap]:
    n = draw(st.integers(0, 20))
    made = []
    for _ in range(draw(st.integers(1, longest))):
        made.append(draw(steps(n))[0])
        n = made[-1].size
    return made


@st.composite
def maps(draw: st.DrawFn) -> DimMap:
    """Draw a map composed of a few steps."""
    first, *rest = draw(chains(longest=4))
    for each in rest:
        first = each.after(first)
    return first


@st.composite
def cuts_of(draw: st.DrawFn, n: int) -> tuple[int, ...]:
    """Draw the cuts of ``n`` elements; some shards are empty."""
    return (0, *sorted(draw(st.lists(st.integers(0, n), max_size=6))), n)


def check_form(by: DimMap) -> None:
    """Check the canonical form: sorted, inside, disjoint, no two neighbours make one segment."""
    end = 0
    for start, length, source, step in by.segments:
        assert start >= end
        assert length > 0
        assert length > 1 or step == 1
        assert min(source, source + step * (length - 1)) >= 0
        assert max(source, source + step * (length - 1)) < by.source_size
        end = start + length
    assert end <= by.size
    for a, b in pairwise(by.segments):
        if a.start + a.length == b.start:
            both = np.diff(read(by, np.arange(by.source_size))[a.start : b.start + b.length])
            assert len(set(both.tolist())) > 1, "two segments that are one"


@settings(max_examples=5 * DRAWN)
@given(st.data(), st.integers(0, 20))
def test_a_chain_is_one_map_that_does_what_numpy_does(data: st.DataObject, n: int) -> None:
    array = np.arange(100, 100 + n)
    whole, want = DimMap.identity(n), array
    for _ in range(data.draw(st.integers(1, 6))):
        each, kind, arguments = data.draw(steps(want.size))
        want = by_numpy(want, kind, arguments)
        whole = each.after(whole)
        check_form(whole)
        np.testing.assert_array_equal(read(whole, array), want)
    places = np.where(want == FILL, FILL, want - 100)
    np.testing.assert_array_equal(whole.positions(), places)
    assert whole.covered == np.count_nonzero(want != FILL)
    filled = np.zeros(len(want), dtype=bool)
    for start, stop in whole.fills():
        assert start < stop
        filled[start:stop] = True
    np.testing.assert_array_equal(filled, want == FILL)
    assert whole.is_identity == (n == len(want) and np.array_equal(want, array))


@settings(max_examples=2 * DRAWN)
@given(chains())
def test_composition_is_associative_and_identity_is_its_unit(chain: list[DimMap]) -> None:
    first, *rest = chain
    left = first
    for each in rest:
        left = each.after(left)
    right = chain[-1]
    for each in reversed(chain[:-1]):
        right = right.after(each)
    assert left == right
    assert hash(left) == hash(right)
    assert repr(left) == repr(right)
    assert left.after(DimMap.identity(left.source_size)) == left
    assert DimMap.identity(left.size).after(left) == left


@settings(max_examples=2 * DRAWN)
@given(maps(), st.data())
def test_equal_positions_make_equal_maps_however_they_were_segmented(
    by: DimMap, data: st.DataObject
) -> None:
    at = by.positions().tolist()
    single = [(i, 1, x, data.draw(st.integers(-3, 3))) for i, x in enumerate(at) if x >= 0]
    empty = [(data.draw(st.integers(-9, 9)), 0, 99, 1)]
    shuffled = data.draw(st.permutations(single + empty))
    again = DimMap(by.size, by.source_size, shuffled)
    assert again == by
    assert again.segments == by.segments
    assert hash(again) == hash(by)
    split: list[tuple[int, int, int, int]] = []
    for start, length, source, step in by.segments:
        k = data.draw(st.integers(0, length))
        split += [(start, k, source, step), (start + k, length - k, source + step * k, step)]
    assert DimMap(by.size, by.source_size, split) == by
    if not by.fills():
        assert DimMap.take(by.source_size, at) == by
        assert DimMap.take(by.source_size, by.positions()) == by


def greedy(at: list[int]) -> int:
    """Return the fewest arithmetic runs that make up ``at``, by the longest run from the left."""
    count = i = 0
    while i < len(at):
        j = i + 2
        while j < len(at) and at[j] - at[j - 1] == at[i + 1] - at[i]:
            j += 1
        count, i = count + 1, j
    return count


@settings(max_examples=2 * DRAWN)
@given(st.lists(st.integers(0, 4), max_size=14))
def test_segments_are_the_fewest(at: list[int]) -> None:
    made = DimMap.take(5, at)
    assert made.positions().tolist() == at
    assert len(made.segments) == greedy(at)
    check_form(made)


@settings(max_examples=2 * DRAWN)
@given(maps(), st.data())
def test_restrict_is_the_map_of_a_range(by: DimMap, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, by.size))
    stop = data.draw(st.integers(start, by.size))
    part = by.restrict(start, stop)
    check_form(part)
    np.testing.assert_array_equal(part.positions(), by.positions()[start:stop])
    assert part == DimMap.slice(by.size, start, stop).after(by)
    assert by.restrict(0, by.size) == by


@settings(max_examples=3 * DRAWN)
@given(maps(), st.data())
def test_runs_reassemble_the_range_from_the_shards(by: DimMap, data: st.DataObject) -> None:
    cuts = data.draw(cuts_of(by.source_size))
    start = data.draw(st.integers(0, by.size))
    stop = data.draw(st.integers(start, by.size))
    array = np.arange(100, 100 + by.source_size)
    shards = [array[a:b] for a, b in pairwise(cuts)]
    out = np.full(stop - start, FILL, dtype=np.int64)
    written = np.zeros(stop - start, dtype=int)
    runs = by.runs(start, stop, cuts)
    for destination, length, piece, source, step in runs:
        for k in range(length):
            at = source + step * k
            assert 0 <= at < len(shards[piece])
            out[destination + k] = shards[piece][at]
            written[destination + k] += 1
        assert length > 1 or step == 1
    np.testing.assert_array_equal(out, read(by, array)[start:stop])
    np.testing.assert_array_equal(written, out != FILL)
    assert runs == sorted(runs)
    # Maximal: neighbours lie in two segments or two shards.
    owner = [i for i, s in enumerate(by.segments) for _ in range(s.length)]
    covered = np.flatnonzero(by.positions() >= 0).tolist()
    segment = dict(zip(covered, owner, strict=True))
    for a, b in pairwise(runs):
        same = segment[start + a.destination] == segment[start + b.destination]
        assert not (same and a.piece == b.piece)


@settings(max_examples=3 * DRAWN)
@given(maps(), st.data())
def test_image_cuts_keep_each_element_in_its_shard(by: DimMap, data: st.DataObject) -> None:
    cuts = data.draw(cuts_of(by.source_size))
    at = by.positions()
    shard_of = np.searchsorted(cuts, at[at >= 0], side="right") - 1
    image = by.image_cuts(cuts)
    if image is None:
        assert (np.diff(shard_of) < 0).any()
        return
    assert len(image) == len(cuts)
    assert (image[0], image[-1]) == (0, by.size)
    assert list(image) == sorted(image)
    now = np.searchsorted(image, np.flatnonzero(at >= 0), side="right") - 1
    np.testing.assert_array_equal(now, shard_of)


def test_image_cuts_by_example() -> None:
    cuts = (0, 3, 7, 10)
    assert DimMap.slice(10, 5, 10, 1).image_cuts(cuts) == (0, 0, 2, 5)
    assert DimMap.slice(10, None, None, 3).image_cuts(cuts) == (0, 1, 3, 4)
    assert DimMap.slice(10, 4, 4).image_cuts(cuts) == (0, 0, 0, 0)
    assert DimMap.pad(10, 2, 3).image_cuts(cuts) == (0, 5, 9, 15)
    assert DimMap.pad(10, -4, 3).image_cuts(cuts) == (0, 0, 3, 9)
    assert DimMap.pad(10, 3, -8).image_cuts(cuts) == (0, 5, 5, 5)
    assert DimMap.place(10, 20, 6).image_cuts(cuts) == (0, 9, 13, 20)
    assert DimMap.broadcast(6).image_cuts((0, 0, 1, 1)) == (0, 0, 6, 6)
    for turned in (DimMap.flip(10), DimMap.roll(10, 1), DimMap.tile(10, 2)):
        assert turned.image_cuts(cuts) is None
        # Within one shard every order keeps the elements where they are.
        assert turned.image_cuts((0, 0, 10)) == (0, 0, turned.size)


def test_fills_go_to_the_end_shards_or_to_the_nearer_neighbour() -> None:
    ends = DimMap.place(4, 10, 3)
    assert ends.image_cuts((0, 0, 2, 4, 4)) == (0, 3, 5, 7, 10)
    dilated = DimMap(13, 4, [(2, 2, 0, 1), (9, 2, 2, 1)])
    assert dilated.fills() == [(0, 2), (4, 9), (11, 13)]
    assert dilated.image_cuts((0, 2, 4)) == (0, 7, 13)
    assert dilated.image_cuts((0, 2, 2, 4)) == (0, 7, 7, 13)
    nothing = DimMap.pad(0, 4, 4)
    assert nothing.segments == ()
    assert nothing.image_cuts((0, 0, 0, 0)) == (0, 2, 5, 8)


def test_segments_by_example() -> None:
    assert DimMap.roll(10, 1).segments == ((0, 1, 9, 1), (1, 9, 0, 1))
    assert DimMap.roll(10, -1).segments == ((0, 9, 1, 1), (9, 1, 0, 1))
    assert DimMap.roll(3, 1).segments == ((0, 1, 2, 1), (1, 2, 0, 1))
    assert DimMap.roll(2, 1) == DimMap.flip(2)
    assert DimMap.roll(0, 3) == DimMap.identity(0) == DimMap.flip(0) == DimMap.tile(0, 5)
    assert DimMap.broadcast(1) == DimMap.identity(1) == DimMap.flip(1)
    assert DimMap.tile(1, 5) == DimMap.broadcast(5)
    assert DimMap.slice(9, -1, 0, -4).segments == (Segment(0, 2, 8, -4),)
    assert DimMap.from_slice(9, slice(-1, 0, -4)) == DimMap.slice(9, -1, 0, -4)
    assert DimMap.take(9, range(3, 9, 2)) == DimMap.slice(9, 3, None, 2)
    assert DimMap.take(9, []) == DimMap.slice(9, 9)
    assert DimMap.take(9, [7, 7]) == DimMap(2, 9, [(0, 2, 7, 0)])
    assert DimMap.take(300, np.array([200, 100, 0], dtype=np.uint8)).segments == (
        (0, 3, 200, -100),
    )
    assert DimMap.pad(3, -5, 9).segments == ()
    assert DimMap.pad(3, 0, 0).is_identity
    assert not DimMap.slice(3, 0, 2).is_identity
    assert not DimMap.pad(2, 0, 1).is_identity
    assert DimMap.identity(0).is_identity


def test_runs_by_example() -> None:
    assert DimMap.flip(10).runs(2, 9, (0, 0, 4, 4, 10, 10)) == [
        Run(0, 4, 3, 3, -1),
        Run(4, 3, 1, 3, -1),
    ]
    assert DimMap.broadcast(6).runs(1, 6, (0, 0, 1)) == [Run(0, 5, 1, 0, 0)]
    assert DimMap.place(3, 9, 4).runs(0, 4, (0, 3)) == []
    assert DimMap.place(3, 9, 4).runs(5, 6, (0, 3)) == [Run(0, 1, 0, 1, 1)]
    assert DimMap.identity(4).runs(2, 2, (0, 4)) == []
    assert DimMap.identity(0).runs(0, 0, (0, 0)) == []


def test_runs_of_a_huge_dim_cost_what_they_return() -> None:
    n = 10**15
    cuts = tuple(range(0, n + 1, n // 1000))
    by = DimMap.flip(n).after(DimMap.roll(n, 7))
    runs = by.runs(n // 2, n // 2 + n // 500, cuts)
    assert len(runs) == 3
    assert sum(r.length for r in runs) == n // 500
    assert all(r.step == -1 for r in runs)


def test_maps_are_frozen_values() -> None:
    by = DimMap.roll(5, 2)
    with pytest.raises(FrozenInstanceError):
        by.size = 7  # type: ignore[misc]
    assert {by: 1}[DimMap.roll(5, -3)] == 1
    assert by != DimMap.roll(5, 1)
    assert DimMap.slice(5, 0, 2) != DimMap.slice(6, 0, 2)
    for again in (pickle.loads(pickle.dumps(by)), copy.copy(by), copy.deepcopy(by)):
        assert again == by
        assert hash(again) == hash(by)
    assert repr(DimMap.broadcast(4)) == (
        "DimMap(size=4, source_size=1, segments=(Segment(start=0, length=4, source=0, step=0),))"
    )


def test_the_constructor_refuses_what_is_no_map() -> None:
    with pytest.raises(ShapeError, match=r"destination is 3 and that of the source -2\."):
        DimMap(3, -2, [])
    with pytest.raises(ShapeError, match=r"four integers, not \(1, 2, 3\)"):
        DimMap(3, 3, [(1, 2, 3)])  # type: ignore[list-item]
    with pytest.raises(ShapeError, match=r"four integers, not \(0, 1, 0, 1\.5\)"):
        DimMap(3, 3, [(0, 1, 0, 1.5)])  # type: ignore[list-item]
    with pytest.raises(ShapeError, match=r"length -2 leaves the bounds"):
        DimMap(3, 3, [(0, -2, 0, 1)])
    with pytest.raises(ShapeError, match=r"destination 2:4 of 0:3 and reads source 0:2 of 0:9"):
        DimMap(3, 9, [(2, 2, 0, 1)])
    with pytest.raises(ShapeError, match=r"destination -1:1 of 0:3"):
        DimMap(3, 9, [(-1, 2, 0, 1)])
    with pytest.raises(ShapeError, match=r"reads source 6:11 of 0:10"):
        DimMap(3, 10, [(0, 3, 10, -2)])
    with pytest.raises(ShapeError, match=r"reads source -2:3 of 0:10"):
        DimMap(3, 10, [(0, 3, 2, -2)])
    with pytest.raises(ShapeError, match=r"overlap: they cover destination 0:3 and 2:4, but"):
        DimMap(9, 9, [(2, 2, 0, 1), (0, 3, 0, 1)])


def test_methods_refuse_what_does_not_fit() -> None:
    for negative in (DimMap.identity, DimMap.flip, DimMap.broadcast):
        with pytest.raises(ShapeError, match="the destination is -3"):
            negative(-3)
    with pytest.raises(ShapeError, match="sizes must not be negative"):
        DimMap.roll(-3, 1)
    with pytest.raises(ShapeError, match="the destination is -6 and that of the source 3"):
        DimMap.tile(3, -2)
    with pytest.raises(ArgumentError, match=r"slice\(1, 2, 0\) of 5 elements: .*zero\."):
        DimMap.slice(5, 1, 2, 0)
    with pytest.raises(ArgumentError, match=r"slice\('a', None, None\) of 5 elements"):
        DimMap.from_slice(5, slice("a", None))
    with pytest.raises(ShapeError, match=r"3 elements with a padding of -2 .* size -1, which"):
        DimMap.pad(3, -2, -2)
    with pytest.raises(ShapeError, match=r"3 elements at 4 reach over 4:7, outside 0:6\."):
        DimMap.place(3, 6, 4)
    with pytest.raises(ShapeError, match=r"at -1 reach over -1:2, outside 0:6"):
        DimMap.place(3, 6, -1)
    with pytest.raises(IndexingError, match=r"positions\[2\] is 5, outside the source 0:5\."):
        DimMap.take(5, [1, 0, 5, -1])
    with pytest.raises(IndexingError, match=r"positions\[0\] is -1, outside"):
        DimMap.take(5, [-1])
    with pytest.raises(ArgumentError, match=r"list of integers, not shape \(1,\) of float64"):
        DimMap.take(5, np.array([1.0]))
    with pytest.raises(ArgumentError, match=r"not shape \(1, 2\) of int64"):
        DimMap.take(5, np.array([[1, 2]]))
    with pytest.raises(ShapeError, match=r"outer map reads 5, the inner makes 4\."):
        DimMap.flip(5).after(DimMap.flip(4))
    for start, stop in ((-1, 2), (3, 2), (0, 6)):
        with pytest.raises(ShapeError, match=rf"range {start}:{stop} leaves the destination 0:5"):
            DimMap.flip(5).restrict(start, stop)
        with pytest.raises(ShapeError, match=rf"range {start}:{stop} leaves the destination 0:5"):
            DimMap.flip(5).runs(start, stop, (0, 5))
    for cuts in ((), (0,), (0, 4), (1, 5)):
        with pytest.raises(ShapeError, match=r"cuts \(.*\) do not span the source 0:5"):
            DimMap.flip(5).runs(0, 5, cuts)
        with pytest.raises(ShapeError, match=r"do not span the source 0:5"):
            DimMap.flip(5).image_cuts(cuts)
