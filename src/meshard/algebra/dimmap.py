"""`DimMap`: how each position of one destination dim reads from one source dim."""

from __future__ import annotations

import builtins
import operator
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, final

import numpy as np
import numpy.typing as npt

from meshard.errors import ArgumentError, IndexingError, ShapeError

Piece = tuple[int, int, int, int]  # the fields of a Segment before the canonical form

_start = operator.itemgetter(0)


class Segment(NamedTuple):
    """One arithmetic run: destination ``start + k`` reads source ``source + step * k``.

    ``k`` counts ``0 .. length - 1``; ``step`` is any integer, 0 reads one position for all.
    """

    start: int
    length: int
    source: int
    step: int


class Run(NamedTuple):
    """A part of a segment that reads one shard: what one copy between two blocks moves.

    ``destination`` counts from the start of the range asked for, ``source`` from the start of
    shard number ``piece``. A run of one element has step 1.
    """

    destination: int
    length: int
    piece: int
    source: int
    step: int


def _stay(at: int, step: int, low: int, high: int, most: int) -> int:
    """Return how many of ``at, at + step, ...`` are in [low, high), as ``at`` is, up to most."""
    if step == 0:
        return most
    return min(most, (high - 1 - at if step > 0 else at - low) // abs(step) + 1)


def _split(start: int, source: int, strides: list[tuple[int, int]]) -> Iterator[Segment]:
    """Yield the segments of one stretch without fills, as few as there can be.

    ``strides`` holds the differences between neighbouring sources as maximal runs (difference,
    how often). They depend on the positions alone, not on how they were segmented, and so do the
    segments chosen here: each takes a whole run of differences, except that ``9 0 1 2`` is cut
    as ``9 | 0 1 2`` and not ``9 0 | 1 2``, and a last ``2 0 1`` as ``2 | 0 1``.
    """
    count, k = len(strides), 0
    while k < count:
        step, times = strides[k]
        k += 1
        if times == 1 and k < count:
            # A single difference may lead to the next segment instead of making one of two
            # elements: then the whole run of differences that follows is one segment.
            following, repeats = strides[k]
            if repeats > 1 or (k + 1 == count and abs(following) < abs(step)):
                yield Segment(start, 1, source, 1)
                start, source = start + 1, source + step
                continue
        yield Segment(start, times + 1, source, step)
        if k == count:
            return
        start, source = start + times + 1, source + step * times
        step, times = strides[k]  # its first difference leads from this segment to the next
        source += step
        strides[k] = (step, times - 1)
        k += times == 1
    yield Segment(start, 1, source, 1)


def _canonical(pieces: Sequence[Piece]) -> tuple[Segment, ...]:
    """Return the one list of segments for what sorted, disjoint, non-empty ``pieces`` read."""
    out: list[Segment] = []
    count, i = len(pieces), 0
    while i < count:
        first, length, source, step = pieces[i]
        end, last = first + length, source + step * (length - 1)
        # Pieces that touch are joined into one stretch of differences, and cut anew from these:
        # so the result does not depend on where they were cut.
        strides = [(step, length - 1)] if length > 1 else []
        i += 1
        while i < count and pieces[i][0] == end:
            _, length, begin, step = pieces[i]
            for difference, times in ((begin - last, 1), (step, length - 1)):
                if strides and strides[-1][0] == difference:
                    strides[-1] = (difference, strides[-1][1] + times)
                elif times:
                    strides.append((difference, times))
            end, last = end + length, begin + step * (length - 1)
            i += 1
        out += _split(first, source, strides)
    return tuple(out)


def _checked(size: int, source_size: int, segments: Iterable[Piece]) -> list[Piece]:
    """Return ``segments`` sorted, as plain ints, without empty ones; refuse what is not a map."""
    pieces: list[Piece] = []
    for given in segments:
        try:
            start, length, source, step = map(operator.index, given)
        except (TypeError, ValueError):
            raise ShapeError(f"DimMap: a segment must be four integers, not {given!r}.") from None
        end, last = start + length, source + step * (length - 1)
        low, high = min(source, last), max(source, last)
        if length and not (0 <= start < end <= size and 0 <= low <= high < source_size):
            raise ShapeError(
                f"DimMap: a segment of length {length} leaves the bounds: it covers destination "
                f"{start}:{end} of 0:{size} and reads source {low}:{high + 1} of 0:{source_size}."
            )
        if length:
            pieces.append((start, length, source, step))
    pieces.sort()
    for (start, length, _, _), (begin, span, _, _) in pairwise(pieces):
        if start + length > begin:
            raise ShapeError(
                f"DimMap: two segments overlap: they cover destination {start}:{start + length} "
                f"and {begin}:{begin + span}, but a position can read only one source position."
            )
    return pieces


@final
@dataclass(frozen=True, slots=True, init=False)
class DimMap:
    """How each position of one destination dim reads from one source dim.

    Frozen, compared by value and hashed at birth. ``segments`` is in canonical form (sorted, no
    empty ones, as few as possible, step 1 where the length is 1), so maps that read the same
    are equal however they were made. Positions in no segment are fills, such as padding.

    Raises:
        ShapeError: here and in every method, if sizes, segments, ranges or cuts do not fit.
        ArgumentError: from `slice` if step is 0, from `take` if it gets no list of integers.
        IndexingError: from `take`, if a position is not in ``0 .. n - 1``.

    >>> DimMap.roll(9, 2) == DimMap(9, 9, [(0, 2, 7, 1), (2, 7, 0, 1)])
    True
    >>> made = [DimMap.identity(3), DimMap.slice(9, -2, None, -3), DimMap.flip(3)]
    >>> made += [DimMap.roll(3, 1), DimMap.pad(3, -1, 2), DimMap.place(2, 3, 1)]
    >>> made += [DimMap.tile(2, 2), DimMap.broadcast(3), DimMap.take(9, [4, 6, 8, 1])]
    >>> for each in made:
    ...     print(*each.positions(), end="; ")
    0 1 2; 7 4 1; 2 1 0; 2 0 1; 1 2 -1 -1; -1 0 1; 0 1 0 1; 0 0 0; 4 6 8 1;
    """

    size: int
    source_size: int
    segments: tuple[Segment, ...]
    _hash: int = field(repr=False, compare=False)

    def __init__(self, size: int, source_size: int, segments: Iterable[Piece]) -> None:
        self._set(size, source_size, _canonical(_checked(size, source_size, segments)))

    def _set(self, size: int, source_size: int, segments: tuple[Segment, ...]) -> None:
        if size < 0 or source_size < 0:
            raise ShapeError(
                f"DimMap: sizes must not be negative, but that of the destination is {size} and "
                f"that of the source {source_size}."
            )
        put = object.__setattr__
        put(self, "size", size)
        put(self, "source_size", source_size)
        put(self, "segments", segments)
        put(self, "_hash", hash((size, source_size, segments)))

    @classmethod
    def _of(cls, size: int, source_size: int, *pieces: Piece) -> DimMap:
        """Return the map of pieces known to be sorted, disjoint and inside; empty ones go."""
        made = object.__new__(cls)
        made._set(size, source_size, _canonical([p for p in pieces if p[1] > 0]))
        return made

    @classmethod
    def identity(cls, n: int) -> DimMap:
        """Return the map by which each of ``n`` positions reads itself."""
        return cls._of(n, n, (0, n, 0, 1))

    @classmethod
    def slice(
        cls, n: int, start: int | None = None, stop: int | None = None, step: int | None = None
    ) -> DimMap:
        """Return the map of ``x[start:stop:step]`` for ``n`` elements, by Python's own rules."""
        return cls.from_slice(n, slice(start, stop, step))

    @classmethod
    def from_slice(cls, n: int, index: builtins.slice) -> DimMap:
        """Return the map of ``x[index]`` for ``n`` elements; see `slice`."""
        try:
            start, stop, step = index.indices(n)
        except (TypeError, ValueError) as error:
            raise ArgumentError(f"DimMap: {index} of {n} elements: {error}.") from None
        length = len(range(start, stop, step))
        return cls._of(length, n, (0, length, start, step))

    @classmethod
    def flip(cls, n: int) -> DimMap:
        """Return the map that reads ``n`` elements from the last to the first."""
        return cls._of(n, n, (0, n, n - 1, -1))

    @classmethod
    def roll(cls, n: int, shift: int) -> DimMap:
        """Return the map that moves ``n`` elements up by ``shift``, round the end."""
        shift = shift % n if n else 0
        return cls._of(n, n, (0, shift, n - shift, 1), (shift, n - shift, 0, 1))

    @classmethod
    def pad(cls, n: int, low: int, high: int) -> DimMap:
        """Return the map that adds ``low`` fills before and ``high`` after; negative ones crop."""
        size = n + low + high
        if size < 0:
            raise ShapeError(
                f"DimMap.pad: {n} elements with a padding of {low} before and {high} after would "
                f"have the size {size}, which is negative."
            )
        start, stop = max(low, 0), min(low + n, size)
        return cls._of(size, n, (start, stop - start, start - low, 1))

    @classmethod
    def tile(cls, n: int, reps: int) -> DimMap:
        """Return the map that repeats all ``n`` elements ``reps`` times."""
        return cls._of(n * reps, n, *[(n * i, n, 0, 1) for i in range(reps)])

    @classmethod
    def broadcast(cls, n: int) -> DimMap:
        """Return the map by which all of ``n`` positions read the one element of the source."""
        return cls._of(n, 1, (0, n, 0, 0))

    @classmethod
    def place(cls, n: int, size: int, at: int) -> DimMap:
        """Return the map that lands ``n`` elements at ``at`` of ``size``: a concatenate operand."""
        if not 0 <= at <= at + n <= size:
            raise ShapeError(
                f"DimMap.place: {n} elements at {at} reach over {at}:{at + n}, outside 0:{size}."
            )
        return cls._of(size, n, (at, n, 0, 1))

    @classmethod
    def take(cls, n: int, positions: Sequence[int] | npt.NDArray[np.integer]) -> DimMap:
        """Return the map that reads these positions of ``n``; none counts from the end."""
        if not len(positions):
            return cls._of(0, n)
        listed = np.asarray(positions)
        if listed.ndim != 1 or listed.dtype.kind not in "iu":
            kind = f"shape {listed.shape} of {listed.dtype}"
            raise ArgumentError(f"DimMap.take: positions must be a list of integers, not {kind}.")
        if listed.min() < 0 or listed.max() >= n:
            where = int(np.flatnonzero((listed < 0) | (listed >= n))[0])
            found = f"positions[{where}] is {listed[where]}"
            raise IndexingError(f"DimMap.take: {found}, outside the source 0:{n}.")
        steps = np.diff(listed.astype(np.int64))
        first = np.flatnonzero(np.diff(steps, prepend=steps[:1] - 1))  # where a new step begins
        times = np.diff(first, append=len(steps))
        strides = list(zip(steps[first].tolist(), times.tolist(), strict=True))
        return cls._of(len(listed), n, *_split(0, int(listed[0]), strides))

    @property
    def is_identity(self) -> bool:
        """Whether each position reads itself and the sizes are the same."""
        n = self.size
        return n == self.source_size and (not n or self.segments == ((0, n, 0, 1),))

    @property
    def covered(self) -> int:
        """The number of destination positions that read the source; the others are fills."""
        return sum([s.length for s in self.segments])

    def fills(self) -> list[tuple[int, int]]:
        """Return the ranges ``(start, stop)`` of destination positions that read nothing.

        >>> DimMap.pad(5, 2, 3).fills()
        [(0, 2), (7, 10)]
        """
        ends = [0, *[s.start + s.length for s in self.segments]]
        starts = [*[s.start for s in self.segments], self.size]
        return [(a, b) for a, b in zip(ends, starts, strict=True) if a < b]

    def positions(self) -> npt.NDArray[np.int64]:
        """Return the source position of each destination position, -1 for fills; shape (size,).

        >>> DimMap.pad(2, 1, 0).positions().tolist()
        [-1, 0, 1]
        """
        out = np.full(self.size, -1, dtype=np.int64)
        for start, length, source, step in self.segments:
            out[start : start + length] = source + step * np.arange(length, dtype=np.int64)
        return out

    def after(self, inner: DimMap) -> DimMap:
        """Return the one map that does ``inner`` first and then this one; fills stay fills.

        >>> DimMap.flip(3).after(DimMap.pad(2, 0, 1)).positions().tolist()
        [-1, 1, 0]
        """
        read, made = self.source_size, inner.size
        if read != made:
            raise ShapeError(f"DimMap.after: the outer map reads {read}, the inner makes {made}.")
        pieces: list[Piece] = []
        below = inner.segments
        for start, length, source, step in self.segments:
            # Element k of this segment reads position `at` of the inner map's result. Either a run
            # of them stays inside one segment of the inner map, or `at` is a fill of it, and k
            # jumps to the first element that reads the next segment in the direction of the step.
            k = 0
            while k < length:
                at = source + step * k
                i = bisect_right(below, at, key=_start) - 1
                first, span, begin, stride = below[i] if i >= 0 else (0, 0, 0, 0)
                if at < first + span:
                    many = _stay(at, step, first, first + span, length - k)
                    pieces.append((start + k, many, begin + stride * (at - first), stride * step))
                    k += many
                elif step > 0 and i + 1 < len(below):
                    k += -((at - below[i + 1].start) // step)
                elif step < 0 and i >= 0:
                    k += -((first + span - 1 - at) // -step)
                else:  # all others read fills, too
                    break
        return self._of(self.size, inner.source_size, *pieces)

    def _clip(self, start: int, stop: int) -> Iterator[Piece]:
        """Yield the segments' parts in destination ``start .. stop``, counted from ``start``."""
        segments, size = self.segments, self.size
        if not 0 <= start <= stop <= size:
            raise ShapeError(f"DimMap: the range {start}:{stop} leaves the destination 0:{size}.")
        low = max(bisect_right(segments, start, key=_start), 1) - 1
        high = bisect_left(segments, stop, key=_start)
        for first, length, source, step in segments[low:high]:
            skip = max(start - first, 0)
            length = min(first + length, stop) - first - skip
            if length > 0:
                yield first + skip - start, length, source + step * skip, step

    def restrict(self, start: int, stop: int) -> DimMap:
        """Return the map of destination positions ``start .. stop - 1``, counted from 0.

        >>> DimMap.roll(5, 2).restrict(1, 4).positions().tolist()
        [4, 0, 1]
        """
        return self._of(stop - start, self.source_size, *self._clip(start, stop))

    def runs(self, start: int, stop: int, cuts: Sequence[int]) -> list[Run]:
        """Return the copies that make destination ``start .. stop`` from a source cut at ``cuts``.

        Each run is the longest part of one segment that reads one shard; shards without
        elements (repeated cuts) are never read. Sorted by destination; fills are left out.

        >>> for run in DimMap.slice(10, 1, None, 2).runs(1, 5, (0, 4, 4, 10)):
        ...     print(*run)
        0 1 0 3 1
        1 3 2 1 2
        """
        if len(cuts) < 2 or cuts[0] != 0 or cuts[-1] != self.source_size:
            given = tuple(cuts)
            raise ShapeError(f"DimMap: cuts {given} do not span the source 0:{self.source_size}.")
        out: list[Run] = []
        for first, length, source, step in self._clip(start, stop):
            # As many elements as read one shard make a run; the next element is in another one.
            k = 0
            while k < length:
                at = source + step * k
                piece = bisect_right(cuts, at) - 1
                low = cuts[piece]
                many = _stay(at, step, low, cuts[piece + 1], length - k)
                out.append(Run(first + k, many, piece, at - low, step if many > 1 else 1))
                k += many
        return out

    def image_cuts(self, cuts: Sequence[int]) -> tuple[int, ...] | None:
        """Return the destination's cuts by which each element stays in the shard that it reads.

        As many shards as ``cuts`` has; None if the shards read do not come in order. Fills at the
        low end go to the first shard, at the high end to the last, between two to the nearer
        one; a map that reads nothing is spread evenly.

        >>> DimMap.slice(10, 5, 10).image_cuts((0, 3, 7, 10))
        (0, 0, 2, 5)
        >>> DimMap.pad(10, 2, 1).image_cuts((0, 3, 7, 10)), DimMap.flip(10).image_cuts((0, 5, 10))
        ((0, 5, 9, 13), None)
        """
        shards = len(cuts) - 1
        runs = self.runs(0, self.size, cuts)
        if not runs:
            return tuple([self.size * i // shards for i in range(shards + 1)])
        out = [0]
        end = runs[0].destination
        # `out` holds the cuts before shard len(out) - 1. A run of a later shard closes all shards
        # before it, in the middle of the fills since the last run.
        for at, length, piece, _, _ in runs:
            if piece < len(out) - 1:
                return None
            out += [(end + at + 1) // 2] * (piece - len(out) + 1)
            end = at + length
        return (*out, *[end] * (shards - len(out)), self.size)

    def __hash__(self) -> int:
        return self._hash
