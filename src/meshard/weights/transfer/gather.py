"""Gathering: a box of a tensor, made of what lies in files.

In: a catalogue, a recipe and a box of its result. Out: an array filled with the box's elements,
read from as few bytes as hold them.

Scratch: memory that tasks use one after the other, so that its pages are touched once.

In: shapes. Out: blocks, for as long as a ``with`` statement runs.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any, final

import numpy as np

from meshard.algebra.box import Box
from meshard.runtime.moving.execute import view_of
from meshard.runtime.types import Block
from meshard.weights.catalogue.stored import Catalogue, Piece, Stored
from meshard.weights.maps.recipe import Recipe, Stride, Term, copy_cast, strided

_DENSE = 0.98
"""Share of a box's elements that must be needed for it to be read as one."""


_Grid = tuple[list[list[int]], dict[tuple[int, ...], Piece]]


@final
class Gatherer:
    """Reads boxes of tensors that are made of what some files hold; any thread may use it.

    Args:
        catalogue: the files.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._grids: dict[str, _Grid | None] = {}

    def fill(self, recipe: Recipe, box: Box, out: Block) -> None:
        """Fill an array with a box of a tensor.

        Args:
            recipe: how the tensor is made.
            box: the elements.
            out: a writable array of the box's shape and the recipe's dtype, strided or not.

        Raises:
            CheckpointError: if a file cannot be read.
        """
        if recipe.is_identity and out.dtype == self._catalogue.tensors[recipe.sources[0]].dtype:
            self._copy(self._catalogue.tensors[recipe.sources[0]], box, out)
            return
        for fill in recipe.fills:
            around = fill.box.intersect(box)
            if around.volume:
                out[around.within(box).slices] = fill.value
        for term in recipe.terms:
            for part in term.within_target(box):
                tensor = self._catalogue.tensors[part.source]
                for piece in self.pieces_at(tensor, part.source_box):
                    terms = list(part.within_source(piece.box))
                    if terms:
                        _read(self._catalogue, tensor, piece, terms, box, out)

    def _copy(self, tensor: Stored, box: Box, out: Block) -> None:
        """Fill an array with a box of a tensor as it is in the files."""
        for piece in self.pieces_at(tensor, box):
            part = box.intersect(piece.box)
            if part.volume:
                place = out if part == box else view_of(out, part.within(box).slices)
                self._catalogue.reader.read(tensor, piece, part, place)

    def pieces_at(self, tensor: Stored, box: Box) -> Iterator[Piece]:
        """Yield the pieces of a tensor that hold elements of a box."""
        if tensor.name not in self._grids:
            self._grids[tensor.name] = _grid(tensor)
        grid = self._grids[tensor.name]
        if grid is None:
            yield from [p for p in tensor.pieces if p.box.intersect(box).volume]
            return
        starts, pieces = grid
        spans = [
            range(max(bisect_right(s, a) - 1, 0), bisect_left(s, b))
            for s, a, b in zip(starts, box.starts, box.stops, strict=True)
        ]
        for place in product(*spans):
            yield pieces[place]


def _grid(tensor: Stored) -> _Grid | None:
    """Return where pieces begin along each dim, and the pieces by place; None if not a grid."""
    full = [p for p in tensor.pieces if p.box.volume]
    starts = [sorted({p.box.starts[d] for p in full}) for d in range(len(tensor.shape))]
    pieces = {
        tuple([bisect_left(s, a) for s, a in zip(starts, p.box.starts, strict=True)]): p
        for p in full
    }
    return (starts, pieces) if math.prod(map(len, starts)) == len(pieces) else None


def _read(
    catalogue: Catalogue,
    tensor: Stored,
    piece: Piece,
    terms: Sequence[Term],
    box: Box,
    out: Block,
) -> None:
    """Fill the places in an array that are made of elements of one piece."""
    if len(terms) == 1 and is_dense(terms[0]) and out.dtype == tensor.dtype:
        term = terms[0]
        view = _in_source_order(term, out, box)
        if view is not None:
            catalogue.reader.read(tensor, piece, term.source_box, view)
            return
    for together in _read_together(terms):
        region = _hull(together)
        scratch = np.empty(region.shape, tensor.dtype)
        catalogue.reader.read(tensor, piece, region, scratch)
        for term in together:
            target = term.target_view(out, box.starts)
            copy_cast(target, term.source_view(scratch, region.starts))


def _read_together(terms: Sequence[Term]) -> Iterator[Sequence[Term]]:
    """Yield groups of terms, each to be read as the box around it."""
    if _needed(terms) >= _DENSE * _hull(terms).volume:
        yield terms
        return
    for term in terms:
        if _needed([term]) >= _DENSE * term.source_box.volume:
            yield [term]
        else:
            for part in _dense_parts(term):
                yield [part]


def _needed(terms: Sequence[Term]) -> int:
    """Return how many elements of the source some terms need; an upper bound if they share some."""
    return sum([math.prod([s.size for s in t.strides if s.source is not None]) for t in terms])


def _hull(terms: Sequence[Term]) -> Box:
    boxes = [t.source_box for t in terms]
    starts = tuple(map(min, zip(*[b.starts for b in boxes], strict=True)))
    stops = tuple(map(max, zip(*[b.stops for b in boxes], strict=True)))
    return Box(starts, stops)


def is_dense(term: Term) -> bool:
    """Whether a term needs each element of a box of its source exactly once."""
    dims = [s.source for s in term.strides]
    return None not in dims and term.source_box.volume == term.volume


def _dense_parts(term: Term) -> Iterator[Term]:
    """Yield the parts of a term that are boxes of its source, without elements in between."""
    loops = []
    for dim in range(len(term.source_start)):
        extent = 1
        on = [(s.source_step, k) for k, s in enumerate(term.strides) if s.source == dim]
        for step, k in sorted(on):
            if step == extent:
                extent *= term.strides[k].size
            else:
                loops.append(k)
    kept = tuple([s for k, s in enumerate(term.strides) if k not in loops])
    for at in product(*[range(term.strides[k].size) for k in loops]):
        source, target = list(term.source_start), list(term.target_start)
        for k, i in zip(loops, at, strict=True):
            s = term.strides[k]
            assert s.source is not None
            source[s.source] += i * s.source_step
            target[s.target] += i * s.target_step
        yield Term(term.source, kept, tuple(source), tuple(target))


def _in_source_order(term: Term, out: Block, box: Box) -> Block | None:
    """Return the places that a dense term fills, as a view in the shape of its source's box.

    None if a dim of the source runs along several directions of the target.
    """
    by_dim: dict[int, Stride] = {}
    for stride in term.strides:
        assert stride.source is not None
        if stride.source in by_dim:
            return None
        by_dim[stride.source] = stride
    steps = [
        by_dim[d].target_step * out.strides[by_dim[d].target] if d in by_dim else 0
        for d in range(len(term.source_start))
    ]
    start = [a - o for a, o in zip(term.target_start, box.starts, strict=True)]
    return strided(out, start, term.source_box.shape, steps)


@final
class Scratch:
    """Buffers that are free, as many as tasks have run at once; any thread may use it."""

    def __init__(self) -> None:
        self._free: list[np.ndarray[Any, np.dtype[np.uint8]]] = []

    @contextmanager
    def block(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Iterator[Block]:
        """Give a block of any values, which must not be used afterwards."""
        size = math.prod(shape) * dtype.itemsize
        try:
            buffer = self._free.pop()
        except IndexError:
            buffer = np.empty(size, np.uint8)
        if buffer.nbytes < size:
            buffer = np.empty(size, np.uint8)
        try:
            yield buffer[:size].view(dtype).reshape(shape)
        finally:
            self._free.append(buffer)
