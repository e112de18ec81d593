"""What PyTorch's placements mean: which parts of a tensor each rank of a mesh holds, in order.

In: a shape, a mesh of ranks, and for each dim of the tensor the mesh dims that cut it, in order.
Out: for each rank its *runs* along each dim: the intervals of the whole tensor that its local
tensor holds, one after the other. ``Shard`` gives one run, cut by the rule of `torch.chunk`;
``_StridedShard`` deals the parts of a tensor that is cut in another order, which are one run again
once that order is complete. All of it is pure: no tensor is needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise, permutations, product
from typing import TYPE_CHECKING, final

import numpy as np

from meshard.algebra.abstract import Sharding
from meshard.algebra.box import Box
from meshard.algebra.device import Device
from meshard.algebra.layout import Layout, layout_of_boxes
from meshard.algebra.mesh import Mesh
from meshard.algebra.sharding import BoxSharding, NamedSharding
from meshard.algebra.spec import PartitionSpec
from meshard.runtime.lines.letters import sent

if TYPE_CHECKING:
    from numpy.typing import NDArray

Interval = tuple[int, int]
Runs = tuple[Interval, ...]
Step = tuple[int, int]
"""A mesh dim that cuts, and into how many parts the dim counts as cut before: 1 for ``Shard``."""


def chunks(size: int, count: int) -> list[Interval]:
    """Return the parts of `torch.chunk`, followed by empty ones.

    >>> chunks(5, 4)
    [(0, 2), (2, 4), (4, 5), (5, 5)]
    """
    step = -(-size // count)
    return [(min(i * step, size), min((i + 1) * step, size)) for i in range(count)]


def _part(runs: Runs, factor: int, count: int, place: int) -> Runs:
    """Return what a mesh dim leaves of some runs at one of its places."""
    total = sum([b - a for a, b in runs])
    found: list[Interval] = []
    for start, stop in chunks(total, factor):
        low, high = chunks(stop - start, count)[place]
        at = 0
        for a, b in runs:
            first, last = max(start + low, at), min(start + high, at + b - a)
            if first < last:
                here = (a + first - at, a + last - at)
                if found and found[-1][1] == here[0]:
                    here = (found.pop()[0], here[1])
                found.append(here)
            at += b - a
    return tuple(found)


@sent
@final
@dataclass(frozen=True)
class Placed:
    """How a tensor is laid out on a mesh of ranks.

    Attributes:
        shape: the tensor's shape.
        ranks: the mesh's ranks in C order.
        sizes: the shape of the mesh.
        names: the names of its dims.
        steps: for each dim of the tensor the mesh dims that cut it, in the order in which they do.
        text: the placements as PyTorch writes them.

    >>> rows = Placed((5,), (0, 1), (2,), ("dp",), (((0, 1),),), "(Shard(dim=0),)")
    >>> rows.runs(1), rows.layout.cuts
    ((((3, 5),),), ((0, 3, 5),))
    """

    shape: tuple[int, ...]
    ranks: tuple[int, ...]
    sizes: tuple[int, ...]
    names: tuple[str, ...]
    steps: tuple[tuple[Step, ...], ...]
    text: str

    @cached_property
    def _place_of(self) -> dict[int, tuple[int, ...]]:
        places = product(*[range(n) for n in self.sizes])
        return dict(zip(self.ranks, places, strict=True))

    def __contains__(self, rank: int) -> bool:
        return rank in self._place_of

    def runs(self, rank: int) -> tuple[Runs, ...]:
        """Return for each dim what a rank of the mesh holds."""
        place = self._place_of[rank]
        return tuple([self._runs(dim, place) for dim in range(len(self.shape))])

    def _runs(self, dim: int, place: tuple[int, ...]) -> Runs:
        return _dim_runs(
            self.shape[dim],
            tuple([(factor, self.sizes[m], place[m]) for m, factor in self.steps[dim]]),
        )

    def local_shape(self, rank: int) -> tuple[int, ...]:
        """Return the shape of a rank's local tensor."""
        return tuple([sum([b - a for a, b in runs]) for runs in self.runs(rank)])

    def dim_runs(self, dim: int) -> Iterator[Runs]:
        """Yield the runs along one dim that occur."""
        cutting = [m for m, _ in self.steps[dim]]
        for some in product(*[range(self.sizes[m]) for m in cutting]):
            place = [0] * len(self.sizes)
            for m, i in zip(cutting, some, strict=True):
                place[m] = i
            yield self._runs(dim, tuple(place))

    @cached_property
    def single(self) -> bool:
        """Whether each rank holds one box."""
        return all(len(r) < 2 for dim in range(len(self.shape)) for r in self.dim_runs(dim))

    def box(self, rank: int) -> Box:
        """Return the box of a rank, if there is a single one."""
        starts, stops = [], []
        for runs, size in zip(self.runs(rank), self.shape, strict=True):
            a, b = runs[0] if runs else (size, size)
            starts.append(a)
            stops.append(b)
        return Box(tuple(starts), tuple(stops))

    # as a sharding

    def sharding(self, device_of: Callable[[int], Device]) -> Sharding:
        """Return the sharding on the devices of the ranks, if each rank holds one box.

        It is a mesh and a spec, with cut points where PyTorch's rule is not the even one; if a dim
        is cut in an order that no spec can say, it is a list of boxes.
        """
        found = self._spec()
        if found is None:
            return BoxSharding(self.shape, {device_of(r): self.box(r) for r in self.ranks})
        spec, uneven = found
        grid = np.empty(len(self.ranks), object)
        grid[:] = [device_of(r) for r in self.ranks]
        mesh = Mesh(grid.reshape(self.sizes), self.names)
        return NamedSharding(mesh, spec, uneven=uneven)

    def _spec(self) -> tuple[PartitionSpec, tuple[tuple[int, ...] | None, ...] | None] | None:
        entries, cuts = [], []
        for dim, size in enumerate(self.shape):
            found = self._cuts(dim)
            if found is None:
                return None
            order, points = found
            entries.append(tuple([self.names[m] for m in order]) or None)
            even = len(points) < 2 or len({b - a for a, b in pairwise(points)}) == 1
            cuts.append(None if not order or (even and size) else points)
        return PartitionSpec(*entries), tuple(cuts) if any(cuts) else None

    def _cuts(self, dim: int) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Return an order of the mesh dims in which the parts of a dim rise, and its cut points."""
        cutting = [m for m, _ in self.steps[dim]]
        for order in (tuple(cutting), *permutations(cutting)):
            parts = []
            for some in product(*[range(self.sizes[m]) for m in order]):
                place = [0] * len(self.sizes)
                for m, i in zip(order, some, strict=True):
                    place[m] = i
                parts.append(self._runs(dim, tuple(place)))
            points = _rising(parts, self.shape[dim])
            if points is not None:
                return order, points
        return None

    @cached_property
    def layout(self) -> Layout:
        """The layout on devices that are the ranks, if each rank holds one box."""
        return self.sharding(rank_device).layout(self.shape)


@lru_cache(maxsize=1 << 14)
def _dim_runs(size: int, steps: tuple[tuple[int, int, int], ...]) -> Runs:
    runs: Runs = ((0, size),) if size else ()
    for factor, count, place in steps:
        runs = _part(runs, factor, count, place)
    return runs


def _rising(parts: Sequence[Runs], size: int) -> tuple[int, ...] | None:
    """Return the cut points between parts of one run each that follow each other; None if not."""
    points = [0]
    for runs in parts:
        if len(runs) > 1 or (runs and runs[0][0] != points[-1]):
            return None
        points.append(runs[0][1] if runs else points[-1])
    return tuple(points) if points[-1] == size else None


@lru_cache(maxsize=1 << 16)
def rank_device(rank: int) -> Device:
    """Return the device that stands for a rank in plans."""
    return Device(rank, rank, "virtual")


# several runs


@final
@dataclass(frozen=True)
class Segment:
    """A box of a tensor of which each rank holds one box, before and after a move.

    Attributes:
        box: where it is in the whole tensor.
        before: the layout of this box, on devices that are the ranks.
        after: the layout to reach.
    """

    box: Box
    before: Layout
    after: Layout


@lru_cache(maxsize=1 << 12)
def segments(before: Placed, after: Placed) -> tuple[Segment, ...]:
    """Return the boxes into which a tensor is cut so that each rank holds one box of each."""
    whole = Box.whole(before.shape)
    if before.single and after.single:
        return (Segment(whole, before.layout, after.layout),)
    spans = [
        list(pairwise(_borders(size, [*before.dim_runs(dim), *after.dim_runs(dim)])))
        for dim, size in enumerate(before.shape)
    ]
    found = []
    for part in product(*spans):
        box = Box(tuple([a for a, _ in part]), tuple([b for _, b in part]))
        found.append(Segment(box, _within(before, box), _within(after, box)))
    return tuple(found)


def _borders(size: int, every: Sequence[Runs]) -> list[int]:
    """Return where a dim is cut so that no list of runs has two in one part."""
    borders = [0]
    while borders[-1] < size:
        at, stop = borders[-1], size
        for runs in every:
            later = [max(a, at) for a, b in runs if b > at]
            if len(later) > 1:
                stop = min(stop, later[1])
        borders.append(stop)
    return borders if size else [0, 0]


def _within(placed: Placed, box: Box) -> Layout:
    """Return the layout of a box of a tensor."""
    boxes = []
    for rank in placed.ranks:
        starts, stops = [], []
        for (a, b), (low, high) in zip(
            [one or (0, 0) for one in _meeting(placed, rank, box)],
            zip(box.starts, box.stops, strict=True),
            strict=True,
        ):
            starts.append(min(max(a, low), high) - low)
            stops.append(min(max(b, low), high) - low)
        boxes.append((rank, Box(tuple(starts), tuple(stops))))
    return layout_of_boxes(box.shape, boxes)


def _meeting(placed: Placed, rank: int, box: Box) -> list[Interval | None]:
    """Return for each dim the part of a rank's runs that is in a box."""
    found: list[Interval | None] = []
    for runs, low, high in zip(placed.runs(rank), box.starts, box.stops, strict=True):
        meets = [(max(a, low), min(b, high)) for a, b in runs if a < high and b > low]
        found.append(meets[0] if meets else None)
    return found


def local_index(placed: Placed, rank: int, box: Box) -> tuple[slice, ...]:
    """Return where a rank's part of a box is in its local tensor."""
    found = []
    for runs, low, high in zip(placed.runs(rank), box.starts, box.stops, strict=True):
        at, index = 0, slice(0, 0)
        for a, b in runs:
            first, last = max(a, low), min(b, high)
            if first < last:
                index = slice(at + first - a, at + last - a)
                break
            at += b - a
        found.append(index)
    return tuple(found)


def ranks_array(ranks: Sequence[int], sizes: Sequence[int]) -> NDArray[np.int64]:
    """Return the ranks of a mesh as an array of its shape."""
    assert len(ranks) == math.prod(sizes)
    return np.array(ranks, np.int64).reshape(tuple(sizes))
