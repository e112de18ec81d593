"""Layouts as maps of digits, from digits of a device's number to digits of a cell's place.

Number the devices from 0. If all tensors are transposed views of those numbers, a number and the
place of a cell along a dim are both written with prime digits, the most significant first, and a
layout says for each digit of each dim which digit of the device's number it is. Devices' digits
that no dim uses count replicas. An axis tuple is a sequence of digits. Sums over devices are
then products over digits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, final

import numpy as np

from meshard.algebra.layout import Layout

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


@final
@dataclass(frozen=True)
class MixedRadix:
    """An even layout on numbered devices.

    Attributes:
        shape: the array's shape.
        sizes: the digits of a device's number, the most significant first.
        dims: for each dim its digits, the most significant first, as places in ``sizes``; each
            place occurs at most once.

    >>> rows = MixedRadix((8, 8), (2, 2, 2), ((0, 1), ()))
    >>> rows.grid, rows.replicas
    ((4, 1), 2)
    """

    shape: tuple[int, ...]
    sizes: tuple[int, ...]
    dims: tuple[tuple[int, ...], ...]

    @property
    def grid(self) -> tuple[int, ...]:
        """The number of cells along each dim."""
        return tuple([math.prod(self.sizes[p] for p in places) for places in self.dims])

    @property
    def replicas(self) -> int:
        """How many devices hold each cell."""
        return math.prod(self.sizes) // math.prod(self.grid)

    def tensor(self, devices: Ints) -> Ints:
        """Return the device tensor, given the devices by number."""
        order = [p for places in self.dims for p in places]
        rest = [p for p in range(len(self.sizes)) if p not in order]
        spread = devices.reshape(self.sizes).transpose([*order, *rest])
        return np.ascontiguousarray(spread.reshape(*self.grid, self.replicas))


def closed_form_moved(source: MixedRadix, destination: MixedRadix) -> int:
    """Return the elements that enter devices that lack them, in time linear in the digits.

    A device keeps the elements that agree with its number in both maps. A digit of a dim that both
    maps use ties two places of the number, which must then be equal: each new tie leaves one in
    ``p`` devices. Each of those keeps the array divided by all digits that either map uses.

    >>> rows = MixedRadix((8, 8), (2, 2, 2), ((0, 1, 2), ()))
    >>> columns = MixedRadix((8, 8), (2, 2, 2), ((), (0, 1, 2)))
    >>> closed_form_moved(rows, columns)
    56
    """
    assert source.sizes == destination.sizes
    sizes = source.sizes
    devices, elements = math.prod(sizes), math.prod(source.shape)
    # Digits that must be equal are one tree each; `root` leads to its top. Rows and columns above,
    # on 8 devices: dim 0 has digits 0, 1, 2 for the rows and none for the columns, so that nothing
    # is tied, all 8 devices keep something, and each keeps 64 / 8 / 8 = 1 element.
    root = list(range(len(sizes)))

    def top(place: int) -> int:
        while root[place] != place:
            place = root[place]
        return place

    keepers, kept = devices, elements
    for mine, yours in zip(source.dims, destination.dims, strict=True):
        # The longer list cuts the dim finer, and its first digits are the other's, once tied.
        for place in mine if len(mine) > len(yours) else yours:
            kept //= sizes[place]
        for a, b in zip(mine, yours, strict=False):
            one, other = top(a), top(b)
            if one != other:
                root[one] = other
                keepers //= sizes[a]
    return elements * destination.replicas - keepers * kept


@final
@dataclass(frozen=True)
class _Stretch:
    """A stretch of a device's number that determines a stretch of the place along a dim.

    Attributes:
        stride: the number's place value of the stretch.
        count: how many values it has.
        dim: the dim; None for replicas.
        before: into how many parts the dim is cut by more significant digits.
    """

    stride: int
    count: int
    dim: int | None
    before: int


def mixed_radix_of(layouts: Sequence[Layout]) -> list[MixedRadix] | None:
    """Return layouts as maps of digits of one number, or None if they have no such form.

    Devices are numbered by the first layout's tensor, so that their ids do not matter.

    >>> from meshard.algebra.layout import even_cuts
    >>> ids = np.arange(4).reshape(2, 2)
    >>> a = Layout((4,), (even_cuts(4, 4),), ids.reshape(4, 1))
    >>> b = Layout((4,), (even_cuts(4, 4),), ids.T.reshape(4, 1))
    >>> [d.dims for d in mixed_radix_of([a, b])]
    [((0, 1),), ((1, 0),)]
    """
    first = layouts[0]
    stretches: list[list[_Stretch]] = []
    for layout in layouts:
        if not layout.regular or not layout.even or not math.prod(layout.shape):
            return None
        numbers = _numbers(first, layout)
        found = None if numbers is None else _stretches(numbers)
        if found is None:
            return None
        stretches.append(found)
    refined = _refined(stretches, first.tensor.size, first.ndim)
    if refined is None:
        return None
    strides, sizes = _places(refined)
    return [
        MixedRadix(first.shape, sizes, _dims(found, strides, sizes, first.ndim))
        for found in stretches
    ]


def _numbers(first: Layout, layout: Layout) -> Ints | None:
    """Return a layout's tensor with numbers for devices, if both have the same devices."""
    if layout is first:
        return np.arange(first.tensor.size).reshape(first.tensor.shape)
    flat = first.tensor.reshape(-1)
    if layout.tensor.size != len(flat) or min(int(flat.min()), int(layout.tensor.min())) < 0:
        return None
    most = int(flat.max())
    if int(layout.tensor.max()) != most:
        return None
    if most < 8 * len(flat):
        number = np.full(most + 1, -1, np.int64)
        number[flat] = np.arange(len(flat))
        found: Ints = number[layout.tensor]
    else:
        order = np.argsort(flat, kind="stable")
        found = order[np.searchsorted(flat, layout.tensor, sorter=order)]
        found = np.where(flat[found] == layout.tensor, found, -1)
    return found if found.min() >= 0 else None


def _stretches(numbers: Ints) -> list[_Stretch] | None:
    """Return the stretches along which numbers grow evenly, if numbers are a sum of those.

    Along one dim of a layout on axes ``(x, z)`` of an ``x y z = 2 2 2`` mesh the numbers are 0, 1,
    4, 5: a stretch of two with the place value 1, twice, and of those a stretch with 4.

    >>> [
    ...     (s.stride, s.count, s.before)
    ...     for s in _stretches(np.array([[0, 2], [1, 3], [4, 6], [5, 7]]))
    ... ]
    [(1, 2, 2), (4, 2, 1), (2, 2, 1)]
    """
    if numbers.reshape(-1)[0]:
        return None
    found = []
    total = np.zeros((1,) * numbers.ndim, np.int64)
    for axis in range(numbers.ndim):
        # The numbers along this axis, at the beginning of all others. That the others only add to
        # them is what the last line looks at.
        place = tuple(slice(None) if i == axis else 0 for i in range(numbers.ndim))
        line = numbers[place]
        shape = [1] * numbers.ndim
        shape[axis] = len(line)
        total = total + line.reshape(shape)
        rest = line
        while len(rest) > 1:
            stride = int(rest[1])
            uneven = np.flatnonzero(rest != stride * np.arange(len(rest)))
            count = int(uneven[0]) if len(uneven) else len(rest)
            if len(rest) % count:
                return None
            before = len(rest) // count
            dim = axis if axis < numbers.ndim - 1 else None
            found.append(_Stretch(stride, count, dim, before))
            tail = rest.reshape(before, count)
            rest = tail[:, 0]
            if (tail - rest[:, None] != stride * np.arange(count)).any():
                return None
    return found if (total == numbers).all() else None


def _refined(stretches: list[list[_Stretch]], devices: int, rank: int) -> list[int] | None:
    """Return the place values at which digits begin, fine enough that every map is one of digits.

    None if they contradict each other, as 6 = 2 x 3 and 6 = 3 x 2 do.
    """
    # A digit that begins inside of a stretch cuts it in two, of the number and of the dim: where
    # one layout has a stretch of 4 at place value 1 that cuts its dim into 4, and another has one
    # that begins at place value 2, the first becomes two digits, and its dim is cut into 2 and 4.
    # What cuts a dim may cut stretches of the other layouts in turn, so this goes on until no
    # stretch is cut any more.
    strides = {1, devices}
    parts: list[set[int]] = [{1} for _ in range(rank)]
    for s in (s for found in stretches for s in found):
        strides |= {s.stride, s.stride * s.count}
        if s.dim is not None:
            parts[s.dim] |= {s.before, s.before * s.count}
    known = 0
    while known < len(strides) + sum(map(len, parts)):
        known = len(strides) + sum(map(len, parts))
        for s in (s for found in stretches for s in found):
            if s.dim is not None and not _cut_at_once(s, strides, parts[s.dim]):
                return None
    chains = [sorted(strides), *map(sorted, parts)]
    if any(b % a for chain in chains for a, b in pairwise(chain)):
        return None
    return chains[0]


def _cut_at_once(stretch: _Stretch, strides: set[int], parts: set[int]) -> bool:
    """Cut the dim where a stretch of the number is cut, and the number where the dim is cut.

    Returns:
        Whether the stretch can be cut there: its parts must be equal.
    """
    low, high = stretch.stride, stretch.stride * stretch.count
    coarse, fine = stretch.before, stretch.before * stretch.count
    for x in sorted(strides):
        if low < x < high:
            if x % low or high % x:
                return False
            parts.add(fine // (x // low))
    for y in sorted(parts):
        if coarse < y < fine:
            if y % coarse or fine % y:
                return False
            strides.add(low * (fine // y))
    return True


def _places(refined: list[int]) -> tuple[list[int], tuple[int, ...]]:
    """Return the place values and the sizes of all prime digits, the most significant first."""
    strides, sizes = [], []
    for a, b in pairwise(refined):
        for p in reversed(prime_factors(b // a)):
            strides.append(a)
            sizes.append(p)
            a *= p
    return strides[::-1], tuple(sizes[::-1])


def _dims(
    stretches: list[_Stretch], strides: list[int], sizes: tuple[int, ...], rank: int
) -> tuple[tuple[int, ...], ...]:
    """Return for each dim the places of its digits."""
    dims: list[list[tuple[int, list[int]]]] = [[] for _ in range(rank)]
    for s in stretches:
        if s.dim is not None:
            inside = [i for i, x in enumerate(strides) if s.stride <= x < s.stride * s.count]
            dims[s.dim].append((s.before, inside))
    return tuple([tuple([p for _, inside in sorted(d) for p in inside]) for d in dims])


def prime_factors(number: int) -> list[int]:
    """Return the prime factors of a positive number, ascending.

    >>> prime_factors(60), prime_factors(1)
    ([2, 2, 3, 5], [])
    """
    found, p = [], 2
    while p * p <= number:
        while number % p == 0:
            found.append(p)
            number //= p
        p += 1
    return [*found, number] if number > 1 else found
