"""Layouts: how one array of a given shape is laid out on devices.

In the product form a layout is, for each dim, the tuple of cut points, and a *device tensor*
``T[shard of dim 0, ..., shard of the last dim, replica]`` of device ids. Device order is data in
``T``, unevenness is data in the cuts, replication is the last axis of ``T``. Whatever a layout is
asked (index maps, replica numbers, overlaps, bytes) follows from these two by arithmetic per dim.

A layout that has no product form (`Layout.regular` is false) lists its boxes and their holders.
Both kinds answer by *piece*: a distinct box together with the devices that hold it; the pieces of
the product form are the cells of its grid in C order.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any, final

import numpy as np

from meshard.algebra.box import Box
from meshard.algebra.pictured import HasDrawing
from meshard.errors import CoverageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

Cuts = tuple[int, ...]
_MANY = 256
"""Parts of a dim from which its cut points are an array: tuples of so many take milliseconds."""
_LARGEST = 1 << 62
"""Elements of a dim from which its cut points are counted in Python's integers."""
_SAMPLE = 128
"""Devices of a layout that its hash looks at."""


def even_cuts(size: int, shards: int) -> Cuts:
    """Return the cut points of ``size`` in ``shards`` equal parts; the caller knows it divides."""
    step = size // shards
    return tuple(range(0, size + 1, step)) if step else (0,) * (shards + 1)


def balanced_cuts(size: int, shards: int) -> Cuts:
    """Return cut points whose parts differ by at most one, the longer ones first.

    >>> balanced_cuts(10, 4)
    (0, 3, 6, 8, 10)
    """
    low, more = divmod(size, shards)
    return tuple([i * low + min(i, more) for i in range(shards + 1)])


def ceil_cuts(size: int, shards: int) -> Cuts:
    """Return cut points of tiles as long as the longest must be, with a short or empty tail.

    >>> ceil_cuts(10, 4)
    (0, 3, 6, 9, 10)
    """
    step = -(-size // shards)
    return tuple([min(i * step, size) for i in range(shards + 1)])


def cut_points(rule: Callable[[int, int], Cuts], size: int, shards: int) -> Cuts | Ints:
    """Return the cut points of one of the rules above, as an array where there are many.

    >>> cut_points(ceil_cuts, 10, 4), cut_points(ceil_cuts, 1500, 1000)[-3:]
    ((0, 3, 6, 9, 10), array([1500, 1500, 1500]))
    """
    if shards < _MANY or size >= _LARGEST:
        return rule(size, shards)
    place = np.arange(shards + 1, dtype=np.int64)
    if rule is ceil_cuts:
        return np.minimum(place * -(-size // shards), size)
    low, more = divmod(size, shards)
    found: Ints = place * low + np.minimum(place, more)
    return found


@final
class Layout(HasDrawing):
    """How an array of ``shape`` is laid out on devices.

    Args:
        shape: the array's shape.
        cuts: for each dim its cut points, from 0 to the dim's size, not descending.
        tensor: int64 array of device ids, ``[shard..., replica]``, for the product form.
        boxes: the distinct boxes, where there is no product form.
        box_holders: for each of ``boxes`` the ids of its devices.

    >>> layout = Layout((4, 6), ((0, 2, 4), (0, 6)), np.array([[[0, 1]], [[2, 3]]]))
    >>> layout.piece_count, layout.box(1), layout.holders(1)
    (2, Box(starts=(2, 0), stops=(4, 6)), (2, 3))
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        cuts: tuple[Cuts | Ints, ...],
        tensor: Ints | None,
        *,
        boxes: tuple[Box, ...] | None = None,
        box_holders: tuple[tuple[int, ...], ...] | None = None,
    ) -> None:
        self.shape = shape
        self._cuts = tuple(
            [c if isinstance(c, tuple) or len(c) > _MANY else listed_cuts(c) for c in cuts]
        )
        self.regular: bool = tensor is not None
        self._boxes = boxes
        self._box_holders = box_holders
        if tensor is None:
            assert boxes is not None
            assert box_holders is not None
            self.tensor: Ints = np.empty(0, np.int64)
            self.grid: tuple[int, ...] = (len(boxes),)
            self._hash = hash((shape, boxes, box_holders))
        else:
            self.tensor = tensor
            self.grid = tensor.shape[:-1]
            some = tensor if tensor.size <= _SAMPLE else _sampled(tensor)
            short = tuple([c for c in self._cuts if len(c) <= _MANY])
            self._hash = hash((shape, short, self.grid, some.tobytes()))

    @cached_property
    def cuts(self) -> tuple[Cuts, ...]:
        """For each dim its cut points, from 0 to the dim's size, not descending."""
        return tuple([listed_cuts(c) for c in self._cuts])

    @cached_property
    def points(self) -> tuple[Ints, ...]:
        """The cut points of each dim as arrays."""
        return tuple([np.asarray(c, np.int64) for c in self._cuts])

    @cached_property
    def lengths(self) -> tuple[Ints, ...]:
        """For each dim the lengths of its parts."""
        return tuple([np.diff(c) for c in self.points])

    @cached_property
    def _key(self) -> tuple[object, ...]:
        if self._boxes is not None:
            return self.shape, self._boxes, self._box_holders
        return self.shape, self.cuts, self.grid, self.tensor.tobytes()

    @property
    def ndim(self) -> int:
        """The array's rank."""
        return len(self.shape)

    @cached_property
    def piece_count(self) -> int:
        """The number of distinct boxes, those without elements included."""
        return math.prod(self.grid)

    @cached_property
    def replicas(self) -> int:
        """How many devices hold each piece; the greatest number, where that differs."""
        if self._box_holders is None:
            return int(self.tensor.shape[-1])
        return max(map(len, self._box_holders))

    def coordinate(self, piece: int) -> tuple[int, ...]:
        """Return the position in the grid of one piece of the product form."""
        place = []
        for n in reversed(self.grid):
            piece, i = divmod(piece, n)
            place.append(i)
        return tuple(reversed(place))

    def piece_at(self, coordinate: Sequence[int]) -> int:
        """Return the number of the piece at a position in the grid."""
        piece = 0
        for i, n in zip(coordinate, self.grid, strict=True):
            piece = piece * n + i
        return piece

    def box(self, piece: int) -> Box:
        """Return the region of one piece."""
        if self._boxes is not None:
            return self._boxes[piece]
        if self.piece_count <= _MANY:
            return self.boxes[piece]
        place = self.coordinate(piece)
        return Box(
            tuple([c[i] for c, i in zip(self.cuts, place, strict=True)]),
            tuple([c[i + 1] for c, i in zip(self.cuts, place, strict=True)]),
        )

    @cached_property
    def boxes(self) -> tuple[Box, ...]:
        """The regions of all pieces."""
        if self._boxes is not None:
            return self._boxes
        # The pieces in C order are the product of the cuts of each dim.
        starts, stops = [c[:-1] for c in self.cuts], [c[1:] for c in self.cuts]
        pairs = zip(product(*starts), product(*stops), strict=True)
        return tuple(map(partial(tuple.__new__, Box), pairs))  # what Box(...) does, without Python

    @cached_property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of all pieces."""
        if self._boxes is not None:
            return tuple([b.shape for b in self._boxes])
        return tuple(product(*[[b - a for a, b in pairwise(c)] for c in self.cuts]))

    def by_piece(self, array: NDArray[Any]) -> NDArray[Any] | None:
        """Return a view of an array of this shape by piece: the dims of the grid come first.

        None if the pieces differ in shape.

        >>> layout = Layout((4, 6), ((0, 2, 4), (0, 6)), np.array([[[0]], [[1]]]))
        >>> view = layout.by_piece(np.arange(24).reshape(4, 6))
        >>> view.shape, view[1, 0].ravel().tolist() == list(range(12, 24))
        ((2, 1, 2, 6), True)
        """
        if not self.regular or len(set(self.shapes)) != 1:
            return None
        sizes = [n for pair in zip(self.grid, self.shapes[0], strict=True) for n in pair]
        rank = 2 * self.ndim
        return array.reshape(sizes).transpose(*range(0, rank, 2), *range(1, rank, 2))

    def holders(self, piece: int) -> tuple[int, ...]:
        """Return the ids of the devices that hold one piece, in replica order."""
        if self._box_holders is not None:
            return self._box_holders[piece]
        return tuple(self.tensor.reshape(-1, self.tensor.shape[-1])[piece].tolist())

    @cached_property
    def piece_of(self) -> dict[int, int]:
        """The piece that each device holds."""
        if self._box_holders is not None:
            return {d: i for i, ids in enumerate(self._box_holders) for d in ids}
        pieces = np.repeat(np.arange(self.piece_count), self.replicas)
        return dict(zip(self.tensor.reshape(-1).tolist(), pieces.tolist(), strict=True))

    @cached_property
    def device_ids(self) -> frozenset[int]:
        """The ids of all devices."""
        if self._box_holders is not None:
            return frozenset(self.piece_of)
        return frozenset(self.tensor.reshape(-1).tolist())

    @cached_property
    def slots(self) -> tuple[Ints, Ints] | None:
        """All device ids, ascending, and the place of each in the flat device tensor.

        None if there is no product form, or an id is missing or there twice.
        """
        flat = self.tensor.reshape(-1)
        if not self.regular or (len(flat) and int(flat.min()) < 0):
            return None
        if len(flat) and int(flat.max()) < 4 * len(flat):
            place = np.full(int(flat.max()) + 1, -1, np.int64)
            every = _first(len(flat))
            place[flat] = every
            if len(place) == len(flat):
                return (every, place) if int(place.min()) >= 0 else None
            order = place[place >= 0]
        else:
            order = np.argsort(flat, kind="stable")
        ids = flat[order]
        once = len(order) == len(flat) and bool((ids[1:] > ids[:-1]).all())
        return (ids, order) if once else None

    def boxes_of(self, some: slice) -> list[tuple[Ints, Ints]]:
        """Return for each dim where the boxes of some devices start and stop.

        Devices are counted in ascending order, as in `slots`, which must not be None. Where a dim
        is whole on every device, its start and stop are single numbers.
        """
        assert self.slots is not None
        place = self.slots[1][some]
        cell = place // self.replicas if self.replicas > 1 else place
        found = []
        for dim in reversed(range(self.ndim)):
            points, count = self.points[dim], self.grid[dim]
            if count == 1:
                found.append((points[:1], points[1:]))
                continue
            outer = cell // count
            at = cell - outer * count
            found.append((points[at], points[at + 1]))
            cell = outer
        return found[::-1]

    @property
    def device_count(self) -> int:
        """The number of devices."""
        return len(self.device_ids) if self.slots is None else len(self.slots[0])

    @cached_property
    def even(self) -> bool:
        """Whether all pieces have one shape."""
        if self._boxes is not None:
            return len({b.shape for b in self._boxes}) == 1
        return all(_longest(c) == _shortest(c) for c in self._cuts)

    @cached_property
    def replicated(self) -> bool:
        """Whether every device holds the whole array."""
        return self.piece_count == 1

    @cached_property
    def largest_piece(self) -> tuple[int, ...]:
        """The shape that holds any piece: along each dim the longest."""
        if self._boxes is not None:
            return tuple(map(max, zip(*(b.shape for b in self._boxes), strict=True)))
        return tuple([_longest(c) for c in self._cuts])

    def dim_range(self, dim: int, start: int, stop: int) -> range:
        """Return the shards of ``dim`` that overlap ``[start, stop)``, by binary search."""
        cuts = self.cuts[dim]
        if start >= stop:
            return range(0)
        return range(bisect_right(cuts, start) - 1, bisect_left(cuts, stop))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Layout):
            return NotImplemented
        return self._hash == other._hash and self._key == other._key

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[object, ...]:
        # Made anew, since another process hashes the same bytes to another number.
        tensor = self.tensor if self.regular else None
        return _layout, (self.shape, self._cuts, tensor, self._boxes, self._box_holders)

    def __repr__(self) -> str:
        kind = f"grid={self.grid}, replicas={self.replicas}" if self.regular else "irregular"
        return f"Layout(shape={self.shape}, {kind})"


@lru_cache(maxsize=8)
def _first(count: int) -> Ints:
    """Return the numbers below another: the ids of all devices, for all layouts on them."""
    found = np.arange(count)
    found.flags.writeable = False
    return found


def listed_cuts(cuts: Cuts | Ints) -> Cuts:
    """Return cut points as a tuple."""
    return tuple(cuts.tolist()) if isinstance(cuts, np.ndarray) else cuts


def _longest(cuts: Cuts | Ints) -> int:
    """Return the length of the longest part of a dim."""
    if isinstance(cuts, np.ndarray):
        return int(np.diff(cuts).max())
    return max([b - a for a, b in pairwise(cuts)])


def _shortest(cuts: Cuts | Ints) -> int:
    """Return the length of the shortest part of a dim."""
    if isinstance(cuts, np.ndarray):
        return int(np.diff(cuts).min())
    return min([b - a for a, b in pairwise(cuts)])


def _sampled(tensor: Ints) -> Ints:
    """Return some elements of a tensor, evenly spread, for its hash."""
    flat = tensor.reshape(-1)
    return flat[:: len(flat) // _SAMPLE]


def _layout(
    shape: tuple[int, ...],
    cuts: tuple[Cuts | Ints, ...],
    tensor: NDArray[np.int64] | None,
    boxes: tuple[Box, ...] | None,
    box_holders: tuple[tuple[int, ...], ...] | None,
) -> Layout:
    return Layout(shape, cuts, tensor, boxes=boxes, box_holders=box_holders)


def layout_of_boxes(shape: tuple[int, ...], boxes: Sequence[tuple[int, Box]]) -> Layout:
    """Return the layout in which each device holds its box.

    Args:
        shape: the array's shape.
        boxes: pairs of device id and box, in device order.

    The product form is found where there is one.

    Raises:
        CoverageError: if the boxes leave a part of the array on no device.
    """
    holders: dict[Box, list[int]] = {}
    for device, box in boxes:
        holders.setdefault(box, []).append(device)
    # An empty box says nothing about where the array is cut.
    full = [b for b in holders if b.volume]
    cuts = _cuts_at_boxes(shape, full)
    spans = {box: _span(cuts, box) for box in full}
    _check_covered(shape, cuts, list(spans.values()))
    tensor = _tensor_of_boxes(shape, cuts, spans, holders)
    if tensor is not None:
        return Layout(shape, cuts, tensor)
    return Layout(
        shape, cuts, None, boxes=tuple(holders), box_holders=tuple(map(tuple, holders.values()))
    )


# The boxes of a layout cut the array into a grid: along each dim at every place where a box starts
# or stops. Each box is then a run of cells along each dim, its span.

_Span = tuple[slice, ...]


def _cuts_at_boxes(shape: tuple[int, ...], boxes: Sequence[Box]) -> tuple[Cuts, ...]:
    """Return for each dim where boxes start or stop, its ends included."""
    cuts = []
    for dim, size in enumerate(shape):
        found = {0, size, *(b.starts[dim] for b in boxes), *(b.stops[dim] for b in boxes)}
        cuts.append(tuple(sorted(found)) if size else (0, 0))
    return tuple(cuts)


def _span(cuts: tuple[Cuts, ...], box: Box) -> _Span:
    """Return the cells of the grid that a box is made of."""
    return tuple(
        slice(bisect_left(c, a), bisect_left(c, b))
        for c, a, b in zip(cuts, box.starts, box.stops, strict=True)
    )


def _check_covered(shape: tuple[int, ...], cuts: tuple[Cuts, ...], spans: Sequence[_Span]) -> None:
    """Refuse spans that leave a cell out, where the array has elements."""
    covered = np.zeros([len(c) - 1 for c in cuts], bool)
    for span in spans:
        covered[span] = True
    if covered.all() or not math.prod(shape):
        return
    first = tuple(int(i) for i in np.argwhere(~covered)[0])
    gap = Box(
        tuple(c[i] for c, i in zip(cuts, first, strict=True)),
        tuple(c[i + 1] for c, i in zip(cuts, first, strict=True)),
    )
    raise CoverageError(
        f"The boxes leave a gap: no device holds {gap} of an array of shape {shape}. "
        "Together the boxes must hold every element."
    )


def _tensor_of_boxes(
    shape: tuple[int, ...],
    cuts: tuple[Cuts, ...],
    spans: Mapping[Box, _Span],
    holders: Mapping[Box, Sequence[int]],
) -> NDArray[np.int64] | None:
    """Return the device tensor, if each box is one cell and as many devices hold each of them.

    Distinct boxes of one cell never overlap, so that they are all cells when there are as many.
    """
    grid = tuple(len(c) - 1 for c in cuts)
    if list(holders) == [Box.whole(shape)]:  # replicas; the array may have no elements
        (ids,) = holders.values()
        return np.array(ids, np.int64).reshape(*grid, len(ids))
    counts = {len(ids) for ids in holders.values()}
    single = all(s.stop - s.start == 1 for span in spans.values() for s in span)
    if not single or len(counts) != 1 or not len(spans) == len(holders) == math.prod(grid):
        return None
    tensor = np.empty((*grid, *counts), np.int64)
    for box, span in spans.items():
        tensor[tuple(s.start for s in span)] = holders[box]
    return tensor
