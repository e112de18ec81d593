"""Slabs: boxes of bounded size, cut so that what a file holds side by side stays together.

In: a recipe, a box of its result, and how many bytes a slab may have. Out: boxes.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence

from meshard.algebra.box import Box
from meshard.weights.catalogue.stored import Stored
from meshard.weights.maps.recipe import Recipe


def dim_order(recipe: Recipe, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """Return the result's dims, those along which its sources lie furthest apart first.

    >>> from meshard.weights.maps.recipe import Stride, Term
    >>> import numpy as np
    >>> turned = (Stride(3, 1, 1, 0, 1), Stride(2, 0, 1, 1, 1))
    >>> recipe = Recipe((3, 2), np.dtype("f4"), (Term("w", turned, (0, 0), (0, 0)),))
    >>> dim_order(recipe, {"w": (2, 3)})
    (1, 0)
    """
    steps = [0] * len(recipe.shape)
    term = max(recipe.terms, key=lambda t: t.volume, default=None)
    if term is None:
        return tuple(range(len(steps)))
    shape = shapes[term.source]
    for s in term.strides:
        if s.source is not None:
            far = s.source_step * math.prod(shape[s.source + 1 :])
            steps[s.target] = max(steps[s.target], far)
    return tuple(sorted(range(len(steps)), key=lambda d: (-steps[d], d)))


def marks_of(recipe: Recipe, tensors: Mapping[str, Stored]) -> tuple[list[int], ...]:
    """Return where the pieces of a recipe's source begin along each dim; nothing unless it is one.

    Slabs that end there hold whole pieces, whose checksums are then looked at.
    """
    if not recipe.is_identity:
        return ()
    boxes = [p.box for p in tensors[recipe.sources[0]].pieces]
    return tuple([sorted({0, *column}) for column in zip(*[b.starts for b in boxes], strict=True)])


def slabs_of(
    box: Box, order: Sequence[int], most: int, marks: Sequence[Sequence[int]] = ()
) -> Iterator[Box]:
    """Yield boxes of at most that many elements, cut along the dims in the order given.

    Args:
        box: what is cut.
        order: the dims.
        most: elements of a box; it has one at least.
        marks: for each dim, in ascending order, where it had best be cut: where what has one
            checksum begins.

    >>> [str(b) for b in slabs_of(Box((0,), (9,)), (0,), 4, [[0, 3, 6]])]
    ['[0:3]', '[3:6]', '[6:9]']
    >>> [str(b) for b in slabs_of(Box((0, 0), (4, 3)), (0, 1), 6)]
    ['[0:2, 0:3]', '[2:4, 0:3]']
    """
    if box.volume <= most or not order:
        yield box
        return
    dim, rest = order[0], order[1:]
    start, stop = box.starts[dim], box.stops[dim]
    row = box.volume // (stop - start)
    step, a = max(1, most // row), start
    while a < stop:
        b = min(a + step, stop)
        if marks and b < stop:
            mark = marks[dim][max(bisect_right(marks[dim], b) - 1, 0)]
            b = mark if mark > a else b
        part = Box(_at(box.starts, dim, a), _at(box.stops, dim, b))
        if row > most:
            yield from slabs_of(part, rest, most, marks)
        else:
            yield part
        a = b


def _at(index: tuple[int, ...], dim: int, value: int) -> tuple[int, ...]:
    return (*index[:dim], value, *index[dim + 1 :])
