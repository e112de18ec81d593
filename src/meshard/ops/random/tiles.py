"""Tiles: how a random array is cut into parts that are drawn one by one.

A tile is an N-D box that depends on the array's shape alone, of about 64 K elements; each has a
stream of its own. So whoever holds a part of the array draws the tiles that overlap it, and nobody
needs the others. The dims are cut about equally often, in powers of two, at
``floor(i * size / count)``: an even split of a dim over 2, 4, 8 … devices falls on these cuts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product
from typing import final

from meshard.algebra.box import Box

TILE = 1 << 16
"""The most elements of a tile, if no dim is too short to be cut so."""


@final
class Tiling:
    """The tiles of one shape.

    Attributes:
        shape: the array's shape.
        counts: the number of tiles along each dim.

    >>> tiles = Tiling((1024, 1024))
    >>> tiles.counts, tiles.box(5)
    ((4, 4), Box(starts=(256, 256), stops=(512, 512)))
    """

    def __init__(self, shape: Sequence[int]) -> None:
        self.shape = tuple(shape)
        counts = [1] * len(self.shape)
        tiles = -(-math.prod(self.shape) // TILE)
        for _ in range(max(0, tiles - 1).bit_length()):
            able = [d for d, n in enumerate(self.shape) if n >= 2 * counts[d]]
            if not able:
                break
            dim = min(able, key=lambda d: (counts[d], -self.shape[d], d))
            counts[dim] *= 2
        self.counts = tuple(counts)

    def box(self, number: int) -> Box:
        """Return the region of one tile; tiles are numbered in C order."""
        place = []
        for count in reversed(self.counts):
            number, i = divmod(number, count)
            place.append(i)
        place.reverse()
        spans = list(zip(place, self.shape, self.counts, strict=True))
        return Box(
            tuple([i * n // c for i, n, c in spans]),
            tuple([(i + 1) * n // c for i, n, c in spans]),
        )

    def within(self, box: Box) -> Iterator[int]:
        """Yield the numbers of the tiles that overlap a box."""
        if not all(a < b for a, b in zip(box.starts, box.stops, strict=True)):
            return
        spans = [
            # The tile of an element: the last one that starts at or before it.
            range(((a + 1) * c - 1) // n, (b * c - 1) // n + 1)
            for a, b, n, c in zip(box.starts, box.stops, self.shape, self.counts, strict=True)
        ]
        for place in product(*spans):
            number = 0
            for i, c in zip(place, self.counts, strict=True):
                number = number * c + i
            yield number


@lru_cache(maxsize=1024)
def tiling(shape: tuple[int, ...]) -> Tiling:
    """Return the tiles of a shape."""
    return Tiling(shape)
