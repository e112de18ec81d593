"""Merging: terms that belong together become one.

In: terms of one tensor. Out: fewer terms that fill the same elements from the same ones; what was
cut and joined again is whole again.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from meshard.weights.maps.recipe import Stride, Term

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
