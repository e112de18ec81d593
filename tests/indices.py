"""Indices that NumPy takes, drawn for a shape: basic ones, and those with arrays and masks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st


def slices(size: int, step: int = 4) -> st.SearchStrategy[slice]:
    """Draw slices, also with large and negative ends and steps."""
    ends = st.none() | st.integers(-size - 2, size + 2)
    return st.builds(slice, ends, ends, st.none() | st.integers(-step, step).filter(bool))


@st.composite
def basic(draw: st.DrawFn, shape: Sequence[int]) -> tuple[Any, ...]:
    """Draw an index of numbers, slices, None and an ellipsis."""
    count = draw(st.integers(0, len(shape)))
    entries: list[Any] = [
        draw(st.integers(-n, n - 1) | slices(n)) if n else draw(slices(n)) for n in shape[:count]
    ]
    if draw(st.booleans()):
        place = draw(st.integers(0, count)) if count == len(shape) else count
        entries.insert(place, Ellipsis)
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        entries.insert(draw(st.integers(0, len(entries))), None)
    return tuple(entries)


@st.composite
def advanced(draw: st.DrawFn, shape: Sequence[int]) -> tuple[Any, ...]:
    """Draw an index in which arrays of positions, masks and bools stand among the others."""
    common = draw(st.sampled_from([(), (1,), (3,), (2, 3), (2, 1), (0,)]))
    entries: list[Any] = []
    dim = 0
    while dim < len(shape):
        size, kind = shape[dim], draw(st.sampled_from("aaismnb"))
        if kind == "n":
            entries.append(None)
            continue
        if kind == "b":
            entries.append(draw(st.booleans()))
            continue
        width = 1
        if kind == "m" and len(common) < 2:
            width = draw(st.integers(1, min(2, len(shape) - dim)))
            entries.append(draw(_masks(tuple(shape[dim : dim + width]), math.prod(common))))
        elif kind == "a" and (size or common == (0,)):
            entries.append(draw(_positions(size, common)))
        elif kind == "i" and size:
            entries.append(draw(st.integers(-size, size - 1)))
        else:
            entries.append(draw(slices(size)))
        dim += width
        if not draw(st.integers(0, 9)):
            break
    if draw(st.booleans()):
        place = draw(st.integers(0, len(entries))) if dim == len(shape) else len(entries)
        entries.insert(place, Ellipsis)
    return tuple(entries)


@st.composite
def _masks(draw: st.DrawFn, shape: tuple[int, ...], count: int) -> np.ndarray:
    """Draw a mask with as many hits as the index's arrays are long, if it can have them."""
    mask = np.zeros(shape, bool)
    hits = draw(st.permutations(range(mask.size)))[:count]
    mask.reshape(-1)[list(hits)] = True
    return mask


@st.composite
def _positions(draw: st.DrawFn, size: int, common: tuple[int, ...]) -> np.ndarray:
    """Draw positions whose shape broadcasts to the common one."""
    shape = draw(st.sampled_from([common, common[-1:], (1,)])) if size else common
    if np.broadcast_shapes(shape, common) != common:
        shape = common
    count = math.prod(shape)
    values = draw(st.lists(st.integers(-size, max(size - 1, 0)), min_size=count, max_size=count))
    return np.array(values, draw(st.sampled_from(["i8", "i1", "i4"]))).reshape(shape)
