"""Slabs: boxes of bounded size, cut so that what a file holds side by side stays together.

In: a recipe, a box of its result, and how many bytes a slab may have. Out: boxes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from meshard.algebra.box import Box
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


def slabs_of(box: Box, order: Sequence[int], most: int) -> Iterator[Box]:
    """Yield boxes of at most that many elements, cut along the dims in the order given.

    >>> [str(b) for b in slabs_of(Box((0, 0), (4, 3)), (0, 1), 6)]
    ['[0:2, 0:3]', '[2:4, 0:3]']
    """
    if box.volume <= most or not order:
        yield box
        return
    dim, rest = order[0], order[1:]
    start, stop = box.starts[dim], box.stops[dim]
    row = box.volume // (stop - start)
    step = max(1, most // row)
    for a in range(start, stop, step):
        b = min(a + step, stop)
        part = Box(_at(box.starts, dim, a), _at(box.stops, dim, b))
        if row > most:
            yield from slabs_of(part, rest, most)
        else:
            yield part


def _at(index: tuple[int, ...], dim: int, value: int) -> tuple[int, ...]:
    return (*index[:dim], value, *index[dim + 1 :])
