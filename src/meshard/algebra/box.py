"""Boxes: half-open N-d index regions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

Index = tuple[slice, ...]


class Box(NamedTuple):
    """A half-open N-d index region ``[starts, stops)``.

    >>> a = Box((0, 2), (4, 6))
    >>> a.shape, a.volume, a.intersect(Box((3, 0), (9, 3)))
    ((4, 4), 16, Box(starts=(3, 2), stops=(4, 3)))
    """

    starts: tuple[int, ...]
    stops: tuple[int, ...]

    @classmethod
    def whole(cls, shape: Sequence[int]) -> Box:
        """Return the box of a whole array of ``shape``."""
        return cls((0,) * len(shape), tuple(shape))

    @classmethod
    def from_index(cls, index: Sequence[slice], shape: Sequence[int]) -> Box:
        """Return the box of a tuple of slices with step one into an array of ``shape``."""
        spans = [s.indices(n) for s, n in zip(index, shape, strict=True)]
        return cls(tuple(s[0] for s in spans), tuple(max(s[0], s[1]) for s in spans))

    @property
    def shape(self) -> tuple[int, ...]:
        """The length along each dim."""
        return tuple([b - a for a, b in zip(self.starts, self.stops, strict=True)])

    @property
    def volume(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def slices(self) -> Index:
        """The tuple of slices that cuts this box out of its array."""
        return tuple([slice(a, b) for a, b in zip(self.starts, self.stops, strict=True)])

    def intersect(self, other: Box) -> Box:
        """Return the common region, which may be a box without elements."""
        starts = tuple(map(max, self.starts, other.starts))
        stops = tuple(
            max(a, b) for a, b in zip(starts, map(min, self.stops, other.stops), strict=True)
        )
        return Box(starts, stops)

    def within(self, other: Box) -> Box:
        """Return this box in the coordinates of ``other``, whose start becomes the origin."""
        return Box(
            tuple([a - o for a, o in zip(self.starts, other.starts, strict=True)]),
            tuple([b - o for b, o in zip(self.stops, other.starts, strict=True)]),
        )

    def __str__(self) -> str:
        spans = zip(self.starts, self.stops, strict=True)
        return "[" + ", ".join(f"{a}:{b}" for a, b in spans) + "]"
