"""Recipes: where each element of a tensor comes from, as strided regions of other tensors.

In: shapes, and the regions that a map has found. Out: for any box of the result, or of a source,
the regions that concern it, and views of blocks that show them.

Merging: terms that belong together become one.

In: terms of one tensor. Out: fewer terms that fill the same elements from the same ones; what was
cut and joined again is whole again.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final

import numpy as np
from numpy.lib.stride_tricks import as_strided

from meshard.algebra.box import Box
from meshard.runtime.types import Block


@final
@dataclass(frozen=True, slots=True)
class Stride:
    """One direction of a term: so many elements, and how far apart they are on both sides.

    Attributes:
        size: how many elements it has.
        source: the source's dim that it runs along; None if all of them are one element, repeated.
        source_step: how far the next element is in that dim; 0 if it is repeated.
        target: the target's dim that it runs along.
        target_step: how far the next element is in that dim.
    """

    size: int
    source: int | None
    source_step: int
    target: int
    target_step: int


@final
@dataclass(frozen=True, slots=True)
class Term:
    """A strided region of a source that fills a strided region of a target.

    Along each dim, on both sides, the steps are nested: a stride's step is at least the extent of
    all strides with smaller steps. Then no element is named twice along it.

    Attributes:
        source: the source tensor's name.
        strides: the directions, outermost first in the order of the target's memory.
        source_start: the first element's index in the source.
        target_start: the first element's index in the target.
    """

    source: str
    strides: tuple[Stride, ...]
    source_start: tuple[int, ...]
    target_start: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """How many elements there are in each direction."""
        return tuple([s.size for s in self.strides])

    @property
    def volume(self) -> int:
        """The number of elements that are filled."""
        return math.prod([s.size for s in self.strides])

    @property
    def unique(self) -> int:
        """The number of elements of the source."""
        return math.prod([s.size for s in self.strides if s.source is not None])

    @property
    def source_box(self) -> Box:
        """The smallest box of the source that holds the region."""
        stops = list(self.source_start)
        for s in self.strides:
            if s.source is not None:
                stops[s.source] += (s.size - 1) * s.source_step
        return Box(self.source_start, tuple([n + 1 for n in stops]))

    @property
    def target_box(self) -> Box:
        """The smallest box of the target that holds the region."""
        stops = list(self.target_start)
        for s in self.strides:
            stops[s.target] += (s.size - 1) * s.target_step
        return Box(self.target_start, tuple([n + 1 for n in stops]))

    def within_target(self, box: Box) -> Iterator[Term]:
        """Yield the parts of the term that fill elements of a box of the target."""
        yield from _within(self, box, of_source=False)

    def within_source(self, box: Box) -> Iterator[Term]:
        """Yield the parts of the term that are made of elements of a box of the source."""
        yield from _within(self, box, of_source=True)

    def slabs(self, most: int) -> Iterator[Term]:
        """Yield parts of the term with at most that many elements of the source, or with one.

        They have no element of the source in common: a direction in which one is repeated stays
        whole.
        """
        which = next((k for k, s in enumerate(self.strides) if s.source is not None), None)
        if self.unique <= most or which is None:
            yield self
            return
        size = self.strides[which].size
        step = max(1, most * size // self.unique)
        for at in range(0, size, step):
            yield from _narrowed(self, which, at, min(step, size - at)).slabs(most)

    def source_view(self, block: Block, origin: Sequence[int]) -> Block:
        """Return the region as a view of a block of the source.

        Args:
            block: the block.
            origin: the index in the source of the block's first element.
        """
        steps = [
            0 if s.source is None else s.source_step * block.strides[s.source] for s in self.strides
        ]
        return strided(
            block,
            [a - o for a, o in zip(self.source_start, origin, strict=True)],
            self.shape,
            steps,
        )

    def target_view(self, block: Block, origin: Sequence[int]) -> Block:
        """Return the region as a view of a block of the target."""
        steps = [s.target_step * block.strides[s.target] for s in self.strides]
        return strided(
            block,
            [a - o for a, o in zip(self.target_start, origin, strict=True)],
            self.shape,
            steps,
        )


def strided(
    block: Block, start: Sequence[int], shape: tuple[int, ...], steps: Sequence[int]
) -> Block:
    """Return a strided region of a block as a view.

    Args:
        block: the block.
        start: the index of the region's first element.
        shape: the region's shape.
        steps: for each of its dims, the bytes from an element to the next.
    """
    place: tuple[Any, ...] = (*[slice(a, None) for a in start], ...)
    # NumPy makes such views by a dtype's text, and that of some short floats has no meaning to it.
    corner = block[place].view(f"V{block.itemsize}")
    view = as_strided(corner, shape, steps, writeable=bool(block.flags.writeable))
    found: Block = view.view(block.dtype)
    return found


def copy_cast(place: Block, values: Block) -> None:
    """Copy values to their place, cast to its dtype; what is too large for it becomes infinite."""
    with np.errstate(all="ignore"):
        np.copyto(place, values, casting="unsafe")


@final
@dataclass(frozen=True, slots=True)
class Fill:
    """A box of a target that has one value: padding."""

    box: Box
    value: float = 0.0


@final
@dataclass(frozen=True)
class Recipe:
    """How one tensor is made: every element is that of one term, or of a fill.

    Attributes:
        shape: the tensor's shape.
        dtype: its dtype; elements are cast to it.
        terms: disjoint regions, in the order in which they were found.
        fills: boxes that no term fills, disjoint.
        of_part: whether a source has elements that it leaves out at the end of a dim; shapes of
            sources are not known here otherwise.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    terms: tuple[Term, ...]
    fills: tuple[Fill, ...] = ()
    of_part: bool = False

    @cached_property
    def is_identity(self) -> bool:
        """Whether it is a source tensor as it is, but for its name and dtype."""
        if len(self.terms) != 1 or self.fills or self.of_part:
            return False
        (term,) = self.terms
        start = (0,) * len(self.shape)
        return term.source_start == term.target_start == start and all(
            s.source == s.target and s.source_step == s.target_step == 1 for s in term.strides
        )

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """The names of the tensors that it is made of."""
        return tuple(dict.fromkeys(t.source for t in self.terms))


def identity(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Recipe:
    """Return the recipe of a tensor that is another as it is.

    >>> identity("w", (2, 3), np.dtype("f4")).is_identity
    True
    """
    if 0 in shape:
        return Recipe(shape, dtype, ())
    start = (0,) * len(shape)
    strides = tuple([Stride(n, d, 1, d, 1) for d, n in enumerate(shape)])
    return Recipe(shape, dtype, (Term(name, strides, start, start),))


def _within(term: Term, box: Box, *, of_source: bool) -> Iterator[Term]:
    """Yield the parts of a term in a box of one side, cut dim by dim."""
    parts = [term]
    for dim, (lo, hi) in enumerate(zip(box.starts, box.stops, strict=True)):
        parts = [p for one in parts for p in cut(one, dim, lo, hi, of_source=of_source)]
    yield from parts


def cut(term: Term, dim: int, lo: int, hi: int, *, of_source: bool) -> Iterator[Term]:
    """Yield the parts of a term whose index along one dim, of one side, is in a range."""
    start = (term.source_start if of_source else term.target_start)[dim]
    steps = {
        k: s.source_step if of_source else s.target_step
        for k, s in enumerate(term.strides)
        if (s.source if of_source else s.target) == dim
    }
    extent = sum([(term.strides[k].size - 1) * step for k, step in steps.items()])
    if lo <= start and start + extent < hi:
        yield term
        return
    if start >= hi or start + extent < lo:
        return
    top = max(steps, key=lambda k: (steps[k], term.strides[k].size))
    step, most = steps[top], term.strides[top].size - 1
    inner = extent - most * step  # how far the smaller strides reach
    # Positions of the largest stride at which some, and all, of the smaller ones are inside.
    some = range(max(_ceil(lo - start - inner, step), 0), min((hi - 1 - start) // step, most) + 1)
    first, last = max(_ceil(lo - start, step), 0), min((hi - 1 - start - inner) // step, most)
    if first <= last:
        yield _narrowed(term, top, first, last - first + 1)
    edges = (some[: max(first - some.start, 0)], some[max(last + 1 - some.start, 0) :])
    for at in some if first > last else itertools.chain(*edges):  # two at most: steps are nested
        yield from cut(_narrowed(term, top, at, 1), dim, lo, hi, of_source=of_source)


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _narrowed(term: Term, which: int, at: int, size: int) -> Term:
    """Return a term with fewer elements in one direction; one that has a single one is dropped."""
    s = term.strides[which]
    source, target = list(term.source_start), list(term.target_start)
    if s.source is not None:
        source[s.source] += at * s.source_step
    target[s.target] += at * s.target_step
    kept = (replace(s, size=size),) if size > 1 else ()
    strides = (*term.strides[:which], *kept, *term.strides[which + 1 :])
    return Term(term.source, strides, tuple(source), tuple(target))


_ROUNDS = 8


def canonical(term: Term) -> Term:
    """Return a term without directions of one element, and with those joined that are one."""
    strides = _canonical(term.strides)
    return term if len(strides) == len(term.strides) else replace(term, strides=strides)


@functools.lru_cache(maxsize=4096)
def _canonical(given: tuple[Stride, ...]) -> tuple[Stride, ...]:
    strides: list[Stride] = []
    for s in given:
        last = strides[-1] if strides else None
        if s.size == 1:
            continue
        if (
            last is not None
            and (last.target, last.source) == (s.target, s.source)
            and last.target_step == s.size * s.target_step
            and last.source_step == s.size * s.source_step
        ):
            strides[-1] = replace(s, size=last.size * s.size)
        else:
            strides.append(s)
    return given if len(strides) == len(given) else tuple(strides)


def merged_terms(terms: Iterable[Term]) -> tuple[Term, ...]:
    """Return terms, with those that continue each other joined."""
    groups: dict[str, list[Term]] = {}
    for term in terms:
        groups.setdefault(term.source, []).append(canonical(term))
    return tuple([t for group in groups.values() for t in _merged(group)])


def _merged(terms: list[Term]) -> list[Term]:
    if len(terms) > 1:
        terms = _whole_boxes(terms)
    for _ in range(_ROUNDS):
        if len(terms) < 2:
            break
        before = len(terms)
        for dim in reversed(range(len(terms[0].target_start))):
            terms = list(_neighbours(terms, dim))
        if len(terms) == before:
            break
    return terms


def _whole_boxes(terms: list[Term]) -> list[Term]:
    """Join the parts of a box that is copied as it is, whatever they were cut into."""
    groups: dict[object, list[Term]] = {}
    for k, term in enumerate(terms):
        groups.setdefault(_offset(term) or k, []).append(term)
    joined = []
    for offset, group in groups.items():
        whole = _bounds(group) if len(group) > 1 and isinstance(offset, tuple) else None
        joined += group if whole is None else [whole]
    return joined


def _offset(term: Term) -> tuple[int, ...] | None:
    """Return how far elements are moved, if they are only moved."""
    if len(term.source_start) != len(term.target_start) or any(
        s.source != s.target or s.source_step != s.target_step for s in term.strides
    ):
        return None
    return tuple([b - a for a, b in zip(term.source_start, term.target_start, strict=True)])


def _bounds(terms: Sequence[Term]) -> Term | None:
    """Return the box around moved terms, if they fill it."""
    boxes = [t.target_box for t in terms]
    starts = tuple(map(min, zip(*[b.starts for b in boxes], strict=True)))
    stops = tuple(map(max, zip(*[b.stops for b in boxes], strict=True)))
    sizes = [b - a for a, b in zip(starts, stops, strict=True)]
    if math.prod(sizes) != sum([t.volume for t in terms]):
        return None
    first = terms[0]
    source = [
        s + a - t for s, a, t in zip(first.source_start, starts, first.target_start, strict=True)
    ]
    strides = tuple([Stride(n, d, 1, d, 1) for d, n in enumerate(sizes) if n > 1])
    return Term(first.source, strides, tuple(source), starts)


def _neighbours(terms: Iterable[Term], dim: int) -> Iterator[Term]:
    """Yield terms, with those joined that follow each other along a dim of the target."""

    def place(term: Term) -> tuple[tuple[int, ...], int]:
        start = term.target_start
        return (*start[:dim], *start[dim + 1 :]), start[dim]

    last: Term | None = None
    for term in sorted(terms, key=place):
        both = None
        if last is not None:
            both = _joined(last, term, dim) if place(last)[0] == place(term)[0] else None
            if both is None:
                yield last
        last = both or term
    if last is not None:
        yield last


def _joined(a: Term, b: Term, dim: int) -> Term | None:
    """Return two terms that differ in one place of the target only as one, if they are."""
    gap = b.target_start[dim] - a.target_start[dim]
    shifts = [
        (d, y - x)
        for d, (x, y) in enumerate(zip(a.source_start, b.source_start, strict=True))
        if x != y
    ]
    if len(shifts) > 1 or (shifts and shifts[0][1] < 0) or gap <= 0:
        return None
    source, shift = shifts[0] if shifts else (None, 0)
    if a.strides == b.strides:
        return _longer(a, Stride(2, source, shift, dim, gap), None) or _continued(
            a, b, (source, shift, dim, gap)
        )
    return _continued(a, b, (source, shift, dim, gap))


def _continued(a: Term, b: Term, way: tuple[int | None, int, int, int]) -> Term | None:
    """Return the terms as one if the second continues a direction of the first."""
    source, shift, dim, gap = way
    for k, s in enumerate(a.strides):
        if (
            (s.source, s.target) == (source, dim)
            and s.size * s.target_step == gap
            and s.size * s.source_step == shift
        ):
            rest = (*a.strides[:k], *a.strides[k + 1 :])
            if b.strides == rest:
                return _longer(a, replace(s, size=s.size + 1), k)
            more = b.strides[k] if len(b.strides) == len(a.strides) else None
            if (
                more is not None
                and replace(more, size=s.size) == s
                and rest
                == (
                    *b.strides[:k],
                    *b.strides[k + 1 :],
                )
            ):
                return _longer(a, replace(s, size=s.size + more.size), k)
    for k, s in enumerate(b.strides):
        if (s.source, s.source_step, s.target, s.target_step) == (source, shift, dim, gap) and (
            a.strides == (*b.strides[:k], *b.strides[k + 1 :])
        ):
            return _longer(a, replace(s, size=s.size + 1), None)
    return None


def _longer(term: Term, stride: Stride, instead: int | None) -> Term | None:
    """Return a term with one more direction, or another one, if its steps stay nested."""
    strides = [s for k, s in enumerate(term.strides) if k != instead]
    strides.append(stride)
    strides.sort(key=lambda s: (s.target, -s.target_step))
    along = [(s.target_step, s.size) for s in strides if s.target == stride.target]
    if not _nested(along):
        return None
    if stride.source is not None:
        along = [(s.source_step, s.size) for s in strides if s.source == stride.source]
        if not _nested(along):
            return None
    return canonical(replace(term, strides=tuple(strides)))


def _nested(along: list[tuple[int, int]]) -> bool:
    reach = 0
    for step, size in sorted(along):
        if step <= reach:
            return False
        reach += (size - 1) * step
    return True
