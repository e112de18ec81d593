"""Forms: tensors in the making, and what moves their elements: cut, turn, reshape, join, pad.

In: names, shapes and dtypes of sources. Out: forms, whose terms stay strided regions whatever is
done to them; a recipe when all is done.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, final

import numpy as np

from meshard.algebra.box import Box
from meshard.errors import KeyMapError
from meshard.weights.maps.fields import constant_in, is_lossless
from meshard.weights.maps.recipe import Fill, Recipe, Stride, Term, canonical, cut, merged_terms

MAX_TERMS = 65_536
_T = TypeVar("_T")
_UNTIDY = 64  # from that many terms on, what belongs together is joined at once


@final
@dataclass(frozen=True, slots=True)
class Form:
    """A tensor in the making.

    Attributes:
        shape: its shape.
        dtype: its dtype.
        terms: the regions of sources that fill it.
        fills: the regions that have one value: terms of no source, and the value.
        exact: whether the elements still have the values of the sources: no cast has rounded them.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    terms: tuple[Term, ...]
    fills: tuple[tuple[Term, float], ...] = ()
    exact: bool = True

    @property
    def ndim(self) -> int:
        """The number of dims."""
        return len(self.shape)

    def transposed(self, perm: Sequence[int]) -> Form:
        """Return the dims in another order."""
        if sorted(perm) != list(range(self.ndim)):
            raise KeyMapError(
                f"a permutation of its {self.ndim} dims names each of them once, not {list(perm)}"
            )
        place = {d: k for k, d in enumerate(perm)}

        def turned(term: Term) -> Iterable[Term]:
            strides = [_aimed(s, place[s.target], s.target_step) for s in term.strides]
            start = tuple([term.target_start[d] for d in perm])
            return (_placed(term, strides, start),)

        return self._each(turned, tuple([self.shape[d] for d in perm]))

    def sliced(self, dim: int, start: int, stop: int, step: int = 1) -> Form:
        """Return the elements whose index along a dim is in a range within it."""
        size = len(range(start, stop, step))

        def kept(term: Term) -> Iterable[Term]:
            for part in cut(term, dim, start, stop, of_source=False):
                yield from _thinned(_shifted(part, dim, -start), dim, step)

        return self._each(kept, (*self.shape[:dim], size, *self.shape[dim + 1 :]))

    def split(self, dim: int, inner: int) -> Form:
        """Return a dim as two, the last one of a given size; the end may stay empty."""
        size = -(-self.shape[dim] // inner)
        shape = (*self.shape[:dim], size, inner, *self.shape[dim + 1 :])
        return self._each(lambda t: _carried(t, dim, inner), shape)

    def merged(self, first: int, last: int) -> Form:
        """Return several dims, from the first to the last, as one."""
        sizes = self.shape[first : last + 1]
        steps = [math.prod(sizes[k + 1 :]) for k in range(len(sizes))]

        def joined(term: Term) -> Iterable[Term]:
            strides = [_merged_stride(s, first, steps) for s in term.strides]
            old = term.target_start
            at = sum([i * n for i, n in zip(old[first : last + 1], steps, strict=True)])
            return (_placed(term, strides, (*old[:first], at, *old[last + 1 :])),)

        return self._each(joined, (*self.shape[:first], math.prod(sizes), *self.shape[last + 1 :]))

    def expanded(self, dim: int, size: int = 1) -> Form:
        """Return it with one more dim, along which all is repeated."""

        def wider(term: Term) -> Iterable[Term]:
            moved = [_aimed(s, s.target + (s.target >= dim), s.target_step) for s in term.strides]
            if size > 1:
                moved.append(Stride(size, None, 0, dim, 1))
            start = term.target_start
            return (_placed(term, moved, (*start[:dim], 0, *start[dim:])),)

        shape = (*self.shape[:dim], size, *self.shape[dim:])
        return self._each(wider, shape) if size else replace(self, shape=shape, terms=(), fills=())

    def squeezed(self, dim: int) -> Form:
        """Return it without a dim of size one."""

        def narrower(term: Term) -> Iterable[Term]:
            moved = [
                _aimed(s, s.target - (s.target > dim), s.target_step)
                for s in term.strides
                if s.target != dim
            ]
            start = term.target_start
            return (_placed(term, moved, (*start[:dim], *start[dim + 1 :])),)

        return self._each(narrower, (*self.shape[:dim], *self.shape[dim + 1 :]))

    def unbound(self, dim: int) -> list[Form]:
        """Return the forms along a dim, without it, in one pass over the terms."""
        shape = (*self.shape[:dim], *self.shape[dim + 1 :])
        terms: list[list[Term]] = [[] for _ in range(self.shape[dim])]
        fills: list[list[tuple[Term, float]]] = [[] for _ in range(self.shape[dim])]
        for term in self.terms:
            for at, part in _layers(term, dim):
                terms[at].append(part)
        for term, value in self.fills:
            for at, part in _layers(term, dim):
                fills[at].append((part, value))
        return [
            replace(self, shape=shape, terms=tuple(t), fills=tuple(f))
            for t, f in zip(terms, fills, strict=True)
        ]

    def reshaped(self, shape: Sequence[int]) -> Form:
        """Return the same elements, in C order, in another shape; one size may be -1."""
        shape = complete_shape(self.shape, shape)
        if not math.prod(shape):
            return replace(self, shape=shape, terms=(), fills=())
        form = self
        for dim in reversed(range(self.ndim)):
            if form.shape[dim] == 1:
                form = form.squeezed(dim)
        full = [n for n in shape if n > 1]
        for old, new in reversed(_groups(form.shape, full)):
            if len(old) > 1:
                form = form.merged(old.start, old.stop - 1)
            for k in new[:-1]:
                dim = old.start + k - new.start
                form = form.split(dim, math.prod(full[k + 1 : new.stop]))
        for dim, n in enumerate(shape):
            if n == 1:
                form = form.expanded(dim)
        return form

    def padded(self, dim: int, before: int, after: int, value: float = 0.0) -> Form:
        """Return it with elements of one value before and after it along a dim."""
        size = self.shape[dim]
        shape = (*self.shape[:dim], before + size + after, *self.shape[dim + 1 :])
        form = self._each(lambda t: (_shifted(t, dim, before),), shape)
        value = constant_in(value, self.dtype)
        fills = list(form.fills)
        for at, n in ((0, before), (before + size, after)):
            box = (*shape[:dim], n, *shape[dim + 1 :])
            if math.prod(box):
                start = tuple([at if d == dim else 0 for d in range(len(shape))])
                fills.append((_constant(box, start), value))
        return replace(form, fills=tuple(fills))

    def cast(self, dtype: np.dtype[Any]) -> Form:
        """Return it in another dtype.

        Raises:
            KeyMapError: if an earlier cast has rounded its elements: sources are cast once.
        """
        if dtype == self.dtype:
            return self
        if not self.exact:
            raise KeyMapError(
                f"a cast has rounded its elements to {self.dtype} before; another one, to {dtype}, "
                "would round them twice. Cast once, to the dtype that is wanted"
            )
        fills = [(t, constant_in(v, dtype)) for t, v in self.fills]
        return replace(self, dtype=dtype, fills=tuple(fills), exact=is_lossless(self.dtype, dtype))

    def recipe(self) -> Recipe:
        """Return the finished recipe, with neighbouring regions joined."""
        terms = merged_terms(self.terms)
        fills = [Fill(box, v) for t, v in _merged_fills(self.fills) for box in _boxes(t)]
        check_count(len(terms) + len(fills))
        return Recipe(self.shape, self.dtype, terms, tuple(fills))

    def _each(self, change: Callable[[Term], Iterable[Term]], shape: tuple[int, ...]) -> Form:
        terms = _limited(n for t in self.terms for n in change(t))
        fills = _limited((n, v) for t, v in self.fills for n in change(t)) if self.fills else ()
        if len(terms) > _UNTIDY:
            terms = list(merged_terms(terms))
        return Form(shape, self.dtype, tuple(terms), tuple(fills), self.exact)


def source_form(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Form:
    """Return the form of a source as it is."""
    if 0 in shape:
        return Form(shape, dtype, ())
    strides, start = _whole(shape)
    return Form(shape, dtype, (Term(name, strides, start, start),))


@functools.lru_cache(maxsize=1024)
def _whole(shape: tuple[int, ...]) -> tuple[tuple[Stride, ...], tuple[int, ...]]:
    strides = [Stride(n, d, 1, d, 1) for d, n in enumerate(shape) if n > 1]
    return tuple(strides), (0,) * len(shape)


def form_of(recipe: Recipe, *, exact: bool = True) -> Form:
    """Return a recipe as a form that can be worked on."""
    fills = [(_constant(f.box.shape, f.box.starts), f.value) for f in recipe.fills]
    return Form(recipe.shape, recipe.dtype, recipe.terms, tuple(fills), exact)


def joined(forms: Sequence[Form], dim: int) -> Form:
    """Return forms one after the other along a dim; their other dims and dtypes are the same."""
    terms: list[Term] = []
    fills: list[tuple[Term, float]] = []
    at = 0
    for form in forms:
        terms += [_shifted(t, dim, at) for t in form.terms]
        fills += [(_shifted(t, dim, at), v) for t, v in form.fills]
        at += form.shape[dim]
        check_count(len(terms) + len(fills))
    first = forms[0]
    shape = (*first.shape[:dim], at, *first.shape[dim + 1 :])
    exact = all(f.exact for f in forms)
    return Form(shape, first.dtype, tuple(terms), tuple(fills), exact)


def composed(recipe: Recipe, forms: Mapping[str, Form]) -> Form:
    """Return the form of a tensor that is made of tensors in the making.

    >>> f4 = np.dtype("f4")
    >>> turned = source_form("x", (2, 3), f4).transposed((1, 0))
    >>> again = turned.recipe()
    >>> composed(again, {"x": turned}).recipe().is_identity
    True
    """
    outer = form_of(recipe)
    terms: list[Term] = []
    fills = list(outer.fills)
    exact = True
    for term in recipe.terms:
        inner = forms[term.source]
        part = _gathered(inner, term)
        terms += [_scattered(t, term) for t in part.terms]
        fills += [(_scattered(t, term), v) for t, v in part.fills]
        exact = exact and inner.exact
        if not exact and inner.dtype != recipe.dtype:
            inner.cast(recipe.dtype)  # refuses to round twice
        exact = exact and is_lossless(inner.dtype, recipe.dtype)
        check_count(len(terms) + len(fills))
    return Form(recipe.shape, recipe.dtype, tuple(terms), tuple(fills), exact)


def complete_shape(old: tuple[int, ...], new: Sequence[int]) -> tuple[int, ...]:
    """Return a new shape with its -1 replaced.

    Raises:
        KeyMapError: if the shapes have different numbers of elements.
    """
    sizes = list(new)
    known = math.prod([n for n in sizes if n != -1])
    if sizes.count(-1) == 1 and known > 0 and math.prod(old) % known == 0:
        sizes[sizes.index(-1)] = math.prod(old) // known
    if any(n < 0 for n in sizes) or math.prod(sizes) != math.prod(old):
        raise KeyMapError(
            f"its shape {old} has {math.prod(old):,} elements, and so must the new one; found "
            f"{tuple(new)}"
        )
    return tuple(sizes)


def check_count(count: int) -> None:
    """Refuse a tensor of too many regions."""
    if count > MAX_TERMS:
        raise KeyMapError(
            f"it would be made of more than {MAX_TERMS:,} strided regions, too many to move it "
            "well. Cut it on borders that its parts have in common"
        )


def _limited(made: Iterable[_T]) -> list[_T]:
    listed = list(itertools.islice(made, MAX_TERMS + 1))
    check_count(len(listed))
    return listed


def _constant(shape: tuple[int, ...], start: tuple[int, ...]) -> Term:
    """Return a term of no source that fills a box."""
    strides = [Stride(n, None, 0, d, 1) for d, n in enumerate(shape) if n > 1]
    return Term("", tuple(strides), (), start)


def _aimed(s: Stride, target: int, step: int) -> Stride:
    if s.target == target and s.target_step == step:
        return s
    return Stride(s.size, s.source, s.source_step, target, step)


def _placed(term: Term, strides: Iterable[Stride], start: tuple[int, ...]) -> Term:
    ordered = sorted(strides, key=lambda s: (s.target, -s.target_step))
    return Term(term.source, tuple(ordered), term.source_start, start)


def _shifted(term: Term, dim: int, by: int) -> Term:
    if not by:
        return term
    start = term.target_start
    moved = (*start[:dim], start[dim] + by, *start[dim + 1 :])
    return Term(term.source, term.strides, term.source_start, moved)


def _merged_stride(s: Stride, first: int, steps: Sequence[int]) -> Stride:
    last = first + len(steps) - 1
    if s.target < first:
        return s
    if s.target > last:
        return _aimed(s, s.target - len(steps) + 1, s.target_step)
    return _aimed(s, first, s.target_step * steps[s.target - first])


def _groups(old: Sequence[int], new: Sequence[int]) -> list[tuple[range, range]]:
    """Return the shortest runs of dims, all larger than one, that have as many elements."""
    groups = []
    i = j = 0
    while i < len(old):
        a, b = i, j
        here, there = old[i], new[j]
        i, j = i + 1, j + 1
        while here != there:
            if here < there:
                here *= old[i]
                i += 1
            else:
                there *= new[j]
                j += 1
        groups.append((range(a, i), range(b, j)))
    return groups


def _parted(term: Term, which: int, at: int, size: int, outer: tuple[int, int]) -> Term:
    """Return some elements of a direction: runs of a size from a position on.

    Args:
        term: the term.
        which: the direction.
        at: the position of the first element.
        size: the elements of a run.
        outer: how many runs there are, and how many positions further the next one begins.
    """
    s = term.strides[which]
    source, target = list(term.source_start), list(term.target_start)
    if s.source is not None:
        source[s.source] += at * s.source_step
    target[s.target] += at * s.target_step
    count, period = outer
    pair = (
        replace(
            s,
            size=count,
            source_step=s.source_step * period,
            target_step=s.target_step * period,
        ),
        replace(s, size=size),
    )
    strides = (*term.strides[:which], *[p for p in pair if p.size > 1], *term.strides[which + 1 :])
    return Term(term.source, strides, tuple(source), tuple(target))


def _layers(term: Term, dim: int) -> Iterator[tuple[int, Term]]:
    """Yield the parts of a term at each index along a dim, without the dim."""
    along = [k for k, s in enumerate(term.strides) if s.target == dim]
    for positions in itertools.product(*[range(term.strides[k].size) for k in along]):
        part = term
        for k, at in reversed(list(zip(along, positions, strict=True))):
            part = _parted(part, k, at, 1, (1, 1))
        start = part.target_start
        strides = [_aimed(s, s.target - (s.target > dim), s.target_step) for s in part.strides]
        yield start[dim], _placed(part, strides, (*start[:dim], *start[dim + 1 :]))


def _thinned(term: Term, dim: int, step: int) -> Iterator[Term]:
    """Yield the elements whose index along a dim is a multiple of a step, divided by it."""
    if step == 1:
        yield term
        return
    loose = [k for k, s in enumerate(term.strides) if s.target == dim and s.target_step % step]
    periods = {k: step // math.gcd(step, term.strides[k].target_step) for k in loose}
    ranges = [range(min(periods[k], term.strides[k].size)) for k in loose]
    check_count(math.prod([len(r) for r in ranges]))
    for offsets in itertools.product(*ranges):
        at = sum([o * term.strides[k].target_step for k, o in zip(loose, offsets, strict=True)])
        if (term.target_start[dim] + at) % step:
            continue
        part = term
        for k, o in reversed(list(zip(loose, offsets, strict=True))):
            count = -(-(term.strides[k].size - o) // periods[k])
            part = _parted(part, k, o, 1, (count, periods[k]))
        strides = [
            _aimed(s, dim, s.target_step // step) if s.target == dim else s for s in part.strides
        ]
        start = part.target_start
        yield _placed(part, strides, (*start[:dim], start[dim] // step, *start[dim + 1 :]))


def _carried(term: Term, dim: int, inner: int) -> Iterator[Term]:
    """Yield a term with a dim split in two, cut where a run reaches over the inner one's end."""
    rest = term.target_start[dim] % inner
    low = {
        k: s.target_step
        for k, s in enumerate(term.strides)
        if s.target == dim and s.target_step % inner
    }
    extent = sum([(term.strides[k].size - 1) * step for k, step in low.items()])
    if rest + extent < inner:
        yield _split_term(term, dim, inner)
        return
    top = max(low, key=lambda k: low[k])
    s = term.strides[top]
    reach = extent - (s.size - 1) * s.target_step
    for at, size, outer in _runs(rest, s, reach, inner):
        yield from _carried(_parted(term, top, at, size, outer), dim, inner)


def _split_term(term: Term, dim: int, inner: int) -> Term:
    strides = []
    for s in term.strides:
        if s.target < dim:
            strides.append(s)
        elif s.target > dim or s.target_step % inner:
            strides.append(_aimed(s, s.target + 1, s.target_step))
        else:
            strides.append(_aimed(s, dim, s.target_step // inner))
    start = term.target_start
    return _placed(term, strides, (*start[:dim], *divmod(start[dim], inner), *start[dim + 1 :]))


def _runs(
    rest: int, s: Stride, reach: int, inner: int
) -> Iterator[tuple[int, int, tuple[int, int]]]:
    """Yield runs of positions that stay within one row each, as position, size, (count, period).

    Rows repeat after as many positions as it takes to begin a row at the same place again.

    Args:
        rest: where in a row the first position is.
        s: the direction.
        reach: how far the elements at each position reach.
        inner: the length of a row.
    """
    step, size = s.target_step, s.size
    period = inner // math.gcd(step, inner)

    def run(at: int, end: int) -> int:
        place = (rest + at * step) % inner
        fits = (inner - 1 - reach - place) // step + 1 if place + reach < inner else 1
        return min(fits, end - at)

    at = 0
    if rest >= step:  # what is left of a row that began earlier
        at = run(0, size)
        yield 0, at, (1, period)
    count = (size - at) // period
    ends = [(at + period, count), (size, 1)] if count > 1 else [(size, 1)]
    made = 0
    for end, repeats in ends:
        if repeats == 1 and count > 1:
            at += (count - 1) * period
        while at < end:
            n = run(at, end)
            yield at, n, (repeats, period)
            at += n
            made += 1
            check_count(made)


def _gathered(form: Form, term: Term) -> Form:
    """Return the elements of a form that a term takes, with a dim for each of its directions."""
    if _takes_all(form, term):
        dims = sorted([s.source or 0 for s in term.strides])
        for d in reversed(range(form.ndim)):
            form = form if d in dims else form.squeezed(d)
        return form.transposed([dims.index(s.source or 0) for s in term.strides])
    order: list[int] = []  # for each dim of the result, the direction
    for d in reversed(range(form.ndim)):
        along = [k for k, s in enumerate(term.strides) if s.source == d]
        along.sort(key=lambda k: -term.strides[k].source_step)
        form = _strided(form, d, term.source_start[d], [term.strides[k] for k in along])
        order[:0] = along
    for k, s in enumerate(term.strides):
        if s.source is None:
            form = form.expanded(form.ndim, s.size)
            order.append(k)
    return form.transposed([order.index(k) for k in range(len(order))])


def _takes_all(form: Form, term: Term) -> bool:
    """Whether a term takes all of a form, its dims in any order."""
    sizes = {s.source: s.size for s in term.strides if s.source_step == 1}
    return len(sizes) == len(term.strides) and all(
        sizes.get(d, 1) == n for d, n in enumerate(form.shape)
    )


def _strided(form: Form, dim: int, start: int, strides: Sequence[Stride]) -> Form:
    """Return a dim as one for each of some directions along it, the largest steps first."""
    reach = [(s.size - 1) * s.source_step for s in strides]
    form = form.sliced(dim, start, start + sum(reach) + 1)
    for k, s in enumerate(strides):
        if s.source_step > 1:
            form = form.split(dim + k, s.source_step)
            form = form.sliced(dim + k + 1, 0, sum(reach[k + 1 :]) + 1)
    whole = strides and strides[-1].source_step == 1
    return form if whole else form.squeezed(dim + len(strides))


def _scattered(inner: Term, outer: Term) -> Term:
    """Return the term that fills a target with what a gathered region is made of."""
    strides = []
    for s in inner.strides:
        way = outer.strides[s.target]
        strides.append(_aimed(s, way.target, s.target_step * way.target_step))
    start = list(outer.target_start)
    for at, way in zip(inner.target_start, outer.strides, strict=True):
        start[way.target] += at * way.target_step
    return _placed(inner, strides, tuple(start))


def _merged_fills(fills: Sequence[tuple[Term, float]]) -> Iterator[tuple[Term, float]]:
    values = dict.fromkeys([v for _, v in fills])
    for value in values:
        for term in merged_terms(
            [t for t, v in fills if v == value or (v != v and value != value)]
        ):
            yield term, value


def _boxes(term: Term) -> Iterator[Box]:
    """Yield the boxes that a term of no source fills."""
    term = canonical(term)
    flat = [s for s in term.strides if s.target_step == 1]
    steep = [s for s in term.strides if s.target_step > 1]
    check_count(math.prod([s.size for s in steep]))
    for at in itertools.product(*[range(s.size) for s in steep]):
        starts = list(term.target_start)
        for k, s in zip(at, steep, strict=True):
            starts[s.target] += k * s.target_step
        stops = [a + 1 for a in starts]
        for s in flat:
            stops[s.target] += s.size - 1
        yield Box(tuple(starts), tuple(stops))
