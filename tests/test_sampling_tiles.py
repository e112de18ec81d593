"""Tiles cover every shape once, and even splits fall on their cuts."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshard.algebra.box import Box
from meshard.ops.random.tiles import TILE, Tiling, tiling

SHAPES = [(), (0,), (7,), (100_000,), (1000, 333), (3, 10**6), (5, 7, 40_000), (13, 1, 123_457)]


def boxes(tiles: Tiling) -> list[Box]:
    return [tiles.box(i) for i in range(math.prod(tiles.counts))]


@pytest.mark.parametrize("shape", SHAPES)
def test_tiles_cover_a_shape_once(shape: tuple[int, ...]) -> None:
    tiles = tiling(shape)
    assert sum(b.volume for b in boxes(tiles)) == math.prod(shape)
    assert all(b.volume <= TILE for b in boxes(tiles))


@pytest.mark.parametrize("shape", SHAPES)
@given(data=st.data())
def test_within_finds_the_tiles_that_overlap(shape: tuple[int, ...], data: st.DataObject) -> None:
    starts = tuple(data.draw(st.integers(0, n)) for n in shape)
    stops = tuple(data.draw(st.integers(a, n)) for a, n in zip(starts, shape, strict=True))
    box, tiles = Box(starts, stops), tiling(shape)
    expected = [i for i, own in enumerate(boxes(tiles)) if own.intersect(box).volume]
    assert list(tiles.within(box)) == expected


def test_dims_are_cut_about_equally() -> None:
    assert Tiling((4096, 4096)).counts == (16, 16)
    assert Tiling((1 << 20,)).counts == (16,)
    assert Tiling((2, 1 << 20)).counts == (2, 16)


@pytest.mark.parametrize("size", [4096, 12_288, 8 * 1001])
@pytest.mark.parametrize("devices", [2, 4, 8])
def test_even_splits_fall_on_cuts(size: int, devices: int) -> None:
    tiles = Tiling((size, 512))
    starts = {b.starts[0] for b in boxes(tiles)}
    if devices <= tiles.counts[0]:
        assert {i * size // devices for i in range(devices)} <= starts


def test_no_layout_draws_much_more_than_its_share() -> None:
    tiles = Tiling((4096, 4096))
    for box in (Box((0, 0), (512, 4096)), Box((0, 512), (4096, 1024)), Box((0, 0), (1024, 2048))):
        assert sum(tiles.box(i).volume for i in tiles.within(box)) == box.volume
